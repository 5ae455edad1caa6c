"""CSV files: which rows and columns come back, and what is said about those that cannot."""

import bz2
import gzip
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orthogp import InputError
from orthogp.files.source import read_table


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.csv"


def test_columns_are_found_by_name(file: Path) -> None:
    write(file, "b,city,y,a\n1,Oslo,-2.5e3,3\n4,Rome,5,6\n")
    table = read_table(file, "y", ["a", "b"])
    np.testing.assert_array_equal(table.X, [[3, 1], [6, 4]])
    np.testing.assert_array_equal(table.y, [-2500, 5])
    assert (table.inputs, table.target, table.num_dropped) == (("a", "b"), "y", 0)


def test_all_others_are_inputs_by_default(file: Path) -> None:
    write(file, "a,y,b,c\n1,2,3,4\n")
    table = read_table(str(file), "y")
    assert table.inputs == ("a", "b", "c")
    np.testing.assert_array_equal(table.X, [[1, 3, 4]])


def test_a_counter_without_a_name_is_no_input(file: Path) -> None:
    write(file, ",x,y\n0,1.5,2\n1,2.5,3\n")
    assert read_table(file, "y").inputs == ("x",)


def test_every_digit_survives(file: Path) -> None:
    values = np.random.default_rng(0).standard_normal((50, 2)) * 10.0 ** np.arange(-25, 25)[:, None]
    write(file, "x,y\n" + "".join(f"{a!r},{b!r}\n" for a, b in values.tolist()))
    table = read_table(file, "y")
    np.testing.assert_array_equal(np.column_stack([table.X, table.y]), values)


def test_rows_that_lack_a_used_value_are_dropped_and_counted(file: Path) -> None:
    lines = ["x,note,y", "1,,2", ",b,3", "4,c, ", "NA,d,5", "6,e,NaN", "7,f,null", "8,g,9"]
    write(file, "\n".join(lines))
    table = read_table(file, "y", ["x"])
    np.testing.assert_array_equal(table.X[:, 0], [1, 8])
    np.testing.assert_array_equal(table.y, [2, 9])
    assert table.num_dropped == 5


@pytest.mark.parametrize(
    "text",
    [
        "x,y\n1,2\n3,4\n",
        "x,y\r\n1,2\r\n3,4\r\n",
        "x,y\n\n1,2\n\n3,4",
        "x;y\n1;2\n3;4\n",
        "x\ty\n1\t2\n3\t4\n",
        '"x","y"\n"1","2"\n"3","4"\n',
        " x , y \n 1 , 2 \n 3 , 4 \n",
        "\ufeffx,y\n1,2\n3,4\n",
    ],
    ids=["plain", "crlf", "blank lines", "semicolons", "tabs", "quotes", "spaces", "mark"],
)
def test_dialects(file: Path, text: str) -> None:
    table = read_table(write(file, text), "y", ["x"])
    np.testing.assert_array_equal(np.column_stack([table.X, table.y]), [[1, 2], [3, 4]])


@pytest.mark.parametrize("packer", [gzip, bz2, lzma])
def test_compressed_files_are_known_by_name(tmp_path: Path, packer: Any) -> None:
    ending, command = {gzip: (".gz", "gzip"), bz2: (".bz2", "bzip2"), lzma: (".xz", "xz")}[packer]
    path = tmp_path / f"data.csv{ending}"
    path.write_bytes(packer.compress(b"x,y\n1,2\n"))
    assert read_table(path, "y").X == 1
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="is damaged"):
        read_table(path, "y")
    other = tmp_path / "data.csv"
    other.write_bytes(packer.compress(b"x,y\n1,2\n"))
    with pytest.raises(InputError, match=rf"\({command} -d\), or .* ends in \{ending}\.$"):
        read_table(other, "y")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("x;y\n1;2,5\n3;-4,125e1\n", [[1, 2.5], [3, -41.25]]),
        ("x;y\n6,370;-0,544\n8,250;0,908\n", [[6.37, -0.544], [8.25, 0.908]]),
        ("x\ty\n0,25\t2,5\n\t4\n", [[0.25, 2.5]]),
        ("x|y\n1|2\n3|4\n", [[1, 2], [3, 4]]),
        ("x y\n1 2\n3 4\n", [[1, 2], [3, 4]]),
        ("x,y\nTrue,2\nfalse,4\n", [[1, 2], [0, 4]]),
        ("x,y\n9007199254740992,2\n1e20,4\n", [[2.0**53, 2], [1e20, 4]]),
    ],
)
def test_numbers_are_read_as_people_write_them(
    file: Path, text: str, rows: list[list[float]]
) -> None:
    table = read_table(write(file, text), "y", ["x"])
    np.testing.assert_array_equal(np.column_stack([table.X, table.y]), rows)


def test_months_are_dates(file: Path) -> None:
    write(file, "x,y\n2020-01,1\n2020-03,2\n2021-01,3\n")
    assert read_table(file, "y").X.ravel().tolist() == [0, 60, 366]


@pytest.mark.parametrize(
    ("cell", "advice"),
    [
        ("$3.08", "write the number without its currency"),
        ("3,08 €", "write the number without its currency"),
        ("0.08%", "write the number without %"),
        ('"10,084.50"', "write numbers without separators of thousands"),
        ('"10,084"', "write numbers without separators of thousands"),
        ("1'084.5", "write numbers without separators of thousands"),
        ("00:00:00", "write times of day as numbers of hours"),
        ("9007199254740993", "subtract a number close to it"),
        ("16/12/2006", "write dates as"),
        ("ripe", "write categories as whole numbers"),
    ],
)
@pytest.mark.parametrize("first", ["", "1\n"])
def test_advice_fits_the_cell(file: Path, cell: str, advice: str, first: str) -> None:
    # Among numbers, or in a column of its kind; the separator is no part of any cell.
    write(file, f"x;y\n{first and '1;1' + first[1:]}2;{cell}\n")
    with pytest.raises(InputError) as caught:
        read_table(file, "y", ["x"])
    if cell != "ripe" or not first:
        assert advice in str(caught.value)


def test_several_spaces_between_cells_are_refused_with_advice(file: Path) -> None:
    write(file, "x   y\n1   2\n10  3\n")
    with pytest.raises(InputError, match="or single spaces, got several spaces: convert them"):
        read_table(file, "y")


def test_sentences_with_spaces_are_no_columns(file: Path) -> None:
    write(file, "annual mean,y\n1,2\n3,4\n")
    assert read_table(file, "y").inputs == ("annual mean",)


@pytest.mark.parametrize(
    ("text", "inputs", "complaint"),
    [
        ("", None, "is empty: a table begins with a line of column names."),
        ("\n1,2\n", None, "a line of column names, but that line is empty: add one such as x,y."),
        ("PK\x03\x04...", None, "is a spreadsheet or an archive, not text: save the table as CSV"),
        ("1,2\n3,4\n", None, "that line holds numbers only: add a line such as x,y."),
        ("x,z\n1,2\n", None, "has no column 'y'; its columns are x, z."),
        ("x,y\n1,2\n", ["x", "w"], "has no column 'w'; its columns are x, y."),
        ("y\n1\n", None, "has no column besides 'y' to predict it from."),
        (
            "a,b,c,d,y\n",
            None,
            "'y': name those to predict from by --inputs (a, b, c, d); more than",
        ),
        (",".join(f"c{i}" for i in range(40)) + "\n", None, "c28, c29 and 10 others."),
        ("x,x,y\n1,2,3\n", ["x"], "has 2 columns named 'x': rename them."),
        ("x,y\n1,2\n", ["y"], "'y' is both target and input: leave it out of the inputs."),
        ("x,y\n1,2\n", ["x", "x"], "The inputs must differ, got x, x."),
        ("x,y\n1,2\n", [], "inputs must name at least one column, got none."),
        (
            "x,y\n1,2\n3,4,5\n",
            None,
            "must have 2 cells, as its first line has, got 3: correct it, or",
        ),
        ("x,y\n1,2\n3\n", None, "Line 3 of "),
        ("x,y\n\n,2\n3,four\n", None, "Column 'y' must hold finite numbers, got 'four' in line 4"),
        ("x,y\n1,inf\n", None, "Column 'y' must hold finite numbers, got 'inf' in line 2 of "),
        ("x,y\n1_000,2\n", None, "Column 'x' must hold finite numbers, got '1_000' in line 2 of "),
        ('x,y\n1,"2,5"\n', None, "data.csv: write decimals with a point, or choose other columns"),
        ("x,y\n16/12/2006,2\n", None, "data.csv: write dates as 2024-01-31 or 2024-01-31T12:30:00"),
        ("x,y\n1,ripe\n", None, "data.csv: predict labels by --classify, write categories as"),
        (
            "x,y\n1,2\n2,ripe\n",
            None,
            "data.csv: leave such cells empty, skip such rows (--skip-bad",
        ),
        ("x,y\n1,\n,2\n", None, "has no row with a number in each of x, y."),
        ("x,y\n", None, "has no row with a number in each of x, y."),
        ('x,y\n"' + "1" * 200_000, None, "cannot be read as CSV: field larger than field limit"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    file: Path, text: str, inputs: list[str] | None, complaint: str
) -> None:
    write(file, text)
    with pytest.raises(InputError) as caught:
        read_table(file, "y", inputs)
    assert complaint in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("arrow", [True, False])
def test_columns_that_are_not_used_may_be_in_any_encoding(
    file: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    if not arrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    write(file, "x,place,y\n1,Orléans,2\n3,Nîmes,4\n", encoding="latin-1")
    np.testing.assert_array_equal(read_table(file, "y", ["x"]).X[:, 0], [1, 3])
    with pytest.raises(InputError, match="save the file in UTF-8, or choose other columns"):
        read_table(file, "y")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    latin = write(tmp_path / "latin.csv", "größe,y\n1,2\n", encoding="latin-1")
    wide = write(tmp_path / "wide.csv", "x,y\n1,2\n", encoding="utf-16")
    plain = write(tmp_path / "plain.csv.gz", "x,y\n1,2\n")
    packed = tmp_path / "packed.csv"
    packed.write_bytes(gzip.compress(b"x,y\n1,2\n"))
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(b"x,y\n1,2\n")[:-6])
    for path, complaint in [
        (missing, f"There is no file {missing}: check its name."),
        *(
            (
                path,
                f"{path} is not text in UTF-8: save it as CSV in UTF-8, or convert it, for "
                f"instance by iconv -f {encoding} -t utf-8.",
            )
            for path, encoding in ((latin, "latin1"), (wide, "utf-16"))
        ),
        (plain, f"{plain} cannot be read: Not a gzipped file (b'x,')."),
        (
            packed,
            f"{packed} is compressed: uncompress it (gzip -d), or give it a name that ends in .gz.",
        ),
        (cut, f"{cut} is damaged: what it compresses cannot be restored."),
        (tmp_path / "none*.csv", f"No file matches {tmp_path / 'none*.csv'}."),
    ]:
        with pytest.raises(InputError) as caught:
            read_table(path, "y")
        assert str(caught.value) == complaint
