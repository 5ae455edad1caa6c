"""fit, predict, report, sketch and merge from the command line."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from orthogp import GPRegressor
from orthogp.cli import main
from orthogp.storage import load_sketch

# Such fits take a fraction of a second.
QUICK = ("--kernel", "rbf", "--num-features", "21", "--solver", "dense")


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def succeed(*arguments: object, stdin: bytes | None = None) -> Result:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments: object, code: int = 1) -> str:
    """The sentence with which a command fails; nothing but it may be said."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    return last.removeprefix("Error: ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hours of a month, as text and as Parquet files; two rows lack a value."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    hours = np.datetime64("2024-03-01") + np.arange(600).astype("m8[h]")
    level = np.sin(np.arange(600) / 40) + 0.1 * rng.standard_normal(600)
    lines = [f"{t},{y!r}\n" for t, y in zip(hours, level.tolist())]
    lines[17:17] = [f"{hours[17]},\n", ",1.0\n"]
    (folder / "levels.csv").write_text("time,level\n" + "".join(lines))
    (folder / "parts").mkdir()
    for i in range(3):
        part = slice(200 * i, 200 * (i + 1))
        table = pa.table({"time": hours[part].astype("M8[s]"), "level": level[part]})
        pq.write_table(table, folder / "parts" / f"{i}.parquet", row_group_size=40)
    (folder / "plain.csv").write_text(
        "a,b,y\n" + "".join(f"{i % 20},{i // 20},{np.sin(i / 30)}\n" for i in range(400))
    )
    return folder


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    path = data / "model.orthogp"
    succeed("fit", data / "levels.csv", "--target", "level", *QUICK, "--out", path)
    return path


# ---------------------------------------------------------------------- fit


def test_fit_shows_the_model_and_what_became_of_the_rows(data: Path) -> None:
    out = data / "shown.orthogp"
    result = succeed("fit", data / "levels.csv", "--target", "level", *QUICK, "--out", out)
    assert result.stderr.splitlines() == [
        "time is in hours since 2024-03-01.",
        "2 rows lack a value and are left out.",
    ]
    lines = result.stdout.splitlines()
    assert lines[0] == f"{data / 'levels.csv'}: time → level"
    assert lines[1] == "GPRegressor: 600 rows, 1 input column"
    assert lines[-1] == f"Model: {out}"
    model = GPRegressor.load(out)
    assert model.about_["times"] == [{"unit": "hours", "origin": "2024-03-01"}]
    assert model.diagnostics_ is not None
    np.testing.assert_allclose(model.predict([[100.0]]), np.sin(2.5), atol=0.2)


def test_fit_for_machines(data: Path) -> None:
    out = data / "machine.orthogp"
    result = succeed(
        *("fit", data / "parts", "--target", "level", *QUICK, "--out", out, "--json", "--quiet"),
        "--no-diagnostics",
    )
    assert result.stderr == ""
    values = json.loads(result.stdout)
    assert (values["rows"], values["missing"], values["bad"]) == (600, 0, 0)
    assert values["inputs"] == ["time"]
    assert values["kernel"][0]["name"] == "RBF"
    assert values["elbo"] <= values["upper_bound"]
    assert values["model"] == str(out)


def test_many_rows_are_summed_in_one_pass(data: Path, model: Path) -> None:
    out = data / "large.orthogp"
    arguments = (
        "fit",
        data / "parts",
        "--target",
        "level",
        *QUICK,
        "--memory",
        "2kB",
        "--out",
        out,
    )
    result = succeed(*arguments)
    assert result.stderr.splitlines()[0] == (
        "600 rows take 9.6 kB, more than the 2 kB allowed: they are summed in one pass."
    )
    small, large = GPRegressor.load(model), GPRegressor.load(out)
    assert large.elbo_ == pytest.approx(small.elbo_, rel=1e-6)
    assert large.diagnostics_ is not None
    assert not Path(f"{out}.checkpoint").exists()


def test_fit_from_standard_input_to_standard_output(data: Path) -> None:
    text = (data / "plain.csv").read_bytes()
    result = succeed("fit", "-", "--target", "y", *QUICK, "--out", "-", stdin=text)
    (data / "piped.orthogp").write_bytes(result.stdout_bytes)
    assert GPRegressor.load(data / "piped.orthogp").statistics_.rows == 400
    assert "standard input: a, b → y" in result.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        (
            "levels.csv",
            ["--target", "depth"],
            "has no column 'depth'; its columns are time, level.",
        ),
        ("nowhere.csv", ["--target", "y"], "There is no file "),
        ("nowhere.orthogp", [], "nowhere.orthogp: check its name."),
        ("model.orthogp", [], "model.orthogp holds a GPRegressor, not rows or statistics"),
        ("plain.csv", ["--target", "y", "--kernel", "rbff"], "Unknown kernel 'rbff'; "),
        ("plain.csv", ["--target", "y", "--features", "tri"], "features must be one of "),
        ("plain.csv", ["--target", "y", "--weights", "w"], "plain.csv has no column 'w'"),
        ("parts/*.csv", ["--target", "y"], "No file matches "),
    ],
)
def test_fit_says_what_is_wrong(
    data: Path, model: Path, name: str, arguments: list[str], complaint: str
) -> None:
    assert model.exists()
    sentence = fail("fit", data / name, *arguments, "--out", data / "none.orthogp")
    assert complaint in sentence
    assert not (data / "none.orthogp").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fit", "data.csv", "--out", "m.orthogp"], "Missing option '--target'"),
        (["fit", "--target", "y", "--out", "m.orthogp"], "Missing argument 'DATA...'"),
        (["fit", "data.csv", "--target", "y"], "Missing option '--out'"),
        (["fit", "d", "--target", "y", "--out", "m", "--memory", "much"], "'much' is not a size"),
        (
            ["sketch", "d", "--target", "y", "--out", "m", "--domain", "5:1"],
            "is not intervals such",
        ),
        (["predict", "-", "-", "--out", "p.csv"], "cannot both come from standard input"),
    ],
)
def test_misuse_is_explained(arguments: list[str], complaint: str) -> None:
    assert complaint in fail(*arguments, code=2)


def test_a_bad_row_is_named_or_skipped(data: Path, tmp_path: Path) -> None:
    lines = (data / "plain.csv").read_text().splitlines()
    lines[100] = "no,number,here"
    path, out = tmp_path / "bad.csv", tmp_path / "m.orthogp"
    path.write_text("\n".join(lines))
    sentence = fail("fit", path, "--target", "y", "--out", out)
    assert "must hold finite numbers, got 'no' in line 101 of " in sentence
    result = succeed("fit", path, "--target", "y", *QUICK, "--out", out, "--skip-bad")
    assert f"1 bad row skipped, the first in line 101 of {path}." in result.stderr
    assert "GPRegressor: 399 rows" in result.stdout


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    arguments = ("fit", "nowhere.csv", "--target", "y", "--out", tmp_path / "m.orthogp")
    result = run(*arguments, "--debug")
    assert isinstance(result.exception, ValueError)
    assert result.exc_info is not None


# ---------------------------------------------------------------------- predict and report


def test_predictions_keep_the_rows_and_the_form_of_their_inputs(data: Path, model: Path) -> None:
    new = data / "new.csv"
    new.write_text("site,time\nx,2024-03-05T06:00\ny,\nz,2024-03-07\n")
    out = data / "predictions.csv"
    result = succeed("predict", model, new, "--out", out)
    assert "1 of 3 rows lacks an input: no predictions there." in result.stderr
    assert result.stdout == f"Predictions at 2 rows: {out}\n"
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["time"] for row in rows] == ["2024-03-05T06:00:00", "", "2024-03-07T00:00:00"]
    assert rows[1]["mean"] == ""
    mean, std = GPRegressor.load(model).predict([[102.0], [144.0]], return_std=True)
    for row, m, s in zip((rows[0], rows[2]), mean, std):
        assert float(row["mean"]) == pytest.approx(m)
        assert float(row["sd_function"]) == pytest.approx(s)
        assert float(row["upper_function"]) - float(row["mean"]) == pytest.approx(
            1.96 * s, rel=1e-4
        )
        assert float(row["mean"]) - float(row["lower_function"]) == pytest.approx(
            1.96 * s, rel=1e-4
        )


def test_predictions_as_parquet_with_noise(data: Path, model: Path) -> None:
    out = data / "predictions.parquet"
    result = succeed("predict", model, data / "parts", "--out", out, "--noise", "--json")
    assert json.loads(result.stdout)["rows"] == 600
    table = pq.read_table(out)
    assert table.column_names == [
        *("time", "mean", "sd_observation", "lower_observation", "upper_observation")
    ]
    assert pa.types.is_timestamp(table.schema.field("time").type)
    noise = GPRegressor.load(model).noise_variance_
    assert table["sd_observation"].to_numpy().min() > np.sqrt(noise)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("written", ["csv", "parquet"])
def test_predictions_keep_columns_of_any_content(
    model: Path, tmp_path: Path, ending: str, written: str
) -> None:
    new, out = tmp_path / f"new.{ending}", tmp_path / f"out.{written}"
    times = ["2024-03-05", "", "2024-03-07"]
    if ending == "csv":
        rows = zip(("a", "b, c", ""), times, ("007", "08", "9"))
        new.write_text("id,time,code\n" + "".join(f'"{i}",{t},{c}\n' for i, t, c in rows))
    else:
        stamps = pa.array([np.datetime64(t, "us") if t else None for t in times])
        table = {"id": ["a", "b, c", None], "time": stamps, "code": ["007", "08", "9"]}
        pq.write_table(pa.table(table), new)
    succeed("predict", model, new, "--out", out, "--keep", "code,id,time")
    if written == "csv":
        found = list(csv.DictReader(out.read_text().splitlines()))
    else:
        found = pq.read_table(out).to_pylist()
    assert [row["code"] for row in found] == ["007", "08", "9"]
    assert [row["id"] or "" for row in found] == ["a", "b, c", ""]
    assert list(found[0])[:4] == ["code", "id", "time", "mean"]
    complaint = fail("predict", model, new, "--out", tmp_path / "p.csv", "--keep", "nothing")
    assert "has no column 'nothing'" in complaint


def test_kept_columns_do_not_hide_predictions(model: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("time,mean\n2024-03-05,1\n")
    complaint = fail("predict", model, new, "--out", tmp_path / "p.csv", "--keep", "mean")
    assert "Two columns of the predictions would be called 'mean': leave it out" in complaint


def test_predictions_through_pipes(model: Path) -> None:
    text = b"time\n2024-03-05\n2090-01-01\n"
    result = succeed("predict", model, "-", "--out", "-", stdin=text)
    lines = result.stdout.splitlines()
    assert lines[0] == "time,mean,sd_function,lower_function,upper_function"
    assert [line.split(",")[0] for line in lines[1:]] == ["2024-03-05", "2090-01-01"]
    assert "1 of 2 rows lie outside the covered domain " in result.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x\n1\n", "has no column 'time'; its columns are x."),
        ("time\n17\n", "holds numbers, but must hold date-times."),
    ],
)
def test_rows_that_do_not_fit_the_model(
    data: Path, model: Path, tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "new.csv"
    path.write_text(text)
    assert complaint in fail("predict", model, path, "--out", tmp_path / "p.csv")
    assert "must end in .csv, .tsv or .parquet" in fail(
        "predict", model, path, "--out", tmp_path / "p.xls"
    )
    assert not list(tmp_path.glob("p.*"))


def test_models_from_python_need_names(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 40)[:, None]
    GPRegressor("rbf", num_features=11).fit(x, x[:, 0]).save(tmp_path / "m.orthogp")
    new = tmp_path / "new.csv"
    new.write_text("q\n0.5\n")
    out = tmp_path / "p.csv"
    assert "name them by --inputs" in fail("predict", tmp_path / "m.orthogp", new, "--out", out)
    succeed("predict", tmp_path / "m.orthogp", new, "--inputs", "q", "--out", out)
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["mean"]) == pytest.approx(0.5, abs=0.01)


def test_report_is_a_page_or_a_summary(data: Path, model: Path) -> None:
    assert succeed("report", model).stdout.startswith("GPRegressor: 600 rows")
    out = data / "report.html"
    assert succeed("report", model, "--out", out).stdout == f"Report: {out}\n"
    assert "<html" in out.read_text("utf-8")


# ---------------------------------------------------------------------- sketch and merge


def test_statistics_of_pieces_merge_to_those_of_the_whole(data: Path, tmp_path: Path) -> None:
    columns = ("--target", "level")
    whole = tmp_path / "whole.orthogp"
    succeed("sketch", data / "parts", *columns, "--out", whole)
    pieces = [tmp_path / f"{i}.orthogp" for i in range(3)]
    for i, piece in enumerate(pieces):
        part = data / "parts" / f"{i}.parquet"
        succeed("sketch", part, "--lattice-of", whole, "--out", piece)
    merged = tmp_path / "merged.orthogp"
    result = succeed("merge", *pieces, "--out", merged, "--json")
    assert json.loads(result.stdout)["rows"] == 600
    expected, about = load_sketch(whole)
    found, its = load_sketch(merged)
    for name in ("point_sums", "target_sums"):
        sums = getattr(expected.statistics, name)
        difference = np.abs(getattr(found.statistics, name) - sums).max()
        assert difference < 1e-12 * np.abs(sums).max()
    assert {**its, "source": ""} == {**about, "source": ""}
    model = tmp_path / "m.orthogp"
    result = succeed("fit", merged, *QUICK, "--out", model)
    assert "time → level" in result.stdout
    new = tmp_path / "new.csv"
    new.write_text("time\n2024-03-05\n")
    assert "\n2024-03-05," in succeed("predict", model, new, "--out", "-").stdout


def test_statistics_are_not_merged_with_themselves(data: Path, tmp_path: Path) -> None:
    one, copy, out = (tmp_path / f"{name}.orthogp" for name in ("one", "copy", "out"))
    succeed("sketch", data / "parts", "--target", "level", "--out", one)
    copy.write_bytes(one.read_bytes())
    assert f"{one} is named twice: its rows would count" in fail("merge", one, one, "--out", out)
    assert f"{copy} equals {one}: its rows would" in fail("merge", one, copy, "--out", out)


def test_statistics_that_do_not_merge(data: Path, tmp_path: Path) -> None:
    one, other, third = (tmp_path / f"{i}.orthogp" for i in range(3))
    succeed("sketch", data / "parts" / "0.parquet", "--target", "level", "--out", one)
    succeed("sketch", data / "parts" / "1.parquet", "--target", "level", "--out", other)
    succeed("sketch", data / "plain.csv", "--target", "y", "--inputs", "a", "--out", third)
    out = tmp_path / "sum.orthogp"
    assert "has other times than" in fail("merge", one, other, "--out", out)
    assert "has other inputs than" in fail("merge", one, third, "--out", out)
    (data / "shifted.csv").write_text("a,y\n100,1\n200,2\n300,4\n")
    succeed("sketch", data / "shifted.csv", "--target", "y", "--out", other)
    assert "are on different lattices and do not add up" in fail(
        "merge", third, other, "--out", out
    )
    assert "reach further than the model's lattice" in fail(
        "sketch", data / "shifted.csv", "--lattice-of", third, "--out", out
    )
    assert not out.exists()


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_statistics(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 10, 3200))
    table = pa.table({"x": x, "y": np.sin(x) + 0.1 * rng.standard_normal(len(x))})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=200)
    out = tmp_path / "stats.orthogp"
    checkpoint = Path(f"{out}.checkpoint")
    arguments = [
        *("sketch", str(tmp_path / "rows.parquet"), "--target", "y", "--batch-rows", "200"),
        *("--checkpoint-seconds", "0", "--out"),
    ]
    command = [sys.executable, "-m", "orthogp", *arguments, str(out)]
    killed = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    assert checkpoint.exists()
    assert not out.exists()

    result = succeed(*arguments, out)
    assert f"Going on from {checkpoint} after " in result.stderr
    assert not checkpoint.exists()
    succeed(*arguments, tmp_path / "whole.orthogp")
    found, about = load_sketch(out)
    expected, its = load_sketch(tmp_path / "whole.orthogp")
    assert found.statistics.rows == 3200
    for name in ("point_sums", "target_sums", "yy"):
        sums = getattr(expected.statistics, name)
        difference = np.abs(getattr(found.statistics, name) - sums).max()
        assert difference <= 1e-12 * np.abs(sums).max()
    assert about == its


def test_seasons_are_forecast_by_date(tmp_path: Path) -> None:
    dates = np.datetime64("2024-01-01") + np.arange(140)
    sales = 50 + 20 * np.sin(2 * np.pi * np.arange(140) / 7) + 10 * (np.arange(140) % 10 == 3)
    sales = sales + np.random.default_rng(0).normal(0, 1, 140)
    offers = (np.arange(140) % 10 == 3).astype(int)
    rows = [f"{d},{y:.3f},{z}" for d, y, z in zip(dates, sales, offers)]
    (tmp_path / "past.csv").write_text("\n".join(["date,sales,offer", *rows[:126]]))
    (tmp_path / "ahead.csv").write_text("\n".join(["date,sales,offer", *rows[126:]]))
    model, table = tmp_path / "m.orthogp", tmp_path / "p.csv"
    how = ("--target", "sales", "--inputs", "date", "--covariates", "offer", "--seasons", "weekly")
    fitted = run("fit", tmp_path / "past.csv", *how, "--no-diagnostics", "--out", model)
    assert fitted.exit_code == 0, fitted.stderr
    run("predict", model, tmp_path / "ahead.csv", "--noise", "--out", table)
    mean = np.array([float(line.split(",")[2]) for line in table.read_text().split()[1:]])
    assert np.sqrt(np.mean((mean - sales[126:]) ** 2)) < 1.5
    two = ("--target", "sales", "--inputs", "date,offer", "--seasons", "weekly")
    refused = run("fit", tmp_path / "past.csv", *two, "--out", tmp_path / "n.orthogp")
    assert "Seasons need a column of dates as the only input" in refused.stderr


def test_words_as_a_covariate_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y,holiday\n1,2,no\n2,3,yes\n3,1,no\n")
    how = ("--target", "y", "--inputs", "x", "--covariates", "holiday", "--out", tmp_path / "m")
    refused = run("fit", tmp_path / "d.csv", *how)
    assert "holds words, but must hold numbers: write it in numbers (0 and 1)" in refused.stderr
