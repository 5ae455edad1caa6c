# %% [markdown]
# # Robot arm: eight columns that act jointly
#
# kin40k: eight angles of a robot arm, and how far its hand is from a target. Nothing adds up
# here; each prediction uses the nearest rows. Errors are compared with what the model said of
# them.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from orthogp import GPRegressor

data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "uci_kin40k.npz")
test = data["test_mask"][:, 0].astype(bool)
X, y = data["X"][~test][:10_000], data["y"][~test][:10_000]
model = GPRegressor("matern52", solver="neighbours").fit(X, y)
mean, sd = model.predict(data["X"][test], return_std=True, include_noise=True)
error = mean - data["y"][test]
print(f"RMSE {np.sqrt(np.mean(error**2)) / y.std():.3f} sd from 10,000 rows")
print(f"within the 95 % intervals: {100 * np.mean(np.abs(error) < 1.96 * sd):.0f} %")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(data["y"][test], mean, ".", ms=1)
left.set(xlabel="observed", ylabel="predicted")
scores = np.sort(np.abs(error) / sd)
wanted = np.linspace(0.01, 0.99, 99)
quantiles = np.quantile(np.abs(np.random.default_rng(0).standard_normal(400_000)), wanted)
right.plot(wanted, np.searchsorted(scores, quantiles) / len(scores))
right.plot([0, 1], [0, 1], "k:", lw=1)
right.set(xlabel="probability of the interval", ylabel="share of rows within")
figure.savefig("calibration.png", dpi=80)

# %% [markdown]
# The intervals are cautious: more rows are within them than their probability says.

# %%
assert np.sqrt(np.mean(error**2)) < 0.3 * y.std()
