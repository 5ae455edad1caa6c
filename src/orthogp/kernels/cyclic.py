r"""Kernels on columns that come round: hours of a day, days of a week, unordered categories.

Their period P is known and never learned. On the lattice of spacing 2π/P the process is exact, not
an approximation to one without a period:

    cyclic         mass_t = v S(ω_t)/Σ_s S(ω_s),     k(τ) = v Σ_j k₀(τ + jP)/Σ_j k₀(jP)
    categorical    mass_t = v/L for the L modes of period L,     k(x, x') = v 1[x = x']
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.base import Kernel
from orthogp.kernels.stationary import (
    RBF,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Parameter,
    RationalQuadratic,
    positive,
)
from orthogp.precision import AnyArray

# Images on each side: for lengthscales up to the period, e^{−32} of the exponential kernel remains.
_NUM_IMAGES = 32
_WRAPPABLE = (RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic)


class Cyclic(Kernel):
    """A kernel wrapped around a circle, for a column such as the hour of the day.

        k(τ) = v Σ_j k₀(τ + jP)/Σ_j k₀(jP)

    Parameters
    ----------
    kernel : Kernel
        k₀: RBF, Matern, Matern12, Matern32, Matern52 or RationalQuadratic, with one lengthscale of
        at most the period. Its parameters are those learned.
    period : P, not learned
    """

    kernel: Kernel
    period: float = eqx.field(static=True)

    def __init__(self, kernel: Kernel, period: float) -> None:
        if not isinstance(kernel, _WRAPPABLE):
            raise KernelError(
                "Cyclic takes one RBF, Matern, Matern12, Matern32, Matern52 or RationalQuadratic, "
                f"got {kernel!r}: write for example Cyclic(Matern32(), period=24.0)."
            )
        length = check_positive(period, "The period of Cyclic")
        if length.ndim:
            raise KernelError(f"The period of Cyclic must be one number, got {period!r}.")
        self.kernel = kernel
        self.period = float(length)
        self.fixed = kernel.fixed
        lengthscale = kernel.lengthscale
        # A little more, for lengthscales learned up to the limit.
        if np.any(lengthscale > 1.001 * self.period):
            raise KernelError(
                f"The lengthscale of Cyclic must be at most its period {self.period:g}, got "
                f"{lengthscale}: give a shorter one; longer ones mean a constant."
            )

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return v Σ_j k₀(τ + jP)/Σ_j k₀(jP)."""
        period = jnp.full(1, self.period)
        around = lag - period * jnp.round(lag / period)
        if self._has_own_wrap:
            return self.kernel.wrapped(around, period)
        return self._scale() * self._image_total(around)

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return the covariance where the square of the distance around the circle is this."""
        # The root's derivative at zero is infinite; its product with zero must not be NaN.
        safe = jnp.where(square > 0, square, 1.0)
        return self.k(jnp.where(square > 0, jnp.sqrt(safe), 0.0)[None])

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return k(τ), whatever the lattice."""
        return self.k(lag)

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Raise `KernelError`: there are frequencies of multiples of 2π/P only."""
        raise KernelError("A cyclic kernel has no spectral density; use its masses on a lattice.")

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return f"Cyclic {self.kernel.label}"

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return self.kernel.prior_variance()

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return −k''(0), infinite where paths have no derivative."""

        def second(function, at: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
            return jax.grad(jax.grad(lambda x: function(jnp.reshape(x, 1))))(at)

        if self._has_own_wrap:
            return jnp.reshape(-second(self.k, jnp.zeros(())), 1)
        images = jax.vmap(lambda at: second(self.kernel.k, at))(self._images())
        own = self.kernel.derivative_variance(num_dims)
        return self._scale() * (own - jnp.sum(images))

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the prior variance of the mode at ω on the lattice of spacing 2π/P."""
        if self._has_own_wrap:
            return self.kernel.mass(omega, spacing)
        return self._scale() * jnp.prod(spacing) * self.kernel.spectral_density(omega)

    def parameters(self) -> dict[str, Float[AnyArray, "..."]]:
        """Return the parameters of the kernel inside."""
        return self.kernel.parameters()

    def with_parameters(self, **parameters: Any) -> Cyclic:
        """Return a copy with some parameters of the kernel inside replaced."""
        # Not through the constructor: tracers pass, and searches may try what a user may not.
        changed = self.kernel.with_parameters(**parameters)
        return eqx.tree_at(lambda cyclic: cyclic.kernel, self, changed)

    def fix(self, *names: str) -> Cyclic:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        return Cyclic(self.kernel.fix(*names), self.period)

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless it acts on one column."""
        _check_one_column(self, num_dims)
        self.kernel.check(num_dims)

    def __repr__(self) -> str:
        return f"Cyclic({self.kernel!r}, period={self.period:g})"

    @property
    def _has_own_wrap(self) -> bool:
        return type(self.kernel).mass is not Kernel.mass

    def _images(self) -> Float[AnyArray, " j"]:
        j = np.arange(-_NUM_IMAGES, _NUM_IMAGES + 1)
        return jnp.asarray(self.period * j[j != 0], dtype=float)

    def _image_total(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        return self.kernel.k(lag) + jnp.sum(
            jax.vmap(lambda shift: self.kernel.k(lag + shift))(self._images())
        )

    def _scale(self) -> Float[AnyArray, ""]:
        return self.kernel.prior_variance() / self._image_total(jnp.zeros(1))


class Categorical(Kernel):
    """Independent values for each of L categories, coded 0, 1, …, L − 1: k = v 1[x = x'].

    Parameters
    ----------
    levels : L, not learned
    variance : v
    """

    levels: int = eqx.field(static=True)
    variance: Parameter = positive("variance")

    def __check_init__(self) -> None:
        whole = isinstance(self.levels, int | np.integer) and not isinstance(self.levels, bool)
        if not whole or self.levels < 2:
            raise KernelError(
                f"Categorical needs the number of its levels, at least 2, got {self.levels!r}: "
                "write for example Categorical(7)."
            )

    @property
    def period(self) -> float:
        """L: after so many codes the lattice's modes repeat."""
        return float(self.levels)

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return v if the codes are the same, else zero."""
        around = lag[0] - self.levels * jnp.round(lag[0] / self.levels)
        return jnp.where(jnp.abs(around) < 0.5, self.variance, 0.0)

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return k, whatever the lattice."""
        return self.k(lag)

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Raise `KernelError`: there are L modes only."""
        raise KernelError(
            "A categorical kernel has no spectral density; use its masses on a lattice."
        )

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return jnp.asarray(self.variance)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return infinity: there is nothing between two codes."""
        return jnp.full(num_dims, jnp.inf)

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return v/L for |t| < L/2, and half of it for t = ±L/2, which are the same mode twice."""
        t = jnp.abs(jnp.round(omega[0] / spacing[0]))
        share = jnp.where(2 * t < self.levels, 1.0, jnp.where(2 * t == self.levels, 0.5, 0.0))
        return self.variance * share / self.levels

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless it acts on one column."""
        _check_one_column(self, num_dims)

    def __repr__(self) -> str:
        fixed = f", fixed={self.fixed}" if self.fixed else ""
        return f"Categorical({self.levels}, variance={self.variance:.4g}{fixed})"


def has_own_period(kernel: Kernel) -> bool:
    """Return whether some part of a kernel has a period by itself."""
    return any(isinstance(own, Cyclic | Categorical) for own, _ in kernel.primitives())


def own_periods(kernel: Kernel, num_dims: int) -> tuple[float | None, ...]:
    """Return the period that the kernel itself has along each of its columns, if any.

    Raises `KernelError` where kernels with different periods, or with and without one, meet on a
    column of one product.
    """
    found: list[set[float | None]] = [set() for _ in range(num_dims)]
    for primitive, dims in kernel.primitives():
        for d in range(num_dims) if dims is None else dims:
            cyclic = isinstance(primitive, Cyclic | Categorical)
            found[d].add(primitive.period if cyclic else None)
    if any(len(periods) > 1 for periods in found):
        raise KernelError(
            f"Within one product a column has one period, or none, got {kernel!r}: write the sum "
            "of several products instead."
        )
    return tuple(next(iter(periods), None) for periods in found)


def categorical_columns(kernel: Kernel, num_dims: int) -> Iterator[tuple[int, int]]:
    """Yield the columns that hold categories, with their number of levels."""
    for primitive, dims in kernel.primitives():
        if isinstance(primitive, Categorical):
            yield from ((d, primitive.levels) for d in (range(num_dims) if dims is None else dims))


def _check_one_column(kernel: Kernel, num_dims: int) -> None:
    if num_dims != 1:
        raise KernelError(
            f"{type(kernel).__name__} acts on one column, got {num_dims}: choose it by .on(0), or "
            "multiply kernels on different columns."
        )
