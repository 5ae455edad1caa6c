"""Maps in and out: grids, blocks, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from orthogp import GPRegressor, InputError, map_table, write_map
from orthogp.cli import main
from orthogp.kernels import RBF, Matern12, Matern32
from tests import oracles

xarray = pytest.importorskip("xarray")
pd = pytest.importorskip("pandas")

VARIANCE, LENGTHS, NOISE = 1.3, np.array([1.5, 2.0]), 0.04


def k(lag: Any) -> Any:
    return oracles.rbf(lag, VARIANCE, LENGTHS)


def rows(number: int = 150) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, [4.0, 3.0], (number, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(number)


def fitted(solver: str = "exact", **settings: Any) -> GPRegressor:
    X, y = rows()
    kernel = RBF(VARIANCE, LENGTHS)
    model = GPRegressor(kernel, solver=solver, learn=False, noise_variance=NOISE, **settings)
    return model.fit(pd.DataFrame(X, columns=["east", "north"]), y)


def test_a_grid_is_the_predictions_at_its_cells() -> None:
    model = fitted()
    found = model.predict_grid(0.5)
    assert dict(found.sizes) == {"east": 7, "north": 5}
    # All multiples within the extent of the rows, which begins a little above zero.
    np.testing.assert_array_equal(found["east"].values, np.arange(1, 8) * 0.5)
    table = found.to_dataframe().reset_index()
    mean, std = model.predict(table[["east", "north"]], return_std=True)
    np.testing.assert_allclose(table["mean"], mean)
    np.testing.assert_allclose(table["sd"], std)
    noisy = model.predict_grid(0.5, include_noise=True)["sd"]
    np.testing.assert_allclose(noisy**2, found["sd"] ** 2 + NOISE)


def test_a_grid_has_names_and_units() -> None:
    model = fitted()
    model.about_ = {"target": "rain", "units": {"rain": "mm", "east": "km"}}  # type: ignore
    found = model.predict_grid(coordinates={"north": [1.0], "east": [0.5, 1.0]})
    assert found["mean"].dims == ("east", "north")
    assert found["mean"].attrs == {"long_name": "mean of rain", "units": "mm"}
    assert found["east"].attrs == {"units": "km"}


def test_covariates_of_a_grid_are_maps_or_a_function() -> None:
    X, y = rows()
    model = GPRegressor(RBF(1.0, LENGTHS), learn=False, noise_variance=NOISE)
    frame = pd.DataFrame({"height": X[:, 0] * X[:, 1]})
    model.fit(pd.DataFrame(X, columns=["x", "y"]), y, covariates=frame)
    heights = xarray.DataArray(
        np.outer([1.0, 2.0, 3.0], [0.5, 1.5]).T,
        {"y": [0.5, 1.5], "x": [1.0, 2.0, 3.0]},
        ("y", "x"),
        name="height",
    )
    by_map = model.predict_grid(covariates=heights.to_dataset())
    by_function = model.predict_grid(
        coordinates={"x": [1.0, 2.0, 3.0], "y": [0.5, 1.5]},
        covariates=lambda X: X[:, :1] * X[:, 1:],
    )
    np.testing.assert_allclose(by_map["mean"], by_function["mean"])
    with pytest.raises(InputError, match="fitted with 'height' as covariates"):
        model.predict_grid(0.5)


def block_oracle(lower: Any, upper: Any) -> tuple[Any, Any]:
    """Means and covariance of ∫f/|B| by many midpoints and dense algebra."""
    X, y = rows()
    each = [
        np.stack(np.meshgrid(*[a + (np.arange(24) + 0.5) / 24 * (b - a) for a, b in zip(lo, up)]))
        .reshape(2, -1)
        .T
        for lo, up in zip(lower, upper)
    ]
    nodes = np.concatenate(each)
    W = np.kron(np.eye(len(each)), np.full((1, 24**2), 1 / 24**2))
    scale = y.std()
    # The constant mean has standard deviation ten, in those of y.
    prior = 100 * scale**2
    K, cross = oracles.gram_matrix(k, X, X) + prior, oracles.gram_matrix(k, nodes, X) + prior
    own = W @ (oracles.gram_matrix(k, nodes, nodes) + prior) @ W.T
    mean, covariance = oracles.posterior(K, W @ cross, own, y - y.mean(), NOISE)
    return mean[:, 0] + y.mean(), covariance


@pytest.mark.parametrize(("solver", "tolerance"), [("exact", 1e-3), ("dense", 5e-3)])
def test_means_over_boxes_have_the_joint_covariance(solver: str, tolerance: float) -> None:
    lower, upper = np.array([[0.5, 0.5], [1.0, 1.0]]), np.array([[1.5, 1.2], [3.0, 2.5]])
    found = fitted(solver).predict_blocks((lower, upper))
    mean, covariance = block_oracle(lower, upper)
    sd = np.sqrt(np.diag(covariance))
    assert np.max(np.abs(found.mean - mean) / sd) < 0.05
    np.testing.assert_allclose(found.std, sd, rtol=0.02)
    correlation = found.covariance / np.outer(found.std, found.std)
    np.testing.assert_allclose(correlation, covariance / np.outer(sd, sd), atol=0.02)
    # The integral of a box is its mean times its area.
    integral, spread = fitted(solver).predict_integral(lower, upper)
    area = np.prod(upper - lower, axis=1)
    np.testing.assert_allclose(found.mean, integral / area, rtol=tolerance)
    np.testing.assert_allclose(found.std, spread / area, rtol=max(tolerance, 0.01))


def test_a_polygon_is_as_good_as_the_box_it_is() -> None:
    shapely = pytest.importorskip("shapely")
    model = fitted()
    boxes = ([[0.5, 0.5], [1.0, 1.0]], [[1.5, 1.2], [3.0, 2.5]])
    polygons = [shapely.box(*low, *high) for low, high in zip(*boxes)]
    found, known = model.predict_blocks(polygons), model.predict_blocks(boxes)
    np.testing.assert_allclose(found.mean, known.mean, rtol=2e-3)
    np.testing.assert_allclose(found.std, known.std, rtol=0.02)
    # Two triangles of a square have its mean on average.
    square, half = shapely.box(0, 0, 2, 2), shapely.Polygon([(0, 0), (2, 0), (2, 2)])
    other = shapely.Polygon([(0, 0), (2, 2), (0, 2)])
    parts, whole = model.predict_blocks([half, other]), model.predict_blocks([square])
    np.testing.assert_allclose(parts.mean.mean(), whole.mean[0], rtol=0.01)


def test_every_engine_has_block_means() -> None:
    X, y = rows(1000)
    settings: Any = {"learn": False, "noise_variance": NOISE}
    box = ([[0.5, 0.5]], [[1.5, 1.2]])
    known = GPRegressor(Matern12(1.0, 0.5), solver="exact", **settings).fit(X, y)
    want = known.predict_blocks(box)
    for solver in ("iterative", "neighbours"):
        model = GPRegressor(Matern12(1.0, 0.5), solver=solver, **settings).fit(X, y)
        found = model.predict_blocks(box)
        assert abs(found.mean[0] - want.mean[0]) < 0.3 * want.std[0]
        assert abs(found.std[0] / want.std[0] - 1) < 0.1


def test_blocks_on_the_sphere_weigh_by_area() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-180, 180, 300), rng.uniform(-85, 85, 300)])
    y = np.abs(X[:, 1]) / 10 + 0.01 * rng.standard_normal(300)
    model = GPRegressor(Matern32(10.0, 3000.0).on_sphere(0, 1), learn=False, noise_variance=1e-4)
    found = model.fit(X, y).predict_blocks(([[-170, 0]], [[170, 80]]))
    # ∫ φ cos φ dφ / ∫ cos φ dφ from 0° to 80°, without the weights it would be 4.
    angle = np.radians(80)
    want = np.degrees(angle * np.sin(angle) + np.cos(angle) - 1) / np.sin(angle) / 10
    assert abs(found.mean[0] - want) < 0.2


REFUSED = {
    "one of the two": lambda m: m.predict_grid(),
    "must be positive": lambda m: m.predict_grid(-1.0),
    "larger than the rows' extent": lambda m: m.predict_grid(coordinates={"east": [], "north": []}),
    "lack 'north'": lambda m: m.predict_grid(coordinates={"east": [1.0]}),
    "at most 50,000,000": lambda m: m.predict_grid(1e-4),
    "lower < upper": lambda m: m.predict_blocks(([[1.0, 1.0]], [[0.0, 2.0]])),
    "Blocks are polygons, or boxes": lambda m: m.predict_blocks(3),
    "in pieces": lambda m: m.predict_blocks((np.zeros((900, 2)), np.ones((900, 2)))),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_grid_or_block_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=words):
        REFUSED[words](fitted())


def test_maps_come_back_from_files_as_they_were_written(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    pytest.importorskip("h5netcdf")
    found = fitted().predict_grid(0.5)
    want = found.to_dataframe().reset_index()
    for name in ("map.nc", "map.tif"):
        write_map(found, tmp_path / name, crs="EPSG:32630")
        table = map_table(tmp_path / name)
        x, y = ("x", "y") if name.endswith("tif") else ("east", "north")
        table = table.sort_values([x, y], ignore_index=True)
        for own, column in ((x, "east"), (y, "north"), ("mean", "mean"), ("sd", "sd")):
            np.testing.assert_allclose(table[own], want[column], atol=1e-9)
    with pytest.raises(InputError, match=r"\.nc or a \.tif"):
        write_map(found, tmp_path / "map.png")
    uneven = fitted().predict_grid(coordinates={"east": [0, 1, 3], "north": [0, 1]})
    with pytest.raises(InputError, match="pixels of one size"):
        write_map(uneven, tmp_path / "map.tif")


def test_points_of_geopandas_and_geoparquet_are_rows(tmp_path: Path) -> None:
    geopandas = pytest.importorskip("geopandas")
    X, y = rows(20)
    places = geopandas.points_from_xy(X[:, 0], X[:, 1])
    frame = geopandas.GeoDataFrame({"rain": y}, geometry=places)
    frame.to_parquet(tmp_path / "p.geoparquet")
    for data in (frame, tmp_path / "p.geoparquet"):
        table = map_table(data)
        assert list(table.columns) == ["x", "y", "rain"]
        np.testing.assert_array_equal(table[["x", "y"]], X)
    with pytest.raises(InputError, match="Points were expected"):
        map_table(frame.set_geometry(frame.buffer(1.0)))


def test_the_command_line_reads_and_writes_maps(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    east, north = np.arange(0, 4, 0.5), np.arange(0, 3, 0.25)
    values = np.sin(east)[:, None] + north
    rain = xarray.DataArray(values, {"east": east, "north": north}, name="rain")
    rain.to_dataset().to_netcdf(tmp_path / "rain.nc", engine="h5netcdf")
    run, model = CliRunner().invoke, str(tmp_path / "m.orthogp")
    args = ["fit", str(tmp_path / "rain.nc"), "--target", "rain", "--no-diagnostics"]
    result = run(main, [*args, "--kernel", "rbf", "--out", model])
    assert result.exit_code == 0, result.output
    assert "rain.nc: east, north → rain" in result.output
    for name in ("map.tif", "map.nc"):
        out = str(tmp_path / name)
        result = run(main, ["predict", model, "--grid", "0.5,0.25", "--out", out])
        assert result.exit_code == 0, result.output
        np.testing.assert_allclose(
            np.sort(map_table(out)["mean"]), np.sort(values.ravel()), atol=0.1
        )
    result = run(main, ["predict", model, "--grid", "0.5", "--out", str(tmp_path / "map.csv")])
    assert result.exit_code != 0
    assert ".nc or a .tif" in result.output
