"""What scikit-learn's tools and users expect: parameters by name, its kernels, draws, functions."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, KFold

from orthogp import GPRegressor, KernelError
from orthogp.kernels import RBF, Matern32, QuasiPeriodic, from_sklearn, resolve_kernel

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0, 10, (60, 1)), axis=0)
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.standard_normal(len(X))
NEW = np.linspace(-1, 11, 30)[:, None]


# ---------------------------------------------------------------------- parameters


def test_parameters_of_kernels_have_names() -> None:
    assert RBF(2.0, 0.5).get_params() == {"variance": 2.0, "lengthscale": 0.5}
    total = RBF(2.0, [0.5, 1.5]) + Matern32(3.0).on(1)
    values = total.get_params()
    assert list(values) == ["0__variance", "0__lengthscale", "1__variance", "1__lengthscale"]
    assert values["0__lengthscale"].tolist() == [0.5, 1.5]
    changed = total.with_params(**{"1__variance": 7.0})
    assert changed.get_params()["1__variance"] == 7.0
    assert total.get_params()["1__variance"] == 3.0
    with pytest.raises(KernelError, match="no parameter 'length', only variance, lengthscale"):
        RBF().with_params(length=1.0)
    with pytest.raises(KernelError, match="lengthscale must be positive"):
        RBF().with_params(lengthscale=-1.0)


def test_parameters_of_kernels_are_set_through_the_estimator() -> None:
    model = GPRegressor(Matern32(1.0, 1.0).fix("variance"), learn=False)
    twin = clone(model).set_params(kernel__lengthscale=0.25, mean=None)
    assert twin.kernel.get_params() == {"variance": 1.0, "lengthscale": 0.25}
    assert (twin.kernel.fixed, twin.mean) == (("variance",), None)
    assert model.kernel.get_params()["lengthscale"] == 1.0
    assert twin.get_params()["kernel__lengthscale"] == 0.25
    theirs = GPRegressor(sk.RBF(1.0)).set_params(kernel__length_scale=3.0)
    assert theirs.kernel.length_scale == 3.0
    with pytest.raises(KernelError, match="The name 'rbf' stands for a kernel whose parameters"):
        GPRegressor("rbf").set_params(kernel__lengthscale=1.0)


def test_a_search_over_a_grid_of_lengthscales_finds_the_best() -> None:
    model = GPRegressor(RBF(1.0, 1.0), learn=False, noise_variance=0.04, solver="exact")
    grid = {"kernel__lengthscale": [0.02, 0.7, 50.0]}
    search = GridSearchCV(model, grid, cv=KFold(3, shuffle=True, random_state=0)).fit(X, Y)
    assert search.best_params_ == {"kernel__lengthscale": 0.7}


@pytest.mark.parametrize("name", ["RBF", "Matern32", "RationalQuadratic", "quasi_periodic"])
def test_names_of_kernels_are_known_in_any_case(name: str) -> None:
    assert type(resolve_kernel(name).kernel).__name__.lower() == name.lower().replace("_", "")
    assert len(list(resolve_kernel("RBF").kernel.primitives())) == 1


def test_columns_by_parts_of_numbers_are_refused_in_a_sentence() -> None:
    with pytest.raises(KernelError, match=r"named or counted from 0, got .*: write for"):
        RBF().on(1.5)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- kernels of scikit-learn


def both(kernel: sk.Kernel) -> tuple[GPRegressor, GaussianProcessRegressor]:
    ours = GPRegressor(kernel, learn=False, mean=None, solver="exact").fit(X, Y)
    theirs = GaussianProcessRegressor(kernel, optimizer=None).fit(X, Y)
    return ours, theirs


@pytest.mark.parametrize(
    "kernel",
    [
        sk.RBF(0.8) + sk.WhiteKernel(0.04),
        2.0 * sk.Matern(1.3, nu=1.5) + sk.WhiteKernel(0.1),
        1.5 * sk.ExpSineSquared(1.2, 3.1) + sk.WhiteKernel(0.1),
        sk.ConstantKernel(2.0) * sk.RBF(6.0) * sk.ExpSineSquared(1.2, 3.1) + sk.WhiteKernel(0.1),
        sk.ExpSineSquared(0.7, 2.0) * sk.RBF(4.0) + sk.RBF(1.0) + sk.WhiteKernel(0.1),
    ],
)
def test_kernels_of_scikit_learn_predict_as_they_do_there(kernel: sk.Kernel, tmp_path) -> None:
    ours, theirs = both(kernel)
    mean, std = ours.predict(NEW, return_std=True)
    expected_mean, expected_std = theirs.predict(NEW, return_std=True)
    # An ExpSineSquared alone is a shape that keeps for ten thousand periods.
    np.testing.assert_allclose(mean, expected_mean, atol=2e-5)
    np.testing.assert_allclose(std, expected_std, rtol=2e-5)
    _, covariance = ours.predict(NEW, return_cov=True)
    np.testing.assert_allclose(covariance, theirs.predict(NEW, return_cov=True)[1], atol=2e-5)
    ours.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_allclose(loaded.predict(NEW, return_std=True)[1], std, rtol=1e-9)


def test_noise_that_is_no_white_kernel_stays_out_of_standard_deviations() -> None:
    settings = {"learn": False, "mean": None, "noise_variance": 0.04, "solver": "exact"}
    plain = GPRegressor(sk.RBF(0.8), **settings).fit(X, Y)
    white, _ = both(sk.RBF(0.8) + sk.WhiteKernel(0.04))
    _, function = plain.predict(NEW, return_std=True)
    np.testing.assert_allclose(
        white.predict(NEW, return_std=True, include_noise=False)[1], function, rtol=1e-8
    )
    observation = plain.predict(NEW, return_std=True, include_noise=True)[1]
    np.testing.assert_allclose(white.predict(NEW, return_std=True)[1], observation, rtol=1e-8)


def test_periods_stay_within_the_bounds_given_there() -> None:
    kernel = sk.ExpSineSquared(1.0, 3.0, (0.5, 2.0), "fixed")
    equal = from_sklearn(kernel).kernel
    assert isinstance(equal, QuasiPeriodic)
    assert set(equal.fixed) == {"variance", "lengthscale", "period"}
    assert equal.bounds == (("shape_lengthscale", 0.5, 2.0),)
    with pytest.raises(KernelError, match="1 lengthscales but acts on 2 input columns"):
        GPRegressor(kernel).fit(np.tile(X, 2), Y)


# ---------------------------------------------------------------------- draws


def test_draws_of_observations_have_the_noise_and_draws_of_functions_have_not() -> None:
    model = GPRegressor(RBF(1.0, 0.8), learn=False, noise_variance=0.09, solver="exact").fit(X, Y)
    mean, std = model.predict(NEW, return_std=True)
    for noise in (False, True):
        draws = model.sample_y(NEW, 4000, random_state=0, include_noise=noise)
        expected = np.sqrt(std**2 + (0.09 if noise else 0.0))
        # Relative errors of 30 standard deviations of 4000 draws: 1.1 % each, beyond 6 % never.
        np.testing.assert_allclose(draws.std(axis=1), expected, rtol=0.06)
        # Six standard errors of means: once in 10⁷ runs.
        assert np.all(np.abs(draws.mean(axis=1) - mean) < 6 * expected / np.sqrt(4000))
    np.testing.assert_array_equal(
        model.sample_y(NEW, 3, random_state=1),
        model.sample_y(NEW, 3, random_state=1, include_noise=False),
    )


def test_functions_are_in_the_units_of_y() -> None:
    targets = 100.0 + 30.0 * np.column_stack([Y, -2 * Y])
    model = GPRegressor("rbf", solver="exact").fit(X, targets)
    functions = model.draw_functions(5, random_state=2)(X)
    assert functions.shape == (len(X), 5, 2)
    mean, std = model.predict(X, return_std=True)
    # 600 values, of which the largest is beyond 5 sd once in 3000 runs.
    assert np.abs((functions - mean[:, None]) / std[:, None]).max() < 5
