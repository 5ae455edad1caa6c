"""Effects of covariates on a Gaussian process, and the share of places without rows."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from orthogp import DriftRegressor, GPClassifier, GPRegressor, InputError, RowGaps
from orthogp.kernels import Matern12, Matern32


def brute_share(rows, bandwidth, places, own):
    """Return the share without rows by sums over all pairs, and the density that is plenty."""
    lower, upper = rows.min(axis=0), rows.max(axis=0)

    def density(at, left_out):
        weights = np.prod(norm.pdf((at[:, None] - rows) / bandwidth) / bandwidth, axis=-1)
        ends = [norm.cdf((edge - at) / bandwidth) for edge in (lower, upper)]
        total = weights.sum(axis=1) - left_out * np.prod(norm.pdf(0.0) / bandwidth)
        return total / np.prod(ends[1] - ends[0], axis=1)

    plenty = np.quantile(density(rows, 1), 0.9)
    return np.clip(1 - density(places, own) / plenty, 0, 1)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_the_share_without_rows_is_the_sum_over_all_pairs(num_dims):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 3, (400, num_dims)) * [1.0, 30.0, 0.01][:num_dims]
    X = X[(X[:, 0] < 0.5) | (X[:, 0] > 1.2)]
    places = X.min(axis=0) + rng.uniform(0, 1, (50, num_dims)) * np.ptp(X, axis=0)
    for share in RowGaps((1.0, 3.0)).of(X):
        expected = brute_share(X, share.bandwidth, places, 0)
        np.testing.assert_allclose(share(places)[:, 0], expected, atol=2e-3)
        expected = brute_share(X, share.bandwidth, X, 1)
        np.testing.assert_allclose(share(X)[:, 0], expected, atol=2e-3)


def test_the_share_is_one_far_inside_a_gap_and_near_zero_among_rows_and_at_the_border():
    side = np.arange(60.0)
    X = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    X = X[np.any(np.abs(X - 20) > 10, axis=1)]
    (share,) = RowGaps((2.0,)).of(X)
    places = np.array([[20.0, 20.0], [45.5, 45.5], [0.0, 40.0], [59.0, 59.0], [-5.0, 70.0]])
    found = share(places)[:, 0]
    assert found[0] > 0.99
    assert np.all(found[1:] < 0.1)


def test_the_share_at_a_row_is_that_beside_it_were_it_not_there():
    side = np.arange(20.0)
    X = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    X = X[np.any(np.abs(X - 6) > 2, axis=1)]
    i = int(np.flatnonzero(np.all(X == [9, 6], axis=1))[0])
    with_row, without = (RowGaps((2.0,)).of(own)[0] for own in (X, np.delete(X, i, axis=0)))
    assert with_row(X[i : i + 1])[0, 0] == pytest.approx(without(X[i : i + 1])[0, 0], abs=0.01)
    assert with_row(X[i : i + 1] + 1e-9)[0, 0] < with_row(X[i : i + 1])[0, 0] - 0.02


def test_predictions_at_the_rows_are_the_fitted_ones():
    X, y, _, _ = hidden_for_a_reason()
    regressor = GPRegressor(Matern12(6.0, [8.0, 8.0]), noise_variance=0.01, learn=False)
    model = DriftRegressor(regressor, RowGaps((1.0,))).fit(X, y)
    residual = y - model.predict(X)
    assert abs(residual.mean()) < 0.005
    assert np.sqrt(np.mean(residual**2)) < 0.1


def test_rows_of_weight_zero_are_as_good_as_absent():
    X, y, hidden, truth = hidden_for_a_reason()
    settings = {"noise_variance": 0.02, "learn": False}
    regressor = GPRegressor(Matern12(6.0, [8.0, 8.0]), **settings)
    absent = DriftRegressor(regressor, RowGaps((2.0,))).fit(X, y)
    both, values = np.concatenate([X, hidden]), np.concatenate([y, truth])
    weights = np.repeat([1.0, 0.0], [len(X), len(hidden)])
    unused = DriftRegressor(regressor, RowGaps((2.0,))).fit(both, values, weights)
    assert unused.effects_.values[0] == pytest.approx(absent.effects_.values[0], rel=0.02)


def drifting(seed=0, num_rows=350, effect=4.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, 2))
    z = np.column_stack([np.sin(40 * X[:, 0] * X[:, 1]), np.cos(23 * X[:, 1])])
    f = np.sin(3 * X[:, 0]) + X[:, 1] ** 2
    return X, 2.0 + f + z @ [effect, -0.5] + 0.1 * rng.standard_normal(num_rows)


def covariates(X):
    return np.column_stack([np.sin(40 * X[:, 0] * X[:, 1]), np.cos(23 * X[:, 1])])


KERNEL, NOISE = Matern32(2.0, [0.6, 0.8]), 0.05


def _matern32(lag):
    r = np.sqrt(3) * np.linalg.norm(lag / [0.6, 0.8], axis=-1)
    return 2.0 * (1 + r) * np.exp(-r)


def test_standard_errors_cover_the_true_effect():
    # 30 data sets, 95 % intervals: fewer than 24 hits have a probability of 1e-3.
    hits = 0
    for seed in range(30):
        X, y = drifting(seed, num_rows=120)
        regressor = GPRegressor(
            KERNEL, noise_variance=0.01, learn=False, features="exact", mean="constant"
        )
        effects = DriftRegressor(regressor, covariates).fit(X, y).effects_
        hits += abs(effects.values[1] + 0.5) < 1.96 * effects.standard_errors[1]
    assert hits >= 24


def test_without_a_mean_function_the_covariates_are_not_centred():
    X, y = drifting()
    regressor = GPRegressor(KERNEL, noise_variance=NOISE, learn=False, features="exact", mean=None)
    model = DriftRegressor(regressor, lambda X: 1 + 0.01 * covariates(X)[:, :1]).fit(X, y)
    K = _matern32(X[:, None] - X) + NOISE * np.eye(len(X))
    z = 1 + 0.01 * covariates(X)[:, 0]
    solved = np.linalg.solve(K, z)
    assert model.effects_.values[0] == pytest.approx(solved @ y / (solved @ z), rel=1e-3)


def hidden_for_a_reason(seed=0):
    """Return a grid whose higher places are missing more often, and those that are missing."""
    rng = np.random.default_rng(seed)
    side = np.arange(48.0)
    X = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    waves, phases = rng.standard_normal((2, 300)) * 0.25, rng.uniform(0, 2 * np.pi, 300)
    f = np.cos(X @ waves + phases).sum(axis=1) * np.sqrt(2 / 300)
    missing = f + 0.2 * rng.standard_normal(len(X)) > 0.6
    y = 3 * f + 0.1 * rng.standard_normal(len(X))
    return X[~missing], y[~missing], X[missing], y[missing]


@pytest.mark.slow
def test_rows_missing_for_a_reason_are_predicted_better_with_the_share_without_rows():
    X, y, hidden, truth = hidden_for_a_reason()
    regressor = GPRegressor(Matern12(6.0, [8.0, 8.0]), noise_variance=0.02)
    plain = GPRegressor(Matern12(6.0, [8.0, 8.0]), noise_variance=0.02).fit(X, y)
    model = DriftRegressor(regressor, RowGaps()).fit(X, y)
    assert model.effects_.values[0] > 5 * model.effects_.standard_errors[0]
    assert model.effects_.evidence_gain > 12
    errors = [np.sqrt(np.mean((own.predict(hidden) - truth) ** 2)) for own in (plain, model)]
    assert errors[1] < 0.8 * errors[0]
    assert "share without rows" in model.summary()
    assert "\n" in model.summary()


@pytest.mark.slow
def test_rows_missing_at_random_have_no_effect():
    # Over seeds the largest of five standardised effects exceeds 4 with a probability below 3e-4.
    rng = np.random.default_rng(3)
    X, y, hidden, truth = hidden_for_a_reason(3)
    X, y = np.concatenate([X, hidden]), np.concatenate([y, truth])
    keep = np.all(np.abs(X - rng.uniform(10, 38, 2)) > 6, axis=1) | (rng.uniform(size=len(X)) < 0.3)
    regressor = GPRegressor(Matern32(9.0, [6.0, 6.0]), noise_variance=0.02)
    effects = DriftRegressor(regressor, RowGaps()).fit(X[keep], y[keep]).effects_
    assert abs(effects.values[0]) < 4 * effects.standard_errors[0]


@pytest.mark.slow
def test_models_by_name_learn_and_survive_pickling():
    X, y = drifting(num_rows=250)
    model = DriftRegressor(GPRegressor("matern32"), covariates).fit(X, y)
    assert model.effects_.values[0] == pytest.approx(4.0, abs=0.3)
    share = DriftRegressor(GPRegressor("matern32", max_seconds=5), RowGaps((2.0, 4.0))).fit(X, y)
    again = pickle.loads(pickle.dumps(share))
    np.testing.assert_array_equal(again.predict(X[:5]), share.predict(X[:5]))


def test_gaps_are_looked_for_in_the_columns_of_the_kernel():
    X, y, hidden, _ = hidden_for_a_reason()
    rng = np.random.default_rng(0)
    kernel = Matern12(6.0, [8.0, 8.0])
    settings = {"noise_variance": 0.02, "learn": False}
    plain = DriftRegressor(GPRegressor(kernel, **settings), RowGaps((2.0,))).fit(X, y)
    wide, there = (
        np.c_[np.ones(len(at)), at[:, 1], rng.normal(size=len(at)), at[:, 0]] for at in (X, hidden)
    )
    frame = pd.DataFrame(wide, columns=["constant", "north", "noise", "east"])
    among = DriftRegressor(GPRegressor(kernel.on(3, 1), **settings), RowGaps((2.0,))).fit(frame, y)
    assert among.columns_.tolist() == [1, 3]
    np.testing.assert_allclose(among.effects_.values, plain.effects_.values, rtol=1e-3)
    there = pd.DataFrame(there, columns=frame.columns)
    # Of equal masses, other modes may be left out where the columns are in another order.
    np.testing.assert_allclose(among.predict(there), plain.predict(hidden), atol=0.05)


@pytest.mark.parametrize(
    ("drift", "message"),
    [
        (lambda X: X[:3], "one row of covariates for each"),
        (lambda X: np.full(len(X), 0.1), "same in all rows"),
        (lambda X: np.c_[X[:, 0] ** 2, X[:, 0] ** 2], "are collinear"),
        (lambda X: np.where(X[:, :1] > 0.5, np.nan, 1.0), "drift"),
    ],
)
def test_bad_covariates_are_refused_in_one_sentence(drift, message):
    X, y = drifting(num_rows=60)
    with pytest.raises(InputError, match=message):
        DriftRegressor(GPRegressor(KERNEL, learn=False, noise_variance=0.1), drift).fit(X, y)


def test_other_models_targets_and_bandwidths_are_refused():
    X, y = drifting(num_rows=60)
    with pytest.raises(InputError, match="needs a GPRegressor, got GPClassifier"):
        DriftRegressor(GPClassifier(), covariates).fit(X, y)  # pyright: ignore
    with pytest.raises(InputError, match="RowGaps or a function of X"):
        DriftRegressor(GPRegressor(), np.ones((60, 1))).fit(X, y)  # pyright: ignore
    with pytest.raises(InputError, match="one target"):
        DriftRegressor(GPRegressor(), covariates).fit(X, np.c_[y, y])
    with pytest.raises(InputError, match="bandwidths must be positive"):
        RowGaps((1.0, -2.0))
    with pytest.raises(InputError, match="column 1 is constant"):
        RowGaps().of(X * [1.0, 0.0])
    with pytest.raises(InputError, match="up to 3 columns"):
        RowGaps().of(np.c_[X, X])
    with pytest.raises(InputError, match="no gaps that their neighbourhoods"):
        RowGaps((0.01,)).of(X)
    with pytest.raises(InputError, match="no gaps that their neighbourhoods"):
        RowGaps((2.0,)).of(np.linspace(0, 1, 200)[:, None])
    assert repr(RowGaps((2.0,))) == "RowGaps((2.0,))"
