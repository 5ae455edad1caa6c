"""Random Fourier features: unbiased for every kernel, reproducible, on a lattice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.random import RandomFourier
from orthogp.features.series import for_kernel, lattice_masses
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import RBF, Kernel, Matern12, Matern32, SpectralMixture
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.oracles import Array
from tests.problems import Entry, label, zoo

# Standard errors allowed to a mean over many draws. A normal variable exceeds them with probability
# 4e-8, so that a test of six of them fails by chance once in four million changes of the draws.
SIGMAS = 5.5


def rows(num_dims: int, size: int = 20) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, (size, num_dims))


def mean_of_products(
    drawn_from: Kernel, kernel: Kernel, X: Array, lattice: FrequencyLattice
) -> tuple[Array, Array]:
    """The mean over seeds of φ(x_0)·φ(x_n), and its standard error."""
    lower, upper = X.min(axis=0), X.max(axis=0)
    products = []
    for seed in range(400):
        series = RandomFourier(20, seed).placed(drawn_from, lower, upper, lattice).on(lattice)
        Phi = series.evaluate(kernel, X)
        products.append(Phi @ Phi[0])
    return np.mean(products, axis=0), np.std(products, axis=0) / np.sqrt(400)


@pytest.mark.parametrize("drawn_from", ["same", "other"])
@pytest.mark.parametrize("num_dims", [1, 2])
def test_products_have_the_kernel_as_their_mean(num_dims: int, drawn_from: str) -> None:
    # Also for a kernel other than the one the frequencies come from: weights see to that.
    X = rows(num_dims, 6)
    kernel = RBF(1.3, 0.8)
    origin = kernel if drawn_from == "same" else RBF(0.6, 0.5)
    lattice = FrequencyLattice(2 * np.pi / 12.0 * np.ones(num_dims), 24)
    mean, error = mean_of_products(origin, kernel, X, lattice)
    expected = oracles.rbf(X - X[0], 1.3, 0.8)
    assert error.max() < 0.1
    np.testing.assert_array_less(np.abs(mean - expected), SIGMAS * error + 1e-12)


def test_draws_are_from_the_spectral_density() -> None:
    # Matérn-1/2's is Cauchy: quartiles at ±1/ℓ, so half of the draws lie beyond.
    X, length = rows(1), 0.3
    features = RandomFourier(20_000).placed(Matern12(1.0, length), X.min(axis=0), X.max(axis=0))
    assert features.lattice is not None
    lattice, weights = features.lattice, features.weights
    omegas = np.abs(features.indices * lattice.spacing)[:, 0]
    masses = lattice_masses(Matern12(1.0, length), lattice, features.indices)
    # Of equal value when drawn from this kernel: weight² mass ∝ the number of draws.
    counts = weights**2 * masses
    share = counts[omegas > 1 / length].sum() / counts.sum()
    assert abs(share - 0.5) < SIGMAS * 0.5 / np.sqrt(10_000) + 2e-3


def test_variance_is_exact_for_the_kernel_drawn_from() -> None:
    X, kernel = rows(1), RBF(1.7, 0.4)
    Phi = RandomFourier(50).evaluate(kernel, X)
    np.testing.assert_allclose(np.sum(Phi**2, axis=1), 1.7, rtol=1e-9)


def test_prior_is_replaced() -> None:
    assert not RandomFourier(10).projects
    np.testing.assert_array_equal(RandomFourier(10).residual_variance(RBF(), rows(1)), 0)
    lattice = FrequencyLattice(0.5, 30)
    placed = RandomFourier(10).placed(RBF(), -np.ones(1), np.ones(1), lattice)
    assert not placed.on(lattice).projects


@pytest.mark.parametrize("entry", [*zoo(1)[:4], *zoo(2)[:2]], ids=label)
def test_same_seed_same_features_other_seed_others(entry: Entry) -> None:
    X = rows(2 if entry.kernel.parameters()["lengthscale"].shape == (2,) else 1)
    once, again, other = (RandomFourier(30, seed).evaluate(entry.kernel, X) for seed in (3, 3, 4))
    np.testing.assert_array_equal(once, again)
    assert once.shape != other.shape or not np.allclose(once, other)


@pytest.mark.parametrize("num_features", [2, 3, 40, 400])
def test_features_are_at_most_as_many_as_asked_for(num_features: int) -> None:
    X, kernel = rows(1), Matern32(1.0, 0.2)
    placed = RandomFourier(num_features).placed(kernel, X.min(axis=0), X.max(axis=0))
    assert 0.85 * num_features - 1.5 <= placed.num_features <= num_features
    assert placed.evaluate(kernel, X).shape == (20, placed.num_features)
    coarse = FrequencyLattice(2.0, 3)
    few = RandomFourier(num_features).placed(kernel, X.min(axis=0), X.max(axis=0), coarse)
    assert few.on(coarse).num_features == few.num_features <= min(num_features, 7)


def test_repeated_draws_of_a_mode_are_one_feature_with_their_joint_weight() -> None:
    # All seven modes of a coarse lattice, drawn 10⁵ times, are the lattice's own features.
    X, kernel, lattice = rows(1), Matern32(1.3, 0.5), FrequencyLattice(2.0, 3)
    series = RandomFourier(200_000).placed(kernel, -np.ones(1), np.ones(1), lattice).on(lattice)
    assert series.num_features == 7
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    phases = (X - X.T)[:, :, None] * (2.0 * np.arange(4))
    expected = np.cos(phases) @ (masses * [1, 2, 2, 2])
    Phi = series.evaluate(kernel, X)
    np.testing.assert_allclose(Phi @ Phi.T, expected, atol=SIGMAS * 1.3 / np.sqrt(100_000))


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_series_on_a_lattice_are_the_features(num_dims: int) -> None:
    X, kernel = rows(num_dims), Matern32(1.3, 0.5)
    lattice = FrequencyLattice(np.array([0.9, 1.1, 1.3])[:num_dims], 9, 0.1)
    placed = RandomFourier(30).placed(kernel, X.min(axis=0), X.max(axis=0), lattice)
    series = placed.on(lattice)
    assert not series.indices[0].any()
    moved = Matern32(0.8, 0.7)
    np.testing.assert_allclose(series.evaluate(moved, X), placed.evaluate(moved, X), atol=1e-10)
    assert placed.placed(moved, X.min(axis=0), X.max(axis=0), lattice) is placed


def test_other_lattices_get_as_many_draws() -> None:
    kernel, ends = Matern32(1.0, 0.1), (-np.ones(1), np.ones(1))
    coarse, fine = FrequencyLattice(2.0, 50), FrequencyLattice(1e-3, 100_000)
    on_coarse = RandomFourier(200).placed(kernel, *ends, coarse)
    assert on_coarse.num_features < 101
    assert on_coarse.placed(kernel, *ends, fine).num_features > 190


def test_a_kernel_without_mass_at_zero_has_no_constant_feature() -> None:
    kernel = SpectralMixture([1.0], [60.0], [2.0])
    lattice = FrequencyLattice(0.5, 400)
    series = RandomFourier(20).placed(kernel, -np.ones(1), np.ones(1), lattice).on(lattice)
    assert not series.indices[0].any()
    assert np.all(np.ptp(series.evaluate(kernel, rows(1)), axis=0) > 0.01)


def test_additive_kernels_take_the_features_of_each_term() -> None:
    kernel, X = Matern32(1.3, 0.5).on(1) + RBF(0.7, 0.9).on(0), rows(2)
    family = for_kernel(RandomFourier(20), kernel, 2)
    assert not family.projects
    lattice = FrequencyLattice([0.5, 0.6], 20)
    placed = family.placed(kernel, X.min(axis=0), X.max(axis=0), lattice)
    series = placed.on(lattice)
    assert series is not None
    assert not series.projects
    np.testing.assert_allclose(series.evaluate(kernel, X), placed.evaluate(kernel, X), atol=1e-10)
    assert 20 < RandomFourier(20).evaluate(kernel, X).shape[1] <= 40


def test_gradient_is_right(double: None) -> None:
    kernel, lattice = Matern32(1.3, 0.5), FrequencyLattice(0.9, 9)
    series = RandomFourier(12).placed(kernel, -np.ones(1), np.ones(1), lattice).on(lattice)
    slots = learned_slots(kernel)

    @jax.jit
    def function(vector: jax.Array) -> jax.Array:
        return series.coefficients(unpack(kernel, slots, vector))

    vector = pack(kernel, slots)
    exact = jax.jacfwd(function)(jnp.asarray(vector))
    numeric = oracles.fourth_order_difference(lambda v: function(jnp.asarray(v)), vector, 1e-3)
    np.testing.assert_allclose(exact, numeric, atol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "num_features must be a whole number ≥ 2, got 1"),
        ((2.5,), "num_features must be a whole number"),
        ((10, -1), "seed must be a whole number ≥ 0"),
        ((10, None), "seed must be a whole number"),
    ],
)
def test_bad_parameters_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        RandomFourier(*arguments)


def test_another_lattice_than_that_of_the_draws_is_refused() -> None:
    lattice = FrequencyLattice(0.5, 30)
    placed = RandomFourier(10).placed(RBF(), -np.ones(1), np.ones(1), lattice)
    for features in (placed, RandomFourier(10)):
        with pytest.raises(FeatureError, match="belong to the lattice they were drawn on"):
            features.on(FrequencyLattice(0.4, 30))
