r"""How far predictions can be from those of the exact process, point by point, from the sums.

Whiten all modes of the lattice: z ~ N(0, I) a priori, and a posteriori with precision
A = I + ΦᵀWΦ/σ². Let F be the features, whose gram is factorised; H the modes with |t| ≤ K, whose
sums are known; and τ, t ≥ λ_max of what lies beyond H, and beyond F, at the rows.

Means. For any approximate z̃ with residual r = ΦᵀWy/σ² − A z̃, Cauchy's inequality gives

    |m(x) − φ(x)ᵀz̃| = |φ(x)ᵀA⁻¹r| ≤ sd(x) ‖r_H‖ + (√d_τ + sd(x) √τ/σ) ‖r_τ‖

since A ⪰ I, and A⁻¹ = I − Φᵀ(K + σ²I)⁻¹Φ for the residual r_τ beyond H, where the prior variance is
d_τ. In H the residual comes from the sums; beyond, ‖r_τ‖² ≤ τ ‖y − m̃‖²_W/σ⁴. A few conjugate
gradients make r_H small, and the mean that they end with is the one that predicts.

Variances. With R = K − Q what F leaves out, d its variance, α = σ² + t, g = φᵀ(I + A_F/α)⁻¹φ,

    φᵀ(I + A_F/σ²)⁻¹φ ≤ var(x) ≤ g + d + 2√(c g/α),      g ≤ (α/σ²) φᵀ(I + A_F/σ²)⁻¹φ

with c ≥ Σ_n w_n R(x_n, x)², at most d t. Below because knowing what F leaves out can only lower a
variance; above because noise of covariance tI − R, added to the rows, can only raise it.

Evidence. With v = (y − m̃)/σ², yᵀ(K + σ²I)⁻¹y ≥ 2vᵀy − vᵀ(K + σ²I)v, whose error is of second
order, and log|K + σ²I| ≥ log|Q + σ²I|.

The kernel itself. The lattice carries k_P = k₁ + e. Here |e| ≤ δ over the data: with κ = Nδ/σ², and
w the weights of the optimal prediction, ‖w‖² ≤ var/σ², variances differ by at most
δ((1 + √N‖w‖)² − 1), means by at most δ√N‖v‖ + sd κσ‖v‖, and twice the evidence by at most
κ√N + δN‖v‖²(1 + κ)². And (1 − ε)k ⪯ k₁ ⪯ (1 + ε)k as covariances over the data's box: variances
then differ by factors within 1 ± ε. With v₁ = (K₁ + σ²I)⁻¹y and h = (k₁ − k)v₁ the means differ by
h(x) − k(x, X)(K + σ²I)⁻¹h(X), at most ‖h‖ sd(x) with ‖h‖ the norm in the space of k, which is at
most ε√(v₁ᵀKv₁) ≤ ε‖z₁‖/√(1−ε). Twice the evidence differs by at most ε/(1−ε) (ν + ‖z₁‖²), with ν
the trace of K₁(K₁ + σ²I)⁻¹. The number of rows does not enter.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfftn

from orthogp.features import Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import lattice_masses
from orthogp.inference.bounds import unwhiten, whiten
from orthogp.inference.fourier_series import SeriesBox, SeriesGrid, fast_size
from orthogp.inference.residual import residual_norm
from orthogp.kernels import RBF, Kernel, Matern, Matern12, Matern32, Matern52, RationalQuadratic
from orthogp.rows import Domain
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import TOLERANCE

# The largest number of modes along a column of a block, by number of columns.
_BLOCKS = {1: 2**14, 2: 128, 3: 16}
# The number of grid points for each frequency of a function whose maximum is looked for, by number
# of columns.
_OVERSAMPLING = {1: 8.0, 2: 4.0, 3: 2.5}
# The largest number of points along a column at which errors are looked at, by number of columns.
_MOST_POINTS = {1: 2**15, 2: 192, 3: 32}
#: The largest number of conjugate-gradient steps that polish a mean.
MOST_STEPS = 40
# The largest multiple of the features' largest index up to which modes are taken.
_MOST_TIMES = 2**20
# The growth from one box around index zero to the next, by number of columns.
_GROWTH = {1: 1.25, 2: 1.5, 3: 2.0}
# Kernels whose spectral density decreases along every axis.
_DECREASING = (RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic)
# The relative error of sums: some times the transforms' tolerance.
_ROUNDING = 4 * TOLERANCE


class Images(NamedTuple):
    """How far the prior of a lattice is from the kernel over the data.

    Attributes
    ----------
    ratio : float
        ε, by which the covariance of some summands is multiplied at most, or divided.
    deviation : float
        δ, the largest difference of all other summands.
    """

    ratio: float
    deviation: float


class Guarantee(NamedTuple):
    """What bounds the errors of a posterior's means and variances at every point of its box.

    Attributes
    ----------
    left_out : float
        t ≥ λ_max(K − Q).
    deviation : float
        δ of the lattice's prior.
    rounding : float
        The relative error that rounding may cause in variances.
    total_weight : float
        N = Σ w_n.
    residual : (p,)
        ‖r_H‖ + √τ/σ ‖r_τ‖ of each target's mean, with what rounding may hide of it.
    beyond : (p,)
        √d_τ ‖r_τ‖.
    misfit : (p,)
        A bound on ‖y − m‖²_W, m the exact mean.
    cross : float
        A bound on Σ_n w_n R(x_n, x)² for every x, R = K − Q.
    ratio : float
        ε of the lattice's prior.
    shift : (p,)
        ε‖z₁‖/√(1−ε).
    """

    left_out: float
    deviation: float
    rounding: float
    total_weight: float
    residual: NDArray[np.float64]
    beyond: NDArray[np.float64]
    misfit: NDArray[np.float64]
    cross: float = np.inf
    ratio: float = 0.0
    shift: NDArray[np.float64] = np.zeros(1)

    def variances(
        self, variance: NDArray[np.float64], residual: NDArray | float, noise_variance: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the smallest and the largest possible exact variance of f, (n,) each.

        Parameters
        ----------
        variance : (n,)
            As predicted: φᵀB⁻¹φ + d.
        residual : float or (n,)
            d.
        """
        lower = np.maximum(variance - residual, 0.0) * max(1 - self.rounding, 0.0)
        # (I + A/α)⁻¹ ⪯ (α/σ²)(I + A/σ²)⁻¹
        alpha = noise_variance + self.left_out
        g = lower * (alpha / noise_variance)
        cross = np.minimum(residual * self.left_out, self.cross)
        upper = g + residual + 2 * np.sqrt(cross / alpha * g)
        upper = (1 + 3 * self.rounding) * upper
        upper = upper + self._change(upper, noise_variance)
        lower = np.maximum(lower - self._change(upper, noise_variance), 0.0)
        return lower / (1 + self.ratio), upper / (1 - self.ratio)

    def mean_errors(
        self, lower: NDArray[np.float64], upper: NDArray[np.float64], noise_variance: float
    ) -> NDArray[np.float64]:
        """Return the largest errors of means in exact posterior sd, (n, p), given `variances`."""
        # ‖r‖ is relative to the sd under the prior of the lattice.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ratio = np.sqrt(1 + self._change(upper, noise_variance) / lower)
            v = np.sqrt(self.misfit) / noise_variance
            shift = self.deviation * np.sqrt(self.total_weight) * v + self.beyond
            shift = shift / np.sqrt(lower)[:, None]
        kappa = self.deviation * self.total_weight / noise_variance
        errors = ratio[:, None] * self.residual + kappa * np.sqrt(noise_variance) * v
        errors = np.sqrt(1 + self.ratio) * errors + shift + self.shift
        return np.where(np.isnan(errors), np.inf, errors)

    def relative_errors(
        self, variance: NDArray[np.float64], residual: NDArray | float, noise_variance: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the largest errors of means, in exact sd, and of variances, relative to the exact.

        The arguments are those of `variances`.
        """
        lower, upper = self.variances(variance, residual, noise_variance)
        with np.errstate(divide="ignore"):
            errors = np.maximum(variance / lower - 1, 1 - variance / upper)
        return self.mean_errors(lower, upper, noise_variance), errors

    def _change(self, variance: NDArray[np.float64], noise_variance: float) -> NDArray:
        w = np.sqrt(self.total_weight * variance / noise_variance)
        return self.deviation * (2 * w + w**2)


def modes_within(lattice: FrequencyLattice, reach: NDArray[np.int64], mean: MeanPrior) -> Lattice:
    """Return the features of all modes |t_d| ≤ reach_d of a lattice."""
    indices = lattice.half_indices()
    return Lattice(lattice, indices[np.all(np.abs(indices) <= reach, axis=1)], mean)


def points_over(features: Lattice, box: Domain) -> NDArray[np.float64]:
    """Return a grid over a box that resolves the variance of lattice features, (n, d + q).

    Covariates are average, where variances are smallest, and errors largest relative to them.
    """
    reach, period = np.abs(features.indices).max(axis=0), features.lattice.period
    # A variance has twice the frequencies of its features; four points for a half-wave of it.
    wanted = np.ceil(16 * (reach + 1) * box.width / period).astype(int)
    numbers = np.clip(wanted, 9, _MOST_POINTS[len(period)])
    axes = [
        np.linspace(lower, upper, n)
        for lower, upper, n in zip(box.lower, box.upper, numbers, strict=True)
    ]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    average = features.mean.origin[len(features.mean.origin) - features.mean.num_covariates :]
    return np.concatenate([places, np.tile(average, (len(places), 1))], axis=1)


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


class PolishedMean(NamedTuple):
    """A posterior mean over more modes than there are features: whitened coefficients, (m, p)."""

    modes: Lattice
    mean: NDArray[np.float64]


class Polished(NamedTuple):
    """Where polishing ended.

    Attributes
    ----------
    result : PolishedMean
    residual : (m, p)
        r.
    misfit : (p,)
        ‖y − m̃‖²_W.
    """

    result: PolishedMean
    residual: NDArray[np.float64]
    misfit: NDArray[np.float64]


def polish(
    modes: KnownModes,
    mean: NDArray[np.float64],
    chol: NDArray[np.float64],
    noise_variance: float,
    tolerance: float,
    max_steps: int = MOST_STEPS,
) -> Polished:
    """Return the posterior mean over known modes, by conjugate gradients from that of the features.

    The preconditioner is the features' factor, and the diagonal of A for all other modes.

    Parameters
    ----------
    mean : (m, p)
        That of the features.
    chol : (m, m)
        The features' factor.
    tolerance : float
        The largest ‖r‖.
    """
    diagonal = 1 + modes.statistics.count * modes.amplitudes[:, None] ** 2 / (2 * noise_variance)

    def times(z: NDArray[np.float64]) -> NDArray[np.float64]:
        return z + modes.gram_times(z) / noise_variance

    def solve(r: NDArray[np.float64]) -> NDArray[np.float64]:
        out = r / diagonal
        out[modes.places] = unwhiten(chol, whiten(chol, r[modes.places]))
        return out

    z = np.zeros_like(modes.projection)
    z[modes.places] = mean
    right = modes.projection / noise_variance
    r = right - times(z)
    best, least = z.copy(), np.linalg.norm(r, axis=0)
    direction = solve(r)
    norm = np.sum(r * direction, axis=0)
    for _ in range(max_steps):
        if np.all(least <= tolerance) or not np.any(norm > 0):
            break
        image = times(direction)
        curvature = np.sum(direction * image, axis=0)
        step = np.divide(norm, curvature, out=np.zeros_like(norm), where=curvature > 0)
        z = z + step * direction
        r = r - step * image
        size = np.linalg.norm(r, axis=0)
        better = size < least
        best[:, better], least[better] = z[:, better], size[better]
        conditioned = solve(r)
        new = np.sum(r * conditioned, axis=0)
        ratio = np.divide(new, norm, out=np.zeros_like(norm), where=norm > 0)
        direction, norm = conditioned + ratio * direction, new
    # The recursion of r drifts away from b − A z by rounding.
    image = modes.gram_times(best)
    r = right - best - image / noise_variance
    yy = modes.statistics.yy
    misfit = yy - 2 * np.sum(modes.projection * best, axis=0) + np.sum(best * image, axis=0)
    misfit = np.maximum(misfit, 0.0) + 4 * _ROUNDING * yy
    return Polished(PolishedMean(modes.wide, best), r, misfit)


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
    sizes = [fast_size(int(np.ceil(2 * n * _OVERSAMPLING[len(reach)]))) for n in reach]
    half = np.zeros((*sizes[:-1], sizes[-1] // 2 + 1), dtype=np.complex128)
    at = [np.mod(np.arange(-n, n + 1), size) for n, size in zip(reach, sizes, strict=True)]
    at[-1] = np.arange(reach[-1] + 1)
    half[np.ix_(*at)] = coefficients[..., reach[-1] :]
    values = np.asarray(irfftn(half, s=sizes, norm="forward"))
    # A polynomial of degree n exceeds its values at G equidistant points by 1/cos(πn/G).
    return float(np.abs(values).max() / np.prod(np.cos(np.pi * reach / np.array(sizes))))


def norm_beyond(modes: KnownModes, kernel: Kernel) -> float:
    """Return τ ≥ λ_max, at the rows, of the modes beyond the known ones."""
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


class Unseen(NamedTuple):
    """What features leave out, at the rows.

    Attributes
    ----------
    norm : float
        t ≥ λ_max(R), R = K − Q.
    cross : float
        A bound on Σ_n w_n R(x_n, x)² for every x.
    """

    norm: float
    cross: float


def unseen(modes: KnownModes, beyond: float) -> Unseen:
    """Return bounds on what the features leave out, given τ for the modes beyond the known ones."""
    statistics = modes.statistics
    chosen = np.zeros(len(modes.masses), dtype=bool)
    chosen[modes.chosen] = True
    indices, masses = modes.wide.indices[~chosen], modes.masses[~chosen]
    tail = np.sqrt(beyond * modes.beyond)
    if not masses.any():
        return Unseen(beyond, tail**2)
    # Σ_n w_n R(x_n − x)² as a series in x, R known by its series.
    grid, left = modes.grid, np.where(chosen, 0.0, 2 * modes.masses).astype(np.complex128)
    squares = grid.coefficients(grid.values(left[None])[0] ** 2)
    largest = _largest_value(squares * _point_sums(statistics, 2 * grid.reach))
    cross = (np.sqrt(largest) + tail) ** 2
    norm = min(
        2 * statistics.count * float(masses.sum()),
        residual_norm(SeriesBox(statistics.lattice.extent), indices, masses, statistics),
        _by_blocks(modes, indices, masses),
        _by_boxes(modes, indices, masses),
    )
    return Unseen(norm + beyond, cross)


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


class Verdict(NamedTuple):
    """What the sums say about a fit of lattice features.

    Attributes
    ----------
    polished : PolishedMean or None
        `None` where the features' own mean is to predict.
    guarantee : Guarantee
    data_fit : float
        An upper bound on −½ yᵀ(K + σ²I)⁻¹y, summed over the targets, for the lattice's prior.
    slack : float
        What δ can add to, or take from, bounds on the evidence.
    """

    polished: PolishedMean | None
    guarantee: Guarantee
    data_fit: float
    slack: float


def judge(
    features: Lattice,
    kernel: Kernel,
    statistics: FourierStatistics,
    solution: tuple[NDArray[np.float64], NDArray[np.float64]],
    noise_variance: float,
    *,
    images: Images,
    tolerance: float,
    max_steps: int = MOST_STEPS,
) -> Verdict:
    """Return the polished mean of a fit and all that bounds its errors.

    The mean is polished if conjugate gradients converge in `max_steps`.

    Parameters
    ----------
    solution : (m, p), (m, m)
        The features' posterior mean and the factor of B.
    images : Images
        How far the lattice's prior is from the kernel.
    tolerance : float
        The error of means, in posterior sd, below which the polishing need not go.
    """
    mean, chol = solution
    variance, count = prior_variance(kernel), statistics.count
    modes, beyond = _enough_modes(features, kernel, statistics, noise_variance, tolerance)
    polished = None
    result, r, left = polish(modes, mean, chol, noise_variance, tolerance / 100, max_steps)
    if max_steps and np.all(np.linalg.norm(r, axis=0) <= tolerance):
        polished = result
    elif max_steps:
        # Unfinished conjugate gradients are no linear function of the targets.
        result, r, left = polish(modes, mean, chol, noise_variance, tolerance, 0)
    z = result.mean
    tail = np.sqrt(beyond * left) / noise_variance
    rounding = 2 * _ROUNDING * np.sqrt(variance * count * statistics.yy) / noise_variance
    residual = np.linalg.norm(r, axis=0) + np.sqrt(beyond / noise_variance) * tail + rounding
    ratio, deviation = images
    kappa = count * deviation / noise_variance
    relative = (_ROUNDING + len(chol) * np.finfo(float).eps) * count * variance / noise_variance
    # ‖y − m‖² + σ²‖z‖² is least at the exact posterior mean.
    misfit = left + noise_variance * np.sum(z**2, axis=0)
    # The whitened mean under k_P differs from z̃ by A⁻¹r, the one under k₁ from that by κ.
    size = np.linalg.norm(z, axis=0) + np.linalg.norm(r, axis=0) + tail + rounding
    size = np.sqrt(size**2 + kappa * misfit / noise_variance)
    size = size + kappa * np.sqrt(misfit / noise_variance) / 2
    left_out, cross = unseen(modes, beyond)
    guarantee = Guarantee(
        left_out=left_out,
        cross=cross,
        deviation=deviation,
        rounding=relative,
        total_weight=count,
        residual=residual,
        beyond=np.sqrt(modes.beyond) * tail,
        misfit=misfit,
        ratio=ratio,
        shift=ratio * size / np.sqrt(1 - ratio),
    )
    # vᵀK_H v = ‖r + z̃‖², since r = ΦᵀWv − z̃.
    quadratic = 2 * (statistics.yy - np.sum(modes.projection * z, axis=0)) / noise_variance
    quadratic -= np.sum((r + z) ** 2, axis=0)
    quadratic -= (noise_variance + beyond) * left / noise_variance**2
    slack = kappa * np.sqrt(statistics.rows) + relative * np.sqrt(len(chol))
    slack = slack + deviation * count * (1 + kappa) ** 2 * misfit / noise_variance**2
    slack += 2 * rounding * np.linalg.norm(r + z, axis=0)
    slack += 4 * _ROUNDING * statistics.yy / noise_variance
    degrees = len(chol) + count * features.residual(kernel) / noise_variance
    degrees = min(degrees + kappa * np.sqrt(statistics.rows), statistics.rows)
    slack += ratio / (1 - ratio) * (degrees + size**2)
    return Verdict(polished, guarantee, -float(quadratic.sum()) / 2, float(slack.sum()) / 2)


def _enough_modes(
    features: Lattice,
    kernel: Kernel,
    statistics: FourierStatistics,
    noise_variance: float,
    tolerance: float,
) -> tuple[KnownModes, float]:
    """Return as many known modes as keep what lies beyond them from counting, and τ."""
    extent, chosen = statistics.lattice.extent, np.abs(features.indices).max(axis=0)
    factor = 2
    while True:
        modes = KnownModes(features, kernel, statistics, np.minimum(factor * chosen, extent))
        beyond = norm_beyond(modes, kernel)
        # Variances are at least about σ²/N.
        error = np.sqrt(beyond * statistics.count) * (
            np.sqrt(beyond) + np.sqrt(modes.beyond * statistics.count)
        )
        enough = error <= tolerance * noise_variance / 8
        if enough or np.all(modes.reach >= 0.9 * extent) or factor > _MOST_TIMES:
            return modes, beyond
        factor *= 4
