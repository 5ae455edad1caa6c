"""`orthogp`, and `python -m orthogp.cli`: the command in a process of its own."""

import gc
import os
import sys

from orthogp.cli import main

# The number of new objects after which Python looks for cycles among them. Libraries that are being
# imported make many, and keep them: looking as often as usual takes a quarter of a second.
_MANY_OBJECTS = 50_000


def run() -> None:
    """Run the command, and end the process with its exit code."""
    gc.set_threshold(_MANY_OBJECTS)
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


if __name__ == "__main__":
    run()
