r"""How far learned parameters may go, and how long the period must be.

The error of the wrapped prior over the data is

    ε = max |k_P(τ) − k(τ)| / k(0)   over lags τ within the data's extent

The statistics hold a fine lattice, of long period. A coarser one (a decimation) needs fewer
features; the coarsest whose ε stays below the tolerance is used, and lengthscales are bounded by
what even the finest can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.spatial import KDTree

from orthogp.features.base import prior_variance
from orthogp.inference.certificates import Images
from orthogp.inference.parameters import Slot, pack, unpack
from orthogp.kernels import RBF, Cyclic, Kernel, Rotated
from orthogp.kernels.stationary import Radial
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

# Fractions of the extent at which the error is looked at. It grows towards the largest lag, except
# for oscillating kernels.
_FRACTIONS = np.linspace(0.0, 1.0, 9)[1:]
# The shortest period, relative to the data's extent.
_SHORTEST = 1.1
_OUT_OF_REACH = 1e6
# The number of images on each side whose correlations with the data's box are added. With the
# first at a tenth, those beyond are below rounding.
_NUM_IMAGES = 16
# The largest ratio of covariances by which a difference is bounded.
_LARGEST_RATIO = 0.1
# Lags per compiled call.
_BLOCK = 128
# The stretches of lengthscales that are tried, fine enough that the headroom asked of a period
# always shows in the limits it gives.
_STRETCHES = 2.0 ** (np.arange(-6 * 12, 8 * 12 + 1) / 12)
# The step between the stretches that are tried first.
_STRIDE = 4
# The periods that are tried, in extents of the data.
_RATIOS = 2.0 ** (np.arange(3, 8 * 16 + 1) / 16)
# The step between the periods that are tried first: they fill one compiled call.
_STRIDE_OF_RATIOS = 8


def wrap_error(kernel: Kernel, period: NDArray[np.float64], width: NDArray[np.float64]) -> float:
    """Return ε for data that extend over `width` in each column.

    Looked at along the axes and all diagonals: a `Rotated` kernel may be longest along any.
    """
    num_dims = len(width)
    directions = [way for way in product((1, 0, -1), repeat=num_dims) if any(way)]
    # One of each pair of opposites.
    corners = np.array(directions[: len(directions) // 2])
    lags = (_FRACTIONS[:, None, None] * corners * width).reshape(-1, num_dims)
    return float(np.max(_deviations(kernel, lags, np.broadcast_to(period, lags.shape))))


def images(kernel: Kernel, period: NDArray[np.float64], width: NDArray[np.float64]) -> Images:
    r"""Return what bounds the difference between k_P and k over the data.

    The process on the data's box and that on its j-th image, a gap of |j|P − L away, have
    correlations of at most ρ_j, so that Σ_j k(τ + jP) is, as a covariance over the box, within
    ε = 2Σ_{j≥1} ρ_j of k. It is doubled for the factor c ≥ 1 − ε of k_P.
    """
    ratio, deviation = 0.0, 0.0
    for own in kernel.summands:
        own_ratio = 1.0
        if len(width) == 1:
            gaps = np.arange(1, _NUM_IMAGES + 1) * period[0] - width[0]
            own_ratio = 4 * sum(own.correlation_across(float(gap)) for gap in gaps)
        if own_ratio < _LARGEST_RATIO:
            ratio = max(ratio, own_ratio)
        else:
            deviation += wrap_error(own, period, width) * prior_variance(own)
    return Images(ratio, deviation)


def choose_decimation(
    kernel: Kernel,
    lattice: FrequencyLattice,
    width: NDArray[np.float64],
    tolerance: float,
    headroom: float = 1.0,
    allowed: Sequence[Sequence[int]] | None = None,
) -> NDArray[np.int64]:
    """Return the largest decimation of each axis at which ε ≤ tolerance, (d,).

    `headroom` asks for as much with all lengthscales so many times longer; `allowed` lists the
    factors to choose from for each axis.
    """
    factors = np.ones(lattice.num_dims, dtype=np.int64)
    for d in range(lattice.num_dims):
        largest = max(1, int(lattice.period[d] / (_SHORTEST * width[d])))
        candidates = np.arange(1, largest + 1)
        if allowed is not None:
            candidates = np.intersect1d(candidates, allowed[d])
        periods = lattice.period[d] / candidates
        widths = np.full(len(candidates), width[d])
        errors = _axis_errors(kernel, d, lattice.num_dims, periods / headroom, widths / headroom)
        good = candidates[errors <= tolerance]
        factors[d] = good[-1] if len(good) else 1
    return factors


def required_period(
    kernel: Kernel, width: NDArray[np.float64], tolerance: float, headroom: float = 1.0
) -> NDArray[np.float64]:
    """Return a period, of up to 256 extents, at which ε ≤ tolerance along each axis, (d,)."""
    period = np.empty(len(width))
    for d in range(len(width)):

        def good(ratios: NDArray[np.float64], d: int = d) -> NDArray[np.bool_]:
            widths = np.full(len(ratios), width[d])
            periods = ratios * widths
            errors = _axis_errors(kernel, d, len(width), periods / headroom, widths / headroom)
            return errors <= tolerance

        first = _first(good, _RATIOS, _STRIDE_OF_RATIOS)
        period[d] = width[d] * _RATIOS[-1 if first is None else first]
    return period


def lengthscale_limits(
    kernel: Kernel,
    slot: Slot,
    period: NDArray[np.float64],
    width: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.float64]:
    """Return the longest value of each lengthscale of a slot that keeps ε ≤ tolerance.

    Stretching a kernel is shrinking period and extent, so one table of errors answers for all
    stretches. None is longer than the period: a term that is all but constant over it has a small
    ε again, but more images than are summed to make k_P(0) = k(0).
    """
    primitives = list(kernel.primitives())
    primitive, dims = primitives[slot.primitive]
    if isinstance(primitive, Cyclic):
        # Its wrap is no error; beyond the period it is all but constant.
        return np.full(slot.shape, primitive.period)
    columns = np.arange(len(width)) if dims is None else np.array(dims)
    period, width = period[columns], width[columns]
    # Errors are relative to the whole kernel's variance, as they are when the period is chosen.
    share = _share(kernel, slot.primitive)
    stretches = np.empty(len(columns))
    for d in range(len(columns)):

        def bad(tried: NDArray[np.float64], d: int = d) -> NDArray[np.bool_]:
            periods, widths = period[d] / tried, width[d] / tried
            errors = _axis_errors(primitive, d, len(columns), periods, widths)
            return share * errors > tolerance

        first = _first(bad, _STRETCHES, _STRIDE)
        stretches[d] = _STRETCHES[-1 if first is None else max(first - 1, 0)]
    current = np.asarray(primitive.parameters()["lengthscale"])
    if current.ndim == 0 or isinstance(primitive, Rotated):
        return np.minimum(current * stretches.min(), period.min())
    return np.minimum(current * stretches, period)


def _first(
    holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
    values: NDArray[np.float64],
    stride: int,
) -> int | None:
    """Return the place of the first of some values that something holds for.

    Every `stride`-th is tried, then those before the first of them. What holds for less than a
    stride is passed over: an error that peaks there, little above the tolerance.
    """
    coarse = np.flatnonzero(holds(values[::stride]))
    end = stride * int(coarse[0]) if len(coarse) else len(values)
    begin = max(0, stride * ((end - 1) // stride) + 1)
    fine = np.flatnonzero(holds(values[begin:end])) if begin < end else coarse[:0]
    if len(fine):
        return begin + int(fine[0])
    return end if len(coarse) else None


def _share(kernel: Kernel, primitive: int) -> float:
    """Return the share of k(0) that vanishes with a primitive: all of a product it is part of."""
    nothing = RBF().scaled(0.0)
    without = kernel.with_primitives(
        nothing if i == primitive else own for i, (own, _) in enumerate(kernel.primitives())
    )
    return 1 - prior_variance(without) / prior_variance(kernel)


def _axis_errors(
    kernel: Kernel,
    axis: int,
    num_dims: int,
    periods: NDArray[np.float64],
    widths: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the largest deviation along one axis for each of its periods and extents, (n,).

    The other axes have periods out of reach, so that their images do not count.
    """
    lags = np.zeros((len(periods), len(_FRACTIONS), num_dims))
    lags[:, :, axis] = widths[:, None] * _FRACTIONS
    vectors = np.full(lags.shape, _OUT_OF_REACH * periods.max())
    vectors[:, :, axis] = periods[:, None]
    flat = (-1, num_dims)
    deviations = _deviations(kernel, lags.reshape(flat), vectors.reshape(flat))
    return deviations.reshape(len(periods), len(_FRACTIONS)).max(axis=1)


def _deviations(
    kernel: Kernel, lags: NDArray[np.float64], periods: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return |k_P(τ) − k(τ)|/k(0) for pairs of lag and period, in blocks of one shape.

    The same kernel is asked about several times in a fit; sums over images can take half a second.
    """
    values, structure = jax.tree.flatten(kernel)
    key = (structure, *(np.asarray(own).tobytes() for own in (*values, lags, periods)))
    found = _KNOWN.get(key)
    if found is None:
        for old in list(_KNOWN)[: max(len(_KNOWN) - _MOST_KNOWN + 1, 0)]:
            _KNOWN.pop(old, None)
        found = _KNOWN[key] = _computed(kernel, lags, periods)
    return found


# The latest deviations, the oldest first.
_KNOWN: dict[Hashable, NDArray[np.float64]] = {}
_MOST_KNOWN = 64


def _computed(
    kernel: Kernel, lags: NDArray[np.float64], periods: NDArray[np.float64]
) -> NDArray[np.float64]:
    size = len(lags)
    padding = ((0, -size % _BLOCK), (0, 0))
    lags = np.pad(lags, padding).reshape(-1, _BLOCK, lags.shape[1])
    periods = np.pad(periods, padding, mode="edge").reshape(lags.shape)
    parts = [np.asarray(_compiled(kernel, *pair)) for pair in zip(lags, periods, strict=True)]
    return np.concatenate(parts)[:size]


@in_double
@eqx.filter_jit
def _compiled(
    kernel: Kernel, lags: Float[AnyArray, "n d"], periods: Float[AnyArray, "n d"]
) -> Float[AnyArray, " n"]:
    def deviation(lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        difference = kernel.wrapped(lag, period) - kernel.k(lag)
        return jnp.abs(difference) / kernel.prior_variance()

    return jax.vmap(deviation)(jnp.asarray(lags), jnp.asarray(periods))


#: The smallest noise variance, relative to the variance of the targets.
NOISE_FLOOR = 1e-9
# The largest, in the same unit.
_MOST_NOISE = 1e3

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
# The smallest lengthscale, relative to the smallest distance of rows: all rows are far apart then.
_CLOSEST = 1e-2
# The number of other rows that half of the rows have within the smallest lengthscale of a term, of
# several on different columns: with fewer the term cannot be told from noise.
_TOLD_BY = 4
# The largest lengthscale, relative to the extent of the data: the column has no effect then.
_FARTHEST = 1e4


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
    upper.append(np.log([max(_MOST_NOISE, _MOST_NOISE * noise_floor / NOISE_FLOOR)]))
    return np.concatenate(lower), np.concatenate(upper)


def row_limits(
    kernel: Kernel, slots: tuple[Slot, ...], X: NDArray[np.float64], noise_floor: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper limits of the log parameters and, last, of the log noise variance.

    For models of the rows X themselves, (n, d), which no lattice limits.
    """
    closest, width = _spacings(X), np.ptp(X, axis=0)
    width = np.where(width > 0, width, 1.0)
    primitives, told = list(kernel.primitives()), told_apart(kernel, X / width)
    lower, upper = [], []
    for slot, flat in zip(slots, _split(pack(kernel, slots), slots), strict=True):
        logs = flat.reshape(slot.shape)
        primitive, dims = primitives[slot.primitive]
        columns = slice(None) if dims is None else list(dims)
        short, long = closest[columns], width[columns]
        if slot.name == "lengthscale":
            low = np.log(np.maximum(_CLOSEST * short, told[slot.primitive] * long))
            high = np.log(_FARTHEST * long)
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
    upper.append(np.log([max(_MOST_NOISE, _MOST_NOISE * noise_floor / NOISE_FLOOR)]))
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


def told_apart(kernel: Kernel, X: NDArray[np.float64]) -> list[float]:
    """Return for each primitive the distance within which half of the rows have some others.

    In the columns of its term, of rows whose columns have width one; zero if all terms see all
    columns.
    """
    distances = []
    for term in kernel.summands:
        columns, distance = list(term.columns(X.shape[1])), 0.0
        if len(columns) < X.shape[1] and len(X) > _TOLD_BY:
            own = X[:, columns]
            distance = float(np.median(KDTree(own).query(own, _TOLD_BY + 1)[0][:, -1]))
        distances += [distance] * len(list(term.primitives()))
    return distances


@in_double
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
    called: tuple[int, ...] | tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the kernel parameters that ended at a limit; the noise variance is not one.

    "smallest" stands before those at their lower limit. One of several entries is known by its
    column, if `called` says what the columns are.
    """
    names = []
    for slot in slots:
        entries = [""] if slot.size == 1 else [f" {i}" for i in range(slot.size)]
        if slot.size == len(called) > 1:
            entries = [
                f" of {own}" if isinstance(own, str) else f" of column {own}" for own in called
            ]
        names += [f"{slot.name}{entry}" for entry in entries]
    limits = zip(names, vector, lower, upper)
    return tuple(
        name if value > high - 1e-3 else f"smallest {name}"
        for name, value, low, high in limits
        if value > high - 1e-3 or value < low + 1e-3
    )


def _split(vector: NDArray[np.float64], slots: tuple[Slot, ...]) -> list[NDArray[np.float64]]:
    edges = np.cumsum([slot.size for slot in slots])[:-1]
    return np.split(vector, edges) if slots else []
