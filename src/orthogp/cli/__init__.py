"""The `orthogp` command: parses the command line and calls the library."""

from __future__ import annotations

import click

from orthogp import __version__
from orthogp.cli.console import EXIT_CODES, Commands, debug_option
from orthogp.cli.events import intensity
from orthogp.cli.fit import fit, merge, sketch
from orthogp.cli.predict import predict
from orthogp.cli.report import compare, demo, explore, report, reproduce

_EXAMPLES = """\b
Examples:
  orthogp demo --out plots
  orthogp fit 'data/*.parquet' --target y --inputs a,b --out model.orthogp
  orthogp predict model.orthogp new.csv --out predictions.csv
  orthogp report model.orthogp --out report.html

"""


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog=_EXAMPLES + EXIT_CODES,
)
@click.version_option(__version__, prog_name="orthogp")
@debug_option
def main() -> None:
    """Gaussian processes on large data.

    Data are CSV, TSV or Parquet files, folders of them, or patterns in quotation marks; - stands
    for standard input or output.
    """


for _command in (
    fit,
    intensity,
    predict,
    report,
    explore,
    sketch,
    merge,
    compare,
    reproduce,
    demo,
):
    main.add_command(_command)
