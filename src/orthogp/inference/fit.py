"""What a fit gives, whatever the features."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.domain import Domain
from orthogp.inference.predictive import PredictivePosterior
from orthogp.kernels import Kernel


@dataclass(frozen=True)
class Fit:
    """A fitted model, in the units of the statistics' targets.

    Attributes
    ----------
    elbo, tightened, upper : Bound
        Titsias' lower bound, that of the posterior which predicts, the tightened one, and the
        upper bound.
    """

    kernel: Kernel
    noise_variance: float
    elbo: Bound
    tightened: Bound
    upper: Bound
    certificate: Certificate
    status: str
    converged: bool
    num_evaluations: int
    rows: float

    @property
    @abstractmethod
    def period(self) -> NDArray[np.float64] | None:
        """The period of the prior, or `None` if it has none."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """The number of features."""

    @abstractmethod
    def posterior(self, domain: Domain, num_threads: int) -> PredictivePosterior:
        """Return the posterior over a domain."""
