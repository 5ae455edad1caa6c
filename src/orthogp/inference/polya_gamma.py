r"""The logistic likelihood as Gaussian sites: the Pólya-Gamma bound.

With labels y = ±1, κ = y/2 and any tilt c ≥ 0,

    −log(1 + e^{−yf}) ≥ κ f − θ f²/2 + θ c²/2 − log 2cosh(c/2),      θ = tanh(c/2)/(2c)

with equality at f = ±c. The right-hand side is quadratic in f: up to a constant it is the log
likelihood of a regression, log N(κ/θ | f, 1/θ), whose rows have precisions θ and targets κ/θ. So
the sums of weighted rows serve classification too, and the best tilts, c² = E f², take one series
at the data (Polson, Scott and Windle 2013; docs/mathematics.md).

Each update of the tilts is the exact maximum of a bound on the bound, so that none ever loses; but
their convergence is linear, which `Extrapolation` mends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.sites import LabelledRows, Marginals, Proposals, Sites

# How many earlier passes an extrapolation of the tilts looks back at, and how far (in logarithms of
# c²) it may leave the plain update.
_DEPTH, _FARTHEST = 5, 3.0


@dataclass(frozen=True)
class PolyaGammaSites(Sites):
    """Sites determined by the rows' tilts c ≥ 0, (n,)."""

    tilts: NDArray[np.float64]

    @classmethod
    def flat(cls, rows: LabelledRows) -> Self:
        """Return the sites of a function that is zero: θ = 1/4 everywhere."""
        return cls(rows, np.zeros(len(rows.X)))

    @property
    def precisions(self) -> NDArray[np.float64]:
        """θ, (n,), between zero and 1/4."""
        return site_precision(self.tilts)

    @property
    def slopes(self) -> NDArray[np.float64]:
        """κ, (n,)."""
        return self.rows.labels / 2

    def updated(self, f: Marginals) -> Self:
        """Return the sites with the best tilts, c² = E f²."""
        return replace(self, tilts=np.sqrt(f.mean**2 + f.variance))

    def expected_log_likelihood(self, f: Marginals) -> NDArray[np.float64]:
        """Return κ μ − θ (μ² + s²)/2 + θ c²/2 − log 2cosh(c/2), (n,)."""
        squares = f.mean**2 + f.variance
        return self.slopes * f.mean - self.precisions * squares / 2 + site_constant(self.tilts)


class Extrapolation(Proposals[PolyaGammaSites]):
    """Anderson's mixing of the updates of log c², with the plain update in reserve.

    What earlier pairs of updates tell of the map's derivative holds for kernels close by as well.
    """

    def __init__(self) -> None:
        self._last: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._changes: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    def begin(self) -> None:
        """Prepare for another kernel."""
        self._last = None

    def after(self, sites: PolyaGammaSites, better: PolyaGammaSites) -> Iterator[PolyaGammaSites]:
        """Yield the extrapolated tilts, then, as they went too far, the plain ones."""
        yield self.mixed(sites, better)
        self._last, self._changes = None, []
        yield better

    def mixed(self, sites: PolyaGammaSites, better: PolyaGammaSites) -> PolyaGammaSites:
        """Return the sites where the updates so far suggest that they end."""
        if not np.all(sites.tilts > 0):
            return better
        plain = 2 * np.log(better.tilts)
        move = plain - 2 * np.log(sites.tilts)
        if self._last is not None:
            change = (plain - self._last[0], move - self._last[1])
            self._changes = [*self._changes[1 - _DEPTH :], change]
        self._last = plain, move
        if not self._changes:
            return better
        # The combination of earlier updates that leaves the least move; repeated rows count often.
        steps, moves = (np.array(parts) for parts in zip(*self._changes, strict=True))
        counts = sites.rows.weights
        roots = np.ones(1) if counts is None else np.sqrt(counts)
        shares = np.linalg.lstsq((roots * moves).T, roots * move, rcond=1e-10)[0]
        mixed = np.clip(plain - shares @ steps, plain - _FARTHEST, plain + _FARTHEST)
        return replace(sites, tilts=np.exp(mixed / 2))


def site_precision(tilts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return θ = tanh(c/2)/(2c), which is 1/4 at c = 0."""
    half = np.asarray(tilts) / 2
    ratio = np.divide(np.tanh(half), half, out=np.ones_like(half), where=half > 0)
    return ratio / 4


def site_constant(tilts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return θ c²/2 − log 2cosh(c/2), without overflow."""
    tilts = np.asarray(tilts)
    return tilts * (np.tanh(tilts / 2) - 2) / 4 - np.log1p(np.exp(-tilts))
