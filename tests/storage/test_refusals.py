"""What is refused, when saving or loading a model, and with which words."""

import tracemalloc

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from orthogp import FileError, FourierStatistics, FrequencyLattice, GPClassifier, GPRegressor
from orthogp.features import Trig
from orthogp.kernels import RBF, SpectralKernel
from orthogp.storage import models
from orthogp.storage.container import write_file
from tests.storage import small_models
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
    with pytest.raises(FileError, match="random_state is a RandomState"):
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
    content = {"fit": regressor_content(model, sums, lattice.half_indices())}
    content |= {"settings": {"kernel": "rbf"}, "num_columns": 1}
    write_file(tmp_path / "m.orthogp", "GPRegressor", content)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="must be stored for more than 4000 features"):
            GPRegressor.load(tmp_path / "m.orthogp")
        assert tracemalloc.get_traced_memory()[1] < 1e8
    finally:
        tracemalloc.stop()


def regressor_content(model, sums, indices):
    """What a file holds of a model, with other sums, and features at all of their indices."""
    content = models._regressor_content(model)
    content["sketch"]["statistics"] = sums.to_content()
    features = content["posterior"]["features"]
    features |= {"lattice": content["sketch"]["statistics"]["lattice"], "indices": indices}
    return content
