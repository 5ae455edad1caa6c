r"""How much of the variance over the rows each component of an additive model explains.

A component's mean is a series Σ_i z_i c_i(x) in cosines and sines, whose sums over the rows,
G_ij = Σ w_n c_i(x_n) c_j(x_n), give its variance there: zᵀGz/N − (G_0ᵀz/N)², c_0 = 1, N = G_00.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice
from orthogp.inference.moments import Moments
from orthogp.statistics import RealSums


class Shares(NamedTuple):
    """How the variance of each target over the rows comes about, relative to it.

    Attributes
    ----------
    components : (j, p)
        The variance of each component's posterior mean.
    residual : (p,)
        The mean square of what the posterior mean leaves; zero where the shares are those of a
        latent function, which is no target.
    """

    components: NDArray[np.float64]
    residual: NDArray[np.float64]


def target_shares(
    features: AdditiveLattice,
    amplitudes: NDArray[np.float64],
    mean: NDArray[np.float64],
    moments: Moments,
) -> Shares:
    """Return the shares of the targets' variance, for a posterior mean (m, p) of the features."""
    constant = amplitudes[0]
    count = moments.gram[0, 0] / constant**2
    totals = moments.projection[0] / constant
    variance = moments.yy / count - (totals / count) ** 2
    variance = np.where(variance > 0, variance, 1.0)
    components = []
    for own in features.slices:
        average = moments.gram[0, own] @ mean[own] / (constant * count)
        square = _squares(moments.gram[own, own], mean[own]) / count
        components.append(np.maximum(square - average**2, 0.0) / variance)
    cross = np.einsum("ip,ip->p", moments.projection, mean)
    left = np.maximum(moments.yy - 2 * cross + _squares(moments.gram, mean), 0.0) / count
    return Shares(np.array(components), left / variance)


def latent_shares(features: AdditiveLattice, z: NDArray[np.float64], sums: RealSums) -> Shares:
    """Return the shares of the variance of f's own mean, of coefficients z (m, p), over the rows.

    Parameters
    ----------
    sums : RealSums
        Over the rows, each counted as often as its weight says.
    """

    def variance(own: slice) -> NDArray[np.float64]:
        average = sums.gram[0, own] @ z[own] / count
        return np.maximum(_squares(sums.gram[own, own], z[own]) / count - average**2, 0.0)

    count = sums.gram[0, 0]
    total = variance(slice(None))
    total = np.where(total > 0, total, 1.0)
    components = [variance(own) / total for own in features.slices]
    return Shares(np.array(components), np.zeros_like(total))


def _squares(gram: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return zᵀ gram z for each column of z."""
    return np.einsum("ip,ip->p", gram @ z, z)
