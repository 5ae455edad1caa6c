"""From rows to a fitted field: lattice, hyperparameters, posterior, bounds, and a status."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.features import Lattice, MeanPrior
from orthogp.fields.evidence import Evidence, IterativeObjective
from orthogp.fields.krylov import solve
from orthogp.fields.lattice_choice import LatticeChoice, choose_lattice
from orthogp.fields.model import Model, ModePosterior, right_hand_sides
from orthogp.fields.posterior import IterativePosterior
from orthogp.fields.preconditioner import EvenPreconditioner, choose_preconditioner
from orthogp.fields.scoring import Scored, begin, score
from orthogp.fields.system import LatticeSystem
from orthogp.fields.variance import Draws, VarianceField, ample_precision, draw_modes
from orthogp.inference.bounds import Bound, Certificate
from orthogp.learning.limits import names_at_limit, parameter_limits, within_limits, wrap_error
from orthogp.learning.problem import Fit, FitSettings, Progress, Start
from orthogp.learning.status import of_short_period
from orthogp.rows import Domain
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import TOLERANCE

# The largest error of the posterior mean, in posterior standard deviations; with the diagonal
# preconditioner its root mean square over the modes.
_FINAL_TOLERANCE = 0.01


def bounds_of(
    model: Model,
    objective: IterativeObjective,
    modes: ModePosterior,
    evidence: Evidence,
) -> tuple[Bound, Bound]:
    r"""Return lower and upper bound of the q(f) that predicts.

    q has the noise s² = σ² + d where the model has σ²; the lower bound is that of any q,

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
    lower = Bound(
        data_fit=-(misfit + p * solved_noise * evidence.effective) / (2 * noise),
        complexity=-0.5
        * (normaliser + size - p * evidence.effective + p * evidence.log_determinant),
        trace=-p * trace / (2 * noise),
    )
    alpha = noise + trace
    system = LatticeSystem(objective.density, model.masses, alpha)
    relaxed = Model(model.kernel, noise, model.masses, trace, system, choose_preconditioner(system))
    right, posterior_of = right_hand_sides(relaxed, statistics, objective.mean)
    solution = solve(system, relaxed.preconditioner, right, tolerance=final_tolerance(relaxed))
    explained = float(np.sum(posterior_of(solution.x, solution.residual).explained))
    upper = Bound(
        data_fit=-0.5 * (total / alpha - explained),
        complexity=-0.5
        * (normaliser + p * evidence.log_determinant - p * N * np.log(solved_noise / noise)),
        trace=0.0,
    )
    return lower, upper


def final_tolerance(model: Model) -> float:
    """Return the error of solutions that predictions and bounds rest on."""
    if isinstance(model.preconditioner, EvenPreconditioner):
        return _FINAL_TOLERANCE * float(np.sqrt(model.system.grid.size))
    return _FINAL_TOLERANCE


# Errors of the wrapped prior worth a word; the solver's lattices are shorter than the dense one's.
_WRAPPED = 0.05


def describe_iterative(
    choice: LatticeChoice,
    certificate: Certificate,
    scored: Scored,
    evidence: Evidence,
    variance: VarianceField,
    at_limit: tuple[str, ...],
    *,
    late: bool,
    asked: bool,
) -> str:
    """Return how the fit ended, and why it is as it is."""
    m = f"{choice.num_modes:,}"
    sentences = [
        f"Solved iteratively with {m} features, {evidence.iterations} iterations each time, "
        + ("as asked." if asked else "since the noise level asks for more than max_features.")
    ]
    if certificate.holds:
        sentences.append("The certificate holds.")
    if choice.limited_by:
        sentences.append(
            f"It asks for {choice.wanted:,}; the number is limited by {choice.limited_by}, and "
            "what is left out counts as noise."
        )
    sentences.append(f"Variances have a relative error of about {variance.relative_error:.0%}.")
    if late:
        sentences.append("The time ran out: raise max_seconds to go on.")
    elif not scored.converged:
        sentences.append("Learning stopped before it settled.")
    if not evidence.converged:
        sentences.append("The solver stopped before it converged: results are approximate.")
    if at_limit:
        sentences.append(f"The {' and '.join(at_limit)} ended at a limit.")
    if certificate.wrap_error > _WRAPPED:
        sentences.append(of_short_period(certificate.wrap_error))
    return " ".join(sentences)


# The noise variance is kept above this, relative to that of the targets.
_NOISE_FLOOR = 1e-8
# Lengthscales may grow until the wrapped prior is off by this much; then comes a longer period.
_ROOM = 0.25
# Evaluations on one lattice after the other: each is chosen for what the last has learned, until
# learning has settled on a number of modes, and a period, that it does not move by a factor.
_EVALUATIONS, _OUTGROWN, _LONGER = (2, 3, 10), 1.5, 1.15
# Draws for the variance: at first, and at most; and the relative error that is aimed at.
_FIRST_DRAWS, _MOST_DRAWS, VARIANCE_ERROR = 16, 64, 0.05
#: Accuracy of these draws: where data are missing their variance is off by 1 % or less.
DRAW_TOLERANCE = 0.03
# Draws if the time is up, and for how many right-hand sides the whole posterior takes as long.
_HASTY_DRAWS, _POSTERIOR_VECTORS = 8, 20


class Stage(NamedTuple):
    """Learning on one lattice: where it ended, within which limits, and what met one of them."""

    objective: IterativeObjective
    scored: Scored
    limits: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    at_limit: tuple[str, ...] = ()


class IterativeFitter:
    """Fits a field on a lattice that is chosen for it.

    Parameters
    ----------
    sums : callable
        Gives the statistics of the standardised targets on a lattice.
    count : float
        Σ w_n.
    extent : Domain
        The box around the rows.
    width : (d,)
    mean : MeanPrior
    settings : FitSettings
    num_threads : int
    progress : Progress
    """

    def __init__(
        self,
        sums: Callable[[FrequencyLattice], FourierStatistics],
        count: float,
        extent: Domain,
        width: NDArray[np.float64],
        mean: MeanPrior,
        settings: FitSettings,
        num_threads: int,
        progress: Progress,
    ) -> None:
        self._sums = sums
        self._count = count
        self._extent = extent
        self._width = width
        self._mean = mean
        self._settings = settings
        self._num_threads = num_threads
        self._progress = progress
        self._evaluations = 0
        #: What one more evaluation and the posterior after it take, once that is known.
        self._seconds_ahead = 0.0
        self._stopped_early = False

    @cached_property
    def _seconds_at_first(self) -> float:
        """The time left when a lattice is first asked for: later lattices are no smaller for it."""
        return self._settings.seconds_left

    def _late(self) -> bool:
        """Return whether learning has to end for the posterior to be there in time."""
        self._stopped_early = self._settings.late(self._seconds_ahead)
        return self._stopped_early

    def choose(self, start: Start, max_modes: float | None = None) -> LatticeChoice:
        """Return the lattice that hyperparameters ask for."""
        asked = self._settings.num_features
        if asked is not None:
            max_modes = asked if max_modes is None else min(asked, max_modes)
        return choose_lattice(
            start.kernel,
            start.noise_variance,
            self._count,
            self._extent,
            self._width,
            self._settings.wrap_tolerance,
            self._settings.max_memory,
            max_modes,
            self._seconds_at_first,
        )

    def fit(
        self,
        start: Start,
        lattice: FrequencyLattice | None = None,
        rival: Start | None = None,
    ) -> Fit:
        """Return the fit from hyperparameters that windows of the rows have taught.

        Parameters
        ----------
        lattice : FrequencyLattice, optional
            One to keep, because there are no rows to be summed on another.
        rival : Start, optional
            Other hyperparameters, from which learning begins if their evidence is larger.
        """
        self._evaluations = 0
        if lattice is not None:
            modes = int(np.prod(2 * lattice.extent + 1))
            choice = LatticeChoice(lattice, modes, self.choose(start).wanted, "the sums at hand")
            return self._finish(choice, self._stage(choice, start, _EVALUATIONS[-1]))
        choice = self.choose(start)
        stage = self._stage(choice, start, _EVALUATIONS[0], rival=rival)
        for evaluations in _EVALUATIONS[1:]:
            vector, settled = stage.scored.evidence.vector, stage.scored.converged
            start = Start(stage.objective.kernel_at(vector), float(np.exp(vector[-1])))
            again = self.choose(start)
            # Close to the present lattice, learning goes on where it is.
            same = _alike(choice, again)
            if (settled and same) or self._late():
                break
            choice = choice if same else again
            stage = self._stage(choice, start, evaluations, stage, same=same)
        return self._finish(choice, stage)

    def _stage(
        self,
        choice: LatticeChoice,
        start: Start,
        max_evaluations: int,
        before: Stage | None = None,
        *,
        same: bool = False,
        rival: Start | None = None,
    ) -> Stage:
        """Return what learning on one lattice comes to, from the start or from where it was.

        Parameters
        ----------
        before : Stage, optional
            The stage before this one.
        same : bool
            Whether that was on the same lattice.
        """
        if before is not None and same:
            objective = before.objective
        else:
            self._progress.say(f"summing rows for {choice.num_modes:,} modes")
            objective = self._objective(choice, start)
        if not self._settings.learn:
            vector = objective.vector(start.kernel, start.noise_variance)
            self._evaluations += 1
            evidence = objective.evaluate(vector, profile=False)
            return Stage(objective, Scored(evidence, True, 1, evidence.information))
        limits = before.limits if before and same else None
        lower, upper = limits or self._limits(choice.lattice, start, objective)
        scored = self._learned(
            objective,
            start,
            lower,
            upper,
            max_evaluations,
            before.scored if before else None,
            same=same,
            rival=rival,
        )
        self._evaluations += scored.num_evaluations
        at_limit = names_at_limit(objective.slots, scored.evidence.vector, lower, upper)
        return Stage(objective, scored, (lower, upper), at_limit)

    def _objective(self, choice: LatticeChoice, start: Start) -> IterativeObjective:
        return IterativeObjective(
            self._sums(choice.lattice),
            start.kernel,
            self._mean,
            repeats=self._settings.repeats,
            num_probes=_num_probes(choice.num_modes),
            num_threads=self._num_threads,
        )

    def _limits(
        self, lattice: FrequencyLattice, start: Start, objective: IterativeObjective
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return parameter_limits(
            start.kernel,
            objective.slots,
            lattice,
            self._width,
            max(self._settings.wrap_tolerance, _ROOM),
            max(_NOISE_FLOOR, 10 * TOLERANCE * self._count),
        )

    def _learned(
        self,
        objective: IterativeObjective,
        start: Start,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        max_evaluations: int,
        before: Scored | None,
        *,
        same: bool,
        rival: Start | None,
    ) -> Scored:
        def evaluate(vector: NDArray[np.float64]) -> Evidence:
            began = time.monotonic()
            evidence = objective.evaluate(vector)
            seconds = time.monotonic() - began
            self._seconds_ahead = seconds * (1 + _POSTERIOR_VECTORS / objective.num_vectors)
            self._progress.say(
                f"learning with {objective.density.grid.size:,} modes: log p(y) "
                f"{evidence.value:,.1f}, {evidence.iterations} iterations"
            )
            return evidence

        def sharpen(vector: NDArray[np.float64]) -> NDArray[np.float64]:
            self._progress.say("learning: computing the curvature")
            return objective.average_information(vector)

        def limited(at: Start) -> NDArray[np.float64]:
            vector = objective.vector(at.kernel, at.noise_variance)
            lattice = objective.density.lattice
            return within_limits(at.kernel, objective.slots, vector, lower, upper, lattice)

        first = before.evidence if before and same else None
        if rival is not None:
            candidates = [begin(evaluate, limited(at), upper) for at in (start, rival)]
            first = max((evidence for evidence, _ in candidates), key=lambda own: own.value)
            self._evaluations += sum(number for _, number in candidates)
        return score(
            evaluate,
            limited(start),
            lower,
            upper,
            max_evaluations=max_evaluations,
            out_of_time=self._late,
            first=first,
            before=before,
            sharpen=sharpen,
        )

    def _finish(self, choice: LatticeChoice, stage: Stage) -> Fit:
        objective, scored = stage.objective, stage.scored
        evidence, statistics = scored.evidence, objective.statistics
        self._progress.say("solving for the posterior")
        model = self._final_model(objective, evidence)
        kernel, noise = model.kernel, model.noise_variance
        right, posterior_of = right_hand_sides(model, statistics, self._mean)
        solution = solve(
            model.system,
            model.preconditioner,
            right,
            tolerance=final_tolerance(model),
            start=objective.solutions_nearby(right),
        )
        modes = posterior_of(solution.x, solution.residual)
        variance = self._variance(model)
        elbo, upper = bounds_of(model, objective, modes, evidence)
        certificate = Certificate.from_gap(elbo.total, upper.total)._replace(
            wrap_error=wrap_error(kernel, choice.lattice.period, self._width)
        )
        status = describe_iterative(
            choice,
            certificate,
            scored,
            evidence,
            variance,
            stage.at_limit,
            late=self._stopped_early or self._settings.late(),
            asked=self._settings.solver == "iterative" or self._settings.num_features is not None,
        )
        return Fit(
            kernel=kernel,
            noise_variance=noise,
            elbo=elbo,
            tightened=elbo,
            upper=upper,
            certificate=certificate,
            status=status,
            converged=scored.converged,
            num_evaluations=self._evaluations,
            rows=objective.rows,
            features=Lattice(choice.lattice, choice.lattice.half_indices(), self._mean),
            num_features=choice.num_modes,
            period=choice.lattice.period,
            posterior=partial(IterativePosterior, model, modes, variance, self._mean),
        )

    def _final_model(self, objective: IterativeObjective, evidence: Evidence) -> Model:
        """Return the model that was learned, with a fine preconditioner if precision allows it."""
        kernel = objective.kernel_at(evidence.vector)
        noise = float(np.exp(evidence.vector[-1]))
        try:
            return Model.build(objective.density, self._mean, kernel, noise, fine=True)
        except PrecisionError:
            return objective.model(evidence.vector)

    def _variance(self, model: Model) -> VarianceField:
        rng, began = np.random.default_rng(0), time.monotonic()

        def some(num: int) -> Draws:
            return draw_modes(
                model,
                num,
                rng,
                self._settings.max_memory,
                tolerance=DRAW_TOLERANCE,
                precision=ample_precision(model),
            )

        draws = some(_HASTY_DRAWS if self._settings.late() else _FIRST_DRAWS)
        while True:
            variance = VarianceField.estimate(model, draws)
            self._progress.say(
                f"variances from {len(draws.modes)} draws: error {variance.relative_error:.1%}"
            )
            # Once the grid's cells leave more error than the draws do, more of these gain little.
            other_error = np.sqrt(variance.relative_error**2 - variance.sampling_error**2)
            enough = max(VARIANCE_ERROR, np.sqrt(2) * other_error)
            if variance.relative_error <= enough or len(draws.modes) >= _MOST_DRAWS:
                return variance
            # As many again take as long again.
            if self._settings.late(ahead=time.monotonic() - began):
                return variance
            draws = Draws.joined([draws, some(len(draws.modes))])


def _alike(old: LatticeChoice, new: LatticeChoice) -> bool:
    """Return whether another lattice would make no difference worth its sums."""
    modes = abs(np.log(new.num_modes / old.num_modes))
    periods = np.abs(np.log(new.lattice.period / old.lattice.period))
    return bool(modes < np.log(_OUTGROWN) and np.all(periods < np.log(_LONGER)))


def _num_probes(num_modes: int) -> int:
    """Return how many probes suffice: each averages over all modes."""
    return 8 if num_modes < 20_000 else 4 if num_modes < 500_000 else 2
