r"""Fourier series on boxes and grids: quadratic forms, and sums of products.

A function on the lattice is α_t cos θ_t + β_t sin θ_t summed over a half set of indices, with
θ_t = ω_t·(x−x₀). Products of two such functions are again series, with indices a − b and a + b, so
a variance

    Σ_ij V_ij basis_i(x) basis_j(x)

is one series too: summing V along its diagonals turns O(m²) work per point into O(1).

Sums of products of series over the data, by FFT on the statistics.

    G_m[t] = Σ_n w_n e^{iω_t·(x_n−x₀)} φ_m(x_n) = Σ_u point_sums[t + u] c_m[u]

for series φ_m = Σ_u c_m[u] e^{iω_u·(x−x₀)}. The point sums up to 2n are the transform of a density
on a grid of 4n+1 points, so that G is: series to the grid, times the density, back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import fftn, irfftn, next_fast_len, rfftn

from orthogp.statistics import FourierStatistics


class Blocks(NamedTuple):
    """A symmetric matrix over cosines and sines, each (s, s); the sine of index zero is zero."""

    cos_cos: NDArray[np.float64]
    sin_sin: NDArray[np.float64]
    cos_sin: NDArray[np.float64]

    @classmethod
    def split(cls, matrix: NDArray[np.float64], num_indices: int) -> Blocks:
        """Return the blocks of a matrix over s cosines and s − 1 sines."""
        s = num_indices
        sin_sin, cos_sin = np.zeros((s, s)), np.zeros((s, s))
        sin_sin[1:, 1:] = matrix[s : 2 * s - 1, s : 2 * s - 1]
        cos_sin[:, 1:] = matrix[:s, s : 2 * s - 1]
        return cls(matrix[:s, :s], sin_sin, cos_sin)

    def differentiated(self, omega: NDArray[np.float64]) -> Blocks:
        """Return the blocks for the derivatives along an axis with frequencies `omega`, (s,)."""
        outer = np.outer(omega, omega)
        # (α cos θ + β sin θ)' = ωβ cos θ − ωα sin θ
        return Blocks(outer * self.sin_sin, outer * self.cos_cos, -outer * self.cos_sin.T)


class SeriesBox(NamedTuple):
    """The indices |t_d| ≤ reach_d on which series are written."""

    reach: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        """2·reach + 1 in each dimension."""
        return tuple(int(2 * k + 1) for k in self.reach)

    def linear(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each index relative to index zero, in the flattened box."""
        strides = np.array(np.empty(self.shape, dtype=np.int8).strides)
        return indices @ strides

    @property
    def middle(self) -> int:
        """The position of index zero in the flattened box."""
        return int(np.prod(self.shape) // 2)

    def function(
        self, indices: NDArray[np.int64], cosines: NDArray[np.float64], sines: NDArray[np.float64]
    ) -> NDArray[np.complex128]:
        """Return the coefficients of Σ α_t cos θ_t + β_t sin θ_t."""
        flat = np.zeros(int(np.prod(self.shape)), dtype=np.complex128)
        flat[self.middle + self.linear(indices)] = cosines - 1j * sines
        return self._hermitian(flat)

    def quadratic(self, indices: NDArray[np.int64], blocks: Blocks) -> NDArray[np.complex128]:
        """Return the coefficients of Σ V_ij basis_i basis_j."""
        linear = self.linear(indices)
        flat = np.zeros(int(np.prod(self.shape)), dtype=np.complex128)
        even = blocks.cos_cos + blocks.sin_sin
        odd = blocks.cos_cos - blocks.sin_sin
        for positions, real, imaginary in (
            (self.middle + linear[:, None] - linear, even / 2, blocks.cos_sin),
            (self.middle + linear[:, None] + linear, odd / 2, -blocks.cos_sin),
        ):
            at = positions.ravel()
            flat.real += np.bincount(at, real.ravel(), minlength=len(flat))
            flat.imag += np.bincount(at, imaginary.ravel(), minlength=len(flat))
        return self._hermitian(flat)

    def _hermitian(self, flat: NDArray[np.complex128]) -> NDArray[np.complex128]:
        # The real part of Σ z_t e^{iθ_t} has coefficients (z_t + conj z_{−t})/2.
        return ((flat + np.conj(flat[::-1])) / 2).reshape(self.shape)


# Complex numbers worked on at once: 32 MB.
_BATCH = 2**21


class SeriesGrid:
    """The grid on which series over a half set of indices, and their products, are exact.

    Parameters
    ----------
    indices : (s, d)
        One of each pair ±t.
    """

    def __init__(self, indices: NDArray[np.int64]) -> None:
        reach = np.abs(indices).max(axis=0)
        self.reach = reach
        self.shape = tuple(fast_size(int(4 * n + 1)) for n in reach)
        num_dims = indices.shape[1]
        # Real transforms keep the non-negative half of their last axis; here of the first column.
        self._axes = (*range(2, num_dims + 1), 1)
        self._sizes = (*self.shape[1:], self.shape[0])
        self._half = (self.shape[0] // 2 + 1, *self.shape[1:])
        sizes = np.array(self.shape)
        strides = np.array(np.empty(self._half, dtype=np.int8).strides)
        # Each index, or its mirror image, whichever lies in that half; both on its edge.
        self._turned = indices[:, 0] < 0
        upright = np.where(self._turned[:, None], -indices, indices)
        self._at = np.mod(upright, sizes) @ strides
        self._edge = np.flatnonzero(indices[:, 0] == 0)
        self._mirror = np.mod(-indices[self._edge], sizes) @ strides

    @property
    def batch(self) -> int:
        """How many series to work on at once."""
        return max(1, _BATCH // int(np.prod(self._half)))

    def values(self, coefficients: NDArray[np.complex128]) -> NDArray[np.float64]:
        """Return Re Σ_t z_t e^{iω_t·x} of each row z over the half set, on the grid."""
        flat = np.zeros((len(coefficients), int(np.prod(self._half))), dtype=np.complex128)
        upright = np.where(self._turned, coefficients.conj(), coefficients) / 2
        flat[:, self._at] += upright
        flat[:, self._mirror] += upright[:, self._edge].conj()
        half = flat.reshape(len(flat), *self._half)
        return np.asarray(irfftn(half, s=self._sizes, axes=self._axes, norm="forward"))

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.complex128]:
        """Return Σ_g v_g e^{iω_t·x_g} of each row of grid values, at the half set, (m, s)."""
        transformed = np.asarray(rfftn(values, axes=self._axes))
        transformed = transformed.reshape(len(values), -1)[:, self._at]
        return np.where(self._turned, transformed, transformed.conj())

    def coefficients(self, values: NDArray[np.float64]) -> NDArray[np.complex128]:
        """Return the series c_t, |t_d| ≤ 2·reach_d, of one function given on the grid."""
        full = np.asarray(fftn(values), dtype=np.complex128) / np.prod(self.shape)
        at = [
            np.mod(np.arange(-2 * n, 2 * n + 1), size)
            for n, size in zip(self.reach, self.shape, strict=True)
        ]
        return full[np.ix_(*at)]

    def sum_of_squares(self, coefficients: NDArray[np.complex128]) -> NDArray[np.float64]:
        """Return Σ_m (Re Σ_t z_mt e^{iω_t·x})² on the grid."""
        total = np.zeros(self.shape)
        for start in range(0, len(coefficients), self.batch):
            values = self.values(coefficients[start : start + self.batch])
            total += np.einsum("m...,m...->...", values, values)
        return total

    def density(self, statistics: FourierStatistics) -> NDArray[np.float64]:
        """Return the grid density whose sums up to twice the reach are the data's."""
        middle = 2 * statistics.lattice.extent
        window = tuple(
            slice(int(k - 2 * n) if d else int(k), int(k + 2 * n + 1))
            for d, (k, n) in enumerate(zip(middle, self.reach, strict=True))
        )
        points = statistics.point_sums[window]
        half = np.zeros(self._half, dtype=np.complex128)
        at = [np.arange(2 * self.reach[0] + 1)]
        at += [
            np.mod(np.arange(-2 * n, 2 * n + 1), size)
            for n, size in zip(self.reach[1:], self.shape[1:], strict=True)
        ]
        half[np.ix_(*at)] = points.conj()
        grid = irfftn(half[None], s=self._sizes, axes=self._axes, norm="forward")
        return np.asarray(grid)[0] / np.prod(self.shape)


def as_complex(C: NDArray[np.float64], odd: NDArray[np.bool_]) -> NDArray[np.complex128]:
    """Return z with φ = Re Σ z_t e^{iθ_t}: C for series of cosines, −iC for series of sines."""
    turn = np.where(odd, -1j, 1.0).astype(np.complex128)
    return turn[:, None] * C


def fast_size(least: int) -> int:
    """Return a size, at least so large, at which transforms of real numbers are fast."""
    size: Any = next_fast_len(least, real=True)
    return int(size)
