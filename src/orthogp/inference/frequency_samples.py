r"""Random frequencies that integrals over a family's basis are estimated with.

For ω = c·u and u = u(v), v uniform on [0, 1]^D,

    ∫ ψ(ω) g(ω) dω ≈ Σ_i w_i basis(u_i) g(c u_i),      w_i = √∏c ∏ (du/dv)_i / T

is unbiased. The samples u do not depend on the parameters, so its gradient in c is unbiased too.
"Stratified" samples of the paper's appendix are an even grid with one random offset per column,
v_i = (i + U)/T; "independent" ones are just that.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import InputError
from orthogp.features.spectral import SpectralFeatures
from orthogp.precision import AnyArray

Sampler = Literal["stratified", "independent"]
SAMPLERS = ("stratified", "independent")


class Samples(NamedTuple):
    """A set of T random frequencies, dimensionless.

    Attributes
    ----------
    u : (t, d)
    weights : (t,)
        ∏ du/dv / T.
    offset : (d,)
        U, in [0, 1); only of use where the samples are stratified.
    """

    u: Float[AnyArray, "t d"]
    weights: Float[AnyArray, " t"]
    offset: Float[AnyArray, " d"]


def check_samples(num_samples: Any, sampler: str) -> None:
    """Raise `InputError` unless there are at least two samples, of a known kind."""
    if sampler not in SAMPLERS:
        raise InputError(
            f"sampler must be one of {', '.join(map(repr, SAMPLERS))}, got {sampler!r}."
        )
    whole = isinstance(num_samples, int | np.integer) and not isinstance(num_samples, bool)
    if not (whole and int(num_samples) >= 2):
        raise InputError(
            f"num_samples must be a whole number ≥ 2, got {num_samples!r}: twice the number of "
            'features is a good choice, or "auto".'
        )


def draw_samples(
    features: SpectralFeatures, num_samples: int, sampler: Sampler, key: jax.Array
) -> Samples:
    """Return T samples; in D columns the largest T^D that does not exceed `num_samples`."""
    counts = np.array(features.orders).max(axis=0) + 1
    num_dims = len(counts)
    if sampler == "independent":
        v = jax.random.uniform(key, (num_samples, num_dims), dtype=np.float64)
        offset = jnp.zeros(num_dims)
    else:
        each = samples_per_column(num_samples, num_dims)
        offset = jax.random.uniform(key, (num_dims,), dtype=np.float64)
        axes = [(np.arange(each) + offset[d]) / each for d in range(num_dims)]
        v = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, num_dims)
    columns = [features.from_uniform(v[:, d], int(counts[d])) for d in range(num_dims)]
    u = jnp.stack([u for u, _ in columns], axis=1)
    slopes = jnp.stack([slope for _, slope in columns], axis=1)
    return Samples(u, jnp.prod(slopes, axis=1) / len(v), offset)


def samples_per_column(num_samples: int, num_dims: int) -> int:
    """Return the T of each column of a stratified grid of at most `num_samples` points."""
    each = round(num_samples ** (1 / num_dims))
    return max(each - (each**num_dims > num_samples), 1)


def basis_values(features: SpectralFeatures, u: Float[AnyArray, "t d"]) -> Float[AnyArray, "m t"]:
    """Return ∏_d basis_{m_d}(u_d) of all features at the samples."""
    orders = np.array(features.orders)
    values = jnp.ones((len(orders), u.shape[0]))
    for d, order in enumerate(orders.T):
        table = features.traced_basis(u[:, d], int(order.max()) + 1)
        in_order = np.array_equal(order, np.arange(len(order)))
        values = values * (table if in_order else table[order])
    return values
