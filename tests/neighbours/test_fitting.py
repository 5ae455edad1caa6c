"""Learning from a sample of conditionals, and predictions from nearest rows."""

import numpy as np
import pytest
from numpy.typing import NDArray

from orthogp import GPRegressor
from orthogp.errors import InputError
from orthogp.exact.pairs import merge_rows
from orthogp.exact.process import ExactPosterior
from orthogp.features import MeanPrior
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import RBF, Matern32, Matern52
from orthogp.learning.problem import FitSettings, Start
from orthogp.neighbours.conditionals import terms
from orthogp.neighbours.fitting import NeighbourFitter
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.rows import Rows

MEANS = {
    "none": MeanPrior(),
    "constant": MeanPrior(100.0),
    "linear": MeanPrior(100.0, 100.0, np.full(2, 1.5), np.full(2, 1.5)),
}
KERNEL, NOISE = Matern52(1.2, [0.8, 1.5]), 0.02


def draw(n: int, seed: int = 0, num_dims: int = 2) -> tuple[NDArray, NDArray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 3, (n, num_dims))
    y = np.sin(3 * X[:, 0]) + np.cos(2 * X[:, -1]) + 0.1 * rng.standard_normal(n)
    return X, y[:, None]


def everything(n: int, mean: MeanPrior, **kwargs) -> tuple[NeighbourFitter, ExactPosterior]:
    """A fitter whose conditionals look at all earlier rows, and the exact posterior."""
    X, y = draw(n)
    rows = merge_rows(X, y, None, repeats=True)
    fitter = NeighbourFitter(rows, mean, FitSettings(learn=False), **kwargs)
    fitter._counts = (n - 1,) * 3
    return fitter, ExactPosterior(KERNEL, NOISE, mean, Rows(X, y))


@pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS)
def test_all_neighbours_give_the_exact_likelihood_and_posterior(mean: MeanPrior) -> None:
    fitter, exact = everything(120, mean)
    start = Start(KERNEL, NOISE)
    np.testing.assert_allclose(
        fitter._log_likelihood(start), exact.log_marginal_likelihood, rtol=1e-8
    )
    found = fitter.posterior(start).with_neighbours(120)
    points = np.random.default_rng(1).uniform(-0.5, 3.5, (70, 2))
    mine, theirs = found.predict(points), exact.predict(points)
    np.testing.assert_allclose(mine.mean, theirs.mean, atol=1e-7)
    np.testing.assert_allclose(mine.variance, theirs.variance, rtol=1e-5, atol=1e-9)
    slopes, expected = found.derivative(points, 1), exact.derivative(points, 1)
    np.testing.assert_allclose(slopes.mean, expected.mean, atol=1e-6)
    np.testing.assert_allclose(slopes.variance, expected.variance, rtol=1e-5, atol=1e-8)
    # Up to 40 earlier points are looked at: of 40 points each has all before it.
    few = points[:40]
    np.testing.assert_allclose(found.covariance(few), exact.covariance(few), atol=1e-7)


def test_draws_have_the_posteriors_mean_and_covariance() -> None:
    fitter, exact = everything(60, MEANS["linear"])
    points = np.random.default_rng(1).uniform(0, 3, (12, 2))
    number = 20_000
    drawn = (
        fitter.posterior(Start(KERNEL, NOISE))
        .with_neighbours(60)
        .draw(number, np.random.default_rng(2))(points)[:, :, 0]
    )
    covariance = exact.covariance(points)
    sd = np.sqrt(np.diag(covariance))
    # Of 12 means and 144 covariances, each within 5 of its standard errors: false alarms < 1e-4.
    deviation = (drawn.mean(axis=1) - exact.predict(points).mean[:, 0]) / sd
    assert np.max(np.abs(deviation)) < 5 / np.sqrt(number)
    error = (np.cov(drawn) - covariance) / np.outer(sd, sd)
    assert np.max(np.abs(error)) < 5 * np.sqrt(2 / number)


def test_sampled_terms_estimate_the_mean_term_without_bias() -> None:
    X, y = draw(600)
    rows = merge_rows(X, y, None, repeats=True)
    fitter = NeighbourFitter(rows, MeanPrior(), FitSettings())
    kernel = KERNEL.fix()
    every = fitter.sets(kernel, np.arange(600), 10)
    truth = np.mean(terms(kernel, NOISE, every, 1).values)
    estimates = []
    for _ in range(200):
        sets = fitter.sets(kernel, fitter._positions(50), 10)
        estimates.append(np.mean(terms(kernel, NOISE, sets, 1).values))
    error = np.std(estimates) / np.sqrt(len(estimates))
    # Four standard errors: a false alarm in 16,000.
    assert abs(np.mean(estimates) - truth) < 4 * error


@pytest.mark.slow
def test_standard_errors_are_honest() -> None:
    """The spread of estimates over samples of terms is what the standard errors say."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 400, (6000, 1)), axis=0)
    kernel = Matern32(1.0, 1.0)
    # In twelve pieces that know nothing of each other.
    exact = [
        ExactPosterior(kernel, 1e-6, MeanPrior(), Rows(X[:1], np.zeros((1, 1)))).covariance(part)
        for part in np.split(X, 12)
    ]
    y = np.concatenate(
        [
            np.linalg.cholesky(own + 1e-9 * np.eye(len(own))) @ rng.standard_normal(len(own))
            for own in exact
        ]
    )
    y += 0.3 * rng.standard_normal(len(y))
    rows = merge_rows(X, y[:, None], None, repeats=True)
    found, errors = [], []
    for seed in range(12):
        fitter = NeighbourFitter(rows, MeanPrior(), FitSettings(), seed=seed)
        limits = fitter._limits(kernel, learned_slots(kernel))
        x = np.append(np.zeros(2), np.log(0.09))
        stage = fitter._stage(kernel, 800, 16).at(x)
        best = fitter._search(stage, x, limits, tolerance=1e-3, most=50)
        found.append(best.x)
        errors.append(fitter._errors(stage, best.x, limits)[0])
    ratio = np.std(found, axis=0, ddof=1) / np.mean(errors, axis=0)
    # χ with 11 degrees of freedom: all three between these with probability 0.998.
    assert np.all((ratio > 0.35) & (ratio < 1.9))


def smooth_without_noise(n: int) -> tuple[NDArray, NDArray]:
    X = np.random.default_rng(0).uniform(0, 1, (n, 2))
    return X, np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1])


def test_variances_agree_with_left_out_rows_where_the_kernel_is_too_rough() -> None:
    """The likelihood alone gives sds six times the errors: it is decided by rows far apart."""
    X, f = smooth_without_noise(2500)
    model = GPRegressor("matern32", solver="neighbours").fit(X[:1500], f[:1500])
    mean, sd = model.predict(X[1500:], return_std=True, include_noise=True)
    assert "all variances were multiplied by 0.0" in model.status_
    assert 0.3 < np.mean((f[1500:] - mean) ** 2 / sd**2) < 3
    assert 0.9 < np.mean(abs(f[1500:] - mean) < 1.96 * sd) < 0.99


def test_variances_that_are_fixed_stay() -> None:
    X, f = smooth_without_noise(1500)
    kernel = Matern32(2.0, [1.0, 1.0]).fix("variance")
    model = GPRegressor(kernel, solver="neighbours").fit(X, f)
    assert float(model.kernel_.variance) == pytest.approx(2.0)
    assert "multiplied" not in model.status_


@pytest.mark.slow
def test_heavy_tails_have_more_terms() -> None:
    """10,000 terms of noise with outliers would leave the log noise a standard error of 0.042."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 300, (60_000, 1))
    sd = np.where(rng.random(len(X)) < 0.02, 5.0, 1.0)
    y = 2 * np.sin(X) + (sd * rng.standard_normal(len(X)))[:, None]
    fitter = NeighbourFitter(merge_rows(X, y, None, repeats=True), MeanPrior(), FitSettings())
    learned = fitter.learn(fitter.starts(Matern32(1.0, 1.0)))
    assert learned.standard_errors[-1] < 0.039
    assert learned.start.noise_variance == pytest.approx(1.48, rel=0.12)


@pytest.mark.parametrize(
    "num_dims",
    [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(20, marks=pytest.mark.slow)],
)
def test_learning_predicts_left_out_rows(num_dims: int) -> None:
    X, y = draw(1300, num_dims=num_dims)
    model = GPRegressor("matern52", solver="neighbours", random_state=1).fit(X[:900], y[:900, 0])
    mean, sd = model.predict(X[900:], return_std=True, include_noise=True)
    error = y[900:, 0] - mean
    assert np.sqrt(np.mean(error**2)) < 0.2
    assert 0.88 < np.mean(np.abs(error) < 1.96 * sd) < 0.99
    if num_dims == 1:
        again = GPRegressor("matern52", solver="neighbours", random_state=1)
        np.testing.assert_array_equal(again.fit(X[:900], y[:900, 0]).predict(X[900:]), mean)


@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: (np.repeat(X, 3, axis=0), np.repeat(y, 3) + np.tile([0, 0.01, -0.01], len(y))),
        lambda X, y: (np.column_stack([X, np.ones(len(X))]), y),
        lambda X, y: (X[:8], y[:8]),
        lambda X, y: (X[:2], y[:2]),
        lambda X, y: (X, np.sin(X[:, 0])),
        lambda X, y: (np.round(X, 1), np.round(X, 1)[:, 0]),
        lambda X, y: (X, np.random.default_rng(0).standard_normal(len(y))),
        lambda X, y: (1e-9 * X, 1e9 * y),
        lambda X, y: (X + np.where(X[:, :1] > 1.5, 300.0, 0.0), y),
    ],
    ids=[
        "repeated inputs",
        "a constant column",
        "eight rows",
        "two rows",
        "no noise",
        "a grid without noise",
        "noise only",
        "other units",
        "two clusters",
    ],
)
@pytest.mark.filterwarnings("ignore::orthogp.errors.FitWarning")
def test_unusual_rows_are_fitted(change) -> None:
    X, y = draw(300)
    X, y = change(X, y[:, 0])
    model = GPRegressor("matern32", solver="neighbours").fit(X, y)
    mean, sd = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(sd).all()
    assert np.sqrt(np.mean((mean - y) ** 2)) <= 1.02 * np.std(y)
    assert "sd" in model.status_


def test_weights_that_repeat_rows_equal_repeated_rows() -> None:
    X, y = draw(200)
    counts = np.random.default_rng(0).integers(1, 4, 200)
    settings = {"kernel": RBF(1.0, [1.0, 1.0]), "solver": "neighbours", "random_state": 0}
    weighted = GPRegressor(**settings).fit(X, y[:, 0], counts)
    repeated = GPRegressor(**settings).fit(np.repeat(X, counts, axis=0), np.repeat(y[:, 0], counts))
    points = X[:20] + 0.05
    np.testing.assert_allclose(weighted.predict(points), repeated.predict(points), rtol=1e-5)
    np.testing.assert_allclose(weighted.elbo_, repeated.elbo_, rtol=1e-6)


def test_rows_can_be_added_and_taken_out() -> None:
    X, y = draw(500)
    model = GPRegressor(solver="neighbours").fit(X[:400], y[:400, 0])
    model.partial_fit(X[400:], y[400:, 0])
    assert model.statistics_.rows == 500
    model.forget(X[400:], y[400:, 0])
    assert model.statistics_.rows == 400
    with pytest.raises(InputError, match="3 of 3 rows are not among those that were fitted"):
        model.forget(X[:3] + 0.2, y[:3, 0])
    assert isinstance(model.posterior_, NeighbourPosterior)


def test_integrals_are_refused_with_the_remedy() -> None:
    X, y = draw(100)
    model = GPRegressor(solver="neighbours").fit(X, y[:, 0])
    with pytest.raises(InputError, match='solver="dense"'):
        model.predict_integral([[0.0, 0.0]], [[1.0, 1.0]])


def test_a_model_survives_its_file(tmp_path) -> None:
    X, y = draw(300, num_dims=5)
    targets = np.column_stack([y[:, 0], -2 * y[:, 0] + 5])
    model = GPRegressor(solver="neighbours", mean="linear").fit(X, targets)
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    assert loaded.engine_ == "neighbours"
    for mine, theirs in zip(
        model.predict(X[:30] + 0.1, return_std=True),
        loaded.predict(X[:30] + 0.1, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert loaded.summary() == model.summary()
