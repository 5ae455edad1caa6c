"""Files by names, folders and patterns; standard input as one of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path

from orthogp.errors import InputError
from orthogp.tables.writing import STANDARD

_TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")
_PARQUET_MARK = b"PAR1"
_STANDARD_INPUT = "standard input"


def find_files(data: Sequence[str]) -> list[tuple[str, str]]:
    """Return the files that names, folders and patterns stand for, and what to call them."""
    if not data:
        raise InputError("No data were named.")
    found: dict[str, str] = {}
    for name in data:
        path = Path(name)
        if path.is_dir():
            inside = sorted(str(file) for file in path.rglob("*") if _is_table(file, path))
            if not inside:
                raise InputError(f"{name} holds no CSV, TSV or Parquet file.")
            found.update((file, file) for file in inside)
        elif not path.exists() and has_magic(name):
            matches = sorted(match for match in glob(name, recursive=True) if Path(match).is_file())
            if not matches:
                raise InputError(f"No file matches {name}.")
            found.update((match, match) for match in matches)
        else:
            found[name] = _STANDARD_INPUT if path.name == _STANDARD_INPUT else name
    return list(found.items())


def is_parquet(path: str) -> bool:
    """Return whether a file is Parquet, by its name or its first bytes."""
    if path.endswith(_PARQUET_ENDINGS):
        return True
    if path.endswith(_TEXT_ENDINGS):
        return False
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_PARQUET_MARK)) == _PARQUET_MARK
    except OSError:
        # Said in a sentence by whoever opens it next.
        return False


@contextmanager
def standard_input_as_file(data: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Copy standard input, if "-" is among the data, to a file for as long as it is read."""
    if STANDARD not in data:
        yield tuple(data)
        return
    with tempfile.TemporaryDirectory(prefix="orthogp-") as folder:
        path = Path(folder) / _STANDARD_INPUT
        with path.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
        if path.stat().st_size == 0:
            raise InputError("Standard input is empty.")
        yield tuple(str(path) if name == STANDARD else name for name in data)


def _is_table(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return not hidden and file.name.endswith((*_TEXT_ENDINGS, *_PARQUET_ENDINGS)) and file.is_file()


def describe_files(files: list[tuple[str, str]]) -> str:
    """Return files in a few words."""
    if len(files) == 1:
        return files[0][1]
    return f"{len(files)} files from {files[0][1]} to {files[-1][1]}"
