"""What files can hold, and how all files are written: whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Self

from orthogp.errors import FileError

#: The name of a file.
FilePath = str | os.PathLike[str]
#: The permissions of a file that only its owner may read.
PRIVATE = 0o600

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
# The signals that end a process without running its `finally` clauses.
_DEADLY = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
# The files that are being written, and folders for the time of one task.
_unfinished: set[Path] = set()


class Storable:
    """What a file can hold.

    A file holds numbers and texts, never code. What it holds of the rows depends on the engine:
    "exact" and "neighbours" keep all of them; docs/format.md says what others keep.
    """

    def save(self, path: FilePath) -> None:
        """Write it to a file, whole or not at all.

        Of an estimator, the attributes `about_` (texts, numbers, lists and mappings) and
        `diagnostics_` are kept too, if it has them. A user's kernels and features are kept once
        their classes are registered: `orthogp.storage.register(MyKernel)`.
        """
        _storage().save(path, self)

    @classmethod
    def load(cls, path: FilePath) -> Self:
        """Return what `save` wrote; a model predicts, updates and reports as before.

        Raises `FileError`, with a sentence, for files that are damaged, foreign, of another kind or
        of a newer format.
        """
        return _storage().load(path, cls)


def _storage() -> Any:
    # By name: storage imports every class that a file can hold, and none of them imports storage.
    return import_module("orthogp.storage")


@contextmanager
def replacing(path: FilePath, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the file `path` once all of them are on the disk.

    They go to a new file beside it, under a name that nobody can guess, which takes the name `path`
    in one step. If anything fails, or the process is interrupted or terminated, the new file is
    removed, and the file that was there before stays as it was.

    Parameters
    ----------
    mode : int, optional
        The permissions of the file: those of the file it replaces, or of any new file, by default.
    """
    # A link stays a link, to the file that is replaced.
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.part")
    _unfinished.add(unfinished)
    try:
        with suppress(FileNotFoundError):
            found = target.stat().st_mode
            if not stat.S_ISREG(found):
                raise FileError(f"{path} is no regular file: choose another name to save to.")
            mode = stat.S_IMODE(found) if mode is None else mode
        with _removed_on_termination(), _created(unfinished, mode is not None) as stream:
            if mode is not None:
                os.chmod(unfinished, mode)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(target)
        if hasattr(os, "O_DIRECTORY"):
            # The new name is on the disk only when its directory is.
            directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except OSError as error:
        raise FileError(_why_not_written(path, target, error)) from error
    finally:
        _remove(unfinished)
        _unfinished.discard(unfinished)


def _created(path: Path, private: bool) -> BinaryIO:
    """Return a file that was not there before, for its owner only or as any new file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, PRIVATE if private else 0o666), "wb")


@contextmanager
def _removed_on_termination() -> Iterator[None]:
    """Remove unfinished files if a signal ends the process, unless somebody handles the signal."""
    # Only the main thread can set what a signal does.
    main = threading.current_thread() is threading.main_thread()
    fatal = [own for own in _DEADLY if main and signal.getsignal(own) is signal.SIG_DFL]
    for number in fatal:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in fatal:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: object) -> None:
    """Remove unfinished files, and end as if the signal had not been caught."""
    remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder for its owner only, which is gone afterwards.

    It is gone too if the process is interrupted or terminated meanwhile.
    """
    folder = Path(tempfile.gettempdir(), f"orthogp-{secrets.token_hex(8)}")
    # Before the folder exists: a signal may come at any time.
    _unfinished.add(folder)
    try:
        with _removed_on_termination():
            folder.mkdir(mode=0o700)
            yield folder
    finally:
        _remove(folder)
        _unfinished.discard(folder)


def remove_unfinished() -> None:
    """Remove files that are being written and temporary folders: the process is about to end."""
    for path in tuple(_unfinished):
        _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _why_not_written(path: FilePath, target: Path, error: OSError) -> str:
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
