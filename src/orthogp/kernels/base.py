r"""What every kernel offers, and how kernels combine.

One convention throughout, with angular frequency ω:

    k(τ) = ∫ S(ω) e^{iω·τ} dω,      S ≥ 0 and even,      ∫ S = k(0)

A process is represented on the lattice ω_t = h∘t, t ∈ Z^D, whose modes have period P = 2π/h. The
modes carry the *masses* of the wrapped kernel, scaled so that the prior variance is the user's:

    k_P(τ) = c Σ_j k(τ + jP) = Σ_t mass_t e^{iω_t·τ},      mass_t = c h^D S(ω_t)
    c = k(0)/Σ_j k(jP),      hence k_P(0) = Σ_t mass_t = k(0)

Gaussians, and mixtures of them with heavy tails, have a better correction (stationary.py).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import KernelError, check_positive
from orthogp.precision import AnyArray

#: The mean radius of the Earth in kilometres.
EARTH_RADIUS = 6371.0088


class Kernel(eqx.Module):
    """A stationary covariance function and its spectral density.

    Subclasses define `k` and `spectral_density` for one lag and one frequency; `jax.vmap` does the
    rest. Array fields are positive parameters: the optimiser works on their logarithms, on a field
    called `angle` as it is, and on none of those named in `fixed`.
    """

    fixed: tuple[str, ...] = eqx.field(static=True, default=(), kw_only=True)

    #: Makes the product of two kernels; `kernels/product.py`, which imports this file, sets it.
    multiply: ClassVar[Callable[[Kernel, Kernel], Kernel]]
    #: Puts a kernel on the sphere; `kernels/sphere.py` sets it.
    place_on_sphere: ClassVar[Callable[[Kernel, tuple[int, ...], float], Kernel]]
    #: Whether it prints as several kernels, which need parentheses inside another one.
    compound: ClassVar[bool] = False
    #: Images summed on each side when the kernel is wrapped, by number of columns. With few
    #: features the period is so long that k has fallen below the wrap tolerance after one; the
    #: second brings it to rounding. Where lags are further out, a user's functions may overflow.
    num_images: ClassVar[dict[int, int]] = {1: 2, 2: 2, 3: 2}

    @abstractmethod
    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the covariance k(τ) at one lag."""

    @abstractmethod
    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the spectral density S(ω) at one angular frequency."""

    @abstractmethod
    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return k(0)."""

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return type(self).__name__

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return −∂²k(0)/∂τ_d² for each dimension, infinite where paths have no derivative."""
        raise KernelError(f"{type(self).__name__} does not define derivative_variance.")

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the prior variance of the lattice mode at ω (see the module's docstring)."""
        density = self.spectral_density(omega)
        return self._wrap_scale(2 * jnp.pi / spacing) * jnp.prod(spacing) * density

    def image_sum(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return Σ_{j≠0} k(τ + jP), what wrapping adds to k(τ)."""
        most = self.num_images[lag.shape[0]]
        shifts = range(-most, most + 1)
        images = np.array([j for j in itertools.product(shifts, repeat=lag.shape[0]) if any(j)])
        return jnp.sum(jax.vmap(lambda j: self.k(lag + j * period))(jnp.asarray(images, float)))

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return k_P(τ), the covariance of the process on the lattice."""
        return self._wrap_scale(period) * (self.k(lag) + self.image_sum(lag, period))

    def _wrap_scale(self, period: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        variance = self.prior_variance()
        images = self.image_sum(jnp.zeros_like(period), period)
        # An oscillation that outlasts the images summed here may seem to cancel k(0); its wrap
        # error then says that the period is too short, and masses must not turn negative.
        return variance / jnp.maximum(variance + images, 0.5 * variance)

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return frequencies with the density S/k(0), made of random numbers that stay the same.

        They move smoothly with the kernel's parameters. Kernels whose spectral measure is a scale
        mixture of Gaussians offer them.

        Parameters
        ----------
        normals, uniforms : (r, d)
            Standard normal, and uniform between zero and one.
        """
        raise KernelError(
            f"Frequencies cannot be drawn from the spectral density of {self.label}: use RBF, "
            "Matern, Matern12, Matern32, Matern52, RationalQuadratic, or products of them."
        )

    def primitives(self) -> Iterator[tuple[Kernel, tuple[int, ...] | None]]:
        """Yield the kernels this one is a sum of, each with its columns (`None`: all)."""
        yield self, None

    def with_primitives(self, primitives: Iterator[Kernel]) -> Kernel:
        """Return this kernel with its primitives replaced, in the order of `primitives()`."""
        return next(primitives)

    def columns(self, num_dims: int) -> tuple[int, ...]:
        """Return the columns that the kernel sees, of `num_dims`."""
        seen = [range(num_dims) if dims is None else dims for _, dims in self.primitives()]
        return tuple(sorted({column for dims in seen for column in dims}))

    def with_columns(self, renamed: dict[int, int]) -> Kernel:
        """Return the kernel with the columns that `.on` names renamed."""
        return self

    def parameters(self) -> dict[str, Float[AnyArray, "..."]]:
        """Return the array fields by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if isinstance(getattr(self, field.name), np.ndarray | jax.Array)
        }

    def with_parameters(self, **parameters: Any) -> Self:
        """Return a copy with some array fields replaced."""
        # Rebuilding through the leaves rather than the constructor keeps tracers unconverted.
        names = tuple(parameters)
        return eqx.tree_at(
            lambda kernel: tuple(getattr(kernel, name) for name in names),
            self,
            tuple(
                value if isinstance(value, jax.Array) else np.asarray(value, dtype=np.float64)
                for value in parameters.values()
            ),
        )

    def fix(self, *names: str) -> Self:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        known = self.parameters()
        if unknown := [name for name in names if name not in known]:
            raise KernelError(
                f"{type(self).__name__} has no parameter {unknown[0]!r}; it has {', '.join(known)}."
            )
        return replace(self, fixed=tuple(sorted({*self.fixed, *(names or known)})))

    def scaled(self, factor: float) -> Kernel:
        """Return factor · k."""
        return self.with_parameters(variance=self.parameters()["variance"] * factor)

    def on(self, *dims: int | tuple[int, ...] | list[int]) -> On:
        """Return the kernel acting on some columns of X only."""
        flat = tuple(
            int(d)
            for group in dims
            for d in (group if isinstance(group, tuple | list) else [group])
        )
        return On(self, flat)

    def on_sphere(
        self, longitude: int, latitude: int, *further: int, radius: float = EARTH_RADIUS
    ) -> Kernel:
        """Return the kernel acting on the chord between points of a sphere.

        Parameters
        ----------
        longitude, latitude : int
            Their columns of X, in degrees.
        further : int
            Columns, such as time, that are further coordinates, with a lengthscale each.
        radius : float
            Of the sphere, in the unit of the first lengthscale: the Earth's in kilometres.
        """
        columns = (longitude, latitude, *further)
        return Kernel.place_on_sphere(self, tuple(int(d) for d in columns), radius)

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless the kernel can act on `num_dims` input columns."""
        lengthscale = self.parameters().get("lengthscale")
        if lengthscale is not None and lengthscale.ndim and lengthscale.shape[-1] != num_dims:
            raise KernelError(
                f"{type(self).__name__} has {lengthscale.shape[-1]} lengthscales but acts on "
                f"{num_dims} input columns: give one lengthscale, or one per column."
            )

    def __add__(self, other: object) -> Sum:
        if not isinstance(other, Kernel):
            return NotImplemented
        left = self.terms if isinstance(self, Sum) else (self,)
        right = other.terms if isinstance(other, Sum) else (other,)
        return Sum((*left, *right))

    def __mul__(self, factor: object) -> Kernel:
        if isinstance(factor, Kernel):
            return Kernel.multiply(self, factor)
        if not isinstance(factor, int | float | np.number):
            return NotImplemented
        return self.scaled(float(check_positive(factor, "The factor of a kernel")))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = [f"{name}={_show(value)}" for name, value in self.parameters().items()]
        if self.fixed:
            shown.append(f"fixed={self.fixed}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Sum(Kernel):
    """The sum of kernels: independent processes added up."""

    terms: tuple[Kernel, ...]

    compound = True

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return Σ k_i(τ)."""
        return _total(term.k(lag) for term in self.terms)

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return Σ S_i(ω)."""
        return _total(term.spectral_density(omega) for term in self.terms)

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return Σ k_i(0)."""
        return _total(term.prior_variance() for term in self.terms)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return the sum of the terms' derivative variances."""
        return _total(term.derivative_variance(num_dims) for term in self.terms)

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the sum of the terms' masses."""
        return _total(term.mass(omega, spacing) for term in self.terms)

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the sum of the wrapped terms."""
        return _total(term.wrapped(lag, period) for term in self.terms)

    def primitives(self) -> Iterator[tuple[Kernel, tuple[int, ...] | None]]:
        """Yield the primitives of every term."""
        for term in self.terms:
            yield from term.primitives()

    def with_primitives(self, primitives: Iterator[Kernel]) -> Sum:
        """Return the sum with its primitives replaced."""
        return Sum(tuple(term.with_primitives(primitives) for term in self.terms))

    def with_columns(self, renamed: dict[int, int]) -> Sum:
        """Return the sum with the columns of its terms renamed."""
        return Sum(tuple(term.with_columns(renamed) for term in self.terms))

    def fix(self, *names: str) -> Sum:
        """Return a copy in which the named parameters of every term that has them are fixed."""
        known = {name for primitive, _ in self.primitives() for name in primitive.parameters()}
        if unknown := [name for name in names if name not in known]:
            raise KernelError(f"No term of the sum has a parameter {unknown[0]!r}.")
        return self.with_primitives(
            primitive.fix(*(name for name in names if name in primitive.parameters()))
            if not names or any(name in primitive.parameters() for name in names)
            else primitive
            for primitive, _ in self.primitives()
        )

    def scaled(self, factor: float) -> Sum:
        """Return the sum with every term scaled."""
        return Sum(tuple(term.scaled(factor) for term in self.terms))

    def check(self, num_dims: int) -> None:
        """Check every term."""
        for term in self.terms:
            term.check(num_dims)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


class On(Kernel):
    """A kernel that sees some columns only and is constant along the others.

    Its spectral measure sits on the plane where the other frequencies vanish, so it has masses on a
    lattice, but no density.
    """

    kernel: Kernel
    dims: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not self.dims or min(self.dims) < 0 or len(set(self.dims)) != len(self.dims):
            raise KernelError(
                f"Columns must be distinct and counted from 0, got {self.dims}: "
                "write for example kernel.on(0) or kernel.on(0, 2)."
            )

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the covariance at the lag of the kernel's own columns."""
        return self.kernel.k(lag[np.array(self.dims)])

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the density if the kernel sees all columns, else raise `KernelError`."""
        if len(self.dims) != omega.shape[0]:
            raise KernelError(
                "A kernel on some of the columns has no spectral density over all of them; "
                "use its masses on a lattice."
            )
        return self.kernel.spectral_density(omega[np.array(self.dims)])

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return k(0)."""
        return self.kernel.prior_variance()

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return the derivative variances, zero along the other columns."""
        own = self.kernel.derivative_variance(len(self.dims))
        return jnp.zeros(num_dims).at[np.array(self.dims)].set(own)

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the mass on the plane where the other frequencies vanish, zero elsewhere."""
        own = np.array(self.dims)
        others = np.array([d for d in range(omega.shape[0]) if d not in self.dims], dtype=int)
        return jnp.where(
            jnp.all(omega[others] == 0), self.kernel.mass(omega[own], spacing[own]), 0.0
        )

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the covariance wrapped along the kernel's own columns."""
        own = np.array(self.dims)
        return self.kernel.wrapped(lag[own], period[own])

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return frequencies of the kernel's own columns, zero along the others."""
        own = np.array(self.dims)
        drawn = self.kernel.frequencies(normals[:, own], uniforms[:, own])
        return jnp.zeros(normals.shape).at[:, own].set(drawn)

    def primitives(self) -> Iterator[tuple[Kernel, tuple[int, ...] | None]]:
        """Yield the inner primitives with their columns."""
        for primitive, inner in self.kernel.primitives():
            yield primitive, self.dims if inner is None else tuple(self.dims[d] for d in inner)

    def with_primitives(self, primitives: Iterator[Kernel]) -> On:
        """Return a copy with the inner primitives replaced."""
        return On(self.kernel.with_primitives(primitives), self.dims)

    def with_columns(self, renamed: dict[int, int]) -> On:
        """Return a copy on the renamed columns; those inside are relative to them."""
        return On(self.kernel, tuple(renamed[d] for d in self.dims))

    def fix(self, *names: str) -> On:
        """Return a copy with parameters of the inner kernel fixed."""
        return On(self.kernel.fix(*names), self.dims)

    def scaled(self, factor: float) -> On:
        """Return a copy with the inner kernel scaled."""
        return On(self.kernel.scaled(factor), self.dims)

    def check(self, num_dims: int) -> None:
        """Check that the columns exist and that the inner kernel fits them."""
        if max(self.dims) >= num_dims:
            raise KernelError(
                f"The kernel acts on column {max(self.dims)}, but X has {num_dims} columns "
                "(counted from 0)."
            )
        self.kernel.check(len(self.dims))

    def __repr__(self) -> str:
        inner = f"({self.kernel!r})" if self.kernel.compound else repr(self.kernel)
        return f"{inner}.on({', '.join(map(str, self.dims))})"


def _total(values: Iterator[Float[AnyArray, "..."]]) -> Float[AnyArray, "..."]:
    return sum(values, start=jnp.zeros(()))


def _show(value: Float[AnyArray, "..."]) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    array = np.asarray(value)
    return f"{array:.4g}" if array.ndim == 0 else str(np.array2string(array, precision=4))
