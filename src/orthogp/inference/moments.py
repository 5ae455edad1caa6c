r"""Where data and hyperparameters meet: the moments of features, and how gradients go back.

A source computes, for features φ(θ) and the mean function's columns behind them,

    A = Σ w_n φ_n φ_nᵀ,   b = Σ w_n φ_n y_nᵀ,   R = Σ w_n (k(0) − Σ_m φ_m(x_n)²)

and pulls ∂L/∂A, ∂L/∂b and ∂L/∂R back to the hyperparameters. `SeriesSource` has the statistics,
`RowSource` and `EvaluatedSource` have the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.features import Features, MeanPrior, PointFeatures
from orthogp.features.base import as_rows, prior_variance
from orthogp.features.series import LatticeFeatures, MassSeries, SeriesFeatures
from orthogp.inference.fourier_series import SeriesGrid, as_complex
from orthogp.inference.parameters import Slot, masses_and_jacobian, unpack
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics, RealSums, Statistics
from orthogp.statistics.nufft import chunks

# The family that a source has the moments of.
F = TypeVar("F", bound=Features)

# The number of rows whose features are evaluated at once.
ROWS_PER_CHUNK = 2**14


class Moments(NamedTuple):
    """The moments of the features over the data.

    Attributes
    ----------
    gram : (m, m)
        A = Σ w_n φ(x_n) φ(x_n)ᵀ.
    projection : (m, p)
        b = Σ w_n φ(x_n) y_n, for each target.
    yy : (p,)
        Σ w_n y_n².
    residual_trace : float
        Σ w_n d_n, d_n the prior variance that the features leave out at x_n.
    rows : float
        The number N of Gaussian factors: of rows if weights are precisions, Σ w_n if repeats.
    log_weights : float
        Σ log w_n if weights are precisions, zero if repeats.
    """

    gram: NDArray[np.float64]
    projection: NDArray[np.float64]
    yy: NDArray[np.float64]
    residual_trace: float
    rows: float
    log_weights: float


def moments_from_statistics(
    features: LatticeFeatures,
    kernel: Kernel,
    statistics: Statistics,
    *,
    repeats: bool = True,
    sums: RealSums | None = None,
) -> Moments:
    """Return the moments of lattice features from the sums, without the rows.

    Parameters
    ----------
    repeats : bool
        Whether a weight w counts a row w times; otherwise it divides the row's noise variance.
    sums : RealSums, optional
        `real_sums(features, statistics)`, if at hand.
    """
    masses = features.masses(kernel)
    amplitudes = np.sqrt(features.squared_amplitudes(masses))
    if sums is None:
        sums = real_sums(features, statistics)
    residual = features.residual(kernel)
    return Moments(
        gram=amplitudes[:, None] * sums.gram * amplitudes,
        projection=amplitudes[:, None] * sums.projection,
        yy=statistics.yy,
        residual_trace=statistics.count * residual,
        rows=statistics.count if repeats else statistics.rows,
        log_weights=0.0 if repeats else statistics.log_weights,
    )


def real_sums(features: LatticeFeatures, statistics: Statistics) -> RealSums:
    """Return the sums of products of the features' cosines and sines."""
    return statistics.real_sums(features.indices)  # type: ignore[attr-defined]


def moments_from_rows(
    features: Features,
    kernel: Kernel,
    X: NDArray,
    y: NDArray,
    sample_weight: NDArray | None = None,
    *,
    repeats: bool = True,
    mean: MeanPrior = MeanPrior(),  # noqa: B008 (immutable)
) -> Moments:
    """Return the moments of any features, summed over the rows in chunks.

    Columns of a `mean` follow the features (those of `Lattice` bring their own).
    """
    X = as_rows(X)
    m = features.num_features + mean.features(X[:1]).shape[1]
    targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
    weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    gram, projection = np.zeros((m, m)), np.zeros((m, targets.shape[1]))
    residual_trace = 0.0
    for part in chunks(len(X), ROWS_PER_CHUNK):
        Phi = np.concatenate([features.evaluate(kernel, X[part]), mean.features(X[part])], axis=1)
        weighted = weights[part, None] * Phi
        gram += weighted.T @ Phi
        projection += weighted.T @ targets[part]
        residual_trace += weights[part] @ features.residual_variance(kernel, X[part])
    positive = weights > 0
    return Moments(
        gram=gram,
        projection=projection,
        yy=np.einsum("n,np,np->p", weights, targets, targets),
        residual_trace=float(residual_trace),
        rows=float(weights.sum()) if repeats else float(np.count_nonzero(positive)),
        log_weights=0.0 if repeats else float(np.log(weights[positive]).sum()),
    )


class Pullback(NamedTuple):
    """The gradient of a bound with respect to what it was computed from.

    `gram` is symmetric, (m, m), mean columns included; `projection` (m, p); `residual` is ∂L/∂R, a
    number.
    """

    gram: NDArray[np.float64]
    projection: NDArray[np.float64]
    residual: float

    def full_gram(self, num_features: int) -> NDArray[np.float64]:
        """Return ∂L/∂A, what goes through R = Σ w_n k(0) − tr A included."""
        gram = self.gram.copy()
        np.einsum("ii->i", gram)[:num_features] -= self.residual
        return gram


class Source(ABC, Generic[F]):
    """Moments of one feature set under changing hyperparameters.

    Kernel and features are those at the starting parameters, `slots` the learned parameters of the
    kernel.
    """

    #: Σ w_n.
    count: float

    def __init__(
        self, features: F, kernel: Kernel, slots: tuple[Slot, ...], *, repeats: bool
    ) -> None:
        self.features = features
        self.kernel = kernel
        self.slots = slots
        self._repeats = repeats

    @property
    def num_free(self) -> int:
        """The number of the features' own learned parameters."""
        return 0

    @abstractmethod
    def moments(self, parameters: NDArray[np.float64]) -> Moments:
        """Return the moments for log kernel parameters followed by the features' own."""

    @abstractmethod
    def gradient(self, parameters: NDArray[np.float64], pullback: Pullback) -> NDArray[np.float64]:
        """Return the gradient with respect to `parameters`, those of the last `moments` call."""

    def kernel_at(self, parameters: NDArray[np.float64]) -> Kernel:
        """Return the kernel of a parameter vector."""
        size = sum(slot.size for slot in self.slots)
        return unpack(self.kernel, self.slots, np.asarray(parameters[:size]))

    def features_at(self, parameters: NDArray[np.float64]) -> Features:
        """Return the features of a parameter vector."""
        return self.features


class SeriesSource(Source[SeriesFeatures]):
    """Moments of series features, from statistics on their lattice."""

    def __init__(
        self,
        features: SeriesFeatures,
        kernel: Kernel,
        slots: tuple[Slot, ...],
        statistics: FourierStatistics,
        mean: MeanPrior,
        *,
        repeats: bool,
    ) -> None:
        super().__init__(features, kernel, slots, repeats=repeats)
        self._statistics = statistics
        self.count = statistics.count
        self._grid = SeriesGrid(features.indices)
        self._density = self._grid.density(statistics)
        self._odd = np.asarray(features.odd)
        extent = statistics.lattice.extent
        at = tuple((features.indices + extent).T)
        self._targets = statistics.target_sums[(slice(None), *at)]
        self._means = _mean_sums(statistics, mean, features.indices)

    def moments(self, parameters: NDArray[np.float64]) -> Moments:
        """Return the moments at log parameters."""
        kernel = self.kernel_at(parameters)
        C = self.features.coefficient_matrix(kernel)
        G = np.empty(C.shape, dtype=np.complex128)
        for start in range(0, len(C), self._grid.batch):
            rows = slice(start, start + self._grid.batch)
            values = self._grid.values(as_complex(C[rows], self._odd[rows]))
            values *= self._density
            G[rows] = self._grid.sums(values)
        even = ~self._odd
        m, (waves, mean_gram, mean_targets) = len(C), self._means
        gram = np.empty((m + len(waves), m + len(waves)))
        gram[:m][even, :m] = C[even] @ G.real.T
        gram[:m][self._odd, :m] = C[self._odd] @ G.imag.T
        gram[:m, m:] = self._project(C, waves)
        gram[m:, :m] = gram[:m, m:].T
        gram[m:, m:] = mean_gram
        statistics = self._statistics
        residual = 0.0
        if self.features.projects:
            total = statistics.count * prior_variance(kernel)
            residual = max(total - float(np.trace(gram[:m, :m])), 0.0)
        self._last = C, G
        return Moments(
            gram=(gram + gram.T) / 2,
            projection=np.concatenate([self._project(C, self._targets), mean_targets]),
            yy=statistics.yy,
            residual_trace=residual,
            rows=statistics.count if self._repeats else statistics.rows,
            log_weights=0.0 if self._repeats else statistics.log_weights,
        )

    def gradient(self, parameters: NDArray[np.float64], pullback: Pullback) -> NDArray[np.float64]:
        """Return the gradient, through C and k(0)."""
        C, G = self._last
        m, odd = len(C), self._odd
        gram_bar = pullback.full_gram(m)
        # As an array: a float would be a constant, compiled anew for every value.
        prior_bar = np.asarray(pullback.residual * self.count)
        inner, outer = 2 * gram_bar[:m, :m], 2 * gram_bar[:m, m:]
        C_bar = np.empty_like(C)
        others = np.concatenate([self._means.waves, self._targets])
        weights = np.concatenate([outer, pullback.projection[:m]], axis=1)
        for part, take in ((~odd, np.real), (odd, np.imag)):
            C_bar[part] = inner[part] @ take(G) + weights[part] @ take(others)
        if isinstance(self.features, MassSeries):
            prior = masses_and_jacobian(
                parameters, self.kernel, self.slots, self.features.lattice, self.features.indices
            )
            root = np.sqrt(np.maximum(prior.masses, 0.0))
            per_root = np.einsum("ms,ms->s", C_bar, self.features.weights)
            per_mass = np.divide(per_root, 2 * root, out=np.zeros_like(root), where=root > 0)
            return prior.jacobian.T @ per_mass + prior_bar * prior.variance_jacobian
        gradient = _pull_coefficients(
            parameters, self.kernel, self.slots, self.features, C_bar, prior_bar
        )
        return np.asarray(gradient)

    def _project(
        self, C: NDArray[np.float64], waves: NDArray[np.complex128]
    ) -> NDArray[np.float64]:
        """Return Σ w_n φ_m(x_n) c_nj from the sums of columns c_j with e^{iω_t·x}, (m, j)."""
        result = np.empty((len(C), len(waves)))
        result[~self._odd] = C[~self._odd] @ waves.real.T
        result[self._odd] = C[self._odd] @ waves.imag.T
        return result


class _MeanSums(NamedTuple):
    """Sums of the mean function's scaled columns: with waves, with each other, with targets."""

    waves: NDArray[np.complex128]
    gram: NDArray[np.float64]
    targets: NDArray[np.float64]


def _mean_sums(
    statistics: FourierStatistics, mean: MeanPrior, indices: NDArray[np.int64]
) -> _MeanSums:
    slope = np.sqrt(mean.slope_variance)
    extent = statistics.lattice.extent
    at = tuple((indices + extent).T)
    zero = tuple(extent)
    waves = slope * statistics.covariate_sums[(slice(None), *at)]
    gram = slope**2 * statistics.covariate_gram
    targets = slope * statistics.covariate_targets
    if mean.offset_variance:
        offset = np.sqrt(mean.offset_variance)
        points = statistics.point_sums[tuple((indices + 2 * extent).T)]
        totals = offset * slope * statistics.covariate_sums[(slice(None), *zero)].real
        waves = np.concatenate([offset * points[None], waves])
        top = np.concatenate([[offset**2 * statistics.count], totals])
        gram = np.block([[top[None, :1], top[None, 1:]], [totals[:, None], gram]])
        targets = np.concatenate([offset * statistics.target_totals[None], targets])
    return _MeanSums(waves, gram, targets)


@in_double
@eqx.filter_jit
def _pull_coefficients(
    parameters: Float[AnyArray, " p"],
    kernel: Kernel,
    slots: tuple[Slot, ...],
    features: SeriesFeatures,
    C_bar: Float[AnyArray, "m s"],
    prior_bar: Float[AnyArray, ""],
) -> Float[AnyArray, " p"]:
    def forward(vector):
        candidate = unpack(kernel, slots, vector)
        return features.coefficients(candidate), candidate.prior_variance()

    _, pull = jax.vjp(forward, jnp.asarray(parameters))
    return pull((jnp.asarray(C_bar), jnp.asarray(prior_bar)))[0]


# Rows per compiled call.
_BLOCK_ROWS = 4096


class RowSource(Source[PointFeatures]):
    """Moments of point features, from the rows, in blocks."""

    def __init__(
        self,
        features: PointFeatures,
        kernel: Kernel,
        slots: tuple[Slot, ...],
        rows: Rows,
        mean: MeanPrior,
        *,
        repeats: bool,
    ) -> None:
        super().__init__(features, kernel, slots, repeats=repeats)
        X, y, weights = rows[:3]
        weights = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=float)
        extra = -len(X) % _BLOCK_ROWS if len(X) > _BLOCK_ROWS else 0
        # Blocks of one shape are compiled once; the rows that fill the last up weigh nothing.
        block = min(len(X), _BLOCK_ROWS)
        X = np.asarray(X, dtype=np.float64)
        columns = mean.features(X)
        shape = ((len(X) + extra) // block, block)
        self._blocks = [
            np.pad(part, [(0, extra), (0, 0)], mode="edge").reshape(*shape, part.shape[1])
            for part in (X, columns, np.asarray(y, dtype=float))
        ]
        self._weights = np.pad(weights, (0, extra)).reshape(shape)
        positive = weights > 0
        self._rows = float(weights.sum()) if repeats else float(np.count_nonzero(positive))
        self._log_weights = 0.0 if repeats else float(np.log(weights[positive]).sum())
        self._yy = np.einsum("n,np,np->p", weights, y, y)
        self.count = float(weights.sum())

    @property
    def num_free(self) -> int:
        """The number of the features' own learned parameters."""
        return len(self.features.free_parameters())

    def features_at(self, parameters: NDArray[np.float64]) -> PointFeatures:
        """Return the features of a parameter vector."""
        size = sum(slot.size for slot in self.slots)
        return self.features.with_free_parameters(np.asarray(parameters[size:]))

    def moments(self, parameters: NDArray[np.float64]) -> Moments:
        """Return the moments at log parameters."""
        kernel, features = self.kernel_at(parameters), self.features_at(parameters)
        gram, projection = 0.0, 0.0
        for X, columns, y, w in zip(*self._blocks, self._weights, strict=True):
            own_gram, own_projection = _block_moments(features, kernel, X, columns, y, w)
            gram = gram + np.asarray(own_gram)
            projection = projection + np.asarray(own_projection)
        gram = np.asarray(gram)
        m = features.num_features
        residual = 0.0
        if features.projects:
            explained = float(np.trace(gram[:m, :m]))
            residual = max(self.count * prior_variance(kernel) - explained, 0.0)
        return Moments(
            gram=(gram + gram.T) / 2,
            projection=np.asarray(projection),
            yy=self._yy,
            residual_trace=residual,
            rows=self._rows,
            log_weights=self._log_weights,
        )

    def gradient(self, parameters: NDArray[np.float64], pullback: Pullback) -> NDArray[np.float64]:
        """Return the gradient, through φ and k(0), by a second pass over the rows."""
        total = np.zeros(len(parameters))
        gram_bar = pullback.full_gram(self.features.num_features)
        for i, (X, columns, y, w) in enumerate(zip(*self._blocks, self._weights, strict=True)):
            prior_bar = np.asarray(pullback.residual * self.count if i == 0 else 0.0)
            total += np.asarray(
                _pull_block(
                    parameters,
                    self.kernel,
                    self.slots,
                    self.features,
                    (X, columns, y, w),
                    (gram_bar, pullback.projection, prior_bar),
                )
            )
        return total


class EvaluatedSource(Source[Features]):
    """Moments of features that offer `evaluate` alone; gradients are differences of bounds."""

    def __init__(
        self,
        features: Features,
        kernel: Kernel,
        slots: tuple[Slot, ...],
        rows: Rows,
        mean: MeanPrior,
        *,
        repeats: bool,
    ) -> None:
        super().__init__(features, kernel, slots, repeats=repeats)
        self._rows = rows._replace(X=np.asarray(rows.X, dtype=np.float64))
        self.count = float(len(rows.X) if rows.weights is None else np.sum(rows.weights))
        self._mean = mean

    def moments(self, parameters: NDArray[np.float64]) -> Moments:
        """Return the moments at log parameters."""
        return moments_from_rows(
            self.features,
            self.kernel_at(parameters),
            *self._rows[:3],
            repeats=self._repeats,
            mean=self._mean,
        )

    def gradient(self, parameters: NDArray[np.float64], pullback: Pullback) -> NDArray[np.float64]:
        """Return central differences of the moments, contracted with the pullback."""
        step = 1e-5
        result = np.empty(len(parameters))
        for i in range(len(parameters)):
            move = np.zeros(len(parameters))
            move[i] = step
            up, down = self.moments(parameters + move), self.moments(parameters - move)
            change = np.sum(pullback.gram * (up.gram - down.gram))
            change += np.sum(pullback.projection * (up.projection - down.projection))
            change += pullback.residual * (up.residual_trace - down.residual_trace)
            result[i] = change / (2 * step)
        return result


@in_double
@eqx.filter_jit
def _block_moments(features: PointFeatures, kernel: Kernel, X, columns, y, w):
    Phi = jnp.concatenate([features.phi(kernel, jnp.asarray(X)), columns], axis=1)
    weighted = w[:, None] * Phi
    return weighted.T @ Phi, weighted.T @ y


@in_double
@eqx.filter_jit
def _pull_block(parameters, kernel: Kernel, slots, features: PointFeatures, block, bars):
    X, columns, y, w = (jnp.asarray(part) for part in block)
    gram_bar, projection_bar, prior_bar = bars
    size = sum(slot.size for slot in slots)

    def forward(vector):
        candidate = unpack(kernel, slots, vector[:size])
        own = features.with_free_parameters(vector[size:])
        return own.phi(candidate, X), candidate.prior_variance()

    (phi, _), pull = jax.vjp(forward, jnp.asarray(parameters))
    m = phi.shape[1]
    both = jnp.concatenate([phi, columns], axis=1)
    phi_bar = w[:, None] * (2 * both @ gram_bar[:, :m] + y @ projection_bar[:m].T)
    return pull((phi_bar, jnp.asarray(prior_bar)))[0]
