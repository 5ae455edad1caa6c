r"""Covariances within many small sets of rows at once, and how they move with the hyperparameters.

A primitive that is a function of s = Σ_d (τ_d/ℓ_d)² (`Radial`) takes the squares of a set from
products of matrices: with z = x/ℓ, W = G∘∂k/∂s and G any symmetric weights,

    s_ij = |z_i|² + |z_j|² − 2 z_iᵀz_j
    Σ_ij G_ij ∂k(s_ij)/∂log ℓ_d = −4 Σ_i (z_id² Σ_j W_ij − z_id (Wz)_id)

The sets are centred on one of their rows: what cancels in s is then as small as the set. What is
compiled, and what takes the lags themselves, is as for all pairs of rows (`PairKernel`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.pair_kernels import Covariances as PairCovariances
from orthogp.exact.pair_kernels import PairKernel
from orthogp.exact.profiles import circle_squares
from orthogp.inference.parameters import overflows, pack
from orthogp.kernels import Kernel
from orthogp.statistics.nufft import chunks

#: Entries of covariance matrices per compiled call: one shape for all sizes of sets, and arrays
#: that stay in a core's cache.
ENTRIES = 2**17
_FEWEST_ENTRIES = 2**12

Array = NDArray[np.float64]


class Covariances(NamedTuple):
    """Covariance matrices (c, m, m) of c sets of m rows.

    `pull(G)` gives Σ_ij G_ij ∂K_ij/∂log θ for each set, (c, p), G being symmetric.
    """

    values: Array
    pull: Callable[[Array], Array]


def sets_per_call(size: int) -> int:
    """Return how many sets of `size` rows one call should have."""
    return max(1, ENTRIES // size**2)


class SetKernel:
    """A kernel within sets of rows of d columns; see the module's docstring.

    Parameters
    ----------
    kernel : Kernel
    num_dims : int
    """

    def __init__(self, kernel: Kernel, num_dims: int) -> None:
        self.kernel = kernel
        self._pairs = PairKernel(kernel, num_dims)
        self._function = self._pairs.at(pack(kernel, self._pairs.slots))
        self._inverse = np.sqrt(self._function.W)

    def values(self, X: Array) -> Array:
        """Return the covariance matrices of sets of rows X (c, m, d), (c, m, m)."""
        return self.cross(X, X)

    def cross(self, A: Array, B: Array) -> Array:
        """Return the covariances between the rows of A (c, g, d) and of B (c, m, d), (c, g, m)."""
        squares, lags, _ = self._between(A, B)
        return self._function.values(squares, lags).reshape(len(A), A.shape[1], B.shape[1])

    def values_and_pull(self, X: Array) -> Covariances:
        """Return the covariance matrices of sets of rows X (c, m, d), with their derivatives.

        A kernel that overflows is a `KernelError`.
        """
        squares, lags, scaled = self._between(X, X)
        found = self._evaluate(squares, lags)
        if not np.isfinite(found.values).all():
            raise overflows(self.kernel)
        shape = (*X.shape[:2], X.shape[1])
        by_parameter = found.by_parameter.reshape(-1, *shape)
        by_square = found.by_square.reshape(-1, *shape)
        num_parameters = sum(slot.size for slot in self._pairs.slots)

        def pull(G: Array) -> Array:
            pulled = np.empty((len(X), num_parameters))
            for place, own in zip(self._pairs.others, by_parameter, strict=True):
                pulled[:, place] = np.einsum("cij,cij->c", G, own)
            for stretched in self._pairs.stretched:
                W, z = G * by_square[stretched.row], scaled[stretched.row]
                along = z * (z * W.sum(axis=2)[:, :, None] - W @ z)
                pulled[:, stretched.span] = stretched.gathered(-4 * along.sum(axis=1).T).T
            if not np.isfinite(pulled).all() and np.isfinite(G).all():
                raise overflows(self.kernel)
            return pulled

        return Covariances(found.values.reshape(shape), pull)

    def _between(self, A: Array, B: Array) -> tuple[Array, Array | None, dict[int, Array]]:
        """Return squares (k, n) and lags (d, n) of all entries, and z of each radial primitive."""
        scaled: dict[int, Array] = {}
        squares = np.empty((len(self._pairs.numbers), len(A), A.shape[1], B.shape[1]))
        for own, square in zip(self._pairs.numbers, squares, strict=True):
            a, b = (rows[:, :, own.columns] for rows in (A, B))
            if own.row is None:
                square[:] = circle_squares((a - b.transpose(0, 2, 1)) ** 2, own.period)
            else:
                inverse = self._inverse[own.row, own.columns]
                scaled[own.row] = z = a * inverse
                _squares_between(z, z if A is B else b * inverse, square)
        lags = None
        if self._pairs.needs_lags:
            lags = np.moveaxis(A[:, :, None, :] - B[:, None, :, :], 3, 0).reshape(A.shape[2], -1)
        return squares.reshape(len(squares), np.prod(squares.shape[1:])), lags, scaled

    def _evaluate(self, squares: Array, lags: Array | None) -> PairCovariances:
        """Return k and its derivatives at all entries."""
        count = squares.shape[1]
        pieces = []
        for part in chunks(count, ENTRIES):
            length = part.stop - part.start
            # Up to powers of two: few shapes to compile.
            size = max(_FEWEST_ENTRIES, 1 << (length - 1).bit_length())
            own = None if lags is None else lags[:, part]
            found = self._function.evaluate(squares[:, part], own, size, derivatives=True)
            pieces.append([values[..., :length] for values in found])
        if len(pieces) == 1:
            return PairCovariances(*pieces[0])
        return PairCovariances(*(np.concatenate(p, axis=-1) for p in zip(*pieces, strict=True)))


def _squares_between(a: Array, b: Array, out: Array) -> None:
    """Write the squares of the distances between rows of a (c, g, d) and of b (c, m, d)."""
    # One product: (a, |a|², 1)·(−2b, 1, |b|²).
    norms = [np.einsum("cmd,cmd->cm", rows, rows)[:, :, None] for rows in (a, b)]
    left = np.concatenate([a, norms[0], np.ones_like(norms[0])], axis=2)
    right = np.concatenate([-2 * b, np.ones_like(norms[1]), norms[1]], axis=2)
    np.matmul(left, right.transpose(0, 2, 1), out=out)
    np.maximum(out, 0.0, out=out)
    if a is b:
        np.einsum("cii->ci", out)[:] = 0.0
