"""The rows of one chunk of a distributed data set: what is made of them where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, check_finite
from orthogp.statistics.lattice import MAX_DIMS, FrequencyLattice

# The lattice of `Sketch` for each number of columns: its period in extents of the data, its
# largest index, and that for fewer rows than `_SMALL_DATA`.
_DEFAULTS = {1: (16.0, 2**16, 2**16), 2: (8.0, 256, 128), 3: (4.0, 24, 20)}
_SMALL_DATA = 20_000


class ChunkRows(NamedTuple):
    """Rows in memory: inputs (n, d), targets (n,) or (n, p), weights (n,) or `None`."""

    X: NDArray
    y: NDArray
    weights: NDArray | None


class ChunkExtent(NamedTuple):
    """The box around rows, (d,) each, and how many they are."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    rows: int


def array_rows(X: NDArray, y: NDArray, weights: NDArray | None = None) -> ChunkRows:
    """Return the rows of arrays."""
    return ChunkRows(X, y, weights)


def table_rows(
    table: NDArray, inputs: list[int], targets: list[int], weights: int | None
) -> ChunkRows:
    """Return the rows of an array that holds all columns."""
    w = None if weights is None else table[:, weights]
    return ChunkRows(table[:, inputs], table[:, targets], w)


def frame_rows(part: Any, inputs: list[str], targets: list[str], weights: str | None) -> ChunkRows:
    """Return the rows of a data frame in memory; NaN for what is missing."""
    X, y = (part[names].to_numpy(dtype=np.float64, na_value=np.nan) for names in (inputs, targets))
    w = None if weights is None else part[weights].to_numpy(dtype=np.float64, na_value=np.nan)
    return ChunkRows(X, y, w)


def chunk_extent(rows: ChunkRows) -> ChunkExtent | None:
    """Return the box around the rows that count, and their number."""
    X = rows.X if rows.weights is None else rows.X[rows.weights > 0]
    if len(X) == 0:
        return None
    check_finite(X, "X")
    return ChunkExtent(X.min(axis=0).astype(float), X.max(axis=0).astype(float), len(X))


def united(first: ChunkExtent, second: ChunkExtent) -> ChunkExtent:
    """Return the box around both boxes."""
    return ChunkExtent(
        np.minimum(first.lower, second.lower),
        np.maximum(first.upper, second.upper),
        first.rows + second.rows,
    )


def chunk_sums(summed: Callable[..., Any], lattice: FrequencyLattice, rows: ChunkRows) -> Any:
    """Return what `summed` makes of the rows on a lattice, `None` of no rows."""
    return summed(lattice, rows.X, rows.y, rows.weights) if len(rows.X) else None


def default_lattice(extent: ChunkExtent | None) -> FrequencyLattice:
    """Return the lattice that a model would choose for data of such an extent."""
    if extent is None:
        raise InputError("The data are empty: at least one row is needed.")
    width = extent.upper - extent.lower
    period, most, few = _DEFAULTS[len(width)]
    return FrequencyLattice.for_domain(
        extent.lower,
        extent.upper,
        period=period * np.where(width > 0, width, 1.0),
        extent=few if extent.rows < _SMALL_DATA else most,
    )


def check_dims(num_columns: int) -> None:
    """Raise `InputError` unless there is a lattice for so many columns."""
    if not 1 <= num_columns <= MAX_DIMS:
        raise InputError(
            f"A lattice has 1 to {MAX_DIMS} dimensions, got {num_columns} input columns: name "
            "those to use in `inputs`."
        )
