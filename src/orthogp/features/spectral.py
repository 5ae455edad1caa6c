r"""SpectralFeatures: an orthonormal basis in frequency, the paper's construction (section 3).

With ψ_m orthonormal in L²(R^D),

    φ_m(x) = ∫ ψ_m(ω) √S(ω) trig(ω·(x−x₀)) dω,      trig = cos for even ψ_m, sin for odd

is the covariance of f(x) with features of unit covariance, for any spectral density S. A family
here is a basis of functions of one dimensionless variable u; one dilation c per column and
products make ψ of it:

    ψ_m(ω) = ∏_d basis_{m_d}(ω_d/c_d)/√c_d

`evaluate` computes the integral by Gaussian quadrature to rounding. `on` puts the nodes on a
lattice: with ψ orthonormal over its points, which a QR factorisation sees to, the sums

    φ_m(x) = Σ_t √h^D ψ_m(ω_t) √mass_t trig(ω_t·(x−x₀))

are exact features of the wrapped prior, so that quadrature costs the bounds nothing; it only moves
the features a little from the paper's (`quadrature_error`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Self

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
    Orders,
    as_rows,
    centred,
    check_count,
    correlation_lengths,
    gauss_panels,
    grid_orders,
    grid_points,
    least,
    order_products,
    per_column,
    prior_variance,
    sample_box,
    simplex_orders,
)
from orthogp.features.series import MassSeries, for_kernel, spectral_densities
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray
from orthogp.statistics import FrequencyLattice

# The largest rounding of sampled inner products; beyond it they are made orthonormal.
_ORTHONORMAL = 1e-13
# The largest change of φ, relative to √k(0), by doubling its nodes, at which `evaluate` stops.
_CONVERGED = 1e-13
# The most nodes on a half line, by number of columns.
_MOST_NODES = {1: 2**13, 2: 2**9, 3: 2**7}
# The largest number of turns that are integrated, by number of columns.
_MOST_TURNS = {1: 2**15, 2: 2**9, 3: 2**6}
# The largest ratio of turns between rows that share their nodes.
_TURNS_RATIO = 8.0
# The nodes whose phases are held at a time.
_BLOCK = 2**12
# The rows whose phases are held at a time.
_ROWS = 2**9
# The factors around a guess of a dilation that are tried, and how often the best is refined.
_AFRESH = (np.geomspace(0.25, 4.0, 7), 6)
# The factors and refinements around a dilation that was the best for a similar kernel.
_NEARBY = (np.array([0.9, 1.0, 1.1]), 2)


def sampled(family: SpectralFeatures, count: int, dilation: float, h: float, most: int) -> Floats:
    """Return one column's basis at the nodes −n…n, orthonormal over them, (count, 2n+1).

    However few the nodes, these are features of the wrapped prior, and with few of them they
    were seen to leave out less of it, not more: a node for every member is all they need.
    """
    wanted = int(np.floor(dilation * family.reach(count) / h + 1e-9))
    odd = family.is_odd(np.arange(count))
    least = max(int(np.sum(~odd)) - 1, int(np.sum(odd)))
    name = f"{type(family).__name__} with {count} members per column"
    if family.compact and wanted > most:
        raise FeatureError(
            f"{name} reaches up to frequency {dilation * family.reach(count):.4g}, but the "
            f"lattice only to {most * h:.4g}: use a narrower band or fewer features."
        )
    n = min(wanted, most)
    if least > n:
        raise FeatureError(
            f"{name} wants at least {2 * least + 1} nodes, but the lattice has {2 * n + 1} "
            "there: use fewer features, or a larger `domain` for a finer lattice."
        )
    # On the half line, so that no rounding can spoil the symmetry.
    nodes = np.arange(n + 1, dtype=np.float64)
    fold = np.where(nodes == 0, 1.0, np.sqrt(2))
    half = np.sqrt(h / dilation) * fold * family.basis(nodes * (h / dilation), count)
    half[odd, 0] = 0.0
    for part, values in ((~odd, half), (odd, half[:, 1:])):
        gram = values[part] @ values[part].T
        if np.max(np.abs(gram - np.eye(len(gram))), initial=0.0) > _ORTHONORMAL:
            values[part] = _orthonormal_rows(values[part])
    half /= fold
    mirrored = np.where(odd, -1.0, 1.0)[:, None] * half[:, :0:-1]
    return np.concatenate([mirrored, half], axis=1)


def _orthonormal_rows(values: Floats) -> Floats:
    """Return rows with the same successive spans and signs, orthonormal."""
    q, r = np.linalg.qr(values.T)
    return (q * np.where(np.diag(r) < 0, -1.0, 1.0)).T


class SpectralFeatures(Features):
    """Features made of a basis in frequency; see the module's docstring.

    Subclasses define `basis` and whatever of the methods below is not as they say.

    Parameters
    ----------
    num_features : int
        In several columns the products that come closest to it are taken, never more.
    centre : float or (d,), optional
        x₀; zero, or the middle of the data in a fit, unless given.
    learn : bool
        Whether a fit chooses the dilation by the bound it learns with, instead of by the variance
        that the features leave out.
    orders : tuple of tuples
        The products m_d; chosen by `placed`.
    chosen : bool
        Whether `placed` chose the dilation; only then `adjusted` changes it.
    """

    num_features: int = eqx.field(static=True, converter=check_count)
    centre: Any = eqx.field(default=None, kw_only=True)
    learn: bool = eqx.field(default=False, static=True, kw_only=True)
    orders: Orders | None = eqx.field(default=None, static=True, kw_only=True)
    chosen: bool = eqx.field(default=False, static=True, kw_only=True)

    #: The field that holds the dilation.
    dilation_field: ClassVar[str] = "a"
    #: Whether `basis` takes arrays of JAX too.
    traceable: ClassVar[bool] = False
    #: Whether the basis is zero beyond `reach`, so that a lattice tiles what is within.
    compact: ClassVar[bool] = True
    #: Whether several columns take products of the lowest total order, not a grid of them.
    total_order: ClassVar[bool] = False
    #: Whether `from_uniform` is linear, so that evenly spaced samples stay so.
    even_samples: ClassVar[bool] = True

    # ------------------------------------------------------------------ what a family is

    @abstractmethod
    def basis(self, u: Floats, count: int) -> Floats:
        """Return the first `count` members at u, orthonormal under ∫ du, (count, len(u))."""

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which members are odd functions, all others being even: every second."""
        return order % 2 == 1

    def reach(self, count: int) -> float:
        """Return the |u| beyond which the first `count` members vanish: 1."""
        return 1.0

    @property
    def dilation(self) -> Floats | None:
        """c, one number or one per column, or `None` if left open."""
        return getattr(self, self.dilation_field)

    def dilated(self, dilation: Floats) -> Self:
        """Return a copy with another dilation."""
        return replace(self, **{self.dilation_field: dilation})

    def guess(self, counts: NDArray[np.int64], width: Floats, length: Floats) -> Floats:
        """Return a dilation to start the choice from, (d,).

        For a box of that width and a kernel with those correlation lengths: `counts` functions of
        band c reach over the box.
        """
        return np.pi * np.maximum(counts - 1, 1) / (width + 2 * length)

    def quadrature(self, count: int, size: int) -> tuple[Floats, Floats]:
        """Return nodes u > 0 and weights of ∫ basis · g du over the half line, g smooth.

        Gauss–Legendre with `size` nodes between all `breakpoints`, unless a family knows better.
        """
        edges = self.breakpoints(count)
        each = max(size // (len(edges) - 1), 12)
        rules = [gauss_panels(lower, upper, each) for lower, upper in pairwise(edges)]
        nodes, weights = zip(*rules, strict=True)
        return np.concatenate(nodes), np.concatenate(weights)

    def breakpoints(self, count: int) -> Floats:
        """Return where the basis is not smooth, from 0 to `reach`."""
        return np.array([0.0, self.reach(count)])

    def traced_basis(self, u: Float[AnyArray, " t"], count: int) -> Float[AnyArray, "m t"]:
        """Return `basis` as a JAX array, by calling back to NumPy unless it is traceable."""
        if self.traceable:
            return self.basis(u, count)  # type: ignore[arg-type]
        result = jax.ShapeDtypeStruct((count, len(u)), np.float64)
        return jax.pure_callback(lambda u: self.basis(np.asarray(u), count), result, u)

    def from_uniform(
        self, v: Float[AnyArray, "..."], count: int
    ) -> tuple[Float[AnyArray, "..."], Float[AnyArray, "..."]]:
        """Return u and du/dv over the support of the basis for v in [0, 1]: evenly by default."""
        reach = self.reach(count)
        return reach * (2 * v - 1), jnp.full(v.shape, 2 * reach)

    # ------------------------------------------------------------------ the paper's features

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n) by quadrature to rounding, (n, m).

        What is left open is chosen for the smallest box around X and the centre.
        """
        X = as_rows(X)
        if (family := for_kernel(self, kernel, X.shape[1])) is not self:
            return family.evaluate(kernel, X)
        centre = np.zeros(X.shape[1]) if self.centre is None else np.asarray(self.centre)
        radius = np.max(np.abs(X - centre), axis=0)
        features = replace(self, centre=centre).placed(kernel, centre - radius, centre + radius)
        return features._integrate(kernel, X)

    def _integrate(self, kernel: Kernel, X: Floats) -> Floats:
        """Return φ by quadrature, each group of rows with the number of nodes that it needs.

        Nodes follow the turns of cos(ω·(x−x₀)) over the band. φ falls at least as their inverse,
        and is taken for zero at rows with more turns than `_MOST_TURNS`.
        """
        orders, dilation = self._chosen(X.shape[1])
        counts = orders.max(axis=0) + 1
        band = dilation * self._reaches(counts)
        turns = np.max(np.abs(X - self.centre) * band / np.pi + counts, axis=1)
        Phi = np.zeros((len(X), len(orders)))
        fewest = turns.min(initial=np.inf)
        groups = np.floor(np.log(turns / fewest) / np.log(_TURNS_RATIO))
        groups[turns > max(_MOST_TURNS[X.shape[1]], _TURNS_RATIO * counts.max())] = -1
        for group in np.unique(groups[groups >= 0]):
            rows = groups == group
            Phi[rows] = self._integrate_alike(kernel, X[rows], int(turns[rows].max()) + 24)
        return Phi

    def _integrate_alike(self, kernel: Kernel, X: Floats, size: int) -> Floats:
        """Return φ with at least 2 · `size` nodes, doubled until φ no longer changes."""
        # Where the integrand turns fastest.
        far = X[np.unique(np.concatenate([X.argmin(axis=0), X.argmax(axis=0)]))]
        enough = _CONVERGED * np.sqrt(prior_variance(kernel))
        while True:
            probe = self._sum_nodes(kernel, far, size)
            finer = self._sum_nodes(kernel, far, 2 * size)
            error = np.max(np.abs(finer - probe))
            if error <= enough or 2 * size > _MOST_NODES[X.shape[1]]:
                return self._sum_nodes(kernel, X, 2 * size)
            size *= 2

    def _sum_nodes(self, kernel: Kernel, X: Floats, size: int) -> Floats:
        """Return φ with `size` nodes for each half line, (n, m)."""
        orders, dilation = self._chosen(X.shape[1])
        num_dims = X.shape[1]
        axes, tables = [], []
        for d in range(num_dims):
            count = int(orders[:, d].max()) + 1
            u, w = self.quadrature(count, size)
            values = np.sqrt(dilation[d]) * w * self.basis(u, count)
            if d > 0:
                # The first column's half line suffices: the integrand is even under ω → −ω.
                signs = np.where(self.is_odd(np.arange(count)), -1.0, 1.0)[:, None]
                u, values = (
                    np.concatenate([-u[::-1], u]),
                    np.concatenate([signs * values[:, ::-1], values], axis=1),
                )
            else:
                values = 2 * values
            axes.append(dilation[d] * u)
            tables.append(values)
        odd = self.odd(orders)
        Phi = np.zeros((len(X), len(orders)))
        step = max(_BLOCK // int(np.prod([len(axis) for axis in axes[1:]])), 1)
        for start in range(0, len(axes[0]), step):
            part = slice(start, start + step)
            omegas = grid_points([axes[0][part], *axes[1:]])
            psi = order_products([tables[0][:, part], *tables[1:]], orders)
            psi *= np.sqrt(spectral_densities(kernel, omegas))
            for first in range(0, len(X), _ROWS):
                rows = slice(first, first + _ROWS)
                phases = (X[rows] - self.centre) @ omegas.T
                Phi[rows, ~odd] += np.cos(phases) @ psi[~odd].T
                Phi[rows, odd] += np.sin(phases) @ psi[odd].T
        return Phi

    # ------------------------------------------------------------------ choosing what is open

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with centre, products and dilation chosen for inputs within a box.

        The dilation is the one that leaves out least prior variance, averaged over the box.
        """
        centre, reach = centred(self.centre, lower, upper, lattice)
        features = replace(self, centre=centre)
        width = np.where(reach > 0, 2 * reach, 1.0)
        length = correlation_lengths(kernel, width)
        if features.orders is None:
            choose = simplex_orders if self.total_order else grid_orders
            # No more exist on a lattice than it has modes.
            most = np.inf if lattice is None else 2 * lattice.extent + 1
            orders = choose(self.num_features, width / length, most)
            features = replace(features, num_features=len(orders), orders=orders)
        if self.dilation is not None:
            given = features.dilated(per_column(self.dilation, len(lower), "dilation"))
            return given._within(lattice)._fit_on(lattice)
        counts = np.max(np.array(features.orders), axis=0) + 1
        guess = self.guess(counts, width, length)
        features = replace(features, chosen=True)
        points = sample_box(centre - width / 2, centre + width / 2)
        return features._best_dilation(guess, _AFRESH, kernel, points, lattice)

    def adjusted(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return placed features placed again for another kernel, by steps from where they are."""
        if not self.chosen or self.dilation is None:
            return self.placed(kernel, lower, upper, lattice)
        dilation = np.asarray(self.dilation, dtype=float)
        return self._best_dilation(dilation, _NEARBY, kernel, sample_box(lower, upper), lattice)

    def _best_dilation(
        self,
        guess: Floats,
        search: tuple[Floats, int],
        kernel: Kernel,
        points: Floats,
        lattice: FrequencyLattice | None,
    ) -> Self:
        """Return the copy that leaves out least at some points, of guess · factors and between."""
        factors, refinements = search

        def at(factor: float) -> Self:
            return self.dilated(factor * guess)._fit_on(lattice)

        step = float(np.sqrt(factors[1] / factors[0]))
        score = lambda factor: at(factor)._left_out(kernel, points, lattice)  # noqa: E731
        return at(least(score, factors, step, refinements))

    def _left_out(self, kernel: Kernel, points: Floats, lattice: FrequencyLattice | None) -> float:
        """Return the mean of k(0) − Σ φ² over some points; infinite if a lattice is too coarse."""
        if lattice is None:
            orders, dilation = self._chosen(points.shape[1])
            highest = orders.max(axis=0)
            radius = np.max(np.abs(points - self.centre), axis=0)
            size = int(np.max(dilation * self._reaches(highest + 1) * radius / 2 + highest)) + 24
            Phi = self._sum_nodes(kernel, points, size)
        else:
            try:
                Phi = self.on(lattice).evaluate(kernel, points)
            except FeatureError:
                return np.inf
        return prior_variance(kernel) - float(np.mean(np.sum(Phi**2, axis=1)))

    def _within(self, lattice: FrequencyLattice | None) -> Self:
        """Return self, or raise `FeatureError` if a given band ends beyond the lattice."""
        if lattice is not None and self.compact:
            counts = np.max(np.array(self.orders), axis=0) + 1
            reach = self._reaches(counts) * np.asarray(self.dilation)
            end = (lattice.extent + 1) * lattice.spacing
            if np.any(reach > end):
                raise FeatureError(
                    f"{type(self).__name__} reaches up to frequency {np.max(reach):.4g}, but the "
                    f"lattice only to {np.min(end):.4g}: use a narrower band, or leave it open."
                )
        return self

    def _fit_on(self, lattice: FrequencyLattice | None) -> Self:
        """Return a copy with a dilation whose interval the lattice's cells tile."""
        if lattice is None or not self.compact or self.dilation is None:
            return self
        cells = np.clip(np.round(self.dilation / lattice.spacing - 0.5), 0, lattice.extent)
        return self.dilated((cells + 0.5) * lattice.spacing)

    def _chosen(self, num_dims: int) -> tuple[NDArray[np.int64], Floats]:
        if self.orders is None or self.dilation is None:
            raise self.unplaced()
        orders = np.array(self.orders)
        return orders, np.broadcast_to(np.asarray(self.dilation, dtype=float), (num_dims,))

    def _reaches(self, counts: NDArray[np.int64]) -> Floats:
        return np.array([self.reach(int(count)) for count in counts])

    def odd(self, orders: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which products of members are odd in ω, (m,)."""
        return np.sum(self.is_odd(orders), axis=1) % 2 == 1

    # ------------------------------------------------------------------ on a lattice

    def on(self, lattice: FrequencyLattice) -> MassSeries:
        """Return the features with nodes on a lattice, orthonormal over its points."""
        orders, dilation = self._chosen(lattice.num_dims)
        counts = orders.max(axis=0) + 1
        tables = [
            sampled(self, int(count), float(c), float(h), int(most))
            for count, c, h, most in zip(
                counts, dilation, lattice.spacing, lattice.extent, strict=True
            )
        ]
        reaches = [table.shape[1] // 2 for table in tables]
        indices = FrequencyLattice(lattice.spacing, reaches, lattice.centre).half_indices()
        psi = order_products(tables, orders)[:, -len(indices) :]
        psi[:, 1:] *= 2
        return MassSeries(lattice, indices, self.odd(orders), psi)

    def quadrature_error(self, kernel: Kernel, lattice: FrequencyLattice, points: Floats) -> float:
        """Return how much φ changes, relative to √k(0), when the lattice is three times as fine.

        Three times, not twice: the finer lattice then tiles [−c, c] too.
        """
        coarse = self.on(lattice).evaluate(kernel, points)
        worst = 0.0
        for d in range(lattice.num_dims):
            factor = np.where(np.arange(lattice.num_dims) == d, 3, 1)
            finer = FrequencyLattice(
                lattice.spacing / factor,
                np.where(factor == 3, 3 * lattice.extent + 1, lattice.extent),
                lattice.centre,
            )
            fine = self.on(finer).evaluate(kernel, points)
            worst += float(np.max(np.abs(fine - coarse)))
        return worst / np.sqrt(prior_variance(kernel))
