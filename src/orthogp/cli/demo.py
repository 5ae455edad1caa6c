"""What `orthogp demo` shows: a forecast of the CO2 of Mauna Loa, and a fit to a million rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orthogp import GPRegressor, __version__
from orthogp.errors import InputError
from orthogp.kernels import RBF, Kernel, QuasiPeriodic, RationalQuadratic
from orthogp.report.plots import (
    BAND_SDS,
    BLACK,
    BLUE,
    GREY,
    VERMILLION,
    Band,
    Drawing,
    blend,
    compose,
    require_matplotlib,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The year in which the forecast of part one ends.
FORECAST_END = 2014.0
#: The number of years held out to check the forecast.
HELD_OUT_YEARS = 5.0
#: The lengthscale of the function of part two, on [0, 1].
LENGTHSCALE = 0.05
#: The standard deviation of the noise of part two.
NOISE_SD = 0.1

# The grid of the synthetic function. Straight lines between its values miss the function by some
# (spacing/lengthscale)^1.5 = 5e-6 of its standard deviation.
_GRID_SIZE = 2**16
# The length of the circle that the grid lies on: the covariance across it is below rounding.
_CIRCLE = 4
# The number of rows in the stretch that is magnified, which is at most a fifth of the range.
_LENS_ROWS = 1000
# The most rows drawn one by one; more are a blot.
_MOST_POINTS = 2000
# The number of columns of a terminal.
_LINE = 80
# Inches of a wide panel.
_WIDE = (11.2, 4.0)
# Inches of one of two panels side by side.
_HALF = (5.6, 4.2)

Array = NDArray[np.float64]
Write = Callable[[str], object]


def run_demo(out: Path, *, num_rows: int, seed: int, write: Write) -> None:
    """Write both parts of the demo line by line, and two plots."""
    require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The plots cannot go to {out} ({error.strerror}): give another directory."
        ) from error
    write(f"orthogp {__version__}")
    _plot(show_co2(write), out / "orthogp_co2.png", write)
    _plot(show_many_rows(num_rows, seed, write), out / "orthogp_rows.png", write)


def _plot(drawings: list[Drawing], path: Path, write: Write) -> None:
    save(compose(drawings), path)
    write(f"Plot: {path}")


def _heading(write: Write, text: str) -> None:
    write(f"\n{text}\n{'─' * len(text)}")


def score(band: Band, values: Array) -> tuple[float, float]:
    """Return the root mean squared error of means, and the share of values in the 95 % band."""
    inside = (band.lower <= values) & (values <= band.upper)
    return float(np.sqrt(np.mean((band.mean - values) ** 2))), float(np.mean(inside))


# ---------------------------------------------------------------------- part one


def load_co2() -> tuple[Array, Array]:
    """Return decimal years (2225, 1) and the weekly CO2 of Mauna Loa in ppm (2225,)."""
    file = resources.files("orthogp") / "data" / "maunaloa_co2_weekly.npz"
    with file.open("rb") as stream, np.load(stream) as record:
        return record["X"], record["y"]


def co2_kernel() -> Kernel:
    """Return trend + season + medium-term swings, in years and ppm².

    The kernel and its starting values are those of Rasmussen and Williams (2006, section 5.4.3),
    who fitted them to all of the record, the years held out below included. Learning starts there,
    and changes everything but the season's period.
    """
    trend = RBF(variance=66.0**2, lengthscale=67.0)
    season = QuasiPeriodic(variance=2.4**2, lengthscale=90.0, period=1.0, shape_lengthscale=1.3)
    swings = RationalQuadratic(variance=0.66**2, lengthscale=1.2, alpha=0.78)
    return trend + season.fix("period") + swings


def show_co2(write: Write) -> list[Drawing]:
    """Return drawings of a forecast, and of its check on years held out."""
    X, y = load_co2()
    year = X[:, 0]
    early = year <= year[-1] - HELD_OUT_YEARS
    _heading(write, f"1. CO2 at Mauna Loa: {len(y):,} weeks, {int(year[0])} to {int(year[-1])}")
    write("Kernel of Rasmussen and Williams: trend + season + swings (demo.co2_kernel).\n")

    # The lattice, whose certificate the demo is to show.
    model = GPRegressor(co2_kernel(), domain=(year[0], FORECAST_END), solver="dense")
    model.fit(X[early], y[early])
    rmse, coverage = score(_observations(model, year[~early]), y[~early])
    text = (
        f"Check: fitted to the first {early.sum():,} weeks, it forecasts the last {(~early).sum()} "
        f"({HELD_OUT_YEARS:g} years) with RMSE {rmse:.2f} ppm; {coverage:.0%} of them lie within "
        "its 95% band. The kernel's form and starting values come from a published fit that knew "
        "those years; its parameters were learned without them."
    )
    write(textwrap.fill(text, _LINE) + "\n")
    check = _observations(model, np.linspace(year[early][-1], year[-1], 400))

    # The model keeps sums of its rows, and those of the weeks held out simply join them.
    model.partial_fit(X[~early], y[~early])
    write(f"Forecast to {FORECAST_END:.0f}, with those weeks added by partial_fit:\n")
    write(model.summary())
    mean, std = model.predict_integral([[FORECAST_END - 1]], [[FORECAST_END]])
    write(
        f"\nMean of {FORECAST_END - 1:.0f} as forecast: "
        f"{mean[0]:.1f} ± {BAND_SDS * std[0]:.1f} ppm (95%)"
    )
    forecast = _observations(model, np.linspace(year[-1], FORECAST_END, 800))
    return [
        Drawing("The record and its forecast.", partial(_draw_forecast, year, y, forecast), _HALF),
        Drawing("A forecast of the record's end.", partial(_draw_check, year, y, check), _HALF),
    ]


def _observations(model: GPRegressor, x: Array) -> Band:
    """Return the band of new observations at some inputs."""
    return Band(x, *model.predict(x[:, None], return_std=True, include_noise=True))


def _draw_forecast(x: Array, y: Array, forecast: Band, axes: Axes) -> None:
    axes.plot(x, y, color=BLACK, linewidth=0.7, label="record")
    _draw_band(axes, forecast, "forecast")
    title = f"Weekly CO₂ at Mauna Loa, forecast to {FORECAST_END:.0f}"
    axes.set(title=title, xlabel="year", ylabel="CO₂ / ppm")
    axes.margins(x=0.01)
    axes.legend(loc="upper left")


def _draw_check(x: Array, y: Array, check: Band, axes: Axes) -> None:
    begin = check.x[0]
    shown = x >= begin - 0.4 * (check.x[-1] - begin)
    axes.plot(x[shown], y[shown], ".", color=BLACK, markersize=3, label="record")
    _draw_band(axes, check, "forecast made at the dashed line")
    axes.axvline(begin, color=GREY, linewidth=0.9, linestyle="--")
    axes.set(title=f"Check: the last {x[-1] - begin:.0f} years, forecast", xlabel="year")
    axes.margins(x=0.02)
    _add_legend_above(axes, rows=3)


# ---------------------------------------------------------------------- part two


def draw_matern32(lengthscale: float, rng: np.random.Generator) -> Callable[[Array], Array]:
    """Return a function on [0, 1] drawn from a Matérn-3/2 process of variance one.

    Its values on a fine even grid are exact, by circulant embedding: on a circle the covariance
    matrix is diagonal in Fourier's basis. Between them it is straight.
    """
    size = _CIRCLE * _GRID_SIZE
    steps = np.arange(size)
    z = np.sqrt(3.0) * np.minimum(steps, size - steps) / _GRID_SIZE / lengthscale
    eigenvalues = np.real(np.fft.fft((1 + z) * np.exp(-z)))
    noise = rng.standard_normal(size) + 1j * rng.standard_normal(size)
    # Rounding may turn the smallest eigenvalues negative.
    coefficients = np.sqrt(np.maximum(eigenvalues, 0.0) / size) * noise
    values = np.real(np.fft.fft(coefficients))[: _GRID_SIZE + 1]
    grid = np.linspace(0.0, 1.0, _GRID_SIZE + 1)
    return lambda x: np.interp(x, grid, values)


def show_many_rows(num_rows: int, seed: int, write: Write) -> list[Drawing]:
    """Return drawings of a fit to rows made on the spot, of a stretch of it, and of its errors."""
    rng = np.random.default_rng(seed)
    truth = draw_matern32(LENGTHSCALE, rng)
    x = rng.random(num_rows)
    y = truth(x) + NOISE_SD * rng.standard_normal(num_rows)
    _heading(write, f"2. {num_rows:,} rows made on the spot")
    write(f"A Matérn-3/2 function of lengthscale {LENGTHSCALE} on [0, 1], noise sd {NOISE_SD}.\n")

    model = GPRegressor().fit(x[:, None], y)
    stretch = min(_LENS_ROWS / num_rows, 0.2)
    band, lens = (
        Band(at, *model.predict(at[:, None], return_std=True))
        for at in (np.linspace(0, 1, 5001), np.linspace(0.5, 0.5 + stretch, 801))
    )
    rmse, coverage = score(band, truth(band.x))
    write(model.summary() + "\n")
    text = f"RMSE {rmse:.2g}; {coverage:.0%} of it lies within the 95% band."
    write(textwrap.fill(f"Against the function itself: {text}", _LINE))
    magnified = partial(_draw_lens, x, y, lens, truth(lens.x))
    return [
        Drawing("All rows and the mean of f.", partial(_draw_rows, x, y, band), _WIDE),
        Drawing("A short stretch, magnified.", magnified, _HALF),
        Drawing("Errors of the mean.", partial(_draw_errors, band, truth(band.x)), _HALF),
    ]


def _draw_rows(x: Array, y: Array, band: Band, axes: Axes) -> None:
    """Draw the number of rows in each cell of a grid, and the mean."""
    # From a light grey on: a single row must be seen.
    look = {"cmap": blend("#dddddd", "#333333"), "norm": require_matplotlib().colors.LogNorm()}
    *_, cells = axes.hist2d(x, y, bins=(360, 140), cmin=1, **look)
    bar = axes.figure.colorbar(cells, ax=axes, pad=0.01, aspect=30, label="rows per cell")
    bar.outline.set_visible(False)
    bar.ax.grid(False)
    axes.plot(band.x, band.mean, color=BLUE, linewidth=1.3, label="mean of f")
    axes.set(title=f"A Gaussian process fitted to {len(x):,} rows", xlabel="x", ylabel="y")
    axes.margins(x=0)
    _add_legend_above(axes, rows=1)


def _draw_lens(x: Array, y: Array, band: Band, truth: Array, axes: Axes) -> None:
    """Draw a short stretch so that the band of f fills it; most rows lie above and below."""
    inside = np.flatnonzero((x >= band.x[0]) & (x <= band.x[-1]))[:_MOST_POINTS]
    axes.plot(x[inside], y[inside], ".", color=GREY, markersize=2, alpha=0.5, label="rows")
    _draw_band(axes, band, "mean of f")
    axes.plot(band.x, truth, color=VERMILLION, linewidth=1.3, linestyle="--", label="truth")
    low, high = min(band.lower.min(), truth.min()), max(band.upper.max(), truth.max())
    margin = 0.5 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    parts = 1 / (band.x[-1] - band.x[0])
    axes.set(title=f"1/{parts:,.0f} of the range, magnified", xlabel="x", ylabel="y")
    axes.margins(x=0)
    _add_legend_above(axes, rows=2, columns=2)


def _draw_errors(band: Band, truth: Array, axes: Axes) -> None:
    Band(band.x, np.zeros_like(truth), band.std).fill(axes, "95 % band")
    look = {"color": VERMILLION, "linewidth": 0.5, "label": "mean − truth"}
    axes.plot(band.x, band.mean - truth, **look)
    axes.set(title="Errors of the mean of f", xlabel="x", ylabel="mean − truth")
    axes.margins(x=0)
    _add_legend_above(axes, rows=1, columns=2)


def _draw_band(axes: Axes, band: Band, label: str) -> None:
    band.fill(axes, "95 % band")
    axes.plot(band.x, band.mean, color=BLUE, linewidth=1.1, label=label)


def _add_legend_above(axes: Axes, *, rows: int, columns: int = 1) -> None:
    """Add a legend in a strip of its own above the data."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.11 * rows * (high - low))
    axes.legend(loc="upper left", ncols=columns, markerscale=3)
