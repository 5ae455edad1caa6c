"""Masses on a lattice: never negative, summing to k(0), and the transform of the wrapped kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.features.series import lattice_masses, omega_blocks
from orthogp.inference.parameters import (
    JACOBIAN_BLOCK,
    _masses_and_jacobian,
    learned_slots,
    pack,
    unpack,
)
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern12,
    On,
    RationalQuadratic,
    SpectralMixture,
    Sum,
)
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.problems import (
    DIMS,
    Entry,
    all_entries,
    covariances,
    densities,
    label,
    prior_variance,
    wrapped_covariances,
    zoo,
)

# The largest index along each axis in the test of the transform.
EXTENTS = {1: 3000, 2: 60, 3: 14}


def full_sum(
    kernel: Kernel, lattice: FrequencyLattice, lags: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The masses of the half set and Σ_t mass_t cos(ω_t·τ) over the whole lattice."""
    indices = lattice.half_indices()
    masses = lattice_masses(kernel, lattice, indices)
    doubled = np.concatenate([masses[:1], 2 * masses[1:]])
    waves = np.cos(lags @ (indices * lattice.spacing).T)
    return masses, waves @ doubled


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_masses_are_the_transform_of_the_wrapped_kernel(num_dims: int, entry: Entry) -> None:
    lags = np.random.default_rng(0).uniform(-1.5, 1.5, (12, num_dims))
    lags[0] = 0
    variance = prior_variance(entry.kernel)
    # The short period leaves images of 1e-3 and more: an inconsistent correction of them shows.
    for period in (6.0, 3.5):
        periods = period * np.array([1.0, 1.1, 1.2])[:num_dims]
        lattice = FrequencyLattice(2 * np.pi / periods, EXTENTS[num_dims])
        masses, sums = full_sum(entry.kernel, lattice, lags)
        assert np.all(masses >= 0)
        # The masses add up to k(0) but for those beyond the lattice, never to more ...
        missing = variance - sums[0]
        assert missing >= -1e-6 * variance
        # ... and no more than those can tell the two sides of the transform apart.
        difference = np.abs(sums - wrapped_covariances(entry.kernel, lags, lattice.period))
        assert np.max(difference) <= max(missing, 0) + 1e-6 * variance


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(0.5, 0.6) + RationalQuadratic(0.5, 0.6, 1.4),
        (RBF(0.5, 0.6) + RationalQuadratic(0.5, 0.6, 1.4)).on(1, 0),
        RationalQuadratic(0.5, 0.6, 1.4).on(0) + RBF(0.5, 0.6).on(1),
    ],
    ids=["sum", "sum on columns", "additive"],
)
def test_masses_of_smooth_combinations_are_the_transform_of_the_wrapped_kernel(
    kernel: Kernel,
) -> None:
    lattice = FrequencyLattice([2 * np.pi / 5.0, 2 * np.pi / 6.0], 40)
    lags = np.random.default_rng(0).uniform(-1.5, 1.5, (12, 2))
    _, sums = full_sum(kernel, lattice, lags)
    expected = wrapped_covariances(kernel, lags, lattice.period)
    np.testing.assert_allclose(sums, expected, atol=1e-9)


def test_masses_of_a_narrow_band_add_up_to_the_prior_variance() -> None:
    # No mass at ω = 0 to take the images' constant from, which here is positive: 7e-4.
    kernel = SpectralMixture([1.0], [[2 * np.pi * 8 / 6]], [[1.5]])
    lattice = FrequencyLattice(2 * np.pi / 6.0, 40)
    _, sums = full_sum(kernel, lattice, np.zeros((1, 1)))
    assert sums[0] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_wrapped_kernel_keeps_the_prior_variance(num_dims: int, entry: Entry) -> None:
    for period in (20.0, 4.0, 2.5):
        periods = np.full(num_dims, period)
        at_zero = wrapped_covariances(entry.kernel, np.zeros((1, num_dims)), periods)[0]
        assert at_zero == pytest.approx(prior_variance(entry.kernel), rel=1e-8)


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [
        item
        for item in all_entries(1, 2)
        if item[1].local and not isinstance(item[1].kernel, Sum | On)
    ],
    ids=label,
)
def test_wrapped_kernel_is_the_sum_of_images(num_dims: int, entry: Entry) -> None:
    # At this period the first image is of order 1e-3 for rough kernels, and the difference
    # between correcting jointly and in each dimension below the tolerance.
    period = np.full(num_dims, 7.0)
    lags = np.random.default_rng(1).uniform(-2.0, 2.0, (10, num_dims))
    by_constant = isinstance(entry.kernel, RBF | RationalQuadratic)
    oracle = oracles.wrapped if by_constant else oracles.wrapped_and_scaled
    expected = oracle(entry.k, lags, period, num_images=4)
    actual = wrapped_covariances(entry.kernel, lags, period)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_wrapped_kernel_tends_to_the_kernel_for_long_periods(num_dims: int, entry: Entry) -> None:
    lags = np.random.default_rng(2).uniform(-1.0, 1.0, (10, num_dims))
    far = 60.0 if entry.local else 3e4
    actual = wrapped_covariances(entry.kernel, lags, np.full(num_dims, far))
    np.testing.assert_allclose(actual, covariances(entry.kernel, lags), atol=2e-8)


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [item for item in all_entries() if item[1].local and item[1].name != "additive"],
    ids=label,
)
def test_mass_is_spacing_times_density(num_dims: int, entry: Entry) -> None:
    lattice = FrequencyLattice(2 * np.pi / np.full(num_dims, 30.0), 6)
    indices = lattice.half_indices()
    expected = np.prod(lattice.spacing) * densities(entry.kernel, indices * lattice.spacing)
    actual = lattice_masses(entry.kernel, lattice, indices)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)


def test_kernel_on_some_columns_has_mass_on_their_plane_only() -> None:
    lattice = FrequencyLattice([0.5, 0.7, 0.9], 3)
    indices = lattice.half_indices()
    masses = lattice_masses(RBF(1.3, [0.5, 0.7]).on(2, 0), lattice, indices)
    on_plane = indices[:, 1] == 0
    assert np.all(masses[~on_plane] == 0)
    plane = FrequencyLattice([0.9, 0.5], 3)
    expected = lattice_masses(RBF(1.3, [0.5, 0.7]), plane, indices[on_plane][:, [2, 0]])
    np.testing.assert_allclose(masses[on_plane], expected, rtol=1e-12)


@pytest.mark.parametrize("num_dims", DIMS)
@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0, 1.5])
def test_heavy_tailed_rational_quadratic_has_finite_masses(num_dims: int, alpha: float) -> None:
    # S is infinite at ω = 0 for α ≤ D/2; the corrected mass is not.
    kernel = RationalQuadratic(1.3, np.full(num_dims, 0.5), alpha)
    lattice = FrequencyLattice(np.full(num_dims, 2 * np.pi / 6), {1: 400, 2: 60, 3: 14}[num_dims])
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    assert np.all(np.isfinite(masses))
    assert np.all(masses >= 0)
    assert masses[0] + 2 * masses[1:].sum() == pytest.approx(
        1.3, rel=1e-2 if num_dims == 3 else 1e-4
    )


@given(
    ratio=st.floats(0.01, 100.0),
    num_dims=st.sampled_from(DIMS),
    index=st.integers(0, 10),
)
def test_masses_are_never_negative_whatever_the_period(
    ratio: float, num_dims: int, index: int
) -> None:
    # Down to periods of a hundredth of a lengthscale, as a search may meet them.
    entry = zoo(num_dims)[index % len(zoo(num_dims))]
    lattice = FrequencyLattice(np.full(num_dims, 2 * np.pi / (0.5 * ratio)), 4)
    masses = lattice_masses(entry.kernel, lattice, lattice.half_indices())
    assert np.all(np.isfinite(masses))
    assert np.all(masses >= 0)


@pytest.mark.parametrize("mean", [6.0, 6.1, 6.2, 6.3, 6.4])
def test_masses_of_a_band_narrower_than_the_spacing_are_not_negative(mean: float) -> None:
    # A component that stays coherent over several periods: its images are as large as itself, and
    # of either sign.
    kernel = SpectralMixture([1.0], [[mean]], [[50.0]])
    lattice = FrequencyLattice(2 * np.pi / 16.0, 40)
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    assert np.all(np.isfinite(masses))
    assert np.all(masses >= 0)


@given(ratio=st.floats(0.02, 5.0), phase=st.floats(-0.5, 0.5))
def test_gaussian_wrap_is_right_at_every_ratio_of_lengthscale_to_period(
    ratio: float, phase: float
) -> None:
    # The code changes from images to a Fourier series at 0.4.
    k, period = RBF(1.0, ratio), np.ones(1)
    lag = np.array([[phase]])

    def bell(lag: np.ndarray) -> np.ndarray:
        return oracles.rbf(lag, 1.0, ratio)

    images = int(np.ceil(10 * ratio)) + 2
    expected = oracles.wrapped(bell, lag, period, images)
    # The sum of images itself loses digits to cancellation as their number grows.
    np.testing.assert_allclose(wrapped_covariances(k, lag, period), expected, atol=1e-13 * images)


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [*all_entries(1), *((2, entry) for entry in zoo(2) if entry.name == "additive")],
    ids=label,
)
def test_mass_gradient_is_finite_difference(num_dims: int, entry: Entry) -> None:
    slots = learned_slots(entry.kernel)
    vector = pack(entry.kernel, slots)
    lattice = FrequencyLattice(np.full(num_dims, 2 * np.pi / 4.5), 12 // num_dims)
    indices = lattice.half_indices()
    (omegas,) = omega_blocks(lattice, indices, JACOBIAN_BLOCK)
    _, (jacobian, _) = _masses_and_jacobian(vector, entry.kernel, slots, omegas, lattice.spacing)

    def masses(vector: np.ndarray) -> np.ndarray:
        return lattice_masses(unpack(entry.kernel, slots, vector), lattice, indices)

    expected = oracles.fourth_order_difference(masses, vector, 1e-3)
    np.testing.assert_allclose(jacobian[: len(indices)], expected, rtol=1e-6, atol=1e-9)


def test_matern12_total_mass_with_its_tail_is_the_prior_variance() -> None:
    # At this period the first image is 1e-4, the second 1e-8: one alone would not do.
    ell, extent, period = 0.5, 2000, 4.6
    lattice = FrequencyLattice(2 * np.pi / period, extent)
    masses = lattice_masses(Matern12(1.0, ell), lattice, lattice.half_indices())
    # The tail of h Σ S beyond the last mode is the integral beyond half a step after it, and
    # scaling to the right variance divides by Σ_j e^{−|j|P/ℓ} = coth(P/2ℓ).
    edge = ell * lattice.spacing[0] * (extent + 0.5)
    tail = (1 - 2 / np.pi * np.arctan(edge)) * np.tanh(period / (2 * ell))
    assert masses[0] + 2 * masses[1:].sum() + tail == pytest.approx(1.0, abs=1e-9)
