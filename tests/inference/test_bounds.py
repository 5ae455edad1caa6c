"""titsias ≤ one-pass ≤ tightened ≤ log p(y) ≤ upper, and the certificate they give."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orthogp.errors import OrthogpError, PrecisionError
from orthogp.features import Features, Lattice
from orthogp.inference import Certificate, Moments, moments_from_rows, moments_from_statistics
from orthogp.inference.bounds import (
    Bound,
    factorise,
    one_pass_bound,
    projected_bound,
    residual_sums,
    tightened_bound,
    titsias_bound,
    unseen_modes,
    unwhiten,
    upper_bound,
    whiten,
)
from orthogp.inference.certificates import Images, enough_modes, judge
from orthogp.inference.parameters import Start
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.learning.layout import Layout
from orthogp.learning.limits import wrap_error
from orthogp.statistics import ComponentLattice
from tests import oracles
from tests.oracles import Array
from tests.problems import (
    DIMS,
    Rows,
    design,
    fit,
    make_lattice,
    make_rows,
    mean_covariance,
    mean_prior,
    prior_variance,
    wrapped_gram,
    zoo,
)

NUM_ROWS = 24
EXTENTS = {1: 40, 2: 8, 3: 4}


class Bounds(NamedTuple):
    titsias: float
    one_pass: float
    tightened: float
    exact: float
    sharp: float
    trace: float

    def assert_ordered(self) -> None:
        slack = 1e-9 * (1 + abs(self.exact))
        for name, lower, upper in zip(self._fields, self, self[1:]):
            assert lower <= upper + slack, f"{name} {lower} exceeds the next, {upper}: {self}"


def sharp_bound(features, kernel, statistics, moments, noise, chol) -> float:
    """The upper bound of a fit: what is left out by its norm, or by what is left of the targets."""
    mean = unwhiten(chol, whiten(chol, moments.projection)) / noise
    at = Start(kernel, noise)
    modes = enough_modes(features, at, statistics, 0.05)
    verdict = judge(modes, at, (mean, chol), images=Images(0.0, 0.0), tolerance=0.05)
    upper = upper_bound(moments, noise, verdict.guarantee.left_out, chol)
    return upper._replace(data_fit=min(upper.data_fit, verdict.data_fit)).total


def all_bounds(
    kernel: Kernel,
    rows: Rows,
    *,
    period: float,
    num_features: int,
    noise: float,
    repeats: bool,
    mean: str | None,
    coarser: int = 1,
) -> Bounds:
    """Every bound, and the exact value for the wrapped prior by a dense Cholesky factor."""
    num_dims = rows.num_dims
    prior = mean_prior(mean, num_dims)
    lattice = make_lattice(num_dims, period, max(1, EXTENTS[num_dims] // coarser))
    statistics = rows.statistics(lattice, prior)
    features = Lattice.select(kernel, lattice, num_features, prior)
    moments = moments_from_statistics(features, kernel, statistics, repeats=repeats)
    chol = factorise(moments.gram, noise)
    X, y, w = rows.X, rows.y, rows.precisions
    if repeats:
        counts = w.astype(int)
        X, y, w = np.repeat(X, counts, axis=0), np.repeat(y, counts, axis=0), np.ones(counts.sum())
    kept = w > 0
    X, y, w = X[kept], y[kept], w[kept]
    K = wrapped_gram(kernel, X, X, lattice.period) + mean_covariance(prior, X, X)
    residuals = features.residual_variance(kernel, X)
    return Bounds(
        titsias=titsias_bound(moments, noise, chol).total,
        one_pass=one_pass_bound(moments, noise, chol).total,
        tightened=tightened_bound(moments, noise, residuals, w, chol).total,
        exact=oracles.log_marginal_likelihood(K, y, noise / w),
        sharp=sharp_bound(features, kernel, statistics, moments, noise, chol),
        trace=upper_bound(moments, noise, chol=chol).total,
    )


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    num_dims=st.sampled_from(DIMS),
    index=st.integers(0, 10),
    num_rows=st.integers(1, NUM_ROWS),
    num_targets=st.integers(1, 2),
    num_features=st.integers(1, 60),
    log_noise=st.floats(-3.0, 1.0),
    period=st.floats(4.0, 9.0),
    repeats=st.booleans(),
    mean=st.sampled_from([None, "constant", "linear"]),
    coarser=st.sampled_from([1, 4, 16]),
)
def test_bounds_are_ordered_around_the_exact_value(
    seed: int,
    num_dims: int,
    index: int,
    num_rows: int,
    num_targets: int,
    num_features: int,
    log_noise: float,
    period: float,
    repeats: bool,
    mean: str | None,
    coarser: int,
) -> None:
    # Coarser lattices leave much of the prior beyond their last mode.
    entries = zoo(num_dims)
    kernel = entries[index % len(entries)].kernel
    rows = make_rows(seed, num_rows, num_dims, num_targets, "whole" if repeats else "real")
    all_bounds(
        kernel,
        rows,
        period=period,
        num_features=num_features,
        noise=10.0**log_noise,
        repeats=repeats,
        mean=mean,
        coarser=coarser,
    ).assert_ordered()


@pytest.mark.parametrize(
    ("num_dims", "repeats"), [(1, True), (1, False), (2, True), (2, False), (3, False)]
)
def test_bounds_meet_the_exact_value_with_many_features(num_dims: int, repeats: bool) -> None:
    rows = make_rows(5, NUM_ROWS, num_dims, 2, "whole" if repeats else "real")
    bounds = all_bounds(
        RBF(1.3, np.full(num_dims, 1.5)),
        rows,
        period=6.0,
        num_features=10**6,
        noise=0.1,
        repeats=repeats,
        mean="linear",
    )
    bounds.assert_ordered()
    assert bounds.trace - bounds.titsias < 1e-6
    assert bounds.trace == pytest.approx(bounds.exact, abs=1e-6)


@pytest.mark.parametrize("num_dims", [1, 2])
def test_bounds_with_a_long_period_hold_for_the_kernel_itself(num_dims: int) -> None:
    # Not for the wrapped prior only. With |k_P − k| ≤ ε k(0), K_P and K differ by at most N ε k(0)
    # in norm, which moves log|K + σ²I| and yᵀ(K + σ²I)⁻¹y by no more than the slack below.
    rows, noise = make_rows(6, NUM_ROWS, num_dims), 0.1
    kernel = Matern32(1.3, np.full(num_dims, 0.4))
    period = 12.0
    bounds = all_bounds(
        kernel,
        rows,
        period=period,
        num_features=41,
        noise=noise,
        repeats=False,
        mean=None,
    )
    K = oracles.gram_matrix(lambda lag: oracles.matern32(lag, 1.3, 0.4), rows.X, rows.X)
    exact = oracles.log_marginal_likelihood(K, rows.y, noise)
    error = wrap_error(kernel, np.full(num_dims, period), np.full(num_dims, 2.0))
    norm = NUM_ROWS * error * 1.3
    slack = 0.5 * (NUM_ROWS * norm / noise + np.sum(rows.y**2) * norm / noise**2)
    assert slack < 1e-4
    assert bounds.tightened <= exact + slack
    assert exact <= bounds.sharp + slack


@pytest.mark.parametrize("num_dims", DIMS)
@pytest.mark.parametrize("mean", [None, "linear"])
def test_residual_sums_are_the_sums_of_what_a_function_leaves_of_the_targets(
    num_dims: int, mean: str | None
) -> None:
    rows = make_rows(13, NUM_ROWS, num_dims, 2, "real")
    prior = mean_prior(mean, num_dims)
    lattice = make_lattice(num_dims, 5.0, {1: 6, 2: 3, 3: 2}[num_dims])
    features = Lattice(lattice, lattice.half_indices()[::2], prior)
    coefficients = np.random.default_rng(0).normal(size=(features.num_features, 2))
    left = rows.precisions[:, None] * (rows.y - design(features, rows.X) @ coefficients)
    s = len(features.indices)
    waves = coefficients[:s].astype(complex)
    waves[1:] -= 1j * coefficients[s : 2 * s - 1]
    statistics = rows.statistics(lattice, prior)
    actual = residual_sums(features.indices, waves, coefficients[2 * s - 1 :], statistics)
    for j in range(2):
        expected = oracles.trigonometric_sums(
            rows.X, left[:, j], lattice.spacing, lattice.extent, lattice.centre
        )
        np.testing.assert_allclose(actual[j], expected, atol=1e-9 * np.abs(left).sum())


def test_sharp_upper_bound_is_much_sharper_than_the_trace_bound() -> None:
    # Where the features leave a little out of many rows.
    rng = np.random.default_rng(0)
    kernel, noise, lattice = RBF(1.0, 0.2), 0.1, make_lattice(1, 4.0, 60)
    X = make_rows(0, 400, 1).X
    K = wrapped_gram(kernel, X, X, lattice.period)
    chol = np.linalg.cholesky(K + noise * np.eye(len(X)))
    rows = Rows(X, chol @ rng.normal(size=(len(X), 1)), None)
    bounds = all_bounds(
        kernel, rows, period=4.0, num_features=23, noise=noise, repeats=False, mean=None
    )
    bounds.assert_ordered()
    assert bounds.sharp - bounds.exact < 0.1 * (bounds.trace - bounds.exact)


# ---------------------------------------------------------------------- residuals that vary


class InducingPoints(Features):
    """Whitened inducing points of an RBF kernel: their residual differs from point to point."""

    Z: NDArray[np.float64]

    @property
    def num_features(self) -> int:
        return len(self.Z)

    def evaluate(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        chol = np.linalg.cholesky(self.prior(self.Z, self.Z) + 1e-12 * np.eye(len(self.Z)))
        return np.linalg.solve(chol, self.prior(self.Z, X)).T.astype(np.float64)

    def residual_variance(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        return 1.3 - np.sum(self.evaluate(kernel, X) ** 2, axis=1)

    @staticmethod
    def prior(A: Array, B: Array) -> Array:
        return oracles.gram_matrix(lambda lag: oracles.rbf(lag, 1.3, 0.4), A, B)


@given(
    seed=st.integers(0, 10**6),
    num_points=st.integers(1, 8),
    num_dims=st.sampled_from([1, 2]),
    log_noise=st.floats(-2.0, 1.0),
    weighted=st.booleans(),
)
def test_bounds_are_ordered_for_features_with_uneven_residuals(
    seed: int, num_points: int, num_dims: int, log_noise: float, weighted: bool
) -> None:
    rows = make_rows(seed, NUM_ROWS, num_dims, 2, "real" if weighted else None)
    features = InducingPoints(make_rows(seed + 1, num_points, num_dims).X)
    noise = 10.0**log_noise
    moments = moments_from_rows(features, RBF(), rows.X, rows.y, rows.weights, repeats=False)
    residuals = features.residual_variance(RBF(), rows.X)
    K = features.prior(rows.X, rows.X)
    tightened = tightened_bound(moments, noise, residuals, rows.weights)
    trace = upper_bound(moments, noise).total
    bounds = Bounds(
        titsias=titsias_bound(moments, noise).total,
        one_pass=one_pass_bound(moments, noise).total,
        tightened=tightened.total,
        exact=oracles.log_marginal_likelihood(K, rows.y, noise / rows.precisions),
        sharp=trace,
        trace=trace,
    )
    bounds.assert_ordered()
    # Uneven residuals are what the tightened bound gains from.
    assert bounds.tightened > bounds.one_pass


def test_upper_bound_uses_the_largest_eigenvalue_of_what_is_left_out() -> None:
    rows, noise = make_rows(7, NUM_ROWS, 1), 0.1
    features = InducingPoints(make_rows(8, 6, 1).X)
    moments = moments_from_rows(features, RBF(), rows.X, rows.y, repeats=False)
    Phi = features.evaluate(RBF(), rows.X)
    K = features.prior(rows.X, rows.X)
    norm = float(np.linalg.eigvalsh(K - Phi @ Phi.T)[-1])
    exact = oracles.log_marginal_likelihood(K, rows.y, noise)
    by_norm, by_trace = upper_bound(moments, noise, norm).total, upper_bound(moments, noise).total
    assert exact <= by_norm < by_trace
    # A useless norm is not used.
    assert upper_bound(moments, noise, 1e9).total == by_trace


# ---------------------------------------------------------------------- terms


def dense_moments() -> tuple[Moments, Array, Array]:
    rows = make_rows(9, NUM_ROWS, 1, 2)
    features = InducingPoints(make_rows(10, 5, 1).X)
    Phi = features.evaluate(RBF(), rows.X)
    return moments_from_rows(features, RBF(), rows.X, rows.y), Phi, rows.y


def test_projected_bound_is_the_likelihood_of_the_projected_prior() -> None:
    moments, Phi, y = dense_moments()
    expected = oracles.log_marginal_likelihood(Phi @ Phi.T, y, 0.2)
    assert projected_bound(moments, 0.2).total == pytest.approx(expected, rel=1e-12)


def test_terms_of_the_bounds() -> None:
    moments, Phi, y = dense_moments()
    noise, n, p = 0.2, *y.shape
    titsias, one_pass = titsias_bound(moments, noise), one_pass_bound(moments, noise)
    covariance = Phi @ Phi.T + noise * np.eye(n)
    log_det = np.linalg.slogdet(covariance)[1]
    assert titsias.complexity == pytest.approx(-p / 2 * (log_det + n * math.log(2 * math.pi)))
    assert titsias.data_fit == pytest.approx(-0.5 * np.sum(y * np.linalg.solve(covariance, y)))
    left = moments.residual_trace
    assert titsias.trace == pytest.approx(-p * left / (2 * noise))
    assert one_pass.trace == pytest.approx(-p * n / 2 * math.log(1 + left / (n * noise)))
    assert one_pass[:2] == titsias[:2]
    assert titsias.total == pytest.approx(sum(titsias))


def test_bound_given_a_factor_is_the_bound_without() -> None:
    moments, _, _ = dense_moments()
    chol = factorise(moments.gram, 0.2)
    for bound in (projected_bound, titsias_bound, one_pass_bound):
        assert bound(moments, 0.2, chol) == bound(moments, 0.2)


def test_factor_is_that_of_one_plus_the_scaled_gram() -> None:
    moments, _, _ = dense_moments()
    before = moments.gram.copy()
    chol = factorise(moments.gram, 0.2)
    np.testing.assert_allclose(chol @ chol.T, np.eye(5) + before / 0.2, rtol=1e-12)
    np.testing.assert_array_equal(np.triu(chol, 1), 0)
    np.testing.assert_array_equal(moments.gram, before)


@pytest.mark.parametrize("noise", [1e-18, 1e-30])
def test_absurdly_small_noise_is_a_precision_error(noise: float) -> None:
    # 1000 rows of variance one: their gram is known to 1e-13, the noise asks for 1e-18. Rounding
    # may leave a definite matrix all the same; of these rows it does not.
    kernel, lattice = RBF(1.0, 0.5), make_lattice(1, 6.0, 40)
    rows = make_rows(1, 1000, 1)
    features = Lattice.select(kernel, lattice, 81)
    moments = moments_from_statistics(features, kernel, rows.statistics(lattice))
    for bound in (titsias_bound, one_pass_bound, upper_bound):
        with pytest.raises(PrecisionError, match="larger noise_variance"):
            bound(moments, noise)
    assert issubclass(PrecisionError, OrthogpError)


def test_ordinary_noise_is_no_precision_error() -> None:
    kernel, lattice = RBF(1.0, 0.5), make_lattice(1, 6.0, 40)
    rows = make_rows(0, 1000, 1)
    features = Lattice.select(kernel, lattice, 81)
    moments = moments_from_statistics(features, kernel, rows.statistics(lattice))
    assert np.isfinite(titsias_bound(moments, 1e-6).total)


# ---------------------------------------------------------------------- what is left out


@pytest.mark.parametrize("num_dims", DIMS)
def test_unseen_modes_and_features_are_the_whole_lattice(num_dims: int) -> None:
    kernel = RBF(1.3, np.full(num_dims, 0.7))
    lattice = make_lattice(num_dims, 5.0, {1: 8, 2: 4, 3: 2}[num_dims])
    features = Lattice.select(kernel, lattice, 15)
    indices, masses, beyond = unseen_modes(features, kernel)
    together = {tuple(t) for t in np.concatenate([features.indices, indices])}
    assert together == {tuple(t) for t in lattice.half_indices()}
    assert len(features.indices) + len(indices) == len(together)
    seen = features.masses(kernel)
    total = seen[0] + 2 * seen[1:].sum() + 2 * masses.sum() + beyond
    assert total == pytest.approx(prior_variance(kernel), rel=1e-12)


@given(allowed=st.floats(1e-6, 1.0))
def test_required_features_leave_out_no_more_than_allowed_and_fewer_do(allowed: float) -> None:
    kernel, lattice = Matern32(1.3, 0.5), make_lattice(1, 5.0, 60)
    layout = Layout((ComponentLattice((0,), lattice, lattice.half_indices()),), np.ones(1), 1e-4)
    needed, available = layout.required_features(kernel, layout.components, allowed)
    assert available == 121

    def left_out(num_features: int) -> float:
        features = Lattice.select(kernel, lattice, num_features)
        return float(features.residual_variance(kernel, np.zeros((1, 1)))[0])

    if needed <= available:
        assert left_out(needed) <= allowed + 1e-12
    else:
        assert left_out(available) > allowed
    if needed > 1:
        assert left_out(min(needed, available + 2) - 2) > allowed


# ---------------------------------------------------------------------- certificates


def test_a_small_gap_bounds_means_and_variances() -> None:
    certificate = Certificate.from_gap(-10.0, -9.98)
    assert certificate.gap == pytest.approx(0.02)
    assert certificate.mean_error == pytest.approx(0.2)
    assert certificate.variance_error == pytest.approx(math.sqrt(0.12))
    assert not certificate.holds
    assert certificate._replace(tolerance=0.25).holds


def test_a_gap_of_more_than_a_tenth_promises_nothing() -> None:
    assert math.isfinite(Certificate.from_gap(0.0, 0.0999).mean_error)
    certificate = Certificate.from_gap(0.0, 0.1001)
    assert not certificate.holds
    assert certificate.mean_error == certificate.variance_error == math.inf
    assert certificate.sd_error == math.inf


def test_rounding_widens_the_gap() -> None:
    assert Certificate.from_gap(0.0, 0.05, 0.04).mean_error == pytest.approx(math.sqrt(0.18))
    assert Certificate.from_gap(0.0, 0.05, 0.06).mean_error == math.inf


def test_certificate_gap_is_never_negative() -> None:
    assert Certificate(-1.0, -1.0 - 1e-12).gap == 0.0


def test_only_proven_errors_within_the_tolerance_hold() -> None:
    proven = Certificate(0.0, 1.0, 0.04, 0.09)
    assert proven.sd_error == pytest.approx(1 - math.sqrt(0.91))
    assert proven.holds
    assert not proven._replace(mean_error=0.06).holds
    assert not proven._replace(variance_error=0.12).holds
    assert not proven._replace(kind="estimate").holds
    assert not proven._replace(replaces_prior=True).holds
    assert Certificate.exact(-3.0).holds


def test_certificate_bounds_the_posterior_it_certifies() -> None:
    # The promise itself: means within √γ exact standard deviations, variances within √(3γ).
    kernel, noise, lattice = RBF(1.3, 0.4), 0.2, make_lattice(1, 6.0, 40)
    rows = make_rows(11, NUM_ROWS, 1)
    checked = 0
    for num_features in (17, 19, 21, 25):
        model = fit(kernel, rows, lattice, num_features, noise)
        chol = model.posterior.chol
        certificate = Certificate.from_gap(
            titsias_bound(model.moments, noise, chol).total,
            sharp_bound(model.features, kernel, model.statistics, model.moments, noise, chol),
        )
        if not math.isfinite(certificate.mean_error):
            continue
        checked += 1
        X_new = make_rows(12, 40, 1).X
        K, K_new, K_new_new = (
            wrapped_gram(kernel, A, B, lattice.period)
            for A, B in ((rows.X, rows.X), (X_new, rows.X), (X_new, X_new))
        )
        mean, covariance = oracles.posterior(K, K_new, K_new_new, rows.y, noise)
        variance = np.diag(covariance)
        actual = model.posterior.predict(X_new)
        error = np.abs(actual.mean - mean)[:, 0] / np.sqrt(variance)
        assert error.max() <= certificate.mean_error
        assert np.abs(actual.variance / variance - 1).max() <= certificate.variance_error
    assert checked > 0


def test_bound_total_is_the_sum_of_its_terms() -> None:
    assert Bound(1.0, 2.0, 4.0).total == 7.0


def test_whitening_by_no_features_is_quiet(capfd) -> None:
    """LAPACK itself writes a complaint on the terminal about matrices of no rows."""
    assert whiten(np.zeros((0, 0)), np.zeros((0, 9))).shape == (0, 9)
    assert not any(capfd.readouterr())
