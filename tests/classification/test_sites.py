"""The Pólya-Gamma bound of the logistic likelihood."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_expit

from orthogp.classification.sites import (
    Marginals,
    PolyaGammaSites,
    site_constant,
    site_precision,
)
from orthogp.features import Lattice
from orthogp.inference.bounds import titsias_bound
from orthogp.inference.moments import Moments
from orthogp.rows import Rows
from tests import oracles
from tests.problems import CENTRE, NO_MEAN, make_lattice, mean_prior


def sites_of(labels, tilts, weights=None, num_dims=1, seed=0) -> PolyaGammaSites:
    labels = np.asarray(labels, dtype=float)
    X = CENTRE[:num_dims] + np.random.default_rng(seed).uniform(-1, 1, (len(labels), num_dims))
    return PolyaGammaSites.of(Rows(X, labels[:, None], weights), np.asarray(tilts, dtype=float))


def at(sites: PolyaGammaSites, f: float) -> float:
    """Return the bound where f is known."""
    known = Marginals(np.array([f]), np.zeros(1))
    return float(sites.expected_log_likelihood(known)[0])


# ---------------------------------------------------------------------- the bound of one label


@given(
    st.floats(-50, 50), st.one_of(st.just(0.0), st.floats(1e-8, 80)), st.sampled_from([-1.0, 1.0])
)
def test_site_bounds_the_log_likelihood_and_touches_it_where_f_is_the_tilt(f, tilt, label):
    sites = sites_of([label], [tilt])
    assert at(sites, f) <= log_expit(label * f) + 1e-12
    for touching in (tilt, -tilt):
        value = at(sites, touching)
        assert value == pytest.approx(log_expit(label * touching), abs=1e-12)


def test_precision_and_constant_are_their_formulas_where_those_can_be_computed():
    tilts = np.array([0.1, 1.0, 5.0, 30.0])
    np.testing.assert_allclose(site_precision(tilts), np.tanh(tilts / 2) / (2 * tilts), rtol=1e-14)
    expected = np.tanh(tilts / 2) * tilts / 4 - np.log(2 * np.cosh(tilts / 2))
    np.testing.assert_allclose(site_constant(tilts), expected, rtol=1e-13)


def test_precision_and_constant_have_their_limits():
    small = np.array([0.0, 1e-300, 1e-9])
    np.testing.assert_allclose(site_precision(small), 0.25, rtol=1e-15)
    np.testing.assert_allclose(site_constant(small), -np.log(2), rtol=1e-9)
    np.testing.assert_allclose(site_precision(np.array([1e4])), 0.5e-4, rtol=1e-14)
    np.testing.assert_allclose(site_constant(np.array([1e4])), -2500, rtol=1e-14)


@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.2), (-2.0, 4.0), (5.0, 0.01)])
def test_best_tilt_is_the_root_of_the_mean_square(mean, variance):
    f = Marginals(np.array([mean]), np.array([variance]))

    def expected_bound(tilt):
        return sites_of([1.0], [tilt]).expected_log_likelihood(f)[0]

    best = np.sqrt(mean**2 + variance)
    assert sites_of([1.0], [0.3]).updated(f).tilts[0] == pytest.approx(best)
    assert all(
        expected_bound(best) > expected_bound(best * factor) for factor in (0.5, 0.99, 1.01, 2)
    )


# ---------------------------------------------------------------------- all rows together


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_dims", [1, 2])
def test_statistics_are_the_sums_of_precisions_and_half_labels(weighted, num_dims):
    rng = np.random.default_rng(1)
    labels, tilts = np.sign(rng.normal(size=20)), rng.uniform(0, 5, 20)
    weights = rng.integers(0, 4, 20).astype(float) if weighted else None
    counts = np.ones(20) if weights is None else weights
    sites = sites_of(labels, tilts, weights, num_dims)
    lattice = make_lattice(num_dims, 4.5, 3)
    mean = mean_prior("linear", num_dims)
    statistics = sites.statistics(Lattice(lattice, lattice.half_indices(), mean), 1)
    theta = np.tanh(tilts / 2) / (2 * tilts)
    X = sites.rows.X
    grid = (X, lattice.spacing, lattice.centre)

    def sums(column, reach):
        return oracles.trigonometric_sums(grid[0], column, grid[1], reach, grid[2])

    extent = lattice.extent
    np.testing.assert_allclose(statistics.point_sums, sums(counts * theta, 2 * extent), atol=1e-9)
    np.testing.assert_allclose(
        statistics.target_sums[0], sums(counts * labels / 2, extent), atol=1e-9
    )
    slopes = counts * theta * ((X - mean.origin) / mean.width)[:, 0]
    np.testing.assert_allclose(statistics.covariate_sums[0], sums(slopes, extent), atol=1e-9)
    assert statistics.rows == counts.sum()
    assert statistics.log_weights == pytest.approx(counts @ np.log(theta))


@pytest.mark.parametrize("weighted", [False, True])
def test_bound_is_that_of_gaussian_sites_by_dense_algebra(weighted):
    rng = np.random.default_rng(2)
    n, m = 25, 6
    Phi = rng.normal(size=(n, m))
    labels, tilts = np.sign(rng.normal(size=n)), rng.uniform(0.1, 4, n)
    counts = rng.integers(1, 4, n).astype(float) if weighted else np.ones(n)
    sites = sites_of(labels, tilts, counts if weighted else None)
    theta, left_out = sites.precisions, 0.3
    B = np.eye(m) + (Phi.T * (counts * theta)) @ Phi
    b = Phi.T @ (counts * labels / 2)
    targets = labels / (2 * theta)
    moments = Moments(
        gram=B - np.eye(m),
        projection=b[:, None],
        yy=np.array([counts @ (theta * targets**2)]),
        residual_trace=left_out * (counts @ theta),
        rows=counts.sum(),
        log_weights=counts @ np.log(theta),
    )
    S = np.linalg.inv(B)
    f = Marginals(Phi @ S @ b, np.sum((Phi @ S) * Phi, axis=1) + left_out)
    bound = sites.bound(titsias_bound(moments, 1.0), f)
    constant = theta * tilts**2 / 2 - np.log(2 * np.cosh(tilts / 2))
    fit = b @ np.linalg.solve(B, b) / 2 + counts @ constant
    assert bound.data_fit == pytest.approx(fit, rel=1e-12)
    assert bound.complexity == pytest.approx(-np.linalg.slogdet(B)[1] / 2, rel=1e-12)
    assert bound.trace == pytest.approx(-left_out * (counts @ theta) / 2, rel=1e-12)


def test_flat_sites_have_the_largest_precision():
    rows = sites_of([1.0, -1.0, 1.0], np.ones(3), np.array([2.0, 0.0, 1.5])).rows
    assert PolyaGammaSites.flat(rows).precision_total == pytest.approx(3.5 / 4)
    lattice = make_lattice(1, 4.5, 2)
    statistics = PolyaGammaSites.flat(rows).statistics(
        Lattice(lattice, lattice.half_indices(), NO_MEAN), 1
    )
    assert statistics.count == pytest.approx(3.5 / 4)
