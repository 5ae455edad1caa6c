"""Rows from files: found, opened, scanned, and read in bounded blocks in a definite order."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.files.columns import (
    SINCE_1970,
    UNLISTED,
    Block,
    Categories,
    Piece,
    Reading,
    Scale,
    Tally,
    TimeScale,
    choose_inputs,
    find_column,
    listed,
    require_arrow,
)
from orthogp.files.text import (
    COMPRESSED,
    PARQUET_ENDINGS,
    STANDARD,
    column_kind,
    is_no_text,
    read_header,
    text_blocks,
)
from orthogp.maps.formats import is_map, map_table
from orthogp.persistence import FilePath, temporary_folder
from orthogp.rows import Domain, Rows

# A .txt file may hold anything: in a folder it is a table only if nothing else is.
_TEXT_ENDINGS = tuple(
    f"{kind}{packed}" for kind in (".csv", ".tsv", ".txt") for packed in ("", *COMPRESSED)
)
_PARQUET_MARK = b"PAR1"
_STANDARD_INPUT = "standard input"
# What the name of a map's table ends in, behind the name of the map.
_OF_MAP = ".map.parquet"
# The ratio of the size of text to its size when compressed, roughly.
_COMPRESSION = 4.0
# The largest number of categories of one column.
_MOST_LEVELS = 1000
# What a column holds, by its kind, and that in words.
_SCALES = {"number": type(None), "time": TimeScale, "text": Categories}
_HOLDS = {type(None): "numbers", TimeScale: "date-times", Categories: "categories in words"}
# The number of rows that tell whether a column holds True and False.
_SEEN_ROWS = 1000
# The bytes at the beginning and at the end of a file that stand for its content.
_EDGE_BYTES = 2**14

#: Called with the number of rows met since the last call.
Advance = Callable[[int], object]


@dataclass(frozen=True)
class RowSource:
    """Rows of one or many files."""

    #: Row groups and whole text files, in the order of reading.
    pieces: tuple[Piece, ...]
    reading: Reading
    #: Exact for Parquet, estimated from the lengths of lines for text.
    num_rows: int
    exact: bool
    #: The files in a few words.
    description: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The files."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))

    @property
    def num_bytes(self) -> int:
        """The memory that all rows take, as double precision."""
        return 8 * self.num_rows * len(self.reading.names)

    def with_times(self, times: Sequence[Scale | None]) -> RowSource:
        """Return the source with its date-times and categories on these scales."""
        for name, have, want in zip(self.reading.inputs, self.reading.times, times, strict=True):
            if type(have) is not type(want):
                raise InputError(
                    f"Column {name!r} of {self.description} holds {_HOLDS[type(have)]}, but must "
                    f"hold {_HOLDS[type(want)]}."
                )
        return replace(self, reading=replace(self.reading, times=tuple(times)))

    def keeping(self, names: Sequence[str]) -> RowSource:
        """Return the source with other columns kept as they are."""
        return replace(self, reading=replace(self.reading, keep=tuple(names)))

    def truths(self) -> list[str]:
        """Return the inputs that hold True or False, as their first rows tell."""
        numbers = zip(self.reading.inputs, self.reading.times, strict=True)
        names = [name for name, scale in numbers if scale is None]
        texts = Reading((), (), None, (), self.reading.skip_bad, keep_missing=True, keep=(*names,))
        found: list[str] = []
        kept: list[Any] = []
        for _, block in replace(self, reading=texts).blocks():
            kept = list(block.kept)
            break
        for name, column in zip(names, kept):
            first = column[:_SEEN_ROWS]
            values = first.to_pylist() if hasattr(first, "to_pylist") else first.tolist()
            words = {str(own) for own in values if own is not None and not is_no_text(str(own))}
            if words and {word.strip().lower() for word in words} <= {"true", "false"}:
                found.append(name)
        return found

    def with_categories(self) -> RowSource:
        """Return the source with all texts of its categories known, which takes a pass."""
        places = [j for j, scale in self.reading.categories.items() if scale == UNLISTED]
        if not places:
            return self
        names = [self.reading.inputs[j] for j in places]
        texts = Reading((), (), None, (), self.reading.skip_bad, keep_missing=True, keep=(*names,))
        found: list[set[str]] = [set() for _ in names]
        rows = 0
        for _, block in replace(self, reading=texts).blocks():
            rows += block.columns.shape[1]
            for seen, column in zip(found, block.kept):
                values = column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()
                seen.update(str(own).strip() for own in set(values) if own is not None)
        times = list(self.reading.times)
        for j, name, seen in zip(places, names, found):
            levels = tuple(sorted(text for text in seen if not is_no_text(text)))
            if not 2 <= len(levels) <= max(2, min(_MOST_LEVELS, rows // 2)):
                why = "has a single value" if len(levels) < 2 else "names rows, not groups of them"
                raise InputError(
                    f"Column {name!r} of {self.description} holds {len(levels):,} different texts "
                    f"in {rows:,} rows, and {why}: choose other columns by --inputs."
                )
            times[j] = Categories(levels)
        return self.with_times(times)

    def blocks(self, index: int = 0, rest: Piece | None = None) -> Iterator[tuple[int, Block]]:
        """Yield blocks of rows with the index of their piece, from the `rest` of piece `index`."""
        for i in range(index, len(self.pieces)):
            piece = rest if rest is not None and i == index else self.pieces[i]
            for block in read_piece(piece, self.reading):
                yield i, block

    def extent(self, advance: Advance = int) -> Domain:
        """Return the box around all inputs.

        By the statistics of Parquet files, else by reading the input columns. Values of rows that
        lack another one count.
        """
        return self.stated_extent() or self.checked_extent([self.scanned_extent(advance)])

    def scanned_extent(self, advance: Advance = int) -> Domain | None:
        """Return the box around the inputs as they are read, `None` if no row has all of them."""
        box = None
        for _, block in replace(self, reading=self.reading.only_inputs()).blocks():
            if block.columns.shape[1]:
                box = Domain.around(block.columns.T).with_box(box)
            advance(block.tally.met)
        return box

    def checked_extent(self, boxes: Sequence[Domain | None]) -> Domain:
        """Return the box around the boxes of parts; raise `InputError` if there is none."""
        known = [box for box in boxes if box is not None]
        if not known:
            raise self._without_rows(self.reading.inputs)
        lower, upper = np.array(known).swapaxes(0, 1)
        return Domain(lower.min(axis=0), upper.max(axis=0))

    def stated_extent(self) -> Domain | None:
        """Return the box around all inputs by the statistics of Parquet files, if all have them."""
        if any(piece.kind != "parquet" for piece in self.pieces):
            return None
        from orthogp.files.arrow import parquet_extent

        boxes = []
        for path, label in {piece.path: piece.label for piece in self.pieces}.items():
            boxes.append(parquet_extent(path, label, self.reading.inputs))
            if boxes[-1] is None:
                return None
        return self._on_scales(self.checked_extent(boxes), self.reading.times)

    def scaled(self) -> RowSource:
        """Return the source with units chosen for its date-times; units chosen before stay."""
        if SINCE_1970 not in self.reading.times:
            return self
        return self.scaled_for(self.extent())[0]

    def scaled_for(self, extent: Domain) -> tuple[RowSource, Domain]:
        """Return the source with units that suit its extent, and the extent in these units."""
        chosen = [
            TimeScale.spanning(low, high) if scale == SINCE_1970 else None
            for scale, low, high in zip(self.reading.times, *extent, strict=True)
        ]
        times = [new or old for new, old in zip(chosen, self.reading.times, strict=True)]
        return self.with_times(times), self._on_scales(extent, chosen)

    @staticmethod
    def _on_scales(extent: Domain, times: Sequence[Scale | None]) -> Domain:
        """Return a box with the date-times of some columns, since 1970, on other scales."""
        edges = np.array(extent)
        for j, scale in enumerate(times):
            if isinstance(scale, TimeScale):
                edges[:, j] = scale.rescaled(edges[:, j], SINCE_1970)
        return Domain(*edges)

    def read(self, advance: Advance = int) -> tuple[Rows, Tally]:
        """Return all rows at once, and their tally."""
        parts, tally = [], Tally()
        for _, block in self.blocks():
            parts.append(block.columns)
            tally = tally.plus(block.tally)
            advance(block.tally.met)
        if not tally.used:
            raise self._without_rows(self.reading.names)
        columns = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return as_rows(columns, self.reading), tally

    def _without_rows(self, names: Sequence[str]) -> InputError:
        return InputError(
            f"{self.description} has no row with a number in each of {listed(names)}."
        )


def as_rows(columns: NDArray[np.float64], reading: Reading) -> Rows:
    """Return columns (k, n) as rows, without copying more than offsets."""
    q, p = len(reading.covariates), len(reading.targets)
    d = len(reading.inputs) + q
    weights = None if reading.weights is None else columns[d + p]
    X, y = columns[:d].T, columns[d : d + p].T
    if reading.size == "offset":
        # The logarithm of an exposure.
        y = np.column_stack([y[:, :-1], np.exp(y[:, -1])])
    return Rows(X, y, weights, one_target=p == 1, num_covariates=q)


def read_piece(piece: Piece, reading: Reading) -> Iterator[Block]:
    """Yield the rows of one piece; it needs nothing but its arguments, in any process."""
    check_unchanged(piece)
    try:
        if piece.kind == "text":
            yield from text_blocks(piece, reading)
        else:
            from orthogp.files.arrow import parquet_blocks

            yield from parquet_blocks(piece, reading)
    except InputError:
        # A file that was written to meanwhile is the first thing to say.
        check_unchanged(piece)
        raise
    check_unchanged(piece)


def check_unchanged(piece: Piece) -> None:
    """Raise `InputError` if a file is not what it was when it was opened."""
    if _stamp(piece.path, piece.label) != (piece.size, piece.modified, piece.content):
        raise InputError(
            f"{piece.label} must stay as it is while it is read, but it has changed since it was "
            "opened: run again when nothing writes to it."
        )


def _stamp(path: str, label: str) -> tuple[int, int, str]:
    """Return the size of a file, its time of change in microseconds, and a code of its content.

    The code is of the first and last bytes, and of all the footer of a Parquet file.
    """
    try:
        with open(path, "rb") as stream:
            found = os.fstat(stream.fileno())
            code = hashlib.sha256(stream.read(_EDGE_BYTES))
            stream.seek(max(found.st_size - 8, 0))
            length, mark = stream.read(4), stream.read(4)
            footer = int.from_bytes(length, "little") + 8 if mark == _PARQUET_MARK else 0
            stream.seek(max(found.st_size - max(footer, _EDGE_BYTES), 0))
            code.update(stream.read())
    except FileNotFoundError as error:
        raise InputError(f"There is no file {label}: check its name.") from error
    except OSError as error:
        raise InputError(f"{label} cannot be read: {error.strerror or error}.") from error
    return found.st_size, found.st_mtime_ns // 1000, code.hexdigest()


# ---------------------------------------------------------------------- opening


def open_source(
    data: FilePath | Sequence[FilePath],
    targets: str | Sequence[str] = (),
    inputs: Sequence[str] | None = None,
    *,
    weights: str | None = None,
    covariates: Sequence[str] | None = None,
    skip_bad: bool = False,
    keep_missing: bool = False,
    keep: Sequence[str] = (),
    categories: bool = False,
    size: Mapping[str, str] | None = None,
) -> RowSource:
    """Return the rows of files, folders and patterns.

    The columns of every file are checked; no row is read yet.

    Parameters
    ----------
    data : path or sequence of paths
        Files, folders (all tables below them), patterns such as "data/*.parquet".
    targets : str or sequence of str
        The columns of y.
    inputs : sequence of str, optional
        The columns of X; all others if those are at most three.
    weights : str, optional
        The column of weights.
    covariates : sequence of str, optional
        The columns with linear effects.
    skip_bad, keep_missing, keep
        See `Reading`.
    categories : bool
        Whether inputs may hold text; `RowSource.with_categories` then lists it.
    size : mapping, optional
        The column of exposures, offsets or trials, by which of these it holds: it becomes the last
        of the targets.
    """
    targets = [targets] if isinstance(targets, str) else targets
    targets = [*targets, *(size or {}).values()]
    paths = [data] if isinstance(data, str | os.PathLike) else data
    files = find_files([str(path) for path in paths])
    labels = [label for _, label in files]
    first = _open_file(*files[0])
    covariates = tuple(covariates or ())
    # What is handed on is no input unless it is named as one.
    others = targets if inputs is not None else (*targets, *keep)
    inputs = choose_inputs(first.label, first.names, others, inputs, weights, covariates)
    names = [*inputs, *covariates, *targets, *([] if weights is None else [weights])]
    pieces: list[Piece] = []
    num_rows, exact = 0.0, True
    # One after the other: headers of text hold some rows.
    for file in chain([first], (_open_file(path, label) for path, label in files[1:])):
        for name in names:
            if file is not first and name not in file.names:
                raise InputError(
                    f"{file.label} has no column {name!r}, which {first.label} has; its columns "
                    f"are {listed(file.names)}."
                )
            find_column(file.label, file.names, name)
        for name in keep:
            find_column(file.label, file.names, name)
        for name in names:
            kind, want = (own.kind(name, words=categories) for own in (file, first))
            if name not in inputs and kind == "time":
                raise InputError(
                    f"Column {name!r} of {file.label} holds date-times, but only inputs may: "
                    "targets, weights and covariates must be numbers."
                )
            if name not in inputs and kind == "text":
                remedy = "choose another column"
                if name in covariates:
                    remedy = "write it in numbers (0 and 1), or name it among the inputs instead"
                elif name in targets:
                    remedy = "learn the probability of each word by --classify, or " + remedy
                raise InputError(
                    f"Column {name!r} of {file.label} holds words, but must hold numbers: {remedy}."
                )
            if kind != want:
                raise InputError(
                    f"Column {name!r} holds {_HOLDS[_SCALES[kind]]} in {file.label}, but "
                    f"{_HOLDS[_SCALES[want]]} in {first.label}."
                )
        pieces += file.pieces
        num_rows, exact = num_rows + file.num_rows, exact and file.exact
    start = {"number": None, "time": SINCE_1970, "text": UNLISTED}
    unscaled = tuple(start[first.kind(name, words=categories)] for name in inputs)
    reading = Reading(
        tuple(inputs),
        tuple(targets),
        weights,
        unscaled,
        skip_bad,
        keep_missing,
        covariates,
        tuple(keep),
        next(iter(size or ()), None),
    )
    description = labels[0]
    if len(labels) > 1:
        description = f"{len(labels)} files from {labels[0]} to {labels[-1]}"
    return RowSource(tuple(pieces), reading, round(num_rows), exact, description)


def has_column(data: Sequence[FilePath], name: str) -> bool:
    """Return whether the first of the files has a column of that name."""
    return name in _open_file(*find_files([str(path) for path in data])[0]).names


class _File(NamedTuple):
    label: str
    names: tuple[str, ...]
    kind: Callable[..., Literal["number", "time", "text"]]
    pieces: list[Piece]
    num_rows: float
    exact: bool


def _open_file(path: str, label: str) -> _File:
    stamp = _stamp(path, label)
    if not _is_parquet(path):
        header = read_header(path, label)
        length = stamp[0] * (_COMPRESSION if path.endswith(tuple(COMPRESSED)) else 1.0)
        rows = max(length - header.size, 0.0) / max(header.line_bytes, 1.0)
        pieces = [Piece(path, label, "text", *stamp, header.size, -1, line=1)]
        kind = partial(column_kind, header, label)
        return _File(label, header.names, kind, pieces, rows, exact=False)
    require_arrow(f"Reading {label}")
    from orthogp.files.arrow import parquet_header, parquet_kind

    schema, group_rows = parquet_header(path, label)
    groups = range(len(group_rows))
    pieces = [Piece(path, label, "parquet", *stamp, group, group + 1) for group in groups]
    kind = partial(parquet_kind, schema, label)
    return _File(label, tuple(schema.names), kind, pieces, sum(group_rows), exact=True)


# ---------------------------------------------------------------------- which files


def find_files(data: Sequence[str]) -> list[tuple[str, str]]:
    """Return the files that names, folders and patterns stand for, each with its label."""
    if not data:
        raise InputError("No data were named.")
    found: dict[str, str] = {}
    for name in data:
        path = Path(name)
        if path.is_dir():
            tables = [file for file in path.rglob("*") if _is_table(file, path)]
            known = [file for file in tables if ".txt" not in file.suffixes[-2:]]
            inside = sorted(map(str, known or tables))
            if not inside:
                raise InputError(f"{name} holds no CSV, TSV or Parquet file.")
            found.update((file, file) for file in inside)
        elif not path.exists() and has_magic(name):
            matches = sorted(match for match in glob(name, recursive=True) if Path(match).is_file())
            if not matches:
                raise InputError(f"No file matches {name}.")
            found.update((match, match) for match in matches)
        else:
            # Standard input, or the table of a map.
            ours = path.name == _STANDARD_INPUT or path.name.endswith(_OF_MAP)
            found[name] = path.name.removesuffix(_OF_MAP) if ours else name
    return list(found.items())


@contextmanager
def as_tables(data: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names of tables: standard input ("-") and maps become files while they are read."""
    if STANDARD not in data and not any(map(is_map, data)):
        yield tuple(data)
        return
    with temporary_folder() as folder:
        yield tuple(_as_table(name, folder) for name in data)


def _as_table(name: str, folder: Path) -> str:
    if is_map(name):
        require_arrow(f"Reading {name}")
        path = folder / f"{Path(name).name}{_OF_MAP}"
        map_table(name).to_parquet(path)
        return str(path)
    if name != STANDARD:
        return name
    path = folder / _STANDARD_INPUT
    with path.open("wb") as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream)
    if path.stat().st_size == 0:
        raise InputError("Standard input is empty.")
    return str(path)


def _is_table(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return not hidden and file.name.endswith((*_TEXT_ENDINGS, *PARQUET_ENDINGS)) and file.is_file()


def _is_parquet(path: str) -> bool:
    """Return whether a file is Parquet, by its name or its first bytes."""
    if path.endswith((*PARQUET_ENDINGS, *_TEXT_ENDINGS)):
        return path.endswith(PARQUET_ENDINGS)
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_PARQUET_MARK)) == _PARQUET_MARK
    except OSError:
        # The reader of text says why in a sentence.
        return False


# ---------------------------------------------------------------------- one table at once


class Table(NamedTuple):
    """The rows of a file that hold numbers in all columns asked for: X (n, d) and y (n,)."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    #: The names of the columns.
    inputs: tuple[str, ...]
    target: str
    #: The number of rows left out because a value was missing.
    num_dropped: int
    #: For each input, the meaning of its numbers if it holds date-times.
    times: tuple[Scale | None, ...]


def read_table(path: FilePath, target: str, inputs: Sequence[str] | None = None) -> Table:
    """Return columns of a CSV, TSV or Parquet file, of a folder of files, or of a pattern.

    Rows with an empty cell (or NA, NaN, null) in the columns asked for are dropped and counted.
    Other columns may hold anything.

    Parameters
    ----------
    path : path
        Text has column names in its first line, is separated by commas, semicolons, tabs or bars,
        whichever that line has most of, or by single spaces, and compressed if its name ends in
        ".gz", ".bz2" or ".xz".
    target : str
        The column of y.
    inputs : sequence of str, optional
        The columns of X; all others than the target if those are at most three.
    """
    source = open_source(path, target, inputs).scaled()
    rows, tally = source.read()
    reading = source.reading
    return Table(rows.X, rows.y[:, 0], reading.inputs, target, tally.missing, reading.times)
