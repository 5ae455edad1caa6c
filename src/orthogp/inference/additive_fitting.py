"""From the statistics of an additive model to a fitted one: as `Fitter`, component by component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.masses import lattice_masses
from orthogp.inference.additive_objective import AdditiveObjective
from orthogp.inference.additive_posterior import AdditivePosterior, ComponentSums
from orthogp.inference.additive_residual import sharp_additive_bound
from orthogp.inference.additive_status import AdditiveEnding, component_label, describe_additive
from orthogp.inference.bounds import Certificate, factorise, one_pass_bound, titsias_bound
from orthogp.inference.domain import Domain
from orthogp.inference.fit import Fit
from orthogp.inference.fitting import HEADROOM_FIRST, HEADROOM_LAST, ROUNDING, Fitter, Stage
from orthogp.inference.limits import parameter_limits
from orthogp.inference.moments import Moments
from orthogp.inference.optimise import Maximum, refine, search
from orthogp.inference.parameters import learned_slots
from orthogp.inference.settings import FitSettings, Start
from orthogp.inference.threads import BlasThreads
from orthogp.inference.wrapping import choose_decimation, wrap_error
from orthogp.kernels import Kernel
from orthogp.kernels.additive import term_kernels
from orthogp.statistics import AdditiveStatistics, ComponentLattice, FrequencyLattice

# Features of the first stage for each component, by its number of columns, and for all together.
_FIRST_FEATURES = {1: 64, 2: 240, 3: 300}
_MOST_FIRST_FEATURES = 1001
# Starts, each of another shape, that are searched from, and the features for that.
_CANDIDATES, _SCORED_FEATURES, _BRIEF_FEATURES = 4, 257, 601
# The curvature is measured by differences, one evaluation for each parameter, up to so many; near
# the end that pays off, since data that no model made have another than the expected one.
_FEW_PARAMETERS = 40

OwnPeriods = tuple[tuple[float | None, ...], ...]
Factors = tuple[tuple[tuple[int, ...], ...], ...]


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
        self._own_periods = own_periods
        self._factors = factors
        self._widths = [width[list(own.columns)] for own in statistics.components]

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
        components = self.statistics.components
        few = 1 + sum(
            min(_FIRST_FEATURES[len(own.columns)], 2 * len(own.indices) - 2) for own in components
        )
        return min(max(few, 33), _MOST_FIRST_FEATURES, self.settings.most_features)

    def _objective(self, start: Start, num_features: int, headroom: float) -> Any:
        statistics = self.statistics.decimate(self._decimations(start.kernel, headroom))
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

    def _decimations(self, kernel: Kernel, headroom: float) -> list[NDArray[np.int64]]:
        """Return a decimation for each component, the same for all columns that allow any."""
        decimations = []
        for own, component, width, factors in zip(
            term_kernels(kernel),
            self.statistics.components,
            self._widths,
            self._factors,
            strict=True,
        ):
            tolerance = self.settings.wrap_tolerance
            best = choose_decimation(own, component.lattice, width, tolerance, headroom, factors)
            free = np.array([len(allowed) > 1 for allowed in factors])
            if free.any():
                best[free] = best[free].min()
            decimations.append(best)
        return decimations

    def _longest(self, objective: Any) -> bool:
        """Whether no period can grow; `_names_at_limit` tells them apart."""
        return False

    def _limits(
        self, objective: Any, kernel: Kernel
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the limits of the parameter vector, one component after the other."""
        components = objective.statistics.components
        edges = []
        for own, component, width in zip(
            term_kernels(kernel), components, self._widths, strict=True
        ):
            lattice = component.lattice
            # The frequencies to choose from, not those of the component's own sums.
            reach = FrequencyLattice(lattice.spacing, component.reach, lattice.centre)
            tolerance = self.settings.wrap_tolerance
            limits = parameter_limits(
                own, learned_slots(own), reach, width, tolerance, self._noise_floor
            )
            edges.append(limits)
        noise = [limit[-1:] for limit in edges[0]]
        lower = np.concatenate([*(limit[0][:-1] for limit in edges), noise[0]])
        upper = np.concatenate([*(limit[1][:-1] for limit in edges), noise[1]])
        return lower, upper

    def _names_at_limit(
        self,
        objective: Any,
        vector: NDArray[np.float64],
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
    ) -> tuple[str, ...]:
        """Return the parameters that ended at a limit, with the component they belong to.

        Only a lengthscale whose period can grow is called by its plain name.
        """
        names, at = [], 0
        components = zip(objective.statistics.components, self.statistics.components, strict=True)
        for own, (present, whole) in zip(term_kernels(objective.kernel), components, strict=True):
            growing = not np.array_equal(present.lattice.spacing, whole.lattice.spacing)
            for slot in learned_slots(own):
                entries = slice(at, at + slot.size)
                at += slot.size
                label = f"{slot.name} of {component_label(present.columns)}"
                if np.any(vector[entries] > upper[entries] - 1e-3):
                    long = slot.name == "lengthscale" and not growing
                    names.append(f"longest {label}" if long else label)
                elif np.any(vector[entries] < lower[entries] + 1e-3):
                    names.append(f"smallest {label}")
        return tuple(names)

    def _certified_features(self, best: Start) -> tuple[int, int]:
        """Return how many features a certificate takes, and how many are kept."""
        components = self._thinned(best.kernel)
        kernels = term_kernels(best.kernel)
        masses = [
            lattice_masses(own, component.lattice, component.indices)
            for own, component in zip(kernels, components, strict=True)
        ]
        ordered = np.sort(np.concatenate([own[1:] for own in masses]))[::-1]
        ordered = ordered[ordered > 0]
        total = prior_variance(best.kernel) - sum(float(own[0]) for own in masses)
        residuals = total - np.concatenate([[0.0], np.cumsum(2 * ordered)])
        enough = np.flatnonzero(residuals <= self._allowed_residual(best))
        pairs = enough[0] if len(enough) else len(residuals)
        return int(2 * pairs + 1), int(2 * len(residuals) - 1)

    def _thinned(self, kernel: Kernel) -> list[ComponentLattice]:
        """Return the components on the lattices that suit a kernel."""
        factors = self._decimations(kernel, HEADROOM_LAST)
        return [
            own._replace(
                lattice=own.lattice.decimate(step),
                indices=own.indices[np.all(own.indices % step == 0, axis=1)] // step,
            )
            for own, step in zip(self.statistics.components, factors, strict=True)
        ]

    def _certified(self, objective: Any, moments: Moments, best: Start) -> Any:
        features, statistics = objective.features, objective.statistics
        chol = factorise(moments.gram, best.noise_variance)
        elbo = titsias_bound(moments, best.noise_variance, chol)
        upper = sharp_additive_bound(
            features, best.kernel, statistics, moments, best.noise_variance, chol
        )
        size = float(np.sum(moments.yy)) / (2 * best.noise_variance) + abs(elbo.complexity)
        error = self._wrap_error(best.kernel, features)
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
            own_periods=self._own_periods,
            elbo=elbo,
            tightened=one_pass_bound(moments, best.noise_variance, chol),
            upper=upper,
            certificate=certificate,
            status=describe_additive(ending),
            converged=converged,
            num_evaluations=self._num_evaluations,
            rows=moments.rows,
        )

    def _wrap_error(self, kernel: Kernel, features: AdditiveLattice) -> float:
        """Return Σ_j v_j ε_j / Σ_j v_j: how far the sum of wrapped priors is from the kernel."""
        kernels: Sequence[Kernel] = term_kernels(kernel)
        errors = [
            wrap_error(own, part.lattice.period, width) * prior_variance(own)
            for own, part, width in zip(kernels, features.parts, self._widths, strict=True)
        ]
        return float(sum(errors)) / prior_variance(kernel)
