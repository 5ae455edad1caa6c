"""Families compared on one small data set: what is reported is what was fitted."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import norm

from orthogp import FeatureError, GPRegressor, InputError
from orthogp.features.eigenfunction import Eigenfunction
from orthogp.features.random import RandomFourier
from orthogp.kernels import Matern32
from orthogp.report.comparison import MEASURES, Comparison, Result, compare_families
from orthogp.report.plots import Panel, plot_panels
from tests import oracles

NUMBERS = [11, 21, 41]


def make_rows(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows far from standardised units, so that a slip of units shows."""
    rng = np.random.default_rng(5)
    x = rng.uniform(100, 140, num_rows)
    signal = 30 * np.sin(x / 3) * np.exp(-(x - 100) / 40)
    return x[:, None], 500 + signal + 4 * rng.standard_normal(num_rows)


X, Y = make_rows(300)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return []


@pytest.fixture(scope="module")
def comparison(lines: list[str]) -> Comparison:
    families = ["lattice", "trig", Eigenfunction, RandomFourier]
    return compare_families(
        X, Y, families=families, num_features=NUMBERS[::-1], write=lines.append, source="rows.csv"
    )


def only(comparison: Comparison, family: str) -> list[Result]:
    return [result for result in comparison.results if result.family == family]


def fitted(comparison: Comparison, **parameters) -> GPRegressor:
    """The model that a result should be about, by the estimator alone."""
    model = GPRegressor(
        kernel=comparison.kernel,
        noise_variance=comparison.noise_variance,
        learn=False,
        domain=(X.min(), X.max()),
        **parameters,
    )
    return model.fit(X[comparison.train], Y[comparison.train])


# ---------------------------------------------------------------------- results


def test_results_come_by_family_and_number_with_the_exact_one_last(comparison: Comparison) -> None:
    names = ["lattice", "trig", "Eigenfunction", "RandomFourier"]
    pairs = [(name, m) for name in names for m in NUMBERS]
    assert [(r.family, r.asked) for r in comparison.results] == [*pairs, ("exact", 240)]


def test_a_line_is_written_as_each_fit_ends(comparison: Comparison, lines: list[str]) -> None:
    assert lines[0].startswith("hyperparameters: Matern32(variance=")
    assert lines[1:] == list(map(str, comparison.results))
    assert re.fullmatch(
        r"trig, M = 21: elbo -\S+, rmse \S+, nlpd \S+ \(\d+\.\d\d s\)",
        str(only(comparison, "trig")[1]),
    )


def test_hyperparameters_are_learned_from_the_fitted_rows(comparison: Comparison) -> None:
    alone = GPRegressor("matern32").fit(X[comparison.train], Y[comparison.train])
    assert comparison.kernel is not None
    assert repr(comparison.kernel) == repr(alone.kernel_)
    assert comparison.noise_variance == alone.noise_variance_
    assert 10 < alone.noise_variance_ < 25


def test_exact_log_likelihood_is_that_of_a_dense_gaussian(comparison: Comparison) -> None:
    exact = comparison.exact
    assert exact is not None
    assert exact.elbo == exact.tightened == exact.upper
    assert exact.residual == 0
    parameters = comparison.kernel.parameters()
    x, y = X[comparison.train], Y[comparison.train]
    covariance = oracles.gram_matrix(
        lambda lag: oracles.matern32(lag, parameters["variance"], parameters["lengthscale"]), x, x
    )
    # The constant mean has ten standard deviations of y as its own.
    covariance += 100 * y.var()
    expected = oracles.log_marginal_likelihood(covariance, y - y.mean(), comparison.noise_variance)
    assert exact.elbo == pytest.approx(expected, abs=1e-6)


def test_bounds_enclose_the_exact_log_likelihood(comparison: Comparison) -> None:
    for result in [*only(comparison, "lattice"), *only(comparison, "trig")]:
        assert result.elbo < result.tightened < comparison.exact.elbo < result.upper


@pytest.mark.parametrize("family", ["lattice", "trig"])
def test_more_features_leave_out_less_and_bound_better(comparison: Comparison, family: str) -> None:
    results = only(comparison, family)
    assert np.all(np.diff([r.residual for r in results]) < 0)
    assert np.all(np.diff([comparison.gap(r) for r in results]) < 0)
    assert all(0 < r.residual < 1 for r in results)


def test_residual_is_the_share_of_the_prior_variance_at_the_rows(comparison: Comparison) -> None:
    model = fitted(comparison, features="trig", num_features=21)
    unit = float(model.target_scale_[0]) ** 2
    variance = float(comparison.kernel.parameters()["variance"])
    Phi = model.features_.evaluate(comparison.kernel.scaled(1 / unit), X[comparison.train])
    left_out = 1 - unit * np.mean(np.sum(Phi**2, axis=1)) / variance
    assert only(comparison, "trig")[1].residual == pytest.approx(left_out, rel=1e-6)


@pytest.mark.parametrize(
    ("position", "parameters"),
    [(0, {"features": "lattice", "num_features": 11}), (-1, {"features": "exact"})],
)
def test_errors_are_those_of_the_model_at_the_rows_held_out(
    comparison: Comparison, position: int, parameters: dict
) -> None:
    model = fitted(comparison, **parameters)
    result = comparison.results[position]
    x, y = X[comparison.test], Y[comparison.test]
    mean, deviation = model.predict(x, return_std=True, include_noise=True)
    assert result.rmse == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-9)
    assert result.nlpd == pytest.approx(-np.mean(norm.logpdf(y, mean, deviation)), rel=1e-9)
    assert result.elbo == pytest.approx(model.elbo_, rel=1e-12)
    # Neither better than the noise allows, nor as bad as no model.
    assert 3 < result.rmse < Y.std()


def test_rows_are_split_at_random_and_apart(comparison: Comparison) -> None:
    assert len(comparison.test) == 60
    together = np.concatenate([comparison.train, comparison.test])
    np.testing.assert_array_equal(np.sort(together), np.arange(300))
    assert not np.array_equal(comparison.test, np.arange(60))


def test_targets_held_out_do_not_move_the_fits(comparison: Comparison) -> None:
    y = Y.copy()
    y[comparison.test] += 1000
    other = compare_families(X, y, families=["lattice"], num_features=[11])
    np.testing.assert_array_equal(other.test, comparison.test)
    assert repr(other.kernel) == repr(comparison.kernel)
    before, after = comparison.results[0], other.results[0]
    assert after.elbo == before.elbo
    assert after.rmse > 900


# ---------------------------------------------------------------------- what does not compare


def test_a_family_that_cannot_take_the_kernel_says_why(comparison: Comparison) -> None:
    for result in only(comparison, "Eigenfunction"):
        assert "needs the RBF kernel" in result.problem
        assert np.isnan([getattr(result, name) for name in MEASURES]).all()
        assert str(result) == f"Eigenfunction, M = {result.asked}: {result.problem}"
    text = comparison.table()
    assert text.count("needs the RBF kernel") == 1
    assert "\nNot fitted:\n  Eigenfunction, M = 11, 21, 41: " in text


def test_a_prior_of_its_own_is_not_bounded_by_the_kernels(comparison: Comparison) -> None:
    for result in only(comparison, "RandomFourier"):
        assert result.replaces_prior
        assert np.isnan(result.residual)
        assert np.isnan(comparison.gap(result))
        assert result.rmse > 3
    for name in ("elbo", "tightened", "upper"):
        assert comparison.best(name).family in ("lattice", "trig")
    row = next(line for line in comparison.table().splitlines() if line.startswith("RandomF"))
    assert row.count("†") == 3


def test_best_is_by_measure_and_number(comparison: Comparison) -> None:
    approximate = [r for r in comparison.results if not r.problem and r.family != "exact"]
    assert comparison.best() == min(approximate, key=lambda r: r.nlpd)
    assert comparison.best("rmse", 11) == min(
        (r for r in approximate if r.asked == 11), key=lambda r: r.rmse
    )
    assert comparison.best("elbo") == max(
        (r for r in approximate if not r.replaces_prior), key=lambda r: r.elbo
    )
    assert comparison.best("elbo", 12) is None
    with pytest.raises(InputError, match="measure must be one of residual, elbo"):
        comparison.best("beauty")


def test_gap_without_an_exact_result_is_below_the_smallest_upper_bound() -> None:
    def result(elbo: float, upper: float) -> Result:
        return Result("trig", 5, 5, elbo=elbo, upper=upper)

    results = (result(-9.0, -1.0), result(-7.0, -3.0))
    rows = np.arange(2)
    kernel = GPRegressor().fit(X[:20], Y[:20]).kernel_
    shared = Comparison(results, rows, rows, kernel, 1.0, "")
    assert [shared.gap(r) for r in results] == [6, 4]
    # At hyperparameters of their own, each upper bound is about another model.
    own = Comparison(results, rows, rows, None, None, "")
    assert [own.gap(r) for r in results] == [8, 4]
    assert own.best("upper") is None
    assert own.best("residual") is None


# ---------------------------------------------------------------------- as text, file and plot


def test_table_is_aligned_and_marks_the_best(comparison: Comparison) -> None:
    lines = comparison.table().splitlines()
    assert lines[0] == "rows.csv: Matern32, 240 rows fitted, 60 held out"
    assert lines[1].startswith("All fits share Matern32(variance=")
    head = lines[3].split()
    assert head == ["family", "M", "used", *(m.heading for m in MEASURES.values())]
    rows = lines[4 : lines.index("", 4)]
    shown = [r for r in comparison.results if not r.problem]
    for line, result in zip(rows, shown, strict=True):
        cells = line.split()
        assert cells[:3] == [result.family, str(result.asked), str(result.num_features)]
        for cell, (name, measure) in zip(cells[3:], MEASURES.items(), strict=True):
            number = cell.rstrip("*†").replace(",", "").replace("–", "nan")
            value = getattr(result, name)
            assert float(number) == pytest.approx(value, rel=0.06, abs=0.006, nan_ok=True)
            best = comparison.best(name, result.asked)
            wins = best is not None and measure.form.format(getattr(best, name)) in cell
            competes = result.family != "exact" and "†" not in cell
            assert ("*" in cell) == (wins and competes)
        # Each number ends below its heading, with room for a mark.
        for heading, cell in zip(head[3:], cells[3:], strict=True):
            end = lines[3].index(heading) + len(heading)
            assert line[:end].endswith(cell.rstrip("*†"))
    for measure in MEASURES.values():
        assert any(line.startswith(f"{measure.heading} ") for line in lines[4 + len(rows) :])


def test_numbers_used_are_shown_only_if_others_were_asked_for() -> None:
    rows = np.arange(2)
    as_asked = Comparison((Result("trig", 5, 5),), rows, rows, None, None, "")
    assert "used" not in as_asked.table().splitlines()[3]
    fewer = Comparison((Result("trig", 5, 4),), rows, rows, None, None, "")
    assert "used" in fewer.table().splitlines()[3]


def test_csv_holds_every_digit(comparison: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    comparison.to_csv(path)
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(comparison.results)
    for row, result in zip(rows, comparison.results, strict=True):
        assert (row["family"], int(row["asked"])) == (result.family, result.asked)
        assert row["problem"] == result.problem
        assert row["replaces_prior"] == str(result.replaces_prior)
        for name in MEASURES:
            value = getattr(result, name)
            assert row[name] == ("" if np.isnan(value) else repr(value))
    assert float(rows[0]["gap"]) == comparison.exact.elbo - comparison.results[0].elbo


def test_plot_is_drawn(comparison: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "compare.png"
    comparison.plot(path)
    pixels = imread(path)
    assert pixels.shape[1] > 2 * pixels.shape[0]
    white = np.mean(np.all(pixels[..., :3] == 1, axis=-1))
    assert 0.7 < white < 0.98


def test_legend_lies_outside_of_the_panels_and_names_each_curve_once() -> None:
    x = np.array([10.0, 20.0])
    left = Panel("left", "a", {"one": (x, np.array([1e-9, 1.0]))}, floor=1e-3)
    right = Panel("right", "b", {"one": (x, x), "two": (x, 2 * x)}, reference=7.0)
    figure = plot_panels([left, right], ["one", "two"], [10, 20], "t")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "exact GP"]
    box = legend.get_window_extent()
    for axes in figure.axes:
        assert not box.overlaps(axes.get_tightbbox())
    first, second = figure.axes
    assert first.get_yscale() == "log"
    np.testing.assert_array_equal(first.lines[0].get_ydata(), [1e-3, 1.0])
    assert first.get_ylabel() == "a (0.001 or less at the foot)"
    assert second.get_yscale() == "linear"
    assert second.get_ylabel() == "b"
    assert [label.get_text() for label in second.get_xticklabels()] == ["10", "20"]
    # The same family looks the same everywhere.
    assert first.lines[0].get_color() == second.lines[1].get_color()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("plot.xyz", "must end in .png, .pdf, .svg"), ("no/plot.png", "There is no directory")],
)
def test_plots_go_where_plots_can_go(
    comparison: Comparison, tmp_path: Path, name: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        comparison.plot(tmp_path / name)


# ---------------------------------------------------------------------- options


def test_families_may_learn_their_own_hyperparameters() -> None:
    x, y = make_rows(120)
    comparison = compare_families(x, y, families=["lattice"], num_features=[9], learn=True)
    assert comparison.kernel is None
    few, exact = comparison.results
    model = GPRegressor(features="lattice", num_features=9, domain=(x.min(), x.max()))
    model.fit(x[comparison.train], y[comparison.train])
    assert few.elbo == pytest.approx(model.elbo_, rel=1e-9)
    assert few.elbo < exact.elbo
    assert "Each fit learned its own hyperparameters." in comparison.table()


def test_time_may_run_out() -> None:
    comparison = compare_families(X, Y, families=["trig"], num_features=[11], max_seconds=1e-6)
    assert [r.problem for r in comparison.results] == 2 * ["The time had run out."]
    assert comparison.best() is None
    assert "Not fitted:\n  trig, M = 11: The time had run out." in comparison.table()


def test_rows_may_be_fewer_and_the_seed_another() -> None:
    # The rows are chosen before the time runs out.
    options = {"max_rows": 50, "test_fraction": 0.3, "max_seconds": 1e-6}
    first, again, other = (compare_families(X, Y, seed=seed, **options) for seed in (1, 1, 2))
    assert (len(first.train), len(first.test)) == (35, 15)
    np.testing.assert_array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)


def test_rows_held_out_are_covered_however_far_away() -> None:
    x, y = make_rows(60)
    held_out = np.random.default_rng(0).permutation(60)[0]
    x[held_out] = 400.0
    # Beyond what a model covers it warns, and warnings are errors here.
    comparison = compare_families(x, y, families=["lattice"], num_features=[11])
    assert held_out in comparison.test


def test_kernel_may_leave_columns_unused() -> None:
    x, y = make_rows(60)
    wide = np.column_stack([np.random.default_rng(0).random(60), x[:, 0]])
    kernel = Matern32(variance=900.0, lengthscale=5.0).on(1)
    comparison = compare_families(wide, y, kernel=kernel, families=["lattice"], num_features=[11])
    assert not any(result.problem for result in comparison.results)
    assert comparison.exact.rmse < 0.7 * y.std()


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({"X": X[:-1]}, InputError, "same n"),
        ({"y": np.column_stack([Y, Y])}, InputError, r"y \(n,\)"),
        ({"y": [*Y[:-1], np.nan]}, InputError, "y has 1 NaN"),
        ({"y": ["a"] * 300}, InputError, "must be numbers"),
        ({"X": X[:2], "y": Y[:2]}, InputError, "At least two rows to fit"),
        ({"test_fraction": 1.0}, InputError, "test_fraction must lie between 0 and 1"),
        ({"num_features": [0]}, FeatureError, "num_features must be a whole number ≥ 1, got 0"),
        ({"families": ["trigg"]}, FeatureError, "features must be one of auto, lattice, .*'trigg'"),
    ],
)
def test_misuse_is_explained_before_any_fit(arguments: dict, error: type, complaint: str) -> None:
    lines: list[str] = []
    with pytest.raises(error, match=complaint):
        compare_families(**{"X": X, "y": Y, "write": lines.append, **arguments})
    assert lines == []
