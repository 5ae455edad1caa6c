"""A few of many rows, at random."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# What a sample may take: it is noted in headers, which are small.
_MOST_BYTES = 1_500_000


class RowSample(NamedTuple):
    """The rows whose numbers, scrambled, are least: every row is as likely as any other.

    Which rows these are depends neither on how the rows are cut into batches nor on a seed.

    Attributes
    ----------
    most : int
        How many rows are kept.
    keys : (n,)
        The scrambled numbers.
    columns : (k, n)
    """

    most: int
    keys: NDArray[np.uint64]
    columns: NDArray[np.float64]

    @classmethod
    def empty(cls, most: int) -> RowSample:
        """Return the sample of no rows."""
        return cls(most, np.empty(0, dtype=np.uint64), np.empty((0, 0)))

    def with_rows(self, first: int, columns: NDArray[np.float64]) -> RowSample:
        """Return the sample of more rows, (k, n), of which the first has that number."""
        num_columns, count = columns.shape
        most = min(self.most, _MOST_BYTES // (8 * (num_columns + 1)))
        if most == 0 or count == 0:
            return self
        keys = _scrambled(np.arange(first, first + count, dtype=np.uint64))
        if len(self.keys) >= most:
            near = np.flatnonzero(keys < self.keys.max())
        else:
            near = np.arange(count)
        if len(near) > most:
            near = near[np.argpartition(keys[near], most - 1)[:most]]
        old = self.columns.reshape(num_columns, -1)
        keys = np.concatenate([self.keys, keys[near]])
        columns = np.concatenate([old, columns[:, near]], axis=1)
        order = np.argsort(keys)[:most]
        return RowSample(self.most, keys[order], columns[:, order])

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON knows it."""
        return {
            "most": self.most,
            "keys": _encode(self.keys),
            "columns": _encode(self.columns),
            "width": len(self.columns),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RowSample:
        """Return the sample that `to_json` gave."""
        keys = np.frombuffer(base64.b64decode(value["keys"]), dtype=np.uint64)
        columns = np.frombuffer(base64.b64decode(value["columns"]), dtype=np.float64)
        return cls(int(value["most"]), keys, columns.reshape(int(value["width"]), len(keys)))


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return whole numbers mixed one to one (the finaliser of splitmix64)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _encode(array: NDArray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
