"""What estimators are given, checked: settings, rows, and the model that a kernel stands for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import _check_sample_weight, validate_data

from orthogp.errors import FeatureError, FitWarning, InputError, KernelError, check_finite
from orthogp.features import EXACT, Features, resolve_features, takes_any_columns
from orthogp.files.columns import dates_as_numbers, domain_as_numbers
from orthogp.inference import Domain
from orthogp.inference.bounds import TOLERANCE
from orthogp.inference.likelihoods import LIKELIHOODS, resolve_likelihood
from orthogp.inference.parameters import Beliefs
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.separable import GAUSSIAN, Likelihood, VaryingNoise
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.terms import (
    ADDITIVE_PREFIX,
    KernelChoice,
    is_additive,
    join_terms,
    resolve_additive,
    split_terms,
)
from orthogp.kernels.transformed import (
    Embedding,
    categorical_columns,
    has_own_period,
    is_on_sphere,
    latitudes,
)
from orthogp.rows import Rows
from orthogp.statistics.lattice import MAX_DIMS

# The settings that are one of a few words.
_CHOICES = {
    "mean": (None, "auto", "constant", "linear"),
    "weights": ("repeats", "precisions"),
    "solver": ("auto", "exact", "dense", "iterative", "neighbours"),
    "hyperparameters": ("optimise", "integrate"),
    "inference": ("variational", "polya-gamma", "minibatch"),
}


# The largest span of a column; one over it is the smallest.
_LARGEST_SPAN = 1e90
# The largest input, which leaves room for the squares of differences between inputs.
_LARGEST_INPUT = 1e120
# The largest target, which leaves room for the squares of a million of them.
_LARGEST_TARGET = 1e151
# The fewest different rows of which copies are told from rows that are equal by chance.
_LEAST_COPIED = 10
# The fewest rows, and the most, by which the noise levels of several targets are compared.
_LEAST_COMPARED = 30
_MOST_COMPARED = 1000
# The largest ratio of two targets' residuals at which one noise level serves both.
_UNEQUAL = 1.5
# The largest number of rows that weights may stand for; no noise variance resolves as many.
_MOST_REPEATS = 1e30


def check_settings(estimator: Any) -> None:
    """Raise `InputError` unless an estimator's parameters (its kernel apart) make sense."""
    for name, allowed in _CHOICES.items():
        # Regressors choose no inference, classifiers optimise their hyperparameters.
        value = getattr(estimator, name, allowed[0])
        if not (value is None or isinstance(value, str)) or value not in allowed:
            raise InputError(f"{name} must be one of {allowed}, got {value!r}.")
    likelihood = getattr(estimator, "likelihood", GAUSSIAN)
    if not isinstance(likelihood, str):
        raise InputError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {likelihood!r}.")
    varies = isinstance(resolve_likelihood(likelihood), VaryingNoise)
    if varies and estimator.noise_variance is not None:
        raise InputError(
            f"The {likelihood} likelihood learns the noise variance everywhere: leave out "
            'noise_variance, or use likelihood="gaussian".'
        )
    resolve_features(estimator.features, "auto", 1)
    number = estimator.num_features
    if number != "auto" and not (isinstance(number, Integral) and int(number) >= 1):
        raise InputError(f'num_features must be "auto" or a whole number ≥ 1, got {number!r}.')
    if not (isinstance(estimator.max_features, Integral) and int(estimator.max_features) >= 1):
        raise InputError(f"max_features must be at least 1, got {estimator.max_features!r}.")
    for name in ("noise_variance", "wrap_tolerance", "tolerance", "max_seconds", "max_memory"):
        # A classifier has no certificate.
        value = getattr(estimator, name, TOLERANCE)
        if name == "noise_variance" and isinstance(value, Noise):
            continue
        if value is None and name not in ("wrap_tolerance", "tolerance"):
            continue
        if not (isinstance(value, Real) and 0 < float(value) < np.inf):
            raise InputError(f"{name} must be a positive number, got {value!r}.")


class Sizes(TypedDict, total=False):
    """How much each row stands for; see `GPRegressor.fit`."""

    exposure: ArrayLike | None
    offset: ArrayLike | None
    trials: ArrayLike | None


def with_sizes(likelihood: str, y: Any, **given: Unpack[Sizes]) -> Any:
    """Return targets, and beside them what each row stands for if it is given, (n,) or (n, 2)."""
    unknown = sorted(given.keys() - Sizes.__annotations__.keys())
    if unknown:
        raise TypeError(f"There is no argument {unknown[0]!r}: give exposure, offset or trials.")
    named = [name for name, value in given.items() if value is not None]
    if not named:
        return y
    for name in named:
        check_takes_size(likelihood, name)
    targets = np.asarray(y, dtype=np.float64)
    if targets.ndim != 1:
        raise InputError(
            f"With {named[0]}, y must be a vector, got shape {targets.shape}: its second column is "
            f"the {named[0]} already."
        )
    sizes = np.ones(len(targets))
    for name in named:
        values = np.asarray(given[name], dtype=np.float64)
        if values.ndim and values.shape != targets.shape:
            raise InputError(
                f"{name} must have one value per row ({len(targets)}), got shape {values.shape}."
            )
        check_finite(np.atleast_1d(values), name)
        sizes = sizes * (np.exp(values) if name == "offset" else values)
    if not np.all(sizes > 0):
        raise InputError(
            f"{named[0].capitalize()} must be positive, but {np.count_nonzero(~(sizes > 0))} of "
            f"{len(sizes)} values are not: leave those rows out."
        )
    return np.column_stack([targets, sizes])


def check_likelihood(estimator: Any) -> Likelihood | None:
    """Return the likelihood that rows were summed for; raise unless it still is the estimator's."""
    summed = estimator._sketch.likelihood
    if estimator.likelihood != summed:
        raise InputError(
            f"The rows were summed for the {summed} likelihood, not for "
            f"{estimator.likelihood!r}: fit again."
        )
    return resolve_likelihood(summed)


def check_takes_size(likelihood: str, name: str) -> None:
    """Raise `InputError` unless rows of a likelihood can stand for so much."""
    family = resolve_likelihood(likelihood)
    takes = None if family is None else family.size_is
    if takes is None or (name != "size" and takes != {"offset": "exposure"}.get(name, name)):
        instead = "nothing of the kind" if takes is None else takes
        raise InputError(
            f"The {likelihood} likelihood takes {instead}, not {name}: leave it out, or choose "
            "another likelihood."
        )


def check_size_column(likelihood: str, size: Any) -> dict[str, str]:
    """Return the column of exposures, offsets or trials by which of these it holds, if any."""
    given = {"size": size} if isinstance(size, str) else dict(size or {})
    if len(given) > 1:
        raise InputError(f"One column says how much a row stands for, got {', '.join(given)}.")
    for name in given:
        check_takes_size(likelihood, name)
    family = resolve_likelihood(likelihood)
    return {str(family and family.size_is) if k == "size" else k: str(v) for k, v in given.items()}


def check_no_sizes(likelihood: str, **given: ArrayLike | None) -> None:
    """Raise `InputError` if exposure or trials are given to a likelihood that has none."""
    for name, value in given.items():
        if value is not None:
            check_takes_size(likelihood, name)


def check_probabilities(quantiles: Any) -> NDArray[np.float64]:
    """Return probabilities strictly between zero and one, (q,)."""
    values = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if values.ndim != 1 or not np.all((values > 0) & (values < 1)):
        raise InputError(f"quantiles must lie between 0 and 1, got {quantiles!r}.")
    return values


def check_domain(estimator: Any, columns: NDArray[np.int64]) -> Domain | None:
    """Return the box that the user asked to cover, in the columns that the kernel sees."""
    domain, num_dims = estimator.domain, len(columns)
    if domain is None:
        return None
    domain = domain_as_numbers(estimator, domain, columns)
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
    X = check_inputs(estimator, X, reset=reset)
    # Not together with X: scikit-learn would not say how many of the targets are bad.
    y = numeric(check_array, y, ensure_2d=False, input_name="y")
    check_consistent_length(X, y)
    check_finite(y, "y")
    if len(y) and (largest := float(np.abs(y).max())) > _LARGEST_TARGET:
        raise InputError(
            f"y reaches {largest:.1e}, and the squares of such numbers are beyond double "
            "precision: rescale it."
        )
    weights = None
    if sample_weight is not None:
        weights = _check_weights(estimator, sample_weight, X)
    rows = Rows(X, y.reshape(len(y), -1), weights, one_target=y.ndim == 1)
    if reset and len(rows.used) < 2:
        raise InputError(
            f"At least two rows with positive weight are needed, got n_samples = {len(rows.used)}."
        )
    return rows


def _check_weights(estimator: Any, sample_weight: ArrayLike, X: NDArray) -> NDArray[np.float64]:
    """Return one weight for each row, not all of them zero."""
    given = np.asarray(sample_weight)
    if given.size and given.dtype.kind in "fiub" and not given.any():
        raise InputError("All sample_weight are zero: at least two rows need a positive weight.")
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (negative := np.count_nonzero(weights < 0)) > 0:
        raise InputError(f"sample_weight must be ≥ 0, but {negative} values are negative.")
    if getattr(estimator, "weights", "repeats") == "repeats" and not weights.sum() <= _MOST_REPEATS:
        raise InputError(
            f"sample_weight stands for {weights.sum():.1e} rows in all, which no noise variance "
            'resolves: give how often each row counts, or use weights="precisions" for inverse '
            "variances."
        )
    return weights


def check_inputs(estimator: Any, X: Any, *, reset: bool = False) -> NDArray:
    """Return validated inputs; on `reset` the estimator learns its columns from them."""
    if not reset:
        _check_names(estimator, X)
    X = dates_as_numbers(estimator, X, reset=reset)
    X = numeric(validate_data, estimator, X, reset=reset)
    names = getattr(estimator, "feature_names_in_", None)
    check_finite(X, "X", None if names is None else [repr(str(name)) for name in names])
    if len(X):
        _check_size(X, names, spans=reset)
    return X


def _check_names(estimator: Any, X: Any) -> None:
    """Raise `InputError` if a frame's columns are not those of the files that were fitted."""
    inputs = (getattr(estimator, "about_", None) or {}).get("inputs")
    columns = list(getattr(X, "columns", ()))
    if inputs is None or hasattr(estimator, "feature_names_in_") or columns == list(inputs):
        return
    if columns and all(isinstance(column, str) for column in columns):
        raise InputError(
            f"X has the columns {', '.join(columns)}, but the model was fitted to "
            f"{', '.join(inputs)}: give these, in this order."
        )


def _check_size(X: NDArray, names: Any, *, spans: bool) -> None:
    """Raise `InputError` if squares of differences between inputs overflow, or vanish.

    Parameters
    ----------
    spans : bool
        Whether the rows are all that a model is learned from, which must vary by as much.
    """
    lower, upper = X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)
    largest = np.maximum(np.abs(lower), np.abs(upper))
    with np.errstate(over="ignore"):
        span = upper - lower
    bad = largest > _LARGEST_INPUT
    if spans:
        bad |= (span > 0) & ~((span > 1 / _LARGEST_SPAN) & (span < _LARGEST_SPAN))
    if bad.any():
        first = int(np.argmax(bad))
        which = first if names is None else repr(str(names[first]))
        what = f"spans {span[first]:.1e}" if spans else f"reaches {largest[first]:.1e}"
        raise InputError(
            f"Column {which} of X {what}, and the squares of such numbers are beyond double "
            "precision: rescale it."
        )


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


def warn_shared_noise(rows: Rows, posterior: PredictivePosterior) -> None:
    """Warn if residuals of standardised targets are much larger in some targets than in others.

    Targets share kernel and noise variance, so that residuals are smoothed alike: their mean
    squares have the ratios of the noise variances.
    """
    some = np.random.default_rng(0).permutation(len(rows.X))[:_MOST_COMPARED]
    varying = np.flatnonzero(np.ptp(rows.y, axis=0))
    if len(some) < _LEAST_COMPARED or len(varying) < 2:
        return
    part = rows.part(some)
    squares = (part.y - posterior.predict(part.X)[0]) ** 2
    sds = np.sqrt(np.average(squares, axis=0, weights=part.weights))
    low, high = varying[np.argmin(sds[varying])], varying[np.argmax(sds[varying])]
    if sds[high] > _UNEQUAL * sds[low]:
        times = f"{sds[high] / sds[low]:.2g} times" if sds[low] > 0 else "many times"
        warnings.warn(
            "All targets share one kernel and one noise level, but on that scale the residuals of "
            f"target {high} are {times} as large as those of target {low}: "
            f"standard deviations are too narrow for target {high} and too wide for target {low}. "
            "Fit each target by itself.",
            FitWarning,
            stacklevel=3,
        )


def warn_repeated_rows(rows: Rows) -> None:
    """Warn if every row is there several times, with the same targets: copies, not measurements.

    Where inputs and targets have few values, equal rows are no copies, but then numbers of equal
    rows differ, and have no common divisor.
    """
    if rows.weights is not None or len(rows.X) < 2 * _LEAST_COPIED:
        return
    some = np.linspace(0, len(rows.X) - 1, _LEAST_COPIED).astype(int)
    for row in some:
        same = np.flatnonzero(rows.X[:, 0] == rows.X[row, 0])
        equal = np.all(rows.X[same] == rows.X[row], axis=1)
        if np.count_nonzero(equal & np.all(rows.y[same] == rows.y[row], axis=1)) < 2:
            return
    numbers = rows.merged().weights
    assert numbers is not None
    times = int(np.gcd.reduce(numbers.astype(np.int64)))
    if times > 1 and len(numbers) >= _LEAST_COPIED:
        warnings.warn(
            f"Every row occurs {times} times with the same target: copies count as measurements of "
            "their own, and make bands too narrow; drop them.",
            FitWarning,
            stacklevel=4,
        )


def numeric(validate: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return an array in single or double precision, by a function of scikit-learn's."""
    try:
        return validate(*args, dtype=[np.float64, np.float32], ensure_all_finite=False, **options)
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        name = options.get("input_name", "X")
        remedy = "encode such columns, as pandas.get_dummies does, or drop them"
        if name == "y":
            remedy = "learn labels by GPClassifier"
        raise InputError(
            f"{name} must hold numbers, but holds text ({error}): {remedy}."
        ) from error


# ---------------------------------------------------------------------- kernels


class Model(NamedTuple):
    """The model that an estimator's `kernel` argument stands for, given the number of columns.

    Attributes
    ----------
    choice : KernelChoice
        The kernel, its columns counted among those of X.
    columns : (d,)
        The columns that it sees.
    additive : bool
        Whether each of its terms has a lattice of its own.
    """

    choice: KernelChoice
    columns: NDArray[np.int64]
    additive: bool

    @property
    def seen(self) -> Kernel:
        """The kernel with its columns counted among those that it sees."""
        renamed = {int(column): i for i, column in enumerate(self.columns)}
        return self.choice.kernel.with_columns(renamed)

    @property
    def on_seen(self) -> Model:
        """The same model of rows that hold no other columns than those that the kernel sees."""
        choice = self.choice._replace(kernel=self.seen)
        return self._replace(choice=choice, columns=np.arange(len(self.columns)))

    @property
    def coming_round(self) -> list[int]:
        """The columns that have no slope, among those that it sees: codes, and hours."""
        terms = split_terms(self.seen, len(self.columns))
        return [c for term in terms for c, p in zip(term.columns, term.periods, strict=True) if p]

    @property
    def beyond_lattices(self) -> bool:
        """Whether no lattice holds the columns that act jointly: features then need the rows."""
        many = len(self.columns) > MAX_DIMS and not self.additive
        return many or not self.choice.kernel.has_lattice

    @property
    def embedding(self) -> Embedding | None:
        """Where points of spheres lie in space, if the kernel acts on any."""
        return Embedding.of(self.seen, len(self.columns))

    @property
    def inner(self) -> KernelChoice:
        """The kernel as engines see it: on the columns of `see`, without bounds and priors."""
        embedding = self.embedding
        kernel = self.seen if embedding is None else embedding.kernel(self.seen)
        return self.choice._replace(kernel=kernel.without_knowledge())

    def noise(self, given: float | Noise | None) -> Noise:
        """Return the noise that an estimator's argument says, else the kernel."""
        return self.choice.noise if given is None else Noise.of(given)

    def beliefs(self, given: float | Noise | None, factor: float = 1.0) -> Beliefs:
        """Return bounds and priors, variances multiplied by a factor."""
        # Its primitives come in the same order as those of `inner`.
        return Beliefs.of(self.choice.kernel, self.noise(given), factor)

    def see(self, rows: Rows) -> Rows:
        """Return the rows as engines see them: of the kernel's columns, spheres in space."""
        seen = rows.on(self.columns)
        check_values(self.seen, seen.inputs, self.columns)
        embedding = self.embedding
        return seen if embedding is None else seen.with_inputs(embedding.rows(seen.inputs))

    def as_given(self, kernel: Kernel) -> Kernel:
        """Return an engine's kernel as the user wrote it, on the columns of X."""
        if self.embedding is None:
            return kernel.with_columns(dict(enumerate(self.columns.tolist())))
        return self.choice.kernel.with_primitives(own for own, _ in kernel.primitives())


def choose_model(kernel: Any, features: Any, num_columns: int, *, joint: bool = False) -> Model:
    """Return the model that a `kernel` argument stands for.

    Parameters
    ----------
    joint : bool
        Whether kernels may act on any number of columns at once: a plain name is then one kernel on
        all of them. It goes without saying for features that take any number of columns.
    """
    if joint:
        choice = resolve_additive(kernel, num_columns, num_columns)
        choice.kernel.check(num_columns)
        columns = np.array(choice.kernel.columns(num_columns))
        return Model(choice, columns, additive=False)
    if features not in ("auto", "lattice", EXACT):
        whole = choose_model(kernel, features, num_columns, joint=True)
        if whole.beyond_lattices and whole.embedding is None and takes_any_columns(features):
            return whole
        if not is_additive(whole.choice.kernel, num_columns, MAX_DIMS):
            _check_few_columns(features, len(whole.columns))
    choice = resolve_additive(kernel, num_columns, MAX_DIMS)
    refuse_without_lattice(choice.kernel)
    named = isinstance(kernel, str) and kernel.startswith(ADDITIVE_PREFIX)
    choice.kernel.check(num_columns)
    if not (named or is_additive(choice.kernel, num_columns, MAX_DIMS)):
        return Model(choice, check_columns(choice.kernel, num_columns), additive=False)
    if features not in ("auto", "lattice", EXACT):
        raise FeatureError(
            "Models with a lattice for each term of their kernel have lattice features: use "
            'features="auto".'
        )
    terms = split_terms(choice.kernel, num_columns)
    for term in terms:
        if len(term.columns) > MAX_DIMS:
            raise InputError(
                f"A term of the kernel acts on {len(term.columns)} columns {term.columns}, but can "
                f"act on at most {MAX_DIMS} jointly: split it into a sum, for example of "
                "kernel.on(0) and kernel.on(1, 2)."
            )
    joined = join_terms(terms)
    columns = np.array(joined.columns(num_columns))
    return Model(choice._replace(kernel=joined), columns, additive=True)


def _check_few_columns(features: str | Features, num_columns: int) -> None:
    """Raise `FeatureError` if there are more columns than a family that needs a lattice takes."""
    if num_columns > MAX_DIMS:
        family = resolve_features(features, "auto", 1)
        raise FeatureError(
            f"{type(family).__name__} features act on at most {MAX_DIMS} columns jointly, got "
            f'{num_columns}: use "inducing-points" or "random-fourier", which take any number, or '
            'features="auto", or a kernel on fewer columns such as kernel.on(0, 2).'
        )


def check_columns(kernel: Kernel, num_columns: int) -> NDArray[np.int64]:
    """Return the columns that the kernel sees, at most three."""
    kernel.check(num_columns)
    refuse_without_lattice(kernel)
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


def refuse_priors(kernel: Kernel, estimator: str, *, bounds: bool = False) -> None:
    """Raise `KernelError` if a kernel has priors, or `bounds` too, where none are taken."""
    for own, _ in kernel.primitives():
        told = (*own.priors, *(own.bounds if bounds else ()))
        if told:
            what = "priors or bounds" if bounds else "priors"
            raise KernelError(
                f"{estimator} takes no {what}, but the kernel has some for its {told[0][0]}: fix "
                "the parameter, or leave them out."
            )


def refuse_without_lattice(kernel: Kernel) -> None:
    """Raise `KernelError` if a kernel acts on the sphere, or if factors of it share columns."""
    if not kernel.has_lattice:
        what = "Kernels on the sphere" if is_on_sphere(kernel) else "Products on shared columns"
        raise KernelError(
            f"{what} have no lattice of frequencies, and need the rows themselves: use "
            'GPRegressor(kernel, solver="auto"), with features="auto".'
        )


def kernel_of(estimator: Any) -> Any:
    """Return an estimator's kernel, its columns in numbers where it names them."""
    kernel = estimator.kernel
    if not isinstance(kernel, Kernel):
        return kernel
    names = getattr(estimator, "feature_names_in_", None)
    return kernel.numbered(None if names is None else [str(name) for name in names])


def check_values(kernel: Kernel, X: NDArray, columns: NDArray[np.int64] | None = None) -> None:
    """Raise `InputError` unless columns of categories hold codes, and those of latitudes degrees.

    X has the columns that the kernel sees, `columns` their numbers for the user.
    """
    shown = np.arange(X.shape[1]) if columns is None else columns
    for column, levels in categorical_columns(kernel, X.shape[1]):
        values = X[:, column]
        bad = (values < 0) | (values > levels - 1) | (values != np.round(values))
        if bad.any():
            raise InputError(
                f"Column {shown[column]} is categorical with codes 0 to {levels - 1}, but "
                f"{np.count_nonzero(bad)} of its values are others, such as "
                f"{values[np.argmax(bad)]:g}: encode its categories as whole numbers from 0, and "
                "give Categorical as many levels."
            )
    for column in latitudes(kernel):
        bad = np.abs(X[:, column]) > 90
        if bad.any():
            raise InputError(
                f"Column {shown[column]} holds latitudes in degrees, but "
                f"{np.count_nonzero(bad)} of {len(X)} rows are beyond ±90, such as "
                f"{X[np.argmax(bad), column]:g}: name longitude first, then latitude, in "
                "kernel.on_sphere(0, 1)."
            )


def called(estimator: Any, columns: NDArray[np.int64]) -> tuple[int, ...] | tuple[str, ...]:
    """Return what a user calls columns of X: by names, where they have some, or numbers."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        names = (getattr(estimator, "about_", None) or {}).get("inputs")
    if names is None or max(columns, default=-1) >= len(names):
        return tuple(columns.tolist())
    return tuple(str(names[c]) for c in columns)
