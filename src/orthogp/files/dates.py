"""Date-times as inputs: columns of data frames become days since the first day, and back.

The scale of each column is kept in the model (`time_scales_`), so that predictions take dates, and
figures and reports show them.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.files.columns import Scale, TimeScale, scale_from_json

#: The unit of dates in data frames.
UNIT = "days"


def dates_as_numbers(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return X with its date-times as numbers; on `reset` the estimator learns their scales.

    Columns of datetime64, pandas' and polars' date-times with and without zones, and Python's dates
    are taken; zones become UTC.
    """
    if reset:
        vars(estimator).pop("time_scales_", None)
    found = _date_columns(X)
    if not found:
        return X
    number = np.shape(X)[1] if len(np.shape(X)) > 1 else 1
    scales = time_scales(estimator) if not reset else (None,) * number
    if len(scales) != number:
        # scikit-learn says what is wrong with the columns.
        scales = (None,) * number
    if reset:
        scales = tuple(_scale(found[i]) if i in found else None for i in range(number))
        estimator.time_scales_ = scales
    numbers = {}
    for i, values in found.items():
        scale = scales[i]
        if scale is None:
            raise InputError(
                f"Column {_name(X, i)} holds date-times, but was fitted as numbers: "
                "give numbers, or fit it to dates."
            )
        numbers[i] = scale.numbers(values)
    return _with_columns(X, numbers)


def time_scales(model: Any) -> tuple[TimeScale | None, ...]:
    """Return the scale of each column of X, `None` for those that hold no date-times."""
    return tuple(own if isinstance(own, TimeScale) else None for own in scales_of(model))


def scales_of(model: Any) -> tuple[Scale | None, ...]:
    """Return what the numbers of each column of X stand for, `None` for themselves."""
    own = getattr(model, "time_scales_", None)
    if own is not None:
        return own
    times = (getattr(model, "about_", None) or {}).get("times")
    return tuple(map(scale_from_json, times or [None] * model.n_features_in_))


def domain_as_numbers(estimator: Any, domain: Any, columns: NDArray[np.int64]) -> Any:
    """Return a domain (lower, upper) with its dates as numbers of the kernel's columns."""
    try:
        edges = [np.atleast_1d(np.asarray(edge, dtype=object)) for edge in domain]
    except (TypeError, ValueError):
        # Said by whoever checks it.
        return domain
    if not any(isinstance(value, str | date | np.datetime64) for edge in edges for value in edge):
        return domain
    scales = [time_scales(estimator)[int(column)] for column in columns]

    def number(value: Any, scale: TimeScale | None) -> Any:
        if scale is None or not isinstance(value, str | date | np.datetime64):
            return value
        return float(scale.numbers(np.array([value], dtype="datetime64[us]"))[0])

    return tuple(
        [number(value, scale) for value, scale in zip(np.broadcast_to(edge, len(scales)), scales)]
        for edge in edges
    )


def _date_columns(X: Any) -> dict[int, NDArray[np.datetime64]]:
    """Return the columns that hold date-times, by their numbers."""
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None or not hasattr(X, "columns"):
        array = X if isinstance(X, np.ndarray) else None
        if array is None or array.dtype.kind not in "Mm":
            return {}
        if array.dtype.kind == "m":
            raise _no_durations("X")
        array = array.reshape(len(array), -1)
        return {i: array[:, i] for i in range(array.shape[1])}
    found = {}
    for i, (name, dtype) in enumerate(zip(X.columns, dtypes)):
        kind = str(dtype).lower()
        if kind.startswith(("timedelta", "duration")):
            raise _no_durations(repr(str(name)))
        if kind.startswith(("datetime", "date", "timestamp")):
            found[i] = _as_datetime64(X[name])
        elif kind == "object" and len(X) and isinstance(next(iter(X[name])), date):
            found[i] = np.array(list(X[name]), dtype="datetime64[us]")
    return found


def _as_datetime64(column: Any) -> NDArray[np.datetime64]:
    """Return a column of date-times in UTC, to the microsecond."""
    zoned = getattr(getattr(column, "dt", None), "tz", None)
    if zoned is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return np.asarray(column.to_numpy()).astype("datetime64[us]")


def _scale(values: NDArray[np.datetime64]) -> TimeScale:
    known = values[~np.isnat(values)]
    first = known.min() if len(known) else np.datetime64("1970-01-01")
    return TimeScale(UNIT, str(first.astype("datetime64[D]")))


def _with_columns(X: Any, numbers: dict[int, NDArray[np.float64]]) -> Any:
    if isinstance(X, np.ndarray):
        return np.stack([numbers[i] for i in sorted(numbers)], axis=1)
    names = list(X.columns)
    if hasattr(X, "with_columns"):
        return X.with_columns([type(X[names[i]])(names[i], own) for i, own in numbers.items()])
    return X.assign(**{names[i]: own for i, own in numbers.items()})


def _no_durations(name: str) -> InputError:
    return InputError(f"{name} holds durations: turn them into numbers of a unit that suits them.")


def _name(X: Any, column: int) -> str:
    return repr(str(X.columns[column])) if hasattr(X, "columns") else str(column)
