r"""Kernels of longitude and latitude: functions of the chord between two points of a sphere.

Degrees are no distances: 180° and −180° are one meridian, and all meridians meet at the poles. A
point of a sphere of radius R lies in space at

    R (cos φ cos λ, cos φ sin λ, sin φ)

for the longitude λ and the latitude φ, and the chord between two points at an angle θ is
2R sin(θ/2). A covariance in space is one on the sphere too. The three coordinates share one
lengthscale, so that nothing depends on where the poles are; further columns, such as time, have one
each:

    k = k₀(r²),      r² = (2R sin(θ/2)/ℓ)² + Σ_j (τ_j/ℓ_j)²

`Embedding` puts rows into space, where engines see an ordinary kernel of lags.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.base import EARTH_RADIUS, Columns, Kernel, Scalar, Vector
from orthogp.kernels.composite import Combination, On, OnColumns, Sum
from orthogp.kernels.stationary import Floats, Radial, scaled_square
from orthogp.kernels.transformed import Wrapper

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
