r"""What is known of a hyperparameter before the data: priors, bounds, fixed values.

Everything is learned in logarithms, so a prior is the density of log θ:

    log-normal          log θ ~ N(log median, sd²)
    gamma               θ^c ~ Gamma(a, b):      log |c| + a log b − log Γ(a) + a c log θ − b θ^c

With c = 1 the second is the gamma prior of θ, with c = −1 the inverse gamma prior, and with a = 1 a
penalised-complexity prior (Fuglstad, Simpson, Lindgren and Rue, 2019): the lengthscale ℓ of a
Matérn kernel in d columns has P(ℓ < ℓ₀) = α if c = −d/2, b = −log(α) ℓ₀^{d/2}, and a variance v has
P(√v > s₀) = α if c = ½, b = −log(α)/s₀.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from orthogp.errors import KernelError, check_positive

Array = NDArray[np.float64]


class Density(NamedTuple):
    """A log density at some logarithms, with its first and second derivatives in them."""

    value: Array
    slope: Array
    bend: Array


class Prior(ABC):
    """The density of the logarithm of a positive number."""

    @abstractmethod
    def log_density(self, logs: Array) -> Density:
        """Return the log density of log θ at each of some log θ."""

    @abstractmethod
    def scaled(self, factor: float) -> Prior:
        """Return the prior of factor · θ."""


@dataclass(frozen=True)
class LogNormal(Prior):
    """Log θ is normal: log θ ~ N(log median, sd²)."""

    median: float
    sd: float

    def __post_init__(self) -> None:
        check_number(self.median, "The median of LogNormal")
        check_number(self.sd, "The sd of LogNormal")

    def log_density(self, logs: Array) -> Density:
        """Return the log density of log θ at each of some log θ."""
        z = (logs - np.log(self.median)) / self.sd
        value = -0.5 * z**2 - np.log(self.sd * np.sqrt(2 * np.pi))
        return Density(value, -z / self.sd, np.full_like(z, -1 / self.sd**2))

    def scaled(self, factor: float) -> LogNormal:
        """Return the prior of factor · θ."""
        return replace(self, median=self.median * factor)


@dataclass(frozen=True)
class Gamma(Prior):
    """A power of θ is gamma distributed: θ^power ~ Gamma(shape, rate).

    Power 1 makes θ gamma distributed, with mean shape/rate, and power −1 inverse gamma distributed,
    with scale `rate`.
    """

    shape: float
    rate: float
    power: float = 1.0

    def __post_init__(self) -> None:
        check_number(self.shape, "The shape of Gamma")
        check_number(self.rate, "The rate of Gamma")
        check_number(abs(self.power), "The power of Gamma, its sign apart,")

    def log_density(self, logs: Array) -> Density:
        """Return the log density of log θ at each of some log θ."""
        a, b, c = self.shape, self.rate, self.power
        with np.errstate(over="ignore"):
            powered = b * np.exp(c * logs)
        value = np.log(abs(c)) + a * np.log(b) - gammaln(a) + a * c * logs - powered
        return Density(value, c * (a - powered), -(c**2) * powered)

    def scaled(self, factor: float) -> Gamma:
        """Return the prior of factor · θ."""
        return replace(self, rate=self.rate * factor**-self.power)


def penalised_lengthscale(below: float, probability: float, columns: int = 1) -> Gamma:
    """Return the penalised-complexity prior of a Matérn lengthscale, P(ℓ < below) = probability.

    Parameters
    ----------
    columns : int
        How many columns the kernel acts on.
    """
    check_number(below, "below")
    half = check_number(columns, "columns") / 2
    return Gamma(1.0, -np.log(_check_probability(probability)) * below**half, -half)


def penalised_variance(sd_above: float, probability: float) -> Gamma:
    """Return the penalised-complexity prior of a variance v, P(√v > sd_above) = probability."""
    check_number(sd_above, "sd_above")
    return Gamma(1.0, -np.log(_check_probability(probability)) / sd_above, 0.5)


def check_number(value: object, name: str) -> float:
    """Return a positive number, or raise `KernelError`."""
    number = check_positive(value, name)
    if number.ndim:
        raise KernelError(f"{name} must be one number, got {value!r}.")
    return float(number)


def check_bounds(lower: object, upper: object, name: str) -> tuple[float, float]:
    """Return bounds, or raise `KernelError` unless 0 < lower < upper."""
    low = check_number(lower, f"The lower bound of {name}")
    high = check_number(upper, f"The upper bound of {name}")
    if not low < high:
        raise KernelError(
            f"The lower bound of {name} must be below the upper one, got {low:g} and {high:g}: "
            "exchange them, or fix the parameter."
        )
    return low, high


def _check_probability(value: float) -> float:
    if not 0 < check_number(value, "probability") < 1:
        raise KernelError(f"probability must be between 0 and 1, got {value!r}.")
    return float(value)


@dataclass(frozen=True)
class Noise:
    """The noise variance of a regression: a value to start from or to keep, bounds, a prior.

    `GPRegressor(noise_variance=Noise(0.01).fix())` learns the kernel and keeps the noise variance;
    `Noise().bound(1e-4, 1.0)` and `Noise().prior(LogNormal(0.1, 1.0))` are for learning it.

    Parameters
    ----------
    value : float, optional
        In squared units of y; read off the data unless given.
    fixed, bounds, belief
        What `fix`, `bound` and `prior` set.
    """

    value: float | None = None
    fixed: bool = False
    bounds: tuple[float, float] | None = None
    belief: Prior | None = None

    def __post_init__(self) -> None:
        if self.value is not None:
            check_number(self.value, "The noise variance")
        if self.bounds is not None:
            check_bounds(*self.bounds, "the noise variance")
        if self.fixed and self.value is None:
            raise KernelError(
                "A noise variance that is fixed needs a value: write Noise(0.01).fix()."
            )
        if self.fixed and (self.bounds is not None or self.belief is not None):
            what = "bounds" if self.belief is None else "a prior"
            raise KernelError(
                f"The noise variance is fixed and cannot have {what}: leave out one of the two."
            )

    def fix(self) -> Noise:
        """Return a copy whose value is not learned."""
        return replace(self, fixed=True)

    def bound(self, lower: float, upper: float) -> Noise:
        """Return a copy that is learned between bounds."""
        return replace(self, bounds=(lower, upper))

    def prior(self, prior: Prior) -> Noise:
        """Return a copy that is learned with a prior."""
        check_prior(prior)
        return replace(self, belief=prior)

    def scaled(self, factor: float) -> Noise:
        """Return the noise of targets whose squared unit is another."""
        bounds = self.bounds
        return replace(
            self,
            value=None if self.value is None else self.value * factor,
            bounds=None if bounds is None else (bounds[0] * factor, bounds[1] * factor),
            belief=None if self.belief is None else self.belief.scaled(factor),
        )

    @classmethod
    def of(cls, given: float | Noise | None) -> Noise:
        """Return what an estimator's argument says: a number is a value to start from."""
        return given if isinstance(given, Noise) else cls(None if given is None else float(given))


def check_prior(prior: object) -> None:
    """Raise `KernelError` unless an object is a prior."""
    if not isinstance(prior, Prior):
        raise KernelError(
            f"A prior must be LogNormal, Gamma, penalised_lengthscale or penalised_variance of "
            f"orthogp.kernels, got {prior!r}."
        )
