r"""The variance of an additive function at many points, by transforms.

    var f(x) = Σ_ij V_ij basis_i(x) basis_j(x) + residual

Within a component the products are a series in its own columns, between two components one in the
columns of both. Where these are more than three the products are formed point by point.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice
from orthogp.inference.series import Blocks, SeriesBox
from orthogp.statistics import FrequencyLattice
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import chunks, evaluate_series

_CHUNK_ROWS = 4096


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
        features: AdditiveLattice,
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
            for part in chunks(len(X), _CHUNK_ROWS):
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
