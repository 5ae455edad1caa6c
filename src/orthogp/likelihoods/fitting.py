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
from orthogp.inference.parameters import Beliefs, pack
from orthogp.inference.posterior import Posterior, Solution
from orthogp.inference.separable import DISPERSIONS, Separable
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.terms import KernelChoice
from orthogp.learning.dense import HEADROOM_FIRST, HEADROOM_LAST, SETTLED
from orthogp.learning.layout import Layout, Limits
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.learning.optimise import Budget, Maximum, maximise, search
from orthogp.learning.problem import Fit, FitSettings
from orthogp.learning.starts import starts_for_kernel, starts_for_name, with_variance
from orthogp.likelihoods.measures import Measure, RowMeasure, TorusMeasure
from orthogp.likelihoods.variational import (
    ALLOWED_CUT,
    Approximation,
    CutErrors,
    Model,
    VariationalBound,
)
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics

#: The trace term, in nats, that the final features may leave.
ALLOWED_TRACE = 0.05
#: The most features by default: each of some hundred steps factorises a matrix of this size.
MAX_FEATURES = 1000

# Prior variances of f to start from.
_VARIANCES = (0.3, 1.5, 8.0)
# Steps by which starting values are compared.
_FIRST_STEPS = 8
# Iterations of the searches from the best two starting values,
_BRIEF = 12
# and from the better end of them.
_LONG = 40
# The features with which kernels are searched for, at most.
_MOST_FIRST = 401
# The fewest features to end with, unless their number is given.
_FEWEST = 33
# The largest index of the sums that are used, relative to that of the features, to begin with:
# products of two features take twice, functions of f the rest.
_FIRST_REACH = 4
# The smallest largest index that is used.
_LEAST_REACH = 24
# The curvature, in nats, of the slope that leads back to where the sums resolve the bound.
_STEEP = 1e4


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
    curvature: NDArray[np.float64] | None = None
    converged: bool = True
    at_limit: tuple[str, ...] = ()

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


class Fenced:
    """A bound that is believed where the sums resolve it, with a slope beyond that leads back."""

    def __init__(self, bound: VariationalBound, beliefs: Beliefs) -> None:
        self._bound = bound
        self._beliefs = beliefs
        self._good: tuple[NDArray[np.float64], float] | None = None

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the bound and its gradient."""
        found = None
        with suppress(PrecisionError):
            found = self._bound.value_and_gradient(vector)
        if found is not None and self._bound.resolved:
            size = len(vector) - self._bound.dispersed
            # The last entry is that of a noise variance, which there is none of.
            prior = self._beliefs.log_prior(self._bound.slots, np.append(vector[:size], 0.0))
            value, gradient = found[0] + prior.value, found[1]
            gradient[:size] += prior.gradient[:-1]
            self._good = vector.copy(), value
            return value, gradient
        if self._good is None:
            raise UnresolvedError()
        back = vector - self._good[0]
        return self._good[1] - _STEEP * float(back @ back), -2 * _STEEP * back


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
        self._layout = layout
        self._mean = mean
        self._settings = settings
        self._beliefs = replace(settings.beliefs, noise=Noise())
        self._threads = threads
        self._num_steps = 0
        self._passes = False
        self._offset = offset

    # ------------------------------------------------------------------ fitting

    def fit(self, choice: KernelChoice, previous: Kernel | None = None) -> Fit:
        """Return the fit of a kernel, from what was learned of most rows if there is such."""
        try:
            return self._fit(choice, previous)
        except UnresolvedError:
            if self._data.rows is None:
                raise
        self._passes = True
        return self._fit(choice, previous)

    def _fit(self, choice: KernelChoice, previous: Kernel | None) -> Fit:
        if not self._settings.learn:
            stage = self._held(choice.kernel, self._likelihood, self._final_size, 1.0)
            return self._finish(stage)
        if previous is not None:
            stage = self._held(previous, self._likelihood, self._final_size, HEADROOM_LAST)
        else:
            stage = self._first_stage(self._starts(choice))
        return self._finish(self._settled(stage))

    def _starts(self, choice: KernelChoice) -> list[Kernel]:
        if not choice.from_name:
            return [start.kernel for start in starts_for_kernel(choice.kernel, 0.0)[::2]]
        layout = self._layout
        starts = starts_for_name(choice.kernel, self._data.statistics, layout.width)
        shapes = {start.shape: start.kernel for start in starts}
        return [with_variance(own, v) for own in shapes.values() for v in _VARIANCES]

    def _first_stage(self, kernels: list[Kernel]) -> Stage:
        """Search briefly from the two best kernels, then fully from the better end."""
        size = min(self._layout.first_features, _MOST_FIRST, self._settings.most_features)
        scored, error = [], None
        for kernel in kernels:
            try:
                scored.append(self._held(kernel, self._likelihood, size, HEADROOM_FIRST, True))
            except UnresolvedError as refused:
                error = refused
        if not scored:
            assert error is not None
            raise error
        scored.sort(key=lambda stage: -stage.value)
        ends = [self._searched(stage, size, _BRIEF) for stage in scored[:2]]
        best = max(ends, key=lambda stage: stage.value)
        for _ in range(3):
            if best.converged:
                break
            stage = self._searched(best, size, _LONG)
            gain, best = stage.value - best.value, stage if stage.value > best.value else best
            if gain < SETTLED or self._settings.late():
                break
        return best

    def _settled(self, best: Stage) -> Stage:
        """Learn on until lattice, features and sums are those that the result asks for."""
        for _ in range(8):
            size = min(self._final_size(best.kernel, best), 4 * best.num_features)
            try:
                stage = self._searched(best, size, _LONG, headroom=HEADROOM_LAST, refined=True)
            except UnresolvedError:
                # The last stage was resolved, and stays.
                break
            gain = stage.value - best.value
            grown = stage.num_features > best.num_features
            if gain > 0 or grown:
                best = stage
            if self._settings.late():
                break
            if gain < SETTLED and self._final_size(best.kernel, best) <= best.num_features + 1:
                break
        return best

    # ------------------------------------------------------------------ stages

    def _held(
        self, kernel: Kernel, likelihood: Separable, size: Any, headroom: float, brief: bool = False
    ) -> Stage:
        """Return the stage that leaves the hyperparameters as they are."""
        number = size if isinstance(size, int) else size(kernel)
        bound = self._bound(kernel, likelihood, number, headroom)
        limit = {"max_steps": _FIRST_STEPS, "tolerance": SETTLED} if brief else {}
        q = bound.ascend(kernel, likelihood, **limit)
        self._num_steps += bound.num_steps
        if not bound.resolved:
            raise UnresolvedError()
        return Stage(kernel, likelihood, bound, q)

    def _searched(
        self,
        start: Stage,
        size: int,
        max_iterations: int,
        *,
        headroom: float = HEADROOM_FIRST,
        refined: bool = False,
    ) -> Stage:
        """Return the stage that learns the hyperparameters, from where another ended."""
        kernel, likelihood = start.kernel, start.likelihood
        bound = self._bound(kernel, likelihood, size, headroom, start)
        lower, upper = self._limits(bound)
        vector = pack(kernel, bound.slots)
        if bound.dispersed:
            vector = np.append(vector, np.log(likelihood.dispersion))
        vector = np.clip(vector, lower, upper)
        if len(vector) == 0:
            return self._held(kernel, likelihood, size, headroom)
        budget = Budget(max_iterations, self._settings.late)
        objective, box = Fenced(bound, self._beliefs), (lower, upper)
        found: Maximum
        if refined and start.curvature is not None:
            found = maximise(objective, vector, box, budget, curvature=start.curvature)
        else:
            found = search(objective, vector, box, budget)
        kernel, likelihood = bound.split(found.x)
        self._num_steps += bound.num_steps
        components = self._layout.thinned(kernel, 1.0)
        limits = (lower[: len(found.x)], upper[: len(found.x)])
        names = self._layout.names_at_limit(bound.kernel, components, found.x, limits)
        q = bound.ascend(kernel, likelihood)
        return Stage(kernel, likelihood, bound, q, found.curvature, found.converged, names)

    def _bound(
        self,
        kernel: Kernel,
        likelihood: Separable,
        size: int,
        headroom: float,
        like: Stage | None = None,
    ) -> VariationalBound:
        """Return the bound for a number of features, close to where another stage ended."""
        components = self._layout.thinned(kernel, headroom)
        features = self._layout.select(kernel, components, size, self._mean)
        assert isinstance(features, Lattice)
        data = self._data
        ratio = np.full(len(self._layout.width), float(_FIRST_REACH))
        if like is not None and isinstance(like.bound.model.measure, TorusMeasure):
            model = like.bound.model
            ratio = np.maximum(ratio, like.bound.model.measure.reach / np.maximum(model.reach, 1))
        measure, known = self._measure(features, ratio), self._known(features)
        model = Model(features, likelihood, measure, known, data.constants, self._offset)
        bound = VariationalBound(model, kernel, self._threads, self._settings.late)
        if like is not None:
            before = like.bound.model
            same = np.array_equal(before.features.lattice.spacing, features.lattice.spacing)
            # A grid for fewer features may be too coarse for the variances of more.
            fine = not isinstance(measure, TorusMeasure) or np.all(
                2 * before.reach <= measure.reach
            )
            if same and fine:
                bound.begin_from(like.q, likelihood, features.residual(kernel))
        return bound

    def _measure(self, features: Lattice, ratio: NDArray[np.float64]) -> Measure:
        """Return what stands for the rows; sums reach so many times as far as the features."""
        data = self._data
        if self._passes:
            assert data.rows is not None
            return RowMeasure(features.lattice, data.rows, self._threads.num_threads)
        whole = data.statistics
        steps = np.rint(features.lattice.spacing / whole.lattice.spacing).astype(np.int64)
        statistics = whole.decimate(steps)
        largest = np.abs(features.indices).max(axis=0)
        reach = np.maximum(np.ceil(ratio * largest).astype(np.int64), _LEAST_REACH)
        return TorusMeasure(statistics, np.minimum(reach, self._known(features)))

    def _known(self, features: Lattice) -> NDArray[np.int64]:
        """Return the largest index of the sums that functions of f are multiplied by."""
        extent = features.lattice.extent
        return 2 * extent if self._likelihood.linear else extent

    def _limits(self, bound: VariationalBound) -> Limits:
        features, kernel = bound.model.features, bound.kernel
        component = replace_lattice(self._layout, features)
        limits = self._layout.limits(kernel, component, NOISE_FLOOR)
        lower, upper = self._beliefs.within(bound.slots, limits)
        ends = np.log(DISPERSIONS) if bound.dispersed else np.empty((2, 0))
        # The last are those of a noise variance, which there is none of.
        return np.append(lower[:-1], ends[0]), np.append(upper[:-1], ends[1])

    def _final_size(self, kernel: Kernel, stage: Stage | None = None) -> int:
        """Return the number of features to end with."""
        settings = self._settings
        if settings.num_features is not None:
            return settings.num_features
        precision = self._data.statistics.count
        if stage is not None:
            precision = max(stage.q.precision_total, 1e-6)
        components = self._layout.thinned(kernel, HEADROOM_LAST)
        allowed = 2 * ALLOWED_TRACE / precision
        wanted, _ = self._layout.required_features(kernel, components, allowed)
        return min(max(wanted, _FEWEST), settings.max_features)

    # ------------------------------------------------------------------ the end

    def _finish(self, stage: Stage) -> Fit:
        bound, kernel, likelihood = stage.bound, stage.kernel, stage.likelihood
        q = bound.ascend(kernel, likelihood, polish=True)
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
        elif loss > 2 * ALLOWED_TRACE:
            sentences.append("A larger max_features or a smoother kernel would lose less.")
        if self._passes:
            sentences.append(
                "The sums do not reach far enough for a function so rough: the rows were read in "
                "passes."
            )
        elif max(cut) > ALLOWED_CUT:
            sentences.append(
                f"Frequencies beyond the sums can move means by {cut.mean:.1e} posterior sd: take "
                "a smoother kernel, or fit the rows themselves."
            )
        if not (stage.converged or settings.late()):
            sentences.append(
                "Learning stopped before it settled: the hyperparameters may still move a little."
            )
        if stage.at_limit:
            named = " and ".join(stage.at_limit)
            sentences.append(f"The {named} ended at a limit: see `domain` and `mean`.")
        return " ".join(sentences)


def replace_lattice(layout: Layout, features: Lattice) -> Sequence[Any]:
    """Return the layout's only component on the lattice of features."""
    (component,) = layout.components
    step = np.rint(features.lattice.spacing / component.lattice.spacing).astype(np.int64)
    return (component.decimate(step),)
