"""Tables written: as CSV, TSV or Parquet, and as text in columns."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

import numpy as np

from orthogp.errors import InputError
from orthogp.files.columns import require_arrow
from orthogp.persistence import replacing

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
