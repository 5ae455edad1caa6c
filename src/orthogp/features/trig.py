"""Trigonometric features: cosines and sines in frequency."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features.base import check_scale
from orthogp.features.spectral import SpectralFeatures
from orthogp.precision import AnyArray


class Trig(SpectralFeatures):
    r"""Cosines and sines on the frequency interval [−a, a] (TrigVOF of the paper).

        ψ = 1/√(2a),   cos(πmω/a)/√a,   sin(πmω/a)/√a,      m = 1, 2, …

    In space these are bumps of the kernel's square root at ±πm/a: as good as inducing points on an
    even grid, for any kernel, without a K_uu. As M grows at fixed a the features give the kernel
    with the frequencies beyond a cut off.

    Parameters
    ----------
    num_features : int
    a : float or (d,), optional
        The largest frequency; chosen for the data unless given.
    """

    a: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "a"))

    def basis(self, u: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Return 1/√2, cos πu, sin πu, cos 2πu, … on [−1, 1]."""
        values = np.empty((count, len(u)))
        values[0] = np.sqrt(0.5)
        phases = np.pi * np.arange(1, count // 2 + 1)[:, None] * u
        values[1::2] = np.cos(phases)
        values[2::2] = np.sin(phases[: (count - 1) // 2])
        return values

    def traced_basis(self, u: Float[AnyArray, " t"], count: int) -> Float[AnyArray, "m t"]:
        """Return `basis` as a JAX array."""
        orders = np.arange(count)[:, None]
        phases = np.pi * ((orders + 1) // 2) * u
        values = jnp.where(orders % 2 == 1, jnp.cos(phases), jnp.sin(phases))
        return jnp.where(orders == 0, np.sqrt(0.5), values)

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which members are sines."""
        return (order > 0) & (order % 2 == 0)

    def reach(self, count: int) -> float:
        """Return 1."""
        return 1.0

    @property
    def dilation(self) -> NDArray[np.float64] | None:
        """The largest frequency a."""
        return self.a

    def dilated(self, dilation: NDArray[np.float64]) -> Self:
        """Return a copy with another a."""
        return replace(self, a=dilation)
