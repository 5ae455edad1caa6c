r"""The posterior variance of a field, from draws and the variances of the preconditioner.

Draws need no rows. With z ~ N(0, P), the preconditioned Lanczos process started at P⁻¹z gives

    δ = f(P⁻¹B) P⁻¹z,   f(λ) = λ^{−1/2}
    cov(δ) = P^{−1/2} C⁻¹ P^{−1/2} = B⁻¹,   C = P^{−1/2} B P^{−1/2}

Their squares at a point average to the variance. The same noise sent through M⁻¹ alone gives a
field w of known variance m = M⁻¹(x, x) that is nearly the same (with correlations of 0.9 to 0.998),
so that with the regression of δ on w, of slope β and residual variance r,

    var(x) = r + β² m

has a small fraction of the error: the scatter of w is known and does not count.

The ratio r/m + β² varies less over space than the variance does, so that it is averaged over
neighbouring points. Independent draws give the best width: with R from some of them and V, V'
unbiased ratios of two more groups,

    E (R − V)(R − V') = (R − ratio)²

the squared error of R, its bias by averaging included. The width with the least error at the data
is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter

from orthogp.fields.evidence import PROBE_TOLERANCE
from orthogp.fields.model import Model, Solution, solve
from orthogp.fields.preconditioner import PreconditionerNoise
from orthogp.fields.system import Precision, Reals
from orthogp.statistics import FrequencyLattice

# Bytes for the vectors of one batch of draws.
_BATCH_BYTES = 1.0e9
# The most draws at once: more are no faster, though the factor is read once for all of a batch.
_MOST_AT_ONCE = 16
# The largest relative rounding error of a draw.
_NEGLIGIBLE = 1e-3
# The number of modes below which draws are more accurate: their errors accumulate in a few places,
# such as a gap.
_MANY_MODES = 1000
# The widths of Gaussians, in cells, with which the regression may be averaged over points.
_WIDTHS = (0.0, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
# The fewest points along an axis, in units of a width, for which it is tried.
_WIDER = 8


class Draws(NamedTuple):
    """Draws of the whitened modes, (s, …), and the fields of known variance from the same noise.

    Only the spatial preconditioner has these companions.
    """

    modes: NDArray
    companions: NDArray | None

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Return the draws of several parts."""
        companions = [part.companions for part in parts if part.companions is not None]
        modes = np.concatenate([part.modes for part in parts])
        return cls(modes, np.concatenate(companions) if companions else None)


def draw_modes(
    model: Model,
    num_draws: int,
    rng: np.random.Generator,
    max_memory: float | None = None,
    tolerance: float = PROBE_TOLERANCE,
    precision: Precision = np.float64,
) -> Draws:
    """Return draws with covariance B⁻¹, as many at once as a third of the memory holds.

    The tolerance is the error of a solution with the same noise, per root of the number of
    determined modes. Single precision (np.float32) takes two thirds of the time.
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
    """Return the precision whose rounding is negligible in draws.

    Draws are as large as the posterior is wide, however far data have moved its mean. Rounding adds
    up to ε √max(P) of them where data are missing (by experiment), and far less elsewhere.
    """
    largest = float(np.max(model.preconditioner.even))
    rounding = np.finfo(np.float32).eps * np.sqrt(largest)
    return np.float32 if rounding < _NEGLIGIBLE else np.float64


def draws_of(
    model: Model, noise: PreconditionerNoise, tolerance: float, most_vectors: int = 1000
) -> Draws:
    """Return the draws from some noise, in its precision.

    A draw is a combination of the Lanczos vectors whose weights are known at the end. At most
    `most_vectors` are kept until then; more are computed twice.
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

    solution = solve(model, right, tolerance=accuracy, observe=keep)
    weights = iter(_lanczos_weights(solution).astype(right.real.dtype))
    modes = np.zeros_like(right)

    def combine(active: NDArray[np.int64], vectors: NDArray) -> None:
        modes[active] += next(weights)[active].reshape(-1, *(1,) * (modes.ndim - 1)) * vectors

    if seen <= most_vectors:
        for active, vectors in kept:
            combine(active, vectors)
    else:
        most = solution.iterations
        solve(model, right, tolerance=accuracy, max_iterations=most, observe=combine)
    return Draws(modes, model.preconditioner.companions(noise))


def _lanczos_weights(solution: Solution) -> Reals:
    """Return the weight of each vector P⁻¹r_k in each draw, (vectors, draws)."""
    out = np.zeros_like(solution.norms)
    for i in range(out.shape[1]):
        values, vectors = solution.lanczos(i)
        weights = vectors @ (vectors[0] / np.sqrt(values))
        scale = np.sqrt(solution.norms[0, i] / solution.norms[: len(weights), i])
        out[: len(weights), i] = weights * scale * (-1.0) ** np.arange(len(weights))
    return out


@dataclass(frozen=True)
class VarianceField:
    """The posterior variance of the modes' series, by cubic splines for its logarithm on a grid.

    The lattice gives the period and the centre. `relative_error` is the root mean square relative
    error: the `sampling_error` at the data, which more draws reduce, and the error of the splines
    (half of the error of splines through every second point).
    """

    splines: Reals
    relative_error: float
    lattice: FrequencyLattice
    sampling_error: float = 0.0

    @classmethod
    def estimate(cls, model: Model, draws: Draws) -> VarianceField:
        """Return the field estimated from some draws."""
        preconditioner = model.preconditioner
        grid, outer = preconditioner.grid, model.system.grid
        known = preconditioner.inverse_diagonal
        draw = grid.to_points(outer.extract(model.system.coefficients(draws.modes), grid))
        root = np.sqrt(known).astype(draw.dtype)
        companion = None if draws.companions is None else draws.companions / root
        pairs = _Pairs(draw / root, companion)
        prior = model.masses / preconditioner.even
        beyond = outer.total(prior) - grid.total(outer.extract(prior, grid))
        # The transforms are unitary: values of functions are those on the grid times √n.
        inside = known * grid.size
        width, by_draws = _best_width(pairs, inside / (inside + beyond), preconditioner.density)
        logs = np.log(inside * pairs.regressed(width).ratio + beyond)
        error = float(np.hypot(by_draws, _spline_error(logs)))
        splines = spline_filter(logs, mode="grid-wrap")
        return cls(splines, error, model.system.density.lattice, by_draws)

    def at(self, X: NDArray) -> Reals:
        """Return the variance at the rows of X."""
        cells = np.array(self.splines.shape)
        position = (X - self.lattice.centre) / self.lattice.period * cells
        return np.exp(map_coordinates(self.splines, position.T, mode="grid-wrap", prefilter=False))


def _spline_error(logs: Reals) -> float:
    """Return half the error of splines through every second point, by root mean square."""
    # With an even number of points, every second one is periodic too.
    even = logs[tuple(slice(size - size % 2) for size in logs.shape)]
    coarse = even[tuple(slice(None, None, 2) for _ in logs.shape)]
    position = np.indices(even.shape) / 2
    inner = tuple(slice(2, size - 2) if size > 8 else slice(None) for size in even.shape)
    missed = map_coordinates(coarse, position, mode="grid-wrap") - even
    return float(np.sqrt(np.mean(missed[inner] ** 2))) / 2


class _Regression(NamedTuple):
    """At every point β, and r + β²: the variance of draws whose companions have variance one."""

    slope: Reals
    ratio: Reals


class _Pairs(NamedTuple):
    """Draws at the points of the grid, (s, …), and their companions of variance one, if any."""

    draws: Reals
    companions: Reals | None

    def every_second(self, first: int) -> _Pairs:
        """Return half of the pairs."""
        others = None if self.companions is None else self.companions[first::2]
        return _Pairs(self.draws[first::2], others)

    def regressed(self, width: float) -> _Regression:
        """Return the regression at every point, averaged over its neighbours."""
        num = len(self.draws)

        def mean(products: Reals) -> Reals:
            return gaussian_filter(products.mean(axis=0), width, mode="wrap")

        square = mean(self.draws**2)
        if self.companions is None:
            return _Regression(np.zeros_like(square), square)
        cross = mean(self.draws * self.companions)
        slope = cross / mean(self.companions**2)
        residual = np.maximum(square - slope * cross, 0.0) * num / max(num - 1, 1)
        return _Regression(slope, residual + slope**2)

    def ratio(self, slope: Reals) -> Reals:
        """Return an unbiased ratio at every point; a good slope reduces its error."""
        square = np.mean(self.draws**2, axis=0)
        if self.companions is None:
            return square
        return square - slope**2 * (np.mean(self.companions**2, axis=0) - 1)


def _best_width(pairs: _Pairs, share: Reals, density: Reals) -> tuple[float, float]:
    """Return the width with the least error at the data, and that error of the variance.

    `share` is the ratio of the variance of the draws to the whole variance.
    """
    halves = [pairs.every_second(i) for i in range(2)]
    # Errors are relative to the geometric mean of the averaged and the plain ratio: relative to the
    # former alone, an average that is far too large would have an error of one.
    plain = [half.regressed(0.0).ratio for half in halves]
    weights = np.maximum(density, 0.0) * share**2
    weights /= np.sum(np.maximum(density, 0.0))
    best, least = _WIDTHS[0], np.inf
    for width in _WIDTHS:
        if width > _WIDTHS[0] and min(share.shape) < _WIDER * width:
            break
        found = [half.regressed(width) for half in halves]
        squares = 0.0
        for fit, unaveraged, others in zip(found, plain, reversed(halves), strict=True):
            left = [fit.ratio - others.every_second(i).ratio(fit.slope) for i in range(2)]
            relative = left[0] * left[1] / (fit.ratio * unaveraged)
            squares += float(np.sum(weights * relative)) / 2
        # The halves have twice the scatter of the whole.
        apart = (found[0].ratio - found[1].ratio) / (found[0].ratio + found[1].ratio)
        scatter = float(np.sum(weights * apart**2))
        squares = max(squares - scatter, scatter)
        if squares < least:
            best, least = width, squares
    return best, float(np.sqrt(least))
