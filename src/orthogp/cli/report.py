"""`orthogp report`, `explore`, `compare`, `reproduce` for the paper's experiments, and `demo`."""

from __future__ import annotations

import getpass
import os
import stat
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import NamedTuple

import click

from orthogp.cli.console import REPORT, STANDARD, Console, check_output, debug_option, write_out
from orthogp.cli.fit import model_values
from orthogp.cli.options import (
    NAMES,
    NUMBERS,
    NamesOption,
    Output,
    family_names,
    force_option,
    gather,
    inputs_option,
    kernel_names,
    output_options,
)
from orthogp.cli.predict import load_fitted
from orthogp.paper import EXPERIMENTS

# How names of pages end.
_PAGES = (".html", ".htm")
_EXAMPLES = """\b
Examples:
  orthogp report model.orthogp --out report.html
  orthogp report model.orthogp
"""


@click.command(epilog=_EXAMPLES, short_help="Show a model: as a page, in words or as JSON.")
@click.argument("model", type=click.Path(dir_okay=False, allow_dash=True), metavar="MODEL")
@click.option(
    "--static", is_flag=True, help="Without sliders; the page then holds no sums of the rows."
)
@output_options("Where the page goes; without it, a summary is printed.", required=False)
@gather(output=Output)
def report(model: str, static: bool, output: Output) -> None:
    """Show a model: a page with plots and sliders, or a summary in words."""
    out: str | None = output.out
    if out is not None:
        _check_page("A page (without --out a summary is printed)", out, model, force=output.force)
    with output.console() as console:
        fitted = load_fitted(model)
        if out is None:
            console.result(fitted.summary(), model_values(fitted, model))
            return
        from orthogp.report import write_report

        name = None if model == STANDARD else Path(model).name
        write_out(out, lambda file: write_report(fitted, file, model_file=name, live=not static))
        console.result(f"Report: {out}", {"model": model, "report": out})


def _check_page(what: str, out: str | None, model: str, *, force: bool) -> None:
    """Raise `InputError` unless a page can be made, and written under that name."""
    from orthogp.errors import InputError, require

    require("matplotlib", what, "plots")
    if out is None:
        return
    check_output(out, (model,), force=force, like=REPORT)
    if out != STANDARD and Path(out).suffix.lower() not in _PAGES:
        raise InputError(
            f"A report is a page of HTML whose name ends in .html, got {out}: print the page from "
            "a browser to have a PDF."
        )


@click.command(
    epilog="Example: orthogp explore model.orthogp",
    short_help="Open a model's page, with sliders, in the browser.",
)
@click.argument("model", type=click.Path(dir_okay=False, allow_dash=True), metavar="MODEL")
@output_options("Where the page goes.  [default: a temporary file]", required=False)
@gather(output=Output)
def explore(model: str, output: Output) -> None:
    """Open a model's page in the browser, with sliders for its hyperparameters.

    Lengthscales, variance, noise and kernel can be moved; mean, bands and evidence follow. Prints
    where the page is; the next page of a model of the same name replaces a temporary one.
    """
    out: str | None = output.out
    if out == STANDARD:
        raise click.UsageError("A browser needs a file: give --out a name, or leave it out.")
    _check_page("A page", out, model, force=output.force)
    with output.console() as console:
        fitted = load_fitted(model)
        from orthogp.report import write_report

        name = "model" if model == STANDARD else Path(model).name
        if out is None:
            out = str(_own_folder() / f"{Path(name).stem}.html")
        write_report(fitted, out, model_file=None if model == STANDARD else name)
        opened = _open_in_browser(Path(out))
        note = "" if opened else " (there is no browser to open it)"
        console.result(f"Report: {out}{note}", {"model": model, "report": out, "opened": opened})


def _own_folder() -> Path:
    """Return a temporary folder of the user's, the same each time: pages do not pile up in it."""
    folder = Path(tempfile.gettempdir()) / f"orthogp-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if hasattr(os, "getuid") and not (private and found.st_uid == os.getuid()):
        # Somebody else's, who could put other pages in place of these.
        return Path(tempfile.mkdtemp(prefix="orthogp-"))
    return folder


def _open_in_browser(path: Path) -> bool:
    """Open a page in the user's browser, and return whether there is one."""
    seen = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform == "linux" and not any(os.environ.get(name) for name in seen):
        # Without a screen Python would find browsers that take over the terminal.
        return False
    return webbrowser.open(path.resolve().as_uri())


class ComparisonOptions(NamedTuple):
    """The arguments of `compare_families`."""

    kernel: str
    families: list[str] | None
    num_features: list[int]
    test_fraction: float
    max_rows: int | None
    seed: int
    learn: bool
    max_seconds: float | None


class ComparisonOutput(NamedTuple):
    """Where plot and results go."""

    out: Path | None
    csv: Path | None
    force: bool


@click.command(
    epilog="Example: orthogp compare data.csv --target y --families lattice,trig --out compare.png"
)
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA.csv")
@click.option("--target", required=True, metavar="NAME", help="The column to predict.")
@inputs_option
@click.option(
    "--kernel",
    default="matern32",
    metavar="NAME",
    cls=NamesOption,
    names=kernel_names,
    help="One of {names}.",
)
@click.option(
    "--families",
    type=NAMES,
    metavar="NAMES",
    cls=NamesOption,
    names=family_names,
    help="Some of {names}, with commas between.  [default: all, exact for up to 2000 rows]",
)
@click.option(
    "--num-features",
    type=NUMBERS,
    default="21,41,81,161",
    metavar="NUMBERS",
    help="The numbers of features of each family.",
)
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    help="The share of the rows held out.",
)
@click.option(
    "--rows",
    "max_rows",
    type=click.IntRange(min=3),
    metavar="INTEGER RANGE",
    help="The number of rows to take, at random.  [default: all]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="The seed of the choice of rows.",
)
@click.option(
    "--learn/--fixed",
    default=False,
    help="Whether each family learns its own hyperparameters, or all share those learned once.",
)
@click.option(
    "--seconds-limit",
    "max_seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The time after which no fit begins.",
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
    help="Where the results go, with all their digits.",
)
@force_option
@debug_option
@gather(settings=ComparisonOptions, output=ComparisonOutput)
def compare(
    data: Path,
    target: str,
    inputs: list[str] | None,
    settings: ComparisonOptions,
    output: ComparisonOutput,
) -> None:
    """Compare families of features on the rows of a file.

    Prints for every family and number of features the share of the prior variance left out, bounds
    on the log marginal likelihood, errors at held-out rows, and seconds. DATA is a CSV, TSV or
    Parquet file, a folder of them, or - for CSV from standard input; rows that lack a value are
    left out.
    """
    from orthogp.files.columns import Tally
    from orthogp.files.source import as_tables, read_table
    from orthogp.report.comparison import FAMILIES, compare_families
    from orthogp.report.plots import check_format

    if output.out is not None:
        check_format(output.out)
    for path in (output.out, output.csv):
        if path is not None:
            check_output(path, (str(data),), force=output.force)
    with as_tables([str(data)]) as (file,):
        table = read_table(file, target, inputs)
    console = Console()
    console.tell_rows(table, Tally(missing=table.num_dropped))
    if settings.families is None:
        settings = settings._replace(families=list(FAMILIES))
    comparison = compare_families(
        table.X,
        table.y,
        **settings._asdict(),
        source=Path(file).name,
        write=console.say,
    )
    click.echo(comparison.table())
    if output.csv is not None:
        comparison.to_csv(output.csv)
        click.echo(f"Results: {output.csv}")
    if output.out is not None:
        comparison.plot(output.out)
        click.echo(f"Plot: {output.out}")


@click.command(epilog="Example: orthogp reproduce figure1 --out paper")
@click.argument("experiment", type=click.Choice([*EXPERIMENTS, "all"]))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where plots and CSV files go; made if missing. Results that exist are kept, and an "
    "interrupted run resumes.",
)
@click.option("--quick", is_flag=True, help="Smaller settings: minutes in place of hours.")
@debug_option
def reproduce(experiment: str, out: Path, quick: bool) -> None:
    """Run the experiments of "Variational Orthogonal Features".

    figure1: a kernel matrix by Trig features. figure2: regression with bands of different widths.
    figure3: what a diagonal covariance of q(u) costs. complexity: seconds and memory of a step of
    stochastic training. noise: the noise of the estimated bound. The results are discussed in
    docs/paper.md.
    """
    from orthogp.paper.run import run_experiments

    names = list(EXPERIMENTS) if experiment == "all" else [experiment]
    for path in run_experiments(
        names, out, quick=quick, write=lambda line: click.echo(line, err=True)
    ):
        click.echo(path)


@click.command(epilog="Example: orthogp demo --out plots --rows 100000")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where the plots go; made if missing.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=100),
    default=1_000_000,
    help="The rows of the second part.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="The seed of the rows of the second part.",
)
@debug_option
def demo(out: Path, rows: int, seed: int) -> None:
    """Forecast the CO2 of Mauna Loa, then fit a million rows.

    Prints both models and their errors, and writes two plots. Takes about a minute.
    """
    from orthogp.errors import require

    require("matplotlib", "The demo", "plots")
    from orthogp.cli.demo import run_demo

    run_demo(out, num_rows=rows, seed=seed, write=click.echo)
