"""Windows around the data: how wide to make them, and whether they hold the data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError

# Margins in lengthscales that are tried, then refined.
_MARGINS = np.concatenate([[0.0], np.geomspace(0.25, 32.0, 15)])
_REFINEMENTS = 4
# Relative to the window's width: how far outside rounding may put the data's ends.
_ROUNDING = 1e-9


def best_margin(error: Callable[[float], float]) -> float:
    """Return the margin between 0 and 40 lengthscales at which an error is least."""
    tried: dict[float, float] = {}

    def remembered(margin: float) -> float:
        if margin not in tried:
            tried[margin] = error(margin)
        return tried[margin]

    best = float(min(_MARGINS, key=remembered))
    step = float(np.sqrt(_MARGINS[2] / _MARGINS[1]))
    for _ in range(_REFINEMENTS):
        best = min((best / step, best, best * step), key=remembered)
        step = float(np.sqrt(step))
    return best


def check_inside(
    lower: NDArray[np.float64],
    upper: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    remedy: str,
) -> None:
    """Raise `FeatureError` unless the data's box lies between `start` and `end`."""
    slack = _ROUNDING * (end - start)
    if np.any((lower < start - slack) | (upper > end + slack)):
        raise FeatureError(
            f"The features are defined on {_box(start, end)} only, but the data cover "
            f"{_box(lower, upper)}: {remedy}."
        )


def _box(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> str:
    ends = zip(np.atleast_1d(lower), np.atleast_1d(upper), strict=True)
    return " × ".join(f"[{low:.6g}, {high:.6g}]" for low, high in ends)
