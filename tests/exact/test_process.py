"""Exact regression, against dense linear algebra, scikit-learn and finite differences."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from orthogp.errors import InputError, KernelError, PrecisionError
from orthogp.exact import process as exact_module
from orthogp.exact.process import ExactObjective, ExactPosterior
from orthogp.features.inducing import InducingPoints
from orthogp.features.series import Lattice, MeanPrior
from orthogp.inference.bounds import titsias_bound
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.parameters import pack
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Rotated,
)
from orthogp.rows import Rows
from tests import oracles
from tests.oracles import Array
from tests.problems import (
    NO_MEAN,
    Entry,
    all_entries,
    covariances,
    label,
    lengthscales,
    make_lattice,
    make_rows,
    mean_covariance,
    mean_prior,
)

NOISE = 0.2
# Compilations are dear: one of each kind, with few and many parameters, elementary and by nodes.
KINDS = ("rbf", "matern32", "matern", "quasi-periodic", "sum", "additive")
ENTRIES = [
    (num_dims, entry)
    for num_dims, entry in all_entries(1, 2)
    if entry.name in (KINDS if num_dims == 1 else ("rbf", "additive"))
]


def dense(entry: Entry, kind: str | None, A: Array, B: Array) -> Array:
    mean = mean_prior(kind, A.shape[1])
    return oracles.gram_matrix(entry.k, A, B) + mean_covariance(mean, A, B)


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize("kind", [None, "constant", "linear"])
@pytest.mark.parametrize(("num_dims", "entry"), [all_entries(1)[2], all_entries(2)[-1]], ids=label)
def test_likelihood_and_posterior_are_those_of_dense_algebra(
    num_dims: int, entry: Entry, kind: str | None
) -> None:
    rows = make_rows(0, 30, num_dims, 2, "real")
    new = make_rows(1, 7, num_dims).X
    noise = NOISE / rows.precisions
    exact = ExactPosterior(
        entry.kernel,
        NOISE,
        mean_prior(kind, num_dims),
        Rows(rows.X, rows.y, rows.weights),
        repeats=False,
    )
    K = dense(entry, kind, rows.X, rows.X)
    expected = oracles.log_marginal_likelihood(K, rows.y, noise)
    assert exact.log_marginal_likelihood == pytest.approx(expected, rel=1e-11)
    mean, covariance = oracles.posterior(
        K, dense(entry, kind, new, rows.X), dense(entry, kind, new, new), rows.y, noise
    )
    predicted = exact.predict(new)
    np.testing.assert_allclose(predicted.mean, mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(predicted.variance, np.diag(covariance), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(exact.covariance(new), covariance, rtol=1e-9, atol=1e-10)


def test_agrees_with_scikit_learn() -> None:
    rows = make_rows(2, 50, 2)
    new = make_rows(3, 20, 2).X
    ell = lengthscales(2)
    kernel = sk.ConstantKernel(1.3) * sk.Matern(ell, nu=1.5) + sk.WhiteKernel(NOISE)
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(rows.X, rows.y)
    exact = ExactPosterior(Matern32(1.3, ell), NOISE, NO_MEAN, Rows(rows.X, rows.y))
    value, gradient = reference.log_marginal_likelihood(reference.kernel_.theta, eval_gradient=True)
    assert exact.log_marginal_likelihood == pytest.approx(value, rel=1e-11)
    mean, deviation = reference.predict(new, return_std=True)
    predicted = exact.predict(new)
    np.testing.assert_allclose(predicted.mean[:, 0], mean.ravel(), rtol=1e-9)
    # Scikit-learn's standard deviation is that of a noisy observation.
    np.testing.assert_allclose(predicted.variance + NOISE, deviation.ravel() ** 2, rtol=1e-9)
    objective = ExactObjective(Matern32(1.3, ell), NO_MEAN, Rows(rows.X, rows.y))
    vector = np.append(pack(objective.kernel, objective.slots), np.log(NOISE))
    np.testing.assert_allclose(objective.value_and_gradient(vector)[1], gradient, rtol=1e-7)


@pytest.mark.parametrize("repeats", [True, False])
def test_agrees_with_the_bounds_where_features_are_complete(repeats: bool) -> None:
    rows = make_rows(4, 30, 1, 2, "real")
    kernel = Matern32(1.3, [0.1])
    features = InducingPoints(Z=rows.X)
    moments = moments_from_rows(features, kernel, rows.X, rows.y, rows.weights, repeats=repeats)
    exact = ExactPosterior(
        kernel, NOISE, NO_MEAN, Rows(rows.X, rows.y, rows.weights), repeats=repeats
    )
    expected = titsias_bound(moments, NOISE).total
    assert exact.log_marginal_likelihood == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("repeats", [True, False])
def test_mean_priors_mean_the_same_as_in_the_bounds(repeats: bool) -> None:
    # Lattice features with all frequencies of a period so long that no image matters.
    rows = make_rows(5, 30, 1, 2, "real")
    kernel, mean = RBF(1.3, [0.5]), mean_prior("linear", 1)
    lattice = make_lattice(1, 12.0, 60)
    features = Lattice.select(kernel, lattice, 10**6, mean)
    moments = moments_from_rows(features, kernel, rows.X, rows.y, rows.weights, repeats=repeats)
    exact = ExactPosterior(kernel, NOISE, mean, Rows(rows.X, rows.y, rows.weights), repeats=repeats)
    expected = titsias_bound(moments, NOISE).total
    assert exact.log_marginal_likelihood == pytest.approx(expected, abs=1e-6)


def test_weight_two_is_the_row_twice() -> None:
    rows = make_rows(6, 20, 1, 2, "whole")
    assert rows.weights is not None
    times = rows.weights.astype(int)
    assert {0, 1, 2, 3} == set(times.tolist())
    kernel, mean = RBF(1.3, [0.5]), mean_prior("linear", 1)
    weighted = ExactPosterior(kernel, NOISE, mean, Rows(rows.X, rows.y, rows.weights))
    written_out = ExactPosterior(
        kernel,
        NOISE,
        mean,
        Rows(np.repeat(rows.X, times, axis=0), np.repeat(rows.y, times, axis=0)),
    )
    assert weighted.log_marginal_likelihood == pytest.approx(
        written_out.log_marginal_likelihood, rel=1e-11
    )
    new = make_rows(7, 9, 1).X
    for one, other in zip(weighted.predict(new), written_out.predict(new)):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("repeats", [True, False])
def test_rows_of_equal_inputs_are_those_of_dense_algebra(repeats: bool) -> None:
    rng = np.random.default_rng(13)
    X = rng.standard_normal((12, 2))[rng.integers(12, size=40)]
    y, weights = rng.standard_normal((40, 2)), rng.integers(1, 4, 40).astype(float)
    kernel, mean = Matern32(1.3, [0.5, 0.8]), mean_prior("constant", 2)
    times = weights.astype(int) if repeats else np.ones(40, dtype=int)
    written_out, targets = np.repeat(X, times, axis=0), np.repeat(y, times, axis=0)
    noise = NOISE if repeats else NOISE / weights

    def prior(A: Array, B: Array) -> Array:
        return covariances(kernel, A[:, None] - B) + mean_covariance(mean, A, B)

    K = prior(written_out, written_out)
    exact = ExactPosterior(kernel, NOISE, mean, Rows(X, y, weights), repeats=repeats)
    expected = oracles.log_marginal_likelihood(K, targets, noise)
    assert exact.log_marginal_likelihood == pytest.approx(expected, rel=1e-11)
    assert exact.num_rows == 40
    new = rng.standard_normal((5, 2))
    predicted, known = (
        exact.predict(new),
        oracles.posterior(K, prior(new, written_out), prior(new, new), targets, noise),
    )
    np.testing.assert_allclose(predicted.mean, known[0], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(predicted.variance, np.diag(known[1]), rtol=1e-9, atol=1e-10)
    objective = ExactObjective(kernel, mean, Rows(X, y, weights), repeats=repeats)
    assert_gradient(objective)


@pytest.mark.parametrize("repeats", [True, False])
def test_predictions_at_fitted_rows_are_those_anywhere(
    repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    X = np.round(rng.uniform(0, 2, (40, 1)), 1)
    y, weights = rng.standard_normal((40, 2)), rng.integers(1, 4, 40).astype(float)
    exact = ExactPosterior(
        RBF(1.3, 0.5), NOISE, mean_prior("linear", 1), Rows(X, y, weights), repeats=repeats
    )
    expected = exact.predict(X), exact.predict(X + 0.01)
    np.testing.assert_array_equal(exact.predict_rows(X + 0.01).mean, expected[1].mean)
    # Not by predicting anywhere.
    monkeypatch.delattr(ExactPosterior, "predict")
    found = exact.predict_rows(X)
    np.testing.assert_allclose(found.mean, expected[0].mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.variance, expected[0].variance, rtol=1e-9)


def test_prediction_does_not_depend_on_how_many_rows_are_asked_for() -> None:
    rows = make_rows(8, 10, 1)
    exact = ExactPosterior(RBF(1.3, 0.5), NOISE, NO_MEAN, Rows(rows.X, rows.y))
    new = np.linspace(-1, 1, 1500)
    together = exact.predict(new)
    assert together.mean.shape == (1500, 1)
    some = exact.predict(new[1020:1030])
    np.testing.assert_allclose(together.mean[1020:1030], some.mean, rtol=1e-13)
    np.testing.assert_allclose(together.variance[1020:1030], some.variance, rtol=1e-12)
    empty = exact.predict(np.empty((0, 1)))
    assert empty.mean.shape == (0, 1)
    assert empty.variance.shape == (0,)


def test_blocks_of_lags_cover_all_pairs_of_rows() -> None:
    # More pairs than one compiled call takes.
    rows = make_rows(9, 200, 1)
    K = oracles.rbf(rows.X[:, None] - rows.X, 1.3, 0.05)
    exact = ExactPosterior(RBF(1.3, 0.05), NOISE, NO_MEAN, Rows(rows.X, rows.y))
    expected = oracles.log_marginal_likelihood(K, rows.y, NOISE)
    assert exact.log_marginal_likelihood == pytest.approx(expected, rel=1e-11)
    assert_gradient(ExactObjective(RBF(1.3, 0.05), NO_MEAN, Rows(rows.X, rows.y)))


# ---------------------------------------------------------------------- gradients


def assert_gradient(objective: ExactObjective, noise: float = NOISE) -> None:
    vector = np.append(pack(objective.kernel, objective.slots), np.log(noise))
    value, gradient = objective.value_and_gradient(vector)
    expected = oracles.fourth_order_difference(
        lambda v: np.asarray(objective.value_and_gradient(v)[0]), vector, 1e-3
    )
    assert gradient.shape == vector.shape
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7 * (1 + abs(value)))


@pytest.mark.parametrize(("num_dims", "entry"), ENTRIES, ids=label)
def test_value_is_the_likelihood_and_gradient_its_difference(num_dims: int, entry: Entry) -> None:
    rows = make_rows(10, 15, num_dims, 2)
    mean = mean_prior("linear", num_dims)
    objective = ExactObjective(entry.kernel, mean, Rows(rows.X, rows.y))
    vector = np.append(pack(entry.kernel, objective.slots), np.log(NOISE))
    K = dense(entry, "linear", rows.X, rows.X)
    expected = oracles.log_marginal_likelihood(K, rows.y, NOISE)
    assert objective.value_and_gradient(vector)[0] == pytest.approx(expected, rel=1e-10)
    assert_gradient(objective)


@pytest.mark.parametrize("noise", [1e-3, 10.0])
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("weights", ["real", "whole"])
def test_gradient_for_every_kind_of_weights(weights: str, repeats: bool, noise: float) -> None:
    rows = make_rows(11, 20, 1, 3, weights)
    objective = ExactObjective(
        Matern32(1.3, [0.5]),
        mean_prior("constant", 1),
        Rows(rows.X, rows.y, rows.weights),
        repeats=repeats,
    )
    assert_gradient(objective, noise)


def test_value_follows_the_vector_and_fixed_parameters_stay() -> None:
    rows = make_rows(12, 15, 1)
    kernel: Kernel = Matern32(1.3, [0.5]).fix("variance")
    objective = ExactObjective(kernel, NO_MEAN, Rows(rows.X, rows.y))
    vector = np.array([np.log(0.3), np.log(0.7)])
    moved = objective.kernel_at(vector)
    np.testing.assert_allclose(moved.parameters()["lengthscale"], 0.3)
    K = oracles.matern32(rows.X[:, None] - rows.X, 1.3, 0.3)
    value, gradient = objective.value_and_gradient(vector)
    assert value == pytest.approx(oracles.log_marginal_likelihood(K, rows.y, 0.7), rel=1e-11)
    assert gradient.shape == (2,)


@pytest.mark.parametrize(
    ("kernel", "num_dims"),
    [
        (Matern32(0.7, [0.5]), 1),
        (Matern32(0.7, 0.5), 2),
        (RBF(1.3, [0.5, 0.7]).fix("lengthscale"), 2),
        (RBF(1.3, 0.5).on(0) * RationalQuadratic(1.0, 0.9, 1.4).on(1), 2),
        (Rotated(Matern32(0.7, [0.9, 0.4]), 0.6) + Matern12(0.3, 0.4).on(1), 2),
        (Matern52(0.7, np.linspace(1.0, 3.0, 12)), 12),
    ],
)
@pytest.mark.parametrize("repeats", [True, False])
def test_information_is_the_average_one(kernel: Kernel, num_dims: int, repeats: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((25, num_dims)), rng.standard_normal((25, 2))
    weights = rng.uniform(1.0, 2.0, 25)
    mean = MeanPrior(0.5)
    objective = ExactObjective(kernel, mean, Rows(X, y, weights), repeats=repeats)
    vector = np.append(pack(kernel, objective.slots), np.log(NOISE))
    found = objective.evaluate(vector)
    value, gradient = objective.value_and_gradient(vector)
    assert found.value == value
    np.testing.assert_array_equal(found.gradient, gradient)

    def dense_covariance(v: Array) -> Array:
        K = covariances(objective.kernel_at(v), X[:, None] - X)
        return K + 0.5 + np.diag(np.exp(v[-1]) / weights)

    C = dense_covariance(vector)
    moved = oracles.fourth_order_difference(dense_covariance, vector, 1e-3)
    u = np.einsum("nmi,mp->nip", moved, np.linalg.solve(C, y))
    expected = 0.5 * np.einsum(
        "nip,njp->ij", u, np.linalg.solve(C, u.reshape(25, -1)).reshape(u.shape)
    )
    # Repeated rows tell of the noise by what they say of each other.
    expected[-1, -1] += weights.sum() - 25 if repeats else 0.0
    np.testing.assert_allclose(found.information, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "kernel",
    [
        Matern12(0.7, [0.5, 0.8, 1.1]),
        RBF(0.7, 0.5),
        RationalQuadratic(0.7, [0.5, 0.8, 1.1], 1.4),
        Matern52(0.7, [0.5, 0.9]).on(0, 2) + RBF(0.3, 0.5).on(1),
        RBF(0.7, 0.5).on(2) * Matern32(1.0, 0.4).fix("lengthscale").on(0),
    ],
)
@pytest.mark.parametrize("repeats", [True, False])
def test_bend_is_how_the_covariance_bends(kernel: Kernel, repeats: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((25, 3)), rng.standard_normal((25, 2))
    weights = rng.uniform(1.0, 2.0, 25)
    objective = ExactObjective(kernel, MeanPrior(0.5), Rows(X, y, weights), repeats=repeats)
    vector = np.append(pack(kernel, objective.slots), np.log(NOISE))
    found = objective.evaluate(vector)
    assert found.bend is not None

    def dense_covariance(v: Array) -> Array:
        K = covariances(objective.kernel_at(v), X[:, None] - X)
        return K + 0.5 + np.diag(np.exp(v[-1]) / weights)

    inverse = np.linalg.inv(dense_covariance(vector))
    bar = (inverse @ y @ y.T @ inverse - 2 * inverse) / 2
    expected = oracles.fourth_order_difference(
        lambda v: np.einsum(
            "nm,nmi->i", bar, oracles.fourth_order_difference(dense_covariance, v, 2e-3)
        ),
        vector,
        2e-3,
    )
    np.testing.assert_allclose(found.bend(), expected, rtol=1e-6, atol=1e-6)


def test_kernels_of_many_parts_have_no_bend() -> None:
    rows = make_rows(16, 12, 2)
    for kernel in (RBF(1.0, 1.0) + RBF() + Matern32(), Matern(1.2), Rotated(RBF(1.0, [1.0, 2.0]))):
        objective = ExactObjective(kernel, NO_MEAN, Rows(rows.X, rows.y))
        vector = np.append(pack(kernel, objective.slots), 0.0)
        assert objective.evaluate(vector).bend is None


def test_nothing_depends_on_what_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(13, 40, 2)
    vector = np.log([1.3, 0.5, 0.7, 0.2])
    evaluations = []
    for bytes_kept in (2**28, 0):
        monkeypatch.setattr(exact_module, "_KEPT", bytes_kept)
        objective = ExactObjective(RBF(1.0, [1.0, 1.0]), NO_MEAN, Rows(rows.X, rows.y))
        evaluations.append(objective.evaluate(vector))
    for one, other in zip(*(found[:3] for found in evaluations)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_derivatives_follow_from_what_a_value_has_factorised() -> None:
    rows = make_rows(17, 30, 2, 2, "real")
    vector = np.log([1.3, 0.5, 0.7, 0.2])
    fresh, known = (
        ExactObjective(RBF(1.0, [1.0, 1.0]), NO_MEAN, Rows(rows.X, rows.y, rows.weights))
        for _ in range(2)
    )
    value = known.value(vector)
    assert known.solution_at(vector) is not None
    found, expected = known.evaluate(vector), fresh.evaluate(vector)
    assert found.value == value
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-12)
    np.testing.assert_allclose(found.information, expected.information, rtol=1e-12)


def test_posterior_takes_what_the_objective_has_solved() -> None:
    rows = make_rows(14, 30, 1, 1, "real")
    data = mean_prior("linear", 1), Rows(rows.X, rows.y, rows.weights)
    objective = ExactObjective(RBF(1.0, [1.0]), *data)
    vector = np.log([1.3, 0.5, 0.2])
    assert objective.solution_at(vector) is None
    objective.evaluate(vector)
    assert objective.solution_at(vector + 1e-9) is None
    solution = objective.solution_at(vector)
    assert solution is not None
    kernel = objective.kernel_at(vector)
    known, found = (
        ExactPosterior(kernel, float(np.exp(vector[-1])), *data, solution=given)
        for given in (solution, None)
    )
    assert known.log_marginal_likelihood == pytest.approx(found.log_marginal_likelihood, rel=1e-13)
    new = make_rows(15, 9, 1).X
    for one, other in zip(known.predict(new), found.predict(new)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


# ---------------------------------------------------------------------- edges and bad input


def test_noise_may_be_tiny_where_the_kernel_matrix_is_singular() -> None:
    # Two equal rows: K has no Cholesky factor, K + σ²I has.
    X = np.array([[0.0], [0.0], [1.0]])
    exact = ExactPosterior(RBF(1.0, 1.0), 1e-10, NO_MEAN, Rows(X, np.array([1.0, 1.0, 0.0])))
    predicted = exact.predict(X)
    np.testing.assert_allclose(predicted.mean[:, 0], [1.0, 1.0, 0.0], atol=1e-8)
    assert np.all(predicted.variance >= 0)
    assert np.all(predicted.variance < 2e-10)


def test_noise_below_double_precision_is_refused() -> None:
    X = np.linspace(0, 1, 50)
    with pytest.raises(PrecisionError, match="noise variance is too small"):
        ExactPosterior(RBF(1.0, 1.0), 1e-18, NO_MEAN, Rows(X, X))


def test_lengths_must_agree() -> None:
    with pytest.raises(InputError, match="got 5, 4 and 5"):
        ExactPosterior(RBF(), 0.1, NO_MEAN, Rows(np.zeros((5, 1)), np.zeros(4)))


def test_kernel_must_fit_the_columns() -> None:
    with pytest.raises(KernelError, match="2 lengthscales but acts on 1"):
        ExactPosterior(RBF(1.0, [1.0, 2.0]), 0.1, NO_MEAN, Rows(np.zeros((5, 1)), np.zeros(5)))
