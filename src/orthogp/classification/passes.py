r"""Logistic classification: sites and hyperparameters at a fixed feature set on lattices.

For given sites the model is a regression (see `sites.py`), whose one-pass tightened
bound over N rows, with d the prior variance that the features leave out, is

    log Z = ½ bᵀB⁻¹b − ½ log|B| − (N/2) log(1 + d Στ_n/N) + const,     B = I + Σ τ_n φ_nφ_nᵀ

under a posterior that has, of what the features leave out, the variance d/(1 + d Στ_n/N) at each
row. The bound L on log p(y) replaces each Gaussian factor by the likelihood that it stands for, and
the marginals of that posterior say which sites would be better. One such update is one pass over
the rows. With Pólya-Gamma's sites it never lowers L: the third term of log Z, convex in the
precisions, lies above its tangent, with which the updated tilts are the exact maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.sites import Marginals, Sites
from orthogp.features import AdditiveLattice, Lattice
from orthogp.features.series import LatticeFeatures
from orthogp.inference.bounds import (
    Bound,
    one_pass_bound,
    titsias_bound,
)
from orthogp.inference.component_posterior import (
    AdditivePosterior,
    ComponentSums,
    latent_shares,
    lattice_posterior,
)
from orthogp.inference.moments import Moments, real_sums
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import learned_slots, unpack
from orthogp.inference.posterior import Posterior, Solution
from orthogp.kernels import Kernel
from orthogp.precision import BlasThreads
from orthogp.rows import Domain
from orthogp.statistics import FrequencyLattice, Statistics

#: Sites have converged when a pass gains fewer nats than this.
CONVERGED = 1e-3

# While the kernel still moves, the share of the gain so far below which a pass is the last with it.
_SHARE = 0.02
# The fewest passes for one kernel.
_FEWEST_PASSES = 4
# The most passes for one kernel.
_MOST_PASSES = 60
# The fewest rows for which a second thread gains a transform more than it costs.
_ROWS_WORTH_THREADS = 50_000


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
        are decimations: several components are centred over the rows, not over sites.
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


@dataclass(frozen=True)
class Pass:
    """What one pass over the rows gives: the regression of some sites, and better sites.

    Attributes
    ----------
    tightened : Bound
        L, see the module's docstring.
    elbo : Bound
        The evidence lower bound of the q(f) that predicts: L with the trace term −½ d Σθ_n.
    """

    kernel: Kernel
    sites: Sites
    objective: LatticeObjective
    tightened: Bound
    elbo: Bound
    better: Sites

    @property
    def bound(self) -> float:
        """L."""
        return self.tightened.total

    @classmethod
    def over(
        cls,
        model: SiteModel,
        kernel: Kernel,
        sites: Sites,
        threads: BlasThreads,
    ) -> Self:
        """Return the pass with given features, kernel and sites."""
        rows = sites.rows
        num_threads = 1 if len(rows.X) < _ROWS_WORTH_THREADS else threads.num_threads
        objective = model.objective(kernel, sites, threads, num_threads)
        moments = objective.moments(kernel)
        with threads.limited(model.features.num_features):
            posterior = model.everywhere(kernel, moments, num_threads)
            f = posterior.predict(rows.X)
            regressions = [
                bound(moments, 1.0, posterior.chol) for bound in (one_pass_bound, titsias_bound)
            ]
        left_out = posterior.residual
        correction = left_out - left_out / (
            1 + left_out * sites.precision_total / rows.total_weight
        )
        predictive = Marginals(f.mean[:, 0], f.variance)
        corrected = predictive._replace(variance=f.variance - correction)
        tightened, elbo = (
            sites.bound(regression, marginals)
            for regression, marginals in zip(regressions, (corrected, predictive), strict=True)
        )
        return cls(kernel, sites, objective, tightened, elbo, sites.updated(corrected))


class SiteAscent:
    """Maximises L over the sites, and by them over the kernel, at a fixed feature set.

    Called with the logarithms of the kernel's learned parameters it returns max_c L and its
    gradient, that of L at those sites (envelope theorem). Each call goes on from the sites of the
    last.

    Attributes
    ----------
    bounds : list of float
        L after each pass of the last ascent.
    num_passes : int
        How many there were in all.
    """

    def __init__(
        self,
        model: SiteModel,
        kernel: Kernel,
        sites: Sites,
        *,
        threads: BlasThreads | None = None,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = model
        self.kernel = kernel
        self.slots = learned_slots(kernel)
        self._best: Pass | None = None
        self._last: Pass | None = None
        self.bounds: list[float] = []
        self.num_passes = 0
        self._sites = sites
        self._threads = BlasThreads(1) if threads is None else threads
        self._late = late
        self._proposals: Any = sites.proposals()

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return max_c L and its gradient at the logarithms of the learned parameters."""
        last = self.ascend(unpack(self.kernel, self.slots, vector), share=_SHARE)
        _, gradient = last.objective.value_and_gradient(np.append(vector, 0.0))
        last.objective.release()
        return last.bound, gradient[:-1]

    @property
    def best(self) -> Pass:
        """The pass with the largest bound of those that an ascent ended with."""
        return _known(self._best)

    @property
    def last(self) -> Pass:
        """The pass that the last ascent ended with."""
        return _known(self._last)

    def ascend(self, kernel: Kernel, *, max_passes: int = _MOST_PASSES, share: float = 0.0) -> Pass:
        """Return the last pass with a kernel.

        It is the first to gain fewer than `CONVERGED` nats, or than a `share` of the gain so far.
        """
        self._proposals.begin()
        last = self._pass(kernel, self._sites)
        self.bounds = [last.bound]
        # A few updates even if it is late: flat sites predict little.
        while len(self.bounds) < (_FEWEST_PASSES if self._late() else max_passes):
            before, last = last.bound, self._improved(last)
            gain = last.bound - before
            self.bounds.append(last.bound)
            if gain < max(CONVERGED, share * (last.bound - self.bounds[0])):
                break
        self._sites, self._last = last.sites, last
        if self._best is None or last.bound > self._best.bound:
            self._best = last
        return last

    def _improved(self, last: Pass) -> Pass:
        """Return a pass with better sites, or the last if none of those tried is better."""
        for sites in self._proposals.after(last.sites, last.better):
            following = self._pass(last.kernel, sites)
            if following.bound >= last.bound:
                return following
        return last

    def _pass(self, kernel: Kernel, sites: Sites) -> Pass:
        self.num_passes += 1
        return Pass.over(self.model, kernel, sites, self._threads)


def _known(last: Pass | None) -> Pass:
    if last is None:
        raise ValueError("There is no best pass before the first ascent: call `ascend`.")
    return last
