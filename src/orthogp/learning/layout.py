"""The lattices that an additive model's features are chosen from, component by component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice
from orthogp.features.base import prior_variance
from orthogp.features.series import lattice_masses
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import Kernel
from orthogp.kernels.additive import term_kernels
from orthogp.learning.limits import parameter_limits
from orthogp.learning.status import component_label
from orthogp.learning.wrapping import choose_decimation, wrap_error
from orthogp.statistics import ComponentLattice, FrequencyLattice

#: Features to begin with for each component, by its number of columns.
_FIRST_FEATURES = {1: 64, 2: 240, 3: 300}

OwnPeriods = tuple[tuple[float | None, ...], ...]
Factors = tuple[tuple[tuple[int, ...], ...], ...]
Limits = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class AdditiveGrid:
    """Lattices with long periods, of which shorter ones are decimations.

    Attributes
    ----------
    components : tuple of ComponentLattice
        The finest lattices, and the indices that features may have.
    width : (d,)
        The extent of the rows, and of what else is to be covered, in each column.
    own_periods : tuple of tuples
        The period that each component has by itself along each of its columns, if any.
    factors : tuple of tuples
        The decimations that each lattice allows along each of its columns.
    wrap_tolerance : float
        The largest relative error of a wrapped prior.
    called : tuple of int or str
        What the columns are called, as in `FitSettings`.
    """

    components: tuple[ComponentLattice, ...]
    width: NDArray[np.float64]
    own_periods: OwnPeriods
    factors: Factors
    wrap_tolerance: float
    called: tuple[int, ...] | tuple[str, ...] = ()

    @cached_property
    def widths(self) -> list[NDArray[np.float64]]:
        """The extent in the columns of each component."""
        return [self.width[list(own.columns)] for own in self.components]

    @property
    def first_features(self) -> int:
        """How many features are enough to begin with."""
        return 1 + sum(
            min(_FIRST_FEATURES[len(own.columns)], 2 * len(own.indices) - 2)
            for own in self.components
        )

    def decimations(self, kernel: Kernel, headroom: float) -> list[NDArray[np.int64]]:
        """Return the coarsest decimation of each component that a kernel allows.

        It is the same for all columns that allow any. Lengthscales may grow by `headroom` on it.
        """
        decimations = []
        for own, component, width, factors in zip(
            term_kernels(kernel), self.components, self.widths, self.factors, strict=True
        ):
            best = choose_decimation(
                own, component.lattice, width, self.wrap_tolerance, headroom, factors
            )
            free = np.array([len(allowed) > 1 for allowed in factors])
            if free.any():
                best[free] = best[free].min()
            decimations.append(best)
        return decimations

    def thinned(self, kernel: Kernel, headroom: float) -> tuple[ComponentLattice, ...]:
        """Return the components on the lattices that suit a kernel."""
        steps = self.decimations(kernel, headroom)
        return tuple(
            own._replace(
                lattice=own.lattice.decimate(step),
                indices=own.indices[np.all(own.indices % step == 0, axis=1)] // step,
            )
            for own, step in zip(self.components, steps, strict=True)
        )

    def required_features(
        self, kernel: Kernel, components: Sequence[ComponentLattice], allowed: float
    ) -> tuple[int, int]:
        """Return how many features leave out the allowed variance, and how many there are."""
        masses = [
            lattice_masses(own, component.lattice, component.indices)
            for own, component in zip(term_kernels(kernel), components, strict=True)
        ]
        ordered = np.sort(np.concatenate([own[1:] for own in masses]))[::-1]
        ordered = ordered[ordered > 0]
        total = prior_variance(kernel) - sum(float(own[0]) for own in masses)
        residuals = total - np.concatenate([[0.0], np.cumsum(2 * ordered)])
        enough = np.flatnonzero(residuals <= allowed)
        pairs = enough[0] if len(enough) else len(residuals)
        return int(2 * pairs + 1), int(2 * len(residuals) - 1)

    def limits(
        self, kernel: Kernel, components: Sequence[ComponentLattice], noise_floor: float
    ) -> Limits:
        """Return the limits of the log parameters, one component after the other, and the noise."""
        edges = []
        for own, component, width in zip(
            term_kernels(kernel), components, self.widths, strict=True
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
        names, at = [], 0
        lower, upper = limits
        for own, present, whole in zip(
            term_kernels(kernel), components, self.components, strict=True
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

    def wrap_error(self, kernel: Kernel, features: AdditiveLattice) -> float:
        """Return Σ_j v_j ε_j / Σ_j v_j: how far the sum of wrapped priors is from the kernel."""
        errors = [
            wrap_error(own, part.lattice.period, width) * prior_variance(own)
            for own, part, width in zip(
                term_kernels(kernel), features.parts, self.widths, strict=True
            )
        ]
        return float(sum(errors)) / prior_variance(kernel)
