"""Derivatives and integrals over boxes: what posteriors need to know of them beforehand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError
from orthogp.kernels import Kernel
from orthogp.precision import in_double
from orthogp.statistics import FrequencyLattice


def box_integrals(
    lattice: FrequencyLattice, indices: NDArray[np.int64], lower: NDArray, upper: NDArray
) -> NDArray[np.complex128]:
    """Return ∫ e^{iω_t·(x−x₀)} dx over each box, (n, s)."""
    result = np.ones((len(lower), len(indices)), dtype=np.complex128)
    for d in range(lattice.num_dims):
        omega = indices[:, d] * lattice.spacing[d]
        low, high = (edge[:, d, None] - lattice.centre[d] for edge in (lower, upper))
        width, middle = high - low, (high + low) / 2
        # ∫ e^{iωx} = width · sinc · e^{iω·middle}: no division by zero, no cancellation.
        result *= width * np.sinc(omega * width / (2 * np.pi)) * np.exp(1j * omega * middle)
    return result


@in_double
def derivative_variance(kernel: Kernel, num_dims: int) -> NDArray[np.float64]:
    """Return the prior variance of the derivative along each column, (d,)."""
    return np.asarray(kernel.derivative_variance(num_dims))


def derivative_prior(kernel: Kernel, num_dims: int, dim: int) -> float:
    """Return the prior variance of the derivative along a column; `InputError` if there is none."""
    if not 0 <= dim < num_dims:
        raise InputError(f"dim must be a column of X, 0 to {num_dims - 1}, got {dim}.")
    variance = float(derivative_variance(kernel, num_dims)[dim])
    if not np.isfinite(variance):
        raise InputError(
            "Functions of this kernel have no derivative: use a smoother one, "
            "such as Matern32, Matern52 or RBF."
        )
    return variance


def check_boxes(lower: ArrayLike, upper: ArrayLike) -> tuple[NDArray, NDArray]:
    """Return the corners of boxes as arrays, (n, d) each."""
    lower = np.atleast_2d(np.asarray(lower, dtype=np.float64))
    upper = np.atleast_2d(np.asarray(upper, dtype=np.float64))
    finite = np.isfinite(lower).all() and np.isfinite(upper).all()
    if lower.shape != upper.shape or not finite or np.any(upper < lower):
        raise InputError("Boxes need finite lower ≤ upper, of the same shape (n, d).")
    return lower, upper


def largest_box_integral(
    lattice: FrequencyLattice, lower: NDArray, upper: NDArray
) -> NDArray[np.float64]:
    """Return the most that |∫ e^{iωx} dx|² over each box can be beyond the lattice's extent, (n,).

    Along an axis where ω lies beyond, the integral is at most 2/ω; the mildest axis decides.
    """
    largest = np.zeros(len(lower))
    for d in range(lattice.num_dims):
        edge = lattice.spacing[d] * (lattice.extent[d] + 1)
        others = np.delete(upper - lower, d, axis=1).prod(axis=1)
        axis_bound = (np.minimum(2 / edge, upper[:, d] - lower[:, d]) * others) ** 2
        largest = np.maximum(largest, axis_bound)
    return largest
