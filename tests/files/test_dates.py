"""Date-times as inputs, from data frames to predictions, figures and files."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from orthogp import GPClassifier, GPRegressor, InputError
from orthogp.cli import main
from orthogp.errors import KernelError
from orthogp.files.columns import TimeScale
from orthogp.kernels import RBF, QuasiPeriodic, Sum, seasonal

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

DAYS = np.arange("2020-03-01", "2020-06-01", dtype="datetime64[D]")
NUMBERS = np.arange(len(DAYS), dtype=np.float64)
Y = np.sin(NUMBERS / 10)


def model(**settings: Any) -> GPRegressor:
    return GPRegressor(RBF(1.0, 8.0), learn=False, noise_variance=0.01, **settings)


FRAMES = {
    "pandas": lambda t: pd.DataFrame({"day": t}),
    "pandas with a zone": lambda t: pd.DataFrame({"day": pd.to_datetime(t).tz_localize("UTC")}),
    "pandas of Python's dates": lambda t: pd.DataFrame({"day": list(t.astype(object))}),
    "polars of dates": lambda t: pl.DataFrame({"day": t}),
    "polars of date-times": lambda t: pl.DataFrame({"day": t.astype("datetime64[us]")}),
    "an array": lambda t: t[:, None],
}


@pytest.mark.parametrize("kind", FRAMES)
def test_dates_are_days_since_the_first(kind: str) -> None:
    frame = FRAMES[kind]
    fitted = model().fit(frame(DAYS), Y)
    plain = model().fit(NUMBERS[:, None], Y)
    ahead = np.arange("2020-05-25", "2020-06-10", dtype="datetime64[D]")
    want = plain.predict((ahead - DAYS[0]).astype(float)[:, None])
    np.testing.assert_allclose(fitted.predict(frame(ahead)), want, atol=1e-12)
    assert fitted.time_scales_ == (TimeScale("days", "2020-03-01"),)
    # Numbers are days too, if they come without names.
    if kind == "an array":
        np.testing.assert_allclose(
            fitted.predict(NUMBERS[:, None]), plain.predict(NUMBERS[:, None])
        )


def test_zones_become_utc_and_hours_fractions() -> None:
    times = pd.to_datetime(["2020-03-01 01:00", "2020-03-02 13:00"]).tz_localize("Europe/Paris")
    fitted = model().fit(pd.DataFrame({"t": times}), [0.0, 1.0])
    X = fitted._sketch.X[:, 0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(X, [0.0, 1.5])


def test_dates_stand_beside_numbers() -> None:
    rng = np.random.default_rng(0)
    other = rng.uniform(0, 1, len(DAYS))
    kernel = RBF(1.0, [8.0, 1.0])
    frame = pd.DataFrame({"depth": other, "day": DAYS})[["day", "depth"]]
    fitted = GPRegressor(kernel, learn=False, noise_variance=0.01).fit(frame, Y)
    plain = GPRegressor(kernel, learn=False, noise_variance=0.01)
    plain.fit(np.column_stack([NUMBERS, other]), Y)
    np.testing.assert_allclose(
        fitted.predict(frame), plain.predict(np.column_stack([NUMBERS, other]))
    )
    assert fitted.time_scales_[1] is None


def test_domains_may_be_dates() -> None:
    frame = FRAMES["pandas"](DAYS)
    fitted = model(solver="dense", domain=("2020-02-01", date(2020, 8, 1))).fit(frame, Y)
    assert fitted._sketch.extent.lower[0] == -29
    assert fitted._sketch.extent.upper[0] == 153
    assert "2020" in fitted.summary()


def test_files_keep_the_days(tmp_path: Path) -> None:
    frame = FRAMES["pandas"](DAYS)
    fitted = model().fit(frame, Y)
    fitted.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_array_equal(again.predict(frame), fitted.predict(frame))
    # The command line predicts at dates of a file by such a model.
    frame.to_csv(tmp_path / "d.csv", index=False)
    args = ["predict", str(tmp_path / "m.orthogp"), str(tmp_path / "d.csv")]
    result = CliRunner().invoke(main, [*args, "--out", str(tmp_path / "p.csv")])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "p.csv")
    assert table["day"][0] == "2020-03-01"
    np.testing.assert_allclose(table["mean"], fitted.predict(frame), atol=1e-9)


def test_models_of_files_take_dates_of_frames(tmp_path: Path) -> None:
    pd.DataFrame({"day": DAYS, "y": Y}).to_csv(tmp_path / "d.csv", index=False)
    fitted = model().fit_files(tmp_path / "d.csv", "y")
    plain = model().fit(NUMBERS[:, None], Y)
    np.testing.assert_allclose(
        fitted.predict(DAYS[:, None]), plain.predict(NUMBERS[:, None]), atol=1e-9
    )


def test_figures_and_grids_show_dates() -> None:
    pytest.importorskip("matplotlib")
    fitted = model().fit(FRAMES["pandas"](DAYS), Y)
    axes = fitted.plot().axes[0]
    assert axes.get_xlabel() == "day"
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert any("Apr" in label for label in labels)
    pytest.importorskip("xarray")
    grid = fitted.predict_grid(7.0)
    assert grid["day"].values[0] == np.datetime64("2020-03-01")
    ahead = np.array(["2020-06-05"], dtype="datetime64[D]")
    found = fitted.predict_grid(coordinates={"day": ahead})["mean"]
    np.testing.assert_allclose(found, fitted.predict(FRAMES["pandas"](ahead)))


def test_classifiers_take_dates() -> None:
    frame = FRAMES["pandas"](DAYS)
    found = GPClassifier(RBF(1.0, 8.0), learn=False).fit(frame, Y > 0)
    assert found.predict_proba(frame).shape == (len(DAYS), 2)


def test_what_cannot_be_dated_is_refused() -> None:
    frame = FRAMES["pandas"](DAYS)
    with pytest.raises(InputError, match="was fitted as numbers"):
        model().fit(pd.DataFrame({"day": NUMBERS}), Y).predict(frame)
    with pytest.raises(InputError, match="'day' holds durations"):
        model().fit(pd.DataFrame({"day": DAYS - DAYS[0]}), Y)
    with pytest.raises(InputError, match="'day'"):
        model().fit(frame.assign(day=frame["day"].mask(NUMBERS == 3)), Y)


def test_seasons_have_the_calendar_s_periods() -> None:
    kernel = seasonal("yearly", "weekly", 29.53, variance=2.0)
    assert isinstance(kernel, Sum)
    periods = [float(part.period) for part in kernel.terms if isinstance(part, QuasiPeriodic)]
    np.testing.assert_allclose(periods, [365.2425, 7.0, 29.53])
    assert all(part.fixed == ("period",) for part in kernel.terms)
    (daily,) = [part for part, _ in seasonal("daily", unit="hours").primitives()]
    assert float(daily.parameters()["period"]) == 24.0
    for seasons, unit in ((("monthly",), "days"), ((), "days"), (("daily",), "weeks")):
        with pytest.raises(KernelError):
            seasonal(*seasons, unit=unit)
