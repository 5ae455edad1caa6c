"""Gaussian quadrature with power-law ends, in panels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.special import betaln

# Nodes of one Gauss rule; longer rules are made of several panels.
_PANEL = 128


def gauss_panels(
    lower: float, upper: float, size: int, at_lower: float = 0.0, at_upper: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes and weights, at least `size` of them, of an integral with power-law ends.

        ∫ f du over [lower, upper],      f = (u − lower)^at_lower (upper − u)^at_upper · smooth

    One Gauss–Jacobi rule, or panels of them that grow denser towards the ends as its nodes do.
    """
    num_panels = -(-size // _PANEL)
    each = -(-size // num_panels)
    edges = (1 - np.cos(np.pi * np.arange(num_panels + 1) / num_panels)) / 2
    nodes, weights = [], []
    for panel in range(num_panels):
        left = at_lower if panel == 0 else 0.0
        right = at_upper if panel == num_panels - 1 else 0.0
        v, w = _gauss_jacobi(each, right, left)
        start, half = edges[panel], (edges[panel + 1] - edges[panel]) / 2
        u = (upper - lower) * (start + half * (1 + v)) + lower
        half = (upper - lower) * half
        # From the rounded nodes, so that the factors cancel those of the integrand.
        factors = ((u - lower) / half) ** left * ((upper - u) / half) ** right
        nodes.append(u)
        weights.append(half * w / factors)
    return np.concatenate(nodes), np.concatenate(weights)


@lru_cache(maxsize=64)
def _gauss_jacobi(
    size: int, alpha: float, beta: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rule of ∫ g(v) (1−v)^α (1+v)^β dv over [−1, 1], by Golub and Welsch."""
    diagonal, off_diagonal = jacobi_recurrence(size, alpha, beta)
    nodes, vectors = eigh_tridiagonal(diagonal, off_diagonal[1:])
    return nodes, vectors[0] ** 2 * np.exp(log_jacobi_mass(alpha, beta))


def jacobi_recurrence(
    size: int, alpha: float, beta: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return d_0 … d_{n−1} and b_0 … b_{n−1} of the orthonormal Jacobi polynomials.

    v p_n = b_{n+1} p_{n+1} + d_n p_n + b_n p_{n−1},      b_0 = 0
    """
    n = np.arange(1, size)
    total = alpha + beta
    diagonal = (beta**2 - alpha**2) / ((2 * n + total) * (2 * n + total + 2))
    # n(n+α+β)/(2n+α+β−1) is 0/0 at n = 1 for α + β = −1, and 1 for all others.
    ratio = np.ones(len(n))
    ratio[1:] = n[1:] * (n[1:] + total) / (2 * n[1:] + total - 1)
    square = 4 * (n + alpha) * (n + beta) * ratio / ((2 * n + total) ** 2 * (2 * n + total + 1))
    first = (beta - alpha) / (total + 2)
    return np.concatenate([[first], diagonal]), np.concatenate([[0.0], np.sqrt(square)])


def log_jacobi_mass(alpha: float, beta: float) -> float:
    """Return log ∫ (1−v)^α (1+v)^β dv over [−1, 1]."""
    return float((alpha + beta + 1) * np.log(2) + betaln(alpha + 1, beta + 1))
