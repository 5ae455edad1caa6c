"""Hyperparameters for gaps: which rows are hidden, and what predicting them teaches."""

from __future__ import annotations

import numpy as np
import pytest

from orthogp import GPClassifier, GPRegressor, InputError, mirrored_gaps, tune_for_gaps
from orthogp.kernels import Matern12, Matern32

SIDE = 40


def grid_with_a_hole() -> np.ndarray:
    """Return a grid without some columns and rows left of and below the middle."""
    cells = np.stack(np.meshgrid(*2 * [np.arange(SIDE)], indexing="ij"), axis=-1).reshape(-1, 2)
    hole = (abs(cells[:, 0] - 10) <= 4) & (abs(cells[:, 1] - 14) <= 5)
    return cells[~hole].astype(float)


def test_rows_are_hidden_where_the_mirror_image_of_a_gap_lies():
    X = grid_with_a_hole()
    last = SIDE - 1
    for hidden, middle in zip(
        mirrored_gaps(X), [(last - 10, 14), (10, last - 14), (last - 10, last - 14)], strict=True
    ):
        # Cells beside a row are no gap yet: the hole's border is left out.
        inner = (abs(X[:, 0] - middle[0]) <= 3) & (abs(X[:, 1] - middle[1]) <= 4)
        np.testing.assert_array_equal(hidden, inner)


def test_rows_at_the_same_place_count_as_one():
    X = grid_with_a_hole()
    for hidden, twice in zip(mirrored_gaps(X), mirrored_gaps(np.tile(X, (3, 1))), strict=True):
        np.testing.assert_array_equal(np.tile(hidden, 3), twice)


def test_units_of_columns_do_not_change_what_is_hidden():
    X = grid_with_a_hole()
    for here, there in zip(mirrored_gaps(X), mirrored_gaps(X * [1e3, 1e-3] + 7), strict=True):
        np.testing.assert_array_equal(here, there)


def test_one_column_has_one_mirror():
    X = np.linspace(0, 1, 101)[:, None]
    X = X[(X[:, 0] < 0.195) | (X[:, 0] > 0.305)]
    (hidden,) = mirrored_gaps(X)
    assert hidden.any()
    assert X[hidden].min() > 0.7
    assert X[hidden].max() < 0.8


def smooth_field(seed: int, num_rows: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with holes of a field of known, long range."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, 2))
    X = X[(np.abs(X[:, 0] - 0.25) > 0.12) | (np.abs(X[:, 1] - 0.6) > 0.2)]
    waves = rng.standard_normal((2, 200)) * 6.0
    phases = rng.uniform(0, 2 * np.pi, 200)
    f = np.sqrt(2 / 200) * np.cos(X @ waves + phases).sum(axis=1)
    return X, 3.0 + 5.0 * (f + 0.05 * rng.standard_normal(len(X)))


@pytest.mark.slow
def test_a_range_that_is_far_too_short_grows_and_fills_gaps_better():
    X, y = smooth_field(0)
    model = GPRegressor(
        Matern32(25.0, [0.02, 0.02]), noise_variance=0.06, learn=False, solver="iterative"
    ).fit(X, y)
    kernel = model.kernel_
    tuned = tune_for_gaps(model, X, y)
    assert tuned.rmse_after < 0.5 * tuned.rmse_before
    assert np.all(tuned.kernel.parameters()["lengthscale"] > 0.1)
    assert model.kernel_ is kernel
    # In gaps that were not hidden, of the same field: the left-out rectangle itself.
    rng = np.random.default_rng(0)
    rng.uniform(0, 1, (1500, 2))
    waves, phases = rng.standard_normal((2, 200)) * 6.0, rng.uniform(0, 2 * np.pi, 200)
    inside = np.random.default_rng(1).uniform([0.15, 0.42], [0.35, 0.78], (200, 2))
    truth = 3.0 + 5.0 * np.sqrt(2 / 200) * np.cos(inside @ waves + phases).sum(axis=1)
    better = GPRegressor(tuned.kernel, noise_variance=tuned.noise_variance, learn=False).fit(X, y)
    errors = [np.sqrt(np.mean((own.predict(inside) - truth) ** 2)) for own in (model, better)]
    assert errors[1] < 0.5 * errors[0]


def test_a_common_factor_of_all_variances_comes_out_the_same():
    X, y = smooth_field(5, 800)
    tuned = []
    for factor in (0.01, 1.0, 100.0):
        model = GPRegressor(
            Matern32(20.0 * factor, [0.3, 0.3]),
            noise_variance=0.06 * factor,
            learn=False,
            mean=None,
            solver="iterative",
        ).fit(X, y)
        tuned.append(tune_for_gaps(model, X, y, max_evaluations=4))
    noises = [own.noise_variance for own in tuned]
    variances = [float(own.kernel.parameters()["variance"]) for own in tuned]
    np.testing.assert_allclose(noises, noises[1], rtol=0.01)
    np.testing.assert_allclose(variances, variances[1], rtol=0.05)


@pytest.mark.slow
def test_reported_errors_are_those_of_predictions_from_the_kept_rows():
    X, y = smooth_field(1, 800)
    settings = {"noise_variance": 0.06, "learn": False, "solver": "iterative"}
    model = GPRegressor(Matern32(25.0, [0.1, 0.2]), **settings).fit(X, y)
    hidden = mirrored_gaps(X)
    tuned = tune_for_gaps(model, X, y, max_evaluations=1)
    assert tuned.num_evaluations == 1
    assert not tuned.converged
    assert tuned.num_hidden == tuple(mask.sum() for mask in hidden)
    squares = []
    for mask in hidden:
        kept = GPRegressor(model.kernel_, **settings).fit(X[~mask], y[~mask])
        squares.append((kept.predict(X[mask]) - y[mask]) ** 2)
    expected = np.sqrt(np.mean(np.concatenate(squares)))
    # Another lattice, for other rows: the wrapped prior differs a little.
    assert tuned.rmse_before == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_the_term_of_the_longest_range_is_tuned_unless_others_are_named():
    X, y = smooth_field(2, 800)
    kernel = Matern12(1.0, [0.05, 0.05]) + Matern32(25.0, [0.1, 0.1])
    model = GPRegressor(kernel, noise_variance=0.06, learn=False, solver="iterative").fit(X, y)

    def changed(**options) -> list[bool]:
        tuned = tune_for_gaps(model, X, y, max_evaluations=3, **options).kernel
        pairs = zip(model.kernel_.primitives(), tuned.primitives(), strict=True)
        return [
            not np.allclose(old.parameters()["lengthscale"], new.parameters()["lengthscale"])
            for (old, _), (new, _) in pairs
        ]

    assert changed() == [False, True]
    assert changed(terms=[0]) == [True, False]


@pytest.mark.slow
def test_columns_units_and_weights_are_the_users():
    X, y = smooth_field(3, 600)
    wide = np.c_[X[:, 1], np.zeros(len(X)), 100 * X[:, 0]]
    rng = np.random.default_rng(0)
    w = rng.integers(1, 3, len(X)).astype(float)
    settings = {"noise_variance": 0.06, "learn": False, "solver": "iterative"}
    plain = GPRegressor(Matern32(25.0, [0.1, 0.1]), **settings)
    moved = GPRegressor(Matern32(25.0, [10.0, 0.1]).on(2, 0), **settings)
    one = tune_for_gaps(plain.fit(X, y, w), X, y, w, max_evaluations=3)
    other = tune_for_gaps(moved.fit(wide, y, w), wide, y, w, max_evaluations=3)
    assert other.rmse_after == pytest.approx(one.rmse_after, rel=1e-3)
    for kernel in (one.kernel, other.kernel):
        GPRegressor(kernel, **settings).fit(X if kernel is one.kernel else wide, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terms": [1]}, "1 terms, counted from 0"),
        ({"terms": []}, "1 terms, counted from 0"),
        ({"hidden": [np.ones(3, dtype=bool)]}, "True or False for each of the"),
        ({"hidden": [np.arange(484)]}, "True or False for each of the"),
        ({"hidden": []}, "no gaps to learn from"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options, message):
    X, y = smooth_field(4, 500)
    model = GPRegressor(Matern32(25.0, 0.1), noise_variance=0.06, learn=False).fit(X, y)
    with pytest.raises(InputError, match=message):
        tune_for_gaps(model, X, y, **options)


def test_other_models_targets_and_fixed_kernels_are_refused():
    X, y = smooth_field(6, 500)
    additive = GPRegressor("additive-matern32", solver="dense", max_seconds=5).fit(X, y)
    with pytest.raises(InputError, match="columns act jointly"):
        tune_for_gaps(additive, X, y)
    fixed = Matern32(1.0, 0.2, fixed=("variance", "lengthscale"))
    model = GPRegressor(fixed, noise_variance=0.01, learn=False).fit(X, y)
    with pytest.raises(InputError, match="are fixed"):
        tune_for_gaps(model, X, y)
    with pytest.raises(InputError, match="must have 1 columns as before"):
        tune_for_gaps(model, X, np.c_[y, y])
    two = GPRegressor("matern32", noise_variance=0.01, learn=False).fit(X, np.c_[y, 9 * y])
    with pytest.raises(InputError, match="same units"):
        tune_for_gaps(two, X, np.c_[y, 9 * y])
    wide = np.random.default_rng(0).uniform(0, 1, (50, 4))
    four = GPRegressor(Matern32(), noise_variance=0.01, learn=False).fit(wide, wide[:, 0])
    with pytest.raises(InputError, match="columns act jointly, up to three"):
        tune_for_gaps(four, wide, wide[:, 0])
    with pytest.raises(InputError, match="takes a GPRegressor, got GPClassifier"):
        tune_for_gaps(GPClassifier(), X, y > 1)


def test_weights_that_are_precisions_scale_with_the_noise():
    X, y = smooth_field(7, 600)
    kernel, tuned = Matern32(20.0, [0.2, 0.2]), []
    for weight in (1.0, 100.0):
        model = GPRegressor(
            kernel,
            noise_variance=0.06 * weight,
            learn=False,
            weights="precisions",
            solver="iterative",
        )
        w = np.full(len(X), weight)
        tuned.append(tune_for_gaps(model.fit(X, y, w), X, y, w, max_evaluations=3))
    # The lattices differ, which know the sum of the weights; counted as rows they would make
    # variances a hundredth.
    variances = [float(own.kernel.parameters()["variance"]) for own in tuned]
    assert variances[1] == pytest.approx(variances[0], rel=0.2)
    assert tuned[1].noise_variance == pytest.approx(100 * tuned[0].noise_variance, rel=0.2)


def test_rows_of_weight_zero_are_as_good_as_absent():
    X, y = smooth_field(8, 600)
    used = np.arange(len(X)) % 5 > 0
    model = GPRegressor(Matern32(20.0, [0.2, 0.2]), noise_variance=0.06, learn=False)
    model.fit(X, y, used.astype(float))
    weighted = tune_for_gaps(model, X, y, used.astype(float), max_evaluations=2)
    absent = tune_for_gaps(model, X[used], y[used], max_evaluations=2)
    assert weighted.num_hidden == absent.num_hidden
    assert weighted.rmse_before == pytest.approx(absent.rmse_before, rel=1e-6)


def test_a_fixed_variance_stays():
    X, y = smooth_field(9, 600)
    kernel = Matern32(20.0, [0.1, 0.1]).fix("variance")
    model = GPRegressor(kernel, noise_variance=0.06, learn=False, solver="iterative").fit(X, y)
    tuned = tune_for_gaps(model, X, y, max_evaluations=3)
    assert float(tuned.kernel.parameters()["variance"]) == pytest.approx(20.0)
    assert tuned.noise_variance == pytest.approx(0.06)
