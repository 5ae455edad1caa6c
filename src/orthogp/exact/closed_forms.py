r"""Sums of kernels k = v ρ(s) whose derivatives NumPy takes.

Most fits are of such sums, s being the square of a lag in lengthscales: nothing is compiled, and
the logarithm of a variance moves k by v ρ itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.parameters import Slot
from orthogp.kernels import Kernel, On, Sum
from orthogp.kernels.stationary import Radial


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

    correlations: Callable[[NDArray[np.float64], int], list[NDArray[np.float64]] | None]
    variance: float
    place: int | None


class ClosedForm(NamedTuple):
    """A sum of terms, each of which has a row of squares."""

    terms: tuple[Term, ...]

    @classmethod
    def of(cls, kernel: Kernel, spans: dict[Slot, slice]) -> ClosedForm | None:
        """Return that of a kernel, or `None` if there is none.

        Parameters
        ----------
        spans : dict
            Where the vector holds each learned parameter.
        """
        if not _adds_up(kernel):
            return None
        terms = []
        for i, (primitive, _) in enumerate(kernel.primitives()):
            parameters = primitive.parameters()
            if not isinstance(primitive, Radial) or set(parameters) != {"variance", "lengthscale"}:
                return None
            if _owner(primitive, "at_square") is not _owner(primitive, "correlations"):
                # A subclass with another k inherits derivatives that are not its own.
                return None
            # Not bound by Equinox, whose methods take longer to call than a thousand entries.
            correlations = partial(type(primitive).correlations, primitive)
            if correlations(np.zeros(1), 0) is None:
                return None
            places = [span.start for slot, span in spans.items() if slot[:2] == (i, "variance")]
            variance = float(parameters["variance"])
            terms.append(Term(correlations, variance, places[0] if places else None))
        return cls(tuple(terms))

    def values(
        self, vector: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return k at squares (m, n)."""
        found = self._evaluate(vector, squares, 0)
        return sum((own[0] for own in found[1:]), start=found[0][0])

    def derivatives(
        self, vector: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return k (n,), its derivatives in learned log variances (q, n), and in squares (m, n)."""
        found = self._evaluate(vector, squares, 1)
        values = [own[0] for own in found]
        return (
            sum(values[1:], start=values[0]),
            np.array([*(values[j] for j in self._learned)]).reshape(-1, squares.shape[1]),
            np.array([own[1] for own in found]),
        )

    def second(
        self, vector: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
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

    def _evaluate(
        self, vector: NDArray[np.float64], squares: NDArray[np.float64], order: int
    ) -> list[list[NDArray[np.float64]]]:
        """Return v ρ(s) of each term, with its derivatives in s up to an order."""
        found = []
        for term, square in zip(self.terms, squares, strict=True):
            own = term.correlations(square, order)
            assert own is not None
            variance = term.variance if term.place is None else np.exp(vector[term.place])
            for values in own:
                values *= variance
            found.append(own)
        return found


def _owner(kernel: Kernel, method: str) -> type:
    """Return the class that defines a kernel's method."""
    return next(own for own in type(kernel).__mro__ if method in vars(own))


def _adds_up(kernel: Kernel) -> bool:
    """Return whether a kernel is the sum of its primitives."""
    if isinstance(kernel, On):
        return _adds_up(kernel.kernel)
    if isinstance(kernel, Sum):
        return all(_adds_up(term) for term in kernel.terms)
    return isinstance(kernel, Radial)
