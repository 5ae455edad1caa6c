"""k(τ) of every kernel against its closed form, and what a kernel refuses."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.errors import KernelError
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    QuasiPeriodic,
    RationalQuadratic,
    SpectralKernel,
    SpectralMixture,
)
from tests import oracles
from tests.problems import (
    DIMS,
    Entry,
    all_entries,
    covariances,
    densities,
    label,
    lengthscales,
    prior_variance,
    sech_density,
)

# Matérn of general order is a quadrature of Gaussians; this is what its rule may leave, relative to
# the variance. Only the images of the wrapped kernel see it.
MIXTURE_ERROR = 1e-8


def lags(num_dims: int, num_lags: int = 200) -> np.ndarray:
    rng = np.random.default_rng(num_dims)
    # From tiny to many lengthscales, and zero itself.
    sizes = 10.0 ** rng.uniform(-4, 0.7, (num_lags, 1))
    directions = rng.normal(size=(num_lags, num_dims))
    return np.concatenate([np.zeros((1, num_dims)), sizes * directions])


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_covariance_is_the_closed_form(num_dims: int, entry: Entry) -> None:
    lag = lags(num_dims)
    actual = covariances(entry.kernel, lag)
    atol = MIXTURE_ERROR if isinstance(entry.kernel, Matern) else 1e-13
    np.testing.assert_allclose(actual, entry.k(lag), rtol=1e-11, atol=atol)


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_prior_variance_is_covariance_at_lag_zero(num_dims: int, entry: Entry) -> None:
    at_zero = covariances(entry.kernel, np.zeros((1, num_dims)))[0]
    assert prior_variance(entry.kernel) == pytest.approx(at_zero, rel=1e-13)


@given(
    nu=st.floats(0.3, 8.0),
    num_dims=st.sampled_from(DIMS),
    seed=st.integers(0, 1000),
)
def test_matern_of_any_order_is_the_bessel_form(nu: float, num_dims: int, seed: int) -> None:
    ell = np.random.default_rng(seed).uniform(0.2, 3.0, num_dims)
    lag = lags(num_dims)
    expected = oracles.matern(lag, nu, 0.8, ell)
    actual = covariances(Matern(nu, 0.8, ell), lag)
    # kv itself loses digits where z^ν underflows towards lag zero.
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=MIXTURE_ERROR)


@pytest.mark.parametrize("num_dims", DIMS)
@pytest.mark.parametrize(("nu", "kind"), [(0.5, Matern12), (1.5, Matern32), (2.5, Matern52)])
def test_general_matern_is_the_half_integer_one(
    nu: float, kind: type[Kernel], num_dims: int
) -> None:
    ell, lag = lengthscales(num_dims), lags(num_dims)
    general, special = Matern(nu, 1.3, ell), kind(1.3, ell)  # type: ignore[call-arg]
    np.testing.assert_allclose(
        covariances(general, lag), covariances(special, lag), rtol=1e-11, atol=MIXTURE_ERROR
    )
    np.testing.assert_allclose(densities(general, lag), densities(special, lag), rtol=1e-12)


@pytest.mark.parametrize("kind", [Matern12, Matern32, Matern52])
def test_gradient_at_lag_zero_is_finite(kind: type[Kernel], double: None) -> None:
    def at_zero(lengthscale: jax.Array) -> jax.Array:
        return kind().with_parameters(lengthscale=lengthscale).k(jax.numpy.zeros(2))

    gradient = jax.grad(at_zero)(jax.numpy.array([0.5, 0.7]))
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


# ---------------------------------------------------------------------- derivatives at zero


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [
        (num_dims, entry)
        for num_dims, entry in all_entries()
        if entry.smooth and not isinstance(entry.kernel, SpectralKernel)
    ],
    ids=label,
)
def test_derivative_variance_is_second_difference_of_smooth_kernels(
    num_dims: int, entry: Entry, double: None
) -> None:
    step = 1e-3
    for d, actual in enumerate(np.asarray(entry.kernel.derivative_variance(num_dims))):
        near, far = (entry.k(factor * step * np.eye(num_dims)[d]) for factor in (1, 2))
        # −k''(0) by the even fourth-order formula.
        expected = -(16 * near - far - 15 * entry.k(np.zeros(num_dims))) * 2 / (12 * step**2)
        assert actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("kernel", "k"),
    [
        (Matern52(1.3, 0.5), lambda lag: oracles.matern52(lag, 1.3, 0.5)),
        (Matern(3.2, 1.3, 0.5), lambda lag: oracles.matern(lag, 3.2, 1.3, 0.5)),
        (Matern32(1.3, 0.5), lambda lag: oracles.matern32(lag, 1.3, 0.5)),
    ],
    ids=["matern52", "matern-3.2", "matern32"],
)
def test_derivative_variance_is_second_difference_of_matern(
    kernel: Kernel, k: oracles.Covariance, double: None
) -> None:
    step = 1e-5
    # The next term is of third order for ν = 3/2: the step is the relative error.
    expected = 2 * (k(np.zeros(1)) - k(np.array([step]))) / step**2
    assert float(kernel.derivative_variance(1)[0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kernel", [Matern12(), Matern(1.0), Matern(0.7), Matern12() + RBF()])
def test_derivative_variance_of_rough_kernels_is_infinite(kernel: Kernel, double: None) -> None:
    assert np.all(np.isinf(kernel.derivative_variance(2)))


def test_derivative_variance_is_zero_along_columns_not_seen(double: None) -> None:
    variance = np.asarray(RBF(2.0, 0.5).on(1).derivative_variance(3))
    np.testing.assert_allclose(variance, [0.0, 8.0, 0.0])


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, [0.5, -0.1], [], "long"])
@pytest.mark.parametrize("kind", [RBF, Matern, Matern12, RationalQuadratic, QuasiPeriodic])
def test_parameters_that_are_not_positive_are_refused(kind: type[Kernel], bad: object) -> None:
    with pytest.raises(KernelError, match="lengthscale must be"):
        kind(lengthscale=bad)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (RBF, "variance"),
        (Matern, "nu"),
        (RationalQuadratic, "alpha"),
        (QuasiPeriodic, "period"),
        (QuasiPeriodic, "shape_lengthscale"),
    ],
)
def test_error_names_the_parameter(kind: type[Kernel], name: str) -> None:
    with pytest.raises(KernelError, match=f"{name} must be positive"):
        kind(**{name: -2.0})


@pytest.mark.parametrize(
    "arguments",
    [
        ([0.5, -0.5], [[1.0], [2.0]], [[1.0], [1.0]]),
        ([0.5], [[1.0], [2.0]], [[1.0], [1.0]]),
        ([0.5, 0.5], [[1.0], [2.0]], [[1.0, 1.0], [1.0, 1.0]]),
    ],
    ids=["negative weight", "too few weights", "different columns"],
)
def test_spectral_mixture_refuses_inconsistent_components(arguments: tuple) -> None:
    with pytest.raises(KernelError):
        SpectralMixture(*arguments)


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(lengthscale=[1.0, 2.0]),
        Matern32(lengthscale=[1.0, 2.0]) + RBF(),
        RBF(lengthscale=[1.0, 2.0]).on(0),
        SpectralMixture([1.0], [[1.0, 2.0]], [[1.0, 2.0]]),
    ],
)
def test_wrong_number_of_lengthscales_is_refused(kernel: Kernel) -> None:
    with pytest.raises(KernelError, match="2 lengthscales but acts on"):
        kernel.check(3)


def test_right_number_of_lengthscales_is_accepted() -> None:
    RBF(lengthscale=[1.0, 2.0]).check(2)
    RBF(lengthscale=1.0).check(3)
    (RBF(lengthscale=[1.0, 2.0]).on(0, 2) + Matern12().on(1)).check(3)


def test_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KernelError, match="acts on column 2, but X has 2 columns"):
        (RBF().on(0) + RBF().on(2)).check(2)


@pytest.mark.parametrize("dims", [(), (-1,), (0, 0)])
def test_columns_must_be_distinct_and_counted_from_zero(dims: tuple[int, ...]) -> None:
    with pytest.raises(KernelError, match="distinct, and named or counted from 0"):
        RBF().on(*dims)


def test_spectral_kernel_without_covariance_is_refused_in_two_dimensions() -> None:
    kernel = SpectralKernel(sech_density)
    kernel.check(1)
    with pytest.raises(KernelError, match="give `covariance`"):
        kernel.check(2)
    with pytest.raises(KernelError, match="give `covariance`"):
        (RBF() + kernel.on(0, 1)).check(3)
