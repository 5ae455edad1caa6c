"""Weights that are precisions: nothing depends on their unit, nor on that of y."""

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.kernels import Matern32

# The engines, and how close predictions come to each other, in posterior standard deviations:
# where sums are transformed again, by the accuracy of the transforms.
ENGINES = [
    ({"solver": "exact"}, 60, 1e-6),
    ({"solver": "dense"}, 300, 1e-4),
    ({"solver": "neighbours"}, 200, 1e-6),
    ({"solver": "iterative", "kernel": "matern12"}, 600, 1e-3),
    ({"features": "trig"}, 200, 1e-4),
    ({"solver": "exact", "kernel": Matern32(1.0, 0.3)}, 60, 1e-6),
]


@pytest.mark.parametrize(("settings", "num_rows", "close"), ENGINES)
@pytest.mark.parametrize(
    ("unit", "weight_unit"),
    [(1e6, 1e-12), pytest.param(1e-6, 1e12, marks=pytest.mark.slow), (1.0, 1e9)],
)
def test_another_unit_of_y_and_weights_is_the_same_model(
    settings, num_rows, close, unit, weight_unit
):
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 1, (num_rows, 1))
    sd = rng.uniform(0.05, 0.5, num_rows)
    y = np.sin(6 * X[:, 0]) + sd * rng.standard_normal(num_rows)
    first = GPRegressor(**settings, weights="precisions").fit(X, y, sample_weight=1 / sd**2)
    if isinstance(settings.get("kernel"), Matern32):
        # A user's kernel is in the units of y.
        settings = settings | {"kernel": settings["kernel"].scaled(unit**2)}
    other = GPRegressor(**settings, weights="precisions")
    other.fit(X, unit * y, sample_weight=weight_unit / sd**2)
    mean, deviation = first.predict(X, return_std=True)
    again, spread = other.predict(X, return_std=True)
    assert np.max(np.abs(again / unit - mean) / deviation) < close
    np.testing.assert_allclose(spread / unit, deviation, rtol=close)
    factor = unit**2 * weight_unit
    assert other.noise_variance_ == pytest.approx(factor * first.noise_variance_, rel=1e-4)
    # The weights are inverse variances indeed.
    assert first.noise_variance_ == pytest.approx(1.0, rel=4 * np.sqrt(2 / num_rows))
