"""`orthogp`, and `python -m orthogp`: the command in a process of its own, and signals to it."""

import gc
import os
import signal
import sys
from contextlib import suppress

# What a signal that ends the process is called on standard error. The exit codes are those of
# shells, 128 and the number of the signal: 130 after an interruption.
_SIGNALS = {"SIGINT": "Interrupted.", "SIGTERM": "Terminated.", "SIGHUP": "Hung up."}
# The number that shells add to that of a signal.
_BY_SIGNAL = 128
# The number of new objects after which Python looks for cycles among them. Libraries that are being
# imported make many, and keep them: looking as often as usual takes a quarter of a second.
_MANY_OBJECTS = 50_000


def run() -> None:
    """Run the command, and end the process with its exit code."""
    _handle_signals()
    gc.set_threshold(_MANY_OBJECTS)
    # Only now: a signal may come while it is imported.
    from orthogp.cli import main

    try:
        main(prog_name="orthogp")
    except SystemExit as ended:
        code = ended.code
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # The reader is gone.
            code = code or 1
    # All is written and closed. Native libraries, whose threads may still be about to end, would
    # now and then abort while Python takes itself apart, and the exit code would be theirs.
    os._exit(code if isinstance(code, int) else int(code is not None))


def _handle_signals() -> None:
    """End the process in order if it is told to, unless whoever started it wants that ignored."""
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    """Remove what is unfinished, say one line, and end.

    An exception would not do: Python drops those that are raised where nobody can catch them, as in
    the callbacks of garbage collection that JAX installs, and the command would go on.
    """
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    persistence = sys.modules.get("orthogp.persistence")
    if persistence is not None and hasattr(persistence, "remove_unfinished"):
        persistence.remove_unfinished()
    with suppress(OSError):
        # Below the terminal's ^C, or a progress bar.
        below = "\n" if os.isatty(2) else ""
        os.write(2, f"{below}{_SIGNALS[signal.Signals(number).name]}\n".encode())
    os._exit(_BY_SIGNAL + number)


if __name__ == "__main__":
    run()
