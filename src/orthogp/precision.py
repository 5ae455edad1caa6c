"""How numbers are computed: in double precision, on how many threads, and where rounding ends it.

Double precision inside the library leaves JAX's global switch untouched. `keep_compiled` keeps
compiled functions on disk from one process to the next.

BLAS threads wait for each other by spinning. On two quiet cores two threads are 1.7 times as fast
as one; if another process has one of the cores (a shared machine, a container with a quota), they
are ten to fifty times slower (measured with OpenBLAS). So it is tried out rather than assumed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from orthogp.errors import InputError, OrthogpError, PrecisionError

#: Arrays of JAX or of NumPy: kernels hold and take either.
AnyArray = jax.Array | np.ndarray

P = ParamSpec("P")
R = TypeVar("R")


def functions_for(array: AnyArray) -> Any:
    """Return the module whose functions suit an array: NumPy, or `jax.numpy`."""
    return np if isinstance(array, np.ndarray) else jnp


class _Jax:
    """Whether JAX has computed something, and whether its threads stayed behind at a fork."""

    used = False
    lost = False

    @classmethod
    def note_fork(cls) -> None:
        """Note that a child has none of its parent's threads, for which JAX would wait for ever."""
        cls.lost = cls.used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Jax.note_fork)


def in_double(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` run with 64-bit JAX types, whatever the caller's setting.

    In a process that was forked after JAX had been at work, it raises `OrthogpError`.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if _Jax.lost:
            raise OrthogpError(
                "JAX cannot work in a process that was forked after a fit, because its threads "
                "stayed behind in the parent: start processes by spawn instead, or by joblib's "
                'backend "loky".'
            )
        with jax.enable_x64(True):
            result = function(*args, **kwargs)
        if not _Jax.used:
            _Jax.used = any(isinstance(part, jax.Array) for part in jax.tree.leaves(result))
        return result

    return wrapped


def keep_compiled(folder: str | Path | None = None) -> Path:
    """Keep compiled functions in a folder, take those that are there, and return the folder.

    A fit compiles a handful of small functions, which takes most of a second; a process that finds
    them compiled starts to work at once. Call `keep_compiled` before the first fit. It sets JAX's
    cache, for everything that the process compiles. Files in the folder are run: nobody else should
    be able to write there, nor should machines with different processors share it.

    Parameters
    ----------
    folder : path, optional
        "orthogp" in the user's folder for caches unless given.
    """
    path = _user_caches() / "orthogp" if folder is None else Path(folder).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Compiled functions cannot be kept in {path}: {error.strerror or error}."
        ) from error
    path = path.absolute()
    jax.config.update("jax_compilation_cache_dir", str(path))
    # By default JAX keeps only functions that take a second to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _user_caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


# Smaller matrices gain little from a second thread even on quiet cores.
_WORTH_THREADS = 1024

T = TypeVar("T")


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
    """Return the function of each item, by threads that wait without spinning.

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


# The smallest eigenvalue that a matrix of unit diagonal is left with, relative to the largest.
_LEAST = 1e-8
# Entries of the diagonal are not taken for smaller, relative to the largest.
_SMALLEST = 1e-30


def lower_factor(matrix: NDArray[np.float64], least: float = _LEAST) -> NDArray[np.float64]:
    """Return L with LLᵀ the symmetric matrix, or one close to it that is positive definite.

    Where rounding, or solutions by iterations, leave eigenvalues λ ≤ 0, |λ| takes their place, in
    units where the diagonal is ±1, and at least `least` of the largest.
    """
    try:
        factor = np.linalg.cholesky((matrix + matrix.T) / 2)
    except np.linalg.LinAlgError:
        factor = None
    if factor is None or not np.isfinite(factor).all():
        # RᵀR by QR, which does not fail where the smallest eigenvalues are close to rounding.
        upper = np.linalg.qr(_root(matrix, least)).R
        factor = (upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]).T
    return np.asarray(factor, dtype=np.float64)


def made_definite(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric matrix that `lower_factor` falls back on."""
    root = _root(matrix, _LEAST)
    return root.T @ root


def _root(matrix: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """Return √|Λ| VᵀD of the matrix D V Λ VᵀD."""
    symmetric = (matrix + matrix.T) / 2
    diagonal = np.abs(np.diag(symmetric))
    if not np.isfinite(symmetric).all() or not diagonal.any():
        raise PrecisionError(
            "Double precision does not resolve these data with so little noise: use a larger "
            "noise_variance, or fewer features."
        )
    scale = np.sqrt(np.maximum(diagonal, _SMALLEST * diagonal.max()))
    values, vectors = np.linalg.eigh(symmetric / np.outer(scale, scale))
    values = np.maximum(np.abs(values), least * np.abs(values).max())
    return np.sqrt(values)[:, None] * vectors.T * scale


@contextmanager
def within_precision() -> Iterator[None]:
    """Turn what linear algebra says where precision ends into an error of ours."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise PrecisionError(
            f"Double precision does not resolve these data ({error}): use a larger noise_variance, "
            "or fewer features."
        ) from error
