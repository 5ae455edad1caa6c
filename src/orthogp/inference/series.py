r"""Posterior functions as Fourier series.

A function on the lattice is α_t cos θ_t + β_t sin θ_t summed over a half set of indices, with
θ_t = ω_t·(x−x₀). Products of two such functions are again series, with indices a − b and a + b, so
a variance

    Σ_ij V_ij basis_i(x) basis_j(x)

is one series too: summing V along its diagonals turns O(m²) work per point into O(1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
