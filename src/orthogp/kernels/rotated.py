r"""Kernels whose lengthscales lie along directions other than the columns.

Streaks of cloud, ridges, currents: what is long in one direction and short across it seldom runs
along longitude or latitude. With R the rotation by an angle,

    k(τ) = k₀(R τ),      S(ω) = S₀(R ω),      R = [[cos a, sin a], [−sin a, cos a]]

so that the first lengthscale of k₀ holds along the direction (cos a, sin a), the second across it.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError
from orthogp.kernels.base import Kernel
from orthogp.kernels.stationary import (
    MANY_IMAGES,
    RBF,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Parameter,
)
from orthogp.precision import AnyArray

_ROTATABLE = (RBF, Matern, Matern12, Matern32, Matern52)


class Rotated(Kernel):
    """A kernel on two columns with its lengthscales along and across a direction that is learned.

        k(τ) = k₀(R τ),      R = [[cos a, sin a], [−sin a, cos a]]

    Parameters
    ----------
    kernel : Kernel
        k₀: RBF, Matern, Matern12, Matern32 or Matern52 with two lengthscales.
    angle : a, in radians
        From the first column towards the second, in the units of X. Directions repeat after π.
    """

    kernel: Kernel
    angle: Parameter

    num_images = MANY_IMAGES

    def __init__(self, kernel: Kernel, angle: float = 0.0, *, fixed: tuple[str, ...] = ()) -> None:
        if not isinstance(kernel, _ROTATABLE) or np.shape(kernel.lengthscale) != (2,):
            raise KernelError(
                "Rotated takes one RBF, Matern, Matern12, Matern32 or Matern52 with two "
                f"lengthscales, got {kernel!r}: write for example "
                "Rotated(Matern32(lengthscale=[2.0, 1.0]), angle=0.8)."
            )
        turn = np.asarray(angle, dtype=np.float64)
        if turn.ndim or not np.isfinite(turn):
            raise KernelError(f"The angle of Rotated must be one finite number, got {angle!r}.")
        self.kernel = kernel
        self.angle = _within_half_a_turn(turn)
        self.fixed = tuple(sorted({*kernel.fixed, *fixed}))

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return k₀(R τ)."""
        return self.kernel.k(self._turned(lag))

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return S₀(R ω)."""
        return self.kernel.spectral_density(self._turned(omega))

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return f"Rotated {self.kernel.label}"

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return self.kernel.prior_variance()

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return Σ_i R_id² times the derivative variances of k₀."""
        own = self.kernel.derivative_variance(num_dims)
        cos2, sin2 = jnp.cos(self.angle) ** 2, jnp.sin(self.angle) ** 2
        turned = jnp.stack([cos2 * own[0] + sin2 * own[1], sin2 * own[0] + cos2 * own[1]])
        # Zero times infinity, where paths have no derivative in any direction.
        return jnp.where(jnp.all(jnp.isfinite(own)), turned, jnp.inf)

    def parameters(self) -> dict[str, Float[AnyArray, "..."]]:
        """Return the parameters of the kernel inside, and the angle."""
        return {**self.kernel.parameters(), "angle": self.angle}

    def with_parameters(self, **parameters: Any) -> Rotated:
        """Return a copy with some parameters replaced."""
        # Not through the constructor: tracers pass.
        angle = parameters.pop("angle", self.angle)
        if not isinstance(angle, jax.Array):
            angle = _within_half_a_turn(np.asarray(angle, dtype=np.float64))
        inner = self.kernel.with_parameters(**parameters) if parameters else self.kernel
        return eqx.tree_at(lambda own: (own.kernel, own.angle), self, (inner, angle))

    def fix(self, *names: str) -> Rotated:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        inner = [name for name in names if name != "angle"]
        kernel = self.kernel.fix(*inner) if inner or not names else self.kernel
        held = not names or "angle" in (*names, *self.fixed)
        return Rotated(kernel, float(self.angle), fixed=("angle",) if held else ())

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless it acts on two columns."""
        if num_dims != 2:
            raise KernelError(
                f"A rotated kernel acts on two columns, got {num_dims}: say on which by "
                "Rotated(…).on(0, 1)."
            )

    def __repr__(self) -> str:
        held = ", fixed=('angle',)" if "angle" in self.fixed else ""
        return f"Rotated({self.kernel!r}, angle={float(np.mod(self.angle, np.pi)):.4g}{held})"

    def _turned(self, vector: Float[AnyArray, " d"]) -> Float[AnyArray, " d"]:
        cos, sin = jnp.cos(self.angle), jnp.sin(self.angle)
        return jnp.stack([cos * vector[0] + sin * vector[1], cos * vector[1] - sin * vector[0]])


def _within_half_a_turn(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the angle of the same direction in (0, π]: parameters are positive."""
    return np.asarray(np.pi - np.mod(-angle, np.pi))
