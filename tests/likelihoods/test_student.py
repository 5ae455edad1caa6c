"""Noise with outliers: Student's t."""

import numpy as np
import pytest
from scipy import stats

from orthogp import GPRegressor
from orthogp.errors import InputError
from orthogp.exact.nongaussian import SiteObjective, SiteRows
from orthogp.features import MeanPrior
from orthogp.inference.likelihoods import StudentT
from orthogp.inference.parameters import pack
from orthogp.kernels import RBF
from orthogp.rows import Rows

GRID = np.linspace(0.2, 5.8, 40)[:, None]


def with_outliers(n=300, seed=0):
    """Rows of sin 2x with noise of sd 0.1, and 5 % of them with outliers of twenty sd above."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(n)
    y[: n // 20] += 2.0
    return X, y


def test_what_rows_add_is_a_bound_on_the_expected_log_density():
    own = StudentT(0.7, 3.0)
    y, mean, variance = np.array([0.3, -2.0, 9.0]), np.zeros(3), np.array([0.1, 1.0, 0.5])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
    expected = stats.t.logpdf(y[:, None], 3.0, f, 0.7) @ (weights / weights.sum())
    found = own.local(y, np.ones(3), mean, variance)
    assert np.all(found.value < expected)
    assert np.all(found.value > expected - 0.5)
    # Without variance nothing is lost.
    none = own.local(y, np.ones(3), mean, np.zeros(3))
    np.testing.assert_allclose(none.value, stats.t.logpdf(y, 3.0, 0.0, 0.7), rtol=1e-12)


def test_derivatives_are_finite_differences():
    own, y, mean, variance = StudentT(0.7, 3.0), *np.array([[0.3, 4.0], [0.1, -1.0], [0.5, 0.2]])
    weights = np.array([1.0, 2.0])
    found = own.local(y, weights, mean, variance)
    h = 1e-6
    by_mean = [own.local(y, weights, mean + s, variance).value for s in (h, -h)]
    by_variance = [own.local(y, weights, mean, variance + s).value for s in (h, -h)]
    np.testing.assert_allclose(found.slope, (by_mean[0] - by_mean[1]) / (2 * h), rtol=1e-6)
    slope = (by_variance[0] - by_variance[1]) / (2 * h)
    np.testing.assert_allclose(found.curvature, 2 * slope, rtol=1e-6)
    shape = own.shape
    priors = [own.log_prior(shape + s)[0] for s in ([0, h], [0, -h])]
    assert own.log_prior(shape)[1][1] == pytest.approx((priors[0] - priors[1]) / (2 * h), rel=1e-6)


def test_gradients_of_the_bound_are_finite_differences():
    X, y = with_outliers(30)
    mean = MeanPrior(100.0, 0.0, np.zeros(1), np.ones(1))
    likelihood = StudentT(0.2, 3.0)
    rows = SiteRows(Rows(X, y[:, None]), likelihood, 0.0)
    own = SiteObjective(RBF(1.0, 0.8), mean, rows, likelihood)
    vector = np.append(pack(own.kernel, own.slots), likelihood.shape)
    own.ascend(vector, tolerance=1e-13)
    found = own.evaluate(vector)
    for i, step in enumerate(1e-4 * np.eye(4)):
        ends = [own.ascend(vector + s, tolerance=1e-13).value for s in (step, -step)]
        assert found.gradient[i] == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=2e-4)


@pytest.fixture(scope="module")
def fitted():
    X, y = with_outliers()
    return GPRegressor("rbf", likelihood="student-t").fit(X, y)


def test_outliers_move_the_gaussian_fit_and_not_this_one(fitted):
    X, y = with_outliers()
    truth = np.sin(2 * GRID[:, 0])
    clean = GPRegressor("rbf").fit(X[15:], y[15:])
    gaussian = GPRegressor("rbf").fit(X, y)
    errors = [
        np.sqrt(np.mean((model.predict(GRID) - truth) ** 2)) for model in (clean, gaussian, fitted)
    ]
    # Within what 285 clean rows leave, or nearly; the Gaussian fit is off by several times that.
    assert errors[2] < 1.5 * errors[0]
    assert errors[1] > 2.5 * errors[2]
    mean, std = fitted.predict_latent(GRID, return_std=True)
    assert np.sqrt(np.mean(((mean - truth) / std) ** 2)) < 1.8
    assert 0.05 < fitted.dispersion_ < 0.15
    assert 2 < fitted.degrees_ < 8


def test_summaries_say_why_the_rows_are_kept(fitted):
    text = fitted.summary()
    assert "student-t, scale 0." in text
    assert "degrees of freedom" in text
    assert "dense was not tried: sums do not tell all under the student-t likelihood" in text


def test_quantiles_are_those_of_the_mixture():
    """Against the same average over f by many nodes."""
    own = StudentT(0.3, 3.5)
    mean, variance = np.array([0.0, 2.0]), np.array([0.01, 4.0])
    nodes = np.linspace(-9, 9, 4001)
    weights = np.exp(-(nodes**2) / 2)
    for probability in (0.001, 0.05, 0.5, 0.95):
        y = own.quantile(probability, mean, variance, np.ones(2))
        f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
        found = own.cdf(y[:, None], f, np.ones((2, 1))) @ (weights / weights.sum())
        np.testing.assert_allclose(found, probability, rtol=1e-6)


def test_predictions_follow_the_units_of_the_targets(fitted):
    X, y = with_outliers()
    other = GPRegressor("rbf", likelihood="student-t").fit(X, 1000 * y - 4e4)
    np.testing.assert_allclose(other.predict(GRID), 1000 * fitted.predict(GRID) - 4e4, atol=1.0)
    assert other.dispersion_ == pytest.approx(1000 * fitted.dispersion_, rel=1e-3)
    assert other.elbo_ == pytest.approx(fitted.elbo_ - 300 * np.log(1000), abs=0.01)
    levels = [0.05, 0.95]
    one, many = (model.predict_quantiles(GRID, levels) for model in (fitted, other))
    np.testing.assert_allclose(many, 1000 * one - 4e4, atol=2.0)


def test_files_hold_the_model(fitted, tmp_path):
    path = tmp_path / "model.orthogp"
    fitted.save(path)
    again = GPRegressor.load(path)
    np.testing.assert_allclose(again.predict(GRID), fitted.predict(GRID), atol=1e-9)
    assert (again.dispersion_, again.degrees_) == (fitted.dispersion_, fitted.degrees_)
    draws = again.sample_y(GRID[:3], 300, random_state=0)
    mean, std = again.predict_latent(GRID[:3], return_std=True)
    assert np.abs((draws.mean(axis=1) - mean) / (std / np.sqrt(300))).max() < 5


def test_rows_can_be_added_and_forgotten():
    X, y = with_outliers(60)
    model = GPRegressor(RBF(1.0, 0.8), likelihood="student-t", learn=False).fit(X, y)
    before = model.predict(GRID)
    model.partial_fit(X[:9] + 0.01, y[:9])
    assert np.abs(model.predict(GRID) - before).max() > 1e-3
    model.forget(X[:9] + 0.01, y[:9])
    np.testing.assert_allclose(model.predict(GRID), before, atol=1e-6)


def test_what_cannot_be_is_refused_in_one_sentence():
    X, y = with_outliers(20)
    with pytest.raises(InputError, match="fit the rows themselves"):
        GPRegressor(likelihood="student-t", solver="dense").fit(X, y)
    with pytest.raises(InputError, match="takes nothing of the kind"):
        GPRegressor(likelihood="student-t").fit(X, y, exposure=np.ones(20))
    with pytest.raises(InputError, match="up to 5000 rows"):
        GPRegressor(likelihood="student-t", solver="exact").fit(*with_outliers(5001))
    with pytest.raises(InputError, match="serve the poisson likelihood"):
        GPRegressor(likelihood="poisson", solver="iterative").fit(X, np.ones(20))
