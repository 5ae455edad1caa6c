r"""A kernel on a lattice of many modes: the system to solve, and the posterior its solution is.

With slopes of the mean function, of covariates c and prior variance τ², the posterior precision is

    [ B   C̃     ]    B = I + R T R/s²,   C̃ = τ R Σ w_n e^{−iω·x_n} c_n/s²
    [ C̃*  I + G̃ ]    G̃ = τ² Σ w_n c_n c_nᵀ/s²

and the slopes are eliminated by their Schur complement, a matrix as small as there are columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.features import MeanPrior
from orthogp.features.base import prior_variance
from orthogp.fields.modes import ModeGrid, grid_masses, with_offset
from orthogp.fields.preconditioner import Preconditioner, choose_preconditioner
from orthogp.fields.system import DataDensity, LatticeSystem
from orthogp.inference.threads import lower_factor
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics
from orthogp.statistics.nufft import TOLERANCE


@dataclass(frozen=True)
class Model:
    """Hyperparameters on a lattice: all that does not depend on the targets.

    Attributes
    ----------
    kernel, noise_variance
    masses : (…)
        Prior variances of the modes, the mean function's offset included in that of mode zero.
    unresolved : float
        d, the prior variance of the modes beyond the lattice.
    system : LatticeSystem
    preconditioner : SpatialPreconditioner or EvenPreconditioner
    """

    kernel: Kernel
    noise_variance: float
    masses: NDArray[np.float64]
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
        """Return the model of a kernel and a noise variance, on the density's lattice.

        Its preconditioner is like another one, or as `fine` as variances want it.
        """
        masses = grid_masses(kernel, density.lattice, density.grid)
        unresolved = max(prior_variance(kernel) - density.grid.total(masses), 0.0)
        masses = with_offset(masses, mean)
        noise = noise_variance + unresolved
        if TOLERANCE * density.count * prior_variance(kernel) > noise:
            raise PrecisionError(
                "The noise variance is too small, relative to the signal and the number of rows, "
                "for double precision: use a larger noise_variance."
            )
        system = LatticeSystem(density, masses, noise)
        return cls(
            kernel,
            noise_variance,
            masses,
            unresolved,
            system,
            choose_preconditioner(system, like, fine=fine),
        )

    @cached_property
    def determined(self) -> float:
        """The number of modes that evenly spread rows would determine, Σ_t (1 − 1/(1 + N s/σ²))."""
        return self.system.grid.total(1 - 1 / self.preconditioner.others)


class ModePosterior(NamedTuple):
    """The posterior of the whitened modes, x (p, …), and of the slopes (q, p), if any.

    `covariate_modes` is B⁻¹C̃ and `slope_factor` the Cholesky factor of the slopes' precision.
    """

    modes: NDArray[np.complex128]
    slopes: NDArray[np.float64]
    covariate_modes: NDArray[np.complex128]
    slope_factor: NDArray[np.float64]
    explained: NDArray[np.float64]


class PosteriorOf:
    """Completes solutions B⁻¹[b̃, C̃] to the posterior with slopes of the mean function."""

    def __init__(
        self,
        grid: ModeGrid,
        right: NDArray[np.complex128],
        num_targets: int,
        slope_gram: NDArray[np.float64],
        slope_targets: NDArray[np.float64],
    ) -> None:
        self._grid = grid
        self._right = right
        self._num_targets = num_targets
        self._gram = slope_gram
        self._targets = slope_targets

    def __call__(
        self, solved: NDArray[np.complex128], residual: NDArray[np.complex128]
    ) -> ModePosterior:
        """Return the posterior of modes and slopes from solutions and what they leave of b."""
        p, q = self._num_targets, len(self._gram)
        targets, covariates = solved[:p], solved[p:]
        inner = self._grid.inner
        # ⟨b, B⁻¹b⟩ = ⟨b, x⟩ + ⟨x, r⟩ up to the square of the error: cᵀc and what is explained of it
        # agree to many digits, so that the first order would not do.
        explained = inner(self._right[:p], targets) + inner(targets, residual[:p])
        if not q:
            return ModePosterior(targets, np.zeros((0, p)), covariates, np.eye(0), explained)
        cross = np.array(
            [
                inner(self._right[p + i][None], solved) + inner(covariates[i][None], residual)
                for i in range(q)
            ]
        )
        schur = np.eye(q) + self._gram - cross[:, p:]
        factor = lower_factor(schur)
        goal = self._targets - cross[:, :p]
        slopes = scipy.linalg.cho_solve((factor, True), goal)
        modes = targets - np.tensordot(slopes.T, covariates, axes=(1, 0))
        explained = explained + np.sum(goal * slopes, axis=0)
        return ModePosterior(modes, slopes, covariates, factor, explained)


def right_hand_sides(
    model: Model, statistics: FourierStatistics, mean: MeanPrior
) -> tuple[NDArray[np.complex128], PosteriorOf]:
    """Return b̃ and C̃, (p + q, …), and what makes the posterior of their solutions."""
    system, density = model.system, model.system.density
    scaled = system.amplitudes / system.noise_variance
    parts = [density.targets * scaled]
    slope = np.sqrt(mean.slope_variance)
    q = len(density.covariates) if slope else 0
    if q:
        parts.append(slope * density.covariates * scaled)
    right = np.concatenate(parts)
    gram = slope**2 * statistics.covariate_gram[:q, :q] / system.noise_variance
    targets = slope * statistics.covariate_targets[:q] / system.noise_variance
    return right, PosteriorOf(system.grid, right, len(density.targets), gram, targets)


def slope_share(posterior: ModePosterior) -> NDArray[np.float64] | float:
    """Return what uncertain slopes add to (B⁻¹)_tt."""
    if not len(posterior.covariate_modes):
        return 0.0
    q = len(posterior.covariate_modes)
    flat = posterior.covariate_modes.reshape(q, -1)
    whitened = scipy.linalg.solve_triangular(posterior.slope_factor, flat, lower=True)
    return np.sum(np.abs(whitened) ** 2, axis=0).reshape(posterior.covariate_modes.shape[1:])


def slope_shrinkage(posterior: ModePosterior) -> float:
    """Return q − tr(slopes' covariance): how many slopes the data determine."""
    q = len(posterior.covariate_modes)
    if not q:
        return 0.0
    inverse = scipy.linalg.cho_solve((posterior.slope_factor, True), np.eye(q))
    return q - float(np.trace(inverse))
