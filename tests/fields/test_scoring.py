"""Climbing the evidence by Fisher scoring, on functions whose maximum is known."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp.errors import PrecisionError
from orthogp.fields.evidence import Climb, Evidence, score

CURVATURE = np.array([[400.0, 90.0], [90.0, 100.0]])
SUMMIT = np.array([0.7, -0.4])


def evidence_at(vector, *, information=CURVATURE):
    away = vector - SUMMIT
    return Evidence(
        vector=vector,
        value=-0.5 * float(away @ CURVATURE @ away),
        standard_error=0.0,
        gradient=-CURVATURE @ away,
        information=information,
        log_determinant=0.0,
        effective=1.0,
        iterations=1,
        converged=True,
    )


def climb(evaluate, start=(0.0, 0.0), upper=(2.0, 2.0), evaluations=30, sharpen=None):
    problem = Climb(evaluate, (np.full(2, -2.0), np.array(upper)), lambda: False, sharpen)
    first, used = problem.begin(np.array(start))
    found = score(problem, first, evaluations - used)
    return found._replace(num_evaluations=found.num_evaluations + used)


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_the_summit_is_found_whatever_the_information_says(factor):
    found = climb(lambda v: evidence_at(v, information=factor * CURVATURE))
    assert found.converged
    assert found.evidence.value > -0.5


def test_limits_hold():
    found = climb(evidence_at, upper=(0.3, 2.0))
    assert found.evidence.vector[0] <= 0.3 + 1e-9
    # The best point of the face x₀ = 0.3.
    best = SUMMIT[1] - CURVATURE[0, 1] / CURVATURE[1, 1] * (0.3 - SUMMIT[0])
    assert found.evidence.vector[1] == pytest.approx(best, abs=0.05)


def test_a_step_beyond_double_precision_is_taken_back():
    visited = []

    def evaluate(vector):
        visited.append(vector)
        if vector[0] > 0.5:
            raise PrecisionError("too little noise")
        return evidence_at(vector)

    found = climb(evaluate)
    assert any(vector[0] > 0.5 for vector in visited)
    assert found.evidence.vector[0] <= 0.5
    assert found.evidence.value > evidence_at(np.zeros(2)).value
    assert found.num_evaluations == len(visited)


def test_evaluations_are_counted_and_limited():
    found = climb(evidence_at, evaluations=1)
    assert found.num_evaluations == 1
    assert not found.converged


def test_steps_that_promise_much_and_fail_are_not_the_end():
    weights = np.array([1000.0, 100.0])

    def evaluate(vector):
        # A gentle slope up to a wall, at another place for each parameter.
        value = weights @ (vector - np.exp(4 * vector) / 4) + weights.sum() / 4
        gradient = weights * (1 - np.exp(4 * vector))
        return evidence_at(vector, information=100 * np.eye(2))._replace(
            value=float(value), gradient=gradient
        )

    found = climb(evaluate, start=(-0.5, -0.5))
    assert found.evidence.value > -0.5


def test_a_failed_step_asks_for_better_curvatures_from_then_on():
    asked = []

    def sharpen(vector):
        asked.append(vector)
        return CURVATURE

    def evaluate(vector):
        return evidence_at(vector, information=1e-3 * CURVATURE)

    found = climb(evaluate, start=(0.6, -0.3), sharpen=sharpen)
    # One failure, a curvature where it began, one step to the summit, a curvature there.
    assert found.converged
    assert found.doubted
    np.testing.assert_allclose(asked, [[0.6, -0.3], SUMMIT], atol=1e-3)
    assert found.num_evaluations == 5
    assert found.evidence.value > -1e-3


def test_steps_that_succeed_ask_for_no_other_curvature():
    found = climb(evidence_at, sharpen=lambda vector: pytest.fail("asked for a curvature"))
    assert found.converged
    assert not found.doubted


def test_a_curvature_that_curves_the_wrong_way_is_no_obstacle():
    # As solutions of some error give it for data without noise.
    wrong = np.array([[400.0, 250.0], [250.0, -80.0]])
    assert np.linalg.eigvalsh(wrong)[0] < 0
    found = climb(lambda v: evidence_at(v, information=wrong), sharpen=lambda _: wrong)
    assert found.evidence.value > -0.5


@pytest.mark.parametrize("bad", [np.full((2, 2), np.nan), np.zeros((2, 2))])
def test_a_curvature_of_nothing_ends_no_climb(bad):
    found = climb(
        lambda v: evidence_at(v, information=1e-3 * CURVATURE),
        start=(0.6, -0.3),
        sharpen=lambda _: bad,
    )
    assert found.evidence.value > evidence_at(np.array([0.6, -0.3])).value - 1e-9


@pytest.mark.parametrize("field", ["value", "gradient", "information"])
def test_evidence_that_is_no_number_is_a_step_too_far(field):
    def evaluate(vector):
        found = evidence_at(vector)
        if vector[0] <= 0.5:
            return found
        return found._replace(**{field: np.nan * np.asarray(getattr(found, field))})

    found = climb(evaluate)
    assert found.evidence.vector[0] <= 0.5
    assert np.isfinite(found.evidence.value)


def test_a_start_with_too_little_noise_is_given_more():
    def evaluate(vector):
        if vector[-1] < -1.0:
            raise PrecisionError("too little noise")
        return evidence_at(vector)

    found = climb(evaluate, start=(0.0, -2.0))
    assert found.converged
    with pytest.raises(PrecisionError):
        climb(lambda _: evaluate(np.array([0.0, -9.0])))
