"""The lattices that a model's features are chosen from, component by component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice, Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.lattice import LatticeFeatures
from orthogp.features.series import lattice_masses
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import Kernel
from orthogp.kernels.terms import component_kernels
from orthogp.learning.limits import names_at_limit, parameter_limits
from orthogp.learning.status import component_label
from orthogp.learning.wrapping import choose_decimation, wrap_error
from orthogp.statistics import ComponentLattice, FrequencyLattice, Statistics

#: Features to begin with, by number of columns, of a joint model.
FIRST_FEATURES = {1: 129, 2: 257, 3: 385}
# Features to begin with, by number of columns, of one component among several.
_FIRST_OF_COMPONENT = {1: 64, 2: 240, 3: 300}

OwnPeriods = tuple[tuple[float | None, ...], ...]
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
    own_periods : tuple of tuples, optional
        The period that each component's kernel has along each of its columns, if any.
    factors : tuple of tuples, optional
        The decimations that each lattice allows along each of its columns; any for a joint model.
    called : tuple of int or str
        What the columns are called, as in `FitSettings`.
    """

    components: tuple[ComponentLattice, ...]
    width: NDArray[np.float64]
    wrap_tolerance: float
    own_periods: OwnPeriods | None = None
    factors: Factors | None = None
    called: tuple[int, ...] | tuple[str, ...] = ()

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
            return names_at_limit(learned_slots(kernel), vector, lower, upper)
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

    def wrap_error(self, kernel: Kernel, features: LatticeFeatures) -> float:
        """Return Σ_j v_j ε_j / Σ_j v_j: how far the sum of wrapped priors is from the kernel."""
        errors = [
            wrap_error(own, part.lattice.period, width) * prior_variance(own)
            for own, part, width in zip(
                self.kernels(kernel), features.parts, self.widths, strict=True
            )
        ]
        return float(sum(errors)) / prior_variance(kernel)
