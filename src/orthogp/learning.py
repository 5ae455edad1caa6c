"""From the sums of the rows to a fitted model: which fitter serves which features."""

from __future__ import annotations

from typing import Literal

from orthogp.additive_sketch import AdditiveSketch
from orthogp.errors import InputError
from orthogp.features import Features
from orthogp.inference.additive_fitting import AdditiveFitter
from orthogp.inference.definite import within_precision
from orthogp.inference.family_fit import FamilyRows
from orthogp.inference.family_from_sums import SumFamilyFitter
from orthogp.inference.fit import Fit
from orthogp.inference.settings import FitSettings, Start
from orthogp.inference.threads import BlasThreads
from orthogp.lattice_learning import LatticeLearner, RowSums
from orthogp.sketch import Rows, Sketch, Units
from orthogp.statistics import AdditiveStatistics


def learn(
    sketch: Sketch,
    units: Units,
    family: Features | Literal["exact"] | None,
    settings: FitSettings,
    starts: list[Start],
    num_threads: int,
    rows: Rows | None,
) -> tuple[Fit, Sketch]:
    """Return the model learned from standardised targets, and the sums it ended with.

    Parameters
    ----------
    family : Features, "exact" or None
        `None` stands for the lattice.
    rows : Rows, optional
        For families that the sums do not suffice for.
    """
    with within_precision():
        return _learned(sketch, units, family, settings, starts, num_threads, rows)


def _learned(
    sketch: Sketch,
    units: Units,
    family: Features | Literal["exact"] | None,
    settings: FitSettings,
    starts: list[Start],
    num_threads: int,
    rows: Rows | None,
) -> tuple[Fit, Sketch]:
    statistics = sketch.standardised(units)
    threads = BlasThreads(num_threads)
    if isinstance(sketch, AdditiveSketch) and isinstance(statistics, AdditiveStatistics):
        if settings.solver == "iterative":
            raise InputError(
                "The iterative solver takes one lattice in up to three columns, not a sum of terms "
                'with lattices of their own: use solver="auto".'
            )
        own_periods = tuple(term.periods for term in sketch.terms)
        additive = AdditiveFitter(
            statistics, sketch.width, sketch.mean, settings, threads, own_periods, sketch.factors
        )
        return additive.fit(starts), sketch
    own = None
    if rows is not None:
        own = FamilyRows(rows.X, (rows.y - units.offset) / units.scale, rows.weights)
    if family is None:
        sums = RowSums(sketch, units, rows, num_threads)
        learner = LatticeLearner(sketch, statistics, own, sums, settings, num_threads)
        return learner.fit(starts), sums.sketch
    assert isinstance(family, Features)
    parts = (statistics, own, sketch.extent, sketch.mean, settings, threads)
    return SumFamilyFitter(family, *parts).fit(starts), sketch


def try_lattice(
    sketch: Sketch,
    units: Units,
    settings: FitSettings,
    starts: list[Start],
    num_threads: int,
    rows: Rows,
    learned: Start | None,
) -> tuple[Fit, Sketch] | str:
    """Return the lattice's model and its sums, or a sentence that says why it is not worth having.

    Parameters
    ----------
    learned : Start, optional
        What another engine has learned from the same rows. Without it only a dense lattice serves,
        and only if it resolves all that rows show.
    """
    own = FamilyRows(rows.X, (rows.y - units.offset) / units.scale, rows.weights)
    sums = RowSums(sketch, units, rows, num_threads)
    statistics = sketch.standardised(units)
    learner = LatticeLearner(sketch, statistics, own, sums, settings, num_threads)
    fit = learner.fit_if_resolved(starts) if learned is None else learner.fit_from(learned, starts)
    return (fit, sums.sketch) if isinstance(fit, Fit) else fit
