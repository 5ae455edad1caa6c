"""Rows of any number, from files, summed in one pass within bounded memory.

The next batch is read while the last one is summed. A checkpoint, written every minute, lets a run
that was killed go on where it was: batches are the same whenever it is cut, so are the sums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from queue import Queue
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, LatticeMismatchError
from orthogp.inference import Domain
from orthogp.learning.sketch import Rows, Sketch
from orthogp.statistics.nufft import CHUNK_ROWS
from orthogp.streaming.checkpoints import Checkpoint, Saved
from orthogp.streaming.samples import RowSample
from orthogp.tables.names import listed
from orthogp.tables.pieces import Piece, Reading, Tally
from orthogp.tables.source import RowSource, as_rows

# What the two batches in memory may take together.
_BATCH_BYTES = 150_000_000

Item = TypeVar("Item")
#: From the first batch, the box around all rows and their number to the sums of that batch.
Begin = Callable[[Rows, Domain | None, int], Sketch]


class Watcher(Protocol):
    """Is told how far the reading has come."""

    def begin(self, task: str, total: int | None) -> None:
        """Hear that a task begins, of so many rows."""
        ...

    def advance(self, rows: int) -> None:
        """Hear that so many rows more are done."""
        ...

    def say(self, text: str) -> None:
        """Hear what a user should know."""
        ...


class Silence:
    """A watcher that does not mind."""

    def begin(self, task: str, total: int | None) -> None:
        """Take no notice."""

    def advance(self, rows: int) -> None:
        """Take no notice."""

    def say(self, text: str) -> None:
        """Take no notice."""


class Streamed(NamedTuple):
    """What one pass over the files gives.

    Attributes
    ----------
    sketch : Sketch
    source : RowSource
        The files, with the units of their date-times.
    tally : Tally
        What became of the rows.
    sample : RowSample
        Some rows at random.
    """

    sketch: Sketch
    source: RowSource
    tally: Tally
    sample: RowSample


def sum_files(
    source: RowSource,
    begin: Begin,
    *,
    extent: Domain | None = None,
    sample_rows: int = 0,
    checkpoint: Checkpoint | None = None,
    watcher: Watcher | None = None,
    num_threads: int = 1,
    batch_rows: int | None = None,
) -> Streamed:
    """Return the sums of all rows of a source.

    Parameters
    ----------
    source : RowSource
    begin : callable
        Sums the first batch, and so chooses the lattice.
    extent : Domain, optional
        The box around all rows, where it is known. Otherwise files of Parquet say, or others are
        scanned first.
    sample_rows : int
        How many rows to keep, at random.
    checkpoint : Checkpoint, optional
        Where to go on, and to note how far the sums have come.
    """
    watcher = Silence() if watcher is None else watcher
    saved = None if checkpoint is None else checkpoint.load()
    if saved is None:
        if extent is None:
            source, extent = _extent(source, watcher)
        saved = Saved(None, 0, None, Tally(), source.reading.times, RowSample.empty(sample_rows))
    else:
        source = source.with_times(saved.times)
        watcher.say(f"Going on from {checkpoint} after {saved.tally.met:,} rows.")
    sketch, tally, sample = saved.sketch, saved.tally, saved.sample
    watcher.begin("summing", source.num_rows)
    watcher.advance(tally.met)
    with closing(_ahead(batches(source, saved.place, saved.rest, batch_rows))) as ready:
        for batch in ready:
            rows = weighted_rows(batch.columns, source.reading)
            if rows is not None:
                sample = sample.with_rows(tally.used, batch.columns)
                sketch = (
                    begin(rows, extent, source.num_rows)
                    if sketch is None
                    else sketch.updated(rows, 1, num_threads)
                )
            tally = tally.plus(batch.tally)
            watcher.advance(batch.tally.met)
            if checkpoint is not None and sketch is not None:
                times = source.reading.times
                checkpoint.note(Saved(sketch, batch.place, batch.rest, tally, times, sample))
    if sketch is None or sketch.statistics.rows < 2:
        raise InputError(
            f"{source.description} must have at least two rows with a number in each of "
            f"{listed(source.reading.names)}, got {tally.used}."
        )
    return Streamed(sketch, source, tally, sample)


def sum_piece(piece: Piece, reading: Reading, like: Sketch, num_threads: int = 1) -> Sketch | None:
    """Return the sums of one piece of a file alone, on the lattice of another sketch.

    A pure function of its arguments, for a worker in any process; `None` if no row is complete.
    """
    source = RowSource((piece,), reading, 0, exact=False, description=piece.label)
    total: Sketch | None = None
    for batch in batches(source, 0, None, None):
        rows = weighted_rows(batch.columns, reading)
        if rows is None:
            continue
        total = (
            like.alone(rows, num_threads) if total is None else total.updated(rows, 1, num_threads)
        )
    return total


def add_sketches(first: Sketch, second: Sketch) -> Sketch:
    """Return the sums of both sketches' rows; they must be on one lattice."""
    if type(first) is not type(second):
        raise LatticeMismatchError("Additive and joint statistics cannot be added.")
    for name in ("offset_variance", "slope_variance", "origin", "width"):
        if first.mean.slope_variance and not np.array_equal(
            getattr(first.mean, name), getattr(second.mean, name)
        ):
            raise LatticeMismatchError("Statistics add up for one mean function only.")
    statistics: Any = first.statistics
    other: Any = second.statistics
    if len(first.shift) == len(second.shift) and not np.array_equal(first.shift, second.shift):
        # The targets were shifted by what the first rows of each suggested.
        other = other.standardised(first.shift - second.shift, 1.0)
    extent = Domain(
        np.minimum(first.extent.lower, second.extent.lower),
        np.maximum(first.extent.upper, second.extent.upper),
    )
    total = replace(first, statistics=statistics + other, extent=extent)
    total.check_extent(extent)
    return total


# ---------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """Rows that are summed at once.

    Attributes
    ----------
    columns : (k, n)
    tally : Tally
    place, rest
        The piece that was read last, and what is left of it.
    """

    columns: NDArray[np.float64]
    tally: Tally
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
    for i, block in source.blocks(index, rest):
        count = block.columns.shape[1]
        if filled and filled + count > batch_rows:
            yield Batch(buffer[:, :filled], tally, index, rest)
            buffer, filled, tally = np.empty((num_columns, batch_rows)), 0, Tally()
        if count > batch_rows:
            yield Batch(block.columns, tally.plus(block.tally), i, block.rest)
            tally = Tally()
        else:
            buffer[:, filled : filled + count] = block.columns
            filled, tally = filled + count, tally.plus(block.tally)
        index, rest = i, block.rest
    if tally.met:
        yield Batch(buffer[:, :filled], tally, index, rest)


def weighted_rows(columns: NDArray[np.float64], reading: Reading) -> Rows | None:
    """Return the rows of a batch, `None` if none counts."""
    X, y, weights = as_rows(columns, reading)
    if len(X) == 0 or (weights is not None and not weights.any()):
        return None
    return Rows(X, y, weights, one_target=len(reading.targets) == 1)


def _ahead(items: Iterator[Item]) -> Generator[Item]:
    """Yield items, each made in another thread while the one before is in use."""
    # One in use and one in the making: more would only take memory.
    free, ready = threading.Semaphore(2), Queue[tuple[bool, Any]]()
    stopped = threading.Event()

    def make() -> None:
        try:
            while True:
                free.acquire()
                if stopped.is_set():
                    return
                ready.put((True, next(items)))
        except StopIteration:
            ready.put((False, None))
        except BaseException as error:
            ready.put((False, error))

    thread = threading.Thread(target=make, name="orthogp reader", daemon=True)
    thread.start()
    try:
        while True:
            going, item = ready.get()
            if not going:
                if item is not None:
                    raise item
                return
            yield item
            del item
            free.release()
    finally:
        stopped.set()
        free.release()
        thread.join()


def _extent(source: RowSource, watcher: Watcher) -> tuple[RowSource, Domain]:
    watcher.begin("scanning", source.num_rows)
    source, found = source.scaled(watcher.advance)
    if found is None:
        found = source.extent(watcher.advance)
    return source, Domain(found.lower, found.upper)
