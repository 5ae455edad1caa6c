r"""Sparse variational Gaussian processes with inducing points, by mini-batches.

The baseline of orthogonal features (Hensman et al. 2013, 2015). With inducing inputs Z,
LLᵀ = K_uu + ε k(0) I and u = Lv, the whitened v ~ N(0, I) has the features φ(x) = L⁻¹ k(Z, x) and
q(v) = N(m, S):

    q(f(x)) = N(μ, s²),      μ = φᵀm,      s² = k(0) − φᵀφ + φᵀSφ
    ELBO ≈ N/Ñ Σ_{n ∈ batch} E_{q(f_n)} log p(y_n|f_n) − KL(q(v) || N(0, I))

The right side is unbiased for batches of Ñ of N rows that are drawn with equal chances. One step
costs O(M³ + Ñ M²), as K_uu is factorised every time. Orthogonal features do without that, and
without ε, the share of the prior variance that keeps K_uu from being singular in double precision;
it stands on K_uu alone, and costs no validity (see `features/inducing.py`).
"""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, check_finite
from orthogp.features.base import as_rows
from orthogp.features.inducing import JITTER, InducingPoints, covariances, whitened
from orthogp.inference.likelihoods import Gaussian, Likelihood
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.parameters import Slot, learned_slots, pack, unpack
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics.nufft import chunks
from orthogp.stochastic.training import Objective
from orthogp.stochastic.variational import (
    Covariance,
    DenseNormal,
    Normal,
    factorised_posterior,
    prior_normal,
)

# The number of rows predicted at once.
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
