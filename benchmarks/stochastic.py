"""The stochastic bound: cost of a step, what training reaches, classification.

`python benchmarks/stochastic.py [THREADS [BANANA.npz]]`. Ratios are of medians in one process,
after compilation. The limits are the project's own. Classification needs the banana data (X, y).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from scipy.optimize import minimize  # noqa: E402

from orthogp import GPClassifier  # noqa: E402
from orthogp.features import InducingPoints, Trig  # noqa: E402
from orthogp.kernels import RBF, Matern32  # noqa: E402
from orthogp.stochastic import (  # noqa: E402
    SparseVariational,
    StochasticModel,
    TrainingSettings,
    svgp_objective,
    train_stochastic,
)
from orthogp.stochastic.normals import Bernoulli, Covariance, Gaussian, prior_normal  # noqa: E402  # noqa: E402
from orthogp.stochastic.training import Batch, BatchSource, train  # noqa: E402

NUM_ROWS, BATCH = 1_000_000, 256


def step_of_trig(
    num_features: int, num_samples: int, covariance: Covariance
) -> Callable[[], object]:
    """Return one compiled step, value and gradient in all parameters."""
    kernel = Matern32(variance=1.0, lengthscale=0.1).fix("variance", "lengthscale")
    features = Trig(num_features, a=2.0 * num_features / 4).placed(kernel, -np.ones(1), np.ones(1))
    model = StochasticModel(features, kernel, 0.1, covariance)
    parameters = model.start()
    batch = some_batch()

    def objective(parameters, key):
        return model.estimate(parameters, batch, key, num_samples, NUM_ROWS)

    step = jax.jit(jax.value_and_grad(objective))
    key = jax.random.key(0)
    return lambda: jax.block_until_ready(step(parameters, key))


def step_of_inducing_points(num_features: int) -> Callable[[], object]:
    """Return one compiled step of SVGP with a dense S."""
    batch = some_batch()
    model = SparseVariational.from_rows(
        batch.X,
        batch.y,
        Matern32(variance=1.0, lengthscale=0.1),
        Gaussian(np.log(0.1)),
        InducingPoints(BATCH),
    )
    Z = np.linspace(-1, 1, num_features)[:, None]
    model = SparseVariational(
        model.template,
        model.slots,
        model.log_parameters,
        model.likelihood,
        Z,
        prior_normal("dense", num_features),
    )
    objective = svgp_objective(NUM_ROWS)
    step = jax.jit(jax.value_and_grad(lambda parameters: objective(parameters, batch, None)))
    return lambda: jax.block_until_ready(step(model))


def some_batch() -> Batch:
    """Return a batch of rows in [−1, 1]."""
    rng = np.random.default_rng(0)
    return Batch(rng.uniform(-1, 1, (BATCH, 1)), rng.standard_normal(BATCH))


def seconds_of(function: Callable[[], object], repeats: int = 9) -> float:
    """Return the median time of a call, compiled before."""
    function()
    runs = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        runs.append(time.perf_counter() - began)
    return float(np.median(runs))


def cost_of_a_step(num_features: int = 1024) -> None:
    """Trig with a diagonal S against SVGP, the same number of features."""
    with jax.enable_x64(True):
        theirs = seconds_of(step_of_inducing_points(num_features), 5)
        for share in (1, 2):
            ours = seconds_of(step_of_trig(num_features, share * num_features, "diagonal"))
            report(
                f"One step, M = {num_features}, batch of {BATCH}: Trig, diagonal S, "
                f"T = {'' if share == 1 else share}M, relative to SVGP",
                f"{ours * 1e3:.1f} ms against {theirs * 1e3:.0f} ms",
                ours / theirs,
                0.05,
            )


def growth_with_features() -> None:
    """The exponent of M at fixed T."""
    with jax.enable_x64(True):
        # With a diagonal S, M costs a pass over vectors only: fewer than 10,000 do not show.
        for covariance, num_samples, counts, limit in (
            ("diagonal", 256, (2**14, 2**16, 2**18, 2**20), 1.1),
            ("dense", 64, (1024, 2048, 4096, 8192), 2.1),
        ):
            seconds = [seconds_of(step_of_trig(m, num_samples, covariance), 7) for m in counts]
            slope = float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])
            shown = ", ".join(f"{m}: {s * 1e3:.1f} ms" for m, s in zip(counts, seconds))
            report(f"Exponent of M at T = {num_samples}, {covariance} S", shown, slope, limit)


def what_training_reaches(num_rows: int = 1000, num_features: int = 41) -> None:
    """Hyperparameters and q(u) from batches of all rows, against the collapsed bound's optimum."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, num_rows)
    eigenvalues, vectors = np.linalg.eigh(0.5 * np.exp(-2 * (x[:, None] - x) ** 2))
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0))
    y = root @ rng.standard_normal(num_rows) + 0.01 * rng.standard_normal(num_rows)
    lower, upper = np.array([x.min()]), np.array([x.max()])

    def loss(logs: np.ndarray) -> float:
        variance, lengthscale, noise, a = np.exp(logs)
        kernel = RBF(variance=variance, lengthscale=lengthscale)
        Phi = Trig(num_features, a=a).placed(kernel, lower, upper).evaluate(kernel, x[:, None])
        L = np.linalg.cholesky(np.eye(num_features) + Phi.T @ Phi / noise)
        c = np.linalg.solve(L, Phi.T @ y) / noise
        fit = num_rows * np.log(2 * np.pi * noise) + y @ y / noise - c @ c
        trace = (num_rows * variance - np.sum(Phi**2)) / noise
        return 0.5 * (fit + trace) + float(np.sum(np.log(np.diag(L))))

    kernel, noise, a = RBF(variance=0.5, lengthscale=0.5), 1e-2, 6.0
    start = np.log([0.5, 0.5, noise, a])
    options = {"maxiter": 2000, "xatol": 1e-6, "fatol": 1e-5}
    best = minimize(loss, start, method="Nelder-Mead", options=options)
    began = time.perf_counter()
    fit = train_stochastic(
        x,
        y,
        StochasticModel(Trig(num_features, a=a), kernel, noise, "dense"),
        TrainingSettings(natural=0.9, learning_rate=1e-2, max_steps=20_000),
    )
    took = time.perf_counter() - began
    reached, error = fit.average_elbo(x, y, num_samples=8 * num_features, repeats=500)
    report(
        f"N = {num_rows}, M = {num_features}: nats below the collapsed optimum",
        f"{reached:.2f} ± {error:.2f} against {-best.fun:.2f}, {fit.history[-1].step:,} steps in "
        f"{took:.0f} s, T = {fit.history[-1].num_samples}",
        -best.fun - reached,
        1.0,
    )


def classification(path: str) -> None:
    """Passes over the rows against SVGP with 64 inducing points, and against random batches.

    On one tenth held out, with the kernel that has the larger bound on the other nine. Of 530 rows
    the error is known to 0.013 only, so that ten folds of which that is the first are told as well,
    with either kernel.
    """
    with np.load(path) as data:
        X, y = data["X"].astype(float), (data["y"] == data["y"].max()).astype(float)
    folds = np.array_split(np.random.default_rng(0).permutation(len(y)), 10)
    rest = np.setdiff1d(np.arange(len(y)), folds[0])
    bounds = {
        name: float(GPClassifier(name).fit(X[rest], y[rest]).elbo_) for name in ("matern32", "rbf")
    }
    chosen = max(bounds, key=bounds.__getitem__)
    print(f"Banana, nine tenths: bounds {bounds}, so {chosen} is used for the rest", flush=True)
    for name in bounds:
        models: dict[str, Callable[..., np.ndarray]] = {
            "ours": partial(classify_in_passes, name),
            "SVGP": partial(classify_by_inducing_points, name),
        }
        scores, seconds = cross_validated(models, X, y, folds)
        difference = scores["ours"] - scores["SVGP"]
        error = difference.std(axis=0, ddof=1) / np.sqrt(len(folds))
        for column, what in enumerate(("error", "log loss")):
            ours, theirs = (scores[model][0, column] for model in models)
            if name == chosen:
                report(
                    f"Banana, {name}: {what} relative to SVGP with 64 points, one tenth held out",
                    f"{ours:.4f} against {theirs:.4f}",
                    ours / theirs,
                    1.0,
                )
            means = [scores[model][:, column].mean() for model in models]
            print(
                f"Banana, {name}: {what} and SVGP's: {ours:.4f} and {theirs:.4f} on that tenth, "
                f"{means[0]:.4f} ({seconds['ours']:.0f} s each) and {means[1]:.4f} "
                f"({seconds['SVGP']:.0f} s) over ten folds, "
                f"difference {difference[:, column].mean():+.4f} ± {error[column]:.4f}",
                flush=True,
            )
    models = {
        inference: partial(classify_in_passes, "rbf", inference=inference)
        for inference in ("variational", "polya-gamma", "minibatch")
    }
    scores, seconds = cross_validated(models, X, y, folds[:1])
    for inference, found in scores.items():
        print(
            f"Banana, rbf, first fold, {inference}: error {found[0, 0]:.4f}, "
            f"log loss {found[0, 1]:.4f}, {seconds[inference]:.1f} s"
        )
    report(
        "Banana, rbf: seconds of passes relative to batches, both with Pólya-Gamma's bound",
        f"{seconds['polya-gamma']:.1f} against {seconds['minibatch']:.1f}",
        seconds["polya-gamma"] / seconds["minibatch"],
        0.2,
    )


def cross_validated(
    models: dict[str, Callable[..., np.ndarray]],
    X: np.ndarray,
    y: np.ndarray,
    folds: list[np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return error and log loss of each model on each fold, and its median seconds."""
    scores = {name: np.empty((len(folds), 2)) for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for i, fold in enumerate(folds):
        rest = np.setdiff1d(np.arange(len(y)), fold)
        for name, model in models.items():
            began = time.perf_counter()
            p = np.clip(model(X[rest], y[rest], X[fold]), 1e-12, 1 - 1e-12)
            seconds[name].append(time.perf_counter() - began)
            likelihood = np.where(y[fold] == 1, p, 1 - p)
            scores[name][i] = np.mean(likelihood < 0.5), -np.mean(np.log(likelihood))
    return scores, {name: float(np.median(times)) for name, times in seconds.items()}


def classify_in_passes(
    name: str, X: np.ndarray, y: np.ndarray, X_new: np.ndarray, inference: str = "variational"
) -> np.ndarray:
    """Return probabilities of GPClassifier, which learns everything."""
    return GPClassifier(name, inference=inference).fit(X, y).predict_proba(X_new)[:, 1]


def classify_by_inducing_points(
    name: str, X: np.ndarray, y: np.ndarray, X_new: np.ndarray
) -> np.ndarray:
    """Return probabilities of SVGP, its points and hyperparameters trained."""
    kernel = {"rbf": RBF, "matern32": Matern32}[name](variance=4.0, lengthscale=X.std(axis=0))
    model = SparseVariational.from_rows(X, y, kernel, Bernoulli(), InducingPoints(64))
    objective = svgp_objective(len(y))
    settings = TrainingSettings(learning_rate=1e-2, max_steps=10_000, num_samples=2)
    trained = train(lambda _: objective, model, BatchSource(X, y, 256), settings)
    with jax.enable_x64(True):
        return np.asarray(Bernoulli().probability(*trained.parameters.predict(X_new)))


def report(what: str, figures: str, value: float, limit: float) -> None:
    """Print one line, and remember whether the limit was met."""
    verdict = "within" if value <= limit else "NOT within"
    print(f"{what}\n    {figures}: {value:.3f}, {verdict} the limit {limit:g}", flush=True)
    MISSED.extend([what] if value > limit else [])


MISSED: list[str] = []

if __name__ == "__main__":
    print(f"{THREADS} threads; load {os.getloadavg()[0]:.1f}")
    cost_of_a_step()
    growth_with_features()
    what_training_reaches()
    if len(sys.argv) > 2:
        classification(sys.argv[2])
    sys.exit(bool(MISSED))
