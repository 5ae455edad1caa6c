"""Double precision inside the library without touching JAX's global switch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

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
