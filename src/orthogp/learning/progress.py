"""A line on the terminal that says what a long computation is at."""

from __future__ import annotations

import sys
import time

# Seconds before anything is shown.
_PATIENCE = 2.0


class Progress:
    """Writes one line to the terminal, over and over, once a computation takes more than a moment.

    Nothing is written where standard error is not a terminal.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = 0
        self._terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Show what is being done."""
        elapsed = time.monotonic() - self._began
        if not self._terminal or elapsed < _PATIENCE:
            return
        line = f"orthogp: {text} ({elapsed:.0f} s)"
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def done(self) -> None:
        """Wipe the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
