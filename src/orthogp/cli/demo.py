"""`orthogp demo`: a forecast of the CO2 of Mauna Loa, and a fit to a million rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orthogp.cli.console import debug_option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orthogp import GPRegressor
    from orthogp.kernels import Kernel
    from orthogp.report.plots import Band, Figure

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
    help="How many rows the second part makes.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the rows of the second part.",
)
@debug_option
def demo(out: Path, rows: int, seed: int) -> None:
    """Forecast the CO2 of Mauna Loa, then fit a million rows.

    Prints both models and what they are worth, and writes two plots. Takes about a minute.
    """
    run_demo(out, num_rows=rows, seed=seed, write=click.echo)


@dataclass(frozen=True)
class Score:
    """How predictions compare with what they predict.

    Attributes
    ----------
    rmse : float
        The root of the mean squared error.
    coverage : float
        The share of values inside the 95% band.
    """

    rmse: float
    coverage: float

    @classmethod
    def of(cls, band: Band, values: NDArray[np.float64]) -> Score:
        """Return the score of a band for the values at its inputs."""
        import numpy as np

        inside = (band.lower <= values) & (values <= band.upper)
        return cls(float(np.sqrt(np.mean((band.mean - values) ** 2))), float(np.mean(inside)))


def run_demo(out: Path, *, num_rows: int, seed: int, write: Write) -> tuple[Path, Path]:
    """Return the paths of two plots, having written both parts of the demo line by line."""
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
    first = show_co2(out / "orthogp_co2.png", write)
    second = show_many_rows(out / "orthogp_rows.png", num_rows, seed, write)
    return first, second


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


def show_co2(path: Path, write: Write) -> Path:
    """Return the path of the plot of the forecast, having checked it on years held out."""
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
    figure = plots.plot_forecast(
        year,
        y,
        forecast,
        check,
        title=f"Weekly CO₂ at Mauna Loa, forecast to {FORECAST_END:.0f}",
        xlabel="year",
        ylabel="CO₂ / ppm",
    )
    return _save(figure, path, write)


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


def show_many_rows(path: Path, num_rows: int, seed: int, write: Write) -> Path:
    """Return the path of the plot of a fit to rows made on the spot, scored by the truth."""
    import numpy as np

    from orthogp import GPRegressor
    from orthogp.report import plots
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
    figure = plots.plot_bands(
        X[:, 0],
        y,
        band,
        lens,
        truth,
        title=f"A Gaussian process fitted to {num_rows:,} rows",
    )
    return _save(figure, path, write)


# ---------------------------------------------------------------------- both


def _heading(write: Write, text: str) -> None:
    write(f"\n{text}\n{'─' * len(text)}")


def _paragraph(write: Write, text: str) -> None:
    write(textwrap.fill(text, _LINE))


def _save(figure: Figure, path: Path, write: Write) -> Path:
    from orthogp.report import plots

    plots.save(figure, path)
    write(f"Plot: {path}")
    return path
