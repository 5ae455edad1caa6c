"""What `orthogp sketch` does, once its arguments are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from orthogp import GPRegressor
from orthogp.cli.console import Console
from orthogp.cli.domains import domain_in_numbers, scaled_for
from orthogp.cli.joining import joined_cluster
from orthogp.errors import InputError
from orthogp.from_files import about_rows, begin_like
from orthogp.learning.sketch import Sketch
from orthogp.statistics.nufft import available_threads
from orthogp.storage import load_sketch
from orthogp.streaming import Checkpoint, fingerprint, sum_files
from orthogp.tables import TimeScale, open_source


def sketch_to(
    console: Console,
    files: Sequence[str],
    columns: dict[str, Any],
    settings: dict[str, Any],
    lattice_of: Path | None,
    checkpoint: str | None,
    every: float,
    scheduler: str | None = None,
) -> tuple[Sketch, dict[str, Any]]:
    """Return the sums of files, and what is to be known about them."""
    like, about = (None, {}) if lattice_of is None else load_sketch(lattice_of)
    if like is not None:
        columns = _same_columns(columns, about)
    if columns["targets"] is None:
        raise click.UsageError("Missing option '--target': the column to predict.")
    times = None
    if like is not None:
        times = [TimeScale.from_json(scale) for scale in about["times"]]
    source = open_source(files, **columns, times=times)
    mean = settings["mean"]
    estimator = GPRegressor(settings["kernel"], mean=None if mean == "none" else mean or "auto")
    extent = None if like is None else like.extent
    if settings["domain"] is not None:
        source = scaled_for(source, settings["domain"])
        reading = source.reading
        extent = domain_in_numbers(settings["domain"], reading.inputs, reading.times)
    noted = {
        **settings,
        "domain": str(settings["domain"]),
        "lattice": None if like is None else _lattice_code(like),
    }
    begin = begin_like(estimator, len(source.reading.inputs), like)
    batch_rows = settings["batch_rows"]
    if scheduler is not None:
        from orthogp.streaming.cluster import sum_on_cluster

        with joined_cluster(scheduler, console) as cluster:
            assert cluster is not None
            streamed = sum_on_cluster(
                source, begin, cluster, extent=extent, watcher=console, batch_rows=batch_rows
            )
    else:
        note = None
        if checkpoint is not None:
            note = Checkpoint(checkpoint, fingerprint(source, noted), every)
        streamed = sum_files(
            source,
            begin,
            extent=extent,
            checkpoint=note,
            watcher=console,
            num_threads=available_threads(),
            batch_rows=batch_rows,
        )
    console.tell_rows(streamed.source, streamed.tally)
    return streamed.sketch, about_rows(streamed.source, streamed.tally)


def _same_columns(columns: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of other statistics; those named must be the same."""
    columns = dict(columns)
    for name in ("targets", "inputs", "weights"):
        known = about.get(name)
        if columns[name] is None:
            columns[name] = known
        elif columns[name] != known:
            raise InputError(
                f"The other statistics have {name} {known}, not {columns[name]}: name the same "
                "columns, or none."
            )
    return columns


def _lattice_code(like: Sketch) -> str:
    parts = getattr(like.statistics, "parts", None) or (like.statistics,)
    return repr([part.lattice for part in parts]) + repr(like.shift.tolist())
