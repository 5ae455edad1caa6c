"""Learning by Fisher scoring: few and dear evaluations, each with an expected information."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from orthogp.errors import PrecisionError
from orthogp.fields.evidence import Evidence
from orthogp.inference.threads import lower_factor, made_definite

# A step that promises fewer nats than this is not taken: what it would move parameters by is less
# than the data know of them.
_SETTLED = 0.25
# A gain below this is not checked: the probes' error of the evidence is about as large.
_TRUSTED = 2.0
# The longest step of a log parameter.
_LONGEST = 1.5
# The first step's share of the curvature's diagonal that is added to it.
_DAMPING = 1e-3
# How often a start with too little noise for double precision is given more, and how much more.
_ATTEMPTS, _MORE_NOISE = 8, np.log(10.0)


class Scored(NamedTuple):
    """Where scoring ended, and what it has learned of the curvature on the way."""

    evidence: Evidence
    converged: bool
    num_evaluations: int
    curvature: NDArray[np.float64]
    damping: float = _DAMPING
    #: Whether a step has failed, so that the curvature is computed and not guessed.
    doubted: bool = False


def begin(
    evaluate: Callable[[NDArray[np.float64]], Evidence],
    vector: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> tuple[Evidence, int]:
    """Return the evidence at a vector, and how many evaluations that took.

    The last entry, that of the noise variance, is raised until double precision resolves it.
    """
    for number in range(1, _ATTEMPTS + 1):
        try:
            return _finite(evaluate(vector)), number
        except PrecisionError:
            if vector[-1] >= upper[-1] or number == _ATTEMPTS:
                raise
            vector = np.append(vector[:-1], min(vector[-1] + _MORE_NOISE, upper[-1]))
    raise AssertionError


def score(
    evaluate: Callable[[NDArray[np.float64]], Evidence],
    vector: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    *,
    max_evaluations: int,
    out_of_time: Callable[[], bool],
    first: Evidence | None = None,
    before: Scored | None = None,
    sharpen: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> Scored:
    """Return the evidence where it is largest, from a vector close by.

    Each step solves (H + μ diag H) δ = g, with g the gradient and H at first the expected
    information, then corrected by what the gradients say (BFGS); μ grows when a step fails and
    shrinks when one succeeds. Entries at a limit stay there. `first` is the evidence at the vector,
    if it is known; H and μ go on from what they were `before`, on this lattice or another. Once a
    step has failed, `sharpen` gives a better H for each step, at the price of an evaluation.
    """
    stalled = 0
    best, used = (first, 0) if first else begin(evaluate, np.clip(vector, lower, upper), upper)
    curvature, damping = (
        (best.information, _DAMPING) if before is None else (before.curvature, before.damping)
    )
    doubted = before is not None and before.doubted
    # Where scoring goes on from, the curvature has been computed.
    sharp = sharpen is None or (doubted and first is not None)
    while used < max_evaluations and not out_of_time():
        step, promised = _step(best, curvature, damping, lower, upper)
        if promised < _SETTLED:
            return Scored(best, True, used, curvature, damping, doubted)
        used += 1
        try:
            candidate = _finite(evaluate(np.clip(best.vector + step, lower, upper)))
        except PrecisionError:
            # Too much prior variance for so little noise: a step too far.
            candidate = None
        failed = candidate is None or (best.converged and not candidate.converged)
        if candidate is not None and not failed:
            gain = candidate.value - best.value
            # The gradient's own noise keeps promising a little: two steps without a gain are the
            # end. A step that promised much and failed was too long.
            stalled = stalled + 1 if gain < _SETTLED and promised < _TRUSTED else 0
            failed = gain <= 0.05 * promised and (promised >= _TRUSTED or gain <= -_TRUSTED)
            if sharpen is None or not (failed or doubted):
                curvature = _updated(
                    curvature, candidate.vector - best.vector, best.gradient - candidate.gradient
                )
        if not failed:
            assert candidate is not None
            best, damping, sharp = candidate, max(damping / 10, 1e-6), sharpen is None
        if sharp:
            damping = max(10 * damping, 0.1) if failed else damping
        elif failed or doubted:
            assert sharpen is not None
            try:
                curvature, damping = _usable(sharpen(best.vector)), _DAMPING
            except PrecisionError:
                # The data are too smooth for solutions to tell: shorter steps will do.
                damping = max(10 * damping, 0.1)
            sharp, doubted = True, True
            used += 1
        if stalled == 2:
            return Scored(best, True, used, curvature, damping, doubted)
    return Scored(best, False, used, curvature, damping, doubted)


def _finite(evidence: Evidence) -> Evidence:
    """Return the evidence; `PrecisionError` if rounding has left nothing of it."""
    if not np.isfinite([evidence.value, *evidence.gradient]).all():
        raise PrecisionError("Rounding has reached the evidence: use a larger noise_variance.")
    _usable(evidence.information)
    return evidence


def _usable(curvature: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a curvature; `PrecisionError` if it is not finite, or zero."""
    if not np.isfinite(curvature).all() or not np.diag(curvature).any():
        raise PrecisionError("Rounding has reached the curvature: use a larger noise_variance.")
    return curvature


def _step(
    evidence: Evidence,
    curvature: NDArray[np.float64],
    damping: float,
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> tuple[NDArray[np.float64], float]:
    """Return a damped step within the limits, and the nats that it promises."""
    vector, size = evidence.vector, len(evidence.vector)
    damped = curvature + damping * np.diag(np.diag(curvature)) + 1e-9 * np.eye(size)
    if np.linalg.eigvalsh(damped)[0] <= 0:
        # From solutions of some error, for data that hardly tell parameters apart.
        curvature = made_definite(curvature)
        damped = curvature + damping * np.diag(np.diag(curvature)) + 1e-9 * np.eye(size)
    down = np.maximum(lower - vector, -_LONGEST)
    up = np.minimum(upper - vector, _LONGEST)
    # ½ δᵀHδ − gᵀδ = ½ ‖Lᵀδ − L⁻¹g‖² + constant, with H = LLᵀ
    chol = lower_factor(damped)
    goal = np.linalg.solve(chol, evidence.gradient)
    bounds = (np.minimum(down, 0.0) - 1e-12, np.maximum(up, 0.0) + 1e-12)
    step = lsq_linear(chol.T, goal, bounds=bounds, method="bvls").x
    promised = float(evidence.gradient @ step - 0.5 * step @ curvature @ step)
    return step, promised


def _updated(
    curvature: NDArray[np.float64], step: NDArray[np.float64], change: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the curvature that explains the gradient's `change` over a step, and changes least."""
    image = curvature @ step
    expected, seen = float(step @ image), float(step @ change)
    if seen < 0.1 * expected or expected <= 0:
        return curvature
    return curvature - np.outer(image, image) / expected + np.outer(change, change) / seen
