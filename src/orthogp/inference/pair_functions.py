"""Kernels as compiled functions of a few numbers for each pair of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError
from orthogp.inference.parameters import Slot, unpack
from orthogp.kernels import Cyclic, Kernel
from orthogp.kernels.stationary import Radial
from orthogp.precision import AnyArray

# Up to so many derivatives are taken forwards, which keeps nothing of kernels that are sums over
# many nodes; backwards scales better.
_FEW_DERIVATIVES = 3


class Given(Kernel):
    """Stands for a primitive whose value is one of the numbers."""

    value: Float[AnyArray, ""] = eqx.field(default_factory=lambda: np.ones(()))

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the number."""
        return self.value  # pyright: ignore[reportReturnType]

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Raise `KernelError`: there is none."""
        raise KernelError("A number has no spectral density.")

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Raise `KernelError`: there is none."""
        raise KernelError("A number has no prior variance.")


class Form(NamedTuple):
    """A kernel without its arrays, which can be hashed: what a compilation is for."""

    structure: Any
    others: tuple


def split(kernel: Kernel) -> tuple[list[Any], Form]:
    """Return a kernel's arrays, and its form."""
    leaves, structure = jax.tree.flatten(kernel)
    held = [isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves]
    arrays = [leaf for leaf, own in zip(leaves, held, strict=True) if own]
    others = [None if own else leaf for leaf, own in zip(leaves, held, strict=True)]
    return arrays, Form(structure, tuple(others))


def _joined(form: Form, arrays: list[Any]) -> Kernel:
    own = iter(arrays)
    leaves = [next(own) if other is None else other for other in form.others]
    return jax.tree.unflatten(form.structure, leaves)


def _covariance(form: Form, slots: tuple[Slot, ...], arrays: list[Any]) -> Callable:
    """Return k as a function of log parameters (q,), numbers (m,) and a lag (d,)."""
    kernel = _joined(form, arrays)

    def covariance(
        parameters: Float[AnyArray, " q"],
        own: Float[AnyArray, " m"],
        lag: Float[AnyArray, " d"],
    ) -> Float[AnyArray, ""]:
        whole, j = unpack(kernel, slots, parameters), 0
        primitives: list[Kernel] = []
        for primitive, _ in whole.primitives():
            if isinstance(primitive, Radial | Cyclic):
                primitive, j = Given(primitive.at_square(own[j])), j + 1
            elif isinstance(primitive, Given):
                primitive, j = Given(own[j]), j + 1
            primitives.append(primitive)
        return whole.with_primitives(iter(primitives)).k(lag)

    return covariance


def evaluate(
    form: Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    parameters: NDArray[np.float64],
    numbers: NDArray[np.float64],
    lags: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return k at n pairs, its derivatives in parameters (q, n), and in the numbers (m, n).

    Parameters
    ----------
    form, arrays
        The kernel. Its primitives that are given take their values from the numbers, those that are
        functions of a square take that; all others take the lags.
    slots, parameters : (q,)
        Parameters, and their logarithms.
    numbers : (m, n)
        In the order of the primitives.
    lags : (d, n), or (d,) if no primitive needs them
    """
    with jax.enable_x64(True):
        found = _evaluate(form, slots, arrays, parameters, numbers, lags)
    return np.asarray(found[0]), np.asarray(found[1]), np.asarray(found[2])


def evaluate_values(
    form: Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    parameters: NDArray[np.float64],
    numbers: NDArray[np.float64],
    lags: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return k at n pairs; see `evaluate`."""
    with jax.enable_x64(True):
        return np.asarray(_evaluate_values(form, slots, arrays, parameters, numbers, lags))


@partial(jax.jit, static_argnums=(0, 1))
def _evaluate_values(
    form: Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    parameters: Float[AnyArray, " q"],
    numbers: Float[AnyArray, "m n"],
    lags: Float[AnyArray, "d *n"],
) -> Float[AnyArray, " n"]:
    in_axes = (None, 1, 1 if lags.ndim == 2 else None)
    return jax.vmap(_covariance(form, slots, arrays), in_axes=in_axes)(parameters, numbers, lags)


# Not `eqx.filter_jit`, whose calls take longer than a block of pairs.
@partial(jax.jit, static_argnums=(0, 1))
def _evaluate(
    form: Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    parameters: Float[AnyArray, " q"],
    numbers: Float[AnyArray, "m n"],
    lags: Float[AnyArray, "d *n"],
) -> tuple[Float[AnyArray, " n"], Float[AnyArray, "q n"], Float[AnyArray, "m n"]]:
    covariance = _covariance(form, slots, arrays)
    q, m = len(parameters), len(numbers)
    in_axes = (None, 1, 1 if lags.ndim == 2 else None)
    if not 0 < q + m <= _FEW_DERIVATIVES:
        value_and_grad = jax.value_and_grad(covariance, argnums=(0, 1))
        values, (by_parameter, by_number) = jax.vmap(
            value_and_grad, in_axes=in_axes, out_axes=(0, (1, 1))
        )(parameters, numbers, lags)
        return values, by_parameter, by_number
    along = jax.vmap(covariance, in_axes=in_axes)

    def derivative(step: Float[AnyArray, " q"], stretch: Float[AnyArray, " m"]):
        moves = (step, jnp.broadcast_to(stretch[:, None], numbers.shape))
        return jax.jvp(lambda p, n: along(p, n, lags), (parameters, numbers), moves)

    steps = jnp.eye(q + m)
    values, found = jax.vmap(derivative, out_axes=(None, 0))(steps[:, :q], steps[:, q:])
    return values, found[:q], found[q:]


def second_derivatives(
    form: Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    parameters: NDArray[np.float64],
    numbers: NDArray[np.float64],
    width: int,
) -> NDArray[np.float64]:
    """Return the second derivatives of k in parameters and numbers, (q + m, q + m, n).

    For kernels that no primitive of needs lags; see `evaluate`.
    """
    with jax.enable_x64(True):
        return np.asarray(_second_derivatives(form, slots, arrays, parameters, numbers, width))


@partial(jax.jit, static_argnums=(0, 1, 5))
def _second_derivatives(
    form: Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    parameters: Float[AnyArray, " q"],
    numbers: Float[AnyArray, "m n"],
    width: int,
) -> Float[AnyArray, "r r n"]:
    covariance, q = _covariance(form, slots, arrays), len(parameters)

    def at(both: Float[AnyArray, " r"]) -> Float[AnyArray, ""]:
        return covariance(both[:q], both[q:], jnp.zeros(width))

    def at_pair(own: Float[AnyArray, " m"]) -> Float[AnyArray, "r r"]:
        return jax.hessian(at)(jnp.concatenate([parameters, own]))

    return jax.vmap(at_pair, in_axes=1, out_axes=2)(numbers)
