"""Everything that shows a fitted model: in words, in figures, by checks, and as an HTML page.

Names are loaded when first asked for: an estimator that is only fitted needs no figures.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthogp.report.comparison import Comparison, compare_families
    from orthogp.report.components import Component
    from orthogp.report.diagnostics import (
        ClassificationDiagnostics,
        Diagnostics,
        RegressionDiagnostics,
        diagnose,
    )
    from orthogp.report.page import render_report, write_report

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

_HOMES = {
    "Comparison": "comparison",
    "Component": "components",
    "compare_families": "comparison",
    "render_report": "page",
    "write_report": "page",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'orthogp.report' has no attribute {name!r}")
    return getattr(import_module(f"orthogp.report.{_HOMES.get(name, 'diagnostics')}"), name)
