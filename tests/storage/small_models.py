"""Fitted models whose files are small, for tests that write and read many."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from orthogp import GPClassifier, GPRegressor, StochasticGPRegressor, TrainingSettings
from orthogp.features import InducingPoints, Trig, TwoBlock
from orthogp.kernels import RBF, Cyclic, Matern12, Matern32
from orthogp.learning import layout
from orthogp.learning.layout import Setup
from orthogp.learning.sketches import Sketch
from orthogp.rows import Rows
from orthogp.statistics import lattice

#: The functions below that fit a model, one for each kind of posterior.
KINDS = (
    "regressor",
    "additive",
    "families",
    "points",
    "exact",
    "neighbours",
    "iterative",
    "classifier",
    "additive_classifier",
)
#: Those of which there are files of each version too, but no forgeries.
MORE_KINDS = ("sphere", "stochastic", "batch_classifier")
POINTS = np.linspace(0.1, 5.9, 9)[:, None]


@contextmanager
def small_lattices() -> Iterator[None]:
    """Sums on lattices of few frequencies, where a fit would otherwise take thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lattice, "_SMALL_EXTENTS", {1: 256, 2: 10, 3: 4})
        patch.setattr(layout, "_TERM_EXTENTS", {1: 64, 2: 8, 3: 4})
        patch.setattr(layout, "_FEWEST_KEPT", 60)
        yield


def rows(num_columns: int = 1, num_rows: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(num_columns)
    X = rng.uniform(0, 6, (num_rows, num_columns))
    return X, np.sin(X).sum(axis=1) + 0.1 * rng.standard_normal(num_rows)


def regressor() -> GPRegressor:
    X, y = rows()
    with small_lattices():
        return GPRegressor(RBF(1.0, 1.0), num_features=33, n_jobs=1).fit(X, y)


def additive() -> GPRegressor:
    X, y = rows(2)
    with small_lattices():
        kernel = Cyclic(RBF(1.0, 2.0), 9.0).on(0) + RBF(1.0, 1.0).on(1)
        settings = {"learn": False, "noise_variance": 0.02, "max_features": 25, "n_jobs": 1}
        return GPRegressor(kernel, **settings).fit(X, y)


def families() -> GPRegressor:
    """A posterior of series, with the mean and the factor of q(u)."""
    X, y = rows()
    with small_lattices():
        settings = {"learn": False, "noise_variance": 0.02, "mean": "linear", "n_jobs": 1}
        return GPRegressor(RBF(1.0, 1.0), features=Trig(9), **settings).fit(X, y)


def points() -> GPRegressor:
    X, y = rows()
    features = TwoBlock(InducingPoints(5), InducingPoints(4))
    with small_lattices():
        return GPRegressor(RBF(), features=features, learn=False, n_jobs=1).fit(X, y)


def exact() -> GPRegressor:
    X, y = rows(1, 30)
    with small_lattices():
        return GPRegressor(RBF(), features="exact", learn=False, n_jobs=1).fit(X, y)


def neighbours() -> GPRegressor:
    X, y = rows(2, 60)
    settings = {"noise_variance": 0.02, "learn": False, "solver": "neighbours", "mean": "linear"}
    return GPRegressor(RBF(1.0, [1.0, 2.0]), n_jobs=1, **settings).fit(X, y)


def iterative() -> GPRegressor:
    X, y = rows(1, 400)
    settings = {"noise_variance": 0.05, "learn": False, "solver": "iterative"}
    return GPRegressor(Matern12(1.0, 1.0), num_features=301, n_jobs=1, **settings).fit(X, y)


def classifier() -> GPClassifier:
    X, y = rows()
    labels = np.array(["low", "high"])[(y > 0).astype(int)]
    with small_lattices():
        return GPClassifier(RBF(4.0, 1.0), learn=False, max_features=25, n_jobs=1).fit(X, labels)


def additive_classifier() -> GPClassifier:
    X, y = rows(2)
    labels = (y > 0).astype(int)
    with small_lattices():
        kernel = Cyclic(RBF(4.0, 2.0), 9.0).on(0) + RBF(4.0, 1.0).on(1)
        return GPClassifier(kernel, learn=False, max_features=25, n_jobs=1).fit(X, labels)


def sphere() -> GPRegressor:
    X, y = rows(2, 30)
    kernel = Matern32(1.0, 2000.0).on_sphere(1, 0, radius=6000.0)
    settings = {"noise_variance": 0.02, "learn": False, "solver": "exact"}
    return GPRegressor(kernel, n_jobs=1, **settings).fit(X, y)


def stochastic() -> StochasticGPRegressor:
    X, y = rows()
    settings = {"max_steps": 20, "learn": False, "batch_size": None}
    return StochasticGPRegressor(RBF(), features=Trig(9), **settings).fit(X, y)


def batch_classifier() -> GPClassifier:
    X, y = rows()
    training = TrainingSettings(max_steps=20, block=10)
    settings = {"learn": False, "max_features": 9, "n_jobs": 1, "domain": (-1.0, [7.0])}
    with small_lattices():
        model = GPClassifier(RBF(4.0, 1.0), inference="minibatch", training=training, **settings)
        return model.fit(X, y > 0)


def joint_sketch() -> Sketch:
    X, y = rows(2)
    with small_lattices():
        return Sketch.begin(Rows(X, y[:, None], None), Setup(mean="linear"))
