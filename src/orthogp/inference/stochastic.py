r"""The paper's unbiased estimate of the bound for minibatches (section 3.3).

For a likelihood whose logarithm is quadratic in f, log p(y_n|f_n) = A_n + B_n f_n − ½ C_n f_n²,

    ELBO = Σ_n [A_n + B_n μ_n − ½ C_n (μ_n² + σ_n²)] − KL(q(u) || p(u))
    μ_n = φ(x_n)ᵀm,      σ_n² = k(0) + φ(x_n)ᵀ(S − I)φ(x_n)

Two independent sets of frequencies give independent unbiased estimates φ̂ and φ̂' of the features,
hence μ̂ = (φ̂ + φ̂')ᵀm/2 of the mean, φ̂ᵀm φ̂'ᵀm of its square and k(0) + φ̂ᵀ(S − I)φ̂' of the variance.
The sum over features comes first: ψᵀm is formed once per batch, and nothing of size Ñ × M ever is.

In one column with stratified samples mean and variance are trigonometric polynomials over evenly
spaced frequencies, in O(ÑT + T²) for Trig with a diagonal S and O(ÑT + M²T + MT²) with a dense
one; samples that are not evenly spaced cost O(ÑT²).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.frequency_samples import Sampler, Samples, draw_samples
from orthogp.inference.sample_pairs import AnyPair, EvenPair, WeightedSamples
from orthogp.inference.variational import DenseNormal, DiagonalNormal, LowRankNormal, Normal
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray


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


class QuadraticTerms(NamedTuple):
    """A_n, B_n and C_n of a quadratic log likelihood, (n,) each."""

    constant: Float[AnyArray, " n"]
    slope: Float[AnyArray, " n"]
    precision: Float[AnyArray, " n"]


def gaussian_terms(y: Float[AnyArray, " n"], noise_variance: Float[AnyArray, ""]) -> QuadraticTerms:
    """Return the terms of log N(y; f, σ²)."""
    precision = jnp.full(y.shape, 1.0) / noise_variance
    constant = -0.5 * (jnp.log(2 * np.pi * noise_variance) + y**2 * precision)
    return QuadraticTerms(constant, y * precision, precision)


def logistic_terms(y: Float[AnyArray, " n"], square: Float[AnyArray, " n"]) -> QuadraticTerms:
    """Return the terms of Pólya-Gamma's bound to −log(1 + e^{−(2y−1)f}), y being 0 or 1.

    (y − ½) f − ½ θ (f² − c²) − log(2 cosh(c/2)),   θ = tanh(c/2)/(2c): a bound for every c, best
    where c² = E f². For the estimate to stay unbiased `square`, an estimate of that, must be
    independent of those of the marginals.
    """
    c = jnp.sqrt(jnp.maximum(lax.stop_gradient(square), 1e-12))
    precision = jnp.tanh(c / 2) / (2 * c)
    constant = 0.5 * precision * c**2 - c / 2 - jnp.log1p(jnp.exp(-c))
    return QuadraticTerms(constant, y - 0.5, precision)


def expected_log_likelihood(
    marginals: Marginals, terms: QuadraticTerms, num_rows: int
) -> Float[AnyArray, ""]:
    """Return the estimate of Σ_n E log p(y_n|f_n) over all rows from those of a batch."""
    values = (
        terms.constant + terms.slope * marginals.mean - 0.5 * terms.precision * marginals.square
    )
    return num_rows / len(values) * jnp.sum(values)


def estimate_elbo(
    features: SpectralFeatures,
    kernel: Kernel,
    noise_variance: Float[AnyArray, ""],
    q: Normal,
    X: Float[AnyArray, "n d"],
    y: Float[AnyArray, " n"],
    key: jax.Array,
    *,
    num_samples: int,
    num_rows: int,
    sampler: Sampler = "stratified",
    dilation: Float[AnyArray, " d"] | None = None,
) -> Float[AnyArray, ""]:
    """Return an unbiased estimate of the ELBO of `num_rows` rows from a batch of them.

    To be called, jitted and differentiated, with 64-bit JAX types.

    Parameters
    ----------
    features : SpectralFeatures
        Placed.
    kernel, noise_variance, q
        The model and q(u).
    X, y
        The batch.
    num_samples : int
        T of either set.
    dilation : (d,), optional
        In place of the features' own (Trig's a), to be differentiated.
    """
    samples = draw_pair(features, num_samples, sampler, key)
    marginals = estimate_marginals(features, kernel, q, X, *samples, sampler, dilation)
    terms = gaussian_terms(jnp.asarray(y), noise_variance)
    return expected_log_likelihood(marginals, terms, num_rows) - q.divergence()


def draw_pair(
    features: SpectralFeatures, num_samples: int, sampler: Sampler, key: jax.Array
) -> tuple[Samples, Samples]:
    """Return two independent sets of samples."""
    first, second = jax.random.split(key)
    return (
        draw_samples(features, num_samples, sampler, first),
        draw_samples(features, num_samples, sampler, second),
    )


def estimate_marginals(
    features: SpectralFeatures,
    kernel: Kernel,
    q: Normal,
    X: Float[AnyArray, "n d"],
    first: Samples,
    second: Samples,
    sampler: Sampler,
    dilation: Float[AnyArray, " d"] | None = None,
) -> Marginals:
    """Return the estimates of mean and variance of f at the rows of X."""
    X, c = jnp.asarray(X), jnp.asarray(features.dilation if dilation is None else dilation)
    sets = (
        WeightedSamples.of(features, kernel, first, c),
        WeightedSamples.of(features, kernel, second, c),
    )
    points = X - jnp.asarray(features.centre)
    # Only a linear map keeps the grid even, and only in one column differences make a series.
    if sampler == "stratified" and features.even_samples and X.shape[1] == 1:
        pair = EvenPair(*sets, points[:, 0])
    else:
        pair = AnyPair(*sets, points)
    vectors = jnp.asarray(q.mean)[None]
    if isinstance(q, DenseNormal):
        first_mean, second_mean, form = pair.dense(vectors, q)
    else:
        assert isinstance(q, DiagonalNormal | LowRankNormal)
        if isinstance(q, LowRankNormal):
            vectors = jnp.concatenate([vectors, jnp.asarray(q.directions).T])
        first_mean, second_mean, form = pair.diagonal(vectors, q.variances - 1)
    # The directions of a low-rank S are like means whose products add to the variance.
    form = form + jnp.sum(first_mean[:, 1:] * second_mean[:, 1:], axis=1)
    return Marginals(first_mean[:, 0], second_mean[:, 0], kernel.prior_variance() + form)
