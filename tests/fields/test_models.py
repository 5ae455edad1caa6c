"""GPRegressor with the iterative solver: its choice, its budgets, and its answers."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.errors import InputError
from orthogp.features import Lattice
from orthogp.fields.posterior import IterativePosterior
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.posterior import Posterior
from orthogp.kernels import RBF, Matern12, Matern32, Matern52


def rough_rows(rows=6000, num_dims=1, seed=0):
    """Return rows of a rough function with little noise, and the function."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (rows, num_dims))
    y = np.sin(3 * X[:, 0]) + 0.1 * np.sin(90 * X[:, 0]) + 0.3 * X[:, -1]
    return X, y + 0.02 * rng.standard_normal(rows)


@pytest.fixture(scope="module")
def fitted():
    X, y = rough_rows()
    kernel = Matern12(1.0, 2.0)
    return GPRegressor(kernel, noise_variance=0.01, learn=False, solver="iterative").fit(X, y), X, y


def test_iterative_predictions_are_the_exact_ones(fitted):
    model, X, y = fitted
    exact = GPRegressor(Matern12(1.0, 2.0), noise_variance=0.01, learn=False, features="exact")
    few = np.random.default_rng(0).choice(len(X), 1500, replace=False)
    model = GPRegressor(
        Matern12(1.0, 2.0), noise_variance=0.01, learn=False, solver="iterative"
    ).fit(X[few], y[few])
    exact.fit(X[few], y[few])
    at = np.linspace(0.1, 9.9, 300)[:, None]
    mean, std = model.predict(at, return_std=True)
    exact_mean, exact_std = exact.predict(at, return_std=True)
    assert np.max(np.abs(mean - exact_mean) / exact_std) < 0.15
    assert np.sqrt(np.mean((std / exact_std - 1) ** 2)) < 0.05


def test_the_summary_says_which_solver_and_why(fitted):
    model, _, _ = fitted
    assert isinstance(model.posterior_, IterativePosterior)
    assert "Solved iteratively" in model.summary()
    assert "relative error" in model.status_
    assert model.num_features_ > 2000


def test_bounds_enclose_the_exact_evidence():
    X, y = rough_rows(800)
    settings = {"noise_variance": 0.02, "learn": False}
    model = GPRegressor(Matern12(1.0, 2.0), solver="iterative", **settings).fit(X, y)
    exact = GPRegressor(Matern12(1.0, 2.0), features="exact", **settings).fit(X, y)
    # The log-determinant has an error of its own, of about a nat here.
    assert model.elbo_ - 3 < exact.elbo_ < model.upper_bound_ + 3


def test_draws_scatter_around_the_mean_as_the_standard_deviations_say(fitted):
    model, _, _ = fitted
    at = np.linspace(0.5, 9.5, 40)[:, None]
    mean, std = model.predict(at, return_std=True)
    draws = model.sample_y(at, 200, random_state=1)
    z = (draws - mean[:, None]) / std[:, None]
    # Draws are functions on the lattice: what it does not resolve is in the deviations only.
    unresolved = model.posterior_.residual * model.target_scale_[0] ** 2
    # 40 points, about half of them independent, of 200 draws each.
    assert np.mean(z**2) == pytest.approx(np.mean(1 - unresolved / std**2), abs=0.12)
    assert np.max(np.abs(z.mean(axis=1))) < 4.5 / np.sqrt(200)


def test_joint_covariances_agree_with_standard_deviations(fitted):
    model, _, _ = fitted
    at = np.linspace(1, 9, 5)[:, None]
    _, covariance = model.predict(at, return_cov=True)
    _, std = model.predict(at, return_std=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=0.15)
    with pytest.raises(InputError, match="at up to 256 points"):
        model.predict(np.zeros((300, 1)) + 5, return_cov=True)


@pytest.mark.slow
def test_auto_turns_to_the_iterative_solver_where_the_dense_one_would_blur():
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 1, (20_000, 1)), axis=0)
    y = np.cumsum(rng.standard_normal(20_000)) / 141 + 0.005 * rng.standard_normal(20_000)
    test = rng.random(20_000) < 0.1
    auto = GPRegressor("matern12", features="lattice").fit(X[~test], y[~test])
    dense = GPRegressor("matern12", solver="dense").fit(X[~test], y[~test])
    assert isinstance(auto.posterior_, IterativePosterior)
    errors = [np.sqrt(np.mean((model.predict(X[test]) - y[test]) ** 2)) for model in (auto, dense)]
    # The dense mean is polished with modes beyond its features; its variances cannot be.
    assert errors[0] < 0.95 * errors[1]
    assert auto.noise_variance_ < dense.noise_variance_ / 2
    mean, std = auto.predict(X[test], return_std=True, include_noise=True)
    # A binomial share of 2,000 rows, and what 5 % of error in the variance may shift.
    assert np.mean(np.abs(y[test] - mean) < 1.96 * std) == pytest.approx(0.95, abs=0.03)


def test_auto_stays_with_the_dense_solver_for_smooth_functions():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (5000, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(5000)
    model = GPRegressor("rbf").fit(X, y)
    assert not isinstance(model.posterior_, IterativePosterior)
    assert model.certificate_.holds


@pytest.mark.slow
def test_more_features_than_a_dense_matrix_should_have_are_solved_iteratively():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (4000, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(4000)
    model = GPRegressor(
        Matern12(1.0, 0.3), noise_variance=0.01, learn=False, num_features=12_000
    ).fit(X, y)
    assert "Solved iteratively" in model.status_
    assert "as asked" in model.status_
    # The noise level, not the number asked for, is what ends the lattice.
    assert 1000 < model.num_features_ <= 12_600


def test_a_period_too_short_for_the_kernel_is_said():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (500, 2))
    y = rng.standard_normal(500)
    settings = {"noise_variance": 1.0, "learn": False, "solver": "iterative"}
    short, long = (
        GPRegressor(Matern12(1.0, length), **settings).fit(X, y) for length in (0.05, 1.0)
    )
    assert "give a larger `domain`" not in short.status_
    assert "give a larger `domain`" in long.status_
    wide = GPRegressor(Matern12(1.0, 1.0), domain=([-6, -6], [7, 7]), **settings).fit(X, y)
    assert "give a larger `domain`" not in wide.status_


def test_rows_can_be_added_and_taken_out_again(fitted):
    _, X, y = fitted
    new, targets = rough_rows(500, seed=5)
    model = GPRegressor(
        Matern12(1.0, 2.0), noise_variance=0.01, learn=False, solver="iterative"
    ).fit(X[:3000], y[:3000])
    at = np.linspace(1, 9, 50)[:, None]
    before = model.predict(at)
    model.partial_fit(new, targets)
    assert isinstance(model.posterior_, IterativePosterior)
    added = model.predict(at)
    assert np.max(np.abs(added - before)) > 1e-3
    model.forget(new, targets)
    # Solved to 0.01 posterior standard deviations both times.
    np.testing.assert_allclose(model.predict(at), before, atol=2e-3)


def test_a_cancelled_fit_leaves_the_last_good_model(fitted, monkeypatch):
    model, X, y = fitted
    at = np.linspace(1, 9, 20)[:, None]
    before = model.predict(at)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("orthogp.fields.fitting.solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:2000], y[:2000] + 1)
    np.testing.assert_array_equal(model.predict(at), before)


@pytest.mark.slow
def test_memory_budgets_limit_the_number_of_features():
    X, y = rough_rows()
    settings = {"noise_variance": 0.01, "learn": False, "solver": "iterative"}
    small = GPRegressor(Matern12(1.0, 2.0), max_memory=4e6, **settings).fit(X, y)
    large = GPRegressor(Matern12(1.0, 2.0), **settings).fit(X, y)
    assert small.num_features_ < large.num_features_
    assert small.num_features_ <= 4e6 / 1000
    assert "max_memory" in small.status_
    with pytest.raises(InputError, match=r"max_memory = .* is too little for any model: give"):
        GPRegressor(Matern12(1.0, 2.0), max_memory=1e3, **settings).fit(X, y)


def test_a_time_budget_ends_learning_with_a_model():
    X, y = rough_rows()
    model = GPRegressor("matern12", solver="iterative", max_seconds=0.01).fit(X, y)
    assert "max_seconds" in model.status_
    assert np.isfinite(model.predict(X[:10])).all()


def test_kernels_on_planes_of_frequency_ask_for_the_dense_solver():
    X, y = rough_rows(num_dims=2)
    with pytest.raises(InputError, match='use solver="dense"'):
        GPRegressor(Matern32().on(0) + RBF().on(1), solver="iterative").fit(X, y)
    with pytest.raises(InputError, match="solver must be one of"):
        GPRegressor(solver="fast").fit(X, y)


def test_outside_the_domain_the_prior_predicts(fitted):
    model, _, _ = fitted
    with pytest.warns(UserWarning, match="outside the covered domain"):
        _, std = model.predict(np.array([[1e4]]), return_std=True)
    assert std[0] >= 1.0
    with pytest.raises(InputError, match="outside the covered domain"):
        model.sample_y(np.array([[1e4]]))


@pytest.mark.parametrize(("num_dims", "mean"), [(1, "linear"), (2, "constant"), (2, "linear")])
def test_derivatives_and_integrals_are_those_of_the_dense_solver(num_dims, mean):
    """Both take the same modes, so what they leave out, and bound, is the same."""
    X, y = rough_rows(1500, num_dims)
    kernel = Matern52(1.0, 2.0)
    settings = {"mean": mean, "noise_variance": 0.01, "learn": False, "num_features": 441}
    model = GPRegressor(kernel, solver="iterative", **settings).fit(X, y)
    lattice = model.features_.lattice
    features = Lattice(lattice, lattice.half_indices(), model.posterior_.mean_prior)
    shift = model.target_offset_ - model.target_shift_
    statistics = model.statistics_.standardised(shift, model.target_scale_)
    moments = moments_from_statistics(features, model.posterior_.kernel, statistics)
    noise = model.posterior_.noise_variance + model.posterior_.residual
    dense = Posterior(features, model.posterior_.kernel, noise, moments, model.domain_)
    at = np.random.default_rng(1).uniform(1, 9, (20, num_dims))
    for ours, theirs in (
        *((model.posterior_.derivative(at, d), dense.derivative(at, d)) for d in range(num_dims)),
        (model.posterior_.integral(at, at + 0.7), dense.integral(at, at + 0.7)),
    ):
        scale = np.sqrt(theirs.variance)
        assert np.max(np.abs(ours.mean - theirs.mean) / scale[:, None]) < 0.02
        np.testing.assert_allclose(ours.variance, theirs.variance, rtol=0.01)


def test_derivatives_of_rough_kernels_and_of_many_points_are_refused(fitted):
    model, X, y = fitted
    with pytest.raises(InputError, match="have no derivative"):
        model.predict_derivative(np.array([[5.0]]))
    smooth = GPRegressor(Matern32(), noise_variance=0.01, learn=False, solver="iterative")
    with pytest.raises(InputError, match="256 at a time, got 300: ask for them in pieces"):
        smooth.fit(X[:500], y[:500]).predict_derivative(np.linspace(1, 9, 300)[:, None])


@pytest.mark.parametrize(
    ("kernel", "function", "points", "mean"),
    [
        ("rbf", lambda x, z: x + 2 * z, 30, "constant"),
        pytest.param("rbf", lambda x, z: np.sin(x), 50, "constant", marks=pytest.mark.slow),
        pytest.param("matern52", lambda x, z: np.sin(x), 60, "linear", marks=pytest.mark.slow),
        pytest.param(
            "matern32", lambda x, z: np.sin(x) * np.cos(z), 300, "constant", marks=pytest.mark.slow
        ),
    ],
)
def test_a_smooth_function_on_a_grid_without_noise_is_fitted(kernel, function, points, mean):
    """Hyperparameters that such rows hardly tell apart have curvatures that are not definite."""
    axis = np.linspace(0, 6, points)
    X = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    y = function(*X.T)
    model = GPRegressor(kernel, solver="iterative", mean=mean, max_seconds=60).fit(X, y)
    assert np.max(np.abs(model.predict(X) - y)) < 0.03 * np.std(y)


@pytest.mark.parametrize("seed", range(3))
def test_as_few_rows_as_can_be_are_solved_iteratively(seed):
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(centre, 1e-4, (2, 2)) for centre in (0, 5)])
    model = GPRegressor("matern12", mean=None, max_features=30, solver="iterative")
    mean, std = model.fit(X, [0.0, 0.0, 1.0, 0.0]).predict(X, return_std=True)
    assert np.isfinite([mean, std]).all()
