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

from orthogp.errors import InputError

#: Arrays of JAX or of NumPy: kernels hold and take either.
AnyArray = jax.Array | np.ndarray

P = ParamSpec("P")
R = TypeVar("R")


def functions_for(array: AnyArray) -> Any:
    """Return the functions of arrays of this kind: those of NumPy, or JAX's."""
    return np if isinstance(array, np.ndarray) else jnp


def in_double(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` run with 64-bit JAX types, whatever the caller's setting."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


def keep_compiled(folder: str | Path | None = None) -> Path:
    """Keep compiled functions in a folder, take those that are there, and return the folder.

    A fit compiles a handful of small functions, for most of a second; with them at hand a new
    process begins with the work. To be called before the first fit. It sets JAX's own cache, for
    all that the process compiles. What lies in the folder is run: it should be nobody else's, and
    not shared by machines with different processors.

    Parameters
    ----------
    folder : path, optional
        "orthogp" in the user's folder for caches unless given.
    """
    import jax

    path = _user_caches() / "orthogp" if folder is None else Path(folder).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Compiled functions cannot be kept in {path}: {error.strerror or error}."
        ) from error
    path = path.absolute()
    jax.config.update("jax_compilation_cache_dir", str(path))
    # However little: JAX would keep only what takes a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _user_caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
