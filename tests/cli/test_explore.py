"""`orthogp explore`: a page in a file of the user's or a temporary one, opened where it can be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.kernels import RBF


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model."""
    where = tmp_path_factory.mktemp("explore")
    X = np.linspace(0, 10, 50)[:, None]
    model = GPRegressor(RBF(1.0, 1.0), noise_variance=0.1, learn=False).fit(X, np.sin(X[:, 0]))
    model.save(where / "waves.orthogp")
    return where


def explore(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: own for name, own in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, "-m", "orthogp", "explore", "waves.orthogp", *arguments],
        cwd=folder,
        env={**environment, "TMPDIR": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_page_is_opened_in_the_browser(folder: Path) -> None:
    browser = folder / "browser.py"
    browser.write_text('import sys; open("opened", "w").write(sys.argv[1])')
    found = explore(folder, "--json", BROWSER=f"{sys.executable} {browser} %s")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    page = Path(answer["report"])
    assert answer["opened"]
    assert page.name == "waves.html"
    assert (folder / "opened").read_text() == page.resolve().as_uri()
    assert 'id="explore-data"' in page.read_text("utf-8")
    # Pages do not pile up, and only the user sees them.
    again = json.loads(explore(folder, "--json").stdout)
    assert again["report"] == answer["report"]
    assert page.parent.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a browser")
def test_without_a_browser_the_page_is_named(folder: Path) -> None:
    found = explore(folder, "--out", "page.html")
    assert found.returncode == 0, found.stderr
    assert found.stdout == "Report: page.html (there is no browser to open it)\n"
    assert 'id="explore-data"' in (folder / "page.html").read_text("utf-8")


def test_standard_output_is_no_place_for_a_browser(folder: Path) -> None:
    found = explore(folder, "--out", "-")
    assert found.returncode == 2
    assert "A browser needs a file" in found.stderr
