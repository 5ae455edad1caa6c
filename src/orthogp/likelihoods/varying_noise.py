r"""Gaussian noise whose variance varies: y = f(x) + ε, ε ~ N(0, e^{g(x)}), f and g processes.

With independent Gaussians q(f) and q(g),

    L = Σ_n w_n E_q[−½ log 2π − ½ g_n − ½ (y_n − f_n)² e^{−g_n}] − KL_f − KL_g ≤ log p(y)

Either process sees a likelihood that separates, the other being held:

    f: Gaussian, with weights   λ_n = w_n E e^{−g_n} = w_n e^{−μ_g + s_g²/2}
    g: gamma of shape ½, with   r_n = E (y_n − f_n)² = y_n² − 2 y_n μ_f + μ_f² + s_f²

μ and s² are series on the torus. With the densities of one, y and y² on a grid (`measures.py`), λ,
λy and r have sums as functions of f have: no step sees a row. The two take turns until L settles;
each turn raises L, hyperparameters included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.bounds import Bound
from orthogp.inference.parameters import NO_BELIEFS
from orthogp.inference.separable import Separable, SquaredErrors, VaryingNoise
from orthogp.kernels import Kernel
from orthogp.kernels.terms import KernelChoice
from orthogp.learning.dense import SETTLED, Fitter
from orthogp.learning.problem import Fit, FitSettings, Start
from orthogp.learning.sketches import OFFSET_SD, Sketch
from orthogp.likelihoods.fitting import Data, Prior, SeparableFitter, Stage, UnresolvedError
from orthogp.likelihoods.measures import Measure, RowMeasure, TorusMeasure
from orthogp.likelihoods.variational import ALLOWED_CUT, CutErrors
from orthogp.precision import BlasThreads
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics

Floats = NDArray[np.float64]

#: The kernel of the logarithm of the noise variance.
NOISE_KERNEL = "matern52"

# The smallest noise variance that the sums' own error lets them resolve, relative to the variance
# of y, for each row. It is added to squared errors.
_LEAST_NOISE = 5e-11
# The factor by which that variance is raised where it is still too small.
_RAISE = 10.0
# The noise variance, relative to the variance of y, above which the sums' error plays no part.
_PLAIN_NOISE = 1e-4
# The most turns of both processes.
_MOST_TURNS = 30
# The share of the sums' largest index that the features of f may take twice over: functions of g
# take the rest.
_SHARE = 4


class Process(NamedTuple):
    """Where learning of one process ended, the other being held."""

    fitter: SeparableFitter
    stage: Stage


class Turn(NamedTuple):
    """Where both processes stand: f is the best for g as it is, and `bound` is L."""

    f: Process
    g: Process
    bound: Bound


class VaryingNoiseFitter:
    """Fits a process and the process of its log noise variance to sums of y and y²; see `fit`.

    Parameters
    ----------
    sketch : Sketch
        Of y and (y − shift)².
    scale : float
        What y is divided by.
    rows : Rows, optional
        With y − shift, for passes over the rows where the sums do not reach far enough.
    """

    def __init__(
        self,
        sketch: Sketch,
        scale: float,
        rows: Rows | None,
        settings: FitSettings,
        threads: BlasThreads,
    ) -> None:
        self.num_turns = 0
        self._sketch = sketch
        self._settings = settings
        self._threads = threads
        self._rows = None if rows is None else rows._replace(y=rows.y / scale)
        # The second target is the square of the first, not of the first less some offset.
        units = [0.0, -sketch.shift[1]], [scale, scale**2]
        whole: Any = sketch.statistics
        self.statistics: FourierStatistics = whole.standardised(*units)
        whole = self.statistics
        self._least_noise = _LEAST_NOISE * whole.count
        self._measure: Measure = TorusMeasure(whole, whole.lattice.extent)
        self._squares = self._measure.density(whole.target_sums[1])

    @property
    def plain(self) -> FourierStatistics:
        """The sums of y alone."""
        whole = self.statistics
        first = {"target_sums": whole.target_sums[:1], "yy": whole.yy[:1]}
        return replace(whole, **first, covariate_targets=whole.covariate_targets[:, :1])

    def fit(self, kernel: KernelChoice, noise_kernel: KernelChoice, starts: list[Start]) -> Fit:
        """Return the fit of f, with that of g beside it.

        Parameters
        ----------
        kernel, noise_kernel : KernelChoice
            Of f and of g.
        starts : list of Start
            Where learning with a constant noise variance starts.
        """
        sketch = self._sketch
        constant = Fitter(self.plain, sketch.width, sketch.mean, self._settings, self._threads)
        begun = constant.fit(starts)
        while True:
            try:
                return self._fit(kernel, noise_kernel, begun)
            except UnresolvedError:
                if max(begun.noise_variance, self._least_noise) > _PLAIN_NOISE:
                    raise
                # Hardly any noise: the error of the sums takes its place.
                self._least_noise *= _RAISE

    def _fit(self, kernel: KernelChoice, noise_kernel: KernelChoice, begun: Fit) -> Fit:
        """Return the fit from where a constant noise variance has led."""
        choices = kernel, noise_kernel
        try:
            turn = self._settled(self._begin(*choices, begun), *choices)
            cut = self._cut(turn)
            if max(cut) <= ALLOWED_CUT or self._rows is None:
                return self._finished(turn, cut)
        except UnresolvedError:
            if self._rows is None or begun.noise_variance < _PLAIN_NOISE:
                raise
        # The sums do not reach far enough: the rows take their place.
        lattice, threads = self.statistics.lattice, self._threads.num_threads
        self._measure = RowMeasure(lattice, self._rows, threads)
        self._squares = self._measure.targets * self._rows.y[:, 0]
        turn = self._settled(self._begin(*choices, begun), *choices)
        return self._finished(turn, CutErrors(0.0, 0.0))

    # ------------------------------------------------------------------ turns

    def _begin(self, kernel: KernelChoice, noise_kernel: KernelChoice, begun: Fit) -> Turn:
        """Return both processes after the first turn, from a constant noise variance."""
        log_noise = float(np.log(max(begun.noise_variance, self._least_noise)))
        zero = np.zeros_like(self._measure.weights)
        first = self._fitter_of_f(log_noise + zero, zero).stage(kernel, begun.kernel)
        fitter = self._fitter_of_g(first, log_noise)
        return self._turn(Process(fitter, fitter.stage(noise_kernel)), kernel, begun.kernel)

    def _settled(self, turn: Turn, kernel: KernelChoice, noise_kernel: KernelChoice) -> Turn:
        """Return both processes when a turn gains nothing any more."""
        for _ in range(_MOST_TURNS):
            before, stage = turn.bound.total, turn.g.stage
            fitter = self._fitter_of_g(turn.f.stage, stage.bound.model.offset)
            try:
                g = Process(fitter, fitter.stage(noise_kernel, stage.kernel))
                turn = self._turn(g, kernel, turn.f.stage.kernel)
            except UnresolvedError:
                # The last turn was resolved, and stays.
                break
            self.num_turns += 1
            if turn.bound.total - before < SETTLED or self._settings.late():
                break
        return turn

    def _turn(self, g: Process, kernel: KernelChoice, learned: Kernel) -> Turn:
        """Return the best f for g, from a kernel that was learned before."""
        fitter = self._fitter_of_f(*self._marginals(g.stage))
        stage = fitter.stage(kernel, learned)
        bound = stage.q.bound
        bound = bound._replace(complexity=bound.complexity + g.stage.q.bound.complexity)
        return Turn(Process(fitter, stage), g, bound)

    def _fitter_of_f(self, mean: Floats, variance: Floats) -> SeparableFitter:
        """Return the fitter of f, for mean and variance of g at the measure's points."""
        measure = self._measure
        precision = np.exp(-mean + variance / 2)
        extent = np.maximum(self.statistics.lattice.extent // _SHARE, 1)
        sums = measure.sums(extent, precision * measure.weights, precision * measure.targets)
        yy = float(np.sum(precision * self._squares))
        count = self.statistics.count
        sums = replace(sums, rows=count, yy=np.array([yy]))
        constant = -0.5 * (yy + count * np.log(2 * np.pi) + np.sum(measure.weights * mean))
        prior = Prior(self._sketch.mean, 0.0)
        return self._fitter(Data(sums, np.array([constant])), VaryingNoise(), prior, self._settings)

    def _fitter_of_g(self, stage: Stage, offset: float) -> SeparableFitter:
        """Return the fitter of g, for f as it stands."""
        measure = self._measure
        mean, variance = self._marginals(stage)
        squares = self._squares - 2 * mean * measure.targets
        squares += (mean**2 + variance + self._least_noise) * measure.weights
        extent = np.maximum(self.statistics.lattice.extent // 2, 1)
        sums = replace(self.plain.within(extent), yy=np.array([3 * np.sum(squares)]))
        sums = replace(sums, target_sums=measure.sums(extent, squares, squares).target_sums)
        prior = Prior(self._sketch.mean._replace(offset_variance=OFFSET_SD**2), offset)
        # Whatever is known of f beforehand, nothing is known of g.
        settings = replace(self._settings, learn=True, beliefs=NO_BELIEFS)
        rows = None
        if isinstance(measure, RowMeasure):
            assert self._rows is not None
            rows = self._rows._replace(y=(squares / measure.weights)[:, None])
        return self._fitter(Data(sums, np.zeros(0), rows), SquaredErrors(), prior, settings)

    def _fitter(
        self, data: Data, likelihood: Separable, prior: Prior, settings: FitSettings
    ) -> SeparableFitter:
        layout = replace(self._sketch, statistics=data.statistics).layout(settings)
        return SeparableFitter(data, likelihood, layout, prior, settings, self._threads)

    def _marginals(self, stage: Stage, measure: Measure | None = None) -> tuple[Floats, Floats]:
        """Return mean and variance of a process at the points of a measure."""
        model = stage.bound.model
        steps = np.rint(model.features.lattice.spacing / self.statistics.lattice.spacing)
        series = [_spread(own, steps.astype(np.int64)) for own in stage.q.series]
        mean, variance = (self._measure if measure is None else measure).values(series)
        left_out = model.features.residual(stage.kernel)
        return mean + model.offset, np.maximum(variance, 0.0) + left_out

    # ------------------------------------------------------------------ the end

    def _cut(self, turn: Turn) -> CutErrors:
        """Return what frequencies of the weights E e^{−g} beyond the sums can do to f.

        As in `VariationalBound.cut_errors`; what is cut of squared errors is far less.
        """
        measure = self._measure
        if not isinstance(measure, TorusMeasure):
            return CutErrors(0.0, 0.0)
        finer = measure.finer()
        mean, variance = self._marginals(turn.g.stage, finer)
        precision = np.exp(-mean + variance / 2)
        model, total = turn.f.stage.bound.model, turn.f.stage.q.total_covariance
        steps = np.rint(model.features.lattice.spacing / self.statistics.lattice.spacing)
        reach = model.reach * steps.astype(np.int64)
        targets = float(np.abs(self.statistics.target_sums[0]).max())
        slope = finer.cut(precision, measure.reach - reach) * targets
        curvature = finer.cut(precision, measure.reach - 2 * reach) * measure.total
        return CutErrors(2 * slope * np.sqrt(total), 2 * curvature * total)

    def _finished(self, turn: Turn, cut: CutErrors) -> Fit:
        fit, noise = (process.fitter.finish(process.stage) for process in turn[:2])
        before = fit.certificate
        errors = [before.mean_error + cut.mean, before.variance_error + cut.variance]
        rows = not isinstance(self._measure, TorusMeasure)
        return replace(
            fit,
            elbo=turn.bound,
            tightened=turn.bound,
            certificate=before._replace(
                lower=turn.bound.total,
                mean_error=max(errors[0], noise.certificate.mean_error),
                variance_error=max(errors[1], noise.certificate.variance_error),
                typical_error=max(errors[1], noise.certificate.variance_error),
            ),
            status=f"Of f: {fit.status} Of the log noise variance: {noise.status}",
            converged=fit.converged and noise.converged,
            passes=1 + self.num_turns if rows else 1,
            noise_variance=float(np.exp(turn.g.stage.bound.model.offset)),
            noise=noise,
        )


def _spread(series: NDArray[np.complex128], steps: NDArray[np.int64]) -> NDArray[np.complex128]:
    """Return a series on every `steps`-th frequency as one on all of them."""
    wide = np.zeros([(n - 1) * k + 1 for n, k in zip(series.shape, steps, strict=True)], complex)
    wide[tuple(slice(None, None, k) for k in steps)] = series
    return wide
