"""The labels of a classifier as a record of a file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.storage.record import Record

# The types of labels that a file can name; texts and objects are lists of texts.
_NUMBERS = (
    *(f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64)),
    *(f"float{size}" for size in (16, 32, 64)),
)


def labels_content(labels: NDArray) -> dict[str, Any]:
    """Return labels with their type; `FileError` unless they are numbers, truths or texts."""
    values = labels.tolist()
    if labels.dtype.kind in "US":
        texts = [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
        return {"type": "text" if labels.dtype.kind == "U" else "bytes", "values": texts}
    if labels.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        return {"type": "object", "values": values}
    if labels.dtype.name in (*_NUMBERS, "bool"):
        return {"type": labels.dtype.name, "values": values}
    raise FileError(
        f"A file holds labels that are numbers or texts, but these are of type {labels.dtype}: "
        "fit with such labels."
    )


def labels_from(record: Record) -> NDArray:
    """Return the labels of a record, at least two and distinct."""
    name = record.text("type", ("text", "bytes", "object", "bool", *_NUMBERS))
    values = record.value("values")
    wanted: tuple[type, ...] = (str,)
    if name == "bool":
        wanted = (bool,)
    elif name in _NUMBERS:
        wanted = (int,) if "int" in name else (int, float)
    if not isinstance(values, list) or not all(
        isinstance(value, wanted) and (name == "bool" or not isinstance(value, bool))
        for value in values
    ):
        record.fail(f"must be a list of type {name}", "values")
    if len(values) < 2 or len(set(values)) < len(values):
        record.fail("must be two or more different labels", "values")
    if name == "bytes":
        return np.array([value.encode("latin-1") for value in values])
    if name in ("text", "object"):
        return np.array(values, dtype=object if name == "object" else np.str_)
    return np.array(values, dtype=name)
