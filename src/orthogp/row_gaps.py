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
from scipy.spatial import KDTree
from scipy.special import ndtr

from orthogp.errors import InputError, check_finite
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import evaluate_series

#: Bandwidths to choose from, in units of the rows' typical distance.
BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)
# Of the densities at the rows, the one that counts as plenty.
_PLENTY = 0.9
# Gaussians end so many bandwidths away, and their transforms at so many over the bandwidth.
_REACH, _HIGHEST = 6.0, 4.5
# Where plenty is less than this part of a row's own weight, rows have no neighbours; and shares
# that vary by less say nothing.
_ALONE, _ALIKE = 1e-2, 1e-3


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

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"RowGaps({self.bandwidths})"

    def of(self, X: ArrayLike) -> list[GapShare]:
        """Return the share around rows X (n, d), for each bandwidth that shows gaps."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or not 1 <= X.shape[1] <= MAX_DIMS:
            raise InputError(
                f"Gaps are looked for in rows of up to {MAX_DIMS} columns, got shape {X.shape}."
            )
        check_finite(X, "X")
        extent = np.ptp(X, axis=0)
        if np.any(extent == 0):
            raise InputError(
                "Gaps between rows need columns that vary: column "
                f"{int(np.flatnonzero(extent == 0)[0])} is constant."
            )
        tree = KDTree(X)
        typical = extent / len(np.unique(X, axis=0)) ** (1 / X.shape[1])
        shares = [GapShare(tree, bandwidth * typical) for bandwidth in self.bandwidths]
        telling = [own for own in shares if own.plenty > _ALONE and np.std(own(X)) > _ALIKE]
        if not telling:
            raise InputError(
                "The rows have no gaps that their neighbourhoods would show: leave out the drift, "
                "or give other bandwidths."
            )
        return telling


class GapShare:
    """The share of the neighbourhood without rows.

    Parameters
    ----------
    rows : KDTree
        Of the rows, (n, d).
    bandwidth : (d,)
        H, in the units of X.

    Attributes
    ----------
    plenty : float
        ρ, relative to what a row adds at its own place.
    """

    def __init__(self, rows: KDTree, bandwidth: NDArray[np.float64]) -> None:
        X = np.asarray(rows.data)
        self.bandwidth = np.asarray(bandwidth, dtype=np.float64)
        self._rows = rows
        self._lower, self._upper = X.min(axis=0), X.max(axis=0)
        period = self._upper - self._lower + _REACH * self.bandwidth
        # Points are summed at twice the frequencies that targets are.
        extent = np.ceil(_HIGHEST / self.bandwidth * period / (4 * np.pi)).astype(np.int64)
        self._lattice = FrequencyLattice.for_domain(
            self._lower, self._upper, period=period, extent=extent
        )
        sums = FourierStatistics.from_data(self._lattice, X, np.zeros(len(X))).point_sums
        # In units of a row at its own place.
        series = np.conj(sums) * np.prod(np.sqrt(2 * np.pi) * self.bandwidth / period)
        for axis, k in enumerate(extent):
            omega = np.arange(-2 * k, 2 * k + 1) * self._lattice.spacing[axis]
            taper = np.exp(-((omega * self.bandwidth[axis]) ** 2) / 2)
            series = series * taper.reshape(-1, *(1,) * (len(extent) - 1 - axis))
        self._series = series
        self.plenty = float(np.quantile(self._density(X), _PLENTY))

    def __call__(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return z at the rows of X, (n, 1)."""
        density = self._density(np.asarray(X, dtype=np.float64))
        return np.clip(1 - density / self.plenty, 0.0, 1.0)[:, None]

    def _density(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return other rows per volume of the box around each place.

        Places beyond the box are moved to it. Where a row lies, it is taken out once.
        """
        own = np.asarray(self._rows.query(X)[0]) == 0
        X = np.clip(X, self._lower, self._upper)
        ends = [ndtr((edge - X) / self.bandwidth) for edge in (self._lower, self._upper)]
        total = evaluate_series(self._series[None], self._lattice, X)[:, 0]
        return (total - own) / np.prod(ends[1] - ends[0], axis=1)
