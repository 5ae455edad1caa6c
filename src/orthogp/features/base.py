"""The contract of feature families: features φ_m with K_uu = I."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from orthogp.kernels import Kernel


class Features(eqx.Module):
    """Inducing features that are orthonormal under the prior.

    cov(u_m, u_m') = δ_mm',   φ_m(x) = cov(u_m, f(x)),   Σ_m φ_m(x) φ_m(x') → k as m grows
    """

    @property
    @abstractmethod
    def num_features(self) -> int:
        """The number m of features."""

    @abstractmethod
    def evaluate(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return φ_m(x_n), (n, m)."""

    @abstractmethod
    def residual_variance(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return the prior variance left out, var f(x_n) − Σ_m φ_m(x_n)², (n,)."""
