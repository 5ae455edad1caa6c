"""One pass over the data: sums on a frequency lattice."""

from orthogp.statistics.fourier import FourierStatistics, RealSums
from orthogp.statistics.lattice import FrequencyLattice

__all__ = ["FourierStatistics", "FrequencyLattice", "RealSums"]
