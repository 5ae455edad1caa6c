"""Moments of features that need the rows, and how gradients go back; see `sources.py`."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from orthogp.features import Features, MeanPrior, PointFeatures
from orthogp.features.base import prior_variance
from orthogp.inference.moments import Moments, moments_from_rows
from orthogp.inference.parameters import Slot, unpack
from orthogp.inference.sources import Pullback, Source
from orthogp.kernels import Kernel
from orthogp.precision import in_double

# Rows per compiled call.
_BLOCK_ROWS = 4096


class RowSource(Source):
    """Moments of point features, from the rows, in blocks."""

    def __init__(
        self,
        features: PointFeatures,
        kernel: Kernel,
        slots: tuple[Slot, ...],
        X: NDArray,
        y: NDArray[np.float64],
        weights: NDArray[np.float64] | None,
        mean: MeanPrior,
        *,
        repeats: bool,
    ) -> None:
        self._features = features
        self.kernel = kernel
        self.slots = slots
        self._repeats = repeats
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
    def features(self) -> PointFeatures:
        """The features, at their starting parameters."""
        return self._features

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


class EvaluatedSource(Source):
    """Moments of features that offer `evaluate` alone; gradients are differences of bounds."""

    def __init__(
        self,
        features: Features,
        kernel: Kernel,
        slots: tuple[Slot, ...],
        X: NDArray,
        y: NDArray[np.float64],
        weights: NDArray[np.float64] | None,
        mean: MeanPrior,
        *,
        repeats: bool,
    ) -> None:
        self._features = features
        self.kernel = kernel
        self.slots = slots
        self._X, self._y, self._weights = np.asarray(X, dtype=np.float64), y, weights
        self.count = float(len(X) if weights is None else np.sum(weights))
        self._mean = mean
        self._repeats = repeats

    @property
    def features(self) -> Features:
        """The features, at their starting parameters."""
        return self._features

    def moments(self, parameters: NDArray[np.float64]) -> Moments:
        """Return the moments at log parameters."""
        return moments_from_rows(
            self.features,
            self.kernel_at(parameters),
            self._X,
            self._y,
            self._weights,
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
