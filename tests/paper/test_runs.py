"""Results that outlive an interruption."""

from pathlib import Path

import pytest

from orthogp import InputError
from orthogp.paper.runs import Ledger, number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.csv"


def ledger(path: Path) -> Ledger:
    return Ledger(path, ["name", "size", "rate"], ["value", "good", "seconds"])


def silent(line: str) -> None:
    pass


def settings(size: int, name: str = "a, b") -> dict:
    return {"name": name, "size": size, "rate": 5e-4}


def test_finished_run_is_in_the_file_at_once(path: Path) -> None:
    own = ledger(path)
    own.run(settings(1), lambda: {"value": 0.1, "good": True}, silent)
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "name,size,rate,value,good,seconds"
    assert lines[1].startswith('"a, b",1,0.0005,0.1,True,')


def test_failed_run_leaves_those_before_it(path: Path) -> None:
    own = ledger(path)
    own.run(settings(1), lambda: {"value": 0.1, "good": True}, silent)
    with pytest.raises(ZeroDivisionError):
        own.run(settings(2), lambda: {"value": 1 / 0, "good": True}, silent)
    assert ledger(path).find(settings(1)) is not None
    assert ledger(path).find(settings(2)) is None


def test_rerun_computes_only_what_is_missing(path: Path) -> None:
    said: list[str] = []
    ledger(path).run(settings(1), lambda: {"value": 1 / 3, "good": False}, said.append)

    def must_not_run() -> dict:
        raise AssertionError

    again = ledger(path)
    row = again.run(settings(1), must_not_run, said.append)
    assert number(row, "value") == 1 / 3
    assert row["good"] is False
    assert said[0].startswith("runs: name a, b, size 1, rate 0.0005: ")
    assert said[1] == "runs: name a, b, size 1, rate 0.0005: kept"
    other = again.run(settings(2), lambda: {"value": 2.0, "good": True}, silent)
    assert number(other, "value") == 2.0
    assert len(path.read_text("utf-8").splitlines()) == 3


def test_settings_are_told_apart_by_every_one_of_them(path: Path) -> None:
    own = ledger(path)
    own.run(settings(1), lambda: {"value": 1.0, "good": True}, silent)
    assert own.find({**settings(1), "rate": 1e-3}) is None
    assert own.find(settings(1, "b")) is None


def test_half_a_line_is_forgotten(path: Path) -> None:
    own = ledger(path)
    for size in (1, 2):
        own.run(settings(size), lambda: {"value": 1.0, "good": True}, silent)
    text = path.read_text("utf-8")
    path.write_text(text[:-4], "utf-8")
    cut = ledger(path)
    assert cut.find(settings(1)) is not None
    assert cut.find(settings(2)) is None
    cut.run(settings(2), lambda: {"value": 1.0, "good": True}, silent)
    assert ledger(path).find(settings(2)) is not None


def test_file_that_ends_in_its_first_line_is_begun_again(path: Path) -> None:
    path.write_text("name,si", "utf-8")
    ledger(path).run(settings(1), lambda: {"value": 1.0, "good": True}, silent)
    assert ledger(path).find(settings(1)) is not None


def test_runs_together_are_computed_unless_all_are_there(path: Path) -> None:
    own, calls = ledger(path), []

    def compute() -> list[dict]:
        calls.append(None)
        return [{"value": 1.0, "good": True}, {"value": 2.0, "good": True}]

    own.run(settings(1), lambda: {"value": 0.0, "good": True}, silent)
    rows = own.run_together([settings(1), settings(2)], compute, silent)
    assert [row["value"] for row in rows] == [1.0, 2.0]
    again = ledger(path).run_together([settings(1), settings(2)], compute, silent)
    assert [row["value"] for row in again] == [1.0, 2.0]
    assert len(calls) == 1


def test_file_with_other_columns_is_refused(path: Path) -> None:
    path.write_text("name,size\na,1\n", "utf-8")
    with pytest.raises(InputError, match="has other columns than this version writes: move it"):
        ledger(path)
