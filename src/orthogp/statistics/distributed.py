"""Sums on a cluster: the only file that imports dask.

Rows stay where they are. Each chunk of them becomes sums on one lattice, the sums are added in a
tree on the workers, and only the total comes back. The tree is the same whoever works, so that a
worker that is lost, or joins late, changes nothing.
"""

from __future__ import annotations

import operator
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from orthogp.errors import InputError
from orthogp.statistics.chunk_sums import (
    ChunkRows,
    array_rows,
    check_dims,
    chunk_extent,
    chunk_sums,
    default_lattice,
    frame_rows,
    table_rows,
    united,
)
from orthogp.statistics.lattice import FrequencyLattice
from orthogp.statistics.tree_sums import added, fused, groups, weighed

try:
    import dask
    from dask._task_spec import convert_legacy_graph
    from dask.delayed import Delayed
    from distributed import CancelledError, Client, KilledWorker, as_completed
    from distributed.comm import CommClosedError
except ModuleNotFoundError as error:
    raise InputError(
        f'Work on a cluster needs {error.name}: install it with pip install "orthogp[cluster]".'
    ) from error

#: Seconds to wait for a scheduler, and for its first worker.
TIMEOUT = 15.0
_VERSION = "orthogp:__version__"


class Cluster:
    """The workers behind a dask.distributed scheduler.

    Parameters
    ----------
    scheduler : str or distributed.Client
        An address such as "tcp://10.0.0.1:8786", or a client, which stays open.
    """

    def __init__(self, scheduler: str | Client, *, timeout: float | None = None) -> None:
        timeout = TIMEOUT if timeout is None else timeout
        self._own = not isinstance(scheduler, Client)
        if isinstance(scheduler, Client):
            self._client: Any = scheduler
        else:
            try:
                self._client = Client(scheduler, timeout=timeout, set_as_default=False)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"No dask scheduler answers at {scheduler}: start one with `dask scheduler`, "
                    "or check the address."
                ) from error
        self._address = str(self._client.scheduler.address)
        try:
            self._check(timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; it goes on without us."""
        if self._own:
            self._client.close()

    @property
    def client(self) -> Client:
        """The client that speaks to the scheduler."""
        return self._client

    @property
    def num_threads(self) -> int:
        """How many tasks run at once."""
        return max(1, sum(self._client.nthreads().values()))

    def moved(self) -> int:
        """Return the bytes that the workers of now have sent to each other since they began."""
        return sum(self._client.run(_sent).values())

    def map(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        done: Callable[[int], object] = int,
    ) -> list[Any]:
        """Return what a pure function gives for every task: small things, all of which travel.

        Parameters
        ----------
        done : callable
            Is told the index of every task that has ended.
        """
        with _in_words(self._address):
            futures = self._client.map(function, tasks, pure=False)
            _Ended(futures).watch(done)
            return self._client.gather(futures)

    def total(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        add: Callable[[Any, Any], Any],
        done: Callable[[int], object] = int,
    ) -> Any:
        """Return the sum of what a pure function gives for every task, added on the workers.

        Parameters
        ----------
        function, add : callable
            Of modules that the workers have.
        done : callable
            Is told the index of every task that has ended.
        """
        client = self._client
        with _in_words(self._address):
            leaves = client.map(partial(weighed, function), tasks, pure=False)
            level, height = leaves, 0
            while len(level) > 1 or height == 0:
                height += 1
                # Additions go first: what waits to be added takes memory.
                level = [
                    client.submit(added, add, *group, pure=False, priority=height)
                    for group in groups(level)
                ]
            root = level[0]
            try:
                # Whoever holds a future holds its result on the workers: no list of them stays.
                ended, level = _Ended(leaves), []
                del leaves
                ended.watch(done)
                return root.result().value
            except BaseException:
                root.cancel()
                raise

    def _check(self, timeout: float) -> None:
        """Raise `InputError` unless there are workers, with the same orthogp as here."""
        here = _version()
        try:
            self._client.wait_for_workers(1, timeout=timeout)
        except TimeoutError as error:
            raise InputError(
                f"The scheduler at {self._address} has no workers: start some with "
                f"`dask worker {self._address}`."
            ) from error
        # A function of the standard library: one of ours could not even be sent.
        found = self._client.run(pkgutil.resolve_name, _VERSION, on_error="return")
        found = {f"The worker at {worker}": version for worker, version in found.items()}
        try:
            there = self._client.run_on_scheduler(pkgutil.resolve_name, _VERSION)
        except ModuleNotFoundError as error:
            there = error
        for who, version in (*found.items(), (f"The scheduler at {self._address}", there)):
            if isinstance(version, ModuleNotFoundError):
                raise InputError(
                    f"{who} has no {version.name}: install orthogp {here} where it runs."
                ) from version
            if version != here:
                raise InputError(
                    f"{who} has orthogp {version}, here it is {here}: install the same everywhere."
                )


# ---------------------------------------------------------------------- dask's collections


def sum_collection(
    summed: Callable[..., Any],
    data: Any,
    target: Any,
    *,
    inputs: Sequence[Any] | None = None,
    weights: Any = None,
    lattice: FrequencyLattice | None = None,
    scheduler: str | Client | None = None,
) -> Any:
    """Return the statistics of a dask array or frame; see `FourierStatistics.from_dask`.

    Parameters
    ----------
    summed : callable
        Takes a lattice, X, y and weights of one chunk, and returns statistics that can be added.
    """
    if not dask.is_dask_collection(data):
        raise InputError(
            f"Expected a dask array or data frame, got {type(data).__name__}: use from_data for "
            "rows in memory."
        )
    chunks = _frame_chunks if hasattr(data, "columns") else _array_chunks
    parts = chunks(data, target, inputs, weights)
    cluster = None if scheduler is None else Cluster(scheduler)
    try:
        with _in_words("dask's scheduler" if cluster is None else cluster._address):
            if lattice is None:
                lattice = default_lattice(_reduced(cluster, chunk_extent, parts, united))
            found = _reduced(cluster, partial(chunk_sums, summed, lattice), parts, operator.add)
    finally:
        if cluster is not None:
            cluster.close()
    if found is None:
        raise InputError("The data are empty: at least one row is needed.")
    return found


def _array_chunks(data: Any, target: Any, inputs: Any, weights: Any) -> list[Any]:
    """Return the delayed rows of each chunk of an array."""
    if data.ndim == 1:
        data = data[:, None]
    if not dask.is_dask_collection(target):
        return _table_chunks(data, target, inputs, weights)
    if inputs is not None:
        data = data[:, list(inputs)]
    check_dims(data.shape[1])
    data = data.rechunk({1: -1})
    arrays = [data]
    for name, array in (("the target", target), ("the weights", weights)):
        if array is None:
            continue
        known = not np.isnan([*data.chunks[0], *array.chunks[0]]).any()
        if (known and len(array) != len(data)) or (
            not known and array.numblocks[0] != data.numblocks[0]
        ):
            raise InputError(
                f"The inputs and {name} must have the same rows, got chunks {data.chunks[0]} and "
                f"{array.chunks[0]}."
            )
        rows = {0: data.chunks[0]} if known else {}
        arrays.append(array.rechunk({**rows, **({1: -1} if array.ndim == 2 else {})}))
    blocks = [array.to_delayed().ravel() for array in arrays]
    return [dask.delayed(array_rows)(*parts) for parts in zip(*blocks, strict=True)]


def _table_chunks(data: Any, target: Any, inputs: Any, weights: Any) -> list[Any]:
    """Return the delayed rows of each chunk of an array that holds all columns."""
    width = data.shape[1]
    targets = [column % width for column in np.atleast_1d(target).tolist()]
    if weights is not None:
        weights = weights % width
    if inputs is None:
        inputs = [column for column in range(width) if column not in (*targets, weights)]
    check_dims(len(inputs))
    rows = dask.delayed(table_rows, traverse=False)
    blocks = data.rechunk({1: -1}).to_delayed().ravel()
    return [rows(block, list(inputs), targets, weights) for block in blocks]


def _frame_chunks(data: Any, target: Any, inputs: Any, weights: Any) -> list[Any]:
    """Return the delayed rows of each partition of a data frame."""
    targets = list(target) if isinstance(target, list | tuple) else [target]
    columns = list(data.columns)
    if inputs is None:
        inputs = [name for name in columns if name not in (*targets, weights)]
    inputs = list(inputs)
    check_dims(len(inputs))
    names = [*inputs, *targets, *([] if weights is None else [weights])]
    for name in names:
        if name not in columns:
            raise InputError(f"The frame has no column {name!r}, but {columns}.")
        if getattr(data.dtypes[name], "kind", "O") not in "biuf":
            raise InputError(
                f"Column {name!r} must hold numbers, got {data.dtypes[name]}: convert it first."
            )
    rows = dask.delayed(frame_rows, traverse=False)
    return [rows(part, inputs, targets, weights) for part in data[names].to_delayed()]


def _reduced(
    cluster: Cluster | None,
    function: Callable[[ChunkRows], Any],
    parts: list[Any],
    add: Callable[[Any, Any], Any],
) -> Any:
    """Return the sum of a function of delayed rows, where `None` counts for nothing."""
    work = dask.delayed(partial(weighed, function), traverse=False)
    fold = dask.delayed(partial(added, add), traverse=False)
    leaves = [work(part) for part in parts]
    level = leaves
    while True:
        level = [fold(*group) for group in groups(level)]
        if len(level) == 1:
            break
    # One graph: dask orders it so that sums are added as soon as they are there.
    graph = fused(
        convert_legacy_graph(dict(level[0].__dask_graph__())), [leaf.key for leaf in leaves]
    )
    root: Any = Delayed(level[0].key, graph)
    if cluster is None:
        return root.compute().value
    future: Any = cluster.client.compute(root)
    try:
        return future.result().value
    except BaseException:
        future.cancel()
        raise


# ---------------------------------------------------------------------- words


def _sent(dask_worker: Any) -> int:
    return dask_worker.transfer_outgoing_bytes_total


class _Ended:
    """Futures in the order in which they end."""

    def __init__(self, futures: list[Any]) -> None:
        self._indices = {future.key: index for index, future in enumerate(futures)}
        self._queue = as_completed(futures, loop=futures[0].client.loop)

    def watch(self, done: Callable[[int], object]) -> None:
        """Wait for all, and raise the error of the first that fails."""
        for future in self._queue:
            if future.status != "finished":
                future.result()
            done(self._indices[future.key])


def _version() -> str:
    return pkgutil.resolve_name(_VERSION)


@contextmanager
def _in_words(where: str) -> Iterator[None]:
    """Turn what can happen to a cluster into one sentence."""
    try:
        yield
    except KilledWorker as error:
        raise InputError(
            f"{error.allowed_failures + 1} workers of {where} died over the same rows: give them "
            "more memory, or sum fewer rows at once."
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"A worker of {where} has no {error.name}: install orthogp where it runs."
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise InputError(f"{where} was lost before the sums were complete.") from error
