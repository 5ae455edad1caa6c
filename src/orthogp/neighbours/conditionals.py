r"""Conditionals: the distribution of one row given others, for many rows at once.

Row i has the covariance A (m+1, m+1) with its m neighbours, itself last, noise included. With

    b = (−K⁻¹k, 1),      r = bᵀy,      v = bᵀAb,      ℓ_i = −½ (log 2πv + r²/v)

K being the covariance among the neighbours and k that with row i. Since b minimises v, an error of
b moves v only to second order, and with a = (K⁻¹y, 0)

    ∂v/∂θ = bᵀ(∂A/∂θ)b,      ∂r/∂θ = −aᵀ(∂A/∂θ)b
    ∂ℓ_i/∂θ = −½ (1/v − r²/v²) ∂v/∂θ − (r/v) ∂r/∂θ

Two solutions with K and no inverse. Given the rows before it, r is N(0, v), so that

    information = Σ_i (∂v/∂θ)(∂v/∂θ)ᵀ/(2v²) + (∂r/∂θ)(∂r/∂θ)ᵀ/v

is the expected curvature, never negative. Several targets share b and v, and their ℓ_i add.

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
from scipy.linalg import get_lapack_funcs

from orthogp.exact.pairs import Covariances, MergedRows, PairKernel
from orthogp.exact.profiles import circle_squares
from orthogp.inference.parameters import overflows, pack
from orthogp.kernels import Kernel
from orthogp.precision import in_threads, one_thread
from orthogp.statistics.nufft import chunks

Array = NDArray[np.float64]

posv, gesv = get_lapack_funcs(("posv", "gesv"), dtype=np.float64)
potrf, trtrs = get_lapack_funcs(("potrf", "trtrs"), dtype=np.float64)

# The size of matrices from which calls of LAPACK one by one cost little beside their work.
_LARGE = 64
# The number of entries of covariance matrices in a compiled call: one shape for all sizes of sets,
# and arrays that stay in a core's cache.
_ENTRIES = 2**17
# The number of strips in which a large covariance matrix is worked out: more have fewer entries in
# all, and more calls.
_STRIPS = 4
# The smallest shape that is compiled for.
_FEWEST_ENTRIES = 2**12


class Sets(NamedTuple):
    """Rows with their neighbours, the row itself last.

    Attributes
    ----------
    X : (n, m+1, d)
        Inputs, relative to those of the row itself.
    y : (n, m+1, p)
        Targets less the mean function.
    noise : (n, m+1)
        Noise variances in units of σ², 1/weight.
    there : (n, m+1) or None
        Which neighbours there are, if a row may have fewer than m.
    """

    X: Array
    y: Array
    noise: Array
    there: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.X)

    def part(self, chosen: slice | NDArray[np.int64]) -> Sets:
        """Return some of the sets."""
        there = None if self.there is None else self.there[chosen]
        return Sets(self.X[chosen], self.y[chosen], self.noise[chosen], there)

    @classmethod
    def gather(cls, rows: MergedRows, chosen: NDArray[np.int64]) -> Sets:
        """Return the sets of rows with the numbers (n, m+1), −1 where there is no neighbour."""
        X, there = rows.X[chosen], chosen >= 0
        return cls(
            X - X[:, -1:],
            np.where(there[:, :, None], rows.y[chosen], 0.0),
            1 / rows.weights[chosen],
            None if there.all() else there,
        )


class Terms(NamedTuple):
    """ℓ_i (n,), ∂ℓ_i/∂θ (n, p + 1), and the information (p + 1, p + 1).

    The noise variance's logarithm comes last.
    """

    values: Array
    gradients: Array
    information: Array


def terms(kernel: Kernel, noise_variance: float, sets: Sets, num_threads: int) -> Terms:
    """Return ℓ_i and their derivatives in the logarithms of the learned parameters."""
    within = SetKernel(kernel, sets.X.shape[2])
    with one_thread():
        found = in_threads(
            lambda part: _terms(within, noise_variance, sets.part(part)), _slices(sets), num_threads
        )
    values, gradients, informations = zip(*found, strict=True)
    return Terms(np.concatenate(values), np.concatenate(gradients), np.sum(informations, axis=0))


def _terms(kernel: SetKernel, noise_variance: float, sets: Sets) -> Terms:
    covariance = kernel.values_and_pull(sets.X)
    A = _with_noise(covariance.values.copy(), noise_variance, sets)
    p = sets.y.shape[2]
    solution = solve(A[:, :-1, :-1], np.concatenate([A[:, :-1, -1:], sets.y[:, :-1]], axis=2))
    b, v = _weights(A, solution[:, :, 0])
    r = np.einsum("ci,cip->cp", b, sets.y)
    total = np.sum(r**2, axis=1)
    values = -0.5 * (p * np.log(2 * np.pi * v) + total / v)
    noise = noise_variance * _noise(sets)

    def pulled(a: Array) -> Array:
        """Return aᵀ (∂A/∂θ) b for each set, the noise variance last."""
        G = 0.5 * a[:, :, None] * b[:, None, :]
        G += G.transpose(0, 2, 1).copy()
        of_noise = np.einsum("ci,ci,ci->c", noise, a, b)
        return np.concatenate([covariance.pull(G), of_noise[:, None]], axis=1)

    dv = pulled(b)
    gradients = (-0.5 * (p - total / v) / v)[:, None] * dv
    information = 0.5 * p * (dv / v[:, None]).T @ (dv / v[:, None])
    for target in range(p):
        a = np.concatenate([solution[:, :, 1 + target], np.zeros((len(b), 1))], axis=1)
        # −∂r/∂θ
        dr = pulled(a)
        gradients += (r[:, target] / v)[:, None] * dr
        information += dr.T @ (dr / v[:, None])
    return Terms(values, gradients, information)


def innovations(
    kernel: Kernel, noise_variance: float, sets: Sets, columns: Array, num_threads: int
) -> tuple[Array, Array]:
    """Return what is new in each row: bᵀ of further columns (n, m+1, q), and v (n,)."""
    within = SetKernel(kernel, sets.X.shape[2])

    def one(part: slice) -> tuple[Array, Array]:
        some = sets.part(part)
        A = _with_noise(within.values(some.X), noise_variance, some)
        b, v = _weights(A, solve(A[:, :-1, :-1], A[:, :-1, -1:])[:, :, 0])
        return np.einsum("ci,ciq->cq", b, columns[part]), v

    with one_thread():
        values, variances = zip(*in_threads(one, _slices(sets), num_threads), strict=True)
    return np.concatenate(values), np.concatenate(variances)


def solve(K: Array, right: Array) -> Array:
    """Return K⁻¹ R for symmetric positive definite K (c, m, m) and R (c, m, q)."""
    if K.shape[1] >= _LARGE:
        return np.stack([_solve_large(*pair) for pair in zip(K, right, strict=True)])
    try:
        return np.asarray(np.linalg.solve(K, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        # Rows that coincide in double precision, without noise: what rounding may do to a matrix of
        # m rows tells them apart.
        ridge = 2 * len(K[0]) * np.finfo(np.float64).eps * np.einsum("cii->ci", K).max(axis=1)
        tilted = K + ridge[:, None, None] * np.eye(K.shape[1])
        return np.asarray(np.linalg.solve(tilted, right), dtype=np.float64)


def whiten(K: Array, right: Array) -> Array:
    """Return L⁻¹R with LLᵀ = K (c, m, m), R (c, q, m) holding vectors as rows; K is overwritten."""
    whitened = np.empty_like(right)
    diagonals = np.einsum("cii->ci", K).copy()
    for own, columns, diagonal, found in zip(K, right, diagonals, whitened, strict=True):
        # Symmetric: its transpose is how LAPACK has matrices.
        factor, info = potrf(own.T, lower=1, clean=0, overwrite_a=1)
        if info == 0:
            found[:] = trtrs(factor, columns.T, lower=1)[0].T
        else:
            # Rounding has taken an eigenvalue below zero. The other triangle still holds K.
            np.fill_diagonal(own, diagonal)
            values, vectors = np.linalg.eigh(own, UPLO="L")
            least = np.finfo(np.float64).eps * len(own) * values[-1]
            found[:] = (columns @ vectors) / np.sqrt(np.maximum(values, least))
    return whitened


def _solve_large(K: Array, right: Array) -> Array:
    _, solution, info = posv(K, right, lower=1)
    if info == 0:
        return solution
    # Rounding has taken an eigenvalue below zero: elimination with pivots bears that.
    _, _, solution, info = gesv(K, right)
    if info == 0:
        return solution
    ridge = 1e-15 * np.max(np.diag(K))
    return gesv(K + ridge * np.eye(len(K)), right)[2]


def _weights(A: Array, solved: Array) -> tuple[Array, Array]:
    """Return b (c, m+1) and v (c,), v no smaller than rounding leaves it."""
    b = np.concatenate([-solved, np.ones((len(A), 1))], axis=1)
    v = np.einsum("ci,ci->c", np.einsum("cij,cj->ci", A, b), b)
    return b, np.maximum(v, 1e-15 * A[:, -1, -1])


def _noise(sets: Sets) -> Array:
    return sets.noise if sets.there is None else np.where(sets.there, sets.noise, 0.0)


def _with_noise(A: Array, noise_variance: float, sets: Sets) -> Array:
    """Add the noise, and take out neighbours that are not there."""
    if sets.there is not None:
        A *= sets.there[:, :, None]
        A *= sets.there[:, None, :]
        np.einsum("cii->ci", A)[:] += np.where(sets.there, 0.0, 1.0)
    np.einsum("cii->ci", A)[:] += noise_variance * _noise(sets)
    return A


def _slices(sets: Sets) -> list[slice]:
    return list(chunks(len(sets), max(1, _ENTRIES // sets.X.shape[1] ** 2)))


# ---------------------------------------------------------------------- covariances


class SetCovariances(NamedTuple):
    """Covariance matrices (c, m, m) of c sets of m rows.

    `pull(G)` gives Σ_ij G_ij ∂K_ij/∂log θ for each set, (c, p), G being symmetric.
    """

    values: Array
    pull: Callable[[Array], Array]


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
        m = X.shape[1]
        if m < _LARGE:
            return self.cross(X, X)
        # In strips, of which only what lies above the diagonal is worked out.
        K = np.empty((len(X), m, m))
        height = -(-m // _STRIPS)
        for start in range(0, m, height):
            own, rest = slice(start, start + height), slice(start + height, m)
            strip = X[:, own]
            K[:, own, own] = self.cross(strip, strip)
            if start + height < m:
                K[:, own, rest] = self.cross(strip, X[:, rest])
                K[:, rest, own] = K[:, own, rest].transpose(0, 2, 1)
        return K

    def cross(self, A: Array, B: Array) -> Array:
        """Return the covariances between the rows of A (c, g, d) and of B (c, m, d), (c, g, m)."""
        squares, lags, _ = self._between(A, B)
        return self._function.values(squares, lags).reshape(len(A), A.shape[1], B.shape[1])

    def values_and_pull(self, X: Array) -> SetCovariances:
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

        return SetCovariances(found.values.reshape(shape), pull)

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

    def _evaluate(self, squares: Array, lags: Array | None) -> Covariances:
        """Return k and its derivatives at all entries."""
        count = squares.shape[1]
        pieces = []
        for part in chunks(count, _ENTRIES):
            length = part.stop - part.start
            # Up to powers of two: few shapes to compile.
            size = max(_FEWEST_ENTRIES, 1 << (length - 1).bit_length())
            own = None if lags is None else lags[:, part]
            found = self._function.evaluate(squares[:, part], own, size, derivatives=True)
            pieces.append([values[..., :length] for values in found])
        if len(pieces) == 1:
            return Covariances(*pieces[0])
        return Covariances(*(np.concatenate(p, axis=-1) for p in zip(*pieces, strict=True)))


def _squares_between(a: Array, b: Array, out: Array) -> None:
    """Write the squares of the distances between rows of a (c, g, d) and of b (c, m, d)."""
    # One product: (a, |a|², 1)·(−2b, 1, |b|²).
    norms = [np.einsum("cmd,cmd->cm", rows, rows)[:, :, None] for rows in (a, b)]
    left = np.concatenate([a, norms[0], np.ones_like(norms[0])], axis=2)
    right = np.concatenate([-2 * b, np.ones_like(norms[1]), norms[1]], axis=2)
    np.matmul(left, right.transpose(0, 2, 1), out=out)
    # What rounding leaves below zero.
    np.abs(out, out=out)
    if a is b:
        np.einsum("cii->ci", out)[:] = 0.0
