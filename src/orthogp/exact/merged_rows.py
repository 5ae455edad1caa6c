"""Rows with equal inputs merged into one, which a Gaussian likelihood does not notice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
        Σ (n − 1), the Gaussian factors that merging took out.
    square : float
        Σ S, over all targets.
    constant : float
        What is left of log p(y), the same for all hyperparameters.
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
    group = equal_rows(X)
    if group is None:
        merged_X, merged_y, merged_w, square = X, y, w, 0.0
    else:
        size = int(group.max()) + 1
        merged_w = np.asarray(np.bincount(group, w, size), dtype=np.float64)
        totals = [np.bincount(group, w * column, size) for column in y.T]
        merged_y = np.stack(totals, axis=1) / merged_w[:, None]
        merged_X = np.empty((size, X.shape[1]))
        merged_X[group] = X
        square = float(np.sum(w[:, None] * (y - merged_y[group]) ** 2))
    log_total = float(np.log(merged_w).sum())
    return MergedRows(
        merged_X,
        merged_y,
        merged_w,
        surplus=number - len(merged_w),
        square=square,
        constant=0.5 * y.shape[1] * (logs - log_total),
    )


def equal_rows(X: Array) -> NDArray[np.int64] | None:
    """Return for each row the number of its group of equal rows, or `None` if all differ."""
    if len(X) < 2:
        return None
    # Equal rows have equal products with any vector: one sort of numbers finds the candidates.
    mixed = X @ np.random.default_rng(0).uniform(1.0, 2.0, X.shape[1])
    order = np.argsort(mixed, kind="stable")
    close = np.diff(mixed[order]) <= 1e-14 * np.abs(mixed[order[1:]])
    if not close.any():
        return None
    suspects = np.zeros(len(X), dtype=bool)
    suspects[order[1:][close]] = suspects[order[:-1][close]] = True
    where = np.flatnonzero(suspects)
    _, inverse = np.unique(X[where], axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    if inverse.max() + 1 == len(where):
        return None
    label = np.arange(len(X))
    first = np.full(inverse.max() + 1, len(X))
    np.minimum.at(first, inverse, where)
    label[where] = first[inverse]
    return np.unique(label, return_inverse=True)[1].reshape(-1)
