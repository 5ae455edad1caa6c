"""Variances from draws: the error that is stated is the one that is made."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp.features import MeanPrior
from orthogp.fields.fitting import DRAW_TOLERANCE
from orthogp.fields.model import Model, PreconditionerNoise
from orthogp.fields.posterior import VarianceField, ample_precision, draw_modes, draws_of
from orthogp.fields.system import DataDensity
from orthogp.kernels import RBF, Matern12, Matern32
from orthogp.statistics import FourierStatistics, FrequencyLattice


def exact_variances(model: Model) -> np.ndarray:
    """Return the variances of the modes' sum at the grid's points, by a dense inverse."""
    grid, system = model.system.grid, model.system
    basis = grid.from_points(np.eye(grid.size).reshape(grid.size, *grid.points))
    precision = grid.to_points(system.apply(basis)).reshape(grid.size, -1)
    scaled = grid.to_points(basis * system.amplitudes).reshape(grid.size, -1).T
    return np.einsum("ij,ij->i", scaled @ np.linalg.inv(precision), scaled) * grid.size


# Crowded rows with little noise: variances differ from one point to the next. Few rows of a smooth
# function with much noise: they hardly differ, and neighbours can be averaged.
@pytest.mark.parametrize(
    ("kernel", "rows", "noise", "power"),
    [(Matern12(1.0, 0.3), 3000, 1e-2, 2), (Matern32(1.0, 0.3), 1500, 1.0, 1)],
    ids=["rough", "smooth"],
)
def test_the_stated_error_is_that_at_the_rows(kernel, rows, noise, power):
    X = np.random.default_rng(0).uniform(0, 1, (rows, 2)) ** power
    lattice = FrequencyLattice.for_domain(np.zeros(2), np.ones(2), period=1.3, extent=(16, 15))
    statistics = FourierStatistics.from_data(lattice, X, np.sin(9 * X[:, 0]))
    model = Model.build(DataDensity(statistics), MeanPrior(), kernel, noise, fine=True)
    grid, exact = model.system.grid, exact_variances(model)
    cells = np.stack(np.meshgrid(*map(np.arange, grid.points), indexing="ij"), axis=-1)
    points = lattice.centre + cells.reshape(-1, 2) / np.array(grid.points) * lattice.period
    density = np.maximum(model.system.density.smoothed(grid.points).ravel(), 0.0)
    made, stated = [], []
    for seed in range(4):
        field = VarianceField.estimate(model, draw_modes(model, 32, np.random.default_rng(seed)))
        made.append(np.average((field.at(points) / exact - 1) ** 2, weights=density))
        stated.append(field.sampling_error**2)
    ratio = np.sqrt(np.mean(stated) / np.mean(made))
    assert 0.6 < ratio < 1.7
    assert np.sqrt(np.mean(made)) < 0.2


@pytest.mark.slow
# Data determine most modes of the first, and few of the last.
@pytest.mark.parametrize(
    "kernel", [Matern12(1.0, 0.3), Matern32(1.0, 0.1), RBF(1.0, 0.2)], ids=["12", "32", "rbf"]
)
def test_draws_as_accurate_as_a_fit_wants_them_have_its_variances_also_in_gaps(kernel):
    X = np.random.default_rng(0).uniform(0, 1, (20_000, 2))
    gap = np.hypot(X[:, 0] - 0.4, X[:, 1] - 0.5) < 0.2
    lattice = FrequencyLattice.for_domain(np.zeros(2), np.ones(2), period=1.3, extent=(60, 58))
    statistics = FourierStatistics.from_data(lattice, X[~gap], np.sin(9 * X[~gap, 0]))
    model = Model.build(DataDensity(statistics), MeanPrior(), kernel, 0.0025, fine=True)

    assert ample_precision(model) is np.float32
    noise = model.preconditioner.noise(np.random.default_rng(1), 16)
    single = PreconditionerNoise(noise.modes.astype(np.complex64), noise.points.astype(np.float32))

    def variances(noise: PreconditionerNoise, tolerance: float) -> np.ndarray:
        return VarianceField.estimate(model, draws_of(model, noise, tolerance)).at(X)

    exact = variances(noise, 1e-6)
    for tolerance, most in ((1e-4, 1e-3), (DRAW_TOLERANCE, 1e-2)):
        change = variances(single, tolerance) / exact - 1
        for where in (gap, ~gap):
            assert np.sqrt(np.mean(change[where] ** 2)) < most


def test_single_precision_is_not_for_data_that_say_far_more_than_the_prior():
    X = np.random.default_rng(0).uniform(0, 1, (20_000, 1))
    lattice = FrequencyLattice.for_domain(np.zeros(1), np.ones(1), period=1.3, extent=(30,))
    statistics = FourierStatistics.from_data(lattice, X, np.sin(9 * X[:, 0]))
    for noise, precision in ((1e-2, np.float32), (1e-6, np.float64)):
        model = Model.build(DataDensity(statistics), MeanPrior(), RBF(1.0, 0.3), noise)
        assert ample_precision(model) is precision


def test_draws_of_single_precision_stay_so():
    X = np.random.default_rng(0).uniform(0, 1, (500, 1))
    lattice = FrequencyLattice.for_domain(np.zeros(1), np.ones(1), period=1.3, extent=(30,))
    statistics = FourierStatistics.from_data(lattice, X, np.sin(9 * X[:, 0]))
    for kernel in (Matern12(1.0, 0.3), Matern32(1.0, 0.3)):
        model = Model.build(DataDensity(statistics), MeanPrior(), kernel, 0.01)
        draws = draw_modes(model, 3, np.random.default_rng(0), precision=np.float32)
        assert draws.modes.dtype == np.complex64
        assert draws.companions is not None
        assert draws.companions.dtype == np.float32


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_draws_of_more_vectors_than_are_kept_are_the_same(precision):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (500, 2))
    lattice = FrequencyLattice.for_domain(np.zeros(2), np.ones(2), period=1.3, extent=15)
    statistics = FourierStatistics.from_data(lattice, X, np.zeros(500))
    model = Model.build(DataDensity(statistics), MeanPrior(1.0), Matern12(1.0, 0.2), 0.01)
    noise = model.preconditioner.noise(rng, 3, precision)
    all_kept = draws_of(model, noise, DRAW_TOLERANCE)
    made_again = draws_of(model, noise, DRAW_TOLERANCE, most_vectors=4)
    assert np.abs(all_kept.modes).max() > 0.5
    np.testing.assert_array_equal(all_kept.modes, made_again.modes)
