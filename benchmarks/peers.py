"""orthogp beside other libraries: one machine, the same rows, the same kernel; seconds and errors.

    python benchmarks/peers.py [--python PEERS/bin/python ...] [--data DIR] [--scale 1.0]
                               [--keep peers.json] [--into README.md] [--only NAME ...]

Peers live in environments of their own, each given by its interpreter:

    python -m venv peers && peers/bin/pip install scikit-learn gpboost celerite2 torch gpytorch
    python -m venv tf && tf/bin/pip install gpflow tf-keras

A library that no interpreter can import is left out. Every row of the table is a process that is
stopped after LONGEST seconds, and rows that `--keep` has already are not measured again. DIR holds
uci_kin40k.npz and usprecip_1948.npz (X, y); without it, their rows are left out. Seconds are of
fitting and predicting mean and sd at the test rows, compiling included, importing not. Nothing is
chosen by test rows: every library learns a kernel of the same kind, with a lengthscale for each
column and a noise variance, from defaults. Inducing points are trained for TRAINING seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

# Seconds after which a row is stopped.
LONGEST = 150
# Seconds of training for inducing points, which have no end of their own.
TRAINING = 60
# Inducing points, rows in a batch and the step of Adam: usual choices.
POINTS = 500
BATCH = 1024
STEP = 0.01
# Nearest rows of GPBoost's Vecchia approximation; its default.
NEIGHBOURS = 20
# Numbers in the covariance that celerite2 forms for variances.
MOST_PAIRS = 20_000_000
# Half the width of a 95 % interval, in standard deviations.
Z95 = 1.959963984540054

Prediction = tuple[np.ndarray, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


# ------------------------------------------------------------------------------------------- data


def co2(scale: float, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Weekly CO2 of Mauna Loa, shipped with the documentation."""
    path = Path(__file__).parents[1] / "docs" / "tutorials" / "co2.csv"
    table = np.genfromtxt(path, delimiter=",", names=True)
    return table["year"][:, None], table["co2"]


def series(scale: float, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """A made series: two waves, a trend of the amplitude, noise of sd 0.3."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0, 100, int(1_000_000 * scale)))
    f = np.sin(2 * x) * np.exp(-x / 80) + np.sin(0.31 * x)
    return x[:, None], f + 0.3 * rng.standard_normal(len(x))


def field(scale: float, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """A made map: a Matérn-3/2 field of lengthscale 0.1 on the unit square, noise of sd 0.1."""
    rng = np.random.default_rng(2)
    X = rng.random((int(100_000 * scale), 2))
    # Frequencies of Matérn-3/2 are multivariate t with three degrees of freedom.
    frequencies = rng.standard_normal((2, 2000)) / 0.1
    frequencies *= np.sqrt(3 / rng.chisquare(3, 2000))
    phases = rng.uniform(0, 2 * np.pi, 2000)
    f = np.concatenate(
        [np.cos(part @ frequencies + phases).sum(axis=1) for part in np.array_split(X, 50)]
    ) * math.sqrt(2 / 2000)
    return X, f + 0.1 * rng.standard_normal(len(X))


def stored(name: str) -> Callable[[float, Path | None], tuple[np.ndarray, np.ndarray]]:
    """A data set of the folder, thinned to a share of its rows."""

    def load(scale: float, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
        if folder is None or not (folder / f"{name}.npz").exists():
            raise FileNotFoundError(name)
        data = np.load(folder / f"{name}.npz")
        keep = np.random.default_rng(3).permutation(len(data["y"]))
        keep = np.sort(keep[: int(len(keep) * scale)])
        return data["X"][keep], data["y"][keep]

    return load


# What each is called in the table, how it is made, and who can take that many rows and columns.
DATA = {
    "co2": ("CO₂, weekly", co2, "orthogp scikit-learn gpytorch gpflow celerite2"),
    "usprecip": (
        "US precipitation 1948, a map",
        stored("usprecip_1948"),
        "orthogp scikit-learn gpytorch gpflow gpboost",
    ),
    "field": ("a made map", field, "orthogp gpytorch-svgp gpflow-svgp gpboost"),
    "series": ("a made series", series, "orthogp gpytorch-svgp gpflow-svgp celerite2"),
    "kin40k": (
        "kin40k, eight columns",
        stored("uci_kin40k"),
        "orthogp gpytorch-svgp gpflow-svgp gpboost",
    ),
}


def split(X: np.ndarray, y: np.ndarray) -> Rows:
    """Training rows, and a tenth of all rows, permuted by seed 0, as test rows."""
    test = np.zeros(len(y), dtype=bool)
    test[np.random.default_rng(0).permutation(len(y))[: len(y) // 10]] = True
    return X[~test], y[~test], X[test], y[test]


# ---------------------------------------------------------------------------------------- libraries
# Each takes training rows and test inputs, and returns mean and sd of test targets, with noise.
# Inputs have sd 1 in each column and targets mean 0, sd 1.


def orthogp(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """The defaults."""
    from orthogp import GPRegressor

    model = GPRegressor("matern32").fit(X, y)
    mean, sd = model.predict(T, return_std=True)
    return mean, np.sqrt(sd**2 + model.noise_variance_)


def scikit_learn(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Exact regression."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel() * Matern([1.0] * X.shape[1], (1e-3, 1e3), nu=1.5) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel).fit(X, y).predict(T, return_std=True)


def gpytorch_exact(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Exact regression: Cholesky factors, a hundred steps of Adam."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    inputs, targets, new = (torch.as_tensor(a) for a in (X, y, T))

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood).double()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.fast_computations(False, False, False):
        for _ in range(100):
            optimiser.zero_grad()
            loss = -bound(model(inputs), targets)
            loss.backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            predicted = likelihood(model(new))
            return predicted.mean.numpy(), predicted.stddev.numpy()


def gpytorch_svgp(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Inducing points and mini-batches."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    start = torch.as_tensor(X[rng.choice(len(X), min(POINTS, len(X)), replace=False)])

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(start))
            super().__init__(gpytorch.variational.VariationalStrategy(self, start, q))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model().double()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=STEP)
    until = time.perf_counter() + TRAINING
    while time.perf_counter() < until:
        batch = rng.integers(len(y), size=BATCH)
        optimiser.zero_grad()
        loss = -bound(model(torch.as_tensor(X[batch])), torch.as_tensor(y[batch]))
        loss.backward()
        optimiser.step()
    model.eval()
    means, sds = [], []
    with torch.no_grad():
        for part in np.array_split(T, max(1, len(T) // 10_000)):
            predicted = likelihood(model(torch.as_tensor(part)))
            means.append(predicted.mean.numpy())
            sds.append(predicted.stddev.numpy())
    return np.concatenate(means), np.concatenate(sds)


def gpflow_exact(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Exact regression, learned by L-BFGS."""
    import gpflow

    kernel = gpflow.kernels.Matern32(lengthscales=np.ones(X.shape[1]))
    model = gpflow.models.GPR((X, y[:, None]), kernel)
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables)
    mean, variance = model.predict_y(T)
    return mean.numpy()[:, 0], np.sqrt(variance.numpy()[:, 0])


def gpflow_svgp(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Inducing points and mini-batches."""
    import gpflow
    import tensorflow as tf

    rng = np.random.default_rng(0)
    start = X[rng.choice(len(X), min(POINTS, len(X)), replace=False)]
    kernel = gpflow.kernels.Matern32(lengthscales=np.ones(X.shape[1]))
    model = gpflow.models.SVGP(
        kernel, gpflow.likelihoods.Gaussian(), inducing_variable=start, num_data=len(y)
    )

    @tf.function
    def gradients(inputs, targets):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(model.trainable_variables)
            loss = model.training_loss((inputs, targets))
        return tape.gradient(loss, model.trainable_variables)

    optimiser = tf.keras.optimizers.Adam(STEP)
    until = time.perf_counter() + TRAINING
    while time.perf_counter() < until:
        batch = rng.integers(len(y), size=BATCH)
        found = gradients(tf.constant(X[batch]), tf.constant(y[batch, None]))
        optimiser.apply_gradients(zip(found, model.trainable_variables))
    parts = [model.predict_y(part) for part in np.array_split(T, max(1, len(T) // 10_000))]
    mean, variance = (np.concatenate([p[i].numpy()[:, 0] for p in parts]) for i in (0, 1))
    return mean, np.sqrt(variance)


def gpboost(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Vecchia's approximation."""
    import gpboost as gpb

    model = gpb.GPModel(
        gp_coords=X,
        cov_function="matern" if X.shape[1] == 1 else "matern_ard",
        cov_fct_shape=1.5,
        likelihood="gaussian",
        gp_approx="vecchia",
        num_neighbors=NEIGHBOURS,
    )
    model.fit(y=y)
    found = model.predict(gp_coords_pred=T, predict_var=True, predict_response=True)
    return found["mu"], np.sqrt(found["var"])


def celerite2(X: np.ndarray, y: np.ndarray, T: np.ndarray) -> Prediction:
    """Semiseparable matrices: exact for its own Matérn-3/2, a close approximation of it."""
    import celerite2 as c2
    from scipy.optimize import minimize

    order = np.argsort(X[:, 0])
    x, targets = X[order, 0], y[order]
    # Equal inputs are told apart by less than any kernel sees.
    x = x + 1e-12 * np.arange(len(x))

    def process(log_parameters):
        sigma, rho, noise = np.exp(log_parameters)
        gp = c2.GaussianProcess(c2.terms.Matern32Term(sigma=sigma, rho=rho), mean=0.0)
        gp.compute(x, diag=np.full(len(x), noise), quiet=True)
        return gp

    # Gradients by differences: its numpy interface has no others.
    def loss(log_parameters):
        value = -process(log_parameters).log_likelihood(targets) / len(targets)
        return value if np.isfinite(value) else 1e10

    found = minimize(loss, np.log([1.0, 0.5, 0.1]), method="L-BFGS-B")
    gp = process(found.x)
    mean = gp.predict(targets, t=T[:, 0])
    # Variances take a covariance between all rows and all points.
    if len(x) * len(T) > MOST_PAIRS:
        return mean, np.full(len(T), np.nan)
    _, variance = gp.predict(targets, t=T[:, 0], return_var=True)
    return mean, np.sqrt(np.maximum(variance, 0) + np.exp(found.x[2]))


# The function, the distribution whose version is shown, the module, and what it is called.
LIBRARIES: dict[str, tuple[Callable[..., Prediction], str, str, str]] = {
    "orthogp": (orthogp, "orthogp", "orthogp", "**orthogp**"),
    "scikit-learn": (scikit_learn, "scikit-learn", "sklearn", "scikit-learn, exact"),
    "gpytorch": (gpytorch_exact, "gpytorch", "gpytorch", "GPyTorch, exact"),
    "gpytorch-svgp": (gpytorch_svgp, "gpytorch", "gpytorch", f"GPyTorch, {POINTS} inducing points"),
    "gpflow": (gpflow_exact, "gpflow", "gpflow", "GPflow, exact"),
    "gpflow-svgp": (gpflow_svgp, "gpflow", "gpflow", f"GPflow, {POINTS} inducing points"),
    "gpboost": (gpboost, "gpboost", "gpboost", f"GPBoost, Vecchia, {NEIGHBOURS} neighbours"),
    "celerite2": (celerite2, "celerite2", "celerite2", "celerite2"),
}


# ---------------------------------------------------------------------------------------- measuring


def measure(data: str, library: str, scale: float, folder: Path | None) -> dict[str, object]:
    """One row of the table: errors in units of the training targets' sd."""
    X, y, T, truth = split(*DATA[data][1](scale, folder))
    fit, distribution, module, _ = LIBRARIES[library]
    __import__(module)
    shift, unit = X.mean(axis=0), X.std(axis=0)
    centre, size = y.mean(), y.std()
    X, T, y, truth = (
        (X - shift) / unit,
        (T - shift) / unit,
        (y - centre) / size,
        (truth - centre) / size,
    )
    begun = time.perf_counter()
    mean, sd = (np.asarray(a, dtype=float) for a in fit(X, y, T))
    seconds = time.perf_counter() - begun
    measured = {
        "version": version(distribution),
        "rows": len(y),
        "seconds": seconds,
        "rmse": float(np.sqrt(np.mean((truth - mean) ** 2))),
    }
    if np.isfinite(sd).all():
        score = np.abs(truth - mean) / sd
        nlpd = np.mean(0.5 * score**2 + np.log(sd) + 0.5 * math.log(2 * math.pi))
        measured |= {"nlpd": float(nlpd), "coverage": float(np.mean(score < Z95))}
    return measured


def interpreter_of(module: str, pythons: list[str]) -> str | None:
    """The first interpreter that can find a module."""
    program = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    found = (p for p in pythons if subprocess.run([p, "-c", program]).returncode == 0)
    return next(found, None)


def in_process(python: str, data: str, library: str, arguments: argparse.Namespace) -> dict:
    """One row, measured in a process that is stopped after LONGEST seconds."""
    command = [python, __file__, "--row", data, library, "--scale", str(arguments.scale)]
    command += ["--data", str(arguments.data)] if arguments.data else []
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"stopped": LONGEST}
    if done.returncode != 0:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(rows: dict[str, dict]) -> str:
    """The rows measured, as Markdown; errors in standard deviations of y."""
    lines = [
        "| data | library | seconds | RMSE / sd | NLPD | 95 % covers |",
        "|---|---|---|---|---|---|",
    ]
    for key, row in rows.items():
        data, library, _ = key.split("/")
        count = f"{row['rows']:,} rows" if "rows" in row else ""
        name = ", ".join(part for part in (DATA[data][0], count) if part)
        who = " ".join(part for part in (LIBRARIES[library][3], row.get("version", "")) if part)
        if "seconds" in row:
            sds = f"{row['nlpd']:.3f} | {100 * row['coverage']:.0f} %" if "nlpd" in row else "– | –"
            cells = f"{row['seconds']:.3g} | {row['rmse']:.4f} | {sds}"
        else:
            what = f"more than {row['stopped']}" if "stopped" in row else "failed"
            cells = f"{what} | – | – | –"
        lines.append(f"| {name} | {who} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is not kept yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", default=[], help="an interpreter with peers")
    parser.add_argument("--data", type=Path, help="the folder of stored data sets")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, for a trial")
    parser.add_argument("--keep", type=Path, default=Path("peers.json"), help="rows measured")
    parser.add_argument("--into", type=Path, help="a page with <!-- peers --> around its table")
    parser.add_argument("--only", nargs="*", default=list(DATA), choices=list(DATA))
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(*arguments.row, arguments.scale, arguments.data)))
        return
    kept = json.loads(arguments.keep.read_text()) if arguments.keep.exists() else {}
    shown = {}
    pythons = [sys.executable, *arguments.python]
    for data in arguments.only:
        try:
            DATA[data][1](0.01, arguments.data)
        except FileNotFoundError:
            print(f"{data}: no such file in --data", file=sys.stderr)
            continue
        for library in DATA[data][2].split():
            key = f"{data}/{library}/{arguments.scale}"
            if key not in kept:
                python = interpreter_of(LIBRARIES[library][2], pythons)
                if python is None:
                    print(f"{library}: give --python that can import it", file=sys.stderr)
                    continue
                kept[key] = in_process(python, data, library, arguments)
                print(f"{key}: {kept[key]}", file=sys.stderr)
                arguments.keep.write_text(json.dumps(kept, indent=1))
            shown[key] = kept[key]
    print(table(shown))
    if arguments.into:
        before, _, after = arguments.into.read_text(encoding="utf-8").split("<!-- peers -->")
        page = f"{before}<!-- peers -->\n\n{table(shown)}\n\n<!-- peers -->{after}"
        arguments.into.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
