"""Lattice features by a dense solver: stages, growth of the feature set, and a certificate.

Nothing here sees the rows. The parameters are logarithms, and since B has eigenvalues ≥ 1 no step
can meet a NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.features import AdditiveLattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import LatticeFeatures
from orthogp.inference.bounds import (
    Bound,
    Certificate,
    one_pass_bound,
    titsias_bound,
    upper_bound,
)
from orthogp.inference.certificates import (
    MOST_STEPS,
    enough_modes,
    judge,
    judge_components,
    points_around,
    points_over,
)
from orthogp.inference.component_posterior import AdditivePosterior, target_shares
from orthogp.inference.moments import Moments
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import pack
from orthogp.inference.posterior import ComponentSums, Posterior, Solution
from orthogp.kernels import Kernel
from orthogp.learning.layout import Layout, Limits
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.learning.optimise import (
    Budget,
    Maximum,
    curvature_at,
    maximise,
    refine,
    resolved,
    search,
)
from orthogp.learning.problem import Ending, Fit, FitSettings, Start, describe
from orthogp.precision import BlasThreads, one_thread
from orthogp.statistics import AdditiveStatistics, Statistics
from orthogp.statistics.nufft import TOLERANCE

#: The most features of the first stage of a joint model.
MOST_FIRST_FEATURES = 601
#: The trace term, in nats, at which a certificate is expected to hold.
ALLOWED_TRACE = 0.005
#: The relative error that bounds are credited with: ten times the transforms' tolerance.
ROUNDING = 10 * TOLERANCE
# The share of the certificate's tolerance that the difference between the prior of the lattice and
# the kernel may take, by a bound that is pessimistic itself.
_SHARE_OF_WRAP = 0.1
# How much larger ε of a Markov process is than its wrap error, about.
_RATIO_TO_WRAP = 8.0
# The number of variances, from the least to the prior's, and of points, at which errors of several
# components are looked at; of one component, the number of points that are looked at closely.
_NUM_VARIANCES = 64
# The smallest difference, relative to k(0), that is asked for: rounding hides smaller ones.
_LEAST_WRAP = 1e-14
#: A change of features or period that gains fewer nats than this is the last.
SETTLED = 0.01

# The most features of the first stage of an additive model.
_MOST_FIRST_ADDITIVE = 1001
# The most starts of an additive model, each of another shape, that are searched from.
_CANDIDATES = 4
# The features by which those starts are compared.
_SCORED_FEATURES = 257
# The features with which they are searched from.
_BRIEF_FEATURES = 601
# Up to this number of parameters the curvature is measured by differences, an evaluation for each.
# Near the end that pays off: real data have another curvature than the expected one.
_FEW_PARAMETERS = 40

# The iterations of a search that follows where refining has not converged.
_SEARCHED_AGAIN = 25

# How much longer lengthscales may become before the period must: generous at first, when they are
# but guessed, and tight at the end, when every feature counts.
HEADROOM_FIRST, HEADROOM_LAST = 1.5, 1.1


@dataclass(frozen=True)
class Stage:
    """One search at a fixed feature set: where it ended, and how."""

    best: Start
    maximum: Maximum
    objective: LatticeObjective
    at_limit: tuple[str, ...]
    searched: bool = False

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.objective.features.num_features


class Fitter:
    """Fits lattice features to the statistics of standardised targets; see `fit`.

    Parameters
    ----------
    width : (d,)
        The extent of the rows, and of what else is to be covered, in each column.
    layout : Layout, optional
        The lattices of an additive model's components.
    """

    def __init__(
        self,
        statistics: Statistics,
        width: NDArray[np.float64],
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads | None = None,
        layout: Layout | None = None,
    ) -> None:
        if layout is None:
            layout = Layout(statistics.components, width, settings.wrap_tolerance)
        self.statistics = statistics
        self.layout = layout
        self.mean = mean
        self.settings = settings
        self._threads = BlasThreads(1) if threads is None else threads
        self._num_evaluations = 0
        self._noise_floor = NOISE_FLOOR * settings.noise_unit
        self._final: Stage | None = None

    @property
    def curvature(self) -> NDArray[np.float64] | None:
        """The curvature of the bound where learning ended, if it did not end with a search."""
        if self._final is None or self._final.searched:
            return None
        return self._final.maximum.curvature

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        if not self.settings.learn:
            return self._finish(starts[0], None)
        return self.complete(self.begin(starts))

    def begin(self, starts: list[Start]) -> Stage:
        """Return the first stage: the best of the starting values, learned with few features."""
        if starts[0].rows > self.statistics.count / 2 / self.settings.noise_unit:
            return self._resumed_stage(starts[0])
        return self._first_stage(starts, self._first_features(starts))

    def complete(self, stage: Stage) -> Fit:
        """Return the fit that a first stage leads to."""
        target, present = self._wanted_features(stage.best), stage.num_features
        if target > 4 * present:
            stage = self._later_stage(stage, int(np.sqrt(target * present)))
        stage = self._settle(stage)
        return self._finish(stage.best, stage)

    def resume(self, start: Start) -> Fit:
        """Return the fit close to hyperparameters that are known to be good."""
        stage = self._settle(self._resumed_stage(start))
        return self._finish(stage.best, stage)

    def certified_features(self, start: Start) -> int:
        """Return how many features a certificate takes."""
        return self._certified_features(start)[0]

    # ------------------------------------------------------------------ other hyperparameters

    def evidence(self, start: Start, num_features: int, room: float) -> LatticeObjective:
        """Return the bound as a function of hyperparameters around a start.

        Periods leave room for lengthscales to grow by a factor.
        """
        return self._objective(start, num_features, room)

    def limits_of(self, objective: LatticeObjective, kernel: Kernel) -> Limits:
        """Return the limits of the hyperparameters of a bound."""
        return self._limits(objective, kernel)

    def posterior_of(self, objective: LatticeObjective, at: Start) -> Posterior:
        """Return the posterior of other hyperparameters with the features of a bound."""
        moments, noise = objective.moments(at.kernel), at.noise_variance
        solution = Solution.of(moments, noise)
        if self.layout.joint:
            (features,) = objective.features.parts
            box = self.layout.box_around(features.lattice.centre)
            return Posterior(features, at.kernel, noise, solution, box)
        features = cast("AdditiveLattice", objective.features)
        return self._additive(features, objective, at, solution, moments)

    # ------------------------------------------------------------------ stages

    def _first_stage(self, starts: list[Start], num_features: int) -> Stage:
        """Search briefly from the best starts, then fully from the best end."""
        candidates = starts[:1]
        if not self.layout.joint:
            candidates = self._best_of_shapes(starts, num_features)
        elif len(starts) > 1:
            scores = self._scores(starts, num_features)
            candidates = [starts[i] for i in np.argsort(scores)[::-1][:2]]
        brief = [self._search(start, num_features, max_iterations=12) for start in candidates]
        best = max(brief, key=lambda stage: stage.maximum.value)
        for _ in range(4):
            stage = self._search(best.best, num_features, max_iterations=40)
            if stage.maximum.value <= best.maximum.value:
                break
            best = stage
            # A lengthscale that met its limit may go on with a longer period.
            limited = any(name.startswith("lengthscale") for name in stage.at_limit)
            if not limited or self._longest(stage.objective) or self.settings.late():
                break
        return best

    def _best_of_shapes(self, starts: list[Start], num_features: int) -> list[Start]:
        """Search from the best start of each shape, and return where the best search ended.

        With many parameters the bound has several maxima, and the scores of the starts say little
        about which maximum is the highest.
        """
        scores = self._scores(starts, min(num_features, _SCORED_FEATURES))
        by_shape: dict[int, int] = {}
        for i in np.argsort(scores)[::-1]:
            by_shape.setdefault(starts[i].shape, int(i))
        chosen = [starts[i] for i in list(by_shape.values())[:_CANDIDATES]]
        if self.settings.late():
            return chosen[:1]
        few = min(num_features, _BRIEF_FEATURES)
        ends = [self._search(start, few, max_iterations=25) for start in chosen]
        return [max(ends, key=lambda end: end.maximum.value).best]

    def _resumed_stage(self, start: Start) -> Stage:
        """Refine hyperparameters that most of these rows have taught, with all features at once.

        With few features the bound has other maxima, and the way there would lose a good start.
        """

        def method(objective: LatticeObjective, vector, box: Limits) -> Maximum:
            if self.layout.joint:
                curvature = self._measured(objective, vector, box)
            else:
                curvature = objective.curvature(vector)
            return self._refined(objective, vector, box, curvature)

        return self._stage(start, self._wanted_features(start), HEADROOM_LAST, method)

    def _measured(self, objective: LatticeObjective, vector, box: Limits) -> NDArray[np.float64]:
        """Return the curvature of the bound by differences of its gradient."""
        _, gradient = objective.value_and_gradient(vector)
        return curvature_at(objective.value_and_gradient, vector, gradient, *box)

    def _first_features(self, starts: list[Start]) -> int:
        """Return the size of the first stage, larger for a kernel whose values ask for more.

        Too few features would starve the short scales in a sum of long and short.
        """
        few = self.layout.first_features
        if not self.layout.joint:
            return min(max(few, 33), _MOST_FIRST_ADDITIVE, self.settings.most_features)
        if all(start.from_user for start in starts):
            few = min(max(few, self._wanted_features(starts[0])), MOST_FIRST_FEATURES)
        return min(few, self.settings.most_features)

    def _scores(self, starts: list[Start], num_features: int) -> list[float]:
        """Return the bound at each start, within its limits; −∞ where precision fails."""
        scores, objectives = [], {}
        for start in starts:
            if start.shape not in objectives:
                objective = self._objective(start, num_features, HEADROOM_FIRST)
                objectives[start.shape] = objective, self._limits(objective, start.kernel)
            objective, (lower, upper) = objectives[start.shape]
            try:
                vector = np.clip(_vector(start, objective), lower, upper)
                scores.append(objective.value_and_gradient(vector)[0])
            except PrecisionError:
                scores.append(-np.inf)
        return scores

    def _search(self, start: Start, num_features: int, *, max_iterations: int) -> Stage:
        """Search from a start that may be far from the maximum."""

        def method(objective: LatticeObjective, vector, box: Limits) -> Maximum:
            # Differences of gradients would cost an evaluation for each of many parameters.
            curvature = None if self.layout.joint else objective.curvature(vector)
            budget = Budget(max_iterations, self.settings.late)
            return search(objective.value_and_gradient, vector, box, budget, curvature=curvature)

        stage = self._stage(start, num_features, HEADROOM_FIRST, method)
        return replace(stage, searched=True)

    def _later_stage(self, previous: Stage, num_features: int) -> Stage:
        """Refine at a larger feature set, from the curvature that the previous stage knew."""
        if self.settings.late():
            return previous

        def method(objective: LatticeObjective, vector, box: Limits) -> Maximum:
            curvature, x = previous.maximum.curvature, previous.maximum.x
            if previous.searched and len(x) > _FEW_PARAMETERS:
                curvature = previous.objective.curvature(x)
            elif previous.searched:
                # The search measured it where it began; measure it where it ended.
                curvature = self._measured(previous.objective, x, box)
            return self._refined(objective, vector, box, curvature)

        return self._stage(previous.best, num_features, HEADROOM_LAST, method)

    def _refined(self, objective: LatticeObjective, vector, box: Limits, curvature) -> Maximum:
        """Return the maximum close to a vector, searched for only if it is not that close."""
        value_and_gradient, late = objective.value_and_gradient, self.settings.late
        if len(vector) <= _FEW_PARAMETERS:
            budget = Budget(_SEARCHED_AGAIN, late)
            return maximise(value_and_gradient, vector, box, budget, curvature=curvature)
        found = refine(value_and_gradient, vector, box, curvature, Budget(12, late))
        if found.converged or late():
            return found
        known = None if self.layout.joint else objective.curvature(found.x)
        budget = Budget(_SEARCHED_AGAIN, late)
        return search(value_and_gradient, found.x, box, budget, curvature=known)

    def _settle(self, best: Stage) -> Stage:
        """Refine until the period and the features chosen for the result are those it came from."""
        for _ in range(6):
            target = self._wanted_features(best.best)
            stage = self._later_stage(best, target)
            gain = stage.maximum.value - best.maximum.value
            # More features or another period may also lose: all values bound the same quantity.
            if gain > 0 or stage.num_features > best.num_features:
                best = stage
            if self.settings.late() or (gain < SETTLED and target <= best.num_features + 1):
                break
        return best

    def _stage(self, start: Start, num_features: int, headroom: float, method) -> Stage:
        """Maximise the bound at a fixed feature set by `method(objective, start, box)`."""
        objective = self._objective(start, num_features, headroom)
        components = objective.statistics.components
        maximum, box, self._noise_floor = resolved(
            partial(method, objective),
            _vector(start, objective),
            partial(self._limits, objective, start.kernel),
            self._noise_floor,
        )
        stage = Stage(
            Start(objective.kernel_at(maximum.x), float(np.exp(maximum.x[-1]))),
            maximum,
            objective,
            self.layout.names_at_limit(objective.kernel, components, maximum.x, box),
        )
        objective.release()
        self._num_evaluations += maximum.num_evaluations
        return stage

    def _objective(
        self, start: Start, num_features: int, headroom: float, layout: Layout | None = None
    ) -> LatticeObjective:
        layout = layout or self.layout
        statistics = layout.decimated(self.statistics, start.kernel, headroom)
        features = layout.select(start.kernel, statistics.components, num_features, self.mean)
        return LatticeObjective(
            features,
            start.kernel,
            statistics,
            repeats=self.settings.repeats,
            threads=self._threads,
            beliefs=self.settings.beliefs,
        )

    def _longest(self, objective: LatticeObjective) -> bool:
        """Whether the period is the longest that the statistics offer."""
        return self.layout.is_longest(objective.statistics.components)

    def _limits(
        self, objective: LatticeObjective, kernel: Kernel, noise_floor: float | None = None
    ) -> Limits:
        """Return the limits of the parameter vector, narrowed to the user's bounds."""
        floor = self._noise_floor if noise_floor is None else noise_floor
        limits = self.layout.limits(kernel, objective.statistics.components, floor)
        return self.settings.beliefs.within(objective.slots, limits)

    def _wanted_features(self, best: Start) -> int:
        """Return how many features to end with."""
        if self.settings.num_features is not None:
            return self.settings.num_features
        wanted, _ = self._certified_features(best)
        return min(max(wanted, 33), self.settings.max_features)

    def _certified_features(self, best: Start) -> tuple[int, int]:
        """Return how many features a certificate takes, and how many the lattice has."""
        components = self.layout.thinned(best.kernel, HEADROOM_LAST)
        allowed = self._allowed_residual(best)
        return self.layout.required_features(best.kernel, components, allowed)

    def _allowed_residual(self, best: Start) -> float:
        """Return the mass that features may leave out for a certificate."""
        factors = self.statistics.count * self.statistics.num_targets
        return 2 * ALLOWED_TRACE * best.noise_variance / factors

    # ------------------------------------------------------------------ the end

    def _finish(self, best: Start, stage: Stage | None) -> Fit:
        """Return the fit with its certificate, larger while the certificate asks for it."""
        self._final = stage
        if stage is None:
            objective = self._objective(best, self._wanted_features(best), 1.0)
        else:
            objective = stage.objective
        fit = self._certified(objective, best)
        larger = self._larger_ones(objective, best)
        while not fit.certificate.holds and not self.settings.late():
            objective = next(larger, None)
            if objective is None:
                break
            again = self._certified(objective, best)
            # A longer period with no more features is a worse model.
            closer = again.certificate.error < fit.certificate.error
            if again.certificate.holds or (closer and again.elbo.total > fit.elbo.total - SETTLED):
                fit = again
        return fit

    def _larger_ones(self, objective: LatticeObjective, best: Start) -> Iterator[LatticeObjective]:
        """Yield objectives with a longer period, then with more and more features."""
        if self.settings.num_features is not None:
            return
        m, growth, most = objective.features.num_features, 1.0, self.settings.max_features
        layout = self._close_layout(best)
        for own, part in zip(
            layout.thinned(best.kernel, 1.0), objective.features.parts, strict=True
        ):
            growth = max(growth, float(np.prod(own.lattice.period / part.lattice.period)))
        if not layout.joint:
            wanted, available = self._certified_features(best)
            # Beyond twice the wanted number it is not the features that keep the bounds apart.
            most = min(most, available, 2 * wanted)
        target = int(np.ceil(m * growth)) if growth > 1 else 2 * m
        while True:
            objective = self._objective(best, min(target, most), 1.0, layout)
            # The lattice may have no more of them.
            if objective.features.num_features <= m and growth <= 1:
                return
            yield objective
            m, growth = objective.features.num_features, 1.0
            target = 2 * m

    def _close_layout(self, best: Start) -> Layout:
        """Return the layout whose priors are so close to the kernel that it counts little."""
        allowed = _SHARE_OF_WRAP * self.settings.tolerance
        longest = float(self.layout.width.max())
        # Of the longest period the difference itself may be zero by rounding.
        correlated = (own.correlation_across(longest) for own in best.kernel.summands)
        if (
            self.layout.images(best.kernel, self.layout.components).deviation == 0
            and max(correlated) < 1
        ):
            # ε counts with the size of the whitened mean, about the root of its length, and is a
            # few times the difference at the largest lag.
            close = allowed / (_RATIO_TO_WRAP * np.sqrt(self.settings.max_features))
        else:
            close = allowed * best.noise_variance / prior_variance(best.kernel)
            count, unit = self.statistics.count, self.settings.noise_unit
            close = max(close / (count * np.sqrt(count / unit)), _LEAST_WRAP)
        return replace(self.layout, wrap_tolerance=min(self.layout.wrap_tolerance, close))

    def _ending(
        self, objective: LatticeObjective, best: Start, certificate: Certificate, converged: bool
    ) -> Ending:
        _, available = self._certified_features(best)
        settings = self.settings
        return Ending(
            certificate=certificate,
            num_features=objective.features.num_features,
            available_features=available,
            as_asked=settings.num_features is not None,
            late=settings.late(),
            converged=converged,
            at_limit=self._final.at_limit if self._final else (),
            longest_period=self._longest(objective),
            noise_at_floor=settings.learn and best.noise_variance <= 1.01 * self._noise_floor,
            wrap_tolerance=settings.wrap_tolerance,
            joint=self.layout.joint,
        )

    def _certified(self, objective: LatticeObjective, best: Start) -> Fit:
        """Return the fit at a feature set, with its bounds and its certificate."""
        moments, noise = objective.moments(best.kernel), best.noise_variance
        with one_thread():
            solution = Solution.of(moments, noise)
            elbo = titsias_bound(moments, noise, solution.chol)
            tightened = one_pass_bound(moments, noise, solution.chol)
            posterior, upper, certificate = self._judged(
                objective, best, solution, moments, tightened
            )
        error = self.layout.wrap_error(best.kernel, objective.features)
        certificate = certificate._replace(tolerance=self.settings.tolerance, wrap_error=error)
        converged = self._final is None or self._final.maximum.converged
        return Fit(
            kernel=best.kernel,
            noise_variance=noise,
            features=objective.features,
            num_features=objective.features.num_features,
            period=self._period(objective.features),
            elbo=elbo,
            tightened=tightened,
            upper=upper,
            certificate=certificate,
            status=describe(self._ending(objective, best, certificate, converged)),
            converged=converged,
            num_evaluations=self._num_evaluations,
            rows=moments.rows,
            posterior=posterior.over,
        )

    def _judged(
        self,
        objective: LatticeObjective,
        best: Start,
        solution: Solution,
        moments: Moments,
        lower: Bound,
    ) -> tuple[Posterior, Bound, Certificate]:
        """Return the posterior, and what bounds its errors."""
        noise, features = best.noise_variance, objective.features
        tolerance = self.settings.tolerance
        images = self.layout.images(best.kernel, objective.statistics.components)
        box = self.layout.box_around(self._centre(features))
        if self.layout.joint:
            verdict = judge(
                enough_modes(features.parts[0], best, objective.statistics.parts[0], tolerance),
                best,
                (solution.mean, solution.chol),
                images=images,
                tolerance=tolerance,
                # Whoever asks for a number of features wants the mean of just those.
                max_steps=MOST_STEPS if self.settings.num_features is None else 0,
            )
            solution = solution._replace(polished=verdict.polished, guarantee=verdict.guarantee)
            posterior = Posterior(features.parts[0], best.kernel, noise, solution, box)
            points = points_over(features.parts[0], box)
            typical = posterior.predict(points).variance
            # Errors are the largest where variances are the smallest, and that may lie between.
            worst = points[np.argsort(typical)[:_NUM_VARIANCES]]
            closer = points_around(features.parts[0], box, worst)
            variances = np.append(typical, posterior.predict(closer).variance)
        else:
            own = cast("AdditiveLattice", features)
            sums = cast("AdditiveStatistics", objective.statistics)
            verdict = judge_components(own, best, sums, moments, solution.mean, images)
            solution = solution._replace(guarantee=verdict.guarantee)
            posterior = self._additive(own, objective, best, solution, moments)
            least, most = posterior.least_variance(box), prior_variance(best.kernel)
            variances = np.geomspace(min(least, most), most, _NUM_VARIANCES)
            variances = variances + posterior.residual
            some = np.random.default_rng(0).uniform(*box, (_NUM_VARIANCES, len(box.lower)))
            typical = posterior.predict(some).variance
        guarantee = verdict.guarantee
        upper = upper_bound(moments, noise, guarantee.left_out, solution.chol)
        upper = upper._replace(data_fit=min(upper.data_fit, verdict.data_fit))
        means, errors = guarantee.relative_errors(variances, posterior.residual, noise)
        _, usual = guarantee.relative_errors(typical, posterior.residual, noise)
        certificate = Certificate(
            lower.total - verdict.slack,
            upper.total + verdict.slack,
            float(means.max()),
            float(errors.max()),
            float(np.median(usual)),
        )
        return posterior, upper, certificate

    def _additive(
        self,
        features: AdditiveLattice,
        objective: LatticeObjective,
        at: Start,
        solution: Solution,
        moments: Moments,
    ) -> AdditivePosterior:
        solution = solution._replace(
            sums=tuple(map(ComponentSums.of, objective.statistics.parts)),
            shares=target_shares(features, at.kernel, solution.mean, moments),
        )
        box = self.layout.box_around(np.zeros(len(self.layout.width)))
        return AdditivePosterior(features, at.kernel, at.noise_variance, solution, box)

    def _centre(self, features: LatticeFeatures) -> NDArray[np.float64]:
        """Return the centre of the rows' box, as far as lattices know it."""
        return features.parts[0].lattice.centre if self.layout.joint else 0 * self.layout.width

    def _period(self, features: LatticeFeatures) -> Any:
        periods = tuple(part.lattice.period for part in features.parts)
        return periods[0] if self.layout.joint else periods


def _vector(start: Start, objective: LatticeObjective) -> NDArray[np.float64]:
    return np.append(pack(start.kernel, objective.slots), np.log(start.noise_variance))
