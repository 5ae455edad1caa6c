"""Files of statistics among the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orthogp.errors import InputError

_ENDING = ".orthogp"
_SKETCH = "sketch"


def sketch_file(data: Sequence[str]) -> str | None:
    """Return the file of statistics that the data are, `None` if they are rows."""
    from orthogp.storage import read_header

    named = [name for name in data if name.endswith(_ENDING) and Path(name).is_file()]
    if not named:
        return None
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
