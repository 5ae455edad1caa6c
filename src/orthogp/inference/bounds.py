r"""Bounds on the log marginal likelihood, term by term, and the certificate they give.

With B = I + A/σ² (eigenvalues ≥ 1, so its Cholesky factor needs no jitter) and N factors:

    projected   −N/2 log 2πσ² − ½ log|B| − (yy − bᵀB⁻¹b/σ²)/(2σ²)
    titsias     projected − Σ d_n/(2σ²)
    one-pass    projected − (N/2) log(1 + Σ d_n/(N σ²))
    tightened   projected − ½ Σ log(1 + d_n/σ²)
    upper       −N/2 log 2πσ² − ½ log|B| − (yy − bᵀ(αI + A)⁻¹b)/(2α),   α = σ² + t

where t ≥ λ_max(K − Q) is any bound on what the features leave out. Always
titsias ≤ one-pass ≤ tightened ≤ log p(y) ≤ upper. Several targets share B and their bounds add.

A sharper upper bound measures on the data what features leave out. Write K − Q = R + R', R from the
modes within the lattice's extent, R' from those beyond. For any v, yᵀ(K + σ²I)⁻¹y ≥ 2vᵀy − vᵀ(K +
σ²I)v. With α = σ² + t', t' ≥ λ_max(R'), and v = (Q + αI)⁻¹y, the residual of the fit over α,

    yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + αI)⁻¹y − vᵀRv,      vᵀRv = Σ_t mass_t |Σ_n v_n e^{iω_t·x_n}|²

and the inner sums are in the statistics. Where the residual is noise this costs about as much as
the trace term, while t ≥ λ_max(K − Q) alone costs N times more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import PrecisionError
from orthogp.features import Lattice
from orthogp.features.series import lattice_masses, residual_mass
from orthogp.inference.fourier_series import SeriesBox
from orthogp.inference.moments import Moments
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics

potrf, trtrs = get_lapack_funcs(("potrf", "trtrs"), dtype=np.float64)

# Schur complements of a matrix with eigenvalues ≥ 1 are ≥ 1. A pivot below this means that
# rounding in the sums has reached the noise variance.
SMALLEST_PIVOT = 0.9
#: By default, means are to be within this many posterior sd, and sds within this relative error.
TOLERANCE = 0.05


class Bound(NamedTuple):
    """A bound on log p(y): its terms, which add up to `total`."""

    data_fit: float
    complexity: float
    trace: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.data_fit + self.complexity + self.trace


class Certificate(NamedTuple):
    """How far predictions can be from those of the exact process with the same hyperparameters.

    Attributes
    ----------
    lower, upper : float
        Bounds on log p(y) under the kernel.
    mean_error : float
        The largest error of a posterior mean, in exact posterior standard deviations.
    variance_error : float
        The largest relative error of a posterior variance.
    typical_error : float
        The median of the relative errors of variances over the data's box.
    kind : {"exact", "bound", "estimate"}
        Whether the errors are rounding, proven bounds, or estimates.
    tolerance : float
        Means are to be within that many exact posterior standard deviations, and standard
        deviations within that relative error.
    wrap_error : float
        max |k_P(τ) − k(τ)|/k(0) over lags within the data, k_P the periodic prior of the lattice.
        Its effect is part of all bounds.
    quadrature_error : float
        How much the features change, relative to the prior's standard deviation, when the lattice
        of their quadrature becomes three times as fine. It does not touch the bounds: on any
        lattice the features are orthonormal.
    replaces_prior : bool
        Whether the features define a prior of their own. The bounds then hold for that prior, and
        nothing is certified about the kernel's.
    """

    lower: float
    upper: float
    mean_error: float = np.inf
    variance_error: float = np.inf
    typical_error: float = np.inf
    kind: str = "bound"
    tolerance: float = TOLERANCE
    wrap_error: float = 0.0
    quadrature_error: float = 0.0
    replaces_prior: bool = False

    @classmethod
    def exact(cls, evidence: float) -> Certificate:
        """Return the certificate of the exact process."""
        return cls(evidence, evidence, 0.0, 0.0, 0.0, "exact")

    @classmethod
    def from_gap(cls, lower: float, upper: float, rounding: float = 0.0) -> Certificate:
        """Return what a gap between bounds on log p(y) implies.

        With γ = 2 (upper − lower) ≥ 2 KL(q‖p(f|y)), for γ ≤ 1/5 (Burt et al. 2019) every mean is
        within √γ exact standard deviations, and every variance within a factor 1 ± √(3γ).

        Parameters
        ----------
        lower : float
            Titsias' bound, which belongs to the q(f) that predicts.
        rounding : float
            What rounding may add to the difference, in nats.
        """
        gamma = 2 * (max(upper - lower, 0.0) + rounding)
        if not gamma <= 0.2:
            return cls(lower, upper)
        variance_error = float(np.sqrt(3 * gamma))
        return cls(lower, upper, float(np.sqrt(gamma)), variance_error, variance_error)

    @property
    def gap(self) -> float:
        """Upper − lower, in nats."""
        return max(self.upper - self.lower, 0.0)

    @property
    def sd_error(self) -> float:
        """The largest relative error of a posterior standard deviation."""
        below = 1 - np.sqrt(max(1 - self.variance_error, 0.0))
        return float(max(np.sqrt(1 + self.variance_error) - 1, below))

    @property
    def error(self) -> float:
        """The larger of the errors of means and standard deviations."""
        return max(self.mean_error, self.sd_error)

    @property
    def holds(self) -> bool:
        """Whether means and standard deviations are proven to be within the tolerance."""
        proven = self.kind != "estimate" and not self.replaces_prior
        return proven and self.error <= self.tolerance


def factorise(gram: NDArray[np.float64], noise_variance: float) -> NDArray[np.float64]:
    """Return the lower Cholesky factor of B = I + A/σ²."""
    return factorise_in_place(np.array(gram / noise_variance, order="F"))


def factorise_in_place(scaled_gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lower Cholesky factor of I + `scaled_gram`, which it overwrites."""
    np.einsum("ii->i", scaled_gram)[:] += 1
    chol, info = potrf(scaled_gram, lower=1, overwrite_a=1, clean=1)
    if info != 0 or np.min(np.einsum("ii->i", chol)) ** 2 < SMALLEST_PIVOT:
        raise PrecisionError(
            "The noise variance is too small, relative to the signal and the number of rows, for "
            "double precision: use a larger noise_variance or fewer features."
        )
    return chol


def whiten(chol: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return L⁻¹ v for each column v."""
    if not len(chol):
        # LAPACK prints a complaint about matrices of no rows.
        return np.zeros(vectors.shape)
    return trtrs(chol, np.asfortranarray(vectors), lower=1)[0]


def unwhiten(chol: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return L⁻ᵀ v for each column v."""
    return trtrs(chol, np.asfortranarray(vectors), lower=1, trans=1)[0]


def projected_bound(
    moments: Moments, noise_variance: float, chol: NDArray[np.float64] | None = None
) -> Bound:
    """Return log N(y | 0, Q + σ²I), term by term."""
    if chol is None:
        chol = factorise(moments.gram, noise_variance)
    explained = np.sum(whiten(chol, moments.projection) ** 2) / noise_variance
    return Bound(
        data_fit=float(-(np.sum(moments.yy) - explained) / (2 * noise_variance)),
        complexity=_complexity(moments, noise_variance, chol),
        trace=0.0,
    )


def titsias_bound(
    moments: Moments, noise_variance: float, chol: NDArray[np.float64] | None = None
) -> Bound:
    """Return Titsias' lower bound, that of the q(f) which predicts."""
    penalty = moments.residual_trace / (2 * noise_variance)
    return _penalised(projected_bound(moments, noise_variance, chol), moments, penalty)


def one_pass_bound(
    moments: Moments, noise_variance: float, chol: NDArray[np.float64] | None = None
) -> Bound:
    """Return the tightened lower bound by Jensen's inequality, from the moments alone."""
    mean_residual = moments.residual_trace / (moments.rows * noise_variance)
    penalty = moments.rows / 2 * np.log1p(mean_residual)
    return _penalised(projected_bound(moments, noise_variance, chol), moments, penalty)


def tightened_bound(
    moments: Moments,
    noise_variance: float,
    residual_variances: NDArray[np.float64],
    sample_weight: NDArray[np.float64] | None = None,
    chol: NDArray[np.float64] | None = None,
) -> Bound:
    """Return the tightened lower bound (Titsias 2025) from the residual variance of each row.

    Weights, if given, divide the rows' noise variance.
    """
    weights = 1.0 if sample_weight is None else sample_weight
    penalty = 0.5 * np.sum(np.log1p(weights * residual_variances / noise_variance))
    return _penalised(projected_bound(moments, noise_variance, chol), moments, penalty)


def upper_bound(
    moments: Moments,
    noise_variance: float,
    residual_norm: float | None = None,
    chol: NDArray[np.float64] | None = None,
) -> Bound:
    """Return the upper bound for a bound t = `residual_norm` on λ_max(K − Q).

    The trace Σ d_n is such a bound and is used if it is smaller or none is given.
    """
    if chol is None:
        chol = factorise(moments.gram, noise_variance)
    t = moments.residual_trace
    if residual_norm is not None:
        t = min(t, residual_norm)
    alpha = noise_variance + t
    explained = np.sum(whiten(factorise(moments.gram, alpha), moments.projection) ** 2) / alpha
    return Bound(
        data_fit=float(-(np.sum(moments.yy) - explained) / (2 * alpha)),
        complexity=_complexity(moments, noise_variance, chol),
        trace=0.0,
    )


def _complexity(moments: Moments, noise_variance: float, chol: NDArray[np.float64]) -> float:
    num_targets = len(moments.yy)
    log_det = 2 * np.sum(np.log(np.einsum("ii->i", chol)))
    normaliser = moments.rows * np.log(2 * np.pi * noise_variance) - moments.log_weights
    return float(-num_targets / 2 * (normaliser + log_det))


def _penalised(bound: Bound, moments: Moments, penalty: float) -> Bound:
    return bound._replace(trace=float(-len(moments.yy) * penalty))


class PredictionBounds(NamedTuple):
    """Where means and standard deviations of the exact process lie, each of the shape of y."""

    mean_lower: NDArray[np.float64]
    mean_upper: NDArray[np.float64]
    std_lower: NDArray[np.float64]
    std_upper: NDArray[np.float64]


# ---------------------------------------------------------------------- what is left out


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
