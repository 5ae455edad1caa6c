r"""q(u) = N(m, S) of orthonormal features, in three parametrisations.

Under the prior u ~ N(0, I),

    KL(q || p) = ½ (tr S + mᵀm − M − log|S|)

`times` is all that an estimate of the bound needs of S: no M×M matrix is formed unless S is dense.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.inference.definite import lower_factor
from orthogp.precision import AnyArray

# The least variance of a combination of coefficients, relative to the largest: rounding.
_LEAST = 1e-15

#: The names that users give.
COVARIANCES = ("dense", "diagonal")


class Normal(eqx.Module):
    """q(u), with parameters that may be any real numbers."""

    mean: eqx.AbstractVar[Float[AnyArray, " m"]]

    @abstractmethod
    def times(self, B: Float[AnyArray, "m t"]) -> Float[AnyArray, "m t"]:
        """Return S B."""

    @abstractmethod
    def trace(self) -> Float[AnyArray, ""]:
        """Return tr S."""

    @abstractmethod
    def log_determinant(self) -> Float[AnyArray, ""]:
        """Return log|S|."""

    @abstractmethod
    def covariance(self) -> Float[AnyArray, "m m"]:
        """Return S."""

    def divergence(self) -> Float[AnyArray, ""]:
        """Return KL(q || p)."""
        excess = self.trace() + self.mean @ self.mean - len(self.mean)
        return 0.5 * (excess - self.log_determinant())


class DenseNormal(Normal):
    """S = L Lᵀ, L lower triangular, the logarithms of its diagonal in place of the diagonal."""

    mean: Float[AnyArray, " m"]
    raw: Float[AnyArray, "m m"]
    shift: Float[AnyArray, "m m"] | None = None

    def shifted(self, shift: Float[AnyArray, "m m"]) -> Self:
        """Return a copy whose `times` is that of S + shift, to differentiate in S."""
        return type(self)(self.mean, self.raw, shift)

    @property
    def factor(self) -> Float[AnyArray, "m m"]:
        """L."""
        return jnp.tril(self.raw, -1) + jnp.diag(jnp.exp(jnp.diag(self.raw)))

    @classmethod
    def prior(cls, size: int) -> Self:
        """Return N(0, I)."""
        return cls(np.zeros(size), np.zeros((size, size)))

    @classmethod
    def of(cls, mean: NDArray[np.float64], covariance: NDArray[np.float64]) -> Self:
        """Return N(mean, covariance)."""
        factor = lower_factor(covariance, _LEAST)
        return cls(mean, np.tril(factor, -1) + np.diag(np.log(np.diag(factor))))

    def times(self, B: Float[AnyArray, "m t"]) -> Float[AnyArray, "m t"]:
        """Return L (Lᵀ B)."""
        factor = self.factor
        product = factor @ (factor.T @ B)
        return product if self.shift is None else product + self.shift @ B

    def trace(self) -> Float[AnyArray, ""]:
        """Return Σ L_ij²."""
        return jnp.sum(self.factor**2)

    def log_determinant(self) -> Float[AnyArray, ""]:
        """Return 2 Σ log L_ii."""
        return 2 * jnp.sum(jnp.diag(self.raw))

    def covariance(self) -> Float[AnyArray, "m m"]:
        """Return L Lᵀ."""
        factor = self.factor
        return factor @ factor.T


class DiagonalNormal(Normal):
    """S = diag(s), by the logarithms of s: the factorised q(u) of the paper's section 3.2."""

    mean: Float[AnyArray, " m"]
    log_variances: Float[AnyArray, " m"]

    @classmethod
    def prior(cls, size: int) -> Self:
        """Return N(0, I)."""
        return cls(np.zeros(size), np.zeros(size))

    @property
    def variances(self) -> Float[AnyArray, " m"]:
        """The diagonal of S."""
        return jnp.exp(self.log_variances)

    def times(self, B: Float[AnyArray, "m t"]) -> Float[AnyArray, "m t"]:
        """Return s ⊙ B."""
        return self.variances[:, None] * B

    def trace(self) -> Float[AnyArray, ""]:
        """Return Σ s."""
        return jnp.sum(self.variances)

    def log_determinant(self) -> Float[AnyArray, ""]:
        """Return Σ log s."""
        return jnp.sum(self.log_variances)

    def covariance(self) -> Float[AnyArray, "m m"]:
        """Return diag(s)."""
        return jnp.diag(self.variances)


class LowRankNormal(Normal):
    """S = diag(s) + V Vᵀ, V (m, r)."""

    mean: Float[AnyArray, " m"]
    log_variances: Float[AnyArray, " m"]
    directions: Float[AnyArray, "m r"]

    @classmethod
    def prior(cls, size: int, rank: int) -> Self:
        """Return N(0, I) but for directions that are small rather than zero, a saddle point."""
        columns = np.random.default_rng(0).standard_normal((size, rank))
        return cls(np.zeros(size), np.zeros(size), 1e-2 * columns / np.sqrt(size))

    @property
    def variances(self) -> Float[AnyArray, " m"]:
        """The diagonal part of S."""
        return jnp.exp(self.log_variances)

    def times(self, B: Float[AnyArray, "m t"]) -> Float[AnyArray, "m t"]:
        """Return s ⊙ B + V (Vᵀ B)."""
        V = jnp.asarray(self.directions)
        return self.variances[:, None] * B + V @ (V.T @ B)

    def trace(self) -> Float[AnyArray, ""]:
        """Return Σ s + Σ V²."""
        return jnp.sum(self.variances) + jnp.sum(jnp.square(self.directions))

    def log_determinant(self) -> Float[AnyArray, ""]:
        """Return Σ log s + log|I + Vᵀ diag(1/s) V|."""
        V = jnp.asarray(self.directions)
        inner = jnp.eye(V.shape[1]) + V.T @ (V / self.variances[:, None])
        factor = jnp.linalg.cholesky(inner)
        return jnp.sum(self.log_variances) + 2 * jnp.sum(jnp.log(jnp.diag(factor)))

    def covariance(self) -> Float[AnyArray, "m m"]:
        """Return diag(s) + V Vᵀ."""
        V = jnp.asarray(self.directions)
        return jnp.diag(self.variances) + V @ V.T


def prior_normal(covariance: str | int, size: int) -> Normal:
    """Return q(u) = p(u): "dense", "diagonal", or the rank of low-rank plus diagonal."""
    if covariance == "dense":
        return DenseNormal.prior(size)
    if covariance == "diagonal":
        return DiagonalNormal.prior(size)
    if isinstance(covariance, int | np.integer) and not isinstance(covariance, bool):
        if 1 <= covariance <= size:
            return LowRankNormal.prior(size, int(covariance))
        raise InputError(
            f"covariance as a rank must lie between 1 and the {size} features, got {covariance}."
        )
    raise InputError(
        f"covariance must be one of {', '.join(map(repr, COVARIANCES))} or a rank, "
        f"got {covariance!r}."
    )


def as_numpy(q: Normal) -> Normal:
    """Return a copy with NumPy arrays."""
    return jax.tree.map(np.asarray, q)
