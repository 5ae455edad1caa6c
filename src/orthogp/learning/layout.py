"""The lattices that rows are summed on, and that a model's features are chosen from.

A component's lengthscale is not known before its sums are. So the lattice of the sums has a long
period, and frequencies are kept at which shorter ones fit too: with F the allowed decimations,

    kept indices = ∪_{f ∈ F} { f t : |t| ≤ T }

which holds T frequencies for whichever period is chosen, at less than |F| times their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice, Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import LatticeFeatures, lattice_masses
from orthogp.inference.certificates import Images
from orthogp.inference.parameters import learned_slots
from orthogp.inference.separable import GAUSSIAN
from orthogp.kernels import Categorical, Kernel
from orthogp.kernels.terms import Term, component_kernels
from orthogp.learning.limits import (
    choose_decimation,
    images,
    names_at_limit,
    parameter_limits,
    required_period,
    wrap_error,
)
from orthogp.learning.problem import MAX_FEATURES, component_label
from orthogp.rows import Domain
from orthogp.statistics import ComponentLattice, FrequencyLattice, Statistics
from orthogp.statistics.lattice import default_extent, default_period

#: Features to begin with, by number of columns, of a joint model.
FIRST_FEATURES = {1: 129, 2: 257, 3: 385}
# Features to begin with, by number of columns, of one component among several.
_FIRST_OF_COMPONENT = {1: 64, 2: 240, 3: 300}

# The shortest period that gives up long lengthscales for far reach, relative to the data's extent.
_SHORTEST = 1.1

Factors = tuple[tuple[tuple[int, ...], ...], ...]
Limits = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Layout:
    """Lattices with long periods, of which shorter ones are decimations.

    Attributes
    ----------
    components : tuple of ComponentLattice
        The finest lattices, and the indices that features may have.
    width : (d,)
        The extent of the rows, and of what else is to be covered, in each column.
    wrap_tolerance : float
        The largest relative error of a wrapped prior.
    factors : tuple of tuples, optional
        The decimations that each lattice allows along each of its columns; any for a joint model.
    called : tuple of int or str
        What the columns are called, as in `FitSettings`.
    box : Domain, optional
        Around the rows, and what else is to be covered.
    """

    components: tuple[ComponentLattice, ...]
    width: NDArray[np.float64]
    wrap_tolerance: float
    factors: Factors | None = None
    called: tuple[int, ...] | tuple[str, ...] = ()
    box: Domain | None = None

    def box_around(self, centre: NDArray[np.float64]) -> Domain:
        """Return the box of the rows, or if it is not known one of their width around a centre."""
        if self.box is not None:
            return self.box
        return Domain(centre - self.width / 2, centre + self.width / 2)

    @property
    def joint(self) -> bool:
        """Whether all columns act jointly: one component, with any decimation of its lattice."""
        return self.factors is None

    @cached_property
    def widths(self) -> list[NDArray[np.float64]]:
        """The extent in the columns of each component."""
        return [self.width[list(own.columns)] for own in self.components]

    @property
    def first_features(self) -> int:
        """How many features are enough to begin with."""
        if self.joint:
            return FIRST_FEATURES[len(self.width)]
        return 1 + sum(
            min(_FIRST_OF_COMPONENT[len(own.columns)], 2 * len(own.indices) - 2)
            for own in self.components
        )

    def kernels(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """Return the components' kernels, relative to the columns of each."""
        return component_kernels(kernel, [own.columns for own in self.components])

    def decimations(self, kernel: Kernel, headroom: float) -> list[NDArray[np.int64]]:
        """Return the coarsest decimation of each component that a kernel allows.

        Lengthscales may grow by `headroom` on it. With several components it is the same for all
        columns that allow any.
        """
        decimations = []
        for j, own in enumerate(self.kernels(kernel)):
            allowed = None if self.factors is None else self.factors[j]
            best = choose_decimation(
                own,
                self.components[j].lattice,
                self.widths[j],
                self.wrap_tolerance,
                headroom,
                allowed,
            )
            if allowed is not None:
                free = np.array([len(factors) > 1 for factors in allowed])
                if free.any():
                    best[free] = best[free].min()
            decimations.append(best)
        return decimations

    def decimated(self, statistics: Statistics, kernel: Kernel, headroom: float) -> Statistics:
        """Return the statistics of the finest lattices on those that suit a kernel."""
        return statistics.thinned(self.decimations(kernel, headroom))

    def thinned(self, kernel: Kernel, headroom: float) -> tuple[ComponentLattice, ...]:
        """Return the components on the lattices that suit a kernel."""
        return self.thinned_by(self.decimations(kernel, headroom))

    def thinned_by(self, steps: Sequence[NDArray[np.int64]]) -> tuple[ComponentLattice, ...]:
        """Return the components on decimated lattices."""
        return tuple(own.decimate(step) for own, step in zip(self.components, steps, strict=True))

    def factors_of(self, components: Sequence[ComponentLattice]) -> list[NDArray[np.int64]]:
        """Return the factor by which each lattice was decimated."""
        pairs = zip(components, self.components, strict=True)
        return [
            np.rint(own.lattice.spacing / finest.lattice.spacing).astype(np.int64)
            for own, finest in pairs
        ]

    def beside(self, components: Sequence[ComponentLattice]) -> list[tuple[ComponentLattice, ...]]:
        """Return a joint model's lattices with one period a step longer or shorter."""
        (factors,) = self.factors_of(components)
        steps = np.eye(len(factors), dtype=np.int64)
        others = [own for own in (*(factors - steps), *(factors + steps)) if np.all(own >= 1)]
        found = [self.thinned_by([own]) for own in others]
        return [own for own in found if np.all(own[0].lattice.period >= _SHORTEST * self.width)]

    def no_longer(
        self, components: Sequence[ComponentLattice], than: Sequence[ComponentLattice]
    ) -> tuple[ComponentLattice, ...]:
        """Return a joint model's lattices with periods no longer than those of others."""
        pairs = zip(self.factors_of(components), self.factors_of(than), strict=True)
        return self.thinned_by([np.maximum(*pair) for pair in pairs])

    def select(
        self,
        kernel: Kernel,
        components: Sequence[ComponentLattice],
        num_features: int,
        mean: MeanPrior,
    ) -> LatticeFeatures:
        """Return the features of the largest prior variances."""
        if self.joint:
            return Lattice.select(kernel, components[0].lattice, num_features, mean)
        return AdditiveLattice.select(kernel, components, num_features, mean)

    def is_longest(self, components: Sequence[ComponentLattice]) -> bool:
        """Return whether the only component's period is the longest there is.

        Of several components `names_at_limit` says which have the longest.
        """
        own = zip(components, self.components, strict=True)
        return self.joint and all(
            np.array_equal(present.lattice.spacing, finest.lattice.spacing)
            for present, finest in own
        )

    def required_features(
        self, kernel: Kernel, components: Sequence[ComponentLattice], allowed: float
    ) -> tuple[int, int]:
        """Return how many features leave out the allowed variance, and how many there are.

        If even all of them leave out more, the first number exceeds the second.
        """
        masses = [
            lattice_masses(own, component.lattice, component.indices)
            for own, component in zip(self.kernels(kernel), components, strict=True)
        ]
        ordered = np.sort(np.concatenate([own[1:] for own in masses]))[::-1]
        ordered = ordered[ordered > 0]
        total = prior_variance(kernel) - sum(float(own[0]) for own in masses)
        residuals = max(total, 0.0) - np.concatenate([[0.0], np.cumsum(2 * ordered)])
        enough = np.flatnonzero(residuals <= allowed)
        pairs = enough[0] if len(enough) else len(residuals)
        return int(2 * pairs + 1), int(2 * len(residuals) - 1)

    def limits(
        self, kernel: Kernel, components: Sequence[ComponentLattice], noise_floor: float
    ) -> Limits:
        """Return the limits of the log parameters, one component after the other, and the noise."""
        edges = []
        for own, component, width in zip(
            self.kernels(kernel), components, self.widths, strict=True
        ):
            lattice = component.lattice
            # The frequencies to choose from, not those of the component's own sums.
            reach = FrequencyLattice(lattice.spacing, component.reach, lattice.centre)
            slots = learned_slots(own)
            edges.append(
                parameter_limits(own, slots, reach, width, self.wrap_tolerance, noise_floor)
            )
        noise = [limit[-1:] for limit in edges[0]]
        lower = np.concatenate([*(limit[0][:-1] for limit in edges), noise[0]])
        upper = np.concatenate([*(limit[1][:-1] for limit in edges), noise[1]])
        return lower, upper

    def names_at_limit(
        self,
        kernel: Kernel,
        components: Sequence[ComponentLattice],
        vector: NDArray[np.float64],
        limits: Limits,
    ) -> tuple[str, ...]:
        """Return the parameters that ended at a limit, with the component they belong to.

        Only a lengthscale whose period can grow is called by its plain name.
        """
        lower, upper = limits
        if self.joint:
            return names_at_limit(learned_slots(kernel), vector, lower, upper, self.called)
        names, at = [], 0
        for own, present, whole in zip(
            self.kernels(kernel), components, self.components, strict=True
        ):
            growing = not np.array_equal(present.lattice.spacing, whole.lattice.spacing)
            for slot in learned_slots(own):
                entries = slice(at, at + slot.size)
                at += slot.size
                label = f"{slot.name} of {component_label(present.columns, self.called)}"
                if np.any(vector[entries] > upper[entries] - 1e-3):
                    long = slot.name == "lengthscale" and not growing
                    names.append(f"longest {label}" if long else label)
                elif np.any(vector[entries] < lower[entries] + 1e-3):
                    names.append(f"smallest {label}")
        return tuple(names)

    def images(self, kernel: Kernel, components: Sequence[ComponentLattice]) -> Images:
        """Return how far the priors on the components' lattices are from their kernels."""
        found = [
            images(own, component.lattice.period, width)
            for own, component, width in zip(
                self.kernels(kernel), components, self.widths, strict=True
            )
        ]
        return Images(max(own.ratio for own in found), sum(own.deviation for own in found))

    def wrap_error(self, kernel: Kernel, features: LatticeFeatures) -> float:
        """Return Σ_j v_j ε_j / Σ_j v_j: how far the sum of wrapped priors is from the kernel."""
        errors = [
            wrap_error(own, part.lattice.period, width) * prior_variance(own)
            for own, part, width in zip(
                self.kernels(kernel), features.parts, self.widths, strict=True
            )
        ]
        return float(sum(errors)) / prior_variance(kernel)


# Of a component, by its number of columns: the period of its lattice, in extents of the data,
_TERM_PERIODS = {1: 8.0, 2: 4.0, 3: 3.0}
# the most that a kernel's guess may stretch this period,
_STRETCH = 2.0
# the decimations that the kept frequencies allow,
_FACTORS = {1: (1, 2, 3, 4), 2: (1, 2), 3: (1, 2)}
# the most frequencies that are kept along a column,
_MOST_FREQUENCIES = {1: 192, 2: 20, 3: 7}
# the largest index of the component's own sums,
_TERM_EXTENTS = {1: 4096, 2: 64, 3: 14}
# and its number of kept frequencies, relative to that of a component with a single column.
_WEIGHTS = {1: 1.0, 2: 2.0, 3: 3.0}
# The number of kept features, relative to the most that a model may have: those that are not
# chosen serve the bounds.
_KEPT_RATIO = 2.5
# The fewest features that are kept.
_FEWEST_KEPT = 200
# The number of rows that each frequency takes to be learned.
_ROWS_PER_FREQUENCY = 8
# The number of frequencies that are kept of however few rows.
_FEWEST_FREQUENCIES = 24
# The number of rows by which a column is checked for repeated values.
_LOOK = 10_000
# The most distinct values of a column whose smallest gap is measured.
_FEW_VALUES = 5_000


@dataclass(frozen=True)
class Setup:
    """What lattices are chosen for.

    Attributes
    ----------
    mean : {None, "constant", "linear"}
    domain : Domain, optional
        What is to be covered beside the rows.
    kernel : Kernel, optional
        Taken as known, or with `learn` as a guess; `None` if only its name is known.
    terms : tuple of Term
        The components of an additive model.
    repeats : bool
        Whether weights count rows (else they divide the noise variance).
    most_features : int
        The most features that an additive model may have.
    total_rows : int
        The number of rows, if more are to come.
    likelihood : str
        The name of the likelihood whose sums are wanted.
    """

    mean: str | None = "constant"
    domain: Domain | None = None
    kernel: Kernel | None = None
    terms: tuple[Term, ...] = ()
    learn: bool = True
    repeats: bool = True
    wrap_tolerance: float = 1e-4
    most_features: int = MAX_FEATURES
    num_threads: int = 1
    total_rows: int = 0
    likelihood: str = GAUSSIAN

    def lattice(self, extent: Domain, num_rows: int) -> FrequencyLattice:
        """Return the lattice of a joint model."""
        width = extent.width
        period = default_period(width)
        if self.kernel is not None and self.learn:
            needed = required_period(self.kernel, width, self.wrap_tolerance, headroom=2.0)
            period = np.maximum(period, needed)
        elif self.kernel is not None:
            # A multiple of just what is needed, so that a decimation gives just that.
            needed = required_period(self.kernel, width, self.wrap_tolerance)
            period = needed * np.maximum(period // needed, 1.0)
        largest = default_extent(len(width), max(num_rows, self.total_rows))
        return FrequencyLattice.for_domain(*extent, period=period, extent=largest)

    def components(
        self, X: NDArray, extent: Domain
    ) -> tuple[tuple[ComponentLattice, ...], Factors]:
        """Return the lattices of the terms, and the decimations that they allow."""
        gaps = np.array([_smallest_gap(column) for column in X.T])
        axes = []
        for term in self.terms:
            columns = list(term.columns)
            width, needed = extent.width[columns], None
            if self.kernel is not None:
                headroom = 2.0 if self.learn else 1.0
                needed = required_period(term.kernel, width, self.wrap_tolerance, headroom)
            axes.append(_axes(term, width, gaps[columns], needed, self.learn))
        num_rows = max(len(X), self.total_rows)
        components = _components(self.terms, axes, extent, self.most_features, num_rows)
        return components, tuple(tuple(axis.factors for axis in own) for own in axes)


class _Axis(NamedTuple):
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
) -> list[_Axis]:
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
        axes.append(_Axis(float(period), factors, float(most), levels.get(d)))
    return axes


def _components(
    terms: tuple[Term, ...],
    axes: list[list[_Axis]],
    extent: Domain,
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
        centre = extent.centre[list(term.columns)]
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


def _kept_indices(axes: list[_Axis], level: float, cap: float) -> NDArray[np.int64]:
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
