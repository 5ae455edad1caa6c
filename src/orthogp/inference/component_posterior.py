r"""The posterior of several components: of the whole function, and of each.

A component is known up to a constant, so it is reported with its average over the training rows
removed,

    f̃_j(x) = f_j(x) − Σ_n w_n f_j(x_n)/Σ_n w_n

a linear functional of the same coefficients: each cosine and sine less its average, which the
statistics hold. Its mean is a series Σ_i z_i c_i(x), whose sums over the rows,
G_ij = Σ w_n c_i(x_n) c_j(x_n), give the variance that it explains: zᵀGz/N − (G_0ᵀz/N)², c_0 = 1,
N = G_00.

The variance of the whole function at many points is a sum of series,

    var f(x) = Σ_ij V_ij basis_i(x) basis_j(x) + residual

within a component in its own columns, between two components in the columns of both. Where these
are more than three the products are formed point by point.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import AdditiveLattice, Lattice
from orthogp.features.series import LatticeFeatures
from orthogp.inference.bounds import unseen_modes, whiten
from orthogp.inference.certificates import points_over
from orthogp.inference.fourier_series import Blocks, SeriesBox
from orthogp.inference.moments import Moments
from orthogp.inference.posterior import (
    ComponentSums,
    Posterior,
    Shares,
    Solution,
    derivative_variance,
)
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import Kernel
from orthogp.kernels.transformed import own_periods
from orthogp.rows import Domain
from orthogp.statistics import FrequencyLattice, RealSums
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import chunks, evaluate_series


def target_shares(
    features: LatticeFeatures, kernel: Kernel, mean: NDArray[np.float64], moments: Moments
) -> Shares:
    """Return the shares of the targets' variance, for a posterior mean (m, p) of the features."""
    constant = np.sqrt(features.squared_amplitudes(features.masses(kernel))[0])
    count = moments.gram[0, 0] / constant**2
    totals = moments.projection[0] / constant
    variance = moments.yy / count - (totals / count) ** 2
    variance = np.where(variance > 0, variance, 1.0)
    components = []
    for own in features.slices:
        average = moments.gram[0, own] @ mean[own] / (constant * count)
        square = _squares(moments.gram[own, own], mean[own]) / count
        components.append(np.maximum(square - average**2, 0.0) / variance)
    cross = np.einsum("ip,ip->p", moments.projection, mean)
    left = np.maximum(moments.yy - 2 * cross + _squares(moments.gram, mean), 0.0) / count
    return Shares(np.array(components), left / variance)


def latent_shares(features: LatticeFeatures, z: NDArray[np.float64], sums: RealSums) -> Shares:
    """Return the shares of the variance of f's own mean, of coefficients z (m, p), over the rows.

    Parameters
    ----------
    sums : RealSums
        Over the rows, each counted as often as its weight says.
    """

    def variance(own: slice) -> NDArray[np.float64]:
        average = sums.gram[0, own] @ z[own] / count
        return np.maximum(_squares(sums.gram[own, own], z[own]) / count - average**2, 0.0)

    count = sums.gram[0, 0]
    total = variance(slice(None))
    total = np.where(total > 0, total, 1.0)
    components = [variance(own) / total for own in features.slices]
    return Shares(np.array(components), np.zeros_like(total))


def _squares(gram: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return zᵀ gram z for each column of z."""
    return np.einsum("ip,ip->p", gram @ z, z)


_VARIANCE_ROWS = 4096


class VarianceSeries:
    """The variance of f as a sum of series; see the module's docstring.

    Parameters
    ----------
    covariance : (m, m)
        V, that of the coefficients of the features' constant, cosines, sines and covariates.
    residual : float
        The variance that the features leave out.
    """

    def __init__(
        self,
        features: LatticeFeatures,
        covariance: NDArray[np.float64],
        residual: float,
        num_threads: int | None,
    ) -> None:
        self._features = features
        self._covariance = covariance
        self._residual = residual
        self._num_threads = num_threads
        own = range(len(features.parts))
        self._own = [self._own_series(j) for j in own]
        self._pairs = [
            (i, j, self._pair_series(i, j))
            for i, j in combinations(own, 2)
            if len(features.columns[i]) + len(features.columns[j]) <= MAX_DIMS
            and len(features.parts[i].indices) > 1
            and len(features.parts[j].indices) > 1
        ]
        self._large_pairs = [
            (i, j)
            for i, j in combinations(own, 2)
            if len(features.columns[i]) + len(features.columns[j]) > MAX_DIMS
        ]

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return var f at the rows of X, (n,)."""
        X = np.asarray(X, dtype=np.float64)
        features = self._features
        variance = np.full(len(X), self._covariance[0, 0] + self._residual)
        for j, series in enumerate(self._own):
            variance += self._evaluate(series, features.parts[j].lattice, X, features.columns[j])
        for i, j, series in self._pairs:
            joint = _joined(features.parts[i].lattice, features.parts[j].lattice)
            variance += self._evaluate(series, joint, X, features.columns[i] + features.columns[j])
        if self._large_pairs or features.num_slopes:
            for part in chunks(len(X), _VARIANCE_ROWS):
                variance[part] += self._pointwise(X[part])
        # What no feature sees is a part of every variance: below it only rounding can lead.
        return np.maximum(variance, self._residual)

    def _evaluate(
        self,
        series: NDArray[np.complex128],
        lattice: FrequencyLattice,
        X: NDArray,
        columns: tuple[int, ...],
    ) -> NDArray[np.float64]:
        inputs = X[:, list(columns)]
        return evaluate_series(series[None], lattice, inputs, num_threads=self._num_threads)[:, 0]

    def _own_series(self, j: int) -> NDArray[np.complex128]:
        """Return the products within a component, and twice those with the constant."""
        part, own = self._features.parts[j], self._features.slices[j]
        indices = part.indices
        box = SeriesBox(np.maximum(2 * np.abs(indices).max(axis=0), 1))
        s = len(indices)
        # With index zero in front, as blocks are written; the constant's own square apart.
        at = np.concatenate([[0], np.arange(own.start, own.stop)])
        matrix = self._covariance[np.ix_(at, at)].copy()
        matrix[0, 0] = 0.0
        return box.quadratic(indices, Blocks.split(matrix, s))

    def _pair_series(self, i: int, j: int) -> NDArray[np.complex128]:
        """Return twice the products between two components, as a series in the columns of both."""
        first, second = self._features.parts[i], self._features.parts[j]
        V = 2 * self._covariance[self._features.slices[i], self._features.slices[j]]
        a, b = first.indices[1:], second.indices[1:]
        c, s = len(a), len(b)
        cos_cos, cos_sin, sin_cos, sin_sin = V[:c, :s], V[:c, s:], V[c:, :s], V[c:, s:]
        reach = np.concatenate([np.abs(a).max(axis=0), np.abs(b).max(axis=0)])
        box = SeriesBox(reach)
        left = box.linear(np.concatenate([a, np.zeros((c, b.shape[1]), dtype=np.int64)], axis=1))
        right = box.linear(np.concatenate([np.zeros((s, a.shape[1]), dtype=np.int64), b], axis=1))
        flat = np.zeros(int(np.prod(box.shape)), dtype=np.complex128)
        # cos cos' = ½ [cos(θ−θ') + cos(θ+θ')] and so on; Re z e^{iθ} = Re z cos θ − Im z sin θ.
        # No position occurs twice: the half sets hold one of each pair ±t.
        sums = box.middle + left[:, None] + right
        differences = box.middle + left[:, None] - right
        flat[sums] += ((cos_cos - sin_sin) - 1j * (sin_cos + cos_sin)) / 2
        flat[differences] += ((cos_cos + sin_sin) - 1j * (sin_cos - cos_sin)) / 2
        return ((flat + np.conj(flat[::-1])) / 2).reshape(box.shape)

    def _pointwise(self, X: NDArray) -> NDArray[np.float64]:
        """Return the products of pairs in more than three columns, and of covariates with all."""
        features, V = self._features, self._covariance
        concerned = {i for pair in self._large_pairs for i in pair}
        designs = {i: features.component_design(i, X) for i in sorted(concerned)}
        total = np.zeros(len(X))
        for i, j in self._large_pairs:
            block = V[features.slices[i], features.slices[j]]
            total += 2 * np.einsum("ni,ni->n", designs[i] @ block, designs[j])
        if features.num_slopes:
            q = features.num_slopes
            covariates = features.mean.covariates(X)
            waves = features.design(X)[:, :-q]
            total += 2 * np.einsum("ni,ni->n", waves @ V[:-q, -q:], covariates)
            total += np.einsum("ni,ni->n", covariates @ V[-q:, -q:], covariates)
        return total


def _joined(first: FrequencyLattice, second: FrequencyLattice) -> FrequencyLattice:
    return FrequencyLattice(
        np.concatenate([first.spacing, second.spacing]),
        np.concatenate([first.extent, second.extent]),
        np.concatenate([first.centre, second.centre]),
    )


# Rows whose features are formed at once.
_CHUNK_ROWS = 2048
# The number of rows from which transforms evaluate series faster than the features do.
_MANY_ROWS = 20_000


class AdditivePosterior(Posterior):
    """q(f) of several components, and of each; see the module's docstring.

    The periods that the components' kernels have are no ends of the domain.
    """

    additive = True

    def __init__(
        self,
        features: AdditiveLattice,
        kernel: Kernel,
        noise_variance: float,
        solution: Solution,
        domain: Domain,
        num_threads: int | None = None,
    ) -> None:
        super().__init__(features, kernel, noise_variance, solution, domain, num_threads)
        assert solution.shares is not None
        self.sums, self.shares = solution.sums, solution.shares
        self._bounded = [
            [
                c
                for c, period in zip(columns, own_periods(own, len(columns)), strict=True)
                if not period
            ]
            for columns, own in zip(features.columns, self.kernels, strict=True)
        ]

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The columns that each component acts on."""
        return self.features.columns

    # ------------------------------------------------------------------ the whole function

    def least_variance(self, box: Domain) -> float:
        """Return a bound from below on φᵀB⁻¹φ over a box.

        It is at least the variance of any component if all others were known, φ_jᵀ(B_jj)⁻¹φ_j.
        """
        least = 0.0
        for j, (part, columns) in enumerate(
            zip(self.features.parts, self.features.columns, strict=True)
        ):
            own, at = list(columns), self.features.slices[j]
            points = points_over(part, Domain(box.lower[own], box.upper[own]))
            X = np.zeros((len(points), len(box.lower)))
            X[:, own] = points
            precision = self.chol[at, : at.stop] @ self.chol[at, : at.stop].T
            factor = np.asarray(np.linalg.cholesky(precision), dtype=np.float64)
            found = np.inf
            for rows in chunks(len(X), _CHUNK_ROWS):
                Phi = self.features.component_design(j, X[rows]) * self._amplitudes[at]
                found = min(found, float(np.sum(whiten(factor, Phi.T) ** 2, axis=0).min()))
            least = max(least, found)
        return least

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        outside = self._outside(X)
        if len(X) >= _MANY_ROWS and outside is None:
            return Gaussian(self.predict_mean(X), self._variance_series(X))
        mean, variance = np.empty((len(X), self.mean.shape[1])), np.empty(len(X))
        for part in chunks(len(X), _CHUNK_ROWS):
            Phi, extra = self._features(X[part], None if outside is None else outside[part])
            mean[part] = Phi @ self.mean
            variance[part] = np.sum(whiten(self.chol, Phi.T) ** 2, axis=0) + extra
        return Gaussian(mean, variance)

    def predict_mean(self, X: NDArray) -> NDArray[np.float64]:
        """Return the mean of f at the rows of X, (n, p), by one transform for each component."""
        outside = self._outside(X)
        coefficients = self._coefficient_mean
        mean = np.broadcast_to(coefficients[0], (len(X), coefficients.shape[1])).copy()
        for j, own in enumerate(self.features.slices):
            part = self._component_series(j, coefficients[own], X)
            mean += part if outside is None else np.where(outside[:, j, None], 0.0, part)
        if outside is not None:
            inside = self.features.mean.offset_variance + ~outside @ self._zero_masses
            mean += np.outer(inside / self._amplitudes[0] ** 2 - 1, coefficients[0])
        if self.features.num_slopes:
            mean += self.features.mean.covariates(X) @ coefficients[-self.features.num_slopes :]
        return mean

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        X = np.asarray(X, dtype=np.float64)
        self.require_covered(X)
        slopes = np.zeros((len(X), self.features.num_features))
        unseen = 0.0
        for j, columns in enumerate(self.features.columns):
            if dim not in columns:
                continue
            axis = columns.index(dim)
            part = self.features.parts[j]
            prior = float(derivative_variance(self.kernels[j], len(columns))[axis])
            if not np.isfinite(prior):
                raise InputError(
                    f"Functions of {type(self.kernels[j]).__name__} on column {dim} have no "
                    "derivative: use a smoother kernel, such as Matern32, Matern52 or RBF."
                )
            omega = part.omegas[1:, axis]
            cosines, sines = np.split(self.features.component_design(j, X), 2, axis=1)
            own = self.features.slices[j]
            slopes[:, own] = np.concatenate([-omega * sines, omega * cosines], axis=1)
            unseen += max(prior - 2 * float(part.masses(self.kernels[j])[1:] @ omega**2), 0.0)
        if self.features.mean.kind == "linear":
            at = self.features.num_features - self.features.num_slopes + dim
            slopes[:, at] = 1 / self.features.mean.width[dim]
        slopes *= self._amplitudes
        variance = np.sum(whiten(self.chol, slopes.T) ** 2, axis=0) + unseen
        return Gaussian(slopes @ self.mean, variance)

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Raise `InputError`: integrals are for kernels on up to three columns in all."""
        raise InputError(
            "Integrals over boxes are for models of up to three columns: average predictions, or "
            "fit a kernel on fewer columns by kernel.on(0, 1)."
        )

    # ------------------------------------------------------------------ components

    def component(self, j: int, X: NDArray) -> Gaussian:
        """Return mean and variance of component j, centred over the training rows, at rows of X.

        What the features leave out is centred too, up to the extent of the component's own sums;
        modes beyond are taken to average out.
        """
        outside = self._outside(X, only=j)
        own = self.features.slices[j]
        basis = self.features.component_design(j, X) - self._averages(j)
        mean = basis @ self._coefficient_mean[own]
        variance = np.einsum("ni,ni->n", basis @ self._coefficient_covariance(own), basis)
        series, constant = self._unseen_centring[j]
        lattice = self.features.parts[j].lattice
        inputs = X[:, list(self.features.columns[j])]
        removed = evaluate_series(series[None], lattice, inputs, num_threads=self.num_threads)
        unseen = self.residuals[j] - 2 * removed[:, 0] + constant
        variance += np.maximum(unseen, 0.0)
        if outside is not None:
            beyond = outside[:, j]
            mean[beyond], variance[beyond] = 0.0, self.prior_variances[j]
        return Gaussian(mean, variance)

    def density(self, j: int, x: NDArray[np.float64], width: float) -> NDArray[np.float64]:
        """Return the density of the rows along a component's only column, smoothed over a width.

        Σ_t conj(average_t) e^{iω_t·x} exp(−½ ω_t² width²)/P: the averages are its Fourier series.
        """
        lattice, averages = self.sums[j]
        omega = np.arange(-lattice.extent[0], lattice.extent[0] + 1) * lattice.spacing[0]
        series = np.conj(averages) * np.exp(-0.5 * (omega * width) ** 2) / lattice.period[0]
        values = evaluate_series(series[None], lattice, x, num_threads=self.num_threads)[:, 0]
        return np.maximum(values, 0.0)

    def _averages(self, j: int) -> NDArray[np.float64]:
        """Return the averages of a component's cosines and sines over the rows, (2s−2,)."""
        averages = self.sums[j].at(self.features.parts[j].indices[1:])
        return np.concatenate([averages.real, averages.imag])

    @cached_property
    def _unseen_centring(self) -> list[tuple[NDArray[np.complex128], float]]:
        """For the modes left out: the covariance of r(x) with its average r̄, and the variance of r̄.

        Σ_t mass_t conj(average_t) e^{iω_t·x} as a series, and Σ_t mass_t |average_t|².
        """
        result = []
        for part, own, sums in zip(self.features.parts, self.kernels, self.sums, strict=True):
            indices, masses, _ = unseen_modes(part, own)
            averages = sums.at(indices)
            box = SeriesBox(part.lattice.extent)
            series = box.function(indices, 2 * masses * averages.real, 2 * masses * averages.imag)
            result.append((series, 2 * float(masses @ np.abs(averages) ** 2)))
        return result

    # ------------------------------------------------------------------ parts

    @cached_property
    def _variance_series(self) -> VarianceSeries:
        covariance = self._amplitudes[:, None] * self._inverse * self._amplitudes
        return VarianceSeries(self.features, covariance, self.residual, self.num_threads)

    def _component_series(
        self, j: int, coefficients: NDArray[np.float64], X: NDArray
    ) -> NDArray[np.float64]:
        """Return a component's series at rows of X, (n, p)."""
        part = self.features.parts[j]
        if len(part.indices) == 1:
            return np.zeros((len(X), coefficients.shape[1]))
        box = SeriesBox(np.abs(part.indices).max(axis=0))
        cosines, sines = np.split(coefficients, 2)
        series = np.stack(
            [box.function(part.indices[1:], c, s) for c, s in zip(cosines.T, sines.T, strict=True)]
        )
        inputs = X[:, list(self.features.columns[j])]
        return evaluate_series(series, part.lattice, inputs, num_threads=self.num_threads)


def lattice_posterior(
    features: LatticeFeatures,
    model: tuple[Kernel, float],
    moments: Moments,
    domain: Domain,
    num_threads: int | None,
    sums: tuple[ComponentSums, ...] = (),
) -> Posterior:
    """Return the posterior of lattice features, of one component or several.

    Parameters
    ----------
    model : (Kernel, float)
        The kernel and the noise variance.
    sums : tuple of ComponentSums
        What several components are centred by.
    """
    if isinstance(features, Lattice):
        return Posterior(features, *model, moments, domain, num_threads)
    solution = Solution.of(moments, model[1])
    shares = target_shares(features, model[0], solution.mean, moments)
    solution = solution._replace(sums=sums, shares=shares)
    return AdditivePosterior(features, *model, solution, domain, num_threads)  # type: ignore[arg-type]
