"""Maximising the bound: starts, box constraints, growth of the feature set, and a status to read.

The optimiser sees the statistics only, never the rows. It works on logarithms, and since B has
eigenvalues ≥ 1 no step can meet a NaN.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize

from orthogp.errors import PrecisionError
from orthogp.features import Lattice, MeanPrior
from orthogp.inference.bounds import (
    Bound,
    Certificate,
    factorise,
    one_pass_bound,
    titsias_bound,
    upper_bound,
)
from orthogp.inference.moments import Moments
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import Slot, pack
from orthogp.inference.residual import required_features, residual_norm
from orthogp.inference.wrapping import choose_decimation, lengthscale_limits, wrap_error
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics

#: The most features that the dense solver takes by default: a second or two per stage.
MAX_FEATURES = 2000
#: Features of the first stage, by number of input columns.
FIRST_FEATURES = {1: 129, 2: 257, 3: 385}
#: The trace term, in nats, at which a certificate is expected to hold.
ALLOWED_TRACE = 0.02
#: The smallest noise variance, relative to the variance of the targets.
NOISE_FLOOR = 1e-9

# Boxes for the parameters in units where the targets have variance one; lengthscales have their own.
_BOXES = {
    "variance": (1e-6, 1e5),
    "weights": (1e-6, 1e5),
    "nu": (0.1, 15.0),
    "alpha": (0.05, 500.0),
    "shape_lengthscale": (0.1, 50.0),
}


@dataclass(frozen=True)
class FitSettings:
    """How to fit.

    Attributes
    ----------
    num_features : int or None
        The size of the final feature set; `None` grows it until the certificate holds or
        `max_features` is reached.
    learn : bool
        Whether hyperparameters are learned.
    wrap_tolerance : float
        The largest relative error of the wrapped prior over the data.
    repeats : bool
        Whether weights count rows (else they divide the noise variance).
    deadline : float or None
        `time.monotonic()` at which to stop learning.
    """

    num_features: int | None = None
    max_features: int = MAX_FEATURES
    learn: bool = True
    wrap_tolerance: float = 1e-4
    repeats: bool = True
    deadline: float | None = None

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline


@dataclass(frozen=True)
class Start:
    """Hyperparameters to start from."""

    kernel: Kernel
    noise_variance: float


@dataclass
class Fit:
    """The fitted model, in the units of the statistics' targets."""

    kernel: Kernel
    noise_variance: float
    features: Lattice
    statistics: FourierStatistics
    moments: Moments
    elbo: Bound
    tightened: Bound
    upper: Bound
    certificate: Certificate
    status: str
    converged: bool
    num_evaluations: int
    stages: list[Stage] = field(default_factory=list)


@dataclass(frozen=True)
class Stage:
    """One run of the optimiser at a fixed feature set."""

    num_features: int
    value: float
    num_evaluations: int
    seconds: float
    converged: bool
    at_limit: tuple[str, ...]


class Fitter:
    """Fits lattice features to statistics; see `fit`."""

    def __init__(
        self,
        statistics: FourierStatistics,
        width: NDArray[np.float64],
        mean: MeanPrior,
        settings: FitSettings,
    ) -> None:
        self.statistics = statistics
        self.width = width
        self.mean = mean
        self.settings = settings
        self.stages: list[Stage] = []
        self._noise_floor = NOISE_FLOOR

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        first = FIRST_FEATURES[self.statistics.lattice.num_dims]
        if self.settings.num_features is not None:
            first = min(first, self.settings.num_features)
        best = starts[0]
        objective = None
        if self.settings.learn:
            best, objective = self._first_stage(starts, first)
            target = self._wanted_features(best)
            if target > 4 * first:
                middle = int(np.sqrt(target * first))
                best, objective = self._stage(best, middle, headroom=1.25, max_iterations=25)
            if target != first and not self.settings.late:
                best, objective = self._stage(best, target, headroom=1.1, max_iterations=25)
        return self._finish(best, objective)

    # ------------------------------------------------------------------ stages

    def _first_stage(
        self, starts: list[Start], num_features: int
    ) -> tuple[Start, LatticeObjective]:
        """Run the optimiser briefly from the best starts, then fully from the best of those."""
        scored = []
        for start in starts:
            objective = self._objective(start, num_features, headroom=1.5)
            vector = _vector(start, objective)
            try:
                scored.append((objective.value_and_gradient(vector)[0], start))
            except PrecisionError:
                continue
        scored.sort(key=lambda pair: -pair[0])
        contenders = []
        for _, start in scored[:2] or [(0.0, starts[0])]:
            contender, objective = self._stage(start, num_features, headroom=1.5, max_iterations=12)
            contenders.append((self.stages[-1].value, contender, objective))
        _, best, objective = max(contenders, key=lambda entry: entry[0])
        for _ in range(4):
            best, objective = self._stage(best, num_features, headroom=1.5, max_iterations=40)
            # A lengthscale that met its limit may go on with a longer period.
            if self.settings.late or not self.stages[-1].at_limit or self._longest(objective):
                break
        return best, objective

    def _stage(
        self, start: Start, num_features: int, *, headroom: float, max_iterations: int
    ) -> tuple[Start, LatticeObjective]:
        """Maximise the bound at a fixed feature set."""
        began = time.monotonic()
        objective = self._objective(start, num_features, headroom)
        vector = _vector(start, objective)
        evaluations = 0
        for _ in range(8):
            lower, upper = self._box(objective, start.kernel)
            vector = np.clip(vector, lower, upper)
            try:
                run = maximise(objective, vector, lower, upper, max_iterations, self.settings)
                break
            except PrecisionError:
                # Rounding in the sums has reached the noise: only a larger noise variance is
                # resolved by these data in double precision.
                self._noise_floor *= 30
                vector[-1] = max(vector[-1], np.log(10 * self._noise_floor))
        else:
            raise PrecisionError(
                "No noise variance resolves these data in double precision: rescale the targets."
            )
        evaluations += run.nfev
        # L-BFGS stops within rounding of a face it has met.
        near = (run.x > upper - 1e-3) & np.isfinite(upper)
        names = _entry_names(objective.slots)
        limits = tuple(name for name, hit in zip(names, near, strict=True) if hit)
        self.stages.append(
            Stage(
                objective.features.num_features,
                float(run.fun),
                evaluations,
                time.monotonic() - began,
                bool(run.success),
                tuple(name for name in limits if name.startswith("lengthscale")),
            )
        )
        best = Start(objective.kernel_at(run.x), float(np.exp(run.x[-1])))
        return best, objective

    def _objective(self, start: Start, num_features: int, headroom: float) -> LatticeObjective:
        factors = choose_decimation(
            start.kernel,
            self.statistics.lattice,
            self.width,
            self.settings.wrap_tolerance,
            headroom,
        )
        statistics = self.statistics.decimate(factors)
        features = Lattice.select(start.kernel, statistics.lattice, num_features, self.mean)
        return LatticeObjective(
            features, start.kernel, statistics, repeats=self.settings.repeats
        )

    def _longest(self, objective: LatticeObjective) -> bool:
        """Whether the period is the longest that the statistics offer."""
        return bool(
            np.all(objective.features.lattice.spacing == self.statistics.lattice.spacing)
        )

    def _box(
        self, objective: LatticeObjective, kernel: Kernel
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the limits of the parameter vector."""
        lattice = objective.features.lattice
        highest = lattice.spacing * np.maximum(lattice.extent, 1)
        lower, upper = [], []
        values = _split(pack(kernel, objective.slots), objective.slots)
        for slot, logs in zip(objective.slots, values, strict=True):
            if slot.name == "lengthscale":
                longest = lengthscale_limits(
                    kernel, slot, lattice.period, self.width, self.settings.wrap_tolerance
                )
                shortest = np.broadcast_to(0.3 / highest.max(), slot.shape)
                low, high = np.log(shortest).ravel(), np.log(longest).ravel()
            elif slot.name in _BOXES:
                low, high = (np.full(slot.size, np.log(edge)) for edge in _BOXES[slot.name])
            else:
                low, high = logs - np.log(4), logs + np.log(4)
            lower.append(np.minimum(low, high))
            upper.append(high)
        lower.append(np.array([np.log(self._noise_floor)]))
        upper.append(np.array([np.log(1e3)]))
        return np.concatenate(lower), np.concatenate(upper)

    def _wanted_features(self, start: Start) -> int:
        """Return how many features to end with."""
        if self.settings.num_features is not None:
            return self.settings.num_features
        lattice = self._objective_lattice(start)
        statistics = self.statistics
        allowed = 2 * ALLOWED_TRACE * start.noise_variance / (
            statistics.count * statistics.num_targets
        )
        wanted, _ = required_features(start.kernel, lattice, allowed)
        return min(max(wanted, 33), self.settings.max_features)

    def _objective_lattice(self, start: Start):
        factors = choose_decimation(
            start.kernel, self.statistics.lattice, self.width, self.settings.wrap_tolerance, 1.1
        )
        return self.statistics.lattice.decimate(factors)

    # ------------------------------------------------------------------ the end

    def _finish(self, best: Start, objective: LatticeObjective | None) -> Fit:
        """Return the fit with its bounds; grow the features while the certificate asks for it."""
        target = self._wanted_features(best)
        for _ in range(4):
            if objective is None or objective.features.num_features != target:
                objective = self._objective(best, target, headroom=1.0)
            moments = objective.moments(best.kernel)
            certificate, bounds = self._certify(objective, moments, best)
            at_most = self.settings.num_features or self.settings.max_features
            if certificate.holds or target >= at_most or self.settings.late:
                break
            target = min(max(target * 2, self._wanted_features(best)), at_most)
            if objective.features.num_features >= 2 * len(
                objective.features.lattice.half_indices()
            ) - 1:
                break
        status, converged = self._status(objective, best, certificate)
        return Fit(
            kernel=best.kernel,
            noise_variance=best.noise_variance,
            features=objective.features,
            statistics=objective.statistics,
            moments=moments,
            elbo=bounds[0],
            tightened=bounds[1],
            upper=bounds[2],
            certificate=certificate,
            status=status,
            converged=converged,
            num_evaluations=sum(stage.num_evaluations for stage in self.stages),
            stages=self.stages,
        )

    def _certify(
        self, objective: LatticeObjective, moments: Moments, best: Start
    ) -> tuple[Certificate, tuple[Bound, Bound, Bound]]:
        chol = factorise(moments.gram, best.noise_variance)
        norm = residual_norm(objective.features, best.kernel, objective.statistics)
        elbo = titsias_bound(moments, best.noise_variance, chol)
        tightened = one_pass_bound(moments, best.noise_variance, chol)
        upper = upper_bound(moments, best.noise_variance, norm, chol)
        error = wrap_error(best.kernel, objective.features.lattice.period, self.width)
        return Certificate(elbo.total, upper.total, error), (elbo, tightened, upper)

    def _status(
        self, objective: LatticeObjective, best: Start, certificate: Certificate
    ) -> tuple[str, bool]:
        """Return one or two sentences that say how the fit ended and what to do, and whether well."""
        parts = []
        m = objective.features.num_features
        if certificate.holds:
            parts.append(f"The certificate holds with {m} features.")
        elif self.settings.num_features is not None:
            parts.append(
                f"The {m} features asked for leave a gap of {certificate.gap:.3g} nats: "
                'use num_features="auto" or a larger number for a certificate.'
            )
        elif self.settings.late:
            parts.append(f"The time ran out with {m} features: raise max_seconds to go on.")
        else:
            wanted = self._unlimited_features(best)
            parts.append(
                f"The largest feature set of the dense solver ({m}) leaves a gap of "
                f"{certificate.gap:.3g} nats: raise max_features (a certificate would take "
                f"about {wanted}) or use a smoother kernel for a certificate."
            )
        converged = True
        if self.settings.learn and self.stages:
            last = self.stages[-1]
            if not last.converged and not self.settings.late:
                converged = False
                parts.append(
                    "Learning stopped before it settled: the hyperparameters may still change a little."
                )
            if last.at_limit and self._longest(objective):
                parts.append(
                    f"The {' and '.join(last.at_limit)} ended at the longest that the covered domain "
                    "can hold: give a larger `domain` or another mean function if that matters."
                )
            if best.noise_variance <= 1.01 * self._noise_floor:
                parts.append(
                    "The noise variance ended at the smallest value that double precision resolves."
                )
        if certificate.wrap_error > 1.05 * self.settings.wrap_tolerance:
            parts.append(
                f"The prior's period is short for this lengthscale (error {certificate.wrap_error:.1e} "
                "of the variance): give a larger `domain`."
            )
        return " ".join(parts), converged

    def _unlimited_features(self, best: Start) -> str:
        lattice = self._objective_lattice(best)
        count = self.statistics.count * self.statistics.num_targets
        wanted, residuals = required_features(
            best.kernel, lattice, 2 * ALLOWED_TRACE * best.noise_variance / count
        )
        if wanted > 2 * len(residuals) - 1:
            return f"more than {2 * len(residuals) - 1}"
        return str(wanted)


def maximise(
    objective: LatticeObjective,
    start: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    max_iterations: int,
    settings: FitSettings,
    tolerance: float = 1e-4,
) -> OptimizeResult:
    """Return the maximum found by L-BFGS-B, with `fun` the bound there and `x` the parameters.

    It has converged when one iteration gains less than `tolerance` nats.
    """
    first, gradient = objective.value_and_gradient(start)
    scale = _curvature_scale(objective, start, gradient, lower, upper)
    best_value, best_vector = first, start
    evaluations = 1 + len(start)

    def negative(scaled: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal best_value, best_vector, evaluations
        vector = np.clip(start + scaled / scale, lower, upper)
        value, gradient = objective.value_and_gradient(vector)
        evaluations += 1
        if value > best_value:
            best_value, best_vector = value, vector
        # Relative to the start: far from the huge constants, absolute changes are visible.
        return -(value - first), -gradient / scale

    previous = first
    settled = False

    def watch(intermediate_result: OptimizeResult) -> None:
        nonlocal previous, settled
        value = first - float(intermediate_result.fun)
        if value - previous < tolerance:
            settled = True
            raise StopIteration
        if settings.late:
            raise StopIteration
        previous = value

    run = minimize(
        negative,
        np.zeros_like(start),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip((lower - start) * scale, (upper - start) * scale, strict=True)),
        callback=watch,
        options={"maxiter": max_iterations, "maxcor": 20, "ftol": 0.0, "gtol": 1e-4},
    )
    return OptimizeResult(
        x=best_vector,
        fun=best_value,
        nfev=evaluations,
        success=settled or run.status == 0 or run.status == 2,
    )


def _curvature_scale(
    objective: LatticeObjective,
    start: NDArray[np.float64],
    gradient: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return roots of the curvatures along each parameter, by differences of gradients.

    With a million rows the noise variance is some thousand times stiffer than the lengthscale; unit
    curvatures save the optimiser from finding that out.
    """
    scale = np.empty_like(start)
    for i in range(len(start)):
        step = 1e-3 if start[i] + 1e-3 <= upper[i] else -1e-3
        moved = start.copy()
        moved[i] = np.clip(moved[i] + step, lower[i], upper[i])
        difference = moved[i] - start[i]
        if difference == 0:
            scale[i] = 1.0
            continue
        change = objective.value_and_gradient(moved)[1][i] - gradient[i]
        scale[i] = np.sqrt(max(abs(change / difference), 1.0))
    return scale


def _vector(start: Start, objective: LatticeObjective) -> NDArray[np.float64]:
    return np.append(pack(start.kernel, objective.slots), np.log(start.noise_variance))


def _split(vector: NDArray[np.float64], slots: tuple[Slot, ...]) -> list[NDArray[np.float64]]:
    edges = np.cumsum([slot.size for slot in slots])[:-1]
    return np.split(vector, edges) if slots else []


def _entry_names(slots: tuple[Slot, ...]) -> list[str]:
    names = []
    for slot in slots:
        entries = [""] if slot.shape == () else [f" {i}" for i in range(slot.size)]
        names += [f"{slot.name}{entry}" for entry in entries]
    return [*names, "noise_variance"]
