"""Lattices with many modes: how large, how long, and what they leave out."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp.fields.lattice_choice import choose_lattice
from orthogp.fields.modes import ModeGrid, grid_masses
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import RBF, Matern12, Matern32, Rotated
from orthogp.learning.limits import parameter_limits, required_period, within_limits, wrap_error
from orthogp.rows import Domain
from orthogp.statistics import FrequencyLattice

UNIT = Domain(np.zeros(2), np.ones(2))


def choose(kernel, noise, rows, **limits):
    return choose_lattice(kernel, noise, rows, UNIT, np.ones(2), 1e-4, **limits)


def test_modes_that_fall_short_have_a_shorter_period_and_say_why():
    plenty = choose(Matern32(1.0, 0.3), 1.0, 1e4)
    assert plenty.limited_by == ""
    np.testing.assert_allclose(plenty.lattice.period, 1.5)
    few = choose(Matern32(1.0, 0.03), 1e-6, 1e6, max_modes=2000)
    assert few.limited_by == "what was asked for"
    assert few.wanted > 2000
    np.testing.assert_allclose(few.lattice.period, 1.2)
    # Extents are rounded up to such as transform fast.
    assert 1500 < few.num_modes < 2600


def test_a_kernel_of_long_range_keeps_its_period_where_modes_fall_short():
    short, long = (
        choose(Matern32(1.0, 0.03) + Matern32(1.0, length), 1e-6, 1e6, max_modes=2000)
        for length in (0.03, 0.5)
    )
    np.testing.assert_allclose(short.lattice.period, 1.2)
    np.testing.assert_allclose(long.lattice.period, 1.5)


def test_a_slanted_kernel_of_long_range_has_a_period_that_keeps_opposite_borders_apart():
    kernel = Matern32(1.0, 0.03) + Rotated(Matern12(1.0, [0.25, 0.06]), 0.7)
    chosen = choose(kernel, 1e-6, 1e6, max_modes=20_000)
    # Along the axes alone a shorter one would do.
    assert np.all(required_period(kernel, np.ones(2), 0.05) < 0.95 * chosen.lattice.period)
    assert wrap_error(kernel, chosen.lattice.period, np.ones(2)) <= 0.05
    assert wrap_error(kernel, chosen.lattice.period / 1.06, np.ones(2)) > 0.05


def test_as_many_modes_as_rows_allow_keep_their_period():
    few_rows = choose(Matern32(1.0, 0.3), 1e-6, 1e3)
    assert few_rows.limited_by == "the number of rows"
    np.testing.assert_allclose(few_rows.lattice.period, 1.5)
    # Two for each row that a period would hold; extents are rounded up.
    assert 0.8 * 2 * 1.5**2 * 1e3 < few_rows.num_modes < 1.3 * 2 * 1.5**2 * 1e3


def test_little_time_allows_fewer_modes():
    sizes = [choose(Matern12(1.0, 0.3), 1e-4, 1e6, max_seconds=s) for s in (1e-3, 5.0, 50.0)]
    assert sizes[0].num_modes < sizes[1].num_modes < sizes[2].num_modes
    assert {choice.limited_by for choice in sizes[:2]} == {"max_seconds"}
    assert choose(Matern12(1.0, 0.3), 1e-4, 1e6, max_seconds=1e9).limited_by != "max_seconds"


def test_less_noise_asks_for_more_modes():
    wanted = [choose(Matern12(1.0, 0.3), noise, 1e5).wanted for noise in (1.0, 0.1, 0.01)]
    assert wanted[0] < wanted[1] < wanted[2]


@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 0.5])
def test_masses_and_what_they_leave_out_add_up_to_the_prior_variance(lengthscale):
    # Even if the lengthscale is half of the period, where many images overlap.
    kernel = Matern12(1.0, lengthscale)
    left_out = []
    for extent in (20, 40, 80):
        lattice = FrequencyLattice(2 * np.pi * np.ones(2), extent)
        grid = ModeGrid((extent, extent))
        left_out.append(1.0 - grid.total(grid_masses(kernel, lattice, grid)))
    # The spectrum of two-dimensional Matérn-1/2 falls as ω⁻³: its tail halves with each doubling.
    np.testing.assert_allclose(np.divide(left_out[1:], left_out[:-1]), 0.5, rtol=0.1)


@pytest.mark.parametrize("kernel", [Matern12(2.0, 3.0), Matern12(1.0, 2.0) + RBF(0.5, 3.0)])
def test_a_start_moved_within_limits_keeps_its_density_at_high_frequencies(kernel):
    lattice = FrequencyLattice(2 * np.pi / 1.5 * np.ones(2), 50)
    slots = learned_slots(kernel)
    lower, upper = parameter_limits(kernel, slots, lattice, np.ones(2), 0.25, 1e-8)
    vector = np.append(pack(kernel, slots), np.log(1e-3))
    assert np.any(vector > upper)
    moved = within_limits(kernel, slots, vector, lower, upper, lattice)
    assert np.all((moved >= lower) & (moved <= upper))
    omega = lattice.spacing * lattice.extent
    before, after = (
        float(k.spectral_density(omega)) for k in (kernel, unpack(kernel, slots, moved[:-1]))
    )
    assert after == pytest.approx(before, rel=1e-6)


def test_a_start_within_its_limits_stays():
    kernel = Matern12(2.0, 0.1)
    slots = learned_slots(kernel)
    lattice = FrequencyLattice(2 * np.pi / 1.5 * np.ones(2), 50)
    lower, upper = parameter_limits(kernel, slots, lattice, np.ones(2), 0.25, 1e-8)
    vector = np.append(pack(kernel, slots), np.log(1e-3))
    np.testing.assert_array_equal(
        within_limits(kernel, slots, vector, lower, upper, lattice), vector
    )
