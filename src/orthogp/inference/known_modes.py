r"""The modes of a lattice whose sums are known, and what lies beyond some of them at the rows.

Of a set of modes that are left out, R their covariance, two numbers bound all that matters: the
largest eigenvalue at the rows, and Σ_n w_n R(x_n, x)² at its largest. The Toeplitz matrix of the
sums is the same for every box of n successive modes, so that its largest eigenvalue Λ serves for
all of them: boxes around index zero, one within the next, and blocks for what is further out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfftn

from orthogp.features import Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import lattice_masses
from orthogp.inference.bounds import residual_norm
from orthogp.inference.fourier_series import SeriesBox, SeriesGrid, fast_size
from orthogp.kernels import RBF, Kernel, Matern, Matern12, Matern32, Matern52, RationalQuadratic
from orthogp.statistics import FourierStatistics, FrequencyLattice

# The largest number of modes along a column of a block, by number of columns.
_BLOCKS = {1: 2**14, 2: 128, 3: 16}
# The number of grid points for each frequency of a function whose maximum is looked for, by number
# of columns.
_OVERSAMPLING = {1: 8.0, 2: 4.0, 3: 2.5}
# The growth from one box around index zero to the next, by number of columns.
_GROWTH = {1: 1.25, 2: 1.5, 3: 2.0}
# Kernels whose spectral density decreases along every axis.
_DECREASING = (RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic)


def modes_within(lattice: FrequencyLattice, reach: NDArray[np.int64], mean: MeanPrior) -> Lattice:
    """Return the features of all modes |t_d| ≤ reach_d of a lattice."""
    indices = lattice.half_indices()
    return Lattice(lattice, indices[np.all(np.abs(indices) <= reach, axis=1)], mean)


class KnownModes:
    """The modes of a lattice up to some index, with the mean function, as one linear model.

    Vectors hold whitened coefficients in the order of `Lattice` features.

    Parameters
    ----------
    features : Lattice
        The features, which are among the modes.
    least : (d,)
        Indices that the modes reach at least, if the lattice's extent allows it.
    """

    def __init__(
        self,
        features: Lattice,
        kernel: Kernel,
        statistics: FourierStatistics,
        least: NDArray[np.int64],
    ) -> None:
        lattice = statistics.lattice
        #: The modes along the columns of a block; a whole number of blocks ends at the reach.
        self.block, reach = _blocks(least, lattice.extent)
        reach = np.maximum(reach, np.abs(features.indices).max(axis=0))
        self.statistics = statistics
        self.reach = reach
        self.wide = modes_within(lattice, reach, features.mean)
        indices = self.wide.indices
        self.masses = self.wide.masses(kernel)
        self.amplitudes = np.sqrt(self.wide.squared_amplitudes(self.masses))
        #: The prior variance of the modes beyond these.
        self.beyond = max(prior_variance(kernel) - float(self.masses @ self.wide.multiplicity), 0.0)
        self._at = tuple((indices + lattice.extent).T)
        box = SeriesBox(reach)
        position = np.zeros(2 * box.middle + 1, dtype=np.int64)
        position[box.middle + box.linear(indices)] = np.arange(len(indices))
        #: Where the features' cosines, and all their columns, stand among those of the modes.
        self.chosen = position[box.middle + box.linear(features.indices)]
        s, q = len(indices), features.num_slopes
        self.places = np.concatenate(
            [self.chosen, s - 1 + self.chosen[1:], np.arange(2 * s - 1, 2 * s - 1 + q)]
        )

    @cached_property
    def projection(self) -> NDArray[np.float64]:
        """ΦᵀWy, (m, p)."""
        targets = self.statistics.target_sums[(slice(None), *self._at)]
        return self.amplitudes[:, None] * _real(targets, self.statistics.covariate_targets)

    @cached_property
    def largest_density(self) -> float:
        """Λ of the blocks."""
        return largest_density(self.statistics, self.block)

    @cached_property
    def grid(self) -> SeriesGrid:
        """The grid on which products of these modes are exact."""
        return SeriesGrid(self.wide.indices)

    @cached_property
    def _density(self) -> NDArray[np.float64]:
        return self.grid.density(self.statistics)

    @cached_property
    def _covariates(self) -> NDArray[np.complex128]:
        return self.statistics.covariate_sums[(slice(None), *self._at)]

    def gram_times(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ΦᵀWΦ v for each column, (m, p)."""
        s = len(self.wide.indices)
        scaled = self.amplitudes[:, None] * vectors
        waves = scaled[:s].astype(np.complex128)
        waves[1:] -= 1j * scaled[s : 2 * s - 1]
        slopes = scaled[2 * s - 1 :]
        sums = self.grid.sums(self.grid.values(waves.T) * self._density)
        totals = np.empty((0, vectors.shape[1]))
        if len(slopes):
            sums = sums + slopes.T @ self._covariates
            totals = (self._covariates @ waves).real + self.statistics.covariate_gram @ slopes
        return self.amplitudes[:, None] * _real(sums, totals)


def _blocks(
    least: NDArray[np.int64], extent: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the size of blocks and the largest index they end at, within the extent."""
    number = -(-(least + 1) // _BLOCKS[len(extent)])
    # The sums of twice a block's modes must be known.
    block = np.minimum(-(-(least + 1) // number), np.minimum((extent + 1) // number, extent))
    block = np.maximum(block, 1)
    return block, block * number - 1


def _real(sums: NDArray[np.complex128], slopes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums with e^{iω·x}, (p, s), as those with cosines, sines and covariates, (m, p)."""
    return np.concatenate([sums.real.T, sums.imag.T[1:], slopes], axis=0)


def largest_density(statistics: FourierStatistics, block: NDArray[np.int64]) -> float:
    r"""Return Λ ≥ λ_max of the Toeplitz matrix of the point sums on every box of `block` modes.

    Σ_n w_n |p(x_n)|² = ∫ |p|² σ for a polynomial p of n successive modes and every σ whose
    coefficients are the data's up to n, so that Λ = max σ. De la Vallée Poussin's σ has
    coefficients that fall from the data's at n to zero at 2n.
    """
    coefficients = _point_sums(statistics, 2 * block)
    for d, n in enumerate(block):
        taper = np.clip(2 - np.abs(np.arange(-2 * n, 2 * n + 1)) / n, 0.0, 1.0)
        coefficients = coefficients * taper.reshape(-1, *(1,) * (len(block) - 1 - d))
    return _largest_value(coefficients)


def _point_sums(statistics: FourierStatistics, reach: NDArray[np.int64]) -> NDArray[np.complex128]:
    """Return the point sums with |t_d| ≤ reach_d."""
    middle = 2 * statistics.lattice.extent
    return statistics.point_sums[
        tuple(slice(int(m - n), int(m + n + 1)) for m, n in zip(middle, reach, strict=True))
    ]


def _largest_value(coefficients: NDArray[np.complex128]) -> float:
    """Return a bound on the largest |Σ_t c_t e^{iθ_t}|, real, for coefficients from −n to n."""
    reach = (np.array(coefficients.shape) - 1) // 2
    # One point where nothing varies along a column.
    sizes = [fast_size(max(int(np.ceil(2 * n * _OVERSAMPLING[len(reach)])), 1)) for n in reach]
    half = np.zeros((*sizes[:-1], sizes[-1] // 2 + 1), dtype=np.complex128)
    at = [np.mod(np.arange(-n, n + 1), size) for n, size in zip(reach, sizes, strict=True)]
    at[-1] = np.arange(reach[-1] + 1)
    half[np.ix_(*at)] = coefficients[..., reach[-1] :]
    values = np.asarray(irfftn(half, s=sizes, norm="forward"))
    # A polynomial of degree n exceeds its values at G equidistant points by 1/cos(πn/G).
    return float(np.abs(values).max() / np.prod(np.cos(np.pi * reach / np.array(sizes))))


class Unseen(NamedTuple):
    """What features leave out, at the rows.

    Attributes
    ----------
    norm : float
        t ≥ λ_max(R), R = K − Q.
    cross : float
        A bound on Σ_n w_n R(x_n, x)² for every x.
    variance : float
        R(x, x).
    """

    norm: float
    cross: float
    variance: float

    @classmethod
    def total(cls, parts: Iterable[Unseen]) -> Unseen:
        """Return what several components leave out together."""
        norms, crosses, variances = np.array(list(parts)).T
        return cls(float(norms.sum()), float(np.sqrt(crosses).sum() ** 2), float(variances.sum()))


def unseen_beyond(modes: KnownModes, kernel: Kernel) -> Unseen:
    """Return bounds on the modes beyond the known ones."""
    norm = _norm_beyond(modes, kernel)
    return Unseen(norm, norm * modes.beyond, modes.beyond)


def _norm_beyond(modes: KnownModes, kernel: Kernel) -> float:
    by_trace = modes.statistics.count * modes.beyond
    decreasing = all(isinstance(part, _DECREASING) for part, _ in kernel.primitives())
    block = modes.block
    if not decreasing or np.any((modes.reach + 1) % block):
        return by_trace
    # Boxes of `block` modes, their inner corners at multiples of it, tile the modes beyond (twice
    # where an index is zero). Masses in a box are at most that at its inner corner, and so at most
    # the mean over the next box inwards, where that one lies beyond too.
    edges = [np.arange(0, int(k) + 2, int(n)) for k, n in zip(modes.reach, block, strict=True)]
    corners = np.stack(np.meshgrid(*edges, indexing="ij"), axis=-1).reshape(-1, len(block))
    corners = corners[np.any(corners > modes.reach, axis=1)]
    lattice, num_dims = modes.statistics.lattice, len(block)
    total = 2**num_dims * float(lattice_masses(kernel, lattice, corners).sum())
    total += num_dims * 2 ** (num_dims - 1) * modes.beyond / float(np.prod(block))
    return min(by_trace, modes.largest_density * total)


def unseen(modes: KnownModes, beyond: Unseen) -> Unseen:
    """Return bounds on what the features leave out, given those on the modes beyond."""
    statistics = modes.statistics
    chosen = np.zeros(len(modes.masses), dtype=bool)
    chosen[modes.chosen] = True
    indices, masses = modes.wide.indices[~chosen], modes.masses[~chosen]
    if not masses.any():
        return beyond
    # Σ_n w_n R(x_n − x)² as a series in x, R known by its series.
    grid, left = modes.grid, np.where(chosen, 0.0, 2 * modes.masses).astype(np.complex128)
    squares = grid.coefficients(grid.values(left[None])[0] ** 2)
    largest = _largest_value(squares * _point_sums(statistics, 2 * grid.reach))
    cross = (np.sqrt(largest) + np.sqrt(beyond.cross)) ** 2
    norm = min(
        2 * statistics.count * float(masses.sum()),
        residual_norm(SeriesBox(statistics.lattice.extent), indices, masses, statistics),
        _by_blocks(modes, indices, masses),
        _by_boxes(modes, indices, masses),
    )
    return Unseen(norm + beyond.norm, cross, 2 * float(masses.sum()) + beyond.variance)


def _by_blocks(modes: KnownModes, indices: NDArray[np.int64], masses: NDArray[np.float64]) -> float:
    """Return a bound on λ_max of modes, those of t and of −t apart: Σ over blocks of Λ max mass."""
    if not len(masses):
        return 0.0
    _, cell = np.unique(np.floor_divide(indices, modes.block), axis=0, return_inverse=True)
    largest = np.zeros(cell.max() + 1)
    np.maximum.at(largest, cell.ravel(), masses)
    return 2 * modes.largest_density * float(largest.sum())


def _by_boxes(modes: KnownModes, indices: NDArray[np.int64], masses: NDArray[np.float64]) -> float:
    r"""Return a bound on λ_max of modes by boxes around index zero, each within the next.

    With a_j the largest mass outside of box j − 1, masses are at most Σ_j (a_j − a_{j+1}) over the
    boxes that hold them, and λ_max ≤ Σ_j (a_j − a_{j+1}) Λ_j.
    """
    statistics, growth = modes.statistics, _GROWTH[indices.shape[1]]
    # The sums of twice a box's modes must be known.
    most = (statistics.lattice.extent - 1) // 2
    reach = np.abs(modes.wide.indices[modes.chosen]).max(axis=0)
    outside = np.ones(len(masses), dtype=bool)
    total = 0.0
    while outside.any() and np.any(reach < most):
        reach = np.minimum(np.ceil(growth * (reach + 1)).astype(np.int64), most)
        here = outside & np.all(np.abs(indices) <= reach, axis=1)
        largest = float(masses[outside].max())
        outside &= ~here
        last = not outside.any() or not np.any(reach < most)
        step = largest - (0.0 if last else float(masses[outside].max()))
        if here.any() and step > 0:
            total += step * largest_density(statistics, 2 * reach + 1)
    return total + _by_blocks(modes, indices[outside], masses[outside])
