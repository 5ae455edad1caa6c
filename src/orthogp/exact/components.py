r"""The terms of a sum of kernels, given all rows: their effects, and shares of the variance.

With α and C of `process.py`, a term of kernel k_j on some of the columns has

    mean f_j(x) = k_j(x, X) α,      cov f_j = k_j − k_j(·, X) C⁻¹ k_j(X, ·)

It is known up to a constant, so it is reported with its average over the rows removed: everywhere

    k̃_j(x, X) = k_j(x, X) − a_j,      a_j = Σ_n w_n k_j(x_n, X)/Σ_n w_n

stands for k_j(x, X), and k_j(0) − 2 Σ_n w_n k_j(x, x_n)/Σ w + Σ_n w_n a_jn/Σ w for k_j(0).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.pairs import PairKernel
from orthogp.features.base import prior_variance
from orthogp.inference.bounds import whiten
from orthogp.inference.parameters import pack
from orthogp.inference.posterior import Shares
from orthogp.inference.predictive import Gaussian
from orthogp.kernels.terms import split_sum
from orthogp.statistics.nufft import chunks

if TYPE_CHECKING:
    from orthogp.exact.process import ExactPosterior

Array = NDArray[np.float64]

# The number of rows whose covariances with all rows are formed at once.
_ROWS_PER_BLOCK = 2**10
# The lags at which a term's range is looked for, relative to the rows' extent.
_FRACTIONS = np.array([0.0, 0.25, 0.5, 1.0])


class ExactComponents:
    """The posterior of each term of a sum of kernels; see the module's docstring.

    Attributes
    ----------
    columns : tuple of tuples of int
        Those that each term acts on.
    kernels : tuple of Kernel
        Each relative to its columns.
    """

    def __init__(self, posterior: ExactPosterior) -> None:
        self.columns, self.kernels = split_sum(posterior.kernel)
        self._posterior = posterior
        self._inputs = posterior.mean.inputs(posterior.merged.X)
        weights = posterior.merged.weights
        self._parts = weights / weights.sum()

    def component(self, j: int, X: NDArray) -> Gaussian:
        """Return mean and variance of term j, centred over the training rows, at rows of X."""
        X = np.asarray(X, dtype=np.float64)
        posterior, averages = self._posterior, self._averages[j]
        means, variances = [np.empty((0, posterior.alpha.shape[1]))], [np.empty(0)]
        for part in chunks(len(X), _ROWS_PER_BLOCK):
            cross = self._between(j, X[part], self._inputs)
            prior = prior_variance(self.kernels[j]) - 2 * cross @ self._parts
            prior += averages @ self._parts
            cross -= averages
            explained = np.sum(whiten(posterior.chol, posterior.scale * cross.T) ** 2, axis=0)
            means.append(cross @ posterior.alpha)
            variances.append(np.maximum(prior - explained, 0.0))
        return Gaussian(np.concatenate(means), np.concatenate(variances))

    def density(self, j: int, x: Array, width: float) -> Array:
        """Return the density of the rows along a term's only column, smoothed over a width."""
        places = self._inputs[:, self.columns[j][0]]
        bells = np.exp(-0.5 * ((x.reshape(-1, 1) - places) / width) ** 2)
        return bells @ self._parts / (np.sqrt(2 * np.pi) * width)

    @property
    def ranges(self) -> list[float]:
        """The prior sd of how much each term changes over the rows, √(2 max k_j(0) − k_j(τ))."""
        found = []
        for j, own in enumerate(self.columns):
            lags = np.zeros((len(_FRACTIONS), self._inputs.shape[1]))
            # A circle ends where it begins, and half a code is another.
            lags[:, list(own)] = _FRACTIONS[:, None] * np.ptp(self._inputs[:, list(own)], axis=0)
            values = self._between(j, lags, np.zeros((1, lags.shape[1])))
            found.append(float(np.sqrt(2 * max(values[0, 0] - values.min(), 0.0))))
        return found

    @cached_property
    def shares(self) -> Shares:
        """The shares of the targets' variance."""
        posterior, parts = self._posterior, self._parts
        merged, rows = posterior.merged, posterior.rows
        assert rows.weights is not None
        weights = rows.weights / rows.weights.sum()
        square = weights @ rows.y**2
        variance = square - (weights @ rows.y) ** 2
        variance = np.where(variance > 0, variance, 1.0)
        components = []
        for j, averages in enumerate(self._averages):
            mean = np.concatenate(
                [
                    (self._between(j, self._inputs[part], self._inputs) - averages)
                    @ posterior.alpha
                    for part in chunks(len(self._inputs), _ROWS_PER_BLOCK)
                ]
            )
            components.append(parts @ mean**2)
        # What remains of equal inputs' average, and how they differ from it.
        left = merged.y - posterior.predict_rows(merged.X).mean
        left = parts @ left**2 + np.maximum(square - parts @ merged.y**2, 0.0)
        return Shares(np.array(components) / variance, left / variance)

    @cached_property
    def _averages(self) -> list[Array]:
        """Return a_j for each term, (n,)."""
        averages = []
        for j in range(len(self.kernels)):
            total = np.zeros(len(self._inputs))
            for part in chunks(len(self._inputs), _ROWS_PER_BLOCK):
                total += self._parts[part] @ self._between(j, self._inputs[part], self._inputs)
            averages.append(total)
        return averages

    def _between(self, j: int, A: Array, B: Array) -> Array:
        own, kernel = list(self.columns[j]), self.kernels[j]
        pairs = PairKernel(kernel, len(own))
        return pairs.between(pack(kernel, pairs.slots), A[:, own], B[:, own])
