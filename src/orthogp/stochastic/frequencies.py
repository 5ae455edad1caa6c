r"""Random frequencies, and what a batch of points sees of two independent sets of them.

With ω = c·u and u = u(v), v uniform on [0, 1]^D, even members paired with cosines and odd ones with
sines, T samples give an unbiased estimate of the features,

    φ̂_m(x) = Σ_i W_i basis_m(u_i) trig_m(ω_i·x),      W_i = √(S(ω_i) ∏c) ∏ (du/dv)_i / T

The samples u do not depend on the parameters, so the gradient in c is unbiased too. "Stratified"
samples of the paper's appendix are an even grid with one random offset per column, v_i = (i + U)/T;
"independent" samples are drawn one by one. Sums over members come first, and φ̂ itself, of size
Ñ × M, is never formed.

In one column all that a batch needs of stratified samples are series

    y_rn = Re Σ_j a_rj e^{i(start_r + j·step) x_n}

With j = J₂ j₁ + j₂ the exponentials are products of two, so that n (J₁ + J₂) of them are needed
instead of n J, and the sum over j₂ is a matrix product. They are powers of one exponential for each
point, multiplied up. For Trig features the members cos πku and sin πku at the grid are entries of a
discrete Fourier transform, which replaces sums over M. Derivatives are written out: XLA would
evaluate cosines and sines again wherever they are used, several times as long.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Complex, Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import SpectralFeatures, Trig
from orthogp.features.series import safe_sqrt
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray
from orthogp.stochastic.normals import DiagonalNormal, Normal

Sampler = Literal["stratified", "independent"]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)

# The number of rows in a block of `mixed_sums`.
_ROWS = 16
# The fewest samples for which blocks of several rows save time.
_FEWEST_SAMPLES = 64


# ---------------------------------------------------------------------- samples of frequencies


class Samples(NamedTuple):
    """A set of T random frequencies, dimensionless.

    Attributes
    ----------
    u : (t, d)
    weights : (t,)
        ∏ du/dv / T.
    offset : (d,) or None
        U, in [0, 1), of a stratified grid; `None` if the samples are independent.
    """

    u: Float[AnyArray, "t d"]
    weights: Float[AnyArray, " t"]
    offset: Float[AnyArray, " d"] | None


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


def draw_pair(
    features: SpectralFeatures, num_samples: int, sampler: Sampler, key: jax.Array
) -> tuple[Samples, Samples]:
    """Return two independent sets of samples."""
    first, second = (
        draw_samples(features, num_samples, sampler, part) for part in jax.random.split(key)
    )
    return first, second


def draw_samples(
    features: SpectralFeatures, num_samples: int, sampler: Sampler, key: jax.Array
) -> Samples:
    """Return T samples; stratified in D columns, the largest grid of at most `num_samples`."""
    counts = np.array(features.orders).max(axis=0) + 1
    num_dims = len(counts)
    offset = None
    if sampler == "independent":
        v = jax.random.uniform(key, (num_samples, num_dims), dtype=np.float64)
    else:
        each = round(num_samples ** (1 / num_dims))
        each = max(each - (each**num_dims > num_samples), 1)
        offset = jax.random.uniform(key, (num_dims,), dtype=np.float64)
        axes = [(np.arange(each) + offset[d]) / each for d in range(num_dims)]
        v = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, num_dims)
    columns = [features.from_uniform(v[:, d], int(counts[d])) for d in range(num_dims)]
    u = jnp.stack([u for u, _ in columns], axis=1)
    slopes = jnp.stack([slope for _, slope in columns], axis=1)
    return Samples(u, jnp.prod(slopes, axis=1) / len(v), offset)


class WeightedSamples:
    """One set of frequencies with its weights W, and sums of the members there."""

    def __init__(
        self,
        features: SpectralFeatures,
        kernel: Kernel,
        samples: Samples,
        dilation: Float[AnyArray, " d"],
    ) -> None:
        dilation = jnp.broadcast_to(dilation, samples.u.shape[1:])
        self.features, self.samples = features, samples
        self.omegas: Float[AnyArray, "t d"] = dilation * samples.u
        densities = jax.vmap(kernel.spectral_density)(self.omegas)
        self.weights: Float[AnyArray, " t"] = samples.weights * safe_sqrt(
            densities * jnp.prod(dilation)
        )
        self.odd: NDArray[np.bool_] = features.odd(np.array(features.orders))

    @cached_property
    def basis(self) -> Float[AnyArray, "m t"]:
        """The members ∏_d basis_{m_d}(u_d) at the samples."""
        orders, u = np.array(self.features.orders), self.samples.u
        values = jnp.ones((len(orders), u.shape[0]))
        for d, order in enumerate(orders.T):
            table = self.features.traced_basis(u[:, d], int(order.max()) + 1)
            in_order = np.array_equal(order, np.arange(len(order)))
            values = values * (table if in_order else table[order])
        return values

    @property
    def start(self) -> Float[AnyArray, ""]:
        """The first frequency of a grid in one column."""
        return self.omegas[0, 0]

    @property
    def offset(self) -> Float[AnyArray, ""]:
        """U of a stratified grid in one column."""
        assert self.samples.offset is not None
        return self.samples.offset[0]

    def waves(self, points: Float[AnyArray, "n d"]) -> tuple[AnyArray, AnyArray]:
        """Return W_i cos(ω_i·x) and W_i sin(ω_i·x), (n, t) each."""
        phases = points @ self.omegas.T
        return self.weights * jnp.cos(phases), self.weights * jnp.sin(phases)

    def parts(self, vector: Float[AnyArray, " m"]) -> tuple[AnyArray, AnyArray]:
        """Return the even and the odd part of Σ_m v_m basis_m at the samples, (t,) each."""
        even, odd = ~self.odd, self.odd
        return vector[even] @ self.basis[even], vector[odd] @ self.basis[odd]


# ---------------------------------------------------------------------- marginals of f


class Marginals(NamedTuple):
    """Unbiased estimates at a batch of points.

    Attributes
    ----------
    first, second : (n,)
        Independent estimates of μ_n.
    variance : (n,)
        σ_n², which may come out negative.
    """

    first: Float[AnyArray, " n"]
    second: Float[AnyArray, " n"]
    variance: Float[AnyArray, " n"]

    @property
    def mean(self) -> Float[AnyArray, " n"]:
        """μ̂."""
        return (self.first + self.second) / 2

    @property
    def square(self) -> Float[AnyArray, " n"]:
        """The estimate of E f² = μ² + σ²."""
        return self.first * self.second + self.variance


def estimate_marginals(
    features: SpectralFeatures,
    kernel: Kernel,
    q: Normal,
    X: Float[AnyArray, "n d"],
    samples: tuple[Samples, Samples],
    dilation: Float[AnyArray, " d"] | None = None,
) -> Marginals:
    """Return the estimates of mean and variance of f at the rows of X.

    Parameters
    ----------
    features : SpectralFeatures
        Placed.
    samples : pair of Samples
        Two independent sets.
    dilation : (d,), optional
        In place of the dilation of the features (Trig's a), to be differentiated.
    """
    c = jnp.asarray(features.dilation if dilation is None else dilation)
    first, second = (WeightedSamples(features, kernel, drawn, c) for drawn in samples)
    points = jnp.asarray(X) - jnp.asarray(features.centre)
    # Only a linear map keeps the grid even, and only in one column differences make a series.
    stratified = first.samples.offset is not None and second.samples.offset is not None
    even = stratified and features.even_samples and points.shape[1] == 1
    sums = _sums_of_even if even else _sums_of_any
    mean, other, form = sums(first, second, q, points)
    return Marginals(mean, other, kernel.prior_variance() + form)


def _grams(first: WeightedSamples, second: WeightedSamples, q: Normal) -> tuple[AnyArray, ...]:
    """Return Σ_mm' basis_m(u_i) (S − I)_mm' basis_m'(u'_j) by the parity of m and m', (t, t) each.

    Even and even, odd and odd; and even and odd, odd and even unless S is diagonal.
    """
    left, right, odd = first.basis, second.basis, first.odd
    if isinstance(q, DiagonalNormal):
        d = q.variances - 1
        return tuple((left[part] * d[part][:, None]).T @ right[part] for part in (~odd, odd))
    t = right.shape[1]
    # Cosines belong to even members and sines to odd ones: S is applied to either apart.
    is_odd = odd[:, None]
    apart = jnp.concatenate([jnp.where(is_odd, 0.0, right), jnp.where(is_odd, right, 0.0)], axis=1)
    pushed = q.times(apart) - apart
    upper = left[~odd].T @ pushed[~odd]
    lower = left[odd].T @ pushed[odd]
    return upper[:, :t], lower[:, t:], upper[:, t:], lower[:, :t]


def _sums_of_any(
    first: WeightedSamples, second: WeightedSamples, q: Normal, points: Float[AnyArray, "n d"]
) -> tuple[AnyArray, ...]:
    """Return φ̂ᵀm, φ̂'ᵀm and φ̂ᵀ(S − I)φ̂', (n,) each, for any frequencies, in O(ÑT²)."""
    even, odd, *mixed = _grams(first, second, q)
    means, waves = [], [samples.waves(points) for samples in (first, second)]
    for samples, (cos, sin) in zip((first, second), waves, strict=True):
        even_part, odd_part = samples.parts(jnp.asarray(q.mean))
        means.append(cos @ even_part + sin @ odd_part)
    (cos, sin), (other_cos, other_sin) = waves
    by_cos, by_sin = cos @ even, sin @ odd
    if mixed:
        even_odd, odd_even = mixed
        by_cos += sin @ odd_even
        by_sin += cos @ even_odd
    return *means, jnp.sum(by_cos * other_cos + by_sin * other_sin, axis=1)


def _sums_of_even(
    first: WeightedSamples, second: WeightedSamples, q: Normal, points: Float[AnyArray, "n 1"]
) -> tuple[AnyArray, ...]:
    """Return the same for two even grids in one column, as series of even frequencies."""
    orders = np.ravel(np.array(first.features.orders))
    # Whether sums over members are discrete Fourier transforms.
    transforms = isinstance(first.features, Trig) and np.array_equal(orders, np.arange(len(orders)))
    if transforms and isinstance(q, DiagonalNormal):
        weights, offsets = (first.weights, second.weights), (first.offset, second.offset)
        differences, totals = diagonal_series(q.variances - 1, weights, offsets)
    else:
        differences, totals = _collected(first, second, q)
    t, mean, means = len(first.weights), jnp.asarray(q.mean), []
    for samples in (first, second):
        if transforms:
            even, odd = combine_members(mean, samples.offset, t)
        else:
            even, odd = samples.parts(mean)
        means.append(samples.weights * (even - 1j * odd))
    step = first.omegas[1, 0] - first.start
    pairs = jnp.stack([differences, totals]).astype(means[0].dtype)
    series = jnp.concatenate([jnp.pad(jnp.stack(means), ((0, 0), (0, t - 1))), pairs])
    lowest = first.start - second.start - (t - 1) * step
    starts = jnp.stack([first.start, second.start, lowest, first.start + second.start])
    values = evaluate_evenly(series, starts, step, points[:, 0])
    return values[0], values[1], values[2] + values[3]


def _collected(
    first: WeightedSamples, second: WeightedSamples, q: Normal
) -> tuple[AnyArray, AnyArray]:
    """Return the sums over all pairs by difference and by sum of indices, (2t − 1,) each."""
    even, odd, *mixed = _grams(first, second, q)
    # cos cos' = ½ [cos(ω−ω') + cos(ω+ω')], and likewise for the other products.
    outer = first.weights[:, None] * second.weights / 2
    differences = diagonal_sums(outer * (even + odd))
    totals = antidiagonal_sums(outer * (even - odd))
    if mixed:
        even_odd, odd_even = mixed
        differences += 1j * diagonal_sums(outer * (even_odd - odd_even))
        totals += -1j * antidiagonal_sums(outer * (even_odd + odd_even))
    return differences, totals


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


def _evaluate_forward(coefficients, starts, step, x):
    num_inner = int(np.ceil(np.sqrt(coefficients.shape[1])))
    num_outer = -(-coefficients.shape[1] // num_inner)
    inner = _powers(step * x, num_inner)
    outer = _powers(num_inner * step * x, num_outer)
    partial = _inner_sums(_blocks(coefficients, num_inner), inner)
    total = _product_sum(partial, outer)
    # One start after the other: as one product XLA would evaluate it again for all uses.
    cos, sin = lax.map(lambda start: (jnp.cos(start * x), jnp.sin(start * x)), starts)
    residuals = coefficients, starts, step, x, cos, sin, inner, outer, partial, total
    return cos * total[0] - sin * total[1], residuals


def _evaluate_backward(residuals, cotangent):
    # Waves and partial sums are (2, …, n), real and imaginary part.
    coefficients, starts, step, x, cos, sin, inner, outer, partial, total = residuals
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
    cos, sin = jnp.cos(angle), jnp.sin(angle)

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


def _antidiagonal_backward(_: None, cotangent: AnyArray) -> tuple[AnyArray]:
    t = (len(cotangent) + 1) // 2
    return (lax.map(lambda i: lax.dynamic_slice(cotangent, (i,), (t,)), jnp.arange(t)),)


antidiagonal_sums.defvjp(lambda G: (antidiagonal_sums(G), None), _antidiagonal_backward)


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


mixed_sums.defvjp(lambda *vectors: (mixed_sums(*vectors), vectors), _mixed_backward)


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
