"""Box features: the average over a cell of frequencies."""

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
from orthogp.statistics import FrequencyLattice

# The band that is worth covering, in units of one over the correlation length.
_BAND = 5.0


class Box(SpectralFeatures):
    r"""Indicators of equal cells of the frequency axis.

        ψ = 1[|ω| < w/2]/√w,      (1[ω ∈ cell_j] ± 1[−ω ∈ cell_j])/√(2w),      j = 1, 2, …

    with cell_j = [(j−½)w, (j+½)w]. Integrated Fourier features are their midpoint rule. The cells
    must together cover the band, and each must resolve the inputs, w·(half their width) ≲ π, so
    they converge slowly. On a lattice a cell is an odd number of its points; with one, these are
    the features of the lattice itself.

    Parameters
    ----------
    num_features : int
    width : float or (d,), optional
        The width w of a cell; chosen for the data unless given.
    """

    width: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "width"))

    def basis(self, u: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Return 1 on |u| < ½, then 1/√2 on the cells around j and ±1/√2 around −j."""
        order = np.arange(count)[:, None]
        values = np.where(np.floor(np.abs(u) + 0.5) == (order + 1) // 2, np.sqrt(0.5), 0.0)
        values[2::2] *= np.sign(u)
        values[0] *= np.sqrt(2)
        return values

    def traced_basis(self, u: Float[AnyArray, " t"], count: int) -> Float[AnyArray, "m t"]:
        """Return `basis` as a JAX array."""
        order = np.arange(count)[:, None]
        inside = jnp.floor(jnp.abs(u) + 0.5) == (order + 1) // 2
        height = np.where(order == 0, 1.0, np.sqrt(0.5))
        return jnp.where(inside, height, 0.0) * jnp.where(self.is_odd(order), jnp.sign(u), 1.0)

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which members are differences of a cell and its mirror image."""
        return (order > 0) & (order % 2 == 0)

    def reach(self, count: int) -> float:
        """Return the end of the last cell."""
        return count // 2 + 0.5

    def breakpoints(self, count: int) -> NDArray[np.float64]:
        """Return the ends of all cells."""
        return np.concatenate([[0.0], np.arange(count // 2 + 1) + 0.5])

    @property
    def dilation(self) -> NDArray[np.float64] | None:
        """The width of a cell."""
        return self.width

    def dilated(self, dilation: NDArray[np.float64]) -> Self:
        """Return a copy with cells of another width."""
        return replace(self, width=dilation)

    def guess(
        self, counts: NDArray[np.int64], width: NDArray[np.float64], length: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return cells that cover the band, or as narrow ones as the inputs ask for."""
        return np.minimum(_BAND / length / (counts // 2 + 0.5), 2 * np.pi / width)

    def _fit_on(self, lattice: FrequencyLattice | None) -> Self:
        """Return a copy whose cells hold an odd number of the lattice's points each."""
        if lattice is None or self.dilation is None or self.orders is None:
            return self
        num_cells = (np.max(np.array(self.orders), axis=0) + 1) // 2 * 2 + 1
        most = np.maximum((2 * lattice.extent + 1) // num_cells, 1)
        points = np.clip(self.dilation / lattice.spacing, 1, most - 1 + most % 2)
        return self.dilated((2 * np.round((points - 1) / 2) + 1) * lattice.spacing)
