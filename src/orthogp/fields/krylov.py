r"""Conjugate gradients for B x = b, several right-hand sides at once.

The error is judged where it matters: for e = x − B⁻¹b and any point, in the whitened coordinates,

    |⟨φ(x), e⟩| ≤ ‖e‖_B · sd(f(x)),    ‖e‖²_B = ⟨e, B e⟩

so that ‖e‖_B bounds the error of every posterior mean in posterior standard deviations. It is known
from the iteration itself: ‖e_k‖²_B = Σ_{j ≥ k} α_j ⟨r_j, P⁻¹r_j⟩ (Hestenes and Stiefel).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from orthogp.fields.system import LatticeSystem

# Terms of the sum above that are awaited before the error is believed.
_DELAY = 3
# ⟨r, P⁻¹r⟩ that has fallen by as much is rounding.
_SPENT = 1e-28


Observer = Callable[[NDArray[np.int64], NDArray[np.complexfloating]], None]


class Preconditioner(Protocol):
    """Stands for B and is easily inverted."""

    def solve(self, vectors: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return P⁻¹ v for each vector of a batch."""
        ...


class Diagonal:
    """The diagonal of B, or nothing (plain conjugate gradients)."""

    def __init__(self, system: LatticeSystem, *, plain: bool = False) -> None:
        density = 0.0 if plain else system.density.count / system.noise_variance
        self._inverse = 1 / (1 + density * system.masses)

    def solve(self, vectors: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return P⁻¹ v for each vector of a batch."""
        return vectors * self._inverse


class Solution(NamedTuple):
    """Where conjugate gradients ended.

    Attributes
    ----------
    x : (batch, …)
    residual : (batch, …)
        b − B x.
    error : (batch,)
        The estimate of ‖x − B⁻¹b‖_B.
    iterations : int
    converged : bool
    late : bool
        Whether the deadline ended it.
    steps, ratios : (iterations, batch)
        α_k and β_k, which give the tridiagonal matrix of the Lanczos process.
    norms : (iterations + 1, batch)
        ⟨r_k, P⁻¹r_k⟩.
    """

    x: NDArray[np.complex128]
    residual: NDArray[np.complex128]
    error: NDArray[np.float64]
    iterations: int
    converged: bool
    late: bool
    steps: NDArray[np.float64]
    ratios: NDArray[np.float64]
    norms: NDArray[np.float64]


def solve(
    system: LatticeSystem,
    preconditioner: Preconditioner,
    right: NDArray[np.complex128],
    *,
    tolerance: float | NDArray[np.float64],
    start: NDArray[np.complex128] | None = None,
    max_iterations: int = 500,
    deadline: float | None = None,
    observe: Observer | None = None,
) -> Solution:
    """Return B⁻¹ b for each b of a batch.

    Parameters
    ----------
    right : (batch, …)
    tolerance : float or (batch,)
        The largest ‖x − B⁻¹b‖_B.
    start : (batch, …), optional
        Where to begin, such as the solution for other hyperparameters.
    deadline : float, optional
        `time.monotonic()` at which to stop.
    observe : callable, optional
        Given which right-hand sides are still worked on, (a,), and their P⁻¹ r_k, (a, …), for k = 0
        and on.
    """
    inner, batch = system.grid.inner, len(right)
    goal = np.broadcast_to(np.square(tolerance), (batch,))
    x = np.zeros_like(right) if start is None else start.copy()
    residual = right.copy() if start is None else right - system.apply(x)
    direction = preconditioner.solve(residual)
    if observe is not None:
        observe(np.arange(batch), direction.copy())
    norm = inner(residual, direction)
    steps, ratios, norms = [], [], [norm]
    error = np.where(norm > 0, np.inf, 0.0)
    late, k = False, 0
    column = (slice(None), *(None,) * system.grid.num_dims)
    # The right-hand sides that are not done yet; the arrays below hold those only.
    active = np.flatnonzero(norm > 0)
    left = residual.copy()
    if len(active) < batch:
        residual, direction, norm = residual[active], direction[active], norm[active]
    while len(active) and k < max_iterations:
        if deadline is not None and time.monotonic() > deadline:
            late = True
            break
        image = system.apply(direction)
        curvature = inner(direction, image)
        step = norm / curvature
        x[active] += step[column] * direction
        image *= step[column]
        residual -= image
        conditioned = preconditioner.solve(residual)
        new = inner(residual, conditioned)
        ratio = new / norm
        direction *= ratio[column]
        direction += conditioned
        steps.append(_spread(step, active, batch))
        ratios.append(_spread(ratio, active, batch))
        norms.append(_spread(new, active, batch))
        if observe is not None:
            observe(active, conditioned)
        norm = new
        k += 1
        # With as few modes as iterations the residual may vanish.
        going_on = new > _SPENT * norms[0][active]
        if k >= 2 * _DELAY:
            tail = _remaining(steps, norms, k)[active]
            error[active] = np.sqrt(tail)
            going_on &= tail > goal[active]
        if not going_on.all():
            left[active] = residual
            active = active[going_on]
            residual, direction = residual[going_on], direction[going_on]
            norm = norm[going_on]
    left[active] = residual
    unknown = np.isinf(error)
    error[unknown] = np.sqrt(norms[-1][unknown])
    shape = (0, len(right))
    return Solution(
        x=x,
        residual=left,
        error=error,
        iterations=k,
        converged=len(active) == 0,
        late=late,
        steps=np.array(steps) if steps else np.empty(shape),
        ratios=np.array(ratios) if ratios else np.empty(shape),
        norms=np.array(norms),
    )


def _spread(
    values: NDArray[np.float64], active: NDArray[np.int64], batch: int
) -> NDArray[np.float64]:
    """Return values of the active right-hand sides among zeros for the others."""
    out = np.zeros(batch)
    out[active] = values
    return out


def _remaining(
    steps: list[NDArray[np.float64]], norms: list[NDArray[np.float64]], k: int
) -> NDArray[np.float64]:
    """Return ‖e‖²_B some iterations ago: the terms since, and the geometric series they begin."""
    last = sum(steps[j] * norms[j] for j in range(k - _DELAY, k))
    before = sum(steps[j] * norms[j] for j in range(k - 2 * _DELAY, k - _DELAY))
    decay = np.clip(np.divide(last, before, out=np.zeros_like(last), where=before > 0), 0.0, 0.99)
    return last / (1 - decay)
