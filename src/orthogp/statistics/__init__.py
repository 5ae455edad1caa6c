"""One pass over the data: sums on a frequency lattice."""

from orthogp.statistics.fourier import FourierStatistics, RealSums
from orthogp.statistics.lattice import FrequencyLattice
from orthogp.statistics.sums import AdditiveStatistics, ComponentLattice

__all__ = [
    "AdditiveStatistics",
    "ComponentLattice",
    "FourierStatistics",
    "FrequencyLattice",
    "RealSums",
]
