"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import click

from orthogp.cli.group import debug_option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# The library's own names, written here so that `--help` need not load it.
KERNELS = (
    "rbf",
    "matern",
    "matern12",
    "matern32",
    "matern52",
    "rational-quadratic",
    "quasi-periodic",
)
FAMILIES = (
    "lattice",
    "trig",
    "hermite",
    "legendre",
    "chebyshev",
    "box",
    "eigenfunction",
    "variational-fourier",
    "harmonic",
    "random-fourier",
    "inducing-points",
    "exact",
)
MEANS = ("auto", "none", "constant", "linear")
_SIZES = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


class Listed(click.ParamType):
    """Values between commas."""

    def __init__(self, name: str, of: Callable[[str], Any]) -> None:
        self.name = name
        self._of = of

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        """Return the values."""
        if isinstance(value, list):
            return value
        try:
            return [self._of(part.strip()) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of {self.name}, with commas between.", param, ctx)


class Size(click.ParamType):
    """Bytes, as in 500MB or 2GB."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number of bytes."""
        if isinstance(value, int | float):
            return float(value)
        text = value.strip().upper()
        number = text.rstrip("BKMGT")
        try:
            size = float(number) * _SIZES[text[len(number) :].strip()]
        except (KeyError, ValueError):
            size = 0.0
        if not 0 < size < float("inf"):
            self.fail(f"{value!r} is not a size such as 500MB or 2GB.", param, ctx)
        return size


#: Two numbers, or two dates.
Interval = tuple[float, float] | tuple[date, date]


class Box(click.ParamType):
    """Intervals, one for each column: 0:10,-5:5; or between dates: 2024-01-01:2024-12-31."""

    name = "intervals"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Interval]:
        """Return the edges of each interval."""
        if isinstance(value, list):
            return value
        try:
            return [_interval(part) for part in value.split(",")]
        except ValueError:
            self.fail(
                f"{value!r} is not intervals such as 0:10,-5:5 or 2024-01-01:2024-12-31.",
                param,
                ctx,
            )


def _interval(text: str) -> Interval:
    low, high = (edge.strip() for edge in text.split(":"))
    try:
        numbers = float(low), float(high)
    except ValueError:
        dates = date.fromisoformat(low), date.fromisoformat(high)
        if dates[0] > dates[1]:
            raise
        return dates
    if not -inf < numbers[0] < numbers[1] < inf:
        raise ValueError(text)
    return numbers


NAMES, NUMBERS = Listed("names", str), Listed("whole numbers", int)

data_argument = click.argument("data", nargs=-1, required=True, metavar="DATA...")
target_option = click.option(
    "--target", type=NAMES, metavar="NAME", help="The column to predict (or several: a,b)."
)
inputs_option = click.option(
    "--inputs",
    type=NAMES,
    metavar="NAMES",
    help="The columns to predict from, with commas between.  [default: all others, if at most 3]",
)
weights_option = click.option(
    "--weights", metavar="NAME", help="A column that says how many rows each row stands for."
)
skip_bad_option = click.option(
    "--skip-bad", is_flag=True, help="Leave out rows that cannot be read, and count them."
)
kernel_option = click.option(
    "--kernel",
    default="matern32",
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(KERNELS)}; after additive-, one kernel on each column.",
)
mean_option = click.option(
    "--mean", type=click.Choice(MEANS), help="The mean function.  [default: auto]"
)
checkpoint_option = click.option(
    "--checkpoint-seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How often a pass over large files notes, beside the output, how far it has come; a run "
    "that was killed goes on from there.",
)
batch_option = click.option(
    "--batch-rows",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="How many rows of large files are summed at once; fewer take less memory and more time.  "
    "[default: up to 4 million]",
)

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Sum the rows on the workers of a dask scheduler (tcp://HOST:8786), which must see the "
    "files under the same names.",
)


def out_option(what: str, *, required: bool = True) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds `--out`."""
    return click.option(
        "--out",
        required=required,
        type=click.Path(dir_okay=False, allow_dash=True),
        metavar="FILE",
        help=what,
    )


force_option = click.option(
    "--force",
    is_flag=True,
    help="Overwrite whatever file has the output's name, unless it is read by the command.",
)


def output_options(command: Decorated) -> Decorated:
    """Add `--json`, `--quiet` and `--debug`."""
    command = debug_option(command)
    command = click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")(command)
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
    )(command)


def path_option(*names: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds an option whose value is a file."""
    return click.option(*names, type=click.Path(dir_okay=False, path_type=Path), **settings)


def check_scheduler(scheduler: str | None, data: tuple[str, ...]) -> None:
    """Raise an error of usage if the workers of a scheduler cannot see the data."""
    if scheduler is not None and "-" in data:
        raise click.UsageError("Workers cannot read standard input: leave out --scheduler.")
