"""Runs tutorials and examples of the gallery, and writes the page of each: code, output, figures.

    python docs/tutorials/render.py [NAME ...]

Some examples read a data set of the folder that the variable ORTHOGP_DATA names; without it, they
are left out. A tutorial is a script in cells, each begun by a line `# %%` (code) or
`# %% [markdown]` (text in comments), which editors and Jupytext show as a notebook. It runs in an
empty folder; images that a cell leaves there are shown below it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "images"
GALLERY_FOLDER = HERE.parent / "gallery"
SOURCE = HERE.parents[1] / "src"
TUTORIALS = (
    "quick_start",
    "maps",
    "long_series",
    "files_and_clusters",
    "adding_a_kernel",
    "adding_a_family",
    "choosing_a_model",
)
GALLERY = (
    "carbon_dioxide",
    "diabetes",
    "wine",
    "precipitation",
    "terrain",
    "clouds",
    "household",
    "flights",
    "weather",
    "robot",
)
# What a page says that depends on the machine and the moment; outputs are compared without it.
_NUMBER = re.compile(r"[-−]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


class Cell(NamedTuple):
    """Some text, or some code."""

    is_code: bool
    text: str


class Result(NamedTuple):
    """What a cell printed, and the images that it made."""

    output: str
    images: tuple[str, ...]


def folder_of(name: str) -> Path:
    """Return where a script is, and its page."""
    return HERE if name in TUTORIALS else GALLERY_FOLDER


def needs_data(name: str) -> bool:
    """Return whether a script reads a data set that is not part of the repository."""
    return "ORTHOGP_DATA" in (folder_of(name) / f"{name}.py").read_text(encoding="utf-8")


def read_cells(name: str) -> list[Cell]:
    """Return the cells of a script."""
    text = (folder_of(name) / f"{name}.py").read_text(encoding="utf-8")
    cells = []
    for part in re.split(r"^(?=# %%)", text, flags=re.MULTILINE):
        head, _, body = part.partition("\n")
        if not head.startswith("# %%"):
            assert not part.strip(), f"{name}.py has lines before its first cell"
        elif "[markdown]" in head:
            lines = [re.sub(r"^# ?", "", line) for line in body.strip().splitlines()]
            cells.append(Cell(False, "\n".join(lines)))
        else:
            cells.append(Cell(True, body.strip()))
    return cells


def run_cells(name: str, cells: list[Cell]) -> list[Result]:
    """Return what each cell gives when they run one after the other in the current folder."""
    space: dict[str, object] = {"__name__": "__main__"}
    results = []
    for cell in cells:
        if not cell.is_code:
            results.append(Result("", ()))
            continue
        before = set(Path().glob("*.png"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.text, f"{name}.py", "exec"), space)
        made = sorted(str(path) for path in set(Path().glob("*.png")) - before)
        results.append(Result(printed.getvalue().rstrip(), tuple(made)))
    return results


def write_page(name: str, cells: list[Cell], results: list[Result]) -> str:
    """Return the page of a tutorial."""
    parts = []
    for cell, result in zip(cells, results, strict=True):
        parts.append(f"```python\n{cell.text}\n```" if cell.is_code else cell.text)
        if result.output:
            parts.append(f"```text\n{result.output}\n```")
        parts += [f"![{image}](../images/{image_name(name, image)})" for image in result.images]
    parts.append(f"*Made from [{name}.py]({name}.py) by `python docs/tutorials/render.py {name}`.*")
    return "\n\n".join(parts) + "\n"


def without_results(page: str) -> str:
    """Return a page without outputs and images: what follows from the script alone."""
    page = re.sub(r"```text\n.*?\n```\n\n", "", page, flags=re.DOTALL)
    return re.sub(r"!\[[^]]*\]\([^)]*\)\n\n", "", page)


def outputs(page: str) -> list[str]:
    """Return the outputs on a page, with # for every number: those differ between machines.

    So does which of them are the best, seconds for one, which tables mark by a star.
    """
    shown = re.findall(r"```text\n(.*?)\n```", page, flags=re.DOTALL)
    return [re.sub(r" +", " ", _NUMBER.sub("#", text)).replace("#*", "#") for text in shown]


def image_name(name: str, image: str) -> str:
    """Return what an image is called in docs/images."""
    kind = "tutorial" if name in TUTORIALS else "gallery"
    return f"{kind}-{name.replace('_', '-')}-{image}"


def render(name: str) -> Path:
    """Return the page of a tutorial, having run it."""
    cells = read_cells(name)
    folder = Path.cwd()
    # Commands that a tutorial starts must find the package too, wherever they run.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="orthogp-") as scratch:
        os.chdir(scratch)
        try:
            results = run_cells(name, cells)
            for result in results:
                for image in result.images:
                    (IMAGES / image_name(name, image)).write_bytes(Path(image).read_bytes())
        finally:
            os.chdir(folder)
    page = folder_of(name) / f"{name}.md"
    page.write_text(write_page(name, cells, results), encoding="utf-8")
    return page


def main() -> None:
    """Render the pages named, or all that can be, each in a process of its own."""
    names = sys.argv[1:] or [
        name
        for name in (*TUTORIALS, *GALLERY)
        if "ORTHOGP_DATA" in os.environ or not needs_data(name)
    ]
    if len(names) == 1:
        print(render(names[0]))
        return
    for name in names:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
