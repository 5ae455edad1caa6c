"""Forecasts from rolling origins, against a seasonal naive forecast and, if installed, Prophet.

    python benchmarks/forecasting.py [DIR]

Two series: weekly CO₂ at Mauna Loa, two years ahead from nine origins, which comes with the
package; hourly household power, a week ahead from six origins, if DIR holds household_1d.npz. The
kernel is one recipe for both, written down before any error was seen: a trend, the seasons that
the calendar names, and what a few days, or weeks, have in common. The naive forecast repeats the
last season; Prophet has its defaults.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orthogp import GPRegressor
from orthogp.kernels import Matern12, Matern32, seasonal

# Half the width of a 95 % interval, in standard deviations.
HALF_WIDTH = 1.959964

Forecast = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


class Series(NamedTuple):
    """A series, its origins and horizons, and what is known of it beforehand, in days."""

    name: str
    times: pd.DatetimeIndex
    values: NDArray[np.float64]
    origins: list[pd.Timestamp]
    horizon: pd.Timedelta
    history: pd.Timedelta
    seasons: tuple[str, ...]
    #: The season that the naive forecast repeats.
    repeated: pd.Timedelta
    #: Lengthscales to start from, of the trend and of what passes.
    trend: float
    passing: float


def process(
    series: Series, times: pd.DatetimeIndex, y: NDArray, ahead: pd.DatetimeIndex
) -> Forecast:
    """Return mean and 95 % interval of the Gaussian process."""
    variance = y.var()
    kernel = Matern32(variance, series.trend) + Matern12(variance / 3, series.passing)
    kernel = kernel + seasonal(*series.seasons, variance=variance / 3)
    model = GPRegressor(kernel, mean="linear").fit(pd.DataFrame({"time": times}), y)
    new = pd.DataFrame({"time": ahead})
    mean, sd = model.predict(new, return_std=True, include_noise=True)
    return mean, mean - HALF_WIDTH * sd, mean + HALF_WIDTH * sd


def naive(series: Series, times: pd.DatetimeIndex, y: NDArray, ahead: pd.DatetimeIndex) -> Forecast:
    """Return the value a whole number of seasons before, and the spread of last season's errors."""

    def before(at: pd.DatetimeIndex, known: int) -> NDArray[np.float64]:
        last = times[known - 1]
        back = np.ceil((at - last) / series.repeated) * series.repeated
        at = at - pd.to_timedelta(np.maximum(back, series.repeated))
        return y[:known][times[:known].get_indexer(at, method="nearest")]

    known = int(np.searchsorted(times, times[-1] - series.repeated))
    spread = float(np.std(y[known:] - before(times[known:], known)))
    mean = before(ahead, len(times))
    return mean, mean - HALF_WIDTH * spread, mean + HALF_WIDTH * spread


def prophet(
    series: Series, times: pd.DatetimeIndex, y: NDArray, ahead: pd.DatetimeIndex
) -> Forecast:
    """Return Prophet's forecast with its defaults, and its 95 % interval."""
    from prophet import Prophet

    logging.getLogger("cmdstanpy").setLevel(logging.ERROR)
    model = Prophet(interval_width=0.95).fit(pd.DataFrame({"ds": times, "y": y}))
    found = model.predict(pd.DataFrame({"ds": ahead}))
    return tuple(found[name].to_numpy() for name in ("yhat", "yhat_lower", "yhat_upper"))


def co2() -> Series:
    """Return weekly CO₂ at Mauna Loa, in ppm."""
    with np.load(str(files("orthogp") / "data" / "maunaloa_co2_weekly.npz")) as data:
        years, values = data["X"][:, 0], data["y"]
    times = pd.DatetimeIndex(np.datetime64("1958-01-01") + _days((years - 1958) * 365.2425))
    origins = [pd.Timestamp(year, 1, 1) for year in range(1966, 2000, 4)]
    forever, years_2 = pd.Timedelta(days=40_000), pd.Timedelta(days=730)
    year = pd.Timedelta(days=365.2425)
    own = ("yearly",), year, 3652.0, 30.0
    return Series("CO2, two years ahead", times, values, origins, years_2, forever, *own)


def household(folder: Path) -> Series:
    """Return hourly means of household power, in kW."""
    with np.load(folder / "household_1d.npz") as data:
        hours, y = (data["X"][:, 0] // 60).astype(np.int64), data["y"]
    counts, sums = np.bincount(hours), np.bincount(hours, y)
    known = np.flatnonzero(counts > 30)
    times = pd.Timestamp("2006-12-16 17:24") + pd.to_timedelta(known, unit="h")
    origins = [times[0] + pd.Timedelta(hours=h) for h in range(2000, 34_000, 6000)]
    week = pd.Timedelta(days=7)
    own = ("daily", "weekly"), week, 30.0, 0.2
    values = sums[known] / counts[known]
    return Series(
        "power, a week ahead", pd.DatetimeIndex(times), values, origins, week, 7 * week, *own
    )


def _days(days: NDArray[np.float64]) -> NDArray[np.timedelta64]:
    return np.rint(days).astype("timedelta64[D]")


def main() -> None:
    """Print the errors of all forecasts."""
    methods: dict[str, Callable[..., Forecast]] = {"process": process, "seasonal naive": naive}
    if find_spec("prophet") is not None:
        methods["Prophet's defaults"] = prophet
    every = [co2()]
    if len(sys.argv) > 1:
        every.append(household(Path(sys.argv[1])))
    print("| series | forecast | RMSE | 95 % intervals cover | mean width | seconds |")
    print("|---|---|---|---|---|---|")
    for series in every:
        for name, method in methods.items():
            errors, inside, widths, began = [], [], [], time.perf_counter()
            for origin in series.origins:
                seen = (series.times < origin) & (series.times >= origin - series.history)
                coming = (series.times >= origin) & (series.times < origin + series.horizon)
                past, y = series.times[seen], series.values[seen]
                mean, lower, upper = method(series, past, y, series.times[coming])
                truth = series.values[coming]
                errors.append(truth - mean)
                inside.append((lower <= truth) & (truth <= upper))
                widths.append(upper - lower)
            seconds = (time.perf_counter() - began) / len(series.origins)
            rmse = np.sqrt(np.mean(np.concatenate(errors) ** 2))
            cover, width = np.mean(np.concatenate(inside)), np.mean(np.concatenate(widths))
            print(
                f"| {series.name} | {name} | {rmse:.3f} | {100 * cover:.0f} % | {width:.2f} | "
                f"{seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
