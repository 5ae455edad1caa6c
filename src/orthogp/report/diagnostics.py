r"""Checks of a fitted model by its own rows: `diagnose`.

A regressor predicts each row from all others, without fitting again. A model of features φ is the
linear regression y_n = φ_nᵀu + ε_n, u ~ N(0, I), of noise variance s²/w_n. With f's posterior mean
μ_n and variance q_n from the features, and H_n = w_n q_n/s², the matrix inversion lemma gives for
the posterior without row n

    y_n − μ_n' = (y_n − μ_n)/(1 − H_n),      q_n' = q_n/(1 − H_n)

A new observation has the variance q_n' + r_n + σ²/w_n, where r_n is the prior variance that the
features leave out. With the iterative solver r_n counts as noise, s² = σ² + r_n; otherwise s² = σ².
Weights that are repeats take out all copies of a row, each of noise variance σ².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError
from orthogp.exact.process import ExactPosterior
from orthogp.fields.posterior import MOST_JOINT, IterativePosterior
from orthogp.inference.predictive import FamilyPosterior
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.report.diagnostic_results import (
    DATA_BINS,
    INPUT_BINS,
    LEVELS,
    MAP_BINS,
    PIT_BINS,
    PROBABILITY_BINS,
    RESIDUAL_BINS,
    RESIDUAL_REACH,
    ClassificationDiagnostics,
    Diagnostics,
    RegressionDiagnostics,
)
from orthogp.rows import Rows
from orthogp.validation import check_rows

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

# The distance of probabilities from 0 and 1 below which scores take them for this distance.
_LEAST_PROBABILITY = 1e-15
# The largest leverage H; rounding may lead to 1 or more.
_LARGEST_LEVERAGE = 1 - 1e-7
# The most rows times modes for which the iterative solver solves for exact variances, which takes
# some seconds. Its estimates are off by some per cent, and so is 1 − H if H is close to one.
_MOST_SOLVED = 2_000_000
# The fewest rows worth checking: with fewer, the estimated variances of all rows are taken.
_FEWEST_ROWS = 50


def diagnose(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    max_rows: int = 10_000,
    seed: int = 0,
) -> Diagnostics:
    """Return checks of a fitted model by the rows that it was fitted to.

    A regressor predicts each row from all others, with its learned hyperparameters and without
    fitting again (`leave_one_out`). A classifier is checked in sample.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
    X, y, sample_weight
        The rows that the model was fitted to, or some of them.
    max_rows : int
        The largest number of rows to predict; more are sampled at random.
    seed : int
        Of that sample.
    """
    check_is_fitted(model, "posterior_")
    if max_rows < 1:
        raise InputError(f"max_rows must be at least 1, got {max_rows}.")
    rng = np.random.default_rng(seed)
    if hasattr(model, "classes_"):
        return _diagnose_classifier(model, X, y, max_rows, rng)
    rows = check_rows(model, X, y, sample_weight, reset=False)
    if rows.y.shape[1] != len(model.target_scale_):
        raise InputError(
            f"y must have {len(model.target_scale_)} columns as in fit, got {rows.y.shape[1]}."
        )
    if rows.weights is not None:
        kept = rows.weights > 0
        rows = Rows(rows.X[kept], rows.y[kept], rows.weights[kept])
    return _diagnose_regressor(model, rows.on(model.columns_), max_rows, rng)


def _diagnose_regressor(
    model: GPRegressor, rows: Rows, max_rows: int, rng: np.random.Generator
) -> RegressionDiagnostics:
    some = _choose(len(rows.X), affordable_rows(model, max_rows), rng)
    X, y = rows.X[some], np.asarray(rows.y[some], dtype=np.float64)
    weights = None if rows.weights is None else rows.weights[some]
    left_out = leave_one_out(model, model._embedded(X), y, weights)
    sd = np.sqrt(left_out.variance)[:, None]
    z = left_out.residual / sd
    targets = range(z.shape[1])
    scale = model.target_scale_
    lower, upper = rows.X.min(axis=0).astype(float), rows.X.max(axis=0).astype(float)
    along = [Bins.along(X[:, j], lower[j], upper[j], INPUT_BINS) for j in range(X.shape[1])]
    levels = np.array(LEVELS)
    inside = np.abs(z)[:, :, None] <= ndtri((1 + levels) / 2)
    cells = MAP_BINS if X.shape[1] in (2, 3) else 0
    grid = [Bins.along(X[:, j], lower[j], upper[j], cells) for j in range(2 if cells else 0)]
    # Rows of the matrix are the second input, as in an image.
    area = grid[1].cross(grid[0]) if grid else None
    data = _data_bins(rows.X, lower, upper)
    own = [np.asarray(rows.y[:, p], dtype=np.float64) for p in targets]
    return RegressionDiagnostics(
        rows=len(rows.X),
        rows_used=len(X),
        lower=lower,
        upper=upper,
        data_x=data.mean(rows.X[:, 0]),
        data_count=data.count,
        data_mean=np.array([data.mean(values) for values in own]),
        data_low=np.array([data.least(values) for values in own]),
        data_high=np.array([data.most(values) for values in own]),
        pit=np.array([Bins.along(ndtr(z[:, p]), 0.0, 1.0, PIT_BINS).count for p in targets]),
        coverage=inside.mean(axis=0),
        coverage_error=np.tile(np.sqrt(levels * (1 - levels) / len(X)), (len(targets), 1)),
        residual_counts=np.array(
            [
                Bins.along(z[:, p], -RESIDUAL_REACH, RESIDUAL_REACH, RESIDUAL_BINS).count
                for p in targets
            ]
        ),
        residual_moments=_moments(z),
        input_count=np.array([bins.count for bins in along]),
        input_mean=np.array([[bins.mean(z[:, p]) for bins in along] for p in targets]),
        input_sd=np.array([[bins.sd(z[:, p]) for bins in along] for p in targets]),
        map_count=np.zeros((0, 0)) if area is None else area.count.reshape(cells, cells),
        map_mean=np.zeros((len(targets), 0, 0))
        if area is None
        else np.array([area.mean(z[:, p]).reshape(cells, cells) for p in targets]),
        rmse=scale * np.sqrt(np.mean(left_out.residual**2, axis=0)),
        nlpd=np.mean(z**2 / 2 + np.log(sd * scale) + np.log(2 * np.pi) / 2, axis=0),
        crps=scale * np.mean(sd * _crps(z), axis=0),
        target_sd=y.std(axis=0),
    )


def _diagnose_classifier(
    model: GPClassifier, X: ArrayLike, y: ArrayLike, max_rows: int, rng: np.random.Generator
) -> ClassificationDiagnostics:
    own, labels = model._inputs(X), np.asarray(y).ravel()
    if len(labels) != len(own):
        raise InputError(f"y must have a label for each of {len(own)} rows, got {len(labels)}.")
    if not np.isin(labels, model.classes_).all():
        raise InputError("y has labels that the classifier was not fitted to: give its own rows.")
    lower, upper = own.min(axis=0).astype(float), own.max(axis=0).astype(float)
    some = _choose(len(own), max_rows, rng)
    probability = model._probabilities(own[some])
    codes = np.searchsorted(model.classes_, labels)
    hits = codes[some, None] == np.arange(len(model.classes_))
    shares = np.bincount(codes, minlength=len(model.classes_)) / len(codes)
    # With two classes, the probability of the second determines that of the first.
    shown = range(1 if len(model.classes_) == 2 else 0, len(model.classes_))
    bins = [Bins.along(probability[:, c], 0.0, 1.0, PROBABILITY_BINS) for c in shown]
    data = _data_bins(own, lower, upper)
    return ClassificationDiagnostics(
        rows=len(own),
        rows_used=len(some),
        lower=lower,
        upper=upper,
        data_x=data.mean(own[:, 0]),
        data_count=data.count,
        data_share=np.array([data.mean(codes == c) for c in shown]),
        predicted=np.array([b.mean(probability[:, c]) for b, c in zip(bins, shown, strict=True)]),
        observed=np.array([b.mean(hits[:, c]) for b, c in zip(bins, shown, strict=True)]),
        counts=np.array([b.count for b in bins]),
        log_loss=float(-np.mean(np.log(np.maximum(probability[hits], _LEAST_PROBABILITY)))),
        brier=float(np.mean(np.sum((probability - hits) ** 2, axis=1))),
        accuracy=float(np.mean(np.argmax(probability, axis=1) == codes[some])),
        base_log_loss=float(-np.sum(shares[shares > 0] * np.log(shares[shares > 0]))),
    )


def _choose(number: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if number <= most:
        return np.arange(number)
    return np.sort(rng.choice(number, most, replace=False))


def _data_bins(X: NDArray, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> Bins:
    """Return bins along a single input, none if there are several."""
    if X.shape[1] != 1:
        return Bins(np.zeros(len(X), dtype=np.int64), 0)
    return Bins.along(X[:, 0], lower[0], upper[0], DATA_BINS)


def _moments(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean, standard deviation, skewness and excess kurtosis of each column, (p, 4)."""
    mean, sd = z.mean(axis=0), z.std(axis=0)
    scaled = (z - mean) / np.where(sd > 0, sd, 1.0)
    return np.stack([mean, sd, np.mean(scaled**3, axis=0), np.mean(scaled**4, axis=0) - 3], axis=1)


def _crps(z: NDArray[np.float64]) -> Any:
    """Return the continuous ranked probability score of a standard normal at z."""
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi)


class LeaveOneOut(NamedTuple):
    """Residuals y − prediction (n, p) and predictive variances (n,), in standardised units."""

    residual: NDArray[np.float64]
    variance: NDArray[np.float64]


def affordable_rows(model: GPRegressor, num_rows: int) -> int:
    """Return the number of rows, at most `num_rows`, whose variances are accurate enough."""
    posterior = model.posterior_
    if not isinstance(posterior, IterativePosterior):
        return num_rows
    return min(num_rows, _solved_rows(posterior) or num_rows)


def _solved_rows(posterior: IterativePosterior) -> int:
    """Return the number of rows whose variances can be solved for, zero if these are too few."""
    solved = min(_MOST_SOLVED // posterior.model.system.grid.size, MOST_JOINT)
    return solved if solved >= _FEWEST_ROWS else 0


def leave_one_out(
    model: GPRegressor,
    X: NDArray,
    y: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
) -> LeaveOneOut:
    """Return the predictions of rows that the model was fitted to, each from all other rows.

    Parameters
    ----------
    X : (n, d)
        As the posterior sees them.
    y : (n, p)
        In the user's units.
    weights : (n,), optional
        Positive, as they were given to `fit`.
    """
    posterior = model.posterior_
    if isinstance(posterior, NeighbourPosterior):
        w = np.ones(len(X)) if weights is None else weights
        noise = posterior.noise_variance / (w if model.weights == "precisions" else 1.0)
        mean, variance = posterior.predict_without(X)
        return LeaveOneOut(
            (y - model.target_offset_) / model.target_scale_ - mean, variance + noise
        )
    exact = isinstance(posterior, ExactPosterior)
    prediction = posterior.predict_rows(X) if exact else posterior.predict(X)
    if isinstance(posterior, IterativePosterior) and len(X) <= _solved_rows(posterior):
        prediction = prediction._replace(variance=np.diag(posterior.covariance(X)))
    noise = posterior.noise_variance
    left_out = np.full(len(X), posterior.residual)
    fitted_noise = noise
    if isinstance(posterior, FamilyPosterior):
        left_out = posterior.features.residual_variance(posterior.kernel, X)
    elif isinstance(posterior, IterativePosterior):
        fitted_noise = noise + posterior.residual
    w = np.ones(len(X)) if weights is None else weights
    seen = np.maximum(prediction.variance - left_out, 0.0)
    rest = 1 - np.minimum(w * seen / fitted_noise, _LARGEST_LEVERAGE)
    if isinstance(posterior, IterativePosterior):
        # Estimates aside, the variance without a row is at most the prior variance.
        resolved = posterior.prior_variance - posterior.residual
        rest = np.maximum(rest, seen / max(resolved, 1e-300))
    standardised = (y - model.target_offset_) / model.target_scale_
    own_noise = noise / w if model.weights == "precisions" else noise
    residual = (standardised - prediction.mean) / rest[:, None]
    return LeaveOneOut(residual, seen / rest + left_out + own_noise)


@dataclass(frozen=True)
class Bins:
    """Rows in even bins: the bin of each row, and the number of bins, which may be zero."""

    which: NDArray[np.int64]
    number: int

    @classmethod
    def along(cls, x: NDArray, lower: float, upper: float, number: int) -> Bins:
        """Return the bins between lower and upper; rows beyond fall into the outermost."""
        width = (upper - lower) or 1.0
        at = np.floor((np.asarray(x, dtype=np.float64) - lower) * (number / width))
        return cls(np.clip(at, 0, number - 1).astype(np.int64), number)

    def cross(self, other: Bins) -> Bins:
        """Return the cells of a grid, in the order of a matrix with `other` along its columns."""
        return Bins(self.which * other.number + other.which, self.number * other.number)

    @property
    def count(self) -> NDArray[np.float64]:
        """The number of rows in each bin."""
        return self.total(np.ones(len(self.which)))

    def total(self, values: NDArray) -> NDArray[np.float64]:
        """Return the sum of the values in each bin."""
        sums = np.bincount(self.which, weights=values, minlength=self.number)
        return np.asarray(sums, dtype=np.float64)[: self.number]

    def mean(self, values: NDArray) -> NDArray[np.float64]:
        """Return the average of the values in each bin, NaN where there is none."""
        count = self.count
        return np.where(count > 0, self.total(values) / np.maximum(count, 1), np.nan)

    def sd(self, values: NDArray) -> NDArray[np.float64]:
        """Return the root mean square of the values' deviations from each bin's average."""
        average = self.mean(values)
        return np.sqrt(self.mean((values - average[self.which]) ** 2))

    def least(self, values: NDArray) -> NDArray[np.float64]:
        """Return the smallest value in each bin, NaN where there is none."""
        result = np.full(max(self.number, 1), np.inf)
        np.minimum.at(result, self.which, values)
        return np.where(np.isfinite(result), result, np.nan)[: self.number]

    def most(self, values: NDArray) -> NDArray[np.float64]:
        """Return the largest value in each bin, NaN where there is none."""
        return -self.least(-values)
