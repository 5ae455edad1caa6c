"""Everything that shows a fitted model: in words, in figures, by checks, and as an HTML page.

Names are loaded when first asked for: an estimator that is only fitted needs no figures.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthogp.report.comparison import Comparison, compare_families
    from orthogp.report.components import Component
    from orthogp.report.diagnostic_results import (
        ClassificationDiagnostics,
        Diagnostics,
        RegressionDiagnostics,
    )
    from orthogp.report.diagnostics import diagnose
    from orthogp.report.page import render_report, write_report

_HOMES = {
    "ClassificationDiagnostics": "diagnostic_results",
    "Comparison": "comparison",
    "Component": "components",
    "Diagnostics": "diagnostic_results",
    "RegressionDiagnostics": "diagnostic_results",
    "compare_families": "comparison",
    "diagnose": "diagnostics",
    "render_report": "page",
    "write_report": "page",
}

__all__ = [
    "ClassificationDiagnostics",
    "Comparison",
    "Component",
    "Diagnostics",
    "RegressionDiagnostics",
    "compare_families",
    "diagnose",
    "render_report",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'orthogp.report' has no attribute {name!r}")
    return getattr(import_module(f"orthogp.report.{_HOMES[name]}"), name)
