"""The metric in which neighbours are near: distances in units of the kernel's lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.features.base import prior_variance
from orthogp.features.orders import correlation_lengths
from orthogp.kernels import Kernel
from orthogp.kernels.stationary import Radial

Array = NDArray[np.float64]


def metric_lengths(kernel: Kernel, X: Array) -> Array:
    """Return the length along each column over which the kernel's functions change, (d,).

    Lengthscales, of a sum those of the term that prevails along the column at short range.
    """
    num_dims = X.shape[1]
    width = np.ptp(X, axis=0)
    width = np.where(width > 0, width, 1.0)
    lengths = np.full(num_dims, np.inf)
    for primitive, dims in kernel.primitives():
        own = primitive.parameters().get("lengthscale")
        if own is None or not isinstance(primitive, Radial):
            return correlation_lengths(kernel, width)
        columns = list(range(num_dims)) if dims is None else list(dims)
        share = prior_variance(primitive) / prior_variance(kernel)
        if share > 0.02:
            spread = np.ravel(own)[primitive.lengthscale_places(len(columns))]
            lengths[columns] = np.minimum(lengths[columns], spread)
    # A column that no kernel sees must not tell rows apart.
    return np.where(np.isfinite(lengths), lengths, 1e6 * width)
