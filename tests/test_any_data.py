"""The default call on data of any kind: a finite, calibrated answer, or one sentence.

Each seed is a data set: 1 to 8 columns, 1 to 3,000 rows; evenly spread, clustered, replicated or
far-out inputs, some columns constant; noise-free, Gaussian or heavy-tailed; of any unit. Nothing of
numpy, LAPACK or SciPy may reach the user: no error but those of orthogp, no `RuntimeWarning`.
"""

import warnings
from typing import NamedTuple

import numpy as np
import pytest

from orthogp import FitWarning, GPRegressor, OrthogpError, OutOfDomainWarning

# The number of new rows of each data set by which its bands are judged.
NEW_ROWS = 100
# What bands promise.
LEVEL = 0.9
# The quantile of the normal distribution that bands of this level take.
NORMAL = 1.6448536269514722


class Data(NamedTuple):
    """Rows to fit, and new ones of the same kind."""

    X: np.ndarray
    y: np.ndarray
    new_X: np.ndarray
    new_y: np.ndarray
    kind: str


def any_data(seed: int) -> Data:
    """Return the data set of a seed."""
    rng = np.random.default_rng([seed, 19])
    num_dims, num_rows = int(rng.integers(1, 9)), int(np.exp(rng.uniform(0, np.log(3000))))
    total = num_rows + NEW_ROWS
    places = rng.choice(["even", "clusters", "replicates", "far"])
    X = rng.uniform(0, 1, (total, num_dims))
    if places == "clusters":
        centres = rng.uniform(0, 1, (3, num_dims))
        X = centres[rng.integers(3, size=total)] + 0.03 * rng.standard_normal(X.shape)
    elif places == "replicates":
        X = X[rng.integers(max(1, num_rows // 4), size=total)]
    elif places == "far":
        X = rng.standard_t(2, X.shape)
    if num_dims > 1 and rng.random() < 0.2:
        X[:, rng.integers(num_dims)] = rng.choice([0.0, 1.0, -7.3])
    # Waves along a few directions, and a trend.
    waves = rng.normal(0, rng.choice([1.0, 4.0]), (num_dims, 4)) / np.sqrt(num_dims)
    f = np.cos(X @ waves + rng.uniform(0, 2 * np.pi, 4)) @ rng.normal(0, 1, 4)
    f += X @ rng.normal(0, 0.3, num_dims)
    noise = rng.choice(
        ["none", "little", "much", "heavy", "constant"], p=[0.2, 0.3, 0.25, 0.2, 0.05]
    )
    if noise == "constant":
        y = np.full(total, f[0])
    elif noise == "heavy":
        y = f + 0.3 * rng.standard_t(3, total)
    else:
        y = f + {"none": 0.0, "little": 0.1, "much": 1.0}[noise] * rng.standard_normal(total)
    # Units: usual ones, and any that doubles hold.
    y = (y + rng.choice([0.0, 0.0, 10.0, 1e6])) * 10.0 ** rng.choice([0, 0, 0, -9, 12, -120, 120])
    X = (X + rng.choice([0.0, 0.0, 100.0])) * 10.0 ** rng.choice(
        [0, 0, 0, -8, 9, -50, 50], num_dims
    )
    kind = f"{num_dims} columns, {num_rows} rows, {places}, noise {noise}"
    return Data(X[:num_rows], y[:num_rows], X[num_rows:], y[num_rows:], kind)


def coverage(data: Data) -> float | None:
    """Return the share of new rows within their bands, `None` if one sentence said why not.

    Raises whatever reaches a user besides.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", OutOfDomainWarning)
        try:
            model = GPRegressor().fit(data.X, data.y)
            mean, sd = model.predict(data.new_X, return_std=True, include_noise=True)
            fitted = model.predict(data.X)
        except OrthogpError as error:
            said = str(error)
        else:
            said = ""
    assert "\n" not in said
    if said:
        return None
    assert np.isfinite(mean).all()
    assert np.isfinite(sd).all()
    assert np.isfinite(fitted).all()
    assert np.all(sd >= 0)
    # Values that agree up to rounding lie within bands of no width.
    slack = 1e-9 * np.abs(data.new_y).max()
    return float(np.mean(np.abs(data.new_y - mean) <= NORMAL * sd + slack))


def check_seeds(seeds: range) -> dict[str, float]:
    """Check data sets, and return what share of new rows the bands of all together cover.

    Coverages of data sets are independent and lie between 0 and 1, with a standard deviation of at
    most 0.3 (asserted), so that the mean of K lies more than 3.5 · 0.3/√K below what it should be
    once in 4,000 times, if bands are calibrated on average.
    """
    shares = [share for share in map(coverage, map(any_data, seeds)) if share is not None]
    assert len(shares) > len(seeds) / 2
    assert np.std(shares) < 0.3
    mean, room = float(np.mean(shares)), 3.5 * 0.3 / np.sqrt(len(shares))
    assert mean > LEVEL - room
    return {"data sets": len(shares), "coverage": mean}


@pytest.mark.slow
def test_default_calls_on_any_data_answer_or_say_why_not():
    """Forty of the data sets; `check_seeds(range(500))` is for long searches."""
    check_seeds(range(1000, 1040))
