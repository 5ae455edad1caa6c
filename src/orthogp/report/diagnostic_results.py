"""Results of a model's checks: arrays whose size does not grow with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError

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
#: Bins of predicted probabilities.
PROBABILITY_BINS = 10
#: The probabilities of the central intervals whose coverage is counted.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
#: Standardised residuals are counted from −RESIDUAL_REACH to RESIDUAL_REACH, the last bins open.
RESIDUAL_REACH = 5.0

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
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"kind": self.kind, **own}

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
