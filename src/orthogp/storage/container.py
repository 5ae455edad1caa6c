"""The layout of a file: a header of JSON, and behind it arrays of numbers.

The layout is that of safetensors: eight bytes with the header's length, the header, the arrays one
after the other. A file holds numbers and texts, never code, and nothing in it is compressed, so it
is no larger in memory than on the disk. docs/format.md describes every byte.

The library safetensors could read the arrays, but not write them: it orders the texts of a header
at random, so that neither bytes nor checksums would be the same twice. The checks are made here,
where each can say in a sentence what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.persistence import FilePath, replacing

_FORMAT = "orthogp"
#: The version that this release writes; it reads this one and all before.
VERSION = 2
# The longest header: JSON takes some twenty times its size when parsed.
_MOST_HEADER = 2**22
# The types that arrays may have, by their names in the header.
_TYPES = {"F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "BOOL": np.dtype("?")}
_TYPE_NAMES = {"f": "F64", "i": "I64", "u": "I64", "b": "BOOL"}
# What stands for the checksum while it is computed.
_NO_DIGEST = "0" * 64
# The largest number of axes of an array.
_MOST_DIMS = 8
# The largest number of numbers in an array: an empty one has strides, which must be numbers.
_MOST_NUMBERS = 2**40
# The length of the longest vector that stands in the header, where it can be read.
_SHORT = 16
# The numbers that JSON has not.
_OPEN = ("inf", "-inf", "nan")


class Header(NamedTuple):
    """What a file says about itself, without its arrays."""

    #: What it holds, such as "GPRegressor" or "sketch".
    kind: str
    #: The version of the format.
    version: int
    #: What its writer noted: names of columns, units, sources.
    about: dict[str, Any]
    #: The shape of each array, by its name.
    shapes: dict[str, tuple[int, ...]]


class _Array(NamedTuple):
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: FilePath) -> Header:
    """Return what a file says about itself, without reading its arrays."""
    with _opened(path) as stream:
        return _Reader(path, stream).header


def read_file(path: FilePath, kinds: tuple[str, ...]) -> tuple[Header, dict[str, Any]]:
    """Return header and content of a file of one of some kinds, arrays in their places.

    Version, kind, types, shapes and sizes are checked before anything is allocated, the checksum
    after the arrays are read.
    """
    with _opened(path) as stream:
        reader = _Reader(path, stream)
        if reader.header.kind not in kinds:
            raise FileError(
                f"{path} holds a {_shortened(repr(reader.header.kind)[1:-1])}, but a "
                f"{' or '.join(kinds)} is wanted: give another file, or load it as what it is."
            )
        return reader.header, reader.content()


# ---------------------------------------------------------------------- writing


def write_file(
    path: FilePath,
    kind: str,
    content: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
    mode: int | None = None,
) -> None:
    """Write a tree of JSON values and arrays, whole or not at all, with some permissions.

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
    metadata = {
        "format": _FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "sha256": _NO_DIGEST,
        "about": _notes(dict(about or {})),
        "content": json.dumps(tree, allow_nan=False),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _TYPE_NAMES[array.dtype.kind],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    blank = _header_bytes(header)
    if len(blank) - 8 > _MOST_HEADER:
        raise FileError(
            f"{path} would get a header of {len(blank) - 8:,} bytes, more than the "
            f"{_MOST_HEADER:,} that a file may have: note less about it, or use fewer features."
        )
    digest = hashlib.sha256(blank)
    for array in arrays.values():
        digest.update(_raw_bytes(array))
    metadata["sha256"] = digest.hexdigest()
    with replacing(path, mode) as stream:
        stream.write(_header_bytes(header))
        for array in arrays.values():
            stream.write(_raw_bytes(array))


def _notes(about: dict[str, Any]) -> str:
    """Return notes as JSON that reads back unchanged."""
    try:
        noted = json.dumps(about, allow_nan=False)
        if json.loads(noted) != _lists(about):
            raise ValueError("keys must be texts")
    except (TypeError, ValueError) as error:
        raise FileError(
            "What a file notes about itself must be texts, finite numbers, lists and mappings: "
            f"{error}."
        ) from error
    return noted


def _lists(node: Any) -> Any:
    """Return a tree with lists in place of tuples, as JSON has them."""
    if isinstance(node, dict):
        return {key: _lists(value) for key, value in node.items()}
    return [_lists(value) for value in node] if isinstance(node, list | tuple) else node


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
        kind = node.dtype.kind
        if kind == "c":
            # Real and imaginary parts side by side, as they are in memory.
            node = np.ascontiguousarray(node, dtype="<c16")
            node = node.reshape(*node.shape, 1).view("<f8")
        dtype = _TYPES[_TYPE_NAMES[node.dtype.kind]]
        short = kind in "fiu" and node.ndim <= 1 and 0 < node.size <= _SHORT
        if short and np.isfinite(node).all():
            return {"$numbers": node.astype(dtype).tolist()}
        # Not `ascontiguousarray`, which gives a single number an axis.
        arrays[name] = np.asarray(node, dtype=dtype, order="C")
        return {"$complex" if kind == "c" else "$array": name}
    if isinstance(node, np.generic):
        node = node.item()
    if isinstance(node, float) and not math.isfinite(node):
        return {"$float": str(node)}
    return node


def _header_bytes(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    # The arrays begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# ---------------------------------------------------------------------- reading


@contextmanager
def _opened(path: FilePath) -> Iterator[BinaryIO]:
    """Open a regular file; an error while it is read becomes one sentence."""
    try:
        # Opening a pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileError(f"{path} is no regular file: give a file that was saved.")
        with open(path, "rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise FileError(f"There is no file {path}: check its name.") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise FileError(f"{path} is too large for the memory at hand.") from error


class _Reader:
    """Reads a file front to back, each step allowed by the checks before it."""

    def __init__(self, path: FilePath, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._size = os.fstat(stream.fileno()).st_size
        self._prefix = stream.read(8)
        length = int.from_bytes(self._prefix, "little")
        if len(self._prefix) < 8 or not 2 <= length <= _MOST_HEADER:
            self._foreign()
        self._check_size(8 + length)
        self._raw = stream.read(length)
        header = _parsed(self._raw)
        self._metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
        if not isinstance(self._metadata, dict) or self._metadata.get("format") != _FORMAT:
            self._foreign()
        version = self._version()
        self._arrays = self._checked_arrays(header)
        about = _parsed(self._text("about"))
        if not isinstance(about, dict):
            self._damaged("what it notes about itself is no record")
        shapes = {array.name: array.shape for array in self._arrays}
        self.header = Header(self._text("kind"), version, about, shapes)

    def content(self) -> dict[str, Any]:
        """Return the content, read and checked against the checksum."""
        digest = self._text("sha256")
        if len(digest) != 64:
            self._damaged("it has no checksum")
        blank = self._raw.replace(digest.encode(), _NO_DIGEST.encode())
        running = hashlib.sha256(self._prefix + blank)
        arrays = {}
        for own in self._arrays:
            arrays[own.name] = array = np.empty(own.shape, dtype=own.dtype)
            view = _raw_bytes(array)
            if self._stream.readinto(view) < len(view):  # type: ignore[attr-defined]
                # Shorter than it said: someone else is writing to it.
                self._damaged("it ended while it was read")
            running.update(view)
        if running.hexdigest() != digest:
            self._damaged("its checksum does not match its content")
        for name, array in arrays.items():
            if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                self._damaged(f"{_shortened(name)} holds values other than true and false")
        tree = _parsed(self._text("content"), lambda node: self._with_array(node, arrays))
        if not isinstance(tree, dict):
            self._damaged("its content is no record in JSON")
        if arrays:
            self._damaged(f"nothing refers to the array {_shortened(next(iter(arrays)))}")
        return tree

    # ------------------------------------------------------------------ the header

    def _text(self, name: str) -> str:
        value = self._metadata.get(name) if self._metadata else None
        if not isinstance(value, str):
            self._damaged(f"its header has no text {name!r}")
        return value

    def _version(self) -> int:
        text = self._text("version")
        if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9) or int(text) < 1:
            self._damaged("its version is no number")
        if int(text) > VERSION:
            raise FileError(
                f"{self._path} has version {int(text)} of the format, but this orthogp reads up to "
                f"version {VERSION}: upgrade orthogp."
            )
        return int(text)

    def _checked_arrays(self, entries: dict[str, Any]) -> list[_Array]:
        """Return the arrays in their order, which fill the rest of the file without a gap."""
        arrays = [self._checked_array(name, entry) for name, entry in entries.items()]
        arrays.sort(key=lambda array: (array.start, array.stop))
        end = 0
        for array in arrays:
            if array.start != end:
                self._damaged(f"the array {_shortened(array.name)} does not follow the one before")
            end = array.stop
        expected = 8 + len(self._raw) + end
        self._check_size(expected)
        if expected < self._size:
            self._damaged(f"it has {self._size - expected} bytes too many")
        return arrays

    def _checked_array(self, name: str, entry: Any) -> _Array:
        shown = f"the array {_shortened(name)}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            self._damaged(f"{shown} is not described as it must be")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _TYPES:
            self._damaged(f"{shown} has a type other than {', '.join(_TYPES)}")
        if not _are_counts(shape) or len(shape) > _MOST_DIMS or max(shape, default=0) > 2**40:
            self._damaged(f"{shown} has no valid shape")
        size = math.prod(shape) * _TYPES[dtype].itemsize
        fits = _are_counts(offsets) and len(offsets) == 2 and offsets[1] - offsets[0] == size
        if not fits or math.prod(max(n, 1) for n in shape) > _MOST_NUMBERS:
            self._damaged(f"{shown} has a shape that does not fit its bytes")
        return _Array(name, _TYPES[dtype], tuple(shape), *offsets)

    # ------------------------------------------------------------------ the content

    def _with_array(self, node: dict[str, Any], arrays: dict[str, NDArray]) -> Any:
        """Return what a record stands for: an array, taken out of `arrays`, a number, or itself."""
        key, value = next(iter(node.items())) if len(node) == 1 else ("", None)
        if key in ("$array", "$complex"):
            if not isinstance(value, str) or value not in arrays:
                self._damaged("its content names an array that is not there, or names it twice")
            array = arrays.pop(value)
            return array if key == "$array" else self._complex(array)
        if key == "$numbers":
            return self._numbers(value)
        if key == "$float":
            if value not in _OPEN:
                self._damaged("it holds a number that is none")
            return float(value)
        return node

    def _complex(self, array: NDArray) -> NDArray:
        if array.ndim == 0 or array.shape[-1] != 2 or array.dtype.kind != "f":
            self._damaged("a complex array has no pairs of numbers")
        return array.view(np.complex128)[..., 0]

    def _numbers(self, value: Any) -> NDArray:
        """Return a short array, of integers if all numbers are written as integers."""
        kinds = {type(number) for number in (value if isinstance(value, list) else [value])}
        if not kinds or not kinds <= {int, float}:
            self._damaged("a list of numbers holds something else")
        try:
            return np.array(value, dtype=np.float64 if float in kinds else np.int64)
        except OverflowError:
            self._damaged("it holds a number that is too large")

    # ------------------------------------------------------------------ sentences

    def _foreign(self) -> NoReturn:
        raise FileError(
            f"{self._path} is not a file that orthogp wrote: give one made by save, or by "
            "`orthogp sketch` or `orthogp fit`."
        )

    def _check_size(self, expected: int) -> None:
        if expected > self._size:
            raise FileError(
                f"{self._path} is damaged or cut off: it has {self._size:,} bytes and should have "
                f"{expected:,}; copy it again, or save it again."
            )

    def _damaged(self, what: str) -> NoReturn:
        raise FileError(f"{self._path} is damaged: {what}; copy it again, or save it again.")


def _raw_bytes(array: NDArray) -> memoryview:
    """Return the bytes of an array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _parsed(text: bytes | str, revive: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """Return JSON, with what `revive` makes of each record; `None` if it is not JSON.

    A name that stands twice, and numbers that JSON has not, are refused.
    """

    def record(pairs: list[tuple[str, Any]]) -> Any:
        node = dict(pairs)
        if len(node) < len(pairs):
            raise ValueError("a name stands twice")
        return revive(node)

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(text, object_pairs_hook=record, parse_constant=refuse)
    except FileError:
        raise
    except (ValueError, RecursionError):
        return None


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
