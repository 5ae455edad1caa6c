"""Exact GP regression, learned and reported like the approximations of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from orthogp.errors import InputError, PrecisionError
from orthogp.exact.process import ExactPosterior, Solution
from orthogp.exact.search import ExactSearch
from orthogp.features import MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.threads import BlasThreads
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.rows import Domain, Rows

#: The most rows: time grows with their cube, memory with their square (200 MB per matrix).
MOST_ROWS = 5000

# How often the noise is raised for a matrix that was factorised before, but with other rounding.
_RAISES = 4


class ExactFitter:
    """Fits a GP to standardised targets without approximation; see `FamilyFitter`."""

    def __init__(
        self,
        rows: Rows | None,
        extent: Domain,
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads,
    ) -> None:
        if rows is None:
            raise InputError(
                "An exact fit needs all rows at once: fit again with all of them, or use "
                'solver="auto" and features="auto".'
            )
        if len(rows.X) > MOST_ROWS:
            raise InputError(
                f'An exact fit takes up to {MOST_ROWS} rows, got {len(rows.X)}: use solver="auto" '
                'and features="auto".'
            )
        self._rows = rows
        self._mean = mean
        self._settings = settings
        self._threads = threads

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        if not self._settings.learn:
            return self._finish(self._posterior(starts[0]), converged=True, num_evaluations=0)
        search = ExactSearch(self._rows, self._mean, self._settings, self._threads)
        found = search.run(starts)
        exact = None
        if found.beyond is not None:
            with suppress(PrecisionError):
                exact = self._posterior(found.beyond)
        if exact is None or exact.log_marginal_likelihood < found.value:
            exact = self._resolved(found.best, found.solution)
        return self._finish(exact, found.converged, found.num_evaluations)

    def _resolved(self, at: Start, solution: Solution | None) -> ExactPosterior:
        """Return the posterior, with more noise if rounding has reached what there is."""
        for _ in range(_RAISES):
            with suppress(PrecisionError):
                return self._posterior(at, solution)
            at = replace(at, noise_variance=3 * at.noise_variance)
        return self._posterior(at)

    def _posterior(self, at: Start, solution: Solution | None = None) -> ExactPosterior:
        with self._threads.limited(len(self._rows.X)):
            return ExactPosterior(
                at.kernel,
                at.noise_variance,
                self._mean,
                self._rows.X,
                self._rows.y,
                self._rows.weights,
                repeats=self._settings.repeats,
                solution=solution,
            )

    def _finish(self, exact: ExactPosterior, converged: bool, num_evaluations: int) -> Fit:
        value = exact.log_marginal_likelihood
        bound = Bound(data_fit=value, complexity=0.0, trace=0.0)
        status = "The posterior is exact."
        if self._settings.late():
            status += " The time ran out: raise max_seconds to go on learning."
        elif not converged:
            status += " Learning stopped before it settled."
        return Fit(
            kernel=exact.kernel,
            noise_variance=exact.noise_variance,
            elbo=bound,
            tightened=bound,
            upper=bound,
            certificate=Certificate.exact(value),
            status=status,
            converged=converged,
            num_evaluations=num_evaluations,
            rows=exact.counted_rows,
            posterior=lambda domain, num_threads: exact,
            num_features=int(exact.num_rows),
        )
