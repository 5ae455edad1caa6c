"""The posterior of a lattice with very many modes: solved for, drawn from, never written down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.fields.krylov import solve
from orthogp.fields.model import Model, ModePosterior
from orthogp.fields.modes import centred_from_half
from orthogp.fields.variance import VarianceField, draw_modes
from orthogp.inference.posterior import (
    box_integrals,
    check_boxes,
    derivative_prior,
    largest_box_integral,
)
from orthogp.inference.predictive import Gaussian, PredictivePosterior
from orthogp.rows import Domain, require_inside, warn_outside
from orthogp.statistics.nufft import chunks, evaluate_series

# The most points of a joint covariance: each takes a solution of its own.
MOST_JOINT = 256
_SOLVED_AT_ONCE = 16
_COVARIANCE_TOLERANCE = 1e-3


class IterativePosterior(PredictivePosterior):
    """q(f) with as many modes as the lattice has.

    Parameters
    ----------
    model : Model
    modes : ModePosterior
        The posterior mean.
    variance : VarianceField
    mean : MeanPrior
    domain : Domain
    num_threads : int
    """

    def __init__(
        self,
        model: Model,
        modes: ModePosterior,
        variance: VarianceField,
        mean: MeanPrior,
        domain: Domain,
        num_threads: int,
    ) -> None:
        self.model = model
        self.kernel = model.kernel
        self.noise_variance = model.noise_variance
        self.residual = model.unresolved
        self.prior_variance = prior_variance(model.kernel)
        self.mean_prior = mean
        self.domain = domain
        self.num_threads = num_threads
        self.variance = variance
        self._slopes = modes.slopes * np.sqrt(mean.slope_variance)
        self._modes = modes
        self._series = self._coefficients(modes.modes)

    @property
    def features(self) -> Lattice:
        """All modes of the lattice."""
        lattice = self.model.system.density.lattice
        return Lattice(lattice, lattice.half_indices(), self.mean_prior)

    @property
    def modes(self) -> ModePosterior:
        """The posterior mean of the modes and slopes."""
        return self._modes

    def predict_mean(self, X: NDArray) -> NDArray[np.float64]:
        """Return the mean of f at the rows of X, (n, p)."""
        X = np.asarray(X, dtype=np.float64)
        mean = self._evaluate(self._series, X) + self._trend(X) @ self._slopes
        outside = self.domain.outside(X)
        if outside is not None:
            warn_outside(int(outside.sum()), len(X), self.domain)
            mean[outside] = self._outside(X[outside])
        return mean

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        X = np.asarray(X, dtype=np.float64)
        variance = self.variance.at(X) + self.residual
        if len(self._slopes):
            trend = self._trend(X) * np.sqrt(self.mean_prior.slope_variance)
            trend -= self._evaluate(self._coefficients(self._modes.covariate_modes), X)
            whitened = np.linalg.solve(self._modes.slope_factor, trend.T)
            variance = variance + np.sum(whitened**2, axis=0)
        outside = self.domain.outside(X)
        if outside is not None:
            variance[outside] = self._variance_outside(X[outside])
        return Gaussian(self.predict_mean(X), variance)

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance matrix of f at the rows of X, (n, n), a solution for each."""
        X = np.asarray(X, dtype=np.float64)
        if len(X) > MOST_JOINT:
            raise InputError(
                f"With this many features a joint covariance is formed at up to {MOST_JOINT} "
                f"points, got {len(X)}: use draws (sample_y) or return_std=True."
            )
        self.require_covered(X)
        system, grid = self.model.system, self.model.system.grid
        waves = self._waves(X)
        solved = np.concatenate(
            [
                solve(
                    system,
                    self.model.preconditioner,
                    waves[i : i + _SOLVED_AT_ONCE],
                    tolerance=_COVARIANCE_TOLERANCE * np.sqrt(self.prior_variance),
                ).x
                for i in range(0, len(X), _SOLVED_AT_ONCE)
            ]
        )
        covariance = np.array([grid.inner(wave[None], solved) for wave in waves])
        if len(self._slopes):
            trend = self._trend(X) * np.sqrt(self.mean_prior.slope_variance)
            trend -= self._evaluate(self._coefficients(self._modes.covariate_modes), X)
            whitened = np.linalg.solve(self._modes.slope_factor, trend.T)
            covariance += whitened.T @ whitened
        return (covariance + covariance.T) / 2 + self.residual * np.eye(len(X))

    def draw(self, num_draws: int, rng: np.random.Generator) -> FieldDraws:
        """Return functions drawn from q(f), modes beyond the lattice left out."""
        num_targets = len(self._modes.modes)
        draws = draw_modes(self.model, num_draws * num_targets, rng).modes
        slopes = np.zeros((len(draws), len(self._slopes)))
        if len(self._slopes):
            noise = rng.standard_normal((len(self._slopes), len(draws)))
            slopes = np.linalg.solve(self._modes.slope_factor.T, noise).T
            draws = draws - np.tensordot(slopes, self._modes.covariate_modes, axes=(1, 0))
        shape = (num_draws, num_targets)
        modes = self._modes.modes + draws.reshape(*shape, *draws.shape[1:])
        slopes = slopes * np.sqrt(self.mean_prior.slope_variance)
        return FieldDraws(modes, self._slopes.T + slopes.reshape(*shape, -1), self)

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X, a solution for each."""
        X = np.asarray(X, dtype=np.float64)
        prior = derivative_prior(self.kernel, X.shape[1], dim)
        self.require_covered(X)
        grid, lattice = self.model.system.grid, self.model.system.density.lattice
        omega = grid.indices[..., dim] * lattice.spacing[dim]
        trend = np.zeros((len(X), len(self._slopes)))
        if len(self._slopes):
            trend[:, dim] = 1 / self.mean_prior.width[dim]
        unseen = max(prior - grid.total(self.model.masses * omega**2), 0.0)
        return self._functionals(
            lambda part: -1j * omega * self._waves(X[part]), trend, np.full(len(X), unseen)
        )

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], a solution for each.

        The modes beyond the lattice enter with their largest possible share, so the variance errs
        on the large side.
        """
        lower, upper = check_boxes(lower, upper)
        self.require_covered(lower)
        self.require_covered(upper)
        system, lattice = self.model.system, self.model.system.density.lattice
        indices = system.grid.indices.reshape(-1, lattice.num_dims)

        def waves(part: slice) -> NDArray[np.complex128]:
            integrals = box_integrals(lattice, indices, lower[part], upper[part])
            return system.amplitudes * integrals.conj().reshape(-1, *system.grid.shape)

        volume = np.prod(upper - lower, axis=1)
        trend = volume[:, None] * self._trend((lower + upper) / 2)
        unseen = self.residual * largest_box_integral(lattice, lower, upper)
        return self._functionals(waves, trend, unseen)

    def _functionals(
        self,
        waves: Callable[[slice], NDArray[np.complex128]],
        trend: NDArray[np.float64],
        unseen: NDArray[np.float64],
    ) -> Gaussian:
        """Return mean and variance of linear functionals of f.

        Parameters
        ----------
        waves : callable
            Gives some of them as functionals of the whitened modes x: ⟨wave, x⟩.
        trend : (n, q)
            Each of them, of the covariates of the mean function.
        unseen : (n,)
            Its variance by what the lattice leaves out.
        """
        if len(trend) > MOST_JOINT:
            raise InputError(
                f"With this many features, derivatives and integrals are computed {MOST_JOINT} at "
                f"a time, got {len(trend)}: ask for them in pieces, or use draws (draw_functions)."
            )
        system, grid = self.model.system, self.model.system.grid
        tolerance = _COVARIANCE_TOLERANCE * np.sqrt(self.prior_variance)
        means, variances = [], []
        for part in chunks(len(trend), _SOLVED_AT_ONCE):
            own = waves(part)
            # The tolerance is for functionals as large as a value of f.
            size = np.sqrt(grid.inner(own, own) / self.prior_variance)
            unit = own / size.reshape(-1, *(1,) * grid.num_dims)
            solved = solve(system, self.model.preconditioner, unit, tolerance=tolerance).x
            variance = grid.inner(unit, solved) * size**2
            mean = np.stack([grid.inner(own, x[None]) for x in self._modes.modes], axis=1)
            if len(self._slopes):
                left = trend[part] * np.sqrt(self.mean_prior.slope_variance)
                left -= np.stack([grid.inner(own, x) for x in self._modes.covariate_modes], axis=1)
                variance += np.sum(np.linalg.solve(self._modes.slope_factor, left.T) ** 2, axis=0)
            means.append(mean + trend[part] @ self._slopes)
            variances.append(variance)
        return Gaussian(np.concatenate(means), np.concatenate(variances) + unseen)

    def _waves(self, X: NDArray[np.float64]) -> NDArray[np.complex128]:
        """Return the rows of X as functionals of the whitened modes: ⟨wave, x⟩ = f(X_n)."""
        system = self.model.system
        lattice = system.density.lattice
        phases = np.tensordot(
            system.grid.indices * lattice.spacing, X - lattice.centre, axes=(-1, 1)
        )
        return system.amplitudes * np.exp(-1j * np.moveaxis(phases, -1, 0))

    def require_covered(self, X: NDArray) -> None:
        """Raise `InputError` unless all rows lie in the covered domain."""
        require_inside(self.domain, X)

    def _coefficients(self, whitened: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Return series coefficients of whitened modes, (…, 2K+1, …)."""
        scaled = whitened * self.model.system.amplitudes
        return centred_from_half(scaled, self.model.system.grid.extent)

    def _evaluate(self, series: NDArray[np.complex128], X: NDArray) -> NDArray[np.float64]:
        lattice = self.model.system.density.lattice
        return evaluate_series(series, lattice, X, num_threads=self.num_threads)

    def _trend(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariates of the mean function, (n, q)."""
        return self.mean_prior.covariates(X)[:, : len(self._slopes)]

    @property
    def _offset_share(self) -> float:
        """How much of mode zero, the offset plus the process's own mean, is the offset."""
        zero = float(self.model.masses[(0,) * self.model.masses.ndim])
        return self.mean_prior.offset_variance / zero

    def _outside(self, X: NDArray) -> NDArray[np.float64]:
        """Return what the mean function says where the rest is the prior's."""
        zero = (slice(None), *(0,) * self.model.masses.ndim)
        constant = (self._modes.modes * self.model.system.amplitudes)[zero].real
        return self._offset_share * constant + self._trend(X) @ self._slopes

    def _variance_outside(self, X: NDArray) -> NDArray[np.float64]:
        left = self.mean_prior.offset_variance * (1 - self._offset_share)
        trend = self._trend(X) * np.sqrt(self.mean_prior.slope_variance)
        whitened = np.linalg.solve(self._modes.slope_factor, trend.T)
        return self.prior_variance + left + np.sum(whitened**2, axis=0)


class FieldDraws:
    """Functions drawn from the posterior, to be evaluated anywhere in the covered domain."""

    def __init__(
        self,
        modes: NDArray[np.complex128],
        slopes: NDArray[np.float64],
        posterior: IterativePosterior,
    ) -> None:
        self._modes = modes
        self._slopes = slopes
        self._posterior = posterior

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        posterior = self._posterior
        X = np.asarray(X, dtype=np.float64)
        posterior.require_covered(X)
        num_draws, num_targets = self._modes.shape[:2]
        flat = self._modes.reshape(-1, *self._modes.shape[2:])
        values = posterior._evaluate(posterior._coefficients(flat), X)
        trend = np.einsum("nq,spq->nsp", posterior._trend(X), self._slopes)
        return values.reshape(len(X), num_draws, num_targets) + trend
