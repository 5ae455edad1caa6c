"""How far learned parameters may go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.parameters import Slot, pack, unpack
from orthogp.kernels import Cyclic, Kernel, Rotated
from orthogp.kernels.stationary import Radial
from orthogp.learning.wrapping import lengthscale_limits
from orthogp.statistics import FrequencyLattice

#: The smallest noise variance, relative to the variance of the targets.
NOISE_FLOOR = 1e-9

# Limits of parameters in units where the targets have variance one; lengthscales have their own,
# and any other parameter may move by a factor of four from its start.
_LIMITS = {
    "variance": (1e-6, 1e5),
    "weights": (1e-6, 1e5),
    "nu": (0.1, 15.0),
    "alpha": (0.3, 500.0),
    "shape_lengthscale": (0.1, 50.0),
}
# Where covariances are taken at the rows' own lags no quadrature limits the rational quadratic
# kernel, which becomes an RBF for large α.
_ROW_LIMITS = {**_LIMITS, "alpha": (0.1, 1e4)}
# Lengthscales reach from where all rows are apart to where a column does not matter any more.
_CLOSEST, _FARTHEST = 1e-2, 1e4


def parameter_limits(
    kernel: Kernel,
    slots: tuple[Slot, ...],
    lattice: FrequencyLattice,
    width: NDArray[np.float64],
    wrap_tolerance: float,
    noise_floor: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper limits of the log parameters and, last, of the log noise variance.

    Lengthscales end where the wrapped prior on `lattice` would leave the kernel.
    """
    highest = np.max(lattice.spacing * np.maximum(lattice.extent, 1))
    lower, upper = [], []
    values = _split(pack(kernel, slots), slots)
    for slot, logs in zip(slots, values, strict=True):
        if slot.name == "lengthscale":
            longest = lengthscale_limits(kernel, slot, lattice.period, width, wrap_tolerance)
            high = np.log(longest).ravel()
            low = np.minimum(np.log(0.3 / highest), high)
        elif slot.is_angle:
            low, high = logs - np.pi, logs + np.pi
        elif slot.name in _LIMITS:
            low, high = (np.full(slot.size, np.log(edge)) for edge in _LIMITS[slot.name])
        else:
            low, high = logs - np.log(4), logs + np.log(4)
        lower.append(low)
        upper.append(high)
    lower.append(np.log([noise_floor]))
    upper.append(np.log([1e3]))
    return np.concatenate(lower), np.concatenate(upper)


def row_limits(
    kernel: Kernel, slots: tuple[Slot, ...], X: NDArray[np.float64], noise_floor: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper limits of the log parameters and, last, of the log noise variance.

    For models of the rows X themselves, (n, d), which no lattice limits.
    """
    closest, width = _spacings(X), np.ptp(X, axis=0)
    width = np.where(width > 0, width, 1.0)
    primitives = list(kernel.primitives())
    lower, upper = [], []
    for slot, flat in zip(slots, _split(pack(kernel, slots), slots), strict=True):
        logs = flat.reshape(slot.shape)
        primitive, dims = primitives[slot.primitive]
        columns = slice(None) if dims is None else list(dims)
        short, long = closest[columns], width[columns]
        if slot.name == "lengthscale":
            low, high = np.log(_CLOSEST * short), np.log(_FARTHEST * long)
            if isinstance(primitive, Cyclic):
                high = np.log(primitive.period)
                low = np.minimum(np.min(low), high)
            elif isinstance(primitive, Radial):
                low, high = per_lengthscale(primitive, low, high)
            elif isinstance(primitive, Rotated) or slot.shape in ((), (1,)):
                low, high = np.min(low), np.max(high)
        elif slot.name == "period":
            low, high = np.log(2 * short.min()), np.log(4 * long.max())
        elif slot.is_angle:
            low, high = logs - np.pi, logs + np.pi
        elif slot.name in _ROW_LIMITS:
            low, high = np.log(_ROW_LIMITS[slot.name])
        else:
            low, high = logs - np.log(4), logs + np.log(4)
        lower.append(np.broadcast_to(low, slot.shape).ravel())
        upper.append(np.broadcast_to(high, slot.shape).ravel())
    lower.append(np.log([noise_floor]))
    upper.append(np.log([1e3]))
    return np.concatenate(lower), np.concatenate(upper)


def per_lengthscale(
    primitive: Radial, low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return limits of a primitive's lengthscales that hold for all columns which share them."""
    shape = primitive.parameters()["lengthscale"].shape
    places = primitive.lengthscale_places(len(low))
    least, most = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(least.reshape(-1), places, low)
    np.maximum.at(most.reshape(-1), places, high)
    return least, most


def _spacings(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shortest distance between different values of each column, one if all agree."""
    gaps = np.diff(np.sort(X, axis=0), axis=0)
    width = np.ptp(X, axis=0)
    # Values that differ by rounding only are the same.
    apart = np.where(gaps > 1e-9 * width, gaps, np.inf)
    shortest = np.min(apart, axis=0, initial=np.inf)
    return np.where(np.isfinite(shortest), shortest, 1.0)


def within_limits(
    kernel: Kernel,
    slots: tuple[Slot, ...],
    vector: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    lattice: FrequencyLattice,
) -> NDArray[np.float64]:
    """Return a vector moved within limits, with the same prior at the lattice's ends.

    A shorter lengthscale alone would make functions rougher, where data are dense and know better:
    the variance of the primitive that prevails at the highest frequencies is scaled so that its
    spectral density there stays.
    """
    clipped = np.clip(vector, lower, upper)
    if np.array_equal(clipped, vector):
        return vector
    omega = lattice.spacing * lattice.extent
    before, after = (unpack(kernel, slots, part[:-1]) for part in (vector, clipped))
    primitives = [primitive for primitive, _ in after.primitives()]
    old, new = (
        [
            float(primitive.spectral_density(omega if dims is None else omega[list(dims)]))
            for primitive, dims in whole.primitives()
        ]
        for whole in (before, after)
    )
    roughest = int(np.argmax(old))
    if old[roughest] > 0 and new[roughest] > 0:
        primitives[roughest] = primitives[roughest].scaled(old[roughest] / new[roughest])
    moved = np.append(pack(after.with_primitives(iter(primitives)), slots), clipped[-1])
    return np.clip(moved, lower, upper)


def names_at_limit(
    slots: tuple[Slot, ...],
    vector: NDArray[np.float64],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> tuple[str, ...]:
    """Return the kernel parameters that ended at a limit; the noise variance is not one."""
    names = []
    for slot in slots:
        entries = [""] if slot.size == 1 else [f" {i}" for i in range(slot.size)]
        names += [f"{slot.name}{entry}" for entry in entries]
    near = (vector > upper - 1e-3) | (vector < lower + 1e-3)
    return tuple(name for name, hit in zip(names, near[: len(names)], strict=True) if hit)


def _split(vector: NDArray[np.float64], slots: tuple[Slot, ...]) -> list[NDArray[np.float64]]:
    edges = np.cumsum([slot.size for slot in slots])[:-1]
    return np.split(vector, edges) if slots else []
