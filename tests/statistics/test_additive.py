"""Sums for additive models: whichever way they are taken, they are those of the rows."""

import numpy as np
import pytest

from orthogp import InputError, LatticeMismatchError
from orthogp.rows import Rows
from orthogp.statistics import AdditiveStatistics, ComponentLattice, FrequencyLattice
from orthogp.statistics import nufft as pairs

SHIFT = [1.0, -2.0]


def covariates(X):
    return X[:, :2] - 0.5


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 2, (200, 5))
    y, weights = rng.standard_normal((200, 2)), rng.uniform(0.1, 2, 200)
    # Kept indices need not be a whole box, nor the positive ones.
    line = np.array([[0], [1], [-2], [3], [4], [6], [8]])
    half = FrequencyLattice([1.0, 1.0], [3, 2]).half_indices()
    space = FrequencyLattice([1.0, 1.0, 1.0], [1, 1, 1]).half_indices()

    def component(columns, extent, indices):
        centre = rng.uniform(size=len(columns))
        lattice = FrequencyLattice(np.full(len(columns), 0.9), extent, centre)
        return ComponentLattice(columns, lattice, indices)

    components = (
        component((0,), 9, line),
        component((1,), 12, line),
        component((2, 3), 5, half),
        component((4, 3), 4, half),
        component((0, 2, 4), 2, space),
    )
    return components, X, y, weights


def columns_of(components, X):
    waves = [component.design(X) for component in components]
    return np.concatenate([np.ones((len(X), 1)), *waves, covariates(X)], axis=1)


def sums_of(components, X, y, weights, **options):
    return AdditiveStatistics.from_data(
        components, Rows(X, y, weights), target_shift=SHIFT, covariates=covariates, **options
    )


@pytest.mark.parametrize("way", ["transforms", "products"])
def test_sums_are_those_of_the_rows(problem, way, monkeypatch):
    components, X, y, weights = problem
    monkeypatch.setattr(
        pairs,
        "_transform_is_quicker",
        lambda a, b, _: way == "transforms" and len(a.columns) + len(b.columns) <= 3,
    )
    sums = sums_of(components, X, y, weights, chunk_rows=70)
    real = sums.real_sums([own.indices for own in components])
    columns = columns_of(components, X)
    np.testing.assert_allclose(real.gram, columns.T @ (weights[:, None] * columns), atol=1e-9)
    expected = columns.T @ (weights[:, None] * (y - SHIFT))
    np.testing.assert_allclose(real.projection, expected, atol=1e-9)
    assert sums.count == pytest.approx(weights.sum())
    assert sums.log_weights == pytest.approx(np.log(weights).sum())


def test_many_rows_take_the_transforms(problem):
    components, *_ = problem
    wide = [own._replace(indices=np.arange(200)[:, None]) for own in components[:2]]
    assert pairs._transform_is_quicker(*wide, 10**6)
    assert not pairs._transform_is_quicker(*wide, 10)
    assert not pairs._transform_is_quicker(components[2], components[3], 10**9)


def test_statistics_add_and_subtract(problem):
    components, X, y, weights = problem
    first = sums_of(components, X[:80], y[:80], weights[:80])
    second = sums_of(components, X[80:], y[80:], weights[80:])
    indices = [own.indices for own in components]
    together = sums_of(components, X, y, weights).real_sums(indices)
    np.testing.assert_allclose((first + second).real_sums(indices).gram, together.gram, atol=1e-9)
    back = (first + second - first).real_sums(indices)
    np.testing.assert_allclose(back.gram, second.real_sums(indices).gram, atol=1e-9)
    np.testing.assert_allclose(back.projection, second.real_sums(indices).projection, atol=1e-9)


def test_statistics_of_other_components_do_not_combine(problem):
    components, X, y, weights = problem
    one = sums_of(components[:2], X, y, weights)
    other = sums_of(components[1::-1], X, y, weights)
    with pytest.raises(LatticeMismatchError, match="same components"):
        one + other


def test_decimated_sums_are_those_on_a_shorter_period(problem):
    components, X, y, weights = problem
    thin = sums_of(components, X, y, weights).thinned([2, 1, (1, 2), 1, 1])
    real = thin.real_sums([own.indices for own in thin.components])
    columns = columns_of(thin.components, X)
    assert len(thin.components[0].indices) == 5
    assert len(thin.components[2].indices) < len(components[2].indices)
    np.testing.assert_allclose(real.gram, columns.T @ (weights[:, None] * columns), atol=1e-9)


def test_standardising_the_sums_is_standardising_the_targets(problem):
    components, X, y, weights = problem
    offset, scale = np.array([0.3, -1.0]), np.array([2.0, 0.5])
    indices = [own.indices for own in components]
    sums = sums_of(components, X, y, weights).standardised(offset, scale)
    targets = SHIFT + (y - SHIFT - offset) / scale
    expected = sums_of(components, X, targets, weights)
    np.testing.assert_allclose(
        sums.real_sums(indices).projection, expected.real_sums(indices).projection, atol=1e-9
    )
    np.testing.assert_allclose(sums.yy, expected.yy)


def test_sums_of_residuals_are_those_of_the_rows(problem):
    components, X, y, weights = problem
    chosen = [own.indices[[0, 2, 3]] for own in components]
    few = [own._replace(indices=own.indices[[0, 2, 3]]) for own in components]
    columns = columns_of(few, X)
    z = np.random.default_rng(1).standard_normal((columns.shape[1], 2))
    residual = weights[:, None] * (y - SHIFT - columns @ z)
    found = sums_of(components, X, y, weights).residual_sums(chosen, z)
    for own, sums in zip(components, found, strict=True):
        np.testing.assert_allclose(sums, own.design(X).T @ residual, atol=1e-9)


def test_indices_that_are_not_kept_are_named(problem):
    components, X, y, weights = problem
    sums = sums_of(components[:2], X, y, weights)
    with pytest.raises(InputError, match=r"not kept at index \(5,\)"):
        sums.real_sums([np.array([[0], [5]]), components[1].indices])


def test_no_component_is_an_error(problem):
    _, X, y, _ = problem
    with pytest.raises(InputError, match="at least one component"):
        AdditiveStatistics.from_data([], Rows(X, y))
