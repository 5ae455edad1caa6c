"""Starting values from windows of the data, where an exact GP is cheap.

A few hundred rows around some centres show the short scales and the noise at the data's own
resolution, rows from all over the domain show the long ones. The sum of their exact log marginal
likelihoods is a composite likelihood: no lattice and no number of features enters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from orthogp.exact.process import ExactObjective
from orthogp.features import MeanPrior
from orthogp.inference.parameters import pack
from orthogp.inference.threads import in_threads, one_thread
from orthogp.kernels import Kernel
from orthogp.learning.climbing import climb
from orthogp.learning.optimise import curvature_at
from orthogp.learning.problem import Start
from orthogp.rows import Rows

# Rows of a window, windows around a centre, and windows over the whole domain.
_SIZE, _LOCAL, _GLOBAL = 400, 5, 2
# Learning from windows ends with an iteration that gains fewer nats: it is but a start.
_SETTLED = 0.1
# Rows among which neighbours are looked for: more are thinned to one run of that length.
_MOST_SEARCHED = 5_000_000


def choose_windows(
    rows: Rows, width: NDArray[np.float64], seed: int = 0
) -> tuple[list[Rows], list[Rows]]:
    """Return windows of neighbouring rows, and windows of rows from all over the domain."""
    rng = np.random.default_rng(seed)
    candidates = np.arange(len(rows.X))
    if rows.weights is not None:
        candidates = candidates[rows.weights > 0]
    size = min(_SIZE, len(candidates))
    near = []
    searched = candidates[:_MOST_SEARCHED]
    scaled = rows.X[searched] / width
    for centre in rng.choice(len(searched), size=min(_LOCAL, len(searched)), replace=False):
        distance = np.einsum("nd,nd->n", delta := scaled - scaled[centre], delta)
        near.append(_take(rows, searched[np.argpartition(distance, size - 1)[:size]]))
    wide = [_take(rows, rng.choice(candidates, size=size, replace=False)) for _ in range(_GLOBAL)]
    return near, wide


def neighbour_variance(near: list[Rows]) -> float:
    """Return half the mean squared difference of nearest neighbours, an upper bound on the noise.

    It estimates σ² + k(0) − k(τ) at the rows' own spacing τ.
    """
    halves = []
    for window in near:
        scale = np.ptp(window.X, axis=0)
        X = window.X / np.where(scale > 0, scale, 1.0)
        neighbours = np.asarray(KDTree(X).query(X, k=2)[1])
        halves.append(np.mean((window.y - window.y[neighbours[:, 1]]) ** 2) / 2)
    return float(np.mean(halves))


def window_start(
    starts: list[Start],
    near: list[Rows],
    wide: list[Rows],
    mean: MeanPrior,
    limits: Callable[[float], tuple[NDArray[np.float64], NDArray[np.float64]]],
    *,
    repeats: bool,
    out_of_time: Callable[[], bool],
    num_threads: int = 1,
) -> Start:
    """Return the hyperparameters of the largest composite likelihood, from the best of `starts`."""
    kernel = starts[0].kernel
    settings: dict[str, Any] = {"repeats": repeats, "threads": num_threads}
    objective = CompositeObjective(kernel, near + wide, mean, **settings)
    # Two windows find the neighbourhood for two sevenths of the price.
    brief = CompositeObjective(kernel, [near[0], wide[0]], mean, **settings)
    lower, upper = limits(1e-9)
    vectors = np.unique(
        [
            np.append(pack(s.kernel, objective.slots), np.log(s.noise_variance)).clip(lower, upper)
            for s in starts
        ],
        axis=0,
    )
    patience: dict[str, Any] = {
        "out_of_time": out_of_time,
        "tolerance": _SETTLED,
        "max_iterations": 30,
    }
    with one_thread():
        # With its gradient, which will be asked for anyway: values alone are compiled apart.
        start = max(vectors, key=lambda vector: brief(vector)[0])
        first = climb(brief, start, limits, **patience)
        x = first.maximum.x
        curvature = curvature_at(brief, x, brief(x)[1], first.lower, first.upper)
        curvature *= objective.num_windows / brief.num_windows
        summit = climb(objective, x, limits, curvature=curvature, **patience)
    best = summit.maximum.x
    return Start(objective.kernel_at(best), float(np.exp(best[-1])))


class CompositeObjective:
    """The sum of exact log marginal likelihoods of several windows."""

    def __init__(
        self,
        kernel: Kernel,
        windows: list[Rows],
        mean: MeanPrior,
        *,
        repeats: bool,
        threads: int = 1,
    ) -> None:
        self._threads = threads
        self._parts = [ExactObjective(kernel, mean, window, repeats=repeats) for window in windows]
        self.slots = self._parts[0].slots
        self.num_windows = len(windows)

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the sum and its gradient."""
        found = in_threads(lambda part: part.value_and_gradient(vector), self._parts, self._threads)
        values, gradients = zip(*found, strict=True)
        return float(sum(values)), np.sum(gradients, axis=0)

    def kernel_at(self, vector: NDArray[np.float64]) -> Kernel:
        """Return the kernel of a parameter vector."""
        return self._parts[0].kernel_at(vector)


def _take(rows: Rows, chosen: NDArray[np.int64]) -> Rows:
    weights = None if rows.weights is None else rows.weights[chosen]
    return Rows(np.asarray(rows.X[chosen], dtype=np.float64), rows.y[chosen], weights)
