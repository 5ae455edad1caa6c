"""Nearest rows, against sorted distances."""

import numpy as np
import pytest

from orthogp.exact.pairs import merge_rows
from orthogp.neighbours.nearest import NearestRows, OrderedRows


@pytest.mark.parametrize(("count", "num_dims"), [(10, 1), (10, 3), (7, 12), (60, 2)])
def test_earlier_neighbours_are_the_nearest_of_all_earlier_rows(count: int, num_dims: int) -> None:
    X = np.random.default_rng(0).standard_normal((400, num_dims))
    found = OrderedRows(X).query(np.arange(400), count)
    for position in range(400):
        distances = np.linalg.norm(X[:position] - X[position], axis=1)
        own = found[position][found[position] >= 0]
        assert len(own) == len(set(own)) == min(count, position)
        np.testing.assert_allclose(np.sort(distances[own]), np.sort(distances)[:count])


def test_trees_and_comparing_with_all_rows_find_the_same() -> None:
    rng = np.random.default_rng(0)
    X, points = rng.standard_normal((3000, 15)), rng.standard_normal((200, 15))
    rows = NearestRows(X)
    before = rows._tree.query(points, k=20)[1]
    assert np.array_equal(rows.query(points, 20)[1], before)
    assert rows._tried


def test_more_neighbours_than_rows_are_all_rows() -> None:
    distances, indices = NearestRows(np.arange(5.0)[:, None]).query(np.array([[0.2]]), 9)
    assert indices.tolist() == [[0, 1, 2, 3, 4]]
    assert np.all(np.diff(distances) > 0)


@pytest.mark.parametrize("repeats", [True, False])
def test_merging_equal_inputs_leaves_the_likelihood_as_it_is(repeats: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, (40, 2)).astype(float)
    y, weights = rng.standard_normal((40, 2)), rng.integers(1, 4, 40).astype(float)
    merged = merge_rows(X, y, weights, repeats=repeats)
    assert len(np.unique(merged.X, axis=0)) == len(merged.X) < 40
    noise = 0.3

    def dense(X, y, variances) -> float:
        K = np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, axis=2)) + np.diag(variances)
        fit = np.sum(y * np.linalg.solve(K, y))
        size = y.shape[1]
        return -0.5 * (fit + size * (np.linalg.slogdet(K)[1] + len(X) * np.log(2 * np.pi)))

    if repeats:
        every = np.repeat(np.arange(40), weights.astype(int))
        expected = dense(X[every], y[every], np.full(len(every), noise))
    else:
        expected = dense(X, y, noise / weights)
    found = dense(merged.X, merged.y, noise / merged.weights) + merged.beside(noise)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    slope = (merged.beside(noise * 1.0001)[0] - merged.beside(noise / 1.0001)[0]) / 2e-4
    np.testing.assert_allclose(merged.beside(noise)[1], slope, rtol=1e-4)
