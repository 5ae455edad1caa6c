"""The demo as a customer runs it, on fewer rows, and what it is made of."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from orthogp import GPRegressor
from orthogp.cli import main
from orthogp.cli.demo import LENGTHSCALE, NOISE_SD, co2_kernel, draw_matern32, load_co2, score
from orthogp.report.plots import Band


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "new"


@pytest.fixture(scope="module")
def text(out: Path) -> str:
    """What the demo prints."""
    result = CliRunner().invoke(main, ["demo", "--rows", "20000", "--out", str(out)])
    assert result.exception is None, result.output
    assert result.stderr == ""
    return result.output


def numbers(pattern: str, text: str) -> list[float]:
    """The groups of a pattern that must occur once."""
    (found,) = re.findall(pattern, re.sub(r"\s+", " ", text))
    return [float(number) for number in ([found] if isinstance(found, str) else found)]


@pytest.mark.slow
def test_plots_are_written_and_named(text: str, out: Path) -> None:
    names = ["orthogp_co2.png", "orthogp_rows.png"]
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert f"Plot: {out / name}\n" in text
        pixels = imread(out / name)
        assert pixels.shape[0] >= 600
        assert pixels.shape[1] >= 1500
        # Neither blank nor a blot: curves, bands and text on a white ground.
        white = np.mean(np.all(pixels[..., :3] == 1, axis=-1))
        assert 0.5 < white < 0.97
        colours = np.round(pixels[..., :3] * 255).astype(int) @ [1, 256, 256**2]
        assert len(np.unique(colours)) > 100


@pytest.mark.slow
def test_co2_forecast_is_sane(text: str) -> None:
    rmse, coverage = numbers(r"with RMSE (\S+) ppm; (\d+)% of them", text)
    # The last value carried on gives 6.0 ppm.
    assert rmse < 3
    assert coverage > 50
    mean, half_width = numbers(r"Mean of 2013 as forecast: (\S+) ± (\S+) ppm", text)
    # Eleven years after 371 ppm, at the record's 1.3 to 1.9 ppm a year.
    assert 384 < mean < 394
    assert 2 < half_width < 10


@pytest.mark.slow
def test_many_rows_are_fitted_to_the_truth(text: str) -> None:
    rmse, coverage = numbers(r"function itself: RMSE (\S+); (\d+)% of it", text)
    # A tenth of the noise: 20,000 rows share some 250 degrees of freedom.
    assert 0.003 < rmse < 0.02
    assert 88 <= coverage <= 99
    second = text.split("rows made on the spot")[1]
    (lengthscale,) = numbers(r"Matern32: variance \S+, lengthscale (\S+)", second)
    assert LENGTHSCALE / 1.6 < lengthscale < LENGTHSCALE * 1.6
    (noise_sd,) = numbers(r"\(sd (\S+)\)", second)
    assert noise_sd == pytest.approx(NOISE_SD, rel=0.03)


@pytest.mark.slow
def test_text_fits_a_terminal_apart_from_the_summaries(text: str) -> None:
    own = [line for line in text.splitlines() if not line.startswith((" ", "Plot:"))]
    assert max(map(len, own)) <= 80


def test_co2_record() -> None:
    X, y = load_co2()
    assert X.shape == (2225, 1)
    assert y.shape == (2225,)
    assert np.all(np.diff(X[:, 0]) > 0)
    assert (X[0, 0], X[-1, 0]) == pytest.approx((1958.24, 2001.99), abs=0.01)
    assert (y[0], y[-1]) == (316.1, 371.5)


def test_drawn_function_is_a_matern32() -> None:
    # Squared increments over three lags, averaged over eight draws: 2(1 − k(lag)).
    x = np.linspace(0, 0.7, 701)
    lags = LENGTHSCALE * np.array([0.02, 1.0, 4.0])
    rng = np.random.default_rng(1)
    functions = [draw_matern32(LENGTHSCALE, rng) for _ in range(8)]
    found = [np.mean([(f(x + lag) - f(x)) ** 2 for f in functions]) for lag in lags]
    z = np.sqrt(3) * lags / LENGTHSCALE
    np.testing.assert_allclose(found, 2 * (1 - (1 + z) * np.exp(-z)), rtol=0.25)


def test_score() -> None:
    band = Band(np.arange(4.0), np.zeros(4), np.ones(4))
    rmse, coverage = score(band, np.array([0.0, 1.9, -1.9, 2.1]))
    assert coverage == 0.75
    assert rmse == pytest.approx(np.sqrt((2 * 1.9**2 + 2.1**2) / 4))


@pytest.mark.slow
def test_partial_fit_does_not_lose_what_was_learned() -> None:
    """More weeks are learned from where the fit ended, not from another maximum of the bound."""
    X, y = (column[::4] for column in load_co2())
    known = len(X) * 7 // 8
    model = GPRegressor(co2_kernel(), max_features=400).fit(X[:known], y[:known])
    kernel, noise_variance = model.kernel_, model.noise_variance_
    model.partial_fit(X[known:], y[known:])
    as_before = GPRegressor(
        kernel, noise_variance=noise_variance, learn=False, max_features=400
    ).fit(X, y)
    assert as_before.elbo_ < model.elbo_ < as_before.elbo_ + 30
