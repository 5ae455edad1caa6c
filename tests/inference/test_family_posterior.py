"""Posteriors of families against dense linear algebra, and bounds around the exact value."""

import numpy as np
import pytest

from orthogp.features import Trig
from orthogp.inference import Domain
from orthogp.inference.bounds import factorise, projected_bound, titsias_bound, upper_bound
from orthogp.inference.certificates import (
    errors_of_features,
    fine_points,
    unexplained_by_rows,
    unexplained_by_series,
)
from orthogp.inference.moments import SeriesSource
from orthogp.inference.parameters import Start, learned_slots, pack
from orthogp.inference.predictive import FamilyPosterior, JointDraws
from orthogp.kernels import RBF, Matern32
from tests import oracles
from tests.families import COUNTS, FAMILIES, Family, label, on_lattice
from tests.problems import (
    CENTRE,
    Rows,
    covariances,
    make_lattice,
    make_rows,
    mean_covariance,
    mean_prior,
    wrapped_gram,
)

EXTENTS = {1: 60, 2: 14, 3: 7}
NOISE = 0.1
# All families in one and two columns, and one in three.
PAIRS = [(d, family) for family in FAMILIES for d in (1, 2) if d <= family.most_dims]
PAIRS.append((3, FAMILIES[0]))
# Harmonic and random Fourier features replace the prior.
PROJECTING = [pair for pair in PAIRS if pair[1].name not in ("harmonic", "random-fourier")]


def kernel_for(family: Family, num_dims: int):
    names = family.kernels
    if names is not None and "rbf" not in names:
        return Matern32(1.2, np.full(num_dims, 0.6))
    return RBF(1.2, np.full(num_dims, 0.6))


def make_posterior(family: Family, rows: Rows, mean: str | None, count: int | None = None):
    num_dims = rows.num_dims
    kernel, prior = kernel_for(family, num_dims), mean_prior(mean, num_dims)
    lattice = make_lattice(num_dims, 5.0, EXTENTS[num_dims])
    features = on_lattice(family, kernel, lattice, count)
    statistics = rows.statistics(lattice, prior)
    source = SeriesSource(features, kernel, learned_slots(kernel), statistics, prior, repeats=False)
    moments = source.moments(pack(kernel, source.slots))
    centre = CENTRE[:num_dims]
    domain = Domain(centre - 1.3, centre + 1.3)
    posterior = FamilyPosterior.from_moments(
        features, Start(kernel, NOISE), prior, moments, domain, 1
    )
    return posterior, statistics, moments


def prior_gram(posterior: FamilyPosterior, A, B):
    """K between rows, mean function included."""
    features = posterior.features
    if not features.projects:
        K = features.evaluate(posterior.kernel, A) @ features.evaluate(posterior.kernel, B).T
    elif features.wrapped:
        K = wrapped_gram(posterior.kernel, A, B, features.lattice.period)
    else:
        K = covariances(posterior.kernel, A[:, None, :] - B[None, :, :])
    return K + mean_covariance(posterior.mean_prior, A, B)


@pytest.mark.parametrize(("num_dims", "family"), PAIRS, ids=label)
@pytest.mark.parametrize("mean", [None, "linear"])
def test_prediction_is_that_of_the_projected_process(
    family: Family, num_dims: int, mean: str | None
) -> None:
    rows = make_rows(5, 40, num_dims, 2, "real")
    posterior, _, _ = make_posterior(family, rows, mean)
    prior = posterior.mean_prior
    new = make_rows(6, 9, num_dims).X

    def Phi(X):
        return np.concatenate(
            [posterior.features.evaluate(posterior.kernel, X), prior.features(X)], axis=1
        )

    # Titsias' posterior, written with kernels: Q is what the features explain.
    Q, Q_new = Phi(rows.X) @ Phi(rows.X).T, Phi(new) @ Phi(rows.X).T
    mean_expected, within = oracles.posterior(
        Q, Q_new, Phi(new) @ Phi(new).T, rows.y, NOISE / rows.precisions
    )
    covariance = prior_gram(posterior, new, new) - Phi(new) @ Phi(new).T + within
    prediction = posterior.predict(new)
    np.testing.assert_allclose(prediction.mean, mean_expected, atol=1e-8)
    np.testing.assert_allclose(posterior.covariance(new), covariance, atol=1e-8)
    np.testing.assert_allclose(prediction.variance, np.diag(covariance), atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_outside_the_domain_the_process_is_the_prior(family: Family) -> None:
    posterior, _, _ = make_posterior(family, make_rows(5, 40, 1), "linear")
    far = CENTRE[:1] + np.array([[1.5], [9.0]])
    with pytest.warns(UserWarning, match="outside the covered domain"):
        prediction = posterior.predict(far)
    columns = posterior.mean_prior.features(far)
    np.testing.assert_allclose(prediction.mean, columns @ posterior.mean[-2:], rtol=1e-9)
    assert np.all(prediction.variance > posterior.prior_variance)
    with pytest.warns(UserWarning, match="outside the covered domain"):
        covariance = posterior.covariance(far)
    np.testing.assert_allclose(np.diag(covariance), prediction.variance, rtol=1e-9)


@pytest.mark.parametrize(("num_dims", "family"), PROJECTING, ids=label)
@pytest.mark.parametrize("count", [5, None])
def test_bounds_enclose_the_exact_log_marginal_likelihood(
    family: Family, num_dims: int, count: int | None
) -> None:
    rows = make_rows(7, 40, num_dims, 2, "real")
    posterior, statistics, moments = make_posterior(family, rows, "linear", count)
    assert posterior.features.projects
    K = prior_gram(posterior, rows.X, rows.X)
    exact = oracles.log_marginal_likelihood(K, rows.y, NOISE / rows.precisions)
    chol = factorise(moments.gram, NOISE)
    assert titsias_bound(moments, NOISE, chol).total <= exact + 1e-6
    loose = upper_bound(moments, NOISE, None, chol).total
    assert exact <= loose + 1e-6
    if posterior.features.wrapped:
        sharp = sharp_bound(posterior, statistics, moments)
        assert exact - 1e-6 <= sharp


def unexplained(posterior: FamilyPosterior, statistics, moments, rows: Rows):
    """What the features leave out, by the sums for those of the wrapped prior, else by the rows."""
    features, prior, mean = posterior.features, posterior.mean_prior, posterior.mean
    at = Start(posterior.kernel, NOISE)
    if features.wrapped:
        return unexplained_by_series(features, at, statistics, prior, moments, mean)
    return unexplained_by_rows(features, at, rows, prior, moments, mean)


def sharp_bound(posterior: FamilyPosterior, statistics, moments) -> float:
    found = unexplained(posterior, statistics, moments, None)
    return projected_bound(moments, NOISE).total + float(np.sum(found.size**2)) / 2


@pytest.mark.parametrize(("num_dims", "family"), PROJECTING, ids=label)
@pytest.mark.parametrize("count", [5, 9, None])
@pytest.mark.parametrize("mean", [None, "linear"])
def test_the_exact_process_lies_within_what_features_certify(
    family: Family, num_dims: int, count: int | None, mean: str | None
) -> None:
    rows = make_rows(7, 60, num_dims, 2, "real")
    posterior, statistics, moments = make_posterior(family, rows, mean, count)
    features, kernel = posterior.features, posterior.kernel
    K = prior_gram(posterior, rows.X, rows.X)
    found = unexplained(posterior, statistics, moments, rows)
    Phi = features.evaluate(kernel, rows.X)
    both = np.concatenate([Phi, posterior.mean_prior.features(rows.X)], axis=1)
    R = K - both @ both.T
    root = np.sqrt(rows.precisions)
    assert np.linalg.eigvalsh(root[:, None] * R * root)[-1] <= found.norm * (1 + 1e-9)
    v = rows.precisions[:, None] * (rows.y - both @ posterior.mean) / NOISE
    squares = np.sum(v * (R @ v), axis=0)
    assert np.all(squares <= found.size**2 * (1 + 1e-6) + 1e-9)
    # Nothing but rounding and what lies beyond the lattice is added.
    assert np.all(found.size <= 1.1 * np.sqrt(squares) + 1e-3)

    # At rows, between them, and where there are none.
    box = Domain(CENTRE[:num_dims] - 1, CENTRE[:num_dims] + 1)
    rng = np.random.default_rng(0)
    points = np.concatenate([rows.X[:20], rng.uniform(*box, (200, num_dims)), [box.lower]])
    mean_there, covariance = oracles.posterior(
        K,
        prior_gram(posterior, points, rows.X),
        prior_gram(posterior, points, points),
        rows.y,
        NOISE / rows.precisions,
    )
    exact = np.diag(covariance)
    predicted = posterior.predict(points)
    off = np.abs(predicted.mean - mean_there).max(axis=1) / np.sqrt(exact)
    change = np.abs(predicted.variance / exact - 1)
    solution, at = (posterior.mean, posterior.chol), Start(kernel, NOISE)
    means, variances, _ = errors_of_features(at, moments, found, solution)
    assert off.max() <= means + 1e-6
    assert change.max() <= variances + 1e-6
    grid = fine_points(features, box)
    if grid is None:
        return
    grid = posterior.mean_prior.with_average_covariates(grid)
    columns = np.concatenate(
        [features.evaluate(kernel, grid), posterior.mean_prior.features(grid)], axis=1
    )
    left = features.residual_variance(kernel, grid)
    sharper, closer, _ = errors_of_features(at, moments, found, solution, (columns, left))
    assert off.max() <= sharper + 1e-6
    assert change.max() <= closer + 1e-6
    assert sharper <= means
    assert closer <= variances


def test_sharp_upper_bound_is_within_a_nat_where_the_trace_bound_is_far() -> None:
    rows = make_rows(8, 400, 1)
    posterior, statistics, moments = make_posterior(Family("trig", Trig), rows, None, 15)
    chol = factorise(moments.gram, NOISE)
    K = prior_gram(posterior, rows.X, rows.X)
    exact = oracles.log_marginal_likelihood(K, rows.y, NOISE)
    sharp = sharp_bound(posterior, statistics, moments)
    assert sharp - exact < 0.1 * (upper_bound(moments, NOISE, None, chol).total - exact)


def test_draws_have_the_posterior_covariance() -> None:
    # 20,000 draws of 3 values: the largest of 6 covariances deviates by 6 standard errors with
    # probability below 1e-7.
    posterior, _, _ = make_posterior(Family("trig", Trig), make_rows(5, 40, 1, 2), "constant")
    new = make_rows(6, 3, 1).X
    draws = posterior.draw(20_000, np.random.default_rng(0))
    assert isinstance(draws, JointDraws)
    values = draws(new)
    assert values.shape == (3, 20_000, 2)
    np.testing.assert_array_equal(values, draws(new))
    expected = posterior.covariance(new)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    for j in range(2):
        error = np.cov(values[:, :, j]) - expected
        assert np.all(np.abs(error) < 6 * np.sqrt(2 / 20_000) * scale)
    centred = values.mean(axis=1) - posterior.predict(new).mean
    assert np.all(np.abs(centred) < 6 * np.sqrt(np.diag(expected) / 20_000)[:, None])
    with pytest.raises(ValueError, match="up to 5000 points"):
        draws(np.zeros((5001, 1)))


def test_counts_are_what_was_asked_for() -> None:
    posterior, _, _ = make_posterior(Family("trig", Trig), make_rows(5, 10, 2), None)
    assert posterior.features.num_features == COUNTS[2]
