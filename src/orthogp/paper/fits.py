r"""Fits of the paper's features: the best q(u), the collapsed bound, stochastic training.

With φ the features and d(x) = k(0) − Σ φ_m(x)² the variance that they leave out, any q(u) gives

    mean f(x) = φ(x)ᵀm,      var f(x) = d(x) + φ(x)ᵀ S φ(x)
    ELBO = Σ_n [−½ log 2πσ² − ((y_n − mean f(x_n))² + var f(x_n))/(2σ²)] − KL(N(m, S)‖N(0, I))

In the collapsed bound q(u) is at its optimum. With Φ the features of the rows, B = I + ΦᵀΦ/σ² and
c = L⁻¹Φᵀy/σ for B = LLᵀ, it is

    −N/2 log 2πσ² − ½ log|B| − (yᵀy − cᵀc)/(2σ²) − (N k(0) − tr ΦᵀΦ)/(2σ²)

for a dense S, and with Σ_m log B_mm in place of log|B| for a diagonal one. The features are those
of the paper, in their closed form or by quadrature, without a periodic prior.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features import SpectralFeatures, Trig
from orthogp.features.base import prior_variance
from orthogp.features.hermite import Eigenfunction, traced_members
from orthogp.features.inducing import covariance_matrix
from orthogp.features.placement import gauss_panels
from orthogp.features.series import safe_sqrt
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import RBF, Kernel
from orthogp.learning.optimise import Budget, search
from orthogp.precision import AnyArray, in_double
from orthogp.stochastic.bound import StochasticModel, train_stochastic
from orthogp.stochastic.normals import Covariance, DenseNormal, factorised_posterior
from orthogp.stochastic.training import TrainingSettings

# The smallest variance, lengthscale, noise variance and scale; no sensible value is near.
_LOWER = (1e-3, 1e-2, 1e-7, 0.1)
# The largest variance, lengthscale and noise variance; no sensible value is near.
_UPPER = (1e3, 20.0, 10.0)
# The largest standard deviation of the inputs that Hermite features stand for.
_LARGEST_SD = 100.0
# The largest a for few features; it bounds the number of quadrature nodes.
_LARGEST_A = 12.0
# The factor of which the number of quadrature nodes is a multiple.
_NODES_MULTIPLE = 128
# The largest number of iterations of L-BFGS.
_MAX_ITERATIONS = 300


# ---------------------------------------------------------------------- rows and q(u)


def draw_targets(
    kernel: Kernel, noise_variance: float, X: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return targets drawn from the model at the rows of X, (n,)."""
    K = np.asarray(covariance_matrix(kernel, X, X)) + 1e-10 * np.eye(len(X))
    f = np.linalg.cholesky(K) @ rng.standard_normal(len(X))
    return f + np.sqrt(noise_variance) * rng.standard_normal(len(X))


class Approximation(NamedTuple):
    """q(u) = N(m, S) of some features: what stochastic training estimates."""

    features: SpectralFeatures
    kernel: Kernel
    noise_variance: float
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def collapsed(
        cls, start: StochasticModel, X: NDArray[np.float64], y: NDArray[np.float64]
    ) -> Self:
        """Return the best q(u) of a model, in closed form."""
        features, kernel = start.features, start.kernel
        moments = moments_from_rows(features, kernel, X, y)
        size = features.num_features if start.covariance == "dense" else 1
        best = factorised_posterior(moments, start.noise_variance, size)
        return cls(features, kernel, start.noise_variance, best.mean[:, 0], best.covariance)

    def predict(self, X: NDArray[np.float64]) -> Gaussian:
        """Return mean and variance of f at the rows of X, each (n,)."""
        Phi = self.features.evaluate(self.kernel, X)
        left_out = np.maximum(prior_variance(self.kernel) - np.sum(Phi**2, axis=1), 0.0)
        return Gaussian(Phi @ self.mean, left_out + np.sum(Phi @ self.covariance * Phi, axis=1))

    @in_double
    def elbo(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        """Return the evidence lower bound."""
        mean, variance = self.predict(X)
        squares = (y - mean) ** 2 + variance
        data_fit = -0.5 * np.sum(
            np.log(2 * np.pi * self.noise_variance) + squares / self.noise_variance
        )
        return float(data_fit - DenseNormal.of(self.mean, self.covariance).divergence())


# ---------------------------------------------------------------------- the collapsed bound


class Hyperparameters(NamedTuple):
    """Those of the kernel and the likelihood, and the one of the features: a, or the inputs' sd."""

    variance: float
    lengthscale: float
    noise_variance: float
    scale: float

    @property
    def kernel(self) -> RBF:
        """The kernel."""
        return RBF(self.variance, self.lengthscale)


class TracedFamily(eqx.Module):
    """Features of an RBF kernel in one column around zero, as JAX functions of its parameters.

    Attributes
    ----------
    first_scale, largest_scale : ()
        A scale that suits the inputs, to begin with, and the largest.
    """

    num_features: int = eqx.field(static=True)
    first_scale: NDArray[np.float64]
    largest_scale: NDArray[np.float64]

    @abstractmethod
    def phi(
        self, kernel: RBF, scale: Float[AnyArray, ""], x: Float[AnyArray, " n"]
    ) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n)."""


class TracedHermite(TracedFamily):
    """Hermite features by the standard deviation of the inputs they are eigenfunctions for.

    So did the paper; every value of it is admissible, which is not so for r.
    """

    def phi(self, kernel, scale, x) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) in closed form."""
        terms = Eigenfunction.terms(kernel.variance, kernel.lengthscale, scale, x)
        return traced_members(terms, self.num_features)


class TracedTrig(TracedFamily):
    """Trig features by Gaussian quadrature over [0, 1]: its nodes, and the basis with weights."""

    nodes: NDArray[np.float64]
    table: NDArray[np.float64]

    def phi(self, kernel, scale, x) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) = 2 ∫₀^a ψ_m √S trig(ωx) dω."""
        omegas = scale * self.nodes
        densities = jax.vmap(kernel.spectral_density)(omegas[:, None])
        table = self.table * safe_sqrt(scale * densities)
        phases = x[:, None] * omegas
        odd = Trig(self.num_features).is_odd(np.arange(self.num_features))
        Phi = jnp.empty((len(x), self.num_features))
        Phi = Phi.at[:, ~odd].set(jnp.cos(phases) @ table[~odd].T)
        return Phi.at[:, odd].set(jnp.sin(phases) @ table[odd].T)


def traced_family(name: str, num_features: int, x: NDArray[np.float64]) -> TracedFamily:
    """Return "trig" or "hermite" features for inputs (n,)."""
    if name == "hermite":
        return TracedHermite(num_features, np.asarray(float(np.std(x))), np.asarray(_LARGEST_SD))
    radius = float(np.max(np.abs(x)))
    # The outermost features lie at the edge of the inputs.
    first = np.pi * (num_features // 2) / radius
    # Few features may want to see more of the spectrum over less of the inputs.
    largest = max(np.pi * num_features / radius, _LARGEST_A)
    # A Gauss rule sees an oscillation from two nodes a turn on; panels need half as many more.
    size = int(0.75 * (largest * radius + np.pi * num_features / 2)) + 40
    # Few different sizes, for each of which the bound is compiled.
    size = _NODES_MULTIPLE * -(-size // _NODES_MULTIPLE)
    nodes, weights = gauss_panels(0.0, 1.0, size)
    table = 2 * weights * Trig(num_features).basis(nodes, num_features)
    return TracedTrig(num_features, np.asarray(first), np.asarray(largest), nodes, table)


class Learned(NamedTuple):
    """Where a search ended, the bound there, and whether a parameter pressed against its limit."""

    hyperparameters: Hyperparameters
    value: float
    at_limit: bool


class CollapsedObjective:
    """The bound as a function of the logarithms of `Hyperparameters`, for rows x (n,), y (n,)."""

    def __init__(
        self,
        family: TracedFamily,
        covariance: Covariance,
        x: NDArray[np.float64],
        y: NDArray[np.float64],
    ) -> None:
        self.family = family
        self._covariance: Covariance = covariance
        self._x, self._y = x, y
        self._lower = np.log(_LOWER)
        self._upper = np.log([*_UPPER, float(family.largest_scale)])

    def value_and_gradient(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the bound and its gradient in the logarithms."""
        value, gradient = _value_and_gradient(
            vector, self.family, self._covariance, self._x, self._y
        )
        return float(value), np.asarray(gradient)

    def value(self, hyperparameters: Hyperparameters) -> float:
        """Return the bound."""
        return self.value_and_gradient(np.log(hyperparameters))[0]

    def learn(self, start: Hyperparameters) -> Learned:
        """Return where L-BFGS ends from a start."""
        found = search(
            self.value_and_gradient,
            np.clip(np.log(start), self._lower, self._upper),
            (self._lower, self._upper),
            Budget(_MAX_ITERATIONS),
        )
        margin = np.minimum(found.x - self._lower, self._upper - found.x)
        return Learned(
            Hyperparameters(*np.exp(found.x).tolist()), found.value, bool(np.any(margin < 1e-9))
        )


@in_double
@eqx.filter_jit
def _value_and_gradient(
    vector: NDArray, family: TracedFamily, covariance: Covariance, x: NDArray, y: NDArray
) -> tuple[AnyArray, AnyArray]:
    inputs, targets = jnp.asarray(x), jnp.asarray(y)

    def bound(vector: Float[AnyArray, "4"]) -> Float[AnyArray, ""]:
        variance, lengthscale, noise, scale = jnp.exp(vector)
        kernel = RBF(1.0, 1.0).with_parameters(variance=variance, lengthscale=lengthscale)
        Phi = family.phi(kernel, scale, inputs)
        gram = Phi.T @ Phi
        B = jnp.eye(len(gram)) + gram / noise
        chol = jnp.linalg.cholesky(B)
        c = jax.scipy.linalg.solve_triangular(chol, Phi.T @ targets / jnp.sqrt(noise), lower=True)
        if covariance == "dense":
            log_det = 2 * jnp.sum(jnp.log(jnp.diag(chol)))
        else:
            log_det = jnp.sum(jnp.log(jnp.diag(B)))
        left_out = len(x) * variance - jnp.trace(gram)
        return -0.5 * (
            len(x) * jnp.log(2 * jnp.pi * noise)
            + log_det
            + (targets @ targets - c @ c) / noise
            + left_out / noise
        )

    return jax.value_and_grad(bound)(jnp.asarray(vector))


# ---------------------------------------------------------------------- stochastic training


class Schedule(NamedTuple):
    """How a fit trains: T, steps of Adam with all rows, and the number of estimates in the end.

    As in the paper unless told otherwise: 2T samples for the mean and T² for the variance.
    """

    num_samples: int = 50
    max_steps: int = 30_000
    learning_rate: float = 5e-4
    repeats: int = 5000


def train(
    X: NDArray[np.float64], y: NDArray[np.float64], model: StochasticModel, schedule: Schedule
) -> tuple[Approximation, float, float]:
    """Return what Adam ends with, the average of estimates of its bound, and their standard error.

    The model is where training begins.
    """
    settings = TrainingSettings(
        num_samples=schedule.num_samples,
        max_steps=schedule.max_steps,
        learning_rate=schedule.learning_rate,
        stop_early=False,
    )
    fit = train_stochastic(X, y, model, settings)
    average, error = fit.average_elbo(
        X, y, num_samples=schedule.num_samples, repeats=schedule.repeats, seed=1
    )
    q = Approximation(fit.features, fit.kernel, fit.noise_variance, fit.mean, fit.covariance)
    return q, average, error
