r"""Whether rows can be taken out: sums that are left must be sums that some rows have.

For rows w_n ≥ 0, x_n, y_n, any kernel F ≥ 0 with F(0) = 1, and any function f,

    |Σ w e^{iω·x}| ≤ Σ w,    |Σ w y e^{iω·x}|² ≤ Σ w · Σ w y²          at every frequency
    D(x) = Σ w_n F(x_n − x) ≥ 0,    (Σ w_n y_n F(x_n − x))² ≤ D(x) Σ w y²    at every place
    Σ w (y − f(x))² ≥ 0

Fejér's kernels are series on the lattice, so that D is known from the sums: it becomes negative
where a row is taken out that was not there. For f the posterior mean serves. What passes are rows
that may have been fitted, for all that sums can tell.
"""

from __future__ import annotations

import warnings
from functools import reduce
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from orthogp.errors import InputError, OutOfDomainWarning
from orthogp.fields.posterior import IterativePosterior
from orthogp.learning.sketches import Sketch
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import evaluate_series

# The rounding of sums of points, relative to the sums before.
_POINTS = 1e-9
# The rounding of sums of squares, relative to the sums before.
_SQUARES = 1e-8
# The largest distance of a row from its place when it was fitted, relative to the extent: that of
# single precision.
_EDGE = 1e-6
# The change of the density around a row that moved by that distance, relative to the row's density.
_MOVED = 1e-3
# The share of a row's density that must be missing for the row to be refused.
_MISSING = 0.05
# The largest number of rows at which the density and the residuals are looked at.
_MOST_PLACES = 200_000
# The probability of residuals under the model below which they are not those of fitted rows, if all
# rows that were fitted have smaller ones.
_UNLIKELY = 1e-9
# The relative error of the residuals of an iterative solution.
_SLACK = 0.05


def check_forgotten(model: Any, before: Sketch, after: Sketch, rows: Rows) -> None:
    """Raise `InputError` if no rows have the sums that are left `after` taking rows out.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        As it was fitted to the rows of `before`.
    rows : Rows
        Those taken out, in the columns that the kernel sees.
    """
    used = np.ones(len(rows.X), dtype=bool) if rows.weights is None else rows.weights > 0
    numbers = np.flatnonzero(used)
    X = rows.inputs[numbers]
    room = _EDGE * before.extent.width
    outside = np.any((before.extent.lower - room > X) | (before.extent.upper + room < X), axis=1)
    if outside.any():
        _refuse(f"row {numbers[np.argmax(outside)]} lies outside of all that were")
    places = numbers[:: max(1, -(-len(numbers) // _MOST_PLACES))]
    sums = before.statistics
    for lattice, old, new in zip(sums.components, sums.parts, after.statistics.parts, strict=True):
        _check_totals(old, new)
        columns = list(lattice.columns)
        _check_places(old, new, rows.X[places][:, columns], places, model.n_jobs)
    if before.family is None and not hasattr(model, "classes_"):
        _check_residuals(model, before, rows, places)


def _refuse(why: str) -> NoReturn:
    raise InputError(
        f"Only rows that were fitted can be forgotten, but {why}: give X, y and sample_weight as "
        "they were."
    )


def _check_totals(old: FourierStatistics, new: FourierStatistics) -> None:
    """Raise unless sums at all frequencies are within those of numbers and squares."""
    points, squares = _POINTS * old.count, _SQUARES * old.yy
    if np.any(new.yy < -squares):
        _refuse("these have larger squares of y than all that were")
    if np.abs(new.point_sums).max() > new.count + points:
        _refuse("these lie elsewhere, or have other weights")
    most = (new.count + points) * np.maximum(new.yy + squares, 0.0)
    largest = np.abs(new.target_sums).reshape(len(most), -1).max(axis=1)
    if np.any(largest**2 > most + _SQUARES * old.count * old.yy):
        _refuse("these have other values of y")


def _check_places(
    old: FourierStatistics,
    new: FourierStatistics,
    X: NDArray,
    numbers: NDArray[np.int64],
    num_threads: int | None,
) -> None:
    """Raise if the density of rows, or of their targets, is impossible where some were taken."""
    lattice = old.lattice
    kernel = _fejer(2 * lattice.extent)
    sums = [old.point_sums, new.point_sums]
    was, left = _densities(sums, kernel, lattice, X, num_threads)
    missing = left < -(_MISSING * (was - left) + _POINTS * old.count)
    if missing.any():
        number = numbers[np.argmax(missing)]
        _refuse(f"row {number} lies where no such row was, or has another weight")
    inner = tuple(slice(k, 3 * k + 1) for k in lattice.extent)
    kernel = _fejer(lattice.extent)
    sums = [old.point_sums[inner], new.point_sums[inner], *new.target_sums]
    was, left, *targets = _densities(sums, kernel, lattice, X, num_threads)
    taken = np.maximum(was - left, 0.0)
    density = np.maximum(left, 0.0) + _MOVED * taken + _POINTS * old.count
    for values, square, whole in zip(targets, new.yy, old.yy, strict=True):
        wrong = values**2 > density * (max(square, 0.0) + _SQUARES * whole)
        if wrong.any():
            _refuse(f"row {numbers[np.argmax(wrong)]} has another y, or lies where no such row was")


def _densities(
    sums: list[NDArray[np.complex128]],
    kernel: NDArray[np.float64],
    lattice: FrequencyLattice,
    X: NDArray,
    num_threads: int | None,
) -> NDArray[np.float64]:
    """Return Σ w_n c_n F(x_n − x) for each of some sums over w_n c_n, at the rows of X, (s, n)."""
    # The sums' conjugates are the coefficients of a function of x.
    series = np.asarray(np.conj(np.stack(sums)) * kernel, dtype=np.complex128)
    return evaluate_series(series, lattice, X, num_threads=num_threads).T


def _fejer(orders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the coefficients of Fejér's kernel, which is one at zero and nowhere negative."""
    axes = [1 - np.abs(np.arange(-k, k + 1)) / (k + 1) for k in orders]
    return reduce(np.multiply.outer, [axis / axis.sum() for axis in axes])


def _check_residuals(model: Any, before: Sketch, rows: Rows, numbers: NDArray[np.int64]) -> None:
    """Raise if rows have larger residuals than all fitted rows together."""
    posterior, scale = model.posterior_, model.target_scale_
    offset = model.target_offset_ - before.shift
    sums = before.statistics
    yy = (sums.yy - 2 * offset * sums.target_totals + offset**2 * sums.count) / scale**2
    fitted = _residual_squares(posterior, yy)
    weights = np.ones(len(numbers)) if rows.weights is None else rows.weights[numbers]
    X, y = rows.X[numbers], (rows.y[numbers] - model.target_offset_) / scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfDomainWarning)
        squares = (y - posterior.predict_mean(X)) ** 2
        if np.all(weights @ squares <= (1 + _SLACK) * fitted + _SQUARES * yy):
            return
        variance = posterior.predict(X).variance
    noise = posterior.noise_variance
    if model.weights == "repeats":
        scores, number = weights / (noise + variance) @ squares, weights.sum()
    else:
        scores, number = (1 / (noise / weights + variance)) @ squares, float(len(weights))
    excess = weights @ squares > (1 + _SLACK) * fitted + _SQUARES * yy
    if np.any(excess & (chi2.sf(scores, number) < _UNLIKELY)):
        _refuse("these are further from the model than all that were")


def _residual_squares(posterior: Any, yy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ w (y − f)² of the rows that a posterior is of, f its mean, for each target.

    With b the moments of the targets and A those of the features, x the mean of the whitened
    coefficients and B = I + A/s²: yy − 2bᵀx + xᵀAx = yy − s² (xᵀBx + xᵀx).
    """
    if isinstance(posterior, IterativePosterior):
        modes, system = posterior.modes, posterior.model.system
        size = system.grid.inner(modes.modes, modes.modes) + np.sum(modes.slopes**2, axis=0)
        return yy - system.noise_variance * (modes.explained + size)
    size = np.sum((posterior.chol.T @ posterior.mean) ** 2 + posterior.mean**2, axis=0)
    return yy - posterior.noise_variance * size
