"""`orthogp demo`: a forecast of the CO2 of Mauna Loa, and a fit to a million rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from orthogp.cli.console import debug_option

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from orthogp import GPRegressor
    from orthogp.kernels import Kernel
    from orthogp.report.plots import Band

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

Write = Callable[[str], object]


@click.command(epilog="Example: orthogp demo --out plots --rows 100000")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where the plots go; made if missing.  [default: the current directory]",
)
@click.option(
    "--rows",
    type=click.IntRange(min=100),
    default=1_000_000,
    show_default=True,
    help="The number of rows of the second part.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of the rows of the second part.",
)
@debug_option
def demo(out: Path, rows: int, seed: int) -> None:
    """Forecast the CO2 of Mauna Loa, then fit a million rows.

    Prints both models and their errors, and writes two plots. Takes about a minute.
    """
    run_demo(out, num_rows=rows, seed=seed, write=click.echo)


class Score(NamedTuple):
    """The root mean squared error of predictions, and the share of values in their 95 % band."""

    rmse: float
    coverage: float

    @classmethod
    def of(cls, band: Band, values: NDArray[np.float64]) -> Score:
        """Return the score of a band for the values at its inputs."""
        import numpy as np

        inside = (band.lower <= values) & (values <= band.upper)
        return cls(float(np.sqrt(np.mean((band.mean - values) ** 2))), float(np.mean(inside)))


def run_demo(out: Path, *, num_rows: int, seed: int, write: Write) -> None:
    """Write both parts of the demo line by line, and two plots."""
    from orthogp import InputError, __version__
    from orthogp.report import plots

    plots.require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The plots cannot go to {out} ({error.strerror}): give another directory."
        ) from error
    write(f"orthogp {__version__}")
    show_co2(out / "orthogp_co2.png", write)
    show_many_rows(out / "orthogp_rows.png", num_rows, seed, write)


# ---------------------------------------------------------------------- part one


def load_co2() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return decimal years (2225, 1) and the weekly CO2 of Mauna Loa in ppm (2225,)."""
    import numpy as np

    file = resources.files("orthogp") / "data" / "maunaloa_co2_weekly.npz"
    with file.open("rb") as stream, np.load(stream) as record:
        return record["X"], record["y"]


def co2_kernel() -> Kernel:
    """Return trend + season + medium-term swings, in years and ppm².

    The kernel and its starting values are those of Rasmussen and Williams (2006, section 5.4.3),
    who fitted them to this record, the years held out below included. Here they are where learning
    starts, and all is learned from the rows given but the season's period.
    """
    from orthogp.kernels import RBF, QuasiPeriodic, RationalQuadratic

    trend = RBF(variance=66.0**2, lengthscale=67.0)
    season = QuasiPeriodic(variance=2.4**2, lengthscale=90.0, period=1.0, shape_lengthscale=1.3)
    swings = RationalQuadratic(variance=0.66**2, lengthscale=1.2, alpha=0.78)
    return trend + season.fix("period") + swings


def show_co2(path: Path, write: Write) -> None:
    """Plot a forecast, having checked it on years held out."""
    import numpy as np

    from orthogp import GPRegressor
    from orthogp.report import plots

    X, y = load_co2()
    year = X[:, 0]
    early = year <= year[-1] - HELD_OUT_YEARS
    _heading(write, f"1. CO2 at Mauna Loa: {len(y):,} weeks, {int(year[0])} to {int(year[-1])}")
    write("Kernel of Rasmussen and Williams: trend + season + swings (demo.co2_kernel).\n")

    # The lattice, whose certificate the demo is to show.
    model = GPRegressor(co2_kernel(), domain=(year[0], FORECAST_END), solver="dense")
    model.fit(X[early], y[early])
    score = Score.of(_observations(model, X[~early]), y[~early])
    _paragraph(
        write,
        f"Check: fitted to the first {early.sum():,} weeks, it forecasts the last {(~early).sum()} "
        f"({HELD_OUT_YEARS:g} years) with RMSE {score.rmse:.2f} ppm; {score.coverage:.0%} of them "
        "lie within its 95% band. The kernel's form and starting values come from a published fit "
        "that knew those years; its parameters were learned without them.",
    )
    write("")
    check = _observations(model, np.linspace(year[early][-1], year[-1], 400)[:, None])

    # The model keeps sums of its rows, and those of the weeks held out simply join them.
    model.partial_fit(X[~early], y[~early])
    write(f"Forecast to {FORECAST_END:.0f}, with those weeks added by partial_fit:\n")
    write(model.summary())
    mean, std = model.predict_integral([[FORECAST_END - 1]], [[FORECAST_END]])
    write(
        f"\nMean of {FORECAST_END - 1:.0f} as forecast: "
        f"{mean[0]:.1f} ± {plots.BAND_SDS * std[0]:.1f} ppm (95%)"
    )
    forecast = _observations(model, np.linspace(year[-1], FORECAST_END, 800)[:, None])
    _save(_draw_forecast(year, y, forecast, check), path, write)


def _draw_forecast(
    x: NDArray[np.float64], y: NDArray[np.float64], forecast: Band, check: Band
) -> Figure:
    """Return a figure of a record with its forecast, beside a forecast of the record's end."""
    from orthogp.report import plots

    matplotlib = plots.require_matplotlib()
    with matplotlib.rc_context(plots.STYLE):
        figure = matplotlib.figure.Figure(figsize=(11, 4.4), layout="constrained")
        whole, end = figure.subplots(1, 2, width_ratios=[2, 1])
        whole.plot(x, y, color=plots.BLACK, linewidth=0.7, label="record")
        _draw_band(whole, forecast, "forecast")
        title = f"Weekly CO₂ at Mauna Loa, forecast to {FORECAST_END:.0f}"
        whole.set(title=title, xlabel="year", ylabel="CO₂ / ppm")
        whole.margins(x=0.01)
        whole.legend(loc="upper left")

        begin = check.x[0]
        shown = x >= begin - 0.4 * (check.x[-1] - begin)
        end.plot(x[shown], y[shown], ".", color=plots.BLACK, markersize=3, label="record")
        _draw_band(end, check, "forecast made at the dashed line")
        end.axvline(begin, color=plots.GREY, linewidth=0.9, linestyle="--")
        end.set(title=f"Check: the last {x[-1] - begin:.0f} years, forecast", xlabel="year")
        end.margins(x=0.02)
        _add_legend_above(end, rows=3)
    return figure


def _observations(model: GPRegressor, X: NDArray[np.float64]) -> Band:
    """Return the band of new observations at the rows of X."""
    from orthogp.report.plots import Band

    return Band(X[:, 0], *model.predict(X, return_std=True, include_noise=True))


# ---------------------------------------------------------------------- part two


def draw_matern32(
    lengthscale: float, rng: np.random.Generator
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return a function on [0, 1] drawn from a Matérn-3/2 process of variance one.

    Its values on a fine even grid are exact, by circulant embedding: on a circle the covariance
    matrix is diagonal in Fourier's basis. Between them it is straight.
    """
    import numpy as np

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


def show_many_rows(path: Path, num_rows: int, seed: int, write: Write) -> None:
    """Plot a fit to rows made on the spot, scored by the truth."""
    import numpy as np

    from orthogp import GPRegressor
    from orthogp.report.plots import Band

    rng = np.random.default_rng(seed)
    truth = draw_matern32(LENGTHSCALE, rng)
    X = rng.random((num_rows, 1))
    y = truth(X[:, 0]) + NOISE_SD * rng.standard_normal(num_rows)
    _heading(write, f"2. {num_rows:,} rows made on the spot")
    write(f"A Matérn-3/2 function of lengthscale {LENGTHSCALE} on [0, 1], noise sd {NOISE_SD}.\n")

    model = GPRegressor().fit(X, y)
    stretch = min(_LENS_ROWS / num_rows, 0.2)
    band, lens = (
        Band(x, *model.predict(x[:, None], return_std=True))
        for x in (np.linspace(0, 1, 5001), np.linspace(0.5, 0.5 + stretch, 801))
    )
    score = Score.of(band, truth(band.x))
    write(model.summary())
    write("")
    _paragraph(
        write,
        f"Against the function itself: RMSE {score.rmse:.2g}; {score.coverage:.0%} of it lies "
        "within the 95% band.",
    )
    _save(_draw_many_rows((X[:, 0], y), band, lens, truth), path, write)


def _draw_many_rows(
    rows: tuple[NDArray[np.float64], NDArray[np.float64]],
    band: Band,
    lens: Band,
    truth: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Figure:
    """Return a figure of many rows with the posterior of f, its errors, and a stretch magnified.

    Parameters
    ----------
    rows : (n,), (n,)
    band, lens : Band
        The posterior of f over the whole range, and over the short stretch to magnify.
    truth : callable
        The function behind the rows.
    """
    import numpy as np

    from orthogp.report import plots

    matplotlib, x = plots.require_matplotlib(), band.x
    with matplotlib.rc_context(plots.STYLE):
        figure = matplotlib.figure.Figure(figsize=(11, 7.2), layout="constrained")
        axes = figure.subplot_mosaic("ww\nle", height_ratios=[1.2, 1])
        whole, magnified, errors = axes["w"], axes["l"], axes["e"]
        # From a light grey on: a single row must be seen.
        look = {"cmap": plots.blend("#dddddd", "#333333"), "norm": matplotlib.colors.LogNorm()}
        *_, cells = whole.hist2d(*rows, bins=(360, 140), cmin=1, **look)
        bar = figure.colorbar(cells, ax=whole, pad=0.01, aspect=30, label="rows per cell")
        bar.outline.set_visible(False)
        bar.ax.grid(False)
        whole.plot(x, band.mean, color=plots.BLUE, linewidth=1.3, label="mean of f")
        title = f"A Gaussian process fitted to {len(rows[0]):,} rows"
        whole.set(title=title, xlabel="x", ylabel="y")
        whole.margins(x=0)
        _add_legend_above(whole, rows=1)

        _draw_lens(magnified, rows, lens, truth(lens.x))
        share = (lens.x[-1] - lens.x[0]) / (x[-1] - x[0])
        magnified.set(title=f"1/{1 / share:,.0f} of the range, magnified", xlabel="x", ylabel="y")

        plots.Band(x, np.zeros_like(x), band.std).fill(errors, "95 % band")
        look = {"color": plots.VERMILLION, "linewidth": 0.5, "label": "mean − truth"}
        errors.plot(x, band.mean - truth(x), **look)
        errors.set(title="Errors of the mean of f", xlabel="x", ylabel="mean − truth")
        errors.margins(x=0)
        _add_legend_above(errors, rows=1, columns=2)
    return figure


def _draw_lens(
    axes: Axes,
    rows: tuple[NDArray[np.float64], NDArray[np.float64]],
    band: Band,
    truth: NDArray[np.float64],
) -> None:
    """Draw a short stretch so that the band of f fills it; most rows lie above and below."""
    import numpy as np

    from orthogp.report.plots import GREY, VERMILLION

    x, y = rows
    inside = np.flatnonzero((x >= band.x[0]) & (x <= band.x[-1]))[:_MOST_POINTS]
    axes.plot(x[inside], y[inside], ".", color=GREY, markersize=2, alpha=0.5, label="rows")
    _draw_band(axes, band, "mean of f")
    axes.plot(band.x, truth, color=VERMILLION, linewidth=1.3, linestyle="--", label="truth")
    low, high = min(band.lower.min(), truth.min()), max(band.upper.max(), truth.max())
    margin = 0.5 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.margins(x=0)
    _add_legend_above(axes, rows=2, columns=2)


# ---------------------------------------------------------------------- both


def _heading(write: Write, text: str) -> None:
    write(f"\n{text}\n{'─' * len(text)}")


def _paragraph(write: Write, text: str) -> None:
    write(textwrap.fill(text, _LINE))


def _draw_band(axes: Axes, band: Band, label: str) -> None:
    from orthogp.report.plots import BLUE

    band.fill(axes, "95 % band")
    axes.plot(band.x, band.mean, color=BLUE, linewidth=1.1, label=label)


def _add_legend_above(axes: Axes, *, rows: int, columns: int = 1) -> None:
    """Add a legend in a strip of its own above the data."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.11 * rows * (high - low))
    axes.legend(loc="upper left", ncols=columns, markerscale=3)


def _save(figure: Figure, path: Path, write: Write) -> None:
    from orthogp.report import plots

    plots.save(figure, path)
    write(f"Plot: {path}")
