"""Double precision inside the library without touching JAX's global switch.

`keep_compiled` keeps compiled functions on disk from one process to the next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from orthogp.errors import InputError, OrthogpError

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
