"""What is refused, when saving or loading a model, and with which words."""

import tracemalloc

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from orthogp import FileError, FourierStatistics, FrequencyLattice, GPClassifier, GPRegressor
from orthogp.features import Trig
from orthogp.kernels import RBF, SpectralKernel
from orthogp.statistics.nufft import available_threads
from orthogp.storage.codec import encode
from orthogp.storage.container import write_file
from orthogp.storage.models import KeptClassifier, KeptRegressor
from tests.storage import small_models
from tests.storage.resealed import put_together, take_apart
from tests.storage.small_models import rows, small_lattices


@pytest.fixture
def model():
    return small_models.regressor()


def test_kernels_and_features_of_ones_own_are_refused_when_saving(model, tmp_path):
    class MyKernel(RBF):
        pass

    class MyFeatures(Trig):
        pass

    X, y = rows()
    for settings in ({"kernel": MyKernel()}, {"kernel": RBF(), "features": MyFeatures(5)}):
        with small_lattices():
            own = GPRegressor(**settings, learn=False, max_features=9).fit(X, y)
        with pytest.raises(FileError, match=r"holds no code, so it cannot hold .* class My"):
            own.save(tmp_path / "m.orthogp")
    model.kernel = SpectralKernel(lambda u: 0.5 * np.e ** -abs(u[0]))
    with pytest.raises(FileError, match="class SpectralKernel"):
        model.save(tmp_path / "m.orthogp")
    assert not list(tmp_path.iterdir())


def test_settings_that_are_code_are_refused_when_saving(model, tmp_path):
    model.random_state = np.random.RandomState(0)
    with pytest.raises(FileError, match="hold random_state, of the class RandomState"):
        model.save(tmp_path / "m.orthogp")


def test_notes_that_json_cannot_hold_are_refused(model, tmp_path):
    for notes in ({"x": np.nan}, {"x": object()}, {1: "a"}, {"x": np.zeros(2)}):
        model.about_ = notes
        with pytest.raises(FileError, match="notes about itself must be texts"):
            model.save(tmp_path / "m.orthogp")


def test_models_that_are_not_fitted_are_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        GPRegressor().save(tmp_path / "m.orthogp")


def test_another_kind_of_model_is_named(model, tmp_path):
    model.save(tmp_path / "m.orthogp")
    with pytest.raises(FileError, match="holds a GPRegressor, but a GPClassifier is wanted"):
        GPClassifier.load(tmp_path / "m.orthogp")


def test_a_small_file_cannot_ask_for_the_matrices_of_many_features(model, tmp_path):
    """Without its factor a posterior is computed from the sums, for so many features only."""
    lattice = FrequencyLattice([0.5], 2500, 3.0)
    X, y = rows()
    sums = FourierStatistics.from_data(lattice, X, y)
    content = {"fit": fit_content(model), "settings": {"kernel": "rbf"}, "num_columns": 1}
    content["fit"]["sketch"]["statistics"] = encode(sums)
    features = content["fit"]["posterior"]["features"]
    features |= {"lattice": encode(lattice), "indices": lattice.half_indices()}
    write_file(tmp_path / "m.orthogp", "GPRegressor", content)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="must be stored for more than 4000 features"):
            GPRegressor.load(tmp_path / "m.orthogp")
        assert tracemalloc.get_traced_memory()[1] < 1e8
    finally:
        tracemalloc.stop()


def fit_content(model):
    """What a file holds of what a model has learned."""
    kept = KeptClassifier if isinstance(model, GPClassifier) else KeptRegressor
    return encode(kept.of(model))


def test_an_empty_array_with_a_shape_beyond_numbers_is_damage(model, tmp_path):
    path = tmp_path / "m.orthogp"
    model.save(path)
    parts = take_apart(path.read_bytes())
    name, entry = next((k, v) for k, v in parts.header.items() if k != "__metadata__")
    parts.header[name] = entry | {"shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}
    path.write_bytes(put_together(parts))
    with pytest.raises(FileError, match="has a shape that does not fit its bytes"):
        GPRegressor.load(path)


def test_a_file_cannot_ask_for_more_threads_than_there_are_cores(model, tmp_path):
    """Native code takes memory for each thread, and ends the process where it cannot start one."""
    path = tmp_path / "m.orthogp"
    model.save(path)
    parts = take_apart(path.read_bytes())
    parts.content["settings"]["n_jobs"] = 100_000
    path.write_bytes(put_together(parts))
    loaded = GPRegressor.load(path)
    assert loaded.n_jobs == 100_000
    np.testing.assert_allclose(
        loaded.predict(small_models.POINTS), model.predict(small_models.POINTS), rtol=1e-12
    )


def few_rows(fit):
    sketch = fit["sketch"]
    sketch |= {name: sketch[name][:1] for name in ("X", "y", "weights")}


def no_weight(fit):
    fit["sketch"]["weights"] = np.zeros(len(fit["sketch"]["weights"]))


def another_length(fit):
    fit["sketch"]["y"] = fit["sketch"]["y"][:-1]


def another_engine(fit):
    fit["engine"] = "dense"


def an_engine_unheard_of(fit):
    fit["trials"][0]["engine"] = "quantum"


def no_neighbours(fit):
    fit["posterior"]["num_neighbours"] = 0


def sums_in_place_of_rows(fit):
    fit["sketch"] = fit_content(small_models.regressor())["sketch"]
    fit["columns"] = [0]
    fit["domain"] = {"lower": [0.0], "upper": [6.0]}
    fit["posterior"]["kernel"]["lengthscale"] = [1.0]


REFUSED_ROWS = [
    ("exact", few_rows, "at least two rows of positive weight"),
    ("exact", no_weight, "at least two rows of positive weight"),
    ("exact", another_length, "sketch.y"),
    ("exact", another_engine, "must be exact"),
    ("exact", an_engine_unheard_of, "engine"),
    ("neighbours", few_rows, "at least two rows of positive weight"),
    ("neighbours", another_engine, "must be neighbours"),
    ("neighbours", no_neighbours, "num_neighbours"),
    ("neighbours", sums_in_place_of_rows, "needs the rows"),
]


@pytest.mark.parametrize(("kind", "change", "said"), REFUSED_ROWS)
def test_models_that_keep_their_rows_are_checked(kind, change, said, tmp_path):
    own = getattr(small_models, kind)()
    content = {"fit": fit_content(own), "settings": {"kernel": "rbf"}}
    content["num_columns"] = own.n_features_in_
    write_file(tmp_path / "m.orthogp", "GPRegressor", content)
    GPRegressor.load(tmp_path / "m.orthogp")
    change(content["fit"])
    write_file(tmp_path / "m.orthogp", "GPRegressor", content)
    with pytest.raises(FileError, match=said):
        GPRegressor.load(tmp_path / "m.orthogp")


def test_threads_are_counted_as_elsewhere_in_python():
    cores = available_threads()
    assert available_threads(1) == 1
    assert available_threads(10**9) == available_threads(-1) == cores
    assert available_threads(-cores) == available_threads(-(10**9)) == available_threads(0) == 1


def test_threads_are_no_more_than_the_environment_allows(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert available_threads() == available_threads(8) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert available_threads() >= 1


@pytest.fixture(scope="module")
def additive_classifier() -> GPClassifier:
    return small_models.additive_classifier()


def without_extent(fit, posterior):
    del fit["extent"]


def one_average_less(fit, posterior):
    posterior["averages"].pop()


def short_averages(fit, posterior):
    posterior["averages"][0] = posterior["averages"][0][:-1]


def negative_shares(fit, posterior):
    posterior["shares"] = -posterior["shares"]


def no_shares(fit, posterior):
    del posterior["shares"]


def other_columns(fit, posterior):
    posterior["features"]["columns"] = [[1], [0]]


def no_factor(fit, posterior):
    del posterior["factor"]


def slopes_of_three(fit, posterior):
    posterior["features"]["mean"] |= {
        "slope_variance": 1.0,
        "origin": [0.0] * 3,
        "width": [1.0] * 3,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_extent, "fit/extent is missing"),
        (one_average_less, "averages must be a list of 2 arrays"),
        (short_averages, "averages/0 must have shape"),
        (negative_shares, "shares must not be negative"),
        (no_shares, "shares is missing"),
        (other_columns, "must be on the columns of the kernel's terms"),
        (no_factor, "factor is missing"),
        (slopes_of_three, "must have slopes for 2 columns, or none"),
    ],
)
def test_an_additive_classifier_needs_all_of_its_parts(
    additive_classifier, tmp_path, change, message
):
    fit = fit_content(additive_classifier)
    change(fit, fit["posteriors"][0])
    content = {"fit": fit, "settings": {"kernel": "rbf"}, "num_columns": 2}
    write_file(tmp_path / "m.orthogp", "GPClassifier", content)
    with pytest.raises(FileError, match=message) as caught:
        GPClassifier.load(tmp_path / "m.orthogp")
    assert "\n" not in str(caught.value)
