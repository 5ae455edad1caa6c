r"""Natural-gradient steps on q(u) = N(m, S).

With G = ∂ELBO/∂S and g = ∂ELBO/∂m, a step of size ρ in the natural parameters is

    S⁻¹ ← S⁻¹ − 2ρ G,      m ← m + ρ S g      (the new S)

For a Gaussian likelihood and exact gradients a step of size one is the optimum. S⁻¹ is a running
average that starts at the prior, where after k steps 1 − (1−ρ)^k of it is the data's: the mean's
step is multiplied by that share, or its first steps would be 1/ρ times too long. Estimates of G
are noisy: steps that would more than halve a precision, or leave it indefinite, are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from orthogp.errors import InputError
from orthogp.inference.variational import DenseNormal, DiagonalNormal, Normal


def natural_step(
    objective: Any,
    parameters: Any,
    ascent: Any,
    batch: Any,
    key: jax.Array,
    rho: float | jax.Array,
    share: jax.Array,
) -> Any:
    """Return the parameters with q(u) moved.

    `parameters.q` is the distribution, `ascent` the gradient of the objective in all parameters,
    `share` that of the data in the running average of S⁻¹.
    """

    def at(q: Normal) -> jax.Array:
        return objective(eqx.tree_at(lambda tree: tree.q, parameters, q), batch, key)

    if isinstance(parameters.q, DiagonalNormal):
        moved = _diagonal_step(at, parameters.q, ascent.q, rho, share)
    elif isinstance(parameters.q, DenseNormal):
        moved = _dense_step(at, parameters.q, ascent.q, rho, share)
    else:
        raise InputError(
            "Natural gradients need a dense or diagonal S: leave `natural` open for a low-rank one."
        )
    return eqx.tree_at(lambda tree: tree.q, parameters, moved)


def _diagonal_step(
    objective: Callable[[Normal], jax.Array],
    q: DiagonalNormal,
    gradient: DiagonalNormal,
    rho: float | jax.Array,
    share: jax.Array,
) -> DiagonalNormal:
    # ∂/∂s = (∂/∂ log s)/s. A precision may grow at once by any factor, for the mean would outrun
    # one that lags behind, but noise must not make it negative.
    factor = jnp.maximum(1 - 2 * rho * gradient.log_variances, 0.5)
    direction = q.variances / factor * gradient.mean
    # S knows no correlations, and along what features have in common its step is too long, by up
    # to their number. The bound is quadratic in m: one more value of it tells the best length.
    here, along = (
        objective(DiagonalNormal(mean, q.log_variances)) for mean in (q.mean, q.mean + direction)
    )
    slope = gradient.mean @ direction
    curvature = 2 * (slope - (along - here))
    best = jnp.where(curvature > 0, slope / jnp.maximum(curvature, 1e-300), 1.0)
    return DiagonalNormal(
        q.mean + share * jnp.minimum(rho, best) * direction, q.log_variances - jnp.log(factor)
    )


def _dense_step(
    objective: Callable[[Normal], jax.Array],
    q: DenseNormal,
    gradient: DenseNormal,
    rho: float | jax.Array,
    share: jax.Array,
) -> DenseNormal:
    size = len(q.mean)
    S = q.covariance()

    def shifted(shift):
        # S + shift in the expectation of the likelihood; the divergence is known without it.
        return objective(q.shifted(shift))

    by_likelihood = jax.grad(shifted)(jnp.zeros((size, size)))
    by_likelihood = (by_likelihood + by_likelihood.T) / 2
    precision = jnp.linalg.inv(S)
    wanted = jnp.eye(size) - 2 * by_likelihood

    def factor_at(step):
        moved = (1 - step) * precision + step * wanted
        return jnp.linalg.cholesky((moved + moved.T) / 2)

    # A noisy estimate may not be positive definite: then a shorter step, in the end none.
    factor = lax.fori_loop(
        1,
        8,
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
    return DenseNormal(q.mean + share * rho * covariance @ gradient.mean, raw)
