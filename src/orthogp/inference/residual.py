r"""What features leave out, measured on the data: a sharp upper bound on log p(y).

Write K − Q = R + R', R from the modes within the lattice's extent, R' from those beyond. For any v,
yᵀ(K + σ²I)⁻¹y ≥ 2vᵀy − vᵀ(K + σ²I)v. With α = σ² + t', t' ≥ λ_max(R'), and v = (Q + αI)⁻¹y, the
residual of the fit over α,

    yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + αI)⁻¹y − vᵀRv,      vᵀRv = Σ_t mass_t |Σ_n v_n e^{iω_t·x_n}|²

and the inner sums are in the statistics. Where the residual is noise this costs about as much as
the trace term, while t ≥ λ_max(K − Q) alone costs N times more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice, MeanPrior
from orthogp.features.lattice import residual_mass
from orthogp.features.series import SeriesFeatures, lattice_masses
from orthogp.inference.bounds import Bound, factorise, unwhiten, upper_bound, whiten
from orthogp.inference.fourier_series import SeriesBox, as_complex
from orthogp.inference.moments import Moments
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics


def sharp_series_bound(
    features: SeriesFeatures,
    kernel: Kernel,
    statistics: FourierStatistics,
    mean: MeanPrior,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
    r"""Return the upper bound for any features of the wrapped prior.

    K − R' = Σ over all modes of the lattice, Q included, so that

        vᵀRv = Σ_t mass_t |Σ_n v_n e^{iω_t·x_n}|² − Σ_m (Σ_n v_n φ_m(x_n))²
    """
    lattice = statistics.lattice
    indices = lattice.half_indices()
    masses = lattice_masses(kernel, lattice, indices)
    beyond = residual_mass(kernel, masses)
    by_trace = upper_bound(moments, noise_variance, None, chol)
    alpha = noise_variance + statistics.count * beyond
    factor = factorise(moments.gram, alpha)
    whitened = whiten(factor, moments.projection)
    explained = np.sum(whitened**2) / alpha
    u = unwhiten(factor, whitened) / alpha
    C, m = as_complex(features.coefficient_matrix(kernel), features.odd), features.num_features
    waves = C.T @ u[:m]
    has_offset = int(mean.offset_variance > 0)
    if has_offset:
        waves[0] += np.sqrt(mean.offset_variance) * u[m]
    slopes = np.sqrt(mean.slope_variance) * u[m + has_offset :]
    sums = residual_sums(features.indices, waves, slopes, statistics) / alpha
    everywhere = sums[(slice(None), *(indices + lattice.extent).T)]
    own = sums[(slice(None), *(features.indices + lattice.extent).T)]
    double = np.where(np.any(indices != 0, axis=1), 2.0, 1.0)
    total = float(np.sum(np.abs(everywhere) ** 2 @ (double * masses)))
    # Σ_n v_n φ_m(x_n) = Re Σ_t z_mt Σ_n v_n e^{iω_t·x_n}
    seen = float(np.sum((own @ C.T).real ** 2))
    unseen = max(total - seen, 0.0)
    by_residual = by_trace._replace(
        data_fit=float(-((np.sum(moments.yy) - explained) / alpha - unseen) / 2)
    )
    return min(by_trace, by_residual, key=lambda bound: bound.total)


def residual_sums(
    indices: NDArray[np.int64],
    waves: NDArray[np.complex128],
    slopes: NDArray[np.float64],
    statistics: FourierStatistics,
) -> NDArray[np.complex128]:
    """Return Σ_n w_n (y_n − f(x_n)) e^{iω_t·(x_n−x₀)} for |t_d| ≤ K_d, (p, 2K+1, …).

    Parameters
    ----------
    waves : (s, p)
        f = Re Σ_t waves_t e^{iω_t·(x−x₀)} over the half set `indices`, for each target,
    slopes : (q, p)
        plus these multiples of the covariates.
    """
    box = SeriesBox(statistics.lattice.extent)
    sums = statistics.target_sums.copy()
    for j in range(len(sums)):
        series = box.function(indices, waves[:, j].real, -waves[:, j].imag)
        # Σ_n w_n f(x_n) e^{iω_t·x_n} = Σ_s f_s point_sums[t + s], a correlation.
        flipped = np.flip(series)
        sums[j] -= _convolved(statistics.point_sums, flipped)
        if len(slopes):
            sums[j] -= np.tensordot(slopes[:, j], statistics.covariate_sums, axes=(0, 0))
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
    row_sums = _convolved(np.abs(statistics.point_sums), flat.reshape(box.shape))
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


def _convolved(a: NDArray, b: NDArray) -> NDArray:
    """Return the convolution of two arrays, where the smaller lies within the larger."""
    # Imported where it is used: most of SciPy comes with it.
    from scipy.signal import fftconvolve

    return fftconvolve(a, b, mode="valid")
