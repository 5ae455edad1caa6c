"""Rows from files: found, opened, scanned, and read in bounded blocks in a definite order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.tables.files import describe_files, find_files, is_parquet
from orthogp.tables.names import choose_inputs, find_column, listed
from orthogp.tables.pieces import Block, Piece, Reading, Tally, require_arrow
from orthogp.tables.text import column_kind, read_header, text_blocks, text_piece
from orthogp.tables.times import SINCE_1970, TimeScale

# Compressed text is about so much smaller.
_COMPRESSION = 4.0

#: Called with the number of rows met since the last call.
Advance = Callable[[int], object]


class Extent(NamedTuple):
    """The box around the inputs, (d,) each."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class RowArrays(NamedTuple):
    """Rows in memory: inputs (n, d), targets (n, p), weights (n,) or `None`."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None


@dataclass(frozen=True)
class RowSource:
    """Rows of one or many files.

    Attributes
    ----------
    pieces : tuple of Piece
        Units of work, in the order of reading: row groups, and whole text files.
    reading : Reading
        The columns.
    num_rows : int
        How many rows there are: exact for Parquet, by the lines' lengths for text.
    exact : bool
        Whether that number is exact.
    description : str
        The files in a few words.
    """

    pieces: tuple[Piece, ...]
    reading: Reading
    num_rows: int
    exact: bool
    description: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The files."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))

    @property
    def num_bytes(self) -> int:
        """What all rows take in memory, as double precision."""
        return 8 * self.num_rows * len(self.reading.names)

    def with_times(self, times: Sequence[TimeScale | None]) -> RowSource:
        """Return the source with its date-times on these scales."""
        for name, have, want in zip(self.reading.inputs, self.reading.times, times, strict=True):
            if (have is None) != (want is None):
                held = "numbers" if have is None else "date-times"
                other = "numbers" if want is None else "date-times"
                raise InputError(
                    f"Column {name!r} of {self.description} holds {held}, but must hold {other}."
                )
        return replace(self, reading=replace(self.reading, times=tuple(times)))

    def blocks(self, index: int = 0, rest: Piece | None = None) -> Iterator[tuple[int, Block]]:
        """Yield blocks of rows with the index of their piece.

        Parameters
        ----------
        index, rest
            Where to go on: the piece, and what is left of it.
        """
        for i in range(index, len(self.pieces)):
            piece = rest if rest is not None and i == index else self.pieces[i]
            for block in read_piece(piece, self.reading):
                yield i, block

    def extent(self, advance: Advance = int) -> Extent:
        """Return the box around all inputs.

        By the statistics of Parquet files, else by reading the input columns. Values of rows that
        lack another one count.
        """
        stated = self._stated_extent()
        if stated is not None:
            return stated
        inputs = replace(self, reading=self.reading.only_inputs())
        dims = len(self.reading.inputs)
        lower, upper = np.full(dims, np.inf), np.full(dims, -np.inf)
        for _, block in inputs.blocks():
            if block.columns.shape[1]:
                lower = np.minimum(lower, block.columns.min(axis=1))
                upper = np.maximum(upper, block.columns.max(axis=1))
            advance(block.tally.met)
        if not np.all(lower <= upper):
            raise InputError(
                f"{self.description} has no row with a number in each of "
                f"{listed(self.reading.inputs)}."
            )
        return Extent(lower, upper)

    def _stated_extent(self) -> Extent | None:
        if any(piece.kind != "parquet" for piece in self.pieces):
            return None
        from orthogp.tables.arrow import parquet_extent

        inputs = self.reading.inputs
        labels = {piece.path: piece.label for piece in self.pieces}
        found = []
        for path, label in labels.items():
            extent = parquet_extent(path, label, inputs)
            if extent is None:
                return None
            found.append(extent)
        lower = np.min([extent[0] for extent in found], axis=0)
        upper = np.max([extent[1] for extent in found], axis=0)
        for j, scale in enumerate(self.reading.times):
            if scale is not None:
                lower[j] = scale.rescaled(lower[j], SINCE_1970)
                upper[j] = scale.rescaled(upper[j], SINCE_1970)
        return Extent(lower, upper)

    def scaled(self, advance: Advance = int) -> tuple[RowSource, Extent | None]:
        """Return the source with units chosen for its date-times, and the extent if that took one.

        Scales that were chosen before stay.
        """
        if SINCE_1970 not in self.reading.times:
            return self, None
        lower, upper = self.extent(advance)
        times = [
            TimeScale.spanning(low, high) if scale == SINCE_1970 else scale
            for scale, low, high in zip(self.reading.times, lower, upper)
        ]
        for j, (old, new) in enumerate(zip(self.reading.times, times)):
            if old == SINCE_1970 and new is not None:
                lower[j], upper[j] = new.rescaled(np.array([lower[j], upper[j]]), SINCE_1970)
        return self.with_times(times), Extent(lower, upper)

    def read(self, advance: Advance = int) -> tuple[RowArrays, Tally]:
        """Return all rows at once, and what became of them."""
        parts, tally = [], Tally()
        for _, block in self.blocks():
            parts.append(block.columns)
            tally = tally.plus(block.tally)
            advance(block.tally.met)
        if not tally.used:
            raise InputError(
                f"{self.description} has no row with a number in each of "
                f"{listed(self.reading.names)}."
            )
        columns = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return as_rows(columns, self.reading), tally


def as_rows(columns: NDArray[np.float64], reading: Reading) -> RowArrays:
    """Return columns (k, n) as inputs, targets and weights, without copying them."""
    d, p = len(reading.inputs), len(reading.targets)
    weights = None if reading.weights is None else columns[d + p]
    return RowArrays(columns[:d].T, columns[d : d + p].T, weights)


def read_piece(piece: Piece, reading: Reading) -> Iterator[Block]:
    """Yield the rows of one piece; it needs nothing but its arguments, in any process."""
    if piece.kind == "text":
        yield from text_blocks(piece, reading)
        return
    from orthogp.tables.arrow import parquet_blocks

    yield from parquet_blocks(piece, reading)


def open_source(
    data: Sequence[str],
    targets: Sequence[str] = (),
    inputs: Sequence[str] | None = None,
    *,
    weights: str | None = None,
    times: Sequence[TimeScale | None] | None = None,
    skip_bad: bool = False,
    keep_missing: bool = False,
) -> RowSource:
    """Return the rows of files, folders and patterns.

    The columns of every file are checked; no row is read yet.

    Parameters
    ----------
    data : sequence of str
        Files, folders (all tables below them), patterns such as "data/*.parquet".
    targets : sequence of str
        The columns of y.
    inputs : sequence of str, optional
        The columns of X; all others if those are at most three.
    weights : str, optional
        The column of weights.
    times : sequence of TimeScale or None, optional
        Scales for the date-times of each input; `RowSource.scaled` chooses them otherwise.
    skip_bad, keep_missing : bool
        See `Reading`.
    """
    files = find_files(data)
    pieces: list[Piece] = []
    num_rows, exact = 0.0, True
    kinds: tuple[str, ...] = ()
    first: str | None = None
    for path, label in files:
        opened = _open_file(path, label)
        if first is None:
            inputs = choose_inputs(label, opened.names, targets, inputs, weights)
        assert inputs is not None
        names = [*inputs, *targets, *([] if weights is None else [weights])]
        for name in names:
            if first is not None and name not in opened.names:
                raise InputError(
                    f"{label} has no column {name!r}, which {first} has; its columns are "
                    f"{listed(opened.names)}."
                )
            find_column(label, opened.names, name)
        found = tuple(opened.kind(name) for name in names)
        if first is None:
            first, kinds = label, found
        _check_kinds(label, first, names, found, kinds, len(inputs))
        pieces += opened.pieces
        num_rows, exact = num_rows + opened.num_rows, exact and opened.exact
    assert inputs is not None
    own = tuple(SINCE_1970 if kind == "time" else None for kind in kinds[: len(inputs)])
    reading = Reading(tuple(inputs), tuple(targets), weights, own, skip_bad, keep_missing)
    source = RowSource(tuple(pieces), reading, round(num_rows), exact, describe_files(files))
    return source if times is None else source.with_times(times)


class _Opened(NamedTuple):
    names: tuple[str, ...]
    kind: Callable[[str], Literal["number", "time"]]
    pieces: list[Piece]
    num_rows: float
    exact: bool


def _open_file(path: str, label: str) -> _Opened:
    if not is_parquet(path):
        header = read_header(path, label)
        size = Path(path).stat().st_size * (_COMPRESSION if path.endswith(".gz") else 1.0)
        rows = max(size - header.size, 0.0) / max(header.line_bytes, 1.0)
        piece = text_piece(path, label, header)
        return _Opened(
            header.names, lambda name: column_kind(header, label, name), [piece], rows, False
        )
    require_arrow(f"Reading {label}")
    from orthogp.tables.arrow import parquet_header, parquet_kind

    parquet = parquet_header(path, label)
    groups = [Piece(path, label, "parquet", g, g + 1) for g in range(len(parquet.group_rows))]
    return _Opened(
        parquet.names,
        lambda name: parquet_kind(parquet, label, name),
        groups,
        sum(parquet.group_rows),
        True,
    )


def _check_kinds(
    label: str,
    first: str,
    names: list[str],
    kinds: tuple[str, ...],
    expected: tuple[str, ...],
    num_inputs: int,
) -> None:
    words = {"number": "numbers", "time": "date-times"}
    for j, (name, kind, want) in enumerate(zip(names, kinds, expected)):
        if j >= num_inputs and kind == "time":
            raise InputError(
                f"Column {name!r} of {label} holds date-times, but only inputs may: targets and "
                "weights must be numbers."
            )
        if kind != want:
            raise InputError(
                f"Column {name!r} holds {words[kind]} in {label}, but {words[want]} in {first}."
            )
