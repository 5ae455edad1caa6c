"""`orthogp fit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orthogp.cli.console import Console, write_out
from orthogp.cli.options import (
    FAMILIES,
    Box,
    Interval,
    Size,
    batch_option,
    check_scheduler,
    checkpoint_option,
    data_argument,
    force_option,
    inputs_option,
    kernel_option,
    mean_option,
    out_option,
    output_options,
    scheduler_option,
    skip_bad_option,
    target_option,
    weights_option,
)

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


@click.command(epilog=_EXAMPLES)
@data_argument
@target_option
@inputs_option
@weights_option
@kernel_option
@click.option(
    "--features",
    default="auto",
    show_default=True,
    metavar="NAME",
    help=f"The family of features: auto, {', '.join(FAMILIES)}.",
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
    type=Box(),
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
@skip_bad_option
@checkpoint_option
@batch_option
@scheduler_option
@click.option(
    "--diagnostics/--no-diagnostics",
    default=True,
    help="Whether to check the model by leaving out rows, on up to 10,000 of them.",
)
@out_option("Where the model goes.")
@force_option
@output_options
def fit(
    data: tuple[str, ...],
    target: list[str] | None,
    inputs: list[str] | None,
    weights: str | None,
    kernel: str,
    features: str,
    num_features: int | None,
    mean: str | None,
    solver: str,
    domain: list[Interval] | None,
    max_seconds: float | None,
    max_memory: float | None,
    memory: float,
    skip_bad: bool,
    checkpoint_seconds: float,
    batch_rows: int | None,
    scheduler: str | None,
    diagnostics: bool,
    out: str,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit a Gaussian process to files, or to statistics made by sketch.

    Prints the model, its bounds and what they guarantee. Date-times become numbers, in a unit that
    is shown; categories are refused.
    """
    from orthogp import GPRegressor
    from orthogp.cli.outputs import MODEL, check_saved
    from orthogp.cli.statistics import sketch_file

    check_scheduler(scheduler, data)
    check_saved(out, data, MODEL, force=force)
    model = GPRegressor(
        kernel,
        features=features,
        num_features="auto" if num_features is None else num_features,
        mean=None if mean == "none" else mean or "auto",
        solver=solver,
        max_seconds=max_seconds,
        max_memory=max_memory,
    )
    with Console(as_json=as_json, quiet=quiet, out=out) as console:
        statistics = sketch_file(data)
        if statistics is not None:
            if scheduler is not None:
                raise click.UsageError("Statistics have no rows to sum: leave out --scheduler.")
            if domain is not None:
                raise click.UsageError(
                    "Statistics cover what they were made for: give --domain to orthogp sketch."
                )
            _from_sketch(model, statistics, mean, (target, inputs, weights))
        else:
            if target is None:
                raise click.UsageError("Missing option '--target': the column to predict.")
            checkpoint = None if out == "-" else f"{out}.checkpoint"
            columns = {"targets": target, "inputs": inputs, "weights": weights}
            _from_rows(
                model,
                console,
                data,
                {**columns, "skip_bad": skip_bad},
                domain,
                {
                    "memory": memory,
                    "checkpoint": checkpoint,
                    "every": checkpoint_seconds,
                    "batch_rows": batch_rows,
                },
                scheduler,
                diagnostics,
            )
        write_out(out, model.save)
        if out != "-":
            Path(f"{out}.checkpoint").unlink(missing_ok=True)
        saved = "" if out == "-" else f"\nModel: {out}"
        console.result(_heading(model) + model.summary() + saved, _values(model, out))


def _from_sketch(
    model: GPRegressor, path: str, mean: str | None, columns: tuple[object, ...]
) -> None:
    from orthogp.storage import load_sketch

    if any(column is not None for column in columns):
        raise click.UsageError("The columns of statistics are known: leave out their names.")
    sketch, about = load_sketch(path)
    if mean is None and sketch.mean.slope_variance:
        model.set_params(mean="linear")
    model.fit_sketch(sketch)
    model.about_ = about  # type: ignore[attr-defined]


def _from_rows(
    model: GPRegressor,
    console: Console,
    data: tuple[str, ...],
    columns: dict[str, Any],
    domain: list[Interval] | None,
    reading: dict[str, Any],
    scheduler: str | None,
    diagnostics: bool,
) -> None:
    from orthogp.cli.domains import domain_in_numbers, has_dates
    from orthogp.cli.joining import joined_cluster
    from orthogp.errors import OrthogpError
    from orthogp.from_files import fit_source
    from orthogp.report import diagnose
    from orthogp.tables import open_source
    from orthogp.tables.files import standard_input_as_file

    with standard_input_as_file(data) as files:
        source = open_source(files, **columns)
        if domain is not None:
            if has_dates(domain):
                # The unit is needed now, not only when the rows are read.
                source, _ = source.scaled()
            inputs, times = source.reading.inputs, source.reading.times
            box = domain_in_numbers(domain, inputs, times)
            model.set_params(domain=(tuple(box.lower.tolist()), tuple(box.upper.tolist())))
        with joined_cluster(scheduler, console) as cluster:
            if cluster is not None and not diagnostics:
                # Nobody asks for the rows: let none travel.
                reading = {**reading, "sample_rows": 0}
            read = fit_source(model, source, watcher=console, cluster=cluster, **reading)
    console.tell_rows(read.source, read.tally)
    if diagnostics:
        X, y, weights = read.sample
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
