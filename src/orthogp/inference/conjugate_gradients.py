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

from orthogp.inference.lattice_system import LatticeSystem

# Terms of the sum above that are awaited before the error is believed.
_DELAY = 3


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
    error : (batch,)
        The estimate of ‖x − B⁻¹b‖_B.
    iterations : int
    converged : bool
    late : bool
        Whether the deadline ended it.
    steps, ratios : (iterations, batch)
        α_k and β_k, which give the tridiagonal matrix of the Lanczos process.
    basis : list of (batch, …)
        P⁻¹ r_k, if asked for.
    norms : (iterations + 1, batch)
        ⟨r_k, P⁻¹r_k⟩.
    """

    x: NDArray[np.complex128]
    error: NDArray[np.float64]
    iterations: int
    converged: bool
    late: bool
    steps: NDArray[np.float64]
    ratios: NDArray[np.float64]
    norms: NDArray[np.float64]
    basis: list[NDArray[np.complex128]]


def solve(
    system: LatticeSystem,
    preconditioner: Preconditioner,
    right: NDArray[np.complex128],
    *,
    tolerance: float | NDArray[np.float64],
    start: NDArray[np.complex128] | None = None,
    max_iterations: int = 500,
    deadline: float | None = None,
    keep_basis: bool = False,
    on_iteration: Callable[[int, float], None] | None = None,
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
    on_iteration : callable, optional
        Is told the number of iterations and the largest error over its tolerance.
    """
    inner = system.grid.inner
    goal = np.broadcast_to(np.square(tolerance), (len(right),))
    if start is None:
        x, residual = np.zeros_like(right), right.copy()
    else:
        x = start.copy()
        residual = right - system.apply(x)
    direction = preconditioner.solve(residual)
    basis = [direction.copy()] if keep_basis else []
    norm = inner(residual, direction)
    steps, ratios, norms = [], [], [norm]
    error = np.full(len(right), np.inf)
    done = norm <= 0
    late, k = False, 0
    column = (slice(None), *(None,) * system.grid.num_dims)
    while not done.all() and k < max_iterations:
        if deadline is not None and time.monotonic() > deadline:
            late = True
            break
        image = system.apply(direction)
        curvature = inner(direction, image)
        # A right-hand side that is done stays where it is.
        step = np.where(done, 0.0, norm / np.where(curvature > 0, curvature, 1.0))
        x += step[column] * direction
        image *= step[column]
        residual -= image
        conditioned = preconditioner.solve(residual)
        new = inner(residual, conditioned)
        ratio = np.where(done, 0.0, new / np.where(norm > 0, norm, 1.0))
        direction *= ratio[column]
        direction += conditioned
        steps.append(step)
        ratios.append(ratio)
        norms.append(np.where(done, 0.0, new))
        if keep_basis:
            basis.append(conditioned)
        norm = new
        k += 1
        if k >= 2 * _DELAY:
            tail = _remaining(steps, norms, k)
            error = np.where(done, error, np.sqrt(tail))
            done = done | (tail <= goal) | (new <= 0)
        if on_iteration is not None:
            on_iteration(k, float(np.max(error / np.sqrt(goal))))
    shape = (0, len(right))
    return Solution(
        x=x,
        error=np.where(np.isinf(error), np.sqrt(norm), error),
        iterations=k,
        converged=bool(done.all()),
        late=late,
        steps=np.array(steps) if steps else np.empty(shape),
        ratios=np.array(ratios) if ratios else np.empty(shape),
        norms=np.array(norms),
        basis=basis,
    )


def _remaining(
    steps: list[NDArray[np.float64]], norms: list[NDArray[np.float64]], k: int
) -> NDArray[np.float64]:
    """Return ‖e‖²_B some iterations ago: the terms since, and the geometric series they begin."""
    last = sum(steps[j] * norms[j] for j in range(k - _DELAY, k))
    before = sum(steps[j] * norms[j] for j in range(k - 2 * _DELAY, k - _DELAY))
    decay = np.clip(np.divide(last, before, out=np.zeros_like(last), where=before > 0), 0.0, 0.99)
    return last / (1 - decay)
