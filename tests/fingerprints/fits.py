"""Fits of every kind, and the numbers that identify each: results may move by rounding only.

python -m tests.fingerprints.fits     # writes fingerprints.json anew
"""

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp import DriftRegressor, GPClassifier, GPRegressor, RowGaps, StochasticGPRegressor
from orthogp.features import Harmonic, Hermite, InducingPoints, TwoBlock
from orthogp.kernels import RBF, Matern32, QuasiPeriodic, Rotated, additive

STORED = Path(__file__).with_name("fingerprints.json")


def rows(n: int, num_dims: int, noise: float = 0.2, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Inputs in a box and a smooth function of them, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 4, (n, num_dims))
    f = np.sin(2 * X[:, 0]) + 0.5 * np.cos(3 * X[:, -1]) * X[:, num_dims // 2]
    return X, f + noise * rng.standard_normal(n)


def numbers(model: Any, X: NDArray) -> dict[str, list[float]]:
    """Return what identifies a fitted regressor."""
    mean, sd = model.predict(X, return_std=True)
    found = {"mean": np.ravel(mean), "sd": np.ravel(sd)}
    for name in ("noise_variance_", "elbo_", "upper_bound_", "tightened_bound_"):
        if hasattr(model, name):
            found[name] = np.ravel(getattr(model, name))
    kernels = model.kernel_ if isinstance(model.kernel_, tuple) else (model.kernel_,)
    for i, kernel in enumerate(kernels):
        for j, (primitive, _) in enumerate(kernel.primitives()):
            for name, value in primitive.parameters().items():
                found[f"kernel {i} {j} {name}"] = np.ravel(value)
    return {name: [float(v) for v in value] for name, value in found.items()}


def _regressor(n: int, num_dims: int, *args: Any, **settings: Any) -> dict[str, list[float]]:
    X, y = rows(n, num_dims)
    return numbers(GPRegressor(*args, **settings).fit(X, y), X[:5])


def _weights() -> dict[str, list[float]]:
    X, y = rows(3000, 1)
    w = np.random.default_rng(1).uniform(0.2, 3, len(X))
    model = GPRegressor("matern52", solver="dense", weights="precisions").fit(X, y, w)
    return numbers(model, X[:5])


def _targets() -> dict[str, list[float]]:
    X, y = rows(3000, 1)
    both = np.column_stack([y, 3 + 10 * np.cos(X[:, 0])])
    return numbers(GPRegressor("rbf", solver="dense").fit(X, both), X[:5])


def _added() -> dict[str, list[float]]:
    X, y = rows(4000, 1)
    model = GPRegressor("matern32", solver="dense").fit(X[:3000], y[:3000])
    return numbers(model.partial_fit(X[3000:], y[3000:]), X[:5])


def _forgotten() -> dict[str, list[float]]:
    X, y = rows(4000, 1)
    model = GPRegressor("matern32", solver="dense").fit(X, y)
    return numbers(model.forget(X[3000:], y[3000:]), X[:5])


def _loaded() -> dict[str, list[float]]:
    X, y = rows(3000, 2)
    model = GPRegressor("rbf", solver="dense", num_features=101).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/m.orthogp")
        again = GPRegressor.load(f"{folder}/m.orthogp")
    return numbers(again.partial_fit(*rows(200, 2, seed=2)), X[:5])


def _stochastic() -> dict[str, list[float]]:
    X, y = rows(1000, 1)
    model = StochasticGPRegressor(num_features=21, random_state=0).fit(X, y)
    return numbers(model, X[:5])


def _classes(**settings: Any) -> dict[str, list[float]]:
    X, y = rows(400, 2)
    labels = y > np.median(y)
    model = GPClassifier("rbf", max_features=200, **settings).fit(X, labels)
    return {"proba": model.predict_proba(X[:5])[:, 1].tolist(), "elbo": [float(model.elbo_)]}


def _drift() -> dict[str, list[float]]:
    X, y = rows(3000, 2)
    keep = (X[:, 0] - 2) ** 2 + (X[:, 1] - 2) ** 2 > 1
    model = DriftRegressor(GPRegressor("matern32", max_features=400), RowGaps())
    model.fit(X[keep], y[keep])
    mean, sd = model.predict(X[~keep][:5], return_std=True)
    return {"mean": mean.tolist(), "sd": sd.tolist()}


FITS: dict[str, Callable[[], dict[str, list[float]]]] = {
    "dense, one column": lambda: _regressor(3000, 1, "matern32", solver="dense"),
    "dense, two columns": lambda: _regressor(3000, 2, "rbf", solver="dense"),
    "dense, fixed": lambda: _regressor(
        3000, 2, Matern32(1.0, 0.7), solver="dense", learn=False, noise_variance=0.04
    ),
    "dense, linear mean": lambda: _regressor(3000, 1, "matern52", solver="dense", mean="linear"),
    "dense, no mean": lambda: _regressor(3000, 1, "matern12", solver="dense", mean=None),
    "dense, sum of kernels": lambda: _regressor(
        3000, 1, RBF(lengthscale=2.0) + QuasiPeriodic(period=1.0), solver="dense"
    ),
    "dense, rotated": lambda: _regressor(
        3000, 2, Rotated(Matern32(1.0, [1.0, 0.5])), solver="dense", max_features=301
    ),
    "exact": lambda: _regressor(300, 3, "matern52", solver="exact"),
    "exact by default": lambda: _regressor(300, 1, "rbf"),
    "neighbours": lambda: _regressor(3000, 4, "matern32", solver="neighbours"),
    "iterative": lambda: _regressor(3000, 1, "matern12", solver="iterative", num_features=4001),
    "additive": lambda: _regressor(3000, 5, "additive-rbf"),
    "additive, cyclic and categorical": lambda: _regressor(
        3000, 2, additive("matern32", 2, joint=[], periodic={1: 4.0})
    ),
    "trig": lambda: _regressor(3000, 1, "rbf", features="trig", num_features=41),
    "hermite": lambda: _regressor(3000, 1, "rbf", features=Hermite(31)),
    "inducing points": lambda: _regressor(3000, 2, "rbf", features=InducingPoints(40, learn=False)),
    "two blocks": lambda: _regressor(
        1000, 1, "rbf", features=TwoBlock(InducingPoints(10), InducingPoints(10))
    ),
    "variational Fourier": lambda: _regressor(
        3000, 1, "matern32", features="variational-fourier", num_features=41
    ),
    "harmonic": lambda: _regressor(3000, 2, "matern52", features=Harmonic(60)),
    "random Fourier": lambda: _regressor(
        3000, 2, "rbf", features="random-fourier", num_features=60
    ),
    "weights": _weights,
    "several targets": _targets,
    "rows added": _added,
    "rows forgotten": _forgotten,
    "saved, loaded, rows added": _loaded,
    "stochastic": _stochastic,
    "classes": _classes,
    "classes, fixed": lambda: _classes(learn=False),
    "drift": _drift,
}


def main() -> None:
    """Write the numbers of all fits."""
    warnings.simplefilter("ignore")
    found = {}
    for name, fit in FITS.items():
        found[name] = fit()
        print(name)
    STORED.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
