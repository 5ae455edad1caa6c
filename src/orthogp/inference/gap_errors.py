r"""How well a kernel fills gaps: the error at hidden rows, and its derivatives.

From the rows that are kept follow modes x = B⁻¹b̃ (`iterative.py`), and errors e = Φ_h x − y_h at
the rows that are hidden. One more solution, w = B⁻¹Φ_hᵀe, tells how they change:

    ∂/∂ log s_t (½‖e‖²) = x_t w_t,       ∂/∂ log s² (½‖e‖²) = −⟨x, w⟩

with the slopes of the mean function among x and w. Against the evidence, which is about how likely
the rows are that there are, this asks for what a model of any form, right or wrong, predicts best.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import MeanPrior
from orthogp.inference.conjugate_gradients import Solution, solve
from orthogp.inference.information import Derivatives
from orthogp.inference.lattice_model import Model, ModePosterior, PosteriorOf, right_hand_sides
from orthogp.inference.lattice_system import DataDensity
from orthogp.inference.mode_grid import centred_from_half, half_of
from orthogp.inference.parameters import learned_slots, unpack
from orthogp.inference.preconditioner import Preconditioner
from orthogp.kernels import Kernel
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import evaluate_series

#: Errors of the solutions for the kept rows, in posterior standard deviations, for each mode: they
#: spread over all modes, and few cost little. And for the derivatives, relative.
TOLERANCE, RELATIVE_TOLERANCE = 4e-6, 0.01
_MOST_ITERATIONS = 300


class WeightedRows(NamedTuple):
    """Rows with standardised targets, (n, d) and (n, p), and weights if any."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None

    def part(self, chosen: NDArray[np.bool_]) -> WeightedRows:
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[chosen]
        return WeightedRows(self.X[chosen], self.y[chosen], weights)


class GapError(NamedTuple):
    """½ Σ w e² over the hidden rows, and its derivatives in log parameters and log σ².

    The predictions do not depend on a common factor of all variances. `variance_factor` is the most
    likely one for the kept rows, yᵀK⁻¹y/N.
    """

    value: float
    gradient: NDArray[np.float64]
    variance_factor: float


class Gap:
    """Rows that are hidden, to be predicted from those that are kept.

    Parameters
    ----------
    lattice : FrequencyLattice
    rows : WeightedRows
    hidden : (n,) of bool
    mean : MeanPrior
    num_threads : int
    repeats : bool
        Whether weights count rows.
    tolerance, relative_tolerance : float
        Of the solutions for the errors, and for their derivatives.
    """

    def __init__(
        self,
        lattice: FrequencyLattice,
        rows: WeightedRows,
        hidden: NDArray[np.bool_],
        mean: MeanPrior,
        num_threads: int = 1,
        *,
        repeats: bool = True,
        tolerance: float = TOLERANCE,
        relative_tolerance: float = RELATIVE_TOLERANCE,
    ) -> None:
        self._lattice = lattice
        self._mean = mean
        self._num_threads = num_threads
        self._tolerance = tolerance
        self._relative_tolerance = relative_tolerance
        self._hidden = rows.part(hidden)
        self._kept = self._sums(rows.part(~hidden))
        self._num_kept = self._kept.count if repeats else self._kept.rows
        self._density = DataDensity(self._kept, num_threads)
        #: Σ w over the hidden rows and targets.
        weights, num_targets = self._hidden.weights, rows.y.shape[1]
        self.count = num_targets * float(hidden.sum() if weights is None else np.sum(weights))
        self._like: Preconditioner | None = None
        self._last: list[NDArray[np.complex128] | None] = [None, None]

    def evaluate(self, kernel: Kernel, vector: NDArray[np.float64]) -> GapError:
        """Return the error at log parameters and log σ², which the kernel gives the form for."""
        slots = learned_slots(kernel)
        model = Model.build(
            self._density,
            self._mean,
            unpack(kernel, slots, np.asarray(vector[:-1])),
            float(np.exp(vector[-1])),
            self._like,
        )
        self._like = model.preconditioner
        grid = model.system.grid
        right, posterior_of = right_hand_sides(model, self._kept, self._mean)
        solution = self._solve(model, right, self._tolerance * grid.size, 0)
        known = posterior_of(solution.x, solution.residual)
        errors = self._predicted(model, known) - self._hidden.y
        adjoint = self._adjoint(model, right, solution, errors)
        by_mode = grid.weights * np.sum((np.conj(adjoint.modes) * known.modes).real, axis=0)
        derivatives = Derivatives.at(vector, model, kernel, slots)
        axes = list(range(grid.num_dims))
        by_parameter = np.tensordot(by_mode, derivatives.relative, axes=(axes, axes))
        by_noise = -float(np.sum(by_mode)) - float(np.sum(adjoint.slopes * known.slopes))
        total = np.sum(self._kept.yy) / model.system.noise_variance
        return GapError(
            0.5 * float(np.sum(self._weighted(errors) * errors)),
            np.append(by_parameter, 0.0) + by_noise * derivatives.chain[-1],
            float(total - np.sum(known.explained)) / (self._num_kept * len(known.modes)),
        )

    def _sums(self, rows: WeightedRows) -> FourierStatistics:
        return FourierStatistics.from_data(
            self._lattice,
            rows.X,
            rows.y,
            rows.weights,
            covariates=self._mean.covariates if self._mean.slope_variance else None,
            num_threads=self._num_threads,
        )

    def _weighted(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = self._hidden.weights
        return errors if weights is None else errors * weights[:, None]

    def _predicted(self, model: Model, known: ModePosterior) -> NDArray[np.float64]:
        """Return the posterior mean at the hidden rows, (n, p)."""
        X = self._hidden.X
        series = centred_from_half(model.system.coefficients(known.modes), model.system.grid.extent)
        values = evaluate_series(series, self._lattice, X, num_threads=self._num_threads)
        slopes = np.sqrt(self._mean.slope_variance) * known.slopes
        return values + self._mean.covariates(X) @ slopes

    def _adjoint(
        self,
        model: Model,
        right: NDArray[np.complex128],
        solution: Solution,
        errors: NDArray[np.float64],
    ) -> ModePosterior:
        """Return w, the modes and slopes that hidden rows with these errors as targets point at.

        What the slopes need has been solved for with the kept rows.
        """
        grid, slope = model.system.grid, np.sqrt(self._mean.slope_variance)
        sums = self._sums(self._hidden._replace(y=errors))
        pointed = half_of(np.conj(sums.target_sums), grid.extent, grid.num_dims)
        pointed = model.system.coefficients(pointed)
        p, q = len(pointed), len(right) - len(pointed)
        posterior_of = PosteriorOf(
            grid,
            np.concatenate([pointed, right[p:]]),
            p,
            slope**2 * self._kept.covariate_gram[:q, :q] / model.system.noise_variance,
            slope * sums.covariate_targets[:q],
        )
        norms = np.sqrt(np.maximum(grid.inner(pointed, pointed), 1e-300))
        solved = self._solve(model, pointed, self._relative_tolerance * norms, 1)
        return posterior_of(
            np.concatenate([solved.x, solution.x[p:]]),
            np.concatenate([solved.residual, solution.residual[p:]]),
        )

    def _solve(
        self,
        model: Model,
        right: NDArray[np.complex128],
        tolerance: float | NDArray[np.float64],
        which: int,
    ) -> Solution:
        """Return solutions, from where the last ones of the same kind were."""
        solution = solve(
            model.system,
            model.preconditioner,
            right,
            tolerance=tolerance,
            start=self._last[which],
            max_iterations=_MOST_ITERATIONS,
        )
        self._last[which] = solution.x
        return solution
