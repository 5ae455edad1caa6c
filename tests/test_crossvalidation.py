"""Held-out scores from sums, against models fitted to the other rows."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, multivariate_normal, poisson

from orthogp import GPRegressor, InputError, cross_validate
from orthogp.crossvalidation import _labels
from orthogp.engines import begin_sketch
from orthogp.kernels import RBF, Noise
from orthogp.storage import load_sketch, save_sketch
from orthogp.validation import check_rows, choose_model

RNG = np.random.default_rng(8)
X = RNG.uniform(0, 10, (150, 1))
Y = 3 + 2 * np.sin(2 * X[:, 0]) + 0.3 * RNG.standard_normal(150)
SMOOTH = RBF(2.0, 1.0)
DENSE = GPRegressor(solver="dense", tolerance=0.01)


def test_joint_score_from_sums_is_the_density_of_the_held_out_rows() -> None:
    """Against the multivariate normal density of each fold by an exact process."""
    labels = np.arange(150) % 3
    found = cross_validate(X, Y, [SMOOTH], folds=labels, estimator=DENSE)
    assert found.joint is not None
    for j in range(3):
        here = labels == j
        learned = GPRegressor(SMOOTH, solver="dense", tolerance=0.01).fit(X[~here], Y[~here])
        exact = GPRegressor(
            learned.kernel_,
            noise_variance=Noise(learned.noise_variance_).fix(),
            learn=False,
            solver="exact",
        ).fit(X[~here], Y[~here])
        mean, covariance = exact.predict(X[here], return_cov=True, include_noise=True)
        expected = multivariate_normal(mean, covariance).logpdf(Y[here])
        # Hyperparameters that learning leaves open by 1e-4 nats, on other lattices.
        assert found.joint[0, j] == pytest.approx(expected, abs=0.05)


def test_the_better_kernel_has_the_better_score() -> None:
    found = cross_validate(X, Y, [SMOOTH, RBF(2.0, 0.05).fix()], folds=3, estimator=DENSE)
    gains, errors = found.compared_with(0)
    assert gains[0] == errors[0] == 0
    # A kernel that is all but noise loses most of a nat for each row.
    assert gains[1] < -0.5
    assert np.all(found.standard_errors > 0)
    assert "best" in str(found)


def test_engines_that_keep_rows_are_fitted_again() -> None:
    exact = GPRegressor(solver="exact")
    found = cross_validate(X, Y, [SMOOTH], folds=3, estimator=exact)
    sums = cross_validate(X, Y, [SMOOTH], folds=3, estimator=DENSE)
    assert found.joint is None
    assert found.pointwise is not None
    assert sums.pointwise is not None
    np.testing.assert_allclose(found.pointwise, sums.pointwise, atol=0.3)


def test_sketches_from_files_give_the_same_scores(tmp_path: Path) -> None:
    estimator = GPRegressor(SMOOTH, solver="dense", tolerance=0.01)
    rows = check_rows(GPRegressor(), X, Y, None, reset=True)
    model = choose_model("matern32", "auto", 1)
    labels = _labels(X, 3, blocks=False)
    whole = begin_sketch(estimator, rows, model)
    sketches = []
    for j in range(3):
        save_sketch(tmp_path / f"{j}.orthogp", whole.alone(rows.part(labels == j), 1))
        sketches.append(load_sketch(tmp_path / f"{j}.orthogp")[0])
    found = cross_validate(sketches, kernels=[SMOOTH], estimator=DENSE)
    expected = cross_validate(X, Y, [SMOOTH], folds=3, estimator=DENSE)
    assert found.pointwise is None
    np.testing.assert_allclose(found.scores, expected.scores, atol=0.02)


def test_blocks_are_neighbourhoods_of_equal_size() -> None:
    labels = _labels(X, 5, blocks=True)
    assert np.bincount(labels).tolist() == [30] * 5
    edges = sorted((X[labels == j].min(), X[labels == j].max()) for j in range(5))
    assert all(one[1] < other[0] for one, other in itertools.pairwise(edges))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"folds": 1}, "folds must be from 2"),
        ({"folds": [0, 1]}, "one number for each"),
        ({"kernels": []}, "at least one kernel"),
    ],
)
def test_what_makes_no_folds_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cross_validate(X, Y, **settings)


@pytest.mark.parametrize("likelihood", ["poisson", "binomial"])
def test_counts_are_scored_by_their_own_density(likelihood: str) -> None:
    """Against the average of the density over draws of f: 20,000 leave it 0.01 nats or less."""
    rng = np.random.default_rng(1)
    f, size = np.sin(2 * X[:, 0]), rng.integers(1, 5, 150)
    if likelihood == "poisson":
        y, name = rng.poisson(size * np.exp(f)), "exposure"
    else:
        y, name = rng.binomial(size, 1 / (1 + np.exp(-f))), "trials"
    labels = np.arange(150) % 3
    estimator = GPRegressor(solver="exact", likelihood=likelihood, learn=False)
    found = cross_validate(X, y, [SMOOTH], folds=labels, estimator=estimator, **{name: size})
    here, kernel = labels == 1, SMOOTH
    model = GPRegressor(kernel, solver="exact", likelihood=likelihood, learn=False)
    model.fit(X[~here], y[~here], **{name: size[~here]})
    mean, sd = model.predict_latent(X[here], return_std=True)
    drawn = mean + sd * rng.standard_normal((20_000, len(mean)))
    if likelihood == "poisson":
        densities = poisson.pmf(y[here], size[here] * np.exp(drawn))
    else:
        densities = binom.pmf(y[here], size[here], 1 / (1 + np.exp(-drawn)))
    assert found.pointwise is not None
    assert found.pointwise[0, 1] == pytest.approx(np.log(densities.mean(axis=0)).sum(), abs=0.3)


def test_sums_of_counts_are_refused_in_one_sentence() -> None:
    counts = GPRegressor(SMOOTH, likelihood="poisson", learn=False).fit(X, np.ones(150))
    with pytest.raises(InputError, match="Gaussian noise only"):
        cross_validate(
            [counts._sketch, counts._sketch], estimator=GPRegressor(likelihood="poisson")
        )
