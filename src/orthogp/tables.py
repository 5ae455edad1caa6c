"""Tables: columns of numbers read from CSV files by name, and rows written as CSV or as text."""

from __future__ import annotations

import csv
import gzip
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import isinf, isnan, nan
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.statistics.lattice import MAX_DIMS

# What stands for no value, in lower case, besides what reads as the number NaN.
_MISSING = frozenset({"", "na", "n/a", "#n/a", "null", "none"})
_DELIMITERS = ",;\t"


class Table(NamedTuple):
    """The rows of a file that hold numbers in all columns asked for.

    Attributes
    ----------
    X : (n, d)
        The inputs, column by column as in `inputs`.
    y : (n,)
        The target.
    inputs, target
        The names of the columns.
    num_dropped : int
        How many rows were left out because a value was missing.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    inputs: tuple[str, ...]
    target: str
    num_dropped: int


def read_table(
    path: str | PathLike[str], target: str, inputs: Sequence[str] | None = None
) -> Table:
    """Return columns of a CSV file whose first line names them.

    Rows with an empty cell (or NA, NaN, null) in the columns asked for are dropped and counted.
    Other columns may hold anything.

    Parameters
    ----------
    path : path
        Separated by commas, semicolons or tabs, whichever the first line has most of; compressed
        if its name ends in ".gz".
    target : str
        The column of y.
    inputs : sequence of str, optional
        The columns of X; all others than the target if those are at most three.
    """
    path = Path(path)
    with _opened(path) as stream:
        first = stream.readline()
        delimiter = max(_DELIMITERS, key=first.count)
        reader = csv.reader(chain([first], stream), delimiter=delimiter)
        names = [name.strip() for name in next(reader, [])]
        _check_header(path, names)
        inputs = _choose_inputs(path, names, target, inputs)
        used = [_position(path, names, name) for name in (*inputs, target)]
        values = array("d")
        for cells in reader:
            # A blank line is no row.
            if cells:
                values.extend(_read_row(path, reader.line_num, cells, names, used))
    columns = np.frombuffer(values, dtype=np.float64).reshape(-1, len(used))
    complete = ~np.isnan(columns).any(axis=1)
    if not complete.any():
        raise InputError(f"{path} has no row with a number in each of {_list([*inputs, target])}.")
    X, y = columns[complete, :-1], columns[complete, -1]
    return Table(X, y, tuple(inputs), target, int(np.sum(~complete)))


def write_rows(
    path: str | PathLike[str], names: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Write rows as CSV below their column names; NaN becomes an empty cell."""
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(names)
            for row in rows:
                writer.writerow(["" if _is_nan(value) else value for value in row])
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error


def check_destination(path: str | PathLike[str]) -> None:
    """Raise unless there is a directory for a file to be written: before long work, not after."""
    directory = Path(path).absolute().parent
    if not directory.is_dir():
        raise InputError(f"There is no directory {directory} to write {Path(path).name} into.")


def align(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return lines in which the cells of each column stand below each other.

    The first `left` columns are flush left, the others flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if j < left else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


# ---------------------------------------------------------------------- reading


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a file as text; what goes wrong while it is read becomes one sentence."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        # Spreadsheets mark UTF-8 by a first character that belongs to no name.
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield stream  # type: ignore[misc]
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: save it as CSV in UTF-8.") from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged: what it compresses cannot be restored.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error


def _read_row(
    path: Path, line: int, cells: list[str], names: list[str], used: list[int]
) -> list[float]:
    """Return the numbers in the columns `used`, with NaN for what is missing."""
    if len(cells) != len(names):
        raise InputError(
            f"Line {line} of {path} must have {len(names)} cells, as its first line has, got "
            f"{len(cells)}."
        )
    numbers = []
    for j in used:
        try:
            numbers.append(_number(cells[j]))
        except ValueError as error:
            raise InputError(
                f"Column {names[j]!r} must hold finite numbers, got {cells[j]!r} in line {line} of "
                f"{path}: leave such cells empty, or choose other columns."
            ) from error
    return numbers


def _number(cell: str) -> float:
    """Return the number in a cell, NaN if it is missing, or raise `ValueError`."""
    try:
        value = float(cell)
    except ValueError:
        if cell.strip().lower() in _MISSING:
            return nan
        raise
    # Python also reads 1_000, which in a file is a label rather than a number.
    if isinf(value) or "_" in cell:
        raise ValueError(cell)
    return value


# ---------------------------------------------------------------------- columns


def _check_header(path: Path, names: list[str]) -> None:
    if not any(names):
        raise InputError(f"{path} must begin with a line of column names, but that line is empty.")
    if all(_is_number(name) for name in names):
        raise InputError(
            f"{path} must begin with a line of column names, but that line holds numbers only: "
            "add a line such as x,y."
        )


def _choose_inputs(
    path: Path, names: list[str], target: str, inputs: Sequence[str] | None
) -> list[str]:
    _position(path, names, target)
    if inputs is None:
        # A column without a name is a counter of rows.
        others = [name for name in names if name not in ("", target)]
        if not others:
            raise InputError(f"{path} has no column besides {target!r} to predict it from.")
        if len(others) > MAX_DIMS:
            raise InputError(
                f"{path} has {len(others)} columns besides {target!r}: choose up to {MAX_DIMS} of "
                f"them as inputs ({_list(others)})."
            )
        return others
    if not inputs:
        raise InputError("inputs must name at least one column, got none.")
    if target in inputs:
        raise InputError(f"{target!r} is both target and input: leave it out of the inputs.")
    if len(set(inputs)) < len(inputs):
        raise InputError(f"The inputs must differ, got {_list(inputs)}.")
    return list(inputs)


def _position(path: Path, names: list[str], name: str) -> int:
    count = names.count(name)
    if count == 0:
        raise InputError(f"{path} has no column {name!r}; its columns are {_list(names)}.")
    if count > 1:
        raise InputError(f"{path} has {count} columns named {name!r}: rename them.")
    return names.index(name)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and isnan(value)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
