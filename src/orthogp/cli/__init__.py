"""The `orthogp` command: parses the command line and calls the library."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from orthogp import OrthogpError, __version__
from orthogp.features import FEATURE_NAMES
from orthogp.kernels import KERNEL_NAMES


class _Commands(click.Group):
    """Commands whose errors on purpose become one sentence and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OrthogpError as error:
            raise click.ClickException(str(error)) from error


class _Listed(click.ParamType):
    """Values between commas."""

    def __init__(self, name: str, of: Callable[[str], Any]) -> None:
        self.name = name
        self._of = of

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        try:
            return [self._of(part.strip()) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of {self.name}, with commas between.", param, ctx)


# Those of orthogp.paper, named here so that no other command loads them.
_EXPERIMENTS = ("figure1", "figure2", "figure3", "complexity", "noise")

_NAMES, _NUMBERS = _Listed("names", str), _Listed("whole numbers", int)


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


@main.command(
    epilog="Example: orthogp compare data.csv --target y --families lattice,trig --out compare.png"
)
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA.csv")
@click.option("--target", required=True, metavar="NAME", help="The column to predict.")
@click.option(
    "--inputs",
    type=_NAMES,
    metavar="NAMES",
    help="The columns to predict from, with commas between.  [default: all others, if at most 3]",
)
@click.option(
    "--kernel",
    default="matern32",
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(KERNEL_NAMES)}.",
)
@click.option(
    "--families",
    type=_NAMES,
    metavar="NAMES",
    help=f"Some of {', '.join(name for name in FEATURE_NAMES if name != 'auto')}, with commas "
    "between.  [default: all, exact for up to 2000 rows]",
)
@click.option(
    "--num-features",
    type=_NUMBERS,
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
) -> None:
    """Compare families of features on the rows of a CSV file.

    For every family and number of features: how much of the prior they leave out, bounds on the
    log marginal likelihood, errors at rows held out, and seconds. The file's first line names its
    columns; rows that lack a value are left out; gzip is understood.
    """
    from orthogp.comparison import FAMILIES, compare_families
    from orthogp.plots import check_format
    from orthogp.tables import check_destination, read_table

    if out is not None:
        check_format(out)
    for path in (out, csv):
        if path is not None:
            check_destination(path)
    table = read_table(data, target, inputs)
    if table.num_dropped:
        click.echo(f"{table.num_dropped:,} rows lack a value and are left out.", err=True)
    with warnings.catch_warnings():
        warnings.showwarning = _echo_warning
        comparison = compare_families(
            table.X,
            table.y,
            kernel=kernel,
            families=FAMILIES if families is None else families,
            num_features=num_features,
            test_fraction=test_fraction,
            max_rows=rows,
            learn=learn,
            max_seconds=seconds_limit,
            seed=seed,
            source=data.name,
            write=lambda line: click.echo(line, err=True),
        )
    click.echo(comparison.table())
    if csv is not None:
        comparison.to_csv(csv)
        click.echo(f"Results: {csv}")
    if out is not None:
        comparison.plot(out)
        click.echo(f"Plot: {out}")


@main.command(epilog="Example: orthogp reproduce figure1 --out paper")
@click.argument("experiment", type=click.Choice([*_EXPERIMENTS, "all"]))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where plots and CSV files go; made if missing. What is there is kept, and a run that was "
    "interrupted goes on.",
)
@click.option("--quick", is_flag=True, help="Smaller settings: minutes in place of hours.")
def reproduce(experiment: str, out: Path, quick: bool) -> None:
    """Run the experiments of "Variational Orthogonal Features".

    figure1: a kernel matrix by Trig features. figure2: regression with bands of different widths.
    figure3: what a diagonal covariance of q(u) costs. complexity: seconds and memory of a step of
    stochastic training. noise: that of the estimated bound. Their results are discussed in
    docs/paper.md.
    """
    from orthogp.paper.experiments import run_experiments

    names = list(_EXPERIMENTS) if experiment == "all" else [experiment]
    with warnings.catch_warnings():
        warnings.showwarning = _echo_warning
        for path in run_experiments(
            names, out, quick=quick, write=lambda line: click.echo(line, err=True)
        ):
            click.echo(path)


def _echo_warning(message: Warning | str, *_: Any) -> None:
    click.echo(f"Warning: {message}", err=True)
