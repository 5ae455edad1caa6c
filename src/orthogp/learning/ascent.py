r"""Climbing by the average information, within limits and within a trusted distance.

Each step maximises the quadratic model

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

from orthogp.inference.beliefs import LogPrior

Vector = NDArray[np.float64]

# The first step's longest entry, and that of any.
_RADIUS, _LARGEST_RADIUS = 2.0, 4.0
# A search whose steps have become shorter is at an end, as far as rounding lets it see.
_SMALLEST_RADIUS = 1e-4
# Shares of what a step promised that it keeps if the curvature is known within half of itself. Of
# steps that promise more nats than this not even all second derivatives know.
_KEPT, _BEYOND = (0.5, 1.5), 30.0
# The least curvature, relative to the information.
_LEAST = 0.3
# After so many disappointing steps, gradients along the last ones raise the information.
_DISAPPOINTING, _REMEMBERED = 4, 6
# Steps that all second derivatives are corrected by, and the least share of the expected change of
# the gradient that is believed.
_LAST, _BELIEVED = 2, 0.1


class Evaluation(NamedTuple):
    """A function's value, gradient (p,) and average information (p, p).

    `bend` gives what the information leaves out of the second derivatives, (p, p), if it is to be
    had.
    """

    value: float
    gradient: Vector
    information: NDArray[np.float64]
    bend: Callable[[], NDArray[np.float64]] | None = None

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
    lower: Vector,
    upper: Vector,
    *,
    tolerance: float,
    max_evaluations: int,
    out_of_time: Callable[[], bool],
    abandon: Callable[[Vector, Evaluation], bool] = lambda x, at: False,
    first: Evaluation | None = None,
    wary: bool = False,
) -> Ascent | None:
    """Return the maximum near a start; `None` if there is no value there, or if it is abandoned.

    Parameters
    ----------
    evaluate : callable
        `None` where there is no value: a step too far.
    tolerance : float
        A step that promises less is not taken.
    abandon : callable
        Whether a search is not worth going on with.
    first : Evaluation, optional
        That of the start, if it is known.
    wary : bool
        Whether the information is known not to be the curvature.
    """
    x = np.clip(start, lower, upper)
    at = evaluate(x) if first is None else first
    used, radius, past = int(first is None), _RADIUS, _Past([], [], wary)
    if at is None:
        return None
    while True:
        low, high = np.maximum(lower - x, -radius), np.minimum(upper - x, radius)
        step, promised = _modelled(at, at.information, low, high)
        curvature = past.corrected(at, promised)
        if curvature is not None:
            step, promised = _modelled(at, curvature, low, high)
        settled = promised < tolerance or radius < _SMALLEST_RADIUS
        if settled or used >= max_evaluations or out_of_time():
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
    """What steps have kept of their promises; the steps, and how the gradient changed with them."""

    kept: list[float]
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
