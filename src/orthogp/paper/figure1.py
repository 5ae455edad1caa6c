r"""Figure 1: the kernel matrix of a Matérn-3/2 kernel beside Q of Trig features.

    K = k(x_i − x_j),      Q = Σ_m φ_m(x_i) φ_m(x_j)

With a held fixed Q tends, as M grows, to the kernel whose spectral density is cut off at a:

    k_a(τ) = 2 ∫₀^a S(ω) cos(ωτ) dω

With M held fixed a larger a sees more of the spectrum over less of the inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features.bands import Trig
from orthogp.features.inducing import covariance_matrix
from orthogp.features.placement import gauss_panels
from orthogp.features.series import spectral_densities
from orthogp.kernels import Kernel, Matern32
from orthogp.paper.run import (
    Ledger,
    Write,
    figure_style,
    make_panels,
    number,
    save_figure,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHSCALE = 0.2
HALF_WIDTH = 3.0
# The number of nodes of the integral over the band, many for each turn of cos ωτ.
_NODES = 512


class Plan(NamedTuple):
    """Which matrices are computed, on how many points each way."""

    num_points: int = 301
    a: float = 10.0
    growing_m: tuple[int, ...] = (11, 15, 21, 31, 61)
    num_features: int = 31
    growing_a: tuple[float, ...] = (2.0, 5.0, 10.0, 16.0, 40.0)

    @property
    def cases(self) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
        """The pairs of a and M of each row of images."""
        return (
            [(self.a, m) for m in self.growing_m],
            [(a, self.num_features) for a in self.growing_a],
        )


FULL = Plan()
QUICK = Plan(num_points=151)


def reproduce(out: Path, plan: Plan, write: Write) -> list[Path]:
    """Return the paths of figure 1 and of its errors, in a directory that exists."""
    ledger = Ledger(
        out / "figure1.csv",
        ["num_points", "a", "num_features"],
        ["max_error", "mean_error", "max_error_of_band", "mean_error_of_band"],
        write,
    )
    kernel, x = Matern32(1.0, LENGTHSCALE), np.linspace(-HALF_WIDTH, HALF_WIDTH, plan.num_points)
    exact = np.asarray(covariance_matrix(kernel, x[:, None], x[:, None]))
    shown = {}
    for a, count in dict.fromkeys(itertools.chain(*plan.cases)):
        Q, band = approximation(kernel, x, a, count), band_limited(kernel, x, a)
        settings = {"num_points": plan.num_points, "a": a, "num_features": count}
        row = ledger.run(settings, partial(_errors, Q, exact, band))
        shown[a, count] = _Image(
            f"a = {a:g}, M = {count}\nmean error {number(row, 'mean_error'):.2g}", Q
        )
    figure = _draw([[shown[case] for case in cases] for cases in plan.cases], exact)
    return [ledger.path, save_figure(figure, out / "figure1.png")]


def approximation(
    kernel: Kernel, x: NDArray[np.float64], a: float, num_features: int
) -> NDArray[np.float64]:
    """Return Q of Trig features on [−a, a], (n, n)."""
    Phi = Trig(num_features, a=a, centre=0.0).evaluate(kernel, x[:, None])
    return Phi @ Phi.T


def band_limited(kernel: Kernel, x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Return k_a, what Q tends to as M grows, between all points, (n, n)."""
    omega, weights = gauss_panels(0.0, a, _NODES)
    densities = 2 * weights * spectral_densities(kernel, omega[:, None])
    cosines, sines = np.cos(np.outer(x, omega)), np.sin(np.outer(x, omega))
    return (densities * cosines) @ cosines.T + (densities * sines) @ sines.T


def _errors(
    Q: NDArray[np.float64], exact: NDArray[np.float64], band: NDArray[np.float64]
) -> dict[str, float]:
    error, from_band = np.abs(Q - exact), np.abs(Q - band)
    return {
        "max_error": float(error.max()),
        "mean_error": float(error.mean()),
        "max_error_of_band": float(from_band.max()),
        "mean_error_of_band": float(from_band.mean()),
    }


class _Image(NamedTuple):
    title: str
    matrix: NDArray[np.float64]


def _draw(rows: Sequence[Sequence[_Image]], exact: NDArray[np.float64]) -> Figure:
    """Return rows of images, each after the matrix that is approximated."""
    with figure_style():
        num_columns = 1 + max(map(len, rows))
        figure, grid = make_panels(
            len(rows), num_columns, size=(2.1 * num_columns + 0.9, 2.45 * len(rows))
        )
        set_title(
            figure, f"Matérn-3/2 kernel matrix, ℓ = {LENGTHSCALE}, by Trig features on [−a, a]"
        )
        for axes in grid.flat:
            axes.set_axis_off()
        for axes_row, images in zip(grid, rows, strict=True):
            for axes, image in zip(axes_row, [_Image("exact\n", exact), *images]):
                axes.set_axis_on()
                axes.imshow(
                    image.matrix,
                    vmin=-0.1,
                    vmax=1.0,
                    cmap="viridis",
                    extent=(-HALF_WIDTH, HALF_WIDTH, HALF_WIDTH, -HALF_WIDTH),
                )
                axes.set(title=image.title, xticks=[-3, 0, 3], yticks=[-3, 0, 3])
                axes.grid(False)
            axes_row[0].set_ylabel("x")
        for axes in grid[-1]:
            axes.set_xlabel("x'")
        bar = figure.colorbar(
            grid[0, 0].images[0], ax=grid, shrink=0.7, label="covariance of f(x) and f(x')"
        )
        bar.outline.set_visible(False)
        bar.ax.grid(False)
    return figure
