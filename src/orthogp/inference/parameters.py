"""A kernel's learned parameters as one vector of logarithms, and the masses' derivatives in it.

An angle is its own logarithm here: it has no scale, and goes round.

Bounds and priors are one term of what is learned from, the same for every engine, which maximises
the evidence as a function of a vector: the logarithms of the kernel's learned parameters first, of
the noise variance last, the features' own parameters in between, if any. What is known beforehand
adds the log density of these logarithms, and narrows the box that they move in:

    log p(y | θ) + Σ_i log p(log θ_i),      lower ≤ log θ ≤ upper
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError
from orthogp.features.base import prior_variance
from orthogp.features.series import omega_blocks
from orthogp.inference.separable import Likelihood
from orthogp.kernels import Kernel
from orthogp.kernels.base import AMPLITUDES, ANGLE, Noise, Prior
from orthogp.kernels.transformed import Sphere
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
    likelihood: Likelihood | None = None


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
    """Return the masses at `indices` and k(0), with their derivatives, in batches."""
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


# ---------------------------------------------------------------------- bounds and priors


Vector = NDArray[np.float64]
#: A parameter: the number of its primitive kernel, and its name.
Place = tuple[int, str]
# Nothing is known of the noise variance.
_UNKNOWN = Noise()


class LogPrior(NamedTuple):
    """The log density at a vector, its gradient (p,) and its second derivatives (p,)."""

    value: float
    gradient: Vector
    bend: Vector


@dataclass(frozen=True)
class Beliefs:
    """What is known of the parameters of a kernel and of the noise variance.

    Attributes
    ----------
    bounds, priors : dict
        Of the kernel's parameters, by primitive and name.
    noise : Noise
    """

    bounds: dict[Place, tuple[float, float]] = field(default_factory=dict)
    priors: dict[Place, Prior] = field(default_factory=dict)
    noise: Noise = _UNKNOWN

    @classmethod
    def of(cls, kernel: Kernel, noise: Noise, factor: float = 1.0) -> Beliefs:
        """Return what a kernel and a noise say, variances multiplied by a factor."""

        def scale(name: str) -> float:
            return factor if name in AMPLITUDES else 1.0

        primitives = [own for own, _ in kernel.primitives()]
        return cls(
            {
                (i, name): (low * scale(name), high * scale(name))
                for i, own in enumerate(primitives)
                for name, low, high in own.bounds
            },
            {
                (i, name): prior.scaled(scale(name))
                for i, own in enumerate(primitives)
                for name, prior in own.priors
            },
            noise.scaled(factor),
        )

    @property
    def about_scale(self) -> bool:
        """Whether anything is known of a variance, of the kernel or of the noise."""
        named = any(name in AMPLITUDES for _, name in (*self.bounds, *self.priors))
        noise = self.noise
        return named or noise.fixed or noise.bounds is not None or noise.belief is not None

    def log_prior(self, slots: tuple[Slot, ...], vector: Vector) -> LogPrior:
        """Return the log density of a vector; parameters without a prior have a flat one."""
        value, gradient, bend = 0.0, np.zeros(len(vector)), np.zeros(len(vector))
        told = [(self.noise.belief, slice(len(vector) - 1, len(vector)))]
        told += [(self.priors.get(place), entries) for place, entries in _entries(slots)]
        for prior, entries in told:
            if prior is not None:
                density = prior.log_density(vector[entries])
                value += float(density.value.sum())
                gradient[entries], bend[entries] = density.slope, density.bend
        return LogPrior(value, gradient, bend)

    def within(
        self, slots: tuple[Slot, ...], limits: tuple[Vector, Vector]
    ) -> tuple[Vector, Vector]:
        """Return an engine's limits narrowed to the bounds, which hold in any case.

        An engine's limits of lengthscales say what its lattice holds; of other parameters they only
        keep a search from going astray, and bounds take their place.
        """
        lower, upper = limits[0].copy(), limits[1].copy()
        for place, entries in _entries(slots):
            if place not in self.bounds:
                continue
            low, high = np.log(self.bounds[place])
            if place[1] == "lengthscale":
                lower[entries] = np.clip(lower[entries], low, high)
                upper[entries] = np.clip(upper[entries], low, high)
            else:
                lower[entries], upper[entries] = low, high
        if self.noise.fixed:
            assert self.noise.value is not None
            lower[-1] = upper[-1] = np.log(self.noise.value)
        elif self.noise.bounds is not None:
            # Below the floor double precision resolves nothing, but for a user who insists.
            low, high = np.log(self.noise.bounds)
            lower[-1], upper[-1] = np.clip(lower[-1], low, high), high
        return lower, upper


#: Nothing is known beforehand.
NO_BELIEFS = Beliefs()


def _entries(slots: tuple[Slot, ...]) -> Iterator[tuple[Place, slice]]:
    """Yield each learned parameter with its entries of the vector."""
    at = 0
    for slot in slots:
        yield (slot.primitive, slot.name), slice(at, at + slot.size)
        at += slot.size


def scale_entries(kernel: Kernel, slots: tuple[Slot, ...]) -> NDArray[np.int64] | None:
    """Return which log parameters scale with all variances; None if a variance is fixed."""
    vector, scaled = pack(kernel, slots), pack(kernel.scaled(np.e), slots)
    moved = prior_variance(unpack(kernel, slots, scaled))
    if not np.isclose(moved, np.e * prior_variance(kernel)):
        return None
    return np.flatnonzero(scaled != vector)
