"""Files written whole or not at all, whoever else writes, and however the writer ends."""

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from orthogp import FileError, GPRegressor
from orthogp.cli import main
from orthogp.files.text import table_writer, write_rows
from orthogp.persistence import PRIVATE, replacing
from orthogp.report import write_report
from orthogp.storage import save


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, text: bytes = b"new", mode: int | None = None) -> None:
    with replacing(path, mode) as stream:
        stream.write(text)


# ---------------------------------------------------------------------- who else is there


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    texts = [bytes([letter]) * 10_000 for letter in b"ab"]
    meet = threading.Barrier(2, timeout=30)

    def write_slowly(text: bytes) -> None:
        with replacing(path) as stream:
            stream.write(text[:5000])
            meet.wait()
            stream.write(text[5000:])

    threads = [threading.Thread(target=write_slowly, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_links_planted_beside_a_file_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "table.csv"
    victim.write_bytes(b"precious")
    (tmp_path / "table.csv.part").symlink_to(victim)
    write(path)
    assert path.read_bytes() == b"new"
    # Nor is one whose name was guessed.
    monkeypatch.setattr("secrets.token_hex", lambda size: "00")
    (tmp_path / ".table.csv.00.part").symlink_to(victim)
    with pytest.raises(FileError, match="File exists"):
        write(path, b"newer")
    assert victim.read_bytes() == b"precious"
    assert path.read_bytes() == b"new"


# ---------------------------------------------------------------------- permissions


def test_permissions_are_those_of_the_file_that_is_replaced(tmp_path: Path) -> None:
    path, plain = tmp_path / "kept", tmp_path / "plain"
    plain.touch()
    write(path)
    assert mode_of(path) == mode_of(plain)
    for mode in (0o600, 0o640, 0o666):
        path.chmod(mode)
        write(path)
        assert mode_of(path) == mode
    write(path, mode=PRIVATE)
    assert mode_of(path) == 0o600


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    for mode in (None, PRIVATE):
        with replacing(path, mode):
            (unfinished,) = set(tmp_path.iterdir()) - {path}
            assert mode_of(unfinished) == 0o600


# ---------------------------------------------------------------------- everything that is written


def model() -> GPRegressor:
    x = np.linspace(0, 1, 12)[:, None]
    return GPRegressor("rbf", learn=False).fit(x, np.sin(5 * x[:, 0]))


WRITERS: dict[str, Callable[[Path], object]] = {
    "model": lambda path: save(path, model()),
    "report": lambda path: write_report(model(), path),
    "rows": lambda path: write_rows(path, ["x"], [[1.0]]),
    "statistics": lambda path: model().fit(*rows()).statistics_.save(path),
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).uniform(0, 1, 3000)
    return x[:, None], np.sin(5 * x)


@pytest.mark.parametrize("what", WRITERS)
def test_everything_is_written_by_the_same_rules(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.touch(0o600)
    WRITERS[what](path)
    written = path.read_bytes()
    assert written
    assert mode_of(path) == 0o600

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        WRITERS[what](path)
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


def test_predictions_keep_permissions_and_leave_other_files_alone(tmp_path: Path) -> None:
    data, fitted, out = (tmp_path / name for name in ("new.csv", "model.orthogp", "out.csv"))
    data.write_text("x\n0.25\n0.5\n")
    model().save(fitted)
    out.touch(0o600)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "out.csv.part").symlink_to(victim)
    arguments = ["predict", fitted, data, "--inputs", "x", "--out", out, "--force"]
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("x,mean,sd_function,lower_function,upper_function\n0.25,")
    assert mode_of(out) == 0o600
    assert victim.read_bytes() == b"precious"
    names = {"new.csv", "model.orthogp", "out.csv", "victim", "out.csv.part"}
    assert {path.name for path in tmp_path.iterdir()} == names


# ---------------------------------------------------------------------- signals

SLOW_WRITER = """
import signal, sys, time
# Whoever started the tests may ignore signals, and children do as their parents.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from orthogp.files.text import table_writer
with table_writer(sys.argv[1], ["x"]):
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_process_that_is_told_to_end_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text("before")
    number = getattr(signal, name)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(number)
        # It ends as a process does that handles no signals.
        assert process.wait(timeout=30) == -number
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_signals_are_handled_as_before_when_nothing_is_written(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]

    def theirs(number: int, frame: object) -> None:
        pass

    with table_writer(str(tmp_path / "table.csv"), ["x"]):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    signal.signal(signal.SIGTERM, theirs)
    try:
        with table_writer(str(tmp_path / "table.csv"), ["x"]):
            # Whoever handles a signal goes on doing so.
            assert signal.getsignal(signal.SIGTERM) is theirs
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before[0])
