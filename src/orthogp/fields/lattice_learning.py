"""Lattice features: whether a dense or an iterative solver learns them, and from where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features.series import lattice_masses
from orthogp.fields.fitting import IterativeFitter
from orthogp.fields.windows import choose_windows, neighbour_variance, window_start
from orthogp.inference.parameters import learned_slots
from orthogp.inference.threads import BlasThreads
from orthogp.learning.dense import Fitter, Stage
from orthogp.learning.limits import parameter_limits
from orthogp.learning.problem import Fit, FitSettings, Progress, Start
from orthogp.learning.sketches import Sketch
from orthogp.rows import Rows, Units
from orthogp.statistics import FourierStatistics, FrequencyLattice

# With fewer rows the dense solver takes as many features as there are rows.
_FEWEST_ROWS = 3000
# More features than this, if asked for, are the iterative solver's: dense, they take minutes.
_MOST_DENSE = 10_000
# With fewer rows than this, features are as many as can be from the first stage on.
_FEWEST_CHECKED = 300
# Noise above the neighbours' differences by this factor is structure that features did not reach.
_SUSPICIOUS = 1.25
# How many times as many modes as the iterative solver takes may be wanted for it to be tried beside
# another engine in three columns, where it takes a quarter of an hour.
_WORTH_A_TRIAL = 8.0


class RowSums:
    """The statistics of the standardised targets on any lattice, as long as there are rows.

    `sketch` is that of the last lattice.
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

    A first stage with few features is cheap. If it ends with more noise than neighbouring rows
    differ by, or asks for more features than the dense solver takes, exact GPs on windows of the
    rows tell which hyperparameters the data have at their own resolution, and those decide.
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
        self._sums = sums
        self._settings = settings
        self._num_threads = num_threads
        self._progress = Progress()

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        try:
            return self._fit(starts)
        finally:
            self._progress.done()

    def fit_if_resolved(self, starts: list[Start]) -> Fit | str:
        """Return the dense fit, or why not.

        It serves if it certifies, with no more noise than neighbouring rows differ by.
        """
        assert self._rows is not None
        dense = self._dense()
        stage = dense.begin(starts)
        near, _ = choose_windows(self._rows, self._sketch.width)
        if stage.best.noise_variance > _SUSPICIOUS * neighbour_variance(near):
            return "a dense lattice takes for noise what neighbouring rows share"
        if not self._dense_suffices(dense, stage.best):
            return "the data ask for more features than a dense lattice has"
        fit = dense.complete(stage)
        if fit.converged or self._settings.late():
            return fit
        return "learning with a dense lattice did not settle"

    def fit_from(self, learned: Start, starts: list[Start]) -> Fit | str:
        """Return the fit from what another engine has learned, or why that cannot be better."""
        try:
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
            return self._fit(starts)
        finally:
            self._progress.done()

    def _dense(self) -> Fitter:
        return Fitter(
            self._statistics,
            self._sketch.width,
            self._sketch.mean,
            self._settings,
            BlasThreads(self._num_threads),
            self._sketch.layout(self._settings),
        )

    def _fit(self, starts: list[Start]) -> Fit:
        settings = self._settings
        if self._sketch.iterative:
            return self._iterative().fit(starts[0], self._statistics.lattice)
        dense = self._dense()
        if not self._may_iterate(starts[0]):
            return self._dense_fit(dense, starts)
        if not settings.learn:
            if settings.solver == "auto" and self._dense_suffices(dense, starts[0]):
                return dense.fit(starts)
            return self._iterative().fit(starts[0])
        stage = dense.begin(starts)
        start = self._at_full_resolution(dense, stage, starts)
        if settings.solver == "auto" and self._dense_suffices(dense, start or stage.best):
            return self._better(dense, stage, start)
        return self._iterative().fit(start or stage.best, rival=_rival(starts, start))

    def _dense_fit(self, dense: Fitter, starts: list[Start]) -> Fit:
        """Return the dense fit, taken up again if few features mistook short scales for noise."""
        settings = self._settings
        few = self._statistics.rows < _FEWEST_CHECKED
        if few or self._rows is None or not settings.learn or settings.num_features is not None:
            return dense.fit(starts)
        stage = dense.begin(starts)
        windows = choose_windows(self._rows, self._sketch.width)
        suspicious = stage.best.noise_variance > _SUSPICIOUS * neighbour_variance(windows[0])
        start = self._start_of_windows(stage, starts, *windows) if suspicious else None
        return self._better(dense, stage, start)

    def _better(self, dense: Fitter, stage: Stage, start: Start | None) -> Fit:
        """Return the dense fit from the first stage or, if that is better, from another start."""
        plain = dense.complete(stage)
        if start is None or self._settings.late():
            return plain
        return max(plain, dense.resume(start), key=lambda fit: fit.elbo.total)

    def _may_iterate(self, start: Start) -> bool:
        settings = self._settings
        if settings.solver == "dense":
            return False
        smooth = self._reaches_everywhere(start)
        if settings.solver == "iterative":
            if not smooth:
                raise InputError(
                    "The iterative solver needs a kernel that acts on all columns jointly: use "
                    'solver="dense", or another kernel.'
                )
            if self._rows is None:
                raise InputError("The iterative solver needs all rows at once: use fit.")
            return True
        automatic = settings.num_features is None or self._very_many
        enough = self._rows is not None and self._statistics.rows >= _FEWEST_ROWS
        return automatic and smooth and enough

    @property
    def _very_many(self) -> bool:
        """Whether more features are asked for than a dense matrix should have."""
        asked = self._settings.num_features
        return asked is not None and asked > _MOST_DENSE

    def _reaches_everywhere(self, start: Start) -> bool:
        """Whether the kernel has power at every frequency, not on planes of them only."""
        lattice = self._statistics.lattice
        diagonal = np.ones((1, lattice.num_dims), dtype=np.int64)
        return bool(lattice_masses(start.kernel, lattice, diagonal)[0] > 0)

    def _dense_suffices(self, dense: Fitter, start: Start) -> bool:
        """Whether the dense solver can certify, or has room for all that the iterative would take.

        The latter has the shorter period, estimated variances and wider bounds.
        """
        if self._very_many:
            return False
        most = self._settings.max_features
        if dense.certified_features(start) <= most:
            return True
        return self._iterative().choose(start).num_modes <= most

    def _at_full_resolution(self, dense: Fitter, stage: Stage, starts: list[Start]) -> Start | None:
        """Return what windows of the rows say, or `None` if the first stage has seen all."""
        assert self._rows is not None
        near, wide = choose_windows(self._rows, self._sketch.width)
        suspicious = stage.best.noise_variance > _SUSPICIOUS * neighbour_variance(near)
        if not suspicious and self._settings.solver == "auto":
            if self._dense_suffices(dense, stage.best):
                return None
        return self._start_of_windows(stage, starts, near, wide)

    def _start_of_windows(
        self,
        stage: Stage,
        starts: list[Start],
        near: list[Rows],
        wide: list[Rows],
    ) -> Start:
        """Return the hyperparameters that exact GPs on windows of the rows have."""
        found, noise = stage.best, neighbour_variance(near)
        self._progress.say("learning from windows of the rows")
        quieter = [
            Start(start.kernel, min(start.noise_variance, share * noise))
            for start in (found, *_extremes(starts))
            for share in (0.9, 0.1)
        ]
        slots = learned_slots(found.kernel)

        def limits(floor: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            return parameter_limits(
                found.kernel,
                slots,
                self._statistics.lattice,
                self._sketch.width,
                self._settings.wrap_tolerance,
                floor,
            )

        return window_start(
            quieter,
            near,
            wide,
            self._sketch.mean,
            limits,
            repeats=self._settings.repeats,
            out_of_time=self._settings.late,
            num_threads=self._num_threads,
        )

    def _iterative(self) -> IterativeFitter:
        sketch = self._sketch
        return IterativeFitter(
            self._sums,
            self._statistics.count,
            sketch.extent,
            sketch.width,
            sketch.mean,
            self._settings,
            self._num_threads,
            self._progress,
        )


def _rival(starts: list[Start], learned: Start | None) -> Start | None:
    """Return a user's own kernel with the noise that windows found, if the user gave one."""
    own = next((start for start in starts if start.from_user), None)
    if own is None or learned is None:
        return None
    return Start(own.kernel, learned.noise_variance)


def _extremes(starts: list[Start]) -> list[Start]:
    """Return those of each shape with the most and the least noise, and so the extreme variances.

    Windows of the rows set a noise of their own.
    """
    noises: dict[int, list[float]] = {}
    for start in starts:
        noises.setdefault(start.shape, []).append(start.noise_variance)
    return [
        start
        for start in starts
        if start.noise_variance in (min(noises[start.shape]), max(noises[start.shape]))
    ]
