r"""Predictions of each row from all others, without fitting again.

A model of features φ is the linear regression y_n = φ_nᵀu + ε_n, u ~ N(0, I), of noise variance
s²/w_n. With f's posterior mean μ_n and variance q_n from the features, and H_n = w_n q_n/s², the
matrix inversion lemma gives for the posterior without row n

    y_n − μ_n' = (y_n − μ_n)/(1 − H_n),      q_n' = q_n/(1 − H_n)

A new observation has the variance q_n' + r_n + σ²/w_n, r_n what the features leave out of the
prior. With the iterative solver r_n counts as noise, s² = σ² + r_n; otherwise s² = σ². Weights that
are repeats take out all copies of a row, and each has the noise variance σ².
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.process import ExactPosterior
from orthogp.fields.posterior import MOST_JOINT, IterativePosterior
from orthogp.inference.family_posterior import FamilyPosterior
from orthogp.neighbours.posterior import NeighbourPosterior

if TYPE_CHECKING:
    from orthogp.regressor import GPRegressor

# Rounding may lead to H ≥ 1.
_LARGEST_LEVERAGE = 1 - 1e-7
# The iterative solver's variances are estimates, off by some per cent, and 1 − H is not if H is
# close to one. So many rows times modes can be solved for instead in some seconds; fewer rows than
# this are too few to tell anything.
_MOST_SOLVED, _FEWEST_ROWS = 2_000_000, 50


class LeaveOneOut(NamedTuple):
    """Residuals y − prediction (n, p) and predictive variances (n,), in standardised units."""

    residual: NDArray[np.float64]
    variance: NDArray[np.float64]


def affordable_rows(model: GPRegressor, num_rows: int) -> int:
    """Return of how many rows variances can be had that are good enough, of so many rows."""
    posterior = model.posterior_
    if not isinstance(posterior, IterativePosterior):
        return num_rows
    return min(num_rows, _solved_rows(posterior) or num_rows)


def _solved_rows(posterior: IterativePosterior) -> int:
    """Return for how many rows variances can be solved for, zero if for too few."""
    solved = min(_MOST_SOLVED // posterior.model.system.grid.size, MOST_JOINT)
    return solved if solved >= _FEWEST_ROWS else 0


def leave_one_out(
    model: GPRegressor,
    X: NDArray,
    y: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
) -> LeaveOneOut:
    """Return what all other rows say about each of these rows, which the model was fitted to.

    Parameters
    ----------
    X : (n, d)
        As the posterior sees them.
    y : (n, p)
        In the user's units.
    weights : (n,), optional
        Positive, as they were given to `fit`.
    """
    posterior = model.posterior_
    if isinstance(posterior, NeighbourPosterior):
        w = np.ones(len(X)) if weights is None else weights
        noise = posterior.noise_variance / (w if model.weights == "precisions" else 1.0)
        mean, variance = posterior.predict_without(X)
        return LeaveOneOut(
            (y - model.target_offset_) / model.target_scale_ - mean, variance + noise
        )
    exact = isinstance(posterior, ExactPosterior)
    prediction = posterior.predict_rows(X) if exact else posterior.predict(X)
    if isinstance(posterior, IterativePosterior) and len(X) <= _solved_rows(posterior):
        prediction = prediction._replace(variance=np.diag(posterior.covariance(X)))
    noise = posterior.noise_variance
    left_out = np.full(len(X), posterior.residual)
    fitted_noise = noise
    if isinstance(posterior, FamilyPosterior):
        left_out = posterior.features.residual_variance(posterior.kernel, X)
    elif isinstance(posterior, IterativePosterior):
        fitted_noise = noise + posterior.residual
    w = np.ones(len(X)) if weights is None else weights
    seen = np.maximum(prediction.variance - left_out, 0.0)
    rest = 1 - np.minimum(w * seen / fitted_noise, _LARGEST_LEVERAGE)
    if isinstance(posterior, IterativePosterior):
        # Whatever estimates say, the other rows leave no more than the prior.
        resolved = posterior.prior_variance - posterior.residual
        rest = np.maximum(rest, seen / max(resolved, 1e-300))
    standardised = (y - model.target_offset_) / model.target_scale_
    own_noise = noise / w if model.weights == "precisions" else noise
    residual = (standardised - prediction.mean) / rest[:, None]
    return LeaveOneOut(residual, seen / rest + left_out + own_noise)
