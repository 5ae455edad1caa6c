r"""Likelihoods that separate: sums of y and of one tell a lattice all that the rows say.

    log p(y|f) = y a(f) + b(f) + c(y)

With weights w (exposures, trials, repetitions) the rows enter a posterior of f by
Σ w_n y_n a(f(x_n)) and Σ w_n b(f(x_n)) alone, or by their expectations under f(x) ~ N(μ, s²):

| likelihood, link            | a(f)              | b(f)               | y, w as summed            |
|-----------------------------|-------------------|--------------------|---------------------------|
| Poisson, log                | f                 | −e^f               | count/exposure, exposure  |
| binomial, logit             | f                 | −log(1 + e^f)      | successes/trials, trials  |
| negative binomial r, log    | f − log(r + e^f)  | −r log(r + e^f)    | count, 1                  |
| gamma of shape r, log       | −r e^{−f}         | −r f               | y/exposure, 1             |
| Gaussian, noise e^g         | f                 | −f²/2              | y, e^{−g}                 |

c(y) needs totals that f does not touch: `constants`. All functions are elementwise in NumPy; the
likelihoods of `stochastic/normals.py` are for training by mini-batches, with JAX's derivatives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.special import bdtr, betainc, gammainc, gammaln, ndtr, ndtri, pdtr
from scipy.special import expit as logistic

from orthogp.errors import InputError
from orthogp.inference.logistic import expected_log_logistic, mean_logistic
from orthogp.rows import Rows

Floats = NDArray[np.float64]

#: The name of the likelihood with noise that is Gaussian, which has its engines.
GAUSSIAN = "gaussian"
#: The smallest and the largest dispersion r that is learned: beyond, counts are as good as Poisson.
DISPERSIONS = (1e-2, 1e4)
# Nodes of the polynomial in log r that stands for Σ log Γ(y + r): twelve digits.
_NODES = 64
# Nodes of the Gauss-Hermite rule by which quantiles average over f.
_HERMITE = 32
#: Halvings of the interval that holds a quantile.
HALVINGS = 60
#: Nodes and weights of the Gauss-Hermite rule that averages over the log noise variance.
NOISE_NODES, NOISE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
NOISE_WEIGHTS = NOISE_WEIGHTS / NOISE_WEIGHTS.sum()


class Expectation(NamedTuple):
    """E g(f) for f ~ N(μ, s²), and its first and second derivative by μ."""

    value: Floats
    slope: Floats
    curvature: Floats

    def times(self, factor: float | Floats) -> Expectation:
        """Return the expectation of a multiple of g."""
        return Expectation(*(factor * own for own in self))

    def plus(self, other: Expectation) -> Expectation:
        """Return the expectation of a sum."""
        return Expectation(*(a + b for a, b in zip(self, other, strict=True)))


def _identity(mean: Floats) -> Expectation:
    return Expectation(mean, np.ones_like(mean), np.zeros_like(mean))


def _exponential(mean: Floats, variance: Floats, sign: float = 1.0) -> Expectation:
    # Steps that overshoot are refused by their bound, which must not overflow.
    value = np.exp(np.minimum(sign * mean + variance / 2, 600.0))
    return Expectation(value, sign * value, value)


def _softplus(mean: Floats, variance: Floats) -> Expectation:
    found = expected_log_logistic(-mean, variance)
    return Expectation(-found.value, found.slope, found.curvature)


class Parts(NamedTuple):
    """The expectations of a(f), which y multiplies, and of b(f)."""

    of_target: Expectation
    of_one: Expectation


@dataclass(frozen=True)
class Likelihood(ABC):
    """How targets come about, given f.

    Parameters
    ----------
    dispersion : float
        r, where the likelihood has one.
    """

    #: What users call it.
    known_as: ClassVar[str]
    #: What users call the second column of y, if there may be one: how much each row stands for.
    size_is: ClassVar[str | None] = None
    #: Whether r is a parameter.
    dispersed: ClassVar[bool] = False
    #: Whether y multiplies f itself: sums of y are then needed at the features' frequencies only.
    linear: ClassVar[bool] = True
    #: What the targets must be.
    wanted: ClassVar[str]
    #: Between which ends means of the targets, of size one, lie.
    range_of_means: ClassVar[tuple[float, float]] = (0.0, np.inf)
    #: Whether sums over the rows tell all; else each row is looked at.
    separates: ClassVar[bool] = True
    #: Whether targets are whole numbers.
    whole: ClassVar[bool] = True
    #: The longest step toward the sites that are asked for: one where they are Newton's.
    longest_step: ClassVar[float] = 1.0

    dispersion: float = 1.0

    def with_dispersion(self, dispersion: float) -> Self:
        """Return the likelihood with another dispersion."""
        return replace(self, dispersion=dispersion)

    @property
    def shape(self) -> Floats:
        """The logarithms of the learned parameters, (k,)."""
        return np.log([self.dispersion] if self.dispersed else [])

    def with_shape(self, shape: Floats) -> Self:
        """Return the likelihood with other parameters."""
        return self.with_dispersion(float(np.exp(shape[0]))) if self.dispersed else self

    def log_prior(self, shape: Floats) -> tuple[float, Floats, Floats]:
        """Return the log density of the parameters, its gradient and its second derivatives."""
        return 0.0, np.zeros(len(shape)), np.zeros(len(shape))

    @property
    def shape_limits(self) -> tuple[Floats, Floats]:
        """The smallest and the largest logarithms, (k,) each."""
        low, high = np.log(DISPERSIONS)[:, None] if self.dispersed else np.empty((2, 0))
        return low, high

    def scaled(self, factor: float) -> Self:
        """Return the likelihood of targets that are multiplied by a factor, where they may be."""
        return self

    @property
    def learned(self) -> float | None:
        """The dispersion, `None` if the likelihood has none."""
        return self.dispersion if self.dispersed else None

    # ------------------------------------------------------------------ rows

    def summands(self, rows: Rows, shift: Floats | None = None) -> tuple[Rows, Floats]:
        """Return the rows with y and weights as they are summed, and the totals of c(y).

        Parameters
        ----------
        rows : Rows
            With targets y, or y and sizes: exposures or trials.
        shift : (p,), optional
            Of the sums that these rows join; for likelihoods whose sums depend on it.
        """
        y, sizes = self.checked(rows)
        weights = np.ones(len(y)) if rows.weights is None else rows.weights
        constants = self.constants(y, sizes, weights)
        target, weights = self._summed(y, sizes, weights)
        return rows._replace(y=target[:, None], weights=weights), constants

    def checked(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return targets and sizes, (n,) each, having seen that they can be what they should be."""
        values = np.asarray(rows.y, dtype=np.float64)
        if values.shape[1] > 1 + (self.size_is is not None):
            beside = f" and {self.size_is}" if self.size_is else ""
            raise InputError(
                f"The {self.known_as} likelihood takes one column of targets{beside}, got "
                f"{values.shape[1]} columns: fit a model for each target."
            )
        y, sizes = values[:, 0], np.ones(len(values))
        if values.shape[1] == 2:
            sizes = values[:, 1]
            self._demand(sizes, sizes > 0, f"{str(self.size_is).capitalize()} must be positive")
        self._check(y, sizes)
        return y, sizes

    @abstractmethod
    def _check(self, y: Floats, sizes: Floats) -> None:
        """Raise `InputError` unless the targets can be what they should be."""

    def _demand(self, values: Floats, good: NDArray[np.bool_], rule: str) -> None:
        if not np.all(good):
            bad = np.flatnonzero(~good)
            raise InputError(
                f"{rule} for the {self.known_as} likelihood, but {len(bad)} of {len(values)} rows "
                f"are not, such as {values[bad[0]]:.6g}: correct or remove them."
            )

    def _summed(self, y: Floats, sizes: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return the targets and weights of the sums."""
        return y / sizes, weights * sizes

    # ------------------------------------------------------------------ the log density

    @abstractmethod
    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return the totals that `normaliser` needs, which add up over data sets, (k,)."""

    @abstractmethod
    def normaliser(self, constants: Floats, count: float) -> float:
        """Return Σ w_n c(y_n), from totals and Σ w_n."""

    @abstractmethod
    def local(
        self, targets: Floats, weights: Floats, mean: Floats, variance: Floats
    ) -> Expectation:
        """Return what each row adds to the expected log density, without c(y), for such f.

        Its slope is by the mean; its curvature twice the derivative by the variance.

        Parameters
        ----------
        targets, weights : (n,)
            As they are summed; see `summands`.
        """

    def log_predictive(self, rows: Rows, mean: Floats, variance: Floats) -> float:
        """Return Σ w log p(y) of rows, for f ~ N(mean, variance) at each."""
        summed, constants = self.summands(rows)
        assert summed.weights is not None
        nodes, shares = np.polynomial.hermite_e.hermegauss(_HERMITE)
        targets, weights = summed.y[:, 0], summed.weights
        repeats = np.ones(len(targets)) if rows.weights is None else rows.weights
        densities = [
            self.local(targets, weights / repeats, mean + node * np.sqrt(variance), 0 * mean).value
            for node in nodes
        ]
        values = np.logaddexp.reduce(np.stack(densities) + np.log(shares / shares.sum())[:, None])
        return float(repeats @ values) + self.normaliser(constants, float(weights.sum()))

    def started(self, average: float, square: float) -> Self:
        """Return the likelihood with a dispersion to start from, by moments of the targets."""
        return self

    # ------------------------------------------------------------------ predictions

    @abstractmethod
    def link(self, mean: float) -> float:
        """Return the f at which targets have a mean."""

    def typical(self, average: float, count: float) -> float:
        """Return the f of the average target; one that is nothing, or all, is half a row away."""
        half = 0.5 / max(count, 1.0)
        low, high = self.range_of_means
        return self.link(float(np.clip(average, low + half, high - half)))

    @abstractmethod
    def inverse_link(self, f: Floats) -> Floats:
        """Return the mean of the targets, of size one, given f."""

    @abstractmethod
    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of a target of some size, for f ~ N(mean, variance)."""

    @abstractmethod
    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return P(target ≤ y) given f."""

    def quantile(self, probability: float, mean: Floats, variance: Floats, sizes: Floats) -> Floats:
        """Return the smallest y with P(target ≤ y) ≥ probability, for f ~ N(mean, variance)."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(_HERMITE)
        weights = weights / weights.sum()
        f = mean[:, None] + np.sqrt(variance)[:, None] * nodes

        def below(y: Floats) -> NDArray[np.bool_]:
            return self.cdf(y[:, None], f, sizes[:, None]) @ weights < probability

        expected, spread = self.moments(mean, variance, sizes)
        lower, upper = np.full(len(mean), -1.0 if self.whole else 0.0), expected + np.sqrt(spread)
        for _ in range(HALVINGS):
            short = below(upper)
            if not short.any():
                break
            upper = np.where(short, 2 * upper + 1, upper)
        if self.whole:
            upper = np.ceil(upper)
        for _ in range(HALVINGS):
            middle = (lower + upper) / 2
            middle = np.floor(middle) if self.whole else middle
            short = below(middle)
            lower, upper = np.where(short, middle, lower), np.where(short, upper, middle)
            if self.whole and np.all(upper - lower <= 1):
                break
        return upper


class Separable(Likelihood):
    """A likelihood that separates; see the module's docstring."""

    @abstractmethod
    def parts(self, mean: Floats, variance: Floats) -> Parts:
        """Return the expectations of a(f) and b(f) for f ~ N(mean, variance)."""

    def local(
        self, targets: Floats, weights: Floats, mean: Floats, variance: Floats
    ) -> Expectation:
        """Return w (y E a(f) + E b(f)) with its derivatives."""
        of_target, of_one = self.parts(mean, variance)
        return Expectation(
            *(weights * (targets * a + b) for a, b in zip(of_target, of_one, strict=True))
        )


class _Counts(Separable):
    """Counts y = 0, 1, … of mean e^f."""

    wanted = "whole numbers ≥ 0"

    def _check(self, y: Floats, sizes: Floats) -> None:
        self._demand(y, (y >= 0) & (y == np.floor(y)), f"y must be {self.wanted}")

    def link(self, mean: float) -> float:
        """Return log mean."""
        return float(np.log(mean))

    def inverse_link(self, f: Floats) -> Floats:
        """Return e^f."""
        return np.exp(f)


@dataclass(frozen=True)
class Poisson(_Counts):
    """Counts of mean exposure · e^f."""

    known_as = "poisson"
    size_is = "exposure"

    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return Σ w (y log exposure − log y!)."""
        return np.array([weights @ (y * np.log(sizes) - gammaln(y + 1))])

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return the total as it is."""
        return float(constants[0])

    def parts(self, mean: Floats, variance: Floats) -> Parts:
        """Return those of f and −e^f."""
        return Parts(_identity(mean), _exponential(mean, variance).times(-1.0))

    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return λ = size · e^{μ+s²/2} and λ + λ² (e^{s²} − 1)."""
        rate = sizes * np.exp(mean + variance / 2)
        return rate, rate + rate**2 * np.expm1(variance)

    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return Σ_{j ≤ y} λ^j e^{−λ}/j!."""
        y, rate = np.broadcast_arrays(y, sizes * np.exp(f))
        return np.where(y < 0, 0.0, pdtr(np.maximum(y, 0), rate))


@dataclass(frozen=True)
class Binomial(Separable):
    """Successes among trials, each with the probability 1/(1 + e^{−f})."""

    known_as = "binomial"
    size_is = "trials"
    wanted = "whole numbers from 0 to the number of trials"
    range_of_means = (0.0, 1.0)

    def _check(self, y: Floats, sizes: Floats) -> None:
        self._demand(sizes, sizes == np.floor(sizes), "trials must be whole numbers ≥ 1")
        self._demand(y, (y >= 0) & (y == np.floor(y)) & (y <= sizes), f"y must be {self.wanted}")

    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return Σ w log (trials choose y)."""
        ways = gammaln(sizes + 1) - gammaln(y + 1) - gammaln(sizes - y + 1)
        return np.array([weights @ ways])

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return the total as it is."""
        return float(constants[0])

    def parts(self, mean: Floats, variance: Floats) -> Parts:
        """Return those of f and −log(1 + e^f)."""
        return Parts(_identity(mean), _softplus(mean, variance).times(-1.0))

    def link(self, mean: float) -> float:
        """Return log mean/(1 − mean)."""
        return float(np.log(mean) - np.log1p(-mean))

    def inverse_link(self, f: Floats) -> Floats:
        """Return 1/(1 + e^{−f})."""
        return logistic(f)

    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return n p and n p (1 − p) + n (n − 1) var p, with p averaged over f."""
        p = mean_logistic(mean, variance)
        # E p (1 − p) is the derivative of E p by μ.
        spread = expected_log_logistic(mean, variance).curvature
        return sizes * p, sizes * spread + sizes**2 * np.maximum(p * (1 - p) - spread, 0.0)

    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return Σ_{j ≤ y} (n choose j) p^j (1 − p)^{n−j}."""
        y, p, n = np.broadcast_arrays(y, logistic(f), sizes)
        inside = bdtr(np.clip(y, 0, n), n.astype(np.int64), p)
        return np.where(y < 0, 0.0, np.where(y >= n, 1.0, inside))


@dataclass(frozen=True)
class NegativeBinomial(_Counts):
    """Counts of mean e^f and variance e^f + e^{2f}/r.

    Exposures do not separate: r would have to grow with them.
    """

    known_as = "negative-binomial"
    dispersed = True
    linear = False

    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return Σ w log y!, and Σ w log Γ(y + r)/Γ(r) at nodes in log r."""
        counts, which = np.unique(y, return_inverse=True)
        repeats = np.bincount(which.ravel(), weights)
        nodes = np.exp(_log_nodes())
        # The logarithm of r (r+1) ⋯ (r+y−1).
        rising = gammaln(counts[:, None] + nodes) - gammaln(nodes)
        return np.append(repeats @ gammaln(counts + 1), repeats @ rising)

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return Σ w (log Γ(y + r)/Γ(r) − log y! + r log r)."""
        r = self.dispersion
        middle, half = np.mean(np.log(DISPERSIONS)), np.ptp(np.log(DISPERSIONS)) / 2
        place = (np.log(r) - middle) / half
        rising = chebyshev.chebval(place, _interpolating(constants[1:]))
        return float(rising - constants[0] + count * r * np.log(r))

    def started(self, average: float, square: float) -> Self:
        """Return r as if half of the variance beyond Poisson's were the likelihood's."""
        beyond = max(square - average**2 - average, 1e-3 * average)
        return self.with_dispersion(float(np.clip(2 * average**2 / beyond, 0.1, 100.0)))

    def parts(self, mean: Floats, variance: Floats) -> Parts:
        """Return those of f − log(r + e^f) and −r log(r + e^f)."""
        r = self.dispersion
        found = _softplus(mean - np.log(r), variance)
        together = found._replace(value=found.value + np.log(r))
        return Parts(_identity(mean).plus(together.times(-1.0)), together.times(-r))

    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return λ = e^{μ+s²/2} and λ + λ² (e^{s²}(1 + 1/r) − 1)."""
        rate = np.exp(mean + variance / 2)
        return rate, rate + rate**2 * (np.exp(variance) * (1 + 1 / self.dispersion) - 1)

    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return that of the negative binomial distribution with r and the mean e^f."""
        r = self.dispersion
        y, p = np.broadcast_arrays(y, r / (r + np.exp(f)))
        return np.where(y < 0, 0.0, betainc(r, np.maximum(y, 0) + 1, p))


def _log_nodes() -> Floats:
    """Return Chebyshev's nodes in log r between the smallest and the largest dispersion."""
    middle, half = np.mean(np.log(DISPERSIONS)), np.ptp(np.log(DISPERSIONS)) / 2
    return middle + half * np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)


def _interpolating(values: Floats) -> Floats:
    """Return the Chebyshev coefficients of the polynomial through values at the nodes."""
    angles = np.pi * (np.arange(_NODES) + 0.5) / _NODES
    coefficients = 2 / _NODES * np.cos(np.outer(np.arange(_NODES), angles)) @ values
    coefficients[0] /= 2
    return coefficients


@dataclass(frozen=True)
class Gamma(Separable):
    """Positive amounts of mean exposure · e^f and coefficient of variation 1/√r, r the shape."""

    known_as = "gamma"
    size_is = "exposure"
    dispersed = True
    linear = False
    whole = False
    wanted = "positive"

    def _check(self, y: Floats, sizes: Floats) -> None:
        self._demand(y, y > 0, f"y must be {self.wanted}")

    def _summed(self, y: Floats, sizes: Floats, weights: Floats) -> tuple[Floats, Floats]:
        return y / sizes, weights

    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return Σ w log y and Σ w log exposure."""
        return np.array([weights @ np.log(y), weights @ np.log(sizes)])

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return Σ w (r log r − log Γ(r) + (r − 1) log y − r log exposure)."""
        r = self.dispersion
        per_row = r * np.log(r) - gammaln(r)
        return float(count * per_row + (r - 1) * constants[0] - r * constants[1])

    def started(self, average: float, square: float) -> Self:
        """Return r as if half of the variance were the likelihood's."""
        beyond = max(square - average**2, 1e-3 * average**2)
        return self.with_dispersion(float(np.clip(2 * average**2 / beyond, 0.1, 100.0)))

    def parts(self, mean: Floats, variance: Floats) -> Parts:
        """Return those of −r e^{−f} and −r f."""
        r = self.dispersion
        return Parts(_exponential(mean, variance, -1.0).times(-r), _identity(mean).times(-r))

    def link(self, mean: float) -> float:
        """Return log mean."""
        return float(np.log(mean))

    def inverse_link(self, f: Floats) -> Floats:
        """Return e^f."""
        return np.exp(f)

    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return λ = size · e^{μ+s²/2} and λ² (e^{s²}(1 + 1/r) − 1)."""
        rate = sizes * np.exp(mean + variance / 2)
        return rate, rate**2 * (np.exp(variance) * (1 + 1 / self.dispersion) - 1)

    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return the incomplete gamma function of r y e^{−f}/size."""
        r = self.dispersion
        return gammainc(r, r * np.maximum(y, 0) * np.exp(-f) / sizes)


@dataclass(frozen=True)
class SquaredErrors(Gamma):
    """Squared errors e² of Gaussian noise of variance e^g: gamma amounts of shape ½.

    log p = −½ g − ½ e² e^{−g}, less what y itself says, which the mean process accounts for.
    """

    known_as = "squared errors"
    size_is = None
    dispersed = False

    dispersion: float = 0.5

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return zero."""
        return 0.0


@dataclass(frozen=True)
class VaryingNoise(Separable):
    """Numbers y = f + ε with ε ~ N(0, e^g), g a process of its own.

    As the likelihood of f, g being known in distribution: the weights are then E e^{−g}, and
    `constants` has what is left of the log density. As sizes of new observations it takes the
    variances e^g at the nodes of a Gauss-Hermite rule over g, (n, 16).
    """

    known_as = "heteroscedastic"
    whole = False
    wanted = "numbers"
    range_of_means = (-np.inf, np.inf)

    def summands(self, rows: Rows, shift: Floats | None = None) -> tuple[Rows, Floats]:
        """Return the rows with y and (y − shift)², and no totals; the shift is the mean of y."""
        y, _ = self.checked(rows)
        centre = np.average(y, weights=rows.weights) if shift is None else shift[0]
        return rows._replace(y=np.column_stack([y, (y - centre) ** 2])), np.zeros(0)

    def _check(self, y: Floats, sizes: Floats) -> None:
        pass

    def constants(self, y: Floats, sizes: Floats, weights: Floats) -> Floats:
        """Return nothing: what y alone says of the density follows from the sums."""
        return np.zeros(0)

    def normaliser(self, constants: Floats, count: float) -> float:
        """Return the total as it is."""
        return float(constants[0])

    def parts(self, mean: Floats, variance: Floats) -> Parts:
        """Return those of f and −f²/2."""
        half = Expectation(-(mean**2 + variance) / 2, -mean, np.full_like(mean, -1.0))
        return Parts(_identity(mean), half)

    def link(self, mean: float) -> float:
        """Return the mean."""
        return mean

    def inverse_link(self, f: Floats) -> Floats:
        """Return f."""
        return f

    def moments(self, mean: Floats, variance: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Return μ and s² + E e^g."""
        return mean, variance + sizes @ NOISE_WEIGHTS

    def cdf(self, y: Floats, f: Floats, sizes: Floats) -> Floats:
        """Return E Φ((y − f)/e^{g/2})."""
        return ndtr((y - f)[..., None] / np.sqrt(sizes)) @ NOISE_WEIGHTS

    def quantile(self, probability: float, mean: Floats, variance: Floats, sizes: Floats) -> Floats:
        """Return the quantile of N(μ, s² + e^g), averaged over g, by bisection."""
        sd = np.sqrt(variance[:, None] + sizes)
        ends = mean[:, None] + sd * ndtri(probability)
        lower, upper = ends.min(axis=1), ends.max(axis=1)
        for _ in range(HALVINGS):
            middle = (lower + upper) / 2
            below = ndtr((middle - mean)[:, None] / sd) @ NOISE_WEIGHTS < probability
            lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
        return upper
