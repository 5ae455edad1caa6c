"""`orthogp reproduce`: what it says, and results that outlive an interruption."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from orthogp import FitWarning, InputError, cli
from orthogp.paper import EXPERIMENTS
from orthogp.paper.run import Ledger, Write, number, power_law
from tests.paper.images import assert_drawn


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["reproduce", *arguments])


def experiment_of(name: str) -> Any:
    module, kind = EXPERIMENTS[name].split(".")
    return getattr(import_module(f"orthogp.paper.{module}"), kind)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_class_with_two_settings(name: str) -> None:
    experiment = experiment_of(name)
    assert callable(experiment.reproduce)
    assert type(experiment.quick()) is experiment
    assert experiment.quick() != experiment()


def test_help_says_what_there_is() -> None:
    text = " ".join(run("-h").output.split())
    for name in (*EXPERIMENTS, "all", "--quick", "--out DIR"):
        assert name in text


def test_figure_is_written_with_its_results_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "new"
    result = run("figure1", "--quick", "--out", str(out))
    assert result.exception is None, result.output
    assert result.stdout == f"{out / 'figure1.csv'}\n{out / 'figure1.png'}\n"
    assert len(result.stderr.splitlines()) == 9
    assert_drawn(out / "figure1.png")
    text = (out / "figure1.csv").read_text("utf-8")
    again = run("figure1", "--quick", "--out", str(out))
    assert all(line.endswith(": kept") for line in again.stderr.splitlines())
    assert (out / "figure1.csv").read_text("utf-8") == text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.filterwarnings("default")
def test_all_means_every_experiment_with_its_settings(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    names_of = {experiment_of(name)(): f"{name}-full" for name in EXPERIMENTS} | {
        experiment_of(name).quick(): f"{name}-quick" for name in EXPERIMENTS
    }

    def stub(self, out: Path, write) -> list[Path]:
        plan = names_of[self]
        write(f"plan {plan}")
        warnings.warn("The bound became NaN.", FitWarning, stacklevel=1)
        return [out / f"{plan}.csv"]

    for name in EXPERIMENTS:
        monkeypatch.setattr(experiment_of(name), "reproduce", stub)
    result = run("all", "--out", str(tmp_path), *(["--quick"] if quick else []))
    kind = "quick" if quick else "full"
    names = [f"{name}-{kind}" for name in EXPERIMENTS]
    assert result.stdout.splitlines() == [str(tmp_path / f"{name}.csv") for name in names]
    for name in names:
        assert f"plan {name}\n" in result.stderr
    assert "Warning: The bound became NaN.\n" in result.stderr
    assert "FitWarning" not in result.stderr


def test_misuse_is_explained(tmp_path: Path) -> None:
    assert run("figure4", "--out", str(tmp_path)).exit_code == 2
    assert "Missing option '--out'" in run("figure1").stderr
    (tmp_path / "file").touch()
    result = run("figure1", "--out", str(tmp_path / "file" / "paper"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The results cannot go to ")


def test_without_matplotlib_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("figure1", "--out", str(tmp_path / "paper"))
    assert result.stderr.startswith("Error: A figure or report needs matplotlib")
    assert not (tmp_path / "paper").exists()


# ---------------------------------------------------------------------- results


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.csv"


def ledger(path: Path, write: Write = lambda line: None) -> Ledger:
    return Ledger(path, ["name", "size", "rate"], ["value", "good", "seconds"], write)


def settings(size: int, name: str = "a, b") -> dict:
    return {"name": name, "size": size, "rate": 5e-4}


def test_finished_run_is_in_the_file_at_once(path: Path) -> None:
    book = ledger(path)
    book.run(settings(1), lambda: {"value": 0.1, "good": True})
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "name,size,rate,value,good,seconds"
    assert lines[1].startswith('"a, b",1,0.0005,0.1,True,')


def test_failed_run_leaves_those_before_it(path: Path) -> None:
    book = ledger(path)
    book.run(settings(1), lambda: {"value": 0.1, "good": True})
    with pytest.raises(ZeroDivisionError):
        book.run(settings(2), lambda: {"value": 1 / 0, "good": True})
    assert ledger(path).find(settings(1)) is not None
    assert ledger(path).find(settings(2)) is None


def test_rerun_computes_only_what_is_missing(path: Path) -> None:
    said: list[str] = []
    ledger(path, said.append).run(settings(1), lambda: {"value": 1 / 3, "good": False})

    def must_not_run() -> dict:
        raise AssertionError

    again = ledger(path, said.append)
    row = again.run(settings(1), must_not_run)
    assert number(row, "value") == 1 / 3
    assert row["good"] is False
    assert said[0].startswith("runs: name a, b, size 1, rate 0.0005: ")
    assert said[1] == "runs: name a, b, size 1, rate 0.0005: kept"
    other = again.run(settings(2), lambda: {"value": 2.0, "good": True})
    assert number(other, "value") == 2.0
    assert len(path.read_text("utf-8").splitlines()) == 3


def test_settings_are_told_apart_by_every_one_of_them(path: Path) -> None:
    book = ledger(path)
    book.run(settings(1), lambda: {"value": 1.0, "good": True})
    assert book.find({**settings(1), "rate": 1e-3}) is None
    assert book.find(settings(1, "b")) is None


def test_half_a_line_is_forgotten(path: Path) -> None:
    book = ledger(path)
    for size in (1, 2):
        book.run(settings(size), lambda: {"value": 1.0, "good": True})
    text = path.read_text("utf-8")
    path.write_text(text[:-4], "utf-8")
    cut = ledger(path)
    assert cut.find(settings(1)) is not None
    assert cut.find(settings(2)) is None
    cut.run(settings(2), lambda: {"value": 1.0, "good": True})
    assert ledger(path).find(settings(2)) is not None


def test_file_that_ends_in_its_first_line_is_begun_again(path: Path) -> None:
    path.write_text("name,si", "utf-8")
    ledger(path).run(settings(1), lambda: {"value": 1.0, "good": True})
    assert ledger(path).find(settings(1)) is not None


def test_runs_together_are_computed_unless_all_are_there(path: Path) -> None:
    book, calls = ledger(path), []

    def compute() -> list[dict]:
        calls.append(None)
        return [{"value": 1.0, "good": True}, {"value": 2.0, "good": True}]

    book.run(settings(1), lambda: {"value": 0.0, "good": True})
    rows = book.run_together([settings(1), settings(2)], compute)
    assert [row["value"] for row in rows] == [1.0, 2.0]
    again = ledger(path).run_together([settings(1), settings(2)], compute)
    assert [row["value"] for row in again] == [1.0, 2.0]
    assert len(calls) == 1


def test_file_with_other_columns_is_refused(path: Path) -> None:
    path.write_text("name,size\na,1\n", "utf-8")
    with pytest.raises(InputError, match="has other columns than this version writes: move it"):
        ledger(path)


def test_power_law_is_recovered() -> None:
    sizes = np.array([10, 30, 100, 300])
    exponent, factor = power_law(sizes, 0.2 * sizes**1.7)
    assert exponent == pytest.approx(1.7)
    assert factor == pytest.approx(0.2)
