"""The diagonal preconditioner of three columns: choice, solutions, evidence, variances."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp.features import MeanPrior
from orthogp.fields.evidence import IterativeObjective
from orthogp.fields.model import (
    EvenPreconditioner,
    Model,
    SpatialPreconditioner,
    choose_preconditioner,
    solve,
)
from orthogp.fields.posterior import VarianceField, draw_modes
from orthogp.fields.system import DataDensity
from orthogp.kernels import Matern32
from orthogp.statistics import FourierStatistics, FrequencyLattice

KERNEL, NOISE = Matern32(1.0, 0.4), 0.05


@pytest.fixture(scope="module")
def statistics():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (3000, 3))
    y = np.sin(5 * X[:, 0]) * X[:, 1] + X[:, 2] + 0.2 * rng.standard_normal(len(X))
    lattice = FrequencyLattice.for_domain(np.zeros(3), np.ones(3), period=1.3, extent=(3, 4, 3))
    return FourierStatistics.from_data(lattice, X, y)


@pytest.fixture(scope="module")
def model(statistics):
    return Model.build(DataDensity(statistics), MeanPrior(), KERNEL, NOISE)


def dense(system):
    grid = system.grid
    basis = grid.from_points(np.eye(grid.size).reshape(grid.size, *grid.points))
    return grid.to_points(system.apply(basis)).reshape(grid.size, -1)


def test_few_points_along_an_axis_ask_for_it_and_its_kind_is_kept(model):
    chosen = choose_preconditioner(model.system)
    assert isinstance(chosen, EvenPreconditioner)
    assert isinstance(choose_preconditioner(model.system, chosen), EvenPreconditioner)
    spatial = SpatialPreconditioner(model.system)
    assert isinstance(choose_preconditioner(model.system, spatial), SpatialPreconditioner)


def test_solutions_are_dense_solutions(model):
    system = model.system
    right = system.grid.noise(np.random.default_rng(1), 2)
    found = solve(model, right, tolerance=1e-8)
    assert found.converged
    expected = np.linalg.solve(dense(system), system.grid.to_points(right).reshape(2, -1).T).T
    np.testing.assert_allclose(system.grid.to_points(found.x).reshape(2, -1), expected, atol=1e-7)


def test_evidence_is_the_dense_one_within_its_error(statistics, model):
    objective = IterativeObjective(statistics, KERNEL, MeanPrior(), num_probes=32)
    evidence = objective.evaluate(objective.vector(KERNEL, NOISE), profile=False)
    expected = np.linalg.slogdet(dense(model.system))[1]
    # Six standard errors: one false alarm in a thousand million, and the seed is fixed.
    assert evidence.standard_error < 3.0
    assert abs(evidence.log_determinant - expected) < 12 * evidence.standard_error


def test_variances_without_companions_have_their_stated_error(model):
    draws = draw_modes(model, 64, np.random.default_rng(2))
    assert draws.companions is None
    field = VarianceField.estimate(model, draws)
    grid = model.system.grid
    whitened = np.linalg.inv(dense(model.system))
    basis = grid.from_points(np.eye(grid.size).reshape(grid.size, *grid.points))
    scaled = grid.to_points(basis * model.system.amplitudes).reshape(grid.size, -1)
    exact = np.einsum("ij,jk,ik->i", scaled.T, whitened, scaled.T) * grid.size
    lattice = model.system.density.lattice
    cells = np.stack(np.meshgrid(*(np.arange(n) for n in grid.points), indexing="ij"), axis=-1)
    X = lattice.centre + cells.reshape(-1, 3) / np.array(grid.points) * lattice.period
    error = np.sqrt(np.mean((field.at(X) / exact - 1) ** 2))
    # At the grid's points splines have no say.
    assert error < 1.5 * field.sampling_error
    assert field.sampling_error < 0.2
    assert field.sampling_error < field.relative_error
