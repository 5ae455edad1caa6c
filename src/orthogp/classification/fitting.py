"""From labelled rows to a fitted classifier: starts, growth of the feature set, and a status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.classification.layouts import Components, LabelLayout
from orthogp.classification.passes import Pass, SiteAscent
from orthogp.classification.site_models import SiteModel
from orthogp.classification.sites import LabelledRows, LogisticSites, Sites
from orthogp.inference.bounds import Bound
from orthogp.inference.component_posterior import AdditivePosterior
from orthogp.inference.moments import Moments
from orthogp.inference.parameters import pack
from orthogp.inference.posterior import Posterior
from orthogp.inference.threads import BlasThreads
from orthogp.kernels import Kernel
from orthogp.learning.dense import MOST_FIRST_FEATURES, SETTLED
from orthogp.learning.optimise import Budget, refine
from orthogp.learning.problem import FitSettings
from orthogp.rows import Domain

#: The trace term, in nats, that the final features may leave.
ALLOWED_TRACE = 0.05

# Passes by which starting values are compared.
_FIRST_PASSES = 6
# A change of features that gains less than this share of what they still cost is the last.
_WORTH = 0.02
# How much longer lengthscales may become before the period must, at first and at the end.
_HEADROOM_FIRST, _HEADROOM_LAST = 1.5, 1.1


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


@dataclass(frozen=True)
class LogisticFit:
    """A fitted model of two classes.

    Attributes
    ----------
    elbo : Bound
        The lower bound on log p(y), that of the posterior which predicts.
    moments : Moments
        Of the features over the regression that the sites make of the rows, of noise variance one.
    num_passes : int
        How often the rows were passed over.
    """

    kernel: Kernel
    model: SiteModel
    sites: Sites
    moments: Moments
    elbo: Bound
    status: str
    num_passes: int

    @property
    def lower_bound(self) -> float:
        """The bound in all."""
        return self.elbo.total

    @property
    def features(self) -> Any:
        """The features."""
        return self.model.features

    @property
    def period(self) -> Any:
        """The period of the prior, or of each component's."""
        return self.model.period

    def posterior(self, domain: Domain, num_threads: int) -> Posterior | AdditivePosterior:
        """Return the posterior of the latent function over a domain."""
        return self.model.posterior(self.kernel, self.moments, domain, num_threads)


class LogisticFitter:
    """Fits lattice features to labelled rows; see `fit`.

    Parameters
    ----------
    lattices : LabelLayout
        Where features may be chosen from.
    sites : type
        How labels become a regression: by the likelihood's own expectation, or Pólya-Gamma's bound.
    """

    def __init__(
        self,
        rows: LabelledRows,
        lattices: LabelLayout,
        settings: FitSettings,
        num_threads: int = 1,
        sites: type[Sites] = LogisticSites,
    ) -> None:
        self.rows = rows
        self.lattices = lattices
        self.settings = settings
        self._threads = BlasThreads(num_threads)
        self._num_threads = num_threads
        self._num_passes = 0
        self._kind = sites

    def fit(self, kernels: list[Kernel]) -> LogisticFit:
        """Return the fit from the best of some kernels."""
        flat = self._kind.flat(self.rows)
        if not self.settings.learn:
            components = self.lattices.components(kernels[0], 1.0)
            size = self._wanted_features(kernels[0], flat, components)
            return self._finished(self._converged(kernels[0], flat, components, size))
        starts = [self._start(kernel, flat) for kernel in kernels]
        best = max(starts, key=lambda stage: stage.last.bound)
        best = self._learned(best, best.components, best.size)
        if self.lattices.shorter(best.components) and self._scarce(best, best.components):
            best = self._shortened(self._settled(best, best.size))
        best = self._settled(best, self.settings.most_features)
        exact = self._ascended(best.last.kernel, best.last.sites, best.model)
        return self._finished(replace(best, last=exact))

    # ------------------------------------------------------------------ stages

    def _start(self, kernel: Kernel, sites: Sites) -> Stage:
        """Return a stage of a few passes by which to compare kernels."""
        components = self.lattices.components(kernel, _HEADROOM_FIRST)
        few = min(self.lattices.first_features, MOST_FIRST_FEATURES)
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

    def _shortened(self, best: Stage) -> Stage:
        """Return the best stage with shorter periods, on which as many features reach further.

        One axis after the other gives up long lengthscales for that, as long as the bound gains.
        """
        while not self.settings.late():
            others = self.lattices.shorter(best.components)
            stages = [self._learned(best, components, best.size) for components in others]
            stage = max([best, *stages], key=lambda stage: stage.last.bound)
            if stage is best:
                break
            best = stage
        return best

    def _converged(
        self, kernel: Kernel, sites: Sites, components: Components, size: int, **limit: int
    ) -> Stage:
        """Return the stage that leaves the kernel as it is."""
        model = self.lattices.select(kernel, components, size)
        return Stage(self._ascended(kernel, sites, model, **limit), model, components)

    def _ascended(self, kernel: Kernel, sites: Sites, model: SiteModel, **limit: int) -> Pass:
        ascent = self._ascent(kernel, sites, model)
        last = ascent.ascend(kernel, **limit)
        self._num_passes += ascent.num_passes
        return last

    def _learned(self, previous: Stage, components: Components, size: int) -> Stage:
        """Return the stage that learns the kernel, from where the previous one ended."""
        kernel, sites = previous.last.kernel, previous.last.sites
        model = self.lattices.select(kernel, components, size)
        ascent = self._ascent(kernel, sites, model)
        lower, upper = self.lattices.limits(kernel, components)
        vector = np.clip(pack(kernel, ascent.slots), lower, upper)
        if len(vector) == 0:
            return Stage(self._ascended(kernel, sites, model), model, components)
        curvature = previous.curvature
        if curvature is None:
            curvature = self.lattices.curvature(ascent, vector, (lower, upper))
        late = self.settings.late
        found = refine(ascent, vector, (lower, upper), curvature, Budget(20, late))
        self._num_passes += ascent.num_passes
        at_limit = self.lattices.names_at_limit(kernel, components, found.x, (lower, upper))
        return Stage(ascent.best, model, components, found.curvature, at_limit, found.converged)

    def _ascent(self, kernel: Kernel, sites: Sites, model: SiteModel) -> SiteAscent:
        return SiteAscent(
            model,
            kernel,
            sites,
            threads=self._threads,
            num_threads=self._num_threads,
            late=self.settings.late,
        )

    # ------------------------------------------------------------------ choices

    def _wanted(self, stage: Stage) -> tuple[Components, int]:
        """Return the components and the number of features to go on with."""
        components = self.lattices.components(stage.last.kernel, _HEADROOM_LAST)
        if self._scarce(stage, components):
            # Longer lengthscales are not worth a longer period, on which features reach less far.
            components = self.lattices.no_longer(components, stage.components)
        return components, self._wanted_features(stage.last.kernel, stage.last.sites, components)

    def _scarce(self, stage: Stage, components: Components) -> bool:
        """Whether a components takes more features than there may be."""
        wanted = self._sufficient(stage.last.kernel, stage.last.sites, components)
        return wanted > self.settings.most_features

    def _wanted_features(self, kernel: Kernel, sites: Sites, components: Components) -> int:
        """Return how many features of a components to end with."""
        if self.settings.num_features is not None:
            return self.settings.num_features
        wanted = max(self._sufficient(kernel, sites, components), 33)
        return min(wanted, self.settings.max_features)

    def _sufficient(self, kernel: Kernel, sites: Sites, components: Components) -> int:
        """Return how many features keep the trace term within what is allowed."""
        allowed = 2 * ALLOWED_TRACE / sites.precision_total
        return self.lattices.sufficient(kernel, components, allowed)

    def _finished(self, stage: Stage) -> LogisticFit:
        last = stage.last
        return LogisticFit(
            kernel=last.kernel,
            model=stage.model,
            sites=last.sites,
            moments=last.objective.moments(last.kernel),
            elbo=last.elbo,
            status=self._status(stage),
            num_passes=self._num_passes,
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
        if stage.at_limit:
            scarce = self._scarce(stage, stage.components)
            sentences += self.lattices.describe_limits(stage.at_limit, scarce)
        return " ".join(sentences)
