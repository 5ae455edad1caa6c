r"""The one-pass tightened bound of any family, and its gradient in closed form.

With B = I + A/σ², m = B⁻¹b/σ², d̄ = R/N (docs/mathematics.md, "Bounds and gradient"):

    ∂L/∂A = −(B⁻¹ + m mᵀ)/(2σ²)      ∂L/∂b = m/σ²      ∂L/∂R = −1/(2(σ² + d̄))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import PrecisionError
from orthogp.inference.bounds import factorise, one_pass_bound, unwhiten, whiten
from orthogp.inference.parameters import pack
from orthogp.inference.row_sources import RowSource
from orthogp.inference.settings import Start
from orthogp.inference.sources import Pullback, Source
from orthogp.inference.threads import BlasThreads

(potri,) = get_lapack_funcs(("potri",), dtype=np.float64)


class FamilyObjective:
    """The bound as a function of one vector.

    The vector holds the logarithms of the kernel's learned parameters, the features' own learned
    parameters and, last, the logarithm of the noise variance.
    """

    def __init__(self, source: Source, threads: BlasThreads | None = None) -> None:
        self.source = source
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
                    found.append(one_pass_bound(moments, noise).total)
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
        if not with_gradient:
            return bound.total, np.empty(0)
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
        return bound.total, gradient
