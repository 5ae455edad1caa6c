"""From labelled rows to a fitted model of two classes, in passes over them or by mini-batches.

For columns that add up, linear mean functions, Pólya-Gamma's bound, and functions so rough that
features are scarce; `one_pass.py` has the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.passes import Pass, SiteAscent, SiteModel
from orthogp.classification.sites import LogisticSites, Sites
from orthogp.errors import InputError
from orthogp.features import resolve_features
from orthogp.features.base import prior_variance
from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.parameters import NO_BELIEFS, learned_slots, pack, stretched
from orthogp.kernels import Kernel
from orthogp.kernels.terms import KernelChoice
from orthogp.learning.dense import (
    HEADROOM_FIRST,
    HEADROOM_LAST,
    MOST_FIRST_FEATURES,
    SETTLED,
    Fitter,
)
from orthogp.learning.layout import Limits
from orthogp.learning.limits import NOISE_FLOOR
from orthogp.learning.optimise import Budget, curvature_at, refine
from orthogp.learning.problem import Fit, FitSettings, describe_limits, listed_limits
from orthogp.learning.sketches import Sketch
from orthogp.learning.starts import additive_starts, starts_for_kernel, starts_for_name
from orthogp.precision import BlasThreads, within_precision
from orthogp.rows import Domain, Rows
from orthogp.statistics import ComponentLattice
from orthogp.stochastic.bound import (
    BATCH_SIZE,
    NUM_FEATURES,
    Learned,
    StochasticModel,
    natural_step_for,
    train_stochastic,
)
from orthogp.stochastic.training import TrainingSettings

#: The trace term, in nats, that the final features may leave.
ALLOWED_TRACE = 0.05
#: log p(y) of labels is at most zero.
LARGEST_EVIDENCE = Bound(0.0, 0.0, 0.0)

# Lengthscales to start from, relative to those that the regression finds.
_STRETCHES = (1.0, 0.5, 0.25)
# The same for an additive model: shorter lengthscales do not pay off by a shorter period there.
_ADDITIVE_STRETCHES = (1.0, 0.5)
# Prior variances of the latent function to start from.
_VARIANCES = (1.0, 6.0, 36.0)
# The share of the time that the regression may take.
_SHARE = 0.25
# The most rows of which equal ones are merged.
_FEW_ROWS = 2000
# Passes by which starting values are compared.
_FIRST_PASSES = 6
# A change of features that gains less than this share of what they still cost is the last.
_WORTH = 0.02
# The fewest features to end with, unless their number is given.
_FEWEST_FEATURES = 33

Components = tuple[ComponentLattice, ...]


def learn_labels(
    sketch: Sketch,
    rows: Rows,
    choice: KernelChoice,
    sites: type[Sites],
    settings: FitSettings,
    num_threads: int,
) -> Fit:
    """Return the model learned from labels ±1 in passes over the rows.

    Parameters
    ----------
    sketch : Sketch
        The sums of the rows, on the lattices that features may be chosen from.
    choice : KernelChoice
        The kernel, its columns counted among those of the rows.
    sites : type
        How labels become a regression.
    """
    threads = BlasThreads(num_threads)
    kernels = _first_kernels(sketch, choice, settings, threads)
    if not sketch.layout(settings).joint and len(rows.X) <= _FEW_ROWS:
        # With more parameters than rows can determine, rounding decides where a search ends. It
        # should not depend on the order of the rows, nor on how often each is written.
        rows = rows.merged()
    with within_precision():
        return LogisticFitter(rows, sketch, settings, threads, sites).fit(kernels)


def _first_kernels(
    sketch: Sketch, choice: KernelChoice, settings: FitSettings, threads: BlasThreads
) -> list[Kernel]:
    """Return kernels to start from: the user's, and those around that of a regression on labels.

    The regression takes all features, which costs no pass: the kernel learned with few can be far
    off. If even all are few, shorter lengthscales, whose period is shorter too, may do better.
    """
    if not settings.learn:
        return [choice.kernel]
    layout = sketch.layout(settings)
    given = []
    if not choice.from_name:
        given = [start.kernel for start in starts_for_kernel(choice.kernel, 0.0)]
        if layout.joint:
            return given
    labels = sketch.standardised(sketch.units(shared=False))
    begin = starts_for_name if layout.joint else additive_starts
    starts = begin(choice.kernel, labels, sketch.width)  # type: ignore[arg-type]
    if settings.deadline is not None:
        now = time.monotonic()
        settings = replace(settings, deadline=now + _SHARE * (settings.deadline - now))
    # Bounds are those of the latent function, not of labels.
    settings = replace(settings, beliefs=NO_BELIEFS)
    regression = Fitter(labels, sketch.width, sketch.mean, settings, threads, layout)
    kernel = regression.fit(starts).kernel
    unit = kernel.scaled(1 / prior_variance(kernel))
    stretches = _STRETCHES if layout.joint else _ADDITIVE_STRETCHES
    # The more parameters, the less can a user's guess alone be relied on.
    return [
        *given,
        *(stretched(unit, by).scaled(variance) for by in stretches for variance in _VARIANCES),
    ]


@dataclass(frozen=True)
class Stage:
    """Where learning with one feature set ended."""

    last: Pass
    model: SiteModel
    components: Components
    curvature: NDArray[np.float64] | None = None
    at_limit: tuple[str, ...] = ()
    converged: bool = True

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.model.features.num_features

    @property
    def size(self) -> int:
        """The number of features that were selected: all but the slopes of a mean function."""
        mean = self.model.features.mean
        return self.num_features - (len(mean.origin) if mean.slope_variance else 0)


class LogisticFitter:
    """Fits lattice features to labelled rows; see `fit`.

    Parameters
    ----------
    rows : Rows
        With labels ±1.
    sketch : Sketch
        The sums of the rows, on the lattices that features may be chosen from.
    sites : type
        How labels become a regression: by the likelihood's expectation, or Pólya-Gamma's bound.

    Attributes
    ----------
    last : Pass or None
        The pass that the last fit ended with.
    """

    def __init__(
        self,
        rows: Rows,
        sketch: Sketch,
        settings: FitSettings,
        threads: BlasThreads | None = None,
        sites: type[Sites] = LogisticSites,
    ) -> None:
        self.rows = rows
        self.settings = settings
        self._sketch = sketch
        self._layout = sketch.layout(settings)
        self._threads = BlasThreads(1) if threads is None else threads
        self._num_passes = 0
        self._kind = sites
        self.last: Pass | None = None

    def fit(self, kernels: list[Kernel]) -> Fit:
        """Return the fit from the best of some kernels."""
        flat = self._kind.flat(self.rows)
        if not self.settings.learn:
            components = self._layout.thinned(kernels[0], 1.0)
            size = self._wanted_features(kernels[0], flat, components)
            return self._finished(self._converged(kernels[0], flat, components, size))
        starts = [self._start(kernel, flat) for kernel in kernels]
        best = max(starts, key=lambda stage: stage.last.bound)
        best = self._learned(best, best.components, best.size)
        best = self._settled(best, self.settings.most_features)
        exact = self._ascended(best.last.kernel, best.last.sites, best.model)
        return self._finished(replace(best, last=exact))

    # ------------------------------------------------------------------ stages

    def _start(self, kernel: Kernel, sites: Sites) -> Stage:
        """Return a stage of a few passes by which to compare kernels."""
        components = self._layout.thinned(kernel, HEADROOM_FIRST)
        few = min(self._layout.first_features, MOST_FIRST_FEATURES)
        size = np.clip(self._wanted_features(kernel, sites, components), few, MOST_FIRST_FEATURES)
        size = min(int(size), self.settings.most_features)
        return self._converged(kernel, sites, components, size, max_passes=_FIRST_PASSES)

    def _settled(self, best: Stage, most: int) -> Stage:
        """Return the stage whose lattice and features are those that its kernel asks for."""
        for _ in range(8):
            components, wanted = self._wanted(best)
            wanted = min(wanted, most)
            # In steps of at most four: most of the way is cheap with few features.
            size = min(wanted, 4 * best.size)
            stage = self._learned(best, components, size)
            gain = stage.last.bound - best.last.bound
            if gain > 0 or size < wanted:
                best = stage
            worth = max(SETTLED, -_WORTH * stage.last.elbo.trace)
            if self.settings.late() or (size == wanted and gain < worth):
                break
        return best

    def _converged(
        self, kernel: Kernel, sites: Sites, components: Components, size: int, **limit: int
    ) -> Stage:
        """Return the stage that leaves the kernel as it is."""
        model = self._select(kernel, components, size)
        return Stage(self._ascended(kernel, sites, model, **limit), model, components)

    def _ascended(self, kernel: Kernel, sites: Sites, model: SiteModel, **limit: int) -> Pass:
        ascent = self._ascent(kernel, sites, model)
        last = ascent.ascend(kernel, **limit)
        self._num_passes += ascent.num_passes
        return last

    def _learned(self, previous: Stage, components: Components, size: int) -> Stage:
        """Return the stage that learns the kernel, from where the previous one ended."""
        kernel, sites = previous.last.kernel, previous.last.sites
        model = self._select(kernel, components, size)
        ascent = self._ascent(kernel, sites, model)
        lower, upper = self._limits(kernel, components)
        vector = np.clip(pack(kernel, ascent.slots), lower, upper)
        if len(vector) == 0:
            return Stage(self._ascended(kernel, sites, model), model, components)
        curvature = previous.curvature
        if curvature is None:
            curvature = self._curvature(ascent, vector, (lower, upper))
        late = self.settings.late
        found = refine(ascent, vector, (lower, upper), curvature, Budget(20, late))
        self._num_passes += ascent.num_passes
        at_limit = self._layout.names_at_limit(kernel, components, found.x, (lower, upper))
        return Stage(ascent.best, model, components, found.curvature, at_limit, found.converged)

    def _ascent(self, kernel: Kernel, sites: Sites, model: SiteModel) -> SiteAscent:
        return SiteAscent(model, kernel, sites, threads=self._threads, late=self.settings.late)

    def _select(self, kernel: Kernel, components: Components, size: int) -> SiteModel:
        """Return the model with `size` features, those of the largest prior variances."""
        features = self._layout.select(kernel, components, size, self._sketch.mean)
        return SiteModel(features, self._sketch.statistics)

    def _limits(self, kernel: Kernel, components: Components) -> Limits:
        """Return the limits of the kernel's log parameters."""
        limits = self._layout.limits(kernel, components, NOISE_FLOOR)
        lower, upper = self.settings.beliefs.within(learned_slots(kernel), limits)
        # The last are those of a noise variance, which is one here.
        return lower[:-1], upper[:-1]

    def _curvature(
        self, ascent: SiteAscent, vector: NDArray[np.float64], limits: Limits
    ) -> NDArray[np.float64]:
        """Return the curvature of the bound at log parameters, to begin with.

        Differences of gradients would cost several passes over the rows for each of an additive
        model's many parameters: it takes the expected curvature with the sites held.
        """
        _, gradient = ascent(vector)
        if self._layout.joint:
            return curvature_at(ascent, vector, gradient, *limits)
        return ascent.last.objective.curvature(np.append(vector, 0.0))[:-1, :-1]

    # ------------------------------------------------------------------ choices

    def _wanted(self, stage: Stage) -> tuple[Components, int]:
        """Return the components and the number of features to go on with."""
        components = self._layout.thinned(stage.last.kernel, HEADROOM_LAST)
        if self._layout.joint and self._scarce(stage, components):
            # Longer lengthscales are not worth a longer period, on which features reach less far.
            components = self._layout.no_longer(components, stage.components)
        return components, self._wanted_features(stage.last.kernel, stage.last.sites, components)

    def _scarce(self, stage: Stage, components: Components) -> bool:
        """Return whether the lattices take more features than there may be."""
        wanted = self._sufficient(stage.last.kernel, stage.last.sites, components)
        return wanted > self.settings.most_features

    def _wanted_features(self, kernel: Kernel, sites: Sites, components: Components) -> int:
        """Return the number of features on some lattices to end with."""
        if self.settings.num_features is not None:
            return self.settings.num_features
        wanted = max(self._sufficient(kernel, sites, components), _FEWEST_FEATURES)
        return min(wanted, self.settings.max_features)

    def _sufficient(self, kernel: Kernel, sites: Sites, components: Components) -> int:
        """Return how many features keep the trace term within what is allowed."""
        allowed = 2 * ALLOWED_TRACE / sites.precision_total
        return self._layout.required_features(kernel, components, allowed)[0]

    # ------------------------------------------------------------------ results

    def _finished(self, stage: Stage) -> Fit:
        self.last = last = stage.last
        model = stage.model
        moments = last.objective.moments(last.kernel)
        return Fit(
            kernel=last.kernel,
            noise_variance=1.0,
            elbo=last.elbo,
            tightened=last.tightened,
            upper=LARGEST_EVIDENCE,
            certificate=Certificate(last.elbo.total, LARGEST_EVIDENCE.total, kind="estimate"),
            status=self._status(stage),
            converged=stage.converged,
            num_evaluations=self._num_passes,
            passes=self._num_passes,
            rows=self.rows.total_weight,
            posterior=lambda domain, num_threads: model.posterior(
                last.kernel, moments, domain, num_threads
            ),
            num_features=stage.num_features,
            features=model.features,
            period=model.period,
        )

    def _status(self, stage: Stage) -> str:
        """Return how the fit ended and what to do about it."""
        m, loss = stage.num_features, -stage.last.elbo.trace
        sentences = [f"{m} features cost the bound {loss:.2g} nats."]
        if self.settings.late():
            sentences.append("The time ran out: raise max_seconds to go on.")
        elif loss > 2 * ALLOWED_TRACE and self.settings.num_features is None:
            sentences.append("A larger max_features or a smoother kernel would lose less.")
        elif loss > 2 * ALLOWED_TRACE:
            sentences.append('More, or num_features="auto", would lose less.')
        if not (stage.converged or self.settings.late()):
            sentences.append(
                "Learning stopped before it settled: the hyperparameters may still move a little."
            )
        if stage.at_limit and not self._layout.joint:
            sentences += describe_limits(stage.at_limit)
        elif stage.at_limit:
            scarce = self._scarce(stage, stage.components)
            remedy = "give a larger `domain` or another mean function if that matters"
            remedy = "more features allow a longer period" if scarce else remedy
            sentences.append(f"The {listed_limits(stage.at_limit)} ended at a limit: {remedy}.")
        return " ".join(sentences)


# ---------------------------------------------------------------------- mini-batches

#: The number of rows from which hyperparameters to start from are learned, in passes.
START_ROWS = 2000
# The most steps of training, unless the user says otherwise.
_MOST_STEPS = 5000
# The number of steps of a block, unless the user says otherwise.
_BLOCK = 40


def fit_batches(
    rows: Rows,
    box: Domain,
    kernel: Kernel,
    *,
    offset: bool,
    settings: FitSettings,
    training: TrainingSettings | None,
) -> Fit:
    """Return the model that Trig features learn from random mini-batches of rows with labels ±1.

    Parameters
    ----------
    box : Domain
        What the features are to cover.
    offset : bool
        Whether f has a constant that is learned.
    """
    if rows.weights is not None:
        raise InputError(
            "Mini-batches take no sample_weight: repeat the rows that count more often."
        )
    if training is None:
        batch_size = BATCH_SIZE if len(rows.X) > BATCH_SIZE else None
        training = TrainingSettings(
            batch_size=batch_size,
            natural=natural_step_for(batch_size),
            max_steps=_MOST_STEPS,
            block=_BLOCK,
        )
    if settings.deadline is not None:
        left = max(settings.deadline - time.monotonic(), 0.0)
        training = replace(training, max_seconds=left)
    num_dims = rows.X.shape[1]
    wanted = settings.num_features or min(NUM_FEATURES[num_dims], settings.max_features)
    features = resolve_features("trig", wanted, num_dims)
    assert isinstance(features, SpectralFeatures)
    learn: list[Learned] = ["kernel", "dilation"] if settings.learn else []
    if offset:
        learn.append("offset")
    labels = rows.y[:, 0]
    share = float(np.mean(labels > 0))
    model = StochasticModel(
        features.placed(kernel, box.lower, box.upper),
        kernel,
        covariance="dense",
        offset=float(np.log(share / (1 - share))) if offset else 0.0,
        likelihood="logistic",
        learn=learn,
    )
    fit = train_stochastic(rows.X, (labels + 1) / 2, model, training)
    last = fit.last
    batch = len(rows.X) if training.batch_size is None else training.batch_size
    status = (
        f"Training ended after {last.step:,} steps: {fit.status}. The bound is known to "
        f"± {last.standard_error:.2g} nats."
    )
    bound = Bound(last.elbo, 0.0, 0.0)
    # How many times all rows went into the steps.
    passes = int(np.ceil(last.step * batch / len(rows.X)))
    return Fit(
        kernel=fit.kernel,
        noise_variance=1.0,
        elbo=bound,
        tightened=bound,
        upper=LARGEST_EVIDENCE,
        certificate=Certificate(bound.total, LARGEST_EVIDENCE.total, kind="estimate"),
        status=status,
        converged=fit.converged,
        num_evaluations=passes,
        passes=passes,
        rows=float(len(rows.X)),
        posterior=fit.posterior,
        num_features=fit.features.num_features,
        features=fit.features,
    )
