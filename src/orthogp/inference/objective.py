r"""The one-pass tightened bound of lattice features and its gradient in closed form.

The amplitudes a_i (prior variances of the columns) enter A and b as √a_i √a_j T_ij and √a_i t_i.
The gradient needs the posterior's second moments only, with m = B⁻¹b/σ²:

    ∂L/∂log a_i = ½ (m_i² + (B⁻¹)_ii − 1)
    ∂L/∂log σ² = ½ Σ_i (1 − (B⁻¹)_ii) − N/2 + (yy − bᵀm)/(2σ²) − ½ mᵀm

so one Cholesky factor and one triangular inverse give both. The chain to the hyperparameters is the
Jacobian of the masses, from JAX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.features import AdditiveLattice, Lattice
from orthogp.inference.bounds import factorise_in_place, unwhiten, whiten
from orthogp.inference.moments import Moments, moments_from_statistics, real_sums
from orthogp.inference.parameters import (
    PriorJacobian,
    learned_slots,
    masses_and_jacobian,
    unpack,
)
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.statistics import AdditiveStatistics, FourierStatistics

(trtri,) = get_lapack_funcs(("trtri",), dtype=np.float64)


F = TypeVar("F", bound=Lattice | AdditiveLattice)
S = TypeVar("S", bound=FourierStatistics | AdditiveStatistics)


class MassObjective(ABC, Generic[F, S]):
    """The bound as a function of log hyperparameters, for fixed features and statistics.

    The vector holds the logarithms of the kernel's learned parameters and, last, of the noise
    variance.
    """

    def __init__(
        self,
        features: F,
        kernel: Kernel,
        statistics: S,
        *,
        repeats: bool = True,
        threads: BlasThreads | None = None,
    ) -> None:
        self.features = features
        self.kernel = kernel
        self.slots = learned_slots(kernel)
        self.statistics = statistics
        self._repeats = repeats
        self._threads = BlasThreads(1) if threads is None else threads
        self._count = statistics.count
        self._rows = statistics.count if repeats else statistics.rows
        self._log_weights = 0.0 if repeats else statistics.log_weights
        self._yy = float(np.sum(statistics.yy))
        self._num_targets = statistics.num_targets
        self._sums = real_sums(features, statistics)
        self._multiplicity = features.multiplicity
        self._work: NDArray[np.float64] | None = None

    def value_and_gradient(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the bound and its gradient."""
        noise = float(np.exp(vector[-1]))
        masses, mass_jacobian, prior, prior_jacobian = self._prior(vector[:-1])
        squared = self.features.squared_amplitudes(masses)
        scaled = np.sqrt(squared / noise)
        if self._work is None:
            self._work = np.empty_like(self._sums.gram)
        np.multiply(self._sums.gram, scaled[:, None], out=self._work)
        self._work *= scaled
        projection = scaled[:, None] * self._sums.projection  # b/σ
        with self._threads.limited(len(scaled)):
            chol = factorise_in_place(self._work)
            log_det = 2 * np.sum(np.log(np.einsum("ii->i", chol)))
            whitened = whiten(chol, projection)
            mean = unwhiten(chol, whitened) / np.sqrt(noise)
            inverse = trtri(chol, lower=1, overwrite_c=1)[0]
        inverse_diagonal = np.einsum("ki,ki->i", inverse, inverse)

        p, rows = self._num_targets, self._rows
        residual = max(self._count * (prior - self._multiplicity @ masses), 0.0)
        explained = np.sum(whitened**2)  # bᵀB⁻¹b/σ² = bᵀm
        value = (
            -p / 2 * (rows * np.log(2 * np.pi * noise) - self._log_weights + log_det)
            - (self._yy - explained) / (2 * noise)
            - p * rows / 2 * np.log1p(residual / (rows * noise))
        )

        mean_square = np.sum(mean**2, axis=1)
        per_log = 0.5 * (mean_square + p * (inverse_diagonal - 1))
        per_amplitude = np.divide(per_log, squared, out=np.zeros_like(squared), where=squared > 0)
        per_mass = self.features.gather(per_amplitude)
        per_residual = -p / 2 / (noise + residual / rows) * self._count if residual > 0 else 0.0
        per_mass -= per_residual * self._multiplicity
        gradient = np.empty_like(vector)
        gradient[:-1] = mass_jacobian.T @ per_mass + per_residual * prior_jacobian
        gradient[-1] = (
            p / 2 * np.sum(1 - inverse_diagonal)
            - p * rows / 2
            + (self._yy - explained) / (2 * noise)
            - mean_square.sum() / 2
            + p / 2 * residual / (noise + residual / rows)
        )
        return float(value), gradient

    @abstractmethod
    def _prior(self, vector: NDArray[np.float64]) -> PriorJacobian:
        """Return the masses and k(0) with their derivatives in the log parameters."""

    def release(self) -> None:
        """Give back the working memory until the next evaluation."""
        self._work = None

    def moments(self, kernel: Kernel) -> Moments:
        """Return the moments of the features under a kernel."""
        return moments_from_statistics(
            self.features, kernel, self.statistics, repeats=self._repeats, sums=self._sums
        )

    def kernel_at(self, vector: NDArray[np.float64]) -> Kernel:
        """Return the kernel of a parameter vector."""
        return unpack(self.kernel, self.slots, np.asarray(vector[:-1]))


class LatticeObjective(MassObjective[Lattice, FourierStatistics]):
    """The bound of features on one lattice."""

    def _prior(self, vector: NDArray[np.float64]) -> PriorJacobian:
        return masses_and_jacobian(
            vector, self.kernel, self.slots, self.features.lattice, self.features.indices
        )
