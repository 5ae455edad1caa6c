"""Maximising a smooth function of a few logarithms in a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.optimize import OptimizeResult, minimize

from orthogp.errors import KernelError
from orthogp.inference.threads import lower_factor

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

#: An iteration that gains less than this many nats ends a search.
TOLERANCE = 1e-4
# Logarithms as close as this to a limit are at it.
_AT_LIMIT = 1e-9


class Maximum(NamedTuple):
    """Where a search ended."""

    x: Vector
    value: float
    num_evaluations: int
    converged: bool
    #: Minus the second derivatives, made positive definite, (p, p): after `search` those at its
    #: start, after `refine` an estimate at its end.
    curvature: NDArray[np.float64]


def search(
    objective: Objective,
    start: Vector,
    lower: Vector,
    upper: Vector,
    *,
    max_iterations: int,
    out_of_time: Callable[[], bool],
    curvature: NDArray[np.float64] | None = None,
    tolerance: float = TOLERANCE,
    alike: slice = slice(0),
) -> Maximum:
    """Return the maximum that L-BFGS-B finds from a start that may be far from it.

    The `curvature` at the start is measured by differences of gradients unless it is given, with
    one number for the coordinates that are `alike`. An iteration that gains less than `tolerance`
    nats is the last.
    """
    first, first_gradient = objective(start)
    if curvature is None:
        curvature = curvature_at(objective, start, first_gradient, lower, upper, alike)
    # With a million rows the noise variance is some thousand times stiffer than the lengthscale;
    # unit curvatures save the search from finding that out.
    scale = np.sqrt(np.diag(curvature))
    best_value, best = first, start
    num_evaluations = 1 + len(start)

    def negative(scaled: Vector) -> tuple[float, Vector]:
        nonlocal best_value, best, num_evaluations
        if not scaled.any():
            return 0.0, -first_gradient / scale
        vector = np.clip(start + scaled / scale, lower, upper)
        value, gradient = objective(vector)
        num_evaluations += 1
        if value > best_value:
            best_value, best = value, vector
        # Relative to the start: beside the huge constants small changes would be lost.
        return -(value - first), -gradient / scale

    previous, settled = first, False

    def watch(intermediate_result: OptimizeResult) -> None:
        nonlocal previous, settled
        value = first - float(intermediate_result.fun)
        settled = value - previous < tolerance
        previous = value
        if settled or out_of_time():
            raise StopIteration

    run = minimize(
        negative,
        np.zeros_like(start),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip((lower - start) * scale, (upper - start) * scale, strict=True)),
        callback=watch,
        options={"maxiter": max_iterations, "maxcor": 20, "ftol": 0.0, "gtol": 1e-4},
    )
    # Status 2 is a line search that finds nothing better: rounding, at a maximum.
    return Maximum(best, best_value, num_evaluations, settled or run.status in (0, 2), curvature)


def refine(
    objective: Objective,
    start: Vector,
    lower: Vector,
    upper: Vector,
    curvature: NDArray[np.float64],
    *,
    max_iterations: int,
    out_of_time: Callable[[], bool],
    tolerance: float = TOLERANCE,
) -> Maximum:
    """Return the maximum near a good start, by quasi-Newton steps from a known curvature.

    Two to four evaluations suffice where the objective has changed a little, as it does when
    features are added. Steps that promise less than `tolerance` nats are not taken.
    """
    x, H = start, curvature
    value, gradient = objective(x)
    num_evaluations = 1
    for _ in range(max_iterations):
        step = _newton_step(x, gradient, H, lower, upper)
        gain = gradient @ step
        if gain / 2 < tolerance:
            return Maximum(x, value, num_evaluations, True, H)
        if out_of_time():
            break
        for shrink in (1.0, 0.3, 0.1, 0.01):
            candidate = np.clip(x + shrink * step, lower, upper)
            candidate_value, candidate_gradient = objective(candidate)
            num_evaluations += 1
            if candidate_value > value:
                break
        else:
            # No ascent along a Newton step: the curvature does not describe this place.
            return Maximum(x, value, num_evaluations, False, H)
        H = _bfgs_update(H, candidate - x, gradient - candidate_gradient)
        x, value, gradient = candidate, candidate_value, candidate_gradient
    return Maximum(x, value, num_evaluations, False, H)


def curvature_at(
    objective: Objective,
    x: Vector,
    gradient: Vector,
    lower: Vector,
    upper: Vector,
    alike: slice = slice(0),
) -> NDArray[np.float64]:
    """Return minus the second derivatives at x by differences of gradients, eigenvalues ≥ 1.

    Coordinates that are `alike` cost one difference together, along a random direction: its square
    in these directions is their mean curvature.
    """
    H = np.eye(len(x))
    _check_finite(gradient)
    together = np.arange(len(x))[alike]
    if len(together):
        signs = np.random.default_rng(0).choice([-1.0, 1.0], len(together))
        moved = x.copy()
        moved[together] = np.clip(x[together] + 1e-3 * signs, lower[together], upper[together])
        step = moved - x
        change = gradient - objective(moved)[1]
        _check_finite(change)
        H[together, together] = abs(step @ change) / max(step @ step, 1e-300)
    for i in np.setdiff1d(np.arange(len(x)), together):
        moved = x.copy()
        moved[i] += 1e-3 if x[i] + 1e-3 <= upper[i] else -1e-3
        moved[i] = np.clip(moved[i], lower[i], upper[i])
        if moved[i] != x[i]:
            there = objective(moved)[1]
            _check_finite(there)
            H[i] = (gradient - there) / (moved[i] - x[i])
            H[i, together] = 0.0
    eigenvalues, vectors = np.linalg.eigh((H + H.T) / 2)
    return (vectors * np.maximum(np.abs(eigenvalues), 1.0)) @ vectors.T


def _check_finite(gradient: Vector) -> None:
    if not np.isfinite(gradient).all():
        raise KernelError(
            "The derivatives of what is learned from are not finite, so those of the kernel cannot "
            "be at all lags and frequencies: write it so that nothing overflows."
        )


def _newton_step(
    x: Vector, gradient: Vector, H: NDArray[np.float64], lower: Vector, upper: Vector
) -> Vector:
    """Return the ascent step, with coordinates held that press against their limits."""
    # Parameters that were at a limit may be a rounding error away from it.
    high, low = x >= upper - _AT_LIMIT, x <= lower + _AT_LIMIT
    held = (high & (gradient > 0)) | (low & (gradient < 0))
    step = np.zeros_like(x)
    while not held.all():
        free = ~held
        step = np.zeros_like(x)
        own = H[np.ix_(free, free)]
        try:
            step[free] = np.linalg.solve(own, gradient[free])
        except np.linalg.LinAlgError:
            step[free] = cho_solve((lower_factor(own), True), gradient[free])
        # A correlated step may leave through a limit that the gradient does not press against.
        leaving = free & ((high & (step > 0)) | (low & (step < 0)))
        if not leaving.any():
            break
        held |= leaving
        step[:] = 0.0
    # More than a factor e in a parameter is no refinement.
    step *= min(1.0, 1.0 / max(np.max(np.abs(step)), 1e-300))
    clipped = np.clip(x + step, lower, upper) - x
    if gradient @ clipped >= 0.1 * (gradient @ step):
        return clipped
    # Cut off at a face the step may no longer ascend; go as far as the first face instead.
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(step > 0, (upper - x) / step, (lower - x) / step)
    return step * min(1.0, float(np.nanmin(np.where(step == 0, np.inf, room))))


def _bfgs_update(H: NDArray[np.float64], move: Vector, change: Vector) -> NDArray[np.float64]:
    curvature = move @ change
    if curvature <= 1e-10 * np.linalg.norm(move) * np.linalg.norm(change):
        return H
    pushed = H @ move
    return H + np.outer(change, change) / curvature - np.outer(pushed, pushed) / (move @ pushed)
