"""What `--domain` says, in the numbers that columns of a file stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import numpy as np

from orthogp.cli.options import Interval
from orthogp.errors import InputError
from orthogp.files.source import RowSource
from orthogp.files.times import SINCE_1970, TimeScale
from orthogp.inference import Domain


def has_dates(domain: Sequence[Interval] | None) -> bool:
    """Return whether an interval is between dates."""
    return domain is not None and any(isinstance(low, date) for low, _ in domain)


def domain_in_numbers(
    domain: Sequence[Interval], inputs: Sequence[str], times: Sequence[TimeScale | None]
) -> Domain:
    """Return the box of a domain, whose last days are in it, on the scales of the inputs."""
    if len(domain) != len(inputs):
        raise InputError(
            f"The domain needs one interval for each of {', '.join(inputs)}, got {len(domain)}."
        )
    edges = []
    for name, (low, high), scale in zip(inputs, domain, times, strict=True):
        if isinstance(low, date) and isinstance(high, date):
            if scale is None:
                raise InputError(
                    f"The domain of {name!r} must be in numbers as its column is, got dates: give "
                    "an interval such as 0:10."
                )
            edges.append(scale.rescaled(_microseconds(low, high), SINCE_1970))
        else:
            edges.append(np.array([low, high], dtype=np.float64))
    lower, upper = np.array(edges).T
    return Domain(lower, upper)


def scaled_for(source: RowSource, domain: Sequence[Interval]) -> RowSource:
    """Return a source whose date-times have units that a domain in dates decides.

    So pieces of one data set, summed apart for the same domain, are on the same scales.
    """
    times = list(source.reading.times)
    for j, ((low, high), scale) in enumerate(zip(domain, times)):
        if scale != SINCE_1970:
            continue
        if not (isinstance(low, date) and isinstance(high, date)):
            raise InputError(
                f"The domain of {source.reading.inputs[j]!r} must be in dates as its column is, "
                "got numbers whose unit is yet to be chosen: give an interval such as "
                "2024-01-01:2024-12-31."
            )
        times[j] = TimeScale.spanning(*_microseconds(low, high))
    return replace(source, reading=replace(source.reading, times=tuple(times)))


def _microseconds(low: date, high: date) -> np.ndarray:
    """Return the beginning of the first and the end of the last day, since 1970."""
    days = np.array([low, high], dtype="datetime64[D]") + np.array([0, 1])
    return days.astype("datetime64[us]").astype(np.float64)
