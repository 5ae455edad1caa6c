"""Posteriors as records of a file.

Lattice features of a regressor are few numbers beside the sums that the file holds anyway: their
posterior is computed from those again, unless there are so many that a small file could ask for
much memory. Elsewhere the file holds the mean and the factor of q(u), the rows of an exact
posterior, or the solution of an iterative one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.exact.fitting import MOST_ROWS
from orthogp.exact.merged_rows import merge_rows
from orthogp.exact.process import ExactPosterior
from orthogp.features import AdditiveLattice, Lattice, SeriesFeatures
from orthogp.fields.model import Model, ModePosterior
from orthogp.fields.posterior import IterativePosterior
from orthogp.fields.system import DataDensity
from orthogp.fields.variance import VarianceField
from orthogp.inference import Domain
from orthogp.inference.components import AdditivePosterior, ComponentSums
from orthogp.inference.family_posterior import FamilyPosterior
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.posterior import Posterior, Solution
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.threads import one_thread
from orthogp.kernels import Kernel
from orthogp.learning.kept_rows import KeptRows
from orthogp.learning.sketch import AdditiveSketch, Sketch, Units
from orthogp.neighbours.posterior import NeighbourPosterior, Trend
from orthogp.statistics import AdditiveStatistics, FourierStatistics, FrequencyLattice
from orthogp.storage.additive_solutions import solution_content, solution_from
from orthogp.storage.factors import packed, unpacked
from orthogp.storage.features import features_content, features_from
from orthogp.storage.kernels import kernel_content, kernel_from
from orthogp.storage.record import Record
from orthogp.storage.sketches import domain_content, domain_from, mean_content, mean_from

# The most features whose posterior is computed from sums that take far less room than its matrices.
_MOST_COMPUTED = 4000
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


def posterior_content(posterior: PredictivePosterior, *, has_sums: bool) -> dict[str, Any]:
    """Return a posterior as a record, without what follows from sums that are stored beside it."""
    kernel: Kernel = posterior.kernel  # type: ignore[attr-defined]
    content = {
        "kernel": kernel_content(kernel),
        "noise_variance": float(posterior.noise_variance),
    }
    if isinstance(posterior, NeighbourPosterior):
        trend = posterior.trend
        return content | {
            "form": "neighbours",
            "mean_function": mean_content(trend.prior),
            "coefficients": trend.coefficients,
            "covariance": trend.covariance,
            "num_neighbours": posterior.num_neighbours,
        }
    if not isinstance(posterior, ExactPosterior):
        content["domain"] = domain_content(posterior.domain)  # type: ignore[attr-defined]
    if isinstance(posterior, Posterior):
        content |= {"form": "lattice", "features": features_content(posterior.features)}
        if not has_sums or len(posterior.mean) > _MOST_COMPUTED:
            content |= {"mean": posterior.mean, "factor": packed(posterior.chol)}
    elif isinstance(posterior, AdditivePosterior):
        if has_sums and len(posterior.kernels) == 1 and len(posterior.mean) > _MOST_COMPUTED:
            raise FileError(
                f"A file of one component takes up to {_MOST_COMPUTED} features, got "
                f"{len(posterior.mean)}: fit with a smaller max_features."
            )
        content |= {"form": "additive", "features": features_content(posterior.features)}
        if not has_sums:
            content |= solution_content(posterior)
    elif isinstance(posterior, IterativePosterior) and has_sums:
        modes = posterior.modes
        content |= {
            "form": "iterative",
            **{name: np.asarray(value) for name, value in modes._asdict().items()},
            "splines": posterior.variance.splines,
            "variance_error": posterior.variance.relative_error,
        }
    elif isinstance(posterior, ExactPosterior):
        X, y, weights = posterior.rows
        content |= {"form": "exact", "X": X, "y": y, "weights": weights}
        content["mean_function"] = mean_content(posterior.mean)
    elif isinstance(posterior, FamilyPosterior):
        content |= {
            "form": "features",
            "features": features_content(posterior.features),
            "mean_function": mean_content(posterior.mean_prior),
            "mean": posterior.mean,
            "factor": packed(posterior.chol),
            "residual": float(posterior.residual),
            "offset": float(posterior.offset),
        }
    else:
        raise FileError(f"A file cannot hold a posterior of the class {type(posterior).__name__}.")
    return content


def posterior_from(record: Record, setting: Setting) -> Any:
    """Return the posterior of a record."""
    form = record.text("form", ("exact", "neighbours", *_FORMS))
    kernel = kernel_from(record.record("kernel"))
    kernel.check(setting.num_dims)
    noise_variance = record.positive("noise_variance")
    if form == "exact":
        posterior = _exact(record, setting, kernel, noise_variance)
    elif form == "neighbours":
        posterior = _neighbours(record, setting, kernel, noise_variance)
    else:
        posterior = _FORMS[form](record, setting, kernel, noise_variance, _domain(record, setting))
    _check_finite(record, posterior)
    return posterior


# ---------------------------------------------------------------------- the forms


def _lattice(
    record: Record, setting: Setting, kernel: Kernel, noise_variance: float, domain: Domain
) -> Posterior:
    features = features_from(record.record("features"))
    if not isinstance(features, Lattice) or features.lattice.num_dims != setting.num_dims:
        record.fail(f"must be a Lattice on {setting.num_dims} columns", "features")
    threads = setting.num_threads
    if "factor" in record:
        m = features.num_features
        mean = record.array("mean", "float", (m, setting.num_targets))
        solution = Solution(mean, unpacked(record, m))
        return Posterior(features, kernel, noise_variance, solution, domain, threads)
    sums = _standardised(record, setting)
    if not isinstance(sums, FourierStatistics):
        record.fail("must be additive, as the sums are", "features")
    if features.num_features > _MOST_COMPUTED:
        record.fail(f"must be stored for more than {_MOST_COMPUTED} features", "factor")
    own = sums.decimate(_decimation(record, sums.lattice, features.lattice))
    moments = moments_from_statistics(features, kernel, own, repeats=setting.repeats)
    with one_thread():
        return Posterior(features, kernel, noise_variance, moments, domain, threads)


def _additive(
    record: Record, setting: Setting, kernel: Kernel, noise_variance: float, domain: Domain
) -> AdditivePosterior:
    features = features_from(record.record("features"))
    if "factor" in record:
        if not isinstance(features, AdditiveLattice):
            record.fail("must be lattices, one for each component", "features")
        solution = solution_from(record, features, kernel, setting.num_dims, setting.num_targets)
        return AdditivePosterior(
            features,
            kernel,
            noise_variance,
            solution.solution,
            solution.sums,
            domain,
            solution.own_periods,
            setting.num_threads,
        )
    sums = _standardised(record, setting)
    if (
        not isinstance(features, AdditiveLattice)
        or not isinstance(sums, AdditiveStatistics)
        or not isinstance(setting.sketch, AdditiveSketch)
        or features.columns != tuple(own.columns for own in sums.components)
    ):
        record.fail("must be lattices on the columns of the sums", "features")
    kept = sum(block.size for block in sums.cross.values())
    if features.num_features > max(_MOST_COMPUTED, np.sqrt(2 * kept)):
        record.fail("must not be more than the sums of pairs", "features")
    factors = [
        _decimation(record, own.lattice, part.lattice)
        for own, part in zip(sums.components, features.parts, strict=True)
    ]
    thin = sums.decimate(factors)
    moments = moments_from_statistics(features, kernel, thin, repeats=setting.repeats)
    periods = tuple(term.periods for term in setting.sketch.terms)
    with one_thread():
        return AdditivePosterior(
            features,
            kernel,
            noise_variance,
            moments,
            tuple(map(ComponentSums.of, thin.parts)),
            domain,
            periods,
            setting.num_threads,
        )


def _iterative(
    record: Record, setting: Setting, kernel: Kernel, noise_variance: float, domain: Domain
) -> IterativePosterior:
    sums = _standardised(record, setting)
    if not isinstance(sums, FourierStatistics) or setting.sketch is None:
        record.fail("needs sums on one lattice")
    density = DataDensity(sums, setting.num_threads or 1)
    mean, shape = setting.sketch.mean, density.grid.shape
    p, q = setting.num_targets, setting.num_dims if mean.slope_variance else 0
    modes = ModePosterior(
        modes=record.array("modes", "complex", (p, *shape)),
        slopes=record.array("slopes", "float", (q, p)),
        covariate_modes=record.array("covariate_modes", "complex", (q, *shape)),
        slope_factor=record.array("slope_factor", "float", (q, q)),
        explained=record.array("explained", "float", (p,)),
    )
    splines = record.array("splines", "float", (None,) * setting.num_dims)
    if min(splines.shape) < 2:
        record.fail("must have at least two points along each column", "splines")
    error = record.number("variance_error", least=0.0)
    model = Model.build(density, mean, kernel, noise_variance, fine=True)
    field = VarianceField(splines, error, sums.lattice)
    return IterativePosterior(model, modes, field, mean, domain, setting.num_threads or 1)


def _exact(
    record: Record, setting: Setting, kernel: Kernel, noise_variance: float
) -> ExactPosterior:
    X = record.array("X", "float", (None, setting.num_dims))
    y = record.array("y", "float", (len(X), setting.num_targets))
    weights = record.array("weights", "float", (len(X),))
    if len(X) == 0 or np.any(weights <= 0):
        record.fail("must be positive, for at least one row", "weights")
    if len(X) > MOST_ROWS:
        record.fail(f"must have at most {MOST_ROWS} rows", "X")
    mean = mean_from(record.record("mean_function"), setting.num_dims)
    return ExactPosterior(kernel, noise_variance, mean, X, y, weights, repeats=setting.repeats)


def _neighbours(
    record: Record, setting: Setting, kernel: Kernel, noise_variance: float
) -> NeighbourPosterior:
    if not isinstance(setting.sketch, KeptRows) or setting.units is None:
        record.fail("needs the rows")
    mean = mean_from(record.record("mean_function"), setting.num_dims)
    q = mean.features(np.zeros((1, setting.num_dims))).shape[1]
    trend = Trend(
        record.array("coefficients", "float", (q, setting.num_targets)),
        record.array("covariance", "float", (q, q)),
        mean,
    )
    rows = setting.sketch.standardised_rows(setting.units)
    merged = merge_rows(rows.X, rows.y, rows.weights, repeats=setting.repeats)
    count = record.integer("num_neighbours", least=1, most=_MOST_NEIGHBOURS)
    threads = setting.num_threads or 1
    return NeighbourPosterior(kernel, noise_variance, merged, trend, count, threads)


def _family(
    record: Record, setting: Setting, kernel: Kernel, noise_variance: float, domain: Domain
) -> FamilyPosterior:
    features = features_from(record.record("features"))
    prior = mean_from(record.record("mean_function"))
    if prior.slope_variance and len(prior.origin) != setting.num_dims:
        record.fail(f"must be of {setting.num_dims} columns", "mean_function")
    if isinstance(features, SeriesFeatures) and setting.sketch is not None:
        sums = setting.sketch.statistics
        if not isinstance(sums, FourierStatistics) or np.any(
            features.lattice.extent > sums.lattice.extent
        ):
            record.fail("must lie on the lattice of the sums", "features")
    m = features.num_features + len(prior.features(np.zeros((1, setting.num_dims)))[0])
    return FamilyPosterior(
        features,
        kernel,
        noise_variance,
        prior,
        record.array("mean", "float", (m, setting.num_targets)),
        unpacked(record, m),
        record.number("residual", least=0.0),
        domain,
        setting.num_threads,
        record.number("offset"),
    )


_FORMS = {
    "lattice": _lattice,
    "additive": _additive,
    "iterative": _iterative,
    "features": _family,
}


# ---------------------------------------------------------------------- parts


def _domain(record: Record, setting: Setting) -> Domain:
    return domain_from(record.record("domain"), size=setting.num_dims, finite=False)


def _standardised(record: Record, setting: Setting) -> FourierStatistics | AdditiveStatistics:
    if setting.sketch is None or setting.units is None:
        record.fail("is missing", "factor")
    return setting.sketch.standardised(setting.units)


def _decimation(
    record: Record, whole: FrequencyLattice, thin: FrequencyLattice
) -> NDArray[np.int64]:
    """Return by how much a lattice was decimated to get another one."""
    factors = np.ones(whole.num_dims, dtype=np.int64)
    if thin.num_dims == whole.num_dims:
        factors = np.clip(np.rint(thin.spacing / whole.spacing), 1, 2**30).astype(np.int64)
    if whole.decimate(factors) != thin:
        record.fail("must lie on every so many frequencies of the sums", "features")
    return factors


def _check_finite(record: Record, posterior: Any) -> None:
    """Fail unless what was computed from the file is finite."""
    numbers = [posterior.prior_variance, posterior.residual]
    if isinstance(posterior, Posterior | AdditivePosterior):
        numbers += [posterior.mean.sum(), posterior.chol.sum()]
    if not np.isfinite(numbers).all():
        record.fail("does not give a finite posterior")
