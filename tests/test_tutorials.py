"""Tutorials and examples run, hold what they claim, and their pages show what they print."""

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
PAGES = (*render.TUTORIALS, *render.GALLERY)


@pytest.mark.parametrize(
    ("folder", "names"), [(FOLDER, render.TUTORIALS), (render.GALLERY_FOLDER, render.GALLERY)]
)
def test_every_script_has_a_page_in_the_index(folder, names):
    scripts = {path.stem for path in folder.glob("*.py")} - {"render"}
    assert scripts == set(names)
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in index for name in scripts)


@pytest.mark.parametrize("name", PAGES)
def test_page_is_made_from_the_present_script(name):
    cells = render.read_cells(name)
    nothing = [render.Result("", ())] * len(cells)
    page = (render.folder_of(name) / f"{name}.md").read_text(encoding="utf-8")
    assert render.without_results(page) == render.write_page(name, cells, nothing)


@pytest.mark.parametrize("name", PAGES)
def test_page_ends_with_checks(name):
    code = [cell.text for cell in render.read_cells(name) if cell.is_code]
    assert code[-1].count("assert ") >= (3 if name in render.TUTORIALS else 1)


def test_images_are_small_and_shown():
    folders = (FOLDER, render.GALLERY_FOLDER)
    pages = "".join(p.read_text(encoding="utf-8") for f in folders for p in f.glob("*.md"))
    images = [*render.IMAGES.glob("tutorial-*"), *render.IMAGES.glob("gallery-*")]
    assert images
    for image in images:
        assert image.stat().st_size < LARGEST_IMAGE, image.name
        assert f"../images/{image.name}" in pages, image.name


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "quick_start" else pytest.mark.slow) for name in PAGES],
)
def test_script_runs_and_prints_what_its_page_shows(name, tmp_path, monkeypatch):
    if render.needs_data(name) and "ORTHOGP_DATA" not in os.environ:
        pytest.skip("ORTHOGP_DATA names no folder of data sets")
    monkeypatch.chdir(tmp_path)
    # Commands that it starts run in another folder, where a relative path leads nowhere.
    paths = [str(render.SOURCE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    cells = render.read_cells(name)
    printed = render.write_page(name, cells, render.run_cells(name, cells))
    page = (render.folder_of(name) / f"{name}.md").read_text(encoding="utf-8")
    assert render.outputs(printed) == render.outputs(page)
