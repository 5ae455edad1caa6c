r"""Exact Gaussian process regression: the likelihood, its derivatives, and the posterior.

The average of observed and expected information about hyperparameters, from all pairs of rows.

With α = C⁻¹y for the covariance C of the rows' targets,

    A_ij = ½ uᵢᵀ C⁻¹ u_j,      u_i = ∂C/∂log θ_i α

(Gilmour, Thompson and Cullis 1995): products with vectors only. With ∂K = −2ℓ⁻² G∘T for the
lengthscale of a column x, T_nm = (x_n − x_m)², all they need is G, the derivatives in squares:

    (G∘T) α = x²∘Gα − 2x∘G(x∘α) + G(x²∘α)

The observed information is A less its difference to the expected one, which is small wherever the
data have their say, and less what bends in C itself: ½ tr((ααᵀ − C⁻¹) ∂²C), which is not, if the
model is not that of the data.

The covariance K holds kernel and mean prior, and row n has noise σ²/w_n. With W = diag(w),

    B = I + W^½ K W^½/σ²,      α = W^½ B⁻¹ W^½ y/σ²
    log p(y) = −½ (N log 2πσ² − Σ log w_n + log|B| + yᵀα)

for each target. B has eigenvalues ≥ 1, so its Cholesky factor needs no jitter. If weights count
repeated rows, N is Σ w_n and the term with log w_n is left out: weight 2 is the row twice. Rows of
weight zero are not there. Rows of equal inputs are merged (see `merge_rows`): B has one row for
each different input, and S, the weighted sum of squares about the means of equal inputs, adds
−S/2σ². The gradient is that of Gaussian likelihoods,

    ∂ log p/∂θ = ½ tr((ααᵀ − W^½ B⁻¹ W^½/σ²) ∂K/∂θ)
    ∂ log p/∂log σ² = ½ (σ² Σ α_n²/w_n + Σ_n (1 − (B⁻¹)_nn) + S/σ² − N)
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from orthogp.errors import InputError, PrecisionError
from orthogp.exact.merged_rows import merge_rows
from orthogp.exact.pair_kernels import Covariances, PairKernel
from orthogp.exact.row_pairs import RowPairs
from orthogp.features.base import as_rows, prior_variance
from orthogp.features.lattice import MeanPrior
from orthogp.features.placement import correlation_lengths
from orthogp.inference.bounds import factorise_in_place, unwhiten, whiten
from orthogp.inference.parameters import overflows, pack, unpack
from orthogp.inference.posterior import check_boxes
from orthogp.inference.predictive import Gaussian, PredictivePosterior
from orthogp.inference.threads import one_thread
from orthogp.kernels import Kernel
from orthogp.learning.ascent import Evaluation
from orthogp.precision import AnyArray, in_double
from orthogp.rows import Rows
from orthogp.statistics.nufft import chunks

# Pairs whose second derivatives are taken at once: as many as one compiled call takes.
_PAIRS = 2**14

(symm,) = get_blas_funcs(("symm",), dtype=np.float64)


def derivative_products(
    pair_kernel: PairKernel,
    vector: NDArray[np.float64],
    k: Covariances,
    pairs: RowPairs,
    X: NDArray[np.float64],
    alpha: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ∂K/∂log θ_i α for each learned parameter of the kernel, (p, n, targets)."""
    products = np.empty((len(vector), *alpha.shape))
    matrix = np.empty((len(X), len(X)), order="F")
    for place, values in zip(pair_kernel.others, k.by_parameter, strict=True):
        pairs.fill(values, matrix)
        products[place] = symm(1.0, matrix, alpha, lower=1)
    W = pair_kernel.inverse_squares(vector)
    centred = X - X.mean(axis=0)
    for stretched in pair_kernel.stretched:
        j, columns = stretched.row, stretched.columns
        pairs.fill(k.by_square[j], matrix)
        x = centred[:, columns].T[:, :, None]
        vectors = np.concatenate([alpha[None], x * alpha, x**2 * alpha])
        flat = np.moveaxis(vectors, 0, 1).reshape(len(X), -1, order="F")
        images = symm(1.0, matrix, np.asfortranarray(flat), lower=1)
        images = np.moveaxis(images.reshape(len(X), len(vectors), -1, order="F"), 1, 0)
        by_x, by_square = images[1 : 1 + len(x)], images[1 + len(x) :]
        own = x**2 * images[0] - 2 * x * by_x + by_square
        own *= -2 * W[j, columns][:, None, None]
        products[stretched.span] = stretched.gathered(own)
    return products


def weighted_second_derivatives(
    pair_kernel: PairKernel,
    vector: NDArray[np.float64],
    pairs: RowPairs,
    weights: NDArray[np.float64],
    by_lag: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return Σ_p weights_p ∂²k_p/∂log θ_i ∂log θ_j, (p, p).

    With s_r = Σ_d W_rd T_d, W = ℓ⁻²: ∂s_r/∂log ℓ_rd = −2 W_rd T_d, and once more 4 W_rd T_d.

    Parameters
    ----------
    by_lag : (m, d)
        Σ_p weights_p T_dp ∂k_p/∂s_r.
    """
    W = pair_kernel.inverse_squares(vector)
    others, (m, d) = pair_kernel.others, W.shape
    q = len(others)
    inner, mixed, outer = np.zeros((q, q)), np.zeros((q, m, d)), np.zeros((m, d, m, d))
    for part in chunks(pairs.count, _PAIRS):
        T = pairs.squares_of_lags(part)
        second = pair_kernel.second(vector, T) * weights[part]
        inner += second[:q, :q].sum(axis=2)
        mixed += -2 * W * (second[:q, q:] @ T.T)
        for r in range(m):
            for t in range(m):
                bent = (second[q + r, q + t] * T) @ T.T
                outer[r, :, t] += 4 * W[r][:, None] * W[t] * bent
    for r in range(m):
        outer[r, :, r] += np.diag(4 * W[r] * by_lag[r])
    total = np.zeros((len(vector), len(vector)))
    total[np.ix_(others, others)] = inner
    for own in pair_kernel.stretched:
        crossed = own.gathered(mixed[:, own.row][:, own.columns].T)
        total[others, own.span], total[own.span, others] = crossed.T, crossed
        for other in pair_kernel.stretched:
            block = outer[own.row, :, other.row][np.ix_(own.columns, other.columns)]
            total[own.span, other.span] = other.gathered(own.gathered(block).T).T
    return total


def slope_variance(kernel: Kernel, num_dims: int, dim: int) -> float:
    """Return the prior variance of ∂f/∂x_dim, −∂²k(0)/∂τ_dim²."""
    value = float(np.asarray(kernel.derivative_variance(num_dims))[dim])
    if not np.isfinite(value):
        raise InputError(
            f"Functions of the kernel {type(kernel).__name__} have no derivative along column "
            f"{dim}: use a smoother kernel, such as matern52."
        )
    return value


def slopes(kernel: Kernel, lags: NDArray[np.float64], dim: int) -> NDArray[np.float64]:
    """Return ∂k(τ)/∂τ_dim, the covariance of ∂f/∂x_dim at x + τ with f at x, (n,)."""
    return np.asarray(_slopes(kernel, lags, dim))


@in_double
@eqx.filter_jit
def _slopes(kernel: Kernel, lags: Float[AnyArray, "n d"], dim: int) -> Float[AnyArray, " n"]:
    return jax.vmap(lambda lag: jax.grad(kernel.k)(lag)[dim])(jnp.asarray(lags))


potri, trtri = get_lapack_funcs(("potri", "trtri"), dtype=np.float64)
(syrk,) = get_blas_funcs(("syrk",), dtype=np.float64)

# Rows that predictions are made for at once, which bounds memory.
_ROWS_PER_BLOCK = 2**10
_PAIRS_PER_BLOCK = 2**20
# Nodes of quadrature along a column: the fewest, for each correlation length; and the most in all.
_FEWEST_NODES, _NODES_PER_LENGTH, _MOST_NODES = 16, 6.0, 2000
# Bytes of derivatives that are kept while the matrix is factorised; more are made a second time.
_KEPT = 2**28


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
    solution : Solution, optional
        What an objective of the same rows has found with these hyperparameters.

    Attributes
    ----------
    rows : Rows
        Inputs (n, d), targets (n, p) and weights (n,) of the rows of positive weight.
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
        solution: Solution | None = None,
    ) -> None:
        self.kernel = kernel
        self.noise_variance = float(noise_variance)
        self.mean = mean
        self.prior_variance = prior_variance(kernel)
        self.residual = 0.0
        self.rows = _rows_of_positive_weight(X, y, weights)
        self._data = _gather(kernel, mean, self.rows, repeats=repeats)
        self._pair_kernel = PairKernel(kernel, self._data.X.shape[1])
        self._vector = pack(kernel, self._pair_kernel.slots)
        if solution is None:
            pairs = RowPairs(self._data.X)
            k = _covariances(self._pair_kernel, self._vector, pairs, derivatives=False)
            solution = _solve(kernel, k.values, pairs, self._data, self.noise_variance)
        self._solution = solution
        self._alpha = (
            np.sqrt(self._data.weights / self.noise_variance)[:, None] * self._solution.scaled_alpha
        )

    @property
    def num_rows(self) -> int:
        """The number of rows of positive weight."""
        return len(self.rows.X)

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
            means.append(cross @ self._alpha)
            # Less is lost in rounding.
            variances.append(np.maximum(prior - explained, np.finfo(np.float64).eps * prior))
        return Gaussian(np.concatenate(means), np.concatenate(variances))

    def predict_rows(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at rows that were fitted.

        For most of the rows it takes a third of what `predict` does: with the rows' targets y,

            mean = y − σ²α/w,      variance = (1 − (B⁻¹)_nn) σ²/w
        """
        X = as_rows(X)
        places = {row.tobytes(): n for n, row in enumerate(self._data.X)}
        found = [places.get(row.tobytes()) for row in np.ascontiguousarray(X)]
        if None in found or 3 * len(found) < len(places):
            return self.predict(X)
        with one_thread():
            inverse = trtri(self._solution.chol, lower=1)[0]
        kept = np.einsum("mn,mn->n", inverse, inverse)
        noise = self.noise_variance / self._data.weights
        mean = self._data.y - noise[:, None] * self._alpha
        # Less is lost in rounding.
        variance = noise * np.maximum(1 - kept, np.finfo(np.float64).eps)
        rows = np.array(found, dtype=np.int64)
        return Gaussian(mean[rows], variance[rows])

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance of f between the rows of X, (n, n)."""
        X = as_rows(X)
        whitened = self._whiten(self._prior_covariance(X, self._data.X))
        return self._prior_covariance(X, X) - whitened.T @ whitened

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        X = as_rows(X)
        own = slope_variance(self.kernel, X.shape[1], dim)
        columns = self.mean.slopes(X.shape[1])[dim]
        means, variances = [np.empty((0, self._data.y.shape[1]))], [np.empty(0)]
        for part in chunks(len(X), _ROWS_PER_BLOCK):
            lags = X[part][:, None, :] - self._data.X
            cross = slopes(self.kernel, lags.reshape(-1, X.shape[1]), dim).reshape(lags.shape[:2])
            cross = cross + columns @ self.mean.features(self._data.X).T
            explained = np.sum(self._whiten(cross) ** 2, axis=0)
            prior = own + columns @ columns
            means.append(cross @ self._alpha)
            variances.append(np.maximum(prior - explained, np.finfo(np.float64).eps * prior))
        return Gaussian(np.concatenate(means), np.concatenate(variances))

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each.

        By Gauss–Legendre quadrature, some nodes to each of the kernel's correlation lengths.
        """
        lower, upper = check_boxes(lower, upper)
        span = np.ptp(self._data.X, axis=0)
        lengths = correlation_lengths(self.kernel, np.where(span > 0, span, 1.0))
        means, variances = np.empty((len(lower), self._data.y.shape[1])), np.empty(len(lower))
        for n, (low, high) in enumerate(zip(lower, upper, strict=True)):
            nodes, weights = _quadrature(low, high, lengths)
            means[n] = weights @ self.predict(nodes).mean
            variances[n] = max(float(weights @ self.covariance(nodes) @ weights), 0.0)
        return Gaussian(means, variances)

    def _prior_covariance(self, A: NDArray, B: NDArray) -> NDArray[np.float64]:
        return self._pair_kernel.between(self._vector, A, B) + (
            self.mean.features(A) @ self.mean.features(B).T
        )

    def _whiten(self, cross: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return L⁻¹ W^½ k(X, ·)/σ, whose squares are the explained variances, (n, n*)."""
        scale = np.sqrt(self._data.weights / self.noise_variance)
        return whiten(self._solution.chol, scale[:, None] * cross.T)


class ExactObjective:
    """Log p(y) as a function of log hyperparameters.

    The vector holds the logarithms of the kernel's learned parameters and, last, of the noise
    variance. For the parameters see `ExactPosterior`; `num_threads` make covariances.
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
        num_threads: int = 1,
    ) -> None:
        self.kernel = kernel
        rows = _rows_of_positive_weight(X, y, weights)
        self._data = _gather(kernel, mean, rows, repeats=repeats)
        self._pairs = RowPairs(self._data.X)
        self._pair_kernel = PairKernel(kernel, self._data.X.shape[1])
        self.slots = self._pair_kernel.slots
        self._num_threads = num_threads
        self._last: tuple[NDArray[np.float64], Solution] | None = None

    @property
    def total_weight(self) -> float:
        """The sum of the weights, which bounds the eigenvalues of B by Σw k(0)/σ²."""
        return float(self._data.weights.sum())

    def value(self, vector: NDArray[np.float64]) -> float:
        """Return log p(y)."""
        values = self._covariances(vector, derivatives=False).values
        noise = float(np.exp(vector[-1]))
        return _solve(self.kernel, values, self._pairs, self._data, noise).log_likelihood

    def value_and_gradient(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return log p(y) and its gradient."""
        found = self._evaluate(vector, informed=False)
        return found.value, found.gradient

    def evaluate(self, vector: NDArray[np.float64]) -> Evaluation:
        """Return log p(y), its gradient and the average information."""
        return self._evaluate(vector, informed=True)

    def _evaluate(self, vector: NDArray[np.float64], *, informed: bool) -> Evaluation:
        data, noise = self._data, float(np.exp(vector[-1]))
        p = data.y.shape[1]
        keep = 8 * self._pairs.count * len(vector) <= _KEPT
        k = self._covariances(vector, derivatives=keep)
        solution = _solve(self.kernel, k.values, self._pairs, data, noise)
        scaled_alpha = solution.scaled_alpha
        if not keep:
            k = self._covariances(vector, derivatives=True)
        information = np.empty((0, 0))
        if informed:
            information = self._information(vector, k, solution)
        # In the lower triangle, which is all that is read of it: α̃α̃ᵀ − B⁻¹, α̃ = σ W^{−½} α.
        self._last = np.array(vector), solution
        inverse = potri(solution.chol, lower=1, overwrite_c=0)[0]
        kept = np.trace(inverse)
        bar = syrk(1.0, scaled_alpha, beta=-p, c=inverse, lower=1, overwrite_c=1)
        noise_part = np.sum(scaled_alpha**2) + p * (len(data.X) - kept - data.rows)
        noise_part += data.square / noise
        weights = self._pairs.gather(bar)
        if data.weight_products is not None:
            weights *= data.weight_products
            weights[-1] = np.einsum("ii->i", bar) @ data.weights
        weights *= 1 / (2 * noise)
        by_lag = self._by_lag(k, weights)
        by_parameter = self._pair_kernel.gradient(vector[:-1], k.by_parameter @ weights, by_lag)
        gradient = np.append(by_parameter, 0.5 * noise_part)
        if not np.isfinite(gradient).all() and not (
            np.isfinite(k.by_parameter).all() and np.isfinite(k.by_square).all()
        ):
            raise overflows(self.kernel)

        def bend() -> NDArray[np.float64]:
            """Return ½ tr((ααᵀ − C⁻¹) ∂²C)."""
            total = np.zeros((len(vector), len(vector)))
            total[:-1, :-1] = weighted_second_derivatives(
                self._pair_kernel, vector[:-1], self._pairs, weights, by_lag
            )
            total[-1, -1] = 0.5 * (np.sum(scaled_alpha**2) - p * kept)
            return total

        known = informed and self._pair_kernel.has_second
        return Evaluation(solution.log_likelihood, gradient, information, bend if known else None)

    def _information(
        self, vector: NDArray[np.float64], k: Covariances, solution: Solution
    ) -> NDArray[np.float64]:
        data = self._data
        scale = np.sqrt(data.weights / np.exp(vector[-1]))[:, None]
        alpha = np.asfortranarray(scale * solution.scaled_alpha)
        moved = derivative_products(self._pair_kernel, vector[:-1], k, self._pairs, data.X, alpha)
        # In units of the noise, where log σ² moves by α̃ itself.
        columns = np.concatenate([scale * moved, solution.scaled_alpha[None]])
        size, p = len(vector), alpha.shape[1]
        flat = np.moveaxis(columns, 0, 1).reshape(len(data.X), size * p)
        whitened = whiten(solution.chol, flat).reshape(len(data.X), size, p)
        information = 0.5 * np.einsum("nip,njp->ij", whitened, whitened, optimize=True)
        # Rows of equal inputs tell of the noise by how they differ, and by how little.
        surplus = p * max(data.rows - len(data.X), 0.0)
        information[-1, -1] += 0.5 * max(surplus, data.square / np.exp(vector[-1]))
        return information

    def solution_at(self, vector: NDArray[np.float64]) -> Solution | None:
        """Return what the last evaluation with a gradient has found, if it was at this vector."""
        if self._last is None or not np.array_equal(self._last[0], vector):
            return None
        return self._last[1]

    def prior_variance(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return k(0), and its derivatives in the kernel's parameters, (p − 1,)."""
        nowhere = np.zeros((self._data.X.shape[1], 1))
        k = self._pair_kernel.covariances(
            vector[:-1], 1, lambda part: nowhere, lambda part: nowhere
        )
        by_lag = np.zeros((len(k.by_square), len(nowhere)))
        gradient = self._pair_kernel.gradient(vector[:-1], k.by_parameter[:, 0], by_lag)
        return float(k.values[0]), gradient

    def kernel_at(self, vector: NDArray[np.float64]) -> Kernel:
        """Return the kernel of a parameter vector."""
        return unpack(self.kernel, self.slots, np.asarray(vector[:-1]))

    def _by_lag(self, k: Covariances, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Σ_p weights_p T_dp ∂k_p/∂s_j, (m, d)."""
        by_lag = np.zeros((len(k.by_square), self._pair_kernel.num_dims))
        if len(k.by_square):
            by_square = k.by_square * weights
            for part in chunks(self._pairs.count, _PAIRS_PER_BLOCK):
                by_lag += by_square[:, part] @ self._pairs.squares_of_lags(part).T
        return by_lag

    def _covariances(self, vector: NDArray[np.float64], *, derivatives: bool) -> Covariances:
        return _covariances(
            self._pair_kernel,
            vector[:-1],
            self._pairs,
            derivatives=derivatives,
            num_threads=self._num_threads,
        )


def _quadrature(
    lower: NDArray[np.float64], upper: NDArray[np.float64], lengths: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes (n, d) and weights (n,) of a product rule over a box."""
    most = int(_MOST_NODES ** (1 / len(lower)))
    wanted = np.ceil(_NODES_PER_LENGTH * np.abs(upper - lower) / lengths)
    nodes, weights = np.empty((1, 0)), np.ones(1)
    for low, high, count in zip(lower, upper, wanted, strict=True):
        at, own = np.polynomial.legendre.leggauss(int(np.clip(count, _FEWEST_NODES, most)))
        column = (low + high) / 2 + (high - low) / 2 * at
        nodes = np.column_stack(
            [np.repeat(nodes, len(column), axis=0), np.tile(column, len(nodes))]
        )
        weights = np.repeat(weights, len(column)) * np.tile((high - low) / 2 * own, len(weights))
    return nodes, weights


class _Data(NamedTuple):
    """Rows of different inputs, with the mean prior's columns."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64]
    #: √(w_i w_j) for all pairs, unless weights are one.
    weight_products: NDArray[np.float64] | None
    mean_columns: NDArray[np.float64]
    #: N and Σ log w_n as in `Moments`, by what weights mean.
    rows: float
    log_weights: float
    #: S, over all targets.
    square: float


class Solution(NamedTuple):
    """The lower Cholesky factor of B, B⁻¹ W^½ y/σ = σ W^{−½} α (n, p), and log p(y)."""

    chol: NDArray[np.float64]
    scaled_alpha: NDArray[np.float64]
    log_likelihood: float


def _rows_of_positive_weight(X: NDArray, y: NDArray, weights: NDArray | None) -> Rows:
    X = as_rows(X)
    targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(X) == len(targets) == len(w):
        raise InputError(
            f"X, y and weights must have one row each, got {len(X)}, {len(targets)} and {len(w)}."
        )
    there = w > 0
    return Rows(X[there], targets[there], w[there])


def _gather(kernel: Kernel, mean: MeanPrior, rows: Rows, *, repeats: bool) -> _Data:
    X, y, weights, _ = rows
    assert weights is not None
    kernel.check(X.shape[1])
    merged = merge_rows(X, y, weights, repeats=repeats)
    w = merged.weights
    return _Data(
        X=merged.X,
        y=merged.y,
        weights=w,
        weight_products=None if np.all(w == 1) else RowPairs(merged.X).products(np.sqrt(w)),
        mean_columns=mean.features(merged.X),
        rows=float(weights.sum()) if repeats else float(len(weights)),
        log_weights=0.0 if repeats else float(np.log(weights).sum()),
        square=merged.square,
    )


def _covariances(
    pair_kernel: PairKernel,
    vector: NDArray[np.float64],
    pairs: RowPairs,
    *,
    derivatives: bool,
    num_threads: int = 1,
) -> Covariances:
    return pair_kernel.covariances(
        vector,
        pairs.count,
        pairs.squares_of_lags,
        pairs.lags,
        derivatives=derivatives,
        num_threads=num_threads,
    )


def _solve(
    kernel: Kernel,
    values: NDArray[np.float64],
    pairs: RowPairs,
    data: _Data,
    noise_variance: float,
) -> Solution:
    """Factorise B, given the kernel at all pairs."""
    scale = np.sqrt(data.weights / noise_variance)
    gram = np.empty((len(data.X),) * 2, order="F")
    scaled = values / noise_variance
    if data.weight_products is not None:
        scaled *= data.weight_products
    pairs.fill(scaled, gram)
    np.einsum("ii->i", gram)[:] = values[-1] * scale**2
    if data.mean_columns.shape[1]:
        columns = np.asfortranarray(scale[:, None] * data.mean_columns)
        gram = syrk(1.0, columns, beta=1.0, c=gram, lower=1, overwrite_c=1)
    try:
        chol = factorise_in_place(gram)
    except PrecisionError as error:
        if not np.isfinite(values).all():
            raise overflows(kernel) from error
        raise PrecisionError(
            "The noise variance is too small, relative to the signal and the number of rows, for "
            "double precision: use a larger noise_variance."
        ) from error
    whitened = whiten(chol, scale[:, None] * data.y)
    log_det = 2 * np.sum(np.log(np.einsum("ii->i", chol)))
    normaliser = data.rows * np.log(2 * np.pi * noise_variance) - data.log_weights
    misfit = np.sum(whitened**2) + data.square / noise_variance
    value = -0.5 * (data.y.shape[1] * (normaliser + log_det) + misfit)
    if not np.isfinite(value) and not np.isfinite(values).all():
        raise overflows(kernel)
    return Solution(chol, unwhiten(chol, whitened), float(value))
