r"""RBF, Matérn and rational-quadratic kernels, and the Gaussian mixtures behind them.

Matérn and rational quadratic are Gaussians of random lengthscale λ, with g ~ Gamma(a, 1):

    Matérn-ν              λ² = ℓ² g/ν,   a = ν
    rational quadratic    λ² = ℓ² α/g,   a = α

The trapezoidal rule in log g converges faster than exponentially, is differentiable in a, and
serves for Bessel functions of any real order.

The classical kernels, covariance and spectral density side by side.

Each has a `variance` v and a `lengthscale` ℓ, one number or one per input column (ARD).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammainc, gammaln
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.base import Kernel
from orthogp.precision import AnyArray, functions_for

if TYPE_CHECKING:
    # Constructors take numbers and sequences; their converters make arrays of them.
    Parameter = Any
else:
    Parameter = Float[AnyArray, "..."]


# Nodes of the rule in log g: for Matérn-ν they reach far enough for ν ≥ 0.1, for the rational
# quadratic kernel, whose every mass needs them all, for α ≥ 0.3.
MATERN_NODES = 600
RATIONAL_NODES = 300
# Below this ratio of lengthscale to period the images converge in four terms to rounding, above it
# the Fourier series does in three.
_FEW_IMAGES = 0.4
# Halvings of an interval of log g, from hundreds to rounding.
_BISECTIONS = 60


def gamma_mixture(
    shape: Float[AnyArray, ""], num_nodes: int
) -> tuple[Float[AnyArray, " q"], Float[AnyArray, " q"]]:
    """Return nodes g and weights summing to one of a quadrature for Gamma(shape, 1)."""
    # The rule's error is |Γ(a + 2πi/Δ)|/Γ(a): below 1e-11 for both terms of this minimum.
    step = jnp.minimum(0.25, 0.55 / jnp.sqrt(shape))
    top = jnp.log(shape + 10 * jnp.sqrt(shape) + 60)
    log_g = top - step * jnp.arange(num_nodes)
    g = jnp.exp(log_g)
    weights = jnp.exp(shape * log_g - g - gammaln(shape)) * step
    return g, weights / jnp.sum(weights)


def gamma_quantile(
    shape: Float[AnyArray, ""], level: Float[AnyArray, " n"]
) -> Float[AnyArray, " n"]:
    """Return where the distribution function of Gamma(shape, 1) has values between 0 and 1."""
    shape, level = jnp.asarray(shape), jnp.asarray(level)
    # P(a, g) ≤ g^a/Γ(a+1) bounds the logarithm of g from below.
    low = (jnp.log(level) + gammaln(shape + 1)) / shape
    high = jnp.full_like(low, jnp.log(shape + 10 * jnp.sqrt(shape) + 60))

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        below = gammainc(shape, jnp.exp(middle)) < level
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    ends = (jnp.minimum(low, high), high)
    ends = jax.lax.stop_gradient(jax.lax.fori_loop(0, _BISECTIONS, halve, ends))
    g = jnp.exp(ends[0])
    # One of Newton's steps, which moves nothing, has the derivative of the root in the shape.
    log_density = (shape - 1) * ends[0] - g - gammaln(shape)
    return g - (gammainc(shape, g) - level) / jnp.exp(log_density)


def gaussian_mass(
    omega: Float[AnyArray, " d"], lengthscale: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
) -> Float[AnyArray, ""]:
    r"""Return the mass at ω of a unit Gaussian kernel whose wrap is corrected in each dimension.

    With x = λ/P in one dimension, and the product over dimensions:

        mass_t = √(2π) x exp(−½ λ² ω_t²) for t ≠ 0,      mass_0 = 1 − Σ_{t≠0} mass_t
    """
    ratio = lengthscale * spacing / (2 * jnp.pi)
    decay = jnp.sqrt(2 * jnp.pi) * ratio * jnp.exp(-0.5 * (lengthscale * omega) ** 2)
    return jnp.prod(jnp.where(omega == 0, _zero_mode(ratio), decay))


def wrapped_gaussian(
    lag: Float[AnyArray, " d"], lengthscale: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
) -> Float[AnyArray, ""]:
    """Return Σ_t mass_t e^{iω_t·τ} for the masses of `gaussian_mass`."""
    ratio, phase = lengthscale / period, lag / period
    j = jnp.arange(1.0, 5.0)[:, None]

    def bell(shift: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return jnp.exp(-0.5 * (shift / ratio) ** 2)

    images = bell(phase) + jnp.sum(bell(phase + j) + bell(phase - j) - 2 * bell(j), axis=0)
    modes = jnp.exp(-2 * (jnp.pi * ratio * j) ** 2) * jnp.cos(2 * jnp.pi * j * phase)
    series = _zero_mode(ratio) + 2 * jnp.sqrt(2 * jnp.pi) * ratio * jnp.sum(modes, axis=0)
    return jnp.prod(jnp.where(ratio < _FEW_IMAGES, images, series))


def _zero_mode(ratio: Float[AnyArray, " d"]) -> Float[AnyArray, " d"]:
    j = jnp.arange(1.0, 5.0)[:, None]
    scale = jnp.sqrt(2 * jnp.pi) * ratio
    by_images = scale - 2 * jnp.sum(jnp.exp(-0.5 * (j / ratio) ** 2), axis=0)
    by_series = 1 - 2 * scale * jnp.sum(jnp.exp(-2 * (jnp.pi * ratio * j) ** 2), axis=0)
    return jnp.where(ratio < _FEW_IMAGES, by_images, by_series)


def positive(name: str, default: float = 1.0) -> Parameter:
    """Return a dataclass field for a positive float64 number, or for lengthscales an array."""

    def convert(value: object) -> np.ndarray:
        array = check_positive(value, name)
        if name != "lengthscale" and array.ndim > 0:
            raise KernelError(f"{name} must be one number, got shape {array.shape}.")
        return array

    return eqx.field(
        default_factory=lambda: np.asarray(default, dtype=np.float64), converter=convert
    )


class Radial(Kernel):
    """A kernel that sees a lag by r² = Σ (τ_d/ℓ_d)² alone.

    Where many lags of the same rows are needed, their squares can then be formed by a product of
    matrices, and one function of a single number is compiled whatever the number of columns.
    """

    @property
    def dear(self) -> bool:
        """Whether a value takes hundreds of exponentials: many of them are better interpolated."""
        return False

    @abstractmethod
    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return the covariance where r² is `square`.

        If it also gives arrays of NumPy for such arrays, (n,), those are used where nothing needs a
        derivative: they are faster.
        """

    def correlations(
        self, square: NDArray[np.float64], order: int
    ) -> list[NDArray[np.float64]] | None:
        """Return k/v and its first derivatives in r², `order` of them (up to two), (n,) each.

        `None` if there is no closed form: derivatives are then compiled. A derivative that is
        infinite at zero counts as zero there, since all it is multiplied by vanishes.
        """
        return None

    def lengthscale_places(self, num_dims: int) -> NDArray[np.int64]:
        """Return which of its lengthscales each column has, (d,)."""
        several = np.size(self.parameters()["lengthscale"]) > 1
        return np.arange(num_dims) if several else np.zeros(num_dims, dtype=np.int64)

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the covariance at one lag."""
        return self.at_square(scaled_square(lag, self.parameters()["lengthscale"]))


class RBF(Radial):
    """The squared exponential kernel, k = v exp(−½ Σ (τ_d/ℓ_d)²)."""

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return v exp(−½ r²)."""
        return self.variance * functions_for(square).exp(-0.5 * square)

    def correlations(self, square: NDArray[np.float64], order: int) -> list[NDArray[np.float64]]:
        """Return ρ = exp(−½ r²), −ρ/2 and ρ/4."""
        bell = np.exp(-0.5 * square)
        return [bell, -0.5 * bell, 0.25 * bell][: order + 1]

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return v ∏ℓ_d (2π)^{−D/2} exp(−½ Σ ℓ_d² ω_d²)."""
        lengthscale = per_column(self.lengthscale, omega)
        bells = lengthscale / jnp.sqrt(2 * jnp.pi) * jnp.exp(-0.5 * (lengthscale * omega) ** 2)
        return self.variance * jnp.prod(bells)

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return jnp.asarray(self.variance)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return v/ℓ_d²."""
        return jnp.broadcast_to(self.variance / self.lengthscale**2, (num_dims,))

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the mass of the mode at ω; see `gaussian_mass`."""
        return self.variance * gaussian_mass(omega, per_column(self.lengthscale, omega), spacing)

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return k_P(τ), the sum over the lattice of the masses."""
        return self.variance * wrapped_gaussian(lag, per_column(self.lengthscale, lag), period)

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return normal frequencies of standard deviation 1/ℓ_d."""
        return jnp.asarray(normals) / self.lengthscale


# Rough kernels are used with many features, where the period may be not much longer than a
# lengthscale, and all but the last digits of k(0) need so many images.
MANY_IMAGES = {1: 16, 2: 8, 3: 4}
# The smallest power of a lag, in lengthscales, that anything is divided by.
_LEAST_DENOMINATOR = 1e-290


class Matern(Radial):
    """The Matérn kernel of any real smoothness ν > 0, learned with the rest unless fixed."""

    num_images = MANY_IMAGES

    nu: Parameter = positive("nu", 1.5)
    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    @property
    def dear(self) -> bool:
        """It is: a sum over the nodes of a mixture."""
        return True

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return v 2^{1−ν}/Γ(ν) z^ν K_ν(z), z = √(2ν r²), as a Gaussian mixture."""
        g, weights = gamma_mixture(self.nu, MATERN_NODES)
        return self.variance * jnp.sum(weights * jnp.exp(-0.5 * self.nu * square / g))

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the Matérn density; see `matern_density`."""
        return matern_density(self.nu, self.variance, self.lengthscale, omega)

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return jnp.asarray(self.variance)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return v ν/((ν−1) ℓ_d²), infinite for ν ≤ 1."""
        return matern_derivative_variance(self.nu, self.variance, self.lengthscale, num_dims)

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return frequencies of the multivariate t distribution with 2ν degrees of freedom."""
        nu = jnp.asarray(self.nu)
        g = gamma_quantile(nu, uniforms[:, 0])
        return jnp.asarray(normals) / self.lengthscale * jnp.sqrt(nu / g)[:, None]


# No method: Equinox makes an object for each call of one.
def _root(square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
    """Return the square root, with a derivative of zero at zero."""
    if isinstance(square, np.ndarray):
        return np.sqrt(square)
    # The root's derivative at lag zero is infinite; its product with zero must not be NaN.
    safe = jnp.where(square > 0, square, 1.0)
    return jnp.where(square > 0, jnp.sqrt(safe), 0.0)


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ratio, zero where the denominator is zero but for rounding."""
    there = denominator > _LEAST_DENOMINATOR
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=there)


class _HalfIntegerMatern(Radial):
    """A Matérn kernel of fixed half-integer smoothness, with its elementary covariance."""

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    nu: ClassVar[float]
    num_images = MANY_IMAGES

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the Matérn density; see `matern_density`."""
        return matern_density(jnp.asarray(self.nu), self.variance, self.lengthscale, omega)

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return jnp.asarray(self.variance)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return v ν/((ν−1) ℓ_d²), infinite for ν ≤ 1."""
        nu = jnp.asarray(self.nu)
        return matern_derivative_variance(nu, self.variance, self.lengthscale, num_dims)

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return frequencies of the multivariate t distribution with 2ν degrees of freedom."""
        nu = jnp.asarray(self.nu)
        g = gamma_quantile(nu, uniforms[:, 0])
        return jnp.asarray(normals) / self.lengthscale * jnp.sqrt(nu / g)[:, None]


class Matern12(_HalfIntegerMatern):
    """The Matérn-1/2 (exponential) kernel: continuous paths without derivatives."""

    nu = 0.5

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return v e^{−z}, z = r."""
        return self.variance * functions_for(square).exp(-_root(2 * self.nu * square))

    def correlations(self, square: NDArray[np.float64], order: int) -> list[NDArray[np.float64]]:
        """Return e^{−z}, −e^{−z}/2z and (1 + z) e^{−z}/4z³."""
        z = np.sqrt(square)
        decay = np.exp(-z)
        found = [decay]
        if order > 0:
            found.append(_ratio(-0.5 * decay, z))
        if order > 1:
            found.append(_ratio(0.25 * (1 + z) * decay, z**3))
        return found


class Matern32(_HalfIntegerMatern):
    """The Matérn-3/2 kernel: paths with one derivative."""

    nu = 1.5

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return v (1 + z) e^{−z}, z = √3 r."""
        z = _root(2 * self.nu * square)
        return self.variance * (1 + z) * functions_for(square).exp(-z)

    def correlations(self, square: NDArray[np.float64], order: int) -> list[NDArray[np.float64]]:
        """Return (1 + z) e^{−z}, −3/2 e^{−z} and 9/4 e^{−z}/z."""
        z = np.sqrt(3 * square)
        decay = np.exp(-z)
        found = [(1 + z) * decay]
        if order > 0:
            found.append(-1.5 * decay)
        if order > 1:
            found.append(_ratio(2.25 * decay, z))
        return found


class Matern52(_HalfIntegerMatern):
    """The Matérn-5/2 kernel: paths with two derivatives."""

    nu = 2.5

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return v (1 + z + z²/3) e^{−z}, z = √5 r."""
        z = _root(2 * self.nu * square)
        return self.variance * (1 + z + z**2 / 3) * functions_for(square).exp(-z)

    def correlations(self, square: NDArray[np.float64], order: int) -> list[NDArray[np.float64]]:
        """Return (1 + z + z²/3) e^{−z}, −5/6 (1 + z) e^{−z} and 25/12 e^{−z}."""
        z = np.sqrt(5 * square)
        decay = np.exp(-z)
        first = (1 + z) * decay
        found = [first + (5 / 3) * square * decay]
        if order > 0:
            found.append((-5 / 6) * first)
        if order > 1:
            found.append((25 / 12) * decay)
        return found


class RationalQuadratic(Radial):
    """The rational quadratic kernel, k = v (1 + Σ (τ_d/ℓ_d)²/(2α))^{−α}.

    Its density is infinite at ω = 0 for α ≤ D/2; the corrected mass of mode 0 is always finite. The
    quadrature behind masses is made for α ≥ 0.3, and learning keeps to that.
    """

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")
    alpha: Parameter = positive("alpha")

    def at_square(self, square: Float[AnyArray, ""]) -> Float[AnyArray, ""]:
        """Return v (1 + r²/(2α))^{−α}."""
        xp = functions_for(square)
        return self.variance * xp.exp(-self.alpha * xp.log1p(square / (2 * self.alpha)))

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return the Gamma mixture of Gaussian densities with λ_d² = ℓ_d² α/g."""
        g, weights = gamma_mixture(self.alpha, RATIONAL_NODES)
        lengthscale = jnp.sqrt(self.alpha / g)[:, None] * per_column(self.lengthscale, omega)
        bells = lengthscale / jnp.sqrt(2 * jnp.pi) * jnp.exp(-0.5 * (lengthscale * omega) ** 2)
        return self.variance * jnp.sum(weights * jnp.prod(bells, axis=1))

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return v."""
        return jnp.asarray(self.variance)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return v/ℓ_d²."""
        return jnp.broadcast_to(self.variance / self.lengthscale**2, (num_dims,))

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the mixture of the Gaussian masses at ω."""
        return self._mixture(
            lambda lengthscale: gaussian_mass(omega, lengthscale, spacing), omega.shape[0]
        )

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the mixture of the wrapped Gaussians at τ."""
        return self._mixture(
            lambda lengthscale: wrapped_gaussian(lag, lengthscale, period), lag.shape[0]
        )

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return frequencies that are normal given a Gamma(α) precision."""
        g = gamma_quantile(self.alpha, uniforms[:, 0])
        return jnp.asarray(normals) / self.lengthscale * jnp.sqrt(g / self.alpha)[:, None]

    def _mixture(self, of_lengthscale, num_dims: int) -> Float[AnyArray, ""]:
        g, weights = gamma_mixture(self.alpha, RATIONAL_NODES)
        lengthscales = jnp.sqrt(self.alpha / g)[:, None] * jnp.broadcast_to(
            self.lengthscale, (num_dims,)
        )
        return self.variance * jnp.sum(weights * jax.vmap(of_lengthscale)(lengthscales))


def matern_density(
    nu: Float[AnyArray, ""],
    variance: Float[AnyArray, ""],
    lengthscale: Float[AnyArray, "*d"],
    omega: Float[AnyArray, " d"],
) -> Float[AnyArray, ""]:
    """Return v Γ(ν+D/2)/(Γ(ν) π^{D/2}) (2ν)^ν ∏ℓ_d (2ν + Σ ℓ_d² ω_d²)^{−(ν+D/2)}."""
    half = omega.shape[0] / 2
    lengthscale = per_column(lengthscale, omega)
    log_constant = (
        gammaln(nu + half)
        - gammaln(nu)
        - half * jnp.log(jnp.pi)
        + nu * jnp.log(2 * nu)
        + jnp.sum(jnp.log(lengthscale))
    )
    quadratic = 2 * nu + jnp.sum((lengthscale * omega) ** 2)
    return variance * jnp.exp(log_constant - (nu + half) * jnp.log(quadratic))


def matern_derivative_variance(
    nu: Float[AnyArray, ""],
    variance: Float[AnyArray, ""],
    lengthscale: Float[AnyArray, "*d"],
    num_dims: int,
) -> Float[AnyArray, " d"]:
    """Return v ν/((ν−1) ℓ_d²), infinite for ν ≤ 1."""
    factor = jnp.where(nu > 1, nu / jnp.where(nu > 1, nu - 1, 1.0), jnp.inf)
    return jnp.broadcast_to(variance * factor / lengthscale**2, (num_dims,))


def per_column(
    lengthscale: Float[AnyArray, "*d"], like: Float[AnyArray, " d"]
) -> Float[AnyArray, " d"]:
    """Return one lengthscale per column."""
    return jnp.broadcast_to(lengthscale, like.shape)


def scaled_square(
    lag: Float[AnyArray, " d"], lengthscale: Float[AnyArray, "*d"]
) -> Float[AnyArray, ""]:
    """Return Σ (τ_d/ℓ_d)²."""
    # Written out: over many lags at once XLA's sums along the columns are ten times slower.
    inverse = 1 / per_column(lengthscale, lag)
    terms = [(lag[d] * inverse[d]) ** 2 for d in range(lag.shape[0])]
    return sum(terms[1:], start=terms[0])
