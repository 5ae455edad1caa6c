r"""Trig features at an even grid of samples: Fourier transforms in place of sums over M.

At u_i = −1 + 2(i + U)/T the members cos πku and sin πku are entries of a discrete Fourier
transform. With weights W_i = w √S(ω_i) and d = s − 1 for a diagonal S,

    Σ_m d_m φ̂_m(x) φ̂'_m(x) = Re Σ_l h₋(l) e^{i(ω_i−ω'_j)x} + Re Σ_p h₊(p) e^{i(ω_i+ω'_j)x}

over the differences l = i − j and the sums p = i + j. Products of members depend on l and p alone,

    cos πku_i cos πku'_j = ½ [cos πk(u_i − u'_j) + cos πk(u_i + u'_j)],      sin: ½ [… − …],

so that h costs T² multiplications and a few transforms, but nothing of size M × T.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.inference.mixed_sums import mixed_sums
from orthogp.precision import AnyArray


def combine_members(
    vector: Float[AnyArray, " m"], offset: Float[AnyArray, ""], num_samples: int
) -> tuple[Float[AnyArray, " t"], Float[AnyArray, " t"]]:
    """Return the even and the odd part of Σ_m v_m basis_m(u_i), (t,) each."""
    cosines, sines = vector[1::2], vector[2::2]
    even = jnp.real(_waves(cosines, offset - num_samples / 2, num_samples))
    odd = jnp.imag(_waves(sines, offset - num_samples / 2, num_samples))
    return np.sqrt(0.5) * vector[0] + even, odd


def diagonal_series(
    d: Float[AnyArray, " m"],
    W: Float[AnyArray, " t"],
    other_W: Float[AnyArray, " t"],
    offset: Float[AnyArray, ""],
    other_offset: Float[AnyArray, ""],
) -> tuple[Float[AnyArray, " 2t-1"], Float[AnyArray, " 2t-1"]]:
    """Return h₋, for l = −(T−1) … T−1, and h₊, for p = 0 … 2T−2."""
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
    return jnp.real(_waves(coefficients, shift, size))


def _waves(coefficients: Float[AnyArray, " k"], shift: Float[AnyArray, ""], size: int) -> AnyArray:
    """Return Σ_{k≥1} c_k e^{2πik(j + shift)/size} for j = 0 … size−1, complex."""
    k = np.arange(1, len(coefficients) + 1)
    turned = coefficients * jnp.exp(2j * np.pi * k * shift / size)
    # More waves than samples alias, as they do when written out.
    padded = jnp.pad(turned, (1, -(len(turned) + 1) % size))
    return size * jnp.fft.ifft(padded.reshape(-1, size).sum(axis=0))


def _convolve(a: Float[AnyArray, " t"], b: Float[AnyArray, " t"]) -> Float[AnyArray, " 2t-1"]:
    size = 2 * len(a)
    return jnp.fft.irfft(jnp.fft.rfft(a, size) * jnp.fft.rfft(b, size), size)[:-1]
