"""From the statistics of an additive model to a fitted one: as `Fitter`, component by component."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice, MeanPrior
from orthogp.inference.bounds import Certificate, factorise, one_pass_bound, titsias_bound
from orthogp.inference.components import AdditivePosterior, ComponentSums
from orthogp.inference.domain import Domain
from orthogp.inference.moments import Moments
from orthogp.inference.objective import AdditiveObjective
from orthogp.inference.residual import sharp_additive_bound
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.learning.dense import HEADROOM_FIRST, HEADROOM_LAST, ROUNDING, Fitter, Stage
from orthogp.learning.layout import AdditiveGrid, Factors, Limits, OwnPeriods
from orthogp.learning.optimise import Maximum, refine, search
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.learning.status import AdditiveEnding, describe_additive
from orthogp.statistics import AdditiveStatistics

# The most features of the first stage.
_MOST_FIRST_FEATURES = 1001
# Starts, each of another shape, that are searched from, and the features for that.
_CANDIDATES, _SCORED_FEATURES, _BRIEF_FEATURES = 4, 257, 601
# The curvature is measured by differences, one evaluation for each parameter, up to so many; near
# the end that pays off, since data that no model made have another than the expected one.
_FEW_PARAMETERS = 40


@dataclass(frozen=True)
class AdditiveFit(Fit):
    """A fitted additive model."""

    features: AdditiveLattice
    moments: Moments
    sums: tuple[ComponentSums, ...]
    own_periods: OwnPeriods

    @property
    def period(self) -> tuple[NDArray[np.float64], ...]:  # type: ignore[override]
        """The period of each component's prior."""
        return tuple(part.lattice.period for part in self.features.parts)

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.features.num_features

    def posterior(self, domain: Domain, num_threads: int) -> AdditivePosterior:
        """Return the posterior over a domain."""
        return AdditivePosterior(
            self.features,
            self.kernel,
            self.noise_variance,
            self.moments,
            self.sums,
            domain,
            self.own_periods,
            num_threads,
        )


class AdditiveFitter(Fitter):
    """Fits additive models to the statistics of standardised targets.

    Parameters
    ----------
    statistics, width, mean, settings, threads
        As for `Fitter`.
    own_periods : tuple of tuples
        The period that each component has by itself along each of its columns, if any.
    factors : tuple of tuples
        The decimations that each lattice allows along each of its columns.
    """

    statistics: Any

    def __init__(
        self,
        statistics: AdditiveStatistics,
        width: NDArray[np.float64],
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads | None,
        own_periods: OwnPeriods,
        factors: Factors,
    ) -> None:
        super().__init__(statistics, width, mean, settings, threads)  # type: ignore[arg-type]
        self._grid = AdditiveGrid(
            statistics.components,
            width,
            own_periods,
            factors,
            settings.wrap_tolerance,
            settings.columns,
        )

    def _first_stage(self, starts: list[Start], num_features: int) -> Stage:
        """Search from the best start of each shape, then go on from the best of their ends.

        With so many parameters the bound has several maxima, and the scores of the starts say
        little about which is the highest.
        """
        scores = self._scores(starts, min(num_features, _SCORED_FEATURES))
        by_shape: dict[int, int] = {}
        for i in np.argsort(scores)[::-1]:
            by_shape.setdefault(starts[i].shape, int(i))
        chosen = [starts[i] for i in list(by_shape.values())[:_CANDIDATES]]
        if not self.settings.late():
            few = min(num_features, _BRIEF_FEATURES)
            ends = [self._search(start, few, max_iterations=25) for start in chosen]
            chosen = [max(ends, key=lambda end: end.maximum.value).best]
        return super()._first_stage(chosen, num_features)

    def _search(self, start: Start, num_features: int, *, max_iterations: int) -> Stage:
        def method(*problem: Any) -> Maximum:
            return self._searched(*problem, max_iterations=max_iterations)

        return replace(self._stage(start, num_features, HEADROOM_FIRST, method), searched=True)

    def _resumed_stage(self, start: Start) -> Stage:
        def method(value_and_gradient: Any, vector, lower, upper) -> Maximum:
            curvature = value_and_gradient.__self__.curvature(vector)
            return self._refined(value_and_gradient, vector, lower, upper, curvature)

        return self._stage(start, self._wanted_features(start), HEADROOM_LAST, method)

    def _later_stage(self, previous: Stage, num_features: int) -> Stage:
        if self.settings.late() or len(previous.maximum.x) <= _FEW_PARAMETERS:
            return super()._later_stage(previous, num_features)
        curvature = previous.maximum.curvature
        if previous.searched:
            curvature = previous.objective.curvature(previous.maximum.x)  # type: ignore[attr]

        def method(objective: Any, vector, lower, upper) -> Maximum:
            return self._refined(objective, vector, lower, upper, curvature)

        return self._stage(previous.best, num_features, HEADROOM_LAST, method)

    def _refined(self, objective: Any, vector, lower, upper, curvature) -> Maximum:
        if len(vector) <= _FEW_PARAMETERS:
            return super()._refined(objective, vector, lower, upper, curvature)
        late = self.settings.late
        found = refine(
            objective, vector, lower, upper, curvature, max_iterations=12, out_of_time=late
        )
        if found.converged or late():
            return found
        return self._searched(objective, found.x, lower, upper, max_iterations=25)

    def _searched(
        self, value_and_gradient: Any, vector, lower, upper, *, max_iterations: int
    ) -> Maximum:
        return search(
            value_and_gradient,
            vector,
            lower,
            upper,
            max_iterations=max_iterations,
            out_of_time=self.settings.late,
            curvature=value_and_gradient.__self__.curvature(vector),
        )

    def _first_features(self, starts: list[Start]) -> int:
        few = self._grid.first_features
        return min(max(few, 33), _MOST_FIRST_FEATURES, self.settings.most_features)

    def _objective(self, start: Start, num_features: int, headroom: float) -> Any:
        statistics = self.statistics.decimate(self._grid.decimations(start.kernel, headroom))
        features = AdditiveLattice.select(
            start.kernel, statistics.components, num_features, self.mean
        )
        return AdditiveObjective(
            features,
            start.kernel,
            statistics,
            repeats=self.settings.repeats,
            threads=self._threads,
        )

    def _longest(self, objective: Any) -> bool:
        """Whether no period can grow; `_names_at_limit` tells them apart."""
        return False

    def _limits(self, objective: Any, kernel: Kernel) -> Limits:
        return self._grid.limits(kernel, objective.statistics.components, self._noise_floor)

    def _names_at_limit(
        self,
        objective: Any,
        vector: NDArray[np.float64],
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
    ) -> tuple[str, ...]:
        components = objective.statistics.components
        return self._grid.names_at_limit(objective.kernel, components, vector, (lower, upper))

    def _certified_features(self, best: Start) -> tuple[int, int]:
        """Return how many features a certificate takes, and how many are kept."""
        components = self._grid.thinned(best.kernel, HEADROOM_LAST)
        allowed = self._allowed_residual(best)
        return self._grid.required_features(best.kernel, components, allowed)

    def _certified(self, objective: Any, moments: Moments, best: Start) -> Any:
        features, statistics = objective.features, objective.statistics
        chol = factorise(moments.gram, best.noise_variance)
        elbo = titsias_bound(moments, best.noise_variance, chol)
        upper = sharp_additive_bound(
            features, best.kernel, statistics, moments, best.noise_variance, chol
        )
        size = float(np.sum(moments.yy)) / (2 * best.noise_variance) + abs(elbo.complexity)
        error = self._grid.wrap_error(best.kernel, features)
        certificate = Certificate(elbo.total, upper.total, error, ROUNDING * size)
        converged = self._final is None or self._final.maximum.converged
        wanted, available = self._certified_features(best)
        ending = AdditiveEnding(
            certificate=certificate,
            num_features=features.num_features,
            wanted_features=wanted,
            available_features=available,
            as_asked=self.settings.num_features is not None,
            late=self.settings.late(),
            converged=converged,
            at_limit=self._final.at_limit if self._final else (),
            noise_at_floor=self.settings.learn and best.noise_variance <= 1.01 * self._noise_floor,
        )
        return AdditiveFit(
            kernel=best.kernel,
            noise_variance=best.noise_variance,
            features=features,
            moments=moments,
            sums=tuple(map(ComponentSums.of, statistics.parts)),
            own_periods=self._grid.own_periods,
            elbo=elbo,
            tightened=one_pass_bound(moments, best.noise_variance, chol),
            upper=upper,
            certificate=certificate,
            status=describe_additive(ending),
            converged=converged,
            num_evaluations=self._num_evaluations,
            rows=moments.rows,
        )
