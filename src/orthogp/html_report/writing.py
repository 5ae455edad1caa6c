"""render_report and write_report: a fitted model as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from orthogp.diagnostics import ClassificationDiagnostics, Diagnostics, RegressionDiagnostics
from orthogp.errors import InputError
from orthogp.html_report.checks import calibration_section, residuals_section, spectrum_section
from orthogp.html_report.classifier_sections import classifier_sections
from orthogp.html_report.fit_section import fit_section
from orthogp.html_report.page import Figures, page
from orthogp.html_report.words import (
    certificate_section,
    loading_section,
    summary_section,
    timings_section,
)
from orthogp.labels import Labels, labels_of
from orthogp.plots import require_matplotlib

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

# What the file of a model is called where nobody says so.
_MODEL_FILE = "m.orthogp"


def write_report(
    model: GPRegressor | GPClassifier,
    path: str | Path,
    *,
    title: str | None = None,
    diagnostics: Diagnostics | None = None,
    model_file: str | None = None,
) -> Path:
    """Return the path of a page about a fitted model, having written it.

    Parameters
    ----------
    title : str, optional
        The page's heading; the target's name unless given.
    diagnostics : Diagnostics, optional
        What `diagnose` found; `model.diagnostics_` unless given. Without any, the sections that
        need them say so.
    model_file : str, optional
        The file that holds the model, for the lines that show how to load it.
    """
    path = Path(path)
    if not path.parent.is_dir():
        # Before the work, not after it.
        raise InputError(f"The report cannot go to {path}: {path.parent} is no directory.")
    text = render_report(model, title=title, diagnostics=diagnostics, model_file=model_file)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The report cannot go to {path} ({error.strerror}): give another path."
        ) from error
    return path


def render_report(
    model: GPRegressor | GPClassifier,
    *,
    title: str | None = None,
    diagnostics: Diagnostics | None = None,
    model_file: str | None = None,
) -> str:
    """Return a page about a fitted model as HTML; see `write_report`."""
    check_is_fitted(model, "posterior_")
    require_matplotlib()
    found = _checked_diagnostics(model, diagnostics)
    labels, figures = labels_of(model), Figures()
    if hasattr(model, "classes_"):
        sections = classifier_sections(model, labels, found, figures)
    else:
        sections = [
            summary_section(model, labels, found),
            fit_section(model, labels, found, figures),
            spectrum_section(model, labels, found, figures),
            residuals_section(model, labels, found, figures),
            calibration_section(labels, found, figures),
            certificate_section(model, checked=found is not None),
        ]
    sections += [timings_section(model), loading_section(model, labels, model_file or _MODEL_FILE)]
    heading = title or _title(labels)
    return page(heading, _subtitle(model, labels), sections, "Made by orthogp.")


def _checked_diagnostics(model: Any, given: Diagnostics | None) -> Any:
    """Return the diagnostics to show, those of the model unless others are given, or `None`."""
    found = getattr(model, "diagnostics_", None) if given is None else given
    kind = ClassificationDiagnostics if hasattr(model, "classes_") else RegressionDiagnostics
    if found is not None and not isinstance(found, kind):
        raise InputError(
            f"diagnostics must be those of this model ({kind.__name__}), got "
            f"{type(found).__name__}: use diagnose(model, X, y)."
        )
    return found


def _title(labels: Labels) -> str:
    return f"A Gaussian process for {', '.join(labels.targets)}"


def _subtitle(model: Any, labels: Labels) -> str:
    rows = model.num_rows_ if hasattr(model, "num_rows_") else model.statistics_.rows
    inputs = ", ".join(labels.inputs[int(c)] for c in model.columns_)
    return f"{', '.join(labels.targets)} from {inputs}: {type(model).__name__}, {rows:,.0f} rows"
