"""FilesMixin: estimators that learn from files, and from sums that were made before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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
from orthogp.inference import Domain
from orthogp.learning.sketch import OFFSET_SD, AdditiveSketch, Rows, Sketch
from orthogp.model_choice import Model, begin_sketch, choose_model
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads
from orthogp.streaming import (
    EVERY,
    Checkpoint,
    RowSample,
    Silence,
    Streamed,
    Watcher,
    fingerprint,
    sum_files,
)
from orthogp.tables.pieces import Tally
from orthogp.tables.source import RowArrays, RowSource, as_rows, open_source
from orthogp.validation import check_settings

if TYPE_CHECKING:
    from orthogp.statistics.distributed import Cluster

#: Rows that take no more bytes than this are read at once.
MEMORY = 400e6
#: How many rows are kept for diagnostics.
SAMPLE_ROWS = 10_000


class FilesMixin:
    """Adds `fit_files` and `fit_sketch`."""

    def fit_files(
        self,
        data: str | PathLike[str] | Sequence[str | PathLike[str]],
        target: str | Sequence[str],
        inputs: Sequence[str] | None = None,
        *,
        weights: str | None = None,
        skip_bad: bool = False,
        memory: float = MEMORY,
        scheduler: Any = None,
    ) -> Self:
        """Fit to the rows of CSV, TSV or Parquet files.

        Rows that take more than `memory` are summed in one pass, a batch at a time; lattice
        features then learn from the sums. `about_` says which columns were used, and what numbers
        mean where a column holds date-times.

        Parameters
        ----------
        data : path or sequence of paths
            Files, folders, or patterns such as "data/*.parquet".
        target : str or sequence of str
            The column or columns of y.
        inputs : sequence of str, optional
            The columns of X; all others if those are at most three.
        weights : str, optional
            The column of weights.
        skip_bad : bool
            Whether rows that cannot be read are left out instead of refused.
        memory : float
            In bytes.
        scheduler : str or distributed.Client, optional
            A dask scheduler, whose workers sum the rows: they must see the files.
        """
        paths = [data] if isinstance(data, str | PathLike) else data
        targets = [target] if isinstance(target, str) else target
        source = open_source(
            [str(path) for path in paths], targets, inputs, weights=weights, skip_bad=skip_bad
        )
        if scheduler is None:
            fit_source(self, source, memory=memory)
            return self
        from orthogp.statistics.distributed import Cluster

        with Cluster(scheduler) as cluster:
            fit_source(self, source, cluster=cluster, sample_rows=0)
        return self

    def fit_sketch(self, sketch: Sketch) -> Self:
        """Fit to sums that were made before, by `orthogp sketch` or from another model's rows.

        Dense lattice features, and families that need no rows, can learn from them.
        """
        estimator: Any = self
        began = time.monotonic()
        check_settings(estimator)
        num_columns = len(sketch.extent.lower)
        model = _joint_model(estimator, num_columns)
        if model.additive != isinstance(sketch, AdditiveSketch):
            kind = "one lattice for each column" if model.additive else "one lattice"
            raise InputError(
                f"The kernel {estimator.kernel!r} needs sums on {kind}, but these are not: choose "
                "another kernel, or sum the rows again for this one."
            )
        outcome = fit_sketch(estimator, _with_mean(sketch, estimator.mean), model, None, began)
        estimator._adopt(outcome, None, began)
        estimator.n_features_in_ = num_columns
        estimator._one_target = len(sketch.shift) == 1
        return self


class Read(NamedTuple):
    """What became of the rows of files, and some of them.

    Attributes
    ----------
    source : RowSource
        The files, with the units of their date-times.
    tally : Tally
    sample : RowArrays
        At most some thousand rows at random.
    streamed : bool
        Whether they were summed in one pass instead of read at once.
    """

    source: RowSource
    tally: Tally
    sample: RowArrays
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
    model = _joint_model(estimator, len(source.reading.inputs))
    if cluster is None and source.num_bytes <= memory:
        source, _ = source.scaled()
        watcher.begin("reading", source.num_rows)
        rows, tally = source.read(watcher.advance)
        y = rows.y[:, 0] if rows.y.shape[1] == 1 else rows.y
        watcher.begin("learning", None)
        estimator.fit(rows.X, y, rows.weights)
        sample = _some(rows)
        estimator.about_ = about_rows(source, tally)
        return Read(source, tally, sample, streamed=False)
    if cluster is None:
        streamed = _sum_here(
            estimator, model, source, memory, checkpoint, every, watcher, batch_rows, sample_rows
        )
    else:
        from orthogp.streaming.cluster import sum_on_cluster

        _check_needs_no_rows(estimator, model, "a cluster sends sums only: leave it out")
        streamed = sum_on_cluster(
            source,
            lambda rows, extent, total: begin_sketch(estimator, rows, model, extent, total),
            cluster,
            sample_rows=sample_rows,
            watcher=watcher,
            batch_rows=batch_rows,
        )
    seconds = time.monotonic() - began
    watcher.begin("learning", None)
    estimator.fit_sketch(streamed.sketch)
    learning = estimator.timings_["learn"]
    estimator.timings_ = {"pass": seconds, "learn": learning, "total": seconds + learning}
    estimator.about_ = about_rows(streamed.source, streamed.tally)
    reading = streamed.source.reading
    sample = as_rows(streamed.sample.columns.reshape(len(reading.names), -1), reading)
    return Read(streamed.source, streamed.tally, sample, streamed=True)


def _sum_here(
    estimator: Any,
    model: Model,
    source: RowSource,
    memory: float,
    checkpoint: str | None,
    every: float,
    watcher: Watcher,
    batch_rows: int | None,
    sample_rows: int,
) -> Streamed:
    """Return the sums of rows that are too many to be read at once."""
    _check_needs_no_rows(estimator, model, f"{_too_many(source, memory)}: allow more memory")
    message = f"{_too_many(source, memory)}: they are summed in one pass."
    watcher.say(message[0].upper() + message[1:])
    note = None
    if checkpoint is not None:
        settings = {
            "estimator": repr(estimator),
            "sample": sample_rows,
            "batch_rows": batch_rows,
        }
        note = Checkpoint(checkpoint, fingerprint(source, settings), every)
    return sum_files(
        source,
        lambda rows, extent, total: begin_sketch(estimator, rows, model, extent, total),
        sample_rows=sample_rows,
        checkpoint=note,
        watcher=watcher,
        num_threads=available_threads(estimator.n_jobs),
        batch_rows=batch_rows,
    )


def begin_like(estimator: Any, num_columns: int, like: Sketch | None = None) -> Any:
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


def _check_needs_no_rows(estimator: Any, model: Model, why: str) -> None:
    """Raise before a long pass over the rows, not after it."""
    family = resolve_features(estimator.features, estimator.num_features, 1)
    what, instead = None, 'features="auto"'
    many = len(model.columns) > MAX_DIMS and takes_any_columns(estimator.features)
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


def _some(rows: RowArrays) -> RowArrays:
    """Return some rows at random, the same as a pass in batches would keep."""
    numbers = np.arange(len(rows.X), dtype=np.float64)[None, :]
    chosen = RowSample.empty(SAMPLE_ROWS).with_rows(0, numbers).columns[0].astype(np.int64)
    weights = None if rows.weights is None else rows.weights[chosen]
    return RowArrays(rows.X[chosen], rows.y[chosen], weights)
