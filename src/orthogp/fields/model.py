r"""A kernel on a lattice of many modes: its equations, their solution by conjugate gradients.

With slopes of the mean function, of covariates c and prior variance τ², the posterior precision is

    [ B   C̃     ]    B = I + R T R/s²,   C̃ = τ R Σ w_n e^{−iω·x_n} c_n/s²
    [ C̃*  I + G̃ ]    G̃ = τ² Σ w_n c_n c_nᵀ/s²

and the slopes are eliminated by their Schur complement, a matrix as small as there are columns.

Conjugate gradients solve B x = b for several right-hand sides at once. For e = x − B⁻¹b and any
point, in the whitened coordinates,

    |⟨φ(x), e⟩| ≤ ‖e‖_B · sd(f(x)),    ‖e‖²_B = ⟨e, B e⟩

so that ‖e‖_B bounds the error of every posterior mean in posterior standard deviations. The
iteration itself tells this norm: ‖e_k‖²_B = Σ_{j ≥ k} α_j ⟨r_j, P⁻¹r_j⟩ (Hestenes and Stiefel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.features import MeanPrior
from orthogp.features.base import prior_variance
from orthogp.fields.preconditioner import Preconditioner, choose_preconditioner
from orthogp.fields.system import DataDensity, LatticeSystem, ModeGrid, Modes, Reals
from orthogp.inference.threads import lower_factor
from orthogp.kernels import Kernel
from orthogp.statistics.nufft import TOLERANCE

# The number of terms of the sum above after which the error of an iterate is believed.
_DELAY = 3
# The ratio of ⟨r, P⁻¹r⟩ to its first value at which the residual is rounding.
_SPENT = 1e-28


@dataclass(frozen=True)
class Model:
    """Hyperparameters on a lattice.

    `unresolved` is d, the prior variance of the modes beyond the lattice. The masses of the system
    include the offset of the mean function in mode zero, its noise variance is s² = σ² + d.
    """

    kernel: Kernel
    noise_variance: float
    mean: MeanPrior
    unresolved: float
    system: LatticeSystem
    preconditioner: Preconditioner

    @classmethod
    def build(
        cls,
        density: DataDensity,
        mean: MeanPrior,
        kernel: Kernel,
        noise_variance: float,
        like: Preconditioner | None = None,
        *,
        fine: bool = False,
    ) -> Model:
        """Return the model of a kernel and a noise variance, on the lattice of the density.

        The preconditioner has the grid of another one (`like`), or one `fine` enough for variances.
        """
        masses = density.grid.masses(kernel, density.lattice)
        unresolved = max(prior_variance(kernel) - density.grid.total(masses), 0.0)
        if mean.offset_variance:
            masses = masses.copy()
            masses[(0,) * masses.ndim] += mean.offset_variance
        noise = noise_variance + unresolved
        if TOLERANCE * density.count * prior_variance(kernel) > noise:
            raise PrecisionError(
                "The noise variance is too small, relative to the signal and the number of rows, "
                "for double precision: use a larger noise_variance."
            )
        system = LatticeSystem(density, masses, noise)
        preconditioner = choose_preconditioner(system, like, fine=fine)
        return cls(kernel, noise_variance, mean, unresolved, system, preconditioner)

    @property
    def masses(self) -> Reals:
        """The prior variances of the modes, (…)."""
        return self.system.masses

    @cached_property
    def determined(self) -> float:
        """The number of modes that evenly spread rows would determine, Σ_t (1 − 1/(1 + N s/σ²))."""
        return self.system.grid.total(1 - 1 / self.preconditioner.even)

    @cached_property
    def equations(self) -> Equations:
        """The equations of the posterior mean of the modes and slopes."""
        system, density = self.system, self.system.density
        scaled = system.amplitudes / system.noise_variance
        slope = np.sqrt(self.mean.slope_variance)
        q = len(density.covariates) if slope else 0
        right = np.concatenate([density.targets, slope * density.covariates[:q]]) * scaled
        gram = slope**2 * density.statistics.covariate_gram[:q, :q] / system.noise_variance
        goal = slope * density.statistics.covariate_targets[:q] / system.noise_variance
        return Equations(system.grid, right, gram, goal)


class ModePosterior(NamedTuple):
    """The posterior mean of the whitened modes, (p, …), and of the slopes, (q, p).

    `covariate_modes` is B⁻¹C̃ and `slope_factor` the Cholesky factor of the slopes' precision;
    `explained` is ⟨b, B⁻¹b⟩ for each target, with the slopes' part, (p,).
    """

    modes: Modes
    slopes: Reals
    covariate_modes: Modes
    slope_factor: Reals
    explained: Reals

    def variances_by_slopes(self) -> Reals:
        """Return the contribution of uncertain slopes to (B⁻¹)_tt, (…)."""
        flat = self.covariate_modes.reshape(len(self.slopes), self.modes[0].size)
        whitened = np.linalg.solve(self.slope_factor, flat)
        return np.sum(np.abs(whitened) ** 2, axis=0).reshape(self.modes.shape[1:])

    def determined_slopes(self) -> float:
        """Return q − tr(covariance of the slopes), the number of slopes that data determine."""
        return len(self.slopes) - float(np.sum(np.linalg.inv(self.slope_factor) ** 2))


class Equations(NamedTuple):
    """Right-hand sides [b̃, C̃] (p + q, …), G̃ (q, q) and the slopes' right-hand side (q, p)."""

    grid: ModeGrid
    right: Modes
    gram: Reals
    goal: Reals

    def posterior(self, solved: Modes, residual: Modes) -> ModePosterior:
        """Return the posterior of modes and slopes from B⁻¹[b̃, C̃] and the residuals of both."""
        inner, p = self.grid.inner, self.goal.shape[1]
        targets, covariates = solved[:p], solved[p:]
        # ⟨b, B⁻¹b⟩ = ⟨b, x⟩ + ⟨x, r⟩ up to the square of the error: cᵀc and its explained part
        # agree to many digits, so that the first order would not do.
        explained = inner(self.right[:p], targets) + inner(targets, residual[:p])
        cross = inner(self.right[p:, None], solved) + inner(covariates[:, None], residual)
        factor = lower_factor(np.eye(len(self.gram)) + self.gram - cross[:, p:])
        goal = self.goal - cross[:, :p]
        slopes = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, goal)), np.float64)
        modes = targets - np.tensordot(slopes.T, covariates, axes=(1, 0))
        explained = explained + np.sum(goal * slopes, axis=0)
        return ModePosterior(modes, slopes, covariates, factor, explained)


class Solution(NamedTuple):
    """Where conjugate gradients ended: x and the residual b − B x, (batch, …).

    Steps α_k and ratios β_k, (iterations, batch), give the tridiagonal matrix of the Lanczos
    process; the norms are ⟨r_k, P⁻¹r_k⟩, (iterations + 1, batch).
    """

    x: Modes
    residual: Modes
    iterations: int
    converged: bool
    steps: Reals
    ratios: Reals
    norms: Reals

    def lanczos(self, column: int) -> tuple[Reals, Reals]:
        """Return eigenvalues and eigenvectors of the Lanczos process behind a column."""
        size = int(np.count_nonzero(self.steps[:, column]))
        steps, ratios = self.steps[:size, column], self.ratios[:size, column]
        diagonal = 1 / steps
        diagonal[1:] += ratios[:-1] / steps[:-1]
        beside = np.sqrt(ratios[:-1]) / steps[:-1]
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside)
        return np.asarray(values), np.asarray(vectors)


def solve(
    model: Model,
    right: Modes,
    *,
    tolerance: float | Reals,
    start: Modes | None = None,
    max_iterations: int = 500,
    observe: Callable[[NDArray[np.int64], Modes], None] | None = None,
) -> Solution:
    """Return B⁻¹ b for each b of a batch, (batch, …), with ‖x − B⁻¹b‖_B at most the tolerance.

    It may start from the solution for other hyperparameters. `observe` receives the numbers of the
    unfinished right-hand sides, (a,), and their P⁻¹ r_k, (a, …), for k = 0 and on.
    """
    system, preconditioner = model.system, model.preconditioner
    inner, batch = system.grid.inner, len(right)
    goal = np.broadcast_to(np.square(tolerance), (batch,))
    x = np.zeros_like(right) if start is None else start.copy()
    residual = right.copy() if start is None else right - system.apply(x)
    direction = preconditioner.solve(residual)
    if observe is not None:
        observe(np.arange(batch), direction.copy())
    norm = inner(residual, direction)
    steps, ratios, norms = [], [], [norm]
    column = (slice(None), *(None,) * system.grid.num_dims)
    # The numbers of the unfinished right-hand sides, the only ones in the arrays below.
    active = np.flatnonzero(norm > 0)
    left = residual.copy()
    if len(active) < batch:
        residual, direction, norm = residual[active], direction[active], norm[active]
    k = 0
    while len(active) and k < max_iterations:
        image = system.apply(direction)
        step = norm / inner(direction, image)
        x[active] += step[column] * direction
        image *= step[column]
        residual -= image
        conditioned = preconditioner.solve(residual)
        new = inner(residual, conditioned)
        ratio = new / norm
        direction *= ratio[column]
        direction += conditioned
        for values, sequence in ((step, steps), (ratio, ratios), (new, norms)):
            sequence.append(np.zeros(batch))
            sequence[-1][active] = values
        if observe is not None:
            observe(active, conditioned)
        norm = new
        k += 1
        # With as few modes as iterations the residual may vanish.
        going_on = new > _SPENT * norms[0][active]
        if k >= 2 * _DELAY:
            going_on &= _squared_error(steps, norms, k)[active] > goal[active]
        if not going_on.all():
            left[active] = residual
            active = active[going_on]
            residual, direction = residual[going_on], direction[going_on]
            norm = norm[going_on]
    left[active] = residual
    shape = (k, batch)
    return Solution(
        x=x,
        residual=left,
        iterations=k,
        converged=len(active) == 0,
        steps=np.reshape(steps, shape),
        ratios=np.reshape(ratios, shape),
        norms=np.array(norms),
    )


def _squared_error(steps: list[Reals], norms: list[Reals], k: int) -> Reals:
    """Return ‖e‖²_B of an earlier iterate: the terms since, and the geometric series they begin."""
    last = sum(steps[j] * norms[j] for j in range(k - _DELAY, k))
    before = sum(steps[j] * norms[j] for j in range(k - 2 * _DELAY, k - _DELAY))
    decay = np.clip(np.divide(last, before, out=np.zeros_like(last), where=before > 0), 0.0, 0.99)
    return last / (1 - decay)
