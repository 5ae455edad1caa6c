"""The masses of lattice modes, compiled once per kernel."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

MASS_BLOCK = 1024


def lattice_masses(
    kernel: Kernel,
    lattice: FrequencyLattice,
    indices: NDArray[np.int64],
    block: int = MASS_BLOCK,
) -> NDArray[np.float64]:
    """Return the masses of the modes at `indices`, (s,), so many at a time."""
    blocks = omega_blocks(lattice, indices, block)
    masses = [np.asarray(_masses(kernel, omegas, lattice.spacing)) for omegas in blocks]
    return np.concatenate(masses)[: len(indices)]


def omega_blocks(
    lattice: FrequencyLattice, indices: NDArray[np.int64], size: int
) -> NDArray[np.float64]:
    """Return the frequencies at `indices` in blocks of one size, the last filled up with zeros.

    Functions are compiled once per shape: blocks of one shape mean one compilation, and bound the
    memory of kernels that hold quadrature nodes for every frequency.
    """
    num_blocks = -(-len(indices) // size)
    padded = np.zeros((num_blocks * size, lattice.num_dims))
    padded[: len(indices)] = indices * lattice.spacing
    return padded.reshape(num_blocks, size, lattice.num_dims)


@in_double
@eqx.filter_jit
def _masses(
    kernel: Kernel, omegas: Float[AnyArray, "s d"], spacing: Float[AnyArray, " d"]
) -> Float[AnyArray, " s"]:
    return jax.vmap(lambda omega: kernel.mass(omega, jnp.asarray(spacing)))(jnp.asarray(omegas))


def spectral_densities(kernel: Kernel, omegas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return S(ω) at each row of `omegas`, (n,)."""
    size, num_dims = omegas.shape
    padded = np.zeros((-(-size // MASS_BLOCK) * MASS_BLOCK, num_dims))
    padded[:size] = omegas
    blocks = padded.reshape(-1, MASS_BLOCK, num_dims)
    return np.concatenate([np.asarray(_densities(kernel, block)) for block in blocks])[:size]


@in_double
@eqx.filter_jit
def _densities(kernel: Kernel, omegas: Float[AnyArray, "n d"]) -> Float[AnyArray, " n"]:
    return jax.vmap(kernel.spectral_density)(jnp.asarray(omegas))
