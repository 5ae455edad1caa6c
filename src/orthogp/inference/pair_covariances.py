r"""A kernel at the lags of many pairs of rows, with its derivatives.

Most kernels see a lag by r² = Σ_d τ_d²/ℓ_d² alone (`Radial`), as do sums and products of such. The
squares of all pairs are then one product of matrices, with W_jd = 1/ℓ_jd² for the j-th primitive,

    S = W T,      T_dp = τ_pd²,      ∂k_p/∂log ℓ_jd = −2 W_jd T_dp ∂k_p/∂s_j

and what is compiled is a function of a few numbers s_j, whatever the number of columns. Primitives
of other kinds take the lags themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.inference.parameters import Slot, learned_slots, unpack
from orthogp.inference.threads import in_threads
from orthogp.kernels import Kernel
from orthogp.kernels.stationary import Radial
from orthogp.precision import AnyArray
from orthogp.statistics.nufft import chunks

# Pairs per compiled call: two shapes, so that few rows cost little and little is compiled.
_FEW_PAIRS, _BLOCK = 2**12, 2**14
# Up to so many derivatives are taken forwards, which keeps nothing of kernels that are sums over
# many nodes; backwards scales better.
_FEW_DERIVATIVES = 3


class Covariances(NamedTuple):
    """k at pairs, (p,), and its derivatives in what is not a lengthscale of a radial primitive."""

    values: NDArray[np.float64]
    #: In the parameters' logarithms, (q, p).
    by_parameter: NDArray[np.float64]
    #: In the squares, (m, p).
    by_square: NDArray[np.float64]


class PairKernel:
    """The covariances of a kernel at pairs of rows of d columns; see the module's docstring.

    Parameters
    ----------
    kernel : Kernel
        Gives the form, and the values of what is fixed.
    num_dims : int
    """

    def __init__(self, kernel: Kernel, num_dims: int) -> None:
        self.kernel = kernel
        self.num_dims = num_dims
        self.slots = learned_slots(kernel)
        places, radial = [], []
        for i, (primitive, dims) in enumerate(kernel.primitives()):
            if isinstance(primitive, Radial):
                places.append(i)
                columns = np.arange(num_dims) if dims is None else np.array(dims)
                radial.append((primitive, columns))
        # 1/ℓ², where lengthscales are fixed to be used as they are.
        self._given = np.zeros((len(radial), num_dims))
        for j, (primitive, columns) in enumerate(radial):
            self._given[j, columns] = primitive.parameters()["lengthscale"] ** -2.0
        edges = np.cumsum([0, *(slot.size for slot in self.slots)])
        spans = [slice(*edges[i : i + 2].tolist()) for i in range(len(self.slots))]
        stretches = [slot.name == "lengthscale" and slot.primitive in places for slot in self.slots]
        #: Radial primitives whose lengthscales are learned: which, on which columns, and where the
        #: vector holds them.
        self.stretched = [
            (j, radial[j][1], span)
            for slot, span, own in zip(self.slots, spans, stretches, strict=True)
            if own
            for j in [places.index(slot.primitive)]
        ]
        others = [
            np.arange(s.start, s.stop) for s, own in zip(spans, stretches, strict=True) if not own
        ]
        #: Where the vector holds all else.
        self.others = np.concatenate([np.empty(0, dtype=np.int64), *others])
        num_primitives = sum(1 for _ in kernel.primitives())
        #: Whether lags themselves are needed, not only their squares.
        self.needs_lags = len(radial) < num_primitives
        template = kernel.with_primitives(
            # Of no use, and with a shape that would be compiled for.
            primitive.with_parameters(lengthscale=np.ones(()))
            if isinstance(primitive, Radial)
            else primitive
            for primitive, _ in kernel.primitives()
        )
        self._arrays, self._form = _split(template)
        self._other_slots = tuple(
            slot for slot, own in zip(self.slots, stretches, strict=True) if not own
        )
        named = [column for _, dims in kernel.primitives() for column in dims or ()]
        self._width = num_dims if self.needs_lags else 1 + max(named, default=0)

    def __reduce__(self) -> tuple[Any, ...]:
        # What is compiled for holds marks of the process that it was made in.
        return PairKernel, (self.kernel, self.num_dims)

    def covariances(
        self,
        vector: NDArray[np.float64],
        count: int,
        squares_of_lags: Callable[[slice], NDArray[np.float64]],
        lags: Callable[[slice], NDArray[np.float64]],
        *,
        derivatives: bool = True,
        num_threads: int = 1,
    ) -> Covariances:
        """Return k and its derivatives at so many pairs.

        Parameters
        ----------
        vector : (p,)
            The logarithms of the learned parameters.
        squares_of_lags, lags : callable
            Return T or the lags of some of the pairs, (d, c).
        """
        W = self.inverse_squares(vector)
        others = np.ascontiguousarray(vector[self.others])
        q, m = (len(others), len(W)) if derivatives else (0, 0)
        values = np.empty(count)
        by_parameter, by_square = np.empty((q, count)), np.empty((m, count))
        block = _FEW_PAIRS if count <= _FEW_PAIRS else _BLOCK

        def evaluate(part: slice) -> None:
            size = part.stop - part.start
            squares = np.zeros((len(W), block))
            if len(W):
                np.matmul(W, squares_of_lags(part), out=squares[:, :size])
            steps = np.zeros((self._width, block) if self.needs_lags else self._width)
            if self.needs_lags:
                steps[:, :size] = lags(part)
            with jax.enable_x64(True):
                found = _evaluate(
                    self._form, self._other_slots, self._arrays, others, squares, steps
                )
            values[part] = np.asarray(found[0])[:size]
            if derivatives:
                by_parameter[:, part] = np.asarray(found[1])[:, :size]
                by_square[:, part] = np.asarray(found[2])[:, :size]

        in_threads(evaluate, list(chunks(count, block)), num_threads)
        return Covariances(values, by_parameter, by_square)

    def between(
        self, vector: NDArray[np.float64], A: NDArray[np.float64], B: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return k(a_i − b_j), (n, n')."""

        def lags(part: slice) -> NDArray[np.float64]:
            i, j = np.divmod(np.arange(part.start, part.stop), len(B))
            return (A[i] - B[j]).T

        found = self.covariances(
            vector, len(A) * len(B), lambda part: lags(part) ** 2, lags, derivatives=False
        )
        return found.values.reshape(len(A), len(B))

    def inverse_squares(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return W, (m, d)."""
        W = self._given.copy()
        for j, columns, span in self.stretched:
            W[j, columns] = np.exp(-2 * vector[span])
        return W

    def gradient(
        self,
        vector: NDArray[np.float64],
        by_parameter: NDArray[np.float64],
        by_lag: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the derivatives of a sum over pairs in the vector's entries, (p,).

        Parameters
        ----------
        by_parameter : (q,)
            The derivatives in what is not a lengthscale of a radial primitive.
        by_lag : (m, d)
            Σ_p T_dp ∂sum/∂s_jp.
        """
        total = np.empty(len(vector))
        total[self.others] = by_parameter
        W = self.inverse_squares(vector)
        for j, columns, span in self.stretched:
            own = -2 * W[j, columns] * by_lag[j, columns]
            total[span] = own if span.stop - span.start == len(own) else own.sum()
        return total


class _AtSquare(Kernel):
    """A radial primitive at a square that is known, in its place within a kernel."""

    kernel: Radial
    square: Float[AnyArray, ""]

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        return self.kernel.at_square(self.square)

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        return self.kernel.spectral_density(omega)

    def prior_variance(self) -> Float[AnyArray, ""]:
        return self.kernel.prior_variance()


class _Form(NamedTuple):
    """A kernel without its arrays, which can be hashed: what a compilation is for."""

    structure: Any
    others: tuple


def _split(kernel: Kernel) -> tuple[list[Any], _Form]:
    leaves, structure = jax.tree.flatten(kernel)
    held = [isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves]
    arrays = [leaf for leaf, own in zip(leaves, held, strict=True) if own]
    others = [None if own else leaf for leaf, own in zip(leaves, held, strict=True)]
    return arrays, _Form(structure, tuple(others))


def _joined(form: _Form, arrays: list[Any]) -> Kernel:
    own = iter(arrays)
    leaves = [next(own) if other is None else other for other in form.others]
    return jax.tree.unflatten(form.structure, leaves)


# Not `eqx.filter_jit`, whose calls take longer than a block of pairs.
@partial(jax.jit, static_argnums=(0, 1))
def _evaluate(
    form: _Form,
    slots: tuple[Slot, ...],
    arrays: list[Any],
    others: Float[AnyArray, " q"],
    squares: Float[AnyArray, "m n"],
    lags: Float[AnyArray, "d *n"],
) -> tuple[Float[AnyArray, " n"], Float[AnyArray, "q n"], Float[AnyArray, "m n"]]:
    kernel = _joined(form, arrays)

    def covariance(
        others: Float[AnyArray, " q"], own: Float[AnyArray, " m"], lag: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        whole, j = unpack(kernel, slots, others), 0
        primitives: list[Kernel] = []
        for primitive, _ in whole.primitives():
            if isinstance(primitive, Radial):
                primitive, j = _AtSquare(primitive, own[j]), j + 1
            primitives.append(primitive)
        return whole.with_primitives(iter(primitives)).k(lag)

    q, m = len(others), len(squares)
    in_axes = (None, 1, 1 if lags.ndim == 2 else None)
    if not 0 < q + m <= _FEW_DERIVATIVES:
        value_and_grad = jax.value_and_grad(covariance, argnums=(0, 1))
        values, (by_parameter, by_square) = jax.vmap(
            value_and_grad, in_axes=in_axes, out_axes=(0, (1, 1))
        )(others, squares, lags)
        return values, by_parameter, by_square
    along = jax.vmap(covariance, in_axes=in_axes)

    def derivative(step: Float[AnyArray, " q"], stretch: Float[AnyArray, " m"]):
        moves = (step, jnp.broadcast_to(stretch[:, None], squares.shape))
        return jax.jvp(lambda o, s: along(o, s, lags), (others, squares), moves)

    steps = jnp.eye(q + m)
    values, found = jax.vmap(derivative, out_axes=(None, 0))(steps[:, :q], steps[:, q:])
    return values, found[:q], found[q:]
