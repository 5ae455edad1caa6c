"""GPIntensity: the rate of events in a window."""

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from orthogp import GPIntensity, GPRegressor
from orthogp.cli import main
from orthogp.errors import FileError, InputError
from orthogp.kernels import RBF
from orthogp.likelihoods.intensity import box_sums
from orthogp.rows import Domain
from orthogp.statistics import FrequencyLattice

GRID = np.linspace(0.1, 5.9, 30)[:, None]


def rate(x):
    return 60 * np.exp(np.sin(2 * x))


def thinned(rng):
    """Events of the rate on [0, 6]: those of a constant one, each kept with a probability."""
    x = rng.uniform(0, 6, rng.poisson(6 * 60 * np.e))
    return x[rng.uniform(0, 60 * np.e, len(x)) < rate(x)]


EVENTS = thinned(np.random.default_rng(0))


@pytest.fixture(scope="module")
def fitted():
    return GPIntensity("rbf").fit(EVENTS, (0, 6))


def test_the_sums_of_a_box_are_integrals():
    lattice = FrequencyLattice([0.7, 1.1], [3, 2], [0.2, -0.3])
    box = Domain(np.array([-1.0, 0.5]), np.array([2.0, 1.2]))
    at, along = np.polynomial.legendre.leggauss(60)
    found, expected = box_sums(lattice, box), np.ones((), dtype=complex)
    for h, K, centre, low, high in zip(
        lattice.spacing, lattice.extent, lattice.centre, *box, strict=True
    ):
        x = (low + high) / 2 + (high - low) / 2 * at
        waves = np.exp(1j * h * np.arange(-2 * K, 2 * K + 1)[:, None] * (x - centre))
        expected = expected[..., None] * (waves @ along / 2)
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_a_function_that_hardly_varies_has_the_rate_of_counting():
    """With f all but constant, λ has mean N/V and relative sd 1/√N: the gamma distribution's."""
    model = GPIntensity(RBF(1e-8, 1.0), learn=False).fit(EVENTS, (0, 6), exposure=2.0)
    mean, sd = model.predict(GRID, return_std=True)
    number = len(EVENTS)
    np.testing.assert_allclose(mean, number / 12, rtol=2 / number)
    np.testing.assert_allclose(sd / mean, 1 / np.sqrt(number), rtol=2e-2)
    lower_bound = number * np.log(number / 12) - number
    # The constant's prior, of standard deviation 10, costs log(10 √N) and a little.
    assert lower_bound - 0.5 - np.log(10 * np.sqrt(number)) - 0.1 < model.elbo_ < lower_bound


def test_it_is_the_limit_of_counts_in_small_cells():
    """Half the width of the cells, hardly more than half the error: events lie anywhere in them."""
    kernel, errors = RBF(1.0, 0.8), []
    exact = GPIntensity(kernel, learn=False).fit(EVENTS, (0, 6))
    for cells in (150, 300):
        edges = np.linspace(0, 6, cells + 1)
        middles = (edges[1:] + edges[:-1])[:, None] / 2
        counts = np.histogram(EVENTS, edges)[0]
        model = GPRegressor(kernel, likelihood="poisson", learn=False, domain=(0.0, 6.0))
        model.fit(middles, counts, exposure=np.full(cells, 6 / cells))
        errors.append(np.abs(model.predict(GRID) / exact.predict(GRID) - 1).max())
    assert errors[1] < 2e-2
    assert errors[1] < 0.75 * errors[0]


def test_the_expected_number_in_the_window_is_the_count(fitted):
    """The constant and the function together follow the count but for the prior's pull."""
    number, sd = fitted.expected_number(0, 6)
    assert abs(number[0] - len(EVENTS)) < 0.02 * len(EVENTS)
    assert 0.8 * np.sqrt(len(EVENTS)) < sd[0] < 1.2 * np.sqrt(len(EVENTS))
    halves, _ = fitted.expected_number([[0.0], [3.0]], [[3.0], [6.0]])
    np.testing.assert_allclose(halves.sum(), number[0], rtol=1e-6)
    assert f"{len(EVENTS)} events in [0, 6]" in fitted.summary()


def test_bands_cover_the_intensity():
    """Of 10 data sets × 30 places 90 % bands hold at least 75 %, 5 standard errors below 90 %.

    Places within half a period of the rate are alike: ten data sets have some 40 independent ones.
    """
    held = []
    for seed in range(10):
        events = thinned(np.random.default_rng(100 + seed))
        model = GPIntensity(RBF(1.0, 0.7), learn=False).fit(events, (0, 6))
        lower, upper = model.predict_quantiles(GRID, (0.05, 0.95)).T
        held.append((lower < rate(GRID[:, 0])) & (rate(GRID[:, 0]) < upper))
    assert np.mean(held) > 0.75


def test_draws_have_the_moments_of_predictions(fitted):
    """The mean of 4,000 draws is within 5 standard errors at each of 30 places."""
    draws = fitted.sample(GRID, 4000, random_state=0)
    mean, sd = fitted.predict(GRID, return_std=True)
    assert np.abs((draws.mean(axis=1) - mean) / sd).max() < 5 / np.sqrt(4000)
    median = fitted.predict_quantiles(GRID, (0.5,))[:, 0]
    assert np.all(np.abs(np.mean(draws < median[:, None], axis=1) - 0.5) < 5 * 0.5 / np.sqrt(4000))


def test_two_columns_in_large_units_are_those_in_small():
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, (400, 2)) ** [1.0, 1.5]
    small = GPIntensity(RBF(1.0, [0.5, 0.5]), learn=False).fit(X, (0, 1))
    box = ([0.0, 0.0], [1000.0, 500.0])
    large = GPIntensity(RBF(1.0, [500.0, 250.0]), learn=False).fit(X * box[1], box, exposure=3.0)
    places = rng.uniform(0, 1, (20, 2))
    ratio = large.predict(places * box[1]) / small.predict(places)
    np.testing.assert_allclose(ratio, 1 / (3 * 5e5), rtol=1e-6)
    np.testing.assert_allclose(large.elbo_ - small.elbo_, -400 * np.log(3 * 5e5), rtol=1e-8)
    number, _ = large.expected_number(*box)
    np.testing.assert_allclose(number, 400, rtol=0.02)


def test_files_hold_the_model(fitted, tmp_path):
    fitted.save(tmp_path / "m.orthogp")
    again = GPIntensity.load(tmp_path / "m.orthogp")
    np.testing.assert_allclose(again.predict(GRID), fitted.predict(GRID), rtol=1e-9)
    assert again.expected_number(0, 6)[0] == pytest.approx(fitted.expected_number(0, 6)[0])
    assert again.summary().splitlines()[:3] == fitted.summary().splitlines()[:3]
    with pytest.raises(FileError, match="GPIntensity"):
        GPRegressor.load(tmp_path / "m.orthogp")


@pytest.mark.parametrize(
    ("events", "window", "sentence"),
    [
        ([1.0, 7.0, 2.0], (0, 6), "1 of 3 events lie outside the window, such as .7."),
        ([], (0, 6), "at least two events, got 0"),
        ([1.0, 2.0], (6, 0), "finite lower < upper"),
        ([1.0, 2.0], (0, np.inf), "finite lower < upper"),
        ([1.0, 2.0], 6, "window must be .lower, upper."),
        ([1.0, np.nan], (0, 6), "events"),
        (np.ones((5, 4)), (0, 6), "one to 3 columns"),
    ],
)
def test_bad_events_and_windows_are_refused_in_one_sentence(events, window, sentence):
    with pytest.raises(InputError, match=sentence):
        GPIntensity().fit(events, window)


def test_an_exposure_of_nothing_is_refused():
    with pytest.raises(InputError, match="exposure must be a positive number"):
        GPIntensity().fit([1.0, 2.0], (0, 6), exposure=0.0)


# ---------------------------------------------------------------------- surroundings


def watched(x):
    return 1 + (x[:, 0] > 3)


def wave(x):
    return np.sin(5 * x[:, 0])


@pytest.mark.parametrize("exposure", [np.full(7, 2.0), lambda x: np.full(len(x), 2.0)])
def test_an_exposure_that_is_the_same_everywhere_is_a_number(exposure):
    kernel = RBF(1.0, 0.8)
    number = GPIntensity(kernel, learn=False).fit(EVENTS, (0, 6), exposure=2.0)
    other = GPIntensity(kernel, learn=False).fit(EVENTS, (0, 6), exposure=exposure)
    np.testing.assert_allclose(other.predict(GRID), number.predict(GRID), rtol=1e-6)
    assert other.elbo_ == pytest.approx(number.elbo_, abs=1e-4)


def test_an_exposure_that_varies_is_that_of_counts_in_small_cells():
    kernel, cells = RBF(1.0, 0.8), 300
    model = GPIntensity(kernel, learn=False).fit(EVENTS, (0, 6), exposure=watched)
    edges = np.linspace(0, 6, cells + 1)
    middles = (edges[1:] + edges[:-1])[:, None] / 2
    counts = GPRegressor(kernel, likelihood="poisson", learn=False, domain=(0.0, 6.0))
    counts.fit(middles, np.histogram(EVENTS, edges)[0], exposure=watched(middles) * 6 / cells)
    np.testing.assert_allclose(model.predict(GRID), counts.predict(GRID), rtol=2e-2)
    number, _ = model.expected_number([[0.0], [3.0]], [[3.0], [6.0]])
    assert abs(number.sum() - len(EVENTS)) < 0.02 * len(EVENTS)


def test_effects_of_covariates_maximise_the_bound_and_bend_it_as_their_errors_say():
    kernel, rng = RBF(0.5, 1.5), np.random.default_rng(3)
    x = rng.uniform(0, 6, (2000, 1))
    x = x[rng.uniform(size=2000) < np.exp(0.6 * (wave(x) - 1))]
    model = GPIntensity(kernel, learn=False).fit(x, (0, 6), covariates={"wave": wave})
    (value,), (error,) = model.effects_.values, model.effects_.standard_errors
    assert abs(value - 0.6) < 4 * error
    assert f"wave  {value:.4g} ± {error:.2g}" in model.summary()

    def bound(effect):
        """Return the bound with the effect in the exposure, whose logarithm is added by hand."""
        own = GPIntensity(kernel, learn=False)
        own.fit(x, (0, 6), exposure=lambda at: np.exp(effect * wave(at)))
        return own.elbo_ + effect * wave(x).sum()

    below, here, above = (bound(value + step) for step in (-error, 0.0, error))
    assert here - below == pytest.approx(0.5, abs=0.05)
    assert here - above == pytest.approx(0.5, abs=0.05)


def test_files_hold_exposures_and_covariates(tmp_path):
    model = GPIntensity(RBF(1.0, 0.8), learn=False)
    model.fit(EVENTS, (0, 6), exposure=watched, covariates={"wave": np.sin(np.arange(20.0))})
    model.save(tmp_path / "m.orthogp")
    again = GPIntensity.load(tmp_path / "m.orthogp")
    np.testing.assert_allclose(again.predict(GRID), model.predict(GRID), rtol=1e-9)
    assert again.summary() == model.summary()


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({"exposure": -1.0}, "exposure must be a positive number"),
        ({"exposure": np.array([1.0, -1.0])}, "exposure must be positive where"),
        ({"exposure": np.ones((3, 3))}, "an axis of two or more values for each of 1 columns"),
        ({"exposure": lambda x: 1.0 * (x[:, 0] > 5)}, "events where the exposure is zero"),
        ({"covariates": [np.arange(3.0)]}, "must be a dictionary of names"),
        ({"covariates": {"a": np.ones(3)}}, "'a' is the same everywhere"),
        ({"covariates": {"a": np.array([0.0, np.nan])}}, "no finite numbers"),
        ({"covariates": {"a": wave, "b": lambda x: 2 * wave(x)}}, "'a', 'b' are collinear"),
        ({"covariates": {"a": lambda x: 1.0}}, "one number for each row of places"),
    ],
)
def test_surroundings_that_cannot_be_are_refused_in_one_sentence(known, sentence):
    with pytest.raises(InputError, match=sentence):
        GPIntensity(RBF(1.0, 0.8)).fit(EVENTS, (0, 6), **known)


def run(*arguments: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return found.exit_code, found.stdout, found.stderr


def test_events_on_the_command_line(fitted, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("x\n" + "\n".join(f"{x:.17g}" for x in EVENTS))
    model, kernel = tmp_path / "m.orthogp", ("--kernel", "rbf")
    code, text, error = run(
        "intensity", tmp_path / "e.csv", "--window", "0:6", *kernel, "--out", model
    )
    assert code == 0, error
    assert f"GPIntensity: {len(EVENTS)} events in [0, 6]" in text
    (tmp_path / "new.csv").write_text("x\n1\n4\n")
    code, text, error = run(
        "predict", model, tmp_path / "new.csv", "--quantiles", "0.05,0.95", "--out", "-"
    )
    assert code == 0, error
    rows = list(csv.DictReader(text.splitlines()))
    mean, sd = fitted.predict([[1.0], [4.0]], return_std=True)
    low, high = fitted.predict_quantiles([[1.0], [4.0]], (0.05, 0.95)).T
    for name, expected in (
        ("mean_intensity", mean),
        ("sd_intensity", sd),
        ("quantile_0.05_intensity", low),
        ("quantile_0.95_intensity", high),
    ):
        np.testing.assert_allclose([float(row[name]) for row in rows], expected, rtol=1e-6)
    assert run("report", model)[1].startswith("GPIntensity")
    code, _, error = run("intensity", tmp_path / "e.csv", "--window", "0:2", "--out", model)
    assert code != 0
    code, _, error = run(
        "intensity", tmp_path / "e.csv", "--window", "0:2", "--out", tmp_path / "n.orthogp"
    )
    assert "lie outside the window" in error
    code, _, error = run("report", model, "--out", tmp_path / "r.html")
    assert code == 1
    assert "A page shows regressions and classifiers" in error
