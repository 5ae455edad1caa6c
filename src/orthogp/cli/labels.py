"""`orthogp fit --classify`: labels in a column of a file, and a classifier that learns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orthogp.cli.options import covering, take_categories

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orthogp.classifier import GPClassifier
    from orthogp.cli.console import Console
    from orthogp.cli.fit import ModelOptions, RowOptions
    from orthogp.cli.options import Given, Summing
    from orthogp.files.columns import Tally
    from orthogp.files.source import RowSource


def fit_labels(
    options: ModelOptions, console: Console, given: Given, rows: RowOptions, summing: Summing
) -> GPClassifier:
    """Return a classifier fitted to the rows of files, which are read at once."""
    from orthogp.errors import OrthogpError
    from orthogp.files.source import as_tables, open_source

    label = _check_usage(options, given, summing)
    with as_tables(given.data) as files:
        source = open_source(
            files,
            (),
            given.inputs,
            weights=given.weights,
            skip_bad=given.skip_bad,
            keep_missing=True,
            keep=[label],
            categories=True,
        ).with_categories()
        # Only now, since it takes seconds: what is wrong with the data is said before.
        from orthogp.files.fitting import about_rows

        model = options.classifier()
        take_categories(model, source.reading)
        if rows.domain is not None:
            source = covering(model, source, rows.domain)
        source = source.scaled()
        columns, labels, tally = _read(source, label, console)
    d = len(source.reading.inputs)
    X, weights = columns[:d].T, None if given.weights is None else columns[d]
    console.begin("learning", None)
    # Sentences on how the fit ends name the columns.
    model.about_ = {"inputs": list(source.reading.inputs)}  # type: ignore[attr-defined]
    model.fit(X, labels, weights)
    about: dict[str, Any] = about_rows(source, tally) | {"targets": [label]}
    model.about_ = about  # type: ignore[attr-defined]
    console.tell_rows(source.reading, tally)
    if rows.diagnostics:
        try:
            model.diagnose(X, labels, weights)
        except OrthogpError as error:
            console.say(f"No diagnostics: {error}")
    return model


def _check_usage(options: ModelOptions, given: Given, summing: Summing) -> str:
    """Return the column of labels; raise an error of usage for what classifiers do not have."""
    if given.target is None or len(given.target) != 1:
        raise click.UsageError("A classifier has one target: name one column.")
    if summing.scheduler is not None:
        raise click.UsageError("A classifier needs all rows: leave out --scheduler.")
    if (options.features, options.solver) != ("auto", "auto"):
        raise click.UsageError("A classifier has one engine: leave out --features and --solver.")
    if options.seasons:
        raise click.UsageError("A classifier has no seasons: leave out --seasons.")
    if given.covariates is not None:
        raise click.UsageError("A classifier has no covariates: leave out --covariates.")
    return given.target[0]


def _read(
    source: RowSource, label: str, console: Console
) -> tuple[NDArray[np.float64], NDArray[Any], Tally]:
    """Return the columns and the labels, as text, of rows that lack neither."""
    import numpy as np

    from orthogp.errors import InputError
    from orthogp.files.columns import MISSING, Tally

    columns, labels, tally = [], [], Tally()
    console.begin("reading", source.num_rows)
    for _, block in source.blocks():
        if not block.columns.shape[1]:
            tally = tally.plus(block.tally)
            continue
        texts = np.array(
            ["" if own is None else str(own).strip() for own in list_of(block.kept[0])]
        )
        there = np.array([text.lower() not in MISSING for text in texts])
        there &= ~np.isnan(block.columns).any(axis=0)
        columns.append(block.columns[:, there])
        labels.append(texts[there])
        met, used = block.columns.shape[1], int(there.sum())
        tally = tally.plus(block.tally._replace(used=used, missing=met - used))
        console.advance(block.tally.met)
    if not tally.used:
        raise InputError(
            f"{source.description} has no row with a label in {label!r} and a number in each of "
            f"{', '.join(source.reading.names)}."
        )
    return np.concatenate(columns, axis=1), np.concatenate(labels), tally


def list_of(column: Any) -> list[Any]:
    """Return a column that was handed on as it is, of NumPy or of pyarrow."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column.tolist()
