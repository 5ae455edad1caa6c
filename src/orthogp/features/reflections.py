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
    return _constrained(kernel, np.zeros_like(X), 2 * (X - centre + half_width), 4 * half_width)


def constrained_covariance(
    kernel: Kernel,
    X: NDArray[np.float64],
    centre: NDArray[np.float64],
    half_width: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return k_Ω between all rows of X as a sum over images, (n, n)."""
    rows, columns = np.tril_indices(len(X))
    A, B = X[rows], X[columns]
    values = _constrained(kernel, A - B, A + B - 2 * (centre - half_width), 4 * half_width)
    result = np.empty((len(X), len(X)))
    result[rows, columns] = result[columns, rows] = values
    return result


def _constrained(
    kernel: Kernel,
    lags: NDArray[np.float64],
    reflected: NDArray[np.float64],
    period: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return k_Ω for pairs with lags x − x' and x + x' − 2(c − L), (n,)."""
    # Modulo the period, so that few images suffice.
    pairs = np.stack([lags, reflected], axis=1)
    pairs -= period * np.round(pairs / period)
    extremes = np.linspace(0, len(pairs) - 1, 8).astype(int)
    probe = pairs[np.argsort(np.abs(pairs).sum(axis=(1, 2)))[extremes]]
    num_images, tolerance = 2, _CONVERGED * prior_variance(kernel)
    coarse = np.asarray(_image_sums(kernel, probe, period, num_images))
    while num_images < _MOST_IMAGES[len(period)]:
        fine = np.asarray(_image_sums(kernel, probe, period, 2 * num_images))
        if np.max(np.abs(fine - coarse)) <= tolerance:
            break
        num_images, coarse = 2 * num_images, fine
    padded = np.pad(pairs, ((0, -len(pairs) % _ROWS_PER_BLOCK), (0, 0), (0, 0)))
    blocks = padded.reshape(-1, _ROWS_PER_BLOCK, *pairs.shape[1:])
    sums = [np.asarray(_image_sums(kernel, block, period, num_images)) for block in blocks]
    return np.concatenate(sums)[: len(pairs)]


@in_double
@eqx.filter_jit
def _image_sums(
    kernel: Kernel,
    pairs: Float[AnyArray, "n 2 d"],
    period: Float[AnyArray, " d"],
    num_images: int,
) -> Float[AnyArray, " n"]:
    num_dims = pairs.shape[2]
    shifts = range(-num_images, num_images + 1)
    images = jnp.asarray(list(itertools.product(shifts, repeat=num_dims)), float) * period
    columns = np.array(list(itertools.product((0, 1), repeat=num_dims)))
    signs = jnp.asarray((-1.0) ** columns.sum(axis=1))

    def at(pair: Float[AnyArray, "2 d"]) -> Float[AnyArray, ""]:
        turned = jnp.where(columns == 1, pair[1], pair[0])[:, None, :] + images
        values = jax.vmap(jax.vmap(kernel.k))(turned)
        return jnp.sum(signs[:, None] * values)

    return jax.lax.map(at, jnp.asarray(pairs))
