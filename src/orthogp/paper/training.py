"""Stochastic training with the paper's settings, and what its q(u) is worth in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import SpectralFeatures
from orthogp.inference.stochastic_fit import Learned, TrainingSettings, train_stochastic
from orthogp.kernels import Kernel
from orthogp.paper.closed_form import Approximation, Covariance


class Schedule(NamedTuple):
    """How a fit trains: as the paper's did, unless told otherwise.

    Attributes
    ----------
    num_samples : int
        T of either set: 2T samples for the mean and T² for the variance.
    max_steps : int
        Of Adam, each with all rows.
    learning_rate : float
    repeats : int
        How many estimates the bound is averaged over in the end.
    """

    num_samples: int = 50
    max_steps: int = 30_000
    learning_rate: float = 5e-4
    repeats: int = 5000


def train(
    X: NDArray[np.float64],
    y: NDArray[np.float64],
    features: SpectralFeatures,
    kernel: Kernel,
    noise_variance: float,
    covariance: Covariance,
    learn: Sequence[Learned],
    schedule: Schedule,
) -> tuple[Approximation, float, float]:
    """Return what Adam ends with, the average of estimates of its bound, and their standard error.

    Parameters
    ----------
    X, y
        The rows.
    features, kernel, noise_variance
        Where training begins.
    covariance : {"dense", "diagonal"}
    learn : sequence of {"kernel", "noise", "dilation"}
        What is learned besides q(u).
    schedule : Schedule
    """
    fit = train_stochastic(
        X,
        y,
        features=features,
        kernel=kernel,
        noise_variance=noise_variance,
        covariance=covariance,
        learn=tuple(learn),
        settings=TrainingSettings(
            batch_size=None,
            num_samples=schedule.num_samples,
            sampler="stratified",
            max_steps=schedule.max_steps,
            learning_rate=schedule.learning_rate,
            stop_early=False,
            seed=0,
        ),
    )
    average, error = fit.average_elbo(
        X, y, num_samples=schedule.num_samples, repeats=schedule.repeats, seed=1
    )
    q = Approximation(
        fit.features,
        fit.kernel,
        float(fit.noise_variance),
        np.asarray(fit.mean),
        np.asarray(fit.covariance),
    )
    return q, float(average), float(error)
