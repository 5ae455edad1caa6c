r"""The evidence of a lattice of many modes, its gradient, and its Fisher information.

With B = I + R T R/s² (`system.py`), M modes and b̃ = R b/s²,

    log p = −N/2 log 2πs² − ½ log|B| − ½ (yᵀy/s² − b̃ᵀB⁻¹b̃)
    ∂/∂ log s_t   = ½ (|x_t|² − 1 + (B⁻¹)_tt),             x = B⁻¹b̃
    ∂/∂ log s²    = ½ (‖y − Φx‖²/s² − N + M − tr B⁻¹)

The modes beyond the lattice, of variance d = k(0) − Σ s_t, act as noise at the rows: s² = σ² + d.

A few probes z ~ N(0, P), the same for all hyperparameters, give log|B| and tr B⁻¹, with P the
preconditioner, whose determinant is known:

    log|B| = log|P| + M·mean (e₁ᵀ log(tridiagonal) e₁)       (stochastic Lanczos quadrature)
    (B⁻¹)_tt = mean (B⁻¹z − P⁻¹z)_t (P⁻¹z)_t*  +  (P⁻¹)_tt

(P⁻¹)_tt comes from many more samples of P alone, which cost no iterations. Where data have gaps,
both inverses reflect them, and the few probes only estimate their small difference.

With u_i = x ∂ log s/∂θ_i, the average of the observed and the expected information (Gilmour,
Thompson and Cullis 1995) is

    ½ yᵀK⁻¹ ∂_iK K⁻¹ ∂_jK K⁻¹y = ½ ⟨u_i, u_j − B⁻¹u_j⟩      for parameters of the masses
                                 ½ ⟨u_i, B⁻¹x⟩              for one of them and log s²
                                 ½ (‖y − Φx‖²/s² − ⟨x, B⁻¹x⟩)   for log s²

one more solution for each parameter. It accounts for where the rows lie and for the observed
targets. The expected information of evenly spread rows costs nothing, and mostly suffices.

Learning is by Fisher scoring within limits: a few expensive evaluations, each with an information.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from orthogp.errors import PrecisionError
from orthogp.features import MeanPrior
from orthogp.fields.model import Model, Preconditioner, Solution, solve
from orthogp.fields.system import DataDensity, ModeGrid, Modes, Reals
from orthogp.inference.parameters import LogPrior, learned_slots, pack, scale_entries, unpack
from orthogp.kernels import Kernel
from orthogp.learning.layout import Limits
from orthogp.learning.optimise import box_step
from orthogp.precision import made_definite
from orthogp.statistics import FourierStatistics

# The relative error of solutions that only give a curvature.
_CURVATURE_TOLERANCE = 0.03
# The largest error of solutions for the targets, in posterior standard deviations. log p(y) is off
# by half its square.
_TOLERANCE = 0.05
# The number of modes beyond which that error grows with their root, as the scatter of probes does.
_TOLERATED_MODES = 10_000
#: The largest error, per root of the number of modes, of solutions whose average over modes counts.
PROBE_TOLERANCE = 0.01
# The most iterations: a lattice that needs more does not suit the hyperparameters.
_MOST_ITERATIONS = 200
# The smallest promised gain, in nats, for which a step is taken. A smaller one would move the
# parameters by less than their standard errors.
_SETTLED = 0.25
# The smallest gain, in nats, that is checked: below it the error of the evidence is as large.
_TRUSTED = 2.0
# The longest step of a log parameter.
_LONGEST = 1.5
# The share of the diagonal of the curvature that is added to it at the first step.
_DAMPING = 1e-3
# The most attempts at a start with too little noise for double precision.
_ATTEMPTS = 8
# The step of the log noise variance from one attempt to the next.
_MORE_NOISE = np.log(10.0)


class Derivatives(NamedTuple):
    """Derivatives of the prior in log kernel parameters θ and log σ².

    `relative` is ∂ log s_t/∂θ, (…, p). `chain` has the derivatives of (θ, log s²) in (θ, log σ²),
    (p + 1, p + 1): the variance beyond the lattice depends on θ.
    """

    relative: Reals
    chain: Reals

    def gradient(self, by_mode: Reals, by_noise: float) -> Reals:
        """Return the gradient in (θ, log σ²) from derivatives in stored log s_t and in log s²."""
        by_parameter = np.tensordot(by_mode, self.relative, axes=by_mode.ndim)
        return np.append(by_parameter, 0.0) + by_noise * self.chain[-1]


def even_rows(model: Model) -> tuple[float, Reals]:
    """Return the share of the domain that rows of the typical density fill, and h = ρs/(1 + ρs).

    Evenly spread rows have 1 − (B⁻¹)_tt = share · h.
    """
    density = model.preconditioner.typical_density
    share = model.system.density.count / (model.system.noise_variance * density)
    return share, density * model.masses / (1 + density * model.masses)


def expected_information(model: Model, derivatives: Derivatives, rows: float) -> Reals:
    """Return the expected information about log parameters and log σ², for one target.

    For data spread evenly over a fraction of the domain, K has the eigenvalues s²(1 + ρ s_t): with
    h = ρs/(1 + ρs) their derivatives are h ∂log s_t, and 1 − h with respect to log s².
    """
    grid = model.system.grid
    share, shrinkage = even_rows(model)
    weights = share * grid.weights
    flat = derivatives.relative.reshape(-1, derivatives.relative.shape[-1])
    by_mode = (weights * shrinkage**2).ravel()
    cross = (weights * shrinkage * (1 - shrinkage)).ravel()
    information = np.empty_like(derivatives.chain)
    information[:-1, :-1] = flat.T @ (by_mode[:, None] * flat)
    information[:-1, -1] = information[-1, :-1] = flat.T @ cross
    noise_only = max(rows - share * grid.size, 0.0)
    information[-1, -1] = np.sum(weights * (1 - shrinkage) ** 2) + noise_only
    return derivatives.chain.T @ information @ derivatives.chain / 2


class Evidence(NamedTuple):
    """log p(y) and its derivatives at a vector of log kernel parameters and log σ².

    The standard error is that of the value, from the scatter of the probes; the information is the
    expected one for evenly spread data; `effective` is M − tr B⁻¹, the number of determined modes.
    """

    vector: Reals
    value: float
    standard_error: float
    gradient: Reals
    information: Reals
    log_determinant: float
    effective: float
    iterations: int
    converged: bool

    def with_prior(self, prior: LogPrior) -> Evidence:
        """Return the sum with a log prior; where that bends upwards, it adds no information."""
        return self._replace(
            value=self.value + prior.value,
            gradient=self.gradient + prior.gradient,
            information=self.information + np.diag(np.maximum(-prior.bend, 0.0)),
        )


class IterativeObjective:
    """The evidence of one lattice under changing hyperparameters.

    The kernel gives the form and the learned parameters; `repeats` says whether weights count rows.
    """

    def __init__(
        self,
        statistics: FourierStatistics,
        kernel: Kernel,
        mean: MeanPrior,
        *,
        repeats: bool = True,
        num_probes: int = 8,
        num_threads: int = 1,
    ) -> None:
        self.statistics = statistics
        self.density = DataDensity(statistics, num_threads, repeats=repeats)
        self.kernel = kernel
        self.mean = mean
        self.slots = learned_slots(kernel)
        self.rows = statistics.count if repeats else statistics.rows
        self._log_weights = 0.0 if repeats else statistics.log_weights
        self._num_probes = num_probes
        #: The last solutions for the targets and covariates, where the next ones begin.
        self.last: Modes | None = None
        self._like: Preconditioner | None = None
        self._scale_slots = scale_entries(kernel, self.slots)

    @property
    def num_vectors(self) -> int:
        """The number of right-hand sides that an evaluation solves for."""
        slopes = len(self.density.covariates) if self.mean.slope_variance else 0
        return self.statistics.num_targets + slopes + self._num_probes

    def kernel_at(self, vector: Reals) -> Kernel:
        """Return the kernel of a parameter vector."""
        return unpack(self.kernel, self.slots, np.asarray(vector[:-1]))

    def vector(self, kernel: Kernel, noise_variance: float) -> Reals:
        """Return the parameter vector of a kernel and a noise variance."""
        return np.append(pack(kernel, self.slots), np.log(noise_variance))

    def model(self, vector: Reals) -> Model:
        """Return the model of a vector, on the first preconditioner's grid for smooth evidence."""
        noise = float(np.exp(vector[-1]))
        model = Model.build(self.density, self.mean, self.kernel_at(vector), noise, self._like)
        self._like = model.preconditioner
        return model

    def derivatives(self, model: Model, vector: Reals) -> Derivatives:
        """Return the derivatives of the prior at the vector of a model."""
        grid, noise = self.density.grid, model.system.noise_variance
        prior = grid.masses_jacobian(vector[:-1], self.kernel, self.slots, self.density.lattice)
        masses = model.masses[..., None]
        zeros = np.zeros_like(prior.jacobian)
        relative = np.divide(prior.jacobian, masses, out=zeros, where=masses > 0)
        weights = np.broadcast_to(grid.weights, grid.shape)
        resolved = np.tensordot(weights, prior.jacobian, axes=grid.num_dims)
        unresolved = (prior.variance_jacobian - resolved) * self.density.average_weight / noise
        if model.unresolved == 0:
            unresolved[:] = 0.0
        chain = np.eye(len(vector))
        chain[-1] = np.append(unresolved, model.noise_variance / noise)
        return Derivatives(relative, chain)

    def evaluate(self, vector: Reals, *, profile: bool = True) -> Evidence:
        """Return the evidence at a vector.

        With `profile` the vector moves to the best common factor f of kernel and noise variance: B
        does not depend on it, and log p = … − ½ (pN log f + q/f), so that f = q/(pN).
        """
        model = self.model(vector)
        right, P = model.equations.right, model.preconditioner
        z = P.sample(P.noise(np.random.default_rng(0), self._num_probes))
        start = None if self.last is None else np.concatenate([self.last, np.zeros_like(z)])
        tolerance = np.full(len(right) + len(z), self._tolerance)
        tolerance[len(right) :] = PROBE_TOLERANCE * np.sqrt(self.density.grid.size)
        solution = solve(
            model,
            np.concatenate([right, z]),
            tolerance=tolerance,
            start=start,
            max_iterations=_MOST_ITERATIONS,
        )
        self.last = solution.x[: len(right)]
        return self._assembled(vector, model, solution, P.solve(z), profile)

    @property
    def _tolerance(self) -> float:
        return _TOLERANCE * float(np.sqrt(max(self.density.grid.size / _TOLERATED_MODES, 1.0)))

    def _assembled(
        self, vector: Reals, model: Model, solution: Solution, probes: Modes, profile: bool
    ) -> Evidence:
        grid, noise, first = self.density.grid, model.system.noise_variance, -self._num_probes
        posterior = model.equations.posterior(solution.x[:first], solution.residual[:first])
        p = len(posterior.modes)
        total = float(np.sum(self.statistics.yy)) / noise
        quadratic = max(total - float(np.sum(posterior.explained)), 1e-300)
        squares = np.sum(np.abs(posterior.modes) ** 2, axis=0)
        misfit = quadratic - grid.total(squares) - float(np.sum(posterior.slopes**2))
        factor, moved = 1.0, vector.copy()
        if profile and self._scale_slots is not None:
            factor = float(np.clip(quadratic / (p * self.rows), 0.01, 100.0))
            moved[self._scale_slots] += np.log(factor)
            moved[-1] += np.log(factor)
        lanczos = grid.size * _lanczos_logs(solution, self._num_probes)
        log_determinant = (
            model.preconditioner.log_determinant
            + float(np.mean(lanczos))
            + 2 * float(np.sum(np.log(np.diag(posterior.slope_factor))))
        )
        inverse_diagonal = _inverse_diagonal(model, solution.x[first:], probes)
        determined = 1 - (inverse_diagonal + posterior.variances_by_slopes())
        effective = grid.total(determined) + posterior.determined_slopes()
        derivatives = self.derivatives(model, vector)
        by_mode = 0.5 * grid.weights * (squares / factor - p * determined)
        by_noise = 0.5 * (misfit / factor - p * (self.rows - effective))
        normaliser = self.rows * np.log(2 * np.pi * noise * factor) - self._log_weights
        scatter = np.std(lanczos, ddof=1) / np.sqrt(len(lanczos)) if len(lanczos) > 1 else np.inf
        return Evidence(
            vector=moved,
            value=float(-0.5 * (p * (normaliser + log_determinant) + quadratic / factor)),
            standard_error=float(p * scatter / 2),
            gradient=derivatives.gradient(by_mode, by_noise),
            information=p * expected_information(model, derivatives, self.rows),
            log_determinant=float(log_determinant),
            effective=float(effective),
            iterations=solution.iterations,
            converged=solution.converged,
        )

    def average_information(self, vector: Reals) -> Reals:
        """Return the average information at a vector, by a solution for each parameter."""
        grid, model, most = self.density.grid, self.model(vector), _MOST_ITERATIONS
        right, tolerance = model.equations.right, self._tolerance
        solution = solve(model, right, tolerance=tolerance, start=self.last, max_iterations=most)
        posterior = model.equations.posterior(solution.x, solution.residual)
        left = self.statistics.yy / model.system.noise_variance - posterior.explained
        derivatives = self.derivatives(model, vector)
        total = np.zeros_like(derivatives.chain)
        for i, x in enumerate(posterior.modes):
            columns = np.concatenate([np.moveaxis(derivatives.relative, -1, 0) * x, x[None]])
            norms = np.sqrt(grid.inner(columns, columns))
            tolerance = _CURVATURE_TOLERANCE * norms
            images = solve(model, columns, tolerance=tolerance, max_iterations=most).x
            flat = _real_rows(grid, columns)
            products = flat @ _real_rows(grid, images).T
            part = products.copy()
            part[:-1, :-1] = flat[:-1] @ flat[:-1].T - products[:-1, :-1]
            slopes = float(np.sum(posterior.slopes[:, i] ** 2))
            part[-1, -1] = left[i] - norms[-1] ** 2 - slopes - products[-1, -1]
            total += (part + part.T) / 4
        return derivatives.chain.T @ total @ derivatives.chain


def _real_rows(grid: ModeGrid, vectors: Modes) -> Reals:
    """Return vectors as rows of real numbers with the same inner products."""
    rows = np.ascontiguousarray(vectors * np.sqrt(grid.weights)).reshape(len(vectors), -1)
    return rows.view(np.float64)


def _inverse_diagonal(model: Model, solved: Modes, probes: Modes) -> Reals:
    """Return the estimate of (B⁻¹)_tt at every mode, from B⁻¹z and P⁻¹z."""
    share, shrinkage = even_rows(model)
    rng = np.random.default_rng([0, 1])
    known = model.preconditioner.inverse_modes(rng, 1 - share * shrinkage)
    return known + np.mean(((solved - probes) * np.conj(probes)).real, axis=0)


def _lanczos_logs(solution: Solution, num: int) -> Reals:
    """Return e₁ᵀ log(tridiagonal) e₁ of each of the last right-hand sides."""
    batch = len(solution.x)
    spectra = (solution.lanczos(i) for i in range(batch - num, batch))
    return np.array(
        [
            np.sum(vectors[0] ** 2 * np.log(np.maximum(values, 1e-300)))
            for values, vectors in spectra
        ]
    )


class Climb(NamedTuple):
    """A function to maximise.

    `evaluate` may move the vector, and raises `PrecisionError` where there is no evidence;
    `sharpen` returns a better curvature than the expected information for the price of an
    evaluation.
    """

    evaluate: Callable[[Reals], Evidence]
    limits: Limits
    out_of_time: Callable[[], bool]
    sharpen: Callable[[Reals], Reals] | None = None

    def begin(self, vector: Reals) -> tuple[Evidence, int]:
        """Return the evidence at a vector, and the number of evaluations.

        The last entry, the log noise variance, is raised until double precision resolves it.
        """
        upper = self.limits[1]
        for number in range(1, _ATTEMPTS + 1):
            try:
                return self.finite(vector), number
            except PrecisionError:
                if vector[-1] >= upper[-1] or number == _ATTEMPTS:
                    raise
                vector = np.append(vector[:-1], min(vector[-1] + _MORE_NOISE, upper[-1]))
        raise AssertionError

    def finite(self, vector: Reals) -> Evidence:
        """Return the evidence within the limits; `PrecisionError` if rounding dominates it."""
        evidence = self.evaluate(np.clip(vector, *self.limits))
        if not np.isfinite([evidence.value, *evidence.gradient]).all():
            raise PrecisionError("Rounding has reached the evidence: use a larger noise_variance.")
        _usable(evidence.information)
        return evidence


class Scored(NamedTuple):
    """Where scoring ended, and the curvature it has learned on the way.

    `doubted` says whether a step has failed, so that the curvature is computed and not expected.
    """

    evidence: Evidence
    converged: bool
    num_evaluations: int
    curvature: Reals
    damping: float = _DAMPING
    doubted: bool = False


def score(
    climb: Climb, first: Evidence, max_evaluations: int, before: Scored | None = None
) -> Scored:
    """Return the largest evidence that is found near the first one.

    Each step solves (H + μ diag H) δ = g, with g the gradient and H at first the expected
    information, then corrected by the gradients (BFGS); μ grows when a step fails and shrinks when
    one succeeds. Entries at a limit stay there. H and μ continue from the search `before`, on the
    same lattice or another. Once a step has failed, H is sharpened before each step.
    """
    best, used, stalled = first, 0, 0
    curvature, damping, doubted = first.information, _DAMPING, False
    if before is not None:
        curvature, damping, doubted = before.curvature, before.damping, before.doubted
    # Whether H is as sharp as can be at the best vector.
    sharp = climb.sharpen is None or (doubted and before is not None and before.evidence is first)
    while used < max_evaluations and not climb.out_of_time():
        step, promised = _step(best, curvature, damping, climb.limits)
        if promised < _SETTLED:
            return Scored(best, True, used, curvature, damping, doubted)
        used += 1
        try:
            candidate = climb.finite(best.vector + step)
        except PrecisionError:
            # A step too far: the noise is too small for the prior variance.
            candidate = None
        failed = candidate is None or (best.converged and not candidate.converged)
        if candidate is not None and not failed:
            gain = candidate.value - best.value
            # Noise in the gradient keeps promising a little: two steps without a gain are the end.
            # A step that promised much and failed was too long.
            stalled = stalled + 1 if gain < _SETTLED and promised < _TRUSTED else 0
            failed = gain <= 0.05 * promised and (promised >= _TRUSTED or gain <= -_TRUSTED)
            if climb.sharpen is None or not (failed or doubted):
                change = best.gradient - candidate.gradient
                curvature = _updated(curvature, candidate.vector - best.vector, change)
        if candidate is not None and not failed:
            best, damping, sharp = candidate, max(damping / 10, 1e-6), climb.sharpen is None
        if sharp:
            damping = max(10 * damping, 0.1) if failed else damping
        elif failed or doubted:
            assert climb.sharpen is not None
            try:
                curvature, damping = _usable(climb.sharpen(best.vector)), _DAMPING
            except PrecisionError:
                # The data are too smooth for the solutions to give a curvature: shorter steps do.
                damping = max(10 * damping, 0.1)
            sharp, doubted = True, True
            used += 1
        if stalled == 2:
            return Scored(best, True, used, curvature, damping, doubted)
    return Scored(best, False, used, curvature, damping, doubted)


def _usable(curvature: Reals) -> Reals:
    """Return a curvature; `PrecisionError` if it is not finite, or zero."""
    if not np.isfinite(curvature).all() or not np.diag(curvature).any():
        raise PrecisionError("Rounding has reached the curvature: use a larger noise_variance.")
    return curvature


def _step(
    evidence: Evidence, curvature: Reals, damping: float, limits: Limits
) -> tuple[Reals, float]:
    """Return a damped step within the limits, and the gain in nats that it promises."""
    gradient, flat = evidence.gradient, 1e-9 * np.eye(len(curvature))
    damped = curvature + damping * np.diag(np.diag(curvature)) + flat
    if np.linalg.eigvalsh(damped)[0] <= 0:
        # Inexact solutions, for data that hardly distinguish the parameters.
        curvature = made_definite(curvature)
        damped = curvature + damping * np.diag(np.diag(curvature)) + flat
    down = np.clip(limits[0] - evidence.vector, -_LONGEST, 0.0)
    up = np.clip(limits[1] - evidence.vector, 0.0, _LONGEST)
    step = box_step(gradient, damped, down, up)
    return step, float(gradient @ step - 0.5 * step @ curvature @ step)


def _updated(curvature: Reals, step: Reals, change: Reals) -> Reals:
    """Return the curvature closest to the present one with that `change` of the gradient."""
    image = curvature @ step
    expected, seen = float(step @ image), float(step @ change)
    if seen < 0.1 * expected or expected <= 0:
        return curvature
    return curvature - np.outer(image, image) / expected + np.outer(change, change) / seen
