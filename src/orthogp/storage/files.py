"""Files of whatever kind of model."""

from __future__ import annotations

import os
from typing import Any

from orthogp.classifier import GPClassifier
from orthogp.regressor import GPRegressor
from orthogp.stochastic.regressor import StochasticGPRegressor
from orthogp.storage.container import read_file
from orthogp.storage.models import model_from, write_model

# The only classes that a file can name.
_ESTIMATORS: dict[str, type] = {
    "GPRegressor": GPRegressor,
    "GPClassifier": GPClassifier,
    "StochasticGPRegressor": StochasticGPRegressor,
}
#: What the header of a model's file may call it.
MODEL_KINDS = frozenset(_ESTIMATORS)


def save_model(path: str | os.PathLike[str], model: Any) -> None:
    """Write a fitted estimator to a file, whole or not at all; the same as `model.save(path)`."""
    write_model(path, model)


def load_model(path: str | os.PathLike[str]) -> Any:
    """Return the fitted estimator that a file holds, of whatever class."""
    file = read_file(path, tuple(_ESTIMATORS))
    return model_from(path, file, _ESTIMATORS[file.header.kind])
