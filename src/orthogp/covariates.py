r"""Covariates: columns with linear effects beside the process, for universal kriging.

    y = f(x) + Σ_j β_j z_j + noise

The covariates z are columns of the mean function, as the constant is and as the inputs are with a
linear mean: inside they are standardised, their coefficients have broad priors and are integrated
out, and the kernel is learned given them. Engines see them behind the inputs, in the same array.

An effect is what moving one covariate by one unit does to f, wherever it is moved: with the
posterior at points x₀ that differ in their covariates only,

    β_j = (f(x₀, z₀ + s_j e_j) − f(x₀, z₀)) / s_j

whatever the engine, and their covariance is that of such differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from orthogp.errors import InputError, check_finite
from orthogp.learning.sketches import standardisation
from orthogp.rows import Rows
from orthogp.validation import numeric

if TYPE_CHECKING:
    from orthogp.predicting import GPPredictor
    from orthogp.regressor import GPRegressor

# The values of `features` that take covariates.
_TAKING = ("auto", "lattice", "exact")
# The smallest eigenvalue of the columns' correlations at which they are not collinear.
_COLLINEAR = 1e-10
# The share of a collinear combination from which on a column is named.
_NAMED = 0.1


class Effects(NamedTuple):
    """The effects of covariates, in units of y for each unit of a covariate.

    Attributes
    ----------
    names : tuple of str
        Of the q covariates.
    values : (q,), or (q, p) for several targets
    covariance : (q, q), or (q, q, p)
        The posterior covariance of the effects.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @property
    def standard_errors(self) -> NDArray[np.float64]:
        """The posterior standard deviations of the effects, of the shape of `values`."""
        return np.sqrt(np.einsum("ii...->i...", self.covariance))

    @property
    def evidence_gain(self) -> float:
        """½ βᵀ Cov(β)⁻¹ β, what the effects add to the largest log p(y) of one target, in nats."""
        return float(self.values @ np.linalg.solve(self.covariance, self.values)) / 2

    def lines(self) -> list[str]:
        """Return one line of text for each effect: its name, value and standard error."""
        width = max(map(len, self.names))
        return [
            f"{name:<{width}}  "
            + ", ".join(
                f"{value:.4g} ± {error:.2g}"
                for value, error in zip(np.ravel(value), np.ravel(error), strict=True)
            )
            for name, value, error in zip(
                self.names, self.values, self.standard_errors, strict=True
            )
        ]


class NamedColumns:
    """An array (n, q) with the names of its columns, as far as covariates need a data frame."""

    def __init__(self, values: NDArray, columns: tuple[str, ...]) -> None:
        self.values, self.columns = values, columns

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        """Return the array."""
        return np.array(self.values, dtype=dtype, copy=copy)

    def __getitem__(self, names: list[str]) -> NamedColumns:
        """Return some of the columns, by their names."""
        at = [self.columns.index(name) for name in names]
        return NamedColumns(self.values[:, at], tuple(names))


def with_covariates(model: GPRegressor, rows: Rows, covariates: Any, *, reset: bool) -> Rows:
    """Return the rows with covariates behind their inputs.

    On `reset` the model learns their names, and they are checked to vary, each in its way.
    """
    if covariates is None and reset:
        model.covariate_names_ = ()
        return rows
    takes = isinstance(model.features, str) and model.features in _TAKING
    if covariates is not None and not takes:
        raise InputError(
            'Families of features take no covariates: use features="auto", with any solver.'
        )
    Z = check_covariates(model, covariates, len(rows.X), reset=reset)
    if not Z.shape[1]:
        return rows
    wide = np.concatenate([rows.X, Z], axis=1, dtype=np.float64)
    rows = rows._replace(X=wide, num_covariates=Z.shape[1])
    if reset:
        _check_independent(model, rows)
    return rows


def check_covariates(
    model: GPPredictor, covariates: Any, num_rows: int, *, reset: bool = False
) -> NDArray[np.float64]:
    """Return validated covariates, (n, q), in the order of the model's names."""
    known = () if reset else model.covariate_names_
    if covariates is None:
        if known:
            raise InputError(
                f"The model was fitted with {_listed(known)} as covariates, and needs their values "
                "here too: give covariates=…"
            )
        return np.empty((num_rows, 0))
    if not reset and not known:
        raise InputError("The model was fitted without covariates: leave them out, or fit again.")
    names = _names(covariates)
    if known and names and set(known) <= set(names):
        covariates = covariates[list(known)] if hasattr(covariates, "columns") else covariates
    elif known and names and known != default_names(len(known)):
        lacking = [name for name in known if name not in names]
        raise InputError(
            f"The covariates lack {_listed(lacking)}, which the model was fitted with."
        )
    Z = numeric(check_array, covariates, ensure_2d=False, input_name="covariates")
    Z = Z.reshape(len(Z), -1) if Z.ndim < 2 else Z
    if len(Z) != num_rows:
        raise InputError(
            f"covariates must have one row for each of the {num_rows} rows of X, got {len(Z)}."
        )
    if known and Z.shape[1] != len(known):
        raise InputError(
            f"covariates must have {len(known)} columns as in fit, {_listed(known)}, got "
            f"{Z.shape[1]}."
        )
    if reset:
        model.covariate_names_ = names or default_names(Z.shape[1])
    check_finite(Z, "covariates", [repr(name) for name in model.covariate_names_])
    return Z.astype(np.float64)


def average_covariates(model: GPPredictor) -> NDArray[np.float64]:
    """Return what figures hold covariates at, their means over the rows, (q,)."""
    q = len(model.covariate_names_)
    return model._sketch.mean.origin[len(model._sketch.mean.origin) - q :]


def effects_of(model: GPPredictor) -> Effects:
    """Return the effects of a model's covariates, by differences of its posterior."""
    names = model.covariate_names_
    q, prior = len(names), model._sketch.mean
    spread = prior.width[len(prior.width) - q :]
    # At the middle of the box, the average covariates first, then one after the other moved.
    places = np.repeat(model._sketch.extent.centre[None], q + 1, axis=0)
    moved = average_covariates(model) + np.concatenate([np.zeros((1, q)), np.diag(spread)])
    points = np.concatenate([places, moved], axis=1)
    difference = np.concatenate([np.full((q, 1), -1.0), np.eye(q)], axis=1) / spread[:, None]
    values = difference @ model.posterior_.predict_mean(points) * model.target_scale_
    covariance = difference @ model.posterior_.covariance(points) @ difference.T
    covariance = (covariance + covariance.T)[:, :, None] / 2 * model.target_scale_**2
    return Effects(names, model._shaped(values), model._shaped(covariance))


def _names(covariates: Any) -> tuple[str, ...]:
    """Return the names of a data frame's or a series' columns, none for arrays."""
    columns = getattr(covariates, "columns", None)
    if columns is not None:
        return tuple(map(str, columns))
    name = getattr(covariates, "name", None)
    return (str(name),) if isinstance(name, str) and name else ()


def default_names(number: int) -> tuple[str, ...]:
    """Return the names of covariates that came without any."""
    return tuple(f"z{i}" for i in range(number))


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


def _check_independent(model: GPRegressor, rows: Rows) -> None:
    """Raise `InputError` if a covariate is constant, or a combination of others."""
    columns, names = rows.covariates, list(map(repr, model.covariate_names_))
    weights, centred = rows.weights, model.mean is not None
    if weights is not None:
        columns, weights = columns[weights > 0], weights[weights > 0]
    still = np.ptp(columns, axis=0) == 0
    if centred and still.any():
        raise InputError(
            f"The covariate {names[int(np.argmax(still))]} is the same in all rows, and the mean "
            "function has a constant already: leave it out."
        )
    if model.mean == "linear":
        inputs = rows.used
        varying = np.flatnonzero(np.ptp(inputs, axis=0) > 0)
        columns = np.concatenate([columns, inputs[:, varying]], axis=1)
        names += [f"input column {i}" for i in varying]
    centre, spread = standardisation(columns, weights, centred=centred)
    scaled = (columns - centre) / spread
    correlation = scaled.T @ (scaled if weights is None else weights[:, None] * scaled)
    eigenvalues, vectors = np.linalg.eigh(correlation / rows.total_weight)
    if eigenvalues[0] < _COLLINEAR:
        share = np.abs(vectors[:, 0])
        concerned = [names[i] for i in np.flatnonzero(share > _NAMED * share.max())]
        raise InputError(
            f"The covariates {', '.join(concerned)} are collinear, so that their effects cannot be "
            "told apart: leave one of them out."
        )
