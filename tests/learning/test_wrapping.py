"""How long a period must be: errors of the wrapped prior, and the limits that follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.features.series import lattice_masses
from orthogp.inference.parameters import learned_slots, stretched
from orthogp.kernels import RBF, Kernel, Matern12, Matern32, On, RationalQuadratic, Rotated, Sum
from orthogp.learning.limits import (
    choose_decimation,
    lengthscale_limits,
    required_period,
    wrap_error,
)
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.problems import Entry, label, zoo

# One compilation for each: parameters may vary, kinds cost.
KINDS = {
    "rbf": lambda ell: RBF(1.3, ell),
    "matern12": lambda ell: Matern12(1.3, ell),
    "matern32": lambda ell: Matern32(1.3, ell),
    "rational-quadratic": lambda ell: RationalQuadratic(1.3, ell, 2.5),
}
kinds = st.sampled_from(sorted(KINDS))


def on_axis(kernel: Kernel, axis: int, period: np.ndarray, width: np.ndarray) -> float:
    """The error for data that extend along one axis only."""
    narrow = np.full(len(width), 1e-12)
    narrow[axis] = width[axis]
    return wrap_error(kernel, period, narrow)


@pytest.mark.parametrize(
    "entry", [e for e in zoo(1) if e.local and not isinstance(e.kernel, Sum | On)], ids=label
)
def test_wrap_error_is_the_largest_deviation_over_the_data(entry: Entry) -> None:
    width, period = 2.0, 5.0
    fractions = np.arange(1, 9) / 8
    lags = width * fractions[:, None]
    by_constant = isinstance(entry.kernel, RBF | RationalQuadratic)
    oracle = oracles.wrapped if by_constant else oracles.wrapped_and_scaled
    wrapped = oracle(entry.k, lags, np.array([period]), num_images=4)
    expected = np.max(np.abs(wrapped - entry.k(lags))) / entry.k(np.zeros(1))
    actual = wrap_error(entry.kernel, np.array([period]), np.array([width]))
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_wrap_error_looks_at_every_axis_and_at_the_corner() -> None:
    kernel = RBF(1.0, [0.5, 0.5])
    long = np.array([40.0, 40.0])
    width = np.array([2.0, 2.0])
    assert wrap_error(kernel, long, width) < 1e-12
    for axis in (0, 1):
        short = long.copy()
        short[axis] = 3.0
        assert wrap_error(kernel, short, width) > 0.1


def test_wrap_error_of_a_slanted_kernel_is_the_same_for_either_slant() -> None:
    period, width = np.full(2, 1.6), np.ones(2)
    slanted = [Rotated(Matern12(1.0, [0.6, 0.1]), angle) for angle in (0.7, -0.7)]
    errors = [wrap_error(kernel, period, width) for kernel in slanted]
    assert errors[0] == pytest.approx(errors[1], rel=1e-9)
    # The image of the lag along the long diagonal is nearest, at 0.6√2.
    assert errors[0] > 0.5 * np.exp(-np.sqrt(2))


def test_wrap_error_looks_along_the_diagonals_of_faces() -> None:
    slanted = Rotated(Matern12(1.0, [0.6, 0.1]), -0.7)
    flat = wrap_error(slanted, np.full(2, 1.6), np.ones(2))
    solid = wrap_error(slanted.on(0, 1) * RBF(1.0, 0.1).on(2), np.full(3, 1.6), np.ones(3))
    assert solid == pytest.approx(flat, rel=1e-6)


def test_wrap_error_does_not_depend_on_the_variance() -> None:
    period, width = np.array([4.0]), np.array([2.0])
    errors = [wrap_error(RBF(v, 0.5), period, width) for v in (1.0, 100.0)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-12)


@given(
    kind=kinds,
    lengthscale=st.floats(0.05, 1.0),
    log_tolerance=st.floats(-6, -2),
    headroom=st.floats(1.0, 2.0),
)
def test_decimation_is_the_largest_within_the_tolerance(
    kind: str, lengthscale: float, log_tolerance: float, headroom: float
) -> None:
    kernel, tolerance = KINDS[kind](lengthscale), 10.0**log_tolerance
    width = np.array([2.0])
    lattice = FrequencyLattice(2 * np.pi / 64.0, 100)
    (factor,) = choose_decimation(kernel, lattice, width, tolerance, headroom)
    longer = stretched(kernel, headroom)

    def error(factor: int) -> float:
        return wrap_error(longer, lattice.period / factor, width)

    assert factor >= 1
    if factor > 1:
        assert error(factor) <= tolerance * (1 + 1e-6)
    next_is_too_short = lattice.period[0] / (factor + 1) < 1.1 * width[0]
    assert next_is_too_short or error(factor + 1) > tolerance * (1 - 1e-6)


@given(
    kind=st.sampled_from(["rbf", "matern32"]),
    first=st.floats(0.05, 1.0),
    second=st.floats(0.05, 1.0),
    log_tolerance=st.floats(-6, -2),
)
def test_decimation_in_two_dimensions_keeps_the_error_within_the_tolerance(
    kind: str, first: float, second: float, log_tolerance: float
) -> None:
    kernel, tolerance = KINDS[kind](np.array([first, second])), 10.0**log_tolerance
    width = np.array([2.0, 3.0])
    lattice = FrequencyLattice(2 * np.pi / np.array([64.0, 96.0]), 100)
    factors = choose_decimation(kernel, lattice, width, tolerance)
    # The status of a fit speaks of a short period from 1.05 tolerances on.
    assert wrap_error(kernel, lattice.period / factors, width) <= 1.05 * tolerance


def test_decimation_is_one_if_even_the_longest_period_is_too_short() -> None:
    lattice = FrequencyLattice([2 * np.pi / 3.0], 100)
    factors = choose_decimation(Matern12(1.0, 5.0), lattice, np.array([2.0]), 1e-4)
    np.testing.assert_array_equal(factors, [1])


def test_decimation_along_a_column_that_no_kernel_sees_is_as_large_as_can_be() -> None:
    lattice = FrequencyLattice(2 * np.pi / np.array([64.0, 64.0]), 100)
    factors = choose_decimation(RBF(1.0, 0.5).on(0), lattice, np.array([2.0, 2.0]), 1e-4)
    assert factors[1] == int(64.0 / (1.1 * 2.0))
    assert 1 < factors[0] < factors[1]


@pytest.mark.slow
@given(
    kind=kinds,
    lengthscale=st.floats(0.05, 2.0),
    log_tolerance=st.floats(-6, -2),
    period=st.floats(4.0, 40.0),
)
def test_lengthscale_limit_is_the_longest_within_the_tolerance(
    kind: str, lengthscale: float, log_tolerance: float, period: float
) -> None:
    kernel, tolerance = KINDS[kind](lengthscale), 10.0**log_tolerance
    width, periods = np.array([2.0]), np.array([period])
    (slot,) = (slot for slot in learned_slots(kernel) if slot.name == "lengthscale")
    limit = float(lengthscale_limits(kernel, slot, periods, width, tolerance))

    def error(lengthscale: float) -> float:
        return wrap_error(KINDS[kind](lengthscale), periods, width)

    stretch = limit / lengthscale
    # The table of stretches is in steps of at most a fifth, and ends.
    if stretch > 2.0**-5.9:
        assert error(limit) <= tolerance * (1 + 1e-6)
        # A peak of the error may be passed over, if it is low: beyond it kernels are all but
        # constant, up to the period.
        assert max(error(shorter) for shorter in limit * 2.0 ** -np.arange(0, 3, 0.1)) <= (
            1.05 * tolerance
        )
    if stretch < 2.0**7.7 and limit < period:
        assert error(1.2 * limit) > tolerance


def test_no_lengthscale_is_longer_than_the_period() -> None:
    """The wrap error of a term with little share is small, but its variance would not be k(0)."""
    kernel = Matern12(1.0, 0.1) + Matern12(1e-4, np.array([0.5, 0.5]))
    width, period = np.array([2.0, 2.0]), np.array([3.0, 2.5])
    slot = [slot for slot in learned_slots(kernel) if slot.name == "lengthscale"][1]
    limits = lengthscale_limits(kernel, slot, period, width, 0.25)
    np.testing.assert_array_equal(limits, period)
    lattice = FrequencyLattice(2 * np.pi / period, 400, 0.0)
    own = Matern12(1.0, limits)
    masses = lattice_masses(own, lattice, lattice.half_indices())
    assert 2 * masses.sum() - masses[0] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("kind", ["rbf", "matern32"])
def test_lengthscale_limits_in_two_dimensions_hold_for_each_column(kind: str) -> None:
    kernel = KINDS[kind](np.array([0.3, 0.6]))
    width, period = np.array([2.0, 3.0]), np.array([10.0, 8.0])
    (slot,) = (slot for slot in learned_slots(kernel) if slot.name == "lengthscale")
    limits = lengthscale_limits(kernel, slot, period, width, 1e-4)
    assert limits.shape == (2,)
    for axis in (0, 1):
        at_limit = np.array([0.3, 0.6])
        at_limit[axis] = limits[axis]
        assert on_axis(KINDS[kind](at_limit), axis, period, width) <= 1.05e-4


@pytest.mark.parametrize("kind", ["rbf", "matern32"])
def test_lengthscale_too_long_in_one_column_does_not_lower_the_limit_of_another(kind: str) -> None:
    # The period of 10 holds the first column's 0.3 with ease; that of 4 not the second's 1.5.
    kernel = KINDS[kind](np.array([0.3, 1.5]))
    width, period = np.array([2.0, 2.0]), np.array([10.0, 4.0])
    (slot,) = (slot for slot in learned_slots(kernel) if slot.name == "lengthscale")
    limits = lengthscale_limits(kernel, slot, period, width, 1e-4)
    assert limits[0] > 0.3
    assert limits[1] < 1.5


def test_lengthscale_limits_of_a_sum_are_those_of_its_terms_on_their_columns() -> None:
    kernel = RBF(1.3, 0.4).on(1) + Matern12(1.3, 0.2).on(0)
    width, period = np.array([2.0, 3.0]), np.array([10.0, 30.0])
    slots = [slot for slot in learned_slots(kernel) if slot.name == "lengthscale"]
    limits = [lengthscale_limits(kernel, slot, period, width, 1e-4) for slot in slots]
    # Each term has half of the variance, so that its own error counts half.
    for limit, alone, column in zip(limits, (RBF(1.3, 0.4), Matern12(1.3, 0.2)), (1, 0)):
        (slot,) = (slot for slot in learned_slots(alone) if slot.name == "lengthscale")
        at = slice(column, column + 1)
        expected = lengthscale_limits(alone, slot, period[at], width[at], 2e-4)
        assert float(limit) == pytest.approx(float(expected), rel=1e-12)


@given(
    kind=kinds,
    lengthscale=st.floats(0.02, 3.0),
    log_tolerance=st.floats(-5, -2),
    headroom=st.floats(1.0, 2.0),
)
def test_required_period_suffices_and_a_shorter_one_does_not(
    kind: str, lengthscale: float, log_tolerance: float, headroom: float
) -> None:
    kernel, tolerance = KINDS[kind](lengthscale), 10.0**log_tolerance
    width = np.array([2.0])
    longer = stretched(kernel, headroom)
    period = required_period(kernel, width, tolerance, headroom)
    if period[0] < 0.99 * 256 * width[0]:  # the longest that is tried
        assert wrap_error(longer, period, width) <= tolerance * (1 + 1e-6)
    shorter = period / 1.2
    if shorter[0] > 1.1 * width[0]:  # the shortest that is ever used
        assert wrap_error(longer, shorter, width) > tolerance


def test_required_period_differs_between_columns() -> None:
    kernel = RBF(1.0, [0.1, 2.0])
    period = required_period(kernel, np.array([2.0, 2.0]), 1e-4)
    assert period[1] > 2 * period[0]
    assert wrap_error(kernel, period, np.array([2.0, 2.0])) <= 1.05e-4
