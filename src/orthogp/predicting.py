"""What a regressor says beyond means of f: bounds on the exact process; moments of y."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from orthogp.errors import InputError
from orthogp.validation import check_no_sizes, check_probabilities, with_sizes

if TYPE_CHECKING:
    from orthogp.regressor import GPRegressor

Floats = NDArray[np.float64]


class PredictionBounds(NamedTuple):
    """Where means and standard deviations of the exact process lie, each of the shape of y."""

    mean_lower: Floats
    mean_upper: Floats
    std_lower: Floats
    std_upper: Floats


def prediction_bounds(model: GPRegressor, X: NDArray, include_noise: bool) -> PredictionBounds:
    """Return the bounds on the exact process at rows as the posterior sees them."""
    posterior: Any = model.posterior_
    if model._predictive is not posterior:
        raise InputError(
            "There are no bounds for predictions that integrate over hyperparameters: use "
            'hyperparameters="optimise".'
        )
    mean, variance = posterior.predict(X)
    errors, lower, upper = np.zeros_like(mean), variance, variance
    guarantee = getattr(posterior, "guarantee", None)
    if guarantee is not None:
        noise = posterior.noise_variance
        lower, upper = guarantee.variances(variance, posterior.residual, noise)
        errors = guarantee.mean_errors(lower, upper, noise) * np.sqrt(upper)[:, None]
        outside = model._sketch.extent.outside(X)
        if outside is not None:
            # The period of the prior is long enough for the box of the rows, not beyond it.
            errors[outside], lower[outside], upper[outside] = np.inf, 0.0, np.inf
    elif model.engine_ != "exact":
        raise InputError(
            f"There are no bounds point by point for the engine {model.engine_!r}: use "
            'solver="dense" for up to three columns, or solver="exact" for few rows.'
        )
    extra = posterior.noise_variance if include_noise else 0.0
    scale, offset = model.target_scale_, model.target_offset_
    return PredictionBounds(
        model._shaped((mean - errors) * scale + offset),
        model._shaped((mean + errors) * scale + offset),
        model._shaped(np.sqrt(lower + extra)[:, None] * scale),
        model._shaped(np.sqrt(upper + extra)[:, None] * scale),
    )


def latent(model: GPRegressor, X: NDArray) -> tuple[Floats, Floats]:
    """Return mean and variance of f at rows as the posterior sees them, (n,) each."""
    mean, variance = model.posterior_.predict(X)
    return mean[:, 0] + model.target_offset_[0], variance


def target_moments(
    model: GPRegressor, X: ArrayLike, sizes: Mapping[str, Any], return_std: bool, joint: bool
) -> Any:
    """Return the means of y, and standard deviations if asked, for noise that is not Gaussian.

    Covariances or bounds, which are asked for if `joint`, are refused: there are none.
    """
    family = model.likelihood_
    if joint:
        raise InputError(
            f"The {model.likelihood} likelihood has no covariances or bounds of y: use "
            "predict_latent, or draws (sample_y)."
        )
    assert family is not None
    mean, variance = family.moments(*latent(model, model._inputs(X)), _sizes(model, X, sizes))
    return (mean, np.sqrt(variance)) if return_std else mean


def target_quantiles(
    model: GPRegressor, X: ArrayLike, quantiles: Any, sizes: Mapping[str, Any]
) -> Floats:
    """Return quantiles of y, along the last axis."""
    probabilities = check_probabilities(quantiles)
    family = model.likelihood_
    if family is None:
        check_no_sizes(model.likelihood, **sizes)
        mean, std = model.predict(X, return_std=True, include_noise=True)
        return mean[..., None] + std[..., None] * ndtri(probabilities)
    own, f = _sizes(model, X, sizes), latent(model, model._inputs(X))
    return np.stack([family.quantile(p, *f, own) for p in probabilities], axis=-1)


def _sizes(model: GPRegressor, X: ArrayLike, sizes: Mapping[str, Any]) -> Floats:
    """Return exposures or trials of new observations, (n,)."""
    targets = np.zeros(len(np.asarray(X)))
    sized = with_sizes(model.likelihood, targets, **sizes)
    return np.ones(len(targets)) if np.ndim(sized) == 1 else np.asarray(sized)[:, 1]
