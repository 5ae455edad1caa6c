"""The figure of docs/certificates.md: `python docs/plot_certificates.py` writes its image."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from orthogp import GPRegressor
from orthogp.kernels import Matern32
from orthogp.report import plots

PATH = Path(__file__).parent / "images" / "certificates.png"
KERNEL, NOISE = Matern32(variance=1.0, lengthscale=0.15), 0.04


def rows() -> tuple[np.ndarray, np.ndarray]:
    """400 rows of a smooth function, with a gap."""
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 1, 400)
    x = np.where(x < 0.5, 0.8 * x, 0.2 + 0.8 * x)
    y = np.sin(9 * x) + 0.5 * np.sin(31 * x) + np.sqrt(NOISE) * rng.standard_normal(400)
    return x[:, None], y


def main() -> None:
    """Draw the exact process, fits with few and with enough features, and what is certified."""
    X, y = rows()
    grid = np.linspace(X.min(), X.max(), 700)[:, None]
    settings = {"noise_variance": NOISE, "learn": False, "mean": None, "wrap_tolerance": 1e-9}
    exact = GPRegressor(KERNEL, solver="exact", **settings).fit(X, y).predict(grid)
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(7.0, 5.6), layout="constrained")
        for axes, number in zip(figure.subplots(2, 1, sharex=True), (61, "auto"), strict=True):
            model = GPRegressor(KERNEL, solver="dense", num_features=number, **settings).fit(X, y)
            mean, bounds = model.predict(grid, return_bounds=True)
            axes.plot(X[:, 0], y, ".", color=plots.GREY, markersize=2, alpha=0.5)
            axes.fill_between(
                grid[:, 0],
                bounds.mean_lower,
                bounds.mean_upper,
                color=plots.BLUE,
                alpha=0.25,
                linewidth=0,
                label="where the exact mean is certified to lie",
            )
            axes.plot(grid[:, 0], mean, color=plots.BLUE, label="the fit")
            axes.plot(grid[:, 0], exact, "--", color="black", linewidth=1, label="exact process")
            axes.set_ylim(-2.2, 2.2)
            error = model.certificate_.mean_error
            axes.set_title(
                f"{model.num_features_} features: every mean within {error:.2g} posterior sd",
                loc="left",
            )
        figure.axes[0].legend(loc="lower left", ncols=3, frameon=False)
        figure.axes[1].set_xlabel("x")
        figure.savefig(PATH, dpi=130)


if __name__ == "__main__":
    main()
