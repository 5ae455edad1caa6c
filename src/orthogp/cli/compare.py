"""`orthogp compare`."""

from __future__ import annotations

from pathlib import Path

import click

from orthogp.cli.group import debug_option
from orthogp.cli.options import FAMILIES, KERNELS, NAMES, NUMBERS, force_option


@click.command(
    epilog="Example: orthogp compare data.csv --target y --families lattice,trig --out compare.png"
)
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA.csv")
@click.option("--target", required=True, metavar="NAME", help="The column to predict.")
@click.option(
    "--inputs",
    type=NAMES,
    metavar="NAMES",
    help="The columns to predict from, with commas between.  [default: all others, if at most 3]",
)
@click.option(
    "--kernel",
    default="matern32",
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(KERNELS)}.",
)
@click.option(
    "--families",
    type=NAMES,
    metavar="NAMES",
    help=f"Some of {', '.join(FAMILIES)}, with commas "
    "between.  [default: all, exact for up to 2000 rows]",
)
@click.option(
    "--num-features",
    type=NUMBERS,
    default="21,41,81,161",
    show_default=True,
    metavar="NUMBERS",
    help="How many features each family has.",
)
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="The share of the rows held out.",
)
@click.option(
    "--rows", type=click.IntRange(min=3), help="Take so many rows, at random.  [default: all]"
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the choice of rows.",
)
@click.option(
    "--learn/--fixed",
    default=False,
    help="Whether each family learns its own hyperparameters, or all share those learned once.  "
    "[default: --fixed]",
)
@click.option(
    "--seconds-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Begin no fit after that long.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where a plot goes (png, pdf or svg).",
)
@click.option(
    "--csv",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Where the results go with all their digits.",
)
@force_option
@debug_option
def compare(
    data: Path,
    target: str,
    inputs: list[str] | None,
    kernel: str,
    families: list[str] | None,
    num_features: list[int],
    test_fraction: float,
    rows: int | None,
    seed: int,
    learn: bool,
    seconds_limit: float | None,
    out: Path | None,
    csv: Path | None,
    force: bool,
) -> None:
    """Compare families of features on the rows of a file.

    For every family and number of features: how much of the prior they leave out, bounds on the
    log marginal likelihood, errors at rows held out, and seconds. DATA is a CSV, TSV or Parquet
    file, a folder of such, or - for CSV from standard input; rows that lack a value are left out.
    """
    from orthogp.cli.outputs import check_output
    from orthogp.report.comparison import FAMILIES as ALL
    from orthogp.report.comparison import compare_families
    from orthogp.report.plots import check_format
    from orthogp.tables import read_table
    from orthogp.tables.files import standard_input_as_file

    if out is not None:
        check_format(out)
    for path in (out, csv):
        if path is not None:
            check_output(path, (str(data),), force=force)
    with standard_input_as_file([str(data)]) as (file,):
        table = read_table(file, target, inputs)
    if table.num_dropped:
        click.echo(f"{table.num_dropped:,} rows lack a value and are left out.", err=True)
    for name, scale in zip(table.inputs, table.times):
        if scale is not None:
            click.echo(f"{name} is in {scale.describe()}.", err=True)
    comparison = compare_families(
        table.X,
        table.y,
        kernel=kernel,
        families=ALL if families is None else families,
        num_features=num_features,
        test_fraction=test_fraction,
        max_rows=rows,
        learn=learn,
        max_seconds=seconds_limit,
        seed=seed,
        source=Path(file).name,
        write=lambda line: click.echo(line, err=True),
    )
    click.echo(comparison.table())
    if csv is not None:
        comparison.to_csv(csv)
        click.echo(f"Results: {csv}")
    if out is not None:
        comparison.plot(out)
        click.echo(f"Plot: {out}")
