"""`orthogp predict`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click

from orthogp.cli.console import STANDARD, Console, check_output
from orthogp.cli.options import NAMES, Output, gather, output_options, skip_bad_option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orthogp.files.columns import Tally, TimeScale
    from orthogp.files.source import RowSource
    from orthogp.files.writing import TableWriter

_EXAMPLES = """\b
Examples:
  orthogp predict model.orthogp new.csv --out predictions.csv
  orthogp predict model.orthogp 'new/*.parquet' --out predictions.parquet --noise
  cat new.csv | orthogp predict model.orthogp - --out - | head
"""
# Half the width of an interval that holds 95 % of a normal distribution, in standard deviations.
_HALF_WIDTH = 1.959963984540054


@click.command(epilog=_EXAMPLES)
@click.argument("model", type=click.Path(dir_okay=False, allow_dash=True), metavar="MODEL")
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--inputs",
    type=NAMES,
    metavar="NAMES",
    help="The input columns, in the model's order.  [default: those of the fit]",
)
@click.option(
    "--noise",
    is_flag=True,
    help="Predict new observations, noise included, instead of the function.",
)
@skip_bad_option
@output_options("Where the predictions go: a .csv, .tsv or .parquet file, or - for CSV.")
@gather(output=Output)
def predict(
    model: str,
    data: tuple[str, ...],
    inputs: list[str] | None,
    noise: bool,
    skip_bad: bool,
    output: Output,
) -> None:
    """Predict at the rows of files.

    Writes the inputs with mean, sd, and the ends of the 95 % interval (lower, upper). Rows that
    lack an input are kept, without predictions.
    """
    from orthogp.files.source import open_source, standard_input_as_file
    from orthogp.files.writing import check_table_name, table_writer
    from orthogp.report.summary import describe_domain

    out = output.out
    check_table_name(out)
    if model == STANDARD and STANDARD in data:
        raise click.UsageError("Model and data cannot both come from standard input.")
    check_output(out, (model, *data), force=output.force)
    with output.console() as console:
        fitted = load_fitted(model)
        names, times = _columns(fitted, inputs, model)
        with standard_input_as_file(data) as files:
            source = open_source(files, (), names, skip_bad=skip_bad, keep_missing=True)
            source = source.with_times(times)
            written = [*source.reading.inputs, *_result_names(fitted)]
            console.begin("predicting", source.num_rows)
            with table_writer(out, written) as writer:
                tally, missing, outside = _write(fitted, source, writer, noise, console)
        console.tell_rows(source.reading, tally._replace(missing=0))
        rows = tally.used
        if missing:
            console.say(f"{missing:,} of {rows:,} rows lack an input: no predictions there.")
        if outside:
            console.say(
                f"{outside:,} of {rows:,} rows lie outside the covered domain "
                f"{describe_domain(fitted)}: predictions there are the prior's."
            )
        values = {
            "predictions": out,
            "rows": rows,
            "missing": missing,
            "outside": outside,
            "bad": tally.bad,
        }
        console.result(f"Predictions at {rows - missing:,} rows: {output.where}", values)


def load_fitted(name: str) -> Any:
    """Return the model in a file, or from standard input."""
    from orthogp.errors import InputError
    from orthogp.files.source import standard_input_as_file
    from orthogp.storage import read_header

    with standard_input_as_file([name]) as (path,):
        if read_header(path).kind == "sketch":
            raise InputError(
                f"{name} holds statistics, not a model: fit one by orthogp fit {name} --out "
                "model.orthogp."
            )
        from orthogp.storage import load_model

        return load_model(path)


def _columns(
    model: Any, inputs: list[str] | None, name: str
) -> tuple[list[str], list[TimeScale | None]]:
    """Return the names of the model's columns, and what its numbers mean where they are times."""
    from orthogp.errors import InputError
    from orthogp.files.columns import TimeScale

    about = getattr(model, "about_", {})
    times: list[Any] = [TimeScale.from_json(scale) for scale in about.get("times", [])]
    known = about.get("inputs", getattr(model, "feature_names_in_", None))
    names = inputs if inputs is not None else known
    number = model.n_features_in_
    if names is None:
        raise InputError(
            f"{name} names none of its input columns ({number}): name them by --inputs."
        )
    if len(names) != number:
        raise InputError(f"{name} has {number} input columns, got {len(names)} by --inputs.")
    return [str(column) for column in names], times or [None] * number


def _result_names(model: Any) -> list[str]:
    if hasattr(model, "classes_"):
        return [f"probability_{label}" for label in model.classes_]
    results = ["mean", "sd", "lower", "upper"]
    targets = getattr(model, "about_", {}).get("targets", [])
    if len(targets) < 2:
        return results
    return [f"{result}_{target}" for target in targets for result in results]


def _write(
    model: Any, source: RowSource, writer: TableWriter, noise: bool, console: Console
) -> tuple[Tally, int, int]:
    """Write the predictions block by block.

    Return the rows that were read, and the numbers of those that lack an input or lie outside.
    """
    import numpy as np

    from orthogp.files.columns import Tally

    tally, missing, outside = Tally(), 0, 0
    domain = getattr(model, "domain_", None)
    for _, block in source.blocks():
        columns = block.columns
        complete = ~np.isnan(columns).any(axis=0)
        X = columns[:, complete].T
        results = np.full((len(_result_names(model)), columns.shape[1]), np.nan)
        if len(X):
            results[:, complete] = _predictions(model, X, noise)
            if domain is not None:
                beyond = domain.outside(X[:, model.columns_])
                outside += 0 if beyond is None else int(beyond.sum())
        shown = [
            values if scale is None else scale.datetimes(values)
            for values, scale in zip(columns, source.reading.times)
        ]
        writer.write([*shown, *results])
        tally = tally.plus(block.tally)
        missing += columns.shape[1] - len(X)
        console.advance(block.tally.met)
    return tally, missing, outside


def _predictions(model: Any, X: NDArray[np.float64], noise: bool) -> NDArray[np.float64]:
    """Return the columns of results, (r, n)."""
    import numpy as np

    from orthogp.errors import OutOfDomainWarning

    with warnings.catch_warnings():
        # Counted, and said once for all blocks.
        warnings.simplefilter("ignore", OutOfDomainWarning)
        if hasattr(model, "classes_"):
            return model.predict_proba(X).T
        mean, sd = model.predict(X, return_std=True, include_noise=noise)
    mean, sd = mean.reshape(len(X), -1).T, sd.reshape(len(X), -1).T
    half = _HALF_WIDTH * sd
    each = np.stack([mean, sd, mean - half, mean + half], axis=1)
    return each.reshape(-1, len(X))
