"""From rows to a fitted field: lattice, hyperparameters, posterior, bounds, and a status."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, PrecisionError
from orthogp.features import Lattice
from orthogp.features.series import lattice_masses
from orthogp.fields.evidence import Climb, Evidence, IterativeObjective, Scored, score
from orthogp.fields.model import (
    EvenPreconditioner,
    Model,
    ModePosterior,
    choose_preconditioner,
    solve,
)
from orthogp.fields.posterior import (
    Draws,
    IterativePosterior,
    VarianceField,
    ample_precision,
    draw_modes,
)
from orthogp.fields.system import LatticeSystem, Modes, Reals, fast_extent
from orthogp.inference.bounds import Bound, Certificate
from orthogp.kernels import Kernel
from orthogp.learning.layout import Limits
from orthogp.learning.limits import (
    names_at_limit,
    parameter_limits,
    required_period,
    within_limits,
    wrap_error,
)
from orthogp.learning.problem import (
    Fit,
    FitSettings,
    Progress,
    Start,
    listed_limits,
    of_short_period,
)
from orthogp.learning.sketches import Sketch
from orthogp.rows import Domain
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import TOLERANCE

# The ratio of the data's to the prior's precision at which a lattice ends, by number of columns as
# all tables are. Along a line modes cost little.
_RESOLVED = {1: 0.02, 2: 0.25, 3: 0.25}
# The most modes that the solver takes.
_MOST_MODES = {1: 2_200_000, 2: 400_000, 3: 150_000}
# The most modes for each row.
_MODES_PER_ROW = {1: 4.0, 2: 2.0, 3: 0.3}
# The longest period, relative to the width of the data.
_LONGEST_PERIOD = {1: 4.0, 2: 1.5, 3: 1.35}
# The longest period where modes are scarce, unless the periodised prior needs a longer one: a
# shorter period leaves more modes for resolution.
_TIGHT_PERIOD = {1: 4.0, 2: 1.2, 3: 1.2}
# The largest error of the periodised prior where modes are scarce, relative to k(0).
_TIGHT_TOLERANCE = {1: 1.0, 2: 0.05, 3: 1.0}
# The shortest period, relative to the width of the data.
_SHORTEST_PERIOD = 1.15
# The factor by which a period grows until the periodised prior is within its tolerance.
_STEP = 1.05
# Bytes for each mode, measured: solutions, directions and images, their values on a grid of twice
# the points in every direction, and the factor of the preconditioner.
_BYTES_PER_MODE = {1: 2000.0, 2: 7000.0, 3: 7000.0}
# Seconds for each mode, for brief learning and the posterior on two cores.
_SECONDS_PER_MODE = {1: 1e-4, 2: 4e-4, 3: 3e-3}
# The number of modes that any time limit allows.
_ALWAYS_IN_TIME = 2000
# The number of modes that any number of rows allows, and that every memory limit must.
_FEWEST_MODES = 201
_BY_ROWS = "the number of rows"


class Budget(NamedTuple):
    """Limits of a lattice: bytes of memory, modes, and seconds."""

    memory: float = np.inf
    modes: float = np.inf
    seconds: float = np.inf

    def limits(self, num_dims: int, rows: float) -> dict[str, float]:
        """Return the most modes by each limit, for the number of rows in a period."""
        return {
            "the capacity of the solver": float(_MOST_MODES[num_dims]),
            _BY_ROWS: max(_MODES_PER_ROW[num_dims] * rows, _FEWEST_MODES),
            "max_memory": self.memory / _BYTES_PER_MODE[num_dims],
            "num_features": self.modes,
            "max_seconds": max(self.seconds / _SECONDS_PER_MODE[num_dims], _ALWAYS_IN_TIME),
        }


class LatticeChoice(NamedTuple):
    """A lattice, its number of modes, the number that the noise level asks for (`wanted`).

    `limited_by` names the limit that kept the number below the wanted one, if one did.
    """

    lattice: FrequencyLattice
    num_modes: int
    wanted: int
    limited_by: str


def choose_lattice(
    start: Start, count: float, extent: Domain, wrap_tolerance: float, budget: Budget
) -> LatticeChoice:
    """Return the lattice with all modes that the data can distinguish from noise.

    Along each axis it ends where N' s(ω) is a fraction of σ², with N' the number of rows that a
    period would hold at the data's density.
    """
    width = extent.width
    num_dims = len(width)
    if budget.memory < _FEWEST_MODES * _BYTES_PER_MODE[num_dims]:
        raise InputError(
            f"max_memory = {budget.memory:.3g} bytes is too little for any model: give at least "
            f"{_FEWEST_MODES * _BYTES_PER_MODE[num_dims]:.0f}."
        )

    def of_period(period: Reals) -> LatticeChoice:
        spacing = 2 * np.pi / period
        rows = count * float(np.prod(period / width))
        reach = _resolved(start.kernel, spacing, rows / start.noise_variance)
        wanted = float(np.prod(2 * reach + 1))
        limits = budget.limits(num_dims, rows)
        limited_by = min(limits, key=limits.__getitem__)
        if wanted > limits[limited_by]:
            reach = _shrunk(reach, limits[limited_by])
        else:
            limited_by = ""
        fast = np.array([fast_extent(max(int(k), 2)) for k in reach])
        lattice = FrequencyLattice(spacing, fast, extent.centre)
        modes = int(np.prod(2 * fast + 1))
        return LatticeChoice(lattice, modes, int(min(wanted, 1e15)), limited_by)

    long, tight = _periods(start.kernel, width, wrap_tolerance)
    choice = of_period(long)
    # A shorter period does not raise the number of modes for each row.
    return choice if choice.limited_by in ("", _BY_ROWS) else of_period(tight)


def _periods(kernel: Kernel, width: Reals, wrap_tolerance: float) -> tuple[Reals, Reals]:
    """Return the period for plenty of modes, and the one where modes are scarce."""
    num_dims = len(width)
    tolerance = _TIGHT_TOLERANCE[num_dims]
    needed = required_period(kernel, width, wrap_tolerance)
    long = np.clip(needed, _SHORTEST_PERIOD * width, _LONGEST_PERIOD[num_dims] * width)
    needed = required_period(kernel, width, tolerance)
    tight = np.minimum(long, np.maximum(needed, _TIGHT_PERIOD[num_dims] * width))
    # A period that suffices along the axes may be too short along a diagonal, if the kernel slants.
    while np.any(tight < long) and wrap_error(kernel, tight, width) > tolerance:
        tight = np.minimum(long, _STEP * tight)
    return long, tight


def _resolved(kernel: Kernel, spacing: Reals, density: float) -> NDArray[np.int64]:
    """Return the last index along each axis that the data determine."""
    num_dims = len(spacing)
    most = 4 * _MOST_MODES[num_dims]
    steps = np.unique(np.geomspace(1, most, 400).astype(np.int64))
    reach = np.ones(num_dims, dtype=np.int64)
    for axis in range(num_dims):
        indices = np.zeros((len(steps), num_dims), dtype=np.int64)
        indices[:, axis] = steps
        masses = lattice_masses(kernel, FrequencyLattice(spacing, most), indices)
        above = np.flatnonzero(density * masses > _RESOLVED[num_dims])
        if len(above):
            reach[axis] = steps[above[-1]]
    return reach


def _shrunk(reach: NDArray[np.int64], most: float) -> NDArray[np.int64]:
    """Return extents in the same proportions with at most `most` modes, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.prod(2 * np.floor(middle * reach) + 1) <= most:
            low = middle
        else:
            high = middle
    return np.maximum(np.floor(low * reach), 1).astype(np.int64)


# The largest error of the posterior mean, in posterior standard deviations; with the diagonal
# preconditioner its root mean square over the modes.
_FINAL_TOLERANCE = 0.01
# The error of the periodised prior above which the status mentions it. Fields have shorter periods
# than dense lattices.
_WRAPPED = 0.05
# The smallest noise variance, relative to that of the targets.
_NOISE_FLOOR = 1e-8
# The error of the periodised prior up to which lengthscales may grow on one lattice.
_ROOM = 0.25
# The most evaluations on the first lattice, the second, and the third. Each lattice is chosen for
# the hyperparameters learned on the one before.
_EVALUATIONS = (2, 3, 10)
# The factor of the number of modes that makes another lattice worthwhile.
_OUTGROWN = 1.5
# The factor of a period that makes another lattice worthwhile.
_LONGER = 1.15
# The number of draws from which the variance is first estimated.
_FIRST_DRAWS = 16
# The most draws for the variance.
_MOST_DRAWS = 64
# The number of draws if time has run out.
_HASTY_DRAWS = 8
# The relative error of the variance at which no more draws are made.
_VARIANCE_ERROR = 0.05
#: The accuracy of the draws: in gaps between data the error of their variance is at most 1 %.
DRAW_TOLERANCE = 0.03
# The number of right-hand sides that take as long to solve as the whole posterior.
_POSTERIOR_VECTORS = 20


class Stage(NamedTuple):
    """Learning on one lattice: where it ended, its limits, and the parameters that met a limit."""

    choice: LatticeChoice
    objective: IterativeObjective
    scored: Scored
    limits: Limits = (np.empty(0), np.empty(0))
    at_limit: tuple[str, ...] = ()

    @property
    def end(self) -> Start:
        """The hyperparameters at the end."""
        vector = self.scored.evidence.vector
        return Start(self.objective.kernel_at(vector), float(np.exp(vector[-1])))


class IterativeFitter:
    """Fits a field on a lattice that is chosen for it.

    `sums` gives the statistics of the standardised targets on a lattice; the sketch gives the
    number of rows, the box around them, and the mean function.
    """

    def __init__(
        self,
        sums: Callable[[FrequencyLattice], FourierStatistics],
        sketch: Sketch,
        settings: FitSettings,
        num_threads: int,
        progress: Progress,
    ) -> None:
        self._sums = sums
        self._sketch = sketch
        self._settings = settings
        self._num_threads = num_threads
        self._progress = progress
        self._evaluations = 0
        #: The expected time for one more evaluation and the posterior after it.
        self._seconds_ahead = 0.0
        self._stopped_early = False

    @cached_property
    def _seconds_at_first(self) -> float:
        """The time left when the first lattice is chosen; later lattices have the same budget."""
        return self._settings.seconds_left

    def _late(self) -> bool:
        """Return whether learning has to end for the posterior to be there in time."""
        self._stopped_early = self._settings.late(self._seconds_ahead)
        return self._stopped_early

    def choose(self, start: Start) -> LatticeChoice:
        """Return the lattice that suits hyperparameters."""
        settings, sketch = self._settings, self._sketch
        memory, modes = (
            np.inf if limit is None else limit
            for limit in (settings.max_memory, settings.num_features)
        )
        budget = Budget(memory, modes, self._seconds_at_first)
        unit = settings.noise_unit
        rows = sketch.statistics.count / unit
        start = replace(start, noise_variance=start.noise_variance / unit)
        return choose_lattice(start, rows, sketch.extent, settings.wrap_tolerance, budget)

    def fit(
        self, start: Start, lattice: FrequencyLattice | None = None, rival: Start | None = None
    ) -> Fit:
        """Return the fit from hyperparameters learned from windows of the rows.

        A given lattice is kept, where there are no rows to be summed on another. Learning begins
        from the `rival` if its evidence is larger.
        """
        self._evaluations = 0
        choice = self.choose(start)
        if lattice is not None:
            modes = int(np.prod(2 * lattice.extent + 1))
            choice = LatticeChoice(lattice, modes, choice.wanted, "the sums at hand")
            return self._finish(self._stage(choice, start, _EVALUATIONS[-1]))
        stage = self._stage(choice, start, _EVALUATIONS[0], rival=rival)
        for evaluations in _EVALUATIONS[1:]:
            again = self.choose(stage.end)
            same = _alike(stage.choice, again)
            if (stage.scored.converged and same) or self._late():
                break
            choice = stage.choice if same else again
            stage = self._stage(choice, stage.end, evaluations, stage)
        return self._finish(stage)

    def _stage(
        self,
        choice: LatticeChoice,
        start: Start,
        max_evaluations: int,
        before: Stage | None = None,
        rival: Start | None = None,
    ) -> Stage:
        """Return the result of learning on one lattice, after the stage `before`."""
        # On the same lattice, learning continues where it ended.
        same = before if before is not None and before.choice is choice else None
        if same is not None:
            objective = same.objective
        else:
            self._progress.say(f"summing rows for {choice.num_modes:,} modes")
            # Each probe averages over all modes: the more modes, the fewer probes.
            m = choice.num_modes
            objective = IterativeObjective(
                self._sums(choice.lattice),
                start.kernel,
                self._sketch.mean,
                repeats=self._settings.repeats,
                num_probes=8 if m < 20_000 else 4 if m < 500_000 else 2,
                num_threads=self._num_threads,
            )
        if not self._settings.learn:
            vector = objective.vector(start.kernel, start.noise_variance)
            self._evaluations += 1
            evidence = objective.evaluate(vector, profile=False)
            return Stage(choice, objective, Scored(evidence, True, 1, evidence.information))
        limits = same.limits if same else self._limits(start.kernel, objective)
        climb = self._climb(objective, limits)
        if same is not None:
            first = same.scored.evidence
        else:
            starts = [start] if rival is None else [start, rival]
            begun = [climb.begin(_vector(objective, at, limits)) for at in starts]
            first = max((evidence for evidence, _ in begun), key=lambda found: found.value)
            used = sum(number for _, number in begun)
            self._evaluations += used
            max_evaluations -= used if rival is None else 0
        scored = score(climb, first, max_evaluations, before.scored if before else None)
        self._evaluations += scored.num_evaluations
        at_limit = names_at_limit(
            objective.slots, scored.evidence.vector, *limits, called=self._settings.columns
        )
        return Stage(choice, objective, scored, limits, at_limit)

    def _limits(self, kernel: Kernel, objective: IterativeObjective) -> Limits:
        room = max(self._settings.wrap_tolerance, _ROOM)
        floor = _NOISE_FLOOR * self._settings.noise_unit
        floor = max(floor, 10 * TOLERANCE * objective.statistics.count)
        lattice, width = objective.density.lattice, self._sketch.width
        limits = parameter_limits(kernel, objective.slots, lattice, width, room, floor)
        return self._settings.beliefs.within(objective.slots, limits)

    def _climb(self, objective: IterativeObjective, limits: Limits) -> Climb:
        """Return evidence and prior as a function to maximise, which reports its progress."""
        beliefs = self._settings.beliefs

        def evaluate(vector: Reals) -> Evidence:
            began = time.monotonic()
            # The best common factor of all variances is not free where one of them is not.
            evidence = objective.evaluate(vector, profile=not beliefs.about_scale)
            prior = beliefs.log_prior(objective.slots, evidence.vector)
            seconds = time.monotonic() - began
            self._seconds_ahead = seconds * (1 + _POSTERIOR_VECTORS / objective.num_vectors)
            self._progress.say(
                f"learning with {objective.density.grid.size:,} modes: log p(y) "
                f"{evidence.value:,.1f}, {evidence.iterations} iterations"
            )
            return evidence.with_prior(prior)

        def sharpen(vector: Reals) -> Reals:
            self._progress.say("learning: computing the curvature")
            bend = beliefs.log_prior(objective.slots, vector).bend
            return objective.average_information(vector) + np.diag(np.maximum(-bend, 0.0))

        return Climb(evaluate, limits, self._late, sharpen)

    def _finish(self, stage: Stage) -> Fit:
        objective, evidence, lattice = stage.objective, stage.scored.evidence, stage.choice.lattice
        settings, mean = self._settings, self._sketch.mean
        self._progress.say("solving for the posterior")
        model = self._final_model(stage)
        modes, residual = _posterior(model, objective.last)
        variance = self._variance(model)
        elbo, upper = _bounds(model, objective, modes, evidence)
        certificate = _estimate(model, residual, variance, self._sketch.width)._replace(
            lower=elbo.total,
            upper=upper.total,
            wrap_error=wrap_error(model.kernel, lattice.period, self._sketch.width),
            tolerance=settings.tolerance,
        )
        status = _describe(
            stage,
            certificate,
            variance,
            late=self._stopped_early or settings.late(),
            asked=settings.solver == "iterative" or settings.num_features is not None,
        )
        return Fit(
            kernel=model.kernel,
            noise_variance=model.noise_variance,
            elbo=elbo,
            tightened=elbo,
            upper=upper,
            certificate=certificate,
            status=status,
            converged=stage.scored.converged,
            num_evaluations=self._evaluations,
            rows=objective.rows,
            features=Lattice(lattice, lattice.half_indices(), mean),
            num_features=stage.choice.num_modes,
            period=lattice.period,
            posterior=partial(IterativePosterior, model, modes, variance),
        )

    def _final_model(self, stage: Stage) -> Model:
        """Return the model that was learned, with a fine preconditioner if precision allows it."""
        objective, (kernel, noise) = stage.objective, (stage.end.kernel, stage.end.noise_variance)
        try:
            return Model.build(objective.density, objective.mean, kernel, noise, fine=True)
        except PrecisionError:
            return objective.model(stage.scored.evidence.vector)

    def _variance(self, model: Model) -> VarianceField:
        rng, began = np.random.default_rng(0), time.monotonic()
        precision = ample_precision(model)

        def more(num: int) -> Draws:
            memory = self._settings.max_memory
            return draw_modes(model, num, rng, memory, DRAW_TOLERANCE, precision)

        draws = more(_HASTY_DRAWS if self._settings.late() else _FIRST_DRAWS)
        while True:
            variance = VarianceField.estimate(model, draws)
            self._progress.say(
                f"variances from {len(draws.modes)} draws: error {variance.relative_error:.1%}"
            )
            # Once the cells of the grid leave more error than the draws do, more draws gain little.
            other_error = np.sqrt(variance.relative_error**2 - variance.sampling_error**2)
            enough = max(_VARIANCE_ERROR, np.sqrt(2) * other_error)
            if variance.relative_error <= enough or len(draws.modes) >= _MOST_DRAWS:
                return variance
            # As many again take as long again.
            if self._settings.late(ahead=time.monotonic() - began):
                return variance
            draws = Draws.joined([draws, more(len(draws.modes))])


def _vector(objective: IterativeObjective, at: Start, limits: Limits) -> Reals:
    """Return the vector of hyperparameters, moved within limits."""
    vector = objective.vector(at.kernel, at.noise_variance)
    return within_limits(at.kernel, objective.slots, vector, *limits, objective.density.lattice)


def _posterior(model: Model, start: Modes | None = None) -> tuple[ModePosterior, float]:
    """Return the posterior that predictions and bounds rest on, and the residual of its mean.

    As B ⪰ I, means are within ‖r‖ posterior sd of those that the equations have.
    """
    tolerance = _FINAL_TOLERANCE
    if isinstance(model.preconditioner, EvenPreconditioner):
        tolerance *= float(np.sqrt(model.system.grid.size))
    solution = solve(model, model.equations.right, tolerance=tolerance, start=start)
    targets = solution.residual[: len(model.system.density.targets)]
    norms = np.sqrt(model.system.grid.inner(targets, targets))
    return model.equations.posterior(solution.x, solution.residual), float(norms.max())


def _estimate(model: Model, residual: float, variance: VarianceField, width: Reals) -> Certificate:
    r"""Return how far predictions are expected to be from the exact process.

    The modes beyond the lattice, of prior variance d, count as noise. With rows spread evenly over
    their box each has a ratio of signal to noise of at most ρ, that at the lattice's edge, and the
    exact mean holds a share ρ/(1 + ρ) of their variance. With v the mean of the posterior
    variance at the rows,

        means      ‖r‖ + √(d ρ/(1 + ρ)/v)   posterior sd
        variances  the error of their average over draws + d/σ²

    σ² being the noise variance at a row of average weight.
    """
    left_out, density = model.unresolved, model.system.density
    noise = model.noise_variance / density.average_weight
    grid = model.system.grid
    edge = np.any(np.abs(grid.indices) == grid.extent, axis=-1)
    # `even` takes rows as spread over the whole period.
    crowding = float(np.prod(density.lattice.period / width))
    ratio = crowding * (float(np.max(model.preconditioner.even[edge])) - 1)
    typical = model.noise_variance * model.determined / density.count + left_out
    mean_error = residual + np.sqrt(left_out * ratio / (1 + ratio) / typical)
    variance_error = variance.relative_error + left_out / noise
    return Certificate(
        -np.inf, np.inf, float(mean_error), variance_error, variance_error, kind="estimate"
    )


def _bounds(
    model: Model, objective: IterativeObjective, modes: ModePosterior, evidence: Evidence
) -> tuple[Bound, Bound]:
    r"""Return lower and upper bound of the q(f) that predicts.

    q has the noise s² = σ² + w d, with the average weight w, where the model has σ²; the lower
    bound is that of any q,

        −N/2 log 2πσ² − (‖y − Φx‖² + s²τ + N d)/(2σ²) − ½ (‖x‖² − τ + log|B|),   τ = M − tr B⁻¹

    and the upper bound takes λ_max(K − Q) ≤ N d, log|Q + σ²I| ≥ log|Q + s²I| − N log(s²/σ²).
    """
    statistics, grid = objective.statistics, model.system.grid
    p, N = statistics.num_targets, objective.rows
    noise, solved_noise = model.noise_variance, model.system.noise_variance
    size = float(np.sum(grid.inner(modes.modes, modes.modes))) + float(np.sum(modes.slopes**2))
    total = float(np.sum(statistics.yy))
    misfit = total - solved_noise * (float(np.sum(modes.explained)) + size)
    trace = statistics.count * model.unresolved
    log_weights = 0.0 if statistics.count == N else statistics.log_weights
    normaliser = p * (N * np.log(2 * np.pi * noise) - log_weights)
    determinant = normaliser + p * evidence.log_determinant
    lower = Bound(
        data_fit=-(misfit + p * solved_noise * evidence.effective) / (2 * noise),
        complexity=-0.5 * (determinant + size - p * evidence.effective),
        trace=-p * trace / (2 * noise),
    )
    alpha = noise + trace
    system = LatticeSystem(objective.density, model.masses, alpha)
    relaxed = replace(model, system=system, preconditioner=choose_preconditioner(system))
    explained = float(np.sum(_posterior(relaxed)[0].explained))
    upper = Bound(
        data_fit=-0.5 * (total / alpha - explained),
        complexity=-0.5 * (determinant - p * N * np.log(solved_noise / noise)),
        trace=0.0,
    )
    return lower, upper


def _describe(
    stage: Stage, certificate: Certificate, variance: VarianceField, *, late: bool, asked: bool
) -> str:
    """Return how the fit ended, and why it is as it is."""
    choice, evidence = stage.choice, stage.scored.evidence
    sentences = [
        f"Solved iteratively with {choice.num_modes:,} features, {evidence.iterations} iterations "
        "each time, "
        + ("as asked." if asked else "since the noise level asks for more than max_features.")
    ]
    if choice.limited_by:
        sentences.append(
            f"The noise level asks for {choice.wanted:,} features; their number is limited by "
            f"{choice.limited_by}, and the features left out count as noise."
        )
    sentences.append(f"Variances have a relative error of about {variance.relative_error:.0%}.")
    if late:
        sentences.append("The time ran out: raise max_seconds to go on.")
    elif not stage.scored.converged:
        sentences.append("Learning stopped before it settled.")
    if not evidence.converged:
        sentences.append("The solver stopped before it converged: results are approximate.")
    if stage.at_limit:
        sentences.append(f"The {listed_limits(stage.at_limit)} ended at a limit.")
    if certificate.wrap_error > _WRAPPED:
        sentences.append(of_short_period(certificate.wrap_error))
    return " ".join(sentences)


def _alike(old: LatticeChoice, new: LatticeChoice) -> bool:
    """Return whether another lattice would make no difference worth its sums."""
    modes = abs(np.log(new.num_modes / old.num_modes))
    periods = np.abs(np.log(new.lattice.period / old.lattice.period))
    return bool(modes < np.log(_OUTGROWN) and np.all(periods < np.log(_LONGER)))
