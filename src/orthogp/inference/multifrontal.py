r"""Sparse Cholesky factors of matrices on a periodic grid, by dense blocks.

Walls split the grid into parts that do not touch each other, each part is split in turn (nested
dissection), and every part or wall is eliminated at once, with a dense matrix over its own points
and those around it (its front):

    [F₁₁ F₂₁ᵀ]    L₁₁L₁₁ᵀ = F₁₁,  L₂₁ = F₂₁L₁₁⁻ᵀ,  and F₂₂ − L₂₁L₂₁ᵀ goes on to the next larger part
    [F₂₁ F₂₂ ]

All the work is matrix products of LAPACK and BLAS: for several right-hand sides at once solves are
limited by memory, not by indices. Therefore the blocks are kept in single precision, which is ample
for a preconditioner; they are computed in double. The entries of the inverse on the fronts, its
diagonal among them, come from the same blocks in the opposite order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

potrf, trtri = get_lapack_funcs(("potrf", "trtri"), dtype=np.float64)

# Parts of at most so many points are not split: smaller ones drown in overhead.
_LEAF = 160


class _Front(NamedTuple):
    """Points [first, last) of the order, those around them, and where children's points lie."""

    first: int
    last: int
    around: NDArray[np.int64]
    children: tuple[int, ...]
    #: The place of each child's surrounding points in this front.
    places: tuple[NDArray[np.int64], ...]


class Plan(NamedTuple):
    """An order of the points, and the fronts in which they are eliminated."""

    order: NDArray[np.int64]
    fronts: tuple[_Front, ...]


class GridFactor:
    """The Cholesky factor of a positive definite matrix whose graph is a grid's.

    Parameters
    ----------
    matrix : sparse (n, n)
    points : tuple
        The shape of the periodic grid.
    reach : int
        How many steps along the grid's axes the matrix couples.
    """

    def __init__(self, matrix: scipy.sparse.csr_array, points: tuple[int, ...], reach: int) -> None:
        self._plan = plan(points, reach)
        order, fronts = self._plan
        permuted = scipy.sparse.csr_array(matrix)[order][:, order]
        indptr, indices, data = permuted.indptr, permuted.indices, permuted.data
        row_of = np.repeat(np.arange(len(order)), np.diff(indptr))
        #: L₁₁⁻¹ and L₂₁ of each front.
        self._blocks: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        updates: dict[int, NDArray[np.float64]] = {}
        log_determinant = 0.0
        for number, front in enumerate(fronts):
            own = front.last - front.first
            F = np.zeros((own + len(front.around),) * 2)
            part = slice(indptr[front.first], indptr[front.last])
            columns = indices[part]
            later = columns >= front.first
            place = _places(columns[later], front.first, front.last, front.around)
            F[place, row_of[part][later] - front.first] = data[part][later]
            for child, places in zip(front.children, front.places, strict=True):
                F[places[:, None], places] += updates.pop(child)
            corner, info = potrf(F[:own, :own], lower=1, clean=1)
            if info != 0:
                raise np.linalg.LinAlgError("The grid's matrix is not positive definite.")
            log_determinant += 2 * float(np.sum(np.log(np.diag(corner))))
            inverse = np.ascontiguousarray(trtri(corner, lower=1)[0])
            below = F[own:, :own] @ inverse.T
            updates[number] = F[own:, own:] - below @ below.T
            self._blocks.append((inverse.astype(np.float32), below.astype(np.float32)))
        self.log_determinant = log_determinant

    def solve(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return M⁻¹ c for each column, (n, c)."""
        x = columns[self._plan.order].astype(np.float32)
        for front, (inverse, below) in zip(self._plan.fronts, self._blocks, strict=True):
            own = x[front.first : front.last]
            own[:] = inverse @ own
            x[front.around] -= below @ own
        for front, (inverse, below) in zip(
            reversed(self._plan.fronts), reversed(self._blocks), strict=True
        ):
            own = x[front.first : front.last]
            own[:] = inverse.T @ (own - below.T @ x[front.around])
        out = np.empty(columns.shape)
        out[self._plan.order] = x
        return out

    def inverse_diagonal(self) -> NDArray[np.float64]:
        """Return the diagonal of M⁻¹, (n,).

        On each front, with X = L₂₁L₁₁⁻¹ and Z₂₂ known from the larger parts (Takahashi):

            Z₂₁ = −Z₂₂X,   Z₁₁ = L₁₁⁻ᵀL₁₁⁻¹ − XᵀZ₂₁
        """
        order, fronts = self._plan
        diagonal = np.empty(len(order))
        waiting: dict[int, NDArray[np.float64]] = {len(fronts) - 1: np.empty((0, 0))}
        for number in range(len(fronts) - 1, -1, -1):
            front = fronts[number]
            inverse, below = (block.astype(np.float64) for block in self._blocks[number])
            own, around = front.last - front.first, len(front.around)
            Z = np.empty((own + around,) * 2)
            Z[own:, own:] = waiting.pop(number)
            X = below @ inverse
            Z[own:, :own] = -Z[own:, own:] @ X
            Z[:own, own:] = Z[own:, :own].T
            Z[:own, :own] = inverse.T @ inverse - X.T @ Z[own:, :own]
            diagonal[order[front.first : front.last]] = np.diag(Z)[:own]
            for child, places in zip(front.children, front.places, strict=True):
                waiting[child] = Z[places[:, None], places]
        return diagonal


@lru_cache(maxsize=4)
def plan(points: tuple[int, ...], reach: int) -> Plan:
    """Return order and fronts for a periodic grid whose points couple over `reach` steps."""
    pieces: list[tuple[NDArray[np.int64], tuple[int, ...]]] = []

    def split(block: NDArray[np.int64], periodic: tuple[bool, ...]) -> int:
        axis = int(np.argmax(block.shape))
        size = block.shape[axis]
        children: tuple[int, ...] = ()
        own = block.ravel()
        if block.size > _LEAF and size > 4 * reach:
            along = np.moveaxis(block, axis, 0)
            middle = (size - reach) // 2
            if periodic[axis]:
                walls = [along[:reach], along[middle : middle + reach]]
                parts = [along[reach:middle], along[middle + reach :]]
                periodic = (*periodic[:axis], False, *periodic[axis + 1 :])
            else:
                walls = [along[middle : middle + reach]]
                parts = [along[:middle], along[middle + reach :]]
            children = tuple(split(np.moveaxis(part, 0, axis), periodic) for part in parts)
            own = np.concatenate([wall.ravel() for wall in walls])
        pieces.append((own, children))
        return len(pieces) - 1

    split(np.arange(int(np.prod(points))).reshape(points), (True,) * len(points))
    order = np.concatenate([own for own, _ in pieces])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    around_points = _neighbours(points, reach)
    fronts: list[_Front] = []
    first = 0
    for own, children in pieces:
        last = first + len(own)
        near = place[around_points(own)].ravel()
        beyond = [near, *(fronts[child].around for child in children)]
        around = np.unique(np.concatenate(beyond))
        around = around[around >= last]
        places = tuple(_places(fronts[c].around, first, last, around) for c in children)
        fronts.append(_Front(first, last, around, children, places))
        first = last
    return Plan(order, tuple(fronts))


def _neighbours(points: tuple[int, ...], reach: int):
    """Return a function that gives the points within `reach` steps of each of some points."""
    steps = np.stack(
        np.meshgrid(*(np.arange(-reach, reach + 1),) * len(points), indexing="ij"), axis=-1
    ).reshape(-1, len(points))
    steps = steps[np.sum(np.abs(steps), axis=1) <= reach]

    def neighbours(of: NDArray[np.int64]) -> NDArray[np.int64]:
        where = np.stack(np.unravel_index(of, points), axis=-1)
        moved = (where[:, None, :] + steps) % np.array(points)
        return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(moved, -1, 0)), points))

    return neighbours


def _places(
    indices: NDArray[np.int64], first: int, last: int, around: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where points of the order lie in a front."""
    return np.where(
        indices < last, indices - first, last - first + np.searchsorted(around, indices)
    )
