"""Fitting any family: place the features, learn at that placement, place them again.

Where hyperparameters start, how features are placed and how far parameters may go depends on what
there is: sums on a lattice (`SumFamilyFitter`), whose lattice features cost little and give the
hyperparameters to start from, or the rows alone
(`exact/fitting.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError, PrecisionError
from orthogp.features import Features, MeanPrior, PointFeatures, SpectralFeatures
from orthogp.features.base import prior_variance, sample_box
from orthogp.features.series import SeriesFeatures, for_kernel
from orthogp.inference.bounds import (
    Certificate,
    factorise,
    one_pass_bound,
    projected_bound,
    titsias_bound,
    unwhiten,
    upper_bound,
    whiten,
)
from orthogp.inference.certificates import (
    Unexplained,
    errors_of_features,
    fine_points,
    unexplained_by_rows,
    unexplained_by_series,
    unexplained_by_trace,
)
from orthogp.inference.moments import EvaluatedSource, Moments, RowSource, SeriesSource, Source
from orthogp.inference.objective import FamilyObjective
from orthogp.inference.parameters import learned_slots
from orthogp.inference.predictive import FamilyPosterior
from orthogp.kernels import Kernel
from orthogp.learning.dense import ROUNDING, SETTLED, Fitter
from orthogp.learning.limits import (
    NOISE_FLOOR,
    choose_decimation,
    names_at_limit,
    parameter_limits,
    wrap_error,
)
from orthogp.learning.optimise import Budget, Summit, maximise, resolved
from orthogp.learning.problem import Ending, Fit, FitSettings, Start, describe_family
from orthogp.learning.sketches import Sketch
from orthogp.precision import BlasThreads, one_thread
from orthogp.rows import Domain, Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice

# The largest number of times that features are placed anew as the kernel is learned.
_ROUNDS = 3
# The largest number of such rounds for features that learn parameters of their own.
_LEARNED_ROUNDS = 8
# The smallest gain by placing again, relative to what the features lose, that is worth a round.
_WORTH = 0.2
# The trace term, in nats per row, above which the first hyperparameters are a poor start.
_MUCH = 0.1
# Noise variances, in variances of the targets, that are tried then.
_NOISES = tuple(np.geomspace(1e-6, 0.5, 18).tolist())
# Dilations tried around the present one when the family learns it.
_DILATIONS = (0.75, 0.9, 0.97, 1.03, 1.1, 1.3)

# The largest number of the features' own parameters whose curvatures are measured one by one.
_MANY_FREE = 100
# The most rows whose pairs tell what features leave out.
_MOST_PAIRED = 10_000


@dataclass(frozen=True)
class Placement:
    """Features in place, as they were chosen and as the moments see them.

    The statistics, if there are any, are those on the lattice of the features.
    """

    family: Features
    features: Features
    statistics: FourierStatistics | None = None


class FamilyFitter(ABC):
    """Fits a family to standardised targets; see `fit`.

    Parameters
    ----------
    family : Features
        With or without open parameters.
    rows : Rows
        For families that are not series on a lattice.
    extent : Domain
        The box to cover.
    """

    def __init__(
        self,
        family: Features,
        rows: Rows | None,
        extent: Domain,
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads | None = None,
    ) -> None:
        self.family = family
        self.rows = rows
        self.extent = extent
        width = extent.upper - extent.lower
        self.width = np.where(width > 0, width, 1.0)
        self.mean = mean
        self.settings = settings
        self._threads = BlasThreads(1) if threads is None else threads
        self._at_limit: tuple[str, ...] = ()
        self._converged = True
        self._curvature: NDArray[np.float64] | None = None
        # The trace term of the last search's end, in nats.
        self._lost = 0.0
        self._num_evaluations = 0

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        kernel = starts[0].kernel
        self._adapted(kernel).check(kernel, len(self.width))
        if not self.settings.learn:
            return self._finish(self._place(starts[0].kernel), starts[0])
        best = self._begin(starts)
        placement = self._place(best.kernel)
        if not self._learns(placement):
            return self._finish(placement, best)
        best = self._better_start(placement, best)
        value, candidate = -np.inf, placement
        for round_ in range(_LEARNED_ROUNDS if self.family_learns else _ROUNDS):
            if round_ > 0:
                # Learned dilations and points stay where learning has moved them.
                learns = self.family_learns
                candidate = placement if learns else self._place(best.kernel, placement)
            placed, found, bound = self._learn(candidate, best)
            gain = bound - value
            if gain > 0:
                placement, best, value = placed, found, bound
            worth = SETTLED if self.family_learns else max(SETTLED, _WORTH * self._lost)
            if gain < worth or self.settings.late():
                break
        return self._finish(placement, best)

    # ------------------------------------------------------------------ what there is to learn from

    @abstractmethod
    def _adapted(self, kernel: Kernel) -> Features:
        """Return the family as a kernel needs it."""

    @abstractmethod
    def _begin(self, starts: list[Start]) -> Start:
        """Return the hyperparameters that learning begins with."""

    @abstractmethod
    def _place(self, kernel: Kernel, previous: Placement | None = None) -> Placement:
        """Return the family placed for a kernel, for the first time or again."""

    @abstractmethod
    def _limits(
        self, source: Source, kernel: Kernel, noise_floor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return limits of the kernel's learned parameters and, last, of the log noise variance."""

    def _names_at_limit(self, source: Source, summit: Summit) -> tuple[str, ...]:
        """Return the kernel's parameters that ended at a limit a user should know of."""
        return names_at_limit(
            source.slots, summit.maximum.x, *summit.box, called=self.settings.columns
        )

    def _learns(self, placement: Placement) -> bool:
        """Return whether the bound of the features says anything about hyperparameters."""
        return self.family.learns

    def _source(self, placement: Placement, kernel: Kernel) -> Source:
        slots, repeats = learned_slots(kernel), self.settings.repeats
        features = placement.features
        statistics = placement.statistics
        if isinstance(features, SeriesFeatures) and features.stationary and statistics is not None:
            return SeriesSource(features, kernel, slots, statistics, self.mean, repeats=repeats)
        rows = self._require_rows()
        by_phi = isinstance(features, PointFeatures) and features.stationary
        kind = RowSource if by_phi else EvaluatedSource
        return kind(
            features,  # type: ignore[arg-type]
            kernel,
            slots,
            rows,
            self.mean,
            repeats=repeats,
        )

    def _objective(self, placement: Placement, kernel: Kernel) -> FamilyObjective:
        source = self._source(placement, kernel)
        return FamilyObjective(source, self._threads, self.settings.beliefs)

    def _require_rows(self) -> Rows:
        if self.rows is None:
            raise FeatureError(
                f"{type(self.family).__name__} needs all rows at once: fit again with all of them, "
                "or use a family on the lattice."
            )
        return self.rows

    # ------------------------------------------------------------------ learning

    def _learn(self, placement: Placement, start: Start) -> tuple[Placement, Start, float]:
        """Return the placement, hyperparameters and bound after one search."""
        source = self._source(placement, start.kernel)
        objective = FamilyObjective(source, self._threads, self.settings.beliefs)
        vector = objective.vector(start)
        free = source.num_free
        attempt = partial(
            maximise,
            objective.value_and_gradient,
            budget=Budget(100 if free else 40, self.settings.late),
            curvature=None if free else self._curvature,
            alike=slice(len(vector) - 1 - free, len(vector) - 1) if free > _MANY_FREE else slice(0),
        )
        limits = partial(self._all_limits, source, start.kernel, vector)
        summit = resolved(attempt, vector, limits, NOISE_FLOOR * self.settings.noise_unit)
        maximum = summit.maximum
        self._at_limit = self._names_at_limit(source, summit)
        self._converged = maximum.converged
        self._curvature = maximum.curvature
        self._lost = objective.trace_term
        self._num_evaluations += maximum.num_evaluations
        found = Start(source.kernel_at(maximum.x[:-1]), float(np.exp(maximum.x[-1])))
        if source.num_free:
            features = source.features_at(maximum.x[:-1])
            placement = replace(placement, family=features, features=features)
        if isinstance(placement.family, SpectralFeatures) and self.family_learns:
            placement, value = self._dilate(placement, found, maximum.value)
            return placement, found, value
        return placement, found, maximum.value

    @property
    def family_learns(self) -> bool:
        """Whether the family's own parameters follow the bound."""
        return bool(getattr(self.family, "learn", False))

    def _dilate(self, placement: Placement, start: Start, value: float) -> tuple[Placement, float]:
        """Return the placement whose dilation has the best bound at fixed hyperparameters."""
        family, statistics = placement.family, placement.statistics
        assert isinstance(family, SpectralFeatures)
        assert statistics is not None
        dilation = np.asarray(family.dilation)
        best = placement
        for factor in _DILATIONS:
            try:
                other = family.dilated(factor * dilation).placed(
                    start.kernel, *self.extent, statistics.lattice
                )
                candidate = replace(placement, family=other, features=other.on(statistics.lattice))
                objective = self._objective(candidate, start.kernel)
                bound = objective.value(objective.vector(start))
            except (FeatureError, PrecisionError):
                continue
            if bound > value:
                best, value = candidate, bound
        return best, value

    def _better_start(self, placement: Placement, start: Start) -> Start:
        """Return hyperparameters of more noise or less signal, where the features lose a lot.

        From the first values a search could end at noise alone.
        """
        objective = self._objective(placement, start.kernel)
        try:
            best, bound = start, objective.value(objective.vector(start))
        except PrecisionError:
            best, bound = start, -np.inf
        if objective.trace_term < _MUCH * objective.source.count:
            return start
        own = start.noise_variance
        noises = [own, *(level for level in _NOISES if level > own)]
        for signal in (1.0, 0.2, 0.05):
            vector = objective.vector(Start(start.kernel.scaled(signal), own))
            for noise, value in zip(noises, objective.values(vector, noises), strict=True):
                if value > bound:
                    # Through the vector, which leaves fixed parameters alone.
                    best, bound = Start(objective.source.kernel_at(vector[:-1]), noise), value
        return best

    def _all_limits(
        self, source: Source, kernel: Kernel, vector: NDArray[np.float64], noise_floor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the limits of a vector that holds the features' own parameters too."""
        limits = self._limits(source, kernel, noise_floor)
        lower, upper = self.settings.beliefs.within(source.slots, limits)
        size = len(lower) - 1
        own = vector[size:-1]
        return (
            np.concatenate([lower[:size], own - 10.0, lower[size:]]),
            np.concatenate([upper[:size], own + 10.0, upper[size:]]),
        )

    # ------------------------------------------------------------------ the end

    def _finish(self, placement: Placement, best: Start) -> Fit:
        source = self._source(placement, best.kernel)
        objective = FamilyObjective(source)
        moments = source.moments(objective.vector(best)[:-1])
        features, noise = placement.features, best.noise_variance
        with one_thread():
            chol = factorise(moments.gram, noise)
            tightened = one_pass_bound(moments, noise, chol)
            elbo = upper = projected_bound(moments, noise, chol)
            errors = np.inf, np.inf, np.inf
            if features.projects:
                elbo = titsias_bound(moments, noise, chol)
                mean = unwhiten(chol, whiten(chol, moments.projection)) / noise
                left_out = self._unexplained(placement, best, moments, mean)
                # log|K + σ²I| ≥ log|Q + σ²I|, and yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + σ²I)⁻¹y − vᵀRv.
                more = float(np.sum(left_out.size**2)) / 2
                upper = upper._replace(data_fit=upper.data_fit + more)
                loose = upper_bound(moments, noise, None, chol)
                upper = min(upper, loose, key=lambda bound: bound.total)
                errors = errors_of_features(
                    best, moments, left_out, (mean, chol), self._points(features, best.kernel)
                )
        lattice = None if placement.statistics is None else placement.statistics.lattice
        size = float(np.sum(moments.yy)) / (2 * noise) + abs(elbo.complexity)
        certificate = Certificate.from_gap(elbo.total, upper.total, ROUNDING * size)
        mean_error, variance_error, typical_error = errors
        certificate = certificate._replace(
            mean_error=min(mean_error, certificate.mean_error),
            variance_error=min(variance_error, certificate.variance_error),
            typical_error=min(typical_error, certificate.typical_error),
            tolerance=self.settings.tolerance,
            wrap_error=self._wrap_error(features, best.kernel),
            quadrature_error=self._quadrature_error(placement.family, lattice, best.kernel),
            replaces_prior=not features.projects,
        )
        ending = Ending(
            certificate,
            features.num_features,
            self.settings.late(),
            self._converged,
            self._at_limit,
        )
        share = moments.residual_trace / (source.count * prior_variance(best.kernel))
        return Fit(
            kernel=best.kernel,
            noise_variance=noise,
            features=features,
            num_features=features.num_features,
            period=features.lattice.period if isinstance(features, SeriesFeatures) else None,
            elbo=elbo,
            tightened=tightened,
            upper=upper,
            certificate=certificate,
            status=describe_family(type(self.family).__name__, ending, share),
            converged=self._converged,
            num_evaluations=self._num_evaluations,
            rows=moments.rows,
            posterior=partial(FamilyPosterior.from_moments, features, best, self.mean, moments),
        )

    def _unexplained(
        self,
        placement: Placement,
        best: Start,
        moments: Moments,
        mean: NDArray[np.float64],
    ) -> Unexplained:
        """Return bounds on what features leave out at the rows, by what there is."""
        features, statistics = placement.features, placement.statistics
        series = isinstance(features, SeriesFeatures)
        if series and features.wrapped and statistics is not None:
            return unexplained_by_series(features, best, statistics, self.mean, moments, mean)
        few = self.rows is not None and len(self.rows.X) <= _MOST_PAIRED
        if few and features.stationary and not (series and features.wrapped):
            rows = self._require_rows()
            return unexplained_by_rows(features, best, rows, self.mean, moments, mean)
        return unexplained_by_trace(best, moments, mean)

    def _points(
        self, features: Features, kernel: Kernel
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return columns, and what is left out, at points that resolve series of waves."""
        X = fine_points(features, self.extent) if isinstance(features, SeriesFeatures) else None
        if X is None:
            return None
        X = self.mean.with_average_covariates(X)
        Phi = features.evaluate(kernel, X)
        if features.stationary:
            left_out = np.maximum(prior_variance(kernel) - np.sum(Phi**2, axis=1), 0.0)
        else:
            left_out = features.residual_variance(kernel, X)
        return np.concatenate([Phi, self.mean.features(X)], axis=1), left_out

    def _wrap_error(self, features: Features, kernel: Kernel) -> float:
        if isinstance(features, SeriesFeatures) and features.wrapped:
            return wrap_error(kernel, features.lattice.period, self.width)
        return 0.0

    def _quadrature_error(
        self, family: Features, lattice: FrequencyLattice | None, kernel: Kernel
    ) -> float:
        if not isinstance(family, SpectralFeatures) or lattice is None:
            return 0.0
        points = sample_box(self.extent.lower, self.extent.upper)
        few = points[:: max(len(points) // 33, 1)]
        return family.quadrature_error(kernel, lattice, few)


# Features of the lattice fit that gives other families their starting values.
_START_FEATURES = 201
# The factor by which lengthscales may grow on the lattice that features are placed on.
_HEADROOM = 1.1
# A quadrature error beyond which a finer lattice is used, if the statistics have one.
_ROUGH = 0.05


class SumFamilyFitter(FamilyFitter):
    """Fits a family from statistics, and from the rows where these do not suffice."""

    def __init__(
        self,
        family: Features,
        statistics: FourierStatistics,
        rows: Rows | None,
        sketch: Sketch,
        settings: FitSettings,
        threads: BlasThreads,
    ) -> None:
        super().__init__(family, rows, sketch.extent, sketch.mean, settings, threads)
        #: The sums of the sketch, of standardised targets.
        self.statistics = statistics
        # How often the lattice was made finer than the prior's period asks, for the quadrature.
        self._halvings = 0

    def _adapted(self, kernel: Kernel) -> Features:
        return for_kernel(self.family, kernel, len(self.width))

    def _begin(self, starts: list[Start]) -> Start:
        # A few lattice features cost little, and their bound is not far from that of others.
        few = replace(self.settings, num_features=None, max_features=_START_FEATURES)
        fitter = Fitter(self.statistics, self.width, self.mean, few, self._threads)
        fit = fitter.fit(starts)
        self._curvature = fitter.curvature
        return Start(fit.kernel, fit.noise_variance)

    def _place(self, kernel: Kernel, previous: Placement | None = None) -> Placement:
        """Return the family placed for a kernel, on the coarsest lattice that suits it."""
        family = self._adapted(kernel)
        place = family.placed if previous is None else previous.family.adjusted
        lower, upper = self.extent
        lattice = self.statistics.lattice
        period = family.wanted_period(kernel, self.width)
        if period is None:
            factors = choose_decimation(
                kernel, lattice, self.width, self.settings.wrap_tolerance, _HEADROOM
            )
        else:
            factors = np.maximum((lattice.period / period + 1e-9).astype(np.int64), 1)
        factors = np.maximum(factors // 2**self._halvings, 1)
        while True:
            coarse = lattice.decimate(factors)
            try:
                with one_thread():
                    placed = place(kernel, lower, upper, coarse)
                    series = placed.on(coarse)
                    if previous is not None or np.all(factors == 1):
                        break
                    if self._quadrature_error(placed, coarse, kernel) <= _ROUGH:
                        break
            except FeatureError:
                if np.all(factors == 1):
                    raise
                place = family.placed
            self._halvings += 1
            factors = np.maximum(factors // 2, 1)
        if series is not None:
            return Placement(placed, series, self.statistics.decimate(factors))
        placed = family.from_rows(kernel, self._require_rows().X)
        return Placement(placed, placed, self.statistics)

    def _limits(
        self, source: Source, kernel: Kernel, noise_floor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        lattice = self.statistics.lattice
        if isinstance(source.features, SeriesFeatures) and source.features.wrapped:
            lattice = source.features.lattice
        tolerance = self.settings.wrap_tolerance
        return parameter_limits(kernel, source.slots, lattice, self.width, tolerance, noise_floor)
