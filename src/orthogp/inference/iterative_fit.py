"""What a fit with very many features comes to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice, MeanPrior
from orthogp.inference.domain import Domain
from orthogp.inference.fit import Fit
from orthogp.inference.iterative import Evidence
from orthogp.inference.iterative_posterior import IterativePosterior
from orthogp.inference.lattice_choice import LatticeChoice
from orthogp.inference.lattice_model import Model, ModePosterior
from orthogp.inference.variance_field import VarianceField
from orthogp.statistics import FourierStatistics


@dataclass(frozen=True)
class IterativeFit(Fit):
    """A fitted model with as many features as its lattice has modes."""

    model: Model
    modes: ModePosterior
    variance: VarianceField
    mean: MeanPrior
    statistics: FourierStatistics
    choice: LatticeChoice
    evidence: Evidence

    @property
    def features(self) -> Lattice:
        """All modes of the lattice."""
        return Lattice(self.choice.lattice, self.choice.lattice.half_indices(), self.mean)

    @property
    def period(self) -> NDArray[np.float64]:
        """The period of the prior."""
        return self.choice.lattice.period

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.choice.num_modes

    def posterior(self, domain: Domain, num_threads: int) -> IterativePosterior:
        """Return the posterior over a domain."""
        return IterativePosterior(
            self.model, self.modes, self.variance, self.mean, domain, num_threads
        )
