"""From sums of counts, classes or amounts to a fitted model: stages, growth, and what was cut.

Nothing here sees the rows, unless the sums do not reach far enough for functions of f: then the
same bound is maximised in passes over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, PrecisionError
from orthogp.features import Lattice, MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.parameters import LogPrior, pack
from orthogp.inference.posterior import Posterior, Solution
from orthogp.inference.separable import DISPERSIONS, Separable
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.terms import KernelChoice
from orthogp.learning.dense import HEADROOM_FIRST, HEADROOM_LAST, SETTLED
from orthogp.learning.layout import Layout, Limits
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.learning.optimise import Budget, Evaluation, ascend
from orthogp.learning.problem import Fit, FitSettings, listed_limits
from orthogp.learning.starts import starts_for_kernel, starts_for_name, with_variance
from orthogp.likelihoods.measures import Measure, RowMeasure, TorusMeasure
from orthogp.likelihoods.variational import (
    ALLOWED_CUT,
    CONVERGED,
    POLISHED,
    Approximation,
    CutErrors,
    Model,
    VariationalBound,
    too_fine,
)
from orthogp.precision import BlasThreads
from orthogp.rows import Rows
from orthogp.statistics import ComponentLattice, FourierStatistics, FrequencyLattice

#: The trace term, in nats, that the final features may leave.
ALLOWED_TRACE = 0.05
#: The most features by default: each of some hundred steps factorises a matrix of this size.
MAX_FEATURES = 1000

# Prior variances of f to start from; the second if the sums do not resolve the first.
_VARIANCES = (2.0, 0.3)
# Steps by which starting values are compared.
_FIRST_STEPS = 4
# Evaluations of the searches from the best two starting values,
_BRIEF = 3
# and of those that go on from the better end of them.
_LONG = 40
# The features that a stage with more of them takes, relative to those that its kernel asks for.
_SPARE = 1.1
# A step of the hyperparameters that promises fewer nats is not taken,
_SETTLED = 1e-2
# nor one that promises less than this share of what the features leave out.
_LITTLE = 1e-3
# A change of features that gains less than this share of what they still leave out is the last.
_WORTH = 0.02
# The features, at most, with which periods are chosen where features are scarce.
_MIDDLE = 401
# The features with which kernels are searched for, at most.
_MOST_FIRST = 401
# The fewest features to end with, unless their number is given.
_FEWEST = 33
# The largest index of the sums that are used, relative to that of the features, to begin with:
# products of two features take twice, functions of f the rest.
_FIRST_REACH = 4
# The smallest largest index that is used.
_LEAST_REACH = 24
# While hyperparameters move, the gain in nats below which a step of q is the last,
_CLOSE = 2e-3
# the same as a share of what the features leave out,
_CLOSE_SHARE = 2e-4
# and in the end,
_CLOSE_LAST = 1e-5
# and where a period is only looked at.
_ROUGH_SHARE = 2e-2
# The posterior standard deviations by which the last step may move the mean, for each nat that the
# features leave out.
_POLISH_SHARE = 1e-4

Components = tuple[ComponentLattice, ...]


class Data(NamedTuple):
    """What is known of the rows.

    Attributes
    ----------
    statistics : FourierStatistics
        The sums of weights, and of targets, as the likelihood has them.
    constants : (k,)
        The likelihood's totals.
    rows : Rows, optional
        The rows as they were summed, for passes over them.
    """

    statistics: FourierStatistics
    constants: NDArray[np.float64]
    rows: Rows | None = None


class Prior(NamedTuple):
    """The mean of f: μ₀, and a constant beside it if there is one."""

    mean: MeanPrior
    offset: float


@dataclass(frozen=True)
class Stage:
    """Where learning with one feature set ended."""

    kernel: Kernel
    likelihood: Separable
    bound: VariationalBound
    q: Approximation
    components: Components
    converged: bool = True
    at_limit: tuple[str, ...] = ()
    #: Whether learning would go on where the sums do not reach.
    fenced: bool = False
    #: What another step was expected to gain.
    promised: float = 0.0

    @property
    def value(self) -> float:
        """The bound."""
        return self.q.bound.total

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.bound.model.features.num_features


class UnresolvedError(PrecisionError):
    """Functions of f have frequencies that matter beyond those of the sums."""

    def __init__(self) -> None:
        super().__init__(
            "The sums do not reach far enough for functions as rough as the kernel's: fit the "
            "rows themselves, or take a kernel with longer lengthscales or a smaller variance."
        )


class SeparableFitter:
    """Fits lattice features to sums under a likelihood that separates; see `fit`.

    Parameters
    ----------
    data : Data
    likelihood : Separable
        With the dispersion to start from.
    layout : Layout
        The lattices that features are chosen from.
    prior : Prior
        The mean of f.
    """

    def __init__(
        self,
        data: Data,
        likelihood: Separable,
        layout: Layout,
        prior: Prior,
        settings: FitSettings,
        threads: BlasThreads,
    ) -> None:
        mean, offset = prior
        if mean.slope_variance:
            raise InputError(
                f"The {likelihood.known_as} likelihood takes no linear mean function and no "
                "covariates, which are no functions on a torus: use a kernel with a long "
                "lengthscale."
            )
        self._data = data
        self._likelihood = likelihood
        self._layout = layout if likelihood.linear else _halved(layout)
        self._mean = mean
        self._settings = settings
        self._beliefs = replace(settings.beliefs, noise=Noise())
        self._threads = threads
        self._num_steps = 0
        self._offset = offset

    # ------------------------------------------------------------------ fitting

    def fit(self, choice: KernelChoice, previous: Kernel | None = None) -> Fit:
        """Return the fit of a kernel, from what was learned of most rows if there is such."""
        return self.finish(self.stage(choice, previous))

    def stage(self, choice: KernelChoice, previous: Kernel | None = None) -> Stage:
        """Return where learning ends."""
        if not self._settings.learn:
            kernel = choice.kernel if previous is None else previous
            return self._known_kernel(kernel, 1.0)
        if previous is not None:
            stage = self._known_kernel(previous, HEADROOM_LAST)
        else:
            stage = self._first_stage(self._starts(choice))
        return self._settled(stage)

    def _known_kernel(self, kernel: Kernel, headroom: float) -> Stage:
        """Return the stage of a kernel, with fewer features on a longer period if it must be."""
        refused = UnresolvedError()
        for room in (headroom, *(own for own in (HEADROOM_LAST, HEADROOM_FIRST) if own > headroom)):
            try:
                return self._held(kernel, self._final_size, room)
            except UnresolvedError as error:
                refused = error
        size = self._final_size(kernel, self._layout.thinned(kernel, HEADROOM_FIRST))
        while self._settings.num_features is None and size > 2 * _FEWEST:
            size //= 2
            with suppress(UnresolvedError):
                return self._held(kernel, size, HEADROOM_FIRST)
        raise refused

    def _starts(self, choice: KernelChoice) -> list[list[Kernel]]:
        """Return kernels to start from, by shape, one to be tried if that before is unresolved."""
        if not choice.from_name:
            return [[start.kernel] for start in starts_for_kernel(choice.kernel, 0.0)[::2]]
        layout = self._layout
        starts = starts_for_name(choice.kernel, self._data.statistics, layout.width)
        shapes = {start.shape: start.kernel for start in starts}
        return [[with_variance(own, v) for v in _VARIANCES] for own in shapes.values()]

    def _first_stage(self, starts: list[list[Kernel]]) -> Stage:
        """Return the better end of brief searches from the two best kernels."""
        size = min(self._layout.first_features, _MOST_FIRST, self._settings.most_features)
        scored, error = [], None
        for kernels in starts:
            for kernel in kernels:
                try:
                    scored.append(self._held(kernel, size, HEADROOM_FIRST, brief=True))
                    break
                except UnresolvedError as refused:
                    error = refused
        if not scored:
            assert error is not None
            raise error
        scored.sort(key=lambda stage: -stage.value)
        ends = [self._searched(own, size, own.components, _BRIEF) for own in scored[:2]]
        return max(ends, key=lambda stage: stage.value)

    def _settled(self, best: Stage) -> Stage:
        """Learn on until lattice, features and sums are those that the result asks for.

        Where even all features are few, the period is one on which they do best: on a shorter one
        they reach further. Most of the way there takes fewer of them.
        """
        if self._scarce(best):
            most = min(_MIDDLE, self._settings.most_features)
            best = self._placed(self._grown(best, most))
        return self._grown(best, self._settings.most_features)

    def _grown(self, best: Stage, most: int) -> Stage:
        """Return the stage with the lattice and the features, up to `most`, that it asks for."""
        for _ in range(8):
            components, wanted = self._wanted(best, most)
            size = min(wanted, 4 * best.num_features)
            stage = self._resolved(best, size, components)
            if stage is None:
                # The last stage was resolved, and stays.
                return replace(best, fenced=True)
            gain = stage.value - best.value
            if gain > 0 or stage.num_features > best.num_features:
                best = stage
            components, wanted = self._wanted(best, most)
            enough = wanted <= best.num_features + 1
            same = _alike(components, best.components) and stage.converged
            worth = max(SETTLED, -_WORTH * stage.q.bound.trace)
            if self._settings.late() or (enough and (same or gain < worth)):
                break
        return best

    def _resolved(self, best: Stage, size: int, components: Components) -> Stage | None:
        """Return the stage of a lattice and a number of features, or of what sums resolve instead.

        On a longer period as many features reach less far, which sums may resolve.
        """
        longer, before = self._layout.thinned(best.kernel, HEADROOM_LAST), best.num_features
        with suppress(UnresolvedError):
            return self._searched(best, size, components, _LONG)
        options = [] if _alike(components, longer) else [(size, longer)]
        for number in ((size + before) // 2, (size + 3 * before) // 4):
            if number > _SPARE * before:
                options += [(number, components), (number, longer)]
        if not best.converged:
            options.append((before, best.components))
        for number, own in options:
            with suppress(UnresolvedError):
                stage = self._searched(best, number, own, _LONG)
                return replace(stage, fenced=True)
        return None

    def _placed(self, best: Stage) -> Stage:
        """Return the best stage with periods a step longer or shorter along one axis at a time."""
        while not self._settings.late():
            expected = []
            for components in self._layout.beside(best.components):
                with suppress(UnresolvedError):
                    trial = self._searched(best, best.num_features, components, 1)
                    expected.append((trial.value + trial.promised, trial))
            value, trial = max(expected, key=lambda own: own[0], default=(-np.inf, best))
            if value <= best.value:
                break
            try:
                trial = self._searched(trial, best.num_features, trial.components, _BRIEF)
            except UnresolvedError:
                # A rough search may have ended where a closer one is not resolved.
                break
            if trial.value <= best.value:
                break
            best = trial
        return best

    def _wanted(self, stage: Stage, most: int) -> tuple[Components, int]:
        """Return the lattice, and the number of features up to `most`, to go on with."""
        components = self._layout.thinned(stage.kernel, HEADROOM_LAST)
        if self._scarce(stage):
            # Longer lengthscales are not worth a longer period, on which features reach less far.
            components = self._layout.no_longer(components, stage.components)
        size = self._final_size(stage.kernel, components, stage)
        if self._settings.num_features is None and size > stage.num_features + 1:
            # A kernel learned with more features asks for some more.
            size = min(int(_SPARE * size), self._settings.max_features)
        return components, min(size, most)

    def _scarce(self, stage: Stage) -> bool:
        """Return whether its lattice takes more features than there may be."""
        wanted = self._sufficient(stage.kernel, stage.components, stage)
        return wanted > self._settings.most_features

    # ------------------------------------------------------------------ stages

    def _held(self, kernel: Kernel, size: Any, headroom: float, *, brief: bool = False) -> Stage:
        """Return the stage that leaves the hyperparameters as they are."""
        components = self._layout.thinned(kernel, headroom)
        number = size if isinstance(size, int) else size(kernel, components)
        bound = self._bound(kernel, self._likelihood, number, components)
        limit = {"max_steps": _FIRST_STEPS, "tolerance": SETTLED} if brief else {}
        q = bound.ascend(kernel, self._likelihood, **limit)
        self._num_steps += bound.num_steps
        if not bound.resolved:
            raise UnresolvedError()
        return Stage(kernel, self._likelihood, bound, q, components)

    def _searched(
        self, start: Stage, size: int, components: Components, max_evaluations: int
    ) -> Stage:
        """Return the stage that learns the hyperparameters, from where another ended."""
        kernel, likelihood = start.kernel, start.likelihood
        bound = self._bound(kernel, likelihood, size, components, start)
        lower, upper = self._limits(bound)
        vector = pack(kernel, bound.slots)
        if bound.dispersed:
            vector = np.append(vector, np.log(likelihood.dispersion))
        share = _CLOSE_SHARE if max_evaluations > 1 else _ROUGH_SHARE
        fenced, close = False, max(_CLOSE, -share * start.q.bound.trace)
        ends: list[tuple[float, Approximation]] = []

        def evaluate(vector: NDArray[np.float64]) -> Evaluation | None:
            nonlocal fenced
            found = None
            with suppress(PrecisionError):
                found = bound.evaluation(vector, close)
            if found is None or not bound.resolved or bound.q is None:
                fenced = True
                return None
            ends.append((found.value, bound.q))
            # The last entry is that of a noise variance, which there is none of.
            prior = self._beliefs.log_prior(bound.slots, np.append(vector, 0.0)[:size_of_prior])
            own = slice(len(vector))
            return found.with_prior(LogPrior(prior.value, prior.gradient[own], prior.bend[own]))

        size_of_prior = len(lower) + (not bound.dispersed)
        vector = np.clip(vector, lower, upper)
        first = evaluate(vector)
        if first is None:
            self._num_steps += bound.num_steps
            raise UnresolvedError()
        lost = start.value - ends[0][0]
        if max_evaluations > 1 and lost > max(-2 * start.q.bound.trace, SETTLED):
            # As many features on a longer period leave out more than they can gain.
            self._num_steps += bound.num_steps
            more = size > start.num_features + 1 or not start.converged
            if not more or _alike(components, start.components):
                return start
            return self._searched(start, size, start.components, max_evaluations)
        found = None
        if len(vector):
            little = max(_SETTLED, -_LITTLE * start.q.bound.trace)
            budget = Budget(max_evaluations, self._settings.late, little)
            found = ascend(evaluate, vector, (lower, upper), budget, first=first)
            assert found is not None
            vector = found.x
        kernel, likelihood = bound.split(vector)
        names = self._layout.names_at_limit(bound.kernel, components, vector, (lower, upper))
        self._num_steps += bound.num_steps
        q = max(ends, key=lambda end: end[0])[1]
        if found is None:
            return Stage(kernel, likelihood, bound, q, components)
        fenced = fenced and found.promised > SETTLED
        ended = found.converged, names, fenced, found.promised
        return Stage(kernel, likelihood, bound, q, components, *ended)

    def _bound(
        self,
        kernel: Kernel,
        likelihood: Separable,
        size: int,
        components: Components,
        like: Stage | None = None,
    ) -> VariationalBound:
        """Return the bound for a number of features, close to where another stage ended."""
        features = self._layout.select(kernel, components, size, self._mean)
        assert isinstance(features, Lattice)
        data = self._data
        before = None if like is None else like.bound.model
        ratio, fall = np.full(len(self._layout.width), float(_FIRST_REACH)), None
        if before is not None and isinstance(before.measure, TorusMeasure):
            ratio = np.maximum(ratio, before.measure.reach / np.maximum(before.reach, 1))
            fall = before.measure.fall
        rows = None
        if data.rows is not None:
            rows = RowMeasure(features.lattice, data.rows, self._threads.num_threads)
        known, measure = self._known(features), rows
        if rows is None or before is None or isinstance(before.measure, TorusMeasure):
            # Once the rows themselves were needed, they will be.
            measure = self._measure(features, ratio, fall, rows)
        assert measure is not None
        model = Model(features, likelihood, measure, known, data.constants, self._offset, rows)
        bound = VariationalBound(model, kernel, self._threads, self._settings.late)
        if like is None or before is None:
            return bound
        same = np.array_equal(before.features.lattice.spacing, features.lattice.spacing)
        if isinstance(measure, RowMeasure) and isinstance(before.measure, RowMeasure):
            bound.begin_at(likelihood, *like.bound.marginals(like.q, like.kernel))
        # A grid for fewer features may be too coarse for the variances of more.
        elif (
            same and isinstance(measure, TorusMeasure) and np.all(2 * before.reach <= measure.reach)
        ):
            bound.begin_from(like.q, likelihood, features.residual(kernel))
        return bound

    def _measure(
        self,
        features: Lattice,
        ratio: NDArray[np.float64],
        fall: NDArray[np.float64] | None,
        rows: RowMeasure | None,
    ) -> Measure:
        """Return what stands for the rows; sums reach so many times as far as the features."""
        whole = self._data.statistics
        largest = np.abs(features.indices).max(axis=0)
        reach = np.maximum(np.ceil(ratio * largest).astype(np.int64), _LEAST_REACH)
        reach = np.minimum(reach, self._known(features))
        if rows is not None and too_fine(reach, rows):
            return rows
        return TorusMeasure(whole.decimate(self._steps(features)), reach, self._layout.box, fall)

    def _known(self, features: Lattice) -> NDArray[np.int64]:
        """Return the largest index of the sums that functions of f are multiplied by."""
        whole = self._data.statistics.lattice
        extent = whole.extent // self._steps(features)
        return 2 * extent if self._likelihood.linear else extent

    def _steps(self, features: Lattice) -> NDArray[np.int64]:
        spacing = self._data.statistics.lattice.spacing
        return np.rint(features.lattice.spacing / spacing).astype(np.int64)

    def _limits(self, bound: VariationalBound) -> Limits:
        features, kernel = bound.model.features, bound.kernel
        component = replace_lattice(self._layout, features)
        limits = self._layout.limits(kernel, component, NOISE_FLOOR)
        lower, upper = self._beliefs.within(bound.slots, limits)
        ends = np.log(DISPERSIONS) if bound.dispersed else np.empty((2, 0))
        # The last are those of a noise variance, which there is none of.
        return np.append(lower[:-1], ends[0]), np.append(upper[:-1], ends[1])

    def _final_size(
        self, kernel: Kernel, components: Components, stage: Stage | None = None
    ) -> int:
        """Return the number of features to end with."""
        settings = self._settings
        if settings.num_features is not None:
            return settings.num_features
        wanted = self._sufficient(kernel, components, stage)
        return min(max(wanted, _FEWEST), settings.max_features)

    def _sufficient(
        self, kernel: Kernel, components: Components, stage: Stage | None = None
    ) -> int:
        """Return how many features keep what they leave out within what is allowed."""
        precision = self._data.statistics.count
        if stage is not None:
            precision = max(stage.q.precision_total, 1e-6)
        allowed = 2 * ALLOWED_TRACE / precision
        return self._layout.required_features(kernel, components, allowed)[0]

    # ------------------------------------------------------------------ the end

    def finish(self, stage: Stage) -> Fit:
        """Return the fit of a stage."""
        bound, kernel, likelihood = stage.bound, stage.kernel, stage.likelihood
        # What the features leave out moves means by far more than this.
        left_out = -stage.q.bound.trace
        polish = float(np.clip(_POLISH_SHARE * left_out, POLISHED, ALLOWED_CUT))
        close = max(CONVERGED, _CLOSE_LAST * left_out)
        q = bound.ascend(kernel, likelihood, tolerance=close, polish=polish)
        cut = bound.cut_errors(q, kernel, likelihood)
        features, model = bound.model.features, bound.model
        solution = Solution(q.mean[:, None], q.chol)
        box = self._layout.box_around(features.lattice.centre)
        posterior = Posterior(features, kernel, 1.0, solution, box)
        passes = not isinstance(model.measure, TorusMeasure)
        upper = Bound(0.0 if likelihood.whole else np.inf, 0.0, 0.0)
        return Fit(
            kernel=kernel,
            noise_variance=1.0,
            elbo=q.bound,
            tightened=q.bound,
            upper=upper,
            certificate=Certificate(
                q.bound.total,
                upper.total,
                float(cut.mean),
                float(cut.variance),
                float(cut.variance),
                "estimate",
                tolerance=self._settings.tolerance,
                wrap_error=self._layout.wrap_error(kernel, features),
            ),
            status=self._status(stage, q, cut),
            converged=stage.converged,
            num_evaluations=self._num_steps,
            rows=self._data.statistics.rows,
            posterior=posterior.over,
            num_features=features.num_features,
            features=features,
            period=features.lattice.period,
            likelihood=likelihood,
            passes=self._num_steps if passes else 1,
        )

    def _status(self, stage: Stage, q: Approximation, cut: CutErrors) -> str:
        """Return how the fit ended and what to do about it."""
        loss, settings = -q.bound.trace, self._settings
        sentences = [f"{stage.num_features} features cost the bound {loss:.2g} nats."]
        if settings.late():
            sentences.append("The time ran out: raise max_seconds to go on.")
        elif loss > 2 * ALLOWED_TRACE and settings.num_features is None:
            sentences.append("A larger max_features or a smoother kernel would lose less.")
        elif loss > 2 * ALLOWED_TRACE:
            sentences.append('More, or num_features="auto", would lose less.')
        if not isinstance(stage.bound.model.measure, TorusMeasure):
            sentences.append("For a function so rough and rows so few, the rows were read instead.")
        elif max(cut) > ALLOWED_CUT:
            sentences.append(
                f"Frequencies beyond the sums can move means by {cut.mean:.1e} posterior sd: take "
                "a smoother kernel, or fit the rows themselves."
            )
        if stage.fenced:
            sentences.append(
                "The sums do not reach far enough for a rougher function, which would fit better: "
                "fit the rows themselves."
            )
        if not (stage.converged or settings.late()):
            sentences.append(
                "Learning stopped before it settled: the hyperparameters may still move a little."
            )
        if stage.at_limit:
            named = listed_limits(stage.at_limit)
            sentences.append(
                f"The {named} ended at a limit: give a larger `domain` or another mean function if "
                "that matters."
            )
        return " ".join(sentences)


def _halved(layout: Layout) -> Layout:
    """Return the layout whose features have products within the extent of the sums.

    Where y multiplies functions of f, its sums limit the products, and not those of one alone.
    """
    (component,) = layout.components
    whole = component.lattice
    lattice = FrequencyLattice(whole.spacing, np.maximum(whole.extent // 2, 1), whole.centre)
    halved = ComponentLattice(component.columns, lattice, lattice.half_indices())
    return replace(layout, components=(halved,))


def _alike(components: Components, others: Components) -> bool:
    """Return whether two lattices have the same periods."""
    pairs = zip(components, others, strict=True)
    return all(np.array_equal(own.lattice.spacing, other.lattice.spacing) for own, other in pairs)


def replace_lattice(layout: Layout, features: Lattice) -> Sequence[Any]:
    """Return the layout's only component on the lattice of features."""
    (component,) = layout.components
    step = np.rint(features.lattice.spacing / component.lattice.spacing).astype(np.int64)
    return (component.decimate(step),)
