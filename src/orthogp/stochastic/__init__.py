"""Inference from random mini-batches of rows: the paper's section 3.3, and its relatives."""

from orthogp.stochastic.baselines import (
    MeanField,
    SparseVariational,
    SubsampledBound,
    svgp_objective,
)
from orthogp.stochastic.bound import StochasticFit, StochasticModel, train_stochastic
from orthogp.stochastic.training import TrainingSettings

__all__ = [
    "MeanField",
    "SparseVariational",
    "StochasticFit",
    "StochasticModel",
    "SubsampledBound",
    "TrainingSettings",
    "svgp_objective",
    "train_stochastic",
]
