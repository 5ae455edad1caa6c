"""What a factor of the preconditioner's sparse matrix offers, and that of a circle."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray


class Factor(Protocol):
    """A factorised symmetric positive definite matrix."""

    @property
    def log_determinant(self) -> float:
        """The logarithm of the determinant."""
        ...

    def solve(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return M⁻¹ c for each column."""
        ...


class BandedFactor:
    """Cholesky factor of a matrix that couples neighbours on a circle.

    In the order 0, n−1, 1, n−2, … neighbours on the circle are at most two apart, so that a reach
    of J neighbours becomes a band of 2J below the diagonal: time and memory grow with n.
    """

    def __init__(self, matrix: scipy.sparse.csr_array, reach: int) -> None:
        n = len(matrix.indptr) - 1
        order = np.empty(n, dtype=np.int64)
        order[0::2] = np.arange((n + 1) // 2)
        order[1::2] = np.arange(n - 1, (n - 1) // 2, -1)
        self._order = order
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        entries = scipy.sparse.coo_array(matrix)
        row, column = (place[axis] for axis in entries.coords)
        below = row >= column
        band = np.zeros((min(2 * reach, n - 1) + 1, n))
        np.add.at(band, (row[below] - column[below], column[below]), entries.data[below])
        self._chol = scipy.linalg.cholesky_banded(
            band, overwrite_ab=True, lower=True, check_finite=False
        )

    @property
    def log_determinant(self) -> float:
        """The logarithm of the determinant."""
        return 2 * float(np.sum(np.log(self._chol[0])))

    def solve(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return M⁻¹ c for each column, (n, c)."""
        folded = scipy.linalg.cho_solve_banded(
            (self._chol, True), columns[self._order], overwrite_b=True, check_finite=False
        )
        out = np.empty_like(columns)
        out[self._order] = folded
        return out
