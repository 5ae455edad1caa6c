r"""Kernels made of another one: around a circle, turned, or on a sphere; and categories.

The period P of a cyclic or categorical kernel is known and never learned. On the lattice of spacing
2π/P the process is exact, not an approximation to one without a period:

    cyclic         mass_t = v S(ω_t)/Σ_s S(ω_s),     k(τ) = v Σ_j k₀(τ + jP)/Σ_j k₀(jP)
    categorical    mass_t = v/L for the L modes of period L,     k(x, x') = v 1[x = x']
    rotated        k(τ) = k₀(R τ),      S(ω) = S₀(R ω),      R = [[cos a, sin a], [−sin a, cos a]]

Kernels of longitude and latitude are functions of the chord between two points of a sphere. Degrees
are no distances: 180° and −180° are one meridian, and all meridians meet at the poles. A point of a
sphere of radius R lies in space at

    R (cos φ cos λ, cos φ sin λ, sin φ)

for the longitude λ and the latitude φ, and the chord between two points at an angle θ is
2R sin(θ/2). A covariance in space is one on the sphere too. The three coordinates share one
lengthscale, so that nothing depends on where the poles are; further columns, such as time, have one
each:

    k = k₀(r²),      r² = (2R sin(θ/2)/ℓ)² + Σ_j (τ_j/ℓ_j)²

`Embedding` puts rows into space, where engines see an ordinary kernel of lags.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.base import EARTH_RADIUS, Columns, Kernel, Scalar, Vector
from orthogp.kernels.composite import Combination, On, OnColumns, Sum
from orthogp.kernels.stationary import (
    MANY_IMAGES,
    RBF,
    Floats,
    GaussianMixture,
    MaternFamily,
    Parameter,
    Radial,
    positive,
    root,
    scaled_square,
)
from orthogp.precision import AnyArray

# The images on each side of a cyclic kernel: for lengthscales up to the period, e^{−32} of the
# exponential kernel remains.
_NUM_IMAGES = 32


class Wrapper(Kernel):
    """A kernel made of another one, whose parameters are the first one's."""

    kernel: eqx.AbstractVar[Kernel]

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return f"{type(self).__name__} {self.kernel.label}"

    def prior_variance(self) -> Scalar:
        """Return v."""
        return self.kernel.prior_variance()

    def parameters(self) -> dict[str, Float[AnyArray, "..."]]:
        """Return the parameters of the kernel inside."""
        return self.kernel.parameters()

    def with_parameters(self, **parameters: Any) -> Self:
        """Return a copy with some parameters of the kernel inside replaced."""
        # Not through the constructor: tracers pass, and searches may try what a user may not.
        changed = self.kernel.with_parameters(**parameters)
        return eqx.tree_at(lambda outer: outer.kernel, self, changed)

    def with_knowledge(self, **changes: Any) -> Kernel:
        """Return a copy whose kernel inside has other `bounds` or `priors`."""
        return self._around(self.kernel.with_knowledge(**changes))

    @abstractmethod
    def _around(self, kernel: Kernel) -> Kernel:
        """Return the same around another kernel."""


class PeriodicKernel(Kernel):
    """A kernel on one column that has a period by itself."""

    if TYPE_CHECKING:
        # A field of one subclass and a property of the other.
        @property
        def period(self) -> float:
            """The period."""
            ...

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return k(τ), whatever the lattice."""
        return self.k(lag)

    def spectral_density(self, omega: Vector) -> Scalar:
        """Raise `KernelError`: there are frequencies of multiples of 2π/P only."""
        raise KernelError(
            f"A {type(self).__name__.lower()} kernel has no spectral density; use its masses on a "
            "lattice."
        )

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless it acts on one column."""
        if num_dims != 1:
            raise KernelError(
                f"{type(self).__name__} acts on one column, got {num_dims}: choose it by .on(0), "
                "or multiply kernels on different columns."
            )


class Cyclic(PeriodicKernel, Wrapper):
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
        if not isinstance(kernel, GaussianMixture):
            raise KernelError(
                "Cyclic takes one RBF, Matern, Matern12, Matern32, Matern52 or RationalQuadratic, "
                f"got {kernel!r}: write for example Cyclic(Matern32(), period=24.0)."
            )
        length = check_positive(period, "The period of Cyclic")
        if length.ndim:
            raise KernelError(f"The period of Cyclic must be one number, got {period!r}.")
        self.kernel = kernel
        self.period = float(length)  # type: ignore[override]
        self.fixed, self.bounds, self.priors = kernel.fixed, kernel.bounds, kernel.priors
        lengthscale = kernel.parameters()["lengthscale"]
        # A little more, for lengthscales learned up to the limit.
        if np.any(lengthscale > 1.001 * self.period):
            raise KernelError(
                f"The lengthscale of Cyclic must be at most its period {self.period:g}, got "
                f"{lengthscale}: give a shorter one; longer ones mean a constant."
            )

    def k(self, lag: Vector) -> Scalar:
        """Return v Σ_j k₀(τ + jP)/Σ_j k₀(jP)."""
        period = jnp.full(1, self.period)
        around = lag - period * jnp.round(lag / period)
        if self._has_exact_wrap:
            return self.kernel.wrapped(around, period)
        return self._scale() * self._image_total(around)

    def at_square(self, square: Scalar) -> Scalar:
        """Return the covariance where the squared distance around the circle is `square`."""
        return self.k(root(square)[None])

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return −k''(0), infinite where paths have no derivative."""

        def second(function, at: Scalar) -> Scalar:
            return jax.grad(jax.grad(lambda x: function(jnp.reshape(x, 1))))(at)

        if self._has_exact_wrap:
            return jnp.reshape(-second(self.k, jnp.zeros(())), 1)
        images = jax.vmap(lambda at: second(self.kernel.k, at))(self._images())
        return self._scale() * (self.kernel.derivative_variance(num_dims) - jnp.sum(images))

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the prior variance of the mode at ω on the lattice of spacing 2π/P."""
        if self._has_exact_wrap:
            return self.kernel.mass(omega, spacing)
        return self._scale() * jnp.prod(spacing) * self.kernel.spectral_density(omega)

    def fix(self, *names: str) -> Cyclic:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        return self._around(self.kernel.fix(*names))

    def _around(self, kernel: Kernel) -> Cyclic:
        return Cyclic(kernel, self.period)

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless it acts on one column, and with one lengthscale."""
        super().check(num_dims)
        self.kernel.check(num_dims)

    def __repr__(self) -> str:
        return f"Cyclic({self.kernel!r}, period={self.period:g})"

    @property
    def _has_exact_wrap(self) -> bool:
        return type(self.kernel).mass is not Kernel.mass

    def _images(self) -> Vector:
        j = np.arange(-_NUM_IMAGES, _NUM_IMAGES + 1)
        return jnp.asarray(self.period * j[j != 0], dtype=float)

    def _image_total(self, lag: Vector) -> Scalar:
        images = jax.vmap(lambda shift: self.kernel.k(lag + shift))(self._images())
        return self.kernel.k(lag) + jnp.sum(images)

    def _scale(self) -> Scalar:
        return self.kernel.prior_variance() / self._image_total(jnp.zeros(1))


class Categorical(PeriodicKernel):
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
        """L: the lattice's modes repeat after L codes."""
        return float(self.levels)

    def k(self, lag: Vector) -> Scalar:
        """Return v if the codes are the same, else zero."""
        around = lag[0] - self.levels * jnp.round(lag[0] / self.levels)
        return jnp.where(jnp.abs(around) < 0.5, self.variance, 0.0)

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return infinity: there is nothing between two codes."""
        return jnp.full(num_dims, jnp.inf)

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return v/L for |t| < L/2, and half of it for t = ±L/2, which are the same mode twice."""
        t = jnp.abs(jnp.round(omega[0] / spacing[0]))
        share = jnp.where(2 * t < self.levels, 1.0, jnp.where(2 * t == self.levels, 0.5, 0.0))
        return self.variance * share / self.levels

    def __repr__(self) -> str:
        fixed = f", fixed={self.fixed}" if self.fixed else ""
        return f"Categorical({self.levels}, variance={self.variance:.4g}{fixed})"


class Rotated(Wrapper):
    """A kernel on two columns with its lengthscales along and across a direction that is learned.

        k(τ) = k₀(R τ),      R = [[cos a, sin a], [−sin a, cos a]]

    Streaks of cloud, ridges and currents are long in one direction and short across it, and seldom
    run along longitude or latitude. The first lengthscale of k₀ holds along (cos a, sin a), the
    second across it.

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
        turnable = isinstance(kernel, RBF | MaternFamily)
        if not turnable or kernel.parameters()["lengthscale"].shape != (2,):
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
        self.bounds, self.priors = kernel.bounds, kernel.priors

    def k(self, lag: Vector) -> Scalar:
        """Return k₀(R τ)."""
        return self.kernel.k(self._turned(lag))

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return S₀(R ω)."""
        return self.kernel.spectral_density(self._turned(omega))

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return Σ_i R_id² times the derivative variances of k₀."""
        inner = self.kernel.derivative_variance(num_dims)
        cos2, sin2 = jnp.cos(self.angle) ** 2, jnp.sin(self.angle) ** 2
        turned = jnp.stack([cos2 * inner[0] + sin2 * inner[1], sin2 * inner[0] + cos2 * inner[1]])
        # Zero times infinity, where paths have no derivative in any direction.
        return jnp.where(jnp.all(jnp.isfinite(inner)), turned, jnp.inf)

    def parameters(self) -> dict[str, Float[AnyArray, "..."]]:
        """Return the parameters of the kernel inside, and the angle."""
        return {**super().parameters(), "angle": self.angle}

    def with_parameters(self, **parameters: Any) -> Rotated:
        """Return a copy with some parameters replaced."""
        angle = parameters.pop("angle", self.angle)
        if not isinstance(angle, jax.Array):
            angle = _within_half_a_turn(np.asarray(angle, dtype=np.float64))
        inner = super().with_parameters(**parameters) if parameters else self
        return eqx.tree_at(lambda rotated: rotated.angle, inner, angle)

    def fix(self, *names: str) -> Rotated:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        inner = [name for name in names if name != "angle"]
        kernel = self.kernel.fix(*inner) if inner or not names else self.kernel
        held = not names or "angle" in (*names, *self.fixed)
        return Rotated(kernel, float(self.angle), fixed=("angle",) if held else ())

    def _around(self, kernel: Kernel) -> Rotated:
        held = ("angle",) if "angle" in self.fixed else ()
        return Rotated(kernel, float(self.angle), fixed=held)

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

    def _turned(self, vector: Vector) -> Vector:
        cos, sin = jnp.cos(self.angle), jnp.sin(self.angle)
        return jnp.stack([cos * vector[0] + sin * vector[1], cos * vector[1] - sin * vector[0]])


def has_own_period(kernel: Kernel) -> bool:
    """Return whether some part of a kernel has a period by itself."""
    return any(isinstance(part, PeriodicKernel) for part, _ in kernel.primitives())


def own_periods(kernel: Kernel, num_dims: int) -> tuple[float | None, ...]:
    """Return the period that the kernel itself has along each of its columns, if any.

    Raises `KernelError` where kernels with different periods, or with and without one, meet on a
    column of one product.
    """
    found: list[set[float | None]] = [set() for _ in range(num_dims)]
    for primitive, dims in kernel.primitives():
        for d in range(num_dims) if dims is None else dims:
            periodic = isinstance(primitive, PeriodicKernel)
            found[d].add(primitive.period if periodic else None)
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


def _within_half_a_turn(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the angle of the same direction in (0, π]: parameters are positive."""
    return np.asarray(np.pi - np.mod(-angle, np.pi))


# The coordinates of a point of the sphere.
_SPACE = 3


class Sphere(Wrapper, Radial):
    """A kernel of points of a sphere in space, and of further columns behind them.

    Parameters
    ----------
    kernel : Radial
        k₀, with one lengthscale for the sphere and one for each further column.
    radius : R, not learned
    """

    kernel: Radial
    radius: float = eqx.field(static=True)

    def __init__(self, kernel: Kernel, radius: float = EARTH_RADIUS) -> None:
        if not isinstance(kernel, Radial) or isinstance(kernel, Sphere):
            raise KernelError(
                "Only RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic and sums of "
                f"them can act on the sphere, got {kernel!r}: write for example "
                "Matern32(lengthscale=500.0).on_sphere(0, 1)."
            )
        length = check_positive(radius, "The radius of the sphere")
        if length.ndim:
            raise KernelError(f"The radius of the sphere must be one number, got {radius!r}.")
        self.kernel = kernel  # type: ignore[override]
        self.radius = float(length)
        self.fixed, self.bounds, self.priors = kernel.fixed, kernel.bounds, kernel.priors

    def at_square(self, square: Scalar) -> Scalar:
        """Return k₀ where r² is `square`."""
        return self.kernel.at_square(square)

    def correlations(self, square: Floats, order: int) -> list[Floats] | None:
        """Return k₀/v and its derivatives in r²."""
        return self.kernel.correlations(square, order)

    def k(self, lag: Vector) -> Scalar:
        """Return the covariance at a lag in space and in the further columns."""
        return self.at_square(scaled_square(lag, self._lengthscales(lag.shape[0])))

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return the density in space and along the further columns."""
        return self._spread(omega.shape[0]).spectral_density(omega)

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the variances of the derivatives in space and along the further columns."""
        return self._spread(num_dims).derivative_variance(num_dims)

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return f"{self.kernel.label} on the sphere"

    @property
    def dear(self) -> bool:
        """Whether k₀ is."""
        return self.kernel.dear

    def lengthscale_places(self, num_dims: int) -> NDArray[np.int64]:
        """Return which of its lengthscales each column has: those of space the first."""
        places = np.maximum(np.arange(num_dims) - (_SPACE - 1), 0)
        return places if np.size(self.parameters()["lengthscale"]) > 1 else 0 * places

    def fix(self, *names: str) -> Sphere:
        """Return a copy whose named parameters (all, if none are named) are not learned."""
        return self._around(self.kernel.fix(*names))

    def _around(self, kernel: Kernel) -> Sphere:
        return Sphere(kernel, self.radius)

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless there is a lengthscale for each further column."""
        lengthscale = self.parameters()["lengthscale"]
        further = num_dims - _SPACE
        if lengthscale.ndim > 1 or lengthscale.size != 1 + further:
            raise KernelError(
                f"{self.kernel.label} has {lengthscale.size} lengthscales on the sphere and "
                f"{further} further columns: give one for the sphere and one for each of these, "
                "such as Matern32(lengthscale=[500.0, 24.0]).on_sphere(0, 1, 2)."
            )

    def __repr__(self) -> str:
        return f"Sphere({self.kernel!r}, radius={self.radius:.8g})"

    def _lengthscales(self, num_dims: int) -> Vector:
        return jnp.ravel(self.parameters()["lengthscale"])[self.lengthscale_places(num_dims)]

    def _spread(self, num_dims: int) -> Radial:
        return self.kernel.with_parameters(lengthscale=self._lengthscales(num_dims))


class OnSphere(OnColumns):
    """A kernel of columns of longitude, latitude and further ones; see `Kernel.on_sphere`.

    It is no function of differences of longitudes and latitudes, but of points in space, where
    `Embedding` puts rows and kernel.
    """

    kernel: Sphere  # type: ignore[override]
    dims: Columns = eqx.field(static=True)

    def __check_init__(self) -> None:
        distinct = len(set(self.dims)) == len(self.dims)
        if len(self.dims) < 2 or min(self.dims) < 0 or not distinct:
            raise KernelError(
                "A kernel on the sphere needs the columns of longitude and latitude, distinct and "
                f"counted from 0, got {self.dims}: write for example kernel.on_sphere(0, 1)."
            )
        self.kernel.check(_SPACE + len(self.dims) - 2)

    def k(self, lag: Vector) -> Scalar:
        """Raise `KernelError`: differences of degrees do not determine the covariance."""
        raise KernelError(
            "A kernel on the sphere is no function of differences of longitude and latitude: use "
            'GPRegressor with solver="auto".'
        )

    def spectral_density(self, omega: Vector) -> Scalar:
        """Raise `KernelError`: it is no function of lags."""
        raise KernelError(
            "A kernel on the sphere has no spectral density over longitude and latitude: use "
            'GPRegressor with solver="auto".'
        )

    @property
    def has_lattice(self) -> bool:
        """Whether there is a lattice of frequencies: none covers a sphere."""
        return False

    def __repr__(self) -> str:
        arguments = ", ".join(map(str, self.dims))
        if self.kernel.radius != EARTH_RADIUS:
            arguments += f", radius={self.kernel.radius:.8g}"
        return f"{self.kernel.kernel!r}.on_sphere({arguments})"


def on_sphere(kernel: Kernel, dims: Columns, radius: float) -> Kernel:
    """Return a kernel, or each term of a sum, on the sphere; one lengthscale becomes several."""
    if isinstance(kernel, Sum):
        return Sum(tuple(on_sphere(term, dims, radius) for term in kernel.terms))
    sphere = Sphere(kernel, radius)
    lengthscale = sphere.parameters()["lengthscale"]
    if lengthscale.ndim == 0 and len(dims) > 2:
        # Kilometres and hours have no lengthscale in common.
        sphere = sphere.with_parameters(lengthscale=np.full(len(dims) - 1, float(lengthscale)))
    return OnSphere(sphere, dims)


Kernel.place_on_sphere = on_sphere


def is_on_sphere(kernel: Kernel) -> bool:
    """Return whether some part of a kernel acts on the sphere."""
    return any(isinstance(part, Sphere) for part, _ in kernel.primitives())


class Embedding(NamedTuple):
    """Rows in space: coordinates of points of spheres, and behind them other columns.

    Attributes
    ----------
    spheres : tuple of (int, int, float)
        The columns of longitude and latitude, and the radius.
    columns : tuple of int
        The columns that are taken as they are.
    num_dims : int
        The number of columns before.
    """

    spheres: tuple[tuple[int, int, float], ...]
    columns: Columns
    num_dims: int

    @classmethod
    def of(cls, kernel: Kernel, num_dims: int) -> Embedding | None:
        """Return the embedding that a kernel on `num_dims` columns needs, if any."""
        spheres: list[tuple[int, int, float]] = []
        plain: set[int] = set()
        for primitive, dims in kernel.primitives():
            columns = tuple(range(num_dims)) if dims is None else dims
            if isinstance(primitive, Sphere):
                spheres.append((columns[0], columns[1], primitive.radius))
                columns = columns[2:]
            plain |= set(columns)
        if not spheres:
            return None
        return cls(tuple(dict.fromkeys(spheres)), tuple(sorted(plain)), num_dims)

    @property
    def size(self) -> int:
        """The number of columns of embedded rows."""
        return _SPACE * len(self.spheres) + len(self.columns)

    def rows(self, X: NDArray) -> Floats:
        """Return the rows of X in space, (n, d')."""
        X = np.asarray(X, dtype=np.float64)
        parts = [
            radius * _unit_vectors(X[:, longitude], X[:, latitude])
            for longitude, latitude, radius in self.spheres
        ]
        return np.concatenate([*parts, X[:, list(self.columns)]], axis=1)

    def degrees(self, rows: Floats) -> Floats:
        """Return the rows of X that were embedded, longitudes from −180° to 180°, (n, d)."""
        X = np.zeros((len(rows), self.num_dims))
        for i, (longitude, latitude, _) in enumerate(self.spheres):
            x, y, z = rows[:, _SPACE * i : _SPACE * (i + 1)].T
            X[:, longitude] = np.degrees(np.arctan2(y, x))
            X[:, latitude] = np.degrees(np.arctan2(z, np.hypot(x, y)))
        X[:, list(self.columns)] = rows[:, _SPACE * len(self.spheres) :]
        return X

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return the kernel that acts on embedded rows, with the same primitives."""
        if isinstance(kernel, Combination):
            return kernel.with_parts(map(self.kernel, kernel.parts))
        first = _SPACE * len(self.spheres)
        places = {column: first + i for i, column in enumerate(self.columns)}
        if isinstance(kernel, OnSphere):
            sphere = self.spheres.index((*kernel.dims[:2], kernel.kernel.radius))
            space = range(_SPACE * sphere, _SPACE * (sphere + 1))
            return On(kernel.kernel, (*space, *(places[d] for d in kernel.dims[2:])))
        if is_on_sphere(kernel):
            raise KernelError(
                "A kernel on the sphere names its columns itself: write for example "
                f"kernel.on_sphere(2, 3) in place of {kernel!r}."
            )
        if isinstance(kernel, On):
            return kernel.with_columns(places)
        return On(kernel, tuple(places[d] for d in range(self.num_dims)))


def latitudes(kernel: Kernel) -> Iterator[int]:
    """Yield the columns that hold latitudes."""
    for primitive, dims in kernel.primitives():
        if isinstance(primitive, Sphere) and dims is not None:
            yield dims[1]


def _unit_vectors(longitude: NDArray, latitude: NDArray) -> Floats:
    """Return points of the unit sphere, (n, 3)."""
    around = np.radians(np.remainder(longitude, 360.0))
    up = np.radians(latitude)
    # All meridians meet there, to the last digit.
    out = np.where(np.abs(latitude) == 90, 0.0, np.cos(up))
    return np.stack([out * np.cos(around), out * np.sin(around), np.sin(up)], axis=1)
