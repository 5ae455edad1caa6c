"""Triangular factors as arrays of a file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.storage.record import Record


def packed(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lower triangle, row by row."""
    return np.asarray(factor)[np.tril_indices(len(factor))]


def unpacked(record: Record, size: int) -> NDArray[np.float64]:
    """Return the lower triangular matrix that a record holds as `factor`."""
    triangle = record.array("factor", "float", (size * (size + 1) // 2,))
    factor = np.zeros((size, size), order="F")
    factor[np.tril_indices(size)] = triangle
    if np.any(np.diag(factor) <= 0):
        record.fail("must have a positive diagonal", "factor")
    return factor
