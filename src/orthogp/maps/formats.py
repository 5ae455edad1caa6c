"""Maps as tables and datasets: xarray, NetCDF, GeoTIFF, geopandas and GeoParquet.

The only home of xarray, rasterio and geopandas, which come with `pip install "orthogp[maps]"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, require
from orthogp.files.text import check_destination

if TYPE_CHECKING:
    import pandas
    import xarray

FilePath = str | PathLike[str]

#: Endings of files of arrays.
NETCDF = (".nc", ".nc4", ".netcdf")
#: Endings of images with a place.
GEOTIFF = (".tif", ".tiff")
#: Endings of files of points with attributes.
VECTOR = (".gpkg", ".geojson", ".shp", ".geoparquet")
# Relative differences of steps that are the rounding of coordinates.
_EVEN = 1e-6


def is_map(path: FilePath) -> bool:
    """Return whether a file holds a map, by its name."""
    return str(path).lower().endswith((*NETCDF, *GEOTIFF, *VECTOR))


def as_dataset(
    variables: Mapping[str, tuple[tuple[str, ...], NDArray, dict[str, str]]],
    coordinates: Mapping[str, NDArray],
    units: Mapping[str, str],
    about: Mapping[str, str],
) -> xarray.Dataset:
    """Return variables on a grid as a dataset, with the units of its coordinates."""
    import xarray

    axes = {
        # To the nanosecond, as xarray has them.
        name: values.astype("datetime64[ns]") if values.dtype.kind == "M" else values
        for name, values in coordinates.items()
    }
    dataset = xarray.Dataset(dict(variables), coords=axes, attrs=dict(about))
    for name, unit in units.items():
        dataset[name].attrs["units"] = unit
    return dataset


def map_table(data: Any) -> pandas.DataFrame:
    """Return a map as a table: one row for each cell or point that has all values.

    Parameters
    ----------
    data : path, xarray.Dataset, xarray.DataArray or geopandas.GeoDataFrame
        A NetCDF file or dataset has a column for each coordinate and each variable; a GeoTIFF has
        x, y and a column for each band, named by its description or band1, band2, …; points
        (GeoPackage, GeoJSON, shapefile, GeoParquet) have x, y and their attributes.
    """
    if isinstance(data, str | PathLike):
        name = str(data).lower()
        if not Path(data).exists():
            raise InputError(f"There is no file {data}: check its name.")
        if name.endswith(NETCDF):
            return _dataset_table(_open_netcdf(data))
        if name.endswith(GEOTIFF):
            return _tiff_table(data)
        if name.endswith((*VECTOR, ".parquet")):
            return _point_table(_open_points(data))
        raise InputError(
            f"{data} is no map by its name: expected one that ends in "
            f"{', '.join((*NETCDF[:1], *GEOTIFF[:1], *VECTOR))}."
        )
    if hasattr(data, "geometry") and hasattr(data, "drop"):
        return _point_table(data)
    if hasattr(data, "to_dataset") or hasattr(data, "data_vars"):
        return _dataset_table(data)
    raise InputError(
        "A map is a path, an xarray.Dataset or DataArray, or a geopandas.GeoDataFrame, got "
        f"{type(data).__name__}."
    )


def write_map(dataset: xarray.Dataset, path: FilePath, crs: str | None = None) -> None:
    """Write a dataset to a NetCDF file, or to a GeoTIFF with a band for each variable.

    Parameters
    ----------
    crs : str, optional
        The coordinate reference system of a GeoTIFF, such as "EPSG:4326"; the dataset's `crs`
        unless given.
    """
    check_destination(path)
    name = str(path).lower()
    if name.endswith(NETCDF):
        require("h5netcdf", "Writing NetCDF", "maps")
        dataset.to_netcdf(path, engine="h5netcdf")
    elif name.endswith(GEOTIFF):
        _write_tiff(dataset, path, crs or dataset.attrs.get("crs"))
    else:
        raise InputError(f"A map is written to a .nc or a .tif file, got {path}.")


def _open_netcdf(path: FilePath) -> xarray.Dataset:
    require("xarray", f"Reading {path}", "maps")
    import xarray

    try:
        with xarray.open_dataset(path, engine="h5netcdf") as dataset:
            return dataset.load()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as NetCDF: {error}.") from error


def _dataset_table(data: Any) -> pandas.DataFrame:
    if not hasattr(data, "data_vars"):
        data = data.to_dataset(name=data.name or "value")
    return data.to_dataframe().reset_index().dropna(ignore_index=True)


def _tiff_table(path: FilePath) -> pandas.DataFrame:
    require("rasterio", f"Reading {path}", "maps")
    import pandas
    import rasterio

    with rasterio.open(path) as image:
        bands = image.read(masked=True).astype(np.float64).filled(np.nan)
        names = [text or f"band{i}" for i, text in enumerate(image.descriptions, start=1)]
        # The middle of each pixel.
        columns, rows = np.meshgrid(np.arange(image.width) + 0.5, np.arange(image.height) + 0.5)
        x, y = image.transform @ (columns, rows)
    table = {"x": x.ravel(), "y": y.ravel()}
    table |= {name: band.ravel() for name, band in zip(names, bands, strict=True)}
    return pandas.DataFrame(table).dropna(ignore_index=True)


def _write_tiff(dataset: xarray.Dataset, path: FilePath, crs: str | None) -> None:
    require("rasterio", "Writing GeoTIFF", "maps")
    import rasterio
    from rasterio.transform import from_origin

    names = list(dataset.data_vars)
    dims = dataset[names[0]].dims
    if len(dims) != 2 or any(dataset[name].dims != dims for name in names):
        raise InputError(
            f"A GeoTIFF has two inputs, x and y, got {', '.join(map(str, dims))}: write a .nc "
            "file, or choose one value of the others by dataset.sel(…)."
        )
    x, y = (_even(dataset[dim].values, str(dim)) for dim in dims)
    west, north = x[0] - (x[1] - x[0]) / 2, y[-1] + (y[1] - y[0]) / 2
    profile = {
        "driver": "GTiff",
        "dtype": "float64",
        "count": len(names),
        "width": len(x),
        "height": len(y),
        "crs": crs,
        "transform": from_origin(west, north, x[1] - x[0], y[1] - y[0]),
        "nodata": np.nan,
        "compress": "deflate",
    }
    with rasterio.open(path, "w", **profile) as image:
        for band, name in enumerate(names, start=1):
            # Rows of an image go from north to south.
            image.write(dataset[name].values.T[::-1], band)
            image.set_band_description(band, str(name))


def _even(values: NDArray, name: str) -> NDArray[np.float64]:
    """Return coordinates if their steps are positive and equal."""
    if values.dtype.kind == "M":
        raise InputError(f"A GeoTIFF has numbers for coordinates, but {name!r} holds dates.")
    values = values.astype(np.float64)
    steps = np.diff(values)
    if len(steps) == 0 or steps[0] <= 0 or np.ptp(steps) > _EVEN * steps[0]:
        raise InputError(
            f"A GeoTIFF has pixels of one size, but the coordinates along {name!r} are not evenly "
            "spaced upwards: give predict_grid a resolution, or write a .nc file."
        )
    return values


def _open_points(path: FilePath) -> Any:
    require("geopandas", f"Reading {path}", "maps")
    import geopandas

    if str(path).lower().endswith((".geoparquet", ".parquet")):
        return geopandas.read_parquet(path)
    return geopandas.read_file(path)


def _point_table(frame: Any) -> pandas.DataFrame:
    import pandas

    places = frame.geometry
    if not (places.geom_type == "Point").all():
        raise InputError(
            "Points were expected, but the geometry holds others: take "
            "frame.representative_point() for rows, or give polygons to predict_blocks."
        )
    others = pandas.DataFrame(frame.drop(columns=places.name))
    table = pandas.concat([pandas.DataFrame({"x": places.x, "y": places.y}), others], axis=1)
    return table.dropna(ignore_index=True)


def polygons_of(blocks: Any) -> list[Any] | None:
    """Return the polygons of a GeoDataFrame, GeoSeries or sequence; `None` if it has none."""
    geometry = getattr(blocks, "geometry", blocks)
    geometry = geometry if hasattr(geometry, "__iter__") else [geometry]
    found = list(geometry)
    return found if found and all(hasattr(own, "bounds") for own in found) else None


def points_inside(polygon: Any, number: int) -> NDArray[np.float64]:
    """Return about `number` points of an even grid inside a polygon, at least one, (n, 2)."""
    import shapely

    left, bottom, right, top = polygon.bounds
    if not polygon.area > 0:
        raise InputError("A block must have an area, got a polygon without.")
    wanted = number
    for _ in range(8):
        # As many cells of the bounding box as leave the number inside.
        step = np.sqrt(polygon.area / wanted)
        counts = np.maximum(np.ceil([(right - left) / step, (top - bottom) / step]), 1).astype(int)
        x = left + (np.arange(counts[0]) + 0.5) * (right - left) / counts[0]
        y = bottom + (np.arange(counts[1]) + 0.5) * (top - bottom) / counts[1]
        cells = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
        inside = cells[shapely.contains_xy(polygon, cells[:, 0], cells[:, 1])]
        if len(inside) >= number / 2:
            return inside
        wanted *= 2
    raise InputError("A polygon is too thin for points of a grid to lie inside: merge it.")
