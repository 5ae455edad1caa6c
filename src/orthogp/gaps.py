r"""Missing rows: covariates that say where they are, and hyperparameters that fill gaps.

`DriftRegressor` adds covariates that are a function of the inputs,

    y = f(x) + βᵀz(x) + noise

One may be the share of the neighbourhood without rows (`RowGaps`): the model then takes into
account that rows may be missing for a reason, so that their places are informative about the
values. Around x, with Gaussian weights g of bandwidth h along each column, that share is

    z(x) = 1 − Σ_n g(x − x_n) / (ρ ∫_box g(x − u) du),      0 ≤ z ≤ 1

with ρ the density in well-covered places; the volume beyond the box around the rows does not count.
The sum is a Fourier series: the sums of the rows on a lattice times the transform of g. A row does
not count as its own neighbour, so that z means the same at the rows as between them. Of several
bandwidths the evidence chooses: with the effects b of all of them at once, of precision P and broad
priors, the share j alone adds (P b)_j²/(2 P_jj) to the largest log p(y).

`tune_for_gaps` finds hyperparameters by the errors at held-out rows. The kept rows give modes
x = B⁻¹b̃ (`fields/model.py`), and errors e = Φ_h x − y_h at the rows that are held out. One more
solution, w = B⁻¹Φ_hᵀe, gives their derivatives:

    ∂/∂ log s_t (½‖e‖²) = x_t w_t,       ∂/∂ log s² (½‖e‖²) = −⟨x, w⟩

with the slopes of the mean function among x and w. The evidence weighs a model by all that it says
of the rows, most of it about close neighbours. If no kernel is quite right, the best one for
neighbours need not be the best far from all rows. Here the held-out rows lie as the gaps do,
mirrored: a row is held out if its mirror image, in one column or in all, lies in a gap. The
parameters of the longest range are then those that predict the held-out rows best. Predictions do
not depend on a common factor of all variances, which is the most likely one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from scipy.special import ndtr
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError, check_finite
from orthogp.features import MeanPrior
from orthogp.fields.evidence import IterativeObjective
from orthogp.fields.fitting import Budget, choose_lattice
from orthogp.fields.model import Equations, Model, ModePosterior, Solution, solve
from orthogp.fields.system import Modes, Reals, centred_from_half, half_of
from orthogp.inference.parameters import Start, learned_slots, pack, scale_entries, unpack
from orthogp.kernels import Kernel
from orthogp.learning.limits import parameter_limits, within_limits
from orthogp.learning.problem import Progress
from orthogp.precision import one_thread
from orthogp.regressor import GPRegressor, variance_unit
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads, evaluate_series
from orthogp.validation import check_rows, choose_model, refuse_without_lattice

#: Bandwidths to choose from, in units of the typical distance between rows.
BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)
# The quantile of the densities at the rows that is taken for ρ.
_COVERED = 0.9
# The distance at which a Gaussian ends, in bandwidths.
_REACH = 6.0
# The frequency at which its transform ends, times the bandwidth.
_HIGHEST = 4.5
# The smallest ρ, relative to the weight of one row, for which rows have neighbours.
_ALONE = 1e-2
# The smallest standard deviation of the shares at the rows that shows gaps.
_ALIKE = 1e-3

Covariates = Callable[[NDArray[np.float64]], ArrayLike]


class RowGaps:
    """The share of the neighbourhood without rows, in several bandwidths to choose from.

    Bandwidths are in units of the typical distance of rows along each column, its extent divided by
    the d-th root of the number of distinct places.
    """

    def __init__(self, bandwidths: Sequence[float] = BANDWIDTHS) -> None:
        values = np.atleast_1d(np.asarray(bandwidths, dtype=np.float64))
        if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values) & (values > 0)):
            raise InputError(f"bandwidths must be positive numbers, got {bandwidths}.")
        self.bandwidths = tuple(values.tolist())

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"RowGaps({self.bandwidths})"

    def of(self, X: ArrayLike) -> list[GapShare]:
        """Return the share around rows X (n, d), for each bandwidth that shows gaps."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or not 1 <= X.shape[1] <= MAX_DIMS:
            raise InputError(
                f"Gaps are looked for in rows of up to {MAX_DIMS} columns, got shape {X.shape}."
            )
        check_finite(X, "X")
        extent = np.ptp(X, axis=0)
        if np.any(extent == 0):
            raise InputError(
                "Gaps between rows need columns that vary: column "
                f"{int(np.flatnonzero(extent == 0)[0])} is constant."
            )
        tree = KDTree(X)
        typical = extent / len(np.unique(X, axis=0)) ** (1 / X.shape[1])
        shares = [GapShare(tree, bandwidth * typical) for bandwidth in self.bandwidths]
        shares = [z for z in shares if z.covered > _ALONE and np.std(z(X)) > _ALIKE]
        if not shares:
            raise InputError(
                "The rows have no gaps that their neighbourhoods would show: leave out the drift, "
                "or give other bandwidths."
            )
        return shares


class GapShare:
    """The share of the neighbourhood without rows, for one bandwidth (d,) in the units of X.

    `covered` is ρ, relative to the weight of one row at its place.
    """

    def __init__(self, rows: KDTree, bandwidth: NDArray[np.float64]) -> None:
        X = np.asarray(rows.data)
        self.bandwidth = np.asarray(bandwidth, dtype=np.float64)
        self._rows = rows
        self._lower, self._upper = X.min(axis=0), X.max(axis=0)
        period = self._upper - self._lower + _REACH * self.bandwidth
        # Points are summed at twice the frequencies that targets are.
        extent = np.ceil(_HIGHEST / self.bandwidth * period / (4 * np.pi)).astype(np.int64)
        self._lattice = FrequencyLattice.for_domain(
            self._lower, self._upper, period=period, extent=extent
        )
        sums = FourierStatistics.from_data(self._lattice, X, np.zeros(len(X))).point_sums
        # In units of the weight of one row at its place.
        series = np.conj(sums) * np.prod(np.sqrt(2 * np.pi) * self.bandwidth / period)
        for axis, k in enumerate(extent):
            omega = np.arange(-2 * k, 2 * k + 1) * self._lattice.spacing[axis]
            taper = np.exp(-((omega * self.bandwidth[axis]) ** 2) / 2)
            series = series * taper.reshape(-1, *(1,) * (len(extent) - 1 - axis))
        self._series = series
        self.covered = float(np.quantile(self._density(X), _COVERED))

    def __call__(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return z at the rows of X, (n, 1)."""
        density = self._density(np.asarray(X, dtype=np.float64))
        return np.clip(1 - density / self.covered, 0.0, 1.0)[:, None]

    def _density(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the density of other rows in the box around each place, moved to the box.

        A row at the place itself is taken out once.
        """
        occupied = np.asarray(self._rows.query(X)[0]) == 0
        X = np.clip(X, self._lower, self._upper)
        ends = [ndtr((edge - X) / self.bandwidth) for edge in (self._lower, self._upper)]
        total = evaluate_series(self._series[None], self._lattice, X)[:, 0]
        return (total - occupied) / np.prod(ends[1] - ends[0], axis=1)


class DriftRegressor(RegressorMixin, BaseEstimator):
    """A GPRegressor with covariates that are a function of X.

    Parameters
    ----------
    regressor : GPRegressor
        The model of y beside the drift.
    drift : RowGaps or callable
        Covariates as a function of X, (n, d) → (n, q). Among several bandwidths, that with the
        largest evidence is taken.

    Attributes
    ----------
    effects_ : Effects
    columns_ : (d,)
        The columns of X that the kernel acts on, in which gaps are looked for.
    drift_ : callable
        The covariates, with the chosen bandwidth.
    regressor_ : GPRegressor
        Fitted with the covariates.
    """

    n_features_in_: int

    def __init__(self, regressor: GPRegressor, drift: RowGaps | Covariates) -> None:
        self.regressor = regressor
        self.drift = drift

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows X (n, d) with targets y, (n,)."""
        if not isinstance(self.regressor, GPRegressor):
            raise InputError(f"A drift needs a GPRegressor, got {type(self.regressor).__name__}.")
        if not (isinstance(self.drift, RowGaps) or callable(self.drift)):
            raise InputError(
                "A drift is RowGaps or a function of X: give columns of numbers by "
                "GPRegressor.fit(X, y, covariates=…)."
            )
        rows = check_rows(self, X, y, sample_weight, reset=True)
        if not rows.one_target:
            raise InputError("A drift takes one target: y must be of shape (n,).")
        known = rows.X.astype(np.float64)
        kernel, features = self.regressor.kernel, self.regressor.features
        self.columns_ = choose_model(kernel, features, known.shape[1]).columns
        choices = self._choices(known, rows.weights)
        columns = [self._covariates(choice, known) for choice in choices]
        fresh: Any = clone(self.regressor)
        model = fresh.fit(X, y, sample_weight, np.concatenate(columns, axis=1))
        best = 0
        if len(choices) > 1:
            effects = model.effects_
            precision = np.linalg.inv(effects.covariance)
            gains = (precision @ effects.values) ** 2 / (2 * np.diag(precision))
            best = int(np.argmax(gains))
            again: Any = clone(self.regressor)
            again.set_params(kernel=model.kernel_, noise_variance=model.noise_variance_)
            model = again.fit(X, y, sample_weight, columns[best])
        self.drift_, self.regressor_, self.effects_ = choices[best], model, model.effects_
        return self

    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = False) -> Any:
        """Return the mean of f + βᵀz at the rows of X, and standard deviations if asked.

        Parameters
        ----------
        include_noise : bool
            For a new observation instead of the function itself.
        """
        check_is_fitted(self, "effects_")
        z = self._covariates(self.drift_, np.asarray(X, dtype=np.float64))
        return self.regressor_.predict(X, return_std, include_noise=include_noise, covariates=z)

    def summary(self) -> str:
        """Return the effects, and the model that has them, in a page of text."""
        check_is_fitted(self, "effects_")
        shown = ", ".join(
            f"{value:.4g} ± {error:.2g}"
            for value, error in zip(
                self.effects_.values, self.effects_.standard_errors, strict=True
            )
        )
        gain = self.effects_.evidence_gain
        line = f"DriftRegressor: effects {shown}; evidence {gain:,.1f} nats larger"
        if isinstance(self.drift_, GapShare):
            bandwidth = ", ".join(f"{h:.4g}" for h in self.drift_.bandwidth)
            line += f"\n  of the share without rows, bandwidth [{bandwidth}]"
        return f"{line}\n{self.regressor_.summary()}"

    def _choices(
        self, X: NDArray[np.float64], weights: NDArray[np.float64] | None
    ) -> Sequence[GapShare | Covariates]:
        """Return the covariates to choose from."""
        if not isinstance(self.drift, RowGaps):
            return [self.drift]
        X = X[:, self.columns_]
        return self.drift.of(X if weights is None else X[weights > 0])

    def _covariates(
        self, covariates: GapShare | Covariates, X: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return covariates at the rows of X, (n, q)."""
        # Gaps are looked for in the columns that the kernel acts on.
        X = X[:, self.columns_] if isinstance(covariates, GapShare) else X
        values = np.asarray(covariates(X), dtype=np.float64)
        values = values.reshape(len(values), -1) if values.ndim else values
        if values.ndim != 2 or len(values) != len(X) or values.shape[1] == 0:
            raise InputError(
                f"The drift must give one row of covariates for each of {len(X)} rows of X, got "
                f"shape {values.shape}."
            )
        check_finite(values, "drift")
        return values


# The largest error of the solutions for the kept rows, in posterior standard deviations, for each
# mode: errors spread over all modes, and small ones cost little.
_TOLERANCE = 4e-6
# The largest relative error of the solutions for the derivatives.
_RELATIVE_TOLERANCE = 0.01
_MOST_ITERATIONS = 300
# The quantile of the distances between neighbouring rows that counts as usual.
_USUAL = 0.9
# The distance from all rows, relative to the usual one, at which a gap begins.
_GAP = 1.5
# The fewest rows to predict, and to predict from.
_FEWEST = 10
# The factor of the period that makes another lattice worthwhile.
_LONGER = 1.1
# The most modes of a lattice that only serves to compare hyperparameters.
_MOST_MODES = 60_000
# The error of the periodised prior up to which lengthscales may grow on one lattice.
_MOST_WRAPPED = 0.25
# The smallest noise variance, relative to that of the targets.
_NOISE_FLOOR = 1e-8
# The longest first step of a log parameter.
_FIRST_STEP = 0.5
# The relative gain of a step below which the search ends.
_LEAST_GAIN = 1e-4


class GapError(NamedTuple):
    """½ Σ w e² over the held-out rows, and its derivatives in log parameters and log σ².

    `variance_factor` is the most likely common factor of all variances for the kept rows, yᵀK⁻¹y/N.
    """

    value: float
    gradient: Reals
    variance_factor: float


class Gap:
    """Held-out rows, to be predicted from the kept ones, whose model the objective is.

    The tolerances are the errors of the solutions for the held-out rows and for the derivatives.
    """

    def __init__(
        self,
        objective: IterativeObjective,
        hidden: Rows,
        tolerances: tuple[float, float] = (_TOLERANCE, _RELATIVE_TOLERANCE),
    ) -> None:
        self._objective = objective
        self._hidden = hidden
        self._tolerances = tolerances
        weights = np.ones(len(hidden.X)) if hidden.weights is None else hidden.weights
        self._weights = weights[:, None]
        #: Σ w over the held-out rows and targets.
        self.count = hidden.y.shape[1] * float(np.sum(weights))
        self._last: list[Modes | None] = [None, None]

    def evaluate(self, vector: Reals) -> GapError:
        """Return the error at log parameters and log σ²."""
        objective = self._objective
        model = objective.model(vector)
        grid = model.system.grid
        solution = self._solve(model, model.equations.right, self._tolerances[0] * grid.size, 0)
        known = model.equations.posterior(solution.x, solution.residual)
        errors = self._predicted(model, known) - self._hidden.y
        adjoint = self._adjoint(model, solution, errors)
        by_mode = grid.weights * np.sum((np.conj(adjoint.modes) * known.modes).real, axis=0)
        by_noise = -float(np.sum(by_mode)) - float(np.sum(adjoint.slopes * known.slopes))
        total = np.sum(objective.statistics.yy) / model.system.noise_variance
        return GapError(
            0.5 * float(np.sum(self._weights * errors * errors)),
            objective.derivatives(model, vector).gradient(by_mode, by_noise),
            float(total - np.sum(known.explained)) / (objective.rows * len(known.modes)),
        )

    def _predicted(self, model: Model, known: ModePosterior) -> Reals:
        """Return the posterior mean at the held-out rows, (n, p)."""
        X, system = self._hidden.X, model.system
        series = centred_from_half(system.coefficients(known.modes), system.grid.extent)
        threads = system.grid.num_threads
        values = evaluate_series(series, system.density.lattice, X, num_threads=threads)
        slopes = np.sqrt(model.mean.slope_variance) * known.slopes
        return values + model.mean.covariates(X) @ slopes

    def _adjoint(self, model: Model, solution: Solution, errors: Reals) -> ModePosterior:
        """Return w, the posterior mean with the sums of the errors as targets.

        The covariates of the slopes have been solved for with the kept rows.
        """
        grid, (_, right, gram, goal) = model.system.grid, model.equations
        p, q = goal.shape[1], len(gram)
        hidden = self._hidden._replace(y=errors)
        sums = sums_of(model.system.density.lattice, hidden, model.mean, grid.num_threads)
        targets = model.system.coefficients(half_of(np.conj(sums.target_sums), grid.extent))
        norms = np.sqrt(np.maximum(grid.inner(targets, targets), 1e-300))
        solved = self._solve(model, targets, self._tolerances[1] * norms, 1)
        slopes = np.sqrt(model.mean.slope_variance) * sums.covariate_targets[:q]
        equations = Equations(grid, np.concatenate([targets, right[p:]]), gram, slopes)
        return equations.posterior(
            np.concatenate([solved.x, solution.x[p:]]),
            np.concatenate([solved.residual, solution.residual[p:]]),
        )

    def _solve(self, model: Model, right: Modes, tolerance: float | Reals, which: int) -> Solution:
        """Return solutions, which begin at the last ones of the same kind."""
        start, most = self._last[which], _MOST_ITERATIONS
        solution = solve(model, right, tolerance=tolerance, start=start, max_iterations=most)
        self._last[which] = solution.x
        return solution


def sums_of(
    lattice: FrequencyLattice, rows: Rows, mean: MeanPrior, num_threads: int = 1
) -> FourierStatistics:
    """Return the sums of rows, with the covariates of the mean function."""
    return FourierStatistics.from_data(
        lattice,
        rows.X,
        rows.y,
        rows.weights,
        covariates=mean.covariates if mean.slope_variance else None,
        num_threads=num_threads,
    )


class GapTuning(NamedTuple):
    """Hyperparameters that fill gaps.

    Attributes
    ----------
    kernel, noise_variance
        In the units of X and y, for a regressor with `learn=False`.
    rmse_before, rmse_after : float
        The root mean squared errors at the held-out rows, with the hyperparameters of the model and
        with these.
    num_hidden : tuple of int
        The number of rows held out each time.
    num_evaluations : int
    converged : bool
        Whether steps ceased to gain before time or evaluations ran out.
    """

    kernel: Kernel
    noise_variance: float
    rmse_before: float
    rmse_after: float
    num_hidden: tuple[int, ...]
    num_evaluations: int
    converged: bool


def mirrored_gaps(X: ArrayLike) -> list[NDArray[np.bool_]]:
    """Return which rows of X (n, d) lie as the gaps do, mirrored in each column and in all.

    The mirror is in the middle of the box around the rows. Columns are scaled to the same extent. A
    gap is farther from every row than 1.5 times the distance that nine in ten rows have to their
    nearest neighbour.
    """
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise InputError(f"X must be of shape (n, d), got {X.shape}.")
    check_finite(X, "X")
    lower, upper = X.min(axis=0), X.max(axis=0)
    scaled = (X - lower) / np.where(upper > lower, upper - lower, 1.0)
    places = np.unique(scaled, axis=0)
    tree = KDTree(places)
    usual = np.quantile(tree.query(places, k=2)[0][:, 1], _USUAL)
    num_dims = X.shape[1]
    mirrors = [np.arange(num_dims) == d for d in range(num_dims)]
    if num_dims > 1:
        mirrors.append(np.ones(num_dims, dtype=bool))
    images = [np.where(mirror, 1 - scaled, scaled) for mirror in mirrors]
    return [np.asarray(tree.query(image)[0] > _GAP * usual) for image in images]


def tune_for_gaps(
    model: GPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    hidden: Sequence[ArrayLike] | None = None,
    terms: Sequence[int] | None = None,
    max_evaluations: int = 30,
    max_seconds: float | None = None,
) -> GapTuning:
    """Return hyperparameters that fill gaps like those of the data better than the fitted ones.

    Parameters
    ----------
    model : GPRegressor
        Fitted to the rows X, y; gives the start, and all that is not tuned. It is not changed.
    hidden : sequence of (n,) of bool, optional
        The rows to hold out, each time; `mirrored_gaps` unless given.
    terms : sequence of int, optional
        The terms of the kernel to tune, counted from 0: the one of the longest lengthscale unless
        given. The evidence is better informed about the noise and about the variation between
        neighbours; the other terms change by a common factor of all variances only, or not at all
        if a variance is fixed.
    max_evaluations : int
    max_seconds : float, optional
        The time after which no evaluation begins.
    """
    rows, masks = _checked_rows(model, X, y, sample_weight, hidden)
    start, sketch = model._last, model._sketch
    chosen = _tuned_terms(start.kernel, terms)
    slots = learned_slots(start.kernel)
    free = np.repeat([slot.primitive in chosen for slot in slots], [slot.size for slot in slots])
    if not free.any():
        raise InputError("All parameters of the terms to tune are fixed: name other `terms`.")

    def lattice_for(kernel: Kernel) -> FrequencyLattice:
        at, budget = Start(kernel, start.noise_variance), Budget(modes=_MOST_MODES)
        count, tolerance = sketch.statistics.count, model.wrap_tolerance
        return choose_lattice(at, count, sketch.extent, tolerance, budget).lattice

    search = _Search(start, np.flatnonzero(free), max_evaluations, max_seconds)
    lattice, period = lattice_for(start.kernel), np.zeros(len(model.columns_))
    with one_thread():
        # A lengthscale that has grown may need a longer period.
        while np.any(lattice.period > _LONGER * period) and not search.exhausted:
            search.run([_gap(model, lattice, rows, mask) for mask in masks], lattice, sketch.width)
            lattice, period = lattice_for(search.end.kernel), lattice.period
    unit = variance_unit(model.target_scale_)
    if scale_entries(start.kernel, slots) is not None:
        unit *= search.variance_factor
    scale = float(model.target_scale_[0])
    return GapTuning(
        search.end.kernel.scaled(unit).with_columns(dict(enumerate(model.columns_.tolist()))),
        search.end.noise_variance * unit,
        scale * search.errors[0],
        scale * search.least,
        tuple(int(mask.sum()) for mask in masks),
        len(search.errors),
        search.converged,
    )


def _checked_rows(
    model: GPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None,
    hidden: Sequence[ArrayLike] | None,
) -> tuple[Rows, list[NDArray[np.bool_]]]:
    """Return the standardised rows of positive weight, and the masks that hold some of them out."""
    if not isinstance(model, GPRegressor):
        raise InputError(f"Tuning for gaps takes a GPRegressor, got {type(model).__name__}.")
    check_is_fitted(model, "posterior_")
    if not model._sketch.joint or len(model.columns_) > MAX_DIMS:
        raise InputError(
            "Tuning for gaps needs a model whose columns act jointly, up to three, not a sum of "
            "terms on lattices of their own."
        )
    refuse_without_lattice(model.kernel_)
    rows = check_rows(model, X, y, sample_weight, reset=False).on(model.columns_)
    num_targets = len(model.target_scale_)
    if rows.y.shape[1] != num_targets:
        raise InputError(f"y must have {num_targets} columns as before, got {rows.y.shape[1]}.")
    if np.any(model.target_scale_ != model.target_scale_[0]):
        raise InputError(
            "Tuning for gaps needs targets in the same units, which a kernel object gives them: "
            "fit with one, or tune for each target."
        )
    masks = None if hidden is None else [_mask(one, len(rows.X)) for one in hidden]
    standardised = (rows.y - model.target_offset_) / model.target_scale_
    rows = Rows(rows.X.astype(np.float64), standardised, rows.weights)
    if rows.weights is not None:
        used = rows.weights > 0
        rows = rows.part(used)
        masks = None if masks is None else [mask[used] for mask in masks]
    return rows, _useful(mirrored_gaps(rows.X) if masks is None else masks)


def _gap(model: GPRegressor, lattice: FrequencyLattice, rows: Rows, mask: NDArray[np.bool_]) -> Gap:
    """Return the rows of a mask, held out from the others."""
    mean, threads = model._sketch.mean, available_threads(model.n_jobs)
    objective = IterativeObjective(
        sums_of(lattice, rows.part(~mask), mean, threads),
        model._last.kernel,
        mean,
        repeats=model.weights == "repeats",
        num_threads=threads,
    )
    return Gap(objective, rows.part(mask))


class _Search:
    """Descent along the derivatives of the mean squared error at held-out rows."""

    def __init__(
        self, start: Start, free: NDArray[np.int64], max_evaluations: int, max_seconds: float | None
    ) -> None:
        self._form = start.kernel
        self._slots = learned_slots(start.kernel)
        self._free = free
        self._max_evaluations = max_evaluations
        self._deadline = np.inf if max_seconds is None else time.monotonic() + max_seconds
        self._progress = Progress()
        self._best = np.append(pack(start.kernel, self._slots), np.log(start.noise_variance))
        #: The best common factor of all variances, where the error is least.
        self.variance_factor = 1.0
        #: Root mean squared errors in the order of evaluation, and the least on the last lattice.
        self.errors: list[float] = []
        self.least = np.inf
        self.converged = False

    @property
    def end(self) -> Start:
        """The kernel of the least error; the noise changes only by the limits of a lattice."""
        kernel = unpack(self._form, self._slots, self._best[:-1])
        return Start(kernel, float(np.exp(self._best[-1])))

    @property
    def exhausted(self) -> bool:
        """Whether evaluations or time have run out."""
        number = len(self.errors)
        late = time.monotonic() > self._deadline
        return number > 0 and (late or number >= self._max_evaluations)

    def run(self, gaps: list[Gap], lattice: FrequencyLattice, width: Reals) -> None:
        """Search from the best so far, as far as a lattice allows."""
        kernel, slots, free = self.end.kernel, self._slots, self._free
        lower, upper = parameter_limits(kernel, slots, lattice, width, _MOST_WRAPPED, _NOISE_FLOOR)
        first = within_limits(kernel, slots, self._best, lower, upper, lattice)
        self._best, self.least, scale = first, np.inf, 1.0

        def evaluate(values: Reals) -> tuple[float, Reals]:
            nonlocal scale
            if self.exhausted:
                raise _EnoughError
            vector = first.copy()
            vector[free] = values
            square, gradient, factor = self._mean_square(gaps, vector)
            if not np.isfinite(self.least):
                scale = _FIRST_STEP / max(float(np.max(np.abs(gradient))), 1e-300)
            self.errors.append(float(np.sqrt(square)))
            if self.errors[-1] < self.least:
                self._best, self.variance_factor, self.least = vector, factor, self.errors[-1]
            self._progress.say(f"tuning for gaps: relative error {self.errors[-1]:.4f}")
            return scale * square, scale * gradient

        self.converged = False
        with self._progress, suppress(_EnoughError):
            ended = scipy.optimize.minimize(
                evaluate,
                first[free],
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(lower[free], upper[free], strict=True)),
                options={"ftol": _LEAST_GAIN},
            )
            self.converged = bool(ended.success)

    def _mean_square(self, gaps: list[Gap], vector: Reals) -> tuple[float, Reals, float]:
        """Return the mean squared error, its derivatives, and the best factor of all variances."""
        parts = [gap.evaluate(vector) for gap in gaps]
        count = sum(gap.count for gap in gaps)
        gradient = np.sum([part.gradient for part in parts], axis=0)[self._free]
        square = 2 * sum(part.value for part in parts) / count
        factor = float(np.mean([part.variance_factor for part in parts]))
        return square, 2 * gradient / count, factor


class _EnoughError(Exception):
    """Evaluations or time have run out."""


def _mask(hidden: ArrayLike, num_rows: int) -> NDArray[np.bool_]:
    """Return the rows to hold out, checked."""
    mask = np.asarray(hidden)
    if mask.shape != (num_rows,) or mask.dtype != bool:
        raise InputError(
            f"Each of `hidden` must hold True or False for each of the {num_rows} rows, got an "
            f"array of shape {mask.shape} and type {mask.dtype}."
        )
    return mask


def _useful(masks: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Return the masks that hold out some rows and keep some."""
    useful = [m for m in masks if min(np.count_nonzero(m), np.count_nonzero(~m)) >= _FEWEST]
    if not useful:
        raise InputError(
            "There are no gaps to learn from: hiding rows must leave out some and keep some, at "
            f"least {_FEWEST} of each; give the rows to hide as `hidden`."
        )
    return useful


def _tuned_terms(kernel: Kernel, terms: Sequence[int] | None) -> set[int]:
    """Return the primitives to tune: those named, or the one of the longest lengthscale."""
    primitives = [primitive for primitive, _ in kernel.primitives()]
    if terms is not None:
        terms = [int(term) for term in terms]
        wrong = [term for term in terms if not 0 <= term < len(primitives)]
        if wrong or not terms:
            raise InputError(
                f"`terms` must name some of the kernel's {len(primitives)} terms, counted from 0, "
                f"got {terms}."
            )
        return set(terms)
    lengths = [
        float(np.exp(np.mean(np.log(one.parameters().get("lengthscale", 0.0) + 1e-300))))
        for one in primitives
    ]
    return {int(np.argmax(lengths))}
