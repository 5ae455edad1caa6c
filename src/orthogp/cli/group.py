"""How commands end: in order, by mistakes of data or usage, by interruption, or by a bug."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: What the shell is told.
WRONG_DATA, BUG, INTERRUPTED = 1, 3, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 something is wrong with data, a file or the model; 2 wrong usage; "
    "3 a bug in orthogp; 130 interrupted."
)
_DEBUG = "orthogp.debug"


class Commands(click.Group):
    """Commands whose errors become one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            with warnings_as_sentences():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read our output has had enough; Python must not try to write the rest.
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


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Show warnings as sentences on standard error."""
    with warnings.catch_warnings():
        warnings.showwarning = _echo_warning
        yield


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
    raise _Bug(
        f"This is a bug in orthogp ({type(error).__name__}: {_first_line(error)}): please report "
        "it with what --debug shows."
    ) from error


class _Bug(click.ClickException):
    exit_code = BUG


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0].rstrip(".")
