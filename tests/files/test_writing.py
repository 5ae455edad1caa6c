"""Tables written: what is in them, and that they appear whole or not at all."""

import os
import stat
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from orthogp import FileError
from orthogp.files.source import read_table
from orthogp.files.text import align, table_writer, write_rows

FORMATS = ("csv", "tsv", "parquet")


@pytest.mark.parametrize("ending", FORMATS)
def test_columns_written_are_columns_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.{ending}"
    times = np.array(["2024-01-31T06:00", "NaT", "2024-04-01"], dtype="M8[us]")
    with table_writer(str(path), ["t", "y"]) as writer:
        writer.write([times[:2], np.array([0.1, 2.0])])
        writer.write([times[2:], np.array([1 / 3])])
    table = read_table(path, "y")
    np.testing.assert_array_equal(table.X[:, 0], [0.25, 61.0])
    np.testing.assert_array_equal(table.y, [0.1, 1 / 3])
    assert table.num_dropped == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_a_table_of_no_rows_has_columns(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.{ending}"
    with table_writer(str(path), ["x", "mean"]):
        pass
    if ending == "parquet":
        assert pq.read_schema(path).names == ["x", "mean"]
    else:
        assert path.read_text().split() in (["x,mean"], ["x", "mean"])


@pytest.mark.parametrize("ending", FORMATS)
def test_a_table_that_fails_leaves_what_was_there(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.{ending}"
    path.write_text("before")

    def write() -> None:
        with table_writer(str(path), ["x"]) as writer:
            writer.write([np.arange(3.0)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == [path.name]


def test_tables_keep_their_mode_and_files_beside_them_stay(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.touch()
    path.chmod(0o640)
    (tmp_path / "table.csv.part").write_text("another's")
    with table_writer(str(path), ["x"]) as writer:
        writer.write([np.arange(3.0)])
    assert path.read_text() == "x\n0\n1\n2\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (tmp_path / "table.csv.part").read_text() == "another's"


def test_rows_written_are_rows_read(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    write_rows(file, ["x", "name", "y"], [[0.1, "a, b", 1 / 3], [np.nan, "c", 2.0]])
    assert file.read_text("utf-8").splitlines()[2] == ",c,2.0"
    table = read_table(file, "y", ["x"])
    assert (table.X[0, 0], table.y[0], table.num_dropped) == (0.1, 1 / 3, 1)


def test_rows_written_to_nowhere(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"There is no directory .*no to write results\.csv into"):
        write_rows(tmp_path / "no" / "results.csv", ["x"], [])


def test_cells_of_a_column_stand_below_each_other() -> None:
    rows = [["name", "n", "value"], ["a", "10", "1.5"], ["longer", "7", "-2"]]
    assert align(rows) == ["name     n  value", "a       10    1.5", "longer   7     -2"]
