"""`--domain` in numbers and in dates."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from orthogp import GPRegressor
from orthogp.cli import main
from orthogp.storage import load_sketch

QUICK = ("--kernel", "rbf", "--num-features", "21", "--solver", "dense")
YEAR = ("--domain", "2024-03-01:2024-03-26")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hours of a month in one file and in two, and rows without dates."""
    folder = tmp_path_factory.mktemp("data")
    hours = np.datetime64("2024-03-01") + np.arange(600).astype("m8[h]")
    lines = [f"{t},{np.sin(i / 40)}\n" for i, t in enumerate(hours)]
    for name, part in (("all", lines), ("early", lines[:200]), ("late", lines[200:])):
        (folder / f"{name}.csv").write_text("time,level\n" + "".join(part))
    (folder / "plain.csv").write_text("x,y\n" + "".join(f"{i},{i % 7}\n" for i in range(50)))
    return folder


def test_pieces_with_dates_share_a_domain_and_merge(data: Path, tmp_path: Path) -> None:
    for name in ("all", "early", "late"):
        succeed(
            *("sketch", data / f"{name}.csv", "--target", "level", *YEAR),
            *("--out", tmp_path / name),
        )
    succeed("merge", tmp_path / "early", tmp_path / "late", "--out", tmp_path / "sum")
    whole, about = load_sketch(tmp_path / "all")
    total, _ = load_sketch(tmp_path / "sum")
    assert about["times"] == [{"unit": "hours", "origin": "2024-03-01"}]
    # The last day is in it to its end.
    assert (whole.extent.lower, whole.extent.upper) == (0.0, 26 * 24)
    assert total.statistics.rows == whole.statistics.rows == 600
    np.testing.assert_allclose(
        total.statistics.point_sums, whole.statistics.point_sums, atol=1e-9 * 600
    )


def test_a_model_covers_the_dates_it_was_asked_to_and_says_so_in_dates(
    data: Path, tmp_path: Path
) -> None:
    out, new = tmp_path / "m.orthogp", tmp_path / "new.csv"
    succeed(
        *("fit", data / "all.csv", "--target", "level", *QUICK, "--out", out),
        *("--domain", "2024-02-01:2024-04-30", "--no-diagnostics"),
    )
    domain = GPRegressor.load(out).domain_
    assert domain.lower < -29 * 24
    assert domain.upper > 61 * 24
    new.write_text("time\n2024-04-30T23:00\n2031-01-01\n")
    result = succeed("predict", out, new, "--out", tmp_path / "p.csv", "--json")
    assert json.loads(result.stdout)["outside"] == 1
    assert "1 of 2 rows lie outside the covered domain [2024-01-" in result.stderr


@pytest.mark.parametrize(
    ("command", "file", "domain", "complaint"),
    [
        ("sketch", "all.csv", "0:24", "'time' must be in dates as its column is, got numbers"),
        ("sketch", "plain.csv", "2024-01-01:2024-01-02", "'x' must be in numbers as its column is"),
        ("fit", "plain.csv", "2024-01-01:2024-01-02", "'x' must be in numbers as its column is"),
        ("fit", "plain.csv", "0:1,0:1", "The domain needs one interval for each of x, got 2."),
        ("fit", "plain.csv", "2024-01-02:2024-01-01", "is not intervals such as 0:10,-5:5 or 2024"),
        ("fit", "plain.csv", "0:2024-01-01", "is not intervals such as 0:10,-5:5 or 2024"),
    ],
)
def test_domains_that_do_not_go_with_the_columns(
    data: Path, tmp_path: Path, command: str, file: str, domain: str, complaint: str
) -> None:
    target = "level" if file == "all.csv" else "y"
    out = tmp_path / "m.orthogp"
    result = run(command, data / file, "--target", target, "--domain", domain, "--out", out)
    assert result.exit_code in (1, 2)
    assert complaint in result.stderr
    assert not out.exists()


def test_statistics_have_their_domain(data: Path, tmp_path: Path) -> None:
    stats = tmp_path / "s.orthogp"
    succeed("sketch", data / "all.csv", "--target", "level", *YEAR, "--out", stats)
    result = run("fit", stats, *QUICK, *YEAR, "--out", tmp_path / "m.orthogp")
    assert result.exit_code == 2
    assert "give --domain to orthogp sketch." in result.stderr
    result = run("report", stats, "--out", tmp_path / "r.html")
    assert result.exit_code == 1
    assert "holds statistics, not a model: fit one by orthogp fit " in result.stderr
