r"""Logistic classification with lattice features: sites and hyperparameters at a fixed feature set.

For given sites the model is a regression (see `orthogp.inference.polya_gamma`), whose one-pass
tightened bound over N rows, with d the prior variance that the features leave out, is

    L = ½ bᵀB⁻¹b − ½ log|B| − (N/2) log(1 + d Σθ_n/N) + Σ (θ_n c_n²/2 − log 2cosh(c_n/2))

It is largest in the tilts where c_n² = E f̂_n² + d/(1 + d Σθ_n/N), f̂ being the part of f that the
features see. Putting the right-hand side's present value for c_n² never lowers L: the convex third
term lies above its tangent, with which that value is the exact maximum. One such update is one pass
over the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice
from orthogp.inference.bounds import Bound, one_pass_bound, titsias_bound
from orthogp.inference.domain import Domain
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import learned_slots, unpack
from orthogp.inference.polya_gamma import Sites
from orthogp.inference.posterior import Posterior
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel

#: Sites have converged when a pass gains fewer nats than this.
CONVERGED = 1e-3

# While the kernel still moves, a pass that gains less than this share of all is the last with it.
_SHARE = 0.02
# How many earlier passes an extrapolation of the tilts looks back at, how far (in logarithms of c²)
# it may leave the plain update, and the fewest and most passes for one kernel.
_DEPTH, _FARTHEST = 5, 3.0
_FEWEST_PASSES, _MOST_PASSES = 4, 60
# With fewer rows a second thread costs a transform more than it gains.
_ROWS_WORTH_THREADS = 50_000


@dataclass(frozen=True)
class Pass:
    """What one pass over the rows gives: the regression of some sites, and better sites.

    Attributes
    ----------
    bound : float
        L, see the module's docstring.
    elbo : Bound
        The evidence lower bound of the q(f) that predicts: L with the trace term −½ d Σθ_n.
    """

    kernel: Kernel
    sites: Sites
    objective: LatticeObjective
    bound: float
    elbo: Bound
    better: Sites

    @classmethod
    def over(
        cls,
        features: Lattice,
        kernel: Kernel,
        sites: Sites,
        threads: BlasThreads,
        num_threads: int | None = None,
    ) -> Self:
        """Return the pass with given features, kernel and sites."""
        rows = sites.rows
        if len(rows.X) < _ROWS_WORTH_THREADS:
            num_threads = 1
        statistics = sites.statistics(features.lattice, features.mean, num_threads)
        objective = LatticeObjective(features, kernel, statistics, repeats=False, threads=threads)
        moments = objective.moments(kernel)
        everywhere = Domain(
            *(np.full(features.lattice.num_dims, edge) for edge in (-np.inf, np.inf))
        )
        with threads.limited(features.num_features):
            posterior = Posterior(features, kernel, 1.0, moments, everywhere, num_threads)
            f = posterior.predict(rows.X)
            bound = sites.bound(one_pass_bound(moments, 1.0, posterior.chol))
            elbo = sites.bound(titsias_bound(moments, 1.0, posterior.chol))
        left_out = posterior.residual
        correction = left_out - left_out / (1 + left_out * sites.precision_total / rows.num_rows)
        squares = f.mean[:, 0] ** 2 + f.variance - correction
        better = sites._replace(tilts=np.sqrt(squares))
        return cls(kernel, sites, objective, bound.total, elbo, better)


class Extrapolation:
    """Anderson's mixing of the updates of log c², which alone converge linearly.

    What earlier pairs of updates tell of the map's derivative holds for kernels close by as well.
    """

    def __init__(self) -> None:
        self._last: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._changes: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    def begin(self) -> None:
        """Prepare for another kernel."""
        self._last = None

    def forget(self) -> None:
        """Begin again, without earlier updates."""
        self._last, self._changes = None, []

    def __call__(self, last: Pass) -> Sites:
        """Return the sites to try after a pass."""
        if not np.all(last.sites.tilts > 0):
            return last.better
        plain = 2 * np.log(last.better.tilts)
        move = plain - 2 * np.log(last.sites.tilts)
        if self._last is not None:
            change = (plain - self._last[0], move - self._last[1])
            self._changes = [*self._changes[1 - _DEPTH :], change]
        self._last = plain, move
        if not self._changes:
            return last.better
        # The combination of earlier updates that leaves the least move; repeated rows count often.
        steps, moves = (np.array(parts) for parts in zip(*self._changes, strict=True))
        counts = last.sites.rows.weights
        roots = np.ones(1) if counts is None else np.sqrt(counts)
        shares = np.linalg.lstsq((roots * moves).T, roots * move, rcond=1e-10)[0]
        mixed = np.clip(plain - shares @ steps, plain - _FARTHEST, plain + _FARTHEST)
        return last.sites._replace(tilts=np.exp(mixed / 2))


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
        features: Lattice,
        kernel: Kernel,
        sites: Sites,
        *,
        threads: BlasThreads | None = None,
        num_threads: int | None = None,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.features = features
        self.kernel = kernel
        self.slots = learned_slots(kernel)
        self._best: Pass | None = None
        self.bounds: list[float] = []
        self.num_passes = 0
        self._sites = sites
        self._threads = BlasThreads(1) if threads is None else threads
        self._num_threads = num_threads
        self._late = late
        self._extrapolation = Extrapolation()

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return max_c L and its gradient at the logarithms of the learned parameters."""
        last = self.ascend(unpack(self.kernel, self.slots, vector), share=_SHARE)
        _, gradient = last.objective.value_and_gradient(np.append(vector, 0.0))
        last.objective.release()
        return last.bound, gradient[:-1]

    @property
    def best(self) -> Pass:
        """The pass with the largest bound of those that an ascent ended with."""
        if self._best is None:
            raise ValueError("There is no best pass before the first ascent: call `ascend`.")
        return self._best

    def ascend(self, kernel: Kernel, *, max_passes: int = _MOST_PASSES, share: float = 0.0) -> Pass:
        """Return the last pass with a kernel.

        It is the first to gain fewer than `CONVERGED` nats, or than a `share` of the gain so far.
        """
        extrapolate = self._extrapolation
        extrapolate.begin()
        last = self._pass(kernel, self._sites)
        self.bounds = [last.bound]
        # A few updates even if it is late: flat sites predict little.
        while len(self.bounds) < (_FEWEST_PASSES if self._late() else max_passes):
            following = self._pass(kernel, extrapolate(last))
            if following.bound < last.bound:
                # Too far; the plain update cannot lose.
                extrapolate.forget()
                following = self._pass(kernel, last.better)
            gain = following.bound - last.bound
            last = following
            self.bounds.append(last.bound)
            if gain < max(CONVERGED, share * (last.bound - self.bounds[0])):
                break
        self._sites = last.sites
        if self._best is None or last.bound > self._best.bound:
            self._best = last
        return last

    def _pass(self, kernel: Kernel, sites: Sites) -> Pass:
        self.num_passes += 1
        return Pass.over(self.features, kernel, sites, self._threads, self._num_threads)
