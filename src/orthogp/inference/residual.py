"""What the features leave out, measured on the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from orthogp.features import Lattice
from orthogp.features.lattice import lattice_masses, residual_mass
from orthogp.inference.series import SeriesBox
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics, FrequencyLattice


def residual_norm(features: Lattice, kernel: Kernel, statistics: FourierStatistics) -> float:
    r"""Return a bound on λ_max(K − Q) that is far below the trace for many rows.

    K − Q has the modes outside of the features; scaled by their masses, Gershgorin's theorem gives

        λ_max ≤ max_t Σ_{t'} mass_t' |point_sums[t − t']|

    a convolution over the modes within the lattice's extent. Those beyond enter by their trace.
    """
    lattice = statistics.lattice
    box = SeriesBox(lattice.extent)
    indices = lattice.half_indices()
    masses = lattice_masses(kernel, lattice, indices)
    unseen = ~np.isin(box.linear(indices), box.linear(features.indices))
    beyond = max(residual_mass(kernel, features.masses(kernel)) - 2 * masses[unseen].sum(), 0.0)
    inside = 0.0
    if unseen.any():
        flat = np.zeros(int(np.prod(box.shape)))
        positions = box.linear(indices[unseen])
        flat[box.middle + positions] = masses[unseen]
        flat[box.middle - positions] = masses[unseen]
        row_sums = fftconvolve(np.abs(statistics.point_sums), flat.reshape(box.shape), mode="valid")
        inside = float(row_sums.ravel()[box.middle + positions].max())
    return inside + statistics.count * beyond


def required_features(
    kernel: Kernel, lattice: FrequencyLattice, allowed_residual: float
) -> tuple[int, NDArray[np.float64]]:
    """Return how many of the largest masses leave out at most `allowed_residual`.

    The second value is the residual after each pair of features. If even all modes of the lattice
    leave out more, one more than their number is returned.
    """
    masses = lattice_masses(kernel, lattice, lattice.half_indices())
    ordered = np.sort(masses[1:])[::-1]
    total = residual_mass(kernel, masses[:1])
    residuals = np.maximum(total - np.concatenate([[0.0], np.cumsum(2 * ordered)]), 0.0)
    enough = np.flatnonzero(residuals <= allowed_residual)
    pairs = enough[0] if len(enough) else len(residuals)
    return int(2 * pairs + 1), residuals
