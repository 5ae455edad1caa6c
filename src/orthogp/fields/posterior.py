"""The posterior of a lattice with very many modes: solved for, drawn from, never written down.

Variances come from draws and from the variances of the preconditioner. Draws need no rows: with z ~
N(0, P), the preconditioned Lanczos process started at P⁻¹z gives

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter

from orthogp.errors import InputError
from orthogp.features import Lattice
from orthogp.features.base import prior_variance
from orthogp.fields.evidence import PROBE_TOLERANCE
from orthogp.fields.model import Model, ModePosterior, PreconditionerNoise, Solution, solve
from orthogp.fields.system import Modes, Precision, Reals, centred_from_half
from orthogp.inference.posterior import (
    box_integrals,
    check_boxes,
    derivative_prior,
    largest_box_integral,
)
from orthogp.inference.predictive import Gaussian, PredictivePosterior, refuse_covariates
from orthogp.rows import Domain, require_inside, warn_outside
from orthogp.statistics import FrequencyLattice
from orthogp.statistics.nufft import chunks, evaluate_series

#: The most points of a joint covariance: each takes a solution.
MOST_JOINT = 256
# The number of right-hand sides solved for at once.
_SOLVED_AT_ONCE = 16
# The largest error of a solution for a covariance, relative to the prior standard deviation.
_COVARIANCE_TOLERANCE = 1e-3


class IterativePosterior(PredictivePosterior):
    """q(f) with as many modes as the lattice has, the posterior mean being `modes`."""

    most_joint = MOST_JOINT

    def __init__(
        self,
        model: Model,
        modes: ModePosterior,
        variance: VarianceField,
        domain: Domain,
        num_threads: int,
    ) -> None:
        self.model = model
        self.modes = modes
        self.variance = variance
        self.kernel = model.kernel
        self.noise_variance = model.noise_variance
        self.residual = model.unresolved
        self.prior_variance = prior_variance(model.kernel)
        self.mean_prior = model.mean
        self.domain = domain
        self.num_threads = num_threads
        self._slope_sd = np.sqrt(model.mean.slope_variance)
        self._slopes = modes.slopes * self._slope_sd
        self._series = self._coefficients(modes.modes)

    @property
    def features(self) -> Lattice:
        """All modes of the lattice."""
        lattice = self.model.system.density.lattice
        return Lattice(lattice, lattice.half_indices(), self.mean_prior)

    def predict_mean(self, X: NDArray) -> Reals:
        """Return the mean of f at the rows of X, (n, p)."""
        X = np.asarray(X, dtype=np.float64)
        mean = self._evaluate(self._series, X) + self._trend(X) @ self._slopes
        outside = self.domain.outside(X)
        if outside is not None:
            warn_outside(int(outside.sum()), len(X), self.domain)
            mean[outside] = self._mean_outside(X[outside])
        return mean

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        X = np.asarray(X, dtype=np.float64)
        variance = self.variance.at(self.mean_prior.inputs(X)) + self.residual
        variance += np.sum(self._slope_deviations(X) ** 2, axis=0)
        outside = self.domain.outside(X)
        if outside is not None:
            variance[outside] = self._variance_outside(X[outside])
        return Gaussian(self.predict_mean(X), variance)

    def covariance(self, X: NDArray) -> Reals:
        """Return the covariance matrix of f at the rows of X, (n, n), by a solution for each."""
        X = np.asarray(X, dtype=np.float64)
        if len(X) > MOST_JOINT:
            raise InputError(
                f"With this many features a joint covariance is formed at up to {MOST_JOINT} "
                f"points, got {len(X)}: use draws (sample_y) or return_std=True."
            )
        self.require_covered(X)
        waves, grid = self._waves(X), self.model.system.grid
        solved = np.concatenate([self._solved(waves[i]) for i in chunks(len(X), _SOLVED_AT_ONCE)])
        covariance = np.array([grid.inner(wave[None], solved) for wave in waves])
        by_slopes = self._slope_deviations(X)
        covariance += by_slopes.T @ by_slopes
        inputs = self.mean_prior.inputs(X)
        # What no mode sees is the same at the same place, whatever the covariates.
        same = np.all(inputs[:, None] == inputs[None], axis=2)
        return (covariance + covariance.T) / 2 + self.residual * same

    def draw(self, num_draws: int, rng: np.random.Generator) -> FieldDraws:
        """Return functions drawn from q(f), without the modes beyond the lattice."""
        modes = self.modes
        num_targets, q = len(modes.modes), len(self._slopes)
        draws = draw_modes(self.model, num_draws * num_targets, rng).modes
        noise = rng.standard_normal((q, len(draws)))
        slopes = np.linalg.solve(modes.slope_factor.T, noise).T
        if q:
            draws = draws - np.tensordot(slopes, modes.covariate_modes, axes=(1, 0))
        shape = (num_draws, num_targets)
        slopes = self._slopes.T + (slopes * self._slope_sd).reshape(*shape, q)
        return FieldDraws(modes.modes + draws.reshape(*shape, *draws.shape[1:]), slopes, self)

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X, by a solution for each."""
        X = np.asarray(X, dtype=np.float64)
        prior = derivative_prior(self.kernel, len(self.domain.lower), dim)
        self.require_covered(X)
        grid, lattice = self.model.system.grid, self.model.system.density.lattice
        omega = grid.indices[..., dim] * lattice.spacing[dim]
        trend = np.zeros((len(X), len(self._slopes)))
        if self.mean_prior.kind == "linear":
            trend[:, dim] = 1 / self.mean_prior.width[dim]
        unseen = max(prior - grid.total(self.model.masses * omega**2), 0.0)
        return self._functionals(
            lambda part: -1j * omega * self._waves(X[part]), trend, np.full(len(X), unseen)
        )

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], by a solution for each.

        The modes beyond the lattice enter with their largest possible share, so the variance errs
        on the large side.
        """
        lower, upper = check_boxes(lower, upper)
        refuse_covariates(self.mean_prior)
        self.require_covered(lower)
        self.require_covered(upper)
        system, lattice = self.model.system, self.model.system.density.lattice
        indices = system.grid.indices.reshape(-1, lattice.num_dims)

        def waves(part: slice) -> Modes:
            integrals = box_integrals(lattice, indices, lower[part], upper[part])
            return system.amplitudes * integrals.conj().reshape(-1, *system.grid.shape)

        volume = np.prod(upper - lower, axis=1)
        trend = volume[:, None] * self._trend((lower + upper) / 2)
        unseen = self.residual * largest_box_integral(lattice, lower, upper)
        return self._functionals(waves, trend, unseen)

    def _functionals(
        self, waves: Callable[[slice], Modes], trend: Reals, unseen: Reals
    ) -> Gaussian:
        """Return mean and variance of linear functionals of f.

        `waves` gives some of them as functionals ⟨wave, x⟩ of the whitened modes x, `trend` (n, q)
        those of the covariates, `unseen` (n,) their variance by the modes beyond the lattice.
        """
        if len(trend) > MOST_JOINT:
            raise InputError(
                f"With this many features, derivatives and integrals are computed {MOST_JOINT} at "
                f"a time, got {len(trend)}: ask for them in pieces, or use draws (draw_functions)."
            )
        modes, grid = self.modes, self.model.system.grid
        means, variances = [], []
        for part in chunks(len(trend), _SOLVED_AT_ONCE):
            wave = waves(part)
            # The tolerance holds for functionals as large as a value of f.
            size = np.sqrt(grid.inner(wave, wave) / self.prior_variance)
            unit = wave / size.reshape(-1, *(1,) * grid.num_dims)
            variance = grid.inner(unit, self._solved(unit)) * size**2
            left = trend[part] * self._slope_sd - grid.inner(wave[:, None], modes.covariate_modes)
            variance += np.sum(np.linalg.solve(modes.slope_factor, left.T) ** 2, axis=0)
            means.append(grid.inner(wave[:, None], modes.modes) + trend[part] @ self._slopes)
            variances.append(variance)
        return Gaussian(np.concatenate(means), np.concatenate(variances) + unseen)

    def _solved(self, waves: Modes) -> Modes:
        """Return B⁻¹ of functionals as large as a value of f."""
        tolerance = _COVARIANCE_TOLERANCE * np.sqrt(self.prior_variance)
        return solve(self.model, waves, tolerance=tolerance).x

    def _waves(self, X: Reals) -> Modes:
        """Return the rows of X as functionals of the whitened modes: ⟨wave, x⟩ = f(X_n)."""
        system = self.model.system
        lattice = system.density.lattice
        phases = np.tensordot(
            system.grid.indices * lattice.spacing,
            self.mean_prior.inputs(X) - lattice.centre,
            axes=(-1, 1),
        )
        return system.amplitudes * np.exp(-1j * np.moveaxis(phases, -1, 0))

    def require_covered(self, X: NDArray) -> None:
        """Raise `InputError` unless all rows lie in the covered domain."""
        require_inside(self.domain, X)

    def _coefficients(self, whitened: Modes) -> NDArray[np.complex128]:
        """Return the series coefficients of whitened modes, (…, 2K+1, …)."""
        scaled = whitened * self.model.system.amplitudes
        return centred_from_half(scaled, self.model.system.grid.extent)

    def _evaluate(self, series: NDArray[np.complex128], X: NDArray) -> Reals:
        lattice = self.model.system.density.lattice
        inputs = self.mean_prior.inputs(X)
        return evaluate_series(series, lattice, inputs, num_threads=self.num_threads)

    def _trend(self, X: NDArray) -> Reals:
        """Return the covariates of the mean function, (n, q)."""
        return self.mean_prior.covariates(X)[:, : len(self._slopes)]

    def _slope_deviations(self, X: Reals) -> Reals:
        """Return the contribution of uncertain slopes to f at the rows of X, whitened, (q, n)."""
        if not len(self._slopes):
            return np.zeros((0, len(X)))
        trend = self._trend(X) * self._slope_sd
        trend -= self._evaluate(self._coefficients(self.modes.covariate_modes), X)
        return np.linalg.solve(self.modes.slope_factor, trend.T)

    @property
    def _offset_share(self) -> float:
        """The share of the offset in mode zero, which also holds the mean of the process."""
        zero = float(self.model.masses[(0,) * self.model.masses.ndim])
        return self.mean_prior.offset_variance / zero

    def _mean_outside(self, X: NDArray) -> Reals:
        """Return the posterior mean function, where the process itself is as under the prior."""
        zero = (slice(None), *(0,) * self.model.masses.ndim)
        constant = (self.modes.modes * self.model.system.amplitudes)[zero].real
        return self._offset_share * constant + self._trend(X) @ self._slopes

    def _variance_outside(self, X: NDArray) -> Reals:
        left = self.mean_prior.offset_variance * (1 - self._offset_share)
        trend = self._trend(X) * self._slope_sd
        whitened = np.linalg.solve(self.modes.slope_factor, trend.T)
        return self.prior_variance + left + np.sum(whitened**2, axis=0)


class FieldDraws:
    """Functions drawn from the posterior, to be evaluated anywhere in the covered domain."""

    def __init__(self, modes: Modes, slopes: Reals, posterior: IterativePosterior) -> None:
        self._modes = modes
        self._slopes = slopes
        self._posterior = posterior

    def __call__(self, X: NDArray) -> Reals:
        """Return the functions at the rows of X, (n, draws, p)."""
        posterior = self._posterior
        X = np.asarray(X, dtype=np.float64)
        posterior.require_covered(X)
        num_draws, num_targets = self._modes.shape[:2]
        flat = self._modes.reshape(-1, *self._modes.shape[2:])
        values = posterior._evaluate(posterior._coefficients(flat), X)
        trend = np.einsum("nq,spq->nsp", posterior._trend(X), self._slopes)
        return values.reshape(len(X), num_draws, num_targets) + trend


# ---------------------------------------------------------------------- variances by draws


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
