"""A command that is told to end says one line, ends at once, and leaves nothing unfinished."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

LINES = {"SIGINT": "Interrupted.\n", "SIGTERM": "Terminated.\n", "SIGHUP": "Hung up.\n"}
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
# Whoever started the tests may ignore signals, and children do as their parents.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from orthogp.__main__ import run
run()
"""
# The longest wait, in seconds, for a process to start or to end.
PATIENCE = 120.0

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="looks into /proc for the signals handled"
)


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that handles signals by now, with a folder for its temporary files."""
    (folder / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
    )
    with process:
        try:
            waited_for(lambda: handles(process.pid, signal.SIGTERM))
            yield process
        finally:
            process.kill()


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def waited_for(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def write_rows(folder: Path) -> str:
    """Rows whose fit takes some seconds and collects garbage."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (1500, 2))
    y = np.sin(3 * x[:, 0]) * x[:, 1] + rng.standard_normal(len(x))
    table = "\n".join(f"{a},{b},{c}" for (a, b), c in zip(x, y))
    (folder / "d.csv").write_text(f"a,b,y\n{table}\n")
    return f"a,b,y\n{table}\n"


def check_ended(folder: Path, name: str, done: tuple[int, str, str]) -> None:
    code, out, said = done
    assert (code, said, out) == (CODES[name], LINES[name], "")
    assert {path.name for path in folder.iterdir()} <= {"d.csv", "tmp", "m.orthogp.checkpoint"}
    assert not list((folder / "tmp").glob("orthogp-*"))


def interrupted(folder: Path, name: str, delay: float, repeats: int = 1) -> bool:
    """Whether a fit was ended by a signal after some time; it must end in order either way."""
    arguments = ("fit", "d.csv", "--target", "y", "--solver", "neighbours", "--out", "m.orthogp")
    with command(folder, *arguments) as process:
        time.sleep(delay)
        for _ in range(repeats):
            if process.poll() is None:
                process.send_signal(getattr(signal, name))
        out, said = process.communicate(timeout=PATIENCE)
    if process.returncode == 0:
        assert (folder / "m.orthogp").exists()
        (folder / "m.orthogp").unlink()
        return False
    check_ended(folder, name, (process.returncode, out, said))
    return True


@pytest.mark.parametrize(
    ("name", "delay", "repeats"),
    [("SIGINT", 0.0, 1), ("SIGINT", 1.0, 3), ("SIGTERM", 2.0, 1), ("SIGHUP", 0.3, 1)],
)
def test_a_signal_ends_a_fit_by_one_line(
    tmp_path: Path, name: str, delay: float, repeats: int
) -> None:
    write_rows(tmp_path)
    assert interrupted(tmp_path, name, delay, repeats)


@pytest.mark.slow
def test_signals_at_any_time_end_a_fit_by_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_rows(tmp_path)
    began = time.monotonic()
    assert not interrupted(tmp_path, "SIGINT", 0.0, repeats=0)
    whole = time.monotonic() - began
    ended = [
        interrupted(tmp_path, name, delay, int(rng.integers(1, 4)))
        for name, delay in zip(rng.choice(["SIGINT", "SIGTERM"], 60), rng.uniform(0, whole, 60))
    ]
    # A fit may be faster than the first, which alone compiles, or slower.
    assert sum(ended) >= 20


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_copies_of_standard_input_are_removed(tmp_path: Path, name: str) -> None:
    with command(tmp_path, "fit", "-", "--target", "y", "--out", "m.orthogp") as process:
        assert process.stdin is not None
        process.stdin.write("x,y\n1,2\n")
        process.stdin.flush()
        waited_for(lambda: list((tmp_path / "tmp").glob("orthogp-*/*")))
        # Standard input stays open: the command waits for more.
        process.send_signal(getattr(signal, name))
        process.wait(PATIENCE)
        done = (process.returncode, *process.communicate())
    check_ended(tmp_path, name, done)


def test_signals_that_the_parent_ignores_are_ignored(tmp_path: Path) -> None:
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from orthogp.__main__ import _handle_signals; _handle_signals(); "
        "signal.raise_signal(signal.SIGHUP); print('going on')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "going on\n", "")


COLLECTED = """
import gc, signal, sys
from orthogp.__main__ import _handle_signals
_handle_signals()
def callback(phase, info):
    signal.raise_signal(signal.SIGINT)
gc.callbacks.append(callback)
gc.collect()
print("swallowed")
"""


def test_an_interruption_while_garbage_is_collected_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")
