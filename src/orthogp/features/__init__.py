"""Feature families: orthonormal inducing features."""

from orthogp.features.base import Features
from orthogp.features.additive import Additive
from orthogp.features.lattice import Lattice, MeanPrior
from orthogp.features.trig import Trig

__all__ = ["Features", "Lattice", "MeanPrior"]
