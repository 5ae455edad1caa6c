r"""The posterior variance of a field, from draws and the preconditioner's own variances.

Draws need no rows. With z ~ N(0, P), the preconditioned Lanczos process started at P⁻¹z gives

    δ = f(P⁻¹B) P⁻¹z,   f(λ) = λ^{−1/2}
    cov(δ) = P^{−1/2} C⁻¹ P^{−1/2} = B⁻¹,   C = P^{−1/2} B P^{−1/2}

Their squares at a point average to the variance. The same noise sent through M⁻¹ alone gives a
field w of known variance m = M⁻¹(x, x) that is all but the same (correlations of 0.9 to 0.998 were
seen), so that with the regression of δ on w, of slope β and residual variance r,

    var(x) = r + β² m

has a small fraction of the error: the scatter of w is known and does not count.

The ratio r/m + β² varies less over space than the variance does, so that it is averaged over
neighbouring points. How far, independent draws tell: with R from some of them and V, V' unbiased
ratios of two more groups,

    E (R − V)(R − V') = (R − ratio)²

the squared error of R, what averaging blurs included. The width with the least at the data is
taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter

from orthogp.fields.evidence import PROBE_TOLERANCE, tridiagonal_eigen
from orthogp.fields.krylov import Solution, solve
from orthogp.fields.model import Model
from orthogp.fields.modes import Precision
from orthogp.fields.preconditioner import PreconditionerNoise
from orthogp.statistics import FrequencyLattice

# Bytes that the vectors of one batch of draws may take.
_BATCH_BYTES = 1.0e9
# More draws at once are no faster, though the factor is read once for all of a batch.
_MOST_AT_ONCE = 16
# What rounding may add to a draw, relative to it.
_NEGLIGIBLE = 1e-3
# Draws with fewer modes are more accurate: their errors meet in a few places, such as a gap.
_MANY_MODES = 1000
# The regression is averaged over neighbouring points with a Gaussian of one of these widths, in
# cells, as far as the grid is so many times wider.
_WIDTHS, _WIDER = (0.0, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0), 8


@dataclass(frozen=True)
class Draws:
    """Draws of the whitened modes, (s, …), and what the preconditioner makes of their noise.

    No preconditioner but the spatial one makes anything of it.
    """

    modes: NDArray
    companions: NDArray | None
    converged: bool

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Return the draws of several parts."""
        companions = [part.companions for part in parts if part.companions is not None]
        return cls(
            np.concatenate([part.modes for part in parts]),
            np.concatenate(companions) if companions else None,
            all(part.converged for part in parts),
        )


def draw_modes(
    model: Model,
    num_draws: int,
    rng: np.random.Generator,
    max_memory: float | None = None,
    *,
    tolerance: float = PROBE_TOLERANCE,
    precision: Precision = np.float64,
) -> Draws:
    """Return draws with covariance B⁻¹, as many at once as a third of the memory holds.

    Parameters
    ----------
    tolerance : float
        That of a solution with the same noise, per root of the number of modes that data determine.
    precision : type
        In single precision (np.float32) it takes two thirds of the time.
    """
    bytes_each = 2 * np.dtype(precision).itemsize
    one = bytes_each * int(np.prod(model.system.grid.shape))
    vectors = model.preconditioner.expected_iterations
    bytes_at_once = _BATCH_BYTES if max_memory is None else min(_BATCH_BYTES, max_memory / 3)
    batch = int(np.clip(bytes_at_once // (one * vectors), 1, _MOST_AT_ONCE))
    vectors = max(vectors, int(bytes_at_once // (one * batch)))
    parts = []
    for first in range(0, num_draws, batch):
        noise = model.preconditioner.noise(rng, min(batch, num_draws - first), precision)
        parts.append(draws_of(model, noise, tolerance, vectors))
    return Draws.joined(parts)


def ample_precision(model: Model) -> Precision:
    """Return the precision whose rounding does not show in draws.

    Draws are as large as the posterior is wide, however far data have moved it. Rounding adds up to
    ε √max(P) of them where data are missing (by experiment), and far less elsewhere.
    """
    largest = float(np.max(model.preconditioner.others))
    rounding = np.finfo(np.float32).eps * np.sqrt(largest)
    return np.float32 if rounding < _NEGLIGIBLE else np.float64


def draws_of(
    model: Model, noise: PreconditionerNoise, tolerance: float, most_vectors: int = 1000
) -> Draws:
    """Return what noise makes of the posterior, in the precision of the noise.

    A draw is a combination of the Lanczos vectors whose weights are known at the end. Up to so many
    vectors are kept until then; more are made once again.
    """
    right = model.preconditioner.sample(noise)
    norm = np.sqrt(max(model.determined, 1.0))
    accuracy = tolerance * norm * min(norm / np.sqrt(_MANY_MODES), 1.0)
    kept: list[tuple[NDArray[np.int64], NDArray]] = []
    seen = 0

    def keep(active: NDArray[np.int64], vectors: NDArray) -> None:
        nonlocal seen
        seen += 1
        if seen <= most_vectors:
            kept.append((active, vectors))
        else:
            kept.clear()

    solution = solve(model.system, model.preconditioner, right, tolerance=accuracy, observe=keep)
    weights = _lanczos_weights(solution, len(right)).astype(right.real.dtype)
    modes = np.zeros_like(right)
    position = iter(range(len(weights)))

    def combine(active: NDArray[np.int64], vectors: NDArray) -> None:
        own = weights[next(position), active]
        modes[active] += own.reshape(-1, *(1,) * (modes.ndim - 1)) * vectors

    if seen <= most_vectors:
        for active, vectors in kept:
            combine(active, vectors)
    else:
        solve(
            model.system,
            model.preconditioner,
            right,
            tolerance=accuracy,
            max_iterations=solution.iterations,
            observe=combine,
        )
    return Draws(modes, model.preconditioner.companions(noise), solution.converged)


def _lanczos_weights(solution: Solution, num_draws: int) -> NDArray[np.float64]:
    """Return how much of each vector P⁻¹r_k a draw has, (vectors, draws)."""
    out = np.zeros((len(solution.norms), num_draws))
    for i in range(num_draws):
        values, vectors = tridiagonal_eigen(solution, i)
        weights = vectors @ (vectors[0] / np.sqrt(values))
        scale = np.sqrt(solution.norms[0, i] / solution.norms[: len(weights), i])
        out[: len(weights), i] = weights * scale * (-1.0) ** np.arange(len(weights))
    return out


@dataclass(frozen=True)
class VarianceField:
    """The posterior variance of the modes' series, at any points.

    Attributes
    ----------
    splines : (…)
        Coefficients of cubic splines for the logarithm of the variance, on the grid's points.
    relative_error : float
        The error of the variance, relative to it, by root mean square: that of sampling, at the
        data, and that of the splines (half of what leaving out every second point brings).
    lattice : FrequencyLattice
        Gives the period and the centre.
    sampling_error : float
        The first part of the error, which more draws make smaller.
    """

    splines: NDArray[np.float64]
    relative_error: float
    lattice: FrequencyLattice
    sampling_error: float = 0.0

    @classmethod
    def estimate(cls, model: Model, draws: Draws) -> VarianceField:
        """Return the field that some draws give."""
        preconditioner = model.preconditioner
        grid, outer = preconditioner.grid, model.system.grid
        known = preconditioner.inverse_diagonal
        draw = grid.to_points(outer.extract(model.system.coefficients(draws.modes), grid))
        root = np.sqrt(known).astype(draw.dtype)
        companion = None if draws.companions is None else draws.companions / root
        pairs = _Pairs(draw / root, companion)
        others = model.masses / preconditioner.others
        beyond = outer.total(others) - grid.total(outer.extract(others, grid))
        # Unitary transforms: values of functions are those on the grid times √n.
        inside = known * grid.size
        width, by_draws = _best_width(pairs, inside / (inside + beyond), preconditioner.density)
        logs = np.log(inside * pairs.regressed(width).ratio + beyond)
        error = float(np.hypot(by_draws, _spline_error(logs)))
        splines = spline_filter(logs, mode="grid-wrap")
        return cls(splines, error, model.system.density.lattice, by_draws)

    def at(self, X: NDArray) -> NDArray[np.float64]:
        """Return the variance at the rows of X."""
        cells = np.array(self.splines.shape)
        position = (X - self.lattice.centre) / self.lattice.period * cells
        return np.exp(map_coordinates(self.splines, position.T, mode="grid-wrap", prefilter=False))


def _spline_error(logs: NDArray[np.float64]) -> float:
    """Return half the error of splines through every second point, by root mean square."""
    # An even number of points, so that every second one is periodic too.
    even = logs[tuple(slice(size - size % 2) for size in logs.shape)]
    coarse = even[tuple(slice(None, None, 2) for _ in logs.shape)]
    position = np.indices(even.shape) / 2
    inner = tuple(slice(2, size - 2) if size > 8 else slice(None) for size in even.shape)
    missed = map_coordinates(coarse, position, mode="grid-wrap") - even
    return float(np.sqrt(np.mean(missed[inner] ** 2))) / 2


class _Regression(NamedTuple):
    """β, and r + β²: the variance of draws whose companions have variance one, at every point."""

    slope: NDArray[np.float64]
    ratio: NDArray[np.float64]


@dataclass(frozen=True)
class _Pairs:
    """Draws at the grid's points, (s, …), and their companions, if any, of variance one."""

    draws: NDArray[np.float64]
    companions: NDArray[np.float64] | None

    def every_second(self, first: int) -> _Pairs:
        """Return half of the pairs."""
        others = None if self.companions is None else self.companions[first::2]
        return _Pairs(self.draws[first::2], others)

    def regressed(self, width: float) -> _Regression:
        """Return the regression at every point, averaged over its neighbours."""
        num = len(self.draws)

        def mean(products: NDArray[np.float64]) -> NDArray[np.float64]:
            return gaussian_filter(products.mean(axis=0), width, mode="wrap")

        own = mean(self.draws**2)
        if self.companions is None:
            return _Regression(np.zeros_like(own), own)
        cross, other = mean(self.draws * self.companions), mean(self.companions**2)
        slope = cross / other
        residual = np.maximum(own - slope * cross, 0.0) * num / max(num - 1, 1)
        return _Regression(slope, residual + slope**2)

    def ratio(self, slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an unbiased ratio at every point, the better the better the slope."""
        own = np.mean(self.draws**2, axis=0)
        if self.companions is None:
            return own
        return own - slope**2 * (np.mean(self.companions**2, axis=0) - 1)


def _best_width(
    pairs: _Pairs, share: NDArray[np.float64], density: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the width that leaves the least error at the data, and that error of the variance.

    `share` is what the draws' variance is of the whole.
    """
    halves = [pairs.every_second(i) for i in range(2)]
    # Relative to the geometric mean of what is averaged and what is not: relative to the former
    # alone, an average that is far too large would pass for an error of one.
    plain = [half.regressed(0.0).ratio for half in halves]
    weights = np.maximum(density, 0.0) * share**2
    weights /= np.sum(np.maximum(density, 0.0))
    best, least = _WIDTHS[0], np.inf
    for width in _WIDTHS:
        if width > _WIDTHS[0] and min(share.shape) < _WIDER * width:
            break
        found = [half.regressed(width) for half in halves]
        squares = 0.0
        for own, unaveraged, others in zip(found, plain, reversed(halves), strict=True):
            left = [own.ratio - others.every_second(i).ratio(own.slope) for i in range(2)]
            relative = left[0] * left[1] / (own.ratio * unaveraged)
            squares += float(np.sum(weights * relative)) / 2
        # Halves scatter twice as much as the whole, whose scatter is this.
        apart = (found[0].ratio - found[1].ratio) / (found[0].ratio + found[1].ratio)
        scatter = float(np.sum(weights * apart**2))
        squares = max(squares - scatter, scatter)
        if squares < least:
            best, least = width, squares
    return best, float(np.sqrt(least))
