"""fit, predict, report, sketch and merge for counts, shares and amounts."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from orthogp import GPRegressor
from orthogp.cli import main
from orthogp.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 6, 400)
HOURS = RNG.uniform(0.5, 3.0, len(X))
COUNTS = RNG.poisson(HOURS * np.exp(np.sin(2 * X)))
TRIALS = RNG.integers(1, 6, len(X))
WINS = RNG.binomial(TRIALS, 1 / (1 + np.exp(-np.sin(2 * X))))
POISSON = ("--target", "y", "--inputs", "x", "--likelihood", "poisson", "--kernel", "rbf")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def done(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def predictions(text: str) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader(text.splitlines()))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counts")
    table = np.column_stack([X, HOURS, np.log(HOURS), COUNTS, TRIALS, WINS])
    header = "x,hours,log_hours,y,trials,wins"
    for name, rows in (("d", table), ("a", table[:250]), ("b", table[250:])):
        path = folder / f"{name}.csv"
        np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.17g")
    (folder / "new.csv").write_text("x,hours\n1,8\n4,1\n")
    (folder / "bare.csv").write_text("x\n1\n4\n")
    done("fit", folder / "d.csv", *POISSON, "--exposure", "hours", "--out", folder / "m.orthogp")
    return folder


@pytest.fixture(scope="module")
def expected() -> GPRegressor:
    return GPRegressor("rbf", likelihood="poisson").fit(X[:, None], COUNTS, exposure=HOURS)


def test_a_model_of_counts_from_a_file_is_that_of_its_rows(folder, expected) -> None:
    model = GPRegressor.load(folder / "m.orthogp")
    np.testing.assert_allclose(model.predict([[1.0]]), expected.predict([[1.0]]), rtol=1e-6)
    about = {name: model.about_[name] for name in ("inputs", "targets", "size")}
    assert about == {"inputs": ["x"], "targets": ["y"], "size": {"exposure": "hours"}}


def test_predictions_are_of_y_for_the_exposure_of_each_row(folder, expected) -> None:
    result = done(
        *("predict", folder / "m.orthogp", folder / "new.csv"),
        *("--quantiles", "0.05,0.95", "--out", "-"),
    )
    found = predictions(result.stdout)
    new, hours = np.array([[1.0], [4.0]]), np.array([8.0, 1.0])
    mean, sd = expected.predict(new, return_std=True, exposure=hours)
    np.testing.assert_allclose(found["mean_observation"], mean, rtol=1e-5)
    np.testing.assert_allclose(found["sd_observation"], sd, rtol=1e-5)
    quantiles = expected.predict_quantiles(new, (0.05, 0.95), exposure=hours)
    for column, p in zip(quantiles.T, ("0.05", "0.95"), strict=True):
        np.testing.assert_array_equal(found[f"quantile_{p}_observation"], column)


def test_files_without_exposures_are_predicted_for_one_and_told_so(folder, expected) -> None:
    result = done("predict", folder / "m.orthogp", folder / "bare.csv", "--out", "-")
    assert "no column 'hours': predictions are for exposure of one" in result.stderr
    found = predictions(result.stdout)["mean_observation"]
    np.testing.assert_allclose(found, expected.predict([[1.0], [4.0]]), rtol=1e-5)


def test_an_offset_is_the_logarithm_of_an_exposure(folder, expected) -> None:
    out = folder / "offset.orthogp"
    done("fit", folder / "d.csv", *POISSON, "--offset", "log_hours", "--out", out)
    model = GPRegressor.load(out)
    np.testing.assert_allclose(model.predict([[1.0]]), expected.predict([[1.0]]), rtol=1e-6)
    (folder / "offsets.csv").write_text(f"x,log_hours\n1,{np.log(8.0)}\n")
    found = predictions(done("predict", out, folder / "offsets.csv", "--out", "-").stdout)
    mean = expected.predict([[1.0]], exposure=[8.0])
    np.testing.assert_allclose(found["mean_observation"], mean, rtol=1e-5)


def test_trials_and_dispersions_reach_the_model(folder) -> None:
    out = folder / "shares.orthogp"
    columns = ("--target", "wins", "--inputs", "x", "--trials", "trials", "--kernel", "rbf")
    result = done(
        "fit", folder / "d.csv", *columns, "--likelihood", "binomial", "--out", out, "--json"
    )
    assert json.loads(result.stdout)["likelihood"] == "binomial"
    model = GPRegressor("rbf", likelihood="binomial").fit(X[:, None], WINS, trials=TRIALS)
    found = GPRegressor.load(out).predict([[1.0]])
    np.testing.assert_allclose(found, model.predict([[1.0]]), rtol=1e-6)
    dispersed = ("--target", "y", "--inputs", "x", "--likelihood", "negative-binomial")
    out = folder / "dispersed.orthogp"
    result = done("fit", folder / "d.csv", *dispersed, "--kernel", "rbf", "--out", out, "--json")
    dispersion = json.loads(result.stdout)["dispersion"]
    assert dispersion == GPRegressor.load(out).dispersion_ > 0


def test_sums_of_pieces_add_up_to_those_of_all_rows(folder, expected) -> None:
    a, b, whole = (folder / f"{name}.orthogp" for name in ("a", "b", "whole"))
    columns = (*POISSON, "--exposure", "hours")
    done("sketch", folder / "a.csv", *columns, "--domain", "0:6", "--out", a)
    done("sketch", folder / "b.csv", "--lattice-of", a, "--out", b)
    done("merge", a, b, "--out", whole)
    out = folder / "merged.orthogp"
    done("fit", whole, "--kernel", "rbf", "--out", out)
    model = GPRegressor.load(out)
    assert model.likelihood == "poisson"
    assert model.statistics_.rows == len(X)
    np.testing.assert_allclose(model.predict([[1.0]]), expected.predict([[1.0]]), rtol=0.02)
    result = run("fit", whole, "--likelihood", "gamma", "--out", out, "--force")
    assert "holds sums for the poisson likelihood, not for gamma" in result.stderr
    result = run("sketch", folder / "b.csv", "--lattice-of", a, "--likelihood", "gamma", "--out", b)
    assert result.exit_code != 0


def test_files_larger_than_memory_are_summed_in_one_pass(folder, expected) -> None:
    out = folder / "pass.orthogp"
    result = done(
        *("fit", folder / "d.csv", *POISSON, "--offset", "log_hours"),
        *("--memory", "4kB", "--out", out),
    )
    assert "summed in one pass" in result.stderr
    found = GPRegressor.load(out).predict([[1.0], [4.0]])
    np.testing.assert_allclose(found, expected.predict([[1.0], [4.0]]), rtol=0.02)


def test_reports_and_maps_are_of_y(folder, expected) -> None:
    result = done("report", folder / "m.orthogp")
    assert re.search("likelihood +poisson; one pass over the rows", result.stdout)
    done("report", folder / "m.orthogp", "--out", folder / "m.html")
    assert "sliders for Gaussian noise" in (folder / "m.html").read_text()
    grid = GPRegressor.load(folder / "m.orthogp").predict_grid(coordinates={"x": [1.0, 4.0]})
    mean, sd = expected.predict([[1.0], [4.0]], return_std=True)
    np.testing.assert_allclose(grid["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(grid["sd"], sd, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--exposure", "hours"), 1, "The gaussian likelihood takes nothing of the kind"),
        (("--likelihood", "poisson", "--trials", "trials"), 1, "takes exposure, not trials"),
        (
            ("--likelihood", "poisson", "--exposure", "hours", "--offset", "log_hours"),
            1,
            "One column says how much a row stands for",
        ),
        (("--likelihood", "weibull"), 1, "likelihood must be one of gaussian, poisson"),
        (("--likelihood", "poisson", "--exposure", "nothing"), 1, "no column 'nothing'"),
        (("--likelihood", "poisson", "--classify"), 2, "A classifier has a likelihood of its own"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(folder, options, code, sentence) -> None:
    out = folder / "refused.orthogp"
    columns = ("--target", "y", "--inputs", "x")
    result = run("fit", folder / "d.csv", *columns, *options, "--out", out)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert not out.exists()


def test_bad_rows_are_refused_in_one_sentence(folder) -> None:
    (folder / "bad.csv").write_text("x,hours,y\n1,0,1\n2,1,3\n3,1,2\n")
    for options, sentence in (
        (("--exposure", "hours"), "Exposure must be positive"),
        ((), "whole numbers"),
    ):
        if not options:
            (folder / "bad.csv").write_text("x,hours,y\n1,1,1.5\n2,1,3\n3,1,2\n")
        result = run("fit", folder / "bad.csv", *POISSON, *options, "--out", folder / "bad.orthogp")
        assert result.exit_code == 1
        assert sentence in result.stderr


def test_quantiles_are_those_of_gaussian_noise_with_covariates_too() -> None:
    Z = RNG.standard_normal(len(X))
    y = np.sin(X) + Z + 0.1 * RNG.standard_normal(len(X))
    model = GPRegressor("rbf").fit(X[:, None], y, covariates=Z)
    mean = model.predict([[1.0]], covariates=[[2.0]])
    found = model.predict_quantiles([[1.0]], (0.5,), covariates=[[2.0]])
    np.testing.assert_allclose(found[:, 0], mean)


def test_a_column_of_sizes_is_named_by_what_it_holds(folder) -> None:
    with pytest.raises(InputError, match="takes exposure, not trials"):
        GPRegressor(likelihood="poisson").fit_files(
            folder / "d.csv", "y", ["x"], size={"trials": "trials"}
        )
