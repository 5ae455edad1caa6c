r"""Checks of a fitted model by its own rows: `diagnose`, and the results that it returns.

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

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_args, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, xlogy
from sklearn.utils.validation import check_is_fitted

from orthogp.covariates import with_covariates
from orthogp.errors import InputError
from orthogp.exact.process import ExactPosterior
from orthogp.fields.posterior import MOST_JOINT, IterativePosterior
from orthogp.inference.predictive import FamilyPosterior
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.rows import Domain, Rows
from orthogp.validation import check_rows

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

#: Bins of the probability integral transform.
PIT_BINS = 20
#: Bins of standardised residuals.
RESIDUAL_BINS = 40
#: Bins along each input.
INPUT_BINS = 32
#: Bins along each side of the map of residuals.
MAP_BINS = 24
#: Bins of the rows along a single input, for its figure.
DATA_BINS = 256
#: Bins along each side of the table of predictions and targets.
TARGET_BINS = 40
#: Bins of predicted probabilities.
PROBABILITY_BINS = 10
#: The probabilities of the central intervals whose coverage is counted.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
#: Standardised residuals are counted from −RESIDUAL_REACH to RESIDUAL_REACH, the last bins open.
RESIDUAL_REACH = 5.0

# The distance of probabilities from 0 and 1 below which scores take them for this distance.
_LEAST_PROBABILITY = 1e-15
# The largest leverage H; rounding may lead to 1 or more.
_LARGEST_LEVERAGE = 1 - 1e-7
# The largest product of rows and modes at which the iterative solver solves for exact variances,
# in a few seconds. Estimated variances have errors of a few per cent, which 1 − H magnifies where H
# is close to one.
_MOST_SOLVED = 2_000_000
# The smallest number of rows worth solving for; below it, all rows have estimated variances.
_FEWEST_ROWS = 50


# Fields are annotated with their shape, letters standing for any size.
_Array = NDArray[np.float64]
State = dict[str, NDArray[Any] | str | float | int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnostics:
    """Results of a model's checks; `RegressionDiagnostics` and `ClassificationDiagnostics`.

    Attributes
    ----------
    rows, rows_used : int
        How many rows were given, and how many of them, drawn at random, were checked.
    lower, upper : (d,)
        The range of each input column that the model acts on.
    data_x, data_count : (b,)
        With a single input: the average input and the number of rows in each of `DATA_BINS` bins.
    """

    kind: ClassVar[str] = ""

    rows: int
    rows_used: int
    lower: Annotated[_Array, ("d",)]
    upper: Annotated[_Array, ("d",)]
    data_x: Annotated[_Array, ("b",)]
    data_count: Annotated[_Array, ("b",)]

    def to_state(self) -> State:
        """Return everything as arrays, numbers and text, to be stored with a model."""
        return {"kind": self.kind, **{f.name: getattr(self, f.name) for f in fields(self)}}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Diagnostics:
        """Return the diagnostics that `to_state` gave, or raise `InputError` if they are not."""
        known: tuple[type[Diagnostics], ...] = (RegressionDiagnostics, ClassificationDiagnostics)
        for kind in known:
            if state.get("kind") == kind.kind:
                return kind(**_checked(kind, state))
        raise InputError(
            f'Diagnostics need a "kind" out of {", ".join(repr(kind.kind) for kind in known)}, got '
            f"{state.get('kind')!r}: they were not written by Diagnostics.to_state."
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionDiagnostics(Diagnostics):
    """How well each row is predicted by all others, with the learned hyperparameters.

    Residuals are standardised: y less its prediction, in standard deviations of that prediction.

    Attributes
    ----------
    pit : (p, 20)
        How many rows have their predictive probability Φ(residual) in each twentieth of [0, 1].
    coverage, coverage_error : (p, 5)
        The share of rows in the central intervals of probability `LEVELS`, and the binomial
        standard error of a share that is as it should be.
    residual_counts : (p, 40)
        Residuals in bins from −5 to 5, those beyond in the outermost.
    residual_moments : (p, 4)
        Mean, standard deviation, skewness and excess kurtosis of the residuals.
    input_count : (d, 32)
    input_mean, input_sd : (p, d, 32)
        Mean and standard deviation of the residuals in bins along each input; NaN without rows.
    map_count, map_mean : (c, c), (p, c, c)
        The same in cells of the first two inputs, if there are two or three; otherwise c is 0.
    data_mean, data_low, data_high : (p, b)
        With a single input: average, smallest and largest target in each bin.
    target_count : (q, t, t)
        How many rows have their target in each of `TARGET_BINS` bins, one for each row of the
        table, and their prediction from all others in each bin along it; none in older files.
    target_range : (q, 2)
        Where the first of these bins begins, and the last ends.
    rmse, nlpd, crps, target_sd : (p,)
        Scores of the predictions (root mean squared error, negative log predictive density, and
        continuous ranked probability score) and the standard deviation of y to compare with.
    """

    kind: ClassVar[str] = "regression"

    pit: Annotated[_Array, ("p", PIT_BINS)]
    coverage: Annotated[_Array, ("p", len(LEVELS))]
    coverage_error: Annotated[_Array, ("p", len(LEVELS))]
    residual_counts: Annotated[_Array, ("p", RESIDUAL_BINS)]
    residual_moments: Annotated[_Array, ("p", 4)]
    input_count: Annotated[_Array, ("d", INPUT_BINS)]
    input_mean: Annotated[_Array, ("p", "d", INPUT_BINS)]
    input_sd: Annotated[_Array, ("p", "d", INPUT_BINS)]
    map_count: Annotated[_Array, ("c", "c")]
    map_mean: Annotated[_Array, ("p", "c", "c")]
    data_mean: Annotated[_Array, ("p", "b")]
    data_low: Annotated[_Array, ("p", "b")]
    data_high: Annotated[_Array, ("p", "b")]
    rmse: Annotated[_Array, ("p",)]
    nlpd: Annotated[_Array, ("p",)]
    crps: Annotated[_Array, ("p",)]
    target_sd: Annotated[_Array, ("p",)]
    target_count: Annotated[_Array, ("q", "t", "t")] = field(
        default_factory=lambda: np.zeros((0, 0, 0))
    )
    target_range: Annotated[_Array, ("q", 2)] = field(default_factory=lambda: np.zeros((0, 2)))

    def covered(self, level: float, target: int = 0) -> float:
        """Return the share of rows in the central interval of a probability out of `LEVELS`."""
        return float(self.coverage[target, LEVELS.index(level)])


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassificationDiagnostics(Diagnostics):
    """How well a classifier's probabilities fit its own training rows: in sample, not held out.

    Attributes
    ----------
    predicted, observed, counts : (c, 10)
        In bins of the predicted probability: its average, the share of rows that are of the class,
        and their number; of the second class, or of each if there are more than two.
    log_loss, brier, accuracy : float
        Scores of the probabilities and of the most probable labels.
    base_log_loss : float
        The log loss of always predicting the classes' shares.
    data_share : (c, b)
        With a single input: the share of rows of the class in each bin.
    """

    kind: ClassVar[str] = "classification"

    predicted: Annotated[_Array, ("c", PROBABILITY_BINS)]
    observed: Annotated[_Array, ("c", PROBABILITY_BINS)]
    counts: Annotated[_Array, ("c", PROBABILITY_BINS)]
    data_share: Annotated[_Array, ("c", "b")]
    log_loss: float
    brier: float
    accuracy: float
    base_log_loss: float


def _checked(kind: type[Diagnostics], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state, each of its type and with shapes that fit each other."""
    result: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        if each.name not in state and each.default_factory is not MISSING:
            continue
        if each.name not in state:
            raise InputError(f"Diagnostics lack {each.name!r}: run diagnose again.")
        hint = hints[each.name]
        shape = get_args(hint)[1] if hint not in (int, float) else None
        try:
            if shape is None:
                result[each.name] = hint(state[each.name])
                continue
            array = np.asarray(state[each.name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"Diagnostics need numbers as {each.name!r}, got {state[each.name]!r}: run "
                "diagnose again."
            ) from error
        fits = array.ndim == len(shape) and all(
            size == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size))
            for wanted, size in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise InputError(
                f"Diagnostics need {each.name!r} of shape {shape}, got {array.shape}: run diagnose "
                "again."
            )
        result[each.name] = array
    return result


# ---------------------------------------------------------------------- checks


def diagnose(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    covariates: ArrayLike | None = None,
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
    X, y, sample_weight, covariates
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
    if model.likelihood_ is not None:
        raise InputError(
            f"Checks by leaving rows out are for Gaussian noise, not for the {model.likelihood} "
            "likelihood: compare held-out rows with predict_quantiles."
        )
    rows = check_rows(model, X, y, sample_weight, reset=False)
    rows = with_covariates(model, rows, covariates, reset=False)
    if rows.y.shape[1] != len(model.target_scale_):
        raise InputError(
            f"y must have {len(model.target_scale_)} columns as in fit, got {rows.y.shape[1]}."
        )
    if rows.weights is not None:
        rows = rows.part(rows.weights > 0)
    return _diagnose_regressor(model, rows.on(model.columns_), max_rows, rng)


def _diagnose_regressor(
    model: GPRegressor, rows: Rows, max_rows: int, rng: np.random.Generator
) -> RegressionDiagnostics:
    rows = rows._replace(y=np.asarray(rows.y, dtype=np.float64))
    some = rows.part(_choose(len(rows.X), affordable_rows(model, max_rows), rng))
    points = model._embedded(some.inputs, some.covariates)
    left_out = leave_one_out(model, points, some.y, some.weights)
    sd = np.sqrt(left_out.variance)[:, None]
    z = left_out.residual / sd
    scale, levels, box = model.target_scale_, np.array(LEVELS), Domain.around(rows.inputs)
    along = [Bins.along(some.X, box, j, INPUT_BINS) for j in range(some.num_inputs)]
    cells = MAP_BINS if len(along) in (2, 3) else 0
    area = Bins.none(len(some.X))
    if cells:
        first, second = (Bins.along(some.X, box, j, cells) for j in range(2))
        # Rows of the matrix are the second input, as in an image.
        area = second.cross(first)
    data = _data_bins(rows.inputs, box)
    predicted = some.y - scale * left_out.residual
    tables = [_against(some.y[:, j], predicted[:, j]) for j in range(len(scale))]
    inside = np.abs(z)[:, :, None] <= ndtri((1 + levels) / 2)
    return RegressionDiagnostics(
        rows=len(rows.X),
        rows_used=len(some.X),
        lower=box.lower,
        upper=box.upper,
        data_x=data.mean(rows.X[:, :1])[0],
        data_count=data.count,
        data_mean=data.mean(rows.y),
        data_low=data.least(rows.y),
        data_high=-data.least(-rows.y),
        pit=_counts(ndtr(z), 0.0, 1.0, PIT_BINS),
        coverage=inside.mean(axis=0),
        coverage_error=np.tile(np.sqrt(levels * (1 - levels) / len(z)), (z.shape[1], 1)),
        residual_counts=_counts(z, -RESIDUAL_REACH, RESIDUAL_REACH, RESIDUAL_BINS),
        residual_moments=_moments(z),
        input_count=np.array([bins.count for bins in along]),
        input_mean=np.stack([bins.mean(z) for bins in along], axis=1),
        input_sd=np.stack([bins.sd(z) for bins in along], axis=1),
        map_count=area.count.reshape(cells, cells),
        map_mean=area.mean(z).reshape(z.shape[1], cells, cells),
        rmse=scale * np.sqrt(np.mean(left_out.residual**2, axis=0)),
        nlpd=np.mean(z**2 / 2 + np.log(sd * scale) + np.log(2 * np.pi) / 2, axis=0),
        crps=scale * np.mean(sd * _crps(z), axis=0),
        target_sd=some.y.std(axis=0),
        target_count=np.array([counts for counts, _ in tables]),
        target_range=np.array([ends for _, ends in tables]),
    )


def _against(
    y: NDArray[np.float64], predicted: NDArray[np.float64]
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return how many rows have target and prediction in each pair of bins, and the bins' ends."""
    ends = float(min(y.min(), predicted.min())), float(max(y.max(), predicted.max()))
    observed, expected = (Bins.between(own, *ends, TARGET_BINS) for own in (y, predicted))
    return observed.cross(expected).count.reshape(TARGET_BINS, TARGET_BINS), ends


def _diagnose_classifier(
    model: GPClassifier, X: ArrayLike, y: ArrayLike, max_rows: int, rng: np.random.Generator
) -> ClassificationDiagnostics:
    inputs, labels = model._inputs(X), np.asarray(y).ravel()
    if len(labels) != len(inputs):
        raise InputError(f"y must have a label for each of {len(inputs)} rows, got {len(labels)}.")
    if not np.isin(labels, model.classes_).all():
        raise InputError("y has labels that the classifier was not fitted to: give its own rows.")
    box = Domain.around(inputs)
    some = _choose(len(inputs), max_rows, rng)
    codes = np.searchsorted(model.classes_, labels)
    every = codes[:, None] == np.arange(len(model.classes_))
    probability, hits, shares = model._probabilities(inputs[some]), every[some], every.mean(axis=0)
    # With two classes, the probability of the second determines that of the first.
    shown = list(range(1 if len(shares) == 2 else 0, len(shares)))
    bins = [Bins.between(probability[:, c], 0.0, 1.0, PROBABILITY_BINS) for c in shown]
    data = _data_bins(inputs, box)

    def binned(values: NDArray) -> NDArray[np.float64]:
        return np.array([own.mean(values[:, [c]])[0] for own, c in zip(bins, shown, strict=True)])

    return ClassificationDiagnostics(
        rows=len(inputs),
        rows_used=len(some),
        lower=box.lower,
        upper=box.upper,
        data_x=data.mean(inputs[:, :1])[0],
        data_count=data.count,
        data_share=data.mean(every[:, shown]),
        predicted=binned(probability),
        observed=binned(hits),
        counts=np.array([own.count for own in bins]),
        log_loss=float(-np.mean(np.log(np.maximum(probability[hits], _LEAST_PROBABILITY)))),
        brier=float(np.mean(np.sum((probability - hits) ** 2, axis=1))),
        accuracy=float(np.mean(np.argmax(probability, axis=1) == codes[some])),
        base_log_loss=float(-np.sum(xlogy(shares, shares))),
    )


def _choose(number: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if number <= most:
        return np.arange(number)
    return np.sort(rng.choice(number, most, replace=False))


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
    w = np.ones(len(X)) if weights is None else weights
    noise = posterior.noise_variance
    row_noise = noise / w if model.weights == "precisions" else noise
    standardised = (y - model.target_offset_) / model.target_scale_
    if isinstance(posterior, NeighbourPosterior):
        mean, variance = posterior.predict_without(X)
        return LeaveOneOut(standardised - mean, variance + row_noise)
    exact = isinstance(posterior, ExactPosterior)
    mean, variance = posterior.predict_rows(X) if exact else posterior.predict(X)
    left_out, fitted_noise = np.full(len(X), posterior.residual), noise
    if isinstance(posterior, FamilyPosterior):
        left_out = posterior.features.residual_variance(posterior.kernel, X)
    iterative = isinstance(posterior, IterativePosterior)
    if iterative:
        fitted_noise = noise + posterior.residual
        if len(X) <= _solved_rows(posterior):
            variance = np.diag(posterior.covariance(X))
    seen = np.maximum(variance - left_out, 0.0)
    rest = 1 - np.minimum(w * seen / fitted_noise, _LARGEST_LEVERAGE)
    if iterative:
        # Estimates aside, the variance without a row is at most the prior variance.
        resolved = posterior.prior_variance - posterior.residual
        rest = np.maximum(rest, seen / max(resolved, 1e-300))
    residual = (standardised - mean) / rest[:, None]
    return LeaveOneOut(residual, seen / rest + left_out + row_noise)


# ---------------------------------------------------------------------- bins


@dataclass(frozen=True)
class Bins:
    """Rows in even bins: the bin of each row, and the number of bins, which may be zero."""

    which: NDArray[np.int64]
    number: int

    @classmethod
    def between(cls, x: NDArray, lower: float, upper: float, number: int) -> Bins:
        """Return the bins between two values; rows beyond fall into the outermost."""
        width = (upper - lower) or 1.0
        at = np.floor((np.asarray(x, dtype=np.float64) - lower) * (number / width))
        return cls(np.clip(at, 0, number - 1).astype(np.int64), number)

    @classmethod
    def along(cls, X: NDArray, box: Domain, column: int, number: int) -> Bins:
        """Return the bins along a column, from one side of a box to the other."""
        return cls.between(X[:, column], box.lower[column], box.upper[column], number)

    @classmethod
    def none(cls, num_rows: int) -> Bins:
        """Return no bins for a number of rows."""
        return cls(np.zeros(num_rows, dtype=np.int64), 0)

    def cross(self, other: Bins) -> Bins:
        """Return the cells of a grid, in the order of a matrix with `other` along its columns."""
        return Bins(self.which * other.number + other.which, self.number * other.number)

    @property
    def count(self) -> NDArray[np.float64]:
        """The number of rows in each bin."""
        return np.bincount(self.which, minlength=self.number)[: self.number].astype(np.float64)

    def mean(self, values: NDArray) -> NDArray[np.float64]:
        """Return the average in each bin of each column of (n, p), NaN without rows: (p, b)."""
        sums = [np.bincount(self.which, weights=v, minlength=self.number) for v in values.T]
        count = self.count
        return np.where(count > 0, np.array(sums)[:, : self.number], np.nan) / np.maximum(count, 1)

    def sd(self, values: NDArray) -> NDArray[np.float64]:
        """Return the root mean square of the deviations from each bin's average, (p, b)."""
        return np.sqrt(self.mean((values - self.mean(values).T[self.which]) ** 2))

    def least(self, values: NDArray) -> NDArray[np.float64]:
        """Return the smallest value in each bin of each column, NaN without rows: (p, b)."""
        result = np.full((values.shape[1], max(self.number, 1)), np.inf)
        for least, column in zip(result, values.T, strict=True):
            np.minimum.at(least, self.which, column)
        return np.where(np.isfinite(result), result, np.nan)[:, : self.number]


def _data_bins(X: NDArray, box: Domain) -> Bins:
    """Return bins along a single input, none if there are several."""
    return Bins.none(len(X)) if X.shape[1] != 1 else Bins.along(X, box, 0, DATA_BINS)


def _counts(
    values: NDArray[np.float64], lower: float, upper: float, number: int
) -> NDArray[np.float64]:
    """Return the number of values in even bins, for each column, (p, number)."""
    return np.array([Bins.between(column, lower, upper, number).count for column in values.T])
