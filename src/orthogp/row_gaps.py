r"""Where rows are missing, as a function of place.

Around x, with Gaussian weights g of bandwidth h along each column,

    z(x) = 1 − Σ_n g(x − x_n) / (ρ ∫_box g(x − u) du),      0 ≤ z ≤ 1

is the share of the neighbourhood without rows: ρ is the density where rows are plenty, and what
lies beyond the box around the rows does not count. The sum is a Fourier series: the sums of the
rows on a lattice times the transform of g. A row does not count as its own neighbour, so that z
means the same at the rows as between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from orthogp.errors import InputError
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import evaluate_series

#: Bandwidths to choose from, in units of the rows' typical distance.
BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)
# Of the densities at the rows, the one that counts as plenty.
_PLENTY = 0.9
# Gaussians end so many bandwidths away, and their transforms at so many over the bandwidth.
_REACH, _HIGHEST = 6.0, 4.5


class RowGaps:
    """The share of the neighbourhood without rows, in several bandwidths to choose from.

    Parameters
    ----------
    bandwidths : sequence of float
        In units of the rows' typical distance along each column, its extent divided by the d-th
        root of the number of places with rows.
    """

    def __init__(self, bandwidths: Sequence[float] = BANDWIDTHS) -> None:
        values = np.atleast_1d(np.asarray(bandwidths, dtype=np.float64))
        if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values) & (values > 0)):
            raise InputError(f"bandwidths must be positive numbers, got {bandwidths}.")
        self.bandwidths = tuple(values.tolist())

    def of(self, X: ArrayLike) -> list[GapShare]:
        """Return the share around rows X (n, d), for each bandwidth."""
        X = np.asarray(X, dtype=np.float64)
        extent = np.ptp(X, axis=0)
        if np.any(extent == 0):
            raise InputError(
                "Gaps between rows need columns that vary: column "
                f"{int(np.flatnonzero(extent == 0)[0])} is constant."
            )
        places = len(np.unique(X, axis=0))
        typical = extent / places ** (1 / X.shape[1])
        return [GapShare(X, bandwidth * typical) for bandwidth in self.bandwidths]


class GapShare:
    """The share of the neighbourhood without rows.

    Parameters
    ----------
    X : (n, d)
        The rows.
    bandwidth : (d,)
        H, in the units of X.
    """

    def __init__(self, X: NDArray[np.float64], bandwidth: NDArray[np.float64]) -> None:
        self.bandwidth = np.asarray(bandwidth, dtype=np.float64)
        self._lower, self._upper = X.min(axis=0), X.max(axis=0)
        period = self._upper - self._lower + _REACH * self.bandwidth
        # Points are summed at twice the frequencies that targets are.
        extent = np.ceil(_HIGHEST / self.bandwidth * period / (4 * np.pi)).astype(np.int64)
        self._lattice = FrequencyLattice.for_domain(
            self._lower, self._upper, period=period, extent=extent
        )
        sums = FourierStatistics.from_data(self._lattice, X, np.zeros(len(X))).point_sums
        axes = [
            np.arange(-2 * k, 2 * k + 1) * h
            for k, h in zip(extent, self._lattice.spacing, strict=True)
        ]
        taper = np.ones(())
        for omega, h in zip(axes, self.bandwidth, strict=True):
            taper = np.multiply.outer(taper, np.exp(-((omega * h) ** 2) / 2))
        self._series = np.conj(sums) * taper / np.prod(period)
        # What a row adds to the density at its own place.
        self._own = float(np.prod(1 / (np.sqrt(2 * np.pi) * self.bandwidth)))
        self._plenty = float(np.quantile(self._others(X), _PLENTY))

    def __call__(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return z at the rows of X, (n, 1), none of which counts as a row."""
        return self._share(self._density(np.asarray(X, dtype=np.float64)))

    def at_rows(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return z at the rows themselves, (n, 1), each without its own weight."""
        return self._share(self._others(np.asarray(X, dtype=np.float64)))

    def _share(self, density: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(1 - density / self._plenty, 0.0, 1.0)[:, None]

    def _others(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._density(X) - self._own / self._inside(X)

    def _density(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows per volume of the box around each place; those beyond it are moved to it."""
        X = np.clip(X, self._lower, self._upper)
        return evaluate_series(self._series[None], self._lattice, X)[:, 0] / self._inside(X)

    def _inside(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how much of the weights around each place lies in the box."""
        X = np.clip(X, self._lower, self._upper)
        ends = [ndtr((edge - X) / self.bandwidth) for edge in (self._lower, self._upper)]
        return np.prod(ends[1] - ends[0], axis=1)
