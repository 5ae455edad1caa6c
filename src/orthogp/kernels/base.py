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
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add, mul
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.priors import Prior, check_bounds, check_prior
from orthogp.precision import AnyArray

#: One number, one vector with an entry for each column, several of them, lengthscales.
Scalar = Float[AnyArray, ""]
Vector = Float[AnyArray, " d"]
Vectors = Float[AnyArray, "r d"]
Lengths = Float[AnyArray, "*d"]
#: Columns of X, counted from 0.
Columns = tuple[int, ...]

#: The mean radius of the Earth in kilometres.
EARTH_RADIUS = 6371.0088
#: The kernels that can be named by a string: all classes with a `known_as`.
KERNEL_NAMES: dict[str, type[Kernel]] = {}
#: The parameters that only scale a kernel.
AMPLITUDES = ("variance", "weights")
#: The name of parameters that are angles.
ANGLE = "angle"


class Kernel(eqx.Module):
    """A stationary covariance function and its spectral density.

    Subclasses define `k` and `spectral_density` for one lag and one frequency; `jax.vmap` does the
    rest. Array fields are positive parameters: the optimiser works on their logarithms, on a field
    called `angle` as it is, and on none of those named in `fixed`. `bounds` and `priors` hold, by
    the parameter's name, what `bound` and `prior` said.
    """

    fixed: tuple[str, ...] = eqx.field(static=True, default=(), kw_only=True)
    bounds: tuple[tuple[str, float, float], ...] = eqx.field(static=True, default=(), kw_only=True)
    priors: tuple[tuple[str, Prior], ...] = eqx.field(static=True, default=(), kw_only=True)

    #: The string that stands for the kernel with its default parameters, if any.
    known_as: ClassVar[str] = ""
    #: Puts a kernel on the sphere; `kernels/sphere.py`, which imports this file, sets it.
    place_on_sphere: ClassVar[Callable[[Kernel, Columns, float], Kernel]]
    #: Whether it prints as several kernels, which need parentheses inside another one.
    compound: ClassVar[bool] = False
    #: Images summed on each side when the kernel is wrapped, by number of columns. With few
    #: features the period is so long that k has fallen below the wrap tolerance after one; the
    #: second brings it to rounding. Where lags are further out, a user's functions may overflow.
    num_images: ClassVar[dict[int, int]] = {1: 2, 2: 2, 3: 2}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name := vars(cls).get("known_as"):
            KERNEL_NAMES[name] = cls

    @abstractmethod
    def k(self, lag: Vector) -> Scalar:
        """Return the covariance k(τ) at one lag."""

    @abstractmethod
    def spectral_density(self, omega: Vector) -> Scalar:
        """Return the spectral density S(ω) at one angular frequency."""

    def prior_variance(self) -> Scalar:
        """Return k(0): the parameter `variance`, unless a kernel says otherwise."""
        parameters = self.parameters()
        if "variance" not in parameters:
            raise KernelError(f"{self.label} has no variance: it must define prior_variance.")
        return jnp.asarray(parameters["variance"])

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return type(self).__name__

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return −∂²k(0)/∂τ_d² for each dimension, infinite where paths have no derivative."""
        raise KernelError(f"{type(self).__name__} does not define derivative_variance.")

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the prior variance of the lattice mode at ω (see the module's docstring)."""
        density = self.spectral_density(omega)
        return self._wrap_scale(2 * jnp.pi / spacing) * jnp.prod(spacing) * density

    def image_sum(self, lag: Vector, period: Vector) -> Scalar:
        """Return Σ_{j≠0} k(τ + jP), what wrapping adds to k(τ)."""
        most = self.num_images[lag.shape[0]]
        shifts = range(-most, most + 1)
        images = np.array([j for j in itertools.product(shifts, repeat=lag.shape[0]) if any(j)])
        return jnp.sum(jax.vmap(lambda j: self.k(lag + j * period))(jnp.asarray(images, float)))

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return k_P(τ), the covariance of the process on the lattice."""
        return self._wrap_scale(period) * (self.k(lag) + self.image_sum(lag, period))

    def _wrap_scale(self, period: Vector) -> Scalar:
        variance = self.prior_variance()
        images = self.image_sum(jnp.zeros_like(period), period)
        # An oscillation that outlasts the images summed here may seem to cancel k(0); its wrap
        # error then says that the period is too short, and masses must not turn negative.
        return variance / jnp.maximum(variance + images, 0.5 * variance)

    def frequencies(self, normals: Vectors, uniforms: Vectors) -> Vectors:
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

    def correlation_across(self, gap: float) -> float:
        """Return a bound on correlations between functionals of f on the two sides of a gap.

        In one column: of f on (−∞, 0] with f on [gap, ∞). One where nothing better is known.
        """
        return 1.0

    @property
    def summands(self) -> tuple[Kernel, ...]:
        """The terms of a sum, or the kernel alone."""
        return (self,)

    def primitives(self) -> Iterator[tuple[Kernel, Columns | None]]:
        """Yield the kernels that a kernel is made of, each with its columns (`None`: all)."""
        yield self, None

    def with_primitives(self, primitives: Iterator[Kernel]) -> Kernel:
        """Return this kernel with its primitives replaced, in the order of `primitives()`."""
        return next(primitives)

    def columns(self, num_dims: int) -> Columns:
        """Return the columns that the kernel sees, of `num_dims`."""
        seen = [range(num_dims) if dims is None else dims for _, dims in self.primitives()]
        return tuple(sorted({column for dims in seen for column in dims}))

    @property
    def column_names(self) -> list[str]:
        """The columns that `.on` gives by their names in place of numbers."""
        named = (dims for _, dims in self.primitives() if dims is not None)
        return [column for dims in named for column in dims if isinstance(column, str)]

    def numbered(self, names: Sequence[str] | None) -> Kernel:
        """Return the kernel with the columns that `.on` names replaced by their numbers in X."""
        wanted = self.column_names
        if not wanted:
            return self
        if names is None:
            raise KernelError(
                f"The kernel acts on column {wanted[0]!r}, but only data frames have names of "
                "columns: count columns from 0, as in .on(0)."
            )
        for name in wanted:
            if name not in names:
                raise KernelError(
                    f"The kernel acts on column {name!r}, but X has {', '.join(names)}: name one "
                    "of these."
                )
        all_dims = (dims for _, dims in self.primitives() if dims is not None)
        places: dict[Any, int] = {d: d for dims in all_dims for d in dims}
        places.update({name: names.index(name) for name in wanted})
        return self.with_columns(places)

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

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name, of sums and products with their part: "1__variance"."""
        several = len(list(self.primitives())) > 1
        return {
            f"{i}__{name}" if several else name: float(value) if np.ndim(value) == 0 else value
            for i, (own, _) in enumerate(self.primitives())
            for name, value in own.parameters().items()
        }

    def with_params(self, **values: Any) -> Self:
        """Return a copy with other values of parameters, named as `get_params` names them."""
        known, primitives = self.get_params(), [own for own, _ in self.primitives()]
        for name, value in values.items():
            if name not in known:
                raise KernelError(f"There is no parameter {name!r}, only {', '.join(known)}.")
            number, _, own = name.rpartition("__")
            checked = np.asarray(value, float) if own == ANGLE else check_positive(value, name)
            i = int(number or 0)
            primitives[i] = primitives[i].with_parameters(**{own: checked})
        return self.with_primitives(iter(primitives))  # type: ignore[return-value]

    def __sklearn_clone__(self) -> Self:
        """Return the kernel itself, which never changes."""
        return self

    def fix(self, *names: str) -> Self:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        known = self.parameters()
        if unknown := [name for name in names if name not in known]:
            raise KernelError(
                f"{type(self).__name__} has no parameter {unknown[0]!r}; it has {', '.join(known)}."
            )
        for name in names or known:
            if any(name == told[0] for told in (*self.bounds, *self.priors)):
                raise self._contradiction(name)
        return replace(self, fixed=tuple(sorted({*self.fixed, *(names or known)})))

    def bound(self, name: str, lower: float, upper: float) -> Self:
        """Return a copy whose parameter `name` is learned between bounds.

        Of a sum or a product, the parameter of every part that has it; of a parameter with several
        entries, each of them.
        """
        low, high = check_bounds(lower, upper, name)

        def bounded(own: Kernel) -> Kernel:
            others = (known for known in own.bounds if known[0] != name)
            return own.with_knowledge(bounds=(*others, (name, low, high)))

        return self._wherever(name, bounded)

    def prior(self, name: str, prior: Prior) -> Self:
        """Return a copy whose parameter `name` is learned with a prior.

        Of a sum or a product, the parameter of every part that has it; of a parameter with several
        entries, each of them, independently.
        """
        check_prior(prior)

        def believed(own: Kernel) -> Kernel:
            others = (known for known in own.priors if known[0] != name)
            return own.with_knowledge(priors=(*others, (name, prior)))

        return self._wherever(name, believed)

    def without_knowledge(self) -> Self:
        """Return a copy without bounds and priors."""
        return self.with_primitives(  # type: ignore[return-value]
            own.with_knowledge(bounds=(), priors=()) if own.bounds or own.priors else own
            for own, _ in self.primitives()
        )

    def with_knowledge(self, **changes: Any) -> Kernel:
        """Return a copy of a primitive with other `bounds` or `priors`."""
        return replace(self, **changes)

    def _wherever(self, name: str, change: Callable[[Kernel], Kernel]) -> Self:
        """Return a copy in which every primitive that has a parameter is changed."""
        primitives = [own for own, _ in self.primitives()]
        known = dict.fromkeys(each for own in primitives for each in own.parameters())
        if name not in known:
            raise KernelError(f"{self.label} has no parameter {name!r}; it has {', '.join(known)}.")
        if name == ANGLE:
            raise KernelError("An angle goes round, and takes neither bounds nor a prior.")
        having = [own for own in primitives if name in own.parameters()]
        # A product's factors of variance one are fixed by it, not by the user.
        free = [own for own in having if name not in own.fixed]
        if not free:
            raise having[0]._contradiction(name)
        return self.with_primitives(  # type: ignore[return-value]
            change(own) if any(own is other for other in free) else own for own in primitives
        )

    def _contradiction(self, name: str) -> KernelError:
        return KernelError(
            f"The {name} of {self.label} is fixed and cannot have a prior or bounds: leave out one "
            "of the two."
        )

    def scaled(self, factor: float) -> Kernel:
        """Return factor · k."""
        return self.with_parameters(variance=self.parameters()["variance"] * factor)

    @property
    def has_lattice(self) -> bool:
        """Whether its masses on lattices of frequencies are known."""
        return True

    def on(self, *dims: int | str | Columns | list[int]) -> On:
        """Return the kernel acting on some columns of X only, counted from 0 or named.

        Names are those of the data frame that a model is fitted to.
        """
        groups = (group if isinstance(group, tuple | list) else [group] for group in dims)
        each: list[Any] = [d for group in groups for d in group]
        return On(self, tuple(int(d) if isinstance(d, np.integer) else d for d in each))

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
        return Sum((*self.summands, *other.summands))

    def __mul__(self, factor: object) -> Kernel:
        if isinstance(factor, Kernel):
            return product(self, factor)
        if not isinstance(factor, int | float | np.number):
            return NotImplemented
        return self.scaled(float(check_positive(factor, "The factor of a kernel")))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = [f"{name}={_show(value)}" for name, value in self.parameters().items()]
        if self.fixed:
            shown.append(f"fixed={self.fixed}")
        shown += [f"{name} in [{low:.4g}, {high:.4g}]" for name, low, high in self.bounds]
        shown += [f"{name} ~ {prior}" for name, prior in self.priors]
        return f"{type(self).__name__}({', '.join(shown)})"


class Combination(Kernel):
    """Several kernels combined; whatever concerns each part by itself is forwarded to the parts."""

    compound = True
    #: Makes one covariance of two.
    operation: ClassVar[Callable[[Any, Any], Any]]

    @property
    @abstractmethod
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels that are combined."""

    def with_parts(self, parts: Iterable[Kernel]) -> Self:
        """Return the same combination of other kernels."""
        return type(self)(tuple(parts))  # type: ignore[call-arg]

    def k(self, lag: Vector) -> Scalar:
        """Return the sum or product of the k_i(τ)."""
        return reduce(self.operation, (part.k(lag) for part in self.parts))

    def prior_variance(self) -> Scalar:
        """Return the sum or product of the k_i(0)."""
        return reduce(self.operation, (part.prior_variance() for part in self.parts))

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return the sum or product of the wrapped covariances."""
        return reduce(self.operation, (part.wrapped(lag, period) for part in self.parts))

    def primitives(self) -> Iterator[tuple[Kernel, Columns | None]]:
        """Yield the primitives of every part."""
        for part in self.parts:
            yield from part.primitives()

    def with_primitives(self, primitives: Iterator[Kernel]) -> Self:
        """Return the combination with its primitives replaced."""
        return self.with_parts(part.with_primitives(primitives) for part in self.parts)

    def with_columns(self, renamed: dict[int, int]) -> Self:
        """Return the combination with the columns of its parts renamed."""
        return self.with_parts(part.with_columns(renamed) for part in self.parts)

    def fix(self, *names: str) -> Self:
        """Return a copy in which the named parameters of every part that has them are fixed."""
        known = {name for primitive, _ in self.primitives() for name in primitive.parameters()}
        if unknown := [name for name in names if name not in known]:
            raise KernelError(
                f"No kernel of the {self.label.lower()} has a parameter {unknown[0]!r}."
            )
        return self.with_primitives(
            primitive.fix(*held)
            if (held := [name for name in names or known if name in primitive.parameters()])
            else primitive
            for primitive, _ in self.primitives()
        )

    @property
    def has_lattice(self) -> bool:
        """Whether all parts have masses on lattices."""
        return all(part.has_lattice for part in self.parts)

    def check(self, num_dims: int) -> None:
        """Check every part."""
        for part in self.parts:
            part.check(num_dims)


class Sum(Combination):
    """The sum of kernels: independent processes added up."""

    terms: tuple[Kernel, ...]

    operation = staticmethod(add)

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> Kernel:
        """Return the sum of kernels, or the only one."""
        return kernels[0] if len(kernels) == 1 else cls(tuple(kernels))

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The terms."""
        return self.terms

    @property
    def summands(self) -> tuple[Kernel, ...]:
        """The terms."""
        return self.terms

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return Σ S_i(ω)."""
        return reduce(add, (term.spectral_density(omega) for term in self.terms))

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the sum of the terms' derivative variances."""
        return reduce(add, (term.derivative_variance(num_dims) for term in self.terms))

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the sum of the terms' masses."""
        return reduce(add, (term.mass(omega, spacing) for term in self.terms))

    def scaled(self, factor: float) -> Sum:
        """Return the sum with every term scaled."""
        return self.with_parts(term.scaled(factor) for term in self.terms)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


class Product(Combination):
    """The product of kernels, written `kernel.on(0) * other.on(1)`.

        k(τ) = ∏_j k_j(τ_{dims_j}),      S(ω) = ∏_j S_j(ω_{dims_j}),      mass = ∏_j mass_j

    Where factors share columns S is a convolution, which is not computed: such a kernel serves the
    engines that take its covariance at the rows themselves.

    Only the product of the variances can be learned: `*` gives it to one factor and fixes the
    variance of every other at 1. A factor with several variances (a sum, a mixture) keeps them,
    since their ratios matter, and carries the whole if there is one.
    """

    factors: tuple[Kernel, ...]

    operation = staticmethod(mul)

    @property
    def has_lattice(self) -> bool:
        """Whether each factor has masses on lattices, and columns of its own."""
        seen: set[int] = set()
        for factor in self.factors:
            named = [dims for _, dims in factor.primitives()]
            columns = {column for dims in named if dims is not None for column in dims}
            if None in named or columns & seen:
                return False
            seen |= columns
        return super().has_lattice

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The factors."""
        return self.factors

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return ∏ S_j(ω) if the factors see all columns, else raise `KernelError`."""
        self._demand_lattice()
        _check_all_columns("product", self.columns(omega.shape[0]), omega)
        parts = self._restricted(omega.shape[0])
        return reduce(mul, (factor.spectral_density(omega[dims]) for dims, factor in parts))

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the derivative variances of each factor times the variances of the others."""
        total = jnp.zeros(num_dims)
        for j, factor in enumerate(self.factors):
            others = (other.prior_variance() for i, other in enumerate(self.factors) if i != j)
            total += reduce(mul, others, factor.derivative_variance(num_dims))
        return total

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return ∏ mass_j where the frequencies of all other columns vanish, zero elsewhere."""
        self._demand_lattice()
        parts = self._restricted(omega.shape[0])
        masses = (factor.mass(omega[dims], spacing[dims]) for dims, factor in parts)
        return _on_plane(omega, self.columns(omega.shape[0]), reduce(mul, masses))

    def frequencies(self, normals: Vectors, uniforms: Vectors) -> Vectors:
        """Return frequencies whose columns are those of the factors, independent of each other."""
        self._demand_lattice()
        return reduce(add, (factor.frequencies(normals, uniforms) for factor in self.factors))

    def scaled(self, factor: float) -> Product:
        """Return the product with the factor that carries the variance scaled."""
        carrier = _carrier(self.factors)
        return self.with_parts(
            part.scaled(factor) if j == carrier else part for j, part in enumerate(self.factors)
        )

    def __repr__(self) -> str:
        return " * ".join(map(_parenthesised, self.factors))

    def _demand_lattice(self) -> None:
        if not self.has_lattice:
            raise KernelError(
                "The spectral density of a product on shared columns is not computed: use "
                'GPRegressor with features="auto" or "inducing-points".'
            )

    def _restricted(self, num_dims: int) -> Iterator[tuple[np.ndarray, Kernel]]:
        """Yield each factor's columns, and the factor relative to them."""
        for factor in self.factors:
            dims = factor.columns(num_dims)
            yield np.array(dims), factor.with_columns({d: i for i, d in enumerate(dims)})


class OnColumns(Kernel):
    """A kernel inside another one that says which columns the first sees."""

    kernel: eqx.AbstractVar[Kernel]
    dims: eqx.AbstractVar[Columns]

    def prior_variance(self) -> Scalar:
        """Return k(0)."""
        return self.kernel.prior_variance()

    def primitives(self) -> Iterator[tuple[Kernel, Columns | None]]:
        """Yield the inner primitives with their columns."""
        for primitive, inner in self.kernel.primitives():
            yield primitive, self.dims if inner is None else tuple(self.dims[d] for d in inner)

    def with_primitives(self, primitives: Iterator[Kernel]) -> Self:
        """Return a copy with the inner primitives replaced."""
        return replace(self, kernel=self.kernel.with_primitives(primitives))

    def with_columns(self, renamed: dict[int, int]) -> Self:
        """Return a copy on the renamed columns; those inside are relative to them."""
        return replace(self, dims=tuple(renamed[d] for d in self.dims))

    @property
    def has_lattice(self) -> bool:
        """Whether the inner kernel has masses on lattices."""
        return self.kernel.has_lattice

    def fix(self, *names: str) -> Self:
        """Return a copy with parameters of the inner kernel fixed."""
        return replace(self, kernel=self.kernel.fix(*names))

    def scaled(self, factor: float) -> Self:
        """Return a copy with the inner kernel scaled."""
        return replace(self, kernel=self.kernel.scaled(factor))

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless X has the columns."""
        if max(self.dims) >= num_dims:
            raise KernelError(
                f"The kernel acts on column {max(self.dims)}, but X has {num_dims} columns "
                "(counted from 0)."
            )


class On(OnColumns):
    """A kernel that sees some columns only and is constant along the others.

    Its spectral measure sits on the plane where the other frequencies vanish, so it has masses on a
    lattice, but no density.
    """

    kernel: Kernel
    dims: Columns = eqx.field(static=True)

    def __check_init__(self) -> None:
        # Names stay until a model that is fitted to a data frame replaces them by numbers.
        there = self.dims and all(
            isinstance(d, str) or (isinstance(d, int) and d >= 0) for d in self.dims
        )
        if not there or len(set(self.dims)) != len(self.dims):
            raise KernelError(
                f"Columns must be distinct, and named or counted from 0, got {self.dims}: "
                'write for example kernel.on(0), kernel.on(0, 2) or kernel.on("time").'
            )
        if named := self.kernel.column_names:
            raise KernelError(
                f"Column {named[0]!r} is named inside a kernel on other columns: count those "
                "inside from 0."
            )

    def k(self, lag: Vector) -> Scalar:
        """Return the covariance at the lag along the kernel's columns."""
        return self.kernel.k(lag[np.array(self.dims)])

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return the density if the kernel sees all columns, else raise `KernelError`."""
        _check_all_columns("kernel", self.dims, omega)
        return self.kernel.spectral_density(omega[np.array(self.dims)])

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the derivative variances, zero along the other columns."""
        inner = self.kernel.derivative_variance(len(self.dims))
        return jnp.zeros(num_dims).at[np.array(self.dims)].set(inner)

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the mass on the plane where the other frequencies vanish, zero elsewhere."""
        at = np.array(self.dims)
        return _on_plane(omega, self.dims, self.kernel.mass(omega[at], spacing[at]))

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return the covariance wrapped along the kernel's columns."""
        at = np.array(self.dims)
        return self.kernel.wrapped(lag[at], period[at])

    def correlation_across(self, gap: float) -> float:
        """Return that of the kernel on its column."""
        return self.kernel.correlation_across(gap)

    def frequencies(self, normals: Vectors, uniforms: Vectors) -> Vectors:
        """Return frequencies along the kernel's columns, zero along the others."""
        at = np.array(self.dims)
        drawn = self.kernel.frequencies(normals[:, at], uniforms[:, at])
        return jnp.zeros(normals.shape).at[:, at].set(drawn)

    def check(self, num_dims: int) -> None:
        """Check that the columns exist and that the inner kernel fits them."""
        super().check(num_dims)
        self.kernel.check(len(self.dims))

    def __repr__(self) -> str:
        return f"{_parenthesised(self.kernel)}.on({', '.join(map(repr, self.dims))})"


def product(left: Kernel, right: Kernel) -> Product:
    """Return the product of two kernels, with one variance to learn."""
    checked = Product((*_flat(left), *_flat(right)))
    carrier = _carrier(checked.factors)
    variances = {
        j: float(amplitudes[0].parameters()["variance"])
        for j, factor in enumerate(checked.factors)
        if j != carrier and _is_single(amplitudes := _amplitudes(factor))
    }
    return checked.with_parts(
        factor.scaled(1 / variances[j]).fix("variance") if j in variances else factor
        for j, factor in enumerate(checked.factors)
    ).scaled(math.prod(variances.values()))


def _flat(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the factors of a product, also of one that sits on some columns."""
    if isinstance(kernel, On) and isinstance(kernel.kernel, Product):
        kernel = kernel.kernel.with_columns(dict(enumerate(kernel.dims)))
    return kernel.factors if isinstance(kernel, Product) else (kernel,)


def _carrier(factors: tuple[Kernel, ...]) -> int:
    """Return which factor's variance is that of the product.

    The first with several variances to learn, else the first with one, else the first with any.
    """
    amplitudes = [_amplitudes(factor) for factor in factors]
    some = [j for j, found in enumerate(amplitudes) if found]
    free = [j for j in some if any(set(AMPLITUDES).isdisjoint(p.fixed) for p in amplitudes[j])]
    several = [j for j in free if not _is_single(amplitudes[j])]
    if not some:
        raise KernelError("A product needs a factor with a variance, got none.")
    return (several + free + some)[0]


def _amplitudes(kernel: Kernel) -> list[Kernel]:
    """Return the primitives that have a variance or weights."""
    primitives = [primitive for primitive, _ in kernel.primitives()]
    return [p for p in primitives if set(AMPLITUDES) & set(p.parameters())]


def _is_single(amplitudes: list[Kernel]) -> bool:
    return len(amplitudes) == 1 and "variance" in amplitudes[0].parameters()


def _check_all_columns(what: str, columns: Columns, omega: Vector) -> None:
    if len(columns) != omega.shape[0]:
        raise KernelError(
            f"A {what} on some of the columns has no spectral density over all of them; use its "
            "masses on a lattice."
        )


def _on_plane(omega: Vector, columns: Columns, mass: Scalar) -> Scalar:
    """Return the mass where the frequencies of all other columns vanish, zero elsewhere."""
    others = np.setdiff1d(np.arange(omega.shape[0]), columns)
    return jnp.where(jnp.all(omega[others] == 0), mass, 0.0)


def _parenthesised(kernel: Kernel) -> str:
    return f"({kernel!r})" if kernel.compound else repr(kernel)


def _show(value: Float[AnyArray, "..."]) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    return f"{value:.4g}" if value.ndim == 0 else np.array2string(value, precision=4)
