"""PersistenceMixin: estimators that can be saved and loaded."""

from __future__ import annotations


class PersistenceMixin:
    """Adds `save` and `load`."""
