"""Measures how the package is laid out: files, folders, frames, signatures.

.venv/bin/python scripts/house.py
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src" / "orthogp"
# A function with this number of parameters, or more, has many.
MANY_PARAMETERS = 7
# Types that are the one of their kind: each may be defined once in the package.
ONE_OF_A_KIND = ("Rows", "Domain", "Fit")


def trees() -> dict[Path, ast.Module]:
    """Return the modules of the package by path."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def parameters(node: ast.FunctionDef) -> int:
    """Return the number of parameters that a caller gives."""
    own = node.args
    names = [arg.arg for arg in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def additive_checks(tree: ast.Module) -> int:
    """Return how often a module asks whether something is of an `Additive…` class."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and any(
            isinstance(part, ast.Name) and part.id.startswith("Additive")
            for part in ast.walk(node.args[1])
        )
        for node in ast.walk(tree)
    )


def frames() -> int:
    """Return how many frames of the package lie between `GPRegressor.fit` and the first bound."""
    import numpy as np

    from orthogp import GPRegressor
    from orthogp.inference.objective import LatticeObjective

    deepest: list[int] = []
    evaluate = LatticeObjective.value_and_gradient

    def watched(self: LatticeObjective, vector):
        if not deepest:
            stack = traceback.extract_stack()
            deepest.append(sum(str(ROOT) in frame.filename for frame in stack) + 1)
        return evaluate(self, vector)

    LatticeObjective.value_and_gradient = watched
    X = np.linspace(0, 1, 3000)[:, None]
    GPRegressor(solver="dense").fit(X, np.sin(9 * X[:, 0]))
    return deepest[0]


def main() -> None:
    """Print the table."""
    modules = trees()
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules)
    names = Counter(path.stem for path in modules if path.stem != "__init__")
    nodes = [node for tree in modules.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    folder, most = folders.most_common(1)[0]
    many = [node for node in functions if parameters(node) >= MANY_PARAMETERS]
    rows: list[tuple[str, object]] = [
        ("Python files", len(modules)),
        ("lines", sum(len(path.read_text("utf-8").splitlines()) for path in modules)),
        (f"files in one folder ({folder})", most),
        ("frames from GPRegressor.fit to the first bound", frames()),
        ("isinstance(…, Additive…)", sum(map(additive_checks, modules.values()))),
        (f"functions with {MANY_PARAMETERS} or more parameters", len(many)),
        (
            "basenames of modules that occur twice: "
            + ", ".join(sorted(name for name, count in names.items() if count > 1)),
            sum(count > 1 for count in names.values()),
        ),
        ("mixins", sum(name.endswith("Mixin") for name in classes)),
        *(
            (f"classes called …{name}", sum(c.endswith(name) for c in classes))
            for name in ONE_OF_A_KIND
        ),
    ]
    for what, value in rows:
        sys.stdout.write(f"{value!s:>8}  {what}\n")


if __name__ == "__main__":
    main()
