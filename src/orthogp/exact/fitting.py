r"""Fits that look at all rows: of the exact process, and of point features that need the rows.

The search for the hyperparameters of an exact process begins on a sample of the rows, where the
likelihoods of many starts are compared and the best of different shapes are climbed, and goes on
with a larger sample. The maximum lies so close by that one or two evaluations on all rows are left
to do: steps by the average information do not need to learn the curvature.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, PrecisionError
from orthogp.exact.components import ExactComponents
from orthogp.exact.process import ExactObjective, ExactPosterior, Solution
from orthogp.features import Features, MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.moments import Source
from orthogp.inference.parameters import pack
from orthogp.kernels import Kernel
from orthogp.learning.families import FamilyFitter, Placement
from orthogp.learning.limits import NOISE_FLOOR, names_at_limit, row_limits
from orthogp.learning.optimise import Ascent, Budget, Evaluation, Summit, ascend
from orthogp.learning.problem import (
    Fit,
    FitSettings,
    Start,
    component_label,
    describe_limits,
)
from orthogp.precision import BlasThreads, one_thread
from orthogp.rows import Rows

Vector = NDArray[np.float64]

#: The most rows: time grows with their cube, memory with their square (200 MB per matrix).
MOST_ROWS = 5000
# The largest number of rows that are all used from the beginning.
_FEW_ROWS = 512
# The sizes of samples that a search on part of the rows takes, one after the other.
_SAMPLES = (256, 768)
# The rows in each sample of which half are the nearest neighbours: they determine the noise and
# short lengthscales.
_CENTRES = 4
# The number of starts that are climbed from, up to each number of rows: fewer rows have more
# maxima, and cost less.
_CLIMBS = ((150, 7), (300, 5), (_FEW_ROWS, 4))
# The most evaluations of one climb.
_MOST_EVALUATIONS = 80
# The promised gain in nats below which a step is not taken, with all of few rows.
_SETTLED = 1e-4
#: The same with a sample of the rows.
SETTLED_SAMPLE = 5e-2
#: The same with all of many rows: the last step is taken without a gradient at its end.
SETTLED_MANY = 0.5
# The promised gain in nats below which the last step is not worth a factorisation.
_NEGLIGIBLE = 1e-2
# The difference in nats below which starts are the same: all rows are apart, say.
_SAME = 0.02
# The difference in nats within which the second maximum of a sample may be the first of all rows.
_DOUBT = 10.0
# The largest Σw k(0)/σ² that double precision resolves as a rule.
_RESOLVED = 3e14
# The largest σ²/k(0).
_MOST_NOISE = 1e9
# The number of times that noise is raised where rounding has reached it.
_RAISES = 8
# The prior sd of the change of a term over the rows, relative to that of the targets, below which
# it has no effect.
_SILENT = 3e-3
# The number of rows from which several threads may be faster than one.
_MANY_ROWS = 1024


class ExactFitter:
    """Fits a GP to standardised targets without approximation.

    Parameters
    ----------
    additive : bool
        Whether the terms of the kernel are of interest by themselves.
    """

    def __init__(
        self,
        rows: Rows,
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads,
        *,
        additive: bool = False,
    ) -> None:
        check_few(rows)
        self._additive = additive
        self._rows = rows
        self._mean = mean
        self._settings = settings
        self._threads = threads

    def fit(self, starts: list[Start], widening: float = 1.0) -> Fit:
        """Return the fit from the best of some starting values, variances widened by a factor."""
        found = Found(starts[0], None, converged=True, num_evaluations=0)
        if self._settings.learn:
            search = ExactSearch(self._rows, self._mean, self._settings, self._threads)
            found = search.run(starts)
        if widening != 1:
            at = found.best
            wide = replace(
                at,
                kernel=at.kernel.scaled(widening),
                noise_variance=widening * at.noise_variance,
            )
            found = found._replace(best=wide, solution=None)
        exact = self._posterior(found)
        value = exact.log_marginal_likelihood
        bound = Bound(data_fit=value, complexity=0.0, trace=0.0)
        status = "The posterior is exact."
        if self._additive and self._settings.learn:
            status = " ".join([status, *self._silent(exact.components)])
        if widening != 1:
            status += " The rows are few: hyperparameters have weak priors, and bands are widened."
        if self._settings.late():
            status += " The time ran out: raise max_seconds to go on learning."
        elif not found.converged:
            status += " Learning stopped before it settled."
        return Fit(
            kernel=exact.kernel,
            noise_variance=exact.noise_variance,
            elbo=bound,
            tightened=bound,
            upper=bound,
            certificate=Certificate.exact(value),
            status=status,
            converged=found.converged,
            num_evaluations=found.num_evaluations,
            rows=exact.counted_rows,
            posterior=lambda domain, num_threads: exact,
            num_features=int(exact.num_rows),
        )

    def _silent(self, components: ExactComponents) -> list[str]:
        """Return which terms have no effect, as a sentence if there are any."""
        columns, called = components.columns, self._settings.columns
        return describe_limits(
            tuple(
                f"smallest variance of {component_label(own, called)}"
                for own, range_ in zip(columns, components.ranges, strict=True)
                if range_ < _SILENT
            )
        )

    def _posterior(self, found: Found) -> ExactPosterior:
        """Return the posterior; noise that was learned is raised if rounding has reached it."""
        at = found.best
        learned = self._settings.learn and not self._settings.beliefs.noise.fixed
        for _ in range(_RAISES if learned else 0):
            with suppress(PrecisionError):
                return self._posterior_at(at, found.solution)
            at = replace(at, noise_variance=3 * at.noise_variance)
        return self._posterior_at(at, None)

    def _posterior_at(self, at: Start, solution: Solution | None) -> ExactPosterior:
        with self._threads.limited(len(self._rows.X)):
            return ExactPosterior(
                at.kernel,
                at.noise_variance,
                self._mean,
                self._rows,
                repeats=self._settings.repeats,
                solution=solution,
                additive=self._additive,
            )


def check_few(rows: Rows) -> None:
    """Raise `InputError` if there are more rows than an exact fit takes."""
    if len(rows.X) > MOST_ROWS:
        raise InputError(
            f'An exact fit takes up to {MOST_ROWS} rows, got {len(rows.X)}: use solver="auto" '
            'and features="auto".'
        )


class Stage(Protocol):
    """What a search maximises over vectors of parameters, for all rows or a sample of them.

    Attributes
    ----------
    size : int
        The number of rows.
    whole : bool
        Whether these are all rows.
    tolerance : float
        The promised gain below which a step is not taken, if others have led near.
    num_evaluations : int
        How often it was evaluated.
    """

    size: int
    whole: bool
    tolerance: float
    num_evaluations: int

    def limits(self, X: NDArray) -> tuple[Vector, Vector]:
        """Return the limits of vectors for rows with the inputs X."""
        ...

    def value(self, x: Vector) -> float:
        """Return the value, or −∞ beyond double precision."""
        ...

    def evaluate(self, x: Vector) -> Evaluation | None:
        """Return the value with derivatives, `None` beyond double precision."""
        ...

    def firmer(self, x: Vector) -> Vector | None:
        """Return what double precision may resolve in place of x, if there is such."""
        ...

    def solution_at(self, x: Vector) -> Solution | None:
        """Return what was solved last, if it was at this vector and is of use."""
        ...

    def x_of(self, start: Start) -> Vector:
        """Return where a start lies."""
        ...

    def start_of(self, x: Vector) -> Start:
        """Return what lies at a place."""
        ...


class Found(NamedTuple):
    """Where a search has come to.

    `solution` is what was factorised with the best hyperparameters, if it is at hand.
    """

    best: Start
    solution: Solution | None
    converged: bool
    num_evaluations: int


class ExactSearch:
    """Looks for the largest log marginal likelihood of rows with standardised targets.

    Parameters
    ----------
    stage : callable, optional
        Returns what is maximised instead, of a kernel and a sample of the rows or `None`.
    """

    def __init__(
        self,
        rows: Rows,
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads,
        stage: Callable[[Kernel, NDArray[np.int64] | None], Stage] | None = None,
    ) -> None:
        self._rows = rows if rows.weights is None else rows.part(np.flatnonzero(rows.weights > 0))
        self._mean = mean
        self._settings = settings
        self._threads = threads
        self._stage = self._of_noise if stage is None else stage

    def run(self, starts: list[Start], *, few: bool = False) -> Found:
        """Return the best hyperparameters found.

        Parameters
        ----------
        few : bool
            Whether to end with a sample of the rows, if there are many: for other models to go on.
        """
        X, kernel = self._rows.inputs, starts[0].kernel
        stages: list[Stage] = []
        if len(X) > _FEW_ROWS:
            samples = [_sample(X, size) for size in _SAMPLES if len(X) > 1.6 * size]
            stages = [self._stage(kernel, sample) for sample in samples]
        if len(stages) < len(_SAMPLES) or not few:
            stages.append(self._stage(kernel, None))
        last = stages[-1]
        limits = last.limits(X)
        # What is small between the evaluations, or is not theirs, gets one thread.
        with one_thread():
            summits = self._explore(stages[0], starts, limits)
            for stage in stages[1:]:
                summits = self._go_on(stage, summits, limits)
            top = summits[0]
            x, ahead = top.x, np.clip(top.x + top.step, *limits)
            # The last step needs no gradient at its end.
            if top.converged and top.promised > _NEGLIGIBLE and last.value(ahead) > top.at.value:
                x = ahead
        return Found(
            best=last.start_of(x),
            solution=last.solution_at(x),
            converged=top.converged,
            num_evaluations=sum(stage.num_evaluations for stage in stages),
        )

    def _explore(
        self, stage: Stage, starts: list[Start], limits: tuple[Vector, Vector]
    ) -> list[Ascent]:
        """Return the summits found from the best starts of different shapes, the highest first."""
        vectors = [np.clip(stage.x_of(start), *limits) for start in starts]
        # Starts that differ in nothing that is learned, or beyond the limits only, are the same.
        known: dict[bytes, float] = {}
        for vector in vectors:
            if vector.tobytes() not in known:
                known[vector.tobytes()] = stage.value(vector)
        values = [known[vector.tobytes()] for vector in vectors]
        number = next((n for rows, n in _CLIMBS if stage.size <= rows), _CLIMBS[-1][1])
        tolerance = _SETTLED if stage.whole else SETTLED_SAMPLE
        summits: list[Ascent] = []

        def joins(x: Vector, at: Evaluation) -> bool:
            return any(_joins(x, at, summit) for summit in summits)

        for i in choose_starts(starts, values, number):
            found = self._climb(stage, vectors[i], limits, tolerance, abandon=joins)
            summits += [] if found is None else [found]
        if not summits:
            raise PrecisionError(
                "No noise variance resolves these data in double precision: rescale the targets."
            )
        return sorted(summits, key=lambda summit: -summit.at.value)

    def _go_on(
        self, stage: Stage, summits: list[Ascent], limits: tuple[Vector, Vector]
    ) -> list[Ascent]:
        """Return the summits of more rows near those of fewer, the highest first."""
        doubtful: list[Ascent] = []
        for summit in summits:
            known = any(_are_one(summit, other) for other in doubtful)
            if summit.at.value > summits[0].at.value - _DOUBT and not known:
                doubtful.append(summit)
        values = [stage.value(s.x) for s in doubtful] if len(doubtful) > 1 else [0.0]
        found: list[Ascent] = []
        for i in np.argsort(values)[::-1]:
            # On all rows another summit is climbed only if it begins higher than the first ended.
            if len(found) == 2 or (found and stage.whole and values[i] < found[0].at.value):
                break
            # The step that was not taken costs nothing now.
            start = np.clip(doubtful[i].x + doubtful[i].step, *limits)
            wary = stage.whole or doubtful[i].wary
            climbed = self._climb(stage, start, limits, stage.tolerance, wary=wary)
            found += [] if climbed is None else [climbed]
        return sorted(found, key=lambda summit: -summit.at.value)

    def _climb(
        self,
        stage: Stage,
        start: Vector,
        limits: tuple[Vector, Vector],
        tolerance: float,
        *,
        wary: bool = False,
        abandon: Callable[[Vector, Evaluation], bool] = lambda x, at: False,
    ) -> Ascent | None:
        lower, upper = limits
        for _ in range(_RAISES):
            first = stage.evaluate(start)
            if first is not None:
                break
            firmer = stage.firmer(start)
            if firmer is None:
                return None
            start = np.clip(firmer, lower, upper)
        else:
            return None
        budget = Budget(_MOST_EVALUATIONS, self._settings.late, tolerance)
        first = first._replace(wary=wary)
        return ascend(stage.evaluate, start, limits, budget, abandon=abandon, first=first)

    def _of_noise(self, kernel: Kernel, sample: NDArray[np.int64] | None) -> Stage:
        """Return the likelihood of all rows, or of a sample of them."""
        rows = self._rows if sample is None else self._rows.part(sample)
        num_threads = self._threads.num_threads if len(rows.X) >= _MANY_ROWS else 1
        repeats = self._settings.repeats
        objective = ExactObjective(
            kernel, self._mean, rows, repeats=repeats, num_threads=num_threads
        )
        return _Stage(objective, len(rows.X), self._threads, self._settings, whole=sample is None)


class _Stage:
    r"""The likelihood of some rows, counting how often it is evaluated.

    Its last parameter is η in

        σ² = (ε⁴ + (k(0) e^η)⁴)^¼

    with the smallest noise ε that is believed, whatever the data. It is the ratio e^η that double
    precision limits. If the noise variance is fixed or has bounds, it is log σ² itself (`direct`).
    """

    def __init__(
        self,
        objective: ExactObjective,
        size: int,
        threads: BlasThreads,
        settings: FitSettings,
        *,
        whole: bool,
    ) -> None:
        self._beliefs = beliefs = settings.beliefs
        self.direct = beliefs.noise.fixed or beliefs.noise.bounds is not None
        # The smallest noise variance that is believed.
        self._floor = NOISE_FLOOR * settings.noise_unit
        self.objective = objective
        self.size, self.whole = size, whole
        #: The promised gain below which a step is not taken, if others have led near.
        self.tolerance = SETTLED_MANY if whole else SETTLED_SAMPLE
        self.num_evaluations = 0
        self._threads = threads

    def value(self, x: Vector) -> float:
        """Return log p(y) and the log prior, or −∞ beyond double precision."""
        self.num_evaluations += 1
        try:
            with self._threads.limited(self.size, _MANY_ROWS):
                vector = self.vector(x)
                prior = self._beliefs.log_prior(self.objective.slots, vector)
                return self.objective.value(vector) + prior.value
        except PrecisionError:
            return -np.inf

    def evaluate(self, x: Vector) -> Evaluation | None:
        """Return log p(y) and the log prior with derivatives, `None` beyond double precision."""
        self.num_evaluations += 1
        vector = self.vector(x)
        try:
            with self._threads.limited(self.size, _MANY_ROWS):
                found = self.objective.evaluate(vector)
        except PrecisionError:
            return None
        found = found.with_prior(self._beliefs.log_prior(self.objective.slots, vector))
        if self.direct:
            return found
        gradient, bend = found.gradient, found.bend
        variance, moved = self.objective.prior_variance(x)
        # Of log k(0) e^η, and how much of the noise that is.
        slope = np.append(moved / variance, 1.0)
        share = 1 / (1 + (self._floor / variance) ** 4 * np.exp(-4 * x[-1]))
        J = np.eye(len(x))
        J[-1] = share * slope

        def bent() -> NDArray[np.float64]:
            # As log k(0) bends for a sum of variances.
            of_sum = np.diag(np.append(slope[:-1], 0.0))
            of_sum[:-1, :-1] -= np.outer(slope[:-1], slope[:-1])
            of_noise = share * of_sum + 4 * share * (1 - share) * np.outer(slope, slope)
            assert bend is not None
            return J.T @ bend() @ J + gradient[-1] * of_noise

        return Evaluation(
            found.value,
            J.T @ gradient,
            J.T @ found.information @ J,
            None if bend is None else bent,
        )

    def limits(self, X: NDArray) -> tuple[Vector, Vector]:
        """Return the limits of vectors for rows with the inputs X."""
        slots = self.objective.slots
        limits = row_limits(self.objective.kernel, slots, X, self._floor)
        limits = self._beliefs.within(slots, limits)
        if not self.direct:
            limits[0][-1] = np.log(self.objective.total_weight / _RESOLVED)
            limits[1][-1] = np.log(_MOST_NOISE * self._floor / NOISE_FLOOR)
        return limits

    def firmer(self, x: Vector) -> Vector | None:
        """Return the vector with more noise, which more rows need to be resolved."""
        return np.append(x[:-1], x[-1] + np.log(30))

    def solution_at(self, x: Vector) -> Solution | None:
        """Return what was solved last, if it was at this vector."""
        return self.objective.solution_at(self.vector(x))

    def vector(self, x: Vector) -> Vector:
        """Return the parameters of the objective, whose last is log σ²."""
        if self.direct:
            return x
        variance, _ = self.objective.prior_variance(x)
        unfloored = np.log(variance) + x[-1]
        return np.append(x[:-1], np.logaddexp(4 * np.log(self._floor), 4 * unfloored) / 4)

    def x_of(self, start: Start) -> Vector:
        """Return where a start lies."""
        x = np.append(pack(start.kernel, self.objective.slots), np.log(start.noise_variance))
        if not self.direct:
            x[-1] = np.log(start.noise_variance / self.objective.prior_variance(x)[0])
        return x

    def start_of(self, x: Vector) -> Start:
        """Return what lies at a place."""
        vector = self.vector(x)
        return Start(self.objective.kernel_at(vector), float(np.exp(vector[-1])))


def choose_starts(starts: list[Start], values: list[float], number: int) -> list[int]:
    """Return the best starts of different shapes, a user's own first."""
    chosen: dict[tuple[int, bool], int] = {}
    for i in np.argsort(values, kind="stable")[::-1].tolist():
        key = (starts[i].shape, starts[i].from_user)
        same = any(abs(values[i] - values[j]) < _SAME for j in chosen.values())
        if key not in chosen and not same and np.isfinite(values[i]):
            chosen[key] = i
    users = [i for i in chosen.values() if starts[i].from_user][:1]
    return list(dict.fromkeys([*users, *list(chosen.values())[:number]]))


def _joins(x: Vector, at: Evaluation, summit: Ascent) -> bool:
    """Return whether a search has come so close to a summit that it will end there."""
    away = x - summit.x
    close = np.max(np.abs(away)) < 1 and away @ summit.at.information @ away < 0.5
    return bool(close and summit.at.value - 1 < at.value < summit.at.value + 1e-3)


def _are_one(one: Ascent, other: Ascent) -> bool:
    """Return whether two searches have ended at the same summit, as far as they went."""
    away = one.x - other.x
    unlike = away @ (one.at.information + other.at.information) @ away
    return bool(unlike < 1 and abs(one.at.value - other.at.value) < 0.3)


def _sample(X: NDArray, size: int) -> NDArray[np.int64]:
    """Return a sample of the rows: half of them from all over, half neighbours of a few."""
    order = np.random.default_rng(0).permutation(len(X))
    scaled = _scaled(X)
    near = size // (2 * _CENTRES)
    chosen = np.zeros(len(X), dtype=bool)
    for centre in order[:_CENTRES]:
        distance = np.sum((scaled - scaled[centre]) ** 2, axis=1)
        chosen[np.argpartition(distance, near)[:near]] = True
    others = order[~chosen[order]]
    chosen[others[: size - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _scaled(X: NDArray) -> NDArray[np.float64]:
    scale = X.std(axis=0)
    return np.asarray(X / np.where(scale > 0, scale, 1.0), dtype=np.float64)


class RowFamilyFitter(FamilyFitter):
    """Fits a family from the rows alone, in any number of columns.

    The process is the kernel's on all columns, sums as a whole. An exact process on some hundreds
    of the rows gives the hyperparameters to start from.
    """

    def _adapted(self, kernel: Kernel) -> Features:
        return self.family

    def _begin(self, starts: list[Start]) -> Start:
        """Return what a sample of the rows gives, or an earlier fit if it is better."""
        search = ExactSearch(self._require_rows(), self.mean, self.settings, self._threads)
        found = search.run(starts, few=True)
        self._num_evaluations += found.num_evaluations
        candidates = [found.best, *(start for start in starts if start.rows)]
        if len(candidates) == 1:
            return found.best
        objective = self._objective(self._place(found.best.kernel), found.best.kernel)
        values = []
        for candidate in candidates:
            try:
                values.append(objective.value(objective.vector(candidate)))
            except PrecisionError:
                values.append(-np.inf)
        return candidates[int(np.argmax(values))]

    def _place(self, kernel: Kernel, previous: Placement | None = None) -> Placement:
        with one_thread():
            placed = self.family.from_rows(kernel, self._require_rows().X)
        return Placement(placed, placed)

    def _names_at_limit(self, source: Source, summit: Summit) -> tuple[str, ...]:
        # The longest lengthscales mean that columns do not matter, which is nothing to warn of.
        lengths = np.repeat(
            [slot.name == "lengthscale" for slot in source.slots],
            [slot.size for slot in source.slots],
        )
        lower, upper = summit.box[0], summit.box[1].copy()
        upper[: len(lengths)][lengths] = np.inf
        return names_at_limit(source.slots, summit.maximum.x, lower, upper, self.settings.columns)

    def _learns(self, placement: Placement) -> bool:
        return placement.features.learns

    def _limits(
        self, source: Source, kernel: Kernel, noise_floor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return row_limits(kernel, source.slots, self._require_rows().X, noise_floor)
