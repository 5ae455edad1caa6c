"""Climbing by a quadratic model in a box, on functions whose maximum is known."""

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from orthogp.learning.optimise import Ascent, Budget, Evaluation, ascend, box_step
from tests.oracles import Array

CURVATURE = np.array([[400.0, 90.0], [90.0, 100.0]])
SUMMIT = np.array([0.7, -0.4])
BUDGET = Budget(60, tolerance=1e-6)


def quadratic(x: Array, factor: float = 1.0) -> Evaluation:
    away = x - SUMMIT
    return Evaluation(-0.5 * away @ CURVATURE @ away, -CURVATURE @ away, factor * CURVATURE)


def climb(
    evaluate,
    start=(0.0, 0.0),
    lower=(-2.0, -2.0),
    upper=(2.0, 2.0),
    budget=BUDGET,
    **options,
) -> Ascent:
    found = ascend(evaluate, np.array(start), (np.array(lower), np.array(upper)), budget, **options)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(20))
def test_step_is_the_best_of_the_box(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    root = rng.standard_normal((size, size + 2))
    H, g = root @ root.T, 5 * rng.standard_normal(size)
    low, high = -rng.uniform(0, 1, size), rng.uniform(0, 1, size)
    low[rng.random(size) < 0.2] = 0.0
    step = box_step(g, H, low, high)
    chol = np.linalg.cholesky(H)
    # ½ δᵀHδ − gᵀδ = ½ ‖Lᵀδ − L⁻¹g‖² + constant
    bounds = (low - 1e-13, high + 1e-13)
    expected = lsq_linear(chol.T, np.linalg.solve(chol, g), bounds=bounds, method="bvls").x
    np.testing.assert_allclose(step, expected, atol=1e-8)


def test_step_without_curvature_goes_to_the_faces() -> None:
    step = box_step(np.array([1.0, -2.0, 0.0]), np.zeros((3, 3)), -np.ones(3), 2 * np.ones(3))
    np.testing.assert_allclose(step, [2.0, -1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 5.0])
def test_summit_is_found_whatever_the_information_says(factor: float) -> None:
    found = climb(lambda x: quadratic(x, factor))
    assert found.converged
    np.testing.assert_allclose(found.x, SUMMIT, atol=1e-3)


@pytest.mark.parametrize("factor", [0.1, 2.5])
def test_all_second_derivatives_are_taken_where_promises_are_not_kept(factor: float) -> None:
    asked = []

    def evaluate(x: Array) -> Evaluation:
        def bend() -> Array:
            asked.append(x)
            return (factor - 1) * CURVATURE

        return quadratic(x, factor)._replace(bend=bend)

    found = climb(evaluate, start=(0.6, -0.3))
    assert asked
    assert found.num_evaluations <= 5
    np.testing.assert_allclose(found.x, SUMMIT, atol=1e-3)
    known = climb(lambda x: quadratic(x)._replace(bend=lambda: pytest.fail("not needed")))
    assert known.num_evaluations == 2


def test_curvature_stays_positive_where_the_function_bends_upwards() -> None:
    # −(x² − 1)²/4 from near its lowest point.
    def evaluate(x: Array) -> Evaluation:
        value = -((x[0] ** 2 - 1) ** 2) / 4
        slope, second = -x[0] * (x[0] ** 2 - 1), 1 - 3 * x[0] ** 2
        return Evaluation(value, np.array([slope]), np.eye(1), lambda: np.array([[second + 1]]))

    found = climb(
        evaluate, start=(0.05,), lower=(-3.0,), upper=(3.0,), budget=Budget(60, tolerance=1e-9)
    )
    assert found.x[0] == pytest.approx(1.0, abs=1e-3)


def test_two_evaluations_do_where_the_information_is_the_curvature() -> None:
    assert climb(quadratic).num_evaluations == 2


def test_limits_hold() -> None:
    found = climb(quadratic, upper=(0.3, 2.0))
    best = SUMMIT[1] - CURVATURE[0, 1] / CURVATURE[1, 1] * (0.3 - SUMMIT[0])
    np.testing.assert_allclose(found.x, [0.3, best], atol=1e-9)
    assert found.converged


def test_flat_directions_are_followed_while_they_gain() -> None:
    # As for the lengthscale of a column that does not matter: 1 − e^{−2x}, information e^{−4x}.
    def evaluate(x: Array) -> Evaluation:
        decay = np.exp(-2 * x[0])
        return Evaluation(-decay, np.array([2 * decay]), np.array([[decay**2]]))

    found = climb(evaluate, start=(0.0,), lower=(-5.0,), upper=(50.0,))
    assert found.converged
    assert found.at.value > -1e-5
    assert found.num_evaluations < 12


def test_steps_to_where_there_is_no_value_are_taken_back() -> None:
    visited = []

    def evaluate(x: Array) -> Evaluation | None:
        visited.append(x)
        return None if x[0] > 0.5 else quadratic(x)

    found = climb(evaluate)
    assert any(x[0] > 0.5 for x in visited)
    assert 0.3 < found.x[0] <= 0.5
    assert found.num_evaluations == len(visited)
    box = (-np.ones(2), np.ones(2))
    assert ascend(lambda x: None, np.zeros(2), box, Budget(9, tolerance=1e-6)) is None


def test_searches_end_when_they_are_told_to() -> None:
    late = climb(quadratic, budget=Budget(60, lambda: True, 1e-6))
    assert late.num_evaluations == 1
    assert not late.converged
    few = Budget(2, tolerance=1e-6)
    assert not climb(lambda x: quadratic(x, 9.0), budget=few).converged
    box = (np.full(2, -2.0), np.full(2, 2.0))
    assert ascend(quadratic, np.zeros(2), box, few, abandon=lambda x, at: True) is None


def test_the_first_evaluation_may_be_known() -> None:
    assert climb(quadratic, first=quadratic(np.zeros(2))).num_evaluations == 1
