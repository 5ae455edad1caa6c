"""`orthogp fit`, `orthogp sketch` and `orthogp merge`: from rows to statistics and models."""

from __future__ import annotations

import filecmp
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import has_magic
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from orthogp.cli.console import (
    MODEL,
    SKETCH,
    STANDARD,
    Console,
    check_output,
    check_saved,
    write_out,
)
from orthogp.cli.options import (
    INTERVALS,
    SIZE,
    Family,
    Given,
    Interval,
    NamesOption,
    Output,
    Summing,
    covering,
    data_options,
    domain_in_numbers,
    family_names,
    gather,
    kernel_option,
    likelihood_options,
    mean_of,
    mean_option,
    output_options,
    scaled_for,
    seasons_option,
    summing_options,
    take_categories,
    take_seasons,
)

if TYPE_CHECKING:
    from orthogp import GPClassifier, GPRegressor
    from orthogp.files.cluster import Cluster
    from orthogp.learning.sketches import Sketch

_FIT_EXAMPLES = """\b
Examples:
  orthogp fit data.csv --target y --out model.orthogp
  orthogp fit 'rides/*.parquet' --target delay --inputs time,distance --out model.orthogp
  orthogp fit 'rides/*.parquet' --target delay --scheduler tcp://node1:8786 --out model.orthogp
  orthogp fit stats.orthogp --kernel rbf --out model.orthogp
  orthogp fit sales.csv --target sales --inputs date --seasons yearly,weekly --out model.orthogp
  orthogp fit shops.csv --target sold --likelihood poisson --exposure hours --out model.orthogp
  orthogp fit flowers.csv --target species --inputs length,width --classify --out model.orthogp
  cat data.csv | orthogp fit - --target y --out model.orthogp --json
"""
_SKETCH_EXAMPLES = """\b
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
_SHARED = ("inputs", "targets", "weights", "covariates", "times", "size")


class ModelOptions(NamedTuple):
    """The model that is asked for."""

    kernel: str
    seasons: list[str | float] | None
    features: str
    num_features: int | None
    mean: str | None
    solver: str
    max_seconds: float | None
    max_memory: float | None
    classify: bool

    def regressor(self, likelihood: str) -> GPRegressor:
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
            likelihood=likelihood,
        )

    def classifier(self) -> GPClassifier:
        """Return the classifier, not yet fitted."""
        from orthogp import GPClassifier

        return GPClassifier(
            self.kernel,
            num_features="auto" if self.num_features is None else self.num_features,
            mean="constant" if self.mean is None else mean_of(self.mean),
            max_seconds=self.max_seconds,
        )


class RowOptions(NamedTuple):
    """How the rows are read and checked."""

    domain: list[Interval] | None
    memory: float
    diagnostics: bool


@click.command(epilog=_FIT_EXAMPLES, short_help="Fit a model to files, or to their statistics.")
@data_options
@kernel_option
@seasons_option
@click.option(
    "--features",
    default="auto",
    metavar="NAME",
    cls=NamesOption,
    names=family_names,
    help="The family of features: auto, {names}.",
)
@click.option(
    "--num-features",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="The number of features.  [default: as many as the certificate needs]",
)
@mean_option
@likelihood_options
@click.option(
    "--classify",
    is_flag=True,
    help="The target is a label, in numbers or words: learn the probability of each.",
)
@click.option(
    "--solver",
    type=click.Choice(["auto", "exact", "dense", "iterative", "neighbours"]),
    default="auto",
    help="The engine; auto compares those that can take the data, on held-out rows.",
)
@click.option(
    "--domain",
    type=INTERVALS,
    metavar="INTERVALS",
    help="For each input, the interval that predictions are to cover beyond the data: 0:10,-5:5, "
    "or between dates: 2024-01-01:2024-12-31.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The time after which learning stops.",
)
@click.option(
    "--max-memory",
    type=SIZE,
    metavar="SIZE",
    help="The most memory that the iterative solver may take, such as 2GB.",
)
@click.option(
    "--memory",
    type=SIZE,
    default="400MB",
    metavar="SIZE",
    help="The most memory that rows may take to be read at once, for any solver; more rows are "
    "summed in one pass, and lattice features learn from the sums.",
)
@summing_options
@click.option(
    "--diagnostics/--no-diagnostics",
    default=True,
    help="Whether to check the model: up to 10,000 rows are predicted, each from all others. The "
    "model's file then holds averages over bins, and rows that are alone in their bin.",
)
@output_options("Where the model goes.")
@gather(
    given=Given, model=ModelOptions, family=Family, rows=RowOptions, summing=Summing, output=Output
)
def fit(
    given: Given,
    model: ModelOptions,
    family: Family,
    rows: RowOptions,
    summing: Summing,
    output: Output,
) -> None:
    """Fit a Gaussian process to files, or to statistics made by sketch.

    Prints the model, its bounds and what they guarantee. Date-times become numbers in a unit that
    is printed; an input of words is a category, and each has an effect of its own beside the
    function of the others. With --likelihood the target is a count, a share or a positive amount;
    with --classify it is a label.
    """
    out = output.out
    if model.classify and (family.size or family.likelihood != "gaussian"):
        raise click.UsageError(
            "A classifier has a likelihood of its own: leave out --classify or --likelihood."
        )
    summing.check(given.data)
    check_saved(out, given.data, MODEL, force=output.force)
    with output.console() as console:
        statistics = _sketch_file(given.data)
        if statistics is not None:
            if summing.scheduler is not None:
                raise click.UsageError("Statistics have no rows to sum: leave out --scheduler.")
            if rows.domain is not None:
                raise click.UsageError(
                    "Statistics cover what they were made for: give --domain to orthogp sketch."
                )
            if model.seasons:
                raise click.UsageError("Seasons are learned from rows: leave out --seasons.")
            named = (given.target, given.inputs, given.weights, given.covariates, *family[1:])
            if any(columns is not None for columns in named):
                raise click.UsageError(
                    "Statistics know their columns: leave out --target, --inputs, --weights, "
                    "--covariates, --exposure, --offset and --trials."
                )
            fitted = _from_sketch(model, family, statistics)
        else:
            if given.target is None:
                raise click.UsageError("Missing option '--target': the column to predict.")
            if model.classify:
                from orthogp.cli.labels import fit_labels

                fitted = fit_labels(model, console, given, rows, summing)
            else:
                fitted = _from_rows(model, family, console, given, rows, summing)
        write_out(out, fitted.save)
        console.remove_checkpoint()
        saved = "" if out == STANDARD else f"\nModel: {out}"
        console.result(_heading(fitted) + fitted.summary() + saved, model_values(fitted, out))


def _sketch_file(data: Sequence[str]) -> str | None:
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


def _from_sketch(options: ModelOptions, family: Family, path: str) -> GPRegressor | GPClassifier:
    from orthogp.storage import load_sketch

    sketch, about = load_sketch(path)
    if options.classify:
        classifier = options.classifier().fit_sketch(sketch)
        classifier.about_ = about  # type: ignore[attr-defined]
        return classifier
    model = options.regressor(_shared_likelihood(family, sketch, path))
    if options.mean is None and sketch.mean.kind == "linear":
        model.set_params(mean="linear")
    model.fit_sketch(sketch)
    model.about_ = about  # type: ignore[attr-defined]
    model.covariate_names_ = tuple(about.get("covariates", ()))
    return model


def _shared_likelihood(family: Family, sketch: Sketch | None, path: str) -> str:
    """Return the likelihood of statistics, which must be the one that was named, if any was."""
    from orthogp.errors import InputError

    if sketch is None or family.likelihood == sketch.likelihood:
        return family.likelihood
    if family.likelihood != "gaussian":
        raise InputError(
            f"{path} holds sums for the {sketch.likelihood} likelihood, not for "
            f"{family.likelihood}: leave out --likelihood, or sum the rows again."
        )
    return sketch.likelihood


def _from_rows(
    options: ModelOptions,
    family: Family,
    console: Console,
    given: Given,
    rows: RowOptions,
    summing: Summing,
) -> GPRegressor:
    from orthogp.files.source import as_tables, open_source

    with as_tables(given.data) as files:
        source = open_source(files, **given.columns(), categories=True, size=family.size)
        source = source.with_categories()
        # What follows takes seconds to import: what is wrong with the first rows is said before.
        next(source.blocks(), None)
        from orthogp.errors import OrthogpError
        from orthogp.files.fitting import SAMPLE_ROWS, fit_source
        from orthogp.files.summing import Pass
        from orthogp.report import diagnose
        from orthogp.validation import check_size_column

        check_size_column(family.likelihood, family.size)
        model = options.regressor(family.likelihood)
        if options.seasons:
            source = take_seasons(model, source, options.seasons)
        take_categories(model, source.reading)
        if rows.domain is not None:
            source = covering(model, source, rows.domain)
        with _joined_cluster(summing.scheduler, console) as cluster:
            # If nobody asks for the rows of a cluster, none travels.
            sample_rows = 0 if cluster is not None and not rows.diagnostics else SAMPLE_ROWS
            how = Pass(
                sample_rows=sample_rows,
                batch_rows=summing.batch_rows,
                checkpoint=console.checkpoint,
                every=summing.checkpoint_seconds,
                watcher=console,
                cluster=cluster,
            )
            read = fit_source(model, source, how, rows.memory)
    console.tell_rows(read.source.reading, read.tally)
    if rows.diagnostics and model.likelihood_ is None:
        some = read.sample
        y = some.y[:, 0] if some.one_target else some.y
        covariates = some.covariates if some.num_covariates else None
        try:
            checked = diagnose(model, some.inputs, y, some.weights, covariates)
        except OrthogpError as error:
            console.say(f"No diagnostics: {error}")
        else:
            model.diagnostics_ = checked  # type: ignore[attr-defined]
    return model


def _heading(model: Any) -> str:
    about = model.about_
    if "targets" not in about:
        return ""
    return f"{about['source']}: {', '.join(about['inputs'])} → {', '.join(about['targets'])}\n"


def model_values(model: Any, out: str) -> dict[str, Any]:
    """Return what is known of a model, for programs."""
    about = getattr(model, "about_", {})
    shared = {
        "model": out,
        "kind": type(model).__name__,
        **{name: value for name, value in about.items() if name != "rows"},
        "elbo": model.elbo_,
        "status": model.status_,
    }
    if hasattr(model, "classes_"):
        kernels = model.kernel_ if isinstance(model.kernel_, tuple) else (model.kernel_,)
        return shared | {
            "rows": model.num_rows_,
            "classes": list(model.classes_),
            "kernels": [_kernel_values(kernel) for kernel in kernels],
            "seconds": dict(model.timings_),
        }
    shared |= {"kernel": _kernel_values(model.kernel_)}
    if hasattr(model, "window_"):
        return shared
    shared |= {"noise_variance": model.noise_variance_}
    if getattr(model, "likelihood_", None) is not None:
        shared |= {"likelihood": model.likelihood, "dispersion": model.dispersion_}
        del shared["noise_variance"]
    if not hasattr(model, "certificate_"):
        return shared
    certificate = model.certificate_
    return shared | {
        "rows": int(model.statistics_.rows),
        "effects": _effects(model),
        "engine": model.engine_,
        "trials": [trial._asdict() for trial in model.trials_],
        "num_features": model.num_features_,
        "upper_bound": model.upper_bound_,
        "certified": bool(certificate.holds),
        "certificate": certificate.kind,
        "gap": certificate.gap,
        "mean_error": certificate.mean_error,
        "variance_error": certificate.variance_error,
        "sd_error": certificate.sd_error,
        "seconds": dict(model.timings_),
    }


def _kernel_values(kernel: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": type(primitive).__name__,
            "columns": None if dims is None else list(dims),
            **primitive.parameters(),
        }
        for primitive, dims in kernel.primitives()
    ]


def _effects(model: Any) -> list[dict[str, Any]]:
    """Return name, value and standard error of each covariate's effect."""
    if not model.covariate_names_:
        return []
    effects = model.effects_
    return [
        {"covariate": name, "effect": value, "standard_error": error}
        for name, value, error in zip(
            effects.names, effects.values, effects.standard_errors, strict=True
        )
    ]


# ---------------------------------------------------------------------- statistics


class LatticeOptions(NamedTuple):
    """What decides the lattice of statistics: the model, the box, or other statistics."""

    kernel: str
    mean: str | None
    domain: list[Interval] | None
    lattice_of: Path | None


@click.command(epilog=_SKETCH_EXAMPLES, short_help="Sum the rows of files, to fit models later.")
@data_options
@kernel_option
@mean_option
@likelihood_options
@click.option(
    "--domain",
    type=INTERVALS,
    metavar="INTERVALS",
    help="The range of each input over all pieces of the data: 0:10,-5:5, or between dates: "
    "2024-01-01:2024-12-31. It saves a scan, and pieces of the same domain can be merged.",
)
@click.option(
    "--lattice-of",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sum on the lattice of other statistics, so that both can be merged.",
)
@summing_options
@output_options("Where the statistics go.")
@gather(given=Given, wanted=LatticeOptions, family=Family, summing=Summing, output=Output)
def sketch(
    given: Given, wanted: LatticeOptions, family: Family, summing: Summing, output: Output
) -> None:
    """Sum the rows of files in one pass, for models to be fitted later.

    Memory stays bounded however large the files are. The statistics serve any kernel; of more than
    three inputs, any additive one. They hold sums, from which rows can be found out: treat them as
    you treat the rows.
    """
    from orthogp.files.source import as_tables

    summing.check(given.data)
    also = () if wanted.lattice_of is None else (str(wanted.lattice_of),)
    check_saved(output.out, (*given.data, *also), SKETCH, force=output.force)
    with output.console() as console:
        with as_tables(given.data) as files:
            given = given._replace(data=tuple(files))
            found, about = _sum(console, given, wanted, family, summing)
        _save(console, output, found, about)
        console.remove_checkpoint()


@click.command(epilog=_MERGE_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="A B...")
@output_options("Where the sum goes.")
@gather(output=Output)
def merge(files: tuple[str, ...], output: Output) -> None:
    """Add up statistics of different rows.

    They must be of the same columns and on the same lattice: made with --lattice-of, or with the
    same --domain.
    """
    from orthogp.errors import InputError, LatticeMismatchError
    from orthogp.files.summing import add_sketches
    from orthogp.storage import load_sketch

    check_output(output.out, files, force=output.force, like=SKETCH)
    with output.console() as console:
        _check_different(files)
        total, about = load_sketch(files[0])
        for path in files[1:]:
            other, its = load_sketch(path)
            for name in _SHARED:
                if (about.get(name) or None) != (its.get(name) or None):
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
        _save(console, output, total, about)


def _check_different(files: Sequence[str]) -> None:
    """Raise `InputError` if two files hold the same statistics, whose rows would count twice."""
    from orthogp.errors import InputError

    for first, second in combinations(files, 2):
        if not (Path(first).is_file() and Path(second).is_file()):
            continue
        if filecmp.cmp(first, second, shallow=False):
            which = f"{first} is named twice" if first == second else f"{second} equals {first}"
            raise InputError(f"{which}: its rows would count twice, so name each file once.")


def _save(console: Console, output: Output, found: Sketch, about: dict[str, Any]) -> None:
    """Write statistics, and say so."""
    from orthogp.storage import save_sketch

    write_out(output.out, lambda path: save_sketch(path, found, about))
    columns = f"{', '.join(about.get('inputs', []))} → {', '.join(about.get('targets', []))}"
    text = f"Statistics of {found.statistics.rows:,.0f} rows, {columns}: {output.where}"
    values = {"statistics": output.out, **about, "extent": found.extent._asdict()}
    console.result(text, values)


def _sum(
    console: Console,
    given: Given,
    wanted: LatticeOptions,
    family: Family,
    summing: Summing,
) -> tuple[Sketch, dict[str, Any]]:
    """Return the sums of files, and a description of their rows."""
    from orthogp.files.columns import scale_from_json
    from orthogp.files.source import open_source

    columns: dict[str, Any] = {**given.columns(), "size": family.size or None}
    times = None
    like, extent = None, None
    if wanted.lattice_of is not None:
        from orthogp.storage import load_sketch

        like, about = load_sketch(wanted.lattice_of)
        columns, extent = _same_columns(columns, about), like.extent
        times = [scale_from_json(scale) for scale in about.get("times", [])] or None
    if columns["targets"] is None:
        raise click.UsageError("Missing option '--target': the column to predict.")
    source = open_source(given.data, **columns)
    if times is not None:
        source = source.with_times(times)
    # Only now, since it takes seconds: what is wrong with the data is said before.
    from orthogp import GPRegressor
    from orthogp.files.fitting import about_rows, begin_like
    from orthogp.files.summing import Pass, sum_files
    from orthogp.validation import check_size_column

    likelihood = _shared_likelihood(family, like, str(wanted.lattice_of))
    check_size_column(likelihood, columns["size"])
    estimator = GPRegressor(wanted.kernel, mean=mean_of(wanted.mean), likelihood=likelihood)
    if wanted.domain is not None:
        source = scaled_for(source, wanted.domain)
        extent = domain_in_numbers(wanted.domain, source.reading)
    begin = begin_like(estimator, len(source.reading.inputs), like)
    with _joined_cluster(summing.scheduler, console) as cluster:
        how = Pass(
            extent=extent,
            batch_rows=summing.batch_rows,
            checkpoint=console.checkpoint,
            every=summing.checkpoint_seconds,
            watcher=console,
            cluster=cluster,
        )
        streamed = sum_files(source, begin, how)
    console.tell_rows(streamed.source.reading, streamed.tally)
    return streamed.sketch, about_rows(streamed.source, streamed.tally)


def _same_columns(columns: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of other statistics; those named must be the same."""
    from orthogp.errors import InputError

    columns = dict(columns)
    for name in ("targets", "inputs", "weights", "covariates", "size"):
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
def _joined_cluster(scheduler: str | None, console: Console) -> Iterator[Cluster | None]:
    """Give the cluster of a scheduler for as long as it is needed, `None` if there is no address.

    Says in the end what travelled.
    """
    if scheduler is None:
        yield None
        return
    from orthogp.files.cluster import Cluster

    # Errors are reported once, by orthogp.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with Cluster(scheduler) as cluster:
        threads, before = cluster.num_threads, cluster.moved()
        workers = "1 thread" if threads == 1 else f"{threads} threads"
        console.say(f"The scheduler at {scheduler} has workers with {workers}.")
        yield cluster
        moved = max(cluster.moved() - before, 0)
        console.say(f"The workers sent each other {moved / 1e6:,.1f} MB of sums.")
