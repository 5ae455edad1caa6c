"""The nearest rows, and the metric in which rows are near.

A k-d tree (scipy) is best in few columns. In many columns a tree visits most of its leaves, and
comparing with every row by products of matrices (scikit-learn) is faster; which of the two is, is
tried out on a few queries.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from orthogp.features.base import correlation_lengths, prior_variance
from orthogp.kernels import Kernel
from orthogp.kernels.stationary import Radial

if TYPE_CHECKING:
    from sklearn.neighbors import NearestNeighbors

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# The largest number of columns for which a tree is taken without trying.
_FEW_COLUMNS = 3
# The number of queries that the two ways are tried out on.
_TRIED = 40
# The number of rows in a leaf of the tree: more make it smaller, and queries for tens of rows no
# slower.
_LEAF = 24


def widths_of(X: Array) -> Array:
    """Return the range of the rows along each column, one where it is zero, (d,)."""
    width = np.ptp(X, axis=0)
    return np.where(width > 0, width, 1.0)


def metric_lengths(kernel: Kernel, width: Array) -> Array:
    """Return the length along each column over which the kernel's functions change, (d,).

    Lengthscales, of a sum those of the term that prevails along the column at short range.

    Parameters
    ----------
    width : (d,)
        The range of the rows along each column, `widths_of` them.
    """
    num_dims = len(width)
    lengths = np.full(num_dims, np.inf)
    for primitive, dims in kernel.primitives():
        own = primitive.parameters().get("lengthscale")
        if own is None or not isinstance(primitive, Radial):
            return correlation_lengths(kernel, width)
        columns = list(range(num_dims)) if dims is None else list(dims)
        share = prior_variance(primitive) / prior_variance(kernel)
        if share > 0.02:
            spread = np.ravel(own)[primitive.lengthscale_places(len(columns))]
            lengths[columns] = np.minimum(lengths[columns], spread)
    # A column that no kernel sees must not tell rows apart.
    return np.where(np.isfinite(lengths), lengths, 1e6 * width)


class NearestRows:
    """Finds the rows of X (n, d) nearest to points."""

    def __init__(self, X: Array, num_threads: int = 1) -> None:
        self._X = np.ascontiguousarray(X)
        self._threads = num_threads
        self._tree = KDTree(
            self._X, leafsize=_LEAF, balanced_tree=len(X) < 100_000, compact_nodes=True
        )
        self._brute: NearestNeighbors | None = None
        self._tried = X.shape[1] <= _FEW_COLUMNS

    def query(self, points: Array, count: int) -> tuple[Array, Indices]:
        """Return distances and indices of the `count` nearest rows, nearest first, (n, count)."""
        count = min(count, len(self._X))
        if not self._tried and len(points) > 2 * _TRIED:
            self._try_out(points[:: max(1, len(points) // _TRIED)], count)
        if self._brute is not None:
            distances, indices = self._brute.kneighbors(points, n_neighbors=count)
        else:
            # A list of ranks, so that one neighbour comes as a column too.
            ranks: Any = [1] if count == 1 else count
            distances, indices = self._tree.query(points, k=ranks, workers=self._threads)
        return np.asarray(distances), np.asarray(indices)

    def _try_out(self, points: Array, count: int) -> None:
        # Imported where it is used: it takes a tenth of a second.
        from sklearn.neighbors import NearestNeighbors

        brute = NearestNeighbors(algorithm="brute").fit(self._X)
        # As many points as fill its blocks; a tree takes them one by one.
        repeated = np.tile(points, (6, 1))
        began = time.perf_counter()
        self._tree.query(points, k=count, workers=self._threads)
        tree = (time.perf_counter() - began) / len(points)
        began = time.perf_counter()
        brute.kneighbors(repeated, n_neighbors=count)
        if (time.perf_counter() - began) / len(repeated) < tree:
            self._brute = brute
        self._tried = True


class OrderedRows:
    """Finds, for rows in a given order, their nearest among the rows before them.

    Among the first P rows a share of p/P comes before row p: trees of the first N, N/4, N/16, …
    rows serve all, each with a few times as many neighbours asked for as are needed.

    Parameters
    ----------
    X : (n, d)
        The rows, in their order.
    """

    def __init__(self, X: Array, num_threads: int = 1) -> None:
        self._X = X
        self._threads = num_threads
        self._found: dict[int, NearestRows] = {}

    def query(self, positions: Indices, count: int) -> Indices:
        """Return the nearest `count` earlier rows of some positions, −1 where there are fewer."""
        result = np.full((len(positions), count), -1)
        size = len(self._X)
        while size > 0:
            own = np.flatnonzero((positions <= size) & (positions > size // 4))
            if size <= 4 * count:
                # So early that all that come before are looked at.
                own = np.flatnonzero(positions <= size)
            if len(own):
                result[own] = self._query(positions[own], count, size)
            size = 0 if size <= 4 * count else size // 4
        return result

    def first(self, size: int) -> NearestRows:
        """Return what finds the nearest among the first rows."""
        if size not in self._found:
            self._found[size] = NearestRows(self._X[:size], self._threads)
        return self._found[size]

    def _query(self, positions: Indices, count: int, size: int) -> Indices:
        rows = self.first(size)
        result = np.full((len(positions), count), -1)
        rest = np.arange(len(positions))
        asked = min(size, 2 * count + 8)
        while len(rest):
            nearest = rows.query(self._X[positions[rest]], asked)[1]
            earlier = nearest < positions[rest][:, None]
            rank = np.cumsum(earlier, axis=1)
            enough = (rank[:, -1] >= np.minimum(count, positions[rest])) | (asked == size)
            # Earlier ones first, in the order of their distances.
            first = np.argsort(~earlier[enough], axis=1, kind="stable")[:, :count]
            found = np.take_along_axis(nearest[enough], first, axis=1)
            kept = np.take_along_axis(earlier[enough], first, axis=1)
            block = np.where(kept, found, -1)
            result[rest[enough], : block.shape[1]] = block
            rest, asked = rest[~enough], min(size, 3 * asked)
        return result
