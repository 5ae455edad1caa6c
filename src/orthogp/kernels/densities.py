"""Kernels made in the frequency domain: mixtures, quasi-periodic, and a user's own density."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.base import Kernel, Scalar, Vector
from orthogp.kernels.stationary import Parameter, per_column, positive, scaled_square
from orthogp.precision import AnyArray


class SpectralMixture(Kernel):
    """A mixture of q Gaussian spectral bumps, k = Σ_q w_q ∏_d exp(−½ (τ_d/ℓ_qd)²) cos(μ_qd τ_d).

    Parameters
    ----------
    weights : (q,)
        Variances w of the components.
    means : (q, d)
        Angular frequencies μ > 0 of their centres.
    lengthscale : (q, d)
        Inverse widths ℓ of the bumps: the lag over which a component stays coherent.
    """

    weights: Parameter = eqx.field(
        converter=lambda value: np.atleast_1d(check_positive(value, "weights"))
    )
    means: Parameter = eqx.field(converter=lambda value: _table(value, "means"))
    lengthscale: Parameter = eqx.field(converter=lambda value: _table(value, "lengthscale"))

    def __check_init__(self) -> None:
        if not len(self.weights) == len(self.means) == len(self.lengthscale):
            raise KernelError(
                "SpectralMixture needs as many weights as rows of means and lengthscale, got "
                f"{len(self.weights)}, {len(self.means)} and {len(self.lengthscale)}."
            )
        if self.means.shape != self.lengthscale.shape:
            raise KernelError(
                "SpectralMixture needs means and lengthscale of one shape (components, columns), "
                f"got {self.means.shape} and {self.lengthscale.shape}."
            )

    def k(self, lag: Vector) -> Scalar:
        """Return Σ_q w_q ∏_d exp(−½ (τ_d/ℓ_qd)²) cos(μ_qd τ_d)."""
        bells = jnp.exp(-0.5 * (lag / self.lengthscale) ** 2) * jnp.cos(self.means * lag)
        return jnp.sum(self.weights * jnp.prod(bells, axis=1))

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return Σ_q w_q ∏_d ½ [N(ω_d; μ_qd, ℓ_qd⁻²) + N(ω_d; −μ_qd, ℓ_qd⁻²)]."""
        above = jnp.exp(-0.5 * (self.lengthscale * (omega - self.means)) ** 2)
        below = jnp.exp(-0.5 * (self.lengthscale * (omega + self.means)) ** 2)
        bells = 0.5 * self.lengthscale / jnp.sqrt(2 * jnp.pi) * (above + below)
        return jnp.sum(self.weights * jnp.prod(bells, axis=1))

    def prior_variance(self) -> Scalar:
        """Return Σ w_q."""
        return jnp.sum(self.weights)

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return Σ_q w_q (μ_qd² + ℓ_qd⁻²)."""
        return jnp.sum(self.weights[:, None] * (self.means**2 + self.lengthscale**-2), axis=0)

    def scaled(self, factor: float) -> SpectralMixture:
        """Return factor · k."""
        return self.with_parameters(weights=self.weights * factor)


class QuasiPeriodic(Kernel):
    """A periodic shape that changes slowly.

    k = v ∏_d exp(−½ (τ_d/ℓ_d)²) exp(−2 sin²(π τ_d/p)/s²)

    Parameters
    ----------
    variance : v
    lengthscale : ℓ, one or one per column
        How long the shape keeps.
    period : p
    shape_lengthscale : s
        Smoothness within one period; small s allows sharp shapes.
    """

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")
    period: Parameter = positive("period")
    shape_lengthscale: Parameter = positive("shape_lengthscale")

    known_as = "quasi-periodic"
    # Nodes of the transform that gives the periodic factor's Fourier coefficients: enough for
    # shape lengthscales down to 0.1.
    _NUM_NODES = 128

    def k(self, lag: Vector) -> Scalar:
        """Return v ∏_d exp(−½ (τ_d/ℓ_d)²) exp(−2 sin²(π τ_d/p)/s²)."""
        periodic = jnp.sum(jnp.sin(jnp.pi * lag / self.period) ** 2) / self.shape_lengthscale**2
        return self.variance * jnp.exp(-0.5 * scaled_square(lag, self.lengthscale) - 2 * periodic)

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return v ∏_d Σ_j c_j N(ω_d; 2πj/p, ℓ_d⁻²), c_j = e^{−1/s²} I_j(1/s²)."""
        angles = 2 * jnp.pi * jnp.arange(self._NUM_NODES) / self._NUM_NODES
        shape = jnp.exp(-2 * jnp.sin(angles / 2) ** 2 / self.shape_lengthscale**2)
        # The transform's rounding may be negative where the coefficients underflow.
        coefficients = jnp.maximum(jnp.fft.fft(shape).real / self._NUM_NODES, 0.0)
        centres = 2 * jnp.pi / self.period * jnp.fft.fftfreq(self._NUM_NODES, 1 / self._NUM_NODES)
        lengthscale = per_column(self.lengthscale, omega)[:, None]
        bells = jnp.exp(-0.5 * (lengthscale * (omega[:, None] - centres)) ** 2)
        bells *= lengthscale / jnp.sqrt(2 * jnp.pi)
        return self.variance * jnp.prod(jnp.sum(coefficients * bells, axis=1))

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return v (ℓ_d⁻² + (2π/(p s))²)."""
        harmonic = (2 * jnp.pi / (self.period * self.shape_lengthscale)) ** 2
        return jnp.broadcast_to(self.variance * (self.lengthscale**-2 + harmonic), (num_dims,))


class SpectralKernel(Kernel):
    """A user's own stationary kernel, given by the shape of its spectral density.

    S(ω) = v ∏ℓ_d s(ℓ∘ω),      k(τ) = v c(τ/ℓ)

    Parameters
    ----------
    density : callable
        s(u) ≥ 0 for a dimensionless frequency u of shape (d,), even, written with `jax.numpy`, with
        integral one.
    covariance : callable, optional
        c(z) = ∫ s(u) cos(u·z) du with c(0) = 1. If missing it is computed by quadrature, in one
        dimension only.
    """

    density: Callable[[Vector], Scalar] = eqx.field(static=True)
    covariance: Callable[[Vector], Scalar] | None = eqx.field(static=True, default=None)
    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    # The rule that stands in for a missing covariance: spacing 2π/400 repeats c after 400
    # lengthscales, and what lies beyond the last node matters near lag zero only.
    _NODE_SPACING = 2 * np.pi / 400
    _NUM_NODES = 2**14

    def k(self, lag: Vector) -> Scalar:
        """Return v c(τ/ℓ)."""
        z = lag / self.lengthscale
        if self.covariance is not None:
            return self.variance * self.covariance(z)
        nodes = self._NODE_SPACING * (jnp.arange(self._NUM_NODES) + 0.5)
        values = eqx.filter_vmap(self.density)(nodes[:, None])
        quadrature = 2 * self._NODE_SPACING * jnp.sum(values * jnp.cos(nodes * z[0]))
        # Beyond half of its period the rule would rise again.
        beyond = jnp.abs(z[0]) > jnp.pi / self._NODE_SPACING
        return self.variance * jnp.where(z[0] == 0, 1.0, jnp.where(beyond, 0.0, quadrature))

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return v ∏ℓ_d s(ℓ∘ω)."""
        lengthscale = per_column(self.lengthscale, omega)
        return self.variance * jnp.prod(lengthscale) * self.density(lengthscale * omega)

    def check(self, num_dims: int) -> None:
        """Check the lengthscales, and that a covariance is there or can be computed."""
        super().check(num_dims)
        if self.covariance is None and num_dims > 1:
            raise KernelError(
                "SpectralKernel computes its covariance by quadrature in one dimension only: give "
                f"`covariance` to use it on {num_dims} input columns."
            )


def _table(value: object, name: str) -> Float[AnyArray, "q d"]:
    values = check_positive(value, name)
    return values.reshape(-1, 1) if values.ndim < 2 else values
