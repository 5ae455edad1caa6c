"""What users see of certificates: bounds point by point, tolerances, files, engines."""

import numpy as np
import pytest

from orthogp import GPRegressor, InputError
from orthogp.kernels import Matern, Matern12, Matern32

KERNEL, NOISE = Matern32(variance=1.3, lengthscale=0.3), 0.05


def rows(n=300):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, n)
    x = np.where(x < 0.5, 0.7 * x, 0.3 + 0.7 * x)
    return x[:, None], np.sin(8 * x) + np.sqrt(NOISE) * rng.standard_normal(n)


def fitted(**settings):
    X, y = rows()
    chosen = {"noise_variance": NOISE, "learn": False, "solver": "dense", **settings}
    return GPRegressor(KERNEL, **chosen).fit(X, y)


@pytest.fixture(scope="module")
def grid():
    X, _ = rows()
    return np.linspace(X.min(), X.max(), 200)[:, None]


@pytest.mark.parametrize("settings", [{}, {"num_features": 41, "wrap_tolerance": 1e-9}])
@pytest.mark.parametrize("mean", [None, "constant", "linear"])
def test_the_exact_process_lies_within_the_bounds(settings, mean, grid) -> None:
    model, exact = fitted(mean=mean, **settings), fitted(mean=mean, solver="exact")
    predicted, std, bounds = model.predict(grid, return_std=True, return_bounds=True)
    mean_there, std_there = exact.predict(grid, return_std=True)
    assert np.all((bounds.mean_lower <= mean_there) & (mean_there <= bounds.mean_upper))
    assert np.all((bounds.std_lower <= std_there) & (std_there <= bounds.std_upper))
    certificate = model.certificate_
    assert np.all(np.abs(predicted - mean_there) <= certificate.mean_error * std_there)
    assert np.all(np.abs(std / std_there - 1) <= certificate.sd_error)
    assert certificate.lower <= exact.elbo_ <= certificate.upper
    assert certificate.holds == (not settings)


def test_the_exact_engine_is_within_no_distance_of_itself(grid) -> None:
    model = fitted(solver="exact")
    mean, bounds = model.predict(grid, return_bounds=True)
    np.testing.assert_array_equal(bounds.mean_lower, mean)
    np.testing.assert_array_equal(bounds.std_lower, bounds.std_upper)
    assert model.certificate_.kind == "exact"
    assert model.certificate_.holds


def test_nothing_is_certified_beyond_the_box_of_the_rows() -> None:
    _, bounds = fitted().predict([[-0.1], [0.1]], return_bounds=True)
    assert np.isinf(bounds.mean_upper).tolist() == [True, False]
    assert np.isinf(bounds.std_upper).tolist() == [True, False]


def test_bounds_of_observations_include_the_noise(grid) -> None:
    model = fitted()
    _, plain = model.predict(grid, return_bounds=True)
    _, noisy = model.predict(grid, include_noise=True, return_bounds=True)
    np.testing.assert_allclose(noisy.std_upper**2 - plain.std_upper**2, NOISE)


def test_engines_without_bounds_say_which_have_them(grid) -> None:
    with pytest.raises(InputError, match="no bounds point by point for the engine 'neighbours'"):
        fitted(solver="neighbours").predict(grid, return_bounds=True)


@pytest.mark.parametrize("solver", ["iterative", "neighbours"])
def test_engines_that_prove_nothing_estimate_their_errors(solver, grid) -> None:
    model, exact = fitted(solver=solver), fitted(solver="exact")
    mean, std = model.predict(grid, return_std=True)
    mean_there, std_there = exact.predict(grid, return_std=True)
    certificate = model.certificate_
    assert certificate.kind == "estimate"
    assert not certificate.holds
    assert np.sqrt(np.mean(((mean - mean_there) / std_there) ** 2)) <= 2 * certificate.mean_error
    assert np.sqrt(np.mean((std / std_there - 1) ** 2)) <= 2 * certificate.sd_error
    assert certificate.error < 0.3
    assert f"an estimate: means within about {certificate.mean_error:.2g}" in model.summary()


def test_a_smaller_tolerance_takes_more_features() -> None:
    loose, tight = fitted(tolerance=0.2), fitted(tolerance=0.001)
    assert loose.num_features_ < tight.num_features_
    assert loose.certificate_.holds
    assert tight.certificate_.holds
    assert tight.certificate_.error <= 0.001
    with pytest.raises(InputError, match="tolerance must be a positive number"):
        fitted(tolerance=0.0)


def test_a_loaded_model_has_the_same_bounds(tmp_path, grid) -> None:
    model = fitted()
    model.save(tmp_path / "model.orthogp")
    loaded = GPRegressor.load(tmp_path / "model.orthogp")
    assert loaded.certificate_ == model.certificate_
    for before, after in zip(
        model.predict(grid, return_bounds=True)[1], loaded.predict(grid, return_bounds=True)[1]
    ):
        np.testing.assert_allclose(after, before, rtol=1e-9)


def test_draws_derivatives_and_integrals_are_about_the_polished_mean(grid) -> None:
    model, exact = fitted(mean=None), fitted(mean=None, solver="exact")
    assert model.posterior_.polished is not None
    draws = model.sample_y(grid[::20], 2000, random_state=0)
    mean, std = exact.predict(grid[::20], return_std=True)
    # The largest of ten standard normals exceeds 4.5 once in 15,000 times.
    assert np.max(np.abs(draws.mean(axis=1) - mean) / std) * np.sqrt(2000) < 4.5
    slope, slope_std = model.predict_derivative(grid[5:-5:20])
    exact_slope, _ = exact.predict_derivative(grid[5:-5:20])
    assert np.max(np.abs(slope - exact_slope) / slope_std) < 0.1
    total, _ = model.predict_integral([[0.1]], [[0.8]])
    fine = np.linspace(0.1, 0.8, 4001)
    np.testing.assert_allclose(total, np.trapezoid(exact.predict(fine[:, None]), fine), rtol=1e-3)


def test_the_worst_error_is_found_between_the_points_of_the_grid() -> None:
    # Clusters of few rows, a rough kernel: variances dip at the rows alone.
    rng = np.random.default_rng(3)
    X = np.concatenate([c + 0.002 * rng.standard_normal(8) for c in (0.1, 0.47, 0.9)])[:, None]
    y = np.sin(9 * X[:, 0])
    settings = {"noise_variance": 2e-3, "learn": False, "num_features": 601}
    model, exact = (
        GPRegressor(Matern12(1.0, 0.2), solver=solver, **settings).fit(X, y)
        for solver in ("dense", "exact")
    )
    std, there = (own.predict(X, return_std=True)[1] for own in (model, exact))
    assert np.max(np.abs(std**2 / there**2 - 1)) <= model.certificate_.variance_error


def test_images_that_vanish_at_the_longest_period_still_ask_for_a_longer_one() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (20_000, 1))
    y = np.sin(3 * X[:, 0]) + 0.05 * rng.standard_normal(len(X))
    kernel = Matern(nu=2.2, variance=1.0, lengthscale=0.4)
    model = GPRegressor(kernel, noise_variance=0.0025, learn=False, solver="dense")
    assert model.fit(X, y).certificate_.holds
