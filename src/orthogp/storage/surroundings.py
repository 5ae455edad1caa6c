"""What files hold of the window of an intensity: exposures, covariates and their effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.covariates import Effects
from orthogp.errors import InputError
from orthogp.likelihoods.surfaces import Surroundings
from orthogp.rows import Domain
from orthogp.storage.classes import demand, demand_shape
from orthogp.storage.codec import RefusedError, register

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KeptSurroundings:
    """Values on the grid of a window."""

    exposure: Floats | None = None
    names: tuple[str, ...] = ()
    covariates: tuple[Floats, ...] = ()
    effects: Floats | None = None
    covariance: Floats | None = None

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return what a model knows of its window beside numbers."""
        effects = model._effects
        given = model._watched, model.covariate_names_, model._covariate_values
        return cls(*given, *(() if effects is None else effects[1:]))

    def restored(
        self, window: Domain, exposure: float, num_columns: int
    ) -> tuple[Surroundings, Effects | None]:
        """Return what is known of the window, and the effects of it."""
        lower, upper = window
        demand_shape(lower, (num_columns,), "window")
        good = lower.shape == upper.shape and np.isfinite(window) & (lower < upper)
        demand(good, "must have finite lower edges below the upper ones", "window")
        q = len(self.names)
        demand(len(self.covariates) == q == len(set(self.names)), f"must be {q} names", "names")
        effects = None
        if q:
            values, covariance = self.effects, self.covariance
            if values is None or covariance is None:
                raise RefusedError("must be there", "effects")
            demand_shape(values, (q,), "effects")
            demand_shape(covariance, (q, q), "covariance")
            effects = Effects(self.names, values, covariance)
        watched = exposure if self.exposure is None else self.exposure
        try:
            given = dict(zip(self.names, self.covariates, strict=True))
            around = Surroundings.of(window, watched, given)
        except InputError as error:
            raise RefusedError(f"must be of a window: {error}", "covariates") from error
        return around, effects


register(KeptSurroundings, "surroundings")
#: Of a window that was watched as a whole.
NOTHING_KNOWN = KeptSurroundings()
