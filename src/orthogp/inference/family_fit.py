"""What the fit of a family takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Features, MeanPrior
from orthogp.features.series import SeriesFeatures
from orthogp.inference.domain import Domain
from orthogp.inference.family_posterior import FamilyPosterior
from orthogp.inference.fit import Fit
from orthogp.inference.moments import Moments


@dataclass(frozen=True)
class FamilyRows:
    """The rows, for families that need them: X, standardised targets, and weights."""

    X: NDArray
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None


@dataclass(frozen=True)
class FamilyFit(Fit):
    """A fitted model of any family."""

    features: Features
    moments: Moments
    mean: MeanPrior

    @property
    def period(self) -> NDArray[np.float64] | None:
        """The period of the lattice, or `None` for features that know of none."""
        if isinstance(self.features, SeriesFeatures):
            return self.features.lattice.period
        return None

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.features.num_features

    def posterior(self, domain: Domain, num_threads: int) -> FamilyPosterior:
        """Return the posterior over a domain."""
        return FamilyPosterior.from_moments(
            self.features,
            self.kernel,
            self.noise_variance,
            self.mean,
            self.moments,
            domain,
            num_threads,
        )
