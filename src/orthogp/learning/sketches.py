"""All that is kept of the rows: their sums, or the rows themselves, and the targets' units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, LatticeMismatchError
from orthogp.features import MeanPrior
from orthogp.inference.likelihoods import resolve_likelihood
from orthogp.inference.separable import GAUSSIAN, Likelihood, VaryingNoise
from orthogp.kernels.terms import Term
from orthogp.learning.layout import Factors, Layout, Setup
from orthogp.learning.problem import FitSettings
from orthogp.rows import Domain, Rows, Units
from orthogp.statistics import (
    AdditiveStatistics,
    ComponentLattice,
    FourierStatistics,
    FrequencyLattice,
    Statistics,
)

# The shortest period that rows added later may leave, in extents of all rows.
LEAST_PERIOD = 1.25

#: Differences of numbers that are as small as this, relative to them, are their rounding.
ROUNDING = 8 * np.finfo(np.float64).eps
# Targets that vary by less have squares that are no normal numbers.
_LEAST_SPREAD = 1e-140

# The standard deviation of targets that do not vary, relative to them: their bands are narrow, and
# wide enough for double precision.
_CONSTANT_SD = 1e-8

# Standard deviations of the mean function's coefficients, in standard deviations of the targets,
# broad enough to leave the decision to the data: of the offset,
OFFSET_SD = 10.0
# and of the slopes, per half extent of the data.
SLOPE_SD = 10.0

# The distance between the quartiles of a normal distribution, in standard deviations.
_QUARTILES = 1.349
# The most rows that are sorted before they are summed for several components.
_FEW_ROWS = 2000


@dataclass(frozen=True)
class Sketch:
    """The sums of all rows seen so far, of y less a `shift` that keeps their digits.

    Attributes
    ----------
    statistics : FourierStatistics, or AdditiveStatistics of several components
    extent : Domain
        The box around the rows and what the user asked to cover.
    mean : MeanPrior
        The mean function, for standardised targets.
    shift : (p,)
    iterative : bool
        Whether the lattice was chosen for the iterative solver, with far more modes than a dense
        one takes.
    terms : tuple of Term
        The components of an additive model, with the kernels that the lattices were chosen for.
    factors : tuple of tuples
        For each component, for each of its columns: the decimations that its lattice allows.
    repeats : bool
        Whether weights count rows (else they divide the noise variance), for an additive model.
    likelihood : str
        The name of the likelihood whose targets and weights are summed.
    constants : (k,)
        What else the likelihood needs to know of the targets, in totals.
    """

    statistics: Statistics
    extent: Domain
    mean: MeanPrior
    shift: NDArray[np.float64]
    iterative: bool = field(default=False, kw_only=True)
    terms: tuple[Term, ...] = field(default=(), kw_only=True)
    factors: Factors = field(default=(), kw_only=True)
    repeats: bool = field(default=True, kw_only=True)
    likelihood: str = field(default=GAUSSIAN, kw_only=True)
    constants: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), kw_only=True)

    @classmethod
    def begin(cls, rows: Rows, setup: Setup) -> Self:
        """Sum the first rows on lattices that suit them."""
        family = resolve_likelihood(setup.likelihood)
        if family is not None:
            rows, constants = family.summands(rows)
            plain = cls.begin(rows, replace(setup, likelihood=GAUSSIAN))
            return replace(plain, likelihood=setup.likelihood, constants=constants)
        own = _merged(rows, setup.repeats) if setup.terms else rows
        X = own.used
        extent = Domain.around(X).with_box(setup.domain)
        mean, shift = mean_prior(setup.mean, extent, setup.terms, rows), mean_target(own)
        if not setup.terms:
            lattice = setup.lattice(extent, len(X))
            return cls(_sums(lattice, rows, mean, shift, setup.num_threads), extent, mean, shift)
        components, factors = setup.components(X, extent)
        repeats = setup.repeats
        sums = _sums(components, rows, mean, shift, setup.num_threads, repeats)
        of_terms: dict[str, Any] = {"terms": setup.terms, "factors": factors, "repeats": repeats}
        return cls(sums, extent, mean, shift, **of_terms)

    @property
    def joint(self) -> bool:
        """Whether all columns act jointly, on one lattice."""
        return not self.terms

    @property
    def width(self) -> NDArray[np.float64]:
        """The extent in each column, (d,)."""
        return self.extent.width

    def layout(self, settings: FitSettings) -> Layout:
        """Return the lattices that features are chosen from."""
        return Layout(
            self.statistics.components,
            self.width,
            settings.wrap_tolerance,
            factors=self.factors or None,
            called=settings.columns,
            box=self.extent,
        )

    def updated(self, rows: Rows, sign: int, num_threads: int) -> Self:
        """Return the sketch with rows added (sign 1) or taken out (sign −1)."""
        extent = self.extent
        if sign > 0:
            extent = extent.with_box(Domain.around(rows.used))
            self.check_extent(extent)
        rows, constants = self._summands(rows)
        sums: Any = self._sums(rows, num_threads)
        statistics = self.statistics + sums if sign > 0 else self.statistics - sums
        if sign < 0 and (statistics.rows < 2 or statistics.count <= 0):
            raise InputError(
                f"Taking these rows out would leave {statistics.rows:g}: at least two must stay."
            )
        constants = self.constants + sign * constants
        return replace(self, statistics=statistics, extent=extent, constants=constants)

    def alone(self, rows: Rows, num_threads: int) -> Self:
        """Return the sketch of these rows only, on the same lattices: it adds to this one."""
        extent = Domain.around(rows.used)
        self.check_extent(self.extent.with_box(extent))
        rows, constants = self._summands(rows)
        sums = self._sums(rows, num_threads)
        return replace(self, statistics=sums, extent=extent, constants=constants)

    @property
    def family(self) -> Likelihood | None:
        """The likelihood, `None` if the noise is Gaussian."""
        return resolve_likelihood(self.likelihood)

    @property
    def plain(self) -> Any:
        """The statistics of the targets as they are, nothing taken off."""
        return self.statistics.standardised(-self.shift, 1.0)

    def _summands(self, rows: Rows) -> tuple[Rows, NDArray[np.float64]]:
        """Return rows as the likelihood sums them, and its totals."""
        family = self.family
        return (rows, np.zeros(0)) if family is None else family.summands(rows, self.shift)

    def summed(self, lattice: FrequencyLattice, rows: Rows, num_threads: int) -> Self:
        """Return the sketch of the same rows on another lattice, for the iterative solver."""
        statistics = _sums(lattice, rows, self.mean, self.shift, num_threads)
        return replace(self, statistics=statistics, iterative=True)

    def _sums(self, rows: Rows, num_threads: int) -> Statistics:
        statistics = self.statistics
        where = statistics.parts[0].lattice if self.joint else statistics.components
        return _sums(where, rows, self.mean, self.shift, num_threads, self.repeats)

    def check_extent(self, extent: Domain) -> None:
        """Raise `LatticeMismatchError` unless the lattices can hold rows of such an extent."""
        for part, (columns, periods) in zip(self.statistics.parts, self._ends, strict=True):
            for column, own, period in zip(columns, periods, part.lattice.period, strict=True):
                if own is None and extent.width[column] * LEAST_PERIOD > period:
                    raise LatticeMismatchError(
                        "The new rows reach further than the model's lattice can hold: column "
                        f"{column} extends to [{extent.lower[column]}, {extent.upper[column]}], "
                        f"its period is {period}. Fit again with `domain` set to all that is to "
                        "come."
                    )

    def covered(self, period: Any) -> Domain:
        """Return where predictions are the posterior's, for a prior of that period.

        Halfway to the nearest image of the data: as far as the kernel still reaches. A column has
        no end if all components that act on it have a period of their own.

        Parameters
        ----------
        period : (d,), tuple of them, or None
            Of the prior, or of each of several components' priors.
        """
        margin = np.full(len(self.width), np.inf)
        lengths = () if period is None else (period,) if self.joint else period
        for own, (columns, periods) in zip(lengths, self._ends, strict=False):
            for column, fixed, length in zip(columns, periods, own, strict=True):
                if fixed is None:
                    margin[column] = min(margin[column], (length - self.width[column]) / 2)
        return Domain(self.extent.lower - margin, self.extent.upper + margin)

    @property
    def _ends(self) -> Sequence[tuple[tuple[int, ...], tuple[float | None, ...]]]:
        """The columns of each component, and the periods that its kernel has along them."""
        columns = tuple(range(len(self.extent.lower)))
        joint = [(columns, (None,) * len(columns))]
        return [(term.columns, term.periods) for term in self.terms] or joint

    def units(self, *, shared: bool) -> Units:
        """Return offset and scale that standardise the targets.

        Parameters
        ----------
        shared : bool
            Whether all targets have one scale.
        """
        statistics, family = self.statistics, self.family
        if isinstance(family, VaryingNoise):
            centre = float(statistics.target_totals[0]) / statistics.count
            square = float(statistics.yy[0]) / statistics.count
            constant = square - centre**2 <= (ROUNDING * self.shift[0]) ** 2 + ROUNDING * square
            scale = 1.0 if constant else np.sqrt(square - centre**2)
            return Units(self.shift[:1], np.array([scale]), bool(constant))
        if family is not None:
            average = float(self.shift[0] + statistics.target_totals[0] / statistics.count)
            offset = family.typical(average, statistics.count)
            return Units(np.array([offset]), np.ones(1), constant=False)
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
            # A constant has no scale to share, and a user's kernel has one of its own.
            varying = scale if np.all(constant) else scale[~constant]
            scale = np.full_like(scale, np.sqrt(np.mean(varying**2)))
        elif self.mean.offset_variance:
            least = np.maximum(np.abs(offset), _LEAST_SPREAD / _CONSTANT_SD)
            narrow = _CONSTANT_SD * np.where(offset == 0, 1.0, least)
            scale = np.where(constant, narrow, scale)
        return Units(offset, scale, bool(np.all(constant)))

    def standardised(self, units: Units) -> Any:
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


def mean_prior(
    kind: str | None, extent: Domain, terms: Sequence[Term] = (), rows: Rows | None = None
) -> MeanPrior:
    """Return the prior of a mean function over the rows' extent.

    Parameters
    ----------
    rows : Rows, optional
        Rows with covariates, which are standardised as they are in these.
    """
    origin, width = extent.centre, extent.width / 2
    for term in terms:
        # An infinite width is no slope: codes and hours have none.
        width[[c for c, p in zip(term.columns, term.periods, strict=True) if p]] = np.inf
    q = 0 if rows is None else rows.num_covariates
    if rows is not None and q:
        centre, spread = standardisation(rows.covariates, rows.weights, centred=kind is not None)
        linear = kind == "linear"
        origin = np.concatenate([origin, centre]) if linear else centre
        width = np.concatenate([width, spread]) if linear else spread
    return MeanPrior(
        offset_variance=0.0 if kind is None else OFFSET_SD**2,
        slope_variance=SLOPE_SD**2 if kind == "linear" or q else 0.0,
        origin=origin,
        width=width,
        num_covariates=q,
    )


def standardisation(
    columns: NDArray, weights: NDArray[np.float64] | None, *, centred: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is taken from columns and what they are divided by, one where they are constant.

    The mean and the standard deviation; zero and the root mean square if not `centred`.
    """
    columns = columns.astype(np.float64, copy=False)
    centre = np.zeros(columns.shape[1])
    if centred:
        centre = np.average(columns, axis=0, weights=weights)
    spread = np.sqrt(np.average((columns - centre) ** 2, axis=0, weights=weights))
    constant = spread <= ROUNDING * np.abs(columns).max(axis=0, initial=0.0)
    return centre, np.where(constant, 1.0, spread)


def _sums(
    where: FrequencyLattice | tuple[ComponentLattice, ...],
    rows: Rows,
    mean: MeanPrior,
    shift: NDArray[np.float64],
    num_threads: int,
    repeats: bool = True,
) -> Statistics:
    """Return the sums of the rows on one lattice, or on those of several components."""
    covariates = mean.covariates if mean.num_slopes else None
    own: dict[str, Any] = {"covariates": covariates, "num_threads": num_threads}
    if isinstance(where, FrequencyLattice):
        return FourierStatistics.from_data(where, *rows[:3], target_shift=shift, **own)
    merged = _merged(rows, repeats)
    sums = AdditiveStatistics.from_data(where, merged, target_shift=shift, **own)
    # Rows that were merged count as those they were.
    parts = tuple(replace(part, rows=float(len(rows.used))) for part in sums.parts)
    return replace(sums, parts=parts)


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


@dataclass(frozen=True)
class RowTotals:
    """What units and summaries need to know of the rows.

    Attributes
    ----------
    rows, count : float
        The number of rows of positive weight, and the sum of their weights.
    target_totals, yy : (p,)
        Σ w y and Σ w y², of targets less the shift.
    """

    rows: float
    count: float
    target_totals: NDArray[np.float64]
    yy: NDArray[np.float64]

    @classmethod
    def of(
        cls, y: NDArray[np.float64], weights: NDArray[np.float64], shift: NDArray[np.float64]
    ) -> Self:
        """Return the totals of rows of positive weight."""
        centred = y - shift
        return cls(float(len(y)), float(weights.sum()), weights @ centred, weights @ centred**2)

    @property
    def num_targets(self) -> int:
        """The number of targets."""
        return len(self.yy)


@dataclass(frozen=True)
class KeptRows(Sketch):
    """All rows seen so far.

    Attributes
    ----------
    statistics : RowTotals
    X, y, weights : (n, d), (n, p), (n,)
        The rows of positive weight; y holds targets and sizes, where a likelihood takes such.
    """

    statistics: RowTotals  # type: ignore[assignment]

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def keep(
        cls, rows: Rows, *, mean: str | None, domain: Domain | None, likelihood: str = GAUSSIAN
    ) -> Self:
        """Return the rows, with the mean function's prior for them."""
        X, y, weights = _used(rows)
        extent = Domain.around(rows.used).with_box(domain)
        prior = mean_prior(mean, extent, rows=rows)
        targets, summed = totalled(y, weights, resolve_likelihood(likelihood))
        shift = mean_target(Rows(X, targets, summed))
        totals = RowTotals.of(targets, summed, shift)
        return cls(totals, extent, prior, shift, X, y, weights, likelihood=likelihood)

    def updated(self, rows: Rows, sign: int, num_threads: int) -> Self:
        """Return the rows with some added (sign 1) or taken out (sign −1)."""
        X, y, weights = _used(rows)
        if sign > 0:
            X, y = np.concatenate([self.X, X]), np.concatenate([self.y, y])
            weights = np.concatenate([self.weights, weights])
        else:
            stay = _without(self, X, y, weights)
            if np.count_nonzero(stay) < 2:
                raise InputError(
                    f"Taking these rows out would leave {np.count_nonzero(stay)}: at least two "
                    "must stay."
                )
            X, y, weights = self.X[stay], self.y[stay], self.weights[stay]
        statistics = RowTotals.of(*totalled(y, weights, self.family), self.shift)
        return replace(
            self,
            statistics=statistics,
            extent=self.extent.with_box(Domain.around(self.mean.inputs(X))),
            X=X,
            y=y,
            weights=weights,
        )

    def without_slopes(self, columns: list[int]) -> Self:
        """Return the rows with a mean function that is flat along some columns."""
        if not self.mean.slope_variance:
            return self
        width = self.mean.width.copy()
        width[columns] = np.inf
        return replace(self, mean=self.mean._replace(width=width))

    def sums(self, num_threads: int = 1) -> Sketch:
        """Return the sums of the rows on one lattice, which up to three columns have."""
        setup = Setup(mean=self.mean.kind, num_threads=num_threads)
        sketch = Sketch.begin(self.rows, setup)
        return replace(sketch, mean=self.mean)

    def units(self, *, shared: bool) -> Units:
        """Return offset and scale that standardise the targets."""
        family = self.family
        if family is None or family.separates:
            return super().units(shared=shared)
        # Outliers move neither the median nor the quartiles.
        low, middle, high = np.quantile(self.y[:, 0], [0.25, 0.5, 0.75])
        scale = (high - low) / _QUARTILES
        if not scale > ROUNDING * abs(middle):
            scale = max(float(np.std(self.y[:, 0])), _CONSTANT_SD * max(abs(middle), 1.0))
        return Units(np.array([middle]), np.array([scale]), constant=False)

    @property
    def rows(self) -> Rows:
        """The rows as they came."""
        plain = np.all(self.weights == 1)
        weights = None if plain else self.weights
        return Rows(self.X, self.y, weights, num_covariates=self.mean.num_covariates)

    def standardised_rows(self, units: Units) -> Rows:
        """Return the rows with standardised targets."""
        return self.rows.standardised(units)


def totalled(
    y: NDArray[np.float64], weights: NDArray[np.float64], family: Likelihood | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return targets and weights as a likelihood sums them."""
    if family is None:
        return y, weights
    summed = family.summands(Rows(np.empty((len(y), 0)), y, weights))[0]
    assert summed.weights is not None
    return summed.y, summed.weights


def _used(
    rows: Rows,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    X = np.asarray(rows.X, dtype=np.float64)
    y = np.asarray(rows.y, dtype=np.float64)
    if rows.weights is None:
        return X, y, np.ones(len(X))
    there = rows.weights > 0
    return X[there], y[there], rows.weights[there]


def _without(
    kept: KeptRows,
    X: NDArray[np.float64],
    y: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return which rows stay when some are taken out, each of which must be among them."""
    have = np.ascontiguousarray(np.column_stack([kept.X, kept.y, kept.weights]))
    gone = np.ascontiguousarray(np.column_stack([X, y, weights]))
    width = have.shape[1]
    # Each row as one string of bytes: equal rows sort together, repeated ones by their rank.
    as_bytes = np.dtype((np.void, 8 * width))
    _, codes = np.unique(
        np.concatenate([have + 0.0, gone + 0.0]).view(as_bytes).reshape(-1), return_inverse=True
    )
    counts = np.bincount(codes[len(have) :], minlength=codes.max() + 1)
    own = codes[: len(have)]
    order = np.argsort(own, kind="stable")
    ranks = np.empty(len(own), dtype=np.int64)
    starts = np.searchsorted(own[order], own[order])
    ranks[order] = np.arange(len(own)) - starts
    leave = ranks < counts[own]
    missing = int(counts.sum() - np.count_nonzero(leave))
    if missing:
        raise InputError(
            f"{missing} of {len(gone)} rows are not among those that were fitted: forget takes out "
            "rows with the same inputs, targets and weights as they were fitted with."
        )
    return ~leave
