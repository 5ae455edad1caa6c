"""Rows from files of every kind: which come back, in which order, and what is said of the rest."""

import gzip
import pickle
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orthogp import InputError
from orthogp.files import arrow
from orthogp.files import text as text_module
from orthogp.files.source import RowSource, open_source, read_piece, read_table
from orthogp.files.text import read_header, split_text


def write_parquet(path: Path, rows: int = 50, start: int = 0, **settings) -> np.ndarray:
    rng = np.random.default_rng(start)
    values = np.column_stack([np.arange(start, start + rows), rng.standard_normal((rows, 2))])
    names = ["a", "b", "y"]
    table = pa.table({name: values[:, j] for j, name in enumerate(names)})
    pq.write_table(table, path, row_group_size=settings.pop("row_group_size", 20), **settings)
    return values


def all_rows(source: RowSource) -> np.ndarray:
    return np.concatenate([block.columns for _, block in source.blocks()], axis=1).T


def corrupt(path: Path, group: int) -> None:
    """Flip bytes in the middle of a row group's first column."""
    meta = pq.ParquetFile(path).metadata.row_group(group).column(0)
    data = bytearray(path.read_bytes())
    middle = meta.data_page_offset + meta.total_compressed_size - 20
    for i in range(middle, middle + 8):
        data[i] ^= 0xFF
    path.write_bytes(bytes(data))


# ---------------------------------------------------------------------- which files


def test_a_folder_is_read_in_the_order_of_names_whatever_the_formats(tmp_path: Path) -> None:
    first = write_parquet(tmp_path / "a.parquet")
    (tmp_path / "deep").mkdir()
    third = write_parquet(tmp_path / "deep" / "c.pq", start=100)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"y,x,a,b\n1,no number,2,3\n"))
    (tmp_path / "b.tsv").write_text("y\ta\tb\n4\t5\t6\n")
    (tmp_path / ".hidden.csv").write_text("nothing")
    (tmp_path / "_SUCCESS.csv").write_text("nothing")
    (tmp_path / "notes.md").write_text("nothing")
    source = open_source([str(tmp_path)], ["y"], ["a", "b"])
    expected = np.vstack([first, [[2, 3, 1]], [[5, 6, 4]], third])
    np.testing.assert_array_equal(all_rows(source), expected)
    assert not source.exact
    assert source.num_rows == pytest.approx(102, abs=15)


def test_patterns_name_files(tmp_path: Path) -> None:
    for i in range(3):
        write_parquet(tmp_path / f"part{i}.parquet", start=100 * i)
    source = open_source([str(tmp_path / "part[02].parquet")], ["y"])
    assert source.reading.inputs == ("a", "b")
    assert (source.num_rows, source.exact) == (100, True)
    assert all_rows(source)[[0, 50], 0].tolist() == [0, 200]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("none*.csv", "No file matches {path}."),
        ("none.csv", "There is no file {path}: check its name."),
        ("none.parquet", "There is no file {path}: check its name."),
        ("empty", "{path} holds no CSV, TSV or Parquet file."),
    ],
)
def test_files_that_are_not_there(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "empty").mkdir()
    path = tmp_path / name
    with pytest.raises(InputError) as caught:
        open_source([str(path)], ["y"])
    assert str(caught.value) == complaint.format(path=path)


def test_a_column_missing_in_one_file_is_named_before_any_row_is_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("a,c,y\n1,2,3\n")
    with pytest.raises(InputError) as caught:
        open_source([str(tmp_path)], ["y"], ["a", "b"])
    assert str(caught.value) == (
        f"{tmp_path / 'b.csv'} has no column 'b', which {tmp_path / 'a.parquet'} has; its columns "
        "are a, c, y."
    )


def test_a_column_of_another_kind_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y\n2024-01-31,3\n")
    (tmp_path / "b.csv").write_text("t,y\n17,3\n")
    with pytest.raises(InputError, match=r"holds numbers in .*b\.csv, but date-times in .*a\.csv"):
        open_source([str(tmp_path)], ["y"])


# ---------------------------------------------------------------------- Parquet


@pytest.mark.parametrize("kind", [pa.float32(), pa.int16(), pa.uint64(), pa.decimal128(21, 2)])
def test_numbers_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    x = pa.array([1, 2, None, 4]).cast(kind)
    pq.write_table(pa.table({"x": x, "y": pa.array([1.5, np.nan, 3.5, 4.5])}), tmp_path / "a.pq")
    source = open_source([str(tmp_path / "a.pq")], ["y"])
    rows, tally = source.read()
    np.testing.assert_array_equal(rows.X[:, 0], [1, 4])
    np.testing.assert_array_equal(rows.y[:, 0], [1.5, 4.5])
    assert (tally.used, tally.missing, tally.bad) == (2, 2, 0)
    extent = source.extent()
    assert (extent.lower, extent.upper) == (1, 4)


@pytest.mark.parametrize(
    "column", [pa.array(["north"]), pa.array(["north"]).dictionary_encode(), pa.array([[1.0]])]
)
def test_categories_are_refused_with_advice(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"site": column, "y": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"Column 'site' of .*a\.parquet holds .* but must hold "):
        open_source([str(tmp_path)], ["y"])
    (tmp_path / "b.csv").write_text("site,y\nnorth,1\n")
    with pytest.raises(InputError, match=r"got 'north' in line 2 of .* write categories as whole"):
        open_source([str(tmp_path / "b.csv")], ["y"])


def test_extents_come_from_the_statistics_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = write_parquet(tmp_path / "with.parquet")
    write_parquet(tmp_path / "without.parquet", write_statistics=False)
    read = []
    monkeypatch.setattr("orthogp.files.source.read_piece", lambda *a: read.append(a) or iter(()))
    extent = open_source([str(tmp_path / "with.parquet")], ["y"]).extent()
    np.testing.assert_array_equal(extent.lower, values[:, :2].min(axis=0))
    np.testing.assert_array_equal(extent.upper, values[:, :2].max(axis=0))
    assert not read
    monkeypatch.undo()
    scanned = open_source([str(tmp_path / "without.parquet")], ["y"]).extent()
    np.testing.assert_array_equal(scanned, extent)


def test_a_corrupt_row_group_is_named_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = write_parquet(path, rows=60, write_page_checksum=True)
    corrupt(path, 1)
    with pytest.raises(InputError, match=r"Row group 1 of .*a\.parquet \(rows 21 to 40\) cannot"):
        all_rows(open_source([str(path)], ["y"]))
    rows, tally = open_source([str(path)], ["y"], skip_bad=True).read()
    np.testing.assert_array_equal(rows.X, values[np.r_[:20, 40:60], :2])
    assert (tally.used, tally.bad) == (40, 20)
    assert tally.first_bad == f"row group 1 of {path}"


def test_a_file_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"a\.parquet is damaged or no Parquet file: "):
        open_source([str(path)], ["y"])


def test_infinite_values_have_a_row_number(tmp_path: Path) -> None:
    x = np.arange(100.0)
    x[70] = np.inf
    pq.write_table(pa.table({"x": x, "y": x}), tmp_path / "a.parquet", row_group_size=30)
    with pytest.raises(InputError, match=r"'x' must hold finite numbers, got inf in row 71 of "):
        open_source([str(tmp_path)], ["y"]).read()
    _, tally = open_source([str(tmp_path)], ["y"], skip_bad=True).read()
    assert (tally.used, tally.bad) == (99, 1)


# ---------------------------------------------------------------------- text


@pytest.mark.parametrize("arrow", [True, False])
def test_a_bad_row_has_a_number_or_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    if not arrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(text_module, "_BLOCK_BYTES", 500)
    lines = ["x,y"] + [f"{i},{i}" for i in range(300)]
    lines[200], lines[250], lines[280] = "1,2,3", "four,5", ",6"
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError) as caught:
        read_table(path, "y")
    assert str(caught.value) == (
        f"Line 201 of {path} must have 2 cells, as its first line has, got 3: correct it, or skip "
        "such rows (--skip-bad)."
    )
    rows, tally = open_source([str(path)], ["y"], skip_bad=True).read()
    expected = np.delete(np.arange(300.0), [199, 249, 279])
    np.testing.assert_array_equal(rows.X[:, 0], expected)
    assert tally == (297, 1, 2, f"line 201 of {path}")


def test_text_without_pyarrow_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        'when,note,y\n2024-01-31T12:00,"two\nlines, one cell",1.5\n2024-02-01,,+2\nNA,x,3\n'
        "2024-02-03 06:30:00.25,é,\n2024-03-31,x,-1e-3\n",
        encoding="utf-8",
    )
    fast = read_table(path, "y", ["when"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    slow = read_table(path, "y", ["when"])
    np.testing.assert_array_equal(fast.X, slow.X)
    np.testing.assert_array_equal(fast.y, [1.5, 2, -1e-3])
    assert fast.num_dropped == slow.num_dropped == 2
    write_parquet_message = 'needs pyarrow: install it with pip install "orthogp[files]".'
    (tmp_path / "b.parquet").touch()
    with pytest.raises(InputError) as caught:
        open_source([str(tmp_path / "b.parquet")], ["y"])
    assert str(caught.value).endswith(write_parquet_message)


def test_pieces_of_a_text_file_are_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{i},{-i}\n" for i in range(2000)))
    source = open_source([str(path)], ["y"])
    header = read_header(str(path), "a.csv")
    pieces = split_text(source.pieces[0], header, 3000)
    assert len(pieces) > 3
    found = [
        block.columns
        for piece in pieces
        for block in read_piece(pickle.loads(pickle.dumps(piece)), source.reading)
    ]
    np.testing.assert_array_equal(np.concatenate(found, axis=1).T, all_rows(source))
    path.write_text(path.read_text() + "1\n")
    pieces = split_text(open_source([str(path)], ["y"]).pieces[0], header, 3000)
    with pytest.raises(InputError, match=r"Line 2002 of .*a\.csv must have 2 cells"):
        list(read_piece(pieces[-1], source.reading))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_reading_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(text_module, "_BLOCK_BYTES", 200)
    monkeypatch.setattr(arrow, "_BLOCK_ROWS", 7)
    for name in ("a", "b"):
        path = tmp_path / f"{name}{suffix}"
        data = "a,b,y\n" + "".join(f"{i},{i / 3!r},{i**2}\n" for i in range(60))
        if suffix == ".parquet":
            write_parquet(path)
        else:
            path.write_bytes(gzip.compress(data.encode()) if suffix == ".csv.gz" else data.encode())
    source = open_source([str(tmp_path)], ["y"])
    blocks = list(source.blocks())
    assert len(blocks) > 6
    for cut in range(1, len(blocks)):
        index, last = blocks[cut - 1]
        rest = [block.columns for _, block in source.blocks(index, last.rest)]
        expected = [block.columns for _, block in blocks[cut:]]
        np.testing.assert_array_equal(
            np.concatenate([np.empty((3, 0)), *rest], axis=1), np.concatenate(expected, axis=1)
        )


def test_text_beside_tables_is_no_table(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "y": [3.0, 4.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "README.txt").write_text("These rows are mine.\n")
    assert open_source(tmp_path, "y").num_rows == 2
    (tmp_path / "rows.parquet").unlink()
    (tmp_path / "README.txt").write_text("x,y\n1,2\n")
    assert open_source(tmp_path, "y").num_rows == 1


def test_whole_numbers_that_would_lose_digits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for value, good in ((2**53, True), (2**53 + 1, False)):
        pq.write_table(pa.table({"x": [1, value], "y": [1.0, 2.0]}), path)
        if good:
            assert open_source(path, "y").read()[0].X[1, 0] == value
        else:
            with pytest.raises(InputError, match=r"beyond 2\^53, such as 9007199254740993, which"):
                open_source(path, "y").read()
