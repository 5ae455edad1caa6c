r"""The process that vanishes on the boundary of a box.

It is the stationary process on all of space, reflected with a change of sign at every face. On the
box with corners c ∓ L, and with P = 4L, its kernel is

    k_Ω(x, x') = Σ_{σ ⊆ columns} (−1)^{|σ|} Σ_{i ∈ Z^D} k(τ_σ + i∘P)

where τ_σ is x − x' in each column, except x + x' − 2(c − L) in those of σ.
"""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features.base import prior_variance
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double

# Images of the box on each side: doubled until k_Ω changes by less than this, relative to k(0).
_CONVERGED = 1e-10
_MOST_IMAGES = {1: 256, 2: 16, 3: 4}
_ROWS_PER_BLOCK = 256


def constrained_variance(
    kernel: Kernel,
    X: NDArray[np.float64],
    centre: NDArray[np.float64],
    half_width: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return k_Ω(x_n, x_n) as a sum over images, (n,)."""
    period = 4 * half_width
    # The reflected lags modulo the period, so that few images suffice.
    doubled = 2 * (X - centre + half_width)
    doubled -= period * np.round(doubled / period)
    probe = np.quantile(doubled, np.linspace(0, 1, 8), axis=0)
    num_images, tolerance = 2, _CONVERGED * prior_variance(kernel)
    coarse = np.asarray(_image_sums(kernel, probe, period, num_images))
    while num_images < _MOST_IMAGES[X.shape[1]]:
        fine = np.asarray(_image_sums(kernel, probe, period, 2 * num_images))
        if np.max(np.abs(fine - coarse)) <= tolerance:
            break
        num_images, coarse = 2 * num_images, fine
    blocks = np.pad(doubled, ((0, -len(X) % _ROWS_PER_BLOCK), (0, 0)))
    blocks = blocks.reshape(-1, _ROWS_PER_BLOCK, X.shape[1])
    sums = [np.asarray(_image_sums(kernel, block, period, num_images)) for block in blocks]
    return np.concatenate(sums)[: len(X)]


@in_double
@eqx.filter_jit
def _image_sums(
    kernel: Kernel,
    doubled: Float[AnyArray, "n d"],
    period: Float[AnyArray, " d"],
    num_images: int,
) -> Float[AnyArray, " n"]:
    num_dims = doubled.shape[1]
    shifts = range(-num_images, num_images + 1)
    images = jnp.asarray(list(itertools.product(shifts, repeat=num_dims)), float) * period
    columns = np.array(list(itertools.product((0, 1), repeat=num_dims)))
    signs = jnp.asarray((-1.0) ** columns.sum(axis=1))

    def at(lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        reflected = (columns * lag)[:, None, :] + images
        values = jax.vmap(jax.vmap(kernel.k))(reflected)
        return jnp.sum(signs[:, None] * values)

    return jax.lax.map(at, jnp.asarray(doubled))
