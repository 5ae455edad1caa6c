"""What files hold of the rows: exactly what docs/format.md says under "Rows"."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from orthogp import GPClassifier, GPRegressor, StochasticGPRegressor
from orthogp.cli import main

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 10, (120, 2))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(len(X))
EDGES = {*X.min(axis=0).tolist(), *X.max(axis=0).tolist()}


def held(path: Path, values: NDArray) -> set[float]:
    """The values that a file holds to the last digit, in binary or as text.

    Chance has no part in it: 8 bytes agree with those of one of 10⁵ places by chance in 1e-14.
    """
    content = path.read_bytes()
    return {
        value
        for value in np.asarray(values, dtype=np.float64).ravel().tolist()
        if struct.pack("<d", value) in content or json.dumps(value).encode() in content
    }


def regressor(solver: str, **settings: Any) -> GPRegressor:
    return GPRegressor("rbf", solver=solver, **settings)


def saved(model: Any, path: Path, y: NDArray = Y) -> Path:
    model.fit(X, y).save(path)
    return path


@pytest.mark.parametrize("solver", ["exact", "neighbours"])
def test_models_that_need_the_rows_hold_them_all(tmp_path: Path, solver: str) -> None:
    path = saved(regressor(solver), tmp_path / "m.orthogp")
    assert len(held(path, X)) == X.size
    assert len(held(path, Y)) == len(Y)


SUMMED = {
    "dense": regressor("dense", num_features=15),
    "additive": GPRegressor("additive-rbf", num_features=15),
    "iterative": regressor("iterative", max_features=50),
    "trig": GPRegressor("rbf", features="trig", num_features=15),
}


@pytest.mark.parametrize("name", SUMMED)
def test_models_of_sums_hold_the_edges_of_the_box_and_no_other_value(
    tmp_path: Path, name: str
) -> None:
    path = saved(SUMMED[name], tmp_path / "m.orthogp")
    assert held(path, X) <= EDGES
    assert not held(path, Y)


def test_diagnostics_of_one_input_hold_rows_that_are_alone_in_their_bins(tmp_path: Path) -> None:
    single, alone = X[:, :1], np.sort(X[:, 0])
    model = regressor("dense", num_features=15).fit(single, Y)
    model.save(tmp_path / "before.orthogp")
    assert not held(tmp_path / "before.orthogp", Y)
    model.diagnose(single, Y)
    model.save(tmp_path / "after.orthogp")
    bins = np.floor((alone - alone[0]) / (alone[-1] - alone[0]) * 256)
    counts = np.unique(bins, return_counts=True)[1]
    assert len(held(tmp_path / "after.orthogp", Y)) >= np.count_nonzero(counts == 1) > 50
    # A fit forgets the checks of the one before.
    model.fit(single, Y).save(tmp_path / "again.orthogp")
    assert not held(tmp_path / "again.orthogp", Y)


def test_diagnostics_of_several_inputs_hold_no_row_but_the_range_of_targets(tmp_path: Path) -> None:
    model = regressor("dense", num_features=15).fit(X, Y)
    model.diagnose(X, Y)
    model.save(tmp_path / "m.orthogp")
    assert held(tmp_path / "m.orthogp", X) <= EDGES
    assert held(tmp_path / "m.orthogp", Y) <= {Y.min(), Y.max()}


@pytest.mark.slow
def test_classifiers_and_mini_batches_hold_no_targets(tmp_path: Path) -> None:
    labels = (np.median(Y) < Y).astype(float)
    classifier = GPClassifier("rbf", num_features=15)
    assert held(saved(classifier, tmp_path / "c.orthogp", labels), X) <= EDGES
    stochastic = StochasticGPRegressor("rbf", num_features=15, max_steps=3)
    path = saved(stochastic, tmp_path / "s.orthogp")
    assert held(path, X) <= EDGES
    assert not held(path, Y)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows as a file, and what commands make of it."""
    folder = tmp_path_factory.mktemp("rows")
    lines = [f"{a!r},{b!r},{c!r}" for (a, b), c in zip(X.tolist(), Y.tolist())]
    (folder / "d.csv").write_text("\n".join(["a,b,y", *lines, ""]))
    return folder


def run(*arguments: object) -> None:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_commands_hold_rows_for_diagnostics_unless_told_not_to(folder: Path) -> None:
    fit = ("fit", folder / "d.csv", "--target", "y", "--inputs", "a", "--solver", "dense")
    run(*fit, "--num-features", "15", "--out", folder / "with.orthogp")
    run(*fit, "--num-features", "15", "--no-diagnostics", "--out", folder / "without.orthogp")
    assert len(held(folder / "with.orthogp", Y)) > 50
    assert held(folder / "without.orthogp", X) <= EDGES
    assert not held(folder / "without.orthogp", Y)
    # A page draws the rows that it knows of; with sliders, it has them as numbers too.
    for name, static in (("with", True), ("without", True), ("without", False), ("with", False)):
        page = folder / f"{name}-{static}.html"
        static_option = ("--static",) if static else ()
        run("report", folder / f"{name}.orthogp", "--out", page, *static_option)
        assert (held(page, X) <= EDGES) == (static or name == "without")


def test_statistics_hold_the_edges_of_the_box_and_no_other_value(folder: Path) -> None:
    run("sketch", folder / "d.csv", "--target", "y", "--out", folder / "s.orthogp")
    assert held(folder / "s.orthogp", X) <= EDGES
    assert not held(folder / "s.orthogp", Y)


def test_the_rows_on_a_known_grid_follow_from_statistics() -> None:
    # Sums of c_j e^{iωx_j} at points x_j that are known, each c_j unknown: linear equations.
    grid = np.linspace(0.0, 1.0, 40)
    rows = RNG.integers(0, len(grid), 300)
    y = RNG.standard_normal(len(rows))
    model = GPRegressor("matern12", solver="dense", num_features=15, mean=None)
    statistics = model.fit(grid[rows][:, None], y).statistics_
    lattice = statistics.lattice
    waves = np.exp(
        1j * np.outer(np.arange(2 * lattice.extent[0] + 1), grid - lattice.centre[0])
        * lattice.spacing[0]
    )  # fmt: skip
    middle = 2 * lattice.extent[0]
    sums = statistics.point_sums[middle : middle + len(waves)]
    counts = np.linalg.lstsq(waves, sums, rcond=None)[0].real
    np.testing.assert_allclose(counts, np.bincount(rows, minlength=len(grid)), atol=1e-3)
