r"""The distribution of one row given others, for many rows at once.

Row i has the covariance A (m+1, m+1) with its m neighbours, itself last, noise included. With

    b = (−K⁻¹k, 1),      r = bᵀy,      v = bᵀAb,      ℓ_i = −½ (log 2πv + r²/v)

K being the covariance among the neighbours and k that with row i. Since b minimises v, an error of
b moves v only to second order, and with a = (K⁻¹y, 0)

    ∂v/∂θ = bᵀ(∂A/∂θ)b,      ∂r/∂θ = −aᵀ(∂A/∂θ)b
    ∂ℓ_i/∂θ = −½ (1/v − r²/v²) ∂v/∂θ − (r/v) ∂r/∂θ

Two solutions with K and no inverse. Given the rows before it, r is N(0, v), so that

    information = Σ_i (∂v/∂θ)(∂v/∂θ)ᵀ/(2v²) + (∂r/∂θ)(∂r/∂θ)ᵀ/v

is the expected curvature, never negative. Several targets share b and v, and their ℓ_i add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.inference.threads import in_threads, one_thread
from orthogp.kernels import Kernel
from orthogp.neighbours.covariance import SetKernel, sets_per_call

Array = NDArray[np.float64]

posv, gesv = get_lapack_funcs(("posv", "gesv"), dtype=np.float64)
potrf, trtrs = get_lapack_funcs(("potrf", "trtrs"), dtype=np.float64)

# From this size on, calls of LAPACK one by one cost little beside their work.
_LARGE = 64


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
    def gather(
        cls,
        X: Array,
        y: Array,
        noise: Array,
        rows: NDArray[np.int64],
        neighbours: NDArray[np.int64],
    ) -> Sets:
        """Return the sets of some rows, given their neighbours (n, m), −1 where there is none."""
        whole = np.concatenate([neighbours, rows[:, None]], axis=1)
        there = whole >= 0
        return cls(
            X[whole] - X[rows][:, None, :],
            np.where(there[:, :, None], y[whole], 0.0),
            noise[whole],
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
    found = _mapped(lambda part: _terms(within, noise_variance, part), sets, num_threads)
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


class Innovations(NamedTuple):
    """What is new in each row given its neighbours.

    `values` (n, q) are bᵀ of some columns, `variance` (n,) is v.
    """

    values: Array
    variance: Array


def innovations(
    kernel: Kernel, noise_variance: float, sets: Sets, columns: Array, num_threads: int
) -> Innovations:
    """Return bᵀ of further columns (n, m+1, q), and v."""
    within = SetKernel(kernel, sets.X.shape[2])

    def one(part: Sets, own: Array) -> Innovations:
        A = _with_noise(within.values(part.X), noise_variance, part)
        b, v = _weights(A, solve(A[:, :-1, :-1], A[:, :-1, -1:])[:, :, 0])
        return Innovations(np.einsum("ci,ciq->cq", b, own), v)

    pieces = _slices(sets)
    with one_thread():
        found = in_threads(lambda s: one(sets.part(s), columns[s]), pieces, num_threads)
    return Innovations(*(np.concatenate(column) for column in zip(*found, strict=True)))


def solve(K: Array, right: Array) -> Array:
    """Return K⁻¹ R for symmetric positive definite K (c, m, m) and R (c, m, q)."""
    if K.shape[1] >= _LARGE:
        return np.stack([_solve_large(*pair) for pair in zip(K, right, strict=True)])
    try:
        return np.asarray(np.linalg.solve(K, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        # Rows that coincide in double precision, without noise: an ulp tells them apart.
        ridge = 1e-15 * np.einsum("cii->ci", K).max(axis=1)
        tilted = K + ridge[:, None, None] * np.eye(K.shape[1])
        return np.asarray(np.linalg.solve(tilted, right), dtype=np.float64)


def whiten(K: Array, right: Array) -> Array:
    """Return L⁻¹R with LLᵀ = K (c, m, m), R (c, q, m) holding vectors as rows; K is overwritten."""
    whitened = np.empty_like(right)
    for own, columns, found in zip(K, right, whitened, strict=True):
        diagonal = np.diag(own).copy()
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
    size = sets_per_call(sets.X.shape[1])
    return [slice(start, start + size) for start in range(0, len(sets), size)]


def _mapped(function, sets: Sets, num_threads: int) -> list:
    with one_thread():
        return in_threads(lambda s: function(sets.part(s)), _slices(sets), num_threads)
