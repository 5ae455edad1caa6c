"""What a console shows while rows are read: a bar on terminals, and nothing elsewhere."""

import io
from contextlib import redirect_stderr

import pytest

from orthogp.cli.console import Console


class Terminal(io.StringIO):
    """A terminal that keeps all that is written to it."""

    def isatty(self) -> bool:
        return True


def test_a_bar_counts_rows_on_a_terminal() -> None:
    with redirect_stderr(Terminal()) as terminal, Console() as console:
        console.begin("summing", 2000)
        console.advance(500)
        console.advance(1500)
        console.say("1 row lacks a value.")
        # No bar is left, and nothing goes wrong without one.
        console.advance(7)
    shown = terminal.getvalue()
    assert "summing" in shown
    assert " 25%" in shown
    assert "500 rows, " in shown
    assert "2,000 rows, " in shown
    assert "million a second" in shown
    assert shown.endswith("\n1 row lacks a value.\n")


def test_more_rows_than_were_expected_are_no_error() -> None:
    with redirect_stderr(Terminal()) as terminal, Console() as console:
        console.begin("scanning", 10)
        for _ in range(5):
            console.advance(5)
    assert "25 rows, " in terminal.getvalue()


@pytest.mark.parametrize(("settings", "stream"), [({"quiet": True}, Terminal), ({}, io.StringIO)])
def test_no_bar_where_nobody_wants_one(settings: dict, stream: type[io.StringIO]) -> None:
    with redirect_stderr(stream()) as shown, Console(**settings) as console:
        console.begin("summing", 2000)
        console.advance(2000)
        console.begin("learning", None)
    assert shown.getvalue() == ""
