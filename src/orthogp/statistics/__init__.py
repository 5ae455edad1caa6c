"""One pass over the data: sums on a frequency lattice."""

from orthogp.statistics.additive import AdditiveStatistics
from orthogp.statistics.fourier import FourierStatistics, RealSums
from orthogp.statistics.lattice import FrequencyLattice
from orthogp.statistics.pairs import ComponentLattice

__all__ = [
    "AdditiveStatistics",
    "ComponentLattice",
    "FourierStatistics",
    "FrequencyLattice",
    "RealSums",
]
