"""The figure of docs/intensity.md, from trees and disasters that are not part of this repository.

python docs/plot_intensity.py DATA

DATA holds `bei_trees.npz` (of the R package spatstat.data: X, window, elevation and gradient with
rows along y) and `coal_disasters.npz` (of the R package boot: X, window).
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from orthogp import GPIntensity

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    """Fit, print what the page shows, and draw."""
    trees = np.load(folder / "bei_trees.npz")
    window = trees["window"]
    maps = {"elevation": trees["elevation"].T, "slope": trees["gradient"].T}
    forest = GPIntensity("matern32").fit(trees["X"], window, covariates=maps)
    print(forest.summary())
    coal = np.load(folder / "coal_disasters.npz")
    mines = GPIntensity("matern52").fit(coal["X"], coal["window"][:, 0])
    years = np.array([[1860.0], [1900.0], [1950.0]])
    print(mines.predict_quantiles(years, (0.025, 0.5, 0.975)).round(2))
    print([own.round(1) for own in mines.expected_number([[1851.0]], [[1863.0]])])

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3), layout="constrained", width_ratios=(1.5, 1)
    )
    x, y = np.linspace(0, 1000, 201), np.linspace(0, 500, 101)
    places = np.stack(np.meshgrid(x, y), axis=-1)
    rate = 1e4 * forest.predict(places.reshape(-1, 2)).reshape(places.shape[:-1])
    shown = left.pcolormesh(x, y, np.log10(rate), rasterized=True)
    left.plot(*trees["X"].T, "k.", ms=0.8)
    left.set(aspect="equal", xlabel="m", ylabel="m", title="Trees per hectare")
    ticks = np.array([1, 10, 100, 1000])
    ticks = ticks[(ticks > rate.min()) & (ticks < rate.max())]
    bar = figure.colorbar(shown, ax=left, ticks=np.log10(ticks))
    bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
    time = np.linspace(*coal["window"][:, 0], 400)[:, None]
    low, middle, high = mines.predict_quantiles(time, (0.025, 0.5, 0.975)).T
    right.fill_between(time[:, 0], low, high, alpha=0.3, lw=0)
    right.plot(time[:, 0], middle)
    right.plot(coal["X"][:, 0], np.zeros(len(coal["X"])), "k|", ms=8)
    right.set(ylim=(0, None), title="Explosions in mines, a year")
    figure.savefig(HERE / "images" / "intensity.png", dpi=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
