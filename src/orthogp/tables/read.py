"""One table at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.tables.source import open_source
from orthogp.tables.times import TimeScale


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
    times : tuple of TimeScale or None
        For each input, what its numbers mean if it holds date-times.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    inputs: tuple[str, ...]
    target: str
    num_dropped: int
    times: tuple[TimeScale | None, ...] = ()


def read_table(
    path: str | PathLike[str], target: str, inputs: Sequence[str] | None = None
) -> Table:
    """Return columns of a CSV, TSV or Parquet file, a folder of such, or a pattern.

    Rows with an empty cell (or NA, NaN, null) in the columns asked for are dropped and counted.
    Other columns may hold anything.

    Parameters
    ----------
    path : path
        Text has column names in its first line, is separated by commas, semicolons or tabs,
        whichever that line has most of, and compressed if its name ends in ".gz".
    target : str
        The column of y.
    inputs : sequence of str, optional
        The columns of X; all others than the target if those are at most three.
    """
    source, _ = open_source([str(path)], [target], inputs).scaled()
    rows, tally = source.read()
    reading = source.reading
    return Table(rows.X, rows.y[:, 0], reading.inputs, target, tally.missing, reading.times)
