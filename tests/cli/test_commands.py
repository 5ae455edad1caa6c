"""The command line: what it says, where it says it, and its exit codes."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import orthogp
from orthogp.cli import main
from orthogp.features import FEATURE_NAMES
from orthogp.kernels import KERNEL_NAMES
from orthogp.report.comparison import EXACT_ROWS, FAMILIES, NUM_FEATURES


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
    assert "orthogp demo --out plots" in commands
    for name in ("compare", "explore", "fit", "merge", "predict", "report", "reproduce", "sketch"):
        assert f"\n  {name} " in commands
    assert "Exit codes: 0 done; 1 " in commands


def test_help_of_the_comparison_names_what_can_be_chosen() -> None:
    result = run("compare", "-h")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "DATA.csv" in text
    for words in (
        "rbf, matern, matern12, matern32",
        f"Some of {', '.join(FAMILIES)}, exact,",
        f"exact for up to {EXACT_ROWS} rows",
        f"default: {','.join(map(str, NUM_FEATURES))}",
        "Example: orthogp compare data.csv --target y --families lattice,trig",
    ):
        # The help may break a line at the hyphen of a name.
        assert words.replace(" ", "") in text.replace(" ", "")


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
        (["compare"], "Missing argument 'DATA.csv'"),
        (["compare", "data.csv"], "Missing option '--target'"),
        (
            ["compare", "data.csv", "--target", "y", "--num-features", "11,many"],
            "'11,many' is not a list of whole numbers, with commas between.",
        ),
        (
            ["compare", "data.csv", "--target", "y", "--test-fraction", "1"],
            "1.0 is not in the range",
        ),
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
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(main.commands, "fail", fail)
    result = run("fail")
    assert result.exit_code == 3
    assert result.stderr == (
        "Error: This is a bug in orthogp (ZeroDivisionError: division by zero): please report it "
        "with what --debug shows.\n"
    )
    assert isinstance(run("--debug", "fail").exception, ZeroDivisionError)


@pytest.mark.parametrize("command", ["fit", "sketch", "compare"])
def test_names_in_the_help_are_those_of_the_library(command: str) -> None:
    # The help may break a line at the hyphen of a name.
    text = "".join(run(command, "-h").output.split())
    assert f"Oneof{','.join(KERNEL_NAMES)}" in text
    families = ",".join(name for name in FEATURE_NAMES if name != "auto")
    assert (families in text) == (command != "sketch")


def test_help_loads_neither_jax_nor_numpy() -> None:
    program = (
        "import sys; from orthogp.cli import main; main(['--help'], standalone_mode=False); "
        "assert not {'jax', 'numpy', 'scipy', 'sklearn', 'pyarrow'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Commands:" in done.stdout


def test_what_is_wrong_with_data_is_said_before_jax_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "e.csv").write_text("x,y\n1,1\n2,b\n3,2\n")
    (tmp_path / "m.orthogp").write_text("precious")
    out = str(tmp_path / "new.orthogp")
    for arguments, sentence in [
        (["fit", "missing.csv", "--target", "y", "--out", out], "There is no file missing.csv"),
        (["fit", str(tmp_path / "d.csv"), "--target", "z", "--out", out], "has no column 'z'"),
        (["fit", str(tmp_path / "d.csv"), "--target", "y", "--out", out], "holds words, but"),
        (["fit", "d.csv", "--target", "y", "--out", str(tmp_path / "m.orthogp")], "exists and"),
        (["fit", str(tmp_path / "e.csv"), "--target", "y", "--out", out], "got 'b' in line 3"),
        (["sketch", "missing.csv", "--target", "y", "--out", out], "There is no file missing.csv"),
        (["report", "missing.orthogp"], "There is no file missing.orthogp"),
    ]:
        program = (
            "import sys; from orthogp.cli import main\n"
            f"try: main({arguments!r}, standalone_mode=False)\n"
            "except Exception as error: print(error)\n"
            "assert not {'jax', 'scipy', 'sklearn'} & sys.modules.keys()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert sentence in done.stdout


def test_demo_without_matplotlib_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("demo", "--out", str(tmp_path / "plots"))
    assert result.exit_code == 1
    assert result.stderr == (
        'Error: The demo needs matplotlib: install it with pip install "orthogp[plots]".\n'
    )
    assert not (tmp_path / "plots").exists()


def test_demo_into_a_place_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").touch()
    result = run("demo", "--out", str(tmp_path / "file" / "plots"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The plots cannot go to ")
    assert result.stderr.count("\n") == 1


# ---------------------------------------------------------------------- compare


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of which two lack a value, with a column that is no number."""
    rng = np.random.default_rng(2)
    x = rng.uniform(0, 10, 120)
    y = np.sin(x) + 0.1 * rng.standard_normal(120)
    lines = ["time,site,level", *(f"{a},north,{b}" for a, b in zip(x, y)), "1.5,north,", ",south,2"]
    path = tmp_path_factory.mktemp("compare") / "levels.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_compare_writes_a_table_a_plot_and_a_file(data: Path) -> None:
    out, results = data.parent / "compare.png", data.parent / "results.csv"
    result = run(
        *("compare", str(data), "--target", "level", "--inputs", "time"),
        *("--families", "lattice, trig", "--num-features", "7,15", "--test-fraction", "0.25"),
        *("--rows", "100", "--out", str(out), "--csv", str(results)),
    )
    assert result.exception is None, result.output
    progress = result.stderr.splitlines()
    assert progress[0] == "2 rows lack a value and are left out."
    assert progress[1].startswith("hyperparameters: Matern32(")
    fits = ["lattice, M = 7:", "lattice, M = 15:", "trig, M = 7:", "trig, M = 15:", "exact:"]
    for line, fit in zip(progress[2:], fits, strict=True):
        assert line.startswith(fit)

    text = result.stdout
    assert text.startswith("levels.csv: Matern32, 75 rows fitted, 25 held out\n")
    assert text.endswith(f"Results: {results}\nPlot: {out}\n")
    assert out.stat().st_size > 10_000
    rows = list(csv.DictReader(results.read_text("utf-8").splitlines()))
    assert len(rows) == 5
    for row in rows:
        number = row["asked"]
        (rmse,) = re.findall(rf"^{row['family']} +{number} .* (\S+?)\*? +\S+ +\S+$", text, re.M)
        assert float(rmse) == pytest.approx(float(row["rmse"]), rel=1e-3)
        assert float(row["elbo"]) <= float(rows[-1]["elbo"]) <= float(row["upper"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--target", "depth"],
            "levels.csv has no column 'depth'; its columns are time, site, level.",
        ),
        (
            ["--target", "level"],
            "Column 'site' must hold finite numbers, got 'north' in line 2 of ",
        ),
        (["--target", "level", "--inputs", "time", "--kernel", "rbff"], "Unknown kernel 'rbff'; "),
        (
            ["--target", "level", "--inputs", "time", "--families", "tri"],
            "features must be one of ",
        ),
        (["--target", "level", "--out", "plot.doc"], "A plot's name must end in .png, .pdf, .svg"),
        (["--target", "level", "--csv", "no/where.csv"], "There is no directory "),
    ],
)
def test_compare_explains_what_is_wrong_before_any_fit(
    data: Path, arguments: list[str], complaint: str
) -> None:
    result = run("compare", str(data), *arguments)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("Error: ")
    assert complaint in lines[-1]
    assert lines[:-1] in ([], ["2 rows lack a value and are left out."])
    assert result.stdout == ""


def test_compare_reads_standard_input() -> None:
    result = CliRunner().invoke(main, ["compare", "-", "--target", "y"], input=b"x,z\n1,2\n")
    assert result.exit_code == 1
    assert result.stderr == ("Error: standard input has no column 'y'; its columns are x, z.\n")


def test_compare_a_file_that_is_not_there() -> None:
    result = run("compare", "nowhere.csv", "--target", "y")
    assert result.exit_code == 1
    assert result.stderr == "Error: There is no file nowhere.csv: check its name.\n"


@pytest.mark.filterwarnings("default")
def test_warnings_of_a_comparison_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    path.write_text("x,y\n" + "".join(f"{i},3\n" for i in range(20)), encoding="utf-8")
    result = run(
        "compare", str(path), "--target", "y", "--families", "lattice", "--num-features", "3"
    )
    assert result.exit_code == 0
    assert "Warning: y is constant: there is nothing to learn" in result.stderr
    assert "FitWarning" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "output", "errors"),
    [
        (["--version"], 0, "orthogp, version", ""),
        (["nonsense"], 2, "", "No such command 'nonsense'"),
        (["report", "missing.orthogp"], 1, "", "There is no file missing.orthogp"),
    ],
)
def test_a_process_ends_with_the_codes_of_its_command_and_all_that_it_said(
    arguments: list[str], code: int, output: str, errors: str
) -> None:
    command = [sys.executable, "-m", "orthogp", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert output in done.stdout
    assert errors in done.stderr
