"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from orthogp.errors import FileError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the file `path` once all of them are on the disk.

    They go to a temporary file beside it, which takes its name in one step. If anything fails, the
    temporary file is removed and what was there before stays as it was.
    """
    # A link stays a link, to the file that is replaced.
    target = Path(os.path.realpath(path))
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        raise FileError(f"{path} is no regular file: choose another name to save to.")
    unfinished = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with unfinished.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
        _synchronise(target.parent)
    except OSError as error:
        raise FileError(_sentence(path, target, error)) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _synchronise(directory: Path) -> None:
    """Bring the new name to the disk, where directories can be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sentence(path: str | os.PathLike[str], target: Path, error: OSError) -> str:
    if error.errno in _FULL:
        return (
            f"There is no room to write {path} ({error.strerror}): free some space or choose "
            "another place; what was there before is unchanged."
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"There is no directory {target.parent} to write {target.name} into: make it first."
    if error.errno in _FORBIDDEN:
        return f"{path} may not be written ({error.strerror}): choose another place."
    return f"{path} cannot be written: {error.strerror or error}."
