"""Predictions on a grid of the inputs, as an `xarray.Dataset` with names, units and dates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.covariates import check_covariates
from orthogp.dates import time_scales
from orthogp.errors import InputError
from orthogp.files.columns import TimeScale
from orthogp.maps.formats import as_dataset, require
from orthogp.report.figures import covered_range
from orthogp.report.summary import Names, names_of
from orthogp.statistics.nufft import chunks

if TYPE_CHECKING:
    import xarray

    from orthogp.regressor import GPRegressor

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
    model: GPRegressor,
    resolution: float | Sequence[float] | None,
    coordinates: Mapping[str, ArrayLike] | None,
    covariates: GridCovariates,
    *,
    include_noise: bool,
) -> xarray.Dataset:
    """Return mean and standard deviation on a grid; see `GPRegressor.predict_grid`."""
    require("xarray", "predict_grid")
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
    noise = model.posterior_.noise_variance if include_noise else 0.0
    mean = mean * model.target_scale_ + model.target_offset_
    sd = np.sqrt(np.maximum(variance, 0.0) + noise)[:, None] * model.target_scale_
    variables = {}
    for j, target in enumerate(names.targets):
        after = f"_{target}" if len(names.targets) > 1 else ""
        unit = {"units": names.units[target]} if names.units.get(target) else {}
        of = "a new observation of " if include_noise else ""
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
    model: GPRegressor,
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
    model: GPRegressor, grid: Grid, points: NDArray[np.float64], covariates: GridCovariates
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
