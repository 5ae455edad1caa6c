"""Counts and classes: one pass against passes, from files, and beside GPBoost.

    python benchmarks/likelihoods.py passes [--rows 1e6]
    python benchmarks/likelihoods.py files [--rows 1e8] [--folder DIR]
    python benchmarks/likelihoods.py peer [--rows 1e5] [--other PYTHON]

passes   the bound and its gradient from sums and by passes over the rows, at the same
         hyperparameters, in turn, in one process; the whole fit is timed beside them
files    counts in two columns from Parquet files, which are written block by block and deleted
         afterwards unless a folder is named; fitted in a new process that tells its peak memory
peer     Poisson counts and classes 0 and 1 on a made map, by this library and by GPBoost's
         Vecchia-Laplace approximation (20 neighbours, its default) under the interpreter PYTHON,
         one process for each, one thread; `pip install gpboost` there. Core seconds do not depend
         on what else the machine does; the log score is of a tenth as many new rows
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# Evaluations that are timed.
REPEATS = 3
# Rows of a Parquet file.
FILE_ROWS = 10_000_000
# The lengthscale of the made map, a Matérn-3/2 field on the unit square, and its waves.
LENGTHSCALE, WAVES = 0.3, 2000
# Nearest rows of GPBoost's approximation; its default.
NEIGHBOURS = 20


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["passes", "files", "peer", "child"])
    parser.add_argument("--rows", type=float)
    parser.add_argument("--folder", type=Path, help="where the Parquet files go, or are already")
    parser.add_argument("--other", default=sys.executable, help="an interpreter with GPBoost")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what == "child":
        print(json.dumps(child(*given.task)))
    elif given.what == "passes":
        passes(int(given.rows or 1e6))
    elif given.what == "files":
        with tempfile.TemporaryDirectory() as scratch:
            files(int(given.rows or 1e8), given.folder or Path(scratch))
    else:
        peer(int(given.rows or 1e5), given.other)


def child(what: str, *arguments: str) -> dict[str, float]:
    """Return what one library measures in this process."""
    if what == "files":
        return fit_folder(Path(arguments[0]))
    kind, number = arguments[0], int(arguments[1])
    return compared(what, kind, number)


def run_child(python: str, *task: str) -> dict[str, float]:
    """Return what a new process measures."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [python, __file__, "child", "--task", *task]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


# ----------------------------------------------------------------------------------- from one pass


def passes(number: int) -> None:
    """Print the table of one pass against passes."""
    from orthogp import GPRegressor
    from orthogp.inference.parameters import learned_slots, pack
    from orthogp.likelihoods.measures import RowMeasure, TorusMeasure
    from orthogp.likelihoods.variational import POLISHED, Model, VariationalBound
    from orthogp.rows import Rows

    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (number, 1))
    hours = rng.uniform(0.5, 2.0, number)
    y = rng.poisson(hours * np.exp(np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] - 2))
    began = time.perf_counter()
    model = GPRegressor("rbf", likelihood="poisson").fit(X, y, exposure=hours)
    seconds = time.perf_counter() - began
    posterior, sketch, family = model.posterior_, model._sketch, model.likelihood_
    assert family is not None
    features, kernel = posterior.features, posterior.kernel
    rows, constants = family.summands(Rows(X, np.column_stack([y, hours]), None))
    steps = np.rint(features.lattice.spacing / sketch.statistics.lattice.spacing).astype(np.int64)
    sums = sketch.plain.decimate(steps)
    reach = 6 * np.abs(features.indices).max(axis=0)
    measures = {
        "one pass": TorusMeasure(sums, reach, sketch.extent),
        "passes": RowMeasure(features.lattice, rows, None),
    }
    vector = pack(kernel, learned_slots(kernel))
    offset, found, times = float(model.target_offset_[0]), {}, {}
    for name, measure in measures.items():
        known = measure, 2 * features.lattice.extent, constants, offset
        bound = VariationalBound(Model(features, family, *known), kernel)
        found[name] = bound.ascend(kernel, family, polish=POLISHED)
        if not bound.resolved:
            sys.exit(
                f"The sums do not reach far enough ({name}): the comparison would be of noise."
            )
        own = []
        for i in range(REPEATS):
            began = time.perf_counter()
            bound.value_and_gradient(vector + 0.01 * (i + 1))
            own.append(time.perf_counter() - began)
        times[name] = float(np.median(own))
    q, other = found["one pass"], found["passes"]
    difference = float(np.linalg.norm(q.chol.T @ (q.mean - other.mean)))
    print(f"| what ({number:,} counts with exposures, one column, RBF) | measured |")
    print("|---|---|")
    print(f"| whole fit, this process | {seconds:.2f} s |")
    print(f"| bound and gradient, one pass | {times['one pass']:.4f} s |")
    print(f"| the same by passes over the rows | {times['passes']:.3f} s |")
    print(f"| ratio | {times['passes'] / times['one pass']:.0f} × |")
    print(f"| largest difference of means, in posterior sd | {difference:.1e} |")


# --------------------------------------------------------------------------------------- from files


def rate_of(X: np.ndarray) -> np.ndarray:
    """Return the rate of counts in two columns."""
    return np.exp(np.sin(6 * X[:, 0]) + np.cos(5 * X[:, 1]) * X[:, 0] - 0.5)


def make_folder(folder: Path, number: int) -> None:
    """Write Parquet files of two inputs and a count, block by block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("x", pa.float32()), ("y", pa.float32()), ("n", pa.uint16())])
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(-(-number // FILE_ROWS)):
        size = min(FILE_ROWS, number - part * FILE_ROWS)
        with pq.ParquetWriter(folder / f"part{part:03}.parquet", schema) as writer:
            for block in range(-(-size // 1_000_000)):
                rng = np.random.default_rng([part, block])
                X = rng.random((min(1_000_000, size - block * 1_000_000), 2), dtype=np.float32)
                columns = [X[:, 0], X[:, 1], rng.poisson(rate_of(X)).astype(np.uint16)]
                writer.write_table(pa.table(dict(zip("xyn", columns, strict=True))))


def fit_folder(folder: Path) -> dict[str, float]:
    """Return seconds, peak memory and error of a fit to Parquet files."""
    from orthogp import GPRegressor

    before = megabytes()
    began = time.perf_counter()
    model = GPRegressor("rbf", likelihood="poisson").fit_files(str(folder / "*.parquet"), "n")
    seconds, cores = time.perf_counter() - began, time.process_time()
    X = np.random.default_rng(1).random((1000, 2))
    errors = model.predict_latent(X) - np.log(rate_of(X))
    return {
        "rows": float(model.statistics_.rows),
        "seconds": seconds,
        "core seconds": cores,
        "imports, MB": before,
        "peak, MB": megabytes(),
        "passes": float(model.passes_),
        "error": float(np.sqrt(np.mean(errors**2))),
    }


def megabytes() -> float:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def files(number: int, folder: Path) -> None:
    """Print the table of counts from files."""
    if not list(folder.glob("*.parquet")):
        make_folder(folder, number)
    print("| counts in two columns from Parquet | measured |\n|---|---|")
    for name, value in run_child(sys.executable, "files", str(folder)).items():
        print(f"| {name} | {value:,.4g} |" if value < 1e4 else f"| {name} | {value:,.0f} |")


# ---------------------------------------------------------------------------------- beside GPBoost


def made_map(kind: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of a made map, a tenth more than asked for: new rows."""
    rng = np.random.default_rng(2)
    X = rng.random((number + number // 10, 2))
    # Frequencies of Matérn-3/2 are multivariate t with three degrees of freedom.
    frequencies = rng.standard_normal((2, WAVES)) / LENGTHSCALE
    frequencies *= np.sqrt(3 / rng.chisquare(3, WAVES))
    phases = rng.uniform(0, 2 * np.pi, WAVES)
    parts = [np.cos(part @ frequencies + phases).sum(axis=1) for part in np.array_split(X, 50)]
    f = np.concatenate(parts) * np.sqrt(2 / WAVES)
    if kind == "poisson":
        return X, rng.poisson(np.exp(f)).astype(float)
    return X, (rng.random(len(f)) < 1 / (1 + np.exp(-f))).astype(float)


def orthogp(kind: str, X: np.ndarray, y: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean and variance of f by this library."""
    from orthogp import GPRegressor

    likelihood = "poisson" if kind == "poisson" else "binomial"
    model = GPRegressor("matern32", likelihood=likelihood).fit(X, y)
    mean, sd = model.predict_latent(T, return_std=True)
    return mean, sd**2


def gpboost(kind: str, X: np.ndarray, y: np.ndarray, T: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean and variance of f by GPBoost."""
    import gpboost as gpb

    likelihood = "poisson" if kind == "poisson" else "bernoulli_logit"
    settings = {"gp_approx": "vecchia", "num_neighbors": NEIGHBOURS, "likelihood": likelihood}
    model = gpb.GPModel(
        gp_coords=X, cov_function="matern_ard", cov_fct_shape=1.5, seed=1, **settings
    )
    model.fit(y=y, X=np.ones((len(X), 1)))
    ones = np.ones((len(T), 1))
    found = model.predict(gp_coords_pred=T, X_pred=ones, predict_var=True, predict_response=False)
    return found["mu"], found["var"]


def compared(library: str, kind: str, number: int) -> dict[str, float]:
    """Return seconds and log score of one library."""
    from scipy.special import expit, gammaln

    X, y = made_map(kind, number)
    wall, cores = time.perf_counter(), time.process_time()
    fit = {"orthogp": orthogp, "gpboost": gpboost}[library]
    mean, variance = fit(kind, X[:number], y[:number], X[number:])
    wall, cores = time.perf_counter() - wall, time.process_time() - cores
    new = y[number:, None]
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    f = mean[:, None] + np.sqrt(variance)[:, None] * nodes
    if kind == "poisson":
        densities = np.exp(new * f - np.exp(f) - gammaln(new + 1))
    else:
        densities = expit(np.where(new > 0, f, -f))
    score = float(np.mean(np.log(densities @ (weights / weights.sum()))))
    return {"seconds": wall, "core seconds": cores, "score": score}


def peer(number: int, other: str) -> None:
    """Print the table of both libraries."""
    print(f"| {number:,} rows in two columns | library | seconds | core seconds | log score |")
    print("|---|---|---|---|---|")
    for kind in ("poisson", "bernoulli"):
        for library, python in (("orthogp", sys.executable), ("gpboost", other)):
            found = run_child(python, library, kind, str(number))
            print(
                f"| {kind} | {library} | {found['seconds']:.1f} | {found['core seconds']:.1f} | "
                f"{found['score']:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
