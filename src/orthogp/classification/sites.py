r"""Labels as a weighted regression: each row's likelihood gives way to a Gaussian site.

With any precisions τ_n > 0 and slopes ν_n, sites t_n(f) ∝ exp(ν_n f − τ_n f²/2) stand for rows of a
regression with targets ν_n/τ_n and noise variances 1/τ_n, whose posterior q(f) follows from sums of
weighted rows. For that q,

    ELBO = log Z(ν, τ) + Σ_n E_q [log p(y_n|f_n) − log N(ν_n/τ_n | f_n, 1/τ_n)]

with log Z the (bound on the) log evidence of the regression. Where the sites are those that the
marginals of q ask for, the derivative of the ELBO by the kernel is that of log Z alone, for the sum
is stationary there.

`LogisticSites` match the expectation of the logistic likelihood to second order
(`inference/logistic.py`), `PolyaGammaSites` bound it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice
from orthogp.features.series import LatticeFeatures
from orthogp.inference.bounds import Bound
from orthogp.inference.logistic import expected_log_logistic
from orthogp.rows import Rows
from orthogp.statistics import (
    AdditiveStatistics,
    ComponentLattice,
    FourierStatistics,
    Statistics,
)


class Marginals(NamedTuple):
    """Mean and variance of f at each row, (n,) each."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


@dataclass(frozen=True)
class Sites(ABC):
    """One Gaussian site for each row of labels ±1, which counts as often as its weight says.

    Attributes
    ----------
    precisions, slopes : (n,)
        τ > 0 and ν.
    """

    rows: Rows
    precisions: NDArray[np.float64]
    slopes: NDArray[np.float64]

    @classmethod
    @abstractmethod
    def flat(cls, rows: Rows) -> Self:
        """Return the sites of a function that is zero."""

    @property
    def labels(self) -> NDArray[np.float64]:
        """±1, (n,)."""
        return self.rows.y[:, 0]

    @abstractmethod
    def updated(self, f: Marginals) -> Self:
        """Return the sites that the marginals of f ask for."""

    @abstractmethod
    def expected_log_likelihood(self, f: Marginals) -> NDArray[np.float64]:
        """Return E log p(y_n|f_n) of each row, or a lower bound on it, (n,)."""

    @abstractmethod
    def proposals(self) -> ShorterSteps | Extrapolation:
        """Return how to choose the sites to try after a pass: the first that do not lose."""

    @property
    def precision_total(self) -> float:
        """Σ τ_n."""
        return self.rows.total(self.precisions)

    def statistics(self, features: LatticeFeatures, num_threads: int | None = None) -> Statistics:
        """Return the sums of the sites' regression on the lattices of features, in one pass.

        Their `rows` and `log_weights` are those of Gaussian factors of precision τ, each of which
        counts as often as its row.
        """
        mean = features.mean
        covariates = mean.covariates if mean.slope_variance else None
        if isinstance(features, Lattice):
            return self._counted(
                FourierStatistics.from_data(
                    features.lattice,
                    self.rows.X,
                    *self._regression,
                    covariates=covariates,
                    num_threads=num_threads,
                )
            )
        statistics = AdditiveStatistics.from_data(
            [
                ComponentLattice(columns, part.lattice, part.indices)
                for columns, part in zip(features.columns, features.parts, strict=True)
            ],
            Rows(self.rows.X, *self._regression),
            covariates=covariates,
            num_threads=num_threads,
        )
        return replace(statistics, parts=tuple(map(self._counted, statistics.parts)))

    @property
    def _regression(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The targets and weights of the rows, (n,) each."""
        precisions, repeats = self.precisions, self.rows.weights
        weights = precisions if repeats is None else repeats * precisions
        return self.slopes / precisions, weights

    def _counted(self, sums: FourierStatistics) -> FourierStatistics:
        rows = self.rows
        return replace(
            sums, rows=rows.total_weight, log_weights=rows.total(np.log(self.precisions))
        )

    def bound(self, regression: Bound, f: Marginals) -> Bound:
        """Return the bound on log p(y) from that of the sites' regression, of noise variance one.

        Each Gaussian factor gives way to the likelihood that it stands for; f are the marginals of
        the regression's posterior.
        """
        precisions, slopes = self.precisions, self.slopes
        # E (z − f)² τ/2 with z = ν/τ, written without the difference.
        square = precisions * (f.mean**2 + f.variance) + slopes**2 / precisions
        fit = self.expected_log_likelihood(f) + square / 2 - slopes * f.mean
        normaliser = self.rows.total(np.log(2 * np.pi / precisions)) / 2
        return regression._replace(
            data_fit=regression.data_fit + self.rows.total(fit),
            complexity=regression.complexity + normaliser,
        )


# The sizes of steps to try.
_STEPS = tuple(0.5**i for i in range(6))
# The smallest precision of a site: that of a label beyond doubt underflows, and the site is then as
# good as none.
_LEAST_PRECISION = 1e-100


@dataclass(frozen=True)
class LogisticSites(Sites):
    """Sites that match the likelihood's expectation to second order.

    Natural-gradient ascent of the ELBO over q(f) is an average of sites (conjugate-computation
    variational inference; Khan and Lin 2017): with ε(μ, s²) = E log p(y|f) under N(μ, s²),

        τ = −2 ∂ε/∂s²,      ν = ∂ε/∂μ + τ μ,      sites ← (1 − ρ) sites + ρ (ν, τ)

    The ascent climbs the ELBO itself instead of Pólya-Gamma's bound on it, which on a few thousand
    labels is tens of nats lower. Steps of ρ = 1 mostly need fewer passes too; where one overshoots,
    a shorter one is tried.
    """

    @classmethod
    def flat(cls, rows: Rows) -> Self:
        """Return the sites of f = 0: τ = 1/4, ν = y/2."""
        return cls(rows, np.full(len(rows.X), 0.25), rows.y[:, 0] / 2)

    def updated(self, f: Marginals) -> Self:
        """Return the sites of a step of size one."""
        labels = self.labels
        found = expected_log_logistic(labels * f.mean, f.variance)
        precisions = np.maximum(found.curvature, _LEAST_PRECISION)
        slopes = labels * found.slope + precisions * f.mean
        return replace(self, precisions=precisions, slopes=slopes)

    def expected_log_likelihood(self, f: Marginals) -> NDArray[np.float64]:
        """Return E log 1/(1 + e^{−y f}), (n,)."""
        return expected_log_logistic(self.labels * f.mean, f.variance).value

    def proposals(self) -> ShorterSteps:
        """Return steps that become shorter."""
        return ShorterSteps()

    def toward(self, other: Self, step: float) -> Self:
        """Return (1 − step) of these sites and `step` of the others."""
        return replace(
            self,
            precisions=(1 - step) * self.precisions + step * other.precisions,
            slopes=(1 - step) * self.slopes + step * other.slopes,
        )


class ShorterSteps:
    """A step of size one, then half of it, and so on."""

    def begin(self) -> None:
        """Prepare for another kernel."""

    def after(self, sites: LogisticSites, better: LogisticSites) -> Iterator[LogisticSites]:
        """Yield sites on the way from the last ones to those that their marginals ask for."""
        for step in _STEPS:
            yield sites.toward(better, step)


# The number of earlier passes that an extrapolation of the tilts looks back at.
_DEPTH = 5
# The largest distance, in logarithms of c², of extrapolated tilts from the plain update.
_FARTHEST = 3.0


@dataclass(frozen=True)
class PolyaGammaSites(Sites):
    """Sites of the Pólya-Gamma bound, determined by the rows' tilts c ≥ 0, (n,).

    With labels y = ±1, κ = y/2 and any tilt c ≥ 0,

        −log(1 + e^{−yf}) ≥ κ f − θ f²/2 + θ c²/2 − log 2cosh(c/2),      θ = tanh(c/2)/(2c)

    with equality at f = ±c. The right-hand side is quadratic in f: up to a constant it is the log
    likelihood of a regression, log N(κ/θ | f, 1/θ), whose rows have precisions θ and targets κ/θ.
    The best tilts, c² = E f², take one series at the data (Polson, Scott and Windle 2013;
    docs/mathematics.md). Each update of the tilts is the exact maximum of a bound on the bound, so
    that none ever loses; but their convergence is linear, which `Extrapolation` mends.
    """

    tilts: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Rows, tilts: NDArray[np.float64]) -> Self:
        """Return the sites of given tilts: θ, between zero and 1/4, and κ."""
        return cls(rows, site_precision(tilts), rows.y[:, 0] / 2, tilts)

    @classmethod
    def flat(cls, rows: Rows) -> Self:
        """Return the sites of a function that is zero: θ = 1/4 everywhere."""
        return cls.of(rows, np.zeros(len(rows.X)))

    def updated(self, f: Marginals) -> Self:
        """Return the sites with the best tilts, c² = E f²."""
        return self.of(self.rows, np.sqrt(f.mean**2 + f.variance))

    def expected_log_likelihood(self, f: Marginals) -> NDArray[np.float64]:
        """Return κ μ − θ (μ² + s²)/2 + θ c²/2 − log 2cosh(c/2), (n,)."""
        squares = f.mean**2 + f.variance
        return self.slopes * f.mean - self.precisions * squares / 2 + site_constant(self.tilts)

    def proposals(self) -> Extrapolation:
        """Return extrapolated tilts, and the plain ones in reserve."""
        return Extrapolation()


class Extrapolation:
    """Anderson's mixing of the updates of log c², with the plain update in reserve.

    The derivative of the map that earlier pairs of updates show holds for kernels close by as well.
    """

    def __init__(self) -> None:
        self._last: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._changes: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    def begin(self) -> None:
        """Prepare for another kernel."""
        self._last = None

    def after(self, sites: PolyaGammaSites, better: PolyaGammaSites) -> Iterator[PolyaGammaSites]:
        """Yield the extrapolated tilts, then, as they went too far, the plain ones."""
        yield self.mixed(sites, better)
        self._last, self._changes = None, []
        yield better

    def mixed(self, sites: PolyaGammaSites, better: PolyaGammaSites) -> PolyaGammaSites:
        """Return the sites where the updates so far suggest that they end."""
        if not np.all(sites.tilts > 0):
            return better
        plain = 2 * np.log(better.tilts)
        move = plain - 2 * np.log(sites.tilts)
        if self._last is not None:
            change = (plain - self._last[0], move - self._last[1])
            self._changes = [*self._changes[1 - _DEPTH :], change]
        self._last = plain, move
        if not self._changes:
            return better
        # The combination of earlier updates that leaves the least move; repeated rows count often.
        steps, moves = (np.array(parts) for parts in zip(*self._changes, strict=True))
        counts = sites.rows.weights
        roots = np.ones(1) if counts is None else np.sqrt(counts)
        shares = np.linalg.lstsq((roots * moves).T, roots * move, rcond=1e-10)[0]
        mixed = np.clip(plain - shares @ steps, plain - _FARTHEST, plain + _FARTHEST)
        return PolyaGammaSites.of(sites.rows, np.exp(mixed / 2))


def site_precision(tilts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return θ = tanh(c/2)/(2c), which is 1/4 at c = 0."""
    half = np.asarray(tilts) / 2
    ratio = np.divide(np.tanh(half), half, out=np.ones_like(half), where=half > 0)
    return ratio / 4


def site_constant(tilts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return θ c²/2 − log 2cosh(c/2), without overflow."""
    tilts = np.asarray(tilts)
    return tilts * (np.tanh(tilts / 2) - 2) / 4 - np.log1p(np.exp(-tilts))
