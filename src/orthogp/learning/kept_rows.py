"""The rows themselves, for engines that need them: what they keep in place of sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import MeanPrior
from orthogp.inference import Domain
from orthogp.learning.sketches import OFFSET_SD, SLOPE_SD, Sketch, mean_target
from orthogp.rows import Rows, Units


@dataclass(frozen=True)
class RowTotals:
    """What units and summaries need to know of the rows.

    Attributes
    ----------
    rows, count : float
        The number of rows of positive weight, and the sum of their weights.
    target_totals, yy : (p,)
        Σ w y and Σ w y², of targets less the shift.
    """

    rows: float
    count: float
    target_totals: NDArray[np.float64]
    yy: NDArray[np.float64]

    @classmethod
    def of(
        cls, y: NDArray[np.float64], weights: NDArray[np.float64], shift: NDArray[np.float64]
    ) -> Self:
        """Return the totals of rows of positive weight."""
        centred = y - shift
        return cls(float(len(y)), float(weights.sum()), weights @ centred, weights @ centred**2)

    @property
    def num_targets(self) -> int:
        """The number of targets."""
        return len(self.yy)


@dataclass(frozen=True)
class KeptRows(Sketch):
    """All rows seen so far.

    Attributes
    ----------
    statistics : RowTotals
    X, y, weights : (n, d), (n, p), (n,)
        The rows of positive weight.
    """

    statistics: RowTotals  # type: ignore[assignment]

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def keep(cls, rows: Rows, *, mean: str | None, domain: Domain | None) -> Self:
        """Return the rows, with the mean function's prior for them."""
        X, y, weights = _used(rows)
        extent = Domain.around(X).with_box(domain)
        prior = MeanPrior(
            offset_variance=0.0 if mean is None else OFFSET_SD**2,
            slope_variance=SLOPE_SD**2 if mean == "linear" else 0.0,
            origin=extent.centre,
            width=extent.width / 2,
        )
        shift = mean_target(Rows(X, y, weights))
        return cls(RowTotals.of(y, weights, shift), extent, prior, shift, X, y, weights)

    def updated(self, rows: Rows, sign: int, num_threads: int) -> Self:
        """Return the rows with some added (sign 1) or taken out (sign −1)."""
        X, y, weights = _used(rows)
        if sign > 0:
            X, y = np.concatenate([self.X, X]), np.concatenate([self.y, y])
            weights = np.concatenate([self.weights, weights])
        else:
            stay = _without(self, X, y, weights)
            if np.count_nonzero(stay) < 2:
                raise InputError(
                    f"Taking these rows out would leave {np.count_nonzero(stay)}: at least two "
                    "must stay."
                )
            X, y, weights = self.X[stay], self.y[stay], self.weights[stay]
        statistics = RowTotals.of(y, weights, self.shift)
        return replace(
            self,
            statistics=statistics,
            extent=self.extent.with_box(Domain.around(X)),
            X=X,
            y=y,
            weights=weights,
        )

    def sums(self, num_threads: int = 1) -> Sketch:
        """Return the sums of the rows on one lattice, which up to three columns have."""
        sketch = Sketch.begin(
            self.rows,
            mean=self.mean.kind,
            domain=None,
            kernel=None,
            learn=True,
            wrap_tolerance=1e-4,
            num_threads=num_threads,
        )
        return replace(sketch, mean=self.mean)

    @property
    def rows(self) -> Rows:
        """The rows as they came."""
        plain = np.all(self.weights == 1)
        return Rows(self.X, self.y, None if plain else self.weights)

    def standardised_rows(self, units: Units) -> Rows:
        """Return the rows with standardised targets."""
        return self.rows.standardised(units)


def _used(
    rows: Rows,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    X = np.asarray(rows.X, dtype=np.float64)
    y = np.asarray(rows.y, dtype=np.float64)
    if rows.weights is None:
        return X, y, np.ones(len(X))
    there = rows.weights > 0
    return X[there], y[there], rows.weights[there]


def _without(
    kept: KeptRows,
    X: NDArray[np.float64],
    y: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return which rows stay when some are taken out, each of which must be among them."""
    have = np.ascontiguousarray(np.column_stack([kept.X, kept.y, kept.weights]))
    gone = np.ascontiguousarray(np.column_stack([X, y, weights]))
    width = have.shape[1]
    # Each row as one string of bytes: equal rows sort together, repeated ones by their rank.
    as_bytes = np.dtype((np.void, 8 * width))
    _, codes = np.unique(
        np.concatenate([have + 0.0, gone + 0.0]).view(as_bytes).reshape(-1), return_inverse=True
    )
    counts = np.bincount(codes[len(have) :], minlength=codes.max() + 1)
    own = codes[: len(have)]
    order = np.argsort(own, kind="stable")
    ranks = np.empty(len(own), dtype=np.int64)
    starts = np.searchsorted(own[order], own[order])
    ranks[order] = np.arange(len(own)) - starts
    leave = ranks < counts[own]
    missing = int(counts.sum() - np.count_nonzero(leave))
    if missing:
        raise InputError(
            f"{missing} of {len(gone)} rows are not among those that were fitted: forget takes out "
            "rows with the same inputs, targets and weights as they were fitted with."
        )
    return ~leave
