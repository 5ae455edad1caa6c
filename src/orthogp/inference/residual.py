r"""What the features leave out, measured on the data: a sharp upper bound on log p(y).

Write K − Q = R + R', R from the modes within the lattice's extent that are not features, R' from
those beyond. For any v, yᵀ(K + σ²I)⁻¹y ≥ 2vᵀy − vᵀ(K + σ²I)v. With α = σ² + t', t' ≥ λ_max(R'), and
v = (Q + αI)⁻¹y, the residual of the fit over α,

    yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + αI)⁻¹y − vᵀRv,      vᵀRv = Σ_t mass_t |Σ_n v_n e^{iω_t·x_n}|²

and the inner sums are in the statistics. Where the residual is noise this costs about as much as
the trace term, while t ≥ λ_max(K − Q) alone costs N times more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from orthogp.features import Lattice
from orthogp.features.lattice import residual_mass
from orthogp.features.masses import lattice_masses
from orthogp.inference.bounds import Bound, factorise, unwhiten, upper_bound, whiten
from orthogp.inference.moments import Moments
from orthogp.inference.series import SeriesBox
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics, FrequencyLattice


def sharp_upper_bound(
    features: Lattice,
    kernel: Kernel,
    statistics: FourierStatistics,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
    """Return the smallest of the upper bounds that the statistics give.

    Two bounds are formed, the one above and that with t ≥ λ_max(K − Q); see `residual_norm`.
    """
    box = SeriesBox(statistics.lattice.extent)
    indices, masses, beyond = unseen_modes(features, kernel)
    norm_inside = residual_norm(box, indices, masses, statistics)
    t_beyond = statistics.count * beyond
    by_norm = upper_bound(moments, noise_variance, norm_inside + t_beyond, chol)

    alpha = noise_variance + t_beyond
    factor = factorise(moments.gram, alpha)
    whitened = whiten(factor, moments.projection)
    explained = np.sum(whitened**2) / alpha
    u = unwhiten(factor, whitened) / alpha
    amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
    sums = residual_sums(features, statistics, amplitudes[:, None] * u)
    at = tuple((indices + statistics.lattice.extent).T)
    squares = np.abs(sums[(slice(None), *at)]) ** 2 / alpha**2
    unseen = 2 * float(np.sum(squares @ masses))
    by_residual = by_norm._replace(
        data_fit=float(-((np.sum(moments.yy) - explained) / alpha - unseen) / 2)
    )
    return min(by_norm, by_residual, key=lambda bound: bound.total)


def residual_sums(
    features: Lattice, statistics: FourierStatistics, coefficients: NDArray[np.float64]
) -> NDArray[np.complex128]:
    """Return Σ_n w_n (y_n − f(x_n)) e^{iω_t·(x_n−x₀)} for |t_d| ≤ K_d, (p, 2K+1, …).

    Parameters
    ----------
    coefficients : (m, p)
        Of the cosines, sines and covariates that make up f, for each target.
    """
    box = SeriesBox(statistics.lattice.extent)
    s = len(features.indices)
    sums = statistics.target_sums.copy()
    for j, column in enumerate(coefficients.T):
        sines = np.concatenate([[0.0], column[s : 2 * s - 1]])
        series = box.function(features.indices, column[:s], sines)
        # Σ_n w_n f(x_n) e^{iω_t·x_n} = Σ_s f_s point_sums[t + s], a correlation.
        flipped = np.flip(series)
        sums[j] -= fftconvolve(statistics.point_sums, flipped, mode="valid")
        sums[j] -= np.tensordot(column[2 * s - 1 :], statistics.covariate_sums, axes=(0, 0))
    return sums


def residual_norm(
    box: SeriesBox,
    indices: NDArray[np.int64],
    masses: NDArray[np.float64],
    statistics: FourierStatistics,
) -> float:
    r"""Return a bound on λ_max of the modes at `indices`, by Gershgorin's theorem.

    λ_max ≤ max_t Σ_{t'} mass_t' |point_sums[t − t']|
    """
    if len(indices) == 0:
        return 0.0
    flat = np.zeros(int(np.prod(box.shape)))
    positions = box.linear(indices)
    flat[box.middle + positions] = masses
    flat[box.middle - positions] = masses
    row_sums = fftconvolve(np.abs(statistics.point_sums), flat.reshape(box.shape), mode="valid")
    return float(row_sums.ravel()[box.middle + positions].max())


def unseen_modes(
    features: Lattice, kernel: Kernel
) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Return the lattice's modes that are not features, their masses, and the mass beyond all."""
    lattice = features.lattice
    indices = lattice.half_indices()
    box = SeriesBox(lattice.extent)
    indices = indices[~np.isin(box.linear(indices), box.linear(features.indices))]
    masses = lattice_masses(kernel, lattice, indices) if len(indices) else np.empty(0)
    residual = residual_mass(kernel, features.masses(kernel))
    return indices, masses, max(residual - 2 * masses.sum(), 0.0)


def required_features(
    kernel: Kernel, lattice: FrequencyLattice, allowed_residual: float
) -> tuple[int, int]:
    """Return how many features leave out at most `allowed_residual`, and how many there are.

    If even all modes of the lattice leave out more, the first number exceeds the second.
    """
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    ordered = np.sort(masses[1:])[::-1]
    total = residual_mass(kernel, masses[:1])
    residuals = total - np.concatenate([[0.0], np.cumsum(2 * ordered)])
    enough = np.flatnonzero(residuals <= allowed_residual)
    pairs = enough[0] if len(enough) else len(residuals)
    return int(2 * pairs + 1), int(2 * len(residuals) - 1)
