r"""tune_for_gaps: hyperparameters that fill gaps, by the errors at hidden rows.

From the rows that are kept follow modes x = B⁻¹b̃ (`iterative.py`), and errors e = Φ_h x − y_h at
the rows that are hidden. One more solution, w = B⁻¹Φ_hᵀe, tells how they change:

    ∂/∂ log s_t (½‖e‖²) = x_t w_t,       ∂/∂ log s² (½‖e‖²) = −⟨x, w⟩

with the slopes of the mean function among x and w. Against the evidence, which is about how likely
the rows are that there are, this asks for what a model of any form, right or wrong, predicts best.

The evidence weighs a model by all that it says of the rows, most of it about close neighbours. If
no kernel is quite right, what is best for these need not be best far from all rows. Here rows are
hidden that lie as the gaps do, mirrored: a row is hidden if its mirror image, in one column or in
all, lies in a gap. The parameters of the longest range are then those that predict them best, and
a common factor of all variances, which predictions do not depend on, is the most likely one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError, check_finite
from orthogp.features import MeanPrior
from orthogp.fields.evidence import Derivatives, scale_entries
from orthogp.fields.krylov import Solution, solve
from orthogp.fields.lattice_choice import choose_lattice
from orthogp.fields.model import Model, ModePosterior, PosteriorOf, right_hand_sides
from orthogp.fields.modes import centred_from_half, half_of
from orthogp.fields.preconditioner import Preconditioner
from orthogp.fields.system import DataDensity
from orthogp.inference.parameters import learned_slots, pack, unpack
from orthogp.inference.threads import one_thread
from orthogp.kernels import Kernel
from orthogp.learning.limits import parameter_limits, within_limits
from orthogp.learning.problem import Progress
from orthogp.regressor import GPRegressor, variance_unit
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import available_threads, evaluate_series
from orthogp.validation import check_rows, refuse_sphere

#: Errors of the solutions for the kept rows, in posterior standard deviations, for each mode: they
#: spread over all modes, and few cost little. And for the derivatives, relative.
TOLERANCE, RELATIVE_TOLERANCE = 4e-6, 0.01
_MOST_ITERATIONS = 300


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
    rows : Rows
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
        rows: Rows,
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

    def _sums(self, rows: Rows) -> FourierStatistics:
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


# A gap begins so many times as far from all rows as most neighbours are from each other.
_GAP, _MOST = 1.5, 0.9
# The fewest rows worth predicting, and worth predicting from.
_FEWEST = 10
# Kernels that want a period longer by this factor than the present one are worth another lattice.
_LONGER = 1.1
# The lattice, like the lengthscales' limits on it, need only serve to compare.
_MOST_MODES, _MOST_WRAPPED, _NOISE_FLOOR = 60_000, 0.25, 1e-8
# The first step is at most so long, in log parameters; later ones end the search if they gain less
# than this share.
_FIRST_STEP, _LEAST_GAIN = 0.5, 1e-4


class GapTuning(NamedTuple):
    """What filling hidden gaps has taught.

    Attributes
    ----------
    kernel, noise_variance
        In the units of X and y, for a regressor with `learn=False`.
    rmse_before, rmse_after : float
        At the hidden rows, with the model's hyperparameters and with these.
    num_hidden : tuple of int
        The rows hidden each time.
    num_evaluations : int
    converged : bool
        Whether steps ceased to gain, before time or evaluations ran out.
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

    The mirror is in the middle of the box around the rows. Distances are those of columns scaled to
    the same extent; gaps are where the nearest row is farther than 1.5 times what nine in ten rows
    are from their neighbour.
    """
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise InputError(f"X must be of shape (n, d), got {X.shape}.")
    check_finite(X, "X")
    lower, upper = X.min(axis=0), X.max(axis=0)
    scaled = (X - lower) / np.where(upper > lower, upper - lower, 1.0)
    places = np.unique(scaled, axis=0)
    tree = KDTree(places)
    usual = np.quantile(tree.query(places, k=2)[0][:, 1], _MOST)
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
    """Return hyperparameters that fill gaps like the data's own better than a fitted model's do.

    Parameters
    ----------
    model : GPRegressor
        Fitted to the rows X, y; gives the start, and all that is not tuned. It stays as it is.
    hidden : sequence of (n,) of bool, optional
        The rows to hide, each time; `mirrored_gaps` unless given.
    terms : sequence of int, optional
        The terms of the kernel to tune, counted from 0: that of the longest lengthscale unless
        given. Of the noise and of what varies between neighbours the evidence knows more; these
        change by a common factor of all variances only, or not at all if a variance is fixed.
    max_evaluations : int
    max_seconds : float, optional
        Begin no evaluation after that long.
    """
    if not isinstance(model, GPRegressor):
        raise InputError(f"Tuning for gaps takes a GPRegressor, got {type(model).__name__}.")
    check_is_fitted(model, "posterior_")
    sketch = model._sketch
    if not sketch.joint:
        raise InputError(
            "Tuning for gaps needs a model whose columns act jointly, up to three, not a sum of "
            "terms on lattices of their own."
        )
    refuse_sphere(model.kernel_)
    rows = check_rows(model, X, y, sample_weight, reset=False).on(model.columns_)
    num_targets, start = len(model.target_scale_), model._last
    if rows.y.shape[1] != num_targets:
        raise InputError(f"y must have {num_targets} columns as before, got {rows.y.shape[1]}.")
    if np.any(model.target_scale_ != model.target_scale_[0]):
        raise InputError(
            "Tuning for gaps needs targets in the same units, which a kernel object gives them: "
            "fit with one, or tune for each target."
        )
    if hidden is not None:
        hidden = [_mask(own, len(rows.X)) for own in hidden]
    standardised = (rows.y - model.target_offset_) / model.target_scale_
    weighted = Rows(rows.X.astype(np.float64), standardised, rows.weights)
    if rows.weights is not None:
        # Rows of weight zero are as good as absent.
        used = rows.weights > 0
        weighted = weighted.part(used)
        hidden = None if hidden is None else [own[used] for own in hidden]
    masks = _useful(mirrored_gaps(weighted.X) if hidden is None else hidden)
    slots = learned_slots(start.kernel)
    chosen = _tuned_terms(start.kernel, terms)
    free = np.repeat([slot.primitive in chosen for slot in slots], [slot.size for slot in slots])
    if not free.any():
        raise InputError("All parameters of the terms to tune are fixed: name other `terms`.")

    def lattice_for(kernel: Kernel) -> FrequencyLattice:
        count, width = sketch.statistics.count, sketch.width
        choice = choose_lattice(
            kernel,
            start.noise_variance,
            count,
            sketch.extent,
            width,
            model.wrap_tolerance,
            max_modes=_MOST_MODES,
        )
        return choice.lattice

    search = _Search(start.kernel, start.noise_variance, free, max_evaluations, max_seconds)
    lattice, period = lattice_for(start.kernel), np.zeros(len(model.columns_))
    threads = available_threads(model.n_jobs)
    with one_thread():
        # What has grown may want a longer period.
        while np.any(lattice.period > _LONGER * period) and not search.exhausted:
            repeats = model.weights == "repeats"
            gaps = [
                Gap(lattice, weighted, mask, sketch.mean, threads, repeats=repeats)
                for mask in masks
            ]
            search.run(gaps, lattice, sketch.width)
            lattice, period = lattice_for(search.kernel), lattice.period
    unit = variance_unit(model.target_scale_)
    if scale_entries(start.kernel, slots) is not None:
        unit *= search.variance_factor
    scale = float(model.target_scale_[0])
    return GapTuning(
        search.kernel.scaled(unit).with_columns(dict(enumerate(model.columns_.tolist()))),
        search.noise_variance * unit,
        scale * search.errors[0],
        scale * search.least,
        tuple(int(mask.sum()) for mask in masks),
        len(search.errors),
        search.converged,
    )


class _Search:
    """Descent along the derivatives of the mean squared error at hidden rows."""

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        free: NDArray[np.bool_],
        max_evaluations: int,
        max_seconds: float | None,
    ) -> None:
        self._form = kernel
        self._slots = learned_slots(kernel)
        self._free = np.flatnonzero(free)
        self._left = max_evaluations
        self._deadline = np.inf if max_seconds is None else time.monotonic() + max_seconds
        self._progress = Progress()
        self._best = np.append(pack(kernel, self._slots), np.log(noise_variance))
        self._gaps: list[Gap] = []
        self._scale = 1.0
        #: The best common factor of all variances, where the error is least.
        self.variance_factor = 1.0
        #: Root mean squared errors in the order of evaluation, and the least on the last lattice.
        self.errors: list[float] = []
        self.least = np.inf
        self.converged = False

    @property
    def kernel(self) -> Kernel:
        """The kernel of the least error."""
        return unpack(self._form, self._slots, self._best[:-1])

    @property
    def noise_variance(self) -> float:
        """The noise variance, unchanged but for the limits that a lattice has."""
        return float(np.exp(self._best[-1]))

    @property
    def exhausted(self) -> bool:
        """Whether evaluations or time have run out."""
        out = self._left <= 0 or time.monotonic() > self._deadline
        return bool(self.errors) and out

    def run(self, gaps: list[Gap], lattice: FrequencyLattice, width: NDArray[np.float64]) -> None:
        """Search from the best so far, as far as a lattice allows."""
        self._gaps = gaps
        kernel, slots = self.kernel, self._slots
        lower, upper = parameter_limits(kernel, slots, lattice, width, _MOST_WRAPPED, _NOISE_FLOOR)
        first = within_limits(kernel, slots, self._best, lower, upper, lattice)
        self._best, self.least = first, np.inf

        def evaluate(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            if self.exhausted:
                raise _EnoughError
            vector = first.copy()
            vector[self._free] = values
            square, gradient, factor = self._mean_square(vector)
            if not np.isfinite(self.least):
                self._scale = _FIRST_STEP / max(float(np.max(np.abs(gradient))), 1e-300)
            self.errors.append(float(np.sqrt(square)))
            if self.errors[-1] < self.least:
                self._best, self.variance_factor, self.least = vector, factor, self.errors[-1]
            self._progress.say(f"tuning for gaps: relative error {self.errors[-1]:.4f}")
            return self._scale * square, self._scale * gradient

        self.converged = False
        try:
            ended = scipy.optimize.minimize(
                evaluate,
                first[self._free],
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(lower[self._free], upper[self._free], strict=True)),
                options={"ftol": _LEAST_GAIN},
            )
            self.converged = bool(ended.success)
        except _EnoughError:
            pass
        finally:
            self._progress.done()

    def _mean_square(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], float]:
        """Return the mean squared error, its derivatives, and the best factor of all variances."""
        self._left -= 1
        parts = [gap.evaluate(self._form, vector) for gap in self._gaps]
        count = sum(gap.count for gap in self._gaps)
        gradient = np.sum([part.gradient for part in parts], axis=0)[self._free]
        square = 2 * sum(part.value for part in parts) / count
        factor = float(np.mean([part.variance_factor for part in parts]))
        return square, 2 * gradient / count, factor


class _EnoughError(Exception):
    """Evaluations or time have run out."""


def _mask(hidden: ArrayLike, num_rows: int) -> NDArray[np.bool_]:
    """Return which rows to hide, checked."""
    mask = np.asarray(hidden)
    if mask.shape != (num_rows,) or mask.dtype != bool:
        raise InputError(
            f"Each of `hidden` must hold True or False for each of the {num_rows} rows, got an "
            f"array of shape {mask.shape} and type {mask.dtype}."
        )
    return mask


def _useful(masks: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Return the masks that hide some rows and keep some."""
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
        float(np.exp(np.mean(np.log(own.parameters().get("lengthscale", 0.0) + 1e-300))))
        for own in primitives
    ]
    return {int(np.argmax(lengths))}
