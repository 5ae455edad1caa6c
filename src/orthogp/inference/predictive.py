r"""What every posterior offers, and the posterior of any family of features.

With φ the features and the mean function's columns, B = LLᵀ and m = B⁻¹b/σ²:

    mean f(x) = φ(x)ᵀm,      var f(x) = k(0) − Σ_family φ_m(x)² + |L⁻¹φ(x)|²

For series on a lattice both are Fourier series, evaluated anywhere by one non-uniform FFT.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError, PrecisionError
from orthogp.features import Features, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import SeriesFeatures
from orthogp.inference.bounds import factorise, unwhiten, whiten
from orthogp.inference.fourier_series import SeriesGrid, as_complex
from orthogp.inference.moments import Moments
from orthogp.inference.parameters import Start
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.rows import Domain, warn_outside
from orthogp.statistics.nufft import chunks, evaluate_series

# The most points for which a joint covariance is formed.
_MOST_JOINT = 5000


class Gaussian(NamedTuple):
    """Means (n, p) and variances (n,), the latter shared by all targets."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


class Functions(Protocol):
    """Functions drawn from a posterior."""

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        ...


class PredictivePosterior(ABC):
    """A posterior q(f), in the units of the statistics' targets."""

    #: Whether f is a sum of components that are of interest by themselves.
    additive: bool = False
    #: The most points at which a joint covariance is formed.
    most_joint: ClassVar[int] = _MOST_JOINT

    noise_variance: float
    #: k(0), and what of it the features leave out on average.
    prior_variance: float
    residual: float

    @abstractmethod
    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""

    def predict_mean(self, X: NDArray) -> NDArray[np.float64]:
        """Return the mean of f at the rows of X, (n, p)."""
        return self.predict(X).mean

    @abstractmethod
    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance matrix of f at the rows of X, (n, n)."""

    def draw(self, num_draws: int, rng: np.random.Generator) -> Functions:
        """Return functions drawn from q(f), jointly at the points they are asked for."""
        return JointDraws(self, num_draws, int(rng.integers(2**31)))

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        raise InputError('Derivatives need the lattice: fit with features="lattice".')

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each."""
        raise InputError('Integrals need the lattice: fit with features="lattice".')


def refuse_covariates(mean: MeanPrior) -> None:
    """Raise `InputError` if an integral would need covariates, unknown between the rows."""
    if mean.num_covariates:
        raise InputError(
            "Integrals over boxes need the covariates at every point of a box, which only you "
            "know: average predictions at points with their covariates (predict_blocks)."
        )


class JointDraws:
    """Posterior functions, drawn jointly at whatever points they are asked for.

    Each call draws anew from the same random numbers: points that belong together go into one call.
    """

    def __init__(self, posterior: PredictivePosterior, num_draws: int, seed: int) -> None:
        self._posterior = posterior
        self._num_draws = num_draws
        self._seed = seed

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        if len(X) > _MOST_JOINT:
            raise InputError(
                f"Functions of these features are drawn at up to {_MOST_JOINT} points at once, got "
                f'{len(X)}: use features="lattice", whose functions are drawn once for all points.'
            )
        mean = self._posterior.predict(X).mean
        covariance = self._posterior.covariance(X)
        if not np.isfinite(covariance).all():
            raise PrecisionError(
                "The posterior covariance of these points is not finite, so that no function can "
                "be drawn: fit the model again."
            )
        eigenvalues, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
        rng = np.random.default_rng(self._seed)
        noise = rng.standard_normal((len(X), self._num_draws * mean.shape[1]))
        draws = (root @ noise).reshape(len(X), self._num_draws, mean.shape[1])
        return draws + mean[:, None, :]


_BLOCK_ROWS = 8192


@dataclass(eq=False)
class FamilyPosterior(PredictivePosterior):
    """q(f) for any features; see the module's docstring.

    Attributes
    ----------
    features : Features
        Placed; on a lattice if it is one of series.
    kernel, noise_variance, mean_prior
        The model.
    mean : (m, p)
        The mean of q(u) and, behind it, of the mean function's coefficients.
    chol : (m, m)
        L with S⁻¹ = LLᵀ, S the covariance of these coefficients.
    residual : float
        The prior variance that the features leave out, averaged over the data.
    domain : Domain
        Where the features stand for the kernel; beyond it predictions are the prior's.
    offset : float
        A known constant that is part of f.
    """

    features: Features
    kernel: Kernel
    noise_variance: float
    mean_prior: MeanPrior
    mean: NDArray[np.float64]
    chol: NDArray[np.float64]
    residual: float
    domain: Domain
    num_threads: int | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        self.prior_variance = prior_variance(self.kernel)
        self._series = None
        if isinstance(self.features, SeriesFeatures) and self.features.stationary:
            self._series = _PredictiveSeries(self, self.features)

    @classmethod
    def from_moments(
        cls,
        features: Features,
        at: Start,
        mean: MeanPrior,
        moments: Moments,
        domain: Domain,
        num_threads: int | None = None,
    ) -> FamilyPosterior:
        """Return the best q(u) for Gaussian noise, from the moments of all columns."""
        noise = at.noise_variance
        chol = factorise(moments.gram, noise)
        solution = unwhiten(chol, whiten(chol, moments.projection)) / noise
        residual = moments.residual_trace / max(moments.rows, 1.0)
        model = (features, at.kernel, noise, mean)
        return cls(*model, solution, chol, residual, domain, num_threads)

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        X = np.asarray(X, dtype=np.float64)
        outside = self.domain.outside(X)
        if outside is not None:
            warn_outside(int(outside.sum()), len(X), self.domain)
        if self._series is not None:
            mean, variance = self._series(X)
        else:
            mean, variance = np.empty((len(X), self.mean.shape[1])), np.empty(len(X))
            for rows in chunks(len(X), _BLOCK_ROWS):
                Phi, left_out = self._features(X[rows], outside, rows)
                mean[rows] = Phi @ self.mean
                variance[rows] = left_out + np.sum(whiten(self.chol, Phi.T) ** 2, axis=0)
        if outside is not None and self._series is not None:
            Phi, left_out = self._features(X[outside], np.ones(outside.sum(), dtype=bool))
            mean[outside] = Phi @ self.mean
            variance[outside] = left_out + np.sum(whiten(self.chol, Phi.T) ** 2, axis=0)
        return Gaussian(mean + self.offset, np.maximum(variance, 0.0))

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance matrix of f at the rows of X, (n, n)."""
        X = np.asarray(X, dtype=np.float64)
        outside = self.domain.outside(X)
        if outside is not None:
            warn_outside(int(outside.sum()), len(X), self.domain)
        Phi, _ = self._features(X, outside)
        whitened = whiten(self.chol, Phi.T)
        result = whitened.T @ whitened
        family = Phi[:, : self.features.num_features]
        inside = np.ones(len(X), dtype=bool) if outside is None else ~outside
        for part, period in ((inside, self._period), (~inside, None)):
            # Features that replace the prior leave nothing out where they are it.
            if part.any() and (self.features.projects or part is not inside):
                at = np.ix_(part, part)
                if part is inside and not self.features.stationary:
                    prior = self.features.process_covariance(self.kernel, X[part])
                else:
                    prior = covariance_matrix(self.kernel, X[part], period)
                result[at] += prior - family[part] @ family[part].T
        return result

    @property
    def _period(self) -> NDArray[np.float64] | None:
        """The period of the prior, if it is the wrapped one."""
        features = self.features
        if isinstance(features, SeriesFeatures) and features.wrapped:
            return features.lattice.period
        return None

    def _features(
        self, X: NDArray[np.float64], outside: NDArray[np.bool_] | None, rows: slice = slice(None)
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return all columns at the rows of X, (n, m), and the prior variance they leave out."""
        inside = np.ones(len(X), dtype=bool) if outside is None else ~outside[rows]
        m = self.features.num_features
        Phi = np.zeros((len(X), len(self.mean)))
        Phi[:, m:] = self.mean_prior.features(X)
        left_out = np.full(len(X), self.prior_variance)
        if inside.any():
            Phi[inside, :m] = self.features.evaluate(self.kernel, X[inside])
            if self.features.projects and self.features.stationary:
                left_out[inside] -= np.sum(Phi[inside, :m] ** 2, axis=1)
            else:
                left_out[inside] = self.features.residual_variance(self.kernel, X[inside])
        return Phi, np.maximum(left_out, 0.0)


class _PredictiveSeries:
    """Mean and variance of f as Fourier series, plus what the slopes of the mean function add."""

    def __init__(self, posterior: FamilyPosterior, features: SeriesFeatures) -> None:
        self._posterior = posterior
        self._lattice = features.lattice
        mean_prior = posterior.mean_prior
        m = features.num_features
        grid = SeriesGrid(features.indices)
        C = as_complex(features.coefficient_matrix(posterior.kernel), np.asarray(features.odd))
        has_offset = int(mean_prior.offset_variance > 0)
        if has_offset:
            offset = np.zeros((1, C.shape[1]), dtype=np.complex128)
            offset[0, 0] = np.sqrt(mean_prior.offset_variance)
            waves = np.concatenate([C, offset])
        else:
            waves = C
        s = m + has_offset
        factor = whiten(posterior.chol, np.eye(len(posterior.chol)))  # L⁻¹
        variance = grid.sum_of_squares(factor[:, :s] @ waves)
        if features.projects:
            variance += posterior.prior_variance - grid.sum_of_squares(C)
        inverse = factor.T @ factor
        functions = np.concatenate([posterior.mean[:s].T, inverse[s:, :s]]) @ waves
        self._series = np.stack(
            [grid.coefficients(variance)]
            + [grid.coefficients(values) for values in grid.values(functions)]
        )
        self._slope_mean = posterior.mean[s:]
        self._slope_covariance = inverse[s:, s:]

    def __call__(self, X: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return means (n, p) and variances (n,)."""
        posterior = self._posterior
        columns = evaluate_series(self._series, self._lattice, X, num_threads=posterior.num_threads)
        p = posterior.mean.shape[1]
        mean, variance = columns[:, 1 : 1 + p].copy(), columns[:, 0].copy()
        if len(self._slope_mean):
            slopes = np.sqrt(posterior.mean_prior.slope_variance)
            slopes = slopes * posterior.mean_prior.covariates(X)
            mean += slopes @ self._slope_mean
            variance += 2 * np.einsum("nq,nq->n", slopes, columns[:, 1 + p :])
            variance += np.einsum("nq,qr,nr->n", slopes, self._slope_covariance, slopes)
        return mean, variance


def covariance_matrix(
    kernel: Kernel, X: NDArray, period: NDArray | None = None
) -> NDArray[np.float64]:
    """Return the prior covariance at the rows of X, wrapped if a period is given, (n, n)."""
    return np.array(_pairwise(kernel, X, period))


def covariance_times(kernel: Kernel, X: NDArray, v: NDArray) -> NDArray[np.float64]:
    """Return K v, K the prior covariance at the rows of X, (n, p), in blocks of rows."""
    padded = np.pad(X, ((0, -len(X) % _BLOCK_COLUMNS), (0, 0)), mode="edge")
    blocks = padded.reshape(-1, _BLOCK_COLUMNS, X.shape[1])
    return np.concatenate([np.asarray(_products(kernel, block, X, v)) for block in blocks])[
        : len(X)
    ]


# The number of rows of a covariance matrix that are computed by one call.
_BLOCK_COLUMNS = 256


@in_double
@eqx.filter_jit
def _products(
    kernel: Kernel,
    points: Float[AnyArray, "b d"],
    X: Float[AnyArray, "n d"],
    v: Float[AnyArray, "n p"],
) -> Float[AnyArray, "b p"]:
    others, weights = jnp.asarray(X), jnp.asarray(v)

    def times(x: Float[AnyArray, " d"]) -> Float[AnyArray, " p"]:
        return jax.vmap(lambda other: kernel.k(x - other))(others) @ weights

    return jax.lax.map(times, jnp.asarray(points))


@in_double
@eqx.filter_jit
def _pairwise(
    kernel: Kernel, X: Float[AnyArray, "n d"], period: Float[AnyArray, " d"] | None
) -> Float[AnyArray, "n n"]:
    def covariance(lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        return kernel.k(lag) if period is None else kernel.wrapped(lag, jnp.asarray(period))

    points = jnp.asarray(X)
    return jax.lax.map(lambda x: jax.vmap(lambda other: covariance(x - other))(points), points)
