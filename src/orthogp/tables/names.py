"""Columns by name: those asked for, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isinf, nan

from orthogp.errors import InputError
from orthogp.statistics.lattice import MAX_DIMS

# What stands for no value, in lower case, besides what reads as the number NaN.
MISSING = frozenset({"", "na", "n/a", "#n/a", "null", "none"})
#: What stands for bytes that are not UTF-8.
UNREADABLE = "\ufffd"
# Names of columns that a sentence lists at most.
_MOST_NAMES = 30
_DATE = re.compile(r"\d{1,4}([/.-])\d{1,2}\1\d{1,4}(\D.*)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")


def check_header(label: str, names: Sequence[str]) -> None:
    """Raise unless the first line of a text file can be column names."""
    if not any(names):
        raise InputError(
            f"{label} must begin with a line of column names, but that line is empty: "
            "add one such as x,y."
        )
    if all(_is_number(name) for name in names):
        raise InputError(
            f"{label} must begin with a line of column names, but that line holds numbers only: "
            "add a line such as x,y."
        )


def choose_inputs(
    label: str,
    names: Sequence[str],
    targets: Sequence[str],
    inputs: Sequence[str] | None,
    weights: str | None = None,
) -> list[str]:
    """Return the input columns: those named, or all others if they are few."""
    taken = (*targets, *(() if weights is None else (weights,)))
    for name in taken:
        find_column(label, names, name)
    if len(set(taken)) < len(taken):
        raise InputError(f"Targets and weights must be different columns, got {listed(taken)}.")
    if inputs is None:
        # A column without a name is a counter of rows.
        others = [name for name in names if name and name not in taken]
        besides = listed([repr(name) for name in taken])
        if not others:
            raise InputError(f"{label} has no column besides {besides} to predict it from.")
        if len(others) > MAX_DIMS:
            raise InputError(
                f"{label} has {len(others)} columns besides {besides}: name those to predict from "
                f"by --inputs ({_some(others)}); more than {MAX_DIMS} add up, one function of each."
            )
        return others
    if not inputs:
        raise InputError("inputs must name at least one column, got none.")
    for name in taken:
        if name in inputs:
            role = "target" if name in targets else "weights"
            raise InputError(f"{name!r} is both {role} and input: leave it out of the inputs.")
    if len(set(inputs)) < len(inputs):
        raise InputError(f"The inputs must differ, got {listed(inputs)}.")
    return list(inputs)


def find_column(label: str, names: Sequence[str], name: str) -> int:
    """Return the position of a column."""
    count = list(names).count(name)
    if count == 0:
        raise InputError(f"{label} has no column {name!r}; its columns are {_some(names)}.")
    if count > 1:
        raise InputError(f"{label} has {count} columns named {name!r}: rename them.")
    return list(names).index(name)


def read_number(cell: str) -> float:
    """Return the number in a cell, NaN if it is missing, or raise `ValueError`."""
    try:
        value = float(cell)
    except ValueError:
        if is_missing(cell):
            return nan
        raise
    # Python also reads 1_000, which in a file is a label rather than a number.
    if isinf(value) or "_" in cell:
        raise ValueError(cell)
    return value


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for no value."""
    return cell.strip().lower() in MISSING


def refuse_cell(name: str, cell: str, where: str, *, times: bool = False) -> InputError:
    """Return the error for a cell that is no number (or, with `times`, no date-time)."""
    wanted = "date-times as 2024-01-31 or 2024-01-31T12:30:00" if times else "finite numbers"
    remedy = _rewriting(cell) or "leave such cells empty, skip such rows (--skip-bad)"
    return InputError(
        f"Column {name!r} must hold {wanted}, got {cell!r} in {where}: {remedy}, or choose other "
        "columns."
    )


def refuse_column(name: str, cell: str, where: str) -> InputError:
    """Return the error for a column of text, of which this is the first cell."""
    remedy = _rewriting(cell) or (
        "write categories as whole numbers (for a Categorical kernel, or as the classes of a "
        "GPClassifier, both in Python)"
    )
    return InputError(
        f"Column {name!r} must hold finite numbers, got {cell!r} in {where}: {remedy}, or choose "
        "other columns (--inputs)."
    )


def _rewriting(cell: str) -> str | None:
    """Return how a cell that could be a number or a date should be written, if it could."""
    if UNREADABLE in cell:
        return "save the file in UTF-8"
    if _DATE.fullmatch(cell.strip()):
        return "write dates as 2024-01-31 or 2024-01-31T12:30:00"
    if _DECIMAL_COMMA.fullmatch(cell.strip()):
        return "write decimals with a point"
    return None


def listed(names: Sequence[str]) -> str:
    """Return names with commas between."""
    return ", ".join(names)


def _some(names: Sequence[str]) -> str:
    """Return names with commas between, the first of them if they are very many."""
    rest = len(names) - _MOST_NAMES
    return listed(names) if rest <= 0 else f"{listed(names[:_MOST_NAMES])} and {rest} others"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
