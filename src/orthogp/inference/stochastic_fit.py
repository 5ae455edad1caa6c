"""The paper's stochastic inference from rows to a posterior."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve

from orthogp.errors import InputError
from orthogp.features import MeanPrior
from orthogp.features.base import as_rows, prior_variance
from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.definite import lower_factor
from orthogp.inference.domain import Domain
from orthogp.inference.family_posterior import FamilyPosterior
from orthogp.inference.frequency_samples import check_samples
from orthogp.inference.parameters import Slot, learned_slots, pack, unpack
from orthogp.inference.stochastic import (
    Marginals,
    draw_pair,
    estimate_marginals,
    expected_log_likelihood,
    gaussian_terms,
    logistic_terms,
)
from orthogp.inference.training import Trained, train
from orthogp.inference.training_state import Batch, Progress, Rows, TrainingSettings
from orthogp.inference.variational import Normal, prior_normal
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double

__all__ = ["StochasticFit", "TrainingSettings", "train_stochastic"]

Likelihood = Literal["gaussian", "logistic"]
Learned = Literal["kernel", "noise", "dilation", "offset"]
_LEARNED = get_args(Learned)

#: Rows of a batch, and features by number of columns, if left open.
BATCH_SIZE, NUM_FEATURES = 256, {1: 64, 2: 225, 3: 343}

# T is chosen between the number of features and so many times it.
_MOST_SAMPLES_PER_FEATURE = 32
# Estimates that are averaged in one compiled call.
_REPEATS = 100
# Variances of combinations of features that are smaller, relative to the largest, are rounding.
_LEAST = 1e-15


def natural_step_for(batch_size: int | None) -> float:
    """Return a size of natural-gradient steps: large where all rows are seen, else an average."""
    return 0.9 if batch_size is None else 0.1


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
    """A model whose bound is estimated from batches; the parts that are not learned."""

    features: SpectralFeatures
    kernel: Kernel
    slots: tuple[Slot, ...]
    likelihood: Likelihood
    learn: frozenset[str]
    sampler: Literal["stratified", "independent"]

    def estimate(
        self, parameters: Parameters, batch: Batch, key: jax.Array, num_samples: int, num_rows: int
    ) -> Float[AnyArray, ""]:
        """Return an unbiased estimate of the bound over `num_rows` rows."""
        kernel = unpack(self.kernel, self.slots, self._held(parameters.log_kernel, "kernel"))
        dilation = jnp.exp(self._held(parameters.log_dilation, "dilation"))
        offset = self._held(jnp.asarray(parameters.offset), "offset")

        def marginals(key: jax.Array) -> Marginals:
            samples = draw_pair(self.features, num_samples, self.sampler, key)
            f = estimate_marginals(
                self.features, kernel, parameters.q, batch.X, *samples, self.sampler, dilation
            )
            return f._replace(first=f.first + offset, second=f.second + offset)

        y = jnp.asarray(batch.y)
        if self.likelihood == "gaussian":
            noise_variance = jnp.exp(self._held(parameters.log_noise_variance, "noise"))
            terms = gaussian_terms(y, noise_variance)
        else:
            key, other = jax.random.split(key)
            terms = logistic_terms(y, lax.stop_gradient(marginals(other).square))
        return expected_log_likelihood(marginals(key), terms, num_rows) - parameters.q.divergence()

    def _held(self, leaf: AnyArray, name: str) -> AnyArray:
        """Return a parameter, without a gradient unless it is to be learned."""
        return leaf if name in self.learn else lax.stop_gradient(leaf)


@dataclass(frozen=True)
class StochasticFit:
    """A trained model.

    Attributes
    ----------
    features : SpectralFeatures
        With the dilation learned.
    kernel : Kernel
    noise_variance : float
    mean, covariance : (m,), (m, m)
        Of q(u).
    history : list of Progress
    reason : str
        Why training ended.
    converged : bool
    """

    features: SpectralFeatures
    kernel: Kernel
    noise_variance: float
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    history: list[Progress]
    reason: str
    converged: bool
    parameters: Parameters
    model: StochasticModel
    box: Domain

    @property
    def last(self) -> Progress:
        """Where training ended; the bound is NaN if not even the first block went well."""
        return self.history[-1] if self.history else Progress(0, 0, np.nan, np.nan, 0)

    @property
    def offset(self) -> float:
        """A constant that is part of f."""
        return float(self.parameters.offset)

    def posterior(self) -> FamilyPosterior:
        """Return q(f), its features by deterministic quadrature; variances are never negative.

        Far from the rows the features vanish and q(f) is the prior: it holds everywhere.
        """
        # With as little noise as there may be, rounding can leave S singular.
        factor = lower_factor(self.covariance, _LEAST)
        precision = cho_solve((factor, True), np.eye(len(factor)))
        chol = lower_factor(precision, _LEAST)
        middle = np.stack([self.box.lower, self.box.upper, np.mean(self.box, axis=0)])
        explained = np.sum(self.features.evaluate(self.kernel, middle) ** 2, axis=1)
        residual = float(np.mean(prior_variance(self.kernel) - explained))
        return FamilyPosterior(
            self.features,
            self.kernel,
            self.noise_variance,
            MeanPrior(),
            self.mean[:, None],
            chol,
            max(residual, 0.0),
            Domain(np.full(middle.shape[1], -np.inf), np.full(middle.shape[1], np.inf)),
            offset=self.offset,
        )

    def average_elbo(
        self, X: ArrayLike, y: ArrayLike, *, num_samples: int, repeats: int = 1000, seed: int = 0
    ) -> tuple[float, float]:
        """Return the mean of many estimates of the bound over all rows, and its standard error."""
        check_samples(num_samples, self.model.sampler)
        batch = Batch(as_rows(X), np.asarray(y, dtype=np.float64))
        estimates = _estimates(self.model, self.parameters, batch, num_samples, repeats, seed)
        return float(np.mean(estimates)), float(np.std(estimates) / np.sqrt(repeats))


@in_double
def _estimates(
    model: StochasticModel,
    parameters: Parameters,
    batch: Batch,
    num_samples: int,
    repeats: int,
    seed: int,
) -> NDArray[np.float64]:
    @jax.jit
    def some(parameters, batch, keys):
        estimate = partial(model.estimate, num_samples=num_samples, num_rows=len(batch.y))
        return lax.map(lambda key: estimate(parameters, batch, key), keys)

    keys = jax.random.split(jax.random.key(seed), -(-repeats // _REPEATS) * _REPEATS)
    parts = [
        np.asarray(some(parameters, batch, keys[i : i + _REPEATS]))
        for i in range(0, repeats, _REPEATS)
    ]
    return np.concatenate(parts)[:repeats]


def train_stochastic(
    X: ArrayLike,
    y: ArrayLike,
    *,
    features: SpectralFeatures,
    kernel: Kernel,
    noise_variance: float = 1.0,
    covariance: str | int = "diagonal",
    likelihood: Likelihood = "gaussian",
    learn: Collection[Learned] = ("kernel", "noise", "dilation"),
    settings: TrainingSettings | None = None,
    q: Normal | None = None,
    offset: float = 0.0,
) -> StochasticFit:
    """Return the model that maximises the bound, estimated from batches of rows.

    Parameters
    ----------
    X, y : (n, d), (n,)
        Arrays in memory, or mapped from files; y of mean zero, or labels 0 and 1.
    features : SpectralFeatures
        With a dilation (Trig's a) to start from, or one that is chosen for the kernel.
    kernel, noise_variance
        To start from.
    covariance : "dense", "diagonal" or int
        The form of S; a number is the rank of its part beside a diagonal one.
    likelihood : {"gaussian", "logistic"}
    learn : collection of {"kernel", "noise", "dilation", "offset"}
        What is learned beside q(u).
    settings : TrainingSettings, optional
    q : Normal, optional
        To start from, in place of the prior.
    offset : float
        A constant that is part of f, to start from.
    """
    settings = TrainingSettings() if settings is None else settings
    check_samples(2 if settings.num_samples is None else settings.num_samples, settings.sampler)
    unknown = set(learn) - set(_LEARNED)
    if unknown:
        raise InputError(
            f"learn takes {', '.join(map(repr, _LEARNED))}, got {', '.join(sorted(unknown))}."
        )
    if not isinstance(features, SpectralFeatures):
        raise InputError(
            "Stochastic inference samples a basis in frequency, which "
            f"{type(features).__name__} has not: use Trig, Hermite, Polynomial or Box."
        )
    if np.ndim(X) == 1:
        X = np.asarray(X)[:, None]
    rows = Rows(X, y, settings.batch_size)
    lower, upper = np.min(rows.X, axis=0), np.max(rows.X, axis=0)
    features.check(kernel, len(lower))
    features = features.placed(kernel, lower.astype(float), upper.astype(float))
    slots = learned_slots(kernel)
    model = StochasticModel(
        features,
        kernel,
        slots,
        likelihood,
        frozenset(learn),
        settings.sampler,  # pyright: ignore[reportArgumentType]
    )
    size = features.num_features
    dilation = np.broadcast_to(np.asarray(features.dilation, dtype=float), (len(lower),))
    parameters = Parameters(
        prior_normal(covariance, size) if q is None else q,
        pack(kernel, slots),
        np.log(np.asarray(noise_variance, dtype=float)),
        np.log(dilation),
        np.asarray(offset, dtype=float),
    )

    def objective_with(num_samples: int):
        return partial(model.estimate, num_samples=num_samples, num_rows=len(rows))

    least = 2 ** int(np.ceil(np.log2(max(size, 8))))
    trained = train(
        objective_with,
        parameters,
        rows,
        settings,
        first_samples=least,
        most_samples=_MOST_SAMPLES_PER_FEATURE * least,
    )
    return _finished(model, trained, Domain(lower, upper))


@in_double
def _finished(model: StochasticModel, trained: Trained, box: Domain) -> StochasticFit:
    parameters: Parameters = trained.parameters
    dilation = np.exp(np.asarray(parameters.log_dilation))
    return StochasticFit(
        features=model.features.dilated(dilation),
        kernel=unpack(model.kernel, model.slots, np.asarray(parameters.log_kernel)),
        noise_variance=float(np.exp(parameters.log_noise_variance)),
        mean=np.asarray(parameters.q.mean),
        covariance=np.asarray(parameters.q.covariance()),
        history=trained.history,
        reason=trained.reason,
        converged=trained.converged,
        parameters=parameters,
        model=model,
        box=box,
    )
