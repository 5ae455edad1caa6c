"""fit --classify: labels from files, in numbers or words."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from orthogp import GPClassifier
from orthogp.cli import main

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 10, 200)
LABELS = np.where(np.sin(X) + 0.3 * RNG.standard_normal(len(X)) > 0, "ripe", "green")
QUICK = ("--classify", "--kernel", "rbf", "--num-features", "15")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    rows = "".join(f"{x},{label}\n" for x, label in zip(X, LABELS))
    (folder / "d.csv").write_text(f"x,fruit\n{rows},ripe\n5,\n6,NA\n")
    result = run(
        "fit", folder / "d.csv", "--target", "fruit", *QUICK, "--out", folder / "m.orthogp"
    )
    assert result.exit_code == 0, result.output
    assert "3 rows lack a value and are left out." in result.stderr
    assert "d.csv: x → fruit" in result.stdout
    return folder


def test_a_classifier_from_a_file_is_that_of_its_rows(folder: Path) -> None:
    model = GPClassifier.load(folder / "m.orthogp")
    assert model.classes_.tolist() == ["green", "ripe"]
    expected = GPClassifier("rbf", num_features=15).fit(X[:, None], LABELS)
    new = np.linspace(0, 10, 20)[:, None]
    np.testing.assert_allclose(model.predict_proba(new), expected.predict_proba(new), atol=1e-6)
    found = json.loads(run("report", folder / "m.orthogp", "--json").stdout)
    assert (found["classes"], found["rows"], found["inputs"]) == (["green", "ripe"], 200, ["x"])


def test_probabilities_and_pages_have_the_names_of_the_labels(folder: Path) -> None:
    (folder / "new.csv").write_text("x\n1.5\n4.7\n")
    result = run("predict", folder / "m.orthogp", folder / "new.csv", "--out", "-")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert list(rows[0]) == ["x", "probability_green", "probability_ripe"]
    assert float(rows[0]["probability_ripe"]) > 0.8 > 0.2 > float(rows[1]["probability_ripe"])
    page = run("report", folder / "m.orthogp", "--out", folder / "r.html")
    assert page.exit_code == 0, page.output
    assert "fruit" in (folder / "r.html").read_text()


def test_labels_in_numbers_and_from_parquet(tmp_path: Path) -> None:
    table = pa.table({"x": X, "fruit": (LABELS == "ripe").astype(np.int64)})
    pq.write_table(table, tmp_path / "d.parquet")
    out = tmp_path / "m.orthogp"
    result = run("fit", tmp_path / "d.parquet", "--target", "fruit", *QUICK, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["classes"] == ["0", "1"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--target", "x,fruit"), "A classifier has one target"),
        (("--target", "fruit", "--solver", "exact"), "A classifier has one engine"),
        (("--target", "fruit", "--scheduler", "tcp://a:1"), "A classifier needs all rows"),
    ],
)
def test_what_classifiers_do_not_have_is_wrong_usage(
    folder: Path, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    result = run("fit", folder / "d.csv", *options, "--classify", "--out", tmp_path / "m.orthogp")
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_words_as_a_target_lead_to_classify(folder: Path, tmp_path: Path) -> None:
    result = run("fit", folder / "d.csv", "--target", "fruit", "--out", tmp_path / "m.orthogp")
    assert result.exit_code == 1
    assert "learn the probability of each word by --classify" in result.stderr


@pytest.mark.parametrize("command", ["report", "explore"])
def test_reports_are_pages(folder: Path, command: str) -> None:
    result = run(command, folder / "m.orthogp", "--out", folder / "r.pdf")
    assert result.exit_code == 1
    assert "A report is a page of HTML whose name ends in .html, got" in result.stderr
    assert not (folder / "r.pdf").exists()
