"""The sums and series written out: the reference for the fast transforms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.statistics.lattice import FrequencyLattice


def direct_sums(
    lattice: FrequencyLattice, X: NDArray, column: NDArray, extent: NDArray[np.int64]
) -> NDArray[np.complex128]:
    """Return Σ_n c_n e^{iω_t·(x_n−x₀)} for |t_d| ≤ extent_d, term by term."""
    sums = np.asarray(column, dtype=np.complex128)
    for d in range(lattice.num_dims):
        indices = np.arange(-extent[d], extent[d] + 1)
        phases = np.exp(1j * np.outer(lattice.spacing[d] * indices, X[:, d] - lattice.centre[d]))
        sums = sums[..., None, :] * phases
    return sums.sum(axis=-1)


def direct_series(
    coefficients: NDArray[np.complex128], lattice: FrequencyLattice, X: NDArray
) -> NDArray[np.complex128]:
    """Return Σ_t a_t e^{iω_t·(x_n−x₀)} at the rows of X, term by term."""
    values = np.empty(len(X), dtype=np.complex128)
    for n, x in enumerate(X):
        terms = coefficients
        for d in range(lattice.num_dims):
            half = coefficients.shape[d] // 2
            phases = lattice.spacing[d] * np.arange(-half, half + 1) * (x[d] - lattice.centre[d])
            terms = np.tensordot(np.exp(1j * phases), terms, axes=(0, 0))
        values[n] = terms
    return values
