"""Eigenfunction features: what they are by definition, and as Hermite features."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_hermite

from orthogp.errors import FeatureError
from orthogp.features.hermite import Eigenfunction, Hermite
from orthogp.kernels import RBF, Kernel, Matern32
from tests import oracles
from tests.oracles import Array
from tests.problems import make_lattice, make_rows

VARIANCE = 1.7
# Inputs much wider than the lengthscale, about as wide, and much narrower.
CASES = [(0.3, 2.0), (1.1, 0.9), (5.0, 0.2)]


def orders(count: int) -> tuple[tuple[int], ...]:
    return tuple((m,) for m in range(count))


def eigenfunctions(count: int, input_sd: float) -> Eigenfunction:
    """Features of one column around zero, with nothing left open."""
    return Eigenfunction(count, np.array([input_sd]), centre=np.zeros(1), orders=orders(count))


def gaussian_rule(sd: float, size: int = 400) -> tuple[Array, Array]:
    """Nodes and weights of ∫ · N(x; 0, sd²) dx for functions that grow by less than e^{x²/4sd²}."""
    x = np.linspace(-16, 16, 40 * size + 1) * sd
    weights = np.exp(-0.5 * (x / sd) ** 2) / math.sqrt(2 * math.pi * sd**2) * (x[1] - x[0])
    return x, weights


@pytest.mark.parametrize(("lengthscale", "input_sd"), CASES)
def test_they_are_eigenfunctions_of_the_kernel_under_gaussian_inputs(
    lengthscale: float, input_sd: float
) -> None:
    # ∫ k(x, x') φ_m(x') p(x') dx' = λ_m φ_m(x)
    kernel, count = RBF(VARIANCE, lengthscale), 8
    features = eigenfunctions(count, input_sd)
    nodes, weights = gaussian_rule(input_sd)
    x = np.array([0.0, 0.3, -1.1, 2.4]) * input_sd
    k = oracles.rbf((x[:, None] - nodes)[..., None], VARIANCE, lengthscale)
    integrals = k @ (weights[:, None] * features.evaluate(kernel, nodes))
    eigenvalues = features.eigenvalues(kernel)
    assert np.all(np.diff(eigenvalues) < 0)
    expected = eigenvalues * features.evaluate(kernel, x)
    np.testing.assert_allclose(integrals, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("lengthscale", "input_sd"), CASES)
def test_they_are_orthogonal_under_the_inputs_with_their_eigenvalues_as_squares(
    lengthscale: float, input_sd: float
) -> None:
    # ∫ φ_m φ_m' p dx = λ_m δ_mm', which is what makes the posterior factorise.
    kernel, count = RBF(VARIANCE, lengthscale), 8
    features = eigenfunctions(count, input_sd)
    nodes, weights = gaussian_rule(input_sd)
    Phi = features.evaluate(kernel, nodes) / np.sqrt(features.eigenvalues(kernel))
    np.testing.assert_allclose(Phi.T @ (weights[:, None] * Phi), np.eye(count), atol=1e-10)


@pytest.mark.parametrize(("lengthscale", "input_sd"), CASES)
def test_eigenvalues_add_up_to_the_prior_variance(lengthscale: float, input_sd: float) -> None:
    features = eigenfunctions(400, input_sd)
    total = np.sum(features.eigenvalues(RBF(VARIANCE, lengthscale)))
    assert total == pytest.approx(VARIANCE, rel=1e-12)


@pytest.mark.parametrize("m", [0, 1, 5, 12])
def test_closed_form_is_the_textbook_one(m: int) -> None:
    # Rasmussen and Williams 2006, eq. 4.39–4.40, their eigenfunctions normalised.
    lengthscale, sd = 0.6, 1.3
    a, b = 1 / (4 * sd**2), 1 / (2 * lengthscale**2)
    c = math.sqrt(a**2 + 2 * a * b)
    eigenvalue = VARIANCE * math.sqrt(2 * a / (a + b + c)) * (b / (a + b + c)) ** m
    norm = (c / a) ** 0.25 / math.sqrt(2**m * math.factorial(m))
    x = np.linspace(-3, 3, 11)
    function = norm * np.exp(-(c - a) * x**2) * eval_hermite(m, math.sqrt(2 * c) * x)
    values = eigenfunctions(13, sd).evaluate(RBF(VARIANCE, lengthscale), x)[:, m]
    np.testing.assert_allclose(values, math.sqrt(eigenvalue) * function, atol=1e-12)


@pytest.mark.parametrize("lengthscale", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("excess", [1.001, 1.5, 20.0])
def test_they_are_hermite_features(lengthscale: float, excess: float) -> None:
    r = excess * lengthscale / math.sqrt(2)
    input_sd = math.sqrt((4 * r**4 - lengthscale**4) / (4 * lengthscale**2))
    kernel, x = RBF(VARIANCE, lengthscale), np.linspace(-4, 4, 31) * lengthscale
    hermite = Hermite(200, np.array([r]), centre=np.zeros(1), orders=orders(200))
    np.testing.assert_allclose(
        eigenfunctions(200, input_sd).evaluate(kernel, x),
        hermite.evaluate(kernel, x),
        atol=2e-12 * math.sqrt(VARIANCE),
    )


def test_products_over_columns_come_by_falling_eigenvalue() -> None:
    kernel = RBF(VARIANCE, np.array([0.4, 1.5]))
    features = Eigenfunction(25, [1.0, 0.8]).placed(kernel, -np.ones(2), np.ones(2))
    chosen = features.eigenvalues(kernel)
    assert features.num_features == len(chosen) == 25
    assert np.all(np.diff(chosen) <= 0)
    first = eigenfunctions(40, 1.0).eigenvalues(RBF(VARIANCE, 0.4))
    every = np.outer(first, eigenfunctions(40, 0.8).eigenvalues(RBF(1.0, 1.5)))
    np.testing.assert_allclose(chosen, np.sort(every.ravel())[::-1][:25], rtol=1e-12)


def test_products_over_columns_are_products() -> None:
    lengthscale, sd = np.array([0.4, 1.5]), np.array([1.0, 0.8])
    kernel, X = RBF(VARIANCE, lengthscale), make_rows(0, 9, 2).X
    features = Eigenfunction(12, sd, centre=np.zeros(2)).placed(kernel, -np.ones(2), np.ones(2))
    values = features.evaluate(kernel, X)
    each = [eigenfunctions(12, sd[d]).evaluate(RBF(1.0, lengthscale[d]), X[:, d]) for d in range(2)]
    for column, (i, j) in enumerate(features.orders or ()):
        expected = math.sqrt(VARIANCE) * each[0][:, i] * each[1][:, j]
        np.testing.assert_allclose(values[:, column], expected, atol=1e-13)


@pytest.mark.parametrize("lengthscale", [0.1, 1.0, 1e4, 1e9])
@pytest.mark.parametrize("count", [1, 9, 40])
def test_open_input_sd_is_chosen_like_the_r_of_hermite_features(
    count: int, lengthscale: float
) -> None:
    kernel, box = RBF(VARIANCE, lengthscale), (np.array([2.0]), np.array([4.0]))
    features, hermite = (
        Eigenfunction(count).placed(kernel, *box),
        Hermite(count).placed(kernel, *box),
    )
    X = np.linspace(2, 4, 21)[:, None]
    left = features.residual_variance(kernel, X)
    np.testing.assert_allclose(left, hermite.residual_variance(kernel, X), atol=1e-12)
    assert np.all(left >= 0)
    assert features.input_sd[0] > 0


def test_explained_variance_never_exceeds_the_prior() -> None:
    kernel, x = RBF(VARIANCE, 0.5), np.linspace(-500, 500, 4001)
    for input_sd in (0.01, 1.0, 50.0):
        values = eigenfunctions(300, input_sd).evaluate(kernel, x)
        assert np.all(np.isfinite(values))
        assert np.max(np.sum(values**2, axis=1)) <= VARIANCE * (1 + 1e-12)


# ---------------------------------------------------------------------- on a lattice


def test_on_a_lattice_they_are_the_hermite_features_of_the_kernel_they_were_placed_for() -> None:
    kernel, other = RBF(VARIANCE, 0.5), RBF(VARIANCE, 0.8)
    # Long enough for both kernels' features to vanish within a period.
    lattice = make_lattice(1, 20.0, 130)
    box = (lattice.centre - 1, lattice.centre + 1)
    placed = Eigenfunction(15, 0.7).placed(kernel, *box, lattice)
    r = (0.25 * (4 * 0.5**2 * 0.7**2 + 0.5**4)) ** 0.25
    hermite = Hermite(15, r).placed(kernel, *box, lattice)
    np.testing.assert_array_equal(placed.on(lattice).weights, hermite.on(lattice).weights)
    X = make_rows(0, 9, 1).X
    np.testing.assert_allclose(
        placed.on(lattice).evaluate(kernel, X), placed.evaluate(kernel, X), atol=1e-10
    )
    # For another kernel r stays on the lattice, while `evaluate` follows the lengthscale.
    np.testing.assert_allclose(
        placed.on(lattice).evaluate(other, X), hermite.evaluate(other, X), atol=1e-10
    )
    fresh = Eigenfunction(15, 0.7).placed(other, *box, lattice)
    np.testing.assert_allclose(
        placed.evaluate(other, X), fresh.on(lattice).evaluate(other, X), atol=1e-10
    )


def test_open_input_sd_suits_a_lattice() -> None:
    kernel, lattice = RBF(VARIANCE, 0.2), make_lattice(1, 4.0, 80)
    box = (lattice.centre - 1, lattice.centre + 1)
    series = Eigenfunction(40).placed(kernel, *box, lattice).on(lattice)
    assert np.max(series.residual_variance(kernel, make_rows(0, 50, 1).X)) < 1e-8


def test_another_dilation_is_another_input_sd() -> None:
    kernel = RBF(VARIANCE, 0.5)
    placed = Eigenfunction(5, 0.7).placed(kernel, -np.ones(1), np.ones(1))
    assert placed.dilation is not None
    wider = placed.dilated(placed.dilation / 1.2)
    assert wider.dilation == pytest.approx(placed.dilation / 1.2, rel=1e-12)
    assert wider.input_sd > placed.input_sd
    with pytest.raises(FeatureError, match="needs 2r² > ℓ²"):
        placed.dilated(np.array([1 / 0.3]))


@pytest.mark.parametrize("lengthscale", [0.1, 1e3, 1e9])
def test_given_input_sd_is_kept_to_the_last_digit(lengthscale: float) -> None:
    placed = Eigenfunction(9, 0.7).placed(RBF(VARIANCE, lengthscale), -np.ones(2), np.ones(2))
    np.testing.assert_array_equal(placed.input_sd, [0.7, 0.7])


def test_adjusted_features_follow_the_kernel() -> None:
    box, moved = (-np.ones(1), np.ones(1)), RBF(VARIANCE, 0.1)
    given = Eigenfunction(9, 0.7).placed(RBF(VARIANCE, 0.5), *box).adjusted(moved, *box)
    np.testing.assert_array_equal(given.input_sd, [0.7])
    np.testing.assert_array_equal(given.lengthscale, [0.1])
    chosen = Eigenfunction(9).placed(RBF(VARIANCE, 0.5), *box).adjusted(moved, *box)
    afresh = Eigenfunction(9).placed(moved, *box)
    np.testing.assert_allclose(chosen.input_sd, afresh.input_sd, rtol=1e-12)
    np.testing.assert_array_equal(chosen.lengthscale, [0.1])


# ---------------------------------------------------------------------- learning


def test_traced_features_and_their_gradient(double: None) -> None:
    X = make_rows(3, 9, 1).X
    features = Eigenfunction(12, 0.7, learn=True).placed(
        RBF(VARIANCE, 0.5), -np.ones(1), np.ones(1)
    )
    weights = np.random.default_rng(0).normal(size=(9, 12))
    assert features.free_parameters() == pytest.approx(math.log(0.7))

    @jax.jit
    def phi(vector: Array) -> jax.Array:
        kernel = RBF().with_parameters(variance=jnp.exp(vector[0]), lengthscale=jnp.exp(vector[1]))
        return features.with_free_parameters(vector[2:]).phi(kernel, X)

    point = jnp.log(jnp.array([VARIANCE, 0.5, 0.7]))
    expected = features.evaluate(RBF(VARIANCE, 0.5), X)
    np.testing.assert_allclose(phi(point), expected, rtol=0, atol=1e-13)

    def total(vector: Array) -> jax.Array:
        return jnp.sum(weights * phi(vector))

    slope = oracles.fourth_order_difference(total, np.asarray(point), 1e-3)
    np.testing.assert_allclose(jax.grad(total)(point), slope, rtol=1e-8, atol=1e-9)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "kernel", [Matern32(), RBF() + RBF(1.0, 0.1)], ids=["Matern32", "a sum of RBF kernels"]
)
def test_other_kernels_are_refused_with_a_remedy(kernel: Kernel) -> None:
    with pytest.raises(FeatureError, match=r"needs the RBF kernel.*use Hermite"):
        Eigenfunction(5).evaluate(kernel, np.zeros((3, 1)))
    with pytest.raises(FeatureError, match=r"needs the RBF kernel.*use Hermite"):
        Eigenfunction(5, 1.0).placed(kernel, -np.ones(1), np.ones(1))


def test_additive_rbf_kernels_have_eigenfunctions_of_each_component() -> None:
    kernel, X = RBF(1.0, 0.5).on(0) + RBF(0.6, 0.8).on(1), make_rows(0, 9, 2).X
    values = Eigenfunction(4, 0.7).evaluate(kernel, X)
    assert values.shape == (9, 8)
    first = eigenfunctions(4, 0.7).evaluate(RBF(1.0, 0.5), X[:, 0])
    np.testing.assert_allclose(values[:, :4], first, atol=1e-13)


@pytest.mark.parametrize("input_sd", [0.0, -1.0, np.nan, "wide"])
def test_impossible_input_sd_is_refused(input_sd: object) -> None:
    with pytest.raises(FeatureError, match="input_sd must be"):
        Eigenfunction(5, input_sd)
