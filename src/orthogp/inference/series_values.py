r"""Trigonometric polynomials over evenly spaced frequencies, at a batch of points.

    y_n = Re Σ_j a_j e^{i(start + j·step) x_n}

With j = J₂ j₁ + j₂ the exponentials are products of two, so that n (J₁ + J₂) of them are evaluated
instead of n J, and the sum over j₂ is a matrix product.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Complex, Float

from orthogp.precision import AnyArray


def evaluate_evenly(
    coefficients: Complex[AnyArray, "r j"],
    starts: Float[AnyArray, " r"],
    step: Float[AnyArray, ""],
    x: Float[AnyArray, " n"],
) -> Float[AnyArray, "n r"]:
    """Return r such series, each with its own start, at the points x."""
    num_series, size = coefficients.shape
    inner = int(np.ceil(np.sqrt(size)))
    outer = -(-size // inner)
    a = jnp.pad(jnp.asarray(coefficients), ((0, 0), (0, outer * inner - size)))
    a = a.reshape(num_series * outer, inner).T
    cos, sin = _waves((step * x)[:, None] * np.arange(inner))
    # Real products: those of complex matrices are slower here than the four they consist of.
    shape = (len(x), num_series, outer)
    real = (cos @ a.real - sin @ a.imag).reshape(shape)
    imag = (sin @ a.real + cos @ a.imag).reshape(shape)
    cos, sin = _waves((step * x)[:, None] * (inner * np.arange(outer)))
    cos, sin = cos[:, None, :], sin[:, None, :]
    real, imag = jnp.sum(cos * real - sin * imag, axis=2), jnp.sum(sin * real + cos * imag, axis=2)
    cos, sin = _waves(x[:, None] * starts)
    return cos * real - sin * imag


@jax.custom_vjp
def antidiagonal_sums(G: Float[AnyArray, "t t"]) -> Float[AnyArray, " 2t-1"]:
    """Return Σ_{i+j=p} G_ij for p = 0 … 2t−2."""
    t = len(G)

    def add_row(sums, indexed):
        i, row = indexed
        moved = lax.dynamic_slice(sums, (i,), (t,)) + row
        return lax.dynamic_update_slice(sums, moved, (i,)), None

    # Row by row stays in the cache: ten times as fast as shifting the whole matrix.
    return lax.scan(add_row, jnp.zeros(2 * t - 1), (jnp.arange(t), jnp.asarray(G)))[0]


def _antidiagonal_forward(G: AnyArray) -> tuple[AnyArray, None]:
    return antidiagonal_sums(G), None


def _antidiagonal_backward(_: None, cotangent: AnyArray) -> tuple[AnyArray]:
    t = (len(cotangent) + 1) // 2
    return (lax.map(lambda i: lax.dynamic_slice(cotangent, (i,), (t,)), jnp.arange(t)),)


antidiagonal_sums.defvjp(_antidiagonal_forward, _antidiagonal_backward)


def diagonal_sums(G: Float[AnyArray, "t t"]) -> Float[AnyArray, " 2t-1"]:
    """Return Σ_{i−j=l} G_ij for l = −(t−1) … t−1."""
    return antidiagonal_sums(jnp.asarray(G)[:, ::-1])


def _waves(angles: Float[AnyArray, "n j"]) -> tuple[AnyArray, AnyArray]:
    return jnp.cos(angles), jnp.sin(angles)
