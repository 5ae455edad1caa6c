r"""The posterior of lattice features: predictions, covariances, draws, derivatives, integrals.

The coefficients z of the cosines, sines and covariates have the posterior

    z ~ N(D B⁻¹ b/σ², D B⁻¹ D),   D = diag(√a), a their prior variances

and f is their series plus an independent residual of variance k(0) − Σ mass. Everything here is in
the units of the statistics' targets.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import InputError
from orthogp.features import Lattice
from orthogp.features.base import prior_variance
from orthogp.features.series import LatticeFeatures
from orthogp.inference.bounds import factorise, unseen_modes, unwhiten, whiten
from orthogp.inference.certificates import Guarantee, PolishedMean
from orthogp.inference.fourier_series import Blocks, SeriesBox
from orthogp.inference.moments import Moments
from orthogp.inference.predictive import (
    Gaussian,
    PredictivePosterior,
    covariance_matrix,
    refuse_covariates,
)
from orthogp.kernels import Kernel
from orthogp.precision import in_double, one_thread
from orthogp.rows import Domain, show, warn_outside
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import chunks, evaluate_series


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
# The largest number of integrals of modes over boxes that are formed at once.
_MOST_WEIGHTS = 2**23


def draw_coefficients(
    part: Lattice, kernel: Kernel, z: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.complex128]:
    """Return a component's series for drawn cosine and sine coefficients z (2s−2, draws, p).

    The modes that are no features come from the prior; of those together of less than
    `NEGLIGIBLE_SHARE` of its variance, and those beyond the lattice's extent, none are drawn.
    """
    indices, masses, _ = unseen_modes(part, kernel)
    order = np.argsort(masses)
    total = float(part.masses(kernel) @ part.multiplicity) + 2 * float(masses.sum())
    dropped = np.cumsum(2 * masses[order]) <= NEGLIGIBLE_SHARE * total
    kept = np.sort(order[~dropped])
    indices, masses = indices[kept], masses[kept]
    box = SeriesBox(np.abs(np.concatenate([part.indices, indices])).max(axis=0))
    cosines, sines = np.split(z, 2)
    _, num_draws, num_targets = z.shape
    series = np.empty((num_draws, num_targets, *box.shape), dtype=np.complex128)
    for i in range(num_draws):
        for j in range(num_targets):
            unseen = np.sqrt(2 * masses) * rng.standard_normal((2, len(masses)))
            series[i, j] = box.function(part.indices[1:], cosines[:, i, j], sines[:, i, j])
            series[i, j] += box.function(indices, *unseen)
    return series


class LatticeFunction(NamedTuple):
    """Functions in the cosines, sines and covariates of a lattice's modes; coefficients (m, p)."""

    modes: Lattice
    coefficients: NDArray[np.float64]

    def __call__(self, X: NDArray, num_threads: int | None = None) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, p), by one non-uniform FFT."""
        indices, s = self.modes.indices, len(self.modes.indices)
        box = SeriesBox(np.abs(indices).max(axis=0))
        sines = np.insert(self.coefficients[s : 2 * s - 1], 0, 0.0, axis=0)
        waves = zip(self.coefficients[:s].T, sines.T, strict=True)
        series = np.stack([box.function(indices, *pair) for pair in waves])
        inputs = self.modes.mean.inputs(X)
        values = evaluate_series(series, self.modes.lattice, inputs, num_threads=num_threads)
        return values + self.modes.mean.covariates(X) @ self.coefficients[2 * s - 1 :]

    def differentiated(self, dim: int) -> LatticeFunction:
        """Return the derivatives along a column."""
        s, omega = len(self.modes.indices), self.modes.omegas[:, dim, None]
        cosines, sines, slopes = np.split(self.coefficients, [s, 2 * s - 1])
        # (α cos θ + β sin θ)' = ωβ cos θ − ωα sin θ
        constant = _trend_derivative(self.modes, dim) @ slopes
        waves = [constant, omega[1:] * sines, -omega[1:] * cosines[1:], np.zeros_like(slopes)]
        return self._replace(coefficients=np.concatenate(waves))

    def integral(self, lower: NDArray, upper: NDArray) -> NDArray[np.float64]:
        """Return the functions' integrals over boxes, (n, p)."""
        refuse_covariates(self.modes.mean)
        parts = [
            integral_weights(self.modes, lower[part], upper[part]) @ self.coefficients
            for part in chunks(len(lower), max(1, _MOST_WEIGHTS // len(self.coefficients)))
        ]
        return np.concatenate(parts)


def _trend_derivative(features: LatticeFeatures, dim: int) -> NDArray[np.float64]:
    """Return the derivatives of the mean function's covariates along a column, (1, q)."""
    mean = features.mean
    derivative = np.zeros((1, mean.num_slopes))
    if mean.kind == "linear":
        derivative[0, dim] = 1 / mean.width[dim]
    return derivative


def integral_weights(modes: Lattice, lower: NDArray, upper: NDArray) -> NDArray[np.float64]:
    """Return the integrals over boxes of the cosines, sines and covariates of modes, (n, m)."""
    waves = box_integrals(modes.lattice, modes.indices, lower, upper)
    volume = np.prod(upper - lower, axis=1)
    slopes = volume[:, None] * modes.mean.covariates((lower + upper) / 2)
    return np.concatenate([waves.real, waves.imag[:, 1:], slopes], axis=1)


class FunctionDraws:
    """Functions drawn from the posterior, to be evaluated anywhere in the covered domain."""

    def __init__(
        self,
        constant: NDArray[np.float64],
        series: list[NDArray[np.complex128]],
        slopes: NDArray[np.float64],
        posterior: Posterior,
    ) -> None:
        self._constant = constant
        self._series = series
        self._slopes = slopes
        self._posterior = posterior

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        X = np.asarray(X, dtype=np.float64)
        posterior = self._posterior
        posterior.require_covered(X)
        values = np.broadcast_to(self._constant, (len(X), *self._constant.shape)).copy()
        features = posterior.features
        for part, columns, series in zip(
            features.parts, features.columns, self._series, strict=True
        ):
            flat = series.reshape(-1, *series.shape[2:])
            inputs = X[:, list(columns)]
            own = evaluate_series(flat, part.lattice, inputs, num_threads=posterior.num_threads)
            values += own.reshape(values.shape)
        if posterior.polished is not None:
            values += posterior.mean_function(X, posterior.num_threads)[:, None, :]
        return values + np.einsum("nq,qsp->nsp", features.mean.covariates(X), self._slopes)


class ComponentSums(NamedTuple):
    """The averages over the rows of a component's modes, Σ w_n e^{iω_t·x_n}/Σ w_n, |t_d| ≤ K_d."""

    lattice: FrequencyLattice
    averages: NDArray[np.complex128]

    @classmethod
    def of(cls, statistics: FourierStatistics) -> ComponentSums:
        """Return the averages that a component's statistics hold."""
        inner = tuple(slice(k, 3 * k + 1) for k in statistics.lattice.extent)
        return cls(statistics.lattice, statistics.point_sums[inner] / statistics.count)

    def at(self, indices: NDArray[np.int64]) -> NDArray[np.complex128]:
        """Return the averages at some indices."""
        return self.averages[tuple((indices + self.lattice.extent).T)]


class Shares(NamedTuple):
    """How the variance of each target over the rows comes about, relative to it.

    Attributes
    ----------
    components : (j, p)
        The variance of each component's posterior mean.
    residual : (p,)
        The mean square of what the posterior mean leaves; zero where the shares are those of a
        latent function, which is no target.
    """

    components: NDArray[np.float64]
    residual: NDArray[np.float64]


class Solution(NamedTuple):
    """q(u), and what the rows say of several components.

    Attributes
    ----------
    mean : (m, p)
    chol : (m, m)
        L with S⁻¹ = LLᵀ, S the covariance of q(u).
    sums : tuple of ComponentSums
        The averages that components are centred by; the whole function does without.
    shares : Shares, optional
        How much of the variance each component explains.
    polished : PolishedMean, optional
        A better mean, over more modes, for predictions; q(u) gives their variances.
    guarantee : Guarantee, optional
        What bounds the errors of means and variances.
    """

    mean: NDArray[np.float64]
    chol: NDArray[np.float64]
    sums: tuple[ComponentSums, ...] = ()
    shares: Shares | None = None
    polished: PolishedMean | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def of(cls, moments: Moments, noise_variance: float) -> Solution:
        """Return the best q(u) for Gaussian noise: S⁻¹ = B, and the mean B⁻¹b/σ²."""
        chol = factorise(moments.gram, noise_variance)
        return cls(unwhiten(chol, whiten(chol, moments.projection)) / noise_variance, chol)


class Posterior(PredictivePosterior):
    """q(f) for lattice features; see the module's docstring.

    Parameters
    ----------
    features, kernel, noise_variance
        The model.
    moments : Moments or Solution
        Its moments over the data, or what follows from them.
    domain : Domain
        Where the wrapped priors stand for the kernels. A component beyond it is as under the prior,
        while the others are not concerned.
    num_threads : int, optional
        For the transforms; all available cores unless given.
    """

    def __init__(
        self,
        features: LatticeFeatures,
        kernel: Kernel,
        noise_variance: float,
        moments: Moments | Solution,
        domain: Domain,
        num_threads: int | None = None,
    ) -> None:
        if isinstance(moments, Moments):
            moments = Solution.of(moments, noise_variance)
        self.features = features
        self.kernel = kernel
        self.kernels = features.kernels(kernel)
        self.noise_variance = noise_variance
        self.domain = domain
        self.num_threads = num_threads
        self.chol = moments.chol
        #: The posterior mean of u, (m, p).
        self.mean = moments.mean
        self.polished, self.guarantee = moments.polished, moments.guarantee
        self._masses = features.masses(kernel)
        self._amplitudes = np.sqrt(features.squared_amplitudes(self._masses))
        self._zero_masses = np.array([self._masses[own.start] for own in features.mass_slices])
        #: k_j(0), and what of it the features leave out, for each component.
        self.prior_variances = np.array([prior_variance(own) for own in self.kernels])
        seen = [features.multiplicity[at] @ self._masses[at] for at in features.mass_slices]
        self.residuals = np.maximum(self.prior_variances - np.array(seen), 0.0)
        self.prior_variance = float(self.prior_variances.sum())
        self.residual = float(self.residuals.sum())
        #: The columns along which each component's domain ends.
        self._bounded = [list(columns) for columns in features.columns]

    def over(self, domain: Domain, num_threads: int | None = None) -> Self:
        """Return the same posterior over another domain, with all that has been computed of it."""
        posterior = copy(self)
        posterior.domain, posterior.num_threads = domain, num_threads
        return posterior

    # ------------------------------------------------------------------ means and variances

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X, by non-uniform FFTs."""
        columns = self._evaluate(np.stack(self._joint_series), X)
        mean, variance = self.mean_function(X, self.num_threads), columns[:, 0]
        if self.features.mean.slope_variance:
            covariates = self.features.mean.covariates(X)
            slopes = slice(2 * len(self._part.indices) - 1, None)
            variance = variance + 2 * np.einsum("nq,nq->n", covariates, columns[:, 1:])
            variance += np.einsum(
                "nq,qr,nr->n", covariates, self._coefficient_covariance(slopes), covariates
            )
        # What no feature sees is a part of every variance: below it only rounding can lead.
        variance = np.maximum(variance, self.residual)
        outside = self._outside(X)
        if outside is not None:
            beyond = outside.any(axis=1)
            Phi, extra = self._features(np.asarray(X, dtype=np.float64)[beyond], outside[beyond])
            mean[beyond] = Phi @ self.mean
            variance[beyond] = extra + np.sum(whiten(self.chol, Phi.T) ** 2, axis=0)
        return Gaussian(mean, variance)

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance matrix of f at the rows of X, (n, n)."""
        X = np.asarray(X, dtype=np.float64)
        outside = self._outside(X)
        Phi, _ = self._features(X, outside)
        whitened = whiten(self.chol, Phi.T)
        total = whitened.T @ whitened
        # All prior covariance that the features do not stand for.
        total -= Phi @ Phi.T
        total += self.features.mean.offset_variance
        covariates = self.features.mean.covariates(X)
        total += self.features.mean.slope_variance * covariates @ covariates.T
        for j, (own, columns) in enumerate(zip(self.kernels, self.features.columns, strict=True)):
            inputs = X[:, list(columns)]
            inside = np.ones(len(X), dtype=bool) if outside is None else ~outside[:, j]
            period = self.features.parts[j].lattice.period
            total[np.ix_(inside, inside)] += covariance_matrix(own, inputs[inside], period)
            if not inside.all():
                total[np.ix_(~inside, ~inside)] += covariance_matrix(own, inputs[~inside])
        return total

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        X = np.asarray(X, dtype=np.float64)
        prior = derivative_prior(self.kernel, self._part.lattice.num_dims, dim)
        self.require_covered(X)
        s, omega = len(self._part.indices), self._part.omegas[:, dim]
        blocks = Blocks.split(self._excess_covariance, s).differentiated(omega)
        series = self._box.quadratic(self._part.indices, blocks)
        variance = prior + self._evaluate(series[None], X)[:, 0]
        if self.features.mean.kind == "linear":
            slope, width = 2 * s - 1 + dim, self.features.mean.width[dim]
            covariance = self._coefficient_covariance(slice(None))[:, slope : slope + 1] / width
            # Twice the covariance with the slope, whose variance is then counted twice.
            cross = LatticeFunction(self._part, covariance).differentiated(dim)
            variance += 2 * cross(X, self.num_threads)[:, 0] - covariance[slope, 0] / width
        unseen = prior - 2 * np.sum(self._masses * omega**2)
        mean = self.mean_function.differentiated(dim)(X, self.num_threads)
        return Gaussian(mean, np.maximum(variance, max(unseen, 0.0)))

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each.

        The modes beyond the lattice's extent enter with their largest possible share, so the
        variance errs on the large side.
        """
        lower, upper = check_boxes(lower, upper)
        refuse_covariates(self.features.mean)
        self.require_covered(lower)
        self.require_covered(upper)
        weights = integral_weights(self._part, lower, upper)
        whitened = whiten(self.chol, (weights * self._amplitudes).T)
        indices, masses, beyond = self._unseen_modes
        unseen = box_integrals(self._part.lattice, indices, lower, upper)
        largest = largest_box_integral(self._part.lattice, lower, upper)
        variance = np.sum(whitened**2, axis=0) + 2 * np.abs(unseen) ** 2 @ masses + beyond * largest
        return Gaussian(self.mean_function.integral(lower, upper), variance)

    # ------------------------------------------------------------------ draws

    def draw(self, num_draws: int, rng: np.random.Generator) -> FunctionDraws:
        """Return functions drawn from q(f), to be evaluated anywhere in the covered domain."""
        m, num_targets = self.mean.shape
        noise = rng.standard_normal((m, num_draws * num_targets))
        u = unwhiten(self.chol, noise).reshape(m, num_draws, num_targets)
        if self.polished is None:
            u += self.mean[:, None, :]
        z = self._amplitudes[:, None, None] * u
        coefficients = [
            draw_coefficients(part, own, z[at], rng)
            for part, own, at in zip(
                self.features.parts, self.kernels, self.features.slices, strict=True
            )
        ]
        slopes = z[self.features.num_features - self.features.num_slopes :]
        return FunctionDraws(z[0], coefficients, slopes, self)

    # ------------------------------------------------------------------ parts

    def require_covered(self, X: NDArray) -> None:
        """Raise `InputError` unless all rows lie in the covered domain."""
        outside = self._where_outside(X)
        if outside is not None:
            raise InputError(
                f"{int(outside.any(axis=1).sum())} of {len(X)} points lie outside the covered "
                f"domain {show(self.domain)}: fit with a larger `domain`."
            )

    def _where_outside(self, X: NDArray) -> NDArray[np.bool_] | None:
        """Return at which rows which components are outside their domain, (n, j)."""
        if self.domain.outside(X) is None:
            return None
        inputs = X[:, : len(self.domain.lower)]
        beyond = (self.domain.lower > inputs) | (self.domain.upper < inputs)
        outside = np.stack([beyond[:, own].any(axis=1) for own in self._bounded], axis=1)
        return outside if outside.any() else None

    def _outside(self, X: NDArray, only: int | None = None) -> NDArray[np.bool_] | None:
        outside = self._where_outside(X)
        if outside is None:
            return None
        concerned = outside.any(axis=1) if only is None else outside[:, only]
        if concerned.any():
            warn_outside(int(concerned.sum()), len(X), self.domain)
        return outside

    def _features(
        self, X: NDArray, outside: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
        """Return the features at rows of X, and the variance that is independent of them.

        A component outside has no features there. The constant feature is the offset plus all
        components' own constants; given it, those of the offset and the components inside are
        Gaussian.
        """
        Phi = self.features.design(X) * self._amplitudes
        if outside is None:
            return Phi, self.residual
        for j, own in enumerate(self.features.slices):
            Phi[outside[:, j], own] = 0.0
        inside = self.features.mean.offset_variance + ~outside @ self._zero_masses
        Phi[:, 0] = inside / self._amplitudes[0] if self._amplitudes[0] > 0 else 0.0
        left = inside - Phi[:, 0] ** 2
        return Phi, left + ~outside @ self.residuals + outside @ self.prior_variances

    @cached_property
    def _coefficient_mean(self) -> NDArray[np.float64]:
        return self._amplitudes[:, None] * self.mean

    @cached_property
    def _inverse(self) -> NDArray[np.float64]:
        """B⁻¹."""
        with one_thread():
            inverse = potri(self.chol, lower=1)[0]
        return np.tril(inverse) + np.tril(inverse, -1).T

    def _coefficient_covariance(self, own: slice) -> NDArray[np.float64]:
        amplitudes = self._amplitudes[own]
        return amplitudes[:, None] * self._inverse[own, own] * amplitudes

    @property
    def _part(self) -> Lattice:
        """The modes of a joint model's only component."""
        return self.features.parts[0]

    @cached_property
    def _box(self) -> SeriesBox:
        return SeriesBox(2 * np.abs(self._part.indices).max(axis=0))

    @cached_property
    def _excess_covariance(self) -> NDArray[np.float64]:
        """The posterior less the prior covariance of the coefficients."""
        return self._coefficient_covariance(slice(None)) - np.diag(self._amplitudes**2)

    @cached_property
    def mean_function(self) -> LatticeFunction:
        """The posterior mean of a joint model."""
        if self.polished is None:
            return LatticeFunction(self._part, self._coefficient_mean)
        modes, mean = self.polished
        amplitudes = np.sqrt(modes.squared_amplitudes(modes.masses(self.kernel)))
        return LatticeFunction(modes, amplitudes[:, None] * mean)

    @cached_property
    def _joint_series(self) -> list[NDArray[np.complex128]]:
        """The variance, and the covariances with the slopes."""
        s, indices = len(self._part.indices), self._part.indices
        variance = self._box.quadratic(indices, Blocks.split(self._excess_covariance, s))
        variance[tuple(self._box.reach)] += self.prior_variance + self.features.mean.offset_variance
        slopes = self._coefficient_covariance(slice(None))[:, 2 * s - 1 :]
        return [variance, *map(self._series, slopes.T)]

    @cached_property
    def _unseen_modes(self) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        return unseen_modes(self._part, self.kernel)

    def _series(self, coefficients: NDArray[np.float64]) -> NDArray[np.complex128]:
        s = len(self._part.indices)
        sines = np.concatenate([[0.0], coefficients[s : 2 * s - 1]])
        return self._box.function(self._part.indices, coefficients[:s], sines)

    def _evaluate(self, series: NDArray[np.complex128], X: NDArray) -> NDArray[np.float64]:
        inputs = self.features.mean.inputs(X)
        return evaluate_series(series, self._part.lattice, inputs, num_threads=self.num_threads)
