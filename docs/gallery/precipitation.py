# %% [markdown]
# # Precipitation: kriging, the mean of a region, a simulation
#
# Anomalies of monthly precipitation at 5,906 stations of the United States in 1948. Kriging fills
# the map; its standard deviation grows where stations are rare; a simulation shows what the mean
# smooths away.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from orthogp import GPRegressor

data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "usprecip_1948.npz")
X, y = data["X"], data["y"]
model = GPRegressor("matern12", solver="iterative").fit(X, y)
print(model.kernel_, f"nugget {model.noise_variance_:.3f}")

area, area_sd = model.predict_integral([[-105.0, 36.0]], [[-100.0, 41.0]])
print(f"mean over 105–100° W, 36–41° N: {area[0] / 25:.3f} ± {area_sd[0] / 25:.3f}")

# %%
west, north = np.meshgrid(np.linspace(-124.5, -67.7, 170), np.linspace(24.6, 49, 90))
grid = np.column_stack([west.ravel(), north.ravel()])
# Only where a station is near: neither sea nor neighbouring countries.
near = np.array([np.min(np.sum((X - point) ** 2, axis=1)) < 0.8 for point in grid])
mean, sd = model.predict(grid, return_std=True)
draw = model.sample_y(grid[near], 1, random_state=0)[:, 0]
figure, panels = plt.subplots(1, 3, figsize=(11, 2.2), layout="constrained")
filled = np.full((3, len(grid)), np.nan)
filled[:, near] = mean[near], draw, sd[near]
for axes, values, title in zip(panels, filled, ("kriging", "a simulation", "sd")):
    limits = {"vmin": -2, "vmax": 3} if title != "sd" else {}
    colours = "BrBG" if title != "sd" else "magma"
    image = axes.pcolormesh(west, north, values.reshape(west.shape), cmap=colours, **limits)
    axes.set_title(title)
    axes.set_axis_off()
    figure.colorbar(image, ax=axes, shrink=0.8)
figure.savefig("map.png", dpi=65)

# %%
assert 0 < area_sd[0] / 25 < 0.2
