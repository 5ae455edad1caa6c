"""Counts, averages and extremes of values in even bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Bins:
    """Which of so many even bins each row falls into; none have nothing to tell."""

    which: NDArray[np.int64]
    number: int

    @classmethod
    def along(cls, x: NDArray, lower: float, upper: float, number: int) -> Bins:
        """Return the bins between lower and upper; rows beyond fall into the outermost."""
        width = (upper - lower) or 1.0
        at = np.floor((np.asarray(x, dtype=np.float64) - lower) * (number / width))
        return cls(np.clip(at, 0, number - 1).astype(np.int64), number)

    def cross(self, other: Bins) -> Bins:
        """Return the cells of a grid, in the order of a matrix with `other` along its columns."""
        return Bins(self.which * other.number + other.which, self.number * other.number)

    @property
    def count(self) -> NDArray[np.float64]:
        """The number of rows in each bin."""
        return self.total(np.ones(len(self.which)))

    def total(self, values: NDArray) -> NDArray[np.float64]:
        """Return the sum of the values in each bin."""
        sums = np.bincount(self.which, weights=values, minlength=self.number)
        return np.asarray(sums, dtype=np.float64)[: self.number]

    def mean(self, values: NDArray) -> NDArray[np.float64]:
        """Return the average of the values in each bin, NaN where there is none."""
        count = self.count
        return np.where(count > 0, self.total(values) / np.maximum(count, 1), np.nan)

    def sd(self, values: NDArray) -> NDArray[np.float64]:
        """Return the root mean square of the values' deviations from each bin's average."""
        average = self.mean(values)
        return np.sqrt(self.mean((values - average[self.which]) ** 2))

    def least(self, values: NDArray) -> NDArray[np.float64]:
        """Return the smallest value in each bin, NaN where there is none."""
        result = np.full(max(self.number, 1), np.inf)
        np.minimum.at(result, self.which, values)
        return np.where(np.isfinite(result), result, np.nan)[: self.number]

    def most(self, values: NDArray) -> NDArray[np.float64]:
        """Return the largest value in each bin, NaN where there is none."""
        return -self.least(-values)
