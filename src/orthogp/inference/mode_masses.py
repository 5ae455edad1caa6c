"""The masses of all modes of a grid, and their derivatives, block by block."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.inference.mode_grid import ModeGrid
from orthogp.inference.parameters import Slot, unpack
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

# Modes whose masses are computed by one call.
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
    blocks = _omega_blocks(lattice, grid)
    masses = [np.asarray(_masses(kernel, block, lattice.spacing)) for block in blocks]
    return np.concatenate(masses)[: int(np.prod(grid.shape))].reshape(grid.shape)


class MassJacobian(NamedTuple):
    """Derivatives of the masses, (…, p), and of k(0), (p,), in the log parameters."""

    jacobian: NDArray[np.float64]
    variance_jacobian: NDArray[np.float64]


def masses_jacobian(
    log_parameters: NDArray[np.float64],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    lattice: FrequencyLattice,
    grid: ModeGrid,
) -> MassJacobian:
    """Return how the masses change with the kernel's log parameters."""
    size = int(np.prod(grid.shape))
    jacobian, variance_jacobian = [], None
    for block in _omega_blocks(lattice, grid):
        part, variance_jacobian = _jacobian(log_parameters, kernel, slots, block, lattice.spacing)
        jacobian.append(np.asarray(part))
    return MassJacobian(
        np.concatenate(jacobian)[:size].reshape(*grid.shape, -1), np.asarray(variance_jacobian)
    )


def _omega_blocks(lattice: FrequencyLattice, grid: ModeGrid) -> NDArray[np.float64]:
    omegas = grid.indices.reshape(-1, grid.num_dims) * lattice.spacing
    size = min(_BLOCK, len(omegas))
    padded = np.zeros((-(-len(omegas) // size) * size, grid.num_dims))
    padded[: len(omegas)] = omegas
    return padded.reshape(-1, size, grid.num_dims)


@in_double
@eqx.filter_jit
def _masses(
    kernel: Kernel, omegas: Float[AnyArray, "s d"], spacing: Float[AnyArray, " d"]
) -> Float[AnyArray, " s"]:
    return jax.vmap(lambda omega: kernel.mass(omega, jnp.asarray(spacing)))(jnp.asarray(omegas))


@in_double
@eqx.filter_jit
def _jacobian(
    log_parameters: Float[AnyArray, " p"],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    omegas: Float[AnyArray, "s d"],
    spacing: Float[AnyArray, " d"],
):
    def prior(vector):
        candidate = unpack(kernel, slots, vector)
        masses = jax.vmap(lambda omega: candidate.mass(omega, jnp.asarray(spacing)))(omegas)
        return masses, candidate.prior_variance()

    omegas = jnp.asarray(omegas)
    return jax.jacfwd(prior)(jnp.asarray(log_parameters))
