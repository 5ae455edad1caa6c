r"""What a batch of points sees of two independent sets of random frequencies.

With W_i = w_i √S(ω_i), even members paired with cosines and odd ones with sines,

    φ̂_m(x) = Σ_i W_i basis_m(u_i) trig_m(ω_i·x)

Returned are φ̂ᵀv and φ̂'ᵀv for some vectors v, and the form φ̂ᵀ(S − I)φ̂', never φ̂ itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features.series import safe_sqrt
from orthogp.features.spectral import SpectralFeatures
from orthogp.features.trig import Trig
from orthogp.inference.frequency_samples import Samples, basis_values
from orthogp.inference.series_values import antidiagonal_sums, diagonal_sums, evaluate_evenly
from orthogp.inference.trig_series import combine_members, diagonal_series
from orthogp.inference.variational import Normal
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray

#: φ̂ᵀv and φ̂'ᵀv, (n, r) each, and the form, (n,).
Sums = tuple[AnyArray, AnyArray, AnyArray]


class WeightedSamples:
    """One set of frequencies with its weights, and sums of the members there."""

    def __init__(
        self,
        features: SpectralFeatures,
        samples: Samples,
        omegas: Float[AnyArray, "t d"],
        weights: Float[AnyArray, " t"],
    ) -> None:
        self.features, self.samples = features, samples
        self.omegas, self.weights = omegas, weights
        self.odd: NDArray[np.bool_] = features.odd(np.array(features.orders))

    @classmethod
    def of(
        cls,
        features: SpectralFeatures,
        kernel: Kernel,
        samples: Samples,
        dilation: Float[AnyArray, " d"],
    ) -> WeightedSamples:
        """Return the samples with W_i = w_i √(S(ω_i) ∏c)."""
        dilation = jnp.broadcast_to(dilation, samples.u.shape[1:])
        omegas = dilation * samples.u
        densities = jax.vmap(kernel.spectral_density)(omegas)
        weights = samples.weights * safe_sqrt(densities * jnp.prod(dilation))
        return cls(features, samples, omegas, weights)

    @cached_property
    def basis(self) -> Float[AnyArray, "m t"]:
        """The members at the samples."""
        return basis_values(self.features, self.samples.u)

    def parts(self, vector: Float[AnyArray, " m"]) -> tuple[AnyArray, AnyArray]:
        """Return the even and the odd part of Σ_m v_m basis_m at the samples, (t,) each."""
        even, odd = ~self.odd, self.odd
        return vector[even] @ self.basis[even], vector[odd] @ self.basis[odd]


class Grams(NamedTuple):
    """Σ_mm' basis_m(u_i) (S − I)_mm' basis_m'(u'_j) by parity, (t, t) each.

    Those of unlike parity are `None` where S is diagonal.
    """

    even: AnyArray
    odd: AnyArray
    even_odd: AnyArray | None = None
    odd_even: AnyArray | None = None

    @classmethod
    def diagonal(
        cls, first: WeightedSamples, second: WeightedSamples, d: Float[AnyArray, " m"]
    ) -> Grams:
        """Return those of a diagonal S − I = diag(d)."""
        return cls(
            *(
                (first.basis[part] * d[part][:, None]).T @ second.basis[part]
                for part in (~first.odd, first.odd)
            )
        )

    @classmethod
    def dense(cls, first: WeightedSamples, second: WeightedSamples, q: Normal) -> Grams:
        """Return those of any S."""
        own, their, odd = first.basis, second.basis, first.odd[:, None]
        t = their.shape[1]
        # Cosines belong to even members and sines to odd ones: S is applied to either apart.
        apart = jnp.concatenate([jnp.where(odd, 0.0, their), jnp.where(odd, their, 0.0)], axis=1)
        pushed = q.times(apart) - apart
        upper = own[~first.odd].T @ pushed[~first.odd]
        lower = own[first.odd].T @ pushed[first.odd]
        return cls(upper[:, :t], lower[:, t:], upper[:, t:], lower[:, :t])


class AnyPair:
    """Two sets of any frequencies, in O(ÑT²)."""

    def __init__(
        self, first: WeightedSamples, second: WeightedSamples, points: Float[AnyArray, "n d"]
    ) -> None:
        self.first, self.second, self.points = first, second, points

    def diagonal(self, vectors: Float[AnyArray, "r m"], d: Float[AnyArray, " m"]) -> Sums:
        """Return the sums with S − I = diag(d)."""
        return self._sums(vectors, Grams.diagonal(self.first, self.second, d))

    def dense(self, vectors: Float[AnyArray, "r m"], q: Normal) -> Sums:
        """Return the sums with the S of q."""
        return self._sums(vectors, Grams.dense(self.first, self.second, q))

    def _sums(self, vectors: AnyArray, grams: Grams) -> Sums:
        waves = [self._waves(own) for own in (self.first, self.second)]
        combinations = []
        for own, (cos, sin) in zip((self.first, self.second), waves, strict=True):
            even, odd = jax.vmap(own.parts)(vectors)
            combinations.append(cos @ even.T + sin @ odd.T)
        (cos, sin), (their_cos, their_sin) = waves
        by_cos, by_sin = cos @ grams.even, sin @ grams.odd
        if grams.even_odd is not None and grams.odd_even is not None:
            by_cos += sin @ grams.odd_even
            by_sin += cos @ grams.even_odd
        form = jnp.sum(by_cos * their_cos + by_sin * their_sin, axis=1)
        return combinations[0], combinations[1], form

    def _waves(self, own: WeightedSamples) -> tuple[AnyArray, AnyArray]:
        phases = self.points @ own.omegas.T
        return own.weights * jnp.cos(phases), own.weights * jnp.sin(phases)


class EvenPair:
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

    def diagonal(self, vectors: Float[AnyArray, "r m"], d: Float[AnyArray, " m"]) -> Sums:
        """Return the sums with S − I = diag(d)."""
        first, second = self.first, self.second
        if not self.transforms:
            return self._from_grams(vectors, Grams.diagonal(first, second, d))
        offsets = first.samples.offset[0], second.samples.offset[0]
        series = diagonal_series(d, first.weights, second.weights, *offsets)
        return self._sums(vectors, *series)

    def dense(self, vectors: Float[AnyArray, "r m"], q: Normal) -> Sums:
        """Return the sums with the S of q."""
        return self._from_grams(vectors, Grams.dense(self.first, self.second, q))

    def _from_grams(self, vectors: AnyArray, grams: Grams) -> Sums:
        # cos cos' = ½ [cos(ω−ω') + cos(ω+ω')] and its like collect all pairs by difference and sum.
        outer = self.first.weights[:, None] * self.second.weights / 2
        differences = diagonal_sums(outer * (grams.even + grams.odd))
        totals = antidiagonal_sums(outer * (grams.even - grams.odd))
        if grams.even_odd is not None and grams.odd_even is not None:
            differences += 1j * diagonal_sums(outer * (grams.even_odd - grams.odd_even))
            totals += -1j * antidiagonal_sums(outer * (grams.even_odd + grams.odd_even))
        return self._sums(vectors, differences, totals)

    def _sums(self, vectors: AnyArray, differences: AnyArray, totals: AnyArray) -> Sums:
        """Return all sums, given those over pairs with one difference or one sum of indices."""
        t, r = len(self.first.weights), len(vectors)
        step = self.first.omegas[1, 0] - self.first.omegas[0, 0]
        own, their = self.first.omegas[0, 0], self.second.omegas[0, 0]
        combinations = [
            jax.vmap(lambda v, own=own: self._combination(own, v))(vectors)
            for own in (self.first, self.second)
        ]
        means = jnp.pad(jnp.concatenate(combinations), ((0, 0), (0, t - 1)))
        series = jnp.concatenate([means, jnp.stack([differences, totals]).astype(means.dtype)])
        starts = jnp.stack([own] * r + [their] * r + [own - their - (t - 1) * step, own + their])
        values = evaluate_evenly(series, starts, step, self.x)
        return values[:r].T, values[r : 2 * r].T, values[2 * r] + values[2 * r + 1]

    def _combination(self, own: WeightedSamples, vector: Float[AnyArray, " m"]) -> AnyArray:
        """Return the coefficients W (even − i odd) of φ̂ᵀv, (t,)."""
        if self.transforms:
            parts = combine_members(vector, own.samples.offset[0], len(own.weights))
        else:
            parts = own.parts(vector)
        return own.weights * (parts[0] - 1j * parts[1])
