"""Models of the rows of files, all at once or by their sums, and of sums made before."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from orthogp.covariates import NamedColumns, default_names
from orthogp.engines import begin_sketch, fit_sketch
from orthogp.errors import InputError
from orthogp.features import (
    EXACT,
    InducingPoints,
    TwoBlock,
    resolve_features,
    takes_any_columns,
)
from orthogp.files.columns import Tally
from orthogp.files.source import RowSource, as_rows
from orthogp.files.summing import Pass, RowSample, sum_files
from orthogp.learning.sketches import OFFSET_SD, Sketch
from orthogp.rows import Domain, Rows
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads
from orthogp.validation import Model, check_settings, choose_model, kernel_of

#: The largest number of bytes of rows that are read at once.
MEMORY = 400e6
#: The number of rows that are kept for diagnostics.
SAMPLE_ROWS = 10_000


def fit_files(estimator: Any, source: RowSource, memory: float, scheduler: Any) -> None:
    """Fit an estimator to the rows of files; see `GPRegressor.fit_files`."""
    if scheduler is None:
        fit_source(estimator, source, memory=memory)
        return
    from orthogp.files.cluster import Cluster

    with Cluster(scheduler) as cluster:
        fit_source(estimator, source, Pass(cluster=cluster))


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
    estimator.covariate_names_ = default_names(sketch.mean.num_covariates)


class Read(NamedTuple):
    """The rows of files in numbers, and some of them."""

    #: The files, with the units of their date-times.
    source: RowSource
    tally: Tally
    #: At most some thousand rows at random.
    sample: Rows


def fit_source(
    estimator: Any, source: RowSource, how: Pass | None = None, memory: float = MEMORY
) -> Read:
    """Fit an estimator to the rows of files, all at once or, if they are many, by their sums.

    Rows that take at most `memory` bytes are read at once, unless there is a cluster to sum them.
    """
    began = time.monotonic()
    how = Pass(sample_rows=SAMPLE_ROWS) if how is None else how
    watcher = how.watcher
    check_settings(estimator)
    num_columns = len(source.reading.inputs)
    begin = begin_like(estimator, num_columns)
    # Sentences on how the fit ends name the columns.
    estimator.about_ = {"inputs": list(source.reading.inputs)}
    if how.cluster is None and source.num_bytes <= memory:
        source = source.scaled()
        watcher.begin("reading", source.num_rows)
        rows, tally = source.read(watcher.advance)
        watcher.begin("learning", None)
        names = source.reading.covariates
        # Classifiers take none.
        covariates = (NamedColumns(rows.covariates, names),) if names else ()
        y = rows.y[:, 0] if rows.one_target else rows.y
        estimator.fit(rows.inputs, y, rows.weights, *covariates)
        estimator.about_ = about_rows(source, tally)
        return Read(source, tally, _some(rows))
    if how.cluster is None:
        many = _too_many(source, memory)
        _check_needs_no_rows(estimator, num_columns, f"{many}: allow more memory")
        watcher.say(f"{many[0].upper()}{many[1:]}: they are summed in one pass.")
    else:
        _check_needs_no_rows(estimator, num_columns, "a cluster sends sums only: leave it out")
    sketch, source, tally, sample = sum_files(source, begin, how)
    seconds = time.monotonic() - began
    watcher.begin("learning", None)
    estimator.fit_sketch(sketch)
    learning = estimator.timings_["learn"]
    estimator.covariate_names_ = source.reading.covariates
    estimator.timings_ = {"pass": seconds, "learn": learning, "total": seconds + learning}
    estimator.about_ = about_rows(source, tally)
    reading = source.reading
    return Read(source, tally, as_rows(sample.columns.reshape(len(reading.names), -1), reading))


@dataclass(frozen=True)
class Begin:
    """Sums the first rows, and so chooses the lattice: that of another sketch, if there is one."""

    estimator: Any
    model: Model
    like: Sketch | None = None

    def __call__(self, rows: Rows, extent: Domain | None, total: int) -> Sketch:
        """Return the sums of the first of `total` rows, which lie in a box."""
        if self.like is not None:
            return self.like.alone(rows, self.num_threads)
        return begin_sketch(self.estimator, rows, self.model, extent, total)

    @property
    def num_threads(self) -> int:
        """The number of threads that sum."""
        return available_threads(self.estimator.n_jobs)


def begin_like(estimator: Any, num_columns: int, like: Sketch | None = None) -> Begin:
    """Return how the first batch is summed: on the lattice of another sketch, or on a new one."""
    return Begin(estimator, _joint_model(estimator, num_columns), like)


def about_rows(source: RowSource, tally: Tally) -> dict[str, Any]:
    """Return the notes about rows that go with their sums: columns, units, numbers of rows."""
    reading = source.reading
    return {
        "source": source.description,
        "inputs": list(reading.inputs),
        "targets": list(reading.targets if reading.size is None else reading.targets[:-1]),
        "size": {} if reading.size is None else {reading.size: reading.targets[-1]},
        "weights": reading.weights,
        "covariates": list(reading.covariates),
        "times": [None if scale is None else scale._asdict() for scale in reading.times],
        "rows": tally.used,
        "missing": tally.missing,
        "bad": tally.bad,
    }


def _joint_model(estimator: Any, num_columns: int) -> Model:
    """Return the model; its kernel must see all columns, since columns are chosen by name."""
    model = choose_model(kernel_of(estimator), estimator.features, num_columns)
    if len(model.columns) != num_columns:
        raise InputError(
            f"The kernel acts on {len(model.columns)} of {num_columns} columns: leave out those "
            "that it does not see."
        )
    return model


def _with_mean(sketch: Sketch, mean: str | None) -> Sketch:
    linear = sketch.mean.kind == "linear"
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
    return rows.part(chosen)
