"""DisplayMixin: estimators that notebooks can show."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.component_plots import draw_components
from orthogp.errors import InputError
from orthogp.fit_plots import (
    MEAN_COLOURS,
    SD_COLOURS,
    Rows,
    draw_curve,
    draw_maps,
    draw_probabilities,
    field_maps,
    probability_maps,
    some_rows,
)
from orthogp.inference.components import AdditivePosterior
from orthogp.labels import data_range, labels_of
from orthogp.plots import check_format, save
from orthogp.report import describe_engine, describe_evidence, guarantee
from orthogp.validation import check_inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TABLE = "border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .5em"
_HEAD = "font-weight: 600; padding: .15em 1.2em .15em 0; text-align: left; vertical-align: top"
_CELL = "padding: .15em 0; text-align: left"


class DisplayMixin:
    """Adds `plot` and a rich HTML representation."""

    def plot(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        target: int = 0,
        path: str | Path | None = None,
    ) -> Figure:
        """Return a matplotlib figure of the fit, written to a file if a path is given.

        With one input, the mean and its bands (of a classifier, probabilities); with two, maps of
        mean and standard deviation (of a classifier, probabilities), and with three, the same in
        the middle of the third; of an additive model, its components.

        Parameters
        ----------
        X, y : arrays, optional
            Rows to draw as points, with a single input; without them the figure shows what
            `diagnostics_` know of the rows, if the model has any.
        target : int
            Which target, if y has several columns.
        path : str or Path, optional
            A name that ends in .png, .pdf or .svg.
        """
        check_is_fitted(self, "posterior_")
        if path is not None:
            check_format(Path(path))
        number = len(getattr(self, "target_scale_", [1.0]))
        if not 0 <= target < number:
            raise InputError(f"target must be one of 0 to {number - 1}, got {target!r}.")
        figure = self._draw(self._rows_to_draw(X, y, target), target)
        if path is not None:
            save(figure, Path(path))
        return figure

    def _draw(self, rows: Rows | None, target: int) -> Figure:
        model: Any = self
        labels, found = labels_of(model), getattr(model, "diagnostics_", None)
        classifier = hasattr(model, "classes_")
        if isinstance(model.posterior_, AdditivePosterior) and not classifier:
            ylabel = f"effect on {labels.target(target)}"
            components = [
                replace(own, name=" × ".join(labels.inputs[c] for c in own.columns))
                for own in model.components()
            ]
            return draw_components(components, labels.inputs, target=target, ylabel=ylabel)
        if len(model.columns_) == 1:
            if classifier:
                return draw_probabilities(model, labels, found)
            binned = Rows.binned(found, target)
            return draw_curve(model, labels, binned if rows is None else rows, target=target)
        columns, box = [int(c) for c in model.columns_], data_range(model, found)
        third = None if len(columns) == 2 else float(box.lower[2] + box.upper[2]) / 2
        at = "" if third is None else f", {labels.input(columns[2])} = {third:.4g}"
        if not classifier:
            return draw_maps(
                field_maps(model, box, target=target, third=third),
                labels,
                columns,
                titles=[f"Mean{at}", f"Standard deviation{at}"],
                bars=[labels.target(target)] * 2,
                colours=[MEAN_COLOURS, SD_COLOURS],
            )
        maps, names = probability_maps(model, box, third), [str(own) for own in model.classes_]
        if len(maps) == 2:
            maps, names = maps[1:], names[1:]
        return draw_maps(
            maps,
            labels,
            columns,
            titles=[f"{name}{at}" for name in names],
            bars=[f"probability of {name}" for name in names],
            colours=[SD_COLOURS] * len(maps),
            limits=[(0.0, 1.0)] * len(maps),
            contour=0.5,
        )

    def _rows_to_draw(self, X: ArrayLike | None, y: ArrayLike | None, target: int) -> Rows | None:
        model: Any = self
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
        own = check_inputs(model, inputs)[:, model.columns_[0]]
        values: NDArray = np.asarray(y, dtype=np.float64).reshape(len(own), -1)
        return some_rows(own, values[:, target if values.shape[1] > 1 else 0])

    def _repr_html_inner(self) -> str:
        """Return the learned model as a table above scikit-learn's display of the parameters."""
        display = super()._repr_html_inner()  # type: ignore[misc]
        return _learned_table(self) + display

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = _learned_table(self) + bundle["text/html"]
        return bundle


def _learned_table(model: Any) -> str:
    """Return what a fitted model has learned as a compact table; nothing if it is not fitted."""
    if not hasattr(model, "posterior_"):
        return ""
    rows = _classifier_rows(model) if hasattr(model, "classes_") else _regressor_rows(model)
    body = "".join(
        f'<tr><th scope="row" style="{_HEAD}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table style="{_TABLE}">{body}</table>'


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
