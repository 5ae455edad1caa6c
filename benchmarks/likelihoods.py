"""Counts from one pass against the same bound by passes over the rows.

    python benchmarks/likelihoods.py [ROWS]

Both sides evaluate the bound and its gradient at the same hyperparameters, in turn, in one process;
the whole fit is timed beside them.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from orthogp import GPRegressor
from orthogp.inference.parameters import learned_slots, pack
from orthogp.likelihoods.measures import RowMeasure, TorusMeasure
from orthogp.likelihoods.variational import POLISHED, Model, VariationalBound
from orthogp.rows import Rows

NUM_ROWS = 1_000_000
# Evaluations that are timed.
REPEATS = 3


def main() -> None:
    """Print the table."""
    number = int(float(sys.argv[1])) if len(sys.argv) > 1 else NUM_ROWS
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (number, 1))
    hours = rng.uniform(0.5, 2.0, number)
    y = rng.poisson(hours * np.exp(np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] - 2))
    began = time.perf_counter()
    model = GPRegressor("rbf", likelihood="poisson").fit(X, y, exposure=hours)
    seconds = time.perf_counter() - began
    posterior, sketch, family = model.posterior_, model._sketch, model.likelihood_
    assert family is not None
    features, kernel = posterior.features, posterior.kernel
    rows, constants = family.summands(Rows(X, np.column_stack([y, hours]), None))
    steps = np.rint(features.lattice.spacing / sketch.statistics.lattice.spacing).astype(np.int64)
    sums = sketch.plain.decimate(steps)
    reach = 6 * np.abs(features.indices).max(axis=0)
    measures = {
        "one pass": TorusMeasure(sums, reach, sketch.extent),
        "passes": RowMeasure(features.lattice, rows, None),
    }
    vector = pack(kernel, learned_slots(kernel))
    offset, found, times = float(model.target_offset_[0]), {}, {}
    for name, measure in measures.items():
        known = measure, 2 * features.lattice.extent, constants, offset
        bound = VariationalBound(Model(features, family, *known), kernel)
        found[name] = bound.ascend(kernel, family, polish=POLISHED)
        if not bound.resolved:
            sys.exit(
                f"The sums do not reach far enough ({name}): the comparison would be of noise."
            )
        own = []
        for i in range(REPEATS):
            began = time.perf_counter()
            bound.value_and_gradient(vector + 0.01 * (i + 1))
            own.append(time.perf_counter() - began)
        times[name] = float(np.median(own))
    q, other = found["one pass"], found["passes"]
    difference = float(np.linalg.norm(q.chol.T @ (q.mean - other.mean)))
    print(f"| what ({number:,} counts with exposures, one column, RBF) | measured |")
    print("|---|---|")
    print(f"| whole fit, this process | {seconds:.2f} s |")
    print(f"| bound and gradient, one pass | {times['one pass']:.4f} s |")
    print(f"| the same by passes over the rows | {times['passes']:.3f} s |")
    print(f"| ratio | {times['passes'] / times['one pass']:.0f} × |")
    print(f"| largest difference of means, in posterior sd | {difference:.1e} |")


if __name__ == "__main__":
    main()
