r"""What is known at every place of a window: exposures and covariates of an intensity.

Values at evenly spaced places, corners included, and straight lines between them. Integrals over
the window take cells in which all is constant, whose waves have integrals in closed form:

    ∫_cell e^{iω·x} dx = volume · e^{iω·c} Π_j sinc(ω_j h_j / 2π),      c the centre, h the sides
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from orthogp.errors import InputError
from orthogp.rows import Domain
from orthogp.statistics import FourierStatistics, FrequencyLattice

Floats = NDArray[np.float64]

# Cells along each column, by the number of columns.
_CELLS = (4000, 250, 40)
# Covariates that differ by less than this, relative to their size, are constant.
_CONSTANT = 1e-9


class Surface(NamedTuple):
    """A function of places in a window."""

    box: Domain
    values: Floats

    @classmethod
    def of(cls, name: str, given: Any, box: Domain) -> Self:
        """Return what an array of values, or a function of places, stands for."""
        d = len(box.lower)
        if isinstance(given, Callable):
            axes = [np.linspace(*ends, _CELLS[d - 1] + 1) for ends in zip(*box, strict=True)]
            places = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
            values = np.asarray(given(places.reshape(-1, d)), dtype=np.float64)
            if values.shape != (places[..., 0].size,):
                raise InputError(
                    f"{name} must return one number for each row of places, got shape "
                    f"{values.shape} for {places[..., 0].size} rows."
                )
            values = values.reshape(places.shape[:-1])
        else:
            values = np.asarray(given, dtype=np.float64)
        if values.ndim != d or min(values.shape) < 2:
            raise InputError(
                f"{name} must be an array with an axis of two or more values for each of {d} "
                f"columns, or a function of places, got shape {values.shape}."
            )
        if not np.all(np.isfinite(values)):
            raise InputError(f"{name} has values that are no finite numbers: fill them in.")
        return cls(box, values)

    def at(self, X: Floats) -> Floats:
        """Return the values at places, those beyond the window as at its edge."""
        axes = [
            np.linspace(low, high, size)
            for low, high, size in zip(*self.box, self.values.shape, strict=True)
        ]
        inside = np.clip(X, *self.box)
        return np.asarray(RegularGridInterpolator(tuple(axes), self.values)(inside))


class Surroundings(NamedTuple):
    """Exposure and covariates of a window.

    Attributes
    ----------
    box : Domain
    exposure : Surface or float
    names : tuple of str
        Of the covariates.
    covariates : tuple of Surface
    """

    box: Domain
    exposure: Surface | float
    names: tuple[str, ...] = ()
    covariates: tuple[Surface, ...] = ()

    @classmethod
    def of(cls, box: Domain, exposure: Any, covariates: Mapping[str, Any] | None) -> Self:
        """Return what a user gave, having seen that it can be."""
        if isinstance(exposure, (int, float, np.number)):
            if not (np.isfinite(exposure) and exposure > 0):
                raise InputError(f"exposure must be a positive number, got {exposure!r}.")
            watched: Surface | float = float(exposure)
        else:
            watched = Surface.of("exposure", exposure, box)
            if watched.values.min() < 0 or watched.values.max() == 0:
                raise InputError(
                    "exposure must be positive where the window was watched, and 0 elsewhere."
                )
        if covariates is not None and not isinstance(covariates, Mapping):
            raise InputError(
                "covariates must be a dictionary of names and arrays or functions, got "
                f"{type(covariates).__name__}."
            )
        given = {} if covariates is None else dict(covariates)
        surfaces = tuple(Surface.of(f"covariate {k!r}", v, box) for k, v in given.items())
        for name, own in zip(given, surfaces, strict=True):
            if np.ptp(own.values) <= _CONSTANT * np.abs(own.values).max():
                raise InputError(f"Covariate {name!r} is the same everywhere: leave it out.")
        return cls(box, watched, tuple(map(str, given)), surfaces)

    @property
    def mean_exposure(self) -> float:
        """The average over the window."""
        if isinstance(self.exposure, Surface):
            return float(self.cells().exposure.sum() / np.prod(self.box.width))
        return self.exposure

    def exposure_at(self, X: Floats) -> Floats:
        """Return the exposure at places, (n,)."""
        if isinstance(self.exposure, Surface):
            return self.exposure.at(X)
        return np.full(len(X), self.exposure)

    def covariates_at(self, X: Floats) -> Floats:
        """Return the covariates at places, (n, q)."""
        return np.stack([own.at(X) for own in self.covariates], axis=1)

    def cells(self) -> Cells:
        """Return the cells of the window."""
        d = len(self.box.lower)
        sides = self.box.width / _CELLS[d - 1]
        axes = [
            low + h * (0.5 + np.arange(_CELLS[d - 1]))
            for low, h in zip(self.box.lower, sides, strict=True)
        ]
        centres = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
        exposure = self.exposure_at(centres) * float(np.prod(sides))
        return Cells(sides, centres, exposure)


class Cells(NamedTuple):
    """The cells of a window: their sides, centres, and ∫ exposure over each."""

    sides: Floats
    centres: Floats
    exposure: Floats

    def sums(
        self, lattice: FrequencyLattice, weights: Floats, num_threads: int
    ) -> NDArray[np.complex128]:
        """Return Σ weight · ∫_cell e^{iω_s·(x−x₀)} dx / volume for |s| ≤ 2K."""
        found = FourierStatistics.from_data(
            lattice, self.centres, np.zeros(len(weights)), weights, num_threads=num_threads
        ).point_sums
        for axis, (spacing, extent, side) in enumerate(
            zip(lattice.spacing, lattice.extent, self.sides, strict=True)
        ):
            omega = spacing * np.arange(-2 * extent, 2 * extent + 1)
            shape = [1] * found.ndim
            shape[axis] = -1
            found = found * np.sinc(omega * side / (2 * np.pi)).reshape(shape)
        return found
