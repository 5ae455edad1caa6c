r"""Likelihoods p(y|f) and their expectations under a Gaussian q(f), one row at a time.

The expected log density of a row with f ~ N(μ, s²),

    ε(y, μ, s²) = ∫ log p(y|f) N(f | μ, s²) df,

is all that a variational bound needs to know of a likelihood. It has a closed form for Gaussian and
Poisson rows. For the others it is the rule of Gauss and Hermite,

    ε ≈ Σ_i w_i log p(y | μ + s z_i),      exact if log p is a polynomial in f of degree < 2·nodes

Its error falls with the number of nodes as fast as the complex singularities of log p(y|f) are far
away in units of s: those of the logistic lie at π, those of Student's t at √ν times its scale.
All functions here are elementwise in JAX and have derivatives by everything, for s² > 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.precision import AnyArray

NUM_NODES = 20

Array = Float[AnyArray, "..."]


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


# ---------------------------------------------------------------------- checks


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
