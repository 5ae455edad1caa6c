"""From the sums of the rows to a fitted model: which fitter serves which features."""

from __future__ import annotations

from typing import Literal

from orthogp.features import Features
from orthogp.inference.exact_fitting import ExactFitter
from orthogp.inference.family_fit import FamilyRows
from orthogp.inference.family_fitting import FamilyFitter
from orthogp.inference.fit import Fit
from orthogp.inference.fitting import Fitter
from orthogp.inference.settings import FitSettings, Start
from orthogp.inference.threads import BlasThreads
from orthogp.sketch import Rows, Sketch, Units


def learn(
    sketch: Sketch,
    units: Units,
    family: Features | Literal["exact"] | None,
    settings: FitSettings,
    starts: list[Start],
    num_threads: int,
    rows: Rows | None,
) -> Fit:
    """Return the model learned from standardised targets.

    Parameters
    ----------
    family : Features, "exact" or None
        `None` stands for the lattice.
    rows : Rows, optional
        For families that the sums do not suffice for.
    """
    statistics = sketch.standardised(units)
    threads = BlasThreads(num_threads)
    if family is None:
        fitter = Fitter(statistics, sketch.width, sketch.mean, settings, threads)
        return fitter.fit(starts)
    own = None
    if rows is not None:
        own = FamilyRows(rows.X, (rows.y - units.offset) / units.scale, rows.weights)
    parts = (statistics, own, sketch.extent, sketch.mean, settings, threads)
    if isinstance(family, Features):
        return FamilyFitter(family, *parts).fit(starts)
    return ExactFitter(*parts).fit(starts)
