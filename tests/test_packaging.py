"""The wheel is complete and installs into an empty environment; the repository names no machine."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed, shielded from Python's own variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    run(*build, cwd=out)
    (path,) = out.glob("*.whl")
    return path


def source_version() -> str:
    text = (ROOT / "src/orthogp/__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match is not None
    return match[1]


def test_wheel_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"orthogp-{source_version()}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        license_text = archive.read(f"{info}/licenses/LICENSE")

    assert license_text == (ROOT / "LICENSE").read_bytes()
    assert "\nLicense-Expression: MIT\n" in metadata
    assert "orthogp = orthogp.__main__:run" in entry_points
    # Exactly the package and its metadata: no tests, no benchmarks, nothing forgotten.
    assert {name.split("/")[0] for name in names} == {"orthogp", info}
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "orthogp").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("orthogp/")} == expected
    assert "orthogp/py.typed" in names
    assert any(re.fullmatch(r"orthogp/data/[^/]+\.npz", name) for name in names)


@pytest.mark.slow
def test_installs_into_empty_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "empty"
    # Even without pip: the pip that runs the tests installs into it from outside.
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    binaries = home / ("Scripts" if os.name == "nt" else "bin")
    python = binaries / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    lock = ROOT / "requirements.lock"
    run(*pip, "install", "--quiet", "--no-compile", "-c", lock, wheel, cwd=tmp_path)
    run(*pip, "check", cwd=tmp_path)

    program = "import orthogp; print(orthogp.__version__); print(orthogp.__file__)"
    version, file = run(python, "-c", program, cwd=tmp_path).splitlines()
    assert version == source_version()
    assert Path(file).is_relative_to(home)
    assert "demo" in run(binaries / "orthogp", "--help", cwd=tmp_path)

    # Without extras: a table is fitted and predicted, and a report says what to install.
    rows = "".join(f"{i / 10},{(i % 7) / 7}\n" for i in range(60))
    (tmp_path / "rows.csv").write_text(f"x,y\n{rows}")
    command = binaries / "orthogp"
    run(command, "fit", "rows.csv", "--target", "y", "--out", "m.orthogp", cwd=tmp_path)
    run(command, "predict", "m.orthogp", "rows.csv", "--out", "p.csv", cwd=tmp_path)
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 61
    report = [command, "report", "m.orthogp", "--out", "r.html"]
    refused = subprocess.run(report, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert 'pip install "orthogp[plots]"' in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.slow
def test_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path]
    run(*build, "--sdist", ROOT, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    for name in ("README.md", "CHANGELOG.md", "docs/conf.py", "tests/oracles.py", "scripts/test"):
        assert (source / name).is_file(), name
    run(*build, "--wheel", source, cwd=tmp_path)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert first.namelist() == second.namelist()
        for name in first.namelist():
            assert first.read(name) == second.read(name), name


def test_lock_pins_every_requirement() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    required = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert required
    loose = [line for line in required if not re.match(r"[a-z0-9.-]+==[a-z0-9.+]+( ; .+)?$", line)]
    assert not loose


def test_repository_names_no_registry_and_no_machine() -> None:
    # The [] keep these patterns from matching themselves.
    patterns = [
        r"pypi[.]org",
        r"pythonhosted[.]org",
        r"registry[.]npmjs",
        r"-index[-]url",
        r"find[-]links",
        r"file:[/]//",
        r"(?<![\w.~}/])/[w]ork/",
        r"(?<![\w.~}/])/[r]oot/",
        r"(?<![\w.~}/])/[o]pt/",
        r"(?<![\w.~}/])/[h]ome/\w",
        r"(?<![\w.~}/])/[U]sers/\w",
    ]
    needle = re.compile("|".join(patterns).encode())
    # Also what git does not know yet, but would add.
    list_files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(list_files, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git repository")
    paths = [ROOT / os.fsdecode(name) for name in listing.split(b"\0") if name]
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in paths
        if path.is_file()
        for match in needle.finditer(path.read_bytes())
    ]
    assert not found
