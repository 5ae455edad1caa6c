"""What is read of files: columns by name, date-times as numbers, pieces for any process.

Date-times in columns of data frames become days since the first day, and back. The scale of each
column is kept in the model (`time_scales_`), so that predictions take dates, and figures and
reports show them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, require
from orthogp.rows import MAX_DIMS

#: The cells that stand for a missing value, in lower case, besides those that read as NaN.
MISSING = frozenset({"", "na", "n/a", "#n/a", "null", "none"})
# The largest number of column names in a sentence.
_MOST_NAMES = 30
#: The unit of dates in data frames.
UNIT = "days"
_MONTH = re.compile(r"\d{4}-\d{2}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The lengths of the units of time in microseconds, the shortest first.
_MICROSECONDS = {
    "microseconds": 1,
    "seconds": 10**6,
    "minutes": 60 * 10**6,
    "hours": 3600 * 10**6,
    "days": 86400 * 10**6,
}
#: The units of time.
UNITS = tuple(_MICROSECONDS)
# The smallest number of units that the data span, for the unit to be short enough.
_FEWEST_UNITS = 50


class TimeScale(NamedTuple):
    """Numbers that stand for date-times: units since the beginning of a day, in UTC."""

    #: "days", "hours", "minutes", "seconds" or "microseconds".
    unit: str
    #: The day that is zero, as in "2024-01-31".
    origin: str

    @classmethod
    def spanning(cls, lower: float, upper: float) -> TimeScale:
        """Return the scale for date-times between two, in microseconds since 1970.

        The origin is the first day; the unit is the longest that the data span 50 times.
        """
        day = str(np.datetime64(int(lower), "us").astype("datetime64[D]"))
        for unit in ("days", "hours", "minutes"):
            if upper - lower >= _FEWEST_UNITS * _MICROSECONDS[unit]:
                return cls(unit, day)
        return cls("seconds", day)

    @property
    def unit_microseconds(self) -> int:
        """The length of a unit."""
        return _MICROSECONDS[self.unit]

    @property
    def origin_microseconds(self) -> int:
        """The origin, since 1970."""
        return int(np.datetime64(self.origin, "us").astype(np.int64))

    def number(self, text: str) -> float:
        """Return the number of a date-time in ISO 8601, or raise `ValueError`."""
        since = parse_datetime(text) - _EPOCH
        microseconds = since // timedelta(microseconds=1) - self.origin_microseconds
        return microseconds / self.unit_microseconds

    def numbers(self, values: NDArray) -> NDArray[np.float64]:
        """Return the numbers of date-times (datetime64), NaN for NaT; numbers stay as they are."""
        if values.dtype.kind != "M":
            return values.astype(np.float64)
        microseconds = values.astype("datetime64[us]").astype(np.int64) - self.origin_microseconds
        return np.where(np.isnat(values), np.nan, microseconds / self.unit_microseconds)

    def rescaled(self, values: NDArray[np.float64], source: TimeScale) -> NDArray[np.float64]:
        """Return numbers of another scale as numbers of this one."""
        start = source.origin_microseconds - self.origin_microseconds
        return (values * source.unit_microseconds + start) / self.unit_microseconds

    def datetimes(self, values: NDArray[np.float64]) -> NDArray[np.datetime64]:
        """Return the date-times of numbers, to the microsecond; NaN becomes NaT."""
        known = np.isfinite(values)
        microseconds = np.rint(np.where(known, values, 0.0) * self.unit_microseconds)
        times = (microseconds.astype(np.int64) + self.origin_microseconds).astype("datetime64[us]")
        times[~known] = np.datetime64("NaT")
        return times

    def describe(self) -> str:
        """Return the scale in words: "days since 2024-01-31"."""
        return f"{self.unit} since {self.origin}"


class Categories(NamedTuple):
    """Numbers that stand for texts: the place of each in a list, counted from 0."""

    levels: tuple[str, ...]

    def number(self, text: str) -> float:
        """Return the number of a text, or raise `ValueError`."""
        return float(self.levels.index(text.strip()))

    def texts(self, values: NDArray[np.float64]) -> NDArray[np.object_]:
        """Return the texts of numbers, `None` for NaN."""
        return np.array(
            [None if np.isnan(value) else self.levels[int(value)] for value in values], object
        )

    def describe(self) -> str:
        """Return what the texts are: "one of 3 categories (blue, green, red)"."""
        return f"one of {len(self.levels)} categories ({_some(self.levels)})"


#: What the numbers of a column stand for.
Scale = TimeScale | Categories
#: Exact in double precision; in use until a unit is chosen.
SINCE_1970 = TimeScale("microseconds", "1970-01-01")
#: In use until all texts are known.
UNLISTED = Categories(())


def scale_from_json(value: dict[str, Any] | None) -> Scale | None:
    """Return the scale with the fields of a JSON record (`_asdict`), `None` for none."""
    if value is None:
        return None
    if "levels" in value:
        return Categories(tuple(map(str, value["levels"])))
    return TimeScale(str(value["unit"]), str(value["origin"]))


def parse_datetime(text: str) -> datetime:
    """Return a date-time in ISO 8601, taken as UTC unless it names its zone.

    A month is its first day.
    """
    text = text.strip()
    value = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


@dataclass(frozen=True)
class Reading:
    """The columns that are read, and how."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    weights: str | None
    #: For each input, what its numbers stand for, if it holds date-times or categories.
    times: tuple[Scale | None, ...]
    #: Whether rows that cannot be read are counted instead of refused.
    skip_bad: bool = False
    #: Whether rows that lack a value stay, with NaN in its place.
    keep_missing: bool = False
    covariates: tuple[str, ...] = ()
    #: Columns of any content that are handed on as they are; only with `keep_missing`.
    keep: tuple[str, ...] = ()
    #: What the last of the targets says: the exposure, offset or trials of each row.
    size: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns: inputs, covariates, targets, weights."""
        weights = () if self.weights is None else (self.weights,)
        return (*self.inputs, *self.covariates, *self.targets, *weights)

    @property
    def scales(self) -> tuple[Scale | None, ...]:
        """The scale of every column, `None` for those that hold numbers."""
        return (*self.times, *(None,) * (len(self.names) - len(self.inputs)))

    @property
    def categories(self) -> dict[int, Categories]:
        """The inputs that hold categories, by their places."""
        return {j: scale for j, scale in enumerate(self.times) if isinstance(scale, Categories)}

    def only_inputs(self) -> Reading:
        """Return the reading of the input columns alone."""
        return replace(self, targets=(), weights=None, covariates=(), size=None)


class Piece(NamedTuple):
    """A stretch of one file: a unit of work."""

    path: str
    #: The name of the file in messages.
    label: str
    kind: Literal["parquet", "text"]
    #: The bytes of the file, its time of change in microseconds, and a code of its first and last
    #: bytes, when it was opened.
    size: int
    modified: int
    content: str
    #: Row groups of a Parquet file, bytes of a text file (`end` -1: to its end).
    begin: int
    end: int
    #: The number of rows of the first row group that have been read already.
    skip: int = 0
    #: The number of lines of the text file before `begin`; -1 if they were not counted.
    line: int = -1


class Tally(NamedTuple):
    """The numbers of rows that were used, that lack a value, and that cannot be read."""

    used: int = 0
    missing: int = 0
    bad: int = 0
    #: Where the first row is that cannot be read.
    first_bad: str | None = None

    @property
    def met(self) -> int:
        """The number of all rows."""
        return self.used + self.missing + self.bad

    def plus(self, other: Tally) -> Tally:
        """Return both together."""
        return Tally(
            self.used + other.used,
            self.missing + other.missing,
            self.bad + other.bad,
            self.first_bad or other.first_bad,
        )


class Block(NamedTuple):
    """Rows as they come from a file."""

    #: The columns of a `Reading`, in its order, (k, n).
    columns: NDArray[np.float64]
    tally: Tally
    #: The part of the piece that is still to be read.
    rest: Piece
    #: The columns that are handed on as they are: texts, or arrays of pyarrow.
    kept: tuple[Any, ...] = ()


def complete_rows(
    columns: NDArray[np.float64], reading: Reading, bad: int = 0, first_bad: str | None = None
) -> tuple[NDArray[np.float64], Tally]:
    """Return the rows without NaN (all rows if `reading` keeps them), and the tally."""
    met = columns.shape[1]
    if not reading.keep_missing:
        # A sum is NaN if an entry is, and costs less than looking at each.
        with np.errstate(invalid="ignore", over="ignore"):
            suspicious = ~np.isfinite(columns.sum(axis=1))
        if suspicious.any() and (missing := np.isnan(columns[suspicious]).any(axis=0)).any():
            columns = columns[:, ~missing]
    used = columns.shape[1]
    return columns, Tally(used, met - used, bad, first_bad)


def has_arrow() -> bool:
    """Return whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def require_arrow(what: str) -> None:
    """Raise `InputError` that says how to install pyarrow, unless it is there."""
    require("pyarrow", what, "files")


# ---------------------------------------------------------------------- names


def choose_inputs(
    label: str,
    names: Sequence[str],
    targets: Sequence[str],
    inputs: Sequence[str] | None,
    weights: str | None = None,
    covariates: Sequence[str] = (),
) -> list[str]:
    """Return the input columns: those named, or all others if they are few."""
    taken = (*targets, *(() if weights is None else (weights,)), *covariates)
    for name in taken:
        find_column(label, names, name)
    if len(set(taken)) < len(taken):
        raise InputError(
            f"Targets, weights and covariates must be different columns, got {listed(taken)}."
        )
    if inputs is None:
        # A column without a name is a counter of rows.
        others = [name for name in names if name and name not in taken]
        besides = listed([repr(name) for name in taken])
        if not others:
            raise InputError(f"{label} has no column besides {besides} to predict it from.")
        if len(others) > MAX_DIMS:
            raise InputError(
                f"{label} has {len(others)} columns besides {besides}: name those to predict from "
                f"by --inputs ({_some(others)}); more than {MAX_DIMS} add up, one function of each."
            )
        return others
    if not inputs:
        raise InputError("inputs must name at least one column, got none.")
    for name in taken:
        if name in inputs:
            role = "target" if name in targets else "weights"
            role = "covariate" if name in covariates else role
            raise InputError(f"{name!r} is both {role} and input: leave it out of the inputs.")
    if len(set(inputs)) < len(inputs):
        raise InputError(f"The inputs must differ, got {listed(inputs)}.")
    return list(inputs)


def find_column(label: str, names: Sequence[str], name: str) -> int:
    """Return the position of a column."""
    count = list(names).count(name)
    if count == 0:
        raise InputError(f"{label} has no column {name!r}; its columns are {_some(names)}.")
    if count > 1:
        raise InputError(f"{label} has {count} columns named {name!r}: rename them.")
    return list(names).index(name)


def listed(names: Sequence[str]) -> str:
    """Return names with commas between."""
    return ", ".join(names)


def _some(names: Sequence[str]) -> str:
    """Return names with commas between, the first of them if there are very many."""
    rest = len(names) - _MOST_NAMES
    return listed(names) if rest <= 0 else f"{listed(names[:_MOST_NAMES])} and {rest} others"


# ---------------------------------------------------------------------- data frames


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
