"""Products of kernels on the same columns: the engines that take covariances at the rows."""

import numpy as np
import pytest

from orthogp import GPClassifier, GPRegressor, StochasticGPRegressor
from orthogp.errors import KernelError
from orthogp.kernels import RBF, Matern32
from tests import oracles

KERNEL = RBF(2.0, 1.5) * Matern32(1.0, 0.8)
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 6, (150, 2))
Y = np.sin(2 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * RNG.standard_normal(150)
NEW = RNG.uniform(0, 6, (20, 2))


def covariance(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    lags = (A[:, None] - B).reshape(-1, 2)
    both = oracles.rbf(lags, 2.0, 1.5) * oracles.matern32(lags, 1.0, 0.8)
    return both.reshape(len(A), len(B))


def expected() -> tuple[np.ndarray, np.ndarray]:
    mean, cov = oracles.posterior(
        covariance(X, X), covariance(NEW, X), covariance(NEW, NEW), Y, 0.01
    )
    return mean[:, 0], np.sqrt(np.diag(cov))


def fitted(**settings) -> GPRegressor:
    kept = {"learn": False, "noise_variance": 0.01, "mean": None}
    return GPRegressor(KERNEL, **kept, **settings).fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({}, 1e-8),
        ({"solver": "neighbours"}, 0.02),
        ({"features": "inducing-points", "num_features": 150}, 1e-4),
    ],
)
def test_predictions_are_those_of_the_product(settings, tolerance: float) -> None:
    mean, sd = fitted(**settings).predict(NEW, return_std=True)
    wanted, wanted_sd = expected()
    np.testing.assert_allclose(mean, wanted, atol=tolerance)
    np.testing.assert_allclose(sd, wanted_sd, atol=tolerance)


def test_a_product_is_learned_saved_and_reported(tmp_path) -> None:
    model = GPRegressor(KERNEL).fit(X, Y)
    assert model.engine_ == "exact"
    assert model.elbo_ > GPRegressor(KERNEL, learn=False, noise_variance=0.01).fit(X, Y).elbo_
    model.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_allclose(again.predict(NEW), model.predict(NEW), rtol=1e-10)
    assert "RBF" in model.report(tmp_path / "m.html").read_text()


def test_more_rows_go_to_neighbours() -> None:
    rows = np.random.default_rng(1).uniform(0, 6, (2600, 1))
    y = np.sin(3 * rows[:, 0])
    kernel = RBF(1.0, 2.0) * Matern32(1.0, 1.0)
    model = GPRegressor(kernel, learn=False, noise_variance=0.01).fit(rows, y)
    assert model.engine_ == "neighbours"


@pytest.mark.parametrize(
    "estimator",
    [
        GPRegressor(KERNEL, solver="dense"),
        GPRegressor(KERNEL, solver="iterative"),
        GPRegressor(KERNEL, features="trig"),
        GPRegressor(KERNEL, features="random-fourier"),
        GPRegressor(KERNEL, likelihood="poisson"),
        GPClassifier(KERNEL),
        StochasticGPRegressor(KERNEL),
    ],
)
def test_what_needs_a_spectral_density_says_so(estimator) -> None:
    with pytest.raises(KernelError, match="on shared columns") as caught:
        estimator.fit(X, (Y > 0).astype(float))
    assert str(caught.value).endswith(".")
