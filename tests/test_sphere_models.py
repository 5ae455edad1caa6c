"""Models of longitude and latitude: seams, engines, learning, files, reports and refusals."""

import warnings

import numpy as np
import pytest

from orthogp import (
    FileError,
    GPClassifier,
    GPRegressor,
    InputError,
    KernelError,
    StochasticGPRegressor,
    tune_for_gaps,
)
from orthogp.features import InducingPoints
from orthogp.kernels import RBF, Matern32
from orthogp.kernels.base import EARTH_RADIUS
from orthogp.report import diagnose

KERNEL = Matern32(1.0, 2000.0).on_sphere(0, 1)
KNOWN = {"noise_variance": 0.01, "learn": False}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def points(rng, count):
    latitude = np.degrees(np.arcsin(rng.uniform(-1, 1, count)))
    return np.column_stack([rng.uniform(-180, 180, count), latitude])


def chords(A, B):
    """Distances through the Earth, in kilometres."""

    def in_space(X):
        longitude, latitude = np.radians(X.T)
        return EARTH_RADIUS * np.stack(
            [
                np.cos(latitude) * np.cos(longitude),
                np.cos(latitude) * np.sin(longitude),
                np.sin(latitude),
            ],
            axis=1,
        )

    return np.linalg.norm(in_space(A)[:, None] - in_space(B), axis=2)


def matern32(distance, lengthscale):
    z = np.sqrt(3) * distance / lengthscale
    return (1 + z) * np.exp(-z)


def draw(rng, X, lengthscale=2000.0, noise_sd=0.1):
    K = matern32(chords(X, X), lengthscale) + 1e-10 * np.eye(len(X))
    f = np.linalg.cholesky(K) @ rng.standard_normal(len(X))
    return f, f + noise_sd * rng.standard_normal(len(X))


@pytest.fixture
def data(rng):
    X = points(rng, 200)
    return X, draw(rng, X)[1]


def test_predictions_are_those_of_the_formulas(data, rng):
    X, y = data
    new = points(rng, 20)
    model = GPRegressor(KERNEL, mean=None, solver="exact", **KNOWN).fit(X, y)
    # The noise is in the units of y here, and so is the kernel.
    C = matern32(chords(X, X), 2000.0) + 0.01 * np.eye(len(X))
    cross = matern32(chords(new, X), 2000.0)
    centre = model.target_offset_[0]
    expected = centre + cross @ np.linalg.solve(C, y - centre)
    variance = 1 - np.einsum("ij,ji->i", cross, np.linalg.solve(C, cross.T))
    mean, sd = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-8)
    np.testing.assert_allclose(sd, np.sqrt(variance), atol=1e-8)


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_longitudes_come_round(data, rng, solver):
    X, y = data
    model = GPRegressor(KERNEL, solver=solver, **KNOWN).fit(X, y)
    new = points(rng, 30)
    for turns in (1, -2):
        np.testing.assert_allclose(
            model.predict(new + np.array([360.0 * turns, 0.0])), model.predict(new), atol=1e-10
        )


def test_the_date_line_is_no_seam(rng):
    # Rows on both sides of it, and what they say between them.
    longitude = np.concatenate([rng.uniform(170, 179, 60), rng.uniform(-179, -170, 60)])
    X = np.column_stack([longitude, rng.uniform(-10, 10, 120)])
    new = np.column_stack([np.linspace(179, 181, 30), rng.uniform(-10, 10, 30)])
    f, y = draw(rng, np.concatenate([X, new]), 1000.0)
    model = GPRegressor(KERNEL).fit(X, y[:120])
    # The same rows about the meridian of Greenwich.
    turned = GPRegressor(KERNEL).fit(X - [180.0, 0.0], y[:120])
    errors = [
        np.sqrt(np.mean((own.predict(at) - f[120:]) ** 2))
        for own, at in ((model, new), (turned, new - [180.0, 0.0]))
    ]
    assert model.engine_ == "exact"
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-5)
    assert errors[0] < 0.3 * f[120:].std() + 0.1
    seamed = GPRegressor("matern32").fit(X, y[:120])
    wrapped = np.column_stack([(new[:, 0] + 180) % 360 - 180, new[:, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flat = np.sqrt(np.mean((seamed.predict(wrapped) - f[120:]) ** 2))
    assert errors[0] < 0.9 * flat


def test_neighbours_with_all_rows_are_exact(data, rng):
    # So few rows that each prediction looks at all of them.
    X, y = data[0][:60], data[1][:60]
    new = points(rng, 25)
    settings = {"mean": None, **KNOWN}
    exact = GPRegressor(KERNEL, solver="exact", **settings).fit(X, y)
    near = GPRegressor(KERNEL, solver="neighbours", **settings).fit(X, y)
    assert near.posterior_.num_neighbours >= 60
    for own, other in zip(
        near.predict(new, return_std=True), exact.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(own, other, atol=1e-6)


@pytest.mark.parametrize("solver", ["auto", "neighbours"])
def test_learning_finds_the_lengthscale_in_kilometres(rng, solver):
    # From the lengthscale of one kilometre that a kernel has if none is given. With 600 rows the
    # log lengthscale has a standard error of about 0.1: 0.5 is missed by chance less often than
    # once in 10⁵ seeds.
    X = points(rng, 600)
    y = draw(rng, X, 1500.0)[1]
    model = GPRegressor(Matern32().on_sphere(0, 1), solver=solver).fit(X, y)
    ((primitive, dims),) = model.kernel_.primitives()
    assert dims == (0, 1)
    assert abs(np.log(float(primitive.parameters()["lengthscale"]) / 1500)) < 0.5
    assert abs(np.log(model.noise_variance_ / 0.01)) < 1.0


def test_time_is_a_further_coordinate(rng):
    X = np.column_stack([points(rng, 300), rng.uniform(0, 50, 300)])
    y = np.sin(X[:, 2] / 4) * np.cos(np.radians(X[:, 1])) + 0.05 * rng.standard_normal(300)
    model = GPRegressor(Matern32().on_sphere(0, 1, 2)).fit(X[:250], y[:250])
    rmse = np.sqrt(np.mean((model.predict(X[250:]) - y[250:]) ** 2))
    assert rmse < 0.5 * y.std()
    (line,) = [own for own in model.summary().splitlines() if own.startswith("  kernel")]
    assert "Matern32 on the sphere of columns 0, 1 and column 2: variance" in line
    assert " km, " in line


def test_terms_on_the_sphere_and_on_columns_add_up(rng):
    X = np.column_stack([rng.uniform(0, 10, 250), points(rng, 250)])
    y = draw(rng, X[:, 1:])[1] + np.sin(X[:, 0])
    kernel = Matern32().on_sphere(1, 2) + RBF().on(0)
    model = GPRegressor(kernel).fit(X[:220], y[:220])
    np.testing.assert_array_equal(model.columns_, [0, 1, 2])
    assert np.sqrt(np.mean((model.predict(X[220:]) - y[220:]) ** 2)) < 0.7 * y.std()
    assert ".on_sphere(1, 2) + RBF(" in repr(model.kernel_)


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_rows_come_and_go(data, rng, solver):
    X = np.column_stack([rng.uniform(size=len(data[0])), data[0]])
    y = data[1]
    # Column 0 is not seen.
    kernel = Matern32(1.0, 2000.0).on_sphere(1, 2)
    whole = GPRegressor(kernel, solver=solver, **KNOWN).fit(X[:150], y[:150])
    model = GPRegressor(kernel, solver=solver, **KNOWN).fit(X[:100], y[:100])
    model.partial_fit(X[100:], y[100:]).forget(X[150:], y[150:])
    assert model.statistics_.rows == 150
    # What the mean function's prior and the units were made of differs a little.
    np.testing.assert_allclose(model.predict(X[150:]), whole.predict(X[150:]), atol=1e-2)


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_files_hold_models_on_the_sphere(data, rng, tmp_path, solver):
    X = np.column_stack([rng.uniform(size=len(data[0])), data[0]])
    kernel = Matern32(1.0, [2000.0, 5.0]).on_sphere(1, 2, 0, radius=6000.0)
    model = GPRegressor(kernel, solver=solver, **KNOWN).fit(X, data[1])
    model.save(tmp_path / "model")
    loaded = GPRegressor.load(tmp_path / "model")
    new = X[:20] + np.array([0.0, 1.0, 0.0])
    for own, other in zip(
        model.predict(new, return_std=True), loaded.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(other, own, rtol=1e-9, atol=1e-9)
    assert repr(loaded.kernel_) == repr(model.kernel_)
    assert repr(loaded.kernel) == repr(kernel)
    assert loaded.summary() == model.summary()
    loaded.partial_fit(X[:5] + 0.5, data[1][:5])
    assert loaded.statistics_.rows == len(X) + 5


def test_summary_draws_and_plots(data, tmp_path):
    X, y = data
    model = GPRegressor(KERNEL, random_state=3, **KNOWN).fit(X, y)
    assert (
        "Matern32 on the sphere of columns 0, 1: variance 1, lengthscale 2000 km" in model.summary()
    )
    other = GPRegressor(Matern32(1.0, 2000.0).on_sphere(0, 1, radius=6371.0), **KNOWN).fit(X, y)
    assert "lengthscale 2000\n" in other.summary()
    draws = model.sample_y(X[:3], 400)
    assert draws.shape == (3, 400)
    mean, sd = model.predict(X[:3], return_std=True)
    # Six standard errors of a mean of 400 draws: once in 10⁸ runs.
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 6 * sd / 20)
    functions = model.draw_functions(2, 0)
    np.testing.assert_allclose(
        functions(X[:3] + np.array([360.0, 0.0])), functions(X[:3]), atol=1e-6
    )
    model.plot(path=tmp_path / "map.png")
    found = diagnose(model, X, y)
    assert found.rows == len(X)
    assert np.all(found.lower >= -180)


@pytest.mark.parametrize("bad", [90.5, -91.0])
def test_latitudes_beyond_the_poles_are_refused(data, bad):
    X, y = data
    wrong = X.copy()
    wrong[:3, 1] = bad
    model = GPRegressor(KERNEL, **KNOWN)
    for solver in ("exact", "neighbours"):
        with pytest.raises(InputError, match="3 of 200 rows are beyond ±90"):
            GPRegressor(KERNEL, solver=solver, **KNOWN).fit(wrong, y)
    model.fit(X, y)
    with pytest.raises(InputError, match=r"Column 1 holds latitudes.*1 of 1 rows"):
        model.predict(wrong[:1])
    with pytest.raises(InputError, match="beyond ±90"):
        model.partial_fit(wrong, y)


@pytest.mark.parametrize(
    "make",
    [
        lambda X, y: GPRegressor(KERNEL, solver="dense").fit(X, y),
        lambda X, y: GPRegressor(KERNEL, solver="iterative").fit(X, y),
        lambda X, y: GPRegressor(KERNEL, features="lattice").fit(X, y),
        lambda X, y: GPRegressor(KERNEL, features=InducingPoints(20)).fit(X, y),
        lambda X, y: GPRegressor(KERNEL + RBF().on(0), solver="dense").fit(X, y),
        lambda X, y: GPClassifier(KERNEL).fit(X, y > 0),
        lambda X, y: StochasticGPRegressor(KERNEL).fit(X, y),
        lambda X, y: tune_for_gaps(GPRegressor(KERNEL, **KNOWN).fit(X, y), X, y),
    ],
)
def test_what_needs_a_lattice_is_refused_with_a_remedy(data, make):
    with pytest.raises(KernelError, match=r'no lattice of frequencies.*solver="auto"'):
        make(*data)


def test_derivatives_integrals_and_domains_are_refused(data):
    X, y = data
    model = GPRegressor(KERNEL, **KNOWN).fit(X, y)
    with pytest.raises(InputError, match="Derivatives along longitude and latitude"):
        model.predict_derivative(X, 0)
    with pytest.raises(InputError, match="Integrals over boxes of longitude and latitude"):
        model.predict_integral(X[:1], X[:1] + 1)
    with pytest.raises(InputError, match="leave out `domain`"):
        GPRegressor(KERNEL, domain=([0, 0], [1, 1]), **KNOWN).fit(X, y)
    with pytest.raises(KernelError, match="names its columns itself"):
        GPRegressor(RBF().on_sphere(0, 1).on(0, 1)).fit(X, y)


def test_a_file_with_a_kernel_that_is_in_space_already_is_refused(data, tmp_path):
    X, y = data
    model = GPRegressor(KERNEL, **KNOWN).fit(X, y)
    model.kernel_ = model.posterior_.kernel
    model.n_features_in_ = 3
    model.columns_ = np.arange(3)
    model.save(tmp_path / "model")
    with pytest.raises(FileError):
        GPRegressor.load(tmp_path / "model")
