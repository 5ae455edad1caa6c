"""Explicit thread counts, deterministic properties, and double precision on request."""

import os

# Before numpy and jax are imported: on shared cores idle BLAS threads slow each other down.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "2")

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
