"""Where data and hyperparameters meet: all that the bounds need to know of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Features, MeanPrior
from orthogp.features.base import as_rows
from orthogp.features.lattice import LatticeFeatures
from orthogp.kernels import Kernel
from orthogp.statistics import RealSums, Statistics
from orthogp.statistics.nufft import chunks

ROWS_PER_CHUNK = 2**14


class Moments(NamedTuple):
    """The moments of the features over the data.

    Attributes
    ----------
    gram : (m, m)
        A = Σ w_n φ(x_n) φ(x_n)ᵀ.
    projection : (m, p)
        b = Σ w_n φ(x_n) y_n, for each target.
    yy : (p,)
        Σ w_n y_n².
    residual_trace : float
        Σ w_n d_n, d_n the prior variance that the features leave out at x_n.
    rows : float
        The number N of Gaussian factors: of rows if weights are precisions, Σ w_n if repeats.
    log_weights : float
        Σ log w_n if weights are precisions, zero if repeats.
    """

    gram: NDArray[np.float64]
    projection: NDArray[np.float64]
    yy: NDArray[np.float64]
    residual_trace: float
    rows: float
    log_weights: float


def moments_from_statistics(
    features: LatticeFeatures,
    kernel: Kernel,
    statistics: Statistics,
    *,
    repeats: bool = True,
    sums: RealSums | None = None,
) -> Moments:
    """Return the moments of lattice features from the sums, without the rows.

    Parameters
    ----------
    repeats : bool
        Whether a weight w counts a row w times; otherwise it divides the row's noise variance.
    sums : RealSums, optional
        `real_sums(features, statistics)`, if at hand.
    """
    masses = features.masses(kernel)
    amplitudes = np.sqrt(features.squared_amplitudes(masses))
    if sums is None:
        sums = real_sums(features, statistics)
    residual = features.residual(kernel)
    return Moments(
        gram=amplitudes[:, None] * sums.gram * amplitudes,
        projection=amplitudes[:, None] * sums.projection,
        yy=statistics.yy,
        residual_trace=statistics.count * residual,
        rows=statistics.count if repeats else statistics.rows,
        log_weights=0.0 if repeats else statistics.log_weights,
    )


def real_sums(features: LatticeFeatures, statistics: Statistics) -> RealSums:
    """Return the sums of products of the features' cosines and sines."""
    return statistics.real_sums(features.indices)  # type: ignore[attr-defined]


def moments_from_rows(
    features: Features,
    kernel: Kernel,
    X: NDArray,
    y: NDArray,
    sample_weight: NDArray | None = None,
    *,
    repeats: bool = True,
    mean: MeanPrior = MeanPrior(),  # noqa: B008 (immutable)
) -> Moments:
    """Return the moments of any features, summed over the rows in chunks.

    Columns of a `mean` follow the features (those of `Lattice` bring their own).
    """
    X = as_rows(X)
    m = features.num_features + mean.features(X[:1]).shape[1]
    targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
    weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    gram, projection = np.zeros((m, m)), np.zeros((m, targets.shape[1]))
    residual_trace = 0.0
    for part in chunks(len(X), ROWS_PER_CHUNK):
        Phi = np.concatenate([features.evaluate(kernel, X[part]), mean.features(X[part])], axis=1)
        weighted = weights[part, None] * Phi
        gram += weighted.T @ Phi
        projection += weighted.T @ targets[part]
        residual_trace += weights[part] @ features.residual_variance(kernel, X[part])
    positive = weights > 0
    return Moments(
        gram=gram,
        projection=projection,
        yy=np.einsum("n,np,np->p", weights, targets, targets),
        residual_trace=float(residual_trace),
        rows=float(weights.sum()) if repeats else float(np.count_nonzero(positive)),
        log_weights=0.0 if repeats else float(np.log(weights[positive]).sum()),
    )
