"""What a file holds of each kind of posterior, and how the posterior is made of it again.

Lattice features of a regressor are few numbers beside the sums that the file holds anyway: their
posterior is computed from those again, unless the features are so numerous that a small file could
ask for much memory. Elsewhere the file holds the mean and the factor of q(u), or the solution of an
iterative posterior. The rows of exact and neighbour posteriors are in the sketch.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.exact.fitting import MOST_ROWS
from orthogp.exact.pairs import merge_rows
from orthogp.exact.process import ExactPosterior
from orthogp.features import AdditiveLattice, Features, Lattice, MeanPrior, SeriesFeatures
from orthogp.features.base import prior_variance
from orthogp.fields.model import Model, ModePosterior
from orthogp.fields.posterior import IterativePosterior, VarianceField
from orthogp.fields.system import DataDensity
from orthogp.inference import Domain
from orthogp.inference.certificates import Guarantee, PolishedMean
from orthogp.inference.component_posterior import AdditivePosterior, lattice_posterior
from orthogp.inference.known_modes import modes_within
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.posterior import ComponentSums, Posterior, Shares, Solution
from orthogp.inference.predictive import FamilyPosterior
from orthogp.kernels import Kernel, On, Sum
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.neighbours.posterior import NeighbourPosterior, Trend
from orthogp.precision import one_thread
from orthogp.rows import Rows, Units
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.storage.classes import (
    Complexes,
    Floats,
    check_mean_columns,
    demand,
    demand_few_parts,
    demand_shape,
    whole,
)
from orthogp.storage.codec import RefusedError, register, taken

# The largest number of features whose posterior is computed from the sums, which take less room.
MOST_COMPUTED = 4000
# The largest variance of standardised targets whose squares are finite.
_MOST_VARIANCE = 1e150
# The largest number of neighbours of a prediction: only a hostile file asks for more.
_MOST_NEIGHBOURS = 5000


class Setting(NamedTuple):
    """What a posterior takes from the model it belongs to."""

    #: The number of inputs that the kernel sees.
    num_dims: int
    num_targets: int
    num_threads: int | None = None
    #: The sums, or the rows, and the units of their targets, if the model keeps them.
    sketch: Sketch | None = None
    units: Units | None = None
    #: Whether weights count rows.
    repeats: bool = True

    @property
    def num_covariates(self) -> int:
        """The number of columns behind the inputs."""
        return 0 if self.sketch is None else self.sketch.mean.num_covariates

    def sums(self) -> Any:
        """Return the sums of the standardised targets, for a posterior without its factor."""
        if self.sketch is None or self.units is None or isinstance(self.sketch, KeptRows):
            raise RefusedError("is missing", "factor")
        return self.sketch.standardised(self.units)


@dataclass(frozen=True)
class KeptPosterior:
    """What is kept of every posterior."""

    #: Where in a posterior its fields are, if not under their names.
    paths: ClassVar[dict[str, str]] = {}

    kernel: Kernel
    noise_variance: float

    @classmethod
    def of(cls, posterior: Any, sketch: Sketch | None) -> Self:
        """Return what is kept of a posterior, without what follows from a sketch beside it."""
        return taken(cls, posterior, cls.paths, **cls._given(posterior, sketch))

    @staticmethod
    def _given(posterior: Any, sketch: Sketch | None) -> dict[str, Any]:
        """Return the fields that are no attributes of a posterior."""
        return {}

    def _posterior(self, setting: Setting) -> Any:
        """Return the posterior."""
        raise NotImplementedError


def kept_of(posterior: Any, sketch: Sketch | None) -> KeptPosterior:
    """Return what a file holds of a posterior."""
    for kind, form in _FORMS.items():
        if isinstance(posterior, kind):
            return form.of(posterior, sketch)
    raise FileError(f"A file cannot hold a posterior of the class {type(posterior).__name__}.")


def restored(kept: KeptPosterior, setting: Setting, where: str) -> Any:
    """Return the posterior that a file holds, having seen that it predicts."""
    try:
        demand_few_parts(kept.kernel, setting.num_dims)
        kept.kernel.check(setting.num_dims)
        demand(kept.noise_variance > 0, "must be positive", "noise_variance")
        largest = max(kept.noise_variance, prior_variance(kept.kernel))
        demand(largest <= _MOST_VARIANCE, f"must have variances up to {_MOST_VARIANCE:g}")
        domain, num_dims = getattr(kept, "domain", None), setting.num_dims
        if domain is not None:
            demand(len(domain.lower) == num_dims, f"must be of {num_dims} columns", "domain")
        posterior = kept._posterior(setting)
        # Parts that do not fit each other fail here, and not in the hands of a user.
        points = _places(setting, domain)
        with warnings.catch_warnings(action="ignore"):
            mean, variance = posterior.predict(points)
        fits = mean.shape == (len(points), setting.num_targets)
        demand(fits, f"must be of {setting.num_targets} targets")
        numbers = [posterior.prior_variance, posterior.residual, mean.sum(), variance.sum()]
        if isinstance(posterior, Posterior):
            numbers += [posterior.mean.sum(), posterior.chol.sum()]
        demand(np.isfinite(numbers), "does not give a finite posterior")
    except RefusedError as error:
        raise RefusedError(error.what, f"{where}/{error.name}") from error
    return posterior


def _places(setting: Setting, domain: Domain | None) -> Floats:
    """Return some points that a posterior must be able to predict at, (n, d)."""
    boxes = [] if domain is None else [domain]
    boxes += [] if setting.sketch is None else [setting.sketch.extent]
    points = [np.zeros(setting.num_dims)]
    for lower, upper in boxes:
        if np.isfinite(lower).all() and np.isfinite(upper).all():
            points += [lower, lower / 2 + upper / 2, upper]
    covariates = np.zeros((len(points), setting.num_covariates))
    return np.concatenate([np.stack(points), covariates], axis=1)


# ---------------------------------------------------------------------- series


@dataclass(frozen=True)
class KeptLattice(KeptPosterior):
    """A posterior on one lattice: q(u) follows from the sums, if it is not here.

    A polished mean has coefficients of all modes up to an index.
    """

    domain: Domain
    features: Lattice
    mean: Floats | None = None
    factor: Floats | None = None
    polished: Floats | None = None
    reach: tuple[int, ...] = ()
    guarantee: Guarantee | None = None

    @staticmethod
    def _given(posterior: Posterior, sketch: Sketch | None) -> dict[str, Any]:
        given: dict[str, Any] = {"polished": None, "reach": ()}
        if posterior.polished is not None:
            modes, mean = posterior.polished
            reach = np.abs(modes.indices).max(axis=0)
            given = {"polished": mean, "reach": tuple(reach.tolist())}
        if sketch is not None and len(posterior.mean) <= MOST_COMPUTED:
            return {"mean": None, "factor": None, **given}
        return {"factor": _packed(posterior.chol), **given}

    def _posterior(self, setting: Setting) -> Posterior:
        features, m = self.features, self.features.num_features
        fits = features.lattice.num_dims == setting.num_dims
        demand(fits, f"must be on {setting.num_dims} columns", "features")
        _check_mean(features.mean, setting, "features")
        own = (features, self.kernel, self.noise_variance)
        if self.factor is not None:
            solution = Solution(_mean(self.mean, m, setting), _unpacked(self.factor, m))
            return Posterior(
                *own, self._polish(solution, setting), self.domain, setting.num_threads
            )
        sums = setting.sums()
        if not isinstance(sums, FourierStatistics):
            raise RefusedError("must be additive, as the sums are", "features")
        few = m <= MOST_COMPUTED
        demand(few, f"must be stored for more than {MOST_COMPUTED} features", "factor")
        thin = sums.decimate(_decimation(sums.lattice, features.lattice))
        moments = moments_from_statistics(features, self.kernel, thin, repeats=setting.repeats)
        with one_thread():
            solution = self._polish(Solution.of(moments, self.noise_variance), setting)
        return Posterior(*own, solution, self.domain, setting.num_threads)

    def _polish(self, solution: Solution, setting: Setting) -> Solution:
        """Return q(u) with the polished mean and what bounds the errors, if the file holds them."""
        solution = solution._replace(guarantee=_checked(self.guarantee, setting))
        if self.polished is None:
            return solution
        lattice, reach = self.features.lattice, np.array(self.reach, dtype=np.int64)
        within = len(reach) == lattice.num_dims and np.all((reach >= 0) & (reach <= lattice.extent))
        demand(within, "must be indices of the lattice", "reach")
        modes = modes_within(lattice, reach, self.features.mean)
        demand_shape(self.polished, (modes.num_features, setting.num_targets), "polished")
        demand(np.isfinite(self.polished), "must be finite", "polished")
        return solution._replace(polished=PolishedMean(modes, self.polished))


def _checked(guarantee: Guarantee | None, setting: Setting) -> Guarantee | None:
    """Return what bounds the errors, having seen that it can."""
    if guarantee is not None:
        for name in ("residual", "beyond", "misfit"):
            demand_shape(getattr(guarantee, name), (setting.num_targets,), name)
        shift = len(guarantee.shift) in (1, setting.num_targets)
        demand(shift, f"must be of {setting.num_targets} targets", "shift")
        demand(np.concatenate(list(map(np.ravel, guarantee))) >= 0, "must be ≥ 0", "bounds")
        demand(guarantee.ratio < 1, "must be below 1", "ratio")
    return guarantee


@dataclass(frozen=True)
class KeptAdditive(KeptPosterior):
    """A posterior on one lattice for each component.

    Without sums beside it, there are the mean and the factor of q(u), and of the rows what
    components are centred by: the averages of each one's modes, one of each pair ±t.
    """

    paths: ClassVar[dict[str, str]] = {"shares": "shares.components"}

    domain: Domain
    features: AdditiveLattice
    mean: Floats | None = None
    factor: Floats | None = None
    shares: Annotated[Floats, "c p"] | None = None
    averages: tuple[Complexes, ...] = ()
    guarantee: Guarantee | None = None

    @staticmethod
    def _given(posterior: AdditivePosterior, sketch: Sketch | None) -> dict[str, Any]:
        if sketch is None:
            halves = (own.averages.ravel()[own.averages.size // 2 :] for own in posterior.sums)
            return {"factor": _packed(posterior.chol), "averages": tuple(halves)}
        if len(posterior.kernels) == 1 and len(posterior.mean) > MOST_COMPUTED:
            raise FileError(
                f"A file of one component takes up to {MOST_COMPUTED} features, got "
                f"{len(posterior.mean)}: fit with a smaller max_features."
            )
        return {"mean": None, "factor": None, "shares": None, "averages": ()}

    def _posterior(self, setting: Setting) -> Posterior:
        posterior = self._from_sums(setting)
        posterior.guarantee = _checked(self.guarantee, setting)
        return posterior

    def _from_sums(self, setting: Setting) -> Posterior:
        if self.factor is not None:
            return self._from_factor(self.factor, setting)
        features, sums = self.features, setting.sums()
        if sums.joint or features.columns != tuple(own.columns for own in sums.components):
            raise RefusedError("must be lattices on the columns of the sums", "features")
        _check_mean(features.mean, setting, "features")
        kept = sum(block.size for block in sums.cross.values())
        few = features.num_features <= max(MOST_COMPUTED, np.sqrt(2 * kept))
        demand(few, "must not be more than the sums of pairs", "features")
        lattices = zip(sums.components, features.parts, strict=True)
        thin = sums.thinned([_decimation(own.lattice, part.lattice) for own, part in lattices])
        moments = moments_from_statistics(features, self.kernel, thin, repeats=setting.repeats)
        averages = tuple(map(ComponentSums.of, thin.parts))
        model = (self.kernel, self.noise_variance)
        with one_thread():
            return lattice_posterior(
                features, model, moments, self.domain, setting.num_threads, averages
            )

    def _from_factor(self, factor: Floats, setting: Setting) -> AdditivePosterior:
        features, kernel = self.features, self.kernel
        terms = kernel.terms if isinstance(kernel, Sum) else ()
        columns = tuple(term.dims for term in terms if isinstance(term, On))
        # The kernel's columns have been checked; those of the features are the same.
        same = len(columns) == len(terms) and columns == features.columns
        demand(same, "must be on the columns of the kernel's terms", "features")
        slopes = features.num_slopes in (0, setting.num_dims)
        demand(slopes, f"must have slopes for {setting.num_dims} columns, or none", "features")
        if self.shares is None:
            raise RefusedError("is missing", "shares")
        demand_shape(self.shares, (len(terms), setting.num_targets), "shares")
        demand(self.shares >= 0, "must not be negative", "shares")
        count = len(self.averages) == len(terms)
        demand(count, f"must be a list of {len(terms)} arrays", "averages")
        sums = []
        for j, (part, half) in enumerate(zip(features.parts, self.averages, strict=True)):
            demand(part.lattice.num_dims == len(columns[j]), "must be as the terms", "features")
            shape = part.lattice.target_shape
            demand_shape(half, ((int(np.prod(shape)) + 1) // 2,), f"averages/{j}")
            sums.append(ComponentSums(part.lattice, whole(half[None], shape)[0]))
        m = features.num_features
        shares = Shares(self.shares, np.zeros(setting.num_targets))
        mean, chol = _mean(self.mean, m, setting), _unpacked(factor, m)
        own = (features, kernel, self.noise_variance, Solution(mean, chol, tuple(sums), shares))
        return AdditivePosterior(*own, self.domain, setting.num_threads)


@dataclass(frozen=True)
class KeptFamily(KeptPosterior):
    """A posterior of any other family of features."""

    paths: ClassVar[dict[str, str]] = {"mean_function": "mean_prior"}

    domain: Domain
    features: Features
    mean_function: MeanPrior
    mean: Floats
    factor: Floats
    residual: float
    offset: float

    @staticmethod
    def _given(posterior: FamilyPosterior, sketch: Sketch | None) -> dict[str, Any]:
        return {"factor": _packed(posterior.chol)}

    def _posterior(self, setting: Setting) -> FamilyPosterior:
        features, prior, num_dims = self.features, self.mean_function, setting.num_dims
        if prior.slope_variance:
            _check_mean(prior, setting, "mean_function")
        sums = None if setting.sketch is None else setting.sketch.statistics
        if isinstance(features, SeriesFeatures) and sums is not None:
            extent = features.lattice.extent
            on = isinstance(sums, FourierStatistics) and np.all(extent <= sums.lattice.extent)
            demand(on, "must lie on the lattice of the sums", "features")
        demand(self.residual >= 0, "must be at least 0", "residual")
        m = features.num_features + len(prior.features(np.zeros((1, num_dims)))[0])
        return FamilyPosterior(
            features,
            self.kernel,
            self.noise_variance,
            prior,
            _mean(self.mean, m, setting),
            _unpacked(self.factor, m),
            self.residual,
            self.domain,
            setting.num_threads,
            self.offset,
        )


@dataclass(frozen=True)
class KeptIterative(KeptPosterior):
    """The solution for the modes of a large lattice; the preconditioner follows from the sums."""

    paths: ClassVar[dict[str, str]] = {
        **{name: f"modes.{name}" for name in ModePosterior._fields},
        "splines": "variance.splines",
        "variance_error": "variance.relative_error",
    }

    domain: Domain
    modes: Complexes
    slopes: Annotated[Floats, "q p"]
    covariate_modes: Complexes
    slope_factor: Annotated[Floats, "q q"]
    explained: Annotated[Floats, "p"]
    splines: Floats
    variance_error: float

    def _posterior(self, setting: Setting) -> IterativePosterior:
        sums, sketch = setting.sums(), setting.sketch
        if not isinstance(sums, FourierStatistics) or sketch is None:
            raise RefusedError("needs sums on one lattice")
        threads = setting.num_threads or 1
        density = DataDensity(sums, threads, repeats=setting.repeats)
        p, q = setting.num_targets, sketch.mean.num_slopes
        demand_shape(self.slopes, (q, p), "slopes")
        demand_shape(self.modes, (p, *density.grid.shape), "modes")
        demand_shape(self.covariate_modes, (q, *density.grid.shape), "covariate_modes")
        fine = self.splines.ndim == setting.num_dims and min(self.splines.shape) >= 2
        demand(fine, "must have at least two points along each column", "splines")
        demand(self.variance_error >= 0, "must be at least 0", "variance_error")
        modes = ModePosterior(**{name: getattr(self, name) for name in ModePosterior._fields})
        model = Model.build(density, sketch.mean, self.kernel, self.noise_variance, fine=True)
        field = VarianceField(self.splines, self.variance_error, sums.lattice)
        return IterativePosterior(model, modes, field, self.domain, threads)


# ---------------------------------------------------------------------- rows


@dataclass(frozen=True)
class KeptExact(KeptPosterior):
    """An exact posterior; its rows are those of the sketch, or, in old files, its own."""

    paths: ClassVar[dict[str, str]] = {
        "mean_function": "mean",
        "X": "rows.X",
        "y": "rows.y",
        "weights": "rows.weights",
    }

    mean_function: MeanPrior
    X: Annotated[Floats, "n d"] | None = None
    y: Annotated[Floats, "n p"] | None = None
    weights: Annotated[Floats, "n"] | None = None
    additive: bool = False

    @staticmethod
    def _given(posterior: ExactPosterior, sketch: Sketch | None) -> dict[str, Any]:
        return dict.fromkeys(("X", "y", "weights")) if isinstance(sketch, KeptRows) else {}

    def _posterior(self, setting: Setting) -> ExactPosterior:
        X, y, weights = self.X, self.y, self.weights
        if X is None and isinstance(setting.sketch, KeptRows) and setting.units is not None:
            rows = setting.sketch.standardised_rows(setting.units)
            X, y, weights = rows.X, rows.y, rows.weights
        elif X is None or y is None or weights is None or not len(X) or np.any(weights <= 0):
            raise RefusedError("needs the rows, with positive weights")
        demand(len(X) <= MOST_ROWS, f"must have at most {MOST_ROWS} rows", "X")
        width = setting.num_dims + setting.num_covariates
        demand(X.shape[1] == width, f"must have {width} columns", "X")
        _check_mean(self.mean_function, setting, "mean_function")
        own = (self.kernel, self.noise_variance, self.mean_function)
        terms = self.kernel.summands if self.additive else ()
        demand(all(isinstance(term, On) for term in terms), "must be a sum on columns", "kernel")
        rows, repeats = Rows(X, y, weights), setting.repeats
        return ExactPosterior(*own, rows, repeats=repeats, additive=self.additive)


@dataclass(frozen=True)
class KeptNeighbours(KeptPosterior):
    """A posterior given the nearest rows: those of the sketch, or pseudo-targets of its own."""

    paths: ClassVar[dict[str, str]] = {
        "X": "rows.X",
        "y": "rows.y",
        "weights": "rows.weights",
        "mean_function": "trend.prior",
        "coefficients": "trend.coefficients",
        "covariance": "trend.covariance",
    }

    mean_function: MeanPrior
    coefficients: Annotated[Floats, "q p"]
    covariance: Annotated[Floats, "q q"]
    num_neighbours: int
    X: Annotated[Floats, "n d"] | None = None
    y: Annotated[Floats, "n p"] | None = None
    weights: Annotated[Floats, "n"] | None = None

    @staticmethod
    def _given(posterior: NeighbourPosterior, sketch: Sketch | None) -> dict[str, Any]:
        return dict.fromkeys(("X", "y", "weights")) if isinstance(sketch, KeptRows) else {}

    def _posterior(self, setting: Setting) -> NeighbourPosterior:
        if not isinstance(setting.sketch, KeptRows) or setting.units is None:
            raise RefusedError("needs the rows")
        _check_mean(self.mean_function, setting, "mean_function")
        width = setting.num_dims + setting.num_covariates
        q = self.mean_function.features(np.zeros((1, width))).shape[1]
        demand_shape(self.coefficients, (q, setting.num_targets), "coefficients")
        count, most = self.num_neighbours, _MOST_NEIGHBOURS
        demand(1 <= count <= most, f"must be from 1 to {most}", "num_neighbours")
        trend = Trend(self.coefficients, self.covariance, self.mean_function)
        if self.X is None or self.y is None or self.weights is None:
            rows = setting.sketch.standardised_rows(setting.units)
            merged = merge_rows(rows.X, rows.y, rows.weights, repeats=setting.repeats)
        else:
            demand(self.X.shape[1] == width, f"must have {width} columns", "X")
            demand(self.weights > 0, "must be positive", "weights")
            merged = merge_rows(self.X, self.y, self.weights, repeats=False)
        threads = setting.num_threads or 1
        return NeighbourPosterior(self.kernel, self.noise_variance, merged, trend, count, threads)


_FORMS: dict[type, type[KeptPosterior]] = {
    # Several components come before one: the class of the first is derived from that of the second.
    AdditivePosterior: register(KeptAdditive, "additive"),
    Posterior: register(KeptLattice, "lattice"),
    FamilyPosterior: register(KeptFamily, "features"),
    IterativePosterior: register(KeptIterative, "iterative"),
    ExactPosterior: register(KeptExact, "exact"),
    NeighbourPosterior: register(KeptNeighbours, "neighbours"),
}


# ---------------------------------------------------------------------- parts


def _packed(factor: Floats) -> Floats:
    """Return the lower triangle, row by row."""
    return np.asarray(factor)[np.tril_indices(len(factor))]


def _unpacked(triangle: Floats, size: int) -> Floats:
    """Return the lower triangular matrix of its triangle, row by row."""
    demand_shape(triangle, (size * (size + 1) // 2,), "factor")
    factor = np.zeros((size, size), order="F")
    factor[np.tril_indices(size)] = triangle
    demand(np.diag(factor) > 0, "must have a positive diagonal", "factor")
    return factor


def _mean(mean: Floats | None, size: int, setting: Setting) -> Floats:
    if mean is None:
        raise RefusedError("is missing", "mean")
    demand_shape(mean, (size, setting.num_targets), "mean")
    return mean


def _check_mean(mean: MeanPrior, setting: Setting, name: str) -> None:
    same = mean.num_covariates == setting.num_covariates
    demand(same, "must have the covariates of the sketch", name)
    if mean.num_slopes or mean.num_covariates:
        check_mean_columns(mean, setting.num_dims, name)


def _decimation(full: FrequencyLattice, thin: FrequencyLattice) -> NDArray[np.int64]:
    """Return by how much a lattice was decimated to get another one."""
    factors = np.ones(full.num_dims, dtype=np.int64)
    if thin.num_dims == full.num_dims:
        factors = np.clip(np.rint(thin.spacing / full.spacing), 1, 2**30).astype(np.int64)
    same = full.decimate(factors) == thin
    demand(same, "must lie on every n-th frequency of the sums", "features")
    return factors
