"""Bad input gets one clear sentence."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from orthogp import (
    FitWarning,
    GPRegressor,
    InputError,
    KernelError,
    OrthogpError,
    PrecisionError,
)
from orthogp.kernels import RBF, Categorical, Kernel, Matern32

X = np.linspace(0, 1, 20)[:, None]
Y = np.sin(5 * X[:, 0])


def spoilt(array, *places, value=np.nan):
    array = np.array(array, dtype=float)
    for place in places:
        array[place] = value
    return array


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            spoilt(X, (3, 0), (5, 0)),
            Y,
            r"X has 2 in column 0 NaN or infinite values \(of 20 rows\)",
        ),
        (spoilt(X, (3, 0), value=np.inf), Y, "X has 1 in column 0 NaN or infinite"),
        (1e-150 * X, Y, r"Column 0 of X spans 1.0e-150, .* rescale it"),
        (1e120 * X, Y, r"Column 0 of X spans 1.0e\+120, .* rescale it"),
        (X, spoilt(Y, 1, 2, 3), "y has 3 NaN or infinite"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (np.zeros((20, 2, 2)), Y, "dim 3"),
        (X[:, 0], Y, "Expected 2D array, got 1D array"),
        (np.zeros((0, 1)), np.zeros(0), "0 sample"),
        (X[:1], Y[:1], "At least two rows"),
        (np.array([["a"]] * 20), Y, "must hold numbers, but holds text"),
        (X, np.array(["a"] * 20), "must hold numbers, but holds text"),
        (X, None, "requires y"),
    ],
)
def test_bad_rows_are_named(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor().fit(inputs, targets)


def test_bad_columns_of_frames_are_named_by_their_names():
    frame = pd.DataFrame({"lon": X[:, 0], "lat": spoilt(X[:, 0], 4)})
    with pytest.raises(InputError, match="1 in 'lat' NaN"):
        GPRegressor().fit(frame, Y)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (spoilt(np.ones(20), 3, 4, value=-1), "2 values are negative"),
        (np.zeros(20), "All sample_weight are zero: at least two rows"),
        (np.full(20, 1e200), r"stands for 2.0e\+201 rows in all"),
        (np.ones(19), "sample_weight"),
        (spoilt(np.ones(20), 3), "NaN"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor().fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "matern7"}, "known names are rbf, matern, matern12"),
        ({"kernel": 3}, "kernel must be a name"),
        ({"kernel": RBF(1.0, [0.1, 0.2])}, "2 lengthscales but acts on 1"),
        ({"kernel": Matern32().on(1)}, "column 1, but X has 1"),
        ({"features": "wavelets"}, "features must be one of"),
        ({"num_features": 0}, "num_features must be"),
        ({"num_features": 2.5}, "num_features must be"),
        ({"mean": "quadratic"}, "mean must be one of"),
        ({"noise_variance": -1.0}, "noise_variance must be a positive"),
        ({"wrap_tolerance": 0.0}, "wrap_tolerance must be a positive"),
        ({"max_features": 0}, "max_features must be"),
        ({"weights": "sizes"}, "weights must be one of"),
        ({"domain": (1.0, 0.0)}, "lower < upper"),
        ({"domain": 3}, "domain must be"),
    ],
)
def test_bad_parameters_are_refused_when_fitting(parameters, message):
    with pytest.raises(OrthogpError, match=message):
        GPRegressor(**parameters).fit(X, Y)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, "long", []])
def test_lengthscales_must_be_positive_numbers(value):
    with pytest.raises(KernelError, match="lengthscale must be"):
        RBF(1.0, value)


def test_variance_must_be_one_number():
    with pytest.raises(KernelError, match="variance must be one number"):
        RBF([1.0, 2.0], 0.5)


def test_constant_targets_are_predicted_with_a_warning():
    with pytest.warns(FitWarning, match="y is constant"):
        model = GPRegressor().fit(X, np.full(20, 3.7))
    np.testing.assert_allclose(model.predict(X), 3.7, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["exact", "dense", "neighbours"])
@pytest.mark.parametrize("value", [0.0, -2e9])
def test_bands_around_constants_are_narrow(value, solver, tmp_path):
    y = np.full(20, value)
    with pytest.warns(FitWarning, match="y is constant"):
        model = GPRegressor(solver=solver, max_features=50).fit(X, y)
    _, std = model.predict(X, return_std=True, include_noise=True)
    assert np.all((std > 0) & (std <= 1e-7 * max(abs(value), 1.0)))
    model.diagnose(X, y)
    model.report(tmp_path / "page.html")


def test_a_constant_beside_another_target_has_a_narrow_band_of_its_own():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 1, (60, 1))
    y = np.sin(6 * inputs[:, 0]) + 0.1 * rng.standard_normal(60)
    both = GPRegressor("rbf").fit(inputs, np.column_stack([y, np.full(60, 5.0)]))
    _, std = both.predict(inputs, return_std=True)
    assert np.all(std[:, 1] < 1e-7)
    assert np.all(std[:, 0] > 0.01)


def test_copies_of_every_row_are_named_in_a_warning():
    rng = np.random.default_rng(0)
    inputs, y = rng.uniform(0, 1, (30, 2)), rng.standard_normal(30)
    with pytest.warns(FitWarning, match="Every row occurs 3 times with the same target"):
        GPRegressor("rbf").fit(np.tile(inputs, (3, 1)), np.tile(y, 3))
    # Measurements that are repeated, and values that are few, are no copies.
    GPRegressor("rbf").fit(np.tile(inputs, (2, 1)), np.append(y, y + 0.1))
    few = rng.integers(0, 4, (400, 2))
    GPRegressor("rbf").fit(few, few.sum(axis=1) % 3 + rng.integers(0, 2, 400))


def test_constant_input_column_is_named_in_a_warning():
    with pytest.warns(FitWarning, match="column 1 is constant"):
        model = GPRegressor("rbf", max_features=100).fit(np.hstack([X, np.ones((20, 1))]), Y)
    assert np.abs(model.predict(np.hstack([X, np.ones((20, 1))])) - Y).max() < 0.05


def test_all_inputs_equal_gives_the_mean_and_a_warning():
    with pytest.warns(FitWarning, match="constant"):
        model = GPRegressor().fit(np.ones((20, 1)), Y)
    assert model.predict([[1.0]])[0] == pytest.approx(Y.mean(), abs=0.2)


def test_noise_far_below_double_precision_is_refused_with_the_remedy():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 1, (5000, 1))
    with pytest.raises(PrecisionError, match="larger noise_variance"):
        GPRegressor(Matern32(1.0, 0.5), learn=False, noise_variance=1e-16).fit(inputs, inputs[:, 0])


@pytest.mark.parametrize("solver", ["auto", "exact", "dense", "iterative", "neighbours"])
def test_bad_prediction_input_is_refused(solver):
    model = GPRegressor("rbf", solver=solver, max_features=100).fit(X, Y)
    with pytest.raises(InputError, match="NaN"):
        model.predict([[np.nan]])
    with pytest.raises(ValueError, match="2 features"):
        model.predict(np.zeros((3, 2)))
    with pytest.raises(InputError, match="not for both"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(InputError, match="dim must be"):
        model.predict_derivative(X, dim=1)
    if solver in ("dense", "iterative"):
        with pytest.raises(InputError, match="outside the covered domain"):
            model.sample_y([[1e6]])
    else:
        # What keeps its rows covers all there is.
        assert np.isfinite(model.sample_y([[1e6]])).all()


@pytest.mark.parametrize("solver", ["exact", "dense", "iterative"])
@pytest.mark.parametrize(
    ("lower", "upper"), [(0.5, 0.2), (0.0, np.nan), (np.nan, 0.5), (-np.inf, 0.5)]
)
def test_boxes_to_integrate_over_that_are_none_are_refused(solver, lower, upper):
    model = GPRegressor(RBF(1.0, 0.3), noise_variance=0.01, learn=False, solver=solver).fit(X, Y)
    with pytest.raises(InputError, match="lower ≤ upper"):
        model.predict_integral([[lower]], [[upper]])


def test_forgetting_more_rows_than_there_are_is_refused():
    model = GPRegressor("rbf").fit(X, Y)
    with pytest.raises(InputError, match="at least two must stay"):
        model.forget(X, Y)


@pytest.mark.parametrize("solver", ["auto", "dense", "iterative", "neighbours"])
def test_derivative_of_a_rough_process_is_refused(solver):
    model = GPRegressor("matern12", solver=solver, max_features=100).fit(X, Y)
    with pytest.raises(InputError, match="no derivative"):
        model.predict_derivative(X)


def test_good_input_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GPRegressor("rbf").fit(X, Y).predict(X)


class Overflowing(Kernel):
    """k = v/cosh(τ/ℓ), written so that its derivative is ∞/∞² at long lags."""

    variance: np.ndarray
    lengthscale: np.ndarray

    def k(self, lag: Any) -> Any:
        return self.variance / jnp.cosh(lag[0] / self.lengthscale)

    def spectral_density(self, omega: Any) -> Any:
        half = jnp.pi * self.lengthscale / 2
        return self.variance * half / jnp.pi / jnp.cosh(half * omega[0])

    def prior_variance(self) -> Any:
        return jnp.asarray(self.variance)


@pytest.mark.parametrize("solver", ["auto", "dense", "neighbours"])
def test_kernels_that_overflow_are_named_with_the_remedy(solver: str) -> None:
    X = np.linspace(0, 100, 400)[:, None]
    kernel = Overflowing(variance=np.ones(()), lengthscale=np.full((), 0.05))
    with pytest.raises(KernelError, match=r"Overflowing .* not finite .* nothing overflows"):
        GPRegressor(kernel, solver=solver).fit(X, np.sin(X[:, 0]))


class Infinite(Overflowing):
    """k = v cosh(τ/ℓ)⁻¹ as a ratio of two numbers that both overflow: NaN at long lags."""

    def k(self, lag: Any) -> Any:
        scaled = jnp.abs(lag[0]) / self.lengthscale
        return 2 * self.variance * jnp.exp(scaled) / (1 + jnp.exp(2 * scaled))


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_kernels_without_a_value_are_named_with_the_remedy(solver: str, learn: bool) -> None:
    X = np.linspace(0, 100, 400)[:, None]
    kernel = Infinite(variance=np.ones(()), lengthscale=np.full((), 1e-4))
    with pytest.raises(KernelError, match=r"Infinite .* not finite .* nothing overflows"):
        GPRegressor(kernel, solver=solver, learn=learn).fit(X, np.sin(X[:, 0]))


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_unknown_categories_are_refused_where_rows_are_kept(solver: str) -> None:
    kernel = RBF(1.0, 0.3).on(0) * Categorical(3).on(1)
    codes = np.arange(20) % 5
    with pytest.raises(InputError, match="categorical with codes 0 to 2, but 8 of its values"):
        GPRegressor(kernel, solver=solver).fit(np.column_stack([X, codes]), Y)
