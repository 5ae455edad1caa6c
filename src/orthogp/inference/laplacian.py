"""The inverse of a spectrum as a polynomial of the Laplacian, by finite differences on a grid."""

from __future__ import annotations

import numpy as np
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

# A fit whose logarithm is off by so much on average is good enough.
_GOOD_FIT = 0.1


def fit_polynomial(
    symbol: NDArray[np.float64], masses: NDArray[np.float64], most_powers: int
) -> NDArray[np.float64]:
    """Return c ≥ 0 with Σ_j c_j λ^j ≈ 1/s, evenly in log λ, with no more powers than it takes."""
    # Mode zero has the mean function's variance too.
    lam, mass = symbol.ravel()[1:], masses.ravel()[1:]
    usable = mass > 1e-12 * mass.max()
    lam, mass = lam[usable], mass[usable]
    edges = np.geomspace(lam.min() * (1 - 1e-9), lam.max() * (1 + 1e-9), 60)
    bins = np.digitize(lam, edges)
    counts = np.bincount(bins, minlength=len(edges) + 1)
    chosen = counts > 0
    mean_lam = np.bincount(bins, lam, len(edges) + 1)[chosen] / counts[chosen]
    mean_log = np.bincount(bins, -np.log(mass), len(edges) + 1)[chosen] / counts[chosen]
    goal = np.exp(mean_log - mean_log.max())
    best, least = np.zeros(1), np.inf
    for powers in range(1, most_powers + 1):
        columns = mean_lam[:, None] ** np.arange(powers + 1)
        c, fitted = np.zeros(powers + 1), goal
        for _ in range(8):
            # Reweighted: twice too much counts as much as twice too little.
            weights = 1 / np.sqrt(goal * fitted)
            weighted = columns * weights[:, None]
            # Powers span many decades: of one size, they are solved for reliably.
            sizes = np.linalg.norm(weighted, axis=0)
            right, limits = goal * weights, (0.0, np.inf)
            c = scipy.optimize.lsq_linear(weighted / sizes, right, limits, method="bvls").x / sizes
            fitted = np.maximum(columns @ c, 1e-3 * goal)
        misfit = float(np.sqrt(np.mean(np.log(fitted / goal) ** 2)))
        if misfit < 0.9 * least:
            best, least = c, misfit
        if misfit < _GOOD_FIT:
            break
    # What is not there at all would leave gaps without a prior.
    best[0] = max(best[0], 1e-6 * goal.min())
    return np.trim_zeros(best, "b") * np.exp(mean_log.max())


def laplacian_matrix(
    points: tuple[int, ...], weights: NDArray[np.float64]
) -> scipy.sparse.csr_array:
    """Return Σ_d weights_d · (second differences along axis d), periodic."""
    total = None
    for axis, (n, weight) in enumerate(zip(points, weights, strict=True)):
        shift = scipy.sparse.csr_array(scipy.sparse.eye_array(n))[np.roll(np.arange(n), 1)]
        one = weight * (2 * scipy.sparse.eye_array(n) - shift - shift.T)
        before = scipy.sparse.eye_array(int(np.prod(points[:axis], dtype=int)))
        after = scipy.sparse.eye_array(int(np.prod(points[axis + 1 :], dtype=int)))
        term = scipy.sparse.kron(scipy.sparse.kron(before, one), after, format="csr")
        total = term if total is None else total + term
    assert total is not None
    return scipy.sparse.csr_array(total)
