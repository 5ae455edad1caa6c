r"""q(u) = N(m, S) of orthonormal features with a dense or a diagonal S, and natural-gradient steps.

Under the prior u ~ N(0, I),

    KL(q || p) = ½ (tr S + mᵀm − M − log|S|)

With G = ∂ELBO/∂S and g = ∂ELBO/∂m, a step of size ρ in the natural parameters is

    S⁻¹ ← S⁻¹ − 2ρ G,      m ← m + ρ S g      (the new S)

For a Gaussian likelihood and exact gradients a step of size one is the optimum. S⁻¹ is a running
average that starts at the prior; after k steps the data's share of it is 1 − (1−ρ)^k. The step of
the mean is multiplied by this share, or its first steps would be 1/ρ times too long. Estimates of
G are noisy: steps that would more than halve a precision, or leave it indefinite, are cut.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.inference.threads import lower_factor
from orthogp.precision import AnyArray

# The least variance of a combination of coefficients, relative to the largest: rounding.
_LEAST = 1e-15
# The number of times that a natural step which leaves S indefinite is divided by four.
_MOST_CUTS = 7

#: The forms of S that users name.
Covariance = Literal["dense", "diagonal"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)


class Normal(eqx.Module):
    """q(u), with parameters that may be any real numbers."""

    mean: eqx.AbstractVar[Float[AnyArray, " m"]]

    @abstractmethod
    def times(self, B: Float[AnyArray, "m t"]) -> Float[AnyArray, "m t"]:
        """Return S B; no M×M matrix is formed unless S is dense."""

    @abstractmethod
    def trace(self) -> Float[AnyArray, ""]:
        """Return tr S."""

    @abstractmethod
    def log_determinant(self) -> Float[AnyArray, ""]:
        """Return log|S|."""

    @abstractmethod
    def covariance(self) -> Float[AnyArray, "m m"]:
        """Return S."""

    @abstractmethod
    def natural_step(
        self,
        objective: Callable[[Normal], jax.Array],
        gradient: Self,
        rho: float | jax.Array,
        share: jax.Array,
    ) -> Self:
        """Return q(u) after a natural-gradient step.

        Parameters
        ----------
        objective : callable
            The estimated bound as a function of q(u).
        gradient : Normal
            Its gradient in the parameters of q(u).
        rho : float
            The size of the step.
        share : float
            The data's share of the running average S⁻¹.
        """

    def divergence(self) -> Float[AnyArray, ""]:
        """Return KL(q || p)."""
        excess = self.trace() + self.mean @ self.mean - len(self.mean)
        return 0.5 * (excess - self.log_determinant())


class DenseNormal(Normal):
    """S = L Lᵀ, L lower triangular, the logarithms of its diagonal in place of the diagonal."""

    mean: Float[AnyArray, " m"]
    raw: Float[AnyArray, "m m"]
    #: Added to S by `times` alone: the variable in which the expected likelihood is differentiated.
    shift: Float[AnyArray, "m m"] | None = None

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

    def natural_step(self, objective, gradient, rho, share) -> Self:
        """Return q(u) after a step in S⁻¹, shortened until the new S⁻¹ is positive definite."""
        size = len(self.mean)
        # S + shift enters the expected likelihood only: the divergence has a known derivative.
        by_likelihood = jax.grad(lambda shift: objective(type(self)(self.mean, self.raw, shift)))(
            jnp.zeros((size, size))
        )
        by_likelihood = (by_likelihood + by_likelihood.T) / 2
        precision = jnp.linalg.inv(self.covariance())
        wanted = jnp.eye(size) - 2 * by_likelihood

        def factor_at(step):
            moved = (1 - step) * precision + step * wanted
            return jnp.linalg.cholesky((moved + moved.T) / 2)

        # A noisy estimate may be indefinite: then the step is shortened, at last to none.
        factor = lax.fori_loop(
            1,
            _MOST_CUTS + 1,
            lambda i, found: lax.cond(
                jnp.all(jnp.isfinite(found)), lambda: found, lambda: factor_at(rho / 4.0**i)
            ),
            factor_at(rho),
        )
        factor = jnp.where(jnp.all(jnp.isfinite(factor)), factor, jnp.linalg.cholesky(precision))
        inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(size), lower=True)
        covariance = inverse.T @ inverse
        lower = jnp.linalg.cholesky(covariance)
        raw = jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diag(lower)))
        return type(self)(self.mean + share * rho * covariance @ gradient.mean, raw)


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

    def natural_step(self, objective, gradient, rho, share) -> Self:
        """Return q(u) after a step in 1/s, and one along the mean of the best length up to ρ."""
        # ∂/∂s = (∂/∂ log s)/s. A precision may grow by any factor in one step, because the mean
        # would outrun a precision that lags behind, but noise must not make it negative.
        factor = jnp.maximum(1 - 2 * rho * gradient.log_variances, 0.5)
        direction = self.variances / factor * gradient.mean
        # A diagonal S ignores correlations: where features overlap its step is too long, by up to
        # their number. The bound is quadratic in m, and its value there gives the best length.
        here, along = (
            objective(type(self)(mean, self.log_variances))
            for mean in (self.mean, self.mean + direction)
        )
        slope = gradient.mean @ direction
        curvature = 2 * (slope - (along - here))
        best = jnp.where(curvature > 0, slope / jnp.maximum(curvature, 1e-300), 1.0)
        return type(self)(
            self.mean + share * jnp.minimum(rho, best) * direction,
            self.log_variances - jnp.log(factor),
        )


def prior_normal(covariance: str, size: int) -> Normal:
    """Return q(u) = p(u) with a "dense" or a "diagonal" S."""
    if covariance == "dense":
        return DenseNormal.prior(size)
    if covariance == "diagonal":
        return DiagonalNormal.prior(size)
    raise InputError(
        f"covariance must be one of {', '.join(map(repr, COVARIANCES))}, got {covariance!r}."
    )
