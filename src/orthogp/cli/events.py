"""`orthogp intensity`: the rate of events in a window."""

from __future__ import annotations

import click

from orthogp.cli.console import MODEL, STANDARD, check_saved, write_out
from orthogp.cli.fit import model_values
from orthogp.cli.options import (
    INTERVALS,
    NAMES,
    Interval,
    Output,
    domain_in_numbers,
    gather,
    kernel_option,
    output_options,
    skip_bad_option,
)

_EXAMPLES = """\b
Examples:
  orthogp intensity trees.csv --inputs x,y --window 0:1000,0:500 --out trees.orthogp
  orthogp predict trees.orthogp places.csv --out rates.csv
"""


@click.command(epilog=_EXAMPLES, short_help="Learn the rate of events from their places.")
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--inputs",
    type=NAMES,
    metavar="NAMES",
    help="The columns that say where events are, with commas between.  [default: all, if there "
    "are at most 3]",
)
@click.option(
    "--window",
    type=INTERVALS,
    required=True,
    metavar="INTERVALS",
    help="For each input, the interval that was watched: 0:1000,0:500, or between dates: "
    "2024-01-01:2024-12-31.",
)
@click.option(
    "--exposure",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    metavar="NUMBER",
    help="How long the window was watched, or by how many: rates are per unit of it.",
)
@kernel_option
@skip_bad_option
@output_options("Where the model goes.")
@gather(output=Output)
def intensity(
    data: tuple[str, ...],
    inputs: list[str] | None,
    window: list[Interval],
    exposure: float,
    kernel: str,
    skip_bad: bool,
    output: Output,
) -> None:
    """Learn the rate of events from where they happened, by a log-Gaussian Cox process.

    Each row is an event. Predictions are events per unit of the inputs, with standard deviations
    and quantiles of the rate.
    """
    from orthogp.files.source import as_tables, open_source

    check_saved(output.out, data, MODEL, force=output.force)
    with output.console() as console:
        with as_tables(data) as files:
            source = open_source(files, (), inputs, skip_bad=skip_bad).scaled()
            box = domain_in_numbers(window, source.reading)
            # Only now, since it takes seconds: what is wrong with the data is said before.
            from orthogp import GPIntensity
            from orthogp.files.fitting import about_rows

            console.begin("reading", source.num_rows)
            rows, tally = source.read(console.advance)
        console.begin("learning", None)
        model = GPIntensity(kernel).fit(rows.X, box, exposure)
        model.about_ = about_rows(source, tally)  # type: ignore[attr-defined]
        console.tell_rows(source.reading, tally)
        write_out(output.out, model.save)
        saved = "" if output.out == STANDARD else f"\nModel: {output.out}"
        values = model_values(model, output.out) | {"events": model.num_events_}
        console.result(model.summary() + saved, values)
