"""Predictions, covariances, derivatives, integrals and draws against a dense Gaussian process."""

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from orthogp.errors import InputError, OutOfDomainWarning
from orthogp.features import MeanPrior
from orthogp.inference import Domain
from orthogp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, SpectralMixture
from tests import oracles
from tests.oracles import Array
from tests.problems import (
    CENTRE,
    DIMS,
    Entry,
    Model,
    Rows,
    all_entries,
    fit,
    label,
    make_lattice,
    make_rows,
    mean_covariance,
    mean_prior,
    prior_variance,
    wrapped_gram,
    zoo,
)

MEANS = (None, "constant", "linear")
CASES = [*((num_dims, mean) for num_dims in (1, 2) for mean in MEANS), (3, None), (3, "linear")]
NOISE = 0.1
# Periods at which images are below rounding.
LONG = {1: 14.0, 2: 10.0}
# Lengthscale and largest index at which the modes left out are below rounding.
SMOOTH = {1: (0.5, 60), 2: (0.9, 9), 3: (1.6, 4)}


class Dense:
    """The exact posterior for the wrapped prior, or for the kernel itself if there is no period."""

    def __init__(
        self,
        kernel: Kernel,
        rows: Rows,
        mean: MeanPrior,
        period: Array | None,
        noise: float = NOISE,
    ) -> None:
        self.kernel, self.rows, self.mean, self.period = kernel, rows, mean, period
        self.noise = noise / rows.precisions

    def prior(self, A: Array, B: Array) -> Array:
        period = np.full(A.shape[1], 1e4) if self.period is None else self.period
        return wrapped_gram(self.kernel, A, B, period) + mean_covariance(self.mean, A, B)

    def __call__(self, X: Array) -> tuple[Array, Array]:
        train = self.rows.X
        K, K_new, K_new_new = self.prior(train, train), self.prior(X, train), self.prior(X, X)
        return oracles.posterior(K, K_new, K_new_new, self.rows.y, self.noise)


class Case(NamedTuple):
    model: Model
    dense: Dense
    X: Array


@cache
def smooth_case(
    num_dims: int, mean: str | None = "linear", period: float = 7.0, num_rows: int = 20
) -> Case:
    """An RBF kernel with all the features it takes, and points to predict at."""
    lengthscale, extent = SMOOTH[num_dims]
    kernel = RBF(1.3, lengthscale * np.array([1.0, 1.1, 1.2])[:num_dims])
    rows = make_rows(20, num_rows, num_dims, 2, "real")
    prior = mean_prior(mean, num_dims)
    lattice = make_lattice(num_dims, period, extent)
    model = fit(kernel, rows, lattice, 10**6, NOISE, prior)
    X = CENTRE[:num_dims] + np.random.default_rng(21).uniform(-1.4, 1.4, (9, num_dims))
    return Case(model, Dense(kernel, rows, prior, lattice.period), X)


# ---------------------------------------------------------------------- predictions


@pytest.mark.parametrize(("num_dims", "mean"), CASES)
def test_prediction_is_that_of_the_dense_process(num_dims: int, mean: str | None) -> None:
    model, dense, X = smooth_case(num_dims, mean)
    expected_mean, expected_covariance = dense(X)
    prediction = model.posterior.predict(X)
    assert prediction.mean.shape == (9, 2)
    assert prediction.variance.shape == (9,)
    np.testing.assert_allclose(prediction.mean, expected_mean, atol=1e-8)
    np.testing.assert_allclose(prediction.variance, np.diag(expected_covariance), atol=1e-8)
    np.testing.assert_allclose(model.posterior.covariance(X), expected_covariance, atol=1e-8)


@pytest.mark.parametrize("mean", MEANS)
def test_prediction_is_that_of_the_kernel_itself_with_a_long_period(mean: str | None) -> None:
    # The oracle here is the closed form: nothing is wrapped.
    rows, prior = make_rows(22, 20, 1), mean_prior(mean, 1)
    model = fit(RBF(1.3, 0.4), rows, make_lattice(1, 12.0, 80), 10**6, NOISE, prior)
    X = CENTRE[:1] + np.linspace(-1.4, 1.4, 15)[:, None]

    def k(A: Array, B: Array) -> Array:
        bell = oracles.gram_matrix(lambda lag: oracles.rbf(lag, 1.3, 0.4), A, B)
        return bell + mean_covariance(prior, A, B)

    expected_mean, expected_covariance = oracles.posterior(
        k(rows.X, rows.X), k(X, rows.X), k(X, X), rows.y, NOISE
    )
    prediction = model.posterior.predict(X)
    np.testing.assert_allclose(prediction.mean, expected_mean, atol=1e-8)
    np.testing.assert_allclose(prediction.variance, np.diag(expected_covariance), atol=1e-8)
    np.testing.assert_allclose(model.posterior.covariance(X), expected_covariance, atol=1e-8)


def test_prediction_with_weights_as_repeats_is_that_of_repeated_rows() -> None:
    rows = make_rows(23, 20, 1, weights="whole")
    counts = rows.precisions.astype(int)
    repeated = Rows(np.repeat(rows.X, counts, axis=0), np.repeat(rows.y, counts, axis=0), None)
    kernel, lattice, prior = RBF(1.3, 0.5), make_lattice(1, 7.0, 60), mean_prior("constant", 1)
    X = CENTRE[:1] + np.linspace(-1.4, 1.4, 15)[:, None]
    weighted = fit(kernel, rows, lattice, 10**6, NOISE, prior, repeats=True).posterior.predict(X)
    expected_mean, expected_covariance = Dense(kernel, repeated, prior, lattice.period)(X)
    np.testing.assert_allclose(weighted.mean, expected_mean, atol=1e-8)
    np.testing.assert_allclose(weighted.variance, np.diag(expected_covariance), atol=1e-8)


def test_few_features_predict_as_titsias_posterior_does() -> None:
    # q(f) for any features: Kuu = I, mean Φ* B⁻¹ b/σ², covariance K* − Φ*Φ*ᵀ + Φ* B⁻¹ Φ*ᵀ.
    kernel, rows, lattice = Matern32(1.3, 0.5), make_rows(24, 20, 1, 2), make_lattice(1, 7.0, 40)
    model = fit(kernel, rows, lattice, 11, NOISE)
    X = CENTRE[:1] + np.linspace(-1.4, 1.4, 15)[:, None]
    Phi, Phi_new = (model.features.evaluate(kernel, points) for points in (rows.X, X))
    B = np.eye(11) + Phi.T @ Phi / NOISE
    K = wrapped_gram(kernel, X, X, lattice.period)
    covariance = K - Phi_new @ Phi_new.T + Phi_new @ np.linalg.solve(B, Phi_new.T)
    prediction = model.posterior.predict(X)
    expected_mean = Phi_new @ np.linalg.solve(B, Phi.T @ rows.y) / NOISE
    np.testing.assert_allclose(prediction.mean, expected_mean, atol=1e-9)
    np.testing.assert_allclose(prediction.variance, np.diag(covariance), atol=1e-9)
    np.testing.assert_allclose(model.posterior.covariance(X), covariance, atol=1e-9)


@given(
    seed=st.integers(0, 10**6),
    num_dims=st.sampled_from(DIMS),
    index=st.integers(0, 10),
    num_features=st.integers(1, 60),
    log_noise=st.floats(-4.0, 1.0),
    mean=st.sampled_from(MEANS),
)
def test_variance_is_at_least_the_residual_and_that_never_negative(
    seed: int, num_dims: int, index: int, num_features: int, log_noise: float, mean: str | None
) -> None:
    entries = zoo(num_dims)
    kernel = entries[index % len(entries)].kernel
    rows = make_rows(seed, 15, num_dims, 2, "real")
    lattice = make_lattice(num_dims, 5.0, {1: 40, 2: 8, 3: 4}[num_dims])
    prior = mean_prior(mean, num_dims)
    posterior = fit(kernel, rows, lattice, num_features, 10.0**log_noise, prior).posterior
    X = np.concatenate([rows.X, make_rows(seed + 1, 10, num_dims).X])
    variance = posterior.predict(X).variance
    assert posterior.residual >= 0
    assert np.all(variance >= posterior.residual)
    assert np.all(variance <= prior_variance(kernel) * (1 + 1e-6) + prior.prior_variance(X))


def test_variance_is_not_negative_where_rounding_exceeds_it() -> None:
    # Noise of 1e-12 leaves variances of 1e-13, less than the transforms resolve.
    rows = make_rows(0, 100, 1)
    posterior = fit(RBF(1.3, 0.7), rows, make_lattice(1, 5.0, 20), 41, 1e-12).posterior
    assert np.all(posterior.predict(rows.X).variance >= 0)


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [
        *(item for item in all_entries(1) if item[1].name in ("rbf", "rational-quadratic", "sum")),
        *(item for item in all_entries(2, 3) if item[1].name in ("matern32", "additive")),
    ],
    ids=label,
)
def test_diagonal_of_the_covariance_is_the_variance(num_dims: int, entry: Entry) -> None:
    rows = make_rows(25, 15, num_dims, 1, "real")
    lattice = make_lattice(num_dims, 6.0, {1: 40, 2: 8, 3: 4}[num_dims])
    prior = mean_prior("linear", num_dims)
    posterior = fit(entry.kernel, rows, lattice, 41, NOISE, prior).posterior
    X = make_rows(26, 8, num_dims).X
    covariance = posterior.covariance(X)
    np.testing.assert_allclose(np.diag(covariance), posterior.predict(X).variance, rtol=1e-6)
    assert np.linalg.eigvalsh(covariance)[0] > -1e-6


def test_diagonal_of_the_covariance_is_the_variance_for_a_narrow_band() -> None:
    # Next to no mass at ω = 0, and images of 7e-4 of the variance.
    kernel = SpectralMixture([1.0], [[2 * np.pi * 8 / 6]], [[1.5]])
    posterior = fit(kernel, make_rows(25, 15, 1), make_lattice(1, 6.0, 40), 41, NOISE).posterior
    X = make_rows(26, 8, 1).X
    variance = posterior.predict(X).variance
    np.testing.assert_allclose(np.diag(posterior.covariance(X)), variance, atol=1e-8)


def test_single_precision_inputs_are_predicted_in_double_precision() -> None:
    model, _, X = smooth_case(1)
    single = X.astype(np.float32)
    actual, expected = (model.posterior.predict(x) for x in (single, single.astype(np.float64)))
    assert actual.mean.dtype == actual.variance.dtype == np.float64
    np.testing.assert_allclose(actual.mean, expected.mean, rtol=1e-13)
    np.testing.assert_allclose(actual.variance, expected.variance, rtol=1e-12)


def test_no_points_give_no_predictions() -> None:
    model, _, _ = smooth_case(2)
    prediction = model.posterior.predict(np.empty((0, 2)))
    assert prediction.mean.shape == (0, 2)
    assert prediction.variance.shape == (0,)


# ---------------------------------------------------------------------- derivatives


@pytest.mark.parametrize(("num_dims", "mean"), CASES)
def test_derivative_is_the_difference_of_predictions(num_dims: int, mean: str | None) -> None:
    model, _, X = smooth_case(num_dims, mean)
    posterior, step = model.posterior, 1e-3
    for dim in range(num_dims):
        move = step * np.eye(num_dims)[dim]
        derivative = posterior.derivative(X, dim)
        near, far = (
            (posterior.predict(X + i * move).mean - posterior.predict(X - i * move).mean)
            / (2 * i * step)
            for i in (1, 2)
        )
        np.testing.assert_allclose(derivative.mean, (4 * near - far) / 3, atol=1e-7)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("num_dims", [1, 2])
def test_derivative_variance_is_the_difference_of_covariances(
    num_dims: int, mean: str | None
) -> None:
    model, dense, X = smooth_case(num_dims, mean, LONG[num_dims])
    X = X[:4]

    def difference(dim: int, step: float) -> Array:
        move = step * np.eye(num_dims)[dim]
        _, covariance = dense(np.concatenate([X + move, X - move]))
        n = len(X)
        both = np.diag(covariance)[:n] + np.diag(covariance)[n:] - 2 * np.diag(covariance[:n, n:])
        return both / (4 * step**2)

    for dim in range(num_dims):
        actual = model.posterior.derivative(X, dim).variance
        expected = (4 * difference(dim, 1e-2) - difference(dim, 2e-2)) / 3
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=1e-5)


def test_derivative_variance_with_few_features_keeps_what_they_leave_out() -> None:
    # With one constant feature nothing is learned of the derivative: the prior's variance stays.
    kernel = Matern52(1.3, 0.5)
    posterior = fit(kernel, make_rows(27, 20, 1), make_lattice(1, 9.0, 40), 1, NOISE).posterior
    derivative = posterior.derivative(CENTRE[:1] + np.zeros((3, 1)))
    np.testing.assert_allclose(derivative.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(derivative.variance, 1.3 * 2.5 / 1.5 / 0.25, rtol=1e-10)


def test_rough_processes_have_no_derivative() -> None:
    posterior = fit(
        Matern12(1.3, 0.5), make_rows(27, 20, 1), make_lattice(1, 9.0, 40), 21, NOISE
    ).posterior
    with pytest.raises(InputError, match="no derivative: use a smoother one"):
        posterior.derivative(CENTRE[:1] + np.zeros((3, 1)))


@pytest.mark.parametrize("dim", [-1, 2])
def test_derivative_along_a_missing_column_is_refused(dim: int) -> None:
    model, _, X = smooth_case(2)
    with pytest.raises(InputError, match="dim must be a column of X, 0 to 1"):
        model.posterior.derivative(X, dim)


# ---------------------------------------------------------------------- integrals


def box_rule(lower: Array, upper: Array, num_nodes: int) -> tuple[Array, Array]:
    """Gauss–Legendre nodes (n, d) and weights (n,) of a box."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    half, middle = (upper - lower) / 2, (upper + lower) / 2
    axes = [middle[d] + half[d] * nodes for d in range(len(lower))]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(lower))
    products = np.ones(1)
    for d in range(len(lower)):
        products = np.multiply.outer(products, half[d] * weights).ravel()
    return grid, products


@pytest.mark.parametrize(("num_dims", "mean"), CASES)
def test_integral_is_the_quadrature_of_mean_and_covariance(num_dims: int, mean: str | None) -> None:
    model, _, _ = smooth_case(num_dims, mean)
    lower = CENTRE[:num_dims] - np.array([0.7, 0.3, 1.0])[:num_dims]
    upper = CENTRE[:num_dims] + np.array([0.9, 1.0, 0.2])[:num_dims]
    integral = model.posterior.integral(lower, upper)
    nodes, weights = box_rule(lower, upper, {1: 30, 2: 14, 3: 7}[num_dims])
    assert integral.mean.shape == (1, 2)
    expected = weights @ model.posterior.predict(nodes).mean
    np.testing.assert_allclose(integral.mean[0], expected, atol=1e-7)
    variance = weights @ model.posterior.covariance(nodes) @ weights
    np.testing.assert_allclose(integral.variance, [variance], rtol=1e-5)


def test_integrals_of_several_boxes_add_up() -> None:
    posterior = smooth_case(1).model.posterior
    edges = CENTRE[0] + np.array([-1.0, -0.4, 0.1, 1.2])
    parts = posterior.integral(edges[:-1, None], edges[1:, None])
    whole = posterior.integral(edges[:1, None], edges[-1:, None])
    np.testing.assert_allclose(parts.mean.sum(axis=0), whole.mean[0], rtol=1e-10)


def test_integral_over_nothing_is_nothing() -> None:
    point = CENTRE[:1][None]
    integral = smooth_case(1).model.posterior.integral(point, point)
    np.testing.assert_allclose(integral.mean, 0.0, atol=1e-15)
    np.testing.assert_allclose(integral.variance, 0.0, atol=1e-15)


@pytest.mark.parametrize("num_features", [3, 15])
def test_integral_variance_with_few_features_errs_on_the_large_side_only(
    num_features: int,
) -> None:
    # Modes beyond the lattice enter with their largest share.
    kernel, lattice = Matern32(1.3, 0.4), make_lattice(1, 7.0, 12)
    posterior = fit(kernel, make_rows(28, 20, 1), lattice, num_features, NOISE).posterior
    lower, upper = CENTRE[:1] - 0.7, CENTRE[:1] + 0.9
    nodes, weights = box_rule(lower, upper, 60)
    expected = weights @ posterior.covariance(nodes) @ weights
    actual = posterior.integral(lower, upper).variance[0]
    assert expected * (1 - 1e-4) <= actual
    assert actual <= expected + posterior.residual * 1.6**2


@pytest.mark.parametrize(
    ("lower", "upper"), [([[0.5]], [[0.1]]), ([[0.0]], [[0.1], [0.2]]), ([[0.0, 0.0]], [[0.1]])]
)
def test_impossible_boxes_are_refused(lower: list, upper: list) -> None:
    with pytest.raises(InputError, match="lower ≤ upper"):
        smooth_case(1).model.posterior.integral(np.array(lower), np.array(upper))


# ---------------------------------------------------------------------- draws

NUM_DRAWS = 4000


@pytest.mark.parametrize("num_features", [10**6, 9], ids=["all features", "few features"])
@pytest.mark.parametrize("num_dims", [1, 2])
def test_draws_have_the_posteriors_mean_and_covariance(num_dims: int, num_features: int) -> None:
    """Fails by chance with probability below 1e-4: 20 tests at 5e-6 each, and the seed is fixed."""
    lengthscale, extent = SMOOTH[num_dims]
    kernel = RBF(1.3, np.full(num_dims, lengthscale))
    rows = make_rows(29, 20, num_dims, 2)
    lattice = make_lattice(num_dims, 7.0, extent)
    model = fit(kernel, rows, lattice, num_features, NOISE, mean_prior("linear", num_dims))
    X = CENTRE[:num_dims] + np.random.default_rng(30).uniform(-1.2, 1.2, (4, num_dims))
    draws = model.posterior.draw(NUM_DRAWS, np.random.default_rng(31))(X)
    assert draws.shape == (4, NUM_DRAWS, 2)
    mean, covariance = model.posterior.predict(X).mean, model.posterior.covariance(X)
    chol = np.linalg.cholesky(covariance)
    alarm = 5e-6
    whitened = np.linalg.solve(chol, (draws - mean[:, None, :]).reshape(4, -1))
    whitened = whitened.reshape(4, NUM_DRAWS, 2)
    for target in range(2):
        z = whitened[:, :, target]
        # Standard normal, all of it: the means, ...
        assert chi2.sf(NUM_DRAWS * np.sum(z.mean(axis=1) ** 2), 4) > alarm
        # ... the squares, on both sides, ...
        square = np.sum(z**2)
        assert chi2.sf(square, z.size) > alarm / 2
        assert chi2.cdf(square, z.size) > alarm / 2
        # ... each alone, and the products of pairs, nearly normal by their number.
        for i in range(4):
            for j in range(i):
                score = np.sum(z[i] * z[j]) / np.sqrt(NUM_DRAWS)
                assert 2 * norm.sf(abs(score)) > alarm
    # Draws of different targets are independent.
    cross = np.sum(whitened[:, :, 0] * whitened[:, :, 1]) / np.sqrt(4 * NUM_DRAWS)
    assert 2 * norm.sf(abs(cross)) > alarm


def test_a_draw_is_one_function_wherever_it_is_evaluated() -> None:
    model, _, X = smooth_case(2)
    functions = model.posterior.draw(3, np.random.default_rng(0))
    together = functions(X)
    for n in range(len(X)):
        np.testing.assert_allclose(functions(X[n : n + 1])[0], together[n], atol=1e-9)
    doubled = functions(np.concatenate([X, X]))
    np.testing.assert_allclose(doubled[: len(X)], doubled[len(X) :], atol=1e-9)


def test_draws_are_as_random_as_their_generator() -> None:
    model, _, X = smooth_case(1)
    first, again, other = (
        model.posterior.draw(2, np.random.default_rng(seed))(X) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first[:, 0] - first[:, 1]).max() > 1e-3


# ---------------------------------------------------------------------- outside the domain


def far_points(num_dims: int) -> Array:
    """Two neighbours, and one by itself, where the kernel has long vanished."""
    X = np.full((3, num_dims), 40.0)
    X[1] += 0.2
    X[2] -= 100
    return X


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("num_dims", [1, 2])
def test_prediction_outside_is_the_prior_with_the_posterior_of_the_mean_function(
    num_dims: int, mean: str | None
) -> None:
    model, dense, _ = smooth_case(num_dims, mean, LONG[num_dims])
    X = far_points(num_dims)
    expected_mean, expected_covariance = Dense(dense.kernel, dense.rows, dense.mean, None)(X)
    scale = 1 + np.abs(expected_covariance).max()
    with pytest.warns(OutOfDomainWarning):
        prediction = model.posterior.predict(X)
    with pytest.warns(OutOfDomainWarning):
        covariance = model.posterior.covariance(X)
    np.testing.assert_allclose(prediction.mean, expected_mean, atol=1e-6 * scale)
    np.testing.assert_allclose(prediction.variance, np.diag(expected_covariance), rtol=1e-6)
    np.testing.assert_allclose(covariance, expected_covariance, atol=1e-6 * scale)


@pytest.mark.parametrize("mean", MEANS)
def test_covariance_between_inside_and_outside_is_that_of_the_mean_function(
    mean: str | None,
) -> None:
    model, dense, inside = smooth_case(1, mean, LONG[1])
    X = np.concatenate([inside[:3], far_points(1)])[[0, 3, 1, 4, 2, 5]]
    expected_mean, expected_covariance = Dense(dense.kernel, dense.rows, dense.mean, None)(X)
    scale = 1 + np.abs(expected_covariance).max()
    with pytest.warns(OutOfDomainWarning):
        covariance = model.posterior.covariance(X)
    with pytest.warns(OutOfDomainWarning):
        prediction = model.posterior.predict(X)
    np.testing.assert_allclose(covariance, expected_covariance, atol=1e-6 * scale)
    np.testing.assert_allclose(prediction.mean, expected_mean, atol=1e-6 * scale)


def test_prediction_inside_does_not_warn() -> None:
    model, _, X = smooth_case(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.posterior.predict(X)
        model.posterior.covariance(X)
    assert caught == []


@pytest.mark.parametrize("method", ["predict", "covariance"])
def test_one_warning_per_call_says_how_many_and_what_to_do(method: str) -> None:
    model, _, X = smooth_case(1)
    mixed = np.concatenate([X, far_points(1)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(model.posterior, method)(mixed)
    (warning,) = caught
    assert issubclass(warning.category, OutOfDomainWarning)
    assert "3 of 12 points lie outside" in str(warning.message)
    assert "Fit with a larger `domain`" in str(warning.message)


def test_points_inside_are_predicted_the_same_with_points_outside_beside_them() -> None:
    model, _, X = smooth_case(2)
    alone = model.posterior.predict(X)
    with pytest.warns(OutOfDomainWarning):
        mixed = model.posterior.predict(np.concatenate([far_points(2), X]))
    np.testing.assert_allclose(mixed.mean[3:], alone.mean, rtol=1e-12)
    np.testing.assert_allclose(mixed.variance[3:], alone.variance, rtol=1e-12)


def test_what_cannot_be_had_outside_is_refused() -> None:
    model, _, X = smooth_case(1)
    mixed = np.concatenate([X, far_points(1)])
    message = r"3 of 12 points lie outside the covered domain \[-1.2, 1.8\]"
    with pytest.raises(InputError, match=message):
        model.posterior.draw(1, np.random.default_rng(0))(mixed)
    with pytest.raises(InputError, match=message):
        model.posterior.derivative(mixed)
    with pytest.raises(InputError, match="outside the covered domain"):
        model.posterior.integral(np.array([[0.0]]), np.array([[50.0]]))
    with pytest.raises(InputError, match="outside the covered domain"):
        model.posterior.integral(np.array([[-50.0]]), np.array([[0.0]]))


def test_domain_is_closed_and_looks_at_every_column() -> None:
    domain = Domain(np.array([0.0, 1.0]), np.array([1.0, 3.0]))
    assert domain.outside(np.array([[0.0, 1.0], [1.0, 3.0], [0.5, 2.0]])) is None
    assert domain.outside(np.empty((0, 2))) is None
    outside = domain.outside(np.array([[0.5, 2.0], [1.5, 2.0], [0.5, 0.5], [-1.0, 9.0]]))
    np.testing.assert_array_equal(outside, [False, True, True, True])
