"""The layout of a file: a header of JSON, and behind it arrays of numbers.

The layout is that of safetensors: eight bytes with the header's length, the header, the arrays one
after the other. A file holds numbers and texts, never code, and nothing in it is compressed, so it
is no larger in memory than on the disk. docs/format.md describes every byte.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.storage.atomic import replacing
from orthogp.storage.reading import (
    FORMAT,
    MOST_HEADER,
    NO_DIGEST,
    TYPES,
    VERSION,
    Header,
    Opened,
    Reader,
    raw_bytes,
    shortened,
)
from orthogp.storage.record import Record

_NAMES = {"f": "F64", "i": "I64", "u": "I64", "b": "BOOL"}


class File(NamedTuple):
    """A file that has been read: its header, and what it holds."""

    header: Header
    content: Record


def write_file(
    path: str | os.PathLike[str],
    kind: str,
    content: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a tree of JSON values and arrays, whole or not at all.

    Parameters
    ----------
    content : mapping
        Texts, numbers, lists and mappings, with NumPy arrays of numbers where one likes.
    about : mapping, optional
        Texts, finite numbers, lists and mappings that `read_header` will return.
    """
    arrays: dict[str, NDArray] = {}
    tree = _without_arrays(content, "", arrays)
    # Single bytes last: all others stay aligned.
    arrays = dict(sorted(arrays.items(), key=lambda entry: entry[1].itemsize, reverse=True))
    try:
        noted = json.dumps(dict(about or {}), allow_nan=False)
        # What is read is what was written: no keys that JSON would turn into texts.
        if json.loads(noted) != _lists(dict(about or {})):
            raise ValueError("keys must be texts")
    except (TypeError, ValueError) as error:
        raise FileError(
            f"What a file notes about itself must be texts, finite numbers, lists and mappings: "
            f"{error}."
        ) from error
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "sha256": NO_DIGEST,
        "about": noted,
        "content": json.dumps(tree, allow_nan=False),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _NAMES[array.dtype.kind],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    blank = _header_bytes(header)
    if len(blank) > MOST_HEADER:
        raise FileError(
            f"{path} would get a header of {len(blank):,} bytes, more than the {MOST_HEADER:,} "
            "that a file may have: note less about it, or use fewer features."
        )
    digest = hashlib.sha256(len(blank).to_bytes(8, "little") + blank)
    for array in arrays.values():
        digest.update(raw_bytes(array))
    metadata["sha256"] = digest.hexdigest()
    with replacing(path) as stream:
        stream.write(len(blank).to_bytes(8, "little"))
        stream.write(_header_bytes(header))
        for array in arrays.values():
            stream.write(raw_bytes(array))


def read_header(path: str | os.PathLike[str]) -> Header:
    """Return what a file says about itself, without reading its arrays."""
    with Opened(path) as stream:
        return Reader(path, stream).header


def read_file(path: str | os.PathLike[str], kinds: tuple[str, ...]) -> File:
    """Return the content of a file of one of some kinds, after all checks that need no knowledge.

    Version, kind, types, shapes and sizes are checked before anything is allocated, the checksum
    after the arrays are read.
    """
    with Opened(path) as stream:
        reader = Reader(path, stream)
        if reader.header.kind not in kinds:
            wanted = " or ".join(kinds)
            raise FileError(
                f"{path} holds a {shortened(reader.header.kind)}, but a {wanted} is wanted: give "
                "another file, or load it as what it is."
            )
        return File(reader.header, reader.content())


# ---------------------------------------------------------------------- writing


def _without_arrays(node: Any, name: str, arrays: dict[str, NDArray]) -> Any:
    """Return a tree in which arrays are named, and gather them by their names."""
    if isinstance(node, Mapping):
        return {
            key: _without_arrays(value, f"{name}/{key}" if name else key, arrays)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_without_arrays(value, f"{name}/{i}", arrays) for i, value in enumerate(node)]
    if isinstance(node, np.ndarray):
        complex_ = node.dtype.kind == "c"
        if complex_:
            # Real and imaginary parts side by side, as they are in memory.
            node = np.ascontiguousarray(node, dtype="<c16")
            node = node.reshape(*node.shape, 1).view("<f8")
        arrays[name] = np.ascontiguousarray(node, dtype=TYPES[_NAMES[node.dtype.kind]])
        return {"$complex" if complex_ else "$array": name}
    if isinstance(node, np.generic):
        node = node.item()
    if isinstance(node, float) and not math.isfinite(node):
        return {"$float": str(node)}
    return node


def _lists(node: Any) -> Any:
    """Return a tree with lists in place of tuples, as JSON has them."""
    if isinstance(node, dict):
        return {key: _lists(value) for key, value in node.items()}
    return [_lists(value) for value in node] if isinstance(node, list | tuple) else node


def _header_bytes(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    # The arrays begin at a multiple of eight bytes.
    return text + b" " * (-len(text) % 8)
