"""The objective of learning: the one-pass bound, and its gradient by finite differences."""

import numpy as np
import pytest

from orthogp.features import Lattice
from orthogp.inference.bounds import one_pass_bound
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import pack
from orthogp.kernels import RBF, Matern32
from tests import oracles
from tests.problems import Entry, all_entries, label, make_lattice, make_rows, mean_prior

# Short enough for images to matter, so that a gradient without them shows.
PERIOD = 4.5


def make_objective(
    entry: Entry,
    num_dims: int,
    *,
    mean: str | None = "linear",
    weights: str | None = "real",
    repeats: bool = False,
    num_targets: int = 2,
    num_features: int = 25,
) -> LatticeObjective:
    prior = mean_prior(mean, num_dims)
    lattice = make_lattice(num_dims, PERIOD, {1: 30, 2: 8, 3: 4}[num_dims])
    rows = make_rows(0, 30, num_dims, num_targets, weights)
    features = Lattice.select(entry.kernel, lattice, num_features, prior)
    statistics = rows.statistics(lattice, prior)
    return LatticeObjective(features, entry.kernel, statistics, repeats=repeats)


def vector_of(objective: LatticeObjective, noise: float = 0.2) -> np.ndarray:
    return np.append(pack(objective.kernel, objective.slots), np.log(noise))


def assert_gradient(objective: LatticeObjective, vector: np.ndarray) -> None:
    value, gradient = objective.value_and_gradient(vector)
    expected = oracles.fourth_order_difference(
        lambda v: np.asarray(objective.value_and_gradient(v)[0]), vector, 1e-3
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7 * (1 + abs(value)))


# In three dimensions the code is the same, and compilations are dear.
ENTRIES = [*all_entries(1), *(item for item in all_entries(2, 3) if item[1].name != "matern")]
SOME = ("rbf", "sum", "additive")


@pytest.mark.parametrize(
    ("num_dims", "entry"),
    [(d, entry) for d, entry in ENTRIES if d == 1 or entry.name in SOME[: 4 - d]],
    ids=label,
)
def test_value_is_the_one_pass_bound_and_gradient_its_difference(
    num_dims: int, entry: Entry
) -> None:
    objective = make_objective(entry, num_dims)
    vector = vector_of(objective)
    value, _ = objective.value_and_gradient(vector)
    bound = one_pass_bound(objective.moments(entry.kernel), 0.2)
    assert value == pytest.approx(bound.total, rel=1e-11)
    assert_gradient(objective, vector)


RBF_ENTRY = all_entries(1)[0][1]


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("weights", [None, "real", "whole"])
@pytest.mark.parametrize(("mean", "num_targets"), [(None, 1), ("linear", 3)])
def test_gradient_for_every_kind_of_data(
    repeats: bool, weights: str | None, mean: str | None, num_targets: int
) -> None:
    objective = make_objective(
        RBF_ENTRY,
        1,
        mean=mean,
        weights=weights,
        repeats=repeats,
        num_targets=num_targets,
        num_features=9,
    )
    vector = vector_of(objective)
    value, _ = objective.value_and_gradient(vector)
    bound = one_pass_bound(objective.moments(RBF_ENTRY.kernel), 0.2)
    assert value == pytest.approx(bound.total, rel=1e-11)
    assert_gradient(objective, vector)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 10.0])
@pytest.mark.parametrize("lengthscale", [0.05, 0.5, 3.0])
def test_gradient_far_from_a_good_fit(noise: float, lengthscale: float) -> None:
    # From features that miss most of the variance to features that miss none.
    entry = RBF_ENTRY._replace(kernel=RBF(1.3, [lengthscale]))
    objective = make_objective(entry, 1, mean="constant", num_features=15)
    vector = vector_of(objective, noise)
    value, gradient = objective.value_and_gradient(vector)
    expected = oracles.fourth_order_difference(
        lambda v: np.asarray(objective.value_and_gradient(v)[0]), vector, 2e-4
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6 * (1 + abs(value)))


def test_fixed_parameters_are_not_in_the_vector() -> None:
    entry = RBF_ENTRY._replace(kernel=Matern32(1.3, [0.5]).fix("variance"))
    objective = make_objective(entry, 1)
    vector = vector_of(objective)
    assert vector.shape == (2,)
    assert_gradient(objective, vector)
    moved = objective.kernel_at(vector + 1)
    assert float(moved.parameters()["variance"]) == 1.3
    np.testing.assert_allclose(moved.parameters()["lengthscale"], 0.5 * np.e)


def test_value_follows_the_vector_not_the_kernel_it_began_with() -> None:
    objective = make_objective(RBF_ENTRY, 1)
    vector = vector_of(objective) + np.array([0.3, -0.2, 0.1])
    kernel = objective.kernel_at(vector)
    expected = one_pass_bound(objective.moments(kernel), float(np.exp(vector[-1])))
    assert objective.value_and_gradient(vector)[0] == pytest.approx(expected.total, rel=1e-11)


def test_evaluations_do_not_disturb_each_other() -> None:
    # The work space is shared between calls.
    objective = make_objective(RBF_ENTRY, 1)
    vector = vector_of(objective)
    first = objective.value_and_gradient(vector)
    objective.value_and_gradient(vector + 0.5)
    again = objective.value_and_gradient(vector)
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])
