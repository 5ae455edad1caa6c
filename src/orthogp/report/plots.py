"""The only file that imports matplotlib, and only when a figure is asked for.

Figures are matplotlib's objects without pyplot and its global state: nothing is shown on a screen,
and a program's other figures stay untouched. The colours are Okabe and Ito's, which those who see
fewer colours can tell apart.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, require
from orthogp.files.columns import UNITS, TimeScale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Half the width of a 95 % band, in standard deviations.
BAND_SDS = 1.96

BLUE, VERMILLION, BLACK, GREY = "#0072B2", "#D55E00", "#000000", "#777777"
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
# The widest figure of several panels, in inches.
_WIDEST = 13.8
# The widest figure, in inches, whose legend has two columns in place of four.
_NARROW = 6.0
# The label of the exact process beside its approximations.
_EXACT = "exact GP"
_DPI = 150
_FORMATS = (".png", ".pdf", ".svg")
# The label of an axis along which there are date-times.
_TIME_LABEL = re.compile(rf"(?P<name>.*) \((?P<unit>{'|'.join(UNITS)}) since (?P<origin>[\d-]+)\)")

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
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_PAGE_STYLE = {
    **dict.fromkeys((*_INKED, "legend.labelcolor"), _INK),
    "svg.fonttype": "none",
    "svg.hashsalt": "orthogp",
    "legend.facecolor": _PAPER,
    "axes.linewidth": 0.7,
}


def require_matplotlib() -> Any:
    """Return matplotlib, or raise `InputError` saying how to install it."""
    require("matplotlib", "A figure or report", "plots")
    import matplotlib.colors
    import matplotlib.dates
    import matplotlib.figure
    import matplotlib.ticker

    return matplotlib


def check_format(path: Path) -> None:
    """Raise unless a figure can be saved under that name: before long work, not after it."""
    require_matplotlib()
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"A plot's name must end in {', '.join(_FORMATS)}, got {str(path)!r}.")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its name ends in."""
    figure.savefig(path, dpi=_DPI)


# ---------------------------------------------------------------------- panels


class Drawing(NamedTuple):
    """One panel of a figure: in words, for those who do not see it; how it is drawn; in inches."""

    about: str
    draw: Callable[[Axes], object]
    size: tuple[float, float] = PANEL


def compose(drawings: Sequence[Drawing]) -> Figure:
    """Return a figure of panels side by side, panels of equal size together.

    A single panel has its legend above, unless it has drawn one itself.
    """
    matplotlib = require_matplotlib()
    groups: dict[tuple[float, float], list[Drawing]] = {}
    for drawing in drawings:
        groups.setdefault(drawing.size, []).append(drawing)
    width = max(min(len(own), _WIDEST // size[0] or 1) * size[0] for size, own in groups.items())
    # As many across as fit, so that panels of a small group do not stretch.
    across = [int(width / size[0] + 1e-9) for size in groups]
    downs = [-(-len(own) // number) for own, number in zip(groups.values(), across, strict=True)]
    heights = [down * size[1] for down, size in zip(downs, groups, strict=True)]
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, sum(heights)), layout="constrained")
        parts: Any = [figure]
        if len(groups) > 1:
            parts = figure.subfigures(len(groups), 1, height_ratios=heights)
        for part, group, *shape in zip(parts, groups.values(), downs, across, strict=True):
            panels = part.subplots(*shape, squeeze=False).ravel()
            for axes, drawing in zip(panels, group, strict=False):
                drawing.draw(axes)
                show_dates(axes)
            for axes in panels[len(group) :]:
                axes.set_visible(False)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if len(drawings) == 1 and labels and figure.axes[0].get_legend() is None:
            figure.legend(
                handles,
                labels,
                loc="outside upper left",
                ncols=2 if width < _NARROW else 4,
                frameon=False,
                borderaxespad=0.1,
                columnspacing=1.2,
                handlelength=1.4,
            )
    return figure


def show_dates(axes: Axes) -> None:
    """Let an axis whose label ends in "(days since 2024-01-31)", say, have dates for its ticks."""
    dates = require_matplotlib().dates
    for axis, ends, rename in (
        (axes.xaxis, axes.get_xlim(), axes.set_xlabel),
        (axes.yaxis, axes.get_ylim(), axes.set_ylabel),
    ):
        known = _TIME_LABEL.fullmatch(axis.get_label().get_text())
        if known is None:
            continue
        scale = TimeScale(known["unit"], known["origin"])
        low, high = (dates.date2num(scale.datetimes(np.array([end]))[0]) for end in sorted(ends))
        locator = dates.AutoDateLocator(minticks=3, maxticks=7)
        ticks = locator.tick_values(dates.num2date(low), dates.num2date(high))
        ticks = [tick for tick in ticks if low <= tick <= high]
        formatter = dates.ConciseDateFormatter(locator)
        at = scale.numbers(
            np.array([dates.num2date(t).replace(tzinfo=None) for t in ticks], "M8[us]")
        )
        axis.set_ticks(at, formatter.format_ticks(ticks))
        rename(known["name"])


class Band(NamedTuple):
    """Means and standard deviations at sorted inputs x, each (n,)."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @property
    def lower(self) -> NDArray[np.float64]:
        """The lower edge of the 95 % band."""
        return self.mean - BAND_SDS * self.std

    @property
    def upper(self) -> NDArray[np.float64]:
        """The upper edge of the 95 % band."""
        return self.mean + BAND_SDS * self.std

    def fill(self, axes: Axes, label: str = "", *, alpha: float = 0.25) -> None:
        """Draw the band."""
        look: dict[str, Any] = {"color": BLUE, "alpha": alpha, "linewidth": 0, "label": label}
        axes.fill_between(self.x, self.lower, self.upper, **look)


def blend(*colours: str) -> Any:
    """Return a scale that runs through some colours."""
    colors = require_matplotlib().colors
    return colors.LinearSegmentedColormap.from_list("blend", list(colours))


def palette(name: str) -> str:
    """Return a scale of colours for a page's script: red, green, blue in bytes, in base64."""
    colours = require_matplotlib().colormaps[name](np.linspace(0, 1, 256), bytes=True)[:, :3]
    return base64.b64encode(np.ascontiguousarray(colours).tobytes()).decode("ascii")


def draw_image(
    axes: Axes,
    values: NDArray[np.float64],
    extent: Sequence[float],
    bar: Mapping[str, Any],
    **look: Any,
) -> None:
    """Draw values on a grid as colours, with a scale beside them; `look` goes to `imshow`."""
    look |= {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    image = axes.imshow(values, extent=tuple(extent), **look)  # type: ignore[arg-type]
    axes.grid(visible=False)
    figure: Any = axes.figure
    scale = figure.colorbar(image, ax=axes, pad=0.02, aspect=24, **bar)
    scale.outline.set_visible(False)
    scale.ax.grid(visible=False)


# ---------------------------------------------------------------------- panels over the features


class Panel(NamedTuple):
    """One of several plots side by side over the number of features.

    Attributes
    ----------
    title, ylabel : str
    curves : mapping of str to (x, y)
        By label; the same label looks the same in every panel.
    reference : float, optional
        The value of the exact process, drawn as a level line.
    floor : float, optional
        Values below this are drawn here, since a logarithmic axis ends somewhere; `None` makes the
        axis linear.
    """

    title: str
    ylabel: str
    curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    reference: float | None = None
    floor: float | None = None

    def draw(self, labels: Sequence[str], numbers: Sequence[int], axes: Axes) -> None:
        """Draw level line and curves, each in the look of its place among the labels."""
        if self.reference is not None:
            look: dict[str, Any] = {"color": BLACK, "linewidth": 1.1, "linestyle": "-."}
            axes.axhline(self.reference, label=_EXACT, **look)
        floor = -np.inf if self.floor is None else self.floor
        for label, (x, y) in self.curves.items():
            number = labels.index(label)
            axes.plot(
                x,
                np.maximum(y, floor),
                color=_CURVES[number % len(_CURVES)],
                linestyle=_DASHES[number // len(_CURVES) % len(_DASHES)],
                # Curves that coincide lie on each other: the later, the thinner, so that all show.
                linewidth=1.1 + 1.5 * (1 - (number + 1) / len(labels)),
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=6,
                markeredgecolor="white",
                markeredgewidth=0.6,
                label=label,
            )
        clipped = any(np.any(y < floor) for _, y in self.curves.values())
        note = f" ({floor:g} or less at the foot)" if clipped else ""
        axes.set(ylabel=self.ylabel + note, yscale="linear" if self.floor is None else "log")
        axes.set(title=self.title, xlabel="number of features M", xscale="log")
        axes.set_xticks(numbers, map(str, numbers))
        axes.set_xticks([], minor=True)


def plot_panels(
    panels: Sequence[Panel], labels: Sequence[str], numbers: Sequence[int], title: str
) -> Figure:
    """Return a figure of panels that share their curves' looks and one legend.

    Parameters
    ----------
    labels : sequence of str
        Of all curves, in the legend's order.
    numbers : sequence of int
        The numbers of features to print below the axes.
    """
    figure: Any = compose(
        [Drawing(own.title, partial(own.draw, labels, numbers), (4.4, 4.2)) for own in panels]
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [label for label in (*labels, _EXACT) if label in handles]
    with require_matplotlib().rc_context(STYLE):
        figure.legend([handles[label] for label in order], order, loc="outside center right")
    return figure


# ---------------------------------------------------------------------- figures inside a page


class Svg(NamedTuple):
    """A figure to stand inside a page.

    `look` is its class in the page's style sheet, `width` the largest width in pixels, and `body`
    the content of the svg element, with the page's font and colours.
    """

    look: str
    view_box: str
    width: float
    description: str
    body: str


def inline_svg(drawing: Drawing, name: str, *, look: str = "plot") -> Svg:
    """Return a drawing as SVG; `name` begins all its identifiers, unique in the page."""
    with require_matplotlib().rc_context(_PAGE_STYLE):
        figure, out = compose([drawing]), io.StringIO()
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
    width = 96 * drawing.size[0]
    return Svg(look, box.group(1), width, drawing.about, body.rpartition("</svg>")[0])


def _rounded(found: re.Match[str]) -> str:
    """Return path data with a hundredth of a point as the smallest digit."""
    digits = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number.group()):.2f}", found.group(2))
    return f'{found.group(1)}="{" ".join(digits.split())}"'
