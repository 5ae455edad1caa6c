"""Speed of feature families, as ratios within one run: `python benchmarks/families.py`.

Each figure is a median of several runs in one process, after compilation, on a stated number of
threads. The limits are the project's own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from orthogp import GPRegressor  # noqa: E402
from orthogp.features import InducingPoints, VariationalFourier  # noqa: E402
from orthogp.features.hermite import Hermite, traced_members  # noqa: E402
from orthogp.kernels import RBF, Matern32  # noqa: E402


def alternate(first: Callable[[], object], second: Callable[[], object], repeats: int):
    """Return the median seconds of two functions, run in turn so that neighbours hit both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for function in (first, second):
        function()
    for _ in range(repeats):
        for function, list_ in zip((first, second), seconds):
            began = time.perf_counter()
            function()
            list_.append(time.perf_counter() - began)
    return float(np.median(seconds[0])), float(np.median(seconds[1]))


def hermite_against_inducing_points(num_rows: int = 100_000, count: int = 128) -> None:
    """Features and the gradient of a contraction of them, in the kernel's parameters."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (num_rows, 1))
    with jax.enable_x64(True):
        x = jnp.asarray(X)
        weights = jnp.asarray(rng.standard_normal((num_rows, count)))
        points = InducingPoints(Z=np.linspace(-3, 3, count)[:, None])

        @jax.jit
        def hermite(parameters, x, weights):
            def contracted(p):
                Phi = traced_members(Hermite.terms(p[0], p[1], p[2], x[:, 0]), count)
                return jnp.sum(weights * Phi), Phi

            return jax.value_and_grad(contracted, has_aux=True)(parameters)

        @jax.jit
        def inducing(parameters, x, weights):
            def contracted(p):
                Phi = points.phi(RBF().with_parameters(variance=p[0], lengthscale=p[1]), x)
                return jnp.sum(weights * Phi), Phi

            return jax.value_and_grad(contracted, has_aux=True)(parameters)

        # Lengthscale and r such that both leave out next to nothing over the data.
        first, second = jnp.array([1.0, 0.3, 0.7]), jnp.array([1.0, 0.3])
        fast, slow = alternate(
            lambda: jax.block_until_ready(hermite(first, x, weights)),
            lambda: jax.block_until_ready(inducing(second, x, weights)),
            9,
        )
    report(
        f"Hermite features with gradient, N = {num_rows:,}, M = {count}",
        f"{fast:.3f} s, inducing points {slow:.3f} s",
        fast / slow,
        1.0,
    )


def trig_against_lattice(num_rows: int = 1_000_000, count: int = 400) -> None:
    """A whole fit, the pass over the rows included."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (num_rows, 1))
    y = np.sin(3 * X[:, 0]) + 0.5 * np.cos(7 * X[:, 0]) + 0.2 * rng.standard_normal(num_rows)

    def fit(features: str) -> GPRegressor:
        model = GPRegressor("matern32", features=features, num_features=count, n_jobs=THREADS)
        return model.fit(X, y)

    trig, lattice = alternate(lambda: fit("trig"), lambda: fit("lattice"), 7)
    report(
        f"Collapsed fit with Trig, N = {num_rows:,}, M = {count}",
        f"{trig:.2f} s, Lattice {lattice:.2f} s",
        trig / lattice,
        3.0,
    )
    print(f"    elbo: Trig {fit('trig').elbo_:,.1f}, Lattice {fit('lattice').elbo_:,.1f}")


def whitening_of_variational_fourier(num_rows: int = 2000) -> None:
    """The time of φ against M: the whitening is linear in M, and so is the whole."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (num_rows, 1))
    kernel = Matern32(1.0, 0.1)
    counts, seconds = [1001, 2001, 4001, 8001], []
    for count in counts:
        features = VariationalFourier(count, lower=-1.2, upper=1.2)
        features.evaluate(kernel, X)
        runs = []
        for _ in range(7):
            began = time.perf_counter()
            features.evaluate(kernel, X)
            runs.append(time.perf_counter() - began)
        seconds.append(float(np.median(runs)))
    slope = float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])
    shown = ", ".join(f"{count}: {s * 1e3:.0f} ms" for count, s in zip(counts, seconds))
    report(f"Variational Fourier features at {num_rows:,} rows, exponent of M", shown, slope, 1.3)


def report(what: str, figures: str, ratio: float, limit: float) -> None:
    """Print one line, and remember whether the limit was met."""
    verdict = "within" if ratio <= limit else "NOT within"
    print(f"{what}\n    {figures}: {ratio:.2f}, {verdict} the limit {limit:g}", flush=True)
    MISSED.extend([what] if ratio > limit else [])


MISSED: list[str] = []

if __name__ == "__main__":
    print(f"{THREADS} threads; load {os.getloadavg()[0]:.1f}")
    hermite_against_inducing_points()
    trig_against_lattice()
    whitening_of_variational_fourier()
    sys.exit(bool(MISSED))
