"""search and refine on concave functions whose maxima are known, in and on the faces of a box."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from orthogp.errors import KernelError
from orthogp.learning.optimise import (
    TOLERANCE,
    Budget,
    Maximum,
    Objective,
    curvature_at,
    refine,
    search,
)
from tests.oracles import Array


class Quadratic:
    """−½ (x−c)ᵀH(x−c) + offset, counting its calls."""

    def __init__(self, centre: Array, H: Array, offset: float = 0.0) -> None:
        self.centre, self.H, self.offset, self.calls = centre, H, offset, 0

    def __call__(self, x: Array) -> tuple[float, Array]:
        self.calls += 1
        pull = self.H @ (x - self.centre)
        return float(self.offset - 0.5 * (x - self.centre) @ pull), -pull

    def best_in_box(self, lower: Array, upper: Array) -> tuple[Array, float]:
        root = np.linalg.cholesky(self.H).T
        x = lsq_linear(root, root @ self.centre, (lower, upper), tol=1e-14).x
        return x, self(x)[0]


def random_quadratic(seed: int, num_dims: int, spread: float) -> Quadratic:
    """Curvatures from one to 10^spread in random directions."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(num_dims, num_dims)))[0]
    H = (rotation * 10 ** rng.uniform(0, spread, num_dims)) @ rotation.T
    return Quadratic(rng.normal(0, 1.5, num_dims), (H + H.T) / 2, rng.normal() * 1e4)


def run_search(objective: Objective, start: Array, lower: Array, upper: Array) -> Maximum:
    return search(objective, start, (lower, upper), Budget(200))


problems = {
    "seed": st.integers(0, 10**6),
    "num_dims": st.integers(1, 4),
    "spread": st.floats(0, 3),
}


@given(**problems)
def test_search_finds_the_maximum_of_a_quadratic(seed: int, num_dims: int, spread: float) -> None:
    f = random_quadratic(seed, num_dims, spread)
    box = np.full(num_dims, 20.0)
    found = run_search(f, np.zeros(num_dims), -box, box)
    assert found.converged
    assert found.value == f(found.x)[0]
    assert f.offset - found.value < 1e-3
    np.testing.assert_allclose(found.curvature, f.H, rtol=1e-6, atol=1e-5 * f.H.max())


@given(**problems, tightness=st.floats(0.1, 1.5))
def test_search_finds_maxima_on_the_faces_of_the_box(
    seed: int, num_dims: int, spread: float, tightness: float
) -> None:
    f = random_quadratic(seed, num_dims, spread)
    box = np.full(num_dims, tightness)
    found = run_search(f, np.zeros(num_dims), -box, box)
    _, best = f.best_in_box(-box, box)
    assert np.all(np.abs(found.x) <= box)
    assert best - found.value < 1e-3


@given(**problems)
def test_search_starts_in_a_corner_of_the_box(seed: int, num_dims: int, spread: float) -> None:
    f = random_quadratic(seed, num_dims, spread)
    box = np.full(num_dims, 1.0)
    for corner in (-box, box):
        found = run_search(f, corner, -box, box)
        assert f.best_in_box(-box, box)[1] - found.value < 1e-3


def bowl(x: Array) -> tuple[float, Array]:
    """−Σ w cosh(x − c): concave, far from quadratic, its maximum −Σ w at c."""
    w, c = np.array([1.0, 300.0]), np.array([2.0, -1.0])
    return float(-np.sum(w * np.cosh(x - c))), -w * np.sinh(x - c)


def test_search_from_far_away_on_a_function_that_is_not_quadratic() -> None:
    box = np.full(2, 8.0)
    found = run_search(bowl, np.array([-6.0, 6.0]), -box, box)
    assert found.converged
    assert -301.0 - found.value < 1e-3
    np.testing.assert_allclose(found.x, [2.0, -1.0], atol=0.03)


def test_search_returns_the_best_point_it_saw_when_time_runs_out() -> None:
    box = np.full(2, 8.0)
    found = search(bowl, np.array([-6.0, 6.0]), (-box, box), Budget(100, lambda: True))
    assert found.value > bowl(np.array([-6.0, 6.0]))[0]
    assert found.value == bowl(found.x)[0]
    assert not found.converged


def test_search_returns_the_start_if_it_finds_nothing_better() -> None:
    # A gradient that points downhill: every point tried is worse.
    box = np.full(2, 8.0)
    found = run_search(lambda x: (float(-np.sum(x**2)), 2 * x + 1), np.zeros(2), -box, box)
    np.testing.assert_array_equal(found.x, 0.0)
    assert found.value == 0.0


def test_search_is_not_slowed_by_different_curvatures() -> None:
    # One evaluation, one for each curvature, and a few more.
    f = Quadratic(np.array([3.0, -0.2, 0.01]), np.diag([1.0, 1e3, 1e6]))
    box = np.full(3, 20.0)
    found = run_search(f, np.zeros(3), -box, box)
    assert -found.value < 1e-3
    assert found.num_evaluations <= 1 + 3 + 5


def test_search_counts_every_evaluation() -> None:
    f = random_quadratic(0, 3, 2.0)
    box = np.full(3, 20.0)
    found = run_search(f, np.zeros(3), -box, box)
    assert found.num_evaluations == f.calls


# ---------------------------------------------------------------------- refine


def run_refine(
    objective: Objective, start: Array, lower: Array, upper: Array, curvature: Array
) -> Maximum:
    return refine(objective, start, (lower, upper), curvature, Budget(50))


@given(**problems)
def test_refine_with_the_right_curvature_needs_two_evaluations(
    seed: int, num_dims: int, spread: float
) -> None:
    f = random_quadratic(seed, num_dims, spread)
    start = f.centre + np.random.default_rng(seed).uniform(-0.5, 0.5, num_dims)
    box = np.full(num_dims, 20.0)
    found = run_refine(f, start, -box, box, f.H)
    assert found.converged
    assert found.num_evaluations == f.calls <= 2
    assert f.offset - found.value < 2 * TOLERANCE


@given(**problems, error=st.floats(0.4, 2.5))
def test_refine_with_a_rough_curvature_converges_all_the_same(
    seed: int, num_dims: int, spread: float, error: float
) -> None:
    f = random_quadratic(seed, num_dims, spread)
    start = f.centre + np.random.default_rng(seed).uniform(-0.5, 0.5, num_dims)
    box = np.full(num_dims, 20.0)
    found = run_refine(f, start, -box, box, error * f.H)
    assert found.converged
    assert f.offset - found.value < 1e-3


def test_refine_learns_the_curvature_on_its_way() -> None:
    # Told four times the curvature, steps are a quarter of what they should be: without learning,
    # it would take a dozen steps.
    f = Quadratic(np.array([0.5]), np.array([[1e4]]))
    found = run_refine(f, np.zeros(1), -np.ones(1), np.ones(1), 4 * f.H)
    assert found.converged
    assert -found.value < 1e-3
    assert found.num_evaluations <= 5


@given(**problems, tightness=st.floats(0.1, 1.5))
def test_refine_that_says_converged_is_at_the_maximum_in_the_box(
    seed: int, num_dims: int, spread: float, tightness: float
) -> None:
    f = random_quadratic(seed, num_dims, spread)
    box = np.full(num_dims, tightness)
    found = run_refine(f, np.zeros(num_dims), -box, box, f.H)
    _, best = f.best_in_box(-box, box)
    assert np.all(np.abs(found.x) <= box)
    assert found.converged
    assert best - found.value < 1e-3


def test_refine_with_a_correlated_step_into_a_face_goes_on_along_it() -> None:
    # Clipped at the face, the Newton step points downhill: that is no convergence.
    H = 1e4 * np.array([[1.0, 0.99], [0.99, 1.0]])
    f = Quadratic(np.array([1.0, -0.985]), H)
    lower, upper = np.array([-2.0, -2.0]), np.array([1e-3, 2.0])
    found = run_refine(f, np.zeros(2), lower, upper, H)
    assert f.best_in_box(lower, upper)[1] - found.value < 1e-3


def test_refine_does_not_care_which_side_of_a_limit_rounding_puts_a_parameter() -> None:
    H = np.array([[30.0, 20.0], [20.0, 40.0]])
    lower, upper = np.full(2, -9.0), np.array([0.3, 9.0])
    ends = []
    for first in (0.3, np.nextafter(0.3, 0.0), 0.3 - 1e-13):
        f = Quadratic(np.array([1.0, 2.0]), H)
        ends.append(run_refine(f, np.array([first, 1.6]), lower, upper, H))
    assert len({end.num_evaluations for end in ends}) == 1
    for end in ends[1:]:
        np.testing.assert_allclose(end.x, ends[0].x, rtol=0, atol=1e-12)


def test_refine_never_moves_more_than_a_factor_e_at_once() -> None:
    seen: list[Array] = []

    def f(x: Array) -> tuple[float, Array]:
        seen.append(x.copy())
        return float(-0.5 * np.sum((x - 10) ** 2)), -(x - 10)

    box = np.full(2, 20.0)
    found = run_refine(f, np.zeros(2), -box, box, 1e-3 * np.eye(2))
    steps = np.abs(np.diff([seen[0], *seen[1:]], axis=0)).max(axis=1)
    assert steps[0] <= 1.0 + 1e-12
    assert found.value > -1e-3


def test_refine_admits_that_a_wrong_gradient_leads_nowhere() -> None:
    box = np.full(2, 20.0)
    found = run_refine(
        lambda x: (float(-np.sum(x**2)), 2 * x + 1), np.zeros(2), -box, box, np.eye(2)
    )
    assert not found.converged
    np.testing.assert_array_equal(found.x, 0.0)


def test_refine_stops_when_time_runs_out() -> None:
    box = np.full(2, 8.0)
    found = refine(
        bowl,
        np.array([1.0, 0.0]),
        (-box, box),
        np.eye(2),
        Budget(50, lambda: True),
    )
    assert found.num_evaluations == 1
    assert not found.converged


# ---------------------------------------------------------------------- curvature


def test_curvature_is_minus_the_second_derivative_at_the_edge_too() -> None:
    f = random_quadratic(1, 3, 2.0)
    box = np.full(3, 1.0)
    for x in (np.zeros(3), box, -box):
        H = curvature_at(f, x, f(x)[1], -box, box)
        np.testing.assert_allclose(H, f.H, rtol=1e-6, atol=1e-6 * f.H.max())


def test_curvature_is_made_positive_definite() -> None:
    def saddle(x: Array) -> tuple[float, Array]:
        return float(5 * x[0] ** 2 - 7 * x[1] ** 2), np.array([10 * x[0], -14 * x[1]])

    box = np.ones(2)
    H = curvature_at(saddle, np.zeros(2), np.zeros(2), -box, box)
    np.testing.assert_allclose(H, np.diag([10.0, 14.0]), atol=1e-6)


def test_curvature_in_a_box_of_no_width_is_the_identity() -> None:
    H = curvature_at(bowl, np.ones(2), bowl(np.ones(2))[1], np.ones(2), np.ones(2))
    np.testing.assert_array_equal(H, np.eye(2))


@pytest.mark.parametrize("function", [run_search, None], ids=["search", "refine"])
def test_parameter_without_room_stays_where_it_is(function: object) -> None:
    f = Quadratic(np.array([1.0, 1.0]), np.eye(2) * 50)
    lower, upper = np.array([-2.0, 0.3]), np.array([2.0, 0.3])
    start = np.array([0.5, 0.3])
    if function is None:
        found = run_refine(f, start, lower, upper, f.H)
    else:
        found = run_search(f, start, lower, upper)
    np.testing.assert_allclose(found.x, [1.0, 0.3], atol=5e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_derivatives_that_are_no_numbers_are_the_kernels_fault(bad: float) -> None:
    with pytest.raises(KernelError, match=r"derivatives .* not finite"):
        run_search(lambda x: (0.0, np.full(2, bad)), np.zeros(2), np.full(2, -1.0), np.ones(2))


def test_refine_survives_a_curvature_that_is_singular() -> None:
    f = Quadratic(np.array([0.3, -0.2]), np.array([[30.0, 20.0], [20.0, 40.0]]))
    flat = np.array([[40.0, 40.0], [40.0, 40.0]])
    found = run_refine(f, np.zeros(2), np.full(2, -1.0), np.ones(2), flat)
    assert found.value > f(np.zeros(2))[0]
