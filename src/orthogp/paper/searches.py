"""Searches for the hyperparameters of figure 3 from several starts, and what each leads to.

A start that is good enough for one model misleads another by hundreds of nats. Two facts say
whether a search has missed the maximum: a dense S can do all that a diagonal one can, and more
features all that fewer can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from orthogp.paper.figure3_data import KERNEL, NOISE_VARIANCE
from orthogp.paper.learning import CollapsedObjective, Hyperparameters, Learned
from orthogp.paper.runs import Row, Value, number

#: What searches begin from: ones, the true values, the best of a grid for several scales, the best
#: with fewer features, and the best of the other kind of covariance.
STARTS = ("defaults", "truth", "scan", "fewer_features", "other_covariance")

# What a search begins from if nothing is known: the defaults of GPflow, in which the paper's
# experiments were written.
_DEFAULTS = (1.0, 1.0, 1.0)
# Where the first look at the bound is taken: variances, lengthscales and noise variances for each
# factor of the scale, and from how many of the factors a search begins.
_VARIANCES, _LENGTHSCALES = (0.05, 0.15, 0.5), (0.5, 0.8)
_NOISES = np.geomspace(1e-4, 0.3, 7)
_FACTORS = np.geomspace(0.4, 2.5, 9)
_NUM_SCANNED = 5
# Bounds are compared up to this many nats, the accuracy of a search.
_TOLERANCE = 1e-3


def learn_pair(
    objectives: Sequence[CollapsedObjective],
    x: NDArray[np.float64],
    fewer: Sequence[Row],
    limit: float,
) -> list[dict[str, Value]]:
    """Return the results for a dense and for a diagonal S, each also begun from the other's best.

    Parameters
    ----------
    objectives : pair of CollapsedObjective
        That of a dense S first.
    x : (n,)
    fewer : pair of Row, or empty
        The results with fewer features.
    limit : float
        The largest log marginal likelihood, which no bound may exceed.
    """
    ends = []
    for index, objective in enumerate(objectives):
        starts = _starts(objective, x)
        if fewer:
            starts["fewer_features"] = _hyperparameters(fewer[index])
        own = {name: objective.learn(start) for name, start in starts.items()}
        scanned = [objective.learn(start) for start in _scan(objective, x)]
        ends.append({**own, "scan": max(scanned, key=lambda end: end.value)})
    best = [_best(own).hyperparameters for own in ends]
    for own, objective, other in zip(ends, objectives, reversed(best), strict=True):
        own["other_covariance"] = objective.learn(other)
    floor = _best(ends[1]).value
    results = []
    for index, own in enumerate(ends):
        found = _best(own)
        least = number(fewer[index], "elbo") if fewer else -np.inf
        results.append(
            {
                "elbo": found.value,
                **{f"elbo_from_{name}": float("nan") for name in STARTS},
                **{f"elbo_from_{name}": end.value for name, end in own.items()},
                **found.hyperparameters._asdict(),
                "at_limit": found.at_limit,
                "below_exact": found.value <= limit + _TOLERANCE,
                "above_fewer_features": found.value >= least - _TOLERANCE,
                "above_diagonal": found.value >= floor - _TOLERANCE,
            }
        )
    return results


def _starts(objective: CollapsedObjective, x: NDArray[np.float64]) -> dict[str, Hyperparameters]:
    """Return where a search begins that knows of no other."""
    scale = objective.family.first_scale(x)
    truth = Hyperparameters(
        float(KERNEL.variance), float(KERNEL.lengthscale), NOISE_VARIANCE, scale
    )
    return {"defaults": Hyperparameters(*_DEFAULTS, scale), "truth": truth}


def _hyperparameters(row: Row) -> Hyperparameters:
    return Hyperparameters(*(number(row, name) for name in Hyperparameters._fields))


def _best(ends: Mapping[str, Learned]) -> Learned:
    return max(ends.values(), key=lambda end: end.value)


def _scan(objective: CollapsedObjective, x: NDArray[np.float64]) -> list[Hyperparameters]:
    """Return the best points of a grid, each of another scale.

    Few features can see all of the spectrum over part of the inputs, or the other way round: the
    scale is what maxima differ in.
    """
    first = objective.family.first_scale(x)
    best: list[tuple[float, Hyperparameters]] = []
    for factor in _FACTORS:
        candidates = [
            Hyperparameters(variance, lengthscale, float(noise), first * float(factor))
            for variance, lengthscale, noise in product(_VARIANCES, _LENGTHSCALES, _NOISES)
        ]
        values = [objective.value(candidate) for candidate in candidates]
        chosen = int(np.argmax(values))
        best.append((values[chosen], candidates[chosen]))
    best.sort(key=lambda pair: pair[0], reverse=True)
    return [candidate for _, candidate in best[:_NUM_SCANNED]]
