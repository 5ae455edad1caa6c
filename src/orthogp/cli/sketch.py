"""`orthogp sketch` and `orthogp merge`: statistics without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orthogp.cli.console import Console, write_out
from orthogp.cli.options import (
    Box,
    Interval,
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
    path_option,
    scheduler_option,
    skip_bad_option,
    target_option,
    weights_option,
)

if TYPE_CHECKING:
    from orthogp.learning.sketch import Sketch

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


@click.command(epilog=_EXAMPLES)
@data_argument
@target_option
@inputs_option
@weights_option
@kernel_option
@mean_option
@click.option(
    "--domain",
    type=Box(),
    metavar="INTERVALS",
    help="What the inputs span, here and in pieces to come: 0:10,-5:5, or between dates: "
    "2024-01-01:2024-12-31. No scan is then needed, and pieces of the same domain can be merged.",
)
@path_option(
    "--lattice-of",
    metavar="FILE",
    help="Sum on the lattice of other statistics, so that both can be merged.",
)
@skip_bad_option
@checkpoint_option
@batch_option
@scheduler_option
@out_option("Where the statistics go.")
@force_option
@output_options
def sketch(
    data: tuple[str, ...],
    target: list[str] | None,
    inputs: list[str] | None,
    weights: str | None,
    kernel: str,
    mean: str | None,
    domain: list[Interval] | None,
    lattice_of: Path | None,
    skip_bad: bool,
    checkpoint_seconds: float,
    batch_rows: int | None,
    scheduler: str | None,
    out: str,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Sum the rows of files in one pass, for models to be fitted later.

    Memory stays bounded however large the files are. The statistics know no kernel (but for more
    than three inputs, whether the model is additive), and contain no rows.
    """
    from orthogp.cli.outputs import SKETCH, check_saved
    from orthogp.cli.sketching import sketch_to
    from orthogp.tables.files import standard_input_as_file

    check_scheduler(scheduler, data)
    read = data if lattice_of is None else (*data, str(lattice_of))
    check_saved(out, read, SKETCH, force=force)
    with Console(as_json=as_json, quiet=quiet, out=out) as console:
        with standard_input_as_file(data) as files:
            found, about = sketch_to(
                console,
                files,
                {"targets": target, "inputs": inputs, "weights": weights, "skip_bad": skip_bad},
                {"kernel": kernel, "mean": mean, "domain": domain, "batch_rows": batch_rows},
                lattice_of,
                None if out == "-" else f"{out}.checkpoint",
                checkpoint_seconds,
                scheduler,
            )
        _save(out, found, about)
        if out != "-":
            Path(f"{out}.checkpoint").unlink(missing_ok=True)
        _tell(console, found, about, out)


@click.command(epilog=_MERGE_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="A B...")
@out_option("Where the sum goes.")
@force_option
@output_options
def merge(files: tuple[str, ...], out: str, force: bool, as_json: bool, quiet: bool) -> None:
    """Add up statistics of different rows.

    They must be of the same columns and on the same lattice: made with --lattice-of, or with the
    same --domain.
    """
    from orthogp.cli.outputs import SKETCH, check_output
    from orthogp.errors import InputError, LatticeMismatchError
    from orthogp.storage import load_sketch
    from orthogp.streaming import add_sketches

    check_output(out, files, force=force, like=SKETCH)
    with Console(as_json=as_json, quiet=quiet, out=out) as console:
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
        _save(out, total, about)
        _tell(console, total, about, out)


def _save(out: str, found: Sketch, about: dict[str, Any]) -> None:
    from orthogp.storage import save_sketch

    write_out(out, lambda path: save_sketch(path, found, about))


def _tell(console: Console, found: Sketch, about: dict[str, Any], out: str) -> None:
    columns = f"{', '.join(about.get('inputs', []))} → {', '.join(about.get('targets', []))}"
    where = "standard output" if out == "-" else out
    text = f"Statistics of {found.statistics.rows:,.0f} rows, {columns}: {where}"
    extent = {
        "lower": found.extent.lower,
        "upper": found.extent.upper,
    }
    console.result(text, {"statistics": out, **about, "extent": extent})
