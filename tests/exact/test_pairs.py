"""Kernels at pairs of rows, against their closed forms, and the order of the pairs."""

import numpy as np
import pytest

from orthogp.exact import pairs
from orthogp.exact.pairs import PairKernel, RowPairs
from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import (
    RBF,
    Categorical,
    Cyclic,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
)
from orthogp.kernels.transformed import Sphere
from tests import oracles
from tests.oracles import Array
from tests.problems import Entry, all_entries, covariances, label, make_rows


def at_pairs(kernel: Kernel, X: Array, **options: bool | int):
    pairs = RowPairs(X)
    pair_kernel = PairKernel(kernel, X.shape[1])
    vector = pack(kernel, pair_kernel.slots)
    return pairs, pair_kernel.covariances(vector, pairs, **options)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 600])
def test_pairs_are_the_triangle_of_a_matrix_column_by_column(num_rows: int) -> None:
    X = np.random.default_rng(0).standard_normal((num_rows, 2))
    pairs = RowPairs(X)
    columns, rows = np.triu_indices(num_rows, 1)
    lags = np.append(X[rows] - X[columns], np.zeros((1, 2)), axis=0).T
    np.testing.assert_array_equal(pairs.lags(slice(0, pairs.count)), lags)
    values = np.random.default_rng(1).standard_normal(pairs.count)
    matrix = np.full((num_rows, num_rows), np.nan, order="F")
    pairs.fill(values, matrix)
    np.testing.assert_array_equal(matrix[rows, columns], values[:-1])
    np.testing.assert_array_equal(np.diag(matrix), values[-1])
    counted = pairs.gather(matrix)
    np.testing.assert_allclose(counted, np.append(2 * values[:-1], num_rows * values[-1]))
    products = pairs.products(X[:, 0])
    np.testing.assert_array_equal(products, np.append(X[rows, 0] * X[columns, 0], 1.0))


def test_lags_that_are_not_kept_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).standard_normal((9, 3))
    kept, made = RowPairs(X), RowPairs(X)
    whole = kept.lags(slice(0, kept.count))
    monkeypatch.setattr(pairs, "_KEPT", 0)
    for start in range(kept.count):
        for stop in range(start + 1, kept.count + 1):
            part = slice(start, stop)
            np.testing.assert_array_equal(made.lags(part), whole[:, part])
            np.testing.assert_array_equal(made.squares_of_lags(part), whole[:, part] ** 2)


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(1, 2), ids=label)
def test_values_are_the_kernel_s(num_dims: int, entry: Entry) -> None:
    X = make_rows(0, 12, num_dims).X
    pairs, found = at_pairs(entry.kernel, X)
    lags = pairs.lags(slice(0, pairs.count)).T
    # What is interpolated is so to 1e-9 of its variance.
    np.testing.assert_allclose(found.values, entry.k(lags), rtol=1e-9, atol=1e-9)


def test_products_periods_and_categories_are_taken_as_well() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.uniform(0, 3, 14), rng.integers(0, 3, 14), rng.uniform(size=14)], axis=1)
    kernel = Cyclic(Matern32(0.7, 0.3), 1.5).on(0) * RBF(1.0, 0.4).on(2) + Categorical(3).on(1)
    pairs, found = at_pairs(kernel, X)
    expected = covariances(kernel, pairs.lags(slice(0, pairs.count)).T)
    np.testing.assert_allclose(found.values, expected, atol=1e-9)


@pytest.mark.parametrize("nu", [0.12, 0.5, 1.5, 2.5, 14.0])
@pytest.mark.parametrize("lengthscale", [1e-3, 0.4, 1e4])
def test_tables_hold_from_the_closest_to_the_farthest_rows(nu: float, lengthscale: float) -> None:
    x = np.array([0.0, 0.0, 1e-7, 1e-4, 0.01, 0.1, 0.3, 1.0])[:, None]
    kernel = Matern(nu, 1.3, lengthscale)
    pairs, found = at_pairs(kernel, x)
    lags = pairs.lags(slice(0, pairs.count)).T
    np.testing.assert_allclose(found.values, oracles.matern(lags, nu, 1.3, lengthscale), atol=2e-9)
    assert np.all(np.isfinite(found.by_square))
    assert found.values[0] == found.values[-1] == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("kernel", "num_dims"),
    [
        (Matern(1.7, 1.3, 0.3), 1),
        (Cyclic(Matern12(0.7, 0.2), 0.8), 1),
        (Cyclic(RBF(0.7, 0.3), 0.8), 1),
        # Three columns share the first lengthscale.
        (Sphere(Matern(1.7, 1.3, [0.9, 0.4]), 1.0), 4),
        (Sphere(Matern(1.7, 1.3, 0.9), 1.0).on(3, 0, 1), 4),
    ],
)
def test_derivatives_of_tables_are_differences(kernel: Kernel, num_dims: int) -> None:
    pairs = RowPairs(np.random.default_rng(0).uniform(0, 2, (9, num_dims)))
    pair_kernel = PairKernel(kernel, num_dims)
    assert not pair_kernel.needs_lags

    def at(vector: Array):
        return pair_kernel.covariances(vector, pairs)

    vector = pack(kernel, pair_kernel.slots)
    found = at(vector)
    expected = oracles.fourth_order_difference(lambda v: at(v).values, vector, 1e-3).T
    np.testing.assert_allclose(found.by_parameter, expected[pair_kernel.others], atol=1e-6)
    W = pair_kernel.inverse_squares(vector)
    for own in pair_kernel.stretched:
        T = pairs.squares_of_lags(slice(0, pairs.count))[own.columns]
        by_log = -2 * W[own.row, own.columns][:, None] * T * found.by_square[own.row]
        np.testing.assert_allclose(own.gathered(by_log), expected[own.span], atol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "num_dims"),
    [
        (Matern12(1.3, 0.4), 1),
        (Matern32(1.3, [0.4, 0.7]), 2),
        (Matern52(0.3, 0.4), 1),
        (RBF(2.0, 0.6), 2),
        (Matern52(1.3, 0.9).on(1) + RBF(0.4, [0.5, 0.3]).fix("variance").on(2, 0), 3),
        (Matern32(1.3, 0.4).fix() + Matern12(0.5, 0.2).fix(), 1),
        (Sphere(Matern32(1.3, [0.9, 0.4]), 1.0), 4),
    ],
)
def test_closed_forms_are_what_jax_derives(kernel: Kernel, num_dims: int) -> None:
    pairs = RowPairs(np.random.default_rng(0).uniform(0, 2, (12, num_dims)))
    closed, compiled = PairKernel(kernel, num_dims), PairKernel(kernel, num_dims)
    assert closed.closed is not None
    compiled.closed = None
    vector = pack(kernel, closed.slots) + 0.1

    def at(pair_kernel: PairKernel):
        return pair_kernel.covariances(vector, pairs)

    for own, other in zip(at(closed), at(compiled), strict=True):
        np.testing.assert_allclose(own[..., :-1], other[..., :-1], rtol=1e-11, atol=1e-13)
    T = pairs.squares_of_lags(slice(0, pairs.count - 1))
    # JAX's own derivatives cancel where lags are short.
    expected = compiled.second(vector, T)
    np.testing.assert_allclose(closed.second(vector, T), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kernel", [Matern12(), Matern32(), Matern52(), RBF()])
def test_closed_forms_are_finite_at_and_next_to_zero(kernel: Kernel) -> None:
    pair_kernel = PairKernel(kernel, 1)
    T = np.array([[0.0, 1e-320, 1e-200, 1e-90]])
    second = pair_kernel.second(pack(kernel, pair_kernel.slots), T)
    assert np.all(np.isfinite(second * T))
    assert np.all(np.isfinite(pair_kernel.closed.derivatives(np.zeros(2), T)[2]))


def test_many_columns_and_many_pairs_by_several_threads() -> None:
    X = np.random.default_rng(0).standard_normal((230, 15))
    ell = np.linspace(2.0, 9.0, 15)
    _, one = at_pairs(Matern52(1.3, ell), X)
    pairs, two = at_pairs(Matern52(1.3, ell), X, num_threads=2)
    lags = pairs.lags(slice(0, pairs.count)).T
    np.testing.assert_allclose(two.values, oracles.matern52(lags, 1.3, ell), rtol=1e-12)
    np.testing.assert_array_equal(one.by_square, two.by_square)


def test_between_two_sets_of_rows() -> None:
    A, B = make_rows(1, 7, 2).X, make_rows(2, 11, 2).X
    kernel = RBF(0.5, 0.6).on(0) + RationalQuadratic(0.9, 0.8, 1.6).on(1)
    pair_kernel = PairKernel(kernel, 2)
    found = pair_kernel.between(pack(kernel, pair_kernel.slots), A, B)
    np.testing.assert_allclose(found, covariances(kernel, A[:, None] - B), rtol=1e-12)
    assert pair_kernel.between(pack(kernel, pair_kernel.slots), A[:0], B).shape == (0, 11)


class Faded(RBF):
    """An RBF of half the lag: a kernel that overrides k alone."""

    def at_square(self, square):
        return super().at_square(square / 4)


def test_a_subclass_with_another_k_does_not_inherit_the_closed_form() -> None:
    own, other = Faded(1.3, 0.7), RBF(1.3, 1.4)
    X = np.linspace(0, 2, 7)[:, None]
    vectors = [pack(kernel, learned_slots(kernel)) for kernel in (own, other)]
    found = [
        PairKernel(kernel, 1).between(vector, X, X)
        for kernel, vector in zip((own, other), vectors, strict=True)
    ]
    np.testing.assert_allclose(*found, rtol=1e-12)
