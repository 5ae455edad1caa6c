"""From rows of counts, classes or amounts to a fitted model, where sums do not tell all.

The search is that of exact regressions (`exact/fitting.py`), on the bound of
`exact/nongaussian.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from orthogp.errors import PrecisionError
from orthogp.exact.fitting import SETTLED_MANY, SETTLED_SAMPLE, ExactSearch, check_few
from orthogp.exact.nongaussian import POLISHED, SiteObjective, SiteRows
from orthogp.exact.process import Solution
from orthogp.features import MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.parameters import Beliefs, LogPrior, pack
from orthogp.inference.separable import Likelihood
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.terms import KernelChoice
from orthogp.learning.limits import NOISE_FLOOR, row_limits
from orthogp.learning.optimise import Evaluation
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.learning.starts import starts_for_kernel, starts_for_rows, with_variance
from orthogp.precision import BlasThreads
from orthogp.rows import Rows

Array = NDArray[np.float64]

# Prior variances of f to start from.
_VARIANCES = (0.3, 1.5, 8.0)
# The rows of a sample, and how many of them are near each other.
_SAMPLED, _TOGETHER = 1200, 3
# The number of rows from which several threads may be faster than one.
_MANY_ROWS = 1024


@dataclass(frozen=True)
class Counts:
    """Rows under a likelihood, and what f is beyond the process.

    Attributes
    ----------
    rows : Rows
        With targets, or targets and sizes.
    mean : MeanPrior
    likelihood : Likelihood
        With the parameters to start from.
    offset : float
    """

    rows: Rows
    mean: MeanPrior
    likelihood: Likelihood
    offset: float

    def objective(
        self, kernel: Kernel, sample: NDArray[np.int64] | None, threads: int = 1
    ) -> SiteObjective:
        """Return the bound of all rows, or of a sample of them."""
        rows = self.rows if sample is None else self.rows.part(sample)
        own = SiteRows(rows, self.likelihood, self.offset)
        return SiteObjective(kernel, self.mean, own, self.likelihood, threads)

    def sampled(self, seed: int) -> Counts:
        """Return a sample of the rows: some at random, each with those nearest to it."""
        if len(self.rows.X) <= _SAMPLED:
            return self
        X = self.rows.inputs
        sd = X.std(axis=0)
        scaled = X / np.where(sd > 0, sd, 1.0)
        centres = np.random.default_rng(seed).choice(len(X), _SAMPLED // _TOGETHER, replace=False)
        near = np.asarray(KDTree(scaled).query(scaled[centres], _TOGETHER)[1])
        chosen = np.unique(np.append(centres, near))
        return replace(self, rows=self.rows.part(chosen))

    def starts(self, choice: KernelChoice, *, guessed: bool) -> list[Start]:
        """Return kernels to start from, guessed from the rows also where a user gave values."""
        kernel, starts = choice.kernel, []
        if not choice.from_name:
            starts = starts_for_kernel(kernel, 0.0)[::2]
        if choice.from_name or guessed:
            targets = self.likelihood.summands(self.rows)[0].y
            centred = targets - targets.mean()
            spread = float(centred.std())
            # What is far out says nothing of lengthscales.
            scaled = np.clip(centred / (spread if spread > 0 else 1.0), -3, 3)
            for start in starts_for_rows(kernel, self.rows.inputs, scaled, 0.0):
                starts += [
                    replace(start, kernel=with_variance(start.kernel, v)) for v in _VARIANCES
                ]
        return [replace(start, likelihood=self.likelihood) for start in starts]


class _Stage:
    """The bound of some rows, counting how often it is evaluated; see `Stage`."""

    def __init__(
        self, objective: SiteObjective, beliefs: Beliefs, threads: BlasThreads, *, whole: bool
    ) -> None:
        self._objective, self._beliefs, self._threads = objective, beliefs, threads
        self.size, self.whole = len(objective.rows.X), whole
        self.tolerance = SETTLED_MANY if whole else SETTLED_SAMPLE
        self.num_evaluations = 0

    def limits(self, X: NDArray) -> tuple[Array, Array]:
        """Return the limits of vectors for rows with the inputs X."""
        slots, likelihood = self._objective.slots, self._objective.likelihood
        limits = row_limits(self._objective.kernel, slots, X, NOISE_FLOOR)
        limits = self._beliefs.within(slots, limits)
        # The last are those of a noise variance, which there is none of.
        ends = zip(limits, likelihood.shape_limits, strict=True)
        lower, upper = (np.append(limit[:-1], own) for limit, own in ends)
        return lower, upper

    def value(self, x: Array) -> float:
        """Return the bound and the log prior, or −∞ beyond double precision."""
        self.num_evaluations += 1
        try:
            with self._threads.limited(self.size, _MANY_ROWS):
                value = self._objective.value(x)
        except PrecisionError:
            return -np.inf
        return self._with_prior(
            Evaluation(value, np.zeros(len(x)), np.zeros((len(x),) * 2)), x
        ).value

    def evaluate(self, x: Array) -> Evaluation | None:
        """Return the bound and the log prior with derivatives, `None` beyond double precision."""
        self.num_evaluations += 1
        try:
            with self._threads.limited(self.size, _MANY_ROWS):
                found = self._objective.evaluate(x)
        except PrecisionError:
            return None
        return self._with_prior(found, x)

    def _with_prior(self, found: Evaluation, x: Array) -> Evaluation:
        size = len(x) - len(self._objective.likelihood.shape)
        known = self._beliefs.log_prior(self._objective.slots, np.append(x[:size], 0.0))
        own = self._objective.likelihood.log_prior(x[size:])
        slopes = np.append(known.gradient[:-1], own[1])
        bends = np.append(known.bend[:-1], own[2])
        return found.with_prior(LogPrior(known.value + own[0], slopes, bends))

    def firmer(self, x: Array) -> Array | None:
        """Return `None`: there is no noise to raise."""
        return None

    def solution_at(self, x: Array) -> Solution | None:
        """Return `None`: the last solution is polished."""
        return None

    def x_of(self, start: Start) -> Array:
        """Return where a start lies."""
        likelihood = start.likelihood or self._objective.likelihood
        return np.append(pack(start.kernel, self._objective.slots), likelihood.shape)

    def start_of(self, x: Array) -> Start:
        """Return what lies at a place."""
        kernel, likelihood = self._objective.split(x)
        return Start(kernel, 1.0, likelihood=likelihood)


class SiteFitter:
    """Fits the process at all rows under a likelihood, without features."""

    def __init__(self, data: Counts, settings: FitSettings, threads: BlasThreads) -> None:
        check_few(data.rows)
        self._data, self._settings, self._threads = data, settings, threads
        self._beliefs = replace(settings.beliefs, noise=Noise())

    def search(self, starts: list[Start], *, few: bool = False) -> tuple[Start, bool, int]:
        """Return the best hyperparameters, whether learning settled, and its evaluations."""
        data, settings = self._data, self._settings

        def stage(kernel: Kernel, sample: NDArray[np.int64] | None) -> _Stage:
            threads = self._threads.num_threads if sample is None else 1
            objective = data.objective(kernel, sample, threads)
            return _Stage(objective, self._beliefs, self._threads, whole=sample is None)

        search = ExactSearch(data.rows, data.mean, settings, self._threads, stage)
        found = search.run(starts, few=few)
        return found.best, found.converged, found.num_evaluations

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        best, converged, evaluations = starts[0], True, 1
        if self._settings.learn:
            best, converged, evaluations = self.search(starts)
        objective = self._data.objective(best.kernel, None, self._threads.num_threads)
        likelihood = best.likelihood or self._data.likelihood
        vector = np.append(pack(best.kernel, objective.slots), likelihood.shape)
        with self._threads.limited(objective.size, _MANY_ROWS):
            q = objective.ascend(vector, tolerance=POLISHED)
            posterior = objective.posterior(q, vector)
        status = "The posterior is the closest Gaussian to that of all rows."
        if self._settings.late():
            status += " The time ran out: raise max_seconds to go on learning."
        elif not converged:
            status += " Learning stopped before it settled."
        bound = Bound(data_fit=q.value, complexity=0.0, trace=0.0)
        upper = Bound(0.0 if likelihood.whole else np.inf, 0.0, 0.0)
        return Fit(
            kernel=best.kernel,
            noise_variance=1.0,
            elbo=bound,
            tightened=bound,
            upper=upper,
            certificate=Certificate(q.value, upper.total, 0.0, 0.0, 0.0, "exact"),
            status=status,
            converged=converged,
            num_evaluations=evaluations,
            rows=objective.rows.total,
            posterior=lambda domain, num_threads: posterior,
            num_features=objective.size,
            likelihood=likelihood,
        )
