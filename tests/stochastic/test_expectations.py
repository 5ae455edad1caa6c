"""Expected log densities, against adaptive quadrature of scipy's own densities."""

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from orthogp.errors import InputError
from orthogp.stochastic.normals import (
    Bernoulli,
    Gaussian,
    Likelihood,
    Poisson,
    StudentT,
    normal_expectation,
)
from tests.oracles import Array, fourth_order_difference

NOISE, SCALE, DEGREES = 0.3, 0.8, 3.5
# Means and variances of f, from sure to vague, and a target for each that is not the mean.
MEANS = np.array([-1.7, -0.4, 0.0, 0.6, 2.1])
VARIANCES = np.array([0.01, 0.2, 0.5, 0.9, 0.3])

LogDensity = Callable[[float, float], float]


def bernoulli_log_density(y: float, f: float) -> float:
    return float(stats.logistic.logcdf(f if y == 1 else -f))


# A likelihood, targets that it can have, and its log density by scipy.
CASES: dict[str, tuple[Likelihood, Array, LogDensity]] = {
    "gaussian": (
        Gaussian(np.log(NOISE)),
        np.array([-1.1, 0.3, 0.8, -0.2, 2.0]),
        lambda y, f: float(stats.norm.logpdf(y, f, np.sqrt(NOISE))),
    ),
    "poisson": (
        Poisson(),
        np.array([0.0, 2.0, 1.0, 3.0, 7.0]),
        lambda y, f: float(stats.poisson.logpmf(y, np.exp(f))),
    ),
    "bernoulli": (Bernoulli(), np.array([0.0, 1.0, 1.0, 0.0, 1.0]), bernoulli_log_density),
    "student-t": (
        StudentT(np.log(SCALE), DEGREES),
        np.array([-1.1, 4.3, 0.8, -0.2, 2.0]),
        lambda y, f: float(stats.t.logpdf(y, DEGREES, f, SCALE)),
    ),
}
# Twenty nodes are many for the logistic at these variances, not for Student's t.
ERRORS = {"gaussian": 1e-12, "poisson": 1e-12, "bernoulli": 1e-10, "student-t": 1e-5}
DERIVATIVE_ERRORS = {"gaussian": 1e-9, "poisson": 1e-9, "bernoulli": 1e-9, "student-t": 1e-7}

every_likelihood = pytest.mark.parametrize("name", CASES)


def expectation(function: Callable[[float], float], mean: float, variance: float) -> float:
    """∫ g(f) N(f | mean, variance) df, adaptively."""
    deviation = math.sqrt(variance)

    def integrand(z: float) -> float:
        return function(mean + deviation * z) * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    return quad(integrand, -12.0, 12.0, points=[0.0], epsabs=1e-13, epsrel=1e-12, limit=200)[0]


def expected_log_densities(log_density: LogDensity, y: Array) -> Array:
    return np.array(
        [
            expectation(lambda f, target=target: log_density(target, f), mean, variance)
            for target, mean, variance in zip(y, MEANS, VARIANCES)
        ]
    )


# ---------------------------------------------------------------------- values


@every_likelihood
def test_log_density_is_scipys(name: str, double: None) -> None:
    likelihood, y, log_density = CASES[name]
    expected = [log_density(target, f) for target, f in zip(y, MEANS)]
    np.testing.assert_allclose(likelihood.log_density(y, MEANS), expected, rtol=1e-12)


@every_likelihood
def test_expected_log_density_is_the_integral(name: str, double: None) -> None:
    likelihood, y, log_density = CASES[name]
    value = likelihood.expected_log_density(y, MEANS, VARIANCES)
    expected = expected_log_densities(log_density, y)
    np.testing.assert_allclose(value, expected, rtol=0, atol=ERRORS[name])


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("bernoulli", Bernoulli(num_nodes=60)),
        ("student-t", StudentT(np.log(SCALE), DEGREES, num_nodes=60)),
    ],
)
def test_more_nodes_come_closer(name: str, fine: Likelihood, double: None) -> None:
    _, y, log_density = CASES[name]
    value = fine.expected_log_density(y, MEANS, VARIANCES)
    np.testing.assert_allclose(value, expected_log_densities(log_density, y), rtol=0, atol=1e-9)


def test_default_rule_has_twenty_nodes(double: None) -> None:
    # A rule of n nodes integrates the power 2n exactly but for n!, its error for one of degree 2n.
    power = normal_expectation(lambda f: f**40, np.zeros(1), np.ones(1), Bernoulli().num_nodes)
    moment, missed = math.prod(range(1, 40, 2)), math.factorial(20)
    assert float(power[0]) == pytest.approx(moment - missed, rel=1e-11)
    assert StudentT(0.0).num_nodes == Bernoulli().num_nodes
    assert missed / moment > 1e-6


def test_probability_is_the_expected_logistic(double: None) -> None:
    probability = Bernoulli().probability(MEANS, VARIANCES)
    expected = [expectation(stats.logistic.cdf, *both) for both in zip(MEANS, VARIANCES)]
    np.testing.assert_allclose(probability, expected, rtol=0, atol=1e-9)
    # Uncertainty moves it towards a half.
    assert float(probability[4]) < stats.logistic.cdf(MEANS[4])


@every_likelihood
def test_extreme_values_stay_finite(name: str, double: None) -> None:
    likelihood, y, _ = CASES[name]
    for mean in (-500.0, 500.0):
        value = likelihood.expected_log_density(y, np.full(5, mean), np.full(5, 1e-12))
        gradient = jax.grad(
            lambda m: likelihood.expected_log_density(y, m, np.full(5, 1e-12)).sum()
        )(np.full(5, mean))
        assert np.all(np.isfinite(value))
        assert np.all(np.isfinite(gradient))


# ---------------------------------------------------------------------- derivatives


@every_likelihood
def test_derivatives_by_the_moments_are_those_of_the_integral(name: str, double: None) -> None:
    likelihood, y, log_density = CASES[name]

    def total(moments: Array) -> jax.Array:
        return likelihood.expected_log_density(y, moments[:5], moments[5:]).sum()

    gradient = jax.grad(total)(np.append(MEANS, VARIANCES))
    step = 1e-3
    for i in (1, 4):

        def integral(both: Array, i: int = i) -> Array:
            return np.array(expectation(lambda f: log_density(y[i], f), *both))

        expected = fourth_order_difference(integral, np.array([MEANS[i], VARIANCES[i]]), step)
        got = np.array([gradient[i], gradient[5 + i]])
        np.testing.assert_allclose(got, expected, rtol=0, atol=DERIVATIVE_ERRORS[name])


@pytest.mark.parametrize("name", ["gaussian", "student-t"])
def test_derivative_by_the_parameter_is_the_difference(name: str, double: None) -> None:
    likelihood, y, _ = CASES[name]

    def total(vector: Array) -> jax.Array:
        moved = jax.tree.map(lambda leaf: leaf + vector[0], likelihood)
        return moved.expected_log_density(y, MEANS, VARIANCES).sum()

    expected = fourth_order_difference(total, np.zeros(1), 1e-3)
    assert np.abs(expected[0]) > 0.1
    np.testing.assert_allclose(jax.grad(total)(np.zeros(1)), expected, rtol=1e-8)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("likelihood", "y", "words"),
    [
        (Bernoulli(), [0.0, -1.0], "labels 0 and 1"),
        (Poisson(), [1.0, 2.5], "whole numbers ≥ 0"),
        (Poisson(), [1.0, -2.0], "whole numbers ≥ 0"),
    ],
)
def test_impossible_targets_are_refused(likelihood: Likelihood, y: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        likelihood.check(np.array(y))


@every_likelihood
def test_possible_targets_are_accepted(name: str) -> None:
    likelihood, y, _ = CASES[name]
    likelihood.check(y)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gaussian(np.nan), "noise variance"),
        (lambda: Gaussian([0.0, 1.0]), "one finite number"),
        (lambda: StudentT("wide"), "scale"),
        (lambda: StudentT(0.0, degrees=0.0), "degrees"),
        (lambda: StudentT(0.0, num_nodes=0), "num_nodes"),
        (lambda: Bernoulli(num_nodes=301), "num_nodes"),
        (lambda: Bernoulli(num_nodes=2.5), "num_nodes"),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], Likelihood], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_what_is_learned_are_the_leaves() -> None:
    counts = {name: len(jax.tree.leaves(case[0])) for name, case in CASES.items()}
    assert counts == {"gaussian": 1, "poisson": 0, "bernoulli": 0, "student-t": 1}
