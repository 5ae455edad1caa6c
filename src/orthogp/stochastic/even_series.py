r"""Sums over evenly spaced frequencies: trigonometric polynomials at a batch of points.

At an even grid of samples u_i = −1 + 2(i + U)/T all that a batch needs are series

    y_rn = Re Σ_j a_rj e^{i(start_r + j·step) x_n}

With j = J₂ j₁ + j₂ the exponentials are products of two, so that n (J₁ + J₂) of them are needed
instead of n J, and the sum over j₂ is a matrix product. They are powers of one exponential for each
point, multiplied up. For Trig features the members cos πku and sin πku at the grid are entries of a
discrete Fourier transform, which replaces sums over M. Derivatives are written out: XLA would
evaluate cosines and sines again wherever they are used, several times as long.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Complex, Float

from orthogp.precision import AnyArray

# The number of rows in a block of `mixed_sums`.
_ROWS = 16
# The fewest samples for which blocks of several rows are worth while.
_FEWEST_SAMPLES = 64


# ---------------------------------------------------------------------- series at points


@jax.custom_vjp
def evaluate_evenly(
    coefficients: Complex[AnyArray, "r j"],
    starts: Float[AnyArray, " r"],
    step: Float[AnyArray, ""],
    x: Float[AnyArray, " n"],
) -> Float[AnyArray, "r n"]:
    """Return r series, each with its start, at the points x."""
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


# ---------------------------------------------------------------------- sums over pairs


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


@jax.custom_vjp
def mixed_sums(
    W: Float[AnyArray, " t"], other_W: Float[AnyArray, " t"], H: Float[AnyArray, " t"]
) -> Float[AnyArray, " 2t-1"]:
    r"""Return sums over pairs (i, j) by difference, of terms that depend on i + j as well.

        s_l = Σ_{i−j=l} W_i W'_j H_{(i+j) mod T},      l = −(T−1) … T−1

    The sums are no convolution: all T² products are formed, in blocks of rows. Each block is a sum
    of shifted copies of the same few vectors, which stay in the cache. Nothing of size T² is kept.
    """
    # With o = l + T − 1 and H reversed: s_o = Σ_i W_i W'_{T−1−(o−i)} H_{2i−o−1 mod T}.
    return _by_shift(W, other_W[::-1], jnp.tile(H[::-1], 4), 2 * len(W))


def _mixed_forward(W, other_W, H):
    return mixed_sums(W, other_W, H), (W, other_W, H)


def _mixed_backward(residuals, cotangent):
    W, other_W, H = residuals
    t = len(W)
    backwards, periodic = cotangent[::-1], jnp.tile(H, 2)
    # By H_p: Σ_{i+j=p} W_i W'_j g_{i−j}, collected by p < 2T − 1 and wrapped.
    by_sum = _by_shift(W, other_W, jnp.pad(backwards, (t + 1, 2 * t)), 2 * t)
    return (
        _by_row(other_W, cotangent, periodic),
        _by_row(W, backwards, periodic),
        by_sum[:t] + jnp.pad(by_sum[t:], (0, 1)),
    )


mixed_sums.defvjp(_mixed_forward, _mixed_backward)


def _by_shift(
    W: Float[AnyArray, " t"],
    A: Float[AnyArray, " t"],
    C: Float[AnyArray, " c"],
    offset: int,
) -> Float[AnyArray, " 2t-1"]:
    """Return Σ_i W_i A_{o−i} C_{offset+o−2i} for o = 0 … 2T−2, A being zero outside its range."""
    t = len(W)
    rows, blocks = _in_blocks(W)
    length, margin = t + rows - 1, rows - 1
    padded = jnp.pad(A, margin)
    copies = [padded[margin - b : margin - b + length] for b in range(rows)]

    def add_block(sums, block):
        first, weights = block
        near = lax.dynamic_slice(C, (offset - first - 2 * margin,), (length + 2 * margin,))
        near_sums = lax.dynamic_slice(sums, (first,), (length,))
        for b, copy in enumerate(copies):
            skipped = 2 * (margin - b)
            near_sums += weights[b] * copy * lax.slice(near, (skipped,), (skipped + length,))
        return lax.dynamic_update_slice(sums, near_sums, (first,)), None

    start = jnp.zeros(blocks.size + t - 1)
    return lax.scan(add_block, start, (_firsts(blocks), blocks))[0][: 2 * t - 1]


def _by_row(
    W: Float[AnyArray, " t"], A: Float[AnyArray, " 2t-1"], H: Float[AnyArray, " 2t"]
) -> Float[AnyArray, " t"]:
    """Return Σ_j W_j A_{T−1+i−j} H_{i+j} for i = 0 … T−1."""
    t = len(W)
    rows, blocks = _in_blocks(W)
    margin, surplus = rows - 1, blocks.size - t
    padded_A, padded_H = jnp.pad(A, (margin + surplus, 0)), jnp.pad(H, (0, 2 * rows))

    def add_block(sums, block):
        first, weights = block
        near_A = lax.dynamic_slice(padded_A, (t - 1 - first + surplus,), (t + margin,))
        near_H = lax.dynamic_slice(padded_H, (first,), (t + margin,))
        for b in range(rows):
            A_b = lax.slice(near_A, (margin - b,), (margin - b + t,))
            sums += weights[b] * A_b * lax.slice(near_H, (b,), (b + t,))
        return sums, None

    return lax.scan(add_block, jnp.zeros(t), (_firsts(blocks), blocks))[0]


def _in_blocks(W: Float[AnyArray, " t"]) -> tuple[int, Float[AnyArray, "blocks rows"]]:
    """Return how many rows a block has, and W by blocks, zeros at the end."""
    rows = _ROWS if len(W) >= _FEWEST_SAMPLES else 1
    return rows, jnp.pad(W, (0, -len(W) % rows)).reshape(-1, rows)


def _firsts(blocks: AnyArray) -> AnyArray:
    """Return the first row of each block."""
    return blocks.shape[1] * jnp.arange(len(blocks))


# ---------------------------------------------------------------------- Trig features


def combine_members(
    vector: Float[AnyArray, " m"], offset: Float[AnyArray, ""], num_samples: int
) -> tuple[Float[AnyArray, " t"], Float[AnyArray, " t"]]:
    """Return the even and the odd part of Σ_m v_m basis_m(u_i), (t,) each."""
    cosines, sines = vector[1::2], vector[2::2]
    even = jnp.real(_harmonics(cosines, offset - num_samples / 2, num_samples))
    odd = jnp.imag(_harmonics(sines, offset - num_samples / 2, num_samples))
    return np.sqrt(0.5) * vector[0] + even, odd


def diagonal_series(
    d: Float[AnyArray, " m"],
    weights: tuple[Float[AnyArray, " t"], Float[AnyArray, " t"]],
    offsets: tuple[Float[AnyArray, ""], Float[AnyArray, ""]],
) -> tuple[Float[AnyArray, " 2t-1"], Float[AnyArray, " 2t-1"]]:
    r"""Return the coefficients of the form of Trig features with a diagonal S = I + diag(d).

    With the weights W_i and W'_j of two grids,

        Σ_m d_m φ̂_m(x) φ̂'_m(x) = Re Σ_l h₋(l) e^{i(ω_i−ω'_j)x} + Re Σ_p h₊(p) e^{i(ω_i+ω'_j)x}

    over the differences l = i − j and the sums p = i + j. Products of members depend on l and p,

        cos πku_i cos πku'_j = ½ [cos πk(u_i − u'_j) + cos πk(u_i + u'_j)],      sin: ½ [… − …],

    so that h costs T² multiplications and a few transforms, but nothing of size M × T. Returned are
    h₋, for l = −(T−1) … T−1, and h₊, for p = 0 … 2T−2.
    """
    (W, other_W), (offset, other_offset) = weights, offsets
    t = len(W)
    cosines, sines = d[1::2], jnp.zeros(len(d) // 2).at[: (len(d) - 1) // 2].set(d[2::2])
    both, contrast = cosines + sines, cosines - sines
    by_lag, by_sum = offset - other_offset, offset + other_offset
    flipped = other_W[::-1]
    lags, sums = _cosines(both, by_lag, t), _cosines(both, by_sum, t)
    differences = _convolve(W, flipped) * (d[0] + jnp.concatenate([lags[1:], lags]))
    totals = _convolve(W, other_W) * (d[0] + jnp.concatenate([sums, sums[:-1]]))
    # What depends on the sum but is collected by difference, and the other way round: reversing
    # one set turns sums into differences.
    differences += mixed_sums(W, other_W, _cosines(contrast, by_sum, t))
    by_reversed = jnp.roll(_cosines(contrast, by_lag, t), -1)
    totals += mixed_sums(W, flipped, by_reversed)
    return differences / 4, totals / 4


def _cosines(
    coefficients: Float[AnyArray, " k"], shift: Float[AnyArray, ""], size: int
) -> Float[AnyArray, " size"]:
    """Return Σ_{k≥1} c_k cos(2πk(j + shift)/size)."""
    return jnp.real(_harmonics(coefficients, shift, size))


def _harmonics(
    coefficients: Float[AnyArray, " k"], shift: Float[AnyArray, ""], size: int
) -> AnyArray:
    """Return Σ_{k≥1} c_k e^{2πik(j + shift)/size} for j = 0 … size−1, complex."""
    k = np.arange(1, len(coefficients) + 1)
    turned = coefficients * jnp.exp(2j * np.pi * k * shift / size)
    # More waves than samples alias, as they do when written out.
    padded = jnp.pad(turned, (1, -(len(turned) + 1) % size))
    return size * jnp.fft.ifft(padded.reshape(-1, size).sum(axis=0))


def _convolve(a: Float[AnyArray, " t"], b: Float[AnyArray, " t"]) -> Float[AnyArray, " 2t-1"]:
    size = 2 * len(a)
    return jnp.fft.irfft(jnp.fft.rfft(a, size) * jnp.fft.rfft(b, size), size)[:-1]
