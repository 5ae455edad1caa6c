"""Features as the regression of sites takes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orthogp.classification.sites import Sites
from orthogp.features import AdditiveLattice, Lattice
from orthogp.features.lattice import LatticeFeatures
from orthogp.inference.bounds import factorise, unwhiten, whiten
from orthogp.inference.component_posterior import (
    AdditivePosterior,
    ComponentSums,
    latent_shares,
    lattice_posterior,
)
from orthogp.inference.moments import Moments
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.posterior import Posterior, Solution
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.learning.layout import OwnPeriods
from orthogp.rows import Domain
from orthogp.statistics import AdditiveStatistics, FrequencyLattice, Statistics


@dataclass(frozen=True, eq=False)
class SiteModel:
    """A feature set, as passes over the rows and in the end a posterior take it.

    Sums are needed no further than the features reach, and each pass takes them anew: passes see
    the features on lattices that end there.

    Attributes
    ----------
    features : LatticeFeatures
    sums : Statistics, optional
        Of the rows, each counted as often as its weight says, on lattices of which the features'
        are decimations: several components are centred over the
        rows, not over sites.
    own_periods : tuple of tuples, optional
        The period that each of several components has along each of its columns, if any.
    """

    features: LatticeFeatures
    sums: Statistics | None = None
    own_periods: OwnPeriods | None = None

    @property
    def period(self) -> Any:
        """The period of the prior, (d,), or of each component's."""
        periods = tuple(part.lattice.period for part in self.features.parts)
        return periods[0] if isinstance(self.features, Lattice) else periods

    @cached_property
    def _narrow(self) -> LatticeFeatures:
        features = self.features
        if isinstance(features, Lattice):
            return _narrowed(features)
        return AdditiveLattice(
            tuple(map(_narrowed, features.parts)), features.columns, features.mean
        )

    def objective(
        self, kernel: Kernel, sites: Sites, threads: BlasThreads, num_threads: int | None
    ) -> LatticeObjective:
        """Return the bound of the sites' regression, from one pass over the rows."""
        features = self._narrow
        statistics = sites.statistics(features, num_threads)
        return LatticeObjective(features, kernel, statistics, repeats=False, threads=threads)

    def everywhere(self, kernel: Kernel, moments: Moments, num_threads: int | None) -> Posterior:
        """Return the posterior of that regression, as if it held wherever the rows are."""
        num_dims = 1 + max(max(own) for own in self.features.columns)
        domain = Domain(*(np.full(num_dims, edge) for edge in (-np.inf, np.inf)))
        return lattice_posterior(
            self._narrow, (kernel, 1.0), moments, domain, num_threads, self.own_periods
        )

    def posterior(
        self, kernel: Kernel, moments: Moments, domain: Domain, num_threads: int | None
    ) -> Posterior:
        """Return the posterior over a domain, and of each of several components."""
        features = self.features
        if isinstance(features, Lattice):
            return Posterior(features, kernel, 1.0, moments, domain, num_threads)
        assert isinstance(features, AdditiveLattice)
        assert isinstance(self.sums, AdditiveStatistics)
        chol = factorise(moments.gram, 1.0)
        mean = unwhiten(chol, whiten(chol, moments.projection))
        steps = [
            np.rint(part.lattice.spacing / own.lattice.spacing).astype(np.int64)
            for part, own in zip(features.parts, self.sums.components, strict=True)
        ]
        thin = self.sums.thinned(steps)
        amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
        z = amplitudes[:, None] * mean
        shares = latent_shares(features, z, thin.real_sums(features.indices))
        return AdditivePosterior(
            features,
            kernel,
            1.0,
            Solution(mean, chol),
            domain,
            num_threads,
            self.own_periods,
            tuple(map(ComponentSums.of, thin.parts)),
            shares,
        )


def _narrowed(features: Lattice) -> Lattice:
    """Return the same features on a lattice that ends with them."""
    lattice, reach = features.lattice, np.abs(features.indices).max(axis=0)
    narrow = FrequencyLattice(lattice.spacing, reach, lattice.centre)
    return Lattice(narrow, features.indices, features.mean)
