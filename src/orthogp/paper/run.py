"""How experiments run: by name, with results that outlive an interruption, and figures alike.

Each experiment is a class whose fields are its settings: by default the paper's, and smaller ones
that show the way by `quick`. `reproduce` writes a figure and beside it CSV files whose rows are
kept from one run to the next.
"""

from __future__ import annotations

import csv
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.paper import EXPERIMENTS
from orthogp.persistence import replacing
from orthogp.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Write = Callable[[str], object]
Value = str | int | float | bool
Row = dict[str, Value]

# Okabe and Ito's colours.
BLUE = "#0072B2"
GREEN = "#009E73"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
BLACK = "#000000"
GREY = "#777777"
#: As in the paper's figure 3.
COVARIANCE_COLOURS = {"dense": BLUE, "diagonal": GREEN}
CURVES = (BLUE, VERMILLION, GREEN, PURPLE, "#56B4E9", "#E69F00", BLACK)
MARKERS = "osD^v<>"

# The width of one column of a legend, in inches.
_LEGEND_COLUMN = 2.7
_STYLE = {**plots.STYLE, "font.size": 9, "axes.titlesize": 9.5, "lines.linewidth": 1.4}


def run_experiments(names: Sequence[str], out: Path, *, quick: bool, write: Write) -> list[Path]:
    """Return the paths of all that some experiments write.

    Parameters
    ----------
    names : sequence of str
        Of `orthogp.paper.EXPERIMENTS`.
    out : path
        A directory, made if missing. Rows that are there already are not computed again.
    quick : bool
        Whether to take the smaller settings.
    write : callable
        Given a line of text when a run ends.
    """
    plots.require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The results cannot go to {out} ({error.strerror}): give another directory."
        ) from error
    paths = []
    for name in names:
        module, kind = EXPERIMENTS[name].split(".")
        experiment = getattr(import_module(f"orthogp.paper.{module}"), kind)
        paths += (experiment.quick() if quick else experiment()).reproduce(out, write)
    return paths


# ---------------------------------------------------------------------- results


class Ledger:
    """The rows of a CSV file, one for each finished run, found again by their settings.

    A row is in the file as soon as its run ends. What was interrupted is run again the next time,
    what is there is not, and runs with other settings stand beside it.

    Parameters
    ----------
    path : path
        Made when the first row is added.
    settings : sequence of str
        The columns that say which run it was.
    results : sequence of str
        The columns that say what came of it.
    write : callable
        Given a line that names each run and how long it took.
    """

    def __init__(
        self, path: Path, settings: Sequence[str], results: Sequence[str], write: Write
    ) -> None:
        self.path = path
        self._write = write
        self._settings = tuple(settings)
        self._names = (*settings, *results)
        self._rows = self._read()

    def find(self, settings: Mapping[str, Value]) -> Row | None:
        """Return the row of a run, or `None` if there is none yet."""
        return self._rows.get(self._key(settings))

    def add(self, *rows: Mapping[str, Value]) -> None:
        """Append rows, all of them at once."""
        lines = [[_as_text(row[name]) for name in self._names] for row in rows]
        is_new = not self.path.exists()
        with self.path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if is_new:
                writer.writerow(self._names)
            writer.writerows(lines)
        for row in rows:
            self._rows[self._key(row)] = {name: row[name] for name in self._names}

    def run(self, settings: Mapping[str, Value], compute: Callable[[], Mapping[str, Value]]) -> Row:
        """Return the row of a run, which is computed only if it is not there.

        `compute` returns the results; `seconds`, if it is a column, is added to them.
        """
        return self.run_together([settings], lambda: [compute()])[0]

    def run_together(
        self,
        settings: Sequence[Mapping[str, Value]],
        compute: Callable[[], Sequence[Mapping[str, Value]]],
    ) -> list[Row]:
        """Return the rows of runs that are computed all at once, unless all are there."""
        names = [", ".join(f"{key} {_as_text(run[key])}" for key in run) for run in settings]
        kept = [row for run in settings if (row := self.find(run)) is not None]
        if len(kept) == len(settings):
            for name in names:
                self._write(f"{self.path.stem}: {name}: kept")
            return kept
        began = time.perf_counter()
        results = compute()
        seconds = (time.perf_counter() - began) / len(settings)
        rows = [
            {"seconds": round(seconds, 3), **run, **result}
            for run, result in zip(settings, results, strict=True)
        ]
        self.add(*rows)
        for name in names:
            self._write(f"{self.path.stem}: {name}: {seconds:.1f} s")
        return rows

    def _key(self, settings: Mapping[str, Value]) -> tuple[str, ...]:
        return tuple(_as_text(settings[name]) for name in self._settings)

    def _read(self) -> dict[tuple[str, ...], Row]:
        if not self.path.exists():
            return {}
        text = self.path.read_text("utf-8")
        # A run that was cut short while it wrote leaves half a line, which would spoil the next.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            with replacing(self.path) as stream:
                stream.write(whole.encode())
        header, *lines = csv.reader(whole.splitlines()) if whole else [list(self._names)]
        if tuple(header) != self._names:
            raise InputError(
                f"{self.path} has other columns than this version writes: move it away, or give "
                "another directory."
            )
        if not whole:
            self.path.unlink()
        rows = (dict(zip(self._names, map(_as_value, line), strict=True)) for line in lines)
        return {self._key(row): row for row in rows}


def number(row: Mapping[str, Value], name: str) -> float:
    """Return a result as a number."""
    return float(row[name])


def column(rows: Sequence[Mapping[str, Value]], name: str) -> list[float]:
    """Return a result of each row as a number."""
    return [number(row, name) for row in rows]


def _as_text(value: Value) -> str:
    """Return the shortest text that reads back as the same value."""
    if isinstance(value, bool | str | int):
        return str(value)
    return repr(float(value))


def _as_value(text: str) -> Value:
    """Return the number or the truth value that a text stands for, or the text itself."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return exponent p and factor c of the least-squares line log y = log c + p log x."""
    exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return float(exponent), float(np.exp(intercept))


# ---------------------------------------------------------------------- figures


@contextmanager
def drawn(
    path: Path, shape: tuple[int, int], *, size: tuple[float, float], title: str, **shared: Any
) -> Iterator[NDArray[Any]]:
    """Give a grid of axes to draw on, then write the figure with a title and one legend."""
    matplotlib = plots.require_matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        yield figure.subplots(*shape, squeeze=False, **shared)
        # Every label once.
        handles: dict[str, Any] = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        if handles:
            figure.legend(
                list(handles.values()),
                list(handles),
                loc="outside lower center",
                ncols=max(1, min(len(handles), int(figure.get_figwidth() / _LEGEND_COLUMN))),
            )
    plots.save(figure, path)


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
