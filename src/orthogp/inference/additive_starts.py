"""Starting values of additive models, read off the statistics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.settings import Start
from orthogp.inference.starts import FRACTIONS, NOISE_SHARES, strongest_period, with_variance
from orthogp.kernels import Cyclic, Kernel, On, QuasiPeriodic, RationalQuadratic, Sum
from orthogp.kernels.additive import term_kernels
from orthogp.statistics import AdditiveStatistics

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
    starts = []
    for shape, fraction in enumerate(FRACTIONS, start=_FIRST_SHAPE):
        terms = []
        for j, (own, component) in enumerate(
            zip(term_kernels(kernel), statistics.components, strict=True)
        ):
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
