r"""Bounds and priors as one term of what is learned from, the same for every engine.

An engine maximises the evidence as a function of a vector: the logarithms of the kernel's learned
parameters first, of the noise variance last, the features' own parameters in between, if any. What
is known beforehand adds the log density of these logarithms, and narrows the box that they move in:

    log p(y | θ) + Σ_i log p(log θ_i),      lower ≤ log θ ≤ upper
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.parameters import Slot
from orthogp.kernels import Kernel
from orthogp.kernels.base import AMPLITUDES
from orthogp.kernels.priors import Noise, Prior

Vector = NDArray[np.float64]
#: A parameter: the number of its primitive kernel, and its name.
Place = tuple[int, str]
# Nothing is known of the noise variance.
_UNKNOWN = Noise()


class LogPrior(NamedTuple):
    """The log density at a vector, its gradient (p,) and its second derivatives (p,)."""

    value: float
    gradient: Vector
    bend: Vector


@dataclass(frozen=True)
class Beliefs:
    """What is known of the parameters of a kernel and of the noise variance.

    Attributes
    ----------
    bounds, priors : dict
        Of the kernel's parameters, by primitive and name.
    noise : Noise
    """

    bounds: dict[Place, tuple[float, float]] = field(default_factory=dict)
    priors: dict[Place, Prior] = field(default_factory=dict)
    noise: Noise = _UNKNOWN

    @classmethod
    def of(cls, kernel: Kernel, noise: Noise, factor: float = 1.0) -> Beliefs:
        """Return what a kernel and a noise say, variances multiplied by a factor."""

        def scale(name: str) -> float:
            return factor if name in AMPLITUDES else 1.0

        primitives = [own for own, _ in kernel.primitives()]
        return cls(
            {
                (i, name): (low * scale(name), high * scale(name))
                for i, own in enumerate(primitives)
                for name, low, high in own.bounds
            },
            {
                (i, name): prior.scaled(scale(name))
                for i, own in enumerate(primitives)
                for name, prior in own.priors
            },
            noise.scaled(factor),
        )

    @property
    def about_scale(self) -> bool:
        """Whether anything is known of a variance, of the kernel or of the noise."""
        named = any(name in AMPLITUDES for _, name in (*self.bounds, *self.priors))
        noise = self.noise
        return named or noise.fixed or noise.bounds is not None or noise.belief is not None

    def log_prior(self, slots: tuple[Slot, ...], vector: Vector) -> LogPrior:
        """Return the log density of a vector; parameters without a prior have a flat one."""
        value, gradient, bend = 0.0, np.zeros(len(vector)), np.zeros(len(vector))
        told = [(self.noise.belief, slice(len(vector) - 1, len(vector)))]
        told += [(self.priors.get(place), entries) for place, entries in _entries(slots)]
        for prior, entries in told:
            if prior is not None:
                density = prior.log_density(vector[entries])
                value += float(density.value.sum())
                gradient[entries], bend[entries] = density.slope, density.bend
        return LogPrior(value, gradient, bend)

    def within(
        self, slots: tuple[Slot, ...], limits: tuple[Vector, Vector]
    ) -> tuple[Vector, Vector]:
        """Return an engine's limits narrowed to the bounds, which hold in any case.

        An engine's limits of lengthscales say what its lattice holds; of other parameters they only
        keep a search from going astray, and bounds take their place.
        """
        lower, upper = limits[0].copy(), limits[1].copy()
        for place, entries in _entries(slots):
            if place not in self.bounds:
                continue
            low, high = np.log(self.bounds[place])
            if place[1] == "lengthscale":
                lower[entries] = np.clip(lower[entries], low, high)
                upper[entries] = np.clip(upper[entries], low, high)
            else:
                lower[entries], upper[entries] = low, high
        if self.noise.fixed:
            assert self.noise.value is not None
            lower[-1] = upper[-1] = np.log(self.noise.value)
        elif self.noise.bounds is not None:
            # Below the floor double precision resolves nothing, but for a user who insists.
            low, high = np.log(self.noise.bounds)
            lower[-1], upper[-1] = np.clip(lower[-1], low, high), high
        return lower, upper


#: Nothing is known beforehand.
NO_BELIEFS = Beliefs()


def _entries(slots: tuple[Slot, ...]) -> Iterator[tuple[Place, slice]]:
    """Yield each learned parameter with its entries of the vector."""
    at = 0
    for slot in slots:
        yield (slot.primitive, slot.name), slice(at, at + slot.size)
        at += slot.size
