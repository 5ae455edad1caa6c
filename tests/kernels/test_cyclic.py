"""Kernels with a period of their own: exact on their lattice, and nothing learned of it."""

import jax.numpy as jnp
import numpy as np
import pytest

from orthogp import KernelError
from orthogp.features.series import lattice_masses
from orthogp.kernels import (
    RBF,
    Categorical,
    Cyclic,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    QuasiPeriodic,
    RationalQuadratic,
    additive,
)
from orthogp.kernels.terms import join_terms, resolve_additive, split_terms
from orthogp.statistics import FrequencyLattice
from tests import oracles

PERIOD = 3.0
INNER = {
    "rbf": RBF(2.0, 0.4),
    "matern32": Matern32(2.0, 0.9),
    "matern52": Matern52(2.0, 2.9),
    "matern": Matern(1.8, 2.0, 0.5),
    "rational-quadratic": RationalQuadratic(2.0, 0.5, 1.5),
}
SLOW = pytest.mark.slow
MIXTURE = pytest.param("rational-quadratic", marks=SLOW)
pytestmark = pytest.mark.usefixtures("double")


def modes(kernel, period, extent):
    lattice = FrequencyLattice(2 * np.pi / period, extent)
    indices = np.arange(extent + 1)[:, None]
    masses = lattice_masses(kernel, lattice, indices)
    return indices[:, 0] * lattice.spacing[0], masses


@pytest.mark.parametrize("name", ["rbf", "matern32", pytest.param("matern", marks=SLOW), MIXTURE])
def test_masses_are_the_fourier_series_of_the_covariance(name):
    kernel = Cyclic(INNER[name], PERIOD)
    omegas, masses = modes(kernel, PERIOD, 4000)
    for lag in (0.0, 0.2, 1.5, 2.9):
        series = masses[0] + 2 * masses[1:] @ np.cos(omegas[1:] * lag)
        assert float(kernel.k(jnp.array([lag]))) == pytest.approx(series, rel=1e-6)
    assert masses[0] + 2 * masses[1:].sum() == pytest.approx(2.0, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", INNER)
def test_covariance_comes_round(name):
    kernel = Cyclic(INNER[name], PERIOD)
    for lag in (0.1, 1.0, 1.49):
        expected = float(kernel.k(jnp.array([lag])))
        for same in (lag + PERIOD, lag - 5 * PERIOD, PERIOD - lag):
            assert float(kernel.k(jnp.array([same]))) == pytest.approx(expected, rel=1e-10)


def test_covariance_is_the_wrapped_and_scaled_one():
    kernel = Cyclic(Matern32(2.0, 0.9), PERIOD)

    def covariance(lag):
        return oracles.matern32(lag, 2.0, 0.9)

    lags = np.linspace(0, PERIOD, 7)[:, None]
    expected = oracles.wrapped_and_scaled(covariance, lags, np.array([PERIOD]), 30)
    found = [float(kernel.k(jnp.asarray(lag))) for lag in lags]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["rbf", pytest.param("matern52", marks=SLOW)])
def test_derivative_variance_is_that_of_the_modes(name):
    kernel = Cyclic(INNER[name], PERIOD)
    omegas, masses = modes(kernel, PERIOD, 4000)
    expected = 2 * masses[1:] @ omegas[1:] ** 2
    assert float(kernel.derivative_variance(1)[0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("levels", [2, 3, 6, 7])
def test_categories_are_white_on_their_lattice(levels):
    kernel = Categorical(levels, 1.7)
    omegas, masses = modes(kernel, levels, levels // 2 + 2)
    codes = np.arange(levels)
    series = masses[0] + 2 * np.cos(np.outer(codes, omegas[1:])) @ masses[1:]
    np.testing.assert_allclose(series, 1.7 * (codes == 0), atol=1e-12)
    found = [float(kernel.k(jnp.array([float(code)]))) for code in codes]
    np.testing.assert_allclose(found, series, atol=1e-12)
    assert np.all(masses[levels // 2 + 1 :] == 0)


def test_parameters_are_those_of_the_kernel_inside():
    kernel = Cyclic(Matern32(2.0, 0.5), PERIOD)
    assert set(kernel.parameters()) == {"variance", "lengthscale"}
    fixed = kernel.fix("lengthscale")
    assert fixed.fixed == ("lengthscale",)
    assert isinstance(fixed, Cyclic)
    changed = fixed.scaled(3.0).with_parameters(lengthscale=0.25)
    assert float(changed.parameters()["variance"]) == 6.0
    assert repr(changed) == (
        "Cyclic(Matern32(variance=6, lengthscale=0.25, fixed=('lengthscale',)), period=3)"
    )
    assert repr(Categorical(3)) == "Categorical(3, variance=1)"
    assert set(Categorical(3).parameters()) == {"variance"}


def test_products_with_a_category_or_a_circle_multiply_masses():
    kernel = Categorical(4, 2.0).on(0) * Cyclic(Matern32(3.0, 0.5), PERIOD).on(1)
    lattice = FrequencyLattice(2 * np.pi / np.array([4.0, PERIOD]), [2, 3000])
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    assert masses[0] + 2 * masses[1:].sum() == pytest.approx(6.0, rel=1e-6)
    assert split_terms(kernel, 2)[0].periods == (4.0, PERIOD)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cyclic(QuasiPeriodic(), 2.0), "Cyclic takes one RBF"),
        (lambda: Cyclic(RBF() + RBF(), 2.0), "Cyclic takes one RBF"),
        (lambda: Cyclic(RBF(), -1.0), "period of Cyclic must be positive"),
        (lambda: Cyclic(RBF(), [1.0, 2.0]), "must be one number"),
        (lambda: Cyclic(RBF(lengthscale=3.0), 2.0), "at most its period 2"),
        (lambda: Categorical(1), "number of its levels"),
        (lambda: Categorical(2.5), "number of its levels"),
        (lambda: Categorical(3).on(0, 1).check(4), "acts on one column"),
        (lambda: Cyclic(RBF(), 2.0).check(2), "acts on one column"),
        (lambda: Categorical(3).spectral_density(np.zeros(1)), "no spectral density"),
        (lambda: Cyclic(RBF(), 2.0).spectral_density(np.zeros(1)), "no spectral density"),
        (lambda: additive("matern32", 0), "num_columns must be"),
        (lambda: additive("matern32", 3, categorical={3: 2}), "Column 3 must be one of 0 to 2"),
        (
            lambda: additive("matern32", 3, categorical={1: 2}, periodic={1: 2.0}),
            "either categorical or periodic",
        ),
        (lambda: additive("nothing", 3), "Unknown kernel"),
        (lambda: resolve_additive("additive-nothing", 3, 3), "Unknown kernel"),
        (
            lambda: split_terms((RBF().on(0) + Categorical(3).on(0)) * RBF().on(1), 2),
            "one period, or none",
        ),
    ],
)
def test_bad_kernels_are_told_apart_in_a_sentence(make, words):
    with pytest.raises(KernelError, match=words) as error:
        make()
    assert str(error.value).endswith(".")


def test_additive_puts_one_kernel_on_each_column():
    kernel = additive("matern52", 4, categorical={2: 7}, periodic={3: 24.0})
    shown = [type(own).__name__ for own, _ in kernel.primitives()]
    assert shown == ["Matern52", "Matern52", "Categorical", "Cyclic"]
    assert kernel.columns(4) == (0, 1, 2, 3)
    given = additive(RBF(2.0, 0.5), 2, periodic={1: 1.0})
    assert repr(given) == (
        "RBF(variance=2, lengthscale=0.5).on(0) + "
        "Cyclic(RBF(variance=2, lengthscale=0.5), period=1).on(1)"
    )


def test_terms_are_gathered_by_columns_and_periods():
    kernel = (
        Matern32().on(2)
        + RBF().on(0, 1)
        + RBF().on(2)
        + Cyclic(Matern12(), 2.0).on(2)
        + Cyclic(RBF(), 2.0).on(2)
    )
    terms = split_terms(kernel, 3)
    assert [term.columns for term in terms] == [(2,), (2,), (0, 1)]
    assert [term.periods for term in terms] == [(None,), (2.0,), (None, None)]
    assert len(list(terms[0].kernel.primitives())) == 2
    lag = jnp.array([0.1, 0.2, 0.3])
    assert float(join_terms(terms).k(lag)) == pytest.approx(float(kernel.k(lag)))
