r"""Labels as a weighted regression: each row's likelihood gives way to a Gaussian site.

With any precisions τ_n > 0 and slopes ν_n, sites t_n(f) ∝ exp(ν_n f − τ_n f²/2) stand for rows of a
regression with targets ν_n/τ_n and noise variances 1/τ_n, whose posterior q(f) follows from sums of
weighted rows. For that q,

    ELBO = log Z(ν, τ) + Σ_n E_q [log p(y_n|f_n) − log N(ν_n/τ_n | f_n, 1/τ_n)]

with log Z the (bound on the) log evidence of the regression. Where the sites are those that the
marginals of q ask for, the derivative of the ELBO by the kernel is that of log Z alone, for the sum
is stationary there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.inference.bounds import Bound
from orthogp.statistics import (
    AdditiveStatistics,
    ComponentLattice,
    FourierStatistics,
    FrequencyLattice,
)


class LabelledRows(NamedTuple):
    """Rows X (n, d) with labels ±1 (n,), each counted `weights` times (n,), once if `None`."""

    X: NDArray
    labels: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None

    @property
    def num_rows(self) -> float:
        """The number of rows, each counted as often as its weight says."""
        return float(len(self.X) if self.weights is None else self.weights.sum())

    def total(self, values: NDArray[np.float64]) -> float:
        """Return the sum of one value per row."""
        return float(values.sum() if self.weights is None else self.weights @ values)

    def merged(self) -> Self:
        """Return the rows sorted, equal ones as one of their total weight."""
        weights = np.ones(len(self.X)) if self.weights is None else self.weights
        table = np.column_stack([self.X, self.labels])
        distinct, which = np.unique(table, axis=0, return_inverse=True)
        totals = np.bincount(which.ravel(), weights).astype(np.float64)
        return type(self)(distinct[:, :-1], distinct[:, -1], totals)


class Marginals(NamedTuple):
    """Mean and variance of f at each row, (n,) each."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


@dataclass(frozen=True)
class Sites(ABC):
    """One Gaussian site for each row."""

    rows: LabelledRows

    @classmethod
    @abstractmethod
    def flat(cls, rows: LabelledRows) -> Self:
        """Return the sites of a function that is zero."""

    @property
    @abstractmethod
    def precisions(self) -> NDArray[np.float64]:
        """τ, (n,)."""

    @property
    @abstractmethod
    def slopes(self) -> NDArray[np.float64]:
        """ν, (n,)."""

    @abstractmethod
    def updated(self, f: Marginals) -> Self:
        """Return the sites that the marginals of f ask for."""

    @abstractmethod
    def expected_log_likelihood(self, f: Marginals) -> NDArray[np.float64]:
        """Return E log p(y_n|f_n) of each row, or a lower bound on it, (n,)."""

    @property
    def precision_total(self) -> float:
        """Σ τ_n."""
        return self.rows.total(self.precisions)

    def statistics(
        self, lattice: FrequencyLattice, mean: MeanPrior, num_threads: int | None = None
    ) -> FourierStatistics:
        """Return the sums of the sites' regression, in one pass.

        Their `rows` and `log_weights` are those of Gaussian factors of precision τ, each of which
        counts as often as its row.
        """
        return self._counted(
            FourierStatistics.from_data(
                lattice,
                self.rows.X,
                *self._regression,
                covariates=mean.covariates if mean.slope_variance else None,
                num_threads=num_threads,
            )
        )

    def additive_statistics(
        self,
        components: Sequence[ComponentLattice],
        mean: MeanPrior,
        num_threads: int | None = None,
    ) -> AdditiveStatistics:
        """Return the same for the components of an additive model."""
        statistics = AdditiveStatistics.from_data(
            components,
            self.rows.X,
            *self._regression,
            covariates=mean.covariates if mean.slope_variance else None,
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
        return replace(sums, rows=rows.num_rows, log_weights=rows.total(np.log(self.precisions)))

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


S = TypeVar("S", bound=Sites)


class Proposals(ABC, Generic[S]):
    """Which sites to try after a pass, best guess first: the first that does not lose is taken."""

    def begin(self) -> None:
        """Prepare for another kernel."""

    @abstractmethod
    def after(self, sites: S, better: S) -> Iterator[S]:
        """Yield sites to try; `better` are those that the marginals of the last pass ask for."""
