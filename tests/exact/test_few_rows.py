"""Few rows: hyperparameters that evidence alone would be too sure of."""

import numpy as np
import pytest
from scipy.stats import t

from orthogp import GPRegressor
from orthogp.exact import few_rows
from orthogp.kernels import LogNormal, Matern32, Noise

# Random data sets by which bands are judged; the standard deviation of their mean coverage is at
# most 0.3/√40 = 0.05, as that of single ones was seen to be below 0.3.
DATA_SETS = 40
BELOW = 3.5 * 0.05


def test_widened_bands_are_those_of_student():
    """With shape known, the largest likelihood of the scale gives bands that t makes wider."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((200_000, 4))
    # The largest likelihood of the variance about a mean that is integrated out.
    sd = np.sqrt(few_rows.widening(4, 1) * y.var(axis=1, ddof=1) * (1 + 1 / 4))
    new = rng.standard_normal(len(y))
    covered = np.mean(np.abs(new - y.mean(axis=1)) < 1.959964 * sd)
    # Within four standard errors.
    assert covered == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / len(y)))
    assert few_rows.widening(few_rows.MANY, 1) == 1
    assert t.ppf(0.975, few_rows.MANY - 1) < 1.03 * 1.959964


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_dims"), [(4, 1), (7, 2), (12, 5), (30, 3)])
def test_bands_of_few_rows_cover_new_ones(num_rows, num_dims):
    shares = []
    for seed in range(DATA_SETS):
        rng = np.random.default_rng([num_rows, num_dims, seed])
        X = rng.uniform(0, 1, (num_rows + 50, num_dims))
        waves = rng.normal(0, 3, (num_dims, 4)) / np.sqrt(num_dims)
        f = np.cos(X @ waves + rng.uniform(0, 2 * np.pi, 4)) @ rng.normal(0, 1, 4)
        y = f + rng.choice([0.0, 0.1, 1.0]) * rng.standard_normal(len(f))
        model = GPRegressor().fit(X[:num_rows], y[:num_rows])
        mean, sd = model.predict(X[num_rows:], return_std=True, include_noise=True)
        shares.append(np.mean(np.abs(y[num_rows:] - mean) < 1.645 * sd))
    assert np.std(shares) < 0.3
    assert np.mean(shares) > 0.9 - BELOW


def test_what_a_user_says_is_not_believed_otherwise():
    """A kernel, a noise variance or a prior of the user: the evidence and that, nothing else."""
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, (12, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(12)
    few = GPRegressor().fit(X, y)
    given = GPRegressor(Matern32()).fit(X, y)
    told = GPRegressor(noise_variance=Noise().prior(LogNormal(1e-2, 1.0))).fit(X, y)
    assert given.certificate_.lower > few.certificate_.lower + 0.1
    # The largest evidence there is: no other hyperparameters nearby do better.
    for factor in (0.95, 1.05):
        kernel = given.kernel_.scaled(factor)
        other = GPRegressor(kernel, noise_variance=given.noise_variance_, learn=False).fit(X, y)
        assert other.certificate_.lower < given.certificate_.lower
    assert told.certificate_.lower > few.certificate_.lower


def test_the_prior_of_few_rows_knows_no_units():
    rng = np.random.default_rng(2)
    X = rng.uniform(0, 1, (9, 2))
    y = np.sin(6 * X[:, 0]) + X[:, 1]
    units = np.array([1e-30, 1e40])
    mean, sd = GPRegressor().fit(X, y).predict(X, return_std=True)
    scaled = GPRegressor().fit(X * units, 1e9 * y).predict(X * units, return_std=True)
    np.testing.assert_allclose(scaled[0], 1e9 * mean, rtol=1e-6, atol=1e3)
    np.testing.assert_allclose(scaled[1], 1e9 * sd, rtol=1e-5)
