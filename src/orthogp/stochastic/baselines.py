r"""The baselines of orthogonal features: inducing points, and some features at a time.

Sparse variational Gaussian processes (Hensman et al. 2013, 2015) have inducing inputs Z. With
LLᵀ = K_uu + ε k(0) I and u = Lv, the whitened v ~ N(0, I) has the features φ(x) = L⁻¹ k(Z, x) and
q(v) = N(m, S):

    q(f(x)) = N(μ, s²),      μ = φᵀm,      s² = k(0) − φᵀφ + φᵀSφ
    ELBO ≈ N/Ñ Σ_{n ∈ batch} E_{q(f_n)} log p(y_n|f_n) − KL(q(v) || N(0, I))

The right side is unbiased for batches of Ñ of N rows that are drawn with equal chances. One step
costs O(M³ + Ñ M²), as K_uu is factorised every time. Orthogonal features do without that, and
without ε, the share of the prior variance that keeps K_uu from being singular in double precision;
it stands on K_uu alone, and costs no validity (see `features/inducing.py`).

Evans & Nair (2020) take the bound of a factorised q(u) from some rows and some features. For q(u) =
∏_j N(m_j, s_j) over M features and N rows,

    ELBO = Σ_n [−½ log 2πσ² − ((y_n − μ_n)² + v_n)/(2σ²)] − Σ_j KL_j
    μ_n = Σ_j φ_j(x_n) m_j,      v_n = κ(x_n) + Σ_j φ_j(x_n)² (s_j − 1),      κ the prior variance
    KL_j = ½ (m_j² + s_j − 1 − log s_j)

Rows drawn at random estimate the sum over n, and a set J of features estimates sums over j, each
times M/|J|. The square takes two independent sets, for the product of independent estimates is
unbiased where the square of one is not:

    (y_n − μ_n)² ≈ (y_n − μ̂_n)(y_n − μ̂'_n),      μ̂ from J,  μ̂' from J'

All other sums over j are the mean of the estimates from J and J'. The cost is rows × features of
the draw, whatever N and M are. `SubsampledBound.maximise` climbs by these estimates.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import FeatureError, InputError, check_finite
from orthogp.features.base import Features, as_rows, prior_variance
from orthogp.features.inducing import JITTER, InducingPoints, covariances, whitened
from orthogp.features.series import AdditiveSeries, Lattice, MassSeries, lattice_masses
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.parameters import Slot, learned_slots, pack, unpack
from orthogp.kernels import Kernel, components
from orthogp.precision import AnyArray, in_double
from orthogp.statistics.nufft import chunks
from orthogp.stochastic.normals import (
    Covariance,
    DenseNormal,
    Gaussian,
    Likelihood,
    Normal,
    factorised_posterior,
    prior_normal,
)
from orthogp.stochastic.training import Objective

# The number of rows whose features are evaluated at once.
_ROWS_PER_BLOCK = 4096


class SparseVariational(eqx.Module):
    """Inducing points, q of their whitened values, kernel and likelihood; see the module.

    Every leaf is a parameter to be learned, but those of `template`, whose gradient is zero.
    `from_rows` makes one for data.

    Attributes
    ----------
    template : Kernel
        The kernel to begin with, of which the fixed parameters are still in force.
    slots : tuple of Slot
        Which of its parameters are learned.
    log_parameters : (p,)
        Their logarithms.
    likelihood : Likelihood
    Z : (m, d)
        The inducing inputs.
    q : Normal
        q(v).
    """

    template: Kernel
    slots: tuple[Slot, ...] = eqx.field(static=True)
    log_parameters: Float[AnyArray, " p"]
    likelihood: Likelihood
    Z: Float[AnyArray, "m d"]
    q: Normal

    @classmethod
    def from_rows(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        kernel: Kernel,
        likelihood: Likelihood,
        points: InducingPoints,
        covariance: Covariance = "dense",
    ) -> Self:
        """Return a model with inducing points among the rows X (n, d), and q(v) = p(v).

        Parameters
        ----------
        kernel : Kernel
            Where learning begins; the points are placed for it.
        points : InducingPoints
            The points themselves, or their number and how they are placed among the rows.
        covariance : {"dense", "diagonal"}
            The form of the covariance of q(v).
        """
        rows, _ = _check_rows(X, y, likelihood)
        kernel.check(rows.shape[1])
        slots = learned_slots(kernel)
        return cls(
            template=kernel,
            slots=slots,
            log_parameters=pack(kernel, slots),
            likelihood=likelihood,
            Z=points.from_rows(kernel, rows).Z,
            q=prior_normal(covariance, points.num_features),
        )

    @property
    def kernel(self) -> Kernel:
        """The kernel with what has been learned, of NumPy arrays."""
        template = jax.tree.map(np.asarray, self.template)
        return unpack(template, self.slots, np.asarray(self.log_parameters))

    # ------------------------------------------------------------------ for learning, in JAX

    def marginals(
        self, X: Float[AnyArray, "n d"]
    ) -> tuple[Float[AnyArray, " n"], Float[AnyArray, " n"]]:
        """Return means and variances of q(f) at the rows of X, as JAX arrays."""
        template = jax.lax.stop_gradient(self.template)
        kernel = unpack(template, self.slots, jnp.asarray(self.log_parameters))
        Z, prior = jnp.asarray(self.Z), kernel.prior_variance()
        Phi = whitened(
            covariances(kernel.k, Z, Z), covariances(kernel.k, Z, jnp.asarray(X)), JITTER * prior
        )
        # With thousands of crowded points rounding reaches what ε leaves out; q adds to it.
        left_out = jnp.maximum(prior - jnp.sum(Phi**2, axis=1), 0.0)
        return Phi @ self.q.mean, left_out + jnp.sum(Phi.T * self.q.times(Phi.T), axis=0)

    @in_double
    @eqx.filter_jit
    def elbo(
        self, X: Float[AnyArray, "b d"], y: Float[AnyArray, " b"], num_rows: int
    ) -> Float[AnyArray, ""]:
        """Return the estimate of the evidence lower bound from a batch out of `num_rows` rows.

        To differentiate it, be within `jax.enable_x64(True)`: single precision would not resolve
        the factor of K_uu, and is refused.
        """
        if jnp.result_type(self.Z) != jnp.float64:
            raise InputError(
                f"The ELBO needs double precision, but was traced in {jnp.result_type(self.Z)}: "
                "transform it within jax.enable_x64(True)."
            )
        if y.shape != (len(X),):
            raise InputError(f"y must hold one target for each of {len(X)} rows, got {y.shape}.")
        mean, variance = self.marginals(X)
        fits = self.likelihood.expected_log_density(jnp.asarray(y), mean, variance)
        return num_rows / len(fits) * jnp.sum(fits) - self.q.divergence()

    # ------------------------------------------------------------------ in NumPy

    def predict(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return means and variances of f at the rows of X, (n,) each."""
        rows = as_rows(X)
        self._check_width(rows)
        mean, variance = np.empty(len(rows)), np.empty(len(rows))
        for part in chunks(len(rows), _ROWS_PER_BLOCK):
            mean[part], variance[part] = _marginals(self, rows[part])
        return mean, variance

    def titsias_optimum(self, X: ArrayLike, y: ArrayLike) -> Self:
        r"""Return a copy with the best q(v) for all rows, whose ELBO is the collapsed bound.

        For a Gaussian likelihood, with the features Φ of the rows and B = I + ΦᵀΦ/σ²,

            m = B⁻¹ Φᵀy/σ²,      S = B⁻¹, or if S is diagonal S_mm = 1/B_mm
        """
        if not isinstance(self.likelihood, Gaussian):
            raise InputError(
                "Only the Gaussian likelihood has a collapsed optimum, got "
                f"{type(self.likelihood).__name__}: maximise the ELBO instead."
            )
        rows, targets = _check_rows(X, y, self.likelihood)
        self._check_width(rows)
        noise = float(np.exp(np.asarray(self.likelihood.log_noise_variance)))
        features = InducingPoints(Z=np.asarray(self.Z))
        moments = moments_from_rows(features, self.kernel, rows, targets)
        size = len(self.Z) if isinstance(self.q, DenseNormal) else 1
        best = factorised_posterior(moments, noise, size)
        q = type(self.q).of(best.mean[:, 0], best.covariance)
        return eqx.tree_at(lambda model: model.q, self, q)

    def _check_width(self, rows: NDArray[np.float64]) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.Z.shape[1]:
            raise InputError(
                f"X must have the {self.Z.shape[1]} columns of the inducing points, got shape "
                f"{rows.shape}."
            )


def svgp_objective(num_rows: int) -> Objective:
    """Return the estimate of the ELBO as a function of model, batch and random key, to be trained.

    The key is not used: given the batch nothing is random.
    """
    return lambda parameters, batch, key: parameters.elbo(batch.X, batch.y, num_rows)


@in_double
@eqx.filter_jit
def _marginals(model: SparseVariational, X: NDArray) -> tuple[AnyArray, AnyArray]:
    return model.marginals(X)


def _check_rows(
    X: ArrayLike, y: ArrayLike, likelihood: Likelihood
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows, targets = as_rows(X), np.asarray(y, dtype=np.float64)
    if rows.ndim != 2 or targets.shape != (len(rows),):
        raise InputError(
            f"X must have shape (n, d) and y (n,), got {rows.shape} and {targets.shape}."
        )
    check_finite(rows, "X")
    check_finite(targets, "y")
    likelihood.check(targets)
    return rows, targets


# ---------------------------------------------------------------------- feature subsampling


class MeanField(NamedTuple):
    """A factorised q(u) and a noise variance: m (M,), log s (M,), log σ²."""

    mean: NDArray[np.float64]
    log_variance: NDArray[np.float64]
    log_noise: float

    @classmethod
    def prior(cls, num_features: int, noise_variance: float) -> Self:
        """Return q(u) = p(u)."""
        zeros = np.zeros(num_features)
        return cls(zeros, zeros, float(np.log(noise_variance)))


class Draw(NamedTuple):
    """What one estimate looks at: rows, and two independent sets of features."""

    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]


class Estimate(NamedTuple):
    """An unbiased estimate of the bound, and its gradient in m, log s and log σ².

    The gradient is zero for all features but those drawn, `features` (q,).
    """

    value: float
    features: NDArray[np.int64]
    mean: NDArray[np.float64]
    log_variance: NDArray[np.float64]
    log_noise: float


class SubsampledBound:
    """Unbiased estimates of the bound of a factorised q(u); see the module's docstring.

    Parameters
    ----------
    features : Lattice, MassSeries or AdditiveSeries
        Families that can evaluate a few of their features; see `evaluate_some`. Spectral families
        can once they are on a lattice: `features.on(lattice)`.
    kernel : Kernel
    X : (n, d)
    y : (n,)
    """

    def __init__(self, features: Features, kernel: Kernel, X: NDArray, y: NDArray) -> None:
        if not features.projects:
            raise FeatureError(
                f"{type(features).__name__} replace the prior by their own: subsampling needs "
                "features of the process itself."
            )
        self.features = features
        self.kernel = kernel
        self.X = as_rows(X)
        self.y = np.asarray(y, dtype=np.float64)
        if self.y.shape != (len(self.X),):
            raise InputError(
                f"y must be one target for each of the {len(self.X)} rows, got shape "
                f"{self.y.shape}."
            )
        self._prior = np.full(len(self.X), prior_variance(kernel))
        if isinstance(features, Lattice):
            self._prior += features.mean.prior_variance(self.X)

    def draw(self, rng: np.random.Generator, num_rows: int, num_features: int) -> Draw:
        """Return rows and two sets of features at random, each without replacement."""
        N, M = len(self.X), self.features.num_features
        if not 1 <= num_rows <= N or not 1 <= num_features <= M:
            raise InputError(
                f"A draw takes 1 to {N} rows and 1 to {M} features, got {num_rows} and "
                f"{num_features}."
            )
        return Draw(
            rng.choice(N, num_rows, replace=False),
            rng.choice(M, num_features, replace=False),
            rng.choice(M, num_features, replace=False),
        )

    def estimate(self, q: MeanField, draw: Draw) -> Estimate:
        """Return the estimate of the bound and its gradient from one draw."""
        sets = (draw.first, draw.second)
        X, y = self.X[draw.rows], self.y[draw.rows]
        noise = np.exp(q.log_noise)
        per_row = len(self.X) / len(draw.rows)
        scales = [self.features.num_features / len(columns) for columns in sets]
        # Each set estimates sums over all features by itself, and enters their mean by half.
        Phis = [evaluate_some(self.features, self.kernel, X, columns) for columns in sets]
        residuals = [
            y - scale * Phi @ q.mean[columns] for scale, Phi, columns in zip(scales, Phis, sets)
        ]
        spread = self._prior[draw.rows].copy()
        divergence = 0.0
        mean_parts, variance_parts = [], []
        for scale, Phi, columns, other in zip(scales, Phis, sets, residuals[::-1]):
            mean, variance = q.mean[columns], np.exp(q.log_variance[columns])
            spread += scale / 2 * Phi**2 @ (variance - 1)
            kl = 0.5 * (mean**2 + variance - 1 - q.log_variance[columns])
            divergence += scale / 2 * np.sum(kl)
            mean_parts.append(scale / 2 * (per_row / noise * (other @ Phi) - mean))
            squares = per_row / noise * np.sum(Phi**2, axis=0)
            variance_parts.append(scale / 4 * (1 - variance * (1 + squares)))
        misfit = per_row * float(np.sum(residuals[0] * residuals[1] + spread)) / noise
        touched, at = np.unique(np.concatenate(sets), return_inverse=True)
        gradient = np.zeros((len(touched), 2))
        np.add.at(gradient, at, np.stack([np.hstack(mean_parts), np.hstack(variance_parts)], 1))
        return Estimate(
            value=-0.5 * (len(self.X) * np.log(2 * np.pi * noise) + misfit) - divergence,
            features=touched,
            mean=gradient[:, 0],
            log_variance=gradient[:, 1],
            log_noise=0.5 * (misfit - len(self.X)),
        )

    def maximise(
        self,
        q: MeanField,
        rng: np.random.Generator,
        *,
        num_rows: int,
        num_features: int,
        num_steps: int = 2000,
        learning_rate: float = 0.3,
    ) -> MeanField:
        """Return q(u) after steps along estimated gradients, with the noise variance held.

        Each step moves the drawn features alone, by AdaGrad: every parameter moves by the learning
        rate times its gradient over the root of the sum of its squared gradients.

        Parameters
        ----------
        num_rows, num_features : int
            Of each draw; two sets of features are drawn.
        """
        values = np.stack([q.mean, q.log_variance])
        squares = np.zeros_like(values)
        for _ in range(num_steps):
            draw = self.draw(rng, num_rows, num_features)
            found = self.estimate(q._replace(mean=values[0], log_variance=values[1]), draw)
            gradients = np.stack([found.mean, found.log_variance])
            squares[:, found.features] += gradients**2
            roots = np.sqrt(np.maximum(squares[:, found.features], np.finfo(np.float64).tiny))
            values[:, found.features] += learning_rate * gradients / roots
        return q._replace(mean=values[0], log_variance=values[1])

    def exact(self, q: MeanField) -> float:
        """Return the bound itself, from all rows and all features."""
        noise, variance = np.exp(q.log_noise), np.exp(q.log_variance)
        misfit = float(np.sum(self._prior))
        for part in chunks(len(self.X), _ROWS_PER_BLOCK):
            Phi = self.features.evaluate(self.kernel, self.X[part])
            misfit += np.sum((self.y[part] - Phi @ q.mean) ** 2) + np.sum(Phi**2 @ (variance - 1))
        divergence = 0.5 * np.sum(q.mean**2 + variance - 1 - q.log_variance)
        normaliser = len(self.X) * np.log(2 * np.pi * noise)
        return float(-0.5 * (normaliser + misfit / noise) - divergence)


# ---------------------------------------------------------------------- some features only


@singledispatch
def evaluate_some(
    features: Features, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return φ_m(x_n) for the features m in `columns` alone, (n, q).

    Families that can do so are registered here, as others may be.
    """
    raise FeatureError(
        f"{type(features).__name__} cannot evaluate some of its features alone: use Lattice, or a "
        "spectral family on a lattice."
    )


@evaluate_some.register
def _(
    features: Lattice, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    # Columns are the cosines, the sines without index zero, the slopes.
    size, mean = len(features.indices), features.mean
    modes = np.flatnonzero(columns < 2 * size - 1)
    sine = columns[modes] >= size
    t = np.where(sine, columns[modes] - size + 1, columns[modes])
    indices = features.indices[t]
    variances = lattice_masses(kernel, features.lattice, indices)
    variances = np.where(t == 0, variances + mean.offset_variance, 2 * variances)
    # A sine is a cosine a quarter of a turn late.
    phases = (X - features.lattice.centre) @ (indices * features.lattice.spacing).T
    Phi = np.empty((len(X), len(columns)))
    Phi[:, modes] = np.cos(phases - np.where(sine, np.pi / 2, 0.0)) * np.sqrt(variances)
    slopes = np.flatnonzero(columns >= 2 * size - 1)
    if len(slopes):
        covariates = mean.covariates(X)[:, columns[slopes] - (2 * size - 1)]
        Phi[:, slopes] = np.sqrt(mean.slope_variance) * covariates
    return Phi


@evaluate_some.register
def _(
    features: MassSeries, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    # Only the modes that the chosen features have a part in.
    weights = features.weights[columns]
    used = np.flatnonzero(np.any(weights != 0, axis=0))
    masses = lattice_masses(kernel, features.lattice, features.indices[used])
    C = weights[:, used] * np.sqrt(np.maximum(masses, 0.0))
    odd = features.odd[columns]
    phases = (X - features.lattice.centre) @ features.omegas[used].T
    Phi = np.empty((len(X), len(columns)))
    Phi[:, ~odd] = np.cos(phases) @ C[~odd].T
    Phi[:, odd] = np.sin(phases) @ C[odd].T
    return Phi


@evaluate_some.register
def _(
    features: AdditiveSeries, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    Phi = np.empty((len(X), len(columns)))
    start = 0
    for part, (dims, component) in zip(features.parts, components(kernel, X.shape[1])):
        inside = (columns >= start) & (columns < start + part.num_features)
        if np.any(inside):
            Phi[:, inside] = evaluate_some(
                part, component, X[:, list(dims)], columns[inside] - start
            )
        start += part.num_features
    return Phi
