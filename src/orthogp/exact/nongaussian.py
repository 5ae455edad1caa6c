r"""The Gaussian q(f) closest to the posterior of rows under any likelihood, and its bound.

With f ~ N(0, K) at n different inputs, q(f) = N(m, S), and c_i = log p of all rows at the i-th,

    L = Σ_i E_q c_i − KL(q ‖ N(0, K)) ≤ log p(y)

is stationary where S⁻¹ = K⁻¹ + diag κ and K⁻¹ m = γ, with γ_i the derivative of E c_i by m_i and
−κ_i twice that by S_ii. So q is the posterior of a Gaussian regression whose targets are
z = m + γ/κ and whose noise has the variances 1/κ: the sites. With B = I + κ^½ K κ^½ and α = K⁻¹ m,

    KL = ½ (tr B⁻¹ + mᵀα − n + log|B|),      S_ii = (1 − (B⁻¹)_ii)/κ_i

The sites that a q asks for are a step of natural-gradient ascent; where it overshoots, a shorter
one is taken. L being stationary in q, its gradient by the kernel's parameters is that of log p(z)
of the regression with its sites held, and by those of the likelihood that of Σ E c_i with q held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import PrecisionError
from orthogp.exact.pairs import equal_rows
from orthogp.exact.process import ExactObjective, ExactPosterior, Solution
from orthogp.features.series import MeanPrior
from orthogp.inference.separable import Likelihood
from orthogp.kernels import Kernel
from orthogp.learning.optimise import Evaluation
from orthogp.rows import Rows

Array = NDArray[np.float64]

#: An ascent has converged when a step gains fewer nats than this.
CONVERGED = 1e-6
#: The same where nothing follows but predictions.
POLISHED = 1e-10
# The most steps of an ascent.
_MOST_STEPS = 200
# The number of times that a step is halved before it is given up.
_HALVINGS = 12
# The smallest κ, relative to 1/k(0): rows that say less say nothing.
_LEAST = 1e-8
# The step in the logarithms of a likelihood's parameters by which the bound is differentiated.
_DIFFERENCE = 1e-4
(potri,) = get_lapack_funcs(("potri",), dtype=np.float64)


class Local(NamedTuple):
    """Σ E c_i, and γ and κ of each input."""

    value: float
    slopes: Array
    precisions: Array


class SiteRows:
    """Rows under a likelihood, those of equal inputs together.

    Parameters
    ----------
    rows : Rows
        With targets, or targets and sizes.
    likelihood : Likelihood
    offset : float
        What f has beyond the process.

    Attributes
    ----------
    X : (n, d + q)
        The different inputs, with their covariates.
    total : float
        Σ w as it is summed.
    """

    def __init__(self, rows: Rows, likelihood: Likelihood, offset: float) -> None:
        if rows.weights is not None:
            rows = rows.part(rows.weights > 0)
        summed, self._constants = likelihood.summands(rows)
        assert summed.weights is not None
        self._targets, self._weights = summed.y[:, 0], summed.weights
        self.total = float(self._weights.sum())
        self.offset = offset
        self.X = np.asarray(rows.X, dtype=np.float64)
        self._group = equal_rows(self.X)
        if self._group is not None:
            inputs, self.X = self.X, np.empty((int(self._group.max()) + 1, self.X.shape[1]))
            self.X[self._group] = inputs

    def local(self, likelihood: Likelihood, mean: Array, variance: Array) -> Local:
        """Return what the rows add for f − offset ~ N(mean, variance) at the different inputs."""
        group, size = self._group, len(self.X)
        if group is not None:
            mean, variance = mean[group], variance[group]
        found = likelihood.local(self._targets, self._weights, mean + self.offset, variance)
        value = float(found.value.sum()) + likelihood.normaliser(self._constants, self.total)
        slopes, precisions = found.slope, -found.curvature
        if group is not None:
            slopes, precisions = (
                np.asarray(np.bincount(group, v, size), dtype=np.float64)
                for v in (slopes, precisions)
            )
        return Local(value, slopes, precisions)


class Sites(NamedTuple):
    """κ z and κ."""

    projections: Array
    precisions: Array

    @classmethod
    def of(cls, local: Local, mean: Array, least: float) -> Sites:
        """Return the sites that q asks for."""
        precisions = np.maximum(local.precisions, least)
        return cls(local.slopes + precisions * mean, precisions)

    @property
    def targets(self) -> Array:
        """z, (n, 1)."""
        return (self.projections / self.precisions)[:, None]

    def toward(self, other: Sites, step: float) -> Sites:
        """Return (1 − step) of these sites and `step` of the others."""
        return Sites(*((1 - step) * a + step * b for a, b in zip(self, other, strict=True)))


class Approximation(NamedTuple):
    """q(f), what was solved for it, its bound, and the sites that it has and asks for."""

    regression: ExactObjective
    solution: Solution
    mean: Array
    variance: Array
    value: float
    sites: Sites
    better: Sites


class SiteObjective:
    """max_q L as a function of the logarithms of the kernel's and the likelihood's parameters.

    Each evaluation goes on from the sites of the last.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: MeanPrior,
        rows: SiteRows,
        likelihood: Likelihood,
        num_threads: int = 1,
    ) -> None:
        self.rows, self.likelihood, self._mean = rows, likelihood, mean
        n, q = len(rows.X), mean.num_covariates
        plain = Rows(rows.X, np.zeros((n, 1)), num_covariates=q)
        self._process = ExactObjective(kernel, mean, plain, repeats=False, num_threads=num_threads)
        self.kernel, self.slots = kernel, self._process.slots
        self._sites: Sites | None = None

    @property
    def size(self) -> int:
        """The number of different inputs."""
        return len(self.rows.X)

    def split(self, vector: Array) -> tuple[Kernel, Likelihood]:
        """Return the kernel and the likelihood that a vector stands for."""
        size = len(vector) - len(self.likelihood.shape)
        kernel = self._process.kernel_at(np.append(vector[:size], 0.0))
        return kernel, self.likelihood.with_shape(vector[size:])

    def value(self, vector: Array) -> float:
        """Return max_q L."""
        return self.ascend(vector).value

    def evaluate(self, vector: Array) -> Evaluation:
        """Return max_q L, its gradient, and the information of the regression that q stands for."""
        q, (_, likelihood) = self.ascend(vector), self.split(vector)
        shape = likelihood.shape
        size = len(vector) - len(shape)
        found = q.regression.evaluate(np.append(vector[:size], 0.0))
        gradient, information = found.gradient[:-1], found.information[:-1, :-1]

        def value_at(logs: Array) -> float:
            return self.rows.local(likelihood.with_shape(logs), q.mean, q.variance).value

        of_shape, bends = np.zeros(len(shape)), np.zeros(len(shape))
        middle = value_at(shape) if len(shape) else 0.0
        for i, step in enumerate(_DIFFERENCE * np.eye(len(shape))):
            ends = value_at(shape - step), value_at(shape + step)
            of_shape[i] = (ends[1] - ends[0]) / (2 * _DIFFERENCE)
            bends[i] = (2 * middle - ends[0] - ends[1]) / _DIFFERENCE**2
        both = np.zeros((len(vector),) * 2)
        both[:size, :size] = information
        both[size:, size:] = np.diag(np.maximum(bends, 1e-2))
        return Evaluation(q.value, np.append(gradient, of_shape), both)

    def posterior(self, q: Approximation, vector: Array) -> ExactPosterior:
        """Return q as the posterior of the regression that it stands for."""
        kernel, _ = self.split(vector)
        sites, covariates = q.sites, self._mean.num_covariates
        rows = Rows(self.rows.X, sites.targets, sites.precisions, num_covariates=covariates)
        return ExactPosterior(kernel, 1.0, self._mean, rows, repeats=False, solution=q.solution)

    def ascend(self, vector: Array, *, tolerance: float = CONVERGED) -> Approximation:
        """Return the q that maximises L."""
        _, likelihood = self.split(vector)
        own = np.append(vector[: len(vector) - len(likelihood.shape)], 0.0)
        covariances = self._process.covariances(own)
        least = _LEAST / covariances[-1]

        def at(sites: Sites) -> Approximation:
            if not np.all(sites.precisions > 0):
                raise PrecisionError("Steps this long leave no noise: take shorter ones.")
            regression = self._process.with_targets(sites.targets, sites.precisions)
            return self._approximation(regression, own, covariances, likelihood, sites)

        q = self._begun(at, likelihood, least)
        step = 1.0
        for _ in range(_MOST_STEPS):
            following = _improved(at, q, step)
            if following is None:
                break
            (moved, step), before = following, q.value
            q = moved
            if q.value - before < tolerance * step:
                break
            step = min(likelihood.longest_step, 2 * step)
        self._sites = q.sites
        return q

    def _begun(
        self,
        at: Callable[[Sites], Approximation],
        likelihood: Likelihood,
        least: float,
    ) -> Approximation:
        """Return the q of the last evaluation's sites, or of those of a constant f."""
        if self._sites is not None:
            try:
                return at(self._sites)
            except PrecisionError:
                pass
        zero = np.zeros(len(self.rows.X))
        local = self.rows.local(likelihood, zero, zero)
        return at(Sites.of(local, zero, least))

    def _approximation(
        self,
        regression: ExactObjective,
        vector: Array,
        covariances: Array,
        likelihood: Likelihood,
        sites: Sites,
    ) -> Approximation:
        """Return q of given sites."""
        solution = regression.solve(vector, covariances)
        n, root = len(sites.precisions), np.sqrt(sites.precisions)
        inverse = potri(solution.chol, lower=1, overwrite_c=0)[0]
        kept = np.einsum("ii->i", inverse)
        # Of what hardly any row tells, rounding leaves no less.
        variance = np.maximum(1 - kept, np.finfo(np.float64).eps) / sites.precisions
        alpha = root * solution.scaled_alpha[:, 0]
        mean = (sites.projections - alpha) / sites.precisions
        log_det = 2 * np.sum(np.log(np.einsum("ii->i", solution.chol)))
        divergence = 0.5 * (kept.sum() + mean @ alpha - n + log_det)
        local = self.rows.local(likelihood, mean, variance)
        if not (np.isfinite(local.value) and np.isfinite(local.slopes).all()):
            raise PrecisionError("The bound is not finite: take shorter steps.")
        better = Sites.of(local, mean, _LEAST / covariances[-1])
        value = local.value - float(divergence)
        return Approximation(regression, solution, mean, variance, value, sites, better)


def _improved(
    at: Callable[[Sites], Approximation], q: Approximation, step: float
) -> tuple[Approximation, float] | None:
    """Return a better q and the step that led there, `None` if no step does."""
    for _ in range(_HALVINGS):
        try:
            found = at(q.sites.toward(q.better, step))
            if found.value >= q.value:
                return found, step
        except PrecisionError:
            pass
        step /= 2
    return None
