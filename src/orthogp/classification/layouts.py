"""Where the features of a classifier are chosen from: one lattice, or one for each component."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.passes import SiteAscent
from orthogp.classification.site_models import AdditiveModel, JointModel, SiteModel
from orthogp.features import AdditiveLattice, Lattice, MeanPrior
from orthogp.inference.parameters import learned_slots
from orthogp.inference.residual import required_features
from orthogp.kernels import Kernel
from orthogp.learning.dense import FIRST_FEATURES
from orthogp.learning.layout import AdditiveGrid, Limits
from orthogp.learning.limits import NOISE_FLOOR, names_at_limit, parameter_limits
from orthogp.learning.optimise import curvature_at
from orthogp.learning.status import describe_limits
from orthogp.learning.wrapping import choose_decimation
from orthogp.statistics import AdditiveStatistics, ComponentLattice, FrequencyLattice

# The shortest period, relative to the data's extent.
_SHORTEST = 1.1

#: One lattice, or the components with one each.
Layout = Any


class LabelGrid(ABC):
    """What a fitter asks about lattices; a `Layout` is what features are selected from."""

    @property
    @abstractmethod
    def first_features(self) -> int:
        """How many features are enough to begin with."""

    @abstractmethod
    def layout(self, kernel: Kernel, headroom: float) -> Layout:
        """Return the coarsest layout that the kernel, stretched by `headroom`, allows."""

    @abstractmethod
    def select(self, kernel: Kernel, layout: Layout, size: int) -> SiteModel:
        """Return the model with so many features, those of the largest prior variances."""

    @abstractmethod
    def sufficient(self, kernel: Kernel, layout: Layout, allowed: float) -> int:
        """Return how many features leave out no more than the allowed variance."""

    @abstractmethod
    def limits(self, kernel: Kernel, layout: Layout) -> Limits:
        """Return the limits of the kernel's log parameters."""

    @abstractmethod
    def names_at_limit(
        self, kernel: Kernel, layout: Layout, vector: NDArray[np.float64], limits: Limits
    ) -> tuple[str, ...]:
        """Return the parameters that ended at a limit."""

    @abstractmethod
    def describe_limits(self, names: tuple[str, ...], scarce: bool) -> list[str]:
        """Return sentences on such parameters; `scarce` if more features were wanted."""

    @abstractmethod
    def curvature(
        self, ascent: SiteAscent, vector: NDArray[np.float64], limits: Limits
    ) -> NDArray[np.float64]:
        """Return the curvature of the bound at log parameters, to begin with."""

    def shorter(self, layout: Layout) -> list[Layout]:
        """Return layouts with one period a step shorter, as far as such are worth trying."""
        return []

    def no_longer(self, layout: Layout, than: Layout) -> Layout:
        """Return the layout with periods no longer than those of another."""
        return layout


@dataclass(frozen=True, eq=False)
class JointGrid(LabelGrid):
    """One lattice.

    Attributes
    ----------
    lattice : FrequencyLattice
        The finest that features may be chosen from.
    width : (d,)
        The extent of the rows and of what else is to be covered.
    mean : MeanPrior
    wrap_tolerance : float
        The largest relative error of the wrapped prior.
    """

    lattice: FrequencyLattice
    width: NDArray[np.float64]
    mean: MeanPrior
    wrap_tolerance: float

    @property
    def first_features(self) -> int:
        """How many features are enough to begin with."""
        return FIRST_FEATURES[len(self.width)]

    def layout(self, kernel: Kernel, headroom: float) -> FrequencyLattice:
        """Return the coarsest lattice that the kernel, stretched by `headroom`, allows."""
        return self.lattice.decimate(
            choose_decimation(kernel, self.lattice, self.width, self.wrap_tolerance, headroom)
        )

    def select(self, kernel: Kernel, layout: FrequencyLattice, size: int) -> JointModel:
        """Return the model with so many features, those of the largest prior variances."""
        return JointModel(Lattice.select(kernel, layout, size, self.mean))

    def sufficient(self, kernel: Kernel, layout: FrequencyLattice, allowed: float) -> int:
        """Return how many features leave out no more than the allowed variance."""
        return required_features(kernel, layout, allowed)[0]

    def limits(self, kernel: Kernel, layout: FrequencyLattice) -> Limits:
        """Return the limits of the kernel's log parameters."""
        slots = learned_slots(kernel)
        edges = parameter_limits(
            kernel, slots, layout, self.width, self.wrap_tolerance, NOISE_FLOOR
        )
        return _without_noise(edges)

    def names_at_limit(
        self, kernel: Kernel, layout: FrequencyLattice, vector: NDArray[np.float64], limits: Limits
    ) -> tuple[str, ...]:
        """Return the parameters that ended at a limit."""
        return names_at_limit(learned_slots(kernel), vector, *limits)

    def describe_limits(self, names: tuple[str, ...], scarce: bool) -> list[str]:
        """Return sentences on such parameters; `scarce` if more features were wanted."""
        remedy = "more features allow a longer period" if scarce else "see `domain` and `mean`"
        return [f"The {' and '.join(names)} ended at a limit: {remedy}."]

    def curvature(
        self, ascent: SiteAscent, vector: NDArray[np.float64], limits: Limits
    ) -> NDArray[np.float64]:
        """Return the curvature of the bound by differences of its gradient."""
        _, gradient = ascent(vector)
        return curvature_at(ascent, vector, gradient, *limits)

    def shorter(self, layout: FrequencyLattice) -> list[FrequencyLattice]:
        """Return the lattices with one period a step shorter that still hold the data."""
        factors = self._factors(layout)
        lattices = [self.lattice.decimate(factors + step) for step in np.eye(len(factors))]
        return [own for own in lattices if np.all(own.period >= _SHORTEST * self.width)]

    def no_longer(self, layout: FrequencyLattice, than: FrequencyLattice) -> FrequencyLattice:
        """Return the lattice with periods no longer than those of another."""
        return self.lattice.decimate(np.maximum(self._factors(layout), self._factors(than)))

    def _factors(self, lattice: FrequencyLattice) -> NDArray[np.int64]:
        """Return by how much a lattice was decimated."""
        return np.rint(lattice.spacing / self.lattice.spacing).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ComponentGrid(LabelGrid):
    """A lattice for each component of an additive model.

    Attributes
    ----------
    grid : AdditiveGrid
    sums : AdditiveStatistics
        Of the rows, on the grid's finest lattices.
    mean : MeanPrior
    """

    grid: AdditiveGrid
    sums: AdditiveStatistics
    mean: MeanPrior

    @property
    def first_features(self) -> int:
        """How many features are enough to begin with."""
        return self.grid.first_features

    def layout(self, kernel: Kernel, headroom: float) -> tuple[ComponentLattice, ...]:
        """Return the coarsest lattices that the kernel, stretched by `headroom`, allows."""
        return self.grid.thinned(kernel, headroom)

    def select(
        self, kernel: Kernel, layout: tuple[ComponentLattice, ...], size: int
    ) -> AdditiveModel:
        """Return the model with so many features, those of the largest prior variances."""
        features = AdditiveLattice.select(kernel, layout, size, self.mean)
        return AdditiveModel(features, self.sums, self.grid.own_periods)

    def sufficient(
        self, kernel: Kernel, layout: tuple[ComponentLattice, ...], allowed: float
    ) -> int:
        """Return how many features leave out no more than the allowed variance."""
        return self.grid.required_features(kernel, layout, allowed)[0]

    def limits(self, kernel: Kernel, layout: tuple[ComponentLattice, ...]) -> Limits:
        """Return the limits of the kernel's log parameters."""
        return _without_noise(self.grid.limits(kernel, layout, NOISE_FLOOR))

    def names_at_limit(
        self,
        kernel: Kernel,
        layout: tuple[ComponentLattice, ...],
        vector: NDArray[np.float64],
        limits: Limits,
    ) -> tuple[str, ...]:
        """Return the parameters that ended at a limit, with the component they belong to."""
        return self.grid.names_at_limit(kernel, layout, vector, limits)

    def describe_limits(self, names: tuple[str, ...], scarce: bool) -> list[str]:
        """Return sentences on such parameters; `scarce` if more features were wanted."""
        return describe_limits(names)

    def curvature(
        self, ascent: SiteAscent, vector: NDArray[np.float64], limits: Limits
    ) -> NDArray[np.float64]:
        """Return the expected curvature with the sites held, from one factorisation.

        Differences would cost several passes over the rows for each of many parameters.
        """
        ascent(vector)
        objective: Any = ascent.last.objective
        return objective.curvature(np.append(vector, 0.0))[:-1, :-1]


def _without_noise(limits: Limits) -> Limits:
    """Return the limits but the last, those of a noise variance, which is one here."""
    lower, upper = limits
    return lower[:-1], upper[:-1]
