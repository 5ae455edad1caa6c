r"""Gaussians on the lattice, and kernels that are Gamma mixtures of them.

Matérn and rational quadratic are Gaussians of random lengthscale λ, with g ~ Gamma(a, 1):

    Matérn-ν              λ² = ℓ² g/ν,   a = ν
    rational quadratic    λ² = ℓ² α/g,   a = α

The trapezoidal rule in log g converges faster than exponentially, is differentiable in a, and
serves for Bessel functions of any real order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import gammainc, gammaln
from jaxtyping import Float

from orthogp.precision import AnyArray

# Nodes of the rule in log g: for Matérn-ν they reach far enough for ν ≥ 0.1, for the rational
# quadratic kernel, whose every mass needs them all, for α ≥ 0.3.
MATERN_NODES = 600
RATIONAL_NODES = 300
# Below this ratio of lengthscale to period the images converge in four terms to rounding, above it
# the Fourier series does in three.
_FEW_IMAGES = 0.4
# Halvings of an interval of log g, from hundreds to rounding.
_BISECTIONS = 60


def gamma_mixture(
    shape: Float[AnyArray, ""], num_nodes: int
) -> tuple[Float[AnyArray, " q"], Float[AnyArray, " q"]]:
    """Return nodes g and weights summing to one of a quadrature for Gamma(shape, 1)."""
    # The rule's error is |Γ(a + 2πi/Δ)|/Γ(a): below 1e-11 for both terms of this minimum.
    step = jnp.minimum(0.25, 0.55 / jnp.sqrt(shape))
    top = jnp.log(shape + 10 * jnp.sqrt(shape) + 60)
    log_g = top - step * jnp.arange(num_nodes)
    g = jnp.exp(log_g)
    weights = jnp.exp(shape * log_g - g - gammaln(shape)) * step
    return g, weights / jnp.sum(weights)


def gamma_quantile(
    shape: Float[AnyArray, ""], level: Float[AnyArray, " n"]
) -> Float[AnyArray, " n"]:
    """Return where the distribution function of Gamma(shape, 1) has values between 0 and 1."""
    shape, level = jnp.asarray(shape), jnp.asarray(level)
    # P(a, g) ≤ g^a/Γ(a+1) bounds the logarithm of g from below.
    low = (jnp.log(level) + gammaln(shape + 1)) / shape
    high = jnp.full_like(low, jnp.log(shape + 10 * jnp.sqrt(shape) + 60))

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        below = gammainc(shape, jnp.exp(middle)) < level
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    ends = (jnp.minimum(low, high), high)
    ends = jax.lax.stop_gradient(jax.lax.fori_loop(0, _BISECTIONS, halve, ends))
    g = jnp.exp(ends[0])
    # One of Newton's steps, which moves nothing, has the derivative of the root in the shape.
    log_density = (shape - 1) * ends[0] - g - gammaln(shape)
    return g - (gammainc(shape, g) - level) / jnp.exp(log_density)


def gaussian_mass(
    omega: Float[AnyArray, " d"], lengthscale: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
) -> Float[AnyArray, ""]:
    r"""Return the mass at ω of a unit Gaussian kernel whose wrap is corrected in each dimension.

    With x = λ/P in one dimension, and the product over dimensions:

        mass_t = √(2π) x exp(−½ λ² ω_t²) for t ≠ 0,      mass_0 = 1 − Σ_{t≠0} mass_t
    """
    ratio = lengthscale * spacing / (2 * jnp.pi)
    decay = jnp.sqrt(2 * jnp.pi) * ratio * jnp.exp(-0.5 * (lengthscale * omega) ** 2)
    return jnp.prod(jnp.where(omega == 0, _zero_mode(ratio), decay))


def wrapped_gaussian(
    lag: Float[AnyArray, " d"], lengthscale: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
) -> Float[AnyArray, ""]:
    """Return Σ_t mass_t e^{iω_t·τ} for the masses of `gaussian_mass`."""
    ratio, phase = lengthscale / period, lag / period
    j = jnp.arange(1.0, 5.0)[:, None]

    def bell(shift: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return jnp.exp(-0.5 * (shift / ratio) ** 2)

    images = bell(phase) + jnp.sum(bell(phase + j) + bell(phase - j) - 2 * bell(j), axis=0)
    modes = jnp.exp(-2 * (jnp.pi * ratio * j) ** 2) * jnp.cos(2 * jnp.pi * j * phase)
    series = _zero_mode(ratio) + 2 * jnp.sqrt(2 * jnp.pi) * ratio * jnp.sum(modes, axis=0)
    return jnp.prod(jnp.where(ratio < _FEW_IMAGES, images, series))


def _zero_mode(ratio: Float[AnyArray, " d"]) -> Float[AnyArray, " d"]:
    j = jnp.arange(1.0, 5.0)[:, None]
    scale = jnp.sqrt(2 * jnp.pi) * ratio
    by_images = scale - 2 * jnp.sum(jnp.exp(-0.5 * (j / ratio) ** 2), axis=0)
    by_series = 1 - 2 * scale * jnp.sum(jnp.exp(-2 * (jnp.pi * ratio * j) ** 2), axis=0)
    return jnp.where(ratio < _FEW_IMAGES, by_images, by_series)
