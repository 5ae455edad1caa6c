"""Products of one-dimensional series, as series on the lattice of all columns."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.precision import AnyArray


def product_series(
    tables: list[Float[AnyArray, "_ _"]], odd: list[NDArray[np.bool_]], orders: NDArray[np.int64]
) -> Float[AnyArray, "m s"]:
    r"""Return the coefficients of products of series, one of each column.

    An even series is Σ_t c_t e^{iθ_t} and an odd one −i Σ_t c_t e^{iθ_t}, with c symmetric or
    antisymmetric, so that the coefficients of a product with n odd factors are (−i)^n ∏_d c_{t_d}.

    Parameters
    ----------
    tables : list of (m_d, n_d + 1)
        Coefficients of cosines or sines at the indices 0…n_d of each column.
    odd : list of (m_d,)
        Which rows are series of sines.
    orders : (m, d)
        The rows to multiply.

    Returns
    -------
    (m, s)
        Coefficients at `half_indices` of the box |t_d| ≤ n_d. A product is a series of sines where
        its number of odd factors is odd.
    """
    result = jnp.ones((len(orders), 1))
    for d, (table, is_odd) in enumerate(zip(tables, odd, strict=True)):
        sign = jnp.where(jnp.asarray(is_odd), -1.0, 1.0)[:, None]
        zero = jnp.where(jnp.asarray(is_odd)[:, None], 0.0, table[:, :1])
        half = table[:, 1:] / 2
        factor = jnp.concatenate([sign * half[:, ::-1], zero, half], axis=1)[orders[:, d]]
        result = (result[:, :, None] * factor[:, None, :]).reshape(len(orders), -1)
    num_odd = np.sum([is_odd[orders[:, d]] for d, is_odd in enumerate(odd)], axis=0)
    result = jnp.where(jnp.asarray(num_odd // 2 % 2)[:, None] == 1, -result, result)
    middle = result.shape[1] // 2
    return jnp.concatenate([result[:, middle : middle + 1], 2 * result[:, middle + 1 :]], axis=1)


def product_parity(odd: list[NDArray[np.bool_]], orders: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which products are odd functions, (m,)."""
    return np.sum([is_odd[orders[:, d]] for d, is_odd in enumerate(odd)], axis=0) % 2 == 1
