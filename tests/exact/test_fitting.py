"""Exact fits: they end as high as scikit-learn's, and take whatever rows there are."""

import warnings

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from orthogp.errors import InputError
from orthogp.exact.fitting import MOST_ROWS, ExactFitter, choose_starts
from orthogp.features import MeanPrior
from orthogp.kernels import (
    KERNEL_NAMES,
    RBF,
    Kernel,
    Matern32,
    QuasiPeriodic,
    Rotated,
    additive,
)
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.learning.starts import starts_for_kernel, starts_for_rows
from orthogp.precision import BlasThreads, one_thread
from orthogp.rows import Rows
from tests import oracles
from tests.oracles import Array
from tests.problems import NO_MEAN


def fit(
    kernel: Kernel,
    X: Array,
    y: Array,
    weights: Array | None = None,
    *,
    mean: MeanPrior = NO_MEAN,
    starts: list[Start] | None = None,
    threads: int = 1,
    **settings: bool | float,
) -> Fit:
    X = np.asarray(X, dtype=float).reshape(len(X), -1)
    targets = np.asarray(y, dtype=float).reshape(len(X), -1)
    fitter = ExactFitter(
        Rows(X, targets, weights),
        mean,
        FitSettings(**settings),  # type: ignore[arg-type]
        BlasThreads(threads),
    )
    return fitter.fit(starts_for_rows(kernel, X, targets) if starts is None else starts)


def standardised(y: Array) -> Array:
    return (y - y.mean(axis=0)) / y.std(axis=0)


def draw(k, X: Array, noise: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """A function drawn with a covariance of scaled distances, and noisy values of it."""
    K = k(cdist(X, X))
    f = np.linalg.cholesky(K + 1e-10 * np.eye(len(X))) @ rng.standard_normal(len(X))
    return f, f + np.sqrt(noise) * rng.standard_normal(len(X))


def matern32(r: Array) -> Array:
    return (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)


# ---------------------------------------------------------------------- against scikit-learn

SMOOTHNESSES = {"rbf": np.inf, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
PROBLEMS = [
    ("rbf", 60, 1, 1e-2),
    ("rbf", 110, 5, 1e-3),
    ("matern12", 80, 2, 0.1),
    ("matern12", 70, 6, 1e-4),
    ("matern32", 120, 3, 0.3),
    ("matern32", 60, 8, 1e-2),
    ("matern52", 90, 4, 1e-3),
    ("matern52", 50, 7, 0.5),
    ("rational-quadratic", 100, 1, 1e-3),
    ("rational-quadratic", 70, 1, 0.2),
]


@pytest.mark.parametrize(("name", "num_rows", "num_dims", "noise"), PROBLEMS)
def test_likelihood_is_as_high_as_scikit_learn_s(
    name: str, num_rows: int, num_dims: int, noise: float
) -> None:
    rng = np.random.default_rng(num_rows + num_dims)
    X = standardised(rng.uniform(-1, 1, (num_rows, num_dims)))
    # Every third column does not matter.
    length = np.exp(rng.uniform(-0.5, 1.0, num_dims)) * np.sqrt(num_dims)
    relevant = np.arange(num_dims) % 3 != 2
    y = standardised(draw(matern32, (X / length)[:, relevant], noise, rng)[1])
    found = fit(KERNEL_NAMES[name](), X, y)
    if name in SMOOTHNESSES:
        shape = sk.Matern(np.ones(num_dims), (1e-3, 1e4), nu=SMOOTHNESSES[name])
    else:
        shape = sk.RationalQuadratic(1.0, 1.0, (1e-3, 1e4), (0.1, 1e4))
    kernel = sk.ConstantKernel(1.0, (1e-6, 1e5)) * shape + sk.WhiteKernel(0.1, (1e-8, 1e2))
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=5, random_state=0)
    with one_thread(), warnings.catch_warnings():
        # Of bounds that are reached, and searches that end early.
        warnings.simplefilter("ignore")
        model.fit(X, y)
    assert found.elbo.total > model.log_marginal_likelihood_value_ - 0.01
    assert found.converged


def test_reported_likelihood_is_that_of_the_kernel() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    found = fit(Matern32(), X, y := standardised(X[:, 0] + 0.3 * rng.standard_normal(60)))
    own = found.kernel.parameters()
    K = oracles.matern32(X[:, None] - X, own["variance"], own["lengthscale"])
    expected = oracles.log_marginal_likelihood(K, y, found.noise_variance)
    assert found.elbo.total == pytest.approx(expected, rel=1e-9)
    assert found.certificate.gap == 0
    assert found.num_features == 60
    assert found.period is None


# ---------------------------------------------------------------------- parts of the rows


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_dims"), [(700, 2), (1400, 1)])
def test_search_on_parts_ends_where_one_on_all_rows_does(num_rows: int, num_dims: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (num_rows, num_dims))
    y = standardised(draw(matern32, 4 * X, 0.1, rng)[1])
    found = fit(Matern32(), X, y, mean=MeanPrior(100.0), threads=2)
    again = fit(
        Matern32(),
        X,
        y,
        mean=MeanPrior(100.0),
        starts=[Start(found.kernel.scaled(1.5), 1.5 * found.noise_variance)],
    )
    assert found.elbo.total == pytest.approx(again.elbo.total, abs=0.03)
    assert found.converged


def test_short_lengthscales_are_seen_in_parts_of_the_rows() -> None:
    # The rows of a random part would all be apart.
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (1300, 2))
    f, y = draw(matern32, X / 0.04, 0.1, rng)
    found = fit(Matern32(), X, standardised(y))
    np.testing.assert_allclose(found.kernel.parameters()["lengthscale"], 0.04, rtol=0.35)
    assert found.noise_variance == pytest.approx(0.1, abs=0.07)
    assert np.corrcoef(found.posterior(None, 1).predict(X).mean[:, 0], f)[0, 1] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matern12", "matern32"])
@pytest.mark.parametrize("num_dims", [1, 3])
def test_intervals_cover_what_they_say(name: str, num_dims: int) -> None:
    rng = np.random.default_rng(num_dims)
    covariance = {"matern12": lambda r: np.exp(-r), "matern32": matern32}[name]
    X = rng.uniform(0, 1, (2500, num_dims))
    y = draw(covariance, X / 0.3, 0.1, rng)[1]
    shift, scale = y[:2000].mean(), y[:2000].std()
    found = fit(KERNEL_NAMES[name](), X[:2000], (y[:2000] - shift) / scale, mean=MeanPrior(100.0))
    predicted = found.posterior(None, 1).predict(X[2000:])
    away = (y[2000:] - shift) / scale - predicted.mean[:, 0]
    covered = np.abs(away) < 1.96 * np.sqrt(predicted.variance + found.noise_variance)
    # Independent noise: one in a thousand is farther than 3.3 · 0.0097 from 0.95.
    assert np.mean(covered) == pytest.approx(0.95, abs=0.035)


# ---------------------------------------------------------------------- all kinds of rows


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "rational-quadratic"])
@pytest.mark.parametrize("num_rows", [2, 3, 5, 40])
def test_a_few_rows_without_noise(name: str, num_rows: int) -> None:
    x = np.linspace(0, 1, num_rows)
    found = fit(KERNEL_NAMES[name](), x, np.sin(6 * x) + x**2)
    predicted = found.posterior(None, 1).predict(np.linspace(0, 1, 50)[:, None])
    assert np.all(np.isfinite(predicted.mean))
    assert np.all(predicted.variance > 0)
    if num_rows == 40:
        truth = np.sin(6 * np.linspace(0, 1, 50)) + np.linspace(0, 1, 50) ** 2
        np.testing.assert_allclose(predicted.mean[:, 0], truth, atol=0.02)
        assert found.noise_variance < 1e-7


def test_smooth_functions_without_noise_are_interpolated_to_many_digits() -> None:
    rng = np.random.default_rng(0)
    X, new = rng.uniform(size=(300, 2)), rng.uniform(0.05, 0.95, (100, 2))
    found = fit(RBF(), X, np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1]))
    expected = np.sin(4 * new[:, 0]) * np.cos(3 * new[:, 1])
    np.testing.assert_allclose(
        found.posterior(None, 1).predict(new).mean[:, 0], expected, atol=1e-4
    )


@pytest.mark.parametrize("num_rows", [20, 200, 700])
def test_noise_is_noise(num_rows: int) -> None:
    rng = np.random.default_rng(num_rows)
    y = standardised(rng.standard_normal(num_rows))
    found = fit(Matern32(), rng.uniform(size=(num_rows, 3)), y, mean=MeanPrior(100.0))
    nothing = -0.5 * num_rows * (np.log(2 * np.pi) + 1)
    assert found.elbo.total < nothing + 12


def test_rows_at_the_same_place() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.uniform(size=50), 4)
    noisy = fit(RBF(), x, standardised(np.sin(6 * x) + 0.1 * rng.standard_normal(200)))
    assert noisy.noise_variance == pytest.approx(0.01 / np.var(np.sin(6 * x)), rel=0.3)
    exact = fit(RBF(), x, np.sin(6 * x))
    np.testing.assert_allclose(
        exact.posterior(None, 1).predict(x[:, None]).mean[:, 0], np.sin(6 * x), atol=1e-5
    )
    all_one = fit(Matern32(), np.ones(30), standardised(rng.standard_normal(30)))
    assert np.all(np.isfinite(all_one.posterior(None, 1).predict(np.ones((3, 1))).mean))


def test_columns_that_do_not_matter_or_do_not_change() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 20))
    X[:, 7] = 3.0
    y = standardised(X[:, 0] ** 2 + 0.2 * rng.standard_normal(150))
    mean = MeanPrior(100.0, 100.0, np.zeros(20), np.ones(20))
    found = fit(Matern32(), X, y, mean=mean)
    # Of what does not change nothing is learned.
    assert np.argmin(np.delete(found.kernel.parameters()["lengthscale"], 7)) == 0
    new = rng.standard_normal((50, 20))
    new[:, 7] = 3.0
    predicted = found.posterior(None, 1).predict(new).mean[:, 0]
    assert np.corrcoef(predicted, new[:, 0] ** 2)[0, 1] > 0.95


@pytest.mark.parametrize("repeats", [True, False])
def test_weights_and_several_targets(repeats: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(90, 2))
    Y = np.stack([np.sin(6 * X[:, 0]), np.cos(5 * X[:, 1])], axis=1)
    Y = standardised(Y + 0.2 * rng.standard_normal(Y.shape))
    weights = rng.integers(0, 3, 90).astype(float)
    found = fit(Matern32(), X, Y, weights, mean=MeanPrior(100.0), repeats=repeats)
    assert found.converged
    assert found.rows == (weights.sum() if repeats else np.count_nonzero(weights))
    if repeats:
        times = weights.astype(int)
        written_out = fit(
            Matern32(),
            np.repeat(X, times, axis=0),
            np.repeat(Y, times, axis=0),
            mean=MeanPrior(100.0),
        )
        assert found.elbo.total == pytest.approx(written_out.elbo.total, rel=1e-3)


def test_outliers_and_units() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(120, 2))
    y = np.sin(6 * X[:, 0]) + 0.2 * rng.standard_normal(120)
    y[:3] += 30
    fits = [fit(Matern32(), scale * X + shift, standardised(y)) for scale, shift in
            ((1.0, 0.0), (1e-8, 0.0), (1e8, 5e8))]  # fmt: skip
    values = [found.elbo.total for found in fits]
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


# ---------------------------------------------------------------------- all kinds of kernels


def test_additive_kernels_learn_each_term() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 5))
    y = standardised(np.sin(8 * X[:, 0]) + 2 * X[:, 1] ** 2 + 0.2 * rng.standard_normal(300))
    found = fit(additive("matern32", 5), X, y, mean=MeanPrior(100.0))
    assert found.elbo.total > fit(Matern32(), X, y, mean=MeanPrior(100.0)).elbo.total
    assert found.noise_variance == pytest.approx(0.04 / 0.8, rel=0.4)


def test_periods_are_learned() -> None:
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 20, 250))
    y = standardised(np.sin(2 * np.pi * t / 1.7) ** 3 + 0.2 * rng.standard_normal(250))
    found = fit(QuasiPeriodic(), t, y)
    ratio = float(found.kernel.parameters()["period"]) / 1.7
    assert min(abs(ratio - whole) for whole in (1, 2, 3)) < 0.02
    assert found.noise_variance < 0.25


def test_directions_are_learned() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 2))
    y = standardised(np.sin(9 * (X[:, 0] + X[:, 1])) + 0.2 * rng.standard_normal(200))
    found = fit(Rotated(Matern32(1.0, [1.0, 1.0])), X, y)
    own = found.kernel.parameters()
    longest = float(own["angle"]) + (np.pi / 2 if np.argmax(own["lengthscale"]) else 0.0)
    assert np.cos(2 * (longest - 3 * np.pi / 4)) > 0.99


def test_a_user_s_values_are_climbed_from_whatever_else_there_is() -> None:
    own, other = RBF(1.0, 0.3), RBF(1.0, 0.1)
    starts = [
        *(Start(other, 0.1, shape) for shape in range(5)),
        *(Start(own, 0.1, shape, from_user=True) for shape in (0, 1)),
    ]
    values = [5.0, 4.0, 3.0, 2.0, 1.0, -10.0, -20.0]
    assert choose_starts(starts, values, 3) == [5, 0, 1, 2]
    # The same, and what has no value, is left out.
    assert choose_starts(starts[:5], [5.0, 4.999, 3.0, -np.inf, 1.0], 3) == [0, 2, 4]


def test_learning_goes_on_from_a_user_s_values() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=60)
    y = standardised(np.sin(6 * x) + 0.1 * rng.standard_normal(60))
    found = fit(RBF(), x, y, starts=starts_for_kernel(RBF(1.0, 0.7), None))
    assert found.elbo.total == pytest.approx(fit(RBF(), x, y).elbo.total, abs=1e-2)


def test_what_is_fixed_stays() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=40)
    y = standardised(np.sin(6 * x) + 0.1 * rng.standard_normal(40))
    kernel = RBF(1.0, 0.3).fix()
    found = fit(kernel, x, y)
    assert found.kernel.parameters() == kernel.parameters()
    assert found.noise_variance < 0.1
    given = fit(kernel, x, y, starts=[Start(kernel, 0.3)], learn=False)
    assert given.noise_variance == 0.3
    assert given.num_evaluations == 0


# ---------------------------------------------------------------------- refusals and time


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(InputError, match=f"up to {MOST_ROWS} rows, got {MOST_ROWS + 1}"):
        fit(RBF(), np.zeros(MOST_ROWS + 1), np.zeros(MOST_ROWS + 1))


def test_time_that_runs_out_is_said() -> None:
    rng = np.random.default_rng(0)
    found = fit(RBF(), rng.uniform(size=100), rng.standard_normal(100), deadline=0.0)
    assert not found.converged
    assert "The time ran out" in found.status
