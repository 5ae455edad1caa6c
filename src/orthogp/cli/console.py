"""What commands say, where they write, and how they end.

Results go to standard output, all else to standard error. Files go to new names, over results like
them, and never over what is read. Commands end in order, by mistakes of data or usage, or by a bug;
`orthogp.__main__` ends those that are interrupted.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeVar

import click

if TYPE_CHECKING:
    from orthogp.files.columns import Reading, Tally
    from orthogp.files.source import Table

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: The exit code for an error in data, a file or the model.
WRONG_DATA = 1
#: The exit code for a bug in orthogp.
BUG = 3
EXIT_CODES = (
    "Exit codes: 0 done; 1 something is wrong with data, a file or the model; 2 wrong usage; "
    "3 a bug in orthogp; 130 interrupted; 143 terminated."
)
#: The name of standard input and standard output.
STANDARD = "-"
_DEBUG = "orthogp.debug"
# How every report ends.
_REPORT_FOOTER = b"<footer>Made by orthogp.</footer>"
# The number of last bytes of a report within which the footer lies.
_REPORT_END = 200
# How the names of all estimators end.
_ESTIMATORS = ("Regressor", "Classifier")


class Console:
    """Prints the results and messages of a command, and the progress of reading files.

    Progress bars appear on standard error if it is a terminal. Results go to standard output, or
    to standard error if a file goes to standard output.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, out: str | None = None):
        self._as_json = as_json
        self._quiet = quiet
        self._aside = out == STANDARD
        #: The checkpoint beside the output, `None` beside standard output.
        self.checkpoint = None if out in (None, STANDARD) else f"{out}.checkpoint"
        self._bar: Any = None
        self._began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint if there is one."""
        if self.checkpoint is not None:
            Path(self.checkpoint).unlink(missing_ok=True)

    def begin(self, task: str, total: int | None) -> None:
        """Show a bar for a task with a number of rows; none if there is nothing to count."""
        self._stop()
        if self._quiet or total is None or not sys.stderr.isatty():
            return
        self._began = time.monotonic()
        self._bar = click.progressbar(
            length=max(total, 1), label=task, file=sys.stderr, item_show_func=self._rate
        )
        self._bar.__enter__()

    def advance(self, rows: int) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._bar.update(rows, self._bar.pos + rows)

    def say(self, text: str) -> None:
        """Say what a user should know, on standard error."""
        self._stop()
        if not self._quiet:
            click.echo(text, err=True)

    def result(self, text: str, values: dict[str, Any]) -> None:
        """Print a result: as text, or as one JSON object."""
        self._stop()
        if self._as_json:
            click.echo(json.dumps(_plain(values), ensure_ascii=False), err=self._aside)
        elif not self._quiet:
            click.echo(text, err=self._aside)

    def _rate(self, rows: int | None) -> str:
        """Return the rows done, and the rows per second."""
        if rows is None:
            return ""
        rate = rows / max(time.monotonic() - self._began, 1e-3)
        return f"{rows:,} rows, {rate / 1e6:.2f} million a second"

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def tell_rows(self, reading: Reading | Table, tally: Tally) -> None:
        """Say what the date-times' units are, and which rows were left out."""
        for name, scale in zip(reading.inputs, reading.times):
            if scale is not None:
                way = "in " if hasattr(scale, "unit") else ""
                self.say(f"{name} is {way}{scale.describe()}.")
        if tally.missing == 1:
            self.say("1 row lacks a value and is left out.")
        elif tally.missing:
            self.say(f"{tally.missing:,} rows lack a value and are left out.")
        if tally.bad:
            rows = "bad row" if tally.bad == 1 else "bad rows"
            self.say(f"{tally.bad:,} {rows} skipped, the first in {tally.first_bad}.")


def _plain(value: Any) -> Any:
    """Return values as JSON has them: no arrays, and null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


# ---------------------------------------------------------------------- files


def write_out(out: str, save: Callable[[str], object]) -> None:
    """Write a file by a function that takes its path, or its bytes to standard output for "-"."""
    if out != STANDARD:
        save(out)
        return
    from orthogp.persistence import temporary_folder

    with temporary_folder() as folder:
        path = folder / "out"
        save(str(path))
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


class Recognised(NamedTuple):
    """Files that a command writes, and may overwrite: in words, and how they are recognised."""

    name: str
    matches: Callable[[str], bool]


def check_output(
    out: str | os.PathLike[str],
    inputs: Sequence[str],
    *,
    force: bool,
    like: Recognised | None = None,
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
        Whether any other file may be overwritten.
    like : Recognised, optional
        Which files may be overwritten without it.
    """
    from orthogp.errors import InputError
    from orthogp.files.text import check_destination

    out = os.fspath(out)
    if out == STANDARD:
        return
    check_destination(out)
    try:
        found = os.stat(out)
    except OSError:
        # Nothing is there. The writer reports other errors of the name.
        return
    if not stat.S_ISREG(found.st_mode):
        return
    if any(os.path.samestat(found, other) for other in _stats(inputs)):
        raise InputError(
            f"{out} is read by this command, and would be lost: choose another name to write to."
        )
    if not force and (like is None or not like.matches(out)):
        other = "" if like is None else f" and is no {like.name}"
        raise InputError(f"{out} exists{other}: choose another name, or overwrite it with --force.")


def check_saved(out: str, inputs: Sequence[str], like: Recognised, *, force: bool) -> None:
    """Raise `InputError` unless a file and the checkpoint beside it may be written."""
    check_output(out, inputs, force=force, like=like)
    if out != STANDARD:
        check_output(f"{out}.checkpoint", inputs, force=force, like=SKETCH)


def _is_report(path: str) -> bool:
    with open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - _REPORT_END, 0))
        return _REPORT_FOOTER in stream.read()


def _kind(path: str) -> str | None:
    """Return what a file of orthogp holds, `None` if it is no such file."""
    from orthogp.errors import FileError
    from orthogp.storage import read_header

    try:
        return read_header(path).kind
    except FileError:
        return None


MODEL = Recognised("model of orthogp", lambda path: (_kind(path) or "").endswith(_ESTIMATORS))
SKETCH = Recognised("statistics of orthogp", lambda path: _kind(path) in ("sketch", "checkpoint"))
REPORT = Recognised("report of orthogp", _is_report)


def _stats(inputs: Sequence[str]) -> Iterator[os.stat_result]:
    """Yield what the system knows of each file that is read, links followed."""
    from orthogp.errors import InputError
    from orthogp.files.source import find_files

    for name in inputs:
        try:
            if name == STANDARD:
                yield os.fstat(sys.stdin.fileno())
                continue
            files = [path for path, _ in find_files([name])]
        except (OSError, InputError, ValueError):
            # Standard input is no file, or the reader will report the error.
            continue
        for file in files:
            with suppress(OSError):
                yield Path(file).stat()


# ---------------------------------------------------------------------- how commands end


class Commands(click.Group):
    """Commands whose errors become one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _echo_warning
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # The reader of the output is gone; Python must not try to write the rest.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(WRONG_DATA)
        except Exception as error:
            if ctx.find_root().meta.get(_DEBUG):
                raise
            _fail(error)


def debug_option(command: Decorated) -> Decorated:
    """Add `--debug`."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.find_root().meta[_DEBUG] = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=remember,
        help="Show where an error comes from.",
    )(command)


def _echo_warning(message: Warning | str, *_: Any) -> None:
    click.echo(f"Warning: {message}", err=True)


def _fail(error: Exception) -> NoReturn:
    """End with a sentence: no traceback unless asked for."""
    from orthogp.errors import OrthogpError

    if isinstance(error, OrthogpError):
        raise click.ClickException(str(error)) from error
    if isinstance(error, MemoryError):
        raise click.ClickException(
            "There is not enough memory: lower --memory or --max-memory, or take fewer features."
        ) from error
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        raise click.ClickException(f"{where}{error.strerror}.") from error
    first_line = (str(error).splitlines() or ["no message"])[0].rstrip(".")
    raise _Bug(
        f"This is a bug in orthogp ({type(error).__name__}: {first_line}): please report it with "
        "what --debug shows."
    ) from error


class _Bug(click.ClickException):
    exit_code = BUG
