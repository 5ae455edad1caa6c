"""The README's code runs and prints what the README shows."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_first_example_prints_what_the_readme_shows():
    text = README.read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})

    def stable(output):
        """The lines without timings, and numbers to three digits: machines round differently."""
        lines = [line for line in output.splitlines() if not line.startswith("  seconds")]
        return [
            re.sub(r"-?\d[\d,]*\.?\d*(e-?\d+)?", lambda match: _three(match.group()), line)
            for line in lines
            if "certificate" not in line and "prior" not in line
        ]

    assert stable(printed.getvalue()) == stable(shown)


def _three(number: str) -> str:
    return f"{float(number.replace(',', '')):.3g}"
