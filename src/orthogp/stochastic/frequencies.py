r"""Random frequencies, and what a batch of points sees of two independent sets of them.

For ω = c·u and u = u(v), v uniform on [0, 1]^D,

    ∫ ψ(ω) g(ω) dω ≈ Σ_i w_i basis(u_i) g(c u_i),      w_i = √∏c ∏ (du/dv)_i / T

is unbiased. The samples u do not depend on the parameters, so its gradient in c is unbiased too.
"Stratified" samples of the paper's appendix are an even grid with one random offset per column,
v_i = (i + U)/T; "independent" samples are drawn one by one.

With W_i = w_i √S(ω_i), even members paired with cosines and odd ones with sines,

    φ̂_m(x) = Σ_i W_i basis_m(u_i) trig_m(ω_i·x)

Two sets of samples give φ̂ᵀm and φ̂'ᵀm for the mean m of q(u), and φ̂ᵀ(S − I)φ̂'. φ̂ itself, of
size Ñ × M, is never formed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features.bands import Trig
from orthogp.features.series import safe_sqrt
from orthogp.features.spectral import SpectralFeatures
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray
from orthogp.stochastic.even_series import (
    antidiagonal_sums,
    combine_members,
    diagonal_series,
    diagonal_sums,
    evaluate_evenly,
)
from orthogp.stochastic.variational import DiagonalNormal, Normal

Sampler = Literal["stratified", "independent"]
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)


# ---------------------------------------------------------------------- samples


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
    first, second = jax.random.split(key)
    return (
        draw_samples(features, num_samples, sampler, first),
        draw_samples(features, num_samples, sampler, second),
    )


def draw_samples(
    features: SpectralFeatures, num_samples: int, sampler: Sampler, key: jax.Array
) -> Samples:
    """Return T samples; in D columns the largest T^D that does not exceed `num_samples`."""
    counts = np.array(features.orders).max(axis=0) + 1
    num_dims = len(counts)
    if sampler == "independent":
        v = jax.random.uniform(key, (num_samples, num_dims), dtype=np.float64)
        offset = None
    else:
        each = _samples_per_column(num_samples, num_dims)
        offset = jax.random.uniform(key, (num_dims,), dtype=np.float64)
        axes = [(np.arange(each) + offset[d]) / each for d in range(num_dims)]
        v = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, num_dims)
    columns = [features.from_uniform(v[:, d], int(counts[d])) for d in range(num_dims)]
    u = jnp.stack([u for u, _ in columns], axis=1)
    slopes = jnp.stack([slope for _, slope in columns], axis=1)
    return Samples(u, jnp.prod(slopes, axis=1) / len(v), offset)


def _samples_per_column(num_samples: int, num_dims: int) -> int:
    """Return the T of each column of a stratified grid of at most `num_samples` points."""
    each = round(num_samples ** (1 / num_dims))
    return max(each - (each**num_dims > num_samples), 1)


class WeightedSamples:
    """One set of frequencies with its weights, and sums of the members there."""

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
        #: W_i = w_i √(S(ω_i) ∏c).
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

    def parts(self, vector: Float[AnyArray, " m"]) -> tuple[AnyArray, AnyArray]:
        """Return the even and the odd part of Σ_m v_m basis_m at the samples, (t,) each."""
        even, odd = ~self.odd, self.odd
        return vector[even] @ self.basis[even], vector[odd] @ self.basis[odd]


# ---------------------------------------------------------------------- pairs of sets


class PairSums(NamedTuple):
    """Sums over two sets of samples at a batch of points, (n,) each.

    Attributes
    ----------
    first, second
        φ̂ᵀm of the first set and φ̂'ᵀm of the second.
    form
        φ̂ᵀ(S − I)φ̂'.
    """

    first: AnyArray
    second: AnyArray
    form: AnyArray


class Grams(NamedTuple):
    """Σ_mm' basis_m(u_i) (S − I)_mm' basis_m'(u'_j) by parity, (t, t) each.

    Those of unlike parity are `None` where S is diagonal.
    """

    even: AnyArray
    odd: AnyArray
    even_odd: AnyArray | None = None
    odd_even: AnyArray | None = None

    @classmethod
    def of(cls, first: WeightedSamples, second: WeightedSamples, q: Normal) -> Grams:
        """Return the sums for the S of q."""
        left, right, odd = first.basis, second.basis, first.odd
        if isinstance(q, DiagonalNormal):
            d = q.variances - 1
            return cls(*((left[part] * d[part][:, None]).T @ right[part] for part in (~odd, odd)))
        t = right.shape[1]
        # Cosines belong to even members and sines to odd ones: S is applied to either apart.
        is_odd = odd[:, None]
        apart = jnp.concatenate(
            [jnp.where(is_odd, 0.0, right), jnp.where(is_odd, right, 0.0)], axis=1
        )
        pushed = q.times(apart) - apart
        upper = left[~odd].T @ pushed[~odd]
        lower = left[odd].T @ pushed[odd]
        return cls(upper[:, :t], lower[:, t:], upper[:, t:], lower[:, :t])


def pair_sums(
    sets: tuple[WeightedSamples, WeightedSamples], q: Normal, points: Float[AnyArray, "n d"]
) -> PairSums:
    """Return the sums at a batch of points, relative to the features' centre."""
    first, second = sets
    is_stratified = first.samples.offset is not None and second.samples.offset is not None
    # Only a linear map keeps the grid even, and only in one column differences make a series.
    if is_stratified and first.features.even_samples and points.shape[1] == 1:
        return _EvenPair(first, second, points[:, 0]).sums(q)
    return _sums_of_any(first, second, q, points)


def _sums_of_any(
    first: WeightedSamples, second: WeightedSamples, q: Normal, points: Float[AnyArray, "n d"]
) -> PairSums:
    """Return the sums over any frequencies, in O(ÑT²)."""
    grams = Grams.of(first, second, q)
    means, waves = [], []
    for samples in (first, second):
        phases = points @ samples.omegas.T
        cos, sin = samples.weights * jnp.cos(phases), samples.weights * jnp.sin(phases)
        even, odd = samples.parts(jnp.asarray(q.mean))
        means.append(cos @ even + sin @ odd)
        waves.append((cos, sin))
    (cos, sin), (other_cos, other_sin) = waves
    by_cos, by_sin = cos @ grams.even, sin @ grams.odd
    if grams.even_odd is not None and grams.odd_even is not None:
        by_cos += sin @ grams.odd_even
        by_sin += cos @ grams.even_odd
    form = jnp.sum(by_cos * other_cos + by_sin * other_sin, axis=1)
    return PairSums(means[0], means[1], form)


class _EvenPair:
    """Two evenly spaced grids in one column: all sums are series of evenly spaced frequencies."""

    def __init__(
        self, first: WeightedSamples, second: WeightedSamples, x: Float[AnyArray, " n"]
    ) -> None:
        self.first, self.second, self.x = first, second, x
        orders = np.ravel(np.array(first.features.orders))
        #: Whether sums over members are discrete Fourier transforms.
        self.transforms = isinstance(first.features, Trig) and np.array_equal(
            orders, np.arange(len(orders))
        )

    def sums(self, q: Normal) -> PairSums:
        """Return the sums, from those over pairs with one difference or one sum of indices."""
        if self.transforms and isinstance(q, DiagonalNormal):
            differences, totals = diagonal_series(
                q.variances - 1,
                (self.first.weights, self.second.weights),
                (_offset(self.first), _offset(self.second)),
            )
        else:
            differences, totals = self._collected(Grams.of(self.first, self.second, q))
        t = len(self.first.weights)
        step = self.first.omegas[1, 0] - self.first.omegas[0, 0]
        start, other = self.first.omegas[0, 0], self.second.omegas[0, 0]
        mean = jnp.asarray(q.mean)
        means = jnp.stack(
            [self._combination(samples, mean) for samples in (self.first, self.second)]
        )
        pairs = jnp.stack([differences, totals]).astype(means.dtype)
        series = jnp.concatenate([jnp.pad(means, ((0, 0), (0, t - 1))), pairs])
        starts = jnp.stack([start, other, start - other - (t - 1) * step, start + other])
        values = evaluate_evenly(series, starts, step, self.x)
        return PairSums(values[0], values[1], values[2] + values[3])

    def _collected(self, grams: Grams) -> tuple[AnyArray, AnyArray]:
        """Return the sums over all pairs by difference and by sum of indices, (2t − 1,) each."""
        # cos cos' = ½ [cos(ω−ω') + cos(ω+ω')], and likewise for the other products.
        outer = self.first.weights[:, None] * self.second.weights / 2
        differences = diagonal_sums(outer * (grams.even + grams.odd))
        totals = antidiagonal_sums(outer * (grams.even - grams.odd))
        if grams.even_odd is not None and grams.odd_even is not None:
            differences += 1j * diagonal_sums(outer * (grams.even_odd - grams.odd_even))
            totals += -1j * antidiagonal_sums(outer * (grams.even_odd + grams.odd_even))
        return differences, totals

    def _combination(self, samples: WeightedSamples, vector: Float[AnyArray, " m"]) -> AnyArray:
        """Return the coefficients W (even − i odd) of φ̂ᵀv, (t,)."""
        if self.transforms:
            even, odd = combine_members(vector, _offset(samples), len(samples.weights))
        else:
            even, odd = samples.parts(vector)
        return samples.weights * (even - 1j * odd)


def _offset(samples: WeightedSamples) -> Float[AnyArray, ""]:
    """Return U of a stratified grid in one column."""
    assert samples.samples.offset is not None
    return samples.samples.offset[0]
