"""How many threads dense linear algebra gets.

BLAS threads wait for each other by spinning. On two quiet cores two threads are 1.7 times as fast
as one; if another process has one of the cores (a shared machine, a container with a quota), they
are ten to fifty times slower (measured with OpenBLAS). So it is tried out rather than assumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

# Smaller matrices gain little from a second thread even on quiet cores.
_WORTH_THREADS = 1024

T = TypeVar("T")
R = TypeVar("R")


class BlasThreads:
    """Runs blocks of dense linear algebra on one or on all threads, whichever was faster so far."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._seconds: dict[int, float] = {}

    @contextmanager
    def limited(self, size: int, least: int = _WORTH_THREADS) -> Iterator[None]:
        """Run a block whose work is about that of factorising a matrix of this size.

        Below the size `least` it gets one thread. Where a few large blocks are to follow, several
        are tried out for less on smaller ones.
        """
        threads = self._choose(size, least)
        began = time.perf_counter()
        with _controller().limit(limits=threads, user_api="blas"):
            yield
        if size >= least:
            # Per unit of work, and the latest rather than the best: neighbours come and go.
            self._seconds[threads] = (time.perf_counter() - began) / size**3

    def _choose(self, size: int, least: int) -> int:
        if self.num_threads == 1 or size < least:
            return 1
        for threads in (1, self.num_threads):
            if threads not in self._seconds:
                return threads
        return min(self._seconds, key=self._seconds.__getitem__)


def one_thread() -> AbstractContextManager[None]:
    """Run a block of dense linear algebra on one thread."""
    return BlasThreads(1).limited(1)


def in_threads(function: Callable[[T], R], items: Sequence[T], num_threads: int) -> list[R]:
    """Return the function of each item, by so many threads that wait without spinning.

    For work that leaves Python alone, NumPy on large arrays with BLAS on one thread, and items that
    cost about the same: each thread has every `num_threads`-th.
    """
    if num_threads == 1 or len(items) < 2:
        return [function(item) for item in items]

    def share(first: int) -> list[R]:
        return [function(item) for item in items[first::num_threads]]

    shares = list(_pool(num_threads).map(share, range(num_threads)))
    return [shares[i % num_threads][i // num_threads] for i in range(len(items))]


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="orthogp")


if hasattr(os, "register_at_fork"):
    # A forked process has none of the threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


@cache
def _controller() -> ThreadpoolController:
    # Finding the loaded libraries takes milliseconds; it is done once.
    return ThreadpoolController()
