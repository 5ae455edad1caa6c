"""Classification from random batches of rows: the paper's estimator with Pólya-Gamma's bound."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from orthogp.classification.sites import LabelledRows
from orthogp.errors import InputError
from orthogp.features import resolve_features
from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.predictive import FamilyPosterior
from orthogp.kernels import Kernel
from orthogp.learning.problem import FitSettings
from orthogp.rows import Domain
from orthogp.stochastic.bound import (
    BATCH_SIZE,
    NUM_FEATURES,
    Learned,
    StochasticFit,
    StochasticModel,
    natural_step_for,
    train_stochastic,
)
from orthogp.stochastic.training import TrainingSettings

#: Rows that hyperparameters to start from are learned from, in passes.
START_ROWS = 2000
# Of training, unless the user says otherwise.
_MOST_STEPS, _BLOCK = 5000, 40


@dataclass(frozen=True)
class BatchFit:
    """A model of two classes, trained on batches.

    Attributes
    ----------
    lower_bound : float
        The mean of the last block's estimates of the bound.
    num_passes : int
        How many times as many rows as there are went into the steps.
    """

    fit: StochasticFit
    lower_bound: float
    status: str
    num_passes: int

    @property
    def kernel(self) -> Kernel:
        """The kernel, learned."""
        return self.fit.kernel

    @property
    def features(self) -> SpectralFeatures:
        """The features, with the band learned."""
        return self.fit.features

    def posterior(self, domain: Domain, num_threads: int) -> FamilyPosterior:
        """Return the posterior of the latent function."""
        return self.fit.posterior()


def fit_batches(
    rows: LabelledRows,
    box: Domain,
    kernel: Kernel,
    *,
    offset: bool,
    settings: FitSettings,
    training: TrainingSettings | None,
) -> BatchFit:
    """Return the model that Trig features learn from random batches of rows.

    Parameters
    ----------
    box : Domain
        What the features are to cover.
    offset : bool
        Whether f has a constant that is learned.
    """
    if rows.weights is not None:
        raise InputError("Batches take no sample_weight: repeat the rows that count more often.")
    if training is None:
        batch_size = BATCH_SIZE if len(rows.X) > BATCH_SIZE else None
        training = TrainingSettings(
            batch_size=batch_size,
            natural=natural_step_for(batch_size),
            max_steps=_MOST_STEPS,
            block=_BLOCK,
        )
    if settings.deadline is not None:
        left = max(settings.deadline - time.monotonic(), 0.0)
        training = replace(training, max_seconds=left)
    num_dims = rows.X.shape[1]
    wanted = settings.num_features or min(NUM_FEATURES[num_dims], settings.max_features)
    features = resolve_features("trig", wanted, num_dims)
    assert isinstance(features, SpectralFeatures)
    learn: list[Learned] = ["kernel", "dilation"] if settings.learn else []
    if offset:
        learn.append("offset")
    share = float(np.mean(rows.labels > 0))
    model = StochasticModel(
        features.placed(kernel, box.lower, box.upper),
        kernel,
        covariance="dense",
        offset=float(np.log(share / (1 - share))) if offset else 0.0,
        likelihood="logistic",
        learn=learn,
    )
    fit = train_stochastic(rows.X, (rows.labels + 1) / 2, model, training)
    last = fit.last
    batch = len(rows.X) if training.batch_size is None else training.batch_size
    status = (
        f"Training ended after {last.step:,} steps: {fit.reason}. The bound is known to "
        f"± {last.standard_error:.2g} nats."
    )
    return BatchFit(fit, last.elbo, status, int(np.ceil(last.step * batch / len(rows.X))))
