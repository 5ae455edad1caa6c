"""Certificates against dense exact processes, on random problems: violations, sharpness, seconds.

    python benchmarks/certificates.py [--first 0] [--count 1000] [--into FILE] [--data DIR]

Each problem has one to three columns and 1 to 600 rows, spread evenly, with gaps, in clusters or
replicated; any kernel of the library; noise of 1e-6 to 10 of the variance; weights or none; every
mean function; up to 30 to 2,000 features. The lattice is fitted with the hyperparameters given, and
so is the exact process. A violation is a mean, variance or evidence of the exact process outside of
what was certified. The exit code is 1 if there is one. Seconds are those of one fit to 100,000
rows, hyperparameters learned, and the share of them that the certificate took.

FILE gets a line of JSON for each problem, and problems that it holds are not run again: a run that
was stopped goes on, and parts of the problems can go to files of their own (`cat` joins them). With
DIR, the data sets in it are fitted with defaults and the table of what is certified by which engine
is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from orthogp import GPRegressor
from orthogp.errors import OrthogpError
from orthogp.inference.posterior import covariance_matrix
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    QuasiPeriodic,
    RationalQuadratic,
    SpectralMixture,
)
from orthogp.learning import dense


def random_kernel(rng: np.random.Generator, num_dims: int) -> Kernel:
    """A kernel of any kind, with lengthscales from a twentieth to twice the data's width."""
    variance = float(10 ** rng.uniform(-0.5, 0.5))
    lengthscale = 10 ** rng.uniform(-1.3, 0.3, num_dims)
    kinds = [
        RBF(variance, lengthscale),
        Matern12(variance, lengthscale),
        Matern32(variance, lengthscale),
        Matern52(variance, lengthscale),
        Matern(nu=float(rng.uniform(0.6, 4)), variance=variance, lengthscale=lengthscale),
        RationalQuadratic(variance, lengthscale, alpha=float(rng.uniform(0.5, 5))),
        RBF(variance, lengthscale) + Matern32(0.3 * variance, 0.3 * lengthscale),
    ]
    if num_dims == 1:
        kinds.append(QuasiPeriodic(variance, 2 * lengthscale, float(rng.uniform(0.1, 0.5))))
        kinds.append(SpectralMixture([variance], rng.uniform(5, 40, (1, 1)), lengthscale[None]))
    return kinds[rng.integers(len(kinds))]


def random_rows(rng: np.random.Generator, num_rows: int, num_dims: int) -> np.ndarray:
    """Rows in the unit box: spread evenly, with a gap, in clusters, or replicated."""
    X = rng.uniform(0, 1, (num_rows, num_dims))
    kind = rng.integers(4)
    if kind == 1:
        X[:, 0] = np.where(X[:, 0] < 0.5, 0.5 * X[:, 0], 0.5 + 0.5 * X[:, 0])
    elif kind == 2:
        centres = rng.uniform(0, 1, (3, num_dims))
        X = centres[rng.integers(3, size=num_rows)] + 0.02 * rng.standard_normal(X.shape)
    elif kind == 3:
        X = X[rng.integers(max(1, num_rows // 4), size=num_rows)]
    return X


# Covariances are computed for a multiple of so many points: shapes that were compiled before.
BLOCK = 150


def exact_covariance(kernel: Kernel, points: np.ndarray) -> np.ndarray:
    """The covariance matrix of some points, by the kernel itself."""
    padded = np.concatenate([points, np.repeat(points[:1], -len(points) % BLOCK, axis=0)])
    return covariance_matrix(kernel, padded)[: len(points), : len(points)]


def run(seed: int) -> dict[str, float | str]:
    """One problem: what was certified and how the exact process compares, or why it was refused."""
    rng = np.random.default_rng(seed)
    num_dims = int(rng.choice([1, 1, 2, 3]))
    num_rows = int(rng.integers(1, 601))
    X = random_rows(rng, num_rows, num_dims)
    kernel = random_kernel(rng, num_dims)
    ratio = float(10 ** rng.uniform(-6, 1))
    truth = np.sin(5 * X.sum(axis=1) + seed)
    scale = float(10 ** rng.uniform(-2, 2))
    noise = ratio * float(kernel.prior_variance()) * scale**2
    y = scale * truth + np.sqrt(noise) * rng.standard_normal(num_rows) + rng.normal(0, 5 * scale)
    weights = rng.uniform(0.2, 3, num_rows) if rng.random() < 0.3 else None
    mean = [None, "constant", "linear"][rng.integers(3)]
    most_features = int(2000 * 10 ** rng.uniform(-1.8, 0))
    model = GPRegressor(
        kernel.scaled(scale**2),
        noise_variance=noise,
        learn=False,
        mean=mean,
        solver="dense",
        weights="precisions",
        max_features=most_features,
    )
    began = time.perf_counter()
    try:
        model.fit(X, y, sample_weight=weights)
    except OrthogpError as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - began
    certificate = model.certificate_

    lower, upper = X.min(axis=0), X.max(axis=0)
    points = np.concatenate([X[:50], rng.uniform(lower, upper, (100, num_dims))])
    predicted, sd, bounds = model.predict(points, return_std=True, return_bounds=True)
    posterior, prior = model.posterior_, model._sketch.mean
    both = np.concatenate([points, X])
    K = exact_covariance(posterior.kernel, both) + prior.features(both) @ prior.features(both).T
    n, s2 = len(points), posterior.noise_variance
    precisions = np.ones(num_rows) if weights is None else weights
    target = (y - model.target_offset_) / model.target_scale_
    try:
        L = np.linalg.cholesky(K[n:, n:] + np.diag(s2 / precisions))
    except np.linalg.LinAlgError:
        return {"refused": "The exact process is beyond double precision."}
    cross, white = np.linalg.solve(L, K[n:, :n]), np.linalg.solve(L, target)
    variance = np.diag(K)[:n] - np.sum(cross**2, axis=0)
    exact = cross.T @ white * model.target_scale_ + model.target_offset_
    evidence = -white @ white / 2 - np.log(np.diag(L)).sum() - num_rows / 2 * np.log(2 * np.pi)
    evidence -= num_rows * np.log(model.target_scale_)
    # What rounding may do to the exact process itself.
    rounding = 1e-14 * num_rows * np.diag(K)[:n].max() ** 2 / s2
    trusted = variance > 100 * rounding
    exact_sd = np.sqrt(np.maximum(variance, rounding)) * model.target_scale_
    fuzz = 1e-7 * exact_sd
    checks = {
        "mean": (bounds.mean_lower - fuzz <= exact) & (exact <= bounds.mean_upper + fuzz),
        "sd": ((1 - 1e-6) * bounds.std_lower <= exact_sd)
        & (exact_sd <= (1 + 1e-6) * bounds.std_upper),
        "mean of the summary": np.abs(predicted - exact)
        <= (certificate.mean_error + 1e-7) * exact_sd,
        "variance of the summary": np.abs(sd**2 - exact_sd**2)
        <= (certificate.variance_error + 1e-6) * exact_sd**2,
    }
    allowance = 1e-9 * abs(evidence) + 1e-12 * num_rows / ratio
    violated = [name for name, holds in checks.items() if not np.all(holds | ~trusted)]
    if not certificate.lower - allowance <= evidence <= certificate.upper + allowance:
        violated.append("evidence")
    return {
        "violated": ", ".join(violated),
        "holds": float(certificate.holds),
        "mean_error": certificate.mean_error,
        "true_mean": float(
            np.max(np.abs(predicted - exact)[trusted] / exact_sd[trusted], initial=0)
        ),
        "variance_error": certificate.variance_error,
        "true_variance": float(np.max(np.abs(sd**2 / exact_sd**2 - 1)[trusted], initial=0)),
        "gap": certificate.upper - certificate.lower,
        "seconds": seconds,
    }


def share_of_fit() -> tuple[float, float]:
    """Return the seconds of a fit to 100,000 rows, and of its certificate."""
    spent, original = [], dense.judge

    def timed(*arguments: Any, **settings: Any) -> Any:
        began = time.perf_counter()
        verdict = original(*arguments, **settings)
        spent.append(time.perf_counter() - began)
        return verdict

    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 100_000)
    y = np.sin(40 * x) * np.exp(x) + 0.3 * rng.standard_normal(len(x))
    GPRegressor().fit(x[:, None], y)
    dense.judge = timed
    try:
        began = time.perf_counter()
        GPRegressor().fit(x[:, None], y)
        return time.perf_counter() - began, sum(spent)
    finally:
        dense.judge = original


# The minutes of a month, the windows in which the household's power is fitted.
MONTH = 30 * 24 * 60
# The number of such windows.
WINDOWS = 4


def data_sets(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the regression problems of a folder: what it is called, inputs and targets."""
    for path in sorted(folder.glob("*.npz")):
        data = np.load(path)
        if "X" not in data or "y" not in data or path.stem.endswith("_clf"):
            continue
        X, y = data["X"], data["y"]
        if path.stem.startswith("household"):
            for i in range(WINDOWS):
                begin = i * (len(y) - MONTH) // (WINDOWS - 1)
                within = slice(begin, begin + MONTH)
                yield f"{path.stem}, month {i + 1} of {WINDOWS}", X[within], y[within]
        else:
            yield path.stem, X, y


def on_data(folder: Path) -> None:
    """Print what is certified of the data sets in a folder, by default settings."""
    print("| data | rows | engine | kind | mean within, sd | sd within, % | holds |")
    print("|---|---|---|---|---|---|---|")
    for name, X, y in data_sets(folder):
        try:
            model = GPRegressor().fit(X, y)
        except OrthogpError as error:
            print(f"| {name} | {len(y):,} | {error} |")
            continue
        found = model.certificate_
        print(
            f"| {name} | {len(y):,} | {model.engine_} | {found.kind} | {found.mean_error:.2g} | "
            f"{100 * found.sd_error:.2g} | {'yes' if found.holds else 'no'} |",
            flush=True,
        )
    print("Latent functions of classifiers (banana5300_clf, modis_cloud_clf): no certificate.")


def known(path: Path | None) -> dict[int, dict[str, Any]]:
    """Return the problems that a file holds, by their seeds."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {int(line.pop("seed")): line for line in lines}


def report(outcomes: list[dict[str, Any]]) -> int:
    """Print what problems show, and return the number of violations."""
    found = [one for one in outcomes if "refused" not in one]
    violations = sum(bool(one["violated"]) for one in found)
    print(f"{len(found)} problems, {len(outcomes) - len(found)} refused, {violations} violations")
    held = [one for one in found if one["holds"]]
    print(f"certificates that hold: {len(held)} of {len(found)}")
    for name, true in (("mean_error", "true_mean"), ("variance_error", "true_variance")):
        for label, some in (("that hold", held), ("that are finite", found)):
            certified = np.array([one[name] for one in some if np.isfinite(one[name])])
            actual = np.array([one[true] for one in some if np.isfinite(one[name])])
            if len(certified):
                ratio = certified / np.maximum(actual, 1e-7)
                low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
                print(
                    f"{name} of the {len(certified)} {label}: median {np.median(certified):.2g}, "
                    f"actual {np.median(actual):.2g}; certified over actual {middle:.3g}, 10 % to "
                    f"90 % from {low:.2g} to {high:.3g}"
                )
    seconds = np.array([one["seconds"] for one in found])
    print(f"seconds a problem: median {np.median(seconds):.2g}, largest {seconds.max():.2g}")
    return violations


def main() -> None:
    """Run the problems; the exit code is 1 if a certificate is violated."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count)
    outcomes, before, violations = [], known(arguments.into), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            if seed in before:
                outcomes.append(before[seed])
                continue
            outcome = run(seed)
            outcomes.append(outcome)
            if arguments.into is not None:
                with arguments.into.open("a") as file:
                    file.write(json.dumps({"seed": seed, **outcome}) + "\n")
            if outcome.get("violated"):
                violations += 1
                print(f"problem {seed}: {outcome}", flush=True)
            if len(outcomes) % 25 == 0:
                print(f"{len(outcomes)} of {len(seeds)}, {violations} violations", flush=True)
    violations = report(outcomes) if outcomes else 0
    whole, certificate = share_of_fit()
    print(f"100,000 rows: {whole:.2g} s, {certificate / whole:.0%} of it for the certificate")
    if arguments.data is not None:
        on_data(arguments.data)
    sys.exit(violations > 0)


if __name__ == "__main__":
    main()
