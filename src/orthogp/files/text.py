"""Text tables (CSV, TSV) in blocks of whole lines, and tables written as text or as Parquet.

A block is parsed at once by pyarrow where it is installed. A block that pyarrow refuses is read
cell by cell, so that a row that is wrong can be named, or skipped and counted.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isinf, isnan, nan
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.files.columns import (
    MISSING,
    Block,
    Piece,
    Reading,
    Tally,
    TimeScale,
    complete_rows,
    find_column,
    has_arrow,
    parse_datetime,
    require_arrow,
)
from orthogp.persistence import replacing

#: What opens compressed text, by the ending of its name.
COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_DELIMITERS = ",;\t|"
# The bytes that are parsed at once.
_BLOCK_BYTES = 2**22
# The bytes that show the kind of each column.
_SAMPLE_BYTES = 2**16
# The longest line, or cell in quotation marks, in bytes.
_LONGEST_LINE = 2**26
# The first bytes of archives, spreadsheets among them.
_ARCHIVE_MARK = b"PK\x03\x04"
# The first bytes of compressed files, the endings of their names, and what uncompresses them.
_COMPRESSED_MARKS = {
    b"\x1f\x8b": (".gz", "gzip -d"),
    b"BZh": (".bz2", "bzip2 -d"),
    b"\xfd7zXZ": (".xz", "xz -d"),
    b"\x28\xb5\x2f\xfd": ("", "zstd -d"),
}
# The first bytes of text in two-byte characters.
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# The character in place of bytes that are not UTF-8.
_UNREADABLE = "\ufffd"
_DATE_FORMS = "as 2024-01-31 or 2024-01-31T12:30:00"
_DATE = re.compile(r"\d{1,4}([/.-])\d{1,2}\1\d{1,4}(\D.*)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?")
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?")
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
# Whole numbers beyond it are not all numbers of double precision.
_LARGEST_WHOLE = 2.0**53
_CURRENCIES = "$€£¥₹"
_TRUTHS = {"true": 1.0, "false": 0.0}


class TextHeader(NamedTuple):
    """The first line of a text table, and how the lines below look."""

    names: tuple[str, ...]
    delimiter: str
    #: The bytes of the first line, and the mean length of the lines below.
    size: int
    line_bytes: float
    #: Whether quotation marks were seen: a cell may then hold several lines.
    quoted: bool
    #: Whether decimals are written with a comma.
    decimal_comma: bool
    #: The first rows.
    sample: tuple[list[str], ...]


def read_header(path: str, label: str) -> TextHeader:
    """Return the header of a text table, and its first rows."""
    with _opened(path, label) as stream:
        first = stream.readline(_LONGEST_LINE)
        data = stream.read(_SAMPLE_BYTES)
        if len(data) == _SAMPLE_BYTES:
            data = data[: data.rfind(b"\n") + 1]
        _check_text(label, first)
        # Spreadsheets mark UTF-8 by a first character that belongs to no name.
        line = first.decode("utf-8-sig")
        text = data.decode("utf-8", errors="replace")
        delimiter = _delimiter(label, line, text)
        names = tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter), []))
        _check_header(label, names)
        sample = tuple(row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row)
    length = len(data) / max(1, data.count(b"\n"))
    quoted, comma = b'"' in first + data, delimiter != "," and _has_decimal_commas(sample)
    return TextHeader(names, delimiter, len(first), length, quoted, comma, sample)


def _delimiter(label: str, line: str, below: str) -> str:
    """Return what separates the cells of a table, by its first line; refuse runs of spaces."""
    found = max(_DELIMITERS, key=line.count)
    words = line.split()
    rows = [row.split() for row in below.splitlines() if row.strip()]
    spaced = len(words) > 1 and rows and all(len(row) == len(words) for row in rows)
    if line.count(found) or not spaced:
        return found
    if any("  " in row or row != row.strip() for row in (line.rstrip("\r\n"), *below.splitlines())):
        raise InputError(
            f"The cells of {label} must be separated by commas, semicolons, tabs, bars or single "
            "spaces, got several spaces: convert them, for instance by sed 's/^ *//; s/  */,/g'."
        )
    return " "


def _has_decimal_commas(sample: Sequence[list[str]]) -> bool:
    """Return whether some cells are decimals with a comma, and none with a point.

    12,345 alone proves nothing: the comma may separate thousands.
    """
    cells = [cell.strip() for row in sample for cell in row]
    return any(
        _DECIMAL_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in cells
    ) and not any(_DECIMAL_POINT.fullmatch(cell) for cell in cells)


def _check_text(label: str, first: bytes) -> None:
    """Raise unless the first line can be that of a table in UTF-8."""
    if not first:
        raise InputError(f"{label} is empty: a table begins with a line of column names.")
    if first.startswith(_ARCHIVE_MARK):
        raise InputError(
            f"{label} is a spreadsheet or an archive, not text: save the table as CSV in UTF-8."
        )
    for mark, (ending, command) in _COMPRESSED_MARKS.items():
        if first.startswith(mark):
            rename = f", or give it a name that ends in {ending}" if ending else ""
            raise InputError(f"{label} is compressed: uncompress it ({command}){rename}.")
    try:
        first.decode("utf-8")
    except UnicodeDecodeError as error:
        likely = "utf-16" if first.startswith(_UTF16_MARKS) else "latin1"
        raise InputError(
            f"{label} is not text in UTF-8: save it as CSV in UTF-8, or convert it, for instance "
            f"by iconv -f {likely} -t utf-8."
        ) from error


def column_kind(
    header: TextHeader, label: str, name: str, *, words: bool = False
) -> Literal["number", "time", "text"]:
    """Return what a column holds, by its first cells; refuse one that holds neither.

    Where `words` are taken, those that could not be written as numbers are text.
    """
    position = find_column(label, header.names, name)
    cells = [row[position] for row in header.sample if position < len(row)]
    known = [cell for cell in cells if not _is_missing(cell)]
    read = partial(_read_number, decimal_comma=header.decimal_comma)
    if not known or any(_is_a(read, cell) for cell in known):
        return "number"
    if _is_a(parse_datetime, known[0]):
        return "time"
    if words and not any(map(_rewriting, known)):
        return "text"
    where = f"line {2 + cells.index(known[0])} of {label}"
    remedy = (
        "predict labels by --classify, write categories as whole numbers (for a Categorical kernel "
        "in Python)"
    )
    raise _refusal(name, known[0], where, "finite numbers", remedy)


def split_text(piece: Piece, header: TextHeader, size: int) -> list[Piece]:
    """Return the pieces of about `size` bytes that a text table can be cut into.

    Compressed ones are not cut, nor those with quotation marks, where a line may be in a cell.
    """
    total = piece.size
    if piece.path.endswith(tuple(COMPRESSED)) or header.quoted or total - piece.begin <= 1.5 * size:
        return [piece]
    cuts = [piece.begin]
    with _opened(piece.path, piece.label) as stream:
        while cuts[-1] + 1.5 * size < total:
            stream.seek(cuts[-1] + size)
            stream.readline()
            cuts.append(stream.tell())
    ends = [*cuts[1:], total]
    return [
        piece._replace(begin=begin, end=end, line=piece.line if i == 0 else -1)
        for i, (begin, end) in enumerate(zip(cuts, ends))
        if begin < end
    ]


def text_blocks(piece: Piece, reading: Reading) -> Iterator[Block]:
    """Yield the rows of a piece of a text table."""
    header = read_header(piece.path, piece.label)
    parser = _Parser(piece, header, reading)
    at, line = piece.begin, piece.line
    with _opened(piece.path, piece.label) as stream:
        stream.seek(at)
        pending, ended = b"", False
        while not ended:
            wanted = _BLOCK_BYTES
            if piece.end >= 0:
                wanted = min(wanted, piece.end - at - len(pending))
            data = pending + stream.read(wanted)
            ended = len(data) < len(pending) + wanted or at + len(data) == piece.end
            cut = len(data) if ended else _whole_lines(data)
            body, pending = data[:cut], data[cut:]
            if len(pending) > _LONGEST_LINE:
                raise InputError(
                    f"{piece.label} has a line of more than {_LONGEST_LINE} bytes, or a quotation "
                    "mark that is never closed: is it a table?"
                )
            if body:
                columns, tally, kept = parser.parse(body, at, line)
                at += cut
                line = line if line < 0 else line + _count(body, b"\n")
                yield Block(columns, tally, piece._replace(begin=at, line=line), kept)


class _Parser:
    """Turns whole lines into columns of numbers."""

    def __init__(self, piece: Piece, header: TextHeader, reading: Reading) -> None:
        self._piece = piece
        self._header = header
        self._reading = reading
        self._used = [find_column(piece.label, header.names, name) for name in reading.names]
        self._kept = [find_column(piece.label, header.names, name) for name in reading.keep]
        # Date-times that name their zone are another type to pyarrow.
        self._zoned = [
            isinstance(scale, TimeScale) and _names_zone(header, position)
            for scale, position in zip(reading.scales, self._used)
        ]

    def parse(
        self, body: bytes, at: int, line: int
    ) -> tuple[NDArray[np.float64], Tally, tuple[NDArray, ...]]:
        """Return the columns of the lines that begin at a byte, and what became of the rows.

        At last, the columns that are handed on as they are.
        """
        columns, bad, first_bad = None, 0, None
        texts: tuple[NDArray, ...] = ()
        # Where columns are handed on, rows must be looked at one by one.
        if has_arrow() and not self._kept:
            from orthogp.files.arrow import parse_lines

            columns = parse_lines(
                body, self._header, used=self._used, scales=self._reading.scales, zoned=self._zoned
            )
        # What is infinite, or large enough for whole numbers to lose digits, is looked at closely.
        if columns is None or bool(np.any(np.abs(columns) >= _LARGEST_WHOLE)):
            columns, bad, first_bad, texts = self._cell_by_cell(body, at, line)
        return *complete_rows(columns, self._reading, bad, first_bad), texts

    def _cell_by_cell(
        self, body: bytes, at: int, line: int
    ) -> tuple[NDArray[np.float64], int, str | None, tuple[NDArray, ...]]:
        label, width = self._piece.label, len(self._header.names)
        if line < 0:
            line = _count_lines(self._piece, at)
        rows: list[list[float]] = []
        kept: list[list[str]] = []
        bad, first_bad = 0, None
        # Columns that are not used may be in any encoding.
        text = io.StringIO(body.decode("utf-8", errors="replace"), newline="")
        lines = csv.reader(text, delimiter=self._header.delimiter)
        for cells in lines:
            # A blank line is no row.
            if not cells:
                continue
            where = f"line {line + lines.line_num} of {label}"
            try:
                if len(cells) != width:
                    raise InputError(
                        f"L{where[1:]} must have {width} cells, as its first line has, got "
                        f"{len(cells)}: correct it, or skip such rows (--skip-bad)."
                    )
                rows.append(self._numbers(cells, where))
                kept.append([cells[j] for j in self._kept])
            except InputError:
                if not self._reading.skip_bad:
                    raise
                bad += 1
                first_bad = first_bad or where
        columns = np.array(rows, dtype=np.float64).reshape(len(rows), len(self._used)).T
        texts = tuple(
            np.array([row[k] for row in kept], dtype=object) for k in range(len(self._kept))
        )
        return np.ascontiguousarray(columns), bad, first_bad, texts

    def _numbers(self, cells: list[str], where: str) -> list[float]:
        numbers = []
        for j, scale in zip(self._used, self._reading.scales):
            name, cell = self._header.names[j], cells[j]
            try:
                if scale is None:
                    numbers.append(_read_number(cell, self._header.decimal_comma))
                else:
                    numbers.append(nan if is_no_text(cell) else scale.number(cell))
            except ValueError as error:
                wanted = "finite numbers"
                if isinstance(scale, TimeScale):
                    wanted = f"date-times {_DATE_FORMS}"
                elif scale is not None:
                    wanted = scale.describe()
                remedy = "leave such cells empty, skip such rows (--skip-bad)"
                raise _refusal(name, cell, where, wanted, remedy) from error
        return numbers


def _names_zone(header: TextHeader, position: int) -> bool:
    for row in header.sample:
        if position < len(row) and not _is_missing(row[position]):
            text = row[position].strip()
            return text.endswith("Z") or "+" in text or text.count("-") > 2
    return False


def _is_a(read: Callable[[str], object], cell: str) -> bool:
    try:
        read(cell)
    except ValueError:
        return False
    return True


def _whole_lines(data: bytes) -> int:
    """Return the number of bytes in whole lines; a line does not end between quotation marks."""
    cut = data.rfind(b"\n") + 1
    while cut and _count(data[:cut], b'"') % 2:
        cut = data.rfind(b"\n", 0, cut - 1) + 1
    return cut


def _count(data: bytes, byte: bytes) -> int:
    """Return how often a byte occurs: six times as fast as `bytes.count` where it is frequent."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord(byte)))


def _count_lines(piece: Piece, end: int) -> int:
    """Return the number of lines before a byte."""
    count = 0
    with _opened(piece.path, piece.label) as stream:
        while end > 0 and (data := stream.read(min(end, _BLOCK_BYTES))):
            count += _count(data, b"\n")
            end -= len(data)
    return count


@contextmanager
def _opened(path: str, label: str) -> Iterator[BinaryIO]:
    """Open a file; an error while it is read becomes one sentence."""
    opener = next((own for end, own in COMPRESSED.items() if path.endswith(end)), open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise InputError(f"There is no file {label}: check its name.") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{label} is damaged: what it compresses cannot be restored.") from error
    except OSError as error:
        raise InputError(f"{label} cannot be read: {error.strerror or error}.") from error
    except csv.Error as error:
        raise InputError(f"{label} cannot be read as CSV: {error}.") from error


# ---------------------------------------------------------------------- cells


def _check_header(label: str, names: Sequence[str]) -> None:
    """Raise unless the first line of a text file can be column names."""
    if not any(names):
        raise InputError(
            f"{label} must begin with a line of column names, but that line is empty: "
            "add one such as x,y."
        )
    if all(_is_a(float, name) for name in names):
        raise InputError(
            f"{label} must begin with a line of column names, but that line holds numbers only: "
            "add a line such as x,y."
        )


def _read_number(cell: str, decimal_comma: bool = False) -> float:
    """Return the number in a cell, NaN if it is missing, or raise `ValueError`.

    True is one and false is zero.
    """
    if decimal_comma and _DECIMAL_COMMA.fullmatch(cell.strip()):
        cell = cell.replace(",", ".")
    try:
        value = float(cell)
    except ValueError:
        if _is_missing(cell):
            return nan
        if cell.strip().lower() in _TRUTHS:
            return _TRUTHS[cell.strip().lower()]
        raise
    # Python also reads 1_000, which in a file is a label rather than a number.
    if isinf(value) or "_" in cell or _loses_digits(cell, value):
        raise ValueError(cell)
    return value


def _loses_digits(cell: str, value: float) -> bool:
    """Return whether a whole number is not the number that double precision makes of it."""
    return abs(value) >= _LARGEST_WHOLE and bool(_WHOLE.fullmatch(cell)) and int(cell) != value


def _is_missing(cell: str) -> bool:
    """Return whether a cell stands for no value."""
    return cell.strip().lower() in MISSING


def is_no_text(cell: str) -> bool:
    """Return whether a cell of dates or categories stands for no value."""
    return _is_missing(cell) or cell.strip().lower() == "nan"


def _refusal(name: str, cell: str, where: str, wanted: str, remedy: str) -> InputError:
    """Return the error for a cell; the remedy is for one that could not be written otherwise."""
    return InputError(
        f"Column {name!r} must hold {wanted}, got {cell!r} in {where}: "
        f"{_rewriting(cell) or remedy}, or choose other columns."
    )


def _rewriting(cell: str) -> str | None:
    """Return how a cell that could be a number or a date should be written, if it could."""
    if _UNREADABLE in cell:
        return "save the file in UTF-8"
    cell = cell.strip()
    if _DATE.fullmatch(cell):
        return f"write dates {_DATE_FORMS}"
    if _TIME_OF_DAY.fullmatch(cell):
        return "write times of day as numbers of hours, or together with their dates"
    if _WHOLE.fullmatch(cell):
        return "subtract a number close to it, because beyond 2^53 digits would be lost"
    bare = cell.strip(f"{_CURRENCIES}% \u00a0")
    if bare != cell and (_is_a(float, bare) or _DECIMAL_COMMA.fullmatch(bare.replace(".", ""))):
        return f"write the number without {'%' if cell.endswith('%') else 'its currency'}"
    if _THOUSANDS.fullmatch(cell):
        return "write numbers without separators of thousands, and decimals with a point"
    if _DECIMAL_COMMA.fullmatch(cell):
        return "write decimals with a point"
    return None


#: The name of standard input and output.
STANDARD = "-"
_TEXT_ENDINGS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
#: The endings of names of Parquet files.
PARQUET_ENDINGS = (".parquet", ".pq")


class TableWriter(Protocol):
    """Takes columns, some rows at a time."""

    def write(self, columns: Sequence[Any]) -> None:
        """Write rows: columns of NumPy or of pyarrow."""
        ...


def check_table_name(path: str) -> None:
    """Raise unless a table can be written under that name, which tells its format."""
    if path == STANDARD or Path(path).suffix in _TEXT_ENDINGS:
        return
    if Path(path).suffix not in PARQUET_ENDINGS:
        raise InputError(
            f"A table's name must end in .csv, .tsv or .parquet (or be - for standard output), got "
            f"{path}."
        )
    require_arrow("Writing Parquet")


@contextmanager
def table_writer(path: str, names: Sequence[str]) -> Iterator[TableWriter]:
    """Open a table to write to; it appears under its name when it is complete."""
    check_table_name(path)
    if path == STANDARD:
        yield TextWriter(sys.stdout, names, ",")
        sys.stdout.flush()
        return
    with replacing(path) as stream:
        if Path(path).suffix in PARQUET_ENDINGS:
            from orthogp.files.arrow import ParquetWriter

            writer = ParquetWriter(stream, names)
            try:
                yield writer
            finally:
                writer.close()
        else:
            with _as_text(stream) as text:
                yield TextWriter(text, names, _TEXT_ENDINGS[Path(path).suffix])


@contextmanager
def _as_text(stream: BinaryIO) -> Iterator[TextIO]:
    """Give a stream of bytes as one of text, and leave it open."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    try:
        yield text
    finally:
        text.detach()


class TextWriter:
    """Writes columns as CSV or TSV."""

    def __init__(self, stream: TextIO, names: Sequence[str], delimiter: str) -> None:
        self._writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
        self._writer.writerow(names)

    def write(self, columns: Sequence[Any]) -> None:
        """Write rows; NaN and not-a-time become empty cells."""
        self._writer.writerows(zip(*map(_cells, columns), strict=True))


def write_rows(
    path: str | PathLike[str], names: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Write rows as CSV below their column names; NaN becomes an empty cell."""
    with replacing(path) as stream, _as_text(stream) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow(["" if _is_nan(value) else value for value in row])


def check_destination(path: str | PathLike[str]) -> None:
    """Raise unless there is a directory for a file to be written: before long work, not after."""
    directory = Path(path).absolute().parent
    if not directory.is_dir():
        raise InputError(f"There is no directory {directory} to write {Path(path).name} into.")


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the first column of cells flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if j == 0 else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(column: Any) -> list[Any]:
    if hasattr(column, "to_pylist"):
        return ["" if value is None else value for value in column.to_pylist()]
    if column.dtype.kind == "O":
        return column.tolist()
    if column.dtype.kind == "M":
        # Whole seconds and whole days need no more digits than they have.
        for unit in ("D", "s"):
            if np.all((column.astype(f"M8[{unit}]") == column) | np.isnat(column)):
                column = column.astype(f"M8[{unit}]")
                break
        text = np.datetime_as_string(column)
        return ["" if cell == "NaT" else cell for cell in text.tolist()]
    return [_cell(value) for value in column.tolist()]


def _cell(value: float) -> object:
    if value != value:
        return ""
    # Whole numbers without a point: an hour of 3.0 was 3 in the file that it came from.
    return int(value) if abs(value) < 2**53 and value == int(value) else value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and isnan(value)
