"""The families' reference table, whose figures end a coarse search over a or r.

The table: mean of k(0) − Σφ_m(x)² over 201 equispaced x in [−1, 1], lengthscale 0.1, variance one.
It does not say which values were searched. Those here were looked for so that all its figures come
out to two digits: one grid of a for both families on [−a, a], one of r. What a finer search finds,
as good or better, is tested with each family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from orthogp.features import Hermite, Polynomial, Trig
from orthogp.kernels import RBF, Kernel, Matern32
from tests.problems import covariances

X = np.linspace(-1, 1, 201)[:, None]
BANDS = np.geomspace(10, 400, 39)
SCALES = np.linspace(0.075, 0.3, 11)


def trig(num: int, a: float) -> Trig:
    return Trig(num, a, centre=0.0)


def legendre(num: int, a: float) -> Polynomial:
    return Polynomial(num, "legendre", a, centre=0.0)


def hermite(num: int, r: float) -> Hermite:
    return Hermite(num, r, centre=0.0)


def agree_to_two_digits(value: float, figure: float) -> bool:
    return bool(abs(value - figure) <= 0.5 * 10.0 ** (np.floor(np.log10(figure)) - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "num", "figures"),
    [
        (Matern32(1.0, 0.1), 41, (1.09e-2, 1.06e-2, 3.4e-2)),
        (Matern32(1.0, 0.1), 81, (1.74e-3, 1.65e-3, 6.2e-3)),
        (RBF(1.0, 0.1), 41, (2.3e-7, 3.8e-6, 5.5e-4)),
    ],
    ids=["matern32-41", "matern32-81", "rbf-41"],
)
@pytest.mark.parametrize(
    ("column", "family", "grid"),
    [(0, trig, BANDS), (1, hermite, SCALES), (2, legendre, BANDS)],
    ids=["trig", "hermite", "legendre"],
)
def test_a_coarse_search_leaves_out_what_the_reference_table_says(
    column: int,
    family: Callable[[int, float], Any],
    grid: np.ndarray,
    kernel: Kernel,
    num: int,
    figures: tuple[float, ...],
) -> None:
    left_out = [
        np.mean(1 - np.sum(family(num, size).evaluate(kernel, X) ** 2, axis=1)) for size in grid
    ]
    assert agree_to_two_digits(min(left_out), figures[column])


@pytest.mark.parametrize(
    ("kernel", "num", "figure"),
    [
        (Matern32(1.0, 0.1), 41, 8.1e-3),
        (Matern32(1.0, 0.1), 81, 1.08e-3),
        (RBF(1.0, 0.1), 41, 4.9e-9),
    ],
    ids=["matern32-41", "matern32-81", "rbf-41"],
)
def test_the_best_possible_features_leave_out_what_the_reference_table_says(
    kernel: Kernel, num: int, figure: float
) -> None:
    # Those of the truncated eigendecomposition of the covariance at the table's points.
    eigenvalues = np.linalg.eigvalsh(covariances(kernel, X[:, None, :] - X[None, :, :]))
    assert agree_to_two_digits(np.sum(eigenvalues[:-num]) / len(X), figure)
