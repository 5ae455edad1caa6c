"""Feature families: orthonormal inducing features."""

from orthogp.features.additive import Additive
from orthogp.features.base import Features, PointFeatures
from orthogp.features.box import Box
from orthogp.features.eigenfunction import Eigenfunction
from orthogp.features.harmonic import Harmonic
from orthogp.features.hermite import Hermite
from orthogp.features.inducing import InducingPoints
from orthogp.features.lattice import AdditiveLattice, Lattice, MeanPrior
from orthogp.features.names import EXACT, FEATURE_NAMES, resolve_features
from orthogp.features.polynomial import Polynomial
from orthogp.features.random import RandomFourier
from orthogp.features.series import MassSeries, SeriesFeatures
from orthogp.features.spectral import SpectralFeatures
from orthogp.features.trig import Trig
from orthogp.features.two_block import TwoBlock
from orthogp.features.vff import VariationalFourier

__all__ = [
    "EXACT",
    "FEATURE_NAMES",
    "Additive",
    "AdditiveLattice",
    "Box",
    "Eigenfunction",
    "Features",
    "Harmonic",
    "Hermite",
    "InducingPoints",
    "Lattice",
    "MassSeries",
    "MeanPrior",
    "PointFeatures",
    "Polynomial",
    "RandomFourier",
    "SeriesFeatures",
    "SpectralFeatures",
    "Trig",
    "TwoBlock",
    "VariationalFourier",
    "resolve_features",
]
