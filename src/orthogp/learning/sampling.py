r"""Draws from a density of a few logarithms, by its value and gradient.

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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc

from orthogp.errors import PrecisionError
from orthogp.learning.optimise import Box, Budget, Objective, refine

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
