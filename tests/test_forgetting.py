"""Rows that were fitted can be taken out, whatever they are; rows that were not are refused."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from orthogp import GPRegressor, InputError
from orthogp.kernels import RBF, Matern32


class Case(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    model: GPRegressor


def case(seed: int, solver: str) -> Case:
    """Rows of all kinds: few or many, repeated, with outliers, weighted, in single precision."""
    rng = np.random.default_rng(seed)
    num_columns, num_rows = int(rng.choice([1, 1, 2, 4])), int(rng.integers(6, 150))
    X = rng.uniform(0, 1, (num_rows, num_columns)) * 10 ** rng.uniform(-3, 3)
    width = np.ptp(X, axis=0)
    y = np.sin(3 * X / width).sum(axis=1) + 0.1 * rng.standard_normal(num_rows)
    if rng.random() < 0.3:
        X = np.round(X, 1 - int(np.log10(width.max())))
    if rng.random() < 0.5:
        y[rng.integers(num_rows, size=2)] += 10 ** rng.uniform(0, 4)
    y = y * 10 ** rng.uniform(-6, 6) + rng.choice([0.0, 1e3])
    weights = None
    if rng.random() < 0.6:
        weights = rng.uniform(0, 3, num_rows) * (rng.random(num_rows) > 0.2)
        weights[:3] = 1
    if rng.random() < 0.4:
        X, y = X.astype(np.float32), y.astype(np.float32)
    kernel = Matern32(float(np.var(y)), float(width.max()) / 2)
    settings: dict[str, Any] = {"max_features": 40, "learn": False, "solver": solver}
    settings["mean"] = rng.choice(["constant", "linear"])
    settings["weights"] = rng.choice(["repeats", "precisions"])
    settings["kernel"] = kernel if num_columns < 4 else "additive-matern32"
    if num_columns == 4 and solver != "dense":
        settings["kernel"] = kernel
    return Case(X, y, weights, GPRegressor(**settings))


def some(weights: np.ndarray | None, chosen: np.ndarray) -> np.ndarray | None:
    return None if weights is None else weights[chosen]


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dense", "exact", "neighbours"])
@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 16))]
)
def test_rows_that_were_fitted_can_be_forgotten_down_to_two(seed: int, solver: str) -> None:
    X, y, weights, model = case(seed, solver)
    model.fit(X, y, weights)
    gone = 2 + np.random.default_rng(seed).permutation(len(X) - 2)
    for part in np.array_split(gone, 2):
        if weights is None or weights[part].any():
            model.forget(X[part], y[part], some(weights, part))
    assert model.statistics_.rows == 2
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"solver": "dense"},
        {"solver": "iterative"},
        {"solver": "neighbours"},
        {"features": "trig"},
    ],
)
def test_rows_that_were_added_can_be_forgotten_and_learning_goes_on(settings: dict) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (400, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(400)
    y[300] = 50.0
    model = GPRegressor("rbf", max_features=60, **settings).fit(X[:300], y[:300])
    before = model.predict(X)
    model.partial_fit(X[300:], y[300:]).forget(X[300:], y[300:])
    np.testing.assert_allclose(model.predict(X), before, atol=0.02)
    model.forget(X[2:300], y[2:300])
    assert model.statistics_.rows == 2


@pytest.mark.parametrize("solver", ["auto", "dense"])
def test_a_window_moves_along_without_end(solver: str) -> None:
    rng = np.random.default_rng(0)
    X = np.linspace(0, 10, 1200)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(1200)
    model = GPRegressor(
        RBF(1.0, 1.0), noise_variance=0.01, learn=False, domain=(0, 10), solver=solver
    )
    model.fit(X[:100], y[:100])
    for i in range(0, 1100, 100):
        model.partial_fit(X[i + 100 : i + 200], y[i + 100 : i + 200])
        model.forget(X[i : i + 100], y[i : i + 100])
    assert model.statistics_.rows == 100


SHAPES = [(1, 100, "rbf"), (2, 200, "rbf"), (4, 200, "additive-rbf")]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def fitted(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, GPRegressor]:
    num_columns, num_rows, kernel = request.param
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, (num_rows, num_columns))
    y = np.sin(6 * X[:, 0]) + np.cos(4 * X[:, 1:]).sum(axis=1) + 0.1 * rng.standard_normal(len(X))
    return X, y, GPRegressor(kernel, max_features=60, solver="dense").fit(X, y)


@pytest.fixture(scope="module", params=["exact", "neighbours"])
def kept(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, GPRegressor]:
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, (200, 2))
    y = np.sin(6 * X[:, 0]) + np.cos(4 * X[:, 1]) + 0.1 * rng.standard_normal(len(X))
    model = GPRegressor(RBF(1.0, 0.3), noise_variance=0.01, learn=False, solver=request.param)
    return X, y, model.fit(X, y)


WRONG = {
    "row 0 lies outside of all that were": lambda X, y: (X[:5] + 2, y[:5], None),
    "lies where no such row was": lambda X, y: (
        np.random.default_rng(2).uniform(0.05, 0.95, (1, X.shape[1])),
        y[:1],
        None,
    ),
    "larger squares of y": lambda X, y: (X[:9], y[:9] + 50, None),
    "other values|larger squares|another y": lambda X, y: (X[:20], y[:20] + 4, None),
    "lies where no such row was, or has another weight": lambda X, y: (
        X[:20],
        y[:20],
        np.full(20, 2.5),
    ),
    "further from|other values|another y": lambda X, y: (X[:60], -y[:60], None),
    "at least two must stay": lambda X, y: (X[1:], y[1:], None),
}


@pytest.mark.parametrize("reason", WRONG)
def test_rows_that_were_not_fitted_are_refused(
    fitted: tuple[np.ndarray, np.ndarray, GPRegressor], reason: str
) -> None:
    X, y, model = fitted
    before, statistics = model.predict(X), model.statistics_
    with pytest.raises(InputError, match=reason):
        model.forget(*WRONG[reason](X, y))
    assert model.statistics_ is statistics
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize("reason", WRONG)
def test_rows_that_are_not_among_those_kept_are_refused(
    kept: tuple[np.ndarray, np.ndarray, GPRegressor], reason: str
) -> None:
    X, y, model = kept
    before, statistics = model.predict(X), model.statistics_
    said = reason if "must stay" in reason else "rows are not among those that were fitted"
    with pytest.raises(InputError, match=said):
        model.forget(*WRONG[reason](X, y))
    assert model.statistics_ is statistics
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize(
    ("solver", "said"),
    [
        ("dense", "row 1 lies where no such row was"),
        ("exact", "1 of 2 rows are not among those that were fitted"),
    ],
)
def test_a_row_is_forgotten_once(solver: str, said: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (80, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(80)
    model = GPRegressor(RBF(1.0, 0.3), noise_variance=0.01, learn=False, solver=solver).fit(X, y)
    model.forget(X[:7], y[:7])
    with pytest.raises(InputError, match=said):
        model.forget(X[[9, 3]], y[[9, 3]])
    # Rows of weight zero are as good as absent, whatever they are.
    model.forget(np.append(X[9:10], [[77.0]], axis=0), np.append(y[9], 1e9), [1.0, 0.0])
    assert model.statistics_.rows == 72


@pytest.mark.parametrize("weights", ["repeats", "precisions"])
def test_a_target_that_is_wrong_is_refused_where_all_residuals_are_smaller(weights: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (5000, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(5000)
    model = GPRegressor(RBF(1.0, 0.3), noise_variance=0.01, learn=False, weights=weights)
    model.fit(X, y)
    # The squares of y hold them, so does each place; those of the residuals do not.
    wrong = y[:20] + np.where(np.arange(20) % 2, 2.0, -2.0)
    with pytest.raises(InputError, match="further from the model than all that were"):
        model.forget(X[:20], wrong)
    model.forget(X[:20], y[:20])
