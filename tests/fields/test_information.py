"""The information about hyperparameters, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp.features import Lattice, MeanPrior
from orthogp.fields.evidence import IterativeObjective
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import RBF, Matern32, Rotated
from orthogp.statistics import FourierStatistics, FrequencyLattice
from tests.problems import prior_variance

NOISE = 0.05


def covariance(kernel, lattice, X, vector):
    """Return K of the lattice's process, all that it leaves out being noise, by its features."""
    at = unpack(kernel, learned_slots(kernel), vector[:-1])
    Phi = Lattice.select(at, lattice, 10**6).evaluate(at, X)
    noise = np.exp(vector[-1]) + prior_variance(at) - np.sum(Phi[0] ** 2)
    return Phi @ Phi.T + noise * np.eye(len(X))


@pytest.mark.parametrize(
    "kernel",
    [
        Matern32(1.0, [0.3, 0.2]),
        Rotated(Matern32(1.0, [0.3, 0.15]), 0.5) + RBF(0.5, [0.6, 0.6]),
    ],
    ids=["one", "sum"],
)
def test_the_average_information_is_the_dense_one(kernel):
    rng = np.random.default_rng(0)
    # Rows on a grid with a hole, where even spreading would mislead.
    X = np.stack(np.meshgrid(np.linspace(0, 1, 16), np.linspace(0, 1, 12)), axis=-1).reshape(-1, 2)
    X = X[np.hypot(*(X - 0.5).T) > 0.2]
    y = np.sin(6 * X[:, 0] + 2 * X[:, 1]) + 0.2 * rng.standard_normal(len(X))
    lattice = FrequencyLattice.for_domain(np.zeros(2), np.ones(2), period=1.6, extent=(8, 7))
    objective = IterativeObjective(FourierStatistics.from_data(lattice, X, y), kernel, MeanPrior())
    vector = np.append(pack(kernel, objective.slots), np.log(NOISE))
    inverse = np.linalg.inv(covariance(kernel, lattice, X, vector))
    step = 1e-4
    slopes = [
        (
            covariance(kernel, lattice, X, vector + step * unit)
            - covariance(kernel, lattice, X, vector - step * unit)
        )
        / (2 * step)
        for unit in np.eye(len(vector))
    ]
    images = np.stack([slope @ inverse @ y for slope in slopes])
    expected = images @ inverse @ images.T / 2
    found = objective.average_information(vector)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # Solutions have errors of three per cent, which enter the products twice.
    np.testing.assert_allclose(found / scale, expected / scale, atol=0.01)
