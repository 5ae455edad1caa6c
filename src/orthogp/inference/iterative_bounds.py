"""Bounds on log p(y) with very many features."""

from __future__ import annotations

import numpy as np

from orthogp.inference.bounds import Bound
from orthogp.inference.conjugate_gradients import solve
from orthogp.inference.iterative import Evidence, IterativeObjective
from orthogp.inference.lattice_model import Model, ModePosterior, right_hand_sides
from orthogp.inference.lattice_system import LatticeSystem
from orthogp.inference.preconditioner import EvenPreconditioner, choose_preconditioner

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
