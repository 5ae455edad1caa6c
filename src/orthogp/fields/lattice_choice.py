"""Which lattice suits a kernel, a noise level and a budget, when modes are counted in thousands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features.series import lattice_masses
from orthogp.fields.modes import fast_extent
from orthogp.kernels import Kernel
from orthogp.learning.limits import required_period, wrap_error
from orthogp.rows import Domain
from orthogp.statistics import FrequencyLattice

# The lattice ends where the data's say has fallen to this much of the prior's, by number of
# columns: along a line modes cost little.
_RESOLVED = {1: 0.02, 2: 0.25, 3: 0.25}
# The most modes by number of columns, and for each row.
_MOST_MODES = {1: 2_200_000, 2: 400_000, 3: 150_000}
_MODES_PER_ROW = {1: 4.0, 2: 2.0, 3: 0.3}
# How much longer than the data the period may be: what the wrap tolerance asks for, up to this, and
# less where modes are short, since resolution is then worth more: this much, or what brings the
# wrapped prior within such an error of the kernel, by steps of such a factor.
_LONGEST_PERIOD = {1: 4.0, 2: 1.5, 3: 1.35}
_TIGHT_PERIOD = {1: 4.0, 2: 1.2, 3: 1.2}
_TIGHT_TOLERANCE, _STEP = {1: 1.0, 2: 0.05, 3: 1.0}, 1.05
_SHORTEST_PERIOD = 1.15
# Bytes for each mode, measured: solutions, directions and images, their values on a grid of twice
# the points in every direction, and the factor.
_BYTES_PER_MODE = {1: 2000.0, 2: 7000.0, 3: 7000.0}
_FEWEST_MODES = 201
# Seconds for each mode, of little learning and the posterior on two cores: what may be chosen if
# time is short, and the fewest for which it always is enough.
_SECONDS_PER_MODE = {1: 1e-4, 2: 4e-4, 3: 3e-3}
_ALWAYS_IN_TIME = 2000
_BY_ROWS = "the number of rows"


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
    max_seconds: float | None = None,
) -> LatticeChoice:
    """Return the lattice on which all modes that the data can tell from noise have a place.

    Along each axis it ends where N' s(ω) is a fraction of σ², with N' the rows that a period would
    hold at the data's density.
    """
    num_dims = len(width)
    if max_memory is not None and max_memory / _BYTES_PER_MODE[num_dims] < _FEWEST_MODES:
        raise InputError(
            f"max_memory = {max_memory:.3g} bytes is too little for any model: give at least "
            f"{_FEWEST_MODES * _BYTES_PER_MODE[num_dims]:.0f}."
        )
    long, tight = _periods(kernel, width, wrap_tolerance)
    for period in (long, tight):
        spacing = 2 * np.pi / period
        rows = count * float(np.prod(period / width))
        reach = _resolved(kernel, spacing, rows / noise_variance)
        wanted = float(np.prod(2 * reach + 1))
        limits = {
            "the most that the solver takes": float(_MOST_MODES[num_dims]),
            _BY_ROWS: max(_MODES_PER_ROW[num_dims] * rows, _FEWEST_MODES),
        }
        if max_memory is not None:
            limits["max_memory"] = max_memory / _BYTES_PER_MODE[num_dims]
        if max_modes is not None:
            limits["what was asked for"] = max_modes
        if max_seconds is not None:
            in_time = max_seconds / _SECONDS_PER_MODE[num_dims]
            limits["max_seconds"] = max(in_time, _ALWAYS_IN_TIME)
        limited_by = min(limits, key=limits.__getitem__)
        # A shorter period leaves as many modes for each row as before.
        if wanted <= limits[limited_by] or limited_by == _BY_ROWS:
            break
    extents = reach
    if wanted > limits[limited_by]:
        extents = _shrunk(reach, limits[limited_by])
    else:
        limited_by = ""
    fast = np.array([fast_extent(max(int(k), 2)) for k in extents])
    lattice = FrequencyLattice(spacing, fast, (extent.lower + extent.upper) / 2)
    return LatticeChoice(lattice, int(np.prod(2 * fast + 1)), int(min(wanted, 1e15)), limited_by)


def _periods(
    kernel: Kernel, width: NDArray[np.float64], wrap_tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the period to be had if modes are plenty, and the one if they are short."""
    num_dims = len(width)
    tolerance = _TIGHT_TOLERANCE[num_dims]
    needed = required_period(kernel, width, wrap_tolerance)
    long = np.clip(needed, _SHORTEST_PERIOD * width, _LONGEST_PERIOD[num_dims] * width)
    needed = required_period(kernel, width, tolerance)
    tight = np.minimum(long, np.maximum(needed, _TIGHT_PERIOD[num_dims] * width))
    # What suffices along the axes may not along the diagonals, if the kernel is slanted.
    while np.any(tight < long) and wrap_error(kernel, tight, width) > tolerance:
        tight = np.minimum(long, _STEP * tight)
    return long, tight


def _resolved(kernel: Kernel, spacing: NDArray[np.float64], density: float) -> NDArray[np.int64]:
    """Return the last index along each axis at which the data still have a say."""
    num_dims = len(spacing)
    most = 4 * _MOST_MODES[num_dims]
    steps = np.unique(np.geomspace(1, most, 400).astype(np.int64))
    reach = np.ones(num_dims, dtype=np.int64)
    for axis in range(num_dims):
        indices = np.zeros((len(steps), num_dims), dtype=np.int64)
        indices[:, axis] = steps
        masses = lattice_masses(kernel, FrequencyLattice(spacing, most), indices)
        above = np.flatnonzero(density * masses > _RESOLVED[num_dims])
        if len(above):
            reach[axis] = steps[above[-1]]
    return reach


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
