"""Files summed on a cluster: units of work for any worker, a tree of sums, one result.

A unit is a few million rows: pieces of files, which the workers read themselves. What travels is
their names, the sums, and for diagnostics some ten thousand rows in all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orthogp.errors import InputError
from orthogp.inference import Domain
from orthogp.learning.sketch import Sketch
from orthogp.streaming.samples import RowSample
from orthogp.streaming.summing import (
    Begin,
    Silence,
    Streamed,
    Watcher,
    add_sketches,
    batches,
    weighted_rows,
)
from orthogp.tables.names import listed
from orthogp.tables.pieces import Piece, Reading, Tally
from orthogp.tables.source import Advance, Extent, RowSource
from orthogp.tables.text import read_header, split_text

if TYPE_CHECKING:
    from orthogp.statistics.distributed import Cluster

# Each core gets about so many units, for all to end at about the same time; within these limits,
# for a unit to cost much more than adding its sums, and little if it must be done again.
_UNITS_PER_THREAD = 16
_LEAST_ROWS, _MOST_ROWS = 2**21, 2**26
# Rows of a unit have numbers from its own times this.
_NUMBERS = 2**36
# The first rows, for the lattice and the shift: all workers wait for them.
_FIRST_ROWS = 2**20
# The sample is thinned before it travels, to somewhat more than is kept in the end.
_SPARE = 1.2


class Unit(NamedTuple):
    """A unit of work.

    Attributes
    ----------
    number : int
    pieces : tuple of Piece
    rows : float
        About so many.
    """

    number: int
    pieces: tuple[Piece, ...]
    rows: float


class Partial(NamedTuple):
    """What a worker makes of its rows: sums (`None` of no rows), their fate, a few of them."""

    sketch: Sketch | None
    tally: Tally
    sample: RowSample


def sum_on_cluster(
    source: RowSource,
    begin: Begin,
    cluster: Cluster,
    *,
    extent: Domain | None = None,
    sample_rows: int = 0,
    watcher: Watcher | None = None,
    batch_rows: int | None = None,
) -> Streamed:
    """Return the sums of all rows of a source, as `sum_files` does, by the workers of a cluster.

    They must see the files under the same paths. Some first rows are read here, for the lattice.

    Parameters
    ----------
    source : RowSource
    begin : callable
        Sums the first batch, and so chooses the lattice.
    cluster : Cluster
    extent : Domain, optional
        The box around all rows, where it is known. Otherwise files of Parquet say, or others are
        scanned first, by the workers.
    sample_rows : int
        How many rows to keep, at random; no row travels without.
    """
    watcher = Silence() if watcher is None else watcher
    # Workers have another current folder.
    pieces = tuple(piece._replace(path=os.path.abspath(piece.path)) for piece in source.pieces)
    spread = _SpreadSource(
        pieces, source.reading, source.num_rows, source.exact, source.description, cluster
    )
    if extent is None:
        watcher.begin("scanning", source.num_rows)
        scaled, found = spread.scaled(watcher.advance)
        source = source.with_times(scaled.reading.times)
        lower, upper = spread.extent(watcher.advance) if found is None else found
        extent = Domain(lower, upper)
    begun = _begun(source, begin, extent, batch_rows)
    units = spread.units
    share = _SPARE * sample_rows / max(source.num_rows, 1)
    work = partial(
        sum_unit, source.reading, _without_sums(begun), sample_rows, min(share, 1.0), batch_rows
    )
    watcher.begin("summing", source.num_rows)
    advance = watcher.advance
    total = cluster.total(work, units, add_partials, lambda i: advance(round(units[i].rows)))
    sketch = total.sketch
    if sketch is None or sketch.statistics.rows < 2:
        raise InputError(
            f"{source.description} must have at least two rows with a number in each of "
            f"{listed(source.reading.names)}, got {total.tally.used}."
        )
    sketch = replace(sketch, extent=_joined(begun.extent, sketch.extent))
    return Streamed(sketch, source, total.tally, total.sample)


def work_units(source: RowSource, rows: float) -> list[Unit]:
    """Return the pieces of a source, text cut where it can be, in units of about so many rows."""
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


# ---------------------------------------------------------------------- on the workers


def sum_unit(
    reading: Reading,
    like: Sketch,
    sample_rows: int,
    share: float,
    batch_rows: int | None,
    unit: Unit,
) -> Partial:
    """Return the sums of a unit of work on the lattice of another sketch: a pure function.

    Parameters
    ----------
    like : Sketch
        Its sums do not matter.
    sample_rows, share
        How many rows are kept in all, and which part of all rows that is.
    """
    source = RowSource(unit.pieces, reading, 0, exact=False, description="")
    total: Sketch | None = None
    tally, sample = Tally(), RowSample.empty(sample_rows)
    for batch in batches(source, 0, None, batch_rows):
        rows = weighted_rows(batch.columns, reading)
        if rows is not None:
            sample = sample.with_rows(unit.number * _NUMBERS + tally.used, batch.columns)
            total = like.alone(rows, 1) if total is None else total.updated(rows, 1, 1)
        tally = tally.plus(batch.tally)
    few = sample.keys <= share * 2.0**64
    return Partial(total, tally, RowSample(sample_rows, sample.keys[few], sample.columns[:, few]))


def add_partials(first: Partial, second: Partial) -> Partial:
    """Return the sums of both."""
    sketch = first.sketch or second.sketch
    if first.sketch is not None and second.sketch is not None:
        sketch = add_sketches(first.sketch, second.sketch)
    return Partial(sketch, first.tally.plus(second.tally), _both(first.sample, second.sample))


def unit_extent(reading: Reading, unit: Unit) -> Extent | None:
    """Return the box around the inputs of a unit of work, `None` if no row has all of them."""
    inputs = RowSource(unit.pieces, reading.only_inputs(), 0, exact=False, description="")
    dims = len(reading.inputs)
    lower, upper = np.full(dims, np.inf), np.full(dims, -np.inf)
    for _, block in inputs.blocks():
        if block.columns.shape[1]:
            lower = np.minimum(lower, block.columns.min(axis=1))
            upper = np.maximum(upper, block.columns.max(axis=1))
    return Extent(lower, upper) if np.all(lower <= upper) else None


# ---------------------------------------------------------------------- parts


@dataclass(frozen=True)
class _SpreadSource(RowSource):
    """Rows whose extent the workers of a cluster find."""

    cluster: Cluster

    @property
    def units(self) -> list[Unit]:
        """The units of work for so many workers."""
        rows = self.num_rows / (_UNITS_PER_THREAD * self.cluster.num_threads)
        return work_units(self, float(np.clip(rows, _LEAST_ROWS, _MOST_ROWS)))

    def extent(self, advance: Advance = int) -> Extent:
        """Return the box around all inputs."""
        stated = self._stated_extent()
        if stated is not None:
            return stated
        units = self.units
        look = partial(unit_extent, self.reading)
        boxes = self.cluster.map(look, units, lambda i: advance(round(units[i].rows)))
        boxes = [box for box in boxes if box is not None]
        if not boxes:
            raise InputError(
                f"{self.description} has no row with a number in each of "
                f"{listed(self.reading.inputs)}."
            )
        lower, upper = np.array(boxes).swapaxes(0, 1)
        return Extent(lower.min(axis=0), upper.max(axis=0))


def _sized_pieces(source: RowSource, rows: float) -> Iterator[tuple[Piece, float]]:
    """Yield pieces of at most about so many rows, with their numbers of rows."""
    texts: dict[str, tuple[list[Piece], float]] = {}
    for piece in source.pieces:
        if piece.kind == "text":
            header = read_header(piece.path, piece.label)
            parts = split_text(piece, header, max(1, round(rows * header.line_bytes)))
            size = Path(piece.path).stat().st_size
            texts[piece.path] = (parts, size / header.line_bytes / len(parts))
    known = sum(len(parts) * count for parts, count in texts.values())
    groups = len(source.pieces) - len(texts)
    # Row groups are about equal, and a worker that is done early takes the next unit.
    each = max(source.num_rows - known, 0.0) / max(groups, 1)
    for piece in source.pieces:
        if piece.kind == "text":
            parts, count = texts[piece.path]
            yield from ((part, count) for part in parts)
        else:
            yield piece, each


def _begun(source: RowSource, begin: Begin, extent: Domain, batch_rows: int | None) -> Sketch:
    """Return the sums of the first batch that has a row."""
    for batch in batches(source, 0, None, min(batch_rows or _FIRST_ROWS, _FIRST_ROWS)):
        rows = weighted_rows(batch.columns, source.reading)
        if rows is not None:
            return begin(rows, extent, source.num_rows)
    raise InputError(
        f"{source.description} must have at least two rows with a number in each of "
        f"{listed(source.reading.names)}, got none."
    )


def _without_sums(sketch: Sketch) -> Sketch:
    """Return a sketch whose lattices say all, small enough to travel with every task."""
    statistics: Any = sketch.statistics
    if hasattr(statistics, "parts"):
        parts = tuple(_emptied(part) for part in statistics.parts)
        return replace(sketch, statistics=replace(statistics, parts=parts, cross={}))
    return replace(sketch, statistics=_emptied(statistics))


def _emptied(statistics: Any) -> Any:
    nothing = {
        name: getattr(statistics, name)[..., :0]
        for name in ("point_sums", "target_sums", "covariate_sums")
    }
    return replace(statistics, **{name: sums.copy() for name, sums in nothing.items()})


def _joined(first: Domain, second: Domain) -> Domain:
    return Domain(np.minimum(first.lower, second.lower), np.maximum(first.upper, second.upper))


def _both(first: RowSample, second: RowSample) -> RowSample:
    """Return the sample of both samples' rows."""
    if not len(first.keys) or not len(second.keys):
        return first if len(first.keys) else second
    keys = np.concatenate([first.keys, second.keys])
    order = np.argsort(keys)[: first.most]
    columns = np.concatenate([first.columns, second.columns], axis=1)
    return RowSample(first.most, keys[order], columns[:, order])
