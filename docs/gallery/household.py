# %% [markdown]
# # Household power: a rough series, minute by minute
#
# Two weeks of a house's power, a reading each minute, three hours of each day hidden. The series
# jumps when a kettle is switched on: a Matérn-1/2 is as rough as that.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from orthogp import GPRegressor

data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "household_1d.npz")
X, y = data["X"][:20_160] / 60, data["y"][:20_160]
hidden = (X[:, 0] % 24 > 20) & (X[:, 0] % 24 < 23)
model = GPRegressor("matern12", solver="iterative").fit(X[~hidden], y[~hidden])
mean, sd = model.predict(X, return_std=True, include_noise=True)
cover = np.mean(np.abs(mean - y)[hidden] < 1.96 * sd[hidden])
print(f"of the hidden minutes {100 * cover:.0f} % lie within the 95 % bands")

# %%
part = (X[:, 0] > 108) & (X[:, 0] < 156)
hours = X[part, 0] - 108
figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
axes.fill_between(hours, (mean - 1.96 * sd)[part], (mean + 1.96 * sd)[part], alpha=0.3, lw=0)
axes.plot(hours, mean[part], lw=0.8)
axes.plot(hours[hidden[part]], y[part][hidden[part]], "r.", ms=1.5, label="hidden")
axes.set(xlabel="hour", ylabel="power, kW")
axes.legend(frameon=False)
figure.savefig("power.png", dpi=90)

# %%
assert 0.85 < cover < 1
