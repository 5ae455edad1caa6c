"""Sums on a cluster: the only file that imports dask.

Rows stay where they are. Each chunk of them becomes sums on one lattice, the sums are added in a
tree on the workers, and only the total comes back. The tree is the same whoever works, so that a
worker that is lost, or joins late, changes nothing.
"""

from __future__ import annotations

import operator
import pickle
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError, check_finite
from orthogp.rows import Domain
from orthogp.statistics.lattice import (
    MAX_DIMS,
    FrequencyLattice,
    default_extent,
    default_period,
)

try:
    import dask
    from distributed import CancelledError, Client, KilledWorker, as_completed
    from distributed.comm import CommClosedError
except ModuleNotFoundError as error:
    raise InputError(
        f'Work on a cluster needs {error.name}: install it with pip install "orthogp[cluster]".'
    ) from error

#: The seconds to wait for a scheduler, and for its first worker.
TIMEOUT = 15.0
#: The number of sums that are added at once.
FAN_IN = 8
_VERSION = "orthogp:__version__"


class Cluster(AbstractContextManager):
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
        #: The scheduler's address.
        self.address = str(self._client.scheduler.address)
        try:
            self._check(timeout)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
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
        """The number of tasks that run at once."""
        return max(1, sum(self._client.nthreads().values()))

    def moved(self) -> int:
        """Return the number of bytes that the present workers have sent to each other."""
        return sum(self._client.run(_sent).values())

    def map(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        done: Callable[[int], object] = int,
    ) -> list[Any]:
        """Return the results of a pure function for all tasks; the results are small, and travel.

        `done` is told the index of every task that has ended.
        """
        with _in_words(self.address):
            futures = self._client.map(function, tasks, pure=False)
            for index in _ended(futures):
                done(index)
            return self._client.gather(futures)

    def total(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        add: Callable[[Any, Any], Any],
        done: Callable[[int], object] = int,
    ) -> Any:
        """Return the sum of the results of a pure function, added on the workers.

        Both functions are of modules that the workers have; `done` is told the index of every task
        that has ended.
        """
        client = self._client
        with _in_words(self.address):
            leaves = client.map(partial(weighed, function), tasks, pure=False)

            def fold(height: int, *group: Any) -> Any:
                # Additions go first: what waits to be added takes memory.
                return client.submit(added, add, *group, pure=False, priority=height)

            root = _folded(fold, leaves)
            try:
                # Whoever holds a future holds its result on the workers: no list of them stays.
                ended = _ended(leaves)
                del leaves
                for index in ended:
                    done(index)
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
                f"The scheduler at {self.address} has no workers: start some with "
                f"`dask worker {self.address}`."
            ) from error
        # A function of the standard library: one of ours could not even be sent.
        found = self._client.run(pkgutil.resolve_name, _VERSION, on_error="return")
        found = {f"The worker at {worker}": version for worker, version in found.items()}
        try:
            there = self._client.run_on_scheduler(pkgutil.resolve_name, _VERSION)
        except ModuleNotFoundError as error:
            there = error
        for who, version in (*found.items(), (f"The scheduler at {self.address}", there)):
            if isinstance(version, ModuleNotFoundError):
                raise InputError(
                    f"{who} has no {version.name}: install orthogp {here} where it runs."
                ) from version
            if version != here:
                raise InputError(
                    f"{who} has orthogp {version}, here it is {here}: install the same everywhere."
                )


# ---------------------------------------------------------------------- a tree of sums


@dataclass(frozen=True)
class Weighed:
    """A value whose size a scheduler can ask for, to decide where it is best added."""

    value: Any
    num_bytes: int

    @classmethod
    def of(cls, value: Any) -> Weighed:
        """Return a value with its size."""
        buffers: list[pickle.PickleBuffer] = []
        header = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        return cls(value, len(header) + sum(buffer.raw().nbytes for buffer in buffers))

    def __sizeof__(self) -> int:
        return self.num_bytes


def weighed(function: Callable[..., Any], *arguments: Any) -> Weighed:
    """Return the result of a function with its size."""
    return Weighed.of(function(*arguments))


def added(add: Callable[[Any, Any], Any], *items: Weighed) -> Weighed:
    """Return the sum of the values that are not `None`, in their order."""
    total = None
    for item in items:
        if item.value is not None:
            total = item.value if total is None else add(total, item.value)
    return Weighed.of(total)


def _folded(fold: Callable[..., Any], leaves: Sequence[Any]) -> Any:
    """Return the root of the tree in which `fold` adds neighbours; it is told the height."""
    level, height = leaves, 0
    while len(level) > 1 or height == 0:
        height += 1
        level = [fold(height, *level[i : i + FAN_IN]) for i in range(0, len(level), FAN_IN)]
    return level[0]


# ---------------------------------------------------------------------- dask's collections

#: From a function of one chunk's X, y and weights to its delayed results for all chunks.
Chunks = Callable[[Callable[..., Any]], list[Any]]


def collection_chunks(data: Any, target: Any, inputs: Sequence[Any] | None, weights: Any) -> Chunks:
    """Return the chunks of a dask array or frame; see `FourierStatistics.from_dask`."""
    if not dask.is_dask_collection(data):
        raise InputError(
            f"Expected a dask array or data frame, got {type(data).__name__}: use from_data for "
            "rows in memory."
        )
    chunked = _frame_chunks if hasattr(data, "columns") else _array_chunks
    return chunked(data, target, inputs, weights)


def sum_chunks(
    chunks: Chunks,
    summed: Callable[..., Any],
    lattice: FrequencyLattice | None,
    scheduler: str | Client | None,
) -> Any:
    """Return the statistics of the rows of all chunks.

    `summed` takes a lattice, X, y and weights of one chunk, and returns statistics that can be
    added. Without a lattice, a first pass finds the extent of the data.
    """
    cluster = None if scheduler is None else Cluster(scheduler)
    try:
        with _in_words("dask's scheduler" if cluster is None else cluster.address):
            if lattice is None:
                lattice = default_lattice(_reduced(cluster, chunks(_chunk_extent), _united))
            return _reduced(cluster, chunks(partial(_chunk_sums, summed, lattice)), operator.add)
    finally:
        if cluster is not None:
            cluster.close()


def default_lattice(found: tuple[Domain, int]) -> FrequencyLattice:
    """Return the lattice that a model would choose for a number of rows in a box."""
    box, num_rows = found
    return FrequencyLattice.for_domain(
        *box,
        period=default_period(box.width),
        extent=default_extent(len(box.lower), num_rows),
    )


def _reduced(cluster: Cluster | None, leaves: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Return the sum of delayed results that are not `None`; raise `InputError` if all are."""
    fold = dask.delayed(partial(added, add), traverse=False)
    # One graph: dask orders it so that sums are added as soon as they are there.
    root = _folded(lambda _, *group: fold(*group), leaves)
    if cluster is None:
        found = root.compute().value
    else:
        future: Any = cluster.client.compute(root)
        try:
            found = future.result().value
        except BaseException:
            future.cancel()
            raise
    if found is None:
        raise InputError("The data are empty: at least one row is needed.")
    return found


def _array_chunks(data: Any, target: Any, inputs: Any, weights: Any) -> Chunks:
    """Return the chunks of an array of inputs with one of targets, or of one with all columns."""
    if data.ndim == 1:
        data = data[:, None]
    if not dask.is_dask_collection(target):
        width = data.shape[1]
        targets = [column % width for column in np.atleast_1d(target).tolist()]
        if weights is not None:
            weights = weights % width
        if inputs is None:
            inputs = [column for column in range(width) if column not in (*targets, weights)]
        _check_dims(len(inputs))
        table = data.rechunk({1: -1})
        columns = (list(inputs), targets, weights)
        return lambda function: _blockwise([table], partial(_of_table, *columns, function))
    if inputs is not None:
        data = data[:, list(inputs)]
    _check_dims(data.shape[1])
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
    return partial(_blockwise, arrays)


def _blockwise(arrays: list[Any], function: Callable[..., Any]) -> list[Any]:
    """Return the delayed results of a function of the blocks of arrays with the same rows."""
    import dask.array

    # The rows are the first axis of all; the others have one chunk each.
    axes = [(0, *(10 * i + d for d in range(1, array.ndim))) for i, array in enumerate(arrays, 1)]
    results = dask.array.blockwise(
        partial(weighed, function),
        (0,),
        *(item for pair in zip(arrays, axes) for item in pair),
        concatenate=True,
        align_arrays=False,
        adjust_chunks={0: 1},
        meta=np.empty(0, dtype=object),
    )
    return list(results.to_delayed())


def _frame_chunks(data: Any, target: Any, inputs: Any, weights: Any) -> Chunks:
    """Return the partitions of a data frame."""
    targets = list(target) if isinstance(target, list | tuple) else [target]
    columns = list(data.columns)
    if inputs is None:
        inputs = [name for name in columns if name not in (*targets, weights)]
    inputs = list(inputs)
    _check_dims(len(inputs))
    names = [*inputs, *targets, *([] if weights is None else [weights])]
    for name in names:
        if name not in columns:
            raise InputError(f"The frame has no column {name!r}, but {columns}.")
        if getattr(data.dtypes[name], "kind", "O") not in "biuf":
            raise InputError(
                f"Column {name!r} must hold numbers, got {data.dtypes[name]}: convert it first."
            )
    chosen = data[names]

    def chunks(function: Callable[..., Any]) -> list[Any]:
        of = partial(weighed, partial(_of_frame, inputs, targets, weights, function))
        results = chosen.map_partitions(of, meta=("sums", object), enforce_metadata=False)
        return list(results.to_delayed())

    return chunks


def _of_table(
    inputs: list[int],
    targets: list[int],
    weights: int | None,
    function: Callable[..., Any],
    table: NDArray,
) -> Any:
    w = None if weights is None else table[:, weights]
    return function(table[:, inputs], table[:, targets], w)


def _of_frame(
    inputs: list[Any], targets: list[Any], weights: Any, function: Callable[..., Any], part: Any
) -> Any:
    """Return a function of the columns of a data frame in memory; missing values become NaN."""
    X, y = (part[names].to_numpy(dtype=np.float64, na_value=np.nan) for names in (inputs, targets))
    w = None if weights is None else part[weights].to_numpy(dtype=np.float64, na_value=np.nan)
    return function(X, y, w)


def _chunk_extent(
    X: NDArray, y: NDArray, weights: NDArray | None = None
) -> tuple[Domain, int] | None:
    """Return the box around the rows that count, and their number."""
    X = X if weights is None else X[weights > 0]
    if len(X) == 0:
        return None
    check_finite(X, "X")
    return Domain.around(X), len(X)


def _united(first: tuple[Domain, int], second: tuple[Domain, int]) -> tuple[Domain, int]:
    return first[0].with_box(second[0]), first[1] + second[1]


def _chunk_sums(
    summed: Callable[..., Any],
    lattice: FrequencyLattice,
    X: NDArray,
    y: NDArray,
    weights: NDArray | None = None,
) -> Any:
    """Return the sums of the rows on a lattice, `None` of no rows."""
    return summed(lattice, X, y, weights) if len(X) else None


def _check_dims(num_columns: int) -> None:
    if not 1 <= num_columns <= MAX_DIMS:
        raise InputError(
            f"A lattice has 1 to {MAX_DIMS} dimensions, got {num_columns} input columns: name "
            "those to use in `inputs`."
        )


# ---------------------------------------------------------------------- words


def _sent(dask_worker: Any) -> int:
    return dask_worker.transfer_outgoing_bytes_total


def _ended(futures: list[Any]) -> Iterator[int]:
    """Return the indices of futures as they end; raise the error of the first that fails."""
    indices = {future.key: index for index, future in enumerate(futures)}
    queue = as_completed(futures, loop=futures[0].client.loop)

    def ended() -> Iterator[int]:
        for future in queue:
            if future.status != "finished":
                future.result()
            yield indices[future.key]

    return ended()


def _version() -> str:
    return pkgutil.resolve_name(_VERSION)


@contextmanager
def _in_words(where: str) -> Iterator[None]:
    """Turn the failures of a cluster into one sentence each."""
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
