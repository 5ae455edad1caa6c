"""Where predictions are the posterior's, and what is said beyond."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, OutOfDomainWarning


class Domain(NamedTuple):
    """The box in which predictions are the posterior's."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    def outside(self, X: NDArray) -> NDArray[np.bool_] | None:
        """Return which rows lie outside, or `None` if none does."""
        if len(X) == 0 or (
            np.all(X.min(axis=0) >= self.lower) and np.all(X.max(axis=0) <= self.upper)
        ):
            return None
        return np.any((self.lower > X) | (self.upper < X), axis=1)


def warn_outside(num_outside: int, num_rows: int, domain: Domain) -> None:
    """Warn that predictions outside the covered domain are the prior's."""
    warnings.warn(
        f"{num_outside} of {num_rows} points lie outside the covered domain {show(domain)}; "
        "there the prediction is the prior. Fit with a larger `domain` to extrapolate further.",
        OutOfDomainWarning,
        stacklevel=4,
    )


def show(domain: Domain) -> str:
    """Return the box as text."""
    return " × ".join(
        f"[{low:.6g}, {high:.6g}]" for low, high in zip(domain.lower, domain.upper, strict=True)
    )


def require_inside(domain: Domain, X: NDArray) -> None:
    """Raise `InputError` unless all rows lie in the covered domain."""
    outside = domain.outside(X)
    if outside is not None:
        raise InputError(
            f"{int(outside.sum())} of {len(X)} points lie outside the covered domain "
            f"{show(domain)}: fit with a larger `domain`."
        )
