"""The section that shows what was learned: a curve, maps, slices, or components."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from orthogp.component_plots import draw_components
from orthogp.diagnostics import RegressionDiagnostics
from orthogp.fit_plots import (
    MEAN_COLOURS,
    NARROW,
    SD_COLOURS,
    WIDE,
    Map,
    Rows,
    draw_curve,
    draw_maps,
    field_maps,
    wiggles,
)
from orthogp.html_report.page import Figures, Section, paragraph, side_by_side
from orthogp.inference import Domain
from orthogp.inference.components import AdditivePosterior
from orthogp.labels import Labels, covered_range, data_range

#: Targets and components that are shown at most.
MOST_TARGETS, _MOST_COMPONENTS = 3, 12
# A mean that turns more often is also shown magnified, so much of the rows' range at its end.
_MOST_TURNS, _STRETCH = 24, 0.12
_SLICES = (0.25, 0.5, 0.75)


def fit_section(
    model: Any, labels: Labels, found: RegressionDiagnostics | None, figures: Figures
) -> Section:
    """Return the fit of a regressor, target by target."""
    additive = isinstance(model.posterior_, AdditivePosterior)
    parts = []
    number = len(model.target_scale_)
    for target in range(min(number, MOST_TARGETS)):
        if number > 1:
            parts.append(f"<h3>{escape(labels.targets[target])}</h3>")
        if additive:
            parts.append(_components(model, labels, figures, target))
        elif len(model.columns_) == 1:
            parts.append(_curve(model, labels, found, figures, target))
        else:
            parts.append(_maps(model, labels, found, figures, target))
    if number > MOST_TARGETS:
        parts.append(paragraph(f"The other {number - MOST_TARGETS} targets are not shown."))
    return Section("fit", "Components" if additive else "The fit", "".join(parts))


def _curve(
    model: Any,
    labels: Labels,
    found: RegressionDiagnostics | None,
    figures: Figures,
    target: int,
) -> str:
    rows = Rows.binned(found, target)
    names = f"{labels.targets[target]} over {labels.inputs[int(model.columns_[0])]}"
    caption = (
        "The posterior mean, the band that holds the function with a probability of 95 %, and the "
        "wider band that holds 95 % of new observations, noise included."
    )
    if rows is not None:
        caption += " Grey: the rows, from the least to the largest in each of 256 bins."
    else:
        caption += " Rows are not kept in a model: orthogp.diagnostics.diagnose adds them."
    result = figures.for_any_width(
        lambda size: draw_curve(model, labels, rows, target=target, size=size),
        (WIDE, NARROW),
        f"Posterior mean and 95 % bands of {names}.",
        caption,
    )
    if wiggles(model, target) <= _MOST_TURNS:
        return result
    box, covered = data_range(model, found), covered_range(model)
    length = _STRETCH * (box.upper[0] - box.lower[0])
    stretch = Domain(
        np.array([box.upper[0] - length]),
        np.array([min(box.upper[0] + length / 3, covered.upper[0])]),
    )
    return result + figures.for_any_width(
        lambda size: draw_curve(model, labels, rows, target=target, size=size, stretch=stretch),
        ((WIDE[0], 3.4), NARROW),
        f"The end of the range, magnified: {names}.",
        "The same at the end of the rows' range, magnified.",
    )


def _maps(
    model: Any,
    labels: Labels,
    found: RegressionDiagnostics | None,
    figures: Figures,
    target: int,
) -> str:
    box = data_range(model, found)
    columns = [int(c) for c in model.columns_]
    name, label = labels.targets[target], labels.target(target)
    if len(columns) == 2:
        mean, sd = field_maps(model, box, target=target)
        return side_by_side(
            [
                _map(figures, mean, labels, columns, "Mean", label, MEAN_COLOURS, name),
                _map(figures, sd, labels, columns, "Standard deviation", label, SD_COLOURS, name),
            ]
        ) + paragraph(
            "The posterior mean and standard deviation of the function, over the range of the rows."
        )
    third = labels.inputs[columns[2]]
    at = [box.lower[2] + share * (box.upper[2] - box.lower[2]) for share in _SLICES]
    slices = [field_maps(model, box, target=target, third=value) for value in at]
    drawn: list[list[str]] = []
    for kind, title, colours in (
        (0, "Mean", MEAN_COLOURS),
        (1, "Standard deviation", SD_COLOURS),
    ):
        values = [own[kind].values for own in slices]
        limits = (min(map(np.min, values)), max(map(np.max, values)))
        drawn.append(
            [
                _map(
                    figures,
                    own[kind],
                    labels,
                    columns,
                    f"{title}, {third} = {value:.4g}",
                    label,
                    colours,
                    name,
                    limits,
                )
                for own, value in zip(slices, at, strict=True)
            ]
        )
    pairs = [own for pair in zip(*drawn, strict=True) for own in pair]
    others = ", further inputs in the middle of their ranges" if len(columns) > 3 else ""
    return side_by_side(pairs) + paragraph(
        f"Slices through the posterior at three values of {third}{others}; all means and all "
        "standard deviations on one scale of colours."
    )


def _map(
    figures: Figures,
    own: Map,
    labels: Labels,
    columns: list[int],
    title: str,
    bar: str,
    colours: str,
    name: str,
    limits: tuple[float | None, float | None] = (None, None),
) -> str:
    return figures(
        lambda: draw_maps(
            [own], labels, columns, titles=[title], bars=[bar], colours=[colours], limits=[limits]
        ),
        f"Map: {title.lower()} of {name}, from {own.values.min():.4g} to {own.values.max():.4g}.",
    )


def _components(model: Any, labels: Labels, figures: Figures, target: int) -> str:
    components = [
        replace(own, name=" × ".join(labels.inputs[c] for c in own.columns))
        for own in model.components()
    ]

    def share(component: Any) -> float:
        return float(np.ravel(component.share)[target])

    components.sort(key=share, reverse=True)
    shown = components[:_MOST_COMPONENTS]
    ylabel = f"effect on {labels.target(target)}"
    drawn = [
        figures(
            lambda own=own: draw_components([own], labels.inputs, target=target, ylabel=ylabel),
            f"Effect of {own.name} on {labels.targets[target]}, "
            f"{100 * share(own):.2g} % of the variance.",
        )
        for own in shown
    ]
    rest = np.ravel(model.residual_share_)[target]
    text = (
        "What each term adds to the prediction, with its 95 % band; each is centred over the rows, "
        "whose density stands along the foot. Shares are of the target's variance; "
        f"{100 * rest:.2g} % remain as noise."
    )
    if len(shown) < len(components):
        text += (
            f" The {len(components) - len(shown)} components of the smallest share are left out."
        )
    return side_by_side(drawn, small=True) + paragraph(text)
