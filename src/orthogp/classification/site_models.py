"""Features as the regression of sites takes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orthogp.classification.sites import Sites
from orthogp.features import AdditiveLattice, Lattice
from orthogp.features.lattice import LatticeFeatures
from orthogp.inference.component_posterior import (
    AdditivePosterior,
    latent_shares,
    lattice_posterior,
)
from orthogp.inference.moments import Moments, real_sums
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.posterior import ComponentSums, Posterior, Solution
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.rows import Domain
from orthogp.statistics import FrequencyLattice, Statistics


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
    """

    features: LatticeFeatures
    sums: Statistics | None = None

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
        return lattice_posterior(self._narrow, (kernel, 1.0), moments, domain, num_threads)

    def posterior(
        self, kernel: Kernel, moments: Moments, domain: Domain, num_threads: int | None
    ) -> Posterior:
        """Return the posterior over a domain, and of each of several components."""
        features = self.features
        if isinstance(features, Lattice):
            return Posterior(features, kernel, 1.0, moments, domain, num_threads)
        assert self.sums is not None
        solution = Solution.of(moments, 1.0)
        steps = [
            np.rint(part.lattice.spacing / own.lattice.spacing).astype(np.int64)
            for part, own in zip(features.parts, self.sums.components, strict=True)
        ]
        thin = self.sums.thinned(steps)
        amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
        z = amplitudes[:, None] * solution.mean
        shares = latent_shares(features, z, real_sums(features, thin))
        sums = tuple(map(ComponentSums.of, thin.parts))
        solution = solution._replace(sums=sums, shares=shares)
        own: Any = features
        return AdditivePosterior(own, kernel, 1.0, solution, domain, num_threads)


def _narrowed(features: Lattice) -> Lattice:
    """Return the same features on a lattice that ends with them."""
    lattice, reach = features.lattice, np.abs(features.indices).max(axis=0)
    narrow = FrequencyLattice(lattice.spacing, reach, lattice.centre)
    return Lattice(narrow, features.indices, features.mean)
