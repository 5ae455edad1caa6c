"""Gaussian processes on large data.

::

    from orthogp import GPRegressor
    model = GPRegressor(kernel="matern32").fit(X, y)          # more than 3 columns add up
    mean, std = model.predict(X_new, return_std=True)
    print(model.summary())
    model.partial_fit(X_more, y_more)                         # the old rows are not needed
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.crossvalidation import CrossValidation, cross_validate
    from orthogp.errors import (
        FeatureError,
        FileError,
        FitWarning,
        InputError,
        KernelError,
        LatticeMismatchError,
        OrthogpError,
        OutOfDomainWarning,
        PrecisionError,
    )
    from orthogp.gaps import DriftRegressor, GapTuning, RowGaps, mirrored_gaps, tune_for_gaps
    from orthogp.likelihoods.intensity import GPIntensity
    from orthogp.maps.formats import map_table, write_map
    from orthogp.precision import keep_compiled
    from orthogp.regressor import GPRegressor
    from orthogp.statistics import FourierStatistics, FrequencyLattice
    from orthogp.stochastic.minibatch import StochasticGPRegressor
    from orthogp.stochastic.training import TrainingSettings

__version__ = "0.1.0"

__all__ = [
    "CrossValidation",
    "DriftRegressor",
    "FeatureError",
    "FileError",
    "FitWarning",
    "FourierStatistics",
    "FrequencyLattice",
    "GPClassifier",
    "GPIntensity",
    "GPRegressor",
    "GapTuning",
    "InputError",
    "KernelError",
    "LatticeMismatchError",
    "OrthogpError",
    "OutOfDomainWarning",
    "PrecisionError",
    "RowGaps",
    "StochasticGPRegressor",
    "TrainingSettings",
    "cross_validate",
    "keep_compiled",
    "map_table",
    "mirrored_gaps",
    "tune_for_gaps",
    "write_map",
]

# Loaded when first asked for: `orthogp --help` should not wait for a compiler.
_HOMES = {
    "CrossValidation": "crossvalidation",
    "cross_validate": "crossvalidation",
    "DriftRegressor": "gaps",
    "FourierStatistics": "statistics",
    "FrequencyLattice": "statistics",
    "GPClassifier": "classifier",
    "GPIntensity": "likelihoods.intensity",
    "GPRegressor": "regressor",
    "GapTuning": "gaps",
    "RowGaps": "gaps",
    "StochasticGPRegressor": "stochastic.minibatch",
    "TrainingSettings": "stochastic.training",
    "keep_compiled": "precision",
    "map_table": "maps.formats",
    "mirrored_gaps": "gaps",
    "tune_for_gaps": "gaps",
    "write_map": "maps.formats",
}
_PACKAGES = frozenset({"errors", "features", "inference", "kernels", "statistics", "stochastic"})


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"orthogp.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'orthogp' has no attribute {name!r}")
    value = getattr(import_module(f"orthogp.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
