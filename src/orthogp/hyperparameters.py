r"""The posterior of the hyperparameters, draws from it, and predictions that integrate over it.

    p(log θ | y) ∝ p(y | θ) p(log θ)

with the evidence of the fitted engine and the priors of the kernel and the noise; a parameter
without a prior has a flat one in its logarithm, between the limits of the search. With draws θ_s of
weights w_s, predictions are a mixture:

    mean f = Σ w_s m_s,      var f = Σ w_s (v_s + m_s²) − (Σ w_s m_s)²

At the maximum of log p the curvature H gives Laplace's approximation N(θ̂, H⁻¹). Draws from a
t-distribution with this centre and scale are weighted by

    w_s ∝ p(θ_s)/q(θ_s),      effective sample size (Σ w_s)²/Σ w_s²

The points are those of a scrambled Sobol sequence, of which some hundred are worth thousands of
random ones. Where the weights say that the approximation fails, as it does in many dimensions or
where the density bends, Hamiltonian Monte Carlo takes over, with H as the mass matrix: it follows
the gradient, needs no approximation, and costs some gradients for each draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc
from sklearn.utils import check_random_state

from orthogp.engines import settings_for
from orthogp.errors import InputError, PrecisionError
from orthogp.exact.process import ExactObjective, ExactPosterior
from orthogp.inference.parameters import Slot, Start, pack, stretched, unpack
from orthogp.inference.predictive import Functions, Gaussian, PredictivePosterior
from orthogp.kernels import Kernel
from orthogp.kernels.base import AMPLITUDES
from orthogp.learning.dense import Fitter
from orthogp.learning.limits import NOISE_FLOOR, row_limits
from orthogp.learning.optimise import Box, Budget, Objective, refine
from orthogp.learning.problem import FitSettings
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.precision import BlasThreads, one_thread, within_precision
from orthogp.rows import Units
from orthogp.statistics.nufft import available_threads
from orthogp.validation import choose_model, kernel_of

Array = NDArray[np.float64]

#: The number of draws unless a user asks for another.
DRAWS = 512
# The number of draws that predictions are chosen from.
_TRIED = 64
# The most posteriors that predictions mix.
_MOST_MIXED = 24
# The fewest.
_FEWEST_MIXED = 8
# The most bytes that the matrices of these posteriors take together.
_MOST_BYTES = 4e8
# The least factor by which lattices leave room for longer and shorter lengthscales.
_LEAST_ROOM = 1.1
# The largest factor by which lengthscales may grow: the longer a period, the more features.
_LONGER = 8.0
# The largest factor by which features reach for shorter lengthscales.
_SHORTER = 3.0
# The most features, relative to those of the fit.
_MOST_FEATURES = 3


@dataclass(frozen=True)
class Hyperparameters:
    """Draws from the posterior of hyperparameters, in the units of X and y.

    Attributes
    ----------
    names : tuple of str
        With `k1_`, `k2_`, … in front where the kernel has several parts, and the number of the
        entry behind where a parameter has several.
    draws : (s, p)
    weights : (s,)
        They sum to one.
    effective_sample_size : float
        The number of independent draws that are worth as much.
    method : {"importance", "hamiltonian"}
    """

    names: tuple[str, ...]
    draws: Array
    weights: Array
    effective_sample_size: float
    method: str

    @property
    def mean(self) -> Array:
        """The posterior means, (p,)."""
        return self.weights @ self.draws

    @property
    def standard_errors(self) -> Array:
        """The posterior standard deviations of the logarithms: relative errors, (p,)."""
        return np.sqrt(np.diag(self._covariance))

    @property
    def correlations(self) -> Array:
        """The posterior correlations of the logarithms, (p, p)."""
        errors = np.maximum(self.standard_errors, 1e-300)
        return self._covariance / np.outer(errors, errors)

    @property
    def _covariance(self) -> Array:
        logs = np.log(self.draws)
        centred = logs - self.weights @ logs
        return (centred * self.weights[:, None]).T @ centred

    def quantile(self, probability: float) -> Array:
        """Return the posterior quantile of each parameter, (p,)."""
        if not 0 <= probability <= 1:
            raise InputError(f"A probability must be between 0 and 1, got {probability!r}.")
        found = []
        for column in self.draws.T:
            order = np.argsort(column)
            reached = np.cumsum(self.weights[order]) - self.weights[order] / 2
            found.append(np.interp(probability, reached, column[order]))
        return np.array(found)

    def to_arviz(self) -> Any:
        """Return the draws as ArviZ's InferenceData, resampled to equal weights: one chain."""
        try:
            import arviz  # type: ignore[import-not-found]
        except ImportError as error:
            raise InputError("to_arviz needs ArviZ: install it by pip install arviz.") from error
        chosen = _resampled(self.weights, len(self.weights), np.random.default_rng(0))
        columns = zip(self.names, self.draws[chosen].T, strict=True)
        return arviz.from_dict(posterior={name: column[None] for name, column in columns})

    def __str__(self) -> str:
        low, middle, high = (self.quantile(q) for q in (0.05, 0.5, 0.95))
        width = max(map(len, self.names))
        lines = [f"{'':{width}}   median   90 % interval"]
        for name, *numbers in zip(self.names, middle, low, high, strict=True):
            lines.append(
                f"{name:{width}}   {numbers[0]:<8.4g} {numbers[1]:.4g} to {numbers[2]:.4g}"
            )
        lines.append(
            f"{len(self.draws)} draws worth {self.effective_sample_size:.0f} ({self.method})"
        )
        return "\n".join(lines)


class Evidence(NamedTuple):
    """An engine's log evidence and log prior as a function of log hyperparameters.

    Attributes
    ----------
    objective : callable
        The function and its gradient; `value` gives the function alone.
    slots : tuple of Slot
        The entries of the vector, but for the last, the log noise variance.
    mode : (p,)
        Where it is largest.
    posterior : callable
        Returns the posterior of f given hyperparameters.
    size : int
        The number of rows of the matrix that a posterior holds.
    """

    objective: Objective
    value: Callable[[Array], float]
    slots: tuple[Slot, ...]
    kernel: Kernel
    mode: Array
    box: Box
    posterior: Callable[[Start], PredictivePosterior]
    size: int

    def start_at(self, vector: Array) -> Start:
        """Return the hyperparameters of a vector."""
        return Start(unpack(self.kernel, self.slots, vector[:-1]), float(np.exp(vector[-1])))


def hyperparameters_of(model: Any, num_draws: int, random_state: Any) -> Hyperparameters:
    """Return draws from the posterior of a fitted model's hyperparameters."""
    if not (isinstance(num_draws, Integral) and int(num_draws) >= 2):
        raise InputError(f"draws must be a whole number ≥ 2, got {num_draws!r}.")
    evidence, seed = evidence_of(model), _seed(random_state)
    with one_thread(), within_precision():
        drawn = draw_from(
            evidence.objective, evidence.value, evidence.mode, evidence.box, int(num_draws), seed
        )
    names, units, angles = _described(evidence, float(model.target_scale_[0] ** 2))
    draws = np.where(angles, drawn.vectors, np.exp(drawn.vectors)) * units
    free = evidence.box[1] > evidence.box[0]
    kept = tuple(name for name, moves in zip(names, free, strict=True) if moves)
    return Hyperparameters(kept, draws[:, free], drawn.weights, drawn.effective, drawn.method)


def predictive(model: Any) -> PredictivePosterior:
    """Return the posterior of f that a fitted model predicts by.

    A mixture is made once. Files hold the sums or the rows, which give it again.
    """
    if model.hyperparameters != "integrate" or model._sketch.units(shared=True).constant:
        return model.posterior_
    if not hasattr(model, "_mixed"):
        model._mixed = _integrated(model)
    return model._mixed


def _seed(random_state: Any) -> int:
    return 0 if random_state is None else int(check_random_state(random_state).randint(2**31))


def _integrated(model: Any) -> MixedPosterior:
    """Return the posterior of f that integrates over a fitted model's hyperparameters."""
    evidence, seed = evidence_of(model), _seed(model.random_state)
    room = int(_MOST_BYTES / (8 * evidence.size**2))
    number = int(np.clip(room, _FEWEST_MIXED, _MOST_MIXED))
    with one_thread(), within_precision():
        drawn = draw_from(
            evidence.objective, evidence.value, evidence.mode, evidence.box, _TRIED, seed
        )
        # Along the direction in which they differ most, so that the chosen ones spread evenly.
        centred = drawn.vectors - drawn.weights @ drawn.vectors
        main = np.linalg.eigh((centred * drawn.weights[:, None]).T @ centred)[1][:, -1]
        order = np.argsort(centred @ main)
        chosen = order[_resampled(drawn.weights[order], number, np.random.default_rng(seed))]
        places, counts = np.unique(chosen, return_counts=True)
        parts = [evidence.posterior(evidence.start_at(drawn.vectors[i])) for i in places]
    return MixedPosterior(parts, counts / number)


def _resampled(weights: Array, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return draws of equal weight, by systematic resampling."""
    ticks = (np.arange(number) + rng.random()) / number
    return np.searchsorted(np.cumsum(weights), ticks).clip(max=len(weights) - 1)


def _described(evidence: Evidence, unit: float) -> tuple[list[str], Array, NDArray[np.bool_]]:
    """Return the entries' names, their units, and which are angles."""
    several = sum(1 for _ in evidence.kernel.primitives()) > 1
    names, units, angles = [], [], []
    for slot in evidence.slots:
        name = f"k{slot.primitive + 1}_{slot.name}" if several else slot.name
        names += [name] if slot.size == 1 else [f"{name}_{i}" for i in range(slot.size)]
        units += slot.size * [unit if slot.name in AMPLITUDES else 1.0]
        angles += slot.size * [slot.is_angle]
    return [*names, "noise_variance"], np.array([*units, unit]), np.array([*angles, False])


# ---------------------------------------------------------------------- the engines


def evidence_of(model: Any) -> Evidence:
    """Return the evidence of a fitted model, from what it has kept of the rows."""
    if model.likelihood_ is not None:
        raise InputError(
            "The posterior of hyperparameters is for Gaussian noise, not for the "
            f'{model.likelihood} likelihood: use hyperparameters="optimise".'
        )
    if not model.learn:
        raise InputError("Hyperparameters that are not learned have no posterior: set learn=True.")
    if len(model.target_scale_) > 1:
        raise InputError("The posterior of hyperparameters takes one target: fit each by itself.")
    sketch, settings, start = model._sketch, _settings(model), _start(model)
    units = Units(model.target_offset_, model.target_scale_, constant=False)
    if model.engine_ == "exact":
        return _exact_evidence(sketch, units, settings, start)
    if model.engine_ in ("dense", "additive"):
        return _lattice_evidence(sketch, units, settings, start, model)
    raise InputError(
        f"The engine {model.engine_!r} has no posterior of hyperparameters, for lack of an "
        'evidence of all rows: use solver="exact" for few rows, "dense" for up to three columns, '
        "or an additive kernel."
    )


def _settings(model: Any) -> FitSettings:
    """Return how a model was fitted, with bounds and priors in the units of its posterior."""
    joint = isinstance(model._sketch, KeptRows) and not model.posterior_.additive
    chosen = choose_model(kernel_of(model), model.features, model.n_features_in_, joint=joint)
    beliefs = chosen.beliefs(model.noise_variance, 1 / float(model.target_scale_[0] ** 2))
    return replace(settings_for(model, chosen, None), beliefs=beliefs)


def _start(model: Any) -> Start:
    """Return the hyperparameters of a model, in the units of its posterior."""
    return Start(model._last.kernel.without_knowledge(), model._last.noise_variance)


def lattice_fitter(model: Any, sketch: Sketch, units: Units) -> tuple[Fitter, Start]:
    """Return what evaluates a lattice model on the sums of some rows, and where it was learned."""
    return _fitter(model, sketch, units, _settings(model)), _start(model)


def _fitter(model: Any, sketch: Sketch, units: Units, settings: FitSettings) -> Fitter:
    threads, layout = BlasThreads(available_threads(model.n_jobs)), sketch.layout(settings)
    statistics = sketch.standardised(units)
    return Fitter(statistics, sketch.width, sketch.mean, settings, threads, layout)


def _exact_evidence(
    sketch: KeptRows, units: Units, settings: FitSettings, start: Start
) -> Evidence:
    rows, repeats = sketch.standardised_rows(units), settings.repeats
    if rows.weights is not None:
        rows = rows.part(np.flatnonzero(rows.weights > 0))
    likelihood = ExactObjective(start.kernel, sketch.mean, rows, repeats=repeats)
    slots, beliefs = likelihood.slots, settings.beliefs

    def objective(vector: Array) -> tuple[float, Array]:
        value, gradient = likelihood.value_and_gradient(vector)
        prior = beliefs.log_prior(slots, vector)
        return value + prior.value, gradient + prior.gradient

    def value(vector: Array) -> float:
        return likelihood.value(vector) + beliefs.log_prior(slots, vector).value

    def posterior(at: Start) -> PredictivePosterior:
        return ExactPosterior(at.kernel, at.noise_variance, sketch.mean, rows, repeats=repeats)

    limits = row_limits(start.kernel, slots, np.asarray(rows.X), NOISE_FLOOR)
    mode = np.append(pack(start.kernel, slots), np.log(start.noise_variance))
    box = _around(beliefs.within(slots, limits), mode)
    return Evidence(objective, value, slots, start.kernel, mode, box, posterior, len(rows.X))


def _lattice_evidence(
    sketch: Sketch, units: Units, settings: FitSettings, start: Start, model: Any
) -> Evidence:
    fitter, num_threads = _fitter(model, sketch, units, settings), available_threads(model.n_jobs)
    # First how far lengthscales may go, then features that hold them all.
    first = fitter.evidence(start, model.num_features_, _LEAST_ROOM)
    mode = np.append(pack(start.kernel, first.slots), np.log(start.noise_variance))
    box = _around(fitter.limits_of(first, start.kernel), mode)
    free = box[1] > box[0]
    with one_thread(), within_precision():
        inner = np.clip(mode, box[0] + 2e-3 * free, box[1] - 2e-3 * free)
        H = curvature_of(first.value_and_gradient, inner, free)
        values, vectors = np.linalg.eigh(H)
        spread = np.sqrt(np.sum(vectors**2 / np.maximum(values, 0.5), axis=1))
    lengths = np.repeat(
        [slot.name == "lengthscale" for slot in first.slots] + [False],
        [slot.size for slot in first.slots] + [1],
    )[free]
    # Where data say little, posteriors of lengthscales have a long tail on the side of long ones.
    sd = float(np.max(spread[lengths], initial=0.0))
    longer = float(np.clip(np.exp(4 * sd), _LEAST_ROOM, _LONGER))
    shorter = float(np.clip(np.exp(2 * sd), _LEAST_ROOM, _SHORTER))
    present = model.num_features_
    wanted = fitter.certified_features(
        Start(stretched(start.kernel, 1 / shorter), start.noise_variance)
    )
    most = min(_MOST_FEATURES * present, max(settings.most_features, present))
    objective = fitter.evidence(start, int(np.clip(wanted, present, most)), longer)
    box = _around(fitter.limits_of(objective, start.kernel), mode)
    period = objective.features.parts
    domain = sketch.covered(
        period[0].lattice.period if sketch.joint else tuple(part.lattice.period for part in period)
    )

    def posterior(at: Start) -> PredictivePosterior:
        return fitter.posterior_of(objective, at).over(domain, num_threads)

    def value(vector: Array) -> float:
        return objective.value_and_gradient(vector)[0]

    size = objective.features.num_features
    both = objective.value_and_gradient, value
    return Evidence(*both, objective.slots, start.kernel, mode, box, posterior, size)


def _around(box: Box, mode: Array) -> Box:
    """Return limits that hold the mode, where a search ended up to rounding beyond them."""
    held = box[0] == box[1]
    return (
        np.where(held, mode, np.minimum(box[0], mode)),
        np.where(held, mode, np.maximum(box[1], mode)),
    )


# ---------------------------------------------------------------------- the mixture


class MixedPosterior(PredictivePosterior):
    """A mixture of posteriors of one target, each of other hyperparameters.

    Its `predict` gives mean and variance of the mixture, which is not Gaussian.
    """

    def __init__(self, parts: list[PredictivePosterior], weights: Array) -> None:
        self.parts = parts
        self.weights = np.asarray(weights, dtype=np.float64)
        self.noise_variance = self._average("noise_variance")
        self.prior_variance = self._average("prior_variance")
        self.residual = self._average("residual")

    def _average(self, name: str) -> float:
        return float(self.weights @ [getattr(part, name) for part in self.parts])

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        return self._mixed([part.predict(X) for part in self.parts])

    def covariance(self, X: NDArray) -> Array:
        """Return the covariance matrix of f at the rows of X, (n, n)."""
        means = np.stack([part.predict_mean(X)[:, 0] for part in self.parts])
        apart = means - self.weights @ means
        total = (apart * self.weights[:, None]).T @ apart
        for part, weight in zip(self.parts, self.weights, strict=True):
            total += weight * part.covariance(X)
        return total

    def draw(self, num_draws: int, rng: np.random.Generator) -> Functions:
        """Return functions, each from a posterior drawn by its weight."""
        counts = rng.multinomial(num_draws, self.weights)
        drawn = [
            part.draw(int(count), rng)
            for part, count in zip(self.parts, counts, strict=True)
            if count
        ]
        order = rng.permutation(num_draws)

        def functions(X: NDArray) -> Array:
            return np.concatenate([own(X) for own in drawn], axis=1)[:, order]

        return functions

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        return self._mixed([part.derivative(X, dim) for part in self.parts])

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each."""
        return self._mixed([part.integral(lower, upper) for part in self.parts])

    def _mixed(self, found: list[Gaussian]) -> Gaussian:
        """Return the moments of the mixture, by the law of total variance."""
        means = np.stack([own.mean for own in found])
        mean = np.tensordot(self.weights, means, axes=1)
        between = np.tensordot(self.weights, (means - mean) ** 2, axes=1)[:, 0]
        within = self.weights @ np.stack([own.variance for own in found])
        return Gaussian(mean, within + between)


Vector = NDArray[np.float64]

# The degrees of freedom of the proposals: tails heavier than those of most densities.
_DEGREES = 5.0
# The largest standard deviation of a proposal: a factor e^1.5 in a parameter.
_WIDEST = 1.5
# The step of differences of gradients.
_STEP = 1e-3
# The effective share of the draws below which weights are not to be trusted.
_TRUSTED = 0.25
# The most steps to the top.
_REFINEMENTS = 6
# The promised gain in nats at which the top is reached.
_AT_TOP = 5e-3
# The trajectories before the first that counts.
_WARM_UP = 200
# The most leapfrog steps of a trajectory.
_MOST_STEPS = 32
# The shortest step of a trajectory, relative to the longest.
_SHORTEST = 0.1
# The share of trajectories that are to be accepted.
_ACCEPTED = 0.95


class Draws(NamedTuple):
    """Draws from a density.

    Attributes
    ----------
    vectors : (s, p)
    weights : (s,)
        They sum to one.
    effective : float
        The number of independent draws that are worth as much.
    method : {"importance", "hamiltonian"}
    """

    vectors: NDArray[np.float64]
    weights: Vector
    effective: float
    method: str


def curvature_of(objective: Objective, mode: Vector, free: NDArray[np.bool_]) -> NDArray:
    """Return minus the second derivatives in the free entries, by differences of gradients."""
    rows = []
    for i in np.flatnonzero(free):
        step = np.zeros(len(mode))
        step[i] = _STEP
        change = objective(mode - step)[1] - objective(mode + step)[1]
        rows.append(change[free] / (2 * _STEP))
    H = np.array(rows).reshape(len(rows), len(rows))
    return (H + H.T) / 2


def draw_from(
    objective: Objective,
    value: Callable[[Vector], float],
    mode: Vector,
    box: Box,
    num_draws: int,
    seed: int = 0,
) -> Draws:
    """Return draws from the density exp(value) in a box; entries without room stay where they are.

    Parameters
    ----------
    objective : callable
        Gives the log density and its gradient; `value` gives the log density alone.
    mode : (p,)
        Where the density is largest.
    """
    free = box[1] > box[0]
    if not free.any():
        weights = np.full(num_draws, 1 / num_draws)
        return Draws(np.tile(mode, (num_draws, 1)), weights, float(num_draws), "importance")
    # Away from the box, whose edges bend nothing.
    inner = box[0] + 2 * _STEP * free, box[1] - 2 * _STEP * free
    mode = np.clip(mode, *inner)
    root, curvature = _scaled(objective, mode, free)
    # A search for predictions may end some tenths of a nat below the top, which is far here.
    top = refine(objective, mode, inner, curvature, Budget(_REFINEMENTS, tolerance=_AT_TOP)).x
    if np.any(top != mode):
        mode = top
        root, _ = _scaled(objective, mode, free)

    def place(moves: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.tile(mode, (len(moves), 1))
        found[:, free] += moves @ root.T
        return found

    def log_density(vector: Vector) -> float:
        if np.any(vector < box[0]) or np.any(vector > box[1]):
            return -np.inf
        try:
            return value(vector)
        except PrecisionError:
            return -np.inf

    drawn = _by_importance(place, log_density, int(free.sum()), num_draws, seed)
    if drawn.effective >= _TRUSTED * num_draws:
        return drawn

    def with_gradient(move: Vector) -> tuple[float, Vector]:
        vector = place(move[None])[0]
        outside = np.any(vector < box[0]) or np.any(vector > box[1])
        try:
            found, gradient = objective(np.clip(vector, *box))
        except PrecisionError:
            return -np.inf, np.zeros(len(move))
        return -np.inf if outside else found, root.T @ gradient[free]

    moves = _hamiltonian(with_gradient, int(free.sum()), num_draws, seed)
    weights = np.full(num_draws, 1 / num_draws)
    return Draws(place(moves), weights, _independent(moves), "hamiltonian")


def _scaled(
    objective: Objective, mode: Vector, free: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return R with RRᵀ = H⁻¹ in the free entries, and a positive curvature of all entries."""
    eigenvalues, vectors = np.linalg.eigh(curvature_of(objective, mode, free))
    eigenvalues = np.maximum(eigenvalues, 1 / _WIDEST**2)
    curvature = np.eye(len(mode))
    curvature[np.ix_(free, free)] = (vectors * eigenvalues) @ vectors.T
    return vectors / np.sqrt(eigenvalues), curvature


def _by_importance(
    place: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    log_density: Callable[[Vector], float],
    size: int,
    num_draws: int,
    seed: int,
) -> Draws:
    """Return weighted draws around the mode."""
    points = qmc.Sobol(size + 1, scramble=True, rng=np.random.default_rng(seed))
    # A whole power of two of them is balanced.
    uniforms = points.random_base2(int(np.ceil(np.log2(num_draws))))[:num_draws]
    uniforms = np.clip(uniforms, 1e-12, 1 - 1e-12)
    stretch = np.sqrt(_DEGREES / chi2.ppf(uniforms[:, -1], _DEGREES))
    moves = norm.ppf(uniforms[:, :-1]) * stretch[:, None]
    vectors = place(moves)
    values = np.array([log_density(vector) for vector in vectors])
    proposal = gammaln((_DEGREES + size) / 2) - (_DEGREES + size) / 2 * np.log1p(
        np.sum(moves**2, axis=1) / _DEGREES
    )
    logs = values - proposal
    if not np.isfinite(logs.max()):
        return Draws(vectors, np.full(num_draws, 1 / num_draws), 0.0, "importance")
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return Draws(vectors, weights, float(1 / np.sum(weights**2)), "importance")


def _hamiltonian(
    evaluate: Callable[[Vector], tuple[float, Vector]], size: int, num_draws: int, seed: int
) -> NDArray[np.float64]:
    """Return draws by trajectories from the mode, in coordinates of unit curvature."""
    rng = np.random.default_rng(seed)
    x, step = np.zeros(size), 0.5
    value, gradient = evaluate(x)
    kept = np.empty((num_draws, size))
    for number in range(_WARM_UP + num_draws):
        momentum = rng.standard_normal(size)
        start = value - momentum @ momentum / 2
        place, slope, end = x, gradient, value
        # Short steps reach where the density bends more than it does in the middle.
        own = step * rng.uniform(_SHORTEST, 1.0)
        for _ in range(rng.integers(_MOST_STEPS // 2, _MOST_STEPS + 1)):
            momentum = momentum + own / 2 * slope
            place = place + own * momentum
            end, slope = evaluate(place)
            momentum = momentum + own / 2 * slope
            if not np.isfinite(end):
                break
        gain = end - momentum @ momentum / 2 - start
        chance = float(np.exp(min(gain, 0.0))) if np.isfinite(gain) else 0.0
        if rng.random() < chance:
            x, value, gradient = place, end, slope
        if number < _WARM_UP:
            # Longer steps where all are accepted, shorter ones where few are.
            step *= float(np.exp(0.2 * (chance - _ACCEPTED)))
        else:
            kept[number - _WARM_UP] = x
    return kept


def _independent(moves: NDArray[np.float64]) -> float:
    """Return the number of independent draws worth as much, for the worst coordinate.

    n/(1 + 2 Σ ρ_k), with the correlations ρ_k up to the first that is not positive.
    """
    n = len(moves)
    found = float(n)
    for column in (moves - moves.mean(axis=0)).T:
        variance = column @ column
        total = 0.0
        for lag in range(1, n):
            correlation = column[:-lag] @ column[lag:] / max(variance, 1e-300)
            if correlation <= 0.02:
                break
            total += correlation
        found = min(found, n / (1 + 2 * total))
    return found
