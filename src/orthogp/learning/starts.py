"""Starting values, read off the statistics without a pass over the data, or off the rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features.base import as_rows, prior_variance
from orthogp.inference.parameters import (
    learned_slots,
    stretched,
    with_lengthscale_per_column,
)
from orthogp.kernels import (
    Cyclic,
    Kernel,
    Matern,
    On,
    QuasiPeriodic,
    RationalQuadratic,
    Rotated,
    Sum,
)
from orthogp.kernels.base import ANGLE
from orthogp.kernels.terms import component_kernels
from orthogp.kernels.transformed import Sphere
from orthogp.learning.limits import told_apart
from orthogp.learning.problem import Start
from orthogp.statistics import AdditiveStatistics, FourierStatistics

#: The lengthscales that are tried, relative to the extent of the data.
FRACTIONS = (0.02, 0.06, 0.2, 0.6)
#: The shares of the targets' variance that are tried as noise.
NOISE_SHARES = (0.5, 0.1, 0.01, 1e-4)
# The factors of a user's lengthscales that are tried.
_STRETCHES = (1.0, 0.3, 3.0)
# Angles that are added to those of rotated kernels.
_TURNS = (0.0, np.pi / 4, np.pi / 2, 3 * np.pi / 4)


def starts_for_name(
    kernel: Kernel, statistics: FourierStatistics, width: NDArray[np.float64]
) -> list[Start]:
    """Return starts for a kernel that the user gave by name only, targets having variance one."""
    template = with_lengthscale_per_column(kernel, len(width))
    unit = with_variance(template, 1.0)
    starts = []
    for shape, fraction in enumerate(FRACTIONS):
        shaped = unit.with_primitives(
            primitive.with_parameters(
                lengthscale=np.reshape(
                    fraction * width, primitive.parameters()["lengthscale"].shape
                )
            )
            for primitive, _ in unit.primitives()
        )
        if isinstance(shaped, RationalQuadratic):
            # Light tails to begin with: the heavier they are, the longer the period must be.
            shaped = shaped.with_parameters(alpha=2.0)
        if isinstance(shaped, QuasiPeriodic):
            period = strongest_period(statistics)
            shaped = shaped.with_parameters(
                period=np.asarray(period), lengthscale=shaped.lengthscale + 3 * period
            )
        starts += [Start(with_variance(shaped, 1 - share), share, shape) for share in NOISE_SHARES]
    return starts


def starts_for_kernel(kernel: Kernel, noise_variance: float | None) -> list[Start]:
    """Return starts around the values of a user's kernel, targets having variance one."""
    shares = NOISE_SHARES if noise_variance is None else (noise_variance,)
    starts = []
    turns = _TURNS if any(slot.is_angle for slot in learned_slots(kernel)) else _TURNS[:1]
    for shape, (turn, factor) in enumerate(itertools.product(turns, _STRETCHES)):
        shaped = kernel if factor == 1 else _stretch_learned(kernel, factor)
        shaped = _turned(shaped, turn) if turn else shaped
        for share in shares:
            scaled = with_variance(shaped, max(1 - share, 0.1))
            starts += [Start(start, share, shape, from_user=True) for start in (shaped, scaled)]
    return starts


def strongest_period(statistics: FourierStatistics) -> float:
    """Return the period of the largest Fourier coefficient of the targets, trend excluded."""
    sums = np.abs(statistics.target_sums[0])
    middle = statistics.lattice.extent
    along = sums[(slice(middle[0], None), *middle[1:])].copy()
    # Fewer than three periods within the data are a trend; the lattice is finer than the data.
    skip = int(3 * statistics.lattice.period[0] / _extent_of(statistics)) if len(along) > 1 else 0
    if skip + 1 < len(along):
        along[:skip] = 0
    index = max(int(np.argmax(along)), 1)
    return float(statistics.lattice.period[0] / index)


def _extent_of(statistics: FourierStatistics) -> float:
    """Return the data's extent by the first zero of its transform, 2π/extent for even data."""
    middle = 2 * statistics.lattice.extent
    along = np.abs(statistics.point_sums[(slice(middle[0], None), *middle[1:])])
    below = np.flatnonzero(along < 0.2 * along[0])
    first = below[0] if len(below) else 1
    return float(statistics.lattice.period[0] / max(first, 1))


def with_variance(kernel: Kernel, total: float) -> Kernel:
    """Return the kernel with its free variances scaled so that k(0) is about `total`."""

    def with_free_scaled(factor: float) -> Kernel:
        return kernel.with_primitives(
            primitive.scaled(factor)
            if {"variance", "weights"}.isdisjoint(primitive.fixed)
            else primitive
            for primitive, _ in kernel.primitives()
        )

    # Not the sum of all fixed variances: a product's factors of variance one hold nothing.
    held = prior_variance(with_free_scaled(0.0))
    free = prior_variance(kernel) - held
    if free == 0:
        return kernel
    return with_free_scaled(max(total - held, 0.1 * total) / free)


def _stretch_learned(kernel: Kernel, factor: float) -> Kernel:
    return kernel.with_primitives(
        primitive if "lengthscale" in primitive.fixed else stretched(primitive, factor)
        for primitive, _ in kernel.primitives()
    )


def _turned(kernel: Kernel, turn: float) -> Kernel:
    """Return the kernel with the angles that are learned turned further."""
    return kernel.with_primitives(
        primitive.with_parameters(angle=primitive.parameters()[ANGLE] + turn)
        if ANGLE in primitive.parameters() and ANGLE not in primitive.fixed
        else primitive
        for primitive, _ in kernel.primitives()
    )


# Of their own shapes, apart from those around a user's values.
_FIRST_SHAPE = 100


def additive_starts(
    kernel: Kernel,
    statistics: AdditiveStatistics,
    width: NDArray[np.float64],
    noise_variance: float | None = None,
) -> list[Start]:
    """Return starts in which all components have the same lengthscale, relative to their widths.

    Targets have variance one. What is not noise is shared out as the kernel's variances are; what
    the kernel fixes stays.
    """
    shares = NOISE_SHARES if noise_variance is None else (noise_variance,)
    kernels = component_kernels(kernel, [own.columns for own in statistics.components])
    starts = []
    for shape, fraction in enumerate(FRACTIONS, start=_FIRST_SHAPE):
        terms = []
        for j, (own, component) in enumerate(zip(kernels, statistics.components, strict=True)):
            columns = list(component.columns)
            shaped = _shaped(own, fraction * width[columns], statistics, j)
            terms.append(On(shaped, component.columns))
        whole = Sum(tuple(terms))
        starts += [
            Start(with_variance(whole, max(1 - share, 0.1)), share, shape) for share in shares
        ]
    return starts


def _shaped(
    kernel: Kernel, lengths: NDArray[np.float64], statistics: AdditiveStatistics, j: int
) -> Kernel:
    """Return a component's kernel with lengthscales for each of its columns, if they are free."""

    def free(primitive: Kernel, name: str) -> bool:
        return name in primitive.parameters() and name not in primitive.fixed

    def change(primitive: Kernel, dims: tuple[int, ...] | None) -> Kernel:
        own = lengths if dims is None else lengths[list(dims)]
        changes: dict[str, object] = {}
        if free(primitive, "lengthscale"):
            shape = primitive.parameters()["lengthscale"].shape
            mean = np.exp(np.mean(np.log(own)))
            length = np.full(shape, mean) if shape in ((), (1,)) else np.reshape(own, shape)
            if isinstance(primitive, Cyclic):
                length = np.minimum(length, primitive.period)
            changes["lengthscale"] = length
        if isinstance(primitive, RationalQuadratic) and free(primitive, "alpha"):
            # Light tails to begin with: the heavier they are, the longer the period must be.
            changes["alpha"] = 2.0
        if isinstance(primitive, QuasiPeriodic) and free(primitive, "period"):
            period = strongest_period(statistics.parts[j])
            changes["period"] = period
            if "lengthscale" in changes:
                changes["lengthscale"] = changes["lengthscale"] + 3 * period  # type: ignore[operator]
        return primitive.with_parameters(**changes) if changes else primitive

    return kernel.with_primitives(change(*item) for item in kernel.primitives())


# ---------------------------------------------------------------------- read off the rows


Array = NDArray[np.float64]

# Lengthscales in standard deviations of their columns, for a kernel of one column: rows are farther
# apart in more columns.
_NEAR = (0.07, 0.2, 0.6, 2.0)
# The lengthscale of columns that do not matter, in the same units.
_FAR = 20.0
# The lengthscale of a column that matters alone.
_ALONE = 0.5
# The most columns of which each is tried alone.
_MOST_ALONE = 10
# The number of noise shares that less promising lengthscales are tried with.
_FEW_SHARES = 2
# The shapes α of rational quadratic kernels, one after the other.
_ALPHAS = (0.5, 2.0)
# The smoothnesses ν of Matérn kernels.
_SMOOTHNESSES = (1.5, 0.6, 3.0)
# The most rows that relevance and periods are estimated from.
_MOST_ROWS = 2000
# The most frequencies of a periodogram.
_FREQUENCIES = 4000
# The number of peaks of a periodogram that are tried.
_PEAKS = 3
# The fewest periods that the rows must span.
_LEAST_PERIODS = 2
# The number of the first shape, apart from those around a user's values.
_FIRST_ROW_SHAPE = 1000


def starts_for_rows(
    kernel: Kernel,
    X: NDArray,
    y: NDArray,
    noise_variance: float | None = None,
    *,
    per_column: bool = True,
) -> list[Start]:
    """Return starts for a kernel whose values are not known, targets having variance one.

    What the kernel fixes stays. Starts of one `shape` differ in variances only.

    Parameters
    ----------
    kernel : Kernel
        On the columns of X.
    X : (n, d)
    y : (n,) or (n, p)
    noise_variance : float, optional
        Where the noise starts, if it is known.
    per_column : bool
        Whether scalar lengthscales that are learned become one for each column.
    """
    X = as_rows(X)
    targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
    some = np.linspace(0, len(X) - 1, min(len(X), _MOST_ROWS)).astype(np.int64)
    X, targets = np.asarray(X[some], dtype=np.float64), targets[some]
    template = _with_free_lengthscales(kernel, X.shape[1]) if per_column else kernel
    shares = NOISE_SHARES if noise_variance is None else (noise_variance,)
    # Lengthscales do not change variances, whose making takes longer than all the rest.
    scaled = {share: with_variance(template, max(1 - share, 0.1)) for share in shares}
    width = np.ptp(X, axis=0)
    width = np.where(width > 0, width, 1.0)
    least = [distance * width for distance in told_apart(template, X / width)]
    starts = []
    for shape, plan in enumerate(_plans(template, X, targets)):
        for share in shares[: _FEW_SHARES if plan.few else None]:
            start = _with_plan(scaled[share], plan, least)
            starts.append(Start(start, share, _FIRST_ROW_SHAPE + shape))
    return starts


def _with_free_lengthscales(kernel: Kernel, num_dims: int) -> Kernel:
    """Return the kernel with a lengthscale for each column where they are learned."""
    spread = with_lengthscale_per_column(kernel, num_dims)
    return kernel.with_primitives(
        own if "lengthscale" in own.fixed else other
        for (own, _), (other, _) in zip(kernel.primitives(), spread.primitives(), strict=True)
    )


class _Plan(NamedTuple):
    """What a start's free parameters are.

    Attributes
    ----------
    lengths : (d,)
        Lengthscales for a kernel of one column.
    number : int
        Which of the other shapes it takes.
    tilt : float
        The ratio of each primitive's lengthscales to those of the primitive before.
    few : bool
        Whether a few shares of noise will do.
    """

    lengths: Array
    number: int
    tilt: float = 1.0
    period: float | None = None
    few: bool = False


def _plans(kernel: Kernel, X: Array, targets: Array) -> Iterator[_Plan]:
    """Yield different lengthscales, and what goes with them."""
    spread = X.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    num_dims = len(spread)
    plans = [_Plan(fraction * spread, number) for number, fraction in enumerate(_NEAR)]
    if num_dims > 1:
        relevance = _relevance(X, targets)
        weighed = spread * np.sqrt(relevance.max() / np.maximum(relevance, 1e-3 * relevance.max()))
        plans += [_Plan(fraction * weighed, number) for number, fraction in enumerate(_NEAR[1:])]
    if 1 < num_dims <= _MOST_ALONE:
        far = np.full((num_dims, num_dims), _FAR)
        np.fill_diagonal(far, _ALONE / np.sqrt(num_dims))
        plans += [_Plan(own * spread, d, few=True) for d, own in enumerate(far)]
    several = sum("lengthscale" in _free(own) for own, _ in kernel.primitives()) > 1
    periods = _periods_of(kernel, X, targets) or [None]
    for plan in plans:
        yield from (
            plan._replace(period=period, few=plan.few or i > 0) for i, period in enumerate(periods)
        )
        if several and not plan.few:
            yield from (plan._replace(period=periods[0], tilt=t, few=True) for t in (3.0, 1 / 3))


def _with_plan(kernel: Kernel, plan: _Plan, least: list[Array]) -> Kernel:
    """Return the kernel with its free parameters, apart from variances, set by a plan.

    `least` has the smallest lengthscales of each primitive, one for each column of X.
    """
    middle = (sum(1 for _ in kernel.primitives()) - 1) / 2

    def change(place: int, primitive: Kernel, dims: tuple[int, ...] | None) -> Kernel:
        seen = slice(None) if dims is None else list(dims)
        own = plan.lengths[seen]
        lengths = own * np.sqrt(len(own)) * plan.tilt ** (place - middle)
        lengths = np.maximum(lengths, least[place][seen])
        free, changes = _free(primitive), {}
        if "lengthscale" in free:
            changes["lengthscale"] = fitted_lengths(lengths, primitive)
        form = primitive.kernel if isinstance(primitive, Sphere) else primitive
        if isinstance(form, RationalQuadratic) and "alpha" in free:
            changes["alpha"] = _ALPHAS[plan.number % len(_ALPHAS)]
        if isinstance(form, Matern) and "nu" in free:
            changes["nu"] = _SMOOTHNESSES[plan.number % len(_SMOOTHNESSES)]
        if isinstance(primitive, QuasiPeriodic) and "period" in free and plan.period is not None:
            changes["period"] = plan.period
            if "lengthscale" in changes:
                changes["lengthscale"] = changes["lengthscale"] + 3 * plan.period
        if ANGLE in free:
            changes[ANGLE] = _TURNS[plan.number % len(_TURNS)]
        return primitive.with_parameters(**changes) if changes else primitive

    return kernel.with_primitives(
        change(place, *item) for place, item in enumerate(kernel.primitives())
    )


def fitted_lengths(lengths: Array, primitive: Kernel) -> Array:
    """Return lengthscales, one for each column, in the shape that a primitive has them."""
    shape = primitive.parameters()["lengthscale"].shape
    if isinstance(primitive, Sphere):
        # Points along a great circle, or at one place, do not vary along all coordinates.
        places = primitive.lengthscale_places(len(lengths))
        squares = np.bincount(places, lengths**2) / np.bincount(places)
        return np.sqrt(squares).reshape(shape)
    if isinstance(primitive, Rotated):
        # Of two that are equal the angle would not matter, and would not be learned.
        lengths = np.exp(np.mean(np.log(lengths))) * np.array([2.0, 0.5])
    if shape in ((), (1,)):
        lengths = np.full(shape, np.exp(np.mean(np.log(lengths))))
    if isinstance(primitive, Cyclic):
        lengths = np.minimum(lengths, primitive.period / 2)
    return np.array(np.broadcast_to(lengths, shape))


def _free(primitive: Kernel) -> set[str]:
    return set(primitive.parameters()) - set(primitive.fixed)


def _relevance(X: Array, targets: Array) -> Array:
    """Return the share of the targets' variance that each column explains by itself, (d,).

    By the means of ten groups of neighbouring values, less what they would explain of noise.
    """
    groups = int(np.clip(len(X) // 10, 2, 10))
    total = np.sum((targets - targets.mean(axis=0)) ** 2)
    if total == 0 or len(X) < 4:
        return np.ones(X.shape[1])
    relevance = np.empty(X.shape[1])
    for d, column in enumerate(X.T):
        parts = np.array_split(targets[np.argsort(column, kind="stable")], groups)
        between = sum(len(part) * np.sum((part.mean(0) - targets.mean(0)) ** 2) for part in parts)
        relevance[d] = between / total
    expected = (groups - 1) / (len(X) - 1)
    return np.maximum(relevance - expected, 0.1 * expected)


def _periods_of(kernel: Kernel, X: Array, targets: Array) -> list[float]:
    """Return periods that a quasi-periodic part of the kernel may start from."""
    columns: set[int] = set()
    for primitive, dims in kernel.primitives():
        if isinstance(primitive, QuasiPeriodic) and "period" in _free(primitive):
            columns |= set(range(X.shape[1]) if dims is None else dims)
    found = [peak for d in sorted(columns) for peak in strongest_periods(X[:, d], targets)]
    return [period for period, _ in sorted(found, key=lambda peak: -peak[1])][:_PEAKS]


def strongest_periods(x: Array, targets: Array) -> list[tuple[float, float]]:
    """Return the periods of the highest peaks of the targets' periodogram, with their power."""
    # Imported where it is used, and few kernels have periods: it takes a while.
    from scipy.signal import lombscargle

    width = float(np.ptp(x))
    different = len(np.unique(x))
    if width == 0 or different < 8:
        return []
    # A trend has power at all low frequencies.
    trend = np.polynomial.Polynomial.fit(x, targets[:, 0], 3)
    rest = targets[:, 0] - trend(x)
    lowest, highest = _LEAST_PERIODS / width, 0.5 * different / width
    if highest <= lowest or not np.any(np.abs(rest) > 1e-9):
        return []
    frequencies = np.linspace(lowest, highest, min(_FREQUENCIES, 8 * different))
    power = lombscargle(x, rest, 2 * np.pi * frequencies)
    edges = np.concatenate([[-np.inf], power, [-np.inf]])
    peaks = np.flatnonzero((edges[1:-1] >= edges[:-2]) & (edges[1:-1] > edges[2:]))
    best = peaks[np.argsort(-power[peaks], kind="stable")][:_PEAKS]
    return [(float(1 / frequencies[i]), float(power[i])) for i in best]
