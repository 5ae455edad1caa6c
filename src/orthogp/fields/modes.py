r"""Real functions on a lattice, by half of their modes.

A real function Σ_t a_t e^{iω_t·(x−x₀)}, |t_d| ≤ K_d, has a_{−t} = ā_t. Half of the modes say all,
in the order of `scipy.fft.rfftn` for a grid of n_d = 2K_d + 1 points: frequencies 0…K, −K…−1 along
leading axes, 0…K along the last. The inner product is that of all modes:

    ⟨a, b⟩ = Σ_t ā_t b_t,   a sum over both of each pair ±t

Functions may be in single precision; what is made of them is too.

The masses of all modes of a grid, and their derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.features.series import MASS_BLOCK, lattice_masses
from orthogp.inference.parameters import (
    JACOBIAN_BLOCK,
    PriorJacobian,
    Slot,
    masses_and_jacobian,
)
from orthogp.kernels import Kernel
from orthogp.statistics import FrequencyLattice

# Its type stubs know no arrays.
fft: Any = scipy.fft

#: The precision of vectors, which everything made of them keeps.
Precision = type[np.float64] | type[np.float32]


@dataclass(frozen=True)
class ModeGrid:
    """Modes |t_d| ≤ K_d of real functions, and the grid of 2K_d + 1 points that they belong to.

    Parameters
    ----------
    extent : tuple
        K.
    num_threads : int
        For the transforms.
    """

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
        """The number of modes, which is that of points."""
        return int(np.prod(self.points))

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """How often each stored mode counts in sums over all modes, (K_D + 1,)."""
        weights = np.full(self.extent[-1] + 1, 2.0)
        weights[0] = 1.0
        return weights

    @property
    def indices(self) -> NDArray[np.int64]:
        """T of each stored mode, (…, d)."""
        leading = [np.fft.ifftshift(np.arange(-k, k + 1)) for k in self.extent[:-1]]
        axes = [*leading, np.arange(self.extent[-1] + 1)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)

    def inner(self, a: NDArray[np.complex128], b: NDArray[np.complex128]) -> NDArray[np.float64]:
        """Return ⟨a, b⟩ for each function of a batch, (…)."""
        both = np.einsum("...i,...i->...", self._flat(a), self._flat(b))
        # The modes with t_D = 0 are stored with their partners.
        once = np.einsum("...i,...i->...", self._flat(a[..., :1]), self._flat(b[..., :1]))
        return 2 * both - once

    def _flat(self, modes: NDArray[np.complex128]) -> NDArray[np.float64]:
        """Return real and imaginary parts of each function in a row."""
        lead = modes.shape[: modes.ndim - self.num_dims]
        return np.ascontiguousarray(modes).reshape(*lead, -1).view(modes.real.dtype)

    def total(self, values: NDArray[np.float64]) -> float:
        """Return the sum over all modes of a real quantity that ±t share."""
        return float(np.sum(values * self.weights))

    def noise(
        self, rng: np.random.Generator, num: int, precision: Precision = np.float64
    ) -> NDArray:
        """Return white noise, (num, …): ⟨a, noise⟩ has variance ⟨a, a⟩."""
        return self.from_points(rng.standard_normal((num, *self.points), dtype=precision))

    def from_points(self, values: NDArray[Any]) -> NDArray[np.complexfloating]:
        """Return the modes of values on the grid, by the unitary transform."""
        return fft.rfftn(values, axes=self._axes, norm="ortho", workers=self.num_threads)

    def to_points(self, modes: NDArray[Any]) -> NDArray[np.floating]:
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
            out = shortened(out, axis - self.num_dims, k)
        return out

    def insert(self, modes: NDArray[Any], inner: ModeGrid, values: NDArray[Any]) -> None:
        """Overwrite the modes of a smaller grid, in place."""
        halves = [((0, k + 1), (-k, None)) if k else ((0, 1),) for k in inner.extent[:-1]]
        last = slice(inner.extent[-1] + 1)
        for choice in np.ndindex(*(len(half) for half in halves)):
            where = tuple(slice(*half[i]) for half, i in zip(halves, choice, strict=True))
            modes[(..., *where, last)] = values[(..., *where, slice(None))]


class Scales:
    """Real numbers that modes are multiplied with, in the precision of the modes."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values = values

    @cached_property
    def _single(self) -> NDArray[np.float32]:
        return self._values.astype(np.float32)

    def of(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """Return them in single precision for such modes or values, in double for others."""
        return self._single if vectors.dtype in (np.complex64, np.float32) else self._values


def shortened(modes: NDArray, axis: int, k: int) -> NDArray:
    """Return frequencies 0…k, −k…−1 of an axis, counted from the last (−1)."""
    head = [slice(None)] * modes.ndim
    tail = head.copy()
    head[axis] = slice(k + 1)
    tail[axis] = slice(modes.shape[axis] - k, None)
    if not k:
        return modes[tuple(head)]
    return np.concatenate([modes[tuple(head)], modes[tuple(tail)]], axis=axis)


def half_of(
    centred: NDArray[np.complex128], extent: tuple[int, ...], num_dims: int
) -> NDArray[np.complex128]:
    """Return the stored half of modes given for all |t_d| ≤ J_d, index zero in the middle.

    Parameters
    ----------
    centred : (…, 2J+1, …)
    extent : tuple
        K ≤ J of what is kept.
    """
    axes = tuple(range(-num_dims, 0))
    middle = [size // 2 for size in centred.shape[-num_dims:]]
    window = tuple(slice(m - k, m + k + 1) for m, k in zip(middle, extent, strict=True))
    kept = np.fft.ifftshift(centred[(..., *window)], axes=axes)
    return np.ascontiguousarray(kept[..., : extent[-1] + 1])


def centred_from_half(
    half: NDArray[np.complex128], extent: tuple[int, ...]
) -> NDArray[np.complex128]:
    """Return all modes |t_d| ≤ K_d, index zero in the middle of every axis; see `half_of`."""
    num_dims = len(extent)
    leading = tuple(range(-num_dims, -1))
    right = np.fft.fftshift(half, axes=leading) if leading else half
    axes = tuple(range(-num_dims, 0))
    left = np.conj(np.flip(right, axis=axes))[..., :-1]
    return np.concatenate([left, right], axis=-1)


def fast_extent(extent: int) -> int:
    """Return the smallest K ≥ `extent` whose 2K + 1 points transform fast."""
    size = 2 * extent + 1
    while _without_factors(size, (3, 5, 7, 11)) > 1:
        size += 2
    return size // 2


def _without_factors(number: int, factors: tuple[int, ...]) -> int:
    for factor in factors:
        while number % factor == 0:
            number //= factor
    return number


# Modes whose masses are computed by one call, if there are as many; fewer are computed in the small
# blocks for which functions have been compiled already.
_BLOCK = 2**15


def with_offset(masses: NDArray[np.float64], mean: MeanPrior) -> NDArray[np.float64]:
    """Return the masses with the mean function's offset in mode zero."""
    if not mean.offset_variance:
        return masses
    masses = masses.copy()
    masses[(0,) * masses.ndim] += mean.offset_variance
    return masses


def grid_masses(kernel: Kernel, lattice: FrequencyLattice, grid: ModeGrid) -> NDArray[np.float64]:
    """Return the kernel's masses at the modes of a grid."""
    indices = grid.indices.reshape(-1, grid.num_dims)
    block = _BLOCK if len(indices) >= _BLOCK else MASS_BLOCK
    masses = lattice_masses(kernel, lattice, indices, block)
    return masses.reshape(grid.shape)


def masses_jacobian(
    log_parameters: NDArray[np.float64],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    lattice: FrequencyLattice,
    grid: ModeGrid,
) -> PriorJacobian:
    """Return masses and k(0) with their derivatives, (…, p), in the shape of a grid's modes."""
    indices = grid.indices.reshape(-1, grid.num_dims)
    block = _BLOCK if len(indices) >= _BLOCK else JACOBIAN_BLOCK
    prior = masses_and_jacobian(log_parameters, kernel, slots, lattice, indices, block)
    return prior._replace(
        masses=prior.masses.reshape(grid.shape),
        jacobian=prior.jacobian.reshape(*grid.shape, -1),
    )
