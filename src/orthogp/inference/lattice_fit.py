"""A fitted model with lattice features, from the dense solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice
from orthogp.inference.domain import Domain
from orthogp.inference.fit import Fit
from orthogp.inference.moments import Moments
from orthogp.inference.posterior import Posterior


@dataclass(frozen=True)
class LatticeFit(Fit):
    """A fitted model with lattice features."""

    features: Lattice
    moments: Moments

    @property
    def period(self) -> NDArray[np.float64]:
        """The period of the prior."""
        return self.features.lattice.period

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.features.num_features

    def posterior(self, domain: Domain, num_threads: int) -> Posterior:
        """Return the posterior over a domain."""
        return Posterior(
            self.features, self.kernel, self.noise_variance, self.moments, domain, num_threads
        )
