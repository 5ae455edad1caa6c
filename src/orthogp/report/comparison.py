"""Families of features compared on the user's data: bounds, errors, and costs.

Some rows are held out. On the others the hyperparameters are learned once, by the lattice with as
many features as its certificate takes, and then held fixed, so that the features alone differ; or
each family learns its own. For few rows the exact posterior is the reference.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, OrthogpError, check_finite
from orthogp.features import EXACT, FEATURE_NAMES, Features, resolve_features
from orthogp.features.base import check_count
from orthogp.files.text import align, check_destination, write_rows
from orthogp.kernels import Kernel, resolve_kernel
from orthogp.regressor import GPRegressor
from orthogp.report import plots
from orthogp.report.summary import plain
from orthogp.rows import Domain, Rows
from orthogp.validation import check_columns

#: The number of rows up to which the exact posterior joins unasked.
EXACT_ROWS = 2000
#: The families compared unless others are named.
FAMILIES = tuple(name for name in FEATURE_NAMES if name not in ("auto", EXACT))
#: The numbers of features compared unless others are named.
NUM_FEATURES = (21, 41, 81, 161)

Family = str | Callable[[int], Features]

# The mark of the best value.
_BEST = "*"
# The mark of a value that belongs to another prior.
_OWN_PRIOR = "†"
# A value that does not exist.
_NONE = "–"
# The lower end of the residual's axis: below, rounding and the wrapping of the prior dominate.
_LEAST_RESIDUAL = 1e-10
# The lower end of the gap's axis, in nats, for the same reason.
_LEAST_GAP = 1e-3
# The ratio of errors above which their axis is logarithmic.
_WIDE = 5.0
# Columns of a terminal.
_LINE = 100


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
        The share of the rows held out. The fits know the box around them, no more.
    max_rows : int, optional
        The largest number of rows to take; more are sampled at random.
    learn : bool
        Whether each family learns its own hyperparameters.
    max_seconds : float, optional
        The time after which no fit begins, and learning stops.
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
    fitted, held_out = rows.part(train), rows.part(test)
    parameters: dict[str, Any] = {"kernel": kernel, "mean": mean}
    shared = None
    if not learn:
        shared = GPRegressor(**parameters, max_seconds=max_seconds).fit(fitted.X, fitted.y)
        write(f"hyperparameters: {shared.kernel_}, noise variance {shared.noise_variance_:.4g}")
        parameters |= {
            "kernel": shared.kernel_,
            "noise_variance": shared.noise_variance_,
            "learn": False,
        }
    lower, upper = Domain.around(rows.X[np.concatenate([train, test])][:, columns])
    # A constant column may have any width.
    parameters["domain"] = lower, np.where(upper > lower, upper, lower + 1.0)
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


def _run(trial: _Trial, fitted: Rows, held_out: Rows, parameters: dict[str, Any]) -> Result:
    try:
        model = trial.regressor(**parameters).fit(fitted.X, fitted.y)
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
            chosen["lattice" if family == "auto" else family] = family
        else:
            chosen[getattr(family, "__name__", repr(family))] = family
    exact = chosen.pop(EXACT, None) is not None or num_rows <= EXACT_ROWS
    trials = [_Trial(name, family, m) for name, family in chosen.items() for m in numbers]
    if exact:
        trials.append(_Trial(EXACT, EXACT, num_rows))
    if not trials:
        raise InputError("There is nothing to compare: name families, and numbers of features.")
    return trials


def _check_rows(X: ArrayLike, y: ArrayLike) -> Rows:
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
    return Rows(X, y)


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


class Measure(NamedTuple):
    """How a measure is headed and printed, what it says, and which values of it are good.

    `of_prior` says whether it speaks about the kernel's own prior.
    """

    heading: str
    form: str
    meaning: str
    largest_is_best: bool = False
    of_prior: bool = False


_LEFT_OUT = "share of the prior variance that the features leave out, averaged over the fitted rows"
_LOWER = "Titsias' lower bound on log p(y), for y in its own units"
_RMSE = "root mean squared error at the rows held out, in the units of y"
_NLPD = "mean of −log p(y*), noise included, over the rows held out, in nats"
#: By the name of the field of `Result`.
MEASURES = {
    "residual": Measure("residual", "{:.1e}", _LEFT_OUT, of_prior=True),
    "elbo": Measure("elbo", "{:,.2f}", _LOWER, True, True),
    "tightened": Measure("tightened", "{:,.2f}", "a lower bound never below the elbo", True, True),
    "upper": Measure("upper", "{:,.2f}", "an upper bound on log p(y)", of_prior=True),
    "rmse": Measure("RMSE", "{:#.4g}", _RMSE),
    "nlpd": Measure("NLPD", "{:.4f}", _NLPD),
    "seconds": Measure("seconds", "{:.2f}", "time of the fit, compilation included"),
}


@dataclass(frozen=True)
class Result:
    """What one family with one number of features came to; NaN where there is no fit.

    Attributes
    ----------
    family : str
    asked, num_features : int
        The number of features asked for, and the number of the fit: families in several columns
        do not come in every number.
    residual, elbo, tightened, upper, rmse, nlpd, seconds : float
        See `MEASURES`.
    replaces_prior : bool
        Whether the bounds hold for a prior of the family's own. Nothing is left out of that, and
        the residual is NaN.
    problem : str
        Why there is no fit.
    """

    family: str
    asked: int
    num_features: int = 0
    residual: float = np.nan
    elbo: float = np.nan
    tightened: float = np.nan
    upper: float = np.nan
    rmse: float = np.nan
    nlpd: float = np.nan
    seconds: float = np.nan
    replaces_prior: bool = False
    problem: str = ""

    def __str__(self) -> str:
        who = self.family if self.family == EXACT else f"{self.family}, M = {self.asked}"
        if self.problem:
            return f"{who}: {self.problem}"
        shown = (f"{name} {_show(self, name)}" for name in ("elbo", "rmse", "nlpd"))
        return f"{who}: {', '.join(shown)} ({self.seconds:.2f} s)"


@dataclass(frozen=True)
class Comparison:
    """The results of `compare_families`, by family and then by number of features.

    Attributes
    ----------
    results : tuple of Result
    train, test : (n,)
        The rows that were fitted, and those held out.
    kernel, noise_variance
        What all families share, in the units of X and y; `None` if each learned its own.
    title : str
        The rows and the kernel by name.
    """

    results: tuple[Result, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    kernel: Kernel | None
    noise_variance: float | None
    title: str

    @property
    def exact(self) -> Result | None:
        """The exact posterior's result, if there is one."""
        return next((r for r in self.results if r.family == EXACT and not r.problem), None)

    def best(self, measure: str = "nlpd", asked: int | None = None) -> Result | None:
        """Return the approximation that is best by one of `MEASURES`, or `None` if there is none.

        Parameters
        ----------
        asked : int, optional
            Compare only those with that number of features asked for.
        """
        if measure not in MEASURES:
            raise InputError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}.")
        candidates = [
            r for r in self.results if self._competes(r, measure) and asked in (None, r.asked)
        ]
        choose = max if MEASURES[measure].largest_is_best else min
        return choose(candidates, key=lambda r: getattr(r, measure), default=None)

    def gap(self, result: Result) -> float:
        """Return how many nats the elbo lies below log p(y), or below what bounds that.

        It is log p(y) itself if there is an exact result, else the smallest upper bound; the
        result's own upper bound if each family learned its own hyperparameters. NaN for families
        that replace the prior.
        """
        if result.replaces_prior:
            return float("nan")
        if self.exact is not None:
            return self.exact.elbo - result.elbo
        tightest = self.best("upper")
        return (result if tightest is None else tightest).upper - result.elbo

    def table(self) -> str:
        """Return the results as text, with the best values for each number of features marked."""
        fitted = [r for r in self.results if not r.problem]
        shared = "Each fit learned its own hyperparameters."
        if self.kernel is not None:
            shared = f"All fits share {self.kernel} and noise variance {self.noise_variance:.4g}."
        lines = [self.title, shared, ""]
        if fitted:
            # A space below each mark.
            headings = [f"{measure.heading} " for measure in MEASURES.values()]
            cells = [["family", "M", "used", *headings], *(self._cells(r) for r in fitted)]
            if all(r.num_features == r.asked for r in fitted):
                cells = [[*row[:2], *row[3:]] for row in cells]
            lines += [*align(cells), "", *self._footnotes()]
        return "\n".join([*lines, *self._problems()])

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the results with all their digits, a line each."""
        names = [field.name for field in fields(Result)]
        rows = [[*(getattr(r, name) for name in names), self.gap(r)] for r in self.results]
        write_rows(path, [*names, "gap"], rows)

    def plot(self, path: str | PathLike[str]) -> None:
        """Write a plot of residual, gap and RMSE over the number of features (png, pdf, svg)."""
        path = Path(path)
        plots.check_format(path)
        check_destination(path)
        labels = list(dict.fromkeys(r.family for r in self.results if not r.problem))
        numbers = sorted({r.asked for r in self.results if r.family != EXACT})
        figure = plots.plot_panels(list(self._panels()), labels, numbers, plain(self.title))
        plots.save(figure, path)

    def _competes(self, result: Result, measure: str) -> bool:
        if result.problem or result.family == EXACT:
            return False
        if result.replaces_prior and MEASURES[measure].of_prior:
            return False
        # Families with hyperparameters of their own bound different evidences, and leave out parts
        # of different priors.
        return measure not in ("upper", "residual") or self.kernel is not None

    # ------------------------------------------------------------------ as text

    def _cells(self, result: Result) -> list[str]:
        cells = [result.family, str(result.asked), str(result.num_features)]
        for name, measure in MEASURES.items():
            text = _show(result, name)
            # What prints alike is equally good.
            best = self.best(name, result.asked) if self._competes(result, name) else None
            mark = _BEST if best is not None and _show(best, name) == text else " "
            if result.replaces_prior and measure.of_prior and text != _NONE:
                mark = _OWN_PRIOR
            cells.append(text + mark)
        return cells

    def _footnotes(self) -> Iterator[str]:
        width = max(len(measure.heading) for measure in MEASURES.values())
        yield f"{'M':<{width}}  number of features asked for ('used': of the fit, if that differs)"
        for measure in MEASURES.values():
            yield f"{measure.heading:<{width}}  {measure.meaning}"
        yield f"{_BEST:<{width}}  best for that M, among the approximations"
        if any(r.replaces_prior for r in self.results):
            yield f"{_OWN_PRIOR:<{width}}  of a prior that replaces the kernel's: does not compare"

    def _problems(self) -> Iterator[str]:
        """Yield what was not fitted and why, numbers of features with the same problem together."""
        numbers: dict[tuple[str, str], list[str]] = {}
        for r in self.results:
            if r.problem:
                numbers.setdefault((r.family, r.problem), []).append(str(r.asked))
        if numbers:
            yield "\nNot fitted:"
        for (family, problem), asked in numbers.items():
            text = f"  {family}, M = {', '.join(asked)}: {problem}"
            yield textwrap.fill(text, _LINE, subsequent_indent="    ")

    # ------------------------------------------------------------------ as a plot

    def _panels(self) -> Iterator[plots.Panel]:
        exact = self.exact
        yield plots.Panel(
            "Prior variance left out",
            "share of the prior variance",
            self._curves(lambda r: r.residual),
            floor=_LEAST_RESIDUAL,
        )
        bound = "upper bound" if self.kernel is None else "best upper bound"
        above = bound if exact is None else "log p(y)"
        yield plots.Panel(f"{above} − elbo", "nats", self._curves(self.gap), floor=_LEAST_GAP)
        errors = self._curves(lambda r: r.rmse)
        values = [value for _, y in errors.values() for value in y]
        wide = bool(values) and max(values) > _WIDE * min(values)
        yield plots.Panel(
            "Error at the rows held out",
            "RMSE, in the units of y",
            errors,
            reference=None if exact is None else exact.rmse,
            floor=np.finfo(float).tiny if wide else None,
        )

    def _curves(
        self, value: Callable[[Result], float]
    ) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Return the finite values of each family over its numbers of features."""
        points: dict[str, list[tuple[int, float]]] = {}
        for result in self.results:
            if not result.problem and result.family != EXACT and np.isfinite(value(result)):
                points.setdefault(result.family, []).append((result.num_features, value(result)))
        curves = {family: np.array(sorted(pairs), dtype=float) for family, pairs in points.items()}
        return {family: (pairs[:, 0], pairs[:, 1]) for family, pairs in curves.items()}


def _show(result: Result, name: str) -> str:
    value = getattr(result, name)
    return _NONE if np.isnan(value) else MEASURES[name].form.format(value)
