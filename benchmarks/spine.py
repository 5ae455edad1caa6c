"""How close the library comes to the speed of its parts, and how long a fit takes.

    python benchmarks/spine.py [--json results.json] [--quick]

Ratios are medians of five runs in one process, ours and the bare call taking turns, so that a noisy
machine disturbs both alike. The fits run in new processes, with compilation. Exit code 1 if a limit
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, str(THREADS))

_began = time.perf_counter()
import finufft  # noqa: E402
import numpy as np  # noqa: E402
from scipy.linalg import lapack  # noqa: E402

from orthogp import FourierStatistics, FrequencyLattice, GPRegressor  # noqa: E402
from orthogp.features import Lattice, MeanPrior  # noqa: E402
from orthogp.features.series import lattice_masses  # noqa: E402
from orthogp.inference.fourier_series import SeriesBox  # noqa: E402
from orthogp.inference.objective import LatticeObjective  # noqa: E402
from orthogp.inference.parameters import pack  # noqa: E402
from orthogp.kernels import Matern32  # noqa: E402
from orthogp.statistics.nufft import TOLERANCE, evaluate_series  # noqa: E402

IMPORT_SECONDS = time.perf_counter() - _began
REPEATS = 5


def main() -> int:
    """Run the benchmarks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--child", nargs=2, metavar=("DATA", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        fit_in_this_process(*map(Path, arguments.child))
        return 0
    shrink = 10 if arguments.quick else 1
    rows = [
        statistics_row(10**7 // shrink, 1, extent=512),
        statistics_row(10**6 // shrink, 2, extent=32),
        prediction_row(10**6 // shrink),
        objective_row(1000),
        *fit_rows(shrink),
    ]
    print(f"\n{THREADS} threads, medians of {REPEATS}\n")
    print(f"{'what':<64} {'measured':>12} {'at most':>10}")
    for row in rows:
        limit = "" if row["limit"] is None else f"{row['limit']:g} {row['unit']}"
        mark = "" if row["limit"] is None or row["value"] <= row["limit"] else "  MISSED"
        print(f"{row['what']:<64} {row['value']:>9.3g} {row['unit']:<2} {limit:>10}{mark}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": THREADS, "rows": rows}, indent=2))
    return int(any(row["limit"] is not None and row["value"] > row["limit"] for row in rows))


def ratio(ours: Callable[[], object], bare: Callable[[], object]) -> tuple[float, float, float]:
    """Return the ratio of median times and both, the two taking turns after a first call each."""
    ours(), bare()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for call, record in zip((ours, bare), times, strict=True):
            began = time.perf_counter()
            call()
            record.append(time.perf_counter() - began)
    mine, theirs = float(np.median(times[0])), float(np.median(times[1]))
    return mine / theirs, mine, theirs


def result(what: str, value: float, unit: str, limit: float | None, **details: float) -> dict:
    """Return one row of the table."""
    return {"what": what, "value": value, "unit": unit, "limit": limit, **details}


def statistics_row(num_rows: int, num_dims: int, extent: int) -> dict:
    """Compare the statistics with one bare type-1 transform."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 1, (num_rows, num_dims)), rng.standard_normal(num_rows)
    lattice = FrequencyLattice.for_domain(
        np.zeros(num_dims), np.ones(num_dims), period=1.5, extent=extent
    )
    phases = [np.ascontiguousarray((X[:, d] - 0.5) * lattice.spacing[d]) for d in range(num_dims)]
    strengths = 1 + 1j * y
    bare = {1: finufft.nufft1d1, 2: finufft.nufft2d1}[num_dims]
    value, mine, theirs = ratio(
        lambda: FourierStatistics.from_data(lattice, X, y, num_threads=THREADS),
        lambda: bare(
            *phases, strengths, lattice.point_shape, eps=TOLERANCE, isign=1, nthreads=THREADS
        ),
    )
    modes = "×".join(map(str, lattice.point_shape))
    what = f"statistics, {num_rows:.0e} rows, {modes} modes / bare type 1"
    return result(what, value, "×", 1.5, seconds=mine, bare_seconds=theirs)


def prediction_row(num_points: int) -> dict:
    """Compare mean and variance at many points with one bare type-2 transform."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (20000, 1))
    y = np.sin(20 * X[:, 0]) + 0.1 * rng.standard_normal(20000)
    model = GPRegressor(
        Matern32(1.0, 0.2), learn=False, noise_variance=0.01, num_features=801, n_jobs=THREADS
    ).fit(X, y)
    X_new = rng.uniform(0, 1, (num_points, 1))
    lattice = model.features_.lattice
    phases = (X_new[:, 0] - lattice.centre[0]) * lattice.spacing[0]
    series = model.posterior_._predictive_series
    pair = np.ascontiguousarray(series[0] + 1j * series[1])
    value, mine, theirs = ratio(
        lambda: model.predict(X_new, return_std=True),
        lambda: finufft.nufft1d2(phases, pair, eps=TOLERANCE, isign=1, nthreads=THREADS),
    )
    what = f"predict mean and sd, {num_points:.0e} points / bare type 2"
    return result(what, value, "×", 2.0, seconds=mine, bare_seconds=theirs)


def objective_row(num_features: int) -> dict:
    """Compare bound and gradient with LAPACK's factorisation and inverse."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (50000, 1))
    y = np.sin(20 * X[:, 0]) + 0.1 * rng.standard_normal(50000)
    kernel = Matern32(1.0, 0.1)
    lattice = FrequencyLattice.for_domain(0.0, 1.0, period=1.6, extent=2048)
    statistics = FourierStatistics.from_data(lattice, X, y, num_threads=THREADS)
    features = Lattice.select(kernel, lattice, num_features + 1, MeanPrior(100.0))
    objective = LatticeObjective(features, kernel, statistics)
    vector = np.append(pack(kernel, objective.slots), np.log(0.01))
    m = features.num_features
    A = rng.standard_normal((m, m))
    B = np.asfortranarray(A @ A.T / m + np.eye(m))

    def factor_and_inverse() -> None:
        chol, _ = lapack.dpotrf(B, lower=1)
        lapack.dpotri(chol, lower=1, overwrite_c=1)

    value, mine, theirs = ratio(lambda: objective.value_and_gradient(vector), factor_and_inverse)
    what = f"objective and gradient, M = {m} / potrf + potri"
    return result(what, value, "×", 2.5, seconds=mine, bare_seconds=theirs)


def matern32_rows(num_rows: int, lengthscale: float, seed: int = 0):
    """Return inputs in [0, 1], targets with noise sd 0.1, and the function drawn from the prior."""
    rng = np.random.default_rng(seed)
    lattice = FrequencyLattice.for_domain(0.0, 1.0, period=4.0, extent=2**17)
    indices = lattice.half_indices()
    masses = lattice_masses(Matern32(1.0, lengthscale), lattice, indices)
    waves = np.sqrt(2 * masses) * rng.standard_normal((2, len(masses)))
    series = SeriesBox(lattice.extent).function(indices, *waves)
    X = rng.uniform(0, 1, (num_rows, 1))
    f = evaluate_series(series[None], lattice, X, num_threads=THREADS)[:, 0]
    return X, f + 0.1 * rng.standard_normal(num_rows), f


def fit_rows(shrink: int) -> list[dict]:
    """Time fits with defaults in new processes."""
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in (10**5 // shrink, 10**6 // shrink, 10**7 // shrink):
            data, out = Path(folder, "data.npz"), Path(folder, "out.json")
            X, y, f = matern32_rows(num_rows, 0.05)
            np.savez(data, X=X, y=y, f=f)
            del X, y, f
            # One fit for the largest, the median of some for those whose time is limited.
            runs = []
            for _ in range(1 if num_rows > 10**6 else 3):
                command = [sys.executable, __file__, "--child", str(data), str(out)]
                subprocess.run(command, check=True)
                runs.append(json.loads(out.read_text()))
            outcomes[num_rows] = sorted(runs, key=lambda run: run["fit"])[len(runs) // 2]
    small, middle, large = outcomes.values()
    n = 10**6 // shrink
    return [
        result(f"fit, {n:.0e} rows, 1-D Matérn-3/2, new process", middle["fit"], "s", 6.0),
        result("    import before that", middle["import"], "s", None),
        result("    RMSE against the noiseless truth", middle["rmse"], "", 0.003),
        result("    peak memory beyond the data", middle["memory"], "MB", 600.0),
        result("    predict mean and sd at 1e5 points", middle["predict"], "s", 0.1),
        result(f"    fit, {n // 10:.0e} rows", small["fit"], "s", None),
        result(f"    fit, {n * 10:.0e} rows", large["fit"], "s", None),
        result("    growth of fit over 100 × the rows", large["fit"] / small["fit"], "×", 20.0),
        result("    growth of learning, after the pass", large["learn"] / small["learn"], "×", 3.0),
    ]


def peak_memory() -> float:
    """Return this process's peak resident memory in MB.

    Not ru_maxrss: it starts at what the parent process had when this one was forked.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def fit_in_this_process(data: Path, out: Path) -> None:
    """Fit once with defaults and write what was measured."""
    with np.load(data) as arrays:
        X, y, f = arrays["X"], arrays["y"], arrays["f"]
    began = time.perf_counter()
    model = GPRegressor(kernel="matern32").fit(X, y)
    fit = time.perf_counter() - began
    peak = peak_memory()
    model.predict(X[:1000], return_std=True)
    began = time.perf_counter()
    model.predict(X[: 10**5], return_std=True)
    predict = time.perf_counter() - began
    out.write_text(
        json.dumps(
            {
                "fit": fit,
                "import": IMPORT_SECONDS,
                "learn": model.timings_["learn"],
                "predict": predict,
                "rmse": float(np.sqrt(np.mean((model.predict(X) - f) ** 2))),
                "memory": peak - sum(array.nbytes for array in (X, y, f)) / 2**20,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
