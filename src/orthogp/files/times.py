"""Date-times as numbers, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS = {
    "microseconds": 1,
    "seconds": 10**6,
    "minutes": 60 * 10**6,
    "hours": 3600 * 10**6,
    "days": 86400 * 10**6,
}
# A unit is long enough if the data span so many of them.
_FEWEST_UNITS = 50


class TimeScale(NamedTuple):
    """Numbers that stand for date-times: so many units since an origin, in UTC.

    Attributes
    ----------
    unit : str
        "days", "hours", "minutes", "seconds" or "microseconds".
    origin : str
        The day that is zero, as in "2024-01-31".
    """

    unit: str
    origin: str

    @classmethod
    def spanning(cls, lower: float, upper: float) -> TimeScale:
        """Return the scale for date-times between two, in microseconds since 1970.

        The origin is the first day, the unit the longest that gives more than a few of them.
        """
        day = np.datetime64(int(lower), "us").astype("datetime64[D]")
        for unit in ("days", "hours", "minutes"):
            if upper - lower >= _FEWEST_UNITS * _MICROSECONDS[unit]:
                return cls(unit, str(day))
        return cls("seconds", str(day))

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

    def rescaled(self, values: NDArray[np.float64], source: TimeScale) -> NDArray[np.float64]:
        """Return numbers of another scale as numbers of this one."""
        start = source.origin_microseconds - self.origin_microseconds
        return (values * source.unit_microseconds + start) / self.unit_microseconds

    def datetimes(self, values: NDArray[np.float64]) -> NDArray[np.datetime64]:
        """Return the date-times of numbers, to the microsecond; NaN is not a time."""
        known = np.isfinite(values)
        microseconds = np.rint(np.where(known, values, 0.0) * self.unit_microseconds)
        times = (microseconds.astype(np.int64) + self.origin_microseconds).astype("datetime64[us]")
        times[~known] = np.datetime64("NaT")
        return times

    def describe(self) -> str:
        """Return the scale in words: "days since 2024-01-31"."""
        return f"{self.unit} since {self.origin}"

    def to_json(self) -> dict[str, str]:
        """Return the scale as JSON knows it."""
        return {"unit": self.unit, "origin": self.origin}

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> TimeScale | None:
        """Return the scale that `to_json` gave, `None` for none."""
        return None if value is None else cls(str(value["unit"]), str(value["origin"]))


#: Exact in double precision, for as long as no unit has been chosen.
SINCE_1970 = TimeScale("microseconds", "1970-01-01")


def parse_datetime(text: str) -> datetime:
    """Return a date-time in ISO 8601, taken as UTC unless it says otherwise."""
    value = datetime.fromisoformat(text.strip())
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
