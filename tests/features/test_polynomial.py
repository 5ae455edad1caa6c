"""Polynomial features: orthonormal to high order, with the ends of their weights integrated."""

import mpmath
import numpy as np
import pytest
from scipy.special import (
    beta,
    hyp1f1,
    roots_chebyt,
    roots_chebyu,
    roots_gegenbauer,
    roots_genlaguerre,
    roots_jacobi,
    roots_legendre,
)

from orthogp.errors import FeatureError
from orthogp.features.bands import Polynomial
from orthogp.features.base import gauss_panels
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.statistics import FrequencyLattice
from tests.oracles import Array

FIFTY = 50


def gram(values: Array, weights: Array) -> Array:
    return (values * weights) @ values.T


@pytest.mark.parametrize(
    ("family", "rule", "log_weight"),
    [
        (Polynomial(1, "legendre"), roots_legendre(60), lambda u: 0 * u),
        (Polynomial(1, "chebyshev"), roots_chebyt(60), lambda u: -0.5 * np.log(1 - u * u)),
        (Polynomial(1, "chebyshev2"), roots_chebyu(60), lambda u: 0.5 * np.log(1 - u * u)),
        (
            Polynomial(1, "gegenbauer", alpha=4.0),
            roots_gegenbauer(60, 4.0),
            lambda u: 3.5 * np.log(1 - u * u),
        ),
        (
            Polynomial(1, "gegenbauer", alpha=-0.3),
            roots_gegenbauer(60, -0.3),
            lambda u: -0.8 * np.log(1 - u * u),
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_polynomials_of_the_band_are_orthonormal_to_high_order(family, rule, log_weight) -> None:
    nodes, weights = rule
    values = family.basis(nodes, FIFTY) * np.exp(-0.5 * log_weight(nodes))
    np.testing.assert_allclose(gram(values, weights), np.eye(FIFTY), atol=1e-10)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (2.5, 0.3), (-0.6, -0.4), (0.5, -0.5)])
def test_mirrored_jacobi_polynomials_are_orthonormal_to_high_order(
    alpha: float, beta: float
) -> None:
    v, weights = roots_jacobi(60, alpha, beta)
    u = (1 + v) / 2
    root = np.exp(-0.5 * (alpha * np.log(2 * (1 - u)) + beta * np.log(2 * u)))
    values = Polynomial(1, "jacobi", alpha=alpha, beta=beta).basis(u, 2 * FIFTY) * root
    # dv = 2 du on either half of the band.
    for members in (values[::2], values[1::2]):
        np.testing.assert_allclose(gram(members, weights), np.eye(FIFTY), atol=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 1.5, -0.5])
def test_mirrored_laguerre_functions_are_orthonormal(alpha: float) -> None:
    v, weights = roots_genlaguerre(40, alpha)
    values = Polynomial(1, "laguerre", alpha=alpha).basis(v, 60)
    values *= np.exp(0.5 * v - 0.5 * alpha * np.log(v))
    for members in (values[::2], values[1::2]):
        np.testing.assert_allclose(2 * gram(members, weights), np.eye(30), atol=1e-10)


def test_laguerre_functions_neither_overflow_nor_underflow_at_high_order() -> None:
    # At v = 1900 the weight is below the smallest double, and L_500 above the largest.
    family = Polynomial(1, "laguerre")
    u = np.array([3.0, 700.0, 1900.0, 1990.0])
    values = family.basis(u, 1001)
    assert np.all(np.isfinite(values))
    with mpmath.workdps(60):
        expected = [
            float(mpmath.laguerre(500, 0, x) * mpmath.exp(-mpmath.mpf(x) / 2) / mpmath.sqrt(2))
            for x in u
        ]
    assert np.min(np.abs(expected)) > 1e-4
    np.testing.assert_allclose(values[1000], expected, rtol=1e-9)


def test_the_reach_of_laguerre_functions_is_where_they_vanish() -> None:
    for count in (1, 2, 9, 60, 400):
        for alpha in (0.0, -0.7, 3.0, 30.0):
            family = Polynomial(1, "laguerre", alpha=alpha)
            reach = family.reach(count)
            assert np.max(np.abs(family.basis(np.array([reach, 1.5 * reach]), count))) < 1e-15
            within = family.basis(np.linspace(0.6, 0.9, 50) * reach, count)
            assert np.max(np.abs(within)) > 1e-15


@pytest.mark.parametrize(
    ("family", "other"),
    [
        (Polynomial(1, "gegenbauer", alpha=0.5), Polynomial(1, "legendre")),
        (Polynomial(1, "gegenbauer", alpha=0.0), Polynomial(1, "chebyshev")),
        (Polynomial(1, "gegenbauer", alpha=1.0), Polynomial(1, "chebyshev2")),
    ],
    ids=["legendre", "chebyshev", "chebyshev2"],
)
def test_gegenbauer_holds_the_others_as_special_cases(
    family: Polynomial, other: Polynomial
) -> None:
    u = np.linspace(-0.99, 0.99, 12)
    np.testing.assert_allclose(family.basis(u, 30), other.basis(u, 30), atol=1e-12)


def test_an_infinite_weight_at_a_node_is_left_out() -> None:
    ends = np.array([-1.0, 0.0, 1.0, 1 + 1e-12])
    first = Polynomial(1, "chebyshev").basis(ends, 5)
    np.testing.assert_array_equal(first[:, [0, 2, 3]], 0.0)
    assert np.all(first[::2, 1] != 0)
    half = Polynomial(1, "jacobi", alpha=-0.5, beta=-0.5).basis(ends, 5)
    np.testing.assert_array_equal(half, 0.0)
    # A band whose ends are nodes of the lattice.
    family = Polynomial(9, "chebyshev", 5.0).placed(RBF(), np.array([-1.0]), np.array([1.0]))
    assert np.all(np.isfinite(family.on(FrequencyLattice(0.5, 10)).weights))


# ---------------------------------------------------------------------- quadrature


@pytest.mark.parametrize("size", [24, 128, 129, 700])
@pytest.mark.parametrize(
    ("at_lower", "at_upper"), [(0.0, 0.0), (-0.25, 0.0), (0.35, -0.45), (-0.7, 1.6)]
)
def test_panels_integrate_powers_at_both_ends(at_lower: float, at_upper: float, size: int) -> None:
    nodes, weights = gauss_panels(0.0, 1.0, size, at_lower, at_upper)
    assert size <= len(nodes) < size + 128
    assert np.all((nodes > 0) & (nodes < 1) & (weights > 0))
    p, q = at_lower + 1, at_upper + 1
    expected = beta(p, q) * hyp1f1(p, p + q, 1.7)
    integral = np.sum(weights * nodes**at_lower * (1 - nodes) ** at_upper * np.exp(1.7 * nodes))
    assert integral == pytest.approx(expected, rel=2e-13)


def test_panels_cover_other_intervals() -> None:
    nodes, weights = gauss_panels(2.0, 5.0, 300, 0.5, 0.0)
    assert np.sum(weights * np.sqrt(nodes - 2)) == pytest.approx(2 * np.sqrt(3), rel=1e-13)


# ---------------------------------------------------------------------- how good, and errors


@pytest.mark.parametrize(
    ("kernel", "num_features", "reference"),
    [
        (Matern32(1.0, 0.1), 41, 3.4e-2),
        (Matern32(1.0, 0.1), 81, 6.2e-3),
        (RBF(1.0, 0.1), 41, 5.5e-4),
    ],
    ids=["matern32-41", "matern32-81", "rbf-41"],
)
def test_variance_left_out_is_that_of_the_reference_table(
    kernel: Kernel, num_features: int, reference: float
) -> None:
    # Two digits are given. The search over a here is finer than the reference's.
    X = np.linspace(-1, 1, 201)[:, None]
    Phi = Polynomial(num_features).evaluate(kernel, X)
    left_out = 1 - np.mean(np.sum(Phi**2, axis=1))
    assert 0.9 * reference < left_out < 1.01 * reference


def test_few_nodes_leave_out_no_more_than_many() -> None:
    # Polynomials sampled at equispaced nodes are far from orthonormal; made so, they serve as well.
    kernel, X = RBF(1.0, 0.1), np.linspace(-1, 1, 41)[:, None]
    family = Polynomial(41, "chebyshev", 35.0, centre=0.0).placed(kernel, X[0], X[-1])
    paper = np.mean(family.residual_variance(kernel, X))
    for half in (25, 50, 400):
        series = family.on(FrequencyLattice(35.0 / (half + 0.5), half, 0.0))
        assert np.mean(series.residual_variance(kernel, X)) < paper


def test_laguerre_is_not_confined_to_the_band() -> None:
    assert not Polynomial(5, "laguerre").compact
    assert Polynomial(5, kind="jacobi", alpha=1, beta=0).compact
    assert Polynomial(5, "laguerre", 2.0).reach(5) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "hahn"}, "kind must be one of 'legendre', .*'laguerre', got 'hahn'"),
        ({"kind": "gegenbauer"}, "'gegenbauer' needs alpha"),
        ({"kind": "jacobi", "alpha": 1.0}, "'jacobi' needs beta"),
        ({"kind": "legendre", "alpha": 1.0}, "'legendre' takes no alpha, got 1.0"),
        ({"kind": "laguerre", "beta": 1.0}, "'laguerre' takes no beta, got 1.0"),
        ({"kind": "gegenbauer", "alpha": -0.5}, "alpha must be a number > -0.5"),
        ({"kind": "jacobi", "alpha": 0, "beta": -1}, "beta must be a number > -1"),
        ({"kind": "laguerre", "alpha": np.nan}, "alpha must be a number > -1"),
        ({"kind": "laguerre", "alpha": np.inf}, "alpha must be a number > -1"),
        ({"kind": "laguerre", "alpha": "2"}, "alpha must be a number > -1"),
        ({"a": -2.0}, "a must be positive"),
    ],
)
def test_impossible_parameters_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        Polynomial(9, **arguments)
