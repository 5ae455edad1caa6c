"""Models of the rows of files, all at once or by their sums, and of sums made before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orthogp.engines import fit_sketch
from orthogp.errors import InputError
from orthogp.features import (
    EXACT,
    InducingPoints,
    TwoBlock,
    resolve_features,
    takes_any_columns,
)
from orthogp.files.columns import Tally
from orthogp.files.source import RowSource, as_rows, open_source
from orthogp.files.summing import (
    EVERY,
    Begin,
    Checkpoint,
    RowSample,
    Silence,
    Watcher,
    fingerprint,
    sum_files,
)
from orthogp.inference import Domain
from orthogp.learning.sketches import OFFSET_SD, Sketch
from orthogp.model_choice import Model, begin_sketch, choose_model
from orthogp.rows import Rows
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads
from orthogp.validation import check_settings

if TYPE_CHECKING:
    from orthogp.files.cluster import Cluster

#: The most bytes of rows that are read at once.
MEMORY = 400e6
#: The number of rows that are kept for diagnostics.
SAMPLE_ROWS = 10_000


def fit_paths(
    estimator: Any,
    data: str | PathLike[str] | Sequence[str | PathLike[str]],
    target: str | Sequence[str],
    inputs: Sequence[str] | None = None,
    *,
    weights: str | None = None,
    skip_bad: bool = False,
    memory: float = MEMORY,
    scheduler: Any = None,
) -> None:
    """Fit an estimator to the rows of files; see `GPRegressor.fit_files`."""
    paths = [data] if isinstance(data, str | PathLike) else data
    targets = [target] if isinstance(target, str) else target
    source = open_source(
        [str(path) for path in paths], targets, inputs, weights=weights, skip_bad=skip_bad
    )
    if scheduler is None:
        fit_source(estimator, source, memory=memory)
        return
    from orthogp.files.cluster import Cluster

    with Cluster(scheduler) as cluster:
        fit_source(estimator, source, cluster=cluster, sample_rows=0)


def fit_sums(estimator: Any, sketch: Sketch) -> None:
    """Fit an estimator to sums that were made before; see `GPRegressor.fit_sketch`."""
    began = time.monotonic()
    check_settings(estimator)
    num_columns = len(sketch.extent.lower)
    model = _joint_model(estimator, num_columns)
    if model.additive == sketch.joint:
        kind = "one lattice for each column" if model.additive else "one lattice"
        raise InputError(
            f"The kernel {estimator.kernel!r} needs sums on {kind}, but these are not: choose "
            "another kernel, or sum the rows again for this one."
        )
    outcome = fit_sketch(estimator, _with_mean(sketch, estimator.mean), model, None, began)
    estimator._adopt(outcome, None, began)
    estimator.n_features_in_ = num_columns
    estimator._one_target = len(sketch.shift) == 1


class Read(NamedTuple):
    """The rows of files in numbers, and some of them.

    Attributes
    ----------
    source : RowSource
        The files, with the units of their date-times.
    tally : Tally
    sample : Rows
        At most some thousand rows at random.
    streamed : bool
        Whether they were summed in one pass instead of read at once.
    """

    source: RowSource
    tally: Tally
    sample: Rows
    streamed: bool


def fit_source(
    estimator: Any,
    source: RowSource,
    *,
    memory: float = MEMORY,
    checkpoint: str | None = None,
    every: float = EVERY,
    watcher: Watcher | None = None,
    batch_rows: int | None = None,
    sample_rows: int = SAMPLE_ROWS,
    cluster: Cluster | None = None,
) -> Read:
    """Fit an estimator to the rows of files, all at once or, if they are many, by their sums.

    Parameters
    ----------
    memory : float
        Rows that take no more bytes are read at once.
    checkpoint : str, optional
        Where to note every so many seconds how far the sums have come. The file stays, for the
        caller to remove once the model is safe.
    batch_rows : int, optional
        How many rows are summed at once; a few million unless given.
    sample_rows : int
        How many of the rows that were summed are kept.
    cluster : Cluster, optional
        Its workers sum the rows, however few they are; there is then no checkpoint.
    """
    began = time.monotonic()
    watcher = Silence() if watcher is None else watcher
    check_settings(estimator)
    num_columns = len(source.reading.inputs)
    begin = begin_like(estimator, num_columns)
    if cluster is None and source.num_bytes <= memory:
        source = source.scaled()
        watcher.begin("reading", source.num_rows)
        rows, tally = source.read(watcher.advance)
        watcher.begin("learning", None)
        estimator.fit(rows.X, rows.y[:, 0] if rows.one_target else rows.y, rows.weights)
        estimator.about_ = about_rows(source, tally)
        return Read(source, tally, _some(rows), streamed=False)
    if cluster is None:
        message = f"{_too_many(source, memory)}: they are summed in one pass."
        _check_needs_no_rows(
            estimator, num_columns, f"{_too_many(source, memory)}: allow more memory"
        )
        watcher.say(message[0].upper() + message[1:])
        note = None
        if checkpoint is not None:
            settings = {"estimator": estimator, "sample": sample_rows, "batch_rows": batch_rows}
            note = Checkpoint(checkpoint, fingerprint(source, settings), every)
        streamed = sum_files(
            source,
            begin,
            sample_rows=sample_rows,
            checkpoint=note,
            watcher=watcher,
            num_threads=available_threads(estimator.n_jobs),
            batch_rows=batch_rows,
        )
    else:
        from orthogp.files.workers import sum_on_cluster

        _check_needs_no_rows(estimator, num_columns, "a cluster sends sums only: leave it out")
        streamed = sum_on_cluster(
            source,
            begin,
            cluster,
            sample_rows=sample_rows,
            watcher=watcher,
            batch_rows=batch_rows,
        )
    seconds = time.monotonic() - began
    watcher.begin("learning", None)
    fit_sums(estimator, streamed.sketch)
    learning = estimator.timings_["learn"]
    estimator.timings_ = {"pass": seconds, "learn": learning, "total": seconds + learning}
    estimator.about_ = about_rows(streamed.source, streamed.tally)
    reading = streamed.source.reading
    sample = as_rows(streamed.sample.columns.reshape(len(reading.names), -1), reading)
    return Read(streamed.source, streamed.tally, sample, streamed=True)


def begin_like(estimator: Any, num_columns: int, like: Sketch | None = None) -> Begin:
    """Return how the first batch is summed: on the lattice of another sketch, or on one's own."""
    model = _joint_model(estimator, num_columns)
    threads = available_threads(estimator.n_jobs)

    def begin(rows: Rows, extent: Domain | None, total: int) -> Sketch:
        if like is not None:
            return like.alone(rows, threads)
        return begin_sketch(estimator, rows, model, extent, total)

    return begin


def about_rows(source: RowSource, tally: Tally) -> dict[str, Any]:
    """Return what is to be known of rows besides their sums: columns, units, numbers."""
    reading = source.reading
    return {
        "source": source.description,
        "inputs": list(reading.inputs),
        "targets": list(reading.targets),
        "weights": reading.weights,
        "times": [None if scale is None else scale.to_json() for scale in reading.times],
        "rows": tally.used,
        "missing": tally.missing,
        "bad": tally.bad,
    }


def _joint_model(estimator: Any, num_columns: int) -> Model:
    """Return the model, whose kernel must see all columns: which those are is a matter of names."""
    model = choose_model(estimator.kernel, estimator.features, num_columns)
    if len(model.columns) != num_columns:
        raise InputError(
            f"The kernel acts on {len(model.columns)} of {num_columns} columns: leave out those "
            "that it does not see."
        )
    return model


def _with_mean(sketch: Sketch, mean: str | None) -> Sketch:
    linear = bool(sketch.mean.slope_variance)
    if mean == "auto":
        return sketch
    if linear != (mean == "linear"):
        have = "linear" if linear else "constant or no"
        raise InputError(
            f"The sums are for a {have} mean function, not for mean={mean!r}: choose that, or sum "
            "the rows again."
        )
    variance = 0.0 if mean is None else OFFSET_SD**2
    return replace(sketch, mean=sketch.mean._replace(offset_variance=variance))


def _check_needs_no_rows(estimator: Any, num_columns: int, why: str) -> None:
    """Raise before a long pass over the rows, not after it."""
    family = resolve_features(estimator.features, estimator.num_features, 1)
    what, instead = None, 'features="auto"'
    many = num_columns > MAX_DIMS and takes_any_columns(estimator.features)
    if family == EXACT or isinstance(family, InducingPoints | TwoBlock) or many:
        what = f"features={estimator.features!r}"
    elif estimator.solver in ("iterative", "exact", "neighbours"):
        what, instead = f'solver="{estimator.solver}"', 'solver="auto"'
    if what is not None:
        raise InputError(f"{what} needs all rows at once, but {why}, or use {instead}.")


def _too_many(source: RowSource, memory: float) -> str:
    about = "" if source.exact else "about "
    return (
        f"{about}{source.num_rows:,} rows take {_size(source.num_bytes)}, more than the "
        f"{_size(memory)} allowed"
    )


def _size(num_bytes: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= length:
            return f"{num_bytes / length:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def _some(rows: Rows) -> Rows:
    """Return some rows at random, the same as a pass in batches would keep."""
    numbers = np.arange(len(rows.X), dtype=np.float64)[None, :]
    chosen = RowSample.empty(SAMPLE_ROWS).with_rows(0, numbers).columns[0].astype(np.int64)
    weights = None if rows.weights is None else rows.weights[chosen]
    return rows._replace(X=rows.X[chosen], y=rows.y[chosen], weights=weights)
