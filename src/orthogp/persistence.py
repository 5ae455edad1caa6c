"""PersistenceMixin: estimators that can be saved and loaded."""

from __future__ import annotations

import os
from typing import Self


class PersistenceMixin:
    """Adds `save` and `load`.

    A file holds numbers and texts, never code, and of the rows only their sums (but for
    `features="exact"`, whose posterior needs the rows themselves); see docs/format.md.
    """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file, whole or not at all.

        Its attributes `about_` (texts, numbers, lists and mappings) and `diagnostics_` are kept
        too, if it has them. Kernels and features of a user's own cannot be kept.
        """
        # Here, since files know of every estimator, and this is a part of each.
        from orthogp.storage.models import write_model

        write_model(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the model that `save` wrote; it predicts, updates and reports as before.

        Raises `FileError`, with a sentence, for files that are damaged, foreign, of another kind of
        model or of a newer format.
        """
        from orthogp.storage.models import read_model

        return read_model(path, cls)
