"""The drawing of figure 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from orthogp.paper import drawing
from orthogp.paper.closed_form import COVARIANCES, Covariance
from orthogp.paper.runs import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = {"trig": "Trig", "hermite": "Hermite"}
_MARKERS = {"dense": "o", "diagonal": "s"}
# What a gap of rounding is drawn as.
_LEAST_GAP = 1e-2


class Column(NamedTuple):
    """The results for one distribution of the inputs.

    Attributes
    ----------
    title : str
    limit : float
        The largest log marginal likelihood.
    curves : mapping
        The rows of collapsed bounds by family and covariance.
    points : mapping
        The rows of stochastic fits by covariance.
    """

    title: str
    limit: float
    curves: Mapping[str, Mapping[Covariance, Sequence[Row]]]
    points: Mapping[Covariance, Sequence[Row]]


def draw(columns: Sequence[Column], num_rows: int) -> Figure:
    """Return bounds over the number of features, one column for each distribution of inputs."""
    families, limits = list(columns[0].curves), _limits(columns)
    with drawing.style():
        figure, grid = drawing.panels(
            len(families) + 1,
            len(columns),
            size=(3.2 * len(columns) + 0.6, 2.7 * (len(families) + 1)),
            sharex=True,
            sharey="row",
        )
        drawing.set_title(
            figure, f"Dense and diagonal covariances of q(u), N = {num_rows}, RBF kernel"
        )
        for axes_column, column in zip(grid.T, columns, strict=True):
            for axes, family in zip(axes_column, families):
                _draw_bounds(axes, column, family)
                if family == "trig":
                    _draw_points(axes, column, limits[0])
                axes.set_title(f"{_NAMES[family]}, inputs: {column.title}")
            _draw_gaps(axes_column[-1], column)
            axes_column[-1].set(title="What a diagonal S costs", xlabel="number of features M")
        for axes in grid[:-1, 0]:
            axes.set(ylabel="ELBO / nats", ylim=limits)
        grid[-1, 0].set_ylabel("dense − diagonal / nats")
        drawing.add_legend(figure)
    return figure


def _limits(columns: Sequence[Column]) -> tuple[float, float]:
    """Return an axis for all collapsed bounds."""
    values = [column.limit for column in columns]
    for column in columns:
        for curves in column.curves.values():
            values += [number(row, "elbo") for rows in curves.values() for row in rows]
    margin = 0.08 * (max(values) - min(values))
    return min(values) - margin, max(values) + margin


def _draw_bounds(axes: Axes, column: Column, family: str) -> None:
    axes.axhline(
        column.limit,
        color=drawing.BLACK,
        linestyle="-.",
        linewidth=1.1,
        label="exact log marginal likelihood",
    )
    for covariance in COVARIANCES:
        rows = column.curves[family][covariance]
        axes.plot(
            [number(row, "num_features") for row in rows],
            [number(row, "elbo") for row in rows],
            color=drawing.COVARIANCE_COLOURS[covariance],
            linestyle="-" if covariance == "dense" else "--",
            label=f"{covariance} S, collapsed bound",
        )


def _draw_points(axes: Axes, column: Column, low: float) -> None:
    """Draw the stochastic fits, those that end below the axis as triangles at its foot."""
    for covariance in COVARIANCES:
        for row in column.points[covariance]:
            elbo = number(row, "average_elbo")
            axes.plot(
                number(row, "num_features"),
                max(elbo, low),
                _MARKERS[covariance] if elbo > low else "v",
                color=drawing.COVARIANCE_COLOURS[covariance],
                markersize=6,
                markeredgecolor="white",
                markeredgewidth=0.5,
                clip_on=False,
                zorder=3,
                label=f"{covariance} S, stochastic training" + ("" if elbo > low else " (below)"),
            )


def _draw_gaps(axes: Axes, column: Column) -> None:
    for index, (family, curves) in enumerate(column.curves.items()):
        pairs = list(zip(curves["dense"], curves["diagonal"], strict=True))
        axes.plot(
            [number(dense, "num_features") for dense, _ in pairs],
            [
                max(number(dense, "elbo") - number(diagonal, "elbo"), _LEAST_GAP)
                for dense, diagonal in pairs
            ],
            color=(drawing.VERMILLION, drawing.PURPLE)[index],
            marker=drawing.MARKERS[index],
            markersize=4,
            label=f"{_NAMES[family]}: dense − diagonal",
        )
    axes.set_yscale("log")
