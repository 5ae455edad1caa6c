"""How families are placed: searches, products of functions of one column, and Gauss rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.special import betaln

from orthogp.errors import FeatureError
from orthogp.features.base import Floats, Orders, per_column
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

# Points per column at which placements are judged, by number of columns.
_SAMPLES = {1: 129, 2: 11, 3: 6}
# Lags relative to the width at which a kernel's decay is looked at.
_LAGS = np.geomspace(1e-4, 4.0, 64)
# Margins of a window, in lengthscales, that are tried before the best is refined.
_MARGINS = np.concatenate([[0.0], np.geomspace(0.25, 32.0, 15)])
# The largest distance, relative to a window's width, by which rounding may put data outside.
_ROUNDING = 1e-9


def least(
    score: Callable[[float], float], factors: Iterable[float], step: float, refinements: int
) -> float:
    """Return the factor of the least score: the best of some, then moved by shrinking steps."""
    remembered = cache(score)
    best = float(min(factors, key=remembered))
    for _ in range(refinements):
        best = min((best / step, best, best * step), key=remembered)
        step = float(np.sqrt(step))
    return best


def best_margin(error: Callable[[float], float]) -> float:
    """Return the margin between 0 and 40 lengthscales at which an error is least."""
    return least(error, _MARGINS, float(np.sqrt(_MARGINS[2] / _MARGINS[1])), 4)


def centred(
    centre: ArrayLike | None, lower: Floats, upper: Floats, lattice: FrequencyLattice | None
) -> tuple[Floats, Floats]:
    """Return the lattice's centre, the one given, or the box's; and how far the box reaches."""
    if lattice is not None:
        middle = lattice.centre
    else:
        middle = (lower + upper) / 2 if centre is None else per_column(centre, len(lower), "centre")
    return middle, np.maximum(np.abs(lower - middle), np.abs(upper - middle))


def check_inside(lower: Floats, upper: Floats, start: Floats, end: Floats, remedy: str) -> None:
    """Raise `FeatureError` unless the data's box lies between `start` and `end`."""
    slack = _ROUNDING * (end - start)
    if np.any((lower < start - slack) | (upper > end + slack)):
        raise FeatureError(
            f"The features are defined on {_box(start, end)} only, but the data cover "
            f"{_box(lower, upper)}: {remedy}."
        )


def _box(lower: Floats, upper: Floats) -> str:
    ends = zip(np.atleast_1d(lower), np.atleast_1d(upper), strict=True)
    return " × ".join(f"[{low:.6g}, {high:.6g}]" for low, high in ends)


def correlation_lengths(kernel: Kernel, width: Floats) -> Floats:
    """Return the lag along each column at which the covariance has fallen by half, (d,).

    Looked for between 1e-4 and 4 widths.
    """
    lengths = np.empty(len(width))
    for d in range(len(width)):
        lags = np.zeros((len(_LAGS), len(width)))
        lags[:, d] = _LAGS * width[d]
        below = np.flatnonzero(np.asarray(_correlations(kernel, lags)) < 0.5)
        lengths[d] = width[d] * _LAGS[below[0] if len(below) else -1]
    return lengths


@in_double
@eqx.filter_jit
def _correlations(kernel: Kernel, lags: Floats) -> Float[AnyArray, " n"]:
    return jax.vmap(kernel.k)(jnp.asarray(lags)) / kernel.prior_variance()


def grid_orders(
    num_features: int, complexity: Floats, most: NDArray[np.int64] | float = np.inf
) -> Orders:
    """Return a grid of at most `num_features` products, finer along complex columns.

    No column takes more than `most` functions, one number or one per column.
    """
    counts = np.ones(len(complexity), dtype=int)
    while True:
        rest = (num_features * counts // np.prod(counts) > counts) & (counts < most)
        if not rest.any():
            break
        counts[np.argmax(np.where(rest, complexity / counts, -np.inf))] += 1
    return tuple(itertools.product(*(range(int(count)) for count in counts)))


def simplex_orders(
    num_features: int, complexity: Floats, most: NDArray[np.int64] | float = np.inf
) -> Orders:
    """Return the `num_features` products of lowest total order, weighted by complexity.

    No column takes more than `most` functions, one number or one per column.
    """
    num_dims = len(complexity)
    weights = complexity.max() / complexity
    # Enough of each column that the simplex through them holds the number asked for.
    volume = num_features * np.prod(weights) * np.prod(np.arange(1, num_dims + 1))
    edge = volume ** (1 / num_dims) + np.sum(weights)
    counts = np.maximum(np.ceil(edge / weights), 1).astype(int)
    counts = np.minimum(np.minimum(counts, num_features), most).astype(int)
    grid = np.array(list(itertools.product(*(range(int(count)) for count in counts))))
    chosen = grid[np.argsort(grid @ weights, kind="stable")[:num_features]]
    return tuple(tuple(int(order) for order in row) for row in chosen)


def sample_box(lower: Floats, upper: Floats) -> Floats:
    """Return an even grid of points over a box, (n, d)."""
    size = _SAMPLES[len(lower)]
    return grid_points([np.linspace(*ends, size) for ends in zip(lower, upper, strict=True)])


def grid_points(axes: list[Floats]) -> Floats:
    """Return all points with coordinates from the axes, the last varying fastest, (n, d)."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def order_products(tables: list[Floats], orders: NDArray[np.int64]) -> Floats:
    """Return ∏_d table_d[m_d] over the grid of all columns' nodes, (m, nodes)."""
    result = tables[0][orders[:, 0]]
    for d in range(1, len(tables)):
        factor = tables[d][orders[:, d]]
        result = (result[:, :, None] * factor[:, None, :]).reshape(len(orders), -1)
    return result


# The most nodes of one Gauss rule; longer rules are made of several panels.
_PANEL = 128


# The rules of ∫ g(v) (1−v)^α (1+v)^β dv over [−1, 1].
@lru_cache(maxsize=64)
def _gauss_jacobi(size: int, alpha: float, beta: float) -> tuple[Floats, Floats]:
    """Return the rule of ∫ g(v) (1−v)^α (1+v)^β dv over [−1, 1], by Golub and Welsch.

    That of SciPy loses two digits for 128 nodes.
    """
    diagonal, off_diagonal = jacobi_recurrence(size, alpha, beta)
    nodes, vectors = eigh_tridiagonal(diagonal, off_diagonal[1:])
    return nodes, vectors[0] ** 2 * np.exp(log_jacobi_mass(alpha, beta))


def gauss_panels(
    lower: float, upper: float, size: int, at_lower: float = 0.0, at_upper: float = 0.0
) -> tuple[Floats, Floats]:
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


def jacobi_recurrence(size: int, alpha: float, beta: float) -> tuple[Floats, Floats]:
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
