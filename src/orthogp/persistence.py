"""What files can hold: estimators and statistics."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Self


class Storable:
    """What a file can hold.

    A file holds numbers and texts, never code, and of the rows only their sums (the engines "exact"
    and "neighbours" need the rows themselves, and keep them); see docs/format.md.
    """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all.

        Of an estimator, the attributes `about_` (texts, numbers, lists and mappings) and
        `diagnostics_` are kept too, if it has them. A user's kernels and features are kept once
        their classes are registered: `orthogp.storage.register(MyKernel)`.
        """
        _storage().save(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `save` wrote; a model predicts, updates and reports as before.

        Raises `FileError`, with a sentence, for files that are damaged, foreign, of another kind or
        of a newer format.
        """
        return _storage().load(path, cls)


def _storage() -> Any:
    # By name: storage imports every class that a file can hold, and none of them imports storage.
    return import_module("orthogp.storage")
