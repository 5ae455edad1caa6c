r"""Climbing by the average information, within limits and within a trusted distance.

Each step maximises the quadratic model

    g·δ − ½ δᵀAδ,      lower ≤ x + δ ≤ upper,      |δ_i| ≤ radius

with the gradient g and the average A of observed and expected information, which is never negative.
Likelihoods of Gaussian processes are flat in directions that data do not determine, such as the
lengthscale of a column that does not matter: there a step goes as far as it may, and what it
promises still goes to zero.

A model far from the data has more curvature than its information: a smooth function without noise
under a rough kernel. Once some steps have kept too little of what they promised, A is raised along
the last ones to what the gradients say (BFGS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# The first step's longest entry, and that of any.
_RADIUS, _LARGEST_RADIUS = 2.0, 4.0
# A search whose steps have become shorter is at an end, as far as rounding lets it see.
_SMALLEST_RADIUS = 1e-4
# After so many disappointing steps, gradients along the last ones correct the information.
_DISAPPOINTING, _REMEMBERED = 4, 6


class Evaluation(NamedTuple):
    """A function's value, gradient (p,) and average information (p, p)."""

    value: float
    gradient: Vector
    information: NDArray[np.float64]


class Ascent(NamedTuple):
    """Where a search has come to."""

    x: Vector
    at: Evaluation
    num_evaluations: int
    converged: bool
    #: The step that was not taken, and what it promised.
    step: Vector
    promised: float


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
    """
    x = np.clip(start, lower, upper)
    at = evaluate(x) if first is None else first
    used, radius, disappointing = int(first is None), _RADIUS, 0
    steps: list[tuple[Vector, Vector]] = []
    if at is None:
        return None
    while True:
        curvature = at.information
        if disappointing >= _DISAPPOINTING:
            curvature = _raised(curvature, steps[-_REMEMBERED:])
        low, high = np.maximum(lower - x, -radius), np.minimum(upper - x, radius)
        step = box_step(at.gradient, curvature, low, high)
        promised = float(at.gradient @ step - 0.5 * step @ curvature @ step)
        settled = promised < tolerance or radius < _SMALLEST_RADIUS
        if settled or used >= max_evaluations or out_of_time():
            return Ascent(x, at, used, settled, step, promised)
        if abandon(x, at):
            return None
        candidate = np.clip(x + step, lower, upper)
        there = evaluate(candidate)
        used += 1
        length = float(np.max(np.abs(step)))
        gain = -np.inf if there is None else there.value - at.value
        if gain < 0.25 * promised:
            disappointing += 1
            radius = (0.5 if gain > 0 else 0.25) * length
        elif gain > 0.5 * promised and length > 0.99 * radius:
            radius = min(2 * radius, _LARGEST_RADIUS)
        if there is not None:
            steps.append((candidate - x, at.gradient - there.gradient))
            if gain > 0:
                x, at = candidate, there


def _raised(
    curvature: NDArray[np.float64], steps: list[tuple[Vector, Vector]]
) -> NDArray[np.float64]:
    """Return the curvature with as much along some steps as the gradients' changes show."""
    for step, change in steps:
        image = curvature @ step
        expected, seen = float(step @ image), float(step @ change)
        if seen > expected > 0:
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
