"""Noise whose variance varies: against sums over the rows, and on simulated data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from orthogp import GPRegressor
from orthogp.errors import InputError


def rows(n, seed=0, unit=1.0, offset=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (n, 1))
    y = offset + unit * (np.sin(2 * X[:, 0]) + spread(X) * rng.standard_normal(n))
    return X, y


def spread(X):
    """Return the true noise sd."""
    return np.exp(-1.5 + 0.75 * np.sin(0.9 * X[:, 0]))


def model(**settings):
    return GPRegressor("rbf", likelihood="heteroscedastic", **settings)


@pytest.fixture(scope="module")
def fitted():
    X, y = rows(1500)
    return model().fit(X, y), X, y


def divergence(posterior):
    """Return KL(N(m, S) ‖ N(0, I)) of a posterior's whitened coefficients."""
    mean, chol = posterior.mean[:, 0], posterior.chol
    covariance = np.linalg.inv(np.tril(chol) @ np.tril(chol).T)
    log_det = np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(covariance) + mean @ mean - len(mean) - log_det)


def test_the_bound_is_that_of_a_sum_over_the_rows(fitted):
    found, X, y = fitted
    mean, variance = found.posterior_.predict(X)
    standardised = (y - found.target_offset_[0]) / found.target_scale_[0]
    g, s2 = found.noise_posterior_.predict(X)
    level = np.log(found.noise_variance_ / found.target_scale_[0] ** 2)
    g = g[:, 0] + level
    errors = (standardised - mean[:, 0]) ** 2 + variance
    terms = -0.5 * (np.log(2 * np.pi) + g + errors * np.exp(-g + s2 / 2))
    value = terms.sum() - divergence(found.posterior_) - divergence(found.noise_posterior_)
    value -= len(y) * np.log(found.target_scale_[0])
    assert found.elbo_ == pytest.approx(value, abs=1e-4)


def test_each_process_is_the_best_given_the_other(fitted):
    found, X, y = fitted
    g, s2 = found.noise_posterior_.predict(X)
    level = np.log(found.noise_variance_ / found.target_scale_[0] ** 2)
    precisions = np.exp(-g[:, 0] - level + s2 / 2)
    standardised = (y - found.target_offset_[0]) / found.target_scale_[0]
    # Bayesian linear regression with weights, of features that are scaled to unit prior variance.
    phi = found.features_.evaluate(found.posterior_.kernel, X)
    gram = np.eye(phi.shape[1]) + phi.T @ (precisions[:, None] * phi)
    mean = np.linalg.solve(gram, phi.T @ (precisions * standardised))
    np.testing.assert_allclose(phi @ mean, found.posterior_.predict(X).mean[:, 0], atol=1e-5)


def test_noise_is_found_where_it_is(fitted):
    found, X, _ = fitted
    sd, log_sd = found.predict_noise(X, return_std=True)
    # The largest of some ten independent errors is above 4.5 with probability 1e-4.
    assert np.abs(np.log(sd / spread(X)) / log_sd).max() < 4.5


def test_intervals_cover_where_noise_is_small_and_where_it_is_large(fitted):
    found, *_ = fitted
    X, y = rows(4000, seed=1)
    quantiles = found.predict_quantiles(X, (0.05, 0.95))
    inside = (quantiles[:, 0] < y) & (y < quantiles[:, 1])
    for part in (spread(X) < 0.2, spread(X) > 0.3):
        n = part.sum()
        # False alarms: 1e-4 for each side, and 0.02 of bias from 1,500 rows.
        slack = norm.isf(1e-4) * np.sqrt(0.09 / n) + 0.02
        assert abs(inside[part].mean() - 0.9) < slack


def test_units_do_not_matter(fitted):
    found, X, _ = fitted
    scaled = model().fit(*rows(1500, unit=1e6, offset=1e9))
    np.testing.assert_allclose(scaled.predict_noise(X), 1e6 * found.predict_noise(X), rtol=1e-3)


def test_constant_noise_is_found_constant():
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 10, (2000, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(2000)
    sd = model().fit(X, y).predict_noise(X)
    # Each of some three degrees of freedom has a relative error of √(1/2000 · 3/2) ≈ 0.03.
    assert np.all(np.abs(sd / 0.2 - 1) < 0.12)


def test_rows_are_added_and_taken_out():
    X, y = rows(800)
    found = model().fit(X[:700], y[:700])
    before = found.predict_noise(X)
    found.partial_fit(X[700:], y[700:]).forget(X[700:], y[700:])
    np.testing.assert_allclose(found.predict_noise(X), before, rtol=2e-3)


def test_a_saved_model_predicts_the_same(fitted, tmp_path):
    found, X, _ = fitted
    found.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    for name in ("predict", "predict_noise", "predict_latent"):
        old, new = (getattr(own, name)(X[:50], return_std=True) for own in (found, loaded))
        np.testing.assert_allclose(new, old, rtol=1e-12)
    assert loaded.summary() == found.summary()


@pytest.mark.parametrize("case", ["no noise", "constant", "twenty rows"])
def test_odd_data_have_finite_answers(case):
    rng = np.random.default_rng(4)
    X = rng.uniform(0, 1, (20 if case == "twenty rows" else 400, 1))
    y = np.full(len(X), 5.0) if case == "constant" else np.sin(6 * X[:, 0])
    if case == "twenty rows":
        y = y + (0.1 + X[:, 0]) * rng.standard_normal(20)
    with pytest.warns() if case == "constant" else np.errstate():
        found = model().fit(X, y)
    mean, sd = found.predict(X, return_std=True)
    assert np.all(np.isfinite(mean))
    assert np.all((sd > 0) & np.isfinite(sd))
    if case != "twenty rows":
        assert np.abs(mean - y).max() < 1e-2


@pytest.mark.slow
def test_several_columns_fall_back_to_passes_where_sums_end():
    rng = np.random.default_rng(5)
    X = rng.uniform(0, 1, (2000, 3))
    sd = 0.05 + 0.3 * X[:, 1]
    y = np.sin(6 * X[:, 0]) * X[:, 1] + sd * rng.standard_normal(2000)
    found = model().fit(X, y)
    ratio = found.predict_noise(X) / sd
    assert 0.8 < np.median(ratio) < 1.25


def test_the_summary_says_that_noise_varies(fitted):
    assert "heteroscedastic, noise sd around" in fitted[0].summary()


def test_a_known_noise_variance_is_refused():
    with pytest.raises(InputError, match="learns the noise"):
        model(noise_variance=0.1).fit(*rows(50))
