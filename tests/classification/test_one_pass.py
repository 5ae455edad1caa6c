"""Classifiers from sums: against dense rows, and all that sums allow."""

import numpy as np
import pytest
from scipy.special import expit

from orthogp import GPClassifier
from orthogp.errors import InputError, PrecisionError
from orthogp.inference.logistic import expected_log_logistic
from orthogp.kernels import RBF
from tests import oracles

GRID = np.linspace(0, 1, 41)[:, None]


def labels(num_rows, num_classes=2, seed=0):
    """Rows in [0, 1], and labels whose log odds are waves."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, 1))
    odds = 2 * np.sin(6 * X + 2 * np.pi * np.arange(num_classes) / num_classes)
    drawn = rng.gumbel(size=odds.shape) + odds
    return X, np.argmax(drawn, axis=1)


def dense_posterior(X, y, X_new, variance, lengthscale):
    """Mean and variance of f by natural-gradient steps over all rows, with dense covariances."""

    def covariance(A, B):
        return 100.0 + oracles.gram_matrix(lambda x: oracles.rbf(x, variance, lengthscale), A, B)

    K, signs = covariance(X, X), 2.0 * y - 1
    mean, spread = np.zeros(len(X)), np.diag(K).copy()
    tau, nu = np.full(len(X), 0.25), signs / 2
    for _ in range(200):
        gain = np.linalg.solve(K + np.diag(1 / tau), K).T
        mean, spread = K @ nu - gain @ (K @ nu), np.diag(K) - np.sum(gain * K, axis=1)
        found = expected_log_logistic(signs * mean, spread)
        tau = 0.5 * tau + 0.5 * found.curvature
        nu = 0.5 * nu + 0.5 * (signs * found.slope + found.curvature * mean)
    cross = covariance(X_new, X)
    gain = np.linalg.solve(K + np.diag(1 / tau), cross.T).T
    left = np.diag(covariance(X_new, X_new)) - np.sum(gain * cross, axis=1)
    return cross @ nu - gain @ (K @ nu), left


@pytest.fixture(scope="module")
def fitted():
    X, y = labels(1200)
    return X, y, GPClassifier("rbf", n_jobs=1).fit(X, y)


def test_posterior_is_that_of_dense_rows():
    X, y = labels(150)
    kernel = RBF(6.0, 0.2)
    model = GPClassifier(kernel, learn=False, wrap_tolerance=1e-10, n_jobs=1).fit(X, y)
    mean, std = model.predict_latent(GRID, return_std=True)
    dense_mean, dense_variance = dense_posterior(X, y, GRID, 6.0, 0.2)
    np.testing.assert_allclose(mean, dense_mean, atol=1e-5)
    np.testing.assert_allclose(std**2, dense_variance, rtol=1e-5)


def test_two_classes_are_learned_in_one_pass(fitted):
    model = fitted[2]
    assert model.num_passes_ == 1
    odds = 2 * np.sin(6 * GRID[:, 0]) - 2 * np.sin(6 * GRID[:, 0] + np.pi)
    assert np.mean(np.abs(model.predict_proba(GRID)[:, 1] - expit(-odds))) < 0.04


def test_sums_alone_give_the_same_model(fitted):
    model = fitted[2]
    other = GPClassifier("rbf", n_jobs=1).fit_sketch(model._sketch)
    np.testing.assert_allclose(other.predict_proba(GRID), model.predict_proba(GRID), atol=1e-6)
    named = GPClassifier("rbf", n_jobs=1).fit_sketch(model._sketch, classes=["no", "yes"])
    assert set(named.predict(GRID)) == {"no", "yes"}


def test_rows_added_and_forgotten_are_as_all_at_once(fitted, tmp_path):
    X, y, model = fitted
    part = GPClassifier("rbf", domain=(0.0, 1.0), n_jobs=1).fit(X[:900], y[:900])
    path = str(tmp_path / "model.orthogp")
    part.save(path)
    added = GPClassifier.load(path).partial_fit(X[900:], y[900:])
    assert added.num_rows_ == 1200
    np.testing.assert_allclose(added.predict_proba(GRID), model.predict_proba(GRID), atol=0.01)
    added.forget(X[900:], y[900:])
    assert added.num_rows_ == 900
    np.testing.assert_allclose(added.predict_proba(GRID), part.predict_proba(GRID), atol=0.01)


def test_first_rows_may_lack_a_class():
    X, y = labels(600, 3)
    early = y != 2
    model = GPClassifier("rbf", domain=(0.0, 1.0), n_jobs=1)
    model.partial_fit(X[early], y[early], classes=[0, 1, 2])
    assert model.predict_proba(GRID)[:, 2].max() < 0.05
    model.partial_fit(X[~early], y[~early])
    whole = GPClassifier("rbf", domain=(0.0, 1.0), n_jobs=1).fit(X, y)
    assert model.num_passes_ == 1
    np.testing.assert_allclose(model.predict_proba(GRID), whole.predict_proba(GRID), atol=0.03)


def test_rows_that_were_never_fitted_are_not_forgotten(fitted):
    X, y, model = fitted
    before = model.predict_proba(GRID)
    with pytest.raises(InputError, match="Only rows that were fitted"):
        model.forget(X[:50] + 2.0, y[:50])
    with pytest.raises(InputError, match="label 7, which is none of the classes"):
        model.partial_fit(X[:2], [0, 7])
    np.testing.assert_array_equal(model.predict_proba(GRID), before)


def test_rows_of_files_beyond_memory_are_summed(fitted, tmp_path):
    X, y, model = fitted
    path = tmp_path / "rows.csv"
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header="x,y", comments="")
    streamed = GPClassifier("rbf", n_jobs=1).fit_files(path, "y", ["x"], memory=1000.0)
    assert streamed.num_passes_ == 1
    np.testing.assert_allclose(streamed.predict_proba(GRID), model.predict_proba(GRID), atol=1e-3)
    at_once = GPClassifier("rbf", n_jobs=1).fit_files(path, "y", ["x"])
    np.testing.assert_allclose(at_once.predict_proba(GRID), model.predict_proba(GRID), atol=1e-6)
    np.savetxt(path, np.column_stack([X, y + 1]), delimiter=",", header="x,y", comments="")
    with pytest.raises(InputError, match="0 and 1"):
        GPClassifier("rbf", n_jobs=1).fit_files(path, "y", ["x"], memory=1000.0)


@pytest.mark.parametrize("number", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_probabilities_from_few_rows_without_signal_are_calibrated(number):
    """The log loss of new labels is that of no knowledge, log k, and little more."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 1, (20, 1)), np.arange(20) % number
    p = GPClassifier(n_jobs=1).fit(X, y).predict_proba(GRID)
    assert np.all(p > 1e-3)
    assert -np.mean(np.log(p)) < np.log(number) + 0.3


def test_classes_without_overlap_are_told_apart():
    X = np.linspace(0, 1, 60)[:, None]
    model = GPClassifier("rbf", n_jobs=1).fit(X, X[:, 0] > 0.5)
    p = model.predict_proba(GRID)[:, 1]
    assert np.all(np.isfinite(p))
    assert p[:15].max() < 0.1
    assert p[-15:].min() > 0.9


def test_a_class_of_three_rows_is_rare():
    X = np.random.default_rng(0).uniform(0, 1, (300, 1))
    p = GPClassifier(n_jobs=1).fit(X, np.arange(300) < 3).predict_proba(GRID)[:, 1]
    np.testing.assert_allclose(p, 0.01, atol=0.03)


def test_rough_classes_of_few_rows_are_learned_from_the_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (500, 2))
    y = np.floor(4 * X).sum(axis=1) % 2
    model = GPClassifier("rbf", max_features=121, n_jobs=1).fit(X, y)
    assert model.num_passes_ > 1
    assert model.score(X, y) > 0.85
    # The sums are kept, but do not reach far enough for that function.
    with pytest.raises(PrecisionError, match="do not reach far enough"):
        model.partial_fit(X[:10], y[:10])


def test_models_without_sums_say_so():
    X, y = labels(60)
    model = GPClassifier(RBF(5.0, 0.3), learn=False, mean="linear", n_jobs=1).fit(X, y)
    with pytest.raises(InputError, match="fit all rows at once"):
        model.partial_fit(X, y)
