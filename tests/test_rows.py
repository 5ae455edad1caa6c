"""Rows as one type: what merging and weights mean."""

import numpy as np

from orthogp.rows import Rows


def test_merged_rows_are_the_same_rows() -> None:
    X = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    y, weights = np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.array([1.0, 2.0, 3.0, 0.5])
    merged = Rows(X, y, weights).merged()
    found = sorted(zip(map(tuple, merged.X.tolist()), merged.y[:, 0], merged.weights, strict=True))
    assert found == [((0.0, 1.0), -1.0, 2.0), ((1.0, 2.0), -1.0, 0.5), ((1.0, 2.0), 1.0, 4.0)]
    assert Rows(X, y).merged().total_weight == 4


def test_rows_of_weight_zero_count_for_nothing() -> None:
    X, weights = np.arange(3.0)[:, None], np.array([0.0, 2.0, 1.0])
    rows = Rows(X, X, weights)
    assert rows.merged().X.tolist() == [[1.0], [2.0]]
    assert rows.total_weight == 3
    assert rows.total(np.array([5.0, 1.0, 1.0])) == 3
