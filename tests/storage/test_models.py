"""Every kind of model, saved and loaded: what it says afterwards is what it said before."""

import json
import warnings

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from orthogp import (
    GPClassifier,
    GPRegressor,
    InputError,
    StochasticGPRegressor,
    TrainingSettings,
)
from orthogp.features import Harmonic, Polynomial, Trig, VariationalFourier
from orthogp.kernels import (
    RBF,
    Matern,
    Matern32,
    QuasiPeriodic,
    RationalQuadratic,
    SpectralMixture,
)
from orthogp.kernels import additive as additive_kernel
from orthogp.storage import load_model, posteriors, read_header, save
from tests.storage import small_models
from tests.storage.small_models import POINTS, rows, small_lattices

REGRESSORS = ["regressor", "additive", "families", "points", "exact", "neighbours", "iterative"]


@pytest.fixture(scope="module")
def made():
    cache = {}

    def make(name):
        if name not in cache:
            cache[name] = getattr(small_models, name)()
        return cache[name]

    return make


def answers(model, X):
    """All that a regressor offers, or the sentence with which it declines."""

    def ask(question):
        try:
            return question()
        except InputError as error:
            return str(error)

    lower, upper = X[:, model.columns_] - 0.05, X[:, model.columns_] + 0.05
    return {
        "std": ask(lambda: model.predict(X, return_std=True)),
        "cov": ask(lambda: model.predict(X, return_cov=True)),
        "draws": ask(lambda: model.sample_y(X, 3, random_state=1)),
        "derivative": ask(lambda: model.predict_derivative(X, 0)),
        "integral": ask(lambda: model.predict_integral(lower, upper)),
        "components": ask(lambda: [own.share for own in model.components()]),
        "summary": model.summary(),
        "numbers": [model.elbo_, model.upper_bound_, model.noise_variance_, model.num_features_],
        "certificate": list(model.certificate_),
    }


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        if isinstance(first[name], str):
            assert first[name] == second[name]
        else:
            for one, other in zip(first[name], second[name], strict=True):
                np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_loaded_regressor_answers_bit_for_bit_as_before(made, name, tmp_path):
    model = made(name)
    X = np.repeat(POINTS, model.n_features_in_, axis=1)
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    assert_same(answers(model, X), answers(loaded, X))
    assert repr(loaded) == repr(model)
    assert repr(loaded.kernel_) == repr(model.kernel_)


@pytest.mark.parametrize("name", ["regressor", "additive", "families", "iterative"])
def test_a_loaded_regressor_goes_on_learning_as_before(name, tmp_path):
    model = getattr(small_models, name)()
    X, y = rows(model.n_features_in_, 40)
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    before = loaded.predict(X)
    for own in (model, loaded):
        own.partial_fit(X * 0.9, y + 0.3)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert np.abs(loaded.predict(X) - before).max() > 1e-3


@pytest.mark.parametrize(
    ("kernel", "features"),
    [
        (RBF(), "hermite"),
        (RBF(), "eigenfunction"),
        (RBF(), "box"),
        (RBF(), "legendre"),
        (RBF(), Polynomial(9, "gegenbauer", alpha=1.0)),
        (Matern32(), "variational-fourier"),
        (Matern32(), VariationalFourier(9, -3.0, 9.0)),
        (Matern32(), "harmonic"),
        (Matern32(), Harmonic(9, constrained=True)),
        (Matern32(), "random-fourier"),
        (Matern32(), "inducing-points"),
        (SpectralMixture([1.0, 0.5], [[1.0], [2.0]], [[2.0], [3.0]]), "lattice"),
        (QuasiPeriodic(1.0, 3.0, 2.0), "trig"),
        (Matern(1.2), "auto"),
        (RationalQuadratic(lengthscale=[0.5]), "auto"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_family_and_kernel_comes_back(kernel, features, tmp_path):
    X, y = rows()
    number = 9 if isinstance(features, str) else "auto"
    with small_lattices(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(
            kernel, features=features, num_features=number, learn=False, n_jobs=1
        ).fit(X, y)
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    for one, other in zip(
        model.predict(POINTS, return_std=True), loaded.predict(POINTS, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert model.summary() == loaded.summary()
    assert type(model.features_) is type(loaded.features_)


@pytest.mark.parametrize(
    "features",
    ["trig", "harmonic", pytest.param("variational-fourier", marks=pytest.mark.slow)],
)
def test_families_of_additive_kernels_come_back(features, tmp_path):
    X, y = rows(2)
    kernel = Matern32().on(0) + Matern32(0.5, 2.0).fix("variance").on(1)
    with small_lattices(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(kernel, features=features, num_features=7, learn=False).fit(X, y)
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_terms_of_all_kinds_come_back(tmp_path):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 6, 80), rng.integers(0, 3, 80), rng.uniform(0, 24, 80)])
    y = np.sin(X[:, 0]) + X[:, 1]
    kernel = additive_kernel("matern32", 3, categorical={1: 3}, periodic={2: 24.0}, joint=[(0, 2)])
    with small_lattices():
        settings = {"mean": "linear", "max_features": 25, "learn": False, "noise_variance": 0.1}
        model = GPRegressor(kernel, **settings).fit(X, np.column_stack([y, -y]))
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    for one, other in zip(
        model.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert model.summary() == loaded.summary()
    assert loaded.kernel.terms[0].kernel.parameters().keys() == {"variance", "lengthscale"}


@pytest.mark.parametrize(
    "inference",
    ["variational", "polya-gamma", pytest.param("minibatch", marks=pytest.mark.slow)],
)
def test_a_loaded_classifier_answers_as_before(inference, tmp_path):
    X, y = rows()
    training = TrainingSettings(max_steps=20, block=10) if inference == "minibatch" else None
    with small_lattices():
        model = GPClassifier(
            RBF(4.0, 1.0), inference=inference, learn=False, max_features=17, training=training
        ).fit(X, y > 0)
    model.save(tmp_path / "m.orthogp")
    loaded = GPClassifier.load(tmp_path / "m.orthogp")
    np.testing.assert_array_equal(loaded.predict_proba(POINTS), model.predict_proba(POINTS))
    np.testing.assert_array_equal(loaded.predict(POINTS), model.predict(POINTS))
    assert loaded.summary() == model.summary()
    assert loaded.training == training


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["a", "bé", "c"]),
        np.array(["a", "b", "c"], dtype=object),
        np.array([3, 5, 2**40]),
        np.array([0, 1, 2], dtype=np.uint8),
        np.array([0.0, 1.0, 2.0], dtype=np.float32),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_keep_their_type(labels, tmp_path):
    X, y = rows(1, 60)
    with small_lattices():
        model = GPClassifier(RBF(4.0, 1.0), learn=False, max_features=9)
        model.fit(X, labels[np.digitize(y, [-0.5, 0.5])])
    model.save(tmp_path / "m.orthogp")
    loaded = GPClassifier.load(tmp_path / "m.orthogp")
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(POINTS), model.predict(POINTS))
    assert len(loaded.posterior_) == 3


@pytest.mark.slow
def test_a_stochastic_regressor_comes_back(tmp_path):
    X, y = rows()
    model = StochasticGPRegressor(
        RBF(), features=Trig(9), max_steps=20, learn=False, batch_size=None
    ).fit(X, y)
    model.save(tmp_path / "m.orthogp")
    loaded = load_model(tmp_path / "m.orthogp")
    for one, other in zip(
        model.predict(POINTS, return_std=True), loaded.predict(POINTS, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert loaded.history_ == model.history_
    assert (loaded.elbo_, loaded.status_) == (model.elbo_, model.status_)


# ---------------------------------------------------------------------- what goes with a model


def test_names_of_columns_and_notes_come_back(made, tmp_path):
    model = made("regressor")
    model.feature_names_in_ = np.array(["depth [m]"], dtype=object)
    model.about_ = {"source": "café\udcff.csv", "units": {"depth [m]": "m"}, "rows": [1, 2.5, None]}
    try:
        save(tmp_path / "m.orthogp", model)
    finally:
        notes = model.about_
        del model.feature_names_in_, model.about_
    loaded = load_model(tmp_path / "m.orthogp")
    assert loaded.about_ == notes == read_header(tmp_path / "m.orthogp").about
    assert loaded.feature_names_in_.tolist() == ["depth [m]"]
    assert read_header(tmp_path / "m.orthogp").kind == "GPRegressor"


def test_diagnostics_come_back(made, tmp_path):
    diagnostics = pytest.importorskip("orthogp.report")
    model = made("regressor")
    X, y = rows()
    model.diagnostics_ = diagnostics.diagnose(model, X, y)
    try:
        model.save(tmp_path / "m.orthogp")
    finally:
        found = model.diagnostics_.to_state()
        del model.diagnostics_
    again = GPRegressor.load(tmp_path / "m.orthogp").diagnostics_.to_state()
    assert again.keys() == found.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(again[name], value)


def test_scikit_learn_kernels_come_back_as_what_they_stand_for(tmp_path):
    X, y = rows()
    with small_lattices():
        model = GPRegressor(sk.RBF(1.0) + sk.WhiteKernel(0.02), max_features=17, learn=False)
        model.fit(X, y)
    model.save(tmp_path / "m.orthogp")
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    assert loaded.noise_variance.value == 0.02
    np.testing.assert_array_equal(loaded.predict(POINTS), model.predict(POINTS))
    for own in (model, loaded):
        own.partial_fit(X, y)
    np.testing.assert_array_equal(loaded.predict(POINTS), model.predict(POINTS))


def test_files_do_not_grow_with_the_rows(tmp_path):
    sizes = []
    for num_rows in (100, 4000):
        X, y = rows(1, num_rows)
        with small_lattices():
            settings = {"learn": False, "num_features": 33, "noise_variance": 0.1}
            model = GPRegressor(RBF(1.0, 1.0), **settings).fit(X, y)
        model.save(tmp_path / "m.orthogp")
        sizes.append((tmp_path / "m.orthogp").stat().st_size)
    # But for the digits of numbers in the header.
    assert abs(sizes[1] - sizes[0]) < 200


def test_subclasses_save_and_load_as_themselves(tmp_path):
    class Mine(GPRegressor):
        pass

    X, y = rows()
    with small_lattices():
        model = Mine(RBF(), learn=False, max_features=9).fit(X, y)
    model.save(tmp_path / "m.orthogp")
    assert type(Mine.load(tmp_path / "m.orthogp")) is Mine
    assert type(load_model(tmp_path / "m.orthogp")) is GPRegressor


def test_a_file_holds_texts_and_numbers_that_others_can_read(made, tmp_path):
    from safetensors.numpy import load_file

    made("families").save(tmp_path / "m.orthogp")
    arrays = load_file(tmp_path / "m.orthogp")
    data = (tmp_path / "m.orthogp").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert {name: list(array.shape) for name, array in arrays.items()} == {
        name: entry["shape"] for name, entry in header.items() if name != "__metadata__"
    }
    assert header["__metadata__"]["format"] == "orthogp"


def test_many_features_keep_their_factor(monkeypatch, tmp_path):
    monkeypatch.setattr(posteriors, "MOST_COMPUTED", 20)
    model = small_models.regressor()
    model.save(tmp_path / "m.orthogp")
    assert read_header(tmp_path / "m.orthogp").shapes["fit/posterior/factor"] == (33 * 34 // 2,)
    loaded = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_array_equal(
        loaded.predict(POINTS, return_std=True), model.predict(POINTS, return_std=True)
    )
