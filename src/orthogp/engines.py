r"""Which engine serves: those that can are tried, and held-out rows decide.

    exact        all rows, no approximation; up to some thousand rows
    dense        lattice features as many as a dense matrix holds; one pass, certificates
    iterative    lattice features by the hundred thousand
    additive     a lattice for each term of a sum over the columns
    neighbours   each row given its nearest; rough functions, many columns

An engine is scored by the mean log predictive density, in nats per row, of rows of the training
data that it does not see, the same for all. They resemble what will be asked for: points all over
the region of the data. Where that has gaps, whole neighbourhoods are hidden.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from orthogp.errors import InputError, PrecisionError
from orthogp.exact.family_from_rows import RowFamilyFitter
from orthogp.exact.fitting import ExactFitter
from orthogp.exact.merged_rows import merge_rows
from orthogp.features import Features, InducingPoints, resolve_features, takes_any_columns
from orthogp.fields.lattice_learning import LatticeLearner, RowSums
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.threads import BlasThreads, one_thread, within_precision
from orthogp.kernels.sphere import is_on_sphere
from orthogp.kernels.terms import ADDITIVE_PREFIX, is_additive, split_terms
from orthogp.learning.dense import Fitter
from orthogp.learning.families import SumFamilyFitter
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.model_choice import Model, begin_sketch, called, choose_model, starting_values
from orthogp.neighbours.fitting import NeighbourFitter
from orthogp.neighbours.near_starts import starts_near_rows
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.rows import Rows, Units
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads
from orthogp.validation import check_domain


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
    layout = sketch.layout(settings)
    if not layout.joint:
        if settings.solver == "iterative":
            raise InputError(
                "The iterative solver takes one lattice in up to three columns, not a sum of terms "
                'with lattices of their own: use solver="auto".'
            )
        additive = Fitter(statistics, sketch.width, sketch.mean, settings, threads, layout)
        return additive.fit(starts), sketch
    own = None
    if rows is not None:
        own = rows.standardised(units)
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
    own = rows.standardised(units)
    sums = RowSums(sketch, units, rows, num_threads)
    statistics = sketch.standardised(units)
    learner = LatticeLearner(sketch, statistics, own, sums, settings, num_threads)
    fit = learner.fit_if_resolved(starts) if learned is None else learner.fit_from(learned, starts)
    return (fit, sums.sketch) if isinstance(fit, Fit) else fit


#: Up to so many rows the exact process is taken without trying others: a second or less.
EXACT_ROWS = 2500
# Rows hidden one by one, and as whole neighbourhoods around so many centres.
_HIDDEN, _HOLES = 400, 24
# The largest share of the rows that all holes together may take.
_MOST_IN_HOLES = 0.1
# Scores this close, in nats per row, are the same: the engine that says more about its error wins.
_SAME = 0.01
# The share of gaps, and the change of means, in posterior sd, by twice as many neighbours, above
# which the iterative lattice is tried beside neighbours.
_FEW_GAPS, _MANY_MATTER = 0.02, 0.2
# The order of preference among equal scores.
_PREFERENCE = ("exact", "dense", "additive", "neighbours", "iterative")
#: What engines are called; "features" stands for any family but the lattice.
ENGINES = (*_PREFERENCE, "features")


class Trial(NamedTuple):
    """An engine that was tried.

    Attributes
    ----------
    engine : str
    score : float
        The mean log predictive density of the hidden rows, in nats per row; NaN if not scored.
    seconds : float
        What it took.
    remark : str
        Why it was not scored, or what else is to be known.
    """

    engine: str
    score: float
    seconds: float
    remark: str = ""


class Outcome(NamedTuple):
    """A fitted model, and what it was fitted with."""

    fit: Fit
    posterior: PredictivePosterior
    sketch: Sketch
    units: Units
    model: Model
    engine: str
    trials: tuple[Trial, ...] = ()


class Task(NamedTuple):
    """What is to be fitted: an estimator's settings, rows, and a deadline."""

    estimator: Any
    rows: Rows
    began: float

    @property
    def num_rows(self) -> int:
        """The number of rows of positive weight."""
        return len(self.rows.used)

    @property
    def threads(self) -> int:
        """The threads that may be used."""
        return available_threads(self.estimator.n_jobs)

    @property
    def late(self) -> bool:
        """Whether the user's seconds are up."""
        most = self.estimator.max_seconds
        return most is not None and time.monotonic() - self.began > most

    def without(self, hidden: NDArray[np.int64]) -> Task:
        """Return the task with some of the rows left out."""
        seen = np.ones(len(self.rows.X), dtype=bool)
        seen[hidden] = False
        return self._replace(rows=self.rows.part(seen))


# ---------------------------------------------------------------------- choosing


def fit_rows(task: Task) -> Outcome:
    """Return the model of all rows, by the engine that was asked for or by the best."""
    estimator = task.estimator
    features, solver = estimator.features, estimator.solver
    if isinstance(features, Features) or features not in ("auto", "lattice"):
        if features == "exact":
            return fit_exact(task, _model(task, joint=True))
        model = _model(task)
        return fit_points(task, model) if _needs_rows(model) else fit_sums(task, model)
    if solver == "exact":
        return fit_exact(task, _model(task, joint=True))
    if solver == "neighbours":
        return fit_neighbours(task, _model(task, joint=True))
    if solver != "auto" or features == "lattice" or estimator.num_features != "auto":
        return fit_sums(task, _model(task))
    return _choose(task)


def _choose(task: Task) -> Outcome:
    """Return the model of the engine that serves best."""
    kernel = task.estimator.kernel
    joint = _model(task, joint=True)
    if joint.embedding is not None:
        few = task.num_rows <= EXACT_ROWS
        return fit_exact(task, joint) if few else fit_neighbours(task, joint)
    many = len(joint.columns) > MAX_DIMS
    rival = None
    if isinstance(kernel, str) and not kernel.startswith(ADDITIVE_PREFIX):
        rival = _model(task) if many else None
    elif isinstance(kernel, str) or _adds_up(joint):
        return fit_sums(task, _model(task))
    if task.num_rows <= EXACT_ROWS:
        exact = fit_exact(task, joint)
        return exact if rival is None else _more_likely(exact, fit_sums(task, rival))
    if rival is not None:
        found = fit_neighbours(task, joint)
        if task.late:
            return _alone(found, "additive")
        return _best(task, [found, fit_sums(task, rival)])
    return fit_neighbours(task, joint) if many else _choose_joint(task, joint)


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
        # Along a line features are cheap, and what they leave out is little.
        if lattice.fit.certificate.holds or len(model.columns) == 1:
            return lattice
        if task.late:
            return _alone(lattice, "neighbours")
        return _best(task, [lattice, fit_neighbours(task, model)])
    found = fit_neighbours(task, model)
    if task.late:
        found = _alone(found, "iterative")
        return found._replace(trials=(*found.trials, lattice))
    learned = Start(found.fit.kernel, found.fit.noise_variance, rows=task.num_rows)
    # Far from all rows, and where many say a little each, the nearest are not enough.
    gaps = hidden_rows(task, _lengths([found])).gaps
    far = gaps > _FEW_GAPS or found.fit.check.mean_change > _MANY_MATTER
    rival = try_sums(task, model, learned, iterative=far)
    if isinstance(rival, Trial):
        return found._replace(trials=(_trial(found), lattice, rival))
    best = _best(task, [found, rival])
    return best if rival.engine == "dense" else best._replace(trials=(*best.trials, lattice))


def _alone(outcome: Outcome, other: str) -> Outcome:
    """Return a model that there was no time to compare with that of another engine."""
    untried = Trial(other, np.nan, 0.0, "the time ran out")
    return outcome._replace(trials=(_trial(outcome), untried))


def _more_likely(*outcomes: Outcome) -> Outcome:
    """Return the model under which the rows are most likely."""
    trials = tuple(_trial(own, own.fit.elbo.total / own.fit.rows) for own in outcomes)
    best = max(outcomes, key=lambda own: own.fit.elbo.total / own.fit.rows)
    return best._replace(trials=trials)


def _best(task: Task, outcomes: list[Outcome]) -> Outcome:
    """Return the model that predicts hidden rows best."""
    hidden = hidden_rows(task, _lengths(outcomes))
    scores = {}
    for own in outcomes:
        try:
            scores[own.engine] = score(task, own, hidden)
        except PrecisionError:
            scores[own.engine] = -np.inf
    trials = tuple(_trial(own, scores[own.engine]) for own in outcomes)
    top = max(scores.values())
    same = [own for own in outcomes if scores[own.engine] >= top - _SAME]
    best = min(same, key=lambda own: _PREFERENCE.index(own.engine))
    return best._replace(trials=trials)


def _trial(outcome: Outcome, value: float = np.nan) -> Trial:
    return Trial(outcome.engine, value, outcome.trials[0].seconds if outcome.trials else 0.0)


# ---------------------------------------------------------------------- hidden rows


class Hidden(NamedTuple):
    """Rows that engines are scored on, by their numbers, and what each of them counts.

    `gaps` is the share of points between rows that are far from all rows.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    gaps: float = 0.0


def _lengths(outcomes: list[Outcome]) -> NDArray[np.float64] | None:
    """Return the lengths along the columns of X over which neighbours' functions change, if known.

    Columns that the kernel does not see do not count.
    """
    for own in outcomes:
        if isinstance(own.posterior, NeighbourPosterior):
            return own.posterior.lengths
    return None


def hidden_rows(task: Task, lengths: NDArray[np.float64] | None, seed: int = 0) -> Hidden:
    """Return rows to be hidden: single ones, and neighbourhoods as wide as the data's gaps.

    A point anywhere between two rows lies at some distance from the nearest of all. Around rows
    drawn at random, all others within such a distance are hidden.
    """
    rng = np.random.default_rng(seed)
    weights = task.rows.weights
    there = np.arange(len(task.rows.X)) if weights is None else np.flatnonzero(weights > 0)
    number = min(_HIDDEN, len(there) // 10)
    single = rng.choice(there, size=number, replace=False)
    X = np.asarray(task.rows.X, dtype=np.float64)
    if lengths is None or len(lengths) != X.shape[1] or X.shape[1] > MAX_DIMS:
        return Hidden(single, np.full(number, 1 / number))
    scaled = X[there] / lengths
    tree = KDTree(scaled)
    ends = scaled[rng.integers(len(there), size=(2, 2000))]
    between = rng.random((2000, 1))
    points = between * ends[0] + (1 - between) * ends[1]
    gaps = np.asarray(tree.query(points)[0])
    usual = np.quantile(
        np.asarray(tree.query(scaled[rng.integers(len(there), size=2000)], 2)[0])[:, 1], 0.99
    )
    wide = gaps > 4 * usual
    share = float(np.mean(wide))
    if share < _FEW_GAPS:
        return Hidden(single, np.full(number, 1 / number))
    centres = rng.choice(len(there), size=_HOLES, replace=False)
    radii = rng.choice(gaps[wide], size=_HOLES)
    most = _MOST_IN_HOLES * len(there) / _HOLES
    in_holes, inner = [], []
    for centre, radius in zip(centres, radii, strict=True):
        found = np.asarray(tree.query_ball_point(scaled[centre], radius), dtype=np.int64)
        if len(found) > most:
            found = np.asarray(tree.query(scaled[centre], int(max(most, 2)))[1]).reshape(-1)
        in_holes.append(there[found])
        inner.append(there[rng.choice(found, size=min(20, len(found)), replace=False)])
    holes = np.unique(np.concatenate(in_holes))
    judged = np.unique(np.concatenate(inner))
    single = np.setdiff1d(single, holes)
    rest = np.setdiff1d(holes, judged)
    rows = np.concatenate([single, judged, rest])
    counts = np.concatenate(
        [
            np.full(len(single), (1 - share) / len(single)),
            np.full(len(judged), share / len(judged)),
            np.zeros(len(rest)),
        ]
    )
    return Hidden(rows, counts, share)


def score(task: Task, outcome: Outcome, hidden: Hidden) -> float:
    """Return the mean log predictive density of hidden rows, the hyperparameters being known."""
    seen = task.without(hidden.rows)
    if outcome.engine == "neighbours":
        again = fit_neighbours(seen, outcome.model, known=outcome)
    else:
        again = fit_sums(seen, outcome.model, known=outcome)
    judged = hidden.weights > 0
    X = np.asarray(task.rows.X, dtype=np.float64)[hidden.rows[judged]][:, outcome.model.columns]
    y = np.asarray(task.rows.y, dtype=np.float64)[hidden.rows[judged]]
    units = outcome.units
    prediction = again.posterior.predict(X)
    mean = units.offset + prediction.mean * units.scale
    variance = np.maximum(prediction.variance, 0.0)[:, None] + outcome.fit.noise_variance
    variance = variance * units.scale**2
    density = -0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)
    return float(hidden.weights[judged] @ density.mean(axis=1))


# ---------------------------------------------------------------------- the engines


def fit_exact(
    task: Task, model: Model, previous: Start | None = None, kept: KeptRows | None = None
) -> Outcome:
    """Return the exact model."""
    began = time.monotonic()
    kept = _keep(task, model) if kept is None else kept
    units = kept.units(shared=not model.inner.from_name)
    rows = kept.standardised_rows(units)
    settings = _settings(task, units, model)
    fitter = ExactFitter(rows, kept.extent, kept.mean, settings, BlasThreads(task.threads))
    # Repeated rows and weights start a search from the same place.
    different = Rows(*merge_rows(kept.X, kept.y, kept.weights, repeats=settings.repeats)[:3])
    starts = starting_values(task.estimator, kept, units, model.inner, previous, different)
    return _outcome(fitter.fit(starts), kept, units, model, "exact", began, task)


def fit_neighbours(
    task: Task,
    model: Model,
    previous: Start | None = None,
    kept: KeptRows | None = None,
    known: Outcome | None = None,
) -> Outcome:
    """Return the model of nearest-neighbour conditionals.

    Parameters
    ----------
    known : Outcome, optional
        A model of more rows, whose hyperparameters and number of neighbours are taken.
    """
    began = time.monotonic()
    estimator = task.estimator
    if kept is None:
        kept = _keep(task, model, linear=len(model.columns) > MAX_DIMS)
    units = kept.units(shared=not model.inner.from_name) if known is None else known.units
    own = kept.standardised_rows(units)
    settings = _settings(task, units, model)
    merged = merge_rows(own.X, own.y, own.weights, repeats=settings.repeats)
    seed = 0 if estimator.random_state is None else int(estimator.random_state)
    if known is not None:
        settings = replace(settings, learn=False)
    fitter = NeighbourFitter(merged, kept.mean, settings, task.threads, seed)
    if known is not None:
        assert isinstance(known.posterior, NeighbourPosterior)
        start = Start(known.fit.kernel, known.fit.noise_variance)
        posterior = fitter.posterior(start).with_neighbours(known.posterior.num_neighbours)
        return known._replace(posterior=posterior)
    starts = _neighbour_starts(estimator, model, units, merged.X, previous)
    return _outcome(fitter.fit(starts), kept, units, model, "neighbours", began, task)


def _neighbour_starts(
    estimator: Any, model: Model, units: Units, X: NDArray[np.float64], previous: Start | None
) -> list[Start]:
    choice = model.inner
    unit = float(units.scale[0] ** 2)
    noise = choice.noise_variance if estimator.noise_variance is None else estimator.noise_variance
    if choice.from_name:
        starts = starts_near_rows(choice.kernel, X)
    else:
        from orthogp.learning.starts import starts_for_kernel

        kernel = choice.kernel.scaled(1 / unit)
        if not estimator.learn:
            return [Start(kernel, 1e-2 if noise is None else noise / unit)]
        starts = starts_for_kernel(kernel, None if noise is None else noise / unit)
        if is_on_sphere(kernel):
            # Of kilometres the user may have given no guess.
            starts += starts_near_rows(kernel, X)
    if noise is not None:
        starts = [replace(start, noise_variance=noise / unit) for start in starts]
    if previous is not None and estimator.learn:
        ratio = float(estimator.target_scale_[0] ** 2) / unit
        scaled = previous.kernel.scaled(ratio)
        starts = [Start(scaled, previous.noise_variance * ratio), *starts]
    return starts


def fit_points(
    task: Task, model: Model, previous: Start | None = None, kept: KeptRows | None = None
) -> Outcome:
    """Return the model of point features on more columns than a lattice has."""
    began = time.monotonic()
    estimator = task.estimator
    kept = _keep(task, model, linear=True) if kept is None else kept
    units = kept.units(shared=not model.inner.from_name)
    settings = _settings(task, units, model)
    different = Rows(*merge_rows(kept.X, kept.y, kept.weights, repeats=settings.repeats)[:3])
    family = resolve_features(estimator.features, estimator.num_features, len(model.columns))
    assert isinstance(family, Features)
    if estimator.features == "inducing-points" and estimator.num_features == "auto":
        # The rows have as many different places for points, and no more.
        family = InducingPoints(min(family.num_features, len(different.X)))
    rows, threads = kept.standardised_rows(units), BlasThreads(task.threads)
    fitter = RowFamilyFitter(family, rows, kept.extent, kept.mean, settings, threads)
    starts = starting_values(estimator, kept, units, model.inner, previous, different)
    with within_precision():
        fit = fitter.fit(starts)
    return _outcome(fit, kept, units, model, "features", began, task)


def fit_sums(task: Task, model: Model, known: Outcome | None = None) -> Outcome:
    """Return the model of lattice features, or of another family, learned from sums of the rows.

    Parameters
    ----------
    known : Outcome, optional
        A model of more rows, whose hyperparameters are taken.
    """
    began = time.monotonic()
    estimator = task.estimator
    sketch = begin_sketch(estimator, task.rows, model)
    units = sketch.units(shared=not model.inner.from_name) if known is None else known.units
    settings = _settings(task, units, model)
    if known is None:
        starts = starting_values(estimator, sketch, units, model.inner, None)
    else:
        solver = "auto" if known.engine == "additive" else known.engine
        settings = replace(settings, learn=False, solver=solver)
        starts = [Start(known.fit.kernel, known.fit.noise_variance)]
    family = resolve_features(estimator.features, estimator.num_features, len(model.columns))
    rows = task.rows.on(model.columns)
    fit, sketch = learn(sketch, units, family, settings, starts, task.threads, rows)
    engine = _lattice_engine(model, sketch) if family is None else "features"
    return _outcome(fit, sketch, units, model, engine, began, task)


def try_sums(
    task: Task, model: Model, learned: Start | None = None, *, iterative: bool = True
) -> Outcome | Trial:
    """Return the lattice's model, or what speaks against it.

    Parameters
    ----------
    learned : Start, optional
        What another engine has learned from the same rows.
    iterative : bool
        Whether the iterative solver may have something to add.
    """
    began = time.monotonic()
    sketch = begin_sketch(task.estimator, task.rows, model)
    units = sketch.units(shared=not model.inner.from_name)
    settings = _settings(task, units, model)
    if not iterative:
        settings = replace(settings, solver="dense")
    starts = starting_values(task.estimator, sketch, units, model.inner, None)
    rows = task.rows.on(model.columns)
    try:
        with within_precision():
            found = try_lattice(sketch, units, settings, starts, task.threads, rows, learned)
    except PrecisionError:
        found = "double precision does not resolve the noise there"
    if isinstance(found, str):
        return Trial("dense" if learned is None else "iterative", np.nan, 0.0, found)
    engine = _lattice_engine(model, found[1])
    return _outcome(found[0], found[1], units, model, engine, began, task)


def _lattice_engine(model: Model, sketch: Sketch) -> str:
    return "additive" if model.additive else "iterative" if sketch.iterative else "dense"


def fit_sketch(
    estimator: Any, sketch: Sketch, model: Model, previous: Start | None, began: float
) -> Outcome:
    """Return the model of sums whose rows are gone, or of rows that were kept."""
    task = Task(estimator, Rows(np.empty((0, 0)), np.empty((0, 0)), None), began)
    if isinstance(sketch, KeptRows):
        task = task._replace(rows=sketch.rows)
        exact = estimator.features == "exact" or estimator.solver == "exact"
        if takes_any_columns(estimator.features) and _needs_rows(model):
            return fit_points(task, model, previous, sketch)
        if exact or (estimator.engine_ == "exact" and task.num_rows <= EXACT_ROWS):
            # Kept rows are as engines see them.
            return fit_exact(task, model, previous, sketch)
        return fit_neighbours(task, model, previous, sketch)
    if estimator.features == "exact" or estimator.solver in ("exact", "neighbours"):
        # Sums were loaded from a file, or made before the settings were changed.
        exact = estimator.features == "exact"
        what = 'features="exact"' if exact else f'solver="{estimator.solver}"'
        raise InputError(
            f"{what} needs all rows at once: fit again with all of them, or use "
            'solver="auto" and features="auto".'
        )
    start = time.monotonic()
    units = sketch.units(shared=not model.inner.from_name)
    settings = _settings(task, units, model)
    starts = starting_values(estimator, sketch, units, model.inner, previous)
    family = resolve_features(estimator.features, estimator.num_features, len(model.columns))
    fit, sketch = learn(sketch, units, family, settings, starts, task.threads, None)
    engine = _lattice_engine(model, sketch) if family is None else "features"
    outcome = _outcome(fit, sketch, units, model, engine, start, task)
    if family is not None or estimator.solver != "auto":
        return outcome
    untried = Trial("neighbours", np.nan, 0.0, "the rows are gone, only their sums are kept")
    return outcome._replace(trials=(*outcome.trials, untried))


def _outcome(
    fit: Fit,
    sketch: Sketch,
    units: Units,
    model: Model,
    engine: str,
    began: float,
    task: Task,
) -> Outcome:
    with one_thread():
        posterior = fit.posterior(sketch.covered(fit.period), task.threads)
    trial = Trial(engine, np.nan, time.monotonic() - began)
    return Outcome(fit, posterior, sketch, units, model, engine, (trial,))


def _settings(task: Task, units: Units, model: Model) -> FitSettings:
    estimator = task.estimator
    limit = estimator.max_seconds
    return FitSettings(
        num_features=None if estimator.num_features == "auto" else int(estimator.num_features),
        max_features=estimator.max_features,
        learn=estimator.learn and not units.constant,
        wrap_tolerance=estimator.wrap_tolerance,
        repeats=estimator.weights == "repeats",
        deadline=None if limit is None else task.began + limit,
        solver=estimator.solver if estimator.solver in ("dense", "iterative") else "auto",
        max_memory=estimator.max_memory,
        columns=called(estimator, model.columns),
    )


def _model(task: Task, *, joint: bool = False) -> Model:
    estimator = task.estimator
    return choose_model(estimator.kernel, estimator.features, task.rows.X.shape[1], joint=joint)


def _needs_rows(model: Model) -> bool:
    """Return whether a model of features has more columns than a lattice, and so no sums."""
    return len(model.columns) > MAX_DIMS and not model.additive


def _keep(task: Task, model: Model, *, linear: bool = False) -> KeptRows:
    domain = check_domain(task.estimator.domain, len(model.columns))
    if domain is not None and model.embedding is not None:
        raise InputError(
            "Kernels on the sphere predict anywhere on it: leave out `domain`, which they do not "
            "need."
        )
    mean = task.estimator.mean
    if mean == "auto":
        # Some of many columns act as a trend, which the nearest rows alone do not show.
        mean = "linear" if linear else "constant"
    return KeptRows.keep(model.see(task.rows), mean=mean, domain=domain)
