# %% [markdown]
# # Terrain: ground height from airborne lidar
#
# Laser echoes of the ground, scattered over 350 m × 370 m; 60,000 of 683,023 are used here. The
# map is the predicted height, lit from the north-west.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LightSource

from orthogp import GPRegressor

data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "lidar_ground_2d.npz")
order = np.random.default_rng(0).permutation(len(data["y"]))
used, hidden = order[:60_000], order[-20_000:]
model = GPRegressor("matern32", solver="neighbours").fit(data["X"][used], data["y"][used])
mean, sd = model.predict(data["X"][hidden], return_std=True, include_noise=True)
error = mean - data["y"][hidden]
print(f"RMSE {100 * np.sqrt(np.mean(error**2)):.1f} cm at 20,000 hidden echoes")
print(f"within the 95 % intervals: {100 * np.mean(np.abs(error) < 1.96 * sd):.0f} %")

# %%
east, north = np.meshgrid(np.arange(1, 350, 1.0), np.arange(1, 370, 1.0))
height = model.predict(np.column_stack([east.ravel(), north.ravel()])).reshape(east.shape)
figure, axes = plt.subplots(figsize=(4.6, 4.6), layout="constrained")
shade = LightSource(azdeg=315, altdeg=40)
axes.imshow(
    shade.shade(height, plt.get_cmap("gist_earth"), vert_exag=2, blend_mode="soft", vmin=95),
    origin="lower",
)
axes.set_axis_off()
figure.savefig("height.png", dpi=55)

# %%
assert np.sqrt(np.mean(error**2)) < 0.1
assert 0.9 < np.mean(np.abs(error) < 1.96 * sd) < 0.99
