"""Rows, the boxes around them, and the units of their targets: one type for each."""

from __future__ import annotations

import warnings
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, OutOfDomainWarning, check_finite

#: The largest number of columns that act jointly on a lattice.
MAX_DIMS = 3


class Domain(NamedTuple):
    """A box: around rows, or where predictions are the posterior's."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    @classmethod
    def around(cls, X: NDArray) -> Self:
        """Return the smallest box that holds the rows of X."""
        return cls(X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64))

    def with_box(self, other: Domain | None) -> Self:
        """Return the smallest box that holds the present and another one."""
        if other is None:
            return self
        return type(self)(np.minimum(self.lower, other.lower), np.maximum(self.upper, other.upper))

    @property
    def centre(self) -> NDArray[np.float64]:
        """The middle of the box, (d,)."""
        return (self.lower + self.upper) / 2

    @property
    def width(self) -> NDArray[np.float64]:
        """The extent in each column, one where the column is constant, (d,)."""
        width = self.upper - self.lower
        return np.where(width > 0, width, 1.0)

    def outside(self, X: NDArray) -> NDArray[np.bool_] | None:
        """Return which rows lie outside, or `None` if none does."""
        # Covariates, which stand behind the inputs, have no box.
        X = X[:, : len(self.lower)]
        if len(X) == 0 or (
            np.all(X.min(axis=0) >= self.lower) and np.all(X.max(axis=0) <= self.upper)
        ):
            return None
        return np.any((self.lower > X) | (self.upper < X), axis=1)


class Rows(NamedTuple):
    """Validated rows: X (n, d + q), y (n, p), weights (n,) or None, and whether y was a vector.

    X has the d inputs that kernels act on and, behind them, q covariates of the mean function.
    """

    X: NDArray
    y: NDArray
    weights: NDArray[np.float64] | None = None
    one_target: bool = True
    num_covariates: int = 0

    @property
    def num_inputs(self) -> int:
        """The number d of columns that kernels may act on."""
        return self.X.shape[1] - self.num_covariates

    @property
    def inputs(self) -> NDArray:
        """The columns that kernels may act on, (n, d)."""
        return self.X[:, : self.num_inputs] if self.num_covariates else self.X

    @property
    def covariates(self) -> NDArray:
        """The columns of the mean function alone, (n, q)."""
        return self.X[:, self.num_inputs :]

    def on(self, columns: NDArray[np.int64]) -> Self:
        """Return the rows with some of the input columns only, and all covariates."""
        if len(columns) == self.num_inputs:
            return self
        return self.with_inputs(self.X[:, columns])

    def with_inputs(self, inputs: NDArray) -> Self:
        """Return the rows with other inputs, before the same covariates."""
        if not self.num_covariates:
            return self._replace(X=inputs)
        return self._replace(X=np.concatenate([inputs, self.covariates], axis=1))

    def part(self, chosen: NDArray) -> Self:
        """Return some of the rows, by their numbers or by whether each is chosen."""
        weights = None if self.weights is None else self.weights[chosen]
        return self._replace(X=self.X[chosen], y=self.y[chosen], weights=weights)

    def standardised(self, units: Units) -> Self:
        """Return the rows with standardised targets."""
        return self._replace(y=(self.y - units.offset) / units.scale)

    def merged(self) -> Self:
        """Return the rows of positive weight sorted, equal ones as one of their total weight."""
        weights = np.ones(len(self.X)) if self.weights is None else self.weights
        used, num_columns = weights > 0, self.X.shape[1]
        table = np.concatenate([self.X, self.y], axis=1, dtype=np.float64)[used]
        distinct, which = np.unique(table, axis=0, return_inverse=True)
        totals = np.bincount(which.ravel(), weights[used])
        return self._replace(
            X=distinct[:, :num_columns], y=distinct[:, num_columns:], weights=totals
        )

    def total(self, values: NDArray[np.float64]) -> float:
        """Return Σ w_n v_n of one value for each row."""
        return float(values.sum() if self.weights is None else self.weights @ values)

    @property
    def total_weight(self) -> float:
        """Σ w_n, the number of rows if they have no weights."""
        return float(len(self.X) if self.weights is None else self.weights.sum())

    @property
    def used(self) -> NDArray:
        """The inputs of rows with positive weight."""
        return self.inputs if self.weights is None else self.inputs[self.weights > 0]


class Units(NamedTuple):
    """Targets are offset + scale · (standardised target)."""

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]
    constant: bool


def warn_outside(num_outside: int, num_rows: int, domain: Domain) -> None:
    """Warn that predictions outside the covered domain are the prior's."""
    warnings.warn(
        f"{num_outside} of {num_rows} points lie outside the covered domain {show(domain)}; "
        "there the prediction is the prior. Fit with a larger `domain` to extrapolate further.",
        OutOfDomainWarning,
        stacklevel=4,
    )


def show(domain: Domain) -> str:
    """Return the box as text."""
    return " × ".join(
        f"[{low:.6g}, {high:.6g}]" for low, high in zip(domain.lower, domain.upper, strict=True)
    )


def require_inside(domain: Domain, X: NDArray) -> None:
    """Raise `InputError` unless all rows lie in the covered domain."""
    outside = domain.outside(X)
    if outside is not None:
        raise InputError(
            f"{int(outside.sum())} of {len(X)} points lie outside the covered domain "
            f"{show(domain)}: fit with a larger `domain`."
        )


def rows_to_sum(X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Rows:
    """Return rows as arrays that can be summed."""
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim == 1:
        X = X[:, None]
    if y.ndim not in (1, 2) or len(y) != len(X):
        raise InputError(
            f"y must have one value or one row per row of X ({len(X)}), got shape {y.shape}."
        )
    if len(X) == 0:
        raise InputError("The data are empty: at least one row is needed.")
    check_finite(X, "X")
    if sample_weight is None:
        return Rows(X, y.reshape(len(y), -1))
    weights = np.asarray(sample_weight)
    if weights.shape != (len(X),):
        raise InputError(
            f"sample_weight must have one value per row ({len(X)}), got shape {weights.shape}."
        )
    check_finite(weights, "sample_weight")
    if (negative := np.count_nonzero(weights < 0)) > 0:
        raise InputError(f"sample_weight must be ≥ 0, but {negative} values are negative.")
    return Rows(X, y.reshape(len(y), -1), weights)
