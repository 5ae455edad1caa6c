"""Starting values of a classifier, from a regression on its labels."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.features.base import prior_variance
from orthogp.inference.fitting import Fitter
from orthogp.inference.parameters import stretched
from orthogp.inference.settings import FitSettings, Start
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics

# Prior variances of the latent function to begin with, and lengthscales relative to those that the
# regression finds.
_VARIANCES = (1.0, 6.0, 36.0)
_STRETCHES = (1.0, 0.5, 0.25)
# The share of the time that the regression may take.
_SHARE = 0.25


def label_kernels(
    starts: list[Start],
    statistics: FourierStatistics,
    width: NDArray[np.float64],
    mean: MeanPrior,
    settings: FitSettings,
    num_threads: int = 1,
) -> list[Kernel]:
    """Return kernels to start from, around that of a regression on the labels.

    The regression takes all features, which costs no pass: what few would learn can be far off. If
    even all are few, shorter lengthscales, whose period is shorter too, may do better.
    """
    if settings.deadline is not None:
        now = time.monotonic()
        settings = replace(settings, deadline=now + _SHARE * (settings.deadline - now))
    fit = Fitter(statistics, width, mean, settings, BlasThreads(num_threads)).fit(starts)
    unit = fit.kernel.scaled(1 / prior_variance(fit.kernel))
    return [
        stretched(unit, stretch).scaled(variance)
        for stretch in _STRETCHES
        for variance in _VARIANCES
    ]
