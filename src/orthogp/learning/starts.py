"""Starting values read off the statistics, without a pass over the data."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from orthogp.features.base import prior_variance
from orthogp.inference.parameters import (
    learned_slots,
    stretched,
    with_lengthscale_per_column,
)
from orthogp.kernels import Cyclic, Kernel, On, QuasiPeriodic, RationalQuadratic, Sum
from orthogp.kernels.base import ANGLE
from orthogp.kernels.terms import component_kernels
from orthogp.learning.problem import Start
from orthogp.statistics import AdditiveStatistics, FourierStatistics

# Lengthscales relative to the data's extent, and shares of the variance that are noise.
FRACTIONS = (0.02, 0.06, 0.2, 0.6)
NOISE_SHARES = (0.5, 0.1, 0.01, 1e-4)
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
