"""From labelled rows to a fitted model of two classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orthogp.classification.fitting import LogisticFit, LogisticFitter
from orthogp.classification.layouts import LabelLayout
from orthogp.classification.sites import LabelledRows, Sites
from orthogp.features.base import prior_variance
from orthogp.inference.parameters import stretched
from orthogp.inference.threads import BlasThreads, within_precision
from orthogp.kernels import Kernel
from orthogp.kernels.convert import KernelChoice
from orthogp.learning.dense import Fitter
from orthogp.learning.problem import FitSettings, Start
from orthogp.learning.sketches import Sketch
from orthogp.learning.starts import additive_starts, starts_for_kernel, starts_for_name
from orthogp.rows import Rows

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


# An additive model has no period that shorter lengthscales would make worth its features.
_ADDITIVE_STRETCHES = (1.0, 0.5)
# Up to so many rows, equal ones are merged.
_FEW_ROWS = 2000


def learn_labels(
    sketch: Sketch,
    rows: Rows,
    choice: KernelChoice,
    sites: type[Sites],
    settings: FitSettings,
    num_threads: int,
) -> LogisticFit:
    """Return the model learned from labels ±1 in passes over the rows.

    Parameters
    ----------
    sketch : Sketch
        The sums of the rows, on the lattices that features may be chosen from.
    choice : KernelChoice
        The kernel, its columns counted among those of the rows.
    sites : type
        How labels become a regression.
    """
    labelled = LabelledRows(rows.X, rows.y[:, 0], rows.weights)
    layout = sketch.layout(settings)
    kernels = _first_kernels(sketch, choice, settings, num_threads)
    if not layout.joint and len(rows.X) <= _FEW_ROWS:
        # With more parameters than rows can determine, rounding decides where a search ends. It
        # should not depend on the order of the rows, nor on how often each is written.
        labelled = labelled.merged()
    lattices = LabelLayout(layout, sketch.statistics, sketch.mean)
    with within_precision():
        return LogisticFitter(labelled, lattices, settings, num_threads, sites).fit(kernels)


def _first_kernels(
    sketch: Sketch, choice: KernelChoice, settings: FitSettings, num_threads: int
) -> list[Kernel]:
    """Return the kernels to start from."""
    joint = sketch.layout(settings).joint
    if not settings.learn:
        return [choice.kernel]
    given = []
    if not choice.from_name:
        given = [start.kernel for start in starts_for_kernel(choice.kernel, 0.0)]
        if joint:
            return given
    labels = sketch.standardised(sketch.units(shared=False))
    begin = starts_for_name if joint else additive_starts
    starts = begin(choice.kernel, labels, sketch.width)  # type: ignore[arg-type]

    def fitter(own: FitSettings) -> Fitter:
        threads = BlasThreads(num_threads)
        return Fitter(labels, sketch.width, sketch.mean, own, threads, sketch.layout(own))

    stretches = STRETCHES if joint else _ADDITIVE_STRETCHES
    # The more parameters, the less can a user's guess alone be relied on.
    return [*given, *label_kernels(starts, fitter, settings, stretches)]
