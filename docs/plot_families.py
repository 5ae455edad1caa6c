"""The figures of docs/families.md: `python docs/plot_families.py` writes docs/images/*.png."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image
from tabulate_families import LOWER, POLYNOMIALS, UPPER, shortest_lattice

from orthogp.features import (
    Additive,
    Box,
    Eigenfunction,
    Features,
    Harmonic,
    Hermite,
    InducingPoints,
    Lattice,
    Polynomial,
    RandomFourier,
    SpectralFeatures,
    Trig,
    TwoBlock,
    VariationalFourier,
)
from orthogp.features.series import lattice_masses, spectral_densities
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.report import plots

Array = NDArray[np.float64]

IMAGES = Path(__file__).parent / "images"

# Okabe and Ito's colours, which those who see fewer colours can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
GREY, SHADE = "#777777", "#f3f3f3"
STYLE = {
    **plots.STYLE,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
}
DPI = 100
#: Where features are drawn, and how many.
AROUND = np.linspace(-1.6, 1.6, 481)
SHOWN = len(COLOURS)
MEMBERS = [f"m = {m}" for m in range(SHOWN)]
WAVES = ["1", "cos ω₁x", "sin ω₁x", "cos ω₂x", "sin ω₂x"]
SINES = np.array([False, False, True, False, True])
NONE = np.zeros(SHOWN, dtype=bool)


def main() -> None:
    """Write the figures."""
    IMAGES.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, figure in figures():
            save(figure, IMAGES / f"{name}.png")


# ---------------------------------------------------------------------- figures


def figures() -> Iterator[tuple[str, Figure]]:
    """Yield each figure with its name; ℓ = 0.3 on [−1, 1] throughout."""
    matern, rbf = Matern32(1.0, 0.3), RBF(1.0, 0.3)
    yield "lattice", lattice_figure(matern)
    yield "trig", spectral_figure(Trig(15), matern)
    yield "hermite", spectral_figure(Hermite(15), rbf)
    yield "polynomial", spectral_figure(Polynomial(15), matern)
    yield "polynomial_kinds", kinds_figure(matern)
    yield "box", spectral_figure(Box(15), matern)
    yield "eigenfunction", spectral_figure(Eigenfunction(15, input_sd=0.5), rbf)
    yield "variational_fourier", window_figure(VariationalFourier(15), matern)
    yield "harmonic", harmonic_figure(Harmonic(15), matern)
    yield "random_fourier", random_figure(RandomFourier(30), matern)
    yield "inducing_points", inducing_figure(InducingPoints(15), matern)
    yield "two_block", blocks_figure(TwoBlock(Trig(5), InducingPoints(5)), matern)
    yield "additive", additive_figure(Matern32(1.0, 0.3).on(0) + RBF(0.5, 0.6).on(1))


def spectral_figure(family: SpectralFeatures, kernel: Kernel) -> Figure:
    """ψ over frequency beside φ over x."""
    placed = family.placed(kernel, LOWER, UPPER)
    figure, (left, right) = panels(2)
    odd = draw_basis(left, placed)
    left.set_title(f"ψ over frequency, {settings(placed)}")
    draw_features(right, placed, kernel, odd=odd)
    right.set_title(f"φ over x, {describe(kernel)}")
    return named(figure, MEMBERS, odd)


def kinds_figure(kernel: Kernel) -> Figure:
    """The bases of all kinds of polynomials, each on its own band."""
    figure, all_axes = panels(2, 3, height=4.6)
    odd = np.zeros(SHOWN, dtype=bool)
    for axes, (title, parameters) in zip(all_axes, POLYNOMIALS.items()):
        placed = Polynomial(15, **parameters).placed(kernel, LOWER, UPPER)
        odd = draw_basis(axes, placed)
        # Some weights are infinite at the ends of the band.
        limit = 0.98 if placed.kind == "laguerre" else 0.49
        axes.set_ylim(-limit, limit)
        axes.set_title(f"{title}, {settings(placed)}")
    return named(figure, MEMBERS, odd)


def lattice_figure(kernel: Kernel) -> Figure:
    """Where the prior variance sits beside the first features."""
    lattice = shortest_lattice(kernel, 12)
    features = Lattice.select(kernel, lattice, 15)
    figure, (left, right) = panels(2)
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    stems(left, lattice.half_indices()[:, 0] * lattice.spacing[0], masses, len(features.indices))
    left.set_title(f"prior variance of each mode, spacing h = 2π/P = {lattice.spacing[0]:.2f}")
    draw_features(right, features, kernel, shown=[0, 1, 8, 2, 9], odd=SINES)
    right.set_title(f"φ over x, {describe(kernel)}")
    return named(figure, WAVES, SINES)


def random_figure(family: RandomFourier, kernel: Kernel) -> Figure:
    """The frequencies drawn beside some of the features."""
    placed = family.placed(kernel, LOWER, UPPER)
    assert placed.lattice is not None
    series = placed.on(placed.lattice)
    omegas = series.omegas[placed.weights > 0, 0]
    figure, (left, right) = panels(2)
    grid = np.linspace(0, 1.1 * omegas.max(), 400)
    left.plot(grid, spectral_densities(kernel, grid[:, None]), color=GREY)
    left.set_ylim(bottom=0)
    left.set_xlim(0, grid[-1])
    mark_points(left, omegas)
    left.set_xlabel("ω")
    left.set_title(f"S(ω); ticks: the {len(omegas)} frequencies drawn")
    shown = np.linspace(2, len(omegas) - 1, SHOWN).astype(int)
    draw_features(right, series, kernel, shown=shown)
    right.set_title(f"φ over x, {describe(kernel)}")
    return named(figure, [f"cos {omega:.1f}x" for omega in omegas[shown]])


def harmonic_figure(family: Harmonic, kernel: Kernel) -> Figure:
    """The spectral density at the box's frequencies beside the first features."""
    placed = family.placed(kernel, LOWER, UPPER)
    half_width = float(placed.half_width[0])
    figure, (left, right) = panels(2)
    omegas = np.pi * np.arange(1, 25) / (2 * half_width)
    stems(left, omegas, spectral_densities(kernel, omegas[:, None]), placed.num_features)
    left.set_title(r"S at the box's frequencies $\omega_j = \pi j/(2L)$")
    draw_features(right, placed, kernel, np.linspace(-half_width, half_width, 481))
    mark_ends(right, -half_width, half_width)
    right.set_title(f"φ over x, {describe(kernel)}, L = {half_width:.2f}")
    return named(figure, [f"j = {j}" for j in range(1, SHOWN + 1)])


def window_figure(family: VariationalFourier, kernel: Kernel) -> Figure:
    """φ over the window."""
    placed = family.placed(kernel, LOWER, UPPER)
    lower, upper = float(placed.lower[0]), float(placed.upper[0])
    figure, (axes,) = panels(1)
    draw_features(axes, placed, kernel, np.linspace(lower, upper, 481), odd=SINES)
    mark_ends(axes, lower, upper)
    axes.set_title(f"φ over x, {describe(kernel)}, a window of width {upper - lower:.2f}")
    return named(figure, WAVES, SINES)


def inducing_figure(family: InducingPoints, kernel: Kernel) -> Figure:
    """φ and the points."""
    placed = family.placed(kernel, LOWER, UPPER)
    figure, (axes,) = panels(1)
    draw_features(axes, placed, kernel)
    mark_points(axes, placed.Z[:, 0])
    axes.set_title(f"φ = L⁻¹ k(Z, x), {describe(kernel)}; ticks: Z")
    return named(figure, MEMBERS)


def blocks_figure(family: TwoBlock, kernel: Kernel) -> Figure:
    """The first block beside the second."""
    placed = family.placed(kernel, LOWER, UPPER)
    size = placed.first.num_features
    figure, (left, right) = panels(2)
    draw_features(left, placed, kernel)
    left.set_title(f"φ₁: Trig({size}), {describe(kernel)}")
    draw_features(right, placed, kernel, shown=range(size, size + SHOWN))
    mark_points(right, placed.second.Z[:, 0])
    right.set_title("φ₂: inducing points on what φ₁ leaves out; ticks: Z")
    return named(figure, MEMBERS)


def additive_figure(kernel: Kernel) -> Figure:
    """The features of two components along their columns."""
    family = Additive((Trig(15), Hermite(15)), ((0,), (1,)))
    placed = family.placed(kernel, np.repeat(LOWER, 2), np.repeat(UPPER, 2))
    figure, all_axes = panels(2)
    for column, axes in enumerate(all_axes):
        along = np.zeros((len(AROUND), 2))
        along[:, column] = AROUND
        draw_features(axes, placed, kernel, along, 15 * column + np.arange(SHOWN), column=column)
        axes.set_xlabel(f"$x_{column}$")
    all_axes[0].set_title("first part: Trig(15), Matérn-3/2, ℓ = 0.3")
    all_axes[1].set_title("second part: Hermite(15), RBF, ℓ = 0.6")
    return named(figure, MEMBERS)


# ---------------------------------------------------------------------- parts of figures


def panels(*shape: int, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels side by side, or so many rows and columns of them."""
    figure = Figure((9.0, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr]
    axes = figure.subplots(*(shape if len(shape) == 2 else (1, *shape)), squeeze=False)
    return figure, list(axes.flat)


def draw_basis(axes: Axes, placed: SpectralFeatures) -> NDArray[np.bool_]:
    """Draw the first members of a basis, and return which are odd."""
    c, reach = float(np.max(np.asarray(placed.dilation))), placed.reach(SHOWN)
    u = np.linspace(0, 1.15 * reach, 4001)
    size = np.max(np.abs(placed.basis(u, SHOWN)), axis=0)
    if not placed.compact:
        # Beyond the last hundredth of their size there is nothing to see.
        u = u[: np.flatnonzero(size > 0.01 * size.max())[-1]]
    u = np.concatenate([-u[:0:-1], u])
    odd = placed.is_odd(np.arange(SHOWN))
    values = np.where(np.abs(u) <= reach, placed.basis(u, SHOWN), 0.0) / np.sqrt(c)
    for colour, curve, dashed in zip(COLOURS, values, odd):
        axes.plot(c * u, curve, color=colour, linestyle="--" if dashed else "-")
    axes.set_xlabel("ω")
    return odd


def draw_features(
    axes: Axes,
    features: Features,
    kernel: Kernel,
    x: Array = AROUND,
    shown: Iterable[int] = range(SHOWN),
    odd: NDArray[np.bool_] = NONE,
    column: int = 0,
) -> None:
    """Draw some features over a shade where the data are, odd ones dashed."""
    X = x if x.ndim == 2 else x[:, None]
    Phi = features.evaluate(kernel, X)
    axes.axvspan(-1, 1, color=SHADE, zorder=0)
    for colour, m, dashed in zip(COLOURS, shown, odd):
        axes.plot(X[:, column], Phi[:, m], color=colour, linestyle="--" if dashed else "-")
    axes.set_xlim(X[0, column], X[-1, column])
    axes.set_xlabel("x")


def stems(axes: Axes, omegas: Array, heights: Array, num_taken: int) -> None:
    """Draw a value at each frequency, those taken in colour."""
    for part, colour, label in (
        (slice(num_taken), COLOURS[0], "taken"),
        (slice(num_taken, None), "#bbbbbb", "left out"),
    ):
        axes.vlines(omegas[part], 0, heights[part], color=colour, linewidth=1.2)
        axes.plot(omegas[part], heights[part], "o", color=colour, markersize=4, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ω")
    axes.legend(loc="upper right")


def mark_ends(axes: Axes, lower: float, upper: float) -> None:
    """Draw the ends of where features are defined."""
    for end in (lower, upper):
        axes.axvline(end, color=GREY, linestyle=":", linewidth=1.2)
    margin = 0.03 * (upper - lower)
    axes.set_xlim(lower - margin, upper + margin)


def mark_points(axes: Axes, points: Array) -> None:
    """Draw ticks above the x axis."""
    axes.vlines(points, 0, 0.05, color="black", transform=axes.get_xaxis_transform())


def named(figure: Figure, names: list[str], odd: NDArray[np.bool_] = NONE) -> Figure:
    """Return the figure with a legend of its curves."""
    handles = [
        Line2D([], [], color=colour, linestyle="--" if dashed else "-")
        for colour, dashed in zip(COLOURS, odd)
    ]
    figure.legend(handles, names, loc="outside right center")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure with a palette of 64 colours, a third of the size of full colour."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=DPI)
    image = Image.open(buffer).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def describe(kernel: Kernel) -> str:
    return f"{'RBF' if isinstance(kernel, RBF) else 'Matérn-3/2'}, ℓ = 0.3"


def settings(placed: SpectralFeatures) -> str:
    c = float(np.max(np.asarray(placed.dilation)))
    if isinstance(placed, Box):
        return f"w = {c:.2f}"
    if isinstance(placed, Eigenfunction):
        return f"r = {1 / c:.3f}, σ = {float(np.max(placed.input_sd)):.2f}"
    return f"r = {1 / c:.3f}" if isinstance(placed, Hermite) else f"a = {c:.3g}"


if __name__ == "__main__":
    main()
