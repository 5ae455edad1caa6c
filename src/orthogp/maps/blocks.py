r"""Means over regions, with their joint covariance: block kriging.

The mean of f over a region B, (1/|B|) ∫_B f, is Σ_i w_i f(x_i) by quadrature, with Σ_i w_i = 1.
With m and C the posterior mean and covariance of f at the nodes of all regions together,

    mean = W m,      covariance = W C Wᵀ

whatever the engine. Boxes have Gauss–Legendre nodes along each input; polygons the points of an
even grid inside, of equal weights, on the sphere in proportion to cos(latitude).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.covariates import check_covariates
from orthogp.errors import InputError
from orthogp.maps.formats import points_inside, polygons_of, require

if TYPE_CHECKING:
    from orthogp.regressor import GPRegressor

# The most nodes whose joint covariance is formed.
_MOST_NODES = 4000
# The number of nodes of a region, if there are few regions.
_NODES = 100
# The fewest nodes of a region.
_FEWEST_NODES = 9


class BlockMeans(NamedTuple):
    """Means of f over n regions, (n,) or (n, p), and their covariance, (n, n) or (n, n, p)."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviations of the means, of the shape of `mean`."""
        return np.sqrt(np.einsum("ii...->i...", self.covariance))


def predict_blocks(model: GPRegressor, blocks: Any, covariates: Any) -> BlockMeans:
    """Return means over regions; see `GPRegressor.predict_blocks`."""
    regions = _regions(model, blocks)
    nodes = np.concatenate([own for own, _ in regions])
    W = np.zeros((len(regions), len(nodes)))
    start = 0
    for row, (own, weights) in zip(W, regions, strict=True):
        row[start : start + len(own)] = weights / weights.sum()
        start += len(own)
    if isinstance(covariates, Callable):
        covariates = covariates(nodes)
    Z = check_covariates(model, covariates, len(nodes))
    points = model._embedded(nodes, Z)
    mean = W @ model.posterior_.predict_mean(points) * model.target_scale_ + model.target_offset_
    covariance = W @ model.posterior_.covariance(points) @ W.T
    covariance = (covariance + covariance.T)[:, :, None] / 2 * model.target_scale_**2
    return BlockMeans(model._shaped(mean), model._shaped(covariance))


def _regions(model: GPRegressor, blocks: Any) -> list[tuple[NDArray, NDArray]]:
    """Return nodes (m, d) and weights (m,) of each region."""
    d = len(model.columns_)
    polygons = polygons_of(blocks)
    if polygons is not None:
        require("shapely", "predict_blocks with polygons")
        if d != 2:
            raise InputError(
                f"Polygons are for two inputs, but the kernel acts on {d}: give boxes."
            )
        number = _nodes_each(model, len(polygons))
        inside = [points_inside(polygon, number) for polygon in polygons]
        on_sphere = model._embedding is not None
        return [(p, np.cos(np.radians(p[:, 1])) if on_sphere else np.ones(len(p))) for p in inside]
    try:
        lower, upper = (np.asarray(edge, dtype=np.float64).reshape(-1, d) for edge in blocks)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Blocks are polygons, or boxes as (lower, upper) with {d} columns each, got "
            f"{type(blocks).__name__}."
        ) from error
    if lower.shape != upper.shape or not len(lower) or not np.all(lower < upper):
        raise InputError("Boxes need lower < upper, of the same shape (n, d).")
    most = max(int(_nodes_each(model, len(lower)) ** (1 / d)), 2)
    at, along = np.polynomial.legendre.leggauss(most)
    unit = np.stack(np.meshgrid(*[at] * d, indexing="ij"), axis=-1).reshape(-1, d)
    weights = np.prod(
        np.stack(np.meshgrid(*[along] * d, indexing="ij"), axis=-1).reshape(-1, d), axis=1
    )
    middle, half = (lower + upper) / 2, (upper - lower) / 2
    nodes = [m + h * unit for m, h in zip(middle, half, strict=True)]
    if model._embedding is None:
        return [(own, weights) for own in nodes]
    return [(own, weights * np.cos(np.radians(own[:, 1]))) for own in nodes]


def _nodes_each(model: GPRegressor, number: int) -> int:
    """Return the number of nodes of each of some regions."""
    most = min(_MOST_NODES, model.posterior_.most_joint)
    # Grids inside polygons have up to half as many again as are asked for.
    each = min(_NODES, int(most / 1.5) // max(number, 1))
    if each < _FEWEST_NODES:
        raise InputError(
            f"Means are predicted jointly over at most {int(most / 1.5) // _FEWEST_NODES} blocks "
            f"with this engine, got {number}: ask for them in pieces."
        )
    return each
