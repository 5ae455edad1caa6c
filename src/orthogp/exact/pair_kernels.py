r"""PairKernel: a kernel and its derivatives at all pairs of rows.

Kernels as compiled functions of a few numbers for each pair of rows.

Primitives that are sums over many nodes, as interpolated functions of one number.

A Matérn kernel of any smoothness, or one wrapped around a circle, takes hundreds of exponentials
for each pair of rows, and is a smooth function of log s: of the square lag in lengthscales, or of
the square distance around the circle. Some thousand values of s serve all pairs, with piecewise
cubics between them: Hermite's for k, whose slopes are known, and splines for its derivatives.

Most kernels see a lag by r² = Σ_d τ_d²/ℓ_d² alone (`Radial`), as do sums and products of such. The
squares of all pairs are then one product of matrices, with W_jd = 1/ℓ_jd² for the j-th primitive,

    S = W T,      T_dp = τ_pd²,      ∂k_p/∂log ℓ_jd = −2 W_jd T_dp ∂k_p/∂s_j

and k is a function of a few numbers s_j, whatever the number of columns: by NumPy where derivatives
have a closed form (`closed_forms.py`), compiled where they are JAX's. Dear primitives are
interpolated (`profile_tables.py`) and enter by their values, those of other kinds take the lags
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.interpolate import CubicHermiteSpline, CubicSpline, PPoly

from orthogp.errors import KernelError
from orthogp.exact.closed_forms import ClosedForm
from orthogp.inference.parameters import Slot, learned_slots, unpack
from orthogp.inference.threads import in_threads
from orthogp.kernels import Cyclic, Kernel, On, Sum
from orthogp.kernels.stationary import Radial
from orthogp.precision import AnyArray
from orthogp.statistics.nufft import chunks

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


# Nodes, and the range of log s below its largest value: lags down to 1e-15 lengthscales. With four
# nodes to a factor 1.07 the error is 1e-10 of the variance.
_NODES, _RANGE = 5 * 2**10 - 1, np.log(1e37)
# Where every kernel has vanished.
_LARGEST = 1e7


def is_dear(primitive: Kernel) -> bool:
    """Return whether a primitive is worth a table."""
    return isinstance(primitive, Cyclic) or (isinstance(primitive, Radial) and primitive.dear)


class ProfileTable:
    """A primitive at many squares, made from some.

    Parameters
    ----------
    primitive : Radial or Cyclic
    slots : tuple of Slot
        Those of its parameters that are learned, but for the lengthscales of a radial one.
    """

    def __init__(self, primitive: Radial | Cyclic, slots: tuple[Slot, ...]) -> None:
        self._largest = primitive.period**2 / 4 if isinstance(primitive, Cyclic) else _LARGEST
        self._arrays, self._form = split(primitive)
        self._slots = tuple(slot._replace(primitive=0) for slot in slots)

    def interpolated(self, parameters: NDArray[np.float64]) -> Interpolated:
        """Return the function for some parameters."""
        top = np.log(self._largest)
        nodes = np.linspace(top - _RANGE, top, _NODES)
        squares = np.append(0.0, np.exp(nodes))
        k, by_parameter, by_square = evaluate(
            self._form, self._slots, self._arrays, parameters, squares[None], np.zeros(1)
        )
        slope = squares * by_square[0]
        columns = np.concatenate([slope[None], by_parameter])[:, 1:].T
        values = CubicHermiteSpline(nodes, k[1:], slope[1:])
        derivatives = CubicSpline(nodes, columns)
        coefficients = np.concatenate([values.c[..., None], derivatives.c], axis=2)
        at_zero = np.concatenate([k[:1], [0.0], by_parameter[:, 0]])
        return Interpolated(PPoly(coefficients, nodes), at_zero)


class Interpolated(NamedTuple):
    """k, ∂k/∂log s and the derivatives in parameters as functions of log s; and where s is zero."""

    functions: PPoly
    at_zero: NDArray[np.float64]

    def at(
        self, squares: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return k (n,), its derivatives in parameters (q, n), and in the square (n,)."""
        apart = squares > 0
        safe = np.where(apart, squares, 1.0)
        ends = self.functions.x[[0, -1]]
        found = np.asarray(self.functions(np.clip(np.log(safe), *ends))).T
        found = np.where(apart, found, self.at_zero[:, None])
        return found[0], found[2:], found[1] / safe


def circle_squares(squares: NDArray[np.float64], period: float) -> NDArray[np.float64]:
    """Return the squares of distances around a circle, of those of lags."""
    lags = np.sqrt(squares)
    return (lags - period * np.rint(lags / period)) ** 2


# Pairs per compiled call: two shapes, so that few rows cost little and little is compiled.
_FEW_PAIRS, _BLOCK = 2**12, 2**14
# Pairs per call of a kernel in NumPy.
_MANY_PAIRS = 2**16
# Up to so many parameters and squares second derivatives are taken of.
_FEW_SECOND = 4


class Covariances(NamedTuple):
    """k at pairs, (p,), and its derivatives in what is not a lengthscale of a radial primitive."""

    values: NDArray[np.float64]
    #: In the parameters' logarithms, (q, p).
    by_parameter: NDArray[np.float64]
    #: In the squares, (m, p).
    by_square: NDArray[np.float64]


class Number(NamedTuple):
    """What a primitive enters by: a square, or its value at a square.

    Attributes
    ----------
    row : int or None
        The row of W that makes the square, or `None` for a distance around a circle.
    columns : (c,)
        Those that it sees; of a distance around a circle, one.
    period : float
        Of the circle.
    table : ProfileTable or None
        Gives the value, if that is the number.
    places : (q,)
        Where the vector holds the table's parameters.
    """

    row: int | None
    columns: NDArray[np.int64]
    period: float
    table: ProfileTable | None
    places: NDArray[np.int64]

    def square(self, T: NDArray[np.float64], S: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the square, given those of the lags and W T."""
        return circle_squares(T[self.columns[0]], self.period) if self.row is None else S[self.row]


class Stretched(NamedTuple):
    """A radial primitive whose lengthscales are learned.

    Attributes
    ----------
    row : int
        Its row of W.
    columns, places : (c,)
        Its columns, and which of its lengthscales each of them has.
    span : slice
        Where the vector holds the lengthscales.
    """

    row: int
    columns: NDArray[np.int64]
    places: NDArray[np.int64]
    span: slice

    def gathered(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return sums over the columns of each lengthscale, of one value (…) for each column."""
        chosen = np.eye(self.span.stop - self.span.start)[:, self.places]
        return np.tensordot(chosen, values, axes=1)


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
        edges = np.cumsum([0, *(slot.size for slot in self.slots)]).tolist()
        spans = {slot: slice(*edges[i : i + 2]) for i, slot in enumerate(self.slots)}
        #: Radial primitives whose lengthscales are learned.
        self.stretched: list[Stretched] = []
        #: Whether lags themselves are needed, not only their squares.
        self.needs_lags = False
        self.numbers: list[Number] = []
        # 1/ℓ² of all radial primitives, to be used as they are where lengthscales are fixed.
        given = [np.empty((0, num_dims))]
        template: list[Kernel] = []
        compiled: list[Slot] = []
        for i, (primitive, dims) in enumerate(kernel.primitives()):
            columns = np.arange(num_dims) if dims is None else np.array(dims)
            own = [slot for slot in self.slots if slot.primitive == i]
            row, period = None, primitive.period if isinstance(primitive, Cyclic) else 0.0
            if isinstance(primitive, Radial):
                row = len(given) - 1
                given.append(np.zeros((1, num_dims)))
                shared = primitive.lengthscale_places(len(columns))
                lengths = np.ravel(primitive.parameters()["lengthscale"])
                given[-1][0, columns] = lengths[shared] ** -2.0
                self.stretched += [
                    Stretched(row, columns, shared, spans[slot])
                    for slot in own
                    if slot.name == "lengthscale"
                ]
                own = [slot for slot in own if slot.name != "lengthscale"]
                # Of no use, and with a shape that would be compiled for.
                primitive = primitive.with_parameters(lengthscale=np.ones(()))
            table, places = None, _places(own, spans)
            if isinstance(primitive, Radial | Cyclic) and is_dear(primitive):
                table, primitive = ProfileTable(primitive, tuple(own)), Given()
            else:
                compiled += own
            if row is not None or table is not None:
                self.numbers.append(Number(row, columns, period, table, places))
            else:
                self.needs_lags = True
            template.append(primitive)
        self._given = np.concatenate(given)
        self.compiled_slots = tuple(compiled)
        self.compiled = _places(compiled, spans)
        tabulated = [own.places for own in self.numbers if own.table is not None]
        #: Where the vector holds all that is not stretched.
        self.others = np.concatenate([self.compiled, *tabulated])
        #: Serves in place of what is compiled, if there is one.
        self.closed = ClosedForm.of(kernel, spans)
        self.arrays, self.form = split(kernel.with_primitives(iter(template)))
        named = [column for _, dims in kernel.primitives() for column in dims or ()]
        self.width = num_dims if self.needs_lags else 1 + max(named, default=0)

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
        function = self.at(vector)
        q, m = (len(self.others), len(function.W)) if derivatives else (0, 0)
        found = Covariances(np.empty(count), np.empty((q, count)), np.empty((m, count)))
        block = _FEW_PAIRS if count <= _FEW_PAIRS else _BLOCK
        if self.closed is not None:
            block = _MANY_PAIRS

        def evaluate_part(part: slice) -> None:
            squares = function.squares(squares_of_lags(part)) if self.num_squares else None
            steps = lags(part) if self.needs_lags else None
            if squares is not None and not derivatives:
                found.values[part] = function.values(squares, steps)
                return
            own = function.evaluate(squares, steps, block, derivatives=derivatives)
            for whole, piece in zip(found, own, strict=True):
                whole[..., part] = piece[..., : part.stop - part.start]

        in_threads(evaluate_part, list(chunks(count, block)), num_threads)
        return found

    def kernel_at(self, vector: NDArray[np.float64]) -> Kernel:
        """Return the kernel with some parameters, as an object."""
        return unpack(self.kernel, self.slots, vector)

    def at(self, vector: NDArray[np.float64]) -> PairFunction:
        """Return the kernel with some parameters."""
        return PairFunction(self, vector)

    @property
    def num_squares(self) -> int:
        """The number of primitives that are functions of a square."""
        return len(self.numbers)

    @property
    def has_second(self) -> bool:
        """Whether second derivatives are to be had, at a reasonable price."""
        tabulated = any(own.table is not None for own in self.numbers)
        few = len(self.others) + len(self.numbers) <= _FEW_SECOND
        return few and not (tabulated or self.needs_lags)

    def second(self, vector: NDArray[np.float64], T: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return second derivatives in all but stretched parameters, and in squares, (r, r, c).

        Parameters
        ----------
        T : (d, c)
            Squares of lags, of up to a block of pairs.
        """
        squares = self.inverse_squares(vector) @ T
        if self.closed is not None:
            return self.closed.second(vector, squares)
        block = _FEW_PAIRS if T.shape[1] <= _FEW_PAIRS else _BLOCK
        numbers = np.zeros((len(self.numbers), block))
        numbers[:, : T.shape[1]] = squares
        parameters = np.ascontiguousarray(vector[self.compiled])
        found = second_derivatives(
            self.form, self.compiled_slots, self.arrays, parameters, numbers, self.width
        )
        return found[:, :, : T.shape[1]]

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
        for own in self.stretched:
            W[own.row, own.columns] = np.exp(-2 * vector[own.span])[own.places]
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
        for own in self.stretched:
            at = own.row, own.columns
            total[own.span] = own.gathered(-2 * W[at] * by_lag[at])
        return total


class PairFunction:
    """A kernel with its parameters, as a function of squares and lags.

    Attributes
    ----------
    W : (m, d)
        1/ℓ² of the radial primitives.
    """

    def __init__(self, kernel: PairKernel, vector: NDArray[np.float64]) -> None:
        self._kernel = kernel
        self._vector = vector
        self.W = kernel.inverse_squares(vector)
        self._parameters = np.ascontiguousarray(vector[kernel.compiled])
        self._tables = [
            None if own.table is None else own.table.interpolated(vector[own.places])
            for own in kernel.numbers
        ]
        self._summed = _profiles(kernel.kernel_at(vector)) if kernel.closed is None else None

    def squares(self, T: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the primitives are functions of, (k, c), given squares of lags (d, c)."""
        S = self.W @ T
        own = [number.square(T, S) for number in self._kernel.numbers]
        return np.stack(own) if own else np.empty((0, T.shape[1]))

    def values(
        self, squares: NDArray[np.float64], lags: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Return k at c pairs, given squares (k, c), which are overwritten, and lags."""
        count = squares.shape[1] if lags is None else lags.shape[1]
        closed = self._kernel.closed
        # In parts that stay in a cache.
        if closed is not None:
            for part in chunks(count, _MANY_PAIRS):
                squares[0, part] = closed.values(self._vector, squares[:, part])
            return squares[0]
        if self._summed is not None:
            for part in chunks(count, _MANY_PAIRS):
                total = self._summed[0](squares[0, part])
                for profile, square in zip(self._summed[1:], squares[1:], strict=True):
                    total = total + profile(square[part])
                squares[0, part] = total
            return squares[0]
        values = np.empty(count)
        for part in chunks(count, _BLOCK):
            size = _FEW_PAIRS if count <= _FEW_PAIRS else _BLOCK
            own = None if lags is None else lags[:, part]
            found = self.evaluate(squares[:, part], own, size, derivatives=False)
            values[part] = found.values[: part.stop - part.start]
        return values

    def evaluate(
        self,
        squares: NDArray[np.float64] | None,
        lags: NDArray[np.float64] | None,
        size: int,
        *,
        derivatives: bool,
    ) -> Covariances:
        """Return k and its derivatives at c pairs, in arrays of a size that is compiled for.

        Parameters
        ----------
        squares : (k, c), optional
            For each primitive that is a function of one.
        lags : (d, c), optional
            If the kernel needs them.
        size : int
            At least c; entries beyond c mean nothing, and need not be there.
        """
        kernel = self._kernel
        if kernel.closed is not None and squares is not None and derivatives:
            return Covariances(*kernel.closed.derivatives(self._vector, squares))
        numbers = _padded(np.empty((0, size)) if squares is None else squares, size)
        slopes = []
        for j, table in enumerate(self._tables):
            if table is not None:
                # A copy, not to write into what was given.
                numbers = numbers.copy() if numbers is squares else numbers
                value, by_own_parameter, by_own_square = table.at(numbers[j])
                slopes.append((by_own_parameter, by_own_square))
                numbers[j] = value
        steps = np.zeros(kernel.width) if lags is None else _padded(lags, size)
        given = (kernel.form, kernel.compiled_slots, kernel.arrays, self._parameters)
        if not derivatives:
            return Covariances(
                evaluate_values(*given, numbers, steps), np.empty((0, size)), np.empty((0, size))
            )
        values, by_compiled, by_number = evaluate(*given, numbers, steps)
        by_parameter, by_square = [by_compiled], np.empty((len(self.W), size))
        for own, slope in zip(kernel.numbers, by_number, strict=True):
            if own.table is not None:
                inner, by_own_square = slopes.pop(0)
                by_parameter.append(slope * inner)
                slope = slope * by_own_square
            if own.row is not None:
                by_square[own.row] = slope
        return Covariances(values, np.concatenate(by_parameter), by_square)


def _profiles(kernel: Kernel) -> list[Callable] | None:
    """Return the functions of squares that a kernel adds up, if NumPy can take them all."""
    if isinstance(kernel, On):
        return _profiles(kernel.kernel)
    if isinstance(kernel, Sum):
        found = [_profiles(term) for term in kernel.terms]
        return None if None in found else [own for part in found for own in part or ()]
    if not isinstance(kernel, Radial) or is_dear(kernel):
        return None
    with enable_x64(True):
        tried = kernel.at_square(np.zeros(1))
    # Not bound by Equinox, whose methods take longer to call than a thousand entries.
    profile = partial(type(kernel).at_square, kernel)
    return [profile] if isinstance(tried, np.ndarray) else None


def _padded(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the columns, with zeros up to a size."""
    if values.shape[1] == size:
        return values
    padded = np.zeros((len(values), size))
    padded[:, : values.shape[1]] = values
    return padded


def _places(slots: list[Slot], spans: dict[Slot, slice]) -> NDArray[np.int64]:
    own = [np.arange(spans[slot].start, spans[slot].stop) for slot in slots]
    return np.concatenate([np.empty(0, dtype=np.int64), *own])
