"""`orthogp sketch` and `orthogp merge`: statistics without a model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from orthogp.cli.console import Console, write_out
from orthogp.cli.options import (
    Given,
    Interval,
    Intervals,
    Output,
    Summing,
    data_options,
    domain_in_numbers,
    gather,
    kernel_option,
    mean_of,
    mean_option,
    output_options,
    scaled_for,
    summing_options,
)

if TYPE_CHECKING:
    from orthogp.files.cluster import Cluster
    from orthogp.learning.sketches import Sketch

_EXAMPLES = """\b
Examples:
  orthogp sketch 'data/*.parquet' --target y --inputs a,b --out stats.orthogp
  orthogp fit stats.orthogp --kernel matern52 --out model.orthogp
\b
In pieces, on several machines:
  orthogp sketch monday.csv --target y --domain 2024-01-01:2024-01-07 --out monday.orthogp
  orthogp sketch tuesday.csv --target y --lattice-of monday.orthogp --out tuesday.orthogp
  orthogp merge monday.orthogp tuesday.orthogp --out week.orthogp
"""
_MERGE_EXAMPLES = """\b
Example:
  orthogp merge monday.orthogp tuesday.orthogp --out week.orthogp
"""
# What two files of statistics must agree in.
_SHARED = ("inputs", "targets", "weights", "times")


class LatticeOptions(NamedTuple):
    """What the statistics are to serve for: the model, the box, or other statistics."""

    kernel: str
    mean: str | None
    domain: list[Interval] | None
    lattice_of: Path | None


@click.command(epilog=_EXAMPLES)
@data_options
@kernel_option
@mean_option
@click.option(
    "--domain",
    type=Intervals(),
    metavar="INTERVALS",
    help="What the inputs span, here and in pieces to come: 0:10,-5:5, or between dates: "
    "2024-01-01:2024-12-31. No scan is then needed, and pieces of the same domain can be merged.",
)
@click.option(
    "--lattice-of",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sum on the lattice of other statistics, so that both can be merged.",
)
@summing_options
@output_options("Where the statistics go.")
@gather(given=Given, wanted=LatticeOptions, summing=Summing, output=Output)
def sketch(given: Given, wanted: LatticeOptions, summing: Summing, output: Output) -> None:
    """Sum the rows of files in one pass, for models to be fitted later.

    Memory stays bounded however large the files are. The statistics know no kernel (but for more
    than three inputs, whether the model is additive), and contain no rows.
    """
    from orthogp.cli.outputs import SKETCH, check_saved
    from orthogp.files.source import standard_input_as_file

    summing.check(given.data)
    also = () if wanted.lattice_of is None else (str(wanted.lattice_of),)
    check_saved(output.out, (*given.data, *also), SKETCH, force=output.force)
    with output.console() as console:
        with standard_input_as_file(given.data) as files:
            given = given._replace(data=tuple(files))
            found, about = _sum(console, given, wanted, summing, output.checkpoint)
        _save(output.out, found, about)
        output.remove_checkpoint()
        _tell(console, found, about, output.out)


@click.command(epilog=_MERGE_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="A B...")
@output_options("Where the sum goes.")
@gather(output=Output)
def merge(files: tuple[str, ...], output: Output) -> None:
    """Add up statistics of different rows.

    They must be of the same columns and on the same lattice: made with --lattice-of, or with the
    same --domain.
    """
    from orthogp.cli.outputs import SKETCH, check_output
    from orthogp.errors import InputError, LatticeMismatchError
    from orthogp.files.summing import add_sketches
    from orthogp.storage import load_sketch

    check_output(output.out, files, force=output.force, like=SKETCH)
    with output.console() as console:
        total, about = load_sketch(files[0])
        for path in files[1:]:
            other, its = load_sketch(path)
            for name in _SHARED:
                if about.get(name) != its.get(name):
                    raise InputError(
                        f"{path} has other {name} than {files[0]}: {its.get(name)}, not "
                        f"{about.get(name)}."
                    )
            try:
                total = add_sketches(total, other)
            except LatticeMismatchError as error:
                raise LatticeMismatchError(
                    f"{path} and {files[0]} are on different lattices and do not add up: make one "
                    "of them with --lattice-of the other, or both with the same --domain."
                ) from error
            for name in ("rows", "missing", "bad"):
                about[name] = about.get(name, 0) + its.get(name, 0)
        about["source"] = f"{len(files)} statistics from {files[0]} to {files[-1]}"
        _save(output.out, total, about)
        _tell(console, total, about, output.out)


def _save(out: str, found: Sketch, about: dict[str, Any]) -> None:
    from orthogp.storage import save_sketch

    write_out(out, lambda path: save_sketch(path, found, about))


def _tell(console: Console, found: Sketch, about: dict[str, Any], out: str) -> None:
    columns = f"{', '.join(about.get('inputs', []))} → {', '.join(about.get('targets', []))}"
    where = "standard output" if out == "-" else out
    text = f"Statistics of {found.statistics.rows:,.0f} rows, {columns}: {where}"
    extent = {"lower": found.extent.lower, "upper": found.extent.upper}
    console.result(text, {"statistics": out, **about, "extent": extent})


# ---------------------------------------------------------------------- summing


def _sum(
    console: Console,
    given: Given,
    wanted: LatticeOptions,
    summing: Summing,
    checkpoint: str | None,
) -> tuple[Sketch, dict[str, Any]]:
    """Return the sums of files, and what is to be known about them."""
    from orthogp import GPRegressor
    from orthogp.files.columns import TimeScale
    from orthogp.files.fitting import about_rows, begin_like
    from orthogp.files.source import open_source
    from orthogp.files.summing import Pass, sum_files
    from orthogp.storage import load_sketch

    columns, times = given.columns(), None
    like, extent = None, None
    if wanted.lattice_of is not None:
        like, about = load_sketch(wanted.lattice_of)
        columns, extent = _same_columns(columns, about), like.extent
        times = [TimeScale.from_json(scale) for scale in about["times"]]
    if columns["targets"] is None:
        raise click.UsageError("Missing option '--target': the column to predict.")
    source = open_source(given.data, **columns)
    if times is not None:
        source = source.with_times(times)
    estimator = GPRegressor(wanted.kernel, mean=mean_of(wanted.mean))
    if wanted.domain is not None:
        source = scaled_for(source, wanted.domain)
        reading = source.reading
        extent = domain_in_numbers(wanted.domain, reading.inputs, reading.times)
    begin = begin_like(estimator, len(source.reading.inputs), like)
    with joined_cluster(summing.scheduler, console) as cluster:
        how = Pass(
            extent=extent,
            batch_rows=summing.batch_rows,
            checkpoint=checkpoint,
            every=summing.checkpoint_seconds,
            watcher=console,
            cluster=cluster,
        )
        streamed = sum_files(source, begin, how)
    console.tell_rows(streamed.source, streamed.tally)
    return streamed.sketch, about_rows(streamed.source, streamed.tally)


def _same_columns(columns: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of other statistics; those named must be the same."""
    from orthogp.errors import InputError

    columns = dict(columns)
    for name in ("targets", "inputs", "weights"):
        known = about.get(name)
        if columns[name] is None:
            columns[name] = known
        elif columns[name] != known:
            raise InputError(
                f"The other statistics have {name} {known}, not {columns[name]}: name the same "
                "columns, or none."
            )
    return columns


@contextmanager
def joined_cluster(scheduler: str | None, console: Console) -> Iterator[Cluster | None]:
    """Give the cluster of a scheduler for as long as it is needed, `None` if there is no address.

    Says in the end what travelled.
    """
    if scheduler is None:
        yield None
        return
    from orthogp.files.cluster import Cluster

    # What goes wrong is said once, in our words.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with Cluster(scheduler) as cluster:
        threads, before = cluster.num_threads, cluster.moved()
        workers = "1 thread" if threads == 1 else f"{threads} threads"
        console.say(f"The scheduler at {scheduler} has workers with {workers}.")
        yield cluster
        moved = max(cluster.moved() - before, 0)
        console.say(f"The workers sent each other {moved / 1e6:,.1f} MB of sums.")
