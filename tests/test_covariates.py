"""Covariates: linear effects beside the process, in every engine, against the obvious oracle."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from orthogp import GPRegressor
from orthogp.cli import main
from orthogp.errors import InputError
from orthogp.kernels import RBF, Matern12, Matern32
from orthogp.report.diagnostics import LEVELS
from tests import oracles

Array = NDArray[np.float64]

VARIANCE, LENGTHSCALE, NOISE = 1.3, 1.5, 0.04
EFFECTS = np.array([2.0, -7.0])
# The prior standard deviation of coefficients of standardised columns, in sds of the targets.
PRIOR_SD = 10.0
# What each engine is called, and how close it comes to the exact process here, in posterior sds.
ENGINES = {"exact": 1e-6, "dense": 5e-3, "iterative": 0.2, "neighbours": 0.05}


class Problem(NamedTuple):
    X: Array
    Z: Array
    y: Array
    at: Array
    Z_at: Array


def problem(num_rows: int = 500, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    X, at = rng.uniform(0, 10, (num_rows, 1)), rng.uniform(0.5, 9.5, (40, 1))

    def covariates(x: Array) -> Array:
        # One follows the input in part, so that the process competes with it.
        rough = rng.standard_normal((len(x), 2))
        return np.array([100.0, 5.0]) + rough * [3.0, 0.1] + np.sin(x) * [2.0, 0.0]

    Z, Z_at = covariates(X), covariates(at)
    y = np.cos(2 * X[:, 0]) + Z @ EFFECTS + np.sqrt(NOISE) * rng.standard_normal(num_rows)
    return Problem(X, Z, y, at, Z_at)


class Expected(NamedTuple):
    mean: Array
    covariance: Array
    effects: Array
    effect_covariance: Array


def expected(data: Problem, k: Any, noise: float = NOISE) -> Expected:
    """The posterior of f + βᵀz by the equations of universal kriging, with priors for β."""
    X, Z, y, at, Z_at = data
    scale = y.std()
    centre, spread = Z.mean(axis=0), Z.std(axis=0)

    def columns(values: Array) -> Array:
        scaled = (values - centre) / spread
        return PRIOR_SD * scale * np.column_stack([np.ones(len(values)), scaled])

    H, H_at = columns(Z), columns(Z_at)
    C = oracles.gram_matrix(k, X, X) + noise * np.eye(len(X))
    weights = np.linalg.solve(C, oracles.gram_matrix(k, X, at)).T
    covariance = np.linalg.inv(np.eye(3) + H.T @ np.linalg.solve(C, H))
    centred = y - y.mean()
    coefficients = covariance @ H.T @ np.linalg.solve(C, centred)
    left = H_at - weights @ H
    mean = y.mean() + H_at @ coefficients + weights @ (centred - H @ coefficients)
    of_f = oracles.gram_matrix(k, at, at) - weights @ oracles.gram_matrix(k, X, at)
    to_units = PRIOR_SD * scale / spread
    return Expected(
        mean,
        of_f + left @ covariance @ left.T,
        coefficients[1:] * to_units,
        np.asarray(covariance[1:, 1:] * np.outer(to_units, to_units), dtype=np.float64),
    )


def rbf(lag: Array) -> Array:
    return oracles.rbf(lag, VARIANCE, LENGTHSCALE)


def matern12(lag: Array) -> Array:
    return oracles.matern12(lag, VARIANCE, LENGTHSCALE)


def fixed(solver: str, kernel: Any = None, **settings: Any) -> GPRegressor:
    kernel = RBF(VARIANCE, LENGTHSCALE) if kernel is None else kernel
    return GPRegressor(kernel, solver=solver, learn=False, noise_variance=NOISE, **settings)


@pytest.mark.parametrize("solver", ENGINES)
def test_every_engine_is_the_exact_process_with_gaussian_coefficients(solver: str) -> None:
    data = problem()
    # With the exponential kernel the two nearest rows say all.
    k, kernel = rbf, None
    if solver == "neighbours":
        k, kernel = matern12, Matern12(VARIANCE, LENGTHSCALE)
    want, model = expected(data, k), fixed(solver, kernel)
    model.fit(data.X, data.y, covariates=data.Z)
    mean, std = model.predict(data.at, return_std=True, covariates=data.Z_at)
    sd = np.sqrt(np.diag(want.covariance))
    tolerance = ENGINES[solver]
    assert np.max(np.abs(mean - want.mean) / sd) < tolerance
    assert np.max(np.abs(std / sd - 1)) < tolerance
    joint = model.predict(data.at, return_cov=True, covariates=data.Z_at)[1]
    assert np.max(np.abs(joint - want.covariance) / np.outer(sd, sd)) < tolerance
    effects = model.effects_
    errors = np.sqrt(np.diag(want.effect_covariance))
    np.testing.assert_allclose(effects.values, want.effects, atol=tolerance * errors.min())
    np.testing.assert_allclose(effects.standard_errors, errors, rtol=tolerance)
    np.testing.assert_allclose(
        effects.covariance / np.outer(errors, errors),
        want.effect_covariance / np.outer(errors, errors),
        atol=tolerance,
    )


def test_additive_models_have_the_same_effects_as_the_exact_sum() -> None:
    data = problem()
    rng = np.random.default_rng(1)
    X, at = (np.column_stack([x, rng.uniform(0, 1, (len(x), 3))]) for x in (data.X, data.at))
    wide = data._replace(X=X, at=at)

    def k(lag: Array) -> Array:
        return rbf(lag[..., :1]) + sum(oracles.rbf(lag[..., [j]], 0.2, 0.7) for j in (1, 2, 3))

    kernel = RBF(VARIANCE, LENGTHSCALE).on(0) + RBF(0.2, 0.7).on(1)
    kernel = kernel + RBF(0.2, 0.7).on(2) + RBF(0.2, 0.7).on(3)
    model = fixed("dense", kernel).fit(X, data.y, covariates=data.Z)
    want = expected(wide, k)
    assert model.engine_ == "additive"
    mean, std = model.predict(at, return_std=True, covariates=data.Z_at)
    sd = np.sqrt(np.diag(want.covariance))
    assert np.max(np.abs(mean - want.mean) / sd) < 0.02
    assert np.max(np.abs(std / sd - 1)) < 0.02
    np.testing.assert_allclose(
        model.effects_.standard_errors, np.sqrt(np.diag(want.effect_covariance)), rtol=0.01
    )
    # A component does not depend on the covariates.
    assert model.predict_component(0, at).shape == (len(at),)


@pytest.mark.parametrize("solver", ["exact", "dense", "neighbours"])
def test_the_kernel_is_learned_given_the_covariates(solver: str) -> None:
    # The covariate explains most of y; without it the noise would have a variance above 4.
    data = problem(1500)
    model = GPRegressor("rbf", solver=solver).fit(data.X, data.y, covariates=data.Z)
    # σ² has a standard error of about σ² √(2/n): 3.7 %. False alarms in five: 6e-7.
    assert abs(model.noise_variance_ / NOISE - 1) < 5 * np.sqrt(2 / 1500)
    # Chi-squared with two degrees of freedom beyond 28: a false alarm in a million.
    away = model.effects_.values - EFFECTS
    assert away @ np.linalg.solve(model.effects_.covariance, away) < 28
    assert model.score(data.X, data.y, covariates=data.Z) > 0.99


def test_a_linear_mean_has_slopes_beside_the_covariates() -> None:
    data = problem(300)
    y = data.y + 3 * data.X[:, 0]
    for solver in ("exact", "dense"):
        model = fixed(solver, mean="linear").fit(data.X, y, covariates=data.Z)
        plain = fixed(solver).fit(data.X, data.y, covariates=data.Z)
        np.testing.assert_allclose(model.effects_.values, plain.effects_.values, rtol=1e-3)
        slope = model.predict_derivative(data.at)[0] - plain.predict_derivative(data.at)[0]
        np.testing.assert_allclose(slope, 3.0, atol=0.1)


@pytest.mark.parametrize("solver", ["exact", "dense", "neighbours"])
def test_rows_come_and_go_with_their_covariates(solver: str) -> None:
    data = problem(120)
    first, rest = slice(0, 80), slice(80, None)
    whole = fixed(solver, domain=(0, 10)).fit(data.X, data.y, covariates=data.Z)
    model = fixed(solver, domain=(0, 10))
    model.fit(data.X[first], data.y[first], covariates=data.Z[first])
    alone = model.predict(data.at, covariates=data.Z_at)
    model.partial_fit(data.X[rest], data.y[rest], covariates=data.Z[rest])
    both = model.predict(data.at, covariates=data.Z_at)
    # The coefficients' prior is that of the first rows: broad, and so the same.
    np.testing.assert_allclose(both, whole.predict(data.at, covariates=data.Z_at), atol=2e-3)
    model.forget(data.X[rest], data.y[rest], covariates=data.Z[rest])
    np.testing.assert_allclose(model.predict(data.at, covariates=data.Z_at), alone, atol=1e-6)


@pytest.mark.parametrize("solver", ["exact", "dense", "neighbours"])
def test_draws_have_the_mean_and_covariance_of_predictions(solver: str) -> None:
    data = problem(200)
    model = fixed(solver).fit(data.X, data.y, covariates=data.Z)
    at, Z_at = data.at[:4], data.Z_at[:4]
    draws = model.sample_y(at, 4000, random_state=0, covariates=Z_at)
    mean, covariance = model.predict(at, return_cov=True, covariates=Z_at)
    sd = np.sqrt(np.diag(covariance))
    # Of 4000 draws, means err by sd/63 and correlations by 1/63: five of these, 20 numbers, 1e-5.
    assert np.max(np.abs(draws.mean(axis=1) - mean) / sd) < 5 / 63
    assert np.max(np.abs(np.cov(draws) - covariance) / np.outer(sd, sd)) < 7.1 / 63


@pytest.mark.parametrize("solver", ENGINES)
def test_files_keep_effects_and_names(solver: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    data = problem(200)
    frame = pd.DataFrame(data.Z, columns=["height", "slope"])
    model = fixed(solver).fit(data.X, data.y, covariates=frame)
    model.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    assert again.covariate_names_ == ("height", "slope")
    new = pd.DataFrame(data.Z_at, columns=["height", "slope"])
    want = model.predict(data.at, return_std=True, covariates=new)
    # A data frame's columns are found by their names.
    for got, there in zip(
        again.predict(data.at, return_std=True, covariates=new[["slope", "height"]]), want
    ):
        np.testing.assert_allclose(got, there, rtol=1e-7)
    np.testing.assert_allclose(again.effects_.values, model.effects_.values, rtol=1e-7)
    assert "height" in again.summary()


def test_several_targets_have_effects_each() -> None:
    data = problem(300)
    y = np.column_stack([data.y, -2 * data.y])
    effects = fixed("exact").fit(data.X, y, covariates=data.Z).effects_
    assert effects.values.shape == (2, 2)
    np.testing.assert_allclose(effects.values[:, 1], -2 * effects.values[:, 0], rtol=1e-2)


def test_spheres_take_covariates() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-180, 180, 200), rng.uniform(-80, 80, 200)])
    height = rng.uniform(0, 3, 200)
    y = 15 - 6.5 * height + 0.1 * rng.standard_normal(200)
    kernel = Matern32(1.0, 1000.0).on_sphere(0, 1)
    model = GPRegressor(kernel).fit(X, y, covariates=height)
    effects = model.effects_
    assert abs(effects.values[0] + 6.5) < 5 * effects.standard_errors[0]
    assert model.predict(X, covariates=height).shape == (200,)


def test_diagnostics_leave_rows_out_with_their_covariates() -> None:
    data = problem(200)
    for solver in ("exact", "dense", "neighbours"):
        model = fixed(solver).fit(data.X, data.y, covariates=data.Z)
        found: Any = model.diagnose(data.X, data.y, covariates=data.Z)
        # 200 rows: 0.95 ± 0.015, and more than four of these in 16,000 only.
        assert found.coverage[0, LEVELS.index(0.95)] > 0.88
        assert found.rows == 200


REFUSED = {
    "same in all rows": lambda Z: np.column_stack([Z, np.ones(len(Z))]),
    "collinear": lambda Z: np.column_stack([Z, Z @ [1.0, 2.0]]),
    "one row for each": lambda Z: Z[:-1],
    "NaN": lambda Z: np.where(np.arange(len(Z))[:, None] == 3, np.nan, Z),
}


@pytest.mark.parametrize("words", REFUSED)
def test_covariates_that_cannot_serve_are_refused_in_a_sentence(words: str) -> None:
    data = problem(60)
    with pytest.raises(InputError, match=words):
        GPRegressor().fit(data.X, data.y, covariates=REFUSED[words](data.Z))


def test_inputs_are_collinear_with_themselves_in_a_linear_mean() -> None:
    data = problem(60)
    with pytest.raises(InputError, match=r"'z0', input column 0 are collinear"):
        GPRegressor(mean="linear").fit(data.X, data.y, covariates=2 * data.X + 1)


def test_predictions_ask_for_covariates_they_lack() -> None:
    data = problem(60)
    model = fixed("exact").fit(data.X, data.y, covariates=data.Z)
    with pytest.raises(InputError, match=r"fitted with 'z0', 'z1' as covariates"):
        model.predict(data.at)
    with pytest.raises(InputError, match=r"2 columns as in fit"):
        model.predict(data.at, covariates=data.Z_at[:, :1])
    with pytest.raises(InputError, match=r"without covariates"):
        fixed("exact").fit(data.X, data.y).predict(data.at, covariates=data.Z_at)
    with pytest.raises(InputError, match=r"Families of features take no covariates"):
        GPRegressor(features="hermite").fit(data.X, data.y, covariates=data.Z)
    with pytest.raises(InputError, match=r"Integrals over boxes need the covariates"):
        model.predict_integral([[1.0]], [[2.0]])


def write_csv(path: Path, data: Problem) -> None:
    table = np.column_stack([data.X, data.Z, data.y])
    np.savetxt(path, table, delimiter=",", header="x,height,slope,y", comments="")


@pytest.mark.parametrize("memory", ["400MB", "1KB"])
def test_the_command_line_fits_and_predicts_with_covariates(tmp_path: Path, memory: str) -> None:
    data = problem(400)
    write_csv(tmp_path / "d.csv", data)
    out, run = tmp_path / "m.orthogp", CliRunner().invoke
    options = ["--target", "y", "--covariates", "height,slope", "--kernel", "rbf"]
    args = ["fit", str(tmp_path / "d.csv"), *options, "--memory", memory, "--out", str(out)]
    result = run(main, [*args, "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [effect["covariate"] for effect in printed["effects"]] == ["height", "slope"]
    for effect, truth in zip(printed["effects"], EFFECTS):
        assert abs(effect["effect"] - truth) < 5 * effect["standard_error"]
    table = tmp_path / "p.csv"
    result = run(main, ["predict", str(out), str(tmp_path / "d.csv"), "--out", str(table)])
    assert result.exit_code == 0, result.output
    found = np.genfromtxt(table, delimiter=",", names=True)
    model = GPRegressor.load(out)
    np.testing.assert_allclose(found["mean"], model.predict(data.X, covariates=data.Z), rtol=1e-6)
    if memory == "1KB":
        return
    # A page can be made of it.
    result = run(main, ["report", str(out), "--out", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    assert "height" in (tmp_path / "r.html").read_text("utf-8")
