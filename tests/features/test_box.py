"""Box features: cells of the frequency axis, tiled by the points of a lattice."""

import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features import Lattice
from orthogp.features.bands import Box
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.statistics import FrequencyLattice
from tests.problems import densities

LOWER, UPPER = np.array([-1.0]), np.array([1.0])


def width_of(family: Box) -> float:
    assert family.dilation is not None
    return float(np.asarray(family.dilation).reshape(-1)[0])


def test_narrow_cells_are_integrated_fourier_features() -> None:
    # φ ≈ √(2w S(ω)) cos ωx with ω the middle of the cell, up to order w².
    kernel, X = RBF(1.0, 0.5), np.linspace(-1, 1, 7)[:, None]
    omega = np.array([0.4, 0.8])
    errors = []
    for w, cells in ((0.2, np.array([2, 4])), (0.1, np.array([4, 8]))):
        Phi = Box(17, w).evaluate(kernel, X)
        root = np.sqrt(2 * w * densities(kernel, omega[:, None]))
        middle = np.sqrt(w * densities(kernel, [[0.0]]))
        cosines = np.max(np.abs(Phi[:, 2 * cells - 1] - root * np.cos(X * omega)) / root)
        sines = np.max(np.abs(Phi[:, 2 * cells] - root * np.sin(X * omega)) / root)
        errors.append([np.max(np.abs(Phi[:, 0] - middle) / middle), cosines, sines])
    assert np.max(errors) < 0.01
    np.testing.assert_allclose(np.divide(*errors), 4, rtol=0.02)


def test_cells_of_one_point_are_the_features_of_the_lattice() -> None:
    kernel, lattice = Matern32(1.3, 0.4), FrequencyLattice(0.7, 12, 0.3)
    X = np.linspace(-0.7, 1.3, 9)[:, None]
    family = Box(15, 0.7).placed(kernel, X[0], X[-1], lattice)
    modes = Lattice(lattice, lattice.half_indices()[:8]).evaluate(kernel, X)
    # There all cosines come before the sines.
    order = [0, *np.stack([np.arange(1, 8), np.arange(8, 15)], axis=1).ravel()]
    np.testing.assert_allclose(family.on(lattice).evaluate(kernel, X), modes[:, order], atol=1e-14)


@pytest.mark.parametrize(
    ("width", "extent", "points"),
    [
        (0.01, 34, 1),
        (1.0, 34, 1),
        (1.9, 34, 1),
        (2.1, 34, 3),
        (3.4, 34, 3),
        (4.2, 34, 5),
        # 7 cells within 2·34 + 1 = 69 points: at most 9 each; within 57: at most 8, hence 7.
        (50.0, 34, 9),
        (50.0, 28, 7),
    ],
)
def test_cells_hold_an_odd_number_of_points_and_stay_within_the_lattice(
    width: float, extent: int, points: int
) -> None:
    lattice = FrequencyLattice(0.5, extent)
    family = Box(7, width * 0.5).placed(RBF(), LOWER, UPPER)._fit_on(lattice)
    assert width_of(family) == pytest.approx(points * 0.5)
    series = family.on(lattice)
    occupied = np.sum(series.weights != 0, axis=1)
    np.testing.assert_array_equal(occupied, [(points + 1) / 2, *6 * [points]])
    np.testing.assert_array_equal(np.sum(series.weights[[0, 1, 3, 5]] != 0, axis=0), 1)


def test_columns_have_cells_of_their_own() -> None:
    lattice = FrequencyLattice([0.5, 0.2], [30, 30])
    box = np.array([-1.0, -1.0]), np.array([1.0, 1.0])
    family = Box(9, [1.4, 1.0]).placed(RBF(1.0, [0.5, 0.5]), *box, lattice)
    np.testing.assert_allclose(np.asarray(family.dilation), [1.5, 1.0])


def test_more_cells_than_points_are_refused() -> None:
    family = Box(11, 0.5).placed(RBF(), LOWER, UPPER)
    with pytest.raises(FeatureError, match="Box with 11 members per column reaches up to"):
        family.on(FrequencyLattice(0.5, 4))


@pytest.mark.parametrize(
    ("kernel", "num_features", "reference"),
    [
        (Matern32(1.0, 0.1), 41, 1.1e-1),
        (Matern32(1.0, 0.1), 81, 5.4e-2),
        (RBF(1.0, 0.1), 41, 5.3e-2),
    ],
    ids=["matern32-41", "matern32-81", "rbf-41"],
)
def test_variance_left_out_is_that_of_the_reference_table(
    kernel: Kernel, num_features: int, reference: float
) -> None:
    # Two digits are given.
    X = np.linspace(-1, 1, 201)[:, None]
    Phi = Box(num_features).evaluate(kernel, X)
    assert 1 - np.mean(np.sum(Phi**2, axis=1)) == pytest.approx(reference, rel=0.02)


@pytest.mark.parametrize("width", [0.0, -1.0, np.nan, "wide"])
def test_impossible_widths_are_refused(width: object) -> None:
    with pytest.raises(FeatureError, match="width must be"):
        Box(5, width)
