r"""The posterior of lattice features of one component.

Derivatives and integrals over boxes: what posteriors need to know of them beforehand.

The coefficients z of the cosines, sines and covariates have the posterior

    z ~ N(D B⁻¹ b/σ², D B⁻¹ D),   D = diag(√a), a their prior variances

and f is their series plus an independent residual of variance k(0) − Σ mass. Everything here is in
the units of the statistics' targets.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import InputError
from orthogp.features import Lattice
from orthogp.features.lattice import residual_mass
from orthogp.inference.bounds import factorise, unwhiten, whiten
from orthogp.inference.domain import Domain, require_inside, warn_outside
from orthogp.inference.fourier_series import Blocks, SeriesBox
from orthogp.inference.moments import Moments
from orthogp.inference.predictive import Gaussian, PredictivePosterior
from orthogp.inference.residual import unseen_modes
from orthogp.inference.threads import one_thread
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice
from orthogp.statistics.nufft import evaluate_series


def box_integrals(
    lattice: FrequencyLattice, indices: NDArray[np.int64], lower: NDArray, upper: NDArray
) -> NDArray[np.complex128]:
    """Return ∫ e^{iω_t·(x−x₀)} dx over each box, (n, s)."""
    result = np.ones((len(lower), len(indices)), dtype=np.complex128)
    for d in range(lattice.num_dims):
        omega = indices[:, d] * lattice.spacing[d]
        low, high = (edge[:, d, None] - lattice.centre[d] for edge in (lower, upper))
        width, middle = high - low, (high + low) / 2
        # ∫ e^{iωx} = width · sinc · e^{iω·middle}: no division by zero, no cancellation.
        result *= width * np.sinc(omega * width / (2 * np.pi)) * np.exp(1j * omega * middle)
    return result


@in_double
def derivative_variance(kernel: Kernel, num_dims: int) -> NDArray[np.float64]:
    """Return the prior variance of the derivative along each column, (d,)."""
    return np.asarray(kernel.derivative_variance(num_dims))


def derivative_prior(kernel: Kernel, num_dims: int, dim: int) -> float:
    """Return the prior variance of the derivative along a column; `InputError` if there is none."""
    if not 0 <= dim < num_dims:
        raise InputError(f"dim must be a column of X, 0 to {num_dims - 1}, got {dim}.")
    variance = float(derivative_variance(kernel, num_dims)[dim])
    if not np.isfinite(variance):
        raise InputError(
            "Functions of this kernel have no derivative: use a smoother one, "
            "such as Matern32, Matern52 or RBF."
        )
    return variance


def check_boxes(lower: ArrayLike, upper: ArrayLike) -> tuple[NDArray, NDArray]:
    """Return the corners of boxes as arrays, (n, d) each."""
    lower = np.atleast_2d(np.asarray(lower, dtype=np.float64))
    upper = np.atleast_2d(np.asarray(upper, dtype=np.float64))
    finite = np.isfinite(lower).all() and np.isfinite(upper).all()
    if lower.shape != upper.shape or not finite or np.any(upper < lower):
        raise InputError("Boxes need finite lower ≤ upper, of the same shape (n, d).")
    return lower, upper


def largest_box_integral(
    lattice: FrequencyLattice, lower: NDArray, upper: NDArray
) -> NDArray[np.float64]:
    """Return the most that |∫ e^{iωx} dx|² over each box can be beyond the lattice's extent, (n,).

    Along an axis where ω lies beyond, the integral is at most 2/ω; the mildest axis decides.
    """
    largest = np.zeros(len(lower))
    for d in range(lattice.num_dims):
        edge = lattice.spacing[d] * (lattice.extent[d] + 1)
        others = np.delete(upper - lower, d, axis=1).prod(axis=1)
        axis_bound = (np.minimum(2 / edge, upper[:, d] - lower[:, d]) * others) ** 2
        largest = np.maximum(largest, axis_bound)
    return largest


(potri,) = get_lapack_funcs(("potri",), dtype=np.float64)

NEGLIGIBLE_SHARE = 1e-9


class FunctionDraws:
    """Functions drawn from the posterior, to be evaluated anywhere in the covered domain."""

    def __init__(
        self,
        coefficients: NDArray[np.complex128],
        slopes: NDArray[np.float64],
        posterior: Posterior,
        num_threads: int | None = None,
    ) -> None:
        self._coefficients = coefficients
        self._slopes = slopes
        self._posterior = posterior
        self._num_threads = num_threads

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        posterior = self._posterior
        X = np.asarray(X, dtype=np.float64)
        posterior.require_covered(X)
        num_draws, num_targets = self._coefficients.shape[:2]
        flat = self._coefficients.reshape(-1, *self._coefficients.shape[2:])
        values = evaluate_series(
            flat, posterior.features.lattice, X, num_threads=self._num_threads
        ).reshape(len(X), num_draws, num_targets)
        covariates = posterior.features.mean.covariates(X)
        return values + np.einsum("nq,spq->nsp", covariates, self._slopes)


class Solution(NamedTuple):
    """q(u): its mean (m, p), and L (m, m) with S⁻¹ = LLᵀ."""

    mean: NDArray[np.float64]
    chol: NDArray[np.float64]


class Posterior(PredictivePosterior):
    """q(f) for lattice features; see the module's docstring.

    Parameters
    ----------
    features, kernel, noise_variance
        The model.
    moments : Moments or Solution
        Its moments over the data, or what follows from them.
    domain : Domain
        Where the wrapped prior stands for the kernel; beyond it predictions are the prior's.
    num_threads : int, optional
        For the transforms; all available cores unless given.
    """

    def __init__(
        self,
        features: Lattice,
        kernel: Kernel,
        noise_variance: float,
        moments: Moments | Solution,
        domain: Domain,
        num_threads: int | None = None,
    ) -> None:
        if isinstance(moments, Moments):
            chol = factorise(moments.gram, noise_variance)
            mean = unwhiten(chol, whiten(chol, moments.projection)) / noise_variance
        else:
            mean, chol = moments
        self.features = features
        self.kernel = kernel
        self.noise_variance = noise_variance
        self.domain = domain
        self.num_threads = num_threads
        self.chol = chol
        #: The posterior mean of u, (m, p).
        self.mean = mean
        self._masses = features.masses(kernel)
        self._amplitudes = np.sqrt(features.squared_amplitudes(self._masses))
        self.residual = residual_mass(kernel, self._masses)
        self.prior_variance = self.residual + float(self._masses[0] + 2 * self._masses[1:].sum())

    # ------------------------------------------------------------------ means and variances

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X, by one non-uniform FFT."""
        num_targets = self.mean.shape[1]
        columns = self._evaluate(np.stack(self._predictive_series), X)
        mean = columns[:, 1 : 1 + num_targets]
        variance = columns[:, 0]
        if self.features.mean.slope_variance:
            covariates = self.features.mean.covariates(X)
            slopes = slice(2 * len(self.features.indices) - 1, None)
            mean = mean + covariates @ self._coefficient_mean[slopes]
            variance = variance + 2 * np.einsum(
                "nq,nq->n", covariates, columns[:, 1 + num_targets :]
            )
            variance += np.einsum(
                "nq,qr,nr->n", covariates, self._coefficient_covariance[slopes, slopes], covariates
            )
        # What no feature sees is a part of every variance: below it only rounding can lead.
        variance = np.maximum(variance, self.residual)
        outside = self.domain.outside(X)
        if outside is not None:
            warn_outside(int(outside.sum()), len(X), self.domain)
            mean = mean.copy()
            mean[outside], variance[outside] = self._predict_outside(X[outside])
        return Gaussian(mean, variance)

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance matrix of f at the rows of X, (n, n)."""
        X = np.asarray(X, dtype=np.float64)
        outside = self.domain.outside(X)
        inside = np.ones(len(X), dtype=bool) if outside is None else ~outside
        Phi = np.empty((len(X), self.features.num_features))
        Phi[inside] = self.features.design(X[inside]) * self._amplitudes
        independent = np.zeros((len(X), len(X)))
        prior = covariance_matrix(self.kernel, X[inside], self.features.lattice.period)
        mean_prior = self.features.mean
        covariates = mean_prior.covariates(X[inside])
        prior += mean_prior.offset_variance
        prior += mean_prior.slope_variance * covariates @ covariates.T
        independent[np.ix_(inside, inside)] = prior - Phi[inside] @ Phi[inside].T
        if outside is not None:
            warn_outside(int(outside.sum()), len(X), self.domain)
            Phi[outside], offset = self._features_outside(X[outside])
            independent[np.ix_(outside, outside)] = offset + covariance_matrix(
                self.kernel, X[outside]
            )
        whitened = whiten(self.chol, Phi.T)
        return independent + whitened.T @ whitened

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        X = np.asarray(X, dtype=np.float64)
        prior = derivative_prior(self.kernel, X.shape[1], dim)
        self.require_covered(X)
        s, num_targets = len(self.features.indices), self.mean.shape[1]
        omega = self.features.omegas[:, dim]
        blocks = Blocks.split(self._excess_covariance, s).differentiated(omega)
        series = [self._box.quadratic(self.features.indices, blocks)]
        series += [
            self._derivative_series(self._coefficient_mean[:, j], dim) for j in range(num_targets)
        ]
        slope_mean, slope_variance = np.zeros(num_targets), 0.0
        if self.features.mean.slope_variance:
            slope = 2 * s - 1 + dim
            width = self.features.mean.width[dim]
            cross = self._derivative_series(self._coefficient_covariance[:, slope] / width, dim)
            series[0] = series[0] + 2 * cross
            slope_mean = self._coefficient_mean[slope] / width
            slope_variance = self._coefficient_covariance[slope, slope] / width**2
        columns = self._evaluate(np.stack(series), X)
        variance = prior + columns[:, 0] + slope_variance
        unseen = prior - 2 * np.sum(self._masses * omega**2)
        return Gaussian(columns[:, 1:] + slope_mean, np.maximum(variance, max(unseen, 0.0)))

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each.

        The modes beyond the lattice's extent enter with their largest possible share, so the
        variance errs on the large side.
        """
        lower, upper = check_boxes(lower, upper)
        self.require_covered(lower)
        self.require_covered(upper)
        waves = box_integrals(self.features.lattice, self.features.indices, lower, upper)
        volume = np.prod(upper - lower, axis=1)
        weights = np.concatenate(
            [
                waves.real,
                waves.imag[:, 1:],
                volume[:, None] * self.features.mean.covariates((lower + upper) / 2),
            ],
            axis=1,
        )
        whitened = whiten(self.chol, (weights * self._amplitudes).T)
        indices, masses, beyond = self._unseen_modes
        unseen = box_integrals(self.features.lattice, indices, lower, upper)
        largest = largest_box_integral(self.features.lattice, lower, upper)
        variance = np.sum(whitened**2, axis=0) + 2 * np.abs(unseen) ** 2 @ masses + beyond * largest
        return Gaussian(weights @ self._coefficient_mean, variance)

    # ------------------------------------------------------------------ draws

    def draw(self, num_draws: int, rng: np.random.Generator) -> FunctionDraws:
        """Return functions drawn from q(f).

        The features are drawn from q(u), the lattice's other modes from the prior, of which they
        are independent. Modes beyond the lattice's extent, and those that together carry less than
        `NEGLIGIBLE_SHARE` of the prior variance, are left out.
        """
        m, num_targets = self.mean.shape
        noise = rng.standard_normal((m, num_draws * num_targets))
        u = unwhiten(self.chol, noise).reshape(m, num_draws, num_targets) + self.mean[:, None, :]
        z = self._amplitudes[:, None, None] * u
        s = len(self.features.indices)
        indices, masses = self._drawn_modes
        reach = np.abs(np.concatenate([self.features.indices, indices])).max(axis=0)
        box = SeriesBox(reach)
        coefficients = np.empty((num_draws, num_targets, *box.shape), dtype=np.complex128)
        for i in range(num_draws):
            for j in range(num_targets):
                sines = np.concatenate([[0.0], z[s : 2 * s - 1, i, j]])
                seen = box.function(self.features.indices, z[:s, i, j], sines)
                unseen = np.sqrt(2 * masses) * rng.standard_normal((2, len(masses)))
                coefficients[i, j] = seen + box.function(indices, *unseen)
        slopes = np.moveaxis(z[2 * s - 1 :], 0, -1)
        return FunctionDraws(coefficients, slopes, self, self.num_threads)

    # ------------------------------------------------------------------ parts

    def require_covered(self, X: NDArray) -> None:
        """Raise `InputError` unless all rows lie in the covered domain."""
        require_inside(self.domain, X)

    @cached_property
    def _box(self) -> SeriesBox:
        return SeriesBox(2 * np.abs(self.features.indices).max(axis=0))

    @cached_property
    def _coefficient_mean(self) -> NDArray[np.float64]:
        return self._amplitudes[:, None] * self.mean

    @cached_property
    def _coefficient_covariance(self) -> NDArray[np.float64]:
        with one_thread():
            inverse = potri(self.chol, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        return self._amplitudes[:, None] * inverse * self._amplitudes

    @cached_property
    def _excess_covariance(self) -> NDArray[np.float64]:
        """The posterior less the prior covariance of the coefficients."""
        return self._coefficient_covariance - np.diag(self._amplitudes**2)

    @cached_property
    def _predictive_series(self) -> list[NDArray[np.complex128]]:
        """The variance, the means and the covariances with the slopes."""
        s, indices = len(self.features.indices), self.features.indices
        variance = self._box.quadratic(indices, Blocks.split(self._excess_covariance, s))
        variance[tuple(self._box.reach)] += self.prior_variance + self.features.mean.offset_variance
        slopes = self._coefficient_covariance[:, 2 * s - 1 :]
        return [variance, *map(self._series, [*self._coefficient_mean.T, *slopes.T])]

    @cached_property
    def _unseen_modes(self) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        return unseen_modes(self.features, self.kernel)

    @cached_property
    def _drawn_modes(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The unseen modes, without the many whose masses add up to nothing."""
        indices, masses, _ = self._unseen_modes
        order = np.argsort(masses)
        dropped = np.cumsum(2 * masses[order]) <= NEGLIGIBLE_SHARE * self.prior_variance
        kept = np.sort(order[~dropped])
        return indices[kept], masses[kept]

    def _series(self, coefficients: NDArray[np.float64]) -> NDArray[np.complex128]:
        s = len(self.features.indices)
        sines = np.concatenate([[0.0], coefficients[s : 2 * s - 1]])
        return self._box.function(self.features.indices, coefficients[:s], sines)

    def _derivative_series(
        self, coefficients: NDArray[np.float64], dim: int
    ) -> NDArray[np.complex128]:
        s = len(self.features.indices)
        omega = self.features.omegas[:, dim]
        sines = np.concatenate([[0.0], coefficients[s : 2 * s - 1]])
        return self._box.function(self.features.indices, omega * sines, -omega * coefficients[:s])

    def _evaluate(self, series: NDArray[np.complex128], X: NDArray) -> NDArray[np.float64]:
        return evaluate_series(series, self.features.lattice, X, num_threads=self.num_threads)

    def _features_outside(self, X: NDArray) -> tuple[NDArray[np.float64], float]:
        """Return features of the mean function alone, and the offset's variance beyond them.

        Mode zero is the offset plus the process's own mean; given it, the offset is Gaussian.
        """
        offset_variance = self.features.mean.offset_variance
        Phi = np.zeros((len(X), self.features.num_features))
        s = len(self.features.indices)
        left = 0.0
        if offset_variance:
            Phi[:, 0] = offset_variance / self._amplitudes[0]
            left = offset_variance - Phi[0, 0] ** 2
        covariates = self.features.mean.covariates(X)
        Phi[:, 2 * s - 1 :] = covariates * np.sqrt(self.features.mean.slope_variance)
        return Phi, left

    def _predict_outside(self, X: NDArray) -> Gaussian:
        Phi, left = self._features_outside(np.asarray(X, dtype=np.float64))
        whitened = whiten(self.chol, Phi.T)
        variance = self.prior_variance + left + np.sum(whitened**2, axis=0)
        return Gaussian(Phi @ self.mean, variance)


def covariance_matrix(
    kernel: Kernel, X: NDArray, period: NDArray | None = None
) -> NDArray[np.float64]:
    """Return the prior covariance at the rows of X, wrapped if a period is given, (n, n)."""
    return np.array(_pairwise(kernel, X, period))


@in_double
@eqx.filter_jit
def _pairwise(
    kernel: Kernel, X: Float[AnyArray, "n d"], period: Float[AnyArray, " d"] | None
) -> Float[AnyArray, "n n"]:
    def covariance(lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        return kernel.k(lag) if period is None else kernel.wrapped(lag, jnp.asarray(period))

    points = jnp.asarray(X)
    return jax.lax.map(lambda x: jax.vmap(lambda other: covariance(x - other))(points), points)
