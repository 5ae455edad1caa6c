r"""Features that are finite series on a frequency lattice, and the masses of its modes.

    φ_m(x) = Σ_t C_mt cos ω_t·(x−x₀)   for even m,      Σ_t C_mt sin ω_t·(x−x₀)   for odd m

over a half set of indices t, with C a function of the kernel. Their sums over any data set follow
from its `FourierStatistics`, and their posterior is a Fourier series.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features.base import Features, Floats, as_rows
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

Indices = NDArray[np.int64]

#: The frequencies whose masses are computed together.
MASS_BLOCK = 1024


def lattice_masses(
    kernel: Kernel, lattice: FrequencyLattice, indices: Indices, block: int = MASS_BLOCK
) -> Floats:
    """Return the masses of the modes at `indices`, (s,), `block` at a time."""
    blocks = omega_blocks(lattice, indices, block)
    masses = [np.asarray(_masses(kernel, omegas, lattice.spacing)) for omegas in blocks]
    return np.concatenate(masses)[: len(indices)]


def omega_blocks(lattice: FrequencyLattice, indices: Indices, size: int) -> Floats:
    """Return the frequencies at `indices` in blocks of one size, the last filled up with zeros."""
    return _blocks(indices * lattice.spacing, size)


def _blocks(omegas: Floats, size: int) -> Floats:
    """Return frequencies in blocks of one size, the last filled up with zeros.

    Functions are compiled once per shape: blocks of one shape mean one compilation, and bound the
    memory of kernels that hold quadrature nodes for every frequency.
    """
    padded = np.pad(omegas, ((0, -len(omegas) % size), (0, 0)))
    return padded.reshape(-1, size, omegas.shape[1])


@in_double
@eqx.filter_jit
def _masses(kernel: Kernel, omegas: Floats, spacing: Floats) -> Float[AnyArray, " s"]:
    return jax.vmap(lambda omega: kernel.mass(omega, jnp.asarray(spacing)))(jnp.asarray(omegas))


def spectral_densities(kernel: Kernel, omegas: Floats) -> Floats:
    """Return S(ω) at each row of `omegas`, (n,)."""
    densities = [np.asarray(_densities(kernel, part)) for part in _blocks(omegas, MASS_BLOCK)]
    return np.concatenate(densities)[: len(omegas)]


@in_double
@eqx.filter_jit
def _densities(kernel: Kernel, omegas: Floats) -> Float[AnyArray, " n"]:
    return jax.vmap(kernel.spectral_density)(jnp.asarray(omegas))


class SeriesFeatures(Features):
    """Features given by coefficients of cosines and sines; see the module's docstring.

    Attributes
    ----------
    lattice : FrequencyLattice
        Gives spacing and centre; its extent holds all indices.
    indices : (s, d)
        A half set: one of each pair ±t, index zero first.
    odd : (m,)
        Which features are series of sines; the coefficient of index zero does not count there.
    """

    lattice: eqx.AbstractVar[FrequencyLattice]
    indices: eqx.AbstractVar[Indices]
    odd: eqx.AbstractVar[NDArray[np.bool_]]

    #: Whether the features are those of the wrapped prior, not of the kernel's.
    wrapped: ClassVar[bool] = False

    @abstractmethod
    def coefficients(self, kernel: Kernel) -> Float[AnyArray, "m s"]:
        """Return C as a JAX array; the gradient for learning is taken through this."""

    @property
    def num_features(self) -> int:
        """The number m of features."""
        return len(self.odd)

    @property
    def omegas(self) -> Floats:
        """The frequencies of the half set, (s, d)."""
        return self.indices * self.lattice.spacing

    def coefficient_matrix(self, kernel: Kernel) -> Floats:
        """Return C, (m, s)."""
        return np.asarray(_coefficients(self, kernel))

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) as JAX arrays."""
        C = self.coefficients(kernel)
        phases = (X - self.lattice.centre) @ self.omegas.T
        return jnp.where(self.odd, jnp.sin(phases) @ C.T, jnp.cos(phases) @ C.T)

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m)."""
        phases = (as_rows(X) - self.lattice.centre) @ self.omegas.T
        C = self.coefficient_matrix(kernel)
        Phi = np.empty((len(phases), len(C)))
        Phi[:, ~self.odd] = np.cos(phases) @ C[~self.odd].T
        Phi[:, self.odd] = np.sin(phases) @ C[self.odd].T
        return Phi


class MassSeries(SeriesFeatures):
    """Series whose coefficients are fixed weights of the modes' standard deviations.

        C_mt = weights_mt √mass_t

    With rows of `weights` that are orthonormal over the lattice (index zero once, all others
    twice) these are exact features of the wrapped prior, whatever the kernel.
    """

    lattice: FrequencyLattice = eqx.field(static=True)
    indices: Indices
    odd: NDArray[np.bool_]
    weights: Floats

    wrapped = True

    def coefficients(self, kernel: Kernel) -> Float[AnyArray, "m s"]:
        """Return C as a JAX array."""
        spacing = jnp.asarray(self.lattice.spacing)
        masses = jax.vmap(lambda omega: kernel.mass(omega, spacing))(jnp.asarray(self.omegas))
        return jnp.asarray(self.weights) * safe_sqrt(masses)

    def masses(self, kernel: Kernel) -> Floats:
        """Return the prior variance mass_t of each mode of the half set, (s,)."""
        return lattice_masses(kernel, self.lattice, self.indices)

    def coefficient_matrix(self, kernel: Kernel) -> Floats:
        """Return C, (m, s), without compiling anything for its shape."""
        return self.weights * np.sqrt(np.maximum(self.masses(kernel), 0.0))


def safe_sqrt(values: Float[AnyArray, "*shape"]) -> Float[AnyArray, "*shape"]:
    """Return √x with derivative zero, not infinite, at zero."""
    positive = values > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1.0)), 0.0)


@in_double
@eqx.filter_jit
def _coefficients(features: SeriesFeatures, kernel: Kernel) -> AnyArray:
    return features.coefficients(kernel)
