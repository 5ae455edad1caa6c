r"""A kernel at the lags of many pairs of rows, with its derivatives.

Most kernels see a lag by r² = Σ_d τ_d²/ℓ_d² alone (`Radial`), as do sums and products of such. The
squares of all pairs are then one product of matrices, with W_jd = 1/ℓ_jd² for the j-th primitive,

    S = W T,      T_dp = τ_pd²,      ∂k_p/∂log ℓ_jd = −2 W_jd T_dp ∂k_p/∂s_j

and what is compiled is a function of a few numbers s_j, whatever the number of columns. Dear
primitives are interpolated (`profile_tables.py`) and enter by their values, those of other kinds
take the lags themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.pair_functions import Given, evaluate, second_derivatives, split
from orthogp.inference.parameters import Slot, learned_slots
from orthogp.inference.profile_tables import Interpolated, ProfileTable, circle_squares, is_dear
from orthogp.inference.threads import in_threads
from orthogp.kernels import Cyclic, Kernel
from orthogp.kernels.stationary import Radial
from orthogp.statistics.nufft import chunks

# Pairs per compiled call: two shapes, so that few rows cost little and little is compiled.
_FEW_PAIRS, _BLOCK = 2**12, 2**14
# Up to so many parameters and squares second derivatives are taken of.
_FEW_SECOND = 4


class Covariances(NamedTuple):
    """k at pairs, (p,), and its derivatives in what is not a lengthscale of a radial primitive."""

    values: NDArray[np.float64]
    #: In the parameters' logarithms, (q, p).
    by_parameter: NDArray[np.float64]
    #: In the squares, (m, p).
    by_square: NDArray[np.float64]


class _Number(NamedTuple):
    """What a primitive enters by: a square, or its value at a square.

    Attributes
    ----------
    row : int or None
        The row of W that makes the square, or `None` for a distance around a circle.
    column, period
        Of that distance.
    table : ProfileTable or None
        Gives the value, if that is the number.
    places : (q,)
        Where the vector holds the table's parameters.
    """

    row: int | None
    column: int
    period: float
    table: ProfileTable | None
    places: NDArray[np.int64]

    def square(self, T: NDArray[np.float64], S: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the square, given those of the lags and W T."""
        return circle_squares(T[self.column], self.period) if self.row is None else S[self.row]

    def largest(self, farthest: NDArray[np.float64], W: NDArray[np.float64]) -> float:
        """Return the largest square, given those of the lags, (d,)."""
        return self.period**2 / 4 if self.row is None else float(W[self.row] @ farthest)


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
        self._numbers: list[_Number] = []
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
                self._numbers.append(_Number(row, int(columns[0]), period, table, places))
            else:
                self.needs_lags = True
            template.append(primitive)
        self._given = np.concatenate(given)
        self._compiled_slots = tuple(compiled)
        self._compiled = _places(compiled, spans)
        tabulated = [own.places for own in self._numbers if own.table is not None]
        #: Where the vector holds all that is not stretched.
        self.others = np.concatenate([self._compiled, *tabulated])
        self._arrays, self._form = split(kernel.with_primitives(iter(template)))
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
        farthest: NDArray[np.float64],
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
        farthest : (d,)
            The largest square of a lag in each column.
        """
        W = self.inverse_squares(vector)
        parameters = np.ascontiguousarray(vector[self._compiled])
        tables = [self._interpolated(own, vector, farthest, W) for own in self._numbers]
        q, m = (len(self.others), len(W)) if derivatives else (0, 0)
        values = np.empty(count)
        by_parameter, by_square = np.empty((q, count)), np.empty((m, count))
        block = _FEW_PAIRS if count <= _FEW_PAIRS else _BLOCK

        def evaluate_part(part: slice) -> None:
            size = part.stop - part.start
            numbers = np.zeros((len(tables), block))
            slopes: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
            if tables:
                T = squares_of_lags(part)
                S = W @ T
                for j, (own, table) in enumerate(zip(self._numbers, tables, strict=True)):
                    found = own.square(T, S)
                    if table is not None:
                        found, *slope = table.at(found)
                        slopes.append((slope[0], slope[1]))
                    numbers[j, :size] = found
            steps = np.zeros((self._width, block) if self.needs_lags else self._width)
            if self.needs_lags:
                steps[:, :size] = lags(part)
            k, by_compiled, by_number = evaluate(
                self._form, self._compiled_slots, self._arrays, parameters, numbers, steps
            )
            values[part] = k[:size]
            if not derivatives:
                return
            done = len(parameters)
            by_parameter[:done, part] = by_compiled[:, :size]
            for own, slope in zip(self._numbers, by_number[:, :size], strict=True):
                if own.table is not None:
                    inner, by_own_square = slopes.pop(0)
                    by_parameter[done : done + len(inner), part] = slope * inner
                    done += len(inner)
                    slope = slope * by_own_square
                if own.row is not None:
                    by_square[own.row, part] = slope

        in_threads(evaluate_part, list(chunks(count, block)), num_threads)
        return Covariances(values, by_parameter, by_square)

    @property
    def has_second(self) -> bool:
        """Whether second derivatives are to be had, at a reasonable price."""
        tabulated = any(own.table is not None for own in self._numbers)
        few = len(self.others) + len(self._numbers) <= _FEW_SECOND
        return few and not (tabulated or self.needs_lags)

    def second(self, vector: NDArray[np.float64], T: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return second derivatives in all but stretched parameters, and in squares, (r, r, c).

        Parameters
        ----------
        T : (d, c)
            Squares of lags, of up to a block of pairs.
        """
        block = _FEW_PAIRS if T.shape[1] <= _FEW_PAIRS else _BLOCK
        numbers = np.zeros((len(self._numbers), block))
        numbers[:, : T.shape[1]] = self.inverse_squares(vector) @ T
        parameters = np.ascontiguousarray(vector[self._compiled])
        found = second_derivatives(
            self._form, self._compiled_slots, self._arrays, parameters, numbers, self._width
        )
        return found[:, :, : T.shape[1]]

    def between(
        self, vector: NDArray[np.float64], A: NDArray[np.float64], B: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return k(a_i − b_j), (n, n')."""

        def lags(part: slice) -> NDArray[np.float64]:
            i, j = np.divmod(np.arange(part.start, part.stop), len(B))
            return (A[i] - B[j]).T

        both = np.concatenate([A, B])
        found = self.covariances(
            vector,
            len(A) * len(B),
            lambda part: lags(part) ** 2,
            lags,
            np.ptp(both, axis=0) ** 2,
            derivatives=False,
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

    def _interpolated(
        self,
        own: _Number,
        vector: NDArray[np.float64],
        farthest: NDArray[np.float64],
        W: NDArray[np.float64],
    ) -> Interpolated | None:
        if own.table is None:
            return None
        return own.table.interpolated(vector[own.places], own.largest(farthest, W))


def _places(slots: list[Slot], spans: dict[Slot, slice]) -> NDArray[np.int64]:
    own = [np.arange(spans[slot].start, spans[slot].stop) for slot in slots]
    return np.concatenate([np.empty(0, dtype=np.int64), *own])
