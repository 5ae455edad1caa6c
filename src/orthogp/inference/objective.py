r"""The one-pass tightened bound of lattice features and its gradient in closed form.

The amplitudes a_i (prior variances of the columns) enter A and b as √a_i √a_j T_ij and √a_i t_i.
The gradient needs the posterior's second moments only, with m = B⁻¹b/σ²:

    ∂L/∂log a_i = ½ (m_i² + (B⁻¹)_ii − 1)
    ∂L/∂log σ² = ½ Σ_i (1 − (B⁻¹)_ii) − N/2 + (yy − bᵀm)/(2σ²) − ½ mᵀm

so one Cholesky factor and one triangular inverse give both. The chain to the hyperparameters is the
Jacobian of the masses, from JAX, with one block for each component.

Any other family gives its moments by a `Source`. With B = I + A/σ², m = B⁻¹b/σ², d̄ = R/N
(docs/mathematics.md, "Bounds and gradient"):

    ∂L/∂A = −(B⁻¹ + m mᵀ)/(2σ²)      ∂L/∂b = m/σ²      ∂L/∂R = −1/(2(σ² + d̄))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import PrecisionError
from orthogp.features.series import LatticeFeatures
from orthogp.inference.bounds import factorise, factorise_in_place, one_pass_bound, unwhiten, whiten
from orthogp.inference.moments import (
    Moments,
    Pullback,
    RowSource,
    Source,
    moments_from_statistics,
    real_sums,
)
from orthogp.inference.parameters import (
    NO_BELIEFS,
    Beliefs,
    PriorJacobian,
    Start,
    learned_slots,
    masses_and_jacobian,
    pack,
    unpack,
)
from orthogp.kernels import Kernel
from orthogp.precision import BlasThreads
from orthogp.statistics import Statistics

potri, trtri = get_lapack_funcs(("potri", "trtri"), dtype=np.float64)


class LatticeObjective:
    """The bound and the log prior as a function of log hyperparameters, for fixed features.

    The vector holds the logarithms of the kernel's learned parameters, one component after the
    other, and, last, of the noise variance.
    """

    def __init__(
        self,
        features: LatticeFeatures,
        kernel: Kernel,
        statistics: Statistics,
        *,
        repeats: bool = True,
        threads: BlasThreads | None = None,
        beliefs: Beliefs = NO_BELIEFS,
    ) -> None:
        self.features = features
        self.beliefs = beliefs
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
        """Return the bound and the log prior, and the gradient of their sum."""
        noise = float(np.exp(vector[-1]))
        masses, mass_jacobian, variance, variance_jacobian = self._prior(vector[:-1])
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
        residual = max(self._count * (variance - self._multiplicity @ masses), 0.0)
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
        gradient[:-1] = mass_jacobian.T @ per_mass + per_residual * variance_jacobian
        gradient[-1] = (
            p / 2 * np.sum(1 - inverse_diagonal)
            - p * rows / 2
            + (self._yy - explained) / (2 * noise)
            - mean_square.sum() / 2
            + p / 2 * residual / (noise + residual / rows)
        )
        prior = self.beliefs.log_prior(self.slots, vector)
        return float(value) + prior.value, gradient + prior.gradient

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

    def curvature(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        r"""Return the expected curvature of the bound, eigenvalues ≥ 1, from one factorisation.

        That of log N(y | 0, Q + σ²I): with a_i the prior variances of the columns, and J their
        derivatives in log parameters,

            ½ ((I − B⁻¹)_ij)² in log a_i, log a_j,   ½ (B⁻¹ − B⁻²)_ii in log a_i, log σ²,
            ½ (N − m + tr B⁻²) in log σ²

        Differences of gradients would cost an evaluation for each of many parameters.
        """
        noise = float(np.exp(vector[-1]))
        prior = self._prior(vector[:-1])
        squared = self.features.squared_amplitudes(prior.masses)
        scaled = np.sqrt(squared / noise)
        with self._threads.limited(len(scaled)):
            chol = factorise_in_place(scaled[:, None] * self._sums.gram * scaled)
            inverse = potri(chol, lower=1)[0]
            inverse = np.tril(inverse) + np.tril(inverse, -1).T
            squares = np.einsum("ij,ij->i", inverse, inverse)
            diagonal = np.einsum("ii->i", inverse)
            # Linear in the masses, but for the mean function's part.
            fixed = self.features.squared_amplitudes(np.zeros_like(prior.masses))
            slopes = [self.features.squared_amplitudes(own) - fixed for own in prior.jacobian.T]
            J = np.array(slopes).reshape(len(slopes), len(squared)).T
            J = np.divide(J, squared[:, None], out=np.zeros_like(J), where=squared[:, None] > 0)
            H = np.empty((len(vector), len(vector)))
            H[-1, -1] = (self._rows - len(squared) + squares.sum()) / 2
            H[:-1, -1] = H[-1, :-1] = J.T @ (diagonal - squares) / 2
            np.subtract(0.0, inverse, out=inverse)
            np.einsum("ii->i", inverse)[:] += 1
            H[:-1, :-1] = J.T @ (np.square(inverse, out=inverse) @ J) / 2
        H = self._num_targets * H - np.diag(self.beliefs.log_prior(self.slots, vector).bend)
        eigenvalues, vectors = np.linalg.eigh(H)
        return (vectors * np.maximum(eigenvalues, 1.0)) @ vectors.T

    def _prior(self, vector: NDArray[np.float64]) -> PriorJacobian:
        masses = np.empty(len(self._multiplicity))
        jacobian = np.zeros((len(masses), len(vector)))
        variance, variance_jacobian, start = 0.0, np.empty(len(vector)), 0
        for part, kernel, at in zip(
            self.features.parts,
            self.features.kernels(self.kernel),
            self.features.mass_slices,
            strict=True,
        ):
            slots = learned_slots(kernel)
            own = slice(start, start + sum(slot.size for slot in slots))
            prior = masses_and_jacobian(vector[own], kernel, slots, part.lattice, part.indices)
            masses[at], jacobian[at, own] = prior.masses, prior.jacobian
            variance += prior.variance
            variance_jacobian[own] = prior.variance_jacobian
            start = own.stop
        return PriorJacobian(masses, jacobian, variance, variance_jacobian)


class FamilyObjective:
    """The bound and the log prior as a function of one vector.

    The vector holds the logarithms of the kernel's learned parameters, the features' own learned
    parameters and, last, the logarithm of the noise variance.
    """

    def __init__(
        self,
        source: Source,
        threads: BlasThreads | None = None,
        beliefs: Beliefs = NO_BELIEFS,
    ) -> None:
        self.source = source
        self.beliefs = beliefs
        self._threads = BlasThreads(1) if threads is None else threads
        #: What the features lost in the last evaluation, in nats.
        self.trace_term = 0.0

    def vector(self, start: Start) -> NDArray[np.float64]:
        """Return the vector of some hyperparameters and the features' present parameters."""
        source = self.source
        own = source.features.free_parameters() if isinstance(source, RowSource) else np.empty(0)
        return np.concatenate(
            [pack(start.kernel, source.slots), own, [np.log(start.noise_variance)]]
        )

    def value(self, vector: NDArray[np.float64]) -> float:
        """Return the bound."""
        return self._evaluate(vector, with_gradient=False)[0]

    def values(self, vector: NDArray[np.float64], noises: list[float]) -> list[float]:
        """Return the bound at other noise variances, −∞ where double precision does not resolve it.

        The moments, which cost most, are the same for all of them.
        """
        with self._threads.limited(self.source.features.num_features):
            moments = self.source.moments(vector[:-1])
            found = []
            for noise in noises:
                try:
                    there = np.append(vector[:-1], np.log(noise))
                    prior = self.beliefs.log_prior(self.source.slots, there).value
                    found.append(one_pass_bound(moments, noise).total + prior)
                except PrecisionError:
                    found.append(-np.inf)
        return found

    def value_and_gradient(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the bound and its gradient."""
        return self._evaluate(vector, with_gradient=True)

    def _evaluate(
        self, vector: NDArray[np.float64], *, with_gradient: bool
    ) -> tuple[float, NDArray[np.float64]]:
        with self._threads.limited(self.source.features.num_features):
            return self._evaluate_here(vector, with_gradient)

    def _evaluate_here(
        self, vector: NDArray[np.float64], with_gradient: bool
    ) -> tuple[float, NDArray[np.float64]]:
        noise = float(np.exp(vector[-1]))
        moments = self.source.moments(vector[:-1])
        chol = factorise(moments.gram, noise)
        bound = one_pass_bound(moments, noise, chol)
        self.trace_term = -bound.trace
        prior = self.beliefs.log_prior(self.source.slots, vector)
        if not with_gradient:
            return bound.total + prior.value, np.empty(0)
        p, rows, residual = len(moments.yy), moments.rows, moments.residual_trace
        mean = unwhiten(chol, whiten(chol, moments.projection)) / noise
        inverse = potri(chol, lower=1, overwrite_c=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        spread = noise + residual / rows
        gram_bar = -(p * inverse + mean @ mean.T) / (2 * noise)
        residual_bar = -p / (2 * spread) if residual > 0 else 0.0
        gradient = np.empty_like(vector)
        gradient[:-1] = self.source.gradient(
            vector[:-1], Pullback(gram_bar, mean / noise, residual_bar)
        )
        gradient[-1] = (
            p / 2 * np.sum(1 - np.diag(inverse))
            - p * rows / 2
            - bound.data_fit
            - np.sum(mean**2) / 2
            + p / 2 * residual / spread
        )
        return bound.total + prior.value, gradient + prior.gradient
