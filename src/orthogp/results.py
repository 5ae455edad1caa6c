"""What a comparison of feature families came to: as a table, a plot, and a CSV file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp import plots
from orthogp.errors import InputError
from orthogp.features import EXACT
from orthogp.files.writing import align, check_destination, write_rows
from orthogp.kernels import Kernel


class Measure(NamedTuple):
    """How a measure is headed and printed, what it says, and which values of it are good."""

    heading: str
    form: str
    meaning: str
    largest_is_best: bool = False
    #: Whether it speaks about the kernel's own prior.
    of_prior: bool = False


#: By the name of the field of `Result`.
MEASURES = {
    "residual": Measure(
        "residual",
        "{:.1e}",
        "share of the prior variance that the features leave out, averaged over the fitted rows",
        of_prior=True,
    ),
    "elbo": Measure(
        "elbo",
        "{:,.2f}",
        "Titsias' lower bound on log p(y), for y in its own units",
        largest_is_best=True,
        of_prior=True,
    ),
    "tightened": Measure(
        "tightened",
        "{:,.2f}",
        "a lower bound that is never below it",
        largest_is_best=True,
        of_prior=True,
    ),
    "upper": Measure("upper", "{:,.2f}", "an upper bound on log p(y)", of_prior=True),
    "rmse": Measure(
        "RMSE", "{:#.4g}", "root mean squared error at the rows held out, in the units of y"
    ),
    "nlpd": Measure(
        "NLPD", "{:.4f}", "mean of −log p(y*), noise included, over the rows held out, in nats"
    ),
    "seconds": Measure("seconds", "{:.2f}", "time of the fit, compilation included"),
}
# The column of the table that is left out if all fits have as many features as asked for.
_USED = 2
_BEST, _OWN_PRIOR, _NONE = "*", "†", "–"
# Where curves on logarithmic axes end: below, rounding and the wrapping of the prior have the say.
_LEAST_RESIDUAL, _LEAST_GAP = 1e-10, 1e-3
# Errors that differ by more than this factor need a logarithmic axis.
_WIDE = 5.0
# Columns of a terminal.
_LINE = 100


@dataclass(frozen=True)
class Result:
    """What one family with one number of features came to; NaN where there is no fit.

    Attributes
    ----------
    family : str
    asked, num_features : int
        The number of features asked for, and that of the fit: families in several columns do not
        come in every number.
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
        lines = [self.title, self._hyperparameters(), ""]
        if fitted:
            cells = [_headings(), *(self._cells(r) for r in fitted)]
            if all(r.num_features == r.asked for r in fitted):
                cells = [[*row[:_USED], *row[_USED + 1 :]] for row in cells]
            lines += [*align(cells), "", *self._footnotes()]
        lines += _problem_lines(self.results)
        return "\n".join(lines)

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
        figure = plots.plot_panels(
            list(self._panels()),
            list(dict.fromkeys(r.family for r in self.results if not r.problem)),
            title=self.title,
            xlabel="number of features M",
            xticks=sorted({r.asked for r in self.results if r.family != EXACT}),
            reference="exact GP",
        )
        plots.save(figure, path)

    def _competes(self, result: Result, measure: str) -> bool:
        if result.problem or result.family == EXACT:
            return False
        if result.replaces_prior and MEASURES[measure].of_prior:
            return False
        # At hyperparameters of their own, upper bounds are of different evidences, and what is
        # left out is of different priors.
        return measure not in ("upper", "residual") or self.kernel is not None

    # ------------------------------------------------------------------ as text

    def _hyperparameters(self) -> str:
        if self.kernel is None:
            return "Each fit learned its own hyperparameters."
        return f"All fits share {self.kernel} and noise variance {self.noise_variance:.4g}."

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
        yield f"{'M':<{width}}  number of features asked for (where the fit used others: 'used')"
        for measure in MEASURES.values():
            yield f"{measure.heading:<{width}}  {measure.meaning}"
        yield f"{_BEST:<{width}}  best for that M, among the approximations"
        if any(r.replaces_prior for r in self.results):
            yield f"{_OWN_PRIOR:<{width}}  of a prior that replaces the kernel's: does not compare"

    # ------------------------------------------------------------------ as a plot

    def _panels(self) -> Iterator[plots.Panel]:
        exact = self.exact
        yield plots.Panel(
            "Prior variance left out",
            "share of the prior variance",
            self._curves(lambda r: r.residual),
            floor=_LEAST_RESIDUAL,
        )
        if exact is not None:
            above = "log p(y)"
        else:
            above = "best upper bound" if self.kernel is not None else "upper bound"
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


def _headings() -> list[str]:
    # A space below each mark.
    return ["family", "M", "used", *(f"{measure.heading} " for measure in MEASURES.values())]


def _show(result: Result, name: str) -> str:
    value = getattr(result, name)
    return _NONE if np.isnan(value) else MEASURES[name].form.format(value)


def _problem_lines(results: tuple[Result, ...]) -> Iterator[str]:
    """Yield what was not fitted and why, numbers of features with the same problem together."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for r in results:
        if r.problem:
            numbers.setdefault((r.family, r.problem), []).append(str(r.asked))
    if numbers:
        yield "\nNot fitted:"
    for (family, problem), asked in numbers.items():
        text = f"  {family}, M = {', '.join(asked)}: {problem}"
        yield textwrap.fill(text, _LINE, subsequent_indent="    ")
