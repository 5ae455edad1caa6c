"""The engines: how each fits a task, and what comes of it.

exact        all rows, no approximation; up to some thousand rows
dense        lattice features as many as a dense matrix holds; one pass, certificates
iterative    lattice features by the hundred thousand
additive     a lattice for each term of a sum over the columns
neighbours   each row given its nearest; rough functions, many columns
features     another family of features
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, PrecisionError
from orthogp.exact.few_rows import MANY, weak_beliefs, widening
from orthogp.exact.fitting import ExactFitter, RowFamilyFitter
from orthogp.exact.nongaussian import SiteRows
from orthogp.exact.pairs import merge_rows
from orthogp.features import Features, InducingPoints, resolve_features, takes_any_columns
from orthogp.fields.lattice_learning import LatticeLearner, RowSums
from orthogp.inference.bounds import TOLERANCE
from orthogp.inference.likelihoods import resolve_likelihood
from orthogp.inference.parameters import NO_BELIEFS
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.separable import GAUSSIAN, Separable, VaryingNoise
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.terms import resolve_kernel, split_terms
from orthogp.kernels.transformed import is_on_sphere
from orthogp.learning.dense import Fitter
from orthogp.learning.families import SumFamilyFitter
from orthogp.learning.layout import Setup
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.learning.starts import (
    additive_starts,
    starts_for_kernel,
    starts_for_name,
    starts_for_rows,
)
from orthogp.likelihoods.fitting import MAX_FEATURES as SEPARABLE_FEATURES
from orthogp.likelihoods.fitting import Data, Prior, SeparableFitter
from orthogp.likelihoods.row_fitting import Counts, SiteFitter
from orthogp.likelihoods.varying_noise import NOISE_KERNEL, VaryingNoiseFitter
from orthogp.neighbours.fitting import NeighbourFitter
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.neighbours.site_fitting import NearestSites, unfitted
from orthogp.precision import BlasThreads, one_thread, within_precision
from orthogp.rows import Domain, Rows, Units
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads
from orthogp.validation import Model, called, check_domain, choose_model, kernel_of

#: The most rows for which the exact process is taken without trying others: a second or less.
EXACT_ROWS = 2500
#: What engines are called, in the order of preference among equal scores; "features" stands for any
#: family but the lattice.
ENGINES = ("exact", "dense", "additive", "neighbours", "iterative", "features")

#: Starting values for a kernel, read off the data; the noise variance may be known.
Guess = Callable[[Kernel, float | None], list[Start]]


class Trial(NamedTuple):
    """An engine that was tried.

    Attributes
    ----------
    engine : str
    score : float
        The mean log predictive density of the held-out rows, in nats per row; NaN if not scored.
    seconds : float
        How long it took.
    remark : str
        Why it was not scored, or what else a user should know.
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
    trials: tuple[Trial, ...]

    def scored(self, score: float) -> Trial:
        """Return the engine's trial with its score."""
        return self.trials[0]._replace(score=score)

    def beside(self, *others: Trial) -> Outcome:
        """Return the model with the trials of other engines noted."""
        return self._replace(trials=(*self.trials, *others))


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

    def without(self, held_out: NDArray[np.int64]) -> Task:
        """Return the task with some of the rows left out."""
        seen = np.ones(len(self.rows.X), dtype=bool)
        seen[held_out] = False
        return self._replace(rows=self.rows.part(seen))

    def model(self, *, joint: bool = False) -> Model:
        """Return what the estimator's kernel stands for; see `choose_model`."""
        estimator = self.estimator
        return choose_model(
            kernel_of(estimator), estimator.features, self.rows.num_inputs, joint=joint
        )


@dataclass(frozen=True, eq=False)
class Attempt:
    """One engine's attempt at a task.

    Attributes
    ----------
    sketch : Sketch
        What the engine keeps of the rows.
    began : float
        `time.monotonic()` at which the attempt began.
    known : Outcome, optional
        A model of more rows, whose units and hyperparameters are taken.
    """

    task: Task
    model: Model
    sketch: Sketch
    began: float
    known: Outcome | None = None

    @cached_property
    def units(self) -> Units:
        """The units of the targets."""
        if self.known is not None:
            return self.known.units
        return self.sketch.units(shared=not self.model.inner.from_name)

    @cached_property
    def settings(self) -> FitSettings:
        """How to fit."""
        estimator, known = self.task.estimator, self.known
        limit = estimator.max_seconds
        settings = settings_for(
            estimator, self.model, None if limit is None else self.task.began + limit
        )
        if known is not None:
            solver = known.engine if known.engine in ("dense", "iterative") else "auto"
            return replace(settings, learn=False, solver=solver)
        beliefs = self.model.beliefs(estimator.noise_variance, 1 / self.unit)
        learn = settings.learn and not self.units.constant
        return replace(settings, learn=learn, beliefs=beliefs, noise_unit=self.noise_unit)

    @property
    def unit(self) -> float:
        """The variance of the targets that a variance of one stands for."""
        return float(self.units.scale[0] ** 2)

    @property
    def noise_unit(self) -> float:
        """The average weight of rows that weights do not repeat."""
        if self.task.estimator.weights == "repeats":
            return 1.0
        return float(self.sketch.statistics.count / self.sketch.statistics.rows)

    @property
    def threads(self) -> BlasThreads:
        """The threads of linear algebra."""
        return BlasThreads(self.task.threads)

    def starts(self, guess: Guess, previous: Start | None = None) -> list[Start]:
        """Return the hyperparameters to start from, in standardised units.

        Parameters
        ----------
        previous : Start, optional
            What was learned from part of the rows.
        """
        if self.known is not None:
            return [Start(self.known.fit.kernel, self.known.fit.noise_variance)]
        estimator, choice = self.task.estimator, self.model.inner
        unit = self.unit

        def usual(starts: list[Start]) -> list[Start]:
            """Return starts whose noise is that of rows of average weight, unless it is known."""
            factor = self.noise_unit if noise is None else 1.0
            return [replace(own, noise_variance=factor * own.noise_variance) for own in starts]

        noise = self.model.noise(estimator.noise_variance).scaled(1 / unit).value
        kernel = choice.kernel if choice.from_name else choice.kernel.scaled(1 / unit)
        if choice.from_name:
            starts = usual(guess(kernel, noise))
        elif not estimator.learn:
            starts = usual([Start(kernel, 1e-2 if noise is None else noise)])
        else:
            starts = usual(starts_for_kernel(kernel, noise))
            if self.model.additive or is_on_sphere(kernel):
                # Of many parameters, or of kilometres, a user has no reliable guess.
                starts += usual(guess(kernel, noise))
        if previous is None or not estimator.learn or estimator._sketch.units(shared=True).constant:
            # From a constant nothing was learned, not even a scale.
            return starts
        ratio = float(estimator.target_scale_[0] ** 2) / unit
        kernel, noise = previous.kernel.scaled(ratio), previous.noise_variance * ratio
        # A shape of its own; first, for the fit to go on from if it has seen most of the rows.
        return [Start(kernel, noise, -1, starts[0].from_user, previous.rows), *starts]

    def outcome(self, fit: Fit, engine: str, sketch: Sketch | None = None) -> Outcome:
        """Return the fitted model; `sketch` is what the engine ended with, if not as it began."""
        sketch = self.sketch if sketch is None else sketch
        with one_thread():
            posterior = fit.posterior(sketch.covered(fit.period), self.task.threads)
        trial = Trial(engine, np.nan, time.monotonic() - self.began)
        return Outcome(fit, posterior, sketch, self.units, self.model, engine, (trial,))


def settings_for(estimator: Any, model: Model, deadline: float | None) -> FitSettings:
    """Return how an estimator wants a model to be fitted."""
    number, solver = estimator.num_features, estimator.solver
    return FitSettings(
        num_features=None if number == "auto" else int(number),
        max_features=estimator.max_features,
        learn=estimator.learn,
        wrap_tolerance=estimator.wrap_tolerance,
        repeats=estimator.weights == "repeats",
        deadline=deadline,
        solver=solver if solver in ("dense", "iterative") else "auto",
        max_memory=estimator.max_memory,
        columns=called(estimator, model.columns),
        tolerance=getattr(estimator, "tolerance", TOLERANCE),
        beliefs=model.beliefs(getattr(estimator, "noise_variance", None)),
    )


def fit_exact(
    task: Task, model: Model, previous: Start | None = None, kept: KeptRows | None = None
) -> Outcome:
    """Return the exact model."""
    began = time.monotonic()
    kept = _keep(task, model) if kept is None else kept
    attempt = Attempt(task, model, kept, began)
    rows, settings = kept.standardised_rows(attempt.units), attempt.settings
    different = _different(attempt, kept)
    starts = attempt.starts(_row_guess(attempt, different), previous)
    number, widened = len(different.X), 1.0
    if settings.learn and model.inner.from_name and settings.beliefs == NO_BELIEFS:
        # Nothing is known but what the rows say.
        widened = widening(number, kept.mean.features(different.X[:1]).shape[1])
        if number < MANY:
            beliefs = weak_beliefs(starts[0].kernel, number, different.inputs)
            settings = replace(settings, beliefs=beliefs)
    fitter = ExactFitter(rows, kept.mean, settings, attempt.threads, additive=model.additive)
    fit = fitter.fit(starts, widened)
    return attempt.outcome(fit, "exact")


def fit_counts(
    task: Task,
    model: Model,
    previous: Start | None = None,
    kept: KeptRows | None = None,
    *,
    nearest: bool = False,
) -> Outcome:
    """Return the model of all rows under a likelihood, without features.

    Exact, or by conditionals on the nearest rows.
    """
    began = time.monotonic()
    kept = _keep(task, model) if kept is None else kept
    attempt = Attempt(task, model, kept, began)
    family, totals, units = kept.family, kept.statistics, attempt.units
    assert family is not None
    scale = float(units.scale[0])
    if previous is not None and previous.likelihood is not None:
        family = previous.likelihood.scaled(1 / scale)
        ratio = float(task.estimator.target_scale_[0] / scale) ** 2
        previous = replace(previous, kernel=previous.kernel.scaled(ratio), likelihood=family)
    else:
        average, square = totals.target_totals[0] / totals.count, totals.yy[0] / totals.count
        shift = float(kept.shift[0])
        family = family.started(average + shift, square + 2 * average * shift + shift**2)
    data = Counts(kept.rows, kept.mean, family, float(units.offset[0]))
    if not family.separates:
        data = Counts(kept.standardised_rows(units), kept.mean, family, 0.0)
    choice, learn = model.inner, attempt.settings.learn
    if not choice.from_name:
        choice = choice._replace(kernel=choice.kernel.scaled(1 / attempt.unit))
    # Few rows teach where to start from, if the nearest rows serve.
    sampled = data.sampled(_seed(task)) if nearest and learn else data
    if choice.from_name or learn:
        # Of kilometres a user has no reliable guess.
        starts = sampled.starts(choice, guessed=is_on_sphere(choice.kernel))
    else:
        starts = [Start(choice.kernel, 1.0, likelihood=family)]
    if previous is not None and learn:
        starts = [replace(previous, shape=-1), *starts]
    with within_precision():
        if not nearest:
            fit = SiteFitter(data, attempt.settings, attempt.threads).fit(starts)
        else:
            start = starts[0]
            if learn:
                start = SiteFitter(sampled, attempt.settings, attempt.threads).search(starts)[0]
            fit = _nearest_sites(attempt, data).fit(start)
    assert fit.likelihood is not None
    fit = replace(fit, likelihood=fit.likelihood.scaled(scale))
    return attempt.outcome(fit, "neighbours" if nearest else "exact")


def _nearest_sites(attempt: Attempt, data: Counts) -> NearestSites:
    settings, threads = attempt.settings, attempt.task.threads
    settings = replace(
        settings, beliefs=replace(settings.beliefs, noise=Noise(1.0).fix()), noise_unit=1.0
    )
    rows, seed = SiteRows(data.rows, data.likelihood, data.offset), _seed(attempt.task)
    fitter = NeighbourFitter(unfitted(rows), data.mean, settings, threads, seed)
    return NearestSites(rows, data.likelihood, fitter)


def _seed(task: Task) -> int:
    seed = task.estimator.random_state
    return 0 if seed is None else int(seed)


def fit_points(
    task: Task, model: Model, previous: Start | None = None, kept: KeptRows | None = None
) -> Outcome:
    """Return the model of point features on more columns than a lattice has."""
    began = time.monotonic()
    estimator = task.estimator
    kept = _keep(task, model, linear=True) if kept is None else kept
    attempt = Attempt(task, model, kept, began)
    different = _different(attempt, kept)
    family = resolve_features(estimator.features, estimator.num_features, len(model.columns))
    assert isinstance(family, Features)
    if estimator.features == "inducing-points" and estimator.num_features == "auto":
        # The rows have as many different places for points, and no more.
        family = InducingPoints(min(family.num_features, len(different.X)))
    rows = kept.standardised_rows(attempt.units)
    settings, threads = attempt.settings, attempt.threads
    fitter = RowFamilyFitter(family, rows, kept.extent, kept.mean, settings, threads)
    with within_precision():
        fit = fitter.fit(attempt.starts(_row_guess(attempt, different), previous))
    return attempt.outcome(fit, "features")


def _different(attempt: Attempt, kept: KeptRows) -> Rows:
    """Return the different rows: repeated rows and weights start a search from the same place."""
    repeats = attempt.settings.repeats
    X, y, weights = merge_rows(kept.X, kept.y, kept.weights, repeats=repeats)[:3]
    return Rows(X, y, weights, num_covariates=kept.mean.num_covariates)


def _row_guess(attempt: Attempt, rows: Rows) -> Guess:
    rows = rows.standardised(attempt.units)
    X, y = rows.inputs, rows.y
    if rows.num_covariates:
        # What covariates explain without the process says nothing of its lengthscales.
        columns = attempt.sketch.mean.features(rows.X)
        y = y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    per_column = attempt.model.inner.from_name or not attempt.model.additive
    return lambda kernel, noise: starts_for_rows(kernel, X, y, noise, per_column=per_column)


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
    if kept is None:
        kept = _keep(task, model, linear=len(model.columns) > MAX_DIMS)
    attempt = Attempt(task, model, kept, began, known)
    rows, settings = kept.standardised_rows(attempt.units), attempt.settings
    merged = merge_rows(rows.X, rows.y, rows.weights, repeats=settings.repeats)
    fitter = NeighbourFitter(merged, kept.mean, settings, task.threads, _seed(task))
    starts = attempt.starts(
        lambda kernel, noise: _with_noise(fitter.starts(kernel), noise), previous
    )
    if known is None:
        return attempt.outcome(fitter.fit(starts), "neighbours")
    assert isinstance(known.posterior, NeighbourPosterior)
    posterior = fitter.posterior(starts[0]).with_neighbours(known.posterior.num_neighbours)
    return known._replace(posterior=posterior)


def fit_sums(
    task: Task,
    model: Model,
    previous: Start | None = None,
    sketch: Sketch | None = None,
    known: Outcome | None = None,
) -> Outcome:
    """Return the model of lattice features, or of another family, learned from sums of the rows.

    Parameters
    ----------
    sketch : Sketch, optional
        The sums, if the rows are gone.
    known : Outcome, optional
        A model of more rows, whose hyperparameters are taken.
    """
    began = time.monotonic()
    estimator = task.estimator
    rows = task.rows.on(model.columns) if sketch is None else None
    sketch = begin_sketch(estimator, task.rows, model) if sketch is None else sketch
    attempt = Attempt(task, model, sketch, began, known)
    settings, statistics = attempt.settings, sketch.standardised(attempt.units)
    family = resolve_features(estimator.features, estimator.num_features, len(model.columns))
    starts = attempt.starts(_sum_guess(attempt), previous)
    with within_precision():
        if model.additive:
            if settings.solver == "iterative":
                raise InputError(
                    "The iterative solver takes one lattice in up to three columns, not a sum of "
                    'terms with lattices of their own: use solver="auto".'
                )
            layout, threads = sketch.layout(settings), attempt.threads
            fitter = Fitter(statistics, sketch.width, sketch.mean, settings, threads, layout)
            return attempt.outcome(fitter.fit(starts), "additive")
        if family is None:
            learner, sums = _lattice(attempt, rows)
            return _lattice_outcome(attempt, learner.fit(starts), sums)
        assert isinstance(family, Features)
        own = None if rows is None else rows.standardised(attempt.units)
        fitter = SumFamilyFitter(family, statistics, own, sketch, settings, attempt.threads)
        return attempt.outcome(fitter.fit(starts), "features")


def fit_separable(
    task: Task, model: Model, previous: Start | None = None, sketch: Sketch | None = None
) -> Outcome:
    """Return the model of counts, shares or amounts, learned from sums of the rows.

    Where sums do not reach far enough, and the rows are there, passes over them take their place.
    """
    began, estimator = time.monotonic(), task.estimator
    check_separable(estimator, model)
    rows = None
    if sketch is None:
        sketch = begin_sketch(estimator, task.rows, model)
        rows = task.rows.on(model.columns)
    attempt = Attempt(task, model, sketch, began)
    if isinstance(sketch.family, VaryingNoise):
        return _fit_varying_noise(attempt, rows, previous)
    family, statistics = sketch.family, sketch.plain
    assert isinstance(family, Separable)
    if rows is not None:
        rows, _ = family.summands(rows)
    if previous is not None and isinstance(previous.likelihood, Separable):
        family = previous.likelihood
    else:
        average, square = statistics.target_totals[0], statistics.yy[0]
        family = family.started(average / statistics.count, square / statistics.count)
    settings = attempt.settings
    settings = replace(settings, max_features=min(settings.max_features, SEPARABLE_FEATURES))
    fitter = SeparableFitter(
        Data(statistics, sketch.constants, rows),
        family,
        sketch.layout(settings),
        Prior(sketch.mean, float(attempt.units.offset[0])),
        settings,
        attempt.threads,
    )
    known = previous is not None and previous.rows > statistics.count / 2
    with within_precision():
        fit = fitter.fit(model.inner, previous.kernel if previous is not None and known else None)
    return attempt.outcome(fit, "dense")


def _fit_varying_noise(attempt: Attempt, rows: Rows | None, previous: Start | None) -> Outcome:
    """Return the model of two processes: the targets' mean, and the logarithm of their noise."""
    sketch, settings = attempt.sketch, attempt.settings
    if attempt.task.estimator.solver not in ("auto", "dense"):
        raise InputError(
            f'The {VaryingNoise.known_as} likelihood is fitted on a lattice: use solver="auto".'
        )
    settings = replace(settings, max_features=min(settings.max_features, SEPARABLE_FEATURES))
    if rows is not None:
        rows = rows._replace(y=rows.y - sketch.shift[0])
    scale = float(attempt.units.scale[0])
    fitter = VaryingNoiseFitter(sketch, scale, rows, settings, attempt.threads)
    starts = attempt.starts(
        lambda kernel, noise: starts_for_name(kernel, fitter.plain, sketch.width), previous
    )
    with within_precision():
        fit = fitter.fit(attempt.model.inner, resolve_kernel(NOISE_KERNEL), starts)
    return attempt.outcome(fit, "dense")


def check_separable(estimator: Any, model: Model) -> None:
    """Raise `InputError` unless the sums of one lattice can serve an estimator's likelihood."""
    name = getattr(estimator, "likelihood", "binomial")
    what, family = f"the {name} likelihood", resolve_likelihood(name)
    if family is not None and not family.separates:
        raise InputError(
            f"Sums over the rows do not tell all under {what}: fit the rows themselves, with "
            'solver="auto".'
        )
    if model.additive or model.embedding is not None or len(model.columns) > MAX_DIMS:
        raise InputError(
            f"Sums under {what} are of one kernel on up to {MAX_DIMS} columns jointly, which one "
            'lattice holds: use solver="auto", or choose columns by kernel.on(0, 2).'
        )
    if estimator.features not in ("auto", "lattice") or estimator.solver not in ("auto", "dense"):
        raise InputError(
            f'A lattice or the rows themselves serve {what}: use features="auto" and solver="auto".'
        )


def try_sums(
    task: Task, model: Model, learned: Start | None = None, *, iterative: bool = True
) -> Outcome | Trial:
    """Return the lattice's model, or why it is not worth having.

    Parameters
    ----------
    learned : Start, optional
        What another engine has learned from the same rows. Without it only a dense lattice serves,
        and only if it resolves all that the rows show.
    iterative : bool
        Whether the iterative solver may have something to add.
    """
    began = time.monotonic()
    attempt = Attempt(task, model, begin_sketch(task.estimator, task.rows, model), began)
    learner, sums = _lattice(attempt, task.rows.on(model.columns), dense=not iterative)
    starts = attempt.starts(_sum_guess(attempt))
    try:
        with within_precision():
            if learned is None:
                fit = learner.fit_if_resolved(starts)
            else:
                fit = learner.fit_from(learned, starts)
    except PrecisionError:
        fit = "double precision does not resolve the noise there"
    if isinstance(fit, str):
        return Trial("dense" if learned is None else "iterative", np.nan, 0.0, fit)
    return _lattice_outcome(attempt, fit, sums)


def _lattice(
    attempt: Attempt, rows: Rows | None, *, dense: bool = False
) -> tuple[LatticeLearner, RowSums]:
    sketch, units, threads = attempt.sketch, attempt.units, attempt.task.threads
    sums = RowSums(sketch, units, rows, threads)
    own = None if rows is None else rows.standardised(units)
    settings = replace(attempt.settings, solver="dense") if dense else attempt.settings
    statistics = sketch.standardised(units)
    return LatticeLearner(sketch, statistics, own, sums, settings, threads), sums


def _lattice_outcome(attempt: Attempt, fit: Fit, sums: RowSums) -> Outcome:
    engine = "iterative" if sums.sketch.iterative else "dense"
    return attempt.outcome(fit, engine, sums.sketch)


def _sum_guess(attempt: Attempt) -> Guess:
    sketch = attempt.sketch
    statistics, width = sketch.standardised(attempt.units), sketch.width
    if attempt.model.additive:
        return lambda kernel, noise: additive_starts(kernel, statistics, width, noise)  # type: ignore[arg-type]
    return lambda kernel, noise: _with_noise(starts_for_name(kernel, statistics, width), noise)


def _with_noise(starts: list[Start], noise: float | None) -> list[Start]:
    return starts if noise is None else [replace(own, noise_variance=noise) for own in starts]


def fit_sketch(
    estimator: Any, sketch: Sketch, model: Model, previous: Start | None, began: float
) -> Outcome:
    """Return the model of sums whose rows are gone, or of rows that were kept."""
    task = Task(estimator, Rows(np.empty((0, 0)), np.empty((0, 0)), None), began)
    if sketch.family is not None:
        if not isinstance(sketch, KeptRows):
            return fit_separable(task, model, previous, sketch)
        nearest = estimator.engine_ == "neighbours"
        task = task._replace(rows=sketch.rows)
        return fit_counts(task, model, previous, sketch, nearest=nearest)
    exact = estimator.features == "exact" or estimator.solver == "exact"
    if isinstance(sketch, KeptRows):
        task = task._replace(rows=sketch.rows)
        if takes_any_columns(estimator.features) and model.beyond_lattices:
            return fit_points(task, model, previous, sketch)
        if exact or (estimator.engine_ == "exact" and task.num_rows <= EXACT_ROWS):
            # Kept rows are as engines see them.
            return fit_exact(task, model, previous, sketch)
        if model.additive:
            return fit_sums(task, model.on_seen, previous)._replace(model=model)
        return fit_neighbours(task, model, previous, sketch)
    if exact or estimator.solver == "neighbours":
        # Sums were loaded from a file, or made before the settings were changed.
        family = estimator.features == "exact"
        what = 'features="exact"' if family else f'solver="{estimator.solver}"'
        raise InputError(
            f"{what} needs all rows at once: fit again with all of them, or use "
            'solver="auto" and features="auto".'
        )
    outcome = fit_sums(task, model, previous, sketch)
    if outcome.engine == "features" or estimator.solver != "auto":
        return outcome
    why = "the rows are gone, only their sums are kept"
    return outcome.beside(Trial("neighbours", np.nan, 0.0, why))


def begin_sketch(
    estimator: Any,
    rows: Rows,
    model: Model,
    extent: Domain | None = None,
    total_rows: int | None = None,
) -> Sketch:
    """Return the sums of the first rows, on lattices that suit them.

    Parameters
    ----------
    extent, total_rows
        The box around all rows in the columns that the kernel sees, and how many there are, if
        more are to come.
    """
    seen, choice = model.see(rows), model.inner
    domain = check_domain(estimator, model.columns)
    domain = extent if domain is None else domain.with_box(extent)
    number = estimator.num_features
    setup = Setup(
        mean="constant" if estimator.mean == "auto" else estimator.mean,
        domain=domain,
        kernel=None if choice.from_name else choice.kernel,
        terms=split_terms(choice.kernel, len(model.columns)) if model.additive else (),
        learn=estimator.learn,
        repeats=estimator.weights == "repeats",
        wrap_tolerance=estimator.wrap_tolerance,
        most_features=estimator.max_features if number == "auto" else int(number),
        num_threads=available_threads(estimator.n_jobs),
        total_rows=total_rows or 0,
        likelihood=getattr(estimator, "likelihood", GAUSSIAN),
    )
    return Sketch.begin(seen, setup)


def _keep(task: Task, model: Model, *, linear: bool = False) -> KeptRows:
    domain = check_domain(task.estimator, model.columns)
    if domain is not None and model.embedding is not None:
        raise InputError(
            "Kernels on the sphere predict anywhere on it: leave out `domain`, which they do not "
            "need."
        )
    mean = task.estimator.mean
    if mean == "auto":
        # Some of many columns act as a trend, which the nearest rows alone do not show.
        mean = "linear" if linear else "constant"
    family = getattr(task.estimator, "likelihood", GAUSSIAN)
    kept = KeptRows.keep(model.see(task.rows), mean=mean, domain=domain, likelihood=family)
    return kept.without_slopes(model.coming_round) if model.additive else kept
