r"""The posterior's precision on a lattice of many modes, as a product with vectors.

With masses s_t, R = diag(√s) and T the Toeplitz matrix of the point sums,

    B = I + R T R/σ²,    (T a)_s = Σ_t Σ_n w_n e^{i(ω_t−ω_s)·(x_n−x₀)} a_t

T multiplies a function by the data's density: evaluate on a grid of 4K+1 points or more, multiply,
transform back. No approximation enters, and vectors in single precision stay so.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from orthogp.fields.modes import ModeGrid, Scales, half_of, shortened
from orthogp.statistics import FourierStatistics

# Where a Gaussian's tail is below 1e-8.
_ENDS_AT = 6.07

# Its type stubs know no arrays.
fft: Any = scipy.fft


class DataDensity:
    """What the products need of the rows: the data's density on a grid, and the target sums.

    Parameters
    ----------
    statistics : FourierStatistics
    num_threads : int
    """

    def __init__(self, statistics: FourierStatistics, num_threads: int = 1) -> None:
        self.lattice = statistics.lattice
        extent = tuple(int(k) for k in statistics.lattice.extent)
        self.grid = ModeGrid(extent, num_threads)
        self.count = statistics.count
        self._fine = tuple(fft.next_fast_len(4 * k + 1, real=True) for k in extent)
        # The density Σ w_n δ(x − x_n) has the conjugates of the sums as coefficients.
        num_dims = len(extent)
        self._coefficients = half_of(
            np.conj(statistics.point_sums), tuple(2 * k for k in extent), num_dims
        )
        self.targets = half_of(np.conj(statistics.target_sums), extent, num_dims)
        self.covariates = half_of(np.conj(statistics.covariate_sums), extent, num_dims)

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Σ_n w_n Σ_{|t| ≤ 2K} e^{iω_t·(x−x_n)} on the fine grid."""
        doubled = ModeGrid(tuple(2 * k for k in self.grid.extent), self.grid.num_threads)
        return _on_fine_grid(self._coefficients, doubled, self._fine)

    @cached_property
    def _scales(self) -> Scales:
        return Scales(self.values)

    def times(self, modes: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return T a for each function of a batch."""
        grid, threads = self.grid, self.grid.num_threads
        values = _on_fine_grid(modes, grid, self._fine)
        values *= self._scales.of(values)
        out = fft.rfft(values, axis=-1, norm="forward", workers=threads)
        out = out[..., : grid.extent[-1] + 1]
        for axis in range(grid.num_dims - 2, -1, -1):
            where = axis - grid.num_dims
            out = fft.fft(out, axis=where, norm="forward", workers=threads)
            out = shortened(out, where, grid.extent[axis])
        return out

    def smoothed(self, points: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the density on a coarser grid, averaged by a Gaussian of about a cell, ≥ 0.

        The Gaussian is as narrow as the sums' frequencies |t| ≤ 2K allow, down to 0.4 cells: its
        Fourier series and the Gaussian itself must both end, or else some density would appear in
        the gaps between data, where any is too much.
        """
        extent = tuple(2 * k for k in self.grid.extent)
        num_dims = len(points)
        coefficients = self._coefficients
        for axis, (n, k) in enumerate(zip(points, extent, strict=True)):
            t = np.arange(k + 1) if axis == num_dims - 1 else np.fft.ifftshift(np.arange(-k, k + 1))
            width = max(_ENDS_AT * n / (2 * np.pi * max(k, 1)), 0.4)
            taper = np.exp(-((2 * np.pi * t / n * width) ** 2) / 2)
            coefficients = coefficients * taper.reshape(-1, *(1,) * (num_dims - 1 - axis))
        values = _on_points(coefficients, ModeGrid(extent, self.grid.num_threads), points)
        return np.where(values > 1e-8 * values.max(), values, 0.0)


class LatticeSystem:
    """B = I + R T R/σ² for one setting of the hyperparameters.

    Parameters
    ----------
    density : DataDensity
    masses : (…)
        The prior variances of the modes, in the order of `density.grid`.
    noise_variance : float
    """

    def __init__(
        self, density: DataDensity, masses: NDArray[np.float64], noise_variance: float
    ) -> None:
        self.density = density
        self.grid = density.grid
        self.masses = masses
        self.noise_variance = noise_variance
        self.amplitudes = np.sqrt(masses)
        self._before, self._after = (
            Scales(self.amplitudes),
            Scales(self.amplitudes / noise_variance),
        )

    def apply(self, vectors: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return B v for each vector of a batch."""
        product = self.density.times(self.coefficients(vectors))
        product *= self._after.of(vectors)
        product += vectors
        return product

    def coefficients(self, vectors: NDArray) -> NDArray:
        """Return R v, the coefficients of the functions that whitened modes stand for."""
        return self._before.of(vectors) * vectors

    def project(self, sums: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return R b/σ, whose B⁻¹-norm is the variance that the modes explain of b."""
        return sums * (self.amplitudes / np.sqrt(self.noise_variance))


def _on_fine_grid(
    modes: NDArray[np.complex128], grid: ModeGrid, fine: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return Σ_t a_t e^{iω_t·x} on a grid of as many points as `fine` says."""
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


def _on_points(
    modes: NDArray[np.complex128], grid: ModeGrid, points: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return Σ_t a_t e^{iω_t·x} on a grid of any number of points, fewer than modes included."""
    # Every n-th point of a multiple fine enough for the modes.
    steps = tuple(-(-(2 * k + 1) // n) for k, n in zip(grid.extent, points, strict=True))
    fine = tuple(step * n for step, n in zip(steps, points, strict=True))
    every = tuple(slice(None, None, step) for step in steps)
    return _on_fine_grid(modes, grid, fine)[every]
