"""Moments of every family: from the statistics as from the rows, with the right gradients."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from orthogp.features import MeanPrior, PointFeatures
from orthogp.inference import Moments, moments_from_rows
from orthogp.inference.moments import EvaluatedSource, RowSource, SeriesSource
from orthogp.inference.objective import FamilyObjective
from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.learning.problem import Start
from tests import oracles
from tests.families import label, on_lattice, pairs
from tests.problems import DIMS, make_lattice, make_rows, mean_prior

EXTENTS = {1: 60, 2: 14, 3: 7}
NOISE = 0.1


class Bumps(PointFeatures):
    """Two bumps: no features of any process, but differentiable in kernel and place."""

    places: np.ndarray
    num_features: int = eqx.field(static=True, default=2)

    def phi(self, kernel, X):
        lags = X[:, None, :] - self.places
        squares = jnp.sum(lags**2, axis=-1) / kernel.lengthscale[0] ** 2
        return 0.4 * jnp.sqrt(kernel.variance) * jnp.exp(-squares)

    def free_parameters(self):
        return np.ravel(self.places)

    def with_free_parameters(self, vector):
        return eqx.tree_at(lambda f: f.places, self, jnp.reshape(vector, self.places.shape))


def assert_same(actual: Moments, expected: Moments, rtol: float = 1e-9) -> None:
    for name in ("gram", "projection"):
        scale = np.max(np.abs(getattr(expected, name)))
        np.testing.assert_allclose(
            getattr(actual, name), getattr(expected, name), atol=rtol * scale, err_msg=name
        )
    np.testing.assert_allclose(actual.yy, expected.yy, rtol=rtol)
    scale = np.trace(expected.gram) + abs(expected.residual_trace)
    assert abs(actual.residual_trace - expected.residual_trace) <= rtol * scale
    assert actual.rows == pytest.approx(expected.rows, rel=1e-12)
    assert actual.log_weights == pytest.approx(expected.log_weights, rel=1e-12, abs=1e-12)


# Every kernel with one family, in one column; otherwise one of each kind.
MOMENT_PAIRS = [
    (num_dims, family, entry)
    for num_dims, family, entry in pairs(*DIMS)
    if (num_dims == 1 and family.name == "trig")
    or entry.name in ("rbf", "matern32", "spectral-mixture", "additive")
]


@pytest.mark.parametrize(("num_dims", "family", "entry"), MOMENT_PAIRS, ids=label)
def test_moments_from_statistics_are_those_from_rows(num_dims, family, entry) -> None:
    rows = make_rows(1, 40, num_dims, 2, "real")
    mean = mean_prior("linear", num_dims)
    lattice = make_lattice(num_dims, 5.0, EXTENTS[num_dims])
    features = on_lattice(family, entry.kernel, lattice)
    source = SeriesSource(
        features,
        entry.kernel,
        learned_slots(entry.kernel),
        rows.statistics(lattice, mean),
        mean,
        repeats=False,
    )
    expected = moments_from_rows(
        features, entry.kernel, rows.X, rows.y, rows.weights, repeats=False, mean=mean
    )
    assert_same(source.moments(pack(entry.kernel, source.slots)), expected)


@pytest.mark.parametrize("mean", [None, "constant", "linear"])
@pytest.mark.parametrize("repeats", [True, False])
def test_point_features_have_the_same_moments_by_blocks(
    mean: str | None, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orthogp.inference.moments._BLOCK_ROWS", 16)
    rows = make_rows(2, 41, 2, 1, "whole")
    kernel, prior = RBF(1.3, [0.5, 0.5]), mean_prior(mean, 2)
    features = Bumps(np.array([[0.1, 0.2], [-0.4, 0.5]]))
    source = RowSource(
        features,
        kernel,
        learned_slots(kernel),
        rows.X,
        rows.y,
        rows.weights,
        prior,
        repeats=repeats,
    )
    expected = moments_from_rows(
        features, kernel, rows.X, rows.y, rows.weights, repeats=repeats, mean=prior
    )
    parameters = np.concatenate([pack(kernel, source.slots), features.free_parameters()])
    assert_same(source.moments(parameters), expected, 1e-12)


def assert_gradient(objective: FamilyObjective, vector: np.ndarray) -> None:
    value, gradient = objective.value_and_gradient(vector)
    assert value == pytest.approx(objective.value(vector), abs=1e-12 * abs(value))
    expected = oracles.fourth_order_difference(
        lambda x: np.array([objective.value(x)]), vector, 1e-3
    )[0]
    np.testing.assert_allclose(gradient, expected, atol=2e-8 * np.max(np.abs(expected)))


# The gradient goes through the coefficients or the masses, whatever the kernel: one of each kind.
GRADIENT_PAIRS = [
    pair
    for pair in pairs(1, 2)
    if (pair[0] == 1 and pair[2].name in ("rbf", "matern32"))
    or (pair[2].name == "additive" and pair[1].name in ("trig", "harmonic"))
]


@pytest.mark.parametrize(("num_dims", "family", "entry"), GRADIENT_PAIRS, ids=label)
def test_gradient_of_series_is_that_of_differences(num_dims, family, entry) -> None:
    rows = make_rows(3, 40, num_dims, 2, "real")
    mean = mean_prior("linear", num_dims)
    lattice = make_lattice(num_dims, 5.0, EXTENTS[num_dims])
    features = on_lattice(family, entry.kernel, lattice)
    source = SeriesSource(
        features,
        entry.kernel,
        learned_slots(entry.kernel),
        rows.statistics(lattice, mean),
        mean,
        repeats=True,
    )
    objective = FamilyObjective(source)
    assert_gradient(objective, objective.vector(Start(entry.kernel, NOISE)))


def test_gradient_of_point_features_is_that_of_differences_in_their_places_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orthogp.inference.moments._BLOCK_ROWS", 16)
    rows = make_rows(2, 41, 2, 2, "real")
    kernel, prior = RBF(1.3, [0.5, 0.5]), mean_prior("linear", 2)
    features = Bumps(np.array([[0.1, 0.2], [-0.4, 0.5]]))
    source = RowSource(
        features, kernel, learned_slots(kernel), rows.X, rows.y, rows.weights, prior, repeats=False
    )
    objective = FamilyObjective(source)
    vector = objective.vector(Start(kernel, NOISE))
    assert len(vector) == 3 + 4 + 1
    assert_gradient(objective, vector)
    moved = source.features_at(vector[:-1] + 0.1)
    np.testing.assert_allclose(moved.places, features.places + 0.1, rtol=1e-12)


def test_features_that_only_evaluate_have_gradients_too() -> None:
    rows = make_rows(4, 40, 1)
    kernel: Kernel = Matern32(1.3, [0.5])
    lattice = make_lattice(1, 5.0, 60)
    features = on_lattice(pairs(1)[0][1], kernel, lattice)
    arguments = (features, kernel, learned_slots(kernel))
    mean = MeanPrior()
    by_rows = EvaluatedSource(*arguments, rows.X, rows.y, None, mean, repeats=True)
    by_sums = SeriesSource(*arguments, rows.statistics(lattice), mean, repeats=True)
    vector = np.append(pack(kernel, learned_slots(kernel)), np.log(NOISE))
    value, gradient = FamilyObjective(by_rows).value_and_gradient(vector)
    expected_value, expected = FamilyObjective(by_sums).value_and_gradient(vector)
    assert value == pytest.approx(expected_value, abs=1e-8)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
