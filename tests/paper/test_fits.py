"""The collapsed bound as a function of all hyperparameters, and searches of it."""

import numpy as np
import pytest
from jax import enable_x64

from orthogp.features.bands import Trig
from orthogp.features.hermite import Eigenfunction
from orthogp.inference.moments import moments_from_rows
from orthogp.paper.figure3 import STARTS, learn_pair
from orthogp.paper.run import (
    CollapsedObjective,
    Hyperparameters,
    Learned,
    TracedFamily,
    TracedTrig,
    traced_family,
)
from orthogp.stochastic.normals import Covariance, factorised_posterior

rng = np.random.default_rng(0)
X = np.sort(rng.normal(0, 1.5, 40))
Y = np.sin(2 * X) + 0.1 * rng.standard_normal(40)
START = Hyperparameters(variance=0.7, lengthscale=0.8, noise_variance=0.05, scale=2.0)
COUNT = 6
HERMITE = traced_family("hermite", COUNT, X)


def library_features(family: TracedFamily, scale: float):
    if isinstance(family, TracedTrig):
        return Trig(COUNT, a=scale, centre=0.0)
    return Eigenfunction(COUNT, input_sd=scale, centre=np.zeros(1))


@pytest.mark.parametrize("name", ["trig", "hermite"])
@pytest.mark.parametrize("scale", [0.5, 2.0, 11.0])
def test_traced_features_are_the_library_s(name: str, scale: float) -> None:
    family = traced_family(name, COUNT, X)
    with enable_x64(True):
        found = np.asarray(family.phi(START.kernel, scale, X))
    expected = library_features(family, scale).evaluate(START.kernel, X[:, None])
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["trig", "hermite"])
@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
def test_bound_and_gradient(name: str, covariance: Covariance) -> None:
    family = traced_family(name, COUNT, X)
    objective = CollapsedObjective(family, covariance, X, Y)

    def written_out(vector: np.ndarray) -> float:
        at = Hyperparameters(*np.exp(vector))
        features = library_features(family, at.scale)
        moments = moments_from_rows(features, at.kernel, X[:, None], Y)
        size = COUNT if covariance == "dense" else 1
        return factorised_posterior(moments, at.noise_variance, size).bound.total

    vector = np.log(START)
    value, gradient = objective.value_and_gradient(vector)
    assert value == pytest.approx(written_out(vector), rel=1e-9)
    steps = 1e-5 * np.eye(4)
    differences = [(written_out(vector + s) - written_out(vector - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_search_ends_where_the_gradient_vanishes() -> None:
    objective = CollapsedObjective(HERMITE, "dense", X, Y)
    found = objective.learn(START)
    _, gradient = objective.value_and_gradient(np.log(found.hyperparameters))
    assert found.value > objective.value(START) + 1
    assert np.max(np.abs(gradient)) < 0.1
    assert not found.at_limit


def test_parameter_at_its_limit_is_reported() -> None:
    # Without noise the bound wants none, however little is allowed.
    objective = CollapsedObjective(HERMITE, "dense", X, np.zeros(40))
    assert objective.learn(START).at_limit


@pytest.mark.slow
def test_pair_of_searches_keeps_what_must_hold() -> None:
    objectives = [
        CollapsedObjective(HERMITE, covariance, X, Y) for covariance in ("dense", "diagonal")
    ]
    dense, diagonal = learn_pair(objectives, (), limit=1e6)
    assert dense["elbo"] >= diagonal["elbo"]
    assert dense["above_diagonal"] is True
    assert dense["below_exact"] is True
    for row in (dense, diagonal):
        values = [row[f"elbo_from_{name}"] for name in STARTS]
        missing = [name for name, value in zip(STARTS, values) if np.isnan(value)]
        assert missing == ["fewer_features"]
        assert np.nanmax(values) == row["elbo"]
    more = learn_pair(objectives, (dense, diagonal), limit=dense["elbo"] - 1)
    assert more[0]["above_fewer_features"] is True
    # An impossible limit is noticed.
    assert more[0]["below_exact"] is False


class Recorded:
    """An objective whose searches all end in one place."""

    family = HERMITE

    def __init__(self, end: Hyperparameters, value: float) -> None:
        self.end = Learned(end, value, at_limit=False)
        self.starts: list[Hyperparameters] = []

    def value(self, at: Hyperparameters) -> float:
        return -at.noise_variance

    def learn(self, start: Hyperparameters) -> Learned:
        self.starts.append(start)
        return self.end


@pytest.mark.slow
def test_each_search_begins_from_the_other_s_end_too() -> None:
    dense = Recorded(START._replace(variance=1.5), 2.0)
    diagonal = Recorded(START._replace(variance=2.5), 3.0)
    rows = learn_pair([dense, diagonal], (), limit=10.0)  # type: ignore[list-item]
    assert dense.starts[-1] == diagonal.end.hyperparameters
    assert diagonal.starts[-1] == dense.end.hyperparameters
    # A diagonal S that ends higher is noticed.
    assert [row["above_diagonal"] for row in rows] == [False, True]
