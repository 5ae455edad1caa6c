"""Starting values and limits read off the rows."""

import numpy as np
import pytest

from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import (
    RBF,
    Categorical,
    Cyclic,
    Kernel,
    Matern,
    Matern32,
    QuasiPeriodic,
    RationalQuadratic,
    Rotated,
    SpectralMixture,
    additive,
)
from orthogp.learning.limits import row_limits
from orthogp.learning.problem import Start
from orthogp.learning.starts import starts_for_rows, strongest_periods
from tests.oracles import Array
from tests.problems import prior_variance

RNG = np.random.default_rng(0)
X = RNG.uniform(0, [1.0, 100.0, 1e-3], (200, 3))
Y = np.sin(9 * X[:, 0]) + 0.1 * RNG.standard_normal(200)
Y = (Y - Y.mean()) / Y.std()


def lengthscales(starts: list[Start]) -> Array:
    return np.array([start.kernel.parameters()["lengthscale"] for start in starts])


def test_lengthscales_are_in_units_of_their_columns() -> None:
    lengths = lengthscales(starts_for_rows(Matern32(), X, Y))
    assert lengths.shape[1:] == (3,)
    other = lengthscales(starts_for_rows(Matern32(), 1e4 * X - 7, Y))
    np.testing.assert_allclose(other, 1e4 * lengths, rtol=1e-6)
    relative = lengths / X.std(axis=0)
    assert relative.min() < 0.2
    assert relative.max() > 5


def test_variances_and_noise_share_the_variance_of_the_targets() -> None:
    starts = starts_for_rows(Matern32(), X, Y)
    for start in starts:
        assert prior_variance(start.kernel) + start.noise_variance == pytest.approx(1.0)
    assert len({start.noise_variance for start in starts}) == 4
    known = starts_for_rows(Matern32(), X, Y, noise_variance=0.03)
    assert {start.noise_variance for start in known} == {0.03}


def test_columns_that_tell_more_have_shorter_lengthscales() -> None:
    relative = lengthscales(starts_for_rows(Matern32(), X, Y)) / X.std(axis=0)
    uneven = relative[np.ptp(relative, axis=1) > 0.1]
    # Those by relevance come first, then each column alone.
    assert np.all(uneven[:3, 0] < uneven[:3, 1:].min(axis=1))
    alone = uneven[-6:]
    assert {int(np.argmin(row)) for row in alone} == {0, 1, 2}


def test_starts_of_one_shape_differ_in_variances_only() -> None:
    by_shape: dict[int, Array] = {}
    for start in starts_for_rows(RationalQuadratic(), X, Y):
        own = start.kernel.parameters()
        values = np.append(own["lengthscale"], own["alpha"])
        np.testing.assert_array_equal(by_shape.setdefault(start.shape, values), values)
    assert len(by_shape) > 8
    assert {values[-1] for values in by_shape.values()} == {0.5, 2.0}


def test_what_is_fixed_stays() -> None:
    kernel = RBF(0.3, 0.7).fix("lengthscale").on(0) + Matern32(2.0, 0.5).fix("variance").on(1)
    for start in starts_for_rows(kernel, X, Y):
        first, second = (primitive for primitive, _ in start.kernel.primitives())
        assert first.parameters()["lengthscale"] == 0.7
        assert second.parameters()["variance"] == 2.0
    lengths = {float(s.kernel.terms[1].kernel.lengthscale) for s in starts_for_rows(kernel, X, Y)}
    assert len(lengths) > 3


@pytest.mark.parametrize(
    "kernel",
    [
        additive("matern32", 3),
        additive("rbf", 3, categorical={1: 4}, periodic={0: 0.5}),
        RBF().on(0) * Matern32().on(1),
        RBF() + QuasiPeriodic().on(0) + RationalQuadratic(),
        Rotated(Matern32(1.0, [1.0, 1.0])).on(0, 2),
        SpectralMixture([1.0, 1.0], [[6.0] * 3, [9.0] * 3], [[1.0] * 3, [1.0] * 3]),
        Matern(),
        Cyclic(Matern32(1.0, 0.1), 0.4).on(0) + Categorical(3).on(1),
        Categorical(3).on(1),
    ],
)
def test_every_kind_of_kernel_has_starts_within_its_limits(kernel: Kernel) -> None:
    starts = starts_for_rows(kernel, X, Y)
    slots = learned_slots(starts[0].kernel)
    lower, upper = row_limits(starts[0].kernel, slots, X, 1e-9)
    assert lower.shape == upper.shape
    assert np.all(lower < upper)
    for start in starts:
        start.kernel.check(3)
        assert learned_slots(start.kernel) == slots
        vector = np.append(pack(start.kernel, slots), np.log(start.noise_variance))
        assert np.all((lower <= vector) & (vector <= upper))


def test_angles_are_tried_all_round_with_different_lengthscales() -> None:
    starts = starts_for_rows(Rotated(Matern32(1.0, [1.0, 1.0])), X[:, :2], Y)
    angles = {round(float(s.kernel.angle % np.pi), 3) for s in starts}
    assert len(angles) == 4
    assert all(np.ptp(s.kernel.parameters()["lengthscale"]) > 0 for s in starts)


def test_periods_are_those_of_the_targets() -> None:
    t = np.sort(RNG.uniform(0, 20, 400))
    y = 0.5 * t + np.sin(2 * np.pi * t / 1.7) + 0.3 * RNG.standard_normal(400)
    (period, _), *_ = strongest_periods(t, y[:, None])
    assert period == pytest.approx(1.7, rel=0.02)
    y = (y - y.mean()) / y.std()
    for kernel in (QuasiPeriodic(), RBF() + QuasiPeriodic()):
        starts = starts_for_rows(kernel, t, y)
        primitives = [list(s.kernel.primitives())[-1][0] for s in starts]
        periods = [float(p.parameters()["period"]) for p in primitives]
        assert periods[0] == pytest.approx(1.7, rel=0.02)
        assert len(set(periods)) > 1


@pytest.mark.parametrize(
    "x", [np.ones(9), np.arange(3.0), np.repeat([0.0, 1.0], 20)], ids=["one", "three", "two"]
)
def test_too_few_values_have_no_period(x: Array) -> None:
    assert strongest_periods(x, np.sin(x)[:, None]) == []
    assert starts_for_rows(QuasiPeriodic(), x, np.sin(x))


# ---------------------------------------------------------------------- limits


def test_lengthscales_reach_from_single_rows_to_columns_that_do_not_matter() -> None:
    x = np.array([[0.0, 5.0], [0.1, 5.0], [1.1, 5.0], [4.0, 5.0]])
    kernel = Matern32(1.0, [1.0, 1.0])
    lower, upper = row_limits(kernel, learned_slots(kernel), x, 1e-9)
    assert np.exp(lower[1]) == pytest.approx(1e-3)
    assert np.exp(upper[1]) == pytest.approx(4e4)
    # Of a column that is constant nothing is known.
    assert np.exp(lower[2]) < 1 < np.exp(upper[2])
    np.testing.assert_allclose(np.exp([lower[0], upper[0]]), [1e-6, 1e5])
    np.testing.assert_allclose(np.exp([lower[3], upper[3]]), [1e-9, 1e3])


def test_values_that_differ_by_rounding_are_the_same() -> None:
    x = np.array([[0.0], [1e-17], [1.0], [1.0 + 1e-15]])
    kernel = RBF(1.0, 1.0)
    lower, _ = row_limits(kernel, learned_slots(kernel), x, 1e-9)
    assert np.exp(lower[1]) == pytest.approx(1e-2)


def test_cyclic_lengthscales_end_at_the_period() -> None:
    kernel = Cyclic(Matern32(1.0, 0.1), 0.4)
    _, upper = row_limits(kernel, learned_slots(kernel), X[:, :1], 1e-9)
    assert np.exp(upper[1]) == pytest.approx(0.4)
