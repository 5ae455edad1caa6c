"""The sections that check a regressor: spectrum, residuals, calibration."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from orthogp import diagnostic_plots as plots
from orthogp.diagnostics import RegressionDiagnostics
from orthogp.diagnostics.results import LEVELS
from orthogp.html_report.fit_section import MOST_TARGETS
from orthogp.html_report.page import Figures, Section, paragraph, side_by_side, table
from orthogp.html_report.words import number
from orthogp.inference.components import AdditivePosterior
from orthogp.labels import SINCE, Labels, data_range
from orthogp.spectrum import Spectrum, learned_spectra

# Inputs along which residuals are shown, and components whose spectra are.
_MOST_INPUTS, _MOST_SPECTRA = 7, 8
# A map of the residuals is shown if so many of its cells have rows enough to tell something.
_FEWEST_CELLS = 30
#: What takes the place of checks that were not made.
NO_CHECKS = (
    "These checks need the rows, which a model does not keep: "
    "model.diagnostics_ = orthogp.diagnostics.diagnose(model, X, y) makes them, and so does "
    "orthogp fit where it reads rows instead of statistics."
)


def spectrum_section(
    model: Any, labels: Labels, found: RegressionDiagnostics | None, figures: Figures
) -> Section:
    """Return the learned spectrum against the data's."""
    box = data_range(model, found)
    spectra = learned_spectra(model, box.lower, box.upper)
    largest = _by_share(model)
    spectra.sort(key=lambda own: largest.index(tuple(own.columns)) if largest else 0)
    targets = range(min(len(model.target_scale_), MOST_TARGETS))
    shown = [(own, target) for own in spectra[:_MOST_SPECTRA] for target in targets]
    drawn = [
        spectrum_figure(model, labels, own, figures, target, small=len(shown) > 2)
        for own, target in shown
    ]
    if not drawn:
        body = paragraph("This model's features have no common lattice of frequencies to show.")
        return Section("spectrum", "Spectrum", body)
    text = (
        "The kernel's spectral density, which says how much of the function's variance lies at "
        "which frequency, and the data's: for each band, the power of the posterior's modes "
        "relative to what the model expects of them at these very inputs, so that uneven sampling, "
        "gaps and noise do not bias it. Points off the line ask for another kernel; where the "
        "noise drowns the signal there are none."
    )
    if len(spectra) > _MOST_SPECTRA:
        text += (
            f" Shown are {_MOST_SPECTRA} of {len(spectra)} components, those of the largest share."
        )
    return Section("spectrum", "Spectrum", explained(drawn, text))


def explained(drawn: list[str], text: str) -> str:
    """Return figures with a text below, or beside if there is but one."""
    if len(drawn) == 1:
        return side_by_side([*drawn, f"<div>{paragraph(text)}</div>"])
    return side_by_side(drawn, small=len(drawn) > 2) + paragraph(text)


def spectrum_figure(
    model: Any,
    labels: Labels,
    own: Spectrum,
    figures: Figures,
    target: int = 0,
    *,
    small: bool = False,
) -> str:
    """Return the figure of one spectrum, `small` if there are three in a row."""
    columns = [int(model.columns_[c]) for c in own.columns]
    names = " × ".join(labels.inputs[c] for c in columns)
    if len(columns) == 1:
        unit = labels.units.get(names) or f"unit of {names}"
        if SINCE in unit:
            unit = unit.split(SINCE)[0].removesuffix("s")
        xlabel = f"cycles per {unit}"
    else:
        xlabel = f"waves across the range of {names}"
    several = len(getattr(model, "target_scale_", [1])) > 1
    caption = labels.targets[target] if several else ""
    return figures(
        lambda: plots.draw_spectrum(own, xlabel.replace("$", r"\$"), target=target, small=small),
        f"Learned spectral density over {xlabel}, with the data's in {len(own.bands)} bands.",
        caption,
    )


def residuals_section(
    model: Any, labels: Labels, found: RegressionDiagnostics | None, figures: Figures
) -> Section:
    """Return the residuals of rows left out, one at a time."""
    if found is None:
        return Section("residuals", "Residuals", paragraph(NO_CHECKS))
    columns = [int(c) for c in model.columns_]
    along = _inputs_by_share(model)[:_MOST_INPUTS]
    text = (
        f"Each of {found.rows_used:,} rows is predicted from all others, with the learned "
        "hyperparameters: its residual, in standard deviations of that prediction, should be "
        "standard normal everywhere."
    )
    if len(along) < len(columns):
        text += f" They are shown along the {len(along)} inputs of the largest components."
    body, rows = paragraph(text), []
    for target in range(min(len(found.rmse), MOST_TARGETS)):
        name = labels.targets[target]
        if len(found.rmse) > 1:
            body += f"<h3>{escape(name)}</h3>"
        drawn = [
            figures(
                lambda t=target: plots.draw_residual_counts(found, t),
                f"Histogram of {name}'s standardised residuals beside the standard normal.",
            )
        ]
        drawn += [
            figures(
                lambda t=target, i=i, own=found: plots.draw_residuals_along(
                    own, i, labels.input(columns[i]), t
                ),
                f"Mean and standard deviation of the residuals along {labels.inputs[columns[i]]}.",
            )
            for i in along
        ]
        if np.sum(found.map_count >= plots.FEWEST_ROWS) >= _FEWEST_CELLS:
            drawn.append(
                figures(
                    lambda t=target: plots.draw_residual_map(
                        found, labels.input(columns[0]), labels.input(columns[1]), t
                    ),
                    f"Map of the mean residual over {labels.inputs[columns[0]]} and "
                    f"{labels.inputs[columns[1]]}, in standard errors.",
                )
            )
        body += side_by_side(drawn)
    for target, (mean, sd, skewness, kurtosis) in enumerate(found.residual_moments):
        # Adding zero to what has been rounded leaves no zero with a sign.
        moments = [round(float(value), 3) + 0.0 for value in (mean, sd, skewness, kurtosis)]
        rows.append([labels.targets[target], *(f"{value:.3f}" for value in moments)])
    header = ["target", "mean (0)", "sd (1)", "skewness (0)", "kurtosis (0)"]
    body += table(
        rows,
        header,
        caption="Moments of the standardised residuals (excess kurtosis), and what they should be.",
        numbers=range(1, 5),
    )
    return Section("residuals", "Residuals", body)


def calibration_section(
    labels: Labels, found: RegressionDiagnostics | None, figures: Figures
) -> Section:
    """Return whether predictive probabilities are what they claim to be."""
    if found is None:
        return Section("calibration", "Calibration", paragraph(NO_CHECKS))
    body = ""
    for target in range(min(len(found.rmse), MOST_TARGETS)):
        name = labels.targets[target]
        if len(found.rmse) > 1:
            body += f"<h3>{escape(name)}</h3>"
        body += side_by_side(
            [
                figures(
                    lambda t=target: plots.draw_pit(found, t),
                    f"Histogram of {name}'s predictive probabilities, which should be even.",
                    "The probability that the model, without a row, gave to a value below it. Even "
                    "is right; a hump means bands too wide, horns mean bands too narrow.",
                ),
                figures(
                    lambda t=target: plots.draw_coverage(found, t),
                    f"Coverage of {name}'s predictive intervals against their probability.",
                    "How many rows lie in their predictive intervals. Below the line, bands are "
                    "too narrow.",
                ),
            ]
        )
        rows = [
            [
                f"{100 * level:.0f} %",
                f"{100 * found.coverage[target, i]:.1f} %",
                f"± {100 * found.coverage_error[target, i]:.1f} %",
            ]
            for i, level in enumerate(LEVELS)
        ]
        body += table(
            rows,
            ["interval", "rows inside", "standard error"],
            caption=f"Coverage of {found.rows_used:,} rows left out, one at a time.",
            numbers=[1, 2],
        )
    scores = [
        [labels.targets[i], *(number(part[i]) for part in (found.rmse, found.crps, found.nlpd))]
        for i in range(len(found.rmse))
    ]
    body += table(
        scores,
        ["target", "RMSE", "CRPS", "negative log density"],
        caption="Scores of the predictions of rows left out, less being better.",
        numbers=range(1, 4),
    )
    return Section("calibration", "Calibration", body)


def _by_share(model: Any) -> list[tuple[int, ...]]:
    """Return the columns of an additive model's components, those of the largest share first.

    They are counted among those that the kernel acts on; of other models there are none.
    """
    if not isinstance(model.posterior_, AdditivePosterior):
        return []
    shares = [float(np.mean(component.share)) for component in model.components()]
    columns = [tuple(own) for own in model.posterior_.features.columns]
    return [columns[i] for i in np.argsort(shares)[::-1]]


def _inputs_by_share(model: Any) -> list[int]:
    """Return the positions of all inputs, those of an additive model's largest components first."""
    first = [column for component in _by_share(model) for column in component]
    return list(dict.fromkeys([*first, *range(len(model.columns_))]))
