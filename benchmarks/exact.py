"""Whether exact fits find what scikit-learn's find, and in how many seconds.

    python benchmarks/exact.py [--problems 100] [--seed 0] [--json results.json]

Random problems of one to eight columns and fifty to five hundred rows: functions drawn from
Gaussian processes, some of whose columns do not matter, and others that are no such draws. Both
learn the same model, of zero mean, from the same standardised rows; scikit-learn begins anew five
times. Both ends are measured by the same plain formula. Exit code 1 if ours is lower anywhere by
more than 0.01 nats.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from threadpoolctl import threadpool_limits

from orthogp.exact.fitting import ExactFitter
from orthogp.features import MeanPrior
from orthogp.kernels import Kernel
from orthogp.kernels.terms import KERNEL_NAMES
from orthogp.learning.problem import FitSettings
from orthogp.learning.starts import starts_for_rows
from orthogp.precision import BlasThreads
from orthogp.rows import Rows

NAMES = ("rbf", "matern12", "matern32", "matern52", "rational-quadratic")
# What may be lost, in nats.
SLACK = 0.01
RESTARTS = 5

Array = NDArray[np.float64]


class Problem(NamedTuple):
    """Standardised rows, and the kernel to be learned from them."""

    kernel: str
    X: Array
    y: Array
    story: str


class End(NamedTuple):
    """Hyperparameters, log marginal likelihood and seconds of a fit."""

    variance: float
    lengthscale: Array
    alpha: float
    noise: float
    value: float
    seconds: float


def make_problem(seed: int) -> Problem:
    """Return a random problem."""
    rng = np.random.default_rng(seed)
    kernel = NAMES[seed % len(NAMES)]
    num_dims = int(rng.integers(1, 9))
    num_rows = round(float(np.exp(rng.uniform(np.log(50), np.log(500)))))
    noise = float(10 ** rng.uniform(-4, 0))
    X = rng.uniform(-1, 1, (num_rows, num_dims))
    if rng.random() < 0.3:
        X = rng.standard_normal((num_rows, num_dims))
    relevant = rng.random(num_dims) < 0.7
    relevant[rng.integers(num_dims)] = True
    if rng.random() < 0.7:
        length = np.exp(rng.uniform(np.log(0.1), np.log(3), num_dims)) * np.sqrt(relevant.sum())
        drawn = NAMES[int(rng.integers(len(NAMES)))] if rng.random() < 0.3 else kernel
        scaled = X[:, relevant] / length[relevant]
        K = covariance(drawn, scaled, scaled, 1.0, np.ones(relevant.sum()), 1.0)
        f = np.linalg.cholesky(K + 1e-9 * np.eye(num_rows)) @ rng.standard_normal(num_rows)
        story = f"draw of {drawn}"
    else:
        f, story = other_function(X[:, relevant], rng)
    f = (f - f.mean()) / f.std()
    y = f + np.sqrt(noise) * rng.standard_normal(num_rows)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return Problem(kernel, X, (y - y.mean()) / y.std(), f"{story}, noise {noise:.1e}")


def other_function(X: Array, rng: np.random.Generator) -> tuple[Array, str]:
    """Return values of a function that is no draw from a Gaussian process."""
    turned = X @ rng.standard_normal((X.shape[1], 2))
    kind = int(rng.integers(5))
    if kind == 0:
        return np.where(turned[:, 0] > 0, 1.0, -1.0) + 0.3 * turned[:, 1], "a step"
    if kind == 1:
        return np.sin(4 * turned[:, 0]) + 0.5 * turned[:, 1] ** 2, "a wave and a bowl"
    if kind == 2:
        return X @ rng.standard_normal(X.shape[1]), "a plane"
    if kind == 3:
        return np.exp(-4 * np.sum((X - 0.3) ** 2, axis=1)) + 0.1 * X[:, 0], "a bump"
    return np.abs(X).sum(axis=1) + np.prod(X[:, :2], axis=1), "kinks and a product"


def covariance(
    name: str, A: Array, B: Array, variance: float, lengthscale: Array, alpha: float
) -> Array:
    """Return the kernel matrix in closed form."""
    square = cdist(A / lengthscale, B / lengthscale, "sqeuclidean")
    r = np.sqrt(square)
    shapes = {
        "rbf": lambda: np.exp(-square / 2),
        "matern12": lambda: np.exp(-r),
        "matern32": lambda: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
        "matern52": lambda: (1 + np.sqrt(5) * r + 5 * square / 3) * np.exp(-np.sqrt(5) * r),
        "rational-quadratic": lambda: (1 + square / (2 * alpha)) ** -alpha,
    }
    return variance * shapes[name]()


def log_likelihood(
    problem: Problem, variance: float, lengthscale: Array, alpha: float, noise: float
) -> float:
    """Return log N(y | 0, K + σ²I)."""
    n = len(problem.y)
    K = covariance(problem.kernel, problem.X, problem.X, variance, lengthscale, alpha)
    factor = cho_factor(K + noise * np.eye(n), lower=True)
    quadratic = problem.y @ cho_solve(factor, problem.y)
    log_det = 2 * np.sum(np.log(np.diag(factor[0])))
    return float(-0.5 * (quadratic + log_det + n * np.log(2 * np.pi)))


def ours(problem: Problem) -> End:
    """Fit by this library."""
    began = time.perf_counter()
    X, y = problem.X, problem.y[:, None]
    fitter = ExactFitter(Rows(X, y), MeanPrior(), FitSettings(), BlasThreads(1))
    fit = fitter.fit(starts_for_rows(KERNEL_NAMES[problem.kernel](), X, y))
    seconds = time.perf_counter() - began
    return _end(problem, fit.kernel, fit.noise_variance, seconds)


def _end(problem: Problem, kernel: Kernel, noise: float, seconds: float) -> End:
    own = kernel.parameters()
    variance, alpha = float(own["variance"]), float(own.get("alpha", 1.0))
    length = np.broadcast_to(np.asarray(own["lengthscale"]), problem.X.shape[1:])
    value = log_likelihood(problem, variance, length, alpha, noise)
    return End(variance, length, alpha, noise, value, seconds)


def theirs(problem: Problem) -> End:
    """Fit by scikit-learn."""
    num_dims = problem.X.shape[1]
    bounds = (1e-3, 1e4)
    shapes = {"rbf": np.inf, "matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
    if problem.kernel in shapes:
        shape = sk.Matern(np.ones(num_dims), bounds, nu=shapes[problem.kernel])
    else:
        # It has one lengthscale for all columns.
        shape = sk.RationalQuadratic(1.0, 1.0, bounds, (1e-2, 1e4))
    kernel = sk.ConstantKernel(1.0, (1e-6, 1e5)) * shape + sk.WhiteKernel(0.1, (1e-8, 1e2))
    began = time.perf_counter()
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=RESTARTS, random_state=0)
    with warnings.catch_warnings():
        # Of bounds that are reached, and searches that end early.
        warnings.simplefilter("ignore")
        model.fit(problem.X, problem.y)
    seconds = time.perf_counter() - began
    scale, white = model.kernel_.k1, model.kernel_.k2
    alpha = float(getattr(scale.k2, "alpha", 1.0))
    length = np.broadcast_to(np.asarray(scale.k2.length_scale, dtype=float), (num_dims,))
    variance, noise = float(scale.k1.constant_value), float(white.noise_level)
    value = log_likelihood(problem, variance, length, alpha, noise)
    return End(variance, length, alpha, noise, value, seconds)


def main() -> int:
    """Run the problems and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    arguments = parser.parse_args()
    head = ("", "kernel", "rows", "d", "what", "ours − theirs", "s, ours", "theirs")
    print("{:>4} {:<18} {:>5} {:>2} {:<34} {:>13} {:>7} {:>8}".format(*head))
    rows = []
    # One thread for both: what several gain depends on who else is there.
    threadpool_limits(1, user_api="blas")
    for seed in range(arguments.seed, arguments.seed + arguments.problems):
        problem = make_problem(seed)
        # The first call compiles; that of one kernel serves all columns and rows.
        first, second = ours(problem), theirs(problem)
        gain = first.value - second.value
        mark = "" if gain >= -SLACK else "  MISSED"
        print(
            f"{seed:>4} {problem.kernel:<18} {len(problem.y):>5} {problem.X.shape[1]:>2} "
            f"{problem.story:<34} {gain:>13.3f} {first.seconds:>7.2f} {second.seconds:>8.2f}{mark}",
            flush=True,
        )
        rows.append({"seed": seed, "gain": gain, "ours": first.seconds, "theirs": second.seconds})
    missed = [row["seed"] for row in rows if row["gain"] < -SLACK]
    totals = [sum(row[side] for row in rows) for side in ("ours", "theirs")]
    better = sum(row["gain"] > SLACK for row in rows)
    print(
        f"\n{len(missed)} of {len(rows)} lower by more than {SLACK} nats, {better} higher; "
        f"{totals[0]:.1f} s in all, scikit-learn {totals[1]:.1f} s"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
