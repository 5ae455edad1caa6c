"""Figures as inline SVG that takes the page's font and colours, in the dark as well."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from orthogp.plots import BLUE, GREY, STYLE, VERMILLION, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK, _PAPER = "#1a1a1f", "#fdfdfe"
#: Colours of figures, and the page's variables that stand in for them.
COLOURS = {
    _INK: "var(--ink)",
    _PAPER: "var(--paper)",
    str(STYLE["grid.color"]): "var(--grid)",
    BLUE: "var(--blue)",
    VERMILLION: "var(--red)",
    GREY: "var(--muted)",
}
_STYLE = {
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
_DPI = 150


def draw_figure(
    draw: Callable[[], Figure], name: str, description: str, *, look: str = "plot"
) -> str:
    """Return a figure as SVG to stand in a page.

    Parameters
    ----------
    draw : callable
        Makes the figure.
    name : str
        Unique in the page: all identifiers of the figure begin with it.
    description : str
        The figure in words, for those who do not see it.
    look : str
        The class that the page's style sheet knows it by.
    """
    with require_matplotlib().rc_context(_STYLE):
        figure, out = draw(), io.StringIO()
        width = figure.get_size_inches()[0]
        figure.savefig(out, format="svg", transparent=True, dpi=_DPI, metadata={"Date": None})
    return _inline(out.getvalue(), name, description, look, 96 * float(width))


def _inline(text: str, name: str, description: str, look: str, width: float) -> str:
    text = text[text.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = text[text.index(">") + 1 :]
    # The style that matplotlib puts here would hold for the whole page, which has it for figures.
    for unwanted in ("metadata", "style"):
        body = re.sub(rf"<{unwanted}.*?</{unwanted}>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body)
    body = body.replace("xlink:href", "href").replace("url(#", f"url(#{name}-")
    body = re.sub(r'\b(d|points)="([^"]*)"', _rounded, body)
    body = re.sub(r"(font: [^;\"]*?)'?DejaVu Sans'?[^;\"]*", r"\1var(--sans)", body)
    for colour, variable in COLOURS.items():
        body = re.sub(rf"(: ){colour}\b", rf"\1{variable}", body, flags=re.IGNORECASE)
    return (
        f'<svg class="{look}" viewBox="{box.group(1)}" style="max-width: {width:.0f}px" role="img" '
        f'aria-label="{escape(description)}"><title>{escape(description)}</title>{body}'
    )


def _rounded(found: re.Match[str]) -> str:
    """Return path data with a hundredth of a point as the smallest digit."""
    digits = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number.group()):.2f}", found.group(2))
    return f'{found.group(1)}="{" ".join(digits.split())}"'
