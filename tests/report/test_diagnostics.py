"""diagnose: predictions of each row from all others, against fits without that row."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orthogp import GPClassifier, GPRegressor, InputError
from orthogp.features import InducingPoints
from orthogp.kernels import RBF, Matern12, Matern32
from orthogp.report.diagnostics import (
    LEVELS,
    ClassificationDiagnostics,
    Diagnostics,
    RegressionDiagnostics,
    diagnose,
    leave_one_out,
)
from tests.oracles import Array


def make_rows(n: int, num_columns: int, seed: int, num_targets: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, num_columns))
    truth = np.sin(3 * X[:, 0]) + 0.5 * np.sum(X, axis=1)
    y = truth[:, None] * np.arange(1, num_targets + 1) + 0.3 * rng.standard_normal((n, num_targets))
    return X, y[:, 0] if num_targets == 1 else y


SMOOTH, ROUGH = RBF(variance=1.0, lengthscale=0.5), Matern32(variance=1.0, lengthscale=0.5)
POINTS = InducingPoints(Z=np.linspace(-1, 1, 6)[:, None])
# Few features, so that what they leave out counts; the number is given, to stay as it is.
MODELS: dict[str, dict[str, Any]] = {
    "lattice": {"kernel": SMOOTH, "num_features": 7},
    "linear mean": {"kernel": SMOOTH, "num_features": 9, "mean": "linear"},
    "no mean": {"kernel": ROUGH, "num_features": 9, "mean": None},
    "inducing points": {"kernel": ROUGH, "features": POINTS, "mean": None},
    "exact": {"kernel": ROUGH, "features": "exact", "mean": None},
    "repeats": {"kernel": SMOOTH, "num_features": 7, "mean": None},
    "precisions": {"kernel": SMOOTH, "num_features": 7, "mean": None, "weights": "precisions"},
}


@pytest.mark.parametrize("name", MODELS)
def test_leaving_a_row_out_is_fitting_without_it(name: str) -> None:
    X, y = make_rows(30, 1, seed=1)
    row = int(np.argsort(X[:, 0])[12])
    settings = {"noise_variance": 0.1, "learn": False, "domain": (-1, 1), **MODELS[name]}
    weighted = name in ("repeats", "precisions")
    weights = np.random.default_rng(2).integers(1, 4, 30).astype(float) if weighted else None
    model = GPRegressor(**settings).fit(X, y, weights)
    found = leave_one_out(model, X, y[:, None], weights)
    keep = np.arange(30) != row
    rest = GPRegressor(**settings).fit(X[keep], y[keep], None if weights is None else weights[keep])
    mean, std = rest.predict(X[[row]], return_std=True)
    noise = 0.1 / weights[row] if name == "precisions" and weights is not None else 0.1
    # The offset's broad prior is relative to the targets' standard deviation, which a row moves.
    tolerance = 2e-4 if settings.get("mean", "constant") else 1e-9
    scale = model.target_scale_[0]
    np.testing.assert_allclose(found.residual[row, 0] * scale, y[row] - mean[0], atol=tolerance)
    variance = found.variance[row] * scale**2
    np.testing.assert_allclose(variance, std[0] ** 2 + noise, rtol=tolerance)


def test_leaving_a_row_out_of_an_additive_model_is_fitting_without_it() -> None:
    X, y = make_rows(60, 4, seed=3)
    row = int(np.argmin(np.sum(X**2, axis=1)))
    kernel = RBF(1.0, 0.7).on(0) + RBF(0.5, 0.8).on(1) + RBF(0.5, 0.8).on(2) + RBF(0.5, 0.8).on(3)
    settings = {"noise_variance": 0.1, "learn": False, "mean": None, "num_features": 41}
    model = GPRegressor(kernel, domain=(-1, 1), **settings).fit(X, y)
    found = leave_one_out(model, X, y[:, None])
    keep = np.arange(60) != row
    rest = GPRegressor(kernel, domain=(-1, 1), **settings).fit(X[keep], y[keep])
    mean, std = rest.predict(X[[row]], return_std=True, include_noise=True)
    scale = model.target_scale_[0]
    np.testing.assert_allclose(found.residual[row, 0] * scale, y[row] - mean[0], rtol=1e-6)
    np.testing.assert_allclose(found.variance[row] * scale**2, std[0] ** 2, rtol=1e-6)


def test_leaving_rows_out_with_the_iterative_solver_is_that_of_its_noisier_model() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (600, 1))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(600)
    settings = {"noise_variance": 0.09, "learn": False}
    kernel = Matern12(1.0, 2.0)
    iterative = GPRegressor(kernel, solver="iterative", **settings).fit(X, y)
    exact = GPRegressor(kernel, features="exact", **settings).fit(X, y)
    found, wanted = (leave_one_out(model, X, y[:, None]) for model in (iterative, exact))
    # The iterative solver's variances have an error of some percent, and so has what they make of
    # a residual: the larger it is, the more.
    sd = np.sqrt(wanted.variance)
    error = np.abs(found.residual[:, 0] - wanted.residual[:, 0])
    assert np.sqrt(np.mean((error / sd) ** 2)) < 0.03
    assert np.max(error / (sd + np.abs(wanted.residual[:, 0]))) < 0.05
    assert np.max(np.abs(np.sqrt(found.variance) / sd - 1)) < 0.05


def test_models_of_very_many_features_are_checked_by_their_estimated_variances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Solving for each row would take too long there, and a joint covariance takes 256 rows."""
    monkeypatch.setattr("orthogp.report.diagnostics._MOST_SOLVED", 10_000)
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (1000, 1))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(1000)
    settings = {"noise_variance": 0.09, "learn": False, "solver": "iterative"}
    model = GPRegressor(Matern12(1.0, 2.0), **settings).fit(X, y)
    found = diagnose(model, X, y)
    assert isinstance(found, RegressionDiagnostics)
    assert np.all(np.abs(found.coverage - LEVELS) < 5 * found.coverage_error)


@pytest.fixture(scope="module")
def checked() -> tuple[GPRegressor, Array, Array, RegressionDiagnostics]:
    X, y = make_rows(3000, 2, seed=4, num_targets=2)
    kernel = RBF(variance=2.0, lengthscale=0.7)
    model = GPRegressor(kernel, noise_variance=0.09, learn=False).fit(X, y)
    found = diagnose(model, X, y)
    assert isinstance(found, RegressionDiagnostics)
    return model, X, y, found


def test_a_model_with_the_right_noise_is_found_calibrated(checked: Any) -> None:
    found = checked[3]
    # Five standard errors: a false alarm in one of two million.
    assert np.all(np.abs(found.coverage - LEVELS) < 5 * found.coverage_error)
    assert found.pit.sum(axis=1).tolist() == [3000, 3000]
    assert np.all(stats.chisquare(found.pit, axis=1).pvalue > 1e-4)
    np.testing.assert_allclose(found.residual_moments[:, :2], [[0, 1], [0, 1]], atol=0.08)


def test_a_model_with_too_little_noise_is_found_out() -> None:
    X, y = make_rows(1000, 1, seed=5)
    model = GPRegressor(SMOOTH, noise_variance=0.01, learn=False).fit(X, y)
    found = diagnose(model, X, y)
    assert isinstance(found, RegressionDiagnostics)
    assert found.covered(0.95) < 0.6
    assert found.residual_moments[0, 1] > 2


def test_scores_are_those_of_scipys_normal(checked: Any) -> None:
    model, X, y, found = checked
    left = leave_one_out(model, X, y)
    error = left.residual * model.target_scale_
    sd = np.sqrt(left.variance)[:, None] * model.target_scale_
    np.testing.assert_allclose(found.rmse, np.sqrt(np.mean(error**2, axis=0)))
    np.testing.assert_allclose(found.nlpd, -stats.norm.logpdf(error, scale=sd).mean(axis=0))
    # ∫ (F(t) − 1[t ≥ error])² dt for the first row, by a fine sum.
    one = RegressionDiagnostics.from_state(diagnose(model, X[:1], y[:1]).to_state())
    assert isinstance(one, RegressionDiagnostics)
    t = np.linspace(-12 * sd[0, 0], 12 * sd[0, 0], 200_001)
    gap = stats.norm.cdf(t, scale=sd[0, 0]) - (t >= error[0, 0])
    assert one.crps[0] == pytest.approx(np.sum(gap**2) * (t[1] - t[0]), rel=1e-3)


def test_residuals_along_inputs_and_on_the_map_are_averages(checked: Any) -> None:
    _, X, _, found = checked
    assert found.input_count.sum(axis=1).tolist() == [3000, 3000]
    mean = np.nansum(found.input_mean * found.input_count, axis=-1) / 3000
    np.testing.assert_allclose(mean, found.residual_moments[:, [0, 0]])
    # Rows of the map are the second input.
    high = np.sum(X[:, 1] > (X[:, 1].min() + X[:, 1].max()) / 2)
    assert found.map_count[12:].sum() == high
    np.testing.assert_allclose(
        np.nansum(found.map_mean * found.map_count, axis=(1, 2)) / 3000,
        found.residual_moments[:, 0],
    )


def test_targets_are_counted_against_predictions_of_the_other_rows(checked: Any) -> None:
    model, X, y, found = checked
    residual = leave_one_out(model, X, y).residual[:, 1] * model.target_scale_[1]
    observed, predicted = y[:, 1], y[:, 1] - residual
    (low, high), counts = found.target_range[1], found.target_count[1]
    assert low == min(observed.min(), predicted.min())
    assert high == max(observed.max(), predicted.max())
    expected, *_ = np.histogram2d(
        observed, predicted, bins=len(counts), range=[(low, high), (low, high)]
    )
    # Rounding may put a row that lies on an edge into the next bin.
    assert np.abs(counts - expected).sum() <= 2
    assert counts.sum() == 3000


def test_checks_of_older_files_lack_the_table_of_targets(checked: Any) -> None:
    state = checked[3].to_state()
    older = {name: own for name, own in state.items() if not name.startswith("target_")}
    older["target_sd"] = state["target_sd"]
    found = RegressionDiagnostics.from_state(older)
    assert found.target_count.shape == (0, 0, 0)  # type: ignore[attr-defined]
    # Written and read once more.
    RegressionDiagnostics.from_state(found.to_state())


def test_the_size_does_not_grow_with_the_rows_and_some_are_enough() -> None:
    X, y = make_rows(2000, 1, seed=6)
    model = GPRegressor(SMOOTH, noise_variance=0.09, learn=False).fit(X, y)
    some, few = diagnose(model, X, y, max_rows=500), diagnose(model, X[:50], y[:50])
    assert isinstance(some, RegressionDiagnostics)
    assert (some.rows, some.rows_used) == (2000, 500)
    assert some.data_count.sum() == 2000
    assert np.nanmin(some.data_low) == y.min()
    sizes = [
        {name: np.size(value) for name, value in each.to_state().items()} for each in (some, few)
    ]
    assert sizes[0] == sizes[1]


def test_states_come_back_as_they_went(checked: Any) -> None:
    found = checked[3]
    state = found.to_state()
    assert all(isinstance(value, np.ndarray | str | float | int) for value in state.values())
    back = Diagnostics.from_state(state)
    assert type(back) is RegressionDiagnostics
    for each in fields(found):
        np.testing.assert_array_equal(getattr(back, each.name), getattr(found, each.name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "kind"),
        ({"pit": np.zeros((2, 3))}, "pit"),
        ({"rmse": np.zeros(3)}, "rmse"),
        ({"rows": "many"}, "rows"),
        ({"crps": None}, "crps"),
    ],
)
def test_states_that_are_none_are_refused(checked: Any, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Diagnostics.from_state({**checked[3].to_state(), **change})


def test_a_missing_entry_is_named(checked: Any) -> None:
    state = checked[3].to_state()
    del state["coverage"]
    with pytest.raises(InputError, match="coverage"):
        Diagnostics.from_state(state)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_classifier_is_scored_in_sample(num_classes: int) -> None:
    rng = np.random.default_rng(7)
    X = rng.uniform(-2, 2, (1500, 1))
    noisy = X[:, 0] + 0.8 * rng.standard_normal(1500)
    y = np.array(["a", "b", "c"])[np.digitize(noisy, [0.0] if num_classes == 2 else [-0.7, 0.7])]
    model = GPClassifier(RBF(4.0, 1.0), learn=False).fit(X, y)
    found = diagnose(model, X, y)
    assert isinstance(found, ClassificationDiagnostics)
    probability = model.predict_proba(X)
    hit = probability[np.arange(1500), np.searchsorted(model.classes_, y)]
    assert found.log_loss == pytest.approx(-np.mean(np.log(hit)))
    assert found.log_loss < found.base_log_loss
    assert found.accuracy == pytest.approx(np.mean(model.predict(X) == y))
    assert len(found.predicted) == (1 if num_classes == 2 else 3)
    error = np.sqrt(found.predicted * (1 - found.predicted) / np.maximum(found.counts, 1))
    seen = found.counts >= 20
    assert np.all(np.abs(found.predicted - found.observed)[seen] < 5 * error[seen])
    assert type(Diagnostics.from_state(found.to_state())) is ClassificationDiagnostics


def test_bad_input_is_refused(checked: Any) -> None:
    model, X, y, _ = checked
    with pytest.raises(InputError, match="max_rows"):
        diagnose(model, X, y, max_rows=0)
    with pytest.raises(InputError, match="columns"):
        diagnose(model, X, y[:, 0])
