"""diagnose: the checks of a fitted regressor or classifier by its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.utils.validation import check_is_fitted

from orthogp.diagnostics.binning import Bins
from orthogp.diagnostics.leave_one_out import affordable_rows, leave_one_out
from orthogp.diagnostics.results import (
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
from orthogp.errors import InputError
from orthogp.learning.sketch import Rows
from orthogp.validation import check_rows

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

# Probabilities closer to 0 or 1 than this are scored as this, as everywhere.
_LEAST_PROBABILITY = 1e-15


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
        The most rows to predict; a random choice if there are more.
    seed : int
        Of that choice.
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
    # Of two classes, the second says all.
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
