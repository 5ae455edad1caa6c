"""Drawings of a fitted model (curves, maps, components, spectra) and of its checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError
from orthogp.inference import Domain
from orthogp.kernels.transformed import categorical_columns
from orthogp.learning.sketches import KeptRows
from orthogp.report.components import (
    class_parts,
    component_drawings,
    effect_on_odds,
    is_additive,
    parts_of,
    renamed,
)
from orthogp.report.diagnostics import LEVELS, PIT_BINS, RESIDUAL_BINS, RESIDUAL_REACH
from orthogp.report.plots import (
    BAND_SDS,
    BLUE,
    GREY,
    PANEL,
    VERMILLION,
    Band,
    Drawing,
    blend,
    check_format,
    compose,
    draw_image,
    require_matplotlib,
    save,
)
from orthogp.report.summary import SINCE, latent_functions, names_of, plain
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.validation import check_inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.report.diagnostics import ClassificationDiagnostics, RegressionDiagnostics
    from orthogp.report.spectrum import Spectrum

#: Inches of a curve on a screen.
WIDE = (9.2, 3.9)
# Inches of a map.
_MAP = (4.6, 3.7)
# Inches of one of three figures in a row.
_SMALL = (3.4, 2.6)
# Inches of the curve along one of many inputs.
_SLICE = (3.5, 2.8)
# Points along a curve.
_POINTS = 1200
# Cells along each side of a map.
_CELLS = 160
# The most rows drawn one by one.
_MOST_POINTS = 3000
# The most rows whose places a map shows.
_MOST_DOTS = 1500
# Colours and dashes of classes, which differ without their colours too.
_CLASS_LOOKS = ((BLUE, "-"), (VERMILLION, "--"), ("#009E73", ":"), ("#CC79A7", "-."))
# The colours of means.
_MEAN_COLOURS = "viridis"
# The colours of standard deviations and probabilities.
_SD_COLOURS = "cividis"
# The fewest rows of a cell or bin that is drawn; the average of fewer is mostly chance.
_FEWEST_ROWS = 3
# The fewest cells with enough rows that make a map of the residuals.
_FEWEST_CELLS = 30
# The smallest number written out along a logarithmic axis; smaller ones are powers of ten.
_LEAST_WRITTEN = 3e-5
# The largest number written out along a logarithmic axis.
_MOST_WRITTEN = 3e4
# How far below its lowest estimate from the data a spectrum is drawn, as a factor.
_DEPTH = 1e-3
# The number of bins in which shares of classes are drawn: a share of few rows says little.
_SHARE_BINS = 32
# The look of points with error bars.
_POINT = {"fmt": "o", "color": BLUE, "ms": 5, "capsize": 3}


def plot_model(
    model: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    target: int = 0,
    path: str | Path | None = None,
) -> Figure:
    """Return a figure of a fitted model; see `GPRegressor.plot`."""
    check_is_fitted(model, "posterior_")
    if path is not None:
        check_format(Path(path))
    number = len(getattr(model, "target_scale_", [1.0]))
    if not 0 <= target < number:
        raise InputError(f"target must be one of 0 to {number - 1}, got {target!r}.")
    drawings = Figures(model, getattr(model, "diagnostics_", None))
    rows = _rows_to_draw(model, X, y, target)
    if not hasattr(model, "classes_"):
        figure = compose(drawings.fit(target, rows))
    else:
        # With several classes the first: a figure has room for the components of one.
        label = latent_functions(model)[0][0]
        figure = compose(drawings.effects(label) if drawings.additive else drawings.classes())
    if path is not None:
        save(figure, Path(path))
    return figure


class Rows(NamedTuple):
    """Rows to draw with a curve: points, or bins with their averages, least and largest values."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None

    def within(self, box: Domain) -> Rows:
        """Return the rows inside a box of the single input."""
        kept = (self.x >= box.lower[0]) & (self.x <= box.upper[0])
        return Rows(*(None if part is None else part[kept] for part in self))  # type: ignore[arg-type]

    def draw(self, axes: Axes) -> None:
        """Draw points, or lines from the least to the largest value of each bin."""
        look: dict[str, Any] = {"color": GREY, "zorder": 1.9}
        if self.low is None or self.high is None:
            axes.plot(self.x, self.y, ".", markersize=3, alpha=0.7, label="rows", **look)
            return
        several = self.high > self.low
        if several.any():
            ends = self.low[several], self.high[several]
            line = {"alpha": 0.75, "linewidth": 1.0, "label": "rows: least to largest"}
            axes.vlines(self.x[several], *ends, **line, **look)
        if not several.all():
            axes.plot(self.x[~several], self.y[~several], ".", markersize=4, label="rows", **look)


def _rows_to_draw(model: Any, X: ArrayLike | None, y: ArrayLike | None, target: int) -> Rows | None:
    if X is None and y is None:
        return None
    if X is None or y is None:
        raise InputError("Give both X and y, or neither.")
    if len(model.columns_) != 1 or hasattr(model, "classes_"):
        raise InputError(
            "Rows are drawn with regressions on a single input: call plot() without X and y."
        )
    inputs = np.asarray(X)[:, None] if np.ndim(X) == 1 else X
    x: NDArray = np.asarray(check_inputs(model, inputs)[:, model.columns_[0]], dtype=np.float64)
    values: NDArray = np.asarray(y, dtype=np.float64).reshape(len(x), -1)
    values = values[:, target if values.shape[1] > 1 else 0]
    if len(x) > _MOST_POINTS:
        kept = np.random.default_rng(0).choice(len(x), _MOST_POINTS, replace=False)
        x, values = x[kept], values[kept]
    return Rows(x, values)


class Map(NamedTuple):
    """Values on an even grid over a box of two inputs, (c, c), the second along the rows.

    `quantity` stands along the scale of colours, which runs between `limits`.
    """

    values: NDArray[np.float64]
    box: Domain
    labels: dict[str, str]
    quantity: str
    colours: str
    limits: tuple[float, float]
    #: Where dots are drawn, (r, 2).
    dots: NDArray[np.float64] | None = None

    def draw(self, axes: Axes, contour: float | None = None) -> None:
        """Draw the map, with dots if it has some, and a line along a level if one is given."""
        extent = np.stack(self.box, axis=1)[:2].ravel().tolist()
        look = {"vmin": self.limits[0], "vmax": self.limits[1], "cmap": self.colours}
        draw_image(axes, self.values, extent, {"label": plain(self.quantity)}, **look)
        if contour is not None and self.values.min() < contour < self.values.max():
            line = {"levels": [contour], "colors": "white", "linewidths": 1.4}
            axes.contour(self.values, extent=extent, **line)
        if self.dots is not None:
            axes.plot(*self.dots.T, ".", color="white", markersize=2.2, markeredgewidth=0)
            axes.set(xlim=extent[:2], ylim=extent[2:])
        axes.set(**self.labels)


class Figures:
    """All drawings of a fitted model.

    Parameters
    ----------
    found : Diagnostics, optional
        The results of its checks.
    """

    def __init__(self, model: Any, found: Any) -> None:
        self.model, self.found, self.names = model, found, names_of(model)
        self.columns = [int(column) for column in model.columns_]
        self.box = covered_range(model) if found is None else Domain(found.lower, found.upper)
        self.additive = is_additive(model)

    @property
    def shown(self) -> Domain:
        """The box that figures of the fit extend over."""
        return covered_range(self.model) if len(self.columns) == 1 else self.box

    # ------------------------------------------------------------------ the fit of a regressor

    def fit(
        self, target: int, rows: Rows | None = None, cuts: Sequence[float] = (0.5,)
    ) -> list[Drawing]:
        """Return what was learned about a target: components, a curve, maps, or many curves.

        Of three inputs there are maps where the third is cut, relative to its range.
        """
        if self.additive:
            return self.effects(target=target)
        if len(self.columns) == 1:
            return [self.curve(target, rows)]
        if len(self.columns) <= MAX_DIMS:
            return list(self._maps(target, cuts))
        about = f"Posterior mean and 95 % bands of {self.names.targets[target]} along"
        return [
            Drawing(
                f"{about} {self.names.inputs[column]}.",
                partial(self._draw_curve, target, self.box, None, i),
                _SLICE,
            )
            for i, column in enumerate(self.columns)
        ]

    def effects(
        self, label: Any = None, *, target: int = 0, most: int | None = None
    ) -> list[Drawing]:
        """Return the components of a target or of the log odds of a class.

        With `most`, that number of components with the largest shares, the largest first.
        """
        if hasattr(self.model, "classes_"):
            parts, on = class_parts(self.model, label), f"the log odds of {label}"
            ylabel = effect_on_odds(label)
        else:
            parts, on = parts_of(self.model), self.names.targets[target]
            ylabel = f"effect on {self.names.target(target)}"
        components = renamed(parts.components(), self.names)
        if most is not None:
            components.sort(key=lambda own: -own.share_of(target))
            components = components[:most]
        labels = [self.names.input(column) for column in range(len(self.names.inputs))]
        return component_drawings(components, labels, target=target, ylabel=ylabel, on=on)

    def curve(
        self, target: int, rows: Rows | None = None, stretch: Domain | None = None
    ) -> Drawing:
        """Return the mean along a single input with its 95 % bands, and rows that are known.

        The curve runs over all that the model covers, or over a stretch of it.
        """
        name = f"{self.names.targets[target]} over {self.names.inputs[self.columns[0]]}"
        if rows is None and self.found is not None:
            found, seen = self.found, self.found.data_count > 0
            ends = found.data_low[target, seen], found.data_high[target, seen]
            rows = Rows(found.data_x[seen], found.data_mean[target, seen], *ends)
        if stretch is None:
            draw = partial(self._draw_curve, target, covered_range(self.model), rows, 0)
            return Drawing(f"Posterior mean and 95 % bands of {name}.", draw, WIDE)
        rows = None if rows is None else rows.within(stretch)
        draw = partial(self._draw_curve, target, stretch, rows, 0)
        return Drawing(f"The end of the range, magnified: {name}.", draw, (WIDE[0], 3.4))

    def _draw_curve(
        self, target: int, box: Domain, rows: Rows | None, along: int, axes: Axes
    ) -> None:
        """Draw the mean along an input, the others in the middle of their ranges."""
        model = self.model
        x = np.linspace(box.lower[along], box.upper[along], _POINTS)
        points = np.tile(box.centre, (len(x), 1))
        coded = [column for column, _ in categorical_columns(model.kernel_, model.n_features_in_)]
        points[:, np.isin(model.columns_, coded)] //= 1
        points[:, along] = x
        mean, variance = self.predict(points, target)
        noise = model.posterior_.noise_variance * model.target_scale_[target] ** 2
        Band(x, mean, np.sqrt(variance + noise)).fill(axes, "95 % of new observations", alpha=0.16)
        Band(x, mean, np.sqrt(variance)).fill(axes, "95 % band of the function", alpha=0.4)
        axes.margins(x=0)
        if rows is not None:
            rows.draw(axes)
        axes.plot(x, mean, color=BLUE, linewidth=1.4, label="mean")
        xlabel = self.names.input(self.columns[along])
        axes.set(xlabel=xlabel, ylabel=self.names.target(target))

    def turns(self, target: int) -> int:
        """Return how often the mean along a single input turns."""
        box = covered_range(self.model)
        points = np.linspace(box.lower[0], box.upper[0], _POINTS)[:, None]
        mean = self.model.posterior_.predict_mean(self.model._embedded(points))[:, target]
        return int(np.count_nonzero(np.diff(np.sign(np.diff(mean)))))

    def predict(self, points: NDArray[np.float64], target: int) -> Any:
        """Return mean and variance of f at values of the kernel's columns, in units of y."""
        model = self.model
        mean, variance = model.posterior_.predict(model._embedded(points))
        scale, offset = model.target_scale_[target], model.target_offset_[target]
        return mean[:, target] * scale + offset, variance * scale**2

    # ------------------------------------------------------------------ maps

    def _maps(self, target: int, cuts: Sequence[float]) -> Iterator[Drawing]:
        """Yield maps of mean and standard deviation, with the same colours at all cuts."""
        places = list(self._cuts(cuts))
        every = [self.predict(cells, target) for cells, _ in places]
        values = np.array([[mean, np.sqrt(variance)] for mean, variance in every])
        kinds = (("Mean", _MEAN_COLOURS), ("Standard deviation", _SD_COLOURS))
        for cut, (_, at) in zip(values, places, strict=True):
            for kind, (title, colours) in enumerate(kinds):
                limits = float(values[:, kind].min()), float(values[:, kind].max())
                shown = self._map(cut[kind], title + at, self.names.target(target), colours, limits)
                about = (
                    f"Map: {(title + at).lower()} of {self.names.targets[target]}, from "
                    f"{cut[kind].min():.4g} to {cut[kind].max():.4g}."
                )
                if kind and len(self.columns) == 2:
                    shown = shown._replace(dots=self.locations)
                yield Drawing(about, shown.draw, _MAP)

    @cached_property
    def locations(self) -> NDArray[np.float64] | None:
        """Where rows are on a map of two inputs: themselves, or the cells that hold some.

        `None` if they are everywhere, or if nothing is known of them.
        """
        model, found = self.model, self.found
        if isinstance(model._sketch, KeptRows):
            inputs = model._sketch.mean.inputs(model._sketch.X)
            if model._embedding is not None:
                inputs = model._embedding.degrees(inputs)
            if len(inputs) > _MOST_DOTS:
                inputs = np.random.default_rng(0).choice(inputs, _MOST_DOTS, replace=False)
            return np.asarray(inputs, dtype=np.float64)
        if found is None or not found.map_count.size or np.all(found.map_count > 0):
            return None
        at = np.argwhere(found.map_count > 0)[:, ::-1] + 0.5
        return found.lower[:2] + at / len(found.map_count) * (found.upper - found.lower)[:2]

    def _map(
        self,
        values: NDArray[np.float64],
        title: str,
        quantity: str,
        colours: str,
        limits: tuple[float, float],
    ) -> Map:
        xlabel, ylabel = (self.names.input(column) for column in self.columns[:2])
        labels = {"title": plain(title), "xlabel": xlabel, "ylabel": ylabel}
        return Map(values.reshape(_CELLS, _CELLS), self.box, labels, quantity, colours, limits)

    def _cuts(self, cuts: Sequence[float]) -> Iterator[tuple[NDArray[np.float64], str]]:
        """Yield the cells of a map and where it is, for each cut of a third input."""
        cells = grid_points(self.box.lower[:2], self.box.upper[:2], (_CELLS, _CELLS))
        if len(self.columns) == 2:
            yield cells, ""
            return
        low, high = self.box.lower[2], self.box.upper[2]
        for share in cuts:
            value = low + share * (high - low)
            at = f", {self.names.inputs[self.columns[2]]} = {value:.4g}"
            yield np.column_stack([cells, np.full(len(cells), value)]), at

    # ------------------------------------------------------------------ the fit of a classifier

    def classes(self) -> list[Drawing]:
        """Return the probabilities of the classes: a curve of each, or maps."""
        if len(self.columns) == 1:
            about = f"Probability of the classes over {self.names.inputs[self.columns[0]]}."
            return [Drawing(about, self._draw_probabilities, WIDE)]
        labels = [label for label, *_ in latent_functions(self.model)]
        ((cells, at),) = self._cuts((0.5,))
        drawn = []
        maps = self.model._probabilities(cells).T[-len(labels) :]
        for label, values in zip(labels, maps, strict=True):
            quantity = f"probability of {label}"
            shown = self._map(values, f"{label}{at}", quantity, _SD_COLOURS, (0.0, 1.0))
            drawn.append(
                Drawing(f"Map of the {quantity}{at}.", partial(shown.draw, contour=0.5), _MAP)
            )
        return drawn

    def _draw_probabilities(self, axes: Axes) -> None:
        """Draw the classes' probabilities along a single input, with observed shares."""
        box, found = covered_range(self.model), self.found
        x = np.linspace(box.lower[0], box.upper[0], _POINTS)
        probabilities = self.model._probabilities(x[:, None])
        labels = [label for label, *_ in latent_functions(self.model)][: len(_CLASS_LOOKS)]
        for i, label in enumerate(labels):
            colour, dashes = _CLASS_LOOKS[i]
            values = probabilities[:, 1 if len(self.model.classes_) == 2 else i]
            axes.plot(x, values, dashes, linewidth=1.6, label=plain(label), color=colour)
            if found is not None:
                look: dict[str, Any] = {"color": colour, "markersize": 3.5, "alpha": 0.6}
                shares = _observed_shares(found, i)
                axes.plot(*shares, "o", label=f"share of {plain(label)}", **look)
        xlabel = self.names.input(self.columns[0])
        axes.set(xlabel=xlabel, ylabel="probability", ylim=(-0.03, 1.03))
        axes.margins(x=0)

    # ------------------------------------------------------------------ spectra

    def spectrum(self, spectrum: Spectrum, target: int = 0, *, small: bool = False) -> Drawing:
        """Return the learned spectral density with the data's, `small` if three are in a row."""
        inputs = self.names.product([self.columns[column] for column in spectrum.columns])
        label = f"waves across the range of {inputs}"
        if len(spectrum.columns) == 1:
            unit = self.names.units.get(inputs) or f"unit of {inputs}"
            if SINCE in unit:
                unit = unit.split(SINCE)[0].removesuffix("s")
            label = f"cycles per {unit}"
        number = len(spectrum.bands)
        about = f"Learned spectral density over {label}, with the data's in {number} bands."
        draw = partial(_draw_spectrum, spectrum, plain(label), target, small)
        return Drawing(about, draw, _SMALL if small else PANEL)

    # ------------------------------------------------------------------ checks

    def residuals(self, along: Sequence[int], target: int) -> list[Drawing]:
        """Return targets against predictions; residuals' histogram, along inputs, and as a map."""
        found, names, columns = self.found, self.names, self.columns
        name = names.targets[target]
        drawn = []
        if target < len(found.target_count):
            about = f"Observed {name} against its prediction from all other rows."
            label = names.target(target)
            drawn.append(Drawing(about, partial(_draw_observed, found, target, label), _MAP))
        about = f"Histogram of {name}'s standardised residuals beside the standard normal."
        drawn.append(Drawing(about, partial(_draw_residual_counts, found, target)))
        about = "Mean and standard deviation of the residuals along"
        for i in along:
            draw = partial(_draw_residuals_along, found, target, i, names.input(columns[i]))
            drawn.append(Drawing(f"{about} {names.inputs[columns[i]]}.", draw))
        if np.sum(found.map_count >= _FEWEST_ROWS) >= _FEWEST_CELLS:
            first, second = (names.inputs[column] for column in columns[:2])
            about = f"Map of the mean residual over {first} and {second}, in standard errors."
            labels = [names.input(column) for column in columns[:2]]
            drawn.append(Drawing(about, partial(_draw_residual_map, found, target, labels), _MAP))
        return drawn

    def calibration(self, target: int) -> list[Drawing]:
        """Return the histogram of predictive probabilities, and the coverage of intervals."""
        name, found = self.names.targets[target], self.found
        even = f"Histogram of {name}'s predictive probabilities, which should be even."
        inside = f"Coverage of {name}'s predictive intervals against their probability."
        return [
            Drawing(even, partial(_draw_pit, found, target)),
            Drawing(inside, partial(_draw_coverage, found, target)),
        ]

    def reliability(self, number: int) -> Drawing:
        """Return observed shares against predicted probabilities of a latent function's class."""
        label = latent_functions(self.model)[number][0]
        about = f"Reliability: observed share of {label} against its predicted probability."
        return Drawing(about, partial(_draw_reliability, self.found, number, plain(label)))


def covered_range(model: Any) -> Domain:
    """Return the box around the rows and the domain asked for, in the kernel's columns."""
    if hasattr(model, "classes_"):
        extent = getattr(model, "_extent", None)
        return model.domain_ if extent is None else extent
    if model._embedding is None:
        return model._sketch.extent
    inputs = model._sketch.mean.inputs(model._sketch.X)
    return Domain.around(model._embedding.degrees(inputs))


def grid_points(lower: NDArray, upper: NDArray, counts: Sequence[int]) -> NDArray[np.float64]:
    """Return the points of an even grid, the first column fastest, (n, d)."""
    axes = [np.linspace(*edge) for edge in zip(lower, upper, counts, strict=True)]
    columns = np.meshgrid(*axes[::-1], indexing="ij")[::-1]
    return np.stack([column.ravel() for column in columns], axis=1)


def _observed_shares(found: ClassificationDiagnostics, number: int) -> NDArray[np.float64]:
    """Return the mean inputs of wide bins and the shares of a class in them, (2, b)."""
    count = found.data_count.reshape(_SHARE_BINS, -1)
    values = np.nan_to_num([found.data_x, found.data_share[number]])
    sums = np.sum(values.reshape(2, _SHARE_BINS, -1) * count, axis=2)
    seen = count.any(axis=1)
    return sums[:, seen] / count.sum(axis=1)[seen]


def _draw_spectrum(spectrum: Spectrum, xlabel: str, target: int, small: bool, axes: Axes) -> None:
    learned = spectrum.learned[target]
    axes.plot(spectrum.frequency, learned, color=BLUE, lw=1.4, label="learned")
    levels, floor = [learned.max()], learned.max() * _DEPTH**3
    if len(spectrum.bands):
        data, high = spectrum.data[target], spectrum.high[target]
        look = {"fmt": "o", "color": VERMILLION, "ms": 3.2, "elinewidth": 0.8}
        reach = [data - spectrum.low[target], high - data]
        axes.errorbar(spectrum.bands, data, reach, label="data, 95 % interval", **look)
        levels.append(high.max())
        floor = min(data.min(), learned.max()) * _DEPTH
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
        above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3}
        above |= {"handlelength": 1.2, "columnspacing": 0.8, "borderaxespad": 0.2}
        axes.legend(fontsize="small", **above)
    else:
        axes.legend(loc="upper right")


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


def _draw_observed(found: RegressionDiagnostics, target: int, label: str, axes: Axes) -> None:
    counts, (low, high) = found.target_count[target], found.target_range[target]
    least = 1e-6 * max(abs(low), abs(high)) or 1.0
    if high - low < least:
        # Targets that do not vary have a picture all the same.
        low, high = low - least, high + least
    shown = np.where(counts > 0, counts, np.nan)
    look = {"cmap": blend("#b3d1e6", BLUE, "#08264a"), "vmin": 0.0, "vmax": float(counts.max())}
    draw_image(axes, shown, (low, high, low, high), {"label": "rows"}, **look)
    axes.plot([low, high], [low, high], color=VERMILLION, lw=1.2)
    axes.set(xlabel=f"{label}, predicted from the other rows", ylabel=f"{label}, observed")


def _draw_residual_counts(found: RegressionDiagnostics, target: int, axes: Axes) -> None:
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


def _draw_residuals_along(
    found: RegressionDiagnostics, target: int, column: int, xlabel: str, axes: Axes
) -> None:
    """Draw the residuals' mean and standard deviation along one input."""
    count = found.input_count[column]
    edges = np.linspace(found.lower[column], found.upper[column], len(count) + 1)
    seen = count >= _FEWEST_ROWS
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
    low, high = min(axes.get_ylim()[0], -0.6), max(axes.get_ylim()[1], 1.4)
    axes.set_ylim(low, high + 0.25 * (high - low))
    axes.legend(loc="upper left", ncols=1, handlelength=1.2, borderaxespad=0.2)


def _draw_residual_map(
    found: RegressionDiagnostics, target: int, labels: Sequence[str], axes: Axes
) -> None:
    # In standard errors, chance looks the same in every cell.
    errors = found.map_mean[target] * np.sqrt(found.map_count)
    values = np.where(found.map_count >= _FEWEST_ROWS, errors, np.nan)
    extent = (found.lower[0], found.upper[0], found.lower[1], found.upper[1])
    bar = {"extend": "both", "label": "mean residual, in standard errors"}
    colours = blend(BLUE, "#f2f2f2", VERMILLION)
    draw_image(axes, values, extent, bar, cmap=colours, vmin=-4, vmax=4)
    axes.set(xlabel=labels[0], ylabel=labels[1])


def _draw_pit(found: RegressionDiagnostics, target: int, axes: Axes) -> None:
    """Draw the counts of the probability integral transform, which should be even."""
    counts = found.pit[target]
    even = counts.sum() / PIT_BINS
    reach = BAND_SDS * np.sqrt(even * (1 - 1 / PIT_BINS))
    chance = {"color": GREY, "alpha": 0.25, "lw": 0, "label": "95 % of chance"}
    axes.axhspan(even - reach, even + reach, **chance)
    edges = np.linspace(0, 1, PIT_BINS + 1)
    look = {"align": "edge", "color": BLUE, "alpha": 0.5, "edgecolor": BLUE, "lw": 0.8}
    axes.bar(edges[:-1], counts, 1 / PIT_BINS, label="rows", **look)
    axes.axhline(even, color=VERMILLION, lw=1.5, label="as it should be")
    axes.set(xlabel="predictive probability of each row", ylabel="rows", xlim=(0, 1))
    axes.set_ylim(0, 1.35 * max(float(counts.max()), even + reach))
    axes.legend(loc="upper center", ncols=3, handlelength=1.2, columnspacing=1.0)


def _draw_coverage(found: RegressionDiagnostics, target: int, axes: Axes) -> None:
    axes.plot([40, 100], [40, 100], color=GREY, lw=1.1, label="as it should be")
    inside, error = (100 * own[target] for own in (found.coverage, found.coverage_error))
    label = "rows, ± 1.96 standard errors"
    axes.errorbar(100 * np.array(LEVELS), inside, BAND_SDS * error, label=label, **_POINT)
    axes.set(xlabel="probability of the interval (%)", ylabel="rows inside (%)")
    axes.set(xlim=(45, 102), ylim=(min(45.0, float(inside.min()) - 3), 103))
    axes.legend(loc="upper left")


def _draw_reliability(found: ClassificationDiagnostics, number: int, name: str, axes: Axes) -> None:
    seen = found.counts[number] > 0
    predicted, observed = found.predicted[number][seen], found.observed[number][seen]
    error = np.sqrt(predicted * (1 - predicted) / found.counts[number][seen])
    axes.plot([0, 1], [0, 1], color=GREY, lw=1.1, label="as it should be")
    label = "training rows, ± 1.96 standard errors"
    axes.errorbar(predicted, observed, BAND_SDS * error, label=label, **_POINT)
    axes.set(xlabel=f"predicted probability of {name}", ylabel=f"share of {name}")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.12))
    axes.legend(loc="upper left")
