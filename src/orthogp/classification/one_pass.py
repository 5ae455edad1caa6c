"""Classes from sums: labels 0 and 1 under the Bernoulli likelihood, each class against all others.

One pass gives the sums of the rows and, for each class, of its labels; a model of two classes needs
those of the second only. What learns from them is `likelihoods/fitting.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.inference.separable import Binomial
from orthogp.kernels import Kernel
from orthogp.kernels.terms import KernelChoice
from orthogp.learning.problem import Fit, FitSettings
from orthogp.learning.sketches import Sketch
from orthogp.likelihoods.fitting import Data, Prior, SeparableFitter
from orthogp.precision import BlasThreads, within_precision
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics

# The largest difference of Σ w y² and Σ w y, relative to the latter: labels are 0 or 1.
_ROUNDING = 1e-6


def indicators(codes: NDArray, number: int) -> NDArray[np.float64]:
    """Return a column for each of more than two classes, one for the second of two, (n, k)."""
    numbers = np.arange(number) if number > 2 else np.array([1])
    return (codes[:, None] == numbers).astype(np.float64)


def check_indicators(sketch: Sketch) -> None:
    """Raise `InputError` unless the sums can be those of labels 0 and 1."""
    sums = sketch.plain
    totals = sums.target_totals
    if np.any(np.abs(sums.yy - totals) > _ROUNDING * (1 + np.abs(totals))):
        raise InputError(
            "Sums of labels are those of 0 and 1, in a column for each of more than two classes: "
            "encode the labels, or fit the rows."
        )


def learn_class(
    sketch: Sketch,
    number: int,
    choice: KernelChoice,
    settings: FitSettings,
    threads: BlasThreads,
    rows: Rows | None = None,
    previous: Kernel | None = None,
) -> Fit:
    """Return the model of one column of labels.

    Parameters
    ----------
    sketch : Sketch
        The sums of all columns of labels.
    rows : Rows, optional
        The rows with these labels, in case that sums do not reach far enough.
    previous : Kernel, optional
        What was learned from most of the rows.
    """
    data = Data(of_target(sketch.plain, number), np.zeros(1), rows)
    prior = Prior(sketch.mean, 0.0)
    fitter = SeparableFitter(data, Binomial(), sketch.layout(settings), prior, settings, threads)
    with within_precision():
        return fitter.fit(choice, previous)


def of_target(sums: FourierStatistics, number: int) -> FourierStatistics:
    """Return the sums of one target."""
    own = slice(number, number + 1)
    return replace(
        sums,
        target_sums=sums.target_sums[own],
        yy=sums.yy[own],
        covariate_targets=sums.covariate_targets[:, own],
    )
