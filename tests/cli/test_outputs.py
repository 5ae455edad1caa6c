"""Commands write over results of their own kind, over other files if told to, never over inputs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from orthogp.cli import main

QUICK = ("--kernel", "rbf", "--num-features", "5", "--solver", "dense", "--no-diagnostics")
FIT = ("--target", "y", *QUICK)
COMPARE = ("--target", "y", "--families", "lattice", "--num-features", "3")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """The sentence with which a command refuses to write."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


def lost(path: Path) -> str:
    return f"{path} is read by this command, and would be lost: choose another name to write to."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a model, statistics and a report."""
    folder = tmp_path_factory.mktemp("made")
    rows = "".join(f"{x},{np.sin(x)}\n" for x in np.linspace(0, 6, 60))
    (folder / "d.csv").write_text("x,y\n" + rows)
    (folder / "rows").mkdir()
    (folder / "rows" / "a.csv").write_text("x,y\n" + rows)
    for arguments in (
        ("fit", folder / "d.csv", *FIT, "--out", folder / "m.orthogp"),
        ("sketch", folder / "d.csv", "--target", "y", "--out", folder / "s.orthogp"),
        ("report", folder / "m.orthogp", "--out", folder / "r.html"),
    ):
        result = run(*arguments)
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "folder")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "d.csv", *FIT, "--out", "d.csv"),
        ("fit", "rows", *FIT, "--out", "rows/a.csv"),
        ("fit", "ro*/*.csv", *FIT, "--out", "rows/a.csv"),
        ("fit", "s.orthogp", "--out", "s.orthogp"),
        ("predict", "m.orthogp", "d.csv", "--out", "d.csv"),
        ("predict", "m.orthogp", "rows", "--out", "rows/a.csv"),
        ("predict", "d.csv", "rows", "--out", "d.csv"),
        ("sketch", "d.csv", "--target", "y", "--out", "d.csv"),
        ("sketch", "d.csv", "--lattice-of", "s.orthogp", "--out", "s.orthogp"),
        ("merge", "s.orthogp", "s.orthogp", "--out", "s.orthogp"),
        ("report", "m.orthogp", "--out", "m.orthogp"),
        ("compare", "d.csv", *COMPARE, "--csv", "d.csv"),
        ("compare", "rows", *COMPARE, "--csv", "rows/a.csv"),
    ],
)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_what_is_read_is_never_overwritten(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    force: tuple[str, ...],
) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    assert refused(*arguments, *force) == lost(Path(arguments[-1]))
    assert contents(folder) == before


def test_links_to_what_is_read_are_not_overwritten(folder: Path) -> None:
    link, hard, away = folder / "link.csv", folder / "hard.csv", folder / "away"
    link.symlink_to(folder / "d.csv")
    os.link(folder / "d.csv", hard)
    away.symlink_to(folder / "rows")
    before = contents(folder)
    model, data = folder / "m.orthogp", folder / "d.csv"
    for out in (link, hard, folder / "rows" / ".." / "d.csv"):
        assert refused("predict", model, data, "--out", out, "--force") == lost(out)
    assert refused("predict", model, link, "--out", data, "--force") == lost(data)
    out = folder / "rows" / "a.csv"
    assert refused("predict", model, away / "a.csv", "--out", out, "--force") == lost(out)
    assert contents(folder) == before


def test_standard_input_is_an_input_too(folder: Path) -> None:
    data = folder / "d.csv"
    before = data.read_bytes()
    command = [sys.executable, "-m", "orthogp", "predict", str(folder / "m.orthogp"), "-"]
    with data.open("rb") as stream:
        done = subprocess.run(
            [*command, "--out", str(data), "--force"], stdin=stream, capture_output=True, text=True
        )
    assert done.returncode == 1
    assert done.stderr == f"Error: {lost(data)}\n"
    assert data.read_bytes() == before


def test_the_checkpoint_beside_the_output_is_an_output_too(folder: Path) -> None:
    data = folder / "new.orthogp.checkpoint"
    shutil.copy(folder / "d.csv", data)
    for command in (("fit", data, *FIT), ("sketch", data, "--target", "y")):
        out = folder / "new.orthogp"
        assert refused(*command, "--out", out, "--force") == lost(data)
    for command in (("fit", folder / "d.csv", *FIT), ("sketch", folder / "d.csv", "--target", "y")):
        assert refused(*command, "--out", folder / "new.orthogp") == (
            f"{data} exists and is no statistics of orthogp: choose another name, or overwrite it "
            "with --force."
        )
    assert data.read_bytes() == (folder / "d.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "others", "own"),
    [
        (("fit", "d.csv", *FIT), ["keep.csv", "keep.html", "s.orthogp"], "m.orthogp"),
        (
            ("sketch", "d.csv", "--target", "y"),
            ["keep.csv", "keep.html", "m.orthogp"],
            "s.orthogp",
        ),
        (("merge", "copy.orthogp"), ["keep.csv", "keep.html", "m.orthogp"], "s.orthogp"),
        (("report", "m.orthogp"), ["keep.html", "keep.csv", "s.orthogp"], "r.html"),
        (("predict", "m.orthogp", "d.csv"), ["keep.csv"], None),
    ],
)
def test_results_of_the_same_kind_are_written_anew_and_others_by_force(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    others: list[str],
    own: str | None,
) -> None:
    monkeypatch.chdir(folder)
    shutil.copy("s.orthogp", "copy.orthogp")
    Path("keep.csv").write_text("x,y\n1,2\n")
    Path("keep.html").write_text("<!DOCTYPE html><p>Not made by orthogp.</p>")
    for name in others:
        before = contents(folder)
        sentence = refused(*arguments, "--out", name)
        assert sentence.startswith(f"{name} exists")
        assert sentence.endswith(": choose another name, or overwrite it with --force.")
        assert contents(folder) == before
    if own is not None:
        assert run(*arguments, "--out", own).exit_code == 0
    before = Path(others[0]).read_bytes()
    assert run(*arguments, "--out", others[0], "--force").exit_code == 0
    assert Path(others[0]).read_bytes() != before


@pytest.mark.parametrize(("option", "name"), [("--csv", "results.csv"), ("--out", "plot.png")])
def test_results_of_a_comparison_replace_nothing_but_by_force(
    folder: Path, option: str, name: str
) -> None:
    path = folder / name
    path.write_text("mine")
    command = ("compare", folder / "d.csv", *COMPARE, option, path)
    assert refused(*command) == (
        f"{path} exists: choose another name, or overwrite it with --force."
    )
    assert path.read_text() == "mine"
    assert run(*command, "--force").exit_code == 0
    assert path.read_bytes() != b"mine"


def test_what_stands_beside_predictions_stays(folder: Path) -> None:
    mine = folder / "p.csv.part"
    mine.write_text("mine")
    result = run("predict", folder / "m.orthogp", folder / "d.csv", "--out", folder / "p.csv")
    assert result.exit_code == 0
    assert mine.read_text() == "mine"
    assert {path.name for path in folder.glob("*p.csv*")} == {"p.csv", "p.csv.part"}
