"""Rows of any number, from files, summed in one pass within bounded memory.

In one process, the next batch is read while the last one is summed. A checkpoint, written every
minute, lets a run that was killed go on where it was: batches are the same whenever it is cut, and
so are the sums. On a cluster, a unit of work is a few million rows: pieces of files, which the
workers read themselves. What travels is the names of files, the sums, and for diagnostics some ten
thousand rows in all.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, LatticeMismatchError, OrthogpError
from orthogp.files.columns import Categories, Piece, Reading, Scale, Tally, TimeScale, listed
from orthogp.files.source import RowSource, as_rows
from orthogp.files.text import read_header, split_text
from orthogp.learning.sketches import Sketch
from orthogp.persistence import PRIVATE
from orthogp.rows import Domain, Rows
from orthogp.statistics.nufft import CHUNK_ROWS

if TYPE_CHECKING:
    from orthogp.files.cluster import Cluster
    from orthogp.files.fitting import Begin

#: The seconds between two checkpoints.
EVERY = 60.0
# The largest number of bytes that the two batches in memory take together.
_BATCH_BYTES = 150_000_000
# The number of units of work for each thread of a cluster: all threads end at about the same time.
_UNITS_PER_THREAD = 16
# The smallest number of rows of a unit: summing them costs much more than adding their sums.
_LEAST_ROWS = 2**21
# The largest number of rows of a unit: summing them again costs little.
_MOST_ROWS = 2**26
# The rows of a unit are numbered from the number of the unit times this.
_NUMBERS = 2**36
# The number of first rows that the lattice is chosen from, for which all workers wait.
_FIRST_ROWS = 2**20
# The ratio of the rows of the sample that travel to the rows that are kept in the end.
_SPARE = 1.2


class Watcher(Protocol):
    """Hears how far the reading has come."""

    def begin(self, task: str, total: int | None) -> None:
        """Hear that a task begins, with its number of rows."""

    def advance(self, rows: int) -> None:
        """Hear that more rows are done."""

    def say(self, text: str) -> None:
        """Hear a sentence for the user."""


class Silence(Watcher):
    """A watcher that takes no notice."""


_SILENCE = Silence()


@dataclass(frozen=True)
class Pass:
    """How a pass over the rows is made."""

    #: The box around all rows, where it is known. Otherwise Parquet files state it, and others are
    #: scanned first.
    extent: Domain | None = None
    #: The number of rows that are kept, at random.
    sample_rows: int = 0
    #: The number of rows that are summed at once; a few million by default.
    batch_rows: int | None = None
    #: The file that notes how far the sums have come, and the seconds between two notes. It stays,
    #: for the caller to remove once the sums are safe.
    checkpoint: str | None = None
    every: float = EVERY
    watcher: Watcher = _SILENCE
    #: The workers that sum the rows, without a checkpoint. They must see the files under the same
    #: paths.
    cluster: Cluster | None = None


class Streamed(NamedTuple):
    """What one pass over the files gives."""

    sketch: Sketch
    #: The files, with the units of their date-times.
    source: RowSource
    tally: Tally
    sample: RowSample


class Summed(NamedTuple):
    """Some rows: their sums (`None` of no rows), how many were used, and a sample of them."""

    sketch: Sketch | None
    tally: Tally
    sample: RowSample

    def plus(self, other: Summed) -> Summed:
        """Return both sets of rows together."""
        sketch = self.sketch or other.sketch
        if self.sketch is not None and other.sketch is not None:
            sketch = add_sketches(self.sketch, other.sketch)
        return Summed(sketch, self.tally.plus(other.tally), self.sample.plus(other.sample))

    def with_batch(
        self, batch: Batch, first: int, begin: Callable[[Rows], Sketch], num_threads: int
    ) -> Summed:
        """Return the rows with a batch added, counted from `first`; `begin` sums the first rows."""
        sketch, sample = self.sketch, self.sample
        if batch.rows is not None:
            sample = sample.with_rows(first + self.tally.used, batch.columns)
            sketch = sketch.updated(batch.rows, 1, num_threads) if sketch else begin(batch.rows)
        return Summed(sketch, self.tally.plus(batch.tally), sample)

    def streamed(self, source: RowSource) -> Streamed:
        """Return the result for all rows of a source; raise `InputError` if they are too few."""
        if self.sketch is None or self.sketch.statistics.rows < 2:
            raise _too_few(source, self.tally.used)
        return Streamed(self.sketch, source, self.tally, self.sample)


def sum_files(source: RowSource, begin: Begin, how: Pass | None = None) -> Streamed:
    """Return the sums of all rows of a source."""
    how = Pass() if how is None else how
    if how.cluster is not None:
        return _sum_on_cluster(source, begin, how, how.cluster)
    checkpoint, mark, extent, watcher = None, None, how.extent, how.watcher
    if how.checkpoint is not None:
        settings = [begin, how.extent, how.sample_rows, how.batch_rows]
        checkpoint = Checkpoint(how.checkpoint, fingerprint(source, settings), how.every)
        mark = checkpoint.load()
    if mark is not None:
        source = source.with_times(mark.times)
        watcher.say(f"Going on from {checkpoint} after {mark.summed.tally.met:,} rows.")
    else:
        if extent is None:
            watcher.begin("scanning", source.num_rows)
            source, extent = source.scaled_for(source.extent(watcher.advance))
        nothing = Summed(None, Tally(), RowSample.empty(how.sample_rows))
        mark = Mark("", nothing, 0, None, source.reading.times)
    summed = mark.summed
    watcher.begin("summing", source.num_rows)
    watcher.advance(summed.tally.met)

    def first(rows: Rows) -> Sketch:
        return begin(rows, extent, source.num_rows)

    with closing(_ahead(batches(source, mark.place, mark.rest, how.batch_rows))) as ready:
        for batch in ready:
            summed = summed.with_batch(batch, 0, first, begin.num_threads)
            watcher.advance(batch.tally.met)
            if checkpoint is not None and summed.sketch is not None:
                checkpoint.note(summed, batch.place, batch.rest, source.reading.times)
    return summed.streamed(source)


def _too_few(source: RowSource, number: int) -> InputError:
    return InputError(
        f"{source.description} must have at least two rows with a number in each of "
        f"{listed(source.reading.names)}, got {number}."
    )


def add_sketches(first: Sketch, second: Sketch) -> Sketch:
    """Return the sums of both sketches' rows; they must be on one lattice."""
    if type(first) is not type(second):
        raise LatticeMismatchError("Additive and joint statistics cannot be added.")
    if first.mean.slope_variance and not all(map(np.array_equal, first.mean, second.mean)):
        raise LatticeMismatchError("Statistics add up for one mean function only.")
    statistics: Any = first.statistics
    other: Any = second.statistics
    if len(first.shift) == len(second.shift) and not np.array_equal(first.shift, second.shift):
        # Each sketch shifts its targets by the mean of its first rows.
        other = other.standardised(first.shift - second.shift, 1.0)
    extent = first.extent.with_box(second.extent)
    if first.likelihood != second.likelihood:
        raise LatticeMismatchError(
            f"Statistics add up for one likelihood only, got {first.likelihood} and "
            f"{second.likelihood}."
        )
    constants = first.constants + second.constants
    total = replace(first, statistics=statistics + other, extent=extent, constants=constants)
    total.check_extent(extent)
    return total


# ---------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """Rows that are summed at once."""

    #: All rows, (k, n).
    columns: NDArray[np.float64]
    #: The rows that count, `None` if none does.
    rows: Rows | None
    tally: Tally
    #: The piece that was read last, and what is left of it.
    place: int
    rest: Piece | None


def batches(
    source: RowSource, index: int, rest: Piece | None, batch_rows: int | None
) -> Iterator[Batch]:
    """Yield blocks of rows put together to batches of about equal size."""
    num_columns = len(source.reading.names)
    if batch_rows is None:
        batch_rows = min(CHUNK_ROWS, _BATCH_BYTES // (16 * num_columns))
    buffer = np.empty((num_columns, batch_rows))
    filled, tally = 0, Tally()

    def batch(columns: NDArray[np.float64], tally: Tally) -> Batch:
        rows = as_rows(columns, source.reading)
        counts = len(rows.X) and (rows.weights is None or rows.weights.any())
        return Batch(columns, rows if counts else None, tally, index, rest)

    for i, block in source.blocks(index, rest):
        count = block.columns.shape[1]
        if filled and filled + count > batch_rows:
            yield batch(buffer[:, :filled], tally)
            buffer, filled, tally = np.empty((num_columns, batch_rows)), 0, Tally()
        index, rest, tally = i, block.rest, tally.plus(block.tally)
        if count > batch_rows:
            yield batch(block.columns, tally)
            tally = Tally()
        else:
            buffer[:, filled : filled + count] = block.columns
            filled += count
    if tally.met:
        yield batch(buffer[:, :filled], tally)


def _ahead(batches: Iterator[Batch]) -> Generator[Batch]:
    """Yield batches, each made in another thread while the one before is in use."""
    with ThreadPoolExecutor(1, "orthogp reader") as reader:
        # One in use and one in the making: more would only take memory.
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch


# ---------------------------------------------------------------------- samples


class RowSample(NamedTuple):
    """The rows whose numbers, scrambled, are least: every row is as likely as any other.

    The choice of rows depends neither on how they are cut into batches nor on a seed.
    """

    #: The number of rows that are kept.
    most: int
    #: The scrambled numbers in ascending order, (n,), and the rows, (k, n).
    keys: NDArray[np.int64]
    columns: NDArray[np.float64]

    @classmethod
    def empty(cls, most: int) -> RowSample:
        """Return the sample of no rows."""
        return cls(most, np.empty(0, dtype=np.int64), np.empty((0, 0)))

    def with_rows(self, first: int, columns: NDArray[np.float64]) -> RowSample:
        """Return the sample with more rows, (k, n), numbered from `first`."""
        most, count = self.most, columns.shape[1]
        if most == 0 or count == 0:
            return self
        keys = _scrambled(np.arange(first, first + count, dtype=np.uint64))
        if len(self.keys) >= most:
            near = np.flatnonzero(keys < self.keys[-1])
        else:
            near = np.argpartition(keys, min(most, count - 1))[:most]
        return self.plus(RowSample(most, keys[near], columns[:, near]))

    def plus(self, other: RowSample) -> RowSample:
        """Return the sample of both samples' rows."""
        if not len(self.keys) or not len(other.keys):
            keys, columns = max((self, other), key=lambda sample: len(sample.keys))[1:]
        else:
            keys = np.concatenate([self.keys, other.keys])
            columns = np.concatenate([self.columns, other.columns], axis=1)
        order = np.argsort(keys)[: self.most]
        return RowSample(self.most, keys[order], columns[:, order])


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return whole numbers mixed (the finaliser of splitmix64), from 0 to 2⁶³ - 1."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


# ---------------------------------------------------------------------- checkpoints


class Mark(NamedTuple):
    """How far a pass has come."""

    #: The code of the files and the settings.
    fingerprint: str
    summed: Summed
    #: The piece that is being read, and what is left of it.
    place: int
    rest: Piece | None
    #: The units of the inputs' date-times.
    times: tuple[Scale | None, ...]


class Checkpoint:
    """A file that says how far a pass has come, replaced at intervals.

    It serves only a pass over the same files with the same settings: `fingerprint` tells.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str, every: float = EVERY):
        self._path = Path(path)
        self._fingerprint = fingerprint
        self._every = every
        self._last = time.monotonic()

    def __str__(self) -> str:
        return str(self._path)

    def load(self) -> Mark | None:
        """Return where the last run was, `None` if it left nothing or was about other rows."""
        try:
            mark = _storage().load(self._path, Mark)
        except OrthogpError:
            return None
        return mark if mark.fingerprint == self._fingerprint else None

    def note(
        self,
        summed: Summed,
        place: int,
        rest: Piece | None,
        times: tuple[Scale | None, ...],
    ) -> None:
        """Write how far the pass has come, if the last note is old enough."""
        if time.monotonic() - self._last >= self._every:
            mark = Mark(self._fingerprint, summed, place, rest, times)
            # It holds some of the rows: nobody else may read it.
            _storage().save(self._path, mark, mode=PRIVATE)
            self._last = time.monotonic()


def _storage() -> Any:
    """Return the storage, which knows what a checkpoint holds."""
    from orthogp import storage

    for kind in (Mark, Summed, RowSample, Tally, Piece, TimeScale, Categories):
        storage.register(kind, "checkpoint" if kind is Mark else f"checkpoint/{kind.__name__}")
    return storage


def fingerprint(source: RowSource, settings: Any) -> str:
    """Return a code that changes with the files, their content, the columns and the settings."""
    from orthogp import __version__

    reading = source.reading
    content = {
        "version": __version__,
        "files": {
            os.path.abspath(piece.path): [piece.size, piece.modified, piece.content]
            for piece in source.pieces
        },
        "columns": [
            reading.inputs,
            reading.covariates,
            reading.targets,
            reading.weights,
            reading.size,
        ],
        "skip_bad": reading.skip_bad,
        "settings": _described(settings),
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _described(value: Any) -> Any:
    """Return settings as JSON knows them; objects by their class and all that they hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Mapping):
        return {str(key): _described(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_described(item) for item in value]
    if is_dataclass(value):
        return [kind, {each.name: _described(getattr(value, each.name)) for each in fields(value)}]
    if hasattr(value, "get_params"):
        return [kind, _described(value.get_params(deep=False))]
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return [str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()]
    try:
        return [kind, hashlib.sha256(pickle.dumps(value)).hexdigest()]
    except Exception:
        # An object that cannot be written down equals no other, so that no checkpoint fits it.
        return [kind, secrets.token_hex()]


# ---------------------------------------------------------------------- on a cluster


class Unit(NamedTuple):
    """A unit of work, with its number of rows, roughly."""

    number: int
    pieces: tuple[Piece, ...]
    rows: float


def _sum_on_cluster(source: RowSource, begin: Begin, how: Pass, cluster: Cluster) -> Streamed:
    """Return the sums of all rows; some first rows are read here, for the lattice."""
    watcher, extent = how.watcher, how.extent
    # Workers have another current folder.
    pieces = tuple(piece._replace(path=os.path.abspath(piece.path)) for piece in source.pieces)
    source = replace(source, pieces=pieces)
    wanted = source.num_rows / (_UNITS_PER_THREAD * cluster.num_threads)
    units = work_units(source, float(np.clip(wanted, _LEAST_ROWS, _MOST_ROWS)))

    def done(i: int) -> None:
        watcher.advance(round(units[i].rows))

    if extent is None:
        watcher.begin("scanning", source.num_rows)
        extent = source.stated_extent()
        if extent is None:
            boxes = cluster.map(partial(unit_extent, source.reading), units, done)
            extent = source.checked_extent(boxes)
        source, extent = source.scaled_for(extent)
    first_rows = min(how.batch_rows or _FIRST_ROWS, _FIRST_ROWS)
    first = (batch.rows for batch in batches(source, 0, None, first_rows) if batch.rows is not None)
    if (rows := next(first, None)) is None:
        raise _too_few(source, 0)
    like = without_sums(begin(rows, extent, source.num_rows))
    share = min(_SPARE * how.sample_rows / max(source.num_rows, 1), 1.0)
    work = partial(sum_unit, source.reading, like, how.sample_rows, share, how.batch_rows)
    watcher.begin("summing", source.num_rows)
    found = cluster.total(work, units, Summed.plus, done).streamed(source)
    return found._replace(
        sketch=replace(found.sketch, extent=found.sketch.extent.with_box(like.extent))
    )


def work_units(source: RowSource, rows: float) -> list[Unit]:
    """Return the pieces of a source, text cut where it can be, in units of about `rows` rows."""
    units: list[Unit] = []
    pieces: list[Piece] = []
    filled = 0.0
    for piece, count in _sized_pieces(source, rows):
        if pieces and filled + count / 2 > rows:
            units.append(Unit(len(units), tuple(pieces), filled))
            pieces, filled = [], 0.0
        pieces.append(piece)
        filled += count
    if pieces:
        units.append(Unit(len(units), tuple(pieces), filled))
    return units


def _sized_pieces(source: RowSource, rows: float) -> Iterator[tuple[Piece, float]]:
    """Yield pieces of at most about `rows` rows, with their numbers of rows."""
    texts: dict[str, tuple[list[Piece], float]] = {}
    for piece in source.pieces:
        if piece.kind == "text":
            header = read_header(piece.path, piece.label)
            parts = split_text(piece, header, max(1, round(rows * header.line_bytes)))
            texts[piece.path] = (parts, piece.size / header.line_bytes / len(parts))
    known = sum(len(parts) * count for parts, count in texts.values())
    groups = len(source.pieces) - len(texts)
    # Row groups are about equal, and a worker that is done early takes the next unit.
    each = max(source.num_rows - known, 0.0) / max(groups, 1)
    for piece in source.pieces:
        parts, count = texts.get(piece.path, ([piece], each))
        yield from ((part, count) for part in parts)


def sum_unit(
    reading: Reading,
    like: Sketch,
    sample_rows: int,
    share: float,
    batch_rows: int | None,
    unit: Unit,
) -> Summed:
    """Return the sums of a unit of work on the lattice of another sketch: a pure function.

    Of the `sample_rows` that are kept of all rows, the unit keeps those that can be among them if
    they are a `share` of all rows.
    """
    summed = Summed(None, Tally(), RowSample.empty(sample_rows))
    for batch in batches(_unit_source(reading, unit), 0, None, batch_rows):
        summed = summed.with_batch(
            batch, unit.number * _NUMBERS, lambda rows: like.alone(rows, 1), num_threads=1
        )
    keys, columns = summed.sample.keys, summed.sample.columns
    few = keys <= share * 2.0**63
    return summed._replace(sample=RowSample(sample_rows, keys[few], columns[:, few]))


def unit_extent(reading: Reading, unit: Unit) -> Domain | None:
    """Return the box around the inputs of a unit of work, `None` if no row has all of them."""
    return _unit_source(reading, unit).scanned_extent()


def _unit_source(reading: Reading, unit: Unit) -> RowSource:
    return RowSource(unit.pieces, reading, round(unit.rows), exact=False, description="")


def without_sums(sketch: Sketch) -> Sketch:
    """Return a sketch with its lattices but no sums, small enough to travel with every task."""
    return replace(sketch, statistics=sketch.statistics.emptied())
