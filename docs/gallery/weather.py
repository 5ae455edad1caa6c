# %% [markdown]
# # Weather: space and time at once
#
# Hourly temperatures over the British Isles in March 2019, on a grid (ERA5). 40,000 of 1.2
# million values are seen, and the map of one hour is filled from the values of all hours.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from orthogp import GPRegressor

data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "era5_t2m_uk_201903.npz")
week = data["X"][:, 2] < 168
X, y = data["X"][week], data["y"][week] - 273.15
order = np.random.default_rng(0).permutation(len(y))
seen, hidden = order[:40_000], order[40_000:60_000]
model = GPRegressor("matern32", solver="neighbours").fit(X[seen], y[seen])
mean, sd = model.predict(X[hidden], return_std=True, include_noise=True)
error = mean - y[hidden]
print(model.kernel_)
print(f"RMSE {np.sqrt(np.mean(error**2)):.2f} °C; sd of the temperatures {y.std():.2f} °C")
print(f"within the 95 % intervals: {100 * np.mean(np.abs(error) < 1.96 * sd):.0f} %")

# %%
hour = X[:, 2] == 84
known = np.full(hour.sum(), np.nan)
known[np.isin(np.flatnonzero(hour), seen)] = y[hour][np.isin(np.flatnonzero(hour), seen)]
columns = np.unique(X[hour, 0], return_inverse=True)[1]
rows = np.unique(X[hour, 1], return_inverse=True)[1]
figure, panels = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
for axes, values, title in zip(
    panels, (known, model.predict(X[hour]), y[hour]), ("seen in this hour", "filled", "truth")
):
    picture = np.full((rows.max() + 1, columns.max() + 1), np.nan)
    picture[rows, columns] = values
    image = axes.imshow(picture, origin="lower", cmap="turbo", vmin=1, vmax=11, aspect=1.7)
    axes.set_title(title)
    axes.set_axis_off()
figure.colorbar(image, ax=panels, shrink=0.8, label="°C")
figure.savefig("hour.png", dpi=80)

# %%
assert np.sqrt(np.mean(error**2)) < 0.5 * y.std()
assert 0.9 < np.mean(np.abs(error) < 1.96 * sd) < 0.99
