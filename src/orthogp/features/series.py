r"""Features that are finite series on a frequency lattice, and the masses of its modes.

    φ_m(x) = Σ_t C_mt cos ω_t·(x−x₀)   for even m,      Σ_t C_mt sin ω_t·(x−x₀)   for odd m

over a half set of indices t, with C a function of the kernel. Their sums over any data set follow
from its `FourierStatistics`, and their posterior is a Fourier series. An additive
kernel has one family for each of its components.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import Features, Floats, Orders, as_rows
from orthogp.kernels import Kernel, components
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


# ---------------------------------------------------------------------- components


class Additive(Features):
    """The features of independent processes, side by side.

        f(x) = Σ_j f_j(x_{dims_j}),   u = (u_1, u_2, …),   φ = (φ_1(x_{dims_1}), φ_2(x_{dims_2}), …)

    Parameters
    ----------
    parts : tuple of Features
        One for each component of the kernel, in the order of `orthogp.kernels.components`.
    dims : tuple of tuples
        The columns of each.
    """

    parts: tuple[Features, ...]
    dims: Orders = eqx.field(static=True)

    by_component = False

    @property
    def num_features(self) -> int:
        """The number of features of all parts together."""
        return sum(part.num_features for part in self.parts)

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether the features of every part are those of its process."""
        return all(part.projects for part in self.parts)

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return the features of all parts, (n, m)."""
        X = as_rows(X)
        pieces = self._pieces(kernel, X.shape[1])
        return np.concatenate([part.evaluate(k, X[:, dims]) for part, k, dims in pieces], axis=1)

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Check every part with the kernel of its component."""
        for part, component, dims in self._pieces(kernel, num_dims):
            part.check(component, len(dims))

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with every part placed on its columns."""
        parts = [
            part.placed(component, lower[dims], upper[dims], lattice and along(lattice, dims))
            for part, component, dims in self._pieces(kernel, len(lower))
        ]
        return type(self)(tuple(parts), self.dims)

    def adjusted(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with every part placed again."""
        parts = [
            part.adjusted(component, lower[dims], upper[dims], lattice and along(lattice, dims))
            for part, component, dims in self._pieces(kernel, len(lower))
        ]
        return type(self)(tuple(parts), self.dims)

    def wanted_period(self, kernel: Kernel, width: Floats) -> Floats | None:
        """Return the longest period that a part wants along each column, if all want one, (d,)."""
        period = width.copy()
        for part, component, dims in self._pieces(kernel, len(width)):
            wanted = part.wanted_period(component, width[dims])
            if wanted is None:
                return None
            period[dims] = np.maximum(period[dims], wanted)
        return period

    def on(self, lattice: FrequencyLattice) -> AdditiveSeries | None:
        """Return all parts as series on their planes of the lattice, if all have series."""
        pairs = zip(self.parts, self.dims, strict=True)
        series = [part.on(along(lattice, dims)) for part, dims in pairs]
        found = tuple(part for part in series if part is not None)
        return AdditiveSeries.join(lattice, found, self.dims) if len(found) == len(series) else None

    def _pieces(
        self, kernel: Kernel, num_dims: int
    ) -> Iterator[tuple[Features, Kernel, list[int]]]:
        """Yield each part, the kernel of its component, and its columns."""
        found = components(kernel, num_dims)
        if tuple(dims for dims, _ in found) != self.dims:
            raise FeatureError(
                f"The features are for components on columns {self.dims}, but the kernel has "
                f"components on {tuple(dims for dims, _ in found)}."
            )
        for part, (dims, component) in zip(self.parts, found, strict=True):
            yield part, component, list(dims)


class AdditiveSeries(SeriesFeatures):
    """The parts' series, each on the plane of the lattice where the other frequencies vanish."""

    lattice: FrequencyLattice = eqx.field(static=True)
    indices: NDArray[np.int64]
    odd: NDArray[np.bool_]
    parts: tuple[SeriesFeatures, ...]
    dims: Orders = eqx.field(static=True)
    #: Where each part's indices stand among all, and with which sign, for its sines.
    positions: tuple[NDArray[np.int64], ...]
    signs: tuple[Floats, ...]

    @classmethod
    def join(
        cls, lattice: FrequencyLattice, parts: tuple[SeriesFeatures, ...], dims: Orders
    ) -> Self:
        """Return the series of all parts over the union of their indices."""
        half: dict[tuple[int, ...], int] = {(0,) * lattice.num_dims: 0}
        positions, signs = [], []
        for part, columns in zip(parts, dims, strict=True):
            embedded = np.zeros((len(part.indices), lattice.num_dims), dtype=np.int64)
            embedded[:, list(columns)] = part.indices
            at, sign = [], []
            for index in map(tuple, embedded.tolist()):
                mirrored = tuple(-t for t in index)
                turned = mirrored in half and any(index)
                at.append(half.setdefault(mirrored if turned else index, len(half)))
                sign.append(-1.0 if turned else 1.0)
            positions.append(np.array(at))
            signs.append(np.array(sign))
        indices = np.array(list(half), dtype=np.int64)
        odd = np.concatenate([part.odd for part in parts])
        return cls(lattice, indices, odd, parts, dims, tuple(positions), tuple(signs))

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether the features of every part are those of its process."""
        return all(part.projects for part in self.parts)

    @property
    def wrapped(self) -> bool:  # type: ignore[override]
        """Whether the features of every part are those of a wrapped prior."""
        return all(part.wrapped for part in self.parts)

    def coefficients(self, kernel: Kernel) -> Float[AnyArray, "m s"]:
        """Return the parts' coefficients, each in its columns of the table."""
        kernels = [component for _, component in components(kernel, self.lattice.num_dims)]
        blocks = []
        for part, component, at, sign in zip(
            self.parts, kernels, self.positions, self.signs, strict=True
        ):
            values = part.coefficients(component)
            turned = jnp.where(jnp.asarray(part.odd)[:, None], values * sign, values)
            empty = jnp.zeros((values.shape[0], len(self.indices)))
            blocks.append(empty.at[:, at].add(turned))
        return jnp.concatenate(blocks)


def along(lattice: FrequencyLattice, dims: Sequence[int]) -> FrequencyLattice:
    """Return the lattice along some columns."""
    at = list(dims)
    return FrequencyLattice(lattice.spacing[at], lattice.extent[at], lattice.centre[at])


def for_kernel(family: Features, kernel: Kernel, num_dims: int) -> Features:
    """Return the family, or for an additive kernel one copy of it for each component."""
    parts = components(kernel, num_dims)
    whole = len(parts) == 1 and parts[0][0] == tuple(range(num_dims))
    if whole or not family.by_component:
        return family
    return Additive(tuple(family for _ in parts), tuple(dims for dims, _ in parts))
