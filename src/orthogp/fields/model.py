r"""A kernel on a lattice of many modes: its equations, a preconditioner, conjugate gradients.

With slopes of the mean function, of covariates c and prior variance τ², the posterior precision is

    [ B   C̃     ]    B = I + R T R/s²,   C̃ = τ R Σ w_n e^{−iω·x_n} c_n/s²
    [ C̃*  I + G̃ ]    G̃ = τ² Σ w_n c_n c_nᵀ/s²

and the slopes are eliminated by their Schur complement, a matrix as small as there are columns.

Conjugate gradients solve B x = b for several right-hand sides at once. For e = x − B⁻¹b and any
point, in the whitened coordinates,

    |⟨φ(x), e⟩| ≤ ‖e‖_B · sd(f(x)),    ‖e‖²_B = ⟨e, B e⟩

so that ‖e‖_B bounds the error of every posterior mean in posterior standard deviations. The
iteration itself tells this norm: ‖e_k‖²_B = Σ_{j ≥ k} α_j ⟨r_j, P⁻¹r_j⟩ (Hestenes and Stiefel).

The preconditioner is a sparse matrix in space. There 1/S is (nearly) a polynomial of the Laplacian,
and T multiplies by the density of the data. On a grid just fine enough for the frequencies that the
data determine, both make

    M = Σ_j c_j Λ^j + diag(density/σ²),    c_j ≥ 0,   Λ = −Σ_d (∂_d/ω*_d)² by finite differences

with ω*_d the frequency along axis d at which 1/s(ω*) = density/σ², and c fitted to 1/s on the modes
of the grid. E corrects the error of the fit so that the product is exact for evenly spread data.
Beyond the grid the prior dominates, and a diagonal suffices:

    P⁻¹ = E F M⁻¹ Fᵀ E   on the modes of the grid,   E² = (q + ρ)/(1 + ρ s)
    P⁻¹ = 1/(1 + N s/σ²)   on the other modes

(F the unitary Fourier transform, q = Σ_j c_j λ^j, ρ the typical density/σ²), in the whitened
coordinates of `LatticeSystem`.

In three columns a grid that is fine enough often has too many points to be factorised, or too few
along one axis to show the gaps between data. There P = 1 + N s/σ² serves for all modes: it is exact
for evenly spread data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.features import MeanPrior
from orthogp.features.base import prior_variance
from orthogp.fields.multifrontal import GridFactor
from orthogp.fields.system import (
    DataDensity,
    LatticeSystem,
    ModeGrid,
    Modes,
    Precision,
    Reals,
    Scales,
    fast_extent,
)
from orthogp.kernels import Kernel
from orthogp.precision import lower_factor, one_thread, within_precision
from orthogp.statistics.nufft import TOLERANCE

# The root mean square error of log q below which a polynomial fits well enough.
_GOOD_FIT = 0.1
# The most points of a grid for the first, second, … power of the Laplacian, by number of columns:
# higher powers fit better and fill the factor more. A grid beyond the first number is coarsened.
_MOST_POINTS = {
    1: (4_000_000, 4_000_000, 4_000_000, 4_000_000),
    2: (260_000, 260_000, 40_000, 15_000),
    3: (60_000, 8_000),
}
# The factor by which rounding an extent up for fast transforms may exceed these numbers.
_ROUNDED_UP = 1.3
# The ratio of the data's to the prior's precision at which a grid for solving ends, by number of
# columns. In two columns a factor is expensive: a coarser grid saves more than the additional
# iterations cost.
_SOLVING = {1: 0.25, 2: 2.0, 3: 0.25}
# The same ratio for a grid on which variances are computed: they need fine cells.
_VARIANCES = 0.04
# The number of points that the samples for the diagonal of P⁻¹ have in total.
_SAMPLED_POINTS = 20_000_000
# The fewest and the most samples for the diagonal of P⁻¹.
_SAMPLES = (8, 64)
# The number of samples drawn at once.
_SAMPLES_AT_ONCE = 8
# The fewest points along an axis, in three columns, that show where data end.
_FEWEST_POINTS = 24


class PreconditionerNoise(NamedTuple):
    """White noise on the modes and on the points of the grid, in single or double precision."""

    modes: NDArray
    points: NDArray


class SpatialPreconditioner:
    """P ≈ B with a sparse matrix in space; see the module's docstring.

    It keeps the grid of another one (`like`), so that P changes smoothly with the hyperparameters,
    or has a grid `fine` enough for variances. `even` is 1 + N s/σ², the diagonal beyond the grid;
    `density` is density/σ² at the points, and `typical_density` its average over the rows.
    """

    #: The number of Lanczos vectors for which draws reserve memory.
    expected_iterations = 60

    def __init__(
        self, system: LatticeSystem, like: SpatialPreconditioner | None = None, fine: bool = False
    ) -> None:
        self.outer = system.grid
        masses, noise = system.masses, system.noise_variance
        if like is None:
            self.extent, self._transition = _choose_extent(system, fine)
        else:
            self.extent, self._transition = like.extent, like._transition
        self.grid = grid = ModeGrid(self.extent, self.outer.num_threads)
        self.density = density = system.density.smoothed(grid.points) / noise
        self.typical_density = typical = float(np.sum(density**2) / np.sum(density))
        inner = self.outer.extract(masses, grid)
        phases = 2 * np.pi * grid.indices / np.array(grid.points)
        laplacian = np.sum((2 - 2 * np.cos(phases)) * self._stencil_weights, axis=-1)
        limits = _MOST_POINTS[grid.num_dims]
        powers = max(sum(grid.size <= _ROUNDED_UP * most for most in limits), 1)
        self.coefficients = _fit_polynomial(laplacian, inner, powers)
        self._symbol = np.polynomial.polynomial.polyval(laplacian, self.coefficients)
        self._correction = np.sqrt((self._symbol + typical) / (1 + typical * inner))
        self.even = even = 1 + system.density.count / noise * masses
        self._corrections, self._beyond = Scales(self._correction), Scales(1 / even)
        self._even_root, self._symbol_root, self._density_root = (
            Scales(np.sqrt(values)) for values in (even, self._symbol, density)
        )
        self._factor = self._factorise()
        inside = self.outer.extract(even, grid)
        #: log|P|.
        self.log_determinant = (
            self._factor.log_determinant
            + grid.size * np.log(typical)
            - 2 * grid.total(np.log(self._correction))
            + self.outer.total(np.log(even))
            - grid.total(np.log(inside))
        )

    def solve(self, vectors: Modes) -> Modes:
        """Return P⁻¹ v for each vector of a batch."""
        correction = self._corrections.of(vectors)
        inner = self.outer.extract(vectors, self.grid) * correction
        inner = self.grid.from_points(self._spatial_solve(self.grid.to_points(inner))) * correction
        out = vectors * self._beyond.of(vectors)
        self.outer.insert(out, self.grid, inner)
        return out

    def noise(
        self, rng: np.random.Generator, num: int, precision: Precision = np.float64
    ) -> PreconditionerNoise:
        """Return noise for `sample`."""
        modes = self.outer.noise(rng, num, precision)
        return PreconditionerNoise(modes, self._white(rng, num, precision))

    def sample(self, noise: PreconditionerNoise) -> Modes:
        """Return vectors with covariance P, from noise that does not depend on P."""
        modes, points = noise
        out = modes * self._even_root.of(modes)
        inner = self.outer.extract(modes, self.grid) * self._symbol_root.of(modes)
        inner = inner + self.grid.from_points(points * self._density_root.of(points))
        self.outer.insert(out, self.grid, inner / self._corrections.of(modes))
        return out

    def companions(self, noise: PreconditionerNoise) -> Reals:
        """Return fields on the points of the grid with covariance M⁻¹, from noise of a sample."""
        modes = self.outer.extract(noise.modes, self.grid)
        return self._spatial_solve(self._spatial_sample(modes, noise.points))

    def inverse_modes(self, rng: np.random.Generator, expected: Reals) -> Reals:
        """Return the diagonal of P⁻¹ from samples z of it: the mean of |P⁻¹z|², mode by mode.

        The samples need no product with B, so that there can be many. The control z*P⁻¹z − 1, of
        mean zero, reduces the variance: for complex normal z, with a the `expected` diagonal and
        b = P_tt, its best multiple is 2a/(ab + 1). That is a for a diagonal P, and little where
        gaps couple the modes so that ab is large.
        """
        num = int(np.clip(_SAMPLED_POINTS // self.grid.size, *_SAMPLES))
        total = np.zeros(self.grid.shape)
        inside = self.outer.extract(expected, self.grid)
        diagonal = (self._symbol + np.mean(self.density)) / self._correction**2
        control = 2 * inside / (inside * diagonal + 1)
        for first in range(0, num, _SAMPLES_AT_ONCE):
            batch = min(_SAMPLES_AT_ONCE, num - first)
            modes = self.grid.noise(rng, batch, np.float32)
            right = self._spatial_sample(modes, self._white(rng, batch, np.float32))
            solved = self._spatial_solve(right)
            z, w = self.grid.from_points(right), self.grid.from_points(solved)
            total += np.sum(w.real**2 + w.imag**2, axis=0) * self._correction**2
            total -= control * (np.sum((z * np.conj(w)).real, axis=0) - batch)
        out = 1 / self.even
        self.outer.insert(out, self.grid, total / num)
        return out

    @cached_property
    def inverse_diagonal(self) -> Reals:
        """The diagonal of M⁻¹ on the points of the grid."""
        factor = self._factor
        if not isinstance(factor, GridFactor):
            with within_precision():
                factor = GridFactor(*self._matrix(), self.grid.num_threads)
        with one_thread():
            diagonal = factor.inverse_diagonal()
        return diagonal.reshape(self.grid.points) / self.typical_density

    def _white(self, rng: np.random.Generator, num: int, precision: Precision) -> NDArray:
        return rng.standard_normal((num, *self.grid.points), dtype=precision)

    def _spatial_sample(self, modes: Modes, points: Reals) -> Reals:
        """Return fields on the points of the grid with covariance M, from white noise."""
        smooth = self.grid.to_points(modes * self._symbol_root.of(modes))
        return smooth + points * self._density_root.of(points)

    def _spatial_solve(self, fields: Reals) -> Reals:
        """Return M⁻¹ of fields on the points of the grid."""
        columns = np.ascontiguousarray(fields.reshape(len(fields), -1).T)
        with one_thread():
            solved = self._factor.solve(columns).T
        return solved.reshape(fields.shape) / self.typical_density

    @property
    def _stencil_weights(self) -> Reals:
        """The weight (n_d/(2π t*_d))² of the second differences along each axis."""
        return (np.array(self.grid.points) / (2 * np.pi * self._transition)) ** 2

    def _factorise(self) -> BandedFactor | GridFactor:
        matrix, points, reach = self._matrix()
        with within_precision(), one_thread():
            if self.grid.num_dims == 1:
                return BandedFactor(matrix, reach)
            return GridFactor(matrix, points, reach, self.grid.num_threads)

    def _matrix(self) -> tuple[scipy.sparse.csr_array, tuple[int, ...], int]:
        """Return M over the typical density, the points of its grid, and how far it couples."""
        points = self.grid.points
        laplacian = _laplacian_matrix(points, self._stencil_weights)
        density = self.density.ravel() / self.typical_density
        matrix = scipy.sparse.diags_array(density, format="csr")
        power = scipy.sparse.eye_array(self.grid.size, format="csr")
        for j, c in enumerate(self.coefficients):
            power = power @ laplacian if j else power
            matrix = matrix + c / self.typical_density * power
        return scipy.sparse.csr_array(matrix), points, max(len(self.coefficients) - 1, 1)


class EvenPreconditioner:
    """P = 1 + N s/σ², a diagonal; see the module's docstring.

    `grid` has the points at which variances are computed.
    """

    expected_iterations = 300

    def __init__(self, system: LatticeSystem) -> None:
        self.outer = system.grid
        extent = _limited(np.array(self.outer.extent), _MOST_POINTS[self.outer.num_dims][0])
        self.grid = ModeGrid(tuple(int(k) for k in extent), self.outer.num_threads)
        self.typical_density = _typical_density(system)
        self.even = 1 + system.density.count / system.noise_variance * system.masses
        self._inverse, self._root = Scales(1 / self.even), Scales(np.sqrt(self.even))
        self.log_determinant = self.outer.total(np.log(self.even))
        self.density = system.density.smoothed(self.grid.points) / system.noise_variance
        self._masses = self.outer.extract(system.masses, self.grid)

    def solve(self, vectors: Modes) -> Modes:
        """Return P⁻¹ v for each vector of a batch."""
        return vectors * self._inverse.of(vectors)

    def noise(
        self, rng: np.random.Generator, num: int, precision: Precision = np.float64
    ) -> PreconditionerNoise:
        """Return noise for `sample`."""
        return PreconditionerNoise(self.outer.noise(rng, num, precision), np.empty((num, 0)))

    def sample(self, noise: PreconditionerNoise) -> Modes:
        """Return vectors with covariance P, from noise that does not depend on P."""
        return noise.modes * self._root.of(noise.modes)

    def companions(self, noise: PreconditionerNoise) -> None:
        """Return `None`: no field of known variance goes with a sample."""

    def inverse_modes(self, rng: np.random.Generator, expected: Reals) -> Reals:
        """Return the diagonal of P⁻¹, which is known."""
        return 1 / self.even

    @cached_property
    def inverse_diagonal(self) -> Reals:
        """The variance for evenly spread data of the local density, on the points of the grid."""
        table = np.append(0.0, np.geomspace(1e-6, 1.0, 60)) * self.density.max()
        left = [self.grid.total(self._masses / (1 + rho * self._masses)) for rho in table]
        variance = np.exp(np.interp(self.density, table, np.log(left)))
        return variance / self.grid.size


Preconditioner = SpatialPreconditioner | EvenPreconditioner


def choose_preconditioner(
    system: LatticeSystem, like: Preconditioner | None = None, *, fine: bool = False
) -> Preconditioner:
    """Return the preconditioner that suits a system, of the same kind as another one if given."""
    if like is None and system.grid.num_dims == 3:
        points = 2 * _ends(system, fine)[0] + 1
        if np.prod(points) > _MOST_POINTS[3][0] or points.min() < _FEWEST_POINTS:
            return EvenPreconditioner(system)
    if isinstance(like, EvenPreconditioner):
        return EvenPreconditioner(system)
    return SpatialPreconditioner(system, like, fine)


def _typical_density(system: LatticeSystem) -> float:
    """Return the density/σ² at a row, on average."""
    coarse = system.density.smoothed(tuple(min(2 * k + 1, 63) for k in system.grid.extent))
    return float(np.sum(coarse**2) / np.sum(coarse)) / system.noise_variance


def _ends(system: LatticeSystem, fine: bool) -> tuple[NDArray[np.int64], Reals]:
    """Return the index along each axis at which a grid may end, and the transition t*, (d,)."""
    grid, density = system.grid, _typical_density(system)
    ratio = _VARIANCES if fine else _SOLVING[grid.num_dims]
    ends, transitions = [], []
    for axis in range(grid.num_dims):
        where: list[Any] = [0] * grid.num_dims
        where[axis] = slice(grid.extent[axis] + 1)
        along = density * system.masses[tuple(where)]
        transitions.append(_crossing(along, 1.0))
        ends.append(_crossing(along, ratio))
    extent = np.minimum(np.ceil(ends).astype(int), grid.extent)
    return np.maximum(extent, np.minimum(grid.extent, 4)), np.array(transitions)


def _choose_extent(system: LatticeSystem, fine: bool) -> tuple[tuple[int, ...], Reals]:
    """Return the extent of the grid and the transition t*_d along each axis."""
    grid = system.grid
    ends, transitions = _ends(system, fine)
    extent = _limited(ends, _MOST_POINTS[grid.num_dims][0])
    fast = [min(fast_extent(int(k)), outer) for k, outer in zip(extent, grid.extent, strict=True)]
    return tuple(fast), transitions


def _limited(extent: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return an extent in about the same proportions with at most `most` points."""
    while np.prod(2 * extent + 1) > most:
        extent = np.maximum((extent * 0.95).astype(int), 1)
    return extent


def _crossing(falling: Reals, level: float) -> float:
    """Return the index at which a falling sequence reaches a level, extrapolated beyond its end."""
    below = np.flatnonzero(falling[1:] < level)
    if len(below):
        return float(below[0] + 1)
    last, first = len(falling) - 1, max((len(falling) - 1) // 2, 1)
    if last <= first:
        return float(max(last, 1))
    slope = np.log(falling[last] / falling[first]) / np.log(last / first)
    return last * float(np.clip((level / falling[last]) ** (1 / min(slope, -0.1)), 1.0, 100.0))


def _fit_polynomial(symbol: Reals, masses: Reals, most_powers: int) -> Reals:
    """Return c ≥ 0 with Σ_j c_j λ^j ≈ 1/s, evenly in log λ, with as few powers as suffice."""
    # Mode zero has the variance of the mean function too.
    lam, mass = symbol.ravel()[1:], masses.ravel()[1:]
    usable = mass > 1e-12 * mass.max()
    lam, mass = lam[usable], mass[usable]
    edges = np.geomspace(lam.min() * (1 - 1e-9), lam.max() * (1 + 1e-9), 60)
    bins = np.digitize(lam, edges)
    counts = np.bincount(bins, minlength=len(edges) + 1)
    chosen = counts > 0
    mean_lam = np.bincount(bins, lam, len(edges) + 1)[chosen] / counts[chosen]
    mean_log = np.bincount(bins, -np.log(mass), len(edges) + 1)[chosen] / counts[chosen]
    goal = np.exp(mean_log - mean_log.max())
    best, least = np.zeros(1), np.inf
    for powers in range(1, most_powers + 1):
        columns = mean_lam[:, None] ** np.arange(powers + 1)
        c, fitted = np.zeros(powers + 1), goal
        for _ in range(8):
            # Reweighted: twice too much counts as much as twice too little.
            weights = 1 / np.sqrt(goal * fitted)
            weighted = columns * weights[:, None]
            # Powers span many decades: scaled to the same norm, they are solved for reliably.
            sizes = np.linalg.norm(weighted, axis=0)
            right, limits = goal * weights, (0.0, np.inf)
            c = scipy.optimize.lsq_linear(weighted / sizes, right, limits, method="bvls").x / sizes
            fitted = np.maximum(columns @ c, 1e-3 * goal)
        misfit = float(np.sqrt(np.mean(np.log(fitted / goal) ** 2)))
        if misfit < 0.9 * least:
            best, least = c, misfit
        if misfit < _GOOD_FIT:
            break
    # Without a constant term, gaps would have no prior.
    best[0] = max(best[0], 1e-6 * goal.min())
    return np.trim_zeros(best, "b") * np.exp(mean_log.max())


def _laplacian_matrix(points: tuple[int, ...], weights: Reals) -> scipy.sparse.csr_array:
    """Return Σ_d weights_d · (second differences along axis d), periodic."""
    total = scipy.sparse.csr_array((1, 1))
    for n, weight in zip(points, weights, strict=True):
        shift = scipy.sparse.csr_array(scipy.sparse.eye_array(n))[np.roll(np.arange(n), 1)]
        one = weight * (2 * scipy.sparse.eye_array(n) - shift - shift.T)
        total = scipy.sparse.kronsum(one, total, format="csr")
    return scipy.sparse.csr_array(total)


class BandedFactor:
    """Cholesky factor of a matrix that couples neighbours on a circle.

    In the order 0, n−1, 1, n−2, … neighbours on the circle are at most two apart, so that a reach
    of J neighbours becomes a band of 2J below the diagonal: time and memory grow with n.
    """

    def __init__(self, matrix: scipy.sparse.csr_array, reach: int) -> None:
        n = len(matrix.indptr) - 1
        self._order = order = np.empty(n, dtype=np.int64)
        order[0::2] = np.arange((n + 1) // 2)
        order[1::2] = np.arange(n - 1, (n - 1) // 2, -1)
        place = np.empty_like(order)
        place[order] = np.arange(n)
        entries = scipy.sparse.coo_array(matrix)
        row, column = (place[axis] for axis in entries.coords)
        below = row >= column
        band = np.zeros((min(2 * reach, n - 1) + 1, n))
        np.add.at(band, (row[below] - column[below], column[below]), entries.data[below])
        self._chol = scipy.linalg.cholesky_banded(
            band, overwrite_ab=True, lower=True, check_finite=False
        )
        self.log_determinant = 2 * float(np.sum(np.log(self._chol[0])))

    def solve(self, columns: Reals) -> Reals:
        """Return M⁻¹ c for each column, (n, c)."""
        out = np.empty_like(columns)
        out[self._order] = scipy.linalg.cho_solve_banded(
            (self._chol, True), columns[self._order], overwrite_b=True, check_finite=False
        )
        return out


# The number of terms of the sum above after which the error of an iterate is believed.
_DELAY = 3
# The ratio of ⟨r, P⁻¹r⟩ to its first value at which the residual is rounding.
_SPENT = 1e-28


@dataclass(frozen=True)
class Model:
    """Hyperparameters on a lattice.

    `unresolved` is d, the prior variance of the modes beyond the lattice. The masses of the system
    include the offset of the mean function in mode zero, its noise variance is s² = σ² + w d, with
    the average weight w of precisions (1 for weights that count rows).
    """

    kernel: Kernel
    noise_variance: float
    mean: MeanPrior
    unresolved: float
    system: LatticeSystem
    preconditioner: Preconditioner

    @classmethod
    def build(
        cls,
        density: DataDensity,
        mean: MeanPrior,
        kernel: Kernel,
        noise_variance: float,
        like: Preconditioner | None = None,
        *,
        fine: bool = False,
    ) -> Model:
        """Return the model of a kernel and a noise variance, on the lattice of the density.

        The preconditioner has the grid of another one (`like`), or one `fine` enough for variances.
        """
        masses = density.grid.masses(kernel, density.lattice)
        unresolved = max(prior_variance(kernel) - density.grid.total(masses), 0.0)
        if mean.offset_variance:
            masses = masses.copy()
            masses[(0,) * masses.ndim] += mean.offset_variance
        noise = noise_variance + density.average_weight * unresolved
        if TOLERANCE * density.count * prior_variance(kernel) > noise:
            raise PrecisionError(
                "The noise variance is too small, relative to the signal and the number of rows, "
                "for double precision: use a larger noise_variance."
            )
        system = LatticeSystem(density, masses, noise)
        preconditioner = choose_preconditioner(system, like, fine=fine)
        return cls(kernel, noise_variance, mean, unresolved, system, preconditioner)

    @property
    def masses(self) -> Reals:
        """The prior variances of the modes, (…)."""
        return self.system.masses

    @cached_property
    def determined(self) -> float:
        """The number of modes that evenly spread rows would determine, Σ_t (1 − 1/(1 + N s/σ²))."""
        return self.system.grid.total(1 - 1 / self.preconditioner.even)

    @cached_property
    def equations(self) -> Equations:
        """The equations of the posterior mean of the modes and slopes."""
        system, density = self.system, self.system.density
        scaled = system.amplitudes / system.noise_variance
        slope = np.sqrt(self.mean.slope_variance)
        q = len(density.covariates) if slope else 0
        right = np.concatenate([density.targets, slope * density.covariates[:q]]) * scaled
        gram = slope**2 * density.statistics.covariate_gram[:q, :q] / system.noise_variance
        goal = slope * density.statistics.covariate_targets[:q] / system.noise_variance
        return Equations(system.grid, right, gram, goal)


class ModePosterior(NamedTuple):
    """The posterior mean of the whitened modes, (p, …), and of the slopes, (q, p).

    `covariate_modes` is B⁻¹C̃ and `slope_factor` the Cholesky factor of the slopes' precision;
    `explained` is ⟨b, B⁻¹b⟩ for each target, with the slopes' part, (p,).
    """

    modes: Modes
    slopes: Reals
    covariate_modes: Modes
    slope_factor: Reals
    explained: Reals

    def variances_by_slopes(self) -> Reals:
        """Return the contribution of uncertain slopes to (B⁻¹)_tt, (…)."""
        flat = self.covariate_modes.reshape(len(self.slopes), self.modes[0].size)
        whitened = np.linalg.solve(self.slope_factor, flat)
        return np.sum(np.abs(whitened) ** 2, axis=0).reshape(self.modes.shape[1:])

    def determined_slopes(self) -> float:
        """Return q − tr(covariance of the slopes), the number of slopes that data determine."""
        return len(self.slopes) - float(np.sum(np.linalg.inv(self.slope_factor) ** 2))


class Equations(NamedTuple):
    """Right-hand sides [b̃, C̃] (p + q, …), G̃ (q, q) and the slopes' right-hand side (q, p)."""

    grid: ModeGrid
    right: Modes
    gram: Reals
    goal: Reals

    def posterior(self, solved: Modes, residual: Modes) -> ModePosterior:
        """Return the posterior of modes and slopes from B⁻¹[b̃, C̃] and the residuals of both."""
        inner, p = self.grid.inner, self.goal.shape[1]
        targets, covariates = solved[:p], solved[p:]
        # ⟨b, B⁻¹b⟩ = ⟨b, x⟩ + ⟨x, r⟩ up to the square of the error: cᵀc and its explained part
        # agree to many digits, so that the first order would not do.
        explained = inner(self.right[:p], targets) + inner(targets, residual[:p])
        cross = inner(self.right[p:, None], solved) + inner(covariates[:, None], residual)
        factor = lower_factor(np.eye(len(self.gram)) + self.gram - cross[:, p:])
        goal = self.goal - cross[:, :p]
        slopes = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, goal)), np.float64)
        modes = targets - np.tensordot(slopes.T, covariates, axes=(1, 0))
        explained = explained + np.sum(goal * slopes, axis=0)
        return ModePosterior(modes, slopes, covariates, factor, explained)


class Solution(NamedTuple):
    """Where conjugate gradients ended: x and the residual b − B x, (batch, …).

    Steps α_k and ratios β_k, (iterations, batch), give the tridiagonal matrix of the Lanczos
    process; the norms are ⟨r_k, P⁻¹r_k⟩, (iterations + 1, batch).
    """

    x: Modes
    residual: Modes
    iterations: int
    converged: bool
    steps: Reals
    ratios: Reals
    norms: Reals

    def lanczos(self, column: int) -> tuple[Reals, Reals]:
        """Return eigenvalues and eigenvectors of the Lanczos process behind a column."""
        size = int(np.count_nonzero(self.steps[:, column]))
        steps, ratios = self.steps[:size, column], self.ratios[:size, column]
        diagonal = 1 / steps
        diagonal[1:] += ratios[:-1] / steps[:-1]
        beside = np.sqrt(ratios[:-1]) / steps[:-1]
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside)
        return np.asarray(values), np.asarray(vectors)


def solve(
    model: Model,
    right: Modes,
    *,
    tolerance: float | Reals,
    start: Modes | None = None,
    max_iterations: int = 500,
    observe: Callable[[NDArray[np.int64], Modes], None] | None = None,
) -> Solution:
    """Return B⁻¹ b for each b of a batch, (batch, …), with ‖x − B⁻¹b‖_B at most the tolerance.

    It may start from the solution for other hyperparameters. `observe` receives the numbers of the
    unfinished right-hand sides, (a,), and their P⁻¹ r_k, (a, …), for k = 0 and on.
    """
    system, preconditioner = model.system, model.preconditioner
    inner, batch = system.grid.inner, len(right)
    goal = np.broadcast_to(np.square(tolerance), (batch,))
    x = np.zeros_like(right) if start is None else start.copy()
    residual = right.copy() if start is None else right - system.apply(x)
    direction = preconditioner.solve(residual)
    if observe is not None:
        observe(np.arange(batch), direction.copy())
    norm = inner(residual, direction)
    steps, ratios, norms = [], [], [norm]
    column = (slice(None), *(None,) * system.grid.num_dims)
    # The numbers of the unfinished right-hand sides, the only ones in the arrays below.
    active = np.flatnonzero(norm > 0)
    left = residual.copy()
    if len(active) < batch:
        residual, direction, norm = residual[active], direction[active], norm[active]
    k = 0
    while len(active) and k < max_iterations:
        image = system.apply(direction)
        step = norm / inner(direction, image)
        x[active] += step[column] * direction
        image *= step[column]
        residual -= image
        conditioned = preconditioner.solve(residual)
        new = inner(residual, conditioned)
        ratio = new / norm
        direction *= ratio[column]
        direction += conditioned
        for values, sequence in ((step, steps), (ratio, ratios), (new, norms)):
            sequence.append(np.zeros(batch))
            sequence[-1][active] = values
        if observe is not None:
            observe(active, conditioned)
        norm = new
        k += 1
        # With as few modes as iterations the residual may vanish.
        going_on = new > _SPENT * norms[0][active]
        if k >= 2 * _DELAY:
            going_on &= _squared_error(steps, norms, k)[active] > goal[active]
        if not going_on.all():
            left[active] = residual
            active = active[going_on]
            residual, direction = residual[going_on], direction[going_on]
            norm = norm[going_on]
    left[active] = residual
    shape = (k, batch)
    return Solution(
        x=x,
        residual=left,
        iterations=k,
        converged=len(active) == 0,
        steps=np.reshape(steps, shape),
        ratios=np.reshape(ratios, shape),
        norms=np.array(norms),
    )


def _squared_error(steps: list[Reals], norms: list[Reals], k: int) -> Reals:
    """Return ‖e‖²_B of an earlier iterate: the terms since, and the geometric series they begin."""
    last = sum(steps[j] * norms[j] for j in range(k - _DELAY, k))
    before = sum(steps[j] * norms[j] for j in range(k - 2 * _DELAY, k - _DELAY))
    decay = np.clip(np.divide(last, before, out=np.zeros_like(last), where=before > 0), 0.0, 0.99)
    return last / (1 - decay)
