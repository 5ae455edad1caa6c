r"""What every kernel offers.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.priors import Prior, check_bounds, check_prior
from orthogp.precision import AnyArray

if TYPE_CHECKING:
    from orthogp.kernels.composite import On, Product, Sum

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
    #: What operators make of kernels. `kernels/composite.py` and `kernels/sphere.py`, which import
    #: this file, set them.
    sum_of: ClassVar[Callable[[Kernel, Kernel], Sum]]
    product_of: ClassVar[Callable[[Kernel, Kernel], Product]]
    place_on_columns: ClassVar[Callable[[Kernel, Columns], On]]
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
        columns = tuple(int(d) if isinstance(d, np.integer) else d for d in each)
        return Kernel.place_on_columns(self, columns)

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
        return Kernel.sum_of(self, other)

    def __mul__(self, factor: object) -> Kernel:
        if isinstance(factor, Kernel):
            return Kernel.product_of(self, factor)
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


def _show(value: Float[AnyArray, "..."]) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    return f"{value:.4g}" if value.ndim == 0 else np.array2string(value, precision=4)
