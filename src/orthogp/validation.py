"""Checks where data and settings enter the estimators: one sentence each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import _check_sample_weight, validate_data

from orthogp.errors import FitWarning, InputError, KernelError, check_finite
from orthogp.features import resolve_features
from orthogp.inference import Domain
from orthogp.kernels import Kernel
from orthogp.kernels.sphere import is_on_sphere
from orthogp.kernels.transformed import has_own_period
from orthogp.rows import Rows
from orthogp.statistics.lattice import MAX_DIMS

_MEANS = (None, "auto", "constant", "linear")
_WEIGHTS = ("repeats", "precisions")
_SOLVERS = ("auto", "exact", "dense", "iterative", "neighbours")


def check_settings(estimator: Any) -> None:
    """Raise `InputError` unless an estimator's parameters (its kernel apart) make sense."""
    choices = {"mean": _MEANS, "weights": _WEIGHTS, "solver": _SOLVERS}
    for name, allowed in choices.items():
        value = getattr(estimator, name, allowed[0])
        if not (value is None or isinstance(value, str)) or value not in allowed:
            raise InputError(f"{name} must be one of {allowed}, got {value!r}.")
    resolve_features(estimator.features, "auto", 1)
    number = estimator.num_features
    if number != "auto" and not (isinstance(number, Integral) and int(number) >= 1):
        raise InputError(f'num_features must be "auto" or a whole number ≥ 1, got {number!r}.')
    if not (isinstance(estimator.max_features, Integral) and int(estimator.max_features) >= 1):
        raise InputError(f"max_features must be at least 1, got {estimator.max_features!r}.")
    for name in ("noise_variance", "wrap_tolerance", "max_seconds", "max_memory"):
        value = getattr(estimator, name, None)
        optional = name != "wrap_tolerance"
        if not (optional and value is None) and not (
            isinstance(value, Real) and 0 < float(value) < np.inf
        ):
            raise InputError(f"{name} must be a positive number, got {value!r}.")


def check_domain(domain: Any, num_dims: int) -> Domain | None:
    """Return the box that the user asked to cover."""
    if domain is None:
        return None
    try:
        lower, upper = (
            np.broadcast_to(np.asarray(edge, dtype=np.float64), (num_dims,)) for edge in domain
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"domain must be (lower, upper) with a number or {num_dims} numbers each, "
            f"got {domain!r}."
        ) from error
    if not (np.all(np.isfinite(lower)) and np.all(np.isfinite(upper)) and np.all(lower < upper)):
        raise InputError(f"domain needs finite lower < upper in every column, got {domain!r}.")
    return Domain(lower, upper)


def check_rows(
    estimator: Any, X: Any, y: Any, sample_weight: ArrayLike | None, *, reset: bool
) -> Rows:
    """Return validated rows; on `reset` the estimator learns its columns from them."""
    if y is None:
        # scikit-learn's wording, which its own checks look for.
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    dtype: Any = [np.float64, np.float32]
    _refuse_date_times(X)
    X = _numeric(
        lambda: validate_data(estimator, X, reset=reset, dtype=dtype, ensure_all_finite=False)
    )
    # Not together with X: scikit-learn would not say how many of the targets are bad.
    y = _numeric(
        lambda: check_array(
            y, dtype=dtype, ensure_2d=False, ensure_all_finite=False, input_name="y"
        )
    )
    check_consistent_length(X, y)
    _check_finite_columns(estimator, X)
    check_finite(y, "y")
    weights = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (negative := np.count_nonzero(weights < 0)) > 0:
            raise InputError(f"sample_weight must be ≥ 0, but {negative} values are negative.")
        if not weights.any():
            raise InputError(
                "All sample_weight are zero: at least two rows need a positive weight."
            )
    rows = Rows(X, y.reshape(len(y), -1), weights, one_target=y.ndim == 1)
    if reset and len(rows.used) < 2:
        raise InputError(
            f"At least two rows with positive weight are needed, got n_samples = {len(rows.used)}."
        )
    return rows


def check_columns(kernel: Kernel, num_columns: int) -> NDArray[np.int64]:
    """Return the columns that the kernel sees, at most three."""
    kernel.check(num_columns)
    refuse_sphere(kernel)
    if has_own_period(kernel):
        raise KernelError(
            "Cyclic and Categorical kernels need lattices of their own, which GPRegressor and "
            "GPClassifier have: use another kernel here."
        )
    columns = kernel.columns(num_columns)
    if len(columns) > MAX_DIMS:
        raise InputError(
            f"The kernel acts on {len(columns)} columns, but can act on at most {MAX_DIMS} "
            "jointly: choose those that matter by kernel.on(0, 2), or add up kernels on few "
            "columns each in a GPRegressor or a GPClassifier."
        )
    return np.array(columns)


def refuse_sphere(kernel: Kernel) -> None:
    """Raise `KernelError` if a kernel acts on the sphere, which no lattice covers."""
    if is_on_sphere(kernel):
        raise KernelError(
            "Kernels on the sphere have no lattice of frequencies, and need the rows themselves: "
            'use GPRegressor(kernel, solver="auto"), with features="auto".'
        )


def check_inputs(estimator: Any, X: Any) -> NDArray:
    """Return validated inputs for prediction."""
    _refuse_date_times(X)
    X = _numeric(
        lambda: validate_data(
            estimator, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite=False
        )
    )
    _check_finite_columns(estimator, X)
    return X


def warn_constant_columns(estimator: Any, X: NDArray, columns: NDArray[np.int64]) -> None:
    """Warn of the given input columns if they do not vary."""
    if constant := [d for d in columns if X[:, d].min() == X[:, d].max()]:
        names = getattr(estimator, "feature_names_in_", None)
        shown = ", ".join(str(d) if names is None else repr(str(names[d])) for d in constant)
        warnings.warn(
            f"Input column {shown} is constant and says nothing about y: drop it.",
            FitWarning,
            stacklevel=4,
        )


def _refuse_date_times(X: Any) -> None:
    """Raise `InputError` if X has columns of dates, which would turn into some number or other."""
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None:
        named = [("X", getattr(X, "dtype", ""))]
    else:
        named = [(repr(str(name)), dtype) for name, dtype in zip(X.columns, dtypes)]
    for name, dtype in named:
        if str(dtype).lower().startswith(("datetime", "timedelta", "date", "duration")):
            raise InputError(
                f"{name} holds date-times: turn them into numbers of a unit that suits them, such "
                "as days since the first one, or give the file to fit_files or `orthogp fit`."
            )


def _check_finite_columns(estimator: Any, X: NDArray) -> None:
    names = getattr(estimator, "feature_names_in_", None)
    check_finite(X, "X", None if names is None else [repr(str(name)) for name in names])


def _numeric(validate: Callable[[], Any]) -> Any:
    try:
        return validate()
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        raise InputError(
            f"X and y must be numbers, but hold text ({error}): encode or drop such columns."
        ) from error
