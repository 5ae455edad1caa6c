r"""The evidence of a lattice of many modes, its gradient, and its Fisher information.

How much data tell of hyperparameters: the curvature for steps of the evidence.

With x = B⁻¹b̃ (`iterative.py`) and u_i = x ∂ log s/∂θ_i, the average of the observed and the
expected information (Gilmour, Thompson and Cullis 1995) is

    ½ yᵀK⁻¹ ∂_iK K⁻¹ ∂_jK K⁻¹y = ½ ⟨u_i, u_j − B⁻¹u_j⟩      for parameters of the masses
                                 ½ ⟨u_i, B⁻¹x⟩              for one of them and log s²
                                 ½ (‖y − Φx‖²/s² − ⟨x, B⁻¹x⟩)   for log s²

one more solution for each parameter. It knows how the rows lie, on grids or with gaps, and what was
observed. The expected information of evenly spread rows costs nothing, and mostly suffices.

With B = I + R T R/s² (`lattice_system.py`), M modes and b̃ = R b/s²,

    log p = −N/2 log 2πs² − ½ log|B| − ½ (yᵀy/s² − b̃ᵀB⁻¹b̃)
    ∂/∂ log s_t   = ½ (|x_t|² − 1 + (B⁻¹)_tt),             x = B⁻¹b̃
    ∂/∂ log s²    = ½ (‖y − Φx‖²/s² − N + M − tr B⁻¹)

The modes beyond the lattice, of variance d = k(0) − Σ s_t, act as noise at the rows: s² = σ² + d.

log|B| and tr B⁻¹ come from a few probes z ~ N(0, P) that stay the same for all hyperparameters, P
the preconditioner, whose determinant is known:

    log|B| = log|P| + M·mean (e₁ᵀ log(tridiagonal) e₁)       (stochastic Lanczos quadrature)
    (B⁻¹)_tt = mean (B⁻¹z − P⁻¹z)_t (P⁻¹z)_t*  +  (P⁻¹)_tt

(P⁻¹)_tt comes from many more samples of P alone, which cost no iterations. Where data have gaps,
both inverses know them, and what the few probes have to tell is their small difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.features.base import prior_variance
from orthogp.fields.krylov import Solution, solve
from orthogp.fields.model import (
    Model,
    ModePosterior,
    PosteriorOf,
    right_hand_sides,
    slope_share,
    slope_shrinkage,
)
from orthogp.fields.modes import ModeGrid, masses_jacobian
from orthogp.fields.preconditioner import Preconditioner
from orthogp.fields.system import DataDensity
from orthogp.inference.parameters import Slot, learned_slots, pack, unpack
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics

# Relative errors of solutions that tell a curvature only, and the most iterations for them.
_TOLERANCE, _MOST_STEPS = 0.03, 200


class Derivatives(NamedTuple):
    """Of log masses and of log s², in log kernel parameters θ and log σ².

    Attributes
    ----------
    relative : (…, p)
        ∂ log s_t/∂θ.
    chain : (p + 1, p + 1)
        The derivatives of (θ, log s²) in (θ, log σ²): what lies beyond the lattice depends on θ.
    """

    relative: NDArray[np.float64]
    chain: NDArray[np.float64]

    @classmethod
    def at(
        cls, vector: NDArray[np.float64], model: Model, kernel: Kernel, slots: tuple[Slot, ...]
    ) -> Derivatives:
        """Return the derivatives at a vector, which the model is that of."""
        grid, noise = model.system.grid, model.system.noise_variance
        lattice = model.system.density.lattice
        prior = masses_jacobian(np.asarray(vector[:-1]), kernel, slots, lattice, grid)
        relative = np.divide(
            prior.jacobian,
            model.masses[..., None],
            out=np.zeros_like(prior.jacobian),
            where=model.masses[..., None] > 0,
        )
        axes = list(range(grid.num_dims))
        weights = np.broadcast_to(grid.weights, grid.shape)
        resolved = np.tensordot(weights, prior.jacobian, axes=(axes, axes))
        unresolved = (prior.variance_jacobian - resolved) / noise
        if model.unresolved == 0:
            unresolved[:] = 0.0
        chain = np.eye(len(vector))
        chain[-1] = np.append(unresolved, model.noise_variance / noise)
        return cls(relative, chain)


class EvenRows(NamedTuple):
    """What evenly spread rows determine.

    Attributes
    ----------
    share : float
        How much of the domain they fill.
    shrinkage : (…)
        h = ρs/(1 + ρs), where they are.
    """

    share: float
    shrinkage: NDArray[np.float64]

    @property
    def fraction_of_modes(self) -> NDArray[np.float64]:
        """1 − (B⁻¹)_tt."""
        return self.share * self.shrinkage


def even_rows(model: Model) -> EvenRows:
    """Return what rows of the typical density determine."""
    density = model.preconditioner.typical_density
    share = model.system.density.count / (model.system.noise_variance * density)
    return EvenRows(share, density * model.masses / (1 + density * model.masses))


def expected_information(
    model: Model, derivatives: Derivatives, rows: float
) -> NDArray[np.float64]:
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
    size = flat.shape[1] + 1
    information = np.empty((size, size))
    information[:-1, :-1] = flat.T @ (by_mode[:, None] * flat)
    information[:-1, -1] = information[-1, :-1] = flat.T @ cross
    noise_only = max(rows - share * grid.size, 0.0)
    information[-1, -1] = np.sum(weights * (1 - shrinkage) ** 2) + noise_only
    return derivatives.chain.T @ information @ derivatives.chain / 2


def average_information(
    model: Model,
    posterior: ModePosterior,
    yy: NDArray[np.float64],
    derivatives: Derivatives,
) -> NDArray[np.float64]:
    """Return the average information about log parameters and log σ², all targets together."""
    system, grid = model.system, model.system.grid
    size = len(derivatives.chain)
    total = np.zeros((size, size))
    for i, x in enumerate(posterior.modes):
        columns = np.concatenate([np.moveaxis(derivatives.relative, -1, 0) * x, x[None]])
        norms = np.sqrt(grid.inner(columns, columns))
        solution = solve(
            system,
            model.preconditioner,
            columns,
            tolerance=_TOLERANCE * norms,
            max_iterations=_MOST_STEPS,
        )
        flat, images = _real_rows(grid, columns), _real_rows(grid, solution.x)
        products = flat @ images.T
        own = products.copy()
        own[:-1, :-1] = flat[:-1] @ flat[:-1].T - products[:-1, :-1]
        slopes = float(np.sum(posterior.slopes[:, i] ** 2))
        left = yy[i] / system.noise_variance - posterior.explained[i]
        own[-1, -1] = left - norms[-1] ** 2 - slopes - products[-1, -1]
        total += (own + own.T) / 4
    return derivatives.chain.T @ total @ derivatives.chain


def _real_rows(grid: ModeGrid, vectors: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Return vectors as rows of real numbers with the same inner products."""
    rows = np.ascontiguousarray(vectors * np.sqrt(grid.weights)).reshape(len(vectors), -1)
    return rows.view(np.float64)


# Largest errors of the solutions, in posterior standard deviations. log p(y) is off by half their
# square, which may grow in proportion to the number of modes, as the probes' scatter does.
TOLERANCE, _TOLERATED_MODES = 0.05, 10_000
# ... of solutions of which only averages over all modes count, per root of the number of modes.
PROBE_TOLERANCE = 0.01
# Hyperparameters that need more are not worth it: the lattice does not suit them.
_MOST_ITERATIONS = 200


class Evidence(NamedTuple):
    """log p(y) and its derivatives at a vector of log kernel parameters and log σ².

    Attributes
    ----------
    standard_error : float
        Of `value`, from the probes' scatter.
    information : (p, p)
        The expected information about the parameters, for evenly spread data.
    effective : float
        M − tr B⁻¹, the number of modes that the data determine.
    """

    vector: NDArray[np.float64]
    value: float
    standard_error: float
    gradient: NDArray[np.float64]
    information: NDArray[np.float64]
    log_determinant: float
    effective: float
    iterations: int
    converged: bool


class IterativeObjective:
    """The evidence of one lattice under changing hyperparameters.

    Parameters
    ----------
    statistics : FourierStatistics
    kernel : Kernel
        Gives the form, and the parameters that are learned.
    mean : MeanPrior
    repeats : bool
        Whether weights count rows.
    num_probes : int
    seed : int
    num_threads : int
    """

    def __init__(
        self,
        statistics: FourierStatistics,
        kernel: Kernel,
        mean: MeanPrior,
        *,
        repeats: bool = True,
        num_probes: int = 8,
        seed: int = 0,
        num_threads: int = 1,
    ) -> None:
        self.statistics = statistics
        self.density = DataDensity(statistics, num_threads)
        self.kernel = kernel
        self.mean = mean
        self.slots = learned_slots(kernel)
        self.rows = statistics.count if repeats else statistics.rows
        self._log_weights = 0.0 if repeats else statistics.log_weights
        self._num_probes = num_probes
        self._seed = seed
        self._last: NDArray[np.complex128] | None = None
        self._like: Preconditioner | None = None
        self._scale_slots = scale_entries(kernel, self.slots)

    @property
    def num_vectors(self) -> int:
        """The number of right-hand sides that an evaluation solves for."""
        slopes = len(self.density.covariates) if self.mean.slope_variance else 0
        return self.statistics.num_targets + slopes + self._num_probes

    def kernel_at(self, vector: NDArray[np.float64]) -> Kernel:
        """Return the kernel of a parameter vector."""
        return unpack(self.kernel, self.slots, np.asarray(vector[:-1]))

    def vector(self, kernel: Kernel, noise_variance: float) -> NDArray[np.float64]:
        """Return the parameter vector of a kernel and a noise variance."""
        return np.append(pack(kernel, self.slots), np.log(noise_variance))

    def model(self, vector: NDArray[np.float64], *, keep_grid: bool = True) -> Model:
        """Return the model of a parameter vector.

        Parameters
        ----------
        keep_grid : bool
            Whether the preconditioner keeps the last one's grid, so that the evidence is smooth.
        """
        model = Model.build(
            self.density,
            self.mean,
            self.kernel_at(vector),
            float(np.exp(vector[-1])),
            self._like if keep_grid else None,
        )
        self._like = model.preconditioner
        return model

    def evaluate(
        self,
        vector: NDArray[np.float64],
        *,
        keep_grid: bool = True,
        profile: bool = True,
        deadline: float | None = None,
    ) -> Evidence:
        """Return the evidence at a vector, or where a common factor of all variances is best.

        Parameters
        ----------
        profile : bool
            Whether to move to the best common factor f of kernel and noise variance: B does not
            depend on it, and log p = … − ½ (pN log f + q/f), so f = q/(pN).
        """
        model = self.model(vector, keep_grid=keep_grid)
        system, grid = model.system, self.density.grid
        probes = self._probes(model)
        right, posterior_of = right_hand_sides(model, self.statistics, self.mean)
        batch = np.concatenate([right, probes.right])
        tolerance = np.full(len(batch), self._tolerance)
        tolerance[len(right) :] = PROBE_TOLERANCE * np.sqrt(grid.size)
        start = np.zeros_like(batch)
        start[: len(right)] = self.solutions_nearby(right)
        solution = solve(
            system,
            model.preconditioner,
            batch,
            tolerance=tolerance,
            start=start,
            max_iterations=_MOST_ITERATIONS,
            deadline=deadline,
        )
        self._last = solution.x[: len(right)]
        return self._assemble(vector, model, solution, posterior_of, probes, profile)

    def solutions_nearby(self, right: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return where to begin with right-hand sides: the last solutions, or zeros."""
        if self._last is None or self._last.shape != right.shape:
            return np.zeros_like(right)
        return self._last

    @property
    def _tolerance(self) -> float:
        return TOLERANCE * float(np.sqrt(max(self.density.grid.size / _TOLERATED_MODES, 1.0)))

    def _probes(self, model: Model) -> _Probes:
        rng = np.random.default_rng(self._seed)
        right = model.preconditioner.sample(model.preconditioner.noise(rng, self._num_probes))
        return _Probes(right, model.preconditioner.solve(right))

    def _assemble(
        self,
        vector: NDArray[np.float64],
        model: Model,
        solution: Solution,
        posterior_of: PosteriorOf,
        probes: _Probes,
        profile: bool,
    ) -> Evidence:
        grid, system = self.density.grid, model.system
        noise = system.noise_variance
        first = len(solution.x) - self._num_probes
        posterior = posterior_of(solution.x[:first], solution.residual[:first])
        num_targets = len(posterior.modes)
        total = float(np.sum(self.statistics.yy)) / noise
        quadratic = max(total - float(np.sum(posterior.explained)), 1e-300)
        squares = np.sum(np.abs(posterior.modes) ** 2, axis=0)
        slope_squares = float(np.sum(posterior.slopes**2))
        misfit = quadratic - grid.total(squares) - slope_squares
        factor = 1.0
        if profile and self._scale_slots is not None:
            factor = float(np.clip(quadratic / (num_targets * self.rows), 0.01, 100.0))
        log_p = model.preconditioner.log_determinant
        lanczos = lanczos_logs(solution, first) * grid.size
        slopes_log = 2 * float(np.sum(np.log(np.diag(posterior.slope_factor))))
        log_determinant = log_p + float(np.mean(lanczos)) + slopes_log
        inverse_diagonal = self._inverse_diagonal(model, solution.x[first:], probes)
        inverse_diagonal += slope_share(posterior)
        determined = 1 - inverse_diagonal
        effective = grid.total(determined) + slope_shrinkage(posterior)
        derivatives = self._derivatives(model, vector)
        per_mode = 0.5 * grid.weights * (squares / factor - num_targets * determined)
        axes = list(range(grid.num_dims))
        by_parameter = np.tensordot(per_mode, derivatives.relative, axes=(axes, axes))
        by_noise = 0.5 * (misfit / factor - num_targets * (self.rows - effective))
        information = num_targets * expected_information(model, derivatives, self.rows)
        moved = vector.copy()
        if factor != 1.0:
            assert self._scale_slots is not None
            moved[self._scale_slots] += np.log(factor)
            moved[-1] += np.log(factor)
        normaliser = self.rows * np.log(2 * np.pi * noise * factor) - self._log_weights
        value = -0.5 * (num_targets * (normaliser + log_determinant) + quadratic / factor)
        scatter = np.std(lanczos, ddof=1) / np.sqrt(len(lanczos)) if len(lanczos) > 1 else np.inf
        return Evidence(
            vector=moved,
            value=float(value),
            standard_error=float(num_targets * scatter / 2),
            gradient=np.append(by_parameter, 0.0) + by_noise * derivatives.chain[-1],
            information=information,
            log_determinant=float(log_determinant),
            effective=float(effective),
            iterations=solution.iterations,
            converged=solution.converged,
        )

    def average_information(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the average information at a vector, by a solution for each parameter."""
        model = self.model(vector)
        right, posterior_of = right_hand_sides(model, self.statistics, self.mean)
        solution = solve(
            model.system,
            model.preconditioner,
            right,
            tolerance=self._tolerance,
            start=self.solutions_nearby(right),
            max_iterations=_MOST_ITERATIONS,
        )
        posterior = posterior_of(solution.x, solution.residual)
        derivatives = self._derivatives(model, vector)
        return average_information(model, posterior, self.statistics.yy, derivatives)

    def _derivatives(self, model: Model, vector: NDArray[np.float64]) -> Derivatives:
        return Derivatives.at(vector, model, self.kernel, self.slots)

    def _inverse_diagonal(
        self, model: Model, solved: NDArray[np.complex128], probes: _Probes
    ) -> NDArray[np.float64]:
        """Return the estimate of (B⁻¹)_tt at every mode."""
        rng = np.random.default_rng([self._seed, 1])
        known = model.preconditioner.inverse_modes(rng, 1 - even_rows(model).fraction_of_modes)
        apart = np.mean(((solved - probes.solved) * np.conj(probes.solved)).real, axis=0)
        return known + apart


class _Probes(NamedTuple):
    """z ~ N(0, P) and P⁻¹z."""

    right: NDArray[np.complex128]
    solved: NDArray[np.complex128]


def lanczos_logs(solution: Solution, first: int) -> NDArray[np.float64]:
    """Return e₁ᵀ log(tridiagonal) e₁ of each right-hand side from `first` on."""
    return np.array(
        [
            float(np.sum(vectors[0] ** 2 * np.log(np.maximum(values, 1e-300))))
            for values, vectors in (
                tridiagonal_eigen(solution, i) for i in range(first, len(solution.x))
            )
        ]
    )


def tridiagonal_eigen(
    solution: Solution, column: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return eigenvalues and eigenvectors of the Lanczos process behind a column's solution."""
    size = int(np.count_nonzero(solution.steps[:, column]))
    steps, ratios = solution.steps[:size, column], solution.ratios[:size, column]
    diagonal = 1 / steps
    diagonal[1:] += ratios[:-1] / steps[:-1]
    beside = np.sqrt(ratios[:-1]) / steps[:-1]
    values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside)
    return np.asarray(values), np.asarray(vectors)


def scale_entries(kernel: Kernel, slots: tuple[Slot, ...]) -> NDArray[np.int64] | None:
    """Return which log parameters a common factor of all variances moves; None if one is fixed."""
    vector, scaled = pack(kernel, slots), pack(kernel.scaled(np.e), slots)
    moved = prior_variance(unpack(kernel, slots, scaled))
    if not np.isclose(moved, np.e * prior_variance(kernel)):
        return None
    return np.flatnonzero(scaled != vector)
