r"""Nearest-neighbour conditionals under any likelihood: sites in place of targets.

The Gaussian q(f) closest to the posterior is that of a regression with pseudo-targets z = m + γ/κ
of noise variances 1/κ (`exact/nongaussian.py`), and a regression has conditionals on the nearest
rows. Two steps take turns:

    sites            marginals N(m_i, s_i²) of f at all rows, from the nearest pseudo-targets;
                     γ_i and κ_i are derivatives of the expected log density there
    hyperparameters  the kernel's by conditionals of z with the sites held, the likelihood's by
                     the expected log density with q held

Held sites leave the bound stationary in q, so that where neither step moves anything all of them
maximise it. With all rows as neighbours that is the exact engine's answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from orthogp.exact.nongaussian import SiteRows, Sites
from orthogp.exact.pairs import MergedRows
from orthogp.features.base import prior_variance
from orthogp.inference.bounds import Bound
from orthogp.inference.separable import Likelihood
from orthogp.kernels import Kernel
from orthogp.learning.problem import Fit, Progress, Start
from orthogp.neighbours.fitting import Learned, NeighbourFitter

Array = NDArray[np.float64]

# The smallest κ, relative to 1/k(0): rows that say less say nothing.
_LEAST = 1e-8
# The furthest that a mean may move before its density is expanded anew.
_FURTHEST = 3.0
# The number of steps of rows alone, before neighbours are asked.
_ALONE = 30
# The most sweeps over the rows between two steps of the hyperparameters, and at the end.
_SWEEPS, _LAST_SWEEPS = 4, 40
# The change of means, in posterior sd (root mean square), below which sites have settled: while
# hyperparameters move, and at the end.
_CLOSE, _SETTLED = 0.02, 1e-4
# The shortest share of the way to the sites that are asked for.
_SHORTEST = 0.05
# The most rounds of learning.
_ROUNDS = 20
# The rounds that look for neighbours anew.
_LOOKED = 2
# The change of logarithms of hyperparameters below which learning has settled.
_STILL = 3e-3


class State(NamedTuple):
    """Sites, and the marginals of f that they were last asked for at."""

    sites: Sites
    mean: Array
    variance: Array


class NearestSites:
    """Fits nearest-neighbour conditionals to rows under a likelihood.

    Parameters
    ----------
    rows : SiteRows
    likelihood : Likelihood
        With the parameters to start from.
    fitter : NeighbourFitter
        Of `unfitted` rows, with a noise variance that is fixed at one.
    """

    def __init__(self, rows: SiteRows, likelihood: Likelihood, fitter: NeighbourFitter) -> None:
        self._rows, self._likelihood, self._fitter = rows, likelihood, fitter
        self._passes = 0
        self._progress = Progress()

    def fit(self, start: Start) -> Fit:
        """Return the fit from what a sample of the rows has taught."""
        with self._progress:
            return self._fit(start)

    def _fit(self, start: Start) -> Fit:
        likelihood = start.likelihood or self._likelihood
        state, converged = self._alone(start.kernel, likelihood), True
        if self._fitter.settings.learn:
            start, likelihood, state, converged = self._learned(start, likelihood, state)
        self._progress.say("settling the rows' sites")
        state, settled = self._settled(start, likelihood, state, _SETTLED, _LAST_SWEEPS)
        fitter = self._with(state.sites)
        fit = fitter.finished(Learned(start, np.empty(0), converged and settled, self._passes))
        local = self._rows.local(likelihood, state.mean, state.variance).value
        sites = state.sites
        apart = (sites.targets[:, 0] - state.mean) ** 2 + state.variance
        of_sites = 0.5 * np.sum(np.log(sites.precisions / (2 * np.pi)) - sites.precisions * apart)
        value = fit.elbo.total + local - float(of_sites)
        bound = Bound(data_fit=value, complexity=0.0, trace=0.0)
        upper = Bound(0.0 if likelihood.whole else np.inf, 0.0, 0.0)
        return replace(
            fit,
            elbo=bound,
            tightened=bound,
            upper=upper,
            certificate=fit.certificate._replace(lower=value, upper=upper.total),
            rows=self._rows.total,
            likelihood=likelihood,
            passes=self._passes,
        )

    # ------------------------------------------------------------------ hyperparameters

    def _learned(
        self, start: Start, likelihood: Likelihood, state: State
    ) -> tuple[Start, Likelihood, State, bool]:
        """Return the hyperparameters where both steps leave them, and the sites there."""
        stage = None
        for number in range(_ROUNDS):
            state, _ = self._settled(start, likelihood, state, _CLOSE, _SWEEPS)
            shaped = self._shaped(likelihood, state)
            # Other neighbours say something else: learning settles with the same.
            fitter = self._with(state.sites, held=number >= _LOOKED)
            stage = fitter.last_stage(start.kernel) if stage is None else stage
            self._progress.say(f"learning under the {likelihood.known_as} likelihood: {number + 1}")
            moved, change = fitter.climbed(stage, start)
            change = max(change, np.max(np.abs(shaped.shape - likelihood.shape), initial=0.0))
            start, likelihood = moved, shaped
            if change < _STILL:
                return start, likelihood, state, True
            if fitter.settings.late():
                break
        return start, likelihood, state, False

    def _shaped(self, likelihood: Likelihood, state: State) -> Likelihood:
        """Return the likelihood with the parameters of the largest expected log density."""
        shape = likelihood.shape
        if not len(shape):
            return likelihood

        def minus(logs: Array) -> float:
            own = likelihood.with_shape(logs)
            value = self._rows.local(own, state.mean, state.variance).value
            return -value - own.log_prior(logs)[0]

        ends = list(zip(*likelihood.shape_limits, strict=True))
        found = minimize(minus, shape, bounds=ends, method="L-BFGS-B", options={"maxiter": 20})
        return likelihood.with_shape(found.x)

    # ------------------------------------------------------------------ sites

    def _with(self, sites: Sites, *, held: bool = False) -> NeighbourFitter:
        """Return the fitter of the sites' pseudo-targets, the neighbours of terms held if asked."""
        self._fitter = self._fitter.with_targets(sites.targets, sites.precisions, held=held)
        return self._fitter

    def _alone(self, kernel: Kernel, likelihood: Likelihood) -> State:
        """Return the sites that rows ask for without their neighbours."""
        prior = prior_variance(kernel)
        mean, variance = np.zeros(len(self._rows.X)), np.full(len(self._rows.X), prior)

        def asked() -> Sites:
            return Sites.of(self._rows.local(likelihood, mean, variance), mean, _LEAST / prior)

        sites = asked()
        for _ in range(_ALONE):
            variance = 1 / (1 / prior + sites.precisions)
            move = variance * sites.projections - mean
            mean = mean + np.clip(move, -_FURTHEST, _FURTHEST)
            sites = asked()
            if np.max(np.abs(move)) < _CLOSE:
                break
        return State(sites, mean, variance)

    def _settled(
        self, start: Start, likelihood: Likelihood, state: State, tolerance: float, most: int
    ) -> tuple[State, bool]:
        """Return the sites that their own marginals ask for, and whether they were reached."""
        kernel, step, last = start.kernel, 1.0, np.inf
        least = _LEAST / prior_variance(kernel)
        for _ in range(most):
            posterior = self._with(state.sites).posterior(start)
            found = posterior.predict_rows()
            self._passes += 1
            move = found.mean[:, 0] - state.mean
            change = float(np.sqrt(np.mean(move**2 / found.variance)))
            change += float(np.sqrt(np.mean(np.log(found.variance / state.variance) ** 2)))
            if change > last:
                step = max(step / 2, _SHORTEST)
            last = change
            mean = state.mean + np.clip(move, -_FURTHEST, _FURTHEST)
            better = Sites.of(self._rows.local(likelihood, mean, found.variance), mean, least)
            if change < tolerance:
                # The sites stay those that the marginals come from.
                return State(state.sites, found.mean[:, 0], found.variance), True
            state = State(state.sites.toward(better, step), mean, found.variance)
            if self._fitter.settings.late():
                break
        return state, False


def unfitted(rows: SiteRows) -> MergedRows:
    """Return the rows without targets, for neighbours to be found among."""
    n = len(rows.X)
    return MergedRows(rows.X, np.zeros((n, 1)), np.ones(n), surplus=0.0, square=0.0, constant=0.0)
