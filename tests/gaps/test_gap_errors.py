"""Errors at hidden rows and their derivatives, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp.features import Lattice, MeanPrior
from orthogp.fields.evidence import IterativeObjective
from orthogp.gaps import Gap, sums_of
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import Kernel, Matern12, Matern32, Rotated
from orthogp.rows import Rows
from orthogp.statistics import FrequencyLattice

NOISE = 0.02
LATTICE = FrequencyLattice.for_domain(np.zeros(2), np.ones(2), period=1.5, extent=[12, 10])
MEANS = {
    "none": MeanPrior(),
    "constant": MeanPrior(4.0),
    "linear": MeanPrior(4.0, 3.0, np.full(2, 0.5), np.ones(2)),
}


def problem(*, weighted: bool, num_targets: int) -> tuple[Rows, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (300, 2))
    both = np.stack([np.sin(6 * X[:, 0]) + X[:, 1], np.cos(5 * X[:, 1])], axis=1)
    y = (both + 0.1 * rng.standard_normal(both.shape))[:, :num_targets]
    weights = rng.uniform(0.5, 2.0, len(X)) if weighted else None
    hidden = (np.abs(X[:, 0] - 0.5) < 0.15) & (X[:, 1] > 0.3)
    return Rows(X, y, weights), hidden


def gap_of(kernel, rows, hidden, mean, *tolerances) -> Gap:
    kept = sums_of(LATTICE, rows.part(~hidden), mean)
    return Gap(IterativeObjective(kept, kernel, mean), rows.part(hidden), *tolerances)


def dense_error(
    kernel: Kernel, vector: np.ndarray, rows: Rows, hidden: np.ndarray, mean: MeanPrior
) -> tuple[float, float]:
    """Return ½ Σ w e² from the features at the rows, what they leave out being noise.

    And, for the kept rows, yᵀK⁻¹y over their number.
    """
    features = Lattice(LATTICE, LATTICE.half_indices(), mean)
    kernel = unpack(kernel, learned_slots(kernel), vector[:-1])
    phi = features.evaluate(kernel, rows.X)
    noise = np.exp(vector[-1]) + features.residual_variance(kernel, rows.X)
    weights = np.ones(len(rows.X)) if rows.weights is None else rows.weights
    prior = phi @ phi.T
    among = prior[np.ix_(~hidden, ~hidden)] + np.diag((noise / weights)[~hidden])
    kept = rows.y[~hidden]
    solved = np.linalg.solve(among, kept)
    error = prior[np.ix_(hidden, ~hidden)] @ solved - rows.y[hidden]
    quadratic = float(np.sum(kept * solved)) / (weights[~hidden].sum() * rows.y.shape[1])
    return 0.5 * float(np.sum(weights[hidden, None] * error**2)), quadratic


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(("weighted", "num_targets"), [(False, 1), (True, 2)])
def test_error_and_derivatives_are_those_of_dense_matrices(mean, weighted, num_targets):
    rows, hidden = problem(weighted=weighted, num_targets=num_targets)
    kernel = Rotated(Matern32(0.8, [0.3, 0.2]), 0.5) + Matern12(0.4, [0.8, 0.5])
    vector = np.append(pack(kernel, learned_slots(kernel)), np.log(NOISE))
    found = gap_of(kernel, rows, hidden, MEANS[mean], (1e-9, 1e-9)).evaluate(vector)

    def oracle(at: np.ndarray) -> float:
        return dense_error(kernel, at, rows, hidden, MEANS[mean])[0]

    step = 1e-5
    differences = [
        (oracle(vector + h) - oracle(vector - h)) / (2 * step) for h in step * np.eye(len(vector))
    ]
    assert found.value == pytest.approx(oracle(vector), rel=1e-7)
    np.testing.assert_allclose(found.gradient, differences, rtol=1e-4, atol=1e-6)
    quadratic = dense_error(kernel, vector, rows, hidden, MEANS[mean])[1]
    assert found.variance_factor == pytest.approx(quadratic, rel=1e-6)


def test_default_tolerances_tell_the_descent_to_some_percent():
    rows, hidden = problem(weighted=False, num_targets=1)
    kernel = Matern12(0.4, [0.8, 0.5])
    vector = np.append(pack(kernel, learned_slots(kernel)), np.log(NOISE))
    exact, usual = (
        gap_of(kernel, rows, hidden, MEANS["linear"], *tolerances).evaluate(vector)
        for tolerances in ([(1e-9, 1e-9)], [])
    )
    assert usual.value == pytest.approx(exact.value, rel=0.01)
    size = np.linalg.norm(exact.gradient)
    assert np.linalg.norm(usual.gradient - exact.gradient) < 0.05 * size


def test_a_second_evaluation_from_the_first_solution_is_the_same():
    rows, hidden = problem(weighted=False, num_targets=1)
    kernel = Matern32(0.8, [0.3, 0.2])
    vector = np.append(pack(kernel, learned_slots(kernel)), np.log(NOISE))
    gap = gap_of(kernel, rows, hidden, MEANS["linear"])
    elsewhere = gap.evaluate(vector + 0.5)
    again = gap.evaluate(vector)
    fresh = gap_of(kernel, rows, hidden, MEANS["linear"]).evaluate(vector)
    assert elsewhere.value != pytest.approx(fresh.value, rel=0.02)
    assert again.value == pytest.approx(fresh.value, rel=0.01)
