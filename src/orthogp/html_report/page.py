"""The pieces of a page: sections, figures with captions, tables, tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from orthogp.html_report.style import STYLE_SHEET
from orthogp.html_report.svg import draw_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Section(NamedTuple):
    """A part of the page: its anchor, its heading, and its HTML."""

    anchor: str
    title: str
    body: str


class Tile(NamedTuple):
    """A number to see at first sight, what it is, and a remark."""

    label: str
    value: str
    remark: str = ""


class Figures:
    """Numbers the figures of a page, for identifiers that are unique."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(
        self, draw: Callable[[], Figure], description: str, caption: str = "", *, look: str = "plot"
    ) -> str:
        """Return a figure with its caption, as HTML."""
        return _framed(self._drawn(draw, description, look), caption)

    def for_any_width(
        self,
        draw: Callable[[tuple[float, float]], Figure],
        sizes: tuple[tuple[float, float], tuple[float, float]],
        description: str,
        caption: str = "",
    ) -> str:
        """Return a figure drawn twice, for screens and for phones, of which one is shown."""
        both = [
            self._drawn(lambda own=size: draw(own), description, look)
            for size, look in zip(sizes, ("wide", "narrow"), strict=True)
        ]
        return _framed("".join(both), caption)

    def _drawn(self, draw: Callable[[], Figure], description: str, look: str) -> str:
        self._count += 1
        return draw_figure(draw, f"figure{self._count}", description, look=look)


def _framed(content: str, caption: str) -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{content}{below}</figure>"


def paragraph(text: str) -> str:
    """Return plain text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def side_by_side(figures: Sequence[str], *, small: bool = False) -> str:
    """Return figures in as many columns as fit."""
    return f'<div class="plots{" small" * small}">{"".join(figures)}</div>'


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = (),
    *,
    caption: str = "",
    numbers: Sequence[int] = (),
) -> str:
    """Return a table of plain text whose first column heads its rows.

    Parameters
    ----------
    numbers : sequence of int
        The columns to align at the right.
    """

    def cell(text: str, column: int, *, head: bool) -> str:
        look = ' class="number"' if column in numbers else ""
        scope = ' scope="col"' if head else ' scope="row"'
        if head or column == 0:
            return f"<th{scope}{look}>{escape(text)}</th>"
        return f"<td{look}>{escape(text)}</td>"

    def row(cells: Sequence[str], *, head: bool = False) -> str:
        return f"<tr>{''.join(cell(text, i, head=head) for i, text in enumerate(cells))}</tr>"

    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = f"<thead>{row(header, head=True)}</thead>" if header else ""
    body = "".join(row(cells) for cells in rows)
    return f'<div class="table"><table>{above}{top}<tbody>{body}</tbody></table></div>'


def tiles(entries: Sequence[Tile]) -> str:
    """Return numbers to see at first sight."""

    def tile(entry: Tile) -> str:
        remark = f"<small>{escape(entry.remark)}</small>" if entry.remark else ""
        return f"<div><dt>{escape(entry.label)}</dt><dd>{escape(entry.value)}{remark}</dd></div>"

    return f'<dl class="tiles">{"".join(map(tile, entries))}</dl>'


def code(text: str, language: str) -> str:
    """Return lines of code."""
    return f'<pre><code class="{language}">{escape(text)}</code></pre>'


def page(title: str, subtitle: str, sections: Sequence[Section], footer: str) -> str:
    """Return the whole document."""
    links = "".join(
        f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>' for section in sections
    )
    bodies = "\n".join(
        f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-title">'
        f'<h2 id="{section.anchor}-title">{escape(section.title)}</h2>\n{section.body}</section>'
        for section in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE_SHEET}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p>{escape(subtitle)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{bodies}
</main>
<footer>{escape(footer)}</footer>
</body>
</html>
"""
