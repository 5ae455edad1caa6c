"""Explicit thread counts, deterministic properties, and double precision on request."""

import os
from pathlib import Path

# Before numpy and jax are imported: on shared cores idle BLAS threads slow each other down, the
# more so if every core runs its own share of the tests.
worker = os.environ.get("PYTEST_XDIST_WORKER")
blas_threads = "2" if worker is None else "1"
if worker is not None and hasattr(os, "sched_setaffinity"):
    # One core for each process: no contention, and sums that do not depend on the scheduling.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
os.environ.setdefault("OMP_NUM_THREADS", "2")
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, blas_threads)
# Most of the time goes into compiling the same small functions: what one process has compiled, the
# others (and the next run) read from disk.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(".pytest_cache", "jax").absolute()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Derandomised: the same examples on every machine, so that a red run is a change of the code.
settings.register_profile("orthogp", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("orthogp")


@pytest.fixture
def double() -> Iterator[None]:
    """64-bit JAX types, to evaluate kernels directly; the library itself must not need this."""
    with jax.enable_x64(True):
        yield
