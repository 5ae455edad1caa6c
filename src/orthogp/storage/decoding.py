"""What goes wrong while a file's content is made into objects becomes one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from orthogp.errors import FileError, OrthogpError


@contextmanager
def decoding(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn every error of the body into a `FileError` about the file.

    The records check types and shapes, the classes' own constructors the rest; values that pass
    both and still make no model must not end in a traceback.
    """
    try:
        # What overflows is found by the checks of finiteness.
        with np.errstate(all="ignore"):
            yield
    except FileError:
        raise
    except OrthogpError as error:
        raise FileError(f"{path} holds no valid model: {_one_line(error)}") from error
    except (MemoryError, RecursionError) as error:
        raise FileError(f"{path} holds a model that is too large for the memory.") from error
    except Exception as error:
        raise FileError(
            f"{path} holds no valid model ({type(error).__name__}: {_one_line(error)}): it is "
            "damaged or was not written by orthogp, so save it again."
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or "no details"
