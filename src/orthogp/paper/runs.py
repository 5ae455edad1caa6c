"""What the experiments share: results that outlive an interruption, and the words they print."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orthogp.errors import InputError

Write = Callable[[str], object]
Value = str | int | float | bool
Row = dict[str, Value]


class Ledger:
    """The rows of a CSV file, one for each finished run, found again by their settings.

    A row is in the file as soon as its run ends. What was interrupted is run again the next time,
    what is there is not, and runs with other settings stand beside it.

    Parameters
    ----------
    path : path
        Made when the first row is added.
    settings : sequence of str
        The columns that say which run it was.
    results : sequence of str
        The columns that say what came of it.
    """

    def __init__(self, path: Path, settings: Sequence[str], results: Sequence[str]) -> None:
        self.path = path
        self._settings = tuple(settings)
        self._names = (*settings, *results)
        self._rows = self._read()

    def find(self, settings: Mapping[str, Value]) -> Row | None:
        """Return the row of a run, or `None` if there is none yet."""
        return self._rows.get(self._key(settings))

    def add(self, *rows: Mapping[str, Value]) -> None:
        """Append rows, all of them at once."""
        lines = [[_as_text(row[name]) for name in self._names] for row in rows]
        is_new = not self.path.exists()
        with self.path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if is_new:
                writer.writerow(self._names)
            writer.writerows(lines)
        for row in rows:
            self._rows[self._key(row)] = {name: row[name] for name in self._names}

    def run(
        self,
        settings: Mapping[str, Value],
        compute: Callable[[], Mapping[str, Value]],
        write: Write,
    ) -> Row:
        """Return the row of a run, which is computed only if it is not there.

        Parameters
        ----------
        settings : mapping
        compute : callable
            Returns the results; `seconds`, if it is a column, is added to them.
        write : callable
            Given a line that names the run and how long it took.
        """
        return self.run_together([settings], lambda: [compute()], write)[0]

    def run_together(
        self,
        settings: Sequence[Mapping[str, Value]],
        compute: Callable[[], Sequence[Mapping[str, Value]]],
        write: Write,
    ) -> list[Row]:
        """Return the rows of runs that are computed all at once, unless all are there."""
        names = [", ".join(f"{name} {_as_text(own[name])}" for name in own) for own in settings]
        kept = [row for own in settings if (row := self.find(own)) is not None]
        if len(kept) == len(settings):
            for name in names:
                write(f"{self.path.stem}: {name}: kept")
            return kept
        began = time.perf_counter()
        results = compute()
        seconds = (time.perf_counter() - began) / len(settings)
        rows = [
            {"seconds": round(seconds, 3), **own, **result}
            for own, result in zip(settings, results, strict=True)
        ]
        self.add(*rows)
        for name in names:
            write(f"{self.path.stem}: {name}: {seconds:.1f} s")
        return rows

    def _key(self, settings: Mapping[str, Value]) -> tuple[str, ...]:
        return tuple(_as_text(settings[name]) for name in self._settings)

    def _read(self) -> dict[tuple[str, ...], Row]:
        if not self.path.exists():
            return {}
        text = self.path.read_text("utf-8")
        # A run that was cut short while it wrote leaves half a line, which would spoil the next.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, "utf-8")
        header, *lines = csv.reader(whole.splitlines()) if whole else [list(self._names)]
        if tuple(header) != self._names:
            raise InputError(
                f"{self.path} has other columns than this version writes: move it away, or give "
                "another directory."
            )
        if not whole:
            self.path.unlink()
        rows = (dict(zip(self._names, map(_as_value, line), strict=True)) for line in lines)
        return {self._key(row): row for row in rows}


def number(row: Mapping[str, Value], name: str) -> float:
    """Return a result as a number."""
    return float(row[name])


def _as_text(value: Value) -> str:
    """Return the shortest text that reads back as the same value."""
    if isinstance(value, bool | str | int):
        return str(value)
    return repr(float(value))


def _as_value(text: str) -> Value:
    """Return the number or the truth value that a text stands for, or the text itself."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
