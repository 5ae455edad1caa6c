r"""What the features of an additive model leave out: a sharp upper bound on log p(y).

As in `orthogp.inference.residual`: K − Q = R + R', R from the kept modes that are no features,
whose sums with everything else are known, R' from the modes beyond. With α = σ² + t' and
t' ≥ λ_max(R'),

    yᵀ(K + σ²I)⁻¹y ≥ yᵀ(Q + αI)⁻¹y − vᵀRv,      v = (Q + αI)⁻¹y

R' is a sum over the components, and so is the bound t' on its norm: within the extent of each one's
own sums by Gershgorin's theorem, beyond it by the trace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice
from orthogp.features.base import prior_variance
from orthogp.features.masses import lattice_masses
from orthogp.inference.bounds import Bound, factorise, unwhiten, upper_bound, whiten
from orthogp.inference.moments import Moments
from orthogp.inference.residual import residual_norm
from orthogp.inference.series import SeriesBox
from orthogp.kernels import Kernel
from orthogp.kernels.additive import term_kernels
from orthogp.statistics import AdditiveStatistics


def sharp_additive_bound(
    features: AdditiveLattice,
    kernel: Kernel,
    statistics: AdditiveStatistics,
    moments: Moments,
    noise_variance: float,
    chol: NDArray[np.float64],
) -> Bound:
    """Return the smallest of the upper bounds that the statistics give."""
    by_trace = upper_bound(moments, noise_variance, None, chol)
    kernels = term_kernels(kernel)
    alpha = noise_variance + sum(_norm_beyond(statistics, j, own) for j, own in enumerate(kernels))
    factor = factorise(moments.gram, alpha)
    whitened = whiten(factor, moments.projection)
    explained = np.sum(whitened**2) / alpha
    amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
    z = amplitudes[:, None] * unwhiten(factor, whitened) / alpha
    residuals = statistics.residual_sums(features.indices, z)
    unseen = 0.0
    for own, component, chosen, sums in zip(
        kernels, statistics.components, features.indices, residuals, strict=True
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
