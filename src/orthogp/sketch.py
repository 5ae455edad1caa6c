"""All that is kept of the rows: their sums, their extent, and the units of their targets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, LatticeMismatchError
from orthogp.features import MeanPrior
from orthogp.inference import Domain
from orthogp.inference.wrapping import required_period
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.lattice import default_extent, default_period

# Rows added later may stretch the extent until only this much of the period is left around them.
LEAST_PERIOD = 1.25

#: Differences of numbers that are as small as this, relative to them, are their rounding.
ROUNDING = 8 * np.finfo(np.float64).eps
# Targets that vary by less have squares that are no normal numbers.
_LEAST_SPREAD = 1e-140

# Standard deviations of the mean function's coefficients, in standard deviations of the targets
# (slopes: per half extent of the data). Broad enough to leave the data the say.
OFFSET_SD = 10.0
SLOPE_SD = 10.0


class Rows(NamedTuple):
    """Validated rows: X (n, d), y (n, p), weights (n,) or None, and whether y was a vector."""

    X: NDArray
    y: NDArray
    weights: NDArray[np.float64] | None
    one_target: bool = True

    def on(self, columns: NDArray[np.int64]) -> Self:
        """Return the rows with some of the input columns only."""
        return self if len(columns) == self.X.shape[1] else self._replace(X=self.X[:, columns])

    @property
    def used(self) -> NDArray:
        """The inputs of rows with positive weight."""
        return self.X if self.weights is None else self.X[self.weights > 0]


class Units(NamedTuple):
    """Targets are offset + scale · (standardised target)."""

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]
    constant: bool


@dataclass(frozen=True)
class Sketch:
    """The sums of all rows seen so far, of y less a `shift` that keeps their digits.

    Attributes
    ----------
    statistics : FourierStatistics
    extent : Domain
        The box around the rows and what the user asked to cover.
    mean : MeanPrior
        The mean function, for standardised targets.
    shift : (p,)
    iterative : bool
        Whether the lattice was chosen for the iterative solver, with far more modes than a dense
        one takes.
    """

    statistics: FourierStatistics
    extent: Domain
    mean: MeanPrior
    shift: NDArray[np.float64]
    iterative: bool = field(default=False, kw_only=True)

    @classmethod
    def begin(
        cls,
        rows: Rows,
        *,
        mean: str | None,
        domain: Domain | None,
        kernel: Kernel | None,
        learn: bool,
        wrap_tolerance: float,
        num_threads: int,
        total_rows: int | None = None,
    ) -> Self:
        """Sum the first rows on a lattice that suits them.

        A given `kernel` is taken as known, or with `learn` as a guess, when the period is chosen.
        `total_rows` counts those that are to come as well, if more are known to.
        """
        X = rows.used
        lower, upper = X.min(axis=0).astype(float), X.max(axis=0).astype(float)
        if domain is not None:
            lower, upper = np.minimum(lower, domain.lower), np.maximum(upper, domain.upper)
        extent = Domain(lower, upper)
        width = widths(extent)
        period = default_period(width)
        if kernel is not None and learn:
            needed = required_period(kernel, width, wrap_tolerance, headroom=2.0)
            period = np.maximum(period, needed)
        elif kernel is not None:
            # A multiple of just what is needed, so that a decimation gives just that.
            needed = required_period(kernel, width, wrap_tolerance)
            period = needed * np.maximum(period // needed, 1.0)
        largest = default_extent(len(width), max(len(X), total_rows or 0))
        lattice = FrequencyLattice.for_domain(lower, upper, period=period, extent=largest)
        prior = MeanPrior(
            offset_variance=0.0 if mean is None else OFFSET_SD**2,
            slope_variance=SLOPE_SD**2 if mean == "linear" else 0.0,
            origin=(lower + upper) / 2,
            width=width / 2,
        )
        shift = mean_target(rows)
        return cls(_sums(lattice, rows, prior, shift, num_threads), extent, prior, shift)

    @property
    def width(self) -> NDArray[np.float64]:
        """The extent in each column, (d,)."""
        return widths(self.extent)

    def updated(self, rows: Rows, sign: int, num_threads: int) -> Self:
        """Return the sketch with rows added (sign 1) or taken out (sign −1)."""
        extent = self.extent
        if sign > 0:
            X = rows.used
            extent = Domain(
                np.minimum(extent.lower, X.min(axis=0)), np.maximum(extent.upper, X.max(axis=0))
            )
            self.check_extent(extent)
        sums = _sums(self.statistics.lattice, rows, self.mean, self.shift, num_threads)
        statistics = self.statistics + sums if sign > 0 else self.statistics - sums
        if sign < 0 and (statistics.rows < 2 or statistics.count <= 0):
            raise InputError(
                f"Taking these rows out would leave {statistics.rows:g}: at least two must stay."
            )
        return replace(self, statistics=statistics, extent=extent)

    def alone(self, rows: Rows, num_threads: int) -> Self:
        """Return the sketch of these rows only, on the same lattice: it adds to this one."""
        X = rows.used
        extent = Domain(X.min(axis=0).astype(float), X.max(axis=0).astype(float))
        self.check_extent(
            Domain(
                np.minimum(self.extent.lower, extent.lower),
                np.maximum(self.extent.upper, extent.upper),
            )
        )
        lattice = self.statistics.lattice
        sums = _sums(lattice, rows, self.mean, self.shift, num_threads)
        return replace(self, statistics=sums, extent=extent)

    def summed(self, lattice: FrequencyLattice, rows: Rows, num_threads: int) -> Self:
        """Return the sketch of the same rows on another lattice, for the iterative solver."""
        statistics = _sums(lattice, rows, self.mean, self.shift, num_threads)
        return replace(self, statistics=statistics, iterative=True)

    def check_extent(self, extent: Domain) -> None:
        """Raise `LatticeMismatchError` unless the lattice can hold rows of such an extent."""
        lattice = self.statistics.lattice
        if np.any(widths(extent) * LEAST_PERIOD > lattice.period):
            raise LatticeMismatchError(
                "The new rows reach further than the model's lattice can hold: they extend to "
                f"[{extent.lower}, {extent.upper}], its period is {lattice.period}. Fit again "
                "with `domain` set to all that is to come."
            )

    def covered(self, period: NDArray[np.float64] | None) -> Domain:
        """Return where predictions are the posterior's, for a prior of that period.

        Halfway to the nearest image of the data: as far as the kernel still reaches.
        """
        margin = np.inf if period is None else (period - self.width) / 2
        return Domain(self.extent.lower - margin, self.extent.upper + margin)

    def units(self, *, shared: bool) -> Units:
        """Return offset and scale that standardise the targets.

        Parameters
        ----------
        shared : bool
            Whether all targets have one scale.
        """
        statistics = self.statistics
        centre = statistics.target_totals / statistics.count
        square = statistics.yy / statistics.count
        variance = np.maximum(square - centre**2, 0.0)
        # A constant leaves the rounding of its own values, and the sums leave that of its square.
        constant = variance <= (ROUNDING * self.shift) ** 2 + ROUNDING * square
        if self.mean.offset_variance:
            offset = self.shift + centre
        else:
            offset = np.zeros_like(centre)
            variance = variance + (self.shift + centre) ** 2
        scale = np.sqrt(np.where(constant | (variance <= 0), 1.0, variance))
        if shared:
            # A constant has no scale to share.
            varying = scale if np.all(constant) else scale[~constant]
            scale = np.full_like(scale, np.sqrt(np.mean(varying**2)))
        return Units(offset, scale, bool(np.all(constant)))

    def standardised(self, units: Units) -> FourierStatistics:
        """Return the statistics of the standardised targets."""
        return self.statistics.standardised(units.offset - self.shift, units.scale)


def mean_target(rows: Rows) -> NDArray[np.float64]:
    """Return Σ w_n y_n / Σ w_n for each target, (p,), having seen that sums can tell y from it."""
    weights = rows.weights
    y = rows.y if weights is None else rows.y[weights > 0]
    lower, upper = y.min(axis=0).astype(float), y.max(axis=0).astype(float)
    with np.errstate(over="ignore"):
        mean = np.average(rows.y.astype(np.float64, copy=False), axis=0, weights=weights)
        # Outside of these limits there is rounding only.
        mean = np.clip(mean, lower, upper)
        width = upper - lower
    largest = np.maximum(np.abs(lower), np.abs(upper))
    if np.any((width > ROUNDING * largest) & (width < _LEAST_SPREAD)):
        raise InputError(
            f"y varies by {width.min():.1e} only, and the squares of such numbers vanish in double "
            "precision: rescale it."
        )
    return mean


def widths(extent: Domain) -> NDArray[np.float64]:
    """Return the extent in each column, one where the column is constant."""
    width = extent.upper - extent.lower
    return np.where(width > 0, width, 1.0)


def _sums(
    lattice: FrequencyLattice,
    rows: Rows,
    mean: MeanPrior,
    shift: NDArray[np.float64],
    num_threads: int,
) -> FourierStatistics:
    return FourierStatistics.from_data(
        lattice,
        rows.X,
        rows.y,
        rows.weights,
        target_shift=shift,
        covariates=mean.covariates if mean.slope_variance else None,
        num_threads=num_threads,
    )
