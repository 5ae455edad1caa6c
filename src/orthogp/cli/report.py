"""`orthogp report`, for a model, and `orthogp reproduce`, for the paper's experiments."""

from __future__ import annotations

from pathlib import Path

import click

from orthogp.cli.console import Console, debug_option, read_in, write_out
from orthogp.cli.options import output_options
from orthogp.cli.predict import load_fitted
from orthogp.paper import EXPERIMENTS

_EXAMPLES = """\b
Examples:
  orthogp report model.orthogp --out report.html
  orthogp report model.orthogp
"""


@click.command(epilog=_EXAMPLES)
@click.argument("model", type=click.Path(dir_okay=False, allow_dash=True), metavar="MODEL")
@output_options("Where the page goes; without it, a summary is printed.", required=False)
def report(model: str, out: str | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Show a model: a page with plots, or a summary in words."""
    from orthogp.cli.outputs import REPORT, check_output

    if out is not None:
        check_output(out, (model,), force=force, like=REPORT)
    with Console(as_json=as_json, quiet=quiet, out=out) as console:
        with read_in(model) as path:
            fitted = load_fitted(path, model)
        if out is None:
            console.result(fitted.summary(), {"model": model, "summary": fitted.summary()})
            return
        from orthogp.report import write_report

        name = None if model == "-" else Path(model).name
        write_out(out, lambda file: write_report(fitted, file, model_file=name))
        console.result(f"Report: {out}", {"model": model, "report": out})


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
