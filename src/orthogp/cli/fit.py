"""`orthogp fit`."""

from __future__ import annotations

from collections.abc import Sequence
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from orthogp.cli.console import STANDARD, Console, write_out
from orthogp.cli.options import (
    Given,
    Interval,
    Intervals,
    NamesOption,
    Output,
    Size,
    Summing,
    data_options,
    domain_in_numbers,
    family_names,
    gather,
    has_dates,
    kernel_option,
    mean_of,
    mean_option,
    output_options,
    summing_options,
)
from orthogp.cli.sketch import joined_cluster

if TYPE_CHECKING:
    from orthogp import GPRegressor

_EXAMPLES = """\b
Examples:
  orthogp fit data.csv --target y --out model.orthogp
  orthogp fit 'rides/*.parquet' --target delay --inputs time,distance --out model.orthogp
  orthogp fit 'rides/*.parquet' --target delay --scheduler tcp://node1:8786 --out model.orthogp
  orthogp fit stats.orthogp --kernel rbf --out model.orthogp
  cat data.csv | orthogp fit - --target y --out model.orthogp --json
"""


class ModelOptions(NamedTuple):
    """The model that is asked for."""

    kernel: str
    features: str
    num_features: int | None
    mean: str | None
    solver: str
    max_seconds: float | None
    max_memory: float | None

    def regressor(self) -> GPRegressor:
        """Return the model, not yet fitted."""
        from orthogp import GPRegressor

        return GPRegressor(
            self.kernel,
            features=self.features,
            num_features="auto" if self.num_features is None else self.num_features,
            mean=mean_of(self.mean),
            solver=self.solver,
            max_seconds=self.max_seconds,
            max_memory=self.max_memory,
        )


class RowOptions(NamedTuple):
    """How the rows are read and checked."""

    domain: list[Interval] | None
    memory: float
    diagnostics: bool


@click.command(epilog=_EXAMPLES)
@data_options
@kernel_option
@click.option(
    "--features",
    default="auto",
    show_default=True,
    metavar="NAME",
    cls=NamesOption,
    names=family_names,
    help="The family of features: auto, {names}.",
)
@click.option(
    "--num-features",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="How many features.  [default: as many as the certificate needs]",
)
@mean_option
@click.option(
    "--solver",
    type=click.Choice(["auto", "exact", "dense", "iterative", "neighbours"]),
    default="auto",
    show_default=True,
    help="The engine; auto tries those that can serve on hidden rows.",
)
@click.option(
    "--domain",
    type=Intervals(),
    metavar="INTERVALS",
    help="What to cover besides the data, for predictions beyond them: 0:10,-5:5, or between "
    "dates: 2024-01-01:2024-12-31.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop learning after that long.",
)
@click.option(
    "--max-memory", type=Size(), metavar="SIZE", help="What the iterative solver may take: 2GB."
)
@click.option(
    "--memory",
    type=Size(),
    default="400MB",
    show_default=True,
    metavar="SIZE",
    help="Rows that take no more are read at once, and every solver can be used; more rows are "
    "summed in one pass within bounded memory, and lattice features learn from the sums.",
)
@summing_options
@click.option(
    "--diagnostics/--no-diagnostics",
    default=True,
    help="Whether to check the model by leaving out rows, on up to 10,000 of them.",
)
@output_options("Where the model goes.")
@gather(given=Given, model=ModelOptions, rows=RowOptions, summing=Summing, output=Output)
def fit(
    given: Given, model: ModelOptions, rows: RowOptions, summing: Summing, output: Output
) -> None:
    """Fit a Gaussian process to files, or to statistics made by sketch.

    Prints the model, its bounds and what they guarantee. Date-times become numbers, in a unit that
    is shown; categories are refused.
    """
    from orthogp.cli.outputs import MODEL, check_saved

    out = output.out
    summing.check(given.data)
    check_saved(out, given.data, MODEL, force=output.force)
    fitted = model.regressor()
    with output.console() as console:
        statistics = sketch_file(given.data)
        if statistics is not None:
            if summing.scheduler is not None:
                raise click.UsageError("Statistics have no rows to sum: leave out --scheduler.")
            if rows.domain is not None:
                raise click.UsageError(
                    "Statistics cover what they were made for: give --domain to orthogp sketch."
                )
            if (given.target, given.inputs, given.weights) != (None, None, None):
                raise click.UsageError(
                    "The columns of statistics are known: leave out their names."
                )
            _from_sketch(fitted, statistics, model.mean)
        else:
            if given.target is None:
                raise click.UsageError("Missing option '--target': the column to predict.")
            _from_rows(fitted, console, given, rows, summing, output.checkpoint)
        write_out(out, fitted.save)
        output.remove_checkpoint()
        saved = "" if out == STANDARD else f"\nModel: {out}"
        console.result(_heading(fitted) + fitted.summary() + saved, _values(fitted, out))


def sketch_file(data: Sequence[str]) -> str | None:
    """Return the file of statistics that the data are, `None` if they are rows."""
    from orthogp.errors import InputError
    from orthogp.storage import read_header

    named = [name for name in data if name.endswith(".orthogp") and not has_magic(name)]
    if not named:
        return None
    for name in named:
        if not Path(name).exists():
            raise InputError(f"There is no file {name}: check its name.")
    if len(data) > 1:
        raise InputError(
            "Statistics are fitted one file at a time: add them up with orthogp merge first."
        )
    kind = read_header(named[0]).kind
    if kind != "sketch":
        raise InputError(
            f"{named[0]} holds a {kind}, not rows or statistics: name the data to fit it to."
        )
    return named[0]


def _from_sketch(model: GPRegressor, path: str, mean: str | None) -> None:
    from orthogp.storage import load_sketch

    sketch, about = load_sketch(path)
    if mean is None and sketch.mean.slope_variance:
        model.set_params(mean="linear")
    model.fit_sketch(sketch)
    model.about_ = about  # type: ignore[attr-defined]


def _from_rows(
    model: GPRegressor,
    console: Console,
    given: Given,
    rows: RowOptions,
    summing: Summing,
    checkpoint: str | None,
) -> None:
    from orthogp.errors import OrthogpError
    from orthogp.files.fitting import SAMPLE_ROWS, fit_source
    from orthogp.files.source import open_source, standard_input_as_file
    from orthogp.files.summing import Pass
    from orthogp.report import diagnose

    with standard_input_as_file(given.data) as files:
        source = open_source(files, **given.columns())
        if rows.domain is not None:
            if has_dates(rows.domain):
                # The unit is needed now, not only when the rows are read.
                source = source.scaled()
            inputs, times = source.reading.inputs, source.reading.times
            box = domain_in_numbers(rows.domain, inputs, times)
            model.set_params(domain=(tuple(box.lower.tolist()), tuple(box.upper.tolist())))
        with joined_cluster(summing.scheduler, console) as cluster:
            # If nobody asks for the rows of a cluster, none travels.
            sample_rows = 0 if cluster is not None and not rows.diagnostics else SAMPLE_ROWS
            how = Pass(
                sample_rows=sample_rows,
                batch_rows=summing.batch_rows,
                checkpoint=checkpoint,
                every=summing.checkpoint_seconds,
                watcher=console,
                cluster=cluster,
            )
            read = fit_source(model, source, how, rows.memory)
    console.tell_rows(read.source, read.tally)
    if rows.diagnostics:
        X, y, weights, _ = read.sample
        try:
            checked = diagnose(model, X, y[:, 0] if y.shape[1] == 1 else y, weights)
        except OrthogpError as error:
            console.say(f"No diagnostics: {error}")
        else:
            model.diagnostics_ = checked  # type: ignore[attr-defined]


def _heading(model: Any) -> str:
    about = model.about_
    if "targets" not in about:
        return ""
    return f"{about['source']}: {', '.join(about['inputs'])} → {', '.join(about['targets'])}\n"


def _values(model: Any, out: str) -> dict[str, Any]:
    certificate = model.certificate_
    return {
        "model": out,
        **{name: value for name, value in model.about_.items() if name != "rows"},
        "rows": int(model.statistics_.rows),
        "kernel": [
            {
                "name": type(primitive).__name__,
                "columns": None if dims is None else list(dims),
                **primitive.parameters(),
            }
            for primitive, dims in model.kernel_.primitives()
        ],
        "noise_variance": model.noise_variance_,
        "engine": model.engine_,
        "trials": [trial._asdict() for trial in model.trials_],
        "num_features": model.num_features_,
        "elbo": model.elbo_,
        "upper_bound": model.upper_bound_,
        "certified": bool(certificate.holds),
        "gap": certificate.gap,
        "mean_error": certificate.mean_error,
        "variance_error": certificate.variance_error,
        "status": model.status_,
        "seconds": dict(model.timings_),
    }
