r"""Exact Gaussian process regression: the likelihood, its derivatives, and the posterior.

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

The average of observed and expected information about hyperparameters, C being the covariance of
the targets,

    A_ij = ½ uᵢᵀ C⁻¹ u_j,      u_i = ∂C/∂log θ_i α

(Gilmour, Thompson and Cullis 1995) takes products with vectors only. With ∂K = −2ℓ⁻² G∘T for the
lengthscale of a column x, T_nm = (x_n − x_m)², all they need is G, the derivatives in squares:

    (G∘T) α = x²∘Gα − 2x∘G(x∘α) + G(x²∘α)

The observed information is A less its difference to the expected one, which is small wherever the
data have their say, and less what bends in C itself: ½ tr((ααᵀ − C⁻¹) ∂²C), which is not, if the
model is not that of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from orthogp.errors import InputError, PrecisionError
from orthogp.exact.components import ExactComponents
from orthogp.exact.pairs import (
    PAIRS_PER_CALL,
    Covariances,
    MergedRows,
    PairKernel,
    RowPairs,
    merge_rows,
)
from orthogp.features.base import as_rows, correlation_lengths, prior_variance
from orthogp.features.series import MeanPrior
from orthogp.inference.bounds import factorise_in_place, unwhiten, whiten
from orthogp.inference.parameters import overflows, pack, unpack
from orthogp.inference.posterior import check_boxes
from orthogp.inference.predictive import Gaussian, PredictivePosterior, refuse_covariates
from orthogp.kernels import Kernel
from orthogp.learning.optimise import Evaluation
from orthogp.precision import AnyArray, in_double, one_thread
from orthogp.rows import Rows
from orthogp.statistics.nufft import chunks

Array = NDArray[np.float64]

potri, trtri = get_lapack_funcs(("potri", "trtri"), dtype=np.float64)
symm, syrk = get_blas_funcs(("symm", "syrk"), dtype=np.float64)

# The number of rows that predictions are made for at once, which bounds memory.
_ROWS_PER_BLOCK = 2**10
# The number of pairs that are summed over at once.
_PAIRS_PER_BLOCK = 2**20
# The fewest nodes of quadrature along a column.
_FEWEST_NODES = 16
# The number of nodes for each correlation length.
_NODES_PER_LENGTH = 6.0
# The most nodes in a box.
_MOST_NODES = 2000
# The largest number of bytes of derivatives that are kept while the matrix is factorised; more are
# made a second time.
_KEPT = 2**28


class Solution(NamedTuple):
    """The lower Cholesky factor of B, B⁻¹ W^½ y/σ = σ W^{−½} α (n, p), and log p(y)."""

    chol: Array
    scaled_alpha: Array
    log_likelihood: float


class ExactObjective:
    """Log p(y) as a function of log hyperparameters.

    The vector holds the logarithms of the kernel's learned parameters and, last, of the noise
    variance.

    Parameters
    ----------
    kernel : Kernel
    mean : MeanPrior
        The mean function to be integrated out.
    rows : Rows
        Several targets share kernel and noise, and their log marginal likelihoods add.
    repeats : bool
        Whether a weight w counts a row w times; otherwise it divides the row's noise variance.
    num_threads : int
        Threads that make covariances.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: MeanPrior,
        rows: Rows,
        *,
        repeats: bool = True,
        num_threads: int = 1,
    ) -> None:
        X, y, weights = as_rows(rows.X), rows.y, rows.weights
        number = len(X) if weights is None else len(weights)
        if not len(X) == len(y) == number:
            raise InputError(
                f"X, y and weights must have one row each, got {len(X)}, {len(y)} and {number}."
            )
        self.kernel = kernel
        self.merged = merge_rows(X, y, weights, repeats=repeats)
        #: The columns that the kernel acts on.
        self.inputs = mean.inputs(self.merged.X)
        num_inputs = self.inputs.shape[1]
        kernel.check(num_inputs)
        self.pair_kernel = PairKernel(kernel, num_inputs)
        self.slots = self.pair_kernel.slots
        self._pairs = RowPairs(self.inputs)
        self._mean_columns = mean.features(self.merged.X)
        w = self.merged.weights
        # √(w_i w_j) for all pairs, unless weights are one.
        self._weight_products = None if np.all(w == 1) else self._pairs.products(np.sqrt(w))
        self._num_threads = num_threads
        self._last: tuple[Array, Solution] | None = None
        # The prior variance that was asked for last, and at which parameters of the kernel.
        self._prior: tuple[Array, tuple[float, Array]] | None = None

    @property
    def total_weight(self) -> float:
        """The sum of the weights, which bounds the eigenvalues of B by Σw k(0)/σ²."""
        return float(self.merged.weights.sum())

    def value(self, vector: Array) -> float:
        """Return log p(y)."""
        return self.solve(vector).log_likelihood

    def solve(self, vector: Array, covariances: Array | None = None) -> Solution:
        """Return the factor of B, and what is solved with it, given `covariances` if known."""
        return self._solve(vector, self.covariances(vector) if covariances is None else covariances)

    def covariances(self, vector: Array) -> Array:
        """Return the kernel at all pairs of rows, and last its variance."""
        return self._covariances(vector, derivatives=False).values

    def with_targets(self, y: Array, weights: Array) -> ExactObjective:
        """Return the same of other targets (n, p) and precisions (n,) at the different inputs."""
        other = copy(self)
        other.merged = MergedRows(self.merged.X, y, weights, 0.0, 0.0, 0.0)
        other._weight_products = self._pairs.products(np.sqrt(weights))
        other._last = None
        return other

    def value_and_gradient(self, vector: Array) -> tuple[float, Array]:
        """Return log p(y) and its gradient."""
        found = self._evaluate(vector, informed=False)
        return found.value, found.gradient

    def evaluate(self, vector: Array) -> Evaluation:
        """Return log p(y), its gradient and the average information."""
        return self._evaluate(vector, informed=True)

    def solution_at(self, vector: Array) -> Solution | None:
        """Return what was solved last, if it was at this vector."""
        if self._last is None or not np.array_equal(self._last[0], vector):
            return None
        return self._last[1]

    def prior_variance(self, vector: Array) -> tuple[float, Array]:
        """Return k(0), and its derivatives in the kernel's parameters, (p − 1,)."""
        if self._prior is None or not np.array_equal(self._prior[0], vector[:-1]):
            self._prior = np.array(vector[:-1]), self._prior_variance(vector)
        return self._prior[1]

    def _prior_variance(self, vector: Array) -> tuple[float, Array]:
        num_dims = self.pair_kernel.num_dims
        k = self.pair_kernel.covariances(vector[:-1], RowPairs(np.zeros((1, num_dims))))
        by_lag = np.zeros((len(k.by_square), num_dims))
        gradient = self.pair_kernel.gradient(vector[:-1], k.by_parameter[:, 0], by_lag)
        return float(k.values[0]), gradient

    def kernel_at(self, vector: Array) -> Kernel:
        """Return the kernel of a parameter vector."""
        return unpack(self.kernel, self.slots, np.asarray(vector[:-1]))

    def _covariances(self, vector: Array, *, derivatives: bool) -> Covariances:
        return self.pair_kernel.covariances(
            vector[:-1], self._pairs, derivatives=derivatives, num_threads=self._num_threads
        )

    def _solve(self, vector: Array, values: Array) -> Solution:
        """Factorise B, given the kernel at all pairs."""
        merged, noise = self.merged, float(np.exp(vector[-1]))
        scale = np.sqrt(merged.weights / noise)
        gram = np.empty((len(merged.X),) * 2, order="F")
        scaled = values / noise
        if self._weight_products is not None:
            scaled *= self._weight_products
        self._pairs.fill(scaled, gram)
        np.einsum("ii->i", gram)[:] = values[-1] * scale**2
        if self._mean_columns.shape[1]:
            columns = np.asfortranarray(scale[:, None] * self._mean_columns)
            gram = syrk(1.0, columns, beta=1.0, c=gram, lower=1, overwrite_c=1)
        try:
            chol = factorise_in_place(gram)
        except PrecisionError as error:
            if not np.isfinite(values).all():
                raise overflows(self.kernel) from error
            raise PrecisionError(
                "The noise variance is too small, relative to the signal and the number of rows, "
                "for double precision: use a larger noise_variance."
            ) from error
        whitened = whiten(chol, scale[:, None] * merged.y)
        log_det = 2 * np.sum(np.log(np.einsum("ii->i", chol)))
        normaliser = len(merged.X) * np.log(2 * np.pi * noise) - np.sum(np.log(merged.weights))
        value = -0.5 * (merged.y.shape[1] * (normaliser + log_det) + np.sum(whitened**2))
        value += merged.beside(noise)[0]
        if not np.isfinite(value) and not np.isfinite(values).all():
            raise overflows(self.kernel)
        solution = Solution(chol, unwhiten(chol, whitened), float(value))
        self._last = np.array(vector), solution
        return solution

    def _evaluate(self, vector: Array, *, informed: bool) -> Evaluation:
        merged, noise = self.merged, float(np.exp(vector[-1]))
        p = merged.y.shape[1]
        solution = self.solution_at(vector)
        keep = 8 * self._pairs.count * len(vector) <= _KEPT
        k = self._covariances(vector, derivatives=keep or solution is not None)
        if solution is None:
            solution = self._solve(vector, k.values)
            if not keep:
                k = self._covariances(vector, derivatives=True)
        scaled_alpha = solution.scaled_alpha
        information = self._information(vector, k, solution) if informed else np.empty((0, 0))
        # In the lower triangle, which is all that is read of it: α̃α̃ᵀ − B⁻¹, α̃ = σ W^{−½} α.
        inverse = potri(solution.chol, lower=1, overwrite_c=0)[0]
        kept = np.trace(inverse)
        bar = syrk(1.0, scaled_alpha, beta=-p, c=inverse, lower=1, overwrite_c=1)
        weights = self._pairs.gather(bar)
        if self._weight_products is not None:
            weights *= self._weight_products
            weights[-1] = np.einsum("ii->i", bar) @ merged.weights
        weights *= 1 / (2 * noise)
        by_lag = np.zeros((len(k.by_square), self.pair_kernel.num_dims))
        if len(by_lag):
            by_square = k.by_square * weights
            for part in chunks(self._pairs.count, _PAIRS_PER_BLOCK):
                by_lag += by_square[:, part] @ self._pairs.squares_of_lags(part).T
        by_parameter = self.pair_kernel.gradient(vector[:-1], k.by_parameter @ weights, by_lag)
        by_noise = 0.5 * (np.sum(scaled_alpha**2) - p * kept) + merged.beside(noise)[1]
        gradient = np.append(by_parameter, by_noise)
        if not np.isfinite(gradient).all() and not (
            np.isfinite(k.by_parameter).all() and np.isfinite(k.by_square).all()
        ):
            raise overflows(self.kernel)

        def bend() -> Array:
            """Return ½ tr((ααᵀ − C⁻¹) ∂²C)."""
            total = np.zeros((len(vector), len(vector)))
            total[:-1, :-1] = self._second_derivatives(vector[:-1], weights, by_lag)
            total[-1, -1] = 0.5 * (np.sum(scaled_alpha**2) - p * kept)
            return total

        known = informed and self.pair_kernel.has_second
        return Evaluation(solution.log_likelihood, gradient, information, bend if known else None)

    def _information(self, vector: Array, k: Covariances, solution: Solution) -> Array:
        """Return the average information, (p, p)."""
        merged, noise = self.merged, float(np.exp(vector[-1]))
        scale = np.sqrt(merged.weights / noise)[:, None]
        alpha = np.asfortranarray(scale * solution.scaled_alpha)
        moved = self._derivative_products(vector[:-1], k, alpha)
        # In units of the noise, where log σ² moves by α̃ itself.
        columns = np.concatenate([scale * moved, solution.scaled_alpha[None]])
        (n, p), size = alpha.shape, len(vector)
        flat = np.moveaxis(columns, 0, 1).reshape(n, size * p)
        whitened = whiten(solution.chol, flat).reshape(n, size, p)
        information = 0.5 * np.einsum("nip,njp->ij", whitened, whitened, optimize=True)
        # Rows of equal inputs tell of the noise by how they differ, and by how little.
        information[-1, -1] += 0.5 * max(p * merged.surplus, merged.square / noise, 0.0)
        return information

    def _derivative_products(self, vector: Array, k: Covariances, alpha: Array) -> Array:
        """Return ∂K/∂log θ_i α for each learned parameter of the kernel, (p, n, targets)."""
        kernel, X = self.pair_kernel, self.inputs
        products = np.empty((len(vector), *alpha.shape))
        matrix = np.empty((len(X), len(X)), order="F")
        for place, values in zip(kernel.others, k.by_parameter, strict=True):
            self._pairs.fill(values, matrix)
            products[place] = symm(1.0, matrix, alpha, lower=1)
        W = kernel.inverse_squares(vector)
        centred = X - X.mean(axis=0)
        for radial in kernel.stretched:
            j, columns = radial.row, radial.columns
            self._pairs.fill(k.by_square[j], matrix)
            x = centred[:, columns].T[:, :, None]
            vectors = np.concatenate([alpha[None], x * alpha, x**2 * alpha])
            flat = np.moveaxis(vectors, 0, 1).reshape(len(X), -1, order="F")
            images = symm(1.0, matrix, np.asfortranarray(flat), lower=1)
            images = np.moveaxis(images.reshape(len(X), len(vectors), -1, order="F"), 1, 0)
            by_x, by_square = images[1 : 1 + len(x)], images[1 + len(x) :]
            moved = x**2 * images[0] - 2 * x * by_x + by_square
            moved *= -2 * W[j, columns][:, None, None]
            products[radial.span] = radial.gathered(moved)
        return products

    def _second_derivatives(self, vector: Array, weights: Array, by_lag: Array) -> Array:
        """Return Σ_p weights_p ∂²k_p/∂log θ_i ∂log θ_j, (p, p).

        With s_r = Σ_d W_rd T_d, W = ℓ⁻²: ∂s_r/∂log ℓ_rd = −2 W_rd T_d, and once more 4 W_rd T_d.
        `by_lag` (m, d) is Σ_p weights_p T_dp ∂k_p/∂s_r.
        """
        kernel = self.pair_kernel
        W = kernel.inverse_squares(vector)
        others, (m, d) = kernel.others, W.shape
        q = len(others)
        inner, mixed, outer = np.zeros((q, q)), np.zeros((q, m, d)), np.zeros((m, d, m, d))
        for part in chunks(self._pairs.count, PAIRS_PER_CALL):
            T = self._pairs.squares_of_lags(part)
            second = kernel.second(vector, T) * weights[part]
            inner += second[:q, :q].sum(axis=2)
            mixed += -2 * W * (second[:q, q:] @ T.T)
            for r, t in np.ndindex(m, m):
                # Squares times inverse squares first: products of squares alone may overflow.
                bent = (second[q + r, q + t] * W[r][:, None] * T) @ (W[t][:, None] * T).T
                outer[r, :, t] += 4 * bent
        for r in range(m):
            outer[r, :, r] += np.diag(4 * W[r] * by_lag[r])
        total = np.zeros((len(vector), len(vector)))
        total[np.ix_(others, others)] = inner
        for one in kernel.stretched:
            crossed = one.gathered(mixed[:, one.row][:, one.columns].T)
            total[others, one.span], total[one.span, others] = crossed.T, crossed
            for other in kernel.stretched:
                block = outer[one.row, :, other.row][np.ix_(one.columns, other.columns)]
                total[one.span, other.span] = other.gathered(one.gathered(block).T).T
        return total


class ExactPosterior(PredictivePosterior):
    """The posterior of f given all rows; see the module's docstring.

    Parameters
    ----------
    kernel, noise_variance
        The hyperparameters.
    mean, rows, repeats
        See `ExactObjective`.
    solution : Solution, optional
        What an objective of the same rows has found with these hyperparameters.
    additive : bool
        Whether the terms of the kernel, each on some of the columns, are of interest by themselves.

    Attributes
    ----------
    rows : Rows
        Inputs and covariates (n, d + q), targets (n, p) and weights (n,) of the rows of positive
        weight.
    merged : MergedRows
        Those of different inputs.
    chol, scale, alpha : (n, n), (n, 1), (n, p)
        The factor of B, W^½/σ and α.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        mean: MeanPrior,
        rows: Rows,
        *,
        repeats: bool = True,
        solution: Solution | None = None,
        additive: bool = False,
    ) -> None:
        self.kernel = kernel
        self.noise_variance = float(noise_variance)
        self.mean = mean
        self.additive = additive
        self.prior_variance = prior_variance(kernel)
        self.residual = 0.0
        objective = ExactObjective(kernel, mean, rows, repeats=repeats)
        w = np.ones(len(rows.X)) if rows.weights is None else np.asarray(rows.weights, dtype=float)
        targets = np.asarray(rows.y, dtype=np.float64).reshape(len(w), -1)
        own = Rows(as_rows(rows.X), targets, w, num_covariates=mean.num_covariates)
        self.rows = own.part(w > 0)
        self.merged, self._pair_kernel = objective.merged, objective.pair_kernel
        self._vector = pack(kernel, objective.slots)
        if solution is None:
            solution = objective.solve(np.append(self._vector, np.log(self.noise_variance)))
        self._log_likelihood, self.chol = solution.log_likelihood, solution.chol
        self.scale = np.sqrt(self.merged.weights / self.noise_variance)[:, None]
        self.alpha = self.scale * solution.scaled_alpha

    @property
    def num_rows(self) -> int:
        """The number of rows of positive weight."""
        return len(self.rows.X)

    @property
    def counted_rows(self) -> float:
        """The number N of Gaussian factors: of rows if weights are precisions, Σ w if repeats."""
        return len(self.merged.X) + self.merged.surplus

    @property
    def log_marginal_likelihood(self) -> float:
        """Log p(y), summed over the targets."""
        return self._log_likelihood

    @cached_property
    def components(self) -> ExactComponents:
        """The terms of the kernel, if they are of interest by themselves."""
        return ExactComponents(self)

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""

        def prior(points: Array) -> tuple[Array, Array]:
            variance = self.prior_variance + self.mean.prior_variance(points)
            return self._prior_covariance(points, self.merged.X), variance

        return self._predict(as_rows(X), prior)

    def predict_rows(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at rows that were fitted.

        For most of the rows it takes a third of what `predict` does: with the rows' targets y,

            mean = y − σ²α/w,      variance = (1 − (B⁻¹)_nn) σ²/w
        """
        X = as_rows(X)
        places = {row.tobytes(): n for n, row in enumerate(self.merged.X)}
        found = [places.get(row.tobytes()) for row in np.ascontiguousarray(X)]
        if None in found or 3 * len(found) < len(places):
            return self.predict(X)
        with one_thread():
            inverse = trtri(self.chol, lower=1)[0]
        kept = np.einsum("mn,mn->n", inverse, inverse)
        noise = self.noise_variance / self.merged.weights
        mean = self.merged.y - noise[:, None] * self.alpha
        # Less is lost in rounding.
        variance = noise * np.maximum(1 - kept, np.finfo(np.float64).eps)
        rows = np.array(found, dtype=np.int64)
        return Gaussian(mean[rows], variance[rows])

    def covariance(self, X: NDArray) -> Array:
        """Return the covariance of f between the rows of X, (n, n)."""
        X = as_rows(X)
        whitened = self._whiten(self._prior_covariance(X, self.merged.X))
        return self._prior_covariance(X, X) - whitened.T @ whitened

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        X = as_rows(X)
        columns = self.mean.slopes(X.shape[1])[dim]
        inputs = self.mean.inputs(self.merged.X)
        variance = slope_variance(self.kernel, inputs.shape[1], dim) + columns @ columns
        trend = columns @ self.mean.features(self.merged.X).T

        def prior(points: Array) -> tuple[Array, Array]:
            lags = self.mean.inputs(points)[:, None, :] - inputs
            cross = slopes(self.kernel, lags.reshape(-1, lags.shape[2]), dim)
            cross = cross.reshape(lags.shape[:2])
            return cross + trend, np.full(len(points), variance)

        return self._predict(X, prior)

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Return mean and variance of ∫ f over boxes [lower_n, upper_n], (n, d) each.

        By Gauss–Legendre quadrature, some nodes to each of the kernel's correlation lengths.
        """
        lower, upper = check_boxes(lower, upper)
        refuse_covariates(self.mean)
        span = np.ptp(self.merged.X, axis=0)
        lengths = correlation_lengths(self.kernel, np.where(span > 0, span, 1.0))
        means, variances = np.empty((len(lower), self.merged.y.shape[1])), np.empty(len(lower))
        for n, (low, high) in enumerate(zip(lower, upper, strict=True)):
            nodes, weights = _quadrature(low, high, lengths)
            means[n] = weights @ self.predict(nodes).mean
            variances[n] = max(float(weights @ self.covariance(nodes) @ weights), 0.0)
        return Gaussian(means, variances)

    def _predict(self, X: Array, prior: Callable[[Array], tuple[Array, Array]]) -> Gaussian:
        """Return means and variances of functionals of f.

        `prior` gives their covariances with f at the rows, and their prior variances.
        """
        means, variances = [np.empty((0, self.merged.y.shape[1]))], [np.empty(0)]
        for part in chunks(len(X), _ROWS_PER_BLOCK):
            cross, variance = prior(X[part])
            explained = np.sum(self._whiten(cross) ** 2, axis=0)
            means.append(cross @ self.alpha)
            # Less is lost in rounding.
            variances.append(np.maximum(variance - explained, np.finfo(np.float64).eps * variance))
        return Gaussian(np.concatenate(means), np.concatenate(variances))

    def _prior_covariance(self, A: Array, B: Array) -> Array:
        inputs = self.mean.inputs
        return self._pair_kernel.between(self._vector, inputs(A), inputs(B)) + (
            self.mean.features(A) @ self.mean.features(B).T
        )

    def _whiten(self, cross: Array) -> Array:
        """Return L⁻¹ W^½ k(X, ·)/σ, whose squares are the explained variances, (n, n*)."""
        return whiten(self.chol, self.scale * cross.T)


def slope_variance(kernel: Kernel, num_dims: int, dim: int) -> float:
    """Return the prior variance of ∂f/∂x_dim, −∂²k(0)/∂τ_dim²."""
    value = float(np.asarray(kernel.derivative_variance(num_dims))[dim])
    if not np.isfinite(value):
        raise InputError(
            f"Functions of the kernel {type(kernel).__name__} have no derivative along column "
            f"{dim}: use a smoother kernel, such as matern52."
        )
    return value


def slopes(kernel: Kernel, lags: Array, dim: int) -> Array:
    """Return ∂k(τ)/∂τ_dim, the covariance of ∂f/∂x_dim at x + τ with f at x, (n,)."""
    return np.asarray(_slopes(kernel, lags, dim))


@in_double
@eqx.filter_jit
def _slopes(kernel: Kernel, lags: Float[AnyArray, "n d"], dim: int) -> Float[AnyArray, " n"]:
    return jax.vmap(lambda lag: jax.grad(kernel.k)(lag)[dim])(jnp.asarray(lags))


def _quadrature(lower: Array, upper: Array, lengths: Array) -> tuple[Array, Array]:
    """Return nodes (n, d) and weights (n,) of a product rule over a box."""
    most = int(_MOST_NODES ** (1 / len(lower)))
    wanted = np.ceil(_NODES_PER_LENGTH * np.abs(upper - lower) / lengths)
    nodes, weights = np.empty((1, 0)), np.ones(1)
    for low, high, count in zip(lower, upper, wanted, strict=True):
        at, along = np.polynomial.legendre.leggauss(int(np.clip(count, _FEWEST_NODES, most)))
        column = (low + high) / 2 + (high - low) / 2 * at
        nodes = np.column_stack(
            [np.repeat(nodes, len(column), axis=0), np.tile(column, len(nodes))]
        )
        weights = np.repeat(weights, len(column)) * np.tile((high - low) / 2 * along, len(weights))
    return nodes, weights
