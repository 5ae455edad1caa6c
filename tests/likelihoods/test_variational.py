"""The one-pass posterior against a row-by-row ascent written down without Fourier sums."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from orthogp import GPRegressor
from orthogp.features import Lattice, MeanPrior
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.inference.separable import Binomial, Gamma, NegativeBinomial, Poisson
from orthogp.kernels import RBF, Matern52
from orthogp.likelihoods.measures import RowMeasure, TorusMeasure
from orthogp.likelihoods.variational import POLISHED, Model, Pace, VariationalBound
from orthogp.rows import Domain, Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice

FAMILIES = [Poisson(), Binomial(), NegativeBinomial(2.3), Gamma(3.1)]


def draw(family, X, rng):
    """Targets, and sizes where there are any, of a smooth function."""
    n, num_dims = X.shape
    waves = rng.uniform(2, 6, num_dims)
    f = rng.uniform(-0.5, 1.0) + np.sin(X @ waves + rng.uniform(0, 6))
    sizes = rng.integers(1, 6, n).astype(float)
    if isinstance(family, Poisson):
        return np.column_stack([rng.poisson(sizes * np.exp(f)), sizes])
    if isinstance(family, Binomial):
        return np.column_stack([rng.binomial(sizes.astype(int), 1 / (1 + np.exp(-f))), sizes])
    r = family.dispersion
    if isinstance(family, NegativeBinomial):
        return rng.negative_binomial(r, r / (r + np.exp(f)))[:, None].astype(float)
    return np.column_stack([rng.gamma(r, sizes * np.exp(f) / r), sizes])


def log_density(family, y, size, f):
    """log p(y|f), as scipy has it."""
    r = family.dispersion
    if isinstance(family, Poisson):
        return stats.poisson.logpmf(y, size * np.exp(f))
    if isinstance(family, Binomial):
        return stats.binom.logpmf(y, size, 1 / (1 + np.exp(-f)))
    if isinstance(family, NegativeBinomial):
        return stats.nbinom.logpmf(y, r, r / (r + np.exp(f)))
    return stats.gamma.logpdf(y, r, scale=size * np.exp(f) / r)


class Problem:
    """Random rows, a kernel, its features, and their sums."""

    def __init__(self, family, seed):
        rng = np.random.default_rng(seed)
        num_dims = 1 + seed % 2
        n = int(rng.integers(60, 400))
        X = rng.uniform(0, 1, (n, num_dims))
        weights = rng.uniform(0.5, 2.0, n) if seed % 3 == 0 else None
        self.family = family
        self.rows, self.constants = family.summands(Rows(X, draw(family, X, rng), weights))
        lengthscale = rng.uniform(0.25, 0.5, num_dims)
        kind = RBF if seed % 4 < 2 else Matern52
        self.kernel = kind(rng.uniform(0.5, 2.0), lengthscale if num_dims > 1 else lengthscale[0])
        extent = 400 if num_dims == 1 else 90
        box = np.zeros(num_dims), np.ones(num_dims)
        self.lattice = FrequencyLattice.for_domain(*box, period=2.5, extent=extent)
        size = 61 if num_dims == 1 else 101
        mean = MeanPrior(offset_variance=4.0)
        self.features = Lattice.select(self.kernel, self.lattice, size, mean)
        self.sums = FourierStatistics.from_data(self.lattice, X, self.rows.y, self.rows.weights)
        average = float(self.sums.target_totals[0] / self.sums.count)
        self.offset = family.typical(average, self.sums.count)

    def bound(self, *, by_rows=False):
        reach = np.abs(self.features.indices).max(axis=0)
        furthest = self.lattice.extent * (2 if self.family.linear else 1)
        measure = TorusMeasure(self.sums, np.minimum(6 * reach, furthest))
        if by_rows:
            measure = RowMeasure(self.lattice, self.rows, 1)
        known = measure, furthest, self.constants, self.offset
        return VariationalBound(Model(self.features, self.family, *known), self.kernel)

    @property
    def vector(self):
        logs = pack(self.kernel, learned_slots(self.kernel))
        return np.append(logs, np.log(self.family.dispersion)) if self.family.dispersed else logs

    def by_rows(self):
        """Mean and covariance of u by Newton steps over the rows, with dense features."""
        phi = self.features.evaluate(self.kernel, self.rows.X)
        y, w = self.rows.y[:, 0], self.rows.weights
        left_out = self.features.residual(self.kernel)
        m, S, step = np.zeros(phi.shape[1]), 1e-3 * np.eye(phi.shape[1]), 0.5
        for _ in range(120):
            mean = self.offset + phi @ m
            variance = np.einsum("ni,ij,nj->n", phi, S, phi) + left_out
            of_y, of_one = self.family.parts(mean, variance)
            kappa = -w * (y * of_y.curvature + of_one.curvature)
            gamma = w * (y * of_y.slope + of_one.slope)
            precision = np.eye(len(m)) + phi.T @ (kappa[:, None] * phi)
            move = step * np.linalg.solve(precision, phi.T @ gamma - m)
            m = m + move
            S = np.linalg.inv((1 - step) * np.linalg.inv(S) + step * precision)
            step = 1.0 if np.abs(move).max() < 0.1 else step
            if step == 1.0 and np.abs(move).max() < 1e-13:
                break
        return m, S


@pytest.mark.parametrize("family", FAMILIES, ids=lambda own: own.known_as)
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 20), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_sums_give_the_posterior_of_row_by_row_newton_steps(family, seeds):
    for seed in seeds:
        problem = Problem(family, seed)
        bound = problem.bound()
        q = bound.ascend(problem.kernel, family, polish=POLISHED)
        assert bound.resolved
        m, S = problem.by_rows()
        np.testing.assert_allclose(q.mean, m, atol=1e-8, err_msg=f"seed {seed}")
        np.testing.assert_allclose(q.spread, np.diag(S), atol=1e-8, err_msg=f"seed {seed}")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda own: own.known_as)
def test_passes_over_the_rows_have_the_same_bound(family):
    problem = Problem(family, 3)
    values = [
        problem.bound(by_rows=own).value_and_gradient(problem.vector) for own in (False, True)
    ]
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-11)
    np.testing.assert_allclose(values[0][1], values[1][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda own: own.known_as)
def test_the_gradient_is_that_of_differences(family, seed):
    problem = Problem(family, seed)
    bound, x = problem.bound(), problem.vector
    _, gradient = bound.value_and_gradient(x)
    for i, direction in enumerate(np.eye(len(x))):
        ends = [bound.value_and_gradient(x + h * direction)[0] for h in (-1e-3, 1e-3)]
        np.testing.assert_allclose(gradient[i], (ends[1] - ends[0]) / 2e-3, rtol=2e-4, atol=2e-4)


def test_the_information_is_that_of_the_sites_regression():
    """½ tr(C⁻¹ ∂C C⁻¹ ∂C) of the rows' covariance C, and what the features leave out."""
    problem = Problem(Binomial(), 1)
    bound = problem.bound(by_rows=True)
    information = bound.evaluation(problem.vector).information
    q = bound.ascend(problem.kernel, problem.family)
    mean, variance = bound.marginals(q, problem.kernel)
    w = problem.rows.weights
    of_y, of_one = problem.family.parts(mean, variance)
    kappa = -w * (problem.rows.y[:, 0] * of_y.curvature + of_one.curvature)
    X, slots = problem.rows.X, learned_slots(problem.kernel)

    def covariance(vector):
        phi = problem.features.evaluate(unpack(problem.kernel, slots, vector), X)
        return phi @ phi.T + np.diag(1 / kappa)

    def left_out(vector):
        return problem.features.residual(unpack(problem.kernel, slots, vector))

    step = 1e-4 * np.eye(len(problem.vector))
    inverse, at = np.linalg.inv(covariance(problem.vector)), problem.vector
    slopes = [inverse @ (covariance(at + e) - covariance(at - e)) / 2e-4 for e in step]
    expected = np.array([[np.sum(a * b.T) / 2 for b in slopes] for a in slopes])
    beyond = np.array([(left_out(at + e) - left_out(at - e)) / 2e-4 for e in step])
    expected += kappa.sum() / (2 * left_out(at)) * np.outer(beyond, beyond)
    np.testing.assert_allclose(information, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda own: own.known_as)
def test_the_bound_is_expected_log_density_minus_divergence(family):
    problem = Problem(family, 0)
    q = problem.bound().ascend(problem.kernel, family, polish=POLISHED)
    phi = problem.features.evaluate(problem.kernel, problem.rows.X)
    S = np.linalg.inv(q.chol @ q.chol.T)
    mean = problem.offset + phi @ q.mean
    variance = np.einsum("ni,ij,nj->n", phi, S, phi) + problem.features.residual(problem.kernel)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
    rng = np.random.default_rng(0)
    # The rows as they were drawn.
    num_dims, n = 1, int(rng.integers(60, 400))
    X = rng.uniform(0, 1, (n, num_dims))
    repeats = rng.uniform(0.5, 2.0, n)
    y = draw(family, X, rng)
    sizes = y[:, 1] if y.shape[1] == 2 else np.ones(n)
    expected = log_density(family, y[:, :1], sizes[:, None], f) @ weights / weights.sum()
    divergence = 0.5 * (
        np.trace(S) + q.mean @ q.mean - len(q.mean) - np.linalg.slogdet(S).logabsdet
    )
    np.testing.assert_allclose(q.bound.total, repeats @ expected - divergence, rtol=1e-9)


def test_what_is_cut_is_seen_and_bounds_the_error():
    """With sums that end too early the bound on the error is larger than the error."""
    family = Poisson()
    problem = Problem(family, 2)
    reach = np.abs(problem.features.indices).max(axis=0)
    exact, _ = problem.by_rows()
    errors, bounds = [], []
    for times in (2.2, 2.6, 3.0, 4.0):
        measure = TorusMeasure(problem.sums, np.ceil(times * reach).astype(int))
        known = measure, measure.reach, problem.constants, problem.offset
        bound = VariationalBound(Model(problem.features, family, *known), problem.kernel)
        q = bound.ascend(problem.kernel, family, polish=POLISHED)
        # |S^{-1/2}(m − exact)| is the largest error of a mean in posterior sd.
        errors.append(np.linalg.norm(q.chol.T @ (q.mean - exact)))
        bounds.append(bound.cut_errors(q, problem.kernel, family).mean)
    assert np.all(np.array(errors) <= np.array(bounds) + 1e-9)
    assert errors[0] > 1e-7
    assert bounds[-1] < 1e-3 * bounds[0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda own: own.known_as)
def test_quantiles_and_moments_of_targets_are_those_of_draws(family):
    """Of 200,000 draws, each check fails by chance with probability below 1e-4."""
    rng = np.random.default_rng(5)
    mean, variance, size = 0.8, 0.4, 3.0 if family.size_is else 1.0
    f = mean + np.sqrt(variance) * rng.standard_normal(200_000)
    r = family.dispersion
    drawn = {
        "poisson": lambda: rng.poisson(size * np.exp(f)),
        "binomial": lambda: rng.binomial(int(size), 1 / (1 + np.exp(-f))),
        "negative-binomial": lambda: rng.negative_binomial(r, r / (r + np.exp(f))),
        "gamma": lambda: rng.gamma(r, size * np.exp(f) / r),
    }[family.known_as]()
    latent = np.array([mean]), np.array([variance]), np.array([size])
    found, spread = family.moments(*latent)
    np.testing.assert_allclose(found, drawn.mean(), atol=5 * drawn.std() / np.sqrt(len(drawn)))
    np.testing.assert_allclose(spread, drawn.var(), rtol=0.1)
    for p in (0.05, 0.5, 0.95):
        quantile = family.quantile(p, *latent)[0]
        assert np.mean(drawn <= quantile) >= p - 0.005
        below = quantile - 1 if family.whole else quantile * (1 - 1e-9)
        assert np.mean(drawn <= below) <= p + 0.005


@pytest.mark.parametrize("family", FAMILIES, ids=lambda own: own.known_as)
def test_expectations_are_integrals(family):
    rng = np.random.default_rng(0)
    y = draw(family, rng.uniform(0, 1, (1, 1)), rng)
    size = float(y[0, 1]) if y.shape[1] == 2 else 1.0
    rows, constants = family.summands(Rows(np.zeros((1, 1)), y, None))
    mean, sd = 0.4, 0.7

    def integrand(f):
        density = np.exp(-(((f - mean) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
        return density * log_density(family, y[0, 0], size, f)

    expected = quad(integrand, mean - 12 * sd, mean + 12 * sd, epsabs=1e-12)[0]
    of_y, of_one = family.parts(np.array([mean]), np.array([sd**2]))
    weight = 1.0 if rows.weights is None else rows.weights[0]
    found = weight * (rows.y[0, 0] * of_y.value + of_one.value)
    found = found + family.normaliser(constants, weight)
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)


def test_a_dispersion_between_the_nodes_has_the_right_normaliser():
    y = np.array([0.0, 1.0, 5.0, 40.0, 1000.0])
    constants = NegativeBinomial().constants(y, np.ones(5), np.array([1.0, 2.0, 1.0, 0.5, 1.0]))
    for r in (0.0123, 0.5, 7.7, 812.0, 9_000.0):
        family = NegativeBinomial(r)
        exact = np.array([1.0, 2.0, 1.0, 0.5, 1.0]) @ (
            stats.nbinom.logpmf(y, r, 0.5) - (r + y) * np.log(0.5) + r * np.log(r)
        )
        np.testing.assert_allclose(family.normaliser(constants, 5.5), exact, rtol=1e-10)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_window_around_the_rows_changes_nothing(seed):
    """In one column and in two: weights that fall to zero beyond the rows give the same q."""
    problem = Problem(Poisson(), seed)
    box = Domain.around(problem.rows.X)
    furthest = 2 * problem.lattice.extent
    windowed = TorusMeasure(problem.sums, furthest // 4, box).further(furthest)
    assert windowed is not None
    assert windowed.fall is not None
    known = furthest, problem.constants, problem.offset
    bound = VariationalBound(
        Model(problem.features, problem.family, windowed, *known), problem.kernel
    )
    q = bound.ascend(problem.kernel, problem.family, polish=POLISHED)
    plain = problem.bound()
    other = plain.ascend(problem.kernel, problem.family, polish=POLISHED)
    cuts = [
        own.cut_errors(each, problem.kernel, problem.family).mean
        for own, each in ((bound, q), (plain, other))
    ]
    assert cuts[0] < 1e-8
    assert np.linalg.norm(other.chol.T @ (q.mean - other.mean)) < sum(cuts) + 1e-9
    np.testing.assert_allclose(q.bound.total, other.bound.total, rtol=1e-9)


def test_many_counts_are_resolved_though_f_is_free_where_no_rows_are():
    """Between the rows' images f rises to huge values on the way: rounding must not be followed."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (200_000, 1))
    y = rng.poisson(np.exp(np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] - 2))
    settings = {"likelihood": "poisson", "learn": False}
    model = GPRegressor(RBF(5.6, 2.0), **settings).fit(X, y)
    assert model.passes_ == 1
    assert model.certificate_.mean_error < 1e-3
    grid = np.linspace(0, 10, 50)[:, None]
    truth = np.sin(2 * grid[:, 0]) + 0.3 * grid[:, 0] - 2
    assert np.abs(model.predict_latent(grid) - truth).max() < 0.2


@pytest.mark.parametrize(("share", "most"), [(-0.86, 25), (-0.5, 20), (0.3, 20)])
def test_steps_that_swing_past_the_maximum_are_shortened(share, most):
    # Steps of size one leave a share of the distance along one direction, nothing along another:
    # with −0.86 they take 122 steps to come as close.
    shares = np.array([share, 0.0, share / 2])
    away, step, pace, number = np.array([1.0, 1.0, 0.5]), 1.0, Pace(), 0
    while np.abs(away).max() > 1e-8:
        move = -step * (1 - shares) * away
        away, step, number = away + move, pace.after(move, step), number + 1
        assert number <= most


def test_rows_give_series_of_different_lengths_at_once():
    rng = np.random.default_rng(0)
    lattice = FrequencyLattice(np.array([0.5, 0.7]), np.array([4, 3]), np.zeros(2))
    X = rng.uniform(0, 2, (40, 2))
    rows = RowMeasure(lattice, Rows(X, np.zeros((40, 1))), 1)
    series = [np.zeros(shape, dtype=complex) for shape in ((9, 7), (3, 5))]
    series[0][8, 3], series[0][0, 3] = 0.5, 0.5
    series[1][1, 4], series[1][1, 0] = -0.5j, 0.5j
    first, second = rows.values(series)
    np.testing.assert_allclose(first, np.cos(4 * 0.5 * X[:, 0]), atol=1e-10)
    np.testing.assert_allclose(second, np.sin(2 * 0.7 * X[:, 1]), atol=1e-10)
