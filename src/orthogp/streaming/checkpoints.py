"""How far a pass over files has come, noted so that it can go on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from orthogp.errors import OrthogpError
from orthogp.learning.sketch import Sketch
from orthogp.streaming.samples import RowSample
from orthogp.tables.pieces import Piece, Tally
from orthogp.tables.source import RowSource
from orthogp.tables.times import TimeScale

#: Seconds between two checkpoints.
EVERY = 60.0
_KEY = "checkpoint"


class Saved(NamedTuple):
    """How far a pass has come.

    Attributes
    ----------
    sketch : Sketch or None
        The sums so far.
    place, rest
        The piece that is being read, and what is left of it.
    tally : Tally
    times : tuple of TimeScale or None
        The units of the inputs' date-times.
    sample : RowSample
    """

    sketch: Sketch | None
    place: int
    rest: Piece | None
    tally: Tally
    times: tuple[TimeScale | None, ...]
    sample: RowSample


class Checkpoint:
    """A file that says how far a pass has come, replaced every so often.

    It serves only a pass over the same files with the same settings: `fingerprint` tells.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str, every: float = EVERY):
        self._path = Path(path)
        self._fingerprint = fingerprint
        self._every = every
        self._last = time.monotonic()

    def __str__(self) -> str:
        return str(self._path)

    def load(self) -> Saved | None:
        """Return where the last run was, `None` if it left nothing or was about other rows."""
        from orthogp.storage import load_sketch

        if not self._path.is_file():
            return None
        try:
            sketch, about = load_sketch(self._path)
        except OrthogpError:
            return None
        noted = about.get(_KEY, {})
        if noted.get("fingerprint") != self._fingerprint:
            return None
        rest = noted["rest"]
        return Saved(
            sketch,
            int(noted["index"]),
            None if rest is None else Piece(*rest),
            Tally(*noted["tally"]),
            tuple(TimeScale.from_json(scale) for scale in noted["times"]),
            RowSample.from_json(noted["sample"]),
        )

    def note(self, saved: Saved) -> None:
        """Write how far the pass has come, if the last note is old enough."""
        from orthogp.storage import save_sketch

        if time.monotonic() - self._last < self._every:
            return
        assert saved.sketch is not None
        noted: dict[str, Any] = {
            "fingerprint": self._fingerprint,
            "index": saved.place,
            "rest": None if saved.rest is None else list(saved.rest),
            "tally": list(saved.tally),
            "times": [None if scale is None else scale.to_json() for scale in saved.times],
            "sample": saved.sample.to_json(),
        }
        save_sketch(self._path, saved.sketch, {_KEY: noted})
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the pass has reached its end."""
        with suppress(OSError):
            self._path.unlink()


def fingerprint(source: RowSource, settings: dict[str, Any]) -> str:
    """Return a code that changes with the files, the columns and the settings of a pass."""
    from orthogp import __version__

    files = []
    for path in source.paths:
        stat = os.stat(path)
        files.append([os.path.abspath(path), stat.st_size, stat.st_mtime_ns])
    reading = source.reading
    content = {
        "version": __version__,
        "files": files,
        "columns": [reading.inputs, reading.targets, reading.weights],
        "skip_bad": reading.skip_bad,
        "settings": settings,
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
