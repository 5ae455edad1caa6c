"""Conditionals given nearest rows, against dense matrices."""

import numpy as np
import pytest
from numpy.typing import NDArray

from orthogp.exact.pairs import MergedRows
from orthogp.features.inducing import covariance_matrix
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    QuasiPeriodic,
    RationalQuadratic,
    Rotated,
)
from orthogp.neighbours.conditionals import SetKernel, Sets, solve, terms

KERNELS = {
    "rbf": RBF(1.3, [0.5, 0.7, 2.0]),
    "matern12": Matern12(1.0, 0.8),
    "matern32": Matern32(0.4, [1.0, 0.3, 2.0]),
    "matern52": Matern52(2.0, [1.0, 2.0, 3.0]),
    "rational": RationalQuadratic(1.0, [1.0, 1.0, 2.0], 0.7),
    "matern": Matern(nu=0.9),
    "fixed": RBF(1.3, [0.5, 0.7, 2.0]).fix("variance"),
    "sum": RBF().on(0) + Matern32(1.0, [1.0, 2.0]).on(1, 2),
    "quasi-periodic": QuasiPeriodic(period=1.0).on(0) + RBF().on(2),
    "product": RBF().on(0) * Matern32().on(1, 2),
    "by lags only": QuasiPeriodic(period=1.0).on(0),
    "rotated": Rotated(Matern32(1.0, [2.0, 0.5]), 0.4).on(0, 1) + RBF().on(2),
}


def rows(seed: int = 0, n: int = 50, m: int = 6) -> tuple[Sets, NDArray[np.float64]]:
    """Sets of rows with neighbours chosen at random, two of them with fewer."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 3)), rng.standard_normal((n, 2))
    noise = rng.uniform(0.5, 2.0, n)
    drawn = np.array([rng.choice(n, m + 1, replace=False) for _ in range(20)])
    neighbours, own = drawn[:, :m], drawn[:, m]
    neighbours[3, 4:] = -1
    neighbours[7] = -1
    merged = MergedRows(X, y, 1 / noise, surplus=0.0, square=0.0, constant=0.0)
    return Sets.gather(merged, np.column_stack([neighbours, own])), noise


def dense_covariance(kernel: Kernel, X: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(covariance_matrix(kernel, X, X))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_terms_are_the_dense_conditional_densities(kernel: Kernel) -> None:
    sets, _ = rows()
    found = terms(kernel, 0.1, sets, 1)
    for i in (0, 3, 7):
        there = np.ones(7, dtype=bool) if sets.there is None else sets.there[i]
        A = dense_covariance(kernel, sets.X[i, there]) + 0.1 * np.diag(sets.noise[i, there])
        weights = np.linalg.solve(A[:-1, :-1], A[:-1, -1])
        variance = A[-1, -1] - A[-1, :-1] @ weights
        residual = sets.y[i, -1] - weights @ sets.y[i, there][:-1]
        expected = -0.5 * np.sum(np.log(2 * np.pi * variance) + residual**2 / variance)
        np.testing.assert_allclose(found.values[i], expected, rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_gradients_are_finite_differences(kernel: Kernel) -> None:
    sets, _ = rows()
    slots = learned_slots(kernel)
    vector = np.append(pack(kernel, slots), np.log(0.1))

    def values(at: NDArray[np.float64]) -> NDArray[np.float64]:
        return terms(unpack(kernel, slots, at[:-1]), float(np.exp(at[-1])), sets, 1).values

    steps = 1e-5 * np.eye(len(vector))
    expected = np.stack([(values(vector + s) - values(vector - s)) / 2e-5 for s in steps], axis=1)
    found = terms(kernel, 0.1, sets, 1).gradients
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_covariances_are_those_of_the_kernel(kernel: Kernel) -> None:
    X = np.random.default_rng(1).standard_normal((2, 5, 3))
    expected = [dense_covariance(kernel, own) for own in X]
    np.testing.assert_allclose(SetKernel(kernel, 3).values(X), expected, atol=1e-12)
    crossed = SetKernel(kernel, 3).cross(X[:, :2], X)
    np.testing.assert_allclose(crossed, np.array(expected)[:, :2], atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_large_covariance_matrices_are_those_of_the_kernel(kernel: Kernel) -> None:
    X = np.random.default_rng(1).standard_normal((2, 67, 3))
    expected = [dense_covariance(kernel, own) for own in X]
    np.testing.assert_allclose(SetKernel(kernel, 3).values(X), expected, atol=1e-12)


def test_several_threads_give_the_same() -> None:
    sets, _ = rows()
    many = sets.part(np.tile(np.arange(len(sets)), 200))
    one, two = (terms(KERNELS["matern32"], 0.1, many, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_array_equal(one.gradients, two.gradients)


@pytest.mark.parametrize("size", [5, 100])
def test_systems_of_coinciding_rows_without_noise_have_finite_solutions(size: int) -> None:
    X = np.zeros((1, size, 2))
    X[0, :, 0] = np.repeat(np.arange(size // 5), 5)
    K = SetKernel(RBF(1.0, 2.0), 2).values(X)
    assert np.isfinite(solve(K, np.ones((1, size, 1)))).all()
