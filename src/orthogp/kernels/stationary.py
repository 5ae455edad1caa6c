r"""RBF, Matérn and rational-quadratic kernels; quasi-periodic ones, mixtures, a user's own density.

Covariance and spectral density stand side by side. RBF, Matérn and rational-quadratic kernels have
a `variance` v and a `lengthscale` ℓ, one number or one per input column (ARD). Matérn and rational
quadratic are Gaussians of random lengthscale λ, with g ~ Gamma(a, 1):

    Matérn-ν              λ² = ℓ² g/ν,   a = ν
    rational quadratic    λ² = ℓ² α/g,   a = α

The trapezoidal rule in log g converges faster than exponentially, is differentiable in a, and
serves for Bessel functions of any real order.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammainc, gammaln
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import KernelError, check_positive
from orthogp.kernels.base import Kernel, Lengths, Scalar, Vector, Vectors
from orthogp.precision import AnyArray, functions_for

if TYPE_CHECKING:
    # Constructors take numbers and sequences; their converters make arrays of them.
    Parameter = Any
else:
    Parameter = Float[AnyArray, "..."]

Floats = NDArray[np.float64]

# The nodes of the rule in log g for Matérn-ν: they reach far enough for ν ≥ 0.1.
MATERN_NODES = 600
# The nodes for the rational quadratic kernel, whose every mass needs them all: for α ≥ 0.3.
RATIONAL_NODES = 300
# The ratio of lengthscale to period below which the images converge in four terms to rounding;
# above it the Fourier series does in three.
_FEW_IMAGES = 0.4
# The halvings of an interval of log g, from hundreds to rounding.
_BISECTIONS = 60
# The images of rough kernels, by number of columns. Rough kernels are used with many features,
# where the period may be not much longer than a lengthscale, and all but the last digits of k(0)
# take as many.
MANY_IMAGES = {1: 16, 2: 8, 3: 4}
# The smallest power of a lag, in lengthscales, that anything is divided by.
_LEAST_DENOMINATOR = 1e-290


def gamma_mixture(shape: Scalar, num_nodes: int) -> tuple[Vector, Vector]:
    """Return nodes g and weights summing to one of a quadrature for Gamma(shape, 1)."""
    # The rule's error is |Γ(a + 2πi/Δ)|/Γ(a): below 1e-11 for both terms of this minimum.
    step = jnp.minimum(0.25, 0.55 / jnp.sqrt(shape))
    top = jnp.log(shape + 10 * jnp.sqrt(shape) + 60)
    log_g = top - step * jnp.arange(num_nodes)
    g = jnp.exp(log_g)
    weights = jnp.exp(shape * log_g - g - gammaln(shape)) * step
    return g, weights / jnp.sum(weights)


def gamma_quantile(shape: Scalar, level: Vector) -> Vector:
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


def gaussian_mass(omega: Vector, lengthscale: Vector, spacing: Vector) -> Scalar:
    r"""Return the mass at ω of a unit Gaussian kernel whose wrap is corrected in each dimension.

    With x = λ/P in one dimension, and the product over dimensions:

        mass_t = √(2π) x exp(−½ λ² ω_t²) for t ≠ 0,      mass_0 = 1 − Σ_{t≠0} mass_t
    """
    ratio = lengthscale * spacing / (2 * jnp.pi)
    decay = jnp.sqrt(2 * jnp.pi) * ratio * jnp.exp(-0.5 * (lengthscale * omega) ** 2)
    return jnp.prod(jnp.where(omega == 0, _zero_mode(ratio), decay))


def wrapped_gaussian(lag: Vector, lengthscale: Vector, period: Vector) -> Scalar:
    """Return Σ_t mass_t e^{iω_t·τ} for the masses of `gaussian_mass`."""
    ratio, phase = lengthscale / period, lag / period
    j = jnp.arange(1.0, 5.0)[:, None]

    def bell(shift: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return jnp.exp(-0.5 * (shift / ratio) ** 2)

    images = bell(phase) + jnp.sum(bell(phase + j) + bell(phase - j) - 2 * bell(j), axis=0)
    modes = jnp.exp(-2 * (jnp.pi * ratio * j) ** 2) * jnp.cos(2 * jnp.pi * j * phase)
    series = _zero_mode(ratio) + 2 * jnp.sqrt(2 * jnp.pi) * ratio * jnp.sum(modes, axis=0)
    return jnp.prod(jnp.where(ratio < _FEW_IMAGES, images, series))


def _zero_mode(ratio: Vector) -> Vector:
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
    def at_square(self, square: Scalar) -> Scalar:
        """Return the covariance where r² is `square`.

        If it also takes and gives arrays of NumPy, (n,), those are used where nothing needs a
        derivative: they are faster.
        """

    def correlations(self, square: Floats, order: int) -> list[Floats] | None:
        """Return k/v and its first derivatives in r², `order` of them (up to two), (n,) each.

        `None` if there is no closed form: derivatives are then compiled. A derivative that is
        infinite at zero counts as zero there, since all it is multiplied by vanishes.
        """
        return None

    def lengthscale_places(self, num_dims: int) -> NDArray[np.int64]:
        """Return which of its lengthscales each column has, (d,)."""
        several = np.size(self.parameters()["lengthscale"]) > 1
        return np.arange(num_dims) if several else np.zeros(num_dims, dtype=np.int64)

    def k(self, lag: Vector) -> Scalar:
        """Return the covariance at one lag."""
        return self.at_square(scaled_square(lag, self.parameters()["lengthscale"]))


class GaussianMixture(Radial):
    """A Gaussian kernel whose lengthscale may be random: of fixed ratios λ/ℓ in all columns."""

    @abstractmethod
    def random_ratios(self, uniforms: Vectors) -> Vectors | float:
        """Return draws of λ/ℓ made of uniform numbers, (r, 1)."""

    def slope(self) -> Scalar | float:
        """Return −2 ∂(k/v)/∂r² at zero."""
        return 1.0

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return v/ℓ_d² times the slope at zero."""
        lengthscale = self.parameters()["lengthscale"]
        return jnp.broadcast_to(self.prior_variance() * self.slope() / lengthscale**2, (num_dims,))

    def frequencies(self, normals: Vectors, uniforms: Vectors) -> Vectors:
        """Return frequencies that are normal, of standard deviation 1/λ_d, given λ."""
        lengthscale = self.parameters()["lengthscale"]
        return jnp.asarray(normals) / lengthscale / self.random_ratios(uniforms)


class RBF(GaussianMixture):
    """The squared exponential kernel, k = v exp(−½ Σ (τ_d/ℓ_d)²)."""

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    known_as = "rbf"

    def at_square(self, square: Scalar) -> Scalar:
        """Return v exp(−½ r²)."""
        return self.variance * functions_for(square).exp(-0.5 * square)

    def correlations(self, square: Floats, order: int) -> list[Floats]:
        """Return ρ = exp(−½ r²), −ρ/2 and ρ/4."""
        bell = np.exp(-0.5 * square)
        return [bell, -0.5 * bell, 0.25 * bell][: order + 1]

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return v ∏ℓ_d (2π)^{−D/2} exp(−½ Σ ℓ_d² ω_d²)."""
        return self.variance * gaussian_density(omega, per_column(self.lengthscale, omega))

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the mass of the mode at ω; see `gaussian_mass`."""
        return self.variance * gaussian_mass(omega, per_column(self.lengthscale, omega), spacing)

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return k_P(τ), the sum over the lattice of the masses."""
        return self.variance * wrapped_gaussian(lag, per_column(self.lengthscale, lag), period)

    def random_ratios(self, uniforms: Vectors) -> float:
        """Return 1: the lengthscale is not random."""
        return 1.0


class MaternFamily(GaussianMixture):
    """What Matérn kernels of any smoothness ν have in common."""

    nu: eqx.AbstractVar[Any]
    num_images = MANY_IMAGES

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return v Γ(ν+D/2)/(Γ(ν) π^{D/2}) (2ν)^ν ∏ℓ_d (2ν + Σ ℓ_d² ω_d²)^{−(ν+D/2)}."""
        nu, half = jnp.asarray(self.nu), omega.shape[0] / 2
        lengthscale = per_column(self.parameters()["lengthscale"], omega)
        log_constant = (
            gammaln(nu + half)
            - gammaln(nu)
            - half * jnp.log(jnp.pi)
            + nu * jnp.log(2 * nu)
            + jnp.sum(jnp.log(lengthscale))
        )
        quadratic = 2 * nu + jnp.sum((lengthscale * omega) ** 2)
        return self.prior_variance() * jnp.exp(log_constant - (nu + half) * jnp.log(quadratic))

    def slope(self) -> Scalar:
        """Return ν/(ν−1), infinite for ν ≤ 1."""
        nu = jnp.asarray(self.nu)
        return jnp.where(nu > 1, nu / jnp.where(nu > 1, nu - 1, 1.0), jnp.inf)

    def random_ratios(self, uniforms: Vectors) -> Vectors:
        """Return √(g/ν), with which frequencies are of the t distribution with 2ν degrees."""
        nu = jnp.asarray(self.nu)
        return jnp.sqrt(gamma_quantile(nu, uniforms[:, 0]) / nu)[:, None]


class Matern(MaternFamily):
    """The Matérn kernel of any real smoothness ν > 0, learned with the rest unless fixed."""

    nu: Parameter = positive("nu", 1.5)
    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    known_as = "matern"

    @property
    def dear(self) -> bool:
        """It is: a sum over the nodes of a mixture."""
        return True

    def at_square(self, square: Scalar) -> Scalar:
        """Return v 2^{1−ν}/Γ(ν) z^ν K_ν(z), z = √(2ν r²), as a Gaussian mixture."""
        g, weights = gamma_mixture(self.nu, MATERN_NODES)
        return self.variance * jnp.sum(weights * jnp.exp(-0.5 * self.nu * square / g))


# A function, because Equinox makes an object for each call of a method.
def root(square: Scalar) -> Scalar:
    """Return the square root, with a derivative of zero at zero."""
    if isinstance(square, np.ndarray):
        return np.sqrt(square)
    # The root's derivative at lag zero is infinite; its product with zero must not be NaN.
    safe = jnp.where(square > 0, square, 1.0)
    return jnp.where(square > 0, jnp.sqrt(safe), 0.0)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the ratio, zero where the denominator is zero but for rounding."""
    there = denominator > _LEAST_DENOMINATOR
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=there)


class HalfIntegerMatern(MaternFamily):
    """A Matérn kernel of fixed half-integer smoothness, with its elementary covariance.

    With z = √(2ν) r, k/v and its derivatives in r² are polynomials in z times z^{−p} e^{−z}.
    """

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")

    nu: ClassVar[float]  # type: ignore[override]
    #: The coefficients of the polynomial, from z⁰ on, and p: for k/v and two derivatives.
    profiles: ClassVar[tuple[tuple[tuple[float, ...], int], ...]]

    def at_square(self, square: Scalar) -> Scalar:
        """Return v times the polynomial times e^{−z}."""
        z = root(2 * self.nu * square)
        return self.variance * _polynomial(self.profiles[0][0], z) * functions_for(square).exp(-z)

    def correlations(self, square: Floats, order: int) -> list[Floats]:
        """Return the polynomials times z^{−p} e^{−z}."""
        z = np.sqrt(2 * self.nu * square)
        decay = np.exp(-z)
        found = []
        for coefficients, power in self.profiles[: order + 1]:
            values = _polynomial(coefficients, z) * decay
            found.append(_ratio(values, z**power) if power else values)
        return found

    def correlation_across(self, gap: float) -> float:
        r"""Return ‖L⁻¹ e^{F gap} L‖, L Lᵀ the covariance of the state (f, f′, …, f^{(p−1)}).

        With p = ν + ½ the process is Markov, ds = F s dt + noise. In units of √(2ν)/ℓ, F is the
        companion matrix of (x + 1)^p, so that F + I is nilpotent.
        """
        p = round(self.nu + 0.5)
        u = math.sqrt(2 * self.nu) * gap / float(np.max(np.asarray(self.lengthscale)))
        one = np.eye(p)
        F = np.eye(p, k=1)
        F[-1] = [-math.comb(p, i) for i in range(p)]
        # F C + C Fᵀ = −e eᵀ; a multiple of C does not matter.
        noise = np.outer(one[-1], one[-1]).ravel()
        covariance = np.linalg.solve(np.kron(F, one) + np.kron(one, F), -noise).reshape(p, p)
        L = np.linalg.cholesky(covariance)
        total = term = one
        for i in range(1, p):
            term = term @ (F + one) * (u / i)
            total = total + term
        norm = np.linalg.norm(np.linalg.solve(L, total @ L), 2)
        return min(1.0, math.exp(-u) * float(norm))


def _polynomial(coefficients: tuple[float, ...], z: Any) -> Any:
    """Return Σ_i c_i z^i."""
    return reduce(lambda value, c: value * z + c, reversed(coefficients))


class Matern12(HalfIntegerMatern):
    """The Matérn-1/2 (exponential) kernel, v e^{−z}: continuous paths without derivatives."""

    nu = 0.5
    known_as = "matern12"
    profiles = (((1.0,), 0), ((-1 / 2,), 1), ((1 / 4, 1 / 4), 3))


class Matern32(HalfIntegerMatern):
    """The Matérn-3/2 kernel, v (1 + z) e^{−z}: paths with one derivative."""

    nu = 1.5
    known_as = "matern32"
    profiles = (((1.0, 1.0), 0), ((-3 / 2,), 0), ((9 / 4,), 1))


class Matern52(HalfIntegerMatern):
    """The Matérn-5/2 kernel, v (1 + z + z²/3) e^{−z}: paths with two derivatives."""

    nu = 2.5
    known_as = "matern52"
    profiles = (((1.0, 1.0, 1 / 3), 0), ((-5 / 6, -5 / 6), 0), ((25 / 12,), 0))


class RationalQuadratic(GaussianMixture):
    """The rational quadratic kernel, k = v (1 + Σ (τ_d/ℓ_d)²/(2α))^{−α}.

    Its density is infinite at ω = 0 for α ≤ D/2; the corrected mass of mode 0 is always finite. The
    quadrature behind masses is made for α ≥ 0.3, and learning keeps to that.
    """

    variance: Parameter = positive("variance")
    lengthscale: Parameter = positive("lengthscale")
    alpha: Parameter = positive("alpha")

    known_as = "rational-quadratic"

    def at_square(self, square: Scalar) -> Scalar:
        """Return v (1 + r²/(2α))^{−α}."""
        xp = functions_for(square)
        return self.variance * xp.exp(-self.alpha * xp.log1p(square / (2 * self.alpha)))

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return the mixture of the Gaussian densities at ω."""
        return self._mixture(lambda lengthscale: gaussian_density(omega, lengthscale), omega)

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the mixture of the Gaussian masses at ω."""
        return self._mixture(lambda lengthscale: gaussian_mass(omega, lengthscale, spacing), omega)

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return the mixture of the wrapped Gaussians at τ."""
        return self._mixture(lambda lengthscale: wrapped_gaussian(lag, lengthscale, period), lag)

    def random_ratios(self, uniforms: Vectors) -> Vectors:
        """Return √(α/g)."""
        return jnp.sqrt(self.alpha / gamma_quantile(self.alpha, uniforms[:, 0]))[:, None]

    def _mixture(self, of_lengthscale: Callable[[Vector], Scalar], like: Vector) -> Scalar:
        g, weights = gamma_mixture(self.alpha, RATIONAL_NODES)
        lengthscales = jnp.sqrt(self.alpha / g)[:, None] * per_column(self.lengthscale, like)
        return self.variance * jnp.sum(weights * jax.vmap(of_lengthscale)(lengthscales))


def gaussian_density(omega: Vector, lengthscale: Vector) -> Scalar:
    """Return ∏ℓ_d (2π)^{−D/2} exp(−½ Σ ℓ_d² ω_d²)."""
    bells = lengthscale / jnp.sqrt(2 * jnp.pi) * jnp.exp(-0.5 * (lengthscale * omega) ** 2)
    return jnp.prod(bells)


def per_column(lengthscale: Lengths, like: Vector) -> Vector:
    """Return one lengthscale per column."""
    return jnp.broadcast_to(lengthscale, like.shape)


def scaled_square(lag: Vector, lengthscale: Lengths) -> Scalar:
    """Return Σ (τ_d/ℓ_d)²."""
    # Written out: over many lags at once XLA's sums along the columns are ten times slower.
    inverse = 1 / per_column(lengthscale, lag)
    terms = [(lag[d] * inverse[d]) ** 2 for d in range(lag.shape[0])]
    return sum(terms[1:], start=terms[0])


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
