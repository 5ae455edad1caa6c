"""Inducing points by minibatches, against dense formulas for u, which is not whitened."""

from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.special import expit, gammaln

from orthogp.errors import FeatureError, InputError, KernelError
from orthogp.features.inducing import JITTER, InducingPoints
from orthogp.inference.bounds import titsias_bound
from orthogp.inference.moments import moments_from_rows
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.stochastic import SparseVariational, TrainingSettings, baselines, svgp_objective
from orthogp.stochastic.normals import (
    Bernoulli,
    Covariance,
    DenseNormal,
    DiagonalNormal,
    Gaussian,
    Likelihood,
    Normal,
    Poisson,
    StudentT,
)
from orthogp.stochastic.training import Batch, BatchSource, train
from tests import oracles
from tests.oracles import Array
from tests.problems import lengthscales, make_rows

NOISE = 0.2
NUM_ROWS, NUM_POINTS = 24, 5


def targets_for(likelihood: Likelihood, y: Array) -> Array:
    if isinstance(likelihood, Bernoulli):
        return (y > np.median(y)).astype(float)
    return np.floor(np.exp(y)) if isinstance(likelihood, Poisson) else y


def make_problem(
    num_dims: int,
    likelihood: Likelihood,
    covariance: Covariance,
    kernel: Kernel | None = None,
) -> tuple[SparseVariational, Batch]:
    """A model whose parameters are in no special place, and rows."""
    rows = make_rows(0, NUM_ROWS, num_dims)
    y = targets_for(likelihood, rows.y[:, 0])
    rng = np.random.default_rng(1)
    model = SparseVariational.from_rows(
        rows.X,
        y,
        kernel or RBF(1.3, lengthscales(num_dims)),
        likelihood,
        InducingPoints(NUM_POINTS, seed=int(rng.integers(2**31))),
        covariance,
    )
    moved = jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape), model.q)
    return eqx.tree_at(lambda model: model.q, model, moved), Batch(rows.X, y)


def covariance_of(q: Normal) -> Array:
    if isinstance(q, DenseNormal):
        raw = np.asarray(q.raw)
        factor = np.tril(raw, -1) + np.diag(np.exp(np.diag(raw)))
        return factor @ factor.T
    assert isinstance(q, DiagonalNormal)
    return np.diag(np.exp(q.log_variances))


class DenseModel:
    """q(u) = N(Lm, L S Lᵀ) with its marginals and divergence, none of them whitened."""

    def __init__(self, model: SparseVariational, k: oracles.Covariance) -> None:
        self.k, self.Z = k, np.asarray(model.Z)
        self.variance = float(k(np.zeros(self.Z.shape[1])))
        K = oracles.gram_matrix(k, self.Z, self.Z)
        self.K = K + JITTER * self.variance * np.eye(len(K))
        chol = np.linalg.cholesky(self.K)
        self.mean = chol @ np.asarray(model.q.mean)
        self.covariance = chol @ covariance_of(model.q) @ chol.T

    def marginals(self, X: Array) -> tuple[Array, Array]:
        K_fu = oracles.gram_matrix(self.k, X, self.Z)
        A = np.linalg.solve(self.K, K_fu.T).T
        spread = A @ (self.covariance - self.K) @ A.T
        return A @ self.mean, self.variance + np.diag(spread)

    def divergence(self) -> float:
        ratio = np.linalg.solve(self.K, self.covariance)
        distance = self.mean @ np.linalg.solve(self.K, self.mean)
        excess = np.trace(ratio) + distance - len(self.mean)
        return float(0.5 * (excess - np.linalg.slogdet(ratio)[1]))


every_covariance = pytest.mark.parametrize("covariance", ["dense", "diagonal"])


# ---------------------------------------------------------------------- values


@every_covariance
@pytest.mark.parametrize("num_dims", [1, 2])
def test_elbo_and_predictions_are_the_textbook_formulas(
    num_dims: int, covariance: Covariance
) -> None:
    model, rows = make_problem(num_dims, Gaussian(np.log(NOISE)), covariance)
    dense = DenseModel(model, lambda lag: oracles.rbf(lag, 1.3, lengthscales(num_dims)))
    mean, variance = dense.marginals(rows.X)
    squares = (rows.y - mean) ** 2 + variance
    fits = -0.5 * (np.log(2 * np.pi * NOISE) + squares / NOISE)
    expected = 100 / NUM_ROWS * fits.sum() - dense.divergence()
    assert float(model.elbo(rows.X, rows.y, 100)) == pytest.approx(expected, rel=1e-9)

    X = make_rows(2, 9, num_dims).X
    for got, wanted in zip(model.predict(X), dense.marginals(X)):
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)


def test_likelihood_enters_by_its_expectation() -> None:
    model, rows = make_problem(1, Poisson(), "dense")
    dense = DenseModel(model, lambda lag: oracles.rbf(lag, 1.3, lengthscales(1)))
    mean, variance = dense.marginals(rows.X)
    fits = rows.y * mean - np.exp(mean + variance / 2) - gammaln(rows.y + 1)
    expected = fits.sum() - dense.divergence()
    assert float(model.elbo(rows.X, rows.y, NUM_ROWS)) == pytest.approx(expected, rel=1e-9)


@every_covariance
def test_learning_begins_at_the_prior(covariance: Covariance) -> None:
    rows = make_rows(0, NUM_ROWS, 2)
    model = SparseVariational.from_rows(
        rows.X,
        rows.y[:, 0],
        Matern32(1.3, 0.5),
        StudentT(0.0),
        InducingPoints(NUM_POINTS),
        covariance,
    )
    mean, variance = model.predict(rows.X)
    np.testing.assert_array_equal(mean, np.zeros(NUM_ROWS))
    np.testing.assert_allclose(variance, 1.3, rtol=1e-14)


def test_predictions_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = make_problem(1, Gaussian(0.0), "dense")
    X = make_rows(2, 20, 1).X
    whole = model.predict(X)
    monkeypatch.setattr(baselines, "_ROWS_PER_BLOCK", 8)
    for got, wanted in zip(model.predict(X), whole):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


# ---------------------------------------------------------------------- the collapsed optimum


def q_gradient(model: SparseVariational, rows: Batch) -> Array:
    def value(q: Normal) -> jax.Array:
        moved = eqx.tree_at(lambda model: model.q, model, q)
        return moved.elbo(rows.X, rows.y, len(rows.y))

    with jax.enable_x64(True):
        return np.asarray(ravel_pytree(eqx.filter_jit(eqx.filter_grad(value))(model.q))[0])


@every_covariance
def test_best_q_is_a_stationary_point(covariance: Covariance) -> None:
    model, rows = make_problem(2, Gaussian(np.log(NOISE)), covariance)
    assert np.max(np.abs(q_gradient(model, rows))) > 1
    best = model.titsias_optimum(rows.X, rows.y)
    assert type(best.q) is type(model.q)
    assert np.max(np.abs(q_gradient(best, rows))) < 1e-9


@pytest.mark.parametrize("num_points", [5, 60])
def test_elbo_of_the_best_q_is_the_collapsed_bound(num_points: int) -> None:
    rows = make_rows(3, 200, 1)
    y, kernel = rows.y[:, 0], Matern32(1.3, 0.5)
    model = SparseVariational.from_rows(
        rows.X, y, kernel, Gaussian(np.log(NOISE)), InducingPoints(num_points)
    )
    best = model.titsias_optimum(rows.X, y)
    moments = moments_from_rows(InducingPoints(Z=model.Z), kernel, rows.X, y)
    collapsed = titsias_bound(moments, NOISE).total
    assert float(best.elbo(rows.X, y, 200)) == pytest.approx(collapsed, abs=1e-6)
    # ... also with noise so small that S is nearly singular.
    quiet = eqx.tree_at(lambda model: model.likelihood, model, Gaussian(np.log(1e-4)))
    elbo = float(quiet.titsias_optimum(rows.X, y).elbo(rows.X, y, 200))
    assert elbo == pytest.approx(titsias_bound(moments, 1e-4).total, rel=1e-9)


def test_best_diagonal_q_loses_to_the_best_dense_one() -> None:
    dense, rows = make_problem(1, Gaussian(np.log(NOISE)), "dense")
    diagonal, _ = make_problem(1, Gaussian(np.log(NOISE)), "diagonal")
    values = [
        float(model.titsias_optimum(*rows).elbo(*rows, NUM_ROWS)) for model in (diagonal, dense)
    ]
    assert values[0] < values[1] - 0.1


def test_optimum_is_refused_where_there_is_no_closed_form() -> None:
    model, rows = make_problem(1, Bernoulli(), "dense")
    with pytest.raises(InputError, match="Only the Gaussian likelihood"):
        model.titsias_optimum(*rows)


# ---------------------------------------------------------------------- minibatches and gradients

Objective = Callable[[SparseVariational, Batch], tuple[jax.Array, SparseVariational]]


def value_and_gradient(num_rows: int) -> Objective:
    objective = svgp_objective(num_rows)
    key = jax.random.key(0)
    return eqx.filter_jit(
        eqx.filter_value_and_grad(lambda model, batch: objective(model, batch, key))
    )


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Gaussian(-1.0), Bernoulli()])
def test_batches_of_a_partition_average_to_all_rows(likelihood: Likelihood, double: None) -> None:
    model, rows = make_problem(2, likelihood, "dense")
    function = value_and_gradient(NUM_ROWS)
    order = np.random.default_rng(2).permutation(NUM_ROWS).reshape(4, 6)
    batches = [function(model, Batch(rows.X[part], rows.y[part])) for part in order]
    average = jax.tree.map(lambda *leaves: sum(leaves) / 4, *batches)
    whole, spread = function(model, rows), np.ptp([float(value) for value, _ in batches])
    assert spread > 0.1
    for got, wanted in zip(jax.tree.leaves(average), jax.tree.leaves(whole)):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "covariance"),
    [(Gaussian(-1.0), "diagonal"), (Bernoulli(), "dense"), (StudentT(-1.0), "dense")],
)
def test_gradient_is_the_difference(
    likelihood: Likelihood, covariance: Covariance, double: None
) -> None:
    model, rows = make_problem(2, likelihood, covariance, Matern32(1.3, [0.5, 0.7]))
    learned = (model.log_parameters, model.likelihood, model.Z, model.q)
    vector, rebuild = ravel_pytree(learned)

    @jax.jit
    def value(vector: jax.Array) -> jax.Array:
        log_parameters, own, Z, q = rebuild(vector)
        moved = SparseVariational(model.template, model.slots, log_parameters, own, Z, q)
        return moved.elbo(rows.X, rows.y, 100)

    expected = oracles.fourth_order_difference(value, np.asarray(vector), 1e-3)
    gradient = np.asarray(jax.grad(value)(vector))
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-7)
    # Kernel, likelihood, points and mean all matter.
    assert np.all(np.abs(gradient[: -len(ravel_pytree(model.q)[0]) + NUM_POINTS]) > 1e-3)


def test_fixed_parameters_and_the_template_do_not_move(double: None) -> None:
    kernel = RBF(1.3, 0.5).fix("variance")
    model, rows = make_problem(1, Gaussian(0.0), "diagonal", kernel)
    gradient = value_and_gradient(NUM_ROWS)(model, rows)[1]
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradient.template))
    assert gradient.log_parameters.shape == (1,)
    moved = eqx.tree_at(lambda model: model.log_parameters, model, np.log([0.8]))
    assert float(moved.kernel.parameters()["variance"]) == 1.3
    assert float(moved.kernel.parameters()["lengthscale"]) == pytest.approx(0.8, rel=1e-15)


@pytest.mark.slow
def test_crowded_points_have_finite_values_and_gradients(double: None) -> None:
    # K_uu is singular in double precision, and two of the points are the same.
    model, rows = make_problem(1, Bernoulli(), "diagonal", RBF(1.3, 2.0))
    Z = np.append(np.linspace(-1, 1, 40), 1.0)[:, None]
    q = DiagonalNormal(np.full(41, 0.1), np.full(41, -20.0))
    crowded = eqx.tree_at(lambda model: (model.Z, model.q), model, (Z, q))
    value, gradient = value_and_gradient(NUM_ROWS)(crowded, rows)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert np.all(crowded.predict(rows.X)[1] > 0)


def test_rounding_does_not_make_variances_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without ε, nothing but rounding is left out at the points themselves, here of either sign.
    monkeypatch.setattr(baselines, "JITTER", 0.0)
    model, _ = make_problem(1, Gaussian(0.0), "diagonal", Matern32(1.3, 0.2))
    Z = np.linspace(-3, 3, 37)[:, None]
    q = DiagonalNormal(np.zeros(37), np.full(37, -80.0))
    sure = eqx.tree_at(lambda model: (model.Z, model.q), model, (Z, q))
    assert np.all(sure.predict(Z)[1] > 0)


# ---------------------------------------------------------------------- precision


def test_elbo_and_predictions_are_double_whatever_the_switch() -> None:
    model, rows = make_problem(1, Gaussian(0.0), "dense")
    assert jnp.ones(1).dtype == jnp.float32
    without = model.elbo(*rows, NUM_ROWS)
    assert without.dtype == jnp.float64
    assert all(part.dtype == np.float64 for part in model.predict(rows.X))
    with jax.enable_x64(True):
        assert float(model.elbo(*rows, NUM_ROWS)) == float(without)


def test_single_precision_is_refused_rather_than_differentiated() -> None:
    model, rows = make_problem(1, Gaussian(0.0), "dense")
    with pytest.raises(InputError, match="enable_x64"):
        eqx.filter_grad(lambda model: model.elbo(*rows, NUM_ROWS))(model)


# ---------------------------------------------------------------------- classification


# Rows to train on; the dense classifier is cubic in it.
NUM_LABELS = 100


def label_probability(X: Array) -> Array:
    return expit(4 * np.sin(2.5 * X[:, 0]))


def make_labels(seed: int, num_rows: int) -> Batch:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (num_rows, 1))
    return Batch(X, (rng.uniform(size=num_rows) < label_probability(X)).astype(float))


def log_loss(y: Array, probability: Array) -> float:
    return -float(np.mean(y * np.log(probability) + (1 - y) * np.log1p(-probability)))


def gaussian_expectation(g: Callable[[Array], Array], mean: Array, variance: Array) -> Array:
    """E g(f) for each f ~ N(mean, variance), by the trapezium rule, which is exact to rounding."""
    z = np.linspace(-9, 9, 91)
    bell = np.exp(-(z**2) / 2)
    return g(mean[:, None] + np.sqrt(variance)[:, None] * z) @ bell / bell.sum()


class DenseClassifier:
    """The best Gaussian q(f) at all rows, by the fixed point of its stationarity conditions.

    With g = log p(y|f): S⁻¹ = K⁻¹ − diag E g'',  K⁻¹m = E g'.
    """

    def __init__(self, k: oracles.Covariance, rows: Batch) -> None:
        self.k, self.rows = k, rows
        K = oracles.gram_matrix(k, rows.X, rows.X) + 1e-8 * np.eye(len(rows.y))
        mean, S = np.zeros(len(K)), K
        for _ in range(100):
            probability, curvature = self._expectations(mean, np.diag(S))
            before = mean
            # S = (K⁻¹ + Λ)⁻¹ and a Newton step for the mean, without K⁻¹.
            system = np.eye(len(K)) + K * curvature
            S = np.linalg.solve(system, K)
            mean = np.linalg.solve(system, K @ (curvature * mean + rows.y - probability))
            if np.max(np.abs(mean - before)) < 1e-10:
                break
        else:
            raise AssertionError("the fixed point was not reached")
        self.weights = np.linalg.solve(K, mean)
        self.reduction = np.linalg.solve(K, np.linalg.solve(K, K - S).T)
        divergence = np.trace(np.linalg.solve(K, S)) + mean @ self.weights - len(K)
        divergence -= np.linalg.slogdet(np.linalg.solve(K, S))[1]
        softplus = gaussian_expectation(lambda f: np.logaddexp(0, f), mean, np.diag(S))
        self.elbo = rows.y @ mean - softplus.sum() - divergence / 2

    @staticmethod
    def _expectations(mean: Array, variance: Array) -> tuple[Array, Array]:
        """E σ(f) and E σ'(f)."""
        slope = gaussian_expectation(lambda f: expit(f) * expit(-f), mean, variance)
        return gaussian_expectation(expit, mean, variance), slope

    def probability(self, X: Array) -> Array:
        cross = oracles.gram_matrix(self.k, X, self.rows.X)
        prior = float(self.k(np.zeros(X.shape[1])))
        variance = prior - np.sum((cross @ self.reduction) * cross, axis=1)
        return self._expectations(cross @ self.weights, variance)[0]


@cache
def dense_classifier(seed: int, num_rows: int) -> DenseClassifier:
    return DenseClassifier(lambda lag: oracles.matern32(lag, 4.0, 0.8), make_labels(seed, num_rows))


@pytest.mark.slow
def test_best_bernoulli_bound_and_predictions_are_the_dense_ones(double: None) -> None:
    rows, new = make_labels(0, 30), make_labels(1, 400)
    # With points at all rows nothing is lost by sparsity.
    start = SparseVariational.from_rows(*rows, Matern32(4.0, 0.8), Bernoulli(), InducingPoints(30))
    start = eqx.tree_at(lambda model: model.Z, start, rows.X)
    vector, rebuild = ravel_pytree(start.q)

    def with_q(vector: jax.Array) -> SparseVariational:
        return eqx.tree_at(lambda model: model.q, start, rebuild(vector))

    loss = jax.jit(jax.value_and_grad(lambda vector: -with_q(vector).elbo(*rows, 30)))
    found = minimize(
        lambda vector: tuple(map(np.asarray, loss(vector))),
        np.asarray(vector),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-6},
    )
    best = with_q(jnp.asarray(found.x))
    probability = np.asarray(Bernoulli().probability(*best.predict(new.X)))
    dense = dense_classifier(0, 30)
    assert -found.fun == pytest.approx(dense.elbo, abs=1e-4)
    np.testing.assert_allclose(probability, dense.probability(new.X), atol=1e-3)
    losses = [log_loss(new.y, p) for p in (probability, dense.probability(new.X))]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.slow
def test_training_by_minibatches_learns_to_classify(double: None) -> None:
    rows, new = make_labels(0, NUM_LABELS), make_labels(1, 1000)
    model = SparseVariational.from_rows(*rows, Matern32(1.0, 0.3), Bernoulli(), InducingPoints(15))
    settings = TrainingSettings(batch_size=50, max_steps=300, learning_rate=0.03, stop_early=False)
    trained = train(
        lambda _: svgp_objective(NUM_LABELS), model, BatchSource(*rows, 50), settings
    ).parameters
    probability = np.asarray(Bernoulli().probability(*trained.predict(new.X)))
    dense = dense_classifier(0, NUM_LABELS).probability(new.X)
    loss, reference = log_loss(new.y, probability), log_loss(new.y, dense)
    assert loss < reference + 0.02
    assert loss < log_loss(new.y, np.full(1000, new.y.mean())) - 0.2


# ---------------------------------------------------------------------- construction


def test_points_are_reproducible_and_placed_as_asked() -> None:
    rows = make_rows(0, NUM_ROWS, 2)

    def points(seed: int, placement: str = "kmeans++") -> Array:
        return SparseVariational.from_rows(
            rows.X,
            rows.y[:, 0],
            RBF(),
            Gaussian(0.0),
            InducingPoints(4, placement=placement, seed=seed),
        ).Z

    np.testing.assert_array_equal(points(0), points(0))
    assert not np.array_equal(points(0), points(1))
    greedy = points(0, "greedy-variance")
    assert all(np.any(np.all(z == rows.X, axis=1)) for z in greedy)


ROWS = make_rows(0, NUM_ROWS, 2)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"y": ROWS.y}, InputError, "shape"),
        ({"y": ROWS.y[:-1, 0]}, InputError, "shape"),
        ({"y": np.full(NUM_ROWS, np.nan)}, InputError, "NaN"),
        ({"X": np.full((NUM_ROWS, 2), np.inf)}, InputError, "infinite"),
        ({"likelihood": Bernoulli()}, InputError, "labels"),
        ({"kernel": RBF(1.0, [1.0, 1.0, 1.0])}, KernelError, "3 lengthscales"),
        ({"points": InducingPoints(NUM_ROWS + 1)}, FeatureError, "distinct rows"),
        ({"covariance": "full"}, InputError, "covariance"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    arguments = {
        "X": ROWS.X,
        "y": ROWS.y[:, 0],
        "kernel": RBF(),
        "likelihood": Gaussian(0.0),
        "points": InducingPoints(4),
        **changes,
    }
    with pytest.raises(error, match=words):
        SparseVariational.from_rows(**arguments)


def test_unknown_placements_are_refused() -> None:
    with pytest.raises(FeatureError, match="placement"):
        InducingPoints(4, placement="random")


def test_inputs_of_another_width_are_refused() -> None:
    model, rows = make_problem(2, Gaussian(0.0), "dense")
    with pytest.raises(InputError, match="2 columns"):
        model.predict(rows.X[:, :1])
    with pytest.raises(InputError, match="2 columns"):
        model.titsias_optimum(rows.X[:, :1], rows.y)


def test_targets_as_a_column_are_refused_rather_than_spread_over_the_rows() -> None:
    model, rows = make_problem(2, Gaussian(0.0), "dense")
    with pytest.raises(InputError, match="one target for each of 24 rows"):
        model.elbo(rows.X, rows.y[:, None], NUM_ROWS)
