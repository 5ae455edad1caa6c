r"""Covariances within many small sets of rows at once, and how they move with the hyperparameters.

Most kernels are functions of s = Σ_d (τ_d/ℓ_d)², or sums of such functions. With z = x/ℓ,
W = G∘k'(s) and G any symmetric weights,

    s_ij = |z_i|² + |z_j|² − 2 z_iᵀz_j
    Σ_ij G_ij ∂k(s_ij)/∂log ℓ_d = −4 Σ_i (z_id² Σ_j W_ij − z_id (Wz)_id)

so that distances and gradients are products of matrices, and each entry costs one exponential. The
sets are centred on one of their rows: what cancels in s is then as small as the set. Any other
kernel takes the slower way of its covariance k(τ), lag by lag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.inference.parameters import Slot, learned_slots, overflows, pack, unpack
from orthogp.kernels import Kernel, On, Sum
from orthogp.kernels.stationary import Radial
from orthogp.precision import AnyArray, in_double

#: Entries of covariance matrices per compiled call: one shape for all sizes of sets, and arrays
#: that stay in a core's cache.
ENTRIES = 2**16
_FEWEST_ENTRIES = 2**12

Array = NDArray[np.float64]


class Covariances(NamedTuple):
    """Covariance matrices (c, m, m) of c sets of m rows.

    `pull(G)` gives Σ_ij G_ij ∂K_ij/∂log θ for each set, (c, p), G being symmetric.
    """

    values: Array
    pull: Callable[[Array], Array]


def sets_per_call(size: int) -> int:
    """Return how many sets of `size` rows one call should have."""
    return max(1, ENTRIES // size**2)


def covariances(kernel: Kernel, X: Array) -> Array:
    """Return the covariance matrices of sets of rows X (c, m, d), (c, m, m)."""
    terms = _radial_terms(kernel, tuple(range(X.shape[2])))
    if terms is None:
        return _values_by_lag(kernel, X)
    total = np.zeros((*X.shape[:2], X.shape[1]))
    for primitive, dims in terms:
        square = _squares(X, primitive, dims)[0]
        total += _by_entries(_radial, primitive, square)
    return total


def cross_covariances(kernel: Kernel, A: Array, B: Array) -> Array:
    """Return the covariances between the rows of A (c, g, d) and of B (c, m, d), (c, g, m)."""
    terms = _radial_terms(kernel, tuple(range(A.shape[2])))
    if terms is None:
        lags = A[:, :, None, :] - B[:, None, :, :]
        flat = _by_entries(_by_lag, kernel, lags.reshape(-1, A.shape[2]))
        return flat.reshape(lags.shape[:3])
    total = np.zeros((len(A), A.shape[1], B.shape[1]))
    for primitive, dims in terms:
        a, b = (_scaled(rows, primitive, dims) for rows in (A, B))
        square = -2 * (a @ b.transpose(0, 2, 1))
        square += np.einsum("cgd,cgd->cg", a, a)[:, :, None]
        square += np.einsum("cmd,cmd->cm", b, b)[:, None, :]
        total += _by_entries(_radial, primitive, np.maximum(square, 0.0))
    return total


def covariances_and_pull(kernel: Kernel, X: Array) -> Covariances:
    """Return the covariance matrices of sets of rows X (c, m, d), with their derivatives.

    A kernel that overflows is a `KernelError`.
    """
    found = _covariances_and_pull(kernel, X)
    if not np.isfinite(found.values).all():
        raise overflows(kernel)

    def pull(G: Array) -> Array:
        pulled = found.pull(G)
        if not np.isfinite(pulled).all() and np.isfinite(G).all():
            raise overflows(kernel)
        return pulled

    return Covariances(found.values, pull)


def _covariances_and_pull(kernel: Kernel, X: Array) -> Covariances:
    slots = learned_slots(kernel)
    terms = _radial_terms(kernel, tuple(range(X.shape[2])))
    if terms is None:
        return _by_lags(kernel, slots, X)
    total = np.zeros((*X.shape[:2], X.shape[1]))
    parts = []
    for index, (primitive, dims) in enumerate(terms):
        square, z = _squares(X, primitive, dims)
        own = tuple(slot for slot in slots if slot.primitive == index)
        shape_names = tuple(
            slot.name for slot in own if slot.name not in ("variance", "lengthscale")
        )
        values, slopes, shapes = _by_entries(_radial_and_slopes, primitive, square, shape_names)
        total += values
        places = primitive.lengthscale_places(len(dims))
        parts.append((own, z, values, slopes, shapes, places))

    def pull(G: Array) -> Array:
        columns = []
        for own, z, values, slopes, shapes, places in parts:
            shape_index = 0
            for slot in own:
                if slot.name == "lengthscale":
                    W = G * slopes
                    along = z * (z * W.sum(axis=2)[:, :, None] - W @ z)
                    per_column = -4 * along.sum(axis=1)
                    columns.append(per_column @ np.eye(slot.size)[places])
                elif slot.name == "variance":
                    columns.append(np.einsum("cij,cij->c", G, values)[:, None])
                else:
                    columns.append(np.einsum("cij,cij->c", G, shapes[shape_index])[:, None])
                    shape_index += 1
        return np.concatenate([np.empty((len(X), 0)), *columns], axis=1)

    return Covariances(total, pull)


# ---------------------------------------------------------------------- functions of s


def _radial_terms(
    kernel: Kernel, dims: tuple[int, ...]
) -> list[tuple[Radial, tuple[int, ...]]] | None:
    """Return the functions of s that a kernel adds up, with their columns, or `None`.

    In the order of its primitives.
    """
    if isinstance(kernel, Sum):
        found = [_radial_terms(term, dims) for term in kernel.terms]
        if any(part is None for part in found):
            return None
        return [item for part in found if part is not None for item in part]
    if isinstance(kernel, On):
        return _radial_terms(kernel.kernel, tuple(dims[d] for d in kernel.dims))
    return [(kernel, dims)] if isinstance(kernel, Radial) else None


def _scaled(X: Array, primitive: Radial, dims: tuple[int, ...]) -> Array:
    chosen = X if len(dims) == X.shape[2] else X[:, :, list(dims)]
    lengths = np.ravel(primitive.parameters()["lengthscale"])
    return chosen / lengths[primitive.lengthscale_places(len(dims))]


def _squares(X: Array, primitive: Radial, dims: tuple[int, ...]) -> tuple[Array, Array]:
    """Return s between all rows of each set, (c, m, m), and z, (c, m, d)."""
    z = _scaled(X, primitive, dims)
    norms = np.einsum("cmd,cmd->cm", z, z)
    square = z @ z.transpose(0, 2, 1)
    square *= -2
    square += norms[:, :, None]
    square += norms[:, None, :]
    np.maximum(square, 0.0, out=square)
    np.einsum("cii->ci", square)[:] = 0.0
    return square, z


def _by_entries(function: Callable, kernel: Kernel, entries: Array, *static: object):
    """Return a function of all entries, computed so many at a time in arrays of one shape.

    `entries` is an array of any shape, or of lags (n, d) for functions of those.
    """
    lags = function in (_by_lag,)
    flat = entries if lags else entries.reshape(-1)
    size = len(flat)
    pieces = []
    for start in range(0, size, ENTRIES):
        piece = flat[start : start + ENTRIES]
        if len(piece) < ENTRIES:
            # Up to powers of two: few shapes to compile.
            length = max(_FEWEST_ENTRIES, 1 << (len(piece) - 1).bit_length())
            padded = np.zeros((length, *flat.shape[1:]))
            padded[: len(piece)] = piece
            piece = padded
        pieces.append(jax.tree.map(np.asarray, function(kernel, piece, *static)))
    shape = (size,) if lags else entries.shape

    def join(*parts: Array) -> Array:
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole[:size].reshape(shape)

    return jax.tree.map(join, *pieces)


@in_double
@jax.jit
def _radial(primitive: Radial, square: Float[AnyArray, " n"]) -> Float[AnyArray, " n"]:
    return jax.vmap(primitive.at_square)(square)


@in_double
@eqx.filter_jit
def _radial_and_slopes(
    primitive: Radial, square: Float[AnyArray, " n"], shape_names: tuple[str, ...]
) -> tuple:
    """Return k(s), k'(s) and ∂k/∂log θ for the parameters of the shape."""
    square = jnp.asarray(square)
    covariance = jax.vmap(primitive.at_square)
    values, slopes = jax.jvp(covariance, (square,), (jnp.ones_like(square),))
    shapes = []
    for name in shape_names:
        value = jnp.asarray(primitive.parameters()[name])

        def along(log_value: Float[AnyArray, ""], name: str = name):
            changed = primitive.with_parameters(**{name: jnp.exp(log_value)})
            return jax.vmap(changed.at_square)(square)

        shapes.append(jax.jvp(along, (jnp.log(value),), (jnp.ones_like(value),))[1])
    return values, slopes, tuple(shapes)


# ---------------------------------------------------------------------- any kernel, lag by lag


def _values_by_lag(kernel: Kernel, X: Array) -> Array:
    i, j = np.tril_indices(X.shape[1])
    lags = X[:, i] - X[:, j]
    flat = _by_entries(_by_lag, kernel, lags.reshape(-1, X.shape[2]))
    return _symmetric(flat.reshape(len(X), -1), X.shape[1])


def _by_lags(kernel: Kernel, slots: tuple[Slot, ...], X: Array) -> Covariances:
    i, j = np.tril_indices(X.shape[1])
    values = _values_by_lag(kernel, X)

    def pull(G: Array) -> Array:
        counts = np.where(i == j, 1.0, 2.0)
        lags = np.moveaxis(X[:, i] - X[:, j], 2, 1)
        vector = pack(kernel, slots)
        return np.asarray(_pulled(vector, kernel, slots, lags, counts * G[:, i, j]))

    return Covariances(values, pull)


def _symmetric(lower: Array, size: int) -> Array:
    i, j = np.tril_indices(size)
    full = np.empty((len(lower), size, size))
    full[:, i, j] = lower
    full[:, j, i] = lower
    return full


@in_double
@eqx.filter_jit
def _by_lag(kernel: Kernel, lags: Float[AnyArray, "n d"]) -> Float[AnyArray, " n"]:
    return jax.vmap(kernel.k, in_axes=1)(jnp.asarray(lags).T)


@in_double
@eqx.filter_jit
def _pulled(
    vector: Array,
    kernel: Kernel,
    slots: tuple[Slot, ...],
    lags: Float[AnyArray, "c d n"],
    bar: Float[AnyArray, "c n"],
) -> Float[AnyArray, "c p"]:
    def one(own_lags: Float[AnyArray, "d n"], own_bar: Float[AnyArray, " n"]):
        def weighted(log_parameters: Float[AnyArray, " p"]):
            changed = unpack(kernel, slots, log_parameters)
            return own_bar @ jax.vmap(changed.k, in_axes=1)(own_lags)

        return jax.grad(weighted)(jnp.asarray(vector))

    return jax.vmap(one)(jnp.asarray(lags), jnp.asarray(bar))
