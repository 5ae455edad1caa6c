"""`orthogp predict`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from orthogp.cli.console import STANDARD, Console, check_output
from orthogp.cli.options import (
    NAMES,
    PROBABILITIES,
    STEPS,
    Output,
    gather,
    output_options,
    skip_bad_option,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orthogp.files.columns import Scale, Tally
    from orthogp.files.source import RowSource
    from orthogp.files.text import TableWriter

_EXAMPLES = """\b
Examples:
  orthogp predict model.orthogp new.csv --out predictions.csv
  orthogp predict model.orthogp 'new/*.parquet' --out predictions.parquet --noise --keep id
  cat new.csv | orthogp predict model.orthogp - --out - | head
  orthogp predict model.orthogp --grid 0.1 --out map.tif
"""
# Half the width of an interval that holds 95 % of a normal distribution, in standard deviations.
_HALF_WIDTH = 1.959963984540054


class Where(NamedTuple):
    """The places to predict at: the rows of files, or a grid."""

    data: tuple[str, ...]
    inputs: list[str] | None
    keep: list[str] | None
    skip_bad: bool
    grid: list[float] | None
    crs: str | None

    def check(self, model: str) -> None:
        """Raise an error of usage unless the places are files or a grid, and not both."""
        if self.grid is not None and self.data:
            raise click.UsageError("Give files to predict at, or --grid, not both.")
        if self.grid is None and not self.data:
            raise click.UsageError("Missing argument 'DATA...': files to predict at, or --grid.")
        if self.grid is not None and self.keep:
            raise click.UsageError("A grid has no columns to keep: leave out --keep.")
        if self.grid is None and self.crs is not None:
            raise click.UsageError("--crs is for maps: give --grid too.")
        if model == STANDARD and STANDARD in self.data:
            raise click.UsageError("Model and data cannot both come from standard input.")


class Results(NamedTuple):
    """What is written of each prediction."""

    noise: bool
    quantiles: list[float] | None

    def check(self, model: Any) -> None:
        """Raise `InputError` if a model lacks what is asked for."""
        from orthogp.errors import InputError

        if self.quantiles is not None and not hasattr(model, "predict_quantiles"):
            raise InputError("Only regressions have quantiles: leave out --quantiles.")

    def names(self, model: Any) -> list[str]:
        """Return the names of the columns of results."""
        if hasattr(model, "classes_"):
            return [f"probability_{label}" for label in model.classes_]
        of = "observation"
        if hasattr(model, "window_"):
            of = "intensity"
            results = ["mean_intensity", "sd_intensity"]
        elif getattr(model, "likelihood_", None) is not None:
            results = ["mean_observation", "sd_observation"]
        else:
            about = "observation" if self.noise else "function"
            results = ["mean", *(f"{result}_{about}" for result in ("sd", "lower", "upper"))]
        results += [f"quantile_{p:g}_{of}" for p in self.quantiles or ()]
        targets = getattr(model, "about_", {}).get("targets", [])
        if len(targets) < 2:
            return results
        return [f"{result}_{target}" for target in targets for result in results]

    def of(self, model: Any, X: NDArray[np.float64], size: str | None) -> NDArray[np.float64]:
        """Return the columns of results, (r, n), at rows of inputs, covariates and sizes."""
        import numpy as np

        from orthogp.errors import OutOfDomainWarning

        with warnings.catch_warnings():
            # Counted, and said once for all blocks.
            warnings.simplefilter("ignore", OutOfDomainWarning)
            # Columns were found by their names.
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            if hasattr(model, "classes_"):
                return model.predict_proba(X).T
            sizes: dict[str, NDArray[np.float64]] = {}
            if size is not None:
                X, last = X[:, :-1], X[:, -1]
                sizes = {"exposure": np.exp(last)} if size == "offset" else {size: last}
            d = model.n_features_in_
            other = {"covariates": X[:, d:]} if X.shape[1] > d else {}
            plain = hasattr(model, "window_")
            noise = {} if plain else {"include_noise": self.noise}
            mean, sd = model.predict(X[:, :d], return_std=True, **noise, **other, **sizes)
            mean, sd = mean.reshape(len(X), -1).T, sd.reshape(len(X), -1).T
            half = _HALF_WIDTH * sd
            columns = [mean, sd, mean - half, mean + half]
            if plain or getattr(model, "likelihood_", None) is not None:
                columns = [mean, sd]
            if self.quantiles is not None:
                found = model.predict_quantiles(X[:, :d], self.quantiles, **other, **sizes)
                columns += list(found.reshape(len(X), len(mean), -1).T)
        return np.stack(columns, axis=1).reshape(-1, len(X))


@click.command(epilog=_EXAMPLES)
@click.argument("model", type=click.Path(dir_okay=False, allow_dash=True), metavar="MODEL")
@click.argument("data", nargs=-1, metavar="[DATA...]")
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
@click.option(
    "--quantiles",
    type=PROBABILITIES,
    metavar="NUMBERS",
    help="Write quantiles of new observations too: 0.05,0.5,0.95.",
)
@click.option(
    "--keep",
    type=NAMES,
    metavar="NAMES",
    help="Further columns of the data to write beside the predictions, whatever they hold.",
)
@click.option(
    "--grid",
    metavar="STEPS",
    type=STEPS,
    help="Predict on a grid instead: the size of its cells, or one for each input: 0.1,0.2.",
)
@click.option(
    "--crs", metavar="CODE", help="The coordinate reference system of a GeoTIFF, as in EPSG:4326."
)
@skip_bad_option
@output_options(
    "Where the predictions go: a .csv, .tsv or .parquet file, or - for CSV; with --grid a .nc "
    "(NetCDF) or .tif (GeoTIFF) file."
)
@gather(where=Where, results=Results, output=Output)
def predict(model: str, where: Where, results: Results, output: Output) -> None:
    """Predict at the rows of files, or on a grid.

    Writes the inputs with mean, sd, and the ends of the 95 % interval (lower, upper): of the
    function without noise (sd_function, lower_function, upper_function), or with --noise of new
    observations (sd_observation and so on). Of counts, shares and amounts, mean and sd of new
    observations (mean_observation, sd_observation); if the data have the model's column of
    exposures, offsets or trials, for each row's, else for one of them. Of events, mean and sd of
    their intensity (mean_intensity, sd_intensity). Rows that lack an input are
    kept, without predictions.
    """
    from orthogp.files.source import as_tables, open_source
    from orthogp.files.text import check_table_name, table_writer
    from orthogp.report.summary import describe_domain

    out = output.out
    where.check(model)
    if where.grid is None:
        check_table_name(out)
    check_output(out, (model, *where.data), force=output.force)
    with output.console() as console:
        fitted = load_fitted(model)
        results.check(fitted)
        if where.grid is not None:
            _write_grid(fitted, where, output, results, console)
            return
        names, times = _columns(fitted, where.inputs, model)
        covariates = getattr(fitted, "covariate_names_", ())
        taken = (*names, *covariates)
        others = [name for name in dict.fromkeys(where.keep or ()) if name not in taken]
        with as_tables(where.data) as files:
            size = _size_column(fitted, files, console)
            source = open_source(
                files,
                (),
                names,
                covariates=covariates,
                skip_bad=where.skip_bad,
                keep_missing=True,
                keep=others,
                categories=True,
                size=size,
            )
            source = source.with_times(times)
            # What is written True or False stays so.
            truths = source.truths()
            source = source.keeping([*others, *truths])
            written = [*others, *source.reading.names, *results.names(fitted)]
            _check_distinct(written)
            console.begin("predicting", source.num_rows)
            with table_writer(out, written) as writer:
                tally, missing, outside = _write(fitted, source, writer, results, console)
        console.tell_rows(source.reading, tally._replace(missing=0))
        rows = tally.used
        if missing:
            lack = "lacks" if missing == 1 else "lack"
            console.say(f"{missing:,} of {rows:,} rows {lack} an input: no predictions there.")
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
        number = f"{rows - missing:,} row{'' if rows - missing == 1 else 's'}"
        console.result(f"Predictions at {number}: {output.where}", values)


def _write_grid(
    model: Any, where: Where, output: Output, results: Results, console: Console
) -> None:
    """Write a map of the predictions on a grid."""
    from orthogp.errors import InputError
    from orthogp.maps.formats import is_map, write_map

    if not is_map(output.out) or not hasattr(model, "predict_grid"):
        raise InputError(
            f"A grid of a regression is written to a .nc or a .tif file, got {output.out}."
        )
    if getattr(model, "covariate_names_", ()):
        raise InputError(
            f"A grid has no values of {', '.join(model.covariate_names_)}: give a table or map "
            "with them as DATA, and a table as --out, or use predict_grid(covariates=…) in Python."
        )
    steps = where.grid if where.grid is None or len(where.grid) > 1 else where.grid[0]
    if results.quantiles is not None:
        raise InputError("A map has mean and standard deviation: leave out --quantiles.")
    found = model.predict_grid(steps, include_noise=results.noise)
    write_map(found, output.out, where.crs)
    cells = {str(name): int(size) for name, size in found.sizes.items()}
    shape = " × ".join(f"{size:,} {name}" for name, size in cells.items())
    values = {"predictions": output.out, "cells": cells, "variables": list(found.data_vars)}
    console.result(f"Predictions on {shape} cells: {output.where}", values)


def load_fitted(name: str) -> Any:
    """Return the model in a file, or from standard input."""
    from orthogp.errors import InputError
    from orthogp.files.source import as_tables
    from orthogp.storage import read_header

    with as_tables([name]) as (path,):
        if read_header(path).kind == "sketch":
            raise InputError(
                f"{name} holds statistics, not a model: fit one by orthogp fit {name} --out "
                "model.orthogp."
            )
        from orthogp.storage import load_model

        return load_model(path)


def _columns(
    model: Any, inputs: list[str] | None, name: str
) -> tuple[list[str], list[Scale | None]]:
    """Return the names of the model's columns, and what its numbers mean where they are times."""
    from orthogp.errors import InputError
    from orthogp.files.columns import scales_of

    about = getattr(model, "about_", {})
    times = list(scales_of(model))
    known = about.get("inputs", getattr(model, "feature_names_in_", None))
    names = inputs if inputs is not None else known
    number = model.n_features_in_
    if names is None:
        raise InputError(
            f"{name} names none of its input columns ({number}): name them by --inputs."
        )
    if len(names) != number:
        raise InputError(f"{name} has {number} input columns, got {len(names)} by --inputs.")
    return [str(column) for column in names], times


def _size_column(model: Any, files: Sequence[str], console: Console) -> dict[str, str] | None:
    """Return the model's column of exposures, offsets or trials, if the files have it."""
    from orthogp.files.source import has_column

    size: dict[str, str] = (getattr(model, "about_", None) or {}).get("size") or {}
    for kind, name in size.items():
        if has_column(files, name):
            return size
        one = "offsets of zero" if kind == "offset" else f"{kind} of one"
        console.say(f"The data have no column {name!r}: predictions are for {one}.")
    return None


def _check_distinct(names: list[str]) -> None:
    from orthogp.errors import InputError

    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(
            f"Two columns of the predictions would be called {min(twice)!r}: leave it out of "
            "--keep, or rename it in the data."
        )


def _write(
    model: Any, source: RowSource, writer: TableWriter, wanted: Results, console: Console
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
        if not columns.shape[1]:
            tally = tally.plus(block.tally)
            continue
        results = np.full((len(wanted.names(model)), columns.shape[1]), np.nan)
        if len(X):
            results[:, complete] = wanted.of(model, X, source.reading.size)
            if domain is not None:
                beyond = domain.outside(X[:, model.columns_])
                outside += 0 if beyond is None else int(beyond.sum())
        reading = source.reading
        kept = dict(zip(reading.keep, block.kept, strict=True))
        shown = [
            kept.pop(name) if name in kept else _shown(values, scale)
            for name, values, scale in zip(reading.names, columns, reading.scales, strict=True)
        ]
        writer.write([*kept.values(), *shown, *results])
        tally = tally.plus(block.tally)
        missing += columns.shape[1] - len(X)
        console.advance(block.tally.met)
    return tally, missing, outside


def _shown(values: NDArray[np.float64], scale: Scale | None) -> NDArray[Any]:
    """Return inputs as the file had them: numbers, date-times or texts."""
    if scale is None:
        return values
    from orthogp.files.columns import TimeScale

    return scale.datetimes(values) if isinstance(scale, TimeScale) else scale.texts(values)
