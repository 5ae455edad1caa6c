"""Lattice features of additive models: one lattice for each component."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features.base import Features, as_rows, prior_variance
from orthogp.features.lattice import Lattice, MeanPrior
from orthogp.features.masses import lattice_masses
from orthogp.kernels import Kernel
from orthogp.kernels.additive import term_kernels
from orthogp.statistics import ComponentLattice


class AdditiveLattice(Features):
    r"""The features of f(x) = Σ_j f_j(x_{columns_j}), each f_j on a lattice of its own.

        φ = √(offset + Σ_j mass_j0),  √(2 mass_jt) cos ω_t·x_j,  √(2 mass_jt) sin ω_t·x_j,  slopes

    The components' modes of index zero are the same constant and share one feature, with the mean
    function's offset. Kernels are sums of one `On` for each component
    (`orthogp.kernels.additive.join_terms`).

    Parameters
    ----------
    parts : tuple of Lattice
        Without mean functions.
    columns : tuple of tuples
        The columns that each acts on.
    mean : MeanPrior
        Of all columns.
    """

    parts: tuple[Lattice, ...]
    columns: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    mean: MeanPrior = MeanPrior()

    @classmethod
    def select(
        cls,
        kernel: Kernel,
        components: Sequence[ComponentLattice],
        num_features: int,
        mean: MeanPrior = MeanPrior(),  # noqa: B008 (immutable)
    ) -> Self:
        """Return the features of the largest masses among all components' kept modes.

        What is left out is then the least that so many features can leave.
        """
        if num_features < 1:
            raise InputError(f"num_features must be at least 1, got {num_features}.")
        masses = [
            lattice_masses(own, component.lattice, component.indices[1:])
            if len(component.indices) > 1
            else np.empty(0)
            for own, component in zip(term_kernels(kernel), components, strict=True)
        ]
        pooled = np.concatenate(masses)
        # Where a mass is zero the process has no such mode.
        num_pairs = min((num_features - 1) // 2, int(np.count_nonzero(pooled > 0)))
        chosen = np.zeros(len(pooled), dtype=bool)
        chosen[np.argsort(-pooled, kind="stable")[:num_pairs]] = True
        edges = np.cumsum([len(own) for own in masses])[:-1]
        parts = tuple(
            Lattice(
                component.lattice, component.indices[np.concatenate([[0], np.flatnonzero(own) + 1])]
            )
            for own, component in zip(np.split(chosen, edges), components, strict=True)
        )
        return cls(parts, tuple(component.columns for component in components), mean)

    @property
    def indices(self) -> tuple[NDArray[np.int64], ...]:
        """The half set of each component, index zero first."""
        return tuple(part.indices for part in self.parts)

    @property
    def num_slopes(self) -> int:
        """The number of features of a linear mean function."""
        return len(self.mean.origin) if self.mean.slope_variance else 0

    @property
    def num_features(self) -> int:
        """The number of features, those of the mean function included."""
        return 1 + sum(2 * len(part.indices) - 2 for part in self.parts) + self.num_slopes

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each component's cosines and sines stand among the features."""
        edges = np.cumsum([1, *(2 * len(part.indices) - 2 for part in self.parts)])
        return tuple(slice(int(a), int(b)) for a, b in pairwise(edges))

    @property
    def mass_slices(self) -> tuple[slice, ...]:
        """Where each component's masses stand among all."""
        edges = np.cumsum([0, *(len(part.indices) for part in self.parts)])
        return tuple(slice(int(a), int(b)) for a, b in pairwise(edges))

    @property
    def multiplicity(self) -> NDArray[np.float64]:
        """How many modes each mass stands for: one of index zero, two of every other pair ±t."""
        return np.concatenate([part.multiplicity for part in self.parts])

    def masses(self, kernel: Kernel) -> NDArray[np.float64]:
        """Return the prior variances of all components' modes, one component after the other."""
        kernels = term_kernels(kernel)
        return np.concatenate(
            [part.masses(own) for part, own in zip(self.parts, kernels, strict=True)]
        )

    def squared_amplitudes(self, masses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squared coefficient of the constant, each cosine, sine and covariate, (m,)."""
        own = [masses[part] for part in self.mass_slices]
        zero = self.mean.offset_variance + sum(part[0] for part in own)
        waves = [2 * part[1:] for part in own for _ in range(2)]
        return np.concatenate([[zero], *waves, np.full(self.num_slopes, self.mean.slope_variance)])

    def gather(self, per_feature: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ∂/∂mass from ∂/∂(squared amplitude): the transpose of `squared_amplitudes`."""
        gradients = []
        for own in self.slices:
            cosines, sines = np.split(per_feature[own], 2)
            gradients += [per_feature[:1], 2 * (cosines + sines)]
        return np.concatenate(gradients)

    def component_design(self, j: int, X: NDArray) -> NDArray[np.float64]:
        """Return component j's cosines and sines at the rows of all columns X, (n, 2s−2)."""
        part = self.parts[j]
        own = ComponentLattice(self.columns[j], part.lattice, part.indices)
        return own.design(X)

    def design(self, X: NDArray) -> NDArray[np.float64]:
        """Return the constant, cosines, sines and covariates, before any kernel, (n, m)."""
        X = as_rows(X)
        waves = [self.component_design(j, X) for j in range(len(self.parts))]
        return np.concatenate([np.ones((len(X), 1)), *waves, self.mean.covariates(X)], axis=1)

    def evaluate(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return φ_m(x_n), (n, m)."""
        return self.design(X) * np.sqrt(self.squared_amplitudes(self.masses(kernel)))

    def residual_variance(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return Σ_j (k_j(0) − Σ_t mass_jt) at every row, (n,)."""
        left = prior_variance(kernel) - float(self.multiplicity @ self.masses(kernel))
        return np.full(len(X), max(left, 0.0))
