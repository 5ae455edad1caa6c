"""The units of y and X, and where their zero lies, change nothing but the units of the answer."""

import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orthogp import FitWarning, GPClassifier, GPRegressor, InputError, StochasticGPRegressor
from orthogp.kernels import RBF

Answer = tuple[np.ndarray, np.ndarray]


def rows(num_columns: int, num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and inputs to predict at."""
    rng = np.random.default_rng(num_columns)
    X = rng.uniform(0, 1, (num_rows + 40, num_columns))
    f = np.sin(6 * X[:, 0]) + 0.5 * np.cos(5 * X[:, 1:]).sum(axis=1)
    y = f + 0.1 * rng.standard_normal(len(X))
    return X[:num_rows], y[:num_rows], X[num_rows:]


def at_once(settings: dict) -> Callable[..., Answer]:
    def answer(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Answer:
        return GPRegressor(**settings).fit(X, y).predict(new, return_std=True)

    return answer


def in_parts(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Answer:
    model = GPRegressor("rbf").fit(X[:80], y[:80]).partial_fit(X[80:], y[80:])
    return model.forget(X[60:100], y[60:100]).predict(new, return_std=True)


def after_a_constant(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Answer:
    """From a model of a constant, which has learned nothing that counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model = GPRegressor("rbf").fit(X[:20], np.full(20, y[0]))
    return model.partial_fit(X[20:], y[20:]).predict(new, return_std=True)


def from_files(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Answer:
    """From the sums of two files, one of each format."""
    half, model = len(X) // 2, GPRegressor("rbf")
    with TemporaryDirectory() as folder:
        table = pa.table({"x": X[:half, 0], "y": y[:half]})
        pq.write_table(table, f"{folder}/a.parquet")
        lines = [f"{x!r},{own!r}\n" for x, own in zip(X[half:, 0].tolist(), y[half:].tolist())]
        Path(folder, "b.csv").write_text("x,y\n" + "".join(lines))
        model.fit_files(f"{folder}/*", "y", memory=1.0)
    return model.predict(new, return_std=True)


CASES = {
    "default": (1, 60, at_once({})),
    "dense": (2, 150, at_once({"kernel": "rbf", "solver": "dense", "max_features": 500})),
    "at a limit": (2, 150, at_once({"solver": "dense", "max_features": 300})),
    "exact": (1, 80, at_once({"features": "exact"})),
    "trig": (1, 150, at_once({"features": "trig"})),
    "additive": (4, 150, at_once({"kernel": "additive-matern32", "max_features": 150})),
    "in parts": (1, 160, in_parts),
    "after a constant": (1, 160, after_a_constant),
    "files": (1, 150, from_files),
    "neighbours": (2, 150, at_once({"solver": "neighbours"})),
    "iterative": (2, 400, at_once({"solver": "iterative", "num_features": 301})),
}
# Where parameters are many, or end at limits, rounding may decide after which step of almost no
# gain a search ends.
LOOSE = {"additive": 1e-4, "at a limit": 1e-4, "iterative": 1e-5}


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    """What each case says of the rows as they are, computed once."""
    return {}


def expected(name: str, answers: dict[str, Answer]) -> Answer:
    if name not in answers:
        num_columns, num_rows, answer = CASES[name]
        answers[name] = answer(*rows(num_columns, num_rows))
    return answers[name]


# In either unit an offset as large as it may be; squares of 1e158 would overflow.
@pytest.mark.parametrize(("factor", "offset"), [(1e-130, 1e-122), (1e150, 0.0)])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_has_the_units_of_y(
    name: str, factor: float, offset: float, answers: dict[str, Answer]
) -> None:
    num_columns, num_rows, answer = CASES[name]
    X, y, new = rows(num_columns, num_rows)
    mean, std = answer(X, factor * y + offset, new)
    atol = LOOSE.get(name, 1e-6) * float(np.std(y))
    for found, known in zip(((mean - offset) / factor, std / factor), expected(name, answers)):
        np.testing.assert_allclose(found, known, rtol=0, atol=atol)


@pytest.mark.parametrize(("factor", "offset"), [(1e-9, 1e-3), (1e9, 0.0)])
@pytest.mark.parametrize(
    "name", ["default", "exact", "additive", "in parts", "neighbours", "iterative"]
)
def test_the_units_of_X_do_not_matter(
    name: str, factor: float, offset: float, answers: dict[str, Answer]
) -> None:
    num_columns, num_rows, answer = CASES[name]
    X, y, new = rows(num_columns, num_rows)
    results = answer(factor * X + offset, y, factor * new + offset)
    atol = LOOSE.get(name, 1e-6) * float(np.std(y))
    for found, known in zip(results, expected(name, answers), strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=atol)


# What the rounding of numbers around 1e12 leaves of those between −1 and 1.
ROUNDED = 2e-4


def rounded(values: np.ndarray) -> np.ndarray:
    """Return what is left of numbers when they are moved by 1e12 and back."""
    return (values + 1e12) - 1e12


@pytest.mark.parametrize("name", ["default", "dense", "in parts", "files", "neighbours"])
def test_inputs_and_targets_may_be_far_from_zero(name: str) -> None:
    num_columns, num_rows, answer = CASES[name]
    X, y, new = map(rounded, rows(num_columns, num_rows))
    known = answer(X, y, new)
    mean, std = answer(X + 1e12, y, new + 1e12)
    np.testing.assert_allclose(mean, known[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(std, known[1], rtol=0, atol=1e-5)
    mean, std = answer(X, y + 1e12, new)
    np.testing.assert_allclose(mean - 1e12, known[0], rtol=0, atol=ROUNDED)
    np.testing.assert_allclose(std, known[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("factor", [1e-80, 1e80])
@pytest.mark.parametrize("name", ["default", "exact", "in parts", "files", "neighbours"])
def test_inputs_may_be_as_small_and_large_as_their_squares_allow(
    name: str, factor: float, answers: dict[str, Answer]
) -> None:
    num_columns, num_rows, answer = CASES[name]
    X, y, new = rows(num_columns, num_rows)
    for found, known in zip(answer(factor * X, y, factor * new), expected(name, answers)):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-6)


@pytest.mark.parametrize("features", ["exact", "lattice"])
def test_numbers_whose_squares_overflow_are_refused(features: str) -> None:
    X, y, new = rows(1, 30)
    model = GPRegressor("rbf", features=features, max_features=50)
    with pytest.raises(InputError, match=r"Column 0 of X spans .*e\+149"):
        model.fit(1e150 * X, y)
    with pytest.raises(InputError, match=r"y reaches .*e\+160, and the squares"):
        model.fit(X, 1e160 * y)
    model.fit(X, y)
    for ask in (model.predict, model.sample_y, lambda far: model.partial_fit(far, y)):
        with pytest.raises(InputError, match=r"Column 0 of X reaches .*e\+149"):
            ask(1e150 * X)
    np.testing.assert_array_equal(model.predict(new), model.fit(X, y).predict(new))


@pytest.mark.parametrize("name", ["exact", "additive"])
@pytest.mark.parametrize(("factor", "offset"), [(1.0, 1e4), (1e37, 0.0)])
def test_single_precision_means_the_numbers_it_holds(
    name: str, factor: float, offset: float
) -> None:
    num_columns, num_rows, answer = CASES[name]
    X, y, new = rows(num_columns, num_rows)
    X, y = X.astype(np.float32), (factor * y + offset).astype(np.float32)
    for found, known in zip(
        answer(X, y, new), answer(X.astype(float), y.astype(float), new), strict=True
    ):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-9 * factor)


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(("factor", "offset"), [(1e-12, 0.0), (1e12, 0.0), (1.0, 1e8)])
def test_a_kernel_object_is_in_the_units_of_y(factor: float, offset: float, learn: bool) -> None:
    X, y, new = rows(1, 150)

    def answer(factor: float, offset: float) -> Answer:
        kernel = RBF(lengthscale=0.3, variance=1.5 * factor**2)
        model = GPRegressor(kernel, noise_variance=0.01 * factor**2, learn=learn)
        # A constant target has no say in what the scale of the others is.
        targets = factor * np.column_stack([y, np.full(len(y), 3.0)]) + offset
        mean, std = model.fit(X, targets).predict(new, return_std=True)
        return (mean - offset) / factor, std / factor

    for found, known in zip(answer(factor, offset), answer(1.0, 0.0), strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-7)


def test_targets_of_different_size_do_not_disturb_each_other() -> None:
    X, y, new = rows(1, 150)
    targets = np.column_stack([y, np.cos(3 * X[:, 0]) + 0.1 * y, y**2])
    factors = np.array([1e-12, 1.0, 1e12])
    mean, std = GPRegressor("rbf").fit(X, targets).predict(new, return_std=True)
    other, its = GPRegressor("rbf").fit(X, targets * factors).predict(new, return_std=True)
    np.testing.assert_allclose(other / factors, mean, rtol=0, atol=1e-7)
    np.testing.assert_allclose(its / factors, std, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_classifiers_do_not_mind_the_units_of_X() -> None:
    X, y, new = rows(1, 60)

    def answer(factor: float, offset: float) -> np.ndarray:
        model = GPClassifier("rbf", num_features=21).fit(factor * X + offset, y > 0)
        return model.predict_proba(factor * new + offset)

    known = answer(1.0, 0.0)
    for factor, offset in ((1e-9, 0.0), (1e9, 1e15)):
        np.testing.assert_allclose(answer(factor, offset), known, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1, 1e-12, 1e12 / 3, 1e-150, 1e150, -7e7])
def test_constants_of_any_size_are_constants(value: float, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    X, weights = rng.uniform(0, 1, (1000, 1)), rng.uniform(0, 1, 1000)
    model = GPRegressor("rbf", num_features=5)
    with pytest.warns(FitWarning, match="y is constant"):
        model.fit(X, np.full(1000, value), weights if weighted else None)
    np.testing.assert_allclose(model.predict(X), value, rtol=1e-12, atol=0)


def test_rounding_of_a_constant_is_nothing_to_learn_from() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (200, 1))
    y = np.float64(1e8) * (1 + np.finfo(float).eps * rng.integers(-1, 2, 200))
    with pytest.warns(FitWarning, match="y is constant"):
        GPRegressor("rbf", num_features=5).fit(X, y)


def test_squares_that_vanish_are_refused() -> None:
    X, y, _ = rows(1, 30)
    with pytest.raises(InputError, match=r"y varies by .*e-160 only"):
        GPRegressor("rbf").fit(X, 1e-160 * y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "offset"), [(1e12, 1e20), pytest.param(1e-12, 0.0, marks=pytest.mark.slow)]
)
def test_stochastic_training_has_the_units_of_y(factor: float, offset: float) -> None:
    X, y, new = rows(1, 100)

    def answer(factor: float, offset: float) -> Answer:
        model = StochasticGPRegressor("rbf", num_features=11, max_steps=20)
        mean, std = model.fit(X, factor * y + offset).predict(new, return_std=True)
        return (mean - offset) / factor, std / factor

    for found, known in zip(answer(factor, offset), answer(1.0, 0.0), strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_stochastic_training_takes_single_precision_as_it_is() -> None:
    X, y, new = rows(1, 100)
    y = (1e37 * y).astype(np.float32)
    model = StochasticGPRegressor("rbf", num_features=11, max_steps=20)
    known = model.fit(X, y.astype(float)).predict(new)
    np.testing.assert_allclose(model.fit(X, y).predict(new), known, rtol=0, atol=1e-9 * 1e37)
