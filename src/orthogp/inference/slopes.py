"""Covariances of derivatives, by the derivative of the kernel."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double


def slope_variance(kernel: Kernel, num_dims: int, dim: int) -> float:
    """Return the prior variance of ∂f/∂x_dim, −∂²k(0)/∂τ_dim²."""
    value = float(np.asarray(kernel.derivative_variance(num_dims))[dim])
    if not np.isfinite(value):
        raise InputError(
            f"Functions of the kernel {type(kernel).__name__} have no derivative along column "
            f"{dim}: use a smoother kernel, such as matern52."
        )
    return value


def slopes(kernel: Kernel, lags: NDArray[np.float64], dim: int) -> NDArray[np.float64]:
    """Return ∂k(τ)/∂τ_dim, the covariance of ∂f/∂x_dim at x + τ with f at x, (n,)."""
    return np.asarray(_slopes(kernel, lags, dim))


@in_double
@eqx.filter_jit
def _slopes(kernel: Kernel, lags: Float[AnyArray, "n d"], dim: int) -> Float[AnyArray, " n"]:
    return jax.vmap(lambda lag: jax.grad(kernel.k)(lag)[dim])(jnp.asarray(lags))
