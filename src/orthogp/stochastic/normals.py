r"""q(u) = N(m, S) of orthonormal features: natural-gradient steps, and the best one in closed form.

Under the prior u ~ N(0, I),

    KL(q || p) = ½ (tr S + mᵀm − M − log|S|)

With G = ∂ELBO/∂S and g = ∂ELBO/∂m, a step of size ρ in the natural parameters is

    S⁻¹ ← S⁻¹ − 2ρ G,      m ← m + ρ S g      (the new S)

For a Gaussian likelihood and exact gradients a step of size one is the optimum. S⁻¹ is a running
average that starts at the prior; after k steps the data's share of it is 1 − (1−ρ)^k. The step of
the mean is multiplied by that share, or its first steps would be 1/ρ times too long. Estimates of
G are noisy: steps that would more than halve a precision, or leave it indefinite, are cut.

For Gaussian noise, with B = I + A/σ² and B_jj its diagonal blocks, the best q(u) = ∏_j N(m_j, S_j)
has for each target

    m = B⁻¹b/σ²,      S_j = B_jj⁻¹,      bound = Titsias' − ½ (Σ_j log|B_jj| − log|B|)

The mean equals the mean of the full posterior, and factorising costs what Fischer's inequality
says. Blocks of one feature are the mean-field approximation; two blocks, of `TwoBlock` features,
are q(u)q(v) of SOLVE-GP (Shi, Titsias & Mnih 2019).

The expected log density of a row with f ~ N(μ, s²),

    ε(y, μ, s²) = ∫ log p(y|f) N(f | μ, s²) df,

is all that a variational bound needs to know of a likelihood. It has a closed form for Gaussian and
Poisson rows. For the others it is the rule of Gauss and Hermite,

    ε ≈ Σ_i w_i log p(y | μ + s z_i),      exact if log p is a polynomial in f of degree < 2·nodes

Its error falls with the number of nodes as fast as the complex singularities of log p(y|f) are far
away in units of s: those of the logistic lie at π, those of Student's t at √ν times its scale.
Likelihoods are elementwise in JAX and have derivatives by everything, for s² > 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import gammaln
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import cho_solve

from orthogp.errors import InputError
from orthogp.inference.bounds import Bound, factorise, titsias_bound
from orthogp.inference.moments import Moments
from orthogp.precision import AnyArray, lower_factor

#: The least variance of a combination of coefficients, relative to the largest: rounding.
LEAST = 1e-15
# The number of times that a natural step which leaves S indefinite is divided by four.
_MOST_CUTS = 7

#: The number of nodes of the rule of Gauss and Hermite.
NUM_NODES = 20

Array = Float[AnyArray, "..."]

#: The forms of S that users name.
Covariance = Literal["dense", "diagonal"]
COVARIANCES: tuple[Covariance, ...] = get_args(Covariance)


class Normal(eqx.Module):
    """q(u), with parameters that may be any real numbers."""

    mean: eqx.AbstractVar[Float[AnyArray, " m"]]

    @classmethod
    @abstractmethod
    def of(cls, mean: NDArray[np.float64], covariance: NDArray[np.float64]) -> Self:
        """Return N(mean, covariance)."""

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
    def of(cls, mean: NDArray[np.float64], covariance: NDArray[np.float64]) -> Self:
        """Return N(mean, covariance)."""
        factor = lower_factor(covariance, LEAST)
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
    def of(cls, mean: NDArray[np.float64], covariance: NDArray[np.float64]) -> Self:
        """Return N(mean, covariance), which must be diagonal."""
        return cls(mean, np.log(np.diag(covariance)))

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
    if covariance not in COVARIANCES:
        raise InputError(
            f"covariance must be one of {', '.join(map(repr, COVARIANCES))}, got {covariance!r}."
        )
    kind = DenseNormal if covariance == "dense" else DiagonalNormal
    return kind.of(np.zeros(size), np.eye(size))


# ---------------------------------------------------------------------- the best q(u)

#: A size for all blocks, a size for each, or the features of each.
Blocks = int | Sequence[int] | Sequence[Sequence[int]] | Sequence[NDArray[np.int64]]


class FactorisedPosterior(NamedTuple):
    """The best factorised q(u): means (m, p), S (m, m), which all targets share, and its bound."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    bound: Bound


def factorised_posterior(
    moments: Moments, noise_variance: float, blocks: Blocks
) -> FactorisedPosterior:
    """Return the best q(u) that factorises over `blocks`.

    Parameters
    ----------
    blocks : int or sequence
        The size of all blocks (of consecutive features; the last may be smaller), the size of
        each, or the features of each.
    """
    chol = factorise(moments.gram, noise_variance)
    covariance = np.zeros_like(moments.gram)
    cost = -np.sum(np.log(np.diag(chol)))
    for block in resolve_blocks(blocks, len(chol)):
        at = np.ix_(block, block)
        factor = factorise(moments.gram[at], noise_variance)
        covariance[at] = cho_solve((factor, True), np.eye(len(block)))
        cost += np.sum(np.log(np.diag(factor)))
    bound = titsias_bound(moments, noise_variance, chol)
    complexity = bound.complexity - len(moments.yy) * float(cost)
    mean = cho_solve((chol, True), moments.projection) / noise_variance
    return FactorisedPosterior(mean, covariance, bound._replace(complexity=complexity))


def resolve_blocks(blocks: Blocks, num_features: int) -> tuple[NDArray[np.int64], ...]:
    """Return the features of each block; raise `InputError` unless each is in exactly one."""
    if isinstance(blocks, int | np.integer):
        if blocks < 1:
            raise InputError(f"Blocks must have at least one feature, got a size of {blocks}.")
        return tuple(np.split(np.arange(num_features), np.arange(blocks, num_features, blocks)))
    if all(isinstance(block, int | np.integer) for block in blocks):
        sizes = np.array(blocks, dtype=np.int64)
        if np.any(sizes < 1) or sizes.sum() != num_features:
            raise InputError(
                f"The sizes of the blocks must be positive and add up to {num_features} features, "
                f"got {sizes.tolist()}."
            )
        return tuple(np.split(np.arange(num_features), np.cumsum(sizes)[:-1]))
    members = tuple(np.array(block, dtype=np.int64) for block in blocks)
    if not np.array_equal(np.sort(np.concatenate(members)), np.arange(num_features)):
        raise InputError(
            f"Every one of the {num_features} features, counted from 0, must be in exactly one "
            "block."
        )
    return members


# ---------------------------------------------------------------------- likelihoods


class Likelihood(eqx.Module):
    """The density p(y|f) of a target given the function's value; its leaves can be learned."""

    @abstractmethod
    def log_density(self, y: Array, f: Array) -> Array:
        """Return log p(y|f)."""

    @abstractmethod
    def expected_log_density(self, y: Array, mean: Array, variance: Array) -> Array:
        """Return ∫ log p(y|f) N(f | mean, variance) df."""

    def check(self, y: NDArray[np.float64]) -> None:
        """Raise `InputError` unless the targets, which are finite, can have come from here."""


class Gaussian(Likelihood):
    """y = f + noise of variance σ², given by its logarithm."""

    log_noise_variance: Any = eqx.field(converter=lambda value: _number("noise variance", value))

    @property
    def noise_variance(self) -> Array:
        """σ²."""
        return jnp.exp(self.log_noise_variance)

    def log_density(self, y: Array, f: Array) -> Array:
        """Return −½ log 2πσ² − (y − f)²/(2σ²)."""
        return self._log_density_at((y - f) ** 2)

    def expected_log_density(self, y: Array, mean: Array, variance: Array) -> Array:
        """Return −½ log 2πσ² − ((y − μ)² + s²)/(2σ²)."""
        return self._log_density_at((y - mean) ** 2 + variance)

    def _log_density_at(self, square: Array) -> Array:
        return -0.5 * (jnp.log(2 * jnp.pi) + self.log_noise_variance + square / self.noise_variance)


class Poisson(Likelihood):
    """Counts y = 0, 1, … of rate e^f."""

    def log_density(self, y: Array, f: Array) -> Array:
        """Return y f − e^f − log y!."""
        return y * f - jnp.exp(f) - gammaln(y + 1.0)

    def expected_log_density(self, y: Array, mean: Array, variance: Array) -> Array:
        """Return y μ − e^{μ + s²/2} − log y!."""
        return y * mean - jnp.exp(mean + variance / 2) - gammaln(y + 1.0)

    def check(self, y: NDArray[np.float64]) -> None:
        """Raise `InputError` unless all targets are counts."""
        _check_targets("Poisson", y, (y >= 0) & (y == np.floor(y)), "whole numbers ≥ 0")


class Bernoulli(Likelihood):
    """Labels 0 and 1 with p(y = 1|f) = σ(f) = 1/(1 + e^{−f}).

    Parameters
    ----------
    num_nodes : int
        Of the Gauss–Hermite rule.
    """

    num_nodes: int = eqx.field(static=True, default=NUM_NODES)

    def __check_init__(self) -> None:
        _check_nodes(self.num_nodes)

    def log_density(self, y: Array, f: Array) -> Array:
        """Return y f − log(1 + e^f)."""
        return y * f - jax.nn.softplus(f)

    def expected_log_density(self, y: Array, mean: Array, variance: Array) -> Array:
        """Return y μ − Σ_i w_i log(1 + e^{f_i})."""
        return y * mean - normal_expectation(jax.nn.softplus, mean, variance, self.num_nodes)

    def probability(self, mean: Array, variance: Array) -> Array:
        """Return p(y = 1) = ∫ σ(f) N(f | mean, variance) df."""
        return normal_expectation(jax.nn.sigmoid, mean, variance, self.num_nodes)

    def check(self, y: NDArray[np.float64]) -> None:
        """Raise `InputError` unless all targets are labels."""
        _check_targets("Bernoulli", y, (y == 0) | (y == 1), "labels 0 and 1")


class StudentT(Likelihood):
    """y = f + s·t of ν degrees of freedom: robust against outliers.

    Parameters
    ----------
    log_scale : float
        log s.
    degrees : float
        ν > 0, which is not learned.
    num_nodes : int
        Of the Gauss–Hermite rule.
    """

    log_scale: Any = eqx.field(converter=lambda value: _number("scale", value))
    degrees: float = eqx.field(static=True, default=4.0)
    num_nodes: int = eqx.field(static=True, default=NUM_NODES)

    def __check_init__(self) -> None:
        if not (isinstance(self.degrees, int | float) and 0 < self.degrees < np.inf):
            raise InputError(f"degrees must be a positive number, got {self.degrees!r}.")
        _check_nodes(self.num_nodes)

    def log_density(self, y: Array, f: Array) -> Array:
        """Return log Γ((ν+1)/2)/(Γ(ν/2) √(πν) s) − (ν+1)/2 log(1 + (y − f)²/(ν s²))."""
        nu = self.degrees
        normaliser = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * jnp.log(jnp.pi * nu)
        square = ((y - f) / jnp.exp(self.log_scale)) ** 2
        return normaliser - self.log_scale - (nu + 1) / 2 * jnp.log1p(square / nu)

    def expected_log_density(self, y: Array, mean: Array, variance: Array) -> Array:
        """Return Σ_i w_i log p(y|f_i)."""
        return normal_expectation(
            lambda f: self.log_density(y[..., None], f), mean, variance, self.num_nodes
        )


def normal_expectation(
    function: Callable[[Array], Array], mean: Array, variance: Array, num_nodes: int
) -> Array:
    """Return ∫ g(f) N(f | mean, variance) df by the rule of Gauss and Hermite.

    `function` is called once with all nodes, which are along the last axis.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    f = mean[..., None] + jnp.sqrt(variance)[..., None] * nodes
    return function(f) @ jnp.asarray(weights / weights.sum())


def _number(name: str, log_value: object) -> Array:
    """Return the logarithm of a positive parameter as an array, as it is if it is one of JAX."""
    if isinstance(log_value, jax.Array):
        return log_value
    try:
        array = np.asarray(log_value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.asarray(np.nan)
    if array.ndim > 0 or not np.isfinite(array):
        raise InputError(f"The {name}'s logarithm must be one finite number, got {log_value!r}.")
    return array


def _check_nodes(num_nodes: object) -> None:
    # Beyond this the outermost weights underflow.
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int) or not 1 <= num_nodes <= 300:
        raise InputError(f"num_nodes must be a whole number from 1 to 300, got {num_nodes!r}.")


def _check_targets(
    name: str, y: NDArray[np.float64], possible: NDArray[np.bool_], expected: str
) -> None:
    if not np.all(possible):
        raise InputError(
            f"Targets of the {name} likelihood are {expected}, but y holds "
            f"{y[~possible][0]:.6g}: encode them so, or choose another likelihood."
        )
