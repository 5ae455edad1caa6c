"""Sketches as records of a file: what is kept of the rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from orthogp.errors import FileError
from orthogp.features import MeanPrior
from orthogp.inference import Domain
from orthogp.kernels.additive import Term
from orthogp.kernels.cyclic import own_periods
from orthogp.learning.kept_rows import KeptRows, RowTotals
from orthogp.learning.sketch import AdditiveSketch, Sketch
from orthogp.statistics import AdditiveStatistics, FourierStatistics
from orthogp.storage.container import read_file, write_file
from orthogp.storage.decoding import decoding
from orthogp.storage.kernels import kernel_content, kernel_from
from orthogp.storage.record import Record

SKETCH = "sketch"


def save_sketch(
    path: str | os.PathLike[str], sketch: Sketch, about: Mapping[str, Any] | None = None
) -> None:
    """Write a sketch to a file, whole or not at all.

    Parameters
    ----------
    about : mapping, optional
        What else is to be known of the rows: names of columns, units, sources; texts, finite
        numbers, lists and mappings.
    """
    write_file(path, SKETCH, sketch_content(sketch), about)


def load_sketch(path: str | os.PathLike[str]) -> tuple[Sketch, dict[str, Any]]:
    """Return the sketch that `save_sketch` wrote, and what was noted about it."""
    file = read_file(path, (SKETCH,))
    with decoding(path):
        return sketch_from(file.content), file.header.about


def sketch_content(sketch: Sketch) -> dict[str, Any]:
    """Return a sketch as a record."""
    if isinstance(sketch, KeptRows):
        return {
            "kept": True,
            "X": sketch.X,
            "y": sketch.y,
            "weights": sketch.weights,
            "extent": domain_content(sketch.extent),
            "mean": mean_content(sketch.mean),
            "shift": sketch.shift.tolist(),
        }
    content = {
        "additive": isinstance(sketch, AdditiveSketch),
        "statistics": sketch.statistics.to_content(),
        "extent": domain_content(sketch.extent),
        "mean": mean_content(sketch.mean),
        "shift": sketch.shift.tolist(),
        "iterative": sketch.iterative,
    }
    if isinstance(sketch, AdditiveSketch):
        content["repeats"] = sketch.repeats
        content["terms"] = [
            {
                "columns": list(term.columns),
                "kernel": kernel_content(term.kernel),
                "factors": [list(own) for own in factors],
            }
            for term, factors in zip(sketch.terms, sketch.factors, strict=True)
        ]
    elif type(sketch) is not Sketch:
        raise FileError(f"A file holds sketches of orthogp's own classes, not a {type(sketch)}.")
    return content


def sketch_from(record: Record) -> Sketch:
    """Return the sketch of a record."""
    if "kept" in record and record.flag("kept"):
        return _kept(record)
    additive = record.flag("additive")
    family = AdditiveStatistics if additive else FourierStatistics
    statistics = family.from_record(record.record("statistics"))
    extent = domain_from(record.record("extent"))
    num_dims = len(extent.lower)
    mean = mean_from(record.record("mean"), num_dims)
    shift = record.vector("shift", size=statistics.num_targets)
    if statistics.num_covariates != (num_dims if mean.slope_variance else 0):
        record.fail("must have sums for the slopes of the mean function", "statistics")
    if statistics.rows <= 0 or statistics.count <= 0:
        record.fail("must be of at least one row", "statistics")
    if isinstance(statistics, FourierStatistics):
        if statistics.lattice.num_dims != num_dims:
            record.fail(f"must have {num_dims} columns as the extent has", "statistics")
        iterative = record.flag("iterative")
        return Sketch(statistics, extent, mean, shift, iterative=iterative)
    terms, factors = [], []
    parts = record.records("terms", count=len(statistics.components))
    for own, component in zip(parts, statistics.components, strict=True):
        columns = own.integers("columns", most=num_dims - 1)
        if columns != component.columns:
            own.fail("must be those of the statistics", "columns")
        kernel = kernel_from(own.record("kernel"))
        kernel.check(len(columns))
        terms.append(Term(columns, kernel, own_periods(kernel, len(columns))))
        listed = own.value("factors")
        if not isinstance(listed, list) or len(listed) != len(columns):
            own.fail("must be one list for each column", "factors")
        each = Record({str(i): value for i, value in enumerate(listed)}, own.source, own.where)
        factors.append(
            tuple(each.integers(str(i), least=1, most=2**20) for i in range(len(columns)))
        )
        if not all(factors[-1]):
            own.fail("must not be empty", "factors")
    repeats = record.flag("repeats")
    return AdditiveSketch(statistics, extent, mean, shift, tuple(terms), tuple(factors), repeats)


def _kept(record: Record) -> KeptRows:
    X = record.array("X", "float", (None, None))
    y = record.array("y", "float", (len(X), None))
    weights = record.array("weights", "float", (len(X),))
    if len(X) < 2 or X.shape[1] == 0 or y.shape[1] == 0 or np.any(weights <= 0):
        record.fail("must be of at least two rows of positive weight")
    extent = domain_from(record.record("extent"), size=X.shape[1])
    mean = mean_from(record.record("mean"), X.shape[1])
    shift = record.vector("shift", size=y.shape[1])
    return KeptRows(RowTotals.of(y, weights, shift), extent, mean, shift, X, y, weights)


# ---------------------------------------------------------------------- parts


def domain_content(domain: Domain) -> dict[str, Any]:
    """Return a box as a record; its edges may be infinite."""
    return {
        "lower": np.asarray(domain.lower, dtype=float).tolist(),
        "upper": np.asarray(domain.upper, dtype=float).tolist(),
    }


def domain_from(record: Record, *, size: int | None = None, finite: bool = True) -> Domain:
    """Return the box of a record."""
    lower = record.vector("lower", size=size, finite=finite)
    upper = record.vector("upper", size=len(lower), finite=finite)
    if len(lower) == 0 or np.any(lower > upper):
        record.fail("must have lower edges below the upper ones")
    return Domain(lower, upper)


def mean_content(mean: MeanPrior) -> dict[str, Any]:
    """Return the mean function's prior as a record."""
    return {
        "offset_variance": float(mean.offset_variance),
        "slope_variance": float(mean.slope_variance),
        "origin": np.asarray(mean.origin).tolist(),
        "width": np.asarray(mean.width).tolist(),
    }


def mean_from(record: Record, num_dims: int | None = None) -> MeanPrior:
    """Return the mean function's prior of a record; an infinite width is no slope."""
    offset = record.number("offset_variance", least=0.0)
    slope = record.number("slope_variance", least=0.0)
    origin = record.vector("origin", size=num_dims)
    width = record.vector("width", size=len(origin), finite=False)
    if np.any(width <= 0):
        record.fail("must be positive", "width")
    return MeanPrior(offset, slope, origin, width)
