"""Families of features compared on the user's own data: bounds, errors, and what they cost.

Some rows are held out. On the others the hyperparameters are learned once, by the lattice with as
many features as its certificate takes, and then held fixed, so that the features alone differ; or
each family learns its own. For few rows the exact posterior is the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, OrthogpError, check_finite
from orthogp.features import EXACT, FEATURE_NAMES, Features, resolve_features
from orthogp.features.base import check_count
from orthogp.kernels import resolve_kernel
from orthogp.regressor import GPRegressor
from orthogp.results import MEASURES, Comparison, Result
from orthogp.validation import check_columns

__all__ = [
    "EXACT_ROWS",
    "FAMILIES",
    "MEASURES",
    "NUM_FEATURES",
    "Comparison",
    "Result",
    "compare_families",
]

#: Up to so many rows the exact posterior joins unasked.
EXACT_ROWS = 2000
#: The families compared unless others are named.
FAMILIES = tuple(name for name in FEATURE_NAMES if name not in ("auto", EXACT))
NUM_FEATURES = (21, 41, 81, 161)

Family = str | Callable[[int], Features]


class _Rows(NamedTuple):
    X: NDArray[np.float64]
    y: NDArray[np.float64]


class _Trial(NamedTuple):
    """One family with one number of features."""

    name: str
    family: Family
    number: int

    def regressor(self, **parameters: Any) -> GPRegressor:
        """Return the regressor to be fitted."""
        if not isinstance(self.family, str):
            return GPRegressor(features=self.family(self.number), **parameters)
        number = "auto" if self.family == EXACT else self.number
        return GPRegressor(features=self.family, num_features=number, **parameters)


def compare_families(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: Any = "matern32",
    families: Sequence[Family] = FAMILIES,
    num_features: Sequence[int] = NUM_FEATURES,
    mean: str | None = "constant",
    test_fraction: float = 0.2,
    max_rows: int | None = None,
    learn: bool = False,
    max_seconds: float | None = None,
    seed: int = 0,
    source: str = "data",
    write: Callable[[str], object] = lambda line: None,
) -> Comparison:
    """Return how families of features do on the rows of X (n, d) and y (n,).

    A family that cannot take the kernel or the data gives a result that says why.

    Parameters
    ----------
    kernel, mean
        As for `GPRegressor`.
    families : sequence of str or callable
        Names as for `GPRegressor`, or callables from a number of features to a `Features` object,
        such as its class. "exact" joins unasked for up to `EXACT_ROWS` rows.
    num_features : sequence of int
    test_fraction : float
        The share of the rows held out. Of these the fits know the box that they lie in, no more.
    max_rows : int, optional
        Take so many of the rows, at random.
    learn : bool
        Whether each family learns its own hyperparameters.
    max_seconds : float, optional
        Begin no fit after that long, and stop learning then.
    seed : int
        Of the choice of rows.
    source : str
        What to call the rows.
    write : callable
        Given a line of text when a fit ends.
    """
    began = time.monotonic()
    rows = _check_rows(X, y)
    train, test = _split(len(rows.y), max_rows, test_fraction, seed)
    trials = _list_trials(families, num_features, len(train))
    prior = resolve_kernel(kernel).kernel
    columns = check_columns(prior, rows.X.shape[1])
    fitted, held_out = (_Rows(rows.X[part], rows.y[part]) for part in (train, test))
    parameters: dict[str, Any] = {"kernel": kernel, "mean": mean}
    shared = None
    if not learn:
        shared = GPRegressor(**parameters, max_seconds=max_seconds).fit(*fitted)
        write(f"hyperparameters: {shared.kernel_}, noise variance {shared.noise_variance_:.4g}")
        parameters |= {
            "kernel": shared.kernel_,
            "noise_variance": shared.noise_variance_,
            "learn": False,
        }
    parameters["domain"] = _box(rows.X[np.concatenate([train, test])][:, columns])
    results = []
    for trial in trials:
        left = None if max_seconds is None else began + max_seconds - time.monotonic()
        if left is not None and left <= 0:
            result = Result(trial.name, trial.number, problem="The time had run out.")
        else:
            result = _run(trial, fitted, held_out, {**parameters, "max_seconds": left})
        results.append(result)
        write(str(result))
    name = " + ".join(primitive.label for primitive, _ in prior.primitives())
    return Comparison(
        results=tuple(results),
        train=train,
        test=test,
        kernel=None if shared is None else shared.kernel_,
        noise_variance=None if shared is None else shared.noise_variance_,
        title=f"{source}: {name}, {len(train):,} rows fitted, {len(test):,} held out",
    )


def _run(trial: _Trial, fitted: _Rows, held_out: _Rows, parameters: dict[str, Any]) -> Result:
    try:
        model = trial.regressor(**parameters).fit(*fitted)
        mean, deviation = model.predict(held_out.X, return_std=True, include_noise=True)
    except OrthogpError as error:
        return Result(trial.name, trial.number, problem=str(error))
    errors, variance = held_out.y - mean, deviation**2
    posterior, replaces_prior = model.posterior_, model.certificate_.replaces_prior
    share = float("nan") if replaces_prior else posterior.residual / posterior.prior_variance
    return Result(
        family=trial.name,
        asked=trial.number,
        num_features=model.num_features_,
        residual=share,
        elbo=model.elbo_,
        tightened=model.tightened_bound_,
        upper=model.upper_bound_,
        rmse=float(np.sqrt(np.mean(errors**2))),
        nlpd=float(np.mean(np.log(2 * np.pi * variance) + errors**2 / variance) / 2),
        seconds=model.timings_["total"],
        replaces_prior=replaces_prior,
    )


def _list_trials(
    families: Sequence[Family], num_features: Sequence[int], num_rows: int
) -> list[_Trial]:
    """Return what to fit, the exact posterior last."""
    numbers = sorted({check_count(number) for number in num_features})
    chosen: dict[str, Family] = {}
    for family in families:
        if isinstance(family, str):
            resolve_features(family, "auto", 1)
        chosen["lattice" if family == "auto" else _name(family)] = family
    exact = chosen.pop(EXACT, None) is not None or num_rows <= EXACT_ROWS
    trials = [_Trial(name, family, m) for name, family in chosen.items() for m in numbers]
    if exact:
        trials.append(_Trial(EXACT, EXACT, num_rows))
    if not trials:
        raise InputError("There is nothing to compare: name families, and numbers of features.")
    return trials


def _name(family: Family) -> str:
    return family if isinstance(family, str) else getattr(family, "__name__", repr(family))


def _check_rows(X: ArrayLike, y: ArrayLike) -> _Rows:
    try:
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"X and y must be numbers: {error}.") from error
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
        raise InputError(
            f"X must be (n, d) and y (n,) with the same n, got {X.shape} and {y.shape}."
        )
    check_finite(X, "X")
    check_finite(y, "y")
    return _Rows(X, y)


def _split(
    num_rows: int, max_rows: int | None, test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to fit and those to hold out, each in their order."""
    if not 0 < test_fraction < 1:
        raise InputError(f"test_fraction must lie between 0 and 1, got {test_fraction!r}.")
    kept = np.random.default_rng(seed).permutation(num_rows)[:max_rows]
    num_test = max(round(test_fraction * len(kept)), 1)
    if len(kept) - num_test < 2:
        raise InputError(
            f"At least two rows to fit and one to hold out are needed, got {len(kept)} in all."
        )
    return np.sort(kept[num_test:]), np.sort(kept[:num_test])


def _box(X: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of a box around the rows; a constant column may have any width."""
    lower, upper = X.min(axis=0), X.max(axis=0)
    return lower, np.where(upper > lower, upper, lower + 1.0)
