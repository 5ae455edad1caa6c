"""The code of the documentation runs and prints what is shown there."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/families.md"])
def test_first_example_prints_what_the_page_shows(page):
    before, shown = (ROOT / page).read_text(encoding="utf-8").split("```text\n")[:2]
    code = "\n".join(re.findall(r"```python\n(.*?)```", before, re.DOTALL))
    check(code, shown.split("```")[0], page)


def test_classifier_prints_what_the_page_shows():
    _, between, shown = (ROOT / "README.md").read_text(encoding="utf-8").split("```text\n")[:3]
    code = re.findall(r"```python\n(.*?)```", between, re.DOTALL)[-1]
    check(code, shown.split("```")[0], "README.md")


def check(code, shown, page):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), {"__name__": "page"})

    def stable(output):
        """The lines without timings, and numbers to three digits: machines round differently."""
        lines = [line for line in output.splitlines() if not line.startswith("  seconds")]
        return [
            re.sub(r"-?\d[\d,]*\.?\d*(e-?\d+)?", lambda match: _three(match.group()), line)
            for line in lines
            if not any(word in line for word in ("certificate", "prior", "quadrature"))
        ]

    assert stable(printed.getvalue()) == stable(shown)


def _three(number: str) -> str:
    return f"{float(number.replace(',', '')):.3g}"
