"""Files summed on a cluster: units of work for any worker, a tree of sums, one result.

A unit is a few million rows: pieces of files, which the workers read themselves. What travels is
the names of files, the sums, and for diagnostics some ten thousand rows in all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orthogp.files.columns import Piece, Reading, Tally
from orthogp.files.source import RowSource
from orthogp.files.summing import (
    Begin,
    RowSample,
    Silence,
    Streamed,
    Watcher,
    add_sketches,
    batches,
    checked_sums,
    weighted_rows,
)
from orthogp.files.text import read_header, split_text
from orthogp.inference import Domain
from orthogp.learning.sketches import Sketch

if TYPE_CHECKING:
    from orthogp.files.cluster import Cluster

# The number of units for each core, for all to end at about the same time.
_UNITS_PER_THREAD = 16
# The smallest unit in rows: it costs much more than adding its sums.
_LEAST_ROWS = 2**21
# The largest unit in rows: it costs little to do again.
_MOST_ROWS = 2**26
# The numbers of the rows of a unit begin at the number of the unit times this.
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
    begun = _begun(source, begin, extent, batch_rows)
    share = _SPARE * sample_rows / max(source.num_rows, 1)
    work = partial(
        sum_unit, source.reading, _without_sums(begun), sample_rows, min(share, 1.0), batch_rows
    )
    watcher.begin("summing", source.num_rows)
    total = cluster.total(work, units, add_partials, done)
    sketch = checked_sums(total.sketch, source, total.tally)
    sketch = replace(sketch, extent=source.checked_extent([begun.extent, sketch.extent]))
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
    source = _unit_source(reading, unit)
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
    return Partial(sketch, first.tally.plus(second.tally), first.sample.plus(second.sample))


def unit_extent(reading: Reading, unit: Unit) -> Domain | None:
    """Return the box around the inputs of a unit of work, `None` if no row has all of them."""
    return _unit_source(reading, unit).scanned_extent()


def _unit_source(reading: Reading, unit: Unit) -> RowSource:
    return RowSource(unit.pieces, reading, round(unit.rows), exact=False, description="")


# ---------------------------------------------------------------------- parts


def _sized_pieces(source: RowSource, rows: float) -> Iterator[tuple[Piece, float]]:
    """Yield pieces of at most about so many rows, with their numbers of rows."""
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
    return checked_sums(None, source, Tally())


def _without_sums(sketch: Sketch) -> Sketch:
    """Return a sketch whose lattices say all, small enough to travel with every task."""
    return replace(sketch, statistics=sketch.statistics.emptied())
