"""Figures of what a model has learned: curves with bands, maps, slices, probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.logistic import mean_logistic
from orthogp.inference import Domain
from orthogp.labels import Labels, covered_range, grid_points
from orthogp.plots import BAND_SDS, BLUE, GREY, STYLE, VERMILLION, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.diagnostics import ClassificationDiagnostics, RegressionDiagnostics

#: A figure's size in inches, on a screen and on a phone.
WIDE, NARROW = (9.2, 3.9), (4.6, 3.5)
_MAP = (4.6, 3.7)
_POINTS, _CELLS = 1200, 160
# Points drawn one by one at most.
_MOST_POINTS = 3000
# Curves that must be told apart without their colours.
_CLASS_LOOKS = (
    (BLUE, "-"),
    (VERMILLION, "--"),
    ("#009E73", ":"),
    ("#CC79A7", "-."),
)
MEAN_COLOURS, SD_COLOURS = "viridis", "cividis"


class Prediction(NamedTuple):
    """Mean and standard deviation of f, and that of a new observation, each (n,)."""

    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    noisy_sd: NDArray[np.float64]


def predict_at(model: Any, points: NDArray[np.float64], target: int = 0) -> Prediction:
    """Return a regressor's predictions at values of the columns that its kernel acts on."""
    mean, variance = model.posterior_.predict(model._embedded(points))
    scale, offset = model.target_scale_[target], model.target_offset_[target]
    noise = model.posterior_.noise_variance
    return Prediction(
        mean[:, target] * scale + offset,
        np.sqrt(variance) * scale,
        np.sqrt(variance + noise) * scale,
    )


def probabilities_at(model: Any, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a classifier's probabilities at values of its kernel's columns, (n, k)."""
    several = isinstance(model.posterior_, tuple)
    posteriors = model.posterior_ if several else (model.posterior_,)
    latent = [posterior.predict(points) for posterior in posteriors]
    each = np.stack([mean_logistic(own.mean[:, 0], own.variance) for own in latent], axis=1)
    if not several:
        return np.hstack([1 - each, each])
    return each / each.sum(axis=1, keepdims=True)


class Rows(NamedTuple):
    """Rows to draw with a curve: points, or bins with their averages, least and largest values."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None

    @classmethod
    def binned(cls, found: RegressionDiagnostics | None, target: int) -> Rows | None:
        """Return the bins that diagnostics hold, if any."""
        if found is None or not len(found.data_x):
            return None
        seen = found.data_count > 0
        low, high = found.data_low[target, seen], found.data_high[target, seen]
        return cls(found.data_x[seen], found.data_mean[target, seen], low, high)

    def within(self, lower: float, upper: float) -> Rows:
        """Return those of a stretch."""
        kept = (self.x >= lower) & (self.x <= upper)
        return Rows(*(None if part is None else part[kept] for part in self))  # type: ignore[arg-type]


def draw_curve(
    model: Any,
    labels: Labels,
    rows: Rows | None = None,
    *,
    target: int = 0,
    size: tuple[float, float] = WIDE,
    stretch: Domain | None = None,
    title: str = "",
) -> Figure:
    """Return a figure of the mean with its 95 % band, and that of new observations.

    Parameters
    ----------
    stretch : Domain, optional
        The part of the input's range to draw; all that the model covers unless given.
    """
    box = covered_range(model) if stretch is None else stretch
    x = np.linspace(box.lower[0], box.upper[0], _POINTS)
    prediction = predict_at(model, x[:, None], target)
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        for sd, alpha, label in (
            (prediction.noisy_sd, 0.16, "95 % of new observations"),
            (prediction.sd, 0.4, "95 % band of the function"),
        ):
            edges = (prediction.mean - BAND_SDS * sd, prediction.mean + BAND_SDS * sd)
            axes.fill_between(x, *edges, color=BLUE, alpha=alpha, linewidth=0, label=label)
        if rows is not None:
            _draw_rows(axes, rows if stretch is None else rows.within(x[0], x[-1]))
        axes.plot(x, prediction.mean, color=BLUE, linewidth=1.4, label="mean")
        axes.set(xlabel=labels.input(int(model.columns_[0])), ylabel=labels.target(target))
        axes.set_title(title)
        axes.margins(x=0)
        _legend_above(figure, axes, columns=2 if size[0] < 6 else 4)
    return figure


def wiggles(model: Any, target: int = 0) -> int:
    """Return how often the mean along a single input turns."""
    box = covered_range(model)
    points = np.linspace(box.lower[0], box.upper[0], _POINTS)[:, None]
    mean = model.posterior_.predict_mean(points)[:, target]
    return int(np.count_nonzero(np.diff(np.sign(np.diff(mean)))))


def _draw_rows(axes: Axes, rows: Rows) -> None:
    if rows.low is None or rows.high is None:
        axes.plot(
            rows.x, rows.y, ".", color=GREY, markersize=3, alpha=0.7, label="rows", zorder=1.9
        )
        return
    several = rows.high > rows.low
    if several.any():
        axes.vlines(
            rows.x[several],
            rows.low[several],
            rows.high[several],
            color=GREY,
            alpha=0.75,
            linewidth=1.0,
            label="rows: least to largest",
            zorder=1.9,
        )
    if not several.all():
        axes.plot(
            rows.x[~several],
            rows.y[~several],
            ".",
            color=GREY,
            markersize=4,
            label="rows",
            zorder=1.9,
        )


def _legend_above(figure: Figure, axes: Axes, *, columns: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        borderaxespad=0.1,
        columnspacing=1.2,
        handlelength=1.4,
    )


class Map(NamedTuple):
    """Values on an even grid over a box of two inputs, rows the second, (c, c)."""

    values: NDArray[np.float64]
    box: Domain


def field_maps(
    model: Any, box: Domain, *, target: int = 0, third: float | None = None
) -> tuple[Map, Map]:
    """Return maps of mean and standard deviation, over the first two of the kernel's columns."""
    prediction = predict_at(model, _cells(box, third), target)
    shape = (_CELLS, _CELLS)
    return Map(prediction.mean.reshape(shape), box), Map(prediction.sd.reshape(shape), box)


def probability_maps(model: Any, box: Domain, third: float | None = None) -> list[Map]:
    """Return maps of each class's probability."""
    each = probabilities_at(model, _cells(box, third))
    return [Map(own.reshape(_CELLS, _CELLS), box) for own in each.T]


def _cells(box: Domain, third: float | None) -> NDArray[np.float64]:
    """Return points all over the first two columns, further columns in the middle of the box."""
    cells = grid_points(box.lower[:2], box.upper[:2], (_CELLS, _CELLS))
    if third is None:
        return cells
    others = np.concatenate([[third], (box.lower[3:] + box.upper[3:]) / 2])
    return np.column_stack([cells, np.broadcast_to(others, (len(cells), len(others)))])


def draw_maps(
    maps: Sequence[Map],
    labels: Labels,
    columns: Sequence[int],
    *,
    titles: Sequence[str],
    bars: Sequence[str],
    colours: Sequence[str],
    limits: Sequence[tuple[float | None, float | None]] | None = None,
    contour: float | None = None,
) -> Figure:
    """Return a figure of maps side by side, each with its scale of colours.

    Parameters
    ----------
    columns : sequence of int
        The columns of X along the axes.
    bars : sequence of str
        What the colours stand for.
    limits : sequence of (low, high), optional
        The ends of the scales, where the values shall not decide.
    contour : float, optional
        A level to draw a line along.
    """
    matplotlib = require_matplotlib()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (_MAP[0] * len(maps), _MAP[1])
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        for i, (axes, own) in enumerate(zip(panels, maps, strict=True)):
            low, high = (None, None) if limits is None else limits[i]
            extent = (own.box.lower[0], own.box.upper[0], own.box.lower[1], own.box.upper[1])
            image = axes.imshow(
                own.values,
                origin="lower",
                extent=extent,
                aspect="auto",
                cmap=colours[i],
                vmin=low,
                vmax=high,
                interpolation="nearest",
            )
            if contour is not None and own.values.min() < contour < own.values.max():
                axes.contour(
                    own.values, levels=[contour], extent=extent, colors="white", linewidths=1.4
                )
            bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=24, label=bars[i])
            bar.outline.set_visible(False)
            axes.set(
                title=titles[i], xlabel=labels.input(columns[0]), ylabel=labels.input(columns[1])
            )
    return figure


def draw_probabilities(
    model: Any,
    labels: Labels,
    found: ClassificationDiagnostics | None = None,
    *,
    size: tuple[float, float] = WIDE,
) -> Figure:
    """Return a figure of the classes' probabilities along a single input, with observed shares."""
    box = covered_range(model)
    x = np.linspace(box.lower[0], box.upper[0], _POINTS)
    each = probabilities_at(model, x[:, None])
    classes = list(range(len(model.classes_)))
    shown = classes[1:] if len(classes) == 2 else classes[: len(_CLASS_LOOKS)]
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        for i, number in enumerate(shown):
            colour, dashes = _CLASS_LOOKS[i]
            name = f"{model.classes_[number]}"
            axes.plot(x, each[:, number], color=colour, linestyle=dashes, linewidth=1.6, label=name)
            if found is not None and len(found.data_x):
                centres, shares = _coarse_shares(found, i)
                axes.plot(
                    centres,
                    shares,
                    "o",
                    color=colour,
                    markersize=3.5,
                    alpha=0.6,
                    label=f"share of {name}",
                )
        axes.set(
            xlabel=labels.input(int(model.columns_[0])), ylabel="probability", ylim=(-0.03, 1.03)
        )
        axes.margins(x=0)
        _legend_above(figure, axes, columns=2 if size[0] < 6 else 4)
    return figure


def _coarse_shares(
    found: ClassificationDiagnostics, number: int, bins: int = 32
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return centres and shares in wider bins: a share of few rows says little."""
    count = found.data_count.reshape(bins, -1)
    weighted = np.nan_to_num(found.data_x).reshape(bins, -1) * count
    hits = np.nan_to_num(found.data_share[number]).reshape(bins, -1) * count
    total = count.sum(axis=1)
    seen = total > 0
    return weighted.sum(axis=1)[seen] / total[seen], hits.sum(axis=1)[seen] / total[seen]


def some_rows(x: NDArray, y: NDArray) -> Rows:
    """Return rows to draw as points, a random choice if they are too many to tell apart."""
    if len(x) > _MOST_POINTS:
        kept = np.random.default_rng(0).choice(len(x), _MOST_POINTS, replace=False)
        x, y = x[kept], y[kept]
    return Rows(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
