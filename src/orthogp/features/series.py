r"""Features that are finite series on a frequency lattice; those of the wrapped processes first.

    φ_m(x) = Σ_t C_mt cos ω_t·(x−x₀)   for even m,      Σ_t C_mt sin ω_t·(x−x₀)   for odd m

over a half set of indices t, with C a function of the kernel. Their sums over any data set follow
from its `FourierStatistics`, and their posterior is a Fourier series. An additive kernel has one
family for each of its components.

Lattice features are the Fourier coefficients of wrapped processes, one for each component; a joint
model has one component, on all columns. With mass_jt the prior variance of mode t of component j,
the features of f(x) = Σ_j f_j(x_{columns_j}) are

    φ = √(offset + Σ_j mass_j0), √(2 mass_jt) cos ω_t·x_j, √(2 mass_jt) sin ω_t·x_j, √slope c_d(x)

with x_j measured from the centre of the component's lattice. They are orthonormal for the wrapped
prior (see `orthogp.kernels.base`), and leave out Σ_j (k_j(0) − Σ_t mass_jt) everywhere. The
components' modes of index zero are the same constant and share one feature with the mean
function's offset.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError, InputError
from orthogp.features.base import Features, Floats, Orders, as_rows, prior_variance
from orthogp.kernels import Kernel, components
from orthogp.kernels.terms import component_kernels
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import ComponentLattice, FrequencyLattice

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


class MeanPrior(NamedTuple):
    """The prior of the mean function c + Σ_d s_d (x_d − origin_d)/width_d, to be integrated out.

    c ~ N(0, offset_variance), s_d ~ N(0, slope_variance); a variance of zero leaves the term out.
    The sum is over the last columns of the rows, as many as `origin` has entries: the covariates
    that a user gave, which stand behind the inputs, and for a linear mean the inputs too.

    Attributes
    ----------
    num_covariates : int
        The number of columns behind the inputs, which no kernel acts on.
    """

    offset_variance: float = 0.0
    slope_variance: float = 0.0
    origin: Floats = np.zeros(1)
    width: Floats = np.ones(1)
    num_covariates: int = 0

    @property
    def kind(self) -> str | None:
        """What users call it: `None`, "constant" or "linear"."""
        if self.slope_variance and len(self.origin) > self.num_covariates:
            return "linear"
        return "constant" if self.offset_variance else None

    @property
    def num_slopes(self) -> int:
        """The number of columns that have slopes."""
        return len(self.origin) if self.slope_variance else 0

    def inputs(self, X: NDArray) -> NDArray:
        """Return the columns that kernels act on, (n, d)."""
        return X[:, : X.shape[1] - self.num_covariates] if self.num_covariates else X

    def with_average_covariates(self, places: NDArray) -> NDArray:
        """Return inputs (n, d) with the covariates behind them at their averages, (n, d + q)."""
        average = self.origin[len(self.origin) - self.num_covariates :]
        return np.concatenate([places, np.tile(average, (len(places), 1))], axis=1)

    def covariates(self, X: NDArray) -> Floats:
        """Return the columns that the slopes multiply, (n, q)."""
        if self.slope_variance == 0:
            return np.empty((len(X), 0))
        last = X[:, X.shape[1] - len(self.origin) :]
        return (np.asarray(last, dtype=np.float64) - self.origin) / self.width

    def features(self, X: NDArray) -> Floats:
        """Return the columns whose coefficients have unit variance, the offset's first, (n, q)."""
        slopes = np.sqrt(self.slope_variance) * self.covariates(X)
        if not self.offset_variance:
            return slopes
        return np.insert(slopes, 0, np.sqrt(self.offset_variance), axis=1)

    def slopes(self, num_dims: int) -> Floats:
        """Return the derivatives of the columns of `features` along each column of rows, (d, q)."""
        zero = np.zeros((1, num_dims))
        return self.features(np.eye(num_dims)) - self.features(zero)

    def prior_variance(self, X: NDArray) -> Floats:
        """Return the prior variance of the mean function, (n,)."""
        square = np.sum(self.covariates(X) ** 2, axis=1)
        return self.offset_variance + self.slope_variance * square


#: No mean function.
NO_MEAN = MeanPrior()


class LatticeFeatures(Features):
    """Cosines and sines of one or several components, with the mean function's columns behind.

    See the module's docstring.
    """

    made_by_fits = True

    if TYPE_CHECKING:
        # Fields of some subclasses, properties of others.
        @property
        def parts(self) -> tuple[Lattice, ...]:
            """Each component's modes."""
            ...

        @property
        def columns(self) -> Orders:
            """The columns of X that each component acts on."""
            ...

        @property
        def mean(self) -> MeanPrior:
            """The prior of the mean function."""
            ...

    @property
    def num_slopes(self) -> int:
        """The number of features of the mean function's slopes."""
        return self.mean.num_slopes

    @property
    def num_features(self) -> int:
        """The number of features, those of the mean function included."""
        return 1 + sum(2 * len(part.indices) - 2 for part in self.parts) + self.num_slopes

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each component's cosines and sines stand among the features."""
        edges = np.cumsum([1, *(2 * len(part.indices) - 2 for part in self.parts)])
        return tuple(slice(int(a), int(b)) for a, b in pairwise(edges))

    @property
    def mass_slices(self) -> tuple[slice, ...]:
        """Where each component's masses stand among all."""
        edges = np.cumsum([0, *(len(part.indices) for part in self.parts)])
        return tuple(slice(int(a), int(b)) for a, b in pairwise(edges))

    @property
    def multiplicity(self) -> Floats:
        """How many modes each mass stands for: one of index zero, two of every other pair ±t."""
        return np.concatenate([_multiplicity(part.indices) for part in self.parts])

    def kernels(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """Return the components' kernels, relative to the columns of each."""
        return component_kernels(kernel, self.columns)

    def masses(self, kernel: Kernel) -> Floats:
        """Return the prior variances of all components' modes, one component after the other."""
        parts = zip(self.parts, self.kernels(kernel), strict=True)
        return np.concatenate([lattice_masses(k, part.lattice, part.indices) for part, k in parts])

    def squared_amplitudes(self, masses: Floats) -> Floats:
        """Return the squared coefficient of the constant, each cosine, sine and covariate, (m,)."""
        split = [masses[part] for part in self.mass_slices]
        zero = self.mean.offset_variance + sum(part[0] for part in split)
        waves = [2 * part[1:] for part in split for _ in range(2)]
        return np.concatenate([[zero], *waves, np.full(self.num_slopes, self.mean.slope_variance)])

    def gather(self, per_feature: Floats) -> Floats:
        """Return ∂/∂mass from ∂/∂(squared amplitude): the transpose of `squared_amplitudes`."""
        gradients = []
        for part in self.slices:
            cosines, sines = np.split(per_feature[part], 2)
            gradients += [per_feature[:1], 2 * (cosines + sines)]
        return np.concatenate(gradients)

    def component_design(self, j: int, X: NDArray) -> Floats:
        """Return component j's cosines and sines at the rows of all columns X, (n, 2s−2)."""
        part = self.parts[j]
        return ComponentLattice(self.columns[j], part.lattice, part.indices).design(X)

    def design(self, X: NDArray) -> Floats:
        """Return the constant, cosines, sines and covariates, before any kernel, (n, m)."""
        X = as_rows(X)
        waves = [self.component_design(j, X) for j in range(len(self.parts))]
        return np.concatenate([np.ones((len(X), 1)), *waves, self.mean.covariates(X)], axis=1)

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m)."""
        return self.design(X) * np.sqrt(self.squared_amplitudes(self.masses(kernel)))

    def residual(self, kernel: Kernel) -> float:
        """Return the prior variance that the features leave out, never negative."""
        return max(prior_variance(kernel) - float(self.multiplicity @ self.masses(kernel)), 0.0)

    def residual_variance(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return what the features leave out at every row, (n,)."""
        return np.full(len(X), self.residual(kernel))


class Lattice(LatticeFeatures):
    """The features of one component on all columns.

    Parameters
    ----------
    lattice : FrequencyLattice
        Gives spacing, centre and the largest indices.
    indices : (s, d)
        One of each pair ±t, index zero first.
    mean : MeanPrior
    """

    lattice: FrequencyLattice = eqx.field(static=True)
    indices: Indices
    mean: MeanPrior = NO_MEAN  # type: ignore[override]

    def __check_init__(self) -> None:
        if len(self.indices) == 0 or np.any(self.indices[0] != 0):
            raise InputError("Lattice features need index zero as their first index.")
        if np.any(np.abs(self.indices) > self.lattice.extent):
            raise InputError(
                f"Lattice features must lie within the lattice's extent {self.lattice.extent}."
            )

    @classmethod
    def select(
        cls, kernel: Kernel, lattice: FrequencyLattice, num_features: int, mean: MeanPrior = NO_MEAN
    ) -> Lattice:
        """Return the features of the `num_features` largest masses, mode zero among them."""
        indices = lattice.half_indices()
        masses = lattice_masses(kernel, lattice, indices)[1:]
        (chosen,) = _largest([masses], num_features)
        return cls(lattice, indices[chosen], mean)

    @property
    def parts(self) -> tuple[Lattice, ...]:  # type: ignore[override]
        """The lattice itself: the model's only component."""
        return (self,)

    @property
    def columns(self) -> Orders:  # type: ignore[override]
        """All columns of X, for the only component."""
        return (tuple(range(self.lattice.num_dims)),)

    @property
    def omegas(self) -> Floats:
        """The frequencies of the half set, (s, d)."""
        return self.indices * self.lattice.spacing


def residual_mass(kernel: Kernel, masses: Floats) -> float:
    """Return the prior variance outside of a half set with these masses, never negative."""
    return max(prior_variance(kernel) - float(masses[0] + 2 * masses[1:].sum()), 0.0)


class AdditiveLattice(LatticeFeatures):
    """The features of several components, each on its lattice.

    Kernels are sums of one `On` for each component (`orthogp.kernels.terms.join_terms`).

    Parameters
    ----------
    parts : tuple of Lattice
        Without mean functions.
    columns : tuple of tuples
        The columns that each acts on.
    mean : MeanPrior
        Of all columns.
    """

    parts: tuple[Lattice, ...]  # type: ignore[override]
    columns: Orders = eqx.field(static=True)  # type: ignore[override]
    mean: MeanPrior = NO_MEAN  # type: ignore[override]

    @classmethod
    def select(
        cls,
        kernel: Kernel,
        components: Sequence[ComponentLattice],
        num_features: int,
        mean: MeanPrior = NO_MEAN,
    ) -> Self:
        """Return the features of the largest masses among all components' kept modes.

        No other set of as many features leaves out less.
        """
        columns = tuple(component.columns for component in components)
        kernels = component_kernels(kernel, columns)
        masses = [
            lattice_masses(k, component.lattice, component.indices)[1:]
            for k, component in zip(kernels, components, strict=True)
        ]
        parts = tuple(
            Lattice(component.lattice, component.indices[chosen])
            for chosen, component in zip(_largest(masses, num_features), components, strict=True)
        )
        return cls(parts, columns, mean)

    @property
    def indices(self) -> tuple[Indices, ...]:
        """The half set of each component, index zero first."""
        return tuple(part.indices for part in self.parts)


def _multiplicity(indices: Indices) -> Floats:
    return np.concatenate([[1.0], np.full(len(indices) - 1, 2.0)])


def _largest(masses: list[Floats], num_features: int) -> list[Indices]:
    """Return where the largest masses but mode zero's are, in each half set, with mode zero.

    Where a mass is zero the process has no mode.
    """
    if num_features < 1:
        raise InputError(f"num_features must be at least 1, got {num_features}.")
    pooled = np.concatenate(masses)
    num_pairs = min((num_features - 1) // 2, int(np.count_nonzero(pooled > 0)))
    chosen = np.zeros(len(pooled), dtype=bool)
    chosen[np.argsort(-pooled, kind="stable")[:num_pairs]] = True
    edges = np.cumsum([len(part) for part in masses])[:-1]
    return [np.concatenate([[0], np.flatnonzero(part) + 1]) for part in np.split(chosen, edges)]
