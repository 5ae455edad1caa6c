"""`orthogp report`."""

from __future__ import annotations

from pathlib import Path

import click

from orthogp.cli.console import Console, read_in, write_out
from orthogp.cli.options import force_option, out_option, output_options

_EXAMPLES = """\b
Examples:
  orthogp report model.orthogp --out report.html
  orthogp report model.orthogp
"""


@click.command(epilog=_EXAMPLES)
@click.argument("model", type=click.Path(dir_okay=False, allow_dash=True), metavar="MODEL")
@out_option("Where the page goes; without it, a summary is printed.", required=False)
@force_option
@output_options
def report(model: str, out: str | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Show a model: a page with plots, or a summary in words."""
    from orthogp.cli.outputs import REPORT, check_output
    from orthogp.cli.statistics import load_fitted

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
