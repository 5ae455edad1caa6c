"""Feature families: orthonormal inducing features."""

from orthogp.features.base import Features
from orthogp.features.lattice import Lattice, MeanPrior

__all__ = ["Features", "Lattice", "MeanPrior"]
