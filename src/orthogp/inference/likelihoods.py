"""Likelihoods by name; and Student's t, which does not separate: each of its rows is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, ndtr, ndtri, stdtr

from orthogp.errors import InputError
from orthogp.inference.separable import (
    GAUSSIAN,
    HALVINGS,
    Binomial,
    Expectation,
    Gamma,
    Likelihood,
    NegativeBinomial,
    Poisson,
    VaryingNoise,
)

Floats = NDArray[np.float64]

# The smallest and the largest ν: below, noise has no variance; above, it is as good as normal.
_DEGREES = (2.05, 200.0)
# The smallest and the largest σ, relative to the spread of the targets.
_SCALES_OF_T = (1e-6, 1e2)
# The probability of the values of λ beyond those that quantiles average over.
_RAREST = 1e-12
# Nodes of the rule by which quantiles average over λ.
_NODES = 128


@dataclass(frozen=True)
class StudentT(Likelihood):
    r"""Targets f + σ t with t of ν degrees of freedom: noise with outliers.

    A t variable is a normal one of precision λ ~ Gamma(ν/2, ν/2)/σ², and the best independent q(λ)
    gives the bound, which is Jensen's inequality for the logarithm,

        E log p(y|f) ≥ log Γ((ν+1)/2)/Γ(ν/2) − ½ log πνσ² − (ν+1)/2 · log(1 + E(y−f)²/νσ²)

    Its sites have positive precisions κ = (ν+1)/(νσ² + E(y−f)²), small far out, and the targets y.

    Parameters
    ----------
    dispersion : float
        σ.
    degrees : float
        ν, whose prior is ν e^{−ν/10} (Juárez and Steel 2010).
    """

    degrees: float = 4.0

    known_as = "student-t"
    dispersed = True
    linear = False
    separates = False
    whole = False
    wanted = "numbers"
    range_of_means = (-np.inf, np.inf)
    # Fixed points are approached by shares of the way: further steps lead nearer.
    longest_step = 1.8

    @property
    def shape(self) -> Floats:
        """Log σ and log ν."""
        return np.log([self.dispersion, self.degrees])

    def with_shape(self, shape: Floats) -> Self:
        """Return the likelihood with other parameters."""
        scale, degrees = np.exp(shape)
        return replace(self, dispersion=float(scale), degrees=float(degrees))

    @property
    def shape_limits(self) -> tuple[Floats, Floats]:
        """The smallest and the largest logarithms, (2,) each."""
        ends = np.log([_SCALES_OF_T, _DEGREES])
        return ends[:, 0], ends[:, 1]

    def log_prior(self, shape: Floats) -> tuple[float, Floats, Floats]:
        """Return 2 log ν − ν/10, the density of log ν, with its derivatives."""
        tenth = float(np.exp(shape[1])) / 10
        value = 2 * float(shape[1]) - tenth
        return value, np.array([0.0, 2 - tenth]), np.array([0.0, -tenth])

    def _check(self, y: Floats, sizes: Floats) -> None:
        """Take all numbers."""

    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return nothing."""
        return np.zeros(0)

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return zero: what f does not touch stands with the rest."""
        return 0.0

    def local(
        self, targets: Floats, weights: Floats, mean: Floats, variance: Floats
    ) -> Expectation:
        """Return the bound on E log p with its derivatives."""
        unit, apart = self.degrees * self.dispersion**2, targets - mean
        square = apart**2 + variance
        half = (self.degrees + 1) / 2
        constant = gammaln(half) - gammaln(self.degrees / 2) - 0.5 * np.log(np.pi * unit)
        precision = weights * 2 * half / (unit + square)
        value = weights * (constant - half * np.log1p(square / unit))
        return Expectation(value, precision * apart, -precision)

    def link(self, mean: float) -> float:
        """Return the mean itself."""
        return mean

    def inverse_link(self, f: Floats) -> Floats:
        """Return f."""
        return f

    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return μ and s² + σ²ν/(ν − 2)."""
        return mean, variance + self.dispersion**2 * self.degrees / (self.degrees - 2)

    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return that of Student's t about f."""
        return stdtr(self.degrees, (y - f) / self.dispersion)

    def quantile(self, probability: float, mean: Floats, variance: Floats, sizes: Floats) -> Floats:
        """Return y with P(target ≤ y) = probability, for f ~ N(mean, variance).

        Averaged over λ, the target is normal with the variance s² + σ²/λ: smooth, however small σ.
        """
        half = self.degrees / 2
        low, high = np.log(gammaincinv(half, np.array([_RAREST, 1 - _RAREST])) / half)
        logs = np.linspace(low, high, _NODES)
        weights = np.exp(half * (logs - np.exp(logs)))
        sd = np.sqrt(variance[:, None] + self.dispersion**2 * np.exp(-logs))
        weights /= weights.sum()
        # As far out as the widest of the normal distributions has it.
        reach = np.abs(ndtri(min(probability, 1 - probability) / 2)) * sd.max(axis=1)
        lower, upper = -reach, reach
        for _ in range(HALVINGS):
            middle = (lower + upper) / 2
            short = ndtr(middle[:, None] / sd) @ weights < probability
            lower, upper = np.where(short, middle, lower), np.where(short, upper, middle)
        return mean + upper

    def scaled(self, factor: float) -> Self:
        """Return the likelihood of targets that are multiplied by a factor."""
        return self.with_dispersion(self.dispersion * factor)


_KINDS: tuple[type[Likelihood], ...] = (
    Poisson,
    Binomial,
    NegativeBinomial,
    Gamma,
    VaryingNoise,
    StudentT,
)
#: The likelihoods that `GPRegressor` knows by name.
LIKELIHOODS = (GAUSSIAN, *(kind.known_as for kind in _KINDS))


def resolve_likelihood(name: str) -> Likelihood | None:
    """Return the likelihood of a name; `None` stands for Gaussian noise."""
    for kind in _KINDS:
        if kind.known_as == name:
            return kind()
    if name == GAUSSIAN:
        return None
    raise InputError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {name!r}.")
