"""The sections of a classifier's page that differ from a regressor's."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from orthogp.component_plots import draw_components
from orthogp.diagnostic_plots import draw_reliability
from orthogp.diagnostics import ClassificationDiagnostics
from orthogp.fit_plots import (
    NARROW,
    WIDE,
    Map,
    draw_maps,
    draw_probabilities,
    probability_maps,
)
from orthogp.html_report.checks import NO_CHECKS, explained, spectrum_figure
from orthogp.html_report.page import (
    Figures,
    Section,
    Tile,
    paragraph,
    side_by_side,
    table,
    tiles,
)
from orthogp.html_report.words import kernel_table
from orthogp.inference.components import AdditivePosterior
from orthogp.inference.domain import show
from orthogp.inference.posterior import Posterior
from orthogp.labels import Labels, data_range
from orthogp.spectrum import latent_spectra

# Classes, components of each and their spectra that are shown at most.
_MOST_CLASSES, _MOST_COMPONENTS, _MOST_SPECTRA = 4, 12, 6


def classifier_sections(
    model: Any, labels: Labels, found: ClassificationDiagnostics | None, figures: Figures
) -> list[Section]:
    """Return summary, fit, spectrum, scores, calibration and bounds of a classifier."""
    return [
        _summary(model, labels, found),
        _fit(model, labels, found, figures),
        _spectrum(model, labels, found, figures),
        _scores(found),
        _calibration(model, found, figures),
        _bounds(model),
    ]


def _per_class(model: Any, attribute: str) -> list[tuple[str, Any]]:
    """Return what is known for each class that has a latent function of its own."""
    value = getattr(model, attribute)
    if isinstance(value, tuple):
        return [(str(name), own) for name, own in zip(model.classes_, value, strict=True)]
    return [(str(model.classes_[1]), value)]


def _summary(model: Any, labels: Labels, found: ClassificationDiagnostics | None) -> Section:
    posteriors = _per_class(model, "posterior_")
    entries = [
        Tile("rows", f"{model.num_rows_:,}"),
        Tile("classes", f"{len(model.classes_)}", ", ".join(map(str, model.classes_[:6]))),
        Tile("features", f"{max(own.features.num_features for _, own in posteriors):,}"),
    ]
    if found is not None:
        entries += [
            Tile("accuracy", f"{100 * found.accuracy:.1f} %", "of the training rows"),
            Tile(
                "log loss",
                f"{found.log_loss:.3f}",
                f"in sample; {found.base_log_loss:.3f} without inputs",
            ),
        ]
    entries.append(Tile("seconds to fit", f"{model.timings_['total']:.3g}"))
    body = tiles(entries)
    for name, kernel in _per_class(model, "kernel_"):
        body += kernel_table(kernel, labels, f"The kernel of the log odds of {name}.")
    facts = [["predictions hold within", show(model.domain_)]]
    facts += [[f"how the fit ended: {name}", text] for name, text in _per_class(model, "status_")]
    if labels.source:
        facts.append(["data", labels.source])
    return Section("summary", "Summary", body + table(facts))


def _fit(
    model: Any, labels: Labels, found: ClassificationDiagnostics | None, figures: Figures
) -> Section:
    columns = [int(c) for c in model.columns_]
    if _is_additive(model):
        return Section("fit", "Components", _components(model, labels, figures))
    if len(columns) == 1:
        caption = "The probability of each class, averaged over the posterior."
        if found is not None:
            caption += " Dots: the share of the class among rows in each of 32 bins."
        body = figures.for_any_width(
            lambda size: draw_probabilities(model, labels, found, size=size),
            (WIDE, NARROW),
            f"Probability of the classes over {labels.inputs[columns[0]]}.",
            caption,
        )
        return Section("fit", "The fit", body)
    box = data_range(model, found)
    third = None if len(columns) == 2 else float(box.lower[2] + box.upper[2]) / 2
    maps = probability_maps(model, box, third)
    chosen = [1] if len(maps) == 2 else list(range(min(len(maps), _MOST_CLASSES)))
    at = "" if third is None else f", {labels.inputs[columns[2]]} = {third:.4g}"
    drawn = [_map(figures, maps[c], labels, columns, str(model.classes_[c]), at) for c in chosen]
    text = "The probability of each class, averaged over the posterior; white: even odds."
    if len(chosen) < len(maps) and len(maps) > 2:
        text += f" The first {len(chosen)} of {len(maps)} classes are shown."
    return Section("fit", "The fit", explained(drawn, text))


def _is_additive(model: Any) -> bool:
    return isinstance(_per_class(model, "posterior_")[0][1], AdditivePosterior)


def _components(model: Any, labels: Labels, figures: Figures) -> str:
    """Return the components of each class's log odds, those of the largest shares first."""
    classes = _per_class(model, "posterior_")
    body = ""
    for i, (name, _) in enumerate(classes[:_MOST_CLASSES]):
        if len(classes) > 1:
            body += f"<h3>{escape(name)}</h3>"
        label = None if len(classes) == 1 else model.classes_[i]
        components = [
            replace(own, name=" × ".join(labels.inputs[c] for c in own.columns))
            for own in model.components(label)
        ]
        components.sort(key=lambda own: own.share, reverse=True)
        drawn = [
            figures(
                lambda own=own, name=name: draw_components(
                    [own], labels.inputs, target=0, ylabel=f"effect on log odds of {name}"
                ),
                f"Effect of {own.name} on the log odds of {name}, {100 * own.share:.2g} % of the "
                "variance.",
            )
            for own in components[:_MOST_COMPONENTS]
        ]
        body += side_by_side(drawn, small=True)
    text = (
        "What each term adds to the log odds, with its 95 % band; each is centred over the rows, "
        "whose density stands along the foot. Shares are of the variance of the mean log odds over "
        "the rows."
    )
    if (left := len(classes[0][1].kernels) - _MOST_COMPONENTS) > 0:
        text += f" The {left} components of the smallest share are left out."
    if len(classes) > _MOST_CLASSES:
        text += f" The first {_MOST_CLASSES} of {len(classes)} classes are shown."
    return body + paragraph(text)


def _map(figures: Figures, own: Map, labels: Labels, columns: list[int], name: str, at: str) -> str:
    return figures(
        lambda: draw_maps(
            [own],
            labels,
            columns,
            titles=[f"{name}{at}"],
            bars=[f"probability of {name}"],
            colours=["cividis"],
            limits=[(0.0, 1.0)],
            contour=0.5,
        ),
        f"Map of the probability of {name}{at}.",
    )


def _spectrum(
    model: Any, labels: Labels, found: ClassificationDiagnostics | None, figures: Figures
) -> Section:
    box = model._extent if _is_additive(model) else data_range(model, found)
    drawn = [
        spectrum_figure(model, labels, spectrum, figures)
        for _, own in _per_class(model, "posterior_")[:_MOST_CLASSES]
        if isinstance(own, Posterior | AdditivePosterior)
        for spectrum in latent_spectra(own, box.lower, box.upper)[:_MOST_SPECTRA]
    ]
    if not drawn:
        return Section("spectrum", "Spectrum", paragraph("Models from batches have none to show."))
    text = (
        "The spectral density of the log odds, as learned, and as the posterior of the modes has "
        "it relative to what the model expects of them. Points off the line ask for another "
        "kernel."
    )
    return Section("spectrum", "Spectrum", explained(drawn, text))


def _scores(found: ClassificationDiagnostics | None) -> Section:
    if found is None:
        return Section("residuals", "Scores", paragraph(NO_CHECKS))
    rows = [
        ["accuracy", f"{100 * found.accuracy:.2f} %", ""],
        ["log loss", f"{found.log_loss:.4f}", f"{found.base_log_loss:.4f}"],
        ["Brier score", f"{found.brier:.4f}", ""],
    ]
    body = table(
        rows,
        ["score", "model", "classes' shares alone"],
        caption=f"In sample, of {found.rows_used:,} training rows: new rows will score less well.",
        numbers=[1, 2],
    )
    return Section("residuals", "Scores", body)


def _calibration(model: Any, found: ClassificationDiagnostics | None, figures: Figures) -> Section:
    if found is None:
        return Section("calibration", "Calibration", paragraph(NO_CHECKS))
    names = model.classes_[1:] if len(found.predicted) == 1 else model.classes_
    drawn = [
        figures(
            lambda i=i, own=found: draw_reliability(own, names, i),
            f"Reliability: observed share of {names[i]} against its predicted probability.",
        )
        for i in range(min(len(found.predicted), _MOST_CLASSES))
    ]
    text = (
        "Of rows to which the model gives a probability, that share should be of the class. In "
        "sample: a model that follows its rows too closely looks better here than it is."
    )
    return Section("calibration", "Calibration", explained(drawn, text))


def _bounds(model: Any) -> Section:
    shares = [own.residual / own.prior_variance for _, own in _per_class(model, "posterior_")]
    estimated = model.inference == "minibatch"
    word = "An estimate" if estimated else "A bound"
    text = (
        "The evidence of the labels is at least the number below; that of the best Gaussian "
        "approximation of the posterior, which is the one that predicts. There is no upper bound "
        "for labels, hence no certificate. The features leave out "
        f"{float(np.max(shares)):.1e} of the prior variance."
    )
    body = f'<p class="verdict open"><strong>{word} from below.</strong> {escape(text)}</p>'
    body += table(
        [["lower bound (ELBO)", f"{model.elbo_:,.3f}"]], ["log p(y)", "nats"], numbers=[1]
    )
    return Section("certificate", "Bounds and certificate", body)
