r"""What every kernel offers, and what is known of its parameters before the data.

One convention throughout, with angular frequency ω:

    k(τ) = ∫ S(ω) e^{iω·τ} dω,      S ≥ 0 and even,      ∫ S = k(0)

A process is represented on the lattice ω_t = h∘t, t ∈ Z^D, whose modes have period P = 2π/h. The
modes carry the *masses* of the wrapped kernel, scaled so that the prior variance is the user's:

    k_P(τ) = c Σ_j k(τ + jP) = Σ_t mass_t e^{iω_t·τ},      mass_t = c h^D S(ω_t)
    c = k(0)/Σ_j k(jP),      hence k_P(0) = Σ_t mass_t = k(0)

Gaussians, and mixtures of them with heavy tails, have a better correction (stationary.py).

Parameters are learned in logarithms, so a prior is the density of log θ:

    log-normal          log θ ~ N(log median, sd²)
    gamma               θ^c ~ Gamma(a, b):      log |c| + a log b − log Γ(a) + a c log θ − b θ^c

With c = 1 the second is the gamma prior of θ, with c = −1 the inverse gamma prior, and with a = 1 a
penalised-complexity prior (Fuglstad, Simpson, Lindgren and Rue, 2019): the lengthscale ℓ of a
Matérn kernel in d columns has P(ℓ < ℓ₀) = α if c = −d/2, b = −log(α) ℓ₀^{d/2}, and a variance v has
P(√v > s₀) = α if c = ½, b = −log(α)/s₀.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import gammaln

from orthogp.errors import KernelError, check_positive
from orthogp.precision import AnyArray

if TYPE_CHECKING:
    from orthogp.kernels.composite import On, Sum

Array = NDArray[np.float64]


class Density(NamedTuple):
    """A log density at some logarithms, with its first and second derivatives in them."""

    value: Array
    slope: Array
    bend: Array


class Prior(ABC):
    """The density of the logarithm of a positive number."""

    @abstractmethod
    def log_density(self, logs: Array) -> Density:
        """Return the log density of log θ at each of some log θ."""

    @abstractmethod
    def scaled(self, factor: float) -> Prior:
        """Return the prior of factor · θ."""


@dataclass(frozen=True)
class LogNormal(Prior):
    """Log θ is normal: log θ ~ N(log median, sd²)."""

    median: float
    sd: float

    def __post_init__(self) -> None:
        check_number(self.median, "The median of LogNormal")
        check_number(self.sd, "The sd of LogNormal")

    def log_density(self, logs: Array) -> Density:
        """Return the log density of log θ at each of some log θ."""
        z = (logs - np.log(self.median)) / self.sd
        value = -0.5 * z**2 - np.log(self.sd * np.sqrt(2 * np.pi))
        return Density(value, -z / self.sd, np.full_like(z, -1 / self.sd**2))

    def scaled(self, factor: float) -> LogNormal:
        """Return the prior of factor · θ."""
        return replace(self, median=self.median * factor)


@dataclass(frozen=True)
class Gamma(Prior):
    """A power of θ is gamma distributed: θ^power ~ Gamma(shape, rate).

    Power 1 makes θ gamma distributed, with mean shape/rate, and power −1 inverse gamma distributed,
    with scale `rate`.
    """

    shape: float
    rate: float
    power: float = 1.0

    def __post_init__(self) -> None:
        check_number(self.shape, "The shape of Gamma")
        check_number(self.rate, "The rate of Gamma")
        check_number(abs(self.power), "The power of Gamma, its sign apart,")

    def log_density(self, logs: Array) -> Density:
        """Return the log density of log θ at each of some log θ."""
        a, b, c = self.shape, self.rate, self.power
        with np.errstate(over="ignore"):
            powered = b * np.exp(c * logs)
        value = np.log(abs(c)) + a * np.log(b) - gammaln(a) + a * c * logs - powered
        return Density(value, c * (a - powered), -(c**2) * powered)

    def scaled(self, factor: float) -> Gamma:
        """Return the prior of factor · θ."""
        return replace(self, rate=self.rate * factor**-self.power)


def penalised_lengthscale(below: float, probability: float, columns: int = 1) -> Gamma:
    """Return the penalised-complexity prior of a Matérn lengthscale, P(ℓ < below) = probability.

    Parameters
    ----------
    columns : int
        How many columns the kernel acts on.
    """
    check_number(below, "below")
    half = check_number(columns, "columns") / 2
    return Gamma(1.0, -np.log(_check_probability(probability)) * below**half, -half)


def penalised_variance(sd_above: float, probability: float) -> Gamma:
    """Return the penalised-complexity prior of a variance v, P(√v > sd_above) = probability."""
    check_number(sd_above, "sd_above")
    return Gamma(1.0, -np.log(_check_probability(probability)) / sd_above, 0.5)


def check_number(value: object, name: str) -> float:
    """Return a positive number, or raise `KernelError`."""
    number = check_positive(value, name)
    if number.ndim:
        raise KernelError(f"{name} must be one number, got {value!r}.")
    return float(number)


def check_bounds(lower: object, upper: object, name: str) -> tuple[float, float]:
    """Return bounds, or raise `KernelError` unless 0 < lower < upper."""
    low = check_number(lower, f"The lower bound of {name}")
    high = check_number(upper, f"The upper bound of {name}")
    if not low < high:
        raise KernelError(
            f"The lower bound of {name} must be below the upper one, got {low:g} and {high:g}: "
            "exchange them, or fix the parameter."
        )
    return low, high


def _check_probability(value: float) -> float:
    if not 0 < check_number(value, "probability") < 1:
        raise KernelError(f"probability must be between 0 and 1, got {value!r}.")
    return float(value)


@dataclass(frozen=True)
class Noise:
    """The noise variance of a regression: a value to start from or to keep, bounds, a prior.

    `GPRegressor(noise_variance=Noise(0.01).fix())` learns the kernel and keeps the noise variance;
    `Noise().bound(1e-4, 1.0)` and `Noise().prior(LogNormal(0.1, 1.0))` are for learning it.

    Parameters
    ----------
    value : float, optional
        In squared units of y; read off the data unless given.
    fixed, bounds, belief
        What `fix`, `bound` and `prior` set.
    """

    value: float | None = None
    fixed: bool = False
    bounds: tuple[float, float] | None = None
    belief: Prior | None = None

    def __post_init__(self) -> None:
        if self.value is not None:
            check_number(self.value, "The noise variance")
        if self.bounds is not None:
            check_bounds(*self.bounds, "the noise variance")
        if self.fixed and self.value is None:
            raise KernelError(
                "A noise variance that is fixed needs a value: write Noise(0.01).fix()."
            )
        if self.fixed and (self.bounds is not None or self.belief is not None):
            what = "bounds" if self.belief is None else "a prior"
            raise KernelError(
                f"The noise variance is fixed and cannot have {what}: leave out one of the two."
            )

    def fix(self) -> Noise:
        """Return a copy whose value is not learned."""
        return replace(self, fixed=True)

    def bound(self, lower: float, upper: float) -> Noise:
        """Return a copy that is learned between bounds."""
        return replace(self, bounds=(lower, upper))

    def prior(self, prior: Prior) -> Noise:
        """Return a copy that is learned with a prior."""
        check_prior(prior)
        return replace(self, belief=prior)

    def scaled(self, factor: float) -> Noise:
        """Return the noise of targets whose squared unit is another."""
        bounds = self.bounds
        return replace(
            self,
            value=None if self.value is None else self.value * factor,
            bounds=None if bounds is None else (bounds[0] * factor, bounds[1] * factor),
            belief=None if self.belief is None else self.belief.scaled(factor),
        )

    @classmethod
    def of(cls, given: float | Noise | None) -> Noise:
        """Return what an estimator's argument says: a number is a value to start from."""
        return given if isinstance(given, Noise) else cls(None if given is None else float(given))


def check_prior(prior: object) -> None:
    """Raise `KernelError` unless an object is a prior."""
    if not isinstance(prior, Prior):
        raise KernelError(
            f"A prior must be LogNormal, Gamma, penalised_lengthscale or penalised_variance of "
            f"orthogp.kernels, got {prior!r}."
        )


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
    #: What operators make of kernels, set by `kernels/composite.py` and `kernels/transformed.py`.
    #: Files are checked by the annotations of classes, which must have a meaning at run time.
    sum_of: ClassVar[Callable[..., Any]]
    product_of: ClassVar[Callable[..., Any]]
    place_on_columns: ClassVar[Callable[..., Any]]
    place_on_sphere: ClassVar[Callable[..., Any]]
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
