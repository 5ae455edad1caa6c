"""Products of kernels: covariance, spectrum, masses and parameters; factors on shared columns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.errors import KernelError
from orthogp.features.series import lattice_masses, spectral_densities
from orthogp.inference.parameters import learned_slots, pack, stretched, unpack
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Product,
    SpectralMixture,
    components,
)
from orthogp.learning.limits import lengthscale_limits, wrap_error
from orthogp.learning.starts import starts_for_kernel
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.problems import covariances, prior_variance, wrapped_covariances

LAGS = np.random.default_rng(0).normal(size=(20, 3))
FIRST = partial(oracles.matern32, variance=2.0, lengthscale=0.3)
SECOND = partial(oracles.rbf, variance=1.5, lengthscale=[0.7, 0.4])


def three_columns() -> Kernel:
    """2 Matérn-3/2 on column 1, times 1.5 RBF on columns 2 and 0."""
    return Matern32(2.0, 0.3).on(1) * RBF(1.5, [0.7, 0.4]).on(2, 0)


def learned(kernel: Kernel) -> list[tuple[int, str]]:
    return [(slot.primitive, slot.name) for slot in learned_slots(kernel)]


# ---------------------------------------------------------------------- covariance and spectrum


def test_covariance_is_the_product_over_the_factors_own_columns() -> None:
    expected = FIRST(LAGS[:, [1]]) * SECOND(LAGS[:, [2, 0]])
    np.testing.assert_allclose(covariances(three_columns(), LAGS), expected, rtol=1e-13)
    assert prior_variance(three_columns()) == pytest.approx(3.0)


def test_gram_matrix_is_positive_definite() -> None:
    X = np.random.default_rng(1).uniform(-1, 1, (40, 3))
    lags = (X[:, None] - X).reshape(-1, 3)
    K = covariances(three_columns(), lags).reshape(40, 40)
    assert np.linalg.eigvalsh(K).min() > 1e-6


def test_spectral_density_is_the_product_of_the_factors_transforms() -> None:
    kernel = Matern32(2.0, 0.3).on(1) * Matern52(1.5, 0.7).on(0)
    omegas = np.array([[0.0, 0.0], [1.5, -4.0], [-6.0, 2.0]])
    expected = [
        oracles.spectral_density(lambda t: float(oracles.matern52([t], 1.5, 0.7)), abs(a))
        * oracles.spectral_density(lambda t: float(oracles.matern32([t], 2.0, 0.3)), abs(b))
        for a, b in omegas
    ]
    np.testing.assert_allclose(spectral_densities(kernel, omegas), expected, rtol=1e-8)


def test_masses_are_the_fourier_coefficients_of_the_product_of_wrapped_factors() -> None:
    kernel = RBF(2.0, 0.5).on(1) * Matern52(1.5, 0.4).on(0)
    lattice = FrequencyLattice(2 * np.pi / np.array([5.0, 6.0]), [150, 12])
    indices = lattice.half_indices()
    masses = lattice_masses(kernel, lattice, indices)
    counted = masses * np.where(np.any(indices != 0, axis=1), 2, 1)
    assert counted.sum() == pytest.approx(3.0, rel=1e-6)
    lags = np.array([[0.3, 0.2], [-1.0, 0.7], [2.0, 2.0]])
    series = np.cos(lags @ (indices * lattice.spacing).T) @ counted
    first = oracles.wrapped(
        partial(oracles.rbf, variance=2.0, lengthscale=0.5), lags[:, 1:], 6.0, 3
    )
    second = oracles.wrapped_and_scaled(
        partial(oracles.matern52, variance=1.5, lengthscale=0.4), lags[:, :1], 5.0, 3
    )
    np.testing.assert_allclose(series, first * second, atol=1e-6)


def test_wrapped_product_is_the_product_of_wrapped_factors() -> None:
    period = np.array([4.0, 5.0, 6.0])
    first = wrapped_covariances(Matern32(2.0, 0.3), LAGS[:, [1]], period[[1]])
    second = wrapped_covariances(RBF(1.5, [0.7, 0.4]), LAGS[:, [2, 0]], period[[2, 0]])
    np.testing.assert_allclose(
        wrapped_covariances(three_columns(), LAGS, period), first * second, rtol=1e-12
    )


def test_product_on_some_columns_has_masses_on_their_plane_only() -> None:
    inner = Matern32(2.0, 0.3).on(0) * RBF(1.5, 0.7).on(1)
    outer = inner.on(2, 0)
    plane = FrequencyLattice([0.5, 0.6], 3)
    space = FrequencyLattice([0.6, 0.9, 0.5], 3)
    masses = lattice_masses(outer, space, np.array([[2, 0, 1], [2, 1, 1], [0, 0, 0]]))
    expected = lattice_masses(inner, plane, np.array([[1, 2], [0, 0]]))
    np.testing.assert_allclose(masses, [expected[0], 0.0, expected[1]], rtol=1e-13)
    flat = Matern32(2.0, 0.3).on(2) * RBF(1.5, 0.7).on(0)
    np.testing.assert_allclose(
        lattice_masses(flat, space, np.array([[2, 0, 1], [2, 1, 1], [0, 0, 0]])), masses
    )
    with pytest.raises(KernelError, match="product on some of the columns has no spectral density"):
        spectral_densities(flat, np.zeros((1, 3)))


def test_derivative_variance_is_the_curvature_of_the_covariance(double: None) -> None:
    kernel = Matern52(2.0, 0.3).on(1) * RBF(1.5, [0.7, 0.4]).on(2, 0)
    step = 1e-3
    k = lambda lag: float(kernel.k(jnp.asarray(lag)))  # noqa: E731
    expected = [(2 * k(np.zeros(3)) - k(step * e) - k(-step * e)) / step**2 for e in np.eye(3)]
    np.testing.assert_allclose(kernel.derivative_variance(3), expected, rtol=1e-4)
    rough = Matern12().on(0) * RBF().on(1)
    np.testing.assert_array_equal(np.isinf(rough.derivative_variance(2)), [True, False])


@pytest.mark.parametrize(
    "value", ["k", pytest.param("mass", marks=pytest.mark.slow), "spectral_density"]
)
def test_gradient_in_the_learned_parameters_is_right(double: None, value: str) -> None:
    kernel = three_columns()
    slots = learned_slots(kernel)
    at = np.array([0.3, 0.5, -0.4])
    rest = (np.full(3, 0.8),) if value == "mass" else ()

    def f(vector: jax.Array) -> jax.Array:
        return getattr(unpack(kernel, slots, vector), value)(
            jnp.asarray(at), *map(jnp.asarray, rest)
        )

    vector = pack(kernel, slots)
    numeric = oracles.fourth_order_difference(lambda v: f(jnp.asarray(v)), vector, 1e-3)
    np.testing.assert_allclose(jax.grad(f)(jnp.asarray(vector)), numeric, rtol=1e-8, atol=1e-11)


# ---------------------------------------------------------------------- one variance to learn


def test_the_first_factor_carries_the_variance_of_all() -> None:
    kernel = three_columns()
    assert learned(kernel) == [(0, "variance"), (0, "lengthscale"), (1, "lengthscale")]
    assert [float(p.parameters()["variance"]) for p, _ in kernel.primitives()] == [3.0, 1.0]


def test_a_product_of_products_has_one_variance_too() -> None:
    kernel = RBF(2.0).on(0) * (Matern12(3.0).on(0) * RBF(5.0).on(1)).on(2, 1)
    assert isinstance(kernel, Product)
    assert [dims for _, dims in kernel.primitives()] == [(0,), (2,), (1,)]
    assert [float(p.parameters()["variance"]) for p, _ in kernel.primitives()] == [30.0, 1.0, 1.0]
    assert [name for _, name in learned(kernel)].count("variance") == 1
    lags = covariances(RBF(2.0), LAGS[:, :1])
    lags = lags * covariances(Matern12(3.0), LAGS[:, 2:]) * covariances(RBF(5.0), LAGS[:, 1:2])
    np.testing.assert_allclose(covariances(kernel, LAGS), lags, rtol=1e-13)


def test_a_variance_is_learned_unless_all_are_fixed() -> None:
    one = RBF(2.0).fix("variance").on(0) * Matern12(3.0).on(1)
    assert learned(one) == [(0, "lengthscale"), (1, "variance"), (1, "lengthscale")]
    both = RBF(2.0).fix("variance").on(0) * Matern12(3.0).fix("variance").on(1)
    assert learned(both) == [(0, "lengthscale"), (1, "lengthscale")]
    assert prior_variance(one) == prior_variance(both) == pytest.approx(6.0)


def test_a_factor_with_several_variances_keeps_their_ratios() -> None:
    mixture = SpectralMixture([0.5, 1.5], [3.0, 8.0], [0.6, 0.9])
    kernel = RBF(3.0).on(0) * mixture.on(1)
    weights = [
        p.parameters()["weights"]
        for p, _ in kernel.primitives()
        if p.parameters().get("weights") is not None
    ]
    np.testing.assert_allclose(weights[0], [1.5, 4.5])
    assert learned(kernel) == [
        (0, "lengthscale"),
        (1, "weights"),
        (1, "means"),
        (1, "lengthscale"),
    ]
    summed = RBF(3.0).on(0) * (Matern12(1.0) + Matern52(2.0)).on(1)
    assert prior_variance(summed) == pytest.approx(9.0)
    assert [name for _, name in learned(summed)].count("variance") == 2


def test_multiples_scale_the_covariance_once() -> None:
    np.testing.assert_allclose(
        covariances(2.5 * three_columns(), LAGS), 2.5 * covariances(three_columns(), LAGS)
    )


def test_fix_reaches_every_factor_that_has_the_parameter() -> None:
    kernel = Matern(1.2).on(0) * RBF().on(1)
    assert learned(kernel.fix("lengthscale", "nu")) == [(0, "variance")]
    assert learned(kernel.fix()) == []
    with pytest.raises(KernelError, match="No kernel of the product has a parameter 'period'"):
        kernel.fix("period")


@pytest.mark.parametrize(
    "kernel",
    [
        three_columns(),
        three_columns() + Matern12(0.25).fix("variance"),
        SpectralMixture([1.0, 2.0], [3.0, 8.0], [0.6, 0.9]).on(0) * RBF(2.0).on(1),
    ],
)
def test_starting_values_have_the_variance_asked_for(kernel: Kernel) -> None:
    # Unit variances of the later factors are not variance that is held fixed.
    given, scaled = starts_for_kernel(kernel, 0.4)[:2]
    assert given.kernel is kernel
    assert prior_variance(scaled.kernel) == pytest.approx(0.6, rel=1e-12)


def test_lengthscale_limits_are_those_of_the_whole_product() -> None:
    # Variance 100 sits in the first factor: the second, of variance 1, is bounded all the same.
    kernel = Matern32(100.0, 0.3).on(0) * RBF(1.0, 0.3).on(1)
    period, width, tolerance = np.array([4.0, 4.0]), np.array([2.0, 2.0]), 1e-4
    for slot in (slot for slot in learned_slots(kernel) if slot.name == "lengthscale"):
        limit = float(lengthscale_limits(kernel, slot, period, width, tolerance))
        primitives = [p for p, _ in kernel.primitives()]
        errors = []
        for factor in (0.98, 1.1):
            primitives[slot.primitive] = primitives[slot.primitive].with_parameters(
                lengthscale=factor * limit
            )
            along = np.where(np.arange(2) == slot.primitive, width, 1e-9)
            errors.append(wrap_error(kernel.with_primitives(iter(primitives)), period, along))
        assert errors[0] <= tolerance < errors[1]


def test_stretching_stretches_every_factor() -> None:
    np.testing.assert_allclose(
        covariances(stretched(three_columns(), 3.0), 3 * LAGS),
        covariances(three_columns(), LAGS),
        rtol=1e-13,
    )


# ---------------------------------------------------------------------- columns


def test_a_product_is_one_component_over_all_its_columns() -> None:
    kernel = Matern32(2.0, 0.3).on(3) * RBF(1.5, 0.7).on(1) + RBF().on(1)
    (dims, own), (other, _) = components(kernel, 4)
    assert (dims, other) == ((1, 3), (1,))
    np.testing.assert_allclose(
        covariances(own, LAGS[:, :2]),
        FIRST(LAGS[:, [1]]) * oracles.rbf(LAGS[:, [0]], 1.5, 0.7),
        rtol=1e-13,
    )
    assert kernel.columns(4) == (1, 3)


def test_components_of_a_product_on_some_columns_are_relative_to_them() -> None:
    inner = Matern32(2.0, 0.3).on(2) * RBF(1.5, 0.7).on(0)
    ((dims, own),) = components(inner.on(4, 1, 3), 5)
    assert dims == (4, 3)
    np.testing.assert_allclose(
        covariances(own, LAGS[:, :2]),
        FIRST(LAGS[:, [1]]) * oracles.rbf(LAGS[:, [0]], 1.5, 0.7),
        rtol=1e-13,
    )


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (
            RBF(2.0, 0.8) * Matern32(3.0, 0.5),
            lambda x: oracles.rbf(x, 2.0, 0.8) * oracles.matern32(x, 3.0, 0.5),
        ),
        (
            RBF().on(0) * Matern12(),
            lambda x: oracles.rbf(x[:, [0]], 1.0, 1.0) * oracles.matern12(x, 1.0, 1.0),
        ),
        (
            RBF().on(0) * (Matern12().on(0, 1) + RBF(2.0).on(1)),
            lambda x: (
                oracles.rbf(x[:, [0]], 1.0, 1.0)
                * (oracles.matern12(x[:, :2], 1.0, 1.0) + oracles.rbf(x[:, [1]], 2.0, 1.0))
            ),
        ),
    ],
)
def test_factors_on_shared_columns_multiply(kernel: Kernel, expected) -> None:
    np.testing.assert_allclose(covariances(kernel, LAGS), expected(LAGS), rtol=1e-13)


def test_derivatives_of_a_product_on_shared_columns() -> None:
    # Of each factor: v/l² for RBF, 5v/(3l²) for Matérn-5/2, times the other's variance.
    each = 3.0 * 2.0 / 0.8**2 + 2.0 * 5 * 3.0 / (3 * 0.5**2)
    kernel = RBF(2.0, 0.8) * Matern52(3.0, 0.5)
    np.testing.assert_allclose(kernel.derivative_variance(2), [each, each], rtol=1e-12)


@pytest.mark.parametrize(
    "kernel",
    [RBF() * RBF(), RBF() * RBF().on(0), (RBF() * RBF()).on(0), RBF().on(1) + RBF() * RBF()],
)
def test_a_product_on_shared_columns_has_no_lattice(kernel: Kernel) -> None:
    assert not kernel.has_lattice
    lattice = FrequencyLattice([0.5, 0.6], 3)
    with pytest.raises(KernelError, match="spectral density of a product on shared columns"):
        lattice_masses(kernel, lattice, lattice.half_indices())


def test_check_looks_at_every_factor() -> None:
    with pytest.raises(KernelError, match="acts on column 2, but X has 2 columns"):
        (RBF().on(0) * RBF().on(2)).check(2)
    with pytest.raises(KernelError, match="2 lengthscales but acts on 1"):
        (RBF().on(0) * RBF(lengthscale=[1.0, 2.0]).on(2)).check(3)
    three_columns().check(3)


def test_anything_else_is_no_factor() -> None:
    with pytest.raises(TypeError):
        RBF().on(0) * "rbf"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            Matern32(2.0, 0.3).on(1) * RBF().on(0),
            "Matern32(variance=2, lengthscale=0.3).on(1) * "
            "RBF(variance=1, lengthscale=1, fixed=('variance',)).on(0)",
        ),
        (
            (RBF().on(0) * RBF().on(1)).on(2, 0),
            "(RBF(variance=1, lengthscale=1).on(0) * "
            "RBF(variance=1, lengthscale=1, fixed=('variance',)).on(1)).on(2, 0)",
        ),
        (
            (RBF().on(0) + RBF().on(1)) * Matern12().on(2),
            "(RBF(variance=1, lengthscale=1).on(0) + RBF(variance=1, lengthscale=1).on(1)) * "
            "Matern12(variance=1, lengthscale=1, fixed=('variance',)).on(2)",
        ),
    ],
)
def test_repr_is_what_one_would_type(kernel: Kernel, text: str) -> None:
    assert repr(kernel) == text
