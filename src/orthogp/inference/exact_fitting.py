"""Exact GP regression, learned and reported like the approximations of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.climbing import climb, lattice_start
from orthogp.inference.domain import Domain
from orthogp.inference.exact import ExactObjective, ExactPosterior
from orthogp.inference.family_fit import FamilyRows
from orthogp.inference.fit import Fit
from orthogp.inference.limits import parameter_limits
from orthogp.inference.parameters import pack
from orthogp.inference.settings import FitSettings, Start
from orthogp.inference.threads import BlasThreads
from orthogp.statistics import FourierStatistics

#: The most rows: time grows with their cube, memory with their square (200 MB per matrix).
MOST_ROWS = 5000


@dataclass(frozen=True)
class ExactFit(Fit):
    """A fitted model without approximation."""

    exact: ExactPosterior

    @property
    def period(self) -> None:
        """None: the prior is the kernel's own."""
        return

    @property
    def num_features(self) -> int:
        """The number of rows, each of which is its own inducing point."""
        return int(self.exact.num_rows)

    def posterior(self, domain: Domain, num_threads: int) -> ExactPosterior:
        """Return the posterior; it covers every domain."""
        return self.exact


class ExactFitter:
    """Fits a GP to standardised targets without approximation; see `FamilyFitter`."""

    def __init__(
        self,
        statistics: FourierStatistics,
        rows: FamilyRows | None,
        extent: Domain,
        mean: MeanPrior,
        settings: FitSettings,
        threads: BlasThreads,
    ) -> None:
        if rows is None:
            raise InputError(
                'features="exact" needs all rows at once: fit again with all of them, or use '
                'features="auto".'
            )
        if len(rows.X) > MOST_ROWS:
            raise InputError(
                f'features="exact" takes up to {MOST_ROWS} rows, got {len(rows.X)}: use '
                'features="auto".'
            )
        self._statistics = statistics
        self._rows = rows
        width = extent.upper - extent.lower
        self._width = np.where(width > 0, width, 1.0)
        self._mean = mean
        self._settings = settings
        self._threads = threads

    def fit(self, starts: list[Start]) -> ExactFit:
        """Return the fit from the best of some starting values."""
        best, converged, num_evaluations = starts[0], True, 0
        if self._settings.learn:
            best, curvature = lattice_start(
                starts, self._statistics, self._width, self._mean, self._settings, self._threads
            )
            objective = ExactObjective(best.kernel, *self._data, repeats=self._settings.repeats)

            def value_and_gradient(vector: NDArray[np.float64]):
                with self._threads.limited(len(self._rows.X)):
                    return objective.value_and_gradient(vector)

            vector = np.append(pack(best.kernel, objective.slots), np.log(best.noise_variance))
            summit = climb(
                value_and_gradient,
                vector,
                lambda floor: parameter_limits(
                    best.kernel,
                    objective.slots,
                    self._statistics.lattice,
                    self._width,
                    self._settings.wrap_tolerance,
                    floor,
                ),
                max_iterations=60,
                out_of_time=self._settings.late,
                curvature=curvature,
            )
            found = summit.maximum
            converged, num_evaluations = found.converged, found.num_evaluations
            best = Start(objective.kernel_at(found.x), float(np.exp(found.x[-1])))
        return self._finish(best, converged, num_evaluations)

    @property
    def _data(self) -> tuple:
        return self._mean, self._rows.X, self._rows.y, self._rows.weights

    def _finish(self, best: Start, converged: bool, num_evaluations: int) -> ExactFit:
        exact = ExactPosterior(
            best.kernel, best.noise_variance, *self._data, repeats=self._settings.repeats
        )
        value = exact.log_marginal_likelihood
        bound = Bound(data_fit=value, complexity=0.0, trace=0.0)
        status = "The posterior is exact."
        if self._settings.late():
            status += " The time ran out: raise max_seconds to go on learning."
        elif not converged:
            status += " Learning stopped before it settled."
        return ExactFit(
            kernel=best.kernel,
            noise_variance=best.noise_variance,
            elbo=bound,
            tightened=bound,
            upper=bound,
            certificate=Certificate(value, value, 0.0),
            status=status,
            converged=converged,
            num_evaluations=num_evaluations,
            rows=exact.counted_rows,
            exact=exact,
        )
