"""The rows of figure 3: inputs with one of four distributions, targets with the paper's prior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orthogp.features.inducing import covariance_matrix
from orthogp.kernels import RBF

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]

KERNEL = RBF(variance=0.5, lengthscale=0.5)
NOISE_VARIANCE = 0.01**2


def bimodal(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Return draws of two Gaussians of variance 1 (weight 0.7) and 0.5 (weight 0.3).

    Their means are such that the mixture has mean 0 and standard deviation 3.
    """
    within = 0.7 * 1.0 + 0.3 * 0.5
    right = np.sqrt((9 - within) / (0.7 * (3 / 7) ** 2 + 0.3))
    is_left = rng.random(size) < 0.7
    noise = rng.standard_normal(size)
    return np.where(is_left, -3 / 7 * right + noise, right + np.sqrt(0.5) * noise)


#: The paper prints U[−√108, √108], whose standard deviation is 6; that of the others is 3.
INPUTS: dict[str, Draw] = {
    "Gaussian, sd 3": lambda rng, size: rng.normal(0.0, 3.0, size),
    "uniform, sd 3": lambda rng, size: rng.uniform(-(27**0.5), 27**0.5, size),
    "uniform, sd 6": lambda rng, size: rng.uniform(-(108**0.5), 108**0.5, size),
    "bimodal, sd 3": bimodal,
}


def draw_data(
    name: str, num_rows: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sorted inputs (n,) with one of the distributions, and targets (n,)."""
    rng = np.random.default_rng([seed, list(INPUTS).index(name)])
    x = np.sort(INPUTS[name](rng, num_rows))
    K = np.asarray(covariance_matrix(KERNEL, x[:, None], x[:, None]))
    f = np.linalg.cholesky(K + 1e-10 * np.eye(num_rows)) @ rng.standard_normal(num_rows)
    return x, f + np.sqrt(NOISE_VARIANCE) * rng.standard_normal(num_rows)
