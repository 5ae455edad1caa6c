"""S(ω) of every kernel against the Fourier transform of its closed-form covariance."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.errors import KernelError
from orthogp.kernels import RBF, Kernel, Matern, QuasiPeriodic, RationalQuadratic
from tests import oracles
from tests.problems import Entry, all_entries, densities, label, prior_variance, zoo

# Oscillating covariances need an end to the integral.
REACH = {"spectral-mixture": 8.0, "quasi-periodic": 6.0}
OMEGAS = np.array([0.0, 0.3, 1.0, 2.5, 6.0, 8.0, 13.0])


@pytest.mark.parametrize("entry", zoo(1), ids=label)
def test_density_is_the_transform_of_the_covariance(entry: Entry) -> None:
    def k(lag: float) -> float:
        return float(entry.k(np.array([lag])))

    expected = [oracles.spectral_density(k, omega, REACH.get(entry.name)) for omega in OMEGAS]
    np.testing.assert_allclose(
        densities(entry.kernel, OMEGAS[:, None]), expected, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("alpha", [0.35, 0.45, 0.8, 5.0])
def test_density_of_rational_quadratic_for_any_decay(alpha: float) -> None:
    def k(lag: float) -> float:
        return float(oracles.rational_quadratic(np.array([lag]), 1.3, 0.5, alpha))

    omegas = OMEGAS[1:]  # infinite at zero for α ≤ 1/2
    expected = [oracles.spectral_density(k, omega) for omega in omegas]
    actual = densities(RationalQuadratic(1.3, 0.5, alpha), omegas[:, None])
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("nu", [0.3, 0.8, 3.7, 8.0])
def test_density_of_matern_of_any_order(nu: float) -> None:
    def k(lag: float) -> float:
        return float(oracles.matern(np.array([lag]), nu, 1.3, 0.5))

    expected = [oracles.spectral_density(k, omega, reach=12.0) for omega in OMEGAS]
    actual = densities(Matern(nu, 1.3, 0.5), OMEGAS[:, None])
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [item for item in all_entries(2, 3) if item[1].name not in ("additive", "rotated")],
    ids=label,
)
def test_density_integrated_over_the_last_axis_is_that_of_one_column_less(
    num_dims: int, entry: Entry
) -> None:
    # k(τ_1, …, τ_{D−1}, 0) is the same kernel with one column less, whose density is the marginal;
    # one column is checked against k above. Every kernel here is even in each frequency.
    (below,) = (other for other in zoo(num_dims - 1) if other.name == entry.name)
    scales = {"spectral-mixture": 4.0, "quasi-periodic": 8.0}
    nodes, weights = oracles.double_exponential(scales.get(entry.name, 2.0))
    rng = np.random.default_rng(0)
    for omega in rng.normal(0, 3, (3, num_dims - 1)):
        points = np.column_stack([np.tile(omega, (len(nodes), 1)), nodes])
        marginal = 2 * weights @ densities(entry.kernel, points)
        assert marginal == pytest.approx(densities(below.kernel, omega), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("entry", zoo(1), ids=label)
def test_density_integrates_to_the_prior_variance(entry: Entry) -> None:
    nodes, weights = oracles.double_exponential(4.0)
    total = 2 * weights @ densities(entry.kernel, nodes[:, None])
    assert total == pytest.approx(prior_variance(entry.kernel), rel=1e-9)


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [item for item in all_entries() if item[1].name != "additive"],
    ids=label,
)
def test_density_is_even_and_never_negative(num_dims: int, entry: Entry) -> None:
    omegas = np.random.default_rng(1).normal(0, 30, (200, num_dims))
    above, below = densities(entry.kernel, omegas), densities(entry.kernel, -omegas)
    np.testing.assert_allclose(above, below, rtol=1e-12, atol=1e-16)
    assert np.all(above >= 0)


@given(shape=st.floats(0.1, 5.0))
def test_quasi_periodic_harmonics_are_bessel_coefficients(shape: float) -> None:
    # With ℓ ≫ p the bells stand apart: S at a harmonic is its coefficient times a bell's top.
    ell, period = 50.0, 0.7
    orders = np.arange(12)
    top = ell / np.sqrt(2 * np.pi)
    actual = densities(
        QuasiPeriodic(1.0, ell, period, shape), (2 * np.pi * orders / period)[:, None]
    )
    expected = oracles.periodic_coefficients(shape, orders)
    np.testing.assert_allclose(actual / top, expected, rtol=1e-9, atol=1e-15)


def test_kernel_on_some_columns_has_no_density() -> None:
    with pytest.raises(KernelError, match="no spectral density over all of them"):
        densities(RBF().on(0), np.zeros((1, 2)))


@pytest.mark.parametrize("kernel", [RBF(1.3, [0.5, 0.7]), Matern(1.2, 1.3, [0.5, 0.7])])
def test_kernel_on_permuted_columns_has_permuted_density(kernel: Kernel) -> None:
    omega = np.array([[0.4, 2.0]])
    swapped = densities(kernel.on(1, 0), omega)
    np.testing.assert_allclose(swapped, densities(kernel, omega[:, ::-1]), rtol=1e-14)


def test_double_exponential_rule_is_exact_on_known_integrals() -> None:
    nodes, weights = oracles.double_exponential(2.0)
    assert weights @ np.exp(-(nodes**2)) == pytest.approx(np.sqrt(np.pi) / 2, rel=1e-12)
    assert weights @ (1 / (1 + nodes**2)) == pytest.approx(np.pi / 2, rel=1e-12)


def test_quadrature_of_a_known_transform() -> None:
    k = partial(oracles.rbf, variance=1.0, lengthscale=0.5)
    actual = oracles.spectral_density(lambda lag: float(k(np.array([lag]))), 3.0)
    assert actual == pytest.approx(0.5 / np.sqrt(2 * np.pi) * np.exp(-0.5 * 1.5**2), rel=1e-9)
