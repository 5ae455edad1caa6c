"""Every engine that can serve on every data set: errors, coverage, seconds, and what "auto" takes.

    python benchmarks/engines.py DIR [NAME ...] [--auto]

DIR holds the data sets as .npz files (X, y, and test_mask or asvgp_test_idx where a split is
published; else a tenth of the rows, permuted by seed 0, are test rows). Nothing is chosen by test
rows. `--auto` runs the default only. Goals on made rows come first: small data in a running process
beside scikit-learn, a hundred thousand predictions, and how learning grows.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from orthogp import GPRegressor


class Goal(NamedTuple):
    """A data set, the kernel that it is fitted with, and what "auto" is to reach."""

    name: str
    kernel: str
    engines: tuple[str, ...]
    mean: str = "auto"
    #: RMSE in standard deviations of the training targets, unless `raw`.
    rmse: float = np.inf
    nlpd: float = np.inf
    seconds: float = np.inf
    coverage: tuple[float, float] = (0.0, 1.0)
    raw: bool = False
    #: Whether NLPD is that of standardised targets.
    standardised: bool = False


GOALS = [
    Goal(
        "usprecip_1948", "matern12", ("neighbours", "dense", "iterative"),
        rmse=0.266, nlpd=0.072, seconds=4, raw=True,
    ),
    Goal(
        "uci_elevators", "matern32", ("neighbours", "dense"),
        rmse=0.365, nlpd=0.41, seconds=60, standardised=True,
    ),
    Goal(
        "uci_kin40k", "matern52", ("neighbours", "dense"),
        rmse=0.097, nlpd=-0.95, seconds=60, standardised=True,
    ),
    Goal("household_1d", "matern12", ("neighbours", "dense", "iterative"), rmse=0.183, seconds=30),
    Goal(
        "lidar_ground_2d", "matern32", ("neighbours", "dense", "iterative"),
        rmse=0.0064, nlpd=-2.32, seconds=60,
    ),
    Goal(
        "era5_t2m_uk_201903", "matern32", ("neighbours", "dense", "iterative"),
        rmse=0.034, seconds=60, coverage=(0.93, 0.97),
    ),
    Goal(
        "heaton_satellite", "matern12", ("neighbours", "dense", "iterative"),
        mean="linear", rmse=1.53, raw=True,
    ),
]  # fmt: skip


def load(folder: Path, name: str) -> tuple[np.ndarray, ...]:
    """Training rows and test rows of a data set."""
    data = np.load(folder / f"{name}.npz")
    X, y = data["X"], data["y"]
    test = np.zeros(len(y), dtype=bool)
    if "test_mask" in data:
        mask = data["test_mask"]
        test = (mask[:, 0] if mask.ndim == 2 else mask).astype(bool)
    elif "asvgp_test_idx" in data:
        test[data["asvgp_test_idx"][0]] = True
    else:
        test[np.random.default_rng(0).permutation(len(y))[: len(y) // 10]] = True
    return X[~test], y[~test], X[test], y[test]


def run(goal: Goal, solver: str, X, y, X_test, y_test) -> dict[str, float | str]:
    """One fit, its errors and times."""
    began = time.perf_counter()
    model = GPRegressor(goal.kernel, mean=goal.mean, solver=solver).fit(X, y)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    mean, sd = model.predict(X_test, return_std=True, include_noise=True)
    predicting = time.perf_counter() - began
    error = y_test - mean
    nlpd = float(np.mean(0.5 * np.log(2 * np.pi * sd**2) + 0.5 * (error / sd) ** 2))
    return {
        "engine": model.engine_,
        "rmse": float(np.sqrt(np.mean(error**2))) / (1.0 if goal.raw else float(np.std(y))),
        "nlpd": nlpd - (float(np.log(np.std(y))) if goal.standardised else 0.0),
        "coverage": float(np.mean(np.abs(error) < 1.96 * sd)),
        "seconds": seconds,
        "per_1e5": predicting / len(X_test) * 1e5,
        "status": model.status_,
    }


def on_data(folder: Path, names: list[str], *, only_auto: bool) -> bool:
    """Print a row for each engine and data set; return whether "auto" reached its goals."""
    reached = True
    print(
        "data | engine | RMSE | NLPD | coverage | s to learn | s per 1e5 predictions | goals missed"
    )
    for goal in GOALS:
        if names and goal.name not in names:
            continue
        if not (folder / f"{goal.name}.npz").exists():
            print(f"{goal.name}: no such file in {folder}")
            continue
        data = load(folder, goal.name)
        for solver in ("auto",) if only_auto else ("auto", *goal.engines):
            try:
                found = run(goal, solver, *data)
            except Exception as error:
                print(f"{goal.name} | {solver} | {type(error).__name__}: {error}", flush=True)
                reached &= solver != "auto"
                continue
            missed = []
            if solver == "auto":
                low, high = goal.coverage
                checks = {
                    f"RMSE ≤ {goal.rmse}": found["rmse"] <= goal.rmse,
                    f"NLPD ≤ {goal.nlpd}": found["nlpd"] <= goal.nlpd,
                    f"≤ {goal.seconds} s": found["seconds"] <= goal.seconds,
                    f"coverage {low}–{high}": low <= found["coverage"] <= high,
                }
                missed = [name for name, holds in checks.items() if not holds]
                reached &= not missed
            label = solver if solver != "auto" else f"auto: {found['engine']}"
            print(
                f"{goal.name} | {label} | {found['rmse']:.4f} | {found['nlpd']:.3f} | "
                f"{found['coverage']:.3f} | {found['seconds']:.1f} | {found['per_1e5']:.1f} | "
                f"{', '.join(missed)}",
                flush=True,
            )
    return reached


# ---------------------------------------------------------------------- made rows


def small_data() -> bool:
    """Default fits of few rows in a running process, beside scikit-learn's exact process."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    reached = True
    print("small data, Matérn-3/2 | rows × columns | s | RMSE | scikit-learn: s | RMSE")
    for num_dims in (1, 2, 3):
        for n in (300, 1000, 2000):
            rng = np.random.default_rng(n + num_dims)
            X = rng.uniform(0, 3, (n + 500, num_dims))
            truth = np.sin(3 * X[:, 0]) + np.cos(2 * X[:, -1]) * X[:, num_dims // 2]
            y = truth + 0.1 * rng.standard_normal(len(X))
            GPRegressor().fit(X[:n], y[:n])
            began = time.perf_counter()
            model = GPRegressor().fit(X[:n], y[:n])
            seconds = time.perf_counter() - began
            error = float(np.sqrt(np.mean((model.predict(X[n:]) - truth[n:]) ** 2)))
            began = time.perf_counter()
            kernel = ConstantKernel() * Matern(np.ones(num_dims), nu=1.5) + WhiteKernel()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peer = GaussianProcessRegressor(kernel, normalize_y=True).fit(X[:n], y[:n])
            peers_seconds = time.perf_counter() - began
            peers_error = float(np.sqrt(np.mean((peer.predict(X[n:]) - truth[n:]) ** 2)))
            reached &= seconds <= 1 and error <= 1.01 * peers_error
            print(
                f"{model.engine_} | {n} × {num_dims} | {seconds:.2f} | {error:.4f} | "
                f"{peers_seconds:.1f} | {peers_error:.4f}",
                flush=True,
            )
    return reached


def neighbours_scale() -> bool:
    """A hundred thousand predictions in three columns, and learning from 1e5 and 3e6 rows."""
    seconds, predicting = {}, 0.0
    for n in (100_000, 3_000_000):
        rng = np.random.default_rng(0)
        X = rng.uniform(0, 10, (n, 3))
        y = (
            np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])
            + np.sin(X[:, 2])
            + 0.1 * rng.standard_normal(n)
        )
        if not seconds:
            GPRegressor(solver="neighbours").fit(X[:20_000], y[:20_000])
        began = time.perf_counter()
        model = GPRegressor(solver="neighbours").fit(X, y)
        seconds[n] = time.perf_counter() - began
        points = rng.uniform(0, 10, (100_000, 3))
        began = time.perf_counter()
        model.predict(points, return_std=True)
        predicting = time.perf_counter() - began
        print(
            f"neighbours, {n:,} rows, three columns: {seconds[n]:.1f} s to learn, trees included; "
            f"{predicting:.1f} s for 1e5 predictions from {model.posterior_.num_neighbours} each",
            flush=True,
        )
    return predicting <= 5


def main() -> None:
    """Run what was asked for; the exit code is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--auto", action="store_true", help="the default only")
    arguments = parser.parse_args()
    reached = True
    if not arguments.names:
        reached &= small_data()
        reached &= neighbours_scale()
    if arguments.folder is None:
        print("No folder of data sets was given.")
    else:
        reached &= on_data(arguments.folder, arguments.names, only_auto=arguments.auto)
    sys.exit(not reached)


if __name__ == "__main__":
    main()
