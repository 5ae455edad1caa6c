"""The masses of all modes of a grid, and their derivatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.features.masses import MASS_BLOCK, lattice_masses
from orthogp.inference.mode_grid import ModeGrid
from orthogp.inference.parameters import (
    JACOBIAN_BLOCK,
    PriorJacobian,
    Slot,
    masses_and_jacobian,
)
from orthogp.kernels import Kernel
from orthogp.statistics import FrequencyLattice

# Modes whose masses are computed by one call, if there are as many; fewer are computed in the small
# blocks for which functions have been compiled already.
_BLOCK = 2**15


def with_offset(masses: NDArray[np.float64], mean: MeanPrior) -> NDArray[np.float64]:
    """Return the masses with the mean function's offset in mode zero."""
    if not mean.offset_variance:
        return masses
    masses = masses.copy()
    masses[(0,) * masses.ndim] += mean.offset_variance
    return masses


def grid_masses(kernel: Kernel, lattice: FrequencyLattice, grid: ModeGrid) -> NDArray[np.float64]:
    """Return the kernel's masses at the modes of a grid."""
    indices = grid.indices.reshape(-1, grid.num_dims)
    block = _BLOCK if len(indices) >= _BLOCK else MASS_BLOCK
    masses = lattice_masses(kernel, lattice, indices, block)
    return masses.reshape(grid.shape)


def masses_jacobian(
    log_parameters: NDArray[np.float64],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    lattice: FrequencyLattice,
    grid: ModeGrid,
) -> PriorJacobian:
    """Return masses and k(0) with their derivatives, (…, p), in the shape of a grid's modes."""
    indices = grid.indices.reshape(-1, grid.num_dims)
    block = _BLOCK if len(indices) >= _BLOCK else JACOBIAN_BLOCK
    prior = masses_and_jacobian(log_parameters, kernel, slots, lattice, indices, block)
    return prior._replace(
        masses=prior.masses.reshape(grid.shape),
        jacobian=prior.jacobian.reshape(*grid.shape, -1),
    )
