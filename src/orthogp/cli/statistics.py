"""Files of statistics among the arguments, where they are wanted and where models are."""

from __future__ import annotations

from collections.abc import Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

from orthogp.errors import InputError

_ENDING = ".orthogp"
_SKETCH = "sketch"


def sketch_file(data: Sequence[str]) -> str | None:
    """Return the file of statistics that the data are, `None` if they are rows."""
    from orthogp.storage import read_header

    named = [name for name in data if name.endswith(_ENDING) and not has_magic(name)]
    if not named:
        return None
    for name in named:
        if not Path(name).exists():
            raise InputError(f"There is no file {name}: check its name.")
    if len(data) > 1:
        raise InputError(
            "Statistics are fitted one file at a time: add them up with orthogp merge first."
        )
    kind = read_header(named[0]).kind
    if kind != _SKETCH:
        raise InputError(
            f"{named[0]} holds a {kind}, not rows or statistics: name the data to fit it to."
        )
    return named[0]


def load_fitted(path: str, name: str) -> Any:
    """Return the model in a file; `name` is what the user calls it."""
    from orthogp.storage import load_model, read_header

    if Path(path).is_file() and read_header(path).kind == _SKETCH:
        raise InputError(
            f"{name} holds statistics, not a model: fit one by orthogp fit {name} --out "
            "model.orthogp."
        )
    return load_model(path)
