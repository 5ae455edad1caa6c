r"""Real functions on a lattice by half of their modes, and the posterior's precision of them.

A real function Σ_t a_t e^{iω_t·(x−x₀)}, |t_d| ≤ K_d, has a_{−t} = ā_t. Half of the modes suffice,
in the order of `scipy.fft.rfftn` for a grid of n_d = 2K_d + 1 points: frequencies 0…K, −K…−1 along
leading axes, 0…K along the last. The inner product is that of all modes,

    ⟨a, b⟩ = Σ_t ā_t b_t

With spectral weights s_t (masses), R = diag(√s) and T the Toeplitz matrix of the point sums, the
precision of the whitened modes is

    B = I + R T R/σ²,    (T a)_s = Σ_t Σ_n w_n e^{i(ω_t−ω_s)·(x_n−x₀)} a_t

T multiplies a function by the density of the data: evaluate on a grid of 4K+1 points or more,
multiply, transform back. The product is exact, and modes in single precision stay so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from orthogp.features.series import MASS_BLOCK, lattice_masses
from orthogp.inference.parameters import JACOBIAN_BLOCK, PriorJacobian, Slot, masses_and_jacobian
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics, FrequencyLattice

# The type stubs of scipy.fft do not accept arrays.
fft: Any = scipy.fft

Reals = NDArray[np.float64]
#: Functions by half of their modes, (batch, …), in double or in single precision.
Modes = NDArray[np.complex128]
Precision = type[np.float64] | type[np.float32]

# The number of standard deviations at which a Gaussian falls below 1e-8.
_ENDS_AT = 6.07
# The number of modes whose masses one call computes. Smaller grids use the small blocks for which
# functions have been compiled already.
_BLOCK = 2**15


@dataclass(frozen=True)
class ModeGrid:
    """Modes |t_d| ≤ K_d of real functions, K the extent, and their grid of 2K_d + 1 points."""

    extent: tuple[int, ...]
    num_threads: int = 1

    @property
    def num_dims(self) -> int:
        """The number of dimensions."""
        return len(self.extent)

    @property
    def points(self) -> tuple[int, ...]:
        """The shape 2K + 1 of the grid."""
        return tuple(2 * k + 1 for k in self.extent)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored half of the modes."""
        return (*self.points[:-1], self.extent[-1] + 1)

    @property
    def size(self) -> int:
        """The number of modes, which is the number of points."""
        return int(np.prod(self.points))

    @cached_property
    def weights(self) -> Reals:
        """The number of times each stored mode counts in sums over all modes, (K_D + 1,)."""
        return np.append(1.0, np.full(self.extent[-1], 2.0))

    @property
    def indices(self) -> NDArray[np.int64]:
        """The index t of each stored mode, (…, d)."""
        leading = [np.fft.ifftshift(np.arange(-k, k + 1)) for k in self.extent[:-1]]
        axes = [*leading, np.arange(self.extent[-1] + 1)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)

    def inner(self, a: Modes, b: Modes) -> Reals:
        """Return ⟨a, b⟩ for each pair of functions, batches broadcast against each other."""
        both = np.einsum("...i,...i->...", self._flat(a), self._flat(b))
        # The modes with t_D = 0 are stored with their conjugates.
        once = np.einsum("...i,...i->...", self._flat(a[..., :1]), self._flat(b[..., :1]))
        return 2 * both - once

    def _flat(self, modes: Modes) -> Reals:
        """Return the real and imaginary parts of each function in one row."""
        cut = modes.ndim - self.num_dims
        size = int(np.prod(modes.shape[cut:]))
        flat = np.ascontiguousarray(modes).reshape(*modes.shape[:cut], size)
        return flat.view(modes.real.dtype)

    def total(self, values: Reals) -> float:
        """Return the sum over all modes of a real quantity that ±t share."""
        return float(np.sum(values * self.weights))

    def noise(self, rng: np.random.Generator, num: int, precision: Precision = np.float64) -> Modes:
        """Return white noise, (num, …): ⟨a, noise⟩ has variance ⟨a, a⟩."""
        return self.from_points(rng.standard_normal((num, *self.points), dtype=precision))

    def from_points(self, values: NDArray) -> Modes:
        """Return the modes of values on the grid, by the unitary transform."""
        return fft.rfftn(values, axes=self._axes, norm="ortho", workers=self.num_threads)

    def to_points(self, modes: Modes) -> Reals:
        """Return values on the grid, by the unitary transform."""
        return fft.irfftn(
            modes, s=self.points, axes=self._axes, norm="ortho", workers=self.num_threads
        )

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-self.num_dims, 0))

    def extract(self, modes: NDArray, inner: ModeGrid) -> NDArray:
        """Return the modes of a smaller grid."""
        out = modes[..., : inner.extent[-1] + 1]
        for axis, k in enumerate(inner.extent[:-1]):
            out = _shortened(out, axis - self.num_dims, k)
        return out

    def insert(self, modes: NDArray, inner: ModeGrid, values: NDArray) -> None:
        """Overwrite the modes of a smaller grid, in place."""
        halves = [(slice(k + 1), slice(-k, None)) if k else (slice(1),) for k in inner.extent[:-1]]
        last = slice(inner.extent[-1] + 1)
        for choice in np.ndindex(*map(len, halves)):
            where = tuple(half[i] for half, i in zip(halves, choice, strict=True))
            modes[(..., *where, last)] = values[(..., *where, slice(None))]

    def masses(self, kernel: Kernel, lattice: FrequencyLattice) -> Reals:
        """Return the prior variances of the modes, (…)."""
        indices = self.indices.reshape(-1, self.num_dims)
        block = _BLOCK if len(indices) >= _BLOCK else MASS_BLOCK
        return lattice_masses(kernel, lattice, indices, block).reshape(self.shape)

    def masses_jacobian(
        self, logs: Reals, kernel: Kernel, slots: tuple[Slot, ...], lattice: FrequencyLattice
    ) -> PriorJacobian:
        """Return masses (…) and k(0) with their derivatives, (…, p), in the log parameters."""
        indices = self.indices.reshape(-1, self.num_dims)
        block = _BLOCK if len(indices) >= _BLOCK else JACOBIAN_BLOCK
        prior = masses_and_jacobian(logs, kernel, slots, lattice, indices, block)
        return prior._replace(
            masses=prior.masses.reshape(self.shape),
            jacobian=prior.jacobian.reshape(*self.shape, -1),
        )


class Scales:
    """Real factors of modes or of values, kept in both precisions."""

    def __init__(self, values: Reals) -> None:
        self._values = values

    @cached_property
    def _single(self) -> NDArray[np.float32]:
        return self._values.astype(np.float32)

    def of(self, vectors: NDArray) -> NDArray:
        """Return the factors in the precision of some vectors."""
        return self._single if vectors.dtype in (np.complex64, np.float32) else self._values


def half_of(centred: NDArray[np.complex128], extent: tuple[int, ...]) -> Modes:
    """Return the stored half |t_d| ≤ K_d of modes (…, 2J+1, …), index zero in the middle."""
    num_dims = len(extent)
    middle = [size // 2 for size in centred.shape[-num_dims:]]
    window = tuple(slice(m - k, m + k + 1) for m, k in zip(middle, extent, strict=True))
    kept = np.fft.ifftshift(centred[(..., *window)], axes=tuple(range(-num_dims, 0)))
    return np.ascontiguousarray(kept[..., : extent[-1] + 1])


def centred_from_half(half: Modes, extent: tuple[int, ...]) -> NDArray[np.complex128]:
    """Return all modes |t_d| ≤ K_d, index zero in the middle of every axis; see `half_of`."""
    axes = tuple(range(-len(extent), 0))
    right = np.fft.fftshift(half, axes=axes[:-1])
    left = np.conj(np.flip(right, axis=axes))[..., :-1]
    return np.concatenate([left, right], axis=-1)


def fast_extent(extent: int) -> int:
    """Return the smallest K ≥ `extent` for which transforms of 2K + 1 points are fast."""
    size = 2 * extent + 1
    # Only numbers without other prime factors divide a power of 3·5·7·11.
    while pow(3 * 5 * 7 * 11, size.bit_length(), size):
        size += 2
    return size // 2


class DataDensity:
    """What products with B need of the rows: their density on a grid, and the sums.

    `repeats` says whether weights count rows; else they are precisions, of the average
    `average_weight`: modes that the lattice lacks add that times their variance to σ².
    """

    def __init__(
        self, statistics: FourierStatistics, num_threads: int = 1, *, repeats: bool = True
    ) -> None:
        self.statistics = statistics
        self.average_weight = 1.0 if repeats else float(statistics.count / statistics.rows)
        self.lattice = statistics.lattice
        self.count = statistics.count
        extent = tuple(int(k) for k in statistics.lattice.extent)
        self.grid = ModeGrid(extent, num_threads)
        self._doubled = ModeGrid(tuple(2 * k for k in extent), num_threads)
        self._fine = tuple(fft.next_fast_len(4 * k + 1, real=True) for k in extent)
        # The density Σ w_n δ(x − x_n) has the conjugates of the sums as coefficients.
        self._coefficients = half_of(np.conj(statistics.point_sums), self._doubled.extent)
        self.targets = half_of(np.conj(statistics.target_sums), extent)
        self.covariates = half_of(np.conj(statistics.covariate_sums), extent)

    @cached_property
    def _values(self) -> Scales:
        """Σ_n w_n Σ_{|t| ≤ 2K} e^{iω_t·(x−x_n)} on the fine grid."""
        return Scales(_on_fine_grid(self._coefficients, self._doubled, self._fine))

    def times(self, modes: Modes) -> Modes:
        """Return T a for each function of a batch."""
        grid, threads = self.grid, self.grid.num_threads
        values = _on_fine_grid(modes, grid, self._fine)
        values *= self._values.of(values)
        out = fft.rfft(values, axis=-1, norm="forward", workers=threads)
        out = out[..., : grid.extent[-1] + 1]
        for axis in range(grid.num_dims - 2, -1, -1):
            where = axis - grid.num_dims
            out = fft.fft(out, axis=where, norm="forward", workers=threads)
            out = _shortened(out, where, grid.extent[axis])
        return out

    def smoothed(self, points: tuple[int, ...]) -> Reals:
        """Return the density on a coarser grid, averaged by a Gaussian of about a cell, ≥ 0.

        The Gaussian is as narrow as the frequencies |t| ≤ 2K of the sums allow, at least 0.4 cells:
        both the Gaussian and its Fourier series must have decayed, or else some density would leak
        into the gaps between data, where the preconditioner is sensitive to it.
        """
        num_dims = len(points)
        coefficients = self._coefficients
        for axis, (n, k) in enumerate(zip(points, self._doubled.extent, strict=True)):
            t = np.arange(k + 1) if axis == num_dims - 1 else np.fft.ifftshift(np.arange(-k, k + 1))
            width = max(_ENDS_AT * n / (2 * np.pi * max(k, 1)), 0.4)
            taper = np.exp(-((2 * np.pi * t / n * width) ** 2) / 2)
            coefficients = coefficients * taper.reshape(-1, *(1,) * (num_dims - 1 - axis))
        # The grid may have fewer points than modes: every step-th point of a fine enough multiple.
        steps = [-(-(2 * k + 1) // n) for k, n in zip(self._doubled.extent, points, strict=True)]
        fine = tuple(step * n for step, n in zip(steps, points, strict=True))
        values = _on_fine_grid(coefficients, self._doubled, fine)
        values = values[tuple(slice(None, None, step) for step in steps)]
        return np.where(values > 1e-8 * values.max(), values, 0.0)


class LatticeSystem:
    """B = I + R T R/σ² for one setting of the hyperparameters; `masses` are s_t, (…)."""

    def __init__(self, density: DataDensity, masses: Reals, noise_variance: float) -> None:
        self.density = density
        self.grid = density.grid
        self.masses = masses
        self.noise_variance = noise_variance
        self.amplitudes = np.sqrt(masses)
        self._before = Scales(self.amplitudes)
        self._after = Scales(self.amplitudes / noise_variance)

    def apply(self, vectors: Modes) -> Modes:
        """Return B v for each vector of a batch."""
        product = self.density.times(self.coefficients(vectors))
        product *= self._after.of(vectors)
        product += vectors
        return product

    def coefficients(self, vectors: Modes) -> Modes:
        """Return R v, the coefficients of the functions with whitened modes v."""
        return self._before.of(vectors) * vectors


def _on_fine_grid(modes: Modes, grid: ModeGrid, fine: tuple[int, ...]) -> Reals:
    """Return Σ_t a_t e^{iω_t·x} on a grid of `fine` points."""
    # Axis by axis: the last is padded only once the others are transformed, half of the work.
    threads = grid.num_threads
    for axis, n in enumerate(fine[:-1]):
        where = axis - grid.num_dims
        modes = _padded(modes, where, grid.extent[axis], n)
        modes = fft.ifft(modes, axis=where, norm="forward", overwrite_x=True, workers=threads)
    return fft.irfft(modes, n=fine[-1], axis=-1, norm="forward", workers=threads)


def _padded(modes: NDArray, axis: int, k: int, size: int) -> NDArray:
    shape = list(modes.shape)
    shape[axis] = size
    out = np.zeros(shape, dtype=modes.dtype)
    for part in (slice(k + 1), slice(-k, None)) if k else (slice(1),):
        where = (..., part, *(slice(None),) * (-axis - 1))
        out[where] = modes[where]
    return out


def _shortened(modes: NDArray, axis: int, k: int) -> NDArray:
    """Return frequencies 0…k, −k…−1 of an axis, counted from the last (−1)."""
    rest = (slice(None),) * (-axis - 1)
    head = modes[(..., slice(k + 1), *rest)]
    if not k:
        return head
    return np.concatenate([head, modes[(..., slice(-k, None), *rest)]], axis=axis)
