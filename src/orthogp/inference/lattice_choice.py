"""Which lattice suits a kernel, a noise level and a budget, when modes are counted in thousands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features.masses import lattice_masses
from orthogp.inference.domain import Domain
from orthogp.inference.mode_grid import fast_extent
from orthogp.inference.wrapping import required_period
from orthogp.kernels import Kernel
from orthogp.statistics import FrequencyLattice

# The lattice ends where the data's say has fallen to this much of the prior's, by number of
# columns: along a line modes cost little.
_RESOLVED = {1: 0.02, 2: 0.25, 3: 0.25}
# The most modes by number of columns, and for each row.
_MOST_MODES = {1: 2_200_000, 2: 260_000, 3: 2_000_000}
_MODES_PER_ROW = {1: 4.0, 2: 1.0, 3: 1.0}
# How much longer than the data the period may be: what the wrap tolerance asks for, up to this.
_LONGEST_PERIOD = {1: 4.0, 2: 1.5, 3: 1.35}
_SHORTEST_PERIOD = 1.15
# Bytes for each mode, measured: solutions, directions and images, their values on a grid of twice
# the points in every direction, and the factor.
_BYTES_PER_MODE = {1: 2000.0, 2: 7000.0, 3: 7000.0}
_FEWEST_MODES = 201


@dataclass(frozen=True)
class LatticeChoice:
    """A lattice, and how it came about.

    Attributes
    ----------
    lattice : FrequencyLattice
    num_modes : int
    wanted : int
        The modes that the noise level asks for.
    limited_by : str
        What kept the number below that, or nothing.
    """

    lattice: FrequencyLattice
    num_modes: int
    wanted: int
    limited_by: str


def choose_lattice(
    kernel: Kernel,
    noise_variance: float,
    count: float,
    extent: Domain,
    width: NDArray[np.float64],
    wrap_tolerance: float,
    max_memory: float | None = None,
    max_modes: float | None = None,
) -> LatticeChoice:
    """Return the lattice on which all modes that the data can tell from noise have a place.

    Along each axis it ends where N' s(ω) is a fraction of σ², with N' the rows that a period would
    hold at the data's density.
    """
    num_dims = len(width)
    needed = required_period(kernel, width, wrap_tolerance)
    period = np.clip(needed, _SHORTEST_PERIOD * width, _LONGEST_PERIOD[num_dims] * width)
    spacing = 2 * np.pi / period
    density = count * float(np.prod(period / width)) / noise_variance
    most = _MOST_MODES[num_dims]
    reach = np.array(
        [_last_resolved(kernel, spacing, axis, density, 4 * most) for axis in range(num_dims)]
    )
    wanted = float(np.prod(2 * reach + 1))
    by_rows = max(_MODES_PER_ROW[num_dims] * count * float(np.prod(period / width)), _FEWEST_MODES)
    limits = {"the most that the solver takes": float(most), "the number of rows": by_rows}
    if max_memory is not None:
        limits["max_memory"] = max_memory / _BYTES_PER_MODE[num_dims]
    if max_modes is not None:
        limits["what was asked for"] = max_modes
    limited_by = min(limits, key=limits.__getitem__)
    if max_memory is not None and limits["max_memory"] < _FEWEST_MODES:
        raise InputError(
            f"max_memory = {max_memory:.3g} bytes is too little for any model: give at least "
            f"{_FEWEST_MODES * _BYTES_PER_MODE[num_dims]:.0f}."
        )
    extents = reach
    if wanted > limits[limited_by]:
        extents = _shrunk(reach, limits[limited_by])
    else:
        limited_by = ""
    fast = np.array([fast_extent(max(int(k), 2)) for k in extents])
    lattice = FrequencyLattice(spacing, fast, (extent.lower + extent.upper) / 2)
    return LatticeChoice(lattice, int(np.prod(2 * fast + 1)), int(min(wanted, 1e15)), limited_by)


def _last_resolved(
    kernel: Kernel, spacing: NDArray[np.float64], axis: int, density: float, most: int
) -> int:
    """Return the last index along an axis at which the data still have a say."""
    steps = np.unique(np.geomspace(1, most, 400).astype(np.int64))
    indices = np.zeros((len(steps), len(spacing)), dtype=np.int64)
    indices[:, axis] = steps
    masses = lattice_masses(kernel, FrequencyLattice(spacing, most), indices)
    above = np.flatnonzero(density * masses > _RESOLVED[len(spacing)])
    return int(steps[above[-1]]) if len(above) else 1


def _shrunk(reach: NDArray[np.int64], most: float) -> NDArray[np.int64]:
    """Return extents in the same proportions with at most so many modes."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.prod(2 * np.floor(middle * reach) + 1) <= most:
            low = middle
        else:
            high = middle
    return np.maximum(np.floor(low * reach), 1).astype(np.int64)
