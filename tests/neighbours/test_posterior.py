"""Groups of points that share rows, against points alone and against all rows."""

import numpy as np
import pytest
from numpy.typing import NDArray

from orthogp.exact.pairs import merge_rows
from orthogp.features.series import MeanPrior
from orthogp.kernels import Matern32
from orthogp.neighbours.posterior import NeighbourPosterior, Trend, _grouped, _in_cells


def posterior_of(X: NDArray[np.float64], num_neighbours: int) -> NeighbourPosterior:
    """The posterior of a known model without a mean function."""
    y = np.sin(5 * X.sum(axis=1)) + 0.1 * np.random.default_rng(1).standard_normal(len(X))
    mean = MeanPrior(0.0, 0.0, X.mean(axis=0), np.full(X.shape[1], 0.5))
    q = mean.features(X).shape[1]
    trend = Trend(np.zeros((q, 1)), np.zeros((q, q)), mean)
    rows = merge_rows(X, y, None, repeats=False)
    return NeighbourPosterior(Matern32(1.0, 0.4), 0.02, rows, trend, num_neighbours)


@pytest.mark.parametrize(("num_dims", "num_neighbours"), [(1, 16), (2, 32), (3, 96)])
def test_points_in_groups_are_predicted_no_worse_than_alone(
    num_dims: int, num_neighbours: int
) -> None:
    rng = np.random.default_rng(num_dims)
    X, points = rng.random((1500, num_dims)), 0.2 + 0.6 * rng.random((640, num_dims))
    posterior = posterior_of(X, num_neighbours)
    exact = posterior.with_neighbours(len(X)).predict(points[:200])
    nearest = posterior._nearest.query(posterior._scaled(points), num_neighbours)[1]
    alone = posterior._predict(points, posterior._prior_part, nearest)
    grouped = posterior.predict(points)
    assert not np.array_equal(grouped.mean, alone[0])

    def error(mean: NDArray[np.float64]) -> float:
        sd = np.sqrt(exact.variance)[:, None]
        return float(np.sqrt(np.mean(((mean[:200] - exact.mean) / sd) ** 2)))

    assert error(grouped.mean) < 1.05 * error(alone[0])
    # More rows never make a variance larger: all groups have at least half of the rows.
    assert np.all(grouped.variance[:200] >= exact.variance * (1 - 1e-9))


@pytest.mark.parametrize("num_points", [1, 2, 63, 64, 65, 1000])
def test_groups_hold_each_point_once_and_the_nearer_half_of_its_rows(num_points: int) -> None:
    rng = np.random.default_rng(num_points)
    posterior = posterior_of(rng.random((2000, 2)), 40)
    points = rng.random((num_points, 2))
    points = points[_in_cells(posterior._scaled(points))]
    nearest = posterior._nearest.query(posterior._scaled(points), 40)[1]
    groups = _grouped(nearest)
    everyone = np.concatenate([group.points.reshape(-1) for group in groups])
    np.testing.assert_array_equal(np.sort(everyone), np.arange(num_points))
    for group in groups:
        for own, rows in zip(group.points, group.rows, strict=True):
            assert set(nearest[own, :20].reshape(-1)) <= set(rows)
            ample = np.sum(rows >= 0) >= 120
            assert ample or set(nearest[own].reshape(-1)) <= set(rows)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 127, 200, 1000])
def test_cells_hold_every_point_once(size: int) -> None:
    points = np.random.default_rng(size).random((size, 3))
    np.testing.assert_array_equal(np.sort(_in_cells(points)), np.arange(size))


def test_points_of_one_cell_are_near_each_other() -> None:
    points = np.random.default_rng(0).random((4096, 2))
    cells = points[_in_cells(points)].reshape(-1, 64, 2)
    # 64 squares of side 1/8 would hold them; none is wider than two of these.
    assert np.ptp(cells, axis=1).max() < 2 / 8
