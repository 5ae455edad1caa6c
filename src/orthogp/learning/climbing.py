"""One search of a bound, with the noise variance kept where double precision resolves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.features import MeanPrior
from orthogp.inference.threads import BlasThreads
from orthogp.learning.dense import Fitter
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.learning.optimise import TOLERANCE, Maximum, Objective, refine, search
from orthogp.learning.problem import FitSettings, Start
from orthogp.statistics import FourierStatistics

#: Features of the lattice fit that gives other models their starting values.
_START_FEATURES = 201

Limits = Callable[[float], tuple[NDArray[np.float64], NDArray[np.float64]]]


class Summit(NamedTuple):
    """Where a search ended, and between which limits."""

    maximum: Maximum
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def climb(
    objective: Objective,
    vector: NDArray[np.float64],
    limits: Limits,
    *,
    max_iterations: int,
    out_of_time: Callable[[], bool],
    curvature: NDArray[np.float64] | None = None,
    tolerance: float = TOLERANCE,
    alike: slice = slice(0),
) -> Summit:
    """Return the maximum found from a vector whose last entry is the log noise variance.

    Parameters
    ----------
    limits : callable
        Gives lower and upper limits for a floor of the noise variance.
    curvature : (p, p), optional
        That of an earlier search which ended close by: a few steps from there may then suffice.
    tolerance : float
        An iteration that gains less, in nats, is the last.
    alike : slice
        Coordinates whose curvature is measured as one number, there being very many of them.
    """
    floor = NOISE_FLOOR
    for _ in range(8):
        lower, upper = limits(floor)
        vector = np.clip(vector, lower, upper)
        try:
            if curvature is not None:
                maximum = refine(
                    objective,
                    vector,
                    lower,
                    upper,
                    curvature,
                    max_iterations=12,
                    out_of_time=out_of_time,
                    tolerance=tolerance,
                )
                if maximum.converged or out_of_time():
                    return Summit(maximum, lower, upper)
                vector = maximum.x
            maximum = search(
                objective,
                vector,
                lower,
                upper,
                max_iterations=max_iterations,
                out_of_time=out_of_time,
                tolerance=tolerance,
                alike=alike,
            )
            return Summit(maximum, lower, upper)
        except PrecisionError:
            # Rounding has reached the noise: only a larger noise variance is resolved.
            floor *= 30
            vector[-1] = max(vector[-1], np.log(10 * floor))
    raise PrecisionError(
        "No noise variance resolves these data in double precision: rescale the targets."
    )


def lattice_start(
    starts: list[Start],
    statistics: FourierStatistics,
    width: NDArray[np.float64],
    mean: MeanPrior,
    settings: FitSettings,
    threads: BlasThreads,
) -> tuple[Start, NDArray[np.float64] | None]:
    """Return the hyperparameters that a few lattice features learn, and the curvature there.

    They cost little, and the bounds of other features are not far from the lattice's.
    """
    few = replace(settings, num_features=None, max_features=_START_FEATURES)
    fitter = Fitter(statistics, width, mean, few, threads)
    fit = fitter.fit(starts)
    return Start(fit.kernel, fit.noise_variance), fitter.curvature
