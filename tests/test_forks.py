"""Processes forked after a fit: they predict, and say in a sentence what they cannot do."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

# The exact model of an RBF kernel needs no JAX; the others do, and use threads of OpenMP.
PROGRAM = """
import os, warnings
import numpy as np
from orthogp import GPRegressor, OrthogpError
# Python and JAX warn of any fork of a process with threads.
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (500, 1))
y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(len(X))
SETTINGS = dict(kernel="rbf", n_jobs=2)
models = [GPRegressor(solver="exact", **SETTINGS).fit(X[:100], y[:100])]

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OrthogpError as error:
            print(error, flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

def predictions():
    return [np.array(model.predict(X[:50], return_std=True)) for model in models]

def compare():
    same = all(np.allclose(a, b, rtol=1e-9) for a, b in zip(predictions(), expected))
    print("same predictions" if same else "other predictions", flush=True)

def fit_exact():
    again = GPRegressor(solver="exact", **SETTINGS).fit(X[:100], y[:100])
    print("same model" if np.isclose(again.elbo_, models[0].elbo_) else "other model", flush=True)

child(fit_exact)
models.append(GPRegressor(solver="neighbours", **SETTINGS).fit(X, y))
models.append(GPRegressor(solver="dense", num_features=31, **SETTINGS).fit(X, y))
expected = predictions()
child(compare)
child(lambda: GPRegressor(solver="dense", num_features=31, **SETTINGS).fit(X, y))
"""


def test_children_predict_and_say_that_they_cannot_fit() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "same model",
        "same predictions",
        "JAX cannot work in a process that was forked after a fit, because its threads stayed "
        'behind in the parent: start processes by spawn instead, or by joblib\'s backend "loky".',
    ]
