r"""DriftRegressor: covariates that are a function of the inputs, among them where rows are missing.

    y = f(x) + βᵀz(x) + noise

is a `GPRegressor` with covariates z(x). A covariate may be the share of the neighbourhood without
rows (`RowGaps`): the model then takes into account that rows may be missing for a reason, so that
their places are informative about the values. Around x, with Gaussian weights g of bandwidth h
along each column, that share is

    z(x) = 1 − Σ_n g(x − x_n) / (ρ ∫_box g(x − u) du),      0 ≤ z ≤ 1

with ρ the density in well-covered places; the volume beyond the box around the rows does not count.
The sum is a Fourier series: the sums of the rows on a lattice times the transform of g. A row does
not count as its own neighbour, so that z means the same at the rows as between them.

Of several bandwidths the evidence chooses: with the effects b of all of them at once, of precision
P and broad priors, the share j alone adds (P b)_j²/(2 P_jj) to the largest log p(y).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from scipy.special import ndtr
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError, check_finite
from orthogp.regressor import GPRegressor
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import evaluate_series
from orthogp.validation import check_rows, choose_model

#: Bandwidths to choose from, in units of the typical distance between rows.
BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)
# The quantile of the densities at the rows that is taken for ρ.
_COVERED = 0.9
# The distance at which a Gaussian ends, in bandwidths.
_REACH = 6.0
# The frequency at which its transform ends, times the bandwidth.
_HIGHEST = 4.5
# The smallest ρ, relative to the weight of one row, for which rows have neighbours.
_ALONE = 1e-2
# The smallest standard deviation of the shares at the rows that shows gaps.
_ALIKE = 1e-3

Covariates = Callable[[NDArray[np.float64]], ArrayLike]


class RowGaps:
    """The share of the neighbourhood without rows, in several bandwidths to choose from.

    Bandwidths are in units of the typical distance of rows along each column, its extent divided by
    the d-th root of the number of distinct places.
    """

    def __init__(self, bandwidths: Sequence[float] = BANDWIDTHS) -> None:
        values = np.atleast_1d(np.asarray(bandwidths, dtype=np.float64))
        if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values) & (values > 0)):
            raise InputError(f"bandwidths must be positive numbers, got {bandwidths}.")
        self.bandwidths = tuple(values.tolist())

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"RowGaps({self.bandwidths})"

    def of(self, X: ArrayLike) -> list[GapShare]:
        """Return the share around rows X (n, d), for each bandwidth that shows gaps."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or not 1 <= X.shape[1] <= MAX_DIMS:
            raise InputError(
                f"Gaps are looked for in rows of up to {MAX_DIMS} columns, got shape {X.shape}."
            )
        check_finite(X, "X")
        extent = np.ptp(X, axis=0)
        if np.any(extent == 0):
            raise InputError(
                "Gaps between rows need columns that vary: column "
                f"{int(np.flatnonzero(extent == 0)[0])} is constant."
            )
        tree = KDTree(X)
        typical = extent / len(np.unique(X, axis=0)) ** (1 / X.shape[1])
        shares = [GapShare(tree, bandwidth * typical) for bandwidth in self.bandwidths]
        shares = [z for z in shares if z.covered > _ALONE and np.std(z(X)) > _ALIKE]
        if not shares:
            raise InputError(
                "The rows have no gaps that their neighbourhoods would show: leave out the drift, "
                "or give other bandwidths."
            )
        return shares


class GapShare:
    """The share of the neighbourhood without rows, for one bandwidth (d,) in the units of X.

    `covered` is ρ, relative to the weight of one row at its place.
    """

    def __init__(self, rows: KDTree, bandwidth: NDArray[np.float64]) -> None:
        X = np.asarray(rows.data)
        self.bandwidth = np.asarray(bandwidth, dtype=np.float64)
        self._rows = rows
        self._lower, self._upper = X.min(axis=0), X.max(axis=0)
        period = self._upper - self._lower + _REACH * self.bandwidth
        # Points are summed at twice the frequencies that targets are.
        extent = np.ceil(_HIGHEST / self.bandwidth * period / (4 * np.pi)).astype(np.int64)
        self._lattice = FrequencyLattice.for_domain(
            self._lower, self._upper, period=period, extent=extent
        )
        sums = FourierStatistics.from_data(self._lattice, X, np.zeros(len(X))).point_sums
        # In units of the weight of one row at its place.
        series = np.conj(sums) * np.prod(np.sqrt(2 * np.pi) * self.bandwidth / period)
        for axis, k in enumerate(extent):
            omega = np.arange(-2 * k, 2 * k + 1) * self._lattice.spacing[axis]
            taper = np.exp(-((omega * self.bandwidth[axis]) ** 2) / 2)
            series = series * taper.reshape(-1, *(1,) * (len(extent) - 1 - axis))
        self._series = series
        self.covered = float(np.quantile(self._density(X), _COVERED))

    def __call__(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return z at the rows of X, (n, 1)."""
        density = self._density(np.asarray(X, dtype=np.float64))
        return np.clip(1 - density / self.covered, 0.0, 1.0)[:, None]

    def _density(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the density of other rows in the box around each place, moved to the box.

        A row at the place itself is taken out once.
        """
        occupied = np.asarray(self._rows.query(X)[0]) == 0
        X = np.clip(X, self._lower, self._upper)
        ends = [ndtr((edge - X) / self.bandwidth) for edge in (self._lower, self._upper)]
        total = evaluate_series(self._series[None], self._lattice, X)[:, 0]
        return (total - occupied) / np.prod(ends[1] - ends[0], axis=1)


class DriftRegressor(RegressorMixin, BaseEstimator):
    """A GPRegressor with covariates that are a function of X.

    Parameters
    ----------
    regressor : GPRegressor
        The model of y beside the drift.
    drift : RowGaps or callable
        Covariates as a function of X, (n, d) → (n, q). Among several bandwidths, that with the
        largest evidence is taken.

    Attributes
    ----------
    effects_ : Effects
    columns_ : (d,)
        The columns of X that the kernel acts on, in which gaps are looked for.
    drift_ : callable
        The covariates, with the chosen bandwidth.
    regressor_ : GPRegressor
        Fitted with the covariates.
    """

    n_features_in_: int

    def __init__(self, regressor: GPRegressor, drift: RowGaps | Covariates) -> None:
        self.regressor = regressor
        self.drift = drift

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows X (n, d) with targets y, (n,)."""
        if not isinstance(self.regressor, GPRegressor):
            raise InputError(f"A drift needs a GPRegressor, got {type(self.regressor).__name__}.")
        rows = check_rows(self, X, y, sample_weight, reset=True)
        if not rows.one_target:
            raise InputError("A drift takes one target: y must be of shape (n,).")
        known = rows.X.astype(np.float64)
        kernel, features = self.regressor.kernel, self.regressor.features
        self.columns_ = choose_model(kernel, features, known.shape[1]).columns
        choices = self._choices(known, rows.weights)
        columns = [self._covariates(choice, known) for choice in choices]
        fresh: Any = clone(self.regressor)
        model = fresh.fit(X, y, sample_weight, np.concatenate(columns, axis=1))
        best = 0
        if len(choices) > 1:
            effects = model.effects_
            precision = np.linalg.inv(effects.covariance)
            gains = (precision @ effects.values) ** 2 / (2 * np.diag(precision))
            best = int(np.argmax(gains))
            again: Any = clone(self.regressor)
            again.set_params(kernel=model.kernel_, noise_variance=model.noise_variance_)
            model = again.fit(X, y, sample_weight, columns[best])
        self.drift_, self.regressor_, self.effects_ = choices[best], model, model.effects_
        return self

    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = False) -> Any:
        """Return the mean of f + βᵀz at the rows of X, and standard deviations if asked.

        Parameters
        ----------
        include_noise : bool
            For a new observation instead of the function itself.
        """
        check_is_fitted(self, "effects_")
        z = self._covariates(self.drift_, np.asarray(X, dtype=np.float64))
        return self.regressor_.predict(X, return_std, include_noise=include_noise, covariates=z)

    def summary(self) -> str:
        """Return the effects, and the model that has them, in a page of text."""
        check_is_fitted(self, "effects_")
        shown = ", ".join(
            f"{value:.4g} ± {error:.2g}"
            for value, error in zip(
                self.effects_.values, self.effects_.standard_errors, strict=True
            )
        )
        gain = self.effects_.evidence_gain
        line = f"DriftRegressor: effects {shown}; evidence {gain:,.1f} nats larger"
        if isinstance(self.drift_, GapShare):
            bandwidth = ", ".join(f"{h:.4g}" for h in self.drift_.bandwidth)
            line += f"\n  of the share without rows, bandwidth [{bandwidth}]"
        return f"{line}\n{self.regressor_.summary()}"

    def _choices(
        self, X: NDArray[np.float64], weights: NDArray[np.float64] | None
    ) -> Sequence[GapShare | Covariates]:
        """Return the covariates to choose from."""
        if not isinstance(self.drift, RowGaps):
            return [self.drift]
        X = X[:, self.columns_]
        return self.drift.of(X if weights is None else X[weights > 0])

    def _covariates(
        self, covariates: GapShare | Covariates, X: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return covariates at the rows of X, (n, q)."""
        # Gaps are looked for in the columns that the kernel acts on.
        X = X[:, self.columns_] if isinstance(covariates, GapShare) else X
        values = np.asarray(covariates(X), dtype=np.float64)
        values = values.reshape(len(values), -1) if values.ndim else values
        if values.ndim != 2 or len(values) != len(X) or values.shape[1] == 0:
            raise InputError(
                f"The drift must give one row of covariates for each of {len(X)} rows of X, got "
                f"shape {values.shape}."
            )
        check_finite(values, "drift")
        return values
