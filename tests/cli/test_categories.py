"""Inputs that are categories in words: fitted, predicted at, shown and refused by the commands."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from orthogp.cli import main
from orthogp.errors import InputError
from orthogp.files.columns import Categories
from orthogp.files.source import open_source
from orthogp.kernels.terms import beside_categories
from orthogp.storage import load_model

COLOURS = ("blue", "green", "red")
EFFECTS = np.array([2.0, 1.0, -3.0])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a table of 200 rows, the same as Parquet, and a model of them."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    made = tmp_path_factory.mktemp("categories")
    rng = np.random.default_rng(0)
    x, code = rng.uniform(0, 10, 200), rng.integers(0, 3, 200)
    y = np.sin(x) + EFFECTS[code] + 0.1 * rng.standard_normal(200)
    colours = [COLOURS[i] for i in code]
    with (made / "data.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["x", "colour", "y"])
        rows.writerows(zip(x, [f" {colour}" for colour in colours], y, strict=True))
    table = pa.table({"x": x, "colour": pa.array(colours).dictionary_encode(), "y": y})
    pq.write_table(table, made / "data.parquet")
    result = run("fit", made / "data.csv", "--target", "y", "--out", made / "model.orthogp")
    assert result.exit_code == 0, result.stderr
    assert "colour is one of 3 categories (blue, green, red)." in result.stderr
    return made


def test_words_have_the_effects_they_were_given(folder: Path) -> None:
    model = load_model(folder / "model.orthogp")
    colour = next(each for each in model.components() if each.name == "colour")
    found = colour.predict([0, 1, 2])
    np.testing.assert_allclose(found - found.mean(), EFFECTS - EFFECTS.mean(), atol=0.1)
    assert colour.levels == COLOURS


def test_predictions_take_and_write_words(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("colour,x\nred,1\nblue,1\n,1\n")
    out = tmp_path / "out.csv"
    result = run("predict", folder / "model.orthogp", tmp_path / "new.csv", "--out", out)
    assert result.exit_code == 0, result.stderr
    red, blue, missing = csv.DictReader(out.read_text().splitlines())
    assert (red["colour"], blue["colour"], missing["mean"]) == ("red", "blue", "")
    assert float(blue["mean"]) - float(red["mean"]) == pytest.approx(5.0, abs=0.1)


def test_a_word_that_was_never_fitted_is_refused_by_its_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("colour,x\nred,1\npink,1\n")
    arguments = ("predict", folder / "model.orthogp", tmp_path / "new.csv", "--out")
    result = run(*arguments, tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "one of 3 categories (blue, green, red), got 'pink' in line 3" in result.stderr
    assert run(*arguments, tmp_path / "out.csv", "--skip-bad").exit_code == 0


def test_parquet_has_the_same_categories_as_text(folder: Path, tmp_path: Path) -> None:
    columns = []
    for name in ("data.csv", "data.parquet"):
        source = open_source(folder / name, "y", categories=True).with_categories()
        assert source.reading.times == (None, Categories(COLOURS))
        rows, _ = source.read()
        columns.append(rows.X)
    np.testing.assert_array_equal(columns[0], columns[1])
    # Large data are summed in one pass, with the categories known before.
    arguments = ("--target", "y", "--memory", "1kB", "--batch-rows", "64", "--json")
    out = tmp_path / "summed.orthogp"
    result = run("fit", folder / "data.parquet", *arguments, "--out", out)
    assert result.exit_code == 0, result.stderr
    arguments = ("--target", "y", "--solver", "dense", "--json", "--out", tmp_path / "m.orthogp")
    whole = run("fit", folder / "data.csv", *arguments)
    assert json.loads(result.stdout)["elbo"] == pytest.approx(
        json.loads(whole.stdout)["elbo"], abs=0.05
    )


def test_an_unknown_word_of_parquet_is_refused_by_its_row(folder: Path) -> None:
    source = open_source(folder / "data.parquet", "y", categories=True)
    few = source.with_times([None, Categories(("blue", "green"))])
    with pytest.raises(
        InputError, match=r"one of 2 categories \(blue, green\), got another in row"
    ):
        few.read()


def test_classifiers_take_words_as_inputs(folder: Path, tmp_path: Path) -> None:
    with (folder / "data.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    path = tmp_path / "labels.csv"
    lines = [f"{row['x']},{row['colour']},{'hi' if float(row['y']) > 0 else 'lo'}" for row in rows]
    path.write_text("\n".join(["x,colour,label", *lines]))
    out = tmp_path / "labels.orthogp"
    result = run("fit", path, "--target", "label", "--classify", "--out", out, "--no-diagnostics")
    assert result.exit_code == 0, result.stderr
    probability = load_model(out).predict_proba([[5.0, 0.0], [5.0, 2.0]])
    assert probability[0, 0] > 0.5 > probability[1, 0]


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ([f"s{i}" for i in range(20)], "20 different texts in 20 rows, and names rows"),
        (["same"] * 20, "1 different texts in 20 rows, and has a single value"),
        (["$3.08"] * 20, "write the number without its currency"),
    ],
)
def test_words_that_are_no_categories_are_refused(
    tmp_path: Path, cells: list[str], complaint: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["id,y", *(f"{cell},{i}" for i, cell in enumerate(cells))]))
    result = run("fit", path, "--target", "y", "--out", tmp_path / "model.orthogp")
    assert result.exit_code == 1
    assert complaint in result.stderr


def test_up_to_three_other_columns_act_jointly() -> None:
    few = beside_categories("matern32", 4, {1: 3})
    assert [term.columns(4) for term in few.summands] == [(0, 2, 3), (1,)]
    for many in (
        beside_categories("matern32", 5, {1: 3}),
        beside_categories("additive-rbf", 5, {1: 3}),
    ):
        assert [term.columns(5) for term in many.summands] == [(i,) for i in range(5)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_truths_are_written_as_they_were_read(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x, flag = rng.uniform(0, 1, 60), rng.random(60) < 0.5
    data = tmp_path / f"data.{kind}"
    if kind == "csv":
        lines = [f"{a},{b},{a + b}" for a, b in zip(x, flag, strict=True)]
        data.write_text("\n".join(["x,flag,y", *lines]))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"x": x, "flag": flag, "y": x + flag}), data)
    model, out = tmp_path / "model.orthogp", tmp_path / "out.csv"
    assert run("fit", data, "--target", "y", "--out", model).exit_code == 0
    for keep in ((), ("--keep", "flag,y")):
        assert run("predict", model, data, "--out", out, "--force", *keep).exit_code == 0
        with out.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert [row["flag"].lower() for row in rows] == [str(b).lower() for b in flag]
        np.testing.assert_allclose([float(row["mean"]) for row in rows], x + flag, atol=0.1)
