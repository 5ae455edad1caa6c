"""Where the features of a classifier are chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.passes import SiteAscent
from orthogp.classification.site_models import SiteModel
from orthogp.features import MeanPrior
from orthogp.kernels import Kernel
from orthogp.learning.layout import Layout, Limits
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.learning.optimise import curvature_at
from orthogp.learning.status import describe_limits
from orthogp.statistics import ComponentLattice, Statistics

# The shortest period, relative to the data's extent.
_SHORTEST = 1.1

Components = tuple[ComponentLattice, ...]


@dataclass(frozen=True, eq=False)
class LabelLayout:
    """The lattices of a classifier's components, one if the model is joint.

    Attributes
    ----------
    layout : Layout
        The finest lattices.
    sums : Statistics or None
        Of the rows, on these lattices; not needed for a joint model.
    mean : MeanPrior
    """

    layout: Layout
    sums: Statistics | None
    mean: MeanPrior

    @property
    def first_features(self) -> int:
        """How many features are enough to begin with."""
        return self.layout.first_features

    def components(self, kernel: Kernel, headroom: float) -> Components:
        """Return the coarsest lattices that the kernel, stretched by `headroom`, allows."""
        return self.layout.thinned(kernel, headroom)

    def select(self, kernel: Kernel, components: Components, size: int) -> SiteModel:
        """Return the model with `size` features, those of the largest prior variances."""
        features = self.layout.select(kernel, components, size, self.mean)
        return SiteModel(features, self.sums)

    def sufficient(self, kernel: Kernel, components: Components, allowed: float) -> int:
        """Return how many features leave out no more than the allowed variance."""
        return self.layout.required_features(kernel, components, allowed)[0]

    def limits(self, kernel: Kernel, components: Components) -> Limits:
        """Return the limits of the kernel's log parameters."""
        lower, upper = self.layout.limits(kernel, components, NOISE_FLOOR)
        # The last are those of a noise variance, which is one here.
        return lower[:-1], upper[:-1]

    def names_at_limit(
        self, kernel: Kernel, components: Components, vector: NDArray[np.float64], limits: Limits
    ) -> tuple[str, ...]:
        """Return the parameters that ended at a limit."""
        return self.layout.names_at_limit(kernel, components, vector, limits)

    def describe_limits(self, names: tuple[str, ...], scarce: bool) -> list[str]:
        """Return sentences on parameters at a limit; `scarce` if more features were wanted."""
        if not self.layout.joint:
            return describe_limits(names)
        remedy = "more features allow a longer period" if scarce else "see `domain` and `mean`"
        return [f"The {' and '.join(names)} ended at a limit: {remedy}."]

    def curvature(
        self, ascent: SiteAscent, vector: NDArray[np.float64], limits: Limits
    ) -> NDArray[np.float64]:
        """Return the curvature of the bound at log parameters, to begin with.

        Differences of gradients would cost several passes over the rows for each of an additive
        model's many parameters: it takes the expected curvature with the sites held.
        """
        _, gradient = ascent(vector)
        if self.layout.joint:
            return curvature_at(ascent, vector, gradient, *limits)
        return ascent.last.objective.curvature(np.append(vector, 0.0))[:-1, :-1]

    def shorter(self, components: Components) -> list[Components]:
        """Return a joint model's lattices with one period a step shorter that hold the data."""
        if not self.layout.joint:
            return []
        (factors,) = self._factors(components)
        steps = np.eye(len(factors), dtype=np.int64)
        shorter = [self.layout.thinned_by([factors + step]) for step in steps]
        width = self.layout.width
        return [own for own in shorter if np.all(own[0].lattice.period >= _SHORTEST * width)]

    def no_longer(self, components: Components, than: Components) -> Components:
        """Return lattices with periods no longer than those of others."""
        if not self.layout.joint:
            return components
        pairs = zip(self._factors(components), self._factors(than), strict=True)
        return self.layout.thinned_by([np.maximum(*pair) for pair in pairs])

    def _factors(self, components: Sequence[ComponentLattice]) -> list[NDArray[np.int64]]:
        """Return by how much each lattice was decimated."""
        pairs = zip(components, self.layout.components, strict=True)
        return [
            np.rint(own.lattice.spacing / finest.lattice.spacing).astype(np.int64)
            for own, finest in pairs
        ]
