r"""Bounds on the log marginal likelihood, term by term, and the certificate they give.

With B = I + A/σ² (eigenvalues ≥ 1, so its Cholesky factor needs no jitter) and N factors:

    projected   −N/2 log 2πσ² − ½ log|B| − (yy − bᵀB⁻¹b/σ²)/(2σ²)
    titsias     projected − Σ d_n/(2σ²)
    one-pass    projected − (N/2) log(1 + Σ d_n/(N σ²))
    tightened   projected − ½ Σ log(1 + d_n/σ²)
    upper       −N/2 log 2πσ² − ½ log|B| − (yy − bᵀ(αI + A)⁻¹b)/(2α),   α = σ² + t

where t ≥ λ_max(K − Q) is any bound on what the features leave out. Always
titsias ≤ one-pass ≤ tightened ≤ log p(y) ≤ upper. Several targets share B and their bounds add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import PrecisionError
from orthogp.inference.moments import Moments

potrf, trtrs = get_lapack_funcs(("potrf", "trtrs"), dtype=np.float64)

# Schur complements of a matrix with eigenvalues ≥ 1 are ≥ 1. A pivot below this means that
# rounding in the sums has reached the noise variance.
SMALLEST_PIVOT = 0.9


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
    """How far the approximate posterior can be from the exact one.

    With γ = 2 (upper − lower) ≥ 2 KL(q‖p(f|y)), for γ ≤ 1/5 (Burt et al. 2019) every posterior mean
    lies within √γ exact posterior standard deviations, and every posterior variance within a factor
    1 ± √(3γ), of the exact ones.

    Attributes
    ----------
    lower, upper : float
        Titsias' bound, which belongs to the q(f) that predicts, and the upper bound.
    wrap_error : float
        max |k_P(τ) − k(τ)|/k(0) over lags within the data: the exact posterior meant here is that
        of the prior k_P.
    rounding : float
        What rounding and the transforms' tolerance may add to the difference, in nats.
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
    wrap_error: float
    rounding: float = 0.0
    quadrature_error: float = 0.0
    replaces_prior: bool = False

    @property
    def gap(self) -> float:
        """Upper − lower ≥ KL(q‖p), in nats."""
        return max(self.upper - self.lower, 0.0) + self.rounding

    @property
    def gamma(self) -> float:
        """γ = 2 gap."""
        return 2 * self.gap

    @property
    def holds(self) -> bool:
        """Whether γ is small enough to imply bounds on means and variances."""
        return self.gamma <= 0.2 and not self.replaces_prior

    @property
    def mean_error(self) -> float:
        """The largest error of a posterior mean, in exact posterior standard deviations."""
        return float(np.sqrt(self.gamma)) if self.holds else float("inf")

    @property
    def variance_error(self) -> float:
        """The largest relative error of a posterior variance."""
        return float(np.sqrt(3 * self.gamma)) if self.holds else float("inf")


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
