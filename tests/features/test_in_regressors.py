"""GPRegressor with every family: by name, as an object, and with families made by others."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from orthogp import FeatureError, GPRegressor, InputError
from orthogp.errors import OrthogpError
from orthogp.features import (
    FEATURE_NAMES,
    Box,
    Harmonic,
    Hermite,
    InducingPoints,
    Lattice,
    PointFeatures,
    Polynomial,
    RandomFourier,
    SpectralFeatures,
    Trig,
    TwoBlock,
    VariationalFourier,
    resolve_features,
)
from orthogp.features.base import FAMILIES
from orthogp.kernels import RBF, Kernel, Matern32
from tests.problems import make_lattice

NOISE = 0.04


def make_data(num_rows: int = 300, num_dims: int = 1, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 4, (num_rows, num_dims))
    f = np.sin(2 * X).sum(axis=1)
    return X, f + 3.0 + np.sqrt(NOISE) * rng.normal(size=num_rows), f + 3.0


class Sech(Kernel):
    """A kernel that the library does not have, k = v sech(τ/ℓ), in one column."""

    variance: np.ndarray
    lengthscale: np.ndarray

    def k(self, lag):
        return self.variance / jnp.cosh(lag[0] / self.lengthscale)

    def spectral_density(self, omega):
        half = jnp.pi * self.lengthscale / 2
        return self.variance * half / jnp.pi / jnp.cosh(half * omega[0])

    def prior_variance(self):
        return jnp.asarray(self.variance)


class Walsh(SpectralFeatures):
    """A family that the library does not have: Walsh functions on [−a, a], even and odd."""

    a: object = None

    def basis(self, u, count):
        cells = np.minimum((np.abs(u) * 64).astype(int), 63)
        rows = [
            1.0 - 2.0 * np.array([bin(c & k).count("1") % 2 for c in cells])
            for k in range((count + 1) // 2)
        ]
        inside = (np.abs(u) <= 1) / np.sqrt(2)
        signs = [np.ones_like(u), np.sign(u)]
        return np.array([rows[m // 2] * inside * signs[m % 2] for m in range(count)])

    def is_odd(self, order):
        return order % 2 == 1

    def reach(self, count):
        return 1.0

    def breakpoints(self, count):
        return np.linspace(0, 1, 65)

    @property
    def dilation(self):
        return self.a

    def dilated(self, dilation):
        return type(self)(
            self.num_features, dilation, centre=self.centre, orders=self.orders, chosen=self.chosen
        )


class Half(PointFeatures):
    """Another: a quarter of the variance, by two cosines at a fixed frequency."""

    num_features: int = 2

    def phi(self, kernel, X):
        waves = jnp.stack([jnp.cos(2 * X[:, 0]), jnp.sin(2 * X[:, 0])], axis=1)
        return 0.5 * jnp.sqrt(kernel.variance) * waves


@pytest.fixture(scope="module")
def exact() -> GPRegressor:
    X, y, _ = make_data()
    return GPRegressor(RBF(1.0, 0.8), features="exact", noise_variance=NOISE, learn=False).fit(X, y)


NAMES = [name for name in FEATURE_NAMES if name not in ("auto", "exact", "random-fourier")]


@pytest.mark.parametrize("name", [*NAMES, "exact"])
def test_every_family_by_name_agrees_with_the_exact_process(name: str, exact: GPRegressor) -> None:
    X, y, _ = make_data()
    kernel = Matern32(1.0, 0.8) if name == "variational-fourier" else RBF(1.0, 0.8)
    if name == "variational-fourier":
        exact = GPRegressor(kernel, features="exact", noise_variance=NOISE, learn=False).fit(X, y)
    count = 121 if name in ("legendre", "box", "variational-fourier") else 61
    model = GPRegressor(
        kernel, features=name, num_features=count, noise_variance=NOISE, learn=False
    ).fit(X, y)
    new = np.linspace(0.1, 3.9, 40)[:, None]
    mean, std = model.predict(new, return_std=True)
    expected, expected_std = exact.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=0.1 * expected_std.min())
    np.testing.assert_allclose(std, expected_std, rtol=0.05)
    slack = 1e-3 + 2 * model.certificate_.wrap_error * len(X)
    if name != "harmonic":
        assert model.elbo_ <= exact.elbo_ + slack
        assert model.upper_bound_ >= exact.elbo_ - slack
    assert model.features_ is None or model.num_features_ <= count
    assert model.summary()


def test_exact_is_scikit_learns() -> None:
    X, y, _ = make_data(80)
    other = GaussianProcessRegressor(
        sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.7, "fixed"), alpha=NOISE, optimizer=None
    ).fit(X, y)
    model = GPRegressor(
        RBF(2.0, 0.7), features="exact", mean=None, noise_variance=NOISE, learn=False
    ).fit(X, y)
    new = np.linspace(-1, 5, 20)[:, None]
    mean, covariance = model.predict(new, return_cov=True)
    expected, expected_covariance = other.predict(new, return_cov=True)
    np.testing.assert_allclose(mean, expected, atol=1e-8)
    np.testing.assert_allclose(covariance, expected_covariance, atol=1e-8)
    assert model.elbo_ == pytest.approx(other.log_marginal_likelihood_value_, abs=1e-7)
    assert model.certificate_.gap == 0


@pytest.mark.parametrize(
    "features",
    [Trig(41), Hermite(41), InducingPoints(41)],
    ids=lambda features: type(features).__name__,
)
def test_families_learn_what_the_exact_process_learns(features) -> None:
    X, y, f = make_data()
    exact = GPRegressor("rbf", features="exact").fit(X, y)
    model = GPRegressor("rbf", features=features).fit(X, y)
    assert model.kernel_.lengthscale == pytest.approx(exact.kernel_.lengthscale, rel=0.02)
    assert model.noise_variance_ == pytest.approx(exact.noise_variance_, rel=0.02)
    assert model.elbo_ == pytest.approx(exact.elbo_, abs=0.3)
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.06


def test_trig_with_few_features_learns_better_than_the_lattice() -> None:
    # The lattice spends features on the period around the data; Trig does not.
    X, y, _ = make_data(1000)
    trig, lattice, exact = (
        GPRegressor("matern32", features=name, num_features=count).fit(X, y)
        for name, count in (("trig", 31), ("lattice", 31), ("exact", "auto"))
    )
    assert lattice.elbo_ < trig.elbo_ <= exact.elbo_ <= trig.upper_bound_
    errors = [
        abs(np.log(model.kernel_.lengthscale / exact.kernel_.lengthscale)).item()
        for model in (trig, lattice)
    ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("learn", [False, True])
def test_learned_dilation_has_no_worse_a_bound(learn: bool) -> None:
    X, y, _ = make_data(200)
    plain = GPRegressor("matern32", features=Trig(15)).fit(X, y)
    model = GPRegressor("matern32", features=Trig(15, learn=learn)).fit(X, y)
    assert model.tightened_bound_ >= plain.tightened_bound_ - 1e-6
    fixed = GPRegressor("matern32", features=Trig(15, a=3.0)).fit(X, y)
    assert fixed.tightened_bound_ < plain.tightened_bound_


@pytest.mark.slow
def test_inducing_points_move_when_asked() -> None:
    X, y, _ = make_data(200)
    still = GPRegressor("matern32", features=InducingPoints(8)).fit(X, y)
    moved = GPRegressor("matern32", features=InducingPoints(8, learn=True)).fit(X, y)
    assert moved.elbo_ > still.elbo_
    assert not np.allclose(np.sort(moved.features_.Z, axis=0), np.sort(still.features_.Z, axis=0))


@pytest.mark.parametrize(
    ("name", "num_dims"),
    [
        ("trig", 3),
        ("hermite", 2),
        ("harmonic", 2),
        ("inducing-points", 3),
        ("exact", 3),
    ],
)
def test_families_in_several_columns(name: str, num_dims: int) -> None:
    X, y, f = make_data(400, num_dims)
    count = {2: 121, 3: 216}[num_dims]
    model = GPRegressor(
        RBF(2.0, np.full(num_dims, 1.2)),
        features=name,
        num_features="auto" if name == "exact" else count,
        noise_variance=NOISE,
        learn=False,
    ).fit(X, y)
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.15


def test_two_blocks_improve_on_the_first() -> None:
    X, y, _ = make_data(200)
    settings = {"noise_variance": NOISE, "learn": False}
    kernel = Matern32(1.0, 0.5)
    first = GPRegressor(kernel, features=Trig(9), **settings).fit(X, y)
    both = GPRegressor(kernel, features=TwoBlock(Trig(9), InducingPoints(9)), **settings).fit(X, y)
    exact = GPRegressor(kernel, features="exact", **settings).fit(X, y)
    assert first.elbo_ + 1 < both.elbo_ < exact.elbo_


@pytest.mark.slow
def test_additive_kernels_take_a_family_for_each_component() -> None:
    X, y, f = make_data(400, 2)
    kernel = RBF(1.0, 0.8).on(0) + RBF(1.0, 0.8).on(1)
    model = GPRegressor(kernel, features=Trig(15)).fit(X, y)
    assert model.num_features_ == 30
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.06
    assert model.certificate_.mean_error < 0.1


def test_products_of_kernels_take_variational_fourier_features() -> None:
    X, y, f = make_data(300, 2)
    kernel = Matern32(2.0, 3.0).on(0) * Matern32(1.0, 3.0).on(1)
    settings = {"noise_variance": NOISE, "learn": False}
    model = GPRegressor(kernel, features=VariationalFourier(441), **settings).fit(X, y)
    exact = GPRegressor(kernel, features="exact", **settings).fit(X, y)
    assert model.elbo_ < exact.elbo_ < model.upper_bound_
    assert np.sqrt(np.mean((model.predict(X) - f) ** 2)) < 0.1


def test_a_new_family_and_a_new_kernel_work_without_registration() -> None:
    X, y, f = make_data(200)
    kernel = Sech(np.array(1.0), np.array(0.8))
    walsh = GPRegressor(kernel, features=Walsh(64)).fit(X, y)
    exact = GPRegressor(
        walsh.kernel_, features="exact", noise_variance=walsh.noise_variance_, learn=False
    ).fit(X, y)
    assert walsh.elbo_ <= exact.elbo_ + 1e-2 <= walsh.upper_bound_ + 2e-2
    assert np.sqrt(np.mean((walsh.predict(X) - f) ** 2)) < 0.1
    for features in (Trig(41), Box(41), RandomFourier(80), Harmonic(41), InducingPoints(30)):
        model = GPRegressor(kernel, features=features, noise_variance=NOISE, learn=False).fit(X, y)
        assert np.isfinite(model.predict(X[:5], return_std=True)).all()
    half = GPRegressor(RBF(1.0, 0.8), features=Half(), noise_variance=NOISE, learn=False)
    assert half.fit(X, y).elbo_ < exact.elbo_


@pytest.mark.slow
def test_families_on_the_lattice_take_more_rows_without_the_old() -> None:
    X, y, _ = make_data(300)
    settings = {"features": Trig(41), "noise_variance": NOISE, "learn": False}
    kernel = RBF(1.0, 0.8)
    domain = (np.min(X), np.max(X))
    at_once = GPRegressor(kernel, **settings, domain=domain).fit(X, y)
    in_parts = GPRegressor(kernel, **settings, domain=domain).fit(X[:200], y[:200])
    in_parts.partial_fit(X[200:], y[200:])
    np.testing.assert_allclose(in_parts.predict(X), at_once.predict(X), atol=1e-6)
    by_rows = GPRegressor(kernel, features="inducing-points", num_features=9).fit(X, y)
    with pytest.raises(OrthogpError, match="all rows at once"):
        by_rows.partial_fit(X, y)
    exact = GPRegressor(kernel, features="exact").fit(X, y)
    assert exact.partial_fit(X + 0.01, y).statistics_.rows == 600


def test_families_that_replace_the_prior_certify_nothing() -> None:
    X, y, _ = make_data(100)
    for features in (Harmonic(21), RandomFourier(40)):
        model = GPRegressor("rbf", features=features).fit(X, y)
        assert model.certificate_.replaces_prior
        assert not model.certificate_.holds
        assert "nothing is certified" in model.status_
    constrained = GPRegressor("rbf", features=Harmonic(21, constrained=True)).fit(X, y)
    assert not constrained.certificate_.replaces_prior
    _, covariance = constrained.predict(X[:9], return_cov=True)
    _, std = constrained.predict(X[:9], return_std=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": "fourier"}, "features must be one of"),
        ({"features": 3}, "features must be one of"),
        ({"features": "trig", "num_features": 0}, "num_features must be"),
        ({"features": Trig(9), "num_features": 10}, "give the number in one place"),
        ({"features": "variational-fourier", "kernel": "rbf"}, "use Trig"),
        ({"features": "eigenfunction"}, "use Hermite"),
        ({"features": Hermite(9, r=0.1), "kernel": RBF(1.0, 1.0)}, "2r² > ℓ².*larger r"),
        ({"features": VariationalFourier(9, lower=1.0, upper=2.0)}, "give a wider lower and upper"),
        ({"features": Trig(9, a=1e9)}, "narrower band"),
        ({"features": Trig(9, a=[1.0, 2.0])}, "one per column"),
        ({"features": Lattice(make_lattice(1, 5.0, 9), np.array([[0]]))}, 'features="lattice"'),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_families_get_one_sentence_with_the_remedy(arguments: dict, message: str) -> None:
    X, y, _ = make_data(50)
    with pytest.raises(OrthogpError, match=message) as caught:
        GPRegressor(**{"kernel": "matern32", **arguments}).fit(X, y)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("make", [Trig, Hermite, Box, Polynomial, RandomFourier, Harmonic])
def test_no_features_are_refused(make) -> None:
    with pytest.raises(FeatureError, match="num_features must be a whole number ≥ 1, got 0"):
        make(0)


def test_exact_refuses_many_rows() -> None:
    with pytest.raises(InputError, match="takes up to 5000 rows"):
        GPRegressor(features="exact").fit(np.arange(5001.0)[:, None], np.arange(5001.0))


def test_a_family_is_known_by_the_names_in_its_class() -> None:
    class Named(Trig):
        known_as = ("named-in-a-test",)

    assert type(resolve_features("named-in-a-test", 9, 1)) is Named
    assert type(resolve_features("trig", 9, 1)) is Trig
    del FAMILIES["named-in-a-test"]


@pytest.mark.parametrize("features", ["trig", "inducing-points"])
def test_the_tolerance_of_a_certificate_is_the_one_asked_for(features: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (400, 1))
    y = np.sin(9 * X[:, 0]) + 0.3 * rng.standard_normal(400)
    settings = {"features": features, "num_features": 21, "kernel": "rbf"}
    found = [GPRegressor(**settings, tolerance=t).fit(X, y).certificate_ for t in (1e-9, 0.5)]
    assert [one.tolerance for one in found] == [1e-9, 0.5]
    assert found[0].error == found[1].error > 1e-9
    assert [one.holds for one in found] == [False, True]
