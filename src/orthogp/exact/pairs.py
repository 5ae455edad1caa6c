r"""Pairs of rows, rows of equal inputs merged, and a kernel with its derivatives at many pairs.

Most kernels see a lag by r² = Σ_d τ_d²/ℓ_d² alone (`Radial`), as do sums and products of such. The
squares of all pairs are then one product of matrices, with W_jd = 1/ℓ_jd² for the j-th primitive,

    S = W T,      T_dp = τ_pd²,      ∂k_p/∂log ℓ_jd = −2 W_jd T_dp ∂k_p/∂s_j

and k is a function of a few numbers s_j, whatever the number of columns (`profiles.py`). Primitives
that are interpolated enter by their values, those of other kinds take the lags themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.profiles import (
    ClosedForm,
    Compiled,
    Given,
    ProfileTable,
    circle_squares,
    is_dear,
    profiles,
)
from orthogp.inference.parameters import Slot, learned_slots, unpack
from orthogp.kernels import Cyclic, Kernel
from orthogp.kernels.stationary import Radial
from orthogp.precision import in_threads
from orthogp.statistics.nufft import chunks

Array = NDArray[np.float64]

# The largest number of bytes of lags that are kept from one evaluation to the next.
_KEPT = 2**26
# The largest number of rows for which the places of all pairs are looked up: a call for each row
# would take most of the time.
_FEW_ROWS = 512


class MergedRows(NamedTuple):
    r"""Rows of different inputs, each the weighted mean of those it was made of.

    Rows of weights w_j at one input, with W = Σ w_j and ȳ = Σ w_j y_j/W, have

        ∏_j N(y_j | f, σ²/w_j) ∝ N(ȳ | f, σ²/W) (2πσ²)^{−(n−1)/2} exp(−S/2σ²)
        S = Σ_j w_j (y_j − ȳ)²

    n being their number (Σ w_j if weights count repeated rows): exact for Gaussian noise.

    Attributes
    ----------
    X, y, weights : (n, d), (n, p), (n,)
    surplus : float
        Σ (n − 1), the number of Gaussian factors that merging took out.
    square : float
        Σ S, over all targets.
    constant : float
        The part of log p(y) that is the same for all hyperparameters.
    """

    X: Array
    y: Array
    weights: Array
    surplus: float
    square: float
    constant: float

    def beside(self, noise_variance: float) -> tuple[float, float]:
        """Return the log density of what merging took out, and its derivative in log σ²."""
        p = self.y.shape[1]
        value = -0.5 * (
            p * self.surplus * np.log(2 * np.pi * noise_variance) + self.square / noise_variance
        )
        slope = -0.5 * (p * self.surplus - self.square / noise_variance)
        return float(value) + self.constant, float(slope)


def merge_rows(X: Array, y: Array, weights: Array | None, *, repeats: bool) -> MergedRows:
    """Return the rows with equal inputs merged; rows of weight zero are left out."""
    X = np.asarray(X, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights is not None and not np.all(w > 0):
        X, y, w = X[w > 0], y[w > 0], w[w > 0]
    number = float(w.sum()) if repeats else float(len(w))
    logs = 0.0 if repeats else float(np.log(w).sum())
    square, group = 0.0, equal_rows(X)
    if group is not None:
        size, inputs = int(group.max()) + 1, X
        total = np.asarray(np.bincount(group, w, size), dtype=np.float64)
        means = np.stack([np.bincount(group, w * column, size) for column in y.T], axis=1)
        means /= total[:, None]
        square = float(np.sum(w[:, None] * (y - means[group]) ** 2))
        X = np.empty((size, inputs.shape[1]))
        X[group] = inputs
        y, w = means, total
    constant = 0.5 * y.shape[1] * (logs - float(np.log(w).sum()))
    return MergedRows(X, y, w, surplus=number - len(w), square=square, constant=constant)


def equal_rows(X: Array) -> NDArray[np.int64] | None:
    """Return for each row the number of its group of equal rows, or `None` if all differ."""
    # Equal rows have equal products with any vector. To sort numbers takes a fifth of the time of
    # sorting indices, and tells most often that all differ.
    mixed = X @ np.random.default_rng(0).uniform(1.0, 2.0, X.shape[1])
    ranked = np.sort(mixed)
    close = np.diff(ranked) <= 1e-14 * np.abs(ranked[1:])
    if not close.any():
        return None
    order = np.argsort(mixed, kind="stable")
    where = np.unique(np.concatenate([order[1:][close], order[:-1][close]]))
    _, inverse = np.unique(X[where], axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    if inverse.max() + 1 == len(where):
        return None
    label = np.arange(len(X))
    first = np.full(inverse.max() + 1, len(X))
    np.minimum.at(first, inverse, where)
    label[where] = first[inverse]
    return np.unique(label, return_inverse=True)[1].reshape(-1)


class RowPairs:
    """The pairs i < j of the rows of X (n, d), row by row, and behind them a row with itself.

    In this order the pairs are the lower triangle, column by column, of a matrix as LAPACK has it.
    The last pair stands for all of the diagonal: a stationary kernel has one value there.
    """

    def __init__(self, X: Array) -> None:
        self._columns = np.ascontiguousarray(X.T)
        self.num_rows = len(X)
        first = np.arange(len(X))
        # Where each row's pairs begin, and after the last row's the pair of the diagonal.
        self._starts = first * (2 * len(X) - first - 1) // 2
        self.count = len(X) * (len(X) - 1) // 2 + 1

    def lags(self, part: slice) -> Array:
        """Return x_j − x_i for some of the pairs, (d, c)."""
        return self._all_lags[:, part] if self._kept else self._make_lags(part)

    def squares_of_lags(self, part: slice) -> Array:
        """Return (x_jd − x_id)² for some of the pairs, (d, c)."""
        return self._all_squares[:, part] if self._kept else self._make_lags(part) ** 2

    def fill(self, values: Array, matrix: Array) -> None:
        """Write the pairs' values to the lower triangle of a matrix, column by column."""
        transposed = matrix.T
        if self.num_rows <= _FEW_ROWS:
            transposed.reshape(-1)[self._places] = values[:-1]
        else:
            for i, start in enumerate(self._starts.tolist()):
                transposed[i, i + 1 :] = values[start : start + self.num_rows - i - 1]
        np.einsum("ii->i", matrix)[:] = values[-1]

    def gather(self, matrix: Array) -> Array:
        """Return what each pair counts in a sum over all entries of a symmetric matrix.

        Of the matrix, column by column, the lower triangle is read.
        """
        transposed = matrix.T
        values = np.empty(self.count)
        if self.num_rows <= _FEW_ROWS:
            np.take(transposed.reshape(-1), self._places, out=values[:-1])
        else:
            for i, start in enumerate(self._starts.tolist()):
                values[start : start + self.num_rows - i - 1] = transposed[i, i + 1 :]
        values[:-1] *= 2
        values[-1] = np.trace(matrix)
        return values

    def products(self, values: Array) -> Array:
        """Return v_i v_j for every pair, and 1 for the last."""
        later = [values[i] * values[i + 1 :] for i in range(self.num_rows)]
        return np.concatenate([*later, [1.0]])

    @property
    def _kept(self) -> bool:
        return 8 * self.count * len(self._columns) <= _KEPT

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        columns, rows = np.triu_indices(self.num_rows, 1)
        return columns * self.num_rows + rows

    @cached_property
    def _all_lags(self) -> Array:
        return self._make_lags(slice(0, self.count))

    @cached_property
    def _all_squares(self) -> Array:
        return self._make_lags(slice(0, self.count)) ** 2

    def _make_lags(self, part: slice) -> Array:
        lags = np.zeros((len(self._columns), part.stop - part.start))
        first = int(np.searchsorted(self._starts, part.start, side="right")) - 1
        done = part.start
        for i in range(first, self.num_rows - 1):
            j = i + 1 + done - int(self._starts[i])
            stop = min(done + self.num_rows - j, part.stop)
            np.subtract(
                self._columns[:, j : j + stop - done],
                self._columns[:, i : i + 1],
                out=lags[:, done - part.start : stop - part.start],
            )
            done = stop
            if done == part.stop:
                break
        return lags


class CrossPairs:
    """The pairs of a row of A (n, d) with a row of B (m, d), those of the first row of A first."""

    def __init__(self, A: Array, B: Array) -> None:
        self._A, self._B = A, B
        self.count = len(A) * len(B)

    def lags(self, part: slice) -> Array:
        """Return a_i − b_j for some of the pairs, (d, c)."""
        i, j = np.divmod(np.arange(part.start, part.stop), len(self._B))
        return (self._A[i] - self._B[j]).T

    def squares_of_lags(self, part: slice) -> Array:
        """Return (a_id − b_jd)² for some of the pairs, (d, c)."""
        return self.lags(part) ** 2


# The number of pairs of a compiled call, if there are few: a shape that costs little.
_FEW_PAIRS = 2**12
#: The number of pairs of a compiled call, if there are more.
PAIRS_PER_CALL = 2**14
# The number of pairs of a call of a kernel in NumPy.
_MANY_PAIRS = 2**16
# The largest number of parameters and squares of which second derivatives are taken.
_FEW_SECOND = 4


class Covariances(NamedTuple):
    """k at pairs, (p,), and its derivatives in what is not a lengthscale of a radial primitive."""

    values: Array
    #: In the parameters' logarithms, (q, p).
    by_parameter: Array
    #: In the squares, (m, p).
    by_square: Array


class Number(NamedTuple):
    """What a primitive enters by: a square, or its value at a square.

    Attributes
    ----------
    row : int or None
        The row of W that makes the square, or `None` for a distance around a circle.
    columns : (c,)
        Those that the primitive sees; of a distance around a circle, one.
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

    def square(self, T: Array, S: Array) -> Array:
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

    def gathered(self, values: Array) -> Array:
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
            slots = [slot for slot in self.slots if slot.primitive == i]
            row, period = None, primitive.period if isinstance(primitive, Cyclic) else 0.0
            if isinstance(primitive, Radial):
                row = len(given) - 1
                given.append(np.zeros((1, num_dims)))
                shared = primitive.lengthscale_places(len(columns))
                lengths = np.ravel(primitive.parameters()["lengthscale"])
                given[-1][0, columns] = lengths[shared] ** -2.0
                self.stretched += [
                    Stretched(row, columns, shared, spans[slot])
                    for slot in slots
                    if slot.name == "lengthscale"
                ]
                slots = [slot for slot in slots if slot.name != "lengthscale"]
                # Of no use, and with a shape that would be compiled for.
                primitive = primitive.with_parameters(lengthscale=np.ones(()))
            table, places = None, _places(slots, spans)
            if isinstance(primitive, Radial | Cyclic) and is_dear(primitive):
                table, primitive = ProfileTable(primitive, slots), Given()
            else:
                compiled += slots
            if row is not None or table is not None:
                self.numbers.append(Number(row, columns, period, table, places))
            else:
                self.needs_lags = True
            template.append(primitive)
        self._given = np.concatenate(given)
        self.compiled_places = _places(compiled, spans)
        tabulated = [number.places for number in self.numbers if number.table is not None]
        #: Where the vector holds all that is not stretched.
        self.others = np.concatenate([self.compiled_places, *tabulated])
        #: Serves in place of what is compiled, if there is one.
        self.closed = ClosedForm.of(kernel, spans)
        self.compiled = Compiled(kernel.with_primitives(iter(template)), tuple(compiled))
        self._last: tuple[Array, PairFunction] | None = None
        named = [column for _, dims in kernel.primitives() for column in dims or ()]
        #: The lag that stands for all where none is needed.
        self.no_lag = np.zeros(num_dims if self.needs_lags else 1 + max(named, default=0))

    def __reduce__(self) -> tuple[Any, ...]:
        # What is compiled for holds marks of the process that it was made in.
        return PairKernel, (self.kernel, self.num_dims)

    def covariances(
        self,
        vector: Array,
        pairs: RowPairs | CrossPairs,
        *,
        derivatives: bool = True,
        num_threads: int = 1,
    ) -> Covariances:
        """Return k and its derivatives at pairs; `vector` (p,) has log learned parameters."""
        function, count = self.at(vector), pairs.count
        q, m = (len(self.others), len(function.W)) if derivatives else (0, 0)
        found = Covariances(np.empty(count), np.empty((q, count)), np.empty((m, count)))
        block = _FEW_PAIRS if count <= _FEW_PAIRS else PAIRS_PER_CALL
        if self.closed is not None:
            block = _MANY_PAIRS

        def evaluate_part(part: slice) -> None:
            squares = function.squares(pairs.squares_of_lags(part)) if self.numbers else None
            lags = pairs.lags(part) if self.needs_lags else None
            if squares is not None and not derivatives:
                found.values[part] = function.values(squares, lags)
                return
            pieces = function.evaluate(squares, lags, block, derivatives=derivatives)
            for whole, piece in zip(found, pieces, strict=True):
                whole[..., part] = piece[..., : part.stop - part.start]

        in_threads(evaluate_part, list(chunks(count, block)), num_threads)
        return found

    def between(self, vector: Array, A: Array, B: Array) -> Array:
        """Return k(a_i − b_j), (n, n')."""
        found = self.covariances(vector, CrossPairs(A, B), derivatives=False)
        return found.values.reshape(len(A), len(B))

    def at(self, vector: Array) -> PairFunction:
        """Return the kernel with some parameters."""
        # Its tables take longer than few pairs, and are asked for several times in a row.
        if self._last is None or not np.array_equal(self._last[0], vector):
            self._last = np.array(vector), PairFunction(self, np.array(vector))
        return self._last[1]

    @property
    def has_second(self) -> bool:
        """Whether second derivatives are to be had, at a reasonable price."""
        tabulated = any(number.table is not None for number in self.numbers)
        few = len(self.others) + len(self.numbers) <= _FEW_SECOND
        return few and not (tabulated or self.needs_lags)

    def second(self, vector: Array, T: Array) -> Array:
        """Return second derivatives in all but stretched parameters, and in squares, (r, r, c).

        Parameters
        ----------
        T : (d, c)
            Squares of lags, of up to `PAIRS_PER_CALL` pairs.
        """
        squares = self.inverse_squares(vector) @ T
        if self.closed is not None:
            return self.closed.second(vector, squares)
        count = T.shape[1]
        numbers = _padded(squares, _FEW_PAIRS if count <= _FEW_PAIRS else PAIRS_PER_CALL)
        parameters = np.ascontiguousarray(vector[self.compiled_places])
        return self.compiled.second(parameters, numbers, self.no_lag)[:, :, :count]

    def inverse_squares(self, vector: Array) -> Array:
        """Return W, (m, d)."""
        W = self._given.copy()
        for radial in self.stretched:
            W[radial.row, radial.columns] = np.exp(-2 * vector[radial.span])[radial.places]
        return W

    def gradient(self, vector: Array, by_parameter: Array, by_lag: Array) -> Array:
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
        for radial in self.stretched:
            at = radial.row, radial.columns
            total[radial.span] = radial.gathered(-2 * W[at] * by_lag[at])
        return total


class PairFunction:
    """A kernel with its parameters, as a function of squares and lags.

    Attributes
    ----------
    W : (m, d)
        1/ℓ² of the radial primitives.
    """

    def __init__(self, kernel: PairKernel, vector: Array) -> None:
        self._kernel = kernel
        self._vector = vector
        self.W = kernel.inverse_squares(vector)
        self._parameters = np.ascontiguousarray(vector[kernel.compiled_places])
        self._tables = [
            None if number.table is None else number.table.interpolated(vector[number.places])
            for number in kernel.numbers
        ]
        # The terms of a sum without a closed form, if NumPy takes them all.
        self._summed: list[Callable[[Array], Array]] | None = None
        if kernel.closed is None:
            self._summed = profiles(unpack(kernel.kernel, kernel.slots, vector))

    def squares(self, T: Array) -> Array:
        """Return what the primitives are functions of, (k, c), given squares of lags (d, c)."""
        S = self.W @ T
        found = [number.square(T, S) for number in self._kernel.numbers]
        return np.stack(found) if found else np.empty((0, T.shape[1]))

    def values(self, squares: Array, lags: Array | None) -> Array:
        """Return k at c pairs, given squares (k, c), which are overwritten, and lags."""
        count = squares.shape[1] if lags is None else lags.shape[1]
        closed, summed = self._kernel.closed, self._summed
        if closed is not None or summed is not None:
            # In parts that stay in a cache.
            for part in chunks(count, _MANY_PAIRS):
                if closed is not None:
                    squares[0, part] = closed.values(self._vector, squares[:, part])
                elif summed is not None:
                    terms = [f(square[part]) for f, square in zip(summed, squares, strict=True)]
                    squares[0, part] = sum(terms[1:], start=terms[0])
            return squares[0]
        values = np.empty(count)
        size = _FEW_PAIRS if count <= _FEW_PAIRS else PAIRS_PER_CALL
        for part in chunks(count, PAIRS_PER_CALL):
            some = None if lags is None else lags[:, part]
            found = self.evaluate(squares[:, part], some, size, derivatives=False)
            values[part] = found.values[: part.stop - part.start]
        return values

    def evaluate(
        self, squares: Array | None, lags: Array | None, size: int, *, derivatives: bool
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
                numbers[j], *slope = table.at(numbers[j])
                slopes.append(slope)
        steps = kernel.no_lag if lags is None else _padded(lags, size)
        if not derivatives:
            values = kernel.compiled.values(self._parameters, numbers, steps)
            return Covariances(values, np.empty((0, size)), np.empty((0, size)))
        values, by_compiled, by_number = kernel.compiled.derivatives(
            self._parameters, numbers, steps
        )
        by_parameter, by_square = [by_compiled], np.empty((len(self.W), size))
        for number, slope in zip(kernel.numbers, by_number, strict=True):
            if number.table is not None:
                inner, by_table_square = slopes.pop(0)
                by_parameter.append(slope * inner)
                slope = slope * by_table_square
            if number.row is not None:
                by_square[number.row] = slope
        return Covariances(values, np.concatenate(by_parameter), by_square)


def _padded(values: Array, size: int) -> Array:
    """Return the columns, with zeros up to a size."""
    missing = size - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing))) if missing else values


def _places(slots: list[Slot], spans: dict[Slot, slice]) -> NDArray[np.int64]:
    places = [np.arange(spans[slot].start, spans[slot].stop) for slot in slots]
    return np.concatenate([np.empty(0, dtype=np.int64), *places])
