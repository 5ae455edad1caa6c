"""Averages of the logistic function and of its logarithm over a normal variable."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, log_expit

from orthogp.inference.logistic import expected_log_logistic, mean_log_odds, mean_logistic


def by_quadrature(function, mean, variance):
    """Return the mean of a function of a normal variable, whose steps are near zero."""
    deviation = np.sqrt(variance)

    def integrand(z):
        return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * function(mean + deviation * z)

    step = 0.0 if variance == 0 else np.clip(-mean / deviation, -9.9, 9.9)
    return quad(integrand, -10, 10, points=[step], epsabs=1e-13, epsrel=1e-12, limit=500)[0]


@pytest.mark.parametrize("variance", [0.0, 1e-4, 0.5, 4.0, 100.0, 1e4])
@pytest.mark.parametrize("mean", [0.0, 0.3, -2.0, -8.0, 15.0])
def test_mean_logistic_is_the_integral_by_quadrature(mean, variance):
    expected = by_quadrature(expit, mean, variance)
    result = mean_logistic(np.array(mean), np.array(variance))
    assert result == pytest.approx(expected, rel=1e-7, abs=1e-11)


def test_mean_logistic_of_opposite_means_adds_up_to_one():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(0, 5, (50, 3)), rng.gamma(1, 10, (50, 3))
    both = mean_logistic(mean, variance) + mean_logistic(-mean, variance)
    np.testing.assert_allclose(both, 1, atol=1e-13)


def test_log_odds_are_those_of_the_average_and_finite_far_out():
    mean, variance = np.array([0.5, -3.0, 9.0]), np.array([0.1, 20.0, 1.0])
    p = mean_logistic(mean, variance)
    np.testing.assert_allclose(mean_log_odds(mean, variance), np.log(p / (1 - p)), rtol=1e-9)
    far = mean_log_odds(np.array([-1e5, 1e5]), np.ones(2))
    assert np.all(np.isfinite(far))
    assert far[0] == -far[1] < -500


@pytest.mark.parametrize("variance", [0.0, 1e-4, 0.1, 0.3, 1.0, 1.01, 4.0, 100.0, 1e4])
@pytest.mark.parametrize("mean", [0.0, 0.3, -2.0, -8.0, 15.0])
def test_expected_log_logistic_and_its_derivatives_are_integrals(mean, variance):
    found = expected_log_logistic(np.array(mean), np.array(variance))
    for result, function in (
        (found.value, log_expit),
        (found.slope, lambda f: expit(-f)),
        (found.curvature, lambda f: expit(f) * expit(-f)),
    ):
        expected = by_quadrature(function, mean, variance)
        assert result == pytest.approx(expected, rel=1e-7, abs=1e-10)


def test_curvature_is_right_where_the_label_is_beyond_doubt():
    found = expected_log_logistic(np.array([60.0, 200.0]), np.full(2, 0.01))
    assert found.curvature[0] == pytest.approx(np.exp(-60 + 0.005), rel=1e-2)
    assert found.curvature[1] > 0
