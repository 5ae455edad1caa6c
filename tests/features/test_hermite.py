"""Hermite features: closed form, quadrature, lattice, limits, and the gradient for learning."""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import eval_hermite

from orthogp.errors import FeatureError
from orthogp.features.hermite import MOST_MEMBERS, Hermite, Terms, members, traced_members
from orthogp.features.spectral import SpectralFeatures
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.oracles import Array
from tests.problems import CENTRE, Entry, all_entries, densities, label, make_lattice, make_rows

# r above, at and below ℓ/√2, where q = r² − ℓ²/2 changes sign, for ℓ = 0.5.
LENGTHSCALE = 0.5
RADII = {"q > 0": 0.8, "q = 0": LENGTHSCALE / math.sqrt(2), "q < 0": 0.15}


def orders(count: int) -> tuple[tuple[int], ...]:
    return tuple((m,) for m in range(count))


def hermite(count: int, r: float) -> Hermite:
    """Features of one column around zero, with nothing left open."""
    # As if `placed` had chosen r, so that every r > 0 is taken.
    return Hermite(count, np.array([r]), centre=np.zeros(1), orders=orders(count), chosen=True)


def features(variance: Any, lengthscale: Any, r: Any, x: Any, count: int) -> jax.Array:
    """The first Hermite features of an RBF kernel in one column."""
    return traced_members(Hermite.terms(variance, lengthscale, r, jnp.asarray(x)), count)


def textbook_psi(omega: float, m: int, r: float) -> float:
    """(−1)^{⌊m/2⌋} √r π^{−1/4} H_m(rω)/√(2^m m!) e^{−r²ω²/2}, for low orders."""
    scale = (-1) ** (m // 2) * math.sqrt(r / (2**m * math.factorial(m))) * math.pi**-0.25
    return scale * eval_hermite(m, r * omega) * math.exp(-((r * omega) ** 2) / 2)


def left_out(features: SpectralFeatures, kernel: Kernel, X: Array) -> float:
    """The mean of k(0) − Σ φ² for kernels of variance 1."""
    return 1 - float(np.mean(np.sum(features.evaluate(kernel, X) ** 2, axis=1)))


# ---------------------------------------------------------------------- the basis


@pytest.mark.parametrize("r", [0.3, 2.0])
def test_psi_is_orthonormal_by_adaptive_quadrature(r: float) -> None:
    for m in range(7):
        for other in range(m + 1):
            product = quad(
                lambda w: textbook_psi(w, m, r) * textbook_psi(w, other, r),  # noqa: B023
                -12 / r,
                12 / r,
                epsabs=1e-12,
                limit=200,
            )[0]
            assert product == pytest.approx(float(m == other), abs=1e-10)


def test_basis_is_the_textbook_hermite_function() -> None:
    u = np.linspace(-6, 6, 41)
    values = Hermite(20).basis(u, 20)
    expected = [[textbook_psi(point, m, 1.0) for point in u] for m in range(20)]
    np.testing.assert_allclose(values, expected, atol=1e-13)


@pytest.mark.parametrize("count", [1, 2, 30, 200, MOST_MEMBERS])
def test_basis_of_high_order_is_orthonormal_within_its_reach(count: int) -> None:
    # The trapezoidal rule is exact to rounding for functions that vanish at both ends.
    family = Hermite(count)
    u = np.linspace(-1, 1, 8 * count + 201) * family.reach(count)
    values = family.basis(u, count) * np.sqrt(u[1] - u[0])
    np.testing.assert_allclose(values @ values.T, np.eye(count), atol=2e-13)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100, MOST_MEMBERS])
def test_norm_beyond_the_reach_is_below_rounding(count: int) -> None:
    family = Hermite(count)
    u = np.linspace(0, 8, 4001) + family.reach(count)
    tails = np.sqrt(2 * np.sum(family.basis(u, count) ** 2, axis=1) * (u[1] - u[0]))
    assert np.max(tails) < 2e-16


@pytest.mark.parametrize("count", [1, 2, 7])
def test_odd_members_are_odd_functions(count: int) -> None:
    family, u = Hermite(count), np.array([0.3, 1.7])
    signs = np.where(family.is_odd(np.arange(count)), -1.0, 1.0)[:, None]
    np.testing.assert_array_equal(family.basis(-u, count), signs * family.basis(u, count))


# ---------------------------------------------------------------------- the closed form


def exact_feature(m: int, x: float, variance: float, lengthscale: float, r: float) -> float:
    """The closed form of the paper with H_m written out as a sum, with 400 digits."""
    with mpmath.workdps(400):
        x, v, ell, r = (mpmath.mpf(value) for value in (x, variance, lengthscale, r))
        p, q = r**2 + ell**2 / 2, r**2 - ell**2 / 2
        z2 = 2 * r * x / mpmath.sqrt(p * q)
        H = mpmath.factorial(m) * mpmath.fsum(
            (-1) ** j * z2 ** (m - 2 * j) / (mpmath.factorial(j) * mpmath.factorial(m - 2 * j))
            for j in range(m // 2 + 1)
        )
        h = H / mpmath.sqrt(mpmath.mpf(2) ** m * mpmath.factorial(m))
        scale = (
            mpmath.mpf(2) ** 0.25 * mpmath.sqrt(v * r * ell / p) * (q / p) ** (mpmath.mpf(m) / 2)
        )
        return float(mpmath.re(scale * mpmath.exp(-(x**2) / (2 * p)) * h))


@pytest.mark.parametrize("r", [0.36, 0.8, 5.0])
def test_closed_form_up_to_order_200_against_400_digits(r: float) -> None:
    kernel = RBF(1.7, LENGTHSCALE)
    x = np.array([0.0, 0.13, -0.9, 3.1, 11.0, 40.0])
    values = hermite(200, r).evaluate(kernel, x)
    for m in (0, 1, 2, 17, 80, 198, 199):
        expected = [exact_feature(m, point, 1.7, LENGTHSCALE, r) for point in x]
        np.testing.assert_allclose(values[:, m], expected, rtol=0, atol=1e-12 * math.sqrt(1.7))


def test_last_order_is_right_where_the_first_underflows() -> None:
    # x²/(2p) from 300 to 900: φ_0 vanishes in the middle of these points.
    kernel, r, count = RBF(1.0, LENGTHSCALE), 5.0, MOST_MEMBERS
    x = np.sqrt(2 * (r**2 + LENGTHSCALE**2 / 2) * np.array([300.0, 500.0, 600.0, 720.0, 900.0]))
    values = hermite(count, r).evaluate(kernel, x)
    assert values[-1, 0] == 0
    assert values[0, 0] > 0
    expected = [exact_feature(count - 1, point, 1.0, LENGTHSCALE, r) for point in x]
    np.testing.assert_allclose(values[:, -1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 200, MOST_MEMBERS])
@pytest.mark.parametrize("r", [*RADII.values(), 20.0])
def test_nothing_overflows_far_away_and_no_variance_is_exceeded(count: int, r: float) -> None:
    kernel = RBF(1.7, LENGTHSCALE)
    x = LENGTHSCALE * np.concatenate([-np.geomspace(1e3, 1e-3, 300), np.geomspace(1e-3, 1e3, 300)])
    values = hermite(count, r).evaluate(kernel, x)
    assert np.all(np.isfinite(values))
    assert np.max(np.sum(values**2, axis=1)) <= 1.7 * (1 + 1e-12)


@pytest.mark.parametrize("r", RADII.values(), ids=RADII)
def test_closed_form_is_the_integral_for_every_r(r: float) -> None:
    def density(omega: float) -> float:
        return (
            1.7 * LENGTHSCALE / math.sqrt(2 * math.pi) * math.exp(-((LENGTHSCALE * omega) ** 2) / 2)
        )

    x = np.array([0.0, 0.4, -2.3])
    values = hermite(9, r).evaluate(RBF(1.7, LENGTHSCALE), x)
    for m in range(9):
        wave = math.sin if m % 2 else math.cos
        for point, value in zip(x, values[:, m]):
            expected = quad(
                lambda w: textbook_psi(w, m, r) * math.sqrt(density(w)) * wave(w * point),  # noqa: B023
                -40.0,
                40.0,
                epsabs=1e-12,
                limit=500,
            )[0]
            assert value == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("r", RADII.values(), ids=RADII)
def test_closed_form_is_the_inherited_quadrature(r: float) -> None:
    kernel, X = RBF(1.7, LENGTHSCALE), np.linspace(-3, 3, 13)[:, None]
    features = hermite(60, r)
    by_nodes = SpectralFeatures._sum_nodes(features, kernel, X, 400)
    np.testing.assert_allclose(features.evaluate(kernel, X), by_nodes, atol=1e-12)


# ---------------------------------------------------------------------- any kernel


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(1), ids=label)
def test_every_kernel_is_integrated(num_dims: int, entry: Entry) -> None:
    r, count = 0.4, 7
    x = np.array([0.0, 0.35, -1.2])
    values = hermite(count, r).evaluate(entry.kernel, x)
    # Other nodes than the library's: double exponential over the half line.
    omegas, weights = oracles.double_exponential(3.0)
    inside = omegas < 12 / r
    omegas, weights = omegas[inside], weights[inside]
    roots = 2 * weights * np.sqrt(densities(entry.kernel, omegas[:, None]))
    for m in (0, 1, 2, 5, 6):
        psi = np.array([textbook_psi(omega, m, r) for omega in omegas])
        waves = np.sin(np.outer(x, omegas)) if m % 2 else np.cos(np.outer(x, omegas))
        np.testing.assert_allclose(values[:, m], waves @ (psi * roots), atol=1e-9)


def test_products_of_an_rbf_kernel_in_two_columns() -> None:
    lengthscale, r = np.array([0.5, 0.9]), np.array([0.6, 1.1])
    chosen = ((0, 0), (2, 1), (0, 3), (1, 0))
    centre = np.array([0.2, -0.1])
    features = Hermite(4, r, centre=centre, orders=chosen)
    X = make_rows(3, 8, 2).X
    values = features.evaluate(RBF(1.7, lengthscale), X)
    each = [
        hermite(4, r[d]).evaluate(RBF(1.0, lengthscale[d]), X[:, d] - centre[d]) for d in range(2)
    ]
    expected = [math.sqrt(1.7) * each[0][:, i] * each[1][:, j] for i, j in chosen]
    np.testing.assert_allclose(values, np.transpose(expected), atol=1e-13)
    by_nodes = SpectralFeatures._sum_nodes(features, RBF(1.7, lengthscale), X, 60)
    np.testing.assert_allclose(values, by_nodes, atol=1e-12)


def test_a_kernel_that_is_no_product_in_two_columns() -> None:
    # √S of the Matérn kernel does not factorise; the trapezoidal rule over the plane does not care.
    lengthscale, r = np.array([0.5, 0.7]), np.array([0.6, 0.8])
    kernel = Matern32(0.7, lengthscale)
    chosen = ((0, 0), (1, 0), (1, 1), (2, 1))
    X = np.array([[0.3, -0.2], [-0.8, 0.5]])
    values = Hermite(4, r, centre=np.zeros(2), orders=chosen).evaluate(kernel, X)
    axes = [np.linspace(-9, 9, 121) / scale for scale in r]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    roots = cell * np.sqrt(densities(kernel, grid))
    for column, (i, j) in enumerate(chosen):
        psi = [textbook_psi(a, i, r[0]) * textbook_psi(b, j, r[1]) for a, b in grid]
        wave = np.sin if (i + j) % 2 else np.cos
        expected = wave(X @ grid.T) @ (np.array(psi) * roots)
        np.testing.assert_allclose(values[:, column], expected, atol=1e-8)


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(1), ids=label)
def test_products_of_features_approach_the_kernel(num_dims: int, entry: Entry) -> None:
    # Section 3.4 of the paper: Q → K from below as ψ becomes complete.
    X = np.linspace(-1, 1, 9)[:, None]
    K = oracles.gram_matrix(entry.k, X, X)
    errors = []
    for count in (6, 24, 96):
        Phi = hermite(count, 0.25).evaluate(entry.kernel, X)
        difference = K - Phi @ Phi.T
        assert np.min(np.linalg.eigvalsh(difference)) > -1e-10
        errors.append(np.max(np.abs(difference)))
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.6 * errors[1]
    if entry.name in ("rbf", "spectral", "spectral by quadrature"):
        assert errors[2] < 1e-6


# ---------------------------------------------------------------------- on a lattice


@pytest.mark.parametrize("num_dims", [1, 2])
def test_weights_on_a_lattice_are_orthonormal(num_dims: int) -> None:
    # K_uu = I: index zero counts once, all others stand for ±t with half the weight each.
    lattice = make_lattice(num_dims, 5.0, 40)
    r = np.full(num_dims, 0.3)
    features = Hermite(15, r).placed(RBF(1.0, 0.5), CENTRE[:num_dims] - 1, CENTRE[:num_dims] + 1)
    series = features.on(lattice)
    times = np.r_[1.0, np.full(len(series.indices) - 1, 0.5)]
    for rows in (series.weights[~series.odd], series.weights[series.odd]):
        np.testing.assert_allclose(rows * times @ rows.T, np.eye(len(rows)), atol=1e-12)
    assert np.all(series.weights[series.odd, 0] == 0)


@pytest.mark.parametrize(
    "kernel", [RBF(1.3, 0.3), Matern32(1.3, 0.3)], ids=lambda kernel: type(kernel).__name__
)
def test_features_on_a_lattice_are_the_integrals(kernel: Kernel) -> None:
    lattice = make_lattice(1, 9.0, 400)
    features = Hermite(31).placed(kernel, CENTRE[:1] - 1, CENTRE[:1] + 1, lattice)
    X = make_rows(0, 20, 1).X
    close = features.on(lattice).evaluate(kernel, X)
    np.testing.assert_allclose(close, features.evaluate(kernel, X), atol=1e-8)
    assert features.quadrature_error(kernel, lattice, X) < 1e-8


def test_lattice_that_is_too_coarse_is_refused() -> None:
    features = hermite(80, 1.0)
    with pytest.raises(FeatureError, match="80 members per column wants"):
        features.on(FrequencyLattice(2.0, 100))


# ---------------------------------------------------------------------- choosing r


def best_possible(covariance: oracles.Covariance, count: int, X: Array) -> float:
    """The mean variance that `count` features must leave out at X: the smallest eigenvalues."""
    eigenvalues = np.linalg.eigvalsh(oracles.gram_matrix(covariance, X, X))
    return float(np.sum(eigenvalues[:-count]) / len(X))


# Mean of k(0) − Σ φ² over 201 points in [−1, 1], ℓ = 0.1: the best possible, and Hermite features
# with the best of a coarse search of r.
TABLE = [
    (Matern32(1.0, 0.1), oracles.matern32, 41, "8.1e-03", "1.06e-02"),
    (Matern32(1.0, 0.1), oracles.matern32, 81, "1.08e-03", "1.65e-03"),
    (RBF(1.0, 0.1), oracles.rbf, 41, "4.9e-09", "3.8e-06"),
]
TABLE_POINTS = np.linspace(-1, 1, 201)[:, None]


def digits_like(value: float, printed: str) -> str:
    decimals = len(printed.split("e")[0].split(".")[1])
    return f"{value:.{decimals}e}"


@pytest.mark.parametrize(("kernel", "k", "count", "best", "coarse"), TABLE)
def test_variance_left_out_is_that_of_the_table(
    kernel: Kernel, k: oracles.Covariance, count: int, best: str, coarse: str
) -> None:
    covariance = partial(k, variance=1.0, lengthscale=0.1)
    possible = best_possible(covariance, count, TABLE_POINTS)
    assert digits_like(possible, best) == best
    placed = left_out(Hermite(count).placed(kernel, -np.ones(1), np.ones(1)), kernel, TABLE_POINTS)
    # The coarse search is not known; ours is finer, and must not do worse than the digits printed.
    assert possible < placed <= 1.005 * float(coarse)
    assert placed > 0.7 * float(coarse)


@pytest.mark.parametrize("lengthscale", [0.02, 0.3, 5.0, 1e5])
@pytest.mark.parametrize("count", [1, 12, 150])
def test_chosen_r_is_nearly_the_best_and_belongs_to_inputs(count: int, lengthscale: float) -> None:
    kernel = RBF(1.0, lengthscale)
    placed = Hermite(count).placed(kernel, np.array([3.0]), np.array([5.0]))
    assert 2 * placed.r[0] ** 2 > lengthscale**2
    np.testing.assert_allclose(placed.centre, 4.0)
    X = np.linspace(-1, 1, 77)[:, None]
    others = [hermite(count, r) for r in np.geomspace(0.02, 20.0, 60)]
    least = min(left_out(other, kernel, X) for other in others)
    assert left_out(placed, kernel, X + 4.0) <= 1.05 * max(least, 1e-13)


def test_long_lengthscale_of_one_column_is_given_few_products() -> None:
    kernel = RBF(1.0, np.array([0.2, 20.0]))
    placed = Hermite(40).placed(kernel, -np.ones(2), np.ones(2))
    most = np.max(placed.orders, axis=0)
    assert most[0] > 20
    assert most[1] < 5
    X = make_rows(5, 60, 2).X - CENTRE[:2]
    assert left_out(placed, kernel, X) < 1e-4


def test_given_r_is_kept() -> None:
    placed = Hermite(10, 0.7).placed(RBF(1.0, 0.2), -np.ones(2), np.ones(2))
    np.testing.assert_array_equal(placed.r, [0.7, 0.7])
    assert placed.num_features == 10


def test_adjusted_features_suit_a_kernel_that_has_moved() -> None:
    # Placed at ℓ = 0.3, then ℓ = 0.1, which wants another r.
    box = (-np.ones(1), np.ones(1))
    moved = RBF(1.0, 0.1)
    placed = Hermite(41).placed(RBF(1.0, 0.3), *box)
    adjusted = placed.adjusted(moved, *box)
    afresh = Hermite(41).placed(moved, *box)
    np.testing.assert_allclose(adjusted.r, afresh.r, rtol=1e-12)
    assert left_out(adjusted, moved, TABLE_POINTS) < 0.1 * left_out(placed, moved, TABLE_POINTS)
    given = Hermite(41, 0.2).placed(RBF(1.0, 0.3), *box)
    np.testing.assert_array_equal(given.adjusted(moved, *box).r, given.r)


def test_adjusted_features_keep_their_products_in_several_columns() -> None:
    box = (-np.ones(2), np.ones(2))
    placed = Hermite(20).placed(RBF(1.0, np.array([0.3, 2.0])), *box)
    adjusted = placed.adjusted(RBF(1.0, np.array([2.0, 0.3])), *box)
    assert adjusted.orders == placed.orders
    assert adjusted.r[0] > placed.r[0]


# ---------------------------------------------------------------------- learning


def test_traced_features_are_the_evaluated_ones(double: None) -> None:
    kernel = RBF(1.7, np.array([0.5, 0.9]))
    features = Hermite(30).placed(kernel, -np.ones(2), np.ones(2))
    X = make_rows(3, 9, 2).X
    np.testing.assert_allclose(
        features.phi(kernel, X), features.evaluate(kernel, X), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("count", [1, 2, 40])
def test_gradient_is_the_difference_quotient(count: int, double: None) -> None:
    rng = np.random.default_rng(0)
    # More rows than one block of the backward pass holds, and not a multiple of it.
    x = rng.normal(0, 1, 1030)
    weights = rng.normal(size=(1030, count))

    @jax.jit
    def total(parameters: Array) -> jax.Array:
        variance, lengthscale, r = parameters
        return jnp.sum(weights * features(variance, lengthscale, r, x, count))

    gradient = jax.jit(jax.grad(total))
    for r in RADII.values():
        point = np.array([1.7, LENGTHSCALE, r])
        slope = oracles.fourth_order_difference(total, point, 1e-4)
        np.testing.assert_allclose(gradient(point), slope, rtol=2e-8, atol=1e-8)


def test_gradient_in_the_inputs_is_the_difference_quotient(double: None) -> None:
    x = np.array([-1.3, 0.0, 0.4, 2.0])
    weights = np.random.default_rng(1).normal(size=(4, 12))

    @jax.jit
    def total(points: Array) -> jax.Array:
        return jnp.sum(weights * features(1.7, LENGTHSCALE, 0.6, points, 12))

    slope = oracles.fourth_order_difference(total, x, 1e-4)
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(x)), slope, rtol=1e-8, atol=1e-8)


def test_gradient_is_finite_where_features_vanish(double: None) -> None:
    @jax.jit
    def total(lengthscale: jax.Array) -> jax.Array:
        return jnp.sum(features(1.0, lengthscale, 0.6, np.array([1e3, 0.1]), 12))

    assert np.isfinite(jax.grad(total)(jnp.asarray(0.5)))


@pytest.mark.parametrize("learn", [False, True])
def test_r_is_a_free_parameter_if_it_is_to_be_learned(learn: bool, double: None) -> None:
    kernel, X = RBF(1.7, 0.5), make_rows(3, 9, 1).X
    features = Hermite(6, 0.7, learn=learn).placed(kernel, -np.ones(1), np.ones(1))
    vector = features.free_parameters()
    assert len(vector) == int(learn)
    again = features.with_free_parameters(vector)
    np.testing.assert_allclose(again.phi(kernel, X), features.phi(kernel, X), atol=1e-14)
    if learn:

        @eqx.filter_jit
        def total(vector: Array) -> jax.Array:
            return jnp.sum(features.with_free_parameters(vector).phi(kernel, X) ** 2)

        slope = oracles.fourth_order_difference(total, vector, 1e-3)
        np.testing.assert_allclose(jax.grad(total)(jnp.asarray(vector)), slope, rtol=1e-7)


def test_double_precision_needs_no_global_switch() -> None:
    values = hermite(5, 0.7).evaluate(RBF(1.7, 0.5), np.linspace(-1, 1, 4))
    assert values.dtype == np.float64
    assert values[0, 0] == pytest.approx(exact_feature(0, -1.0, 1.7, 0.5, 0.7), rel=1e-14)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("r", [0.0, -1.0, np.nan, np.inf, "wide", [], [[1.0]]])
def test_impossible_r_is_refused(r: object) -> None:
    with pytest.raises(FeatureError, match="r must be"):
        Hermite(5, r)


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_impossible_numbers_of_features_are_refused(count: object) -> None:
    with pytest.raises(FeatureError, match="num_features must be a whole number ≥ 1"):
        Hermite(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", [RBF(1.0, 0.01), Matern32(1.0, 0.01)])
def test_more_members_than_double_precision_holds_are_refused(kernel: Kernel) -> None:
    with pytest.raises(FeatureError, match="up to 512 per column, got 513"):
        Hermite(MOST_MEMBERS + 1).evaluate(kernel, np.linspace(-1, 1, 5))


def test_closed_form_is_asked_of_the_rbf_kernel_only() -> None:
    features = Hermite(5, 1.0).placed(Matern32(), -np.ones(1), np.ones(1))
    with pytest.raises(FeatureError, match="closed form for the RBF kernel only"):
        features.phi(Matern32(), np.zeros((2, 1)))


def test_members_take_a_ratio_of_zero() -> None:
    # ρ = 0 leaves the monomials √(2^m/m!) α^m.
    alpha = np.array([0.5, -2.0])
    values = members(Terms(np.ones(()), np.zeros(2), alpha, np.zeros(())), 6)
    expected = [math.sqrt(2**m / math.factorial(m)) * alpha**m for m in range(6)]
    np.testing.assert_allclose(values, np.transpose(expected), rtol=1e-14)


def test_given_r_below_its_range_for_an_rbf_kernel_is_refused() -> None:
    x = np.linspace(-1, 1, 5)
    with pytest.raises(FeatureError, match=r"need 2r² > ℓ², here r > 0.7071, got r = 0.5"):
        Hermite(5, 0.5).evaluate(RBF(1.0, 1.0), x)
    assert np.isfinite(Hermite(5, 0.72).evaluate(RBF(1.0, 1.0), x)).all()
    assert np.isfinite(Hermite(5, 0.5).evaluate(Matern32(1.0, 1.0), x)).all()
