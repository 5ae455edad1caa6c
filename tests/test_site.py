"""The site names all that is public, and its pages ask no other server for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import orthogp
from orthogp import features, inference, kernels, report, statistics, stochastic, storage

DOCS = Path(__file__).resolve().parents[1] / "docs"
PACKAGES = [orthogp, features, inference, kernels, report, statistics, stochastic, storage]


def public_names(package) -> set[str]:
    """What a package offers: its __all__, or what it imports under the same name."""
    if hasattr(package, "__all__"):
        names = set(package.__all__)
    else:
        source = Path(package.__file__).read_text(encoding="utf-8")
        names = set(re.findall(r"import (\w+) as \1$", source, re.MULTILINE))
    # A constant has no docstring to show.
    return {
        name for name in names if not name.isupper() or isinstance(getattr(package, name), type)
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_reference_names_all_that_is_public(package):
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    # Some have two homes, the package itself and the part that they come from: one page is enough.
    listed = set(re.findall(r":: orthogp\.(?:\w+\.)?(\w+)$", pages, re.MULTILINE))
    missing = public_names(package) - listed
    assert not missing, f"name {sorted(missing)} of {package.__name__} in a page of docs/api"


@pytest.mark.slow
def test_site_builds_without_warnings_and_without_other_servers(tmp_path):
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        DOCS,
        tmp_path / "site",
    ]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    # Links that a reader may follow are <a href>; all else would be fetched by itself.
    fetched = r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?:https?:)?//"
    asking = [page.name for page in pages if re.search(fetched, page.read_text(encoding="utf-8"))]
    assert not asking
    styles = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css"))
    assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)
