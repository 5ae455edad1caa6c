"""Feature families: orthonormal inducing features.

A line here makes a family public, lets files hold it, and makes its `known_as` names of it.
"""

from orthogp.features.bands import Box as Box
from orthogp.features.bands import Polynomial as Polynomial
from orthogp.features.bands import Trig as Trig
from orthogp.features.base import EXACT as EXACT
from orthogp.features.base import Features as Features
from orthogp.features.base import PointFeatures as PointFeatures
from orthogp.features.base import feature_names as feature_names
from orthogp.features.base import resolve_features as resolve_features
from orthogp.features.base import takes_any_columns as takes_any_columns
from orthogp.features.harmonic import Harmonic as Harmonic
from orthogp.features.hermite import Eigenfunction as Eigenfunction
from orthogp.features.hermite import Hermite as Hermite
from orthogp.features.inducing import InducingPoints as InducingPoints
from orthogp.features.inducing import TwoBlock as TwoBlock
from orthogp.features.random import RandomFourier as RandomFourier
from orthogp.features.series import Additive as Additive
from orthogp.features.series import AdditiveLattice as AdditiveLattice
from orthogp.features.series import Lattice as Lattice
from orthogp.features.series import MassSeries as MassSeries
from orthogp.features.series import MeanPrior as MeanPrior
from orthogp.features.series import SeriesFeatures as SeriesFeatures
from orthogp.features.spectral import SpectralFeatures as SpectralFeatures
from orthogp.features.vff import VariationalFourier as VariationalFourier

FEATURE_NAMES = feature_names()
