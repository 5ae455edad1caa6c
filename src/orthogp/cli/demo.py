"""`orthogp demo`."""

from __future__ import annotations

from pathlib import Path

import click

from orthogp.cli.group import debug_option


@click.command(epilog="Example: orthogp demo --out plots --rows 100000")
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
@debug_option
def demo(out: Path, rows: int, seed: int) -> None:
    """Forecast the CO2 of Mauna Loa, then fit a million rows.

    Prints both models and what they are worth, and writes two plots. Takes about a minute.
    """
    from orthogp.demo import run_demo

    run_demo(out, num_rows=rows, seed=seed, write=click.echo)
