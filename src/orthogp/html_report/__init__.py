"""One self-contained HTML page about a fitted model: no scripts, no fonts, no network."""

from orthogp.html_report.writing import render_report, write_report

__all__ = ["render_report", "write_report"]
