r"""Sums of products of series over the data, by FFT on the statistics.

    G_m[t] = Σ_n w_n e^{iω_t·(x_n−x₀)} φ_m(x_n) = Σ_u point_sums[t + u] c_m[u]

for series φ_m = Σ_u c_m[u] e^{iω_u·(x−x₀)}. The point sums up to 2n are the transform of a density
on a grid of 4n+1 points, so that G is: series to the grid, times the density, back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import fftn, irfftn, next_fast_len, rfftn

from orthogp.statistics import FourierStatistics

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
        self.shape = tuple(_fast_size(int(4 * n + 1)) for n in reach)
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


def _fast_size(least: int) -> int:
    size: Any = next_fast_len(least, real=True)
    return int(size)
