r"""Sums over scattered points and series at scattered points, by non-uniform FFT.

    type 1    F_c[t] = Σ_n c_n e^{iω_t·(x_n−x₀)}        from points to the lattice
    type 2    f(x_n) = Σ_t a_t e^{iω_t·(x_n−x₀)}        from the lattice to points

Two real columns share one complex transform: each real column's sums have Hermitian symmetry, and
each real series is the real or imaginary part of the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import finufft
import numpy as np
from numpy.typing import NDArray

from orthogp.statistics.lattice import FrequencyLattice

# The transforms' relative error. B = I + A/σ² must keep its eigenvalues ≥ 1 for signal-to-noise
# ratios N v/σ² as large as 1e10, and tight tolerances cost little (see docs/mathematics.md).
TOLERANCE = 1e-12

# Rows transformed at once. Each call synchronises the threads several times, so that small chunks
# are slow on a busy machine; four million rows need about 200 MB of buffers.
CHUNK_ROWS = 2**22

# Chunks are summed in one unit as long as their columns' sizes differ by no more powers of two.
_SAME_UNIT = 6


def available_threads(num_threads: int | None = None) -> int:
    """Return the number of threads to work with, never more than the cores of this process.

    `None` is all of them; −1, −2, … are all, all but one, and so on, as elsewhere in Python.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    if num_threads is None:
        return cores
    # Native code takes memory for each thread, and ends the process if it cannot start one.
    asked = int(num_threads)
    return max(1, min(asked if asked >= 0 else cores + 1 + asked, cores))


class ColumnSums:
    """Accumulates Σ_n w_n c_n e^{iω_t·(x_n−x₀)} of several real columns c, chunk by chunk.

    Columns that share a transform share its error. Each is therefore transformed in a unit of its
    own, a power of two close to its size, so that the sums of none drown in the error of another's.
    """

    def __init__(
        self,
        lattice: FrequencyLattice,
        num_columns: int,
        *,
        tolerance: float = TOLERANCE,
        num_threads: int | None = None,
        max_rows: int = CHUNK_ROWS,
    ) -> None:
        self._lattice = lattice
        self._num_columns = num_columns
        self._num_transforms = (num_columns + 1) // 2
        self._total = np.zeros((self._num_transforms, *lattice.point_shape), dtype=np.complex128)
        self._units = np.zeros(num_columns)
        # Columns of zeros have sums of zeros, without a neighbour's rounding.
        self._zero = np.ones(num_columns, dtype=bool)
        # Σ w_n c_n as it is, for frequency zero: totals and means are exact to rounding.
        self._plain = np.zeros(num_columns)
        # What was summed in other units.
        self._before: NDArray[np.complex128] | None = None
        self._plan = finufft.Plan(
            1,
            lattice.point_shape,
            n_trans=self._num_transforms,
            eps=tolerance,
            isign=1,
            nthreads=available_threads(num_threads),
            # In one dimension the whole grid stays in cache, and sorting the points costs half
            # as much again as the transform; in more, finufft decides.
            spread_sort=0 if lattice.num_dims == 1 else 2,
        )
        # Buffers that every chunk re-uses: the pages stay warm, and memory stays bounded.
        self._phases = np.empty((lattice.num_dims, max_rows))
        self._strengths = np.zeros((self._num_transforms, max_rows), dtype=np.complex128)
        self._output = np.empty_like(self._total)

    def add(
        self,
        X: NDArray,
        columns: list[NDArray | float],
        weights: NDArray[np.float64] | None = None,
        sizes: NDArray[np.float64] | None = None,
    ) -> None:
        """Add the rows of `X` with one value per row in each of `columns` (a float: the same).

        `sizes` tells how large the columns are, as roots of their mean squares: one unless given.
        """
        n = len(X)
        self._choose_units(np.ones(self._num_columns) if sizes is None else sizes)
        phases = self._phases[:, :n]
        scaled_phases(X, self._lattice, out=phases)
        strengths = self._strengths[:, :n]
        for j, column in enumerate(columns):
            part = strengths[j // 2].real if j % 2 == 0 else strengths[j // 2].imag
            if weights is None:
                part[:] = column
            else:
                np.multiply(weights, column, out=part)
            self._plain[j] += part.sum()
            self._zero[j] = self._zero[j] and not part.any()
            if self._units[j] != 1:
                part /= self._units[j]
        self._plan.setpts(*phases)
        # finufft wants rows of transforms without gaps; a partial last chunk of several has them.
        data = strengths[0] if self._num_transforms == 1 else np.ascontiguousarray(strengths)
        out = self._output[0] if self._num_transforms == 1 else self._output
        self._plan.execute(data, out=out)
        self._total += self._output

    def totals(self) -> NDArray[np.complex128]:
        """Return the sums of each column over |t_d| ≤ 2K_d, (columns, 4K+1, …)."""
        axes = tuple(range(1, self._total.ndim))
        mirrored = np.conj(np.flip(self._total, axis=axes))
        separated = np.stack([(self._total + mirrored) / 2, (self._total - mirrored) / 2j], axis=1)
        sums = separated.reshape(-1, *self._lattice.point_shape)[: self._num_columns]
        for own, unit, zero in zip(sums, self._units, self._zero, strict=True):
            if zero:
                own[:] = 0.0
            elif unit != 1:
                own *= unit
        if self._before is not None:
            sums += self._before
        sums[(slice(None), *(2 * self._lattice.extent))] = self._plain
        return sums

    def _choose_units(self, sizes: NDArray[np.float64]) -> None:
        """Go on in the present units, or if columns of these sizes are far from them in others."""
        known = np.isfinite(sizes) & (sizes > 0)
        units = _units(sizes)
        if not self._units.any():
            self._units = units
        elif np.any(known & (np.abs(np.log2(units) - np.log2(self._units)) > _SAME_UNIT)):
            self._before = self.totals()
            self._total[:] = 0.0
            self._units = units


def column_sizes(products: NDArray[np.float64], count: float) -> NDArray[np.float64]:
    """Return the roots of the mean squares of a column of ones and of others, (1 + q,).

    Parameters
    ----------
    products : (q, q)
        Σ w_n c_ni c_nj.
    count : float
        Σ w_n.
    """
    squares = np.diag(products) / count if count > 0 else np.zeros(len(products))
    return np.sqrt(np.append(1.0, squares))


class PairSums:
    """Accumulates Σ_n w_n e^{i(ω_s·x_n + ω_t·z_n)} over two lattices, chunk by chunk.

    Here 0 ≤ s ≤ K of a lattice in one dimension, and |t_d| ≤ K_d of another: the sums at negative s
    are conjugates. Multiplying the weights by e^{iω_c x} with c in the middle of 0, …, K makes the
    half range a centred one, and the transform half as large.
    """

    def __init__(
        self,
        first: FrequencyLattice,
        second: FrequencyLattice,
        *,
        tolerance: float = TOLERANCE,
        num_threads: int | None = None,
    ) -> None:
        self._first, self._second = first, second
        shape = (int(first.extent[0]) + 1, *second.target_shape)
        self._shift = shape[0] // 2
        self._total = np.zeros(shape, dtype=np.complex128)
        self._plan = finufft.Plan(
            1, shape, eps=tolerance, isign=1, nthreads=available_threads(num_threads)
        )

    def add(self, X: NDArray, Z: NDArray, weights: NDArray[np.float64] | None = None) -> None:
        """Add rows with inputs X (n, 1) on the first lattice and Z (n, d) on the second."""
        phases = np.empty((1 + self._second.num_dims, len(X)))
        scaled_phases(X, self._first, out=phases[:1])
        scaled_phases(Z, self._second, out=phases[1:])
        strengths = np.exp(1j * self._shift * phases[0])
        if weights is not None:
            strengths *= weights
        self._plan.setpts(*phases)
        self._total += self._plan.execute(strengths)

    def totals(self) -> NDArray[np.complex128]:
        """Return the sums, (K+1, 2K+1, …), index zero of the second lattice in the middle."""
        return self._total


def evaluate_series(
    coefficients: NDArray[np.complex128],
    lattice: FrequencyLattice,
    X: NDArray,
    *,
    tolerance: float = TOLERANCE,
    num_threads: int | None = None,
) -> NDArray[np.float64]:
    """Return real series Σ_t a_t e^{iω_t·(x_n−x₀)} at the rows of X, (n, series).

    Parameters
    ----------
    coefficients : (series, 2J+1, …)
        With Hermitian symmetry, index zero in the middle of every axis.
    lattice : FrequencyLattice
        Gives the spacing and the centre; the extent comes from the coefficients.
    """
    num_series = len(coefficients)
    # Each in a unit of its own, as columns are: two that share a transform share its error.
    sizes = np.linalg.norm(coefficients.reshape(num_series, -1), axis=1)
    units = _units(sizes)
    column = (slice(None), *(None,) * lattice.num_dims)
    pairs = coefficients[0::2] / units[0::2][column].astype(np.complex128)
    pairs[: num_series // 2] += 1j * (coefficients[1::2] / units[1::2][column])
    num_transforms = len(pairs)
    plan = finufft.Plan(
        2,
        coefficients.shape[1:],
        n_trans=num_transforms,
        eps=tolerance,
        isign=1,
        nthreads=available_threads(num_threads),
    )
    result = np.empty((len(X), 2 * num_transforms))
    pairs = pairs[0] if num_transforms == 1 else pairs
    phases = np.empty((lattice.num_dims, min(len(X), CHUNK_ROWS)))
    for rows in chunks(len(X)):
        chunk_phases = phases[:, : rows.stop - rows.start]
        scaled_phases(X[rows], lattice, out=chunk_phases)
        plan.setpts(*chunk_phases)
        if num_transforms == 1:
            # A complex row is its real and imaginary parts side by side: no copy.
            plan.execute(pairs, out=result[rows].view(np.complex128)[:, 0])
        else:
            values = plan.execute(pairs)
            result[rows] = np.ascontiguousarray(values.T).view(np.float64)
    result = result[:, :num_series]
    for j in np.flatnonzero((units != 1) | (sizes == 0)):
        result[:, j] *= units[j] if sizes[j] else 0.0
    return result


def scaled_phases(X: NDArray, lattice: FrequencyLattice, *, out: NDArray[np.float64]) -> None:
    """Write h∘(x − x₀), in double precision, to `out` of shape (d, n)."""
    for d in range(lattice.num_dims):
        np.subtract(X[:, d], lattice.centre[d], out=out[d])
        np.multiply(out[d], lattice.spacing[d], out=out[d])


def _units(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return powers of two close to sizes, one for what has none: dividing by them is exact."""
    known = np.isfinite(sizes) & (sizes > 0)
    return np.where(known, 2.0 ** np.round(np.log2(np.where(known, sizes, 1.0))), 1.0)


def chunks(num_rows: int, size: int = CHUNK_ROWS) -> Iterator[slice]:
    """Yield slices of at most `size` rows."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
