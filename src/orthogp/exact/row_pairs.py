"""All pairs of some rows, in the order of a matrix's triangle."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# Bytes of lags that are kept from one evaluation to the next; of more rows they are made anew.
_KEPT = 2**26
# Up to so many rows the places of all pairs are looked up: most of the time would else go into
# calls, one for each row.
_FEW_ROWS = 512


class RowPairs:
    """The pairs i < j of the rows of X, row by row, and behind them a row with itself.

    In this order the pairs are the lower triangle, column by column, of a matrix as LAPACK has it.
    The last pair stands for all of the diagonal: a stationary kernel has one value there.

    Parameters
    ----------
    X : (n, d)
    """

    def __init__(self, X: NDArray[np.float64]) -> None:
        self._columns = np.ascontiguousarray(X.T)
        self.num_rows = len(X)
        first = np.arange(len(X))
        # Where each row's pairs begin, and after the last row's the pair of the diagonal.
        self._starts = first * (2 * len(X) - first - 1) // 2
        self.count = len(X) * (len(X) - 1) // 2 + 1

    def lags(self, part: slice) -> NDArray[np.float64]:
        """Return x_j − x_i for some of the pairs, (d, c)."""
        if self._kept:
            return self._all_lags[:, part]
        return self._make_lags(part)

    def squares_of_lags(self, part: slice) -> NDArray[np.float64]:
        """Return (x_jd − x_id)² for some of the pairs, (d, c)."""
        if self._kept:
            return self._all_squares[:, part]
        lags = self._make_lags(part)
        return np.square(lags, out=lags)

    def fill(self, values: NDArray[np.float64], matrix: NDArray[np.float64]) -> None:
        """Write the pairs' values to the lower triangle of a matrix, column by column."""
        transposed = matrix.T
        if self.num_rows <= _FEW_ROWS:
            transposed.reshape(-1)[self._places] = values[:-1]
        else:
            for i, start in enumerate(self._starts.tolist()):
                transposed[i, i + 1 :] = values[start : start + self.num_rows - i - 1]
        np.einsum("ii->i", matrix)[:] = values[-1]

    def gather(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each pair counts in a sum over all entries of a symmetric matrix.

        Of the matrix, column by column, the lower triangle is read.
        """
        transposed = matrix.T
        values = np.empty(self.count)
        if self.num_rows <= _FEW_ROWS:
            np.take(transposed.reshape(-1), self._places, out=values[:-1])
        else:
            for i, start in enumerate(self._starts.tolist()):
                values[start : start + self.num_rows - i - 1] = transposed[i, i + 1 :]
        values[:-1] *= 2
        values[-1] = np.trace(matrix)
        return values

    def products(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return v_i v_j for every pair, and 1 for the last."""
        products = np.ones(self.count)
        for i, start in enumerate(self._starts.tolist()):
            stop = start + self.num_rows - i - 1
            np.multiply(values[i], values[i + 1 :], out=products[start:stop])
        return products

    @property
    def _kept(self) -> bool:
        return 8 * self.count * len(self._columns) <= _KEPT

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        columns, rows = np.triu_indices(self.num_rows, 1)
        return columns * self.num_rows + rows

    @cached_property
    def _all_lags(self) -> NDArray[np.float64]:
        return self._make_lags(slice(0, self.count))

    @cached_property
    def _all_squares(self) -> NDArray[np.float64]:
        return self._make_lags(slice(0, self.count)) ** 2

    def _make_lags(self, part: slice) -> NDArray[np.float64]:
        lags = np.zeros((len(self._columns), part.stop - part.start))
        first = int(np.searchsorted(self._starts, part.start, side="right")) - 1
        done = part.start
        for i in range(first, self.num_rows - 1):
            j = i + 1 + done - int(self._starts[i])
            stop = min(done + self.num_rows - j, part.stop)
            np.subtract(
                self._columns[:, j : j + stop - done],
                self._columns[:, i : i + 1],
                out=lags[:, done - part.start : stop - part.start],
            )
            done = stop
            if done == part.stop:
                break
        return lags
