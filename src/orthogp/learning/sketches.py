"""All that is kept of the rows: their sums, their extent, and the units of their targets.

A component's lengthscale is not known before its sums are. So the lattice of the sums has a long
period, and frequencies are kept at which shorter ones fit too: with F the allowed decimations,

    kept indices = ∪_{f ∈ F} { f t : |t| ≤ T }

which holds T frequencies for whichever period is chosen, at less than |F| times their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, LatticeMismatchError
from orthogp.features import MeanPrior
from orthogp.kernels import Categorical, Kernel
from orthogp.kernels.terms import Term
from orthogp.learning.layout import Layout
from orthogp.learning.problem import FitSettings
from orthogp.learning.wrapping import required_period
from orthogp.rows import Domain, Rows, Units
from orthogp.statistics import (
    AdditiveStatistics,
    ComponentLattice,
    FourierStatistics,
    FrequencyLattice,
)
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
        extent = Domain.around(X).with_box(domain)
        (lower, upper), width = extent, extent.width
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
        return self.extent.width

    def layout(self, settings: FitSettings) -> Layout:
        """Return the lattices that features are chosen from."""
        return Layout(self.statistics.components, self.width, settings.wrap_tolerance)

    def updated(self, rows: Rows, sign: int, num_threads: int) -> Self:
        """Return the sketch with rows added (sign 1) or taken out (sign −1)."""
        extent = self.extent
        if sign > 0:
            extent = extent.with_box(Domain.around(rows.used))
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
        extent = Domain.around(rows.used)
        self.check_extent(self.extent.with_box(extent))
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
        if np.any(extent.width * LEAST_PERIOD > lattice.period):
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


# By number of columns of a component: the period in extents of the data, and by how much it may be
# shortened; how many frequencies along a column are kept at most; the extent of its own sums.
_TERM_PERIODS = {1: 8.0, 2: 4.0, 3: 3.0}
_STRETCH = 2.0
_FACTORS = {1: (1, 2, 3, 4), 2: (1, 2), 3: (1, 2)}
_MOST_FREQUENCIES = {1: 192, 2: 20, 3: 7}
_TERM_EXTENTS = {1: 4096, 2: 64, 3: 14}
# Kept frequencies of a component with several columns, relative to one with a single column.
_WEIGHTS = {1: 1.0, 2: 2.0, 3: 3.0}
# Kept features, relative to the most that a model may have: what is not chosen serves the bounds.
_KEPT_RATIO = 2.5
_FEWEST_KEPT = 200
# No finer structure than this many rows for each frequency can be learned.
_ROWS_PER_FREQUENCY = 8
_FEWEST_FREQUENCIES = 24
# Up to so many rows are sorted before they are summed.
_FEW_ROWS = 2000
# A column of so many rows with fewer distinct values is looked at closely.
_LOOK, _FEW_VALUES = 10_000, 5_000


class Axis(NamedTuple):
    """One column of one component.

    Attributes
    ----------
    period : float
        Of its lattice.
    factors : tuple of int
        The decimations that the kept frequencies allow.
    most : float
        No index beyond this is needed: the column's values do not resolve it.
    levels : int or None
        The number of categories, if it holds such.
    """

    period: float
    factors: tuple[int, ...]
    most: float
    levels: int | None

    def reach(self, factor: int, frequencies: float) -> int:
        """Return how many multiples of a factor are kept."""
        if self.levels is not None:
            return self.levels // 2
        return max(1, int(min(frequencies, self.most / factor)))


@dataclass(frozen=True)
class AdditiveSketch(Sketch):
    """The sums of all rows seen so far, for the components of an additive model.

    Attributes
    ----------
    terms : tuple of Term
        The model's components; their kernels are those that the lattices were chosen for.
    factors : tuple of tuples
        For each component, for each of its columns: the decimations that its lattice allows.
    repeats : bool
        Whether weights count rows (else they divide the noise variance).
    """

    statistics: AdditiveStatistics  # type: ignore[override]
    terms: tuple[Term, ...]
    factors: tuple[tuple[tuple[int, ...], ...], ...]
    repeats: bool

    @classmethod
    def begin_additive(
        cls,
        rows: Rows,
        terms: tuple[Term, ...],
        *,
        mean: str | None,
        domain: Domain | None,
        known: bool,
        learn: bool,
        repeats: bool,
        wrap_tolerance: float,
        most_features: int,
        num_threads: int,
        total_rows: int | None = None,
    ) -> Self:
        """Sum the first rows on lattices that suit them.

        With `known` the terms' kernels are taken as given, or with `learn` as a guess.
        `total_rows` counts those that are to come as well, if more are known to.
        """
        num_rows, rows = len(rows.used), _merged(rows, repeats)
        X = rows.used
        extent = Domain.around(X).with_box(domain)
        (lower, upper), width = extent, extent.width
        gaps = np.array([_smallest_gap(column) for column in X.T])
        axes = []
        for term in terms:
            columns = list(term.columns)
            needed = None
            if known:
                headroom = 2.0 if learn else 1.0
                needed = required_period(term.kernel, width[columns], wrap_tolerance, headroom)
            axes.append(_axes(term, width[columns], gaps[columns], needed, learn))
        most_rows = max(len(X), total_rows or 0)
        components = _components(terms, axes, lower, upper, most_features, most_rows)
        plain = np.ones(len(width), dtype=bool)
        for term in terms:
            plain[[c for c, p in zip(term.columns, term.periods, strict=True) if p]] = False
        prior = MeanPrior(
            offset_variance=0.0 if mean is None else OFFSET_SD**2,
            slope_variance=SLOPE_SD**2 if mean == "linear" else 0.0,
            origin=(lower + upper) / 2,
            # An infinite width is no slope: codes and hours have none.
            width=np.where(plain, width / 2, np.inf),
        )
        shift = mean_target(rows)
        statistics = _term_sums(components, rows, num_rows, prior, shift, num_threads)
        factors = tuple(tuple(axis.factors for axis in own) for own in axes)
        return cls(statistics, extent, prior, shift, terms, factors, repeats)

    def layout(self, settings: FitSettings) -> Layout:
        """Return the lattices that features are chosen from."""
        return Layout(
            self.statistics.components,
            self.width,
            settings.wrap_tolerance,
            own_periods=tuple(term.periods for term in self.terms),
            factors=self.factors,
            called=settings.columns,
        )

    def updated(self, rows: Rows, sign: int, num_threads: int) -> Self:
        """Return the sketch with rows added (sign 1) or taken out (sign −1)."""
        extent = self.extent
        if sign > 0:
            extent = extent.with_box(Domain.around(rows.used))
            self.check_extent(extent)
        components = self.statistics.components
        merged = _merged(rows, self.repeats)
        sums = _term_sums(components, merged, len(rows.used), self.mean, self.shift, num_threads)
        statistics = self.statistics + sums if sign > 0 else self.statistics - sums
        if sign < 0 and (statistics.rows < 2 or statistics.count <= 0):
            raise InputError(
                f"Taking these rows out would leave {statistics.rows:g}: at least two must stay."
            )
        return replace(self, statistics=statistics, extent=extent)

    def alone(self, rows: Rows, num_threads: int) -> Self:
        """Return the sketch of these rows only, on the same lattices: it adds to this one."""
        extent = Domain.around(rows.used)
        self.check_extent(self.extent.with_box(extent))
        merged = _merged(rows, self.repeats)
        components = self.statistics.components
        sums = _term_sums(components, merged, len(rows.used), self.mean, self.shift, num_threads)
        return replace(self, statistics=sums, extent=extent)

    def check_extent(self, extent: Domain) -> None:
        """Raise `LatticeMismatchError` unless the lattices can hold rows of such an extent."""
        width = extent.width
        for term, component in zip(self.terms, self.statistics.components, strict=True):
            for column, own, period in zip(
                term.columns, term.periods, component.lattice.period, strict=True
            ):
                if own is None and width[column] * LEAST_PERIOD > period:
                    raise LatticeMismatchError(
                        "The new rows reach further than the model's lattice can hold: column "
                        f"{column} extends to [{extent.lower[column]}, {extent.upper[column]}], "
                        f"its period is {period}. Fit again with `domain` set to all that is to "
                        "come."
                    )

    def covered(self, period: Sequence[NDArray[np.float64]]) -> Domain:  # type: ignore[override]
        """Return where predictions are the posterior's, for components of these periods.

        A column that only components with a period of their own act on has no end.
        """
        margin = np.full(len(self.width), np.inf)
        for term, own in zip(self.terms, period, strict=True):
            for column, fixed, length in zip(term.columns, term.periods, own, strict=True):
                if fixed is None:
                    margin[column] = min(margin[column], (length - self.width[column]) / 2)
        return Domain(self.extent.lower - margin, self.extent.upper + margin)


def _merged(rows: Rows, repeats: bool) -> Rows:
    """Return few rows sorted, equal ones as one of their total weight.

    With more parameters than rows can tell, rounding decides where a search ends. It should not
    depend on the order of the rows, nor on whether they are repeated or weighted.
    """
    if not repeats or len(rows.X) > _FEW_ROWS:
        return rows
    weights = np.ones(len(rows.X)) if rows.weights is None else rows.weights
    table = np.concatenate([rows.X, rows.y], axis=1, dtype=np.float64)[weights > 0]
    distinct, which = np.unique(table, axis=0, return_inverse=True)
    totals = np.bincount(which.ravel(), weights[weights > 0])
    num_columns = rows.X.shape[1]
    return rows._replace(X=distinct[:, :num_columns], y=distinct[:, num_columns:], weights=totals)


def _term_sums(
    components: Sequence[ComponentLattice],
    rows: Rows,
    num_rows: int,
    mean: MeanPrior,
    shift: NDArray[np.float64],
    num_threads: int,
) -> AdditiveStatistics:
    statistics = AdditiveStatistics.from_data(
        components,
        rows,
        target_shift=shift,
        covariates=mean.covariates if mean.slope_variance else None,
        num_threads=num_threads,
    )
    # Rows that were merged count as those they were.
    parts = tuple(replace(part, rows=float(num_rows)) for part in statistics.parts)
    return replace(statistics, parts=parts)


def _smallest_gap(column: NDArray) -> float:
    """Return the smallest distance between two values of a column that has few, else zero."""
    step = max(1, len(column) // _LOOK)
    if len(np.unique(column[::step])) > _FEW_VALUES:
        return 0.0
    values = np.unique(column)
    if not 1 < len(values) <= _FEW_VALUES:
        return 0.0
    gap = float(np.diff(values).min())
    # Two values that differ by rounding say nothing about the others.
    return gap if gap > 1e-4 * (values[-1] - values[0]) else 0.0


def _axes(
    term: Term,
    width: NDArray[np.float64],
    gaps: NDArray[np.float64],
    needed: NDArray[np.float64] | None,
    learn: bool,
) -> list[Axis]:
    """Return the period of each of a term's columns, and what of its frequencies is needed."""
    num_dims = len(width)
    levels = {
        d: own.levels
        for own, dims in term.kernel.primitives()
        if isinstance(own, Categorical)
        for d in (range(num_dims) if dims is None else dims)
    }
    axes = []
    for d, fixed in enumerate(term.periods):
        period, factors = _TERM_PERIODS[num_dims] * width[d], _FACTORS[num_dims]
        if fixed is not None:
            period, factors = fixed, (1,)
        elif needed is not None:
            # With a guess the period becomes longer, but not so long that the guess must be right.
            period = np.clip(needed[d], period, _STRETCH * period) if learn else needed[d]
            factors = factors if learn else (1,)
        # Twice the frequency at which a cosine alternates from one value to the next.
        most = period / gaps[d] if gaps[d] else np.inf
        axes.append(Axis(float(period), factors, float(most), levels.get(d)))
    return axes


def _components(
    terms: tuple[Term, ...],
    axes: list[list[Axis]],
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    most_features: int,
    num_rows: int,
) -> tuple[ComponentLattice, ...]:
    """Return the components' lattices, with as many kept frequencies as there is room for."""
    room = max(_KEPT_RATIO * most_features, _FEWEST_KEPT)
    cap = max(_FEWEST_FREQUENCIES, num_rows / _ROWS_PER_FREQUENCY)

    def kept(level: float) -> list[NDArray[np.int64]]:
        return [_kept_indices(own, level, cap) for own in axes]

    # The largest level whose frequencies fit in, by bisection in its logarithm.
    low, high = 0.0, np.log(2 * _MOST_FREQUENCIES[1] + 1)
    for _ in range(12):
        middle = (low + high) / 2
        total = sum(2 * len(own) - 2 for own in kept(np.exp(middle)))
        low, high = (middle, high) if total <= room else (low, middle)
    components = []
    for term, own, indices in zip(terms, axes, kept(np.exp(low)), strict=True):
        columns = list(term.columns)
        centre = (lower[columns] + upper[columns]) / 2
        # Codes are counted from zero, where the sine of the highest frequency vanishes.
        centre = np.where([axis.levels is not None for axis in own], 0.0, centre)
        reach = np.abs(indices).max(axis=0)
        extents = [
            axis.levels // 2
            if axis.levels is not None
            else max(_TERM_EXTENTS[len(own)], int(reach[d]))
            for d, axis in enumerate(own)
        ]
        spacing = 2 * np.pi / np.array([axis.period for axis in own])
        lattice = FrequencyLattice(spacing, extents, centre)
        components.append(ComponentLattice(term.columns, lattice, indices))
    return tuple(components)


def _kept_indices(axes: list[Axis], level: float, cap: float) -> NDArray[np.int64]:
    """Return a half set: for each decimation an ellipsoid of indices, zero first.

    `level` is the number of frequencies of a component with one column; one with several has as
    many along each as gives its share of features.
    """
    num_dims = len(axes)
    if num_dims == 1:
        frequencies = level
    else:
        # Half of a ball of radius R has about c R^d indices.
        ball = {2: np.pi / 2, 3: 2 * np.pi / 3}[num_dims]
        frequencies = (_WEIGHTS[num_dims] * level / ball) ** (1 / num_dims)
    frequencies = min(frequencies, cap, _MOST_FREQUENCIES[num_dims])
    sets = []
    for factor in max((axis.factors for axis in axes), key=len):
        # Periods that may grow do so together.
        factors = [factor if factor in axis.factors else 1 for axis in axes]
        reach = [axis.reach(f, frequencies) for axis, f in zip(axes, factors, strict=True)]
        grid = np.stack(
            np.meshgrid(*(np.arange(-r, r + 1) for r in reach), indexing="ij"), axis=-1
        ).reshape(-1, num_dims)
        # Categories have all their modes; along other columns the ball is cut round.
        radii = [
            np.inf if axis.levels is not None else r + 0.5
            for axis, r in zip(axes, reach, strict=True)
        ]
        inside = np.sum((grid / np.array(radii)) ** 2, axis=1) <= 1
        sets.append(grid[inside] * np.array(factors))
    indices = np.unique(np.concatenate(sets), axis=0)
    return indices[len(indices) // 2 :]
