"""Feature families: orthonormal inducing features."""

from orthogp.features.additive import Additive
from orthogp.features.base import Features, PointFeatures
from orthogp.features.lattice import Lattice, MeanPrior
from orthogp.features.names import EXACT, FEATURE_NAMES, resolve_features
from orthogp.features.series import MassSeries, SeriesFeatures
from orthogp.features.spectral import SpectralFeatures
from orthogp.features.trig import Trig

__all__ = [
    "EXACT",
    "FEATURE_NAMES",
    "Additive",
    "Features",
    "Lattice",
    "MassSeries",
    "MeanPrior",
    "PointFeatures",
    "SeriesFeatures",
    "SpectralFeatures",
    "Trig",
    "resolve_features",
]
