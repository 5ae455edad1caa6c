"""The sums of two components together: products of their cosines and sines over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.statistics.lattice import MAX_DIMS, FrequencyLattice
from orthogp.statistics.nufft import PairSums, chunks

# Rows whose cosines and sines are formed at once.
_PRODUCT_ROWS = 2**12
# Seconds for each cosine or sine, for each product of two at a row; for each row of a transform and
# each of its modes (rough figures: they only decide which way is taken).
_WAVE_SECONDS, _PRODUCT_SECONDS = 5e-9, 6e-11
_ROW_SECONDS, _MODE_SECONDS = {2: 3e-7, 3: 1.5e-6}, 2e-7


class ComponentLattice(NamedTuple):
    """Where a component is summed.

    Attributes
    ----------
    columns : tuple of int
        The columns of X that it acts on.
    lattice : FrequencyLattice
        Up to whose extent its own sums are kept.
    indices : (s, d)
        A half set, index zero first, for which the sums with other components are kept too.
    """

    columns: tuple[int, ...]
    lattice: FrequencyLattice
    indices: NDArray[np.int64]

    @property
    def reach(self) -> NDArray[np.int64]:
        """The largest kept index along each column, (d,)."""
        return np.abs(self.indices).max(axis=0)

    def design(self, X: NDArray) -> NDArray[np.float64]:
        """Return the cosines, then the sines, at all kept indices but zero, (n, 2s−2)."""
        inputs = np.asarray(X[:, list(self.columns)], dtype=np.float64) - self.lattice.centre
        phases = inputs @ (self.indices[1:] * self.lattice.spacing).T
        return np.concatenate([np.cos(phases), np.sin(phases)], axis=1)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ComponentLattice)
            and self.columns == other.columns
            and self.lattice == other.lattice
            and np.array_equal(self.indices, other.indices)
        )

    __hash__ = None  # type: ignore[assignment]


def cross_sums(
    components: Sequence[ComponentLattice],
    X: NDArray,
    weights: NDArray[np.float64] | None,
    *,
    tolerance: float,
    num_threads: int | None,
    chunk_rows: int,
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
        blocks[i, j] = _transformed(
            components[i],
            components[j],
            X,
            weights,
            tolerance=tolerance,
            num_threads=num_threads,
            chunk_rows=chunk_rows,
        )
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
    *,
    tolerance: float,
    num_threads: int | None,
    chunk_rows: int,
) -> NDArray[np.float64]:
    """Return the cross sums of two components by one transform in all their dimensions."""
    if len(first.columns) > 1:
        turned = _transformed(
            second,
            first,
            X,
            weights,
            tolerance=tolerance,
            num_threads=num_threads,
            chunk_rows=chunk_rows,
        )
        return np.ascontiguousarray(turned.T)
    boxes = [
        FrequencyLattice(own.lattice.spacing, own.reach, own.lattice.centre)
        for own in (first, second)
    ]
    sums = PairSums(*boxes, tolerance=tolerance, num_threads=num_threads)
    for part in chunks(len(X), chunk_rows):
        rows = X[part]
        own_weights = None if weights is None else weights[part]
        sums.add(rows[:, list(first.columns)], rows[:, list(second.columns)], own_weights)
    totals = sums.totals()
    # A half set in one dimension may hold either of ±t; the sums are at t ≥ 0.
    t, other = first.indices[1:, 0], second.indices[1:]
    sign = np.where(t < 0, -1, 1)
    flat = totals.reshape(len(totals), -1)
    strides = np.array(np.empty(boxes[1].target_shape, dtype=np.int8).strides)
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
