"""The iterative solver against dense linear algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from orthogp.exact.process import ExactPosterior
from orthogp.features import Lattice, MeanPrior
from orthogp.fields import multifrontal
from orthogp.fields.evidence import IterativeObjective, even_rows
from orthogp.fields.model import (
    BandedFactor,
    EvenPreconditioner,
    Model,
    SpatialPreconditioner,
    solve,
)
from orthogp.fields.multifrontal import GridFactor
from orthogp.fields.posterior import VarianceField, draw_modes
from orthogp.fields.system import (
    DataDensity,
    LatticeSystem,
    ModeGrid,
    centred_from_half,
    fast_extent,
    half_of,
)
from orthogp.inference.bounds import projected_bound
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.posterior import Posterior
from orthogp.kernels import RBF, Matern12, Matern32, Matern52
from orthogp.rows import Domain, Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import evaluate_series

EXTENTS = {1: (40,), 2: (7, 5), 3: (2, 3, 2)}


def problem(num_dims, extent, *, rows=400, kernel=None, noise=0.1, mean=None, seed=0, gap=True):
    """Return rows with a gap, their statistics, and a model of them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (rows, num_dims))
    if gap:
        X = X[(X[:, 0] < 0.4) | (X[:, 0] > 0.6)]
    y = np.sin(9 * X[:, 0]) + X[:, -1] + 0.3 * rng.standard_normal(len(X))
    lattice = FrequencyLattice.for_domain(
        np.zeros(num_dims), np.ones(num_dims), period=1.6, extent=extent
    )
    mean = MeanPrior() if mean is None else mean
    covariates = mean.covariates if mean.slope_variance else None
    statistics = FourierStatistics.from_data(lattice, X, y, covariates=covariates)
    kernel = Matern32(1.0, 0.2) if kernel is None else kernel
    model = Model.build(DataDensity(statistics), mean, kernel, noise)
    return X, y, statistics, model


def dense_matrix(apply, grid):
    """Return the matrix of a linear map of modes, in an orthonormal basis of real functions."""
    basis = grid.from_points(np.eye(grid.size).reshape(grid.size, *grid.points))
    return grid.to_points(apply(basis)).reshape(grid.size, -1)


def linear_mean(num_dims):
    half = np.full(num_dims, 0.5)
    return MeanPrior(offset_variance=10.0, slope_variance=10.0, origin=half, width=half)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_half_spectra_keep_inner_products_and_round_trips(num_dims):
    rng = np.random.default_rng(1)
    grid = ModeGrid(EXTENTS[num_dims])
    values = rng.standard_normal((2, *grid.points))
    modes = grid.from_points(values)
    np.testing.assert_allclose(grid.to_points(modes), values, atol=1e-13)
    np.testing.assert_allclose(
        grid.inner(modes[0], modes[1]), np.sum(values[0] * values[1]), rtol=1e-12, atol=1e-12
    )
    centred = centred_from_half(modes, grid.extent)
    np.testing.assert_allclose(half_of(centred, grid.extent), modes, atol=1e-14)
    smaller = ModeGrid(tuple(max(k - 1, 0) for k in grid.extent))
    copy = np.zeros_like(modes)
    grid.insert(copy, smaller, grid.extract(modes, smaller))
    np.testing.assert_allclose(grid.extract(copy, smaller), grid.extract(modes, smaller))


def test_fast_extents_have_small_prime_factors():
    for k in range(1, 200):
        size = 2 * fast_extent(k) + 1
        for prime in (3, 5, 7, 11):
            while size % prime == 0:
                size //= prime
        assert size == 1
        assert fast_extent(k) >= k


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_products_are_those_of_the_dense_matrix(num_dims):
    _, _, statistics, model = problem(num_dims, EXTENTS[num_dims])
    system, lattice = model.system, statistics.lattice
    features = Lattice.select(model.kernel, lattice, 10**6)
    moments = moments_from_statistics(features, model.kernel, statistics)
    B = np.eye(len(moments.gram)) + moments.gram / system.noise_variance
    matrix = dense_matrix(system.apply, system.grid)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(matrix), np.linalg.eigvalsh(B), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9 * np.abs(matrix).max())


def test_gaps_do_not_make_the_sampled_inverse_noisy():
    # Modes that a gap couples: P_tt (P⁻¹)_tt is up to 1e5 here.
    _, _, _, model = problem(1, (200,), rows=4000, noise=1e-3)
    grid, preconditioner = model.system.grid, model.preconditioner
    matrix = dense_matrix(preconditioner.solve, grid)
    modes = grid.from_points(np.eye(grid.size)).reshape(grid.size, -1)
    exact = np.einsum("xt,xz,zt->t", modes.conj(), matrix, modes).real
    share, shrinkage = even_rows(model)
    expected = 1 - share * shrinkage
    found = preconditioner.inverse_modes(np.random.default_rng(0), expected)
    # The mean of 64 |P⁻¹z|² is known to an eighth, without a control; mode zero is real.
    relative = (found / exact - 1)[1:]
    assert np.sqrt(np.mean(relative**2)) < 1.1 / 8
    assert np.max(np.abs(relative)) < 0.8


@pytest.mark.parametrize("num_dims", [1, 2])
def test_the_preconditioners_inverse_diagonal_in_frequency_is_sampled_without_bias(num_dims):
    _, _, _, model = problem(num_dims, EXTENTS[num_dims])
    grid, preconditioner = model.system.grid, model.preconditioner
    matrix = dense_matrix(preconditioner.solve, grid)
    modes = grid.from_points(np.eye(grid.size).reshape(grid.size, *grid.points))
    modes = modes.reshape(grid.size, -1)
    exact = np.einsum("xt,xz,zt->t", modes.conj(), matrix, modes).real
    expected = np.full(grid.shape, 0.5)
    found = np.array(
        [
            preconditioner.inverse_modes(np.random.default_rng(seed), expected).ravel()
            for seed in range(40)
        ]
    )
    # Modes beyond the preconditioner's grid are known exactly.
    sampled = found.std(axis=0) > 1e-12
    np.testing.assert_allclose(found[0][~sampled], exact[~sampled], rtol=1e-6)
    z = (found.mean(axis=0) - exact)[sampled] / (found.std(axis=0, ddof=1)[sampled] / np.sqrt(40))
    # Means of squares of t variables with 39 degrees of freedom, hardly correlated: 10⁻⁵ at most.
    assert np.mean(z**2) < 1.06 + 6 * np.sqrt(2 / sampled.sum())


@pytest.mark.parametrize(("points", "reach"), [((29,), 3), ((23, 31), 2), ((7, 9, 8), 1)])
def test_grid_factor_is_the_dense_factor(points, reach, monkeypatch):
    rng = np.random.default_rng(0)
    size = int(np.prod(points))
    laplacian = scipy.sparse.csr_array((size, size))
    for axis, n in enumerate(points):
        one = 2 * np.eye(n) - np.roll(np.eye(n), 1, 0) - np.roll(np.eye(n), -1, 0)
        parts = [np.eye(m) if i != axis else one for i, m in enumerate(points)]
        term = parts[0]
        for part in parts[1:]:
            term = np.kron(term, part)
        laplacian = laplacian + scipy.sparse.csr_array(term)
    matrix = 0.1 * scipy.sparse.eye_array(size) + scipy.sparse.diags_array(rng.uniform(0, 1, size))
    power = scipy.sparse.eye_array(size)
    for _ in range(reach):
        power = power @ laplacian
        matrix = matrix + 0.3 * power
    dense, right = matrix.toarray(), rng.standard_normal((size, 3))
    factor = GridFactor(scipy.sparse.csr_array(matrix), points, reach)
    np.testing.assert_allclose(factor.solve(right), np.linalg.solve(dense, right), atol=2e-5)
    assert factor.log_determinant == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-10)
    np.testing.assert_allclose(factor.inverse_diagonal(), np.diag(np.linalg.inv(dense)), rtol=2e-5)
    monkeypatch.setattr(multifrontal, "_WORTH_THREADS", 1)
    with_threads = GridFactor(scipy.sparse.csr_array(matrix), points, reach, num_threads=3)
    assert with_threads.log_determinant == factor.log_determinant
    np.testing.assert_allclose(with_threads.solve(right), factor.solve(right), atol=1e-6)
    np.testing.assert_array_equal(with_threads.inverse_diagonal(), factor.inverse_diagonal())
    if len(points) == 1:
        banded = BandedFactor(scipy.sparse.csr_array(matrix), reach)
        np.testing.assert_allclose(banded.solve(right), np.linalg.solve(dense, right), atol=1e-10)
        assert banded.log_determinant == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-10)


@pytest.mark.parametrize("num_dims", [1, 2])
def test_preconditioner_solves_samples_and_measures_one_matrix(num_dims):
    _, _, _, model = problem(num_dims, EXTENTS[num_dims])
    P, grid = model.preconditioner, model.system.grid
    inverse = dense_matrix(P.solve, grid)
    np.testing.assert_allclose(inverse, inverse.T, atol=1e-5 * np.abs(inverse).max())
    assert P.log_determinant == pytest.approx(-np.linalg.slogdet(inverse)[1], abs=1e-3)
    # ⟨z, P⁻¹z⟩ is χ² with n degrees of freedom: false alarms once in 10⁴ runs.
    z = P.sample(P.noise(np.random.default_rng(0), 200))
    quadratic = grid.inner(z, P.solve(z))
    assert np.mean(quadratic) == pytest.approx(grid.size, abs=4 * np.sqrt(2 * grid.size / 200))


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize("kernel", [Matern12(1.0, 0.3), Matern52(1.0, 0.2), RBF(1.0, 0.2)])
def test_solutions_are_dense_solutions_within_the_tolerance(num_dims, kernel):
    _, _, _, model = problem(num_dims, EXTENTS[num_dims], kernel=kernel)
    system, grid = model.system, model.system.grid
    right = model.equations.right
    solution = solve(model, right, tolerance=1e-3)
    assert solution.converged
    exact = np.linalg.solve(
        dense_matrix(system.apply, grid), grid.to_points(right).reshape(len(right), -1).T
    ).T
    error = solution.x - grid.from_points(exact.reshape(len(right), *grid.points))
    assert np.sqrt(grid.inner(error, system.apply(error))).max() < 1.5e-3


@pytest.mark.parametrize("extent", [(1,), (2,), (5,)])
def test_iterations_end_where_nothing_is_left_to_solve(extent):
    _, _, _, model = problem(1, extent)
    right = model.equations.right
    solution = solve(model, right, tolerance=0.0)
    assert solution.converged
    assert solution.iterations < 50
    left = np.abs(right - model.system.apply(solution.x)).max()
    assert left < 1e-10 * np.abs(right).max()


def test_a_good_start_saves_iterations():
    _, _, _, model = problem(2, (20, 20), rows=3000, noise=0.01)
    right = model.equations.right
    first = solve(model, right, tolerance=1e-3)
    again = solve(model, right, tolerance=1e-3, start=first.x)
    assert again.iterations < first.iterations


@pytest.mark.parametrize("num_dims", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_preconditioner_saves_ten_times_the_iterations(num_dims):
    extent = {1: (2000,), 2: (60, 60)}[num_dims]
    _, _, _, model = problem(num_dims, extent, rows=20_000, kernel=Matern32(1.0, 0.1), noise=0.01)
    right = model.equations.right
    ours = solve(model, right, tolerance=0.01)
    diagonal = replace(model, preconditioner=EvenPreconditioner(model.system))
    jacobi = solve(diagonal, right, tolerance=0.01, max_iterations=2000)
    assert ours.converged
    assert 10 * ours.iterations <= jacobi.iterations


@pytest.mark.parametrize(("num_dims", "extent"), [(1, (300,)), (2, (12, 12))])
def test_evidence_and_gradient_are_the_dense_ones_within_their_error(num_dims, extent):
    mean = linear_mean(num_dims)
    _, _, statistics, model = problem(num_dims, extent, rows=1500, mean=mean)
    objective = IterativeObjective(statistics, model.kernel, mean, num_probes=16)
    vector = objective.vector(model.kernel, 0.1)
    evidence = objective.evaluate(vector, profile=False)

    def dense(at):
        kernel = objective.kernel_at(at)
        features = Lattice.select(kernel, statistics.lattice, 10**6, mean)
        moments = moments_from_statistics(features, kernel, statistics)
        noise = np.exp(at[-1]) + moments.residual_trace / statistics.count
        return projected_bound(moments, noise).total

    # Four standard errors: false alarms once in 10⁴ runs, and the probes are fixed.
    assert evidence.value == pytest.approx(dense(vector), abs=4 * evidence.standard_error + 0.05)
    steps = 1e-4 * np.eye(len(vector))
    gradient = np.array([(dense(vector + s) - dense(vector - s)) / 2e-4 for s in steps])
    # In units of the gradient's own standard deviation over data sets: learning ends within a
    # fraction of a standard error of where the dense evidence would lead.
    deviation = np.sqrt(np.diag(evidence.information))
    assert np.max(np.abs(evidence.gradient - gradient) / deviation) < 0.6


def test_profiling_finds_the_best_common_scale():
    _, _, statistics, model = problem(1, (200,))
    objective = IterativeObjective(statistics, model.kernel, MeanPrior(), num_probes=4)
    vector = objective.vector(model.kernel, 0.5)
    plain = objective.evaluate(vector, profile=False)
    profiled = objective.evaluate(vector)
    moved = profiled.vector - vector
    assert moved[0] == pytest.approx(moved[-1])
    assert moved[1] == 0
    assert profiled.value > plain.value
    # The derivative along the scale is that of the variance plus that of the noise.
    assert abs(profiled.gradient[0] + profiled.gradient[-1]) < 0.3
    again = objective.evaluate(profiled.vector, profile=False)
    assert again.value == pytest.approx(profiled.value, abs=0.1)


def test_draws_have_the_posterior_covariance():
    _, _, _, model = problem(2, (6, 6), noise=0.05)
    grid = model.system.grid
    draws = draw_modes(model, 400, np.random.default_rng(0)).modes
    inverse = np.linalg.inv(dense_matrix(model.system.apply, grid))
    flat = grid.to_points(draws).reshape(len(draws), -1)
    whitened = flat @ np.linalg.cholesky(np.linalg.inv(inverse))
    n = grid.size
    # χ² with 400 n degrees of freedom, and means of 400 standard normals: 10⁻⁴ each.
    assert np.sum(whitened**2) == pytest.approx(400 * n, abs=4 * np.sqrt(2 * 400 * n))
    assert np.sum(whitened.mean(axis=0) ** 2) * 400 == pytest.approx(n, abs=4.5 * np.sqrt(2 * n))
    off_diagonal = (whitened.T @ whitened / 400)[~np.eye(n, dtype=bool)]
    assert np.sqrt(np.mean(off_diagonal**2)) == pytest.approx(1 / np.sqrt(400), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_dims", "extent", "kernel", "noise"),
    [(1, (700,), Matern32(1.0, 0.05), 0.1), (2, (60, 60), Matern12(1.0, 0.3), 0.3)],
)
def test_the_variance_field_honours_its_stated_error(num_dims, extent, kernel, noise):
    X, y, statistics, _ = problem(num_dims, extent, rows=2000)
    model = Model.build(DataDensity(statistics), MeanPrior(), kernel, noise, fine=True)
    draws = draw_modes(model, 32, np.random.default_rng(0))
    field = VarianceField.estimate(model, draws)
    at = np.random.default_rng(1).uniform(0, 1, (400, num_dims))
    exact = ExactPosterior(kernel, noise, MeanPrior(), Rows(X, y)).predict(at).variance
    error = (field.at(at) + model.unresolved) / exact - 1
    assert np.sqrt(np.mean(error**2)) < max(2 * field.relative_error, 0.05)
    series = centred_from_half(draws.modes * model.system.amplitudes, model.system.grid.extent)
    plain = np.mean(evaluate_series(series, statistics.lattice, at) ** 2, axis=1)
    plain_error = (plain + model.unresolved) / exact - 1
    assert np.sqrt(np.mean(error**2)) < 0.5 * np.sqrt(np.mean(plain_error**2))


def test_mean_and_variance_are_those_of_the_dense_posterior():
    mean = linear_mean(2)
    kernel, noise = Matern32(1.0, 0.3), 0.1
    _, _, statistics, model = problem(2, (14, 14), kernel=kernel, noise=noise, mean=mean)
    right, posterior_of = model.equations.right, model.equations.posterior
    solution = solve(model, right, tolerance=1e-5)
    modes = posterior_of(solution.x, solution.residual)
    features = Lattice.select(kernel, statistics.lattice, 10**6, mean)
    moments = moments_from_statistics(features, kernel, statistics)
    domain = Domain(-np.ones(2), 2 * np.ones(2))
    dense = Posterior(features, kernel, model.system.noise_variance, moments, domain)
    at = np.random.default_rng(1).uniform(0, 1, (50, 2))
    series = centred_from_half(modes.modes * model.system.amplitudes, model.system.grid.extent)
    ours = evaluate_series(series, statistics.lattice, at)
    ours += np.sqrt(mean.slope_variance) * mean.covariates(at) @ modes.slopes
    np.testing.assert_allclose(ours, dense.predict(at).mean, atol=1e-4)


def test_what_is_explained_is_known_to_second_order_from_any_start():
    mean = linear_mean(2)
    _, _, _, model = problem(2, (14, 14), rows=3000, noise=1e-3, mean=mean)
    right, posterior_of = model.equations.right, model.equations.posterior
    exact = solve(model, right, tolerance=1e-6)
    truth = posterior_of(exact.x, exact.residual)
    rough = solve(model, right, tolerance=0.1, start=0.9 * exact.x)
    found = posterior_of(rough.x, rough.residual)
    # ½‖e‖²_B of the targets' solution, and as much of the slopes'.
    np.testing.assert_allclose(found.explained, truth.explained, atol=0.1, rtol=0)


def test_density_is_not_negative_and_vanishes_in_gaps():
    _, _, statistics, _ = problem(1, (400,), rows=5000)
    density = DataDensity(statistics)
    smoothed = density.smoothed((201,))
    x = 0.5 + 1.6 * (((np.arange(201) / 201) + 0.5) % 1 - 0.5)
    assert smoothed.min() >= 0
    assert np.all(smoothed[(x > 0.43) & (x < 0.57)] == 0)
    assert np.mean(smoothed) == pytest.approx(statistics.count, rel=0.01)


def test_preconditioner_is_exact_for_evenly_spread_data_beyond_its_fit():
    # A density without structure: B is diagonal, and so must P be, whatever the kernel.
    lattice = FrequencyLattice(2 * np.pi * np.ones(1), 30)
    X = np.arange(200)[:, None] / 200
    statistics = FourierStatistics.from_data(lattice, X, np.zeros(200))
    masses = np.exp(-np.arange(31) / 3.0)
    system = LatticeSystem(DataDensity(statistics), masses, 0.01)
    P = SpatialPreconditioner(system)
    ones = np.ones((1, 31), dtype=complex)
    np.testing.assert_allclose(P.solve(system.apply(ones)), ones, rtol=1e-6)


@pytest.mark.parametrize("kernel", [Matern52, RBF])
@pytest.mark.parametrize("lengthscale", [0.03, 0.3, 3.0])
def test_spectra_of_many_decades_have_a_preconditioner(kernel, lengthscale):
    _, _, _, model = problem(2, (20, 20), kernel=kernel(1.0, lengthscale), noise=1e-4)
    assert isinstance(model.preconditioner, SpatialPreconditioner)
    assert np.all(np.isfinite(model.preconditioner.coefficients))
    assert np.all(model.preconditioner.coefficients >= 0)
    ones = model.system.grid.noise(np.random.default_rng(0), 1)
    assert np.all(np.isfinite(model.preconditioner.solve(ones)))
