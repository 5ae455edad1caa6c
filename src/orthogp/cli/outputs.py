"""Where results may go: to new files, over results like them, and never over what is read."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orthogp.cli.console import STANDARD
from orthogp.errors import FileError, InputError

# How every report ends.
_REPORT_FOOTER = b"<footer>Made by orthogp.</footer>"
# The number of last bytes of a report within which the footer lies.
_REPORT_END = 200

#: Returns whether a file that exists is one that a command writes, and may write again.
Recognise = Callable[[str], bool]


def check_output(
    out: str | os.PathLike[str],
    inputs: Sequence[str],
    *,
    force: bool,
    like: tuple[str, Recognise] | None = None,
) -> None:
    """Raise `InputError` unless a file may be written: before long work, not after it.

    Parameters
    ----------
    out : path
        Where the file is to go; "-" is standard output.
    inputs : sequence of str
        Files, folders and patterns that the command reads; "-" is standard input. None of them is
        ever overwritten.
    force : bool
        Whether any other file may be.
    like : (str, callable), optional
        What may be overwritten anyway, in words, and how it is recognised.
    """
    from orthogp.files.writing import check_destination

    out = os.fspath(out)
    if out == STANDARD:
        return
    check_destination(out)
    try:
        found = os.stat(out)
    except OSError:
        # Nothing is there. What else is wrong with the name is said by whoever writes to it.
        return
    if not stat.S_ISREG(found.st_mode):
        return
    if any(os.path.samestat(found, other) for other in _stats(inputs)):
        raise InputError(
            f"{out} is read by this command, and would be lost: choose another name to write to."
        )
    if force or (like is not None and like[1](out)):
        return
    other = "" if like is None else f" and is no {like[0]}"
    raise InputError(f"{out} exists{other}: choose another name, or overwrite it with --force.")


def check_saved(
    out: str, inputs: Sequence[str], like: tuple[str, Recognise], *, force: bool
) -> None:
    """Raise `InputError` unless a file and the checkpoint beside it may be written."""
    check_output(out, inputs, force=force, like=like)
    if out != STANDARD:
        check_output(f"{out}.checkpoint", inputs, force=force, like=SKETCH)


def _is_model(path: str) -> bool:
    from orthogp.storage import MODEL_KINDS

    return _kind(path) in MODEL_KINDS


def _is_sketch(path: str) -> bool:
    return _kind(path) in ("sketch", "checkpoint")


def _is_report(path: str) -> bool:
    with open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - _REPORT_END, 0))
        return _REPORT_FOOTER in stream.read()


def _kind(path: str) -> str | None:
    """Return what a file of ours holds, `None` if it is another's."""
    from orthogp.storage import read_header

    try:
        return read_header(path).kind
    except FileError:
        return None


MODEL: tuple[str, Recognise] = ("model of orthogp", _is_model)
SKETCH: tuple[str, Recognise] = ("statistics of orthogp", _is_sketch)
REPORT: tuple[str, Recognise] = ("report of orthogp", _is_report)


def _stats(inputs: Sequence[str]) -> Iterator[os.stat_result]:
    """Yield what the system knows of each file that is read, links followed."""
    from orthogp.files.source import find_files

    for name in inputs:
        if name == STANDARD:
            try:
                yield os.fstat(sys.stdin.fileno())
            except (OSError, ValueError):
                # It is no file of the system.
                continue
            continue
        try:
            files = [path for path, _ in find_files([name])]
        except InputError:
            # Said by whoever reads them.
            continue
        for file in files:
            try:
                yield Path(file).stat()
            except OSError:
                continue
