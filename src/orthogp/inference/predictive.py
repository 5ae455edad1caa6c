"""What every posterior offers to the estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, PrecisionError

# The most points for which a joint covariance is formed.
_MOST_JOINT = 5000


class Gaussian(NamedTuple):
    """Means (n, p) and variances (n,), the latter shared by all targets."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


class Functions(Protocol):
    """Functions drawn from a posterior."""

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        ...


class PredictivePosterior(ABC):
    """A posterior q(f), in the units of the statistics' targets."""

    #: Whether f is a sum of components with lattices of their own.
    additive: ClassVar[bool] = False

    noise_variance: float
    #: k(0), and what of it the features leave out on average.
    prior_variance: float
    residual: float

    @abstractmethod
    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""

    def predict_mean(self, X: NDArray) -> NDArray[np.float64]:
        """Return the mean of f at the rows of X, (n, p)."""
        return self.predict(X).mean

    @abstractmethod
    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance matrix of f at the rows of X, (n, n)."""

    def draw(self, num_draws: int, rng: np.random.Generator) -> Functions:
        """Return functions drawn from q(f), jointly at the points they are asked for."""
        return JointDraws(self, num_draws, int(rng.integers(2**31)))

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        raise InputError('Derivatives need the lattice: fit with features="lattice".')

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each."""
        raise InputError('Integrals need the lattice: fit with features="lattice".')


class JointDraws:
    """Posterior functions, drawn jointly at whatever points they are asked for.

    Each call draws anew from the same random numbers: points that belong together go into one call.
    """

    def __init__(self, posterior: PredictivePosterior, num_draws: int, seed: int) -> None:
        self._posterior = posterior
        self._num_draws = num_draws
        self._seed = seed

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        if len(X) > _MOST_JOINT:
            raise InputError(
                f"Functions of these features are drawn at up to {_MOST_JOINT} points at once, got "
                f'{len(X)}: use features="lattice", whose functions are drawn once for all points.'
            )
        mean = self._posterior.predict(X).mean
        covariance = self._posterior.covariance(X)
        if not np.isfinite(covariance).all():
            raise PrecisionError(
                "The posterior covariance of these points is not finite, so that no function can "
                "be drawn: fit the model again."
            )
        eigenvalues, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
        rng = np.random.default_rng(self._seed)
        noise = rng.standard_normal((len(X), self._num_draws * mean.shape[1]))
        draws = (root @ noise).reshape(len(X), self._num_draws, mean.shape[1])
        return draws + mean[:, None, :]
