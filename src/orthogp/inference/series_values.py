r"""Trigonometric polynomials over evenly spaced frequencies, at a batch of points.

    y_rn = Re Σ_j a_rj e^{i(start_r + j·step) x_n}

With j = J₂ j₁ + j₂ the exponentials are products of two, so that n (J₁ + J₂) of them are needed
instead of n J, and the sum over j₂ is a matrix product. Those are powers of one exponential for
each point, multiplied up. The derivatives are written out: XLA would evaluate cosines and sines
again wherever they are used, several times as long.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Complex, Float

from orthogp.precision import AnyArray


@jax.custom_vjp
def evaluate_evenly(
    coefficients: Complex[AnyArray, "r j"],
    starts: Float[AnyArray, " r"],
    step: Float[AnyArray, ""],
    x: Float[AnyArray, " n"],
) -> Float[AnyArray, "r n"]:
    """Return r such series, each with its own start, at the points x."""
    return _evaluate_forward(coefficients, starts, step, x)[0]


class _Residuals(NamedTuple):
    """What the derivatives need: waves and partial sums are (2, …, n), real and imaginary part."""

    coefficients: Complex[AnyArray, "r j"]
    starts: Float[AnyArray, " r"]
    step: Float[AnyArray, ""]
    x: Float[AnyArray, " n"]
    first: tuple[Float[AnyArray, "r n"], Float[AnyArray, "r n"]]
    inner: Float[AnyArray, "2 j2 n"]
    outer: Float[AnyArray, "2 j1 n"]
    partial: Float[AnyArray, "2 r j1 n"]
    total: Float[AnyArray, "2 r n"]


def _evaluate_forward(coefficients, starts, step, x):
    num_inner = int(np.ceil(np.sqrt(coefficients.shape[1])))
    num_outer = -(-coefficients.shape[1] // num_inner)
    inner = _powers(step * x, num_inner)
    outer = _powers(num_inner * step * x, num_outer)
    partial = _inner_sums(_blocks(coefficients, num_inner), inner)
    total = _product_sum(partial, outer)
    # One start after the other: as one product XLA would evaluate it again for all uses.
    first = lax.map(lambda start: _waves(start * x), starts)
    values = first[0] * total[0] - first[1] * total[1]
    return values, _Residuals(coefficients, starts, step, x, first, inner, outer, partial, total)


def _evaluate_backward(residuals: _Residuals, cotangent: AnyArray):
    coefficients, starts, step, x, (cos, sin), inner, outer, partial, total = residuals
    num_series, size = coefficients.shape
    (_, num_inner, n), num_outer = inner.shape, outer.shape[1]
    # By the coefficients: Σ_n g_n e^{i(start + j·step)x_n}.
    real, imag = (cotangent * cos)[:, None], (cotangent * sin)[:, None]
    turned = jnp.stack([real * outer[0] - imag * outer[1], imag * outer[0] + real * outer[1]])
    sums = turned.reshape(-1, n) @ inner.reshape(-1, n).T
    sums = sums.reshape(2, num_series, num_outer, 2, num_inner)
    by_coefficient = (sums[0, ..., 0, :] - sums[1, ..., 1, :]) + 1j * (
        sums[1, ..., 0, :] + sums[0, ..., 1, :]
    )
    by_coefficient = by_coefficient.reshape(num_series, -1)[:, :size]
    # By the phases: that by the start, and Σ_j j a_j e^{…} for the step.
    weighted = _inner_sums(_blocks(coefficients, num_inner) * np.arange(num_inner), inner)
    weighted += (num_inner * np.arange(num_outer))[:, None] * partial
    slope = _product_sum(weighted, outer)
    by_start = -cotangent * (cos * total[1] + sin * total[0])
    by_step = -cotangent * (cos * slope[1] + sin * slope[0])
    return (
        by_coefficient,
        by_start @ x,
        jnp.sum(by_step @ x),
        jnp.sum(starts[:, None] * by_start + step * by_step, axis=0),
    )


evaluate_evenly.defvjp(_evaluate_forward, _evaluate_backward)


def _powers(angle: Float[AnyArray, " n"], count: int) -> Float[AnyArray, "2 count n"]:
    """Return cos(j·angle) and sin(j·angle) for j = 0 … count−1, each from the last."""
    cos, sin = _waves(angle)

    def turn(wave, _):
        a, b = wave
        return (a * cos - b * sin, a * sin + b * cos), wave

    start = jnp.ones_like(cos), jnp.zeros_like(sin)
    return jnp.stack(lax.scan(turn, start, length=count)[1])


def _blocks(coefficients: Complex[AnyArray, "r j"], num_inner: int) -> Complex[AnyArray, "r j1 j2"]:
    """Return the coefficients with j split in two, zeros at the end."""
    missing = -coefficients.shape[1] % num_inner
    padded = jnp.pad(jnp.asarray(coefficients), ((0, 0), (0, missing)))
    return padded.reshape(len(coefficients), -1, num_inner)


def _inner_sums(
    blocks: Complex[AnyArray, "r j1 j2"], inner: Float[AnyArray, "2 j2 n"]
) -> Float[AnyArray, "2 r j1 n"]:
    """Return Σ_j₂ a e^{i j₂·step·x}: one real product, faster here than the complex one."""
    a = jnp.asarray(blocks).reshape(-1, blocks.shape[2])
    real, imag = jnp.real(a), jnp.imag(a)
    matrix = jnp.block([[real, -imag], [imag, real]])
    return (matrix @ inner.reshape(-1, inner.shape[2])).reshape(2, *blocks.shape[:2], -1)


def _product_sum(
    partial: Float[AnyArray, "2 r j1 n"], outer: Float[AnyArray, "2 j1 n"]
) -> Float[AnyArray, "2 r n"]:
    """Return Σ_j₁ of the products of partial sums and waves."""
    real = jnp.sum(partial[0] * outer[0] - partial[1] * outer[1], axis=1)
    imag = jnp.sum(partial[0] * outer[1] + partial[1] * outer[0], axis=1)
    return jnp.stack([real, imag])


def _waves(angles: AnyArray) -> tuple[AnyArray, AnyArray]:
    return jnp.cos(angles), jnp.sin(angles)


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
