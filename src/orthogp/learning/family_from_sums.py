"""Fitting any family with sums on a lattice at hand, in up to three columns.

The lattice features' fit, which costs little, gives the hyperparameters to start from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features import Features, MeanPrior
from orthogp.features.additive import for_kernel
from orthogp.features.series import SeriesFeatures
from orthogp.inference.sources import Source
from orthogp.inference.threads import BlasThreads, one_thread
from orthogp.kernels import Kernel
from orthogp.learning.climbing import lattice_start
from orthogp.learning.families import FamilyFitter, Placement
from orthogp.learning.limits import parameter_limits
from orthogp.learning.problem import FitSettings, Start
from orthogp.learning.wrapping import choose_decimation
from orthogp.rows import Domain, Rows
from orthogp.statistics import FourierStatistics

_HEADROOM = 1.1
# A quadrature error beyond which a finer lattice is used, if the statistics have one.
_ROUGH = 0.05


class SumFamilyFitter(FamilyFitter):
    """Fits a family from statistics, and from the rows where these do not suffice."""

    def __init__(
        self,
        family: Features,
        statistics: FourierStatistics,
        rows: Rows | None,
        extent: Domain,
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads | None = None,
    ) -> None:
        super().__init__(family, rows, extent, mean, settings, threads)
        self.statistics = statistics
        # How often the lattice was made finer than the prior's period asks, for the quadrature.
        self._halvings = 0

    def _adapted(self, kernel: Kernel) -> Features:
        return for_kernel(self.family, kernel, len(self.width))

    def _begin(self, starts: list[Start]) -> Start:
        best, self._curvature = lattice_start(
            starts, self.statistics, self.width, self.mean, self.settings, self._threads
        )
        return best

    def _place(self, kernel: Kernel, previous: Placement | None = None) -> Placement:
        """Return the family placed for a kernel, on the coarsest lattice that suits it."""
        family = self._adapted(kernel)
        place = family.placed if previous is None else previous.family.adjusted
        lower, upper = self.extent
        lattice = self.statistics.lattice
        period = family.wanted_period(kernel, self.width)
        if period is None:
            factors = choose_decimation(
                kernel, lattice, self.width, self.settings.wrap_tolerance, _HEADROOM
            )
        else:
            factors = np.maximum((lattice.period / period + 1e-9).astype(np.int64), 1)
        factors = np.maximum(factors // 2**self._halvings, 1)
        while True:
            coarse = lattice.decimate(factors)
            try:
                with one_thread():
                    placed = place(kernel, lower, upper, coarse)
                    series = placed.on(coarse)
                    if previous is not None or np.all(factors == 1):
                        break
                    if self._quadrature_error(placed, coarse, kernel) <= _ROUGH:
                        break
            except FeatureError:
                if np.all(factors == 1):
                    raise
                place = family.placed
            self._halvings += 1
            factors = np.maximum(factors // 2, 1)
        if series is not None:
            return Placement(placed, series, self.statistics.decimate(factors))
        placed = family.from_rows(kernel, self._require_rows().X)
        return Placement(placed, placed, self.statistics)

    def _limits(
        self, source: Source, kernel: Kernel, noise_floor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        lattice = self.statistics.lattice
        if isinstance(source.features, SeriesFeatures) and source.features.wrapped:
            lattice = source.features.lattice
        tolerance = self.settings.wrap_tolerance
        return parameter_limits(kernel, source.slots, lattice, self.width, tolerance, noise_floor)
