"""Starting values of a classifier, from a regression on its labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orthogp.features.base import prior_variance
from orthogp.inference.fitting import Fitter
from orthogp.inference.parameters import stretched
from orthogp.inference.settings import FitSettings, Start
from orthogp.kernels import Kernel

#: Lengthscales relative to those that the regression finds.
STRETCHES = (1.0, 0.5, 0.25)
# Prior variances of the latent function to begin with.
_VARIANCES = (1.0, 6.0, 36.0)
# The share of the time that the regression may take.
_SHARE = 0.25


def label_kernels(
    starts: list[Start],
    fitter: Callable[[FitSettings], Fitter],
    settings: FitSettings,
    stretches: Sequence[float] = STRETCHES,
) -> list[Kernel]:
    """Return kernels to start from, around that of a regression on the labels.

    The regression takes all features, which costs no pass: what few would learn can be far off. If
    even all are few, shorter lengthscales, whose period is shorter too, may do better.

    Parameters
    ----------
    fitter : callable
        Returns what fits the regression under given settings.
    """
    if settings.deadline is not None:
        now = time.monotonic()
        settings = replace(settings, deadline=now + _SHARE * (settings.deadline - now))
    fit = fitter(settings).fit(starts)
    unit = fit.kernel.scaled(1 / prior_variance(fit.kernel))
    return [
        stretched(unit, stretch).scaled(variance)
        for stretch in stretches
        for variance in _VARIANCES
    ]
