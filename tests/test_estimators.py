"""GPRegressor: what users rely on, end to end."""

import contextlib
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orthogp import FitWarning, GPRegressor, InputError, OutOfDomainWarning
from orthogp.kernels import RBF, Matern12, Matern32, Matern52, QuasiPeriodic


def waves(num_rows, num_dims=1, *, noise=0.1, seed=0):
    """Return inputs, noisy targets and the function behind them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, num_dims))
    f = np.sin(8 * X[:, 0]) + sum(np.cos(4 * X[:, d] + d) for d in range(1, num_dims))
    return X, f + noise * rng.standard_normal(num_rows), f


@pytest.fixture(scope="module")
def fitted():
    X, y, f = waves(600)
    return X, y, f, GPRegressor("rbf").fit(X, y)


@pytest.fixture(scope="module")
def on_lattice(fitted):
    """The model of the same rows by features, which covers a domain."""
    X, y, f, _ = fitted
    return X, y, f, GPRegressor("rbf", solver="dense").fit(X, y)


@pytest.fixture(scope="module", params=["exact", "dense"])
def either(request, fitted, on_lattice):
    return fitted if request.param == "exact" else on_lattice


# ---------------------------------------------------------------------- agreement with the exact GP


@pytest.mark.parametrize(
    ("num_dims", "kernel", "reference"),
    [
        (1, RBF(1.5, 0.1), 1.5 * sk.RBF(0.1)),
        (1, Matern52(1.5, 0.3), 1.5 * sk.Matern(0.3, nu=2.5)),
        (2, RBF(1.5, [0.35, 0.45]), 1.5 * sk.RBF([0.35, 0.45])),
        (3, RBF(1.5, [0.9, 1.0, 1.1]), 1.5 * sk.RBF([0.9, 1.0, 1.1])),
    ],
)
def test_fixed_hyperparameters_agree_with_scikit_learns_exact_gp(num_dims, kernel, reference):
    X, y, _ = waves(500, num_dims)
    X_new = np.random.default_rng(1).uniform(0, 1, (200, num_dims))
    model = GPRegressor(
        kernel, mean=None, learn=False, noise_variance=0.05, wrap_tolerance=1e-9, num_features=2001
    ).fit(X, y)
    exact = GaussianProcessRegressor(reference, alpha=0.05, optimizer=None).fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    exact_mean, exact_std = exact.predict(X_new, return_std=True)
    np.testing.assert_allclose(mean, exact_mean, atol=1e-6)
    np.testing.assert_allclose(std, exact_std, atol=1e-6)
    _, covariance = model.predict(X_new, return_cov=True)
    np.testing.assert_allclose(covariance, exact.predict(X_new, return_cov=True)[1], atol=1e-6)
    likelihood = exact.log_marginal_likelihood_value_
    assert model.elbo_ <= likelihood + 1e-5
    assert model.upper_bound_ >= likelihood - 1e-5
    assert model.upper_bound_ - model.elbo_ < 1e-2


def test_constant_mean_is_a_constant_kernel_integrated_out():
    X, y, _ = waves(300)
    y = y + 7
    model = GPRegressor(RBF(1.0, 0.1), learn=False, noise_variance=0.02, wrap_tolerance=1e-9)
    model.fit(X, y)
    offset_variance = 100 * model.target_scale_[0] ** 2
    kernel = sk.RBF(0.1) + sk.ConstantKernel(offset_variance)
    exact = GaussianProcessRegressor(kernel, alpha=0.02, optimizer=None).fit(X, y - y.mean())
    X_new = np.linspace(0, 1, 50)[:, None]
    mean, std = model.predict(X_new, return_std=True)
    exact_mean, exact_std = exact.predict(X_new, return_std=True)
    np.testing.assert_allclose(mean, exact_mean + y.mean(), atol=1e-6)
    np.testing.assert_allclose(std, exact_std, atol=1e-6)


def test_certificate_bounds_the_error_of_means_and_variances():
    X, y, _ = waves(400)
    model = GPRegressor("matern52").fit(X, y)
    assert model.certificate_.holds
    kernel = model.kernel_
    reference = sk.ConstantKernel(float(kernel.variance)) * sk.Matern(
        float(kernel.lengthscale), nu=2.5
    ) + sk.ConstantKernel(100 * model.target_scale_[0] ** 2)
    exact = GaussianProcessRegressor(reference, alpha=model.noise_variance_, optimizer=None)
    exact.fit(X, y - y.mean())
    X_new = np.linspace(0, 1, 101)[:, None]
    mean, std = model.predict(X_new, return_std=True)
    exact_mean, exact_std = exact.predict(X_new, return_std=True)
    # The certificate is relative to the wrapped prior, which differs by less than 1e-4 here.
    slack = 1e-3
    error = np.abs(mean - y.mean() - exact_mean) / exact_std
    assert error.max() <= model.certificate_.mean_error + slack
    ratio = std**2 / exact_std**2
    assert np.abs(ratio - 1).max() <= model.certificate_.variance_error + slack


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize("lengthscale", [0.03, 0.1])
def test_hyperparameters_are_recovered_on_simulated_data(lengthscale):
    # Spread of the estimates over simulations: about 15 % for variance and lengthscale, 2 % for the
    # noise; the tolerances are beyond four standard deviations.
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0, 2, 1500))[:, None]
    K = 2.0 * sk.Matern(lengthscale, nu=1.5)(X)
    f = np.linalg.cholesky(K + 1e-10 * np.eye(len(X))) @ rng.standard_normal(len(X))
    model = GPRegressor("matern32").fit(X, f + 0.2 * rng.standard_normal(len(X)))
    assert np.log(float(model.kernel_.lengthscale) / lengthscale) == pytest.approx(0, abs=0.6)
    assert np.log(model.kernel_.variance / 2.0) == pytest.approx(0, abs=1.0)
    assert np.log(model.noise_variance_ / 0.04) == pytest.approx(0, abs=0.2)


def test_learning_finds_the_optimum_of_the_exact_marginal_likelihood():
    X, y, _ = waves(150)
    model = GPRegressor("rbf", mean=None).fit(X, y)
    exact = GaussianProcessRegressor(
        sk.ConstantKernel(1.0, (1e-5, 1e5)) * sk.RBF(0.2) + sk.WhiteKernel(0.01),
        n_restarts_optimizer=2,
        random_state=0,
    ).fit(X, y)
    assert model.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.01)


@pytest.mark.parametrize("solver", ["auto", "dense"])
def test_linear_mean_takes_up_a_trend(solver):
    X, y, f = waves(400)
    trend = 50 + 30 * X[:, 0]
    model = GPRegressor("matern52", mean="linear", solver=solver).fit(X, y + trend)
    assert np.sqrt(np.mean((model.predict(X) - f - trend) ** 2)) < 0.05
    # Rows that are kept can be asked about any point; a lattice ends somewhere.
    warned = contextlib.nullcontext() if solver == "auto" else pytest.warns(OutOfDomainWarning)
    with warned:
        far = model.predict(np.array([[100.0], [101.0]]))
    assert far[1] - far[0] == pytest.approx(30, abs=6)


def test_anisotropic_data_get_lengthscales_of_their_own():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (3000, 2))
    y = np.sin(12 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(3000)
    model = GPRegressor("rbf", solver="dense", max_features=300).fit(X, y)
    assert model.kernel_.lengthscale[1] > 3 * model.kernel_.lengthscale[0]


def test_result_does_not_depend_on_units_of_inputs_and_targets():
    X, y, _ = waves(300)
    X_new = np.linspace(0, 1, 20)[:, None]
    mean, std = GPRegressor("matern52").fit(X, y).predict(X_new, return_std=True)
    moved = GPRegressor("matern52").fit(1e4 * X + 3e5, 1e-3 * y + 40)
    other_mean, other_std = moved.predict(1e4 * X_new + 3e5, return_std=True)
    np.testing.assert_allclose(1e3 * (other_mean - 40), mean, atol=2e-4)
    np.testing.assert_allclose(1e3 * other_std, std, rtol=1e-2)


def test_bounds_are_in_the_units_of_the_targets():
    X, y, _ = waves(200)
    model = GPRegressor("rbf").fit(X, y)
    scaled = GPRegressor("rbf").fit(X, 10 * y)
    assert scaled.elbo_ == pytest.approx(model.elbo_ - 200 * np.log(10), abs=0.01)


def test_one_number_of_features_is_used_when_asked():
    X, y, _ = waves(300)
    model = GPRegressor("matern32", num_features=51).fit(X, y)
    assert model.features_.num_features == 51
    assert "51 features asked for" in model.status_


@pytest.mark.parametrize("solver", ["auto", "dense", "neighbours"])
def test_max_seconds_stops_learning(solver):
    X, y, _ = waves(500, 2)
    model = GPRegressor("matern32", max_seconds=1e-3, solver=solver).fit(X, y)
    if solver == "dense":
        assert model.features_.num_features < 2000
    assert "raise max_seconds to go on" in model.status_
    assert np.isfinite(model.elbo_)


def test_quasi_periodic_kernel_finds_the_period():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 30, (600, 1))
    phase = 2 * np.pi * X[:, 0] / 1.7
    y = np.sin(phase) + 0.4 * np.cos(2 * phase) + 0.1 * rng.standard_normal(600)
    model = GPRegressor("quasi-periodic").fit(X, y)
    ratio = float(model.kernel_.period) / 1.7
    assert abs(ratio - round(ratio)) < 0.01
    assert round(ratio) in (1, 2)


# ---------------------------------------------------------------------- rows in, rows out


def test_partial_fit_equals_fit_on_all_rows():
    X, y, _ = waves(900)
    kernel = Matern32(1.0, 0.2)
    options = {"learn": False, "noise_variance": 0.01, "domain": (0.0, 1.0)}
    whole = GPRegressor(kernel, **options).fit(X, y)
    parts = GPRegressor(kernel, **options)
    for rows in np.array_split(np.arange(900), 3):
        parts.partial_fit(X[rows], y[rows])
    X_new = np.linspace(0, 1, 50)[:, None]
    for one, other in zip(
        whole.predict(X_new, return_std=True), parts.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(other, one, atol=1e-6)
    assert parts.statistics_.rows == 900


@pytest.mark.parametrize("learn", [False, True])
def test_adding_then_forgetting_rows_restores_the_model(learn):
    X, y, _ = waves(400)
    kernel = RBF(1.0, 0.2)
    model = GPRegressor(kernel, learn=learn, noise_variance=0.01).fit(X, y)
    X_new = np.linspace(0.1, 0.9, 30)[:, None]
    before = model.predict(X_new, return_std=True)
    rng = np.random.default_rng(5)
    X_more = rng.uniform(0, 1, (200, 1))
    y_more = 3 + rng.standard_normal(200)
    changed = model.partial_fit(X_more, y_more).predict(X_new)
    assert np.abs(changed - before[0]).max() > 0.1
    after = model.forget(X_more, y_more).predict(X_new, return_std=True)
    tolerance = 2e-3 if learn else 1e-8
    np.testing.assert_allclose(after[0], before[0], atol=tolerance)
    np.testing.assert_allclose(after[1], before[1], atol=tolerance)


def test_failed_partial_fit_leaves_the_model_as_it_was(either):
    model = either[3]
    model = pickle.loads(pickle.dumps(model))
    X_new = np.linspace(0, 1, 20)[:, None]
    before, statistics = model.predict(X_new), model.statistics_
    bad = [
        (np.array([[0.5], [np.nan]]), [1.0, 2.0]),
        (np.array([[0.5], [0.6]]), [1.0, np.inf]),
        (np.array([[0.5, 0.5]]), [1.0]),
        (np.array([[0.5], [0.6]]), [[1.0, 2.0], [3.0, 4.0]]),
    ]
    if model.engine_ == "dense":
        # Beyond the lattice.
        bad.append((np.array([[1e6], [0.5]]), [1.0, 2.0]))
    for X_bad, y_bad in bad:
        with pytest.raises(ValueError, match=r"\w"):
            model.partial_fit(X_bad, y_bad)
    np.testing.assert_array_equal(model.predict(X_new), before)
    assert model.statistics_ is statistics


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_sums_do_not_serve_engines_that_need_the_rows(on_lattice, solver):
    X, y, _, model = on_lattice
    model = pickle.loads(pickle.dumps(model)).set_params(solver=solver)
    before = model.predict(X)
    with pytest.raises(InputError, match=f'solver="{solver}" needs all rows at once'):
        model.partial_fit(X[:5], y[:5])
    np.testing.assert_array_equal(model.predict(X), before)


# An exact search ends where a step promises less than 1e-4 nats, a hundredth of a posterior sd.
@pytest.mark.parametrize(
    ("solver", "learn", "tolerance"),
    [("dense", True, 1e-5), ("exact", True, 2e-4), ("exact", False, 1e-9)],
)
def test_weights_that_repeat_rows_equal_repeated_rows(solver, learn, tolerance):
    X, y, _ = waves(200)
    weights = np.random.default_rng(0).integers(0, 4, 200)
    kernel = "rbf" if learn else RBF(1.0, 0.2)
    model = GPRegressor(kernel, noise_variance=0.01, learn=learn, domain=(0, 1), solver=solver)
    weighted = clone(model).fit(X, y, sample_weight=weights)
    repeated = clone(model).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    X_new = np.linspace(0, 1, 20)[:, None]
    np.testing.assert_allclose(weighted.predict(X_new), repeated.predict(X_new), atol=tolerance)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=1e-3)


def test_weights_as_precisions_divide_the_noise_variance():
    X, y, _ = waves(150)
    weights = np.random.default_rng(0).uniform(0.1, 5, 150)
    kernel = RBF(1.0, 0.2)
    model = GPRegressor(
        kernel,
        mean=None,
        learn=False,
        noise_variance=0.02,
        weights="precisions",
        wrap_tolerance=1e-9,
    ).fit(X, y, sample_weight=weights)
    exact = GaussianProcessRegressor(sk.RBF(0.2), alpha=0.02 / weights, optimizer=None).fit(X, y)
    X_new = np.linspace(0, 1, 20)[:, None]
    np.testing.assert_allclose(model.predict(X_new), exact.predict(X_new), atol=1e-6)
    assert model.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-3)


def test_duplicated_rows_need_no_jitter():
    X, y, _ = waves(50)
    model = GPRegressor(RBF(1.0, 0.2), learn=False, noise_variance=1e-2)
    with pytest.warns(FitWarning, match="Every row occurs 20 times"):
        model.fit(np.tile(X, (20, 1)), np.tile(y, 20))
    mean, std = model.predict(X, return_std=True)
    assert np.all(np.isfinite(mean))
    assert np.all(std > 0)


# ---------------------------------------------------------------------- predictions


def test_several_targets_equal_one_model_each_with_the_same_kernel():
    X, y, f = waves(300)
    Y = np.stack([y, 100 + 5 * np.cos(9 * X[:, 0]) + y - f], axis=1)
    kernel = RBF(4.0, 0.2)
    options = {"learn": False, "noise_variance": 0.02}
    both = GPRegressor(kernel, **options).fit(X, Y)
    X_new = np.linspace(0, 1, 30)[:, None]
    mean, std = both.predict(X_new, return_std=True)
    assert mean.shape == std.shape == (30, 2)
    assert both.predict(X_new, return_cov=True)[1].shape == (30, 30, 2)
    assert both.sample_y(X_new, 4, random_state=0).shape == (30, 2, 4)
    for j in range(2):
        alone = GPRegressor(kernel, **options).fit(X, Y[:, j])
        one_mean, one_std = alone.predict(X_new, return_std=True)
        # The broad prior of the constant scales with all targets here, with one there.
        np.testing.assert_allclose(mean[:, j], one_mean, atol=1e-4)
        np.testing.assert_allclose(std[:, j], one_std, atol=1e-4)


def test_noise_is_included_when_asked(fitted):
    X, y, f, model = fitted
    _, std = model.predict(X, return_std=True)
    mean, noisy = model.predict(X, return_std=True, include_noise=True)
    np.testing.assert_allclose(noisy**2 - std**2, model.noise_variance_, rtol=1e-6)
    _, covariance = model.predict(X[:5], return_cov=True, include_noise=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), noisy[:5], rtol=1e-6)
    # 600 observations: coverage 0.95 has a standard deviation of 0.009.
    assert np.mean(np.abs(y - mean) < 1.96 * noisy) == pytest.approx(0.95, abs=0.04)
    assert np.sqrt(np.mean((mean - f) ** 2)) < 0.03


def test_draws_agree_with_themselves_and_with_the_posterior(either):
    model = either[3]
    functions = model.draw_functions(3, random_state=1)
    X_new = np.linspace(0, 1, 40)[:, None]
    np.testing.assert_array_equal(functions(X_new), functions(X_new))
    if model.engine_ == "dense":
        # Features draw functions; rows draw values, jointly at the points asked for.
        np.testing.assert_allclose(functions(X_new)[::2], functions(X_new[::2]), atol=1e-9)
    np.testing.assert_array_equal(
        model.sample_y(X_new, 2, random_state=3), model.sample_y(X_new, 2, random_state=3)
    )
    draws = model.sample_y(X_new, 2000, random_state=0)
    mean, std = model.predict(X_new, return_std=True)
    # z-scores of 40 means: beyond 5 with probability 2e-5.
    assert np.abs((draws.mean(axis=1) - mean) / (std / np.sqrt(2000))).max() < 5
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.1)


def test_derivative_and_integral_are_in_the_units_of_the_data(fitted):
    model = fitted[3]
    X_new = np.linspace(0.1, 0.9, 9)[:, None]
    slope, slope_std = model.predict_derivative(X_new)
    difference = (model.predict(X_new + 1e-5) - model.predict(X_new - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, difference, atol=1e-5)
    assert np.all(slope_std > 0)
    area, area_std = model.predict_integral([[0.2]], [[0.7]])
    grid = np.linspace(0.2, 0.7, 2001)
    np.testing.assert_allclose(area[0], np.trapezoid(model.predict(grid[:, None]), grid), atol=1e-6)
    assert 0 < area_std[0] < 0.05


def test_beyond_the_covered_domain_the_prediction_is_the_prior_with_one_warning(on_lattice):
    model = on_lattice[3]
    with pytest.warns(OutOfDomainWarning, match="2 of 3 points") as caught:
        mean, std = model.predict([[0.5], [40.0], [-50.0]], return_std=True)
    assert len(caught) == 1
    assert mean[1] == mean[2]
    with pytest.warns(OutOfDomainWarning) as caught:
        model.predict([[0.5], [40.0]], return_cov=True)
    assert len(caught) == 1
    assert std[1] ** 2 >= float(model.kernel_.variance)
    assert std[0] < 0.1 * std[1]


def test_prediction_joins_the_prior_smoothly_at_the_edge_of_the_covered_domain(on_lattice):
    model = on_lattice[3]
    edge = model.domain_.upper[0]
    inside = model.predict([[edge - 1e-9]])
    with pytest.warns(OutOfDomainWarning):
        outside = model.predict([[edge + 1e-9]])
    assert abs(inside[0] - outside[0]) < 0.02 * np.sqrt(float(model.kernel_.variance))


def test_an_exact_model_returns_to_the_prior_far_from_the_rows_without_a_warning(fitted):
    model = fitted[3]
    mean, std = model.predict([[0.5], [40.0], [-50.0]], return_std=True)
    assert mean[1] == pytest.approx(mean[2], rel=1e-9)
    assert std[1] ** 2 >= float(model.kernel_.variance)
    assert std[0] < 0.1 * std[1]


def test_domain_extends_the_covered_region():
    X, y, _ = waves(200)
    model = GPRegressor("rbf", domain=(-5, 6)).fit(X, y)
    assert model.domain_.lower[0] <= -5
    assert model.domain_.upper[0] >= 6


def test_variances_are_never_negative_even_without_noise():
    X, _, f = waves(200)
    model = GPRegressor("rbf").fit(X, f)
    _, std = model.predict(np.linspace(-0.2, 1.2, 500)[:, None], return_std=True)
    assert np.all(std >= 0)
    assert np.all(np.isfinite(std))


@pytest.mark.parametrize("solver", ["exact", "dense", "neighbours"])
def test_kernel_on_some_columns_ignores_the_others(solver):
    X, y, _ = waves(100, 2)
    rng = np.random.default_rng(1)
    wide = np.column_stack([rng.standard_normal((100, 2)), X[:, 0], np.ones(100), X[:, 1]])
    options = {"learn": False, "noise_variance": 0.01, "solver": solver}
    narrow = GPRegressor(RBF(1.0, 0.3).on(0) + RBF(1.0, 0.4).on(1), **options).fit(X, y)
    model = GPRegressor(RBF(1.0, 0.3).on(2) + RBF(1.0, 0.4).on(4), **options).fit(wide, y)
    np.testing.assert_array_equal(model.columns_, [2, 4])
    np.testing.assert_allclose(model.predict(wide), narrow.predict(X), atol=1e-9)
    slope, _ = model.predict_derivative(wide, dim=4)
    np.testing.assert_allclose(slope, narrow.predict_derivative(X, dim=1)[0], atol=1e-8)
    assert "on column 4" in model.summary()
    model.partial_fit(wide, y)
    assert model.statistics_.rows == 200
    narrow.partial_fit(X, y)
    np.testing.assert_allclose(model.predict(wide), narrow.predict(X), atol=1e-9)


# ---------------------------------------------------------------------- around scikit-learn


def test_pandas_and_polars_frames_keep_their_column_names():
    X, y, _ = waves(100, 2)
    frame = pd.DataFrame(X, columns=["lon", "lat"])
    model = GPRegressor("rbf", max_features=200).fit(frame, pd.Series(y))
    assert list(model.feature_names_in_) == ["lon", "lat"]
    assert model.n_features_in_ == 2
    np.testing.assert_array_equal(model.predict(frame), model.fit(frame, y).predict(frame))
    polars = GPRegressor("rbf", max_features=200).fit(pl.DataFrame(frame), pl.Series(y))
    assert list(polars.feature_names_in_) == ["lon", "lat"]
    np.testing.assert_allclose(polars.predict(pl.DataFrame(frame)), model.predict(frame))


def test_float32_rows_are_accumulated_in_double_precision():
    X, y, _ = waves(500)
    kernel = RBF(1.0, 0.2)
    single = GPRegressor(kernel, learn=False, noise_variance=0.01)
    single.fit(X.astype(np.float32), y.astype(np.float32))
    double = GPRegressor(kernel, learn=False, noise_variance=0.01)
    double.fit(X.astype(np.float32).astype(float), y.astype(np.float32).astype(float))
    np.testing.assert_allclose(single.predict(X), double.predict(X), atol=1e-9)
    assert single.predict(X.astype(np.float32)).dtype == np.float64


def test_works_in_pipelines_grid_searches_and_clones():
    X, y, _ = waves(120)
    pipeline = make_pipeline(StandardScaler(), GPRegressor("rbf", max_features=100)).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    search = GridSearchCV(GPRegressor(max_features=100), {"kernel": ["rbf", Matern12()]}, cv=2).fit(
        X, y
    )
    assert search.best_params_["kernel"] == "rbf"
    model = GPRegressor(RBF(2.0, 0.3) + QuasiPeriodic(), mean="linear", domain=(0, 2))
    copy = clone(model)
    assert copy.get_params()["domain"] == (0, 2)
    assert not hasattr(copy, "posterior_")


def test_pickled_model_predicts_the_same(either):
    X, _, _, model = either
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_pickled_models_that_keep_their_rows_predict_the_same_and_go_on(solver):
    X, y, _ = waves(80, 3)
    kernel = RBF(1.0, 0.3).on(0) * QuasiPeriodic().on(2)
    model = GPRegressor(kernel, noise_variance=0.01, learn=False, solver=solver).fit(X, y)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))
    more, targets, _ = waves(20, 3, seed=1)
    for own in (model, restored):
        own.partial_fit(more, targets)
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))


def test_scikit_learn_kernels_set_noise_and_fixed_parameters():
    X, y, _ = waves(300)
    kernel = sk.ConstantKernel(2.0) * sk.RBF(0.1, "fixed") + sk.WhiteKernel(0.1)
    model = GPRegressor(kernel).fit(X, y)
    assert float(model.kernel_.lengthscale) == 0.1
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.3)
    fixed = GPRegressor(kernel, learn=False).fit(X, y)
    assert fixed.noise_variance_ == pytest.approx(0.1)
    assert float(fixed.kernel_.variance) == pytest.approx(2.0)


def test_summary_names_all_that_was_promised(either):
    model = either[3]
    text = model.summary()
    own = {"dense": ("M = ", "elbo", "dense lattice"), "exact": ("exact: all rows", "is exact")}
    for word in (
        *own[model.engine_],
        "RBF",
        "lengthscale",
        "noise",
        "log p(y)",
        "certificate",
        "seconds",
        "600 rows",
    ):
        assert word in text


def test_noise_alone_is_learned_when_the_kernel_is_fixed():
    X, y, _ = waves(300)
    model = GPRegressor(RBF(1.0, 0.2).fix()).fit(X, y)
    assert float(model.kernel_.variance) == pytest.approx(1.0)
    assert float(model.kernel_.lengthscale) == 0.2
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.3)


def test_seasons_are_not_taken_for_noise() -> None:
    # A slow trend of large variance and a fast, smooth season: few features see the trend only.
    t = np.linspace(0, 40, 1500)
    y = 0.4 * (t - 20) ** 2 / 20 + 3 * np.sin(2 * np.pi * t)
    y = y + 0.3 * np.random.default_rng(0).standard_normal(len(t))
    model = GPRegressor("rbf").fit(t[:, None], y)
    assert np.sqrt(model.noise_variance_) == pytest.approx(0.3, rel=0.1)


def test_a_lattice_without_more_modes_ends_the_growth_of_features():
    # Fewer modes than a certificate asks for, and than the sums have without a shorter period.
    rng = np.random.default_rng(6)
    X = rng.uniform(0, 1, (500, 2))
    y = np.sin(9 * X[:, 0]) + rng.standard_normal(500)
    model = GPRegressor("matern32", noise_variance=0.01, learn=False, solver="dense").fit(X, y)
    assert 500 < model.num_features_ <= 2000


def test_rows_can_be_added_where_the_kernel_leaves_out_columns():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(80, 3))
    y = np.sin(6 * X[:, 2]) + 0.1 * rng.standard_normal(80)
    model = GPRegressor(Matern32(1.0, 0.3).on(2)).fit(X[:60], y[:60])
    assert model.engine_ == "exact"
    model.partial_fit(X[60:], y[60:])
    assert model.statistics_.rows == 80
    np.testing.assert_array_equal(model.columns_, [2])


@pytest.mark.parametrize("solver", ["exact", "dense", "neighbours"])
def test_targets_whose_noise_levels_differ_are_warned_of(solver):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (400, 1))
    noise = rng.standard_normal((400, 2))
    signal = np.c_[np.sin(X[:, 0]), np.cos(X[:, 0])]
    model = GPRegressor(RBF(), noise_variance=0.1, learn=False, solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, signal + noise * [0.2, 0.25])
    with pytest.warns(FitWarning, match="too narrow for target 1 and too wide for target 0"):
        model.fit(X, signal + noise * [0.05, 1.0])
    assert "the same for all targets" in model.summary()
