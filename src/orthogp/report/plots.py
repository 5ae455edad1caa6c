"""The only file that imports matplotlib, and only when a figure is asked for.

Figures are matplotlib's objects without pyplot and its global state: nothing is shown on a screen,
and a program's other figures stay untouched. The colours are Okabe and Ito's, which those who see
fewer colours can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, OrthogpError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Half the width of a 95% band, in standard deviations.
BAND_SDS = 1.96

BLUE, VERMILLION, _BLACK, GREY = "#0072B2", "#D55E00", "#000000", "#777777"
# For curves that must be told apart; Okabe and Ito's yellow is too pale for a line on white.
_CURVES = (BLUE, VERMILLION, "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS, _DASHES = "osD^v<>phd8", ("-", "--", ":")
#: What all figures have in common.
STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.edgecolor": "none",
    "legend.framealpha": 1.0,
    "legend.fontsize": 9,
}
#: Inches of a figure that stands alone or beside another.
PANEL = (4.6, 3.3)
_DPI = 150
_FORMATS = (".png", ".pdf", ".svg")
# The most rows drawn one by one; more are a blot.
_MOST_POINTS = 2000

_INK, _PAPER = "#1a1a1f", "#fdfdfe"
# Colours of figures, and the variables of a page's style sheet that replace them.
_PAGE_COLOURS = {
    _INK: "var(--ink)",
    _PAPER: "var(--paper)",
    str(STYLE["grid.color"]): "var(--grid)",
    BLUE: "var(--blue)",
    VERMILLION: "var(--red)",
    GREY: "var(--muted)",
}
_PAGE_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "orthogp",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.facecolor": _PAPER,
    "legend.labelcolor": _INK,
    "axes.linewidth": 0.7,
}


class Band(NamedTuple):
    """Means and standard deviations at sorted inputs x, each (n,)."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @property
    def lower(self) -> NDArray[np.float64]:
        """The lower edge of the 95% band."""
        return self.mean - BAND_SDS * self.std

    @property
    def upper(self) -> NDArray[np.float64]:
        """The upper edge of the 95% band."""
        return self.mean + BAND_SDS * self.std


class Panel(NamedTuple):
    """One of several plots side by side over the number of features.

    Attributes
    ----------
    title, ylabel : str
    curves : mapping of str to (x, y)
        By label; the same label looks the same in every panel.
    reference : float, optional
        Where to draw a level line.
    floor : float, optional
        Values below this are drawn here, since a logarithmic axis ends somewhere; `None` makes the
        axis linear.
    """

    title: str
    ylabel: str
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    reference: float | None = None
    floor: float | None = None


def require_matplotlib() -> Any:
    """Return matplotlib, or raise `OrthogpError` saying how to install it."""
    try:
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError as error:
        raise OrthogpError(
            "Plots need matplotlib: install it with pip install 'orthogp[plots]'."
        ) from error
    return matplotlib


def plot_forecast(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    forecast: Band,
    check: Band,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Return a figure of a record with its forecast, beside a check of the forecast.

    Parameters
    ----------
    x, y : (n,)
        The record, sorted.
    forecast : Band
        The prediction of what follows it.
    check : Band
        The prediction of its end from what came before.
    """
    with require_matplotlib().rc_context(STYLE):
        figure, axes = _new_figure("wwe", size=(11, 4.4))
        whole, end = axes["w"], axes["e"]
        whole.plot(x, y, color=_BLACK, linewidth=0.7, label="record")
        _draw_band(whole, forecast, "forecast")
        whole.set(title=title, xlabel=xlabel, ylabel=ylabel)
        whole.margins(x=0.01)
        whole.legend(loc="upper left")

        begin = check.x[0]
        shown = x >= begin - 0.4 * (check.x[-1] - begin)
        end.plot(x[shown], y[shown], ".", color=_BLACK, markersize=3, label="record")
        _draw_band(end, check, "forecast made at the dashed line")
        end.axvline(begin, color=GREY, linewidth=0.9, linestyle="--")
        end.set(title=f"Check: the last {x[-1] - begin:.0f} years, forecast", xlabel=xlabel)
        end.margins(x=0.02)
        _add_legend_above(end, rows=3)
    return figure


def plot_bands(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    band: Band,
    lens: Band,
    truth: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    title: str,
) -> Figure:
    """Return a figure of many rows with the posterior of f, its errors, and a stretch magnified.

    Parameters
    ----------
    x, y : (n,)
        The rows.
    band, lens : Band
        The posterior of f over the whole range, and over the short stretch to magnify.
    truth : callable
        The function behind the rows.
    """
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(STYLE):
        figure, axes = _new_figure("ww\nle", size=(11, 7.2), height_ratios=[1.2, 1])
        _draw_density(axes["w"], x, y)
        axes["w"].plot(band.x, band.mean, color=BLUE, linewidth=1.3, label="mean of f")
        axes["w"].set(title=title, xlabel="x", ylabel="y")
        axes["w"].margins(x=0)
        _add_legend_above(axes["w"], rows=1)

        _draw_lens(axes["l"], x, y, lens, truth(lens.x))
        share = (lens.x[-1] - lens.x[0]) / (band.x[-1] - band.x[0])
        axes["l"].set(title=f"1/{1 / share:,.0f} of the range, magnified", xlabel="x", ylabel="y")

        error = Band(band.x, band.mean - truth(band.x), band.std)
        zero = Band(band.x, np.zeros_like(band.std), band.std)
        axes["e"].fill_between(
            band.x, zero.lower, zero.upper, color=BLUE, alpha=0.25, linewidth=0, label="95% band"
        )
        axes["e"].plot(error.x, error.mean, color=VERMILLION, linewidth=0.5, label="mean − truth")
        axes["e"].set(title="Errors of the mean of f", xlabel="x", ylabel="mean − truth")
        axes["e"].margins(x=0)
        _add_legend_above(axes["e"], rows=1, columns=2)
    return figure


def plot_panels(
    panels: Sequence[Panel],
    labels: Sequence[str],
    *,
    title: str,
    xlabel: str,
    xticks: Sequence[int],
    reference: str,
) -> Figure:
    """Return a figure of panels that share their curves' looks and one legend.

    Parameters
    ----------
    labels : sequence of str
        Of all curves, in the legend's order.
    xticks : sequence of int
        The numbers to print below a logarithmic axis.
    reference : str
        What the level lines are.
    """
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(STYLE):
        size = (3.9 * len(panels) + 1.6, 4.2)
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        row = figure.subplots(1, len(panels), sharex=True)
        for axes, panel in zip(row, panels, strict=True):
            _draw_panel(axes, panel, labels, reference)
            axes.set(title=panel.title, xlabel=xlabel, xscale="log")
            axes.set_xticks(xticks, map(str, xticks))
            axes.set_xticks([], minor=True)
        handles = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        order = [label for label in (*labels, reference) if label in handles]
        figure.legend([handles[label] for label in order], order, loc="outside center right")
    return figure


def check_format(path: Path) -> None:
    """Raise unless a figure can be saved under that name: before long work, not after it."""
    require_matplotlib()
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"A plot's name must end in {', '.join(_FORMATS)}, got {str(path)!r}.")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its name ends in."""
    figure.savefig(path, dpi=_DPI)


def new_panel(size: tuple[float, float] = PANEL, **style: Any) -> tuple[Figure, Axes]:
    """Return a figure with one panel; `style` overrides entries of `STYLE`."""
    matplotlib = require_matplotlib()
    with matplotlib.rc_context({**STYLE, **style}):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        return figure, figure.subplots()


def styled() -> Any:
    """Return a context in which matplotlib draws in `STYLE`."""
    return require_matplotlib().rc_context(STYLE)


def blend(*colours: str) -> Any:
    """Return a scale that runs through some colours."""
    colors = require_matplotlib().colors
    return colors.LinearSegmentedColormap.from_list("blend", list(colours))


def draw_image(
    figure: Any,
    axes: Axes,
    values: NDArray[np.float64],
    extent: Sequence[float],
    *,
    bar: Mapping[str, Any],
    **look: Any,
) -> None:
    """Draw values on a grid as colours, with a scale beside them; `look` goes to `imshow`."""
    image = axes.imshow(
        values,
        origin="lower",
        extent=tuple(extent),  # type: ignore[arg-type]
        aspect="auto",
        interpolation="nearest",
        **look,
    )
    axes.grid(visible=False)
    scale = figure.colorbar(image, ax=axes, pad=0.02, aspect=24, **bar)
    scale.outline.set_visible(False)
    scale.ax.grid(visible=False)


class Svg(NamedTuple):
    """A figure to stand inside a page.

    Attributes
    ----------
    look : str
        The class that the page's style sheet knows the figure by.
    width : float
        The width beyond which the figure is not stretched, in pixels.
    description : str
        The figure in words, for those who do not see it.
    body : str
        The content of the svg element, with the page's font and colours.
    """

    look: str
    view_box: str
    width: float
    description: str
    body: str


def inline_svg(
    draw: Callable[[], Figure], name: str, description: str, *, look: str = "plot"
) -> Svg:
    """Return what `draw` makes as SVG; `name` begins all its identifiers, unique in the page."""
    with require_matplotlib().rc_context(_PAGE_STYLE):
        figure, out = draw(), io.StringIO()
        width = 96 * float(figure.get_size_inches()[0])
        figure.savefig(out, format="svg", transparent=True, dpi=_DPI, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = text[text.index(">") + 1 :]
    # A style element of a figure would apply to the whole page.
    for unwanted in ("metadata", "style"):
        body = re.sub(rf"<{unwanted}.*?</{unwanted}>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body)
    body = body.replace("xlink:href", "href").replace("url(#", f"url(#{name}-")
    body = re.sub(r'\b(d|points)="([^"]*)"', _rounded, body)
    body = re.sub(r"(font: [^;\"]*?)'?DejaVu Sans'?[^;\"]*", r"\1var(--sans)", body)
    for colour, variable in _PAGE_COLOURS.items():
        body = re.sub(rf"(: ){colour}\b", rf"\1{variable}", body, flags=re.IGNORECASE)
    return Svg(look, box.group(1), width, description, body.rpartition("</svg>")[0])


def _rounded(found: re.Match[str]) -> str:
    """Return path data with a hundredth of a point as the smallest digit."""
    digits = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number.group()):.2f}", found.group(2))
    return f'{found.group(1)}="{" ".join(digits.split())}"'


def _new_figure(
    mosaic: str, *, size: tuple[float, float], height_ratios: list[float] | None = None
) -> tuple[Figure, dict[str, Axes]]:
    figure = require_matplotlib().figure.Figure(figsize=size, layout="constrained")
    return figure, figure.subplot_mosaic(mosaic, height_ratios=height_ratios)


def _draw_band(axes: Axes, band: Band, label: str) -> None:
    axes.fill_between(
        band.x, band.lower, band.upper, color=BLUE, alpha=0.25, linewidth=0, label="95% band"
    )
    axes.plot(band.x, band.mean, color=BLUE, linewidth=1.1, label=label)


def _draw_panel(axes: Axes, panel: Panel, labels: Sequence[str], reference: str) -> None:
    if panel.reference is not None:
        axes.axhline(panel.reference, color=_BLACK, linewidth=1.1, linestyle="-.", label=reference)
    for label, (x, y) in panel.curves.items():
        number = labels.index(label)
        # Curves that coincide lie on each other: the later, the thinner, so that all are seen.
        width = 1.1 + 1.5 * (1 - (number + 1) / len(labels))
        axes.plot(
            x,
            y if panel.floor is None else np.maximum(y, panel.floor),
            color=_CURVES[number % len(_CURVES)],
            linestyle=_DASHES[number // len(_CURVES) % len(_DASHES)],
            linewidth=width,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=label,
        )
    clipped = panel.floor is not None and any(
        np.any(y < panel.floor) for _, y in panel.curves.values()
    )
    note = f" ({panel.floor:g} or less at the foot)" if clipped else ""
    axes.set(ylabel=panel.ylabel + note, yscale="linear" if panel.floor is None else "log")


def _draw_density(axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    """Draw how many rows fall into each cell of a grid, with a scale beside it."""
    colors = require_matplotlib().colors
    # From a light grey on: a single row must be seen.
    greys = colors.LinearSegmentedColormap.from_list("greys", ["#dddddd", "#333333"])
    *_, cells = axes.hist2d(x, y, bins=(360, 140), cmin=1, cmap=greys, norm=colors.LogNorm())
    bar = axes.figure.colorbar(cells, ax=axes, pad=0.01, aspect=30, label="rows per cell")
    bar.outline.set_visible(False)
    bar.ax.grid(False)


def _draw_lens(
    axes: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    band: Band,
    truth: NDArray[np.float64],
) -> None:
    """Draw a short stretch so that the band of f fills it; most rows lie above and below."""
    inside = np.flatnonzero((x >= band.x[0]) & (x <= band.x[-1]))[:_MOST_POINTS]
    axes.plot(x[inside], y[inside], ".", color=GREY, markersize=2, alpha=0.5, label="rows")
    _draw_band(axes, band, "mean of f")
    axes.plot(band.x, truth, color=VERMILLION, linewidth=1.3, linestyle="--", label="truth")
    low, high = min(band.lower.min(), truth.min()), max(band.upper.max(), truth.max())
    margin = 0.5 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.margins(x=0)
    _add_legend_above(axes, rows=2, columns=2)


def _add_legend_above(axes: Axes, *, rows: int, columns: int = 1) -> None:
    """Add a legend in a strip of its own above the data."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.11 * rows * (high - low))
    axes.legend(loc="upper left", ncols=columns, markerscale=3)
