"""Gaussian processes on large data.

::

    from orthogp import GPRegressor
    model = GPRegressor(kernel="matern32").fit(X, y)          # more than 3 columns add up
    mean, std = model.predict(X_new, return_std=True)
    print(model.summary())
    model.partial_fit(X_more, y_more)                         # the old rows are not needed
"""

from orthogp.classifier import GPClassifier
from orthogp.errors import (
    FeatureError,
    FitWarning,
    InputError,
    KernelError,
    LatticeMismatchError,
    OrthogpError,
    OutOfDomainWarning,
    PrecisionError,
)
from orthogp.estimators import GPRegressor
from orthogp.inference.stochastic_fit import TrainingSettings
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.stochastic import StochasticGPRegressor

__version__ = "0.1.0"

__all__ = [
    "FeatureError",
    "FitWarning",
    "FourierStatistics",
    "FrequencyLattice",
    "GPClassifier",
    "GPRegressor",
    "InputError",
    "KernelError",
    "LatticeMismatchError",
    "OrthogpError",
    "OutOfDomainWarning",
    "PrecisionError",
    "StochasticGPRegressor",
    "TrainingSettings",
]
