r"""A sparse matrix in space that stands for B, and its factors.

The inverse of a spectrum as a polynomial of the Laplacian, by finite differences on a grid.

In space, 1/S is (nearly) a polynomial of the Laplacian and T multiplies by the density of the data.
On a grid just fine enough for the frequencies at which the data have a say, this is a sparse matrix

    M = Σ_j c_j Λ^j + diag(density/σ²),    c_j ≥ 0,   Λ = −Σ_d (∂_d/ω*_d)² by finite differences

with ω*_d the transition along axis d, 1/s(ω*) = density/σ², and c fitted to 1/s on the grid's
modes. Where the fit is off, E corrects it so that the product is exact for evenly spread data, and
beyond the grid the prior has the say:

    P⁻¹ = E F M⁻¹ Fᵀ E   on the grid's modes,   E² = (q + ρ)/(1 + ρ s)
    P⁻¹ = 1/(1 + N s/σ²)   on the others

(F the unitary Fourier transform, q = Σ_j c_j λ^j, ρ the typical density/σ²), in the whitened
coordinates of `LatticeSystem`.

In three columns a grid that is fine enough often has too many points to be factorised, or so few
along one axis that gaps between data are lost in it. There the last line serves for all modes:
P = 1 + N s/σ², which is exact for evenly spread data.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

from orthogp.fields.modes import ModeGrid, Precision, Scales, fast_extent
from orthogp.fields.multifrontal import GridFactor
from orthogp.fields.system import LatticeSystem
from orthogp.inference.threads import one_thread, within_precision

# A fit whose logarithm is off by so much on average is good enough.
_GOOD_FIT = 0.1


def fit_polynomial(
    symbol: NDArray[np.float64], masses: NDArray[np.float64], most_powers: int
) -> NDArray[np.float64]:
    """Return c ≥ 0 with Σ_j c_j λ^j ≈ 1/s, evenly in log λ, with no more powers than it takes."""
    # Mode zero has the mean function's variance too.
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
            # Powers span many decades: of one size, they are solved for reliably.
            sizes = np.linalg.norm(weighted, axis=0)
            right, limits = goal * weights, (0.0, np.inf)
            c = scipy.optimize.lsq_linear(weighted / sizes, right, limits, method="bvls").x / sizes
            fitted = np.maximum(columns @ c, 1e-3 * goal)
        misfit = float(np.sqrt(np.mean(np.log(fitted / goal) ** 2)))
        if misfit < 0.9 * least:
            best, least = c, misfit
        if misfit < _GOOD_FIT:
            break
    # What is not there at all would leave gaps without a prior.
    best[0] = max(best[0], 1e-6 * goal.min())
    return np.trim_zeros(best, "b") * np.exp(mean_log.max())


def laplacian_matrix(
    points: tuple[int, ...], weights: NDArray[np.float64]
) -> scipy.sparse.csr_array:
    """Return Σ_d weights_d · (second differences along axis d), periodic."""
    total = None
    for axis, (n, weight) in enumerate(zip(points, weights, strict=True)):
        shift = scipy.sparse.csr_array(scipy.sparse.eye_array(n))[np.roll(np.arange(n), 1)]
        one = weight * (2 * scipy.sparse.eye_array(n) - shift - shift.T)
        before = scipy.sparse.eye_array(int(np.prod(points[:axis], dtype=int)))
        after = scipy.sparse.eye_array(int(np.prod(points[axis + 1 :], dtype=int)))
        term = scipy.sparse.kron(scipy.sparse.kron(before, one), after, format="csr")
        total = term if total is None else total + term
    assert total is not None
    return scipy.sparse.csr_array(total)


class Factor(Protocol):
    """A factorised symmetric positive definite matrix."""

    @property
    def log_determinant(self) -> float:
        """The logarithm of the determinant."""
        ...

    def solve(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return M⁻¹ c for each column."""
        ...


class BandedFactor:
    """Cholesky factor of a matrix that couples neighbours on a circle.

    In the order 0, n−1, 1, n−2, … neighbours on the circle are at most two apart, so that a reach
    of J neighbours becomes a band of 2J below the diagonal: time and memory grow with n.
    """

    def __init__(self, matrix: scipy.sparse.csr_array, reach: int) -> None:
        n = len(matrix.indptr) - 1
        order = np.empty(n, dtype=np.int64)
        order[0::2] = np.arange((n + 1) // 2)
        order[1::2] = np.arange(n - 1, (n - 1) // 2, -1)
        self._order = order
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        entries = scipy.sparse.coo_array(matrix)
        row, column = (place[axis] for axis in entries.coords)
        below = row >= column
        band = np.zeros((min(2 * reach, n - 1) + 1, n))
        np.add.at(band, (row[below] - column[below], column[below]), entries.data[below])
        self._chol = scipy.linalg.cholesky_banded(
            band, overwrite_ab=True, lower=True, check_finite=False
        )

    @property
    def log_determinant(self) -> float:
        """The logarithm of the determinant."""
        return 2 * float(np.sum(np.log(self._chol[0])))

    def solve(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return M⁻¹ c for each column, (n, c)."""
        folded = scipy.linalg.cho_solve_banded(
            (self._chol, True), columns[self._order], overwrite_b=True, check_finite=False
        )
        out = np.empty_like(columns)
        out[self._order] = folded
        return out


# The most points of the grid for each power of the Laplacian, by number of columns: higher powers
# fit better and fill more. Larger grids than the first number are made coarser.
_MOST_POINTS = {
    1: (4_000_000, 4_000_000, 4_000_000, 4_000_000),
    2: (260_000, 260_000, 40_000, 15_000),
    3: (60_000, 8_000),
}
_ROUNDED_UP = 1.3
# The grid ends where the data's say has fallen to this much of the prior's: for solving, by number
# of columns (in two, where a factor is dear, a few more iterations cost less than a finer grid),
# and for variances, which want fine cells.
_SOLVING = {1: 0.25, 2: 2.0, 3: 0.25}
_VARIANCES = 0.04
# Samples that tell the diagonal of P⁻¹: as many as have so many points in all, at least and at
# most, and how many at once.
_SAMPLED_POINTS, _SAMPLES, _SAMPLES_AT_ONCE = 20_000_000, (8, 64), 8
# In three columns, fewer points along an axis than this do not show where data end.
_FEWEST_POINTS = 24


class SpatialPreconditioner:
    """P ≈ B; see the module's docstring.

    `expected_iterations` says for how many vectors there should be memory.

    Parameters
    ----------
    system : LatticeSystem
    like : SpatialPreconditioner, optional
        Takes over the grid of another one, so that P changes smoothly with the hyperparameters.
    fine : bool
        Whether the grid is to be as fine as variances want it.
    """

    expected_iterations = 60

    def __init__(
        self,
        system: LatticeSystem,
        like: SpatialPreconditioner | None = None,
        *,
        fine: bool = False,
    ) -> None:
        self.outer = system.grid
        masses, noise = system.masses, system.noise_variance
        mean_density = system.density.count / noise
        if like is None:
            self.extent, self._transition = _choose_extent(system, fine)
        else:
            self.extent, self._transition = like.extent, like._transition
        self.grid = ModeGrid(self.extent, self.outer.num_threads)
        density = system.density.smoothed(self.grid.points) / noise
        #: The density/σ² that a row sees on average.
        self.typical_density = typical = float(np.sum(density**2) / np.sum(density))
        #: The data's density/σ² on the grid's points.
        self.density = density
        inner = self.outer.extract(masses, self.grid)
        symbol = self._laplacian_symbol()
        limits = _MOST_POINTS[self.grid.num_dims]
        # Extents are rounded up, to such as transform fast.
        powers = max(sum(self.grid.size <= _ROUNDED_UP * most for most in limits), 1)
        self.coefficients = fit_polynomial(symbol, inner, powers)
        self._symbol = np.polynomial.polynomial.polyval(symbol, self.coefficients)
        self._correction = np.sqrt((self._symbol + typical) / (1 + typical * inner))
        #: 1 + N s/σ², what stands for B beyond the grid's modes.
        self.others = 1 + mean_density * masses
        self._corrections, self._beyond = Scales(self._correction), Scales(1 / self.others)
        self._roots = _Roots(*(Scales(np.sqrt(x)) for x in (self.others, self._symbol, density)))
        self.factor = self._factorise()
        others = self.outer.total(np.log(self.others)) - self.grid.total(
            np.log(self.outer.extract(self.others, self.grid))
        )
        #: log|P|.
        self.log_determinant = (
            self.factor.log_determinant
            + self.grid.size * np.log(typical)
            - 2 * self.grid.total(np.log(self._correction))
            + others
        )

    def solve(self, vectors: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return P⁻¹ v for each vector of a batch."""
        correction = self._corrections.of(vectors)
        inner = self.outer.extract(vectors, self.grid) * correction
        with one_thread():
            solved = self._spatial_solve(self.grid.to_points(inner))
        inner = self.grid.from_points(solved) * correction
        out = vectors * self._beyond.of(vectors)
        self.outer.insert(out, self.grid, inner)
        return out

    def sample(self, noise: PreconditionerNoise) -> NDArray[np.complex128]:
        """Return vectors with covariance P, from noise that does not depend on P."""
        roots, modes, points = self._roots, noise.modes, noise.points
        out = modes * roots.others.of(modes)
        inner = self.outer.extract(modes, self.grid) * roots.symbol.of(modes)
        inner = inner + self.grid.from_points(points * roots.density.of(points))
        self.outer.insert(out, self.grid, inner / self._corrections.of(modes))
        return out

    def companions(self, noise: PreconditionerNoise) -> NDArray[np.float64]:
        """Return fields on the grid's points with covariance M⁻¹, from the noise of a sample."""
        modes = self.outer.extract(noise.modes, self.grid)
        with one_thread():
            return self._spatial_solve(self._spatial_sample(modes, noise.points))

    def inverse_modes(
        self, rng: np.random.Generator, expected: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the diagonal of P⁻¹ from samples z of it: the mean of |P⁻¹z|², mode by mode.

        None needs a product with B, so that there can be many. Noise is taken away by z*P⁻¹z − 1,
        of mean zero: for complex normal z, if a is `expected` of the diagonal and b = P_tt, the
        best multiple of it is 2a/(ab + 1). That is a if P is diagonal, and little where gaps couple
        the modes so that ab is large.
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
            with one_thread():
                solved = self._spatial_solve(right)
            z = self.grid.from_points(right)
            w = self.grid.from_points(solved)
            squares = np.sum(w.real**2 + w.imag**2, axis=0)
            total += squares * self._correction**2
            total -= control * (np.sum((z * np.conj(w)).real, axis=0) - batch)
        out = 1 / self.others
        self.outer.insert(out, self.grid, total / num)
        return out

    def noise(
        self, rng: np.random.Generator, num: int, precision: Precision = np.float64
    ) -> PreconditionerNoise:
        """Return noise for `sample`."""
        modes = self.outer.noise(rng, num, precision)
        return PreconditionerNoise(modes, self._white(rng, num, precision))

    def _white(self, rng: np.random.Generator, num: int, precision: Precision) -> NDArray:
        return rng.standard_normal((num, *self.grid.points), dtype=precision)

    def _spatial_sample(
        self, modes: NDArray[np.complex128], points: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return fields on the grid's points with covariance M, from white noise."""
        smooth = self.grid.to_points(modes * self._roots.symbol.of(modes))
        return smooth + points * self._roots.density.of(points)

    def _spatial_solve(self, fields: NDArray) -> NDArray:
        """Return M⁻¹ of fields on the grid's points."""
        columns = fields.reshape(len(fields), -1).T
        solved = self.factor.solve(np.ascontiguousarray(columns)).T
        return solved.reshape(fields.shape) / self.typical_density

    def _laplacian_symbol(self) -> NDArray[np.float64]:
        """Return λ at the grid's modes: Σ_d (2 − 2 cos(2πt_d/n_d)) (n_d/(2π t*_d))²."""
        phases = 2 * np.pi * self.grid.indices / np.array(self.grid.points)
        return np.sum((2 - 2 * np.cos(phases)) * self._stencil_weights, axis=-1)

    @property
    def _stencil_weights(self) -> NDArray[np.float64]:
        return (np.array(self.grid.points) / (2 * np.pi * self._transition)) ** 2

    @cached_property
    def inverse_diagonal(self) -> NDArray[np.float64]:
        """The diagonal of M⁻¹ on the grid's points."""
        factor = self.factor
        if not isinstance(factor, GridFactor):
            with within_precision():
                factor = GridFactor(*self._matrix(), self.grid.num_threads)
        with one_thread():
            diagonal = factor.inverse_diagonal()
        return diagonal.reshape(self.grid.points) / self.typical_density

    def _factorise(self) -> Factor:
        matrix, points, reach = self._matrix()
        with within_precision():
            if self.grid.num_dims == 1:
                return BandedFactor(matrix, reach)
            with one_thread():
                return GridFactor(matrix, points, reach, self.grid.num_threads)

    def _matrix(self) -> tuple[scipy.sparse.csr_array, tuple[int, ...], int]:
        """Return M over the typical density, its grid, and how far it couples."""
        points = self.grid.points
        laplacian = laplacian_matrix(points, self._stencil_weights)
        density = self.density.ravel() / self.typical_density
        matrix = scipy.sparse.diags_array(density, format="csr")
        power = scipy.sparse.eye_array(self.grid.size, format="csr")
        for j, c in enumerate(self.coefficients):
            matrix = matrix + c / self.typical_density * power
            if j + 1 < len(self.coefficients):
                power = power @ laplacian
        return scipy.sparse.csr_array(matrix), points, max(len(self.coefficients) - 1, 1)


class EvenPreconditioner:
    """P = 1 + N s/σ², a diagonal; see the module's docstring.

    Parameters
    ----------
    system : LatticeSystem
    """

    expected_iterations = 300

    def __init__(self, system: LatticeSystem) -> None:
        self.outer = system.grid
        points = _limited(np.array(self.outer.extent), _MOST_POINTS[self.outer.num_dims][0])
        #: Where variances are wanted.
        self.grid = ModeGrid(tuple(int(k) for k in points), self.outer.num_threads)
        self.typical_density = _typical_density(system)
        mean_density = system.density.count / system.noise_variance
        self.others = 1 + mean_density * system.masses
        self._inverse, self._root = Scales(1 / self.others), Scales(np.sqrt(self.others))
        self.log_determinant = self.outer.total(np.log(self.others))
        self.density = system.density.smoothed(self.grid.points) / system.noise_variance
        self._masses = self.outer.extract(system.masses, self.grid)

    def solve(self, vectors: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return P⁻¹ v for each vector of a batch."""
        return vectors * self._inverse.of(vectors)

    def sample(self, noise: PreconditionerNoise) -> NDArray[np.complex128]:
        """Return vectors with covariance P, from noise that does not depend on P."""
        return noise.modes * self._root.of(noise.modes)

    def noise(
        self, rng: np.random.Generator, num: int, precision: Precision = np.float64
    ) -> PreconditionerNoise:
        """Return noise for `sample`."""
        return PreconditionerNoise(self.outer.noise(rng, num, precision), np.empty((num, 0)))

    def inverse_modes(
        self, rng: np.random.Generator, expected: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the diagonal of P⁻¹, which is known."""
        return 1 / self.others

    def companions(self, noise: PreconditionerNoise) -> None:
        """Return `None`: no field of known variance goes with a sample."""

    @cached_property
    def inverse_diagonal(self) -> NDArray[np.float64]:
        """The variance where data of the local density were spread evenly, on the points."""
        table = np.append(0.0, np.geomspace(1e-6, 1.0, 60)) * self.density.max()
        left = [self.grid.total(self._masses / (1 + rho * self._masses)) for rho in table]
        variance = np.exp(np.interp(self.density, table, np.log(left)))
        return variance / self.grid.size


Preconditioner = SpatialPreconditioner | EvenPreconditioner


def choose_preconditioner(
    system: LatticeSystem, like: Preconditioner | None = None, *, fine: bool = False
) -> Preconditioner:
    """Return the preconditioner that suits a system, of the same kind as another one if given."""
    if like is None:
        if system.grid.num_dims == 3:
            ends, _ = _ends(system, fine)
            points = 2 * ends + 1
            if np.prod(points) > _MOST_POINTS[3][0] or points.min() < _FEWEST_POINTS:
                return EvenPreconditioner(system)
        return SpatialPreconditioner(system, fine=fine)
    if isinstance(like, EvenPreconditioner):
        return EvenPreconditioner(system)
    return SpatialPreconditioner(system, like, fine=fine)


class PreconditionerNoise(NamedTuple):
    """White noise on the modes and on the grid's points, in single or in double precision."""

    modes: NDArray
    points: NDArray


class _Roots(NamedTuple):
    """Square roots of the diagonal beyond the grid, of the symbol and of the density."""

    others: Scales
    symbol: Scales
    density: Scales


def _typical_density(system: LatticeSystem) -> float:
    """Return the density/σ² that a row sees on average."""
    coarse = system.density.smoothed(tuple(min(2 * k + 1, 63) for k in system.grid.extent))
    return float(np.sum(coarse**2) / np.sum(coarse)) / system.noise_variance


def _ends(system: LatticeSystem, fine: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return where along each axis the data's say has fallen far enough, and the transition t*."""
    grid, density = system.grid, _typical_density(system)
    reach = _VARIANCES if fine else _SOLVING[grid.num_dims]
    ends, transitions = [], []
    for axis in range(grid.num_dims):
        where: list = [0] * grid.num_dims
        where[axis] = slice(grid.extent[axis] + 1)
        along = density * system.masses[tuple(where)]
        transitions.append(_crossing(along, 1.0))
        ends.append(_crossing(along, reach))
    extent = np.minimum(np.ceil(ends).astype(int), grid.extent)
    return np.maximum(extent, np.minimum(grid.extent, 4)), np.array(transitions)


def _choose_extent(
    system: LatticeSystem, fine: bool
) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """Return the grid's extent and the transition t*_d along each axis."""
    grid = system.grid
    ends, transitions = _ends(system, fine)
    # For variances the grid is not so fine that it would cost the second power.
    limits = _MOST_POINTS[grid.num_dims]
    most = limits[min(int(fine), grid.num_dims - 1) if grid.num_dims < 3 else 0]
    extent = _limited(ends, most)
    fast = [min(fast_extent(int(k)), outer) for k, outer in zip(extent, grid.extent, strict=True)]
    return tuple(fast), transitions


def _limited(extent: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return an extent in about the same proportions with at most so many points."""
    while np.prod(2 * extent + 1) > most:
        extent = np.maximum((extent * 0.95).astype(int), 1)
    return extent


def _crossing(falling: NDArray[np.float64], level: float) -> float:
    """Return the index where a falling sequence first meets `level`, beyond its end if need be."""
    below = np.flatnonzero(falling[1:] < level)
    if len(below):
        return float(below[0] + 1)
    last, first = len(falling) - 1, max((len(falling) - 1) // 2, 1)
    if last <= first:
        return float(max(last, 1))
    slope = np.log(falling[last] / falling[first]) / np.log(last / first)
    return last * float(np.clip((level / falling[last]) ** (1 / min(slope, -0.1)), 1.0, 100.0))
