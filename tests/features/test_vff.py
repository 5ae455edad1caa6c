"""Variational Fourier features: K_uu is the RKHS inner product, and whitening gives its inverse."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.series import for_kernel
from orthogp.features.vff import VariationalFourier, whitened
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import RBF, Kernel, Matern, Matern12, Matern32, Matern52
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.oracles import Array
from tests.problems import covariances

VARIANCE, LENGTH = 1.7, 0.4
WINDOW = (-1.3, 1.1)
PERIOD = WINDOW[1] - WINDOW[0]
KERNELS = [Matern12(VARIANCE, LENGTH), Matern32(VARIANCE, LENGTH), Matern52(VARIANCE, LENGTH)]
RULE = np.polynomial.legendre.leggauss(100)
# Of points and of how often to differentiate.
Function = Callable[[Array, int], Array]
X = np.linspace(-1.25, 1.05, 40)[:, None]


def name(kernel: object) -> str:
    return type(kernel).__name__


def gram(kernel: Kernel, X: Array) -> Array:
    return covariances(kernel, (X[:, None] - X).reshape(-1, X.shape[1])).reshape(len(X), len(X))


# ---------------------------------------------------------------------- an independent K_uu


def wave(order: int) -> Function:
    """The order-th of 1, cos, sin, cos, … about the window's middle, and its derivatives."""
    omega = 2 * np.pi * ((order + 1) // 2) / PERIOD
    shift = -np.pi / 2 if order > 0 and order % 2 == 0 else 0.0

    def value(x: Array, derivative: int) -> Array:
        return omega**derivative * np.cos(
            omega * (x - np.mean(WINDOW)) + shift + derivative * np.pi / 2
        )

    return value


def integral(f: Callable[[Array], Array], edges: Sequence[float]) -> float:
    """Of an analytic function between the edges, to rounding."""
    nodes, weights = RULE
    return sum(
        (b - a) / 2 * weights @ f((a + b) / 2 + (b - a) / 2 * nodes)
        for a, b in itertools.pairwise(edges)
    )


def inner_product(kernel: Kernel, g: Function, h: Function, *kinks: float) -> float:
    """⟨g, h⟩ of the Matérn RKHS on the window, by quadrature.

    The norm is that of the noise that drives (λ + d/dx)^p f, plus that of the state at the left
    end, whose covariance has the entries (−1)^j k^{(i+j)}(0).
    """
    p = {Matern12: 1, Matern32: 2, Matern52: 3}[type(kernel)]
    rate = np.sqrt(2 * p - 1) / LENGTH
    binomials = {1: [1, 1], 2: [1, 2, 1], 3: [1, 3, 3, 1]}[p]

    def moment(n: int) -> float:
        """∫ ω^n (λ² + ω²)^{−p} dω, with ω = λ tan θ."""
        scale = rate ** (n + 1 - 2 * p)
        edges = (-np.pi / 2, np.pi / 2)
        return scale * integral(lambda t: np.sin(t) ** n * np.cos(t) ** (2 * p - 2 - n), edges)

    def driven(f: Function, x: Array) -> Array:
        return sum(b * rate ** (p - i) * f(x, i) for i, b in enumerate(binomials))

    # S(ω) = c (λ² + ω²)^{−p}, and the noise has density 2πc.
    c = VARIANCE / moment(0)
    edges = (WINDOW[0], *kinks, WINDOW[1])
    noise = integral(lambda x: driven(g, x) * driven(h, x), edges) / (2 * np.pi * c)
    state = np.zeros((p, p))
    for i, j in itertools.product(range(p), repeat=2):
        if (i + j) % 2 == 0:
            state[i, j] = (-1) ** ((i + j) // 2 + j) * c * moment(i + j)
    start = np.array([WINDOW[0]])
    at_start = [np.array([f(start, i)[0] for i in range(p)]) for f in (g, h)]
    return noise + at_start[0] @ np.linalg.solve(state, at_start[1])


def inner_products(kernel: Kernel, count: int) -> Array:
    waves = [wave(order) for order in range(count)]
    return np.array([[inner_product(kernel, g, h) for h in waves] for g in waves])


def section(kernel: Kernel, at: float) -> Function:
    """k(· − at) and its derivatives on either side, from its polynomial times e^{−z}."""
    coefficients, nu = {
        Matern12: ([1.0], 0.5),
        Matern32: ([1.0, 1.0], 1.5),
        Matern52: ([1.0, 1.0, 1 / 3], 2.5),
    }[type(kernel)]
    rate = np.sqrt(2 * nu) / LENGTH

    def value(x: Array, derivative: int) -> Array:
        polynomial = np.polynomial.Polynomial(coefficients)
        for _ in range(derivative):
            polynomial = polynomial.deriv() - polynomial
        z = rate * np.abs(x - at)
        return VARIANCE * (rate * np.sign(x - at)) ** derivative * polynomial(z) * np.exp(-z)

    return value


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_inner_products_of_this_file_reproduce(kernel: Kernel) -> None:
    # The oracle itself: ⟨k(·, a), g⟩ = g(a).
    at = 0.2
    for g in (wave(0), wave(3), wave(4), section(kernel, at)):
        value = inner_product(kernel, section(kernel, at), g, at)
        assert value == pytest.approx(g(np.array([at]), 0)[0], rel=1e-10)


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_whitened_basis_has_the_inverse_of_the_rkhs_inner_products(
    double: None, kernel: Kernel
) -> None:
    # W K_uu Wᵀ = I with K_uu from quadrature.
    K_uu = inner_products(kernel, 7)
    order = np.array([0, 1, 3, 5, 2, 4, 6])
    W = np.zeros((7, 7))
    spacing = jnp.asarray(2 * np.pi / PERIOD)
    W[:, order] = whitened(kernel, spacing, jnp.eye(7, 4), jnp.eye(7, 3, k=-4)).T  # type: ignore[arg-type]
    np.testing.assert_allclose(W @ K_uu @ W.T, np.eye(7), atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_features_give_the_projection_on_the_basis(kernel: Kernel) -> None:
    features = VariationalFourier(9, *WINDOW)
    Phi = features.evaluate(kernel, X)
    waves = np.stack([wave(order)(X[:, 0], 0) for order in range(9)], axis=1)
    expected = waves @ np.linalg.solve(inner_products(kernel, 9), waves.T)
    np.testing.assert_allclose(Phi @ Phi.T, expected, atol=1e-9)


# ---------------------------------------------------------------------- bounds and quality


@pytest.mark.parametrize("num_features", [1, 8, 41])
@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_projection_never_exceeds_the_kernel(kernel: Kernel, num_features: int) -> None:
    everywhere = np.linspace(*WINDOW, 60)[:, None]
    features = VariationalFourier(num_features, *WINDOW)
    Phi = features.evaluate(kernel, everywhere)
    assert Phi.shape == (60, num_features)
    assert np.linalg.eigvalsh(gram(kernel, everywhere) - Phi @ Phi.T).min() > -1e-12
    residual = features.residual_variance(kernel, everywhere)
    np.testing.assert_allclose(residual, VARIANCE - np.sum(Phi**2, axis=1), atol=1e-12)


@pytest.mark.parametrize(("num_features", "published"), [(41, 1.33e-2), (81, 2.19e-3)])
def test_variance_left_out_is_that_of_the_mathematics(num_features: int, published: float) -> None:
    kernel, points = Matern32(1.0, 0.1), np.linspace(-1, 1, 201)[:, None]
    left_out = VariationalFourier(num_features).residual_variance(kernel, points).mean()
    assert left_out == pytest.approx(published, rel=5e-3)


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_chosen_window_is_better_than_others(kernel: Kernel) -> None:
    width = np.array([2.0])
    best = VariationalFourier(21).wanted_period(kernel, width)[0]
    points = np.linspace(-1, 1, 129)[:, None]

    def left_out(window: float) -> float:
        features = VariationalFourier(21, -window / 2, window / 2)
        return float(features.residual_variance(kernel, points).mean())

    assert best > 2.0
    others = [2.0, 2 + 0.5 * (best - 2), 2 + 2 * (best - 2)]
    assert all(left_out(best) < left_out(other) for other in others)


def test_features_converge_away_from_the_windows_ends() -> None:
    # Functions of the window's period cannot differ at its ends, but data far from them are free.
    kernel = Matern52(1.0, 0.2)
    points = np.linspace(-1, 1, 50)[:, None]
    left_out = [
        VariationalFourier(m, -3.0, 3.0).residual_variance(kernel, points).max()
        for m in (41, 81, 161)
    ]
    assert left_out[2] < 1e-4 < left_out[0]
    assert left_out[1] < left_out[0] / 8
    assert left_out[2] < left_out[1] / 8


# ---------------------------------------------------------------------- on a lattice


def product() -> Kernel:
    return Matern32(1.3, 0.5).on(1) * Matern52(1.2, 0.9).on(0)


@pytest.mark.parametrize("num_features", [6, 15])
@pytest.mark.parametrize("kernel", [*KERNELS, product()], ids=name)
def test_series_on_a_lattice_are_the_features_of_its_period(
    kernel: Kernel, num_features: int
) -> None:
    num_dims = 2 if kernel.columns(1) == (0, 1) else 1
    rows = np.random.default_rng(0).uniform(-1, 1, (30, num_dims))
    lattice = FrequencyLattice(2 * np.pi / np.array([2.7, 3.1])[:num_dims], 20, 0.2)
    placed = VariationalFourier(num_features).placed(
        kernel, rows.min(axis=0), rows.max(axis=0), lattice
    )
    np.testing.assert_allclose(placed.upper - placed.lower, lattice.period)
    series = placed.on(lattice)
    assert series.num_features == placed.num_features <= num_features
    np.testing.assert_allclose(
        series.evaluate(kernel, rows), placed.evaluate(kernel, rows), atol=1e-10
    )
    np.testing.assert_allclose(
        series.residual_variance(kernel, rows), placed.residual_variance(kernel, rows), atol=1e-10
    )


def test_a_period_that_was_wanted_is_the_window() -> None:
    lower, upper = np.array([-1.0]), np.array([1.0])
    family, kernel = VariationalFourier(15), KERNELS[1]
    period = family.wanted_period(kernel, upper - lower)
    lattice = FrequencyLattice.for_domain(lower, upper, period=period, extent=10)
    free = family.placed(kernel, lower, upper)
    bound = family.placed(kernel, lower, upper, lattice)
    np.testing.assert_allclose([bound.lower, bound.upper], [free.lower, free.upper])
    assert VariationalFourier(15, -2.0, 3.0).wanted_period(kernel, np.array([2.0])) == 5.0


@pytest.mark.parametrize(
    "kernel", [KERNELS[2], pytest.param(product(), marks=pytest.mark.slow)], ids=name
)
def test_gradient_is_right(double: None, kernel: Kernel) -> None:
    num_dims = 2 if kernel.columns(1) == (0, 1) else 1
    rows = np.random.default_rng(1).uniform(-1, 1, (5, num_dims))
    features = VariationalFourier(9, -1.4, 1.2).placed(
        kernel, -np.ones(num_dims), np.ones(num_dims)
    )
    series = features.on(FrequencyLattice(np.full(num_dims, 2.0), 9))
    slots = learned_slots(kernel)

    @jax.jit
    def function(vector: jax.Array) -> jax.Array:
        own = unpack(kernel, slots, vector)
        return jnp.concatenate([features.phi(own, rows).ravel(), series.coefficients(own).ravel()])

    vector = pack(kernel, slots)
    exact = jax.jacfwd(function)(jnp.asarray(vector))
    numeric = oracles.fourth_order_difference(lambda v: function(jnp.asarray(v)), vector, 1e-3)
    np.testing.assert_allclose(exact, numeric, atol=1e-9)


# ---------------------------------------------------------------------- several columns


def test_features_of_a_product_are_products() -> None:
    rows = np.random.default_rng(2).uniform(-1, 1, (30, 2))
    features = VariationalFourier(40, [-2.0, -1.5], [2.0, 1.5]).placed(
        product(), rows.min(axis=0), rows.max(axis=0)
    )
    counts = np.max(features.orders, axis=0) + 1
    assert features.num_features == np.prod(counts) <= 40
    assert np.all(counts > 1)
    Phi = features.evaluate(product(), rows)
    parts = [
        VariationalFourier(int(counts[0]), -2.0, 2.0).evaluate(Matern52(1.0, 0.9), rows[:, :1]),
        VariationalFourier(int(counts[1]), -1.5, 1.5).evaluate(Matern32(1.56, 0.5), rows[:, 1:]),
    ]
    expected = (parts[0] @ parts[0].T) * (parts[1] @ parts[1].T)
    np.testing.assert_allclose(Phi @ Phi.T, expected, atol=1e-12)
    assert np.linalg.eigvalsh(gram(product(), rows) - Phi @ Phi.T).min() > -1e-12


def test_additive_kernels_take_the_features_of_each_term() -> None:
    rows = np.random.default_rng(3).uniform(-1, 1, (30, 2))
    first, second = Matern32(1.3, 0.5), Matern12(0.7, 0.9)
    kernel = first.on(1) + second.on(0)
    Phi = VariationalFourier(11).evaluate(kernel, rows)
    expected = [
        VariationalFourier(11).evaluate(first, rows[:, 1:]),
        VariationalFourier(11).evaluate(second, rows[:, :1]),
    ]
    np.testing.assert_allclose(Phi, np.concatenate(expected, axis=1), atol=1e-12)
    family = for_kernel(VariationalFourier(11), kernel, 2)
    lower, upper = rows.min(axis=0), rows.max(axis=0)
    period = family.wanted_period(kernel, upper - lower)
    assert period is not None
    wanted = [
        VariationalFourier(11).wanted_period(own, (upper - lower)[[d]])[0]
        for own, d in ((second, 0), (first, 1))
    ]
    np.testing.assert_allclose(period, wanted)
    lattice = FrequencyLattice.for_domain(lower, upper, period=period, extent=8)
    placed = family.placed(kernel, lower, upper, lattice)
    series = placed.on(lattice)
    assert series is not None
    np.testing.assert_allclose(
        series.evaluate(kernel, rows), placed.evaluate(kernel, rows), atol=1e-10
    )


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kernel", "num_dims", "got"),
    [
        (RBF(), 1, "RBF on 1"),
        (Matern(1.5), 1, "Matern on 1"),
        (Matern12() + Matern32(), 1, "Sum on 1"),
        (Matern32(), 2, "Matern32 on 2"),
        (Matern32().on(0) * RBF().on(1), 2, r"Matern32 \* RBF on 2"),
    ],
)
def test_other_kernels_are_refused(kernel: Kernel, num_dims: int, got: str) -> None:
    with pytest.raises(FeatureError, match=f"takes Matern12, .*got {got} columns: use Trig"):
        VariationalFourier(5).evaluate(kernel, np.zeros((3, num_dims)))


def test_data_outside_of_the_window_are_refused() -> None:
    with pytest.raises(FeatureError, match=r"on \[-1, 1\] only, .*\[0, 1.5\]: give a wider"):
        VariationalFourier(5, -1.0, 1.0).evaluate(Matern32(), np.array([0.0, 1.5]))
    lattice = FrequencyLattice(2 * np.pi, 10)
    with pytest.raises(FeatureError, match="give a wider"):
        VariationalFourier(5).placed(Matern32(), np.array([-1.0]), np.array([1.0]), lattice)


def test_a_lattice_that_ends_too_early_is_refused() -> None:
    features = VariationalFourier(41).placed(Matern32(), np.array([-1.0]), np.array([1.0]))
    with pytest.raises(FeatureError, match=r"up to index \[20\], but .* at \[19\]: use fewer"):
        features.on(FrequencyLattice(2.0, 19))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_features must be a whole number ≥ 1"),
        ((5.0,), "num_features must be a whole number ≥ 1"),
        ((5, 1.0), "both lower and upper, or neither"),
        ((5, 1.0, 1.0), "lower end must lie below"),
        ((5, [0.0, 2.0], 1.0), "lower end must lie below"),
        ((5, np.nan, 1.0), "lower must be finite"),
        ((5, "a", 1.0), "lower must be a number"),
    ],
)
def test_bad_parameters_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        VariationalFourier(*arguments)


def test_open_parameters_are_pointed_out() -> None:
    with pytest.raises(FeatureError, match="open parameters: call placed"):
        VariationalFourier(5).on(FrequencyLattice(1.0, 9))
