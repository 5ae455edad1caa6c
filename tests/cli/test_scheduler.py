"""fit and sketch on a cluster, from the command line."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from distributed import LocalCluster

from orthogp import GPRegressor
from orthogp.cli import main
from orthogp.files import summing
from orthogp.files.cluster import Cluster
from orthogp.files.fitting import begin_like
from orthogp.files.source import open_source
from orthogp.files.summing import Pass, Silence, sum_files, work_units
from orthogp.storage import load_sketch

QUICK = ("--kernel", "rbf", "--num-features", "21", "--solver", "dense")
NUM_ROWS = 3000


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments: object, code: int = 1) -> str:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1].removeprefix("Error: ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Minutes of two days, as text and as Parquet files, and rows of two numbers."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    times = np.datetime64("2024-03-01") + np.arange(NUM_ROWS).astype("m8[m]")
    level = np.sin(np.arange(NUM_ROWS) / 200) + 0.1 * rng.standard_normal(NUM_ROWS)
    lines = [f"{t},{y!r}\n" for t, y in zip(times, level.tolist())]
    lines[1700] = f"{times[1700]},\n"
    (folder / "levels.csv").write_text("time,level\n" + "".join(lines))
    (folder / "parts").mkdir()
    X = rng.uniform(0, 1, (NUM_ROWS, 2))
    for i in range(3):
        part = slice(1000 * i, 1000 * (i + 1))
        table = pa.table({"a": X[part, 0], "b": X[part, 1], "y": np.sin(9 * X[part].sum(axis=1))})
        pq.write_table(table, folder / "parts" / f"{i}.parquet", row_group_size=200)
    return folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler and two workers, in threads of this process."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    ) as running:
        yield running.scheduler_address


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of work as small as the data."""
    monkeypatch.setattr(summing, "_LEAST_ROWS", 300)


def assert_same_sums(found: Path, expected: Path) -> None:
    (first, its), (second, about) = load_sketch(found), load_sketch(expected)
    assert its == about
    np.testing.assert_array_equal(first.shift, second.shift)
    np.testing.assert_array_equal(first.extent, second.extent)
    assert first.statistics.rows == second.statistics.rows
    for name in ("point_sums", "target_sums", "yy"):
        want = getattr(second.statistics, name)
        np.testing.assert_allclose(
            getattr(first.statistics, name), want, rtol=0, atol=1e-12 * np.max(np.abs(want))
        )


@pytest.mark.slow
@pytest.mark.usefixtures("small_units")
def test_workers_give_the_sums_of_one_process(data: Path, address: str) -> None:
    # Row groups, and lines of text whose date-times are scanned first by the workers.
    for name, target in (("parts", "y"), ("levels.csv", "level")):
        here, there = data / f"{target}-here.orthogp", data / f"{target}-there.orthogp"
        succeed("sketch", data / name, "--target", target, "--out", here)
        result = succeed(
            *("sketch", data / name, "--target", target, "--out", there, "--scheduler", address)
        )
        assert_same_sums(there, here)
        lines = result.stderr.splitlines()
        assert lines[0] == f"The scheduler at {address} has workers with 2 threads."
        assert any(line.startswith("The workers sent each other ") for line in lines)
    assert "1 row lacks a value and is left out." in lines


def test_units_hold_about_so_many_rows_and_all_of_them(data: Path) -> None:
    files = [str(data / "parts"), str(data / "levels.csv")]
    source = open_source(files[:1], ["y"])
    units = work_units(source, 500)
    assert [len(unit.pieces) for unit in units] == [3, 3, 3, 3, 3]
    assert tuple(piece for unit in units for piece in unit.pieces) == source.pieces
    assert sum(unit.rows for unit in units) == pytest.approx(NUM_ROWS)
    text = work_units(open_source(files[1:], ["level"]), 500)
    assert 5 <= len(text) <= 7
    ends = [unit.pieces[0].end for unit in text]
    assert [unit.pieces[0].begin for unit in text[1:]] == ends[:-1]
    assert ends[-1] == os.path.getsize(files[1])


@pytest.mark.slow
@pytest.mark.usefixtures("small_units")
def test_a_model_learns_from_the_sums_of_workers(data: Path, address: str) -> None:
    out = data / "model.orthogp"
    arguments = ("fit", data / "parts", "--target", "y", *QUICK, "--out", out, "--json")
    there = json.loads(succeed(*arguments, "--scheduler", address).stdout)
    assert GPRegressor.load(out).diagnostics_ is not None
    here = json.loads(succeed(*arguments, "--memory", "2kB").stdout)
    assert there["rows"] == here["rows"] == NUM_ROWS
    assert there["elbo"] == pytest.approx(here["elbo"], rel=1e-6)
    assert there["noise_variance"] == pytest.approx(here["noise_variance"], rel=1e-4)


@pytest.mark.slow
def test_estimators_use_clusters_too(data: Path, address: str) -> None:
    settings = {"kernel": "rbf", "num_features": 21, "solver": "dense"}
    files = data / "parts"
    there = GPRegressor(**settings).fit_files(files, "y", scheduler=address)
    here = GPRegressor(**settings).fit_files(files, "y", memory=1.0)
    assert there.elbo_ == pytest.approx(here.elbo_, rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("small_units")
def test_additive_sums_and_a_sample_come_from_workers(data: Path, address: str) -> None:
    source = open_source([str(data / "parts")], ["y"])
    begin = begin_like(GPRegressor("additive-rbf"), 2)
    with Cluster(address) as joined:
        found = sum_files(source, begin, Pass(cluster=joined, sample_rows=100))
    expected = sum_files(source, begin)
    for part, want in zip(found.sketch.statistics.parts, expected.sketch.statistics.parts):
        np.testing.assert_allclose(part.point_sums, want.point_sums, atol=1e-9)
    for pair, want in expected.sketch.statistics.cross.items():
        np.testing.assert_allclose(found.sketch.statistics.cross[pair], want, atol=1e-9)
    # Rows of all files, each at most once.
    a, b, y = found.sample.columns
    assert len(np.unique(a)) == 100
    np.testing.assert_allclose(y, np.sin(9 * (a + b)))
    files = [
        pq.read_table(data / "parts" / f"{i}.parquet").column("a").to_numpy() for i in range(3)
    ]
    assert all(15 <= np.isin(a, rows).sum() <= 55 for rows in files)


@pytest.mark.slow
def test_what_a_cluster_cannot_do(data: Path, address: str) -> None:
    arguments = ("fit", data / "parts", "--target", "y", "--out", data / "none.orthogp")
    sentence = fail(*arguments, "--scheduler", address, "--features", "exact")
    assert sentence == (
        "features='exact' needs all rows at once, but a cluster sends sums only: leave it out, or "
        'use features="auto".'
    )
    sentence = fail("fit", "-", "--target", "y", "--out", "x", "--scheduler", address, code=2)
    assert sentence == "Workers cannot read standard input: leave out --scheduler."
    sketch = data / "small.orthogp"
    succeed("sketch", data / "parts", "--target", "y", "--out", sketch)
    sentence = fail("fit", sketch, "--out", "x", "--scheduler", address, code=2)
    assert sentence == "Statistics have no rows to sum: leave out --scheduler."


@pytest.mark.slow
def test_what_workers_cannot_read_is_one_sentence(data: Path, address: str, tmp_path: Path) -> None:
    for i, last in enumerate((1.0, 2.0, np.inf)):
        table = pa.table({"a": np.arange(5.0) + i, "y": [0.0, 1.0, 2.0, 3.0, last]})
        pq.write_table(table, tmp_path / f"{i}.parquet")
    sentence = fail(
        *("sketch", tmp_path, "--target", "y", "--batch-rows", 5),
        *("--out", data / "none.orthogp", "--scheduler", address),
    )
    assert sentence == (
        f"Column 'y' must hold finite numbers, got inf in row 5 of {tmp_path / '2.parquet'}: "
        "correct it, or skip such rows (--skip-bad)."
    )


def test_a_scheduler_that_is_not_there(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orthogp.files.cluster.TIMEOUT", 0.5)
    sentence = fail(
        *("sketch", data / "parts", "--target", "y", "--out", data / "none.orthogp"),
        *("--scheduler", "tcp://127.0.0.1:1"),
    )
    assert sentence.startswith("No dask scheduler answers at tcp://127.0.0.1:1: start one with")


class Assassin(Silence):
    """Kills a worker as soon as one unit of work is done."""

    def __init__(self, joined: Cluster) -> None:
        self.victim = next(iter(joined.client.run(os.getpid).values()))
        self.steps = 0

    def advance(self, rows: int) -> None:
        self.steps += 1
        if self.steps == 1:
            os.kill(self.victim, signal.SIGKILL)


@pytest.mark.slow
def test_files_survive_a_worker_that_is_killed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "_LEAST_ROWS", 100)
    source = open_source([str(data / "parts")], ["y"])
    begin = begin_like(GPRegressor(), 2)
    expected = sum_files(source, begin).sketch
    settings = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, processes=True, **settings) as running,
        Cluster(running.scheduler_address) as joined,
    ):
        assassin = Assassin(joined)
        found = sum_files(source, begin, Pass(cluster=joined, watcher=assassin)).sketch
        assert assassin.victim not in joined.client.run(os.getpid).values()
    assert assassin.steps == 15
    assert found.statistics.rows == expected.statistics.rows
    for name in ("point_sums", "target_sums", "yy"):
        want = getattr(expected.statistics, name)
        np.testing.assert_allclose(
            getattr(found.statistics, name), want, rtol=0, atol=1e-12 * np.max(np.abs(want))
        )
