r"""Hermite functions in frequency: Hermite features, and eigenfunctions of the RBF kernel.

Both, and the Hermite functions themselves, are one family with h_m = H_m/√(2^m m!), an amplitude A
and a ratio |ρ| ≤ 1:

    φ_m = A e^{−E} ρ^{m/2} h_m(α/√ρ)
    φ_0 = A e^{−E},      φ_{m+1} = √(2/(m+1)) α φ_m − √(m/(m+1)) ρ φ_{m−1}

The recurrence holds the Gaussian factor from the start, so that nothing overflows, and needs no
root of ρ, which may be zero or negative. The derivatives are members again,

    ∂φ_m/∂α = √(2m) φ_{m−1},      ∂φ_m/∂ρ = −½ √(m(m−1)) φ_{m−2}

(the second because ∂/∂ρ = −¼ ∂²/∂α² on the generating function e^{2αt − ρt²}), so that learning
never differentiates through the recurrence.
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
from orthogp.features.base import (
    Floats,
    as_rows,
    check_scale,
    prior_variance,
    sample_box,
    simplex_orders,
)
from orthogp.features.spectral import SpectralFeatures
from orthogp.kernels import RBF, Kernel, components
from orthogp.kernels.base import Scalar
from orthogp.precision import AnyArray
from orthogp.statistics import FrequencyLattice

Points = Float[AnyArray, " n"]

#: The most members of one column. Where φ_0 underflows (E > 708) the recurrence gives zeros. There,
#: by Mehler's formula, φ_m² ≤ A² s^{−m} e^{−2E(1−s)/(1+ρs)}/√(1−s²) for all 0 < s < 1; the best s
#: says |φ_m| < 1e-30 A for m < 512. From m ≈ 590 on, what is lost would exceed rounding.
MOST_MEMBERS = 512

# The steps of the recurrence that are compiled together.
_UNROLL = 8
# The rows that fit into the cache together.
_ROWS_PER_BLOCK = 1024
# The standard deviation of inputs that fill a box, relative to its width.
_INPUT_SD = 0.25
# The factors around it that are tried for RBF kernels, near ones first, before the best is refined.
_FACTORS = np.array(sorted(np.geomspace(1 / 64, 16.0, 16), key=lambda factor: abs(np.log(factor))))
# How often the best factor is refined.
_REFINEMENTS = 7
# The share of k(0) that no placement needs to explain better.
_NEGLIGIBLE = 1e-14
# The lengthscales within which the RBF kernel falls by half.
_HALF_LIFE = float(np.sqrt(2 * np.log(2)))


class Terms(NamedTuple):
    """What the recurrence runs on, for points x_n of one column."""

    amplitude: Scalar
    exponent: Points
    alpha: Points
    rho: Scalar


def members(terms: Terms, count: int) -> Floats:
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

    def step(pair, factors):
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


def _backward(count: int, residuals: tuple[jax.Array, Terms], cotangent: jax.Array) -> tuple[Terms]:
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


class HermiteFunctions(SpectralFeatures):
    r"""Features whose basis in frequency are Hermite functions, in closed form for RBF kernels.

        ψ_m(ω) = (−1)^{⌊m/2⌋} √r π^{−1/4} h_m(rω) e^{−r²ω²/2},      h_m = H_m/√(2^m m!)

    The signs are those of i^m in the Fourier transform: with them φ_m is a positive multiple of
    h_m in space. Subclasses say what fixes r.
    """

    compact: ClassVar[bool] = False
    total_order: ClassVar[bool] = True
    #: The field that says how long the functions are: r, or the standard deviation of the inputs.
    length_field: ClassVar[str]

    @abstractmethod
    def for_inputs(self, input_sd: Floats, lengthscale: Floats) -> Self:
        """Return a copy made for N(centre, input_sd²) inputs and an RBF kernel, both (d,)."""

    @staticmethod
    @abstractmethod
    def terms(variance: Scalar, lengthscale: Scalar, length: Scalar, x: Points) -> Terms:
        """Return the closed form for an RBF kernel along one column, x relative to the centre."""

    def basis(self, u: Floats, count: int) -> Floats:
        """Return the Hermite functions (−1)^{⌊m/2⌋} π^{−1/4} h_m(u) e^{−u²/2}."""
        return _signs(count) * members(_hermite_terms(u), count).T

    def traced_basis(self, u: Float[AnyArray, " t"], count: int) -> Float[AnyArray, "m t"]:
        """Return `basis` as a JAX array."""
        return _signs(count) * jnp.transpose(traced_members(_hermite_terms(u), count))

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

    def _sum_nodes(self, kernel: Kernel, X: Floats, size: int) -> Floats:
        """Return φ in closed form, or with `size` nodes for each half line, (n, m)."""
        rbf = as_rbf(kernel, X.shape[1])
        if rbf is None:
            return super()._sum_nodes(kernel, X, size)
        return self._closed_form(rbf, X, members)

    def _closed_form(self, rbf: RBF, X: Any, evaluate: Callable[[Terms, int], Any]) -> Any:
        lengthscale, length = rbf.lengthscale, getattr(self, self.length_field)
        Phi = 1.0
        for d, order in enumerate(np.array(self.orders).T):
            terms = self.terms(
                # The variance belongs to the product: the first column carries it.
                rbf.variance if d == 0 else np.ones(()),
                lengthscale[d] if lengthscale.ndim else lengthscale,
                length[d] if length.ndim else length,
                X[:, d] - self.centre[d],
            )
            table = evaluate(terms, int(order.max()) + 1)
            in_order = np.array_equal(order, np.arange(len(order)))
            Phi = Phi * (table if in_order else table[:, order])
        return Phi

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
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
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return placed features placed again for another kernel, with the same products."""
        rbf = as_rbf(kernel, len(lower))
        if rbf is None or not self.chosen:
            return super().adjusted(kernel, lower, upper, lattice)
        return self._best_inputs(rbf, lower, upper, lattice)

    def _best_inputs(
        self, rbf: RBF, lower: Floats, upper: Floats, lattice: FrequencyLattice | None
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

    def _by_eigenvalue(self, lengthscale: Floats, lattice: FrequencyLattice | None) -> Self:
        """Return a copy with the products of the largest ∏_d |ρ_d|^{m_d}, ρ = q/p."""
        # −log |ρ| = 2 artanh(min(t, 1/t)), t = ℓ²/(2r²); at t = 1 all orders but the first vanish.
        t = np.asarray(self.dilation) ** 2 * lengthscale**2 / 2
        decay = 2 * np.arctanh(np.minimum(np.minimum(t, 1 / t), 1 - 1e-12))
        most = np.inf if lattice is None else 2 * lattice.extent + 1
        orders = simplex_orders(self.num_features, 1 / decay, most)
        return replace(self, num_features=len(orders), orders=orders)

    # ------------------------------------------------------------------ learning the length

    def free_parameters(self) -> Floats:
        """Return the logarithm of the length if it is learned with the kernel, (d,) or (0,)."""
        length = getattr(self, self.length_field)
        return np.log(np.atleast_1d(length)) if self.learn else np.empty(0)

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with another length; the inverse of `free_parameters`."""
        if not self.learn:
            return self
        # In double precision outside of JAX's functions.
        length = np.exp(vector) if isinstance(vector, np.ndarray) else jnp.exp(vector)
        return eqx.tree_at(lambda features: getattr(features, self.length_field), self, length)


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

    known_as = ("hermite",)
    length_field = "r"

    @property
    def dilation(self) -> Floats | None:
        """1/r."""
        return None if self.r is None else 1 / self.r

    def dilated(self, dilation: Floats) -> Self:
        """Return a copy with another r."""
        return replace(self, r=1 / dilation)

    def guess(self, counts: NDArray[np.int64], width: Floats, length: Floats) -> Floats:
        """Return 1/r for an RBF kernel that falls as far, and inputs that fill the box."""
        return 1 / r_of_inputs(_INPUT_SD * width, length / _HALF_LIFE)

    def for_inputs(self, input_sd: Floats, lengthscale: Floats) -> Self:
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

    @staticmethod
    def terms(variance: Scalar, lengthscale: Scalar, length: Scalar, x: Points) -> Terms:
        """Return the terms of an RBF kernel, p = r² + ℓ²/2, q = r² − ℓ²/2.

        A = 2^{1/4} √(v r ℓ/p),   E = x²/(2p),   α = r x/p,   ρ = q/p
        """
        r = length
        p, q = r**2 + lengthscale**2 / 2, r**2 - lengthscale**2 / 2
        amplitude = (2**0.5 * variance * r * lengthscale / p) ** 0.5
        return Terms(amplitude, x**2 / (2 * p), r * x / p, q / p)

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m); a given r must suit an RBF kernel (see `check`)."""
        self.check(kernel, as_rows(X).shape[1])
        return super().evaluate(kernel, X)


class Eigenfunction(HermiteFunctions):
    r"""Eigenfunctions of the RBF kernel, each times the root of its eigenvalue.

        ∫ k(x, x') e_m(x') N(x'; x₀, σ²) dx' = λ_m e_m(x),      φ_m = √λ_m e_m

    With a = 1/(4σ²), b = 1/(2ℓ²), c = √(a² + 2ab), and h_m = H_m/√(2^m m!) (Rasmussen and Williams
    2006, section 4.3.1):

        λ_m = v √(2a/(a+b+c)) (b/(a+b+c))^m
        e_m(x) = (c/a)^{1/4} e^{−(c−a)(x−x₀)²} h_m(√(2c) (x−x₀))

    Products over the columns are taken in the order of their eigenvalues. If the inputs are drawn
    from that distribution the posterior of these features factorises as their number grows, which
    is what mean-field inference wants (section 3.3 of the paper).

    They are `Hermite` features with 4r⁴ = 4ℓ²σ² + ℓ⁴. In frequency it is r that defines them: on a
    lattice it stays at the value for the kernel of `placed`, while `evaluate` follows the
    lengthscale of the kernel it is given.

    Parameters
    ----------
    num_features : int
        At most 512 in one column.
    input_sd : float or (d,), optional
        σ, the standard deviation of the inputs; chosen for the data unless given.
    lengthscale : (d,)
        Of the kernel the features are placed for; set by `placed`.
    """

    input_sd: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "input_sd"))
    lengthscale: Any = eqx.field(default=None, kw_only=True)

    known_as = ("eigenfunction",)
    length_field = "input_sd"

    @property
    def dilation(self) -> Floats | None:
        """1/r, known once there is a kernel."""
        if self.input_sd is None or self.lengthscale is None:
            return None
        return 1 / r_of_inputs(self.input_sd, self.lengthscale)

    def dilated(self, dilation: Floats) -> Self:
        """Return a copy with the input_sd that belongs to another r."""
        if np.array_equal(dilation, np.asarray(self.dilation)):
            # Placing asks for what is given; where σ is much smaller than ℓ it would be rounded.
            return self
        variance = (4 * dilation**-4 - self.lengthscale**4) / (4 * self.lengthscale**2)
        if np.any(variance <= 0):
            raise FeatureError(
                f"Eigenfunction needs 2r² > ℓ², got r = {1 / dilation} for lengthscale "
                f"{self.lengthscale}: use Hermite, which takes every r."
            )
        return replace(self, input_sd=np.sqrt(variance))

    def for_inputs(self, input_sd: Floats, lengthscale: Floats) -> Self:
        """Return a copy with that input_sd, placed for that lengthscale."""
        return replace(self, input_sd=input_sd, lengthscale=lengthscale)

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Raise `FeatureError` unless the kernel is RBF."""
        _require_rbf(kernel, num_dims)

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with centre, products and input_sd chosen, for that kernel."""
        rbf = _require_rbf(kernel, len(lower))
        features = self
        if self.input_sd is not None:
            input_sd = np.broadcast_to(self.input_sd, (len(lower),))
            features = self.for_inputs(input_sd, lengthscales(rbf, len(lower)))
        return super(Eigenfunction, features).placed(kernel, lower, upper, lattice)

    @staticmethod
    def terms(variance: Scalar, lengthscale: Scalar, length: Scalar, x: Points) -> Terms:
        """Return the terms of √λ_m e_m, so that A² = λ_0 √(c/a), E = (c−a)x², ρ = λ_1/λ_0."""
        a, b, c = _abc(lengthscale, length**2)
        ratio = b / (a + b + c)
        amplitude = (variance * (2 * c / (a + b + c)) ** 0.5) ** 0.5
        # c − a, without cancellation where σ is much smaller than ℓ.
        decay = 2 * a * b / (a + c)
        return Terms(amplitude, decay * x**2, (2 * c * ratio) ** 0.5 * x, ratio)

    def eigenvalues(self, kernel: Kernel) -> Floats:
        """Return λ_m of the (placed) features, (m,)."""
        orders = np.array(self.orders)
        rbf = _require_rbf(kernel, orders.shape[1])
        a, b, c = _abc(np.asarray(rbf.lengthscale), np.asarray(self.input_sd) ** 2)
        factors = np.sqrt(2 * a / (a + b + c)) * (b / (a + b + c)) ** orders
        return float(rbf.variance) * np.prod(factors, axis=1)


def _abc(lengthscale: Any, input_variance: Any) -> tuple[Any, Any, Any]:
    a, b = 1 / (4 * input_variance), 1 / (2 * lengthscale**2)
    return a, b, (a * (a + 2 * b)) ** 0.5


def _require_rbf(kernel: Kernel, num_dims: int) -> RBF:
    rbf = as_rbf(kernel, num_dims)
    if rbf is None:
        raise FeatureError(
            "Eigenfunction needs the RBF kernel, whose eigenfunctions are known, got "
            f"{type(kernel).__name__}: use Hermite, which serves every kernel."
        )
    return rbf


def _signs(count: int) -> Floats:
    return np.where(np.arange(count) % 4 < 2, 1.0, -1.0)[:, None]


def _hermite_terms(u: Any) -> Terms:
    return Terms(np.asarray(np.pi**-0.25), u**2 / 2, u, np.ones(()))


def r_of_inputs(input_sd: Floats, lengthscale: Floats) -> Floats:
    """Return the r whose features are the RBF kernel's eigenfunctions: r⁴ = ℓ²σ² + ℓ⁴/4."""
    return (lengthscale**2 * (input_sd**2 + lengthscale**2 / 4)) ** 0.25


def as_rbf(kernel: Kernel, num_dims: int) -> RBF | None:
    """Return the RBF kernel that a kernel is on all columns, or `None`."""
    parts = components(kernel, num_dims)
    dims, component = parts[0]
    whole = len(parts) == 1 and dims == tuple(range(num_dims))
    return component if whole and isinstance(component, RBF) else None


def lengthscales(rbf: RBF, num_dims: int) -> Floats:
    """Return one lengthscale per column."""
    return np.broadcast_to(np.asarray(rbf.lengthscale), (num_dims,))
