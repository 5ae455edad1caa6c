"""The ascent over sites and kernels: against dense algebra, and upwards all the way."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_expit

from orthogp.classification import fitting as logistic_fitting
from orthogp.classification import passes as classification
from orthogp.classification.fitting import LogisticFitter
from orthogp.classification.passes import Pass, SiteAscent, SiteModel
from orthogp.classification.sites import (
    Extrapolation,
    LogisticSites,
    Marginals,
    PolyaGammaSites,
    ShorterSteps,
)
from orthogp.features import Lattice
from orthogp.inference.parameters import pack
from orthogp.inference.posterior import Posterior
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.learning.problem import FitSettings
from orthogp.learning.sketches import Sketch
from orthogp.precision import BlasThreads
from orthogp.rows import Domain, Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from tests import oracles
from tests.problems import CENTRE, make_lattice, mean_covariance, mean_prior

THREADS = BlasThreads(1)

KINDS = (LogisticSites, PolyaGammaSites)
both_kinds = pytest.mark.parametrize("kind", KINDS)


def make_labels(num_rows, num_dims=1, *, steepness=4.0, seed=0, weights=None) -> Rows:
    rng = np.random.default_rng(seed)
    X = CENTRE[:num_dims] + rng.uniform(-1, 1, (num_rows, num_dims))
    f = steepness * np.sin(5 * X[:, 0]) + X.sum(axis=1)
    labels = np.where(rng.uniform(size=num_rows) < 1 / (1 + np.exp(-f)), 1.0, -1.0)
    counts = rng.integers(0, 4, num_rows).astype(float) if weights else None
    return Rows(X, labels[:, None], counts)


def make_features(kernel: Kernel, num_dims=1, num_features=65, mean=None, extent=40) -> Lattice:
    lattice = make_lattice(num_dims, 8.0, extent)
    return Lattice.select(kernel, lattice, num_features, mean_prior(mean, num_dims))


def dense_posterior(K, labels, num_updates):
    """Pólya-Gamma variational inference for a Gaussian process with covariance K, by inversion."""
    tilts = np.ones(len(K))
    for _ in range(num_updates):
        theta = np.tanh(tilts / 2) / (2 * tilts)
        S = K - K @ np.linalg.solve(K + np.diag(1 / theta), K)
        mean = S @ labels / 2
        tilts = np.sqrt(mean**2 + np.diag(S))
    theta = np.tanh(tilts / 2) / (2 * tilts)
    S = K - K @ np.linalg.solve(K + np.diag(1 / theta), K)
    bound = labels @ S @ labels / 8 - np.linalg.slogdet(np.eye(len(K)) + theta[:, None] * K)[1] / 2
    bound += np.sum(theta * tilts**2 / 2 - np.log(2 * np.cosh(tilts / 2)))
    return bound, theta


@pytest.mark.parametrize("mean", [None, "linear"])
def test_bound_and_posterior_are_those_of_the_exact_process_with_enough_features(mean, monkeypatch):
    monkeypatch.setattr(classification, "CONVERGED", 1e-12)
    kernel = RBF(3.0, [0.4])
    rows = make_labels(60)
    features = make_features(kernel, mean=mean)
    ascent = SiteAscent(SiteModel(features), kernel, PolyaGammaSites.flat(rows))
    last = ascent.ascend(kernel, max_passes=200)

    def covariance(A, B):
        k = oracles.gram_matrix(lambda lag: oracles.rbf(lag, 3.0, 0.4), A, B)
        return k + mean_covariance(features.mean, A, B)

    K = covariance(rows.X, rows.X)
    bound, theta = dense_posterior(K, rows.y[:, 0], 2000)
    assert last.bound == pytest.approx(bound, abs=1e-6)
    assert last.elbo.total == pytest.approx(bound, abs=1e-6)
    X_new = CENTRE[:1] + np.linspace(-1.2, 1.2, 30)[:, None]
    targets = rows.y[:, 0] / (2 * theta)
    dense_mean, dense_covariance = oracles.posterior(
        K, covariance(X_new, rows.X), covariance(X_new, X_new), targets, 1 / theta
    )
    domain = Domain(CENTRE[:1] - 2, CENTRE[:1] + 2)
    moments = last.objective.moments(kernel)
    f = Posterior(features, kernel, 1.0, moments, domain, 1).predict(X_new)
    np.testing.assert_allclose(f.mean, dense_mean, atol=1e-6)
    np.testing.assert_allclose(f.variance, np.diag(dense_covariance), atol=1e-6)


@pytest.mark.parametrize(("kind", "loss"), [(LogisticSites, 0.1), (PolyaGammaSites, 0.2)])
def test_elbo_lies_just_below_the_log_marginal_likelihood(kind, loss):
    kernel = RBF(3.0, [0.4])
    rows = make_labels(3)
    K = oracles.gram_matrix(lambda lag: oracles.rbf(lag, 3.0, 0.4), rows.X, rows.X)
    z, w = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack(np.meshgrid(z, z, z), axis=-1).reshape(-1, 3)
    weights = np.prod(np.stack(np.meshgrid(w, w, w), axis=-1).reshape(-1, 3), axis=1)
    f = grid @ np.linalg.cholesky(K).T
    likelihood = np.prod(1 / (1 + np.exp(-rows.y[:, 0] * f)), axis=1)
    exact = np.log(weights @ likelihood / weights.sum())
    ascent = SiteAscent(SiteModel(make_features(kernel)), kernel, kind.flat(rows))
    elbo = ascent.ascend(kernel).elbo.total
    assert exact - loss < elbo < exact


def best_normal(K, labels):
    """Return the largest ELBO of any normal q(f), by a search over its mean and site precisions."""
    z, w = np.polynomial.hermite_e.hermegauss(200)
    w = w / w.sum()

    def negative(vector):
        alpha, precisions = vector[: len(K)], np.exp(vector[len(K) :])
        m, S = K @ alpha, np.linalg.inv(np.linalg.inv(K) + np.diag(precisions))
        f = m[:, None] + np.sqrt(np.diag(S))[:, None] * z
        fit = np.sum(log_expit(labels[:, None] * f) @ w)
        trace = np.trace(np.linalg.solve(K, S)) - len(K)
        logdets = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        return (trace + alpha @ K @ alpha + logdets) / 2 - fit

    start = np.concatenate([np.zeros(len(K)), np.full(len(K), np.log(0.25))])
    return -minimize(negative, start, method="BFGS", options={"gtol": 1e-6}).fun


def test_logistic_sites_reach_the_best_elbo_of_any_normal_posterior(monkeypatch):
    monkeypatch.setattr(classification, "CONVERGED", 1e-12)
    kernel = RBF(5.0, [0.3])
    rows = make_labels(7)
    K = oracles.gram_matrix(lambda lag: oracles.rbf(lag, 5.0, 0.3), rows.X, rows.X)
    last = SiteAscent(SiteModel(make_features(kernel)), kernel, LogisticSites.flat(rows)).ascend(
        kernel
    )
    assert last.elbo.total == pytest.approx(best_normal(K, rows.y[:, 0]), abs=1e-6)


@pytest.mark.parametrize("weights", [None, "whole"])
def test_elbo_is_expected_sites_less_divergence(weights):
    kernel = Matern32(2.0, [0.3])
    rows = make_labels(40, weights=weights)
    counts = np.ones(40) if rows.weights is None else rows.weights
    features = make_features(kernel, num_features=15, mean="constant")
    sites = PolyaGammaSites.of(rows, np.random.default_rng(1).uniform(0.1, 4, 40))
    result = Pass.over(SiteModel(features), kernel, sites, THREADS)
    Phi = features.evaluate(kernel, rows.X)
    left_out = features.residual_variance(kernel, rows.X)
    theta = sites.precisions
    S = np.linalg.inv(np.eye(15) + (Phi.T * (counts * theta)) @ Phi)
    m = S @ Phi.T @ (counts * rows.y[:, 0] / 2)
    seen = np.sum((Phi @ S) * Phi, axis=1)
    expected = sites.expected_log_likelihood(Marginals(Phi @ m, seen + left_out))
    divergence = (np.trace(S) + m @ m - 15 - np.linalg.slogdet(S)[1]) / 2
    assert result.elbo.total == pytest.approx(counts @ expected - divergence, rel=1e-10)
    N, d = counts.sum(), left_out[0]
    trace = -N / 2 * np.log1p(d * (counts @ theta) / N)
    assert result.bound == pytest.approx(result.elbo.total - result.elbo.trace + trace, rel=1e-12)
    best = (Phi @ m) ** 2 + seen + d / (1 + d * (counts @ theta) / N)
    np.testing.assert_allclose(result.better.tilts**2, best, rtol=1e-9)


# ---------------------------------------------------------------------- upwards


@pytest.mark.parametrize("num_features", [5, 65])
@pytest.mark.parametrize("variance", [5.0, 200.0])
def test_plain_updates_of_tilts_never_lose(num_features, variance):
    kernel = RBF(variance, [0.2])
    rows = make_labels(80, weights="whole")
    features = make_features(kernel, num_features=num_features, mean="constant")
    sites, bounds = PolyaGammaSites.flat(rows), []
    for _ in range(25):
        result = Pass.over(SiteModel(features), kernel, sites, THREADS)
        bounds.append(result.bound)
        sites = result.better
    assert np.all(np.diff(bounds) > -1e-9)
    assert bounds[-1] > bounds[0] + 1


@pytest.mark.parametrize("num_features", [5, 65])
@pytest.mark.parametrize("variance", [5.0, 200.0])
def test_extrapolated_updates_never_lose_and_get_there_sooner(num_features, variance):
    kernel = RBF(variance, [0.2])
    rows = make_labels(80)
    features = make_features(kernel, num_features=num_features)
    ascent = SiteAscent(SiteModel(features), kernel, PolyaGammaSites.flat(rows))
    ascent.ascend(kernel)
    assert np.all(np.diff(ascent.bounds) >= 0)
    sites, plain = PolyaGammaSites.flat(rows), []
    for _ in range(ascent.num_passes):
        plain.append(Pass.over(SiteModel(features), kernel, sites, THREADS))
        sites = plain[-1].better
    assert ascent.bounds[-1] > plain[-1].bound


def test_extrapolation_that_goes_too_far_is_taken_back(monkeypatch):
    def too_far(self, sites, better):
        return PolyaGammaSites.of(better.rows, 20 + better.tilts)

    monkeypatch.setattr(Extrapolation, "mixed", too_far)
    kernel = RBF(5.0, [0.2])
    ascent = SiteAscent(
        SiteModel(make_features(kernel)), kernel, PolyaGammaSites.flat(make_labels(80))
    )
    ascent.ascend(kernel)
    assert np.all(np.diff(ascent.bounds) >= 0)
    assert len(ascent.bounds) > 5


@pytest.mark.parametrize("num_features", [5, 65])
@pytest.mark.parametrize("variance", [5.0, 200.0, 1e4])
def test_logistic_sites_never_lose_and_end_above_tilts(num_features, variance):
    kernel = RBF(variance, [0.2])
    features = make_features(kernel, num_features=num_features, mean="constant")
    rows = make_labels(80, weights="whole")
    ascents = [SiteAscent(SiteModel(features), kernel, kind.flat(rows)) for kind in KINDS]
    logistic, tilts = [ascent.ascend(kernel) for ascent in ascents]
    assert np.all(np.diff(ascents[0].bounds) >= 0)
    assert logistic.bound > tilts.bound


def test_step_that_overshoots_is_shortened(monkeypatch):
    def too_far(self, f):
        return replace(updated(self, f), slopes=30 * self.labels)

    updated = LogisticSites.updated
    monkeypatch.setattr(LogisticSites, "updated", too_far)
    kernel = RBF(5.0, [0.2])
    ascent = SiteAscent(
        SiteModel(make_features(kernel)), kernel, LogisticSites.flat(make_labels(80))
    )
    ascent.ascend(kernel)
    assert ascent.num_passes > len(ascent.bounds)
    assert np.all(np.diff(ascent.bounds) >= 0)


def test_steps_lie_on_the_way_to_the_sites_asked_for():
    rows = make_labels(5)
    here = LogisticSites.flat(rows)
    there = here.updated(Marginals(np.full(5, 2.0), np.full(5, 0.5)))
    first, second, *_ = ShorterSteps().after(here, there)
    np.testing.assert_array_equal(first.precisions, there.precisions)
    np.testing.assert_allclose(second.slopes, (here.slopes + there.slopes) / 2)


def test_learning_goes_up_from_step_to_step(monkeypatch):
    values = []
    original = logistic_fitting.refine

    def watched(ascent, *arguments, **options):
        found = original(ascent, *arguments, **options)
        values.append((ascent(arguments[0])[0], ascent.best.bound))
        return found

    monkeypatch.setattr(logistic_fitting, "refine", watched)
    fitter, _ = make_fitter(make_labels(300))
    fitter.fit([RBF(1.0, [0.1])])
    assert values
    assert all(end >= start for start, end in values)
    assert values[0][1] > values[0][0] + 1


@pytest.mark.slow
@both_kinds
def test_gradient_is_the_difference_of_converged_bounds(monkeypatch, kind):
    monkeypatch.setattr(classification, "CONVERGED", 1e-12)
    monkeypatch.setattr(classification, "_SHARE", 0.0)
    kernel = Matern32(2.0, [0.4])
    features = make_features(kernel, num_features=21, mean="constant")
    ascent = SiteAscent(SiteModel(features), kernel, kind.flat(make_labels(50)))
    vector = pack(kernel, ascent.slots)
    _, gradient = ascent(vector)
    expected = oracles.fourth_order_difference(lambda v: np.asarray(ascent(v)[0]), vector, 1e-2)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


@both_kinds
def test_repeated_rows_are_rows_with_weights(kind):
    kernel = RBF(2.0, [0.3])
    rows = make_labels(30, weights="whole")
    times = rows.weights.astype(int)
    repeated = Rows(*(np.repeat(part, times, axis=0) for part in (rows.X, rows.y)))
    features = make_features(kernel, num_features=21, mean="constant")
    weighted, plain = (
        SiteAscent(SiteModel(features), kernel, kind.flat(data)).ascend(kernel)
        for data in (rows, repeated)
    )
    assert weighted.bound == pytest.approx(plain.bound, rel=1e-12)
    repeated_precisions = np.repeat(weighted.sites.precisions, times)
    np.testing.assert_allclose(repeated_precisions, plain.sites.precisions, rtol=1e-8)


def test_no_best_pass_before_the_first():
    kernel = RBF(2.0, [0.3])
    ascent = SiteAscent(
        SiteModel(make_features(kernel)), kernel, PolyaGammaSites.flat(make_labels(20))
    )
    with pytest.raises(ValueError, match="ascend"):
        _ = ascent.best


@both_kinds
def test_late_ascent_still_updates_the_sites_a_few_times(kind):
    kernel = RBF(20.0, [0.3])
    ascent = SiteAscent(
        SiteModel(make_features(kernel)),
        kernel,
        kind.flat(make_labels(50)),
        late=lambda: True,
    )
    ascent.ascend(kernel)
    assert 2 <= len(ascent.bounds) <= 5
    assert ascent.bounds[-1] > ascent.bounds[0] + 1


# ---------------------------------------------------------------------- the whole fit


def make_fitter(rows: Rows, **settings):
    num_dims = rows.X.shape[1]
    centre = CENTRE[:num_dims]
    lattice = FrequencyLattice.for_domain(
        centre - 1, centre + 1, period=32.0 if num_dims == 1 else 16.0, extent=512 // num_dims**3
    )
    domain = Domain(centre - 1, centre + 1)
    sums = FourierStatistics.from_data(lattice, rows.X, rows.y)
    sketch = Sketch(sums, domain, mean_prior("constant", num_dims), np.zeros(1))
    return LogisticFitter(rows, sketch, FitSettings(**settings)), domain


@pytest.mark.parametrize("learn", [True, False])
def test_posterior_of_the_fit_belongs_to_its_sites(learn):
    rows = make_labels(200)
    fitter, domain = make_fitter(rows, learn=learn)
    fit = fitter.fit([RBF(3.0, [0.5])])
    f = fit.posterior(domain, 1).predict(rows.X)
    sites = fitter.last.sites
    asked = sites.updated(Marginals(f.mean[:, 0], f.variance))
    # At the optimum the sites are the posterior's; they end a thousandth of a nat away from it.
    np.testing.assert_allclose(sites.precisions, asked.precisions, rtol=0.03)
    assert -fit.elbo.trace < 2 * logistic_fitting.ALLOWED_TRACE
    assert f"{fit.features.num_features} features" in fit.status


@pytest.mark.slow
def test_start_far_off_ends_where_a_good_one_does():
    rows = make_labels(400)
    fits = [
        make_fitter(rows)[0].fit([RBF(variance, [lengthscale])])
        for variance, lengthscale in ((5.0, 0.5), (0.2, 0.1), (100.0, 1.5))
    ]
    for fit in fits[1:]:
        assert fit.elbo.total == pytest.approx(fits[0].elbo.total, abs=0.1)


@pytest.mark.slow
def test_best_of_several_kernels_is_taken():
    rows = make_labels(200)
    kernels = [RBF(1e-3, [1.0]).fix(), RBF(5.0, [0.5]).fix(), RBF(5.0, [0.01]).fix()]
    fit = make_fitter(rows)[0].fit(kernels)
    np.testing.assert_allclose(float(fit.kernel.parameters()["lengthscale"][0]), 0.5)


def test_time_limit_is_said(monkeypatch):
    rows = make_labels(100)
    fitter, _ = make_fitter(rows)
    fitter.settings = replace(fitter.settings, deadline=0.0)
    assert "max_seconds" in fitter.fit([RBF(1.0, [0.5])]).status
