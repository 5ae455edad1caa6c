"""The `orthogp` command: parses the command line and calls the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from orthogp import OrthogpError, __version__


class _Commands(click.Group):
    """Commands whose errors on purpose become one sentence and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OrthogpError as error:
            raise click.ClickException(str(error)) from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: orthogp demo --out plots",
)
@click.version_option(__version__, prog_name="orthogp")
def main() -> None:
    """Gaussian processes on large data."""


@main.command(epilog="Example: orthogp demo --out plots --rows 100000")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where the plots go; made if missing.  [default: the current directory]",
)
@click.option(
    "--rows",
    type=click.IntRange(min=100),
    default=1_000_000,
    show_default=True,
    help="How many rows the second part makes.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the rows of the second part.",
)
def demo(out: Path, rows: int, seed: int) -> None:
    """Forecast the CO2 of Mauna Loa, then fit a million rows.

    Prints both models and what they are worth, and writes two plots. Takes about a minute.
    """
    from orthogp.demo import run_demo

    run_demo(out, num_rows=rows, seed=seed, write=click.echo)
