r"""The best q(u) in closed form, with an S that is dense, diagonal or block-diagonal.

With K_uu = I, B = I + A/σ² and B_jj its diagonal blocks, the best q(u) = ∏_j N(m_j, S_j) has

    m = B⁻¹b/σ²,      S_j = B_jj⁻¹,      bound = Titsias' − ½ (Σ_j log|B_jj| − log|B|)

for each target: the mean equals the mean of the full posterior, and factorising costs what
Fischer's inequality says. Blocks of one feature are the mean-field approximation; two blocks, of
`TwoBlock` features, are q(u)q(v) of SOLVE-GP (Shi, Titsias & Mnih 2019).

With φ the features and d(x) = k(0) − Σ φ_m(x)² the variance that they leave out, any q(u) gives

    mean f(x) = φ(x)ᵀm,      var f(x) = d(x) + φ(x)ᵀ S φ(x)
    ELBO = Σ_n [−½ log 2πσ² − ((y_n − mean f(x_n))² + var f(x_n))/(2σ²)] − KL(N(m, S)‖N(0, I))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import InputError
from orthogp.features import SpectralFeatures
from orthogp.features.base import as_rows
from orthogp.inference.bounds import Bound, factorise, titsias_bound, unwhiten, whiten
from orthogp.inference.moments import Moments, moments_from_rows
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import Kernel
from orthogp.stochastic.variational import Covariance

(potri,) = get_lapack_funcs(("potri",), dtype=np.float64)

#: A size for all blocks, a size for each, or the features of each.
Blocks = int | Sequence[int] | Sequence[Sequence[int]] | Sequence[NDArray[np.int64]]


class FactorisedPosterior(NamedTuple):
    """The optimal factorised q(u), and its bound.

    Attributes
    ----------
    mean : (m, p)
        The means of all features, for each target.
    blocks : tuple of (m_j,)
        The features of each block.
    covariances : tuple of (m_j, m_j)
        The covariance within each block, shared by all targets.
    bound : Bound
    """

    mean: NDArray[np.float64]
    blocks: tuple[NDArray[np.int64], ...]
    covariances: tuple[NDArray[np.float64], ...]
    bound: Bound


def factorised_bound(moments: Moments, noise_variance: float, blocks: Blocks) -> Bound:
    """Return the largest bound of a q(u) that factorises over `blocks`.

    Parameters
    ----------
    moments : Moments
    noise_variance : float
    blocks : int or sequence
        The size of all blocks (of consecutive features; the last may be smaller), the size of
        each, or the features of each.
    """
    chol = factorise(moments.gram, noise_variance)
    factors = _factors(moments, noise_variance, resolve_blocks(blocks, len(moments.gram)))
    return _bound(moments, noise_variance, chol, factors)


def factorised_posterior(
    moments: Moments, noise_variance: float, blocks: Blocks
) -> FactorisedPosterior:
    """Return the best q(u) that factorises over `blocks`; see `factorised_bound`."""
    members = resolve_blocks(blocks, len(moments.gram))
    chol = factorise(moments.gram, noise_variance)
    factors = _factors(moments, noise_variance, members)
    return FactorisedPosterior(
        mean=unwhiten(chol, whiten(chol, moments.projection)) / noise_variance,
        blocks=members,
        covariances=tuple(_inverse(factor) for factor in factors),
        bound=_bound(moments, noise_variance, chol, factors),
    )


def resolve_blocks(blocks: Blocks, num_features: int) -> tuple[NDArray[np.int64], ...]:
    """Return the features of each block; raise `InputError` unless each is in exactly one."""
    if isinstance(blocks, int | np.integer):
        size = int(blocks)
        if size < 1:
            raise InputError(f"Blocks must have at least one feature, got a size of {size}.")
        starts = np.arange(size, num_features, size)
        return tuple(np.split(np.arange(num_features), starts))
    if all(isinstance(block, int | np.integer) for block in blocks):
        sizes = np.array(blocks, dtype=np.int64)
        if np.any(sizes < 1) or sizes.sum() != num_features:
            raise InputError(
                f"The sizes of the blocks must be positive and add up to {num_features} features, "
                f"got {sizes.tolist()}."
            )
        return tuple(np.split(np.arange(num_features), np.cumsum(sizes)[:-1]))
    members = tuple(np.array(block, dtype=np.int64) for block in blocks)
    counted = np.sort(np.concatenate(members))
    if not np.array_equal(counted, np.arange(num_features)):
        raise InputError(
            f"Every one of the {num_features} features, counted from 0, must be in exactly one "
            "block."
        )
    return members


def _factors(
    moments: Moments, noise_variance: float, blocks: tuple[NDArray[np.int64], ...]
) -> list[NDArray[np.float64]]:
    """Return the Cholesky factor of each B_jj."""
    return [factorise(moments.gram[np.ix_(block, block)], noise_variance) for block in blocks]


def _bound(
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
    factors: list[NDArray[np.float64]],
) -> Bound:
    cost = sum(_half_log_det(factor) for factor in factors) - _half_log_det(chol)
    bound = titsias_bound(moments, noise_variance, chol)
    return bound._replace(complexity=bound.complexity - len(moments.yy) * cost)


def _half_log_det(chol: NDArray[np.float64]) -> float:
    return float(np.sum(np.log(np.einsum("ii->i", chol))))


def _inverse(chol: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (LLᵀ)⁻¹."""
    lower = np.tril(potri(chol, lower=1)[0])
    return lower + np.tril(lower, -1).T


class Approximation(NamedTuple):
    """q(u) = N(m, S) of some features: what stochastic training estimates."""

    features: SpectralFeatures
    kernel: Kernel
    noise_variance: float
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def collapsed(
        cls,
        features: SpectralFeatures,
        kernel: Kernel,
        noise_variance: float,
        X: NDArray[np.float64],
        y: NDArray[np.float64],
        covariance: Covariance,
    ) -> Self:
        """Return the best q(u) with that kind of S, in closed form."""
        moments = moments_from_rows(features, kernel, X, y)
        size = features.num_features if covariance == "dense" else 1
        best = factorised_posterior(moments, noise_variance, size)
        S = np.zeros_like(moments.gram)
        for block, part in zip(best.blocks, best.covariances, strict=True):
            S[np.ix_(block, block)] = part
        return cls(features, kernel, noise_variance, best.mean[:, 0], S)

    def predict(self, X: NDArray[np.float64]) -> Gaussian:
        """Return mean and variance of f at the rows of X, each (n,)."""
        X = as_rows(X)
        Phi = self.features.evaluate(self.kernel, X)
        left_out = self.features.residual_variance(self.kernel, X)
        return Gaussian(Phi @ self.mean, left_out + np.sum(Phi @ self.covariance * Phi, axis=1))

    def elbo(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        """Return the evidence lower bound."""
        mean, variance = self.predict(X)
        squares = (y - mean) ** 2 + variance
        data_fit = -0.5 * np.sum(
            np.log(2 * np.pi * self.noise_variance) + squares / self.noise_variance
        )
        log_det = np.linalg.slogdet(self.covariance)[1]
        divergence = 0.5 * (
            np.trace(self.covariance) + self.mean @ self.mean - len(self.mean) - log_det
        )
        return float(data_fit - divergence)
