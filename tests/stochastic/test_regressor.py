"""StochasticGPRegressor: what a user of the paper's inference meets."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from orthogp import FitWarning, GPRegressor, InputError, StochasticGPRegressor
from orthogp.cli import main
from orthogp.kernels import RBF, Matern32


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (1500, 1))
    y = 100 + 5 * np.sin(2 * X[:, 0]) + rng.standard_normal(1500)
    return X, y


@pytest.mark.slow
def test_fit_agrees_with_the_one_from_a_pass_over_the_rows(
    rows: tuple[np.ndarray, np.ndarray], capsys: pytest.CaptureFixture
) -> None:
    X, y = rows
    model = StochasticGPRegressor("rbf", num_features=25, max_steps=800, verbose=True).fit(X, y)
    exact = GPRegressor("rbf").fit(X, y)
    X_new = np.linspace(0.2, 9.8, 101)[:, None]
    mean, std = model.predict(X_new, return_std=True, include_noise=True)
    expected, expected_std = exact.predict(X_new, return_std=True, include_noise=True)
    # A few hundred rows' worth of noise in the mean, of noise sd 1.
    assert np.sqrt(np.mean((mean - expected) ** 2)) < 0.15
    np.testing.assert_allclose(std, expected_std, rtol=0.1)
    assert model.elbo_ == pytest.approx(exact.elbo_, abs=6 * model.elbo_error_ + 30)
    assert model.noise_variance_ == pytest.approx(exact.noise_variance_, rel=0.2)
    shown = capsys.readouterr().err
    assert "step 1" in shown
    assert "ELBO" in shown
    # Far away it is the prior again.
    far, far_std = model.predict([[1000.0]], return_std=True)
    assert far[0] == pytest.approx(np.mean(y))
    assert far_std[0] ** 2 == pytest.approx(float(model.kernel_.variance), rel=1e-6)


@pytest.mark.slow
def test_rows_may_be_mapped_from_files(rows: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    X, y = rows
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("X", "y")]
    settings = {"num_features": 9, "batch_size": 64, "num_samples": 16, "max_steps": 100}
    kernel = Matern32(25.0, 1.0)
    in_memory = StochasticGPRegressor(kernel, **settings).fit(X, y)
    from_file = StochasticGPRegressor(kernel, **settings).fit(*mapped)
    np.testing.assert_array_equal(in_memory.predict(X[:5]), from_file.predict(X[:5]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 1}, "≥ 2"),
        ({"num_samples": "many"}, '"auto"'),
        ({"batch_size": 2000}, "between 1 and the 1500 rows"),
        ({"features": "inducing-points"}, "basis in frequency"),
        ({"covariance": "full"}, "'diagonal'"),
        ({"sampler": "sobol"}, "'stratified'"),
        ({"kernel": RBF().on(0) + RBF().on(1)}, "column"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    rows: tuple[np.ndarray, np.ndarray], settings: dict[str, Any], message: str
) -> None:
    model = StochasticGPRegressor(**{"kernel": RBF(), "max_steps": 10, **settings})
    with pytest.raises(ValueError, match=message):
        model.fit(*rows)


def test_several_targets_are_refused(rows: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = rows
    with pytest.raises(InputError, match="one target"):
        StochasticGPRegressor().fit(X, np.stack([y, y], axis=1))


@pytest.mark.slow
def test_far_rows_are_predicted_by_the_prior_at_no_cost() -> None:
    """A quadrature that follows x = 1e7 would take ten million nodes for each of the rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (40, 1))
    model = StochasticGPRegressor(RBF(1.0, 1.0), num_features=15, num_samples=16, max_steps=2)
    near, far = X[:3], np.full((1, 1), 1e7)
    model.fit(X, np.sin(X[:, 0]))
    tracemalloc.start()
    mean, std = model.predict(np.concatenate([near, far]), return_std=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e7
    np.testing.assert_allclose(mean[:3], model.predict(near), rtol=0, atol=1e-10)
    assert mean[3] == pytest.approx(model.target_offset_)
    assert std[3] ** 2 == pytest.approx(float(model.kernel_.variance))


@pytest.mark.slow
def test_training_that_fails_at_once_leaves_the_start_and_says_so() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 1))
    model = StochasticGPRegressor(
        RBF(1.0, 0.3), num_features=5, num_samples=8, learning_rate=float("nan"), max_steps=10
    )
    with pytest.warns(FitWarning, match="lower the learning rate"):
        model.fit(X, np.sin(X[:, 0]))
    assert "NaN" in model.status_
    assert np.isnan(model.elbo_)
    assert np.all(np.isfinite(model.predict(X)))
    assert float(model.kernel_.lengthscale) == pytest.approx(0.3)


def test_a_summary_says_what_was_learned_and_commands_print_it(tmp_path: Path) -> None:
    X = np.linspace(0, 10, 80)[:, None]
    model = StochasticGPRegressor(RBF(1.0, 1.0), num_features=9, max_steps=2, noise_variance=0.1)
    model.fit(X, np.sin(X[:, 0]))
    lines = model.summary().splitlines()
    assert lines[0] == "StochasticGPRegressor: 9 features, 1 input column"
    assert [line.split()[0] for line in lines[1:]] == ["kernel", "noise", "log", "status"]
    assert f"{np.sqrt(model.noise_variance_):.4g}" in lines[2]
    model.save(tmp_path / "m.orthogp")
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "m.orthogp")])
    assert (shown.exit_code, shown.stdout) == (0, model.summary() + "\n")
    found = CliRunner().invoke(main, ["report", str(tmp_path / "m.orthogp"), "--json"])
    assert json.loads(found.stdout)["noise_variance"] == pytest.approx(model.noise_variance_)
