"""Rotated kernels: their angle, their parameters, learning it, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.errors import KernelError
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import RBF, Kernel, Matern32, QuasiPeriodic, Rotated
from orthogp.storage import classes  # noqa: F401 (registers the kernels)
from orthogp.storage.codec import Decoder, encode
from tests import oracles
from tests.problems import covariances

INNER = Matern32(0.7, [0.9, 0.4])


@pytest.mark.parametrize("angle", [-0.4, 0.0, 0.6, np.pi / 2, 3.0, 9.0])
def test_the_first_lengthscale_holds_along_the_angle(angle):
    along = np.array([np.cos(angle), np.sin(angle)])
    across = np.array([-np.sin(angle), np.cos(angle)])
    found = covariances(Rotated(INNER, angle), 0.3 * np.array([along, across]))
    expected = [oracles.matern32(np.array([0.3]), 0.7, length) for length in (0.9, 0.4)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("angle", [-7.0, -np.pi, 0.0, 0.6, np.pi, 5.0])
def test_angles_are_kept_in_half_a_turn_of_the_same_direction(angle):
    lags = np.random.default_rng(0).standard_normal((9, 2))
    for kernel in (Rotated(INNER, angle), Rotated(INNER).with_parameters(angle=angle)):
        assert 0 < float(kernel.angle) <= np.pi
        turned = lags @ oracles.rotation(angle).T
        expected = oracles.matern32(turned, 0.7, [0.9, 0.4])
        np.testing.assert_allclose(covariances(kernel, lags), expected, rtol=1e-12)


def test_the_angle_is_learned_as_it_is_and_the_rest_by_logarithms():
    kernel = Rotated(INNER, 0.6)
    slots = learned_slots(kernel)
    np.testing.assert_allclose(pack(kernel, slots), [*np.log([0.7, 0.9, 0.4]), 0.6])
    again = unpack(kernel, slots, pack(kernel, slots) + 0.1)
    assert float(again.parameters()["angle"]) == pytest.approx(0.7)


def test_what_is_fixed_is_not_learned_and_is_stored():
    assert [slot.name for slot in learned_slots(Rotated(INNER, 0.6).fix("angle"))] == [
        "variance",
        "lengthscale",
    ]
    kernel = Rotated(INNER, 0.6).fix("variance").fix("angle")
    assert [slot.name for slot in learned_slots(kernel)] == ["lengthscale"]
    assert learned_slots(kernel.fix()) == ()
    again = Decoder("a test").decode(encode(kernel), Kernel)
    assert repr(again) == repr(kernel)
    assert again.fixed == kernel.fixed == ("angle", "variance")


@pytest.mark.parametrize(
    "kernel", [QuasiPeriodic(), Matern32(), Matern32(1.0, [1.0, 1.0, 1.0]), Rotated(INNER)]
)
def test_kernels_without_two_lengthscales_of_their_own_are_refused(kernel):
    with pytest.raises(KernelError, match="with two lengthscales"):
        Rotated(kernel)


@pytest.mark.parametrize("angle", [np.nan, np.inf, [0.1, 0.2]])
def test_angles_that_are_none_are_refused(angle):
    with pytest.raises(KernelError, match="one finite number"):
        Rotated(INNER, angle)


def test_other_numbers_of_columns_are_refused():
    rows = np.random.default_rng(0).uniform(0, 1, (50, 3))
    with pytest.raises(KernelError, match="acts on two columns"):
        GPRegressor(Rotated(INNER)).fit(rows, rows[:, 0])


@pytest.mark.parametrize("begin", [0.0, 1.9])
def test_learning_finds_the_angle_from_anywhere(begin):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (2000, 2))
    turned = X @ oracles.rotation(0.6).T
    y = np.sin(4 * turned[:, 0]) + np.sin(17 * turned[:, 1] + 1)
    y += 0.1 * rng.standard_normal(len(y))
    model = GPRegressor(Rotated(RBF(1.0, [0.3, 0.3]), begin), max_features=400).fit(X, y)
    along, across = model.kernel_.parameters()["lengthscale"]
    angle = float(model.kernel_.parameters()["angle"]) - (np.pi / 2 if along < across else 0.0)
    assert np.abs(np.sin(angle - 0.6)) < 0.05
    assert max(along, across) > 2 * min(along, across)
    plain = GPRegressor(RBF(1.0, [0.3, 0.3]), max_features=400).fit(X, y)
    assert model.elbo_ > plain.elbo_ + 20
    assert "Rotated RBF" in model.summary()
