"""Parquet files, and text at speed: the only file that imports pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.files.columns import (
    MISSING,
    Block,
    Categories,
    Piece,
    Reading,
    Scale,
    Tally,
    complete_rows,
    find_column,
)
from orthogp.rows import Domain

if TYPE_CHECKING:
    from orthogp.files.text import TextHeader

# The number of rows that are decoded at once.
_BLOCK_ROWS = 2**17
_NULLS = sorted({form(word) for word in (*MISSING, "nan") for form in (str, str.upper, str.title)})
_UNITS = {"s": 10**6, "ms": 10**3, "us": 1}
# Whole numbers beyond it are not all numbers of double precision.
_LARGEST_WHOLE = 2.0**53


def parquet_header(path: str, label: str) -> tuple[Any, tuple[int, ...]]:
    """Return the schema of a Parquet file, and the number of rows of each row group."""
    with _opened(path, label) as file:
        meta = file.metadata
        rows = tuple(meta.row_group(g).num_rows for g in range(meta.num_row_groups))
        return file.schema_arrow, rows


def parquet_kind(
    schema: Any, label: str, name: str, *, words: bool = False
) -> Literal["number", "time", "text"]:
    """Return what a column holds; refuse one that holds neither, nor words where they are taken."""
    kind = schema.field(find_column(label, schema.names, name)).type
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    if any(is_number(kind) for is_number in numbers):
        return "number"
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if words and (types.is_string(inner) or types.is_large_string(inner)):
        return "text"
    raise InputError(
        f"Column {name!r} of {label} holds {kind}, but must hold numbers or date-times: choose "
        "other columns, or write categories as whole numbers (for a Categorical kernel in Python)."
    )


def parquet_extent(path: str, label: str, names: Sequence[str]) -> Domain | None:
    """Return the box around columns by the file's statistics, `None` if there are none.

    Date-times are in microseconds since 1970.
    """
    with _opened(path, label) as file:
        meta = file.metadata
        kinds = [file.schema_arrow.field(name).type for name in names]
        positions = {meta.schema.column(i).path: i for i in range(meta.num_columns)}
        lower, upper = np.full(len(names), np.inf), np.full(len(names), -np.inf)
        for group in range(meta.num_row_groups):
            if meta.row_group(group).num_rows == 0:
                continue
            for j, (name, kind) in enumerate(zip(names, kinds)):
                found = meta.row_group(group).column(positions[name]).statistics
                opaque = not _has_numbers(kind)
                if found is None or not found.has_min_max or opaque:
                    return None
                low, high = _stated_extent(found, meta.schema.column(positions[name]), kind)
                lower[j], upper[j] = min(lower[j], low), max(upper[j], high)
    return Domain(lower, upper) if np.all(np.isfinite([lower, upper])) else None


def parquet_blocks(piece: Piece, reading: Reading) -> Iterator[Block]:
    """Yield the rows of some row groups of a Parquet file."""
    with _opened(piece.path, piece.label) as file:
        meta = file.metadata
        for name in (*reading.names, *reading.keep):
            find_column(piece.label, file.schema_arrow.names, name)
        for group in range(piece.begin, piece.end):
            total = meta.row_group(group).num_rows
            start = sum(meta.row_group(g).num_rows for g in range(group))
            at = piece.skip if group == piece.begin else 0
            skip = at
            try:
                wanted = [*reading.names, *reading.keep]
                for batch in file.iter_batches(_BLOCK_ROWS, [group], columns=wanted):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    part = batch.slice(skip)
                    columns, tally, good = _columns(part, reading, piece.label, start + at)
                    kept = tuple(part.column(name).filter(good) for name in reading.keep)
                    at, skip = at + batch.num_rows - skip, 0
                    yield Block(columns, tally, piece._replace(begin=group, skip=at), kept)
                if at != total:
                    raise pa.ArrowInvalid(f"{at} of {total} rows found")
            except (pa.ArrowException, OSError) as error:
                if not reading.skip_bad:
                    raise InputError(
                        f"Row group {group} of {piece.label} (rows {start + 1} to {start + total}) "
                        f"cannot be read: {_first_line(error)}; restore the file, or skip such "
                        "rows (--skip-bad)."
                    ) from error
                where = f"row group {group} of {piece.label}"
                empty = np.empty((len(reading.names), 0))
                rest = piece._replace(begin=group + 1, skip=0)
                yield Block(empty, Tally(bad=total - at, first_bad=where), rest)


def parse_lines(
    body: bytes,
    header: TextHeader,
    *,
    used: Sequence[int],
    scales: Sequence[Scale | None],
    zoned: Sequence[bool],
) -> NDArray[np.float64] | None:
    """Return columns of text lines as numbers, (k, n), or `None` if a row or a cell is odd."""
    names = [str(i) for i in range(len(header.names))]
    types = {
        str(j): _type(scale, "UTC" if zone else None) for j, scale, zone in zip(used, scales, zoned)
    }
    try:
        table = pacsv.read_csv(
            pa.BufferReader(body),
            read_options=pacsv.ReadOptions(column_names=names, block_size=len(body) + 1),
            parse_options=pacsv.ParseOptions(
                delimiter=header.delimiter, newlines_in_values=b'"' in body
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=types,
                include_columns=[str(j) for j in used],
                null_values=_NULLS,
                strings_can_be_null=True,
                decimal_point="," if header.decimal_comma else ".",
            ),
        )
    except (pa.ArrowException, OSError):
        return None
    columns = np.empty((len(used), table.num_rows))
    for j, scale in enumerate(scales):
        columns[j] = _numbers(table.column(j).combine_chunks(), scale)
    # A text that is not listed: it is looked at closely.
    return None if np.isinf(columns).any() else columns


def _type(scale: Scale | None, zone: str | None) -> Any:
    """Return the type of a column of text lines."""
    if scale is None:
        return pa.float64()
    return pa.string() if isinstance(scale, Categories) else pa.timestamp("us", zone)


def _has_numbers(kind: Any) -> bool:
    """Return whether statistics of a column are numbers: not those of decimals, halves, texts."""
    types = pa.types
    return types.is_temporal(kind) or (
        (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
        and not types.is_float16(kind)
    )


class ParquetWriter:
    """Writes columns, some rows at a time, as a Parquet file."""

    def __init__(self, stream: BinaryIO, names: Sequence[str]) -> None:
        self._stream, self._names = stream, list(names)
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Sequence[Any]) -> None:
        """Write rows; NaN and not-a-time become null."""
        arrays = [c if isinstance(c, pa.Array) else pa.array(c, from_pandas=True) for c in columns]
        batch = pa.record_batch(arrays, self._names)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """End the file."""
        if self._writer is None:
            # A table of no rows has columns all the same.
            self.write([np.empty(0)] * len(self._names))
        if self._writer is not None:
            self._writer.close()


# ---------------------------------------------------------------------- columns


def _columns(
    batch: Any, reading: Reading, label: str, start: int
) -> tuple[NDArray[np.float64], Tally, Any]:
    """Return the columns of a record batch whose first row follows `start` others.

    At last, which of its rows are finite.
    """
    good = np.ones(batch.num_rows, dtype=bool)
    columns = np.empty((len(reading.names), batch.num_rows))
    for j, (name, scale) in enumerate(zip(reading.names, reading.scales)):
        columns[j] = _numbers(batch.column(name), scale)
        if scale is None and pa.types.is_integer(batch.column(name).type):
            _check_whole(batch.column(name), columns[j], f"{name!r} of {label}")
    bad, first_bad = 0, None
    with np.errstate(invalid="ignore", over="ignore"):
        suspicious = ~np.isfinite(columns.sum(axis=1))
    if suspicious.any() and (infinite := np.isinf(columns)).any():
        j, i = np.argwhere(infinite)[0]
        where = f"row {start + i + 1} of {label}"
        scale = reading.scales[j]
        if isinstance(scale, Categories) and not reading.skip_bad:
            raise InputError(
                f"Column {reading.names[j]!r} must hold {scale.describe()}, got another in "
                f"{where}: correct it, or skip such rows (--skip-bad)."
            )
        if not reading.skip_bad:
            raise InputError(
                f"Column {reading.names[j]!r} must hold finite numbers, got {columns[j, i]} in "
                f"{where}: correct it, or skip such rows (--skip-bad)."
            )
        rows = infinite.any(axis=0)
        bad, first_bad, columns, good = int(rows.sum()), where, columns[:, ~rows], ~rows
    return *complete_rows(columns, reading, bad, first_bad), pa.array(good)


def _check_whole(array: Any, numbers: NDArray[np.float64], what: str) -> None:
    """Raise `InputError` if whole numbers are not the numbers that double precision has."""
    for i in np.flatnonzero(np.abs(numbers) >= _LARGEST_WHOLE):
        if (value := array[int(i)].as_py()) != int(numbers[i]):
            raise InputError(
                f"Column {what} holds whole numbers beyond 2^53, such as {value}, which would lose "
                "digits: subtract a number close to them, or choose other columns."
            )


def _numbers(array: Any, scale: Scale | None) -> NDArray[np.float64]:
    """Return an arrow array as numbers, with NaN for null; infinity is a text that is unknown."""
    if isinstance(scale, Categories):
        coded = array.cast(pa.string()).dictionary_encode()
        texts = [str(text).strip() for text in coded.dictionary.to_pylist()]
        known = {text: float(place) for place, text in enumerate(scale.levels)}
        numbers = [
            np.nan if text.lower() in (*MISSING, "nan") else known.get(text, np.inf)
            for text in texts
        ]
        # The last stands for null.
        return np.array([*numbers, np.nan])[coded.indices.fill_null(len(texts)).to_numpy()]
    if scale is None:
        return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    unit = array.type.unit
    count = array.cast(pa.int64()).fill_null(0).to_numpy()
    # Whole numbers until the origin is taken off: no digit is lost.
    if unit == "ns":
        numbers = (count - scale.origin_microseconds * 1000) / (scale.unit_microseconds * 1000)
    else:
        since = count - scale.origin_microseconds // _UNITS[unit]
        numbers = since * float(_UNITS[unit]) / scale.unit_microseconds
    if array.null_count:
        numbers[array.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return numbers


def _stated_extent(found: Any, column: Any, kind: Any) -> tuple[float, float]:
    """Return a row group's least and largest value; date-times in microseconds since 1970."""
    if pa.types.is_date(kind):
        return float(found.min_raw) * 86400e6, float(found.max_raw) * 86400e6
    if pa.types.is_timestamp(kind):
        # The unit in the file is not always that of the column.
        unit = json.loads(column.logical_type.to_json())["timeUnit"]
        length = {"milliseconds": 1e3, "microseconds": 1.0, "nanoseconds": 1e-3}[unit]
        return found.min_raw * length, found.max_raw * length
    return float(found.min), float(found.max)


# ---------------------------------------------------------------------- files


@contextmanager
def _opened(path: str, label: str) -> Iterator[Any]:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {label}: check its name.") from error
    except pa.ArrowInvalid as error:
        raise InputError(f"{label} is damaged or no Parquet file: {_first_line(error)}.") from error
    except OSError as error:
        reason = error.strerror or _first_line(error)
        raise InputError(f"{label} cannot be read: {reason}.") from error
    with file:
        yield file


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0].rstrip(". ")
