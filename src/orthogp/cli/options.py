"""Options that several commands share, and the types that they become."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from functools import wraps
from math import inf, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from orthogp.cli.console import STANDARD, Console, Decorated, debug_option

if TYPE_CHECKING:
    import numpy as np

    from orthogp.files.columns import Reading
    from orthogp.files.source import RowSource
    from orthogp.rows import Domain

# Bytes by unit.
_SIZES = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
#: Two numbers, or two dates.
Interval = tuple[float, float] | tuple[date, date]


# ---------------------------------------------------------------------- types of values


class Parsed(click.ParamType):
    """Values that a function makes of text, raising `ValueError` if the text is not `like` them."""

    def __init__(self, name: str, parse: Callable[[str], Any], like: str) -> None:
        self.name, self._parse, self._like = name, parse, like

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError:
            self.fail(f"{value!r} is not {self._like}.", param, ctx)


def _names(text: str) -> list[str]:
    # As a line of CSV: a name with a comma stands in quotation marks.
    return [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [""])]


def _size(text: str) -> float:
    text = text.strip().upper()
    number = text.rstrip("BKMGT")
    size = float(number) * _SIZES.get(text[len(number) :].strip(), nan)
    if not 0 < size < inf:
        raise ValueError(text)
    return size


def _steps(text: str) -> list[float]:
    steps = [float(part) for part in text.split(",")]
    if not all(0 < step < inf for step in steps):
        raise ValueError(text)
    return steps


def _probabilities(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if not all(0 < value < 1 for value in values):
        raise ValueError(text)
    return values


def _season(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


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


NAMES = Parsed("names", _names, "a list of names, with commas between")
SEASONS = Parsed("seasons", lambda text: list(map(_season, _names(text))), "a list of seasons")
NUMBERS = Parsed(
    "numbers",
    lambda text: [int(part) for part in text.split(",")],
    "a list of whole numbers, with commas between",
)
STEPS = Parsed("steps", _steps, "the size of a grid's cells, such as 0.1 or 0.1,0.2")
PROBABILITIES = Parsed("probabilities", _probabilities, "a list of numbers between 0 and 1")
#: Bytes.
SIZE = Parsed("size", _size, "a size such as 500MB or 2GB")
#: An interval for each column.
INTERVALS = Parsed(
    "intervals",
    lambda text: [_interval(part) for part in text.split(",")],
    "intervals such as 0:10,-5:5 or 2024-01-01:2024-12-31",
)


# ---------------------------------------------------------------------- names of the library


def kernel_names() -> Sequence[str]:
    """Return the kernels that have names."""
    from orthogp.kernels import KERNEL_NAMES

    return tuple(KERNEL_NAMES)


def family_names() -> Sequence[str]:
    """Return the families of features that have names, without the choice of one."""
    from orthogp.features import FEATURE_NAMES

    return tuple(name for name in FEATURE_NAMES if name != "auto")


def likelihood_names() -> Sequence[str]:
    """Return the likelihoods that have names."""
    from orthogp.inference.likelihoods import LIKELIHOODS

    return LIKELIHOODS


class NamesOption(click.Option):
    """An option whose help lists names, for which the library is loaded only when it is shown."""

    def __init__(self, *args: Any, names: Callable[[], Sequence[str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help, with the names in place of {names}."""
        if self.help is not None and "{names}" in self.help:
            self.help = self.help.format(names=", ".join(self._names()))
        return super().get_help_record(ctx)


# ---------------------------------------------------------------------- options


def combined(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds several options, in this order."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


inputs_option = click.option(
    "--inputs",
    type=NAMES,
    metavar="NAMES",
    help="The columns to predict from, with commas between; a name with a comma goes in quotation "
    "marks.  [default: all others, if there are at most 3]",
)
skip_bad_option = click.option(
    "--skip-bad", is_flag=True, help="Leave out rows that cannot be read, and count them."
)
kernel_option = click.option(
    "--kernel",
    default="matern32",
    metavar="NAME",
    cls=NamesOption,
    names=kernel_names,
    help="One of {names}; with the prefix additive-, a sum of them, one on each column.",
)
seasons_option = click.option(
    "--seasons",
    type=SEASONS,
    metavar="NAMES",
    help="Seasons of a column of dates, for forecasts: some of yearly, weekly, daily, or periods "
    "in the unit that is printed; --kernel is that of the trend.",
)
mean_option = click.option(
    "--mean",
    type=click.Choice(["auto", "none", "constant", "linear"]),
    help="The mean function.  [default: auto]",
)
force_option = click.option(
    "--force",
    is_flag=True,
    help="Overwrite any file of the output's name that the command does not read.",
)
#: The data, and which of their columns are which.
data_options = combined(
    click.argument("data", nargs=-1, required=True, metavar="DATA..."),
    click.option(
        "--target", type=NAMES, metavar="NAME", help="The column to predict (or several: a,b)."
    ),
    inputs_option,
    click.option(
        "--weights", metavar="NAME", help="A column that says how many rows each row stands for."
    ),
    click.option(
        "--covariates",
        type=NAMES,
        metavar="NAMES",
        help="Columns with linear effects beside the function of the inputs, with commas between.",
    ),
)
#: How targets come about, and the column that says how much each row stands for.
likelihood_options = combined(
    click.option(
        "--likelihood",
        default="gaussian",
        metavar="NAME",
        cls=NamesOption,
        names=likelihood_names,
        help="How the target comes about, given the function: {names}.",
    ),
    click.option(
        "--exposure", metavar="NAME", help="The column of exposures: hours, areas, populations."
    ),
    click.option("--offset", metavar="NAME", help="The column of logarithms of exposures."),
    click.option(
        "--trials", metavar="NAME", help="The column of trials, of which the target succeeded."
    ),
)
#: How rows are read, and summed if there are many.
summing_options = combined(
    skip_bad_option,
    click.option(
        "--checkpoint-seconds",
        type=click.FloatRange(min=0),
        default=60.0,
        metavar="SECONDS",
        help="The time between checkpoints of a pass over large files, beside the output; a run "
        "that was killed resumes from the last.",
    ),
    click.option(
        "--batch-rows",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="The number of rows of large files that are summed at once; fewer take less memory "
        "and more time.  [default: up to 4 million]",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Sum the rows on the workers of a dask scheduler (tcp://HOST:8786), which must see "
        "the files under the same names.",
    ),
)


def output_options(what: str, *, required: bool = True) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds `--out` and all that says how a command speaks."""
    return combined(
        click.option(
            "--out",
            required=required,
            type=click.Path(dir_okay=False, allow_dash=True),
            metavar="FILE",
            help=what,
        ),
        force_option,
        click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
        ),
        click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors."),
        debug_option,
    )


# ---------------------------------------------------------------------- several options as one


class Given(NamedTuple):
    """The data of a command, and which of their columns are read."""

    data: tuple[str, ...]
    target: list[str] | None
    inputs: list[str] | None
    weights: str | None
    covariates: list[str] | None
    skip_bad: bool

    def columns(self) -> dict[str, Any]:
        """Return the columns as `open_source` takes them."""
        return {
            "targets": self.target,
            "inputs": self.inputs,
            "weights": self.weights,
            "covariates": self.covariates,
            "skip_bad": self.skip_bad,
        }


class Family(NamedTuple):
    """How targets come about, and the column that says how much each row stands for."""

    likelihood: str
    exposure: str | None
    offset: str | None
    trials: str | None

    @property
    def size(self) -> dict[str, str]:
        """That column, by what it holds."""
        given = {"exposure": self.exposure, "offset": self.offset, "trials": self.trials}
        return {name: column for name, column in given.items() if column is not None}


class Summing(NamedTuple):
    """How a pass over large files is made."""

    checkpoint_seconds: float
    batch_rows: int | None
    scheduler: str | None

    def check(self, data: Sequence[str]) -> None:
        """Raise an error of usage if the workers of a scheduler cannot see the data."""
        if self.scheduler is not None and STANDARD in data:
            raise click.UsageError("Workers cannot read standard input: leave out --scheduler.")


class Output(NamedTuple):
    """Where a command writes, and what it says."""

    out: str
    force: bool
    as_json: bool
    quiet: bool

    def console(self) -> Console:
        """Return the console of the command."""
        return Console(as_json=self.as_json, quiet=self.quiet, out=self.out)

    @property
    def where(self) -> str:
        """Where the command writes, in words."""
        return "standard output" if self.out == STANDARD else self.out


def gather(**kinds: Any) -> Callable[[Decorated], Decorated]:
    """Return the decorator by which a command receives several options as one value.

    Parameters
    ----------
    **kinds
        The argument of the command, and the named tuple that it is; the fields of the tuple have
        the names of the options.
    """

    def decorate(command: Decorated) -> Decorated:
        @wraps(command)
        def gathered(**values: Any) -> Any:
            for name, kind in kinds.items():
                values[name] = kind(**{field: values.pop(field) for field in kind._fields})
            return command(**values)

        return gathered  # type: ignore[return-value]

    return decorate


def mean_of(mean: str | None) -> str | None:
    """Return the mean function as estimators name it."""
    return None if mean == "none" else mean or "auto"


def take_categories(model: Any, reading: Reading) -> None:
    """Give a model whose kernel is a name effects of the categories among its inputs."""
    from orthogp.kernels.terms import beside_categories

    if found := reading.categories:
        levels = {j: len(scale.levels) for j, scale in found.items()}
        model.set_params(kernel=beside_categories(model.kernel, len(reading.inputs), levels))


def take_seasons(model: Any, source: RowSource, seasons: Sequence[str | float]) -> RowSource:
    """Give a model of dates a trend of its kernel, what passes within days, and seasons.

    Returns the source with the unit of its dates. Its first rows say where learning starts.
    """
    from orthogp.errors import InputError
    from orthogp.files.columns import TimeScale
    from orthogp.kernels import Matern12, resolve_kernel, seasonal

    source = source.scaled()
    reading = source.reading
    scale = reading.times[0]
    if len(reading.inputs) > 1 or not isinstance(scale, TimeScale):
        raise InputError(
            "Seasons need a column of dates as the only input: name it by --inputs, and others by "
            f"--covariates; got {', '.join(reading.inputs)}."
        )
    _, block = next(item for item in source.blocks() if item[1].columns.shape[1])
    time, y = block.columns[0], block.columns[1 + len(reading.covariates)]
    # Constant columns are the fit's to judge.
    variance = float(y.var()) or 1.0
    span = float(time.max() - time.min()) or 1.0
    calendar = seasonal(*seasons, unit=scale.unit, variance=variance / 3)
    shortest = min(float(part.parameters()["period"]) for part, _ in calendar.primitives())
    trend = resolve_kernel(model.kernel).kernel.with_parameters(
        variance=variance, lengthscale=span / 2
    )
    model.set_params(kernel=trend + Matern12(variance / 3, shortest / 5) + calendar)
    return source


# ---------------------------------------------------------------------- domains


def domain_in_numbers(domain: Sequence[Interval], reading: Reading) -> Domain:
    """Return the box of a domain, whose last days are in it, on the scales of the inputs."""
    import numpy as np

    from orthogp.errors import InputError
    from orthogp.files.columns import SINCE_1970, TimeScale
    from orthogp.rows import Domain

    if len(domain) != len(reading.inputs):
        raise InputError(
            f"The domain needs one interval for each of {', '.join(reading.inputs)}, got "
            f"{len(domain)}."
        )
    edges = []
    for name, (low, high), scale in zip(reading.inputs, domain, reading.times, strict=True):
        if isinstance(low, date) and isinstance(high, date):
            if not isinstance(scale, TimeScale):
                raise InputError(
                    f"The domain of {name!r} must be in numbers as its column is, got dates: give "
                    "an interval such as 0:10."
                )
            edges.append(scale.rescaled(_microseconds(low, high), SINCE_1970))
        else:
            edges.append(np.array([low, high], dtype=np.float64))
    lower, upper = np.array(edges).T
    return Domain(lower, upper)


def covering(model: Any, source: RowSource, domain: Sequence[Interval]) -> RowSource:
    """Let a model cover a domain; return the source with the units that the domain is in."""
    if any(isinstance(low, date) for low, _ in domain):
        # The unit is needed now, not only when the rows are read.
        source = source.scaled()
    box = domain_in_numbers(domain, source.reading)
    model.set_params(domain=(tuple(box.lower.tolist()), tuple(box.upper.tolist())))
    return source


def scaled_for(source: RowSource, domain: Sequence[Interval]) -> RowSource:
    """Return a source whose date-times have units that a domain in dates decides.

    So pieces of one data set, summed apart for the same domain, are on the same scales.
    """
    from orthogp.errors import InputError
    from orthogp.files.columns import SINCE_1970, TimeScale

    times = list(source.reading.times)
    for j, ((low, high), scale) in enumerate(zip(domain, times)):
        if scale != SINCE_1970:
            continue
        if not (isinstance(low, date) and isinstance(high, date)):
            raise InputError(
                f"The domain of {source.reading.inputs[j]!r} must be in dates as its column is, "
                "got numbers whose unit is yet to be chosen: give an interval such as "
                "2024-01-01:2024-12-31."
            )
        times[j] = TimeScale.spanning(*_microseconds(low, high))
    return replace(source, reading=replace(source.reading, times=tuple(times)))


def _microseconds(low: date, high: date) -> np.ndarray:
    """Return the beginning of the first and the end of the last day, since 1970."""
    import numpy as np

    days = np.array([low, high], dtype="datetime64[D]") + np.array([0, 1])
    return days.astype("datetime64[us]").astype(np.float64)
