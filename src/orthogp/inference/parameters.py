"""A kernel's learned parameters as one vector of logarithms."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.kernels import Kernel
from orthogp.precision import AnyArray


class Slot(NamedTuple):
    """One learned array: parameter `name` of the `primitive`-th primitive kernel."""

    primitive: int
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of entries."""
        return int(np.prod(self.shape, dtype=int))


def learned_slots(kernel: Kernel) -> tuple[Slot, ...]:
    """Return the parameters that are not fixed, in order."""
    return tuple(
        Slot(i, name, tuple(value.shape))
        for i, (primitive, _) in enumerate(kernel.primitives())
        for name, value in primitive.parameters().items()
        if name not in primitive.fixed
    )


def pack(kernel: Kernel, slots: tuple[Slot, ...]) -> NDArray[np.float64]:
    """Return the logarithms of the learned parameters, (p,)."""
    primitives = [primitive for primitive, _ in kernel.primitives()]
    values = [np.ravel(primitives[slot.primitive].parameters()[slot.name]) for slot in slots]
    return np.log(np.concatenate(values)) if values else np.empty(0)


def unpack(kernel: Kernel, slots: tuple[Slot, ...], vector: Float[AnyArray, " p"]) -> Kernel:
    """Return the kernel with its learned parameters set to exp(vector); the inverse of `pack`."""
    exp = np.exp if isinstance(vector, np.ndarray) else jnp.exp
    changes: dict[int, dict[str, Any]] = {}
    start = 0
    for slot in slots:
        values = exp(vector[start : start + slot.size]).reshape(slot.shape)
        changes.setdefault(slot.primitive, {})[slot.name] = values
        start += slot.size
    return kernel.with_primitives(
        primitive.with_parameters(**changes[i]) if i in changes else primitive
        for i, (primitive, _) in enumerate(kernel.primitives())
    )


def stretched(kernel: Kernel, factor: float) -> Kernel:
    """Return the kernel with every lengthscale multiplied by `factor`."""
    return kernel.with_primitives(
        primitive.with_parameters(lengthscale=primitive.parameters()["lengthscale"] * factor)
        if "lengthscale" in primitive.parameters()
        else primitive
        for primitive, _ in kernel.primitives()
    )


def with_lengthscale_per_column(kernel: Kernel, num_dims: int) -> Kernel:
    """Return the kernel with scalar lengthscales spread over its columns (ARD)."""

    def spread(primitive: Kernel, dims: tuple[int, ...] | None) -> Kernel:
        lengthscale = primitive.parameters().get("lengthscale")
        columns = num_dims if dims is None else len(dims)
        if lengthscale is None or lengthscale.ndim > 0 or columns == 1:
            return primitive
        return primitive.with_parameters(lengthscale=np.full(columns, float(lengthscale)))

    return kernel.with_primitives(spread(*item) for item in kernel.primitives())
