r"""Variational Fourier features of Matérn kernels on a window (Hensman, Durrande & Solin 2018).

On a window of width P the inducing variables are RKHS inner products of f with the Fourier basis
of that window, c_m = cos ω_m(x−x₀) and s_m = sin ω_m(x−x₀), ω_m = 2πm/P, x₀ the middle:

    cov(u_m, f(x)) = basis_m(x),      cov(u_m, u_m') = ⟨basis_m, basis_m'⟩

For a half-integer Matérn kernel, λ = √(2ν)/ℓ and p = ν + ½, the process is white noise of density
2πS(ω)|λ + iω|^{2p} put through (λ + d/dx)^{−p}, started from its stationary state at the window's
left end α. Hence

    ⟨g, h⟩ = ∫ (Dg)(Dh) dx + [state of g at α]ᵀ cov(state)⁻¹ [state of h at α]
    D = (λ + d/dx)^p / √(2πS(ω)|λ + iω|^{2p}),      state = (f, f', …, f^{(p−1)})

The first term is diagonal over a full period, the second of rank one or two for the cosines and at
most one for the sines, which never meet: K_uu = diag(1/a_m²) + Σ_r b_r b_rᵀ with

    a_m² = (2 − δ_m0) h S(ω_m),  h = 2π/P,      b_m = (−1)^m state(ω_m/λ)/√v

              cosines                   sines
    ν = 1/2   1                         –
    ν = 3/2   1                         ω/λ
    ν = 5/2   1, (1 − 3(ω/λ)²)/√8       √3 ω/λ

So the whitened features are those of the lattice, a_m c_m and a_m s_m, with one rank-one
correction for each b, which undoes the wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import (
    Floats,
    Orders,
    PointFeatures,
    as_rows,
    best_margin,
    check_count,
    check_inside,
    correlation_lengths,
    grid_orders,
    sample_box,
)
from orthogp.features.series import Indices, SeriesFeatures, for_kernel
from orthogp.kernels import Kernel, Matern12, Matern32, On, Product, components
from orthogp.kernels.base import Scalar, Vector
from orthogp.kernels.stationary import HalfIntegerMatern
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice


def is_sine(order: Indices) -> NDArray[np.bool_]:
    """Return which features of one column are sines."""
    return (order > 0) & (order % 2 == 0)


def product_series(tables: list[Float[AnyArray, "_ _"]], orders: Indices) -> Float[AnyArray, "m s"]:
    r"""Return the coefficients of products of series, one of each column.

    An even series is Σ_t c_t e^{iθ_t} and an odd one −i Σ_t c_t e^{iθ_t}, with c symmetric or
    antisymmetric, so that the coefficients of a product with n odd factors are (−i)^n ∏_d c_{t_d}.

    Parameters
    ----------
    tables : list of (m_d, n_d + 1)
        Coefficients of cosines or sines at the indices 0…n_d of each column.
    orders : (m, d)
        The rows to multiply.

    Returns
    -------
    (m, s)
        Coefficients at `half_indices` of the box |t_d| ≤ n_d. A product is a series of sines where
        its number of odd factors is odd.
    """
    result = jnp.ones((len(orders), 1))
    for table, order in zip(tables, orders.T, strict=True):
        odd = jnp.asarray(is_sine(np.arange(len(table))))[:, None]
        zero, half = jnp.where(odd, 0.0, table[:, :1]), table[:, 1:] / 2
        mirrored = jnp.where(odd, -half[:, ::-1], half[:, ::-1])
        factor = jnp.concatenate([mirrored, zero, half], axis=1)[order]
        result = (result[:, :, None] * factor[:, None, :]).reshape(len(orders), -1)
    pairs = np.sum(is_sine(orders), axis=1) // 2
    result = jnp.where(jnp.asarray(pairs % 2)[:, None] == 1, -result, result)
    middle = result.shape[1] // 2
    return jnp.concatenate([result[:, middle : middle + 1], 2 * result[:, middle + 1 :]], axis=1)


def whitened(
    kernel: HalfIntegerMatern,
    spacing: Scalar,
    cosines: Float[AnyArray, "n c"],
    sines: Float[AnyArray, "n s"],
) -> Float[AnyArray, "n m"]:
    """Return K_uu^{−1/2} applied to cosines 0…c−1 and sines 1…s, as constant, cos, sin, cos, …."""
    num_cosines, num_sines = cosines.shape[1], sines.shape[1]
    index = np.arange(num_cosines)
    omegas = spacing * index
    densities = jax.vmap(kernel.spectral_density)(omegas[:, None])
    amplitudes = jnp.sqrt(np.where(index == 0, 1.0, 2.0) * spacing * densities)
    # b_m scaled by the diagonal of K_uu.
    ends = np.where(index % 2 == 0, 1.0, -1.0) * amplitudes / jnp.sqrt(kernel.prior_variance())
    even, odd = _states(kernel, omegas)
    cosines = _correct(cosines * amplitudes, [ends * state for state in even])
    some = slice(1, num_sines + 1)
    sines = _correct(sines * amplitudes[some], [(ends * state)[some] for state in odd])
    position = np.concatenate([[0], 2 * index[1:] - 1, 2 * np.arange(1, num_sines + 1)])
    return jnp.concatenate([cosines, sines], axis=1)[:, np.argsort(position)]


def _states(kernel: HalfIntegerMatern, omegas: Vector) -> tuple[list[Vector], list[Vector]]:
    """Return cosines' and sines' values and derivatives at the window's end, whitened, v = 1."""
    ratio = omegas * jnp.reshape(kernel.lengthscale, ()) / np.sqrt(2 * kernel.nu)
    value = jnp.ones_like(ratio)
    if isinstance(kernel, Matern12):
        return [value], []
    if isinstance(kernel, Matern32):
        return [value], [ratio]
    return [value, (1 - 3 * ratio**2) / np.sqrt(8)], [np.sqrt(3) * ratio]


def _correct(values: Float[AnyArray, "n c"], vectors: Sequence[Vector]) -> Float[AnyArray, "n c"]:
    """Return rows W v with W (I + Σ_r b_r b_rᵀ) Wᵀ = I, one vector b after the other.

    (I + bbᵀ)^{−1/2} = I − bbᵀ/(s + s²) with s² = 1 + |b|²; it turns the vectors that follow, too.
    """
    while vectors:
        b, *rest = vectors
        s = jnp.sqrt(1 + b @ b)
        values, *vectors = (x - (x @ b)[..., None] * b / (s + s**2) for x in (values, *rest))
    return values


def _check_edge(value: object, name: str) -> Floats | None:
    if value is None:
        return None
    try:
        edge = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FeatureError(f"{name} must be a number or one per column, got {value!r}.") from error
    if edge.ndim > 1 or edge.size == 0 or not np.all(np.isfinite(edge)):
        raise FeatureError(f"{name} must be finite, one number or one per column, got {value!r}.")
    return edge


class VariationalFourier(PointFeatures):
    r"""Variational Fourier features of Matérn-1/2, 3/2 and 5/2 kernels, and of their products.

        Φ = basis · K_uu^{−1/2},      Φ Φᵀ = K_fu K_uu⁻¹ K_uf

    whitened with rank-one corrections, O(M) per point; see the module's docstring. Several columns
    need a product of kernels, `Matern32().on(0) * Matern32().on(1)`, and take products of
    features; sums of kernels take the features of each term.

    Parameters
    ----------
    num_features : int
        2J + 1 for J full pairs of cosine and sine in one column.
    lower, upper : float or (d,), optional
        The window, which must hold the data. Chosen for them unless given: a few lengthscales
        wider, since only functions of that period are represented.
    orders : tuple of tuples
        The products; chosen by `placed`. Order 2i − 1 is the i-th cosine, 2i the i-th sine.
    """

    num_features: int = eqx.field(static=True, converter=check_count)
    lower: Any = eqx.field(default=None, converter=lambda value: _check_edge(value, "lower"))
    upper: Any = eqx.field(default=None, converter=lambda value: _check_edge(value, "upper"))
    orders: Orders | None = eqx.field(default=None, static=True, kw_only=True)

    known_as = ("variational-fourier",)

    def __check_init__(self) -> None:
        if (self.lower is None) != (self.upper is None):
            raise FeatureError("VariationalFourier needs both lower and upper, or neither.")
        if self.lower is not None and np.any(self.lower >= self.upper):
            raise FeatureError(
                f"The window's lower end must lie below its upper, got {self.lower} and "
                f"{self.upper}."
            )

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n)."""
        orders = self._chosen_orders()
        period = jnp.broadcast_to(self.upper - self.lower, (X.shape[1],))
        middle = (self.lower + self.upper) / 2
        phases = 2 * jnp.pi * (X - middle) / period
        Phi = jnp.ones((len(X), len(orders)))
        for d, factor in enumerate(_matern_factors(kernel, X.shape[1])):
            cosines, sines = _orders_to_counts(orders[:, d])
            table = whitened(
                factor,
                2 * jnp.pi / period[d],
                jnp.cos(phases[:, d, None] * np.arange(cosines)),
                jnp.sin(phases[:, d, None] * np.arange(1, sines + 1)),
            )
            Phi = Phi * table[:, orders[:, d]]
        return Phi

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m); an open window is chosen for the smallest box around X."""
        X = as_rows(X)
        family = for_kernel(self, kernel, X.shape[1])
        return super().evaluate(kernel, X) if family is self else family.evaluate(kernel, X)

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Raise `FeatureError` unless the kernel is a half-integer Matérn or a product of them."""
        _matern_factors(kernel, num_dims)

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with products and window chosen; on a lattice its period is the window.

        Raises `FeatureError` unless the window holds the box.
        """
        features = self._with_orders(kernel, upper - lower)
        remedy = "give a wider lower and upper"
        if self.lower is not None:
            check_inside(lower, upper, self.lower, self.upper, remedy)
        if lattice is not None:
            middle, width = lattice.centre, lattice.period
        elif self.lower is not None:
            middle, width = (self.lower + self.upper) / 2, self.upper - self.lower
        else:
            middle, width = (lower + upper) / 2, features.wanted_period(kernel, upper - lower)
        start, end = middle - width / 2, middle + width / 2
        check_inside(lower, upper, start, end, remedy)
        return replace(features, lower=start, upper=end)

    def wanted_period(self, kernel: Kernel, width: Floats) -> Floats:
        """Return the width of the window, (d,).

        Unless given it is the one that leaves out least prior variance, averaged over the data.
        """
        num_dims = len(width)
        if self.lower is not None:
            return np.broadcast_to(self.upper - self.lower, (num_dims,)).astype(float)
        width = np.where(width > 0, width, 1.0)
        orders = self._with_orders(kernel, width)._chosen_orders()
        # The variance explained is a product over the columns: each has a best window.
        return np.array(
            [
                _best_window(factor, int(orders[:, d].max()) + 1, float(width[d]))
                for d, factor in enumerate(_matern_factors(kernel, num_dims))
            ]
        )

    def on(self, lattice: FrequencyLattice) -> VariationalFourierSeries:
        """Return the features whose window is the lattice's period around its centre."""
        orders = self._chosen_orders()
        reach = (orders.max(axis=0) + 1) // 2
        if np.any(reach > lattice.extent):
            raise FeatureError(
                f"VariationalFourier needs frequencies up to index {reach}, but the lattice ends "
                f"at {lattice.extent}: use fewer features."
            )
        indices = FrequencyLattice(lattice.spacing, reach, lattice.centre).half_indices()
        odd = np.sum(is_sine(orders), axis=1) % 2 == 1
        return VariationalFourierSeries(lattice, indices, odd, self.orders or ())

    def _with_orders(self, kernel: Kernel, width: Floats) -> Self:
        _matern_factors(kernel, len(width))
        if self.orders is not None:
            return self
        width = np.where(width > 0, width, 1.0)
        orders = grid_orders(self.num_features, width / correlation_lengths(kernel, width))
        return replace(self, num_features=len(orders), orders=orders)

    def _chosen_orders(self) -> Indices:
        if self.orders is None:
            raise self.unplaced()
        return np.array(self.orders)


class VariationalFourierSeries(SeriesFeatures):
    """Variational Fourier features whose window is one period of a lattice.

    They are features of the kernel itself, not of the wrapped prior, inside of that window; outside
    of it the series repeat, and mean nothing.
    """

    lattice: FrequencyLattice = eqx.field(static=True)
    indices: Indices
    odd: NDArray[np.bool_]
    orders: Orders = eqx.field(static=True)

    def coefficients(self, kernel: Kernel) -> Float[AnyArray, "m s"]:
        """Return the whitened coefficients of cosines and sines."""
        orders = np.array(self.orders)
        tables = []
        for d, factor in enumerate(_matern_factors(kernel, orders.shape[1])):
            cosines, sines = _orders_to_counts(orders[:, d])
            spacing = jnp.asarray(self.lattice.spacing[d])
            waves = jnp.eye(cosines), jnp.eye(cosines, sines, k=-1)
            tables.append(whitened(factor, spacing, *waves).T)
        return product_series(tables, orders)


def _orders_to_counts(orders: Indices) -> tuple[int, int]:
    """Return how many cosines (the constant among them) and sines a column's orders ask for."""
    highest = int(orders.max())
    return (highest + 1) // 2 + 1, highest // 2


def _matern_factors(kernel: Kernel, num_dims: int) -> list[HalfIntegerMatern]:
    """Return the Matérn kernel of each column, or raise `FeatureError`."""
    found: dict[int, HalfIntegerMatern] = {}
    parts = components(kernel, num_dims)
    whole = parts[0][1] if len(parts) == 1 and len(parts[0][0]) == num_dims else kernel
    factors = whole.factors if isinstance(whole, Product) else (whole,)
    for factor in factors:
        dims, inner = (factor.dims, factor.kernel) if isinstance(factor, On) else ((0,), factor)
        if len(dims) == 1 and isinstance(inner, HalfIntegerMatern):
            found[dims[0]] = inner
    if len(found) != num_dims or len(factors) != num_dims:
        names = " * ".join(
            type(part.kernel if isinstance(part, On) else part).__name__ for part in factors
        )
        raise FeatureError(
            "VariationalFourier takes Matern12, Matern32 or Matern52 on one column, or a product "
            f"like Matern32().on(0) * Matern32().on(1), got {names} on {num_dims} columns: use "
            "Trig for other kernels."
        )
    return [found[d] for d in range(num_dims)]


def _best_window(kernel: HalfIntegerMatern, count: int, width: float) -> float:
    """Return the width of the window that explains most of one column's variance."""
    length = float(np.reshape(kernel.lengthscale, ()))
    points = sample_box(np.array([-width / 2]), np.array([width / 2]))[:, 0]
    features = VariationalFourier(count, orders=tuple((order,) for order in range(count)))

    def unexplained(margin: float) -> float:
        half = np.asarray((width + margin * length) / 2)
        window = replace(features, lower=-half, upper=half)
        return -float(_mean_square(window, kernel, points))

    return width + best_margin(unexplained) * length


@in_double
@eqx.filter_jit
def _mean_square(features: VariationalFourier, kernel: Kernel, points: Floats) -> Scalar:
    return jnp.mean(jnp.sum(features.phi(kernel, jnp.asarray(points)[:, None]) ** 2, axis=1))
