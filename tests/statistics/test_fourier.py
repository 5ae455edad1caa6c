"""FourierStatistics against sums written out, and their algebra."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orthogp.errors import InputError, LatticeMismatchError
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import evaluate_series
from tests import oracles
from tests.oracles import Array
from tests.problems import DIMS

EXTENTS = {1: [7], 2: [3, 2], 3: [2, 1, 2]}
SUMS = ("point_sums", "target_sums", "covariate_sums")
PRODUCTS = ("rows", "count", "log_weights", "yy", "covariate_gram", "covariate_targets")


def covariate_map(num_columns: int) -> Callable[[NDArray], Array] | None:
    """Two columns that are no Fourier modes."""
    if num_columns == 0:
        return None

    def columns(X: NDArray) -> Array:
        X = np.asarray(X, dtype=float)
        return np.column_stack([X[:, 0], X[:, -1] ** 2])[:, :num_columns]

    return columns


class Data:
    """Random rows and the lattice to sum them on."""

    def __init__(
        self,
        seed: int,
        num_rows: int,
        num_dims: int,
        *,
        num_targets: int = 1,
        num_covariates: int = 0,
        weighted: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.lattice = FrequencyLattice(
            rng.uniform(0.3, 1.5, num_dims), EXTENTS[num_dims], rng.normal(size=num_dims)
        )
        self.X = rng.normal(size=(num_rows, num_dims))
        self.y = rng.normal(1.0, 2.0, (num_rows, num_targets))
        self.weights = rng.uniform(0, 2, num_rows) if weighted else None
        if self.weights is not None and num_rows > 2:
            self.weights[1] = 0.0
        self.covariates = covariate_map(num_covariates)

    def sums(self, rows: slice | NDArray = slice(None), **options) -> FourierStatistics:
        return FourierStatistics.from_data(
            self.lattice,
            self.X[rows],
            self.y[rows],
            None if self.weights is None else self.weights[rows],
            covariates=self.covariates,
            **{"num_threads": 1, **options},
        )

    @property
    def size(self) -> float:
        """What the transforms' relative error multiplies."""
        w = np.ones(len(self.X)) if self.weights is None else self.weights
        columns = [w[:, None], w[:, None] * np.abs(self.y)]
        if self.covariates is not None:
            columns.append(w[:, None] * np.abs(self.covariates(self.X)))
        return float(np.concatenate(columns, axis=1).sum(axis=0).max())


data = st.builds(
    Data,
    seed=st.integers(0, 10**6),
    num_rows=st.integers(1, 30),
    num_dims=st.sampled_from(DIMS),
    num_targets=st.integers(1, 3),
    num_covariates=st.integers(0, 2),
    weighted=st.booleans(),
)


def assert_same(
    actual: FourierStatistics, expected: FourierStatistics, size: float, rtol: float = 1e-11
) -> None:
    assert actual.lattice == expected.lattice
    for name in (*SUMS, *PRODUCTS):
        left, right = np.asarray(getattr(actual, name)), np.asarray(getattr(expected, name))
        assert left.shape == right.shape
        scale = size if name in SUMS else max(size, float(np.abs(right).max(initial=0.0)))
        np.testing.assert_allclose(left, right, rtol=0, atol=rtol * scale, err_msg=name)


# ---------------------------------------------------------------------- the sums


@given(data=data)
def test_statistics_are_the_sums_written_out(data: Data) -> None:
    actual = data.sums()
    lattice, X, y = data.lattice, data.X, data.y
    w = np.ones(len(X)) if data.weights is None else data.weights
    c = np.empty((len(X), 0)) if data.covariates is None else data.covariates(X)

    def sums(column: Array, extent: NDArray) -> NDArray[np.complex128]:
        return oracles.trigonometric_sums(X, w * column, lattice.spacing, extent, lattice.centre)

    def stacked(columns: Array) -> NDArray[np.complex128]:
        shape = (columns.shape[1], *lattice.target_shape)
        return np.array([sums(column, lattice.extent) for column in columns.T]).reshape(shape)

    tolerance = 1e-11 * data.size
    points = sums(np.ones(len(X)), 2 * lattice.extent)
    np.testing.assert_allclose(actual.point_sums, points, rtol=0, atol=tolerance)
    np.testing.assert_allclose(actual.target_sums, stacked(y), rtol=0, atol=tolerance)
    np.testing.assert_allclose(actual.covariate_sums, stacked(c), rtol=0, atol=tolerance)
    assert actual.rows == np.count_nonzero(w)
    assert actual.count == pytest.approx(w.sum(), rel=1e-14)
    assert actual.log_weights == pytest.approx(np.log(w[w > 0]).sum(), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(actual.yy, w @ y**2, rtol=1e-12)
    np.testing.assert_allclose(
        actual.covariate_gram, c.T @ (w[:, None] * c), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(
        actual.covariate_targets, c.T @ (w[:, None] * y), rtol=1e-12, atol=1e-12 * data.size
    )
    np.testing.assert_allclose(actual.target_totals, w @ y, rtol=0, atol=tolerance)
    assert (actual.num_targets, actual.num_covariates) == (y.shape[1], c.shape[1])


@given(data=data)
def test_sums_have_hermitian_symmetry(data: Data) -> None:
    statistics = data.sums()
    for name in SUMS:
        values = getattr(statistics, name)
        axes = tuple(range(values.ndim - data.lattice.num_dims, values.ndim))
        np.testing.assert_array_equal(values, np.conj(np.flip(values, axes)))


@given(data=data, chunk_rows=st.integers(1, 33))
def test_any_chunking_gives_the_sums_of_one_pass(data: Data, chunk_rows: int) -> None:
    assert_same(data.sums(chunk_rows=chunk_rows), data.sums(), data.size)


@pytest.mark.parametrize("num_dims", DIMS)
def test_number_of_threads_does_not_matter(num_dims: int) -> None:
    data = Data(0, 500, num_dims, num_targets=2, weighted=True)
    for num_threads in (2, None):
        assert_same(data.sums(num_threads=num_threads), data.sums(), data.size)


@pytest.mark.parametrize("num_dims", DIMS)
def test_direct_sums_and_series_are_the_transforms(num_dims: int) -> None:
    data = Data(0, 20, num_dims)
    statistics = data.sums()
    lattice = data.lattice
    direct = oracles.trigonometric_sums(
        data.X, data.y[:, 0], lattice.spacing, lattice.extent, lattice.centre
    )
    np.testing.assert_allclose(statistics.target_sums[0], direct, atol=1e-11 * data.size)
    series = statistics.target_sums[0]
    fast = evaluate_series(series[None], data.lattice, data.X)[:, 0]
    slow = oracles.trigonometric_series(series, lattice.spacing, lattice.centre, data.X)
    np.testing.assert_allclose(slow.imag, 0, atol=1e-12 * np.abs(series).sum())
    np.testing.assert_allclose(fast, slow.real, atol=1e-11 * np.abs(series).sum())


@given(num_series=st.integers(1, 4), num_dims=st.sampled_from(DIMS))
def test_each_series_is_evaluated_in_its_own_column(num_series: int, num_dims: int) -> None:
    data = Data(1, 9, num_dims, num_targets=num_series)
    series = data.sums().target_sums
    together = evaluate_series(series, data.lattice, data.X, num_threads=1)
    for j in range(num_series):
        alone = oracles.trigonometric_series(
            series[j], data.lattice.spacing, data.lattice.centre, data.X
        ).real
        np.testing.assert_allclose(together[:, j], alone, atol=1e-11 * np.abs(series).sum())


def test_one_dimensional_inputs_and_targets_are_columns() -> None:
    data = Data(2, 10, 1)
    flat = FourierStatistics.from_data(data.lattice, data.X[:, 0], data.y[:, 0])
    assert_same(flat, data.sums(), data.size, rtol=1e-14)


def test_lists_and_integers_are_accepted() -> None:
    lattice = FrequencyLattice(0.5, 3)
    ours = FourierStatistics.from_data(lattice, [[0], [1], [2]], [1, 2, 3], [1, 2, 1])
    floats = FourierStatistics.from_data(
        lattice, np.arange(3.0)[:, None], np.arange(1.0, 4.0), np.array([1.0, 2.0, 1.0])
    )
    assert_same(ours, floats, 10.0, rtol=1e-15)


def test_single_precision_rows_are_summed_in_double_precision() -> None:
    # Single precision would lose the eighth digit of each term, and more of their sum.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 1)).astype(np.float32)
    y = rng.normal(1000.0, 1.0, (20_000, 1)).astype(np.float32)
    w = rng.uniform(0.5, 2, 20_000).astype(np.float32)
    lattice = FrequencyLattice(0.4, 20)
    single = FourierStatistics.from_data(lattice, X, y, w)
    double = FourierStatistics.from_data(
        lattice, X.astype(np.float64), y.astype(np.float64), w.astype(np.float64)
    )
    assert single.point_sums.dtype == single.target_sums.dtype == np.complex128
    assert single.yy.dtype == np.float64
    size = float(np.sum(w.astype(float) * np.abs(y[:, 0].astype(float))))
    assert_same(single, double, size, rtol=1e-14)


def test_target_shift_keeps_the_digits_of_a_small_signal_on_a_large_mean() -> None:
    rng = np.random.default_rng(0)
    X, small = rng.normal(size=(200, 1)), rng.normal(size=200)
    large = 1e9
    y = small + large
    kept = y - large  # what double precision leaves of the signal
    lattice = FrequencyLattice(0.5, 5)
    shifted = FourierStatistics.from_data(lattice, X, y, target_shift=large)
    expected = FourierStatistics.from_data(lattice, X, kept)
    assert_same(shifted, expected, 400.0, rtol=1e-14)


def test_target_shift_may_differ_between_targets() -> None:
    data = Data(3, 15, 2, num_targets=2)
    shifted = data.sums(target_shift=[1.0, -3.0])
    data.y = data.y - [1.0, -3.0]
    assert_same(shifted, data.sums(), data.size, rtol=1e-14)


@given(data=data, shift=st.floats(-100, 100))
def test_translating_inputs_together_with_the_centre_changes_nothing(
    data: Data, shift: float
) -> None:
    before = data.sums()
    data.covariates = None
    data.lattice = FrequencyLattice(
        data.lattice.spacing, data.lattice.extent, data.lattice.centre + shift
    )
    data.X = data.X + shift
    moved = data.sums()
    # x − x₀ keeps an absolute error of 1e-14 at x ≈ 100, which the largest frequency multiplies.
    for name in ("point_sums", "target_sums"):
        np.testing.assert_allclose(
            getattr(moved, name), getattr(before, name), rtol=0, atol=1e-10 * data.size
        )


# ---------------------------------------------------------------------- the algebra


@given(data=data, share=st.floats(0, 1))
def test_statistics_of_two_parts_add_up(data: Data, share: float) -> None:
    split = min(max(1, int(share * len(data.X))), len(data.X) - 1)
    if split < 1:
        return
    together = data.sums(slice(split)) + data.sums(slice(split, None))
    assert_same(together, data.sums(), data.size)


@given(data=data, more=st.integers(0, 10**6))
def test_adding_then_removing_rows_restores_the_statistics(data: Data, more: int) -> None:
    before = data.sums()
    num_covariates = before.num_covariates
    other = Data(
        more,
        12,
        data.lattice.num_dims,
        num_targets=before.num_targets,
        num_covariates=num_covariates,
        weighted=data.weights is not None,
    )
    other.lattice = data.lattice
    extra = other.sums()
    assert_same(before + extra - extra, before, data.size + other.size, rtol=1e-14)


@pytest.mark.parametrize(
    "other",
    [
        FrequencyLattice([0.5, 0.7], 3, 0.1),
        FrequencyLattice([0.5, 0.7], 4),
        FrequencyLattice([0.5, 0.8], 3),
        FrequencyLattice([0.5], 3),
    ],
    ids=["centre", "extent", "spacing", "dimension"],
)
def test_statistics_on_different_lattices_do_not_combine(other: FrequencyLattice) -> None:
    def on(lattice: FrequencyLattice) -> FourierStatistics:
        return FourierStatistics.from_data(lattice, np.ones((3, lattice.num_dims)), np.ones(3))

    ours, theirs = on(FrequencyLattice([0.5, 0.7], 3)), on(other)
    with pytest.raises(LatticeMismatchError, match="same lattice"):
        ours + theirs
    with pytest.raises(LatticeMismatchError, match="same lattice"):
        ours - theirs


def test_statistics_of_different_columns_do_not_combine() -> None:
    one, two = Data(0, 5, 1, num_targets=1), Data(0, 5, 1, num_targets=2)
    with pytest.raises(LatticeMismatchError, match="1 and 2 targets"):
        one.sums() + two.sums()
    with_covariates = Data(0, 5, 1, num_covariates=1)
    with pytest.raises(LatticeMismatchError, match="0 and 1 covariates"):
        one.sums() + with_covariates.sums()


def test_statistics_add_to_statistics_only() -> None:
    with pytest.raises(TypeError):
        Data(0, 5, 1).sums() + 1.0  # type: ignore[operator]


@given(
    seed=st.integers(0, 1000),
    extent=st.lists(st.integers(0, 9), min_size=1, max_size=2),
    factor=st.lists(st.integers(1, 4), min_size=2, max_size=2),
)
def test_decimation_gives_the_sums_on_the_coarser_lattice(
    seed: int, extent: list[int], factor: list[int]
) -> None:
    # Extents that the factor does not divide included.
    num_dims = len(extent)
    data = Data(seed, 10, num_dims, num_targets=2, num_covariates=1, weighted=True)
    fine = FrequencyLattice(data.lattice.spacing, extent, data.lattice.centre)
    data.lattice = fine
    decimated = data.sums().decimate(factor[:num_dims])
    data.lattice = fine.decimate(factor[:num_dims])
    assert_same(decimated, data.sums(), data.size)


def test_sums_within_a_smaller_extent_are_those_of_the_smaller_lattice() -> None:
    data = Data(0, 10, 2, num_targets=2, num_covariates=1, weighted=True)
    data.lattice = FrequencyLattice(data.lattice.spacing, [4, 5], data.lattice.centre)
    inner = data.sums().within([2, 5])
    data.lattice = FrequencyLattice(data.lattice.spacing, [2, 5], data.lattice.centre)
    assert_same(inner, data.sums(), data.size)


def test_decimation_in_three_dimensions() -> None:
    data = Data(0, 10, 3)
    data.lattice = FrequencyLattice(data.lattice.spacing, [4, 5, 3], data.lattice.centre)
    decimated = data.sums().decimate([2, 3, 1])
    data.lattice = data.lattice.decimate([2, 3, 1])
    assert_same(decimated, data.sums(), data.size)


@given(data=data, seed=st.integers(0, 1000))
def test_standardised_statistics_are_those_of_standardised_targets(data: Data, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_targets = data.y.shape[1]
    offset, scale = rng.normal(size=num_targets), rng.uniform(0.3, 3, num_targets)
    standardised = data.sums().standardised(offset, scale)
    data.y = (data.y - offset) / scale
    assert_same(standardised, data.sums(), 10 * data.size)


def test_standardised_squares_are_never_negative() -> None:
    lattice = FrequencyLattice(0.5, 2)
    statistics = FourierStatistics.from_data(lattice, np.arange(7.0), np.full(7, 0.1))
    assert np.all(statistics.standardised(0.1, 1e-8).yy >= 0)


# ---------------------------------------------------------------------- cosines and sines


@given(data=data, decimated=st.booleans())
def test_real_sums_are_products_of_cosines_and_sines(data: Data, decimated: bool) -> None:
    statistics = data.sums()
    if decimated:
        statistics = statistics.decimate(2)
    lattice = statistics.lattice
    indices = lattice.half_indices()[::2]  # any half set that begins with zero
    columns = oracles.cosines_and_sines(data.X, indices * lattice.spacing, lattice.centre)
    if data.covariates is not None:
        columns = np.concatenate([columns, data.covariates(data.X)], axis=1)
    w = np.ones(len(data.X)) if data.weights is None else data.weights
    actual = statistics.real_sums(indices)
    tolerance = 1e-11 * (data.size + np.abs(columns).max() ** 2 * w.sum())
    np.testing.assert_allclose(
        actual.gram, columns.T @ (w[:, None] * columns), rtol=0, atol=tolerance
    )
    np.testing.assert_allclose(
        actual.projection,
        columns.T @ (w[:, None] * data.y),
        rtol=0,
        atol=tolerance * (1 + np.abs(data.y).max()),
    )
    np.testing.assert_allclose(actual.gram, actual.gram.T, rtol=0, atol=tolerance)


# ---------------------------------------------------------------------- refusals

LATTICE = FrequencyLattice([0.5, 0.7], 2)
X = np.random.default_rng(0).normal(size=(8, 2))
Y = np.arange(8.0)


def spoiled(values: Array, at: list[tuple[int, int]], bad: float) -> Array:
    copy = values.copy()
    for row, column in at:
        copy[row, column] = bad
    return copy


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_inputs_are_counted_by_column(bad: float) -> None:
    with pytest.raises(InputError, match=r"X has 3 in column 1 NaN or infinite values \(of 8 rows"):
        FourierStatistics.from_data(LATTICE, spoiled(X, [(0, 1), (3, 1), (7, 1)], bad), Y)
    with pytest.raises(InputError, match="X has 1 in column 0, 2 in column 1"):
        FourierStatistics.from_data(LATTICE, spoiled(X, [(0, 1), (3, 1), (7, 0)], bad), Y)


@pytest.mark.parametrize("weights", [None, np.ones(8)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_targets_are_counted_by_column(bad: float, weights: Array | None) -> None:
    both = np.column_stack([Y, Y])
    with pytest.raises(InputError, match="y has 2 in column 1"):
        FourierStatistics.from_data(LATTICE, X, spoiled(both, [(2, 1), (5, 1)], bad), weights)
    with pytest.raises(InputError, match=r"y has 1 .*NaN or infinite"):
        FourierStatistics.from_data(LATTICE, X, spoiled(both, [(2, 0)], bad)[:, 0], weights)


def test_opposite_infinities_do_not_hide_each_other() -> None:
    hidden = spoiled(spoiled(X, [(0, 0)], np.inf), [(1, 0)], -np.inf)
    with pytest.raises(InputError, match="X has 2 in column 0"):
        FourierStatistics.from_data(LATTICE, hidden, Y)


def test_targets_whose_squares_overflow_are_refused() -> None:
    with pytest.raises(InputError, match="rescale"):
        FourierStatistics.from_data(LATTICE, X, Y * 1e200)


@pytest.mark.parametrize(
    ("X", "y", "weights", "message"),
    [
        (X[:, :1], Y, None, r"X must have 2 columns.*\(8, 1\)"),
        (np.ones((8, 3)), Y, None, r"X must have 2 columns.*\(8, 3\)"),
        (np.ones((2, 2, 2)), Y[:2], None, "X must have 2 columns"),
        (X, Y[:5], None, r"row of X \(8\), got shape \(5,\)"),
        (X, np.ones((8, 1, 1)), None, "y must have one value or one row per row"),
        (X, np.float64(3.0), None, "y must have one value or one row per row"),
        (np.empty((0, 2)), np.empty(0), None, "empty"),
        (X, Y, np.ones(7), r"one value per row \(8\), got shape \(7,\)"),
        (X, Y, np.ones((8, 1)), "one value per row"),
        (X, Y, -np.ones(8), "8 values are negative"),
        (X, Y, np.where(Y == 3, -1e-9, 1.0), "1 values are negative"),
        (X, Y, np.where(Y == 3, np.nan, 1.0), "sample_weight has 1 NaN or infinite"),
    ],
)
def test_wrong_rows_are_refused(
    X: NDArray, y: NDArray, weights: NDArray | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        FourierStatistics.from_data(LATTICE, X, y, weights)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_rows_of_weight_zero_are_as_good_as_absent(seed: int) -> None:
    data = Data(seed, 12, 2, num_covariates=1, weighted=True)
    assert data.weights is not None
    data.weights[::3] = 0
    kept = np.flatnonzero(data.weights)
    assert_same(data.sums(), data.sums(kept), data.size, rtol=1e-12)


@pytest.mark.parametrize("chunk_rows", [1000, 300])
@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_sums_of_columns_of_any_size_have_the_same_digits(factor: float, chunk_rows: int) -> None:
    """In one chunk, and where a target's size changes from one chunk to the next."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 1, (1000, 1)), rng.standard_normal((1000, 3))
    factors = np.array([factor, 1.0, 1 / factor])
    sizes = np.where(np.arange(1000)[:, None] < 300, 1.0, factors) if chunk_rows < 1000 else factors
    lattice = FrequencyLattice.for_domain(0.0, 1.0, period=4.0, extent=40)
    found = FourierStatistics.from_data(lattice, X, sizes * y, chunk_rows=chunk_rows)
    waves = np.exp(1j * (X[:, 0] - lattice.centre[0])[:, None] * lattice.spacing[0] * np.arange(81))
    assert np.abs(found.point_sums[80:] - waves.sum(axis=0)).max() < 1e-12 * 1000
    for sums, column in zip(found.target_sums, (sizes * y).T, strict=True):
        size = np.linalg.norm(column) * np.sqrt(1000)
        assert np.abs(sums[40:] - column @ waves[:, :41]).max() < 1e-12 * size
    difference = np.abs(found.target_totals - (sizes * y).sum(axis=0))
    assert np.all(difference < 1e-14 * np.abs(sizes * y).sum(axis=0))
    assert found.point_sums[80] == found.count
