"""From labelled rows to a fitted classifier: starts, growth of the feature set, and a status."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice, MeanPrior
from orthogp.inference.bounds import Bound
from orthogp.inference.classification import Pass, SiteAscent
from orthogp.inference.domain import Domain
from orthogp.inference.fitting import FIRST_FEATURES, MOST_FIRST_FEATURES, SETTLED
from orthogp.inference.limits import NOISE_FLOOR, names_at_limit, parameter_limits
from orthogp.inference.logistic_sites import LogisticSites
from orthogp.inference.moments import Moments
from orthogp.inference.optimise import curvature_at, refine
from orthogp.inference.parameters import pack
from orthogp.inference.posterior import Posterior
from orthogp.inference.residual import required_features
from orthogp.inference.settings import FitSettings
from orthogp.inference.sites import LabelledRows, Sites
from orthogp.inference.threads import BlasThreads
from orthogp.inference.wrapping import choose_decimation
from orthogp.kernels import Kernel
from orthogp.statistics import FrequencyLattice

#: The trace term, in nats, that the final features may leave.
ALLOWED_TRACE = 0.05

# Passes by which starting values are compared.
_FIRST_PASSES = 6
# A change of features that gains less than this share of what they still cost is the last.
_WORTH = 0.02
# The shortest period, relative to the data's extent.
_SHORTEST = 1.1
# How much longer lengthscales may become before the period must, at first and at the end.
_HEADROOM_FIRST, _HEADROOM_LAST = 1.5, 1.1


@dataclass(frozen=True)
class Stage:
    """Where learning with one feature set ended."""

    last: Pass
    features: Lattice
    curvature: NDArray[np.float64] | None = None
    at_limit: tuple[str, ...] = ()
    converged: bool = True

    @property
    def num_features(self) -> int:
        """The number of features."""
        return self.features.num_features

    @property
    def lattice(self) -> FrequencyLattice:
        """The lattice that they belong to."""
        return self.features.lattice


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
    features: Lattice
    sites: Sites
    moments: Moments
    elbo: Bound
    status: str
    num_passes: int

    @property
    def lower_bound(self) -> float:
        """The bound in all."""
        return self.elbo.total

    def posterior(self, domain: Domain, num_threads: int) -> Posterior:
        """Return the posterior of the latent function over a domain."""
        return Posterior(self.features, self.kernel, 1.0, self.moments, domain, num_threads)


class LogisticFitter:
    """Fits lattice features to labelled rows; see `fit`.

    Parameters
    ----------
    lattice : FrequencyLattice
        The finest that features may be chosen from.
    width : (d,)
        The extent of the rows and of what else is to be covered.
    sites : type
        How labels become a regression: by the likelihood's own expectation, or Pólya-Gamma's bound.
    """

    def __init__(
        self,
        rows: LabelledRows,
        lattice: FrequencyLattice,
        width: NDArray[np.float64],
        mean: MeanPrior,
        settings: FitSettings,
        num_threads: int = 1,
        sites: type[Sites] = LogisticSites,
    ) -> None:
        self.rows = rows
        self.lattice = lattice
        self.width = width
        self.mean = mean
        self.settings = settings
        self._threads = BlasThreads(num_threads)
        self._num_threads = num_threads
        self._num_passes = 0
        self._kind = sites

    def fit(self, kernels: list[Kernel]) -> LogisticFit:
        """Return the fit from the best of some kernels."""
        flat = self._kind.flat(self.rows)
        if not self.settings.learn:
            lattice = self._decimated(kernels[0], 1.0)
            size = self._wanted_features(kernels[0], flat, lattice)
            features = Lattice.select(kernels[0], lattice, size, self.mean)
            return self._finished(self._converged(kernels[0], flat, features))
        starts = [self._start(kernel, flat) for kernel in kernels]
        best = max(starts, key=lambda stage: stage.last.bound)
        best = self._learned(best, best.lattice, best.num_features)
        if self._scarce(best, best.lattice):
            best = self._shortened(self._settled(best, best.num_features))
        best = self._settled(best, self.settings.most_features)
        exact = self._converged(best.last.kernel, best.last.sites, best.features)
        return self._finished(replace(best, last=exact.last))

    # ------------------------------------------------------------------ stages

    def _start(self, kernel: Kernel, sites: Sites) -> Stage:
        """Return a stage of a few passes by which to compare kernels."""
        lattice = self._decimated(kernel, _HEADROOM_FIRST)
        few = FIRST_FEATURES[len(self.width)]
        size = np.clip(self._wanted_features(kernel, sites, lattice), few, MOST_FIRST_FEATURES)
        size = min(int(size), self.settings.most_features)
        features = Lattice.select(kernel, lattice, size, self.mean)
        return self._converged(kernel, sites, features, max_passes=_FIRST_PASSES)

    def _settled(self, best: Stage, most: int) -> Stage:
        """Return the stage whose lattice and features are those that its kernel asks for."""
        for _ in range(8):
            lattice, wanted = self._wanted(best)
            wanted = min(wanted, most)
            # In steps of at most four: most of the way is cheap with few features.
            size = min(wanted, 4 * best.num_features)
            stage = self._learned(best, lattice, size)
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
            factors = self._factors(best.lattice)
            lattices = [self.lattice.decimate(factors + step) for step in np.eye(len(factors))]
            stages = [
                self._learned(best, lattice, best.num_features)
                for lattice in lattices
                if np.all(lattice.period >= _SHORTEST * self.width)
            ]
            stage = max([best, *stages], key=lambda stage: stage.last.bound)
            if stage is best:
                break
            best = stage
        return best

    def _converged(self, kernel: Kernel, sites: Sites, features: Lattice, **limit: int) -> Stage:
        """Return the stage that leaves the kernel as it is."""
        ascent = self._ascent(kernel, sites, features)
        last = ascent.ascend(kernel, **limit)
        self._num_passes += ascent.num_passes
        return Stage(last, features)

    def _learned(self, previous: Stage, lattice: FrequencyLattice, size: int) -> Stage:
        """Return the stage that learns the kernel, from where the previous one ended."""
        kernel, sites = previous.last.kernel, previous.last.sites
        features = Lattice.select(kernel, lattice, size, self.mean)
        ascent = self._ascent(kernel, sites, features)
        tolerance = self.settings.wrap_tolerance
        edges = parameter_limits(kernel, ascent.slots, lattice, self.width, tolerance, NOISE_FLOOR)
        # The last limits are those of a noise variance, which is one here.
        lower, upper = (edge[:-1] for edge in edges)
        vector = np.clip(pack(kernel, ascent.slots), lower, upper)
        if len(vector) == 0:
            return self._converged(kernel, sites, features)
        curvature = previous.curvature
        if curvature is None:
            _, gradient = ascent(vector)
            curvature = curvature_at(ascent, vector, gradient, lower, upper)
        late = self.settings.late
        found = refine(ascent, vector, lower, upper, curvature, max_iterations=20, out_of_time=late)
        self._num_passes += ascent.num_passes
        at_limit = names_at_limit(ascent.slots, found.x, lower, upper)
        return Stage(ascent.best, features, found.curvature, at_limit, found.converged)

    def _ascent(self, kernel: Kernel, sites: Sites, features: Lattice) -> SiteAscent:
        # Sums are needed no further than the features reach, and each pass takes them anew.
        lattice, reach = features.lattice, np.abs(features.indices).max(axis=0)
        narrow = FrequencyLattice(lattice.spacing, reach, lattice.centre)
        return SiteAscent(
            Lattice(narrow, features.indices, self.mean),
            kernel,
            sites,
            threads=self._threads,
            num_threads=self._num_threads,
            late=self.settings.late,
        )

    # ------------------------------------------------------------------ choices

    def _decimated(self, kernel: Kernel, headroom: float) -> FrequencyLattice:
        """Return the coarsest lattice that the kernel, stretched by `headroom`, allows."""
        tolerance = self.settings.wrap_tolerance
        return self.lattice.decimate(
            choose_decimation(kernel, self.lattice, self.width, tolerance, headroom)
        )

    def _factors(self, lattice: FrequencyLattice) -> NDArray[np.int64]:
        """Return by how much a lattice was decimated."""
        return np.rint(lattice.spacing / self.lattice.spacing).astype(np.int64)

    def _wanted(self, stage: Stage) -> tuple[FrequencyLattice, int]:
        """Return the lattice and the number of features to go on with."""
        lattice = self._decimated(stage.last.kernel, _HEADROOM_LAST)
        if self._scarce(stage, lattice):
            # Longer lengthscales are not worth a longer period, on which features reach less far.
            factors = np.maximum(self._factors(lattice), self._factors(stage.lattice))
            lattice = self.lattice.decimate(factors)
        return lattice, self._wanted_features(stage.last.kernel, stage.last.sites, lattice)

    def _scarce(self, stage: Stage, lattice: FrequencyLattice) -> bool:
        """Whether a lattice takes more features than there may be."""
        wanted = self._sufficient(stage.last.kernel, stage.last.sites, lattice)
        return wanted > self.settings.most_features

    def _wanted_features(self, kernel: Kernel, sites: Sites, lattice: FrequencyLattice) -> int:
        """Return how many features of a lattice to end with."""
        if self.settings.num_features is not None:
            return self.settings.num_features
        wanted = max(self._sufficient(kernel, sites, lattice), 33)
        return min(wanted, self.settings.max_features)

    def _sufficient(self, kernel: Kernel, sites: Sites, lattice: FrequencyLattice) -> int:
        """Return how many features keep the trace term within what is allowed."""
        allowed = 2 * ALLOWED_TRACE / sites.precision_total
        return required_features(kernel, lattice, allowed)[0]

    def _finished(self, stage: Stage) -> LogisticFit:
        last = stage.last
        return LogisticFit(
            kernel=last.kernel,
            features=stage.features,
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
            names = " and ".join(stage.at_limit)
            scarce = self._scarce(stage, stage.lattice)
            remedy = "more features allow a longer period" if scarce else "see `domain` and `mean`"
            sentences.append(f"The {names} ended at a limit: {remedy}.")
        return " ".join(sentences)
