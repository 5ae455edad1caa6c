"""How many threads dense linear algebra gets.

BLAS threads wait for each other by spinning. On two quiet cores two threads are 1.7 times as fast
as one; if another process has one of the cores (a shared machine, a container with a quota), they
are ten to fifty times slower (measured with OpenBLAS). So it is tried out rather than assumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

# Smaller matrices gain little from a second thread even on quiet cores.
_WORTH_THREADS = 1024


class BlasThreads:
    """Runs blocks of dense linear algebra on one or on all threads, whichever was faster so far."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._seconds: dict[int, float] = {}

    @contextmanager
    def limited(self, size: int) -> Iterator[None]:
        """Run a block whose work is about that of factorising a matrix of this size."""
        threads = self._choose(size)
        began = time.perf_counter()
        with _controller().limit(limits=threads, user_api="blas"):
            yield
        if size >= _WORTH_THREADS:
            # Per unit of work, and the latest rather than the best: neighbours come and go.
            self._seconds[threads] = (time.perf_counter() - began) / size**3

    def _choose(self, size: int) -> int:
        if self._num_threads == 1 or size < _WORTH_THREADS:
            return 1
        for threads in (1, self._num_threads):
            if threads not in self._seconds:
                return threads
        return min(self._seconds, key=self._seconds.__getitem__)


def one_thread() -> AbstractContextManager[None]:
    """Run a block of dense linear algebra on one thread."""
    return BlasThreads(1).limited(1)


@cache
def _controller() -> ThreadpoolController:
    # Finding the loaded libraries takes milliseconds; it is done once.
    return ThreadpoolController()
