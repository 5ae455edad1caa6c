"""One pass over the data: sums on a frequency lattice."""

from orthogp.statistics.lattice import ComponentLattice, FrequencyLattice
from orthogp.statistics.sums import (
    AdditiveStatistics,
    FourierStatistics,
    RealSums,
    Statistics,
)

__all__ = [
    "AdditiveStatistics",
    "ComponentLattice",
    "FourierStatistics",
    "FrequencyLattice",
    "RealSums",
    "Statistics",
]
