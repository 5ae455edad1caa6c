r"""The Gaussian q(f) closest to the posterior of a likelihood that separates, and its bound.

With orthonormal features φ, u ~ N(0, I) a priori, q(u) = N(m, S) and what the features leave out,
d = k(0) − Σ mass, in all variances, f(x) ~ N(μ(x), s²(x)) with μ = μ₀ + φᵀm and s² = φᵀSφ + d:

    L = Σ_n w_n E_q[y_n a(f_n) + b(f_n) + c(y_n)] − KL(q(u) ‖ N(0, I)) ≤ log p(y)

μ and s² are series on the torus; so are the expectations of a and b (`inference/separable.py`), and
their sums over the rows come from a measure (`measures.py`). L is stationary where

    S⁻¹ = I + Σ_n κ_n φ_nφ_nᵀ,      m = S Σ_n (γ_n + κ_n (μ_n − μ₀)) φ_n

with γ_n and −κ_n the first and second derivatives of the rows' terms by μ_n: a regression with
weights, whose sums are those of any regression. Taking its solution is a step of natural-gradient
ascent of size one, and Newton's step for m; where it overshoots, a shorter one is taken.

By the hyperparameters, with q(z) of the coefficients z of cosines and sines held (L is stationary),

    ∂L/∂log a_i = ½ (m_i² + S_ii − 1),      ∂L/∂d = −½ Σ κ_n,

a_i the prior variance of the i-th coefficient.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import PrecisionError
from orthogp.features import Lattice
from orthogp.features.base import prior_variance
from orthogp.inference.bounds import Bound, factorise_in_place, unwhiten, whiten
from orthogp.inference.fourier_series import Blocks, SeriesBox
from orthogp.inference.parameters import learned_slots, masses_and_jacobian, unpack
from orthogp.inference.separable import Parts, Separable
from orthogp.kernels import Kernel
from orthogp.learning.optimise import Evaluation
from orthogp.likelihoods.measures import Measure, RowMeasure, TorusMeasure
from orthogp.precision import BlasThreads
from orthogp.statistics.nufft import TOLERANCE

Floats = NDArray[np.float64]

#: An ascent has converged when a step gains fewer nats than this: the next would gain far fewer.
CONVERGED = 1e-6
#: The largest effect of cut frequencies, in posterior sd and relative to variances.
ALLOWED_CUT = 1e-3
# The most steps of an ascent.
_MOST_STEPS = 100
# The most steps that polish q(u) in the end,
_POLISHING = 20
#: as long as they move the mean by more posterior standard deviations than this.
POLISHED = 1e-12
# The number of times that a step is halved before it is given up.
_HALVINGS = 12
# The error of sums relative to Σ w, typically: their tolerance, a bound, is fifty times as much.
_SUMS = TOLERANCE / 50
# The step in log r by which the bound is differentiated.
_DIFFERENCE = 1e-4
# The largest grid of the torus, in points for each row, where the rows are at hand.
_POINTS_PER_ROW = 2.0
(potri,) = get_lapack_funcs(("potri",), dtype=np.float64)


class Sites(NamedTuple):
    """The regression that stands for the rows, in the cosines and sines ψ.

    Its gram is Σ κ ψψᵀ, its projection Σ (γ + κ (μ − μ₀)) ψ.
    """

    gram: Floats
    projection: Floats

    def toward(self, other: Sites, step: float) -> Sites:
        """Return (1 − step) of these sites and `step` of the others."""
        return Sites(*((1 - step) * a + step * b for a, b in zip(self, other, strict=True)))


class Approximation(NamedTuple):
    """q(u), its bound, and the sites that it asks for.

    Attributes
    ----------
    mean, chol : (m,), (m, m)
        m, and L with S⁻¹ = LLᵀ.
    spread : (m,)
        The diagonal of S.
    total_covariance : float
        Σ_ij |cov(z_i, z_j)| of the coefficients z of cosines and sines.
    bound : Bound
        The expected log likelihood, minus the divergence, and what the features leave out.
    precision_total : float
        Σ κ_n.
    sites, better : Sites
        Those that q comes from, and those that it asks for.
    series : tuple
        The coefficients of μ − μ₀ and s² − d.
    """

    mean: Floats
    chol: Floats
    spread: Floats
    total_covariance: float
    bound: Bound
    precision_total: float
    sites: Sites
    better: Sites
    series: tuple[NDArray[np.complex128], NDArray[np.complex128]]


class CutErrors(NamedTuple):
    """How far cut frequencies can move means, in posterior sd, and variances, relatively."""

    mean: float
    variance: float


class Pace:
    """The lengths of steps, shorter than one where steps of that length swing past the maximum.

    Along a direction in which steps of size one leave a share μ of the distance, μ < 0 where they
    pass the maximum, those of size ρ leave 1 − ρ(1 − μ). Two moves tell μ; ρ = 1/(1 − μ/2) leaves
    as little there as in directions where μ is zero.
    """

    def __init__(self) -> None:
        self._last: tuple[Floats, float] | None = None

    def after(self, move: Floats, step: float) -> float:
        """Return the step to take after one of a given length."""
        longest = min(1.0, 2 * step)
        if self._last is not None:
            last, before = self._last
            size = float(last @ last)
            left = float(move @ last) / size * before / step if size > 0 else 0.0
            share = max(1 - (1 - left) / before, -2.0)
            longest = min(longest, 1 / (1 - share / 2)) if share < 0 else longest
        self._last = move, step
        return longest


class Model(NamedTuple):
    """What a bound is of.

    Attributes
    ----------
    features : Lattice
        Without slopes.
    likelihood : Separable
    measure : Measure
        Stands for the rows.
    furthest : (d,)
        The largest index of the sums that the measure can use.
    constants : (k,)
        Of the likelihood.
    offset : float
        μ₀.
    rows : RowMeasure, optional
        The rows, to take the place of sums that do not reach far enough, or whose grid has far more
        points than there are rows.
    """

    features: Lattice
    likelihood: Separable
    measure: Measure
    furthest: NDArray[np.int64]
    constants: Floats
    offset: float
    rows: RowMeasure | None = None

    @property
    def reach(self) -> NDArray[np.int64]:
        """The largest index of a feature along each column."""
        return np.abs(self.features.indices).max(axis=0)


def too_fine(reach: NDArray[np.int64], rows: RowMeasure) -> bool:
    """Return whether sums up to an index take a grid with far more points than there are rows."""
    return float(np.prod(2.0 * reach + 1)) > _POINTS_PER_ROW * len(rows.weights)


def _inverse(chol: Floats) -> Floats:
    """Return the inverse of a matrix from its factor, whose upper half is zero."""
    inverse = potri(chol, lower=1)[0]
    diagonal = inverse.diagonal().copy()
    inverse = inverse + inverse.T
    np.einsum("ii->i", inverse)[:] = diagonal
    return inverse


def _parts(measure: Measure, likelihood: Separable, mean: Floats, variance: Floats) -> Parts:
    """Return what the rows' terms are sums of, in the measure's window."""
    of_target, of_one = likelihood.parts(mean, variance)
    # Of f itself all that is needed are sums of targets, without a window.
    own = of_target if likelihood.linear else of_target.times(measure.window)
    return Parts(own, of_one.times(measure.window))


class VariationalBound:
    """max_q L as a function of the kernel's log parameters and, where there is one, of log r.

    Each evaluation goes on from the sites of the last. Where functions of f have frequencies that
    matter beyond the sums that are used, further sums are used from then on.

    Attributes
    ----------
    resolved : bool
        Whether the sums reached far enough in the last evaluation.
    q : Approximation or None
        Where the last evaluation ended.
    """

    def __init__(
        self,
        model: Model,
        kernel: Kernel,
        threads: BlasThreads | None = None,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = model
        self.kernel = kernel
        self.slots = learned_slots(kernel)
        self.num_steps = 0
        self.resolved = True
        self.q: Approximation | None = None
        self._late = late
        self._threads = BlasThreads(1) if threads is None else threads
        self._sites: Sites | None = None
        self._boxes = SeriesBox(model.reach), SeriesBox(2 * model.reach)

    @property
    def dispersed(self) -> bool:
        """Whether the vector ends with log r."""
        return self.model.likelihood.dispersed

    def split(self, vector: Floats) -> tuple[Kernel, Separable]:
        """Return the kernel and the likelihood that a vector stands for."""
        likelihood = self.model.likelihood
        if self.dispersed:
            vector, last = vector[:-1], vector[-1]
            likelihood = likelihood.with_dispersion(float(np.exp(last)))
        return unpack(self.kernel, self.slots, np.asarray(vector)), likelihood

    def value_and_gradient(self, vector: Floats) -> tuple[float, Floats]:
        """Return max_q L and its gradient."""
        return self.evaluation(vector)[:2]

    def evaluation(self, vector: Floats, tolerance: float = CONVERGED) -> Evaluation:
        """Return max_q L, its gradient, and the information that the sites' regression expects.

        In logarithms of the prior variances a_i and a_j it is ½ ((I − S)_ij)²; in those of d and of
        the dispersion, minus the second derivative with q held.
        """
        kernel, likelihood = self.split(vector)
        features = self.model.features
        logs = vector[:-1] if self.dispersed else vector
        prior = masses_and_jacobian(logs, kernel, self.slots, features.lattice, features.indices)
        squared = features.squared_amplitudes(prior.masses)
        left_out = max(prior.variance - float(features.multiplicity @ prior.masses), 0.0)
        q = self.ascend(kernel, likelihood, tolerance=tolerance)
        per_log = 0.5 * (q.mean**2 + q.spread - 1)
        per_amplitude = np.divide(per_log, squared, out=np.zeros_like(squared), where=squared > 0)
        per_mass = features.gather(per_amplitude)
        per_left_out = -q.precision_total / 2 if left_out > 0 else 0.0
        per_mass -= per_left_out * features.multiplicity
        gradient = np.empty_like(vector)
        gradient[: len(logs)] = prior.jacobian.T @ per_mass + per_left_out * prior.variance_jacobian
        information = np.zeros((len(vector), len(vector)))
        own = slice(len(logs))
        information[own, own] = self._information(q, squared, prior.jacobian)
        if left_out > 0:
            # What is left out is close to a product of powers of the parameters.
            slope = prior.variance_jacobian - features.multiplicity @ prior.jacobian
            information[own, own] += q.precision_total / (2 * left_out) * np.outer(slope, slope)
        if self.dispersed:
            mean, variance = self._marginals(q.series, left_out)
            below, here, above = (
                self._log_likelihood(likelihood.with_dispersion(float(r)), mean, variance)
                for r in likelihood.dispersion * np.exp([-_DIFFERENCE, 0.0, _DIFFERENCE])
            )
            gradient[-1] = (above - below) / (2 * _DIFFERENCE)
            information[-1, -1] = max((2 * here - above - below) / _DIFFERENCE**2, 1.0)
        return Evaluation(q.bound.total, gradient, information)

    def _information(self, q: Approximation, squared: Floats, jacobian: Floats) -> Floats:
        """Return ½ Jᵀ((I − S)∘(I − S))J, with J the derivatives of log a by log parameters."""
        features = self.model.features
        # Linear in the masses, but for the mean function's part.
        fixed = features.squared_amplitudes(np.zeros(len(jacobian)))
        slopes = [features.squared_amplitudes(own) - fixed for own in jacobian.T]
        J = np.array(slopes).reshape(len(slopes), len(squared)).T
        J = np.divide(J, squared[:, None], out=np.zeros_like(J), where=squared[:, None] > 0)
        rest = np.eye(len(squared)) - _inverse(q.chol)
        return J.T @ (rest**2 @ J) / 2

    def begin_from(self, q: Approximation, likelihood: Separable, left_out: float) -> None:
        """Begin with what another q on the same torus asks for."""
        self._sites = self._wanted(likelihood, *self._marginals(q.series, left_out))[1]

    def begin_at(self, likelihood: Separable, mean: Floats, variance: Floats) -> None:
        """Begin with what marginals at the measure's points ask for."""
        self._sites = self._wanted(likelihood, mean, variance)[1]

    def marginals(self, q: Approximation, kernel: Kernel) -> tuple[Floats, Floats]:
        """Return mean and variance of f at the measure's points."""
        return self._marginals(q.series, self.model.features.residual(kernel))

    def ascend(
        self,
        kernel: Kernel,
        likelihood: Separable,
        *,
        tolerance: float = CONVERGED,
        max_steps: int = _MOST_STEPS,
        polish: float = 0.0,
    ) -> Approximation:
        """Return the q that maximises L.

        Parameters
        ----------
        tolerance : float
            The gain in nats below which a step is the last.
        polish : float
            If not zero, steps go on until they move the mean by fewer posterior standard
            deviations.
        """
        features = self.model.features
        masses = features.masses(kernel)
        squared = features.squared_amplitudes(masses)
        left_out = max(prior_variance(kernel) - float(features.multiplicity @ masses), 0.0)
        if self._sites is None:
            self._sites = self._flat_sites(likelihood, left_out)
        limits = tolerance, max_steps
        while True:
            q = self._converged(likelihood, squared, left_out, *limits)
            self.resolved = q is not None and self._resolves(q, likelihood, left_out)
            if self.resolved and q is not None:
                q = self._polished(q, likelihood, squared, left_out, polish) if polish else q
                self._sites, self.q = q.sites, q
                return q
            if not self._reached_further():
                break
        if q is None:
            raise PrecisionError("The sums do not resolve functions of f: take a smoother kernel.")
        return q

    def _polished(
        self,
        q: Approximation,
        likelihood: Separable,
        squared: Floats,
        left_out: float,
        enough: float,
    ) -> Approximation:
        """Return q after further steps, whose gain rounding hides in the bound."""
        before, step, pace = np.inf, 1.0, Pace()
        for _ in range(_POLISHING):
            with suppress(PrecisionError):
                sites = q.sites.toward(q.better, step)
                found = self._approximation(sites, likelihood, squared, left_out)
                move = found.mean - q.mean
                moved = float(np.linalg.norm(found.chol.T @ move)) / step
                if moved < before:
                    q, before, step = found, moved, pace.after(move, step)
                    if moved > enough:
                        continue
            break
        return q

    def _reached_further(self) -> bool:
        """Return whether the measure could be made to use further sums."""
        measure, furthest = self.model.measure, self.model.furthest
        if not isinstance(measure, TorusMeasure):
            return False
        further, rows = measure.further(furthest), self.model.rows
        if rows is not None and (further is None or too_fine(further.reach, rows)):
            self.model = self.model._replace(measure=rows)
            return True
        if further is not None:
            self.model = self.model._replace(measure=further)
        return further is not None

    def _resolves(self, q: Approximation, likelihood: Separable, left_out: float) -> bool:
        """Return whether what the measure's grid shows of cut frequencies does not matter."""
        if not isinstance(self.model.measure, TorusMeasure):
            return True
        errors = self._cut(self.model.measure, q, likelihood, left_out)
        return max(errors) <= ALLOWED_CUT

    def _converged(
        self,
        likelihood: Separable,
        squared: Floats,
        left_out: float,
        tolerance: float,
        max_steps: int,
    ) -> Approximation | None:
        """Return where an ascent from the present sites ends, `None` if it cannot begin."""
        q = None
        for sites in (self._sites, self._flat_sites(likelihood, left_out)):
            try:
                assert sites is not None
                q = self._approximation(sites, likelihood, squared, left_out)
                break
            except PrecisionError:
                continue
        if q is None:
            return None
        step, pace = 1.0, Pace()
        for _ in range(max_steps):
            following = self._improved(q, likelihood, squared, left_out, step)
            if following is None:
                break
            (moved, step), before = following, q
            q = moved
            if q.bound.total - before.bound.total < tolerance * step or self._late():
                break
            step = pace.after(q.mean - before.mean, step)
        return q

    def _improved(
        self, q: Approximation, likelihood: Separable, squared: Floats, left_out: float, step: float
    ) -> tuple[Approximation, float] | None:
        """Return a better q and the step that led there, `None` if no step does."""
        for _ in range(_HALVINGS):
            try:
                sites = q.sites.toward(q.better, step)
                found = self._approximation(sites, likelihood, squared, left_out)
                if found.bound.total >= q.bound.total:
                    return found, step
            except PrecisionError:
                pass
            step /= 2
        return None

    def _flat_sites(self, likelihood: Separable, left_out: float) -> Sites:
        """Return the sites of f = μ₀."""
        zero = [np.zeros(box.shape, dtype=np.complex128) for box in self._boxes]
        mean, variance = self._marginals((zero[0], zero[1]), left_out)
        return self._wanted(likelihood, mean, variance)[1]

    def _marginals(
        self, series: tuple[NDArray[np.complex128], ...], left_out: float
    ) -> tuple[Floats, Floats]:
        """Return μ and s² at the measure's points."""
        mean, variance = self.model.measure.values(list(series))
        # Never negative, but by rounding.
        return mean + self.model.offset, np.maximum(variance, 0.0) + left_out

    def _log_likelihood(self, likelihood: Separable, mean: Floats, variance: Floats) -> float:
        """Return Σ w E[y a(f) + b(f) + c(y)]."""
        measure = self.model.measure
        of_target, of_one = _parts(measure, likelihood, mean, variance)
        value = np.sum(measure.targets * of_target.value) + np.sum(measure.weights * of_one.value)
        return float(value) + likelihood.normaliser(self.model.constants, measure.total)

    def _wanted(
        self, likelihood: Separable, mean: Floats, variance: Floats
    ) -> tuple[float, Sites, float]:
        """Return the expected log likelihood, the sites that marginals ask for, and Σ κ."""
        model, measure = self.model, self.model.measure
        of_target, of_one = _parts(measure, likelihood, mean, variance)
        value = np.sum(measure.targets * of_target.value) + np.sum(measure.weights * of_one.value)
        value = float(value) + likelihood.normaliser(model.constants, measure.total)
        kappa = -(measure.targets * of_target.curvature + measure.weights * of_one.curvature)
        gamma = measure.targets * of_target.slope + measure.weights * of_one.slope
        sums = measure.sums(model.reach, kappa, gamma + kappa * (mean - model.offset))
        found = sums.real_sums(model.features.indices)
        return value, Sites(found.gram, found.projection[:, 0]), float(kappa.sum())

    def _approximation(
        self, sites: Sites, likelihood: Separable, squared: Floats, left_out: float
    ) -> Approximation:
        """Return q of given sites."""
        self.num_steps += 1
        amplitudes = np.sqrt(squared)
        with self._threads.limited(len(squared)):
            chol = factorise_in_place(
                np.asfortranarray(amplitudes[:, None] * sites.gram * amplitudes)
            )
            mean = unwhiten(chol, whiten(chol, (amplitudes * sites.projection)[:, None]))[:, 0]
            covariance = _inverse(chol)
        spread = np.diag(covariance).copy()
        log_det = 2 * np.sum(np.log(np.einsum("ii->i", chol)))
        divergence = 0.5 * (spread.sum() + mean @ mean - len(mean) + log_det)
        covariance *= amplitudes
        covariance *= amplitudes[:, None]
        series = self._series(amplitudes * mean, covariance)
        size = float(np.abs(covariance).sum())
        value, better, total = self._wanted(likelihood, *self._marginals(series, left_out))
        if not np.isfinite(value):
            raise PrecisionError("The bound is not finite: take shorter steps.")
        trace = -left_out * total / 2
        bound = Bound(value - trace, -divergence, trace)
        return Approximation(mean, chol, spread, size, bound, total, sites, better, series)

    def _series(
        self, z: Floats, covariance: Floats
    ) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """Return the coefficients of μ − μ₀ and s² − d."""
        indices, (first, second) = self.model.features.indices, self._boxes
        s = len(indices)
        mean = first.function(indices, z[:s], np.insert(z[s:], 0, 0.0))
        return mean, second.quadratic(indices, Blocks.split(covariance, s))

    def cut_errors(self, q: Approximation, kernel: Kernel, likelihood: Separable) -> CutErrors:
        """Return how far the cut frequencies can have moved the posterior, to first order.

        With V the covariance of the coefficients, an error δ of the sums Σ γ ψ moves the mean at x
        by ψᵀVδ ≤ sd(x) √(δᵀVδ), and an error Δ of the gram moves variances relatively by at most
        the norm of V^½ΔV^½: no more than √(Σ|V_ij|) max|δ| and Σ|V_ij| max|Δ|. Each entry is
        bounded by Σ w Σ |ĝ_t| beyond what the sums reach.
        """
        measure = self.model.measure
        if not isinstance(measure, TorusMeasure):
            return CutErrors(0.0, 0.0)
        features = self.model.features
        masses = features.masses(kernel)
        left_out = max(prior_variance(kernel) - float(features.multiplicity @ masses), 0.0)
        return self._cut(measure.finer(), q, likelihood, left_out)

    def _cut(
        self,
        grid: TorusMeasure,
        q: Approximation,
        likelihood: Separable,
        left_out: float,
    ) -> CutErrors:
        """Return the effects of what is cut, as far as a grid shows it."""
        measure = self.model.measure
        assert isinstance(measure, TorusMeasure)
        mean, variance = grid.values(list(q.series))
        mean, variance = mean + self.model.offset, np.maximum(variance, 0.0) + left_out
        reach, effects = self.model.reach, (np.sqrt(q.total_covariance), q.total_covariance)
        errors = np.zeros(2)
        weights = (abs(measure.statistics.target_sums[0]).max(), measure.total)
        for part, weight, known in zip(
            _parts(grid, likelihood, mean, variance), weights, self._known(measure), strict=True
        ):
            if known is None:
                continue
            for i, function in enumerate((part.slope, part.curvature)):
                cut = grid.cut(function, known - (i + 1) * reach)
                # Beside values that are huge where no rows are, the sums' own error counts too.
                cut += _SUMS * float(np.abs(function).mean())
                # What is cut is missing, and on the grid stands for other frequencies besides.
                errors[i] += 2 * weight * cut * effects[i]
        return CutErrors(*map(float, errors))

    def _known(self, measure: TorusMeasure) -> list[NDArray[np.int64] | None]:
        """Return up to which index the sums of y and of one are used, `None` if all are needed."""
        targets = np.minimum(measure.reach, measure.statistics.lattice.extent)
        linear = self.model.likelihood.linear
        return [None if linear else targets, measure.reach]
