"""What `plot` draws, and what notebooks show of a fitted model."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError
from orthogp.report.components import (
    class_parts,
    draw_components,
    effect_on_odds,
    is_additive,
    parts_of,
    renamed,
)
from orthogp.report.figures import (
    MEAN_COLOURS,
    SD_COLOURS,
    Rows,
    draw_curve,
    draw_maps,
    draw_probabilities,
    draw_probability_maps,
    draw_slices,
    field_maps,
    probability_maps,
    some_rows,
)
from orthogp.report.names import data_range, names_of
from orthogp.report.plots import check_format, save
from orthogp.report.summary import describe_engine, describe_evidence, guarantee
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.validation import check_inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TABLE = "border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .5em"
_HEAD = "font-weight: 600; padding: .15em 1.2em .15em 0; text-align: left; vertical-align: top"
_CELL = "padding: .15em 0; text-align: left"


def plot_model(
    model: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    target: int = 0,
    path: str | Path | None = None,
) -> Figure:
    """Return a figure of a fitted model; see `GPRegressor.plot`."""
    check_is_fitted(model, "posterior_")
    if path is not None:
        check_format(Path(path))
    number = len(getattr(model, "target_scale_", [1.0]))
    if not 0 <= target < number:
        raise InputError(f"target must be one of 0 to {number - 1}, got {target!r}.")
    rows = _rows_to_draw(model, X, y, target)
    draw = _draw_classifier if hasattr(model, "classes_") else _draw_regressor
    figure = draw(model, rows, target)
    if path is not None:
        save(figure, Path(path))
    return figure


def _draw_regressor(model: Any, rows: Rows | None, target: int) -> Figure:
    names, found = names_of(model), getattr(model, "diagnostics_", None)
    label = names.target(target)
    if is_additive(model):
        components = renamed(parts_of(model).components(), names)
        effect = f"effect on {label}"
        return draw_components(components, names.inputs, target=target, ylabel=effect)
    columns, box = [int(c) for c in model.columns_], data_range(model, found)
    if len(columns) == 1:
        rows = Rows.binned(found, target) if rows is None else rows
        return draw_curve(model, names, rows, target=target)
    if len(columns) > MAX_DIMS:
        return draw_slices(model, names, box, target=target)
    third = None if len(columns) == 2 else float(box.lower[2] + box.upper[2]) / 2
    at = "" if third is None else f", {names.input(columns[2])} = {third:.4g}"
    return draw_maps(
        field_maps(model, box, target=target, third=third),
        names,
        columns,
        titles=[f"Mean{at}", f"Standard deviation{at}"],
        bars=[label, label],
        colours=[MEAN_COLOURS, SD_COLOURS],
    )


def _draw_classifier(model: Any, rows: Rows | None, target: int) -> Figure:
    names, found = names_of(model), getattr(model, "diagnostics_", None)
    classes = list(model.classes_)
    if is_additive(model):
        # With several classes the first: a figure has room for the components of one.
        label = classes[0] if len(classes) > 2 else classes[1]
        components = renamed(class_parts(model, label).components(), names)
        return draw_components(components, names.inputs, target=0, ylabel=effect_on_odds(label))
    columns, box = [int(c) for c in model.columns_], data_range(model, found)
    if len(columns) == 1:
        return draw_probabilities(model, names, found)
    third = None if len(columns) == 2 else float(box.lower[2] + box.upper[2]) / 2
    at = "" if third is None else f", {names.input(columns[2])} = {third:.4g}"
    shown = slice(1, None) if len(classes) == 2 else slice(None)
    maps = probability_maps(model, box, third)[shown]
    return draw_probability_maps(maps, names, columns, classes[shown], at)


def _rows_to_draw(model: Any, X: ArrayLike | None, y: ArrayLike | None, target: int) -> Rows | None:
    if X is None and y is None:
        return None
    if X is None or y is None:
        raise InputError("Give both X and y, or neither.")
    if len(model.columns_) != 1 or hasattr(model, "classes_"):
        raise InputError(
            "Rows are drawn with regressions on a single input: call plot() without X and y."
        )
    inputs = np.asarray(X) if np.ndim(X) == 1 else X
    inputs = inputs[:, None] if isinstance(inputs, np.ndarray) and inputs.ndim == 1 else inputs
    x = check_inputs(model, inputs)[:, model.columns_[0]]
    values: NDArray = np.asarray(y, dtype=np.float64).reshape(len(x), -1)
    return some_rows(x, values[:, target if values.shape[1] > 1 else 0])


def learned_table(model: Any) -> str:
    """Return what a fitted model has learned as a table in HTML; nothing if it is not fitted."""
    if not hasattr(model, "posterior_"):
        return ""
    rows = _classifier_rows(model) if hasattr(model, "classes_") else _regressor_rows(model)
    body = "".join(
        f'<tr><th scope="row" style="{_HEAD}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table style="{_TABLE}">{body}</table>'


def with_table(model: Any, bundle: dict[str, str]) -> dict[str, str]:
    """Return what a notebook is given to show, with the learned model above its HTML."""
    if "text/html" in bundle:
        bundle["text/html"] = learned_table(model) + bundle["text/html"]
    return bundle


def _regressor_rows(model: Any) -> list[tuple[str, str]]:
    features = [] if model.features_ is None else [("features", f"M = {model.num_features_}")]
    return [
        ("rows", f"{model.statistics_.rows:,.0f}"),
        ("kernel", repr(model.kernel_)),
        ("noise", f"standard deviation {np.sqrt(model.noise_variance_):.4g}"),
        ("engine", describe_engine(model)),
        *features,
        ("log p(y)", describe_evidence(model)),
        ("certificate", guarantee(model)),
        ("seconds", f"{model.timings_['total']:.2f}"),
    ]


def _classifier_rows(model: Any) -> list[tuple[str, str]]:
    kernels = model.kernel_ if isinstance(model.kernel_, tuple) else (model.kernel_,)
    names = model.classes_ if len(kernels) > 1 else model.classes_[1:]
    return [
        ("rows", f"{model.num_rows_:,}"),
        ("classes", ", ".join(map(str, model.classes_))),
        *((f"kernel of {name}", repr(own)) for name, own in zip(names, kernels, strict=True)),
        ("log p(y)", f"at least {model.elbo_:,.3f}"),
        ("seconds", f"{model.timings_['total']:.2f}"),
    ]
