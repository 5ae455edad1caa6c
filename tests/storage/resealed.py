"""Files taken apart and put together again, with a checksum that fits: what a forger would do."""

import hashlib
import json
from typing import Any, NamedTuple

ZEROS = b"0" * 64


class Parts(NamedTuple):
    """A header whose content and notes are trees, and the bytes of the arrays."""

    header: dict[str, Any]
    data: bytes

    @property
    def content(self) -> dict[str, Any]:
        return self.header["__metadata__"]["content"]


def take_apart(file: bytes) -> Parts:
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    metadata = header["__metadata__"]
    for name in ("content", "about"):
        metadata[name] = json.loads(metadata[name])
    return Parts(header, file[8 + length :])


def put_together(parts: Parts) -> bytes:
    """The file of some parts, with the checksum that belongs to it."""
    header = json.loads(json.dumps(parts.header))
    metadata = header["__metadata__"]
    if isinstance(metadata, dict):
        for name in ("content", "about"):
            if name in metadata:
                metadata[name] = json.dumps(metadata[name])
    text = json.dumps(header, separators=(",", ":")).encode()
    return seal(text + b" " * (-len(text) % 8), parts.data)


def seal(header: bytes, data: bytes) -> bytes:
    """The file of a header and data, its checksum made to fit if it has one."""
    before, mark, after = header.partition(b'"sha256":"')
    if not mark:
        return len(header).to_bytes(8, "little") + header + data
    blank = len(header).to_bytes(8, "little") + before + mark + ZEROS + after[64:] + data
    digest = hashlib.sha256(blank).hexdigest().encode()
    return len(header).to_bytes(8, "little") + before + mark + digest + after[64:] + data
