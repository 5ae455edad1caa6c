"""Series over evenly spaced frequencies, and sums over pairs: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from orthogp.stochastic.frequencies import (
    antidiagonal_sums,
    diagonal_sums,
    evaluate_evenly,
    mixed_sums,
)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 9, 50])
def test_series_are_their_sums(size):
    rng = np.random.default_rng(size)
    a = rng.normal(size=(3, size)) + 1j * rng.normal(size=(3, size))
    starts, step, x = rng.normal(size=3), 0.7, rng.normal(0, 2, 11)
    waves = np.exp(1j * (starts[:, None] + step * np.arange(size))[..., None] * x)
    expected = np.real(np.sum(a[..., None] * waves, axis=1))
    np.testing.assert_allclose(evaluate_evenly(a, starts, step, x), expected, atol=1e-11)


@pytest.mark.slow
def test_derivatives_of_series_are_differences():
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.normal(size=(2, 7)) + 1j * rng.normal(size=(2, 7)))
    starts, step, x = (jnp.asarray(rng.normal(size=shape)) for shape in ((2,), (), (5,)))

    def function(a, starts, step, x):
        return jnp.sum(jnp.sin(evaluate_evenly(a, starts, step, x)))

    # Central differences of that step have errors of 1e-8.
    check_grads(function, (a, starts, step, x), 1, ["rev"], atol=1e-6, rtol=1e-6, eps=1e-5)


# Blocks of rows begin at 64; 70 leaves the last one part empty.
@pytest.mark.parametrize("size", [2, 70])
def test_mixed_sums_and_their_derivatives_are_those_of_the_double_sum(size):
    rng = np.random.default_rng(size)
    vectors = tuple(jnp.asarray(rng.normal(size=size)) for _ in range(3))
    cotangent = jnp.asarray(rng.normal(size=2 * size - 1))
    i, j = np.indices((size, size))

    def by_definition(W, other_W, H):
        terms = W[i] * other_W[j] * H[(i + j) % size]
        return jnp.zeros(2 * size - 1).at[i - j + size - 1].add(terms)

    value, pull_back = jax.vjp(mixed_sums, *vectors)
    expected, pull_back_expected = jax.vjp(by_definition, *vectors)
    np.testing.assert_allclose(value, expected, atol=1e-11)
    for own, other in zip(pull_back(cotangent), pull_back_expected(cotangent), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-11)


def test_sums_along_diagonals_and_their_derivatives():
    G = jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)))
    expected = [np.trace(np.asarray(G), -k) for k in range(-5, 6)]
    np.testing.assert_allclose(diagonal_sums(G), expected, atol=1e-14)
    expected = [np.trace(np.asarray(G)[:, ::-1], 5 - p) for p in range(11)]
    np.testing.assert_allclose(antidiagonal_sums(G), expected, atol=1e-14)
    weights = jnp.arange(11.0)
    check_grads(lambda G: antidiagonal_sums(G) @ weights, (G,), order=1, modes=["rev"])
