r"""Sparse Cholesky factors of matrices on a periodic grid, by dense blocks.

Walls split the grid into parts that do not touch each other, each part is split in turn (nested
dissection), and every part or wall is eliminated at once, with a dense matrix over its points and
those around it (its front):

    [F₁₁ F₂₁ᵀ]    L₁₁L₁₁ᵀ = F₁₁,  L₂₁ = F₂₁L₁₁⁻ᵀ,  and F₂₂ − L₂₁L₂₁ᵀ goes on to the next larger part
    [F₂₁ F₂₂ ]

Fronts of one height do not depend on each other. Fronts of similar size are kept as one stack of
L₁₁⁻¹ and L₂₁, so that a solve is four products with every stack, limited by memory and not by
indexing. Stacks are therefore kept in single precision, which is ample for a preconditioner; they
are computed in double. The same blocks, in the opposite order, give the entries of the inverse on
the fronts, its diagonal among them.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.fields.system import Reals
from orthogp.precision import in_threads

Indices = NDArray[np.int64]

(trtri,) = get_lapack_funcs(("trtri",), dtype=np.float64)

# The most points of a part that is not split: for smaller parts overhead dominates.
_LEAF = 80
# The largest relative difference between the numbers of points of fronts in one stack.
_PADDING = 0.2
# The largest triangle that LAPACK inverts.
_SMALL_TRIANGLE = 96
# The fewest entries of a product that pays for a second thread.
_WORTH_THREADS = 1_500_000


class _Front(NamedTuple):
    """Points [first, last) of the order, the points around them, and the smaller parts inside.

    `runs` are, for each child, the pairs (slice of the child's surrounding points, slice of this
    front) that hold the same points.
    """

    first: int
    last: int
    around: Indices
    children: tuple[int, ...]
    runs: tuple[tuple[tuple[slice, slice], ...], ...]


class _Stack(NamedTuple):
    """Fronts that are solved with at once, padded with the place after the last point.

    `targets` holds the surrounding places, each once; `gather` adds up what goes to each of them.
    """

    fronts: tuple[int, ...]
    own: Indices
    around: Indices
    targets: Indices
    gather: scipy.sparse.csr_array


class _Blocks(NamedTuple):
    """L₁₁⁻¹ (fronts, own, own) and L₂₁ (fronts, around, own) of a stack, padded with zeros."""

    inverse: NDArray[np.float32]
    below: NDArray[np.float32]

    @classmethod
    def empty(cls, stack: _Stack) -> _Blocks:
        """Return zeros for a stack."""
        (num, own), around = stack.own.shape, stack.around.shape[1]
        inverse, below = (np.zeros((num, size, own), dtype=np.float32) for size in (own, around))
        return cls(inverse, below)


class Plan(NamedTuple):
    """An order of the points, the fronts that eliminate them, and the stacks of the fronts."""

    order: Indices
    fronts: tuple[_Front, ...]
    stacks: tuple[_Stack, ...]


class _Elimination:
    """Eliminates fronts of a matrix, in any order that puts children first."""

    def __init__(self, matrix: scipy.sparse.csr_array, plan: Plan) -> None:
        order, self._fronts, _ = plan
        permuted = scipy.sparse.csr_array(matrix)[order][:, order]
        self._indptr, self._indices, self._data = permuted.indptr, permuted.indices, permuted.data
        self._row_of = np.repeat(np.arange(len(order)), np.diff(permuted.indptr))
        #: The Schur complements F₂₂ − L₂₁L₂₁ᵀ that wait for the next larger part.
        self._updates: dict[int, Reals] = {}
        self.log_determinants = np.zeros(len(self._fronts))

    def eliminate(self, number: int, blocks: _Blocks, i: int) -> None:
        """Eliminate a front, and write the i-th of the blocks of its stack."""
        front = self._fronts[number]
        own = front.last - front.first
        F = self._assembled(front)
        corner: NDArray[Any] = np.linalg.cholesky(F[:own, :own])
        self.log_determinants[number] = 2 * float(np.sum(np.log(np.diag(corner))))
        inverse = _lower_inverse(corner)
        below = F[own:, :own] @ inverse.T
        # NumPy computes a matrix times its transpose by half of the products.
        square = below @ below.T
        self._updates[number] = np.subtract(F[own:, own:], square, out=square)
        blocks.inverse[i, :own, :own] = inverse
        blocks.below[i, : len(below), :own] = below

    def _assembled(self, front: _Front) -> Reals:
        """Return the lower triangle of a front: the matrix plus the updates of smaller parts."""
        own = front.last - front.first
        F = np.zeros((own + len(front.around),) * 2)
        part = slice(self._indptr[front.first], self._indptr[front.last])
        columns = self._indices[part]
        later = columns >= front.first
        place = _places(columns[later], front.first, front.last, front.around)
        F[place, self._row_of[part][later] - front.first] = self._data[part][later]
        for child, runs in zip(front.children, front.runs, strict=True):
            update = self._updates.pop(child)
            for j, (columns, own_columns) in enumerate(runs):
                for rows, own_rows in runs[j:]:
                    F[own_rows, own_columns] += update[rows, columns]
        return F


class GridFactor:
    """The Cholesky factor of a positive definite matrix on a periodic grid of some `points`.

    The matrix couples points within `reach` steps along the axes. Fronts of one stack are
    eliminated side by side, each with BLAS on one thread.
    """

    def __init__(
        self,
        matrix: scipy.sparse.csr_array,
        points: tuple[int, ...],
        reach: int,
        num_threads: int = 1,
    ) -> None:
        self._plan = plan(points, reach)
        self._num_threads = num_threads
        work = _Elimination(matrix, self._plan)
        self._blocks = [_Blocks.empty(stack) for stack in self._plan.stacks]
        for stack, blocks in zip(self._plan.stacks, self._blocks, strict=True):
            in_threads(
                lambda job, blocks=blocks: work.eliminate(job[1], blocks, job[0]),
                list(enumerate(stack.fronts)),
                num_threads,
            )
        self.log_determinant = float(np.sum(work.log_determinants))

    def solve(self, columns: Reals) -> Reals:
        """Return M⁻¹ c for each column, (n, c)."""
        order, _, stacks = self._plan
        num = columns.shape[1]
        # The last place is the padding of the stacks.
        x = np.zeros((len(order) + 1, num), dtype=np.float32)
        x[:-1] = columns[order]
        for stack, blocks in zip(stacks, self._blocks, strict=True):
            x[stack.own] = own = self._times(blocks.inverse, x[stack.own])
            x[stack.targets] -= stack.gather @ self._times(blocks.below, own).reshape(-1, num)
        for stack, blocks in zip(reversed(stacks), reversed(self._blocks), strict=True):
            own = x[stack.own] - self._times(blocks.below.transpose(0, 2, 1), x[stack.around])
            x[stack.own] = self._times(blocks.inverse.transpose(0, 2, 1), own)
        out = np.empty_like(columns)
        out[order] = x[:-1]
        return out

    def _times(self, W: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return W x of a stack, in parallel if it is large."""
        if self._num_threads == 1 or W.size < _WORTH_THREADS:
            return W @ x
        # A stack of one or two fronts has more rows than fronts.
        axis = 0 if len(W) >= self._num_threads else 1
        out = np.empty((*W.shape[:2], x.shape[2]), dtype=np.float32)
        edges = np.linspace(0, W.shape[axis], self._num_threads + 1).astype(int)

        def part(bounds: tuple[int, int]) -> None:
            at = slice(*bounds)
            if axis == 0:
                np.matmul(W[at], x[at], out=out[at])
            else:
                np.matmul(W[:, at], x, out=out[:, at])

        in_threads(part, list(pairwise(edges.tolist())), self._num_threads)
        return out

    def inverse_diagonal(self) -> Reals:
        """Return the diagonal of M⁻¹, (n,).

        On each front, with X = L₂₁L₁₁⁻¹ and Z₂₂ known from the larger parts (Takahashi):

            Z₂₁ = −Z₂₂X,   Z₁₁ = L₁₁⁻ᵀL₁₁⁻¹ − XᵀZ₂₁
        """
        order, fronts, stacks = self._plan
        diagonal = np.empty(len(order))
        waiting: dict[int, Reals] = {len(fronts) - 1: np.empty((0, 0))}

        def invert(front: _Front, blocks: _Blocks, i: int, Z22: Reals) -> None:
            own, around = front.last - front.first, len(front.around)
            inverse = blocks.inverse[i, :own, :own].astype(np.float64)
            X = blocks.below[i, :around, :own] @ inverse
            Z = np.empty((own + around,) * 2)
            Z[own:, own:] = Z22
            Z[own:, :own] = -Z22 @ X
            Z[:own, own:] = Z[own:, :own].T
            Z[:own, :own] = inverse.T @ inverse - X.T @ Z[own:, :own]
            diagonal[order[front.first : front.last]] = np.diag(Z)[:own]
            for child, runs in zip(front.children, front.runs, strict=True):
                size = runs[-1][0].stop if runs else 0
                known = np.empty((size, size))
                for columns, own_columns in runs:
                    for rows, own_rows in runs:
                        known[rows, columns] = Z[own_rows, own_columns]
                waiting[child] = known

        for stack, blocks in zip(reversed(stacks), reversed(self._blocks), strict=True):
            jobs = [
                (fronts[number], blocks, i, waiting.pop(number))
                for i, number in enumerate(stack.fronts)
            ]
            in_threads(lambda job: invert(*job), jobs, self._num_threads)
        return diagonal


@lru_cache(maxsize=4)
def plan(points: tuple[int, ...], reach: int) -> Plan:
    """Return the plan for a periodic grid whose points couple over `reach` steps."""
    pieces: list[tuple[Indices, tuple[int, ...]]] = []

    def split(block: Indices, periodic: tuple[bool, ...]) -> int:
        axis = int(np.argmax(block.shape))
        size = block.shape[axis]
        children: tuple[int, ...] = ()
        own = block.ravel()
        if block.size > _LEAF and size > 4 * reach:
            along = np.moveaxis(block, axis, 0)
            middle = (size - reach) // 2
            # The first split of a circle takes two walls.
            begin = reach if periodic[axis] else 0
            walls = [along[:begin], along[middle : middle + reach]]
            parts = [along[begin:middle], along[middle + reach :]]
            periodic = (*periodic[:axis], False, *periodic[axis + 1 :])
            children = tuple(split(np.moveaxis(part, 0, axis), periodic) for part in parts)
            own = np.concatenate([wall.ravel() for wall in walls])
        pieces.append((own, children))
        return len(pieces) - 1

    split(np.arange(int(np.prod(points))).reshape(points), (True,) * len(points))
    order = np.concatenate([own for own, _ in pieces])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    fronts: list[_Front] = []
    first = 0
    for own, children in pieces:
        last = first + len(own)
        near = place[_neighbours(own, points, reach)].ravel()
        around = np.unique(np.concatenate([near, *(fronts[child].around for child in children)]))
        around = around[around >= last]
        runs = tuple(_runs(_places(fronts[c].around, first, last, around)) for c in children)
        fronts.append(_Front(first, last, around, children, runs))
        first = last
    return Plan(order, tuple(fronts), _stacks(fronts))


def _stacks(fronts: list[_Front]) -> tuple[_Stack, ...]:
    """Return the fronts by height, each height in stacks of similar size."""
    height: list[int] = []
    for front in fronts:
        height.append(1 + max((height[child] for child in front.children), default=-1))
    size = [front.last - front.first + len(front.around) for front in fronts]
    queue = sorted(range(len(fronts)), key=lambda i: (height[i], -size[i]))
    stacks, first = [], 0
    for i, number in enumerate(queue):
        leader = queue[first]
        if height[number] > height[leader] or size[number] < (1 - _PADDING) * size[leader]:
            stacks.append(_stack(fronts, queue[first:i]))
            first = i
    stacks.append(_stack(fronts, queue[first:]))
    return tuple(stacks)


def _stack(fronts: list[_Front], numbers: list[int]) -> _Stack:
    num_points = fronts[-1].last
    own = _padded([np.arange(fronts[i].first, fronts[i].last) for i in numbers], num_points)
    around = _padded([fronts[i].around for i in numbers], num_points)
    targets, place = np.unique(around, return_inverse=True)
    ones = np.ones(around.size, dtype=np.float32)
    where, shape = (place.ravel(), np.arange(around.size)), (len(targets), around.size)
    gather = scipy.sparse.csr_array((ones, where), shape=shape)
    return _Stack(tuple(numbers), own, around, targets, gather)


def _padded(rows: list[Indices], filler: int) -> Indices:
    """Return rows of different lengths as one array."""
    out = np.full((len(rows), max(map(len, rows))), filler)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def _neighbours(numbers: Indices, points: tuple[int, ...], reach: int) -> Indices:
    """Return the points within `reach` steps of each of some points, (n, …)."""
    steps = np.indices((2 * reach + 1,) * len(points)).reshape(len(points), -1) - reach
    steps = steps[:, np.sum(np.abs(steps), axis=0) <= reach]
    where = np.stack(np.unravel_index(numbers, points))
    moved = where[:, :, None] + steps[:, None, :]
    return np.asarray(np.ravel_multi_index(tuple(moved), points, mode="wrap"))


def _lower_inverse(L: Reals) -> Reals:
    """Return L⁻¹ of a lower triangle, from the inverses of its halves.

        [A 0]⁻¹   [   A⁻¹      0 ]
        [B C]   = [−C⁻¹BA⁻¹   C⁻¹]

    SciPy's call of LAPACK for the whole triangle would keep all other threads waiting.
    """
    size = len(L)
    if size <= _SMALL_TRIANGLE:
        return trtri(L, lower=1)[0]
    half = size // 2
    out = np.zeros_like(L)
    first = out[:half, :half] = _lower_inverse(L[:half, :half])
    second = out[half:, half:] = _lower_inverse(L[half:, half:])
    out[half:, :half] = -(second @ L[half:, :half]) @ first
    return out


def _places(indices: Indices, first: int, last: int, around: Indices) -> Indices:
    """Return where points of the order lie in a front."""
    return np.where(
        indices < last, indices - first, last - first + np.searchsorted(around, indices)
    )


def _runs(places: Indices) -> tuple[tuple[slice, slice], ...]:
    """Return increasing places as runs of neighbours: (slice of their numbers, of the places)."""
    ends = np.append(np.flatnonzero(np.diff(places) != 1) + 1, len(places))
    starts = np.append(0, ends[:-1])
    return tuple(
        (slice(a, b), slice(int(places[a]), int(places[a]) + b - a))
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        if b > a
    )
