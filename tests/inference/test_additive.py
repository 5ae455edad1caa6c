"""Additive models against the same written out with dense matrices."""

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal

from orthogp import InputError, OutOfDomainWarning
from orthogp.features import AdditiveLattice, MeanPrior
from orthogp.features.series import lattice_masses
from orthogp.inference import Domain, moments_from_rows, moments_from_statistics
from orthogp.inference.bounds import factorise, titsias_bound, unwhiten, upper_bound, whiten
from orthogp.inference.certificates import Images, judge_components
from orthogp.inference.component_posterior import VarianceSeries, lattice_posterior
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import Start, pack
from orthogp.inference.posterior import ComponentSums
from orthogp.kernels import RBF, Categorical, Cyclic, Matern32
from orthogp.kernels.terms import component_kernels, join_terms, split_terms
from orthogp.rows import Rows
from orthogp.statistics import AdditiveStatistics, ComponentLattice, FrequencyLattice
from tests import oracles

NOISE = 0.1
KERNEL = join_terms(
    split_terms(
        RBF(1.0, 0.5).on(0)
        + Cyclic(RBF(0.7, 0.3), 1.0).on(1)
        + Categorical(4, 0.5).on(2)
        + RBF(0.8, [0.6, 0.9]).on(3, 0)
        + (Categorical(4, 0.3).on(2) * RBF(1.0, 0.7).on(4)),
        5,
    )
)
KERNELS = component_kernels(KERNEL, [term.dims for term in KERNEL.terms])
LATTICES = [
    FrequencyLattice(2 * np.pi / 4.0, 30, 0.5),
    FrequencyLattice(2 * np.pi / 1.0, 12, 0.5),
    FrequencyLattice(2 * np.pi / 4.0, 2, 0.0),
    FrequencyLattice(2 * np.pi / np.array([5.0, 6.0]), [22, 16], 0.5),
    FrequencyLattice(2 * np.pi / np.array([4.0, 5.0]), [2, 18], [0.0, 0.5]),
]
COMPONENTS = tuple(
    ComponentLattice(term.columns, lattice, lattice.half_indices())
    for term, lattice in zip(split_terms(KERNEL, 5), LATTICES, strict=True)
)
MEAN = MeanPrior(4.0, 2.0, np.full(5, 0.5), np.array([0.5, np.inf, np.inf, 0.5, 0.5]))


def inputs(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 5))
    X[:, 2] = rng.integers(0, 4, n)
    return X


def bell(lag, lengthscale, period):
    """A squared exponential on a circle, with the mean of its images taken off."""
    lag = lag - period * np.round(lag / period)
    return oracles.wrapped(
        lambda x: oracles.rbf(x, 1.0, lengthscale), lag[..., None], np.array([period]), 4
    )


def statistics_of(X, y, weights, mean):
    covariates = mean.covariates if mean.slope_variance else None
    return AdditiveStatistics.from_data(COMPONENTS, Rows(X, y, weights), covariates=covariates)


class Problem:
    def __init__(self, mean, num_features=10_000):
        rng = np.random.default_rng(0)
        self.mean = mean
        self.X, self.y = inputs(60, 1), rng.standard_normal((60, 2))
        self.weights = rng.uniform(0.5, 2.0, 60)
        self.statistics = statistics_of(self.X, self.y, self.weights, mean)
        self.features = AdditiveLattice.select(KERNEL, COMPONENTS, num_features, mean)
        self.moments = moments_from_statistics(
            self.features, KERNEL, self.statistics, repeats=False
        )
        self.domain = Domain(np.full(5, -0.5), np.array([1.5, 1.5, 3.5, 1.5, 1.5]))
        self.posterior: Any = lattice_posterior(
            self.features,
            (KERNEL, NOISE),
            self.moments,
            self.domain,
            None,
            tuple(map(ComponentSums.of, self.statistics.parts)),
        )

    def prior(self, A, B, *, only=None):
        """The prior covariance of f, or of one component, between rows."""
        lag = A[:, None, :] - B[None, :, :]
        same = lag[..., 2] == 0
        parts = [
            bell(lag[..., 0], 0.5, 4.0),
            0.7 * bell(lag[..., 1], 0.3, 1.0),
            0.5 * same,
            0.8 * bell(lag[..., 3], 0.6, 5.0) * bell(lag[..., 0], 0.9, 6.0),
            0.3 * same * bell(lag[..., 4], 0.7, 5.0),
        ]
        total = sum(parts) if only is None else parts[only]
        if only is None:
            slopes = self.mean.covariates(A) @ self.mean.covariates(B).T
            total = total + self.mean.offset_variance + self.mean.slope_variance * slopes
        return total

    def exact(self, cross, prior):
        """Posterior mean and covariance of what has covariance `cross` (n, rows) with f."""
        K = self.prior(self.X, self.X) + NOISE * np.diag(1 / self.weights)
        gain = np.linalg.solve(K, cross.T).T
        return gain @ self.y, prior - gain @ cross.T


@pytest.fixture(scope="module")
def problem():
    return Problem(MEAN)


@pytest.fixture(scope="module")
def truncated():
    return Problem(MeanPrior(4.0), 101)


def test_moments_from_sums_are_moments_from_rows(truncated):
    direct = moments_from_rows(
        truncated.features,
        KERNEL,
        truncated.X,
        truncated.y,
        truncated.weights,
        repeats=False,
    )
    for found, expected in zip(truncated.moments, direct, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_features_leave_nothing_out_if_there_are_enough(problem):
    assert problem.posterior.residual < 1e-8
    assert np.all(problem.posterior.residuals >= 0)


def test_posterior_is_the_exact_one(problem):
    X = inputs(9, 2)
    mean, covariance = problem.exact(problem.prior(X, problem.X), problem.prior(X, X))
    prediction = problem.posterior.predict(X)
    np.testing.assert_allclose(prediction.mean, mean, atol=1e-6)
    np.testing.assert_allclose(problem.posterior.predict_mean(X), mean, atol=1e-6)
    np.testing.assert_allclose(prediction.variance, np.diag(covariance), atol=1e-6)
    np.testing.assert_allclose(problem.posterior.covariance(X), covariance, atol=1e-6)


def test_variance_by_transforms_is_the_same(problem, truncated):
    X = inputs(50, 3)
    for own in (problem, truncated):
        series = own.posterior._variance_series
        assert isinstance(series, VarianceSeries)
        np.testing.assert_allclose(series(X), own.posterior.predict(X).variance, atol=1e-9)


@pytest.mark.parametrize("j", range(5))
def test_components_are_centred_over_the_rows(problem, j):
    X = inputs(6, 4)
    weights = problem.weights / problem.weights.sum()

    def centred(A):
        """Covariances of f_j(a) − its average with f, and with itself."""
        average = weights @ problem.prior(problem.X, problem.X, only=j)
        cross = problem.prior(A, problem.X, only=j) - average
        to_average = problem.prior(A, problem.X, only=j) @ weights
        own = problem.prior(A, A, only=j) - to_average[:, None] - to_average
        return cross, own + average @ weights

    cross, own = centred(X)
    mean, covariance = problem.exact(cross, own)
    found = problem.posterior.component(j, X)
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(found.variance, np.diag(covariance), atol=1e-6)
    over_rows = problem.posterior.component(j, problem.X).mean
    np.testing.assert_allclose(weights @ over_rows, 0.0, atol=1e-8)
    share = (
        weights
        @ over_rows**2
        / np.array([np.cov(y, aweights=weights, ddof=0) for y in problem.y.T])
    )
    np.testing.assert_allclose(problem.posterior.shares.components[j], share, atol=1e-8)


def test_residual_share_is_that_of_the_rows(problem):
    residual = problem.y - problem.posterior.predict(problem.X).mean
    weights = problem.weights / problem.weights.sum()
    variance = np.array([np.cov(y, aweights=weights, ddof=0) for y in problem.y.T])
    np.testing.assert_allclose(
        problem.posterior.shares.residual, weights @ residual**2 / variance, atol=1e-8
    )


def test_what_features_leave_out_of_a_component_is_centred_too(truncated):
    """The same q(f) written out: features from the posterior, the rest of the prior unchanged."""
    own, X, j = truncated, inputs(6, 5), 3
    weights = own.weights / own.weights.sum()
    both = np.concatenate([X, own.X])
    part = own.features.component_design(j, both)
    amplitudes = np.sqrt(own.features.squared_amplitudes(own.features.masses(KERNEL)))
    at = own.features.slices[j]
    Phi = part * amplitudes[at]
    zero = own.features.parts[j].masses(KERNELS[j])[0]
    rest = own.prior(both, both, only=j) - Phi @ Phi.T - zero
    functional = np.concatenate([np.eye(len(X)), np.tile(-weights, (len(X), 1))], axis=1)
    B = np.eye(len(own.moments.gram)) + own.moments.gram / NOISE
    seen = functional @ Phi @ np.linalg.inv(B)[at, at] @ Phi.T @ functional.T
    expected = np.diag(seen + functional @ rest @ functional.T)
    assert own.posterior.residuals[j] > 1e-4
    np.testing.assert_allclose(own.posterior.component(j, X).variance, expected, atol=1e-7)


def test_bounds_enclose_the_log_marginal_likelihood(problem, truncated):
    for own in (problem, truncated):
        K = own.prior(own.X, own.X) + NOISE * np.diag(1 / own.weights)
        exact = multivariate_normal(cov=K).logpdf(own.y.T).sum()
        chol = factorise(own.moments.gram, NOISE)
        lower = titsias_bound(own.moments, NOISE, chol).total
        mean = unwhiten(chol, whiten(chol, own.moments.projection)) / NOISE
        at, images = Start(KERNEL, NOISE), Images(0.0, 0.0)
        verdict = judge_components(own.features, at, own.statistics, own.moments, mean, images)
        upper = upper_bound(own.moments, NOISE, verdict.guarantee.left_out, chol)
        upper = upper._replace(data_fit=min(upper.data_fit, verdict.data_fit)).total
        assert lower <= exact + 1e-6
        assert exact <= upper + 1e-6
        assert upper - lower < (1e-4 if own is problem else 200)


def test_gradients_are_those_of_finite_differences(truncated):
    kernel = join_terms(
        split_terms(KERNEL + Matern32(0.4, 0.3).on(4) + Cyclic(Matern32(0.3, 0.4), 1.0).on(1), 5)
    )
    terms = split_terms(kernel, 5)
    lattices = [
        FrequencyLattice([2 * np.pi / (period or 5.0) for period in term.periods], 2, 0.0)
        for term in terms
    ]
    components = [
        ComponentLattice(term.columns, lattice, lattice.half_indices())
        for term, lattice in zip(terms, lattices, strict=True)
    ]
    assert len(components) == 6
    sums = AdditiveStatistics.from_data(
        components, Rows(truncated.X, truncated.y, truncated.weights)
    )
    features = AdditiveLattice.select(kernel, components, 61, MeanPrior(4.0))
    objective = LatticeObjective(features, kernel, sums, repeats=False)
    start = np.append(pack(kernel, objective.slots), np.log(0.3))
    error = check_grad(
        lambda v: objective.value_and_gradient(v)[0],
        lambda v: objective.value_and_gradient(v)[1],
        start,
        epsilon=1e-6,
    )
    assert error < 1e-4 * np.linalg.norm(objective.value_and_gradient(start)[1])


def test_expected_curvature_is_the_fisher_information(truncated):
    """½ tr(Σ⁻¹ ∂Σ Σ⁻¹ ∂Σ') with the derivatives of Σ = Q + σ²I by differences."""
    own = truncated
    sums = AdditiveStatistics.from_data(COMPONENTS, Rows(own.X, own.y))
    objective = LatticeObjective(own.features, KERNEL, sums)
    vector = np.append(pack(KERNEL, objective.slots), np.log(NOISE))

    def covariance(at):
        Phi = own.features.evaluate(objective.kernel_at(at), own.X)
        return Phi @ Phi.T + np.exp(at[-1]) * np.eye(len(own.X))

    steps = 1e-4 * np.eye(len(vector))
    slopes = [(covariance(vector + s) - covariance(vector - s)) / 2e-4 for s in steps]
    solved = [np.linalg.solve(covariance(vector), slope) for slope in slopes]
    expected = own.y.shape[1] / 2 * np.array([[np.sum(a * b.T) for b in solved] for a in solved])
    eigenvalues, vectors = np.linalg.eigh(expected)
    expected = (vectors * np.maximum(eigenvalues, 1.0)) @ vectors.T
    np.testing.assert_allclose(objective.curvature(vector), expected, atol=1e-4)


def test_features_are_those_of_the_largest_masses(truncated):
    assert truncated.features.num_features == 101
    kept = [own.masses(k)[1:] for own, k in zip(truncated.features.parts, KERNELS, strict=True)]
    left = [
        masses_left_out(own, k, part)
        for own, k, part in zip(COMPONENTS, KERNELS, truncated.features.parts, strict=True)
    ]
    assert min(m.min() for m in kept if len(m)) >= max(m.max() for m in left if len(m)) - 1e-12
    with pytest.raises(InputError, match="at least 1"):
        AdditiveLattice.select(KERNEL, COMPONENTS, 0)


def masses_left_out(component, kernel, part):
    masses = lattice_masses(kernel, component.lattice, component.indices)
    chosen = set(map(tuple, part.indices.tolist()))
    return masses[[tuple(index) not in chosen for index in component.indices.tolist()]]


@pytest.mark.slow
def test_derivative_is_that_of_the_mean(problem):
    X, step = inputs(5, 6), 1e-5
    for dim in (0, 1, 3):
        ahead, behind = X.copy(), X.copy()
        ahead[:, dim] += step
        behind[:, dim] -= step
        posterior = problem.posterior
        slope = (posterior.predict(ahead).mean - posterior.predict(behind).mean) / (2 * step)
        found = posterior.derivative(X, dim)
        np.testing.assert_allclose(found.mean, slope, atol=1e-5)
        pair = np.concatenate([ahead[:1], behind[:1]])
        contrast = np.array([1, -1]) / (2 * step)
        expected = contrast @ posterior.covariance(pair) @ contrast
        assert found.variance[0] == pytest.approx(expected, rel=1e-3)
    with pytest.raises(InputError, match="column 2 have no derivative"):
        problem.posterior.derivative(X, 2)
    with pytest.raises(InputError, match="up to three columns"):
        problem.posterior.integral(X, X)


def test_draws_have_the_posterior_s_moments(truncated):
    X = inputs(4, 7)
    draws = truncated.posterior.draw(1000, np.random.default_rng(0))(X)
    assert draws.shape == (4, 1000, 2)
    covariance = truncated.posterior.covariance(X)
    deviation = np.sqrt(np.diag(covariance))
    error = (draws.mean(axis=1) - truncated.posterior.predict(X).mean) / deviation[:, None]
    # Eight means, each within 5 standard errors but once in a million.
    assert np.abs(error).max() < 5 / np.sqrt(1000)
    np.testing.assert_allclose(np.cov(draws[..., 0]), covariance, atol=0.25 * deviation.max() ** 2)


def test_beyond_the_domain_a_component_is_as_under_the_prior(problem):
    X = inputs(3, 8)
    X[0, 4] = 30.0  # the last component only
    X[1, 1] += 50.0  # a circle has no end
    with pytest.warns(OutOfDomainWarning, match="1 of 3"):
        outside = problem.posterior.predict(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfDomainWarning)
        np.testing.assert_allclose(problem.posterior.predict_mean(X), outside.mean, atol=1e-8)
        covariance = problem.posterior.covariance(X)
        alone = problem.posterior.component(4, X)
    np.testing.assert_allclose(np.diag(covariance), outside.variance, atol=1e-6)
    assert alone.mean[0] == pytest.approx(0.0)
    assert alone.variance[0] == pytest.approx(0.3)
    cross = problem.prior(X, problem.X)
    cross[0] -= problem.prior(X, problem.X, only=4)[0]
    prior = problem.prior(X, X)
    prior[0, 1:] -= problem.prior(X, X, only=4)[0, 1:]
    prior[1:, 0] = prior[0, 1:]
    mean, expected = problem.exact(cross, prior)
    np.testing.assert_allclose(outside.mean, mean, atol=1e-6)
    np.testing.assert_allclose(covariance, expected, atol=1e-6)
    with pytest.raises(InputError, match="1 of 3 points lie outside"):
        problem.posterior.draw(1, np.random.default_rng(0))(X)
