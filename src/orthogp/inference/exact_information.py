r"""The average of observed and expected information about hyperparameters, from all pairs of rows.

With α = C⁻¹y for the covariance C of the rows' targets,

    A_ij = ½ uᵢᵀ C⁻¹ u_j,      u_i = ∂C/∂log θ_i α

(Gilmour, Thompson and Cullis 1995): products with vectors only. With ∂K = −2ℓ⁻² G∘T for the
lengthscale of a column x, T_nm = (x_n − x_m)², all they need is G, the derivatives in squares:

    (G∘T) α = x²∘Gα − 2x∘G(x∘α) + G(x²∘α)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from orthogp.inference.pair_covariances import Covariances, PairKernel
from orthogp.inference.row_pairs import RowPairs

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
