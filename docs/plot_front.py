"""Draws the picture of the README: land surface temperatures behind clouds, filled.

    python docs/plot_front.py DIR

DIR holds heaton_satellite.npz: the pixels of Heaton et al. (2019), 105,569 of which are seen
(`test_mask` is false). The model sees these only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from orthogp import GPRegressor

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Fit the pixels that are seen, fill the others, and draw both beside what was hidden."""
    data = np.load(Path(sys.argv[1]) / "heaton_satellite.npz")
    X, y, hidden = data["X"], data["y"], data["test_mask"].astype(bool)
    model = GPRegressor("matern12", mean="linear", solver="neighbours")
    model.fit(X[~hidden], y[~hidden])
    print(model.summary())
    mean, sd = model.predict(X, return_std=True)
    noisy = np.sqrt(sd[hidden] ** 2 + model.noise_variance_)
    error = mean[hidden] - y[hidden]
    print(
        f"RMSE {np.sqrt(np.mean(error**2)):.2f} °C, "
        f"95 % intervals cover {100 * np.mean(np.abs(error) < 1.96 * noisy):.0f} %"
    )

    # Each pixel at its place in the grid of longitudes and latitudes.
    columns = np.unique(X[:, 0], return_inverse=True)[1]
    rows = np.unique(X[:, 1], return_inverse=True)[1]

    def picture(values: np.ndarray) -> np.ndarray:
        grid = np.full((rows.max() + 1, columns.max() + 1), np.nan)
        grid[rows, columns] = values
        return grid

    panels = [
        ("seen", np.where(hidden, np.nan, y), "inferno"),
        ("filled", mean, "inferno"),
        ("the truth", y, "inferno"),
        ("± sd of what was filled", np.where(hidden, sd, np.nan), "cividis"),
    ]
    low, high = np.quantile(y[~hidden], [0.002, 0.998])
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.1), layout="constrained")
    for axis, (title, values, colours) in zip(axes, panels):
        limits = (low, high) if colours == "inferno" else (0, np.quantile(sd, 0.999))
        image = axis.imshow(
            picture(values), origin="lower", cmap=colours, vmin=limits[0], vmax=limits[1],
            interpolation="none", aspect="auto",
        )  # fmt: skip
        axis.set_title(title, fontsize=11)
        axis.set_axis_off()
        if title in ("the truth", "± sd of what was filled"):
            bar = figure.colorbar(image, ax=axis, shrink=0.9, aspect=25)
            bar.ax.set_title("°C", fontsize=8)
            bar.ax.tick_params(labelsize=8)
            bar.outline.set_visible(False)
    path = HERE / "images" / "front.png"
    figure.savefig(path, dpi=110)
    # Two hundred colours are enough for the eye, and a third of the bytes.
    Image.open(path).convert("RGB").quantize(200).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
