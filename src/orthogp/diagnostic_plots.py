"""Figures of a model's checks: spectrum, residuals, calibration, reliability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orthogp.diagnostics.results import LEVELS, PIT_BINS, RESIDUAL_BINS, RESIDUAL_REACH
from orthogp.plots import BAND_SDS, BLUE, GREY, STYLE, VERMILLION, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.diagnostics import ClassificationDiagnostics, RegressionDiagnostics
    from orthogp.spectrum import Spectrum

#: Inches: one or two in a row, and three.
PANEL, SMALL_PANEL = (4.6, 3.3), (3.4, 2.6)
#: Cells and bins of fewer rows are left out: their averages are mostly chance.
FEWEST_ROWS = 3
# Ticks beyond are powers of ten.
_LEAST_WRITTEN, _MOST_WRITTEN = 3e-5, 3e4
# How far below the lowest point that is told by data a spectrum is drawn.
_DEPTH = 1e-3


def draw_spectrum(
    spectrum: Spectrum, xlabel: str, *, target: int = 0, small: bool = False
) -> Figure:
    """Return a figure of the learned spectral density with the data's, in bands."""
    figure, axes = _new_panel(SMALL_PANEL if small else PANEL)
    with _style():
        learned = spectrum.learned[target]
        axes.plot(spectrum.frequency, learned, color=BLUE, linewidth=1.4, label="learned")
        levels = [learned.max()]
        if len(spectrum.bands):
            data = spectrum.data[target]
            reach = [data - spectrum.low[target], spectrum.high[target] - data]
            axes.errorbar(
                spectrum.bands,
                data,
                reach,
                fmt="o",
                color=VERMILLION,
                markersize=3.2,
                elinewidth=0.8,
                label="data, 95 % interval",
            )
            levels += [spectrum.high[target].max()]
            floor = min(data.min(), learned.max()) * _DEPTH
        else:
            floor = learned.max() * _DEPTH**3
        noise = float(spectrum.noise[target])
        if noise > 0:
            axes.axhline(noise, color=GREY, linewidth=1.1, linestyle="--", label="noise")
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
    figure, axes = _new_panel()
    with _style():
        edges = np.linspace(-RESIDUAL_REACH, RESIDUAL_REACH, RESIDUAL_BINS + 1)
        counts = found.residual_counts[target]
        width = edges[1] - edges[0]
        axes.bar(
            edges[:-1],
            counts,
            width,
            align="edge",
            color=BLUE,
            alpha=0.45,
            linewidth=0,
            label="rows",
        )
        z = np.linspace(-RESIDUAL_REACH, RESIDUAL_REACH, 201)
        normal = counts.sum() * width * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        axes.plot(z, normal, color=VERMILLION, linewidth=1.6, label="as it should be")
        axes.set(xlabel="residual, in predictive standard deviations", ylabel="rows")
        axes.margins(x=0)
        axes.legend(loc="upper right", handlelength=1.2)
    return figure


def draw_residuals_along(
    found: RegressionDiagnostics, column: int, xlabel: str, target: int = 0
) -> Figure:
    """Return a figure of the residuals' mean and standard deviation along one input."""
    figure, axes = _new_panel()
    with _style():
        count = found.input_count[column]
        lower, upper = found.lower[column], found.upper[column]
        edges = np.linspace(lower, upper, len(count) + 1)
        centres = (edges[:-1] + edges[1:]) / 2
        seen = count >= FEWEST_ROWS
        mean, sd = found.input_mean[target, column], found.input_sd[target, column]
        axes.axhline(0.0, color=GREY, linewidth=0.9)
        axes.axhline(1.0, color=GREY, linewidth=0.9, linestyle="--")
        axes.errorbar(
            centres[seen],
            mean[seen],
            BAND_SDS / np.sqrt(count[seen]),
            fmt="o",
            color=BLUE,
            markersize=3.5,
            elinewidth=0.9,
            label="mean ± 1.96 standard errors (0)",
        )
        axes.plot(
            centres[seen],
            sd[seen],
            "s",
            color=VERMILLION,
            markersize=3.5,
            markerfacecolor="none",
            label="standard deviation (1)",
        )
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
    matplotlib = require_matplotlib()
    figure, axes = _new_panel((4.6, 3.7))
    with _style():
        seen = found.map_count >= FEWEST_ROWS
        # In standard errors: what is chance then looks the same in every cell.
        values = np.where(seen, found.map_mean[target] * np.sqrt(found.map_count), np.nan)
        ends = ["#0072B2", "#f2f2f2", "#D55E00"]
        colours = matplotlib.colors.LinearSegmentedColormap.from_list("residual", ends)
        image = axes.imshow(
            values,
            origin="lower",
            extent=(found.lower[0], found.upper[0], found.lower[1], found.upper[1]),
            aspect="auto",
            cmap=colours,
            vmin=-4,
            vmax=4,
            interpolation="nearest",
        )
        axes.grid(visible=False)
        bar = figure.colorbar(
            image,
            ax=axes,
            pad=0.02,
            aspect=24,
            extend="both",
            label="mean residual, in standard errors",
        )
        bar.outline.set_visible(False)
        axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure


def draw_pit(found: RegressionDiagnostics, target: int = 0) -> Figure:
    """Return a figure of the probability integral transform's counts, which should be even."""
    figure, axes = _new_panel()
    with _style():
        counts = found.pit[target]
        total = counts.sum()
        even = total / PIT_BINS
        reach = BAND_SDS * np.sqrt(even * (1 - 1 / PIT_BINS))
        edges = np.linspace(0, 1, PIT_BINS + 1)
        axes.axhspan(
            even - reach, even + reach, color=GREY, alpha=0.25, linewidth=0, label="95 % of chance"
        )
        axes.bar(
            edges[:-1],
            counts,
            1 / PIT_BINS,
            align="edge",
            color=BLUE,
            alpha=0.5,
            edgecolor=BLUE,
            linewidth=0.8,
            label="rows",
        )
        axes.axhline(even, color=VERMILLION, linewidth=1.5, label="as it should be")
        axes.set(xlabel="predictive probability of each row", ylabel="rows", xlim=(0, 1))
        axes.set_ylim(0, 1.35 * max(float(counts.max()), even + reach))
        axes.legend(loc="upper center", ncols=3, handlelength=1.2, columnspacing=1.0)
    return figure


def draw_coverage(found: RegressionDiagnostics, target: int = 0) -> Figure:
    """Return a figure of the intervals' coverage against their probability."""
    figure, axes = _new_panel()
    with _style():
        levels = 100 * np.array(LEVELS)
        axes.plot([40, 100], [40, 100], color=GREY, linewidth=1.1, label="as it should be")
        axes.errorbar(
            levels,
            100 * found.coverage[target],
            100 * BAND_SDS * found.coverage_error[target],
            fmt="o",
            color=BLUE,
            markersize=5,
            capsize=3,
            label="rows, ± 1.96 standard errors",
        )
        axes.set(
            xlabel="probability of the interval (%)",
            ylabel="rows inside (%)",
            xlim=(45, 102),
            ylim=(min(45.0, 100 * float(found.coverage[target].min()) - 3), 103),
        )
        axes.legend(loc="upper left")
    return figure


def draw_reliability(
    found: ClassificationDiagnostics, names: Sequence[Any], shown: int = 0
) -> Figure:
    """Return a figure of observed shares against predicted probabilities of one class."""
    figure, axes = _new_panel()
    with _style():
        seen = found.counts[shown] > 0
        predicted, observed = found.predicted[shown][seen], found.observed[shown][seen]
        error = np.sqrt(predicted * (1 - predicted) / found.counts[shown][seen])
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.1, label="as it should be")
        axes.errorbar(
            predicted,
            observed,
            BAND_SDS * error,
            fmt="o",
            color=BLUE,
            markersize=5,
            capsize=3,
            label="training rows, ± 1.96 standard errors",
        )
        name = names[shown]
        axes.set(
            xlabel=f"predicted probability of {name}",
            ylabel=f"share of {name}",
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.12),
        )
        axes.legend(loc="upper left")
    return figure


def _plain_ticks(axes: Axes) -> None:
    """Label powers of ten along logarithmic axes, and what lies between if there are few.

    Numbers are written out where they have but a few digits.
    """
    ticker = require_matplotlib().ticker
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        if high < 30 * low:
            axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        written = axis is axes.xaxis and low > _LEAST_WRITTEN and high < _MOST_WRITTEN
        if written or high < 30 * low:
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())


def _style() -> Any:
    return require_matplotlib().rc_context(STYLE)


def _new_panel(size: tuple[float, float] = PANEL) -> tuple[Figure, Axes]:
    matplotlib = require_matplotlib()
    with _style():
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        return figure, figure.subplots()
