"""A kernel's learned parameters as one vector of logarithms, and the masses' derivatives in it.

An angle is its own logarithm here: it has no scale, and goes round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError
from orthogp.features.series import omega_blocks
from orthogp.inference.separable import Separable
from orthogp.kernels import Kernel
from orthogp.kernels.base import ANGLE
from orthogp.kernels.sphere import Sphere
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

JACOBIAN_BLOCK = 256


@dataclass(frozen=True)
class Start:
    """Hyperparameters to start from.

    Starts of the same `shape` differ in variances only, so that the same features suit them.
    `rows` counts those that a start was learned from, if it was; `likelihood` has the dispersion
    that was learned with it, where noise is not Gaussian.
    """

    kernel: Kernel
    noise_variance: float
    shape: int = 0
    from_user: bool = False
    rows: float = 0.0
    likelihood: Separable | None = None


class Slot(NamedTuple):
    """One learned array: parameter `name` of the `primitive`-th primitive kernel."""

    primitive: int
    name: str
    shape: tuple[int, ...]

    @property
    def is_angle(self) -> bool:
        """Whether the vector holds the parameter itself."""
        return self.name == ANGLE

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
    """Return the logarithms of the learned parameters (angles as they are), (p,)."""
    primitives = [primitive for primitive, _ in kernel.primitives()]
    values = [np.ravel(primitives[slot.primitive].parameters()[slot.name]) for slot in slots]
    logs = [own if slot.is_angle else np.log(own) for slot, own in zip(slots, values, strict=True)]
    return np.concatenate([np.empty(0), *logs])


def unpack(kernel: Kernel, slots: tuple[Slot, ...], vector: Float[AnyArray, " p"]) -> Kernel:
    """Return the kernel with its learned parameters set to exp(vector); the inverse of `pack`."""
    exp = np.exp if isinstance(vector, np.ndarray) else jnp.exp
    changes: dict[int, dict[str, Any]] = {}
    start = 0
    for slot in slots:
        logs = vector[start : start + slot.size]
        values = (logs if slot.is_angle else exp(logs)).reshape(slot.shape)
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
        shared = isinstance(primitive, Sphere)
        if lengthscale is None or lengthscale.ndim > 0 or columns == 1 or shared:
            return primitive
        return primitive.with_parameters(lengthscale=np.full(columns, float(lengthscale)))

    return kernel.with_primitives(spread(*item) for item in kernel.primitives())


class PriorJacobian(NamedTuple):
    """Masses (s,) and k(0), each followed by its derivatives in the log parameters."""

    masses: NDArray[np.float64]
    jacobian: NDArray[np.float64]
    variance: float
    variance_jacobian: NDArray[np.float64]


def overflows(kernel: Kernel) -> KernelError:
    """Return the error of a kernel that is not finite, or whose derivatives are not."""
    return KernelError(
        f"The values of {type(kernel).__name__} or their derivatives with respect to its "
        "parameters are not finite at all lags and frequencies: write it so that nothing "
        "overflows, such as 2 exp(-x)/(1 + exp(-2x)) in place of 1/cosh(x)."
    )


def masses_and_jacobian(
    log_parameters: NDArray[np.float64],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    lattice: FrequencyLattice,
    indices: NDArray[np.int64],
    block: int = JACOBIAN_BLOCK,
) -> PriorJacobian:
    """Return the masses at `indices` and k(0), with their derivatives, so many at a time."""
    blocks = [
        _masses_and_jacobian(log_parameters, kernel, slots, omegas, lattice.spacing)
        for omegas in omega_blocks(lattice, indices, block)
    ]
    masses = np.concatenate([np.asarray(values[0]) for values, _ in blocks])
    jacobian = np.concatenate([np.asarray(jacobians[0]) for _, jacobians in blocks])
    (_, variance), (_, variance_jacobian) = blocks[0]
    if np.isfinite(masses).all() and not np.isfinite(jacobian).all():
        raise overflows(kernel)
    size = len(indices)
    return PriorJacobian(
        masses[:size], jacobian[:size], float(variance), np.asarray(variance_jacobian)
    )


@in_double
@eqx.filter_jit
def _masses_and_jacobian(
    log_parameters: Float[AnyArray, " p"],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    omegas: Float[AnyArray, "s d"],
    spacing: Float[AnyArray, " d"],
):
    def prior(vector):
        candidate = unpack(kernel, slots, vector)
        masses = jax.vmap(lambda omega: candidate.mass(omega, jnp.asarray(spacing)))(omegas)
        return masses, candidate.prior_variance()

    omegas = jnp.asarray(omegas)
    return value_and_derivatives(prior, jnp.asarray(log_parameters), axis=-1)


def value_and_derivatives(function: Callable, vector: Float[AnyArray, " p"], axis: int):
    """Return f(x) and, along an axis of its own, ∂f/∂x_i.

    In one sweep forwards: f is traced and compiled once, not twice as beside `jax.jacfwd`.
    """

    def along(direction: Float[AnyArray, " p"]):
        return jax.jvp(function, (vector,), (direction,))

    return jax.vmap(along, out_axes=(None, axis))(jnp.eye(len(vector)))
