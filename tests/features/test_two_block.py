"""Two blocks: the second orthogonal to the first, for any first block."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.bands import Trig
from orthogp.features.base import Features, PointFeatures
from orthogp.features.inducing import JITTER, InducingPoints, PointTwoBlock, TwoBlock
from orthogp.features.series import Additive, Lattice, MeanPrior
from orthogp.inference.bounds import titsias_bound
from orthogp.inference.moments import moments_from_rows
from orthogp.kernels import RBF, Kernel, Matern32
from tests import oracles
from tests.oracles import Array
from tests.problems import make_lattice, make_rows, wrapped_gram

ELL = np.array([0.3])
KERNEL = Matern32(1.3, ELL)
ROWS = make_rows(0, 40, 1)
LOWER, UPPER = ROWS.X.min(axis=0), ROWS.X.max(axis=0)
FIRST, SECOND = np.linspace(LOWER, UPPER, 6), np.linspace(LOWER + 0.1, UPPER - 0.1, 4)


def k(lag: Array) -> Array:
    return oracles.matern32(lag, 1.3, ELL)


def bound(features: Features, noise: float = 0.1) -> float:
    return titsias_bound(moments_from_rows(features, KERNEL, ROWS.X, ROWS.y), noise).total


def points_of_both() -> TwoBlock:
    return TwoBlock(InducingPoints(Z=FIRST), InducingPoints(Z=SECOND))


@eqx.filter_jit
def compiled_phi(features: PointFeatures, kernel: Kernel, X: Array) -> jax.Array:
    return features.phi(kernel, X)


# ---------------------------------------------------------------------- what the features are


def test_two_blocks_of_points_are_all_points_together() -> None:
    together = InducingPoints(Z=np.concatenate([FIRST, SECOND]))
    assert points_of_both().num_features == 10
    assert bound(points_of_both()) == pytest.approx(bound(together), rel=1e-8)
    split, joint = (features.evaluate(KERNEL, ROWS.X) for features in (points_of_both(), together))
    np.testing.assert_allclose(split @ split.T, joint @ joint.T, atol=1e-8)


def test_variables_of_both_blocks_have_unit_covariance() -> None:
    # u₁ = L₁⁻¹ (f(Z₁) + noise) and u₂ = L₂⁻¹ (f(Z₂) + noise − φ₁(Z₂) u₁), as one matrix W.
    jitter = 1.3 * JITTER
    Z = np.concatenate([FIRST, SECOND])
    K = oracles.gram_matrix(k, Z, Z)
    K11, K12, K22 = K[:6, :6], K[:6, 6:], K[6:, 6:]
    L1 = np.linalg.cholesky(K11 + jitter * np.eye(6))
    first_at_second = np.linalg.solve(L1, K12).T
    L2 = np.linalg.cholesky(K22 - first_at_second @ first_at_second.T + jitter * np.eye(4))
    W1 = np.linalg.solve(L1, np.eye(6, 10))
    W2 = np.linalg.solve(L2, np.eye(4, 10, 6) - first_at_second @ W1)
    W = np.concatenate([W1, W2])
    np.testing.assert_allclose(W @ (K + jitter * np.eye(10)) @ W.T, np.eye(10), atol=1e-7)
    # The features are the covariances of just these variables with f.
    expected = W @ oracles.gram_matrix(k, Z, ROWS.X)
    np.testing.assert_allclose(points_of_both().evaluate(KERNEL, ROWS.X), expected.T, atol=1e-8)


@pytest.mark.parametrize("num_features", [5, 15])
def test_points_on_the_rest_improve_any_first_block(num_features: int) -> None:
    first = Trig(num_features).placed(KERNEL, LOWER, UPPER)
    both = TwoBlock(first, InducingPoints(8)).from_rows(KERNEL, ROWS.X)
    exact = oracles.log_marginal_likelihood(oracles.gram_matrix(k, ROWS.X, ROWS.X), ROWS.y, 0.1)
    assert bound(first) + 0.1 < bound(both) < exact
    # Where they stand, points leave nothing out.
    residual = both.residual_variance(KERNEL, both.second.Z)
    assert np.max(residual) < 1e-8 < 1e-3 < np.min(first.residual_variance(KERNEL, both.second.Z))


def test_projected_kernel_of_both_blocks_stays_below_the_kernel() -> None:
    both = TwoBlock(Trig(9), InducingPoints(30)).placed(KERNEL, LOWER, UPPER)
    X = np.linspace(LOWER - 0.2, UPPER + 0.2, 50)
    Phi = both.evaluate(KERNEL, X)
    gap = oracles.gram_matrix(k, X, X) - Phi @ Phi.T
    assert np.linalg.eigvalsh(gap)[0] > -1e-9


def test_nothing_goes_wrong_where_the_first_block_explains_everything() -> None:
    kernel = RBF(1.0, 2.0)
    both = TwoBlock(Trig(41), InducingPoints(10)).from_rows(kernel, ROWS.X)
    Phi = both.evaluate(kernel, ROWS.X)
    np.testing.assert_allclose(Phi @ Phi.T, oracles.rbf(ROWS.X[:, None] - ROWS.X, 1, 2), atol=1e-8)


# ---------------------------------------------------------------------- first blocks on a lattice


@pytest.mark.parametrize("kind", ["series", "lattice"])
def test_series_and_points_are_features_of_the_wrapped_prior(kind: str) -> None:
    # Of so short a period that the kernel itself would not do.
    lattice = make_lattice(1, 2.6, 40)
    if kind == "series":
        first: Features = Trig(9).placed(KERNEL, LOWER, UPPER, lattice).on(lattice)
    else:
        first = Lattice.select(KERNEL, lattice, 9)
    both = TwoBlock(first, InducingPoints(12)).placed(KERNEL, LOWER, UPPER)
    Phi = both.evaluate(KERNEL, both.second.Z)
    wrapped = wrapped_gram(KERNEL, both.second.Z, both.second.Z, lattice.period)
    np.testing.assert_allclose(Phi @ Phi.T, wrapped, atol=1e-8)
    assert np.max(np.abs(wrapped - oracles.gram_matrix(k, both.second.Z, both.second.Z))) > 1e-2


def test_three_blocks_keep_to_the_prior_of_the_first() -> None:
    lattice = make_lattice(1, 2.6, 40)
    first = Trig(9).placed(KERNEL, LOWER, UPPER, lattice).on(lattice)
    inner = TwoBlock(first, InducingPoints(Z=FIRST))
    Phi = TwoBlock(inner, InducingPoints(Z=SECOND)).evaluate(KERNEL, SECOND)
    np.testing.assert_allclose(
        Phi @ Phi.T, wrapped_gram(KERNEL, SECOND, SECOND, lattice.period), atol=1e-8
    )


def test_spectral_features_become_series_where_a_lattice_is_given(double: None) -> None:
    lattice = make_lattice(1, 6.0, 60)
    both = TwoBlock(Trig(9), InducingPoints(5)).placed(KERNEL, LOWER, UPPER, lattice)
    assert isinstance(both, PointTwoBlock)
    phi = compiled_phi(both, KERNEL, ROWS.X)
    np.testing.assert_allclose(phi, both.evaluate(KERNEL, ROWS.X), atol=1e-9)


@pytest.mark.slow
def test_components_of_an_additive_kernel_may_come_first(double: None) -> None:
    kernel = Matern32(0.5, [0.6]).on(0) + Matern32(0.9, [0.8]).on(1)
    rows = make_rows(1, 20, 2)
    first = Additive((Trig(5, a=5.0), Trig(7, a=6.0)), ((0,), (1,)))
    lattice = make_lattice(2, 5.0, 20)
    lower, upper = rows.X.min(axis=0), rows.X.max(axis=0)
    both = TwoBlock(first, InducingPoints(6)).placed(kernel, lower, upper, lattice)
    assert isinstance(both, PointTwoBlock)
    Phi = both.evaluate(kernel, both.second.Z)
    wrapped = wrapped_gram(kernel, both.second.Z, both.second.Z, lattice.period)
    np.testing.assert_allclose(Phi @ Phi.T, wrapped, atol=1e-8)
    phi = compiled_phi(both, kernel, rows.X)
    np.testing.assert_allclose(phi, both.evaluate(kernel, rows.X), atol=1e-9)


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize("kind", ["points", "series"])
def test_gradient_is_the_difference(kind: str, double: None) -> None:
    if kind == "points":
        first: Features = InducingPoints(Z=FIRST, learn=True)
    else:
        lattice = make_lattice(1, 6.0, 40)
        first = Trig(5).placed(KERNEL, LOWER, UPPER, lattice).on(lattice)
    both = TwoBlock(first, InducingPoints(Z=SECOND, learn=True)).placed(KERNEL, LOWER, UPPER)
    assert isinstance(both, PointTwoBlock)
    free = both.free_parameters()
    assert len(free) == (10 if kind == "points" else 4)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(40, both.num_features)))

    def value(vector):
        kernel = KERNEL.with_parameters(lengthscale=jnp.exp(vector[-1:]))
        return jnp.sum(weights * both.with_free_parameters(vector[:-1]).phi(kernel, ROWS.X))

    at = np.append(free, np.log(ELL))
    value_and_gradient = jax.jit(jax.value_and_grad(value))
    expected = oracles.fourth_order_difference(lambda v: value_and_gradient(v)[0], at, 1e-3)
    np.testing.assert_allclose(value_and_gradient(at)[1], expected, rtol=1e-6, atol=1e-6)


def test_free_parameters_are_those_of_both_blocks_in_order() -> None:
    both = TwoBlock(
        InducingPoints(Z=FIRST, learn=True), InducingPoints(Z=SECOND, learn=True)
    ).from_rows(KERNEL, ROWS.X)
    assert isinstance(both, PointTwoBlock)
    assert both.learn
    assert not points_of_both().learn
    moved = both.with_free_parameters(both.free_parameters() + np.arange(10.0))
    np.testing.assert_allclose(moved.free_parameters(), both.free_parameters() + np.arange(10.0))
    assert isinstance(moved.first, InducingPoints)
    np.testing.assert_allclose(moved.first.Z[0], FIRST[0])
    np.testing.assert_allclose(moved.second.Z[0], SECOND[0] + 6 * both.second.spacing)


# ---------------------------------------------------------------------- placement


@pytest.mark.parametrize("placement", ["kmeans++", "greedy-variance"])
def test_open_blocks_choose_different_points(placement: str) -> None:
    open_points = InducingPoints(10, placement=placement)
    rows = make_rows(2, 500, 1)
    by_box = TwoBlock(open_points, open_points).placed(KERNEL, LOWER, UPPER)
    by_rows = TwoBlock(open_points, open_points).from_rows(KERNEL, rows.X)
    for both in (by_box, by_rows):
        assert isinstance(both.first, InducingPoints)
        alone = np.mean(both.first.residual_variance(KERNEL, rows.X))
        assert np.mean(both.residual_variance(KERNEL, rows.X)) < 0.4 * alone


def test_differentiable_only_if_the_first_block_is() -> None:
    both = TwoBlock(Trig(5), InducingPoints(4)).from_rows(KERNEL, ROWS.X)
    assert not isinstance(both, PointFeatures)
    assert isinstance(points_of_both().placed(KERNEL, LOWER, UPPER), PointFeatures)
    with pytest.raises(FeatureError, match="got Trig: use TwoBlock"):
        PointTwoBlock(Trig(5), InducingPoints(4))


def test_blocks_can_be_pickled() -> None:
    both = points_of_both().placed(KERNEL, LOWER, UPPER)
    again = pickle.loads(pickle.dumps(both))
    np.testing.assert_array_equal(again.evaluate(KERNEL, ROWS.X), both.evaluate(KERNEL, ROWS.X))


# ---------------------------------------------------------------------- bad input


class _OwnPrior(InducingPoints):
    projects = False


def test_first_blocks_that_leave_nothing_out_are_refused() -> None:
    with pytest.raises(FeatureError, match="replace the prior"):
        TwoBlock(_OwnPrior(Z=FIRST), InducingPoints(Z=SECOND))


def test_mean_functions_in_the_first_block_are_refused() -> None:
    first = Lattice.select(KERNEL, make_lattice(1, 5.0, 20), 9, MeanPrior(4.0))
    with pytest.raises(FeatureError, match="without a mean function"):
        TwoBlock(first, InducingPoints(Z=SECOND))
