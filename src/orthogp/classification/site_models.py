"""Features as the regression of sites takes them: on one lattice, or on one for each component."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.sites import Sites
from orthogp.features import AdditiveLattice, Lattice
from orthogp.inference.bounds import factorise, unwhiten, whiten
from orthogp.inference.components import (
    AdditivePosterior,
    AdditiveSolution,
    ComponentSums,
    latent_shares,
)
from orthogp.inference.domain import Domain
from orthogp.inference.moments import Moments
from orthogp.inference.objective import AdditiveObjective, LatticeObjective, MassObjective
from orthogp.inference.posterior import Posterior
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.statistics import AdditiveStatistics, ComponentLattice, FrequencyLattice


class SiteModel(ABC):
    """What a pass over the rows, and in the end a posterior, make of a feature set.

    Sums are needed no further than the features reach, and each pass takes them anew: passes see
    the features on lattices that end there.
    """

    features: Any

    @property
    @abstractmethod
    def period(self) -> Any:
        """The period of the prior, (d,), or of each component's."""

    @abstractmethod
    def objective(
        self, kernel: Kernel, sites: Sites, threads: BlasThreads, num_threads: int | None
    ) -> MassObjective[Any, Any]:
        """Return the bound of the sites' regression, from one pass over the rows."""

    @abstractmethod
    def everywhere(
        self, kernel: Kernel, moments: Moments, num_threads: int | None
    ) -> Posterior | AdditivePosterior:
        """Return the posterior of that regression, as if it held wherever the rows are."""

    @abstractmethod
    def posterior(
        self, kernel: Kernel, moments: Moments, domain: Domain, num_threads: int | None
    ) -> Posterior | AdditivePosterior:
        """Return the posterior over a domain, with all that it can tell."""


@dataclass(frozen=True, eq=False)
class JointModel(SiteModel):
    """Features on one lattice."""

    features: Lattice

    @property
    def period(self) -> NDArray[np.float64]:
        """The period of the prior, (d,)."""
        return self.features.lattice.period

    @cached_property
    def _narrow(self) -> Lattice:
        return _narrowed(self.features)

    def objective(
        self, kernel: Kernel, sites: Sites, threads: BlasThreads, num_threads: int | None
    ) -> LatticeObjective:
        """Return the bound of the sites' regression, from one pass over the rows."""
        features = self._narrow
        statistics = sites.statistics(features.lattice, features.mean, num_threads)
        return LatticeObjective(features, kernel, statistics, repeats=False, threads=threads)

    def everywhere(self, kernel: Kernel, moments: Moments, num_threads: int | None) -> Posterior:
        """Return the posterior of that regression, as if it held wherever the rows are."""
        domain = _unbounded(self.features.lattice.num_dims)
        return Posterior(self._narrow, kernel, 1.0, moments, domain, num_threads)

    def posterior(
        self, kernel: Kernel, moments: Moments, domain: Domain, num_threads: int | None
    ) -> Posterior:
        """Return the posterior over a domain."""
        return Posterior(self.features, kernel, 1.0, moments, domain, num_threads)


@dataclass(frozen=True, eq=False)
class AdditiveModel(SiteModel):
    """Features on a lattice for each component.

    Attributes
    ----------
    sums : AdditiveStatistics
        Of the rows, each counted as often as its weight says, on lattices of which the features'
        are decimations: components are centred over the rows, not over sites.
    own_periods : tuple of tuples
        The period that each component has by itself along each of its columns, if any.
    """

    features: AdditiveLattice
    sums: AdditiveStatistics
    own_periods: tuple[tuple[float | None, ...], ...]

    @property
    def period(self) -> tuple[NDArray[np.float64], ...]:
        """The period of each component's prior."""
        return tuple(part.lattice.period for part in self.features.parts)

    @cached_property
    def _narrow(self) -> AdditiveLattice:
        whole = self.features
        return AdditiveLattice(tuple(map(_narrowed, whole.parts)), whole.columns, whole.mean)

    def objective(
        self, kernel: Kernel, sites: Sites, threads: BlasThreads, num_threads: int | None
    ) -> AdditiveObjective:
        """Return the bound of the sites' regression, from one pass over the rows."""
        features = self._narrow
        components = [
            ComponentLattice(columns, part.lattice, part.indices)
            for columns, part in zip(features.columns, features.parts, strict=True)
        ]
        statistics = sites.additive_statistics(components, features.mean, num_threads)
        return AdditiveObjective(features, kernel, statistics, repeats=False, threads=threads)

    def everywhere(
        self, kernel: Kernel, moments: Moments, num_threads: int | None
    ) -> AdditivePosterior:
        """Return the posterior of that regression, as if it held wherever the rows are."""
        domain = _unbounded(1 + max(max(own) for own in self.features.columns))
        return AdditivePosterior(
            self._narrow, kernel, 1.0, moments, (), domain, self.own_periods, num_threads
        )

    def posterior(
        self, kernel: Kernel, moments: Moments, domain: Domain, num_threads: int | None
    ) -> AdditivePosterior:
        """Return the posterior over a domain, and of each component."""
        features = self.features
        chol = factorise(moments.gram, 1.0)
        mean = unwhiten(chol, whiten(chol, moments.projection))
        steps = [
            np.rint(part.lattice.spacing / own.lattice.spacing).astype(np.int64)
            for part, own in zip(features.parts, self.sums.components, strict=True)
        ]
        thin = self.sums.decimate(steps)
        amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
        z = amplitudes[:, None] * mean
        shares = latent_shares(features, z, thin.real_sums(features.indices))
        return AdditivePosterior(
            features,
            kernel,
            1.0,
            AdditiveSolution(mean, chol, shares),
            tuple(map(ComponentSums.of, thin.parts)),
            domain,
            self.own_periods,
            num_threads,
        )


def _narrowed(features: Lattice) -> Lattice:
    """Return the same features on a lattice that ends with them."""
    lattice, reach = features.lattice, np.abs(features.indices).max(axis=0)
    narrow = FrequencyLattice(lattice.spacing, reach, lattice.centre)
    return Lattice(narrow, features.indices, features.mean)


def _unbounded(num_dims: int) -> Domain:
    return Domain(*(np.full(num_dims, edge) for edge in (-np.inf, np.inf)))
