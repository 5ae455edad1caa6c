"""Bounds on means, variances and the evidence hold for the exact process of the kernel itself."""

import numpy as np
import pytest
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice, Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import lattice_masses
from orthogp.inference import known_modes
from orthogp.inference.bounds import factorise, one_pass_bound, unwhiten, whiten
from orthogp.inference.certificates import enough_modes, judge, judge_components, polish
from orthogp.inference.component_posterior import lattice_posterior
from orthogp.inference.known_modes import KnownModes, largest_density, unseen, unseen_beyond
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.parameters import Start
from orthogp.inference.posterior import ComponentSums, covariance_matrix
from orthogp.kernels import (
    RBF,
    Categorical,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Rotated,
)
from orthogp.kernels.terms import join_terms, split_terms
from orthogp.learning.layout import Layout
from orthogp.learning.limits import images, required_period, wrap_error
from orthogp.rows import Domain, Rows
from orthogp.statistics import (
    AdditiveStatistics,
    ComponentLattice,
    FourierStatistics,
    FrequencyLattice,
)

EXTENTS = {1: 600, 2: 24, 3: 8}


def rows(rng: np.random.Generator, num_rows: int, num_dims: int) -> NDArray[np.float64]:
    """Rows in the unit box, with a gap and some of them twice."""
    X = rng.uniform(0, 1, (num_rows, num_dims))
    X[:, 0] = np.where(X[:, 0] < 0.5, 0.6 * X[:, 0], X[:, 0])
    X[-3:] = X[:3]
    return X


def means(num_dims: int) -> dict[str, MeanPrior]:
    middle = np.full(num_dims, 0.5)
    return {
        "none": MeanPrior(),
        "constant": MeanPrior(100.0),
        "linear": MeanPrior(100.0, 100.0, middle, middle),
    }


def sums(
    X: NDArray, y: NDArray, weights: NDArray | None, mean: MeanPrior, period: NDArray
) -> FourierStatistics:
    lattice = FrequencyLattice.for_domain(
        np.zeros(X.shape[1]), np.ones(X.shape[1]), period=period, extent=EXTENTS[X.shape[1]]
    )
    covariates = mean.covariates if mean.slope_variance else None
    return FourierStatistics.from_data(lattice, X, y, weights, covariates=covariates)


def wrapped_covariance(kernel: Kernel, lattice: FrequencyLattice, X: NDArray) -> NDArray:
    return covariance_matrix(kernel, X, lattice.period)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize("which", ["none", "constant", "linear"])
def test_products_with_the_gram_of_all_modes_are_those_of_the_design(which, num_dims) -> None:
    rng = np.random.default_rng(num_dims)
    X, mean, kernel = rows(rng, 30, num_dims), means(num_dims)[which], Matern32(lengthscale=0.3)
    y, weights = rng.standard_normal((30, 2)), rng.uniform(0.5, 2, 30)
    statistics = sums(X, y, weights, mean, np.full(num_dims, 3.0))
    features = Lattice.select(kernel, statistics.lattice, 21, mean)
    modes = KnownModes(features, kernel, statistics, np.full(num_dims, 5))
    Phi = modes.wide.evaluate(kernel, X)
    v = rng.standard_normal((Phi.shape[1], 2))
    np.testing.assert_allclose(modes.gram_times(v), Phi.T @ (weights[:, None] * (Phi @ v)), 1e-8)
    np.testing.assert_allclose(modes.projection, Phi.T @ (weights[:, None] * y), 1e-8, 1e-10)
    np.testing.assert_allclose(Phi[:, modes.places], features.evaluate(kernel, X), atol=1e-12)


def test_polishing_ends_at_the_posterior_mean_of_all_modes() -> None:
    rng = np.random.default_rng(0)
    X, mean, kernel = rows(rng, 80, 1), means(1)["linear"], Matern32(lengthscale=0.2)
    y = np.sin(9 * X) + 0.1 * rng.standard_normal((80, 1))
    statistics = sums(X, y, None, mean, np.array([3.0]))
    features = Lattice.select(kernel, statistics.lattice, 61, mean)
    moments = moments_from_statistics(features, kernel, statistics)
    chol = factorise(moments.gram, 0.01)
    start = unwhiten(chol, whiten(chol, moments.projection)) / 0.01
    modes = KnownModes(features, kernel, statistics, np.array([200]))
    found = polish(modes, start, chol, 0.01, 1e-9)
    Phi = found.result.modes.evaluate(kernel, X)
    B = np.eye(Phi.shape[1]) + Phi.T @ Phi / 0.01
    exact = np.linalg.solve(B, Phi.T @ y / 0.01)
    np.testing.assert_allclose(found.result.mean, exact, atol=1e-8)
    np.testing.assert_allclose(found.misfit, np.sum((y - Phi @ exact) ** 2), rtol=1e-6)
    assert np.linalg.norm(found.residual) < 1e-8


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_the_largest_density_bounds_the_toeplitz_matrix_of_every_block(num_dims) -> None:
    rng = np.random.default_rng(num_dims)
    X = np.concatenate([rows(rng, 40, num_dims), 0.3 + 0.01 * rng.standard_normal((40, num_dims))])
    statistics = sums(X, np.zeros(80), None, MeanPrior(), np.full(num_dims, 2.0))
    block = np.array({1: [40], 2: [5, 7], 3: [3, 2, 3]}[num_dims])
    t = np.stack(np.meshgrid(*map(np.arange, block), indexing="ij"), -1).reshape(-1, num_dims)
    waves = np.exp(1j * (X - statistics.lattice.centre) @ (t * statistics.lattice.spacing).T)
    largest = np.linalg.eigvalsh(waves.conj().T @ waves)[-1]
    bound = largest_density(statistics, block)
    # Sharp enough to be of use: the trace is as much larger as the block has modes.
    assert largest <= bound <= 3.5**num_dims * largest


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize(
    "kernel", [RBF(lengthscale=0.05), Matern32(lengthscale=0.1), RationalQuadratic()]
)
def test_norms_of_what_is_left_out_are_never_too_small(kernel, num_dims) -> None:
    rng = np.random.default_rng(num_dims)
    X = rows(rng, 60, num_dims)
    statistics = sums(X, np.zeros(60), None, MeanPrior(), np.full(num_dims, 3.0))
    lattice = statistics.lattice
    features = Lattice.select(kernel, lattice, 31)
    modes = KnownModes(features, kernel, statistics, np.abs(features.indices).max(axis=0) + 2)
    K = wrapped_covariance(kernel, lattice, X)
    known, chosen = (
        part.evaluate(kernel, X) @ part.evaluate(kernel, X).T for part in (modes.wide, features)
    )
    allowance = 1e-9 * prior_variance(kernel) * len(X)
    beyond = unseen_beyond(modes, kernel)
    found = unseen(modes, beyond)
    assert np.linalg.eigvalsh(K - known)[-1] <= beyond.norm + allowance
    assert np.linalg.eigvalsh(K - chosen)[-1] <= found.norm + allowance
    points = rng.uniform(0, 1, (200, num_dims))
    both = np.concatenate([X, points])
    R = wrapped_covariance(kernel, lattice, both)
    R -= features.evaluate(kernel, both) @ features.evaluate(kernel, both).T
    assert np.max(np.sum(R[:60, 60:] ** 2, axis=0)) <= found.cross + allowance


@pytest.mark.parametrize("kind", [Matern12, Matern32, Matern52])
@pytest.mark.parametrize("gap", [0.3, 2.0])
def test_markov_processes_are_correlated_across_a_gap_by_their_states(kind, gap) -> None:
    kernel = kind(variance=2.0, lengthscale=0.7)
    # Values close to the edges stand for the derivatives there.
    near = np.array([0.0, 0.004, 0.008, 0.2, 0.5, 1.0])
    x = np.concatenate([-near, gap + near])
    K = covariance_matrix(kernel, x[:, None])
    left, right = (np.linalg.cholesky(part) for part in (K[:6, :6], K[6:, 6:]))
    found = np.linalg.norm(np.linalg.solve(left, np.linalg.solve(right, K[6:, :6]).T), 2)
    bound = kernel.correlation_across(gap)
    assert 0.97 * bound <= found <= bound * (1 + 1e-6)


@pytest.mark.parametrize("kernel", [Matern12(lengthscale=0.2), Matern52(lengthscale=0.1)])
def test_the_prior_of_a_lattice_is_within_a_factor_of_the_kernel(kernel) -> None:
    period, width = np.array([2.0]), np.array([1.0])
    found = images(kernel + 0.5 * Matern32(lengthscale=0.15), period, width)
    assert found.deviation == 0
    x = np.array([0.0, 0.001, 0.002, 0.1, 0.3, 0.5, 0.9, 0.998, 0.999, 1.0])[:, None]
    L = np.linalg.cholesky(covariance_matrix(kernel, x))
    E = covariance_matrix(kernel, x, period) - covariance_matrix(kernel, x)
    ratio = np.linalg.norm(np.linalg.solve(L, np.linalg.solve(L, E).T), 2)
    assert ratio <= images(kernel, period, width).ratio <= 5 * ratio
    assert images(kernel, period, width).ratio <= found.ratio
    with_rbf = images(kernel + RBF(lengthscale=0.15), period, width)
    assert with_rbf.deviation == pytest.approx(wrap_error(RBF(lengthscale=0.15), period, width))


def test_spectra_that_do_not_decrease_along_the_axes_are_bounded_by_their_trace() -> None:
    rng = np.random.default_rng(0)
    kernel = Rotated(Matern32(lengthscale=np.array([0.05, 0.5])), 0.7)
    statistics = sums(rows(rng, 50, 2), np.zeros(50), None, MeanPrior(), np.full(2, 3.0))
    features = Lattice.select(kernel, statistics.lattice, 31)
    modes = KnownModes(features, kernel, statistics, np.full(2, 9))
    indices = modes.wide.indices
    seen = lattice_masses(kernel, statistics.lattice, indices) @ modes.wide.multiplicity
    assert unseen_beyond(modes, kernel).norm == pytest.approx(50 * (prior_variance(kernel) - seen))


@pytest.mark.parametrize("which", ["none", "constant", "linear"])
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_process_lies_within_all_bounds(which, seed) -> None:
    rng = np.random.default_rng(seed)
    num_dims = 1 + seed % 3
    kernel = [RBF, Matern32, Matern52][(seed + seed // 3) % 3](
        variance=float(10 ** rng.uniform(-1, 1)), lengthscale=float(10 ** rng.uniform(-1, 0))
    )
    variance, mean = prior_variance(kernel), means(num_dims)[which]
    noise = float(10 ** rng.uniform(-4, 1)) * variance
    X = rows(rng, int(rng.integers(8, 120)), num_dims)
    y = np.sin(5 * X.sum(axis=1)) + np.sqrt(noise) * rng.standard_normal(len(X))
    weights = rng.uniform(0.3, 3, len(X)) if seed % 2 else None
    period = required_period(kernel, np.ones(num_dims), float(10 ** rng.uniform(-13, -4)))
    statistics = sums(X, y, weights, mean, period)
    features = Lattice.select(kernel, statistics.lattice, int(rng.integers(30, 600)), mean)
    moments = moments_from_statistics(features, kernel, statistics, repeats=False)
    chol = factorise(moments.gram, noise)
    solution = unwhiten(chol, whiten(chol, moments.projection)) / noise
    found = images(kernel, statistics.lattice.period, np.ones(num_dims))
    at = Start(kernel, noise)
    modes = enough_modes(features, at, statistics, 0.05)
    verdict = judge(modes, at, (solution, chol), images=found, tolerance=0.05)

    points = np.concatenate([X[:20], rng.uniform(0, 1, (60, num_dims))])
    both = np.concatenate([points, X])
    K = covariance_matrix(kernel, both) + mean.features(both) @ mean.features(both).T
    n = len(points)
    precisions = np.ones(len(X)) if weights is None else weights
    L = np.linalg.cholesky(K[n:, n:] + np.diag(noise / precisions))
    cross, white = np.linalg.solve(L, K[n:, :n]), np.linalg.solve(L, y)
    exact, exact_variance = cross.T @ white, np.diag(K)[:n] - np.sum(cross**2, axis=0)
    evidence = -white @ white / 2 - np.log(np.diag(L)).sum() - len(X) / 2 * np.log(2 * np.pi)

    Phi, left = features.evaluate(kernel, points).T, features.residual(kernel)
    predicted = np.sum(whiten(chol, Phi) ** 2, axis=0) + left
    lower, upper = verdict.guarantee.variances(predicted, left, noise)
    # The oracle's rounding.
    allowance = 1e-14 * len(X) * variance**2 / noise + 1e-12 * np.diag(K)[:n]
    assert np.all(lower <= exact_variance + allowance)
    assert np.all(exact_variance <= upper + allowance)
    if verdict.polished is None:
        mean_there = Phi.T @ solution
    else:
        mean_there = verdict.polished.modes.evaluate(kernel, points) @ verdict.polished.mean
    errors = np.abs(mean_there[:, 0] - exact) / np.sqrt(np.maximum(exact_variance, allowance))
    assert np.all(errors <= verdict.guarantee.mean_errors(lower, upper, noise)[:, 0] + 1e-6)
    below = one_pass_bound(moments, noise, chol)
    assert below.total - verdict.slack <= evidence + 1e-9 * abs(evidence)
    assert evidence <= below.complexity + verdict.data_fit + verdict.slack + 1e-9 * abs(evidence)


@pytest.mark.parametrize("most", [41, 101, 1001])
@pytest.mark.parametrize("which", ["none", "constant", "linear"])
def test_the_exact_process_lies_within_the_bounds_of_components(which, most) -> None:
    rng = np.random.default_rng(most)
    kernel = join_terms(
        split_terms(
            Matern32(1.0, 0.4).on(0)
            + Matern52(0.5, 0.3).on(1)
            + Categorical(3, 0.4).on(2)
            + RBF(0.7, [0.4, 0.5]).on(0, 1),
            3,
        )
    )
    lattices = [
        FrequencyLattice(2 * np.pi / 5.0, 400, 0.5),
        FrequencyLattice(2 * np.pi / 4.0, 400, 0.5),
        FrequencyLattice(2 * np.pi / 3.0, 1, 0.0),
        FrequencyLattice(2 * np.pi / np.array([6.0, 6.0]), 24, 0.5),
    ]
    components = tuple(
        ComponentLattice(
            term.columns,
            lattice,
            lattice.half_indices()[: [120, 60, 2, 400][j]],
        )
        for j, (term, lattice) in enumerate(zip(split_terms(kernel, 3), lattices, strict=True))
    )
    mean = means(3)[which]
    X = rng.uniform(0, 1, (90, 3))
    X[:, 2] = rng.integers(0, 3, 90)
    y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.3 * X[:, 2] + 0.3 * rng.standard_normal(90)
    weights, noise = rng.uniform(0.5, 2, 90), 0.1
    covariates = mean.covariates if mean.slope_variance else None
    statistics = AdditiveStatistics.from_data(
        components, Rows(X, y, weights), covariates=covariates
    )
    layout = Layout(components, np.array([1.0, 1.0, 2.0]), 1e-4, factors=((1,),) * 4)
    features = AdditiveLattice.select(kernel, components, most, mean)
    moments = moments_from_statistics(features, kernel, statistics, repeats=False)
    chol = factorise(moments.gram, noise)
    solution = unwhiten(chol, whiten(chol, moments.projection)) / noise
    found = layout.images(kernel, components)
    at = Start(kernel, noise)
    verdict = judge_components(features, at, statistics, moments, solution, found)

    points = rng.uniform(0, 1, (60, 3))
    points[:, 2] = rng.integers(0, 3, 60)
    both = np.concatenate([points, X])
    K = covariance_matrix(kernel, both) + mean.features(both) @ mean.features(both).T
    L = np.linalg.cholesky(K[60:, 60:] + np.diag(noise / weights))
    cross, white = np.linalg.solve(L, K[60:, :60]), np.linalg.solve(L, y)
    exact, variance = cross.T @ white, np.diag(K)[:60] - np.sum(cross**2, axis=0)
    evidence = -white @ white / 2 - np.log(np.diag(L)).sum() - 45 * np.log(2 * np.pi)
    averages = tuple(map(ComponentSums.of, statistics.parts))
    box = Domain(np.zeros(3), np.array([1.0, 1.0, 2.0]))
    posterior = lattice_posterior(features, (kernel, noise), moments, box, None, averages)
    predicted = posterior.predict(points)
    guarantee, left = verdict.guarantee, posterior.residual
    lower, upper = guarantee.variances(predicted.variance, left, noise)
    assert np.all((lower <= variance) & (variance <= upper))
    errors = np.abs(predicted.mean[:, 0] - exact) / np.sqrt(variance)
    assert np.all(errors <= guarantee.mean_errors(lower, upper, noise)[:, 0])
    assert posterior.least_variance(box) <= np.min(predicted.variance) - left
    below = one_pass_bound(moments, noise, chol)
    weighted = below.total - verdict.slack
    assert weighted <= evidence
    assert evidence <= below.complexity + verdict.data_fit + verdict.slack


def test_densities_of_rows_on_a_line_are_bounded_in_two_columns():
    # Modes that vary along the first column only: the second has one point.
    X = np.random.default_rng(0).uniform(0, 1, (50, 1))
    wide = np.column_stack([X, np.full(50, 0.5)])
    line = FrequencyLattice(np.array([2 * np.pi]), np.array([6]), np.array([0.5]))
    plane = FrequencyLattice(np.full(2, 2 * np.pi), np.array([6, 0]), np.full(2, 0.5))
    sums = [
        FourierStatistics.from_data(lattice, own, np.zeros(50))
        for lattice, own in ((line, X), (plane, wide))
    ]
    found = [known_modes._largest_value(own.point_sums) for own in sums]
    assert found[1] == pytest.approx(found[0], rel=0.5)
    assert found[1] >= 50
