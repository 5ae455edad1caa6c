"""`orthogp reproduce`."""

from __future__ import annotations

from pathlib import Path

import click

from orthogp.cli.group import debug_option
from orthogp.paper import EXPERIMENTS


@click.command(epilog="Example: orthogp reproduce figure1 --out paper")
@click.argument("experiment", type=click.Choice([*EXPERIMENTS, "all"]))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where plots and CSV files go; made if missing. What is there is kept, and a run that was "
    "interrupted goes on.",
)
@click.option("--quick", is_flag=True, help="Smaller settings: minutes in place of hours.")
@debug_option
def reproduce(experiment: str, out: Path, quick: bool) -> None:
    """Run the experiments of "Variational Orthogonal Features".

    figure1: a kernel matrix by Trig features. figure2: regression with bands of different widths.
    figure3: what a diagonal covariance of q(u) costs. complexity: seconds and memory of a step of
    stochastic training. noise: that of the estimated bound. Their results are discussed in
    docs/paper.md.
    """
    from orthogp.paper.run import run_experiments

    names = list(EXPERIMENTS) if experiment == "all" else [experiment]
    for path in run_experiments(
        names, out, quick=quick, write=lambda line: click.echo(line, err=True)
    ):
        click.echo(path)
