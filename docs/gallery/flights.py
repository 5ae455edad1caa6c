# %% [markdown]
# # Flights: what makes them late
#
# 20,000 flights from New York, and what is known when they leave: month, day, weekday, age of the
# plane, distance and the minute of departure. An additive model tells how the delay at arrival
# moves with each; weekdays are categories, and the day has 1440 minutes.

# %%
import os
from pathlib import Path

import numpy as np
import pandas as pd

from orthogp import GPRegressor
from orthogp.kernels import additive

names = ["month", "day", "weekday", "plane age", "distance", "departure"]
data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "nycflights_airline8.npz")
order = np.random.default_rng(0).permutation(len(data["y"]))[:25_000]
X, y = pd.DataFrame(data["X"][order][:, [0, 1, 2, 3, 5, 7]], columns=names), data["y"][order]
kernel = additive("matern32", 6, categorical={2: 7}, periodic={5: 1440.0})
model = GPRegressor(kernel, max_features=600).fit(X[:20_000], y[:20_000])
error = np.sqrt(np.mean((model.predict(X[20_000:]) - y[20_000:]) ** 2)) / y.std()
print(f"RMSE {error:.3f} sd at 5,000 hidden flights")
for part in sorted(model.components(), key=lambda part: -part.share)[:4]:
    print(f"{part.name:12s} {100 * part.share:3.0f} % of the variance")
model.plot_components(components=[0, 1, 2, 5], ylabel="delay, minutes").savefig(
    "effects.png", dpi=60
)

# %%
assert error < 1
