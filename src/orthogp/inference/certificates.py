r"""How far predictions can be from those of the exact process, point by point, from the sums.

Whiten all modes of the lattice: z ~ N(0, I) a priori, and a posteriori with precision
A = I + ΦᵀWΦ/σ². Let F be the features, whose gram is factorised; H the modes with |t| ≤ K, whose
sums are known; and τ, t ≥ λ_max of what lies beyond H, and beyond F, at the rows.

Means. For any approximate z̃ with residual r = ΦᵀWy/σ² − A z̃, Cauchy's inequality gives

    |m(x) − φ(x)ᵀz̃| = |φ(x)ᵀA⁻¹r| ≤ sd(x) ‖r_H‖ + (√d_τ + sd(x) √τ/σ) ‖r_τ‖

since A ⪰ I, and A⁻¹ = I − Φᵀ(K + σ²I)⁻¹Φ for the residual r_τ beyond H, where the prior variance is
d_τ. In H the residual comes from the sums; beyond, ‖r_τ‖² ≤ τ ‖y − m̃‖²_W/σ⁴. A few conjugate
gradients make r_H small, and the mean that they end with is the one that predicts.

Variances. With R = K − Q what F leaves out, d its variance, α = σ² + t, g = φᵀ(I + A_F/α)⁻¹φ,

    φᵀ(I + A_F/σ²)⁻¹φ ≤ var(x) ≤ g + d + 2√(c g/α),      g ≤ (α/σ²) φᵀ(I + A_F/σ²)⁻¹φ

with c ≥ Σ_n w_n R(x_n, x)², at most d t. Below because knowing what F leaves out can only lower a
variance; above because noise of covariance tI − R, added to the rows, can only raise it.

Evidence. With v = (y − m̃)/σ², yᵀ(K + σ²I)⁻¹y ≥ 2vᵀy − vᵀ(K + σ²I)v, whose error is of second
order, and log|K + σ²I| ≥ log|Q + σ²I|.

The kernel itself. The lattice carries k_P = k₁ + e. Here |e| ≤ δ over the data: with κ = Nδ/σ², and
w the weights of the optimal prediction, ‖w‖² ≤ var/σ², variances differ by at most
δ((1 + √N‖w‖)² − 1), means by at most δ√N‖v‖ + sd κσ‖v‖, and twice the evidence by at most
κ√N + δN‖v‖²(1 + κ)². And (1 − ε)k ⪯ k₁ ⪯ (1 + ε)k as covariances over the data's box: variances
then differ by factors within 1 ± ε. With v₁ = (K₁ + σ²I)⁻¹y and h = (k₁ − k)v₁ the means differ by
h(x) − k(x, X)(K + σ²I)⁻¹h(X), at most ‖h‖ sd(x) with ‖h‖ the norm in the space of k, which is at
most ε√(v₁ᵀKv₁) ≤ ε‖z₁‖/√(1−ε). Twice the evidence differs by at most ε/(1−ε) (ν + ‖z₁‖²), with ν
the trace of K₁(K₁ + σ²I)⁻¹. The number of rows does not enter.

Any features. With K_uu = I the gram is all there is: r_H = 0 and ‖r_τ‖² = vᵀRv, which sums or rows
tell, so that a mean is within sd ‖r_τ‖, and within (√d + sd √t/σ) ‖r_τ‖, d what is left out there.
Where d is not known everywhere, a variance is within 1 ± (√ε + ε) of the exact one, ε = t/σ²: the
precision of what features know and of what they leave out, and its diagonal blocks, differ by
(√ε, ε) relative to the latter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice, Features, Lattice, MeanPrior
from orthogp.features.base import prior_variance
from orthogp.features.series import MassSeries, SeriesFeatures, lattice_masses, residual_mass
from orthogp.inference.bounds import residual_sums, unwhiten, whiten
from orthogp.inference.fourier_series import SeriesBox, as_complex
from orthogp.inference.known_modes import KnownModes, Unseen, unseen, unseen_beyond
from orthogp.inference.moments import Moments
from orthogp.inference.parameters import Start
from orthogp.inference.predictive import covariance_times
from orthogp.rows import Domain, Rows
from orthogp.statistics import AdditiveStatistics, FourierStatistics, Statistics
from orthogp.statistics.nufft import TOLERANCE

# The largest number of points along a column at which errors are looked at, by number of columns.
_MOST_POINTS = {1: 2**15, 2: 192, 3: 32}
# The largest number of points at which errors of other features are looked at, and what they may be
# larger by in between: twice as fine a grid, 1/cos(π/16) for a wave.
_MOST_FINE = 2**14
_BETWEEN = 1.05
# The number of finer points along a column around one of them.
_FINER = {1: 65, 2: 17, 3: 9}
#: The largest number of conjugate-gradient steps that polish a mean.
MOST_STEPS = 40
# The largest multiple of the features' largest index up to which modes are taken.
_MOST_TIMES = 2**20
# The relative error of sums: some times the transforms' tolerance.
_ROUNDING = 4 * TOLERANCE


class Images(NamedTuple):
    """How far the prior of a lattice is from the kernel over the data.

    Attributes
    ----------
    ratio : float
        ε, by which the covariance of some summands is multiplied at most, or divided.
    deviation : float
        δ, the largest difference of all other summands.
    """

    ratio: float
    deviation: float


class Guarantee(NamedTuple):
    """What bounds the errors of a posterior's means and variances at every point of its box.

    Attributes
    ----------
    left_out : float
        t ≥ λ_max(K − Q).
    deviation : float
        δ of the lattice's prior.
    rounding : float
        The relative error that rounding may cause in variances.
    total_weight : float
        N = Σ w_n.
    residual : (p,)
        ‖r_H‖ + √τ/σ ‖r_τ‖ of each target's mean, with what rounding may hide of it.
    beyond : (p,)
        √d_τ ‖r_τ‖.
    misfit : (p,)
        A bound on ‖y − m‖²_W, m the exact mean.
    cross : float
        A bound on Σ_n w_n R(x_n, x)² for every x, R = K − Q.
    ratio : float
        ε of the lattice's prior.
    shift : (p,)
        ε‖z₁‖/√(1−ε).
    """

    left_out: float
    deviation: float
    rounding: float
    total_weight: float
    residual: NDArray[np.float64]
    beyond: NDArray[np.float64]
    misfit: NDArray[np.float64]
    cross: float = np.inf
    ratio: float = 0.0
    shift: NDArray[np.float64] = np.zeros(1)

    def variances(
        self, variance: NDArray[np.float64], residual: NDArray | float, noise_variance: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the smallest and the largest possible exact variance of f, (n,) each.

        Parameters
        ----------
        variance : (n,)
            As predicted: φᵀB⁻¹φ + d.
        residual : float or (n,)
            d.
        """
        lower = np.maximum(variance - residual, 0.0) * max(1 - self.rounding, 0.0)
        # (I + A/α)⁻¹ ⪯ (α/σ²)(I + A/σ²)⁻¹
        alpha = noise_variance + self.left_out
        g = lower * (alpha / noise_variance)
        cross = np.minimum(residual * self.left_out, self.cross)
        upper = g + residual + 2 * np.sqrt(cross / alpha * g)
        upper = (1 + 3 * self.rounding) * upper
        upper = upper + self._change(upper, noise_variance)
        lower = np.maximum(lower - self._change(upper, noise_variance), 0.0)
        return lower / (1 + self.ratio), upper / (1 - self.ratio)

    def mean_errors(
        self, lower: NDArray[np.float64], upper: NDArray[np.float64], noise_variance: float
    ) -> NDArray[np.float64]:
        """Return the largest errors of means in exact posterior sd, (n, p), given `variances`."""
        # ‖r‖ is relative to the sd under the prior of the lattice.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ratio = np.sqrt(1 + self._change(upper, noise_variance) / lower)
            v = np.sqrt(self.misfit) / noise_variance
            shift = self.deviation * np.sqrt(self.total_weight) * v + self.beyond
            shift = shift / np.sqrt(lower)[:, None]
        kappa = self.deviation * self.total_weight / noise_variance
        errors = ratio[:, None] * self.residual + kappa * np.sqrt(noise_variance) * v
        errors = np.sqrt(1 + self.ratio) * errors + shift + self.shift
        return np.where(np.isnan(errors), np.inf, errors)

    def relative_errors(
        self, variance: NDArray[np.float64], residual: NDArray | float, noise_variance: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the largest errors of means, in exact sd, and of variances, relative to the exact.

        The arguments are those of `variances`.
        """
        lower, upper = self.variances(variance, residual, noise_variance)
        with np.errstate(divide="ignore"):
            errors = np.maximum(variance / lower - 1, 1 - variance / upper)
        return self.mean_errors(lower, upper, noise_variance), errors

    def _change(self, variance: NDArray[np.float64], noise_variance: float) -> NDArray:
        w = np.sqrt(self.total_weight * variance / noise_variance)
        return self.deviation * (2 * w + w**2)


def points_over(features: Lattice, box: Domain) -> NDArray[np.float64]:
    """Return a grid over a box that resolves the variance of lattice features, (n, d + q).

    Covariates are average, where variances are smallest, and errors largest relative to them.
    """
    numbers = _grid_sizes(features, box)
    return features.mean.with_average_covariates(_grid(box, numbers))


def fine_points(features: SeriesFeatures, box: Domain) -> NDArray[np.float64] | None:
    """Return a grid between whose points errors change little, (n, d), if it is small enough."""
    numbers = 2 * _grid_sizes(features, box, None)
    return _grid(box, numbers) if np.prod(numbers) <= _MOST_FINE else None


def _grid(box: Domain, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    axes = [
        np.linspace(lower, upper, n)
        for lower, upper, n in zip(box.lower, box.upper, numbers, strict=True)
    ]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def points_around(
    features: Lattice, box: Domain, points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return finer points around some of `points_over`, up to the next ones, (n, d + q)."""
    spacing = box.width / (_grid_sizes(features, box) - 1)
    steps = np.linspace(-1, 1, _FINER[len(spacing)])
    steps = np.stack(np.meshgrid(*[steps] * len(spacing), indexing="ij"), axis=-1)
    around = features.mean.inputs(points)[:, None] + steps.reshape(-1, len(spacing)) * spacing
    places = np.clip(around.reshape(-1, len(spacing)), box.lower, box.upper)
    return features.mean.with_average_covariates(places)


def _grid_sizes(
    features: Lattice | SeriesFeatures, box: Domain, most: dict[int, int] | None = _MOST_POINTS
) -> NDArray[np.int64]:
    reach, period = np.abs(features.indices).max(axis=0), features.lattice.period
    # A variance has twice the frequencies of its features; four points for a half-wave of it.
    wanted = np.ceil(16 * (reach + 1) * box.width / period).astype(np.int64)
    return np.clip(wanted, 9, None if most is None else most[len(period)])


class PolishedMean(NamedTuple):
    """A posterior mean over more modes than there are features: whitened coefficients, (m, p)."""

    modes: Lattice
    mean: NDArray[np.float64]


class Polished(NamedTuple):
    """Where polishing ended.

    Attributes
    ----------
    result : PolishedMean
    residual : (m, p)
        r.
    misfit : (p,)
        ‖y − m̃‖²_W.
    """

    result: PolishedMean
    residual: NDArray[np.float64]
    misfit: NDArray[np.float64]


def polish(
    modes: KnownModes,
    mean: NDArray[np.float64],
    chol: NDArray[np.float64],
    noise_variance: float,
    tolerance: float,
    max_steps: int = MOST_STEPS,
) -> Polished:
    """Return the posterior mean over known modes, by conjugate gradients from that of the features.

    The preconditioner is the features' factor, and the diagonal of A for all other modes.

    Parameters
    ----------
    mean : (m, p)
        That of the features.
    chol : (m, m)
        The features' factor.
    tolerance : float
        The largest ‖r‖.
    """
    diagonal = 1 + modes.statistics.count * modes.amplitudes[:, None] ** 2 / (2 * noise_variance)

    def times(z: NDArray[np.float64]) -> NDArray[np.float64]:
        return z + modes.gram_times(z) / noise_variance

    def solve(r: NDArray[np.float64]) -> NDArray[np.float64]:
        out = r / diagonal
        out[modes.places] = unwhiten(chol, whiten(chol, r[modes.places]))
        return out

    z = np.zeros_like(modes.projection)
    z[modes.places] = mean
    right = modes.projection / noise_variance
    r = right - times(z)
    best, least = z.copy(), np.linalg.norm(r, axis=0)
    direction = solve(r)
    norm = np.sum(r * direction, axis=0)
    for _ in range(max_steps):
        if np.all(least <= tolerance) or not np.any(norm > 0):
            break
        image = times(direction)
        curvature = np.sum(direction * image, axis=0)
        step = np.divide(norm, curvature, out=np.zeros_like(norm), where=curvature > 0)
        z = z + step * direction
        r = r - step * image
        size = np.linalg.norm(r, axis=0)
        better = size < least
        best[:, better], least[better] = z[:, better], size[better]
        conditioned = solve(r)
        new = np.sum(r * conditioned, axis=0)
        ratio = np.divide(new, norm, out=np.zeros_like(norm), where=norm > 0)
        direction, norm = conditioned + ratio * direction, new
    # The recursion of r drifts away from b − A z by rounding.
    image = modes.gram_times(best)
    r = right - best - image / noise_variance
    yy = modes.statistics.yy
    misfit = yy - 2 * np.sum(modes.projection * best, axis=0) + np.sum(best * image, axis=0)
    misfit = np.maximum(misfit, 0.0) + 4 * _ROUNDING * yy
    return Polished(PolishedMean(modes.wide, best), r, misfit)


class Verdict(NamedTuple):
    """What the sums say about a fit of lattice features.

    Attributes
    ----------
    polished : PolishedMean or None
        `None` where the features' own mean is to predict.
    guarantee : Guarantee
    data_fit : float
        An upper bound on −½ yᵀ(K + σ²I)⁻¹y, summed over the targets, for the lattice's prior.
    slack : float
        What δ can add to, or take from, bounds on the evidence.
    """

    polished: PolishedMean | None
    guarantee: Guarantee
    data_fit: float
    slack: float


def judge(
    modes: KnownModes,
    at: Start,
    solution: tuple[NDArray[np.float64], NDArray[np.float64]],
    *,
    images: Images,
    tolerance: float,
    max_steps: int = MOST_STEPS,
) -> Verdict:
    """Return the polished mean of a fit and all that bounds its errors.

    The mean is polished if conjugate gradients converge in `max_steps`.

    Parameters
    ----------
    modes : KnownModes
        Those that `enough_modes` returns.
    solution : (m, p), (m, m)
        The features' posterior mean and the factor of B.
    images : Images
        How far the lattice's prior is from the kernel.
    tolerance : float
        The error of means, in posterior sd, below which the polishing need not go.
    """
    mean, chol = solution
    noise_variance, statistics = at.noise_variance, modes.statistics
    beyond = unseen_beyond(modes, at.kernel)
    polished = None
    found = polish(modes, mean, chol, noise_variance, tolerance / 100, max_steps)
    if max_steps and np.all(np.linalg.norm(found.residual, axis=0) <= tolerance):
        polished = found.result
    elif max_steps:
        # Unfinished conjugate gradients are no linear function of the targets.
        found = polish(modes, mean, chol, noise_variance, tolerance, 0)
    z = found.result.mean
    explained = np.sum(modes.projection * z, axis=0)
    known = _Known(len(chol), z, found.residual, found.misfit, explained)
    left_out = unseen(modes, beyond), beyond
    verdict = _verdict(at, statistics, known, left_out, images)
    return verdict._replace(polished=polished)


def judge_components(
    features: AdditiveLattice,
    at: Start,
    statistics: AdditiveStatistics,
    moments: Moments,
    mean: NDArray[np.float64],
    images: Images,
) -> Verdict:
    """Return all that bounds the errors of a fit of several components, with the features' mean.

    The modes whose sums with all others are known are those kept for each component; what lies
    beyond is bounded component by component, by the sums of each.
    """
    kernel, noise_variance = at.kernel, at.noise_variance
    amplitudes = np.sqrt(features.squared_amplitudes(features.masses(kernel)))
    sums = statistics.residual_sums(features.indices, amplitudes[:, None] * mean)
    image = moments.gram @ mean
    residuals = [(moments.projection - image) / noise_variance - mean]
    left_out, beyond = [], []
    for j, (own, component) in enumerate(
        zip(features.kernels(kernel), statistics.components, strict=True)
    ):
        part, chosen = statistics.parts[j], features.parts[j]
        kept = Lattice(component.lattice, component.indices)
        extent = component.lattice.extent
        of_features, of_kept = (KnownModes(f, own, part, extent) for f in (chosen, kept))
        left_out.append(unseen(of_features, unseen_beyond(of_features, own)))
        beyond.append(unseen(of_kept, unseen_beyond(of_kept, own)))
        box = SeriesBox(extent)
        others = ~np.isin(box.linear(kept.indices[1:]), box.linear(chosen.indices))
        amplitude = np.sqrt(2 * kept.masses(own)[1:]) * others / noise_variance
        residuals.append(np.tile(amplitude, 2)[:, None] * sums[j])
    r = np.concatenate(residuals)
    z = np.concatenate([mean, np.zeros((len(r) - len(mean), mean.shape[1]))])
    explained = np.sum(moments.projection * mean, axis=0)
    misfit = moments.yy - 2 * explained + np.sum(mean * image, axis=0)
    misfit = np.maximum(misfit, 0.0) + 4 * _ROUNDING * moments.yy
    known = _Known(len(mean), z, r, misfit, explained)
    both = Unseen.total(left_out), Unseen.total(beyond)
    return _verdict(at, statistics, known, both, images)


class _Known(NamedTuple):
    """A mean over the modes whose sums are known.

    Attributes
    ----------
    num_features : int
    mean, residual : (m, p)
        z̃ and r, zero beyond these modes.
    misfit : (p,)
        ‖y − m̃‖²_W.
    explained : (p,)
        z̃ᵀΦᵀWy.
    """

    num_features: int
    mean: NDArray[np.float64]
    residual: NDArray[np.float64]
    misfit: NDArray[np.float64]
    explained: NDArray[np.float64]


def _verdict(
    at: Start,
    statistics: Statistics,
    known: _Known,
    left_out: tuple[Unseen, Unseen],
    images: Images,
) -> Verdict:
    """Return what bounds the errors of a mean; `left_out` by the features, and by the modes."""
    (num_features, z, r, left, explained), (unseen, beyond) = known, left_out
    kernel, noise_variance = at.kernel, at.noise_variance
    variance, count, yy = prior_variance(kernel), statistics.count, statistics.yy
    tail = np.sqrt(beyond.norm * left) / noise_variance
    rounding = 2 * _ROUNDING * np.sqrt(variance * count * yy) / noise_variance
    residual = np.linalg.norm(r, axis=0) + np.sqrt(beyond.norm / noise_variance) * tail + rounding
    ratio, deviation = images
    kappa = count * deviation / noise_variance
    relative = (_ROUNDING + num_features * np.finfo(float).eps) * count * variance / noise_variance
    # ‖y − m‖² + σ²‖z‖² is least at the exact posterior mean.
    misfit = left + noise_variance * np.sum(z**2, axis=0)
    # The whitened mean under k_P differs from z̃ by A⁻¹r, the one under k₁ from that by κ.
    size = np.linalg.norm(z, axis=0) + np.linalg.norm(r, axis=0) + tail + rounding
    size = np.sqrt(size**2 + kappa * misfit / noise_variance)
    size = size + kappa * np.sqrt(misfit / noise_variance) / 2
    guarantee = Guarantee(
        left_out=unseen.norm,
        cross=unseen.cross,
        deviation=deviation,
        rounding=relative,
        total_weight=count,
        residual=residual,
        beyond=np.sqrt(beyond.variance) * tail,
        misfit=misfit,
        ratio=ratio,
        shift=ratio * size / np.sqrt(1 - ratio),
    )
    # vᵀK_H v = ‖r + z̃‖², since r = ΦᵀWv − z̃.
    quadratic = 2 * (yy - explained) / noise_variance - np.sum((r + z) ** 2, axis=0)
    quadratic -= (noise_variance + beyond.norm) * left / noise_variance**2
    slack = kappa * np.sqrt(statistics.rows) + relative * np.sqrt(num_features)
    slack = slack + deviation * count * (1 + kappa) ** 2 * misfit / noise_variance**2
    slack += 2 * rounding * np.linalg.norm(r + z, axis=0)
    slack += 4 * _ROUNDING * yy / noise_variance
    degrees = num_features + count * unseen.variance / noise_variance
    degrees = min(degrees + kappa * np.sqrt(statistics.rows), statistics.rows)
    slack += ratio / (1 - ratio) * (degrees + size**2)
    return Verdict(None, guarantee, -float(quadratic.sum()) / 2, float(slack.sum()) / 2)


class Unexplained(NamedTuple):
    """What any features leave out at the rows.

    Attributes
    ----------
    norm : float
        t ≥ λ_max(R), R = K − Q.
    size : (p,)
        A bound on √(vᵀRv), v = (y − m̃)/σ², for each target.
    """

    norm: float
    size: NDArray[np.float64]


def unexplained_by_trace(at: Start, moments: Moments, mean: NDArray[np.float64]) -> Unexplained:
    """Return bounds on what features leave out, from their moments alone."""
    norm = moments.residual_trace + _ROUNDING * moments.rows * prior_variance(at.kernel)
    return Unexplained(norm, np.sqrt(norm * _misfit(moments, mean)) / at.noise_variance)


def unexplained_by_series(
    features: SeriesFeatures,
    at: Start,
    statistics: FourierStatistics,
    mean_prior: MeanPrior,
    moments: Moments,
    mean: NDArray[np.float64],
) -> Unexplained:
    """Return bounds on what features of the wrapped prior leave out, from the sums.

    In whitened modes features are orthonormal vectors, and what is left out is orthogonal to them.
    """
    kernel, noise_variance, lattice = at.kernel, at.noise_variance, statistics.lattice
    indices = lattice.half_indices()
    masses = lattice_masses(kernel, lattice, indices)
    C, m = as_complex(features.coefficient_matrix(kernel), features.odd), features.num_features
    own = C.T @ mean[:m]
    waves = own.copy()
    has_offset = int(mean_prior.offset_variance > 0)
    if has_offset:
        waves[0] += np.sqrt(mean_prior.offset_variance) * mean[m]
    slopes = np.sqrt(mean_prior.slope_variance) * mean[m + has_offset :]
    sums = residual_sums(features.indices, waves, slopes, statistics) / noise_variance
    everywhere = sums[(slice(None), *(indices + lattice.extent).T)]
    double = np.where(np.any(indices != 0, axis=1), 2.0, 1.0)
    rounding = _of_sums(at, moments, statistics.count)
    if isinstance(features, MassSeries):
        box = SeriesBox(lattice.extent)
        at_indices = box.middle + box.linear(indices)
        root = np.sqrt(masses)
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        squares = np.empty(len(everywhere))
        for j, found in enumerate(everywhere):
            known = box.function(features.indices, own[:, j].real, -own[:, j].imag).ravel()
            left = root * np.conj(found) - known[at_indices] * inverse
            squares[j] = double @ np.abs(left) ** 2
        squares = (np.sqrt(squares) + rounding) ** 2
    else:
        # Features of several processes: vᵀKv − vᵀQv.
        total = np.abs(everywhere) ** 2 @ (double * masses)
        features_own = sums[(slice(None), *(features.indices + lattice.extent).T)]
        seen = np.sum((features_own @ C.T).real ** 2, axis=1)
        squares = np.maximum(total - seen, 0.0) + 4 * rounding * np.sqrt(total) + rounding**2
    beyond = statistics.count * residual_mass(kernel, masses)
    squares += beyond * _misfit(moments, mean) / noise_variance**2
    found = unexplained_by_trace(at, moments, mean)
    return found._replace(size=np.minimum(found.size, np.sqrt(squares)))


def unexplained_by_rows(
    features: Features,
    at: Start,
    rows: Rows,
    mean_prior: MeanPrior,
    moments: Moments,
    mean: NDArray[np.float64],
) -> Unexplained:
    """Return bounds on what features of the kernel leave out, from all pairs of rows."""
    Phi = features.evaluate(at.kernel, rows.X)
    fitted = np.concatenate([Phi, mean_prior.features(rows.X)], axis=1) @ mean
    y = np.asarray(rows.y, dtype=np.float64).reshape(len(rows.X), -1)
    v = (y - fitted) / at.noise_variance
    if rows.weights is not None:
        v = rows.weights[:, None] * v
    total = np.sum(v * covariance_times(at.kernel, mean_prior.inputs(rows.X), v), axis=0)
    squares = np.maximum(total - np.sum((Phi.T @ v) ** 2, axis=0), 0.0)
    # What rounding may do to each of the covariances.
    squares += 1e-14 * prior_variance(at.kernel) * np.sum(np.abs(v), axis=0) ** 2
    found = unexplained_by_trace(at, moments, mean)
    return found._replace(size=np.minimum(found.size, np.sqrt(squares)))


def errors_of_features(
    at: Start,
    moments: Moments,
    left_out: Unexplained,
    posterior: tuple[NDArray[np.float64], NDArray[np.float64]],
    points: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> tuple[float, float, float]:
    """Return what bounds the errors of any features' means and variances, and the typical one.

    Parameters
    ----------
    posterior : (m, p), (m, m)
        The mean and the factor of B.
    points : (n, m), (n,), optional
        All columns, and the variance that is left out, at points that resolve both. Without them
        errors are bounded wherever points may be.
    """
    (mean, chol), noise_variance, count = posterior, at.noise_variance, moments.rows
    relative = (_ROUNDING + len(mean) * np.finfo(float).eps) * prior_variance(at.kernel)
    relative *= count / noise_variance
    r = (moments.projection - moments.gram @ mean) / noise_variance - mean
    solving = np.linalg.norm(r, axis=0) + _of_sums(at, moments, count)
    epsilon, size = left_out.norm / noise_variance, left_out.size
    means = float(np.max(size + solving))
    variances = epsilon + np.sqrt(epsilon) + 3 * relative
    if points is None:
        return means, float(variances), float(variances)
    Phi, residual = points
    variance = np.sum(whiten(chol, Phi.T) ** 2, axis=0) + residual
    none = np.zeros_like(size)
    guarantee = Guarantee(left_out.norm, 0.0, relative, count, none, none, none)
    lower, _ = guarantee.variances(variance, residual, noise_variance)
    _, errors = guarantee.relative_errors(variance, residual, noise_variance)
    with np.errstate(divide="ignore"):
        shares = np.minimum(np.sqrt(epsilon) + np.sqrt(residual / lower), 1.0)
    errors = np.minimum(_BETWEEN * errors, variances)
    share = min(_BETWEEN * float(shares.max()), 1.0)
    return float(np.max(share * size + solving)), float(errors.max()), float(np.median(errors))


def _misfit(moments: Moments, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a bound on ‖y − m̃‖²_W for each target."""
    misfit = moments.yy - 2 * np.sum(moments.projection * mean, axis=0)
    misfit = misfit + np.sum(mean * (moments.gram @ mean), axis=0)
    return np.maximum(misfit, 0.0) + 4 * _ROUNDING * moments.yy


def _of_sums(at: Start, moments: Moments, count: float) -> NDArray[np.float64]:
    """Return what rounding in sums may hide of a residual."""
    size = np.sqrt(prior_variance(at.kernel) * count * moments.yy)
    return 2 * _ROUNDING * size / at.noise_variance


def enough_modes(
    features: Lattice, at: Start, statistics: FourierStatistics, tolerance: float
) -> KnownModes:
    """Return as many known modes as keep what lies beyond them from counting."""
    kernel, noise_variance = at.kernel, at.noise_variance
    extent, chosen = statistics.lattice.extent, np.abs(features.indices).max(axis=0)
    factor = 2
    while True:
        modes = KnownModes(features, kernel, statistics, np.minimum(factor * chosen, extent))
        beyond = unseen_beyond(modes, kernel)
        # Variances are at least about σ²/N.
        error = np.sqrt(beyond.norm * statistics.count) * (
            np.sqrt(beyond.norm) + np.sqrt(beyond.variance * statistics.count)
        )
        enough = error <= tolerance * noise_variance / 8
        if enough or np.all(modes.reach >= 0.9 * extent) or factor > _MOST_TIMES:
            return modes
        factor *= 4
