"""FrequencyLattice: which frequencies, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.errors import InputError
from orthogp.statistics import FrequencyLattice
from tests import oracles

extents = st.lists(st.integers(0, 4), min_size=1, max_size=3)


@given(extent=extents)
def test_half_set_has_zero_first_and_one_of_each_pair(extent: list[int]) -> None:
    half = FrequencyLattice(np.ones(len(extent)), extent).half_indices()
    assert not half[0].any()
    both = [tuple(t) for t in half] + [tuple(-t) for t in half[1:]]
    assert len(both) == len(set(both))
    assert set(both) == {tuple(t) for t in oracles.lattice_indices(extent)}


def test_domain_is_centred_and_has_the_period_asked_for() -> None:
    lattice = FrequencyLattice.for_domain([1.0, -2.0], [3.0, 4.0], period=[5.0, 7.0], extent=[2, 3])
    np.testing.assert_allclose(lattice.centre, [2.0, 1.0])
    np.testing.assert_allclose(lattice.period, [5.0, 7.0], rtol=1e-15)
    assert lattice.target_shape == (5, 7)
    assert lattice.point_shape == (9, 13)


@given(extent=extents, factor=st.integers(1, 5))
def test_decimated_lattice_is_a_sublattice(extent: list[int], factor: int) -> None:
    lattice = FrequencyLattice(np.linspace(0.5, 0.7, len(extent)), extent, 0.3)
    coarse = lattice.decimate(factor)
    np.testing.assert_allclose(coarse.period * factor, lattice.period)
    np.testing.assert_array_equal(coarse.extent, np.array(extent) // factor)
    np.testing.assert_array_equal(coarse.centre, lattice.centre)


def test_lattices_are_equal_by_value() -> None:
    a, b = FrequencyLattice([0.5, 0.7], 3, 1.0), FrequencyLattice([0.5, 0.7], [3, 3], [1.0, 1.0])
    assert a == b
    assert hash(a) == hash(b)
    assert a != FrequencyLattice([0.5, 0.7], 3, 1.1)
    assert a != FrequencyLattice([0.5, 0.7], 4, 1.0)
    assert a != FrequencyLattice([0.5, 0.8], 3, 1.0)
    assert a != "lattice"


@pytest.mark.parametrize(
    ("spacing", "extent"),
    [([0.0], 3), ([-1.0], 3), ([np.nan], 3), ([np.inf], 3), ([1.0], -1), ([1.0] * 4, 1), ([], 1)],
)
def test_impossible_lattices_are_refused(spacing: list[float], extent: int) -> None:
    with pytest.raises(InputError, match="lattice"):
        FrequencyLattice(spacing, extent)


def test_decimation_by_less_than_one_is_refused() -> None:
    with pytest.raises(InputError, match="factors ≥ 1"):
        FrequencyLattice([1.0, 1.0], 4).decimate([2, 0])
