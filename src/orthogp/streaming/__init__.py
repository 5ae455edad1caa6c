"""One pass over files of any size: sums, checkpoints, and a sample of the rows."""

from orthogp.streaming.checkpoints import EVERY, Checkpoint, fingerprint
from orthogp.streaming.samples import RowSample
from orthogp.streaming.summing import (
    Silence,
    Streamed,
    Watcher,
    add_sketches,
    sum_files,
    sum_piece,
)

__all__ = [
    "EVERY",
    "Checkpoint",
    "RowSample",
    "Silence",
    "Streamed",
    "Watcher",
    "add_sketches",
    "fingerprint",
    "sum_files",
    "sum_piece",
]
