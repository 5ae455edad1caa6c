"""The posterior of a lattice with very many modes: solved for, drawn from, never written down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import Lattice
from orthogp.features.base import prior_variance
from orthogp.fields.model import Model, ModePosterior, solve
from orthogp.fields.system import Modes, Reals, centred_from_half
from orthogp.fields.variance import VarianceField, draw_modes
from orthogp.inference.posterior import (
    box_integrals,
    check_boxes,
    derivative_prior,
    largest_box_integral,
)
from orthogp.inference.predictive import Gaussian, PredictivePosterior, refuse_covariates
from orthogp.rows import Domain, require_inside, warn_outside
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
