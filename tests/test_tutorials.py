"""The tutorials run, hold what they claim, and their pages show what they print."""

import importlib.util
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
LARGEST_IMAGE = 100_000


def load_render():
    spec = importlib.util.spec_from_file_location("render_tutorials", FOLDER / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render = load_render()


def test_every_script_is_a_tutorial_with_a_page_in_the_index():
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"render"}
    assert scripts == set(render.TUTORIALS)
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in index for name in scripts)


@pytest.mark.parametrize("name", render.TUTORIALS)
def test_page_is_made_from_the_present_script(name):
    cells = render.read_cells(name)
    nothing = [render.Result("", ())] * len(cells)
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert render.without_results(page) == render.write_page(name, cells, nothing)


@pytest.mark.parametrize("name", render.TUTORIALS)
def test_tutorial_ends_with_checks(name):
    code = [cell.text for cell in render.read_cells(name) if cell.is_code]
    assert code[-1].count("assert ") >= 3


def test_images_are_small_and_shown():
    pages = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md"))
    images = list(render.IMAGES.glob("tutorial-*"))
    assert images
    for image in images:
        assert image.stat().st_size < LARGEST_IMAGE, image.name
        assert f"../images/{image.name}" in pages, image.name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "quick_start" else pytest.mark.slow)
        for name in render.TUTORIALS
    ],
)
def test_tutorial_runs_and_prints_what_its_page_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Commands that it starts run in another folder, where a relative path leads nowhere.
    paths = [str(render.SOURCE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    cells = render.read_cells(name)
    printed = render.write_page(name, cells, render.run_cells(name, cells))
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert render.outputs(printed) == render.outputs(page)
