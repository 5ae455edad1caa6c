"""Sums of dask's arrays and frames, on threads and on a real cluster, one worker of which dies."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from orthogp import FourierStatistics, FrequencyLattice, InputError
from orthogp.files.cluster import FAN_IN, Cluster, default_lattice
from orthogp.learning.layout import Setup
from orthogp.learning.sketches import Sketch
from orthogp.rows import Domain, Rows
from tests.oracles import Array

SUMS = ("point_sums", "target_sums", "yy", "rows", "count", "log_weights")
LATTICES = {
    1: FrequencyLattice([0.4], [40]),
    2: FrequencyLattice([0.4, 0.5], [12, 10], [0.5, 0.5]),
    3: FrequencyLattice([0.4, 0.5, 0.6], [4, 3, 4]),
}


def rows_of(num_rows: int, num_dims: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 2, (num_rows, num_dims))
    return (
        X,
        np.sin(3 * X.sum(axis=1)) + rng.normal(2.0, 0.1, num_rows),
        rng.uniform(0, 2, num_rows),
    )


def assert_same(found: FourierStatistics, expected: FourierStatistics, rtol: float = 1e-12) -> None:
    assert found.lattice == expected.lattice
    for name in SUMS:
        value, want = getattr(found, name), getattr(expected, name)
        scale = np.max(np.abs(want))
        np.testing.assert_allclose(value, want, rtol=0, atol=rtol * scale, err_msg=name)


# ---------------------------------------------------------------------- collections


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1000, 400, 37])
def test_chunks_change_nothing_but_the_rounding(num_dims: int, chunk: int) -> None:
    X, y, weights = rows_of(1000, num_dims)
    lattice = LATTICES[num_dims]
    found = FourierStatistics.from_dask(
        da.from_array(X, chunks=(chunk, 1)),
        da.from_array(y, chunks=333),
        weights=da.from_array(weights, chunks=chunk),
        lattice=lattice,
        target_shift=2.0,
    )
    assert_same(found, FourierStatistics.from_data(lattice, X, y, weights, target_shift=2.0))


def test_columns_of_one_array_go_by_number() -> None:
    X, y, weights = rows_of(500, 2)
    table = da.from_array(np.column_stack([y, X, weights]), chunks=(100, 4))
    found = FourierStatistics.from_dask(table, 0, weights=-1, lattice=LATTICES[2])
    assert_same(found, FourierStatistics.from_data(LATTICES[2], X, y, weights))


def test_columns_of_a_frame_go_by_name() -> None:
    import dask.dataframe as dd

    X, y, weights = rows_of(500, 2)
    table = pd.DataFrame({"name": "x", "b": X[:, 1], "y": y, "z": y**2, "n": weights, "a": X[:, 0]})
    frame = dd.from_pandas(table, npartitions=7)
    # Partitions without a row are as good as absent.
    frame = dd.concat([frame, frame[frame.a < -1]])
    found = FourierStatistics.from_dask(
        frame, ["y", "z"], inputs=["a", "b"], weights="n", lattice=LATTICES[2]
    )
    targets = np.column_stack([y, y**2])
    assert_same(found, FourierStatistics.from_data(LATTICES[2], X, targets, weights))
    alone = FourierStatistics.from_dask(frame[["a", "b", "y"]], "y", lattice=LATTICES[2])
    assert_same(alone, FourierStatistics.from_data(LATTICES[2], X, y))
    with pytest.raises(InputError, match=r"Column 'name' must hold numbers, got .*: convert"):
        FourierStatistics.from_dask(frame, "y", inputs=["name"])
    with pytest.raises(InputError, match=r"The frame has no column 'c', but \['name'"):
        FourierStatistics.from_dask(frame, "y", inputs=["c"])


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [500, 19_999, 20_000])
def test_the_lattice_is_the_one_a_model_chooses(num_dims: int, num_rows: int) -> None:
    X, y, _ = rows_of(500, num_dims)
    sketch = Sketch.begin(Rows(X, y[:, None], None), Setup(total_rows=num_rows))
    assert default_lattice((Domain.around(X), num_rows)) == sketch.statistics.lattice


def test_a_first_pass_finds_the_extent() -> None:
    X, y, weights = rows_of(500, 2)
    # What has no weight does not count.
    X[33], weights[33] = 50.0, 0.0
    inputs, target = da.from_array(X, chunks=(200, -1)), da.from_array(y)
    found = FourierStatistics.from_dask(inputs, target, weights=da.from_array(weights))
    rest = np.delete(X, 33, axis=0)
    assert found.lattice == default_lattice((Domain.around(rest), 499))
    assert found.rows == 499


def test_what_cannot_be_summed_is_refused() -> None:
    X, y, _ = rows_of(100, 2)
    inputs, target = da.from_array(X, chunks=(30, -1)), da.from_array(y)
    with pytest.raises(InputError, match="Expected a dask array or data frame, got ndarray"):
        FourierStatistics.from_dask(X, y)
    with pytest.raises(InputError, match="1 to 3 dimensions, got 4 input columns"):
        FourierStatistics.from_dask(da.concatenate([inputs, inputs], axis=1), target)
    with pytest.raises(InputError, match="inputs and the target must have the same rows"):
        FourierStatistics.from_dask(inputs, target[:50])
    with pytest.raises(InputError, match="The data are empty"):
        FourierStatistics.from_dask(inputs[:0], target[:0])
    y[70] = np.nan
    with pytest.raises(InputError, match=r"y has 1 in column 0 NaN or infinite"):
        FourierStatistics.from_dask(inputs, da.from_array(y), lattice=LATTICES[2])


def test_without_dask_a_sentence_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['dask'] = None\n"
        "from orthogp import FourierStatistics, InputError\n"
        "try: FourierStatistics.from_dask(None, None)\n"
        "except InputError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = 'Work on a cluster needs dask: install it with pip install "orthogp[cluster]".\n'
    assert done.stdout == expected, done.stderr


def test_statistics_travel_as_their_sums() -> None:
    X, y, _ = rows_of(1000, 2)
    found = FourierStatistics.from_data(LATTICES[2], X, y)
    data = pickle.dumps(found, protocol=5)
    sums = found.point_sums.nbytes + found.target_sums.nbytes
    assert sums <= len(data) < 1.2 * sums + 2000
    assert_same(pickle.loads(data), found, 0.0)


# ---------------------------------------------------------------------- a cluster


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler with three workers, each a process of its own."""
    with LocalCluster(
        n_workers=3,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
    ) as cluster:
        yield cluster.scheduler_address


def gated_rows(folder: Path, num_chunks: int, num_rows: int) -> da.Array:
    """Rows that come late: each chunk notes who makes it, the later ones wait for a sign."""

    # No function of this module, which the workers would have to import with all that it imports.
    def chunk_of(number: int) -> Array:
        (folder / f"{number}-{os.getpid()}").touch()
        deadline = time.monotonic() + 60
        while number >= 6 and not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return np.random.default_rng(number).uniform(0, 2, (num_rows, 3))

    chunks = [
        da.from_delayed(dask.delayed(chunk_of)(i), (num_rows, 3), float) for i in range(num_chunks)
    ]
    return da.concatenate(chunks)


@pytest.mark.slow
def test_only_sums_travel(address: str, tmp_path: Path) -> None:
    num_chunks, num_rows = 20, 20_000
    (tmp_path / "go").touch()
    rows = gated_rows(tmp_path, num_chunks, num_rows)
    with Cluster(address) as cluster:
        before = cluster.moved()
        found = FourierStatistics.from_dask(rows, -1, lattice=LATTICES[2], scheduler=cluster.client)
        moved = cluster.moved() - before
    assert found.rows == num_chunks * num_rows
    # Each chunk's sums, and those of each group of chunks, at most once.
    sums = len(pickle.dumps(found, protocol=5))
    assert 0 < moved < 1.1 * sums * num_chunks * (1 + 2 / FAN_IN)
    assert moved < 0.15 * found.rows * 3 * 8


def test_totals_are_added_on_the_workers(address: str) -> None:
    def refuse(number: int) -> int:
        raise InputError(f"{number} has too many digits.")

    ended: list[int] = []
    with Cluster(address) as cluster:
        assert cluster.num_threads >= 1
        total = cluster.total(abs, [-3, 4, -5] * 30, int.__add__, ended.append)
        assert cluster.map(abs, [-1, 2]) == [1, 2]
        with pytest.raises(InputError, match="too many digits"):
            cluster.total(refuse, [1, 2, 3], int.__add__)
    assert total == 360
    assert sorted(ended) == list(range(90))


def begun(folder: Path, number: int) -> list[int]:
    """The processes that have begun a chunk."""
    return [int(path.name.split("-")[1]) for path in folder.glob(f"{number}-*")]


def test_a_worker_that_is_killed_half_way_changes_nothing(address: str, tmp_path: Path) -> None:
    num_chunks, num_rows = 12, 2000
    rows = gated_rows(tmp_path, num_chunks, num_rows)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            FourierStatistics.from_dask, rows, -1, lattice=LATTICES[2], scheduler=address
        )
        deadline = time.monotonic() + 60
        waiting: list[int] = []
        while len(waiting) < 3 and time.monotonic() < deadline and not running.done():
            time.sleep(0.01)
            waiting = [number for number in range(6, num_chunks) if begun(tmp_path, number)]
        victim = begun(tmp_path, waiting[0])[0]
        os.kill(victim, signal.SIGKILL)
        # The others go on once it is gone, and what it had begun is begun again.
        (tmp_path / "go").touch()
        found = running.result(timeout=60)
    again = begun(tmp_path, waiting[0])
    assert len(again) == 2
    assert victim in again
    parts = [
        np.random.default_rng(number).uniform(0, 2, (num_rows, 3)) for number in range(num_chunks)
    ]
    table = np.concatenate(parts)
    assert_same(found, FourierStatistics.from_data(LATTICES[2], table[:, :2], table[:, 2]))


# ---------------------------------------------------------------------- no cluster


def test_a_scheduler_that_does_not_answer() -> None:
    with pytest.raises(InputError, match=r"No dask scheduler answers at tcp://127.0.0.1:1: start"):
        Cluster("tcp://127.0.0.1:1", timeout=0.5)
    with pytest.raises(InputError, match="No dask scheduler answers at nowhere://x"):
        Cluster("nowhere://x", timeout=0.5)


def local_threads(**settings: object) -> LocalCluster:
    return LocalCluster(
        processes=False,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
        **settings,
    )


def test_a_scheduler_without_workers() -> None:
    expected = r"has no workers: start some with `dask worker tcp"
    with local_threads(n_workers=0) as cluster, pytest.raises(InputError, match=expected):
        Cluster(cluster.scheduler_address, timeout=0.2)


def test_a_worker_without_orthogp_or_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "orthogp.files.cluster"
    with local_threads(n_workers=1, threads_per_worker=1) as cluster, Client(cluster) as client:
        Cluster(client).close()
        assert client.status == "running"
        monkeypatch.setattr(f"{home}._version", lambda: "9.9")
        with pytest.raises(InputError, match=r"worker at .* has orthogp 0.*, here it is 9.9"):
            Cluster(client)
        monkeypatch.setattr(f"{home}._VERSION", "orthogp_9:there")
        with pytest.raises(InputError, match=r"worker at .* has no orthogp_9: install orthogp"):
            Cluster(client)
