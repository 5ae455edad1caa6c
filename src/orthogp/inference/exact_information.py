r"""The average of observed and expected information about hyperparameters, from all pairs of rows.

With α = C⁻¹y for the covariance C of the rows' targets,

    A_ij = ½ uᵢᵀ C⁻¹ u_j,      u_i = ∂C/∂log θ_i α

(Gilmour, Thompson and Cullis 1995): products with vectors only. With ∂K = −2ℓ⁻² G∘T for the
lengthscale of a column x, T_nm = (x_n − x_m)², all they need is G, the derivatives in squares:

    (G∘T) α = x²∘Gα − 2x∘G(x∘α) + G(x²∘α)

The observed information is A less its difference to the expected one, which is small wherever the
data have their say, and less what bends in C itself: ½ tr((ααᵀ − C⁻¹) ∂²C), which is not, if the
model is not that of the data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from orthogp.inference.pair_covariances import Covariances, PairKernel
from orthogp.inference.row_pairs import RowPairs
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
