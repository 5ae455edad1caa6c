"""What a file holds of each kind of posterior, and how the posterior is made of it again.

Lattice features of a regressor are few numbers beside the sums that the file holds anyway: their
posterior is computed from those again, unless there are so many that a small file could ask for
much memory. Elsewhere the file holds the mean and the factor of q(u), or the solution of an
iterative posterior. The rows of exact and neighbour posteriors are in the sketch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.additive_sketch import AdditiveSketch
from orthogp.errors import FileError
from orthogp.features import AdditiveLattice, Features, Lattice, MeanPrior, SeriesFeatures
from orthogp.inference import Domain
from orthogp.inference.additive_posterior import (
    AdditivePosterior,
    AdditiveSolution,
    ComponentSums,
)
from orthogp.inference.additive_shares import Shares
from orthogp.inference.exact import ExactPosterior
from orthogp.inference.exact_fitting import MOST_ROWS
from orthogp.inference.family_posterior import FamilyPosterior
from orthogp.inference.iterative_posterior import IterativePosterior
from orthogp.inference.lattice_model import Model, ModePosterior
from orthogp.inference.lattice_system import DataDensity
from orthogp.inference.merged_rows import merge_rows
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.posterior import Posterior, Solution
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.threads import one_thread
from orthogp.inference.variance_field import VarianceField
from orthogp.kept_rows import KeptRows
from orthogp.kernels import Kernel, On, Sum
from orthogp.kernels.additive import term_kernels
from orthogp.kernels.cyclic import own_periods
from orthogp.neighbours.posterior import NeighbourPosterior, Trend
from orthogp.sketch import Sketch, Units
from orthogp.statistics import AdditiveStatistics, FourierStatistics, FrequencyLattice
from orthogp.storage.classes import Complexes, Floats, demand, demand_shape, whole
from orthogp.storage.codec import Refused, register

# The most features whose posterior is computed from sums that take far less room than its matrices.
MOST_COMPUTED = 4000
# The most rows that a prediction may look at: more would be asked for by a hostile file only.
_MOST_NEIGHBOURS = 5000


class Setting(NamedTuple):
    """What a posterior takes from the model it belongs to.

    Attributes
    ----------
    num_dims, num_targets : int
        Of the inputs that the kernel sees, and of the targets.
    num_threads : int, optional
    sketch, units
        The sums and the units of their targets, if the model keeps them.
    repeats : bool
        Whether weights count rows.
    """

    num_dims: int
    num_targets: int
    num_threads: int | None = None
    sketch: Sketch | None = None
    units: Units | None = None
    repeats: bool = True

    def standardised(self) -> FourierStatistics | AdditiveStatistics:
        """Return the sums of the standardised targets, for a posterior without its factor."""
        if self.sketch is None or self.units is None or isinstance(self.sketch, KeptRows):
            raise Refused("is missing", "factor")
        return self.sketch.standardised(self.units)


def kept_of(posterior: PredictivePosterior, sketch: Sketch | None) -> Any:
    """Return what a file holds of a posterior, without what follows from a sketch beside it."""
    for kind, form in _FORMS.items():
        if isinstance(posterior, kind):
            return form.of(posterior, sketch)
    raise FileError(f"A file cannot hold a posterior of the class {type(posterior).__name__}.")


def restored(kept: Any, setting: Setting) -> Any:
    """Return the posterior that a file holds."""
    kept.kernel.check(setting.num_dims)
    demand(kept.noise_variance > 0, "must be positive", "noise_variance")
    domain = getattr(kept, "domain", None)
    if domain is not None:
        demand(
            len(domain.lower) == setting.num_dims,
            f"must be of {setting.num_dims} columns",
            "domain",
        )
    posterior = kept.posterior(setting)
    numbers = [posterior.prior_variance, posterior.residual]
    if isinstance(posterior, Posterior | AdditivePosterior):
        numbers += [posterior.mean.sum(), posterior.chol.sum()]
    demand(np.isfinite(numbers), "does not give a finite posterior")
    return posterior


# ---------------------------------------------------------------------- series


class KeptLattice(NamedTuple):
    """A posterior on one lattice: q(u) follows from the sums, if it is not here."""

    kernel: Kernel
    noise_variance: float
    domain: Domain
    features: Lattice
    mean: Floats | None = None
    factor: Floats | None = None

    @classmethod
    def of(cls, posterior: Posterior, sketch: Sketch | None) -> KeptLattice:
        """Return what is kept of a posterior."""
        own = (posterior.kernel, posterior.noise_variance, posterior.domain, posterior.features)
        if sketch is not None and len(posterior.mean) <= MOST_COMPUTED:
            return cls(*own)
        return cls(*own, posterior.mean, _packed(posterior.chol))

    def posterior(self, setting: Setting) -> Posterior:
        """Return the posterior."""
        features, m = self.features, self.features.num_features
        fits = features.lattice.num_dims == setting.num_dims
        demand(fits, f"must be on {setting.num_dims} columns", "features")
        own = (features, self.kernel, self.noise_variance)
        if self.factor is not None:
            solution = Solution(_mean(self.mean, m, setting), _unpacked(self.factor, m))
            return Posterior(*own, solution, self.domain, setting.num_threads)
        sums = setting.standardised()
        if not isinstance(sums, FourierStatistics):
            raise Refused("must be additive, as the sums are", "features")
        demand(
            m <= MOST_COMPUTED, f"must be stored for more than {MOST_COMPUTED} features", "factor"
        )
        thin = sums.decimate(_decimation(sums.lattice, features.lattice))
        moments = moments_from_statistics(features, self.kernel, thin, repeats=setting.repeats)
        with one_thread():
            return Posterior(*own, moments, self.domain, setting.num_threads)


class KeptAdditive(NamedTuple):
    """A posterior on one lattice for each component.

    Without sums beside it, there are the mean and the factor of q(u), and of the rows what
    components are centred by: the averages of each one's modes, one of each pair ±t.
    """

    kernel: Kernel
    noise_variance: float
    domain: Domain
    features: AdditiveLattice
    mean: Floats | None = None
    factor: Floats | None = None
    shares: Floats | None = None
    averages: tuple[Complexes, ...] = ()

    @classmethod
    def of(cls, posterior: AdditivePosterior, sketch: Sketch | None) -> KeptAdditive:
        """Return what is kept of a posterior."""
        own = (posterior.kernel, posterior.noise_variance, posterior.domain, posterior.features)
        if sketch is None:
            halves = (own.averages.ravel()[own.averages.size // 2 :] for own in posterior.sums)
            shares = posterior.shares.components
            return cls(*own, posterior.mean, _packed(posterior.chol), shares, tuple(halves))
        if len(posterior.kernels) == 1 and len(posterior.mean) > MOST_COMPUTED:
            raise FileError(
                f"A file of one component takes up to {MOST_COMPUTED} features, got "
                f"{len(posterior.mean)}: fit with a smaller max_features."
            )
        return cls(*own)

    def posterior(self, setting: Setting) -> AdditivePosterior:
        """Return the posterior."""
        if self.factor is not None:
            return self._from_factor(self.factor, setting)
        features, sums, sketch = self.features, setting.standardised(), setting.sketch
        if (
            not isinstance(sums, AdditiveStatistics)
            or not isinstance(sketch, AdditiveSketch)
            or features.columns != tuple(own.columns for own in sums.components)
        ):
            raise Refused("must be lattices on the columns of the sums", "features")
        kept = sum(block.size for block in sums.cross.values())
        few = features.num_features <= max(MOST_COMPUTED, np.sqrt(2 * kept))
        demand(few, "must not be more than the sums of pairs", "features")
        lattices = zip(sums.components, features.parts, strict=True)
        thin = sums.decimate([_decimation(own.lattice, part.lattice) for own, part in lattices])
        moments = moments_from_statistics(features, self.kernel, thin, repeats=setting.repeats)
        averages = tuple(map(ComponentSums.of, thin.parts))
        periods = tuple(term.periods for term in sketch.terms)
        with one_thread():
            return self._with(moments, averages, periods, setting)

    def _from_factor(self, factor: Floats, setting: Setting) -> AdditivePosterior:
        features = self.features
        terms = self.kernel.terms if isinstance(self.kernel, Sum) else ()
        columns = tuple(term.dims for term in terms if isinstance(term, On))
        # The kernel's columns have been checked; those of the features are the same.
        same = len(columns) == len(terms) and columns == features.columns
        demand(same, "must be on the columns of the kernel's terms", "features")
        parts = list(zip(features.parts, columns, strict=True))
        fits = all(part.lattice.num_dims == len(own) for part, own in parts)
        demand(fits, "must have a lattice in as many columns as each term", "features")
        slopes = features.num_slopes in (0, setting.num_dims)
        demand(slopes, f"must have slopes for {setting.num_dims} columns, or none", "features")
        m, p = features.num_features, setting.num_targets
        mean = _mean(self.mean, m, setting)
        if self.shares is None:
            raise Refused("is missing", "shares")
        demand_shape(self.shares, (len(terms), p), "shares")
        demand(self.shares >= 0, "must not be negative", "shares")
        count = len(self.averages) == len(terms)
        demand(count, f"must be a list of {len(terms)} arrays", "averages")
        sums = []
        for j, (part, half) in enumerate(zip(features.parts, self.averages, strict=True)):
            shape = part.lattice.target_shape
            demand_shape(half, ((int(np.prod(shape)) + 1) // 2,), f"averages/{j}")
            sums.append(ComponentSums(part.lattice, whole(half[None], shape)[0]))
        shares = Shares(self.shares, np.zeros(p))
        solution = AdditiveSolution(mean, _unpacked(factor, m), shares)
        kernels = zip(term_kernels(self.kernel), columns, strict=True)
        periods = tuple(own_periods(own, len(within)) for own, within in kernels)
        return self._with(solution, tuple(sums), periods, setting)

    def _with(
        self, moments: Any, sums: tuple[ComponentSums, ...], periods: Any, setting: Setting
    ) -> AdditivePosterior:
        return AdditivePosterior(
            self.features,
            self.kernel,
            self.noise_variance,
            moments,
            sums,
            self.domain,
            periods,
            setting.num_threads,
        )


class KeptFamily(NamedTuple):
    """A posterior of any other family of features."""

    kernel: Kernel
    noise_variance: float
    domain: Domain
    features: Features
    mean_function: MeanPrior
    mean: Floats
    factor: Floats
    residual: float
    offset: float

    @classmethod
    def of(cls, posterior: FamilyPosterior, sketch: Sketch | None) -> KeptFamily:
        """Return what is kept of a posterior."""
        return cls(
            posterior.kernel,
            posterior.noise_variance,
            posterior.domain,
            posterior.features,
            posterior.mean_prior,
            posterior.mean,
            _packed(posterior.chol),
            float(posterior.residual),
            float(posterior.offset),
        )

    def posterior(self, setting: Setting) -> FamilyPosterior:
        """Return the posterior."""
        prior, sketch, num_dims = self.mean_function, setting.sketch, setting.num_dims
        if prior.slope_variance:
            demand(len(prior.origin) == num_dims, f"must be of {num_dims} columns", "mean_function")
        if isinstance(self.features, SeriesFeatures):
            lattice = self.features.lattice
            demand(lattice.num_dims == num_dims, f"must be on {num_dims} columns", "features")
            if sketch is not None:
                sums = sketch.statistics
                on = isinstance(sums, FourierStatistics) and np.all(
                    lattice.extent <= sums.lattice.extent
                )
                demand(on, "must lie on the lattice of the sums", "features")
        demand(self.residual >= 0, "must be at least 0", "residual")
        m = self.features.num_features + len(prior.features(np.zeros((1, num_dims)))[0])
        return FamilyPosterior(
            self.features,
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


class KeptIterative(NamedTuple):
    """The solution for the modes of a large lattice; the preconditioner follows from the sums."""

    kernel: Kernel
    noise_variance: float
    domain: Domain
    modes: Complexes
    slopes: Floats
    covariate_modes: Complexes
    slope_factor: Floats
    explained: Floats
    splines: Floats
    variance_error: float

    @classmethod
    def of(cls, posterior: IterativePosterior, sketch: Sketch | None) -> KeptIterative:
        """Return what is kept of a posterior."""
        return cls(
            posterior.kernel,
            posterior.noise_variance,
            posterior.domain,
            **{name: np.asarray(value) for name, value in posterior.modes._asdict().items()},
            splines=posterior.variance.splines,
            variance_error=posterior.variance.relative_error,
        )

    def posterior(self, setting: Setting) -> IterativePosterior:
        """Return the posterior."""
        sums = setting.standardised()
        if not isinstance(sums, FourierStatistics) or setting.sketch is None:
            raise Refused("needs sums on one lattice")
        threads = setting.num_threads or 1
        density = DataDensity(sums, threads)
        mean, shape = setting.sketch.mean, density.grid.shape
        p, q = setting.num_targets, setting.num_dims if mean.slope_variance else 0
        modes = ModePosterior(
            modes=self.modes,
            slopes=self.slopes,
            covariate_modes=self.covariate_modes,
            slope_factor=self.slope_factor,
            explained=self.explained,
        )
        demand_shape(self.modes, (p, *shape), "modes")
        demand_shape(self.slopes, (q, p), "slopes")
        demand_shape(self.covariate_modes, (q, *shape), "covariate_modes")
        demand_shape(self.slope_factor, (q, q), "slope_factor")
        demand_shape(self.explained, (p,), "explained")
        demand_shape(self.splines, (None,) * setting.num_dims, "splines")
        fine = min(self.splines.shape) >= 2
        demand(fine, "must have at least two points along each column", "splines")
        demand(self.variance_error >= 0, "must be at least 0", "variance_error")
        model = Model.build(density, mean, self.kernel, self.noise_variance, fine=True)
        field = VarianceField(self.splines, self.variance_error, sums.lattice)
        return IterativePosterior(model, modes, field, mean, self.domain, threads)


# ---------------------------------------------------------------------- rows


class KeptExact(NamedTuple):
    """An exact posterior; its rows are those of the sketch, or, in old files, its own."""

    kernel: Kernel
    noise_variance: float
    mean_function: MeanPrior
    X: Floats | None = None
    y: Floats | None = None
    weights: Floats | None = None

    @classmethod
    def of(cls, posterior: ExactPosterior, sketch: Sketch | None) -> KeptExact:
        """Return what is kept of a posterior."""
        own = (posterior.kernel, posterior.noise_variance, posterior.mean)
        return cls(*own) if isinstance(sketch, KeptRows) else cls(*own, *posterior.rows)

    def posterior(self, setting: Setting) -> ExactPosterior:
        """Return the posterior."""
        _check_mean(self.mean_function, setting)
        X, y, weights = self._rows(setting)
        demand(len(X) <= MOST_ROWS, f"must have at most {MOST_ROWS} rows", "X")
        own = (self.kernel, self.noise_variance, self.mean_function)
        return ExactPosterior(*own, X, y, weights, repeats=setting.repeats)

    def _rows(self, setting: Setting) -> tuple[Floats, Floats, Floats | None]:
        if isinstance(setting.sketch, KeptRows) and setting.units is not None:
            rows = setting.sketch.standardised_rows(setting.units)
            return rows.X, rows.y, rows.weights
        if self.X is None or self.y is None or self.weights is None:
            raise Refused("needs the rows")
        demand_shape(self.X, (None, setting.num_dims), "X")
        demand_shape(self.y, (len(self.X), setting.num_targets), "y")
        demand_shape(self.weights, (len(self.X),), "weights")
        some = len(self.X) > 0 and np.all(self.weights > 0)
        demand(some, "must be positive, for at least one row", "weights")
        return self.X, self.y, self.weights


class KeptNeighbours(NamedTuple):
    """A posterior given the nearest rows, which are those of the sketch."""

    kernel: Kernel
    noise_variance: float
    mean_function: MeanPrior
    coefficients: Floats
    covariance: Floats
    num_neighbours: int

    @classmethod
    def of(cls, posterior: NeighbourPosterior, sketch: Sketch | None) -> KeptNeighbours:
        """Return what is kept of a posterior."""
        trend = posterior.trend
        own = (posterior.kernel, posterior.noise_variance, trend.prior)
        return cls(*own, trend.coefficients, trend.covariance, posterior.num_neighbours)

    def posterior(self, setting: Setting) -> NeighbourPosterior:
        """Return the posterior."""
        if not isinstance(setting.sketch, KeptRows) or setting.units is None:
            raise Refused("needs the rows")
        _check_mean(self.mean_function, setting)
        q = self.mean_function.features(np.zeros((1, setting.num_dims))).shape[1]
        demand_shape(self.coefficients, (q, setting.num_targets), "coefficients")
        demand_shape(self.covariance, (q, q), "covariance")
        count, most = self.num_neighbours, _MOST_NEIGHBOURS
        demand(1 <= count <= most, f"must be from 1 to {most}", "num_neighbours")
        trend = Trend(self.coefficients, self.covariance, self.mean_function)
        rows = setting.sketch.standardised_rows(setting.units)
        merged = merge_rows(rows.X, rows.y, rows.weights, repeats=setting.repeats)
        threads = setting.num_threads or 1
        return NeighbourPosterior(self.kernel, self.noise_variance, merged, trend, count, threads)


#: What is kept, by the kind of posterior.
Kept = KeptLattice | KeptAdditive | KeptFamily | KeptIterative | KeptExact | KeptNeighbours
_FORMS: dict[type, Any] = {
    Posterior: register(KeptLattice, "lattice"),
    AdditivePosterior: register(KeptAdditive, "additive"),
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
    """Return the lower triangular matrix of a triangle."""
    demand_shape(triangle, (size * (size + 1) // 2,), "factor")
    factor = np.zeros((size, size), order="F")
    factor[np.tril_indices(size)] = triangle
    demand(np.diag(factor) > 0, "must have a positive diagonal", "factor")
    return factor


def _mean(mean: Floats | None, size: int, setting: Setting) -> Floats:
    if mean is None:
        raise Refused("is missing", "mean")
    demand_shape(mean, (size, setting.num_targets), "mean")
    return mean


def _check_mean(mean: MeanPrior, setting: Setting) -> None:
    fits = len(mean.origin) == setting.num_dims
    demand(fits, f"must be of {setting.num_dims} columns", "mean_function")


def _decimation(full: FrequencyLattice, thin: FrequencyLattice) -> NDArray[np.int64]:
    """Return by how much a lattice was decimated to get another one."""
    factors = np.ones(full.num_dims, dtype=np.int64)
    if thin.num_dims == full.num_dims:
        factors = np.clip(np.rint(thin.spacing / full.spacing), 1, 2**30).astype(np.int64)
    same = full.decimate(factors) == thin
    demand(same, "must lie on every so many frequencies of the sums", "features")
    return factors
