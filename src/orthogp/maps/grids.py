"""Predictions on a grid of the inputs, as an `xarray.Dataset` with names, units and dates.

Means over regions, with their joint covariance: block kriging.

The mean of f over a region B, (1/|B|) ∫_B f, is Σ_i w_i f(x_i) by quadrature, with Σ_i w_i = 1.
With m and C the posterior mean and covariance of f at the nodes of all regions together,

    mean = W m,      covariance = W C Wᵀ

whatever the engine. Boxes have Gauss–Legendre nodes along each input; polygons the points of an
even grid inside, of equal weights, on the sphere in proportion to cos(latitude).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.covariates import check_covariates
from orthogp.errors import InputError, require
from orthogp.files.columns import TimeScale, time_scales
from orthogp.maps.formats import as_dataset, points_inside, polygons_of
from orthogp.report.figures import covered_range
from orthogp.report.summary import Names, names_of
from orthogp.statistics.nufft import chunks

if TYPE_CHECKING:
    import xarray

    from orthogp.predicting import GPPredictor


# The most cells of a grid: a gigabyte of results.
_MOST_CELLS = 5 * 10**7
# The number of cells that are predicted at once, which bounds memory.
_CELLS_AT_ONCE = 2**19
# The digits of coordinates: a resolution of 0.1 has cells at 0.3, not at 0.30000000000000004.
_DIGITS = 12
#: The coordinate reference system of longitudes and latitudes in degrees.
LONGITUDE_LATITUDE = "EPSG:4326"

#: Covariates of a grid: a dataset of maps, or a function of the inputs (n, d).
GridCovariates = Any


class Grid(NamedTuple):
    """The coordinates along each input that the kernel sees."""

    names: tuple[str, ...]
    axes: tuple[NDArray[np.float64], ...]
    #: What numbers mean where an input holds date-times.
    times: tuple[TimeScale | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each input."""
        return tuple(map(len, self.axes))

    def points(self) -> NDArray[np.float64]:
        """Return all cells, the last input fastest, (n, d)."""
        cells = np.meshgrid(*self.axes, indexing="ij")
        return np.stack(cells, axis=-1).reshape(-1, len(self.axes))

    def coordinates(self) -> dict[str, NDArray]:
        """Return the coordinates by name, in dates where they are date-times."""
        return {
            name: values if scale is None else scale.datetimes(values)
            for name, values, scale in zip(self.names, self.axes, self.times, strict=True)
        }


def predict_grid(
    model: GPPredictor,
    resolution: float | Sequence[float] | None,
    coordinates: Mapping[str, ArrayLike] | None,
    covariates: GridCovariates,
    *,
    include_noise: bool,
) -> xarray.Dataset:
    """Return mean and standard deviation on a grid; see `GPRegressor.predict_grid`."""
    require("xarray", "predict_grid", "maps")
    names = names_of(model)
    if coordinates is None and hasattr(covariates, "coords"):
        # Maps of covariates have a grid of their own.
        coordinates = {str(name): values.values for name, values in covariates.coords.items()}
    grid = _grid(model, names, resolution, coordinates)
    points = grid.points()
    Z = _covariates_on(model, grid, points, covariates)
    mean, variance = np.empty((len(points), len(model.target_scale_))), np.empty(len(points))
    for part in chunks(len(points), _CELLS_AT_ONCE):
        found = model.posterior_.predict(model._embedded(points[part], Z[part]))
        mean[part], variance[part] = found
    family = model.likelihood_
    noise = model.posterior_.noise_variance if include_noise and family is None else 0.0
    mean = mean * model.target_scale_ + model.target_offset_
    sd = np.sqrt(np.maximum(variance, 0.0) + noise)[:, None] * model.target_scale_
    if family is not None:
        # Of y, one exposure or trial at each cell.
        moments = family.moments(mean[:, 0], sd[:, 0] ** 2, np.ones(len(mean)))
        mean, sd = moments[0][:, None], np.sqrt(moments[1])[:, None]
    variables = {}
    for j, target in enumerate(names.targets):
        after = f"_{target}" if len(names.targets) > 1 else ""
        unit = {"units": names.units[target]} if names.units.get(target) else {}
        of = "a new observation of " if include_noise or family is not None else ""
        for kind, long_name, values in (
            ("mean", f"mean of {of}{target}", mean),
            ("sd", f"standard deviation of {of}{target}", sd),
        ):
            about = {"long_name": long_name, **unit}
            variables[kind + after] = (grid.names, values[:, j].reshape(grid.shape), about)
    units = {name: names.units[name] for name in grid.names if names.units.get(name)}
    units = {n: u for (n, u), t in zip(units.items(), grid.times, strict=False) if t is None}
    about = {"source": "orthogp.GPRegressor.predict_grid", "kernel": str(model.kernel_)}
    if model._embedding is not None:
        about["crs"] = LONGITUDE_LATITUDE
    return as_dataset(variables, grid.coordinates(), units, about)


def _grid(
    model: GPPredictor,
    names: Names,
    resolution: float | Sequence[float] | None,
    coordinates: Mapping[str, ArrayLike] | None,
) -> Grid:
    called = tuple(names.inputs[c] for c in model.columns_)
    times = time_scales(model)
    scales = tuple(times[int(c)] for c in model.columns_)
    if (resolution is None) == (coordinates is None):
        raise InputError(
            "A grid needs a resolution, or the coordinates along each input: give one of the two."
        )
    if coordinates is not None:
        lacking = [name for name in called if name not in coordinates]
        if lacking:
            raise InputError(
                f"The coordinates lack {', '.join(map(repr, lacking))}: give values for each of "
                f"{', '.join(map(repr, called))}."
            )
        axes = [
            _numbers(coordinates[name], scale, name)
            for name, scale in zip(called, scales, strict=True)
        ]
    else:
        box = covered_range(model)
        steps = np.broadcast_to(np.asarray(resolution, dtype=np.float64), len(called))
        if not np.all(np.isfinite(steps) & (steps > 0)):
            raise InputError(f"The resolution must be positive, got {resolution!r}.")
        axes = [
            _multiples(low, high, step)
            for low, high, step in zip(box.lower, box.upper, steps, strict=True)
        ]
    if not all(map(len, axes)):
        raise InputError(
            "The resolution is larger than the rows' extent, so that the grid has no cell: give a "
            "smaller one, or coordinates."
        )
    cells = float(np.prod([float(len(axis)) for axis in axes]))
    if cells > _MOST_CELLS:
        raise InputError(
            f"The grid has {cells:,.0f} cells, and at most {_MOST_CELLS:,} are predicted at once: "
            "give a larger resolution, or coordinates of a part of it."
        )
    return Grid(called, tuple(axes), scales)


def _numbers(values: ArrayLike, scale: TimeScale | None, name: str) -> NDArray[np.float64]:
    """Return coordinates along an input as numbers, (n,)."""
    array = np.ravel(np.asarray(values))
    if scale is not None:
        return scale.numbers(array)
    if array.dtype.kind == "M":
        raise InputError(f"{name!r} was fitted as numbers, but its coordinates are date-times.")
    return array.astype(np.float64)


def _multiples(low: float, high: float, step: float) -> NDArray[np.float64]:
    """Return the multiples of a step in an interval."""
    slack = 1e-9
    first, last = np.ceil(low / step - slack), np.floor(high / step + slack)
    if last - first > _MOST_CELLS:
        last = first + _MOST_CELLS
    return np.round(np.arange(first, last + 1) * step, _DIGITS)


def _covariates_on(
    model: GPPredictor, grid: Grid, points: NDArray[np.float64], covariates: GridCovariates
) -> NDArray[np.float64]:
    """Return the covariates at all cells, (n, q)."""
    if covariates is None or not model.covariate_names_:
        return check_covariates(model, covariates, len(points))
    if isinstance(covariates, Callable):
        return check_covariates(model, covariates(points), len(points))
    lacking = [name for name in model.covariate_names_ if name not in covariates]
    if lacking:
        raise InputError(f"The maps of covariates lack {', '.join(map(repr, lacking))}.")
    columns = []
    for name in model.covariate_names_:
        values = np.asarray(covariates[name].transpose(*grid.names).values, dtype=np.float64)
        if values.shape != grid.shape:
            raise InputError(
                f"The map of {name!r} has shape {values.shape}, but the grid {grid.shape}: give "
                "maps on the grid itself."
            )
        columns.append(values.ravel())
    return check_covariates(model, np.stack(columns, axis=1), len(points))


# ---------------------------------------------------------------------- blocks


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


def predict_blocks(model: GPPredictor, blocks: Any, covariates: Any) -> BlockMeans:
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


def _regions(model: GPPredictor, blocks: Any) -> list[tuple[NDArray, NDArray]]:
    """Return nodes (m, d) and weights (m,) of each region."""
    d = len(model.columns_)
    polygons = polygons_of(blocks)
    if polygons is not None:
        require("shapely", "predict_blocks with polygons", "maps")
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


def _nodes_each(model: GPPredictor, number: int) -> int:
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
