"""Checks of a fitted model by its own rows, summed up in arrays of fixed size."""

from orthogp.diagnostics.checks import diagnose
from orthogp.diagnostics.results import (
    ClassificationDiagnostics,
    Diagnostics,
    RegressionDiagnostics,
)

__all__ = ["ClassificationDiagnostics", "Diagnostics", "RegressionDiagnostics", "diagnose"]
