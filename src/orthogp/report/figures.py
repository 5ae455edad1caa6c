"""Figures of a fit (curves, maps, slices, probabilities) and of its checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.sites import mean_logistic
from orthogp.inference import Domain
from orthogp.kernels.cyclic import categorical_columns
from orthogp.report.diagnostic_results import LEVELS, PIT_BINS, RESIDUAL_BINS, RESIDUAL_REACH
from orthogp.report.names import Names, covered_range, grid_points, plain
from orthogp.report.plots import (
    BAND_SDS,
    BLUE,
    GREY,
    PANEL,
    STYLE,
    VERMILLION,
    blend,
    draw_image,
    new_panel,
    require_matplotlib,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.report.diagnostic_results import ClassificationDiagnostics, RegressionDiagnostics
    from orthogp.report.spectrum import Spectrum

#: Inches of a curve on a screen.
WIDE = (9.2, 3.9)
#: Inches of a curve on a phone.
NARROW = (4.6, 3.5)
# Inches of a map.
_MAP = (4.6, 3.7)
# Inches of one of three figures in a row.
_SMALL = (3.4, 2.6)
# Points along a curve.
_POINTS = 1200
# Cells along each side of a map.
_CELLS = 160
# The most rows drawn one by one.
_MOST_POINTS = 3000
# Colours and dashes of classes, which differ without their colours too.
_CLASS_LOOKS = ((BLUE, "-"), (VERMILLION, "--"), ("#009E73", ":"), ("#CC79A7", "-."))
#: The colours of means.
MEAN_COLOURS = "viridis"
#: The colours of standard deviations and probabilities.
SD_COLOURS = "cividis"
#: The fewest rows of a cell or bin that is drawn; the average of fewer is mostly chance.
FEWEST_ROWS = 3
# The smallest and the largest number written out along a logarithmic axis; others are powers of
# ten.
_LEAST_WRITTEN, _MOST_WRITTEN = 3e-5, 3e4
# How far below its lowest estimate from the data a spectrum is drawn, as a factor.
_DEPTH = 1e-3


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
    names: Names,
    rows: Rows | None = None,
    *,
    target: int = 0,
    size: tuple[float, float] = WIDE,
    stretch: Domain | None = None,
    along: int = 0,
) -> Figure:
    """Return a figure of the mean with its 95 % band, and that of new observations.

    Parameters
    ----------
    stretch : Domain, optional
        The part of the inputs' range to draw; all that the model covers unless given.
    along : int
        The input along the axis, counted among those that the kernel acts on; all others stay in
        the middle of their ranges.
    """
    box = covered_range(model) if stretch is None else stretch
    figure, axes = new_panel(size)
    with styled():
        if rows is not None and stretch is not None:
            rows = rows.within(box.lower[along], box.upper[along])
        _draw_mean(axes, model, names, box, along, target, rows)
        _legend_above(figure, axes, columns=2 if size[0] < 6 else 4)
    return figure


def draw_slices(model: Any, names: Names, box: Domain, *, target: int = 0) -> Figure:
    """Return a figure of the mean along each input, the others in the middle of their ranges."""
    number = len(model.columns_)
    across = min(number, 3)
    down = -(-number // across)
    with styled():
        figure = require_matplotlib().figure.Figure(
            figsize=(3.4 * across, 2.8 * down), layout="constrained"
        )
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for i, axes in enumerate(panels):
            if i < number:
                _draw_mean(axes, model, names, box, i, target, None)
            axes.set_visible(i < number)
    return figure


def _draw_mean(
    axes: Axes, model: Any, names: Names, box: Domain, along: int, target: int, rows: Rows | None
) -> None:
    x = np.linspace(box.lower[along], box.upper[along], _POINTS)
    points = np.tile((box.lower + box.upper) / 2, (len(x), 1))
    coded = [column for column, _ in categorical_columns(model.kernel_, model.n_features_in_)]
    points[:, np.isin(model.columns_, coded)] //= 1
    points[:, along] = x
    prediction = predict_at(model, points, target)
    for sd, alpha, label in (
        (prediction.noisy_sd, 0.16, "95 % of new observations"),
        (prediction.sd, 0.4, "95 % band of the function"),
    ):
        edges = (prediction.mean - BAND_SDS * sd, prediction.mean + BAND_SDS * sd)
        axes.fill_between(x, *edges, color=BLUE, alpha=alpha, linewidth=0, label=label)
    if rows is not None:
        _draw_rows(axes, rows)
    axes.plot(x, prediction.mean, color=BLUE, linewidth=1.4, label="mean")
    axes.set(xlabel=names.input(int(model.columns_[along])), ylabel=names.target(target))
    axes.margins(x=0)


def wiggles(model: Any, target: int = 0) -> int:
    """Return how often the mean along a single input turns."""
    box = covered_range(model)
    points = np.linspace(box.lower[0], box.upper[0], _POINTS)[:, None]
    mean = model.posterior_.predict_mean(points)[:, target]
    return int(np.count_nonzero(np.diff(np.sign(np.diff(mean)))))


def _draw_rows(axes: Axes, rows: Rows) -> None:
    look: dict[str, Any] = {"color": GREY, "zorder": 1.9}
    if rows.low is None or rows.high is None:
        axes.plot(rows.x, rows.y, ".", markersize=3, alpha=0.7, label="rows", **look)
        return
    several = rows.high > rows.low
    if several.any():
        ends = rows.low[several], rows.high[several]
        label = "rows: least to largest"
        axes.vlines(rows.x[several], *ends, alpha=0.75, linewidth=1.0, label=label, **look)
    if not several.all():
        axes.plot(rows.x[~several], rows.y[~several], ".", markersize=4, label="rows", **look)


def _legend_above(figure: Figure, axes: Axes, *, columns: int) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        borderaxespad=0.1,
        columnspacing=1.2,
        handlelength=1.4,
    )


class Map(NamedTuple):
    """Values on an even grid over a box of two inputs, (c, c), the second along the rows."""

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
    probabilities = probabilities_at(model, _cells(box, third))
    return [Map(each.reshape(_CELLS, _CELLS), box) for each in probabilities.T]


def _cells(box: Domain, third: float | None) -> NDArray[np.float64]:
    cells = grid_points(box.lower[:2], box.upper[:2], (_CELLS, _CELLS))
    return cells if third is None else np.column_stack([cells, np.full(len(cells), third)])


def draw_maps(
    maps: Sequence[Map],
    names: Names,
    columns: Sequence[int],
    *,
    titles: Sequence[str],
    bars: Sequence[str],
    colours: Sequence[str],
    limits: tuple[float | None, float | None] = (None, None),
    contour: float | None = None,
) -> Figure:
    """Return a figure of maps side by side, each with its scale of colours.

    Parameters
    ----------
    columns : sequence of int
        The columns of X along the axes.
    bars : sequence of str
        The quantities that the colours stand for.
    limits : (low, high)
        The ends of the scales; `None` takes the smallest and the largest value.
    contour : float, optional
        A level to draw a line along.
    """
    matplotlib = require_matplotlib()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (_MAP[0] * len(maps), _MAP[1])
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        for i, (axes, (values, box)) in enumerate(zip(panels, maps, strict=True)):
            extent = (box.lower[0], box.upper[0], box.lower[1], box.upper[1])
            draw_image(
                figure,
                axes,
                values,
                extent,
                bar={"label": plain(bars[i])},
                cmap=colours[i],
                vmin=limits[0],
                vmax=limits[1],
            )
            if contour is not None and values.min() < contour < values.max():
                look = {"colors": "white", "linewidths": 1.4}
                axes.contour(values, levels=[contour], extent=extent, **look)
            axes.set(
                title=plain(titles[i]),
                xlabel=names.input(columns[0]),
                ylabel=names.input(columns[1]),
            )
    return figure


def draw_probability_maps(
    maps: Sequence[Map], names: Names, columns: Sequence[int], classes: Sequence[Any], at: str
) -> Figure:
    """Return a figure of maps of the probabilities of some classes, `at` a value of the third."""
    return draw_maps(
        maps,
        names,
        columns,
        titles=[f"{name}{at}" for name in classes],
        bars=[f"probability of {name}" for name in classes],
        colours=[SD_COLOURS] * len(maps),
        limits=(0.0, 1.0),
        contour=0.5,
    )


def draw_probabilities(
    model: Any,
    names: Names,
    found: ClassificationDiagnostics | None = None,
    *,
    size: tuple[float, float] = WIDE,
) -> Figure:
    """Return a figure of the classes' probabilities along a single input, with observed shares."""
    box = covered_range(model)
    x = np.linspace(box.lower[0], box.upper[0], _POINTS)
    probabilities = probabilities_at(model, x[:, None])
    classes = list(range(len(model.classes_)))
    shown = classes[1:] if len(classes) == 2 else classes[: len(_CLASS_LOOKS)]
    figure, axes = new_panel(size)
    with styled():
        for i, number in enumerate(shown):
            colour, dashes = _CLASS_LOOKS[i]
            name = plain(model.classes_[number])
            look: dict[str, Any] = {"color": colour}
            axes.plot(x, probabilities[:, number], dashes, linewidth=1.6, label=name, **look)
            if found is not None and len(found.data_x):
                centres, shares = _coarse_shares(found, i)
                look |= {"markersize": 3.5, "alpha": 0.6}
                axes.plot(centres, shares, "o", label=f"share of {name}", **look)
        xlabel = names.input(int(model.columns_[0]))
        axes.set(xlabel=xlabel, ylabel="probability", ylim=(-0.03, 1.03))
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
    """Return rows to draw as points, a random choice if there are too many."""
    if len(x) > _MOST_POINTS:
        kept = np.random.default_rng(0).choice(len(x), _MOST_POINTS, replace=False)
        x, y = x[kept], y[kept]
    return Rows(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))


def draw_spectrum(
    spectrum: Spectrum, xlabel: str, *, target: int = 0, small: bool = False
) -> Figure:
    """Return a figure of the learned spectral density with the data's, in bands."""
    figure, axes = new_panel(_SMALL if small else PANEL)
    with styled():
        learned = spectrum.learned[target]
        axes.plot(spectrum.frequency, learned, color=BLUE, lw=1.4, label="learned")
        levels = [learned.max()]
        if len(spectrum.bands):
            data = spectrum.data[target]
            reach = [data - spectrum.low[target], spectrum.high[target] - data]
            look = {"color": VERMILLION, "ms": 3.2, "elinewidth": 0.8}
            label = "data, 95 % interval"
            axes.errorbar(spectrum.bands, data, reach, fmt="o", label=label, **look)
            levels += [spectrum.high[target].max()]
            floor = min(data.min(), learned.max()) * _DEPTH
        else:
            floor = learned.max() * _DEPTH**3
        noise = float(spectrum.noise[target])
        if noise > 0:
            axes.axhline(noise, color=GREY, lw=1.1, ls="--", label="noise")
            floor = min(floor, noise / 10)
        lowest = max(floor, float(learned.min()) / 3)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="spectral density")
        axes.set_ylim(lowest, 3 * max(levels))
        axes.set_xlim(right=1.3 * float(spectrum.frequency[learned >= lowest].max()))
        _plain_ticks(axes)
        if small:
            # Inside it would hide points.
            axes.legend(
                loc="lower left",
                bbox_to_anchor=(0.0, 1.0),
                ncols=3,
                fontsize="small",
                handlelength=1.2,
                columnspacing=0.8,
                borderaxespad=0.2,
            )
        else:
            axes.legend(loc="upper right")
    return figure


def draw_residual_counts(found: RegressionDiagnostics, target: int = 0) -> Figure:
    """Return a figure of the standardised residuals' counts beside those of a standard normal."""
    figure, axes = new_panel()
    with styled():
        edges = np.linspace(-RESIDUAL_REACH, RESIDUAL_REACH, RESIDUAL_BINS + 1)
        counts = found.residual_counts[target]
        width = edges[1] - edges[0]
        look = {"align": "edge", "color": BLUE, "alpha": 0.45, "lw": 0}
        axes.bar(edges[:-1], counts, width, label="rows", **look)
        z = np.linspace(-RESIDUAL_REACH, RESIDUAL_REACH, 201)
        normal = counts.sum() * width * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        axes.plot(z, normal, color=VERMILLION, lw=1.6, label="as it should be")
        axes.set(xlabel="residual, in predictive standard deviations", ylabel="rows")
        axes.margins(x=0)
        axes.legend(loc="upper right", handlelength=1.2)
    return figure


def draw_residuals_along(
    found: RegressionDiagnostics, column: int, xlabel: str, target: int = 0
) -> Figure:
    """Return a figure of the residuals' mean and standard deviation along one input."""
    figure, axes = new_panel()
    with styled():
        count = found.input_count[column]
        lower, upper = found.lower[column], found.upper[column]
        edges = np.linspace(lower, upper, len(count) + 1)
        seen = count >= FEWEST_ROWS
        x, error = ((edges[:-1] + edges[1:]) / 2)[seen], BAND_SDS / np.sqrt(count[seen])
        mean, sd = (own[target, column][seen] for own in (found.input_mean, found.input_sd))
        axes.axhline(0.0, color=GREY, lw=0.9)
        axes.axhline(1.0, color=GREY, lw=0.9, ls="--")
        label = "mean ± 1.96 standard errors (0)"
        axes.errorbar(x, mean, error, fmt="o", color=BLUE, ms=3.5, elinewidth=0.9, label=label)
        look = {"color": VERMILLION, "ms": 3.5, "markerfacecolor": "none"}
        axes.plot(x, sd, "s", label="standard deviation (1)", **look)
        axes.set(xlabel=xlabel, ylabel="standardised residual")
        axes.margins(x=0.02)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.6), max(high, 1.4) + 0.25 * (max(high, 1.4) - min(low, -0.6)))
        axes.legend(loc="upper left", ncols=1, handlelength=1.2, borderaxespad=0.2)
    return figure


def draw_residual_map(
    found: RegressionDiagnostics, xlabel: str, ylabel: str, target: int = 0
) -> Figure:
    """Return a map of the average standardised residual."""
    figure, axes = new_panel(_MAP)
    with styled():
        seen = found.map_count >= FEWEST_ROWS
        # In standard errors, chance looks the same in every cell.
        values = np.where(seen, found.map_mean[target] * np.sqrt(found.map_count), np.nan)
        extent = (found.lower[0], found.upper[0], found.lower[1], found.upper[1])
        bar = {"extend": "both", "label": "mean residual, in standard errors"}
        colours = blend(BLUE, "#f2f2f2", VERMILLION)
        draw_image(figure, axes, values, extent, bar=bar, cmap=colours, vmin=-4, vmax=4)
        axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure


def draw_pit(found: RegressionDiagnostics, target: int = 0) -> Figure:
    """Return a figure of the probability integral transform's counts, which should be even."""
    figure, axes = new_panel()
    with styled():
        counts = found.pit[target]
        total = counts.sum()
        even = total / PIT_BINS
        reach = BAND_SDS * np.sqrt(even * (1 - 1 / PIT_BINS))
        edges = np.linspace(0, 1, PIT_BINS + 1)
        axes.axhspan(
            even - reach, even + reach, color=GREY, alpha=0.25, lw=0, label="95 % of chance"
        )
        look = {"align": "edge", "color": BLUE, "alpha": 0.5, "edgecolor": BLUE, "lw": 0.8}
        axes.bar(edges[:-1], counts, 1 / PIT_BINS, label="rows", **look)
        axes.axhline(even, color=VERMILLION, lw=1.5, label="as it should be")
        axes.set(xlabel="predictive probability of each row", ylabel="rows", xlim=(0, 1))
        axes.set_ylim(0, 1.35 * max(float(counts.max()), even + reach))
        axes.legend(loc="upper center", ncols=3, handlelength=1.2, columnspacing=1.0)
    return figure


def draw_coverage(found: RegressionDiagnostics, target: int = 0) -> Figure:
    """Return a figure of the intervals' coverage against their probability."""
    figure, axes = new_panel()
    with styled():
        levels = 100 * np.array(LEVELS)
        axes.plot([40, 100], [40, 100], color=GREY, lw=1.1, label="as it should be")
        inside, error = (100 * own[target] for own in (found.coverage, found.coverage_error))
        look = {"fmt": "o", "color": BLUE, "ms": 5, "capsize": 3}
        label = "rows, ± 1.96 standard errors"
        axes.errorbar(levels, inside, BAND_SDS * error, label=label, **look)
        axes.set(xlabel="probability of the interval (%)", ylabel="rows inside (%)")
        axes.set(xlim=(45, 102), ylim=(min(45.0, float(inside.min()) - 3), 103))
        axes.legend(loc="upper left")
    return figure


def draw_reliability(
    found: ClassificationDiagnostics, names: Sequence[Any], shown: int = 0
) -> Figure:
    """Return a figure of observed shares against predicted probabilities of one class."""
    figure, axes = new_panel()
    with styled():
        seen = found.counts[shown] > 0
        predicted, observed = found.predicted[shown][seen], found.observed[shown][seen]
        error = np.sqrt(predicted * (1 - predicted) / found.counts[shown][seen])
        axes.plot([0, 1], [0, 1], color=GREY, lw=1.1, label="as it should be")
        look = {"fmt": "o", "color": BLUE, "ms": 5, "capsize": 3}
        label = "training rows, ± 1.96 standard errors"
        axes.errorbar(predicted, observed, BAND_SDS * error, label=label, **look)
        name = plain(names[shown])
        axes.set(xlabel=f"predicted probability of {name}", ylabel=f"share of {name}")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.12))
        axes.legend(loc="upper left")
    return figure


def _plain_ticks(axes: Axes) -> None:
    """Label powers of ten along logarithmic axes, and numbers between them if there are few."""
    ticker = require_matplotlib().ticker
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        if high < 30 * low:
            axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        written = axis is axes.xaxis and low > _LEAST_WRITTEN and high < _MOST_WRITTEN
        if written or high < 30 * low:
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
