r"""The paper's unbiased estimate of the bound for mini-batches (section 3.3), and its maximum.

For a likelihood whose logarithm is quadratic in f, log p(y_n|f_n) = A_n + B_n f_n − ½ C_n f_n²,

    ELBO = Σ_n [A_n + B_n μ_n − ½ C_n (μ_n² + σ_n²)] − KL(q(u) || p(u))
    μ_n = φ(x_n)ᵀm,      σ_n² = k(0) + φ(x_n)ᵀ(S − I)φ(x_n)

Two independent sets of frequencies give independent unbiased estimates φ̂ and φ̂' of the features,
hence μ̂ = (φ̂ + φ̂')ᵀm/2 of the mean, φ̂ᵀm φ̂'ᵀm of its square and k(0) + φ̂ᵀ(S − I)φ̂' of the variance.
One column with stratified samples costs O(ÑT + T²) for Trig with a diagonal S and
O(ÑT + M²T + MT²) with a dense one; samples that are not evenly spaced cost O(ÑT²).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve

from orthogp.errors import InputError
from orthogp.features import MeanPrior, SpectralFeatures
from orthogp.features.base import as_rows
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.parameters import Slot, learned_slots, pack, unpack
from orthogp.inference.predictive import FamilyPosterior
from orthogp.kernels import Kernel
from orthogp.learning.problem import Fit
from orthogp.precision import AnyArray, in_double, lower_factor
from orthogp.rows import Domain
from orthogp.stochastic.frequencies import (
    Marginals,
    Sampler,
    check_samples,
    draw_pair,
    estimate_marginals,
)
from orthogp.stochastic.normals import LEAST, Covariance, Normal, prior_normal
from orthogp.stochastic.training import (
    Batch,
    BatchSource,
    Progress,
    TrainingSettings,
    TrainingState,
    compiled_estimates,
    train,
)

Likelihood = Literal["gaussian", "logistic"]
Learned = Literal["kernel", "noise", "dilation", "offset"]

#: The number of rows in a mini-batch, if left open.
BATCH_SIZE = 256
#: The number of features by number of columns, if left open.
NUM_FEATURES = {1: 64, 2: 225, 3: 343}

# The largest T to be chosen, relative to the number of features.
_MOST_SAMPLES_PER_FEATURE = 32
# The number of estimates that are averaged in one compiled call.
_REPEATS = 100


def natural_step_for(batch_size: int | None) -> float:
    """Return a size of natural-gradient steps: large where all rows are seen, else an average."""
    return 0.9 if batch_size is None else 0.1


# ---------------------------------------------------------------------- likelihoods


class QuadraticTerms(NamedTuple):
    """A_n, B_n and C_n of a quadratic log likelihood, (n,) each."""

    constant: Float[AnyArray, " n"]
    slope: Float[AnyArray, " n"]
    precision: Float[AnyArray, " n"]

    def expected(self, marginals: Marginals, num_rows: int) -> Float[AnyArray, ""]:
        """Return the estimate of Σ_n E log p(y_n|f_n) over all rows from those of a batch."""
        values = self.constant + self.slope * marginals.mean
        values -= 0.5 * self.precision * marginals.square
        return num_rows / len(values) * jnp.sum(values)


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


# ---------------------------------------------------------------------- the model


class Parameters(eqx.Module):
    """All that is learned, as any real numbers."""

    q: Normal
    log_kernel: Float[AnyArray, " p"]
    log_noise_variance: Float[AnyArray, ""]
    log_dilation: Float[AnyArray, " d"]
    #: A constant that is part of f.
    offset: Float[AnyArray, ""] | float = 0.0


@dataclass(frozen=True)
class StochasticModel:
    """A model whose bound is estimated from mini-batches, at its starting values.

    Attributes
    ----------
    features : SpectralFeatures
        With a dilation (Trig's a) to start from, or one that is chosen for the kernel.
    kernel, noise_variance, offset
        To start from; the offset is a constant that is part of f.
    covariance : {"dense", "diagonal"}
        The form of S.
    likelihood : {"gaussian", "logistic"}
    learn : collection of {"kernel", "noise", "dilation", "offset"}
        What is learned beside q(u).
    sampler : {"stratified", "independent"}
        How frequencies are drawn.
    """

    features: SpectralFeatures
    kernel: Kernel
    noise_variance: float = 1.0
    covariance: Covariance = "diagonal"
    offset: float = 0.0
    likelihood: Likelihood = "gaussian"
    learn: Collection[Learned] = ("kernel", "noise", "dilation")
    sampler: Sampler = "stratified"

    def __post_init__(self) -> None:
        known = get_args(Learned)
        unknown = set(self.learn) - set(known)
        if unknown:
            raise InputError(
                f"learn takes {', '.join(map(repr, known))}, got {', '.join(sorted(unknown))}."
            )
        if not isinstance(self.features, SpectralFeatures):
            raise InputError(
                "Stochastic inference samples a basis in frequency, which "
                f"{type(self.features).__name__} has not: use Trig, Hermite, Polynomial or Box."
            )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The learned parameters of the kernel."""
        return learned_slots(self.kernel)

    def placed(self, box: Domain) -> StochasticModel:
        """Return a copy with features placed for rows within a box."""
        self.features.check(self.kernel, len(box.lower))
        return replace(self, features=self.features.placed(self.kernel, *box))

    def start(self, q: Normal | None = None) -> Parameters:
        """Return the parameters to start from, with q(u) at the prior unless given.

        The features must be placed.
        """
        num_dims = np.array(self.features.orders).shape[1]
        dilation = np.broadcast_to(np.asarray(self.features.dilation, dtype=float), (num_dims,))
        return Parameters(
            prior_normal(self.covariance, self.features.num_features) if q is None else q,
            pack(self.kernel, self.slots),
            np.log(np.asarray(self.noise_variance, dtype=float)),
            np.log(dilation),
            np.asarray(self.offset, dtype=float),
        )

    def estimate(
        self, parameters: Parameters, batch: Batch, key: jax.Array, num_samples: int, num_rows: int
    ) -> Float[AnyArray, ""]:
        """Return an unbiased estimate of the bound over `num_rows` rows.

        To be called, jitted and differentiated, with 64-bit JAX types.
        """
        kernel = unpack(self.kernel, self.slots, self._held(parameters.log_kernel, "kernel"))
        dilation = jnp.exp(self._held(parameters.log_dilation, "dilation"))
        offset = self._held(jnp.asarray(parameters.offset), "offset")

        def marginals(key: jax.Array) -> Marginals:
            samples = draw_pair(self.features, num_samples, self.sampler, key)
            f = estimate_marginals(self.features, kernel, parameters.q, batch.X, samples, dilation)
            return f._replace(first=f.first + offset, second=f.second + offset)

        y = jnp.asarray(batch.y)
        if self.likelihood == "gaussian":
            noise_variance = jnp.exp(self._held(parameters.log_noise_variance, "noise"))
            terms = gaussian_terms(y, noise_variance)
        else:
            key, other = jax.random.split(key)
            terms = logistic_terms(y, lax.stop_gradient(marginals(other).square))
        return terms.expected(marginals(key), num_rows) - parameters.q.divergence()

    @in_double
    def estimates(
        self, parameters: Parameters, batch: Batch, keys: jax.Array, num_samples: int
    ) -> NDArray[np.float64]:
        """Return one estimate of the bound of a batch for each random key."""
        estimate = partial(self.estimate, num_samples=num_samples, num_rows=len(batch.y))
        some = compiled_estimates(estimate)
        starts = range(0, len(keys), _REPEATS)
        parts = [np.asarray(some(parameters, batch, keys[i : i + _REPEATS])) for i in starts]
        return np.concatenate(parts)

    def _held(self, leaf: AnyArray, name: Learned) -> AnyArray:
        """Return a parameter, without a gradient unless it is to be learned."""
        return leaf if name in self.learn else lax.stop_gradient(leaf)


# ---------------------------------------------------------------------- training


@dataclass(frozen=True, kw_only=True)
class StochasticFit(Fit):
    """A fit whose bound is the mean of the last block's estimates, with q(u) and its training.

    Attributes
    ----------
    mean, covariance : (m,), (m, m)
        Of q(u).
    """

    features: SpectralFeatures  # pyright: ignore[reportGeneralTypeIssues]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    history: list[Progress]
    parameters: Parameters
    model: StochasticModel

    @property
    def last(self) -> Progress:
        """Where training ended; the bound is NaN if not even the first block went well."""
        return self.history[-1] if self.history else Progress(0, 0, np.nan, np.nan, 0)

    @in_double
    def average_elbo(
        self, X: ArrayLike, y: ArrayLike, *, num_samples: int, repeats: int = 1000, seed: int = 0
    ) -> tuple[float, float]:
        """Return the mean of many estimates of the bound over all rows, and its standard error."""
        check_samples(num_samples, self.model.sampler)
        batch = Batch(as_rows(X), np.asarray(y, dtype=np.float64))
        # Full groups only: the last one would compile anew.
        keys = jax.random.split(jax.random.key(seed), -(-repeats // _REPEATS) * _REPEATS)
        estimates = self.model.estimates(self.parameters, batch, keys, num_samples)[:repeats]
        return float(np.mean(estimates)), float(np.std(estimates) / np.sqrt(repeats))


def train_stochastic(
    X: ArrayLike, y: ArrayLike, model: StochasticModel, settings: TrainingSettings | None = None
) -> StochasticFit:
    """Return the q(u) and hyperparameters that maximise the estimated bound.

    Parameters
    ----------
    X, y : (n, d), (n,)
        Arrays in memory, or mapped from files; y of mean zero, or labels 0 and 1.
    model : StochasticModel
        Where training starts; the sampler is taken from the settings.
    settings : TrainingSettings, optional
    """
    settings = TrainingSettings() if settings is None else settings
    check_samples(2 if settings.num_samples is None else settings.num_samples, settings.sampler)
    if np.ndim(X) == 1:
        X = np.asarray(X)[:, None]
    rows = BatchSource(X, y, settings.batch_size)
    model = replace(model, sampler=settings.sampler).placed(Domain.around(rows.X))

    def objective_with(num_samples: int):
        return partial(model.estimate, num_samples=num_samples, num_rows=len(rows))

    least = 2 ** int(np.ceil(np.log2(max(model.features.num_features, 8))))
    most = _MOST_SAMPLES_PER_FEATURE * least
    trained = train(objective_with, model.start(), rows, settings, (least, most))
    return _finished(model, trained, rows)


@in_double
def _finished(model: StochasticModel, trained: TrainingState, rows: BatchSource) -> StochasticFit:
    parameters: Parameters = trained.parameters
    features = model.features.dilated(np.exp(np.asarray(parameters.log_dilation)))
    kernel = unpack(model.kernel, model.slots, np.asarray(parameters.log_kernel))
    noise_variance = float(np.exp(parameters.log_noise_variance))
    mean, covariance = np.asarray(parameters.q.mean), np.asarray(parameters.q.covariance())
    elbo = trained.history[-1].elbo if trained.history else np.nan
    bound = Bound(data_fit=elbo, complexity=0.0, trace=0.0)

    def posterior(domain: Domain, num_threads: int) -> FamilyPosterior:
        """Return q(f), its features by quadrature; beyond their reach it is the prior."""
        # With very little noise, rounding can leave S singular.
        factor = lower_factor(covariance, LEAST)
        precision = cho_solve((factor, True), np.eye(len(factor)))
        box = Domain.around(rows.X)
        left_out = features.residual_variance(kernel, np.stack([*box, box.centre]))
        return FamilyPosterior(
            features,
            kernel,
            noise_variance,
            MeanPrior(),
            mean[:, None],
            lower_factor(precision, LEAST),
            float(np.mean(left_out)),
            Domain(np.full(len(box.lower), -np.inf), np.full(len(box.lower), np.inf)),
            num_threads,
            offset=float(parameters.offset),
        )

    return StochasticFit(
        kernel=kernel,
        noise_variance=noise_variance,
        elbo=bound,
        tightened=bound,
        upper=Bound(np.nan, 0.0, 0.0),
        certificate=Certificate(elbo, np.nan, kind="estimate"),
        status=trained.reason,
        converged=trained.converged,
        num_evaluations=trained.step,
        rows=len(rows),
        posterior=posterior,
        num_features=len(mean),
        features=features,
        mean=mean,
        covariance=covariance,
        history=trained.history,
        parameters=parameters,
        model=model,
    )
