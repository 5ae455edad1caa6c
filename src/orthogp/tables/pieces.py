"""What is read of files, and in which pieces: small records that any process can be given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.tables.times import TimeScale


class Piece(NamedTuple):
    """A stretch of one file: a unit of work.

    Attributes
    ----------
    path : str
    label : str
        What the file is called in messages.
    kind : {"parquet", "text"}
    begin, end : int
        Row groups of a Parquet file, bytes of a text file (`end` -1: to its end).
    skip : int
        So many rows of the first row group have been read before.
    line : int
        So many lines of the text file stand before `begin`; -1 if they were not counted.
    """

    path: str
    label: str
    kind: Literal["parquet", "text"]
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
    """What became of the rows that were met: used, lacking a value, or unreadable.

    `first_bad` says where the first unreadable one is.
    """

    used: int = 0
    missing: int = 0
    bad: int = 0
    first_bad: str | None = None

    @property
    def met(self) -> int:
        """All of them."""
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
        What of the piece is still to be read.
    """

    columns: NDArray[np.float64]
    tally: Tally
    rest: Piece


def without_missing(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows (columns of the array) that hold no NaN."""
    # A sum is NaN if an entry is, and costs less than looking at each.
    with np.errstate(invalid="ignore", over="ignore"):
        suspicious = ~np.isfinite(columns.sum(axis=1))
    if not suspicious.any():
        return columns
    missing = np.isnan(columns[suspicious]).any(axis=0)
    return columns[:, ~missing] if missing.any() else columns


def has_arrow() -> bool:
    """Return whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def require_arrow(what: str) -> None:
    """Raise `InputError` that says how to install pyarrow, unless it is there."""
    if not has_arrow():
        raise InputError(f'{what} needs pyarrow: install it with pip install "orthogp[files]".')
