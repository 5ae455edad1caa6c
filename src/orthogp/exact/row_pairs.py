"""Rows of different inputs, and all pairs of them in the order of a matrix's triangle."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The largest number of bytes of lags that are kept from one evaluation to the next.
_KEPT = 2**26
# The largest number of rows for which the places of all pairs are looked up: a call for each row
# would take most of the time.
_FEW_ROWS = 512


class MergedRows(NamedTuple):
    r"""Rows of different inputs, each the weighted mean of those it was made of.

    Rows of weights w_j at one input, with W = Σ w_j and ȳ = Σ w_j y_j/W, have

        ∏_j N(y_j | f, σ²/w_j) ∝ N(ȳ | f, σ²/W) (2πσ²)^{−(n−1)/2} exp(−S/2σ²)
        S = Σ_j w_j (y_j − ȳ)²

    n being their number (Σ w_j if weights count repeated rows): exact for Gaussian noise.

    Attributes
    ----------
    X, y, weights : (n, d), (n, p), (n,)
    surplus : float
        Σ (n − 1), the number of Gaussian factors that merging took out.
    square : float
        Σ S, over all targets.
    constant : float
        The part of log p(y) that is the same for all hyperparameters.
    """

    X: Array
    y: Array
    weights: Array
    surplus: float
    square: float
    constant: float

    def beside(self, noise_variance: float) -> tuple[float, float]:
        """Return the log density of what merging took out, and its derivative in log σ²."""
        p = self.y.shape[1]
        value = -0.5 * (
            p * self.surplus * np.log(2 * np.pi * noise_variance) + self.square / noise_variance
        )
        slope = -0.5 * (p * self.surplus - self.square / noise_variance)
        return float(value) + self.constant, float(slope)


def merge_rows(X: Array, y: Array, weights: Array | None, *, repeats: bool) -> MergedRows:
    """Return the rows with equal inputs merged; rows of weight zero are left out."""
    X = np.asarray(X, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights is not None and not np.all(w > 0):
        X, y, w = X[w > 0], y[w > 0], w[w > 0]
    number = float(w.sum()) if repeats else float(len(w))
    logs = 0.0 if repeats else float(np.log(w).sum())
    square, group = 0.0, equal_rows(X)
    if group is not None:
        size, inputs = int(group.max()) + 1, X
        total = np.asarray(np.bincount(group, w, size), dtype=np.float64)
        means = np.stack([np.bincount(group, w * column, size) for column in y.T], axis=1)
        means /= total[:, None]
        square = float(np.sum(w[:, None] * (y - means[group]) ** 2))
        X = np.empty((size, inputs.shape[1]))
        X[group] = inputs
        y, w = means, total
    constant = 0.5 * y.shape[1] * (logs - float(np.log(w).sum()))
    return MergedRows(X, y, w, surplus=number - len(w), square=square, constant=constant)


def equal_rows(X: Array) -> NDArray[np.int64] | None:
    """Return for each row the number of its group of equal rows, or `None` if all differ."""
    # Equal rows have equal products with any vector. To sort numbers takes a fifth of the time of
    # sorting indices, and tells most often that all differ.
    mixed = X @ np.random.default_rng(0).uniform(1.0, 2.0, X.shape[1])
    ranked = np.sort(mixed)
    close = np.diff(ranked) <= 1e-14 * np.abs(ranked[1:])
    if not close.any():
        return None
    order = np.argsort(mixed, kind="stable")
    where = np.unique(np.concatenate([order[1:][close], order[:-1][close]]))
    _, inverse = np.unique(X[where], axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    if inverse.max() + 1 == len(where):
        return None
    label = np.arange(len(X))
    first = np.full(inverse.max() + 1, len(X))
    np.minimum.at(first, inverse, where)
    label[where] = first[inverse]
    return np.unique(label, return_inverse=True)[1].reshape(-1)


class RowPairs:
    """The pairs i < j of the rows of X (n, d), row by row, and behind them a row with itself.

    In this order the pairs are the lower triangle, column by column, of a matrix as LAPACK has it.
    The last pair stands for all of the diagonal: a stationary kernel has one value there.
    """

    def __init__(self, X: Array) -> None:
        self._columns = np.ascontiguousarray(X.T)
        self.num_rows = len(X)
        first = np.arange(len(X))
        # Where each row's pairs begin, and after the last row's the pair of the diagonal.
        self._starts = first * (2 * len(X) - first - 1) // 2
        self.count = len(X) * (len(X) - 1) // 2 + 1

    def lags(self, part: slice) -> Array:
        """Return x_j − x_i for some of the pairs, (d, c)."""
        return self._all_lags[:, part] if self._kept else self._make_lags(part)

    def squares_of_lags(self, part: slice) -> Array:
        """Return (x_jd − x_id)² for some of the pairs, (d, c)."""
        return self._all_squares[:, part] if self._kept else self._make_lags(part) ** 2

    def fill(self, values: Array, matrix: Array) -> None:
        """Write the pairs' values to the lower triangle of a matrix, column by column."""
        transposed = matrix.T
        if self.num_rows <= _FEW_ROWS:
            transposed.reshape(-1)[self._places] = values[:-1]
        else:
            for i, start in enumerate(self._starts.tolist()):
                transposed[i, i + 1 :] = values[start : start + self.num_rows - i - 1]
        np.einsum("ii->i", matrix)[:] = values[-1]

    def gather(self, matrix: Array) -> Array:
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

    def products(self, values: Array) -> Array:
        """Return v_i v_j for every pair, and 1 for the last."""
        later = [values[i] * values[i + 1 :] for i in range(self.num_rows)]
        return np.concatenate([*later, [1.0]])

    @property
    def _kept(self) -> bool:
        return 8 * self.count * len(self._columns) <= _KEPT

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        columns, rows = np.triu_indices(self.num_rows, 1)
        return columns * self.num_rows + rows

    @cached_property
    def _all_lags(self) -> Array:
        return self._make_lags(slice(0, self.count))

    @cached_property
    def _all_squares(self) -> Array:
        return self._make_lags(slice(0, self.count)) ** 2

    def _make_lags(self, part: slice) -> Array:
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


class CrossPairs:
    """The pairs of a row of A (n, d) with a row of B (m, d), those of the first row of A first."""

    def __init__(self, A: Array, B: Array) -> None:
        self._A, self._B = A, B
        self.count = len(A) * len(B)

    def lags(self, part: slice) -> Array:
        """Return a_i − b_j for some of the pairs, (d, c)."""
        i, j = np.divmod(np.arange(part.start, part.stop), len(self._B))
        return (self._A[i] - self._B[j]).T

    def squares_of_lags(self, part: slice) -> Array:
        """Return (a_id − b_jd)² for some of the pairs, (d, c)."""
        return self.lags(part) ** 2
