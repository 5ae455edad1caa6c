r"""Hermite features: scaled Hermite functions in frequency.

Hermite features, eigenfunctions of the RBF kernel and the Hermite functions themselves are one
family, with h_m = H_m/√(2^m m!), an amplitude A and a ratio |ρ| ≤ 1:

    φ_m = A e^{−E} ρ^{m/2} h_m(α/√ρ)
    φ_0 = A e^{−E},      φ_{m+1} = √(2/(m+1)) α φ_m − √(m/(m+1)) ρ φ_{m−1}

The recurrence holds the Gaussian factor from the start, so that nothing overflows, and needs no
root of ρ, which may be zero or negative. The derivatives are members again,

    ∂φ_m/∂α = √(2m) φ_{m−1},      ∂φ_m/∂ρ = −½ √(m(m−1)) φ_{m−2}

(the second because ∂/∂ρ = −¼ ∂²/∂α² on the generating function e^{2αt − ρt²}), so that learning
never differentiates through the recurrence.

Hermite features: Hermite functions in frequency, in closed form for the RBF kernel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import as_rows, check_scale, prior_variance
from orthogp.features.placement import sample_box, simplex_orders
from orthogp.features.spectral import SpectralFeatures
from orthogp.kernels import RBF, Kernel, components
from orthogp.precision import AnyArray
from orthogp.statistics import FrequencyLattice

#: The most members of one column. Where φ_0 underflows (E > 708) the recurrence gives zeros. There,
#: by Mehler's formula, φ_m² ≤ A² s^{−m} e^{−2E(1−s)/(1+ρs)}/√(1−s²) for all 0 < s < 1; the best s
#: says |φ_m| < 1e-30 A for m < 512. From m ≈ 590 on, what is lost would exceed rounding.
MOST_MEMBERS = 512

# Steps of the recurrence that are compiled together, and rows that fit into the cache together.
_UNROLL, _ROWS_PER_BLOCK = 8, 1024


class Terms(NamedTuple):
    """What the recurrence runs on, for points x_n of one column."""

    amplitude: Float[AnyArray, ""]
    exponent: Float[AnyArray, " n"]
    alpha: Float[AnyArray, " n"]
    rho: Float[AnyArray, ""]


def members(terms: Terms, count: int) -> NDArray[np.float64]:
    """Return φ_m(x_n) for m < `count`, (n, count)."""
    _check_members(count)
    # The last row stands in for φ_{−1} = 0.
    values = np.zeros((count + 1, len(terms.exponent)))
    values[0] = terms.amplitude * np.exp(-terms.exponent)
    for m in range(count - 1):
        values[m + 1] = np.sqrt(2 / (m + 1)) * terms.alpha * values[m]
        values[m + 1] -= np.sqrt(m / (m + 1)) * terms.rho * values[m - 1]
    return values[:count].T


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def traced_members(terms: Terms, count: int) -> Float[jax.Array, "n m"]:
    """Return `members` as a JAX array, to be differentiated in reverse mode."""
    return _recur(terms, count)


def _recur(terms: Terms, count: int) -> Float[jax.Array, "n m"]:
    _check_members(count)
    m = np.arange(count)
    first = jnp.asarray(terms.amplitude * jnp.exp(-terms.exponent))

    def step(
        pair: tuple[jax.Array, jax.Array], factors: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        before, last = pair
        forward, back = factors
        return (last, forward * terms.alpha * last - back * terms.rho * before), last

    # Whole columns at a time: no slower than blocks of rows within the cache, and simpler.
    factors = (jnp.asarray(np.sqrt(2 / (m + 1))), jnp.asarray(np.sqrt(m / (m + 1))))
    _, values = jax.lax.scan(step, (jnp.zeros_like(first), first), factors, unroll=_UNROLL)
    return values.T


def _forward(terms: Terms, count: int) -> tuple[jax.Array, tuple[jax.Array, Terms]]:
    Phi = _recur(terms, count)
    return Phi, (Phi, terms)


def _backward(
    count: int, residuals: tuple[jax.Array, Terms], cotangent: Float[jax.Array, "n m"]
) -> tuple[Terms]:
    Phi, terms = residuals
    m = np.arange(count)
    by_alpha = jnp.asarray(np.sqrt(2.0 * m[1:]))
    by_rho = jnp.asarray(-0.5 * np.sqrt(m[2:] * (m[2:] - 1.0)))

    def contract(row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        phi, weights = row
        return (
            jnp.sum(weights * phi),
            jnp.sum(weights[1:] * by_alpha * phi[:-1]),
            jnp.sum(weights[2:] * by_rho * phi[:-2]),
        )

    # In blocks, because shifted products of whole arrays are several times slower.
    whole, alpha, rho = jax.lax.map(contract, (Phi, cotangent), batch_size=_ROWS_PER_BLOCK)
    return (Terms(jnp.sum(whole) / terms.amplitude, -whole, alpha, jnp.sum(rho)),)


traced_members.defvjp(_forward, _backward)


def _check_members(count: int) -> None:
    if count > MOST_MEMBERS:
        raise FeatureError(
            f"Hermite functions are computed up to {MOST_MEMBERS} per column, got {count}, whose "
            "last ones double precision does not hold: use fewer features, or Trig."
        )


# The standard deviation of inputs that fill a box, relative to its width, and the factors around it
# that are tried for RBF kernels, near ones first; then refined.
_INPUT_SD = 0.25
_FACTORS = np.array(sorted(np.geomspace(1 / 64, 16.0, 16), key=lambda factor: abs(np.log(factor))))
_REFINEMENTS = 7
# Shares of k(0) that no placement needs to explain better.
_NEGLIGIBLE = 1e-14
# The RBF kernel falls by half within this many lengthscales.
_HALF_LIFE = float(np.sqrt(2 * np.log(2)))


class HermiteFunctions(SpectralFeatures):
    r"""Features whose basis in frequency are Hermite functions, in closed form for RBF kernels.

        ψ_m(ω) = (−1)^{⌊m/2⌋} √r π^{−1/4} h_m(rω) e^{−r²ω²/2},      h_m = H_m/√(2^m m!)

    The signs are those of i^m in the Fourier transform: with them φ_m is a positive multiple of
    h_m in space. Subclasses say what fixes r.
    """

    compact: ClassVar[bool] = False
    total_order: ClassVar[bool] = True

    @abstractmethod
    def for_inputs(self, input_sd: NDArray[np.float64], lengthscale: NDArray[np.float64]) -> Self:
        """Return a copy made for N(centre, input_sd²) inputs and an RBF kernel, both (d,)."""

    @abstractmethod
    def terms(
        self,
        column: int,
        lengthscale: Float[AnyArray, ""],
        variance: Float[AnyArray, ""],
        x: Float[AnyArray, " n"],
    ) -> Terms:
        """Return the closed form for an RBF kernel along one column, x relative to the centre."""

    def basis(self, u: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Return the Hermite functions (−1)^{⌊m/2⌋} π^{−1/4} h_m(u) e^{−u²/2}."""
        return _signs(count) * members(_hermite_terms(u), count).T

    def traced_basis(self, u: Float[AnyArray, " t"], count: int) -> Float[AnyArray, "m t"]:
        """Return `basis` as a JAX array."""
        return _signs(count) * jnp.transpose(traced_members(_hermite_terms(u), count))

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which members have an odd degree."""
        return order % 2 == 1

    def reach(self, count: int) -> float:
        """Return the |u| beyond which the members' norm is below rounding."""
        return float(np.sqrt(2 * count)) + 7.0

    # ------------------------------------------------------------------ the RBF kernel

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) of an RBF kernel as JAX arrays, to be differentiated in reverse mode."""
        rbf = as_rbf(kernel, X.shape[1])
        if rbf is None:
            raise FeatureError(
                f"{type(self).__name__} has a closed form for the RBF kernel only, got {kernel!r}: "
                "Hermite(…).evaluate and .on(lattice) serve every kernel."
            )
        return self._closed_form(rbf, jnp.asarray(X), traced_members)

    def _sum_nodes(self, kernel: Kernel, X: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """Return φ in closed form, or with `size` nodes for each half line, (n, m)."""
        rbf = as_rbf(kernel, X.shape[1])
        if rbf is None:
            return super()._sum_nodes(kernel, X, size)
        return self._closed_form(rbf, X, members)

    def _closed_form(self, rbf: RBF, X: Any, evaluate: Callable[[Terms, int], Any]) -> Any:
        orders = np.array(self.orders)
        lengthscale = rbf.lengthscale
        Phi = 1.0
        for d, order in enumerate(orders.T):
            # The variance belongs to the product: the first column carries it.
            terms = self.terms(
                d,
                lengthscale[d] if lengthscale.ndim else lengthscale,
                rbf.variance if d == 0 else np.ones(()),
                X[:, d] - self.centre[d],
            )
            table = evaluate(terms, int(order.max()) + 1)
            in_order = np.array_equal(order, np.arange(len(order)))
            Phi = Phi * (table if in_order else table[:, order])
        return Phi

    def placed(
        self,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None = None,
    ) -> Self:
        """Return a copy with centre, products and r chosen for inputs within a box.

        For RBF kernels the products are those of the largest eigenvalues, and an open r is that of
        the Gaussian inputs, as wide as the box up to one common factor, with which the features
        leave out least prior variance.
        """
        rbf = as_rbf(kernel, len(lower))
        if rbf is None:
            return super().placed(kernel, lower, upper, lattice)
        lengthscale = lengthscales(rbf, len(lower))
        if self.dilation is None:
            any_sd = self.for_inputs(np.ones(len(lower)), lengthscale)
            start = super(HermiteFunctions, any_sd).placed(kernel, lower, upper, lattice)
            start = replace(start, orders=self.orders, num_features=self.num_features)
            return replace(start, chosen=True)._best_inputs(rbf, lower, upper, lattice)
        start = super().placed(kernel, lower, upper, lattice)
        return start if self.orders is not None else start._by_eigenvalue(lengthscale, lattice)

    def adjusted(
        self,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None = None,
    ) -> Self:
        """Return placed features placed again for another kernel, with the same products."""
        rbf = as_rbf(kernel, len(lower))
        if rbf is None or not self.chosen:
            return super().adjusted(kernel, lower, upper, lattice)
        return self._best_inputs(rbf, lower, upper, lattice)

    def _best_inputs(
        self,
        rbf: RBF,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None,
    ) -> Self:
        """Return the copy for the Gaussian inputs that leave out least over a box."""
        lengthscale = lengthscales(rbf, len(lower))
        width = 2 * np.maximum(np.abs(lower - self.centre), np.abs(upper - self.centre))
        input_sd = _INPUT_SD * np.where(width > 0, width, 1.0)
        points = sample_box(self.centre - width / 2, self.centre + width / 2)
        least = _NEGLIGIBLE * prior_variance(rbf)

        def at(factor: float) -> Self:
            features = self.for_inputs(factor * input_sd, lengthscale)
            return features if self.orders else features._by_eigenvalue(lengthscale, lattice)

        @cache
        def left_out(factor: float) -> float:
            return max(at(factor)._left_out(rbf, points, lattice), least)

        best = float(min(_FACTORS, key=left_out))
        step = (_FACTORS.max() / _FACTORS.min()) ** (0.5 / (len(_FACTORS) - 1))
        for _ in range(_REFINEMENTS):
            best = min((best, best / step, best * step), key=left_out)
            step = np.sqrt(step)
        return at(best)

    def _by_eigenvalue(
        self, lengthscale: NDArray[np.float64], lattice: FrequencyLattice | None
    ) -> Self:
        """Return a copy with the products of the largest ∏_d |ρ_d|^{m_d}, ρ = q/p."""
        # −log |ρ| = 2 artanh(min(t, 1/t)), t = ℓ²/(2r²); at t = 1 all orders but the first vanish.
        t = np.asarray(self.dilation) ** 2 * lengthscale**2 / 2
        decay = 2 * np.arctanh(np.minimum(np.minimum(t, 1 / t), 1 - 1e-12))
        most = np.inf if lattice is None else 2 * lattice.extent + 1
        orders = simplex_orders(self.num_features, 1 / decay, most)
        return replace(self, num_features=len(orders), orders=orders)


class Hermite(HermiteFunctions):
    r"""Hermite functions in frequency (section 3.2 of the paper).

        ψ_m(ω) = (−1)^{⌊m/2⌋} √r π^{−1/4} h_m(rω) e^{−r²ω²/2},      h_m = H_m/√(2^m m!)

    For the RBF kernel, with p = r² + ℓ²/2 and q = r² − ℓ²/2, they are

        φ_m(x) = 2^{1/4} √(v r ℓ/p) (q/p)^{m/2} e^{−x²/(2p)} h_m(r x/√(pq))

    by a recurrence that holds for all r > 0, although the roots here seem to need 2r² > ℓ². Where
    that holds they are `Eigenfunction` features; where not, they alternate with m instead of
    decaying, and a given r is refused. Other kernels are integrated numerically.

    Parameters
    ----------
    num_features : int
        At most 512 in one column.
    r : float or (d,), optional
        The unit of length of the Hermite functions; chosen for the data unless given.
    """

    r: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "r"))

    @property
    def dilation(self) -> NDArray[np.float64] | None:
        """1/r."""
        return None if self.r is None else 1 / self.r

    def dilated(self, dilation: NDArray[np.float64]) -> Self:
        """Return a copy with another r."""
        return replace(self, r=1 / dilation)

    def guess(
        self, counts: NDArray[np.int64], width: NDArray[np.float64], length: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return 1/r for an RBF kernel that falls as far, and inputs that fill the box."""
        return 1 / r_of_inputs(_INPUT_SD * width, length / _HALF_LIFE)

    def for_inputs(self, input_sd: NDArray[np.float64], lengthscale: NDArray[np.float64]) -> Self:
        """Return a copy whose features of the RBF kernel are its eigenfunctions."""
        return replace(self, r=r_of_inputs(input_sd, lengthscale))

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Refuse an r with which the features of an RBF kernel alternate instead of decaying."""
        rbf = as_rbf(kernel, num_dims)
        if rbf is not None and self.r is not None and not self.chosen:
            least = lengthscales(rbf, num_dims) / np.sqrt(2)
            if np.any(np.asarray(self.r) <= least):
                raise FeatureError(
                    f"Hermite features of an RBF kernel need 2r² > ℓ², here r > {least.max():.4g}, "
                    f"got r = {np.min(self.r):.4g}: use a larger r, or leave it open."
                )

    def terms(
        self,
        column: int,
        lengthscale: Float[AnyArray, ""],
        variance: Float[AnyArray, ""],
        x: Float[AnyArray, " n"],
    ) -> Terms:
        """Return `rbf_terms` with the column's r."""
        return rbf_terms(variance, lengthscale, self.r[column] if self.r.ndim else self.r, x)

    def evaluate(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return φ_m(x_n), (n, m); a given r must suit an RBF kernel (see `check`)."""
        self.check(kernel, as_rows(X).shape[1])
        return super().evaluate(kernel, X)

    def free_parameters(self) -> NDArray[np.float64]:
        """Return log r if it is to be learned with the kernel, (d,) or (0,)."""
        return np.log(np.atleast_1d(self.r)) if self.learn else np.empty(0)

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with another r; the inverse of `free_parameters`."""
        return eqx.tree_at(lambda own: own.r, self, exponential(vector)) if self.learn else self


def _signs(count: int) -> NDArray[np.float64]:
    return np.where(np.arange(count) % 4 < 2, 1.0, -1.0)[:, None]


def _hermite_terms(u: Any) -> Terms:
    return Terms(np.asarray(np.pi**-0.25), u**2 / 2, u, np.ones(()))


def hermite_rbf_features(
    variance: Float[AnyArray, ""],
    lengthscale: Float[AnyArray, ""],
    r: Float[AnyArray, ""],
    x: Float[AnyArray, " n"],
    count: int,
) -> Float[AnyArray, "n m"]:
    """Return the first `count` Hermite features of an RBF kernel in one column, as JAX arrays."""
    return traced_members(rbf_terms(variance, lengthscale, r, jnp.asarray(x)), count)


def rbf_terms(
    variance: Float[AnyArray, ""],
    lengthscale: Float[AnyArray, ""],
    r: Float[AnyArray, ""],
    x: Float[AnyArray, " n"],
) -> Terms:
    """Return the terms of the Hermite features of an RBF kernel, p = r² + ℓ²/2, q = r² − ℓ²/2.

    A = 2^{1/4} √(v r ℓ/p),   E = x²/(2p),   α = r x/p,   ρ = q/p
    """
    p, q = r**2 + lengthscale**2 / 2, r**2 - lengthscale**2 / 2
    amplitude = (2**0.5 * variance * r * lengthscale / p) ** 0.5
    return Terms(amplitude, x**2 / (2 * p), r * x / p, q / p)


def r_of_inputs(
    input_sd: NDArray[np.float64], lengthscale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the r whose features are the RBF kernel's eigenfunctions: r⁴ = ℓ²σ² + ℓ⁴/4."""
    return (lengthscale**2 * (input_sd**2 + lengthscale**2 / 4)) ** 0.25


def as_rbf(kernel: Kernel, num_dims: int) -> RBF | None:
    """Return the RBF kernel that a kernel is on all columns, or `None`."""
    parts = components(kernel, num_dims)
    dims, own = parts[0]
    whole = len(parts) == 1 and dims == tuple(range(num_dims))
    return own if whole and isinstance(own, RBF) else None


def lengthscales(rbf: RBF, num_dims: int) -> NDArray[np.float64]:
    """Return one lengthscale per column."""
    return np.broadcast_to(np.asarray(rbf.lengthscale), (num_dims,))


def exponential(vector: Float[AnyArray, " q"]) -> Float[AnyArray, " q"]:
    """Return e^v, in double precision outside of JAX's own functions."""
    return np.exp(vector) if isinstance(vector, np.ndarray) else jnp.exp(vector)
