"""Inducing points: whitened covariances with a chosen or given set of points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.inducing import JITTER, InducingPoints, greedy_variance, spread_points
from orthogp.inference.bounds import titsias_bound
from orthogp.inference.moments import moments_from_rows
from orthogp.kernels import RBF, Kernel, Matern32
from tests import oracles
from tests.oracles import Array
from tests.problems import Entry, all_entries, label, lengthscales, make_rows

# Points this far apart leave K_uu so well conditioned that the jitter hardly shows.
NUM_POINTS = {1: 5, 2: 9}
# In two dimensions the code is the same, and compilations are dear.
ENTRIES = [
    *all_entries(1),
    *(item for item in all_entries(2) if item[1].name in ("rbf", "sum", "additive")),
]


def apart(num_dims: int) -> Array:
    return spread_points(np.full(num_dims, -1.0), np.full(num_dims, 2.0), NUM_POINTS[num_dims])


def projection(k: oracles.Covariance, Z: Array, A: Array, B: Array, jitter: float = 0.0) -> Array:
    """K_au (K_uu + jitter)⁻¹ K_ub, by a dense solver."""
    K_uu = oracles.gram_matrix(k, Z, Z) + jitter * np.eye(len(Z))
    return oracles.gram_matrix(k, A, Z) @ np.linalg.solve(K_uu, oracles.gram_matrix(k, Z, B))


# ---------------------------------------------------------------------- the features


@pytest.mark.parametrize(("num_dims", "entry"), ENTRIES, ids=label)
def test_products_of_features_are_the_projected_kernel(num_dims: int, entry: Entry) -> None:
    X, Z = make_rows(1, 20, num_dims).X, apart(num_dims)
    Phi = InducingPoints(Z=Z).evaluate(entry.kernel, X)
    assert Phi.shape == (20, len(Z))
    jitter = JITTER * float(entry.k(np.zeros(num_dims)))
    expected = projection(entry.k, Z, X, X, jitter)
    np.testing.assert_allclose(Phi @ Phi.T, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kernel", [RBF(1.3, 0.8), Matern32(0.7, 2.0)], ids=["rbf", "matern32"])
def test_projected_kernel_stays_below_the_kernel_where_points_crowd(kernel: Kernel) -> None:
    # 200 points in a few lengthscales: K_uu is singular in double precision.
    rng = np.random.default_rng(0)
    Z, X = rng.uniform(-1, 1, (200, 1)), np.linspace(-1.5, 1.5, 60)[:, None]
    features = InducingPoints(Z=Z)
    Phi = features.evaluate(kernel, X)
    k = oracles.rbf if isinstance(kernel, RBF) else oracles.matern32
    K = k(X[:, None] - X, float(kernel.variance), float(kernel.lengthscale))
    smallest = np.linalg.eigvalsh(K - Phi @ Phi.T)[0]
    assert smallest > -1e-9
    # ... and where the points are, they leave out next to nothing.
    inside = features.residual_variance(kernel, X[np.abs(X[:, 0]) < 1])
    assert np.max(inside) < {"RBF": 1e-8, "Matern32": 1e-4}[type(kernel).__name__]


def test_repeated_points_are_harmless() -> None:
    X = np.linspace(-1, 1, 30)[:, None]
    Z = np.linspace(-1, 1, 4)
    once = InducingPoints(Z=Z).residual_variance(RBF(1.0, 0.5), X)
    twice = InducingPoints(Z=np.repeat(Z, 2)).residual_variance(RBF(1.0, 0.5), X)
    np.testing.assert_allclose(twice, once, atol=1e-8)


def test_covariances_are_evaluated_in_double_precision() -> None:
    Phi = InducingPoints(Z=[[0.0]]).evaluate(RBF(1.0, 1.0), np.array([[0.3]]))
    assert Phi.dtype == np.float64
    assert Phi[0, 0] == pytest.approx(np.exp(-0.045) / np.sqrt(1 + JITTER), rel=1e-14)


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("num_dims", [1, 2])
def test_bound_is_the_textbook_formula(num_dims: int) -> None:
    rows = make_rows(2, 40, num_dims)
    ell, noise = lengthscales(num_dims), 0.2
    Z = apart(num_dims)
    moments = moments_from_rows(InducingPoints(Z=Z), RBF(1.3, ell), rows.X, rows.y)

    def k(lag: Array) -> Array:
        return oracles.rbf(lag, 1.3, ell)

    Q = projection(k, Z, rows.X, rows.X, 1.3 * JITTER)
    trace = np.trace(oracles.gram_matrix(k, rows.X, rows.X) - Q)
    expected = oracles.log_marginal_likelihood(Q, rows.y, noise) - trace / (2 * noise)
    assert titsias_bound(moments, noise).total == pytest.approx(expected, rel=1e-9)


def test_points_at_all_rows_give_the_exact_likelihood() -> None:
    rows = make_rows(3, 25, 2)
    ell = np.array([0.15, 0.2])
    moments = moments_from_rows(InducingPoints(Z=rows.X), Matern32(1.3, ell), rows.X, rows.y)
    K = oracles.matern32(rows.X[:, None] - rows.X, 1.3, ell)
    assert np.linalg.cond(K) < 1e4
    exact = oracles.log_marginal_likelihood(K, rows.y, 0.2)
    assert titsias_bound(moments, 0.2).total == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("kernel", "num_points", "left_out"),
    [
        (Matern32(1.0, 0.1), 41, "1.35e-02"),
        (Matern32(1.0, 0.1), 81, "1.80e-03"),
        (RBF(1.0, 0.1), 41, "2.0e-07"),
    ],
)
def test_even_grid_leaves_out_what_the_mathematics_page_says(
    kernel: Kernel, num_points: int, left_out: str
) -> None:
    X = np.linspace(-1, 1, 201)[:, None]
    features = InducingPoints(num_points).placed(kernel, np.array([-1.0]), np.array([1.0]))
    mean = float(np.mean(features.residual_variance(kernel, X)))
    digits = len(left_out.split("e")[0]) - 2
    assert f"{mean:.{digits}e}" == left_out


# ---------------------------------------------------------------------- learning the points


@pytest.mark.parametrize("kernel", [RBF(1.3, [0.5, 0.7]), Matern32(0.6, 0.5).on(1)])
def test_gradient_by_points_and_kernel_is_the_difference(kernel: Kernel, double: None) -> None:
    X, weights = make_rows(4, 12, 2).X, np.random.default_rng(0).normal(size=(12, 9))
    features = InducingPoints(Z=apart(2), learn=True)
    points = features.free_parameters()

    def value(vector):
        own = features.with_free_parameters(vector[:-1])
        scaled = jax.tree.map(lambda leaf: leaf * jnp.exp(vector[-1]), kernel)
        return jnp.sum(jnp.asarray(weights) * own.phi(scaled, jnp.asarray(X)))

    at = np.append(points, 0.1)
    value_and_gradient = jax.jit(jax.value_and_grad(value))
    expected = oracles.fourth_order_difference(lambda v: value_and_gradient(v)[0], at, 1e-3)
    gradient = np.asarray(value_and_gradient(at)[1])
    assert np.max(np.abs(gradient[:-1])) > 0.1
    # Some entries of Z do not matter to a kernel on one column: their gradient is zero.
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


def test_free_parameters_are_points_in_units_of_their_spacing() -> None:
    Z = np.linspace(0, 50, 26)[:, None]
    features = InducingPoints(Z=Z, learn=True)
    vector = features.free_parameters()
    np.testing.assert_allclose(np.diff(vector), 26 / 25)
    np.testing.assert_allclose(features.with_free_parameters(vector).Z, Z, rtol=1e-15)
    moved = features.with_free_parameters(vector + 1)
    np.testing.assert_allclose(moved.Z, Z + 50 / 26)
    np.testing.assert_allclose(moved.free_parameters(), vector + 1)


def test_points_that_are_not_learned_are_no_parameters() -> None:
    features = InducingPoints(Z=np.zeros((3, 2)))
    assert features.free_parameters().shape == (0,)
    assert features.with_free_parameters(np.empty(0)) is features


# ---------------------------------------------------------------------- placement


@pytest.mark.parametrize("num_given", [0, 4])
def test_every_greedy_point_has_the_largest_conditional_variance(num_given: int) -> None:
    # Given the points before, and those of features that are there already.
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (60, 2))
    ell = np.array([0.4, 0.6])
    kernel, given = RBF(1.3, ell), np.arange(num_given)
    explained = InducingPoints(Z=X[given]).evaluate(kernel, X) if num_given else None
    chosen = np.concatenate([given, greedy_variance(kernel, X, 12, explained)])
    K = oracles.rbf(X[:, None] - X, 1.3, ell)
    for i in range(max(num_given, 1), len(chosen)):
        before = chosen[:i]
        solved = np.linalg.solve(K[np.ix_(before, before)], K[before])
        conditional = 1.3 - np.einsum("in,in->n", K[before], solved)
        assert conditional[chosen[i]] == pytest.approx(conditional.max(), rel=1e-6)


@pytest.mark.parametrize("placement", ["kmeans++", "greedy-variance"])
def test_placement_by_data_beats_random_rows(placement: str) -> None:
    rng = np.random.default_rng(6)
    X = rng.uniform(-1, 1, (2000, 2))
    kernel = RBF(1.0, 0.4)
    placed = InducingPoints(30, placement=placement).from_rows(kernel, X)
    trace = np.mean(placed.residual_variance(kernel, X))
    for start in range(0, 300, 30):
        at_random = InducingPoints(Z=X[start : start + 30])
        assert trace < np.mean(at_random.residual_variance(kernel, X))


def test_greedy_placement_goes_on_where_nothing_is_left_to_explain() -> None:
    X = np.linspace(0, 1, 50)[:, None]
    features = InducingPoints(40, placement="greedy-variance").from_rows(RBF(1.0, 5.0), X)
    assert len(np.unique(features.Z)) == 40
    assert np.all(np.isfinite(features.evaluate(RBF(1.0, 5.0), X)))


def test_every_cluster_has_its_point() -> None:
    # k-means++ misses one of 20 clusters, 50 of their widths apart, next to never.
    rng = np.random.default_rng(7)
    centres = rng.permutation(20)[:, None] * np.array([[1.0, 0.5]])
    X = np.repeat(centres, 50, axis=0) + 0.02 * rng.normal(size=(1000, 2))
    for seed in range(5):
        Z = InducingPoints(20, seed=seed).from_rows(RBF(1.0, 1.0), X).Z
        distance = np.linalg.norm(Z[:, None] - centres, axis=-1)
        assert sorted(distance.argmin(axis=1)) == list(range(20))
        assert distance.min(axis=1).max() < 0.02


def test_points_follow_the_density_of_the_data() -> None:
    rng = np.random.default_rng(8)
    X = np.concatenate([rng.uniform(0, 1, (4000, 1)), rng.uniform(1, 2, (400, 1))])
    Z = InducingPoints(40).from_rows(RBF(1.0, 0.1), X).Z
    dense = np.count_nonzero(Z < 1)
    # In one dimension k-means has density^{1/3} points: 40 · 10^{1/3}/(1 + 10^{1/3}) = 27.3.
    assert 24 <= dense <= 31


def test_clusters_are_found_in_units_of_the_lengthscales() -> None:
    X = np.random.default_rng(9).uniform(0, 1, (1000, 2))
    Z = InducingPoints(10).from_rows(RBF(1.0, [0.01, 1.0]), X).Z
    # Only the first column has anything to resolve.
    assert np.ptp(Z[:, 1]) < 0.4 < 0.8 < np.ptp(Z[:, 0])


@pytest.mark.parametrize("placement", ["kmeans++", "greedy-variance"])
def test_columns_may_be_constant(placement: str) -> None:
    X = np.column_stack([np.linspace(0, 1, 30), np.full(30, 7.0)])
    Z = InducingPoints(5, placement=placement).from_rows(RBF(1.0, 0.3), X).Z
    np.testing.assert_allclose(Z[:, 1], 7.0)
    assert np.ptp(Z[:, 0]) > 0.7


@pytest.mark.parametrize("placement", ["kmeans++", "greedy-variance"])
def test_placement_is_a_function_of_the_seed(placement: str) -> None:
    X = np.random.default_rng(10).normal(size=(12_000, 1))
    placed = [
        InducingPoints(10, placement=placement, seed=seed).from_rows(RBF(), X).Z
        for seed in (3, 3, 4)
    ]
    np.testing.assert_array_equal(placed[0], placed[1])
    assert not np.array_equal(placed[0], placed[2])


def test_rare_rows_of_large_data_are_found_when_the_sample_has_too_few() -> None:
    X = np.zeros((30_000, 1))
    X[:5, 0] = np.arange(5)
    Z = InducingPoints(5, placement="greedy-variance").from_rows(RBF(1.0, 0.3), X).Z
    np.testing.assert_array_equal(np.sort(Z[:, 0]), np.arange(5))


@pytest.mark.parametrize("num_dims", [2, 3, 5])
def test_points_over_a_box_fill_it(num_dims: int) -> None:
    lower, upper = np.arange(num_dims) - 1.0, np.arange(num_dims) + 1.0
    Z = InducingPoints(64).placed(RBF(), lower, upper).Z
    assert Z.shape == (64, num_dims)
    assert np.all((lower <= Z) & (upper >= Z))
    # Each half of each column holds half of the points, up to the sequence's discrepancy.
    counts = np.sum((lower + upper) / 2 > Z, axis=0)
    assert np.all(np.abs(counts - 32) <= 3)
    rng = np.random.default_rng(0)
    assert all(_closest(Z) > _closest(rng.uniform(lower, upper, Z.shape)) for _ in range(50))


def _closest(Z: Array) -> float:
    distances = np.linalg.norm(Z[:, None] - Z, axis=-1)
    return float(np.min(distances[np.triu_indices(len(Z), 1)]))


def test_one_point_stands_in_the_middle_of_a_box() -> None:
    features = InducingPoints(1).placed(RBF(), np.array([1.0]), np.array([4.0]))
    np.testing.assert_array_equal(features.Z, [[2.5]])


def test_given_points_stay() -> None:
    Z = np.array([[0.0], [3.0]])
    features = InducingPoints(Z=Z)
    box = np.array([-1.0]), np.array([1.0])
    np.testing.assert_array_equal(features.placed(RBF(), *box).Z, Z)
    np.testing.assert_array_equal(features.from_rows(RBF(), np.zeros((5, 1))).Z, Z)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "number of points or the points themselves"),
        ({"num_features": 0}, "whole number ≥ 1, got 0"),
        ({"num_features": 3, "Z": np.zeros((2, 1))}, "num_features=3 and 2 points"),
        ({"num_features": 3, "placement": "grid"}, "'kmeans\\+\\+', 'greedy-variance', got 'grid'"),
        ({"Z": np.zeros((2, 2, 2))}, "one row per point"),
        ({"Z": np.empty((0, 1))}, "one row per point"),
        ({"Z": [["a"]]}, "must hold numbers"),
        ({"Z": [[np.nan]]}, "all finite"),
        ({"num_features": 3, "seed": -1}, "seed must be a whole number"),
        ({"num_features": 3, "spacing": 0.0}, "spacing must be positive"),
    ],
)
def test_impossible_parameters_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        InducingPoints(**arguments)


def test_too_few_distinct_rows_are_refused() -> None:
    X = np.repeat(np.arange(4.0), 10)[:, None]
    with pytest.raises(FeatureError, match=r"5 inducing points need .* X has 4"):
        InducingPoints(5).from_rows(RBF(), X)


def test_points_of_another_width_are_refused() -> None:
    features = InducingPoints(Z=np.zeros((3, 2)))
    for use in (
        lambda: features.evaluate(RBF(), np.zeros((5, 3))),
        lambda: features.from_rows(RBF(), np.zeros((5, 3))),
        lambda: features.phi(RBF(), np.zeros((5, 3))),
    ):
        with pytest.raises(FeatureError, match="Z has 2 columns, but the inputs have 3"):
            use()


def test_points_must_be_placed_before_use() -> None:
    with pytest.raises(FeatureError, match="no points yet"):
        InducingPoints(3).phi(RBF(), np.zeros((5, 1)))
