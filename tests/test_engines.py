"""Which engine is taken, and that what is returned is worth having."""

import numpy as np
import pytest
from numpy.typing import NDArray

from orthogp import GPRegressor
from orthogp.choosing import Scaling, held_out_rows
from orthogp.engines import Task
from orthogp.kernels import RBF, Matern32
from orthogp.rows import Rows


def smooth(n: int, num_dims: int, noise: float = 0.1, seed: int = 0) -> tuple[NDArray, NDArray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 3, (n, num_dims))
    y = np.sin(3 * X[:, 0]) + np.cos(2 * X[:, -1]) * X[:, num_dims // 2]
    return X, y + noise * rng.standard_normal(n)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_few_rows_are_fitted_exactly(num_dims: int) -> None:
    X, y = smooth(300, num_dims)
    model = GPRegressor().fit(X[:250], y[:250])
    assert model.engine_ == "exact"
    mean, sd = model.predict(X[250:], return_std=True, include_noise=True)
    assert 0.84 < np.mean(np.abs(y[250:] - mean) < 1.96 * sd) <= 1


def test_few_rows_of_many_columns_are_tried_jointly_and_additively() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 5))
    joint = np.sin(3 * X[:, 0] * X[:, 1]) + 0.05 * rng.standard_normal(200)
    added = np.sin(3 * X).sum(axis=1) + 0.05 * rng.standard_normal(200)
    found = [GPRegressor().fit(X, y) for y in (joint, added)]
    assert [model.engine_ for model in found] == ["exact", "additive"]
    assert all({trial.engine for trial in own.trials_} == {"exact", "additive"} for own in found)
    assert "additive" in found[0].summary()


def test_a_smooth_series_is_the_dense_lattices() -> None:
    X, y = smooth(5000, 1)
    model = GPRegressor("rbf").fit(X, y)
    assert model.engine_ == "dense"
    assert model.certificate_.holds


@pytest.mark.slow
def test_a_rough_field_is_the_neighbours_and_covers_its_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 40, (6000, 3))
    waves = rng.standard_normal((400, 3)) * rng.standard_t(1, (400, 1))
    y = np.cos(X @ waves.T + rng.uniform(0, 6.3, 400)) @ rng.standard_normal(400) / 20
    model = GPRegressor("matern12").fit(X[:5400], y[:5400])
    assert model.engine_ == "neighbours"
    mean, sd = model.predict(X[5400:], return_std=True, include_noise=True)
    assert 0.9 < np.mean(np.abs(y[5400:] - mean) < 1.96 * sd) < 0.99
    assert "million" not in model.summary()


@pytest.mark.slow
def test_columns_that_act_jointly_are_the_neighbours() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3600, 6))
    y = np.sin(4 * X[:, 0] * X[:, 1]) + X[:, 2] * X[:, 3] + 0.05 * rng.standard_normal(3600)
    model = GPRegressor("matern52").fit(X[:3000], y[:3000])
    assert model.engine_ == "neighbours"
    scores = {trial.engine: trial.score for trial in model.trials_}
    assert scores["neighbours"] > scores["additive"] + 0.5
    assert np.sqrt(np.mean((model.predict(X[3000:]) - y[3000:]) ** 2)) < 0.15


@pytest.mark.slow
def test_a_smooth_grid_without_noise_is_fitted() -> None:
    side = np.linspace(0, 4, 120)
    X = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    y = np.sin(X[:, 0]) * np.cos(X[:, 1])
    model = GPRegressor().fit(X, y)
    points = np.random.default_rng(0).uniform(0.1, 3.9, (500, 2))
    mean, sd = model.predict(points, return_std=True)
    assert np.max(np.abs(mean - np.sin(points[:, 0]) * np.cos(points[:, 1]))) < 1e-3
    assert np.isfinite(sd).all()


def test_kernel_objects_act_on_any_number_of_columns() -> None:
    X, y = smooth(200, 5)
    model = GPRegressor(Matern32(1.0, np.ones(5))).fit(X, y)
    assert model.engine_ == "exact"
    assert len(np.ravel(model.kernel_.parameters()["lengthscale"])) == 5
    assert GPRegressor(RBF().on(0, 1)).fit(X, y).columns_.tolist() == [0, 1]


def test_engines_can_be_asked_for() -> None:
    X, y = smooth(100, 2)
    settings = {"noise_variance": 0.01, "learn": False}
    for solver in ("exact", "dense", "neighbours"):
        model = GPRegressor(RBF(1.0, 0.5), solver=solver, **settings)
        assert model.fit(X, y).engine_ == solver


def test_where_the_data_have_gaps_whole_neighbourhoods_are_hidden() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (8000, 2))
    holes = np.linalg.norm(X[:, None] - rng.uniform(0.2, 0.8, (3, 2)), axis=2).min(axis=1) < 0.15
    even = Task(None, Rows(X, X[:, :1], None), 0.0)
    gappy = Task(None, Rows(X[~holes], X[~holes, :1], None), 0.0)
    scaling = Scaling(np.arange(2), np.ones(2))
    assert held_out_rows(even, scaling).gaps == 0
    hidden = held_out_rows(gappy, scaling)
    assert hidden.gaps > 0.05
    assert len(hidden.rows) == len(np.unique(hidden.rows)) > 400
    np.testing.assert_allclose(hidden.weights.sum(), 1.0)
    assert len(gappy.without(hidden.rows).rows.X) == len(gappy.rows.X) - len(hidden.rows)


def test_gaps_are_looked_for_in_the_columns_that_the_kernel_sees() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (8000, 3))
    X = X[np.linalg.norm(X[:, 1:] - 0.5, axis=1) > 0.3]
    task = Task(None, Rows(X, X[:, :1], None), 0.0)
    assert held_out_rows(task, Scaling(np.array([1, 2]), np.ones(2))).gaps > 0.05
    assert held_out_rows(task, Scaling(np.array([0]), np.ones(1))).gaps == 0


@pytest.mark.slow
def test_an_exact_model_that_outgrows_its_rows_goes_on_with_neighbours() -> None:
    X, y = smooth(3000, 2)
    model = GPRegressor().fit(X[:300], y[:300])
    assert model.engine_ == "exact"
    model.partial_fit(X[300:], y[300:])
    assert model.engine_ != "exact"
    assert model.statistics_.rows == 3000


@pytest.mark.parametrize("num_dims", [2, 5])
def test_no_other_engine_is_tried_once_the_time_is_up(num_dims: int) -> None:
    rng = np.random.default_rng(5)
    X = rng.uniform(0, 10, (2600, num_dims))
    y = np.sin(9 * X[:, 0] * X[:, 1]) + 0.1 * rng.standard_normal(2600)
    model = GPRegressor("matern12", max_seconds=1e-3, random_state=0).fit(X, y)
    untried = [trial.engine for trial in model.trials_ if trial.remark == "the time ran out"]
    assert len(untried) == 1
    assert f" The engine {untried[0]} was not tried: the time ran out.\n" in model.summary()


def test_the_summary_says_that_sums_leave_no_other_engine_to_try() -> None:
    X, y = smooth(3000, 1)
    model = GPRegressor("rbf").fit(X[:2900], y[:2900])
    assert "not tried" not in model.summary()
    model.partial_fit(X[2900:], y[2900:])
    sentence = "The engine neighbours was not tried: the rows are gone, only their sums are kept."
    assert sentence in model.summary()
    assert "tried: engine" not in model.summary()
    asked = GPRegressor("rbf", solver="dense").fit(X[:2900], y[:2900])
    assert "not tried" not in asked.partial_fit(X[2900:], y[2900:]).summary()


@pytest.mark.slow
def test_tight_clusters_are_not_left_to_a_lattice_that_is_too_coarse() -> None:
    """Scores of a noisy function differ little, but the lattice's sds would be far too small."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-10, 10, (10, 3))
    frequencies, phases = 0.8 * rng.standard_normal((3, 400)), rng.uniform(0, 2 * np.pi, 400)

    def f(X: np.ndarray) -> np.ndarray:
        return np.cos(X @ frequencies + phases).sum(axis=1) * np.sqrt(2 / 400)

    def around(number: int) -> np.ndarray:
        return (centres[:, None] + 0.15 * rng.standard_normal((10, number, 3))).reshape(-1, 3)

    X, new = around(300), around(30)
    model = GPRegressor("matern32").fit(X, f(X) + rng.standard_normal(len(X)))
    mean, sd = model.predict(new, return_std=True)
    # Errors within a cluster are nearly the same: ten of them.
    assert np.mean(np.abs(mean - f(new)) < 3 * sd) > 0.9
    assert model.engine_ == "neighbours"
    few = model.posterior_.predict(new)
    all_rows = model.posterior_.with_neighbours(len(X)).predict(new)
    ratio = np.sqrt(few.variance / all_rows.variance)
    assert np.sqrt(np.mean((ratio - 1) ** 2)) < 0.1
