"""The spectral families' ψ by textbook formulas, and a rule to integrate them with.

In terms of u = ω/c with the dilation c; members are orthonormal under ∫ du.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import (
    eval_chebyt,
    eval_chebyu,
    eval_gegenbauer,
    eval_genlaguerre,
    eval_jacobi,
    eval_legendre,
    gamma,
)

from orthogp.features.bands import Box, Polynomial, Trig
from orthogp.features.series import MassSeries
from orthogp.features.spectral import SpectralFeatures
from tests.oracles import Array

#: The member of some order at u, for |u| = 1 − rest where the basis ends at 1.
Member = Callable[[int, Array, Array], Array]


class Basis(NamedTuple):
    """A family, its members by textbook formulas, and where they are not smooth."""

    name: str
    make: Callable[..., SpectralFeatures]
    member: Member
    #: Which of the first orders are odd.
    odd: Callable[[int], bool]
    #: From zero to where the first nine members have vanished.
    edges: tuple[float, ...]
    dilation: float

    def placed_alike(self, num_features: int, **changes: object) -> SpectralFeatures:
        """The family with the dilation given above."""
        return self.make(num_features, **changes).dilated(np.asarray(self.dilation))


def trig(m: int, u: Array, rest: Array) -> Array:
    if m == 0:
        return np.full_like(u, 1 / math.sqrt(2))
    return np.cos(np.pi * (m + 1) / 2 * u) if m % 2 else np.sin(np.pi * m / 2 * u)


def box(m: int, u: Array, rest: Array) -> Array:
    if m == 0:
        return np.where(np.abs(u) < 0.5, 1.0, 0.0)
    cell = (m + 1) // 2
    inside = ((cell - 0.5 < u) & (u < cell + 0.5)).astype(float)
    mirrored = ((cell - 0.5 < -u) & (-u < cell + 0.5)).astype(float)
    return (inside + mirrored if m % 2 else inside - mirrored) / math.sqrt(2)


def gegenbauer(alpha: float) -> Member:
    """C_m^{(α)}, with a positive leading coefficient for negative α too."""

    def member(m: int, u: Array, rest: Array) -> Array:
        norm = math.pi * 2 ** (1 - 2 * alpha) * gamma(m + 2 * alpha)
        norm /= math.factorial(m) * (m + alpha) * gamma(alpha) ** 2
        sign = math.copysign(1, alpha) if m else 1
        root = (rest * (1 + np.abs(u))) ** (alpha / 2 - 0.25)
        return sign * eval_gegenbauer(m, alpha, u) * root / math.sqrt(norm)

    return member


def legendre(m: int, u: Array, rest: Array) -> Array:
    return eval_legendre(m, u) * math.sqrt((2 * m + 1) / 2)


def chebyshev(m: int, u: Array, rest: Array) -> Array:
    root = (rest * (1 + np.abs(u))) ** -0.25
    return eval_chebyt(m, u) * math.sqrt((2 if m else 1) / math.pi) * root


def chebyshev2(m: int, u: Array, rest: Array) -> Array:
    root = (rest * (1 + np.abs(u))) ** 0.25
    return eval_chebyu(m, u) * math.sqrt(2 / math.pi) * root


def jacobi(alpha: float, beta: float) -> Member:
    def member(m: int, u: Array, rest: Array) -> Array:
        j, v = m // 2, 2 * np.abs(u) - 1
        norm = 2 ** (alpha + beta + 1) / (2 * j + alpha + beta + 1)
        norm *= gamma(j + alpha + 1) * gamma(j + beta + 1)
        norm /= math.factorial(j) * gamma(j + alpha + beta + 1)
        root = (2 * rest) ** (alpha / 2) * (2 * np.abs(u)) ** (beta / 2)
        value = eval_jacobi(j, alpha, beta, v) * root / math.sqrt(norm)
        return value * (np.sign(u) if m % 2 else 1)

    return member


def laguerre(alpha: float) -> Member:
    def member(m: int, u: Array, rest: Array) -> Array:
        j, v = m // 2, np.abs(u)
        norm = 2 * gamma(j + alpha + 1) / math.factorial(j)
        value = eval_genlaguerre(j, alpha, v) * v ** (alpha / 2) * np.exp(-v / 2)
        return value / math.sqrt(norm) * (np.sign(u) if m % 2 else 1)

    return member


def even_first_then_pairs(m: int) -> bool:
    return m > 0 and m % 2 == 0


def alternating(m: int) -> bool:
    return m % 2 == 1


def _polynomial(name: str, kind: str, member: Member, **parameters: float) -> Basis:
    edges, dilation = (0.0, 1.0), 9.0
    if kind == "laguerre":
        edges, dilation = (0.0, 10.0, 40.0, 115.0), 0.6
    return Basis(
        name,
        lambda count, **changes: Polynomial(count, kind, **parameters, **changes),
        member,
        alternating,
        edges,
        dilation,
    )


BASES = [
    Basis("trig", Trig, trig, even_first_then_pairs, (0.0, 1.0), 9.0),
    Basis("box", Box, box, even_first_then_pairs, (0.0, 0.5, 1.5, 2.5, 3.5, 4.5), 1.7),
    _polynomial("legendre", "legendre", legendre),
    _polynomial("chebyshev", "chebyshev", chebyshev),
    _polynomial("chebyshev2", "chebyshev2", chebyshev2),
    _polynomial("gegenbauer", "gegenbauer", gegenbauer(1.7), alpha=1.7),
    _polynomial("gegenbauer, singular", "gegenbauer", gegenbauer(-0.2), alpha=-0.2),
    _polynomial("jacobi", "jacobi", jacobi(0.4, 1.3), alpha=0.4, beta=1.3),
    _polynomial("jacobi, singular", "jacobi", jacobi(-0.5, -0.6), alpha=-0.5, beta=-0.6),
    _polynomial("laguerre", "laguerre", laguerre(0.0)),
    _polynomial("laguerre, generalised", "laguerre", laguerre(0.7), alpha=0.7),
]

BY_NAME = {basis.name: basis for basis in BASES}


def label(basis: Basis) -> str:
    return basis.name


class Rule(NamedTuple):
    """Nodes, their distances from the end, and weights of an integral over the half line."""

    u: Array
    rest: Array
    weights: Array


def half_line(edges: tuple[float, ...], panels: int = 40) -> Rule:
    """A dense rule with every piece stretched towards its ends, so that powers there do not matter.

    u = lo + (hi − lo) t(s),      t = s¹⁰/(s¹⁰ + (1−s)¹⁰)
    """
    x, w = np.polynomial.legendre.leggauss(20)
    s = ((np.arange(panels)[:, None] + (1 + x) / 2) / panels).ravel()
    w = np.tile(w / (2 * panels), panels)
    bottom = s**10 + (1 - s) ** 10
    t, rest = s**10 / bottom, (1 - s) ** 10 / bottom
    slope = 10 * (s * (1 - s)) ** 9 / bottom**2
    pieces = list(pairwise(edges))
    return Rule(
        np.concatenate([lo + (hi - lo) * t for lo, hi in pieces]),
        np.concatenate([edges[-1] - hi + (hi - lo) * rest for lo, hi in pieces]),
        np.concatenate([(hi - lo) * w * slope for lo, hi in pieces]),
    )


def weights_at_all_nodes(series: MassSeries) -> Array:
    """√h ψ over the whole lattice, from the coefficients of cosines and sines."""
    half = series.weights / np.where(np.any(series.indices != 0, axis=1), 2, 1)
    mirrored = np.where(series.odd, -1, 1)[:, None] * half[:, 1:]
    return np.concatenate([mirrored[:, ::-1], half], axis=1)
