"""Kernels as functions of a few numbers for each pair of rows: squares of lags, and values.

Sums of kernels v ρ(s), which most fits have, are taken by NumPy (`ClosedForm`); all others are
compiled (`Compiled`). A Matérn kernel of any smoothness, or one wrapped around a circle, takes
hundreds of exponentials for each pair of rows, and is a smooth function of log s. Some thousand
values of s serve all pairs (`ProfileTable`), with piecewise cubics between them: Hermite's for k,
whose slopes are known, and splines for its derivatives.
"""

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
from scipy.interpolate import CubicHermiteSpline, CubicSpline, PPoly

from orthogp.errors import KernelError
from orthogp.inference.parameters import Slot, unpack
from orthogp.kernels import Cyclic, Kernel, On, Sum
from orthogp.kernels.stationary import Radial
from orthogp.precision import AnyArray, in_double

Array = NDArray[np.float64]

# The largest number of derivatives that are taken forwards, which keeps nothing of kernels that are
# sums over many nodes; backwards scales better.
_FEW_DERIVATIVES = 3
# The number of nodes of a table: four to a factor 1.07, with errors of 1e-10 of the variance.
_NODES = 5 * 2**10 - 1
# The range of log s below its largest value: lags down to 1e-15 lengthscales.
_RANGE = np.log(1e37)
# The square at which every kernel has vanished.
_LARGEST = 1e7


# ---------------------------------------------------------------------- closed forms


class Term(NamedTuple):
    """A kernel v ρ(s).

    Attributes
    ----------
    correlations : callable
        ρ and its derivatives; see `Radial.correlations`.
    variance : float
        v, if it is not learned.
    place : int or None
        Where the vector of all learned parameters holds log v.
    """

    correlations: Callable[[Array, int], list[Array] | None]
    variance: float
    place: int | None


class ClosedForm(NamedTuple):
    """A sum of terms, each of which has a row of squares."""

    terms: tuple[Term, ...]

    @classmethod
    def of(cls, kernel: Kernel, spans: dict[Slot, slice]) -> ClosedForm | None:
        """Return the closed form of a kernel, or `None` if it has none.

        Parameters
        ----------
        spans : dict
            Where the vector holds each learned parameter.
        """
        summands = radial_summands(kernel)
        if summands is None:
            return None
        terms = []
        for i, primitive in enumerate(summands):
            parameters = primitive.parameters()
            # A subclass with another k inherits derivatives that are not those of its k.
            inherited = _owner(primitive, "at_square") is not _owner(primitive, "correlations")
            if set(parameters) != {"variance", "lengthscale"} or inherited:
                return None
            # Not bound by Equinox, whose methods take longer to call than a thousand entries.
            correlations = partial(type(primitive).correlations, primitive)
            if correlations(np.zeros(1), 0) is None:
                return None
            places = [span.start for slot, span in spans.items() if slot[:2] == (i, "variance")]
            variance = float(parameters["variance"])
            terms.append(Term(correlations, variance, places[0] if places else None))
        return cls(tuple(terms))

    def values(self, vector: Array, squares: Array) -> Array:
        """Return k at squares (m, n)."""
        found = self._evaluate(vector, squares, 0)
        return sum((term[0] for term in found[1:]), start=found[0][0])

    def derivatives(self, vector: Array, squares: Array) -> tuple[Array, Array, Array]:
        """Return k (n,), its derivatives in learned log variances (q, n), and in squares (m, n)."""
        found = self._evaluate(vector, squares, 1)
        values = [term[0] for term in found]
        return (
            sum(values[1:], start=values[0]),
            np.array([*(values[j] for j in self._learned)]).reshape(-1, squares.shape[1]),
            np.array([term[1] for term in found]),
        )

    def second(self, vector: Array, squares: Array) -> Array:
        """Return second derivatives in learned log variances and in squares, (q + m, q + m, n)."""
        learned = self._learned
        size = len(learned) + len(self.terms)
        second = np.zeros((size, size, squares.shape[1]))
        for j, (value, slope, bend) in enumerate(self._evaluate(vector, squares, 2)):
            square = len(learned) + j
            second[square, square] = bend
            if j in learned:
                variance = learned.index(j)
                second[variance, variance] = value
                second[variance, square] = second[square, variance] = slope
        return second

    @property
    def _learned(self) -> list[int]:
        """The terms whose variances are learned."""
        return [j for j, term in enumerate(self.terms) if term.place is not None]

    def _evaluate(self, vector: Array, squares: Array, order: int) -> list[list[Array]]:
        """Return v ρ(s) of each term, with its derivatives in s up to an order."""
        found = []
        for term, square in zip(self.terms, squares, strict=True):
            correlations = term.correlations(square, order)
            assert correlations is not None
            variance = term.variance if term.place is None else np.exp(vector[term.place])
            for values in correlations:
                values *= variance
            found.append(correlations)
        return found


def radial_summands(kernel: Kernel) -> list[Radial] | None:
    """Return the primitives of a kernel that is the sum of them, all radial; `None` of others."""
    if isinstance(kernel, On):
        return radial_summands(kernel.kernel)
    if isinstance(kernel, Sum):
        found = [radial_summands(term) for term in kernel.terms]
        return None if None in found else [own for part in found for own in part or ()]
    return [kernel] if isinstance(kernel, Radial) else None


def profiles(kernel: Kernel) -> list[Callable[[Array], Array]] | None:
    """Return the functions of squares that a kernel adds up, if NumPy can take them all."""
    found = []
    for primitive in radial_summands(kernel) or ():
        if is_dear(primitive):
            return None
        profile = partial(type(primitive).at_square, primitive)
        if not isinstance(in_double(profile)(np.zeros(1)), np.ndarray):
            return None
        found.append(profile)
    return found or None


def _owner(kernel: Kernel, method: str) -> type:
    """Return the class that defines a kernel's method."""
    return next(kind for kind in type(kernel).__mro__ if method in vars(kind))


# ---------------------------------------------------------------------- compiled


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
    """What a compilation is for: a kernel without its arrays, and its learned parameters."""

    structure: Any
    others: tuple
    slots: tuple[Slot, ...]

    def covariance(self, arrays: list[Any]) -> Callable:
        """Return k as a function of log parameters (q,), numbers (m,) and a lag (d,)."""
        rest = iter(arrays)
        leaves = [next(rest) if other is None else other for other in self.others]
        kernel = jax.tree.unflatten(self.structure, leaves)

        def covariance(
            parameters: Float[AnyArray, " q"],
            numbers: Float[AnyArray, " m"],
            lag: Float[AnyArray, " d"],
        ) -> Float[AnyArray, ""]:
            whole, j = unpack(kernel, self.slots, parameters), 0
            primitives: list[Kernel] = []
            for primitive, _ in whole.primitives():
                if isinstance(primitive, Radial | Cyclic):
                    primitive, j = Given(primitive.at_square(numbers[j])), j + 1
                elif isinstance(primitive, Given):
                    primitive, j = Given(numbers[j]), j + 1
                primitives.append(primitive)
            return whole.with_primitives(iter(primitives)).k(lag)

        return covariance


class Compiled:
    """A kernel at n pairs, as a function of learned parameters and of numbers.

    Primitives that are `Given` take their values from the numbers (m, n), those that are functions
    of a square take that; all others take the lags: (d, n), or (d,) if no primitive needs them.
    Parameters (q,) are logarithms.
    """

    def __init__(self, kernel: Kernel, slots: tuple[Slot, ...]) -> None:
        leaves, structure = jax.tree.flatten(kernel)
        held = [isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves]
        others = (None if own else leaf for leaf, own in zip(leaves, held, strict=True))
        self._arrays = [leaf for leaf, own in zip(leaves, held, strict=True) if own]
        self._form = Form(structure, tuple(others), slots)

    def values(self, parameters: Array, numbers: Array, lags: Array) -> Array:
        """Return k, (n,)."""
        with jax.enable_x64(True):
            return np.asarray(_values(self._form, self._arrays, parameters, numbers, lags))

    def derivatives(
        self, parameters: Array, numbers: Array, lags: Array
    ) -> tuple[Array, Array, Array]:
        """Return k (n,), its derivatives in parameters (q, n), and in the numbers (m, n)."""
        with jax.enable_x64(True):
            found = _derivatives(self._form, self._arrays, parameters, numbers, lags)
        return np.asarray(found[0]), np.asarray(found[1]), np.asarray(found[2])

    def second(self, parameters: Array, numbers: Array, lag: Array) -> Array:
        """Return second derivatives in parameters and numbers, (q + m, q + m, n)."""
        with jax.enable_x64(True):
            return np.asarray(_second(self._form, self._arrays, parameters, numbers, lag))


# Not `eqx.filter_jit`, whose calls take longer than a block of pairs.
@partial(jax.jit, static_argnums=0)
def _values(
    form: Form,
    arrays: list[Any],
    parameters: Float[AnyArray, " q"],
    numbers: Float[AnyArray, "m n"],
    lags: Float[AnyArray, "d *n"],
) -> Float[AnyArray, " n"]:
    in_axes = (None, 1, 1 if lags.ndim == 2 else None)
    return jax.vmap(form.covariance(arrays), in_axes=in_axes)(parameters, numbers, lags)


@partial(jax.jit, static_argnums=0)
def _derivatives(
    form: Form,
    arrays: list[Any],
    parameters: Float[AnyArray, " q"],
    numbers: Float[AnyArray, "m n"],
    lags: Float[AnyArray, "d *n"],
) -> tuple[Float[AnyArray, " n"], Float[AnyArray, "q n"], Float[AnyArray, "m n"]]:
    covariance = form.covariance(arrays)
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


@partial(jax.jit, static_argnums=0)
def _second(
    form: Form,
    arrays: list[Any],
    parameters: Float[AnyArray, " q"],
    numbers: Float[AnyArray, "m n"],
    lag: Float[AnyArray, " d"],
) -> Float[AnyArray, "r r n"]:
    covariance, q = form.covariance(arrays), len(parameters)
    second = jax.hessian(lambda both: covariance(both[:q], both[q:], lag))
    at_pair = lambda own: second(jnp.concatenate([parameters, own]))  # noqa: E731
    return jax.vmap(at_pair, in_axes=1, out_axes=2)(numbers)


# ---------------------------------------------------------------------- tables


def is_dear(primitive: Kernel) -> bool:
    """Return whether a primitive is worth a table."""
    return isinstance(primitive, Cyclic) or (isinstance(primitive, Radial) and primitive.dear)


class ProfileTable:
    """A primitive at many squares, made from some.

    Parameters
    ----------
    primitive : Radial or Cyclic
    slots : list of Slot
        Those of its parameters that are learned, but for the lengthscales of a radial one.
    """

    def __init__(self, primitive: Radial | Cyclic, slots: list[Slot]) -> None:
        self._largest = primitive.period**2 / 4 if isinstance(primitive, Cyclic) else _LARGEST
        self._compiled = Compiled(primitive, tuple(slot._replace(primitive=0) for slot in slots))

    def interpolated(self, parameters: Array) -> Interpolated:
        """Return the function for some parameters."""
        top = np.log(self._largest)
        nodes = np.linspace(top - _RANGE, top, _NODES)
        squares = np.append(0.0, np.exp(nodes))
        k, by_parameter, by_square = self._compiled.derivatives(
            parameters, squares[None], np.zeros(1)
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
    at_zero: Array

    def at(self, squares: Array) -> tuple[Array, Array, Array]:
        """Return k (n,), its derivatives in parameters (q, n), and in the square (n,)."""
        apart = squares > 0
        safe = np.where(apart, squares, 1.0)
        ends = self.functions.x[[0, -1]]
        found = np.asarray(self.functions(np.clip(np.log(safe), *ends))).T
        found = np.where(apart, found, self.at_zero[:, None])
        return found[0], found[2:], found[1] / safe


def circle_squares(squares: Array, period: float) -> Array:
    """Return the squares of distances around a circle, of those of lags."""
    lags = np.sqrt(squares)
    return (lags - period * np.rint(lags / period)) ** 2
