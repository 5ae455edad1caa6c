"""Kernels whose `.on` names columns of a data frame."""

import numpy as np
import pandas as pd
import pytest

from orthogp import GPClassifier, GPRegressor
from orthogp.crossvalidation import cross_validate
from orthogp.errors import KernelError
from orthogp.kernels import RBF, Matern32

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.uniform(0, 5, (120, 3)), columns=["time", "east", "north"])
Y = np.sin(2 * X["time"]) + np.cos(X["north"]) + 0.1 * RNG.standard_normal(120)
NAMED = Matern32().on("time") + RBF().on("east", "north")
NUMBERED = Matern32().on(0) + RBF().on(1, 2)


def fitted(kernel, **settings) -> GPRegressor:
    return GPRegressor(kernel, learn=False, noise_variance=0.01, **settings).fit(X, Y)


@pytest.mark.parametrize("settings", [{}, {"solver": "dense"}])
def test_names_stand_for_numbers(settings) -> None:
    named, numbered = fitted(NAMED, **settings), fitted(NUMBERED, **settings)
    np.testing.assert_array_equal(named.predict(X), numbered.predict(X))
    assert "north" in named.summary()


def test_a_kernel_on_one_named_column_sees_no_other() -> None:
    model = fitted(Matern32().on("north"))
    assert model.columns_.tolist() == [2]


def test_factors_may_name_columns() -> None:
    named, numbered = RBF().on("time") * RBF().on("east"), RBF().on(0) * RBF().on(1)
    np.testing.assert_array_equal(fitted(named).predict(X), fitted(numbered).predict(X))


def test_named_columns_go_through_updates_files_and_clones(tmp_path) -> None:
    model = fitted(Matern32().on("time"), solver="dense")
    model.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    for own in (model, again):
        own.partial_fit(X[:10] + 0.01, Y[:10])
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-9)
    assert "'time'" in repr(NAMED)


def test_classifiers_and_cross_validation_take_names() -> None:
    labels = (Y > 0).to_numpy().astype(int)
    assert GPClassifier(RBF().on("time")).fit(X, labels).columns_.tolist() == [0]
    found = cross_validate(X, Y, [RBF().on("time"), RBF().on(0)], folds=3)
    np.testing.assert_array_equal(*found.joint)


@pytest.mark.parametrize(
    ("kernel", "rows", "sentence"),
    [
        (NAMED, X.to_numpy(), "acts on column 'time', but only data frames have names"),
        (RBF().on("height"), X, "acts on column 'height', but X has time, east, north"),
        (RBF().on("time", 0), X, "must be distinct"),
    ],
)
def test_names_that_are_unknown_are_refused_in_a_sentence(kernel, rows, sentence: str) -> None:
    with pytest.raises(KernelError, match=sentence) as caught:
        GPRegressor(kernel).fit(rows, Y)
    assert "\n" not in str(caught.value)


def test_names_inside_other_columns_are_refused() -> None:
    with pytest.raises(KernelError, match="named inside a kernel on other columns"):
        RBF().on("time").on(2)
