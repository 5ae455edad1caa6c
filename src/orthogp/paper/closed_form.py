r"""A Gaussian q(u) and what it says about f, in closed form: what stochastic training estimates.

With K_uu = I, φ the features and d(x) = k(0) − Σ φ_m(x)² what they leave out:

    mean f(x) = φ(x)ᵀm,      var f(x) = d(x) + φ(x)ᵀ S φ(x)
    ELBO = Σ_n [−½ log 2πσ² − ((y_n − mean f(x_n))² + var f(x_n))/(2σ²)] − KL(N(m, S)‖N(0, I))
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.features import SpectralFeatures
from orthogp.features.base import as_rows
from orthogp.inference.factorised import factorised_posterior
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import Kernel

#: What S may be.
Covariance = Literal["dense", "diagonal"]
COVARIANCES: tuple[Covariance, ...] = ("dense", "diagonal")


class Approximation(NamedTuple):
    """q(u) = N(m, S) of some features; see the module's docstring."""

    features: SpectralFeatures
    kernel: Kernel
    noise_variance: float
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def collapsed(
        cls,
        features: SpectralFeatures,
        kernel: Kernel,
        noise_variance: float,
        X: NDArray[np.float64],
        y: NDArray[np.float64],
        covariance: Covariance,
    ) -> Self:
        """Return the best q(u) with that kind of S, in closed form."""
        moments = moments_from_rows(features, kernel, X, y)
        size = features.num_features if covariance == "dense" else 1
        best = factorised_posterior(moments, noise_variance, size)
        S = np.zeros_like(moments.gram)
        for block, part in zip(best.blocks, best.covariances, strict=True):
            S[np.ix_(block, block)] = part
        return cls(features, kernel, noise_variance, best.mean[:, 0], S)

    def predict(self, X: NDArray[np.float64]) -> Gaussian:
        """Return mean and variance of f at the rows of X, each (n,)."""
        X = as_rows(X)
        Phi = self.features.evaluate(self.kernel, X)
        left_out = self.features.residual_variance(self.kernel, X)
        return Gaussian(Phi @ self.mean, left_out + np.sum(Phi @ self.covariance * Phi, axis=1))

    def elbo(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        """Return the evidence lower bound."""
        mean, variance = self.predict(X)
        squares = (y - mean) ** 2 + variance
        data_fit = -0.5 * np.sum(
            np.log(2 * np.pi * self.noise_variance) + squares / self.noise_variance
        )
        log_det = np.linalg.slogdet(self.covariance)[1]
        divergence = 0.5 * (
            np.trace(self.covariance) + self.mean @ self.mean - len(self.mean) - log_det
        )
        return float(data_fit - divergence)
