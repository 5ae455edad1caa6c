"""A figure of the components of an additive model, one panel for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.kernels import Categorical
from orthogp.kernels.cyclic import categorical_columns
from orthogp.plots import BAND_SDS, BLUE, GREY, STYLE, VERMILLION, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.component_models import Component

_POINTS, _CELLS = 400, 120
# Rows are rare where their density is less than this share of the largest.
_RARE = 0.02
# The smallest range of an effect's scale, relative to the largest.
_SMALLEST = 0.02
# A cell whose posterior sd exceeds this share of the largest is no more than a guess, and pale.
_VAGUE = 0.5


class _Panel(NamedTuple):
    """The size of panels, in inches, and how many stand side by side at most."""

    width: float
    height: float
    across: int


_CURVE, _MAP = _Panel(3.2, 2.6, 4), _Panel(4.2, 3.6, 3)


def draw_components(
    components: Sequence[Component], names: Sequence[str], *, target: int, ylabel: str
) -> Figure:
    """Return a figure of the components: curves with 95 % bands, points, or maps.

    Parameters
    ----------
    names : sequence of str
        Of the columns of X.
    target : int
        Which column of the targets.
    ylabel : str
        What the effects are effects on.
    """
    matplotlib = require_matplotlib()
    curves = [component for component in components if len(component.columns) == 1]
    maps = [component for component in components if len(component.columns) > 1]
    # Curves and maps apart: the maps have scales of colours beside them.
    groups = [(group, shape) for group, shape in ((curves, _CURVE), (maps, _MAP)) if group]
    downs = [-(-len(group) // shape.across) for group, shape in groups]
    heights = [down * shape.height for down, (_, shape) in zip(downs, groups, strict=True)]
    width = max(min(len(group), shape.across) * shape.width for group, shape in groups)
    with matplotlib.rc_context(STYLE):
        size = (width + 0.4, sum(heights))
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        parts = figure.subfigures(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, down, (group, shape) in zip(parts, downs, groups, strict=True):
            # As many across as fit, so that panels of few components do not stretch.
            across = max(min(len(group), shape.across), int(width / shape.width))
            panels = list(part.subplots(down, across, squeeze=False).ravel())
            for component, axes in zip(group, panels, strict=False):
                _draw(part, axes, component, names, target, ylabel)
            for axes in panels[len(group) :]:
                axes.set_visible(False)
            if group is curves:
                _set_scales(panels[: len(group)])
    return figure


def _draw(
    figure: Any,
    axes: Axes,
    component: Component,
    names: Sequence[str],
    target: int,
    ylabel: str,
) -> None:
    """Draw one component in its panel."""
    if len(component.columns) > 1:
        _draw_map(figure, axes, component, names, target, ylabel)
    else:
        draw = _draw_points if isinstance(component.kernel, Categorical) else _draw_curve
        draw(axes, component, target)
        axes.set(xlabel=component.name)
        if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axes.set_ylabel(ylabel)
    share = np.ravel(component.share)[target]
    axes.set_title(f"{component.name}: {_percent(share)} of the variance")


def _draw_curve(axes: Axes, component: Component, target: int) -> None:
    x = np.linspace(component.lower[0], component.upper[0], _POINTS)
    mean, std = _posterior(component, x, target)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    band = (mean - BAND_SDS * std, mean + BAND_SDS * std)
    axes.fill_between(x, *band, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(x, mean, color=BLUE, linewidth=1.3)
    axes.margins(x=0)
    # Where the rows are, along the foot of the panel. Elsewhere the band may leave it.
    density = component.density(x)
    seen = density > _RARE * density.max()
    axes.set_ylim(float(band[0][seen].min()), float(band[1][seen].max()))
    foot = axes.inset_axes((0.0, 0.0, 1.0, 0.13))
    foot.fill_between(x, density, color=GREY, alpha=0.35, linewidth=0)
    foot.set(xlim=(x[0], x[-1]), ylim=(0, density.max() * 1.02 if density.max() > 0 else 1))
    foot.axis("off")


def _draw_points(axes: Axes, component: Component, target: int) -> None:
    codes = np.arange(component.kernel.levels)  # type: ignore[union-attr]
    mean, std = _posterior(component, codes, target)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.errorbar(
        codes,
        mean,
        BAND_SDS * std,
        fmt="o",
        color=BLUE,
        ecolor=BLUE,
        elinewidth=1.3,
        markersize=4.5,
        capsize=2.5,
    )
    axes.set_xticks(codes if len(codes) <= 12 else codes[:: -(-len(codes) // 12)])
    axes.margins(x=0.05)
    axes.grid(visible=False, axis="x")


def _draw_map(
    figure: Any,
    axes: Axes,
    component: Component,
    names: Sequence[str],
    target: int,
    label: str,
) -> None:
    """Draw the mean over two columns, paler where the posterior is vague."""
    axis_values, edges = zip(*(_cells_along(component, d) for d in range(2)), strict=True)
    cells = np.stack(np.meshgrid(*axis_values, indexing="xy"), axis=-1).reshape(-1, 2)
    shape = (len(axis_values[1]), len(axis_values[0]))
    # A third column stays in the middle of its range.
    third = [np.sort(_cells_along(component, d)[0]) for d in range(2, len(component.lower))]
    middle = np.broadcast_to([own[len(own) // 2] for own in third], (len(cells), len(third)))
    mean, std = _posterior(component, np.concatenate([cells, middle], axis=1), target)
    certain = np.clip(2 * (1 - std / max(std.max(), 1e-300)) / (1 + _VAGUE), 0.0, 1.0)
    reach = float(np.abs(mean).max()) or 1.0
    colours = require_matplotlib().colors
    diverging = colours.LinearSegmentedColormap.from_list("effect", [BLUE, "white", VERMILLION])
    image = axes.imshow(
        mean.reshape(shape),
        origin="lower",
        extent=(*edges[0], *edges[1]),
        aspect="auto",
        cmap=diverging,
        vmin=-reach,
        vmax=reach,
        alpha=certain.reshape(shape),
        interpolation="nearest",
    )
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=24, label=label)
    bar.outline.set_visible(False)
    bar.ax.grid(visible=False)
    axes.set(xlabel=names[component.columns[0]], ylabel=names[component.columns[1]])


def _cells_along(
    component: Component, axis: int
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return where a map has its cells along a column, and where it ends: codes are all shown."""
    levels = dict(categorical_columns(component.kernel, len(component.columns))).get(axis)
    if levels is not None:
        return np.arange(levels, dtype=np.float64), (-0.5, levels - 0.5)
    ends = float(component.lower[axis]), float(component.upper[axis])
    return np.linspace(*ends, _CELLS), ends


def _set_scales(panels: list[Axes]) -> None:
    """Give every curve a scale of its own, but none to effects that are next to nothing."""
    limits = [axes.get_ylim() for axes in panels]
    least = _SMALLEST * max(high - low for low, high in limits)
    for axes, (low, high) in zip(panels, limits, strict=True):
        middle, half = (low + high) / 2, max(high - low, least) / 2
        # Room for the rows at the foot.
        axes.set_ylim(middle - 1.35 * half, middle + 1.1 * half)


def _posterior(
    component: Component, x: NDArray[Any], target: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean, std = component.predict(x, return_std=True)
    return np.reshape(mean, (len(x), -1))[:, target], np.reshape(std, (len(x), -1))[:, target]


def _percent(share: float) -> str:
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
