"""Lattice features: whether a dense or an iterative solver learns them, and from where.

Starting values come from windows of the data, where an exact GP is cheap. A few hundred rows around
some centres show the short scales and the noise at the resolution of the data, rows from all over
the domain show the long scales. The sum of their exact log marginal likelihoods is a composite
likelihood: no lattice and no number of features enters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree

from orthogp.errors import InputError
from orthogp.exact.process import ExactObjective
from orthogp.features import MeanPrior
from orthogp.features.series import lattice_masses
from orthogp.fields.fitting import IterativeFitter
from orthogp.fields.system import Reals
from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import Kernel
from orthogp.learning.dense import Fitter, Stage
from orthogp.learning.limits import NOISE_FLOOR, parameter_limits
from orthogp.learning.optimise import Box, Budget, curvature_at, maximise, resolved
from orthogp.learning.problem import Fit, FitSettings, Progress, Start
from orthogp.learning.sketches import Sketch
from orthogp.precision import BlasThreads, in_threads, one_thread
from orthogp.rows import Rows, Units
from orthogp.statistics import FourierStatistics, FrequencyLattice

# The fewest rows for the iterative solver: with fewer, the dense one takes a feature for each row.
_FEWEST_ROWS = 3000
# The most features, if asked for, of the dense solver: more take minutes.
_MOST_DENSE = 10_000
# The fewest rows for which a dense fit is checked by windows: with fewer, the first stage has all
# features already.
_FEWEST_CHECKED = 300
# The ratio of the noise variance to the neighbours' differences above which the features have taken
# structure for noise.
_SUSPICIOUS = 1.25
# The largest ratio of wanted modes to modes of the lattice for which the iterative solver is tried
# beside another engine in three columns, where a fit takes a quarter of an hour.
_WORTH_A_TRIAL = 8.0
# The least noise variance to start from, where neighbours of equal targets show none.
_LEAST_NOISE = 1e-12
# The number of rows in a window.
_WINDOW_ROWS = 400
# The number of windows around a centre.
_NEAR_WINDOWS = 5
# The number of windows over the whole domain.
_WIDE_WINDOWS = 2
# The gain of an iteration, in nats, below which learning from windows ends.
_SETTLED = 0.1
# The most rows, from the first on, among which neighbours are searched for.
_MOST_SEARCHED = 5_000_000


class RowSums:
    """The statistics of the standardised targets on any lattice, as long as there are rows.

    `sketch` is the sketch on the last lattice.
    """

    def __init__(self, sketch: Sketch, units: Units, rows: Rows | None, num_threads: int) -> None:
        self.sketch = sketch
        self._units = units
        self._rows = rows
        self._num_threads = num_threads

    def __call__(self, lattice: FrequencyLattice) -> FourierStatistics:
        """Return the statistics, by a pass over the rows unless they are at hand."""
        if lattice != self.sketch.statistics.parts[0].lattice:
            if self._rows is None:
                raise InputError("The iterative solver needs all rows at once: use fit.")
            self.sketch = self.sketch.summed(lattice, self._rows, self._num_threads)
        return self.sketch.standardised(self._units)


class LatticeLearner:
    """Chooses the solver, and fits.

    A first stage with few features is cheap. If its noise variance exceeds the differences of
    neighbouring rows, or if it needs more features than the dense solver takes, hyperparameters
    from exact GPs on windows of the rows decide.
    """

    def __init__(
        self,
        sketch: Sketch,
        statistics: FourierStatistics,
        rows: Rows | None,
        sums: RowSums,
        settings: FitSettings,
        num_threads: int,
    ) -> None:
        self._sketch = sketch
        self._statistics = statistics
        self._rows = rows
        self._settings = settings
        self._num_threads = num_threads
        self._progress = Progress()
        threads = BlasThreads(num_threads)
        self._dense = partial(
            Fitter,
            statistics,
            sketch.width,
            sketch.mean,
            settings,
            threads,
            sketch.layout(settings),
        )
        self._iterative = partial(
            IterativeFitter, sums, sketch, settings, num_threads, self._progress
        )

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        with self._progress:
            settings, first = self._settings, starts[0]
            if self._sketch.iterative:
                return self._iterative().fit(first, self._statistics.parts[0].lattice)
            dense, may_iterate = self._dense(), self._may_iterate(first)

            def dense_serves(start: Start) -> bool:
                automatic = settings.solver == "auto"
                return not may_iterate or (automatic and self._dense_suffices(dense, start))

            few = self._statistics.rows < _FEWEST_CHECKED
            unchecked = few or self._rows is None or settings.num_features is not None
            if not settings.learn or (unchecked and not may_iterate):
                return dense.fit(starts) if dense_serves(first) else self._iterative().fit(first)
            stage, windows = dense.begin(starts), self._windows()
            start = None
            if _is_suspicious(stage, windows, self._settings.noise_unit) or not dense_serves(
                stage.best
            ):
                start = self._start_of_windows(stage, starts, windows)
            if dense_serves(start or stage.best):
                return self._better(dense, stage, start)
            return self._iterative().fit(start or stage.best, rival=_rival(starts, start))

    def fit_if_resolved(self, starts: list[Start]) -> Fit | str:
        """Return the dense fit, or why not.

        It serves if it certifies, with no more noise than the differences of neighbouring rows.
        """
        dense = self._dense()
        stage = dense.begin(starts)
        if _is_suspicious(stage, self._windows(), self._settings.noise_unit):
            return "a dense lattice takes for noise the structure that neighbouring rows share"
        if not self._dense_suffices(dense, stage.best):
            return "the data need more features than a dense lattice has"
        fit = dense.complete(stage)
        if fit.converged or self._settings.late():
            return fit
        return "learning with a dense lattice did not settle"

    def fit_from(self, learned: Start, starts: list[Start]) -> Fit | str:
        """Return the fit from hyperparameters of another engine, or why it cannot be better."""
        with self._progress:
            dense = self._dense()
            if self._dense_suffices(dense, learned):
                return dense.resume(learned)
            if not self._may_iterate(learned):
                return "a dense lattice has too few features"
            choice = self._iterative().choose(learned)
            many = choice.wanted > _WORTH_A_TRIAL * choice.num_modes
            if many and len(self._sketch.width) > 2:
                return (
                    f"a lattice would need {choice.wanted:,.0f} features, and takes up to "
                    f"{choice.num_modes:,}"
                )
            return self.fit(starts)

    def _better(self, dense: Fitter, stage: Stage, start: Start | None) -> Fit:
        """Return the better of the dense fits from the first stage and from another start."""
        plain = dense.complete(stage)
        if start is None or self._settings.late():
            return plain
        return max(plain, dense.resume(start), key=lambda fit: fit.elbo.total)

    def _may_iterate(self, start: Start) -> bool:
        settings, lattice = self._settings, self._statistics.parts[0].lattice
        if settings.solver == "dense":
            return False
        # Whether the kernel has power at every frequency, not only on planes of them.
        diagonal = np.ones((1, lattice.num_dims), dtype=np.int64)
        joint = bool(lattice_masses(start.kernel, lattice, diagonal)[0] > 0)
        if settings.solver == "iterative":
            if not joint:
                raise InputError(
                    "The iterative solver needs a kernel that acts on all columns jointly: use "
                    'solver="dense", or another kernel.'
                )
            if self._rows is None:
                raise InputError("The iterative solver needs all rows at once: use fit.")
            return True
        automatic = settings.num_features is None or self._very_many
        enough = self._rows is not None and self._statistics.rows >= _FEWEST_ROWS
        return automatic and joint and enough

    @property
    def _very_many(self) -> bool:
        """Whether more features are asked for than a dense matrix should have."""
        asked = self._settings.num_features
        return asked is not None and asked > _MOST_DENSE

    def _dense_suffices(self, dense: Fitter, start: Start) -> bool:
        """Whether the dense solver can certify, or has room for all modes of the iterative one.

        The iterative solver has a shorter period, estimated variances and wider bounds.
        """
        if self._very_many:
            return False
        most = self._settings.max_features
        if dense.certified_features(start) <= most:
            return True
        return self._iterative().choose(start).num_modes <= most

    def _windows(self) -> Windows:
        assert self._rows is not None
        return choose_windows(self._rows, self._sketch.width)

    def _start_of_windows(self, stage: Stage, starts: list[Start], windows: Windows) -> Start:
        """Return the hyperparameters of exact GPs on windows of the rows."""
        kernel, unit = stage.best.kernel, self._settings.noise_unit
        differences, least = unit * windows.neighbour_variance, unit * _LEAST_NOISE
        self._progress.say("learning from windows of the rows")
        quieter = [
            Start(start.kernel, min(start.noise_variance, max(share * differences, least)))
            for start in (stage.best, *_extremes(starts))
            for share in (0.9, 0.1)
        ]
        slots, beliefs = learned_slots(kernel), self._settings.beliefs
        lattice, tolerance = self._statistics.parts[0].lattice, self._settings.wrap_tolerance

        def limits(floor: float) -> Box:
            width = self._sketch.width
            own = parameter_limits(kernel, slots, lattice, width, tolerance, floor)
            return beliefs.within(slots, own)

        mean, threads = self._sketch.mean, self._num_threads
        return window_start(quieter, windows, mean, limits, self._settings, threads)


def _rival(starts: list[Start], learned: Start | None) -> Start | None:
    """Return the kernel that the user gave, if any, with the noise learned from windows."""
    given = next((start for start in starts if start.from_user), None)
    if given is None or learned is None:
        return None
    return Start(given.kernel, learned.noise_variance)


def _extremes(starts: list[Start]) -> list[Start]:
    """Return the starts of each shape with the most and the least noise.

    These have the extreme variances; windows of the rows determine the noise anew.
    """
    noises: dict[int, list[float]] = {}
    for start in starts:
        noises.setdefault(start.shape, []).append(start.noise_variance)
    return [
        start
        for start in starts
        if start.noise_variance in (min(noises[start.shape]), max(noises[start.shape]))
    ]


class Windows(NamedTuple):
    """Windows of neighbouring rows, and windows of rows from all over the domain."""

    near: list[Rows]
    wide: list[Rows]

    @property
    def neighbour_variance(self) -> float:
        """Half the mean squared difference of nearest neighbours, an upper bound on the noise.

        It estimates σ² + k(0) − k(τ) at the spacing τ of the rows.
        """
        halves = []
        for window in self.near:
            scale = np.ptp(window.inputs, axis=0)
            X = window.inputs / np.where(scale > 0, scale, 1.0)
            neighbours = np.asarray(KDTree(X).query(X, k=2)[1])
            halves.append(np.mean((window.y - window.y[neighbours[:, 1]]) ** 2) / 2)
        return float(np.mean(halves))


def _is_suspicious(stage: Stage, windows: Windows, unit: float) -> bool:
    """Return whether a stage has more noise than the differences of neighbouring rows."""
    return stage.best.noise_variance > _SUSPICIOUS * unit * windows.neighbour_variance


def choose_windows(rows: Rows, width: Reals) -> Windows:
    """Return windows of the rows, the same at every call."""
    rng = np.random.default_rng(0)
    candidates = np.arange(len(rows.X))
    if rows.weights is not None:
        candidates = candidates[rows.weights > 0]
    size = min(_WINDOW_ROWS, len(candidates))
    near = []
    searched = candidates[:_MOST_SEARCHED]
    scaled = rows.inputs[searched] / width
    for centre in rng.choice(len(searched), size=min(_NEAR_WINDOWS, len(searched)), replace=False):
        distance = np.einsum("nd,nd->n", delta := scaled - scaled[centre], delta)
        near.append(rows.part(searched[np.argpartition(distance, size - 1)[:size]]))
    wide = [
        rows.part(rng.choice(candidates, size=size, replace=False)) for _ in range(_WIDE_WINDOWS)
    ]
    return Windows(*([part._replace(X=part.X.astype(float)) for part in w] for w in (near, wide)))


def window_start(
    starts: list[Start],
    windows: Windows,
    mean: MeanPrior,
    limits: Callable[[float], Box],
    settings: FitSettings,
    num_threads: int = 1,
) -> Start:
    """Return the hyperparameters of the largest composite likelihood, from the best of `starts`."""
    near, wide = windows
    composite = partial(CompositeObjective, starts[0].kernel, mean, settings.repeats, num_threads)
    objective = composite(near + wide)
    # Two windows find the neighbourhood of the maximum for two sevenths of the price.
    brief = composite([near[0], wide[0]])
    budget = Budget(30, settings.late, _SETTLED)
    floor = NOISE_FLOOR * settings.noise_unit
    lower, upper = limits(floor)
    vectors = np.unique(
        [
            np.append(pack(s.kernel, objective.slots), np.log(s.noise_variance)).clip(lower, upper)
            for s in starts
        ],
        axis=0,
    )
    with one_thread():
        # With gradients, which are needed anyway: values alone would be compiled separately.
        start = max(vectors, key=lambda vector: brief(vector)[0])
        first = resolved(partial(maximise, brief, budget=budget), start, limits, floor)
        x = first.maximum.x
        curvature = curvature_at(brief, x, brief(x)[1], *first.box)
        curvature *= objective.num_windows / brief.num_windows
        attempt = partial(maximise, objective, budget=budget, curvature=curvature)
        best = resolved(attempt, x, limits, floor).maximum.x
    return Start(objective.kernel_at(best), float(np.exp(best[-1])))


class CompositeObjective:
    """The sum of exact log marginal likelihoods of several windows."""

    def __init__(
        self, kernel: Kernel, mean: MeanPrior, repeats: bool, num_threads: int, windows: list[Rows]
    ) -> None:
        self._num_threads = num_threads
        self._parts = [ExactObjective(kernel, mean, w, repeats=repeats) for w in windows]
        self.slots = self._parts[0].slots
        self.kernel_at = self._parts[0].kernel_at
        self.num_windows = len(windows)

    def __call__(self, vector: Reals) -> tuple[float, Reals]:
        """Return the sum and its gradient."""
        found = in_threads(
            lambda part: part.value_and_gradient(vector), self._parts, self._num_threads
        )
        values, gradients = zip(*found, strict=True)
        return float(sum(values)), np.sum(gradients, axis=0)
