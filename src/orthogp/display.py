"""DisplayMixin: estimators that notebooks can show."""

from __future__ import annotations


class DisplayMixin:
    """Adds `plot` and a rich HTML representation."""
