"""Matrices that are positive definite but for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError

# The smallest eigenvalue that a matrix of unit diagonal is left with, relative to the largest.
_LEAST = 1e-8
# Entries of the diagonal are not taken for smaller, relative to the largest.
_SMALLEST = 1e-30


def lower_factor(matrix: NDArray[np.float64], least: float = _LEAST) -> NDArray[np.float64]:
    """Return L with LLᵀ the symmetric matrix, or one close to it that is positive definite.

    Where rounding, or solutions by iterations, leave eigenvalues λ ≤ 0, |λ| takes their place, in
    units where the diagonal is ±1, and at least `least` of the largest.
    """
    try:
        factor = np.linalg.cholesky((matrix + matrix.T) / 2)
    except np.linalg.LinAlgError:
        factor = None
    if factor is None or not np.isfinite(factor).all():
        # RᵀR by QR, which does not fail where the smallest eigenvalues are close to rounding.
        upper = np.linalg.qr(_root(matrix, least)).R
        factor = (upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]).T
    return np.asarray(factor, dtype=np.float64)


def made_definite(matrix: NDArray[np.float64], least: float = _LEAST) -> NDArray[np.float64]:
    """Return the symmetric matrix that `lower_factor` falls back on."""
    root = _root(matrix, least)
    return root.T @ root


def _root(matrix: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """Return √|Λ| VᵀD of the matrix D V Λ VᵀD."""
    symmetric = (matrix + matrix.T) / 2
    diagonal = np.abs(np.diag(symmetric))
    if not np.isfinite(symmetric).all() or not diagonal.any():
        raise PrecisionError(
            "Double precision does not resolve these data with so little noise: use a larger "
            "noise_variance, or fewer features."
        )
    scale = np.sqrt(np.maximum(diagonal, _SMALLEST * diagonal.max()))
    values, vectors = np.linalg.eigh(symmetric / np.outer(scale, scale))
    values = np.maximum(np.abs(values), least * np.abs(values).max())
    return np.sqrt(values)[:, None] * vectors.T * scale


@contextmanager
def within_precision() -> Iterator[None]:
    """Turn what linear algebra says where precision ends into an error of ours."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise PrecisionError(
            f"Double precision does not resolve these data ({error}): use a larger noise_variance, "
            "or fewer features."
        ) from error
