"""Files read front to back, each step allowed by the checks before it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.storage.record import Record

FORMAT = "orthogp"
#: What this release writes; it reads this and all before.
VERSION = 1

#: A header is texts and small numbers; JSON takes some twenty times its size when parsed.
MOST_HEADER = 2**22
#: The types that arrays may have, by their names in the header.
TYPES = {"F64": np.dtype("<f8"), "I64": np.dtype("<i8"), "BOOL": np.dtype("?")}
#: What stands for the checksum while it is computed.
NO_DIGEST = "0" * 64

_MOST_DIMS = 8
_MOST_NUMBERS = 2**40


class Header(NamedTuple):
    """What a file says about itself, without its arrays.

    Attributes
    ----------
    kind : str
        What it holds, such as "GPRegressor" or "sketch".
    version : int
        The version of the format.
    about : dict
        What its writer noted: names of columns, units, sources.
    shapes : dict
        The shape of each array, by its name.
    """

    kind: str
    version: int
    about: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]


class Opened:
    """Opens a regular file; what goes wrong while it is read becomes one sentence."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> BinaryIO:
        try:
            # Opening a pipe would wait for its writer.
            if not stat.S_ISREG(os.stat(self._path).st_mode):
                raise FileError(f"{self._path} is no regular file: give a file that was saved.")
            self._stream = open(self._path, "rb", buffering=0)
        except FileNotFoundError as error:
            raise FileError(f"There is no file {self._path}: check its name.") from error
        except OSError as error:
            raise FileError(_unreadable(self._path, error)) from error
        return self._stream  # type: ignore[return-value]

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stream.close()
        if isinstance(error, OSError):
            raise FileError(_unreadable(self._path, error)) from error
        if isinstance(error, MemoryError):
            raise FileError(f"{self._path} is too large for the memory at hand.") from error


class _Array(NamedTuple):
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Reader:
    """Reads a file: its header when it is made, its arrays when asked for its content."""

    def __init__(self, path: str | os.PathLike[str], stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._size = os.fstat(stream.fileno()).st_size
        prefix = self._take(min(8, self._size))
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or not 2 <= length <= MOST_HEADER:
            self._foreign()
        if 8 + length > self._size:
            self._truncated(8 + length)
        self._raw = self._take(length)
        self._prefix = prefix
        header = _parsed(self._raw)
        self._metadata = header.get("__metadata__") if isinstance(header, dict) else None
        if not isinstance(self._metadata, dict) or self._metadata.get("format") != FORMAT:
            self._foreign()
        version = self._version()
        self._arrays = self._check_arrays(
            {name: entry for name, entry in header.items() if name != "__metadata__"}
        )
        about = _parsed(self._text("about"))
        if not isinstance(about, dict):
            self._damaged("what it notes about itself is no record")
        shapes = {array.name: array.shape for array in self._arrays}
        self.header = Header(self._text("kind"), version, about, shapes)

    def content(self) -> Record:
        """Return the content, read and checked against the checksum."""
        digest = self._text("sha256")
        if len(digest) != 64:
            self._damaged("it has no checksum")
        blank = self._raw.replace(digest.encode(), NO_DIGEST.encode())
        running = hashlib.sha256(self._prefix + blank)
        arrays = {}
        for own in self._arrays:
            arrays[own.name] = array = np.empty(own.shape, dtype=own.dtype)
            self._fill(raw_bytes(array))
            running.update(raw_bytes(array))
        if running.hexdigest() != digest:
            self._damaged("its checksum does not match its content")
        for name, array in arrays.items():
            if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                self._damaged(f"{shortened(name)} holds values other than true and false")
        tree = _parsed(self._text("content"))
        if not isinstance(tree, dict):
            self._damaged("its content is no record in JSON")
        try:
            tree = self._with_arrays(tree, arrays)
        except RecursionError:
            self._damaged("its content is nested too deeply")
        if arrays:
            self._damaged(f"nothing refers to the array {shortened(next(iter(arrays)))}")
        return Record(tree, str(self._path))

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

    def _check_arrays(self, entries: dict[str, Any]) -> list[_Array]:
        """Return the arrays in their order, which fill the rest of the file without a gap."""
        arrays = [self._check_array(name, entry) for name, entry in entries.items()]
        arrays.sort(key=lambda array: (array.start, array.stop))
        end = 0
        for array in arrays:
            if array.start != end:
                self._damaged(f"the array {shortened(array.name)} does not follow the one before")
            end = array.stop
        expected = 8 + len(self._raw) + end
        if expected > self._size:
            self._truncated(expected)
        if expected < self._size:
            self._damaged(f"it has {self._size - expected} bytes too many")
        return arrays

    def _check_array(self, name: str, entry: Any) -> _Array:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            self._damaged(f"the array {shortened(name)} is not described as it must be")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in TYPES:
            self._damaged(f"the array {shortened(name)} has a type other than {', '.join(TYPES)}")
        if not _are_counts(shape) or len(shape) > _MOST_DIMS or max(shape, default=0) > 2**40:
            self._damaged(f"the array {shortened(name)} has no valid shape")
        size = math.prod(shape) * TYPES[dtype].itemsize
        fits = _are_counts(offsets) and len(offsets) == 2 and offsets[1] - offsets[0] == size
        # An empty array still has strides, which must be numbers.
        if not fits or math.prod(max(n, 1) for n in shape) > _MOST_NUMBERS:
            self._damaged(f"the array {shortened(name)} has a shape that does not fit its bytes")
        return _Array(name, TYPES[dtype], tuple(shape), *offsets)

    # ------------------------------------------------------------------ bytes and trees

    def _take(self, count: int) -> bytes:
        buffer = bytearray(count)
        self._fill(memoryview(buffer))
        return bytes(buffer)

    def _fill(self, view: memoryview) -> None:
        while view:
            got = self._stream.readinto(view)  # type: ignore[attr-defined]
            if not got:
                # Shorter than it said: someone else is writing to it.
                self._damaged("it ended while it was read")
            view = view[got:]

    def _with_arrays(self, node: Any, arrays: dict[str, NDArray]) -> Any:
        """Return a tree with each array, taken out of `arrays`, in the place that names it."""
        if isinstance(node, list):
            return [self._with_arrays(value, arrays) for value in node]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            ((key, value),) = node.items()
            if key in ("$array", "$complex"):
                if not isinstance(value, str) or value not in arrays:
                    self._damaged("its content names an array that is not there, or names it twice")
                array = arrays.pop(value)
                return array if key == "$array" else self._complex(array)
            if key == "$float":
                if value not in ("inf", "-inf", "nan"):
                    self._damaged("it holds a number that is none")
                return float(value)
        return {key: self._with_arrays(value, arrays) for key, value in node.items()}

    def _complex(self, array: NDArray) -> NDArray:
        if array.ndim == 0 or array.shape[-1] != 2 or array.dtype.kind != "f":
            self._damaged("a complex array has no pairs of numbers")
        return array.view(np.complex128)[..., 0]

    # ------------------------------------------------------------------ sentences

    def _foreign(self) -> NoReturn:
        raise FileError(
            f"{self._path} is not a file that orthogp wrote: give one made by save, or by "
            "`orthogp sketch` or `orthogp fit`."
        )

    def _truncated(self, expected: int) -> NoReturn:
        raise FileError(
            f"{self._path} is damaged or cut off: it has {self._size:,} bytes and should have "
            f"{expected:,}; copy it again, or save it again."
        )

    def _damaged(self, what: str) -> NoReturn:
        raise FileError(f"{self._path} is damaged: {what}; copy it again, or save it again.")


def raw_bytes(array: NDArray) -> memoryview:
    """Return the bytes of an array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _parsed(text: bytes | str) -> Any:
    """Return JSON without repeated names and numbers that JSON has not; `None` if it is none."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name stands twice")
    return result


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _unreadable(path: str | os.PathLike[str], error: OSError) -> str:
    return f"{path} cannot be read: {error.strerror or error}."


def shortened(text: str) -> str:
    """Return a text that fits into a sentence."""
    return text if len(text) <= 60 else text[:57] + "..."
