"""Maximising a smooth function of a few logarithms, in a box that double precision resolves.

`search` (L-BFGS-B) and `refine` (quasi-Newton) know a value and its gradient. `ascend` also knows
the average information, and moves within limits and within a trusted distance. Each of its steps
maximises the quadratic model

    g·δ − ½ δᵀAδ,      lower ≤ x + δ ≤ upper,      |δ_i| ≤ radius

with the gradient g and the average A of observed and expected information, which is never negative.
Likelihoods of Gaussian processes are flat in directions that data do not determine, such as the
lengthscale of a column that does not matter: there a step goes as far as it may, and what it
promises still goes to zero.

If the model is not that of the data, the information is not their curvature: that of a smooth
function without noise under a rough kernel is many times as large. Where steps do not keep what
they promised, the rest of the second derivatives is taken as well, or A is raised along the last
steps to what the gradients say (BFGS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.optimize import OptimizeResult, minimize

from orthogp.errors import KernelError, PrecisionError
from orthogp.inference.parameters import LogPrior
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.precision import lower_factor

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

#: An iteration that gains less than this many nats ends a search.
TOLERANCE = 1e-4
# Logarithms as close as this to a limit are at it.
_AT_LIMIT = 1e-9


#: The quasi-Newton steps from a known curvature, after which a search goes on.
_REFINEMENTS = 12
# The factor by which the noise variance is raised where double precision does not resolve it.
_RAISE = 30

Box = tuple[Vector, Vector]


class Budget(NamedTuple):
    """When to stop: after some iterations, out of time, or at an iteration that gains too little.

    `tolerance` is that gain in nats.
    """

    max_iterations: int
    out_of_time: Callable[[], bool] = lambda: False
    tolerance: float = TOLERANCE


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
    box: Box,
    budget: Budget,
    *,
    curvature: NDArray[np.float64] | None = None,
    alike: slice = slice(0),
) -> Maximum:
    """Return the maximum that L-BFGS-B finds from a start that may be far from it.

    The `curvature` at the start is measured by differences of gradients unless it is given, with
    one number for the coordinates that are `alike`.
    """
    lower, upper = box
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
        settled = value - previous < budget.tolerance
        previous = value
        if settled or budget.out_of_time():
            raise StopIteration

    run = minimize(
        negative,
        np.zeros_like(start),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip((lower - start) * scale, (upper - start) * scale, strict=True)),
        callback=watch,
        options={"maxiter": budget.max_iterations, "maxcor": 20, "ftol": 0.0, "gtol": 1e-4},
    )
    # Status 2 is a line search that finds nothing better: rounding, at a maximum.
    return Maximum(best, best_value, num_evaluations, settled or run.status in (0, 2), curvature)


def refine(
    objective: Objective,
    start: Vector,
    box: Box,
    curvature: NDArray[np.float64],
    budget: Budget,
) -> Maximum:
    """Return the maximum near a good start, by quasi-Newton steps from a known curvature.

    Two to four evaluations suffice where the objective has changed a little, as it does when
    features are added. Steps that promise less than the budget's tolerance are not taken.
    """
    lower, upper = box
    x, H = start, curvature
    value, gradient = objective(x)
    num_evaluations = 1
    for _ in range(budget.max_iterations):
        step = _newton_step(x, gradient, H, lower, upper)
        gain = gradient @ step
        if gain / 2 < budget.tolerance:
            return Maximum(x, value, num_evaluations, True, H)
        if budget.out_of_time():
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


def maximise(
    objective: Objective,
    start: Vector,
    box: Box,
    budget: Budget,
    *,
    curvature: NDArray[np.float64] | None = None,
    alike: slice = slice(0),
) -> Maximum:
    """Return the maximum in a box: refined from a known curvature, searched for where that fails.

    Parameters
    ----------
    curvature : (p, p), optional
        That of an earlier search which ended close by: a few steps from there may then suffice.
    alike : slice
        Coordinates whose curvature is measured as one number, there being very many of them.
    """
    if curvature is not None:
        few = budget._replace(max_iterations=_REFINEMENTS)
        found = refine(objective, start, box, curvature, few)
        if found.converged or budget.out_of_time():
            return found
        start = found.x
    return search(objective, start, box, budget, alike=alike)


class Summit(NamedTuple):
    """A maximum, the limits that it was found between, and the floor of the noise variance."""

    maximum: Maximum
    box: Box
    floor: float


def resolved(
    attempt: Callable[[Vector, Box], Maximum],
    vector: Vector,
    limits: Callable[[float], Box],
    floor: float = NOISE_FLOOR,
) -> Summit:
    """Return the maximum found from a vector whose last entry is the log noise variance.

    Where double precision does not resolve the noise variance, its floor is raised.

    Parameters
    ----------
    attempt : callable
        Returns the maximum found from a vector between limits; may raise `PrecisionError`.
    limits : callable
        Gives lower and upper limits for a floor of the noise variance.
    """
    for _ in range(8):
        box = limits(floor)
        vector = np.clip(vector, *box)
        try:
            return Summit(attempt(vector, box), box, floor)
        except PrecisionError:
            # Rounding in the sums has reached the noise: only a larger noise variance is resolved
            # by these data in double precision.
            floor *= _RAISE
            vector[-1] = max(vector[-1], np.log(10 * floor))
    raise PrecisionError(
        "No noise variance resolves these data in double precision: rescale the targets."
    )


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


# ---------------------------------------------------------------------- average information


# The longest entry of the first step.
_RADIUS = 2.0
# The longest entry of any step.
_LARGEST_RADIUS = 4.0
# The longest entry of a step below which the search ends: rounding hides the rest.
_SMALLEST_RADIUS = 1e-4
# The least and largest ratio of the gain to the promised gain of a step that keeps its promise:
# the curvature is then known within half of itself.
_KEPT = (0.5, 1.5)
# The promised gain, in nats, above which second derivatives do not predict a step either.
_BEYOND = 30.0
# The least curvature, relative to the information.
_LEAST = 0.3
# The number of disappointing steps after which the changes of gradients along steps correct the
# information.
_DISAPPOINTING = 4
# The number of last steps that correct the information.
_REMEMBERED = 6
# The number of last steps that correct all second derivatives.
_LAST = 2
# The smallest change of the gradient along a step that is believed, relative to what second
# derivatives predict.
_BELIEVED = 0.1


class Evaluation(NamedTuple):
    """A function's value, gradient (p,) and average information (p, p).

    `bend` gives what the information leaves out of the second derivatives, (p, p), if it is to be
    had; `wary` says that the information is known not to be the curvature.
    """

    value: float
    gradient: Vector
    information: NDArray[np.float64]
    bend: Callable[[], NDArray[np.float64]] | None = None
    wary: bool = False

    def with_prior(self, prior: LogPrior, share: float = 1.0) -> Evaluation:
        """Return the sum with a log prior, or with a share of it beside a sample of terms.

        The information stays positive: where a log prior bends upwards, it adds nothing.
        """
        return self._replace(
            value=self.value + share * prior.value,
            gradient=self.gradient + share * prior.gradient,
            information=self.information + share * np.diag(np.maximum(-prior.bend, 0.0)),
        )


class Ascent(NamedTuple):
    """Where a search has come to."""

    x: Vector
    at: Evaluation
    num_evaluations: int
    converged: bool
    #: The step that was not taken, and what it promised.
    step: Vector
    promised: float
    #: Whether steps have broken their promises.
    wary: bool


def ascend(
    evaluate: Callable[[Vector], Evaluation | None],
    start: Vector,
    limits: Box,
    budget: Budget,
    *,
    abandon: Callable[[Vector, Evaluation], bool] = lambda x, at: False,
    first: Evaluation | None = None,
) -> Ascent | None:
    """Return the maximum near a start; `None` if there is no value there, or if it is abandoned.

    Parameters
    ----------
    evaluate : callable
        `None` where there is no value: a step too far.
    limits : (p,), (p,)
        The smallest and the largest arguments.
    budget : Budget
        The largest number of evaluations; a step that promises less than the tolerance is not
        taken.
    abandon : callable
        Whether a search is not worth going on with.
    first : Evaluation, optional
        The evaluation of the start, if it is known.
    """
    lower, upper = limits
    x = np.clip(start, lower, upper)
    at = evaluate(x) if first is None else first
    if at is None:
        return None
    used, radius, past = int(first is None), _RADIUS, _Past([], [], at.wary)
    while True:
        low, high = np.maximum(lower - x, -radius), np.minimum(upper - x, radius)
        step, promised = _modelled(at, at.information, low, high)
        curvature = past.corrected(at, promised)
        if curvature is not None:
            step, promised = _modelled(at, curvature, low, high)
        settled = promised < budget.tolerance or radius < _SMALLEST_RADIUS
        if settled or used >= budget.max_iterations or budget.out_of_time():
            return Ascent(x, at, used, settled, step, promised, past.wary)
        if abandon(x, at):
            return None
        candidate = np.clip(x + step, lower, upper)
        there = evaluate(candidate)
        used += 1
        length = float(np.max(np.abs(step)))
        gain = -np.inf if there is None else there.value - at.value
        past.kept.append(gain / promised)
        if gain < 0.25 * promised:
            radius = (0.5 if gain > 0 else 0.25) * length
        elif gain > 0.5 * promised and length > 0.99 * radius:
            radius = min(2 * radius, _LARGEST_RADIUS)
        if there is not None:
            past.steps.append((candidate - x, at.gradient - there.gradient))
            if gain > 0:
                x, at = candidate, there


class _Past(NamedTuple):
    """The steps of a search: their gains, and the changes of the gradient along them."""

    #: The gain of each step, relative to the promised one.
    kept: list[float]
    #: Steps, with the change of the negative gradient along each.
    steps: list[tuple[Vector, Vector]]
    #: Whether promises were broken before.
    warned: bool

    def corrected(self, at: Evaluation, promised: float) -> NDArray[np.float64] | None:
        """Return a better curvature than the information, if that has not kept its promises."""
        if at.bend is None:
            if sum(share < 0.25 for share in self.kept) < _DISAPPOINTING:
                return None
            return _updated(at.information, self.steps[-_REMEMBERED:], 1.0)
        broken = self.warned or any(_is_broken(share) for share in self.kept[-2:])
        if not broken or promised > _BEYOND:
            return None
        bent = _bent(at.information, at.bend())
        # Gradients of few rows are little more than rounding in directions that do not matter.
        return _updated(bent, self.steps[-_LAST:], _BELIEVED) if self.warned else bent

    @property
    def wary(self) -> bool:
        """Whether any step has broken its promise."""
        return self.warned or any(_is_broken(share) for share in self.kept)


def _is_broken(share: float) -> bool:
    return not _KEPT[0] < share < _KEPT[1]


def _modelled(
    at: Evaluation, curvature: NDArray[np.float64], low: Vector, high: Vector
) -> tuple[Vector, float]:
    """Return the best step of a model, and what it promises."""
    step = box_step(at.gradient, curvature, low, high)
    return step, float(at.gradient @ step - 0.5 * step @ curvature @ step)


def _bent(information: NDArray[np.float64], bend: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the information less what bends, positive in every direction."""
    size = len(information)
    flat = 1e-6 * float(np.trace(information)) + 1e-9
    chol = np.linalg.cholesky(information + flat * np.eye(size))
    relative = np.linalg.solve(chol, np.linalg.solve(chol, information - bend).T)
    values, vectors = np.linalg.eigh((relative + relative.T) / 2)
    root = chol @ vectors
    return (root * np.maximum(values, _LEAST)) @ root.T


def _updated(
    curvature: NDArray[np.float64], steps: list[tuple[Vector, Vector]], least: float
) -> NDArray[np.float64]:
    """Return the curvature with the changes of the gradient along the last steps (BFGS).

    A step counts if the gradient has changed by more than the share `least` of what the curvature
    expects.
    """
    for step, change in steps:
        image = curvature @ step
        expected, seen = float(step @ image), float(step @ change)
        if expected > 0 and seen > least * expected:
            curvature = (
                curvature - np.outer(image, image) / expected + np.outer(change, change) / seen
            )
    return curvature


def box_step(gradient: Vector, curvature: NDArray[np.float64], low: Vector, high: Vector) -> Vector:
    """Return the δ between low ≤ 0 and high ≥ 0 that maximises g·δ − ½ δᵀHδ.

    By an active set: entries are held at the first face that the way to the free maximum meets, and
    let go where the slope points back inside.
    """
    size = len(gradient)
    # Flat directions have a maximum at a face; beside the others this changes no digit that counts.
    H = curvature + 1e-12 * max(float(np.trace(curvature)), 1e-3) * np.eye(size)
    step = np.zeros(size)
    held = np.where((low >= 0) & (gradient < 0), -1, np.where((high <= 0) & (gradient > 0), 1, 0))
    slack = 1e-12 * float(np.max(np.abs(gradient), initial=0.0))
    for _ in range(20 * size):
        free = held == 0
        if free.any():
            goal = step.copy()
            rest = gradient[free] - H[np.ix_(free, ~free)] @ step[~free]
            goal[free] = np.linalg.solve(H[np.ix_(free, free)], rest)
            move = goal - step
            room = np.full(size, np.inf)
            for ahead, face in ((move > 0, high), (move < 0, low)):
                room[ahead] = (face[ahead] - step[ahead]) / move[ahead]
            first = int(np.argmin(room))
            if room[first] < 1:
                step = step + room[first] * move
                held[first] = 1 if move[first] > 0 else -1
                step[first] = high[first] if move[first] > 0 else low[first]
                continue
            step = goal
        pressed = held * (gradient - H @ step)
        worst = int(np.argmin(pressed))
        if pressed[worst] >= -slack:
            break
        held[worst] = 0
    return np.clip(step, low, high)
