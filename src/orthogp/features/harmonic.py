r"""Harmonic features: eigenfunctions of the Laplacian on a box (Solin and Särkkä).

On the box with corners c ∓ L, for wave numbers j_d = 1, 2, …,

    e_j(x) = ∏_d sin(ω_{j_d} (x_d − c_d + L_d))/√L_d,      ω_{j_d} = π j_d/(2L_d)

are orthonormal, and the process with independent coefficients of variance (2π)^D S(ω_j) has the
kernel

    k_Ω(x, x') = Σ_j (2π)^D S(ω_j) e_j(x) e_j(x')

that is close to k inside of the box, away from its boundary. It is the process that vanishes on
the boundary: the stationary process on all of space, reflected with a change of sign at every face.
With P = 4L,

    k_Ω(x, x') = Σ_{σ ⊆ columns} (−1)^{|σ|} Σ_{i ∈ Z^D} k(τ_σ + i∘P)

where τ_σ is x − x' in each column, except x + x' − 2(c − L) in those of σ.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import (
    Features,
    Floats,
    PointFeatures,
    as_rows,
    best_margin,
    centred,
    check_count,
    check_inside,
    check_scale,
    correlation_lengths,
    grid_points,
    prior_variance,
    sample_box,
)
from orthogp.features.inducing import covariance_matrix
from orthogp.features.series import (
    Indices,
    SeriesFeatures,
    for_kernel,
    safe_sqrt,
    spectral_densities,
)
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

# The frequency in inverse correlation lengths beyond which modes are sought only if S leads there.
_HIGHEST = 8.0
# The largest change of k_Ω, relative to k(0), by doubling the images, at which their sum ends.
_CONVERGED = 1e-10
# The most images of the box on each side, by number of columns.
_MOST_IMAGES = {1: 256, 2: 16, 3: 4}
# The pairs of rows whose images are summed together.
_ROWS_PER_BLOCK = 256


def largest_modes(kernel: Kernel, half_width: Floats, count: int, most: Indices | None) -> Indices:
    """Return the wave numbers of the `count` largest spectral densities, in order of the first.

    They are looked for in a box of indices that grows until its outer half holds none of them; and,
    where densities underflow, until it covers all that the kernel's decay near lag zero speaks for.
    """
    num_dims, spacing = len(half_width), np.pi / (2 * half_width)
    length = correlation_lengths(kernel, 2 * half_width)
    ratio = half_width / length
    reach = np.ceil(4 * ratio * (count / np.prod(ratio)) ** (1 / num_dims)).astype(np.int64)
    while True:
        if most is not None:
            reach = np.minimum(reach, most)
        grid = grid_points([np.arange(1.0, n + 1) for n in reach]).astype(np.int64)
        densities = spectral_densities(kernel, grid * spacing)
        best = np.sort(np.argsort(-densities, kind="stable")[:count])
        chosen = grid[best]
        short = 2 * chosen.max(axis=0) > reach
        if densities[best].min() == 0:
            short |= reach * spacing < _HIGHEST / length
        if most is not None:
            short &= reach < most
        if not short.any():
            break
        reach = np.where(short, 2 * reach, reach)
    if len(chosen) < count:
        raise FeatureError(
            f"The lattice holds {len(chosen)} harmonic features, but {count} are asked for: use "
            "fewer features."
        )
    return chosen


def constrained_variance(kernel: Kernel, X: Floats, centre: Floats, half_width: Floats) -> Floats:
    """Return k_Ω(x_n, x_n) as a sum over images, (n,)."""
    return _constrained(kernel, np.zeros_like(X), 2 * (X - centre + half_width), 4 * half_width)


def _constrained(kernel: Kernel, lags: Floats, reflected: Floats, period: Floats) -> Floats:
    """Return k_Ω for pairs with lags x − x' and x + x' − 2(c − L), (n,)."""
    # Modulo the period, so that few images suffice.
    pairs = np.stack([lags, reflected], axis=1)
    pairs -= period * np.round(pairs / period)
    extremes = np.linspace(0, len(pairs) - 1, 8).astype(int)
    probe = pairs[np.argsort(np.abs(pairs).sum(axis=(1, 2)))[extremes]]
    num_images, tolerance = 2, _CONVERGED * prior_variance(kernel)
    coarse = np.asarray(_image_sums(kernel, probe, period, num_images))
    while num_images < _MOST_IMAGES[len(period)]:
        fine = np.asarray(_image_sums(kernel, probe, period, 2 * num_images))
        if np.max(np.abs(fine - coarse)) <= tolerance:
            break
        num_images, coarse = 2 * num_images, fine
    padded = np.pad(pairs, ((0, -len(pairs) % _ROWS_PER_BLOCK), (0, 0), (0, 0)))
    blocks = padded.reshape(-1, _ROWS_PER_BLOCK, *pairs.shape[1:])
    sums = [np.asarray(_image_sums(kernel, block, period, num_images)) for block in blocks]
    return np.concatenate(sums)[: len(pairs)]


@in_double
@eqx.filter_jit
def _image_sums(
    kernel: Kernel, pairs: Floats, period: Floats, num_images: int
) -> Float[AnyArray, " n"]:
    num_dims = pairs.shape[2]
    shifts = range(-num_images, num_images + 1)
    images = jnp.asarray(list(itertools.product(shifts, repeat=num_dims)), float) * period
    columns = np.array(list(itertools.product((0, 1), repeat=num_dims)))
    signs = jnp.asarray((-1.0) ** columns.sum(axis=1))

    def at(pair: Float[AnyArray, "2 d"]) -> Float[AnyArray, ""]:
        turned = jnp.where(columns == 1, pair[1], pair[0])[:, None, :] + images
        values = jax.vmap(jax.vmap(kernel.k))(turned)
        return jnp.sum(signs[:, None] * values)

    return jax.lax.map(at, jnp.asarray(pairs))


class BoxFeatures(Features):
    """Features on a box: of the process that vanishes on its boundary, or in place of the prior."""

    if TYPE_CHECKING:
        # A field of all subclasses; declared here it would be their first.
        @property
        def constrained(self) -> bool:
            """Whether the process meant is the one with kernel k_Ω."""
            ...

    @abstractmethod
    def box(self, kernel: Kernel, X: Floats) -> tuple[Floats, Floats]:
        """Return the centre and the half widths of the box for the rows of X."""

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether the features are those of the process meant: of the constrained one only."""
        return self.constrained

    @property
    def stationary(self) -> bool:  # type: ignore[override]
        """Whether the process meant is stationary: the constrained one is not."""
        return not self.constrained

    def residual_variance(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return k_Ω(x_n, x_n) − Σ φ_j(x_n)² if constrained, else zero, (n,)."""
        X = as_rows(X)
        if not self.constrained:
            return np.zeros(len(X))
        whole = constrained_variance(kernel, X, *self.box(kernel, X))
        return np.maximum(whole - np.sum(self.evaluate(kernel, X) ** 2, axis=1), 0.0)

    def process_covariance(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return k_Ω between the rows of X, (n, n)."""
        X = as_rows(X)
        centre, half_width = self.box(kernel, X)
        rows, columns = np.tril_indices(len(X))
        A, B = X[rows], X[columns]
        values = _constrained(kernel, A - B, A + B - 2 * (centre - half_width), 4 * half_width)
        result = np.empty((len(X), len(X)))
        result[rows, columns] = result[columns, rows] = values
        return result


class Harmonic(BoxFeatures, PointFeatures):  # pyright: ignore[reportIncompatibleVariableOverride]
    r"""Sines on a box, weighted by the spectral density; for every kernel that has one.

        φ_j(x) = √((2π)^D S(ω_j)) e_j(x)

    These are the features of reduced-rank (Hilbert-space) Gaussian processes (Solin & Särkkä 2014),
    where the kernel of the features replaces the prior, and of variational harmonic features
    (Solin & Kok 2019), where the prior is that of the process that vanishes on the box's boundary.

    Parameters
    ----------
    num_features : int
        Those with the largest spectral density are taken.
    half_width : float or (d,), optional
        L. Chosen unless given: the one with which the features' kernel comes closest to k over the
        data.
    constrained : bool
        Whether the process meant is the one with kernel k_Ω, so that bounds hold, for it.
    centre : float or (d,), optional
        c; the middle of the data unless given.
    orders : (m, d), optional
        The wave numbers j; chosen by `placed`.
    """

    num_features: int = eqx.field(static=True, converter=check_count)
    half_width: Any = eqx.field(
        default=None, converter=lambda value: check_scale(value, "half_width")
    )
    constrained: bool = eqx.field(default=False, static=True)  # type: ignore[override]
    centre: Any = eqx.field(default=None, kw_only=True)
    orders: Any = eqx.field(default=None, kw_only=True)

    known_as = ("harmonic",)

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return φ_j(x_n)."""
        orders, half_width = self._chosen(X.shape[1])
        angles = jnp.pi * (X - self.centre + half_width) / (2 * half_width)
        Phi = _amplitudes(kernel, orders * jnp.pi / (2 * half_width))
        for d in range(X.shape[1]):
            Phi = Phi * jnp.sin(angles[:, d, None] * orders[:, d]) / jnp.sqrt(half_width[d])
        return Phi

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_j(x_n), (n, m); an open box is chosen for the smallest box around X."""
        X = as_rows(X)
        family = for_kernel(self, kernel, X.shape[1])
        return super().evaluate(kernel, X) if family is self else family.evaluate(kernel, X)

    def box(self, kernel: Kernel, X: Floats) -> tuple[Floats, Floats]:
        """Return the centre and the half widths, chosen for the smallest box around X if open."""
        placed = self.from_rows(kernel, X)
        return placed.centre, placed.half_width

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with box and wave numbers chosen; on a lattice, L is a quarter period.

        Raises `FeatureError` unless the features' box holds the data's.
        """
        centre, reach = centred(self.centre, lower, upper, lattice)
        period = lattice.period if lattice is not None else self.wanted_period(kernel, 2 * reach)
        half_width = period / 4
        check_inside(
            lower, upper, centre - half_width, centre + half_width, "use a larger half_width"
        )
        orders = self.orders
        if orders is None:
            most = None if lattice is None else lattice.extent
            orders = largest_modes(kernel, half_width, self.num_features, most)
        return replace(self, half_width=half_width, centre=centre, orders=orders)

    def wanted_period(self, kernel: Kernel, width: Floats) -> Floats:
        """Return 4L, (d,)."""
        if self.half_width is not None:
            return 4 * np.broadcast_to(self.half_width, width.shape)
        width = np.where(width > 0, width, 1.0)
        length = correlation_lengths(kernel, width)
        points = sample_box(-width / 2, width / 2)
        K = np.asarray(covariance_matrix(kernel, points, points))

        def error(margin: float) -> float:
            half_width = width / 2 + margin * length
            features = replace(self, half_width=half_width, centre=np.zeros(len(width)))
            Phi = PointFeatures.evaluate(features, kernel, points)
            return float(np.mean((Phi @ Phi.T - K) ** 2))

        return 2 * width + 4 * best_margin(error) * length

    def on(self, lattice: FrequencyLattice) -> HarmonicSeries:
        """Return the features as cosines and sines on the lattice of period 4L."""
        orders, half_width = self._chosen(lattice.num_dims)
        if not np.allclose(4 * half_width, lattice.period) or np.any(
            np.abs(self.centre - lattice.centre) > 1e-9 * half_width
        ):
            raise FeatureError(
                f"Harmonic features on a box of half width {half_width} around {self.centre} need "
                f"a lattice of four times that period with the same centre, got {lattice}: call "
                "placed(kernel, lower, upper, lattice) first."
            )
        if np.any(orders.max(axis=0) > lattice.extent):
            raise FeatureError(
                f"Harmonic features reach up to index {orders.max(axis=0)}, but the lattice ends "
                f"at {lattice.extent}: use fewer features."
            )
        return HarmonicSeries.from_orders(lattice, orders, self.constrained)

    def _chosen(self, num_dims: int) -> tuple[Any, Any]:
        if self.orders is None or self.half_width is None or self.centre is None:
            raise self.unplaced()
        return self.orders, self.half_width * np.ones(num_dims)


class HarmonicSeries(BoxFeatures, SeriesFeatures):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Harmonic features as series on the lattice whose period is four times L."""

    lattice: FrequencyLattice = eqx.field(static=True)
    indices: Indices
    odd: NDArray[np.bool_]
    orders: Indices
    weights: Floats
    constrained: bool = eqx.field(static=True)  # type: ignore[override]

    def box(self, kernel: Kernel, X: Floats) -> tuple[Floats, Floats]:
        """Return the middle of the lattice's box, and a quarter of its period."""
        return self.lattice.centre, self.lattice.period / 4

    @classmethod
    def from_orders(cls, lattice: FrequencyLattice, orders: Indices, constrained: bool) -> Self:
        r"""Return the series of the features with these wave numbers.

        Around the middle of the box a sine is (−1)^{⌊j/2⌋} cos ω_j(x−c) for odd j and the same sign
        times sin ω_j(x−c) for even j; products of them are sums over the signs of all frequencies
        but the first.
        """
        num_features, num_dims = orders.shape
        half_width = lattice.period / 4
        num_odd = np.sum(orders % 2 == 0, axis=1)
        common = (-1.0) ** (np.sum(orders // 2, axis=1) + num_odd // 2)
        common /= 2 ** (num_dims - 1) * np.sqrt(np.prod(half_width))
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=num_dims - 1)])
        indices = (signs[:, None, :] * orders).reshape(-1, num_dims)
        weights = np.zeros((num_features, 1 + len(indices)))
        features = np.arange(num_features)
        for i, sign in enumerate(signs):
            flips = np.prod(np.where(orders % 2 == 0, sign, 1), axis=1)
            weights[features, 1 + i * num_features + features] = common * flips
        indices = np.concatenate([np.zeros((1, num_dims), dtype=np.int64), indices])
        return cls(lattice, indices, num_odd % 2 == 1, orders, weights, constrained)

    def coefficients(self, kernel: Kernel) -> Float[AnyArray, "m s"]:
        """Return √((2π)^D S(ω_j)) times the weights."""
        omegas = jnp.asarray(self.orders * self.lattice.spacing)
        return _amplitudes(kernel, omegas)[:, None] * self.weights


def _amplitudes(kernel: Kernel, omegas: Float[AnyArray, "m d"]) -> Float[AnyArray, " m"]:
    """Return √((2π)^D S(ω_j))."""
    densities = jax.vmap(kernel.spectral_density)(omegas)
    return safe_sqrt((2 * jnp.pi) ** omegas.shape[1] * densities)
