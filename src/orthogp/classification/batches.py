"""Classification from random mini-batches: the paper's estimator with Pólya-Gamma's bound."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from orthogp.classification.fitting import LARGEST_EVIDENCE
from orthogp.errors import InputError
from orthogp.features import resolve_features
from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.bounds import Bound, Certificate
from orthogp.kernels import Kernel
from orthogp.learning.problem import Fit, FitSettings
from orthogp.rows import Domain, Rows
from orthogp.stochastic.bound import (
    BATCH_SIZE,
    NUM_FEATURES,
    Learned,
    StochasticModel,
    natural_step_for,
    train_stochastic,
)
from orthogp.stochastic.training import TrainingSettings

#: The number of rows from which hyperparameters to start from are learned, in passes.
START_ROWS = 2000
# The most steps of training, unless the user says otherwise.
_MOST_STEPS = 5000
# The number of steps of a block, unless the user says otherwise.
_BLOCK = 40


def fit_batches(
    rows: Rows,
    box: Domain,
    kernel: Kernel,
    *,
    offset: bool,
    settings: FitSettings,
    training: TrainingSettings | None,
) -> Fit:
    """Return the model that Trig features learn from random mini-batches of rows with labels ±1.

    Parameters
    ----------
    box : Domain
        What the features are to cover.
    offset : bool
        Whether f has a constant that is learned.
    """
    if rows.weights is not None:
        raise InputError(
            "Mini-batches take no sample_weight: repeat the rows that count more often."
        )
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
    labels = rows.y[:, 0]
    share = float(np.mean(labels > 0))
    model = StochasticModel(
        features.placed(kernel, box.lower, box.upper),
        kernel,
        covariance="dense",
        offset=float(np.log(share / (1 - share))) if offset else 0.0,
        likelihood="logistic",
        learn=learn,
    )
    fit = train_stochastic(rows.X, (labels + 1) / 2, model, training)
    last = fit.last
    batch = len(rows.X) if training.batch_size is None else training.batch_size
    status = (
        f"Training ended after {last.step:,} steps: {fit.status}. The bound is known to "
        f"± {last.standard_error:.2g} nats."
    )
    bound = Bound(last.elbo, 0.0, 0.0)
    return Fit(
        kernel=fit.kernel,
        noise_variance=1.0,
        elbo=bound,
        tightened=bound,
        upper=LARGEST_EVIDENCE,
        certificate=Certificate(bound.total, LARGEST_EVIDENCE.total, kind="estimate"),
        status=status,
        converged=fit.converged,
        # How many times all rows went into the steps.
        num_evaluations=int(np.ceil(last.step * batch / len(rows.X))),
        rows=float(len(rows.X)),
        posterior=fit.posterior,
        num_features=fit.features.num_features,
        features=fit.features,
    )
