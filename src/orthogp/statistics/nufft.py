r"""Sums over scattered points and series at scattered points, by non-uniform FFT.

    type 1    F_c[t] = Σ_n c_n e^{iω_t·(x_n−x₀)}        from points to the lattice
    type 2    f(x_n) = Σ_t a_t e^{iω_t·(x_n−x₀)}        from the lattice to points

Two real columns share one complex transform: each real column's sums have Hermitian symmetry, and
each real series is the real or imaginary part of the result.

The sums of two components' products are half sums and differences of
Σ w_n e^{i(ω_t·x_i ± ω_t'·x_j)}, one transform in d_i + d_j ≤ 3 dimensions for each pair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import finufft
import numpy as np
from numpy.typing import NDArray

from orthogp.statistics.lattice import MAX_DIMS, ComponentLattice, FrequencyLattice

# The transforms' relative error. B = I + A/σ² must keep its eigenvalues ≥ 1 for signal-to-noise
# ratios N v/σ² as large as 1e10, and tight tolerances cost little (see docs/mathematics.md).
TOLERANCE = 1e-12

# Rows transformed at once. Each call synchronises the threads several times, so that small chunks
# are slow on a busy machine; four million rows need about 200 MB of buffers.
CHUNK_ROWS = 2**22

# Chunks are summed in one unit as long as their columns' sizes differ by no more powers of two.
_SAME_UNIT = 6


class Transforms(NamedTuple):
    """The relative error of transforms, their threads (all cores if `None`), and rows at once."""

    tolerance: float = TOLERANCE
    num_threads: int | None = None
    chunk_rows: int = CHUNK_ROWS


# Whether this process is the child of one that may have used threads, without `exec` in between.
_forked = False


def _note_fork() -> None:
    """Work on one thread from now on: a child waits for ever for OpenMP threads of its parent."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def available_threads(num_threads: int | None = None) -> int:
    """Return the number of threads to work with, never more than the cores of this process.

    `None` is all of them; −1, −2, … are all, all but one, and so on, as elsewhere in Python.
    """
    if _forked:
        return 1
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # Workers of joblib and dask are told their share by this variable, and FINUFFT warns beyond it.
    share = os.environ.get("OMP_NUM_THREADS", "")
    if share.isdigit() and int(share) > 0:
        cores = min(cores, int(share))
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


# Rows whose cosines and sines are formed at once.
_PRODUCT_ROWS = 2**12
# Rough figures, which only decide whether a pair is summed by a transform or from its products:
# the seconds that one cosine or sine takes,
_WAVE_SECONDS = 5e-9
# the seconds that one product of two of them takes,
_PRODUCT_SECONDS = 6e-11
# the seconds that a transform takes for each row, by its number of dimensions,
_ROW_SECONDS = {2: 3e-7, 3: 1.5e-6}
# and the seconds that it takes for each mode.
_MODE_SECONDS = 2e-7


def cross_sums(
    components: Sequence[ComponentLattice],
    X: NDArray,
    weights: NDArray[np.float64] | None,
    transforms: Transforms,
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return Σ w_n (cos, sin)(ω_t·x_i) (cos, sin)(ω_t'·x_j) for all pairs of components i < j.

    Each by one transform in d_i + d_j ≤ 3 dimensions; beyond, or for few rows, from the cosines and
    sines themselves.
    """
    pairs = list(combinations(range(len(components)), 2))
    transformed = {
        pair
        for pair in pairs
        if _transform_is_quicker(components[pair[0]], components[pair[1]], len(X))
    }
    blocks = _products(components, [pair for pair in pairs if pair not in transformed], X, weights)
    for i, j in transformed:
        blocks[i, j] = _transformed(components[i], components[j], X, weights, transforms)
    return {pair: blocks[pair] for pair in pairs}


def _transform_is_quicker(first: ComponentLattice, second: ComponentLattice, num_rows: int) -> bool:
    num_dims = len(first.columns) + len(second.columns)
    if num_dims > MAX_DIMS:
        return False
    waves = num_rows * 2 * (len(first.indices) + len(second.indices)) * _WAVE_SECONDS
    product = waves + num_rows * 4 * len(first.indices) * len(second.indices) * _PRODUCT_SECONDS
    modes = float(np.prod(2 * np.concatenate([first.reach, second.reach]) + 1.0)) / 2
    return product > num_rows * _ROW_SECONDS[num_dims] + modes * _MODE_SECONDS


def _transformed(
    first: ComponentLattice,
    second: ComponentLattice,
    X: NDArray,
    weights: NDArray[np.float64] | None,
    transforms: Transforms,
) -> NDArray[np.float64]:
    """Return the cross sums of two components by one transform in all their dimensions."""
    if len(first.columns) > 1:
        return np.ascontiguousarray(_transformed(second, first, X, weights, transforms).T)
    box = FrequencyLattice(second.lattice.spacing, second.reach, second.lattice.centre)
    shape = (int(first.reach[0]) + 1, *box.target_shape)
    totals = np.zeros(shape, dtype=np.complex128)
    threads = available_threads(transforms.num_threads)
    plan = finufft.Plan(1, shape, eps=transforms.tolerance, isign=1, nthreads=threads)
    for part in chunks(len(X), transforms.chunk_rows):
        rows = X[part]
        phases = np.empty((len(shape), len(rows)))
        scaled_phases(rows[:, list(first.columns)], first.lattice, out=phases[:1])
        scaled_phases(rows[:, list(second.columns)], box, out=phases[1:])
        # Sums at negative t are conjugates. Weights times e^{iω_c x}, c in the middle of 0, …, K,
        # make the half range 0 ≤ t ≤ K a centred one, and the transform half as large.
        strengths = np.exp(1j * (shape[0] // 2) * phases[0])
        if weights is not None:
            strengths *= weights[part]
        plan.setpts(*phases)
        totals += plan.execute(strengths)
    # A half set in one dimension may hold either of ±t; the sums are at t ≥ 0.
    t, other = first.indices[1:, 0], second.indices[1:]
    sign = np.where(t < 0, -1, 1)
    flat = totals.reshape(len(totals), -1)
    strides = np.array(np.empty(box.target_shape, dtype=np.int8).strides)
    linear, middle = other @ strides, flat.shape[1] // 2
    plus = flat[np.abs(t)[:, None], middle + sign[:, None] * linear]
    minus = flat[np.abs(t)[:, None], middle - sign[:, None] * linear]
    c, s = len(t), len(other)
    block = np.empty((2 * c, 2 * s))
    block[:c, :s] = (minus.real + plus.real) / 2
    block[c:, s:] = (minus.real - plus.real) / 2
    # The imaginary parts belong to sign · θ ± θ'.
    block[c:, :s] = sign[:, None] * (plus.imag + minus.imag) / 2
    block[:c, s:] = sign[:, None] * (plus.imag - minus.imag) / 2
    return block


def _products(
    components: Sequence[ComponentLattice],
    pairs: list[tuple[int, int]],
    X: NDArray,
    weights: NDArray[np.float64] | None,
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return the cross sums of some pairs from the cosines and sines themselves."""
    blocks: dict[tuple[int, int], NDArray[np.float64]] = {
        (i, j): np.zeros((2 * len(components[i].indices) - 2, 2 * len(components[j].indices) - 2))
        for i, j in pairs
    }
    needed = sorted({i for pair in pairs for i in pair})
    for part in chunks(len(X), _PRODUCT_ROWS):
        designs = {i: components[i].design(X[part]) for i in needed}
        for (i, j), block in blocks.items():
            right = designs[j] if weights is None else weights[part, None] * designs[j]
            block += designs[i].T @ right
    return blocks


def evaluate_series(
    coefficients: NDArray[np.complex128],
    lattice: FrequencyLattice,
    X: NDArray,
    *,
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
        eps=TOLERANCE,
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
