"""The slow and obvious versions of what orthogp computes fast. Imports nothing from orthogp.

Covariances take lags of shape (..., d) and return (...). The Fourier convention is

    k(τ) = ∫ S(ω) e^{iω·τ} dω
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.special import gamma, ive, kv

Array = NDArray[np.float64]
Covariance = Callable[[Array], Array]

# ---------------------------------------------------------------------- covariances


def scaled_distance(lag: ArrayLike, lengthscale: ArrayLike) -> Array:
    return np.sqrt(np.sum((np.asarray(lag) / np.asarray(lengthscale)) ** 2, axis=-1))


def rbf(lag: ArrayLike, variance: float, lengthscale: ArrayLike) -> Array:
    return variance * np.exp(-0.5 * scaled_distance(lag, lengthscale) ** 2)


def matern(lag: ArrayLike, nu: float, variance: float, lengthscale: ArrayLike) -> Array:
    """The textbook form with a Bessel function."""
    z = math.sqrt(2 * nu) * scaled_distance(lag, lengthscale)
    safe = np.where(z > 0, z, 1.0)
    return variance * np.where(z > 0, 2 ** (1 - nu) / gamma(nu) * safe**nu * kv(nu, safe), 1.0)


def matern12(lag: ArrayLike, variance: float, lengthscale: ArrayLike) -> Array:
    return variance * np.exp(-scaled_distance(lag, lengthscale))


def rotation(angle: float) -> Array:
    """The matrix that turns the direction (cos a, sin a) into (1, 0)."""
    return np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


def matern32(lag: ArrayLike, variance: float, lengthscale: ArrayLike) -> Array:
    z = math.sqrt(3) * scaled_distance(lag, lengthscale)
    return variance * (1 + z) * np.exp(-z)


def matern52(lag: ArrayLike, variance: float, lengthscale: ArrayLike) -> Array:
    z = math.sqrt(5) * scaled_distance(lag, lengthscale)
    return variance * (1 + z + z**2 / 3) * np.exp(-z)


def rational_quadratic(
    lag: ArrayLike, variance: float, lengthscale: ArrayLike, alpha: float
) -> Array:
    return variance * (1 + scaled_distance(lag, lengthscale) ** 2 / (2 * alpha)) ** -alpha


def spectral_mixture(
    lag: ArrayLike, weights: ArrayLike, means: ArrayLike, lengthscale: ArrayLike
) -> Array:
    lag = np.asarray(lag)[..., None, :]
    bells = np.exp(-0.5 * (lag / np.asarray(lengthscale)) ** 2) * np.cos(np.asarray(means) * lag)
    return np.prod(bells, axis=-1) @ np.asarray(weights)


def sech(x: ArrayLike) -> Array:
    decay = np.exp(-np.abs(x))
    return 2 * decay / (1 + decay**2)


def quasi_periodic(
    lag: ArrayLike, variance: float, lengthscale: ArrayLike, period: float, shape: float
) -> Array:
    waves = np.sum(np.sin(np.pi * np.asarray(lag) / period) ** 2, axis=-1)
    return rbf(lag, variance, lengthscale) * np.exp(-2 * waves / shape**2)


def gram_matrix(k: Covariance, A: Array, B: Array) -> Array:
    """k(a − b) for all pairs of rows."""
    return k(A[:, None, :] - B[None, :, :])


def wrapped(k: Covariance, lag: Array, period: Array, num_images: int) -> Array:
    """Σ_j k(τ + jP) − Σ_{j≠0} k(jP), over |j_d| ≤ num_images."""
    shifts = range(-num_images, num_images + 1)
    total = np.zeros(lag.shape[:-1])
    for j in itertools.product(shifts, repeat=lag.shape[-1]):
        shift = np.array(j) * period
        total = total + k(lag + shift)
        if any(j):
            total = total - k(np.asarray(shift))
    return total


def wrapped_and_scaled(k: Covariance, lag: Array, period: Array, num_images: int) -> Array:
    """k(0) Σ_j k(τ + jP) / Σ_j k(jP), over |j_d| ≤ num_images."""
    shifts = itertools.product(range(-num_images, num_images + 1), repeat=lag.shape[-1])
    images = [np.array(j) * period for j in shifts]
    zero = np.zeros(lag.shape[-1])
    at_zero = sum(k(zero + shift) for shift in images)
    return k(zero) * sum(k(lag + shift) for shift in images) / at_zero


# ---------------------------------------------------------------------- spectra


def spectral_density(
    k: Callable[[float], float], omega: float, reach: float | None = None
) -> float:
    """S(ω) = (1/π) ∫_0^∞ k(τ) cos(ωτ) dτ in one dimension, adaptively.

    `reach` cuts the integral off where k has vanished; without it k must decay monotonically.
    """
    if reach is not None:
        value = quad(k, 0, reach, weight="cos", wvar=omega, epsabs=1e-12, epsrel=1e-11, limit=1000)[
            0
        ]
    elif omega == 0:
        value = quad(k, 0, np.inf, epsabs=1e-13, epsrel=1e-11, limit=500)[0]
    else:
        value = quad(k, 0, np.inf, weight="cos", wvar=omega, epsabs=1e-12, limlst=200)[0]
    return value / math.pi


def double_exponential(scale: float, num_nodes: int = 2001) -> tuple[Array, Array]:
    """Nodes and weights of ∫_0^∞ for functions that decay like a power or faster."""
    u = np.linspace(-4.0, 4.0, num_nodes)
    nodes = scale * np.exp(np.pi / 2 * np.sinh(u))
    return nodes, nodes * np.pi / 2 * np.cosh(u) * (u[1] - u[0])


def periodic_coefficients(shape: float, orders: NDArray[np.int64]) -> Array:
    """The Fourier coefficients e^{−1/s²} I_j(1/s²) of exp(−2 sin²(x/2)/s²)."""
    return ive(orders, 1 / shape**2)


# ---------------------------------------------------------------------- sums


def lattice_indices(extent: ArrayLike) -> NDArray[np.int64]:
    """All indices |t_d| ≤ extent_d, in lexicographic order."""
    axes = [range(-int(k), int(k) + 1) for k in np.atleast_1d(np.asarray(extent))]
    return np.array(list(itertools.product(*axes)))


def trigonometric_sums(
    X: Array, column: Array, spacing: Array, extent: ArrayLike, centre: Array
) -> NDArray[np.complex128]:
    """Σ_n c_n e^{iω_t·(x_n−x₀)}, one frequency after the other."""
    sums = [
        sum(c * np.exp(1j * np.dot(spacing * t, x - centre)) for x, c in zip(X, column))
        for t in lattice_indices(extent)
    ]
    shape = [2 * int(k) + 1 for k in np.atleast_1d(np.asarray(extent))]
    return np.array(sums, dtype=np.complex128).reshape(shape)


def trigonometric_series(
    coefficients: NDArray[np.complex128], spacing: Array, centre: Array, X: Array
) -> NDArray[np.complex128]:
    """Σ_t a_t e^{iω_t·(x_n−x₀)} at the rows of X, one row after the other."""
    indices = lattice_indices([size // 2 for size in coefficients.shape])
    terms = [np.exp(1j * (indices * spacing) @ (x - centre)) for x in X]
    return np.array(terms) @ coefficients.ravel()


def cosines_and_sines(X: Array, omegas: Array, centre: Array) -> Array:
    """cos(ω·(x−x₀)) for every ω, then sin(ω·(x−x₀)) for every ω but the first, which is zero."""
    phases = (X - centre) @ omegas.T
    return np.concatenate([np.cos(phases), np.sin(phases[:, 1:])], axis=1)


# ---------------------------------------------------------------------- exact Gaussian processes


def log_marginal_likelihood(K: Array, y: Array, noise: ArrayLike) -> float:
    """log N(y | 0, K + diag(noise)), summed over the columns of y."""
    y = np.asarray(y, dtype=float).reshape(len(K), -1)
    chol = np.linalg.cholesky(K + np.diag(np.broadcast_to(noise, len(K))))
    whitened = np.linalg.solve(chol, y)
    log_det = 2 * np.sum(np.log(np.diag(chol)))
    per_column = log_det + len(K) * math.log(2 * math.pi)
    return float(-0.5 * (np.sum(whitened**2) + y.shape[1] * per_column))


def posterior(
    K: Array, K_new: Array, K_new_new: Array, y: Array, noise: ArrayLike
) -> tuple[Array, Array]:
    """Mean (n*, p) and covariance (n*, n*) at new points, K_new being (n*, n)."""
    y = np.asarray(y, dtype=float).reshape(len(K), -1)
    noisy = K + np.diag(np.broadcast_to(noise, len(K)))
    solved = np.linalg.solve(noisy, np.concatenate([y, K_new.T], axis=1))
    p = y.shape[1]
    return K_new @ solved[:, :p], K_new_new - K_new @ solved[:, p:]


def central_difference(f: Callable[[Array], Array], x: Array, step: float) -> Array:
    """∂f/∂x_i along the last axis."""
    columns = []
    for i in range(len(x)):
        move = np.zeros_like(x)
        move[i] = step
        columns.append((np.asarray(f(x + move)) - np.asarray(f(x - move))) / (2 * step))
    return np.stack(columns, axis=-1)


def fourth_order_difference(f: Callable[[Array], Array], x: Array, step: float) -> Array:
    """∂f/∂x_i along the last axis, with error of order step⁴."""
    near = central_difference(f, x, step)
    far = central_difference(f, x, 2 * step)
    return (4 * near - far) / 3
