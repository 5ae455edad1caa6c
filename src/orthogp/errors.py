"""What can go wrong, as a tree, and the checks made where data enter.

::

    OrthogpError
    ├── InputError (ValueError)          data of the wrong shape, kind or content
    ├── KernelError (ValueError)         an unknown kernel, or parameters it cannot have
    ├── FeatureError (ValueError)        an unknown family, or parameters or a kernel it cannot have
    ├── LatticeMismatchError (ValueError)  sums on different lattices, or rows a lattice cannot hold
    ├── FileError (ValueError)           a model file that cannot be read or written
    └── PrecisionError (ArithmeticError) a noise variance below what double precision resolves

    OutOfDomainWarning (UserWarning)     predictions outside the covered domain
    FitWarning (UserWarning)             the fit stopped somewhere a user should know about

Every message is one sentence or two: what was expected, what came, what to do.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray


class OrthogpError(Exception):
    """The root of all errors raised on purpose by orthogp."""


class InputError(OrthogpError, ValueError):
    """Data of the wrong shape, kind or content."""


class KernelError(OrthogpError, ValueError):
    """An unknown kernel, or parameters that it cannot have."""


class FeatureError(OrthogpError, ValueError):
    """An unknown feature family, or parameters, a kernel or data that it cannot have."""


class LatticeMismatchError(OrthogpError, ValueError):
    """Sums on different lattices, or rows outside of what a lattice can hold."""


class FileError(OrthogpError, ValueError):
    """A file of a model or of statistics that cannot be read or written."""


class PrecisionError(OrthogpError, ArithmeticError):
    """A noise variance so small that double precision cannot resolve it."""


class OutOfDomainWarning(UserWarning):
    """Some predictions lie outside the covered domain and are the prior's."""


class FitWarning(UserWarning):
    """The fit ended somewhere that a user should know about."""


def require(package: str, what: str, extra: str) -> None:
    """Raise `InputError` that says how to install an optional package, unless it is there."""
    if find_spec(package) is None:
        raise InputError(f'{what} needs {package}: install it with pip install "orthogp[{extra}]".')


def check_finite(values: NDArray, name: str, column_names: list[str] | None = None) -> None:
    """Raise `InputError` naming the columns of `values` that hold NaN or infinite entries."""
    # A sum is non-finite if any entry is, and is several times cheaper than isfinite. It may also
    # overflow on finite entries, so the exact count decides.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    bad = ~np.isfinite(values)
    counts = bad.reshape(len(values), -1).sum(axis=0)
    if not counts.any():
        return
    if values.ndim == 1:
        where = f"{name} has {counts[0]}"
    else:
        names = column_names or [f"column {j}" for j in range(len(counts))]
        where = f"{name} has " + ", ".join(
            f"{count} in {label}" for label, count in zip(names, counts, strict=True) if count
        )
    raise InputError(
        f"{where} NaN or infinite values (of {len(values)} rows): "
        "remove or impute those rows first."
    )


def check_positive(value: object, name: str) -> NDArray[np.float64]:
    """Return `value` as a float64 array, or raise `KernelError` unless all entries are > 0."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise KernelError(f"{name} must be a positive number, got {value!r}.") from error
    if array.size == 0 or not np.all(np.isfinite(array)) or not np.all(array > 0):
        raise KernelError(f"{name} must be positive and finite, got {value!r}.")
    return array
