"""Which engine serves: those that can are tried, and held-out rows decide.

An engine is scored by the mean log predictive density, in nats per row, of held-out rows of the
training data, the same for all engines. They resemble the points that will be predicted: anywhere
in the region of the data. Where the data have gaps, whole neighbourhoods are held out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from orthogp.engines import (
    ENGINES,
    EXACT_ROWS,
    Outcome,
    Task,
    Trial,
    fit_counts,
    fit_exact,
    fit_neighbours,
    fit_points,
    fit_separable,
    fit_sums,
    try_sums,
)
from orthogp.errors import PrecisionError
from orthogp.exact.few_rows import MANY
from orthogp.features import Features
from orthogp.inference.likelihoods import resolve_likelihood
from orthogp.inference.separable import GAUSSIAN, VaryingNoise
from orthogp.kernels.terms import ADDITIVE_PREFIX, is_additive, split_terms
from orthogp.learning.problem import Start
from orthogp.likelihoods.fitting import ALLOWED_TRACE, UnresolvedError
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.validation import Model

# The number of rows that are held out one by one.
_SINGLE = 400
# The seed by which held-out rows are drawn.
_SEED = 0
# The number of neighbourhoods that are held out as a whole.
_HOLES = 24
# The largest share of the rows that all these neighbourhoods together may take.
_MOST_IN_HOLES = 0.1
# The number of rows of a neighbourhood that are scored.
_SCORED_IN_HOLE = 20
# The distance of a point from its nearest row, relative to the 99th percentile of the distances
# between neighbouring rows, above which the point lies in a gap.
_WIDE = 4
# The number of points between rows by which gaps are found.
_PROBES = 2000
# What a lattice's features may cost the bound of counts, in nats, for it to serve.
_ALLOWED_LOSS = 2 * ALLOWED_TRACE
# Scores that differ by less, in nats per row, are the same: the engine that says more about its
# error wins.
_SAME = 0.01
# The share of points in gaps above which the iterative lattice is tried beside neighbours.
_FEW_GAPS = 0.02
# The change of means by twice as many neighbours, in posterior sd, above which it is tried as well.
_MANY_MATTER = 0.2
# The relative change of sds by twice as many neighbours, above which it is tried as well.
_LOOSE = 0.05
# The relative error of sds above which a lattice gives way to an engine with the same score.
_MOST_LOOSE = 0.1


def fit_rows(task: Task) -> Outcome:
    """Return the model of all rows, by the engine that was asked for or by the best."""
    estimator = task.estimator
    features, solver = estimator.features, estimator.solver
    if estimator.likelihood != GAUSSIAN:
        return _choose_counts(task)
    if isinstance(features, Features) or features not in ("auto", "lattice"):
        if features == "exact":
            return fit_exact(task, _exact_model(task))
        model = task.model()
        return fit_points(task, model) if model.beyond_lattices else fit_sums(task, model)
    if solver == "exact":
        return fit_exact(task, _exact_model(task))
    if solver == "neighbours":
        return fit_neighbours(task, task.model(joint=True))
    if solver != "auto" or features == "lattice" or estimator.num_features != "auto":
        return fit_sums(task, task.model())
    return _choose(task)


def _choose(task: Task) -> Outcome:
    """Return the model of the engine that serves best."""
    kernel = task.estimator.kernel
    joint = task.model(joint=True)
    if not joint.choice.kernel.has_lattice:
        few = task.num_rows <= EXACT_ROWS
        return fit_exact(task, joint) if few else fit_neighbours(task, joint)
    many = len(joint.columns) > MAX_DIMS
    rival = None
    if isinstance(kernel, str) and not kernel.startswith(ADDITIVE_PREFIX):
        # Few rows are likely under any model with parameters for each column.
        rival = task.model() if many and task.num_rows >= MANY else None
    elif isinstance(kernel, str) or _adds_up(joint):
        few = task.num_rows <= EXACT_ROWS
        return fit_exact(task, task.model()) if few else fit_sums(task, task.model())
    if task.num_rows <= EXACT_ROWS:
        exact = fit_exact(task, joint)
        return exact if rival is None else _more_likely(exact, fit_sums(task, rival))
    if rival is not None:
        found = fit_neighbours(task, joint)
        if task.late:
            return found.beside(_no_time("additive"))
        return _best(task, [found, fit_sums(task, rival)])
    return fit_neighbours(task, joint) if many else _choose_joint(task, joint)


def _choose_counts(task: Task) -> Outcome:
    """Return the model under a likelihood: the lattice's if its features leave out nothing.

    The lattice learns from sums, and its bound is the same as that of the rows.
    """
    estimator, joint = task.estimator, task.model(joint=True)
    if estimator.likelihood == VaryingNoise.known_as:
        return fit_separable(task, task.model())
    plain = estimator.features in ("auto", "lattice") and estimator.num_features == "auto"
    if estimator.features == "exact" or (plain and estimator.solver == "exact"):
        return fit_counts(task, joint)
    if plain and estimator.solver == "neighbours":
        return fit_counts(task, joint, nearest=True)
    if estimator.solver != "auto" or estimator.features == "lattice" or not plain:
        return fit_separable(task, task.model())
    many, why = task.num_rows > EXACT_ROWS, _beyond_sums(task, joint)
    lattice = why or _lattice_of_counts(task)
    if isinstance(lattice, str):
        kept = fit_counts(task, joint, nearest=many)
        return kept.beside(Trial("dense", np.nan, 0.0, lattice))
    loss = -lattice.fit.elbo.trace
    if loss <= _ALLOWED_LOSS or (many and loss <= _SAME * task.num_rows):
        return lattice
    if not many:
        cost = f"its features would cost {loss:.2g} nats"
        return fit_counts(task, joint).beside(Trial("dense", np.nan, 0.0, cost))
    if task.late:
        return lattice.beside(_no_time("neighbours"))
    outcomes = [lattice, fit_counts(task, joint, nearest=True)]
    return _highest(outcomes, [_left_out_counts(task, own) for own in outcomes])


def _lattice_of_counts(task: Task) -> Outcome | str:
    """Return the lattice's model under a likelihood, or why there is none."""
    try:
        return fit_separable(task, task.model())
    except UnresolvedError:
        return "sums do not reach far enough for functions as rough"


def _left_out_counts(task: Task, outcome: Outcome) -> float:
    """Return the mean log predictive density of some rows, each without what it adds itself.

    What a row adds to the Gaussian at its inputs is its site, which is divided out.
    """
    family = outcome.fit.likelihood
    assert family is not None
    chosen = held_out_rows(task, None).rows
    rows = task.rows.part(chosen).on(outcome.model.columns)
    found = outcome.posterior.predict(np.asarray(rows.X, dtype=np.float64))
    mean, variance = found.mean[:, 0], found.variance
    offset = outcome.units.offset[0]
    summed, _ = family.summands(rows)
    assert summed.weights is not None
    local = family.local(summed.y[:, 0], summed.weights, mean + offset, variance)
    # Rows of equal inputs have one site: what is left is positive in any case.
    left = 1 / np.maximum(1 / variance + local.curvature, 1e-3 / variance)
    return family.log_predictive(rows, mean + offset - left * local.slope, left) / len(chosen)


def _beyond_sums(task: Task, joint: Model) -> str:
    """Return why sums on one lattice do not serve, nothing if they do."""
    estimator = task.estimator
    family, kernel = resolve_likelihood(estimator.likelihood), estimator.kernel
    if family is not None and not family.separates:
        return f"sums do not tell all under the {estimator.likelihood} likelihood"
    named = isinstance(kernel, str) and kernel.startswith(ADDITIVE_PREFIX)
    if named or len(joint.columns) > MAX_DIMS or _adds_up(joint):
        return f"a lattice takes one kernel on up to {MAX_DIMS} columns"
    if joint.embedding is not None:
        return "the sphere has no lattice"
    if estimator.mean == "linear" or task.rows.num_covariates:
        return "slopes are no functions on a torus"
    return ""


def _exact_model(task: Task) -> Model:
    """Return the model of all rows, whose terms are of interest by themselves if it adds up."""
    kernel, joint = task.estimator.kernel, task.model(joint=True)
    if isinstance(kernel, str):
        adds_up = kernel.lower().startswith(ADDITIVE_PREFIX)
    else:
        adds_up = joint.choice.kernel.has_lattice and _adds_up(joint)
    return task.model() if adds_up else joint


def _adds_up(model: Model) -> bool:
    """Return whether a kernel is a sum of terms that have lattices of their own."""
    kernel, size = model.inner.kernel, len(model.columns)
    few = all(len(term.columns) <= MAX_DIMS for term in split_terms(kernel, size))
    return few and is_additive(kernel, size, MAX_DIMS)


def _choose_joint(task: Task, model: Model) -> Outcome:
    """Return a model of up to three columns: the lattice's if it resolves all that rows show."""
    if not task.estimator.learn:
        lattice = fit_sums(task, model)
        if lattice.engine == "dense" and lattice.fit.certificate.holds:
            return lattice
        return _best(task, [lattice, fit_neighbours(task, model)])
    lattice = try_sums(task, model)
    if isinstance(lattice, Outcome):
        # Along a line features are cheap, and leave out little.
        if lattice.fit.certificate.holds or len(model.columns) == 1:
            return lattice
        if task.late:
            return lattice.beside(_no_time("neighbours"))
        return _best(task, [lattice, fit_neighbours(task, model)])
    found = fit_neighbours(task, model)
    if task.late:
        return found.beside(_no_time("iterative"), lattice)
    learned = Start(found.fit.kernel, found.fit.noise_variance, rows=task.num_rows)
    # Far from all rows, and where many matter a little each, the nearest are not enough.
    gaps, check = held_out_rows(task, _scaling([found])).gaps, found.fit.check
    far = gaps > _FEW_GAPS or check.mean_change > _MANY_MATTER or check.sd_change > _LOOSE
    rival = try_sums(task, model, learned, iterative=far)
    if isinstance(rival, Trial):
        return found.beside(lattice, rival)
    best = _best(task, [found, rival])
    return best if rival.engine == "dense" else best.beside(lattice)


def _no_time(engine: str) -> Trial:
    return Trial(engine, np.nan, 0.0, "the time ran out")


def _more_likely(*outcomes: Outcome) -> Outcome:
    """Return the model under which the rows are most likely."""
    scores = [outcome.fit.elbo.total / outcome.fit.rows for outcome in outcomes]
    trials = tuple(map(Outcome.scored, outcomes, scores))
    return outcomes[int(np.argmax(scores))]._replace(trials=trials)


def _best(task: Task, outcomes: list[Outcome]) -> Outcome:
    """Return the model that predicts held-out rows best."""
    held_out = held_out_rows(task, _scaling(outcomes))
    scores = []
    for outcome in outcomes:
        try:
            scores.append(score(task, outcome, held_out))
        except PrecisionError:
            scores.append(-np.inf)
    return _highest(outcomes, scores)


def _highest(outcomes: list[Outcome], scores: list[float]) -> Outcome:
    """Return the model of the highest score, and of equal ones that which tells its error."""
    trials = tuple(map(Outcome.scored, outcomes, scores))
    pairs = zip(outcomes, scores, strict=True)
    same = [outcome for outcome, value in pairs if value >= max(scores) - _SAME]
    best = min(same, key=lambda outcome: (_is_loose(outcome), ENGINES.index(outcome.engine)))
    return best._replace(trials=trials)


def _is_loose(outcome: Outcome) -> bool:
    """Return whether a lattice on all columns may have sds too far from those of the kernel."""
    return (
        outcome.engine in ("dense", "iterative") and outcome.fit.certificate.sd_error > _MOST_LOOSE
    )


class HeldOut(NamedTuple):
    """Rows that engines are scored on, by their numbers, and the weight of each in the score.

    `gaps` is the share of points between rows that are far from all rows.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    gaps: float = 0.0


class Scaling(NamedTuple):
    """The columns of X that a kernel sees, and the length along each over which f changes."""

    columns: NDArray[np.int64]
    lengths: NDArray[np.float64]


def _scaling(outcomes: list[Outcome]) -> Scaling | None:
    """Return how distances between rows are measured, if neighbours have been fitted."""
    for outcome in outcomes:
        if isinstance(outcome.posterior, NeighbourPosterior):
            return Scaling(outcome.model.columns, outcome.posterior.lengths)
    return None


def held_out_rows(task: Task, scaling: Scaling | None) -> HeldOut:
    """Return rows to be held out: single ones, and neighbourhoods as wide as the data's gaps.

    A point drawn between two rows lies at some distance from its nearest row. Around rows drawn at
    random, all others within distances drawn from the largest of these are held out.
    """
    rng = np.random.default_rng(_SEED)
    given = task.rows.weights
    there = np.arange(len(task.rows.X)) if given is None else np.flatnonzero(given > 0)
    number = min(_SINGLE, len(there) // 10)
    single = rng.choice(there, size=number, replace=False)
    if scaling is None or len(scaling.columns) > MAX_DIMS:
        return HeldOut(single, np.full(number, 1 / number))
    seen = np.asarray(task.rows.on(scaling.columns).inputs, dtype=np.float64)
    scaled = seen[there] / scaling.lengths
    tree = KDTree(scaled)
    ends = scaled[rng.integers(len(there), size=(2, _PROBES))]
    between = rng.random((_PROBES, 1))
    points = between * ends[0] + (1 - between) * ends[1]
    gaps = np.asarray(tree.query(points)[0])
    some = scaled[rng.integers(len(there), size=_PROBES)]
    usual = np.quantile(np.asarray(tree.query(some, 2)[0])[:, 1], 0.99)
    wide = gaps > _WIDE * usual
    share = float(np.mean(wide))
    if share < _FEW_GAPS:
        return HeldOut(single, np.full(number, 1 / number))
    centres = rng.choice(len(there), size=_HOLES, replace=False)
    radii = rng.choice(gaps[wide], size=_HOLES)
    most = _MOST_IN_HOLES * len(there) / _HOLES
    in_holes, inner = [], []
    for centre, radius in zip(centres, radii, strict=True):
        found = np.asarray(tree.query_ball_point(scaled[centre], radius), dtype=np.int64)
        if len(found) > most:
            found = np.asarray(tree.query(scaled[centre], int(max(most, 2)))[1]).reshape(-1)
        in_holes.append(there[found])
        inner.append(there[rng.choice(found, size=min(_SCORED_IN_HOLE, len(found)), replace=False)])
    holes = np.unique(np.concatenate(in_holes))
    judged = np.unique(np.concatenate(inner))
    single = np.setdiff1d(single, holes)
    rest = np.setdiff1d(holes, judged)
    rows = np.concatenate([single, judged, rest])
    numbers = (len(single), len(judged), len(rest))
    weights = np.repeat([(1 - share) / len(single), share / len(judged), 0.0], numbers)
    return HeldOut(rows, weights, share)


def score(task: Task, outcome: Outcome, held_out: HeldOut) -> float:
    """Return the mean log predictive density of held-out rows, the hyperparameters being known."""
    seen = task.without(held_out.rows)
    if outcome.engine == "neighbours":
        again = fit_neighbours(seen, outcome.model, known=outcome)
    else:
        again = fit_sums(seen, outcome.model, known=outcome)
    judged = held_out.weights > 0
    rows, units = task.rows.part(held_out.rows[judged]).on(outcome.model.columns), outcome.units
    prediction = again.posterior.predict(np.asarray(rows.X, dtype=np.float64))
    mean = units.offset + prediction.mean * units.scale
    noise = np.full((len(rows.X), 1), outcome.fit.noise_variance)
    if rows.weights is not None and task.estimator.weights == "precisions":
        noise /= rows.weights[:, None]
    variance = np.maximum(prediction.variance, 0.0)[:, None] + noise
    variance = variance * units.scale**2
    density = -0.5 * (np.log(2 * np.pi * variance) + (rows.y - mean) ** 2 / variance)
    return float(held_out.weights[judged] @ density.mean(axis=1))
