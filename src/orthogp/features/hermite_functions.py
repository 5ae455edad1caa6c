r"""Scaled Hermite functions, and their derivatives.

Hermite features, eigenfunctions of the RBF kernel and the Hermite functions themselves are one
family, with h_m = H_m/√(2^m m!), an amplitude A and a ratio |ρ| ≤ 1:

    φ_m = A e^{−E} ρ^{m/2} h_m(α/√ρ)
    φ_0 = A e^{−E},      φ_{m+1} = √(2/(m+1)) α φ_m − √(m/(m+1)) ρ φ_{m−1}

The recurrence holds the Gaussian factor from the start, so that nothing overflows, and needs no
root of ρ, which may be zero or negative. The derivatives are members again,

    ∂φ_m/∂α = √(2m) φ_{m−1},      ∂φ_m/∂ρ = −½ √(m(m−1)) φ_{m−2}

(the second because ∂/∂ρ = −¼ ∂²/∂α² on the generating function e^{2αt − ρt²}), so that learning
never differentiates through the recurrence.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.precision import AnyArray

#: The most members of one column. Where φ_0 underflows (E > 708) the recurrence gives zeros. There,
#: by Mehler's formula, φ_m² ≤ A² s^{−m} e^{−2E(1−s)/(1+ρs)}/√(1−s²) for all 0 < s < 1; the best s
#: says |φ_m| < 1e-30 A for m < 512. From m ≈ 590 on, what is lost would exceed rounding.
MOST_MEMBERS = 512

# Steps of the recurrence that are compiled together, and rows that fit into the cache together.
_UNROLL, _ROWS_PER_BLOCK = 8, 1024


class Terms(NamedTuple):
    """What the recurrence runs on, for points x_n of one column."""

    amplitude: Float[AnyArray, ""]
    exponent: Float[AnyArray, " n"]
    alpha: Float[AnyArray, " n"]
    rho: Float[AnyArray, ""]


def members(terms: Terms, count: int) -> NDArray[np.float64]:
    """Return φ_m(x_n) for m < `count`, (n, count)."""
    _check_members(count)
    # The last row stands in for φ_{−1} = 0.
    values = np.zeros((count + 1, len(terms.exponent)))
    values[0] = terms.amplitude * np.exp(-terms.exponent)
    for m in range(count - 1):
        values[m + 1] = np.sqrt(2 / (m + 1)) * terms.alpha * values[m]
        values[m + 1] -= np.sqrt(m / (m + 1)) * terms.rho * values[m - 1]
    return values[:count].T


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def traced_members(terms: Terms, count: int) -> Float[jax.Array, "n m"]:
    """Return `members` as a JAX array, to be differentiated in reverse mode."""
    return _recur(terms, count)


def _recur(terms: Terms, count: int) -> Float[jax.Array, "n m"]:
    _check_members(count)
    m = np.arange(count)
    first = jnp.asarray(terms.amplitude * jnp.exp(-terms.exponent))

    def step(
        pair: tuple[jax.Array, jax.Array], factors: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        before, last = pair
        forward, back = factors
        return (last, forward * terms.alpha * last - back * terms.rho * before), last

    # Whole columns at a time: no slower than blocks of rows within the cache, and simpler.
    factors = (jnp.asarray(np.sqrt(2 / (m + 1))), jnp.asarray(np.sqrt(m / (m + 1))))
    _, values = jax.lax.scan(step, (jnp.zeros_like(first), first), factors, unroll=_UNROLL)
    return values.T


def _forward(terms: Terms, count: int) -> tuple[jax.Array, tuple[jax.Array, Terms]]:
    Phi = _recur(terms, count)
    return Phi, (Phi, terms)


def _backward(
    count: int, residuals: tuple[jax.Array, Terms], cotangent: Float[jax.Array, "n m"]
) -> tuple[Terms]:
    Phi, terms = residuals
    m = np.arange(count)
    by_alpha = jnp.asarray(np.sqrt(2.0 * m[1:]))
    by_rho = jnp.asarray(-0.5 * np.sqrt(m[2:] * (m[2:] - 1.0)))

    def contract(row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        phi, weights = row
        return (
            jnp.sum(weights * phi),
            jnp.sum(weights[1:] * by_alpha * phi[:-1]),
            jnp.sum(weights[2:] * by_rho * phi[:-2]),
        )

    # In blocks, because shifted products of whole arrays are several times slower.
    whole, alpha, rho = jax.lax.map(contract, (Phi, cotangent), batch_size=_ROWS_PER_BLOCK)
    return (Terms(jnp.sum(whole) / terms.amplitude, -whole, alpha, jnp.sum(rho)),)


traced_members.defvjp(_forward, _backward)


def _check_members(count: int) -> None:
    if count > MOST_MEMBERS:
        raise FeatureError(
            f"Hermite functions are computed up to {MOST_MEMBERS} per column, got {count}, whose "
            "last ones double precision does not hold: use fewer features, or Trig."
        )
