"""`orthogp reproduce`: what it says, and where."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orthogp import FitWarning, cli
from orthogp.paper import experiments
from tests.paper.images import assert_drawn


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["reproduce", *arguments])


def test_names_are_those_of_the_experiments() -> None:
    # The package has the command of the same name, not its module.
    command = import_module("orthogp.cli.reproduce")
    assert tuple(experiments.EXPERIMENTS) == command._EXPERIMENTS


def test_help_says_what_there_is() -> None:
    text = " ".join(run("-h").output.split())
    for name in (*experiments.EXPERIMENTS, "all", "--quick", "--out DIR"):
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

    def stub(out: Path, plan: str, write) -> list[Path]:
        write(f"plan {plan}")
        warnings.warn("The bound became NaN.", FitWarning, stacklevel=1)
        return [out / f"{plan}.csv"]

    for name in experiments.EXPERIMENTS:
        own = experiments.Experiment(stub, f"{name}-full", f"{name}-quick")
        monkeypatch.setitem(experiments.EXPERIMENTS, name, own)
    result = run("all", "--out", str(tmp_path), *(["--quick"] if quick else []))
    kind = "quick" if quick else "full"
    names = [f"{name}-{kind}" for name in experiments.EXPERIMENTS]
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
    assert result.stderr.startswith("Error: Plots need matplotlib")
    assert not (tmp_path / "paper").exists()
