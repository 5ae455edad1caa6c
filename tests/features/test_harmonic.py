"""Harmonic features: Dirichlet eigenfunctions, and the processes they stand for."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.harmonic import Harmonic, constrained_variance
from orthogp.features.series import for_kernel
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, SpectralMixture
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.oracles import Array
from tests.problems import Entry, densities, label, zoo

# Those whose every mode costs little; additive kernels have no density.
ENTRIES = [
    (d, entry)
    for d in (1, 2)
    for entry in zoo(d)
    if entry.name in ("rbf", "matern12", "matern32", "spectral-mixture", "spectral")
]


def rows(num_dims: int, size: int = 30) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, (size, num_dims))


def boxed(num_features: int, num_dims: int, kernel: Kernel, **options: bool) -> Harmonic:
    """Features on the box around (0.1, −0.2, 0.3) with half widths 1.6, 1.9 and 1.7."""
    centre = np.array([0.1, -0.2, 0.3])[:num_dims]
    half_width = np.array([1.6, 1.9, 1.7])[:num_dims]
    features = Harmonic(num_features, half_width, centre=centre, **options)
    return features.placed(kernel, -np.ones(num_dims), np.ones(num_dims))


def gauss_grid(features: Harmonic, size: int) -> tuple[Array, Array]:
    """Nodes and weights of ∫ dx over the features' box."""
    nodes, weights = np.polynomial.legendre.leggauss(size)
    axes = [c + half * nodes for c, half in zip(features.centre, features.half_width, strict=True)]
    points = np.array(list(itertools.product(*axes)))
    products = np.array([np.prod(w) for w in itertools.product(weights, repeat=len(axes))])
    return points, products * np.prod(features.half_width)


# ---------------------------------------------------------------------- what the features are


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_features_are_orthogonal_with_the_spectral_density_as_square_norm(num_dims: int) -> None:
    kernel = Matern32(1.3, 0.5)
    features = boxed(12, num_dims, kernel)
    points, weights = gauss_grid(features, 40 if num_dims < 3 else 20)
    Phi = features.evaluate(kernel, points)
    omegas = features.orders * np.pi / (2 * features.half_width)
    expected = np.diag((2 * np.pi) ** num_dims * densities(kernel, omegas))
    np.testing.assert_allclose(Phi.T @ (weights[:, None] * Phi), expected, atol=1e-9)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_features_vanish_on_the_boundary_and_solve_the_helmholtz_equation(num_dims: int) -> None:
    kernel = RBF(1.0, 0.4)
    features = boxed(10, num_dims, kernel)
    inside = rows(num_dims, 6)
    face = inside.copy()
    face[:, -1] = features.centre[-1] + features.half_width[-1]
    assert np.abs(features.evaluate(kernel, face)).max() < 1e-12
    step = 1e-3
    middle = features.evaluate(kernel, inside)
    laplacian = sum(
        features.evaluate(kernel, inside + step * e)
        + features.evaluate(kernel, inside - step * e)
        - 2 * middle
        for e in np.eye(num_dims)
    ) / (step**2)
    eigenvalues = np.sum((features.orders * np.pi / (2 * features.half_width)) ** 2, axis=1)
    np.testing.assert_allclose(-laplacian, eigenvalues * middle, atol=2e-4)


def test_modes_of_the_largest_densities_are_taken() -> None:
    # The mixture's two bumps stand far from frequency zero, and from each other.
    kernel = SpectralMixture([1.0, 0.8], [[6.0, 9.0], [20.0, 3.0]], [[0.8, 0.8], [0.9, 0.9]])
    features = boxed(25, 2, kernel)
    grid = np.array(list(itertools.product(range(1, 60), repeat=2)))
    everything = densities(kernel, grid * np.pi / (2 * features.half_width))
    best = grid[np.argsort(-everything)[:25]]
    assert {tuple(row) for row in features.orders} == {tuple(row) for row in best}


@pytest.mark.parametrize("coherence", [0.3, 6.0])
def test_modes_are_found_far_from_frequency_zero(coherence: float) -> None:
    # With the longer coherence the density underflows everywhere but around ω = 40.
    features = boxed(3, 1, kernel := SpectralMixture([1.0], [40.0], [coherence]))
    nearest = np.argsort(np.abs(np.arange(1, 200) * np.pi / 3.2 - 40.0))[:3] + 1
    assert set(features.orders[:, 0]) == set(nearest)
    assert np.all(np.ptp(features.evaluate(kernel, rows(1)), axis=0) > 0)


# ---------------------------------------------------------------------- the kernel in the interior


@pytest.mark.parametrize("num_dims", [1, 2])
def test_kernel_is_approached_in_the_interior_as_features_and_box_grow(num_dims: int) -> None:
    k = lambda lag: oracles.matern52(lag, 1.3, 0.6)  # noqa: E731
    kernel, X = Matern52(1.3, 0.6), rows(num_dims)
    K = oracles.gram_matrix(k, X, X)

    def error(num_features: int, half_width: float) -> float:
        Phi = Harmonic(num_features**num_dims, half_width, centre=0.0).evaluate(kernel, X)
        return float(np.abs(Phi @ Phi.T - K).max())

    small, middle, large = error(8, 1.4), error(16, 2.2), error(28, 3.2)
    assert small > 3 * middle
    assert middle > 3 * large
    assert large < 5e-3
    # A wider box alone spreads the same features too thinly.
    assert error(8, 6.0) > 10 * large


def test_chosen_box_is_better_than_others() -> None:
    kernel, X = Matern32(1.0, 0.4), np.linspace(-1, 1, 129)[:, None]
    K = oracles.gram_matrix(lambda lag: oracles.matern32(lag, 1.0, 0.4), X, X)

    def error(half_width: float) -> float:
        Phi = Harmonic(20, half_width).evaluate(kernel, X)
        return float(np.mean((Phi @ Phi.T - K) ** 2))

    best = float(Harmonic(20).wanted_period(kernel, np.array([2.0]))[0]) / 4
    assert best > 1
    assert all(error(best) < error(1 + factor * (best - 1)) for factor in (0.0, 0.6, 1.6))


def test_prior_is_replaced_unless_constrained() -> None:
    kernel, X = Matern32(), rows(1)
    assert not Harmonic(9).projects
    assert Harmonic(9, constrained=True).projects
    np.testing.assert_array_equal(Harmonic(9).residual_variance(kernel, X), 0)


# ---------------------------------------------------------------------- the constrained process


@pytest.mark.parametrize("num_dims", [1, 2])
def test_constrained_variance_is_the_sum_over_all_modes(num_dims: int) -> None:
    kernel = RBF(1.3, np.array([0.5, 0.9])[:num_dims])
    X, centre, half = rows(num_dims), np.full(num_dims, 0.1), np.full(num_dims, 1.4)
    everything = Harmonic(900, half, centre=centre)
    expected = np.sum(everything.evaluate(kernel, X) ** 2, axis=1)
    np.testing.assert_allclose(constrained_variance(kernel, X, centre, half), expected, rtol=1e-10)


def test_constrained_variance_of_a_markov_process_is_that_of_its_bridge() -> None:
    # Matérn-1/2 that vanishes on the boundary is the process conditioned to be zero at both ends,
    # with variance 2v sinh(y) sinh(b − y)/sinh(b), where y and b are lengths in lengthscales.
    length, half, variance = 0.7, 1.3, 1.5
    X = np.linspace(-1.2, 1.2, 9)[:, None]
    y = (X[:, 0] + half) / length
    expected = 2 * variance * np.sinh(y) * np.sinh(2 * half / length - y)
    expected /= np.sinh(2 * half / length)
    value = constrained_variance(Matern12(variance, length), X, np.zeros(1), np.array([half]))
    np.testing.assert_allclose(value, expected, rtol=1e-9)


@pytest.mark.parametrize("num_dims", [1, 2])
def test_residual_of_the_constrained_process_is_what_more_features_would_explain(
    num_dims: int,
) -> None:
    kernel, X = RBF(1.3, 0.5), rows(num_dims)
    few = boxed(9, num_dims, kernel, constrained=True)
    many = boxed(900, num_dims, kernel, constrained=True)
    expected = np.sum(many.evaluate(kernel, X) ** 2, axis=1)
    expected -= np.sum(few.evaluate(kernel, X) ** 2, axis=1)
    residual = few.residual_variance(kernel, X)
    assert residual.min() >= 0 < residual.max()
    np.testing.assert_allclose(residual, expected, atol=1e-10)


# ---------------------------------------------------------------------- on a lattice


@pytest.mark.parametrize(("num_dims", "entry"), ENTRIES, ids=label)
def test_series_on_a_lattice_are_the_features(num_dims: int, entry: Entry) -> None:
    X = rows(num_dims)
    lattice = FrequencyLattice(2 * np.pi / np.array([5.0, 6.2])[:num_dims], 24, 0.1)
    placed = Harmonic(20, constrained=True).placed(
        entry.kernel, X.min(axis=0), X.max(axis=0), lattice
    )
    np.testing.assert_allclose(4 * placed.half_width, lattice.period)
    series = placed.on(lattice)
    assert series.num_features == placed.num_features == 20
    assert series.projects
    assert not series.indices[0].any()
    assert (
        len({tuple(t) for t in [*series.indices, *-series.indices]}) == 2 * len(series.indices) - 1
    )
    np.testing.assert_allclose(
        series.evaluate(entry.kernel, X), placed.evaluate(entry.kernel, X), atol=1e-10
    )
    np.testing.assert_allclose(
        series.residual_variance(entry.kernel, X),
        placed.residual_variance(entry.kernel, X),
        atol=1e-10,
    )


def test_series_in_three_columns_are_the_features() -> None:
    X, kernel = rows(3), RBF(1.3, 0.8)
    lattice = FrequencyLattice(2 * np.pi / np.array([5.0, 6.2, 5.5]), 9, 0.1)
    placed = Harmonic(40).placed(kernel, X.min(axis=0), X.max(axis=0), lattice)
    assert np.ptp(placed.orders % 2, axis=0).all()
    np.testing.assert_allclose(
        placed.on(lattice).evaluate(kernel, X), placed.evaluate(kernel, X), atol=1e-10
    )


def test_a_period_that_was_wanted_gives_the_box() -> None:
    lower, upper, kernel = np.array([-1.0]), np.array([1.0]), Matern32(1.0, 0.4)
    family = Harmonic(15)
    period = family.wanted_period(kernel, upper - lower)
    lattice = FrequencyLattice.for_domain(lower, upper, period=period, extent=40)
    free = family.placed(kernel, lower, upper)
    bound = family.placed(kernel, lower, upper, lattice)
    np.testing.assert_allclose(bound.half_width, free.half_width)
    np.testing.assert_array_equal(bound.orders, free.orders)
    np.testing.assert_allclose(Harmonic(15, 1.5).wanted_period(kernel, upper - lower), 6.0)


def test_additive_kernels_take_the_features_of_each_term() -> None:
    kernel, X = Matern32(1.3, 0.5).on(1) + RBF(0.7, 0.9).on(0), rows(2)
    family = for_kernel(Harmonic(11), kernel, 2)
    assert not family.projects
    lower, upper = X.min(axis=0), X.max(axis=0)
    period = family.wanted_period(kernel, upper - lower)
    assert period is not None
    lattice = FrequencyLattice.for_domain(lower, upper, period=period, extent=11)
    placed = family.placed(kernel, lower, upper, lattice)
    series = placed.on(lattice)
    assert series is not None
    assert not series.projects
    np.testing.assert_allclose(series.evaluate(kernel, X), placed.evaluate(kernel, X), atol=1e-10)
    assert Harmonic(11).evaluate(kernel, X).shape == (30, 22)


def test_gradient_is_right(double: None) -> None:
    kernel, X = Matern32(1.3, [0.5, 0.8]), rows(2, 4)
    lattice = FrequencyLattice([1.2, 1.1], 9)
    features = Harmonic(7).placed(kernel, -np.ones(2), np.ones(2), lattice)
    series = features.on(lattice)
    slots = learned_slots(kernel)

    @jax.jit
    def function(vector: jax.Array) -> jax.Array:
        own = unpack(kernel, slots, vector)
        return jnp.concatenate([features.phi(own, X).ravel(), series.coefficients(own).ravel()])

    vector = pack(kernel, slots)
    exact = jax.jacfwd(function)(jnp.asarray(vector))
    numeric = oracles.fourth_order_difference(lambda v: function(jnp.asarray(v)), vector, 1e-3)
    np.testing.assert_allclose(exact, numeric, atol=1e-9)


# ---------------------------------------------------------------------- refusals


def test_data_outside_of_the_box_are_refused() -> None:
    with pytest.raises(FeatureError, match=r"on \[-1, 1\] only, .*: use a larger half_width"):
        Harmonic(5, 1.0, centre=0.0).evaluate(RBF(), np.array([0.0, 1.5]))


def test_a_lattice_that_does_not_fit_is_refused() -> None:
    features = boxed(10, 1, RBF(1.0, 0.2))
    with pytest.raises(FeatureError, match="need a lattice of four times"):
        features.on(FrequencyLattice(1.0, 40, 0.1))
    with pytest.raises(FeatureError, match="need a lattice of four times"):
        features.on(FrequencyLattice(2 * np.pi / 6.4, 40, 0.0))
    with pytest.raises(FeatureError, match=r"up to index \[10\], but .* at \[9\]: use fewer"):
        features.on(FrequencyLattice(2 * np.pi / 6.4, 9, 0.1))
    with pytest.raises(FeatureError, match="holds 9 harmonic features, but 10 are asked for"):
        Harmonic(10).placed(RBF(), np.zeros(1), np.ones(1), FrequencyLattice(1.0, 9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_features must be a whole number ≥ 1"),
        ((5, -1.0), "half_width must be positive"),
        ((5, "wide"), "half_width must be a positive number"),
    ],
)
def test_bad_parameters_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        Harmonic(*arguments)


def test_open_parameters_are_pointed_out() -> None:
    with pytest.raises(FeatureError, match="open parameters: call placed"):
        Harmonic(5).on(FrequencyLattice(1.0, 9))
