"""What sums cost per row, per chunk and per addition: the numbers of docs/scale.md.

    python benchmarks/scale.py [--rows 8000000] [--json results.json]

Everything runs in one thread, and rates are rows per second of processor time: on a machine that
others use too, that changes much less than time on the wall. The best of several repeats counts.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

REPEATS = 3


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--json", type=Path, help="write the results there as well")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"rows": arguments.rows}
    for num_dims in (1, 2, 3):
        results[f"{num_dims}-D"] = measure(num_dims, arguments.rows)
    results["seconds"] = fixed_costs()
    names = list(results["1-D"])
    print(f"{'':<34}" + "".join(f"{f'{d}-D':>14}" for d in (1, 2, 3)))
    for name in names:
        print(f"{name:<34}" + "".join(f"{results[f'{d}-D'][name]:>14,.4g}" for d in (1, 2, 3)))
    for name, seconds in results["seconds"].items():
        print(f"{name:<34}{seconds:>14.2g} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    return 0


def cost(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least seconds of processor time that some work took."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def measure(num_dims: int, num_rows: int) -> dict[str, float]:
    """Return what rows of so many inputs cost."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from orthogp import FourierStatistics, GPRegressor
    from orthogp.files.fitting import begin_like
    from orthogp.files.source import open_source
    from orthogp.files.summing import batches, sum_unit, work_units

    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (num_rows, num_dims))
    y = np.sin(3 * X).prod(axis=1) + 0.1 * rng.standard_normal(num_rows)
    names = ["a", "b", "c"][:num_dims]
    table = pa.table({**dict(zip(names, X.T)), "y": y})
    with tempfile.TemporaryDirectory() as folder:
        parquet, text = f"{folder}/rows.parquet", f"{folder}/rows.csv"
        pq.write_table(table, parquet)
        few = num_rows // 4
        pacsv.write_csv(table.slice(0, few), text)
        sources = [open_source([path], ["y"], names) for path in (parquet, text)]
        first = next(iter(batches(sources[0], 0, None, 100_000)))
        assert first.rows is not None
        like = begin_like(GPRegressor(n_jobs=1), num_dims)(first.rows, None, num_rows)
        lattice = like.statistics.lattice

        def in_memory(count: int) -> FourierStatistics:
            return FourierStatistics.from_data(lattice, X[:count], y[:count], num_threads=1)

        def from_file(number: int) -> object:
            source = sources[number]
            units = work_units(source, 1e12)
            assert len(units) == 1
            return sum_unit(source.reading, like, 0, 0.0, None, units[0])

        sums = in_memory(1000)
        none = cost(lambda: in_memory(1), 2 * REPEATS)
        adding = cost(lambda: sums + sums, 4 * REPEATS)
        rate = num_rows / cost(lambda: in_memory(num_rows))
        return {
            "in memory, rows/s": rate,
            "Parquet, rows/s": num_rows / cost(lambda: from_file(0)),
            "CSV, rows/s": few / cost(lambda: from_file(1), 2),
            "bytes of a row, Parquet": os.path.getsize(parquet) / num_rows,
            "bytes of a row, CSV": os.path.getsize(text) / few,
            "megabytes of sums": len(pickle.dumps(sums, protocol=5)) / 1e6,
            "fixed cost of a chunk, ms": 1e3 * none,
            "one addition, ms": 1e3 * adding,
        }


def fixed_costs() -> dict[str, float]:
    """Return what comes once, or once for each task or file."""
    from distributed import LocalCluster

    from orthogp.files.cluster import Cluster
    from orthogp.files.source import open_source

    program = "import time; t = time.process_time(); import orthogp.files.summing; "
    program += "print(time.process_time() - t)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as folder:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number in range(100):
            pq.write_table(pa.table({"a": [1.0], "y": [2.0]}), f"{folder}/{number}.parquet")

        def open_all() -> None:
            open_source([folder], ["y"]).extent()

        each = cost(open_all, 3) / 100
    settings = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, **settings) as running,
        Cluster(running.scheduler_address) as cluster,
    ):
        cluster.total(abs, [0], max)
        numbers = list(range(4000))
        # The scheduler lives in this process, the worker in another.
        task = cost(lambda: cluster.total(abs, numbers, max)) / len(numbers)
    return {
        "importing orthogp on a worker": float(done.stdout),
        "opening a Parquet file": each,
        "a task, client and scheduler": task,
    }


if __name__ == "__main__":
    # pyarrow asks for it when it is loaded.
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main())
