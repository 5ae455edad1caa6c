"""Rows of any number, from files, summed in one pass within bounded memory.

The next batch is read while the last one is summed. A checkpoint, written every minute, lets a run
that was killed go on where it was: batches are the same whenever it is cut, and so are the sums.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import secrets
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError, InputError, LatticeMismatchError, OrthogpError
from orthogp.files.columns import Piece, Reading, Tally, listed
from orthogp.files.source import RowSource, as_rows
from orthogp.files.times import TimeScale
from orthogp.inference import Domain
from orthogp.learning.sketches import Sketch
from orthogp.rows import Rows
from orthogp.statistics.nufft import CHUNK_ROWS

#: The seconds between two checkpoints.
EVERY = 60.0
# The most bytes that the two batches in memory may take together.
_BATCH_BYTES = 150_000_000
# The most bytes that a sample may take: it is noted in headers, which are small.
_MOST_SAMPLE_BYTES = 1_500_000
# The bytes at the beginning and at the end of a file that stand for its content.
_EDGE_BYTES = 2**14
# The entry of a checkpoint's header.
_KEY = "checkpoint"

#: From the first batch, the box around all rows and their number to the sums of that batch.
Begin = Callable[[Rows, Domain | None, int], Sketch]


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
            watcher.begin("scanning", source.num_rows)
            source, extent = source.scaled_for(source.extent(watcher.advance))
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
    return Streamed(checked_sums(sketch, source, tally), source, tally, sample)


def checked_sums(sketch: Sketch | None, source: RowSource, tally: Tally) -> Sketch:
    """Return the sums of a source, or raise `InputError` if they are of fewer than two rows."""
    if sketch is None or sketch.statistics.rows < 2:
        raise InputError(
            f"{source.description} must have at least two rows with a number in each of "
            f"{listed(source.reading.names)}, got {tally.used}."
        )
    return sketch


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
    rows = as_rows(columns, reading)
    counts = rows.weights is None or rows.weights.any()
    return rows if len(rows.X) and counts else None


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

    Which rows these are depends neither on how the rows are cut into batches nor on a seed.

    Attributes
    ----------
    most : int
        How many rows are kept.
    keys : (n,)
        The scrambled numbers, in ascending order.
    columns : (k, n)
    """

    most: int
    keys: NDArray[np.uint64]
    columns: NDArray[np.float64]

    @classmethod
    def empty(cls, most: int) -> RowSample:
        """Return the sample of no rows."""
        return cls(most, np.empty(0, dtype=np.uint64), np.empty((0, 0)))

    def with_rows(self, first: int, columns: NDArray[np.float64]) -> RowSample:
        """Return the sample of more rows, (k, n), of which the first has that number."""
        most, count = self._room(len(columns)), columns.shape[1]
        if most == 0 or count == 0:
            return self
        keys = _scrambled(np.arange(first, first + count, dtype=np.uint64))
        if len(self.keys) >= most:
            near = np.flatnonzero(keys < self.keys[-1])
        else:
            near = np.argpartition(keys, min(most, count - 1))[:most]
        return self.plus(RowSample(self.most, keys[near], columns[:, near]))

    def plus(self, other: RowSample) -> RowSample:
        """Return the sample of both samples' rows."""
        if not len(self.keys) or not len(other.keys):
            keys, columns = max((self, other), key=lambda sample: len(sample.keys))[1:]
        else:
            keys = np.concatenate([self.keys, other.keys])
            columns = np.concatenate([self.columns, other.columns], axis=1)
        order = np.argsort(keys)[: self._room(len(columns))]
        return RowSample(self.most, keys[order], columns[:, order])

    def _room(self, num_columns: int) -> int:
        """Return how many rows of that many columns are kept."""
        return min(self.most, _MOST_SAMPLE_BYTES // (8 * (num_columns + 1)))

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON knows it."""
        return {
            "most": self.most,
            "keys": _encode(self.keys),
            "columns": _encode(self.columns),
            "width": len(self.columns),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RowSample:
        """Return the sample that `to_json` gave."""
        keys = np.frombuffer(base64.b64decode(value["keys"]), dtype=np.uint64)
        columns = np.frombuffer(base64.b64decode(value["columns"]), dtype=np.float64)
        return cls(int(value["most"]), keys, columns.reshape(int(value["width"]), len(keys)))


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return whole numbers mixed one to one (the finaliser of splitmix64)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _encode(array: NDArray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


# ---------------------------------------------------------------------- checkpoints


class Saved(NamedTuple):
    """How far a pass has come.

    Attributes
    ----------
    sketch : Sketch or None
        The sums so far.
    place, rest
        The piece that is being read, and what is left of it.
    tally : Tally
    times : tuple of TimeScale or None
        The units of the inputs' date-times.
    sample : RowSample
    """

    sketch: Sketch | None
    place: int
    rest: Piece | None
    tally: Tally
    times: tuple[TimeScale | None, ...]
    sample: RowSample


class Checkpoint:
    """A file that says how far a pass has come, replaced every so often.

    It serves only a pass over the same files with the same settings: `fingerprint` tells.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str, every: float = EVERY):
        self._path = Path(path)
        self._fingerprint = fingerprint
        self._every = every
        self._last = time.monotonic()

    def __str__(self) -> str:
        return str(self._path)

    def load(self) -> Saved | None:
        """Return where the last run was, `None` if it left nothing or was about other rows."""
        from orthogp.storage import load_sketch

        if not self._path.is_file():
            return None
        try:
            sketch, about = load_sketch(self._path)
        except OrthogpError:
            return None
        noted = about.get(_KEY, {})
        if noted.get("fingerprint") != self._fingerprint:
            return None
        rest = noted["rest"]
        return Saved(
            sketch,
            int(noted["index"]),
            None if rest is None else Piece(*rest),
            Tally(*noted["tally"]),
            tuple(TimeScale.from_json(scale) for scale in noted["times"]),
            RowSample.from_json(noted["sample"]),
        )

    def note(self, saved: Saved) -> None:
        """Write how far the pass has come, if the last note is old enough."""
        from orthogp.storage import save_sketch

        if time.monotonic() - self._last < self._every:
            return
        assert saved.sketch is not None
        noted: dict[str, Any] = {
            "fingerprint": self._fingerprint,
            "index": saved.place,
            "rest": None if saved.rest is None else list(saved.rest),
            "tally": list(saved.tally),
            "times": [None if scale is None else scale.to_json() for scale in saved.times],
            "sample": saved.sample.to_json(),
        }
        path = Path(os.path.realpath(self._path))
        try:
            # It holds some of the rows: nobody else may read it, and its mode stays when it is
            # written.
            descriptor, unfinished = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.name[:100]}."
            )
            os.close(descriptor)
            try:
                save_sketch(unfinished, saved.sketch, {_KEY: noted})
                os.replace(unfinished, path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(unfinished)
        except OSError as error:
            reason = error.strerror or error
            raise FileError(f"{self._path} cannot be written: {reason}.") from error
        self._last = time.monotonic()


def fingerprint(source: RowSource, settings: Mapping[str, Any]) -> str:
    """Return a code that changes with the files, their content, the columns and the settings."""
    from orthogp import __version__

    files = {
        os.path.abspath(piece.path): [piece.size, piece.modified, _content_code(piece)]
        for piece in {piece.path: piece for piece in source.pieces}.values()
    }
    reading = source.reading
    content = {
        "version": __version__,
        "files": files,
        "columns": [reading.inputs, reading.targets, reading.weights],
        "skip_bad": reading.skip_bad,
        "settings": _described(settings),
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _content_code(piece: Piece) -> str:
    """Return a code of the beginning and the end of a file, and of all the footer of Parquet."""
    try:
        with open(piece.path, "rb") as stream:
            code = hashlib.sha256(stream.read(_EDGE_BYTES))
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 8, 0))
            length, mark = stream.read(4), stream.read(4)
            footer = int.from_bytes(length, "little") + 8 if mark == b"PAR1" else 0
            stream.seek(max(size - max(footer, _EDGE_BYTES), 0))
            code.update(stream.read())
    except OSError as error:
        raise InputError(f"{piece.label} cannot be read: {error.strerror or error}.") from error
    return code.hexdigest()


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
        # What cannot be written down is like nothing else, and no checkpoint is for it.
        return [kind, secrets.token_hex()]
