"""Functions drawn from the posterior of an additive model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice
from orthogp.inference.posterior import NEGLIGIBLE_SHARE
from orthogp.inference.residual import unseen_modes
from orthogp.inference.series import SeriesBox
from orthogp.kernels import Kernel
from orthogp.statistics.nufft import evaluate_series

if TYPE_CHECKING:
    from orthogp.inference.additive_posterior import AdditivePosterior


def draw_coefficients(
    part: Lattice, kernel: Kernel, z: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.complex128]:
    """Return a component's series for drawn cosine and sine coefficients z (2s−2, draws, p).

    The modes that are no features come from the prior; of those together of less than
    `NEGLIGIBLE_SHARE` of its variance, and those beyond the lattice's extent, none are drawn.
    """
    indices, masses, _ = unseen_modes(part, kernel)
    order = np.argsort(masses)
    total = float(part.masses(kernel) @ part.multiplicity) + 2 * float(masses.sum())
    dropped = np.cumsum(2 * masses[order]) <= NEGLIGIBLE_SHARE * total
    kept = np.sort(order[~dropped])
    indices, masses = indices[kept], masses[kept]
    box = SeriesBox(np.abs(np.concatenate([part.indices, indices])).max(axis=0))
    cosines, sines = np.split(z, 2)
    _, num_draws, num_targets = z.shape
    series = np.empty((num_draws, num_targets, *box.shape), dtype=np.complex128)
    for i in range(num_draws):
        for j in range(num_targets):
            unseen = np.sqrt(2 * masses) * rng.standard_normal((2, len(masses)))
            series[i, j] = box.function(part.indices[1:], cosines[:, i, j], sines[:, i, j])
            series[i, j] += box.function(indices, *unseen)
    return series


class AdditiveDraws:
    """Functions drawn from the posterior, to be evaluated anywhere in the covered domain."""

    def __init__(
        self,
        constant: NDArray[np.float64],
        series: list[NDArray[np.complex128]],
        slopes: NDArray[np.float64],
        posterior: AdditivePosterior,
    ) -> None:
        self._constant = constant
        self._series = series
        self._slopes = slopes
        self._posterior = posterior

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        X = np.asarray(X, dtype=np.float64)
        posterior = self._posterior
        posterior.require_covered(X)
        values = np.broadcast_to(self._constant, (len(X), *self._constant.shape)).copy()
        features = posterior.features
        for part, columns, series in zip(
            features.parts, features.columns, self._series, strict=True
        ):
            flat = series.reshape(-1, *series.shape[2:])
            inputs = X[:, list(columns)]
            own = evaluate_series(flat, part.lattice, inputs, num_threads=posterior.num_threads)
            values += own.reshape(values.shape)
        return values + np.einsum("nq,qsp->nsp", features.mean.covariates(X), self._slopes)
