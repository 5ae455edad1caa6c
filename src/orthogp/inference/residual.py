r"""What the features leave out, measured on the data: a sharp upper bound on log p(y).

Write K − Q = R + R', R from the modes within the lattice's extent that are not features, R' from
those beyond. For any v, yᵀ(K + σ²I)⁻¹y ≥ 2vᵀy − vᵀ(K + σ²I)v. With α = σ² + t', t' ≥ λ_max(R'), and
v = (Q + αI)⁻¹y, the residual of the fit over α,

    yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + αI)⁻¹y − vᵀRv,      vᵀRv = Σ_t mass_t |Σ_n v_n e^{iω_t·x_n}|²

and the inner sums are in the statistics. Where the residual is noise this costs about as much as
the trace term, while t ≥ λ_max(K − Q) alone costs N times more.

With several components likewise: K − Q = R + R', R from the kept modes that are no features,
whose sums with everything else are known, R' from the modes beyond. With α = σ² + t' and
t' ≥ λ_max(R'),

    yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + αI)⁻¹y − vᵀRv,      v = (Q + αI)⁻¹y

R' is a sum over the components, and so is the bound t' on its norm: within the extent of each one's
own sums by Gershgorin's theorem, beyond it by the trace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.lattice import LatticeFeatures, residual_mass
from orthogp.features.series import SeriesFeatures, lattice_masses
from orthogp.inference.bounds import Bound, factorise, unwhiten, upper_bound, whiten
from orthogp.inference.fourier_series import SeriesBox, as_complex
from orthogp.inference.moments import Moments
from orthogp.kernels import Kernel
from orthogp.statistics import AdditiveStatistics, FourierStatistics, Statistics


def sharp_upper_bound(
    features: LatticeFeatures,
    kernel: Kernel,
    statistics: Statistics,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
    """Return the smallest of the upper bounds that the statistics give.

    For one component two bounds are formed, the one above and that with t ≥ λ_max(K − Q); see
    `residual_norm`.
    """
    if isinstance(statistics, FourierStatistics):
        return _joint_bound(features.parts[0], kernel, statistics, moments, noise_variance, chol)
    return _additive_bound(features, kernel, statistics, moments, noise_variance, chol)


def _joint_bound(
    features: Lattice,
    kernel: Kernel,
    statistics: FourierStatistics,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
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
    z, s = amplitudes[:, None] * u, len(features.indices)
    waves = z[:s].astype(np.complex128)
    waves[1:] -= 1j * z[s : 2 * s - 1]
    sums = residual_sums(features.indices, waves, z[2 * s - 1 :], statistics)
    at = tuple((indices + statistics.lattice.extent).T)
    squares = np.abs(sums[(slice(None), *at)]) ** 2 / alpha**2
    unseen = 2 * float(np.sum(squares @ masses))
    by_residual = by_norm._replace(
        data_fit=float(-((np.sum(moments.yy) - explained) / alpha - unseen) / 2)
    )
    return min(by_norm, by_residual, key=lambda bound: bound.total)


def sharp_series_bound(
    features: SeriesFeatures,
    kernel: Kernel,
    statistics: FourierStatistics,
    mean: MeanPrior,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
    r"""Return the same upper bound for any features of the wrapped prior.

    Here K − R' = Σ over all modes of the lattice, Q included, so that

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


def _additive_bound(
    features: LatticeFeatures,
    kernel: Kernel,
    statistics: AdditiveStatistics,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
    by_trace = upper_bound(moments, noise_variance, None, chol)
    kernels = features.kernels(kernel)
    alpha = noise_variance + sum(_norm_beyond(statistics, j, own) for j, own in enumerate(kernels))
    factor = factorise(moments.gram, alpha)
    whitened = whiten(factor, moments.projection)
    explained = np.sum(whitened**2) / alpha
    amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
    z = amplitudes[:, None] * unwhiten(factor, whitened) / alpha
    indices = [part.indices for part in features.parts]
    residuals = statistics.residual_sums(indices, z)
    unseen = 0.0
    for own, component, chosen, sums in zip(
        kernels, statistics.components, indices, residuals, strict=True
    ):
        masses = lattice_masses(own, component.lattice, component.indices)[1:]
        masses[_among(component.indices[1:], chosen[1:])] = 0.0
        cosines, sines = np.split(sums, 2)
        unseen += 2 * float(masses @ np.sum(cosines**2 + sines**2, axis=1)) / alpha**2
    by_residual = by_trace._replace(
        data_fit=float(-((np.sum(moments.yy) - explained) / alpha - unseen) / 2)
    )
    return min(by_trace, by_residual, key=lambda bound: bound.total)


def _norm_beyond(statistics: AdditiveStatistics, j: int, kernel: Kernel) -> float:
    """Return a bound on λ_max of a component's modes that are not kept."""
    part, component = statistics.parts[j], statistics.components[j]
    box = SeriesBox(part.lattice.extent)
    indices = part.lattice.half_indices()
    masses = lattice_masses(kernel, part.lattice, indices)
    beyond = prior_variance(kernel) - float(masses[0] + 2 * masses[1:].sum())
    others = ~np.isin(np.abs(box.linear(indices)), np.abs(box.linear(component.indices)))
    others &= masses > 0
    inside = residual_norm(box, indices[others], masses[others], part)
    # Gershgorin's bound may exceed the trace, which is one too.
    inside = min(inside, 2 * part.count * float(masses[others].sum()))
    return inside + part.count * max(beyond, 0.0)


def _among(indices: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the indices are among the chosen."""
    wanted = set(map(tuple, chosen.tolist()))
    return np.array([index in wanted for index in map(tuple, indices.tolist())], dtype=bool)
