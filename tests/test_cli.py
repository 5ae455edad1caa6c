"""The command line: what it says, where it says it, and its exit codes."""

import sys

import click
import pytest
from click.testing import CliRunner, Result

import orthogp
from orthogp.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"orthogp, version {orthogp.__version__}\n"


def test_help_lists_the_demo_with_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    commands = result.output.split("Commands:")[1]
    assert "demo" in commands
    assert "Example: orthogp demo --out plots" in commands


def test_help_of_the_demo() -> None:
    result = run("demo", "-h")
    assert result.exit_code == 0
    for option in ("--out DIR", "--rows", "--seed", "default: 1000000"):
        assert option in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fry"], "No such command 'fry'"),
        (["demo", "--rows", "many"], "'many' is not a valid integer"),
        (["demo", "--rows", "5"], "5 is not in the range x>=100"),
        (["demo", "--seed", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_misuse_is_explained(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_errors_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fail() -> None:
        raise orthogp.InputError("X has 4 columns: choose 3.")

    monkeypatch.setitem(main.commands, "fail", fail)
    result = run("fail")
    assert result.exit_code == 1
    assert result.stderr == "Error: X has 4 columns: choose 3.\n"
    assert result.stdout == ""


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(main.commands, "fail", fail)
    assert isinstance(run("fail").exception, ZeroDivisionError)


def test_demo_without_matplotlib_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("demo", "--out", str(tmp_path / "plots"))
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: Plots need matplotlib: install it with pip install 'orthogp[plots]'.\n"
    )
    assert not (tmp_path / "plots").exists()


def test_demo_into_a_place_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").touch()
    result = run("demo", "--out", str(tmp_path / "file" / "plots"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The plots cannot go to ")
    assert result.stderr.count("\n") == 1
