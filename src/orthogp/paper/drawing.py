"""The looks that the experiments' figures share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orthogp.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours. As in the paper's figure 3, dense covariances are blue and diagonal ones
# green.
BLUE, GREEN, VERMILLION, PURPLE = "#0072B2", "#009E73", "#D55E00", "#CC79A7"
BLACK, GREY = "#000000", "#777777"
COVARIANCE_COLOURS = {"dense": BLUE, "diagonal": GREEN}
CURVES = (BLUE, VERMILLION, GREEN, PURPLE, "#56B4E9", "#E69F00", BLACK)
MARKERS = "osD^v<>"

# Inches of a legend that one of its columns takes.
_LEGEND_COLUMN = 2.7
_STYLE = {**plots.STYLE, "font.size": 9, "axes.titlesize": 9.5, "lines.linewidth": 1.4}


def style() -> Any:
    """Return a context in which figures look like all others."""
    return plots.require_matplotlib().rc_context(_STYLE)


def panels(
    num_rows: int, num_columns: int, *, size: tuple[float, float], **shared: Any
) -> tuple[Figure, NDArray[Any]]:
    """Return a figure with a grid of axes, (num_rows, num_columns)."""
    figure = plots.require_matplotlib().figure.Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, **shared)


def set_title(figure: Figure, title: str) -> None:
    """Write a line above all panels."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)


def add_legend(figure: Figure) -> None:
    """Add one legend below the panels, with every label once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(figure.get_figwidth() / _LEGEND_COLUMN))),
    )


def draw_points(
    axes: Axes, x: Sequence[float], y: Sequence[float], number: int, label: str
) -> None:
    """Draw measured points joined by a line, in the looks of the `number`-th curve."""
    axes.plot(
        x,
        y,
        color=CURVES[number % len(CURVES)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=label,
    )


def set_log_ticks(axes: Axes, numbers: Sequence[int]) -> None:
    """Make the x axis logarithmic, with these numbers printed below it."""
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xticks([], minor=True)


def save(figure: Figure, path: Path) -> Path:
    """Return the path of a figure that has been written."""
    plots.save(figure, path)
    return path


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return exponent p and factor c of the least-squares line log y = log c + p log x."""
    exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return float(exponent), float(np.exp(intercept))
