"""Bases of a band of frequencies: cosines and sines, cells, and orthogonal polynomials."""

from __future__ import annotations

from typing import Any, Self, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy

from orthogp.errors import FeatureError
from orthogp.features.base import (
    Floats,
    check_scale,
    gauss_panels,
    jacobi_recurrence,
    log_jacobi_mass,
)
from orthogp.features.spectral import SpectralFeatures
from orthogp.precision import AnyArray, functions_for
from orthogp.statistics import FrequencyLattice

# The band that is worth covering by cells, in units of one over the correlation length.
_BAND = 5.0
# Weight exponents of the kinds without parameters, (1 − u²)^e.
_EXPONENTS = {"legendre": 0.0, "chebyshev": -0.5, "chebyshev2": 0.5}
# Which parameters the other kinds need, and which they may have.
_NEEDED = {"gegenbauer": ("alpha",), "jacobi": ("alpha", "beta"), "laguerre": ()}
_ALLOWED = {**_NEEDED, "laguerre": ("alpha",)}
_KINDS = (*_EXPONENTS, *_NEEDED)
# A function is taken to vanish where it has fallen by e^{−this} since it last oscillated.
_DECAY = 37.0


class Trig(SpectralFeatures):
    r"""Cosines and sines on the frequency interval [−a, a] (TrigVOF of the paper).

        ψ = 1/√(2a),   cos(πmω/a)/√a,   sin(πmω/a)/√a,      m = 1, 2, …

    In space these are bumps of the kernel's square root at ±πm/a: as good as inducing points on an
    even grid, for any kernel, without a K_uu. As M grows at fixed a the features give the kernel
    with the frequencies beyond a cut off.

    Parameters
    ----------
    num_features : int
    a : float or (d,), optional
        The largest frequency; chosen for the data unless given.
    """

    a: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "a"))

    known_as = ("trig",)
    traceable = True

    def basis(self, u: Floats, count: int) -> Floats:
        """Return 1/√2, cos πu, sin πu, cos 2πu, … on [−1, 1]."""
        xp, order = functions_for(u), np.arange(count)[:, None]
        phases = np.pi * ((order + 1) // 2) * u
        values = xp.where(order % 2 == 1, xp.cos(phases), xp.sin(phases))
        return xp.where(order == 0, np.sqrt(0.5), values)

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which members are sines."""
        return (order > 0) & (order % 2 == 0)


class Box(SpectralFeatures):
    r"""Indicators of equal cells of the frequency axis.

        ψ = 1[|ω| < w/2]/√w,      (1[ω ∈ cell_j] ± 1[−ω ∈ cell_j])/√(2w),      j = 1, 2, …

    with cell_j = [(j−½)w, (j+½)w]. Integrated Fourier features are their midpoint rule. The cells
    must together cover the band, and each must resolve the inputs, w·(half their width) ≲ π, so
    they converge slowly. On a lattice a cell is an odd number of its points; with one, these are
    the features of the lattice itself.

    Parameters
    ----------
    num_features : int
    width : float or (d,), optional
        The width w of a cell; chosen for the data unless given.
    """

    width: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "width"))

    known_as = ("box",)
    traceable = True
    dilation_field = "width"

    def basis(self, u: Floats, count: int) -> Floats:
        """Return 1 on |u| < ½, then 1/√2 on the cells around j and ±1/√2 around −j."""
        xp, order = functions_for(u), np.arange(count)[:, None]
        inside = xp.floor(xp.abs(u) + 0.5) == (order + 1) // 2
        height = np.where(order == 0, 1.0, np.sqrt(0.5))
        return xp.where(inside, height, 0.0) * xp.where(self.is_odd(order), xp.sign(u), 1.0)

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which members are differences of a cell and its mirror image."""
        return (order > 0) & (order % 2 == 0)

    def reach(self, count: int) -> float:
        """Return the end of the last cell."""
        return count // 2 + 0.5

    def breakpoints(self, count: int) -> Floats:
        """Return the ends of all cells."""
        return np.concatenate([[0.0], np.arange(count // 2 + 1) + 0.5])

    def guess(self, counts: NDArray[np.int64], width: Floats, length: Floats) -> Floats:
        """Return cells that cover the band, or as narrow ones as the inputs ask for."""
        return np.minimum(_BAND / length / (counts // 2 + 0.5), 2 * np.pi / width)

    def _fit_on(self, lattice: FrequencyLattice | None) -> Self:
        """Return a copy whose cells hold an odd number of the lattice's points each."""
        if lattice is None or self.dilation is None or self.orders is None:
            return self
        num_cells = (np.max(np.array(self.orders), axis=0) + 1) // 2 * 2 + 1
        most = np.maximum((2 * lattice.extent + 1) // num_cells, 1)
        points = np.clip(self.dilation / lattice.spacing, 1, most - 1 + most % 2)
        return self.dilated((2 * np.round((points - 1) / 2) + 1) * lattice.spacing)


class Polynomial(SpectralFeatures):
    r"""Orthogonal polynomials times the root of their weight, on the band [−a, a].

        ψ_m(ω) = p_m(ω/a) √(w(ω/a)/a),      ∫ p_m p_m' w du = δ_mm'

    ============  ==================================================================
    kind          weight w on −1 ≤ u ≤ 1
    ============  ==================================================================
    legendre      1
    chebyshev     (1 − u²)^{−1/2}, the first kind
    chebyshev2    (1 − u²)^{1/2}, the second kind
    gegenbauer    (1 − u²)^{α−1/2}, α > −1/2
    jacobi        (1 − v)^α (1 + v)^β with v = 2|u| − 1, α, β > −1; see below
    laguerre      v^α e^{−v} with v = |u| over the whole line, α > −1 (0 unless given)
    ============  ==================================================================

    Real features need even and odd members. Weights that are even in u have them: the members of
    even and odd order. The last two kinds are polynomials of the half line instead, orthonormal
    in v, each mirrored to an even and an odd member, orders 2j and 2j+1:

        ψ(ω) = p_j(v) √(w/c),   sign(ω) p_j(v) √(w/c),      c = a for jacobi, 2a for laguerre

    The exponent α of `jacobi` is that at the edge of the band; β, and α of `laguerre`, are those
    at frequency zero, which a lattice leaves out unless they vanish. The Jacobi weight of the whole
    band is `gegenbauer`. On [−a, a] the features give, as M grows, the kernel with the frequencies
    beyond a cut off; with `laguerre` they give the kernel itself.

    Parameters
    ----------
    num_features : int
    kind : str
    a : float or (d,), optional
        The largest frequency, or the scale of frequency for `laguerre`; chosen for the data unless
        given.
    alpha, beta : float, optional
        Of the weight, for the kinds that have them.
    """

    kind: str = eqx.field(default="legendre", static=True)
    a: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "a"))
    alpha: float | None = eqx.field(default=None, static=True, kw_only=True)
    beta: float | None = eqx.field(default=None, static=True, kw_only=True)

    known_as = ("legendre", "chebyshev")

    @classmethod
    def named(cls, name: str, num_features: int) -> Self:
        """Return polynomials of the kind that is named."""
        return cls(num_features, name)

    def __check_init__(self) -> None:
        if self.kind not in _KINDS:
            raise FeatureError(
                f"kind must be one of {', '.join(map(repr, _KINDS))}, got {self.kind!r}."
            )
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            needed = name in _NEEDED.get(self.kind, ())
            if value is None and needed:
                raise FeatureError(f"kind={self.kind!r} needs {name}.")
            if value is not None and name not in _ALLOWED.get(self.kind, ()):
                raise FeatureError(f"kind={self.kind!r} takes no {name}, got {value!r}.")
            least = -0.5 if self.kind == "gegenbauer" else -1.0
            if value is not None and not (_is_number(value) and least < value < np.inf):
                raise FeatureError(
                    f"{name} must be a number > {least:g} for kind={self.kind!r}, got {value!r}."
                )

    # Of the instance, where other families have it of the class.
    @property
    def compact(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the basis lives on [−1, 1]: all kinds but `laguerre`."""
        return self.kind != "laguerre"

    def basis(self, u: Floats, count: int) -> Floats:
        """Return p_m √w at u, zero where the weight is infinite."""
        if not self._mirrored:
            return self._half_basis(u, count)
        values = np.repeat(self._half_basis(np.abs(u), (count + 1) // 2), 2, axis=0)[:count]
        values[1::2] *= np.sign(u)
        return values

    def _half_basis(self, u: Floats, count: int) -> Floats:
        """Return the polynomials before they are mirrored, if they are."""
        at_edge, at_zero = self._exponents
        if self.kind == "laguerre":
            log_weight = xlogy(at_zero, u) - u - gammaln(at_zero + 1) - np.log(2)
            return _recurse(u, log_weight, *_laguerre_recurrence(count + 1, at_zero))
        # Rounding may have put the ends of the interval outside of it.
        below = np.maximum(1 - u, 0.0)
        if self.kind == "jacobi":
            v, below, above, other = 2 * u - 1, 2 * below, 2 * u, at_zero
        else:
            v, above, other = u, np.maximum(1 + u, 0.0), at_edge
        log_weight = xlogy(at_edge, below) + xlogy(other, above) - log_jacobi_mass(at_edge, other)
        return _recurse(v, log_weight, *jacobi_recurrence(count + 1, at_edge, other))

    def from_uniform(
        self, v: Float[AnyArray, "..."], count: int
    ) -> tuple[Float[AnyArray, "..."], Float[AnyArray, "..."]]:
        """Return u and du/dv, denser at the edges of the band where the weight is infinite."""
        if self.even_samples:
            return super().from_uniform(v, count)
        return -jnp.cos(np.pi * v), np.pi * jnp.sin(np.pi * v)

    @property
    def even_samples(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether samples are even over the band: where the weight is finite at its edges."""
        return self._exponents[0] >= 0

    def reach(self, count: int) -> float:
        """Return 1, or for `laguerre` where the last member has decayed."""
        return 1.0 if self.compact else _laguerre_reach((count - 1) // 2, self._exponents[1])

    def guess(self, counts: NDArray[np.int64], width: Floats, length: Floats) -> Floats:
        """Return an a to start the choice from, (d,)."""
        if self.kind == "laguerre":
            # The scale of the lowest frequencies, seen to be best for all counts and lengths.
            return 1.2 / width
        return 0.65 * super().guess(counts, width, length)

    def quadrature(self, count: int, size: int) -> tuple[Floats, Floats]:
        """Return a rule that knows how √w behaves at the ends."""
        at_edge, at_zero = self._exponents
        return gauss_panels(0.0, self.reach(count), size, at_zero / 2, at_edge / 2)

    @property
    def _mirrored(self) -> bool:
        return self.kind in ("jacobi", "laguerre")

    @property
    def _exponents(self) -> tuple[float, float]:
        """The exponents of the weight where |u| = 1 and where u = 0."""
        alpha, beta = float(self.alpha or 0.0), float(self.beta or 0.0)
        if self.kind == "gegenbauer":
            return alpha - 0.5, 0.0
        if self.kind == "laguerre":
            return 0.0, alpha
        return (alpha, beta) if self.kind == "jacobi" else (_EXPONENTS[self.kind], 0.0)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _recurse(v: Floats, log_weight: Floats, diagonal: Floats, off_diagonal: Floats) -> Floats:
    r"""Return p_n √w for n < len(diagonal) − 1, w being scaled to mass one.

        v p_n = b_{n+1} p_{n+1} + d_n p_n + b_n p_{n−1},      p_0 = 1

    A weight may underflow where later members do not, and their polynomials may overflow there:
    every node carries its own power of two.
    """
    log_root = np.where(log_weight < np.inf, log_weight / 2, -np.inf)
    values = np.empty((len(diagonal) - 1, len(v)))
    previous, current = np.zeros(len(v)), np.ones(len(v))
    power = np.zeros(len(v), dtype=np.int64)
    for n in range(len(values)):
        values[n] = current * np.exp(log_root + np.log(2) * power)
        following = (v - diagonal[n]) * current - off_diagonal[n] * previous
        previous, current = current, following / off_diagonal[n + 1]
        shift = np.frexp(np.maximum(np.abs(previous), np.abs(current)))[1]
        previous, current = np.ldexp(previous, -shift), np.ldexp(current, -shift)
        power += shift
    return values


def _laguerre_recurrence(size: int, alpha: float) -> tuple[Floats, Floats]:
    """Return d_n and b_n of the normalised L_n^{(α)}, whose leading signs alternate."""
    n = np.arange(size, dtype=np.float64)
    return 2 * n + alpha + 1, -np.sqrt(n * (n + alpha))


def _laguerre_reach(order: int, alpha: float) -> float:
    """Return where L_n^{(α)}(v) v^{α/2} e^{−v/2} has decayed to rounding.

    Beyond its last turning point, at most q = 4n + 2α + 2, it falls at least as fast as

        exp(−½ ∫_q^v √(1 − q/s) ds) = exp(−½ √(v(v−q)) + ½ q arcosh √(v/q))
    """
    q = 4 * order + 2 * alpha + 2

    def excess(v: float) -> float:
        return 0.5 * np.sqrt(v * (v - q)) - 0.5 * q * np.arccosh(np.sqrt(v / q)) - _DECAY

    return cast(float, brentq(excess, q, 2 * q + 8 * _DECAY))
