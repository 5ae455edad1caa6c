"""Fitting point features with the rows alone at hand, in any number of columns.

An exact process on some hundreds of the rows gives the hyperparameters to start from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.exact.search import ExactSearch
from orthogp.features import Features
from orthogp.inference.moments import Source
from orthogp.inference.objective import FamilyObjective
from orthogp.inference.threads import one_thread
from orthogp.kernels import Kernel
from orthogp.learning.climbing import Summit
from orthogp.learning.families import FamilyFitter, Placement
from orthogp.learning.limits import names_at_limit, row_limits
from orthogp.learning.problem import Start


class RowFamilyFitter(FamilyFitter):
    """Fits a family from rows. The process is the kernel's on all columns, sums as a whole."""

    def _adapted(self, kernel: Kernel) -> Features:
        return self.family

    def _begin(self, starts: list[Start]) -> Start:
        """Return what part of the rows tell, or an earlier fit to most of them if it is better."""
        search = ExactSearch(self._require_rows(), self.mean, self.settings, self._threads)
        found = search.run(starts, few=True)
        self._num_evaluations += found.num_evaluations
        candidates = [found.best, *(start for start in starts if start.rows)]
        if len(candidates) == 1:
            return found.best
        objective = FamilyObjective(
            self._source(self._place(found.best.kernel), found.best.kernel), self._threads
        )
        values = []
        for candidate in candidates:
            try:
                values.append(objective.value(objective.vector(candidate)))
            except PrecisionError:
                values.append(-np.inf)
        return candidates[int(np.argmax(values))]

    def _place(self, kernel: Kernel, previous: Placement | None = None) -> Placement:
        with one_thread():
            placed = self.family.from_rows(kernel, self._require_rows().X)
        return Placement(placed, placed)

    def _names_at_limit(self, source: Source, summit: Summit) -> tuple[str, ...]:
        # The longest lengthscales mean that columns do not matter, which is nothing to warn of.
        lengths = np.repeat(
            [slot.name == "lengthscale" for slot in source.slots],
            [slot.size for slot in source.slots],
        )
        upper = summit.upper.copy()
        upper[: len(lengths)][lengths] = np.inf
        return names_at_limit(source.slots, summit.maximum.x, summit.lower, upper)

    def _learns(self, placement: Placement) -> bool:
        return placement.features.learns

    def _limits(
        self, source: Source, kernel: Kernel, noise_floor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return row_limits(kernel, source.slots, self._require_rows().X, noise_floor)
