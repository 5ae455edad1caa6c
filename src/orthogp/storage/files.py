"""Files of whatever kind of model."""

from __future__ import annotations

import os
from typing import Any

from orthogp.storage.container import read_file
from orthogp.storage.models import model_from, write_model

#: What the header of a model's file may call it: the only classes that a file can name.
MODEL_KINDS = ("GPRegressor", "GPClassifier", "StochasticGPRegressor")


def save_model(path: str | os.PathLike[str], model: Any) -> None:
    """Write a fitted estimator to a file, whole or not at all; the same as `model.save(path)`."""
    write_model(path, model)


def load_model(path: str | os.PathLike[str]) -> Any:
    """Return the fitted estimator that a file holds, of whatever class."""
    import orthogp

    file = read_file(path, MODEL_KINDS)
    # Of the estimators only the one that is needed is imported.
    return model_from(path, file, getattr(orthogp, file.header.kind))
