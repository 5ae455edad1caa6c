"""Factors of matrices that are positive definite but for rounding."""

import numpy as np
import pytest

from orthogp.errors import PrecisionError
from orthogp.precision import lower_factor, made_definite, within_precision


def matrix(eigenvalues: list[float], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))[0]
    return (rotation * eigenvalues) @ rotation.T


def test_a_positive_definite_matrix_is_factorised_as_it_is() -> None:
    A = matrix([3.0, 1.0, 1e-6])
    np.testing.assert_allclose(lower_factor(A), np.linalg.cholesky((A + A.T) / 2))


@pytest.mark.parametrize("eigenvalues", [[5.0, 2.0, -1e-14], [5.0, 0.0, 0.0], [2.0, 1.0, -0.5]])
@pytest.mark.parametrize("units", [1.0, 1e-4, 1e4])
def test_what_is_not_becomes_so_and_changes_least(eigenvalues: list[float], units: float) -> None:
    scale = np.array([1.0, units, 1.0])
    A = scale[:, None] * matrix(eigenvalues) * scale
    L = lower_factor(A)
    assert np.array_equal(L, np.tril(L))
    assert np.all(np.diag(L) > 0)
    np.testing.assert_allclose(L @ L.T, made_definite(A), rtol=1e-7)
    # Along directions in which the matrix curves upwards little has changed.
    values, vectors = np.linalg.eigh(A / np.outer(scale, scale))
    large = vectors[:, values > 0.1] / scale[:, None]
    if min(eigenvalues) > -0.1:
        np.testing.assert_allclose(large.T @ L @ L.T @ large, large.T @ A @ large, atol=1e-6)


def test_a_negative_diagonal_is_no_obstacle() -> None:
    A = np.array([[1800.0, 300.0, 40.0], [300.0, 3700.0, 90.0], [40.0, 90.0, -80.0]])
    assert np.linalg.eigvalsh(made_definite(A))[0] > 0


@pytest.mark.parametrize("bad", [np.full((2, 2), np.nan), np.zeros((2, 2))])
def test_nothing_is_made_of_nothing(bad: np.ndarray) -> None:
    with pytest.raises(PrecisionError, match="does not resolve"):
        lower_factor(bad)


def test_errors_of_linear_algebra_become_ours() -> None:
    with pytest.raises(PrecisionError, match="not positive definite"), within_precision():
        np.linalg.cholesky(-np.eye(2))
