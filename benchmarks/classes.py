"""Classifiers on real labels: error, log loss and seconds, beside another version of the library.

    python benchmarks/classes.py DATA [SOURCES]

DATA holds `banana5300_clf.npz` and `modis_cloud_clf.npz`; SOURCES is the `src` folder of another
version. Each version runs in a process of its own, the two in turn, fold by fold; seconds are those
of the processor, with one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

# Data sets: the file, its kernel, the number of folds, and how many of them are run.
SETS = (
    ("banana5300_clf", "rbf", 10, 10),
    ("banana5300_clf", "matern32", 10, 3),
    ("modis_cloud_clf", "matern32", 10, 1),
)


def read(folder: Path, name: str) -> tuple[Any, Any]:
    """Return inputs and labels 0 and 1."""
    with np.load(folder / f"{name}.npz") as data:
        return data["X"], (data["y"] > data["y"].min()).astype(int)


def serve(folder: Path) -> None:
    """Fit what lines of standard input ask for, and print what came of it."""
    from sklearn.metrics import log_loss

    from orthogp import GPClassifier

    for line in sys.stdin:
        name, kernel, num_folds, fold = json.loads(line)
        X, y = read(folder, name)
        parts = np.array_split(np.random.default_rng(0).permutation(len(X)), num_folds)
        test = parts[fold]
        train = np.setdiff1d(np.arange(len(X)), test)
        if fold == 0:
            # Compile first.
            GPClassifier(kernel, max_features=101).fit(X[:300], y[:300])
        began = time.process_time()
        model = GPClassifier(kernel).fit(X[train], y[train])
        seconds = time.process_time() - began
        p = model.predict_proba(X[test])
        error = float(np.mean(np.argmax(p, axis=1) != y[test]))
        values = [error, log_loss(y[test], p), seconds, model.elbo_, model.num_passes_]
        print(json.dumps(values), flush=True)


def start(sources: str | None) -> subprocess.Popen[str]:
    """Return a process that serves, with the library of a folder."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    paths = {} if sources is None else {"PYTHONPATH": sources}
    return subprocess.Popen(
        [sys.executable, __file__, sys.argv[1], "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | threads | paths,
    )


def classes(data_folder: Path, sources: str | None = None) -> None:
    """Print a row for each data set and version."""
    versions = {"this version": start(None)}
    if sources is not None:
        versions["other version"] = start(sources)
    print("| data, kernel, folds | version | error | log loss | CPU seconds per fold | passes |")
    print("|---|---|---|---|---|---|")
    for name, kernel, num_folds, folds in SETS:
        if not (data_folder / f"{name}.npz").exists():
            print(f"| {name} is missing | | | | | |")
            continue
        found: dict[str, list[list[float]]] = {version: [] for version in versions}
        for fold in range(folds):
            for version, process in versions.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps([name, kernel, num_folds, fold]) + "\n")
                process.stdin.flush()
                found[version].append(json.loads(process.stdout.readline()))
        for version, values in found.items():
            error, loss, seconds, _, passes = np.mean(values, axis=0)
            what = f"{name}, {kernel}, {folds} of {num_folds}"
            shown = f"{error:.4f} | {loss:.4f} | {seconds:.1f} | {passes:.0f}"
            print(f"| {what} | {version} | {shown} |", flush=True)
    for process in versions.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    if sys.argv[-1] == "--serve":
        serve(Path(sys.argv[1]))
    else:
        classes(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
