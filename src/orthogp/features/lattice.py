r"""Lattice features: the Fourier coefficients of wrapped processes, one for each component.

A joint model has one component, on all columns. With mass_jt the prior variance of mode t of
component j, the features of f(x) = Σ_j f_j(x_{columns_j}) are

    φ = √(offset + Σ_j mass_j0), √(2 mass_jt) cos ω_t·x_j, √(2 mass_jt) sin ω_t·x_j, √slope c_d(x)

with x_j measured from the centre of the component's lattice. They are orthonormal for the wrapped
prior (see `orthogp.kernels.base`), and leave out Σ_j (k_j(0) − Σ_t mass_jt) everywhere. The
components' modes of index zero are the same constant and share one feature with the mean
function's offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features.base import Features, Floats, Orders, as_rows, prior_variance
from orthogp.features.series import Indices, lattice_masses
from orthogp.kernels import Kernel
from orthogp.kernels.terms import component_kernels
from orthogp.statistics import ComponentLattice, FrequencyLattice


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
