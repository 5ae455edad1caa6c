# %% [markdown]
# # Clouds: a map of probabilities from scattered pixels
#
# A satellite says of each pixel whether it is cloud. 4,000 of 33,750 pixels are seen; the
# classifier fills in how likely cloud is at the others.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from orthogp import GPClassifier

data = np.load(Path(os.environ["ORTHOGP_DATA"]) / "modis_cloud_clf.npz")
X, y = data["X"], data["y"].astype(int)
seen = np.random.default_rng(0).permutation(len(y))[:4_000]
model = GPClassifier("matern32").fit(X[seen], y[seen])
chance = model.predict_proba(X)[:, 1]
hidden = np.setdiff1d(np.arange(len(y)), seen)
right = np.mean((chance[hidden] > 0.5) == y[hidden])
print(f"{100 * right:.1f} % of the hidden pixels right")
for low in (0.0, 0.2, 0.4, 0.6, 0.8):
    among = hidden[(chance[hidden] >= low) & (chance[hidden] < low + 0.2)]
    print(f"said {chance[among].mean():.2f}, were cloud {y[among].mean():.2f}")

# %%
dots = np.full(len(y), np.nan)
dots[seen] = y[seen]
figure, panels = plt.subplots(1, 3, figsize=(11, 2.7), layout="constrained")
for axes, values, title in zip(panels, (dots, chance, y), ("seen", "probability", "truth")):
    picture = np.full((150, 225), np.nan)
    picture[X[:, 1].astype(int) - 1, X[:, 0].astype(int) - 1] = values
    axes.imshow(picture, cmap="Blues_r", vmin=0, vmax=1, origin="lower")
    axes.set_title(title)
    axes.set_axis_off()
figure.savefig("clouds.png", dpi=50)

# %%
assert right > 0.8
