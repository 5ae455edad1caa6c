"""What is read of files: columns by name, in stretches of files that any process can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.files.times import TimeScale
from orthogp.statistics.lattice import MAX_DIMS

#: The cells that stand for a missing value, in lower case, besides those that read as NaN.
MISSING = frozenset({"", "na", "n/a", "#n/a", "null", "none"})
# The largest number of column names in a sentence.
_MOST_NAMES = 30


class Piece(NamedTuple):
    """A stretch of one file: a unit of work.

    Attributes
    ----------
    path : str
    label : str
        The name of the file in messages.
    kind : {"parquet", "text"}
    size, modified : int
        The file's bytes and its time of change (microseconds) when it was opened.
    begin, end : int
        Row groups of a Parquet file, bytes of a text file (`end` -1: to its end).
    skip : int
        The number of rows of the first row group that have been read already.
    line : int
        The number of lines of the text file before `begin`; -1 if they were not counted.
    """

    path: str
    label: str
    kind: Literal["parquet", "text"]
    size: int
    modified: int
    begin: int
    end: int
    skip: int = 0
    line: int = -1


@dataclass(frozen=True)
class Reading:
    """The columns that are read, and how.

    Attributes
    ----------
    inputs, targets : tuple of str
    weights : str, optional
    times : tuple of TimeScale or None
        For each input, the scale of its date-times.
    skip_bad : bool
        Whether rows that cannot be read are counted instead of refused.
    keep_missing : bool
        Whether rows that lack a value stay, with NaN in its place.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    weights: str | None
    times: tuple[TimeScale | None, ...]
    skip_bad: bool = False
    keep_missing: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All columns: inputs, targets, weights."""
        return (*self.inputs, *self.targets, *(() if self.weights is None else (self.weights,)))

    @property
    def scales(self) -> tuple[TimeScale | None, ...]:
        """The scale of every column, `None` for those that hold numbers."""
        return (*self.times, *(None,) * (len(self.names) - len(self.inputs)))

    def only_inputs(self) -> Reading:
        """Return the reading of the input columns alone."""
        return replace(self, targets=(), weights=None)


class Tally(NamedTuple):
    """The numbers of rows that were used, that lack a value, and that cannot be read.

    `first_bad` says where the first unreadable row is.
    """

    used: int = 0
    missing: int = 0
    bad: int = 0
    first_bad: str | None = None

    @property
    def met(self) -> int:
        """The number of all rows."""
        return self.used + self.missing + self.bad

    def plus(self, other: Tally) -> Tally:
        """Return both together."""
        return Tally(
            self.used + other.used,
            self.missing + other.missing,
            self.bad + other.bad,
            self.first_bad or other.first_bad,
        )


class Block(NamedTuple):
    """Rows as they come from a file.

    Attributes
    ----------
    columns : (k, n)
        The columns of a `Reading`, in its order.
    tally : Tally
    rest : Piece
        The part of the piece that is still to be read.
    """

    columns: NDArray[np.float64]
    tally: Tally
    rest: Piece


def complete_rows(
    columns: NDArray[np.float64], reading: Reading, bad: int = 0, first_bad: str | None = None
) -> tuple[NDArray[np.float64], Tally]:
    """Return the rows without NaN (all rows if `reading` keeps them), and the tally."""
    met = columns.shape[1]
    if not reading.keep_missing:
        # A sum is NaN if an entry is, and costs less than looking at each.
        with np.errstate(invalid="ignore", over="ignore"):
            suspicious = ~np.isfinite(columns.sum(axis=1))
        if suspicious.any() and (missing := np.isnan(columns[suspicious]).any(axis=0)).any():
            columns = columns[:, ~missing]
    used = columns.shape[1]
    return columns, Tally(used, met - used, bad, first_bad)


def has_arrow() -> bool:
    """Return whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def require_arrow(what: str) -> None:
    """Raise `InputError` that says how to install pyarrow, unless it is there."""
    if not has_arrow():
        raise InputError(f'{what} needs pyarrow: install it with pip install "orthogp[files]".')


# ---------------------------------------------------------------------- names


def choose_inputs(
    label: str,
    names: Sequence[str],
    targets: Sequence[str],
    inputs: Sequence[str] | None,
    weights: str | None = None,
) -> list[str]:
    """Return the input columns: those named, or all others if they are few."""
    taken = (*targets, *(() if weights is None else (weights,)))
    for name in taken:
        find_column(label, names, name)
    if len(set(taken)) < len(taken):
        raise InputError(f"Targets and weights must be different columns, got {listed(taken)}.")
    if inputs is None:
        # A column without a name is a counter of rows.
        others = [name for name in names if name and name not in taken]
        besides = listed([repr(name) for name in taken])
        if not others:
            raise InputError(f"{label} has no column besides {besides} to predict it from.")
        if len(others) > MAX_DIMS:
            raise InputError(
                f"{label} has {len(others)} columns besides {besides}: name those to predict from "
                f"by --inputs ({_some(others)}); more than {MAX_DIMS} add up, one function of each."
            )
        return others
    if not inputs:
        raise InputError("inputs must name at least one column, got none.")
    for name in taken:
        if name in inputs:
            role = "target" if name in targets else "weights"
            raise InputError(f"{name!r} is both {role} and input: leave it out of the inputs.")
    if len(set(inputs)) < len(inputs):
        raise InputError(f"The inputs must differ, got {listed(inputs)}.")
    return list(inputs)


def find_column(label: str, names: Sequence[str], name: str) -> int:
    """Return the position of a column."""
    count = list(names).count(name)
    if count == 0:
        raise InputError(f"{label} has no column {name!r}; its columns are {_some(names)}.")
    if count > 1:
        raise InputError(f"{label} has {count} columns named {name!r}: rename them.")
    return list(names).index(name)


def listed(names: Sequence[str]) -> str:
    """Return names with commas between."""
    return ", ".join(names)


def _some(names: Sequence[str]) -> str:
    """Return names with commas between, the first of them if they are very many."""
    rest = len(names) - _MOST_NAMES
    return listed(names) if rest <= 0 else f"{listed(names[:_MOST_NAMES])} and {rest} others"
