r"""Exact Gaussian process regression, for small data.

The covariance K holds kernel and mean prior, and row n has noise σ²/w_n. With W = diag(w),

    B = I + W^½ K W^½/σ²,      α = W^½ B⁻¹ W^½ y/σ²
    log p(y) = −½ (N log 2πσ² − Σ log w_n + log|B| + yᵀα)

for each target. B has eigenvalues ≥ 1, so its Cholesky factor needs no jitter. If weights count
repeated rows, N is Σ w_n and the term with log w_n is left out: weight 2 is the row twice. Rows of
weight zero are not there. The gradient is that of Gaussian likelihoods,

    ∂ log p/∂θ = ½ tr((ααᵀ − W^½ B⁻¹ W^½/σ²) ∂K/∂θ)
    ∂ log p/∂log σ² = ½ (σ² Σ α_n²/w_n + Σ_n (1 − (B⁻¹)_nn) − N)
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from orthogp.errors import InputError, PrecisionError
from orthogp.features.base import as_rows, prior_variance
from orthogp.features.inducing import covariance_matrix
from orthogp.features.lattice import MeanPrior
from orthogp.inference.bounds import factorise_in_place, unwhiten, whiten
from orthogp.inference.parameters import Slot, learned_slots, unpack, value_and_derivatives
from orthogp.inference.predictive import Gaussian, PredictivePosterior
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics.nufft import chunks

(potri,) = get_lapack_funcs(("potri",), dtype=np.float64)

# Lags per compiled call, which bounds memory; fewer are filled up to powers of two: few shapes.
_LAGS_PER_BLOCK = 2**14
_SMALLEST_BLOCK = 2**8
_ROWS_PER_BLOCK = 2**10
# Up to so many parameters the gradient is taken forwards.
_FEW_PARAMETERS = 3
# Up to so many rows, and entries of ∂K/∂θ, all lags are taken in one compiled call: most of the
# time would else go into calls.
_FEW_ROWS, _FEW_ENTRIES = 512, 2**21


class ExactPosterior(PredictivePosterior):
    """The posterior of f given all rows; see the module's docstring.

    Parameters
    ----------
    kernel : Kernel
    noise_variance : float
    mean : MeanPrior
        The mean function to be integrated out.
    X : (n, d)
    y : (n,) or (n, p)
        Several targets share kernel and noise, and their log marginal likelihoods add.
    weights : (n,), optional
    repeats : bool
        Whether a weight w counts a row w times; otherwise it divides the row's noise variance.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        mean: MeanPrior,
        X: NDArray,
        y: NDArray,
        weights: NDArray | None = None,
        *,
        repeats: bool = True,
    ) -> None:
        self.kernel = kernel
        self.noise_variance = float(noise_variance)
        self.mean = mean
        self.prior_variance = prior_variance(kernel)
        self.residual = 0.0
        self._data = _gather(kernel, mean, X, y, weights, repeats=repeats)
        self._solution = _solve(_gram(kernel, self._data), self._data, self.noise_variance)

    @property
    def num_rows(self) -> int:
        """The number of rows of positive weight."""
        return len(self._data.X)

    @property
    def rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Inputs (n, d), targets (n, p) and weights (n,) of the rows of positive weight."""
        return self._data.X, self._data.y, self._data.weights

    @property
    def counted_rows(self) -> float:
        """The number N of Gaussian factors: of rows if weights are precisions, Σ w if repeats."""
        return self._data.rows

    @property
    def log_marginal_likelihood(self) -> float:
        """Log p(y), summed over the targets."""
        return self._solution.log_likelihood

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        X = as_rows(X)
        means, variances = [np.empty((0, self._data.y.shape[1]))], [np.empty(0)]
        for part in chunks(len(X), _ROWS_PER_BLOCK):
            cross = self._prior_covariance(X[part], self._data.X)
            prior = self.prior_variance + self.mean.prior_variance(X[part])
            explained = np.sum(self._whiten(cross) ** 2, axis=0)
            means.append(cross @ self._solution.alpha)
            variances.append(np.maximum(prior - explained, 0.0))
        return Gaussian(np.concatenate(means), np.concatenate(variances))

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance of f between the rows of X, (n, n)."""
        X = as_rows(X)
        whitened = self._whiten(self._prior_covariance(X, self._data.X))
        return self._prior_covariance(X, X) - whitened.T @ whitened

    def _prior_covariance(self, A: NDArray, B: NDArray) -> NDArray[np.float64]:
        kernel_part = np.asarray(covariance_matrix(self.kernel, A, B))
        return kernel_part + self.mean.features(A) @ self.mean.features(B).T

    def _whiten(self, cross: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return L⁻¹ W^½ k(X, ·)/σ, whose squares are the explained variances, (n, n*)."""
        scale = np.sqrt(self._data.weights / self.noise_variance)
        return whiten(self._solution.chol, scale[:, None] * cross.T)


class ExactObjective:
    """Log p(y) as a function of log hyperparameters.

    The vector holds the logarithms of the kernel's learned parameters and, last, of the noise
    variance. For the parameters see `ExactPosterior`.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: MeanPrior,
        X: NDArray,
        y: NDArray,
        weights: NDArray | None = None,
        *,
        repeats: bool = True,
    ) -> None:
        self.kernel = kernel
        self.slots = learned_slots(kernel)
        self._data = _gather(kernel, mean, X, y, weights, repeats=repeats)

    def value(self, vector: NDArray[np.float64]) -> float:
        """Return log p(y)."""
        data = self._data
        if len(data.X) <= _FEW_ROWS:
            values = _values(np.asarray(vector[:-1]), self.kernel, self.slots, self._pairs.lags)
            gram = self._pairs.matrix(values, data)
        else:
            gram = _gram(self.kernel_at(vector), data)
        return _solve(gram, data, float(np.exp(vector[-1]))).log_likelihood

    def value_and_gradient(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return log p(y) and its gradient."""
        data, noise = self._data, float(np.exp(vector[-1]))
        p = data.y.shape[1]
        few = len(data.X) <= _FEW_ROWS and len(data.X) ** 2 * len(vector) <= _FEW_ENTRIES
        jacobian = None
        if few:
            values, jacobian = _values_and_jacobian(
                vector[:-1], self.kernel, self.slots, self._pairs.lags
            )
            gram = self._pairs.matrix(values, data)
        else:
            gram = _gram(self.kernel_at(vector), data)
        solution = _solve(gram, data, noise)
        alpha = solution.alpha
        # ½ (ααᵀ − W^½ B⁻¹ W^½/σ²), in the lower triangle, which is all that is read of it.
        inverse = potri(solution.chol, lower=1, overwrite_c=1)[0]
        kept = np.sum(np.einsum("ii->i", inverse))
        scale = np.sqrt(data.weights / noise)
        # Both terms are symmetric: transposed, all matrices are in one order.
        transposed = inverse.T
        transposed *= -p / 2 * scale[:, None] * scale
        transposed += alpha @ alpha.T / 2
        gradient = np.empty_like(vector)
        if jacobian is None:
            gradient[:-1] = _pull(self.kernel, self.slots, vector[:-1], data.X, inverse)
        else:
            gradient[:-1] = np.asarray(jacobian) @ self._pairs.weights(inverse)
        gradient[-1] = 0.5 * (
            noise * np.sum(alpha**2 / data.weights[:, None]) + p * (len(data.X) - kept - data.rows)
        )
        return solution.log_likelihood, gradient

    def kernel_at(self, vector: NDArray[np.float64]) -> Kernel:
        """Return the kernel of a parameter vector."""
        return unpack(self.kernel, self.slots, np.asarray(vector[:-1]))

    @cached_property
    def _pairs(self) -> _Pairs:
        return _Pairs.of(self._data.X)


class _Pairs(NamedTuple):
    """All pairs of a few rows: places in the lower triangle, column by column, and the lags.

    A pair of different rows counts twice in a sum over the matrix.
    """

    places: NDArray[np.int64]
    counts: NDArray[np.float64]
    lags: NDArray[np.float64]

    @classmethod
    def of(cls, X: NDArray[np.float64]) -> _Pairs:
        """Return the pairs of the rows of X."""
        columns, rows = np.triu_indices(len(X))
        counts = np.where(rows == columns, 1.0, 2.0)
        return cls(columns * len(X) + rows, counts, X[rows] - X[columns])

    def matrix(self, values: object, data: _Data) -> NDArray[np.float64]:
        """Return the lower triangle of the covariance of kernel and mean function."""
        transposed = data.mean_columns @ data.mean_columns.T
        transposed.reshape(-1)[self.places] += np.asarray(values)
        return transposed.T

    def weights(self, bar: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a symmetric `bar`, column by column, makes each pair count in a sum."""
        return self.counts * bar.T.reshape(-1)[self.places]


class _Data(NamedTuple):
    """Rows of positive weight, with the mean prior's columns."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]
    mean_columns: NDArray[np.float64]
    #: N and Σ log w_n as in `Moments`, by what weights mean.
    rows: float
    log_weights: float


class _Solution(NamedTuple):
    """The lower Cholesky factor of B, α (n, p), and log p(y)."""

    chol: NDArray[np.float64]
    alpha: NDArray[np.float64]
    log_likelihood: float


def _gather(
    kernel: Kernel,
    mean: MeanPrior,
    X: NDArray,
    y: NDArray,
    weights: NDArray | None,
    *,
    repeats: bool,
) -> _Data:
    X = as_rows(X)
    kernel.check(X.shape[1])
    targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(X) == len(targets) == len(w):
        raise InputError(
            f"X, y and weights must have one row each, got {len(X)}, {len(targets)} and {len(w)}."
        )
    there = w > 0
    X, targets, w = X[there], targets[there], w[there]
    return _Data(
        X=X,
        y=targets,
        weights=w,
        mean_columns=mean.features(X),
        rows=float(w.sum()) if repeats else float(len(w)),
        log_weights=0.0 if repeats else float(np.log(w).sum()),
    )


def _solve(gram: NDArray[np.float64], data: _Data, noise_variance: float) -> _Solution:
    """Factorise B, overwriting K."""
    scale = np.sqrt(data.weights / noise_variance)
    gram *= scale[:, None]
    gram *= scale
    try:
        chol = factorise_in_place(gram)
    except PrecisionError as error:
        raise PrecisionError(
            f"The noise variance {noise_variance:.3g} is too small, relative to the prior variance "
            f"and {len(data.X)} rows, for double precision: use a larger noise_variance."
        ) from error
    whitened = whiten(chol, scale[:, None] * data.y)
    log_det = 2 * np.sum(np.log(np.einsum("ii->i", chol)))
    normaliser = data.rows * np.log(2 * np.pi * noise_variance) - data.log_weights
    value = -0.5 * (data.y.shape[1] * (normaliser + log_det) + np.sum(whitened**2))
    return _Solution(chol, scale[:, None] * unwhiten(chol, whitened), float(value))


# ---------------------------------------------------------------------- kernel matrices by lags


def _gram(kernel: Kernel, data: _Data) -> NDArray[np.float64]:
    """Return the covariance of kernel and mean function between all rows, column by column."""
    size = len(data.X)
    gram = np.zeros((size, size), order="F")
    rows, columns = np.tril_indices(size, -1)
    origin = np.zeros((1, data.X.shape[1]))
    for part in chunks(len(rows), _LAGS_PER_BLOCK):
        i, j = rows[part], columns[part]
        gram[i, j] = np.asarray(covariance_matrix(kernel, _lags(data.X, i, j), origin))[: len(i), 0]
    gram += gram.T
    np.einsum("ii->i", gram)[:] = prior_variance(kernel)
    gram += data.mean_columns @ data.mean_columns.T
    return gram


def _pull(
    kernel: Kernel,
    slots: tuple[Slot, ...],
    log_parameters: NDArray[np.float64],
    X: NDArray[np.float64],
    bar: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return Σ bar_nm ∂K_nm/∂log θ for a symmetric `bar`, of which the lower triangle is read."""
    rows, columns = np.tril_indices(len(X))
    total = np.zeros(len(log_parameters))
    for part in chunks(len(rows), _LAGS_PER_BLOCK):
        i, j = rows[part], columns[part]
        lags = _lags(X, i, j)
        weights = np.zeros(len(lags))
        weights[: len(i)] = np.where(i == j, 1.0, 2.0) * bar[i, j]
        total += np.asarray(_weighted_gradient(log_parameters, kernel, slots, lags, weights))
    return total


def _lags(
    X: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return x_i − x_j for pairs of rows, filled up with zeros to a block."""
    size = max(_SMALLEST_BLOCK, 1 << (len(rows) - 1).bit_length())
    lags = np.zeros((size, X.shape[1]))
    np.subtract(X[rows], X[columns], out=lags[: len(rows)])
    return lags


@in_double
@eqx.filter_jit
def _values(
    log_parameters: NDArray, kernel: Kernel, slots: tuple[Slot, ...], lags: NDArray
) -> Float[AnyArray, " n"]:
    return jax.vmap(unpack(kernel, slots, jnp.asarray(log_parameters)).k)(jnp.asarray(lags))


@in_double
@eqx.filter_jit
def _values_and_jacobian(
    log_parameters: NDArray, kernel: Kernel, slots: tuple[Slot, ...], lags: NDArray
) -> tuple[Float[AnyArray, " n"], Float[AnyArray, "p n"]]:
    def covariances(vector: Float[AnyArray, " p"]) -> Float[AnyArray, " n"]:
        return jax.vmap(unpack(kernel, slots, vector).k)(jnp.asarray(lags))

    return value_and_derivatives(covariances, jnp.asarray(log_parameters), axis=0)


@in_double
@eqx.filter_jit
def _weighted_gradient(
    log_parameters: NDArray, kernel: Kernel, slots: tuple[Slot, ...], lags: NDArray, bar: NDArray
) -> Float[AnyArray, " p"]:
    def weighted(vector: Float[AnyArray, " p"]) -> Float[AnyArray, ""]:
        values = jax.vmap(unpack(kernel, slots, vector).k)(jnp.asarray(lags))
        return jnp.asarray(bar) @ values

    # Forwards keeps nothing of kernels that are sums over many nodes; backwards scales better.
    transform = jax.jacfwd if len(log_parameters) <= _FEW_PARAMETERS else jax.grad
    return transform(weighted)(jnp.asarray(log_parameters))
